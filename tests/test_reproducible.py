"""The same bits for any instruction set and any number of threads."""

import zlib
from collections.abc import Callable
from functools import cache

import gradclip as gc
import layouts
import numpy as np
import pytest
from calls import ALONG, EVERY, POWERS, WHOLE
from gradclip import _core
from oracle import FLOATS, INTEGERS, bits

TAILS = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 127, 128, 129]
SIZES = [*TAILS, 2047, 2048, 2049, 4099, 131071, 131072, 131073]
THREADS = [1, 2, 3, 7]
PARALLEL = 6_000_011
dtypes = pytest.mark.parametrize("dtype", FLOATS)


@cache
def data(n, dtype, magnitude=4.0):
    """Numbers over several orders of magnitude, so that another order of summing shows. Read-only."""
    rng = np.random.default_rng(n)
    x = (rng.standard_normal(n) * 10.0 ** rng.uniform(-magnitude, magnitude, n)).astype(dtype)
    x.flags.writeable = False
    return x


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
    return [(np.shape(r), np.asarray(r).dtype, zlib.crc32(np.array(bits(r), order="C"))) for r in results]


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


@pytest.mark.parametrize("layout", LAYOUTS)
@dtypes
def test_instruction_sets_agree_to_the_bit_at_every_length(isa, dtype, layout, threads):
    for n in SIZES:
        small = n <= 4099
        names = EVERY if small else {**WHOLE, **ALONG}
        check(isa, layout, dtype, n, names, threads, [1] if small else [2])


@pytest.mark.parametrize("count", THREADS)
@dtypes
def test_thread_counts_agree_to_the_bit_at_medium_lengths(isa, dtype, count, threads):
    for n in (131071, 131073, 600_000):
        for layout in ("vector", "rows", "columns"):
            check(isa, layout, dtype, n, WHOLE, threads, [count])


@dtypes
@pytest.mark.parametrize("name", WHOLE)
def test_thread_counts_agree_to_the_bit_on_millions_of_elements(isa, dtype, name, threads):
    check(isa, "vector", dtype, PARALLEL, [name], threads, THREADS)


@dtypes
@pytest.mark.parametrize("layout", ["rows", "columns", "tall Fortran"])
@pytest.mark.parametrize(
    "name",
    [
        "clip_by_norm of rows",
        "clip_by_norm of columns",
        "norm of rows",
        "norm of columns",
        "normalize of columns",
    ],
)
def test_slices_agree_to_the_bit_on_millions_of_elements(isa, dtype, layout, name, threads):
    check(isa, layout, dtype, 2_000_000, [name], threads, THREADS)


@dtypes
@pytest.mark.parametrize("layout", ["every second", "backwards", "swapped", "unaligned", "every second column"])
def test_strided_arrays_agree_to_the_bit_on_millions_of_elements(isa, dtype, layout, threads):
    check(
        isa,
        layout,
        dtype,
        1_500_000,
        ["clip_by_norm", "norm 1", "global_norm", "clip_by_value"],
        threads,
        [2, 7],
    )


@dtypes
@pytest.mark.parametrize("name", POWERS)
def test_powers_agree_to_the_bit_past_the_parallel_threshold(isa, dtype, name, threads):
    check(isa, "vector", dtype, 400_000, [name], threads, [1, 3])


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


@dtypes
def test_array_bounds_agree_on_every_instruction_set(isa, dtype, threads):
    for n in (1, 15, 16, 17, 33, 129, 4099, 300_001):
        x, low = data(n, dtype).copy(), np.abs(data(n, dtype)) * dtype(0.1) - dtype(1)
        x[:: max(n // 5, 1)] = np.nan
        high = low + dtype(0.5)
        expected = np.where(np.isnan(x), x, np.maximum(np.minimum(x, high), low))
        for count in (1, 3):
            with threads(count):
                assert np.array_equal(bits(gc.clip_by_value(x, low, high)), bits(expected)), isa


@dtypes
def test_a_list_of_many_tensors_agrees_to_the_bit(isa, dtype, threads):
    grads = [data(n, dtype) for n in (*SIZES, 700_001, 5, 300_000)]

    def run(level, count, p):
        _core.set_isa(level)
        with threads(count):
            clipped, norm = gc.clip_by_global_norm(grads, 0.25, ord=p)
            return fingerprint([*clipped, norm, gc.global_norm(grads, ord=p)])

    for p in (2, 1, np.inf):
        expected = run(BASE, 1, p)
        for count in THREADS:
            assert run(isa, count, p) == expected


@dtypes
def test_run_after_run_gives_the_same_bits(dtype, threads):
    x = data(3_000_001, dtype)
    with threads(4):
        first = fingerprint([gc.clip_by_norm(x, 1.0), gc.norm(x), gc.norm(x, 1)])
        for _ in range(10):
            assert fingerprint([gc.clip_by_norm(x, 1.0), gc.norm(x), gc.norm(x, 1)]) == first


@dtypes
def test_every_alignment_gives_the_same_bits(isa, dtype):
    """An array that starts anywhere within a cache line, at every byte."""
    size = np.dtype(dtype).itemsize
    for n in (5, 33, 1000):
        x = data(n, dtype)
        expected = fingerprint([gc.clip_by_norm(x, 0.5), gc.norm(x), gc.norm(x, 1.5), gc.clip_by_value(x, -1, 1)])
        raw = np.zeros(n * size + 128, dtype=np.uint8)
        start = -raw.ctypes.data % 64
        for offset in range(64):
            moved = raw[start + offset :][: n * size].view(dtype)
            moved[...] = x
            assert (
                fingerprint(
                    [
                        gc.clip_by_norm(moved, 0.5),
                        gc.norm(moved),
                        gc.norm(moved, 1.5),
                        gc.clip_by_value(moved, -1, 1),
                    ]
                )
                == expected
            ), isa
