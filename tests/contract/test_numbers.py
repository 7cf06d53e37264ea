"""The section "Numbers": untouched values, the whole range, the one rule for scaling, NaN and inf, accuracy."""

import math

import gradclip as gc
import numpy as np
import oracle
import pytest
from calls import cast, looped, norms_in_use
from oracle import (
    BF16,
    FLOATS,
    INTEGERS,
    SCALED,
    allowed_ulps,
    assert_norm,
    assert_within_ulp,
    exact_norm,
    from_bits,
    numbers,
    relative_error,
    same_bits,
)

F16, F32, F64, C64, C128 = np.float16, np.float32, np.float64, np.complex64, np.complex128

dtypes = pytest.mark.parametrize("dtype", SCALED)
floats = pytest.mark.parametrize("dtype", FLOATS)


def odd_values(dtype, scale=1.0):
    """-0.0, subnormals, the smallest normal number, and ordinary ones times `scale`: all finite."""
    info, tiny = oracle.finfo(dtype), oracle.tiny(dtype)
    values = [-0.0, 0.0, tiny, -tiny, 3 * tiny, float(info.smallest_normal), oracle.eps(dtype)]
    return numbers([*values, 0.1 * scale, -scale, scale / 3, -2.5 * scale] * 5, dtype)


NANS = {
    F16: [0x7E12, 0xFE54, 0x7C01, 0xFDEF],
    BF16: [0x7FC5, 0xFFD4, 0x7F81, 0xFFAB],
    F32: [0x7FC12345, 0xFFC54321, 0x7F800001, 0xFFABCDEF],
    F64: [0x7FF8000012345678, 0xFFF8ABCDEF000001, 0x7FF0000000000001, 0xFFF7FFFFFFFFFFFF],
}


def nans(dtype):
    """Quiet and signalling NaNs of both signs with payloads, in complex numbers beside ordinary ones and each other."""
    words = NANS[oracle.part(dtype).type]
    if np.dtype(dtype).kind == "c":
        one = int(oracle.bits(np.ones(1, oracle.part(dtype)))[0])
        words = [*words, one, words[0], words[1], one, one, words[2], words[3], one]
    return from_bits(words, dtype)


# ---- untouched means untouched


LIMITS = [3.9, 41.0, 49.0, 55.0, 100.0, 333.33, 1e38, 1e39, 1e300, math.inf]


@dtypes
@pytest.mark.parametrize("limit", LIMITS)
def test_what_is_at_or_below_the_limit_comes_back_bit_for_bit(dtype, limit):
    x = odd_values(dtype, 0.25)
    assert exact_norm(x) < 3.9
    assert same_bits(gc.clip_by_norm(x, limit), x)
    assert same_bits(gc.clip_by_norm(x.reshape(5, -1), limit, axes=1), x.reshape(5, -1))
    assert same_bits(gc.clip_by_norm(x.reshape(5, -1), limit, axes=0), x.reshape(5, -1))
    assert same_bits(gc.clip_by_norm(x, limit, axes=()), x)
    assert same_bits(gc.clip_by_average_norm(x, limit), x)
    clipped, _ = gc.clip_by_global_norm([x, x[:3]], 2 * limit)
    assert same_bits(clipped[0], x)
    assert same_bits(clipped[1], x[:3])
    if dtype in FLOATS:
        assert same_bits(gc.clip_by_value(x, -limit, limit), x)


@dtypes
def test_slices_below_the_limit_are_untouched_beside_slices_above_it(dtype):
    x = np.stack([odd_values(dtype), odd_values(dtype, 10.0)])
    limit = 10.0
    assert exact_norm(x[0]) < limit < exact_norm(x[1])
    for result in (gc.clip_by_norm(x, limit, axes=1), gc.clip_by_norm(x.T, limit, axes=0).T):
        assert same_bits(result[0], x[0])
        assert not same_bits(result[1], x[1])


@floats
def test_nan_payloads_are_untouched_by_clip_by_value(dtype):
    for reps in (1, 9):  # past one vector register, and in the middle of others
        x = np.tile(np.concatenate([nans(dtype), np.array([0.5, -9.0, 9.0], dtype=dtype)]), reps)
        for low, high in ((-1.0, 1.0), (None, 1.0), (np.full(x.size, -1.0, dtype), np.full(x.size, 1.0, dtype))):
            result = gc.clip_by_value(x, low, high)
            assert same_bits(result, oracle.expected_clip_by_value(x, low, high))
            assert same_bits(result[:4], nans(dtype))


