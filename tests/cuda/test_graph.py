"""Calls captured in CUDA graphs on a real GPU: this proves that nothing waits for the device or allocates."""

import gradclip as gc
import numpy as np
import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy():
    import cupy

    return cupy


def grads(n, seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(3000 + i).astype(dtype) for i in range(n)]


@pytest.mark.parametrize("dtypes", [[np.float32], [np.float32, np.float64, np.complex64]])
@pytest.mark.parametrize("n", [3, 1000])
@pytest.mark.parametrize("p", [2, 3.7])
def test_a_graph_clips_what_the_arrays_hold_when_it_runs(cupy, dtypes, n, p):
    def made(seed):
        return [x for dtype in dtypes for x in grads(n, seed, dtype)]

    arrays = made(0)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        on_device = [cupy.asarray(x) for x in arrays]
        gc.clip_by_global_norm(on_device, 1e9, ord=p, out=on_device)  # to warm up
        # In this mode an allocation is an error, and so is a wait in any.
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        _, norm = gc.clip_by_global_norm(on_device, 1.0, ord=p, out=on_device)
        graph = stream.end_capture()
        for seed in range(3):
            arrays = made(seed)
            for d, x in zip(on_device, arrays, strict=True):
                d.set(x)
            other = [cupy.asarray(x) for x in made(9)]
            gc.clip_by_global_norm(other, 1.0, out=other)
            graph.launch(stream)
            clipped, expected = gc.clip_by_global_norm(arrays, 1.0, ord=p)
            assert float(norm) == expected
            for d, x in zip(on_device, clipped, strict=True):
                assert d.get().tobytes() == x.tobytes()
    gc.trim()


def test_one_array_in_a_graph(cupy):
    x = np.random.default_rng(0).standard_normal((300, 500)).astype(np.float32)
    calls = [
        lambda t, out: gc.clip_by_norm(t, 1.0, out=out),
        lambda t, out: gc.clip_by_norm(t, 1.0, axes=1, out=out),
        lambda t, out: gc.clip_by_norm(t, 1.0, axes=0, out=out),
        lambda t, out: gc.clip_by_average_norm(t, 1e-3, out=out),
        lambda t, out: gc.clip_by_value(t, -0.5, 0.5, out=out),
        lambda t, out: gc.normalize(t, axis=0, out=out)[0],
    ]
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for call in calls:
            d, out = cupy.asarray(x), cupy.empty(x.shape, x.dtype)
            call(d, out)
            out.fill(0)
            stream.begin_capture()
            call(d, out)
            graph = stream.end_capture()
            graph.launch(stream)
            assert out.get().tobytes() == call(x, np.empty_like(x)).tobytes()
    gc.trim()


def test_a_norm_stays_on_the_device(cupy):
    """The norm of one list limits another one, without a wait for it."""
    arrays = grads(5, 0)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        on_device = [cupy.asarray(x) for x in arrays]
        gc.clip_by_global_norm(on_device, 1.0, gc.global_norm(on_device), out=on_device)
        for d, x in zip(on_device, arrays, strict=True):
            d.set(x)
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        _, norm = gc.clip_by_global_norm(on_device, 1.0, gc.global_norm(on_device), out=on_device)
        stream.end_capture().launch(stream)
        clipped, expected = gc.clip_by_global_norm(arrays, 1.0)
        assert float(norm) == expected
        for d, x in zip(on_device, clipped, strict=True):
            assert d.get().tobytes() == x.tobytes()
    gc.trim()


def test_large_arrays(cupy):
    """Of more elements than 32 bits count."""
    n = 2**31 + 5000
    if cupy.cuda.Device().mem_info[0] < 3 * n:
        pytest.skip("there is not enough memory on the GPU")
    d = cupy.ones(n, np.int8)
    d[-1] = -7
    assert float(gc.norm(d, 1)) == n - 1 + 7
    gc.clip_by_value(d, -3, 100, out=d)
    assert d[-1].get() == -3
    assert d[n // 2].get() == 1
    half = cupy.zeros(n, np.float16)
    half[-2:] = 3.0, 4.0
    assert float(gc.clip_by_global_norm([half], 1.0, out=[half])[1]) == 5.0
    assert half[-2:].get().tolist() == np.array([0.6, 0.8], np.float16).tolist()
