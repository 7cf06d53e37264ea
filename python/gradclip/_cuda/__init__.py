"""The functions for CuPy arrays, on the device that these lie on. The compiled part hands such calls on to here.

Arguments are checked by the compiled part's rules, in the order of the signature. Nothing waits for the device: a
norm stays there, and what is to be done with it is decided there.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from gradclip import _core
from gradclip._matrix import largest_singular_values
from gradclip._cuda import _device, _launch
from gradclip._cuda._launch import Bound, Mode, Norm, Scalar, Tensors, View

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradclip._cuda._launch import Device, Words

__all__ = [
    "clip_by_average_norm",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "global_norm",
    "norm",
    "normalize",
    "release",
]

release = _launch.release

_codes: dict[np.dtype[Any], int | None] = {}


def _code_of(dtype: np.dtype[Any]) -> int | None:
    """Return the code of a dtype; None if it has none."""
    try:
        return _codes[dtype]
    except KeyError:
        name = dtype.name if dtype.kind in "fciub" or dtype.type.__module__ == "ml_dtypes" else ""
        code = _launch.NAMES.index(name) if name in _launch.NAMES else None
        _codes[dtype] = code
        return code


def _is_array(value: Any) -> bool:
    return isinstance(value, _device.cupy().ndarray)


class _Tensor(NamedTuple):
    """An array of the caller, as the launches see it."""

    array: Any
    view: View

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.array.dtype
        return dtype


class _Arguments:
    """The arguments of one call: their checks, and its errors."""

    def __init__(self, function: str, name: Any) -> None:
        self.function, self.name = function, name

    def type_error(self, argument: str, found: str, allowed: str) -> NoReturn:
        raise _core.type_error(self.function, self.name, argument, found, allowed)

    def value_error(self, argument: str, found: str, allowed: str) -> NoReturn:
        raise _core.value_error(self.function, self.name, argument, found, allowed)

    def tensor(self, argument: str, array: Any, allowed: Sequence[int], device: int | None = None) -> _Tensor:
        """Return a tensor of one of the dtypes."""
        if not _is_array(array):
            self.type_error(argument, _core.describe(array), "a cupy.ndarray, as the tensor is")
        code = _code_of(array.dtype)
        if code is None or code not in allowed:
            names = ", ".join(name for i, name in enumerate(_launch.NAMES) if i in allowed)
            self.type_error(argument, _core.dtype_text(array), names)
        own = array.data.device_id
        if device is not None and own != device:
            self.value_error(argument, f"an array on device {own}", f"arrays on device {device}, as the tensor is")
        view = View(array.data.ptr, array.shape, array.strides, array.itemsize, code)
        self._check_aligned(argument, view)
        return _Tensor(array, view)

    def _check_aligned(self, argument: str, view: View) -> None:
        unit = view.in_parts().itemsize
        if view.size and (view.address % unit or any(stride % view.itemsize for stride in view.strides)):
            self.value_error(argument, "an array that is not aligned", "elements at multiples of their size")

    def out(self, argument: str, out: Any, tensor: _Tensor) -> _Tensor:
        """Return the output for a tensor: what the caller gave, or a new array."""
        view = tensor.view
        if out is None:
            return _new_like(tensor)
        if not _is_array(out):
            self.type_error(argument, _core.describe(out), "None or a cupy.ndarray")
        if out.dtype != tensor.dtype:
            self.type_error(argument, _core.dtype_text(out), f"dtype {_launch.NAMES[view.code]}")
        if out.shape != view.shape:
            self.value_error(argument, f"shape {_core.shape_text(out.shape)}", f"shape {_core.shape_text(view.shape)}")
        return self.tensor(argument, out, (view.code,), tensor.array.data.device_id)

    def scalar(self, argument: str, value: Any, device: int, *, nan: bool) -> Scalar:
        """Return a limit: a number, or a 0-d array on the device, which is not looked at here."""
        if not _is_array(value):
            return Scalar(_core.check_limit(self.function, self.name, argument, value, nan))
        code = _code_of(value.dtype)
        if value.ndim != 0 or code not in _launch.ORDERED:
            # The error that a NumPy array of this shape and dtype gets.
            same = np.broadcast_to(np.ones((), value.dtype), value.shape)
            _core.check_limit(self.function, self.name, argument, same, nan)
        tensor = self.tensor(argument, value, _launch.ORDERED, device)
        return Scalar(0.0, tensor.view.address, tensor.view.code)

    def arrange(self, call: _launch.Call, outputs: list[View], inputs: list[View], *, one: bool) -> list[View]:
        """Return the inputs, copied where an output would overwrite them; raise where outputs share memory."""
        if all(a == b for a, b in zip(outputs, inputs, strict=False)) and len(outputs) == len(inputs) == 1:
            dense = outputs[0].strides == _launch.dense_strides(outputs[0].shape, outputs[0].itemsize)
            if dense:
                return inputs
        clash, copies = _core.arrange_device([_extent(view) for view in outputs], [_extent(view) for view in inputs])
        if clash is not None:
            raise _core.clash_error(self.function, self.name, *clash, one)
        inputs = list(inputs)
        for i in copies:
            inputs[i] = _launch.copied(call, inputs[i])
        return inputs


def _extent(view: View) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    return view.address, view.itemsize, view.shape, view.strides


def _new_like(tensor: _Tensor) -> _Tensor:
    """Make an array of the same dtype and shape, in the memory order that NumPy gives a result."""
    view = tensor.view
    array = _empty(view.shape, _launch.memory_order(view.shape, view.strides), tensor.dtype, tensor.array)
    return _Tensor(array, View(array.data.ptr, array.shape, array.strides, view.itemsize, view.code))


def _empty(shape: tuple[int, ...], order: Sequence[int], dtype: Any, like: Any) -> Any:
    """Make an array whose axes lie in memory in this order, from outer to inner."""
    array = _device.empty(tuple(shape[axis] for axis in order), dtype, like)
    if list(order) == sorted(order):
        return array
    return array.transpose([order.index(axis) for axis in range(len(order))])


@contextmanager
def _call_on(array: Any) -> Iterator[_launch.Call]:
    """Make an array's device the current one, and its stream this call's."""
    device: Device = _device.device_of(array)
    with device.current(), _launch.Call(device) as call:
        yield call


def _norm_output(call: _launch.Call, shape: tuple[int, ...], order: Sequence[int], code: int | None, like: Any) -> Any:
    """Make an array for norms: float64, or float32 for norms of narrow dtypes that keep an axis."""
    dtype = np.float32 if code in _launch.NARROW else np.float64
    return call.keep(_empty(shape, order, np.dtype(dtype), like))


# ---- clippers


def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: Any, out: Any) -> Any:
    """See `gradclip.clip_by_value`."""
    arguments = _Arguments("clip_by_value", name)
    tensor = arguments.tensor("t", t, _launch.ORDERED)
    given = {"clip_value_min": clip_value_min, "clip_value_max": clip_value_max}
    bounds = [_bound(arguments, argument, bound, tensor) for argument, bound in given.items()]
    if clip_value_min is None and clip_value_max is None:
        arguments.value_error("clip_value_min", "None for both bounds", "None for one of them")
    _core.check_name(arguments.function, name)
    with _call_on(t) as call:
        target = arguments.out("out", out, tensor)
        view = tensor.view
        arrays = [i for i, bound in enumerate(bounds) if bound.view is not None]
        views = [bound.view for bound in bounds if bound.view is not None]
        source = view
        if out is not None:
            source, *views = arguments.arrange(call, [target.view], [view, *views], one=True)
        for i, bound_view in zip(arrays, views, strict=True):
            # One number goes to the dtype as a Python number does, which quiets NaN.
            is_number = not bound_view.shape
            if bound_view.code != view.code or is_number:
                made = _launch.converted(call, bound_view, view.code, view.itemsize, is_number=is_number)
                bound_view = made  # noqa: PLW2901
            bounds[i] = Bound(0, bound_view.broadcast(view.shape))
        _launch.clip(call, source, target.view, *bounds)
    return target.array


#: Bits of what bounds nothing: -inf and inf, or the ends of the range.
def _unbounded(dtype: np.dtype[Any], *, above: bool) -> int:
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        value = np.array(info.max if above else info.min, dtype)
    else:
        value = np.array(np.inf if above else -np.inf).astype(dtype)
    return int.from_bytes(value.tobytes(), "little")


def _bound(arguments: _Arguments, argument: str, bound: Any, tensor: _Tensor) -> Bound:
    """Read a bound: None, a number, or an array on the device that broadcasts to the tensor."""
    if bound is None:
        return Bound(_unbounded(tensor.dtype, above=argument == "clip_value_max"))
    if not _is_array(bound):
        code = tensor.view.code
        bits = _core.check_number_bound(arguments.function, arguments.name, argument, bound, code)
        if bits is None:
            allowed = "None, a real number or a cupy.ndarray of real numbers"
            if code not in _launch.REAL:
                allowed = "None, an int or a cupy.ndarray of integers"
            arguments.type_error(argument, _core.describe(bound), f"{allowed}, for a tensor that is a cupy.ndarray")
        return Bound(bits)
    code = _code_of(bound.dtype)
    if code not in _launch.ORDERED or (code in _launch.REAL and tensor.view.code not in _launch.REAL):
        # The error that a NumPy array of this shape and dtype gets.
        same = np.broadcast_to(np.zeros((), bound.dtype), bound.shape)
        bounds = (same, None) if argument == "clip_value_min" else (None, same)
        _core.clip_by_value(np.zeros((), tensor.dtype), *bounds, arguments.name, None)
    view = arguments.tensor(argument, bound, _launch.ORDERED, tensor.array.data.device_id).view
    shape = tensor.view.shape
    own = view.shape
    if len(own) > len(shape) or any(a not in {1, b} for a, b in zip(own[::-1], shape[::-1], strict=False)):
        allowed = f"a shape that broadcasts to that of the tensor, {_core.shape_text(shape)}"
        arguments.value_error(argument, f"shape {_core.shape_text(own)}", allowed)
    return Bound(0, view)


def clip_by_norm(t: Any, clip_norm: Any, axes: Any, name: Any, out: Any) -> Any:
    """See `gradclip.clip_by_norm`."""
    arguments = _Arguments("clip_by_norm", name)
    tensor = arguments.tensor("t", t, _launch.SCALABLE)
    view = tensor.view
    limit = arguments.scalar("clip_norm", clip_norm, t.data.device_id, nan=False)
    along = _core.check_axes(arguments.function, name, "axes", axes, len(view.shape))
    _core.check_name(arguments.function, name)
    with _call_on(t) as call:
        target = arguments.out("out", out, tensor)
        source = view if out is None else arguments.arrange(call, [target.view], [view], one=True)[0]
        norm = Norm.of(2.0, Mode.CLIP, limit)
        if along is not None and not along and view.shape and view.code in _launch.REAL:
            _launch.clip_magnitudes(call, source, target.view, limit)
        elif along is not None and len(along) < len(view.shape):
            _launch.scale_slices(call, view, source, target.view, along, norm)
        else:
            _clip_whole(call, view, source, target.view, norm)
    return target.array


def clip_by_average_norm(t: Any, clip_norm: Any, name: Any, out: Any) -> Any:
    """See `gradclip.clip_by_average_norm`."""
    arguments = _Arguments("clip_by_average_norm", name)
    tensor = arguments.tensor("t", t, _launch.SCALABLE)
    limit = arguments.scalar("clip_norm", clip_norm, t.data.device_id, nan=False)
    _core.check_name(arguments.function, name)
    with _call_on(t) as call:
        target = arguments.out("out", out, tensor)
        view = tensor.view
        source = view if out is None else arguments.arrange(call, [target.view], [view], one=True)[0]
        _clip_whole(call, view, source, target.view, Norm.of(2.0, Mode.AVERAGE, limit, view.size))
    return target.array


def _clip_whole(call: _launch.Call, view: View, source: View, target: View, norm: Norm, norm_at: int = 0) -> None:
    """Scale a tensor by what comes of its norm."""
    scaled = Tensors.of([(source.in_parts(), target.in_parts())])
    # The table of what is scaled will do for the norm too, if that is of the same elements.
    is_one = source is view and (norm.order is _launch.Order.TWO or view.code in _launch.REAL)
    tensors = scaled if is_one else _whole(view, norm)
    narrow = view.code in _launch.NARROW
    _launch.run_list(call, tensors, norm, norm_at=norm_at, narrow=narrow, scaled=scaled)


def _whole(view: View, norm: Norm) -> Tensors:
    """Return a list of one array, for a norm of it."""
    whole = view.in_parts() if norm.order is _launch.Order.TWO else view
    return Tensors.of([(whole, whole)])


# ---- lists


def _entries(
    arguments: _Arguments, entries: tuple[Any, ...], allowed: Sequence[int]
) -> tuple[list[int], list[Any], np.ndarray[Any, Any], Words | None]:
    """Return the places of a list's arrays, these, their codes, and their addresses if all are dense."""
    array = _device.cupy().ndarray
    places = [i for i, entry in enumerate(entries) if entry is not None]
    arrays = [entries[i] for i in places]
    if set(map(type, arrays)) != {array} and not all(isinstance(entry, array) for entry in arrays):
        ours = next(i for i in places if isinstance(entries[i], array))
        other = next(i for i in places if not isinstance(entries[i], array))
        found = f"{_core.describe(entries[other])}, and a cupy.ndarray at t_list[{ours}]"
        arguments.type_error(f"t_list[{other}]", found, "arrays of one library in a list")
    devices = [entry.data.device_id for entry in arrays]
    if len(set(devices)) > 1:
        other = next(i for i, device in enumerate(devices) if device != devices[0])
        found = f"an array on device {devices[other]}"
        allowed_there = f"arrays on device {devices[0]}, as t_list[{places[0]}] is"
        arguments.value_error(f"t_list[{places[other]}]", found, allowed_there)
    dtypes = [entry.dtype for entry in arrays]
    # Of the common dtypes there is one object each, and to hash a dtype takes long.
    kinds = {id(dtype): _code_of(dtype) for dtype in {id(dtype): dtype for dtype in dtypes}.values()}
    for i, entry, dtype in zip(places, arrays, dtypes, strict=True) if not _are_in(kinds, allowed) else ():
        if kinds[id(dtype)] not in allowed:
            arguments.tensor(f"t_list[{i}]", entry, allowed)
    if len(kinds) == 1:
        codes = np.full(len(arrays), *kinds.values(), np.int64)
    else:
        codes = np.array([kinds[id(dtype)] for dtype in dtypes], np.int64)
    addresses = np.array([entry.data.ptr for entry in arrays], np.int64)
    is_plain = all([entry._c_contiguous or entry._f_contiguous for entry in arrays])  # noqa: C419, SLF001
    if not is_plain or (addresses % _UNITS[codes]).any():
        for i, entry in zip(places, arrays, strict=True):
            arguments.tensor(f"t_list[{i}]", entry, allowed)
        return places, arrays, codes, None
    return places, arrays, codes, addresses


