"""clip_difference_by_global_norm: tensors moved a part of the way to others, by the norm of their differences."""

import math

import gradclip as gc
import layouts
import numpy as np
import oracle
import pytest
from calls import cast, looped
from draws import MAX, limits, number, tensors
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from oracle import BF16, INTEGERS, SCALED, bits, from_parts, mp, same_bits, same_values

dtypes = pytest.mark.parametrize("dtype", SCALED)
NAME = "clip_difference_by_global_norm"
SHAPES = [(3, 4), (5000,), (), (0,), (70, 90), (7,)]


def pairs(dtype, *shapes):
    """Tensors and their bases."""
    rng = np.random.default_rng(6)
    t_list, bases = (
        [np.asarray(cast(rng.standard_normal(shape), dtype)) for shape in shapes or SHAPES] for _ in range(2)
    )
    return t_list, bases


def wide(dtype):
    return np.complex128 if np.dtype(dtype).kind == "c" else np.float64


def differences(t_list, bases):
    return [t.astype(wide(t.dtype)) - base.astype(wide(t.dtype)) for t, base in zip(t_list, bases, strict=True)]


def check(t_list, bases, limit, results, norm):
    """The bits of the results, for the norm that was returned."""
    for t, base, result in zip(t_list, bases, results, strict=True):
        if t is None:
            assert result is None
            continue
        assert type(result) is np.ndarray
        if norm <= limit:
            assert same_bits(result, t)
            continue
        near = oracle.exact_parts(base) + (oracle.exact_parts(t) - oracle.exact_parts(base)) * (limit / norm)
        assert same_bits(result, from_parts(near, t.dtype))


def copies(tensors):
    return [None if t is None else t.copy() for t in tensors]


# ---- results


@dtypes
@looped("order", [2, 1, math.inf, 3, 0.5, "euclidean"])
def test_the_norm_and_the_results_have_the_bits_of_float64(dtype, order):
    t_list, bases = pairs(dtype)
    total = gc.global_norm(differences(t_list, bases), ord=order)
    for limit in (1.5, total, math.nextafter(total, 0), 2 * total, total / 7, 0.0, math.inf, 1e-300):
        results, norm = gc.clip_difference_by_global_norm(t_list, bases, limit, ord=order)
        assert type(norm) is float
        assert norm == total
        check(t_list, bases, limit, results, norm)
        trusted, same = gc.clip_difference_by_global_norm(t_list, bases, limit, total, ord=order)
        assert same == total
        assert all(same_bits(a, b) for a, b in zip(trusted, results, strict=True))
    for used in (0.5, 1e3, 7):
        results, norm = gc.clip_difference_by_global_norm(t_list, bases, 1.0, used)
        assert norm == used
        check(t_list, bases, 1.0, results, norm)


@dtypes
def test_lists_of_all_kinds(dtype):
    (a, b), (c, d) = pairs(dtype, (4, 3), (40,))
    other = np.ones((2, 2), np.float32)
    t_list, bases = [None, a, None, b, other], [None, c, None, d, other * 3]
    for kind in (list, tuple):
        results, norm = gc.clip_difference_by_global_norm(kind(t_list), kind(bases), 1.0)
        assert type(results) is list
        present = [t for t in t_list if t is not None], [t for t in bases if t is not None]
        assert norm == gc.global_norm(differences(*present))
        check(t_list, bases, 1.0, results, norm)
    for empty in ([], [None], [None, None]):
        assert gc.clip_difference_by_global_norm(empty, empty, 1.0) == (empty, 0.0)
    results, norm = gc.clip_difference_by_global_norm([a], [a], 0.0)  # no difference: the tensor
    assert norm == 0.0
    assert same_bits(results[0], a)
    assert results[0] is not a


