"""norm and normalize: vector and matrix orders, one axis, several, and what is kept."""

import itertools
import math

import gradclip as gc
import numpy as np
import oracle
import pytest
from oracle import (
    FLOATS,
    allowed_ulps,
    assert_within_ulp,
    exact_norms,
    exact_quotient,
    relative_error,
    same_bits,
)

dtypes = pytest.mark.parametrize("dtype", FLOATS)
VECTOR_ORDS = ["euclidean", 1, 2, math.inf, 0.5, 1.5, 3, 3.7]
MATRIX_ORDS = ["euclidean", "fro", 1, 2, math.inf]


def cube(dtype):
    return np.random.default_rng(6).standard_normal((4, 5, 6)).astype(dtype)


def power(p):
    return 2 if p == "euclidean" else p


def assert_norms(result, exact, p):
    """float64 norms to 1e-14 (over p below 1), float32 ones rounded from that."""
    for where in np.ndindex(exact.shape):
        if result.dtype == np.float64:
            assert relative_error(result[where], exact[where]) < 1e-14 / min(p, 1)
        else:
            assert_within_ulp(result[where], exact[where], 0.5 + 1e-6 / min(p, 1))


@dtypes
@pytest.mark.parametrize("p", VECTOR_ORDS)
@pytest.mark.parametrize("axis", [0, 1, 2, -1, (1,), [0], (0, 1, 2), (2, 0, 1), None])
def test_vector_norms_along_axes(dtype, p, axis):
    x = cube(dtype)
    exact = exact_norms(x, power(p), axis)
    kept = gc.norm(x, p, axis, keepdims=True)
    assert kept.dtype == dtype
    assert kept.shape == exact.shape
    assert_norms(kept, exact, power(p))
    dropped = gc.norm(x, p, axis)
    assert np.shape(dropped) == np.squeeze(exact).shape
    if np.ndim(dropped) == 0:
        assert type(dropped) is float
        assert relative_error(dropped, exact.item()) < 1e-14 / min(power(p), 1)
    else:
        assert dropped.dtype == dtype
        assert same_bits(dropped, kept.reshape(dropped.shape))
        assert dropped.flags.owndata or dropped.base is None or dropped.flags.writeable


@dtypes
def test_axis_none_is_one_vector_also_for_a_matrix(dtype):
    x = cube(dtype)[0]
    for p in (1, 2, math.inf, 3.7):
        assert gc.norm(x, p) == gc.norm(np.ascontiguousarray(x).ravel(), p)
    with pytest.raises(ValueError, match="ord"):
        gc.norm(x, "fro")


@dtypes
def test_a_norm_that_is_one_number_is_a_python_float_however_axis_was_written(dtype):
    x = cube(dtype)
    for result in (
        gc.norm(x),
        gc.norm(x, axis=(0, 1, 2)),
        gc.norm(x[0], axis=(0, 1)),
        gc.norm(x[0], 1, axis=[1, 0]),
        gc.norm(x[0], 2, axis=(-1, -2)),
        gc.norm(x[0, 0], axis=0),
        gc.norm(x[0, 0], axis=(-1,)),
        gc.norm(x[0, 0, 0]),
    ):
        assert type(result) is float
    assert type(gc.norm(x[0, 0], axis=0, keepdims=True)) is np.ndarray
    assert gc.norm(x, keepdims=True).shape == (1, 1, 1)


def exact_matrix_norm(m, p):
    """The largest row or column sum of magnitudes, with 240 bits."""
    m = np.abs(m) if p == 1 else np.abs(m).T
    return max(oracle.exact_norm(m[:, k], 1) for k in range(m.shape[1]))


@dtypes
@pytest.mark.parametrize("axis", [*itertools.permutations(range(3), 2), (-1, 0), [-2, -1]])
@pytest.mark.parametrize("p", MATRIX_ORDS)
def test_matrix_norms_with_the_axis_order_of_numpy(dtype, axis, p):
    x = cube(dtype)
    rows, columns = (a % 3 for a in axis)
    (left,) = {0, 1, 2} - {rows, columns}
    matrices = x.transpose(left, rows, columns)
    kept = gc.norm(x, p, axis, keepdims=True)
    dropped = gc.norm(x, p, axis)
    assert kept.dtype == dropped.dtype == dtype
    assert kept.shape == tuple(1 if a != left else n for a, n in enumerate(x.shape))
    assert same_bits(dropped, kept.ravel())
    for k, m in enumerate(matrices):
        if p in {"euclidean", "fro"}:
            assert_norms(dropped[k : k + 1], np.array([oracle.exact_norm(m)]), 2)
        elif p == 2:
            expected = np.linalg.norm(m.astype(np.float64), 2)
            assert dropped[k] == pytest.approx(expected, rel=1e-12 if dtype is np.float64 else 1e-6)
        else:
            assert_norms(dropped[k : k + 1], np.array([exact_matrix_norm(m, p)]), 1)
            assert dropped[k] == pytest.approx(np.linalg.norm(m.astype(np.float64), p), rel=1e-6)


