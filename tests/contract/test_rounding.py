"""Bounds and sums are rounded to their dtype once, also where NumPy and ml_dtypes would round twice."""

from bisect import bisect_left
from fractions import Fraction
from itertools import pairwise

import gradclip as gc
import ml_dtypes
import numpy as np
import pytest
from gradclip._rounding import rounded
from hypothesis import given
from hypothesis import strategies as st
from oracle import same_bits

HALVES = [np.float16, ml_dtypes.bfloat16]


def _all_values(dtype):
    """Every finite number that is not negative, in order: their bits count upwards."""
    infinity = int(np.array(np.inf, dtype).view(np.uint16))
    return [Fraction(float(x)) for x in np.arange(infinity, dtype=np.uint16).view(dtype)]


VALUES = {dtype: _all_values(dtype) for dtype in HALVES}


def nearest(x, dtype):
    """The nearest 16-bit number, ties to even, inf from half a step beyond the largest."""
    values = VALUES[dtype]
    size = abs(Fraction(x))
    above = bisect_left(values, size)
    if above == len(values):
        bits = above - 1 if size - values[-1] < (values[-1] - values[-2]) / 2 else above
    elif above == 0 or values[above] == size:
        bits = above
    else:
        low, high = size - values[above - 1], values[above] - size
        bits = above - (low < high or (low == high and above % 2))
    number = np.array(bits, np.uint16).view(dtype)[()]
    return -number if x < 0 else number


@pytest.mark.parametrize("dtype", HALVES)
def test_the_oracle_agrees_with_numpy_where_that_rounds_once(dtype):
    for x in np.random.default_rng(0).standard_normal(500).astype(np.float32).tolist():
        assert nearest(x, dtype) == np.float32(x).astype(dtype)


def _near_ties(dtype, scale):
    """Points half way between two neighbours, and the float64 beside them."""
    values = VALUES[dtype]
    for i in range(1, len(values) - 1, 61):
        tie = float((values[i] + values[i + 1]) / 2) * scale
        yield from (tie, np.nextafter(tie, np.inf), np.nextafter(tie, -np.inf))


@pytest.mark.parametrize("dtype", HALVES)
def test_float64_bounds_near_ties(dtype):
    bounds = np.array([*_near_ties(dtype, 1.0), *_near_ties(dtype, -1.0)])
    expected = np.array([nearest(x, dtype) for x in bounds.tolist()], dtype)
    assert same_bits(rounded(bounds, np.dtype(dtype)), expected)
    # As an array of bounds, and one by one as numbers: the same rounding by another way.
    t = np.full(bounds.shape, np.inf, dtype)
    assert same_bits(gc.clip_by_value(t, None, bounds), expected)
    one_by_one = [gc.clip_by_value(t[:1], None, x)[0] for x in bounds[:300].tolist()]
    assert same_bits(np.array(one_by_one, dtype), expected[:300])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("unit", [2.0**-200, 2.0**200])
def test_numbers_beyond_the_range(dtype, unit):
    x = np.array([1.0, -1.0]) * unit
    expected = np.array([0.0, -0.0] if unit < 1 else [np.inf, -np.inf], dtype)
    assert same_bits(rounded(x, np.dtype(dtype)), expected)


@given(st.lists(st.integers(-(2**140), 2**140), min_size=1, max_size=8), st.integers(0, 150))
def test_lists_of_integers_of_any_size(numbers, shift):
    numbers = [n >> shift for n in numbers]
    for dtype in HALVES:
        t = np.full(len(numbers), -np.inf, dtype)
        assert same_bits(gc.clip_by_value(t, numbers, None), np.array([nearest(n, dtype) for n in numbers], dtype))
    found = gc.clip_by_value(np.full(len(numbers), -np.inf), numbers, None)
    assert found.tolist() == [float(n) for n in numbers]
    found = gc.clip_by_value(np.full(len(numbers), -np.inf, np.float32), numbers, None)
    for n, x in zip(numbers, found, strict=True):
        if abs(n) < 2**128 - 2**103:  # half a step beyond the largest
            step = Fraction(float(np.spacing(abs(x))))
            assert 2 * abs(Fraction(float(x)) - n) <= step
            assert 2 * abs(Fraction(float(x)) - n) < step or x.view(np.uint32) % 2 == 0
        else:
            assert x == np.copysign(np.inf, n)


def test_lists_of_integers_beside_ties_that_float64_cannot_tell_from_them():
    values = VALUES[ml_dtypes.bfloat16]
    ties = [int((value + after) / 2) for value, after in pairwise(values) if value > 2**64][::7]
    numbers = [3, *(sign * (tie + step) for tie in ties for step in (-1, 0, 1) for sign in (1, -1))]
    assert len(numbers) > 1000
    found = gc.clip_by_value(np.full(len(numbers), -np.inf, ml_dtypes.bfloat16), numbers, None)
    assert same_bits(found, np.array([nearest(n, ml_dtypes.bfloat16) for n in numbers]))
    assert gc.clip_by_value(np.full(len(numbers), -np.inf), numbers, None).tolist() == [float(n) for n in numbers]


@given(st.lists(st.integers(-(2**66), 2**66), min_size=1, max_size=8))
def test_integers_as_bounds_of_integers_saturate(numbers):
    for dtype in (np.uint64, np.int64, np.int8):
        info = np.iinfo(dtype)
        t = np.full(len(numbers), info.min, dtype)
        expected = [min(max(n, info.min), info.max) for n in numbers]
        assert gc.clip_by_value(t, numbers, None).tolist() == expected


def test_a_list_that_numpy_would_make_floats_of():
    t = np.array([0, 2**64 - 1], np.uint64)
    assert gc.clip_by_value(t, [-1, 2**63], [2**64, 2**63 + 1]).tolist() == [0, 2**63 + 1]
    for wrong in ([-1, 2.0**63], [2**64, None], [2**64, True]):
        with pytest.raises(TypeError, match="clip_value_min"):
            gc.clip_by_value(t, wrong, None)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("own", [np.int32, np.int64, np.uint64])
def test_integer_arrays_near_ties(dtype, own):
    info = np.iinfo(own)
    ties = [
        (tie + step) * sign
        for value, after in zip(VALUES[dtype], VALUES[dtype][1:], strict=False)
        if after <= info.max and ((value + after) / 2).denominator == 1 and after > 4
        for tie in [int((value + after) / 2)]
        for step in (-1, 0, 1)
        for sign in ((1, -1) if info.min else (1,))
    ]
    assert len(ties) > 100
    expected = np.array([nearest(n, dtype) for n in ties], dtype)
    assert same_bits(rounded(np.array(ties, own), np.dtype(dtype)), expected)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant <= np.finfo(np.float64).nmant, reason="longdouble is float64 here")
@pytest.mark.parametrize("dtype", [*HALVES, np.float32])
def test_longdouble_bounds_are_rounded_once(dtype):
    one_more = np.longdouble(1) + np.finfo(dtype).eps / 2 if dtype != ml_dtypes.bfloat16 else np.longdouble(1) + 2**-8
    bound = one_more + np.longdouble(2) ** -60
    expected = dtype(1) + dtype(float(one_more - 1) * 2)
    for given_bound in (bound, np.array(bound), np.array([bound])):
        assert gc.clip_by_value(np.array([2.0], dtype), None, given_bound)[0] == expected
