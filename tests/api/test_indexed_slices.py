"""IndexedSlices: rows of a larger array, and their treatment by the functions."""

import copy
import math
import pickle
from collections import UserList

import gradclip as gc
import ml_dtypes
import numpy as np
import oracle
import pytest
from calls import cast
from oracle import BF16, COMPLEX, FLOATS, INTEGERS, NORMED, SCALED, assert_norm, numbers, same_bits, same_values

VALUES = np.array([[3.0, 4.0], [0.3, -0.4], [6.0, -8.0]])
ROWS = np.array([4, 0, 4])


def slices(dtype=np.float64, dense_shape=(6, 2)):
    return gc.IndexedSlices(cast(VALUES, dtype), ROWS, dense_shape)


# ---- construction


def test_the_parts_are_attributes():
    s = slices()
    assert same_bits(s.values, VALUES)
    assert same_bits(s.indices, ROWS)
    assert tuple(s.dense_shape) == (6, 2)
    assert gc.IndexedSlices(VALUES, ROWS).dense_shape is None
    assert gc.IndexedSlices(values=VALUES, indices=ROWS, dense_shape=[6, 2]) == s


@pytest.mark.parametrize("shape", [(0,), (3,), (3, 1), (2, 3, 4), (0, 5)])
def test_values_have_any_shape_with_rows(shape):
    s = gc.IndexedSlices(np.zeros(shape), np.arange(shape[0]))
    assert s.values.shape == shape


@pytest.mark.parametrize("dtype", INTEGERS)
def test_indices_have_any_integer_dtype(dtype):
    assert gc.IndexedSlices(VALUES, ROWS.astype(dtype)).indices.dtype == dtype


@pytest.mark.parametrize("indices", [[], (), np.zeros(0, np.int32)])
@pytest.mark.parametrize("dense_shape", [(0, 2), (6, 2), np.array([6, 2])])
def test_there_may_be_no_rows(indices, dense_shape):
    s = gc.IndexedSlices(np.zeros((0, 2)), indices, dense_shape)
    assert s.indices.dtype.kind == "i"
    assert s.dense_shape == tuple(dense_shape)
    assert same_bits(s.to_dense(), np.zeros(dense_shape))


def test_wrong_shapes_are_value_errors():
    for values, indices, dense_shape in (
        (np.float64(1.0), np.array(0), None),
        (VALUES, np.array([0, 1]), None),
        (VALUES, np.array([[0, 1, 2]]), None),
        (VALUES, np.array(1), None),
        (VALUES, ROWS, (6,)),
        (VALUES, ROWS, (6, 2, 1)),
        (VALUES, ROWS, (6, 3)),
        (VALUES, ROWS, (-1, 2)),
        (VALUES, ROWS, (2**63, 2)),
        (VALUES, ROWS, ()),
    ):
        with pytest.raises(ValueError, match="IndexedSlices"):
            gc.IndexedSlices(values, indices, dense_shape)


def test_wrong_dtypes_are_type_errors():
    for values, indices, dense_shape in (
        (VALUES, np.array([0.0, 1.0, 2.0]), None),
        (VALUES, np.array([True, False, True]), None),
        (VALUES, np.array(["a", "b", "c"]), None),
        (VALUES.astype(object), ROWS, None),
        (np.array(["a", "b", "c"]), ROWS, None),
        (VALUES.astype(np.longdouble), ROWS, None),
        (VALUES.astype(np.clongdouble), ROWS, None),
        (VALUES.astype(ml_dtypes.float8_e4m3fn), ROWS, None),
        (VALUES.astype("M8[s]"), ROWS, None),
        (VALUES, ROWS.astype(BF16), None),
        (np.ma.masked_array(VALUES), ROWS, None),
        (VALUES.astype(ml_dtypes.float8_e5m2), ROWS, None),
        (VALUES.astype(np.longdouble), ROWS, None),
        (None, ROWS, None),
        (VALUES, None, None),
        (VALUES, ROWS, (6.0, 2.0)),
        (VALUES, ROWS, "62"),
    ):
        with pytest.raises(TypeError, match="IndexedSlices"):
            gc.IndexedSlices(values, indices, dense_shape)


