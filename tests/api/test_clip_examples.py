"""clip_examples_by_global_norm: each example by its own norm, and their sum in a fixed order."""

import math
from fractions import Fraction

import gradclip as gc
import layouts
import numpy as np
import oracle
import pytest
from calls import cast, looped
from draws import limits, number, tensors
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from oracle import BF16, SCALED, bits, from_parts, mp, same_bits, same_values, squared_norms

dtypes = pytest.mark.parametrize("dtype", SCALED)
REDUCE = ["sum", "mean", None]


def batch(dtype, count, *shapes):
    """Tensors of the same number of examples, with None first."""
    rng = np.random.default_rng(count)
    return [None, *(cast(np.asarray(rng.standard_normal((count, *shape))), dtype) for shape in shapes)]


def expected(t, factors, reduce):
    """The result for a tensor in the documented order: in float64, example by example, rounded once."""
    t = oracle.native(t)
    parts = oracle.exact_parts(t)
    shares = parts * np.reshape(factors, (-1, *[1] * (parts.ndim - 1)))
    if reduce is None:
        kept = np.reshape(factors, (-1, *[1] * (t.ndim - 1))) == 1
        return np.where(kept, t, from_parts(shares, t.dtype))
    total = np.zeros(parts.shape[1:])
    for share in shares:
        total += share
    return from_parts(total / len(t) if reduce == "mean" else total, t.dtype)


def check(t_list, clip_norm, results, norms, reduce):
    """The bits of the results, for the norms that were returned."""
    per_tensor = not isinstance(clip_norm, float)
    for i, (t, result) in enumerate(zip(t_list, results, strict=True)):
        if t is None:
            assert result is None
            continue
        assert type(result) is np.ndarray
        assert result.dtype == oracle.native(t).dtype
        limit, own = (clip_norm[i], norms[i]) if per_tensor else (clip_norm, norms)
        limit = math.inf if limit is None else limit
        factors = [1.0 if norm <= limit else limit / norm for norm in own.tolist()]
        assert same_bits(result, expected(t, factors, reduce)), (i, reduce)


def check_norms(t_list, norms):
    """One norm for each example over all tensors; or for each tensor, one norm for each of its examples."""
    count = next((len(t) for t in t_list if t is not None), 0)
    assert type(norms) is np.ndarray
    assert norms.dtype == np.float64
    assert norms.shape == ((count,) if norms.ndim == 1 else (len(t_list), count))
    for example in range(count):
        own = [None if t is None else oracle.native(t)[example] for t in t_list]
        if norms.ndim == 1:
            oracle.assert_norm(norms[example], oracle.exact_global_norm(own))
        else:
            for norm, t in zip(norms[:, example], own, strict=True):
                oracle.assert_norm(norm, oracle.exact_global_norm([t]))


# ---- results


@pytest.mark.sampled
@dtypes
@looped("count", [1, 2, 3, 4, 5, 7, 8, 9, 33])
def test_sums_means_and_examples_have_the_promised_bits(dtype, count):
    t_list = batch(dtype, count, (3, 4), (), (70,), (0,), (2, 1, 3))
    norms = gc.clip_examples_by_global_norm(t_list, math.inf)[1]
    check_norms(t_list, norms)
    of_each = [2.0, None, 0.5, 1.0, math.inf, 0.0]
    each_norm = gc.clip_examples_by_global_norm(t_list, of_each)[1]
    check_norms(t_list, each_norm)
    for reduce in REDUCE:
        for clip_norm in (float(np.median(norms)), float(norms.min()) / 3, math.inf, 0.0, 1e-300):
            results, again = gc.clip_examples_by_global_norm(t_list, clip_norm, reduce=reduce)
            check(t_list, clip_norm, results, again, reduce)
            assert same_bits(again, norms)
        for clip_norm in (of_each, tuple(of_each)):
            results, again = gc.clip_examples_by_global_norm(t_list, clip_norm, reduce=reduce)
            check(t_list, of_each, results, again, reduce)
            assert same_bits(again, each_norm)
        check(t_list, [0.5] * 6, *gc.clip_examples_by_global_norm(t_list, np.full(6, 0.5), reduce=reduce), reduce)