def _are_in(kinds: dict[int, int | None], allowed: Sequence[int]) -> bool:
    return all(code in allowed for code in kinds.values())


#: What the addresses of each dtype are multiples of.
_UNITS = np.array((2, 2, 4, 8, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1), np.int64)
_ITEMSIZES = np.array((2, 2, 4, 8, 8, 16, 1, 2, 4, 8, 1, 2, 4, 8, 1), np.int64)


def _views(arrays: Sequence[Any], codes: Any) -> list[View]:
    return [
        View(array.data.ptr, array.shape, array.strides, array.itemsize, int(code))
        for array, code in zip(arrays, codes, strict=True)
    ]


def _tensors(arrays: Sequence[Any], codes: Any, addresses: Words | None, order: _launch.Order) -> Tensors:
    """Return a list for the norm of it."""
    if addresses is None:
        views = _views(arrays, codes)
        if order is _launch.Order.TWO:
            views = [view.in_parts() for view in views]
        return Tensors.of([(view, view) for view in views])
    lengths = np.array([array.size for array in arrays], np.int64)
    return Tensors(addresses, addresses, lengths, codes)


def global_norm(t_list: tuple[Any, ...], name: Any, ord: Any) -> Any:
    """See `gradclip.global_norm`."""
    arguments = _Arguments("global_norm", name)
    _, arrays, codes, addresses = _entries(arguments, t_list, range(len(_launch.NAMES)))
    _core.check_name(arguments.function, name)
    norm = Norm.of(_core.check_order(arguments.function, name, ord))
    with _call_on(arrays[0]) as call:
        result = _norm_output(call, (), (), None, arrays[0])
        _launch.run_list(call, _tensors(arrays, codes, addresses, norm.order), norm, norm_at=result.data.ptr)
    return result


