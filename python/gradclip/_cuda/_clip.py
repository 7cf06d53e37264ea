"""The clippers of one array."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gradclip import _core
from gradclip._cuda._arguments import Arguments, Tensor, call_on, code_of, is_array
from gradclip._cuda._elements import Bound, clip, clip_magnitudes, converted
from gradclip._cuda._layout import Pair, View
from gradclip._cuda._list import scale_whole
from gradclip._cuda._slices import scale_slices
from gradclip._cuda._words import ITEMSIZES, ORDERED, REAL, SCALABLE, Mode, Norm
from gradclip._text import dtype_text


def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: Any, out: Any) -> Any:
    """See `gradclip.clip_by_value`."""
    arguments = Arguments("clip_by_value", name)
    tensor = arguments.tensor("t", t, ORDERED)
    given = {"clip_value_min": clip_value_min, "clip_value_max": clip_value_max}
    bounds = [_bound(arguments, argument, bound, tensor) for argument, bound in given.items()]
    if clip_value_min is None and clip_value_max is None:
        raise arguments.value_error("clip_value_min", "None for both bounds", "None for one of them")
    arguments.check_name()
    with call_on(t) as call:
        target = arguments.out("out", out, tensor)
        view = tensor.view
        arrays = [i for i, bound in enumerate(bounds) if bound.view is not None]
        views = [bound.view for bound in bounds if bound.view is not None]
        source = view
        if out is not None:
            source, *views = arguments.arrange(call, [target.view], [view, *views])
        for i, bound_view in zip(arrays, views, strict=True):
            # A 0-d bound is converted as a Python number is: a signalling NaN becomes quiet.
            is_number = not bound_view.shape
            if bound_view.code != view.code or is_number:
                made = converted(call, bound_view, view.code, view.itemsize, is_number=is_number)
                bound_view = made  # noqa: PLW2901
            bounds[i] = Bound(0, bound_view.broadcast(view.shape))
        clip(call, Pair(source, target.view), *bounds)
    return target.array


def _bound(arguments: Arguments, argument: str, bound: Any, tensor: Tensor) -> Bound:
    """Read a bound: None, a number, or an array on the device that broadcasts to the tensor."""
    if not is_array(bound):
        if isinstance(bound, (list, tuple)) or (hasattr(bound, "__array__") and np.asarray(bound).ndim > 0):
            allowed = "None, a real number or a cupy.ndarray of real numbers"
            if tensor.view.code not in REAL:
                allowed = "None, an int or a cupy.ndarray of integers"
            allowed += ", for a tensor that is a cupy.ndarray"
            raise arguments.wrong_type(argument, bound, allowed)
        return Bound(_bits(arguments, argument, bound, tensor.dtype))
    kind = code_of(bound.dtype)
    is_wrong = kind not in ORDERED or (kind in REAL and tensor.view.code not in REAL)
    if is_wrong and bound.dtype.isnative:
        if bound.ndim == 0:  # NumPy's error would tell the value
            numbers = "a real number or an array of real numbers"
            if tensor.view.code not in REAL:
                numbers = "an int or an array of integers"
            allowed = f"None, {numbers}, for a tensor of {dtype_text(tensor.array)}"
            raise arguments.type_error(argument, f"a 0-d cupy.ndarray of {dtype_text(bound)}", allowed)
        # The error that a NumPy array of this shape and dtype gets.
        same = np.broadcast_to(np.zeros((), bound.dtype), bound.shape)
        _bits(arguments, argument, same, tensor.dtype)
    view = arguments.tensor(argument, bound, ORDERED, tensor.array.data.device_id).view
    shape = tensor.view.shape
    own = view.shape
    if len(own) > len(shape) or any(a not in {1, b} for a, b in zip(own[::-1], shape[::-1], strict=False)):
        allowed = f"a shape that broadcasts to that of the tensor, {shape}"
        raise arguments.value_error(argument, f"shape {own}", allowed)
    return Bound(0, view)


def _bits(arguments: Arguments, argument: str, bound: Any, dtype: np.dtype[Any]) -> int:
    """Return the bits, in the tensor's dtype, of a bound that is not on the device. None bounds nothing."""
    above = argument == "clip_value_max"
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        number: Any = np.array(info.max if above else info.min, dtype)
    else:
        number = np.array(np.inf if above else -np.inf).astype(dtype)
    if bound is not None:
        # This end of the range, clipped, is the bound: so the compiled part reads it, and raises what NumPy arrays get.
        low, high = (None, bound) if above else (bound, None)
        name = arguments.name if isinstance(arguments.name, str) else None  # another name is an error that comes later
        number = _core.clip_by_value(number, low, high, name, None)
    return int.from_bytes(number.tobytes(), "little")


def _clip_by_norm(  # noqa: PLR0917 (TensorFlow's signature)
    mode: Mode, t: Any, clip_norm: Any, axes: Any, name: Any, out: Any
) -> Any:
    arguments = Arguments("clip_by_norm" if mode is Mode.CLIP else "clip_by_average_norm", name)
    tensor = arguments.tensor("t", t, SCALABLE)
    view = tensor.view
    limit = arguments.scalar("clip_norm", clip_norm, t.data.device_id, nan=False)
    along = arguments.axes("axes", axes, len(view.shape))
    arguments.check_name()
    with call_on(t) as call:
        target = arguments.out("out", out, tensor)
        source = view
        if out is not None:
            inputs = [view]
            if limit.address and along is not None:  # it is read again after something has been written
                inputs.append(View(limit.address, (), (), ITEMSIZES[limit.code], limit.code))
            source, *limits = arguments.arrange(call, [target.view], inputs)
            limit = limit._replace(address=limits[0].address) if limits else limit
        pair = Pair(source, target.view)
        norm = Norm.of(2.0, mode, limit, view.size if mode is Mode.AVERAGE else 0)
        if along is not None and not along and view.shape and view.code in REAL:
            clip_magnitudes(call, pair, limit)
        elif along is not None and len(along) < len(view.shape):
            scale_slices(call, view, along, pair, norm)
        else:
            scale_whole(call, view, pair, norm)
    return target.array


#: See the functions of `gradclip` with these names.
clip_by_norm = partial(_clip_by_norm, Mode.CLIP)
clip_by_average_norm = partial(_clip_by_norm, Mode.AVERAGE)