@dtypes
def test_long_tensors_and_many_examples(dtype):
    for count, shape in ((3, (5000,)), (300, (7,)), (1000, ())):
        x = batch(dtype, count, shape)[1]
        for t in (x, layouts.fortran(x), layouts.every_second(x), layouts.backwards(x)):
            for reduce in REDUCE:
                results, norms = gc.clip_examples_by_global_norm([t], 1.0, reduce=reduce)
                assert (norms > 1).any()
                check([t], 1.0, results, norms, reduce)
        check_norms([x[:20]], gc.clip_examples_by_global_norm([x], 1.0)[1][:20])


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.complex64])
def test_long_tensors_in_every_memory_order(dtype):
    """Several tiles of accumulators in each job, whole groups of examples and a rest."""
    x = np.resize(cast(np.random.default_rng(3).standard_normal(20_011), dtype), (11, 600, 500))
    examples_in_fortran_order = np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    for t in (x, examples_in_fortran_order, layouts.fortran(x), layouts.transposed(x), layouts.every_second_column(x)):
        results, norms = gc.clip_examples_by_global_norm([t], 500.0)
        assert (norms > 500).any()
        check([t], 500.0, results, norms, "sum")


@dtypes
def test_any_layout(dtype):
    x, y = batch(dtype, 6, (5, 3), (40,))[1:]
    plain = {reduce: gc.clip_examples_by_global_norm([x, y], 2.0, reduce=reduce) for reduce in REDUCE}
    for (name, t), (_, other) in zip(layouts.layouts(x), layouts.layouts(y), strict=True):
        for reduce in REDUCE:
            results, norms = gc.clip_examples_by_global_norm([t, other], 2.0, reduce=reduce)
            check([t, other], 2.0, results, norms, reduce)
            np.testing.assert_allclose(norms, plain[reduce][1], rtol=2e-14)
            if name in layouts.SAME_BITS:
                assert same_bits(norms, plain[reduce][1])
                assert all(same_bits(a, b) for a, b in zip(results, plain[reduce][0], strict=True))
    rows = np.broadcast_to(x[:1], x.shape)
    results, norms = gc.clip_examples_by_global_norm([rows], 2.0)
    check([rows], 2.0, results, norms, "sum")


@pytest.mark.sampled
@dtypes
@given(data=st.data())
def test_any_tensor_and_any_limit(dtype, data):
    """Against exact sums, also at the ends of float64, within the error that rounding may cause."""
    t = data.draw(tensors(dtype, finite=True).filter(lambda t: t.ndim > 0 and t.size < 200), label="t")
    beside = data.draw(st.sampled_from([None, np.float32, dtype]), label="beside")
    t_list = [beside and cast(np.ones((len(t), 2)), beside), t]
    exact = [oracle.exact_global_norm([None if x is None else x[i] for x in t_list]) for i in range(len(t))]
    limit = number(data.draw(limits(exact[0] if exact else mp.mpf(1)), label="limit"))
    (_, total), norms = gc.clip_examples_by_global_norm(t_list, limit)
    (_, clipped), again = gc.clip_examples_by_global_norm(t_list, limit, reduce=None)
    assert same_bits(norms, again)
    shares = []
    for own, norm, result, x in zip(exact, norms, clipped, oracle.native(t), strict=True):
        oracle.assert_norm(norm, own)
        factor = mp.mpf(1) if own <= limit else limit / own
        if limit == math.inf or own < limit * (1 - 3 * mp.mpf(oracle.NORM_ERROR)):
            assert same_bits(result, x)
        shares.append(oracle.each(lambda part, factor=factor: part * factor, oracle.as_exact(oracle.exact_parts(x))))
        ulps = oracle.allowed_ulps(dtype) + 4 * oracle.NORM_ERROR / oracle.eps(dtype)
        oracle.assert_within_ulp(result, shares[-1], ulps)
    check_sum(total, shares)


def check_sum(result, shares):
    """A sum of exact shares, up to the rounding of each and of each sum in float64, and then of the dtype."""
    parts, count = oracle.parts(result), len(shares)
    for where in np.ndindex(parts.shape):
        own, exact = float(parts[where]), sum((share[where] for share in shares), mp.mpf(0))
        size = sum((abs(share[where]) for share in shares), mp.mpf(0))
        slack = (count + 100) * mp.ldexp(size, -53) + (count + 1) * mp.ldexp(1, -1074)
        slack += oracle.ulp(abs(exact) + slack, result.dtype) / 2
        if math.isinf(own):
            assert abs(exact) + slack > oracle.largest(result.dtype)
        else:
            assert abs(own - exact) <= slack


