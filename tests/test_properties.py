"""Properties over drawn shapes, layouts, dtypes and limits: one per function, and the laws of a norm."""

import math
import sys

import gradclip as gc
import layouts
import numpy as np
import oracle
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracle import FLOATS, INTEGERS, allowed_ulps, assert_within_ulp, exact_norms, relative_error, same_bits

ORDS = st.sampled_from([1, 2, math.inf, 0.5, 1.5, 3.7, "euclidean"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
LIMITS = st.one_of(
    st.floats(0, 1e3),
    st.floats(0, None, allow_nan=False),
    st.sampled_from([0, 0.0, -0.0, 1, math.inf, 5e-324, 1e39]),
)


@st.composite
def tensors(draw, shapes=SHAPES, finite=True, dtypes=FLOATS):
    """An array of one of the dtypes in one of the layouts. Magnitudes cover the whole range."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    elements = st.integers(-9, 9).map(float)
    if dtype.kind == "f":
        width = 8 * dtype.itemsize
        wild = st.floats(width=width, allow_nan=not finite, allow_infinity=not finite)
        elements = draw(st.sampled_from([st.floats(-10, 10, width=width), wild, elements]))
    else:
        elements = None
    x = draw(hnp.arrays(dtype, draw(shapes), elements=elements))
    layout = draw(st.sampled_from([name for name in layouts.ALL if layouts.fits(name, x)]))
    return layouts.ALL[layout](x)


def native(x):
    return np.array(x, dtype=x.dtype.newbyteorder("="), subok=False)


def slices_of(draw, ndim):
    """None, or axes in any order and from either end."""
    axes = draw(st.one_of(st.none(), st.lists(st.integers(0, ndim - 1), unique=True))) if ndim else None
    return axes if axes is None else tuple(draw(st.sampled_from([a, a - ndim])) for a in axes)


def held_to(x, exact, axes, ord_="euclidean"):
    """gradclip's own norm for float64 where float64 holds it to full precision, else the exact one."""
    if x.dtype.itemsize == 4 or axes == ():
        return exact
    own = np.asarray(gc.norm(x, ord_, axes, keepdims=True))
    usable = (own >= sys.float_info.min) & np.isfinite(own)
    return np.where(usable, np.vectorize(oracle.mp.mpf, otypes=[object])(own) if own.size else exact, exact)


@given(data=st.data(), t=tensors(finite=False, dtypes=FLOATS + INTEGERS))
def test_clip_by_value_is_the_minimum_and_then_the_maximum(data, t):
    is_float = t.dtype.kind == "f"
    numbers = st.floats() if is_float else st.integers(-(2**65), 2**65)
    bound_dtypes = FLOATS + INTEGERS if is_float else INTEGERS

    def bound():
        shape = tuple(data.draw(st.sampled_from([1, n])) for n in t.shape)[data.draw(st.integers(0, t.ndim)) :]
        arrays = hnp.arrays(data.draw(st.sampled_from(bound_dtypes)), shape)
        return data.draw(st.one_of(st.none(), numbers, arrays))

    low, high = bound(), bound()
    assume(low is not None or high is not None)
    result = gc.clip_by_value(t, low, high)
    expected = oracle.expected_clip_by_value(native(t), low, high)
    nan = np.isnan(expected) & ~np.isnan(native(t))  # of a bound: any NaN will do
    assert same_bits(np.where(nan, 0, result), np.where(nan, 0, expected))
    assert np.isnan(result[nan]).all()


@given(data=st.data(), t=tensors(), limit=LIMITS)
def test_clip_by_norm_follows_the_one_rule(data, t, limit):
    axes = slices_of(data.draw, t.ndim)
    x = native(t)
    norms = held_to(t, exact_norms(x, 2, axes), axes)
    result = gc.clip_by_norm(t, limit, axes)
    assert_within_ulp(result, oracle.exact_clip(x, limit, norms), allowed_ulps(x.dtype))
    assert np.array_equal(np.signbit(result), np.signbit(x))


@given(t=tensors(), limit=LIMITS)
def test_clip_by_average_norm_follows_the_one_rule(t, limit):
    x = native(t)
    norms = np.asarray(held_to(t, exact_norms(x), None) / max(x.size, 1), dtype=object)
    result = gc.clip_by_average_norm(t, limit)
    gaps = [abs(oracle.to_float64(n) - limit) for n in norms.ravel()]
    if not any(gap <= 4 * math.ulp(min(limit, 1e308)) for gap in gaps):  # nearer, either side is right
        assert_within_ulp(result, oracle.exact_clip(x, limit, norms), allowed_ulps(x.dtype))
    assert np.array_equal(np.signbit(result), np.signbit(x))


@given(
    t_list=st.lists(st.one_of(st.none(), tensors()), max_size=5),
    limit=LIMITS,
    p=st.sampled_from([1, 2, math.inf, 3.7]),
)
def test_clip_by_global_norm_follows_the_one_rule(t_list, limit, p):
    clipped, norm = gc.clip_by_global_norm(t_list, limit, ord=p)
    exact = oracle.exact_global_norm([None if t is None else native(t) for t in t_list], p)
    assert type(norm) is float
    assert norm == gc.global_norm(t_list, ord=p)
    usable = sys.float_info.min <= norm < math.inf
    for result, t in zip(clipped, t_list, strict=True):
        if t is None:
            assert result is None
            continue
        one = oracle.mp.mpf(norm) if usable else exact
        scaled = oracle.exact_clip(native(t), limit, np.broadcast_to(np.array(one, dtype=object), t.shape))
        assert_within_ulp(result, scaled, allowed_ulps(result.dtype))


@given(t_list=st.lists(tensors(), max_size=5), p=st.sampled_from([1, 2, math.inf, 0.5, 1.5, 3.7]))
def test_global_norm_is_exact_to_1e_minus_14(t_list, p):
    assert_close(gc.global_norm(t_list, ord=p), oracle.exact_global_norm([native(t) for t in t_list], p), p)


def assert_close(norm, exact, p):
    if oracle.to_float64(exact) == math.inf or norm == math.inf:
        assert exact > oracle.mp.mpf(sys.float_info.max) * (1 - 1e-13 / min(p, 1))
    elif exact < sys.float_info.min:
        assert_within_ulp(np.float64(norm), exact, 0.6)
    else:
        assert relative_error(norm, exact) < 1e-14 / min(p, 1)


@given(data=st.data(), t=tensors(), p=ORDS)
def test_norm_is_exact_to_1e_minus_14(data, t, p):
    axes = slices_of(data.draw, t.ndim) or None
    assume(axes is None or len(axes) != 2 or t.ndim == 2)
    if axes is not None and len(axes) == 2:
        axes = axes[0]
    power = 2 if p == "euclidean" else p
    exact = exact_norms(native(t), power, axes)
    result = gc.norm(t, p, axes, keepdims=True)
    assert result.shape == exact.shape
    assert result.dtype == native(t).dtype
    for where in np.ndindex(exact.shape):
        if result.dtype == np.float32:
            assert_within_ulp(result[where], exact[where], 0.5 + 1e-6 / min(power, 1))
        else:
            assert_close(float(result[where]), exact[where], power)


@given(data=st.data(), t=tensors(), p=st.sampled_from([1, 2, math.inf, 3.7]))
def test_normalize_is_the_tensor_over_its_norm(data, t, p):
    axis = data.draw(st.sampled_from([None, *range(-t.ndim, t.ndim)]))
    x = native(t)
    exact = exact_norms(x, p, axis)
    result, norm = gc.normalize(t, p, axis)
    assert same_bits(norm, gc.norm(t, p, axis, keepdims=True))
    assert_within_ulp(result, oracle.exact_quotient(x, held_to(t, exact, axis, p)), allowed_ulps(x.dtype))


# ---- laws


VECTORS = tensors(shapes=st.tuples(st.integers(0, 60)))
LAW_ORDS = st.sampled_from([1, 1.5, 2, 3.7, math.inf])


@given(t=VECTORS, p=LAW_ORDS, seed=st.integers(0, 99))
def test_a_permutation_keeps_the_norm_to_2e_minus_14(t, p, seed):
    x = native(t)
    shuffled = np.random.default_rng(seed).permutation(x)
    first, second = gc.norm(x, p), gc.norm(shuffled, p)
    assert math.isclose(first, second, rel_tol=2e-14, abs_tol=5e-324)


@given(t=VECTORS, p=LAW_ORDS, exponent=st.integers(-40, 40), sign=st.sampled_from([-1, 1]))
def test_a_factor_scales_the_norm(t, p, exponent, sign):
    x = native(t).astype(np.float64)
    x = x[(np.abs(x) > 1e-250) & (np.abs(x) < 1e250)]
    assert math.isclose(gc.norm(x * sign * 2.0**exponent, p), gc.norm(x, p) * 2.0**exponent, rel_tol=2e-14)


@given(data=st.data(), p=LAW_ORDS, n=st.integers(0, 40))
def test_the_triangle_inequality_holds_to_3e_minus_14(data, p, n):
    numbers = hnp.arrays(np.float64, n, elements=st.floats(-1e100, 1e100))
    x, y = data.draw(numbers), data.draw(numbers)
    assert gc.norm(x + y, p) <= (gc.norm(x, p) + gc.norm(y, p)) * (1 + 3e-14)


@given(t=VECTORS, low=st.floats(-5, 5), high=st.floats(-5, 5))
def test_clipping_by_value_twice_is_clipping_once(t, low, high):
    once = gc.clip_by_value(t, low, high)
    assert same_bits(gc.clip_by_value(once, low, high), once)


@given(t=tensors(), limit=st.floats(1e-3, 1e3))
def test_the_clipped_norm_is_at_the_limit_up_to_rounding(t, limit):
    x = native(t)
    eps = np.finfo(x.dtype).eps
    result = gc.norm(gc.clip_by_norm(t, limit))
    assert result <= limit * (1 + 4 * eps) + x.size * float(np.finfo(x.dtype).smallest_subnormal)
    if gc.norm(x) > limit:
        assert result >= limit * (1 - 4 * eps) - x.size * float(np.finfo(x.dtype).smallest_subnormal)


@given(t=tensors(finite=False), limit=LIMITS)
def test_nothing_warns_whatever_the_values(t, limit):
    for result in (
        gc.clip_by_norm(t, limit),
        gc.clip_by_average_norm(t, limit),
        gc.clip_by_global_norm([t], limit)[0][0],
        gc.normalize(t)[0],
    ):
        assert result.shape == t.shape
        if not np.isfinite(native(t)).all() and limit < math.inf:
            assert np.isnan(result).any()
