"""norm and normalize: vector and matrix orders, one or several axes, and keepdims."""

import itertools
import math

import gradclip as gc
import numpy as np
import oracle
import pytest
from calls import cast, looped, norms_in_use
from oracle import (
    COMPLEX,
    INTEGERS,
    NORMED,
    SCALED,
    allowed_ulps,
    assert_norm,
    assert_norms,
    assert_within_ulp,
    exact_matrix_norm,
    exact_norms,
    exact_quotient,
    norm_dtype,
    numbers,
    same_bits,
)

dtypes = pytest.mark.parametrize("dtype", SCALED)
all_dtypes = pytest.mark.parametrize("dtype", NORMED)
matrix_dtypes = pytest.mark.parametrize("dtype", [*SCALED, np.int8, np.int64, np.uint64, np.bool_])
VECTOR_ORDS = ["euclidean", 1, 2, math.inf, 0.5, 1.5, 3, 4, 3.7]
MATRIX_ORDS = ["euclidean", "fro", 1, 2, math.inf]


def cube(dtype):
    """Random numbers; for integers, over the whole range."""
    rng, dtype = np.random.default_rng(6), np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, (4, 5, 6)).astype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, (4, 5, 6), dtype=dtype, endpoint=True)
    return cast(rng.standard_normal((4, 5, 6)), dtype)


def power(p):
    return 2 if p == "euclidean" else p


@pytest.mark.sampled
@all_dtypes
@pytest.mark.parametrize("p", VECTOR_ORDS)
@looped("axis", [[0], (1,), -1, (2, 0, 1), None])
def test_vector_norms_along_axes(dtype, p, axis):
    x = cube(dtype)
    exact = exact_norms(x, power(p), axis)
    kept = gc.norm(x, p, axis, keepdims=True)
    assert kept.dtype == norm_dtype(dtype)
    assert_norms(kept, exact, power(p))
    dropped = gc.norm(x, p, axis)
    assert np.shape(dropped) == np.squeeze(exact).shape
    if np.ndim(dropped) == 0:
        assert type(dropped) is float
        assert_norm(dropped, exact.item(), power(p))
    else:
        assert dropped.dtype == norm_dtype(dtype)
        assert same_bits(dropped, kept.reshape(dropped.shape))
        assert dropped.flags.writeable
        assert not np.shares_memory(dropped, x)


@pytest.mark.sampled
@all_dtypes
@looped("shape", [(2, 20_001), (20_001, 2), (5, 700, 7)])
def test_long_slices_along_axes(dtype, shape):
    """Longer than a block and a chunk of sums, side by side and one after the other; math.fsum is exact."""
    rng, kind = np.random.default_rng(3), np.dtype(dtype).kind
    if kind in "iub":
        x = np.frombuffer(rng.bytes(np.dtype(dtype).itemsize * math.prod(shape)), np.uint8)
        x = (x & 1).view(bool).reshape(shape) if kind == "b" else x.view(dtype).reshape(shape)
    else:
        x = cast(rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3, shape), dtype)
    parts = np.abs(oracle.exact_parts(x))
    squares = parts**2 if kind != "c" else (parts**2).sum(-1)
    sizes = np.sqrt(squares)
    for axis in range(len(shape)):
        for data in (x, np.asfortranarray(x)):
            rounding = 6e-8 if norm_dtype(dtype) == np.float32 else 0
            for p, exact in ((2, np.sqrt(sums(squares, axis))), (1, sums(sizes, axis)), (math.inf, sizes.max(axis))):
                np.testing.assert_allclose(gc.norm(data, p, axis), exact, rtol=1.1e-14 + rounding, atol=0)


def sums(x, axis):
    lines = np.moveaxis(x, axis, -1)
    return np.array([math.fsum(line) for line in lines.reshape(-1, x.shape[axis])]).reshape(lines.shape[:-1])


@all_dtypes
def test_axis_none_is_one_vector_also_for_a_matrix(dtype):
    x = cube(dtype)[0]
    for p in (1, 2, math.inf, 3.7):
        assert gc.norm(x, p) == gc.norm(np.ascontiguousarray(x).ravel(), p)
    with pytest.raises(ValueError, match="ord"):
        gc.norm(x, "fro")


@all_dtypes
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