def test_the_message_names_the_part():
    with pytest.raises(ValueError, match="indices"):
        gc.IndexedSlices(VALUES, np.array([0, 1]))
    with pytest.raises(TypeError, match=r"indices.*float64"):
        gc.IndexedSlices(VALUES, np.zeros(3))
    with pytest.raises(ValueError, match="dense_shape"):
        gc.IndexedSlices(VALUES, ROWS, (6, 3))


@pytest.mark.parametrize("kind", [list, tuple, UserList])
def test_a_list_that_is_no_array_is_an_error_that_names_the_part(kind):
    deep = 1
    for _ in range(70):
        deep = kind([deep])
    for wrong, message in ((deep, "found a list nested too deep; "), (kind([[1, 2], [3]]), "found a ragged list; ")):
        for part, call in {
            "values": lambda wrong=wrong: gc.IndexedSlices(wrong, [0]),
            "indices": lambda wrong=wrong: gc.IndexedSlices(VALUES, wrong),
        }.items():
            with pytest.raises(ValueError, match=f"^IndexedSlices: {part}: {message}"):
                call()


# ---- the object


def test_it_is_immutable():
    s = slices()
    for part in ("values", "indices", "dense_shape", "another"):
        with pytest.raises(AttributeError):
            setattr(s, part, VALUES)
    with pytest.raises(AttributeError):
        del s.values


def test_it_prints_like_a_dataclass():
    assert repr(slices()) == f"IndexedSlices(values={VALUES!r}, indices={ROWS!r}, dense_shape=(6, 2))"
    assert repr(gc.IndexedSlices(VALUES, ROWS)).endswith("dense_shape=None)")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_pickles(protocol):
    for s in (slices(), slices(np.float32, None), *map(slices, SCALED)):
        again = pickle.loads(pickle.dumps(s, protocol))
        assert type(again) is gc.IndexedSlices
        assert again == s


def test_it_copies():
    assert copy.copy(slices()) == slices()
    deep = copy.deepcopy(slices())
    assert deep == slices()


def test_it_compares_by_content():
    assert slices() == slices()
    nan = gc.IndexedSlices(np.full((3, 2), np.nan), ROWS)
    assert nan == gc.IndexedSlices(np.full((3, 2), np.nan), ROWS.copy())
    for other in (
        slices(np.float32),
        slices(dense_shape=None),
        slices(dense_shape=(7, 2)),
        gc.IndexedSlices(VALUES + 1, ROWS, (6, 2)),
        gc.IndexedSlices(VALUES, ROWS + 1, (6, 2)),
        gc.IndexedSlices(VALUES, ROWS.astype(np.int32), (6, 2)),
        gc.IndexedSlices(VALUES[:2], ROWS[:2], (6, 2)),
        None,
        "slices",
    ):
        assert (slices() == other) is False
        assert slices() != other


@pytest.mark.parametrize("dtype", NORMED)
def test_it_compares_every_dtype(dtype):
    assert slices(dtype) == slices(dtype)
    one = slices(dtype).values.copy()
    one[1, 1] = 1 - one[1, 1] if np.dtype(dtype).kind != "b" else ~one[1, 1]
    assert slices(dtype) != gc.IndexedSlices(one, ROWS, (6, 2))
    assert all(slices(dtype) != slices(other) for other in NORMED if other is not dtype)
    if dtype in SCALED:
        nan = np.full((3, 2), np.nan).astype(dtype)
        assert gc.IndexedSlices(nan, ROWS) == gc.IndexedSlices(nan.copy(), ROWS)
        assert gc.IndexedSlices(nan, ROWS) != slices(dtype, None)


def test_it_is_not_hashable():
    with pytest.raises(TypeError, match="unhashable"):
        hash(slices())


# ---- coalesce and to_dense