@dtypes
@looped("reduce", REDUCE)
def test_no_examples_and_no_tensors(dtype, reduce):
    t_list = [np.empty((0, 3), dtype), None, np.empty(0, dtype)]
    for clip_norm, shape in ((1.0, (0,)), ([1.0, None, 2.0], (3, 0))):
        if reduce == "mean":
            with pytest.raises(ValueError, match=r"t_list: found no examples; allowed: at least one for their mean$"):
                gc.clip_examples_by_global_norm(t_list, clip_norm, reduce=reduce)
            continue
        (a, none, b), norms = gc.clip_examples_by_global_norm(t_list, clip_norm, reduce=reduce)
        assert norms.shape == shape
        assert none is None
        assert same_bits(a, np.zeros((3,) if reduce else (0, 3), dtype))
        assert same_bits(b, np.zeros(() if reduce else (0,), dtype))
    for t_list in ([], [None], [None, None]):
        results, norms = gc.clip_examples_by_global_norm(t_list, 1.0, reduce=reduce)
        assert results == t_list
        assert norms.shape == (0,)
        assert gc.clip_examples_by_global_norm(t_list, [1.0] * len(t_list))[1].shape == (len(t_list), 0)
    (empty,), norms = gc.clip_examples_by_global_norm([np.empty((4, 0), dtype)], 1.0, reduce=reduce)
    assert empty.shape == ((0,) if reduce else (4, 0))
    assert norms.tolist() == [0.0] * 4


def test_a_sum_starts_with_zero():
    (total,), _ = gc.clip_examples_by_global_norm([np.array([[-0.0, 1.0], [-0.0, -1.0]])], 1.0)
    assert same_bits(total, np.array([0.0, 0.0]))
    (kept,), _ = gc.clip_examples_by_global_norm([np.array([[-0.0, 1.0]])], 1.0, reduce=None)
    assert same_bits(kept, np.array([[-0.0, 1.0]]))


def test_what_sums_to_infinity_is_infinite():
    for dtype in SCALED:
        largest = oracle.largest(dtype)
        t = np.full((3, 2), largest).astype(dtype)
        (total,), norms = gc.clip_examples_by_global_norm([t], math.inf)
        assert np.isinf(total.real.astype(np.float64)).all()
        assert np.isfinite(norms).all() == (largest < 1e308)
        (mean,), _ = gc.clip_examples_by_global_norm([t], math.inf, reduce="mean")
        if largest < 1e308:  # the sum is float64
            assert same_bits(mean, t[0])


def test_nested_lists_and_the_names_of_arguments():
    (total,), norms = gc.clip_examples_by_global_norm([[[3.0, 4.0], [0.3, 0.4]]], 1)
    assert same_bits(total, np.array([3 * 0.2 + 0.3, 4 * 0.2 + 0.4]))
    assert norms.tolist() == [5.0, 0.5]
    named = gc.clip_examples_by_global_norm(
        t_list=([[3.0, 4.0], [0.3, 0.4]],),
        clip_norm=1,
        name="x",
        reduce="sum",
        nonfinite="propagate",
        strict=False,
        out=None,
    )
    assert same_bits(named[0][0], total)


# ---- strict, and the guarantees that private learning needs


def shares_of(t_list, limit, **more):
    """Each example's share of a sum in float64: the sum of a batch of that example."""
    for i in range(len(t_list[0])):
        yield gc.clip_examples_by_global_norm([t[i : i + 1] for t in t_list], limit, **more)[0]


@dtypes
@looped("kind", ["sum", "examples", "examples in place"])
def test_no_strict_share_is_above_the_limit(dtype, kind):
    rng = np.random.default_rng(3)
    t_list = [cast(rng.standard_normal((150, *shape)), dtype) for shape in ((3,), (), (2, 2))]
    norms = gc.clip_examples_by_global_norm(t_list, math.inf)[1]
    for limit in (float(np.median(norms)), float(norms.min()) * 0.7, *norms[:3].tolist()):
        if kind == "sum":
            # The sum of one example is its share; it is float64 for wide dtypes.
            wide = [t.astype(np.complex128 if t.dtype.kind == "c" else np.float64) for t in t_list]
            shares = shares_of(wide, limit, strict=True)
            results = [np.stack(parts) for parts in zip(*shares, strict=True)]
        else:
            out = [t.copy() for t in t_list] if kind.endswith("place") else None
            results, again = gc.clip_examples_by_global_norm(
                t_list if out is None else out, limit, reduce=None, strict=True, out=out
            )
            assert same_bits(norms, again)
        squares = sum(squared_norms(t.reshape(150, -1), 1) for t in results)
        assert (squares <= Fraction(limit) ** 2).all()
        assert (squares >= Fraction(min(limit, norms.min())) ** 2 * Fraction(97, 100)).all()
        for t, result in zip(t_list, results, strict=True):
            if kind != "sum":
                kept = norms <= limit * (1 - 1.2e-13)
                assert same_bits(result[kept], t[kept])
    if not oracle.is_wide(dtype):
        loose, _ = gc.clip_examples_by_global_norm(t_list, limit, reduce=None)
        above = sum(squared_norms(t.reshape(150, -1), 1) for t in loose) > Fraction(limit) ** 2
        assert above.mean() > 0.1  # so that the bound is not that of any clip


