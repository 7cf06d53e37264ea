"""Sizes beyond 32 bits, the most axes there are, and lists of a million tensors. Most of it costs no memory."""

import gc as collector
import math
import time

import extent
import gradclip as gc
import numpy as np
import pytest

MOST_AXES = 64 if int(np.__version__.split(".", maxsplit=1)[0]) >= 2 else 32


def test_more_elements_than_32_bits_count_have_a_norm():
    n = 2**32 + 7
    ones = np.broadcast_to(np.int8(1), (n,))  # one byte
    assert gc.norm(ones) == pytest.approx(math.sqrt(n), rel=1e-14)


def test_more_bytes_than_32_bits_count_are_clipped_in_place():
    n = 2**31 + 5
    x = np.zeros(n, np.int8)  # pages that are not there until they are written
    x[[0, 2**31 - 1, 2**31, n - 1]] = [100, -100, 50, 60]
    assert gc.norm(x, np.inf) == 100
    assert gc.norm(x, 1) == 310
    assert gc.clip_by_value(x, -10, 55, out=x) is x
    assert x[[0, 2**31 - 1, 2**31, n - 1]].tolist() == [55, -10, 50, 55]
    assert gc.norm(x, 1) == 170
    every_other = x[::-2]
    assert gc.clip_by_value(every_other, -10, 5, out=every_other) is every_other
    assert x[[0, 2**31 - 1, 2**31, n - 1]].tolist() == [5, -10, 5, 5]


def test_more_elements_than_32_bits_count_are_scaled():
    n = 2**31 + 6
    x = np.zeros(n, np.float16)  # 4 GiB of addresses
    x[[0, 2**31 - 1, 2**31, n - 1]] = [2, -4, 8, 16]
    norm = math.sqrt(4 + 16 + 64 + 256)
    assert gc.norm(x[::-1]) == norm
    assert gc.clip_by_norm(x, norm, out=x) is x  # nothing to do
    last = x[2**31 - 8 :]
    assert gc.clip_by_norm(last, gc.norm(last) / 2, out=last) is last
    assert x[[0, 2**31 - 1, 2**31, n - 1]].tolist() == [2, -2, 4, 8]


@pytest.mark.parametrize("shape", [(2**20, 2**12), (2**12, 2**20)])
def test_axes_whose_product_is_beyond_32_bits_are_reduced(shape):
    ones = np.broadcast_to(np.uint8(2), shape)
    axis = int(shape[1] > shape[0])  # the longer one, so that the result is small
    found = gc.norm(ones, 1, axis=axis)
    assert found.shape == (min(shape),)
    assert (found == 2 * max(shape)).all()


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float64, np.complex128])
def test_an_output_that_no_memory_holds_is_a_memory_error(dtype):
    huge = np.broadcast_to(dtype(1), (2**45, 2**10))
    calls = [lambda: gc.clip_by_value(huge, 0, 1)] if dtype != np.complex128 else []
    if dtype != np.int8:
        calls += [
            lambda: gc.clip_by_norm(huge, 1.0),
            lambda: gc.clip_by_norm(huge, 1.0, axes=()),
            lambda: gc.clip_by_average_norm(huge, 1.0),
            lambda: gc.clip_by_global_norm([np.ones(1), huge], 1.0),
            lambda: gc.clip_by_global_norm([np.ones(1), huge], 1.0, 2.0),
        ]
    for call in calls:
        with pytest.raises(MemoryError):
            call()


def test_zero_strides_in_every_function():
    x = np.broadcast_to(np.array([[3.0], [4.0]]), (2, 5))
    dense = np.array(x)
    for axis in (None, 0, 1, (0, 1)):
        np.testing.assert_allclose(gc.norm(x, axis=axis), gc.norm(dense, axis=axis), rtol=1e-15)
        np.testing.assert_allclose(gc.clip_by_norm(x, 1.0, axis), gc.clip_by_norm(dense, 1.0, axis), rtol=1e-15)
        np.testing.assert_allclose(gc.normalize(x, axis=axis)[0], gc.normalize(dense, axis=axis)[0], rtol=1e-15)
    assert gc.clip_by_value(x, x, 3.5).tolist() == gc.clip_by_value(dense, dense, 3.5).tolist()
    assert gc.clip_by_average_norm(x, 0.1).tolist() == gc.clip_by_average_norm(dense, 0.1).tolist()
    assert gc.global_norm([x, x[:, 0]]) == pytest.approx(math.sqrt(150))
    assert gc.clip_by_global_norm([x], 1.0)[0][0].tolist() == gc.clip_by_global_norm([dense], 1.0)[0][0].tolist()


