"""The section "Numbers": untouched values, the whole range, the one rule for scaling, NaN and inf, accuracy."""

import math
import sys

import gradclip as gc
import numpy as np
import oracle
import pytest
from oracle import FLOATS, assert_within_ulp, exact_norm, relative_error, same_bits

F32, F64 = np.float32, np.float64
TINY = {F32: 1.401298464324817e-45, F64: 5e-324}

dtypes = pytest.mark.parametrize("dtype", FLOATS)


def odd_values(dtype):
    """-0.0, subnormals, the extremes of the normal range and ordinary numbers: all finite."""
    info = np.finfo(dtype)
    tiny = float(info.smallest_subnormal)
    values = [-0.0, 0.0, tiny, -tiny, 3 * tiny, float(info.tiny), 0.1, -1.0, 1 / 3, float(info.eps), -2.5]
    return np.array(values * 5, dtype=dtype)


def nans(dtype):
    """Quiet and signalling NaNs of both signs with payloads."""
    if dtype is F32:
        return np.array([0x7FC12345, 0xFFC54321, 0x7F800001, 0xFFABCDEF], dtype=np.uint32).view(F32)
    words = [0x7FF8000012345678, 0xFFF8ABCDEF000001, 0x7FF0000000000001, 0xFFF7FFFFFFFFFFFF]
    return np.array(words, dtype=np.uint64).view(F64)


# ---- untouched means untouched


LIMITS = [3.9, 41.0, 49.0, 55.0, 100.0, 333.33, 1e38, 1e39, 1e300, math.inf]


@dtypes
@pytest.mark.parametrize("limit", LIMITS)
def test_what_is_at_or_below_the_limit_comes_back_bit_for_bit(dtype, limit):
    x = odd_values(dtype) / dtype(2)
    assert exact_norm(x) < 3.9
    assert same_bits(gc.clip_by_norm(x, limit), x)
    assert same_bits(gc.clip_by_norm(x.reshape(5, -1), limit, axes=1), x.reshape(5, -1))
    assert same_bits(gc.clip_by_norm(x.reshape(5, -1), limit, axes=0), x.reshape(5, -1))
    assert same_bits(gc.clip_by_average_norm(x, limit), x)
    clipped, _ = gc.clip_by_global_norm([x, x[:3]], 2 * limit)
    assert same_bits(clipped[0], x)
    assert same_bits(clipped[1], x[:3])
    assert same_bits(gc.clip_by_value(x, -limit, limit), x)


@dtypes
def test_slices_below_the_limit_are_untouched_beside_slices_above_it(dtype):
    x = np.stack([odd_values(dtype), odd_values(dtype) * dtype(10)])
    limit = 10.0
    assert exact_norm(x[0]) < limit < exact_norm(x[1])
    for result in (gc.clip_by_norm(x, limit, axes=1), gc.clip_by_norm(x.T, limit, axes=0).T):
        assert same_bits(result[0], x[0])
        assert not same_bits(result[1], x[1])


@dtypes
def test_nan_payloads_are_untouched_by_clip_by_value(dtype):
    for reps in (1, 9):  # past one vector register, and in the middle of others
        x = np.tile(np.concatenate([nans(dtype), np.array([0.5, -9.0, 9.0], dtype=dtype)]), reps)
        result = gc.clip_by_value(x, -1.0, 1.0)
        assert same_bits(result, oracle.expected_clip_by_value(x, -1.0, 1.0))
        assert same_bits(result[:4], nans(dtype))


@dtypes
def test_nan_payloads_are_untouched_under_a_trusted_norm(dtype):
    x = np.concatenate([nans(dtype), odd_values(dtype), np.array([np.inf, -np.inf], dtype=dtype)])
    (result,), norm = gc.clip_by_global_norm([x], 2.0, use_norm=2.0)
    assert norm == 2.0
    assert same_bits(result, x)


@dtypes
@pytest.mark.parametrize("seed", range(5))
def test_clipping_to_the_norm_itself_changes_nothing(dtype, seed):
    rng = np.random.default_rng(seed)
    grads = [rng.standard_normal(n).astype(dtype) for n in (1, 17, 1000, 4099)]
    norm = gc.global_norm(grads)
    clipped, reported = gc.clip_by_global_norm(grads, norm)
    assert reported == norm
    assert all(same_bits(c, g) for c, g in zip(clipped, grads, strict=True))
    below, _ = gc.clip_by_global_norm(grads, math.nextafter(norm, 0) * 0.999)
    assert not same_bits(below[3], grads[3])
    for g in grads:
        assert same_bits(gc.clip_by_norm(g, gc.norm(g)), g)


