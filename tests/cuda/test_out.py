"""The `out` argument on the device: where results go, what overlaps give, and when nothing is written.

The same windows of one piece of memory on the CPU and on the device: all of it must be the same afterwards.
"""

import os
import subprocess
import sys
import textwrap

import cuda_shim
import gradclip as gc
import numpy as np
import oracle
import pytest
from calls import WITH_OUT, cast, looped, suits
from gpu_arrays import LAYOUTS, WRITEABLE, assert_same, some
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from oracle import BF16, INTEGERS, SCALED
from overlaps import VIEWS, WINDOWS, window

singles = pytest.mark.parametrize("name", WITH_OUT)
DTYPES = [np.float32, BF16, np.complex128]
singles_and_dtypes = pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name in WITH_OUT for dtype in DTYPES if suits(name, dtype)]
)


def sample(shape, dtype=np.float64, seed=1):
    return np.asarray(cast(np.asarray(np.random.default_rng(seed).standard_normal(shape)), dtype))


def same_memory(gpu, on_device, on_host, told=""):
    assert oracle.same_bits(gpu.get(on_device), on_host), told


# ---- results, and where they are written


@pytest.mark.sampled
@singles_and_dtypes
@looped("shape", [(7,), (5, 9), (3, 4, 5), (0, 3), (2, 2100), (2100, 2)])
def test_out_is_returned_and_holds_the_result(gpu, name, dtype, shape):
    x = sample(shape, dtype)
    t, out = gpu.array(x), gpu.empty(shape, dtype)
    gpu.reset()
    assert WITH_OUT[name](t, out) is out
    assert gpu.syncs == 0
    same_memory(gpu, out, WITH_OUT[name](x))
    same_memory(gpu, t, x)


@pytest.mark.sampled
@singles_and_dtypes
@looped("layout", WRITEABLE)
def test_out_may_have_any_layout_and_be_the_input_itself(gpu, name, dtype, layout):
    x = sample((4, 6), dtype)
    for form in ("contiguous", "fortran", layout):
        t = gpu.array(LAYOUTS[form](x))
        out = gpu.array(WRITEABLE[layout](np.full_like(x, 99)))
        assert WITH_OUT[name](t, out) is out
        same_memory(gpu, out, WITH_OUT[name](LAYOUTS[form](x)), form)
    expected = WITH_OUT[name](WRITEABLE[layout](x))
    itself = gpu.array(WRITEABLE[layout](x))
    assert WITH_OUT[name](itself, itself) is itself
    same_memory(gpu, itself, expected)
    view = gpu.array(WRITEABLE[layout](x))
    out = view[...]
    assert WITH_OUT[name](view, out) is out
    same_memory(gpu, view, expected)


@pytest.mark.parametrize("dtype", some(SCALED))
@looped("axes", [None, 0, 1, 2, (0, 1), (1, 2), (0, 2), ()])
def test_the_layout_of_out_does_not_change_a_bit(gpu, dtype, axes):
    for shape in ((3, 5, 4), (40, 2, 3), (1, 33, 2)):
        x = sample(shape, dtype)
        for form in ("contiguous", "fortran", "transposed", "permuted"):
            t = LAYOUTS[form](x)
            clipped = gc.clip_by_norm(t, 0.3, axes)
            for layout in WRITEABLE:
                out = gpu.array(WRITEABLE[layout](np.full_like(x, 99)))
                assert gc.clip_by_norm(gpu.array(t), 0.3, axes, out=out) is out
                same_memory(gpu, out, clipped, (shape, form, layout))
            if axes != ():
                p = 2 if axes is None or isinstance(axes, int) else "fro"
                out = gpu.array(WRITEABLE["permuted"](np.full_like(x, 99)))
                first, norm = gc.normalize(gpu.array(t), p, axes, out=out)
                expected, host_norm = gc.normalize(t, p, axes)
                assert first is out
                same_memory(gpu, out, expected)
                assert_same(gpu, norm, host_norm)


