"""The rows: sets of arrays, and the operations on them."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from data import DEVIATION, dtype_of
from rows import MODELS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from data import Shape

NORM, NEW, IN_PLACE, UNCLIPPED = "norm", "new", "in place", "unclipped"

DTYPES: tuple[str, ...] = ("float32", "bfloat16", "float64", "float16")
if importlib.util.find_spec("ml_dtypes") is None:
    DTYPES = tuple(name for name in DTYPES if name != "bfloat16")
#: A set of so many bytes has targets of bandwidth, and a row of its norm alone.
LARGE = 400_000_000
MANY, TENFOLD, HUGE = 1_000, 10**8, 10**9


def sets(dtype: str) -> dict[str, tuple[list[Shape], int | None]]:
    """Return the sets by name, and the axis of norms of slices. The smallest comes first, as it compiles kernels."""
    lists: dict[str, list[Shape]] = {
        "one of 10": [(10,)],
        "1,000 x 1,024": [(1_024,)] * MANY,
        "10,000 x 16": [(16,)] * 10_000,
        **{name: MODELS[name]() for name in ("ResNet-50", "LSTM", "GPT-2 small")},
        **({"one of 10^8": [(TENFOLD,)]} if dtype == "float32" else {}),
        "one of 10^9": [(HUGE,)],
    }
    tall: list[Shape] = [(65_536, 1_024)]
    slices: dict[str, tuple[list[Shape], int | None]] = {
        "rows of 1,048,576 x 64": ([(1_048_576, 64)], 1),
        "rows of 65,536 x 1,024": (tall, 1),
        "columns of 65,536 x 1,024": (tall, 0),
        "columns of 4,096 x 4,096": ([(4_096, 4_096)], 0),
    }
    return {**{name: (shapes, None) for name, shapes in lists.items()}, **slices}


@dataclass(frozen=True)
class Row:
    """A set of arrays, and the operation on them."""

    what: str
    operation: str
    dtype: str
    shapes: list[Shape]
    axis: int | None

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.what}, {self.operation}, {self.dtype}"

    @property
    def elements(self) -> int:
        """Elements of the set."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def nbytes(self) -> int:
        """Bytes of the set."""
        return dtype_of(self.dtype).itemsize * self.elements

    @property
    def moved(self) -> int:
        """Bytes that have to be moved: the norm of a row is known before it has left the registers."""
        if self.operation in {NORM, UNCLIPPED}:
            return self.nbytes
        return self.nbytes * (2 if self.axis == 1 else 3)

    @property
    def limit(self) -> float:
        """A limit that clips, or none."""
        length = self.elements if self.axis is None else self.shapes[0][self.axis]
        return DEVIATION * math.sqrt(length) * (2.0 if self.operation == UNCLIPPED else 0.5)


def all_rows() -> Iterator[Row]:
    """Return the plan."""
    for dtype in DTYPES:
        for what, (shapes, axis) in sets(dtype).items():
            rows = [Row(what, operation, dtype, shapes, axis) for operation in (NORM, NEW, IN_PLACE, UNCLIPPED)]
            yield from rows if axis is None and rows[0].nbytes >= LARGE else rows[1:]