@dtypes
def test_a_zero_tensor_stays_as_it_is_even_for_a_limit_of_zero(dtype):
    x = np.array([0.0, -0.0, -0.0, 0.0], dtype=dtype)
    for limit in (0, 0.0, -0.0, 1.0):
        assert same_bits(gc.clip_by_norm(x, limit), x)
        assert same_bits(gc.clip_by_average_norm(x, limit), x)
        assert same_bits(gc.clip_by_global_norm([x], limit)[0][0], x)
    assert same_bits(gc.normalize(x)[0], x)


@dtypes
@pytest.mark.parametrize("limit", [0, 0.0, -0.0])
def test_a_limit_of_zero_makes_every_finite_value_a_zero_of_its_sign(dtype, limit):
    x = np.array([-3.0, 4.0, -0.0, 0.0, -TINY[dtype]], dtype=dtype)
    zeros = np.copysign(np.zeros(5, dtype=dtype), x)
    assert same_bits(gc.clip_by_norm(x, limit), zeros)
    assert same_bits(gc.clip_by_average_norm(x, limit), zeros)
    assert same_bits(gc.clip_by_global_norm([x], limit)[0][0], zeros)


# ---- the whole range


RANGE = [
    (F32, [1e30, 1e30]),
    (F32, [3e38, -3e38, 1.0]),
    (F32, [1e-30, -1e-30]),
    (F32, [1e-20, 1e-38, 1e-45]),
    (F32, [1e-45] * 9),
    (F32, [3e-45, 4e-45]),
    (F32, [3e38] + [1e-45] * 20),
    (F64, [1e200, 1e-200]),
    (F64, [1e200] * 20),
    (F64, [1e-200] * 20),
    (F64, [1e-160, 2e-162, 3e-165]),
    (F64, [1.7e308, -1.7e308]),
    (F64, [1.7e308] * 33),
    (F64, [1.7e308, 1.0, 5e-324]),
    (F64, [5e-324] * 9),
    (F64, [3e-320, 4e-320]),
    (F64, [1e-310, -1e-308, 1e-307]),
    (F64, [1e154, 1e155, 1.0]),
    (F64, [1e300, 1e-300] * 30),
]
ranges = pytest.mark.parametrize(("dtype", "values"), RANGE)


@ranges
@pytest.mark.parametrize("p", [1, 1.5, 2, 3.7, 0.5, math.inf])
def test_norms_do_not_overflow_or_underflow(dtype, values, p):
    x = np.array(values, dtype=dtype)
    exact = exact_norm(x, p)
    for result in (gc.norm(x, p), gc.norm(x, p, axis=0), gc.global_norm([x[:1], x[1:]], ord=p)):
        assert type(result) is float
        assert_norm(result, exact, p)


def assert_norm(result, exact, p):
    if oracle.to_float64(exact) == math.inf:
        assert result == math.inf
    elif exact < sys.float_info.min:  # rounding to a subnormal comes on top
        assert_within_ulp(np.float64(result), exact, 0.51)
    else:
        assert relative_error(result, exact) < 1e-14 / min(p, 1)


@ranges
@pytest.mark.parametrize("share", [0.5, 1e-3, 0.999, 1e-30, 1e-300])
def test_values_are_scaled_by_the_true_norm(dtype, values, share):
    x = np.array(values, dtype=dtype)
    norm = exact_norm(x)
    limit = oracle.to_float64(norm * oracle.mp.mpf(share))
    scaled = gc.clip_by_norm(x, limit), gc.clip_by_global_norm([x], limit)[0][0]
    exact = oracle.exact_clip(x, limit, np.array([gradclip_norm(x, norm)], dtype=object))
    for result in scaled:
        assert_within_ulp(result, exact, oracle.allowed_ulps(dtype))
        assert np.array_equal(np.signbit(result), np.signbit(x))


def gradclip_norm(x, exact):
    """The norm that float64 results are held to: gradclip's where float64 can hold it to full precision."""
    computed = gc.norm(x)
    usable = x.dtype == F64 and sys.float_info.min <= computed < math.inf
    return oracle.mp.mpf(computed) if usable else exact


@ranges
def test_normalize_divides_by_the_true_norm(dtype, values):
    x = np.array(values, dtype=dtype)
    norm = exact_norm(x)
    result, reported = gc.normalize(x)
    assert reported.dtype == dtype
    assert_within_ulp(
        result,
        oracle.exact_quotient(x, np.array([gradclip_norm(x, norm)], dtype=object)),
        oracle.allowed_ulps(dtype),
    )
    if dtype is F32:
        assert_within_ulp(reported, np.array([norm], dtype=object), oracle.ONE_ROUNDING)
    else:
        assert_norm(reported[0], norm, 2)