@floats
@pytest.mark.parametrize("bound", [math.nan, -math.nan, F32("nan"), np.array(math.nan)])
def test_a_nan_keeps_its_bits_where_a_bound_is_nan(dtype, bound):
    for reps in (1, 9):
        x = np.tile(np.concatenate([nans(dtype), np.array([0.5], dtype=dtype)]), reps)
        for result in (gc.clip_by_value(x, bound, 1), gc.clip_by_value(x, None, np.broadcast_to(bound, x.shape))):
            own = oracle.is_nan(x)
            assert same_bits(result[own], x[own])
            assert oracle.is_nan(result).all()


@dtypes
def test_nan_payloads_are_untouched_under_a_trusted_norm(dtype):
    for reps in (1, 9):
        x = np.concatenate([np.tile(nans(dtype), reps), odd_values(dtype), numbers([np.inf, -np.inf, 1, 2], dtype)])
        (result,), norm = gc.clip_by_global_norm([x], 2.0, use_norm=2.0)
        assert norm == 2.0
        assert same_bits(result, x)


@dtypes
@pytest.mark.parametrize("seed", range(5))
def test_clipping_to_the_norm_itself_changes_nothing(dtype, seed):
    rng = np.random.default_rng(seed)
    grads = [cast(rng.standard_normal(n), dtype) for n in (1, 17, 1000, 4099)]
    for p in (2, 1, 3.7, math.inf):
        norm = gc.global_norm(grads, ord=p)
        clipped, reported = gc.clip_by_global_norm(grads, norm, ord=p)
        assert reported == norm
        assert all(same_bits(c, g) for c, g in zip(clipped, grads, strict=True))
        below, _ = gc.clip_by_global_norm(grads, norm * 0.99, ord=p)  # more than half an ulp of bfloat16
        assert not same_bits(below[3], grads[3])
    for g in grads:
        assert same_bits(gc.clip_by_norm(g, gc.norm(g)), g)


@dtypes
def test_a_zero_tensor_stays_as_it_is_even_for_a_limit_of_zero(dtype):
    x = numbers([0.0, -0.0, -0.0, 0.0, 0.0], dtype)
    for limit in (0, 0.0, -0.0, 1.0):
        assert same_bits(gc.clip_by_norm(x, limit), x)
        assert same_bits(gc.clip_by_norm(x, limit, axes=()), x)
        assert same_bits(gc.clip_by_average_norm(x, limit), x)
        assert same_bits(gc.clip_by_global_norm([x], limit)[0][0], x)
    for p in (1, 2, 3.7, math.inf):
        assert same_bits(gc.normalize(x, p)[0], x)


@dtypes
@pytest.mark.parametrize("limit", [0, 0.0, -0.0])
def test_a_limit_of_zero_makes_every_finite_value_a_zero_of_its_sign(dtype, limit):
    x = numbers([-3.0, 4.0, -0.0, 0.0, -oracle.tiny(dtype), oracle.largest(dtype)], dtype)
    for result in (
        gc.clip_by_norm(x, limit),
        gc.clip_by_norm(x, limit, axes=()),
        gc.clip_by_average_norm(x, limit),
        gc.clip_by_global_norm([x], limit)[0][0],
        gc.clip_by_global_norm([x], limit, use_norm=7.0)[0][0],
    ):
        assert same_bits(result, zeros_of(x))


def zeros_of(x):
    """A zero of its sign for every part."""
    words = oracle.bits(x)
    sign = words.dtype.type(1 << (8 * words.itemsize - 1))
    return from_bits(words & sign, x.dtype).reshape(x.shape)


# ---- the whole range


RANGE = [
    (F16, [300, 300]),
    (F16, [65504, -65504, 1]),
    (F16, [65504] * 20),
    (F16, [6e-8] * 9),
    (F16, [1.8e-7, 2.4e-7]),
    (F16, [65504] + [6e-8] * 20),
    (F16, [7e-5, 5e-5, 1e-3]),
    (BF16, [1e30, 1e30]),
    (BF16, [3.3e38, -3.3e38, 1.0]),
    (BF16, [1e-40] * 9),
    (BF16, [3e-40, 4e-40]),
    (BF16, [3.3e38] + [1e-40] * 20),
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
    (C64, [1e30, 1e30]),
    (C64, [3e38, -3e38, 1.0]),
    (C64, [3e38]),
    (C64, [1e-45] * 9),
    (C64, [3e-45, 4e-45]),
    (C64, [3e38] + [1e-45] * 20),
    (C128, [1e200, 1e-200]),
    (C128, [1e-200, 0, -1e-200]),
    (C128, [1.7e308]),
    (C128, [1.7e308, -1.7e308, 1.0]),
    (C128, [1.7e308] * 33),
    (C128, [5e-324] * 9),
    (C128, [3e-320, 4e-320]),
    (C128, [1e-310, -1e-308, 1e-307]),
    (C128, [1e300, 1e-300] * 30),
]
ranges = pytest.mark.parametrize(("dtype", "values"), RANGE)


