"""The launcher: names shared with the kernels, state shared by calls, CUDA graphs, large numbers."""

import mmap
import os
import re
import sys
import threading

import gradclip as gc
import numpy as np
import pytest
from gpu_arrays import assert_same, check, on_host, shim
from gradclip import _cuda
from gradclip._cuda import _device, _list, _queue, _words
from gradclip._cuda._layout import View, run_of
from gradclip._cuda._list import Tensors
from kernel_names import instantiations
from oracle import BF16, same_bits

# ---- names


def enumerators(start):
    """The names of the C++ enumeration that begins with `start`, and their values."""
    text = re.sub(r"//.*", "", _device.source())
    body = next(body for body in re.findall(r"enum : int \{(.*?)\};", text, re.DOTALL) if body.split()[0] == start)
    names, value = {}, -1
    for entry in filter(None, (entry.strip() for entry in body.split(","))):
        name, _, given = entry.partition("=")
        value = eval(given, {}, names) if given else value + 1
        names[name.strip()] = value
    return names


@pytest.mark.parametrize(
    ("start", "names", "prefix"),
    [
        ("TABLE_AT", _words.Word, ""),
        ("ROW_SOURCE,", _words.Row, "ROW_"),
        ("ORDER_ONE", _words.Order, "ORDER_"),
        ("MODE_NORM,", _words.Mode, "MODE_"),
        ("HAS_LIMBS", _words.Flag, ""),
    ],
)
def test_names_mean_the_same_in_the_kernels(start, names, prefix):
    assert enumerators(start) == {prefix + name: member.value for name, member in names.__members__.items()}


def test_numbers_are_the_same_in_the_kernels():
    sizes = enumerators("THREADS")
    for name in ("THREADS", "BLOCK", "ROWS_OF_BLOCK", "TILE"):
        assert sizes[name] == getattr(_words, name)
    assert sizes["BLOCK"] * sizes["CHUNK_BLOCKS"] == _words.CHUNK
    assert sizes["CHUNK_BLOCKS"] * sizes["SPAN_TOTALS"] == _words.SPAN_BLOCKS
    assert enumerators("PART_SUM,")["PARTS"] == _words.PARTS
    state = enumerators("STATE_VALUE,")
    assert state["STATE_WORDS"] == _words.STATE_WORDS >= state["STATE_POWER"] + 4  # the words of a `Power`
    assert f"struct Params {{ word w[{_words.PARAMS}]; }};" in _device.source()
    names = re.search(r"enum Code \{(.*?)\};", _device.source(), re.DOTALL)
    codes = [entry.split("=")[0].strip() for entry in re.sub(r"//.*", "", names[1]).split(",")]
    assert [code.lower() for code in codes if code] == list(_words.NAMES)


def test_every_kernel_that_is_launched_is_listed():
    found = set(re.findall(r"KERNEL(?:_FOR\(.*?\))? (\w+)\(", _device.source()))
    assert found == {name.partition("<")[0] for name in instantiations()}


#: Rows and columns, and the kernels that clip them: (dtype, shape, axis, those of a dense array, those of an odd view).
KERNELS = [
    ("float16", (8, 64), 1, ["rows<f16, 4>"], ["rows<f16, 4>"]),
    ("float32", (8, 256), 1, ["rows<float, 8>"], ["rows<float, 8>"]),
    ("float32", (8, 512), 1, ["rows<float, 16>"], ["rows<float, 16>"]),
    ("float64", (8, 2048), 1, ["rows<double, 32>"], ["rows<double, 32>"]),
    ("float32", (600, 2049), 1, ["rows<float, 256>"], ["rows<float, 256>"]),
    (
        "float16",
        (70, 64),
        0,
        ["columns_of<f16, 4>", "scale_columns<f16, 4>"],
        ["columns_of<f16, 1>", "scale_columns<f16, 1>"],
    ),
    (
        "float32",
        (70, 64),
        0,
        ["columns_of<float, 4>", "scale_columns<float, 4>"],
        ["columns_of<float, 1>", "scale_columns<float, 1>"],
    ),
    (
        "float64",
        (70, 64),
        0,
        ["columns_of<double, 2>", "scale_columns<double, 2>"],
        ["columns_of<double, 1>", "scale_columns<double, 1>"],
    ),
]


