"""A stand-in for CuPy over host memory: as much of it as gradclip relies on, and no more.

What is not here, gradclip must not use: there is no arithmetic, no copy and no conversion to a number, so that nothing
can be computed or waited for behind one's back. Values are read with `get` alone, which counts how often it was called.
"""

from __future__ import annotations

import ctypes
import types
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.lib.stride_tricks import as_strided

IMPLICIT = (
    "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
)


class UnownedMemory:
    """Memory of somebody else, who is kept alive."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = 0) -> None:
        self.ptr, self.size, self.device_id = ptr, size, device_id
        self._owner = owner


class MemoryPointer:
    """A pointer into memory."""

    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id


class Device:
    """Which of the devices an array lives on."""

    def __init__(self, id: int) -> None:
        self.id = id


class Flags:
    def __init__(self, host: np.ndarray) -> None:
        self.c_contiguous, self.f_contiguous = host.flags.c_contiguous, host.flags.f_contiguous


def allocated(nbytes: int, device_id: int = 0) -> MemoryPointer:
    """Memory that starts where CuPy's does: at a multiple of 512 bytes."""
    room = np.empty(nbytes + 512, dtype=np.uint8)
    start = -(-room.ctypes.data // 512) * 512
    return MemoryPointer(UnownedMemory(start, nbytes, room, device_id), 0)


def at(shape: Any, dtype: Any, memptr: Any, strides: Any) -> np.ndarray:
    """A NumPy array at a pointer into host memory, of this module or of CuPy itself."""
    mem, offset = memptr.mem, memptr.ptr - memptr.mem.ptr
    if 0 in shape or mem.ptr == 0:  # NumPy has no arrays at address 0
        return as_strided(np.empty(1, dtype), shape, strides)
    buffer = (ctypes.c_char * mem.size).from_address(mem.ptr)
    buffer.owner = mem  # keeps it as long as there are views
    return np.ndarray(shape, dtype, buffer, offset, strides)  # which checks that nothing lies outside


class ndarray:  # noqa: N801 (its name there)
    """Memory on the device, seen as an array."""

    __slots__ = ("__weakref__", "_host", "_mem")
    __hash__ = None  # type: ignore[assignment]
    __iter__ = None

    gets: ClassVar[int] = 0
    """How often values were read, which would wait for a device."""

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"
    ) -> None:
        shape, dtype = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,), np.dtype(dtype)
        steps = np.empty(shape, dtype, order=order).strides if strides is None else strides
        if memptr is None:
            memptr = allocated(int(np.prod(shape, dtype=object)) * dtype.itemsize)
        self._host, self._mem = at(shape, dtype, memptr, steps), memptr.mem

    def _view(self, host: np.ndarray) -> ndarray:
        if host.size and not np.may_share_memory(host, self._host):
            raise NotImplementedError("this would be a copy")
        view = object.__new__(ndarray)
        view._host, view._mem = host, self._mem
        return view

    @property
    def data(self) -> MemoryPointer:
        return MemoryPointer(self._mem, self._host.ctypes.data - self._mem.ptr if self._mem.ptr else 0)

    @property
    def device(self) -> Device:
        return Device(self._mem.device_id)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._host.shape

    @shape.setter
    def shape(self, shape: tuple[int, ...]) -> None:
        self._host.shape = shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self._host.strides

    @property
    def dtype(self) -> np.dtype:
        return self._host.dtype

    @property
    def size(self) -> int:
        return self._host.size

    @property
    def ndim(self) -> int:
        return self._host.ndim

    @property
    def itemsize(self) -> int:
        return self._host.itemsize

    @property
    def nbytes(self) -> int:
        return self._host.nbytes

    @property
    def flags(self) -> Flags:
        return Flags(self._host)

    @property
    def _c_contiguous(self) -> bool:
        return self._host.flags.c_contiguous

    @property
    def _f_contiguous(self) -> bool:
        return self._host.flags.f_contiguous

    @property
    def T(self) -> ndarray:  # noqa: N802
        return self.transpose()

    def transpose(self, *axes: Any) -> ndarray:
        return self._view(self._host.transpose(*axes))

    def reshape(self, *shape: Any) -> ndarray:
        return self._view(self._host.reshape(*shape))

    def view(self, dtype: Any) -> ndarray:
        return self._view(self._host.view(dtype))

    def __getitem__(self, index: Any) -> ndarray:
        index = index if isinstance(index, tuple) else (index,)
        if not all(i is None or i is Ellipsis or isinstance(i, (int, slice)) for i in index):
            raise NotImplementedError("this would be a copy")
        return self._view(self._host[index if Ellipsis in index else (*index, ...)])

    def get(self) -> np.ndarray:
        """The values, on the host."""
        ndarray.gets += 1
        return self._host.copy(order="K")

    def set(self, values: np.ndarray) -> None:
        """Copies values from the host."""
        if values.dtype != self.dtype or values.shape != self.shape:
            raise ValueError("CuPy copies arrays of the same shape and dtype")
        self._host[...] = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise TypeError(IMPLICIT)

    def __bool__(self) -> NoReturn:
        raise NotImplementedError("this would wait for the device")

    def __eq__(self, other: object) -> NoReturn:
        raise NotImplementedError("this would compute something")

    def __repr__(self) -> str:
        """Without the values, which CuPy would read here."""
        return f"<{self.dtype} on device {self._mem.device_id}, shape {self.shape}, strides {self.strides}>"


ndarray.__module__, ndarray.__qualname__ = "cupy", "ndarray"


def module() -> types.ModuleType:
    """The module that is "cupy" in sys.modules."""
    cupy, cupy.cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")  # type: ignore[attr-defined]
    cupy.ndarray = ndarray  # type: ignore[attr-defined]
    cupy.empty = ndarray  # type: ignore[attr-defined] (which fills nothing)
    cupy.cuda.UnownedMemory, cupy.cuda.MemoryPointer = UnownedMemory, MemoryPointer
    cupy.cuda.Device = Device
    return cupy