@pytest.mark.parametrize("dtype", INTEGERS)
@looped("layout", WRITEABLE)
def test_out_of_integers(gpu, dtype, layout):
    x = np.arange(24, dtype=dtype).reshape(4, 6)
    low = np.arange(6, dtype=dtype)[::-1]
    for bounds in ((3, 17), (low, None), (None, low)):
        expected = gc.clip_by_value(x, *bounds)
        on_device = [gpu.array(b) if isinstance(b, np.ndarray) else b for b in bounds]
        for out in (gpu.array(WRITEABLE[layout](np.full_like(x, 99))), None):
            t = gpu.array(WRITEABLE[layout](x))
            target = t if out is None else out
            assert gc.clip_by_value(t, *on_device, out=target) is target
            same_memory(gpu, target, expected)


@singles_and_dtypes
def test_out_of_zero_dimensions(gpu, name, dtype):
    if not name.endswith(("rows", "columns")):
        x = np.array(-3.0).astype(dtype)
        t, out = gpu.array(x), gpu.empty((), dtype)
        assert WITH_OUT[name](t, out) is out
        same_memory(gpu, out, WITH_OUT[name](x))
        assert WITH_OUT[name](t, t) is t
        same_memory(gpu, t, WITH_OUT[name](x))


def test_the_returned_list_is_new_and_its_entries_are_the_out_arrays(gpu):
    t_list = [sample(5), None, sample((2, 3), np.float32), sample((0, 2)), sample((2200,))]
    expected = gc.clip_by_global_norm(t_list, 0.5)
    for kind in (list, tuple):
        outs = kind([None if t is None else gpu.empty(t.shape, t.dtype) for t in t_list])
        clipped, norm = gc.clip_by_global_norm(gpu.arrays(t_list), 0.5, out=outs)
        assert type(clipped) is list
        assert all(a is b for a, b in zip(clipped, outs, strict=True))
        assert_same(gpu, (clipped, norm), expected)
    own = gpu.arrays(t_list)
    clipped, norm = gc.clip_by_global_norm(own, 0.5, out=own)
    assert clipped is not own
    assert all(a is b for a, b in zip(clipped, own, strict=True))
    assert_same(gpu, (clipped, norm), expected)


@pytest.mark.parametrize("n", [1, 3000])
@looped("limit", [0.5, 1e9])
def test_many_tensors_in_place(gpu, n, limit):
    t_list = [sample((k % 5 + 1,), np.float32, k) for k in range(n)]
    own = gpu.arrays(t_list)
    clipped, norm = gc.clip_by_global_norm(own, limit, out=own)
    assert all(a is b for a, b in zip(clipped, own, strict=True))
    assert_same(gpu, (clipped, norm), gc.clip_by_global_norm(t_list, limit))


# ---- overlaps


@pytest.mark.sampled
@singles
@looped("source", WINDOWS)
def test_an_overlap_gives_what_disjoint_memory_would_give(gpu, name, source):
    for target in WINDOWS:
        room = sample(60, np.float32)
        on_device = gpu.array(room)
        room[target] = WITH_OUT[name](room.copy()[source])
        out = on_device[target]
        gpu.reset()
        assert WITH_OUT[name](on_device[source], out) is out
        assert gpu.syncs == 0
        same_memory(gpu, on_device, room, target)


@pytest.mark.parametrize("name", ["clip_by_value", "clip_by_norm", "clip_by_norm of columns", "clip_by_global_norm"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64])
@looped("shift", [1, -1, 17, -4096])
def test_a_long_overlap(gpu, name, dtype, shift):
    """Of more than one block either way."""
    if not suits(name, dtype):
        return
    n, at = 10_000, abs(shift)
    room = sample(n + at, dtype)
    source, target = (slice(0, n), slice(at, n + at)) if shift > 0 else (slice(at, n + at), slice(0, n))
    on_device = gpu.array(room)
    room[target] = WITH_OUT[name](room.copy()[source])
    WITH_OUT[name](on_device[source], on_device[target])
    same_memory(gpu, on_device, room)