@dtypes
def test_no_strict_share_of_a_tensor_is_above_the_limit_of_the_tensor(dtype):
    t_list, of_each = batch(dtype, 150, (3,), (), (2, 2))[1:], [0.7, None, 1 / 3]
    wide = [t.astype(np.complex128 if t.dtype.kind == "c" else np.float64) for t in t_list]
    shares = [np.stack(parts) for parts in zip(*shares_of(wide, of_each, strict=True), strict=True)]
    clipped, _ = gc.clip_examples_by_global_norm(t_list, of_each, reduce=None, strict=True)
    for given_list, results in ((wide, shares), (t_list, clipped)):
        for t, limit, result in zip(given_list, of_each, results, strict=True):
            if limit is None:
                assert same_bits(result, t)
            else:
                assert (squared_norms(result.reshape(150, -1), 1) <= Fraction(limit) ** 2).all()


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("reduce", REDUCE)
def test_no_strict_share_is_above_a_subnormal_limit(dtype, reduce):
    tiny = 5e-324
    for k, limit in ((3, 4), (1, 1), (5, 7), (1000, 1401), (2**40 + 1, 2**40)):
        t = cast(np.array([[k * tiny, k * tiny]]), dtype)
        (share,), _ = gc.clip_examples_by_global_norm([t], limit * tiny, reduce=reduce, strict=True)
        assert squared_norms(share).item() <= Fraction(limit * tiny) ** 2, (k, limit)


@dtypes
def test_every_share_is_within_the_limit_up_to_rounding(dtype):
    """Without strict=True, a share exceeds the limit by no more than 2e-14 of it, before the sum."""
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    t_list = [t.astype(wide) for t in batch(dtype, 200, (3,), ())[1:]]
    limit = 1 / 3
    for share in shares_of(t_list, limit):
        assert sum(squared_norms(t).sum() for t in share) <= (Fraction(limit) * (1 + Fraction(2e-14))) ** 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_example_moves_the_sum_by_no_more_than_the_limit(dtype):
    """Plus the rounding of the sum, which is bounded for each element."""
    rng = np.random.default_rng(8)
    t = cast(rng.standard_normal((40, 6)) * 10.0 ** rng.uniform(-1, 1, (40, 1)), dtype)
    limit = 0.7
    (total,), _ = gc.clip_examples_by_global_norm([t], limit, strict=True)
    (shares,), _ = gc.clip_examples_by_global_norm([t.astype(np.float64)], limit, strict=True, reduce=None)
    for i in range(40):
        (others,), _ = gc.clip_examples_by_global_norm([np.delete(t, i, 0)], limit, strict=True)
        moved = oracle.as_exact(oracle.exact_parts(total)) - oracle.as_exact(oracle.exact_parts(others))
        rounding = 2 * 40 * 2.0**-53 * np.abs(shares).sum(0)
        if dtype is np.float32:
            rounding += (np.spacing(np.abs(total)) + np.spacing(np.abs(others))) / 2
        assert mp.sqrt(sum(x * x for x in moved)) <= limit + gc.norm(rounding)


# ---- NaN and infinity


def bad_batch(dtype):
    """Two tensors of four examples: the second has an infinity, the last one in the other tensor a NaN."""
    x, y = batch(dtype, 4, (3,), (2, 2))[1:]
    x[1, 2], y[3, 1, 0] = np.inf, np.nan
    return [x, None, y]


@dtypes
def test_nan_shows_where_nothing_else_is_asked_for(dtype):
    t_list = bad_batch(dtype)
    for reduce in ("sum", "mean"):
        results, norms = gc.clip_examples_by_global_norm(t_list, 1.0, reduce=reduce)
        assert all(oracle.is_nan(result).all() for result in results if result is not None)
    assert norms[1] == np.inf
    assert np.isnan(norms[3])
    (x, _, y), _ = gc.clip_examples_by_global_norm(t_list, 1.0, reduce=None)
    for result in (x, y):
        assert oracle.is_nan(result[[1, 3]]).all()
        assert not oracle.is_nan(result[[0, 2]]).any()
    results, norms = gc.clip_examples_by_global_norm(t_list, [1.0, None, 1.0], reduce=None)
    for t, result, own in zip(t_list, results, norms, strict=True):
        assert own.tolist() == [0.0] * 4 or same_values(result, gc.clip_by_norm(t, 1.0, tuple(range(1, t.ndim))))
    (total, _, last), _ = gc.clip_examples_by_global_norm(t_list, [1.0, None, 1.0])
    assert np.isnan(total[2])
    assert not oracle.is_nan(total[:2]).any()
    assert oracle.is_nan(last).all()


