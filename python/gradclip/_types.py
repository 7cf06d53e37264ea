"""The types of arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence


class DeviceArray(Protocol):
    """An array on a GPU, of CuPy: what type checkers see of it, whether or not CuPy is installed."""

    @property
    def __cuda_array_interface__(self) -> Any:
        """The protocol of such arrays."""


Array: TypeAlias = npt.NDArray[Any]
#: An array, or what ``numpy.asarray`` makes one of.
Tensor: TypeAlias = npt.ArrayLike
#: A Python or NumPy number, or a 0-d array of one.
Number: TypeAlias = "float | np.integer[Any] | np.floating[Any] | Array"
#: The same, and one on the device of the tensor.
DeviceNumber: TypeAlias = "Number | DeviceArray"
DeviceT = TypeVar("DeviceT", bound=DeviceArray)
#: An axis, or several.
Axes: TypeAlias = "SupportsIndex | Sequence[SupportsIndex] | None"
#: The order of a norm.
Order: TypeAlias = "str | Number"
