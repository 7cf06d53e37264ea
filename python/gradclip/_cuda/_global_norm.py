"""The functions of lists of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradclip._cuda import _device
from gradclip._cuda._arguments import Arguments, Tensor, call_on, code_of, new_like, number_output
from gradclip._cuda._known import identity_of, recall, remember
from gradclip._cuda._layout import Pair, View
from gradclip._cuda._list import Tensors, run_list
from gradclip._cuda._words import COMPLEX, ITEMSIZES, NAMES, SCALABLE, Mode, Norm, Order, Scalar
from gradclip._text import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradclip._cuda._queue import Call
    from gradclip._cuda._words import Words


#: Bytes of an element of each dtype, and what its address is a multiple of.
_SIZES = np.array(ITEMSIZES, np.int64)
_UNITS = np.array([ITEMSIZES[COMPLEX.get(code, code)] for code in range(len(ITEMSIZES))], np.int64)


@dataclass(eq=False)
class _Read:
    """What was read of the arrays of a list. It holds none of them, as it is kept for later calls."""

    identity: bytes
    places: list[int]
    codes: Words
    kinds: frozenset[int]  # of the codes
    dense: Tensors | None = None  # None: not all are dense
    is_in_order: bool = False  # all are C-contiguous

    @cached_property
    def is_apart(self) -> bool:
        """Whether no two of the dense arrays share a byte."""
        # The compiled check, which is for any arrays, takes longer than all the rest of a call with many of them.
        if self.dense is None:
            return False
        sizes = self.dense.lengths * _SIZES[self.codes]
        order = np.argsort(self.dense.sources, kind="stable")
        order = order[sizes[order] > 0]
        begins = self.dense.sources[order]
        return not (begins[:-1] + sizes[order][:-1] > begins[1:]).any()


class _List(NamedTuple):
    """The arrays of a list, and what was read of them."""

    entries: tuple[Any, ...]  # None included
    read: _Read

    @property
    def first(self) -> Any:
        """The first array."""
        return self.entries[self.read.places[0]]

    @property
    def arrays(self) -> list[Any]:
        """The arrays."""
        return [self.entries[i] for i in self.read.places]

    @property
    def views(self) -> list[View]:
        """The arrays, one by one."""
        return [
            View(array.data.ptr, array.shape, array.strides, array.itemsize, code)
            for array, code in zip(self.arrays, self.read.codes.tolist(), strict=True)
        ]

    def tensors(self, order: Order) -> Tensors:
        """Return them for a norm."""
        if self.read.dense is not None:
            return self.read.dense
        views = self.views
        if order is Order.TWO:
            views = [view.in_parts() for view in views]
        return Tensors.of([Pair(view, view) for view in views])


def _list_of(arguments: Arguments, entries: tuple[Any, ...], allowed: Sequence[int]) -> _List:
    """Read a list, which an earlier call may have done."""
    identity = identity_of(entries)
    read = recall(identity)
    if read is None or not all(kind in allowed for kind in read.kinds):
        read = _read(arguments, entries, allowed, identity)
    return _List(entries, read)


def _read(arguments: Arguments, entries: tuple[Any, ...], allowed: Sequence[int], identity: bytes) -> _Read:
    """Read a list, one attribute of all arrays after another: the main cost of a call with many small arrays."""
    array = _device.cupy().ndarray
    places = [i for i, entry in enumerate(entries) if entry is not None]
    arrays = [entries[i] for i in places]
    is_exact = set(map(type, arrays)) == {array}
    if not is_exact and not all(isinstance(entry, array) for entry in arrays):
        ours = next(i for i in places if isinstance(entries[i], array))
        other = next(i for i in places if not isinstance(entries[i], array))
        found = f"{describe(entries[other])}, and a cupy.ndarray at t_list[{ours}]"
        raise arguments.type_error(f"t_list[{other}]", found, "arrays of one library in a list")
    if not is_exact:
        for i in places:
            arguments.check_memory(f"t_list[{i}]", entries[i])
    devices = [entry.data.device_id for entry in arrays]
    if len(set(devices)) > 1:
        other = next(i for i, device in enumerate(devices) if device != devices[0])
        allowed_there = f"arrays on device {devices[0]}, as t_list[{places[0]}] is"
        raise arguments.value_error(f"t_list[{places[other]}]", f"an array on device {devices[other]}", allowed_there)
    dtypes = [entry.dtype for entry in arrays]
    # Of the common dtypes there is one object each, and to hash a dtype takes long.
    kinds = {id(dtype): code_of(dtype) for dtype in {id(dtype): dtype for dtype in dtypes}.values()}
    known = [code for code in kinds.values() if code is not None and code in allowed]
    is_plain = len(known) == len(kinds)
    is_in_order = all([entry._c_contiguous for entry in arrays])  # noqa: C419, SLF001 (a list is faster)
    if is_plain and (is_in_order or all(entry._c_contiguous or entry._f_contiguous for entry in arrays)):  # noqa: SLF001
        addresses = np.array([entry.data.ptr for entry in arrays], np.int64)
        lengths = np.array([entry.size for entry in arrays], np.int64)
        if len(known) == 1:
            codes = np.full(len(arrays), known[0], np.int64)
        else:
            codes = np.array([kinds[id(dtype)] for dtype in dtypes], np.int64)
        if not (addresses % _UNITS[codes]).any() and not lengths[addresses == 0].any():
            dense = Tensors(addresses, addresses, lengths, codes)
            read = _Read(identity, places, codes, frozenset(known), dense, is_in_order)
            if is_exact:  # of a subclass one does not know what can change
                remember(identity, arrays, read)
            return read
    tensors = [arguments.tensor(f"t_list[{i}]", entry, allowed) for i, entry in zip(places, arrays, strict=True)]
    codes = np.array([tensor.view.code for tensor in tensors], np.int64)
    return _Read(identity, places, codes, frozenset(codes.tolist()))


def global_norm(t_list: tuple[Any, ...], name: Any, ord: Any) -> Any:
    """See `gradclip.global_norm`."""
    return _norm_of("global_norm", t_list, name, ord, Mode.NORM)


def norm_on_host(function: str, t_list: tuple[Any, ...], name: Any, ord: Any) -> tuple[tuple[float, int], int]:
    """Return the norm of a list and its number of elements, for other processes. It waits for the device.

    The norm is a value and an exponent, because it may lie beyond float64. That of order 2 is squared, because a sum of
    squares follows, and a root rounds.
    """
    value, exponent = _norm_of(function, t_list, name, ord, Mode.PART).get().tolist()
    return (value, int(exponent)), sum(array.size for array in t_list if array is not None)


def _norm_of(function: str, t_list: tuple[Any, ...], name: Any, ord: Any, mode: Mode) -> Any:
    arguments = Arguments(function, name)
    given = _list_of(arguments, t_list, range(len(NAMES)))
    arguments.check_name()
    norm = Norm.of(arguments.order(ord), mode)
    with call_on(given.first) as call:
        result = number_output(call, given.first, (2,) if mode is Mode.PART else ())
        run_list(call, given.tensors(norm.order), norm, norm_at=result.data.ptr)
    return result


def clip_by_global_norm(  # noqa: PLR0917 (TensorFlow's signature)
    t_list: tuple[Any, ...], clip_norm: Any, use_norm: Any, name: Any, ord: Any, out: Any
) -> tuple[list[Any], Any]:
    """See `gradclip.clip_by_global_norm`. ``use_norm`` may be a function that asks other processes for the norm."""
    arguments = Arguments("clip_by_global_norm", name)
    given = _list_of(arguments, t_list, SCALABLE)
    device = given.first.data.device_id
    limit = arguments.scalar("clip_norm", clip_norm, device, nan=False)
    used = None if use_norm is None or callable(use_norm) else arguments.scalar("use_norm", use_norm, device, nan=True)
    arguments.check_name()
    norm = Norm.of(arguments.order(ord), Mode.GLOBAL, limit)
    outs = arguments.out_sequence(out, len(given.entries))
    with call_on(given.first) as call:
        tensors = given.tensors(norm.order)
        results, scaled = _scaled(arguments, call, given, tensors, outs)
        if scaled.sources is tensors.sources:
            tensors = scaled  # one table for the norm and for what is scaled
        if callable(use_norm):
            with call.apart():  # the other processes may be threads that use this stream
                ((value, exponent),), _ = use_norm()
            used = Scalar(value, exponent=int(exponent))
        result = number_output(call, given.first)
        run_list(call, tensors, norm, used=used, norm_at=result.data.ptr, scaled=scaled)
    return results, result


def _outputs(arguments: Arguments, call: Call, given: _List, inputs: list[Tensor], outs: Sequence[Any]) -> list[Tensor]:
    """Check the outputs that the caller gave, one after the other, and make new ones where there are none."""
    rest = iter(inputs)
    outputs = []
    for i, (entry, own) in enumerate(zip(given.entries, outs, strict=True)):
        if entry is not None and own is not None:
            outputs.append(arguments.out(f"out[{i}]", own, next(rest)))
        elif entry is not None:
            new = new_like(next(rest))
            call.keep([new.array])
            outputs.append(new)
        elif own is not None:
            raise arguments.wrong_type(f"out[{i}]", own, "None, as t_list has there")
    return outputs


def _scaled(
    arguments: Arguments, call: Call, given: _List, tensors: Tensors, outs: tuple[Any, ...] | None
) -> tuple[list[Any], Tensors]:
    """Return the outputs for a list, None included, and what is read and written for them."""
    read = given.read
    is_in_place = outs is given.entries or (outs is not None and identity_of(outs) == read.identity)
    if is_in_place and read.dense is not None and read.is_apart:
        return list(given.entries), tensors
    if outs is None and read.is_in_order:
        made = [_device.empty(array.shape, array.dtype, array) for array in given.arrays]
        call.keep(made)
        targets = np.array([array.data.ptr for array in made], np.int64)
        return _in_places(given, made), Tensors(tensors.sources, targets, tensors.lengths, tensors.codes)
    inputs = [Tensor(array, view) for array, view in zip(given.arrays, given.views, strict=True)]
    sources = [tensor.view for tensor in inputs]
    if outs is None:
        outputs = [new_like(tensor) for tensor in inputs]
        call.keep([tensor.array for tensor in outputs])
    else:
        outputs = _outputs(arguments, call, given, inputs, outs)
        sources = arguments.arrange(call, [tensor.view for tensor in outputs], sources, given.read.places)
    pairs = [Pair(source, tensor.view).in_parts() for source, tensor in zip(sources, outputs, strict=True)]
    return _in_places(given, [tensor.array for tensor in outputs]), Tensors.of(pairs)


def _in_places(given: _List, arrays: list[Any]) -> list[Any]:
    """Return outputs where their inputs stand in the list, and None elsewhere."""
    if len(arrays) == len(given.entries):
        return list(arrays)
    results: list[Any] = [None] * len(given.entries)
    for i, array in zip(given.read.places, arrays, strict=True):
        results[i] = array
    return results