@ranges
@looped("p", [1, 1.5, 2, 3, 4, 3.7, 0.5, math.inf])
def test_norms_do_not_overflow_or_underflow(dtype, values, p):
    x = numbers(values, dtype)
    exact = exact_norm(x, p)
    for result in (gc.norm(x, p), gc.norm(x, p, axis=0), gc.global_norm([x[:1], x[1:]], ord=p)):
        assert type(result) is float
        assert_norm(result, exact, p)
    for kept in (gc.norm(x, p, keepdims=True), gc.norm(np.stack([x, x], 1), p, axis=0)):
        assert kept.dtype == oracle.norm_dtype(dtype)
        oracle.assert_norms(kept, np.full(kept.shape, exact), p)


@ranges
@looped("share", [0.5, 1e-3, 0.999, 1e-30, 1e-300])
def test_values_are_scaled_by_the_true_norm(dtype, values, share):
    x = numbers(values, dtype)
    norm = exact_norm(x)
    limit = oracle.to_float64(norm * oracle.mp.mpf(share))
    scaled = gc.clip_by_norm(x, limit), gc.clip_by_global_norm([x], limit)[0][0]
    exact = oracle.exact_clip(x, limit, gradclip_norms(x))
    for result in scaled:
        assert_within_ulp(result, exact, allowed_ulps(dtype))
        assert np.array_equal(oracle.signs(result), oracle.signs(x))


def gradclip_norms(x):
    """The norms that results are compared with, the axis kept."""
    return norms_in_use(x, oracle.exact_norms(x), None)


@ranges
@looped("share", [0.5, 1e-3, 1e-30, 1e-300])
def test_elements_are_scaled_by_their_true_magnitude(dtype, values, share):
    x = numbers(values, dtype)
    norms = norms_in_use(x, oracle.exact_norms(x, 2, ()), ())
    limit = oracle.to_float64(exact_norm(x, math.inf) * oracle.mp.mpf(share))
    result = gc.clip_by_norm(x, limit, axes=())
    assert_within_ulp(result, oracle.exact_clip(x, limit, norms), allowed_ulps(dtype))


@ranges
def test_normalize_divides_by_the_true_norm(dtype, values):
    x = numbers(values, dtype)
    result, reported = gc.normalize(x)
    assert reported.dtype == oracle.norm_dtype(dtype)
    assert_within_ulp(result, oracle.exact_quotient(x, gradclip_norms(x)), allowed_ulps(dtype))
    oracle.assert_norms(reported, oracle.exact_norms(x))


@ranges
def test_slices_of_any_magnitude_lie_side_by_side(dtype, values):
    x = numbers(values, dtype)
    table = np.stack([x, np.ones_like(x), numbers(np.array(values[::-1]) / 4, dtype)])
    limit = oracle.to_float64(exact_norm(x) / 3)
    for axes, data in ((1, table), (0, table.T)):
        clipped = gc.clip_by_norm(data, limit, axes=axes)
        for k in range(3):
            exact = oracle.exact_clip(table[k], limit, gradclip_norms(table[k]))
            assert_within_ulp(clipped[k] if axes else clipped[:, k], exact, allowed_ulps(dtype))


@pytest.mark.parametrize("dtype", [F64, C128])
def test_a_tiny_limit_over_a_huge_norm_loses_no_representable_result(dtype):
    x = numbers([1e300, -1e300, 1e300, 1e290], dtype)
    for limit in (1e-300, 5e-324, 1e-310):
        exact = oracle.exact_clip(x, limit, gradclip_norms(x))
        assert_within_ulp(gc.clip_by_norm(x, limit), exact, 2)
        assert_within_ulp(gc.clip_by_global_norm([x], limit)[0][0], exact, 2)
    assert gc.clip_by_norm(x, 1e-300)[0] != 0


@dtypes
@pytest.mark.parametrize(("use_norm", "limit"), [(1e300, 1e-300), (1e300, 1e-10), (1e10, 5e-324), (1.7e308, 5e-324)])
def test_a_factor_below_the_smallest_float64_loses_no_representable_result(dtype, use_norm, limit):
    largest = oracle.largest(dtype)
    x = numbers([largest, -largest / 3, 1e-5, 0.0, -0.0, 1.0], dtype)
    (result,), _ = gc.clip_by_global_norm([x], limit, use_norm=use_norm)
    assert_within_ulp(result, oracle.exact_global_clip(x, limit, oracle.mp.mpf(use_norm)), allowed_ulps(dtype))
    assert np.array_equal(oracle.signs(result), oracle.signs(x))


