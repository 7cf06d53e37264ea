"""Every function with every kind of argument: any dtype, layout, limit, axis and output, against the oracle.

The other files test one promise each, on examples that tell what it is about. Here arguments are drawn, all at once,
and everything is checked that can be said about the answer: its values, type, dtype, shape and memory order, what is
left untouched, where it lies, and that the input is as it was.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gradclip as gc
import layouts
import numpy as np
import oracle
import pytest
from calls import norms_in_use
from draws import MAX, axes_of, ints, limits, number, tensors, views_of_one
from gradclip import _core
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import (
    BF16,
    COMPLEX,
    FLOATS,
    INTEGERS,
    NORMED,
    ORDERED,
    SCALED,
    allowed_ulps,
    assert_norm,
    assert_within_ulp,
    bits,
    mp,
    same_bits,
)

VECTOR_ORDS = [2, 1, math.inf, "euclidean", 0.5, 1.5, 3, 4, 3.7, 100, 1e300, 1e-3, 0.1, np.float32(2.5), BF16(1.5)]
MATRIX_ORDS = ["euclidean", "fro", 1, 2, math.inf]

scaled = pytest.mark.parametrize("dtype", SCALED)


# ---- checks of every result


def plain(t: Any) -> np.ndarray:
    return np.asarray(t).view(np.ndarray)


def check_array(result: Any, t: np.ndarray) -> None:
    """A plain native array of t's dtype and shape, in the memory order of a ufunc, which owns its memory."""
    assert type(result) is np.ndarray
    assert result.dtype == oracle.native(t).dtype
    assert result.dtype.isnative
    assert result.shape == t.shape
    assert result.flags.writeable
    assert result.flags.aligned
    assert not np.shares_memory(result, t)
    if t.size:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            assert layouts.steps(result) == layouts.steps(np.asarray(np.negative(plain(t))))


def check_signs(result: np.ndarray, t: np.ndarray) -> None:
    """Every number keeps its sign, zeros too."""
    wrong = (oracle.signs(result) != oracle.signs(t)) & ~oracle.is_nan(result)
    assert not wrong.any()


def check_clipped(result: np.ndarray, t: np.ndarray, limit: float, norms: np.ndarray, hidden: Any, near: Any) -> None:
    """Slice by slice untouched, or scaled.

    `hidden` are norms that nothing returns to the last bit: their own error, 1e-14, shows in results of the same
    precision. `near` are those that may lie on either side of the limit for it, so that the factor is 1 or next to it.
    """
    check_signs(result, t)
    full, hidden, near = (np.broadcast_to(a, t.shape) for a in (norms, hidden, near))
    sure = (oracle.each(oracle.to_float64, full).astype(float) <= limit) & ~near
    assert np.array_equal(bits(result)[sure], bits(t)[sure])
    expected, loose = oracle.exact_clip(t, limit, norms), hidden | near
    assert_within_ulp(result[~loose], expected[~loose], allowed_ulps(t.dtype))
    assert_within_ulp(result[loose], expected[loose], allowed_ulps(t.dtype) + oracle.NORM_ERROR / oracle.eps(t.dtype))


