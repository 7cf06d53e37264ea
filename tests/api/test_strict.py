"""strict=True: no exact norm of what comes back is above the limit.

The bound is checked with integers and fractions. Nothing here rounds on the way to a verdict.
"""

import itertools
import math
from fractions import Fraction

import gradclip as gc
import layouts
import numpy as np
import oracle
import pytest
from calls import cast, looped
from draws import axes_of, ints, limits, number, tensors, views_of_one
from hypothesis import given
from hypothesis import strategies as st
from oracle import BF16, FLOATS, SCALED, bits, mp, same_bits, squared_norms

dtypes = pytest.mark.parametrize("dtype", SCALED)

MARGIN = 1e-13  # of the limit: what has a norm up to that much below keeps its bits
ROOM = 1.2e-14  # the error of a norm, and some
NEAR = [1, 1 - 1e-16, 1 + 2.3e-16, 1 - 3e-14, 1 + 3e-14, *(1 - k * MARGIN for k in (0.5, 0.9, 1.1, 1.9, 2.1, 3))]


def at_most(limit):
    """The largest square of a norm."""
    return Fraction(limit) ** 2


def check(results, tensors, limit, axes=None):
    """Of tensors that have one norm together (or each slice its own): the bound, what is untouched, what is scaled.

    A result that is scaled is the product of the tensor and limit * (1 - 2 * MARGIN) / norm, rounded toward zero.
    """
    if math.isinf(limit):
        assert all(same_bits(result, t) for result, t in zip(results, tensors, strict=True))
        return
    if axes is None:
        norms = np.array(oracle.exact_global_norm(tensors), dtype=object)
        squares = np.asarray(sum(squared_norms(result).sum() for result in results), dtype=object)
    else:
        (t,), (result,) = tensors, results
        norms, squares = oracle.exact_norms(t, 2, axes), squared_norms(result, axes)
    assert all(square <= at_most(limit) for square in squares.ravel()), (tensors, limit)
    changes = oracle.each(lambda norm: norm > mp.mpf(limit) * (1 - MARGIN - ROOM), norms).astype(bool)
    has_to_change = oracle.each(lambda norm: norm > mp.mpf(limit) * (1 - MARGIN + ROOM), norms).astype(bool)
    goal = mp.mpf(limit) * (1 - 2 * mp.mpf(MARGIN))
    factors = oracle.each(lambda norm: goal / norm if norm else mp.mpf(1), norms)
    for result, t in zip(results, tensors, strict=True):
        full, changed, must = (np.broadcast_to(a, t.shape) for a in (factors, changes, has_to_change))
        assert result.dtype == oracle.native(t).dtype
        assert np.array_equal(oracle.signs(result), oracle.signs(t))
        for where in np.ndindex(t.shape):
            if not changed[where]:
                assert same_bits(result[where], t[where])
            elif must[where] or not same_bits(result[where], t[where]):
                check_product(result[where], t[where], full[where])


def check_product(result, t, factor):
    wide = oracle.is_wide(t.dtype)
    for own, part in zip(oracle.parts(result).ravel(), oracle.exact_parts(t).ravel(), strict=True):
        exact = mp.mpf(float(part)) * factor
        # One rounding toward zero; three to nearest in float64. A norm has an error of its own.
        ulps = (4 if wide else 1) + oracle.NORM_ERROR / oracle.eps(t.dtype)
        assert oracle.ulp_diff(own, exact) <= ulps, (own, exact)
        if not wide or abs(exact) < oracle.SMALLEST_NORMAL:
            assert abs(mp.mpf(float(own))) <= abs(exact) * (1 + 4 * oracle.NORM_ERROR), (own, exact)


@st.composite
def limits_near(draw, norm):
    """Any limit, and often one at which a rounding decides."""
    near = oracle.to_float64(norm)
    if not 0 < near < math.inf or draw(st.booleans()):
        return number(draw(limits(norm)))
    return near * draw(st.sampled_from(NEAR))


# ---- any tensor, any limit


