"""Results beside those of gradclip on the CPU."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gradclip as gc
import numpy as np

from on_gpu.rows import HUGE, IN_PLACE, NORM, UNCLIPPED

if TYPE_CHECKING:
    from on_gpu.arrays import Arrays
    from on_gpu.rows import Row

#: The relative error of peers.
TOLERANCE = {"float32": 1e-3, "bfloat16": 2e-2, "float16": 5e-3, "float64": 1e-4}
#: Elements of peers' results that are compared.
SOME = 1 << 20


class Check:
    """Compares results with those of gradclip on the CPU."""

    def __init__(self, arrays: Arrays, row: Row) -> None:
        """Compute what a clip makes of a set, and the norm."""
        self.arrays = arrays
        self.norm: float | None = None
        host, limit = arrays.on_host(), replace(row, operation=IN_PLACE).limit
        views = arrays.views(host)
        if row.axis is not None:
            gc.clip_by_norm(views[0], limit, axes=row.axis, out=views[0])
        elif len(row.shapes) > 1 or row.elements < HUGE:
            _, self.norm = gc.clip_by_global_norm(views, limit, out=views)
        else:  # the elements of the pool again and again, which all have the same factor
            self.norm = float(gc.global_norm(views))
            scaled, _ = gc.clip_by_global_norm([arrays.pool], limit, use_norm=self.norm)
            self.clipped = arrays.filled(scaled[0])
            return
        self.clipped = arrays.cupy.asarray(host)

    def problem(self, row: Row, got: Any, norm: Any, *, exact: bool) -> str | None:
        """Return what is wrong with a norm, and with a buffer that results were written to."""
        expected = self.arrays.filled(self.arrays.pool) if row.operation in {NORM, UNCLIPPED} else self.clipped
        if self.norm is None:
            norm = None  # each slice has its own, which gradclip does not return
        if exact:
            if norm is not None and float(norm) != self.norm:
                return "another norm than on the CPU"
            differ = bool((got.view(np.int64) != expected.view(np.int64)).any())
            return "other bits than on the CPU" if differ else None
        tolerance = TOLERANCE[row.dtype]
        if norm is not None and not math.isclose(float(norm), self.norm or 0.0, rel_tol=tolerance):
            return f"the norm is {float(norm):g}, not {self.norm:g}"
        one, other = (each[:SOME].get().astype(np.float64) for each in (got, expected))
        is_near = np.abs(one - other).max() <= tolerance * np.abs(other).max()
        return None if is_near else "far from the CPU's result"