def clip_by_global_norm(
    t_list: tuple[Any, ...], clip_norm: Any, use_norm: Any, name: Any, ord: Any, out: Any
) -> tuple[list[Any], Any]:
    """See `gradclip.clip_by_global_norm`."""
    arguments = _Arguments("clip_by_global_norm", name)
    places, arrays, codes, addresses = _entries(arguments, t_list, _launch.SCALABLE)
    device = arrays[0].data.device_id
    limit = arguments.scalar("clip_norm", clip_norm, device, nan=False)
    used = None if use_norm is None else arguments.scalar("use_norm", use_norm, device, nan=True)
    _core.check_name(arguments.function, name)
    norm = Norm.of(_core.check_order(arguments.function, name, ord), Mode.GLOBAL, limit)
    outs = _outputs(arguments, t_list, out)
    with _call_on(arrays[0]) as call:
        given = None if outs is None else [outs[i] for i in places]
        tensors = _tensors(arrays, codes, addresses, norm.order)
        made, scaled = _scaled_list(arguments, call, places, arrays, codes, addresses, tensors, given)
        if scaled.sources is tensors.sources:
            tensors = scaled  # one table for the norm and for what is scaled
        result = _norm_output(call, (), (), None, arrays[0])
        _launch.run_list(call, tensors, norm, used=used, norm_at=result.data.ptr, scaled=scaled)
    results: list[Any] = [None] * len(t_list)
    for i, array in zip(places, made, strict=True):
        results[i] = array
    return results, result


