"""The functions of lists of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradclip._cuda import _device
from gradclip._cuda._arguments import Arguments, Tensor, call_on, code_of, new_like, number_output
from gradclip._cuda._layout import Pair, View
from gradclip._cuda._list import Tensors, run_list
from gradclip._cuda._words import COMPLEX, ITEMSIZES, NAMES, SCALABLE, Mode, Norm, Order, Scalar
from gradclip._exchange import to_float
from gradclip._text import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradclip._cuda._queue import Call
    from gradclip._cuda._words import Words


#: Bytes of an element of each dtype, and what its address is a multiple of.
_SIZES = np.array(ITEMSIZES, np.int64)
_UNITS = np.array([ITEMSIZES[COMPLEX.get(code, code)] for code in range(len(ITEMSIZES))], np.int64)


class _List(NamedTuple):
    """The arrays of a list."""

    entries: tuple[Any, ...]  # None included
    places: list[int]
    arrays: list[Any]
    codes: Words
    addresses: Words | None  # None: not all are dense

    @property
    def views(self) -> list[View]:
        """The arrays, one by one."""
        return [
            View(array.data.ptr, array.shape, array.strides, array.itemsize, code)
            for array, code in zip(self.arrays, self.codes.tolist(), strict=True)
        ]

    def tensors(self, order: Order) -> Tensors:
        """Return them for a norm."""
        if self.addresses is None:
            views = self.views
            if order is Order.TWO:
                views = [view.in_parts() for view in views]
            return Tensors.of([Pair(view, view) for view in views])
        lengths = np.array([array.size for array in self.arrays], np.int64)
        return Tensors(self.addresses, self.addresses, lengths, self.codes)


def _read(arguments: Arguments, entries: tuple[Any, ...], allowed: Sequence[int]) -> _List:
    """Read a list, attribute by attribute for all arrays: that is what a call of many small ones takes."""
    array = _device.cupy().ndarray
    places = [i for i, entry in enumerate(entries) if entry is not None]
    arrays = [entries[i] for i in places]
    if set(map(type, arrays)) != {array} and not all(isinstance(entry, array) for entry in arrays):
        ours = next(i for i in places if isinstance(entries[i], array))
        other = next(i for i in places if not isinstance(entries[i], array))
        found = f"{describe(entries[other])}, and a cupy.ndarray at t_list[{ours}]"
        raise arguments.type_error(f"t_list[{other}]", found, "arrays of one library in a list")
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
    is_plain = is_plain and all([entry._c_contiguous or entry._f_contiguous for entry in arrays])  # noqa: C419, SLF001
    addresses = np.array([entry.data.ptr for entry in arrays], np.int64)
    if is_plain:
        if len(known) == 1:
            codes = np.full(len(arrays), known[0], np.int64)
        else:
            codes = np.array([kinds[id(dtype)] for dtype in dtypes], np.int64)
        if not (addresses % _UNITS[codes]).any():
            return _List(entries, places, arrays, codes, addresses)
    read = [arguments.tensor(f"t_list[{i}]", entry, allowed) for i, entry in zip(places, arrays, strict=True)]
    return _List(entries, places, arrays, np.array([tensor.view.code for tensor in read], np.int64), None)


def global_norm(t_list: tuple[Any, ...], name: Any, ord: Any, function: str = "global_norm") -> Any:
    """See `gradclip.global_norm`."""
    arguments = Arguments(function, name)
    given = _read(arguments, t_list, range(len(NAMES)))
    arguments.check_name()
    norm = Norm.of(arguments.order(ord))
    with call_on(given.arrays[0]) as call:
        result = number_output(call, given.arrays[0])
        run_list(call, given.tensors(norm.order), norm, norm_at=result.data.ptr)
    return result


def norm_on_host(function: str, t_list: tuple[Any, ...], name: Any, ord: Any) -> tuple[float, int]:
    """Return the norm of a list and its number of elements, for other processes. It waits for the device."""
    norm = global_norm(t_list, name, ord, function)
    return float(norm.get()), sum(array.size for array in t_list if array is not None)


def clip_by_global_norm(  # noqa: PLR0917 (TensorFlow's signature)
    t_list: tuple[Any, ...], clip_norm: Any, use_norm: Any, name: Any, ord: Any, out: Any
) -> tuple[list[Any], Any]:
    """See `gradclip.clip_by_global_norm`. ``use_norm`` may be a function that asks other processes for the norm."""
    arguments = Arguments("clip_by_global_norm", name)
    given = _read(arguments, t_list, SCALABLE)
    device = given.arrays[0].data.device_id
    limit = arguments.scalar("clip_norm", clip_norm, device, nan=False)
    used = None if use_norm is None or callable(use_norm) else arguments.scalar("use_norm", use_norm, device, nan=True)
    arguments.check_name()
    norm = Norm.of(arguments.order(ord), Mode.GLOBAL, limit)
    outs = arguments.out_sequence(out, len(given.entries))
    with call_on(given.arrays[0]) as call:
        tensors = given.tensors(norm.order)
        made, scaled = _scaled(arguments, call, given, tensors, outs)
        if scaled.sources is tensors.sources:
            tensors = scaled  # one table for the norm and for what is scaled
        if callable(use_norm):
            ((value, exponent),), _ = use_norm()
            used = Scalar(to_float(value, exponent))
        result = number_output(call, given.arrays[0])
        run_list(call, tensors, norm, used=used, norm_at=result.data.ptr, scaled=scaled)
    results: list[Any] = [None] * len(given.entries)
    for i, array in zip(given.places, made, strict=True):
        results[i] = array
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
    arguments: Arguments, call: Call, given: _List, tensors: Tensors, outs: Sequence[Any] | None
) -> tuple[list[Any], Tensors]:
    """Return the outputs for a list, and what is read and written for them."""
    if given.addresses is not None:
        if outs is not None and _are_same(given.entries, outs) and not _overlap(tensors, _SIZES[given.codes]):
            return given.arrays, tensors
        if outs is None and all([array._c_contiguous for array in given.arrays]):  # noqa: C419, SLF001
            made = [_device.empty(array.shape, array.dtype, array) for array in given.arrays]
            call.keep(made)
            targets = np.array([array.data.ptr for array in made], np.int64)
            return made, Tensors(tensors.sources, targets, tensors.lengths, tensors.codes)
    inputs = [Tensor(array, view) for array, view in zip(given.arrays, given.views, strict=True)]
    sources = [tensor.view for tensor in inputs]
    if outs is None:
        outputs = [new_like(tensor) for tensor in inputs]
        call.keep([tensor.array for tensor in outputs])
    else:
        outputs = _outputs(arguments, call, given, inputs, outs)
        sources = arguments.arrange(call, [tensor.view for tensor in outputs], sources, given.places)
    pairs = [Pair(source, tensor.view).in_parts() for source, tensor in zip(sources, outputs, strict=True)]
    return [tensor.array for tensor in outputs], Tensors.of(pairs)


def _are_same(entries: Sequence[Any], others: Sequence[Any]) -> bool:
    return all([a is b for a, b in zip(entries, others, strict=True)])  # noqa: C419 (a list is faster)


def _overlap(tensors: Tensors, itemsizes: Words) -> bool:
    """Whether two dense arrays share a byte."""
    # The compiled check, which is for any arrays, takes longer than all the rest of a call with many of them.
    sizes = tensors.lengths * itemsizes
    order = np.argsort(tensors.sources, kind="stable")
    order = order[sizes[order] > 0]
    begins = tensors.sources[order]
    return bool((begins[:-1] + sizes[order][:-1] > begins[1:]).any())