def summed(values, indices, rows):
    """Duplicate rows added in stored order: in float64, rounded once, but integers in their own dtype."""
    dtype = values.dtype
    loose = dtype.kind not in "biu"
    wide = np.dtype(np.complex128 if dtype.kind == "c" else np.float64) if loose else dtype
    out = np.zeros((rows, *values.shape[1:]), dtype=wide)
    with np.errstate(over="ignore"):
        for row, index in zip(values, indices, strict=True):
            out[index] += row
    if not loose:
        return out
    parts = oracle.parts(out)
    narrow = np.empty(parts.shape, oracle.part(dtype))
    for where in np.ndindex(parts.shape):
        narrow[where] = np.float64(oracle.rounded(parts[where], narrow.dtype)).astype(narrow.dtype)
    return narrow.view(dtype).reshape(out.shape)


@pytest.mark.parametrize("dtype", SCALED)
def test_coalesce_sums_duplicates_and_sorts(dtype):
    s = slices(dtype).coalesce()
    assert s.indices.tolist() == [0, 4]
    assert s.indices.dtype == ROWS.dtype
    assert tuple(s.dense_shape) == (6, 2)
    assert same_bits(s.values, summed(cast(VALUES, dtype), ROWS, 6)[[0, 4]])


@pytest.mark.parametrize("dtype", SCALED)
def test_coalesce_adds_in_stored_order_and_rounds_once(dtype):
    rng = np.random.default_rng(8)
    size = 6 if dtype is not np.float16 else 3
    values = cast(rng.standard_normal((500, 3)) * 10.0 ** rng.uniform(-size, size, (500, 1)), dtype)
    in_groups = np.repeat(np.arange(5), [32, 33, 65, 1, 369])
    for indices in (rng.integers(0, 20, 500), in_groups, rng.permutation(in_groups)):
        s = gc.IndexedSlices(values, indices, (20, 3))
        assert same_bits(s.coalesce().values, summed(values, indices, 20)[np.unique(indices)])
        assert same_bits(s.to_dense(), summed(values, indices, 20))


def test_a_sum_of_negative_zeros_is_negative():
    for values in (np.full((40, 3), -0.0), np.full((80, 300), -0.0)[::2]):
        indices = np.repeat([0, 1], [33, 7])
        assert same_bits(gc.IndexedSlices(values, indices).coalesce().values, values[:2])


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (np.float16, [1, 2.0**-11, 2.0**-24]),
        (BF16, [1, 2.0**-8, 2.0**-40]),
        (np.float32, [1, 2.0**-24, 2.0**-50]),
        (np.complex64, [1, 2.0**-24, 2.0**-50]),
    ],
)
def test_a_sum_is_rounded_once(dtype, values):
    """Just above the midpoint of two numbers: rounding to float32 first would lose the last value."""
    values = np.array(values).astype(dtype)
    total = gc.IndexedSlices(values, np.array([0, 0, 0]), (1,))
    above = np.array([1 + oracle.eps(dtype)]).astype(dtype)
    assert same_bits(total.coalesce().values, above)
    assert same_bits(total.to_dense(), above)


@pytest.mark.parametrize("dtype", SCALED)
def test_a_sum_that_overflows_is_inf_and_partial_sums_do_not(dtype):
    largest = oracle.largest(dtype)
    values = numbers([largest, largest, -largest, -largest, 3.0, largest, largest], dtype)
    s = gc.IndexedSlices(values, np.array([2, 2, 2, 2, 2, 0, 0]))
    merged = s.coalesce().values
    assert same_values(merged, summed(values, s.indices, 3)[[0, 2]])
    if not oracle.is_wide(dtype):
        assert np.isfinite(oracle.exact_parts(merged[1])).all()
    assert np.isinf(oracle.exact_parts(merged[0])).any()


