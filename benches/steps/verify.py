"""A result against one in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from steps.libraries import OURS, VARIANTS
from steps.operations import BOUNDS, EACH, GLOBAL

if TYPE_CHECKING:
    from steps.loop import Program
    from steps.operations import Array, Operation

#: The largest error of results, as a share of the largest number. Peers sum in float32.
EXACT, USUAL = 1e-5, 1e-2
#: Elements that are compared in one go.
BLOCK = 1 << 20


def allowed(library: str) -> float:
    """Return the largest error that is allowed for a library."""
    return EXACT if library == OURS or library in VARIANTS else USUAL


def squares(t: Array, axis: int | None = None) -> Array:
    """Return sums of squares in float64."""
    if axis == 1 or (axis is None and t.ndim > 1):
        # By groups of rows: there is no float64 copy of all.
        rows = t.reshape(len(t), -1)
        step = max(1, BLOCK // rows.shape[1])
        parts = [np.square(rows[i : i + step], dtype=np.float64).sum(1) for i in range(0, len(rows), step)]
        sums: Array = np.concatenate(parts)
        return sums if axis == 1 else sums.sum()
    found: Array = np.sum(np.square(t, dtype=np.float64), axis=axis)
    return found


def factors(originals: list[Array], operation: Operation) -> list[Array]:
    """Return the factor of each tensor."""
    if operation.function == GLOBAL:
        total = math.sqrt(sum(float(squares(t)) for t in originals))
        return [np.asarray(min(1.0, operation.limit / total))] * len(originals)
    if operation.function == EACH:
        return [np.minimum(1.0, operation.limit / np.sqrt(squares(t))) for t in originals]
    (t,) = originals
    if operation.function == BOUNDS:
        return [np.minimum(1.0, operation.limit / np.maximum(np.abs(t.astype(np.float64)), np.finfo(np.float32).tiny))]
    norms = np.sqrt(squares(t, operation.axis))
    return [np.expand_dims(np.minimum(1.0, operation.limit / norms), operation.axis)]


def difference(found: Array, original: Array, factor: Array) -> float:
    """Return the largest difference from the product, as a share of the largest number."""
    if found.shape != original.shape or found.dtype != original.dtype:
        raise ValueError(f"{found.dtype} of shape {found.shape}, not {original.dtype} of shape {original.shape}")
    whole = np.broadcast_to(factor, original.shape)
    rows = max(1, BLOCK * len(original) // max(1, original.size)) if original.ndim else 1
    largest = off = 0.0
    for i in range(0, len(original), rows):
        expected = original[i : i + rows].astype(np.float64) * whole[i : i + rows]
        largest = max(largest, float(np.max(np.abs(expected))))
        block = float(np.max(np.abs(found[i : i + rows] - expected)))
        # NaN is not smaller than anything.
        if not block <= off:
            off = block
    return off / largest


def off_by(program: Program) -> float:
    """Return the error of one more call of a program."""
    operation, library = program.scenario.operation, program.library
    gradients = program.source.gradients()
    originals = [t.copy() for t in gradients]
    clipped = program.clip(library.adopt(gradients, operation), operation.limit)
    return max(
        difference(library.to_numpy(found), original, factor)
        for found, original, factor in zip(clipped, originals, factors(originals, operation), strict=True)
    )