@pytest.mark.sampled
@dtypes
@given(data=st.data())
def test_no_slice_is_above_the_limit(dtype, data):
    t = data.draw(tensors(dtype, finite=True), label="t")
    axes = data.draw(axes_of(t.ndim), label="axes")
    norms = oracle.exact_norms(t, 2, ints(axes))
    limit = data.draw(limits_near(norms.flat[0] if norms.size else mp.mpf(1)), label="limit")
    result = gc.clip_by_norm(t, limit, axes, strict=True)
    check([result], [t], limit, range(t.ndim) if axes is None else ints(axes))
    assert same_bits(gc.clip_by_norm(result, limit, axes, strict=True), result)
    layout = data.draw(st.sampled_from([f for name, f in layouts.WRITEABLE.items() if layouts.fits(name, t)]))
    out = layout(np.zeros_like(result))
    assert same_bits(gc.clip_by_norm(t, limit, axes, strict=True, out=out), result)


@given(data=st.data())
def test_no_list_is_above_the_limit(data):
    chosen = data.draw(st.lists(st.sampled_from([None, *SCALED]), max_size=4), label="dtypes")
    t_list = [dtype and data.draw(tensors(dtype, finite=True)) for dtype in chosen]
    present = [t for t in t_list if t is not None]
    limit = data.draw(limits_near(oracle.exact_global_norm(present)), label="limit")
    results, norm = gc.clip_by_global_norm(t_list, limit, strict=True)
    assert [result is None for result in results] == [t is None for t in t_list]
    own = [result for result in results if result is not None]
    check(own, present, limit)
    assert norm == gc.global_norm(t_list)
    again, _ = gc.clip_by_global_norm(results, limit, strict=True)
    assert all(same_bits(a, b) for a, b in zip(again, results, strict=True) if b is not None)
    given_norm, _ = gc.clip_by_global_norm(t_list, limit, norm, strict=True)
    if math.isfinite(norm) and norm >= float(oracle.SMALLEST_NORMAL):  # others lose digits on the way out
        assert all(same_bits(a, b) for a, b in zip(given_norm, results, strict=True) if b is not None)


@pytest.mark.sampled
@dtypes
@given(data=st.data())
def test_no_list_of_views_is_above_the_limit(dtype, data):
    t_list = data.draw(views_of_one(dtype, finite=True), label="t_list")
    limit = data.draw(limits_near(oracle.exact_global_norm(t_list)), label="limit")
    check(gc.clip_by_global_norm(t_list, limit, strict=True)[0], t_list, limit)


# ---- many slices


def rows(dtype, count, width, exponent=0):
    """Rows of like sizes: of random numbers times 2**exponent."""
    x = np.random.default_rng(count + width).standard_normal((count, width)) * 2.0**exponent
    return cast(x, dtype)


def check_slices(result, x, limit, axes):
    """The bound of each slice, and a result that differs from the non-strict one by no more than a rounding."""
    assert (squared_norms(result, axes) <= at_most(limit)).all()
    own, nearest = oracle.exact_parts(result), oracle.exact_parts(gc.clip_by_norm(x, limit, axes))
    slack = 3 * MARGIN if oracle.is_wide(x.dtype) else oracle.eps(x.dtype)
    assert (np.abs(own - nearest) <= slack * np.abs(nearest) + oracle.tiny(x.dtype)).all()