def test_numbers_and_nested_lists_are_tensors():
    (a, b), norm = gc.clip_difference_by_global_norm([4.0, [[5.0]]], [1.0, [[1.0]]], 2.5)
    assert norm == 5.0
    assert same_bits(a, np.array(2.5))
    assert same_bits(b, np.array([[3.0]]))
    scalars, _ = gc.clip_difference_by_global_norm([np.float32(4)], [np.float32(1)], 1.5)
    assert same_bits(scalars[0], np.array(2.5, np.float32))
    named = gc.clip_difference_by_global_norm(
        t_list=[4.0],
        base_list=[1.0],
        clip_norm=1.5,
        use_norm=None,
        name="x",
        ord=2,
        nonfinite="propagate",
        integers="raise",
        out=None,
    )
    assert same_bits(named[0][0], np.array(2.5))


@dtypes
def test_any_layout_of_both(dtype):
    """The norm sums in the order of the tensor, so that its layout may change the last bit."""
    (t,), (base,) = pairs(dtype, (6, 5))
    plain, total = gc.clip_difference_by_global_norm([t], [base], 0.5)
    chosen = [(name, layout) for name, layout in layouts.ALL.items() if name != "stride_0"]
    for name, layout in chosen:
        for other_name, other in chosen:
            own, own_base = layout(t), other(base)
            results, norm = gc.clip_difference_by_global_norm([own], [own_base], 0.5)
            assert math.isclose(norm, total, rel_tol=2e-14)
            check([own], [own_base], 0.5, results, norm)
            if {name, other_name} <= {"contiguous", *layouts.SAME_BITS, *layouts.SAME_ORDER}:
                assert norm == total
                assert same_bits(results[0], plain[0])
            whole, _ = gc.clip_difference_by_global_norm([own], [own_base], 1e9)
            assert same_bits(whole[0], t)
            assert layouts.steps(whole[0]) == layouts.steps(gc.clip_by_norm(own, 1.0))
    rows = np.broadcast_to(base[:1], t.shape)
    results, norm = gc.clip_difference_by_global_norm([t], [rows], 0.5)
    check([t], [rows], 0.5, results, norm)
    columns = np.broadcast_to(t[:, :1], t.shape)
    results, norm = gc.clip_difference_by_global_norm([columns], [base], 0.5)
    check([columns], [base], 0.5, results, norm)


@pytest.mark.sampled
@dtypes
@given(data=st.data())
def test_any_pair_and_any_limit(dtype, data):
    """Against exact differences, also at the ends of float64: `base + (t - base) * factor`, each step in float64."""
    t = data.draw(tensors(dtype, finite=True).filter(lambda t: t.size < 200), label="t")
    pool = oracle.native(data.draw(tensors(dtype, finite=True).filter(lambda t: t.size > 0), label="base"))
    base = np.resize(pool, t.shape)
    exact = oracle.each(mp.mpf, exact_difference(t, base))
    norm = oracle.norm_of_magnitudes([(size, 1) for size in moduli(exact, t.dtype)], 2)
    limit = number(data.draw(limits(norm), label="limit"))
    (result,), found = gc.clip_difference_by_global_norm([t], [base], limit)
    oracle.assert_norm(found, norm)
    if limit == math.inf or norm < limit * (1 - 3 * mp.mpf(oracle.NORM_ERROR)):
        assert same_bits(result, t)
    elif norm > limit * (1 + 3 * mp.mpf(oracle.NORM_ERROR)) + mp.ldexp(1, -1074):
        parts, base_parts = oracle.parts(result), oracle.as_exact(oracle.exact_parts(base))
        for where in np.ndindex(parts.shape):
            step = exact[where] * limit / norm
            near = base_parts[where] + step
            # The steps are rounded to float64, and the norm has an error.
            slack = 4 * oracle.ulp(step, np.float64) + 3 * oracle.NORM_ERROR * abs(step) + oracle.ulp(near, np.float64)
            slack += oracle.ulp(abs(near) + slack, t.dtype) / 2
            if math.isinf(parts[where]):
                assert abs(near) + slack > oracle.largest(dtype)
            else:
                assert abs(float(parts[where]) - near) <= slack, (where, near)


def exact_difference(t, base):
    return oracle.as_exact(oracle.exact_parts(t)) - oracle.as_exact(oracle.exact_parts(base))


def moduli(exact, dtype):
    if np.dtype(dtype).kind == "c":
        return [mp.hypot(*pair) for pair in exact.reshape(-1, 2)]
    return [abs(x) for x in exact.ravel()]


