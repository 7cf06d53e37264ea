"""Lists of tensors give the bits of their tensors, for any layout in memory and any kind of outputs."""

import gc as collector
import itertools
import math

import gradclip as gc
import layouts
import ml_dtypes
import numpy as np
import pytest

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
#: Up to beyond a block of 2,048 elements, and around the lanes of a sum.
HEIGHTS = [2, 3, 31, 32, 33, 64, 100, 2047, 2048, 2049]
#: Around the numbers of columns that are processed in one call.
WIDTHS = [1, 2, 7, 8, 9, 63, 64, 65, 130]


def matrix(height, width, dtype):
    values = np.random.default_rng(height * 1000 + width).standard_normal((height, width))
    return (values * 3).astype(dtype)


def copies(tensors):
    return [None if tensor is None else np.ascontiguousarray(tensor) for tensor in tensors]


def bits(tensors):
    return [None if tensor is None else tensor.tobytes() for tensor in tensors]


def check(make, order=2):
    """Clip the tensors of `make`, into new outputs and in place, and compare with clipping their copies."""
    tensors = make()
    expected, norm = gc.clip_by_global_norm(copies(tensors), 0.5, ord=order)
    assert gc.global_norm(tensors, ord=order) == norm
    before = bits(tensors)
    found, own = gc.clip_by_global_norm(tensors, 0.5, ord=order)
    assert own == norm
    assert bits(found) == bits(expected)
    assert bits(tensors) == before
    found, own = gc.clip_by_global_norm(tensors, 2 * norm, ord=order, out=tensors)
    assert own == norm
    assert bits(tensors) == before
    for outs in (lambda tensors: tensors, list, tuple):
        tensors = make()
        found, own = gc.clip_by_global_norm(tensors, 0.5, ord=order, out=outs(tensors))
        assert own == norm
        assert all(a is b for a, b in zip(found, tensors, strict=True))
        assert bits(tensors) == bits(expected)
    return norm


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_of_a_matrix(dtype):
    for height, width in itertools.product(HEIGHTS, WIDTHS):
        check(lambda height=height, width=width: list(matrix(height, width, dtype).T))