def _outputs(arguments: _Arguments, t_list: tuple[Any, ...], out: Any) -> list[Any] | None:
    """Return the entries of ``out``, as many as the list has."""
    outs: list[Any] | None = _core.check_out_sequence(arguments.function, arguments.name, out, len(t_list))
    if outs is None:
        return None
    for i, (entry, own) in enumerate(zip(t_list, outs, strict=True)):
        if entry is None and own is not None:
            arguments.type_error(f"out[{i}]", _core.describe(own), "None, as t_list has there")
        if entry is not None and own is None:
            arguments.type_error(f"out[{i}]", "None", "an array, as t_list has there")
    return outs


def _scaled_list(
    arguments: _Arguments,
    call: _launch.Call,
    places: list[int],
    arrays: list[Any],
    codes: Any,
    addresses: Words | None,
    tensors: Tensors,
    given: list[Any] | None,
) -> tuple[list[Any], Tensors]:
    """Return the outputs for a list, and what is read and written for them."""
    if addresses is not None and given is not None and _are_same(arrays, given):
        if not _overlap(addresses, tensors.lengths * _ITEMSIZES[codes]):
            return given, tensors
    if addresses is not None and given is None and all([array._c_contiguous for array in arrays]):  # noqa: C419, SLF001
        made = [_device.empty(array.shape, array.dtype, array) for array in arrays]
        targets = np.array([array.data.ptr for array in made], np.int64)
        call.keep(made)
        return made, tensors._replace(targets=targets)
    inputs = [_Tensor(array, view) for array, view in zip(arrays, _views(arrays, codes), strict=True)]
    if given is None:
        outputs = [_new_like(tensor) for tensor in inputs]
        call.keep([tensor.array for tensor in outputs])
    else:
        outputs = [
            arguments.out(f"out[{i}]", own, tensor) for i, own, tensor in zip(places, given, inputs, strict=True)
        ]
    sources = [tensor.view for tensor in inputs]
    if given is not None:
        sources = _arranged(arguments, call, places, [tensor.view for tensor in outputs], sources)
    pairs = [(a.in_parts(), tensor.view.in_parts()) for a, tensor in zip(sources, outputs, strict=True)]
    return [tensor.array for tensor in outputs], Tensors.of(pairs)