# ---- the ends of float64's range


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@looped("sign", [1, -1])
def test_a_difference_beyond_float64_is_taken_at_half_scale(dtype, sign):
    t, base = np.array([1.7e308, 1.0, MAX]), np.array([-1.7e308, 2.0, -MAX])
    t, base = (sign * t).astype(dtype), (sign * base).astype(dtype)
    exact = exact_difference(t, base)
    norm = oracle.norm_of_magnitudes([(size, 1) for size in moduli(exact, dtype)], 2)
    for order in (2, math.inf, 1, 3):
        for nonfinite in ("propagate", "raise", "zero"):
            for limit in (1e308, MAX, 1.0, 1e-300, 0.0):
                (result,), found = gc.clip_difference_by_global_norm([t], [base], limit, nonfinite=nonfinite, ord=order)
                assert found == math.inf  # as float64
                if order == 2:
                    near = oracle.as_exact(oracle.exact_parts(base)) + exact * (limit / norm)
                    for own, goal, step in zip(oracle.parts(result).ravel(), near.ravel(), exact.ravel(), strict=True):
                        slack = 2 * oracle.ulp(goal, np.float64) + 4 * oracle.NORM_ERROR * abs(step) * limit / norm
                        assert abs(own - goal) <= slack, (own, goal)
                assert np.isfinite(result).all()
    (result,), _ = gc.clip_difference_by_global_norm([t], [base], math.inf)
    assert same_bits(result, t)
    (half,), _ = gc.clip_difference_by_global_norm([t[:1]], [base[:1]], 1.0, 2.0)  # the norm is trusted
    assert abs(oracle.parts(half)[0]) <= 1e290 if np.dtype(dtype).kind != "c" else half.real[0] == 0


def test_the_norm_of_differences_that_overflow_is_right():
    t, base = [np.array([MAX, 0.0])], [np.array([-MAX / 2, 0.0])]
    results, norm = gc.clip_difference_by_global_norm(t, base, MAX)
    assert norm == math.inf
    np.testing.assert_allclose(results[0], [MAX / 2, 0.0], rtol=4e-16)
    results, norm = gc.clip_difference_by_global_norm([t[0] / 2], base, MAX)
    assert norm == MAX
    assert same_bits(results[0], t[0] / 2)


@dtypes
def test_the_smallest_differences(dtype):
    tiny = oracle.tiny(dtype)
    t, base = np.array([3, 5, 0, 4]) * tiny, np.array([0, 1, 0, 4]) * tiny
    t, base = t.astype(dtype), base.astype(dtype)
    (result,), norm = gc.clip_difference_by_global_norm([t], [base], 5 * tiny)
    assert norm == 5 * tiny
    assert same_bits(result, t)
    (result,), _ = gc.clip_difference_by_global_norm([t], [base], 2.5 * tiny if tiny > 5e-324 else 2 * tiny)
    assert (result.real.astype(np.float64) / tiny).tolist() in ([2, 3, 0, 4], [1, 3, 0, 4])


# ---- NaN and infinity


@dtypes
def test_what_is_not_finite(dtype):
    for numbers, others, norm in (
        ((np.inf, 1), (np.inf, 0), math.nan),
        ((-np.inf, 1), (np.inf, 0), math.inf),
        ((np.nan, 2), (0, 2), math.nan),
        ((1, 2), (0, np.nan), math.nan),
    ):
        t, base = oracle.numbers(numbers, dtype), oracle.numbers(others, dtype)
        for nonfinite, goal in (("propagate", None), ("zero", base), ("keep", t)):
            for out in ("new", "t", "base"):
                for limit in (1.0, math.inf):
                    tensors, bases = [t.copy(), t[::-1].copy()], [base.copy(), base[::-1].copy()]
                    outs = {"new": None, "t": tensors, "base": bases}[out]
                    results, found = gc.clip_difference_by_global_norm(
                        tensors, bases, limit, nonfinite=nonfinite, out=outs
                    )
                    assert repr(found) == repr(norm)
                    if limit == math.inf:
                        assert same_bits(results[0], t)
                        assert same_bits(results[1], t[::-1])
                    elif goal is None:
                        assert all(oracle.is_nan(result).all() for result in results)
                    else:
                        assert same_bits(results[0], goal)
                        assert same_bits(results[1], goal[::-1])


