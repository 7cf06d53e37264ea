"""Norms of arrays on a device add up elements in the order of NumPy's ``copy("K")``, as those of the CPU do."""

import itertools
import math

import gradclip as gc
import numpy as np
import pytest
from gpu_arrays import check, some, thinned
from gradclip._cuda._layout import Split, View, layout_of, walk_of
from gradclip._cuda._words import NAMES
from layouts import steps
from numpy.lib.stride_tricks import as_strided

ORDERS = list(itertools.permutations(range(3)))
STEPS = ["repeated", "dense", "gap", "negative"]
AXES = [axes for n in range(4) for axes in itertools.combinations(range(3), n)]


def strided(room, shape, strides):
    """An array of these strides, in elements, somewhere in the room."""
    start = sum(max(-step, 0) * (n - 1) for n, step in zip(shape, strides, strict=True))
    return as_strided(room[start:], shape, [step * room.itemsize for step in strides])


def three_axes(room, order, shape):
    """Every choice of strides for axes that lie in memory in this order, from outer to inner."""
    found = set()
    for kinds in itertools.product(STEPS, repeat=3):
        strides, dense = [0, 0, 0], 1
        for axis, kind in reversed(list(zip(order, kinds, strict=True))):
            strides[axis] = {"repeated": 0, "dense": dense, "gap": 2 * dense, "negative": -dense}[kind]
            dense = max(abs(strides[axis]) * shape[axis], dense)
        found.add(tuple(strides))
    return [strided(room, shape, strides) for strides in sorted(found)]


def overlapping(room, shape):
    """Strides of which some are equal, or shorter than what they step over."""
    return [strided(room, shape, strides) for strides in itertools.product([0, 1, -1, 2, -3], repeat=3)]


def copied(x):
    """The elements in the order of the copy, each axis from its lower end in memory to its upper one."""
    upwards = tuple(slice(None, None, -1 if step < 0 else 1) for step in x.strides)
    return x[upwards].copy("K").ravel("K")


def found(layout, itemsize):
    """The addresses that a layout gives its elements, in elements."""
    assert layout.shift % itemsize == 0
    at = np.array(layout.shift // itemsize)
    for n, step in layout.axes:
        at = np.add.outer(at, np.arange(n) * step)
    return at.ravel()


def places(x, dtype):
    """An array of numbers of where they lie: a view of it as one of the dtype, in parts, and where that begins."""
    first = int(x[0, 0, 0])
    size = np.dtype(dtype).itemsize
    strides = tuple(step // x.itemsize * size for step in x.strides)
    return View(0, x.shape, strides, size, NAMES.index(np.dtype(dtype).name)), first


def check_places(x):
    """The walks over all elements, and over those of slices along any axes, real and complex."""
    for dtype in (np.float64, np.complex128):
        view, first = places(x, dtype)
        parts = view.in_parts()
        count = view.itemsize // parts.itemsize
        expected = np.add.outer((copied(x) - first) * count, np.arange(count)).ravel()
        assert np.array_equal(found(layout_of(parts, walk_of(parts)), parts.itemsize), expected), x.strides
        assert np.array_equal(found(layout_of(view, walk_of(view)), view.itemsize), copied(x) - first), x.strides
        for axes in AXES:
            split = Split.of(view, axes)
            slice_of = x[tuple(slice(None) if axis in axes else 0 for axis in range(3))]
            firsts = x[tuple(0 if axis in axes else slice(None) for axis in range(3))]
            told = x.strides, axes
            assert np.array_equal(found(layout_of(view, split.reduced), view.itemsize), copied(slice_of) - first), told
            kept = firsts.copy("K").ravel("K")
            assert np.array_equal(found(layout_of(view, split.kept), view.itemsize), kept - first), told
            if parts is not view:
                own = Split.of(parts, (*axes, 3))
                assert own.kept == split.kept, told
                inner = np.add.outer((copied(slice_of) - first) * 2, np.arange(2)).ravel()
                assert np.array_equal(found(layout_of(parts, own.reduced), parts.itemsize), inner), told


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(3, 4, 5), (5, 1, 2), (4, 4, 4)])
@pytest.mark.parametrize("order", ORDERS)
def test_elements_are_walked_as_their_copy_has_them(order, shape):
    for x in three_axes(np.arange(1000), order, shape):
        check_places(x)


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 1, 3)])
def test_elements_that_share_memory_are_walked_as_their_copy_has_them(shape):
    for x in overlapping(np.arange(100), shape):
        check_places(x)


def inside(x, axes):
    """How many slices lie side by side within the innermost of these axes of the copy. Its strides all differ."""
    copy = x.copy("K")
    axis_steps = list(enumerate(zip(x.shape, copy.strides, strict=True)))
    innermost = min((step for axis, (n, step) in axis_steps if axis in axes and n > 1), default=math.inf)
    return math.prod(n for axis, (n, step) in axis_steps if axis not in axes and step < innermost)


@pytest.mark.parametrize("dtype", some([np.float64, np.complex128]))
@pytest.mark.parametrize("shape", [(3, 4, 5), (7, 6, 5), (5, 1, 4), (1, 4, 2)])
def test_slices_are_columns_where_four_of_their_copy_lie_side_by_side(shape, dtype):
    """That decides in what order they are summed. Of two equal strides one can be summed over, the other not."""
    room = np.arange(1000)
    for x in [x for order in ORDERS for x in three_axes(room, order, shape)] + overlapping(room, shape):
        view, _ = places(x, dtype)
        for axes in AXES:
            assert Split.of(view, axes).is_of_columns(view) == (inside(x, axes) >= 4), (x.strides, axes)


def test_repeated_elements_follow_each_other():
    row = np.broadcast_to(np.arange(3), (4, 3))
    assert steps(row.copy("K")) == [8, 32]
    assert copied(row).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    view, _ = places(row[None], np.complex64)
    assert found(layout_of(view, walk_of(view)), view.itemsize).tolist() == copied(row).tolist()


def numbers(n, dtype):
    """Numbers whose sum depends on the order."""
    x = np.random.default_rng(7).standard_normal((2, n))
    return (x[0] + 1j * x[1] if np.dtype(dtype).kind == "c" else x[0]).astype(dtype)


def norms(x):
    along = [axes for axes in AXES if axes]
    along = [axes[0] if len(axes) == 1 else axes for axes in along if len(axes) < 3] + [None]
    return [
        *(gc.norm(x, p, axis) for axis in along for p in (1, "euclidean")),
        *(gc.norm(x, p, (2, 0)) for p in (1, math.inf)),
        *(gc.global_norm([x, x[0]], ord=p) for p in (1, 2, 3)),
        gc.clip_by_norm(x, 0.5),
        gc.clip_by_norm(x, 0.5, 1),
        *gc.normalize(x, axis=(0, 2)),
    ]


@pytest.mark.parametrize("dtype", some([np.float64, np.complex128]))
@pytest.mark.parametrize("order", thinned(ORDERS, 2))
def test_norms_are_those_of_the_cpu(gpu, order, dtype):
    for x in three_axes(numbers(3000, dtype), order, (7, 6, 5)):
        check(gpu, norms, x, told=x.strides)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_norms_of_elements_that_share_memory_are_those_of_the_cpu(gpu, dtype):
    for x in thinned(overlapping(numbers(100, dtype), (7, 6, 5)), 3):
        check(gpu, norms, x, told=x.strides)
