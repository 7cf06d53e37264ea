"""`nonfinite=` and `integers=`: NaN and infinity among the elements, and integers in lists."""

import pickle

import gradclip as gc
import numpy as np
import pytest
from gradclip import _nonfinite
from ml_dtypes import bfloat16, finfo
from oracle import same_bits

RNG = np.random.default_rng(6)
DTYPES = ["f2", "f4", "f8", "c8", "c16", bfloat16]
LAYOUTS = {
    "contiguous": lambda x: x,
    "Fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: x[::-1],
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder()) if x.dtype.kind != "V" else x,
}


def bad_matrix(dtype):
    x = RNG.standard_normal((6, 150)).astype("f4")
    x[2, 3], x[4, 1] = np.nan, np.inf
    return x.astype(dtype)


def bad_slices(x, axes):
    """Whether the slice of each element has a NaN or an infinity."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        bad = ~np.isfinite(x.astype("c16" if x.dtype.kind == "c" else "f8"))
    return bad if axes == () else np.broadcast_to(bad.any(axis=axes, keepdims=True), x.shape)


@pytest.mark.sampled
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("axes", [None, 0, 1, ()])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", ["clip_by_norm", "clip_by_rms"])
def test_bad_slices_become_zero_or_stay_and_the_others_are_clipped(function, dtype, layout, axes, in_place):
    clip = getattr(gc, function)
    x = LAYOUTS[layout](bad_matrix(dtype))
    bad = bad_slices(x, axes)
    usual = clip(x.copy("K"), 0.5, axes)
    for policy, instead in (("zero", np.zeros_like(x)), ("keep", x)):
        own = x.copy("K")
        found = clip(own, 0.5, axes, nonfinite=policy, out=own if in_place else None)
        assert (found is own) == in_place
        expected = np.where(bad, instead, usual).astype(found.dtype)
        assert same_bits(found, expected), policy


@pytest.mark.parametrize("axes", [None, 0, 1, ()])
def test_raise_writes_nothing_and_names_the_slices(axes):
    x = bad_matrix("f4")
    for out in (None, x, np.zeros_like(x)):
        before = [x.tobytes(), None if out is None else out.tobytes()]
        with pytest.raises(gc.NonFiniteError) as caught:
            gc.clip_by_norm(x, 0.5, axes, nonfinite="raise", out=out)
        assert [x.tobytes(), None if out is None else out.tobytes()] == before
    entries = {None: ((),), 0: ((1,), (3,)), 1: ((2,), (4,)), (): ((2, 3), (4, 1))}
    assert caught.value.entries == entries[axes]
    assert not np.isfinite(caught.value.norm)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.entries) == (str(caught.value), caught.value.entries)
    assert isinstance(again, ValueError)
    x[2, 3] = x[4, 1] = 0
    assert same_bits(gc.clip_by_norm(x, 0.5, axes, nonfinite="raise"), gc.clip_by_norm(x, 0.5, axes))


def test_the_error_has_the_name_of_the_package():
    assert repr(gc.NonFiniteError) == "<class 'gradclip.NonFiniteError'>"
    data = pickle.dumps(gc.NonFiniteError("text", np.inf, (1,)), protocol=0)
    earlier = data.replace(b"cgradclip\n", b"cgradclip._nonfinite\n")  # the name in pickles of earlier commits
    assert data != earlier
    for again in (pickle.loads(data), pickle.loads(earlier)):
        assert type(again) is gc.NonFiniteError
        assert (str(again), again.norm, again.entries) == ("text", np.inf, (1,))


def test_a_signalling_nan_keeps_its_bits():
    for dtype, integer, nan in (("f4", "u4", 0x7F800001), ("f8", "u8", 0x7FF0000000000001), ("f2", "u2", 0x7C01)):
        x = np.ones((3, 40), dtype)
        x.view(integer)[1, 7] = nan
        for axes in (None, 0, 1, ()):
            for y in (x, np.asfortranarray(x), x[:, ::-1]):
                found = np.asarray(gc.clip_by_norm(y, 0.5, axes, nonfinite="keep"))
                bad = bad_slices(y, axes)
                assert same_bits(found[bad], y[bad])


FUNCTIONS = {
    "clip_by_norm": lambda t, **k: gc.clip_by_norm(t, 1.0, **k),
    "clip_by_average_norm": lambda t, **k: gc.clip_by_average_norm(t, 0.1, **k),
    "clip_by_rms": lambda t, **k: gc.clip_by_rms(t, 0.1, **k),
    "clip_by_global_norm": lambda t, **k: gc.clip_by_global_norm([t], 1.0, **k)[0][0],
    "clip_by_norms": lambda t, **k: gc.clip_by_norms([t], 1.0, **k)[0][0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_clipper_has_every_policy(name):
    clip = FUNCTIONS[name]
    for bad in (np.nan, np.inf, -np.inf):
        x = np.array([1.0, bad, -3.0])
        assert same_bits(clip(x), clip(x, nonfinite="propagate"))
        assert same_bits(clip(x, nonfinite="zero"), np.zeros(3))
        assert same_bits(clip(x, nonfinite="keep"), x)
        with pytest.raises(gc.NonFiniteError, match=f"^{name}: t"):
            clip(x, nonfinite="raise")
    fine = np.array([1.5e308, 1.5e308])  # whose norm lies beyond float64
    for policy in ("zero", "keep", "raise"):
        assert same_bits(clip(fine, nonfinite=policy), clip(fine))
    with pytest.raises(
        ValueError, match=f"{name}: nonfinite: found str 'skip'; allowed: 'propagate', 'raise', 'zero', 'keep'"
    ):
        clip(fine, nonfinite="skip")
    with pytest.raises(TypeError, match=f"{name}: nonfinite: found None"):
        clip(fine, nonfinite=None)


def test_an_infinite_limit_touches_nothing_but_raise_still_raises():
    x = np.array([1.0, np.nan])
    for policy in ("propagate", "zero", "keep"):
        assert same_bits(gc.clip_by_global_norm([x], np.inf, nonfinite=policy)[0][0], x)
        assert same_bits(gc.clip_by_norm(x[None], np.inf, 1, nonfinite=policy), x[None])
    with pytest.raises(gc.NonFiniteError):
        gc.clip_by_global_norm([x], np.inf, nonfinite="raise")


def test_a_message_names_three_tensors_and_counts_the_rest():
    bad = np.array([[1.0, np.inf, 2.0], [np.nan, 0.0, np.nan]])
    t_list = [np.ones(2), bad, None, bad, bad, bad[1], np.array([complex(np.inf, np.nan)])]
    with pytest.raises(gc.NonFiniteError) as caught:
        gc.clip_by_global_norm(t_list, 1.0, name="step 7", nonfinite="raise")
    one = "2 NaN and 1 infinite of 6 elements, the first at (0, 1)"
    assert str(caught.value) == (
        f"clip_by_global_norm 'step 7': t_list[1]: {one}; t_list[3]: {one}; t_list[4]: {one}; and 2 more"
    )
    assert caught.value.entries == (1, 3, 4, 5, 6)
    with pytest.raises(gc.NonFiniteError, match=r"^global_norm: t_list\[0\]: 1 NaN of 1 elements, the first at \(\)$"):
        gc.global_norm([np.float32(np.nan)], nonfinite="raise")
    slices = gc.IndexedSlices(np.array([[np.inf]]), [2])
    with pytest.raises(gc.NonFiniteError, match=r"^global_norm: t_list\[1\]: 1 infinite of 1 elements"):
        gc.global_norm([1.0, slices], nonfinite="raise")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 0), (2, 3, 0)])
def test_examples_without_elements_are_not_bad(shape, dtype):
    t_list = [np.zeros(shape, dtype), None, np.array([[1.0], [np.nan]], dtype)]
    for limit, entries in ((1.0, (1,)), ([1.0, None, 2.0], ((2, 1),))):
        message = r"^clip_examples_by_global_norm: t_list\[2\], example 1: 1 NaN of 1 elements, the first at \(0,\)$"
        with pytest.raises(gc.NonFiniteError, match=message) as caught:
            gc.clip_examples_by_global_norm(t_list, limit, nonfinite="raise")
        assert caught.value.entries == entries


def test_an_object_that_changes_is_an_error_that_says_so():
    class Changes:
        def __array__(self, dtype=None, copy=None):
            return np.array([next(numbers)])

    for call in (
        lambda: gc.clip_by_norm(Changes(), 1.0, nonfinite="raise"),
        lambda: gc.clip_by_norm(Changes(), 1.0, 0, nonfinite="raise"),
        lambda: gc.clip_by_global_norm([Changes()], 1.0, nonfinite="raise"),
    ):
        numbers = iter([np.nan, 1.0, 1.0])
        with pytest.raises(gc.NonFiniteError, match=r": an element was not finite when it was read$") as caught:
            call()
        assert np.isnan(caught.value.norm)


def many_rows(dtype, bad):
    x = RNG.standard_normal((50_000, 2, 3)).astype(dtype)
    x[7] = finfo(dtype).max  # finite, though its norm is infinite
    if x.dtype.kind == "c":
        x[8].real = x[8].imag = finfo(dtype).max  # its magnitudes too
    x[bad, 1, 2] = np.nan
    x[bad[0], 0, 1] = np.inf
    return x


@pytest.mark.parametrize("bad", [[17, 18, 49_999], range(10, 50_000)])
@pytest.mark.parametrize("dtype", ["f8", "f2", "c16", bfloat16])
def test_a_message_describes_three_slices_and_looks_at_the_others_at_once(dtype, bad, monkeypatch):
    x = many_rows(dtype, list(bad))
    described, describe = [], vars(_nonfinite)["_count"]
    monkeypatch.setattr(_nonfinite, "_count", lambda part: described.append(0) or describe(part))
    more = f"; and {len(bad) - 3} more" if len(bad) > 3 else ""
    first = "1 NaN and 1 infinite of 6 elements, the first at (0, 1)"
    texts = [first, *["1 NaN of 6 elements, the first at (1, 2)"] * 2]
    with pytest.raises(gc.NonFiniteError) as caught:
        gc.clip_by_norm(x, 1.0, (1, 2), nonfinite="raise")
    slices = "; ".join(f"t, slice ({i},): {text}" for i, text in zip(bad, texts, strict=False))
    assert caught.value.entries == tuple((i,) for i in bad)
    assert str(caught.value) == f"clip_by_norm: {slices}{more}"
    for clip_norm, entries in ((1.0, tuple(bad)), ([1.0, 1.0], tuple((1, i) for i in bad))):
        with pytest.raises(gc.NonFiniteError) as caught:
            gc.clip_examples_by_global_norm([np.ones(len(x)), x], clip_norm, nonfinite="raise")
        assert caught.value.entries == entries
        examples = "; ".join(f"t_list[1], example {i}: {text}" for i, text in zip(bad, texts, strict=False))
        assert str(caught.value) == f"clip_examples_by_global_norm: {examples}{more}"
    assert len(described) == 9


@pytest.mark.parametrize(
    ("axes", "texts"),
    [
        (0, ["(1, 3): 1 NaN of 2 elements, the first at (0,)", "(2, 3): 1 infinite of 2 elements, the first at (1,)"]),
        (1, ["(0, 3): 1 NaN of 3 elements, the first at (1,)", "(1, 3): 1 infinite of 3 elements, the first at (2,)"]),
        ((0, 1), ["(3,): 1 NaN and 1 infinite of 6 elements, the first at (0, 1)"]),
        (
            (2, 0),
            ["(1,): 1 NaN of 8 elements, the first at (3, 0)", "(2,): 1 infinite of 8 elements, the first at (3, 1)"],
        ),
    ],
)
def test_a_message_counts_the_elements_of_slices_along_any_axes(axes, texts):
    x = np.ones((2, 3, 4), complex)
    x[0, 1, 3] = complex(1, np.nan)
    x[1, 2, 3] = complex(0, np.inf)
    with pytest.raises(gc.NonFiniteError) as caught:
        gc.clip_by_norm(x, 1.0, axes, nonfinite="raise")
    assert str(caught.value) == "clip_by_norm: " + "; ".join(f"t, slice {text}" for text in texts)


def test_one_bad_tensor_of_clip_by_norms_leaves_the_others():
    t_list = [np.array([3.0, 4.0]), np.array([np.nan, 1.0]), None]
    for policy, second in (("zero", np.zeros(2)), ("keep", t_list[1])):
        clipped, norms = gc.clip_by_norms(t_list, 1.0, nonfinite=policy)
        assert same_bits(clipped[0], gc.clip_by_norm(t_list[0], 1.0))
        assert same_bits(clipped[1], second)
        assert same_bits(norms, np.array([5.0, np.nan, 0.0]))
    before = [t.tobytes() for t in t_list[:2]]
    with pytest.raises(gc.NonFiniteError) as caught:
        gc.clip_by_norms(t_list, 1.0, nonfinite="raise", out=t_list)
    assert caught.value.entries == (1,)
    assert [t.tobytes() for t in t_list[:2]] == before


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_bad_use_norm_counts(bad):
    x = np.array([1.0, 2.0])
    assert same_bits(gc.clip_by_global_norm([x], 1.0, bad, nonfinite="zero")[0][0], np.zeros(2))
    assert same_bits(gc.clip_by_global_norm([x], 1.0, bad, nonfinite="keep")[0][0], x)
    with pytest.raises(gc.NonFiniteError, match=f"use_norm: found {bad}; allowed: a finite norm") as caught:
        gc.clip_by_global_norm([x], 1.0, bad, nonfinite="raise", out=[x])
    assert caught.value.entries == ()
    assert same_bits(x, np.array([1.0, 2.0]))
    # A finite norm is trusted: the data are not read.
    y = np.array([np.nan, 4.0])
    assert same_bits(gc.clip_by_global_norm([y], 1.0, 2.0, nonfinite="raise")[0][0], np.array([np.nan, 2.0]))


# ---- integers in lists


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u4", "i8", "u8", "?"])
def test_kept_integers_count_nothing_and_come_back(dtype):
    x, counter = np.array([3.0, 4.0]), np.array([[7, 0], [1, 5]]).astype(dtype)
    for given in (counter, counter.T, np.asfortranarray(counter), counter[::-1]):
        clipped, norm = gc.clip_by_global_norm([given, x, None], 1.0, integers="keep")
        assert norm == 5.0 == gc.global_norm([given, x], integers="keep")
        assert not np.shares_memory(clipped[0], counter)
        assert same_bits(clipped[0], given)
        assert same_bits(clipped[1], gc.clip_by_norm(x, 1.0))
        own = np.zeros_like(given)
        assert gc.clip_by_global_norm([given, x], 1.0, integers="keep", out=[own, None])[0][0] is own
        assert same_bits(own, given)
    frozen = counter.copy()
    placed = [frozen, x.copy()]
    assert gc.clip_by_global_norm(placed, 1.0, integers="keep", out=placed)[0][0] is frozen
    assert same_bits(frozen, counter)


def test_integers_are_an_error_of_clippers_and_count_in_norms():
    t_list = [np.array([3, 4]), np.array([12.0])]
    assert gc.global_norm(t_list) == 13.0
    assert gc.global_norm(t_list, integers="keep") == 12.0
    found = r"^clip_by_global_norm: t_list\[0\]: found dtype int64; allowed: float16, .*; integers='keep' copies"
    with pytest.raises(TypeError, match=found):
        gc.clip_by_global_norm(t_list, 1.0)
    with pytest.raises(
        ValueError, match=r"^clip_by_global_norm: integers: found str 'count'; allowed: 'raise', 'keep'"
    ):
        gc.clip_by_global_norm(t_list[1:], 1.0, integers="count")
    with pytest.raises(ValueError, match=r"^global_norm: integers: found str 'raise'; allowed: 'count', 'keep'"):
        gc.global_norm(t_list, integers="raise")
    with pytest.raises(ValueError, match=r"^global_norm: nonfinite: found str 'zero'; allowed: 'propagate', 'raise'"):
        gc.global_norm(t_list, nonfinite="zero")


def test_a_kept_integer_that_lies_in_another_output_is_copied_first():
    room = np.arange(32, dtype=np.uint8)
    counter, x = room[:16].view(np.int64), np.array([3.0, 4.0])
    expected = counter.copy()
    out = [np.zeros(2, np.int64), room[:16].view(np.float64)]
    clipped, _ = gc.clip_by_global_norm([counter, x], 1.0, integers="keep", out=out)
    assert same_bits(clipped[0], expected)
    assert same_bits(clipped[1], gc.clip_by_norm(x, 1.0))
