"""clip_by_value: the bounds it takes, and exact comparison."""

import array
import math

import gradclip as gc
import ml_dtypes
import numpy as np
import oracle
import pytest
from calls import cast, looped
from oracle import (
    BF16,
    FLOATS,
    INTEGERS,
    ORDERED,
    expected_clip_by_value,
    is_nan,
    numbers,
    rounded,
    same_bits,
    same_values,
)

floats = pytest.mark.parametrize("dtype", FLOATS)
integers = pytest.mark.parametrize("dtype", INTEGERS)
LENGTHS = [0, 1, 3, 15, 16, 17, 31, 33, 63, 65, 127, 129, 4099]


def corners(dtype):
    """The ends of the range, their neighbours, and the values around 0."""
    info = np.iinfo(dtype)
    near = [info.min, info.min + 1, info.max - 1, info.max, *(v for v in range(-3, 4) if v >= info.min)]
    return np.array(near * 7, dtype=dtype)


@integers
def test_every_integer_dtype_is_clipped_exactly(dtype):
    x, info = corners(dtype), np.iinfo(dtype)
    limits = [info.min, info.min + 1, 0, 1, 2, info.max // 2, info.max - 1, info.max]
    for low in limits:
        for high in limits:
            assert same_bits(gc.clip_by_value(x, low, high), expected_clip_by_value(x, low, high)), (
                low,
                high,
            )


def test_the_error_for_floats_as_bounds_of_integers_names_them():
    class Holder:
        def __array__(self, dtype=None, copy=None):
            return np.ones(3)

    for bound, found in (
        (0.5, "float 0.5"),
        ([0.5, 1.0, 2.0], "dtype float64"),
        (Holder(), "dtype float64"),
        (memoryview(np.ones(3, np.float32)), "dtype float32"),
        (np.float32(0.5), "float32"),
    ):
        with pytest.raises(TypeError, match=rf"clip_value_min: found .*{found}.*; allowed: None, an int or an array"):
            gc.clip_by_value(np.arange(3), bound, 2)


@integers
def test_integer_bounds_outside_the_range_saturate(dtype):
    x, info = corners(dtype), np.iinfo(dtype)
    for far in (info.min - 1, info.max + 1, -(2**63), 2**63, -(2**64), 2**64, -(10**30), 10**30):
        assert same_bits(gc.clip_by_value(x, None, far), expected_clip_by_value(x, None, far)), far
        assert same_bits(gc.clip_by_value(x, far, None), expected_clip_by_value(x, far, None)), far
    assert same_bits(gc.clip_by_value(x, -(10**400), 10**400), x)


@pytest.mark.parametrize("dtype", ORDERED)
def test_entries_of_a_list_are_bounds_of_columns(dtype):
    x = cast(np.arange(-12, 12).reshape(4, 6) * 11, dtype)
    lists = [[-3, 0, 2, 5, 300, -(2**31)], (2**31 - 1, 1, -1, 100, 70_000, -200), [2**40, 1, 2, 3, 4, 5], [2**70] * 6]
    if dtype in FLOATS:
        lists += [[0.1, -0.1, 1e39, -math.inf, 1e-50, 65519.99], [1 / 3, 1, -7, 2.5, 3, math.nan], [1e5, 2**53 + 1] * 3]
    for entries in lists:
        for low, high in ((entries, None), (None, entries), (entries, entries)):
            found = gc.clip_by_value(x, low, high)
            for j, number in enumerate(entries):
                column = gc.clip_by_value(x[:, j], number if low else None, number if high else None)
                assert same_bits(found[:, j], column), (entries, number)


def test_a_list_of_bounds_may_mix_floats_and_large_integers():
    for dtype in (np.float32, np.float64, ml_dtypes.bfloat16):
        lo = [0.5, 2**64, -(10**400), np.float32(0.25)]
        found = gc.clip_by_value(np.zeros(4, dtype), lo, None)
        assert same_bits(found, np.array([0.5, 2.0**64, 0, 0.25]).astype(dtype))
    with pytest.raises(TypeError, match="clip_value_min: found"):
        gc.clip_by_value(np.zeros(2, np.int64), [0.5, 2**64], None)


@pytest.mark.parametrize("dtype", ORDERED)
@pytest.mark.parametrize("sequence", [tuple, list, lambda numbers: array.array("b", numbers)])
def test_bounds_may_be_what_numpy_makes_arrays_of(dtype, sequence):
    """A colour for each pixel's channels, for example."""
    x = (np.arange(24).reshape(2, 4, 3) * 5).astype(dtype)
    lo, hi = sequence([10, 20, 30]), sequence([90, 80, 70])
    expected = np.clip(x.astype(np.float64), lo, hi).astype(dtype)
    assert same_bits(gc.clip_by_value(x, lo, hi), expected)
    assert same_bits(gc.clip_by_value(x, lo, None), np.maximum(x.astype(np.float64), lo).astype(dtype))
    assert same_bits(gc.clip_by_value(x, np.array(lo).astype(dtype), hi, out=x), expected)
    with pytest.raises(ValueError, match="clip_value_max: found"):
        gc.clip_by_value(x, 0, sequence([1, 2]))


@integers
@pytest.mark.parametrize("bound_dtype", INTEGERS)
def test_array_bounds_of_any_integer_dtype_compare_exactly(dtype, bound_dtype):
    x = corners(dtype)
    bound = corners(bound_dtype)[: x.size]
    x = x[: bound.size]
    for shift in range(7):
        turned = np.roll(bound, shift)
        assert same_bits(gc.clip_by_value(x, turned, None), expected_clip_by_value(x, turned, None))
        assert same_bits(gc.clip_by_value(x, None, turned), expected_clip_by_value(x, None, turned))
        assert same_bits(gc.clip_by_value(x, turned[0], turned[1]), expected_clip_by_value(x, turned[0], turned[1]))


@pytest.mark.parametrize("name", ["int4", "uint4", "float8_e4m3fn", "float8_e5m2"])
def test_small_numbers_of_ml_dtypes_are_bounds(name):
    """As scalars, 0-d arrays and arrays; those with a fraction for floats alone."""
    kind = getattr(ml_dtypes, name)
    for dtype in ORDERED:
        x = np.array([0, 2, 9, 3]).astype(dtype)
        for bound in (kind(3), np.array(3, kind), np.full(4, 3, kind)):
            if name.startswith("float") and not oracle.is_float(dtype):
                with pytest.raises(TypeError, match=f"^clip_by_value: clip_value_max: .*{name}"):
                    gc.clip_by_value(x, None, bound)
            else:
                assert same_bits(gc.clip_by_value(x, None, bound), np.array([0, 2, 3, 3]).astype(dtype))


def test_uint8_with_minus_one_and_300_clips_nothing():
    x = np.arange(256, dtype=np.uint8)
    assert same_bits(gc.clip_by_value(x, -1, 300), x)
    assert same_bits(gc.clip_by_value(x, np.array(-1), np.full(256, 300)), x)


def test_int64_beyond_2_to_the_53_is_exact():
    x = np.array([2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1], dtype=np.int64)
    assert gc.clip_by_value(x, 2**53 + 1, 2**63 - 2).tolist() == [2**53 + 1, 2**53 + 1, 2**53 + 2, 2**63 - 2]
    u = np.array([2**64 - 1, 2**63, 2**63 + 1], dtype=np.uint64)
    assert gc.clip_by_value(u, 2**63 + 1, 2**64 - 2).tolist() == [2**64 - 2, 2**63 + 1, 2**63 + 1]


@pytest.mark.sampled
@floats
@pytest.mark.parametrize("n", LENGTHS)
def test_floats_of_every_length(dtype, n):
    x = (np.random.default_rng(n).standard_normal(n) * 2).astype(dtype)
    x[3::7], x[5::7], x[6::9] = np.nan, -np.inf, -0.0
    low, high = np.linspace(-1, 1, n), np.linspace(1.5, -0.5, n)
    for bounds in (
        (-1, 1),
        (None, 0.1),
        (0.1, None),
        (low, high),
        (low, None),
        (-0.5, high),
        (-math.inf, math.inf),
    ):
        assert same_bits(gc.clip_by_value(x, *bounds), expected_clip_by_value(x, *bounds)), bounds


@floats
def test_where_min_exceeds_max_min_wins(dtype):
    x = np.array([-5, 0, 5, np.inf, -np.inf], dtype=dtype)
    assert gc.clip_by_value(x, 3, -3).tolist() == [3] * 5
    low, high = np.array([1, -1, 9, 0, 2]), np.array([0, 1, 8, -1, 1])
    assert gc.clip_by_value(x, low, high).tolist() == [1, 0, 9, 0, 2]
    assert gc.clip_by_value(np.arange(5), 3, 1).tolist() == [3] * 5


@floats
def test_a_nan_bound_makes_its_elements_nan(dtype):
    x = np.arange(20).astype(dtype)
    for bound in (math.nan, np.float32("nan"), np.array(math.nan), BF16("nan"), np.float16("nan")):
        assert is_nan(gc.clip_by_value(x, bound, 30)).all()
        assert is_nan(gc.clip_by_value(x, 30, bound)).all()
        assert is_nan(gc.clip_by_value(x, bound, None)).all()
        assert is_nan(gc.clip_by_value(x, None, bound)).all()
    bound = np.full(20, 10.0)
    bound[4::5] = np.nan
    for result in (
        gc.clip_by_value(x, None, bound),
        gc.clip_by_value(x, -1, bound),
        gc.clip_by_value(x, bound - 100, bound),
    ):
        assert same_bits(is_nan(result), np.isnan(bound))
    assert is_nan(gc.clip_by_value(np.zeros((0,), dtype=dtype), math.nan, 1)).shape == (0,)


@floats
def test_a_value_equal_to_a_bound_keeps_its_own_bits(dtype):
    zeros = np.array([0.0, -0.0] * 17, dtype=dtype)
    for low, high in (
        (0.0, 1),
        (-0.0, 1),
        (-1, 0.0),
        (-1, -0.0),
        (0.0, -0.0),
        (-0.0, 0.0),
        (0, 0),
        (zeros[::-1], -zeros),
    ):
        assert same_bits(gc.clip_by_value(zeros, low, high), zeros), (low, high)


@floats
def test_a_clipped_value_is_the_bound_with_its_sign(dtype):
    x = np.array([-1.0, 1.0] * 17, dtype=dtype)
    assert same_bits(gc.clip_by_value(x, -0.0, None), np.array([-0.0, 1.0] * 17, dtype=dtype))
    assert same_bits(gc.clip_by_value(x, None, -0.0), np.array([-1.0, -0.0] * 17, dtype=dtype))


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32])
def test_a_float64_bound_is_rounded_to_the_narrower_dtype_first(dtype):
    x = np.array([0.1, 0.2]).astype(dtype)
    for bound in (0.1, np.float64(0.1), np.array(0.1), np.array([0.1, 0.1])):
        result = gc.clip_by_value(x, None, bound)
        assert result.dtype == dtype
        assert [float(v) for v in result] == [rounded(0.1, dtype)] * 2
        assert same_bits(gc.clip_by_value(x, bound, 1)[:1], x[:1])