@ranges
def test_slices_of_any_magnitude_lie_side_by_side(dtype, values):
    x = np.array(values, dtype=dtype)
    table = np.stack([x, np.ones_like(x), x[::-1] / dtype(4)])
    limit = oracle.to_float64(exact_norm(x) / 3)
    for axes, data in ((1, table), (0, table.T)):
        clipped = gc.clip_by_norm(data, limit, axes=axes)
        for k in range(3):
            exact = oracle.exact_clip(
                table[k], limit, np.array([gradclip_norm(table[k], exact_norm(table[k]))], dtype=object)
            )
            assert_within_ulp(clipped[k] if axes else clipped[:, k], exact, oracle.allowed_ulps(dtype))


def test_a_tiny_limit_over_a_huge_norm_loses_no_representable_result():
    x = np.array([1e300, -1e300, 1e300, 1e290])
    for limit in (1e-300, 5e-324, 1e-310):
        factor = oracle.mp.mpf(limit) / oracle.mp.mpf(gc.norm(x))
        exact = np.array([oracle.mp.mpf(v) * factor for v in x.tolist()], dtype=object)
        assert_within_ulp(gc.clip_by_norm(x, limit), exact, 2)
        assert_within_ulp(gc.clip_by_global_norm([x], limit)[0][0], exact, 2)
    assert gc.clip_by_norm(x, 1e-300)[0] != 0


def test_a_trusted_norm_of_1e300_and_a_limit_of_1e_minus_300():
    x = np.array([1e300, -2e300, 1e-5])
    (result,), _ = gc.clip_by_global_norm([x], 1e-300, use_norm=1e300)
    factor = oracle.mp.mpf(1e-300) / oracle.mp.mpf(1e300)
    assert_within_ulp(result, np.array([oracle.mp.mpf(v) * factor for v in x.tolist()], dtype=object), 2)


def test_a_norm_above_the_largest_float64_is_inf_but_the_values_are_not():
    x = np.full(4, 1.7e308)
    assert gc.norm(x) == math.inf
    clipped, norm = gc.clip_by_global_norm([x, x], 1.0)
    assert norm == math.inf
    for result in (*clipped, gc.clip_by_norm(x, 1.0), gc.normalize(x)[0]):
        assert np.isfinite(result).all()
        assert (result > 0).all()
    assert same_bits(gc.clip_by_norm(x, math.inf), x)
    assert same_bits(gc.clip_by_global_norm([x], math.inf)[0][0], x)


def test_a_limit_above_the_largest_float32_is_used_as_it_is():
    x = np.array([3e38, -3e38], dtype=F32)
    exact = oracle.exact_clip(x, 4e38, oracle.exact_norms(x))
    assert_within_ulp(gc.clip_by_norm(x, 4e38), exact, oracle.ONE_ROUNDING)
    assert_within_ulp(gc.clip_by_global_norm([x], 4e38)[0][0], exact, oracle.ONE_ROUNDING)
    assert same_bits(gc.clip_by_norm(x, 5e38), x)


def test_one_float32_norm_is_a_python_float_that_does_not_overflow():
    x = np.full((2, 3), 3e38, dtype=F32)
    for norm in (
        gc.norm(x),
        gc.norm(x, axis=(0, 1)),
        gc.norm(x[0], axis=0),
        gc.norm(x[0], axis=[-1]),
        gc.global_norm([x]),
    ):
        assert type(norm) is float
        assert math.isfinite(norm)
    kept = gc.norm(x, keepdims=True)
    assert kept.dtype == F32
    assert kept.tolist() == [[math.inf]]
    assert gc.norm(x, axis=1).tolist() == [math.inf, math.inf]


def test_a_norm_is_weak_in_numpys_promotion():
    x = np.arange(1, 4, dtype=F32)
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        assert (x * (2.0 / gc.norm(x))).dtype == F32
    assert not isinstance(gc.norm(x), np.generic)


# ---- NaN and inf


@dtypes
@pytest.mark.parametrize("limit", [0, 1.0, 1e300, math.inf])
def test_clip_by_norm_makes_a_slice_with_nan_all_nan(dtype, limit):
    x = np.array([[1.0, np.nan, np.inf], [0.5, 0.5, -0.0]], dtype=dtype)
    result = gc.clip_by_norm(x, limit, axes=1)
    assert np.isnan(result[0]).all()
    assert np.isnan(gc.clip_by_norm(x, limit)).all()
    assert np.isnan(gc.clip_by_average_norm(x, limit)).all()
    if limit:
        assert same_bits(result[1], x[1])