@pytest.mark.parametrize("where", ["first", "last", "all"])
def test_the_most_axes_that_an_array_has(where):
    long = {"first": [0, 1], "last": [-1, -2], "all": range(0, MOST_AXES, MOST_AXES // 8)}[where]
    shape = np.ones(MOST_AXES, int)
    shape[list(long)] = 2
    x = np.random.default_rng(0).standard_normal(shape)
    backwards = x.T[(..., *[slice(None, None, -1)] * MOST_AXES)]
    for t in (x, backwards, np.broadcast_to(x.dtype.type(1.5), shape)):
        axes = tuple(range(0, MOST_AXES, 2))
        exact = np.sqrt((t * t).sum(axis=axes, keepdims=True))
        np.testing.assert_allclose(gc.norm(t, axis=axes, keepdims=True), exact, rtol=1e-14)
        np.testing.assert_allclose(gc.clip_by_norm(t, 0.5, axes), t * (0.5 / np.maximum(exact, 0.5)), rtol=1e-14)
        np.testing.assert_allclose(gc.normalize(t.astype(np.complex128), axis=axes)[0], t / exact, rtol=1e-14)
        out = np.empty_like(t)
        assert gc.clip_by_value(t, -1, 1, out=out) is out
        assert np.array_equal(out, np.clip(t, -1, 1))
        assert gc.clip_by_global_norm([t], 1.0, out=[out])[0][0] is out
        assert gc.norm(out) == pytest.approx(min(gc.norm(t), 1))
    with pytest.raises(ValueError, match=r"nested too deep|dimension"):
        gc.norm(nest(MOST_AXES + 1))
    assert gc.norm(nest(MOST_AXES)) == 1


def nest(levels):
    nested = 1.0
    for _ in range(levels):
        nested = [nested]
    return nested


# ---- lists of a million tensors


def every_third(n):
    one, matrix = np.ones(4, np.float32), np.ones((4, n), np.float32)
    return [None if i % 3 == 0 else one if i % 3 == 1 else matrix[:, i] for i in range(n)]


LISTS = {
    "one array": lambda n: [np.ones(4, np.float32)] * n,
    "rows": lambda n: list(np.ones((n, 4), np.float32)),
    "columns": lambda n: list(np.ones((4, n), np.float32).T),
    "mixed with None": every_third,
    "all None": lambda n: [None] * n,
}


def seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def per_tensor(n, kind):
    t_list = LISTS[kind](n)
    outs = tuple(None if t is None else np.empty(4, np.float32) for t in t_list)
    count = 4 * sum(t is not None for t in t_list)
    calls = [
        lambda: gc.global_norm(t_list),
        lambda: gc.clip_by_global_norm(t_list, 1.0),
        lambda: gc.clip_by_global_norm(tuple(t_list), 1.0, out=outs),
        lambda: gc.clip_by_global_norm(outs, 1e9, out=outs),
    ]
    assert calls[0]() == math.sqrt(count)
    clipped, norm = gc.clip_by_global_norm(t_list, 1.0, out=outs)
    assert len(clipped) == n
    assert norm == math.sqrt(count)
    assert all(a is b for a, b in zip(clipped, outs, strict=True))
    assert not count or gc.global_norm(clipped) == pytest.approx(1, rel=1e-6)
    collector.collect()
    times = 1 if n > 10_000 else 20
    return [min(seconds(call) for _ in range(times)) / n for call in calls]


@pytest.mark.parametrize("kind", LISTS)
def test_a_tensor_of_many_takes_little_more_than_one_of_a_thousand(kind):
    # A thousand are in the caches and 100,000 are not: some more is no wonder. Quadratic would be 50 or 100 times.
    few, many = per_tensor(1000, kind), per_tensor(extent.amount(50_000, 100_000), kind)
    for a, b in zip(few, many, strict=True):
        assert b < 30 * a + 1e-6


def test_errors_and_singular_values_of_arrays_with_the_most_axes():
    x = np.full((1,) * MOST_AXES, np.nan)
    with pytest.raises(gc.NonFiniteError, match="slice"):
        gc.clip_by_norm(x, 1.0, (), nonfinite="raise")
    assert np.ravel(gc.norm(np.full_like(x, 3.0), 2, (0, 1))) == [3.0]


def test_a_great_many_slices_without_elements_need_no_memory():
    x = np.zeros((2**40, 0), np.float32)
    assert gc.clip_by_norm(x, 1.0, 1).shape == x.shape