def middle(x, axes):
    """A limit that half of the slices exceed."""
    squares = oracle.each(lambda square: math.sqrt(square), squared_norms(x, axes)).astype(float)
    return float(np.sort(squares.ravel())[squares.size // 2])


@pytest.mark.sampled
@dtypes
@looped("width", [1, 2, 3, 4, 7, 8, 9, 16, 17, 31, 33, 64, 130, 300])
def test_rows_and_columns_of_every_width(dtype, width):
    x = rows(dtype, 70, width)
    for layout in (layouts.contiguous, layouts.fortran, layouts.backwards, layouts.every_second, layouts.swapped_bytes):
        for limit in (middle(x, 1), middle(x, 1) / 3):
            for data, axis in ((layout(x), 1), (layout(np.ascontiguousarray(x.T)), 0)):
                result = gc.clip_by_norm(data, limit, axis, strict=True)
                check_slices(result, data, limit, axis)
                assert same_bits(gc.clip_by_norm(result, limit, axis, strict=True), result)
                own = layout(data)
                assert gc.clip_by_norm(own, limit, axis, strict=True, out=own) is own
                assert same_bits(np.asarray(own), result)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
@looped("shape", [(5, 200), (40, 130), (3, 40, 129), (700, 150), (1030, 140), (3, 1, 500)])
def test_strips_of_columns(dtype, shape):
    x = rows(dtype, math.prod(shape[:-1]), shape[-1]).reshape(shape)
    limit = middle(x, -2)
    result = gc.clip_by_norm(x, limit, -2, strict=True)
    check_slices(result, x, limit, -2)
    own = x.copy()
    assert same_bits(gc.clip_by_norm(own, limit, -2, strict=True, out=own), result)


@dtypes
@pytest.mark.parametrize("axes", [c for k in range(4) for c in itertools.combinations(range(3), k)])
def test_any_axes(dtype, axes):
    x = rows(dtype, 20, 30).reshape(4, 5, 30)
    limit = middle(x, axes)
    for data in (x, layouts.transposed(x), layouts.fortran(x)):
        check_slices(gc.clip_by_norm(data, limit, axes, strict=True), data, limit, axes)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_rows_that_are_longer_than_a_chunk(dtype):
    x = rows(dtype, 3, 131_080)
    limit = middle(x, 1) / 2
    check_slices(gc.clip_by_norm(x, limit, 1, strict=True), x, limit, 1)


@dtypes
def test_the_tests_above_would_see_rounding_to_nearest(dtype):
    """Without strict=True many rows exceed the limit: half of the narrow ones, some of float64."""
    x = rows(dtype, 400, 16)
    limit = middle(x, 1) / 10
    above = squared_norms(gc.clip_by_norm(x, limit, 1), 1) > at_most(limit)
    assert above.mean() > 0.05
    if not oracle.is_wide(dtype):
        assert above.mean() > 0.3


# ---- the ends of the range


def ends(dtype):
    """Limits from one end of float64 to the other, and powers of two by which tensors exceed them."""
    smallest, largest = int(math.log2(oracle.tiny(dtype))), int(math.log2(oracle.largest(dtype)))
    for exponent in (smallest, smallest + 2, smallest + 8, smallest // 2, 0, largest // 2, largest - 4):
        yield rows(dtype, 24, 5, exponent)


@dtypes
def test_tensors_from_one_end_of_the_dtype_to_the_other(dtype):
    for x in ends(dtype):
        norms = [float(mp.sqrt(mp.mpf(s.numerator) / s.denominator)) for s in squared_norms(x, 1).ravel() if s]
        for limit in {*(max(norms) * k for k in (1, 0.99, 0.5, 1e-3, 1e-9)), min(norms), 5e-324, 1.5e-323, 1e-300}:
            if 0 < limit < math.inf:
                check_slices(gc.clip_by_norm(x, limit, 1, strict=True), x, limit, 1)
                check_slices(gc.clip_by_norm(np.asfortranarray(x), limit, 1, strict=True), x, limit, 1)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@looped("limit", [k * 10.0**e for e in range(-300, 301, 25) for k in (1, 3.7)] + [k * 5e-324 for k in range(1, 40)])
def test_limits_from_one_end_of_float64_to_the_other(dtype, limit):
    for above in (1.0, 1 + 1e-15, 1.5, 1e3, 1e200):
        if limit * above < 1e305:
            x = cast(np.array([0.1, -0.7, 0.69, -0.0, 1e-5]), dtype) * (limit * above)
            check([gc.clip_by_norm(x, limit, strict=True)], [x], limit)


@dtypes
def test_subnormal_results_are_rounded_toward_zero(dtype):
    """To nearest, an ulp of a subnormal is much of it: three times (1, 1) * tiny clipped to 1.5 * tiny would stay."""
    tiny = oracle.tiny(dtype)
    x = (np.array([1.0, 1.0, 1.0, 0.0]) * tiny).astype(dtype)
    for k in (1.0, 1.5, 1.7):  # the norm is 1.732
        limit = k * tiny
        if limit / tiny != k:
            continue  # float64 has no such limit
        result = gc.clip_by_norm(x, limit, strict=True)
        assert not result.any()
        assert squared_norms(gc.clip_by_norm(x, limit)).item() > at_most(limit)
    for axes in (None, (), 0):
        one = np.ones((1, 1), dtype)
        assert gc.clip_by_norm(one, 5 * tiny, axes) == 5 * tiny
        assert gc.clip_by_norm(one, 5 * tiny, axes, strict=True) == 4 * tiny
    many = np.full(10_000, 3 * tiny).astype(dtype)
    limit = 290 * tiny
    assert squared_norms(gc.clip_by_norm(many, limit)).item() > at_most(limit)
    assert (gc.clip_by_norm(many, limit, strict=True) == 2 * tiny).all()


# ---- at the limit


@dtypes
def test_a_norm_up_to_the_margin_below_the_limit_changes_nothing(dtype):
    exponents = [k for k in (-1073, -1000, -140, -24, -10, 0, 10, 100, 1000) if fits(dtype, 2.0**k, 4 * 2.0**k)]
    assert len(exponents) > 1
    for scale in (2.0**k for k in exponents):
        x = oracle.numbers([3 * scale, -4 * scale, 0, -0.0], np.float64).astype(dtype)
        norm = 5 * scale
        assert squared_norms(x).item() == at_most(norm)
        above = max(norm * (1 + 1.2e-13), math.nextafter(norm, math.inf))  # subnormal
        for t, axes in ((x, 0), (x[None], 1), (x[:, None], 0), (x[None], (0, 1))):
            for limit in (above, norm * 2, math.inf):
                assert same_bits(gc.clip_by_norm(t, limit, strict=True), t)
                assert same_bits(gc.clip_by_norm(t, limit, axes, strict=True), t)
                assert same_bits(gc.clip_by_global_norm([t], limit, strict=True)[0][0], t)
            for limit in (norm, norm * 0.75):
                result = gc.clip_by_norm(t, limit, axes, strict=True)
                check([result], [t], limit)
                assert not same_bits(result, t)


def fits(dtype, least, most):
    return oracle.tiny(dtype) <= least and most <= oracle.largest(dtype)


def test_a_subnormal_norm_is_compared_before_it_is_rounded():
    """The norm of three smallest numbers is 1.732 of them; as float64 it is 2."""
    tiny = 5e-324
    x = np.full(3, tiny)
    assert gc.norm(x) == 2 * tiny
    assert same_bits(gc.clip_by_norm(x, 2 * tiny, strict=True), x)
    assert not gc.clip_by_norm(x, tiny, strict=True).any()
    y = np.full(5, tiny)  # 2.236, as float64 2
    assert gc.norm(y) == 2 * tiny
    assert same_bits(gc.clip_by_norm(y, 2 * tiny), y)
    assert not gc.clip_by_norm(y, 2 * tiny, strict=True).any()
    assert not gc.clip_by_global_norm([y[:2], y[2:]], 2 * tiny, strict=True)[0][1].any()


@dtypes
def test_a_limit_of_zero_makes_zeros_and_an_infinite_one_changes_nothing(dtype):
    x = oracle.numbers([-3.0, 4.0, -0.0, oracle.tiny(dtype)], dtype)
    for axes in (None, 0, ()):
        zeros = gc.clip_by_norm(x, 0, axes, strict=True)
        assert not zeros.any()
        assert np.array_equal(oracle.signs(zeros), oracle.signs(x))
        assert same_bits(gc.clip_by_norm(x, math.inf, axes, strict=True), x)
        assert same_bits(gc.clip_by_norm(zeros, 0, axes, strict=True), zeros)
    assert gc.clip_by_norm(x[:0], 1.0, strict=True).shape == (0,)
    assert gc.clip_by_global_norm([], 1.0, strict=True) == ([], 0.0)


# ---- NaN and infinity


@dtypes
@looped("limit", [0.0, 0.5, 1.0, 2.0, 4.0, 1e9, 1e300, math.inf])
def test_nan_and_infinity_do_what_they_do_without_it(dtype, limit):
    for bad in (np.nan, np.inf, -np.inf):
        x = np.array([[bad, 1.0, -0.0], [1.0, 2.0, 3.0]]).astype(dtype)
        for nonfinite in ("propagate", "zero"):
            for axes in (None, (0, 1)):
                strict, loose = (gc.clip_by_norm(x, limit, axes, nonfinite=nonfinite, strict=s) for s in (True, False))
                assert oracle.same_values(strict, loose), (bad, nonfinite, axes)
            for axes in (0, 1, ()):
                strict, loose = (gc.clip_by_norm(x, limit, axes, nonfinite=nonfinite, strict=s) for s in (True, False))
                nan = np.isnan(oracle.exact_parts(loose))
                assert np.array_equal(nan, np.isnan(oracle.exact_parts(strict))), (bad, nonfinite, axes)
                assert np.array_equal(oracle.signs(strict)[~nan], oracle.signs(loose)[~nan])
                assert np.array_equal(strict == 0, loose == 0)
            (strict, norm), (loose, _) = (
                gc.clip_by_global_norm([x], limit, nonfinite=nonfinite, strict=s) for s in (True, False)
            )
            assert not math.isfinite(norm)
            assert oracle.same_values(strict[0], loose[0])
        if limit < math.inf:
            with pytest.raises(gc.NonFiniteError):
                gc.clip_by_norm(x, limit, nonfinite="raise", strict=True)


# ---- lists


def test_tensors_of_all_dtypes_have_one_bound():
    rng = np.random.default_rng(5)
    for _ in range(60):
        t_list = [None, *(cast(rng.standard_normal(rng.integers(1, 40)), dtype) for dtype in rng.permutation(SCALED))]
        limit = gc.global_norm(t_list) * rng.choice([1, 0.999, rng.random(), 1e-3])
        expected, norm = gc.clip_by_global_norm(t_list, limit, strict=True)
        assert sum(squared_norms(t).item() for t in expected if t is not None) <= at_most(limit)
        outs = [None if t is None else layouts.swapped_bytes(np.zeros_like(t)) for t in t_list]
        for out in (outs, t_list):
            given_norm, same = gc.clip_by_global_norm(t_list, limit, norm, strict=True, out=out)
            assert same == norm
            assert all(a is b for a, b in zip(given_norm, out, strict=True))
            assert all(same_bits(a, b) for a, b in zip(given_norm, expected, strict=True) if a is not None)
    loose = [cast(rng.standard_normal(30), dtype) for dtype in (np.float16, BF16)]
    above = [
        sum(squared_norms(t).item() for t in gc.clip_by_global_norm(loose, limit)[0]) > at_most(limit)
        for limit in rng.random(50)
    ]
    assert any(above)  # so that the bound above is not that of any clip


@pytest.mark.parametrize("count", [1, 7, 8, 100])
@pytest.mark.parametrize("dtype", FLOATS)
def test_columns_of_a_matrix_and_many_small_tensors(dtype, count):
    matrix = rows(dtype, 64, count)
    limit = gc.norm(matrix) * 0.3
    for t_list in (list(matrix.T), list(np.ascontiguousarray(matrix.T)), [column[::2] for column in matrix.T]):
        expected, _ = gc.clip_by_global_norm([t.copy() for t in t_list], limit, strict=True)
        results, _ = gc.clip_by_global_norm(t_list, limit, strict=True)
        assert sum(squared_norms(t).item() for t in results) <= at_most(limit)
        assert all(same_bits(a, b) for a, b in zip(results, expected, strict=True))
        own = [t.copy() for t in t_list]
        gc.clip_by_global_norm(own, limit, strict=True, out=own)
        assert all(same_bits(a, b) for a, b in zip(own, expected, strict=True))


def test_integers_that_are_kept_count_nothing():
    counter, x = np.array([7, 8]), np.array([3.0, 4.0], np.float32)
    (kept, clipped), norm = gc.clip_by_global_norm([counter, x], 1 / 3, strict=True, integers="keep")
    assert norm == 5.0
    assert same_bits(kept, counter)
    assert squared_norms(clipped).item() <= at_most(1 / 3)


@dtypes
def test_the_stored_values_of_slices_are_bounded(dtype):
    values = rows(dtype, 50, 6)
    s = gc.IndexedSlices(values, np.arange(50) % 7, (9, 6))
    limit = middle(values, 1)
    each = gc.clip_by_norm(s, limit, 1, strict=True)
    check_slices(each.values, values, limit, 1)
    whole = gc.clip_by_norm(s, limit, strict=True)
    assert same_bits(whole.values, gc.clip_by_norm(values, limit, strict=True))
    (found, dense), _ = gc.clip_by_global_norm([s, values], limit, strict=True)
    assert squared_norms(found.values).item() + squared_norms(dense).item() <= at_most(limit)
    assert found.indices is each.indices is whole.indices is s.indices
    out = gc.IndexedSlices(np.zeros_like(values), s.indices, (9, 6))
    assert gc.clip_by_norm(s, limit, 1, strict=True, out=out) is out
    assert same_bits(out.values, each.values)


# ---- errors

WITH_STRICT = {
    "clip_by_norm": lambda t, **more: gc.clip_by_norm(t, 1.0, out=t, **more),
    "clip_by_norm of rows": lambda t, **more: gc.clip_by_norm(t, 1.0, 1, out=t, **more),
    "clip_by_global_norm": lambda t, **more: gc.clip_by_global_norm([t], 1.0, out=[t], **more),
    "clip_examples_by_global_norm": lambda t, **more: gc.clip_examples_by_global_norm(
        [t], 1.0, reduce=None, out=[t], **more
    ),
}


@pytest.mark.parametrize("name", WITH_STRICT)
def test_a_strict_that_is_no_bool_is_a_type_error(name):
    t = np.full((2, 3), 9.0)
    start = name.split()[0]
    for strict, found in ((1, "int 1"), (None, "None"), ("True", "str 'True'"), (np.float64(1), "float64")):
        with pytest.raises(TypeError, match=rf"^{start} 'x': strict: found {found}.*; allowed: True or False$"):
            WITH_STRICT[name](t, strict=strict, name="x")
    assert (t == 9).all()


@pytest.mark.parametrize("name", WITH_STRICT)
def test_what_is_kept_has_no_bound(name):
    t = np.full((2, 3), 9.0)
    start = name.split()[0]
    with pytest.raises(ValueError, match=rf"^{start}: nonfinite: found 'keep'; allowed: .* under strict=True$"):
        WITH_STRICT[name](t, strict=True, nonfinite="keep")
    assert (t == 9).all()
    WITH_STRICT[name](t, strict=False, nonfinite="keep")
    assert (t < 9).all()


def test_another_norm_than_the_euclidean_is_not_bounded():
    t = np.full((2, 3), 9.0)
    for order in (1, math.inf, 3, 2.5):
        with pytest.raises(ValueError, match=r"^clip_by_global_norm: ord: found .*; allowed: 2 under strict=True$"):
            gc.clip_by_global_norm([t], 1.0, ord=order, strict=True, out=[t])
    assert (t == 9).all()
    expected, _ = gc.clip_by_global_norm([t], 1.0, strict=True)
    assert same_bits(gc.clip_by_global_norm([t], 1.0, ord=2.0, strict=True)[0][0], expected[0])


# ---- large arrays, instruction sets and threads


def transposed(out):
    return None if out is None else out.T


FORMS = {
    "whole": (0, lambda x, limit, out: gc.clip_by_norm(x, limit, strict=True, out=out)),
    "list": (0, lambda x, limit, out: gc.clip_by_global_norm([x], limit, strict=True, out=[out])[0][0]),
    "rows": (48, lambda x, limit, out: gc.clip_by_norm(x, limit, 1, strict=True, out=out)),
    "long rows": (2500, lambda x, limit, out: gc.clip_by_norm(x, limit, 1, strict=True, out=out)),
    "columns": (48, lambda x, limit, out: gc.clip_by_norm(x.T, limit, 0, strict=True, out=transposed(out))),
}


@pytest.mark.sampled
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, np.float64, np.complex64])
def test_large_arrays_are_bounded_and_have_the_same_bits_everywhere(dtype, form, everywhere):
    """Outputs of more than 32 MiB are streamed to memory, and arrays of more than 6 MiB shared by threads."""
    width, call = FORMS[form]
    pattern = rows(dtype, 50 if width else 1009, width or 1)
    limit = middle(pattern, 1) / 3
    for mib in (33, 7) if dtype is np.float32 else (7,):
        count = mib * 2**20 // pattern.itemsize // max(width, 1) + 1
        x = np.resize(pattern, (count, width) if width else count)
        if not width:
            limit = gc.norm(x) / 3
        result = everywhere(lambda x=x, limit=limit: [call(x, limit, None)])[0]
        result = result.T if form == "columns" else result
        # Equal rows (or elements) have equal results, so that those of the pattern stand for all.
        few = result[: len(pattern)]
        assert np.array_equal(bits(result), np.resize(bits(few), bits(result).shape))
        if width:
            check_slices(few, pattern, limit, 1)
        else:
            times, rest = divmod(len(x), len(few))
            assert times * squared_norms(few).item() + squared_norms(few[:rest]).item() <= at_most(limit)
        call(x, limit, x)
        assert np.array_equal(bits(x), bits(result))


@dtypes
def test_elements_have_the_same_bits_everywhere(dtype, everywhere):
    pattern = rows(dtype, 1009, 1)
    x = np.resize(pattern, 50_000)
    result = everywhere(lambda: [gc.clip_by_norm(x, 1 / 3, (), strict=True)])[0]
    few = result[:1009]
    assert np.array_equal(bits(result), np.resize(bits(few), bits(result).shape))
    check_slices(few, pattern[:, 0], 1 / 3, ())