@pytest.mark.parametrize(("dtype", "shape", "axis", "dense", "odd"), KERNELS)
def test_rows_and_columns_take_the_fast_kernels(gpu, dtype, shape, axis, dense, odd):
    x = gpu.array(np.ones((shape[0], shape[1] + 1), dtype))
    for view, names in ((gpu.array(np.ones(shape, dtype)), dense), (x[:, 1:], odd)):
        gpu.reset()
        gc.clip_by_norm(view, 1.0, axis)
        assert [name for name in gpu.launches if name != "column_norms<void>"] == names


# ---- state that calls on a stream share


@pytest.fixture(autouse=True)
def fresh():
    _cuda.release()
    yield
    shim().capturing = False
    _cuda.release()


def grads(n, dtype=np.float32, size=100, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size + i % 7).astype(dtype) for i in range(n)]


class LaunchError(Exception):
    pass


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_a_launch_that_fails_spoils_no_later_call(gpu, monkeypatch, failing):
    arrays = [*grads(3, np.float32, 5000), *grads(3, np.float64, 5000)]
    on_device = gpu.arrays(arrays)
    device = _device.device_of(on_device[0])
    launch, count = type(device).launch, [0]

    def fails(*args):
        count[0] += 1
        if count[0] == failing:
            raise LaunchError
        launch(*args)

    with monkeypatch.context() as patch:
        patch.setattr(type(device), "launch", fails)
        with pytest.raises(LaunchError):
            gc.clip_by_global_norm(on_device, 1.0)
    assert count[0] == failing
    assert_same(gpu, gc.clip_by_global_norm(on_device, 1.0), gc.clip_by_global_norm(arrays, 1.0))


