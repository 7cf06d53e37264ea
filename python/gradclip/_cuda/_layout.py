"""Views of arrays on a device, and the order in which their elements are added up.

That order is the CPU's (``src/walk/layout.rs``, ``src/py/array.rs``), so that the bits of a norm are the same.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gradclip._cuda._words import CHUNK, COMPLEX, ROWS_OF_BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


#: Layouts that are kept.
_KEPT = 1024


class View(NamedTuple):
    """An array on a device. Strides are in bytes, multiples of the item's size."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    code: int
    has_parts: bool = False
    """Whether the last axis goes over the two parts of complex numbers."""

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def is_dense(self) -> bool:
        """Whether it is C-contiguous."""
        return self.strides == dense_strides(self.shape, self.itemsize)

    def in_parts(self) -> View:
        """Take a complex array as a real one with one more axis."""
        code = COMPLEX.get(self.code)
        if code is None:
            return self
        half = self.itemsize // 2
        return View(self.address, (*self.shape, 2), (*self.strides, half), half, code, has_parts=True)

    def broadcast(self, shape: tuple[int, ...]) -> View:
        """Broadcast to a shape."""
        missing = len(shape) - len(self.shape)
        own = (*(1,) * missing, *self.shape)
        strides = (*(0,) * missing, *self.strides)
        strides = tuple(0 if a == 1 and b != 1 else s for a, b, s in zip(own, shape, strides, strict=True))
        return self._replace(shape=shape, strides=strides)


class Pair(NamedTuple):
    """The memory that is read, and the memory that is written."""

    source: View
    target: View

    def in_parts(self) -> Pair:
        """Take complex arrays as real ones."""
        return Pair(self.source.in_parts(), self.target.in_parts())


@lru_cache(_KEPT)
def dense_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array."""
    strides = []
    for length in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(length, 1)
    return tuple(reversed(strides))


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the axes from outer to inner as a ufunc's output has them: ``memory_order`` of ``src/walk/layout.rs``."""

    def size(axis: int) -> int:
        return 0 if shape[axis] == 1 else abs(strides[axis])

    inner_first = list(range(len(shape)))[::-1]
    for i in range(1, len(inner_first)):
        axis, at = inner_first[i], i
        for j in range(i - 1, -1, -1):
            own, other = size(axis), size(inner_first[j])
            if own != 0 and other != 0:
                if other <= own:
                    break
                at = j
        inner_first.insert(at, inner_first.pop(i))
    return inner_first[::-1]


def copy_order(strides: Sequence[int], *, has_parts: bool) -> list[int]:
    """Return the axes from outer to inner as NumPy's ``copy("K")`` has them: ``copy_order`` of ``src/walk/layout.rs``.

    An axis of stride 0, which repeats each element, is innermost, but for that of the parts of complex numbers.
    """
    numbers = len(strides) - has_parts
    return [*sorted(range(numbers), key=lambda axis: -abs(strides[axis])), *range(numbers, len(strides))]


#: Axes from outer to inner, and whether each is walked backwards.
Walk = tuple[tuple[int, bool], ...]


def walk_of(view: View, wanted: Iterable[int] | None = None) -> Walk:
    """Return the order in which the elements along some axes, or all, are added up: that of the array's copy."""
    return _walk(view.strides, view.has_parts, None if wanted is None else tuple(wanted))


# Results that depend on shapes and strides alone are kept, because most calls are repeated.
@lru_cache(_KEPT)
def _walk(strides: tuple[int, ...], has_parts: bool, wanted: tuple[int, ...] | None) -> Walk:
    order = copy_order(strides, has_parts=has_parts)
    return tuple((axis, strides[axis] < 0) for axis in order if wanted is None or axis in wanted)


class Layout(NamedTuple):
    """Axes merged where one stride covers both, in elements, and where position 0 lies, in bytes."""

    axes: tuple[tuple[int, int], ...]
    shift: int

    @property
    def is_dense(self) -> bool:
        """Whether the positions follow each other in memory."""
        return not self.axes or (len(self.axes) == 1 and self.axes[0][1] == 1)

    def words(self) -> list[int]:
        """Return it as the kernels read it."""
        return [len(self.axes), *(number for axis in self.axes for number in axis)]


def layout_of(view: View, walk: Walk) -> Layout:
    """Lay out the elements of an array in the order of a walk."""
    return _layout(view.shape, view.strides, view.itemsize, walk)


@lru_cache(_KEPT)
def _layout(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, walk: Walk) -> Layout:
    axes: list[tuple[int, int]] = []
    shift = 0
    for axis, backwards in walk:
        length, stride = shape[axis], strides[axis]
        if backwards:
            shift += max(length - 1, 0) * stride
            stride = -stride
        stride //= itemsize
        if length == 1:
            continue
        if axes and axes[-1][1] == stride * length:
            axes[-1] = (axes[-1][0] * length, stride)
        else:
            axes.append((length, stride))
    return Layout(tuple(axes), shift)


class Split(NamedTuple):
    """An array cut into slices: the walk over the kept axes, and over the elements of a slice."""

    kept: Walk
    reduced: Walk

    @classmethod
    def of(cls, view: View, axes: Sequence[int]) -> Split:
        """Reduce the given axes."""
        return _split(view.strides, view.has_parts, tuple(axes))

    def count(self, view: View) -> int:
        """Slices."""
        return math.prod(view.shape[axis] for axis, _ in self.kept)

    def length(self, view: View) -> int:
        """Elements of a slice."""
        return math.prod(view.shape[axis] for axis, _ in self.reduced)

    def is_of_columns(self, view: View) -> bool:
        """Whether neighbours in memory belong to neighbouring slices: ``are_columns`` of ``src/walk/slices.rs``."""
        reduced = frozenset(axis for axis, _ in self.reduced)
        return _are_columns(view.shape, view.strides, view.has_parts, reduced)


@lru_cache(_KEPT)
def _split(strides: tuple[int, ...], has_parts: bool, axes: tuple[int, ...]) -> Split:
    kept = tuple((axis, False) for axis in copy_order(strides, has_parts=has_parts) if axis not in axes)
    return Split(kept, _walk(strides, has_parts, axes))


@lru_cache(_KEPT)
def _are_columns(shape: tuple[int, ...], strides: tuple[int, ...], has_parts: bool, reduced: frozenset[int]) -> bool:
    """Whether four slices or more lie inside all reduced axes, in the order of the copy."""
    inner = 1
    for axis in reversed(copy_order(strides, has_parts=has_parts)):
        if axis not in reduced:
            inner *= shape[axis]
        elif shape[axis] != 1:
            break
    return inner >= 4  # noqa: PLR2004


#: Columns that one thread of the CPU sums at a time: where runs of rows end depends on it.
_STRIP = 512


def run_of(columns: int) -> int:
    """Return the rows of columns that are added up in one go."""
    run = CHUNK // min(max(columns, 1), _STRIP)
    return -(-run // ROWS_OF_BLOCK) * ROWS_OF_BLOCK


class Places:
    """A table in the making: layouts, and where each of them stands."""

    def __init__(self) -> None:
        self.words: list[int] = [0]  # 0 is no place

    def add(self, layout: Layout) -> int:
        """Return the place of a layout, 0 for a dense one."""
        if layout.is_dense:
            return 0
        self.words += layout.words()
        return len(self.words) - len(layout.words())
