"""The usual NumPy code, in its fastest forms. Factors are float32, and so are the results."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from steps.libraries.base import Library
from steps.operations import BOUNDS, EACH, GLOBAL, IN_PLACE, NEW, bounds

if TYPE_CHECKING:
    from steps.operations import Array, Clip, Operation


def global_norm(ts: list[Array]) -> float:
    """Return the norm of a list, by the BLAS."""
    return sqrt(sum(float(np.vdot(t, t)) for t in ts))


def clip_new(ts: list[Array], c: float) -> list[Array]:
    """Clip a list into new arrays."""
    factor = np.float32(c / max(global_norm(ts), c))
    return [np.multiply(t, factor) for t in ts]


def clip_in_place(ts: list[Array], c: float) -> list[Array]:
    """Clip a list in place."""
    factor = np.float32(c / max(global_norm(ts), c))
    for t in ts:
        np.multiply(t, factor, out=t)
    return ts


def clip_if_needed(ts: list[Array], c: float) -> list[Array]:
    """Clip a list in place if its norm is above the limit."""
    n = global_norm(ts)
    if n > c:
        factor = np.float32(c / n)
        for t in ts:
            np.multiply(t, factor, out=t)
    return ts


def clip_each(ts: list[Array], c: float) -> list[Array]:
    """Clip tensor by tensor into new arrays."""
    return [np.multiply(t, np.float32(c / max(sqrt(np.vdot(t, t)), c))) for t in ts]


def clip_to_bounds(ts: list[Array], c: float) -> list[Array]:
    """Clip a matrix to bounds of its columns."""
    (t,) = ts
    return [np.clip(t, *bounds(t.shape[1], c))]


def clip_to_bounds_in_steps(ts: list[Array], c: float) -> list[Array]:
    """Clip a matrix to bounds of its columns, one bound after the other."""
    (t,) = ts
    lo, hi = bounds(t.shape[1], c)
    clipped = np.maximum(t, lo)
    return [np.minimum(clipped, hi, out=clipped)]


def clip_slices(axis: int) -> dict[str, Clip]:
    """Return the ways to clip a matrix along an axis."""
    kept = "i" if axis == 1 else "j"

    def factors(squares: Array, c: float) -> Array:
        return np.expand_dims(np.float32(c) / np.maximum(np.sqrt(squares), np.float32(c)), axis)

    def by_einsum(ts: list[Array], c: float) -> list[Array]:
        (t,) = ts
        return [np.multiply(t, factors(np.einsum(f"ij,ij->{kept}", t, t), c))]

    def by_vecdot(ts: list[Array], c: float) -> list[Array]:
        (t,) = ts
        return [np.multiply(t, factors(vecdot(t, t, axis=axis), c))]

    # NumPy has it since 2.0.
    vecdot: Any = getattr(np, "vecdot", None)
    return {"einsum": by_einsum, **({"vecdot": by_vecdot} if vecdot else {})}


class NumPy(Library):
    """NumPy."""

    @property
    def version(self) -> str:
        """The version that runs."""
        return np.__version__

    def forms(self, operation: Operation) -> dict[str, Clip]:
        """Return the ways that may be the fastest."""
        if operation.function == GLOBAL:
            ways: dict[str, Any] = {NEW: clip_new, IN_PLACE: clip_in_place}
            return {"vdot": ways.get(operation.mode, clip_if_needed)}
        if operation.function == BOUNDS:
            return {"clip": clip_to_bounds, "maximum": clip_to_bounds_in_steps}
        return {"vdot": clip_each} if operation.function == EACH else clip_slices(operation.axis)