@pytest.mark.parametrize("dtype", [F64, C128])
def test_a_norm_above_the_largest_float64_is_inf_but_the_values_are_not(dtype):
    x = numbers([1.7e308] * 4, dtype)
    assert gc.norm(x) == math.inf
    clipped, norm = gc.clip_by_global_norm([x, x], 1.0)
    assert norm == math.inf
    for result in (*clipped, gc.clip_by_norm(x, 1.0), gc.normalize(x)[0]):
        assert np.isfinite(result).all()
        assert (oracle.parts(result) > 0).all()
    assert same_bits(gc.clip_by_norm(x, math.inf), x)
    assert same_bits(gc.clip_by_global_norm([x], math.inf)[0][0], x)


def test_one_complex_number_may_be_above_the_largest_float64():
    x = np.array([1.7e308 + 1.7e308j, -3 + 4j])
    assert gc.norm(x[:1]) == math.inf
    assert gc.norm(x, math.inf) == math.inf
    assert gc.norm(x[:, None], axis=1).tolist() == [math.inf, 5.0]
    np.testing.assert_allclose(gc.clip_by_norm(x, 5.0, axes=()), [12.5**0.5 * (1 + 1j), -3 + 4j], rtol=1e-15)
    np.testing.assert_allclose(gc.clip_by_norm(x[:1], 5.0), [12.5**0.5 * (1 + 1j)], rtol=1e-15)
    assert same_bits(gc.clip_by_norm(x, math.inf, axes=()), x)


@dtypes
def test_a_limit_above_the_largest_number_is_used_as_it_is(dtype):
    largest = oracle.largest(dtype)
    x = numbers([largest, -largest], dtype)
    if oracle.is_wide(dtype):
        assert same_bits(gc.clip_by_norm(x, math.inf), x)
        return
    limit = 1.25 * largest
    exact = oracle.exact_clip(x, limit, oracle.exact_norms(x))
    assert_within_ulp(gc.clip_by_norm(x, limit), exact, oracle.ONE_ROUNDING)
    assert_within_ulp(gc.clip_by_global_norm([x], limit)[0][0], exact, oracle.ONE_ROUNDING)
    assert not same_bits(gc.clip_by_norm(x, limit), x)
    assert same_bits(gc.clip_by_norm(x, 2.1 * largest), x)


@pytest.mark.parametrize("dtype", [F16, BF16, F32, C64])
def test_one_norm_is_a_python_float_that_does_not_overflow(dtype):
    x = numbers([oracle.largest(dtype)] * 6, dtype).reshape(2, 3)
    for norm in (
        gc.norm(x),
        gc.norm(x, axis=(0, 1)),
        gc.norm(x, 1, axis=(0, 1)),
        gc.norm(x, 2, axis=(0, 1)),
        gc.norm(x[0], axis=0),
        gc.norm(x[0], axis=[-1]),
        gc.global_norm([x]),
    ):
        assert type(norm) is float
        assert oracle.largest(dtype) < norm < math.inf
    kept, rows = gc.norm(x, keepdims=True), gc.norm(x, axis=1)
    assert kept.dtype == rows.dtype == F32
    overflows = dtype is not F16  # the largest float16 is far from the largest float32
    assert np.isinf(kept).item() == overflows
    assert np.isinf(rows).all() == np.isinf(rows).any() == overflows


def test_a_norm_is_weak_in_numpys_promotion():
    for dtype in (F16, F32, C64):
        x = np.arange(1, 4).astype(dtype)
        if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
            assert (x * (2.0 / gc.norm(x))).dtype == dtype
        assert not isinstance(gc.norm(x), np.generic)


# ---- NaN and inf


@dtypes
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_an_infinite_limit_touches_nothing(dtype, odd):
    x = numbers([1.0, -0.0, odd, 2.0, odd, 0.5], dtype).reshape(2, 3)
    before = x.copy()
    for axes in (None, 0, 1, (), (0, 1)):
        assert same_bits(gc.clip_by_norm(x, math.inf, axes=axes), before)
        assert same_bits(gc.clip_by_norm(x, math.inf, axes=axes, out=x), before)
    assert same_bits(gc.clip_by_average_norm(x, math.inf), before)
    for use_norm in (None, math.nan, math.inf):
        (result,), norm = gc.clip_by_global_norm([x], math.inf, use_norm=use_norm)
        assert same_bits(result, before)
        assert not math.isfinite(norm)


@dtypes
@pytest.mark.parametrize("limit", [0, 1.0, 1e300])
def test_clip_by_norm_makes_a_slice_with_nan_all_nan(dtype, limit):
    x = np.array([[1.0, np.nan, np.inf], [0.5, 0.5, -0.0]], dtype=dtype)
    result = gc.clip_by_norm(x, limit, axes=1)
    assert oracle.is_nan(result[0]).all()
    assert oracle.is_nan(gc.clip_by_norm(x, limit)).all()
    assert oracle.is_nan(gc.clip_by_average_norm(x, limit)).all()
    if limit:
        assert same_bits(result[1], x[1])


