"""`norms`, the clippers of lists whose tensors or units have their own norms, and `clip_by_rms`."""

import math
from fractions import Fraction

import gradclip as gc
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from oracle import same_bits

RNG = np.random.default_rng(5)
ORDS = [1, 2, 3, 0.5, 2.5, np.inf]
DTYPES = ["f2", "f4", "f8", "c8", "c16", bfloat16]


def sample(shape, dtype="f4"):
    values = np.asarray(RNG.standard_normal(shape)).astype(dtype)
    return (values * np.asarray(1 - 0.5j, dtype)).astype(dtype) if values.dtype.kind == "c" else values


def lists():
    mixed = [
        sample((3, 4)),
        sample(5000, "f8"),
        None,
        sample(17, "f2"),
        sample((2, 3), "c8"),
        sample((300, 700)),
        sample(0),
    ]
    base = sample(4000)
    return {
        "mixed": mixed,
        "plain": [t for t in mixed if t is not None and t.dtype.kind != "c"],
        "many of one length": [sample(16) for _ in range(200)],
        "views of one array": [base[i::5][:19] for i in range(10)],
        "strided": [sample((40, 30))[::2, ::-1], np.asfortranarray(sample((40, 30))), sample(9).astype(">f4")],
        "large": [sample(1 << 21), sample(3), sample(1 << 20)],
        "slices": [gc.IndexedSlices(sample((3, 2)), [4, 1, 1]), sample(3)],
        "beyond float64": [np.full(4, 1e308), np.full(4, 5e-324), np.array([np.inf]), np.array([np.nan])],
        "empty": [],
    }


LISTS = lists()


@pytest.mark.parametrize("ord", ORDS)
@pytest.mark.parametrize("name", LISTS)
def test_norms_have_the_bits_of_global_norm(name, ord, threads):
    t_list = LISTS[name]
    expected = np.array([0.0 if t is None else gc.global_norm([t], ord=ord) for t in t_list])
    for count in (1, 2):
        with threads(count):
            assert same_bits(gc.norms(t_list, ord=ord), expected)
            assert same_bits(gc.norms(tuple(t_list), "step", ord=ord), expected)


def test_norms_count_integers_and_bools():
    assert same_bits(gc.norms([np.array([3, 4]), np.array([True, False, True])]), np.array([5.0, np.sqrt(2.0)]))