@floats
def test_a_bound_is_rounded_once(dtype):
    """Just beside the midpoint of two numbers, where rounding to another precision first would round twice."""
    x = np.array([-4.0, 4.0] * 20).astype(dtype)
    half = oracle.eps(dtype) / 2
    for bound in (
        *(1 + half, 1 + half + 2.0**-50, 1 + half - 2.0**-50, 1 + 3 * half, 1 + 3 * half - 2.0**-45),
        *(1 + half + 2.0**-25, 1 + half - 2.0**-25, 1 + half + 2.0**-14, math.pi, 1 / 3),
    ):
        for same in (bound, np.float64(bound), np.array(bound), np.full(40, bound), np.full(40, bound).astype(">f8")):
            result = gc.clip_by_value(x, -bound, same)
            assert same_bits(result, numbers([-bound, bound] * 20, dtype)), (bound, type(same))
            assert same_bits(result, expected_clip_by_value(x, -bound, same))


@floats
def test_a_large_integer_bound_is_rounded_once(dtype):
    digits = oracle.finfo(dtype).nmant
    x = np.array([-np.inf, np.inf] * 9).astype(dtype)
    for exponent in (digits + 1, digits + 2, 40, 62):
        if 2.0**exponent >= oracle.largest(dtype):
            continue
        middle = 2**exponent + 2 ** (exponent - digits - 1)  # halfway to the next number
        for bound in (middle - 1, middle, middle + 1, 3 * middle // 2, 2**exponent):
            expected = numbers([-rounded(bound, dtype), rounded(bound, dtype)] * 9, dtype)
            for same in (bound, np.int64(bound), np.array(bound), np.full(18, bound), np.full(18, bound, np.uint64)):
                assert same_bits(gc.clip_by_value(x, -bound, same), expected), (bound, type(same))
    beyond = int(oracle.largest(dtype) * (1 + oracle.eps(dtype) / 2)) if dtype is not np.float64 else 10**309
    assert gc.clip_by_value(x, None, beyond)[1] == np.inf
    assert gc.clip_by_value(x, -beyond, None)[0] == -np.inf


@floats
def test_a_subnormal_bound_is_rounded_once(dtype):
    tiny = oracle.tiny(dtype)
    x = np.array([0.0, 1.0, -1.0] * 11).astype(dtype)
    for bound in (tiny, 2.5 * tiny, 3.5 * tiny, tiny / 2, 0.51 * tiny, 1e-320, 5e-324, -tiny / 2, -2.5 * tiny):
        for same in (bound, np.array(bound), np.full(33, bound)):
            assert same_bits(gc.clip_by_value(x, None, same), expected_clip_by_value(x, None, same)), bound
            assert same_bits(gc.clip_by_value(x, same, None), expected_clip_by_value(x, same, None)), bound


@floats
@pytest.mark.parametrize("bound_dtype", [*ORDERED, np.longdouble])
def test_bounds_of_every_dtype_for_floats(dtype, bound_dtype):
    x = np.linspace(-9, 9, 33).astype(dtype)
    low, high = np.full(33, 1).astype(bound_dtype), (np.arange(33) % 7).astype(bound_dtype)
    for lower, upper in ((low, high), (low[0], high[3]), (low[:1], high), (low[0, ...], None), (None, high[4, ...])):
        assert same_values(gc.clip_by_value(x, lower, upper), expected_clip_by_value(x, lower, upper))
    if oracle.is_float(bound_dtype):
        odd = np.array([math.nan, math.inf, -math.inf, -0.0, 0.0, 1.1] * 6)[:33].astype(bound_dtype)
        assert same_values(gc.clip_by_value(x, odd, None), expected_clip_by_value(x, odd, None))
        assert same_values(gc.clip_by_value(x, None, odd), expected_clip_by_value(x, None, odd))


@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_every_number_of_16_bits_compares_rightly(dtype):
    x = oracle.from_bits(np.arange(2**16), dtype)
    for low, high in ((-1.5, 2.0), (0.0, None), (None, -0.0), (1e-7, 1e30), (-math.inf, math.inf), (3, -3)):
        assert same_bits(gc.clip_by_value(x, low, high), expected_clip_by_value(x, low, high)), (low, high)
    limits = [np.roll(x, 12345), np.roll(x, 777)]
    result, expected = gc.clip_by_value(x, *limits), expected_clip_by_value(x, *limits)
    assert same_values(result, expected)
    assert same_bits(result[is_nan(x)], x[is_nan(x)])


@floats
def test_a_bound_beyond_the_range_counts_as_inf(dtype):
    x = np.array([-np.inf, -1, 0.5, np.inf], dtype=dtype)
    huge = 10**400 if dtype is np.float64 else 1e300
    assert same_bits(gc.clip_by_value(x, -huge, huge), x)
    assert gc.clip_by_value(x, huge, None).tolist() == [math.inf] * 4
    assert gc.clip_by_value(x, None, -huge).tolist() == [-math.inf] * 4


@floats
def test_a_python_integer_is_a_bound_for_floats(dtype):
    x = np.array([-3.0, 0.5, 3.0], dtype=dtype)
    assert gc.clip_by_value(x, -1, 2).tolist() == [-1, 0.5, 2]
    assert gc.clip_by_value(x, np.int8(-1), np.array([2, 2, 2], dtype=np.uint64)).tolist() == [-1, 0.5, 2]


@pytest.mark.parametrize("dtype", ORDERED)
@looped("shape", [(), (1,), (3,), (1, 1), (1, 3), (2, 1), (2, 3)])
def test_bounds_broadcast_to_t(dtype, shape):
    t = np.arange(1, 7).reshape(2, 3).astype(dtype)
    low = (np.arange(int(np.prod(shape))).reshape(shape) + 2).astype(dtype)
    for bounds in ((low, None), (None, low), (low, low + dtype(1)), (low, 5), (2, low)):
        assert same_bits(gc.clip_by_value(t, *bounds), expected_clip_by_value(t, *bounds))


def test_bounds_broadcast_over_inner_and_middle_axes():
    t = np.sin(np.arange(2 * 3 * 4 * 5)).reshape(2, 3, 4, 5)
    for shape in ((3, 1, 5), (2, 1, 4, 1), (1, 1, 1, 5), (4, 5), (3, 1, 1), (2, 1, 1, 1)):
        low = np.cos(np.arange(float(np.prod(shape)))).reshape(shape) - 0.5
        for view in (t, t.transpose(3, 1, 0, 2).copy().transpose(2, 1, 3, 0), t[:, ::-1]):
            assert same_bits(
                gc.clip_by_value(view, low, low + 0.3),
                expected_clip_by_value(np.ascontiguousarray(view), low, low + 0.3),
            )


@pytest.mark.parametrize("dtype", ["u1", "i2", "f2", "f4", "f8"])
@looped("shape", [(3, 1, 1), (1, 70, 1), (3, 70, 1)])
def test_bounds_of_long_planes(dtype, shape):
    """As images have them: each bound holds for 300 or 21,000 neighbours, more than are clipped at a time."""
    t = np.random.default_rng(5).integers(0, 100, (3, 70, 300)).astype(dtype)
    low = (np.arange(np.prod(shape)).reshape(shape) % 23).astype(dtype)
    high = low + np.asarray(50, dtype)
    for bounds in ((low, high), (low, None), (None, high), (low, 90)):
        expected = expected_clip_by_value(t, *bounds)
        assert same_bits(gc.clip_by_value(t, *bounds), expected)
        own = t.copy()
        gc.clip_by_value(own, *bounds, out=own)
        assert same_bits(own, expected)


def test_empty_tensors_take_bounds_that_broadcast():
    for t, bound in (
        ((0,), (1,)),
        ((0, 3), (3,)),
        ((7, 0), (1, 1)),
        ((7, 0), (7, 0)),
        ((2, 0, 3), (2, 1, 1)),
    ):
        assert gc.clip_by_value(np.zeros(t), np.ones(bound), np.ones(bound)).shape == t


def test_a_list_is_an_array_of_bounds():
    assert gc.clip_by_value(np.array([-1.0, 0.5, 2.0]), [0.0, 0.0, 3.0], [1.0, 1.0, 4.0]).tolist() == [
        0,
        0.5,
        3,
    ]


@pytest.mark.parametrize("dtype", [d for d in ORDERED if np.dtype(d).kind != "u"])
def test_none_is_no_bound(dtype):
    x = np.arange(-3, 3).astype(dtype)
    assert gc.clip_by_value(x, None, 1).tolist() == [-3, -2, -1, 0, 1, 1]
    assert gc.clip_by_value(x, -1, None).tolist() == [-1, -1, -1, 0, 1, 2]
    assert gc.clip_by_value(t=x, clip_value_min=-1, clip_value_max=1, name="x").tolist() == [
        -1,
        -1,
        -1,
        0,
        1,
        1,
    ]


@pytest.mark.parametrize("dtype", ORDERED)
def test_the_bounds_and_the_tensor_are_not_modified(dtype):
    x, low, high = np.arange(9).astype(dtype), np.full(9, 2, dtype=dtype), np.full(9, 5, dtype=dtype)
    result = gc.clip_by_value(x, low, high)
    assert x.tolist() == list(range(9))
    assert low.tolist() == [2] * 9
    assert high.tolist() == [5] * 9
    assert not any(np.shares_memory(result, a) for a in (x, low, high))


@floats
def test_the_byte_order_of_a_bound_keeps_the_payload_of_its_nan(dtype):
    """Also of a signaling NaN, which a conversion would make quiet."""
    one = oracle.bits(np.array([np.inf], dtype))[0] + 1
    bound = oracle.from_bits([one], dtype)
    for given in (bound, bound.astype(bound.dtype.newbyteorder("S")), bound.reshape(1, 1)[:, :1]):
        result = gc.clip_by_value(np.zeros((2, 3), dtype), given, None)
        assert (oracle.bits(result) == one).all()


@floats
def test_a_signalling_nan_as_a_single_number_warns_of_nothing(dtype):
    number = oracle.from_bits(oracle.bits(np.array(np.inf, dtype)) + 1, dtype)
    for given in (number, number.astype(number.dtype.newbyteorder("S")), number[()]):
        assert oracle.is_nan(gc.clip_by_value(np.zeros(3, dtype), given, 1)).all()
        with pytest.raises(ValueError, match="clip_norm"):
            gc.clip_by_norm(np.ones(3), given)