@pytest.mark.sampled
@singles
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=VIEWS, target=VIEWS, dtype=st.sampled_from(SCALED))
def test_two_dimensional_overlaps_of_any_offset_and_stride(gpu, name, source, target, dtype):
    room = sample((12, 12), dtype if suits(name, dtype) else np.float64)
    on_device = gpu.array(room)
    window(room, target)[...] = WITH_OUT[name](window(room.copy(), source))
    WITH_OUT[name](window(on_device, source), window(on_device, target))
    same_memory(gpu, on_device, room)


def clip_both(gpu, room, views, outs, limit):
    """clip_by_global_norm of views of one piece of memory into others of it, on the CPU and on the device."""
    on_device = gpu.array(room)
    host = gc.clip_by_global_norm([view(room) for view in views], limit, out=[out(room) for out in outs])
    gpu.reset()
    targets = [out(on_device) for out in outs]
    clipped, norm = gc.clip_by_global_norm([view(on_device) for view in views], limit, out=targets)
    assert gpu.syncs == 0
    assert all(a is b for a, b in zip(clipped, targets, strict=True))
    assert_same(gpu, norm, host[1])
    same_memory(gpu, on_device, room)


def part(*index):
    return lambda room: room[index]


@looped("limit", [0.5, 1e9])
def test_outputs_that_overlap_the_inputs_of_their_neighbours(gpu, limit):
    tens = [part(slice(10 * k, 10 * k + 10)) for k in range(4)]
    for shift in (5, 10, 1):
        clip_both(gpu, sample(50), tens, [part(slice(10 * k + shift, 10 * k + shift + 10)) for k in range(4)], limit)
    clip_both(gpu, sample(50), tens, tens[1:] + tens[:1], limit)
    clip_both(gpu, sample(50), tens, tens[::-1], limit)
    clip_both(gpu, sample(50), [tens[0]] * 4, tens, limit)
    backwards = [part(slice(10 * k + 9, 10 * k - 1 if k else None, -1)) for k in range(4)]
    clip_both(gpu, sample(50), tens, backwards, limit)
    long = [part(slice(5000 * k, 5000 * k + 5000)) for k in range(3)]
    clip_both(gpu, sample(20_000), long, [part(slice(5000 * k + 7, 5000 * k + 5007)) for k in range(3)], limit)


@looped("limit", [0.5, 1e9])
def test_interleaved_outputs_that_share_no_byte(gpu, limit):
    columns = [part(slice(None), slice(0, 6, 2)), part(slice(None), slice(1, 6, 2))]
    clip_both(gpu, sample((8, 6)), columns, columns, limit)
    clip_both(gpu, sample((8, 6)), columns, columns[::-1], limit)
    clip_both(gpu, sample((8, 6)), columns, [columns[1], part(slice(None, None, -1), slice(4, None, -2))], limit)
    halves = [part(0, slice(0, 40, 2)), part(0, slice(39, None, -2))]
    clip_both(gpu, sample((2, 40)), [part(0, slice(20)), part(1, slice(20))], halves, limit)


