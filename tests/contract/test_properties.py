"""Properties that hold for any arguments. (test_contract.py checks the values.)"""

import math

import gradclip as gc
import numpy as np
import oracle
from draws import tensors
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracle import FLOATS, NORMED, SCALED, native, same_bits

FINITE = st.sampled_from(SCALED).flatmap(lambda dtype: tensors(dtype, finite=True))
NUMBERS = st.sampled_from(NORMED).flatmap(lambda dtype: tensors(dtype, finite=True))
LIMITS = st.one_of(st.floats(0, 1e3), st.floats(0, allow_nan=False), st.sampled_from([0, -0.0, 1, math.inf, 5e-324]))
LAW_ORDS = st.sampled_from([1, 1.5, 2, 3.7, math.inf])


@given(t=NUMBERS, p=LAW_ORDS, seed=st.integers(0, 99))
def test_a_permutation_keeps_the_norm_to_2e_minus_14(t, p, seed):
    x = native(t).ravel()
    shuffled = np.random.default_rng(seed).permutation(x)
    first, second = gc.norm(x, p), gc.norm(shuffled, p)
    assert math.isclose(first, second, rel_tol=2e-14, abs_tol=5e-324)


@given(t=NUMBERS, p=LAW_ORDS, exponent=st.integers(-40, 40), unit=st.sampled_from([-1, 1, 1j]))
def test_a_factor_scales_the_norm(t, p, exponent, unit):
    x = native(t).astype(np.complex128)
    assume(not x.size or (np.abs(x.real).max() < 1e290 and np.abs(x.imag).max() < 1e290))
    x[np.abs(x) < 1e-250] = 0
    assert math.isclose(gc.norm(x * unit * 2.0**exponent, p), gc.norm(x, p) * 2.0**exponent, rel_tol=2e-14)


@given(t=NUMBERS, p=LAW_ORDS)
def test_a_wider_dtype_has_the_same_norm(t, p):
    """float64 or complex128, in which all numbers but the largest integers are the same."""
    x = native(t)
    wide = oracle.exact_parts(x) if x.dtype.kind != "c" else x.astype(np.complex128)
    assert math.isclose(gc.norm(t, p), gc.norm(wide, p), rel_tol=2.1e-14, abs_tol=5e-324)


@given(t=NUMBERS, p=LAW_ORDS, axis=st.integers(0, 3))
def test_the_norm_of_the_norms_along_an_axis_is_the_norm(t, p, axis):
    assume(axis < t.ndim)
    wide = oracle.exact_parts(t) if t.dtype.kind != "c" else native(t).astype(np.complex128)
    rows = gc.norm(wide, p, axis, keepdims=True)
    assert math.isclose(gc.norm(rows, p), gc.norm(t, p), rel_tol=3.1e-14, abs_tol=t.size * 5e-324)


@given(data=st.data(), p=LAW_ORDS, n=st.integers(0, 40))
def test_the_triangle_inequality_holds_to_3e_minus_14(data, p, n):
    numbers = hnp.arrays(np.float64, n, elements=st.floats(-1e100, 1e100))
    x, y = data.draw(numbers), data.draw(numbers)
    assert gc.norm(x + y, p) <= (gc.norm(x, p) + gc.norm(y, p)) * (1 + 3e-14)


@given(
    t=st.sampled_from(FLOATS).flatmap(tensors),
    low=st.one_of(st.floats(-5, 5), st.floats(allow_nan=False)),
    high=st.one_of(st.floats(-5, 5), st.floats(allow_nan=False)),
)
def test_clipping_by_value_twice_is_clipping_once(t, low, high):
    once = gc.clip_by_value(t, low, high)
    assert same_bits(gc.clip_by_value(once, low, high), once)


@given(t=FINITE, limit=st.floats(1e-3, 1e3))
def test_the_clipped_norm_is_at_the_limit_up_to_rounding(t, limit):
    x, eps = native(t), oracle.eps(t.dtype)
    lost = x.size * oracle.tiny(t.dtype)
    before, after = gc.norm(x), gc.norm(gc.clip_by_norm(t, limit))
    assert after <= limit * (1 + 4 * eps) + 2 * lost
    if before > limit:
        assert after >= min(limit, before) * (1 - 4 * eps) - 2 * lost


@given(t=st.sampled_from(NORMED).flatmap(tensors), limit=LIMITS)
def test_nothing_warns_whatever_the_values(t, limit):
    """A warning is an error here, also one that a signalling NaN sets off in a conversion."""
    finite = np.isfinite(oracle.exact_parts(t)).all() if t.dtype.kind not in "biu" else True
    for p in (1, 2, 3.7, math.inf):
        assert math.isfinite(gc.norm(t, p)) or not finite or oracle.is_wide(t.dtype)
    for p in (1, 2, math.inf, "fro"):
        if t.ndim >= 2:
            gc.norm(t, p, axis=(0, 1))
    if t.dtype.kind in "biu":
        return
    results = [gc.clip_by_norm(t, limit), gc.clip_by_average_norm(t, limit), gc.normalize(t)[0]]
    for result in (*results, gc.clip_by_global_norm([t], limit)[0][0]):
        assert result.shape == t.shape
        if not finite and limit < math.inf:
            assert oracle.is_nan(result).any()
    if t.ndim and t.shape[0]:
        gc.IndexedSlices(t, np.zeros(len(t), int), t.shape).to_dense()
    if t.dtype.kind != "c":
        gc.clip_by_value(t, -limit, np.full(t.shape, limit))
