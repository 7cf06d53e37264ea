"""Arrays on a real GPU that are larger than 32 bits count, in elements or in bytes."""

from pathlib import Path

import gradclip as gc
import numpy as np
import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy():
    import cupy

    yield cupy
    gc.trim()
    cupy.get_default_memory_pool().free_all_blocks()


def need(cupy, on_device, on_host=0):
    """Skips the test where there is not so much memory."""
    if cupy.cuda.Device().mem_info[0] < on_device:
        pytest.skip(f"the GPU has less than {on_device >> 30} GiB free")
    if available() < on_host:
        pytest.skip(f"the host has less than {on_host >> 30} GiB free")


def available():
    """Free memory of the host; 0 if it is not known."""
    path = Path("/proc/meminfo")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def test_many_elements(cupy):
    n = 2**31 + 5000
    need(cupy, 3 * n)
    d = cupy.ones(n, np.int8)
    d[-1] = -7
    assert float(gc.norm(d, 1)) == n - 1 + 7
    gc.clip_by_value(d, -3, 100, out=d)
    assert d[-1].get() == -3
    assert d[n // 2].get() == 1
    half = cupy.zeros(n, np.float16)
    half[-2:] = cupy.array([3.0, 4.0], np.float16)
    assert float(gc.clip_by_global_norm([half], 1.0, out=[half])[1]) == 5.0
    assert half[-2:].get().tolist() == np.array([0.6, 0.8], np.float16).tolist()


def test_a_billion_elements_have_the_bits_of_the_cpu(cupy):
    n = 2**30 + 5000
    need(cupy, 6 * n, 10 * n)
    x = np.resize(np.random.default_rng(0).standard_normal(1_000_003).astype(np.float32), n)
    d = cupy.asarray(x)
    assert float(gc.norm(d)) == gc.norm(x)
    _, norm = gc.clip_by_global_norm([d], 1000.0, out=[d])
    assert float(norm) == gc.clip_by_global_norm([x], 1000.0, out=[x])[1] > 1000
    for begin in range(0, n, 2**27):
        part = slice(begin, begin + 2**27)
        assert np.array_equal(d[part].get().view(np.uint32), x[part].view(np.uint32)), part


def test_offsets_of_more_than_32_bits(cupy):
    """Of elements that lie far apart, and from the last row to the first."""
    far = 2**33
    need(cupy, 3 * far)
    memory = cupy.cuda.alloc(2 * far + 512)
    d = cupy.ndarray((3, 5), np.float16, memory + 2 * far, (-far, 20))
    x = np.zeros((3, 50), np.float16)[::-1, ::10]  # the same order of memory
    x[...] = np.arange(15).reshape(3, 5)

    def rows():
        """The three rows, which are near on their own."""
        return [cupy.ndarray((5,), np.float16, memory + k * far, (20,)) for k in (2, 1, 0)]

    for row, values in zip(rows(), x, strict=True):
        row[...] = cupy.asarray(values)
    for call in (
        lambda t: gc.clip_by_global_norm([t], 1.0)[0][0],
        lambda t: gc.clip_by_value(t, 2, 7),
        lambda t: gc.clip_by_norm(t, 1.0, axes=0),
        lambda t: gc.clip_by_norm(t, 1.0, axes=1),
        lambda t: gc.normalize(t, 3.7, axis=0)[0],
    ):
        assert call(d).get().tolist() == call(x).tolist()
    expected = gc.clip_by_norm(x, 1.0)
    gc.clip_by_norm(d, 1.0, out=d)
    assert [row.get().tolist() for row in rows()] == expected.tolist()