@pytest.mark.parametrize("dtype", [C64, C128])
@pytest.mark.parametrize("limit", [0, 1.0, 1e300])
@pytest.mark.parametrize("bad", [(np.nan, 1), (1, np.nan), (np.nan, np.inf), (np.inf, np.nan)])
def test_a_nan_in_either_part_makes_both_parts_of_the_whole_slice_nan(dtype, limit, bad):
    x = numbers([1, 2, 3, -0.0] * 5, dtype)
    x[7] = complex(*bad)
    for result in (
        gc.clip_by_norm(x, limit),
        gc.clip_by_average_norm(x, limit),
        gc.clip_by_norm(x[:, None], limit, axes=0),
        gc.clip_by_norm(x, limit, axes=())[7],
        gc.clip_by_global_norm([x], limit)[0][0],
        gc.normalize(x)[0],
    ):
        assert oracle.is_nan(result).all()
    assert math.isnan(gc.norm(x))
    assert same_bits(gc.clip_by_norm(x, 1e9, axes=())[:7], x[:7])


@dtypes
@pytest.mark.parametrize("limit", [0, 1.0, 1e300])
def test_clip_by_norm_of_inf_is_nan_where_it_was_inf_and_a_signed_zero_elsewhere(dtype, limit):
    for reps in (1, 9):
        x = numbers([1.0, np.inf, -2.0, -np.inf, -0.0, 0.0, -oracle.tiny(dtype)] * reps, dtype)
        infinite = np.isinf(oracle.exact_parts(x))
        assert 0 < infinite.sum() < infinite.size
        for result in (
            gc.clip_by_norm(x, limit),
            gc.clip_by_average_norm(x, limit),
            gc.clip_by_norm(x[None], limit, axes=1)[0],
            gc.clip_by_norm(x[:, None], limit, axes=0)[:, 0],
            gc.normalize(x)[0],
            gc.normalize(x, math.inf)[0],
        ):
            assert np.array_equal(oracle.is_nan(result), infinite)
            assert np.array_equal(oracle.bits(result)[~infinite], oracle.bits(zeros_of(x))[~infinite])


@dtypes
def test_clip_by_norm_leaves_inf_alone_when_the_limit_is_inf(dtype):
    x = numbers([1.0, np.inf, -2.0, -np.inf, -0.0, 1.0], dtype)
    assert same_bits(gc.clip_by_norm(x, math.inf), x)
    assert same_bits(gc.clip_by_norm(x, math.inf, axes=()), x)
    assert same_bits(gc.clip_by_norm(x[:, None], math.inf, axes=0)[:, 0], x)
    assert same_bits(gc.clip_by_average_norm(x, math.inf), x)


@dtypes
@looped("bad", [np.nan, np.inf, -np.inf])
@looped("limit", [0, 1.0, 1e300])
def test_an_infinite_or_nan_global_norm_makes_every_output_nan(dtype, bad, limit):
    fine, other = np.zeros(20, dtype=dtype), np.array([[1.0, bad]], dtype=dtype)
    clipped, norm = gc.clip_by_global_norm([fine, None, other], limit)
    assert math.isnan(norm) if np.isnan(bad) else norm == math.inf
    assert oracle.is_nan(clipped[0]).all()
    assert clipped[1] is None
    assert oracle.is_nan(clipped[2]).all()


def test_inf_in_one_dtype_makes_all_dtypes_nan():
    t_list = [np.ones(40, dtype) for dtype in SCALED]
    for k, dtype in enumerate(SCALED):
        for bad in (np.inf, np.nan, *([complex(0, -np.inf)] if np.dtype(dtype).kind == "c" else [])):
            mixed = [t.copy() for t in t_list]
            mixed[k][30] = bad
            clipped, norm = gc.clip_by_global_norm(mixed, 1e300)
            assert math.isnan(norm) or norm == math.inf
            assert all(oracle.is_nan(c).all() for c in clipped)


@dtypes
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("limit", [0, 1.0, 1e300])
def test_a_use_norm_of_inf_or_nan_makes_every_output_nan(dtype, bad, limit):
    clipped, norm = gc.clip_by_global_norm([np.zeros(33, dtype=dtype), np.ones((), dtype=dtype)], limit, use_norm=bad)
    assert math.isnan(norm) if math.isnan(bad) else norm == bad
    assert all(oracle.is_nan(c).all() for c in clipped)