@pytest.mark.parametrize("dtype", COMPLEX)
def test_coalesce_of_complex_numbers_adds_both_parts(dtype):
    s = gc.IndexedSlices(np.array([1 + 2j, 3j, complex(-4, -0.5)], dtype), np.array([7, 3, 7]))
    assert s.coalesce() == gc.IndexedSlices(np.array([3j, complex(-3, 1.5)], dtype), np.array([3, 7]))


def test_coalesce_of_bools_is_numpys_sum_of_bools():
    s = gc.IndexedSlices(np.array([True, True, False, False]), np.array([1, 1, 0, 0]), (3,))
    assert s.coalesce() == gc.IndexedSlices(np.array([False, True]), np.array([0, 1]), (3,))
    assert same_bits(s.to_dense(), np.array([False, True, False]))


def test_coalesce_of_float32_loses_nothing_on_the_way():
    s = gc.IndexedSlices(np.array([1e8, 1.0, -1e8], dtype=np.float32), np.array([2, 2, 2]))
    assert s.coalesce() == gc.IndexedSlices(np.array([1.0], dtype=np.float32), np.array([2]))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_coalesce_of_integers_wraps_as_in_numpy(dtype):
    values = np.array([100, 100, 100, 1], dtype=dtype)
    indices = np.array([1, 1, 1, 0], dtype=np.int8)
    s = gc.IndexedSlices(values, indices, (2,)).coalesce()
    assert same_bits(s.values, np.array([1, 300]).astype(dtype))
    assert same_bits(s.indices, np.array([0, 1], dtype=np.int8))


def test_coalesce_changes_nothing_where_there_is_nothing_to_do():
    for dtype in SCALED:
        values = numbers([-0.0, np.inf, np.nan, oracle.tiny(dtype)], dtype).reshape(2, 2)
        sorted_rows = gc.IndexedSlices(values, np.array([1, 3]), (4, 2))
        assert sorted_rows.coalesce() == sorted_rows
        assert same_bits(sorted_rows.coalesce().values, sorted_rows.values)
    empty = gc.IndexedSlices(np.zeros((0, 2)), np.zeros(0, dtype=int), (4, 2))
    assert empty.coalesce() == empty


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_coalesce_of_long_rows_on_several_threads(dtype, everywhere):
    """Of more than 6 MiB, and of rows longer than the accumulators."""
    rng = np.random.default_rng(3)
    values = cast(rng.standard_normal((800, 2100)), dtype)
    indices = rng.integers(0, 90, 800)
    indices[5], indices[7], values[5], values[7] = 1000, 1000, -0.0, -0.0
    (found,) = everywhere(lambda: [gc.IndexedSlices(values, indices).coalesce().values])
    assert same_bits(found[-1], values[5])
    sums = np.zeros((90, 2100), np.result_type(dtype, np.float64))
    np.add.at(sums, indices[indices < 90], values[indices < 90])
    assert same_bits(found[:-1], sums.astype(dtype)[np.unique(indices)[:-1]])


@pytest.mark.parametrize("dtype", [*SCALED, *INTEGERS])
def test_to_dense_adds_the_rows_to_zeros(dtype):
    values = np.arange(6).reshape(3, 2).astype(dtype)
    dense = gc.IndexedSlices(values, np.array([2, 0, 2]), (4, 2)).to_dense()
    assert type(dense) is np.ndarray
    assert same_bits(dense, np.array([[2, 3], [0, 0], [4, 6], [0, 0]], dtype=dtype))


def test_to_dense_needs_dense_shape_and_rows_inside_it():
    with pytest.raises(ValueError, match="dense_shape"):
        gc.IndexedSlices(VALUES, ROWS).to_dense()
    for indices in ([-1, 0, 1], [0, 6, 1], [0, 1, 10**9]):
        with pytest.raises(ValueError, match="indices"):
            gc.IndexedSlices(VALUES, np.array(indices), (6, 2)).to_dense()


def test_coalesce_and_to_dense_leave_the_slices_alone():
    values, rows = VALUES.copy(), ROWS.copy()
    s = gc.IndexedSlices(values, rows, (6, 2))
    merged, dense = s.coalesce(), s.to_dense()
    merged.values[...] = dense[...] = 9
    assert s == slices()


