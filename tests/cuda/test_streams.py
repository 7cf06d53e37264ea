"""Streams, threads, lack of memory and many rounds on a real GPU, where kernels run beside each other."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import gradclip as gc
import numpy as np
import pytest
from gradclip._cuda import _queue

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy():
    import cupy

    gc.trim()
    yield cupy
    cupy.cuda.Device().synchronize()
    gc.trim()


def grads(seed):
    """A list whose table is too long for a kernel's argument, with arrays of one block of threads and of several."""
    rng = np.random.default_rng(seed)
    sizes = [210_000, 70_001, 30_000, *range(1, 2000, 37)]
    return [rng.standard_normal(n).astype((np.float32, np.float64)[k % 2]) for k, n in enumerate(sizes)]


# Calls that use scratch memory in different ways.
CALLS = {
    "list": lambda ts: gc.clip_by_global_norm(ts, 1.0),
    "list, powers": lambda ts: gc.clip_by_global_norm(ts, 1.0, ord=3.7),
    "columns": lambda ts: gc.clip_by_norm(ts[0].reshape(300, 700), 0.5, axes=0),
    "rows": lambda ts: gc.normalize(ts[0].reshape(300, 700), axis=1),
    "long rows": lambda ts: gc.normalize(ts[0].reshape(3, 70_000), axis=1),
    "norms of columns": lambda ts: gc.norm(ts[0].reshape(2100, 100), 1.5, 0),
}
IN_PLACE = {
    "list": lambda ts: gc.clip_by_global_norm(ts, 1.0, out=ts),
    "list, powers": lambda ts: gc.clip_by_global_norm(ts, 1.0, ord=3.7, out=ts),
    "columns": lambda ts: gc.clip_by_norm(ts[0].reshape(300, 700), 0.5, axes=0, out=ts[0].reshape(300, 700)),
    "long rows": lambda ts: gc.normalize(ts[0].reshape(3, 70_000), axis=1, out=ts[0].reshape(3, 70_000)),
    "overlap": lambda ts: gc.clip_by_norm(ts[0][:-1], 0.5, out=ts[0][1:]),
    "values": lambda ts: gc.clip_by_value(ts[0][:30_000], -0.5, ts[1][:30_000], out=ts[0][:30_000]),
}


def flat(result):
    return [x for part in result for x in flat(part)] if isinstance(result, (list, tuple)) else [result]


def content(result):
    """The bytes of all arrays and norms, of the host or copied from the device."""
    return [np.asarray(x.get() if hasattr(x, "get") else x).tobytes() for x in flat(result)]


def upload(cupy, arrays):
    """Copies for any stream."""
    on_device = [cupy.asarray(x) for x in arrays]
    cupy.cuda.Device().synchronize()
    return on_device


# ---- streams and threads


def many_calls(ts):
    return [call(ts) for _ in range(20) for call in CALLS.values()]


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)])
def test_two_streams_at_once(cupy, seeds):
    lists = {seed: grads(seed) for seed in seeds}
    on_device = {seed: upload(cupy, arrays) for seed, arrays in lists.items()}
    expected = {seed: [content(call(arrays)) for call in CALLS.values()] for seed, arrays in lists.items()}
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in seeds]
    results = [[], []]
    for _ in range(20):
        for call in CALLS.values():
            for seed, stream, found in zip(seeds, streams, results, strict=True):
                with stream:
                    found.append(call(on_device[seed]))
    for seed, stream, found in zip(seeds, streams, results, strict=True):
        with stream:
            assert [content(result) for result in found] == expected[seed] * 20


def test_two_streams_at_once_in_place(cupy):
    arrays = grads(0)
    copies = [[upload(cupy, arrays) for _ in range(20)] for _ in range(2)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in copies]
    for pair in zip(*copies, strict=True):
        for stream, ts in zip(streams, pair, strict=True):
            with stream:
                gc.clip_by_global_norm(ts, 1.0, ord=3.7, out=ts)
    clipped, _ = gc.clip_by_global_norm(arrays, 1.0, ord=3.7)
    for stream, lists in zip(streams, copies, strict=True):
        with stream:
            assert [content(ts) for ts in lists] == [content(clipped)] * 20


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_four_threads_on_some_streams(cupy, streams):
    lists = [grads(seed) for seed in range(4)]
    on_device = [upload(cupy, arrays) for arrays in lists]
    made = [cupy.cuda.Stream(non_blocking=True) for _ in range(streams)]

    def work(k):
        with made[k % streams]:
            return [content(result) for result in many_calls(on_device[k])]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(work, range(4)))
    for own, arrays in zip(found, lists, strict=True):
        assert own == [content(call(arrays)) for call in CALLS.values()] * 20