def test_scratch_memory_that_cannot_be_had_is_asked_for_again(gpu, monkeypatch):
    """What a smaller list has used must not be taken for as much as a larger one needs."""
    small, large = grads(2), grads(1_000)
    on_device = gpu.arrays(large)
    gc.clip_by_global_norm(gpu.arrays(small), 1.0)
    (queue,) = _queue._queues.values()
    before = queue.scratch
    device = _device.device_of(on_device[0])

    def fails(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(type(device), "alloc", fails)
        gpu.reset()
        with pytest.raises(MemoryError):
            gc.clip_by_global_norm(on_device, 1.0, out=on_device)
    assert not gpu.launches
    assert_same(gpu, on_device, large)
    assert_same(gpu, gc.clip_by_global_norm(on_device, 1.0, out=on_device), gc.clip_by_global_norm(large, 1.0))
    assert queue.scratch is not before
    assert queue.size >= 8 * 19 * 1_000


def test_a_second_call_uploads_and_allocates_nothing(gpu, monkeypatch):
    arrays = grads(300)
    on_device = gpu.arrays(arrays)
    gc.clip_by_global_norm(on_device, 1e9, out=on_device)
    device = _device.device_of(on_device[0])
    monkeypatch.setattr(type(device), "alloc", None)
    monkeypatch.setattr(type(device), "upload", None)
    clipped, norm = gc.clip_by_global_norm(on_device, 1.0, out=on_device)
    assert_same(gpu, (clipped, norm), gc.clip_by_global_norm(arrays, 1.0))


#: Calls whose launches are repeated, of arrays, a limit and an output.
REPEATED = {
    "rows": lambda t, limit, out: gc.clip_by_norm(t, limit, axes=1, out=out),
    "columns": lambda t, limit, out: gc.clip_by_norm(t, limit, axes=0, out=out),
    "columns into a new array": lambda t, limit, out: gc.clip_by_norm(t, limit, axes=0),  # noqa: ARG005
    "each element": lambda t, limit, out: gc.clip_by_norm(t, limit, axes=[], out=out),
    "values": lambda t, limit, out: gc.clip_by_value(t, -0.1, 0.1, out=out),  # noqa: ARG005
    "norms": lambda t, limit, out: gc.norm(t, axis=0),  # noqa: ARG005
    "normalize": lambda t, limit, out: gc.normalize(t, 1.5, axis=0, out=out),  # noqa: ARG005
    # The norms of rows are launched as those of a call along axes, and more kernels follow.
    "matrix norm": lambda t, limit, out: gc.norm(t, 1, axis=(0, 1)),  # noqa: ARG005
    "matrix normalize": lambda t, limit, out: gc.normalize(t, np.inf, axis=(0, 1), out=out),  # noqa: ARG005
}


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_repeated_call_makes_the_launches_of_the_first_one(gpu, name, in_place):
    call = REPEATED[name]
    x = np.random.default_rng(5).standard_normal((4, 70, 33)).astype(np.float32)
    t = [gpu.array(x[0]), gpu.array(x[1])]
    out = t if in_place else [gpu.array(np.zeros_like(x[0])) for _ in t]
    own = np.empty_like(x[0])
    made, results = [], []  # the results are kept, so that each has an address of its own
    for k, limit in enumerate([1.0, 1.0, 2.0, gpu.array(np.array(0.5)), 1.0]):
        for i in (0, 1):
            write(gpu, [t[i]], [x[k % 4]])
            gpu.reset()
            got = call(t[i], limit, out[i])
            assert_same(gpu, got, call(x[k % 4], 0.5 if k == 3 else limit, own), f"{name}, call {k}")
            results.append(got)
            made.append(gpu.launches[:])
    assert len(set(map(tuple, made))) == 1


def test_launches_that_are_repeated_have_a_bound(gpu, monkeypatch):
    monkeypatch.setattr(_queue._Queue, "MOST_REPEATED", 3)
    arrays = [gpu.array(np.ones((2, n), np.float32)) for n in range(1, 9)]
    for t in arrays:
        gc.clip_by_norm(t, 1.0, axes=1)
    (queue,) = _queue._queues.values()
    assert len(queue.repeated) == 3


def test_launches_are_not_repeated_with_scratch_memory_that_was_given_back(gpu):
    x, large = np.ones((70, 33), np.float32), np.ones((70, 9000), np.float32)
    t = gpu.array(x)
    expected = gc.clip_by_norm(x, 1.0, axes=0)
    for before in (x, large, x):  # the large one needs more of it
        gc.norm(gpu.array(before), axis=0)
        assert_same(gpu, gc.clip_by_norm(t, 1.0, axes=0), expected)
        (queue,) = _queue._queues.values()
        assert_in_scratch_memory(queue)


def assert_in_scratch_memory(queue):
    """All factors and sums of the launches that are held lie in the scratch memory."""
    words = [launch.words for made in queue.repeated.values() for launch in made]
    places = [own[word] for own in words for word in (_words.Word.PARTS_AT, _words.Word.FACTORS_AT) if own[word]]
    assert places
    assert all(queue.scratch.ptr <= at < queue.scratch.ptr + queue.size for at in places)


def test_other_calls_on_one_array_have_their_own_launches(gpu):
    x = np.random.default_rng(6).standard_normal((40, 33)).astype(np.float32)
    t = gpu.array(x)
    calls = [
        *(lambda a, axis=axis: gc.clip_by_norm(a, 1.0, axis) for axis in (0, 1, (0, 1), ())),
        *(lambda a, axis=axis, p=p: gc.norm(a, p, axis) for axis in (0, 1) for p in (1, 2, 3, np.inf)),
        *(lambda a, axis=axis, p=p: gc.normalize(a, p, axis) for axis in (0, 1) for p in (1, 2)),
        *(lambda a, high=high: gc.clip_by_value(a, -0.1, high) for high in (0.1, 0.2, None)),
        lambda a: gc.clip_by_average_norm(a, 1e-3),
        lambda a: gc.norm(a, 1, (0, 1)),
    ]
    for _ in range(3):
        for k, call in enumerate(calls):
            assert_same(gpu, call(t), call(x), f"call {k}")


def test_norms_of_rows_take_no_scratch_memory(gpu):
    gc.norm(gpu.array(np.ones((9000, 2), np.float32)), axis=1)
    (queue,) = _queue._queues.values()
    assert queue.scratch is None


def test_each_parameter_of_a_model_has_a_plan(gpu, monkeypatch):
    arrays = [gpu.array(np.ones(n, np.float32)) for n in range(1, 41)]
    for t in arrays:
        gc.clip_by_norm(t, 1.0, out=t)
    monkeypatch.setattr(_list, "Plan", None)
    for t in arrays:
        gc.clip_by_norm(t, 1.0, out=t)


def test_what_is_held_has_a_bound(gpu):
    for n in range(70, 70 + 2 * _queue._Queue.MOST):
        gc.global_norm(gpu.arrays(grads(n, size=3)))
    (queue,) = _queue._queues.values()
    assert len(queue.plans) == len({plan.memory.ptr for plan in queue.plans.values()}) == _queue._Queue.MOST
    gc.trim()
    assert not _queue._queues


@on_host  # test_streams.py has real streams
def test_of_many_streams_the_oldest_are_forgotten(gpu, monkeypatch):
    x = np.ones(5)
    d = gpu.array(x)
    device = _device.device_of(d)
    for key in range(2 * _queue._STREAMS):
        monkeypatch.setattr(device, "key", key)
        assert_same(gpu, gc.clip_by_norm(d, 1.0), gc.clip_by_norm(x, 1.0))
        assert list(_queue._queues) == list(range(max(0, key - _queue._STREAMS + 1), key + 1))


def test_the_oldest_list_is_forgotten_first(gpu):
    first = gpu.arrays(grads(5))
    gc.global_norm(first)
    (queue,) = _queue._queues.values()
    key = next(iter(queue.plans))
    for n in range(10, 10 + _queue._Queue.MOST - 1):
        gc.global_norm(gpu.arrays(grads(n, size=3)))
        gc.global_norm(first)
    assert key in queue.plans


def test_arrays_at_the_same_places_with_other_lengths_are_another_list(gpu):
    x = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    d = gpu.array(x)
    for n in (5000, 10, 2049, 5000):
        assert_same(gpu, gc.global_norm([d[:n]]), gc.global_norm([x[:n]]))
    for limit in (1.0, 2.0, 1e9):
        assert_same(gpu, gc.clip_by_global_norm([d], limit), gc.clip_by_global_norm([x], limit))
    for average in (1e-4, 1e-5):
        assert_same(gpu, gc.clip_by_average_norm(d, average), gc.clip_by_average_norm(x, average))


def test_threads_share_a_stream(gpu):
    lists = [[*grads(20, np.float32, seed=k), *grads(5, np.float64, 3000, seed=k)] for k in range(6)]
    expected = [gc.clip_by_global_norm(arrays, 1.0) for arrays in lists]
    on_device = [gpu.arrays(arrays) for arrays in lists]
    errors = []

    def work(k):
        try:
            for _ in range(15):
                assert_same(gpu, gc.clip_by_global_norm(on_device[k], 1.0), expected[k])
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(lists))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_a_call_within_a_call(gpu, monkeypatch):
    """A finalizer may make it at any time."""
    arrays, others = grads(5, size=5000), grads(5, size=4000, seed=1)
    on_device, other = gpu.arrays(arrays), gpu.arrays(others)
    device = _device.device_of(on_device[0])
    launch, within = type(device).launch, []

    def launches(*args):
        launch(*args)
        if not within:
            within.append(None)
            within.append(gc.clip_by_global_norm(other, 1.0))

    monkeypatch.setattr(type(device), "launch", launches)
    assert_same(gpu, gc.clip_by_global_norm(on_device, 1.0), gc.clip_by_global_norm(arrays, 1.0))
    assert_same(gpu, within[1], gc.clip_by_global_norm(others, 1.0))


