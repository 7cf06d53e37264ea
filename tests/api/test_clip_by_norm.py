"""clip_by_norm and clip_by_average_norm: the norm that is limited, and the factor."""

import itertools
import math

import gradclip as gc
import numpy as np
import oracle
import pytest
from calls import cast, looped, norms_in_use
from oracle import BF16, COMPLEX, SCALED, allowed_ulps, assert_within_ulp, exact_clip, exact_norms, numbers, same_bits

dtypes = pytest.mark.parametrize("dtype", SCALED)
AXES = [None, *(c for k in range(4) for c in itertools.combinations(range(3), k))]


def cube(dtype):
    return cast(np.random.default_rng(2).standard_normal((4, 5, 6)), dtype)


def norms_of(x, axes):
    """The norms that results are compared with."""
    return norms_in_use(x, exact_norms(x, 2, axes), axes)


@pytest.mark.sampled
@dtypes
@pytest.mark.parametrize("axes", AXES)
def test_every_slice_along_the_axes_is_limited(dtype, axes):
    x = cube(dtype)
    norms = norms_of(x, axes)
    middle = float(np.sort(norms.ravel())[norms.size // 2])
    for limit in (0.1, 0.9 * middle, 1.1 * middle, 100.0):
        result = gc.clip_by_norm(x, limit, axes)
        assert_within_ulp(result, exact_clip(x, limit, norms), allowed_ulps(dtype))
        for where in np.ndindex(norms.shape):
            inside = tuple(
                slice(None) if n == 1 and full > 1 else k
                for k, n, full in zip(where, norms.shape, x.shape, strict=True)
            )
            if norms[where] <= limit:
                assert same_bits(result[inside], x[inside])


@dtypes
def test_axes_in_any_spelling_mean_the_same(dtype):
    x = cube(dtype)
    for same in (
        [(0, 2), (2, 0), [0, -1], (-3, 2), np.array([0, 2])],
        [1, -2, (1,), [np.int64(1)], np.int8(-2)],
        [None, (0, 1, 2), (2, 0, 1)],
    ):
        expected = gc.clip_by_norm(x, 0.7, axes=same[0])
        assert all(same_bits(gc.clip_by_norm(x, 0.7, axes=axes), expected) for axes in same[1:])


@dtypes
def test_empty_axes_limit_each_element_by_its_own_magnitude(dtype):
    tiny = oracle.tiny(dtype)
    x = np.array([[-3.0, 0.5, -0.0], [2.0, -0.25, tiny]]).astype(dtype)
    expected = np.array([[-1.0, 0.5, -0.0], [1.0, -0.25, tiny]]).astype(dtype)
    assert same_bits(gc.clip_by_norm(x, 1.0, axes=()), expected)
    odd = np.array([np.nan, np.inf, 3.0], dtype=dtype)
    result = gc.clip_by_norm(odd, 1.0, axes=())
    assert oracle.is_nan(result[0]).all()
    assert np.array_equal(oracle.is_nan(result[1]), np.isinf(oracle.exact_parts(odd[1])))
    assert result[2] == 1.0


@pytest.mark.parametrize("dtype", COMPLEX)
def test_the_magnitude_of_a_complex_number_is_its_modulus(dtype):
    x = np.array([3 + 4j, -0.3 + 0.4j, 5j, -12 - 5j, complex(-0.0, 0.25)], dtype)
    np.testing.assert_allclose(
        gc.clip_by_norm(x, 1.0, axes=()), [0.6 + 0.8j, -0.3 + 0.4j, 1j, -12 / 13 - 5j / 13, 0.25j], rtol=1e-7
    )
    assert same_bits(gc.clip_by_norm(x, 13.0, axes=()), x)
    assert same_bits(gc.clip_by_norm(x[:1], 5.0), x[:1])
    assert same_bits(gc.clip_by_norm(x[:1], 2.5), x[:1] / dtype(2))
    assert gc.norm(x[:1]) == 5.0


@pytest.mark.sampled
@dtypes
@pytest.mark.parametrize("n", [1, 2, 3, 15, 16, 17, 33, 127, 128, 129, 2049])
def test_vectors_of_every_length(dtype, n):
    x = cast(np.random.default_rng(n).standard_normal(n) + 0.1, dtype)
    norms = norms_of(x, None)
    for limit in (0.01, 1 / 3):
        assert_within_ulp(gc.clip_by_norm(x, limit), exact_clip(x, limit, norms), allowed_ulps(dtype))


@pytest.mark.sampled
@dtypes
@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (3, 130), (130, 3), (35, 37), (2, 1, 40), (40, 1, 2)])
def test_tables_of_every_shape(dtype, shape):
    x = cast(np.random.default_rng(7).standard_normal(shape), dtype)
    for axes in (None, *range(len(shape))):
        assert_within_ulp(gc.clip_by_norm(x, 0.5, axes), exact_clip(x, 0.5, norms_of(x, axes)), allowed_ulps(dtype))


