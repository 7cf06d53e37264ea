"""Reference results, computed slowly with 240 bits, so that nothing overflows and rounding is negligible.

An exact value is an mpmath number (its exponent has no limit), an array of them has dtype object. A complex number is
its two parts: exact results for a complex array have one axis more, the last, of length 2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import mpmath
import numpy as np

mp = mpmath.mp.clone()
mp.prec = 240

BF16 = ml_dtypes.bfloat16
FLOATS = [np.float16, BF16, np.float32, np.float64]
COMPLEX = [np.complex64, np.complex128]
SCALED = [*FLOATS, *COMPLEX]
"""The dtypes that the norm clippers and normalize take."""
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
NORMED = [*SCALED, *INTEGERS, np.bool_]
"""The dtypes that norm and global_norm take."""
ORDERED = [*FLOATS, *INTEGERS]
"""The dtypes that clip_by_value takes."""

ONE_ROUNDING = 0.5 + 1e-6  # ulps: narrow results are rounded once from a float64 product
TWO_ULP = 2.0  # results in float64, against the product with gradclip's own norm
NORM_ERROR = 1e-14  # relative, before the norm is rounded to the result's dtype; over p for p < 1
SMALLEST_NORMAL = mp.ldexp(1, -1022)  # of float64


# ---- dtypes


def part(dtype: Any) -> np.dtype:
    """The dtype of a number's parts, native: that of a real number itself, half of a complex one."""
    dtype = np.dtype(dtype).newbyteorder("=")
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def is_float(dtype: Any) -> bool:
    """Whether it is a real floating-point dtype. The kind of bfloat16 is not that of NumPy's own."""
    dtype = np.dtype(dtype)
    return dtype.kind == "f" or dtype.type is BF16


def is_wide(dtype: Any) -> bool:
    """Whether results have float64's precision: float64 and complex128."""
    return part(dtype) == np.float64


@functools.cache
def finfo(dtype: Any) -> Any:
    """The `finfo` of the parts, for every floating-point dtype."""
    return ml_dtypes.finfo(part(dtype))


def largest(dtype: Any) -> float:
    """The largest finite number, as a Python float."""
    return float(finfo(dtype).max)


def tiny(dtype: Any) -> float:
    """The smallest subnormal."""
    return float(finfo(dtype).smallest_subnormal)


def eps(dtype: Any) -> float:
    """The distance from 1 to the next number."""
    return float(finfo(dtype).eps)


def norm_dtype(dtype: Any) -> np.dtype:
    """The dtype of norms along axes."""
    return np.dtype(np.float32 if np.dtype(dtype).kind not in "biu" and not is_wide(dtype) else np.float64)


def native(x: Any) -> np.ndarray:
    """The values of an array as a plain contiguous one of native byte order, bits kept."""
    x = np.asarray(x)
    return np.array(x, dtype=x.dtype.newbyteorder("="), order="C", subok=False)


def parts(x: Any) -> np.ndarray:
    """The values, with a last axis of length 2 for complex ones; native."""
    x = native(x)
    return x.reshape(-1).view(part(x.dtype)).reshape(*x.shape, 2) if x.dtype.kind == "c" else x