def _arranged(
    arguments: _Arguments, call: _launch.Call, places: list[int], outputs: list[View], inputs: list[View]
) -> list[View]:
    """Copy inputs that outputs would overwrite; raise where two outputs share memory."""
    clash, copies = _core.arrange_device([_extent(view) for view in outputs], [_extent(view) for view in inputs])
    if clash is not None:
        a, b = clash
        raise _core.clash_error(arguments.function, arguments.name, places[a], places[b], False)
    for i in copies:
        inputs[i] = _launch.copied(call, inputs[i])
    return inputs


def _are_same(arrays: list[Any], others: list[Any]) -> bool:
    return all([a is b for a, b in zip(arrays, others, strict=True)])  # noqa: C419 (a list is faster)


def _overlap(addresses: Words, sizes: Words) -> bool:
    """Whether two of some stretches of memory share a byte."""
    order = np.argsort(addresses, kind="stable")
    order = order[sizes[order] > 0]
    return bool((addresses[order][:-1] + sizes[order][:-1] > addresses[order][1:]).any())


# ---- norms


def norm(tensor: Any, ord: Any, axis: Any, keepdims: Any, name: Any) -> Any:
    """See `gradclip.norm`."""
    arguments = _Arguments("norm", name)
    own = arguments.tensor("tensor", tensor, range(len(_launch.NAMES)))
    along = _Along(arguments, ord, axis, own.view)
    keeps = _core.check_keepdims(arguments.function, name, keepdims)
    _core.check_name(arguments.function, name)
    with _call_on(tensor) as call:
        result = along.output(call, own, keepdims=keeps)
        along.norms(call, own, Mode.NORM, result)
    return result