# ---- in the functions


def global_norm_of_one(s, out=None):
    return gc.clip_by_global_norm([s], 1.0, out=None if out is None else [out])[0][0]


FUNCTIONS = {
    "clip_by_value": lambda s, out=None: gc.clip_by_value(s, -0.5, 5.0, out=out),
    "clip_by_value untouched": lambda s, out=None: gc.clip_by_value(s, None, 1e9, out=out),
    "clip_by_norm": lambda s, out=None: gc.clip_by_norm(s, 1.0, out=out),
    "clip_by_norm untouched": lambda s, out=None: gc.clip_by_norm(s, 1e9, out=out),
    "clip_by_norm of stored rows": lambda s, out=None: gc.clip_by_norm(s, 1.0, axes=1, out=out),
    "clip_by_norm over stored rows": lambda s, out=None: gc.clip_by_norm(s, 1.0, axes=0, out=out),
    "clip_by_global_norm": global_norm_of_one,
}
functions = pytest.mark.parametrize("name", FUNCTIONS)


@functions
@pytest.mark.parametrize("dtype", SCALED)
@pytest.mark.parametrize("dense_shape", [None, (6, 2)])
def test_the_stored_values_are_clipped(name, dtype, dense_shape):
    if name.startswith("clip_by_value") and dtype not in FLOATS:
        with pytest.raises(TypeError, match=f"clip_by_value: t: .*{np.dtype(dtype).name}"):
            FUNCTIONS[name](slices(dtype))
        return
    s = slices(dtype, dense_shape)
    result = FUNCTIONS[name](s)
    assert type(result) is gc.IndexedSlices
    assert same_bits(result.values, FUNCTIONS[name](cast(VALUES, dtype)))
    assert result.indices is s.indices
    assert result.dense_shape == s.dense_shape
    assert not np.shares_memory(result.values, s.values)
    assert s == slices(dtype, dense_shape)


def test_duplicate_rows_are_not_merged():
    s = gc.IndexedSlices(np.array([[3.0, 4.0], [3.0, 4.0]]), np.array([1, 1]), (2, 2))
    assert gc.global_norm([s]) == pytest.approx(50**0.5)
    assert gc.global_norm([s.coalesce()]) == 10.0
    assert same_bits(gc.clip_by_norm(s, 5.0, axes=1).values, s.values)


def test_slices_and_arrays_in_one_list():
    s = slices()
    clipped, norm = gc.clip_by_global_norm([s, None, np.array([2.0])], 1.0)
    assert norm == gc.global_norm([s, np.array([2.0])]) == pytest.approx(math.sqrt(129.25))
    assert type(clipped[0]) is gc.IndexedSlices
    assert clipped[0].indices is s.indices
    assert clipped[1] is None
    np.testing.assert_allclose(clipped[0].values, VALUES / norm, rtol=1e-15)


@pytest.mark.parametrize("dtype", NORMED)
def test_the_global_norm_of_slices_is_that_of_their_values(dtype):
    for p in (1, 2, math.inf, 3.7):
        norm = gc.global_norm([slices(dtype), None, slices(dtype).values], ord=p)
        assert norm == gc.global_norm([slices(dtype).values] * 2, ord=p)
        assert_norm(norm, oracle.exact_global_norm([slices(dtype).values] * 2, p), p)


