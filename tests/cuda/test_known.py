"""Lists that are known by their arrays: they are not read again, and what is no longer true is not used."""

import gc as collector
import threading
import weakref
from collections import OrderedDict

import gradclip as gc
import numpy as np
import pytest
from gpu_arrays import assert_same
from gradclip import _cuda
from gradclip._cuda import _device, _global_norm, _known, _queue


@pytest.fixture(autouse=True)
def fresh():
    _cuda.release()
    yield
    _cuda.release()


def grads(n, size=100, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size + i % 7).astype(dtype) for i in range(n)]


def make_known(on_device):
    """Call twice: the first time a list is noted only."""
    for _ in range(2):
        gc.global_norm(on_device)
    assert is_known(on_device)


def is_known(entries):
    return _known.recall(_known.identity_of(tuple(entries))) is not None


def assert_as_on_the_cpu(gpu, on_device, arrays, **options):
    assert_same(gpu, gc.global_norm(on_device), gc.global_norm(arrays))
    assert_same(gpu, gc.clip_by_global_norm(on_device, 0.5, **options), gc.clip_by_global_norm(arrays, 0.5))


def never(*_):
    raise AssertionError("it is read again")


@pytest.mark.parametrize("with_none", [False, True])
def test_a_known_list_is_not_read_again(gpu, monkeypatch, with_none):
    arrays = grads(20)
    if with_none:
        arrays[::3] = [None] * 7
    on_device = gpu.arrays(arrays)
    make_known(on_device)
    monkeypatch.setattr(_global_norm, "_read", never)
    for kind in (list, tuple):
        assert_as_on_the_cpu(gpu, kind(on_device), arrays)
        assert_same(gpu, gc.global_norm(kind(on_device), ord=3), gc.global_norm(arrays, ord=3))
        use = np.float64(7)
        got = gc.clip_by_global_norm(kind(on_device), 0.5, use)
        assert_same(gpu, got, gc.clip_by_global_norm(arrays, 0.5, use))
    assert_as_on_the_cpu(gpu, on_device, arrays, out=on_device)


def test_a_list_of_arrays_that_are_never_seen_again_costs_no_references(gpu):
    on_device = gpu.arrays(grads(3))
    gc.global_norm(on_device)
    assert [weakref.getweakrefcount(array) for array in on_device] == [0, 0, 0]
    assert not is_known(on_device)
    gc.global_norm(on_device)
    assert is_known(on_device)


def test_arrays_die_when_the_caller_drops_them(gpu):
    on_device = gpu.arrays(grads(5))
    gc.clip_by_global_norm(on_device, 1.0, out=on_device)
    make_known(on_device)
    refs = [weakref.ref(array) for array in on_device]
    del on_device
    assert [ref() for ref in refs] == [None] * 5


@pytest.mark.parametrize("in_cycle", [False, True])
def test_an_identity_that_another_array_has_now(gpu, in_cycle):
    arrays, others = grads(6), grads(1, 3000, seed=1)
    on_device = gpu.arrays(arrays)
    make_known(on_device)
    old = id(on_device[2])
    if in_cycle:
        cycle = [on_device[2]]
        cycle.append(cycle)
        del cycle
    on_device[2] = None
    collector.collect()
    made = []
    while len(made) < 1000 and (not made or id(made[-1]) != old):
        made.append(gpu.array(others[0]))
    on_device[2], arrays[2] = made[-1], others[0]
    for _ in range(3):
        assert_as_on_the_cpu(gpu, on_device, arrays)
    assert_as_on_the_cpu(gpu, on_device, arrays, out=on_device)


def test_all_identities_are_those_of_others_now(gpu, monkeypatch):
    """As if each list took the place of the one before."""
    monkeypatch.setattr(_global_norm, "identity_of", lambda entries: bytes(len(entries)))
    for seed in range(5):
        arrays = grads(6, 10 + seed, seed)
        on_device = gpu.arrays(arrays)
        for _ in range(3):
            assert_as_on_the_cpu(gpu, on_device, arrays)
        del on_device


def test_none_takes_the_place_of_an_array(gpu):
    arrays = grads(6)
    on_device = gpu.arrays(arrays)
    make_known(on_device)
    for i in (2, 5, 0):
        arrays[i] = on_device[i] = None
        for _ in range(3):
            assert_as_on_the_cpu(gpu, on_device, arrays)


def test_another_array_takes_the_place_of_one_that_lives(gpu):
    arrays, others = grads(6), grads(6, 50, seed=1)
    on_device, kept = gpu.arrays(arrays), gpu.arrays(others)
    make_known(on_device)
    old = list(on_device)
    on_device[3], arrays[3] = kept[3], others[3]
    for _ in range(3):
        assert_as_on_the_cpu(gpu, on_device, arrays)
    on_device[3], arrays[3] = old[3], grads(6)[3]
    assert_as_on_the_cpu(gpu, on_device, arrays)
    assert_as_on_the_cpu(gpu, on_device[::-1], arrays[::-1])
    assert_as_on_the_cpu(gpu, on_device * 2, arrays * 2)


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_shape_of_a_known_array_changes(gpu, monkeypatch, order):
    arrays = [np.asarray(x.reshape(10, 10), order=order) for x in (y[:100] for y in grads(4))]
    on_device = gpu.arrays(arrays)
    make_known(on_device)
    monkeypatch.setattr(_global_norm, "_read", never)
    for shape in [(100,), (5, 2, 10)] if order == "C" else [(1, 10, 10), (10, 5, 2)]:
        arrays[1] = arrays[1].reshape(shape)
        on_device[1].shape = shape
        assert arrays[1].strides == on_device[1].strides
        assert_as_on_the_cpu(gpu, on_device, arrays)
    assert_as_on_the_cpu(gpu, on_device, arrays, out=on_device)