def test_of_many_streams_the_oldest_are_forgotten(cupy):
    arrays = grads(0)
    on_device = upload(cupy, arrays)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2 * _queue._STREAMS)]
    norms = []
    for stream in streams:
        with stream:
            norms.append(gc.global_norm(on_device))
    assert [ptr for _, ptr, _ in _queue._queues] == [stream.ptr for stream in streams[-_queue._STREAMS :]]
    cupy.cuda.Device().synchronize()
    assert {float(norm) for norm in norms} == {gc.global_norm(arrays)}


# ---- lack of memory


@pytest.fixture
def pool(cupy):
    """A memory pool of the test's own."""
    own = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(own.malloc):
        yield own
        cupy.cuda.Device().synchronize()
        gc.trim()


class Limit:
    """A context in which a pool gives so many bytes more."""

    def __init__(self, pool, more):
        self.pool, self.more = pool, more

    def __enter__(self):
        gc.trim()
        self.pool.free_all_blocks()
        self.pool.set_limit(size=self.pool.total_bytes() + self.more)

    def __exit__(self, *_):
        self.pool.set_limit(size=0)


@pytest.mark.parametrize("name", CALLS)
def test_lack_of_memory_for_results(cupy, pool, name):
    arrays, call = grads(0), CALLS[name]
    on_device = upload(cupy, arrays)
    with Limit(pool, 0), pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        call(on_device)
    assert content(on_device) == content(arrays)
    assert content(call(on_device)) == content(call(arrays))
    assert content(on_device) == content(arrays)


@pytest.mark.parametrize("name", IN_PLACE)
def test_lack_of_memory_writes_nothing(cupy, pool, name):
    """Whichever allocation of a call fails."""
    arrays, call = grads(0), IN_PLACE[name]
    clipped = [x.copy() for x in arrays]
    call(clipped)
    failed = []
    for more in (0, *(2**k for k in range(9, 22))):
        on_device = upload(cupy, arrays)
        try:
            with Limit(pool, more):
                call(on_device)
        except cupy.cuda.memory.OutOfMemoryError:
            failed.append(more)
            assert content(on_device) == content(arrays), more
            call(on_device)  # there is memory again
        assert content(on_device) == content(clipped), more
    assert failed[:1] == [0]
    assert 2**21 not in failed


# ---- the same bits each time


def assert_the_same_each_time(cupy, call, expected):
    """A race would show one day. Another stream keeps a part of the device busy."""
    wanted = upload(cupy, flat(expected))
    noise, other = upload(cupy, [np.ones(300_000)]), cupy.cuda.Stream(non_blocking=True)
    differ = []
    with cupy.cuda.Stream(non_blocking=True):
        for _ in range(100):
            with other:
                gc.norm(noise[0], 3.7)
            for a, b in zip(flat(call()), wanted, strict=True):
                words = f"u{b.itemsize}"
                assert a.shape == b.shape
                differ.append((a.view(words) != b.view(words)).any())
        assert not any(bool(one) for one in differ)


@pytest.mark.parametrize("p", [1, 2, 3.7, np.inf])
def test_a_long_list_has_the_same_bits_each_time(cupy, p):
    """Of 600 arrays and 8 million elements. Those of one dtype lie in one piece of memory."""
    rng = np.random.default_rng(0)
    wholes = [rng.standard_normal(6_000_000).astype(np.float32), rng.standard_normal(2_000_000)]
    cuts = [np.sort(rng.integers(0, len(whole), 299)) for whole in wholes]

    def split(wholes):
        """As `np.split`, in the same places on the device."""
        pieces = []
        for whole, places in zip(wholes, cuts, strict=True):
            ends = [0, *places.tolist(), len(whole)]
            pieces += [whole[a:b] for a, b in itertools.pairwise(ends)]
        return pieces

    on_device, targets = upload(cupy, wholes), upload(cupy, wholes)
    inputs, outputs = split(on_device), split(targets)

    def call():
        for target in targets:
            target.fill(np.nan)
        return targets, gc.clip_by_global_norm(inputs, 1.0, ord=p, out=outputs)[1]

    expected = [np.empty_like(whole) for whole in wholes]
    _, norm = gc.clip_by_global_norm(split(wholes), 1.0, ord=p, out=split(expected))
    assert_the_same_each_time(cupy, call, (expected, np.array(norm)))


SLICES = {
    "columns": lambda t: gc.normalize(t, axis=0),
    "rows": lambda t: gc.clip_by_norm(t, 1.0, 1),
    "long columns": lambda t: gc.norm(t.reshape(-1, 6), axis=0),
    "long rows": lambda t: gc.normalize(t.reshape(6, -1), 1.5, axis=1),
    "matrices": lambda t: gc.normalize(t.reshape(10, 200, 1500), 1, (0, 2)),
}


@pytest.mark.parametrize("name", SLICES)
def test_slices_have_the_same_bits_each_time(cupy, name):
    x = np.random.default_rng(0).standard_normal((2000, 1500)).astype(np.float32)
    (d,) = upload(cupy, [x])
    expected = [np.asarray(part) for part in flat(SLICES[name](x))]
    assert_the_same_each_time(cupy, lambda: SLICES[name](d), expected)