def normalize(tensor: Any, ord: Any, axis: Any, name: Any, out: Any) -> tuple[Any, Any]:
    """See `gradclip.normalize`."""
    arguments = _Arguments("normalize", name)
    own = arguments.tensor("tensor", tensor, _launch.SCALABLE)
    along = _Along(arguments, ord, axis, own.view)
    _core.check_name(arguments.function, name)
    with _call_on(tensor) as call:
        target = arguments.out("out", out, own)
        source = own.view if out is None else arguments.arrange(call, [target.view], [own.view], one=True)[0]
        result = along.output(call, own, keepdims=True)
        norm = Norm.of(along.order, Mode.NORMALIZE)
        to = _launch.NormsTo(result.data.ptr, result.dtype.itemsize == _HALF)
        if along.kind == "whole":
            _clip_whole(call, own.view, source, target.view, norm, result.data.ptr)
        elif along.kind == "vectors":
            _launch.scale_slices(call, own.view, source, target.view, along.axes, norm, to)
        else:
            count = along.count(own.view)
            factors = call.keep(call.device.alloc(16 * max(count, 1)))
            along.norms(call, own, Mode.NORMALIZE, result, factors.ptr)
            _launch.scale_by_factors(call, own.view, source, target.view, along.axes, factors.ptr)
    return target.array, result


_FROBENIUS, _ONE, _TWO = range(3)  # and infinity
#: Bytes of a float32.
_HALF = 4


class _Along:
    """The axes of a norm, and what is computed along them."""

    def __init__(self, arguments: _Arguments, ord: Any, axis: Any, view: View) -> None:
        self.kind, axes, self.order = _core.check_along(arguments.function, arguments.name, ord, axis, len(view.shape))
        self.axes: list[int] = list(range(len(view.shape))) if axes is None else axes
        if self.kind == "matrices" and self.order == _FROBENIUS:
            self.kind, self.order = "vectors", 2.0

    def kept(self, view: View) -> list[int]:
        """Return the kept axes in the order of the norms in memory."""
        if self.kind == "whole":
            return []
        if self.kind == "vectors":
            return [axis for axis, _ in _launch.Split.of(view, self.axes).kept]
        if self.order == _TWO:
            return [axis for axis in range(len(view.shape)) if axis not in self.axes]
        along = self.axes[0 if self.order == _ONE else 1]
        return [axis for axis, _ in _launch.Split.of(view, [along]).kept if axis not in self.axes]

    def count(self, view: View) -> int:
        """Return the number of norms."""
        count = 1
        for axis in self.kept(view):
            count *= view.shape[axis]
        return count

    def output(self, call: _launch.Call, tensor: _Tensor, *, keepdims: bool) -> Any:
        """Make the array of norms: 0-d float64 if there is one number."""
        view = tensor.view
        kept = self.kept(view)
        if not kept and not keepdims:
            return _norm_output(call, (), (), None, tensor.array)
        if keepdims:
            shape = tuple(length if axis in kept else 1 for axis, length in enumerate(view.shape))
            order = [axis for axis in range(len(view.shape)) if axis not in kept] + kept
        else:
            axes = sorted(kept)
            shape = tuple(view.shape[axis] for axis in axes)
            order = [axes.index(axis) for axis in kept]
        return _norm_output(call, shape, order, view.code, tensor.array)

    def norms(self, call: _launch.Call, tensor: _Tensor, mode: Mode, result: Any, factors_at: int = 0) -> None:
        """Make the norms."""
        view = tensor.view
        to = _launch.NormsTo(result.data.ptr, result.dtype.itemsize == _HALF, factors_at)
        if self.kind == "whole":
            norm = Norm.of(self.order, mode)
            _launch.run_list(call, _whole(view, norm), norm, norm_at=to.norm_at, narrow=to.narrow)
        elif self.kind == "vectors":
            _launch.norms_of_slices(call, view, self.axes, Norm.of(self.order, mode), to)
        elif self.order == _TWO:
            found = largest_singular_values(tensor.array, (self.axes[0], self.axes[1]), _device.cupy())
            values = call.keep(_device.cupy().stack(found))
            norm = Norm.of(2.0, mode)
            _launch.norms_given(call, values.data.ptr, self.count(view), view.code, norm, to)
        else:
            sums = "columns" if self.order == _ONE else "rows"
            _launch.norms_of_matrices(call, view, self.axes, Norm.of(1.0, mode), sums, to)
