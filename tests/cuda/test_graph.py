"""Calls captured in CUDA graphs on a real GPU: this proves that nothing waits for the device, and what allocates."""

import contextlib

import gradclip as gc
import numpy as np
import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy():
    import cupy

    return cupy


@pytest.fixture
def stream(cupy):
    """A stream of the test's own, which is the current one."""
    with cupy.cuda.Stream(non_blocking=True) as stream:
        yield stream
        stream.synchronize()
    gc.trim()


class Capture:
    """A context whose launches become a graph. The capture ends if it fails too, or no later test could run."""

    def __init__(self, stream, mode=None):
        self.stream, self.mode = stream, mode

    def __enter__(self):
        self.stream.begin_capture(self.mode)
        return self

    def __exit__(self, error, *_):
        if error is None:
            self.graph = self.stream.end_capture()
            return
        with contextlib.suppress(Exception):  # an error may have ended the capture
            self.stream.end_capture()

    def run(self):
        self.graph.launch(self.stream)


def grads(n, seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(3000 + i).astype(dtype) for i in range(n)]


def write(on_device, arrays):
    for d, x in zip(on_device, arrays, strict=True):
        d.set(x)


def assert_equal(on_device, arrays):
    for d, x in zip(on_device, arrays, strict=True):
        assert d.get().tobytes() == x.tobytes()


@pytest.mark.parametrize("dtypes", [[np.float32], [np.float32, np.float64, np.complex64]])
@pytest.mark.parametrize("n", [3, 1000])
@pytest.mark.parametrize("p", [2, 3.7])
def test_a_graph_clips_what_the_arrays_hold_when_it_runs(cupy, stream, dtypes, n, p):
    def made(seed):
        return [x for dtype in dtypes for x in grads(n, seed, dtype)]

    on_device = [cupy.asarray(x) for x in made(0)]
    gc.clip_by_global_norm(on_device, 1e9, ord=p, out=on_device)  # to warm up
    # In this mode an allocation is an error, and so is a wait in any.
    with Capture(stream, cupy.cuda.runtime.streamCaptureModeThreadLocal) as graph:
        _, norm = gc.clip_by_global_norm(on_device, 1.0, ord=p, out=on_device)
    for seed in range(3):
        arrays = made(seed)
        write(on_device, arrays)
        other = [cupy.asarray(x) for x in made(9)]
        gc.clip_by_global_norm(other, 1.0, out=other)
        graph.run()
        clipped, expected = gc.clip_by_global_norm(arrays, 1.0, ord=p)
        assert float(norm) == expected
        assert_equal(on_device, clipped)


def test_one_array_in_a_graph(cupy, stream):
    x = np.random.default_rng(0).standard_normal((300, 500)).astype(np.float32)
    calls = [
        lambda t, out: gc.clip_by_norm(t, 1.0, out=out),
        lambda t, out: gc.clip_by_norm(t, 1.0, axes=1, out=out),
        lambda t, out: gc.clip_by_norm(t, 1.0, axes=0, out=out),
        lambda t, out: gc.clip_by_average_norm(t, 1e-3, out=out),
        lambda t, out: gc.clip_by_value(t, -0.5, 0.5, out=out),
        lambda t, out: gc.normalize(t, axis=0, out=out)[0],
    ]
    for call in calls:
        d, out = cupy.asarray(x), cupy.empty(x.shape, x.dtype)
        call(d, out)
        out.fill(0)
        with Capture(stream) as graph:
            call(d, out)
        assert not out.get().any()  # a capture launches nothing
        graph.run()
        assert out.get().tobytes() == call(x, np.empty_like(x)).tobytes()


def test_a_norm_stays_on_the_device(cupy, stream):
    """The norm of one list limits another one, without a wait for it.

    The second call of a capture allocates scratch memory, which CuPy's default mode allows.
    """
    arrays = grads(5, 0)
    on_device = [cupy.asarray(x) for x in arrays]
    gc.clip_by_global_norm(on_device, 1.0, gc.global_norm(on_device), out=on_device)
    write(on_device, arrays)
    with Capture(stream) as graph:
        _, norm = gc.clip_by_global_norm(on_device, 1.0, gc.global_norm(on_device), out=on_device)
    graph.run()
    clipped, expected = gc.clip_by_global_norm(arrays, 1.0)
    assert float(norm) == expected
    assert_equal(on_device, clipped)


def test_several_calls_of_one_graph_do_not_disturb_each_other(cupy, stream):
    x, rows = np.random.default_rng(0).standard_normal((2, 64, 700)).astype(np.float32)
    a, b, c = (cupy.asarray(v) for v in (x, rows, rows))

    def calls():
        gc.clip_by_norm(a, 1.0, out=a)
        gc.clip_by_norm(b, 1.0, axes=1, out=b)
        norms = gc.norm(c, axis=0)
        gc.clip_by_norm(c, norms[3], axes=0, out=c)
        return norms

    calls()
    with Capture(stream) as graph:
        norms = calls()
    expected = gc.norm(rows, axis=0)
    clipped = [gc.clip_by_norm(x, 1.0), gc.clip_by_norm(rows, 1.0, axes=1), gc.clip_by_norm(rows, expected[3], axes=0)]
    for _ in range(3):
        write([a, b, c], [x, rows, rows])
        gc.clip_by_norm(cupy.asarray(x), 2.0)
        graph.run()
        assert_equal([a, b, c, norms], [*clipped, expected])


def test_graphs_of_one_list_do_not_disturb_each_other(cupy, stream):
    """Each has memory of its own, as has a call between their runs."""
    arrays = grads(100, 0)
    on_device = [cupy.asarray(x) for x in arrays]
    graphs = []
    for limit in (1.0, 2.0, 3.0):
        gc.clip_by_global_norm(on_device, 1e9, out=on_device)
        with Capture(stream, cupy.cuda.runtime.streamCaptureModeThreadLocal) as graph:
            _, norm = gc.clip_by_global_norm(on_device, limit, out=on_device)
        graphs.append((limit, graph, norm))
    for limit, graph, norm in [*graphs, *reversed(graphs)]:
        write(on_device, arrays)
        whole = gc.global_norm(on_device)
        graph.run()
        clipped, expected = gc.clip_by_global_norm(arrays, limit)
        assert float(norm) == float(whole) == expected
        assert_equal(on_device, clipped)


def test_a_capture_that_fails_spoils_no_later_call(cupy, stream):
    arrays = grads(3, 0)
    on_device = [cupy.asarray(x) for x in arrays]

    def fails():
        with Capture(stream):
            gc.clip_by_global_norm(on_device, 1.0, out=on_device)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    clipped, expected = gc.clip_by_global_norm(arrays, 1.0)
    _, norm = gc.clip_by_global_norm(on_device, 1.0, out=on_device)
    assert float(norm) == expected
    assert_equal(on_device, clipped)