@pytest.mark.parametrize("order", [1, 2, 3, 2.5, np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_order_of_norm(dtype, order):
    check(lambda: list(matrix(70, 70, dtype).T), order)
    check(lambda: list(matrix(2100, 9, dtype).T), order)


@pytest.mark.parametrize(
    "choose",
    [
        lambda columns: columns[::2],
        lambda columns: columns[::-1],
        lambda columns: columns[10:20] + columns[25:60],
        lambda columns: columns[30:60] + columns[:30],
        lambda columns: [None, *columns[:9], None, *columns[9:], None],
        lambda columns: [np.ones(7, np.float32), *columns],
        lambda columns: [*columns, np.ones((2, 3), np.float32)],
        lambda columns: [column[3:] for column in columns],
        lambda columns: [column[::2] for column in columns],
        lambda columns: [column[::-1] for column in columns],
        lambda columns: [column[: len(column) - i % 3] for i, column in enumerate(columns)],
        lambda columns: columns[5:6],
        lambda columns: [columns[5], np.ones(4, np.float64), columns[6]],
        lambda columns: [column[:1] for column in columns],
        lambda columns: [column[:0] for column in columns] + columns,
    ],
)
def test_some_columns_and_others(choose):
    check(lambda: choose(list(matrix(64, 70, np.float32).T)))


def test_columns_of_two_matrices():
    check(lambda: [*matrix(64, 20, np.float32).T, *matrix(64, 30, np.float32).T])
    check(lambda: [*matrix(64, 20, np.float32).T, *matrix(10, 30, np.float64).T])


@pytest.mark.parametrize("value", [1e300, 1e-300, np.inf, -np.inf, np.nan, 0.0, -0.0])
def test_columns_with_numbers_beyond_the_rule(value):
    def make():
        numbers = matrix(40, 20, np.float64)
        if np.isfinite(value):
            numbers *= value
        else:
            numbers[3, 11] = value
        return list(numbers.T)

    tensors = make()
    expected, norm = gc.clip_by_global_norm(copies(tensors), 1e-3)
    found, own = gc.clip_by_global_norm(tensors, 1e-3, out=tensors)
    np.testing.assert_array_equal(own, norm)
    assert bits(found) == bits(expected)


def test_many_columns_on_all_threads():
    check(lambda: list(matrix(300, 9000, np.float32).T))


@pytest.mark.sampled
@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("order", [1, 2, np.inf])
def test_long_lists_are_shared_where_they_may_be_cut_anywhere(order, count, threads):
    """Empty, small and long arrays of two dtypes, columns and None: ranges of them go to the threads."""
    rng = np.random.default_rng(5)

    def make():
        wide = rng.standard_normal((40, 5000)).astype(np.float32)
        some = [rng.standard_normal(n).astype(np.float32) for n in rng.integers(0, 60, 3000)]
        long = [rng.standard_normal(n) for n in (131_072, 131_073, 300_000, 0)]
        few = [rng.standard_normal(n).astype(np.float32) for n in (64 << 10, 140_000, 1)]
        return [*some[:1500], *wide.T, None, *long, *some[1500:], *few, None, *wide[::-1, :9].copy().T]

    tensors = make()
    present = [tensor for tensor in tensors if tensor is not None]
    magnitudes = np.abs(np.concatenate([tensor.ravel().astype(np.float64) for tensor in present]))
    if order == 1:
        exact = math.fsum(magnitudes)
    elif order == 2:
        exact = math.sqrt(math.fsum(magnitudes**2))
    else:
        exact = magnitudes.max()
    with threads(1):
        expected, norm = gc.clip_by_global_norm(copies(tensors), 0.5, ord=order)
    assert norm == pytest.approx(exact, rel=1e-14)
    with threads(count):
        for _ in range(6):  # the workers are awake after some calls
            found, own = gc.clip_by_global_norm(tensors, 0.5, ord=order)
            assert own == norm
            assert bits(found) == bits(expected)
        gc.clip_by_global_norm(tensors, 0.5, ord=order, out=tensors)
        assert bits(tensors) == bits(expected)


#: Of a list and another one: tensors and norms.
OTHERS = {
    "norms": lambda tensors, _: ([], gc.norms(tensors)),
    "clip_by_norms": lambda tensors, _: gc.clip_by_norms(tensors, 0.5),
    "clip_by_weight_norm": lambda tensors, others: (gc.clip_by_weight_norm(tensors, others, 0.5), np.zeros(0)),
    "examples": lambda tensors, _: gc.clip_examples_by_global_norm(tensors, 0.5, reduce=None),
    "sums of examples": lambda tensors, _: gc.clip_examples_by_global_norm(tensors, 0.5),
    "clip_difference_by_global_norm": lambda tensors, others: gc.clip_difference_by_global_norm(tensors, others, 0.5),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", layouts.LISTS)
@pytest.mark.parametrize("function", OTHERS)
def test_the_functions_of_other_norms(function, kind, dtype):
    tensors, others = (layouts.LISTS[kind](matrix(1, count, dtype)[0][:4000]) for count in (4000, 4001))
    found, norms = OTHERS[function](tensors, others)
    expected, own = OTHERS[function](copies(tensors), copies(others))
    assert np.asarray(norms).tobytes() == np.asarray(own).tobytes()
    assert bits(found) == bits(expected)
    # One tensor alone has the same norms, if they are its own.
    if function in {"norms", "clip_by_norms", "clip_by_weight_norm"}:
        alone = [OTHERS[function]([t], [other]) for t, other in zip(copies(tensors), copies(others), strict=True)]
        assert np.asarray(norms).tolist() == [norm for _, norms in alone for norm in norms]
        assert bits(found) == bits([x for own, _ in alone for x in own])


def test_columns_that_share_elements_are_refused_as_outputs():
    numbers = np.arange(1.0, 101.0)
    windows = [numbers[i::5] for i in range(10)]
    assert gc.global_norm(windows) == gc.global_norm(copies(windows))
    before = numbers.copy()
    for outs in (windows, list(windows)):
        with pytest.raises(ValueError, match="shares memory"):
            gc.clip_by_global_norm(windows, 1.0, out=outs)
    columns = list(matrix(8, 9, np.float64).T)
    with pytest.raises(ValueError, match="shares memory"):
        gc.clip_by_global_norm([*columns, columns[0]], 1.0, out=[*columns, columns[0]])
    np.testing.assert_array_equal(numbers, before)


def test_read_only_columns_are_refused_as_outputs():
    numbers = matrix(8, 9, np.float64)
    numbers.flags.writeable = False
    columns = list(numbers.T)
    with pytest.raises(ValueError, match="read-only"):
        gc.clip_by_global_norm(columns, 1e-3, out=columns)


@pytest.mark.sampled
@pytest.mark.parametrize("count", [0, 1, 2, 40])
@pytest.mark.parametrize("kind", [list, tuple])
def test_the_result_is_a_new_list_like_any_other(count, kind):
    tensors = kind(np.ones(5, np.float32) for _ in range(count))
    for out in (None, tensors, list(tensors)):
        found, _ = gc.clip_by_global_norm(tensors, 1.0, out=out)
        assert type(found) is list
        assert found is not tensors
        assert found is not out
        assert collector.is_tracked(found)
        assert len(found) == count
        found.append(found)  # the garbage that the collector finds
        del found
    collector.collect()


@pytest.mark.parametrize(
    "dtypes", [[np.float32], [np.float64], [np.float16, np.float32, np.float64, ml_dtypes.bfloat16]]
)
def test_short_arrays_partly_in_place_and_partly_into_others(dtypes):
    rng = np.random.default_rng(11)

    def make():
        # Whole pieces and others, neighbours of one kind and of several.
        lengths = [*rng.integers(0, 70, 200), *8 * rng.integers(0, 200, 200)]
        chosen = rng.integers(0, len(dtypes), len(lengths)) if len(dtypes) > 1 else np.zeros(len(lengths), int)
        return [rng.standard_normal(n).astype(dtypes[i]) for n, i in zip(lengths, np.sort(chosen), strict=True)]

    tensors = make()
    norm = gc.global_norm(tensors)
    squares = [x * x for tensor in tensors for x in tensor.astype(np.float64).tolist()]
    assert norm == pytest.approx(math.sqrt(math.fsum(squares)), rel=1e-14)
    expected = [gc.clip_by_norm(tensor, 1e9) for tensor in tensors]
    for tensor in expected:
        gc.clip_by_global_norm([tensor], 0.25, norm, out=[tensor])
    for run in (1, 2, 30):
        own = [tensor.copy() for tensor in tensors]
        outs = [tensor if i // run % 2 else np.full_like(tensor, 7) for i, tensor in enumerate(own)]
        found, same = gc.clip_by_global_norm(own, 0.25, out=outs)
        assert same == norm
        assert all(a is b for a, b in zip(found, outs, strict=True))
        assert bits(outs) == bits(expected)
        assert bits(own[:run]) == bits(tensors[:run])  # these were clipped into others


def test_entries_may_be_none():
    tensor = np.full(3, 2.0)
    for tensors in ([None], (None,), [None, None], [None, tensor], (tensor, None)):
        for out in (None, tensors, list(tensors)):
            found, _ = gc.clip_by_global_norm(tensors, 100.0, out=out)
            assert [entry is None for entry in found] == [entry is None for entry in tensors]


def test_a_list_in_place_may_not_have_an_array_twice():
    tensor, other = np.full(3, 2.0), np.ones(3)
    tensors = [tensor, other, tensor]
    for out in (tensors, list(tensors)):
        with pytest.raises(ValueError, match="shares memory"):
            gc.clip_by_global_norm(tensors, 1.0, out=out)
    assert (tensor == 2).all()


def test_arrays_in_any_order_of_memory():
    memory = np.arange(1, 1001, dtype=np.float32)
    parts = [memory[i * 10 : i * 10 + 10] for i in (5, 3, 99, 0, 1, 2, 98)]
    expected, norm = gc.clip_by_global_norm(copies(parts), 1.0)
    found, own = gc.clip_by_global_norm(parts, 1.0, out=parts)
    assert own == norm
    assert bits(found) == bits(expected)
    overlapping = [memory[5:10], memory[:6]]
    with pytest.raises(ValueError, match="shares memory"):
        gc.clip_by_global_norm(overlapping, 1.0, out=overlapping)
