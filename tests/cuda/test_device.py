"""CuPy as the device of the launches: the calls made to CuPy. Without a GPU, to one that records them."""

import ctypes
import gc as collector
import sys
import threading
import types
import weakref

import numpy as np
import pytest
from gradclip._cuda import _device, _queue, _words


class Stream:
    def __init__(self, log, ptr, *, capturing=False):
        self.log, self.ptr, self.capturing = log, ptr, capturing

    def is_capturing(self):
        assert self.ptr, "of the default stream this is an error while another one is captured"
        return self.capturing

    def synchronize(self):
        self.log.append(("synchronize", self.ptr))


class Memory:
    """Host memory, instead of the device's."""

    def __init__(self, log, size):
        self.log, self.size = log, size
        self.data = ctypes.create_string_buffer(size)
        self.ptr = ctypes.addressof(self.data)

    def copy_from_host_async(self, source, size, stream):
        self.log.append(("copy", size, stream.ptr))
        ctypes.memmove(self.ptr, source, size)


@pytest.fixture
def cupy(monkeypatch):
    """A CuPy that records its calls."""
    module = types.ModuleType("cupy")
    module.log = log = []
    module.stream = Stream(log, 7)
    module.current = [0]

    class Device:
        def __init__(self, id):
            self.id, self.attributes = id, {"MultiProcessorCount": 100 + id}

        def __enter__(self):
            assert module.current[-1] != self.id, "it takes its time"
            module.current.append(self.id)

        def __exit__(self, *_):
            module.current.pop()

    class RawModule:
        def __init__(self, *, code, options, name_expressions):
            log.append(("module", options, name_expressions))
            assert "KERNEL scale" in code

        def get_function(self, name):
            return types.SimpleNamespace(kernel=lambda *args: log.append(("launch", name, module.current[-1], *args)))

    def alloc(size):
        log.append(("alloc", size))
        return Memory(log, size)

    def raw_memory(size):
        log.append(("outside the pool", size))
        return Memory(log, size)

    module.RawModule = RawModule
    module.ndarray = lambda shape, dtype: ("array", shape, dtype)
    module.cuda = types.SimpleNamespace(
        Device=Device,
        get_current_stream=lambda _device: module.stream,
        Stream=lambda non_blocking: Stream(log, 99) if non_blocking else None,
        alloc=alloc,
        Memory=raw_memory,
        MemoryPointer=lambda memory, offset: memory if offset == 0 else None,
        runtime=types.SimpleNamespace(is_hip=False, getDevice=lambda: module.current[-1]),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    caches = (_device._multiprocessors, _device._function)
    for cache in caches:
        cache.cache_clear()
    yield module
    for cache in caches:
        cache.cache_clear()


def device(which=0):
    return _device.device_of(types.SimpleNamespace(data=types.SimpleNamespace(device_id=which)))


def test_a_device_and_its_stream(cupy):
    assert [device(which).multiprocessors for which in (0, 3)] == [100, 103]
    assert device(0).key == device(0).key != device(1).key
    before = device(0).key
    cupy.stream = Stream(cupy.log, 8)
    assert device(0).key != before
    with device(5).current():
        assert cupy.current == [0, 5]
        with device(5).current():
            assert cupy.current == [0, 5]
    assert cupy.current == [0]
    with device(0).current():
        assert cupy.current == [0]


def test_the_default_streams_of_threads_are_different_ones(cupy):
    cupy.stream = Stream(cupy.log, 2)  # cudaStreamPerThread, the same number in all threads
    keys = [device().key, device().key]
    thread = threading.Thread(target=lambda: keys.append(device().key))
    thread.start()
    thread.join()
    assert keys[0] == keys[1] != keys[2]


def test_the_default_stream_of_a_thread_is_not_that_of_an_ended_one(cupy):
    """Which may have had the same number."""
    cupy.stream = Stream(cupy.log, 2)
    found = []
    for _ in range(100):
        thread = threading.Thread(target=lambda: found.append((threading.get_ident(), device().key)))
        thread.start()
        thread.join()
    assert len({number for number, _ in found}) < len(found), "Python gives each thread a new number"
    assert len({key for _, key in found}) == len(found)


def test_a_stream_lives_as_long_as_its_scratch_memory(cupy):
    """Or CUDA would give its handle to another stream, while launches on it still use that memory."""
    _queue.release()

    def used(ptr):
        cupy.stream = Stream(cupy.log, ptr)
        with _queue.Call(device()) as call:
            call.queue.room(8)
        return weakref.ref(cupy.stream)

    first = used(1000)
    others = [used(1000 + k) for k in range(1, _queue._STREAMS)]
    assert first() is not None
    last = used(5000)
    collector.collect()
    assert first() is None  # of many streams the oldest one is forgotten
    assert all(stream() is not None for stream in others)
    cupy.stream = None
    _queue.release()
    collector.collect()
    assert not any(stream() for stream in (*others, last))


def test_the_default_stream_is_not_asked_whether_it_is_captured(cupy):
    cupy.stream = Stream(cupy.log, 0, capturing=True)
    assert device().is_capturing() is False
    cupy.stream = Stream(cupy.log, 5, capturing=True)
    assert device().is_capturing() is True


def test_a_kernel_is_compiled_once_for_each_device(cupy):
    functions = [
        device(which).function(name) for which in (0, 1) for name in ("scale<float>", "scale<bf16>") for _ in range(2)
    ]
    assert len(set(map(id, functions))) == 4
    options = ("-std=c++17", "--fmad=false")
    assert cupy.log == [("module", options, (name,)) for name in ("scale<float>", "scale<bf16>")] * 2


def test_a_launch_passes_its_argument_by_value(cupy):
    params = np.arange(_words.PARAMS, dtype=np.int64)
    own = device()
    prepared = own.argument(params)
    for first in (0, 7):
        params[0] = first
        own.launch(own.function("first<void>"), 12, 256, prepared)
        kind, name, _, grid, block, (argument,), shared, stream = cupy.log[-1]
        assert (kind, name, grid, block, shared) == ("launch", "first<void>", (12,), (256,), 0)
        assert stream is cupy.stream
        # CuPy takes an array of one element by value, of any dtype.
        assert isinstance(argument, np.ndarray)
        assert argument.size == 1
        assert argument.tobytes() == params.tobytes()
        assert argument.__array_interface__ == params.view(f"V{8 * _words.PARAMS}").__array_interface__


@pytest.mark.usefixtures("cupy")
def test_an_argument_keeps_its_words():
    (argument,) = device().argument(np.arange(_words.PARAMS, dtype=np.int64))
    collector.collect()
    assert argument.tobytes() == np.arange(_words.PARAMS).tobytes()


def test_words_are_copied_on_the_stream(cupy):
    words = np.arange(1000, dtype=np.int64)
    memory = device().upload(words)
    assert cupy.log == [("alloc", 8000), ("copy", 8000, 7)]
    assert ctypes.string_at(memory.ptr, 8000) == words.tobytes()


def test_words_that_a_graph_needs_are_copied_once_and_aside(cupy):
    cupy.stream.capturing = True
    words = np.arange(10, dtype=np.int64)
    memory = device().upload(words)
    assert cupy.log == [("outside the pool", 80), ("copy", 80, 99), ("synchronize", 99)]
    del words
    collector.collect()
    cupy.stream.capturing = False
    assert ctypes.string_at(memory.ptr, 80) == np.arange(10).tobytes()


def test_new_arrays_and_memory(cupy):
    assert _device.empty((2, 3), np.float32, None) == ("array", (2, 3), np.float32)
    assert device().alloc(100).size == 100
    assert cupy.log == [("alloc", 100)]


def test_kernels_of_another_maker_are_refused(cupy):
    cupy.cuda.runtime.is_hip = True
    with pytest.raises(NotImplementedError, match="ROCm"):
        device()


@pytest.mark.cupy
def test_cupy_itself_takes_what_it_gets():
    """CuPy's own classes, as far as they work without a driver."""
    import cupy as own

    module = own.RawModule(code=_device.source(), options=_device.OPTIONS, name_expressions=("scale<float>",))
    assert module.name_expressions == ("scale<float>",)
    assert hasattr(own.RawKernel, "kernel")
    if own.cuda.is_available():
        pytest.skip("there is a GPU, which has tests of its own")
    array = own.ndarray((2,), np.float32, own.cuda.MemoryPointer(own.cuda.UnownedMemory(64, 8, None, 0), 0))
    with pytest.raises(own.cuda.runtime.CUDARuntimeError, match="Driver"):
        _device.device_of(array)
    # A wrong argument is an error that comes before the driver's.
    device, function = object.__new__(_device.CupyDevice), own.cuda.Function.__new__(own.cuda.Function)
    device.stream = own.cuda.Stream.null
    words = np.zeros(_words.PARAMS, np.int64)
    with pytest.raises(TypeError, match="size one"):
        device.launch(function, 1, 256, (words,))
    with pytest.raises(own.cuda.runtime.CUDARuntimeError, match="Driver"):
        device.launch(function, 1, 256, device.argument(words))