@dtypes
def test_a_norm_that_is_trusted(dtype):
    """Each element by itself, as in NumPy, unless the norm is not finite."""
    t = np.array([np.inf, 1.0, -np.inf, np.nan, 2.0, np.inf, 3.0]).astype(dtype)
    base = np.array([np.inf, 0.5, np.inf, 0.0, np.nan, 1.0, -np.inf]).astype(dtype)
    (result,), _ = gc.clip_difference_by_global_norm([t], [base], 1.0, 2.0)
    with np.errstate(invalid="ignore"):
        goal = oracle.exact_parts(base) + (oracle.exact_parts(t) - oracle.exact_parts(base)) * 0.5
    assert same_values(result, from_parts(goal, dtype))
    for used in (math.inf, math.nan):
        for nonfinite, kept in (("propagate", None), ("zero", base), ("keep", t)):
            (result,), norm = gc.clip_difference_by_global_norm([t], [base], 1.0, used, nonfinite=nonfinite)
            assert repr(norm) == repr(used)
            assert oracle.is_nan(result).all() if kept is None else same_bits(result, kept)


@dtypes
def test_what_is_not_finite_is_named_and_nothing_is_written(dtype):
    good, bad = np.ones((2, 3), dtype), np.ones((2, 3), dtype)
    bad[1, 2], bad[0, 1] = np.nan, np.inf
    cases = [
        ([good, bad], [good, good], r"t_list\[1\]: 1 NaN and 1 infinite of 6 elements, the first at \(0, 1\)", (1,)),
        ([good, good], [bad, good], r"base_list\[0\]: 1 NaN and 1 infinite of 6 elements, the first at \(0, 1\)", (0,)),
        ([bad, good], [good, bad], r"t_list\[0\]: 1 NaN and .*; base_list\[1\]: 1 NaN and .*", (0, 1)),
        ([good, bad], [good, bad], r"t_list\[1\]: 1 NaN and .*; base_list\[1\]: 1 NaN and .*", (1,)),
    ]
    for t_list, bases, message, entries in cases:
        for out in ("new", "t", "base"):
            tensors, own_bases = copies(t_list), copies(bases)
            outs = {"new": [np.full_like(good, 7), np.full_like(good, 7)], "t": tensors, "base": own_bases}[out]
            before = copies([*tensors, *own_bases, *outs])
            for limit in (1.0, math.inf):
                with pytest.raises(
                    gc.NonFiniteError, match=f"^clip_difference_by_global_norm 'x': {message}$"
                ) as caught:
                    gc.clip_difference_by_global_norm(tensors, own_bases, limit, name="x", nonfinite="raise", out=outs)
                assert caught.value.entries == entries
                assert math.isnan(caught.value.norm)
            assert all(same_bits(a, b) for a, b in zip([*tensors, *own_bases, *outs], before, strict=True))
    for used in (math.inf, math.nan):
        with pytest.raises(gc.NonFiniteError, match=rf"use_norm: found {used}; allowed: a finite norm$") as caught:
            gc.clip_difference_by_global_norm([good], [good], 1.0, used, nonfinite="raise")
        assert caught.value.entries == ()


# ---- integers


@looped("dtype", [*INTEGERS, np.bool_])
def test_integers_are_kept(dtype):
    x, base = np.array([3.0, 4.0], np.float32), np.zeros(2, np.float32)
    counter, before = np.array([1, 0, 1]).astype(dtype), np.array([0, 1, 1]).astype(dtype)
    for out in ("new", "t", "base"):
        for limit, goal in ((2.5, x / 2), (5.0, x), (0.0, base)):
            t_list, bases = [x.copy(), counter.copy(), None], [base.copy(), before.copy(), None]
            outs = {"new": [np.zeros(2, np.float32), np.zeros(3, dtype), None], "t": t_list, "base": bases}[out]
            results, norm = gc.clip_difference_by_global_norm(t_list, bases, limit, integers="keep", out=outs)
            assert norm == 5.0
            assert all(a is b for a, b in zip(results, outs, strict=True))
            assert same_bits(results[0], goal)
            assert same_bits(results[1], counter)
    (kept,), norm = gc.clip_difference_by_global_norm([counter], [before], 1.0, integers="keep")
    assert norm == 0.0
    assert same_bits(kept, counter)
    assert not np.shares_memory(kept, counter)
    with pytest.raises(TypeError, match=r"t_list\[1\]: found dtype"):
        gc.clip_difference_by_global_norm([x, counter], [base, before], 1.0)


