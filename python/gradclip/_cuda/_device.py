"""CuPy as a device of the launches. A caller that has a CuPy array has imported CuPy, so it is not imported here."""

from __future__ import annotations

import ctypes
import sys
import threading
from contextlib import nullcontext
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradclip._cuda._words import PARAMS

if TYPE_CHECKING:
    from collections.abc import Hashable
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from gradclip._cuda._queue import Device, Memory

#: No product and sum in one step, so that the bits are those of the CPU. CuPy adds the architecture, and flushes
#: subnormal float32, which the kernels allow for.
OPTIONS = ("-std=c++17", "--fmad=false")

#: CUDA's ``cudaStreamPerThread``.
_PER_THREAD = 2
_NOTHING = nullcontext()
_BY_VALUE = np.dtype((np.void, 8 * PARAMS))


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
    # The kernel itself: a `RawKernel` would look it up at each launch.
    return module.get_function(name).kernel


class _Argument(np.ndarray[Any, Any]):
    """The argument of kernels: one element, which goes by value.

    CuPy reads this attribute at each launch, and NumPy makes it anew each time.
    """

    __array_interface__: Any = None


class _Uploaded(NamedTuple):
    """Memory on the device, and the words that it was filled with.

    The words are not pinned. CUDA does not promise that it has read them when the call that copies them returns. So
    they live as long as the memory.
    """

    memory: Any
    words: NDArray[np.int64]

    @property
    def ptr(self) -> int:
        """Its address."""
        address: int = self.memory.ptr
        return address


_thread = threading.local()


def _token_of_thread() -> object:
    """Return an object that no other thread has. Python reuses the number of a thread that has ended."""
    try:
        token: object = _thread.token
    except AttributeError:
        token = _thread.token = object()
    return token


class CupyDevice:
    """A device and its current stream."""

    def __init__(self, device: int) -> None:
        self.id = device
        self.multiprocessors = _multiprocessors(device)
        self.stream = cupy().cuda.get_current_stream(device)
        address = self.stream.ptr
        # One number stands for the default streams of all threads, if each has its own.
        thread = _token_of_thread() if address == _PER_THREAD else None
        #: The device and stream that own scratch memory.
        self.key: Hashable = device, address, thread

    def current(self) -> AbstractContextManager[Any]:
        """Make it the current device."""
        cuda = cupy().cuda
        if cuda.runtime.getDevice() == self.id:
            return _NOTHING
        context: AbstractContextManager[Any] = cuda.Device(self.id)
        return context

    def alloc(self, nbytes: int) -> Memory:
        """Allocate memory from CuPy's pool, for this stream."""
        memory: Memory = cupy().cuda.alloc(nbytes)
        return memory

    def upload(self, words: NDArray[np.int64]) -> Memory:
        """Copy words to new memory, in the order of the stream."""
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

    def argument(self, params: NDArray[np.int64]) -> Any:
        """Return words as an argument of kernels. It shares their memory."""
        value = params.view(_BY_VALUE)
        argument = value.view(_Argument)
        argument.__array_interface__ = value.__array_interface__
        return (argument,)

    def launch(self, function: Any, grid: int, block: int, argument: Any) -> None:
        """Launch a kernel. Its argument goes by value, so it may be changed afterwards."""
        function((grid,), (block,), argument, 0, self.stream)

    def is_capturing(self) -> bool:
        """Whether the stream is being captured in a CUDA graph."""
        return bool(self.stream.ptr) and bool(self.stream.is_capturing())
