"""Results that TensorFlow's documentation, or its users, have published."""

import gradclip as gc
import numpy as np
import pytest
from oracle import SCALED, eps

F32 = np.float32
TABLE = np.linspace(-2, 3, 6).reshape(2, 3).astype(F32)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("dtype", "low", "high"), [(np.int32, -2, 2), (F32, -2.0, 2.0)])
def test_clip_by_value(dtype, low, high):
    t = np.linspace(-4, 6, 6).astype(dtype)
    result = gc.clip_by_value(t, low, high)
    assert result.dtype == dtype
    assert result.tolist() == [-2, -2, 0, 2, 2, 2]


def test_clip_by_value_refuses_a_float_bound_for_integers():
    with pytest.raises(TypeError, match=r"int32.*float|float.*int32"):
        gc.clip_by_value(np.linspace(-4, 6, 6).astype(np.int32), -2, 2.0)


def test_clip_by_norm():
    result = gc.clip_by_norm(TABLE, 4)
    assert result.dtype == F32
    close(result, [[-1.8353258, -0.9176629, 0.0], [0.9176629, 1.8353258, 2.7529888]])


def test_clip_by_norm_leaves_a_small_tensor_bit_for_bit():
    assert gc.clip_by_norm(TABLE, 5).tobytes() == TABLE.tobytes()


def test_clip_by_norm_along_rows():
    close(gc.clip_by_norm(TABLE, 3, axes=1), [[-2, -1, 0], [0.8017837, 1.6035674, 2.4053512]])


def test_clip_by_norm_of_one_to_five():
    result = gc.clip_by_norm(np.array([[1, 2, 3, 4, 5]], dtype=F32), 2.0)
    close(result, [[0.26967996, 0.5393599, 0.80903983, 1.0787199, 1.3483998]])


def test_clip_by_norm_refuses_integers():
    with pytest.raises(TypeError, match="int"):
        gc.clip_by_norm(np.array([[1, 2, 3, 4, 5]]), 2.0)


def test_clip_by_norm_wants_one_limit():
    with pytest.raises(ValueError, match="clip_norm"):
        gc.clip_by_norm(TABLE, np.array([1.0, 2.0]))


PAIR = (np.array([[0, 1, 2], [3, 4, 5]], dtype=F32), np.array([[-2, -4], [2, 4]], dtype=F32))


@pytest.mark.parametrize("kind", [list, tuple])
def test_clip_by_global_norm(kind):
    result, norm = gc.clip_by_global_norm(kind(PAIR), 9)
    assert type(result) is list
    assert type(norm) is float
    close(norm, 9.746795)
    close(result[0], [[0.0, 0.9233805, 1.846761], [2.7701416, 3.693522, 4.6169024]])
    close(result[1], [[-1.846761, -3.693522], [1.846761, 3.693522]])


def test_clip_by_global_norm_refuses_an_array_in_place_of_the_list():
    with pytest.raises(TypeError, match="`t_list` should be a sequence of tensors"):
        gc.clip_by_global_norm(PAIR[0], 9)


def test_clip_by_global_norm_keeps_none_in_place():
    (first, nothing, second), norm = gc.clip_by_global_norm([PAIR[0], None, PAIR[1]], 9)
    assert nothing is None
    close(norm, 9.746795)
    close(first[0], [0.0, 0.9233805, 1.846761])
    close(second[1], [1.846761, 3.693522])


def test_clip_by_global_norm_trusts_use_norm():
    result, norm = gc.clip_by_global_norm(list(PAIR), 9, use_norm=18.0)
    assert norm == 18.0
    for clipped, original in zip(result, PAIR, strict=True):
        assert clipped.tobytes() == (original / 2).tobytes()


def test_norm():
    x = np.linspace(-10, 8, 12).reshape(3, 4).astype(F32)
    close(gc.norm(x), 19.87232)
    close(gc.norm(x, ord=1.5, axis=0), [12.364525, 11.0871725, 10.408293, 10.876119])
    close(gc.norm(x, ord=np.inf, axis=1), [10.0, 3.4545455, 8.0])


@pytest.mark.parametrize("dtype", SCALED)
def test_every_dtype_has_the_published_result(dtype):
    result = gc.clip_by_norm(np.array([[1, 2, 3, 4, 5]]).astype(dtype), 2.0)
    assert result.dtype == dtype
    expected = np.array([[0.26967996, 0.5393599, 0.80903983, 1.0787199, 1.3483998]])
    np.testing.assert_allclose(result.astype(np.complex128), expected, rtol=max(1e-6, eps(dtype)))


def test_clip_by_average_norm():
    close(gc.clip_by_average_norm([3.0, 4.0], 1.0), [1.2, 1.6])