@dtypes
@pytest.mark.parametrize("limit", [0, 1.0, 1e300])
def test_clip_by_norm_of_inf_is_nan_where_it_was_inf_and_a_signed_zero_elsewhere(dtype, limit):
    x = np.array([1.0, np.inf, -2.0, -np.inf, -0.0], dtype=dtype)
    expected_zeros = np.array([0.0, -0.0, -0.0], dtype=dtype)
    for result in (
        gc.clip_by_norm(x, limit),
        gc.clip_by_average_norm(x, limit),
        gc.clip_by_norm(x[None], limit, axes=1)[0],
    ):
        assert np.isnan(result[[1, 3]]).all()
        assert same_bits(result[[0, 2, 4]], expected_zeros)


@dtypes
def test_clip_by_norm_leaves_inf_alone_when_the_limit_is_inf(dtype):
    x = np.array([1.0, np.inf, -2.0, -np.inf, -0.0], dtype=dtype)
    assert same_bits(gc.clip_by_norm(x, math.inf), x)
    assert same_bits(gc.clip_by_average_norm(x, math.inf), x)


@dtypes
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("limit", [0, 1.0, 1e300, math.inf])
def test_an_infinite_or_nan_global_norm_makes_every_output_nan(dtype, bad, limit):
    fine, other = np.zeros(20, dtype=dtype), np.array([[1.0, bad]], dtype=dtype)
    clipped, norm = gc.clip_by_global_norm([fine, None, other], limit)
    assert math.isnan(norm) if np.isnan(bad) else norm == math.inf
    assert np.isnan(clipped[0]).all()
    assert clipped[1] is None
    assert np.isnan(clipped[2]).all()


@dtypes
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_use_norm_of_inf_or_nan_makes_every_output_nan(dtype, bad):
    clipped, norm = gc.clip_by_global_norm([np.zeros(3, dtype=dtype), np.ones((), dtype=dtype)], 1.0, use_norm=bad)
    assert math.isnan(norm) if math.isnan(bad) else norm == bad
    assert all(np.isnan(c).all() for c in clipped)


@dtypes
def test_nan_and_inf_are_scaled_like_any_other_under_a_finite_use_norm(dtype):
    x = np.array([np.nan, np.inf, -np.inf, 3.0, -0.0], dtype=dtype)
    (result,), norm = gc.clip_by_global_norm([x], 1.0, use_norm=2)
    assert type(norm) is float
    assert norm == 2.0
    assert np.isnan(result[0])
    assert same_bits(result[1:], np.array([np.inf, -np.inf, 1.5, -0.0], dtype=dtype))


@dtypes
@pytest.mark.parametrize("p", [0.5, 1, 2, 3.7, math.inf])
def test_nan_wins_over_inf_in_a_norm(dtype, p):
    inf, both = np.array([1, np.inf, -np.inf], dtype=dtype), np.array([np.inf, np.nan, 1], dtype=dtype)
    for x in (inf, np.tile(inf, 50)):
        assert gc.norm(x, p) == math.inf
        assert gc.global_norm([x], ord=p) == math.inf
    for x in (both, np.tile(both, 50), both[::-1].copy()):
        assert math.isnan(gc.norm(x, p))
        assert math.isnan(gc.global_norm([inf, x], ord=p))
        assert math.isnan(gc.global_norm([x, inf], ord=p))
    table = np.stack([inf, both, np.ones(3, dtype=dtype)])
    for norms in (gc.norm(table, p, axis=1), gc.norm(table.T, p, axis=0)):
        assert norms[0] == math.inf
        assert math.isnan(norms[1])
        assert_within_ulp(norms[2], exact_norm(np.ones(3), p), 51 if dtype is F64 else 0.51)


@dtypes
def test_normalize_of_nan_and_inf_divides_by_them(dtype):
    x = np.array([[1, np.nan, np.inf], [-1, np.inf, 2], [0, -0.0, 0]], dtype=dtype)
    result, norm = gc.normalize(x, axis=1)
    assert np.isnan(result[0]).all()
    assert np.isnan(result[1, 1])
    assert same_bits(result[1, [0, 2]], np.array([-0.0, 0.0], dtype=dtype))
    assert same_bits(result[2], x[2])
    assert np.isnan(norm[0, 0])
    assert norm[1:].tolist() == [[math.inf], [0]]


# ---- accuracy


