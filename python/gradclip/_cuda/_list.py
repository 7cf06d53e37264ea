"""Norms of lists of arrays, and their scaling: one table for all of them, cut into blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gradclip._cuda._layout import Layout, Pair, layout_of, walk_of
from gradclip._cuda._queue import argument_of
from gradclip._cuda._words import (
    BLOCK,
    COMPLEX,
    COMPLEX64,
    COMPLEX128,
    ITEMSIZES,
    PARAMS,
    PARTS,
    REAL,
    SPAN_BLOCKS,
    STATE_WORDS,
    THREADS,
    TYPES,
    Flag,
    NormsTo,
    Order,
    Row,
    Word,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from gradclip._cuda._layout import View
    from gradclip._cuda._queue import Call, Memory
    from gradclip._cuda._words import Norm, Scalar, Words


#: Lists of one array that are kept, because most calls are repeated.
_KEPT = 256


@dataclass(eq=False)
class Tensors:
    """A list of arrays, as arrays of numbers. ``layouts`` has a pair for each array, or is None if all are dense."""

    sources: Words
    targets: Words
    lengths: Words
    codes: Words
    layouts: Sequence[tuple[Layout, Layout]] | None = None

    @classmethod
    def of(cls, pairs: Sequence[tuple[View, View]]) -> Tensors:
        """Make it of pairs of an array and its output; the output's elements are those of the array's walk."""
        sources, targets, layouts = [], [], []
        for source, target in pairs:
            if source.is_dense() and target.strides == source.strides:
                own = other = Layout((), 0)
            else:
                walk = walk_of(source)
                own, other = layout_of(source, walk), layout_of(target, walk)
            sources.append(source.address + own.shift)
            targets.append(target.address + other.shift)
            layouts.append((own, other))
        return cls(
            np.array(sources, np.int64),
            np.array(targets, np.int64),
            np.array([source.size for source, _ in pairs], np.int64),
            np.array([source.code for source, _ in pairs], np.int64),
            None if all(own.is_dense and other.is_dense for own, other in layouts) else layouts,
        )

    def in_parts(self) -> Tensors:
        """Take dense complex arrays as real ones."""
        is_complex = (self.codes == COMPLEX64) | (self.codes == COMPLEX128)
        if not is_complex.any():
            return self
        parts = np.where(self.codes == COMPLEX64, COMPLEX[COMPLEX64], COMPLEX[COMPLEX128])
        lengths = np.where(is_complex, 2 * self.lengths, self.lengths)
        return Tensors(self.sources, self.targets, lengths, np.where(is_complex, parts, self.codes), self.layouts)

    @cached_property
    def key(self) -> Hashable:
        """Return what tells it from other lists."""
        layouts = None if self.layouts is None else tuple(self.layouts)
        targets = None if self.targets is self.sources else self.targets.tobytes()
        return self.sources.tobytes(), targets, self.lengths.tobytes(), self.codes.tobytes(), layouts


@dataclass(slots=True)
class _Table:
    """The table of a list: its words, and where the rows of each dtype stand.

    The table begins with the first slot of each span and the end. The first span of each tensor and the end follow.
    """

    words: Words
    rows: list[tuple[int, int, int, int]]  # code, place, rows, blocks
    slots: int
    spans: int
    tensors: int

    def fill(self, params: Words) -> None:
        params[Word.SLOTS], params[Word.SPANS] = self.slots, self.spans
        params[Word.TENSORS] = self.tensors


def _before(counts: Words) -> Words:
    """Return, for each count, the sum of those before it; and at the end, the sum of all."""
    return np.concatenate(([0], np.cumsum(counts)))


def _table_of(tensors: Tensors) -> _Table:
    blocks = (tensors.lengths + (BLOCK - 1)) // BLOCK
    chosen = np.flatnonzero(blocks)
    if len(chosen) != len(blocks):  # nothing is to be done for empty ones
        blocks = blocks[chosen]
        layouts = None if tensors.layouts is None else [tensors.layouts[i] for i in chosen.tolist()]
        tensors = Tensors(
            tensors.sources[chosen], tensors.targets[chosen], tensors.lengths[chosen], tensors.codes[chosen], layouts
        )
    spans = (blocks + (SPAN_BLOCKS - 1)) // SPAN_BLOCKS
    rows = np.zeros((len(blocks), Row.WORDS), np.int64)
    rows[:, Row.SOURCE] = tensors.sources
    rows[:, Row.TARGET] = tensors.targets
    rows[:, Row.LEN] = tensors.lengths
    slots, tensor_spans = _before(blocks), _before(spans)
    rows[:, Row.SLOT] = slots[:-1]
    rows[:, Row.GROUP] = np.arange(len(blocks))
    codes = tensors.codes.tolist()
    kinds = list(dict.fromkeys(codes))
    of_tensor = np.arange(tensor_spans[-1]) - np.repeat(tensor_spans[:-1], spans)  # the number of a span in its tensor
    span_slots = np.append(np.repeat(slots[:-1], spans) + SPAN_BLOCKS * of_tensor, slots[-1])
    parts = [span_slots, tensor_spans]
    found, place = [], len(span_slots) + len(tensor_spans)
    layouts_at = place + rows.size
    words: list[int] = []
    if tensors.layouts is not None:
        places: dict[tuple[int, ...], int] = {}
        for row, pair in zip(rows, tensors.layouts, strict=True):
            both = 0
            for k, layout in enumerate(pair):
                if not layout.is_dense:
                    own = tuple(layout.words())
                    if own not in places:
                        places[own] = layouts_at + len(words)
                        words += own
                    both |= places[own] << 32 * k
            row[Row.LAYOUTS] = both
    for kind in kinds:
        chosen = tensors.codes == kind
        own_rows, own_blocks = rows[chosen], blocks[chosen]
        own_rows[:, Row.BLOCK] = _before(own_blocks)[:-1]
        parts.append(own_rows.ravel())
        found.append((kind, place, len(own_rows), int(own_blocks.sum())))
        place += own_rows.size
    parts.append(np.array(words, np.int64))
    count = len(blocks)
    return _Table(np.concatenate(parts), found, int(slots[-1]), int(tensor_spans[-1]), count)


def _argument_of(call: Call, words: Words) -> tuple[Words, Memory | None]:
    """Make the argument of kernels, and the memory of its table if that is too long to stand in it."""
    if len(words) <= PARAMS - Word.TABLE:
        return argument_of(words), None
    params, memory = argument_of([]), call.device.upload(words)
    params[Word.TABLE_AT] = memory.ptr
    return params, memory


#: Words that are written at each launch, and flags that a call chooses.
_NORM_AT, _ROWS, _COUNT, _BLOCKS, _DTYPE = map(int, (Word.NORM_AT, Word.ROWS, Word.COUNT, Word.BLOCKS, Word.DTYPE))
_OF_CALLS = (Flag.NARROW_NORM | Flag.EACH).value


#: The most blocks of threads for each multiprocessor, in the kernels that add up and in those that scale. A sum needs
#: many more than run at a time, so that no multiprocessor idles at the end: with 16, the norm of 10^9 bfloat16 elements
#: took 1.04 times as long on an H200. Scaling has as many as an H200 runs at a time. More would take longer to start
#: and end where nothing needs scaling.
_EACH_ADDS, _EACH_SCALES = 32, 4


class Plan:
    """The launches for a list: what of them does not change from call to call with the same arrays."""

    def __init__(self, call: Call, tensors: Tensors, norm: Norm, scaled: Tensors | None, *, is_given: bool) -> None:
        table = _table_of(tensors.in_parts() if norm.order is Order.TWO else tensors)
        self.groups = max(table.tensors, 1)
        # Words of the results of spans and of blocks: see `of_spans` and `of_blocks` of the kernels.
        self.results = 2 * PARTS * table.spans, (PARTS + 1) * table.slots
        self.params, self.memory = _argument_of(call, table.words)
        self.words, self.argument = self.params.data, call.device.argument(self.params)
        table.fill(self.params)
        norm.fill(self.params, tensors.codes.tolist())
        self.passes = [] if is_given else self._passes(call, table, norm)
        # The argument of the kernel that scales, which may have a table of its own.
        self.last, self.last_memory = self.params, None
        self.last_words, self.last_argument = self.words, self.argument
        self.scales: list[tuple[Any, int, int, int, int]] = []
        if scaled is not None:
            if scaled is not tensors or norm.order is not Order.TWO:
                table = _table_of(scaled.in_parts())
                self.last, self.last_memory = _argument_of(call, table.words)
                self.last_words, self.last_argument = self.last.data, call.device.argument(self.last)
            for code, place, count, blocks in reversed(table.rows):
                function = call.device.function(f"scale<{TYPES[code]}>")
                self.scales.append((function, place, count, blocks, call.grid(blocks, THREADS // 32, _EACH_SCALES)))
        if scaled is not None and (scaled.sources == scaled.targets).all():
            self.params[Word.FLAGS] |= Flag.IN_PLACE
        self.settings: tuple[Any, ...] = ()

    def set(  # noqa: PLR0917 (they are one tuple)
        self, limit: Scalar, used: Scalar | None, narrow: bool, each: bool, states: int, room: int, ticket: int
    ) -> None:
        """Write the settings of a call. They seldom differ from those of the last call."""
        self.settings = ()  # as long as not all is written: an interrupt may come
        params = self.params
        flags = int(params[Word.FLAGS]) & ~_OF_CALLS
        params[Word.FLAGS] = flags | Flag.NARROW_NORM.value * narrow | Flag.EACH.value * each
        params[Word.LIMIT : Word.LIMIT + 3] = limit.words()
        if used is not None:
            params[Word.USED : Word.USED + 4] = *used.words(), used.exponent
        params[Word.STATE_AT] = room
        params[Word.SPANS_AT] = room + 8 * states
        params[Word.PARTS_AT] = room + 8 * (states + self.results[0])
        params[Word.TICKET_AT] = ticket
        self.last[Word.FLAGS], self.last[Word.STATE_AT] = params[Word.FLAGS], room
        self.settings = limit, used, narrow, each, states, room, ticket

    def _passes(self, call: Call, table: _Table, norm: Norm) -> list[tuple[Any, int, int, int, int, int]]:
        """Return the passes over the data, and one more where powers need the largest modulus.

        A pass has a kernel for each dtype, and one that adds up the results of the blocks.
        """
        is_wide = bool(int(self.params[Word.FLAGS]) & Flag.WIDE)
        is_power = norm.order is Order.POWER or (norm.order is Order.SIMPLE and is_wide)
        ends = f"ends<{'true' if norm.order is Order.TWO else 'false'}>"
        found = []
        for kernel, end in (("first<void>", ends), ("powers<void>", "power_ends<void>"))[: 2 if is_power else 1]:
            for code, place, count, blocks in table.rows:
                is_plain = norm.order is Order.TWO and code in REAL
                name = f"sums<{TYPES[code]}, {'true' if is_wide else 'false'}>" if is_plain else kernel
                # The threads on a block: `sums` loads 16-bit elements in pairs.
                team = min(8 * ITEMSIZES[code], 32) if is_plain else 32
                grid = call.grid(blocks, THREADS // team, _EACH_ADDS)
                found.append((call.device.function(name), place, count, blocks, grid, code))
            found.append((call.device.function(end), 0, 0, 0, max(table.spans, 1), 0))
        return found


def run_list(
    call: Call,
    tensors: Tensors,
    norm: Norm,
    *,
    used: Scalar | None = None,
    norm_at: int = 0,
    narrow: bool = False,
    each: bool = False,
    scaled: Tensors | None = None,
) -> None:
    """Compute the norm of a list, or of each of its arrays, and scale the arrays.

    Parameters
    ----------
    tensors : Tensors
        The arrays whose norm is computed.
    used : Scalar, optional
        The norm, if it is given.
    norm_at : int
        Address for the norms.
    narrow : bool
        Norms are written as float32.
    each : bool
        Each array has a norm of its own.
    scaled : Tensors, optional
        The arrays to scale, with their outputs. None: nothing is scaled.
    """
    device, queue = call.device, call.queue
    other = None if scaled is None or scaled is tensors else scaled.key
    key = tensors.key, other, scaled is None, norm.order, norm.power, norm.mode, norm.elements, used is None
    plans, most = (queue.plans, queue.MOST) if len(tensors.lengths) > 1 else (queue.plans_of_one, queue.MOST_REPEATED)
    plan = plans.pop(key, None) or Plan(call, tensors, norm, scaled, is_given=used is not None)
    plans[key] = plan  # as the newest one
    if len(plans) > most:
        plans.popitem(last=False)

    states = STATE_WORDS * (plan.groups if each else 1)
    room = queue.room(8 * (states + sum(plan.results)))
    ticket = queue.ticket_at()
    settings = norm.limit, used, narrow, each, states, room, ticket
    if plan.settings != settings:
        plan.set(*settings)
    words = plan.words
    words[_NORM_AT] = norm_at
    if used is not None:
        device.launch(device.function("given<void>"), 1, THREADS, plan.argument)
    for function, place, count, blocks, grid, code in plan.passes:
        words[_ROWS], words[_COUNT], words[_BLOCKS], words[_DTYPE] = place, count, blocks, code
        device.launch(function, grid, THREADS, plan.argument)
    words = plan.last_words
    for function, place, count, blocks, grid in plan.scales:
        words[_ROWS], words[_COUNT], words[_BLOCKS] = place, count, blocks
        device.launch(function, grid, THREADS, plan.last_argument)


def whole_of(view: View, norm: Norm) -> Tensors:
    """Return a list of one array, for a norm of it."""
    whole = view.in_parts() if norm.order is Order.TWO else view
    return _one(Pair(whole, whole))


@lru_cache(_KEPT)
def _one(pair: Pair) -> Tensors:
    return Tensors.of([pair])


def scale_whole(call: Call, view: View, pair: Pair, norm: Norm, to: NormsTo | None = None) -> None:
    """Scale an array by the factor of the norm of ``view``. The source of ``pair`` is scaled, which may be a copy."""
    to = to or NormsTo()
    scaled = _one(pair.in_parts())
    # The table of what is scaled will do for the norm too, if that is of the same elements.
    is_one = pair.source is view and (norm.order is Order.TWO or view.code in REAL)
    tensors = scaled if is_one else whole_of(view, norm)
    run_list(call, tensors, norm, norm_at=to.norm_at, narrow=to.narrow, scaled=scaled)