@dtypes
@looped("strict", [False, True])
def test_an_example_that_is_not_finite_can_count_nothing(dtype, strict):
    t_list = bad_batch(dtype)
    good = [None if t is None else t[[0, 2]] for t in t_list]
    for clip_norm in (1.0, [1.0, None, 1.0]):
        if clip_norm != 1.0:
            good = [np.delete(t_list[0], 1, 0), None, np.delete(t_list[2], 3, 0)]
        for i in (0, 2):
            of_good = [t if j == i else None for j, t in enumerate(good)] if clip_norm != 1.0 else good
            results, norms = gc.clip_examples_by_global_norm(t_list, clip_norm, nonfinite="zero", strict=strict)
            expected_sums, _ = gc.clip_examples_by_global_norm(of_good, clip_norm, strict=strict)
            assert same_bits(results[i], expected_sums[i])
            assert not np.isfinite(norms).all()  # the true norms
            means, _ = gc.clip_examples_by_global_norm(
                t_list, clip_norm, reduce="mean", nonfinite="zero", strict=strict
            )
            wide = oracle.exact_parts(expected_sums[i])
            assert np.allclose(oracle.exact_parts(means[i]), wide / 4, rtol=2 * oracle.eps(dtype))
        kept, _ = gc.clip_examples_by_global_norm(t_list, clip_norm, reduce=None, nonfinite="zero", strict=strict)
        assert same_bits(kept[0][1], np.zeros(3, dtype))
        assert same_bits(kept[2][3], np.zeros((2, 2), dtype))
        assert kept[0][0].any()


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@looped("strict", [False, True])
@looped("limit", [1e-310, 3e-308, 1e-300, 1.0, 1e300])
def test_sums_add_the_clipped_examples_in_order(dtype, strict, limit):
    """Factors of one step and of two, products below the normal numbers, and examples that count nothing."""
    rng = np.random.default_rng(11)
    x = cast(rng.standard_normal((100, 5)), dtype)
    for row, by in ((0, 2.0**1000), (33, 2.0**-1000), (50, np.nan), (64, 2.0**-1060), (99, 2.0**1000)):
        x[row] *= by
    arguments = {"nonfinite": "zero", "strict": strict}
    for t in (x, layouts.every_second(x), layouts.fortran(x)):
        (clipped,), norms = gc.clip_examples_by_global_norm([t], limit, reduce=None, **arguments)
        total = np.zeros(5, dtype)
        for example in clipped:
            total += example
        (found,), again = gc.clip_examples_by_global_norm([t], limit, **arguments)
        assert same_bits(found, total)
        assert same_bits(again, norms)


@dtypes
@looped("strict", [False, True])
def test_short_examples_have_the_sums_of_examples_apart(dtype, strict):
    """Examples that follow each other in memory are added together, unless some need a treatment of their own."""
    largest, smallest = (1e300, 1e-300) if np.dtype(dtype) in (np.float64, np.complex128) else (1e4, 1e-4)
    rng = np.random.default_rng(7)
    for count, width, special in ((31, 1, []), (64, 3, [40]), (100, 9, [0, 33]), (97, 17, [96]), (70, 100, [5, 6])):
        apart = rng.standard_normal((count, width + 3))
        for i, row in enumerate(special):
            apart[row] *= [largest, smallest][i]
        apart[count // 2] = np.nan
        apart = cast(apart, dtype)
        for limit in (1.0, smallest):
            for reduce in ("sum", "mean"):
                arguments = {"reduce": reduce, "nonfinite": "zero", "strict": strict}
                results, norms = gc.clip_examples_by_global_norm([apart[:, :width]], limit, **arguments)
                packed = np.ascontiguousarray(apart[:, :width])
                packed_results, packed_norms = gc.clip_examples_by_global_norm([packed], limit, **arguments)
                assert same_bits(packed_norms, norms)
                assert same_bits(packed_results[0], results[0])
                assert not oracle.is_nan(results[0]).any()


@dtypes
def test_examples_that_overlap(dtype):
    """Windows whose step is the length of the last tile of their sum."""
    signal = cast(np.random.default_rng(2).standard_normal(4000), dtype)
    for width, step in ((2098, 50), (30, 10), (2048 + 64, 64)):
        windows = np.lib.stride_tricks.sliding_window_view(signal, width)[::step]
        results, norms = gc.clip_examples_by_global_norm([windows], 1.0)
        check([windows], 1.0, results, norms, "sum")


@dtypes
def test_an_example_that_is_not_finite_can_keep_its_bits(dtype):
    t_list = bad_batch(dtype)
    results, norms = gc.clip_examples_by_global_norm(t_list, 1.0, reduce=None, nonfinite="keep")
    good, _ = gc.clip_examples_by_global_norm([None if t is None else t[[0, 2]] for t in t_list], 1.0, reduce=None)
    for t, result, own in zip(t_list, results, good, strict=True):
        if t is not None:
            assert same_bits(result[[1, 3]], t[[1, 3]])
            assert same_bits(result[[0, 2]], own)
    assert not np.isfinite(norms[[1, 3]]).any()


@dtypes
def test_examples_that_are_not_finite_are_named(dtype):
    t_list = bad_batch(dtype)
    outs = [None if t is None else np.full(t.shape[1:], 7, dtype) for t in t_list]
    for strict, reduce in ((False, "sum"), (True, "sum"), (False, None)):
        out = outs if reduce else t_list
        before = [None if t is None else bits(t) for t in out]
        for limit in (1.0, math.inf):
            with pytest.raises(gc.NonFiniteError) as caught:
                gc.clip_examples_by_global_norm(
                    t_list, limit, "x", reduce=reduce, nonfinite="raise", strict=strict, out=out
                )
            assert str(caught.value) == (
                "clip_examples_by_global_norm 'x': t_list[0], example 1: 1 infinite of 3 elements, the first at (2,); "
                "t_list[2], example 3: 1 NaN of 4 elements, the first at (1, 0)"
            )
            assert caught.value.entries == (1, 3)
            assert caught.value.norm == math.inf
        with pytest.raises(gc.NonFiniteError) as caught:
            gc.clip_examples_by_global_norm(t_list, [1.0, 2.0, None], reduce=reduce, nonfinite="raise", out=out)
        assert caught.value.entries == ((0, 1), (2, 3))
        after = [None if t is None else bits(t) for t in out]
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True) if a is not None)
    many = np.full((6, 1), np.nan, dtype)
    with pytest.raises(gc.NonFiniteError, match=r"example 2: .*; and 3 more$"):
        gc.clip_examples_by_global_norm([many], 1.0, nonfinite="raise")