@pytest.mark.sampled
@dtypes
@looped("shape", [(300, 1001), (3, 40_001), (40_001, 3), (7, 1000, 11)])
def test_long_slices_are_scaled_each_by_its_own_factor(dtype, shape):
    rng = np.random.default_rng(4)
    x = cast(rng.standard_normal(shape) * 10.0 ** rng.uniform(-2, 2, shape), dtype)
    for data in (x, np.asfortranarray(x)):
        exact = oracle.exact_parts(data)
        wide = exact.view(np.complex128)[..., 0] if np.dtype(dtype).kind == "c" else exact
        for axes in (*range(len(shape)), None):
            norms = np.asarray(gc.norm(data if oracle.is_wide(dtype) else wide, axis=axes, keepdims=True))
            limit = float(np.median(norms)) * 0.7
            factors = np.where(norms <= limit, 1, limit / norms)
            product = exact * (factors[..., None] if exact.ndim > x.ndim else factors)
            exponent = np.maximum(np.frexp(product)[1] - 1, oracle.finfo(dtype).minexp) - oracle.finfo(dtype).nmant
            result = oracle.exact_parts(gc.clip_by_norm(data, limit, axes))
            off = np.abs(result - product) / np.ldexp(1.0, exponent)
            # The product here is rounded twice, which is visible only in float64.
            assert off.max() <= (4 if oracle.is_wide(dtype) else oracle.ONE_ROUNDING)


@dtypes
@looped("odd", [math.nan, math.inf, -math.inf])
def test_a_column_that_is_not_finite_changes_no_other(dtype, odd):
    """Near and far neighbours of columns whose factor is NaN, 0 or 1, in outputs of all kinds."""
    x = cast(np.random.default_rng(4).standard_normal((9, 200)), dtype)
    limit = float(np.median(gc.norm(x, axis=0)))
    for options in (
        *({"nonfinite": option} for option in ("propagate", "zero", "keep")),
        *({"nonfinite": option, "strict": True} for option in ("propagate", "zero")),
    ):
        expected = gc.clip_by_norm(x, limit, 0, **options)
        y = x.copy()
        y[4, 70] = y[:, 130] = odd
        for i in (70, 130):
            expected[:, i] = gc.clip_by_norm(y[:, i].copy(), limit, **options)
        in_place, out = y.copy(), np.empty((9, 400), dtype)[:, ::2]
        gc.clip_by_norm(in_place, limit, 0, out=in_place, **options)
        gc.clip_by_norm(y, limit, 0, out=out, **options)
        for result in (in_place, out, gc.clip_by_norm(y, limit, 0, **options)):
            assert same_bits(result, expected), options


@dtypes
def test_signs_are_kept(dtype):
    x = numbers([-3.0, 4.0, -0.0, 0.0, -oracle.tiny(dtype), 0.0], dtype)
    for result in (gc.clip_by_norm(x, 1e-20), gc.clip_by_average_norm(x, 1e-20), gc.clip_by_norm(x, 1e-20, axes=())):
        assert np.array_equal(oracle.signs(result), oracle.signs(x))


@dtypes
def test_a_limit_of_inf_clips_nothing_finite(dtype):
    x = np.array([[oracle.largest(dtype), -1.0], [0.0, -0.0]]).astype(dtype)
    for limit in (math.inf, np.float32("inf"), BF16("inf"), 10**400):
        assert same_bits(gc.clip_by_norm(x, limit), x)
        assert same_bits(gc.clip_by_norm(x, limit, axes=1), x)
        assert same_bits(gc.clip_by_average_norm(x, limit), x)


def test_the_limit_is_used_in_float64():
    x = np.array([3.0, 4.0], dtype=np.float32)
    assert same_bits(gc.clip_by_norm(x, 5.0), x)
    below = math.nextafter(5.0, 0)
    assert same_bits(gc.clip_by_norm(x, below), x)  # rounds to the same float32
    assert same_bits(gc.clip_by_norm(x.astype(np.float64), 5.0), x.astype(np.float64))
    assert gc.clip_by_norm(x.astype(np.float64), 4.999999999).tolist() != [3.0, 4.0]


@dtypes
@pytest.mark.parametrize("shape", [(), (1,), (2,), (5, 7), (3, 0)])
def test_the_average_norm_is_the_norm_over_the_size(dtype, shape):
    x = np.random.default_rng(3).standard_normal(shape)
    x = cast(np.asarray(x), dtype)
    norms = norms_of(x, None)
    for limit in (1e-3, 0.05, 10.0):
        assert_within_ulp(
            gc.clip_by_average_norm(x, limit),
            exact_clip(x, limit, norms / max(x.size, 1)),
            allowed_ulps(dtype),
        )


@dtypes
def test_the_average_norm_at_its_limit_is_untouched(dtype):
    x = np.array([3.0, 4.0], dtype=dtype)
    assert same_bits(gc.clip_by_average_norm(x, 2.5), x)
    assert gc.clip_by_average_norm(x, 1.25).tolist() == [1.5, 2.0]


def test_keywords_are_those_of_tensorflow():
    x = np.array([[3.0, 4.0]])
    assert same_bits(gc.clip_by_norm(t=x, clip_norm=1.0, axes=1, name="x", out=None), gc.clip_by_norm(x, 1.0, 1, "x"))
    assert same_bits(
        gc.clip_by_average_norm(t=x, clip_norm=1.0, name="x", out=None), gc.clip_by_average_norm(x, 1.0, "x")
    )