@pytest.mark.sampled
@matrix_dtypes
@looped("axis", [*itertools.permutations(range(3), 2), (-1, 0), [-2, -1]])
@pytest.mark.parametrize("p", MATRIX_ORDS)
def test_matrix_norms_with_the_axis_order_of_numpy(dtype, axis, p):
    x = cube(dtype)
    rows, columns = (a % 3 for a in axis)
    (left,) = {0, 1, 2} - {rows, columns}
    matrices = x.transpose(left, rows, columns)
    kept = gc.norm(x, p, axis, keepdims=True)
    dropped = gc.norm(x, p, axis)
    assert kept.dtype == dropped.dtype == norm_dtype(dtype)
    assert kept.shape == tuple(1 if a != left else n for a, n in enumerate(x.shape))
    if p == 2:  # LAPACK computes it, which may not repeat its last bit
        np.testing.assert_allclose(dropped, kept.ravel(), rtol=1e-6 if dropped.dtype == np.float32 else 1e-14)
    else:
        assert same_bits(dropped, kept.ravel())
    for k, m in enumerate(matrices):
        assert_norm(dropped[k], exact_matrix_norm(m, p))
        if p != "euclidean":  # NumPy does not know that name
            wide = m.astype(np.complex128 if np.dtype(dtype).kind == "c" else np.float64)
            assert dropped[k] == pytest.approx(np.linalg.norm(wide, p), rel=1e-6)


@pytest.mark.sampled
@matrix_dtypes
@pytest.mark.parametrize("p", MATRIX_ORDS)
def test_the_norm_of_one_matrix_is_a_python_float_in_float64_precision(dtype, p):
    for m in (cube(dtype)[0], cube(dtype)[0].T, cube(dtype)[0, :, ::-2], cube(dtype)[:1, 0], cube(dtype)[0, :, :1]):
        for axis in ((0, 1), (1, 0), (-1, 0), [-2, -1]):
            norm = gc.norm(m, p, axis)
            assert type(norm) is float
            assert_norm(norm, exact_matrix_norm(m if axis[0] in {0, -2} else m.T, p))
            kept = gc.norm(m, p, axis, keepdims=True)
            assert kept.shape == (1, 1)
            assert kept.dtype == norm_dtype(dtype)
            assert_norm(kept[0, 0], exact_matrix_norm(m if axis[0] in {0, -2} else m.T, p))


@pytest.mark.sampled
@matrix_dtypes
@pytest.mark.parametrize("p", MATRIX_ORDS)
def test_matrix_norms_in_batches_of_any_shape(dtype, p):
    x = np.stack([cube(dtype)[:, :, :3], cube(dtype)[:, :, 3:]])
    for axis in ((1, 3), (3, 1), (-4, 2), (0, -1)):
        exact = oracle.exact_matrix_norms(x, p, axis)
        assert_norms(gc.norm(x, p, axis, keepdims=True), exact)
        assert_norms(gc.norm(x, p, axis), exact.reshape([n for n in exact.shape if n > 1]))
        assert_norms(gc.norm(x[:, ::-1, 1::2], p, axis, True), oracle.exact_matrix_norms(x[:, ::-1, 1::2], p, axis))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("p", MATRIX_ORDS)
def test_matrix_norms_of_the_largest_integers(dtype, p):
    info = np.iinfo(dtype)
    for m in (
        np.full((3, 4), info.min, dtype),
        np.full((3, 4), info.max, dtype),
        np.array([[info.min, info.max]], dtype),
    ):
        assert_norm(gc.norm(m, p, axis=(0, 1)), exact_matrix_norm(m, p))


@pytest.mark.parametrize("dtype", COMPLEX)
def test_matrix_norms_of_complex_numbers(dtype):
    m = np.array([[3 + 4j, 0], [0, 5j], [-12 + 5j, 0]], dtype)
    assert gc.norm(m, 1, axis=(0, 1)) == 18.0
    assert gc.norm(m, math.inf, axis=(0, 1)) == 13.0
    assert gc.norm(m, "fro", axis=(0, 1)) == pytest.approx(219**0.5, rel=1e-15)
    assert gc.norm(m, 2, axis=(0, 1)) == pytest.approx(194**0.5, rel=1e-14)
    # Of [[1, i], [i, 1]] all magnitudes are 1, and its singular values are those of a rotation.
    assert gc.norm(np.array([[1, 1j], [1j, 1]], dtype), 2, axis=(0, 1)) == pytest.approx(2**0.5, rel=1e-14)
    assert gc.norm(np.array([[1, 1], [1, 1]], dtype), 2, axis=(0, 1)) == pytest.approx(2, rel=1e-14)