def test_a_known_list_on_another_stream(gpu, monkeypatch):
    if gpu.kind == "device":
        pytest.skip("see test_graph.py")
    arrays = grads(200)
    on_device = gpu.arrays(arrays)
    make_known(on_device)
    device = _device.device_of(on_device[0])
    for key in ("one", "two", "one"):
        monkeypatch.setattr(device, "key", key)
        assert_as_on_the_cpu(gpu, on_device, arrays)
    assert {"one", "two"} < set(_queue._queues)


def test_trim_forgets_all_lists(gpu):
    arrays = grads(200)
    on_device = gpu.arrays(arrays)
    for _ in range(3):
        make_known(on_device)
        gc.trim()
        assert not _known._lists
        assert [weakref.getweakrefcount(array) for array in on_device] == [0] * 200
        assert_as_on_the_cpu(gpu, on_device, arrays)


def test_the_oldest_lists_are_forgotten(gpu):
    lists = [gpu.arrays(grads(3, seed=seed)) for seed in range(_known.MOST + 3)]
    for on_device in lists:
        make_known(on_device)
        assert is_known(lists[0])  # which makes it the newest one
    assert [is_known(on_device) for on_device in lists] == [True, *[False] * 3, *[True] * (_known.MOST - 1)]
    assert len(_known._lists) == _known.MOST


def test_outputs_that_are_others(gpu):
    arrays = grads(6)
    on_device, others = gpu.arrays(arrays), gpu.arrays(grads(6, seed=1))
    make_known(on_device)
    expected = gc.clip_by_global_norm(arrays, 0.5)
    got = gc.clip_by_global_norm(on_device, 0.5, out=others)
    assert_same(gpu, got, expected)
    assert all(a is b for a, b in zip(got[0], others, strict=True))
    mixed = [*on_device[:3], *others[3:]]
    assert_same(gpu, gc.clip_by_global_norm(on_device, 0.5, out=mixed), expected)
    assert_same(gpu, mixed, expected[0])


def test_the_results_are_a_list_of_the_caller(gpu):
    arrays = grads(6)
    on_device = gpu.arrays(arrays)
    make_known(on_device)
    gc.clip_by_global_norm(on_device, 0.5)[0].clear()
    expected = gc.clip_by_global_norm(arrays, 0.5)
    got = gc.clip_by_global_norm(on_device, 0.5, out=on_device)
    assert got[0] is not on_device
    got[0].clear()
    assert_same(gpu, on_device, expected[0])


def test_errors_are_those_of_the_first_call(gpu):
    integers = gpu.arrays(grads(3, dtype=np.int32))
    make_known(integers)
    x = gpu.array(np.zeros(9, np.float32))
    overlapping = [x[:5], x[4:]]
    make_known(overlapping)
    for _ in range(3):
        with pytest.raises(TypeError, match=r"t_list\[0\]: found dtype int32"):
            gc.clip_by_global_norm(integers, 1.0)
        with pytest.raises(ValueError, match=r"out\[1\]"):
            gc.clip_by_global_norm(overlapping, 1.0, out=overlapping)


def test_a_list_with_an_array_of_a_subclass_is_not_known(gpu):
    class Part(gpu.ndarray):
        pass

    arrays = grads(3)
    on_device = gpu.arrays(arrays)
    own = on_device[1]
    on_device[1] = Part(own.shape, own.dtype, own.data)
    for _ in range(3):
        assert_same(gpu, gc.global_norm(on_device), gc.global_norm(arrays))
    assert not is_known(on_device)


def test_arrays_that_are_not_dense_are_not_known(gpu):
    arrays = [x[::2] for x in grads(3)]
    on_device = gpu.arrays(arrays)
    for _ in range(3):
        assert_as_on_the_cpu(gpu, on_device, arrays)
    assert not is_known(on_device)


def test_another_thread_forgets_all_lists_while_one_is_added(gpu, monkeypatch):
    class Cleared(OrderedDict):
        def popitem(self, last=True):
            self.clear()
            return super().popitem(last)

    monkeypatch.setattr(_known, "_lists", Cleared())
    monkeypatch.setattr(_known, "MOST", 0)
    arrays = grads(3)
    assert_same(gpu, gc.global_norm(gpu.arrays(arrays)), gc.global_norm(arrays))


def test_threads_make_and_drop_lists(gpu):
    if gpu.kind == "device":
        pytest.skip("CuPy's current stream belongs to a thread")
    samples = [grads(4, 10 + k, seed=k) for k in range(8)]
    expected = [gc.global_norm(arrays) for arrays in samples]
    errors = []

    def work(thread):
        try:
            for turn in range(40):
                k = (thread + turn) % len(samples)
                on_device = gpu.arrays(samples[k])
                for _ in range(3):
                    assert_same(gpu, gc.global_norm(on_device), expected[k])
                if turn % 16 == thread:
                    gc.trim()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert len(_known._lists) <= _known.MOST