def test_axis_order_swaps_1_and_inf():
    m = np.array([[1.0, -2.0], [3.0, 4.0], [0.0, 5.0]])
    assert gc.norm(m, 1, axis=(0, 1)) == gc.norm(m, math.inf, axis=(1, 0)) == 11.0
    assert gc.norm(m, math.inf, axis=(0, 1)) == gc.norm(m, 1, axis=(1, 0)) == 7.0


@dtypes
@pytest.mark.parametrize("p", MATRIX_ORDS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3)])
def test_empty_matrices_have_norm_zero(dtype, p, shape):
    result = gc.norm(np.zeros(shape, dtype=dtype), p, axis=(-2, -1))
    assert np.shape(result) == shape[:-2]
    assert np.all(np.asarray(result) == 0)


@dtypes
@pytest.mark.parametrize("p", MATRIX_ORDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_matrix_norms_of_nan_and_inf(dtype, p, bad):
    x = np.stack([np.ones((2, 3)), np.ones((2, 3))]).astype(dtype)
    x[1, 0, 2] = bad
    result = gc.norm(x, p, axis=(1, 2))
    assert np.isfinite(result[0])
    if p == 2 or np.isnan(bad):
        assert np.isnan(result[1])
    else:
        assert result[1] == math.inf


@dtypes
@pytest.mark.parametrize("p", ["fro", 1, math.inf, 2])
def test_matrix_norms_do_not_overflow(dtype, p):
    big = 1e30 if dtype is np.float32 else 1e200
    for scale in (big, 1 / big):
        m = np.array([[3.0, 0.0], [0.0, 4.0]], dtype=dtype) * dtype(scale)
        expected = 5 * scale if p == "fro" else 4 * scale
        assert gc.norm(m, p, axis=(0, 1)) == pytest.approx(expected, rel=1e-6, abs=0)


@dtypes
def test_zero_dimensions(dtype):
    for p in VECTOR_ORDS:
        assert gc.norm(dtype(-3), p) == 3.0
        assert gc.norm(np.array(-3, dtype=dtype), p, keepdims=True).shape == ()


# ---- normalize


@dtypes
@pytest.mark.parametrize("p", VECTOR_ORDS)
@pytest.mark.parametrize("axis", [0, 1, -1, (1,), (0, 1, 2), None])
def test_normalize_divides_by_the_norm(dtype, p, axis):
    x = cube(dtype)
    result, norm = gc.normalize(x, p, axis)
    kept = gc.norm(x, p, axis, keepdims=True)
    assert result.dtype == norm.dtype == dtype
    assert result.shape == x.shape
    assert same_bits(norm, kept)
    exact = exact_norms(x, power(p), axis)
    held_to = np.vectorize(oracle.mp.mpf, otypes=[object])(norm) if dtype is np.float64 else exact
    assert_within_ulp(result, exact_quotient(x, held_to), allowed_ulps(dtype) if power(p) >= 1 else 2)


@dtypes
@pytest.mark.parametrize("p", MATRIX_ORDS)
def test_normalize_by_matrix_norms(dtype, p):
    x = cube(dtype)
    for axis in ((0, 1), (2, 0)):
        result, norm = gc.normalize(x, p, axis)
        kept = gc.norm(x, p, axis, keepdims=True)
        np.testing.assert_allclose(norm, kept, rtol=1e-13 if dtype is np.float64 else 2e-7)
        np.testing.assert_allclose(result, x / kept.astype(np.float64), rtol=1e-13 if dtype is np.float64 else 2e-7)


@dtypes
def test_zero_slices_stay_zero_beside_others(dtype):
    x = np.array([[0.0, -0.0, 0.0], [3.0, 0.0, -4.0]], dtype=dtype)
    for data, axis, row in ((x, 1, lambda r, k: r[k]), (x.T.copy(), 0, lambda r, k: r[:, k])):
        result, norm = gc.normalize(data, axis=axis)
        assert same_bits(row(result, 0), x[0])
        np.testing.assert_allclose(row(result, 1), [0.6, 0.0, -0.8], rtol=1e-7)
        assert norm.ravel().tolist() == [0.0, 5.0]


@dtypes
def test_subnormals_are_normalized(dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    result, norm = gc.normalize(np.array([3 * tiny, -4 * tiny], dtype=dtype))
    np.testing.assert_allclose(result, [0.6, -0.8], rtol=1e-6 if dtype is np.float32 else 1e-15)
    assert norm[0] == 5 * tiny


@dtypes
def test_the_norm_keeps_the_reduced_axes_as_size_1(dtype):
    x = cube(dtype)
    assert gc.normalize(x)[1].shape == (1, 1, 1)
    assert gc.normalize(x, axis=1)[1].shape == (4, 1, 6)
    assert gc.normalize(x, axis=(0, 2))[1].shape == (1, 5, 1)
    assert np.shape(gc.normalize(dtype(2))[1]) == ()


def test_keywords_are_those_of_tensorflow():
    x = cube(np.float64)
    assert same_bits(gc.norm(tensor=x, ord=1, axis=0, keepdims=True, name="x"), gc.norm(x, 1, 0, True, "x"))
    assert same_bits(gc.normalize(tensor=x, ord=1, axis=0, name="x", out=None)[0], gc.normalize(x, 1, 0, "x")[0])