@on_host
@pytest.mark.parametrize("step", [1, 2])
def test_a_call_that_is_interrupted_leaves_no_lock(gpu, step):
    """At the first or the second line that begins when it has the lock."""
    x = np.ones(5)
    d = gpu.array(x)
    gc.global_norm([d])
    (queue,) = _queue._queues.values()
    left = [step]

    def trace(frame, event, _):
        if frame.f_code.co_filename != _queue.__file__ or frame.f_code.co_name not in {"__enter__", "_take"}:
            return None
        if event == "line" and queue.lock.locked():
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        gc.global_norm([d])
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    assert not queue.lock.locked()
    assert_same(gpu, gc.global_norm([d]), gc.global_norm([x]))


# ---- CUDA graphs: launches are recorded, and run again at any time


class Graph:
    """A stream capture: the launches in the context are run later, any number of times."""

    def __init__(self, monkeypatch, device):
        self.launches, self.patch, self.device = [], monkeypatch, device

    def __enter__(self):
        shim().capturing = True
        self.patch.setattr(type(self.device), "launch", lambda _, *args: self.capture(*args))
        return self

    def capture(self, *args):
        self.launches.append((*args[:-1], args[-1].copy()))

    def __exit__(self, *_):
        self.patch.undo()
        shim().capturing = False

    def run(self):
        for (_, handle), grid, block, params in self.launches:
            shim().launch(handle, grid, block, params)


