"""CuPy as a device of the launches. CuPy is not imported: who has an array of it has imported it."""

from __future__ import annotations

import ctypes
import sys
import threading
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from gradclip._cuda._words import PARAMS

if TYPE_CHECKING:
    from collections.abc import Hashable
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from gradclip._cuda._queue import Device, Memory

#: No product and sum in one step, so that the bits are those of the CPU. CuPy adds the architecture, and flushes
#: subnormal float32, which the kernels allow for.
OPTIONS = ("-std=c++17", "--fmad=false")


#: CUDA's ``cudaStreamPerThread``.
_PER_THREAD = 2


@cache
def source() -> str:
    """Return the source of the kernels."""
    package = files("gradclip._cuda")
    return "".join(package.joinpath(name).read_text(encoding="utf-8") for name in ("numbers.cuh", "kernels.cu"))


def cupy() -> Any:
    """Return the module CuPy."""
    return sys.modules["cupy"]


def device_of(array: Any) -> Device:
    """Return the device that an array lies on, with its current stream."""
    return CupyDevice(array.data.device_id)


def empty(shape: tuple[int, ...], dtype: Any, like: Any) -> Any:
    """Make a C-contiguous array on the device of another one, which is the current device."""
    del like
    return cupy().ndarray(shape, dtype)


@cache
def _multiprocessors(device: int) -> int:
    if cupy().cuda.runtime.is_hip:
        raise NotImplementedError("gradclip: CuPy for ROCm is not supported: the kernels are written for CUDA")
    count: int = cupy().cuda.Device(device).attributes["MultiProcessorCount"]
    return count


@cache
def _function(device: int, name: str) -> Any:
    """Return a kernel, compiled for the current device; CuPy keeps what it compiled on disk."""
    del device
    module = cupy().RawModule(code=source(), options=OPTIONS, name_expressions=(name,))
    return module.get_function(name)


class _Uploaded(NamedTuple):
    """Memory on the device, and what it was filled with, which lives as long: a copy may still be under way."""

    memory: Any
    words: NDArray[np.int64]

    @property
    def ptr(self) -> int:
        """Its address."""
        address: int = self.memory.ptr
        return address


class CupyDevice:
    """A device and its current stream."""

    def __init__(self, device: int) -> None:
        self.id = device
        self.multiprocessors = _multiprocessors(device)
        self.stream = cupy().cuda.get_current_stream(device)

    @property
    def key(self) -> Hashable:
        """The device and stream that own scratch memory."""
        # One number stands for the default streams of all threads, if each has its own.
        thread = threading.get_ident() if self.stream.ptr == _PER_THREAD else None
        return self.id, self.stream.ptr, thread

    def current(self) -> AbstractContextManager[Any]:
        """Make it the current device."""
        context: AbstractContextManager[Any] = cupy().cuda.Device(self.id)
        return context

    def alloc(self, nbytes: int) -> Memory:
        """Allocate memory from CuPy's pool, for this stream."""
        memory: Memory = cupy().cuda.alloc(nbytes)
        return memory

    def upload(self, words: NDArray[np.int64]) -> Memory:
        """Copy words to new memory. As they are not pinned, the driver reads them before it goes on."""
        data = ctypes.c_void_p(words.ctypes.data)
        if self.is_capturing():
            # Once and now: a copy that is captured would read the host's memory again at each run of the graph. Not in
            # memory of the pool, which the graph may write to for others.
            memory = cupy().cuda.MemoryPointer(cupy().cuda.Memory(words.nbytes), 0)
            aside = cupy().cuda.Stream(non_blocking=True)
            memory.copy_from_host_async(data, words.nbytes, aside)
            aside.synchronize()
        else:
            memory = cupy().cuda.alloc(words.nbytes)
            memory.copy_from_host_async(data, words.nbytes, self.stream)
        return _Uploaded(memory, words)

    def function(self, name: str) -> Any:
        """Return a kernel."""
        return _function(self.id, name)

    def launch(self, function: Any, grid: int, block: int, params: NDArray[np.int64]) -> None:
        """Launch a kernel. Its argument goes by value, so it may be changed afterwards."""
        function((grid,), (block,), (params.view(f"V{8 * PARAMS}"),))

    def download(self, memory: Memory, nbytes: int) -> bytes:
        """Copy memory to the host, which waits for it."""
        data = ctypes.create_string_buffer(nbytes)
        self.stream.synchronize()
        pointer: Any = memory.memory if isinstance(memory, _Uploaded) else memory
        pointer.copy_to_host(ctypes.addressof(data), nbytes)
        return data.raw

    def is_capturing(self) -> bool:
        """Whether the stream is being captured in a CUDA graph."""
        return bool(self.stream.ptr) and bool(self.stream.is_capturing())