def hidden_norms(norms: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Where no norm of gradclip's is used."""
    pairs = [a is b for a, b in zip(norms.ravel(), exact.ravel(), strict=True)]
    return np.array(pairs, dtype=bool).reshape(norms.shape)


def near_limit(norms: np.ndarray, limit: float) -> np.ndarray:
    """Where a norm is the limit up to its error. Nothing finite is near an infinite one."""
    if math.isinf(limit):
        return np.zeros(norms.shape, dtype=bool)
    slack = mp.ldexp(1, -1074)
    near = oracle.each(lambda n: bool(abs(n - limit) <= 2 * oracle.NORM_ERROR * n + slack), norms)
    return near.astype(bool) & oracle.each(mp.isfinite, norms).astype(bool)


# ---- outputs


Call = Callable[[Any, Any], Any]
OUTS = ["none", "new", "swapped bytes", "itself", "the same memory", "overlapping"]


def garbage(t: np.ndarray) -> np.ndarray:
    return np.full(t.shape, 99, dtype=oracle.native(t).dtype)


def check_out(data: Any, call: Call, t: np.ndarray, result: np.ndarray) -> None:
    """With every kind of output: the result of the call without `out`, written there and nowhere else."""
    form = data.draw(st.sampled_from(OUTS))
    before = bits(t)
    if form == "none":
        return
    if form in {"new", "swapped bytes"}:
        choice = [f for name, f in layouts.WRITEABLE.items() if layouts.fits(name, t)]
        layout = layouts.swapped_bytes if form == "swapped bytes" else data.draw(st.sampled_from(choice))
        out = layout(garbage(t))
        assert call(t, out) is out
        assert same_bits(plain(out), result)
        assert np.array_equal(bits(t), before)
        return
    if form == "overlapping":
        flat, shift = oracle.native(t), data.draw(st.integers(1, 7))
        room = np.full(flat.size + shift, 99, dtype=flat.dtype)
        pair = [room[: flat.size].reshape(t.shape), room[shift:].reshape(t.shape)]
        outside = room[:shift]
        if data.draw(st.booleans()):
            pair.reverse()
            outside = room[flat.size :]
        pair[0][...] = flat
        expected, kept = call(flat.copy(), None), outside.copy()
        assert call(*pair) is pair[1]
        assert same_bits(pair[1], expected)
        assert same_bits(outside, kept)
        return
    # In the layout that t has, if it can be written to.
    name = data.draw(st.sampled_from([name for name in layouts.WRITEABLE if layouts.fits(name, t)]))
    own = layouts.WRITEABLE[name](oracle.native(t))
    expected = call(own, None)
    out = own if form == "itself" else own[...]
    assert call(own, out) is out
    assert same_bits(plain(own), expected)


def slices_of(data: Any, t: np.ndarray) -> gc.IndexedSlices | None:
    """Now and then the tensor as the rows of a larger one."""
    if t.ndim == 0 or data.draw(st.integers(0, 3)):
        return None
    rows = np.random.default_rng(len(t)).integers(0, 9, len(t))
    return gc.IndexedSlices(t, rows, data.draw(st.sampled_from([None, (9, *t.shape[1:])])))


def check_slices(data: Any, call: Call, t: np.ndarray, result: np.ndarray) -> None:
    """IndexedSlices give what their values give, with the same rows."""
    s = slices_of(data, t)
    if s is None:
        return
    clipped = call(s, None)
    assert type(clipped) is gc.IndexedSlices
    assert clipped.indices is s.indices
    assert clipped.dense_shape == s.dense_shape
    assert same_bits(clipped.values, result)
    out = gc.IndexedSlices(garbage(t), s.indices.copy(), s.dense_shape)
    assert call(s, out) is out
    assert same_bits(out.values, result)


# ---- clip_by_norm and clip_by_average_norm


@pytest.mark.sampled
@scaled
@given(data=st.data())
def test_clip_by_norm(dtype: Any, data: Any) -> None:
    t = data.draw(tensors(dtype), label="t")
    axes = data.draw(axes_of(t.ndim), label="axes")
    exact = oracle.exact_norms(t, 2, ints(axes))
    limit = data.draw(limits(exact.flat[0] if exact.size else mp.mpf(1)), label="clip_norm")
    norms = norms_in_use(t, exact, ints(axes))

    def call(t: Any, out: Any) -> Any:
        return gc.clip_by_norm(t, limit, axes, out=out)

    before = bits(t)
    result = call(t, None)
    assert np.array_equal(bits(t), before)
    check_array(result, t)
    hidden = hidden_norms(norms, exact)
    check_clipped(result, t, number(limit), norms, hidden, hidden & near_limit(norms, number(limit)))
    check_out(data, call, t, result)
    check_slices(data, call, t, result)


@pytest.mark.sampled
@scaled
@given(data=st.data())
def test_clip_by_average_norm(dtype: Any, data: Any) -> None:
    t = data.draw(tensors(dtype), label="t")
    exact = oracle.exact_norms(t)
    norms = norms_in_use(t, exact, None)
    averages = oracle.each(lambda norm: norm / max(t.size, 1), norms)
    limit = data.draw(limits(averages.item()), label="clip_norm")

    def call(t: Any, out: Any) -> Any:
        return gc.clip_by_average_norm(t, limit, out=out)

    before = bits(t)
    result = call(t, None)
    assert np.array_equal(bits(t), before)
    check_array(result, t)
    check_clipped(result, t, number(limit), averages, hidden_norms(norms, exact), near_limit(averages, number(limit)))
    check_out(data, call, t, result)


# ---- clip_by_global_norm and global_norm


@st.composite
def lists(draw: Any, dtype: Any, others: list[Any]) -> list[Any]:
    """Tensors of one dtype mostly, among them others, None and IndexedSlices."""
    dtypes = st.one_of(st.just(dtype), st.just(dtype), st.sampled_from(others))
    finite = draw(st.booleans())
    if draw(st.integers(0, 3)) == 0:
        return draw(views_of_one(dtype, finite=finite))
    t_list: list[Any] = [draw(tensors(dtype, finite=finite))]
    for kind in draw(st.lists(st.sampled_from(["tensor", "tensor", "none", "slices", "again"]), max_size=3)):
        t = None if kind == "none" else draw(tensors(draw(dtypes), finite=finite))
        if kind == "slices" and t is not None and t.ndim:
            t = gc.IndexedSlices(t, np.arange(len(t)))
        t_list.insert(draw(st.integers(0, len(t_list))), t_list[0] if kind == "again" else t)
    return t_list


def arrays(t_list: list[Any]) -> list[Any]:
    return [t.values if isinstance(t, gc.IndexedSlices) else t for t in t_list]


GLOBAL_ORDS = st.sampled_from([2, 2, 2, 1, math.inf, 0.5, 1.5, 3, 4, 3.7, 100, 1e-3])


@pytest.mark.sampled
@scaled
@given(data=st.data())
def test_clip_by_global_norm(dtype: Any, data: Any) -> None:
    t_list = data.draw(lists(dtype, SCALED), label="t_list")
    p = data.draw(GLOBAL_ORDS, label="ord")
    trusted = data.draw(st.integers(0, 3)) == 0
    exact = oracle.exact_global_norm(arrays(t_list), p)
    limit = data.draw(limits(exact), label="clip_norm")
    use_norm = data.draw(st.one_of(limits(exact), st.just(math.nan)), label="use_norm") if trusted else None
    before = [None if a is None else bits(a) for a in arrays(t_list)]
    sequence = data.draw(st.sampled_from([list, tuple]))(t_list)
    clipped, norm = gc.clip_by_global_norm(sequence, limit, use_norm, ord=p)

    assert type(clipped) is list
    assert type(norm) is float
    if trusted:
        held_to = oracle.mp.mpf(number(use_norm))
        assert norm == number(use_norm) or (math.isnan(norm) and mp.isnan(held_to))
    else:
        assert norm == gc.global_norm(t_list, ord=p) or math.isnan(norm)
        assert_norm(norm, exact, p)
        in_range = oracle.SMALLEST_NORMAL <= norm < math.inf
        held_to = mp.mpf(norm) if in_range else exact
    known = trusted or (mp.isfinite(exact) and held_to is not exact) or not mp.isfinite(exact)
    assert len(clipped) == len(t_list)
    for result, t, x, bits_before in zip(clipped, t_list, arrays(t_list), before, strict=True):
        if t is None:
            assert result is None
            continue
        assert np.array_equal(bits(x), bits_before)
        values = _values(result, t)
        check_array(values, x)
        check_global(values, x, number(limit), held_to, p, known=known)
    if data.draw(st.booleans()):
        check_out_list(
            data, t_list, clipped, lambda out: gc.clip_by_global_norm(t_list, limit, use_norm, ord=p, out=out)
        )


def _values(result: Any, t: Any) -> np.ndarray:
    if not isinstance(t, gc.IndexedSlices):
        return result
    assert type(result) is gc.IndexedSlices
    assert result.indices is t.indices
    assert result.dense_shape == t.dense_shape
    return result.values


def check_global(result: np.ndarray, x: np.ndarray, limit: float, norm: Any, p: float, *, known: bool) -> None:
    if limit == math.inf:
        assert same_bits(result, oracle.native(x))
        return
    if not mp.isfinite(norm):
        assert oracle.is_nan(result).all()
        return
    # The sign of a NaN of the data is not fixed, so results that are NaN are left out.
    check_signs(result, x)
    at_limit = not known and abs(norm - min(limit, MAX)) <= 2 * oracle.NORM_ERROR / min(p, 1) * norm
    if oracle.to_float64(norm) <= limit and not at_limit:
        assert same_bits(result, oracle.native(x))
    error = 0 if known else oracle.NORM_ERROR / min(p, 1) / oracle.eps(x.dtype)
    assert_within_ulp(result, oracle.exact_global_clip(x, limit, norm), allowed_ulps(x.dtype) + error)


def check_out_list(data: Any, t_list: list[Any], clipped: list[Any], call: Callable[[Any], Any]) -> None:
    outs = []
    for t, x in zip(t_list, arrays(t_list), strict=True):
        if t is None:
            outs.append(None)
            continue
        choice = [f for name, f in layouts.WRITEABLE.items() if layouts.fits(name, x)]
        out = data.draw(st.sampled_from(choice))(garbage(x))
        outs.append(gc.IndexedSlices(out, t.indices, t.dense_shape) if isinstance(t, gc.IndexedSlices) else out)
    again, _ = call(outs)
    for result, out, first in zip(again, outs, clipped, strict=True):
        assert result is out
        if out is not None:
            same = [plain(r.values if isinstance(r, gc.IndexedSlices) else r) for r in (out, first)]
            assert same_bits(*same)


@pytest.mark.sampled
@scaled
@given(data=st.data())
def test_a_list_clipped_in_place(dtype: Any, data: Any) -> None:
    """Also to its own norm, which changes nothing."""
    t_list = [data.draw(tensors(dtype, writeable=True), label="t") for _ in range(data.draw(st.integers(1, 3)))]
    norm = gc.global_norm(t_list)
    before = [bits(t) for t in t_list]
    limit = norm if data.draw(st.booleans()) and not math.isnan(norm) else data.draw(limits(mp.mpf(norm)))
    expected, _ = gc.clip_by_global_norm(t_list, limit)
    if limit is norm and math.isfinite(norm):
        assert all(np.array_equal(bits(a), b) for a, b in zip(expected, before, strict=True))
    clipped, _ = gc.clip_by_global_norm(t_list, limit, out=t_list)
    for result, t, right in zip(clipped, t_list, expected, strict=True):
        assert result is t
        assert same_bits(plain(t), right)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", NORMED)
@given(data=st.data())
def test_global_norm(dtype: Any, data: Any) -> None:
    t_list = data.draw(lists(dtype, NORMED), label="t_list")
    p = data.draw(GLOBAL_ORDS, label="ord")
    norm = gc.global_norm(t_list, ord=p)
    assert type(norm) is float
    assert_norm(norm, oracle.exact_global_norm(arrays(t_list), p), p)


# ---- norm and normalize


def order_for(data: Any, axes: Any) -> Any:
    matrices = axes is not None and len(ints(axes)) == 2
    return data.draw(st.sampled_from(MATRIX_ORDS if matrices else VECTOR_ORDS), label="ord")


def exact_norms_of(t: np.ndarray, p: Any, axes: Any) -> np.ndarray:
    if axes is not None and len(axes) == 2:
        return oracle.exact_matrix_norms(t, p, axes)
    return oracle.exact_norms(t, power(p), axes)


def power(p: Any) -> float:
    return 2 if isinstance(p, str) else p if isinstance(p, int) else float(p)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", NORMED)
@given(data=st.data())
def test_norm(dtype: Any, data: Any) -> None:
    t = data.draw(tensors(dtype), label="tensor")
    axes = data.draw(axes_of(t.ndim, some=True), label="axis")
    p = order_for(data, axes)
    keepdims = data.draw(st.sampled_from([None, False, True]), label="keepdims")
    before = bits(t)
    result = gc.norm(t, p, axes, keepdims)
    assert np.array_equal(bits(t), before)
    exact = exact_norms_of(t, p, ints(axes))
    reduced = range(t.ndim) if axes is None else [a % t.ndim for a in ints(axes)]
    if not keepdims:
        exact = exact.reshape([n for a, n in enumerate(t.shape) if a not in reduced])
    if exact.ndim == 0 and not keepdims:
        assert type(result) is float
    else:
        assert type(result) is np.ndarray
        assert result.dtype == oracle.norm_dtype(dtype)
        assert result.dtype.isnative
    oracle.assert_norms(result, exact, power(p))


@scaled
@given(data=st.data())
def test_normalize(dtype: Any, data: Any) -> None:
    t = data.draw(tensors(dtype), label="tensor")
    axes = data.draw(axes_of(t.ndim, some=True), label="axis")
    p = order_for(data, axes)

    def call(t: Any, out: Any) -> Any:
        return gc.normalize(t, p, axes, out=out)[0]

    before = bits(t)
    result, norm = gc.normalize(t, p, axes)
    assert np.array_equal(bits(t), before)
    check_array(result, t)
    check_signs(result, t)
    assert type(norm) is np.ndarray
    assert norm.dtype == oracle.norm_dtype(dtype)
    exact = exact_norms_of(t, p, ints(axes))
    oracle.assert_norms(norm, exact, power(p))
    held_to = np.where(_in_range(norm), oracle.as_exact(norm), exact)
    if not oracle.is_wide(dtype):
        held_to = exact
    lapack = axes is not None and len(ints(axes)) == 2 and p == 2
    # The error of the norm, where the norm is not returned.
    unknown = hidden_norms(held_to, exact).any()
    error = oracle.NORM_ERROR / min(power(p), 1) / oracle.eps(dtype) if unknown else 0
    assert_within_ulp(result, oracle.exact_quotient(t, held_to), allowed_ulps(dtype) + error)
    if not lapack:  # which need not repeat its last bit
        check_out(data, call, t, result)


def _in_range(norm: np.ndarray) -> np.ndarray:
    return (norm >= sys.float_info.min) & np.isfinite(norm)


# ---- clip_by_value


FLOAT_BOUNDS = [np.float16, BF16, np.float32, np.float64, np.longdouble]


@st.composite
def bounds(draw: Any, t: np.ndarray) -> Any:
    """None, a number of any kind, or an array that broadcasts to t's shape; no float for an integer t."""
    own = oracle.native(t).dtype
    floats = oracle.is_float(own)
    near = oracle.native(t).ravel()[: 1 + draw(st.integers(0, 4))]
    pool: list[Any] = [v.item() if own.type is not BF16 else float(v) for v in near]
    pool += draw(st.lists(st.one_of(st.integers(-9, 9), st.integers(-(2**66), 2**66)), min_size=1, max_size=3))
    if floats:
        reach = oracle.largest(own)
        pool += [0.0, -0.0, reach, -reach, math.inf, -math.inf, math.nan, 1e300, -1e300]
        pool += [draw(st.floats(-10, 10)), draw(st.floats())]
        # Halfway between two numbers of t's dtype and a little beyond, where rounding twice goes wrong.
        pool += [1 + oracle.eps(own) / 2 * (1 + 2.0**-30), -1 - oracle.eps(own) / 2, 10**400, -(10**400)]
    else:
        pool += [np.iinfo(own).min, np.iinfo(own).max, np.iinfo(own).max + 1, 10**30, -(10**30)]
    form = draw(st.sampled_from(["none", "number", "scalar", "0-d", "array", "array", "list"]))
    if form == "none":
        return None
    if form == "number":
        return draw(st.sampled_from(pool))
    shape = tuple(draw(st.sampled_from([1, n])) for n in t.shape)[draw(st.integers(0, t.ndim)) :]
    if form in {"scalar", "0-d"}:
        shape = ()
    some = [draw(st.sampled_from(pool)) for _ in range(3)]
    if floats and draw(st.booleans()):
        dtype = np.dtype(draw(st.sampled_from(FLOAT_BOUNDS)))
        with np.errstate(over="ignore", under="ignore", invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = np.resize(np.array([number(v) for v in some]).astype(dtype), shape).reshape(shape)
    else:
        dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
        info = np.iinfo(dtype)
        whole = [int(v) if isinstance(v, int) or math.isfinite(v) else 3 for v in some]
        inside = [min(max(v, info.min), info.max) for v in whole]
        array = np.resize(np.array(inside, dtype=dtype), shape).reshape(shape)
    if form == "scalar":
        return array[()]
    if form == "list" and array.size:
        listed = array.astype(np.float64).tolist() if oracle.is_float(dtype) else array.tolist()
        # NumPy makes floats of integers that no dtype holds all.
        return listed if floats or np.asarray(listed).dtype.kind in "iu" else array
    choice = [f for name, f in layouts.ALL.items() if layouts.fits(name, array)]
    return draw(st.sampled_from(choice))(array)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ORDERED)
@given(data=st.data())
def test_clip_by_value(dtype: Any, data: Any) -> None:
    t = data.draw(tensors(dtype), label="t")
    low, high = data.draw(bounds(t), label="clip_value_min"), data.draw(bounds(t), label="clip_value_max")
    assume(low is not None or high is not None)

    def call(t: Any, out: Any) -> Any:
        return gc.clip_by_value(t, low, high, out=out)

    before = bits(t)
    result = call(t, None)
    assert np.array_equal(bits(t), before)
    check_array(result, t)
    expected = oracle.expected_clip_by_value(t, low, high)
    if oracle.is_float(dtype):
        own = oracle.is_nan(t)
        assert np.array_equal(bits(result)[own], bits(t)[own])
        assert oracle.same_values(result, expected)
    else:
        assert same_bits(result, expected)
    check_out(data, call, t, result)
    check_slices(data, call, t, result)


# ---- IndexedSlices


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", NORMED)
@given(data=st.data())
def test_coalesce_and_to_dense(dtype: Any, data: Any) -> None:
    t = data.draw(tensors(dtype).filter(lambda t: t.ndim), label="values")
    size = data.draw(st.integers(1, 4))
    rows = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=len(t), max_size=len(t))), dtype=np.int64)
    s = gc.IndexedSlices(t, rows, (size, *t.shape[1:]))
    merged, dense = s.coalesce(), s.to_dense()
    assert merged.indices.tolist() == sorted(set(rows.tolist()))
    assert merged.dense_shape == s.dense_shape
    assert type(dense) is np.ndarray
    assert dense.shape == s.dense_shape
    assert dense.dtype == merged.values.dtype == oracle.native(t).dtype
    for k, index in enumerate(merged.indices.tolist()):
        expected = summed(oracle.native(t)[rows == index])
        assert oracle.same_values(merged.values[k], expected)
        assert oracle.same_values(dense[index], expected)
    empty = [k for k in range(size) if k not in rows]
    assert not dense[empty].any()


