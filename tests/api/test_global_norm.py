"""global_norm and clip_by_global_norm: one norm over a list of tensors."""

import math

import gradclip as gc
import numpy as np
import oracle
import pytest
from calls import cast
from oracle import (
    BF16,
    INTEGERS,
    NORMED,
    SCALED,
    allowed_ulps,
    assert_norm,
    assert_within_ulp,
    exact_global_clip,
    exact_global_norm,
    numbers,
    same_bits,
)

dtypes = pytest.mark.parametrize("dtype", SCALED)
ORDS = [0.5, 1, 1.5, 2, 3, 3.7, 4, math.inf]
SHAPES = [(3, 4), (), (17,), (0,), (2, 3, 5), (1,), (129,), (6, 0)]


def grads(dtype, shapes=SHAPES):
    rng = np.random.default_rng(4)
    return [cast(np.asarray(rng.standard_normal(s)), dtype) for s in shapes]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", NORMED)
@pytest.mark.parametrize("p", ORDS)
def test_the_global_norm_is_that_of_all_entries_together(dtype, p):
    t_list = [*(np.abs(t * 90) for t in grads(np.float64))]
    t_list = [*((t.astype(dtype) for t in t_list) if dtype not in SCALED else grads(dtype)), None]
    norm = gc.global_norm(t_list, ord=p)
    assert type(norm) is float
    assert_norm(norm, exact_global_norm(t_list, p), p)


@pytest.mark.sampled
@dtypes
@pytest.mark.parametrize("p", ORDS)
def test_every_tensor_is_scaled_by_the_one_factor(dtype, p):
    t_list = grads(dtype)
    exact = exact_global_norm(t_list, p)
    for share in (0.5, 1e-9, 1.5):
        limit = float(exact) * share
        clipped, norm = gc.clip_by_global_norm(t_list, limit, ord=p)
        assert norm == gc.global_norm(t_list, ord=p)
        for result, t in zip(clipped, t_list, strict=True):
            assert result.dtype == dtype
            assert_within_ulp(result, exact_global_clip(t, limit, oracle.mp.mpf(norm)), allowed_ulps(dtype))
            if share > 1:
                assert same_bits(result, t)


@pytest.mark.parametrize("p", [1, 2, 3.7, math.inf])
def test_mixed_dtypes_each_keep_their_own(p):
    t_list = [np.asarray(grads(dtype)[k % 3] * dtype(1 + 2 * (k % 2))) for k, dtype in enumerate(SCALED)]
    t_list.insert(2, None)
    clipped, norm = gc.clip_by_global_norm(t_list, 0.5, ord=p)
    assert_norm(norm, exact_global_norm(t_list, p), p)
    assert [c.dtype for c in clipped if c is not None] == SCALED
    for result, t in zip(clipped, t_list, strict=True):
        if t is not None:
            assert_within_ulp(result, exact_global_clip(t, 0.5, oracle.mp.mpf(norm)), allowed_ulps(t.dtype))


@pytest.mark.parametrize("p", ORDS)
def test_every_dtype_in_one_list_has_a_norm(p):
    """Also where those without a fraction hold the largest numbers, or the smallest."""
    t_list = [np.array([3, 1, 0, 2] * 9).astype(dtype) for dtype in NORMED]
    huge = [np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 1], dtype) for dtype in INTEGERS]
    small = [numbers([oracle.tiny(dtype)] * 3, dtype) for dtype in SCALED]
    for several in (t_list, huge, small, t_list + huge, small + huge + [None], [*small, np.ones(3, bool)]):
        for order in (several, several[::-1]):
            assert_norm(gc.global_norm(order, ord=p), exact_global_norm(order, p), p)


def test_magnitudes_that_only_meet_in_the_list_do_not_overflow():
    t_list = [
        np.full(3, 3e38, dtype=np.float32),
        np.array([1e200]),
        np.array([1e-200, 5e-324]),
        np.float32(1e-45),
    ]
    for extra in ([], [np.array([1e200 + 1e200j])], [np.array([65504, 6e-8], np.float16), np.array([3e38], BF16)]):
        for p in (1, 2, 3.7):
            assert_norm(gc.global_norm(t_list + extra, ord=p), exact_global_norm(t_list + extra, p), p)
    clipped, _ = gc.clip_by_global_norm(t_list, 1e200)
    assert clipped[1] == 1e200


