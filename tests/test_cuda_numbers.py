"""The arithmetic of the CUDA kernels, run on the CPU: the same bits as the rest of gradclip, NaNs included."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import Any

import cuda_shim
import gradclip as gc
import ml_dtypes
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not cuda_shim.has_compiler(), reason="no C++ compiler")

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# by the code that the kernels know them by
DTYPES = [np.dtype(x) if x != "bfloat16" else BFLOAT16 for x in (
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
)]  # fmt: skip
FLOATS = DTYPES[:4]
COMPLEX = DTYPES[4:6]
INTEGERS = DTYPES[6:14]
NAMES = dict(zip(DTYPES, ["f16", "bf16", "float", "double", "", "", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]))
# digits after the first one, and the largest exponent
FORMATS = dict(zip(FLOATS, [(10, 15), (7, 127), (23, 127), (52, 1023)]))

KERNELS = [
    *(f"test_{kind}<{NAMES[t]}>" for kind in ("widen", "narrow", "scaled", "clipped_magnitude") for t in FLOATS),
    *(f"test_clipped<{NAMES[t]}>" for t in FLOATS + INTEGERS),
    *(f"test_{kind}" for kind in ("convert", "element", "dtypes", "norm", "total", "power")),
]


def kernel_source() -> str:
    return (cuda_shim.SOURCES / "numbers.cuh").read_text() + (cuda_shim.HERE / "cuda_numbers.cu").read_text()


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
    wrong = np.flatnonzero(bits(x).ravel() != bits(y).ravel())
    assert not wrong.size, (len(wrong), wrong[0], x.ravel()[wrong[0]], y.ravel()[wrong[0]], *(hex(bits(a).ravel()[wrong[0]]) for a in (x, y)))


def equal_numbers(x: np.ndarray, y: np.ndarray) -> None:
    """The same bits, but for those of a NaN."""
    equal(np.where(np.isnan(x), np.nan, x), np.where(np.isnan(y), np.nan, y))


def infinity(dtype: np.dtype[Any]) -> int:
    digits, bias = FORMATS[dtype]
    return (2 * bias + 1) << digits


def nan(dtype: np.dtype[Any]) -> int:
    return infinity(dtype) | 1 << (FORMATS[dtype][0] - 1)


def samples(dtype: np.dtype[Any], count: int = 20_000) -> np.ndarray:
    """Any bits, numbers of any size, NaNs with all kinds of payloads, ends of ranges."""
    rng = np.random.default_rng(dtype.num)
    if dtype.kind == "c":
        part = FLOATS[2 if dtype.itemsize == 8 else 3]
        re, im = samples(part, count), samples(part, count)[rng.permutation(count)]
        return np.stack([re, im], 1).view(dtype).ravel()
    if dtype.kind == "b":
        return np.arange(count) % 3 == 0
    width = 8 * dtype.itemsize
    if width == 16 and count >= 2**16:
        return from_bits(np.arange(2**16), dtype)
    values = rng.integers(0, 2**width, count, dtype=np.uint64, endpoint=False) if width < 64 else rng.integers(0, 2**64, count, dtype=np.uint64)
    if dtype in INTEGERS:
        values[: count // 2] >>= rng.integers(0, width, count // 2).astype(np.uint64)
        values[:9] = [0, 1, 2, 2**width - 1, 2**width - 2, 2 ** (width - 1), 2 ** (width - 1) - 1, 2 ** (width - 1) + 1, 3]
        for k in range(53, width):  # halves, and what is beside them
            for j, less in enumerate((1 << (k - 53), 1 << (k - 11), 1 << (k - 8), 1 << (k - 24))):
                start = 100 + 12 * (k - 53) + 3 * j
                values[start : start + 3] = [2**k + less - 1, 2**k + less, 2**k + less + 1]
        return from_bits(values, dtype)
    sign = rng.integers(0, 2, count).astype(np.uint64) << np.uint64(width - 1)
    digits = FORMATS[dtype][0]
    some = slice(0, count // 5)
    values[some] = values[some] % 2**digits >> rng.integers(0, digits, count // 5).astype(np.uint64) | np.uint64(infinity(dtype)) | sign[some]
    some = slice(count // 5, 2 * count // 5)  # single bits of payloads
    values[some] = np.uint64(1) << rng.integers(0, digits, count // 5).astype(np.uint64) | np.uint64(infinity(dtype)) | sign[some]
    some = slice(2 * count // 5, 3 * count // 5)  # subnormal
    values[some] = values[some] % 2**digits | sign[some]
    ends = [0, 1, 2, 1 << digits, (1 << digits) - 1, infinity(dtype), infinity(dtype) - 1, (FORMATS[dtype][1] << digits)]
    values[-len(ends) :] = ends
    values[-2 * len(ends) : -len(ends)] = [x | 1 << (width - 1) for x in ends]
    return from_bits(values, dtype)


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


def as_norm(limit: float, by: float) -> float:
    """A norm to clip to `limit`, with `by` for a factor."""
    norm = limit / by if by else math.inf
    assert not by or limit / norm == by
    return norm


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


@pytest.mark.parametrize("limit", [0.0, 1e-6, 0.1, 1.0, 1e5, math.inf, math.nan])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_clipped_magnitude_is_what_the_cpu_makes(dtype: np.dtype[Any], limit: float) -> None:
    x = samples(dtype, 2**16)
    try:
        expected = gc.clip_by_norm(x, limit, axes=[])
    except ValueError:
        assert math.isnan(limit)
        return
    found, changes = np.empty_like(x), np.empty(len(x), np.uint8)
    run(f"test_clipped_magnitude<{NAMES[dtype]}>", x, found, len(x), limit, changes)
    equal(found, expected)
    with np.errstate(invalid="ignore"):
        assert (changes == ~(np.abs(widened(x)) <= limit)).all()


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


@pytest.mark.parametrize(("source", "target"), [
    (a, b) for a, b in itertools.product(FLOATS + INTEGERS, repeat=2) if a in INTEGERS or b in FLOATS
], ids=str)  # fmt: skip
def test_bounds_of_another_dtype_are_rounded_as_on_the_cpu(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    x = samples(source, 2**16)
    lowest = from_bits(np.array([infinity(target) | 1 << (8 * target.itemsize - 1)]), target) if target in FLOATS else np.array([np.iinfo(target).min], target)
    tensor = np.repeat(lowest, len(x))
    for is_number in (0, 1):
        found = np.empty(len(x), target)
        run("test_convert", x, found, len(x), DTYPES.index(source), DTYPES.index(target), is_number)
        if is_number:
            picks = np.r_[:40, len(x) // 5 : len(x) // 5 + 40, len(x) - 40 : len(x)]
            expected = np.concatenate([gc.clip_by_value(tensor[:1], x[i].reshape(()) if x[i].ndim else np.array(x[i]), None) for i in picks])
            equal(found[picks], expected)
        else:
            equal(found, gc.clip_by_value(tensor, x, None))


def parts(x: np.ndarray) -> np.ndarray:
    return widened(x.view(f"f{x.dtype.itemsize // 2}")).reshape(-1, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moduli_of_elements(dtype: np.dtype[Any]) -> None:
    x = samples(dtype, 2000)
    for by in (1.0, 2.0**-600):
        found = np.empty((len(x), 7))
        run("test_element", x, found, len(x), DTYPES.index(dtype), by)
        modulus, square, limbs, lifted, key = found[:, 0], found[:, 1], found[:, 2:4], found[:, 4:6], found[:, 6]
        with np.errstate(all="ignore"):
            if dtype.kind == "c":
                re, im = parts(x).T * by
                equal_numbers(square, re * re + im * im)
                if dtype.itemsize == 8:
                    equal_numbers(modulus, np.sqrt(square))
            elif dtype in FLOATS:
                equal_numbers(modulus, np.abs(widened(x) * by))
                equal_numbers(square, modulus * modulus)
            else:
                sizes = [abs(int(v)) for v in x]
                equal(modulus, np.array([float(v) for v in sizes]) * by)
                equal(square, modulus * modulus)
                if dtype.itemsize == 8:
                    assert [int(a) + int(b) for a, b in limbs] == sizes
                    assert all(int(a) % 2**32 == 0 for a in limbs[:, 0])
                else:
                    assert [int(a) for a in limbs[:, 0]] == sizes
        if by == 1.0:
            # of one element each, as the CPU has it
            expected = gc.norm(x.reshape(-1, 1), ord=np.inf, axis=1).astype(np.float64)
            with np.errstate(over="ignore"):
                own = key.astype(np.float32).astype(np.float64) if dtype in FLOATS[:3] + COMPLEX[:1] else key
            equal(own, expected)
            if dtype != COMPLEX[1]:
                equal_numbers(lifted[:, 0], modulus)
                assert not lifted[:, 1].any()
            else:
                for (re, im), (value, exponent), size in zip(parts(x), lifted, modulus):
                    if math.isfinite(re) and math.isfinite(im):
                        exact = Fraction(re) ** 2 + Fraction(im) ** 2
                        own = (Fraction(value) * Fraction(2) ** int(exponent)) ** 2
                        assert abs(own - exact) <= exact * Fraction(1, 2**50)
                        try:
                            assert size == math.ldexp(value, int(exponent))
                        except OverflowError:
                            assert size == math.inf
                    else:
                        assert (math.isnan(re) or math.isnan(im)) == math.isnan(value)
                        assert math.isnan(value) or value == math.inf


def test_facts_of_dtypes() -> None:
    found = np.empty((len(DTYPES), 3), np.int64)
    run("test_dtypes", 0, found, len(DTYPES))
    for dtype, (limbs, is_wide, is_wide_modulus) in zip(DTYPES, found):
        assert limbs == (2 if dtype in INTEGERS and dtype.itemsize == 8 else 1)
        assert is_wide == (gc.norm(np.ones((2, 2), dtype), axis=1).dtype == np.float64)
        assert is_wide_modulus == (dtype in (FLOATS[3], COMPLEX[1]))


def exactly(value: float, exponent: float) -> Fraction:
    return Fraction(value) * Fraction(2) ** int(exponent)


def test_norms_beyond_float64() -> None:
    rng = np.random.default_rng(3)
    special = [0.0, math.inf, math.nan, 5e-324, 2.0**-1022, 1.0, 1.7e308]
    count = 3000
    values = np.abs(rng.standard_normal((count, 3))) * 2.0 ** rng.integers(-1070, 1020, (count, 3))
    for column in range(3):
        values[rng.integers(0, count, count // 4), column] = rng.choice(special, count // 4)
    exponents = rng.integers(-3000, 3000, (count, 2)) * rng.integers(0, 2, (count, 2))
    counts = rng.integers(1, 2**40, count)
    x = np.ascontiguousarray(np.stack([values[:, 0], exponents[:, 0], values[:, 1], exponents[:, 1], values[:, 2], counts], 1), np.float64)
    found = np.empty((count, 14))
    run("test_norm", x, found, count)
    ordinary = 0
    for (a, a_exp, b, b_exp, limit, number), row in zip(x, found):
        value, exponent, rounded, digits, split_exponent, mean, mean_exponent, most, most_exponent, by, then, clip_by, clip_then, clips = row
        if math.isnan(a):
            assert math.isnan(value) and math.isnan(rounded) and math.isnan(most) and math.isnan(by) and clips
            continue
        if math.isinf(a):
            assert value == rounded == digits == mean == math.inf
            assert math.isnan(most) == math.isnan(b)
            assert math.isnan(by) if math.isnan(limit) or math.isinf(limit) else by == 0
            continue
        exact = exactly(a, a_exp)
        assert exactly(value, exponent) == exact == exactly(digits, split_exponent)
        assert exponent == 0 or not 2.0**-1022 <= abs(exact) < Fraction(2) ** 1024
        assert digits == 0 or 1 <= digits < 2
        assert rounded == nearest_float64(exact)
        quotient = exact / int(number)
        assert abs(exactly(mean, mean_exponent) - quotient) <= quotient * Fraction(1, 2**53)
        if math.isnan(b) or math.isinf(b):
            assert math.isnan(most) if math.isnan(b) else most == math.inf
        else:
            assert exactly(most, most_exponent) == max(exact, exactly(b, b_exp))
        clipping = not (rounded <= limit and (limit > 0 or exact == 0))
        assert clips == clipping
        assert (clip_by, clip_then) == ((by, then) if clipping and not math.isnan(by) else (1.0, 1.0)) or math.isnan(by)
        if math.isnan(limit):
            assert math.isnan(by)
        elif math.isinf(limit) or exact == 0:
            assert (by, then) == (1.0, 1.0)
        elif limit == 0:
            assert by == 0
        else:
            factor = Fraction(limit) / exact
            product = Fraction(by) * Fraction(then)
            if math.isfinite(by) and Fraction(2) ** -2000 < factor < Fraction(2) ** 2000:
                ordinary += 1
                assert abs(product - factor) <= factor * Fraction(1, 2**52)
            assert math.frexp(then)[0] == 0.5 or then in (0.0, math.inf)
    assert ordinary > count // 4


def nearest_float64(x: Fraction) -> float:
    try:
        return x.numerator / x.denominator
    except OverflowError:
        return math.inf


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", [0.5, 1.5, 3.0, 4.0, 0.1, 0.7, 2.5, 3.5, 7.25, 100.0, 1e6])
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