def write(gpu, on_device, arrays):
    """New values in the memory of device arrays."""
    for d, x in zip(on_device, arrays, strict=True):
        if gpu.kind == "device":
            d.set(x)
        else:
            gpu.get(d)[...] = x


# test_graph.py has tests of these names for real graphs.


@on_host
@pytest.mark.parametrize("n", [3, 200])
@pytest.mark.parametrize("p", [2, 3.7])
def test_a_graph_clips_what_the_arrays_hold_when_it_runs(gpu, monkeypatch, n, p):
    arrays = grads(n)
    on_device = gpu.arrays(arrays)
    gc.clip_by_global_norm(on_device, 1e9, ord=p, out=on_device)  # to warm up
    device = _device.device_of(on_device[0])
    with monkeypatch.context() as patch:
        patch.setattr(type(device), "upload", None)  # nothing is to be copied
        with Graph(patch, device) as graph:
            _, norm = gc.clip_by_global_norm(on_device, 1.0, ord=p, out=on_device)
            address = norm.data.ptr
            del norm  # the graph writes there all the same
    assert_same(gpu, on_device, arrays)  # a capture launches nothing
    other = gpu.arrays(grads(n, seed=9))
    for k in range(4):
        arrays = grads(n, seed=k)
        write(gpu, on_device, arrays)
        # Calls on the same stream, of the same list too, before each run.
        assert_same(gpu, gc.clip_by_global_norm(other, 0.5), gc.clip_by_global_norm(grads(n, seed=9), 0.5))
        assert_same(gpu, gc.global_norm(on_device, ord=p), gc.global_norm(arrays, ord=p))
        graph.run()
        clipped, norm = gc.clip_by_global_norm(arrays, 1.0, ord=p)
        assert_same(gpu, on_device, clipped)
        held = [thing for call in _queue._captured for thing in call.kept if hasattr(thing, "data")]
        assert [float(gpu.get(thing)) for thing in held if thing.data.ptr == address] == [norm]


@on_host
def test_launches_are_not_repeated_with_scratch_memory_of_a_graph(gpu, monkeypatch):
    x = np.random.default_rng(7).standard_normal((70, 33)).astype(np.float32)
    t = gpu.array(x)
    gc.clip_by_norm(t, 1.0, axes=0)
    with monkeypatch.context() as patch, Graph(patch, _device.device_of(t)):
        gc.clip_by_norm(t, 1.0, axes=0)
    assert_same(gpu, gc.clip_by_norm(t, 1.0, axes=0), gc.clip_by_norm(x, 1.0, axes=0))
    (queue,) = _queue._queues.values()
    assert_in_scratch_memory(queue)


@on_host
def test_several_calls_of_one_graph_do_not_disturb_each_other(gpu, monkeypatch):
    x, rows = np.random.default_rng(0).standard_normal((2, 64, 700)).astype(np.float32)
    a, b, c = (gpu.array(v) for v in (x, rows, rows))
    with monkeypatch.context() as patch, Graph(patch, _device.device_of(a)) as graph:
        gc.clip_by_norm(a, 1.0, out=a)
        gc.clip_by_norm(b, 1.0, axes=1, out=b)
        norms = gc.norm(c, axis=0)
        gc.clip_by_norm(c, norms[3], axes=0, out=c)
    for _ in range(2):
        write(gpu, [a, b, c], [x, rows, rows])
        gc.clip_by_norm(gpu.array(x), 2.0)
        graph.run()
        expected = gc.norm(rows, axis=0)
        assert_same(gpu, a, gc.clip_by_norm(x, 1.0))
        assert_same(gpu, b, gc.clip_by_norm(rows, 1.0, axes=1))
        assert_same(gpu, norms, expected)
        assert_same(gpu, c, gc.clip_by_norm(rows, expected[3], axes=0))