# ---- out


@dtypes
def test_every_output(dtype):
    t_list, bases = pairs(dtype)
    for limit in (1.5, math.inf, 0.0):
        plain, norm = gc.clip_difference_by_global_norm(t_list, bases, limit)
        for kind in (list, tuple):
            for form in ("t", "base", "swapped", "partly new", "mixed"):
                own, own_bases = copies(t_list), copies(bases)
                outs = {
                    "t": own,
                    "base": own_bases,
                    "swapped": [layouts.swapped_bytes(np.zeros_like(t)) for t in t_list],
                    "partly new": [None, *(np.zeros_like(t) for t in t_list[1:])],
                    "mixed": [own[0], own_bases[1], None, own[3], own_bases[4], np.zeros_like(t_list[5])],
                }[form]
                results, again = gc.clip_difference_by_global_norm(own, own_bases, limit, out=kind(outs))
                assert again == norm
                assert type(results) is list
                assert all(a is b for a, b in zip(results, outs, strict=True) if b is not None)
                assert all(same_bits(np.asarray(a), b) for a, b in zip(results, plain, strict=True))
                written = {id(out) for out in outs}
                for t, first in zip([*own, *own_bases], [*t_list, *bases], strict=True):
                    assert id(t) in written or same_bits(t, first)


@dtypes
def test_outputs_of_any_layout(dtype):
    t_list, bases = pairs(dtype, (4, 6), (5,))
    plain, _ = gc.clip_difference_by_global_norm(t_list, bases, 0.5)
    for layout in layouts.WRITEABLE.values():
        out = [layout(np.zeros_like(t)) for t in t_list]
        gc.clip_difference_by_global_norm(t_list, bases, 0.5, out=out)
        assert all(same_bits(np.asarray(a), b) for a, b in zip(out, plain, strict=True))
        for own in ("t", "base"):
            tensors, own_bases = [layout(t) for t in t_list], [layout(base) for base in bases]
            expected_here, _ = gc.clip_difference_by_global_norm(tensors, own_bases, 0.5)
            out = tensors if own == "t" else own_bases
            gc.clip_difference_by_global_norm(tensors, own_bases, 0.5, out=out)
            assert all(same_bits(np.asarray(a), b) for a, b in zip(out, expected_here, strict=True))


@dtypes
@looped("at", [(0, 3, 7), (0, 0, 1), (4, 0, 2), (0, 5, 0), (5, 0, 0), (1, 1, 1), (20, 3, 0), (0, 20, 4), (3, 24, 20)])
def test_memory_that_overlaps(dtype, at):
    """An output over parts of its tensor, of its base, or of those of another."""
    memory = cast(np.random.default_rng(1).standard_normal(70), dtype)
    for view in (lambda room, i: room[i : i + 12].reshape(3, 4), lambda room, i: room[i:][:24:2]):
        for beside in ([], [(50, 54, 60)], [(at[2], at[0], 60)], [(60, at[2], 62)]):
            room = memory.copy()
            t_list, bases, outs = (
                [view(room, i), *(room[begin:][:8] for begin in more)]
                for i, more in zip(at, zip(*beside, strict=True) if beside else [()] * 3, strict=True)
            )
            goal, norm = gc.clip_difference_by_global_norm(copies(t_list), copies(bases), 1.0)
            results, again = gc.clip_difference_by_global_norm(t_list, bases, 1.0, out=outs)
            assert again == norm
            assert all(a is b for a, b in zip(results, outs, strict=True))
            assert all(same_bits(a, b) for a, b in zip(results, goal, strict=True)), beside


