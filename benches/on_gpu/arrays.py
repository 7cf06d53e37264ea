"""The arrays of a row."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from data import dtype_of

if TYPE_CHECKING:
    from data import Array

    from on_gpu.rows import Row


class Arrays:
    """The arrays of a set, in one buffer, at such addresses as CuPy's pool gives."""

    ALIGNMENT = 512

    def __init__(self, cupy: Any, row: Row, pool: Array) -> None:
        """Fill them with the elements of a pool, again and again."""
        self.cupy, self.pool, self.shapes = cupy, pool.astype(dtype_of(row.dtype)), row.shapes
        self.starts, self.size, unit = [], 0, self.ALIGNMENT // self.pool.itemsize
        for shape in row.shapes:
            self.starts.append(self.size)
            self.size += -(-math.prod(shape) // unit) * unit
        self.buffer = self.filled(self.pool)

    def filled(self, pool: Array) -> Any:
        """Make a buffer on the device."""
        buffer = self.cupy.empty(self.size, pool.dtype)
        done = min(self.size, pool.size)
        buffer[:done] = self.cupy.asarray(pool[:done])
        while done < self.size:
            more = min(done, self.size - done)
            buffer[done : done + more] = buffer[:more]
            done += more
        return buffer

    def restore(self) -> None:
        """Undo what was written to the arrays."""
        self.buffer[...] = self.filled(self.pool)

    def on_host(self) -> Array:
        """Make the same buffer on the host."""
        buffer = np.empty(self.size, self.pool.dtype)

        def fill(start: int) -> None:
            part = buffer[start : start + self.pool.size]
            part[:] = self.pool[: part.size]

        with ThreadPoolExecutor() as threads:
            list(threads.map(fill, range(0, self.size, self.pool.size)))
        return buffer

    def views(self, buffer: Any) -> list[Any]:
        """Return the arrays that lie in a buffer, of any library."""
        parts = zip(self.starts, self.shapes, strict=True)
        return [buffer[start : start + math.prod(shape)].reshape(shape) for start, shape in parts]