def test_an_infinite_limit_changes_nothing_whatever_the_norm():
    t_list = bad_batch(np.float64)
    for nonfinite in ("propagate", "zero", "keep"):
        results, _ = gc.clip_examples_by_global_norm(t_list, math.inf, reduce=None, nonfinite=nonfinite)
        assert all(same_bits(a, b) for a, b in zip(results, t_list, strict=True) if b is not None)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_a_norm_beyond_float64_is_finite(dtype):
    t = np.full((2, 3), 1.7e308, dtype)
    for nonfinite in ("propagate", "raise", "zero"):
        (total,), norms = gc.clip_examples_by_global_norm([t], 3.0, nonfinite=nonfinite)
        assert np.isinf(norms).all()
        np.testing.assert_allclose(total, np.full(3, 2 * math.sqrt(3)), rtol=1e-14)


# ---- out


@dtypes
def test_sums_are_written_to_out(dtype):
    t_list = batch(dtype, 5, (3, 4), (), (70,))
    for reduce in REDUCE:
        plain, norms = gc.clip_examples_by_global_norm(t_list, 0.7, reduce=reduce)
        for layout in layouts.WRITEABLE.values():
            out = [None if t is None else layout(np.full_like(t, 9)) for t in plain]
            out[2] = None  # a new array
            before = [None if t is None else bits(t) for t in t_list]
            results, again = gc.clip_examples_by_global_norm(t_list, 0.7, reduce=reduce, out=tuple(out))
            assert same_bits(norms, again)
            assert type(results) is list
            assert [a is b for a, b in zip(results, out, strict=True)] == [True, True, False, True]
            assert all(same_bits(np.asarray(a), b) for a, b in zip(results, plain, strict=True) if b is not None)
            assert all(np.array_equal(bits(t), b) for t, b in zip(t_list, before, strict=True) if b is not None)


@dtypes
def test_examples_in_place(dtype):
    t_list = batch(dtype, 5, (3, 4), (), (70,))
    norms = gc.clip_examples_by_global_norm(t_list, math.inf)[1]
    for limit in (float(np.median(norms)), 0.3, 100.0):
        plain, _ = gc.clip_examples_by_global_norm(t_list, limit, reduce=None)
        own = [None if t is None else t.copy() for t in t_list]
        results, _ = gc.clip_examples_by_global_norm(own, limit, reduce=None, out=own)
        assert results is not own
        assert all(a is b for a, b in zip(results, own, strict=True))
        assert all(same_bits(a, b) for a, b in zip(own, plain, strict=True) if b is not None)


@dtypes
@looped("reduce", REDUCE)
def test_outputs_that_share_memory_with_inputs(dtype, reduce):
    shape = (3, 4) if reduce is None else (4,)
    size = math.prod(shape)
    for begin in range(0, 16, 3):
        for other in range(0, 16, 4):
            room, second = batch(dtype, 30, (), ())[1:]
            t_list = [room[:12].reshape(3, 4), room[13:25].reshape(3, 4), second[:12].reshape(3, 4)]
            plain, _ = gc.clip_examples_by_global_norm([t.copy() for t in t_list], 1.0, reduce=reduce)
            out = [room[begin : begin + size].reshape(shape), None, second[other : other + size].reshape(shape)]
            results, _ = gc.clip_examples_by_global_norm(t_list, 1.0, reduce=reduce, out=out)
            assert all(same_bits(a, b) for a, b in zip(results, plain, strict=True)), (begin, other)