def test_outputs_over_the_inputs_of_other_dtypes(gpu):
    for first, second in ((np.float32, np.float64), (np.float16, np.complex64), (np.complex128, BF16)):
        size = 8 * max(np.dtype(first).itemsize, np.dtype(second).itemsize)
        a = sample(size // np.dtype(first).itemsize, first)
        b = sample(size // np.dtype(second).itemsize, second) * second(3)
        expected = gc.clip_by_global_norm([a, b], 0.5)
        x, y = gpu.array(a), gpu.array(b)
        clipped, norm = gc.clip_by_global_norm([x, y], 0.5, out=[y.view(first), x.view(second)])
        assert_same(gpu, (clipped, norm), expected)


def test_a_bound_may_overlap_out(gpu):
    room = np.abs(sample(60))
    for low, high, target in (
        (None, slice(10, 20), slice(10, 20)),
        (None, slice(10, 20), slice(13, 23)),
        (slice(10, 20), None, slice(7, 17)),
        (slice(12, 22), slice(10, 20), slice(11, 21)),
        (slice(12, 13), slice(10, 20), slice(10, 20)),
        (slice(10, 20), slice(19, 9, -1), slice(10, 20)),
    ):
        host, on_device = room.copy(), gpu.array(room)
        for space in (host, on_device):
            bounds = [None if b is None else space[b] for b in (low, high)]
            gc.clip_by_value(space[:10], *bounds, out=space[target])
        same_memory(gpu, on_device, host, (low, high, target))


def test_a_limit_may_lie_in_out(gpu):
    """It is read before it is written over."""
    x = np.array([3.0, 4.0, 2.0])
    t = gpu.array(x)
    assert_same(gpu, gc.clip_by_norm(t, t[2], out=t), gc.clip_by_norm(x, 2.0))
    t = gpu.array(x)
    assert_same(gpu, gc.clip_by_norm(t, t[2], (), out=t), gc.clip_by_norm(x, 2.0, ()))
    t = gpu.array(x)
    clipped, _ = gc.clip_by_global_norm([t], t[2], t[1], out=[t])
    assert_same(gpu, clipped, gc.clip_by_global_norm([x], 2.0, 4.0)[0])


@pytest.mark.parametrize("multiprocessors", [1, 3])
@pytest.mark.parametrize("shape", [(300, 7), (40, 3000), (2, 40_000), (7, 300)])
def test_a_limit_of_slices_may_lie_in_out(gpu, shape, multiprocessors):
    """It is that of all slices, those too that are scaled after its place has been written."""
    gpu.multiprocessors = multiprocessors
    x = sample(shape, np.float32)
    for at in (0, x.size // 2, x.size - 1):
        x.ravel()[at] = 0.7
        for axes in (0, 1, ()):
            expected = gc.clip_by_norm(x, np.float32(0.7), axes)
            t = gpu.array(x)
            gc.clip_by_norm(t, t.reshape(-1)[at : at + 1].reshape(()), axes, out=t)
            same_memory(gpu, t, expected, (axes, at))
            out = gpu.array(x)
            gc.clip_by_norm(gpu.array(x), out.reshape(-1)[at : at + 1].reshape(()), axes, out=out)
            same_memory(gpu, out, expected, (axes, at))


def test_long_slices_that_overlap_out(gpu):
    room = sample((70_000,))
    host, on_device = room.copy(), gpu.array(room)
    for space in (host, on_device):
        gc.clip_by_norm(space[:66_000].reshape(2, -1), 50.0, 1, out=space[3000:69_000].reshape(2, -1))
        gc.clip_by_norm(space[3000:69_000].reshape(2, -1), 5.0, 1, out=space[:66_000].reshape(2, -1))
    same_memory(gpu, on_device, host)


def test_long_slices_into_another_layout(gpu):
    x = sample((2, 33_000))
    for target in (np.zeros((33_000, 2)).T, np.zeros((2, 66_000))[:, ::2]):
        out = gpu.array(target)
        gc.clip_by_norm(gpu.array(x), 50.0, 1, out=out)
        same_memory(gpu, out, gc.clip_by_norm(x, 50.0, 1))


def test_a_limit_in_out_limits_all_slices(gpu):
    """Those that come after it is written over, too."""
    for shape in ((300, 20), (30, 3000), (20, 300), (3000, 20)):
        for axes in ((0,), (1,), None):
            x = np.abs(sample(shape)) + 0.1
            t = gpu.array(x)
            expected = gc.clip_by_norm(x, float(x[0, 2]), axes)
            assert_same(gpu, gc.clip_by_norm(t, t[0, 2], axes, out=t), expected, told=(shape, axes))
            out = gpu.array(np.full(shape, 0.25, x.dtype))
            assert_same(gpu, gc.clip_by_norm(t, out[0, 0], axes, out=out), gc.clip_by_norm(gpu.get(t), 0.25, axes))
    x = -np.abs(sample((3000,)))
    out = gpu.array(np.full(3000, 0.25, x.dtype))
    assert_same(gpu, gc.clip_by_norm(gpu.array(x), out[0], (), out=out), gc.clip_by_norm(x, 0.25, ()))


def test_a_norm_that_was_returned_may_be_the_limit_of_the_next_call_in_place(gpu):
    x = sample((50,), np.float32)
    t = gpu.array(x)
    norm = gc.norm(t[:10])
    gc.clip_by_norm(t, norm, out=t)
    same_memory(gpu, t, gc.clip_by_norm(x, gc.norm(x[:10])))
    assert_same(gpu, norm, gc.norm(x[:10]))


# ---- clashes and others that are refused


ROOM = 64
SHARING = {
    "the same array": (slice(10), slice(10)),
    "one element": (slice(10), slice(9, 19)),
    "opposite directions": (slice(10), slice(18, 8, -1)),
    "crossing strides": (slice(0, 30, 3), slice(0, 20, 2)),
    "one inside the other": (slice(4, 14), slice(0, 20, 2)),
}


@pytest.mark.parametrize("pair", SHARING)
def test_two_outputs_that_share_a_byte_are_refused(gpu, pair):
    host = np.full(ROOM, 7.0)
    on_device = gpu.array(host)
    messages = []
    for room, make in ((host, lambda x: x), (on_device, gpu.array)):
        with pytest.raises(ValueError, match=r"^clip_by_global_norm: out\[\d\]: ") as caught:
            gc.clip_by_global_norm([make(sample(10)), make(sample(10))], 0.5, out=[room[s] for s in SHARING[pair]])
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    same_memory(gpu, on_device, host)
    assert not gpu.launches


OVERLAPPING = {"stride 0": ((10,), (0,)), "rows that share": ((2, 5), (8, 8)), "stride 0 inside": ((5, 2), (16, 0))}


@pytest.mark.parametrize("kind", OVERLAPPING)
@singles
def test_an_output_that_overlaps_itself_is_refused(gpu, name, kind):
    host = np.full(ROOM, 7.0)
    out = as_strided(host, *OVERLAPPING[kind])
    t = gpu.array(sample(out.shape))
    target = gpu.array(out)
    with pytest.raises(ValueError, match="out") as caught:
        WITH_OUT[name](t, target)
    with pytest.raises(ValueError, match="out") as on_host:
        WITH_OUT[name](sample(out.shape), out)
    assert str(caught.value) == str(on_host.value)
    assert (gpu.get(target) == 7).all()


def test_a_stride_of_0_over_one_element_is_no_overlap(gpu):
    out = gpu.array(as_strided(np.zeros(4), (1, 4), (0, 8)))
    assert gc.clip_by_norm(gpu.array(sample((1, 4))), 0.5, out=out) is out
    same_memory(gpu, out, gc.clip_by_norm(sample((1, 4)), 0.5))


@singles
def test_a_wrong_shape_or_dtype_of_out_is_refused(gpu, name):
    x = sample((3, 4))
    for out in (
        *(np.zeros(shape) for shape in ((4, 3), (12,), (1, 3, 4), (3, 1), ())),
        *(np.zeros((3, 4), dtype) for dtype in (np.float32, np.complex128, np.int64, bool)),
    ):
        with pytest.raises((TypeError, ValueError), match="out") as on_host:
            WITH_OUT[name](x, out)
        target = gpu.array(out)
        with pytest.raises(on_host.type, match="out") as caught:
            WITH_OUT[name](gpu.array(x), target)
        assert str(caught.value) == str(on_host.value)
        same_memory(gpu, target, out)


@singles
def test_an_out_of_another_library_is_a_type_error(gpu, name):
    """One of NumPy for an array of CuPy, and the other way round; lists and numbers too."""
    x = sample((3, 4))
    t, host = gpu.array(x), np.zeros((3, 4))
    where = r"clip_by_\w+: out|normalize: out"
    for out in (host, [[0.0] * 4] * 3, 1.0, "out", host.tolist()):
        with pytest.raises(TypeError, match=where):
            WITH_OUT[name](t, out)
    assert not host.any()
    target = gpu.array(host)
    with pytest.raises(TypeError, match=where):
        WITH_OUT[name](x, target)
    same_memory(gpu, target, host)
    assert not gpu.launches


@singles
def test_an_out_on_another_device_is_a_value_error(gpu, name):
    x = sample((3, 4))
    target = gpu.array(np.zeros((3, 4)), device_id=1)
    with pytest.raises(ValueError, match="out"):
        WITH_OUT[name](gpu.array(x), target)
    same_memory(gpu, target, np.zeros((3, 4)))


FIFTH = {
    "dtype of the tensor": lambda gpu, t, o: ([gpu.array(np.arange(4))], [o]),
    "dtype of out": lambda gpu, t, o: ([t], [gpu.array(np.ones(4, np.float32))]),
    "shape of out": lambda gpu, t, o: ([t], [o[:3]]),
    "an array of NumPy": lambda gpu, t, o: ([np.ones(4)], [o]),
    "an out of NumPy": lambda gpu, t, o: ([t], [np.ones(4)]),
    "overlap with another": lambda gpu, t, o: ([t, t], [o, o[::-1]]),
    "an array for None": lambda gpu, t, o: ([None], [o]),
    "fewer outputs": lambda gpu, t, o: ([t, t], [o]),
    "more outputs": lambda gpu, t, o: ([t], [o, o]),
}


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("kind", FIFTH)
def test_an_error_about_the_fifth_tensor_leaves_the_first_four_untouched(gpu, kind, in_place):
    """Nothing is launched before every argument has been checked."""
    t_list = [gpu.array(np.full(4, 3.0)) for _ in range(4)]
    outs = t_list if in_place else [gpu.array(np.full(4, 3.0)) for _ in range(4)]
    t, o = FIFTH[kind](gpu, gpu.array(np.full(4, 3.0)), gpu.array(np.full(4, 3.0)))
    with pytest.raises((TypeError, ValueError)):
        gc.clip_by_global_norm([*t_list, *t], 1.0, out=[*outs, *o])
    assert all((gpu.get(a) == 3).all() for a in (*t_list, *outs))
    assert not gpu.launches


def test_the_test_above_would_see_a_write(gpu):
    outs = [gpu.array(np.full(4, 3.0)) for _ in range(4)]
    gc.clip_by_global_norm([gpu.array(np.full(4, 3.0)) for _ in range(4)], 1.0, out=outs)
    assert not any((gpu.get(a) == 3).any() for a in outs)
    assert gpu.launches


# ---- in place and nothing to do


# In a process of its own: a write to these pages would end it.
PROTECTED = """
    import ctypes, mmap, sys
    import fake_cupy, gpu_arrays, numpy as np, gradclip as gc, pytest
    from oracle import SCALED, ORDERED, BF16
    from calls import cast

    gpu = gpu_arrays.install("stand-in", pytest.MonkeyPatch())
    libc = ctypes.CDLL(None, use_errno=True)
    PAGES = 4

    def protected(dtype, value):
        memory = mmap.mmap(-1, PAGES * mmap.PAGESIZE)
        x = np.frombuffer(memory, dtype=dtype)
        x[...] = value(x.size)
        start = x.__array_interface__["data"][0]
        size = ctypes.c_size_t(PAGES * mmap.PAGESIZE)
        if libc.mprotect(ctypes.c_void_p(start), size, mmap.PROT_READ):
            raise OSError(ctypes.get_errno(), "mprotect")
        return gpu.cupy.ndarray(x.shape, x.dtype, gpu.pointer(start, x.nbytes, x))

    def ordinary(n):
        return cast(np.random.default_rng(0).standard_normal(n) / n, dtype)

    for dtype in SCALED:
        x, z = protected(dtype, ordinary), protected(dtype, lambda n: np.zeros(n, dtype))
        u = protected(dtype, lambda n: np.ones(n, dtype))
        rows, halves = x.reshape(16, -1), [x[::2], x[1::2]]
        norm = gc.global_norm([x, z])
        calls = {
            "clip_by_value": lambda: gc.clip_by_value(x, -1e3, 1e3, out=x),
            "clip_by_value with arrays": lambda: gc.clip_by_value(x, None, u, out=x),
            "clip_by_norm": lambda: gc.clip_by_norm(x, 1e3, out=x),
            "clip_by_norm of rows": lambda: gc.clip_by_norm(rows, 1e3, 1, out=rows),
            "clip_by_norm of columns": lambda: gc.clip_by_norm(rows, 1e3, 0, out=rows),
            "clip_by_norm of columns of F": lambda: gc.clip_by_norm(rows.T, 1e3, 0, out=rows.T),
            "clip_by_norm of elements": lambda: gc.clip_by_norm(x, 1e3, (), out=x),
            "clip_by_norm of every second": lambda: gc.clip_by_norm(x[::2], 1e3, out=x[::2]),
            "clip_by_norm of zeros to 0": lambda: gc.clip_by_norm(z, 0, out=z),
            "clip_by_average_norm": lambda: gc.clip_by_average_norm(x, 1e3, out=x),
            "clip_by_global_norm": lambda: gc.clip_by_global_norm([x, None, z], 1e3, out=[x, None, z]),
            "clip_by_global_norm to its norm": lambda: gc.clip_by_global_norm([x, z], norm, norm, out=[x, z]),
            "clip_by_global_norm 3.7": lambda: gc.clip_by_global_norm([x], 1e3, ord=3.7, out=[x]),
            "clip_by_global_norm of halves": lambda: gc.clip_by_global_norm(halves, 1e3, out=halves),
            "clip_by_global_norm trusted": lambda: gc.clip_by_global_norm([x], 2, 1, out=[x]),
            "normalize of zeros": lambda: gc.normalize(z, out=z),
            "normalize of rows of zeros": lambda: gc.normalize(z.reshape(16, -1), axis=1, out=z.reshape(16, -1)),
            "normalize of magnitude 1": lambda: gc.normalize(u, np.inf, out=u),
        }
        for name, call in calls.items():
            if np.dtype(dtype).kind != "c" or not name.startswith("clip_by_value"):
                print(name, np.dtype(dtype), flush=True)
                call()
    for dtype in "bBhHiIqQ":
        x = protected(dtype, lambda n: np.arange(n) % 100)
        print("clip_by_value", dtype, flush=True)
        gc.clip_by_value(x, -1, 100, out=x)
    print("done", flush=True)
    if "write" in sys.argv:
        gc.clip_by_value(x, 0, 49, out=x)
"""


def run_protected(*arguments):
    if os.name != "posix":
        pytest.skip("memory is protected with mprotect, which only POSIX systems have")
    if not cuda_shim.has_compiler():
        pytest.skip("there is no compiler for the kernels")
    command = [sys.executable, "-c", textwrap.dedent(PROTECTED), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env=environment)


def test_in_place_with_nothing_to_do_nothing_is_written():
    child = run_protected()
    assert child.returncode == 0, f"after {child.stdout.splitlines()[-1:]}: {child.returncode} {child.stderr}"
    assert child.stdout.endswith("done\n")


def test_the_test_of_protected_memory_would_see_a_write():
    child = run_protected("write")
    assert child.stdout.endswith("done\n"), child.stderr
    assert child.returncode < 0