def summed(rows: np.ndarray) -> np.ndarray:
    """One row after the other: integers as NumPy adds them, other dtypes in float64, rounded once."""
    with np.errstate(over="ignore", invalid="ignore"):
        if rows.dtype.kind in "biu":
            total = rows[0].copy()
            for row in rows[1:]:
                total = np.add(total, row)
            return total
        wide = oracle.parts(rows).astype(np.float64)
        total = wide[0].copy()
        for row in wide[1:]:
            total += row
    narrow = np.empty(total.shape, dtype=oracle.part(rows.dtype))
    for where in np.ndindex(total.shape):
        narrow[where] = np.float64(oracle.rounded(total[where], narrow.dtype)).astype(narrow.dtype)
    if rows.dtype.kind == "c":
        return np.ascontiguousarray(narrow).view(rows.dtype).reshape(rows.shape[1:])
    return narrow


def test_the_lists_of_dtypes_are_complete() -> None:
    """A dtype that is missing from these lists would not be tested."""
    config = _core.config()
    for dtypes, functions in ((ORDERED, "clip_by_value"), (SCALED, "clip_by_norm"), (NORMED, "norm")):
        assert {np.dtype(dtype).name for dtype in dtypes} == set(config[f"{functions}_dtypes"])
    assert {*FLOATS, *COMPLEX} == set(SCALED)