def test_the_tensors_decide_the_order_of_sums():
    memory = np.random.default_rng(0).standard_normal(3000)
    t = memory[:1000].reshape(2, 500)[:, ::-1]
    goal, norms = gc.clip_examples_by_global_norm([t], 0.5, out=[np.empty(500)])
    found, again = gc.clip_examples_by_global_norm([t], 0.5, out=[memory[:500]])
    assert same_bits(again, norms)
    assert same_bits(found[0], goal[0])


# ---- errors


X = np.full((3, 2), 9.0)
READ_ONLY = layouts.read_only(np.zeros(2))
NUMBER = r"a real number >= 0 \(a Python or NumPy int, float or 0-d array\)"
#: The tensors and the limit, what is wrong, and the message.
ERRORS = {
    "no axis": ([X, np.ones(())], 1.0, r"t_list\[1\]: found shape \(\); allowed: a first axis, that of the examples$"),
    "a number": ([X, 3.0], 1.0, r"t_list\[1\]: found shape \(\)"),
    "other examples": (
        [None, X, None, np.ones(4)],
        1.0,
        r"t_list\[3\]: found 4 examples \(shape \(4,\)\); allowed: 3, as t_list\[1\] has$",
    ),
    "no axis beside another error": ([np.float64(3)], "bad", r"t_list\[0\]: found shape \(\)"),
    "a limit": ([X], -1.0, rf"clip_norm: found float -1\.0; allowed: {NUMBER}$"),
    "a limit of NaN": ([X], np.nan, r"clip_norm: found float nan"),
    "a matrix of limits": ([X], np.ones((1, 1)), r"clip_norm: found shape \(1, 1\)"),
    "one of the limits": ([X, X], [1.0, -2.0], rf"clip_norm\[1\]: found float -2\.0; allowed: {NUMBER}$"),
    "too many limits": ([X], [1.0, 2.0], r"clip_norm: found length 2; allowed: length 1, that of t_list$"),
    "too few limits": ([X, None], [1.0], r"clip_norm: found length 1; allowed: length 2, that of t_list$"),
}
TYPE_ERRORS = {
    "integers": ([X, np.ones((3, 1), int)], 1.0, r"t_list\[1\]: found dtype int64; allowed: float16, bfloat16, "),
    "slices": ([gc.IndexedSlices(X, [0, 1, 2])], 1.0, r"t_list\[0\]: found IndexedSlices; .*\.to_dense\(\)"),
    "masked": ([np.ma.ones((3, 2))], 1.0, r"t_list\[0\]: found a masked array"),
    "a limit of no number": ([X], "1", r"clip_norm: found str '1'"),
    "a limit of None": ([X], None, r"clip_norm: found None"),
    "the type of a limit": ([X, X], [1.0, "2"], r"clip_norm\[1\]: found str '2'"),
}
#: Arguments behind them.
MORE_ERRORS = {
    "reduce": ({"reduce": "max"}, r"reduce: found str 'max'; allowed: 'sum', 'mean' or None$"),
    "nonfinite": ({"nonfinite": "drop"}, r"nonfinite: found str 'drop'; allowed: 'propagate', 'raise', 'zero', 'keep'"),
    "keep": ({"nonfinite": "keep"}, r"nonfinite: found 'keep' with a sum; allowed: 'keep' with reduce=None$"),
    "keep of a mean": ({"nonfinite": "keep", "reduce": "mean"}, r"nonfinite: found 'keep' with a sum"),
    "fewer outputs": ({"out": []}, r"out: found length 0; allowed: length 1, that of t_list$"),
    "shape": ({"out": [np.zeros((3, 2))]}, r"out\[0\]: found shape \(3, 2\); allowed: shape \(2,\)$"),
    "shape of examples": (
        {"out": [np.zeros(2)], "reduce": None},
        r"out\[0\]: found shape \(2,\); allowed: shape \(3, 2\)$",
    ),
    "read-only": ({"out": [READ_ONLY]}, r"out\[0\]: found a read-only array"),
    "overlap": ({"out": [as_strided(np.zeros(1), (2,), (0,))]}, r"out\[0\]: .* own elements overlap"),
}
MORE_TYPE_ERRORS = {
    "reduce": ({"reduce": 1}, r"reduce: found int 1; allowed: 'sum', 'mean'"),
    "one output": ({"out": np.zeros(2)}, r"out: found ndarray of .*; allowed: None or a sequence of arrays$"),
    "dtype": ({"out": [np.zeros(2, "f4")]}, r"out\[0\]: found dtype float32; allowed: dtype float64$"),
    "masked output": ({"out": [np.ma.zeros(2)]}, r"out\[0\]: found a masked array"),
    "no output": ({"out": [[0.0, 0.0]]}, r"out\[0\]: found list"),
}