@dtypes
def test_nan_and_inf_are_scaled_like_any_other_under_a_finite_use_norm(dtype):
    x = numbers([np.nan, np.inf, -np.inf, 3.0, -0.0, 5.0, 1.0], dtype)
    (result,), norm = gc.clip_by_global_norm([x], 1.0, use_norm=2)
    assert type(norm) is float
    assert norm == 2.0
    halves = oracle.exact_parts(x) / 2
    assert np.array_equal(oracle.is_nan(result), np.isnan(halves))
    assert np.array_equal(oracle.exact_parts(result), halves, equal_nan=True)
    assert np.array_equal(oracle.signs(result)[~np.isnan(halves)], np.signbit(halves)[~np.isnan(halves)])


@dtypes
def test_inf_stays_inf_under_the_smallest_of_factors_but_not_under_zero(dtype):
    x = numbers([np.inf, -np.inf, 1.0], dtype)
    (result,), _ = gc.clip_by_global_norm([x], 5e-324, use_norm=1.7e308)
    assert np.isinf(oracle.exact_parts(result)).sum() == np.isinf(oracle.exact_parts(x)).sum()
    (result,), _ = gc.clip_by_global_norm([x], 0, use_norm=2)
    assert np.array_equal(oracle.is_nan(result), np.isinf(oracle.exact_parts(x)))


@dtypes
@pytest.mark.parametrize("p", [0.5, 1, 2, 3, 4, 3.7, math.inf])
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
        assert_norm(norms[2], exact_norm(np.ones(3), p), p)


@pytest.mark.parametrize("p", [0.5, 1, 2, 3.7, math.inf])
@pytest.mark.parametrize(
    "z", [complex(np.inf, np.nan), complex(np.nan, -np.inf), complex(np.nan, 0), complex(3, np.nan)]
)
def test_nan_wins_over_inf_within_one_complex_number(z, p):
    for dtype in (C64, C128):
        for x in (np.array([z], dtype), np.array([1, z, 2j] * 20, dtype), np.array([complex(np.inf, 1), z], dtype)):
            assert math.isnan(gc.norm(x, p))
            assert math.isnan(gc.global_norm([np.array([np.inf]), x], ord=p))


@dtypes
def test_normalize_of_nan_and_inf_divides_by_them(dtype):
    x = np.array([[1, np.nan, np.inf], [-1, np.inf, 2], [0, -0.0, 0]], dtype=dtype)
    result, norm = gc.normalize(x, axis=1)
    assert oracle.is_nan(result[0]).all()
    assert np.array_equal(oracle.is_nan(result[1]), np.isinf(oracle.exact_parts(x[1])))
    assert same_bits(result[1, [0, 2]], zeros_of(x[1, [0, 2]]))
    assert same_bits(result[2], x[2])
    assert np.isnan(norm[0, 0])
    assert norm[1:].tolist() == [[math.inf], [0]]


# ---- accuracy


