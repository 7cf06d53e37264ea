"""The arithmetic of the CUDA kernels, run on the CPU: the same bits as the rest of gradclip, NaNs included."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import Any

import cuda_shim
import gradclip as gc
import numpy as np
import pytest
from cuda_numbers import COMPLEX, DTYPES, FLOATS, FORMATS, INTEGERS, KERNELS, NAMES, kernel_source

pytestmark = pytest.mark.skipif(not cuda_shim.has_compiler(), reason="no C++ compiler")


@functools.cache
def device() -> cuda_shim.ShimDevice:
    return cuda_shim.ShimDevice(kernel_source(), KERNELS)


def word(x: float | np.ndarray) -> int:
    if isinstance(x, np.ndarray):
        assert x.flags.c_contiguous
        return x.ctypes.data
    return x if isinstance(x, int) else int(np.float64(x).view(np.int64))


def run(kernel: str, *words: float | np.ndarray, grid: int = 3, block: int = 64) -> None:
    params = np.zeros(cuda_shim.PARAMS, np.int64)
    params[: len(words)] = [word(x) for x in words]
    device().launch(device().function(kernel), grid, block, params)


def bits(x: np.ndarray) -> np.ndarray:
    """As integers."""
    return x.view(f"u{x.dtype.itemsize}")


def from_bits(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    return np.asarray(values).astype(f"u{dtype.itemsize}").view(dtype)


def equal(x: np.ndarray, y: np.ndarray) -> None:
    assert x.dtype == y.dtype
    x, y = x.ravel(), y.ravel()
    wrong = np.flatnonzero(bits(x) != bits(y))
    assert not wrong.size, (len(wrong), wrong[0], [(a[wrong[0]], hex(bits(a)[wrong[0]])) for a in (x, y)])


def equal_numbers(x: np.ndarray, y: np.ndarray) -> None:
    """The same bits, but for those of a NaN."""
    equal(np.where(np.isnan(x), np.nan, x), np.where(np.isnan(y), np.nan, y))


def infinity(dtype: np.dtype[Any]) -> int:
    digits, bias = FORMATS[dtype]
    return (2 * bias + 1) << digits


def nan(dtype: np.dtype[Any]) -> int:
    return infinity(dtype) | 1 << (FORMATS[dtype][0] - 1)


def some_integers(width: int, count: int, rng: np.random.Generator) -> np.ndarray:
    values = rng.integers(0, 2**width - 1, count, dtype=np.uint64, endpoint=True)
    values[: count // 2] >>= rng.integers(0, width, count // 2).astype(np.uint64)
    top = 2 ** (width - 1)
    ends = [0, 1, 2, 3, 2 * top - 1, 2 * top - 2, top, top - 1, top + 1]
    for k in range(53, width):  # halves of what narrower dtypes hold, and what is beside them
        ends += [2**k + (1 << (k - digits)) + beside for digits in (53, 24, 11, 8) for beside in (-1, 0, 1)]
    values[: len(ends)] = ends
    return values


def some_floats(dtype: np.dtype[Any], count: int, rng: np.random.Generator) -> np.ndarray:
    width, (digits, bias) = 8 * dtype.itemsize, FORMATS[dtype]
    values = rng.integers(0, 2**width - 1, count, dtype=np.uint64, endpoint=True)
    sign = rng.integers(0, 2, count).astype(np.uint64) << np.uint64(width - 1)
    shift = rng.integers(0, digits, count).astype(np.uint64)
    top = np.uint64(infinity(dtype))
    payloads, bits_of_payloads, subnormals = (slice(k * count // 5, (k + 1) * count // 5) for k in range(3))
    values[payloads] = (values % 2**digits >> shift | top | sign)[payloads]
    values[bits_of_payloads] = (np.uint64(1) << shift | top | sign)[bits_of_payloads]
    values[subnormals] = (values % 2**digits | sign)[subnormals]
    ends = [0, 1, 2, 1 << digits, (1 << digits) - 1, infinity(dtype), infinity(dtype) - 1, bias << digits]
    ends += [x | 1 << (width - 1) for x in ends]
    values[-len(ends) :] = ends
    return values


def samples(dtype: np.dtype[Any], count: int = 20_000) -> np.ndarray:
    """Any bits, numbers of any size, NaNs with all kinds of payloads, ends of ranges."""
    rng = np.random.default_rng(DTYPES.index(dtype))
    if dtype.kind == "c":
        part = FLOATS[2 if dtype.itemsize == 8 else 3]
        re, im = samples(part, count), samples(part, count)[rng.permutation(count)]
        return np.stack([re, im], 1).view(dtype).ravel()
    if dtype.kind == "b":
        return np.arange(count) % 3 == 0
    if dtype.itemsize == 2 and count >= 2**16:
        return from_bits(np.arange(2**16), dtype)
    if dtype in INTEGERS:
        return from_bits(some_integers(8 * dtype.itemsize, count, rng), dtype)
    return from_bits(some_floats(dtype, count, rng), dtype)


def widened(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_number_widens_exactly(dtype: np.dtype[Any]) -> None:
    x = samples(dtype, 2**16)
    found = np.empty(len(x))
    run(f"test_widen<{NAMES[dtype]}>", x, found, len(x))
    equal_numbers(found, widened(x))
    assert (np.signbit(found) == np.signbit(x)).all()


def nearest(x: float, dtype: np.dtype[Any]) -> float:
    """By the definition, with rationals."""
    digits, bias = FORMATS[dtype]
    if math.isinf(x) or x == 0:
        return x
    exponent = max(math.frexp(x)[1] - 1, 1 - bias) - digits
    value = round(Fraction(x) / Fraction(2) ** exponent) * Fraction(2) ** exponent
    return math.copysign(math.inf if abs(value) >= Fraction(2) ** (bias + 1) else float(value), x)


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_numbers_narrow_to_the_nearest(dtype: np.dtype[Any]) -> None:
    all_of_it = samples(dtype, 2**16)
    low = np.abs(widened(all_of_it))
    low = np.unique(low[np.isfinite(low)])
    high = np.abs(widened(from_bits(bits(low.astype(dtype)) + np.uint64(1), dtype)))
    high[np.isinf(high)] = 2.0 ** (FORMATS[dtype][1] + 1)
    middle = low + (high - low) / 2
    x = np.concatenate([low, middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), samples(FLOATS[3])])
    x = np.concatenate([x, -x])
    found = np.empty(len(x), dtype)
    run(f"test_narrow<{NAMES[dtype]}>", x, found, len(x))
    is_nan = np.isnan(x)
    assert (bits(found)[is_nan] == nan(dtype)).all()
    size = 3000
    some = np.random.default_rng(1).permutation(np.flatnonzero(~is_nan))
    some = np.concatenate([some[:size], [len(x) - 1, len(x) // 2 - 1]])
    equal(widened(found[some]), np.array([nearest(float(v), dtype) for v in x[some]]))
    # and all of them as the CPU has it, which makes float64 of them by clipping: a number of the other dtype
    even = np.where(bits(low.astype(dtype)) % 2 == 0, low, np.minimum(high, np.inf))
    even[even >= 2.0 ** (FORMATS[dtype][1] + 1)] = np.inf
    equal(widened(found[len(low) : 2 * len(low)]), even)
    equal(widened(found[: len(low)]), low)
    equal(widened(found[2 * len(low) : 3 * len(low)]), low)


def test_float64_narrows_to_itself() -> None:
    x = samples(FLOATS[3])
    found = np.empty_like(x)
    run("test_narrow<double>", x, found, len(x))
    equal(found, np.where(np.isnan(x), np.nan, x))


@pytest.mark.parametrize("by", [0.5, 2.0**-30, 1e-5, 0.3, 2.0**-1021])
@pytest.mark.parametrize("count", [2**16, 50], ids=["many", "few"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scaled_is_what_the_cpu_makes(dtype: np.dtype[Any], count: int, by: float) -> None:
    x = samples(dtype, 2**16)[::-1][:count].copy()
    norm, limit = 1.0, by
    ((expected,), _) = gc.clip_by_global_norm([x], limit, use_norm=norm)
    found = np.empty_like(x)
    run(f"test_scaled<{NAMES[dtype]}>", x, found, len(x), by, 1.0)
    equal(found, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scaled_by_zero_and_nan(dtype: np.dtype[Any]) -> None:
    x = samples(dtype, 2**16)
    for norm, limit, by in [(2.0, 0.0, 0.0), (math.inf, 1.0, math.nan), (math.nan, 1.0, math.nan)]:
        ((expected,), _) = gc.clip_by_global_norm([x], limit, use_norm=norm)
        found = np.empty_like(x)
        run(f"test_scaled<{NAMES[dtype]}>", x, found, len(x), by, 1.0)
        equal(found, expected)


def test_scaled_in_two_steps() -> None:
    x = np.array([1.5, -3.0, 2.0**1000, 5e-324, math.inf, -0.0])
    found = np.empty_like(x)
    run("test_scaled<double>", x, found, len(x), 2.0**-1021 * 1.25, 2.0**-60)
    equal(found, np.array([0.0, -0.0, 1.25 * 2.0**-81, 0.0, math.inf, -0.0]))
    run("test_scaled<double>", x, found, len(x), 1.25 * 2.0**1000, 2.0**60)
    equal(found, np.array([math.inf, -math.inf, math.inf, 1.25 * 2.0**-14, math.inf, -0.0]))


@pytest.mark.parametrize("limit", [0.0, 1e-6, 0.1, 1.0, 1e5, math.inf])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_clipped_magnitude_is_what_the_cpu_makes(dtype: np.dtype[Any], limit: float) -> None:
    x = samples(dtype, 2**16)
    expected = gc.clip_by_norm(x, limit, axes=[])
    found, changes = np.empty_like(x), np.empty(len(x), np.uint8)
    run(f"test_clipped_magnitude<{NAMES[dtype]}>", x, found, len(x), limit, changes)
    equal(found, expected)
    with np.errstate(invalid="ignore"):
        assert (changes == ~((np.abs(widened(x)) <= limit) | np.isinf(limit))).all()


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_clipped_is_what_the_cpu_makes(dtype: np.dtype[Any]) -> None:
    x = samples(dtype)
    rng = np.random.default_rng(5)
    for _ in range(4):
        lo, hi = x[rng.permutation(len(x))], x[rng.permutation(len(x))]
        lo[:100], hi[50:150] = x[:100], x[50:150]
        found, changes = np.empty_like(x), np.empty(len(x), np.uint8)
        run(f"test_clipped<{NAMES[dtype]}>", x, found, len(x), lo, hi, changes)
        equal(found, gc.clip_by_value(x, lo, hi))
        changed = bits(found) != bits(x)
        assert (changes.astype(bool) | ~changed).all()
        # Between bounds that cross, a number may be the lower one already; and so may a NaN.
        with np.errstate(invalid="ignore"):
            may_stay = ~(lo <= hi)
        assert (changed | ~changes.astype(bool) | may_stay).all()


@pytest.mark.sampled
@pytest.mark.parametrize(("source", "target"), [
    (a, b) for a, b in itertools.product(FLOATS + INTEGERS, repeat=2) if a in INTEGERS or b in FLOATS
], ids=str)  # fmt: skip
def test_bounds_of_another_dtype_are_rounded_as_on_the_cpu(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    x = samples(source, 2**16)
    tensor = np.full(len(x), -np.inf if target in FLOATS else np.iinfo(target).min, target)
    for is_number in (0, 1):
        found = np.empty(len(x), target)
        run("test_convert", x, found, len(x), DTYPES.index(source), DTYPES.index(target), is_number)
        if is_number:
            picks = np.r_[:40, len(x) // 5 : len(x) // 5 + 40, len(x) - 40 : len(x)]
            bounds = (x[i : i + 1].reshape(()) for i in picks)  # a scalar would have lost its NaN's bits
            equal(found[picks], np.concatenate([gc.clip_by_value(tensor[:1], bound, None) for bound in bounds]))
        else:
            equal(found, gc.clip_by_value(tensor, x, None))


def parts(x: np.ndarray) -> np.ndarray:
    return widened(x.view(f"f{x.dtype.itemsize // 2}")).reshape(-1, 2)


def exactly(value: float, exponent: float) -> Fraction:
    return Fraction(value) * Fraction(2) ** int(exponent)


def nearest_float64(x: Fraction) -> float:
    try:
        return x.numerator / x.denominator
    except OverflowError:
        return math.inf


def elements(x: np.ndarray, by: float = 1.0) -> np.ndarray:
    """The results of the kernel test_element, a row each."""
    found = np.empty((len(x), 7))
    run("test_element", x, found, len(x), DTYPES.index(x.dtype), by)
    return np.ascontiguousarray(found.T)


@pytest.mark.parametrize("by", [1.0, 2.0**-600, 2.0**600])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_moduli_and_squares_of_elements(dtype: np.dtype[Any], by: float) -> None:
    x = samples(dtype, 2000)
    modulus, square, *_ = elements(x, by)
    if dtype in COMPLEX:
        re, im = parts(x).T * by
        equal_numbers(square, re * re + im * im)
        if dtype == COMPLEX[0]:
            equal_numbers(modulus, np.sqrt(square))
        return
    sizes = np.abs(widened(x)) if dtype in FLOATS else np.array([float(abs(int(v))) for v in x])
    equal_numbers(modulus, sizes * by)
    equal_numbers(square, modulus * modulus)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_largest_moduli_are_those_of_the_cpu(dtype: np.dtype[Any]) -> None:
    x = samples(dtype, 2000)
    *_, key = elements(x)
    expected = gc.norm(x.reshape(-1, 1), ord=np.inf, axis=1)
    with np.errstate(over="ignore"):
        equal(key.astype(expected.dtype), expected)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_limbs_hold_integers_exactly(dtype: np.dtype[Any]) -> None:
    x = samples(dtype, 2000)
    upper, lower = elements(x)[2:4]
    assert [int(a) + int(b) for a, b in zip(upper, lower, strict=True)] == [abs(int(v)) for v in x]
    if dtype.itemsize == 8:
        assert all(int(a) % 2**32 == 0 for a in upper)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lifted_moduli(dtype: np.dtype[Any]) -> None:
    x = samples(dtype, 2000)
    modulus, _, _, _, value, exponent, _ = elements(x)
    if dtype != COMPLEX[1]:
        equal_numbers(value, modulus)
        assert not exponent.any()
        return
    assert {-600, 0, 600} == set(exponent)
    for (re, im), size, digits, power in zip(parts(x), modulus, value, exponent, strict=True):
        if math.isfinite(re) and math.isfinite(im):
            exact = Fraction(re) ** 2 + Fraction(im) ** 2
            own = exactly(digits, power)
            assert abs(own**2 - exact) <= exact * Fraction(1, 2**50)
            assert size == nearest_float64(own)
        elif math.isnan(re) or math.isnan(im):
            assert math.isnan(digits)
        else:
            assert digits == size == math.inf


def test_facts_of_dtypes() -> None:
    found = np.empty((len(DTYPES), 2), np.int64)
    run("test_dtypes", 0, found, len(DTYPES))
    for dtype, (limbs, is_wide) in zip(DTYPES, found, strict=True):
        assert limbs == (2 if dtype in INTEGERS and dtype.itemsize == 8 else 1)
        assert is_wide == (dtype in (FLOATS[3], COMPLEX[1]))  # float64 and complex128


SPECIAL = [0.0, math.inf, math.nan, 5e-324, 2.0**-1022, 1.0, 1.7e308]


def drawn_norms(count: int) -> np.ndarray:
    """Numbers as the kernel test_norm takes them: two norms in two parts each, a limit, a count."""
    rng = np.random.default_rng(3)
    values = np.abs(rng.standard_normal((count, 3))) * 2.0 ** rng.integers(-1070, 1020, (count, 3))
    for column in range(3):
        values[rng.integers(0, count, count // 4), column] = rng.choice(SPECIAL, count // 4)
    exponents = rng.integers(-3000, 3000, (count, 2)) * rng.integers(0, 2, (count, 2))
    (a, b, limit), (a_exponent, b_exponent) = values.T, exponents.T
    return np.stack([a, a_exponent, b, b_exponent, limit, rng.integers(1, 2**40, count)], 1, dtype=np.float64)


NORMS = drawn_norms(4000)


def norms() -> np.ndarray:
    found = np.empty((len(NORMS), 14))
    run("test_norm", NORMS, found, len(NORMS))
    return found


def test_norms_beyond_float64_are_exact() -> None:
    for (a, a_exponent, *_), (value, exponent, rounded, digits, own, *_) in zip(NORMS, norms(), strict=True):
        if not math.isfinite(a):
            equal(np.array([value, exponent, rounded, digits, own]), np.array([a, 0.0, a, a, 0.0]))
            continue
        exact = exactly(a, a_exponent)
        assert exactly(value, exponent) == exact == exactly(digits, own)
        assert exponent == 0 or not Fraction(2) ** -1022 <= exact < Fraction(2) ** 1024
        assert digits == 0 or 1 <= digits < 2
        assert rounded == nearest_float64(exact)


def test_norms_beyond_float64_have_means_and_an_order() -> None:
    for (a, a_exponent, b, b_exponent, _, count), row in zip(NORMS, norms(), strict=True):
        mean, mean_exponent, most, most_exponent = row[5:9]
        if math.isfinite(a):
            quotient = exactly(a, a_exponent) / int(count)
            assert abs(exactly(mean, mean_exponent) - quotient) <= quotient * Fraction(1, 2**53)
        else:
            equal(np.array([mean, mean_exponent]), np.array([a, 0.0]))
        if math.isfinite(a) and math.isfinite(b):
            assert exactly(most, most_exponent) == max(exactly(a, a_exponent), exactly(b, b_exponent))
        else:
            equal(np.array([most, most_exponent]), np.array([np.maximum(a, b), 0.0]))


def test_factors_of_norms_beyond_float64() -> None:
    ordinary = far = 0
    for (a, a_exponent, _, _, limit, _), row in zip(NORMS, norms(), strict=True):
        by, then = row[9:11]
        if math.isnan(a) or math.isnan(limit) or (a == limit == math.inf):
            assert math.isnan(by)
        elif limit == math.inf or a == 0:
            assert (by, then) == (1.0, 1.0)
        elif limit == 0 or a == math.inf:
            assert by == 0
        else:
            factor = Fraction(limit) / exactly(a, a_exponent)
            if Fraction(2) ** -2090 < factor < Fraction(2) ** 2000:
                ordinary += 1
                far += then != 1
                assert abs(Fraction(by) * Fraction(then) - factor) <= factor * Fraction(1, 2**52)
                assert math.frexp(then)[0] == 0.5  # a power of two
    assert ordinary > len(NORMS) // 4
    assert far > len(NORMS) // 20


def test_clipping_leaves_what_is_within_the_limit() -> None:
    clipped = 0
    for (a, _, _, _, limit, _), row in zip(NORMS, norms(), strict=True):
        rounded, factor, clip, clips = row[2], row[9:11], row[11:13], row[13]
        if math.isinf(limit) or (rounded <= limit and (limit > 0 or a == 0)):
            assert not clips
            assert list(clip) == [1.0, 1.0]
        else:
            assert clips
            clipped += 1
            equal(clip, factor)
    assert len(NORMS) // 4 < clipped < 3 * len(NORMS) // 4


def test_total_loses_nothing() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        x = rng.standard_normal(1001) ** 2 * 2.0 ** rng.integers(-30, 30, 1001)
        found = np.empty(1)
        run("test_total", x, found, len(x), grid=1, block=1)
        assert found[0] == math.fsum(x)
    for special, expected in [(math.inf, math.inf), (math.nan, math.nan)]:
        run("test_total", np.array([1.0, special, 2.0]), found, 3, grid=1, block=1)
        equal_numbers(found, np.array([expected]))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", [0.5, 1.5, 3.0, 4.0, 0.02, 0.1, 0.7, 2.5, 3.5, 7.25, 100.0, 1e6])
def test_p_norms_are_those_of_the_cpu(dtype: np.dtype[Any], order: float) -> None:
    rng = np.random.default_rng(6)
    pool = samples(dtype, 2000)
    with np.errstate(invalid="ignore"):
        pool = pool[np.isfinite(pool)] if dtype.kind != "b" else pool
    middling = np.array(rng.integers(0, 100, 2000), dtype) if dtype.kind != "b" else pool
    for i in range(40):
        source = pool if i % 2 else middling
        x = source[rng.integers(0, len(source), rng.integers(1, 32))]
        if not x.any():
            continue
        expected = gc.norm(x, ord=order)
        simple, by_peak = np.empty(1), np.empty(1)
        for kind, out in ((1, simple), (0, by_peak)):
            run("test_power", x, out, len(x), DTYPES.index(dtype), order, kind, grid=1, block=1)
        results = [simple[0], by_peak[0]]
        # A simple power whose sum leaves the range is done by way of the peak.
        assert expected in results, (expected, results, x)
        if source is middling:
            assert results[0] == expected
