"""Elementwise operations: clipping to bounds, copies, conversions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gradclip._cuda._layout import Pair, Places, View, dense_strides, layout_of, walk_of
from gradclip._cuda._queue import argument_of
from gradclip._cuda._words import MOVED_AS, TYPES, Flag, Word

if TYPE_CHECKING:
    from gradclip._cuda._layout import Walk
    from gradclip._cuda._queue import Call
    from gradclip._cuda._words import Scalar, Words


class Bound(NamedTuple):
    """A bound of `clip`: bits, or an array of the dtype and the shape."""

    bits: int = 0
    view: View | None = None


def clip(call: Call, pair: Pair, lo: Bound, hi: Bound) -> None:
    """Limit elements to bounds."""
    call.repeat(("clip", pair, lo, hi), lambda: _clip(call, pair, lo, hi))


def _clip(call: Call, pair: Pair, lo: Bound, hi: Bound) -> None:
    source, target = pair
    if source.size == 0:
        return
    places = Places()
    walk = walk_of(target)  # neighbouring threads write neighbouring elements, and read them where the arrays are alike
    params_of = []
    for view in (source, target, lo.view, hi.view):
        layout = None if view is None else layout_of(view, walk)
        place = 0 if layout is None else places.add(layout)
        address = 0 if view is None or layout is None else view.address + layout.shift
        params_of.append((address, place))
    params = argument_of(places.words)
    at = (Word.SOURCE, Word.TARGET, Word.LO_AT, Word.HI_AT)
    layouts = (Word.SOURCE_LAYOUT, Word.TARGET_LAYOUT, Word.LO_LAYOUT, Word.HI_LAYOUT)
    for (address, place), word, layout_word in zip(params_of, at, layouts, strict=True):
        params[word], params[layout_word] = address, place
    params[Word.LO], params[Word.HI] = _signed(lo.bits), _signed(hi.bits)
    params[Word.COUNT] = source.size
    if source == target:
        params[Word.FLAGS] |= Flag.IN_PLACE
    call.launch(f"clip<{TYPES[source.code]}>", source.size, params)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def clip_magnitudes(call: Call, pair: Pair, limit: Scalar) -> None:
    """Limit the magnitude of each element."""
    call.repeat(("magnitudes", pair), lambda: _clip_magnitudes(call, pair, limit), limit)


def _clip_magnitudes(call: Call, pair: Pair, limit: Scalar) -> None:
    if pair.source.size == 0:
        return
    params = _of_pair(pair, walk_of(pair.target))
    params[Word.LIMIT : Word.LIMIT + 3] = limit.words()
    call.launch(f"magnitudes<{TYPES[pair.source.code]}>", pair.source.size, params)


def copied(call: Call, view: View) -> View:
    """Copy an array to scratch memory, C-contiguous."""
    memory = call.keep(call.device.alloc(max(view.size, 1) * view.itemsize))
    copy = view._replace(address=memory.ptr, strides=dense_strides(view.shape, view.itemsize))
    if view.size:
        pair = Pair(view, copy) if view.itemsize in MOVED_AS else Pair(view, copy).in_parts()
        walk = tuple((axis, False) for axis in range(len(pair.source.shape)))
        params = _of_pair(pair, walk)
        call.launch(f"copy<{MOVED_AS[pair.source.itemsize]}>", pair.source.size, params)
    return copy


def converted(call: Call, view: View, code: int, itemsize: int, *, is_number: bool) -> View:
    """Bring an array to another dtype, rounded once: scratch memory, C-contiguous."""
    memory = call.keep(call.device.alloc(max(view.size, 1) * itemsize))
    made = View(memory.ptr, view.shape, dense_strides(view.shape, itemsize), itemsize, code)
    if view.size:
        params = _of_pair(Pair(view, made), tuple((axis, False) for axis in range(len(view.shape))))
        params[Word.DTYPE], params[Word.TARGET_DTYPE] = view.code, code
        if is_number:
            params[Word.FLAGS] |= Flag.NUMBER
        call.launch("conversion<void>", view.size, params)
    return made


def _of_pair(pair: Pair, walk: Walk) -> Words:
    source, target = pair
    made = Places()
    own, other = layout_of(source, walk), layout_of(target, walk)
    places = made.add(own), made.add(other)
    params = argument_of(made.words)
    params[Word.SOURCE], params[Word.TARGET] = source.address + own.shift, target.address + other.shift
    params[Word.SOURCE_LAYOUT], params[Word.TARGET_LAYOUT] = places
    params[Word.COUNT] = source.size
    if source == target:
        params[Word.FLAGS] |= Flag.IN_PLACE
    return params
