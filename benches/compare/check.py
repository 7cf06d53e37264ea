"""Each timed result against one in float64. Of long arrays, blocks all over them are compared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from data import Data, blocks
from peers import OURS, work_limit
from rows import IN_PLACE, UNCLIPPED

if TYPE_CHECKING:
    from data import Array
    from peers import Peer
    from rows import Task
    from timing import Form

#: Elements compared of an array.
SAMPLE = 1 << 21
#: The largest error of gradclip, as a share of the largest number: less than that of a float32 sum.
EXACT = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-23, "complex64": 2**-23, "float64": 1e-14}
#: The usual error of a peer that computes in the dtype. Larger errors are noted, but the peer counts.
USUAL = {"bfloat16": 0.02, "float16": 4e-3, "float32": 1e-4, "complex64": 1e-4, "float64": 1e-7}
#: A peer with a larger error does not count.
WRONG = 0.1


class Checker:
    """Knows the right results of one task on its inputs."""

    def __init__(self, task: Task, data: Data) -> None:
        """Compute the values that do not depend on the library."""
        self.task, self.data = task, data
        self.limit = work_limit(task, data)
        if task.axes is not None or task.function == "norm":
            self.norms = norms(task, data)

    def check(self, peer: Peer, form: Form) -> tuple[bool, str]:
        """Return whether the results of a form count, and what there is to say about them."""
        names: dict[str, Any] = {}
        # TensorFlow and JAX return new arrays; their form in place is their usual one.
        in_place = self.task.mode == IN_PLACE and peer.writes
        if in_place:
            # A limit that is barely exceeded would not show whether anything was scaled.
            names["c"] = iter([self.limit]) if hasattr(form.names["c"], "__next__") else self.limit
        try:
            off = self._off(peer, form.evaluate(**names))
        except Exception as error:  # noqa: BLE001 (whatever a library says to what it cannot do)
            lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
            return False, lines[-1][:200]
        finally:
            if in_place:
                self.data.restore(peer.owner)
        kind = self.data.dtype.name
        wrong, usual = (EXACT[kind], EXACT[kind]) if peer.name == OURS else (WRONG, USUAL[kind])
        if not off <= wrong:
            return False, f"wrong, off by {off:.2g}"
        return True, f"error of {off:.1g} of the largest number" if off > usual else ""

    def _off(self, peer: Peer, result: Any) -> float:
        """Return the error of a result, as a share of the largest number in it."""
        task, data = self.task, self.data
        if task.function == "clip_by_global_norm":
            return self._off_list(peer, result)
        if task.function == "norm":
            return difference(np.atleast_1d(peer.to_numpy(result)), self.norms, 1)
        (original,) = data.inputs
        found = peer.to_numpy(result)
        if task.function == "clip_by_value":
            return max(
                difference(found.reshape(-1)[where], np.clip(block, np.float32(-0.01), np.float32(0.01)), 1)
                for where, block in blocks(original, SAMPLE)
            )
        if task.axes is None:
            return difference(found, original, self.limit / data.norm)
        factors = np.minimum(self.limit / self.norms, 1)
        return difference(found, original, np.broadcast_to(factors, original.shape))

    def _off_list(self, peer: Peer, result: Any) -> float:
        """Return the error of a clipped list, its norm, or both."""
        found, norm = result if isinstance(result, tuple) else (result, None)
        factor = self.limit / self.data.norm
        if self.task.mode == UNCLIPPED:
            factor = 1.0
            if not isinstance(result, tuple):
                found, norm = None, result
        off = 0.0 if norm is None else abs(float(norm) / self.data.norm - 1)
        if found is not None:
            pairs = zip(found, self.data.inputs, strict=True)
            off = max(off, *(difference(peer.to_numpy(one), original, factor) for one, original in pairs))
        return off


def difference(found: Array, original: Array, factor: Array | float) -> float:
    """Compare blocks of an array with those of `original * factor`: the largest difference, of the largest number."""
    if found.shape != original.shape:
        raise ValueError(f"the shape is {found.shape} and not {original.shape}")
    wide = np.complex128 if original.dtype.kind == "c" else np.float64
    flat = found.reshape(-1)
    worst = 0.0
    for where, block in blocks(original, SAMPLE):
        part = factor
        if isinstance(factor, np.ndarray):
            part = factor[np.unravel_index(np.arange(where.start, where.start + len(block)), factor.shape)]
        expected = block.astype(wide) * part
        off = np.max(np.abs(flat[where].astype(wide) - expected)) / np.max(np.abs(expected))
        # NaN is not smaller than anything.
        worst = worst if off <= worst else float(off)
    return worst


def norms(task: Task, data: Data) -> Array:
    """Compute the norms of a tensor, or of its slices with the axes kept, in float64."""
    (t,) = data.inputs
    if task.axes is None:
        if task.ord == 2:  # noqa: PLR2004 (Euclid's)
            return np.array([data.norm])
        if task.ord == math.inf:
            return np.array([max(float(np.max(np.abs(block))) for _, block in blocks(t))])
        total = math.fsum(float(np.sum(np.abs(block.astype(np.float64)) ** task.ord)) for _, block in blocks(t))
        return np.array([total ** (1 / task.ord)])
    axes = (task.axes,) if isinstance(task.axes, int) else task.axes
    letters = "ijklmn"[: t.ndim]
    kept = "".join(letter for axis, letter in enumerate(letters) if axis not in axes)
    found: Array = np.sqrt(np.einsum(f"{letters},{letters}->{kept}", t, t, dtype=np.float64))
    return found if task.function == "norm" else np.expand_dims(found, axes)