def exact_parts(x: Any) -> np.ndarray:
    """The parts of floating-point or complex numbers in float64, which holds them all."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return parts(x).astype(np.float64)


def signs(x: Any) -> np.ndarray:
    """Which parts have their sign bit set."""
    words = bits(x)
    return words > np.iinfo(words.dtype).max // 2


def is_nan(x: Any) -> np.ndarray:
    """Which parts are NaN."""
    return np.isnan(exact_parts(x))


def allowed_ulps(dtype: Any) -> float:
    """How far a scaled value of this dtype may be from the exact product."""
    return TWO_ULP if is_wide(dtype) else ONE_ROUNDING


def each(function: Any, a: Any) -> np.ndarray:
    """function(entry) of every entry, as an array of objects. (np.vectorize warns where a function meets NaN.)"""
    a = np.asarray(a)
    out = np.empty(a.shape, dtype=object)
    for where in np.ndindex(a.shape):
        out[where] = function(a[where])
    return out


def as_exact(a: Any) -> np.ndarray:
    """Floats as exact values."""
    return each(lambda value: mp.mpf(float(value)), a)


# ---- norms


def _number(value: Any) -> Any:
    """A Python number as an exact one."""
    return mp.mpf(value) if isinstance(value, int) else mp.mpf(float(value))


def magnitudes(x: np.ndarray) -> Iterator[tuple[Any, int]]:
    """(magnitude, how often it occurs) for all entries, which are finite."""
    if x.dtype.kind == "c":
        pairs, counts = np.unique(np.abs(parts(x).reshape(-1, 2)), axis=0, return_counts=True)
        for (a, b), count in zip(pairs.tolist(), counts.tolist(), strict=True):
            yield mp.hypot(mp.mpf(a), mp.mpf(b)), count
    else:
        exact = exact_parts(x) if is_float(x.dtype) else native(x)
        values, counts = np.unique(exact, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            yield _number(abs(int(value) if x.dtype.kind in "biu" else value)), count


def whole_sum(x: Any, order: int) -> int:
    """The sum of |x|**order of floats in units of 2**-2148, the square of the smallest float64: a whole number."""
    mantissas, exponents = np.frexp(np.abs(np.asarray(x).astype(np.float64)))
    numbers = (mantissas * 2.0**53).astype(np.int64).tolist()
    deep = 2 * 1074 + 106  # subnormal numbers have fewer digits than 53
    terms = (m**order << (order * (e - 53) + deep) for m, e in zip(numbers, exponents.tolist(), strict=True))
    return sum(terms) >> (deep - 2148)


def exact_norm(x: Any, p: float = 2) -> Any:
    """(sum |x|**p) ** (1/p) over everything in x; the largest magnitude for p = inf. NaN wins over inf."""
    return exact_global_norm([x], p)


def exact_global_norm(arrays: Sequence[Any], p: float = 2) -> Any:
    """The norm of all entries laid end to end, None left out."""
    present = [native(a) for a in arrays if a is not None]
    loose = [exact_parts(a) for a in present if a.dtype.kind not in "biu"]
    if any(np.isnan(a).any() for a in loose):
        return mp.nan
    if any(np.isinf(a).any() for a in loose):
        return mp.inf
    if p == 2 or (p == 1 and all(a.dtype.kind != "c" for a in present)):
        return _norm_by_integers(present, p)
    return norm_of_magnitudes((term for a in present for term in magnitudes(a)), p)


def _norm_by_integers(arrays: Sequence[np.ndarray], p: int) -> Any:
    """The norm of order 1 or 2 of finite numbers. Sums of integers are exact, and faster than those of mpf numbers."""
    integers = (a.astype(object).reshape(-1) for a in arrays if a.dtype.kind in "biu")
    total = sum(sum(abs(int(x)) ** p for x in a) for a in integers) << 2148
    total += sum(whole_sum(exact_parts(a).reshape(-1), p) for a in arrays if a.dtype.kind not in "biu")
    exact = mp.ldexp(mp.mpf(total), -2148)
    return mp.sqrt(exact) if p == 2 else exact


def norm_of_magnitudes(terms: Iterable[tuple[Any, int]], p: float) -> Any:
    """The norm of numbers that are given as (magnitude, how often it occurs)."""
    terms = [(m, count) for m, count in terms if m != 0]
    if not terms:
        return mp.mpf(0)
    top = max(m for m, _ in terms)
    if math.isinf(p):
        return top
    if p == 1:
        return mp.fsum(count * m for m, count in terms)
    if p == 2:  # far faster than the general formula, and as exact: no square leaves the range of an mpf
        return mp.sqrt(mp.fsum(count * m * m for m, count in terms))
    power = _number(p)
    logarithms = ((power * mp.log(m / top), count) for m, count in terms)
    # Terms below e**-300 of the largest do not show in 240 bits, and take long to compute for a large p.
    total = mp.fsum(count * mp.exp(log) for log, count in logarithms if log > -300)
    return top * total ** (1 / power)


def exact_norms(x: Any, p: float = 2, axes: int | Sequence[int] | None = None) -> np.ndarray:
    """One exact norm per slice along `axes`, the reduced axes kept as size 1."""
    x = native(x)
    if axes is None:
        axes = range(x.ndim)
    reduced = {a % x.ndim for a in ([axes] if isinstance(axes, int) else axes)}
    out = np.empty([1 if i in reduced else n for i, n in enumerate(x.shape)], dtype=object)
    for where in np.ndindex(out.shape):
        out[where] = exact_norm(x[tuple(slice(None) if i in reduced else k for i, k in enumerate(where))], p)
    return out


def squared_norms(x: Any, axes: int | Sequence[int] | None = None) -> np.ndarray:
    """The square of one Euclidean norm per slice along `axes`, the reduced axes kept as size 1.

    A Fraction, made of integers alone, for bounds that hold to the last digit. The numbers are finite.
    """
    x = native(x)
    if axes is None:
        axes = range(x.ndim)
    reduced = tuple(a % x.ndim for a in ([axes] if isinstance(axes, int) else axes))
    mantissas, exponents = map(np.asarray, np.frexp(exact_parts(x)))
    lowest = int(exponents.min(initial=0))
    digits = np.asarray(np.ldexp(mantissas, 53)).astype(np.int64).astype(object)
    squares = np.asarray(digits * digits << 2 * (exponents - lowest).astype(object), dtype=object)
    if x.dtype.kind == "c":
        squares = np.asarray(squares.sum(axis=-1), dtype=object)
    sums = squares.sum(axis=reduced, keepdims=True)
    return np.asarray(sums * Fraction(4) ** (lowest - 53), dtype=object)


def exact_matrix_norm(m: Any, p: float | str) -> Any:
    """'fro' and 'euclidean', the largest sum of a column (1) or row (inf), the largest singular value (2)."""
    m = native(m)
    if p in {"fro", "euclidean"}:
        return exact_norm(m)
    if p == 2:
        return _largest_singular_value(m)
    whole = exact_norm(m, 1)
    if m.size == 0 or not mp.isfinite(whole):
        return whole
    return max(exact_norm(line, 1) for line in (m.T if p == 1 else m))


def _largest_singular_value(m: np.ndarray) -> Any:
    if not mp.isfinite(exact_norm(m)):
        return mp.nan
    if not m.any():
        return mp.mpf(0)
    exact = mp.matrix(*m.shape)
    for i, j in np.ndindex(m.shape):
        number = m[i, j].item() if m.dtype.type is not BF16 else float(m[i, j])
        exact[i, j] = mp.mpc(number) if m.dtype.kind == "c" else _number(number)
    scale = max(abs(entry) for entry in exact)
    singular = mp.svd_c if m.dtype.kind == "c" else mp.svd_r
    return scale * max(singular(exact / scale, compute_uv=False))


def exact_matrix_norms(x: Any, p: float | str, axes: Sequence[int]) -> np.ndarray:
    """A norm for each matrix along (rows, columns), the reduced axes kept as size 1."""
    x = native(x)
    rows, columns = (a % x.ndim for a in axes)
    stack = np.moveaxis(x, (rows, columns), (-2, -1))
    out = np.empty(stack.shape[:-2], dtype=object)
    for where in np.ndindex(out.shape):
        out[where] = exact_matrix_norm(stack[where], p)
    return out.reshape([1 if i in {rows, columns} else n for i, n in enumerate(x.shape)])


@functools.lru_cache(maxsize=4096)  # each element of a row asks for the norm of the row
def to_float64(value: Any) -> float:
    """The nearest float64, subnormals included; inf beyond the range."""
    value = mp.mpf(value)
    if not mp.isfinite(value) or value == 0:
        return float(value)
    if mp.mag(value) > 1025:
        return math.copysign(math.inf, value)
    if mp.mag(value) < -1100:
        return math.copysign(0.0, value)
    return _nearest(_fraction(value), np.float64)


def relative_error(actual: float, exact: Any) -> float:
    """|actual - exact| / exact, as a float; 0 for 0 against 0."""
    if exact == 0:
        return 0.0 if actual == 0 else math.inf
    return float(abs(mp.mpf(float(actual)) - exact) / abs(exact))


def assert_norm(actual: Any, exact: Any, p: float = 2, error: float = NORM_ERROR) -> None:
    """A norm with a relative error below `error` (over p for p < 1) before it was rounded to its dtype, once.

    A float64 has that error with its own rounding, which shows only among the subnormals.
    """
    dtype = np.asarray(actual).dtype
    assert dtype in (np.float32, np.float64), dtype
    number, told = float(actual), f"{actual!r} for {mp.nstr(exact, 20)}, ord {p}"
    if mp.isnan(exact) or mp.isinf(exact):
        assert math.isnan(number) if mp.isnan(exact) else number == math.inf, told
        return
    slack = error / min(p, 1) * exact
    if math.isinf(number):
        limit = mp.mpf(largest(dtype))
        assert number > 0, told
        assert exact + slack >= limit + ulp(limit, dtype) / 2, told
        return
    if dtype == np.float32 or exact < SMALLEST_NORMAL:
        slack += ulp(exact, dtype) / 2
    assert abs(mp.mpf(number) - exact) <= slack, told


def assert_norms(actual: Any, exact: np.ndarray, p: float = 2, error: float = NORM_ERROR) -> None:
    """`assert_norm` for an array of norms, of one shape."""
    actual = np.asarray(actual)
    assert actual.shape == exact.shape, f"shape {actual.shape}, expected {exact.shape}"
    for where in np.ndindex(exact.shape):
        assert_norm(actual[where], exact[where], p, error)


# ---- the one rule for scaling


def _each_part(x: Any, change: Any) -> np.ndarray:
    """change(part, where its number stands) of every part of every number, as exact values."""
    x = native(x)
    flat = exact_parts(x)
    out = np.empty(flat.shape, dtype=object)
    for where in np.ndindex(flat.shape):
        out[where] = change(mp.mpf(float(flat[where])), where[: x.ndim])
    return out


def _by(value: Any, factor: Any) -> Any:
    """A product. An infinite norm makes the factor 0: NaN for an infinite value, 0 for others."""
    return mp.nan if factor == 0 and mp.isinf(value) else value * factor


def exact_clip(x: Any, clip_norm: float, norms: Any) -> np.ndarray:
    """x where its norm, as float64, is at or below clip_norm; x * (clip_norm / norm) elsewhere."""
    norms = np.broadcast_to(np.asarray(norms, dtype=object), np.shape(x))
    return _each_part(x, lambda value, where: _clipped(value, clip_norm, norms[where]))


def _clipped(value: Any, clip_norm: float, norm: Any) -> Any:
    if clip_norm == math.inf:
        return value
    if mp.isnan(norm):
        return mp.nan
    if to_float64(norm) <= clip_norm:
        return value
    return _by(value, mp.mpf(0) if mp.isinf(norm) else mp.mpf(clip_norm) / norm)


def exact_global_clip(x: Any, clip_norm: float, norm: Any) -> np.ndarray:
    """`exact_clip` for one tensor of a list: a norm that is not finite makes NaN, unless the limit is infinite."""
    if not mp.isfinite(norm) and clip_norm != math.inf:
        return _each_part(x, lambda *_: mp.nan)
    if clip_norm == math.inf or to_float64(norm) <= clip_norm:
        return _each_part(x, lambda value, _: value)
    return _each_part(x, lambda value, _: _by(value, mp.mpf(clip_norm) / norm))


def exact_quotient(x: Any, norms: Any) -> np.ndarray:
    """x / norm, and zeros where the norm is 0."""
    norms = np.broadcast_to(np.asarray(norms, dtype=object), np.shape(x))

    def divide(value: Any, where: Any) -> Any:
        norm = norms[where]
        if norm == 0:
            return mp.mpf(0)
        if mp.isinf(norm):
            return _by(value, mp.mpf(0))
        return value / norm

    return _each_part(x, divide)


# ---- clip_by_value


def _fraction(value: Any) -> Fraction:
    """A finite number of any kind, exactly."""
    if isinstance(value, (int, np.integer)):
        return Fraction(int(value))
    if isinstance(value, np.longdouble):
        return Fraction(*value.as_integer_ratio())
    if isinstance(value, type(mp.mpf(0))):
        mantissa, exponent = value.man_exp
        return int(mp.sign(value)) * abs(int(mantissa)) * Fraction(2) ** int(exponent)
    return Fraction(float(value))


def _nearest(value: Fraction, dtype: Any) -> float:
    """The number of the floating-point dtype nearest to the value, ties to even; inf beyond the range."""
    if value == 0:
        return 0.0
    info, size = finfo(dtype), abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    quantum = Fraction(2) ** max(exponent - info.nmant, info.minexp - info.nmant)
    nearest = round(size / quantum) * quantum  # of a Fraction, round takes ties to even
    result = math.inf if nearest > Fraction(largest(dtype)) else float(nearest)
    return -result if value < 0 else result


def rounded(value: Any, dtype: Any) -> float:
    """A number of any kind and size in a floating-point dtype, rounded once."""
    if isinstance(value, (int, np.integer)) or (math.isfinite(value) and value != 0):
        return _nearest(_fraction(value), dtype)
    return float(value)


def bound_as(bound: Any, dtype: Any) -> Any:
    """A bound in t's dtype: integers saturate for an integer t, numbers round (to inf if need be) for a float t."""
    dtype = np.dtype(dtype).newbyteorder("=")
    if isinstance(bound, np.ndarray) and bound.dtype.newbyteorder("=") == dtype:
        return native(bound)
    # Native first: ml_dtypes loses the byte order on the way to Python.
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = np.asarray(native(bound) if isinstance(bound, (list, np.ndarray)) else bound, dtype=object)
    result = np.empty(values.shape, dtype=dtype)
    for where in np.ndindex(values.shape):
        if is_float(dtype):
            result[where] = np.float64(rounded(values[where], dtype)).astype(dtype)
        else:
            info = np.iinfo(dtype)
            result[where] = min(max(int(values[where]), info.min), info.max)
    return result