def test_axis_order_swaps_1_and_inf():
    m = np.array([[1.0, -2.0], [3.0, 4.0], [0.0, 5.0]])
    assert gc.norm(m, 1, axis=(0, 1)) == gc.norm(m, math.inf, axis=(1, 0)) == 11.0
    assert gc.norm(m, math.inf, axis=(0, 1)) == gc.norm(m, 1, axis=(1, 0)) == 7.0


@all_dtypes
@pytest.mark.parametrize("p", MATRIX_ORDS)
@looped("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3)])
def test_empty_matrices_have_norm_zero(dtype, p, shape):
    result = gc.norm(np.zeros(shape, dtype=dtype), p, axis=(-2, -1))
    assert np.shape(result) == shape[:-2]
    assert np.all(np.asarray(result) == 0)


@dtypes
@pytest.mark.parametrize("p", MATRIX_ORDS)
@looped("bad", [np.nan, np.inf, -np.inf])
def test_matrix_norms_of_nan_and_inf(dtype, p, bad):
    for value in [bad] if np.dtype(dtype).kind != "c" else [complex(bad, 1), complex(1, bad)]:
        x = np.stack([np.ones((2, 3)), np.ones((2, 3))]).astype(dtype)
        x[1, 0, 2] = value
        result = gc.norm(x, p, axis=(1, 2))
        assert np.isfinite(result[0])
        if p == 2 or np.isnan(bad):
            assert np.isnan(result[1])
        else:
            assert result[1] == math.inf


@dtypes
@pytest.mark.parametrize("p", MATRIX_ORDS)
def test_normalize_by_the_matrix_norms_of_nan_inf_and_zeros(dtype, p):
    x = np.ones((4, 2, 3)).astype(dtype)
    x[1], x[2, 0, 0], x[3, 1, 2] = -0.0, np.nan, np.inf
    result, norm = gc.normalize(x, p, axis=(1, 2))
    assert same_bits(result[1], x[1])
    assert norm[1] == 0
    assert oracle.is_nan(result[2]).all()
    if p == 2:
        assert oracle.is_nan(result[3]).all()
    else:
        infinite = np.isinf(oracle.exact_parts(x[3]))
        assert np.array_equal(oracle.is_nan(result[3]), infinite)
        assert not oracle.exact_parts(result[3])[~infinite].any()
    assert_within_ulp(result[0], exact_quotient(x[0], oracle.exact_matrix_norm(x[0], p)), 8)


@dtypes
@pytest.mark.parametrize("p", ["fro", 1, math.inf, 2])
def test_matrix_norms_do_not_overflow(dtype, p):
    largest, tiny = oracle.largest(dtype), oracle.tiny(dtype)
    for values in ([largest / 2, largest / 4, 0, largest / 2], [3 * tiny, 0, tiny, 4 * tiny], [largest, tiny, 1, tiny]):
        m = numbers(values, dtype).reshape(2, 2)
        assert_norm(gc.norm(m, p, axis=(0, 1)), exact_matrix_norm(m, p))


@all_dtypes
def test_zero_dimensions(dtype):
    for p in VECTOR_ORDS:
        assert gc.norm(dtype(1), p) == 1.0
        kept = gc.norm(np.array(1, dtype=dtype), p, keepdims=True)
        assert type(kept) is np.ndarray
        assert kept.shape == ()
        assert kept.dtype == norm_dtype(dtype)
    if dtype in SCALED:
        assert gc.norm(dtype(-3)) == 3.0


# ---- normalize


@pytest.mark.sampled
@dtypes
@pytest.mark.parametrize("p", VECTOR_ORDS)
@looped("axis", [0, 1, -1, (1,), (0, 1, 2), None])
def test_normalize_divides_by_the_norm(dtype, p, axis):
    x = cube(dtype)
    result, norm = gc.normalize(x, p, axis)
    kept = gc.norm(x, p, axis, keepdims=True)
    assert result.dtype == dtype
    assert norm.dtype == norm_dtype(dtype)
    assert result.shape == x.shape
    assert same_bits(norm, kept)
    exact = exact_norms(x, power(p), axis)
    held_to = norms_in_use(x, exact, axis, p)
    assert_within_ulp(result, exact_quotient(x, held_to), allowed_ulps(dtype))


@dtypes
@pytest.mark.parametrize(("shape", "axis"), [((5, 130), 0), ((2, 3, 150), 1)])
def test_many_columns_are_normalized(dtype, shape, axis):
    x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    x[..., 7], x[..., 140 % shape[-1]], x[(0,) * axis + (1, 9)] = 0, oracle.tiny(dtype), np.nan
    result, norm = gc.normalize(x, axis=axis)
    assert same_bits(norm, gc.norm(x, axis=axis, keepdims=True))
    columns = np.ones(shape, bool)
    columns[(0,) * axis + (slice(None), 9)] = False  # NaN
    assert np.isnan(result[~columns]).all()
    held_to = norms_in_use(x, exact_norms(x, 2, axis), axis, 2)
    expected = exact_quotient(x, held_to)
    assert_within_ulp(result[columns], expected[columns], allowed_ulps(dtype))
    own, other = x.copy(), np.asfortranarray(x)
    assert same_bits(gc.normalize(own, axis=axis, out=own)[0], result)
    assert same_bits(gc.normalize(x, axis=axis, out=other)[0], result)
    room = np.empty((shape[0] + 1, *shape[1:]), dtype)  # the output overlaps the input
    room[:-1] = x
    assert same_bits(gc.normalize(room[:-1], axis=axis, out=room[1:])[0], result)


@pytest.mark.sampled
@dtypes
@pytest.mark.parametrize("p", MATRIX_ORDS)
def test_normalize_by_matrix_norms(dtype, p):
    x = cube(dtype)
    for axis in ((0, 1), (2, 0)):
        result, norm = gc.normalize(x, p, axis)
        kept = gc.norm(x, p, axis, keepdims=True)
        assert norm.dtype == norm_dtype(dtype)
        np.testing.assert_allclose(norm, kept, rtol=1e-14 if oracle.is_wide(dtype) else 2e-7)
        # The matrix norm of order 2 may differ in its last bits.
        slack = 50 if p == 2 and oracle.is_wide(dtype) else 0
        held_to = norms_in_use(x, oracle.exact_matrix_norms(x, p, axis), axis, p)
        assert_within_ulp(result, exact_quotient(x, held_to), allowed_ulps(dtype) + slack)


@dtypes
def test_zero_slices_stay_zero_beside_others(dtype):
    x = np.array([[0.0, -0.0, 0.0], [3.0, 0.0, -4.0]], dtype=dtype)
    for data, axis, row in ((x, 1, lambda r, k: r[k]), (x.T.copy(), 0, lambda r, k: r[:, k])):
        result, norm = gc.normalize(data, axis=axis)
        assert same_bits(row(result, 0), x[0])
        expected = exact_quotient(x[1], oracle.mp.mpf(5))
        assert_within_ulp(row(result, 1), expected, allowed_ulps(dtype))
        assert norm.ravel().tolist() == [0.0, 5.0]


@dtypes
def test_subnormals_are_normalized(dtype):
    tiny = oracle.tiny(dtype)
    x = np.array([3 * tiny, -4 * tiny]).astype(dtype)
    result, norm = gc.normalize(x)
    assert_within_ulp(result, exact_quotient(x, exact_norms(x)), allowed_ulps(dtype))
    assert norm[0] == 5 * tiny


@dtypes
def test_the_norm_keeps_the_reduced_axes_as_size_1(dtype):
    x = cube(dtype)
    assert gc.normalize(x)[1].shape == (1, 1, 1)
    assert gc.normalize(x, axis=1)[1].shape == (4, 1, 6)
    assert gc.normalize(x, axis=(0, 2))[1].shape == (1, 5, 1)
    assert type(gc.normalize(dtype(2))[1]) is np.ndarray
    assert np.shape(gc.normalize(dtype(2))[1]) == ()


def test_keywords_are_those_of_tensorflow():
    x = cube(np.float64)
    assert same_bits(gc.norm(tensor=x, ord=1, axis=0, keepdims=True, name="x"), gc.norm(x, 1, 0, True, "x"))
    assert same_bits(gc.normalize(tensor=x, ord=1, axis=0, name="x", out=None)[0], gc.normalize(x, 1, 0, "x")[0])


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_and_columns_beside_others_that_leave_the_range_of_float64(axis):
    """Plain slices are computed in groups; one that is not plain must not change its neighbours."""
    plain = np.random.default_rng(7).standard_normal((70, 5))
    slices = plain.copy()
    slices[3], slices[31], slices[32], slices[50], slices[69] = 1e200, 0, np.nan, 1e-200, np.inf
    expected = [gc.norm(each) for each in slices]
    found = gc.norm(slices if axis == 1 else np.ascontiguousarray(slices.T), axis=axis)
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert found[3] == pytest.approx(5**0.5 * 1e200, rel=1e-14)


@all_dtypes
@pytest.mark.parametrize("p", [1, 2])
@looped("length", [1, 2, 3, 8, 16, 17, 100, 1024, 1025])
def test_rows_have_the_bits_of_single_arrays(dtype, p, length):
    """Rows are summed in batches, which convert integers and 16-bit floats first."""
    rows = np.resize(cube(dtype), (67, 2 * length))
    for x in (rows[:, :length], rows[:, :length].copy(), rows[::3, ::-2]):
        assert same_bits(gc.norm(x, p, axis=1), np.array([gc.norm(row, p) for row in x], norm_dtype(dtype)))


@all_dtypes
@looped("width", [1, 2, 3, 5, 16])
def test_short_rows_with_others_between_have_the_bits_of_dense_rows(dtype, width):
    """Those of some dtypes are converted with the elements between them, up to a distance."""
    rng = np.random.default_rng(width)
    for distance in (width, 2 * width, 2 * width + 1, 2 * width + 63, 2 * width + 64, 2 * width + 65, 300):
        x = cast(rng.integers(0, 2, (150, distance)) * rng.uniform(0, 60, (150, distance)), dtype)
        for rows in (x[:, :width], x[1:, distance - width :], x[::-1, :width]):
            for p in (1, 2):
                assert same_bits(gc.norm(rows, p, 1), gc.norm(np.ascontiguousarray(rows), p, 1)), distance


@all_dtypes
@looped("width", [4, 5, 16, 31, 32, 33, 64, 65])
def test_columns_of_views_have_the_bits_of_dense_columns(dtype, width):
    """Rows of a narrow view are copied, those of a wide one are read where they are; in memory of all kinds."""
    rng = np.random.default_rng(width)
    x = cast(rng.integers(0, 2, (400, 2 * width)) * rng.uniform(0, 60, (400, 2 * width)), dtype)
    for length in (3, 64, 65, 200):
        views = [x[:length, ::2], x[1 : length + 1, width:], x[: 2 * length : 2, :width]]
        views += [view.copy().astype(view.dtype.newbyteorder()) for view in views[:1] if dtype is not oracle.BF16]
        for view in views:
            dense = np.ascontiguousarray(view).astype(dtype)
            for p in (1, 2, 3):
                assert same_bits(gc.norm(view, p, 0), gc.norm(dense, p, 0)), (length, p)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "i4"])
@pytest.mark.parametrize("ord", [1, 2, 3, np.inf])
def test_columns_of_several_wide_matrices_have_the_bits_of_each_matrix(dtype, ord):
    """Longer than a run of rows, and wider than a piece of columns."""
    t = (np.random.default_rng(6).normal(size=(3, 300, 1100)) * 9).astype(dtype)
    found = gc.norm(t, ord, axis=1)
    np.testing.assert_array_equal(found, [gc.norm(matrix, ord, axis=0) for matrix in t])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
def test_the_largest_magnitudes_of_zeros_and_tiny_numbers(dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    t = np.zeros((3, 20), dtype)
    t[1, 7], t[2, 3] = -tiny, np.inf
    for found in (gc.norm(t, np.inf, axis=1), [gc.norm(row, np.inf) for row in t]):
        np.testing.assert_array_equal(found, [0.0, tiny, np.inf])
