"""Conversion to another dtype with one rounding.

Bounds of ``clip_by_value`` and sums of rows need it. NumPy converts integers and
longdouble to float16, and ml_dtypes all numbers to bfloat16, by way of float32 or
float64, which rounds twice. Here the first step
cuts digits off, and sets the last digit that is kept to odd if any of them was not 0.
So no number looks half way between two others unless it is (S. Boldo, G. Melquiond,
"Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd",
2008).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gradclip._types import Array


def rounded(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return ``x`` with ``dtype`` in native byte order, or ``x`` itself if it has that.

    Integers beyond the range of an integer dtype become its nearest end. Numbers beyond
    the range of a floating-point dtype become infinite.
    """
    target = dtype.newbyteorder("=")
    if x.dtype.newbyteorder("=") == target:
        return x.astype(target, copy=False)  # bytes are swapped, but no NaN is changed as by a conversion
    if x.dtype.kind == "V" and target.kind in "iu":
        x = x.astype(np.int64)  # the small integers of ml_dtypes
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if target.kind in "iu":
            x = _saturated(x, target)
        elif target.itemsize == 2:  # noqa: PLR2004 (float16 and bfloat16)
            x = _to_float64(x)
        if target.kind == "V":  # bfloat16, to which ml_dtypes goes by way of float32
            x = _to_odd(x, np.dtype(np.float32), np.dtype(np.uint32))
        return x.astype(target)


def _saturated(x: Array, target: np.dtype[Any]) -> Array:
    own, other = np.iinfo(x.dtype), np.iinfo(target)
    if own.min < other.min:
        x = np.maximum(x, x.dtype.type(other.min))
    if own.max > other.max:
        x = np.minimum(x, x.dtype.type(other.max))
    return x


def _to_float64(x: Array) -> Array:
    """Convert to float64. Values that it does not hold are rounded to odd."""
    if x.dtype.kind == "f" and x.dtype.itemsize > 8:  # noqa: PLR2004 (longdouble)
        return _to_odd(x, np.dtype(np.float64), np.dtype(np.uint64))
    if x.dtype.kind in "iu" and x.dtype.itemsize > 4:  # noqa: PLR2004
        more = x.dtype.type(2**11)  # an integer of 64 bits has up to 11 digits more than float64
        large = (x >= 2**53) | (x <= -(2**53)) if x.dtype.kind == "i" else x >= 2**53
        odd = (x // more * more) | np.where(x % more != 0, more, x.dtype.type(0))
        x = np.where(large, odd, x)
    return x.astype(np.float64)


def _to_odd(x: Array, dtype: np.dtype[Any], bits_dtype: np.dtype[Any]) -> Array:
    """Convert from a wider floating-point dtype, rounded to odd. NaN stays NaN."""
    nearest = np.array(x, dtype)  # an array also for 0-d
    bits = nearest.view(bits_dtype)
    bits -= np.abs(nearest) > np.abs(x)
    bits |= (nearest != x) & (x == x)  # noqa: PLR0124 (no NaN)
    return nearest


def rounded_integers(values: Any, dtype: np.dtype[Any]) -> Array | None:
    """Return a nested list with integers as an array of ``dtype``, or None if it is not one.

    The integers may lie beyond NumPy's. NumPy makes float64 of a list with -1 and
    2**63, and objects of one with 2**64. Floats may stand beside them, for a floating-point dtype.
    """
    found = np.array(values, object)
    floating = (float, np.floating)
    are_integers = [type(x) is int or isinstance(x, np.integer) for x in found.flat]
    if not any(are_integers):
        return None
    are_numbers = [
        is_integer or (dtype.kind not in "iu" and isinstance(x, floating))
        for x, is_integer in zip(found.flat, are_integers, strict=True)
    ]
    if not all(are_numbers):
        return None
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        ends = [min(max(int(x), int(info.min)), int(info.max)) for x in found.flat]
        return np.array(ends, dtype.newbyteorder("=")).reshape(found.shape)
    is_final = dtype.itemsize == 8  # noqa: PLR2004
    floats = [float(x) if isinstance(x, floating) else _to_float(int(x), is_final=is_final) for x in found.flat]
    return rounded(np.array(floats).reshape(found.shape), dtype)


def _to_float(x: int, *, is_final: bool) -> float:
    """Round to float64: to nearest if this is the last rounding, else to odd."""
    size = abs(x)
    excess = size.bit_length() - 53
    if excess > 0 and not is_final:
        size = ((size >> excess) | (size & ((1 << excess) - 1) != 0)) << excess
    try:
        return float(size if x >= 0 else -size)
    except OverflowError:
        return np.inf if x >= 0 else -np.inf