def expected_clip_by_value(t: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """max(min(t, high), low): a NaN in t keeps its bits, a NaN bound gives NaN, a tie keeps t's bits."""
    t = native(t)
    result = t.copy()
    exact = exact_parts if is_float(t.dtype) else native
    for bound, beyond in ((high, np.greater), (low, np.less)):
        if bound is not None:
            limit = np.broadcast_to(bound_as(bound, t.dtype), t.shape)
            take = beyond(exact(result), exact(limit)) | (exact(limit) != exact(limit))
            result = np.where(take, limit, result)
    return np.where(exact(t) != exact(t), t, result)


# ---- comparing


def ulp(value: Any, dtype: Any) -> Any:
    """The distance between neighbours of `dtype` around an exact value (the smallest subnormal near 0)."""
    info = finfo(dtype)
    lowest = info.minexp - info.nmant
    exponent = lowest if value == 0 else max(mp.mag(value) - 1 - info.nmant, lowest)
    return mp.ldexp(1, exponent)


def ulp_diff(actual: Any, exact: Any) -> float:
    """How many ulps of actual's dtype lie between it and an exact value. NaN is 0 from NaN, inf from a number."""
    actual, dtype = float(actual), np.asarray(actual).dtype
    if mp.isnan(exact) or math.isnan(actual):
        return 0.0 if mp.isnan(exact) and math.isnan(actual) else math.inf
    if math.isinf(actual) or mp.isinf(exact):
        limit = mp.mpf(largest(dtype))
        rounds_to_inf = abs(exact) >= limit + ulp(limit, dtype) / 2 * (1 - mp.mpf("1e-6"))
        return 0.0 if math.isinf(actual) and rounds_to_inf and mp.sign(exact) == mp.sign(actual) else math.inf
    return float(abs(mp.mpf(actual) - exact) / ulp(exact, dtype))


def assert_within_ulp(actual: Any, exact: Any, ulps: float) -> None:
    """Every part of actual is within `ulps` of the exact one."""
    actual, exact = parts(actual), np.asarray(exact, dtype=object)
    assert actual.shape == exact.shape, f"shape {actual.shape}, expected {exact.shape}"
    for where in np.ndindex(actual.shape):
        off = ulp_diff(actual[where], exact[where])
        assert off <= ulps, f"at {where}: {actual[where]!r} is {off:.3g} ulp from {mp.nstr(exact[where], 20)}"


def bits(a: Any) -> np.ndarray:
    """The bytes of every part, native byte order, as an integer array."""
    a = parts(a)
    return a.view(f"u{a.dtype.itemsize}")


def from_bits(words: Any, dtype: Any) -> np.ndarray:
    """The numbers with these bits; two integers make a complex one."""
    dtype = np.dtype(dtype)
    return np.array(words, dtype=f"u{part(dtype).itemsize}").view(part(dtype)).view(dtype)


def numbers(values: Any, dtype: Any) -> np.ndarray:
    """A list of real numbers in this dtype, rounded once. Complex ones have the list backwards as imaginary parts."""
    dtype = np.dtype(dtype)
    exact = [np.float64(rounded(value, part(dtype))) for value in np.asarray(values, dtype=np.float64).tolist()]
    real = np.array(exact, dtype=np.float64).astype(part(dtype))
    return np.stack([real, real[::-1]], -1).view(dtype)[:, 0] if dtype.kind == "c" else real


def from_parts(values: np.ndarray, dtype: Any) -> np.ndarray:
    """The numbers of the dtype with these parts (see `parts`), which are float64 and rounded once, ties to even."""
    dtype, info = np.dtype(dtype).newbyteorder("="), finfo(dtype)
    quantum = np.maximum(np.frexp(values)[1] - 1, info.minexp) - info.nmant
    nearest = np.ldexp(np.rint(np.ldexp(values, -quantum)), quantum)  # one rounding: powers of two change no digit
    nearest = np.where(np.abs(nearest) > largest(dtype), np.copysign(np.inf, nearest), nearest)
    narrow = np.ascontiguousarray(nearest.astype(part(dtype)))
    return narrow.view(dtype)[..., 0] if dtype.kind == "c" else narrow.reshape(values.shape)


def same_bits(a: Any, b: Any) -> bool:
    """Same dtype (up to byte order), shape and bits: -0.0 is not 0.0, a NaN equals only its own payload."""
    a, b = np.asarray(a), np.asarray(b)
    same_kind = a.dtype.newbyteorder("=") == b.dtype.newbyteorder("=")
    return bool(same_kind and a.shape == b.shape and np.array_equal(bits(a), bits(b)))


def same_values(a: Any, b: Any) -> bool:
    """Same dtype, shape and bits, except that any NaN equals any other, part by part."""
    a, b = np.asarray(a), np.asarray(b)
    same_kind = a.dtype.newbyteorder("=") == b.dtype.newbyteorder("=")
    if not same_kind or a.shape != b.shape:
        return False
    nan = is_nan(a)
    return bool(np.array_equal(nan, is_nan(b)) and np.array_equal(bits(a)[~nan], bits(b)[~nan]))