@on_host
def test_what_a_graph_captured_is_never_used_by_others(gpu, monkeypatch):
    on_device = gpu.arrays(grads(100))
    device = _device.device_of(on_device[0])
    words = (_words.Word.STATE_AT, _words.Word.TICKET_AT, _words.Word.PARTS_AT, _words.Word.SPANS_AT)
    seen = []
    for _ in range(3):
        gc.clip_by_global_norm(on_device, 1.0, out=on_device)
        with monkeypatch.context() as patch, Graph(patch, device) as graph:
            gc.clip_by_global_norm(on_device, 1.0, out=on_device)
        seen.append({int(params[word]) for *_, params in graph.launches for word in words} - {0})
    launches = []
    launch = type(device).launch
    monkeypatch.setattr(type(device), "launch", lambda *args: (launches.append(args[4].copy()), launch(*args)))
    gc.clip_by_global_norm(on_device, 1.0, out=on_device)
    seen.append({int(params[word]) for params in launches for word in words} - {0})
    assert all(len(addresses) == len(words) for addresses in seen)
    assert len(set.union(*seen)) == 4 * len(words)


# ---- large numbers


@on_host  # in a sparse file; test_large.py has memory of a GPU
def test_offsets_of_more_than_32_bits(gpu, tmp_path):
    far = 2**33
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 3 * far)  # of which a few pages are there
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        x = np.ndarray((3, 5), np.float16, memory, 2 * far, (-far, 20))
        x[...] = np.arange(15).reshape(3, 5)
        pointer = gpu.pointer(x.ctypes.data - 2 * far, 3 * far, memory)
        d = gpu.cupy.ndarray(x.shape, x.dtype, gpu.cupy.cuda.MemoryPointer(pointer.mem, 2 * far), x.strides)
        for call in (
            lambda t: gc.clip_by_global_norm([t], 1.0),
            lambda t: gc.clip_by_value(t, 2, 7),
            lambda t: gc.clip_by_norm(t, 1.0, axes=0),
            lambda t: gc.clip_by_norm(t, 1.0, axes=1),
            lambda t: gc.normalize(t, 3.7, axis=0),
        ):
            assert_same(gpu, call(d), call(x))
        expected = gc.clip_by_norm(x, 1.0)
        gc.clip_by_norm(d, 1.0, out=d)
        assert same_bits(gpu.get(d), expected)
        del x, d, pointer, expected


def test_axes_of_more_elements_than_32_bits_count(gpu):
    """Of which a kernel is asked for the first ones."""
    length = 2**32 + 2
    table = np.arange(8, dtype=np.uint8)
    source, target = gpu.array(table), gpu.array(np.zeros(5, np.uint8))
    params = np.zeros(_words.PARAMS, np.int64)
    words = _words.Word
    params[words.SOURCE], params[words.TARGET], params[words.COUNT] = source.data.ptr, target.data.ptr, 5
    params[words.TABLE : words.TABLE + 6] = 0, 2, 3, 1, length, 1
    params[words.SOURCE_LAYOUT] = 1
    device = _device.device_of(source)
    device.launch(device.function("copy<u8>"), 1, _words.THREADS, device.argument(params))
    assert gpu.get(target).tolist() == [0, 1, 2, 3, 4]


def test_the_ticket_is_drawn_when_all_have_written_and_what_it_tells_of_is_read_after():
    """A property that cannot be tested where blocks of threads run one after the other."""
    body = re.search(r"DEV bool is_last\(.*?\n\}\n", _device.source(), re.DOTALL)[0]
    steps = re.findall(r"__threadfence|__syncthreads|atomicAdd|return", body)
    assert steps == ["__threadfence", "__syncthreads", "atomicAdd", "__syncthreads", "__threadfence", "return"]