def test_the_tensors_decide_the_order_of_sums():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        t, base = rng.standard_normal((50, 50)), np.asfortranarray(rng.standard_normal((50, 50)))
        memory = rng.standard_normal(3000)
        back = memory[:2500].reshape(50, 50)[:, ::-1]
        for own, other, out in ((t, base, base), (back, base, memory[:2500].reshape(50, 50)), (base, back, base)):
            own_before, other_before = own.copy("K"), other.copy("K")
            (goal,), norm = gc.clip_difference_by_global_norm([own], [other], 50.0)
            (found,), again = gc.clip_difference_by_global_norm([own], [other], 50.0, out=[out])
            assert again == norm
            assert same_bits(found, goal)
            own[...], other[...] = own_before, other_before


def test_bases_that_are_parts_of_their_tensors():
    memory = np.random.default_rng(1).standard_normal(30)
    for out in ("t", "base"):
        room = memory.copy()
        t_list, bases = [room[:10], room[20:]], [room[5:15], room[10:20]]
        goal, norm = gc.clip_difference_by_global_norm(copies(t_list), copies(bases), 1.0)
        if out == "base":
            with pytest.raises(ValueError, match="shares memory"):
                gc.clip_difference_by_global_norm(t_list, bases, 1.0, out=bases)
            bases = [room[5:15], room[15:25]]
            goal, norm = gc.clip_difference_by_global_norm(copies(t_list), copies(bases), 1.0)
        outs = t_list if out == "t" else bases
        results, again = gc.clip_difference_by_global_norm(t_list, bases, 1.0, out=outs)
        assert again == norm
        assert all(same_bits(a, b) for a, b in zip(results, goal, strict=True))


# ---- errors


