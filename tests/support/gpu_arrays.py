"""Device arrays for tests, over host memory where there is no GPU, and a device that tells what was launched on it.

Three kinds: the stand-in of fake_cupy.py; arrays of CuPy itself over host memory (which needs no driver as long as
nothing is computed), both with the kernels run by cuda_shim.py; and the real thing.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import cuda_shim
import extent
import fake_cupy
import layouts
import numpy as np
import oracle
import pytest

HAS_CUPY = importlib.util.find_spec("cupy") is not None


@functools.cache
def devices() -> int:
    """The number of GPUs."""
    if not has_device():
        return 0
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


@functools.cache
def has_device() -> bool:
    if not HAS_CUPY:
        return False
    import cupy

    return cupy.cuda.is_available()


def some(dtypes: list[Any]) -> list[Any]:
    """All of these dtypes, but a sample under the profile ``fast``, because kernels on the CPU are slow."""
    sample = {oracle.BF16, np.float32, np.complex128, np.int8, np.uint64}
    return dtypes if extent.IS_WHOLE else [dtype for dtype in dtypes if dtype in sample]


def thinned(values: Iterable[Any], step: int) -> list[Any]:
    """All of these values, but one of every `step` under the profile ``fast``, for the same reason."""
    return list(values)[:: 1 if extent.IS_WHOLE else step]


_ON_HOST = [
    pytest.param("stand-in", id="stand-in"),
    pytest.param("cupy", id="cupy", marks=pytest.mark.cupy),
]
_ON_DEVICE = [pytest.param("device", id="device", marks=pytest.mark.gpu)]
KINDS = [*_ON_HOST, *_ON_DEVICE]

# Marks of tests that take some kinds alone.
on_host = pytest.mark.parametrize("gpu", _ON_HOST, indirect=True)
on_device = pytest.mark.parametrize("gpu", _ON_DEVICE, indirect=True)


def _ends(a: np.ndarray) -> tuple[int, int]:
    """The first and the last address of an array that is not empty."""
    reach = [step * (n - 1) for step, n in zip(a.strides, a.shape, strict=True) if n > 1]
    start = a.ctypes.data
    return start + sum(min(r, 0) for r in reach), start + sum(max(r, 0) for r in reach) + a.itemsize


class Recorder:
    """A device that records its calls."""

    def __init__(self, device: Any, gpu: Gpu, id: int = 0) -> None:
        self._device, self._gpu = device, gpu
        self.key = (id, device.key, gpu.multiprocessors)  # launches that are held have a grid

    def current(self) -> Any:
        return self._device.current() if self._gpu.kind == "device" else contextlib.nullcontext()

    @property
    def multiprocessors(self) -> int:
        return self._gpu.multiprocessors or self._device.multiprocessors

    def alloc(self, nbytes: int) -> Any:
        return self._device.alloc(nbytes)

    def upload(self, words: np.ndarray) -> Any:
        self._gpu.uploads += 1
        return self._device.upload(words)

    def function(self, name: str) -> Any:
        return name, self._device.function(name)

    def argument(self, params: np.ndarray) -> Any:
        return self._device.argument(params)

    def launch(self, function: Any, grid: int, block: int, argument: Any) -> None:
        name, handle = function
        self._gpu.launches.append(name)
        self._device.launch(handle, grid, block, argument)

    def is_capturing(self) -> bool:
        return self._device.is_capturing()


class Gpu:
    """The value of the fixture: arrays to and from the device, and what it recorded."""

    def __init__(self, kind: str, cupy: Any) -> None:
        self.kind, self.cupy = kind, cupy
        self.launches: list[str] = []
        self.uploads = self.downloads = 0
        self._gets = fake_cupy.ndarray.gets
        # Few, because each thread of a grid takes its time here.
        self.multiprocessors = 0 if kind == "device" else 2
        self._get = cupy.ndarray.get  # CuPy's own, before calls of it are counted

    @property
    def ndarray(self) -> type:
        return self.cupy.ndarray

    @property
    def syncs(self) -> int:
        """The number of waits for the device."""
        return self.downloads + fake_cupy.ndarray.gets - self._gets

    def reset(self) -> None:
        self.launches.clear()
        self.uploads = self.downloads = 0
        self._gets = fake_cupy.ndarray.gets

    def _memory(self, nbytes: int, device_id: int, filled: np.ndarray | None = None) -> Any:
        """A pointer to memory on the device."""
        if self.kind == "device":
            if device_id >= devices():
                own = self._memory(nbytes, 0, filled)
                return self._pointer(own.ptr, nbytes, own, device_id)
            with self.cupy.cuda.Device(device_id):
                return (self.cupy.empty(max(nbytes, 1), np.uint8) if filled is None else self.cupy.asarray(filled)).data
        own = fake_cupy.allocated(nbytes)
        if filled is not None:
            fake_cupy.at((nbytes,), np.uint8, own, (1,))[...] = filled
        return self.pointer(own.ptr, nbytes, own.mem, device_id)

    def pointer(self, ptr: int, nbytes: int, owner: Any, device_id: int = 0) -> Any:
        """Memory of the host as memory of the device, which a real device cannot read."""
        assert self.kind != "device", "a kernel that reads the host's memory ends all work on a GPU in this process"
        return self._pointer(ptr, nbytes, owner, device_id)

    def _pointer(self, ptr: int, nbytes: int, owner: Any, device_id: int) -> Any:
        cuda = self.cupy.cuda
        return cuda.MemoryPointer(cuda.UnownedMemory(ptr, nbytes, owner, device_id), 0)

    def empty(self, shape: Any, dtype: Any, device_id: int = 0) -> Any:
        """A new C-contiguous array full of garbage."""
        dtype, n = np.dtype(dtype), int(np.prod(shape, dtype=np.int64))
        garbage = np.full(n * dtype.itemsize, 0xA5, np.uint8)
        return self.cupy.ndarray(tuple(shape), dtype, self._memory(garbage.nbytes, device_id, garbage))

    def array(self, x: Any, device_id: int = 0) -> Any:
        """A copy on the device: values, strides, and where it begins in the memory that it is a view of.

        A device that is not there is the first one by another number: for calls that are errors, and for `get`.
        """
        x = np.asarray(x).view(np.ndarray)
        if x.size == 0:
            return self.cupy.ndarray(x.shape, x.dtype, self._memory(0, device_id), x.strides)
        root = x
        while isinstance(root.base, np.ndarray):
            root = root.base
        ends = [_ends(a) for a in (x, root)]
        low, high = min(first for first, _ in ends), max(last for _, last in ends)
        content = fake_cupy.at(
            (high - low,), np.uint8, fake_cupy.MemoryPointer(fake_cupy.UnownedMemory(low, high - low, root), 0), (1,)
        )
        start = self._memory(high - low, device_id, content)
        pointer = self.cupy.cuda.MemoryPointer(start.mem, start.ptr - start.mem.ptr + x.ctypes.data - low)
        return self.cupy.ndarray(x.shape, x.dtype, pointer, x.strides)

    def arrays(self, entries: Any) -> list[Any]:
        """A list of them; None and numbers stay."""
        return [self.array(t) if isinstance(t, np.ndarray) else t for t in entries]

    def get(self, a: Any) -> np.ndarray:
        """The values, with the strides they have there; not counted."""
        if self.kind == "device":
            if a.data.device_id >= devices():
                a = self.cupy.ndarray(a.shape, a.dtype, self._pointer(a.data.ptr, a.nbytes, a, 0), a.strides)
            return self._get(a)
        return fake_cupy.at(a.shape, a.dtype, a.data, a.strides)

    def counted_get(self, a: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        """The method `get` of CuPy's arrays as others call it. CuPy's own needs a driver."""
        self.downloads += 1
        return self._get(a, *args, **kwargs) if self.kind == "device" else self.get(a)


@functools.cache
def shim() -> Any:
    """The device that runs kernels on the CPU. One for all tests: it takes its time to build them."""
    import kernel_names
    from gradclip._cuda import _device

    sanitize = "GRADCLIP_SANITIZE_KERNELS" in os.environ  # .ci/cuda sets it, and what such a process needs besides
    return cuda_shim.ShimDevice(_device.source(), kernel_names.instantiations(), sanitize=sanitize)


@functools.cache
def build_ahead() -> subprocess.Popen[bytes] | None:
    """Begins to compile the kernels in another process, so that they are ready when the first test needs them."""
    if not cuda_shim.has_compiler():
        return None
    code, paths = "import gpu_arrays; gpu_arrays.shim()", os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths})


def install(kind: str, patch: pytest.MonkeyPatch) -> Gpu:
    """Makes this kind of device arrays those that gradclip knows, as long as the patch lasts."""
    if kind == "device" and not has_device():
        pytest.skip("there is no GPU")
    if kind != "device" and not cuda_shim.has_compiler():
        pytest.skip("there is no compiler for the kernels")
    if kind == "stand-in":
        patch.setitem(sys.modules, "cupy", fake_cupy.module())
    else:
        import cupy  # noqa: F401
    gpu = Gpu(kind, sys.modules["cupy"])
    if kind != "stand-in":  # which counts them itself
        patch.setattr(gpu.ndarray, "get", lambda array, *args, **kwargs: gpu.counted_get(array, *args, **kwargs))
    from gradclip._cuda import _device

    recorders: dict[Any, Recorder] = {}
    device_of = _device.device_of

    def recorded(array: Any) -> Recorder:
        device = device_of(array) if kind == "device" else shim()
        where = (array.data.device_id, id(device), gpu.multiprocessors)
        if where not in recorders:
            recorders[where] = Recorder(device, gpu, where[0])
        return recorders[where]

    patch.setattr(_device, "device_of", recorded)
    if kind != "device":  # its allocator needs a driver
        patch.setattr(_device, "empty", lambda shape, dtype, like: gpu.empty(shape, dtype, like.data.device_id))
    return gpu


# ---- layouts that a device array can have


def permuted(x: np.ndarray) -> np.ndarray:
    """Axes in an uncommon order, the first of them backwards."""
    order = [*range(1, x.ndim, 2), *range(0, x.ndim, 2)]
    dense = np.array(x.transpose(order), order="C")
    return (dense[::-1].copy()[::-1] if x.ndim else dense).transpose(np.argsort(order))


def inner_rows(x: np.ndarray) -> np.ndarray:
    """A block out of the middle of a larger one, which begins at no multiple of 16 bytes."""
    larger = np.zeros([n + 3 for n in x.shape], dtype=x.dtype)
    view = larger[(..., *(slice(1, n + 1) for n in x.shape))]
    view[...] = x
    return view


LAYOUTS: dict[str, layouts.Layout] = {
    **{f: layouts.ALL[f] for f in ("contiguous", "fortran", "backwards", "every_second", "every_second_column")},
    **{f: layouts.ALL[f] for f in ("transposed", "stride_0")},
    "permuted": permuted,
    "inner_rows": inner_rows,
}
WRITEABLE = {name: layout for name, layout in LAYOUTS.items() if name != "stride_0"}


# ---- comparing


def assert_same(gpu: Gpu, got: Any, expected: Any, told: Any = "") -> None:
    """The device's result equals the CPU's: type, dtype, shape, bits, and memory order."""
    if expected is None:
        assert got is None, told
        return
    if isinstance(expected, (list, tuple)):
        assert type(got) is type(expected), told
        assert len(got) == len(expected), told
        for k, (a, b) in enumerate(zip(got, expected, strict=True)):
            assert_same(gpu, a, b, f"{told} [{k}]")
        return
    assert type(got) is gpu.ndarray, f"{told}: {type(got)}"
    if isinstance(expected, float):  # one number is a 0-d float64 array on the device
        expected = np.array(expected)
    assert got.dtype == expected.dtype, f"{told}: {got.dtype}, not {expected.dtype}"
    assert got.shape == expected.shape, f"{told}: {got.shape}, not {expected.shape}"
    if expected.size == 0:
        return
    assert layouts.steps(got) == layouts.steps(expected), f"{told}: strides {got.strides}, not {expected.strides}"
    values = gpu.get(got)
    if oracle.same_bits(values, expected):
        return
    a, b = oracle.bits(values), oracle.bits(expected)
    where = tuple(np.argwhere(a != b)[0])
    parts = oracle.parts(values)[where], oracle.parts(expected)[where]
    raise AssertionError(
        f"{told}: {(a != b).sum()} of {a.size} parts of {expected.dtype} differ; at {tuple(map(int, where))} "
        f"{parts[0]!r} ({a[where]:#x}), not {parts[1]!r} ({b[where]:#x})"
    )


def check(gpu: Gpu, call: Callable[..., Any], *arrays: Any, told: Any = "") -> Any:
    """call(arrays) on the CPU and on the device: equal results, without a wait and without a change of an input."""
    expected = call(*arrays)
    on_device = [gpu.arrays(a) if isinstance(a, list) else gpu.array(a) for a in arrays]
    gpu.reset()
    got = call(*on_device)
    assert gpu.syncs == 0, f"{told}: waited for the device"
    assert_same(gpu, got, expected, told)
    for x, d in zip(arrays, on_device, strict=True):
        for a, b in zip(x, d, strict=True) if isinstance(x, list) else [(x, d)]:
            assert not isinstance(a, np.ndarray) or oracle.same_bits(gpu.get(b), a), f"{told}: an input was changed"
    return got