def test_tables_of_more_elements_than_32_bits_count():
    lengths = np.array([2**40, 0, 5, 2**45 + 1], np.int64)
    addresses = np.array([1 << 20, 2 << 20, 3 << 20, 4 << 20], np.int64)
    table = _list._table_of(Tensors(addresses, addresses, lengths, np.array([2, 2, 3, 2], np.int64)))
    assert table.slots == 2**29 + 1 + 2**34 + 1
    assert table.spans == 2**17 + 1 + 2**22 + 1
    assert table.tensors == 3
    # The rows of each dtype together; slots and spans in the order of the list.
    place = table.rows[0][1]
    assert table.rows == [(2, place, 2, 2**29 + 2**34 + 1), (3, place + 2 * _words.Row.WORDS, 1, 1)]
    rows = table.words[place:].reshape(3, _words.Row.WORDS)
    assert rows[:, _words.Row.BLOCK].tolist() == [0, 2**29, 0]
    assert rows[:, _words.Row.SLOT].tolist() == [0, 2**29 + 1, 2**29]
    assert table.words[table.spans + 1 : place].tolist() == [0, 2**17, 2**17 + 1, table.spans]
    slots = table.words[: table.spans + 1]
    assert slots[[0, 1, 2**17 - 1, 2**17, 2**17 + 1, -2, -1]].tolist() == [
        0, 2**12, 2**29 - 2**12, 2**29, 2**29 + 1, table.slots - 1, table.slots
    ]  # fmt: skip
    assert rows[:, _words.Row.LEN].tolist() == [2**40, 2**45 + 1, 5]
    assert View(0, (2**40, 2**20), (2**20, 1), 1, 10).size == 2**60


@pytest.mark.parametrize(
    ("columns", "rows"), [(1, 131_072), (4, 32_768), (5, 26_240), (64, 2048), (500, 320), (512, 256), (100_000, 256)]
)
def test_columns_are_cut_where_the_cpu_cuts_them(columns, rows):
    """`run_of_columns` of parallel/reduce/columns.rs. A cut elsewhere changes bits too seldom for values to tell."""
    assert run_of(columns) == rows


# ---- tables beside the argument


def test_a_layout_too_long_for_the_argument(gpu):
    rng = np.random.default_rng(0)
    lists = [[rng.standard_normal((3, 4, 5))[:, ::2, ::2][::-1] for _ in range(100)] for _ in range(2)]
    arrays = [x.astype(BF16) for x in lists[0]] + lists[1]
    check(gpu, lambda *t: gc.clip_by_global_norm(list(t), 0.5), *arrays)
    x = rng.standard_normal((2,) * 12)[(slice(None, None, -1), ...)]
    y = np.zeros((4,) * 12, np.float32)[(slice(None, None, 2),) * 12]
    y[...] = x
    for axes in (0, (1, 3, 5, 7, 9, 11), tuple(range(0, 12, 2))):
        check(gpu, lambda t, axes=axes: gc.clip_by_norm(t, 0.5, axes), y)
    check(gpu, lambda t: gc.clip_by_value(t, -0.5, 0.5), y)


def test_a_call_that_is_interrupted_leaves_no_half_of_its_settings(gpu, monkeypatch):
    arrays = grads(5)
    on_device = gpu.arrays(arrays)
    gc.clip_by_global_norm(on_device, 1.0)
    gc.clip_by_global_norm(on_device, 1.0, out=on_device)
    used = np.float64(3)
    gc.clip_by_global_norm(on_device, 1.0, used, out=on_device)

    words, limit = _words.Scalar.words, 0.25
    (queue,) = _queue._queues.values()
    ticket = queue.ticket

    def interrupts(scalar):
        if scalar.value != limit:  # that has been written
            raise KeyboardInterrupt
        return words(scalar)

    with monkeypatch.context() as patch:
        patch.setattr(_words.Scalar, "words", interrupts)
        with pytest.raises(KeyboardInterrupt):
            gc.clip_by_global_norm(on_device, limit, used, out=on_device)
    queue.ticket = ticket  # as where a new one lies at the old place
    arrays = [gpu.get(d).copy() for d in on_device]
    for limit in (1.0, 0.25):
        expected = gc.clip_by_global_norm(arrays, limit, used)
        assert_same(gpu, gc.clip_by_global_norm(on_device, limit, used, out=on_device), expected)
        arrays = expected[0]