@pytest.mark.parametrize("kind", [*ERRORS, *TYPE_ERRORS])
def test_errors_about_the_tensors_and_the_limit(kind):
    t_list, clip_norm, message = (ERRORS | TYPE_ERRORS)[kind]
    out = [None if t is None else np.full(2, 7.0) for t in t_list]
    with pytest.raises(
        ValueError if kind in ERRORS else TypeError, match=f"^clip_examples_by_global_norm 'x': {message}"
    ):
        gc.clip_examples_by_global_norm(t_list, clip_norm, "x", out=out)
    assert all((own == 7).all() for own in out if own is not None)


@pytest.mark.parametrize(("errors", "error"), [(MORE_ERRORS, ValueError), (MORE_TYPE_ERRORS, TypeError)])
def test_errors_about_the_other_arguments(errors, error):
    for more, message in errors.values():
        with pytest.raises(error, match=f"^clip_examples_by_global_norm 'x': {message}"):
            gc.clip_examples_by_global_norm([X], 1.0, "x", **more)
        assert (X == 9).all()
        assert all(not np.any(own) for own in more.get("out", ()))
    with pytest.raises(TypeError, match=r"out\[1\]: found ndarray .*; allowed: None, as t_list has there$"):
        gc.clip_examples_by_global_norm([X, None], 1.0, out=[None, np.zeros(2)])


def test_an_error_about_the_last_output_leaves_the_first_untouched():
    first = np.full(2, 7.0)
    for bad in (READ_ONLY, np.zeros(3), np.zeros(2, "f4"), first, first[::-1], 5):
        with pytest.raises((TypeError, ValueError), match=r"out\[1\]"):
            gc.clip_examples_by_global_norm([X, X], 1.0, out=[first, bad])
    assert (first == 7).all()
    gc.clip_examples_by_global_norm([X, X], 1.0, out=[first, np.zeros(2)])
    assert (first < 7).all()


def test_something_else_in_place_of_the_list_is_a_type_error():
    for wrong in (X, {0: X}, (t for t in [X]), "x", None, 3.0):
        with pytest.raises(TypeError, match=r"`t_list` should be a sequence of tensors\. Received <class '"):
            gc.clip_examples_by_global_norm(wrong, 1.0)
    with pytest.raises(TypeError, match=r"^clip_examples_by_global_norm: name: found int 3"):
        gc.clip_examples_by_global_norm([X], 1.0, 3)


# ---- threads and instruction sets


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float64, np.complex64])
@looped("shape", [(3, 700_000), (40, 50_000), (30_000, 60), (500, 40, 100)])
def test_the_same_bits_everywhere(dtype, shape, everywhere):
    """More than 6 MiB, which threads share."""
    t = np.resize(cast(np.random.default_rng(2).standard_normal(20_011), dtype), shape)
    t_list = [t, cast(np.ones((shape[0], 3)), np.float32)]
    limit = float(np.median(gc.clip_examples_by_global_norm(t_list, 1.0)[1])) * 0.9
    for reduce in ("sum", None):
        for strict in (False, True):
            more = {"reduce": reduce, "strict": strict}

            def call(more=more):
                results, norms = gc.clip_examples_by_global_norm(t_list, limit, **more)
                return [*results, norms]

            (result, _, norms) = everywhere(call, (1, 3))
            if not strict:
                check([t[:, :1]], limit, [result[:, :1] if reduce is None else result[:1]], norms, reduce)


def test_large_examples_are_streamed():
    """Outputs of more than 32 MiB: a sum, and examples."""
    pattern = np.random.default_rng(4).standard_normal(1009).astype(np.float32)
    t = np.resize(pattern, (2, 9_000_000))
    t[1] *= 3
    (total,), norms = gc.clip_examples_by_global_norm([t], 100.0)
    f, g = 100.0 / norms
    few = (t[0, :1009].astype(np.float64) * f + t[1, :1009].astype(np.float64) * g).astype(np.float32)
    assert same_bits(total, np.resize(few, t.shape[1]))
    many = t.reshape(-1, 40)
    (clipped,), norms = gc.clip_examples_by_global_norm([many], 6.0, reduce=None)
    assert same_bits(clipped, gc.clip_by_norm(many, 6.0, 1))
    assert (norms > 6).any()
    (own,), _ = gc.clip_examples_by_global_norm([many], 6.0, reduce=None, out=[many])
    assert own is many
    assert same_bits(own, clipped)