@pytest.mark.parametrize("limits", ["one", "each"])
@pytest.mark.parametrize("name", LISTS)
def test_clip_by_norms_has_the_bits_of_clip_by_norm(name, limits):
    t_list = LISTS[name]
    each = [0.5, None, *[2.0 * i for i in range(len(t_list))]][: len(t_list)]
    given_limits = 1.5 if limits == "one" else each
    of = [1.5] * len(t_list) if limits == "one" else [np.inf if x is None else x for x in each]
    expected = [None if t is None else gc.clip_by_norm(t, x) for t, x in zip(t_list, of, strict=True)]
    clipped, norms = gc.clip_by_norms(t_list, given_limits)
    assert same_bits(norms, gc.norms(t_list))
    copy = lambda t: gc.IndexedSlices(t.values.copy(), t.indices) if isinstance(t, gc.IndexedSlices) else t.copy()  # noqa: E731
    own = [None if t is None else copy(t) for t in t_list]
    placed, again = gc.clip_by_norms(own, given_limits, out=own)
    assert same_bits(again, norms)
    assert all(a is b for a, b in zip(placed, own, strict=True))
    for results in (clipped, placed):
        for x, y in zip(results, expected, strict=True):
            if y is None:
                assert x is None
            elif isinstance(y, gc.IndexedSlices):
                assert same_bits(x.values, y.values)
            else:
                assert same_bits(x, y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ord", ORDS)
def test_an_infinite_norm_makes_zeros_and_a_norm_of_nan_makes_nan(ord, dtype):
    t_list = [oracle.numbers([1.0, np.inf, -2.0], dtype), oracle.numbers([np.nan, 1.0], dtype), sample(2, dtype)]
    clipped, norms = gc.clip_by_norms(t_list, 1.0, ord=ord)
    assert same_bits(norms, gc.norms(t_list, ord=ord))
    assert norms[0] == np.inf
    assert np.isnan(norms[1])
    for x, y in zip(clipped[:2], [gc.clip_by_norm(t, 1.0) for t in t_list[:2]], strict=True):
        assert oracle.same_values(x, y)
    assert same_bits(clipped[2], gc.clip_by_norms(t_list[2:], 1.0, ord=ord)[0][0])


@pytest.mark.parametrize("limits", [[0.5, 2.0], [np.float64(0.5), 2.0]])
def test_an_output_may_be_the_input_of_another_tensor(limits):
    t_list = [sample((30, 40)), sample((30, 40))]
    expected = [gc.clip_by_norm(t, float(x)) for t, x in zip(t_list, limits, strict=True)]
    clipped, _ = gc.clip_by_norms(t_list, limits, out=t_list[::-1])
    assert clipped[0] is t_list[1]
    for x, y in zip(clipped, expected, strict=True):
        assert same_bits(x, y)


def test_an_array_serves_as_limits():
    t_list = [sample(9), sample(8)]
    a, b = gc.clip_by_norms(t_list, np.array([0.5, 2.0])), gc.clip_by_norms(t_list, [0.5, 2.0])
    for x, y in zip(a[0], b[0], strict=True):
        assert same_bits(x, y)


@pytest.mark.parametrize(
    ("limits", "error", "text"),
    [
        ([1.0], ValueError, r"clip_norms: found length 1; allowed: length 2, that of t_list"),
        ([1.0, -1.0], ValueError, r"clip_norms\[1\]: found float -1.0; allowed: a real number >= 0"),
        ([1.0, "x"], TypeError, r"clip_norms\[1\]: found str 'x'"),
        (
            None,
            TypeError,
            r"clip_norms: found None; allowed: .* or a sequence of such numbers and None, one for each tensor",
        ),
        (np.nan, ValueError, r"clip_norms: found float nan"),
    ],
)
def test_wrong_limits_are_named_and_nothing_is_written(limits, error, text):
    t_list = [np.full(3, 7.0), np.full(4, 7.0)]
    with pytest.raises(error, match=r"^clip_by_norms 'step': " + text):
        gc.clip_by_norms(t_list, limits, "step", out=t_list)
    assert all((t == 7.0).all() for t in t_list)


# ---- root mean squares


@pytest.mark.parametrize("axes", [None, 0, 1, (0, 1), (), -1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_clip_by_rms_is_the_formula(dtype, axes):
    wide = "c16" if np.dtype(dtype).kind == "c" else "f8"
    for t in (sample((6, 50), dtype), sample((70, 300), dtype), sample((9, 8), dtype)[::2, ::-1]):
        x = t.astype(wide)
        square = np.abs(x) ** 2
        rms = np.sqrt(square) if axes == () else np.sqrt(np.mean(square, axis=axes, keepdims=True))
        expected = x * np.minimum(1.0, 0.6 / rms)
        found = gc.clip_by_rms(t, 0.6, axes)
        assert found.dtype == t.dtype
        unit = {"f2": 2.0**-10, "V2": 2.0**-7, "f4": 2e-7, "c8": 2e-7}.get(t.dtype.str[1:], 1e-14)
        np.testing.assert_allclose(found.astype(wide), expected, rtol=unit, atol=1e-7 if unit > 1e-4 else 0)
        own = t.copy("K")
        assert gc.clip_by_rms(own, 0.6, axes, out=own) is own
        assert same_bits(own, found)


def test_clip_by_rms_neither_overflows_nor_touches_what_is_within():
    big = np.full(5, 1.5e308)
    np.testing.assert_allclose(gc.clip_by_rms(big, 1.0), np.ones(5), rtol=1e-15)
    assert same_bits(gc.clip_by_rms(big, 1.5e308), big)
    assert same_bits(gc.clip_by_rms(np.zeros(0), 0.0), np.zeros(0))
    assert same_bits(gc.clip_by_rms(np.zeros((3, 0)), 0.0, 1), np.zeros((3, 0)))
    assert same_bits(gc.clip_by_rms(np.array([np.nan]), np.inf), np.array([np.nan]))


# ---- norms of weights


def by_weights(g, w, clipping, eps, unit_axis):
    """The formula of the paper, in extended precision."""
    wide = np.clongdouble if g.dtype.kind == "c" else np.longdouble
    g, w = g.astype(wide), w.astype(wide)
    axes = tuple(i for i in range(g.ndim) if i != unit_axis % g.ndim) if g.ndim > 1 else None
    norm = lambda x: np.sqrt(np.sum(np.abs(x) ** 2, axis=axes, keepdims=True))  # noqa: E731
    limit = clipping * np.maximum(norm(w), eps)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(norm(g) > limit, g * (limit / norm(g)), g)


@pytest.mark.parametrize("unit_axis", [-1, 0])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
def test_clip_by_weight_norm_is_the_formula(dtype, unit_axis):
    shapes = [(4, 5), (7,), (3, 2, 6), (), (300, 40), (1, 9), (0, 3)]
    gradients, weights = [sample(s, dtype) * 3 for s in shapes], [sample(s, dtype) for s in shapes]
    gradients = [np.asarray(g).astype(dtype) for g in gradients]
    weights[1] *= 0  # eps counts
    results = gc.clip_by_weight_norm([*gradients, None], [*weights, "not read"], 0.1, unit_axis=unit_axis)
    assert results.pop() is None
    bound = {"f2": 2e-3, "f4": 2e-7, "c8": 2e-7}.get(dtype, 1e-14)
    for g, w, found in zip(gradients, weights, results, strict=True):
        expected = by_weights(g, w, 0.1, 1e-3, unit_axis)
        assert (found.dtype, found.shape) == (g.dtype, g.shape)
        np.testing.assert_allclose(
            found.astype(expected.dtype), expected, rtol=bound, atol=1e-7 if dtype == "f2" else 0
        )
        for layout in (g.copy("F"), g.copy()):
            own = layout.copy("K")
            assert gc.clip_by_weight_norm([own], [w], 0.1, unit_axis=unit_axis, out=[own])[0] is own
            np.testing.assert_allclose(
                own.astype(expected.dtype), expected, rtol=bound, atol=1e-7 if dtype == "f2" else 0
            )


@pytest.mark.parametrize("weight_dtype", ["f2", "f4", ">f8", bfloat16])
@pytest.mark.parametrize("dtype", ["f2", ">f4", "f8", bfloat16])
def test_weights_of_another_dtype_count_as_they_are(dtype, weight_dtype):
    g, w = sample((5, 7), dtype) * np.asarray(3, dtype), sample((5, 7), "f8") / 1000
    w, beyond = w.astype(weight_dtype), np.full((5, 7), 1e5)  # more than a float16
    for unit_axis in (-1, 0):
        (expected,) = gc.clip_by_weight_norm([g], [w.astype("f8")], 0.5, unit_axis=unit_axis)
        assert same_bits(gc.clip_by_weight_norm([g], [w], 0.5, unit_axis=unit_axis)[0], expected)
        exact = by_weights(g.astype("f8"), w.astype("f8"), 0.5, 1e-3, unit_axis)
        np.testing.assert_allclose(expected.astype("f8"), exact.astype("f8"), rtol=2 * oracle.eps(dtype), atol=1e-7)
        for large in (beyond, beyond.astype("f4")):
            assert same_bits(gc.clip_by_weight_norm([g], [large], 1.0, unit_axis=unit_axis)[0], g)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_unit_whose_gradient_is_not_finite(dtype):
    rows = [oracle.numbers(row, dtype) for row in ([1.0, np.nan], [np.inf, -2.0], [3.0, 4.0])]
    g, w = np.stack(rows), np.ones((3, 2), dtype)
    for own, weights, unit_axis in ((g, w, 0), (g.T, w.T, -1)):
        (found,) = gc.clip_by_weight_norm([own], [weights], unit_axis=unit_axis)
        found = found if unit_axis == 0 else found.T
        for row, result in zip(rows, found, strict=True):
            assert oracle.same_values(result, gc.clip_by_norm(row, 0.01 * gc.norm(w[0])))


def test_weights_that_are_the_output_are_read_first():
    g, w = sample((4, 3)), sample((4, 3))
    expected = gc.clip_by_weight_norm([g], [w.copy()], 0.1)[0]
    gc.clip_by_weight_norm([g], [w], 0.1, out=[w])
    assert same_bits(w, expected)
    # A copy of weights that are walked backwards would be summed in another order.
    memory, g = sample(1000), sample((2, 500))
    w = memory.reshape(2, 500)[:, ::-1]
    expected = gc.clip_by_weight_norm([g], [w], 0.1, unit_axis=0)[0]
    (found,) = gc.clip_by_weight_norm([g], [w], 0.1, unit_axis=0, out=[memory.reshape(2, 500)])
    assert same_bits(found, expected)


@pytest.mark.parametrize("unit_axis", [-1, 0])
def test_limits_of_weights_beyond_float64(unit_axis):
    def clip(g, w, clipping, eps=1e-3):
        return gc.clip_by_weight_norm([np.asarray(g)], [np.asarray(w)], clipping, eps=eps, unit_axis=unit_axis)[0]

    np.testing.assert_allclose(clip(np.full(2, 1e307), np.full(2, 1.5e308), 0.01), np.full(2, 1.5e306), rtol=1e-14)
    np.testing.assert_allclose(clip(np.ones(2), np.full(2, 5e-324), 2.0**1000, 0), np.full(2, 2.0**-74), rtol=1e-14)
    np.testing.assert_allclose(clip(np.full(2, 1e-300), np.full(2, 5e-324), 0.5, 0), np.zeros(2), atol=5e-324)
    rows = np.array([[1e308, 1e308], [5e-324, 0.0], [3.0, 4.0]])
    for g in (rows, np.flip(rows)):
        found = clip(g, rows, 0.25, 0)
        for at, w in (((slice(None), i), rows[:, i]) for i in range(2)) if unit_axis else enumerate(rows):
            goal = Fraction(0.25) ** 2 * sum(Fraction(x) ** 2 for x in w.tolist())
            own = sum(Fraction(x) ** 2 for x in g[at].tolist())
            exact = [
                float(x) if own <= goal else math.copysign(root(Fraction(x) ** 2 * goal / own), x)
                for x in g[at].tolist()
            ]
            np.testing.assert_allclose(found[at], exact, rtol=1e-14, atol=5e-324)
    # An infinite limit changes nothing, and a limit of 0 makes zeros.
    nan = [3.0, np.nan]
    assert same_bits(clip(nan, [0.0, 0.0], np.inf, 0), np.array(nan))
    assert same_bits(clip([3.0, 4.0], [np.nan, 0.0], np.inf), np.array([3.0, 4.0]))
    for w, eps in (([1.5e308, 1.5e308], 1e-3), ([1.0, 1.0], np.inf), ([np.inf, 1.0], 0)):
        assert same_bits(clip([3.0, 4.0], w, 0.0, eps), np.zeros(2))
    assert np.isnan(clip([3.0, 4.0], [np.nan, 1.0], 0.0)).all()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_large_tensors_have_the_same_bits_everywhere(dtype, everywhere):
    """More than 6 MiB, which threads share."""
    shape = (7_200_000 // np.dtype(dtype).itemsize // 900, 900)
    t, w = np.resize(sample(20_011, dtype), shape), np.resize(sample(20_021, "f8"), shape)
    results = everywhere(
        lambda: [
            *(gc.clip_by_rms(t, 0.9, axes) for axes in (None, 0, 1)),
            *(gc.clip_by_weight_norm([t, t[:5]], [w, w[:5]], 0.5, unit_axis=unit_axis)[0] for unit_axis in (-1, 0)),
            *gc.clip_by_norms([t, t[:9]], 1.0)[0],
            gc.norms([t, t[::2]]),
        ],
        (1, 2, 3),
    )
    rtol = 2 * oracle.eps(dtype) if dtype == "f4" else 1e-14
    for found, axes, count in zip(results, (None, 0, 1), (t.size, *shape), strict=False):
        np.testing.assert_allclose(found, gc.clip_by_norm(t, 0.9 * math.sqrt(count), axes), rtol=rtol)
    for found, axis in zip(results[3:], (0, 1), strict=False):
        norms, limits = (gc.norm(x.astype("f8"), axis=axis, keepdims=True) for x in (t, w))
        np.testing.assert_allclose(found, t * np.minimum(1, 0.5 * limits / norms), rtol=rtol)


def root(square):
    """The square root of a fraction as float64, by integers."""
    digits = math.isqrt((square.numerator << 4400) // square.denominator)
    return float(Fraction(digits, 1 << 2200))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            ([np.ones((2, 3))], [np.ones((3, 2))]),
            ValueError,
            r"weights\[0\]: found shape \(3, 2\); allowed: shape \(2, 3\)",
        ),
        (([np.ones(2)], [np.ones(2), np.ones(2)]), ValueError, "weights: found length 2; allowed: length 1"),
        (([np.ones(2)], [None]), TypeError, r"weights\[0\]: found None"),
        (([np.ones(2)], 3.0), TypeError, "weights: found float 3.0; allowed: a sequence of arrays"),
        (([np.ones(2)], [np.ones(2)], -1.0), ValueError, "clipping: found float -1.0"),
        (([gc.IndexedSlices(np.ones((1, 2)), [0])], [np.ones((1, 2))]), TypeError, r"t_list\[0\]: found IndexedSlices"),
    ],
)
def test_wrong_weights_are_named(arguments, error, text):
    with pytest.raises(error, match="^clip_by_weight_norm: " + text):
        gc.clip_by_weight_norm(*arguments)


def test_unit_axis_is_an_axis():
    with pytest.raises(np.exceptions.AxisError, match="unit_axis"):
        gc.clip_by_weight_norm([np.ones((2, 3))], [np.ones((2, 3))], unit_axis=2)
    for t_list in ([], [None]):
        with pytest.raises(TypeError, match="unit_axis: found str 'x'; allowed: an int"):
            gc.clip_by_weight_norm(t_list, t_list, unit_axis="x")
    with pytest.raises(TypeError, match="unit_axis: found tuple"):
        gc.clip_by_weight_norm([np.ones((2, 3))], [np.ones((2, 3))], unit_axis=(0,))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.floats(0, 100), st.integers(0, 2**32 - 1))
def test_no_tensor_of_a_list_changes_another(lengths, limit, seed):
    rng = np.random.default_rng(seed)
    t_list = [rng.standard_normal(n).astype("f4") for n in lengths]
    clipped, norms = gc.clip_by_norms(t_list, limit)
    for t, x, norm in zip(t_list, clipped, norms, strict=True):
        (alone,), (own,) = gc.clip_by_norms([t], limit)
        assert own == norm
        assert same_bits(x, alone)
        assert oracle.squared_norms([x])[0] <= (limit * (1 + 1e-6)) ** 2
