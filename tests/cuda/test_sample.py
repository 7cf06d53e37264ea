"""A few calls of each kernel. `.ci/gpu` runs them under compute-sanitizer, where all tests would take hours."""

import gradclip as gc
import numpy as np
import pytest
from gpu_arrays import check

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("p", [1, 2, 3.7, np.inf])
def test_lists(gpu, dtype, p):
    arrays = [RNG.standard_normal(n).astype(dtype) for n in (1, 100, 3000, 200_000, 7)]
    check(gpu, lambda ts: gc.clip_by_global_norm(ts, 1.0, ord=p), arrays)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_one_array(gpu, dtype, axis):
    x = RNG.standard_normal((37, 300)).astype(dtype)
    check(gpu, lambda t: gc.clip_by_norm(t, 1.0, axis), x)
    check(gpu, lambda t: [gc.norm(t, axis=axis), gc.norm(t, np.inf, axis)], x)
    check(gpu, lambda t: gc.normalize(t, axis=axis), x)
    check(gpu, lambda t: gc.clip_by_value(t, -0.5, 0.5), x)


def test_long_rows(gpu):
    x = RNG.standard_normal((3, 5000)).astype(np.float32)
    check(gpu, lambda t: gc.clip_by_norm(t, 1.0, 1), x)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(50, 7), (70, 64), (9, 1000)])
def test_short_rows_and_narrow_columns(gpu, shape, dtype):
    x = RNG.standard_normal(shape).astype(dtype)
    for axis in (0, 1):
        check(gpu, lambda t, a=axis: [gc.clip_by_norm(t, 1.0, a), gc.norm(t, axis=a)], x)