X, BASE, BASES = np.array([3.0, 4.0]), np.zeros(2), "those"
READ_ONLY = layouts.read_only(BASE)
VALUE_ERRORS = {
    "too few bases": (([X, X], [BASE], 1.0), {}, r"base_list: found length 1; allowed: length 2, that of t_list$"),
    "too many bases": (([X], [BASE, None], 1.0), {}, r"base_list: found length 2; allowed: length 1, that of t_list$"),
    "shape": (
        ([X, X], [BASE, np.zeros(3)], 1.0),
        {},
        r"base_list\[1\]: found shape \(3,\); allowed: shape \(2,\), that of t_list\[1\]$",
    ),
    "axes": (([X], [np.zeros((1, 2))], 1.0), {}, r"base_list\[0\]: found shape \(1, 2\); allowed: shape \(2,\)"),
    "limit": (([X], [BASE], -1.0), {}, r"clip_norm: found float -1\.0; allowed: a real number >= 0"),
    "limit of NaN": (([X], [BASE], math.nan), {}, r"clip_norm: found float nan"),
    "limits": (([X], [BASE], [1.0]), {}, r"clip_norm: found shape \(1,\)"),
    "use_norm": (([X], [BASE], 1.0, -1.0), {}, r"use_norm: found float -1\.0"),
    "ord": (
        ([X], [BASE], 1.0),
        {"ord": 0},
        r"ord: found int 0; allowed: 'euclidean' or a real number > 0, numpy.inf included$",
    ),
    "nonfinite": (
        ([X], [BASE], 1.0),
        {"nonfinite": "no"},
        r"nonfinite: found str 'no'; allowed: 'propagate', 'raise', ",
    ),
    "integers": (([X], [BASE], 1.0), {"integers": "count"}, r"integers: found str 'count'; allowed: 'raise', 'keep'$"),
    "outputs": (([X], [BASE], 1.0), {"out": []}, r"out: found length 0; allowed: length 1, that of t_list$"),
    "shape of out": (
        ([X], [BASE], 1.0),
        {"out": [np.zeros(3)]},
        r"out\[0\]: found shape \(3,\); allowed: shape \(2,\)$",
    ),
    "read-only": (([X], [BASE], 1.0), {"out": [READ_ONLY]}, r"out\[0\]: found a read-only array"),
    "read-only base": (([X], [READ_ONLY], 1.0), {"out": BASES}, r"out\[0\]: found a read-only array"),
    "overlap": (
        ([X], [BASE], 1.0),
        {"out": [as_strided(np.zeros(1), (2,), (0,))]},
        r"out\[0\]: found an array whose own elements overlap",
    ),
    "a base twice": (
        ([X, X], [BASE, BASE], 1.0),
        {"out": BASES},
        r"out\[1\]: found an array that shares memory with out\[0\]; allowed: arrays that share no byte$",
    ),
}
TYPE_ERRORS = {
    "dtype": (
        ([X, X], [BASE, np.zeros(2, "f4")], 1.0),
        {},
        r"base_list\[1\]: found dtype float32; allowed: dtype float64, that of t_list\[1\]$",
    ),
    "integers": (
        ([np.arange(2)], [np.arange(2)], 1.0),
        {},
        r"t_list\[0\]: found dtype int64; allowed: float16, .*; integers='keep' copies tensors of integers$",
    ),
    "booleans": (
        ([np.ones(2, bool)], [np.ones(2, bool)], 1.0),
        {},
        r"t_list\[0\]: found dtype bool; .*integers='keep'",
    ),
    "integer base": (([X], [np.arange(2)], 1.0), {}, r"base_list\[0\]: found dtype int64; .* complex64, complex128$"),
    "integers beside floats": (
        ([X], [np.arange(2)], 1.0),
        {"integers": "keep"},
        r"base_list\[0\]: found dtype int64; allowed: dtype float64, that of t_list\[0\]$",
    ),
    "None for a base": (([X], [None], 1.0), {}, r"base_list\[0\]: found None"),
    "a base for None": (
        ([None], [BASE], 1.0),
        {},
        r"base_list\[0\]: found ndarray .*; allowed: None, as t_list has there$",
    ),
    "no bases": (([X], {0: BASE}, 1.0), {}, r"base_list: found dict"),
    "a number for bases": (([X], 3.0, 1.0), {}, r"base_list: found float 3\.0; allowed: a sequence of arrays$"),
    "slices": (([gc.IndexedSlices(X, [0, 1])], [BASE], 1.0), {}, r"t_list\[0\]: found IndexedSlices; .*\.to_dense\(\)"),
    "base of slices": (([X], [gc.IndexedSlices(X, [0, 1])], 1.0), {}, r"base_list\[0\]: found IndexedSlices"),
    "masked": (([X], [np.ma.zeros(2)], 1.0), {}, r"base_list\[0\]: found a masked array"),
    "limit": (([X], [BASE], "1"), {}, r"clip_norm: found str '1'"),
    "use_norm": (([X], [BASE], 1.0, "1"), {}, r"use_norm: found str '1'"),
    "ord": (([X], [BASE], 1.0), {"ord": None}, r"ord: found None"),
    "type of integers": (
        ([X], [BASE], 1.0),
        {"integers": True},
        r"integers: found bool True; allowed: 'raise', 'keep'$",
    ),
    "one output": (
        ([X], [BASE], 1.0),
        {"out": np.zeros(2)},
        r"out: found ndarray .*; allowed: None or a sequence of arrays$",
    ),
    "dtype of out": (
        ([X], [BASE], 1.0),
        {"out": [np.zeros(2, "f4")]},
        r"out\[0\]: found dtype float32; allowed: dtype float64$",
    ),
    "an output for None": (
        ([None], [None], 1.0),
        {"out": [np.zeros(2)]},
        r"out\[0\]: found ndarray .*; allowed: None, as t_list has there$",
    ),
}


@pytest.mark.parametrize(("errors", "error"), [(VALUE_ERRORS, ValueError), (TYPE_ERRORS, TypeError)])
def test_errors_say_what_was_found_and_write_nothing(errors, error):
    for arguments, more, message in errors.values():
        own = {"out": arguments[1]} if more.get("out") is BASES else {}
        with pytest.raises(error, match=f"^{NAME} 'x': {message}"):
            gc.clip_difference_by_global_norm(*arguments, **{"name": "x", **more, **own})
        assert X.tolist() == [3.0, 4.0]
        assert BASE.tolist() == [0.0, 0.0]
    for wrong in (X, {0: X}, (t for t in [X]), "x", None, 3.0):
        with pytest.raises(TypeError, match=r"`t_list` should be a sequence of tensors\. Received <class '"):
            gc.clip_difference_by_global_norm(wrong, [BASE], 1.0)
    with pytest.raises(TypeError, match=f"^{NAME}: name: found int 3"):
        gc.clip_difference_by_global_norm([X], [BASE], 1.0, None, 3)