MILLION = 1_000_000
LONG = {
    "0.1": [(0.1, MILLION)],
    "1/3": [(1 / 3, MILLION)],
    "huge": [(1.1e307, MILLION)],
    "tiny": [(1e-310, MILLION)],
    "alternating": [(v, MILLION // 4) for v in (1e8, 1e-8, -3.0, 7e-4)],
    "one large": [(1e9, 1), (0.7, MILLION - 1)],
    "one large at the end": [(0.7, MILLION - 1), (-1e9, 1)],
}
POWERS = [1, 1.5, 2, 3.7, math.inf]


def long_array(data, dtype, n=MILLION):
    """The first n numbers in this dtype, those out of its range at the end of it, and their exact norm by ord."""
    largest, tiny = oracle.largest(dtype), oracle.tiny(dtype)
    kept = [min(max(abs(v), tiny), largest / 2) * math.copysign(1, v) for v, _ in LONG[data]]
    values = np.concatenate([numbers([v], dtype) for v in kept])
    counts = [count * n // MILLION or 1 for _, count in LONG[data]]
    x = np.tile(values, n // 4) if data == "alternating" else np.repeat(values, counts)
    terms = [(m, count) for v, count in zip(values, counts, strict=True) for m, _ in oracle.magnitudes(np.array([v]))]
    return x, lambda p: oracle.norm_of_magnitudes(terms, p)


@pytest.mark.sampled
@looped("p", POWERS)
@pytest.mark.parametrize("data", LONG)
@dtypes
def test_long_norms_are_right_to_1e_minus_14(dtype, data, p):
    x, exact = long_array(data, dtype)
    assert_norm(gc.norm(x, p), exact(p), p)
    assert_norm(gc.global_norm([x[:7], x[7:]], ord=p), exact(p), p)


@looped("p", POWERS)
@pytest.mark.parametrize("data", ["0.1", "alternating", "one large"])
@dtypes
def test_long_columns_are_right_to_1e_minus_14(dtype, data, p):
    n = MILLION // 4
    columns, exact = zip(*(long_array(d, dtype, n) for d in (data, "1/3", "0.1")), strict=True)
    for k, norm in enumerate(gc.norm(np.stack([c[:n] for c in columns], axis=1), p, axis=0)):
        if columns[k].size == n:
            assert_norm(norm, exact[k](p), p)


@pytest.mark.parametrize("p", [1, 2])
def test_random_norms_are_right_to_1e_minus_14(p):
    x = np.random.default_rng(5).standard_normal(30_000)
    assert relative_error(gc.norm(x, p), exact_norm(x, p)) < 1e-14
    assert relative_error(gc.norm(x[::2], p), exact_norm(x[::2], p)) < 1e-14


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 129, 4099])
@pytest.mark.parametrize("p", [*POWERS, 0.5, 3, 4, 2.0000001, 0.999])
def test_norms_of_any_length_are_right(n, p):
    x = np.random.default_rng(n).standard_normal(n)[: 700 if p not in {1, 2, math.inf} else None]
    assert relative_error(gc.norm(x, p), exact_norm(x, p)) < 1e-14 / min(p, 1)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [*SCALED, *INTEGERS, np.bool_])
@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 8, 0.1, 1e-3, 100, 1e300, math.inf])
def test_every_order_for_every_dtype(dtype, p):
    rng = np.random.default_rng(12)
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        x = rng.integers(info.min, info.max, 90, dtype=dtype, endpoint=True)
        x[:3] = info.min, info.max, 1
    elif dtype is np.bool_:
        x = rng.integers(0, 2, 90).astype(dtype)
    else:
        x = cast(rng.standard_normal(90) * 10.0 ** rng.uniform(-4, 4, 90), dtype)
    for part in (x, x[:1], x[:17], x[::-3]):
        assert_norm(gc.norm(part, p), exact_norm(part, p), p)
        assert_norm(gc.global_norm([part, part[:4]], ord=p), oracle.exact_global_norm([part, part[:4]], p), p)
    table = x.reshape(6, 15)
    for axis in (0, 1):
        oracle.assert_norms(gc.norm(table, p, axis, keepdims=True), oracle.exact_norms(table, p, axis), p)


@dtypes
@pytest.mark.parametrize("p", [0.5, 1e-3, 100, 1e300])
def test_extreme_powers(dtype, p):
    for values in ([3.0, -4.0], [6.0, 5.5, 6.0, 1e-30], [1e-30, 2e-30], [2.0], [0.0, 0.7], [1e30] * 3, [1e-45, 1e30]):
        x = numbers(np.minimum(values, oracle.largest(dtype)), dtype)
        assert_norm(gc.norm(x, p), exact_norm(x, p), p)
    zeros = np.zeros(5, dtype=dtype)
    assert gc.norm(zeros, p) == 0.0


# ---- norms of integers