MILLION = 1_000_000
LONG = {
    "0.1": np.full(MILLION, 0.1),
    "1/3": np.full(MILLION, 1 / 3),
    "huge": np.full(MILLION, 1.1e307),
    "alternating": np.tile([1e8, 1e-8, -3.0, 7e-4], MILLION // 4),
    "one large": np.concatenate([[1e9], np.full(MILLION - 1, 0.7)]),
    "one large at the end": np.concatenate([np.full(MILLION - 1, 0.7), [-1e9]]),
}
POWERS = [1, 1.5, 2, 3.7, math.inf]


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("data", LONG)
@dtypes
def test_long_norms_are_right_to_1e_minus_14(dtype, data, p):
    x = np.minimum(LONG[data], 1e38 if dtype is F32 else math.inf).astype(dtype)
    exact = exact_norm(x, p)
    if oracle.to_float64(exact) == math.inf:
        assert gc.norm(x, p) == math.inf
    else:
        assert relative_error(gc.norm(x, p), exact) < 1e-14
        assert relative_error(gc.global_norm([x[:7], x[7:]], ord=p), exact) < 1e-14


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("data", ["0.1", "alternating", "one large"])
def test_long_columns_are_right_to_1e_minus_14(data, p):
    columns = np.stack([LONG[data][: MILLION // 4], LONG["1/3"][: MILLION // 4], LONG["0.1"][: MILLION // 4]], axis=1)
    for k, norm in enumerate(gc.norm(columns, p, axis=0).tolist()):
        assert relative_error(norm, exact_norm(columns[:, k], p)) < 1e-14


@pytest.mark.parametrize("p", [1, 2])
def test_random_norms_are_right_to_1e_minus_14(p):
    x = np.random.default_rng(5).standard_normal(100_000)
    assert relative_error(gc.norm(x, p), exact_norm(x, p)) < 1e-14
    assert relative_error(gc.norm(x[::2], p), exact_norm(x[::2], p)) < 1e-14


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 129, 4099])
@pytest.mark.parametrize("p", [*POWERS, 0.5, 3, 4, 2.0000001, 0.999])
def test_norms_of_any_length_are_right(n, p):
    x = np.random.default_rng(n).standard_normal(n)[: 700 if p not in {1, 2, math.inf} else None]
    assert relative_error(gc.norm(x, p), exact_norm(x, p)) < 1e-14 / min(p, 1)


@dtypes
@pytest.mark.parametrize("p", [0.5, 1e-3, 100, 1e300])
def test_extreme_powers(dtype, p):
    for values in ([3.0, -4.0], [6.0, 5.5, 6.0, 1e-30], [1e-30, 2e-30], [2.0], [0.0, 0.7], [1e30] * 3):
        x = np.array(values, dtype=dtype)
        assert_norm(gc.norm(x, p), exact_norm(x, p), p)
    zeros = np.zeros(5, dtype=dtype)
    assert gc.norm(zeros, p) == 0.0


# ---- one rounding


@dtypes
@pytest.mark.parametrize("n", [1, 3, 17, 1000])
def test_scaled_values_are_rounded_once(dtype, n):
    rng = np.random.default_rng(n)
    for limit in (1.0, 0.1, 1 / 3, 7e-6):
        x = (rng.standard_normal(n) * 10 ** rng.uniform(-3, 3, n) + 1).astype(dtype)
        norms = np.array([gradclip_norm(x, exact_norm(x))], dtype=object)
        exact = oracle.exact_clip(x, limit, norms)
        assert_within_ulp(gc.clip_by_norm(x, limit), exact, oracle.allowed_ulps(dtype))
        assert_within_ulp(gc.clip_by_global_norm([x], limit)[0][0], exact, oracle.allowed_ulps(dtype))
        average = oracle.exact_clip(x, limit, norms / n)
        assert_within_ulp(gc.clip_by_average_norm(x, limit), average, oracle.allowed_ulps(dtype))
        assert_within_ulp(gc.normalize(x)[0], oracle.exact_quotient(x, norms), oracle.allowed_ulps(dtype))


@dtypes
def test_a_trusted_norm_scales_each_tensor_in_its_own_dtype(dtype):
    x = np.random.default_rng(3).standard_normal(500).astype(dtype)
    for use_norm, limit in ((3.3, 0.7), (1e10, 1.0), (7, 1e-9)):
        (result,), norm = gc.clip_by_global_norm([x], limit, use_norm)
        assert norm == use_norm
        exact = oracle.exact_clip(x, limit, np.array([oracle.mp.mpf(use_norm)], dtype=object))
        assert_within_ulp(result, exact, oracle.allowed_ulps(dtype))