def test_an_error_about_the_last_pair_leaves_the_first_untouched():
    first = np.full(2, 7.0)
    for bad in (READ_ONLY, np.zeros(3), np.zeros(2, "f4"), first, 5):
        with pytest.raises((TypeError, ValueError), match=r"out\[1\]"):
            gc.clip_difference_by_global_norm([X, X], [BASE, BASE], 1.0, out=[first, bad])
    for wrong in (np.zeros(3), np.zeros(2, "f4"), None, "x"):
        with pytest.raises((TypeError, ValueError), match=r"base_list\[1\]"):
            gc.clip_difference_by_global_norm([X, X], [BASE, wrong], 1.0, out=[first, np.zeros(2)])
    assert (first == 7).all()
    gc.clip_difference_by_global_norm([X, X], [BASE, BASE], 1.0, out=[first, np.zeros(2)])
    assert (first < 7).all()


# ---- threads and instruction sets


@dtypes
def test_the_same_bits_everywhere(dtype, everywhere):
    """Long pairs and many short ones, more than 6 MiB together."""
    rng = np.random.default_rng(2)
    pattern = cast(rng.standard_normal(20_011), dtype)
    long = 4 * 2**20 // pattern.itemsize
    t_list = [np.resize(pattern, long), *(np.resize(pattern[i:], 1000) for i in range(40)), pattern[::2], pattern[:1]]
    bases = [(t * 0.75).astype(dtype) for t in t_list]
    for order, limit in ((2, 3.0), (1, 3.0), (2, 1e9)):

        def call(order=order, limit=limit):
            results, norm = gc.clip_difference_by_global_norm(t_list, bases, limit, ord=order)
            return [*results, norm]

        *results, norm = everywhere(call, (1, 2, 5))
        check(t_list[1:], bases[1:], limit, results[1:], norm)
        few = slice(0, len(pattern))
        check([t_list[0][few]], [bases[0][few]], limit, [results[0][few]], norm)
        assert np.array_equal(bits(results[0]), np.resize(bits(results[0][few]), bits(results[0]).shape))


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_large_outputs_are_streamed(dtype, threads):
    """Outputs of more than 32 MiB."""
    pattern = cast(np.random.default_rng(3).standard_normal(1009), dtype)
    t = np.resize(pattern, 34 * 2**20 // pattern.itemsize)
    base = np.resize((pattern * 0.5).astype(dtype), t.shape)
    for own, own_base in ((t, base), (t[::-1], base), (t, base[::-1])):
        with threads(2):
            (result,), norm = gc.clip_difference_by_global_norm([own], [own_base], 7.0)
        assert norm > 7
        few = slice(0, 3000)
        check([own[few]], [own_base[few]], 7.0, [result[few]], norm)
        assert np.array_equal(bits(result), np.resize(bits(result[few][:1009]), t.shape))
    for outs in (None, "t", "base"):
        tensors, bases = [t.copy()], [base.copy()]
        out = {None: None, "t": tensors, "base": bases}[outs]
        (again,), same = gc.clip_difference_by_global_norm(tensors, bases, 7.0, out=out)
        if outs is None:
            (first,), norm = [again], same
        assert same == norm
        assert np.array_equal(bits(again), bits(first))
    (whole,), _ = gc.clip_difference_by_global_norm([t], [base], 1e9)
    assert np.array_equal(bits(whole), bits(t))


def test_the_dtype_of_a_base_is_checked_before_its_shape():
    with pytest.raises(TypeError, match=r"base_list\[0\]: found dtype float32; allowed: dtype float64"):
        gc.clip_difference_by_global_norm([np.ones(2)], [np.ones(3, "f4")], 1.0)
