"""The interface of a library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from steps.operations import Array, Clip, Operation


class Library(ABC):
    """Clips lists of its own arrays."""

    @property
    @abstractmethod
    def version(self) -> str:
        """The version that runs."""

    @abstractmethod
    def forms(self, operation: Operation) -> dict[str, Clip]:
        """Return the ways that may be the fastest, by name."""

    def adopt(self, arrays: list[Array], operation: Operation) -> list[Any]:
        """Make the library's own arrays of NumPy's. This is not timed: its users have such arrays already."""
        del operation
        return arrays

    def to_numpy(self, array: Any) -> Array:
        """Return a result to NumPy."""
        return np.asarray(array)