@pytest.mark.parametrize("dtype", [*INTEGERS, np.bool_])
def test_slices_of_integers_are_refused_where_integers_are(dtype):
    for call, start in (
        (lambda s: gc.clip_by_norm(s, 1.0), "clip_by_norm: t: "),
        (lambda s: gc.clip_by_global_norm([s], 1.0), r"clip_by_global_norm: t_list\[0\]: "),
    ):
        with pytest.raises(TypeError, match=f"{start}.*{np.dtype(dtype).name}.*float16"):
            call(slices(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_slices_in_clip_by_value(dtype):
    s = gc.IndexedSlices(np.array([1, 5, 9], dtype=dtype), ROWS)
    assert gc.clip_by_value(s, 2, 7) == gc.IndexedSlices(np.array([2, 5, 7], dtype=dtype), ROWS)


def test_bounds_broadcast_to_the_stored_values():
    result = gc.clip_by_value(slices(), np.array([[0.0], [0.0], [-9.0]]), np.array([5.0, 1.0]))
    assert result.values.tolist() == [[3.0, 1.0], [0.3, 0.0], [5.0, -8.0]]
    with pytest.raises(ValueError, match="clip_value_min"):
        gc.clip_by_value(slices(), np.zeros((6, 2)), 1.0)


def test_slices_of_tensorflow_are_an_error_that_tells_what_to_write():
    slices = type("IndexedSlices", (), {})()
    hint = r"complex128; gradclip\.IndexedSlices\(s\.values, s\.indices\) converts it$"
    with pytest.raises(TypeError, match=rf"t_list\[0\]: found IndexedSlices, .*{hint}"):
        gc.clip_by_global_norm([slices], 1.0)


def test_the_other_functions_suggest_to_dense():
    for call in (
        lambda s: gc.clip_by_average_norm(s, 1.0),
        lambda s: gc.clip_by_rms(s, 1.0),
        lambda s: gc.clip_by_rms(s, 1.0, 1, out=s),
        lambda s: gc.clip_by_weight_norm([s], [VALUES]),
        gc.norm,
        gc.normalize,
    ):
        with pytest.raises(TypeError, match=r"\.to_dense\(\)"):
            call(slices())


@functions
def test_out_is_written_and_returned(name):
    s = slices()
    out = gc.IndexedSlices(np.zeros((3, 2)), ROWS.copy(), (6, 2))
    result = FUNCTIONS[name](s, out)
    assert result is out
    assert same_bits(out.values, FUNCTIONS[name](VALUES))
    assert s == slices()


@functions
@pytest.mark.parametrize("dtype", SCALED)
def test_out_may_be_the_slices_themselves(name, dtype):
    if name.startswith("clip_by_value") and dtype not in FLOATS:
        return
    s = gc.IndexedSlices(cast(VALUES, dtype), ROWS, (6, 2))
    assert FUNCTIONS[name](s, s) is s
    assert same_bits(s.values, FUNCTIONS[name](cast(VALUES, dtype)))


@functions
def test_a_bad_out_is_refused_and_not_written(name):
    zeros = np.zeros((3, 2))
    read_only = zeros.copy()
    read_only.flags.writeable = False
    for error, out in (
        (ValueError, gc.IndexedSlices(zeros, ROWS + 1, (9, 2))),
        (ValueError, gc.IndexedSlices(zeros, ROWS[::-1] * 0, (6, 2))),
        (ValueError, gc.IndexedSlices(zeros, ROWS, (7, 2))),
        (ValueError, gc.IndexedSlices(zeros, ROWS)),
        (ValueError, gc.IndexedSlices(read_only, ROWS, (6, 2))),
        (TypeError, gc.IndexedSlices(zeros.astype(np.float32), ROWS, (6, 2))),
        (TypeError, zeros),
    ):
        with pytest.raises(error, match="out"):
            FUNCTIONS[name](slices(), out)
    with pytest.raises(TypeError, match="out"):
        FUNCTIONS[name](VALUES, gc.IndexedSlices(zeros, ROWS, (6, 2)))
    assert (zeros == 0).all()


@pytest.mark.parametrize("axes", [1, 32 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 31])
def test_values_of_many_axes_are_summed(axes):
    """NumPy's own sum over repeated indices ends the process for more than 32 axes."""
    slices = gc.IndexedSlices(np.ones((2,) + (1,) * axes), np.array([1, 1]), (3,) + (1,) * axes)
    assert slices.coalesce().values.shape == (1,) * (axes + 1)
    assert slices.to_dense().ravel().tolist() == [0, 2, 0]
