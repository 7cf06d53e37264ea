"""What the answers are, computed slowly and with 240 bits, so that nothing here overflows or rounds to notice.

An exact value is an mpmath number (its exponent has no limit), an array of them has dtype object.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np

mp = mpmath.mp.clone()
mp.prec = 240

FLOATS = [np.float32, np.float64]
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]

ONE_ROUNDING = 0.5 + 1e-6  # ulps: float32 results are rounded once from a float64 product
TWO_ULP = 2.0  # float64 results, against the product with gradclip's own norm


def allowed_ulps(dtype: Any) -> float:
    """How far a scaled value of this dtype may be from the exact product."""
    return ONE_ROUNDING if np.dtype(dtype).itemsize == 4 else TWO_ULP


# ---- norms


def exact_norm(x: Any, p: float = 2) -> Any:
    """(sum |x|**p) ** (1/p) over everything in x; the largest magnitude for p = inf. NaN wins over inf."""
    a = np.abs(np.asarray(x).astype(np.float64)).ravel()
    if np.isnan(a).any():
        return mp.nan
    if np.isinf(a).any():
        return mp.inf
    a = a[a > 0]
    if a.size == 0:
        return mp.mpf(0)
    top = mp.mpf(float(a.max()))
    if math.isinf(p):
        return top
    values, counts = np.unique(a, return_counts=True)
    power = mp.mpf(float(p))
    total = mp.mpf(0)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        total += count * (mp.mpf(value) / top) ** power
    return top * total ** (1 / power)


def exact_norms(x: Any, p: float = 2, axes: int | Sequence[int] | None = None) -> np.ndarray:
    """One exact norm per slice along `axes`, the reduced axes kept as size 1."""
    x = np.asarray(x)
    if axes is None:
        axes = range(x.ndim)
    reduced = {a % x.ndim for a in ([axes] if isinstance(axes, int) else axes)}
    out = np.empty([1 if i in reduced else n for i, n in enumerate(x.shape)], dtype=object)
    for where in np.ndindex(out.shape):
        out[where] = exact_norm(x[tuple(slice(None) if i in reduced else k for i, k in enumerate(where))], p)
    return out


def exact_global_norm(arrays: Sequence[Any], p: float = 2) -> Any:
    """The norm of all entries laid end to end, None left out."""
    flat = [np.asarray(a).astype(np.float64).ravel() for a in arrays if a is not None]
    return exact_norm(np.concatenate(flat) if flat else np.zeros(0), p)


def to_float64(value: Any) -> float:
    """The nearest float64, subnormals included; inf beyond the range."""
    value = mp.mpf(value)
    if not mp.isfinite(value) or value == 0:
        return float(value)
    if mp.mag(value) > 1025:
        return math.copysign(math.inf, value)
    if mp.mag(value) < -1100:
        return math.copysign(0.0, value)
    mantissa, exponent = value.man_exp
    exact = abs(mantissa) * Fraction(2) ** int(exponent)
    try:
        return math.copysign(float(exact), value)
    except OverflowError:
        return math.copysign(math.inf, value)


def relative_error(actual: float, exact: Any) -> float:
    """|actual - exact| / exact, as a float; 0 for 0 against 0."""
    if exact == 0:
        return 0.0 if actual == 0 else math.inf
    return float(abs(mp.mpf(float(actual)) - exact) / abs(exact))


# ---- the one rule for scaling


def exact_clip(x: np.ndarray, clip_norm: float, norms: np.ndarray) -> np.ndarray:
    """x where its norm, as float64, is at or below clip_norm; x * (clip_norm / norm) elsewhere. All finite."""
    norms = np.broadcast_to(norms, x.shape)
    out = np.empty(x.shape, dtype=object)
    for where in np.ndindex(x.shape):
        value, norm = mp.mpf(float(x[where])), norms[where]
        out[where] = value if to_float64(norm) <= clip_norm else value * mp.mpf(float(clip_norm)) / norm
    return out


def exact_quotient(x: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """x / norm, and zeros where the norm is 0."""
    norms = np.broadcast_to(norms, x.shape)
    out = np.empty(x.shape, dtype=object)
    for where in np.ndindex(x.shape):
        out[where] = mp.mpf(float(x[where])) / norms[where] if norms[where] else mp.mpf(0)
    return out


# ---- clip_by_value


def bound_as(bound: Any, dtype: Any) -> Any:
    """A bound in t's dtype: integers saturate for an integer t, numbers round (to inf if need be) for a float t."""
    dtype = np.dtype(dtype)
    flat = np.asarray(bound, dtype=object)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            convert = np.vectorize(lambda v: dtype.type(_as_float(v)), otypes=[dtype])
            return convert(flat) if flat.size else flat.astype(dtype)
    info = np.iinfo(dtype)
    convert = np.vectorize(lambda v: min(max(int(v), info.min), info.max), otypes=[object])
    return (convert(flat) if flat.size else flat).astype(dtype)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def expected_clip_by_value(t: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """max(min(t, high), low): a NaN in t keeps its bits, a NaN bound gives NaN, a tie keeps t's bits."""
    result = np.array(t, copy=True)
    for bound, beyond in ((high, np.greater), (low, np.less)):
        if bound is not None:
            limit = np.broadcast_to(bound_as(bound, t.dtype), t.shape)
            with np.errstate(invalid="ignore"):  # signalling NaNs
                result = np.where(beyond(result, limit) | np.isnan(limit), limit, result)
    if t.dtype.kind == "f":
        nan = np.isnan(t)
        result = np.where(nan & ~np.isnan(result), t, result)
    return result


# ---- comparing


def ulp(value: Any, dtype: Any) -> Any:
    """The distance between neighbours of `dtype` around an exact value (the smallest subnormal near 0)."""
    info = np.finfo(dtype)
    lowest = info.minexp - info.nmant
    exponent = lowest if value == 0 else max(mp.mag(value) - 1 - info.nmant, lowest)
    return mp.ldexp(1, exponent)


def ulp_diff(actual: Any, exact: Any) -> float:
    """How many ulps of actual's dtype lie between it and an exact value. NaN is 0 from NaN, inf from a number."""
    actual, dtype = float(actual), np.asarray(actual).dtype
    if mp.isnan(exact) or math.isnan(actual):
        return 0.0 if mp.isnan(exact) and math.isnan(actual) else math.inf
    if math.isinf(actual) or mp.isinf(exact):
        limit = mp.mpf(float(np.finfo(dtype).max))
        rounds_to_inf = abs(exact) >= limit + ulp(limit, dtype) / 2 * (1 - mp.mpf("1e-6"))
        return 0.0 if math.isinf(actual) and rounds_to_inf and mp.sign(exact) == mp.sign(actual) else math.inf
    return float(abs(mp.mpf(actual) - exact) / ulp(exact, dtype))


def assert_within_ulp(actual: Any, exact: Any, ulps: float) -> None:
    """Every entry of actual is within `ulps` of the exact one (arrays of one shape, or two numbers)."""
    actual, exact = np.asarray(actual), np.asarray(exact, dtype=object)
    assert actual.shape == exact.shape, f"shape {actual.shape}, expected {exact.shape}"
    for where in np.ndindex(actual.shape):
        off = ulp_diff(actual[where], exact[where])
        assert off <= ulps, f"at {where}: {actual[where]!r} is {off:.3g} ulp from {mp.nstr(exact[where], 20)}"


def bits(a: Any) -> np.ndarray:
    """The bytes of every element, native byte order, as an integer array."""
    a = np.asarray(a)
    native = np.ascontiguousarray(a).reshape(a.shape).astype(a.dtype.newbyteorder("="), copy=False)
    return native.view(f"u{a.dtype.itemsize}")


def same_bits(a: Any, b: Any) -> bool:
    """Same dtype (up to byte order), shape and bits: -0.0 is not 0.0, a NaN equals only its own payload."""
    a, b = np.asarray(a), np.asarray(b)
    same_kind = a.dtype.newbyteorder("=") == b.dtype.newbyteorder("=")
    return bool(same_kind and a.shape == b.shape and np.array_equal(bits(a), bits(b)))