@pytest.mark.parametrize("p", ORDS)
@pytest.mark.parametrize("empty", [[], (), [None], [None, None], [np.zeros(0)], [np.zeros((0, 3)), None], [[]]])
def test_nothing_has_norm_zero(empty, p):
    assert gc.global_norm(empty, ord=p) == 0.0
    for limit in (0, 1.0, math.inf):
        clipped, norm = gc.clip_by_global_norm(empty, limit, ord=p)
        assert type(clipped) is list
        assert type(norm) is float
        assert norm == 0.0
        assert len(clipped) == len(empty)
        assert all((c is None) == (t is None) for c, t in zip(clipped, empty, strict=True))


@dtypes
def test_the_norm_returned_is_the_one_before_clipping(dtype):
    clipped, norm = gc.clip_by_global_norm([np.array([3.0], dtype=dtype), np.array(4.0, dtype=dtype)], 1)
    assert norm == 5.0
    assert gc.global_norm(clipped) == pytest.approx(1.0, rel=max(1e-6, oracle.eps(dtype)))


@dtypes
@pytest.mark.parametrize("use_norm", [0, 0.0, 1e-320, 0.5, 1])
def test_a_trusted_norm_at_or_below_the_limit_leaves_everything_untouched(dtype, use_norm):
    x = numbers([100.0, -0.0, oracle.tiny(dtype), np.inf, np.nan], dtype)
    clipped, norm = gc.clip_by_global_norm([x, None], 1.0, use_norm)
    assert norm == use_norm
    assert type(norm) is float
    assert same_bits(clipped[0], x)
    assert not np.shares_memory(clipped[0], x)


def test_with_use_norm_no_norm_is_computed():
    (result,), norm = gc.clip_by_global_norm([np.full(3, np.nan)], 1.0, use_norm=2.0)
    assert norm == 2.0
    assert np.isnan(result).all()
    (result,), norm = gc.clip_by_global_norm([np.array([3.0, 4.0])], 1.0, use_norm=2.0, ord=1)
    assert norm == 2.0
    assert result.tolist() == [1.5, 2.0]


def test_each_top_level_entry_is_one_tensor():
    clipped, norm = gc.clip_by_global_norm([[1.0, 2.0], [[2.0], [0.0]], 4.0], 1.0)
    assert norm == 5.0
    assert [c.shape for c in clipped] == [(2,), (2, 1), ()]


@dtypes
def test_inputs_are_not_modified_and_not_shared(dtype):
    t_list = grads(dtype)
    copies = [t.copy() for t in t_list]
    for limit in (0.1, 1e9):
        clipped, _ = gc.clip_by_global_norm(t_list, limit)
        assert all(same_bits(t, c) for t, c in zip(t_list, copies, strict=True))
        assert not any(np.shares_memory(c, t) for c in clipped for t in t_list)
        assert not any(np.shares_memory(c, d) for i, c in enumerate(clipped) for d in clipped[:i])


@dtypes
def test_one_tensor_twice_counts_twice(dtype):
    x = np.array([3.0, 4.0], dtype=dtype)
    assert gc.global_norm([x, x, x, x]) == 10.0
    clipped, _ = gc.clip_by_global_norm([x, x], 1.0)
    assert same_bits(clipped[0], clipped[1])
    assert not np.shares_memory(clipped[0], clipped[1])


def test_many_small_tensors():
    t_list = [np.full(k % 7, 0.1, dtype=np.float32) for k in range(3000)]
    norm = gc.global_norm(t_list)
    assert_norm(norm, exact_global_norm(t_list))
    clipped, _ = gc.clip_by_global_norm(t_list, norm / 2)
    assert all(np.array_equal(c, t / np.float32(2)) for c, t in zip(clipped, t_list, strict=True))


def test_the_default_ord_is_2_and_euclidean_is_not_needed():
    t_list = [np.array([3.0]), np.array([4.0])]
    assert gc.global_norm(t_list) == gc.global_norm(t_list, ord=2) == 5.0
    assert gc.global_norm(t_list=t_list, name="grads", ord=1) == 7.0
    assert gc.clip_by_global_norm(t_list=t_list, clip_norm=1.0, use_norm=None, name="grads", ord=math.inf)[1] == 4.0


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", NORMED)
def test_many_tiny_tensors_of_every_dtype(dtype):
    """More tensors than one partial sum holds, none of which fills a vector register."""
    t_list = [np.array([k % 2, 1, k % 3 == 0][: k % 4]).astype(dtype) for k in range(700)]
    for p in (1, 2, math.inf, 1.5):
        assert_norm(gc.global_norm(t_list, ord=p), exact_global_norm(t_list, p), p)
