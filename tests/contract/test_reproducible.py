"""The same bits for any instruction set and any number of threads."""

import itertools
import math
import zlib
from collections.abc import Callable
from functools import cache

import gradclip as gc
import layouts
import numpy as np
import pytest
from calls import ALONG, EVERY, POWERS, WHOLE, calls_for, suits
from gradclip import _core
from numpy.lib.stride_tricks import as_strided
from oracle import FLOATS, INTEGERS, NORMED, SCALED, bits, same_bits

TAILS = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 127, 128, 129]
SIZES = [*TAILS, 2047, 2048, 2049, 4099]
THREADS = [1, 2, 3, 7]
SHARED = 8 << 20  # bytes: calls with more are shared among the threads
dtypes = pytest.mark.parametrize("dtype", SCALED)
norm_dtypes = pytest.mark.parametrize("dtype", NORMED)


#: The period of long data. It is a prime number, so neighbouring blocks and lanes have different numbers.
PERIOD = 100_003


@cache
def data(n, dtype, magnitude=4.0):
    """Numbers over several orders of magnitude, so that another order of summation shows. Read-only."""
    if n > PERIOD:
        x = np.resize(data(PERIOD, dtype, magnitude), n)
        x.flags.writeable = False
        return x
    rng, dtype = np.random.default_rng(n), np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        x = rng.integers(info.min, info.max, n, dtype=dtype, endpoint=True) // rng.integers(1, 100, n, dtype=dtype)
    elif dtype.kind == "b":
        x = rng.integers(0, 2, n).astype(dtype)
    else:
        magnitude = min(magnitude, 3.5) if dtype == np.float16 else magnitude
        reach = int(magnitude * math.log2(10))
        parts = rng.standard_normal(2 * n if dtype.kind == "c" else n)
        np.ldexp(parts, rng.integers(-reach, reach, parts.size, dtype=np.int32), out=parts)
        x = (parts.view(np.complex128) if dtype.kind == "c" else parts).astype(dtype)
    x.flags.writeable = False
    return x


def shared(dtype, share=1.1):
    """The number of elements of a call that threads share."""
    return int(share * SHARED) // np.dtype(dtype).itemsize + 11


