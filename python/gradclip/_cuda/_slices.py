"""Norms of the slices of an array along some of its axes, and their scaling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradclip._cuda._layout import Layout, Pair, Places, Split, View, layout_of, run_of
from gradclip._cuda._list import Tensors, run_list
from gradclip._cuda._queue import argument_of
from gradclip._cuda._words import (
    BLOCK,
    ITEMSIZES,
    REAL,
    ROWS_OF_BLOCK,
    THREADS,
    TILE,
    TYPES,
    Flag,
    Norm,
    NormsTo,
    Order,
    Word,
    columns_at_once,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradclip._cuda._queue import Call
    from gradclip._cuda._words import Words


class Slices(NamedTuple):
    """An array and the axes along which its slices lie."""

    view: View
    axes: tuple[int, ...]
    split: Split

    @classmethod
    def of(cls, view: View, axes: Sequence[int]) -> Slices:
        """Cut an array."""
        return cls(view, tuple(axes), Split.of(view, axes))

    @property
    def are_columns(self) -> bool:
        """Whether they lie side by side, which decides in what order they are added up."""
        return self.split.is_of_columns(self.view)

    def in_parts(self) -> Slices:
        """Take complex arrays as real ones: the parts of a number belong to one slice."""
        parts = self.view.in_parts()
        if parts is self.view:
            return self
        return Slices.of(parts, (*self.axes, len(self.view.shape)))


def norms_of_slices(call: Call, view: View, axes: Sequence[int], norm: Norm, to: NormsTo) -> None:
    """Make the norms of slices: numbers in the order of the kept axes, as memory has them."""
    axes = tuple(axes)
    key = "norms", view, axes, norm.kind, to[1:]
    call.repeat(key, lambda: _make_norms(call, Slices.of(view, axes), norm, to), norm.limit, to.norm_at)


def _make_norms(call: Call, slices: Slices, norm: Norm, to: NormsTo, *, with_factors: bool = False) -> int:
    """Make norms of slices, and their factors if asked to. Return the address of the factors."""
    columns = slices.are_columns
    if norm.order is Order.TWO and not columns:
        slices = slices.in_parts()
        columns = slices.are_columns  # which these can be, where elements are repeated
    view, split = slices.view, slices.split
    count, length = split.count(view), split.length(view)
    if count == 0:
        return 0
    if not columns and not to.values_at and not with_factors and _are_long(call, count, length):
        tensors = _as_list(slices, view)
        run_list(call, tensors, norm, norm_at=to.norm_at, narrow=to.narrow, each=True)
        return 0
    in_runs = columns and length > 0 and norm.order in {Order.ONE, Order.TWO, Order.SIMPLE}
    run = min(run_of(count), length)
    runs = -(-length // run) if in_runs else 0
    factors, sums = 16 * count * with_factors, 16 * count * runs  # bytes
    room = call.queue.room(factors + sums) if factors + sums else 0
    if with_factors:
        to = to._replace(factors_at=room)
    params = _params_of(slices, norm=norm)
    to.fill(params)
    if in_runs:
        params[Word.RUN], params[Word.PARTS_AT] = run, room + factors
        if norm.order is Order.TWO and view.code in REAL:
            per_thread = _columns_per_thread(slices, view)
            name = f"columns_of<{TYPES[view.code]}, {per_thread}>"
        else:
            per_thread, name = 1, "columns<void>"
        call.launch(name, _tiles_of(count, per_thread)[0] * runs, params, at_once=1)
        call.launch("column_norms<void>", count, params)
    elif norm.order is Order.TWO and view.code in REAL and length:
        _launch_rows(call, view.code, params)
    else:
        team = 32 if length <= BLOCK else THREADS
        _launch_teams(call, f"slices<{team}>", params, team)
    return room


def _params_of(slices: Slices, pair: Pair | None = None, norm: Norm | None = None) -> Words:
    """Make the argument of a kernel for slices, and for an array that is cut like them if one is written."""
    split = slices.split
    source = slices.view if pair is None else pair.source
    places = Places()
    kept, reduced = layout_of(source, split.kept), layout_of(source, split.reduced)
    found = [places.add(kept), places.add(reduced), 0, 0]
    target_at = 0
    if pair is not None:
        other, other_reduced = layout_of(pair.target, split.kept), layout_of(pair.target, split.reduced)
        found[2:] = places.add(other), places.add(other_reduced)
        target_at = pair.target.address + other.shift + other_reduced.shift
    params = argument_of(places.words)
    params[Word.KEPT : Word.KEPT + 4] = found
    params[Word.SOURCE] = source.address + kept.shift + reduced.shift
    params[Word.TARGET] = target_at
    params[Word.DTYPE] = slices.view.code
    params[Word.COUNT], params[Word.LENGTH] = split.count(slices.view), split.length(slices.view)
    if pair is not None and pair.source == pair.target:
        params[Word.FLAGS] |= Flag.IN_PLACE
    if norm is not None:
        norm.fill(params, [slices.view.code])
    return params


def _columns_per_thread(slices: Slices, *views: View) -> int:
    """Return how many columns a thread takes: 4 or those in 16 bytes, if each row lets it load them at once, else 1."""
    split, itemsize = slices.split, slices.view.itemsize
    per_thread = columns_at_once(itemsize)
    pack = per_thread * itemsize
    for view in views:
        kept, reduced = layout_of(view, split.kept), layout_of(view, split.reduced)
        starts = [view.address + kept.shift + reduced.shift, *(stride * view.itemsize for _, stride in reduced.axes)]
        if not kept.is_dense or len(starts) > 2 or any(start % pack for start in starts):  # noqa: PLR2004 (one stride)
            return 1
    return per_thread if split.count(slices.view) % per_thread == 0 else 1


def _tiles_of(columns: int, per_thread: int) -> tuple[int, int]:
    """Return how many tiles cover columns, and the rows of a tile: ``Tiles`` of ``kernels.cu``."""
    width = 8
    while width < TILE and width * per_thread < columns:
        width *= 2
    return -(-columns // (width * per_thread)), THREADS // width * ROWS_OF_BLOCK


#: The most bytes of a row that a thread of a small team reads. With more of them, the rows that a multiprocessor reads
#: at a time would not stay in its L1 cache (256 KiB on an H100) until they are written.
_BYTES_EACH = 128


def _team_of(code: int, length: int) -> int:
    """Return how many threads of a warp share the slices of a real dtype: 4 to 32."""
    nbytes = length * ITEMSIZES[code]
    return next((team for team in (4, 8, 16) if team * _BYTES_EACH >= nbytes), 32)


def _launch_rows(call: Call, code: int, params: Words) -> None:
    """Launch the kernel for rows of a real dtype. Rows that are longer than a block of elements have 8 warps each."""
    length = int(params[Word.LENGTH])
    team = _team_of(code, length) if length <= BLOCK else THREADS
    _launch_teams(call, f"rows<{TYPES[code]}, {team}>", params, team)


def _launch_teams(call: Call, name: str, params: Words, team: int) -> None:
    """Launch a kernel in which a team of so many threads has a slice."""
    call.launch(name, int(params[Word.COUNT]), params, at_once=THREADS // team)


def scale_slices(  # noqa: PLR0917 (the arrays, then what to make of them)
    call: Call, view: View, axes: Sequence[int], pair: Pair, norm: Norm, to: NormsTo | None = None
) -> None:
    """Scale each slice by its factor. The source of ``pair`` is scaled, which may be a copy of ``view``."""
    axes, to = tuple(axes), to or NormsTo()
    key = "scale", view, axes, pair, norm.kind, to[1:]
    call.repeat(key, lambda: _scale(call, Slices.of(view, axes), pair, norm, to), norm.limit, to.norm_at)


def _scale(call: Call, slices: Slices, pair: Pair, norm: Norm, to: NormsTo) -> None:
    parts, own = slices.in_parts(), pair.in_parts()
    count, length = parts.split.count(parts.view), parts.split.length(parts.view)
    if count == 0:
        return
    are_columns = slices.are_columns or parts.are_columns
    is_two = norm.order is Order.TWO and pair.source == slices.view and not are_columns
    if is_two and _are_long(call, count, length):
        tensors = _as_list(parts, own.target)
        run_list(call, tensors, norm, norm_at=to.norm_at, narrow=to.narrow, each=True, scaled=tensors)
    elif is_two and length:
        # Each slice is written by those who have read it, while the caches hold it.
        params = _params_of(parts, own, norm)
        to.fill(params)
        _launch_rows(call, parts.view.code, params)
    else:
        scale_by_factors(call, slices, pair, _make_norms(call, slices, norm, to, with_factors=True))


def scale_by_factors(call: Call, slices: Slices, pair: Pair, factors_at: int) -> None:
    """Scale each slice by its factor. The factors are in the order of the norms of the slices."""
    columns = slices.are_columns
    parts, own = slices.in_parts(), pair.in_parts()
    params = _params_of(parts, own)
    count, length = int(params[Word.COUNT]), int(params[Word.LENGTH])
    if count == 0 or length == 0:
        return
    params[Word.FACTORS_AT] = factors_at
    name = TYPES[parts.view.code]
    if columns:
        per_thread = _columns_per_thread(parts, own.source, own.target)
        tiles, rows = _tiles_of(count, per_thread)
        call.launch(f"scale_columns<{name}, {per_thread}>", tiles * -(-length // rows), params, at_once=1)
    else:
        team = _team_of(parts.view.code, length)
        call.launch(f"scale_slices<{name}, {team}>", count * -(-length // BLOCK), params, at_once=THREADS // team)


def _are_long(call: Call, count: int, length: int) -> bool:
    """Whether slices are so few and so long that each is cut, as an array of a list is: for all multiprocessors."""
    return length >= 16 * BLOCK and count < 2 * call.device.multiprocessors


def _as_list(slices: Slices, target: View) -> Tensors:
    """Return the slices as a list of arrays."""
    view, split = slices.view, slices.split
    count, length = split.count(view), split.length(view)
    kept, reduced = layout_of(view, split.kept), layout_of(view, split.reduced)
    other, other_reduced = layout_of(target, split.kept), layout_of(target, split.reduced)
    places = [_offset(kept, i) * view.itemsize for i in range(count)]
    others = [_offset(other, i) * view.itemsize for i in range(count)]
    is_dense = reduced.is_dense and other_reduced.is_dense
    return Tensors(
        np.array(places, np.int64) + (view.address + kept.shift + reduced.shift),
        np.array(others, np.int64) + (target.address + other.shift + other_reduced.shift),
        np.full(count, length, np.int64),
        np.full(count, view.code, np.int64),
        None if is_dense else [(reduced, other_reduced)] * count,
    )


def _offset(layout: Layout, i: int) -> int:
    offset = 0
    for length, stride in reversed(layout.axes):
        i, rest = divmod(i, length)
        offset += rest * stride
    return offset


def norms_of_matrices(call: Call, slices: Slices, norm: Norm, sums: str, to: NormsTo) -> None:
    """Make the largest sum of magnitudes of the columns, or of the rows, of matrices: norms 1 and inf."""
    view, (first, second) = slices.view, slices.axes
    along, over = (first, second) if sums == "columns" else (second, first)
    kept = [axis for axis, _ in Slices.of(view, (along,)).split.kept]
    lengths = [view.shape[axis] for axis in kept]
    at = kept.index(over)
    outer, middle, inner = math.prod(lengths[:at]), lengths[at], math.prod(lengths[at + 1 :])
    if outer * inner == 0:
        return
    values = call.keep(call.device.alloc(16 * max(outer * middle * inner, 1)))
    norms_of_slices(call, view, (along,), Norm.of(1.0), NormsTo(values_at=values.ptr))
    params = argument_of([])
    norm.fill(params, [view.code])
    to.fill(params)
    params[Word.SOURCE] = values.ptr
    params[Word.COUNT] = outer * inner
    params[Word.OUTER], params[Word.MIDDLE], params[Word.INNER] = outer, middle, inner
    call.launch("largest<void>", outer * inner, params)


def norms_given(call: Call, values_at: int, count: int, norm: Norm, to: NormsTo) -> None:
    """Take norms that were made elsewhere: so many values, and as many exponents, float64 both."""
    if count == 0:
        return
    params = argument_of([])
    norm.fill(params, [])
    to.fill(params)
    params[Word.SOURCE], params[Word.COUNT] = values_at, count
    call.launch("singular<void>", count, params)
