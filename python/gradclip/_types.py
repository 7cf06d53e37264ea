"""The types of arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

Array: TypeAlias = npt.NDArray[Any]
#: An array, or what ``numpy.asarray`` makes one of.
Tensor: TypeAlias = npt.ArrayLike
#: A Python or NumPy number, or a 0-d array of one.
Number: TypeAlias = "float | np.integer[Any] | np.floating[Any] | Array"
#: An axis, or several.
Axes: TypeAlias = "SupportsIndex | Sequence[SupportsIndex] | None"
#: The order of a norm.
Order: TypeAlias = "str | Number"
