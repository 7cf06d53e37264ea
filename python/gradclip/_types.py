"""The types of arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradclip._slices import IndexedSlices


class DeviceArray(Protocol):
    """A CuPy array on a GPU, as type checkers see it.

    The protocol needs no CuPy.
    """

    @property
    def __cuda_array_interface__(self) -> Any:
        """Description of the memory."""


class LazyArray(Protocol):
    """A dask array, as type checkers see it.

    The protocol needs no dask.
    """

    def __dask_graph__(self) -> Any:
        """Return the tasks."""


Array: TypeAlias = npt.NDArray[Any]
#: An array of another package.
OtherArray: TypeAlias = "DeviceArray | LazyArray"
OtherT = TypeVar("OtherT", bound=OtherArray)
#: The dtype of an array that a function keeps.
ScalarT = TypeVar("ScalarT", bound=np.generic)
#: The result for an entry of a list: an array, `IndexedSlices` or None, as the entry is. Type checkers
#: see Any, because a union would have to be narrowed at each use.
Result: TypeAlias = Any
#: An array, or what ``numpy.asarray`` makes one of.
Tensor: TypeAlias = npt.ArrayLike
#: A Python or NumPy number, or a 0-d array of one.
Number: TypeAlias = "float | np.integer[Any] | np.floating[Any] | Array"
#: The same, and one of another package.
OtherNumber: TypeAlias = "Number | OtherArray"
#: What the functions of one tensor take.
AnyTensor: TypeAlias = "Tensor | IndexedSlices | OtherArray"
#: What they return, and write to.
AnyResult: TypeAlias = "Array | IndexedSlices | OtherArray"
#: A Python or NumPy integer.
Integer: TypeAlias = "int | np.integer[Any]"
#: An axis, or several.
Axes: TypeAlias = "Integer | Sequence[Integer] | npt.NDArray[np.integer[Any]] | None"
#: The order of a norm.
Order: TypeAlias = "str | Number"
#: Effect of NaN and infinity among the elements.
NonFinite: TypeAlias = Literal["propagate", "raise", "zero", "keep"]
#: The processes that hold a copy of a tensor.
Replicated: TypeAlias = "bool | int | Sequence[bool | int] | None"
