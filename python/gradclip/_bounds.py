"""Arrays as bounds of ``clip_by_value``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gradclip._types import Array


def as_bound(bound: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return an array of bounds as a view of ``shape`` with ``dtype``.

    Integers beyond the range of an integer dtype are taken to its end, numbers beyond
    that of a floating-point dtype become infinite.
    """
    target = np.dtype(dtype)
    if bound.dtype != target:
        if target.kind in "iu":
            bound = _saturated(bound, target)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            bound = bound.astype(target)
    return np.broadcast_to(bound, shape)


def _saturated(bound: Array, target: np.dtype[Any]) -> Array:
    own, other = np.iinfo(bound.dtype), np.iinfo(target)
    if own.min < other.min:
        bound = np.maximum(bound, bound.dtype.type(other.min))
    if own.max > other.max:
        bound = np.minimum(bound, bound.dtype.type(other.max))
    return bound
