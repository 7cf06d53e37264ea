"""The stand-in for CuPy behaves like CuPy as far as it goes, and the test helpers find the faults they should."""

import gpu_arrays
import numpy as np
import oracle
import pytest
from fake_cupy import IMPLICIT, module
from gpu_arrays import LAYOUTS
from layouts import fits
from oracle import NORMED

SHAPES = [(), (7,), (5, 9), (3, 4, 5), (0, 3), (2, 3, 1, 4, 5)]


def kinds():
    """The libraries of arrays: the stand-in, and CuPy where it is installed."""
    found = [gpu_arrays.Gpu("stand-in", module())]
    if gpu_arrays.HAS_CUPY:
        import cupy

        found.append(gpu_arrays.Gpu("cupy", cupy))
    return found


@pytest.mark.parametrize("dtype", NORMED)
def test_arrays_keep_values_and_strides_on_the_way(dtype):
    for gpu in kinds():
        for shape in SHAPES:
            x = np.asarray(np.random.default_rng(1).integers(0, 2, shape).astype(dtype))
            for name, layout in LAYOUTS.items():
                if fits(name, x):
                    there = layout(x)
                    a = gpu.array(there)
                    assert type(a) is gpu.ndarray
                    assert a.strides == there.strides
                    assert oracle.same_bits(gpu.get(a), x)
                    assert a.data.device_id == 0
                    assert not np.shares_memory(gpu.get(a), there)


def test_an_array_of_the_second_device():
    for gpu in kinds():
        a = gpu.array(np.ones(3), device_id=1)
        assert a.device.id == a.data.device_id == a[1:].data.device_id == 1


ATTRIBUTES = ["shape", "strides", "dtype", "size", "ndim", "itemsize", "nbytes", "_c_contiguous", "_f_contiguous"]
VIEWS = {
    "itself": lambda a: a,
    "part": lambda a: a[1:, ::-1],
    "row": lambda a: a[1],
    "column": lambda a: a[:, 2],
    "element": lambda a: a[1, 2],
    "dots": lambda a: a[...],
    "last": lambda a: a[..., :1],
    "new axis": lambda a: a[:, None],
    "nothing": lambda a: a[2:2],
    "T": lambda a: a.T,
    "transpose": lambda a: a.transpose(1, 0),
    "transpose of a tuple": lambda a: a.transpose((1, 0)),
    "reshape": lambda a: a.reshape(3, -1),
    "reshape of a tuple": lambda a: a.reshape((2, 2, 6)),
    "dtype": lambda a: a.view(np.uint8),
}


@pytest.mark.cupy
@pytest.mark.parametrize("view", VIEWS)
def test_views_are_what_those_of_cupy_are(view):
    fake, real = kinds()
    x = np.arange(24.0).reshape(4, 6)
    roots = fake.array(x), real.array(x)
    a, b = (VIEWS[view](root) for root in roots)
    for name in ATTRIBUTES:
        assert getattr(a, name) == getattr(b, name), name
    assert a.flags.c_contiguous == b.flags.c_contiguous
    assert a.flags.f_contiguous == b.flags.f_contiguous
    assert a.size == 0 or a.data.ptr - roots[0].data.ptr == b.data.ptr - roots[1].data.ptr
    assert a.data.mem is roots[0].data.mem
    assert b.data.mem is roots[1].data.mem
    assert oracle.same_bits(fake.get(a), real.get(b))


def test_views_share_memory():
    for gpu in kinds():
        a = gpu.array(np.zeros((4, 6)))
        gpu.get(a[1:, ::2])[...] = 7
        assert gpu.get(a).sum() == 7 * 9


def test_nothing_is_converted_or_computed_by_accident():
    gpu = gpu_arrays.Gpu("stand-in", module())
    a = gpu.array(np.ones((2, 3)))
    for call in (np.asarray, np.array, np.negative, np.linalg.norm, lambda a: np.ones(3) + a):
        with pytest.raises(TypeError) as caught:
            call(a)
        assert str(caught.value) == IMPLICIT
    for call in (bool, lambda a: a == a, lambda a: a[[0, 1]], lambda a: a.T.reshape(6)):
        with pytest.raises(NotImplementedError):
            call(a)
    for call in (lambda a: a + 1, lambda a: a * a, float, int, iter, len, hash, lambda a: a[0] < 1):
        with pytest.raises(TypeError):
            call(a)
    assert not hasattr(a, "copy")
    assert gpu.syncs == 0
    assert a.get().tolist() == [[1, 1, 1]] * 2
    assert gpu.syncs == 1
    gpu.reset()
    assert gpu.syncs == 0


def test_memory_outside_is_not_seen():
    gpu = gpu_arrays.Gpu("stand-in", module())
    memory = gpu.empty((4,), np.float64).data
    with pytest.raises(ValueError, match="strides"):
        gpu.ndarray((5,), np.float64, memory)
    assert gpu.ndarray((2, 3)).strides == (24, 8)
    assert gpu.ndarray((2, 3), np.float32, order="F").strides == (4, 8)
    assert gpu.ndarray(3, np.int8).data.ptr % 512 == 0


class Device:
    """One that does nothing."""

    multiprocessors, key, launched = 7, "key", 0

    def function(self, name):
        return name * 2

    def launch(self, function, grid, block, params):
        self.launched += function == "ff" and grid == 3 and block == 64 and params is None


def test_a_recorder_counts_and_hands_on():
    gpu, device = gpu_arrays.Gpu("stand-in", module()), Device()
    recorder, other = gpu_arrays.Recorder(device, gpu), gpu_arrays.Recorder(device, gpu, 1)
    assert recorder.key != other.key
    assert recorder.key == gpu_arrays.Recorder(device, gpu).key
    assert recorder.multiprocessors == gpu.multiprocessors == 2
    gpu.multiprocessors = 0
    assert recorder.multiprocessors == 7
    recorder.launch(recorder.function("f"), 3, 64, None)
    assert gpu.launches == ["f"]
    assert device.launched == 1


def test_a_difference_is_seen():
    for gpu in kinds():
        x = np.arange(6.0).reshape(2, 3)
        gpu_arrays.assert_same(gpu, gpu.array(x), x)
        gpu_arrays.assert_same(gpu, gpu.array(np.array(3.0)), 3.0)
        gpu_arrays.assert_same(gpu, [gpu.array(x), None], [x, None])
        minus = np.where(x == 0, -0.0, x)
        for got, expected in (
            (minus, x),
            (x.astype(np.float32), x),
            (np.asfortranarray(x), x),
            (x.reshape(3, 2), x),
            (np.array(3.0, np.float32), 3.0),
            (np.array([3.0]), 3.0),
            (oracle.from_bits([0x7FC00001], np.float32), oracle.from_bits([0x7FC00000], np.float32)),
        ):
            with pytest.raises(AssertionError):
                gpu_arrays.assert_same(gpu, gpu.array(got), expected)
        for got, expected in ((x, x), (3.0, 3.0), ((gpu.array(x),), [x]), ([gpu.array(x)], [x, x])):
            with pytest.raises(AssertionError):
                gpu_arrays.assert_same(gpu, got, expected)
