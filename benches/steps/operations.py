"""The operations: a function, and where its results go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]
    #: Clips a list of a library's own arrays, and gives a list of them.
    Clip = Callable[[list[Any], float], list[Any]]

NEW, IN_PLACE, UNCLIPPED = "new", "in place", "unclipped"
#: The functions: one norm of the whole list, one of each tensor, one of each slice of the only tensor.
GLOBAL, EACH, SLICES = "clip_by_global_norm", "clip_by_norm of each tensor", "clip_by_norm along an axis"
#: A smallest and a largest value for each column of the only tensor.
BOUNDS = "clip_by_value to bounds of columns"

#: Every norm is about 1, so a limit is a constant.
LIMITS = {NEW: 0.5, IN_PLACE: 0.5, UNCLIPPED: 2.0}


@cache
def bounds(columns: int, limit: float) -> tuple[Array, Array]:
    """Return the smallest and the largest value of each column."""
    largest = np.full(columns, limit, np.float32)
    return -largest, largest


@dataclass(frozen=True)
class Operation:
    """The call to be timed."""

    function: str = GLOBAL
    mode: str = NEW
    #: The axis that `SLICES` sums over.
    axis: int = 0

    @property
    def limit(self) -> float:
        """The largest norm allowed, or the largest magnitude."""
        return LIMITS[self.mode]