@pytest.mark.parametrize("dtype", INTEGERS)
def test_norms_of_integers_are_those_of_the_integers(dtype):
    info = np.iinfo(dtype)
    for value in (info.min, info.max, info.max - 1, info.max // 3, 1, 0):
        for x in (np.array(value, dtype), np.array([value] * 1, dtype)):
            for p in (1, 2, math.inf, 3.7, 4):
                assert_norm(gc.norm(x, p), abs(oracle.mp.mpf(int(value))), p)
    # The magnitude of the smallest integer is no number of its dtype, and squares leave int64.
    x = np.array([info.min, info.max, info.min, 3] * 40, dtype)
    for p in (1, 2, math.inf, 0.5, 3):
        assert_norm(gc.norm(x, p), exact_norm(x, p), p)
        oracle.assert_norms(
            gc.norm(x.reshape(8, -1), p, axis=0, keepdims=True), oracle.exact_norms(x.reshape(8, -1), p, 0), p
        )
        assert type(gc.norm(x, p)) is float
    assert gc.norm(np.array([3, 4], dtype)) == 5.0


def test_the_smallest_int64_has_a_magnitude():
    x = np.array([-(2**63)] * 4)
    assert gc.norm(x[:1]) == gc.norm(x, math.inf) == gc.norm(x[:1], 1) == 2.0**63
    assert gc.norm(x) == 2.0**64
    assert gc.norm(x, 1) == gc.global_norm([x], ord=1) == 2.0**65
    assert gc.norm(x.reshape(2, 2), 1, axis=0).tolist() == [2.0**64] * 2


def test_the_largest_uint64_is_no_float64():
    x = np.array([2**64 - 1, 0, 2**64 - 2**11 - 1], np.uint64)
    assert gc.norm(x, math.inf) == gc.global_norm([x[:1]], ord=math.inf) == 2.0**64
    assert relative_error(gc.norm(x, 1), exact_norm(x, 1)) < 1e-15
    assert gc.norm(x, math.inf, axis=0) == 2.0**64


def test_integers_beyond_2_to_the_53_are_not_cut_short():
    """2**53 + 1 is not a float64; the sum of many shows whether each was counted as 2**53."""
    n = 100_000
    for value in (2**53 + 1, 2**60 + 127, 2**63 - 1):
        x = np.full(n, value)
        assert relative_error(gc.norm(x, 1), oracle.mp.mpf(value) * n) < 1e-14
        assert relative_error(gc.norm(x), oracle.mp.mpf(value) * oracle.mp.sqrt(n)) < 1e-14


@pytest.mark.parametrize("n", [0, 1, 2, 31, 64, 1000, 4099])
def test_norms_of_bools_count(n):
    x = np.arange(n) % 3 == 1
    count = int(x.sum())
    assert gc.norm(x, 1) == gc.global_norm([x], ord=1) == count
    assert gc.norm(x) == pytest.approx(math.sqrt(count), rel=1e-15)
    assert gc.norm(x, math.inf) == min(count, 1)
    assert_norm(gc.norm(x, 0.5), oracle.mp.mpf(count) ** 2, 0.5)
    table = np.stack([x, ~x])
    assert gc.norm(table, 1, axis=1).tolist() == [count, n - count]
    assert gc.norm(table, 1, axis=1).dtype == F64


# ---- one rounding


@pytest.mark.sampled
@dtypes
@pytest.mark.parametrize("n", [1, 3, 17, 500])
def test_scaled_values_are_rounded_once(dtype, n):
    rng = np.random.default_rng(n)
    for limit in (1.0, 0.1, 1 / 3, 7e-6):
        x = cast(rng.standard_normal(n) * 10 ** rng.uniform(-3, 3, n) + 1, dtype)
        norms = gradclip_norms(x)
        exact = oracle.exact_clip(x, limit, norms)
        assert_within_ulp(gc.clip_by_norm(x, limit), exact, allowed_ulps(dtype))
        assert_within_ulp(gc.clip_by_global_norm([x], limit)[0][0], exact, allowed_ulps(dtype))
        average = oracle.exact_clip(x, limit, norms / n)
        assert_within_ulp(gc.clip_by_average_norm(x, limit), average, allowed_ulps(dtype))
        assert_within_ulp(gc.normalize(x)[0], oracle.exact_quotient(x, norms), allowed_ulps(dtype))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_every_number_of_16_bits_is_scaled_with_one_rounding(dtype):
    """All 16-bit numbers: computing in float32 would round some twice."""
    x = from_bits(np.arange(2**16), dtype)
    x = x[np.isfinite(oracle.exact_parts(x))]
    wide, size = x.astype(F64), 16 * (x.size // 16)
    norm, rows = gc.norm(wide), gc.norm(wide[:size].reshape(16, -1), axis=1, keepdims=True)

    def check(result, product):
        exponent = np.maximum(np.frexp(product)[1] - 1, oracle.finfo(dtype).minexp)
        off = np.abs(result.astype(F64) - product) / np.ldexp(1.0, exponent - oracle.finfo(dtype).nmant)
        assert off.max() <= oracle.ONE_ROUNDING
        assert np.array_equal(oracle.signs(result), np.signbit(product))

    for limit, use_norm in ((1.0, 3.0), (0.7, 0.9), (1e-3, 1.0), (1 / 3, 1e4)):
        check(gc.clip_by_global_norm([x], limit, use_norm)[0][0], wide * (limit / use_norm))
    for share in (0.3, 1 / 7, 1e-3):
        check(gc.clip_by_norm(x, norm * share), wide * ((norm * share) / norm))
        check(gc.clip_by_average_norm(x, norm / x.size * share), wide * ((norm / x.size * share) / (norm / x.size)))
        least = rows.min() * share
        check(gc.clip_by_norm(x[:size].reshape(16, -1), least, axes=1), wide[:size].reshape(16, -1) * (least / rows))
    check(gc.normalize(x)[0], wide * (1 / norm))
    check(gc.normalize(x[:size].reshape(16, -1), axis=1)[0], wide[:size].reshape(16, -1) * (1 / rows))


@dtypes
def test_a_trusted_norm_scales_each_tensor_in_its_own_dtype(dtype):
    x = cast(np.random.default_rng(3).standard_normal(300), dtype)
    for use_norm, limit in ((3.3, 0.7), (1e10, 1.0), (7, 1e-9)):
        (result,), norm = gc.clip_by_global_norm([x], limit, use_norm)
        assert norm == use_norm
        exact = oracle.exact_global_clip(x, limit, oracle.mp.mpf(use_norm))
        assert_within_ulp(result, exact, allowed_ulps(dtype))