LAYOUTS: dict[str, Callable[[int, type], np.ndarray]] = {
    "vector": data,
    "wide range": lambda n, dtype: data(n, dtype, 30.0),
    "every second": lambda n, dtype: data(2 * n, dtype)[::2],
    "backwards": lambda n, dtype: data(n, dtype)[::-1],
    "unaligned": lambda n, dtype: layouts.unaligned(data(n, dtype)),
    "swapped": lambda n, dtype: layouts.swapped_bytes(data(n, dtype)),
    "rows": lambda n, dtype: data(n // 17 * 17, dtype).reshape(17, -1),
    "columns": lambda n, dtype: data(n // 17 * 17, dtype).reshape(-1, 17),
    "tall Fortran": lambda n, dtype: data(n // 17 * 17, dtype).reshape(17, -1).T,
    "every second column": lambda n, dtype: data(n // 17 * 34, dtype).reshape(-1, 34)[:, ::2],
    "cube from the middle": lambda n, dtype: data(n // 15 * 15, dtype).reshape(3, -1, 5).transpose(1, 2, 0),
}

BASE: str = _core.isa_levels()[0]


def fingerprint(results):
    """Shape, dtype and a checksum of the bits of everything a call returned."""
    return [(np.shape(r), np.asarray(r).dtype, zlib.crc32(np.ascontiguousarray(bits(r)))) for r in results]


@cache
def baseline(layout, dtype, n, name):
    """The result with one thread on the narrowest instruction set."""
    x, before = LAYOUTS[layout](n, dtype), gc.get_num_threads()
    _core.set_isa(BASE)
    gc.set_num_threads(1)
    try:
        return fingerprint(EVERY[name](x))
    finally:
        gc.set_num_threads(before)
        _core.set_isa(None)


def check(isa, layout, dtype, n, names, threads, counts):
    x = LAYOUTS[layout](n, dtype)
    for name in names:
        if not suits(name, dtype):
            continue
        expected = baseline(layout, dtype, n, name)
        _core.set_isa(isa)
        for count in counts:
            with threads(count):
                assert fingerprint(EVERY[name](x)) == expected, f"{name}, {layout} of {n}, {count} threads"


def test_there_is_a_level_to_test():
    levels = _core.isa_levels()
    assert levels
    assert len(set(levels)) == len(levels)
    assert all(type(level) is str for level in levels)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", _core.isa_levels()[1:] or [BASE], indirect=True)
@pytest.mark.parametrize("layout", LAYOUTS)
@norm_dtypes
def test_instruction_sets_agree_to_the_bit_at_every_length(isa, dtype, layout, threads):
    """`check` compares with the baseline."""
    for n in SIZES:
        check(isa, layout, dtype, n, EVERY, threads, [1])


@pytest.mark.sampled
@pytest.mark.parametrize("count", THREADS)
@dtypes
def test_thread_counts_agree_to_the_bit_at_medium_lengths(isa, dtype, count, threads):
    for n in (131072, 131073):
        for layout in ("vector", "rows", "columns"):
            check(isa, layout, dtype, n, WHOLE, threads, [count])


@pytest.mark.sampled
@norm_dtypes
def test_thread_counts_agree_to_the_bit_where_work_is_shared(isa, dtype, threads):
    """Below and above the size at which threads share the work."""
    for share, count in ((0.9, 7), (1.1, 2)):
        check(isa, "vector", dtype, shared(dtype, share), WHOLE, threads, [count])


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [*FLOATS, np.complex64, np.int8, np.uint64])
def test_every_thread_count_from_1_to_16_gives_the_same_bits(dtype, threads):
    names = {name.split()[0]: name for name in reversed(WHOLE)}  # each function once
    check(None, "vector", dtype, shared(dtype, 0.8), names.values(), threads, range(1, 17))
    if dtype in SCALED:
        check(None, "rows", dtype, shared(dtype, 0.8), ["clip_by_norm of rows"], threads, range(1, 17))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", WHOLE)
def test_thread_counts_agree_to_the_bit_on_millions_of_elements(isa, dtype, name, threads):
    check(isa, "vector", dtype, 3_000_011, [name], threads, THREADS)


@pytest.mark.sampled
@dtypes
@pytest.mark.parametrize("layout", ["rows", "columns", "tall Fortran"])
def test_slices_agree_to_the_bit_where_work_is_shared(isa, dtype, layout, threads):
    names = [name for name in ALONG if "3.7" not in name]  # powers take long, and have a test of their own
    check(isa, layout, dtype, shared(dtype), names, threads, [3])


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.uint64, np.bool_])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_slices_of_integers_agree_to_the_bit_where_work_is_shared(isa, dtype, layout, threads):
    check(isa, layout, dtype, shared(dtype), ["norm of rows", "norm of columns", "norm 1 of rows"], threads, [3])


# One dtype for each size of an element, which is what strides are about.
@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("layout", ["every second", "swapped", "unaligned", "every second column"])
def test_strided_arrays_agree_to_the_bit_where_work_is_shared(isa, dtype, layout, threads):
    names = ["clip_by_norm", "norm 1", "global_norm", "clip_by_value"]
    check(isa, layout, dtype, shared(dtype), names, threads, [3])


@norm_dtypes
def test_powers_agree_to_the_bit_past_the_parallel_threshold(isa, dtype, threads):
    """Powers take longer than a sum, so threads share them from a sixteenth of the size on."""
    check(isa, "vector", dtype, shared(dtype, 1 / 12), POWERS, threads, [1, 3])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_agree_on_every_instruction_set(isa, dtype, threads):
    info = np.iinfo(dtype)
    for n in (0, 1, 15, 16, 17, 63, 64, 65, 129, 4099, 300_001):
        x = np.random.default_rng(n).integers(info.min, info.max, n, dtype=dtype, endpoint=True)
        low, high = info.min // 2, info.max // 3
        expected = np.maximum(np.minimum(x, dtype(high)), dtype(low))
        for count in (1, 2):
            with threads(count):
                for view in (x, x[::-1][::-1], np.repeat(x, 2)[::2]):
                    assert np.array_equal(gc.clip_by_value(view, low, high), expected), isa


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", FLOATS)
def test_array_bounds_agree_on_every_instruction_set(isa, dtype, threads):
    for n in (1, 15, 16, 17, 33, 129, 4099, shared(dtype)):
        x, low = data(n, dtype).copy(), np.abs(data(n, dtype)) * dtype(0.125) - dtype(1)
        x[:: max(n // 5, 1)] = np.nan
        high = low + dtype(0.5)
        expected = np.where(np.isnan(x), x, np.maximum(np.minimum(x, high), low))
        for count in (1, 3):
            with threads(count):
                assert np.array_equal(bits(gc.clip_by_value(x, low, high)), bits(expected)), isa


@pytest.mark.sampled
@dtypes
def test_a_list_of_many_tensors_agrees_to_the_bit(isa, dtype, threads):
    grads = [data(n, dtype) for n in (*SIZES, shared(dtype, 0.7), 5, shared(dtype, 0.3))]

    def run(level, count, p):
        _core.set_isa(level)
        with threads(count):
            clipped, norm = gc.clip_by_global_norm(grads, 0.25, ord=p)
            return fingerprint([*clipped, norm, gc.global_norm(grads, ord=p)])

    for p in (2, 1, np.inf):
        expected = run(BASE, 1, p)
        for count in THREADS:
            assert run(isa, count, p) == expected


def test_a_list_of_all_dtypes_agrees_to_the_bit(isa, threads):
    """Together they are shared, though none of them is alone."""
    grads = [data(n, dtype) for dtype in SCALED for n in (17, shared(dtype, 0.25), 4099)]

    def run(level, count):
        _core.set_isa(level)
        with threads(count):
            return [
                fingerprint([*clipped, norm, gc.global_norm([*grads, *(data(2049, d) for d in NORMED)], ord=p)])
                for p in (2, 1, np.inf)
                for clipped, norm in [gc.clip_by_global_norm(grads, 0.25, ord=p)]
            ]

    expected = run(BASE, 1)
    for count in THREADS:
        assert run(isa, count) == expected


@dtypes
def test_run_after_run_gives_the_same_bits(dtype, threads):
    x = data(shared(dtype), dtype)
    with threads(4):
        first = fingerprint([gc.clip_by_norm(x, 1.0), gc.norm(x), gc.norm(x, 1)])
        for _ in range(10):
            assert fingerprint([gc.clip_by_norm(x, 1.0), gc.norm(x), gc.norm(x, 1)]) == first


STREAMED = {
    "whole": (0, lambda x: gc.clip_by_global_norm([x], 1.0, use_norm=3.0)[0][0]),
    "rows": (0, lambda x: gc.clip_by_norm(x, 5.0, axes=1)),
    "short rows": (0, lambda x: gc.clip_by_norm(x, 5.0, axes=1)),
    "columns": (1, lambda x: gc.clip_by_norm(x, 5.0, axes=0)),
    "quotients of rows": (0, lambda x: gc.normalize(x, axis=1)[0]),
    "values": (0, lambda x: gc.clip_by_value(x, -0.5, 0.75) if x.dtype.kind != "c" else x),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", STREAMED)
@dtypes
def test_outputs_that_are_streamed_to_memory_have_the_bits_of_short_ones(dtype, name):
    """Outputs of 32 MiB and more are written around the caches. Here they repeat one matrix along an axis."""
    along, call = STREAMED[name]
    # Rows of at most 256 elements of 16 bits are scaled in batches.
    pattern = data(130 * 257, dtype, 1.0)[: 130 * 256 if name == "short rows" else None].reshape(130, -1)
    times = (33 << 20) // pattern.nbytes + 1
    x = np.tile(pattern, (1, times) if along else (times, 1))
    result, few = call(x), call(pattern)
    assert all(same_bits(part, few) for part in np.split(result, times, axis=along))


@norm_dtypes
def test_every_alignment_gives_the_same_bits(isa, dtype):
    """An array that starts anywhere within a cache line, at every byte."""
    size, kinds = np.dtype(dtype).itemsize, ("clip_by_norm", "norm", "norm 1.5", "norm 1", "clip_by_value", "normalize")
    for n in (5, 33, 1000):
        x = data(n, dtype)
        calls = [call for name, call in calls_for(x).items() if name in kinds]
        expected = fingerprint([result for call in calls for result in call(x)])
        raw = np.zeros(n * size + 128, dtype=np.uint8)
        start = -raw.ctypes.data % 64
        for offset in range(64):
            moved = raw[start + offset :][: n * size].view(dtype)
            moved[...] = x
            assert fingerprint([result for call in calls for result in call(moved)]) == expected, isa


@dtypes
def test_every_alignment_of_the_output_gives_the_same_bits(isa, dtype):
    size = np.dtype(dtype).itemsize
    for n in (5, 33, 1000):
        x = data(n, dtype)
        expected = fingerprint([gc.clip_by_norm(x, 0.5), gc.clip_by_norm(x, 0.5, axes=()), gc.normalize(x)[0]])
        raw = np.zeros(n * size + 128, dtype=np.uint8)
        start = -raw.ctypes.data % 64
        for offset in range(0, 64, 3):
            out = raw[start + offset :][: n * size].view(dtype)
            results = [
                gc.clip_by_norm(x, 0.5, out=out).copy(),
                gc.clip_by_norm(x, 0.5, axes=(), out=out).copy(),
                gc.normalize(x, out=out)[0].copy(),
            ]
            assert fingerprint(results) == expected, isa


# ---- an array and its copy in the same memory order

STRIDES = ("dense", "gap", "zero", "negative")


def views_of(rng, shape, kinds, dtype):
    """Views with these kinds of strides, in every order of the axes; random values with random exponents."""
    room_shape = [
        {"dense": n, "gap": 2 * n, "zero": 1, "negative": n}[kind] for n, kind in zip(shape, kinds, strict=True)
    ]
    reach = 3 if dtype == np.float16 else 8
    for order in itertools.permutations(range(len(shape))):
        size = [room_shape[axis] for axis in order]
        pair = rng.standard_normal((2, *size)) * 2.0 ** rng.integers(-reach, reach, (2, *size))
        room = (pair[0] + 1j * pair[1] if np.dtype(dtype).kind == "c" else pair[0]).astype(dtype)
        room = room.transpose(np.argsort(order))
        step = {
            "dense": slice(None),
            "gap": slice(None, None, 2),
            "zero": slice(None),
            "negative": slice(None, None, -1),
        }
        yield np.broadcast_to(room[tuple(step[kind] for kind in kinds)], shape)


def norms_of(x):
    for p in (1, 2, 3):
        yield f"global_norm, {p}", gc.global_norm([x], ord=p)
        yield f"norm over all axes, {p}", gc.norm(x, p, axis=(0, 1, 2))
        for axis in (0, 1, 2):
            yield f"norm along {axis}, {p}", gc.norm(x, p, axis=axis)
    for p in (1, 2):
        for axes in ((0, 1), (0, 2), (2, 1)):
            yield f"norm of matrices {axes}, {p}", gc.norm(x, "fro" if p == 2 else p, axis=axes)
    yield "norm", gc.norm(x)
    yield "clip_by_norm along 1", gc.clip_by_norm(x, 1e-3, axes=1)


def copied(x):
    """A copy without gaps in NumPy's order "K"; an axis that lies backwards in memory lies so in the copy."""
    back = tuple(slice(None, None, -1 if step < 0 else 1) for step in x.strides)
    return x[back].copy("K")[back]


def differing(x):
    """The norms that differ from those of the copy."""
    for (name, own), (_, of_copy) in zip(norms_of(x), norms_of(copied(x)), strict=True):
        if not np.array_equal(bits(np.asarray(own)), bits(np.asarray(of_copy))):
            yield f"{name}: shape {x.shape}, strides {x.strides}"


def different(kinds, dtype):
    rng = np.random.default_rng(7)
    return [
        name for shape in ((3, 4, 5), (7, 20, 33)) for x in views_of(rng, shape, kinds, dtype) for name in differing(x)
    ]


copied_dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.complex64])


@pytest.mark.sampled
@copied_dtypes
@pytest.mark.parametrize("kinds", list(itertools.product(STRIDES, repeat=3)), ids="-".join)
def test_an_array_and_its_copy_in_the_same_order_have_the_same_norms(kinds, dtype):
    """Norms sum by axes of falling absolute stride, equal ones in C order, stride 0 innermost: NumPy's order "K"."""
    assert not different(kinds, dtype)


@pytest.mark.sampled
@copied_dtypes
@pytest.mark.parametrize("shape", [(7, 20, 33), (6, 5, 70)])
def test_equal_strides_count_in_the_order_of_the_axes(shape, dtype):
    """Elements that share memory have an order too. Of two equal strides one can be summed over, the other not."""
    room = data(1000, dtype)
    for strides in itertools.product((0, 1, -1, 2, -3), repeat=3):
        start = sum(max(-step, 0) * (n - 1) for n, step in zip(shape, strides, strict=True))
        x = as_strided(room[start:], shape, [step * room.itemsize for step in strides], writeable=False)
        assert not list(differing(x))


@copied_dtypes
@pytest.mark.parametrize("axis", range(3))
def test_the_stride_of_an_axis_of_length_1_counts_nothing(axis, dtype):
    """The stride of such an axis is never used, so it may be any number."""
    for matrix in (data(20 * 130, dtype).reshape(20, 130), data(20 * 130, dtype).reshape(130, 20).T):
        plain = np.expand_dims(matrix, axis)
        expected = [(name, fingerprint([norm])) for name, norm in norms_of(plain)]
        for step in (0, 1, -3, 25, 10**9):
            strides = list(plain.strides)
            strides[axis] = step * plain.itemsize
            x = as_strided(plain, plain.shape, strides, writeable=False)
            assert [(name, fingerprint([norm])) for name, norm in norms_of(x)] == expected, strides


@pytest.mark.parametrize("order", list(itertools.permutations(range(3)))[1:])
def test_another_order_of_summing_would_be_seen(order):
    """This shows that the test above can fail."""
    rng = np.random.default_rng(7)
    pairs = [(x, x.transpose(order).copy()) for x in views_of(rng, (7, 20, 33), ("dense",) * 3, np.float64)]
    assert any(gc.global_norm([x], ord=p) != gc.global_norm([moved], ord=p) for x, moved in pairs for p in (1, 2, 3))


def test_an_array_of_one_repeated_number_has_the_norm_of_its_copy():
    """The shortest case of stride 0: it once differed in the last bit."""
    for value in np.random.default_rng(3).standard_normal(50):
        for shape in ((28, 3), (28, 21), (3, 200)):
            x = np.broadcast_to(value, shape)
            assert gc.global_norm([x]) == gc.global_norm([x.copy()])
            for axis in (0, 1):
                assert same_bits(gc.norm(x, axis=axis), gc.norm(x.copy(), axis=axis)), (value, shape, axis)


def test_a_row_or_a_column_that_repeats_has_the_norm_of_its_copy():
    rng = np.random.default_rng(4)
    for rows, columns in itertools.product((3, 20, 70), repeat=2):
        for x in (
            np.broadcast_to(rng.standard_normal(columns) * 10.0 ** rng.uniform(-3, 3, columns), (rows, columns)),
            np.broadcast_to(rng.standard_normal((rows, 1)) * 10.0 ** rng.uniform(-3, 3, (rows, 1)), (rows, columns)),
        ):
            for p in (1, 2, 3):
                assert gc.global_norm([x], ord=p) == gc.global_norm([x.copy("K")], ord=p)


@pytest.mark.parametrize("count", [2, 8, 10, 16, 33, 40])
def test_many_equally_long_views_of_one_array_have_the_norm_of_their_copies(count):
    """Ten slices `x[i::5][:19]` once were a panic."""
    x = np.arange(4000.0) ** 1.7
    for step, length in itertools.product((1, 2, 5, 8), (1, 7, 8, 19, 64, 90)):
        views = [x[i::step][:length] for i in range(count)]
        columns = list(x[: count * length].reshape(length, count).T)
        for tensors in (views, columns, [x[:length]] * count):
            copies = [tensor.copy() for tensor in tensors]
            for p in (1, 2, 3, np.inf):
                assert gc.global_norm(tensors, ord=p) == gc.global_norm(copies, ord=p), (step, length, p)
            clipped, _ = gc.clip_by_global_norm(tensors, 1.0)
            expected, _ = gc.clip_by_global_norm(copies, 1.0)
            assert all(map(same_bits, clipped, expected))
