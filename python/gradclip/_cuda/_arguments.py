"""Arguments of calls with device arrays: checks by the compiled part's rules, outputs, views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradclip._checks import Checks
from gradclip._cuda import _device
from gradclip._cuda._elements import copied
from gradclip._cuda._layout import View, memory_order
from gradclip._cuda._queue import Call
from gradclip._cuda._words import NAMES, NARROW, ORDERED, Scalar
from gradclip._text import class_text, dtype_text

if TYPE_CHECKING:
    from collections.abc import Sequence


_FLOAT64 = np.dtype(np.float64)
_codes: dict[np.dtype[Any], int | None] = {}


def code_of(dtype: np.dtype[Any]) -> int | None:
    """Return the code of a dtype; None if it has none."""
    try:
        return _codes[dtype]
    except KeyError:
        is_known = dtype.kind in "fciub" or dtype.type.__module__ == "ml_dtypes"
        name = dtype.name if is_known and dtype.isnative else ""
        code = NAMES.index(name) if name in NAMES else None
        _codes[dtype] = code
        return code


def is_array(value: Any) -> bool:
    return isinstance(value, _device.cupy().ndarray)


class Tensor(NamedTuple):
    """An array of the caller, as the launches see it."""

    array: Any
    view: View

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.array.dtype
        return dtype


class Arguments(Checks):
    """The arguments of one call: their checks, and its errors."""

    def tensor(self, argument: str, array: Any, allowed: Sequence[int], device: int | None = None) -> Tensor:
        """Return a tensor of one of the dtypes."""
        if not is_array(array):
            raise self.wrong_type(argument, array, "a cupy.ndarray, as the tensor is")
        self.check_memory(argument, array)
        code = code_of(array.dtype)
        if code is None or code not in allowed:
            names = ", ".join(name for i, name in enumerate(NAMES) if i in allowed)
            raise self.type_error(argument, dtype_text(array), names)
        own = array.data.device_id
        if device is not None and own != device:
            allowed_there = f"arrays on device {device}, as the tensor is"
            raise self.value_error(argument, f"an array on device {own}", allowed_there)
        view = View(array.data.ptr, array.shape, array.strides, array.itemsize, code)
        self._check_aligned(argument, view)
        return Tensor(array, view)

    def check_memory(self, argument: str, array: Any) -> None:
        """Raise for an array that has elements but no address, such as CuPy's DistributedArray."""
        try:
            address = array.data.ptr
        except NotImplementedError:
            address = 0
        if address == 0 and array.size:
            found = f"an array of {class_text(array)}, which has no address"
            raise self.type_error(argument, found, "a cupy.ndarray in the memory of one device")

    def _check_aligned(self, argument: str, view: View) -> None:
        unit = view.in_parts().itemsize
        if view.size and (view.address % unit or any(stride % view.itemsize for stride in view.strides)):
            raise self.value_error(argument, "an array that is not aligned", "elements at multiples of their size")

    def out(self, argument: str, out: Any, tensor: Tensor) -> Tensor:
        """Return the output for a tensor: what the caller gave, or a new array."""
        view = tensor.view
        if out is tensor.array:
            return tensor
        if out is None:
            return new_like(tensor)
        if not is_array(out):
            raise self.wrong_type(argument, out, "None or a cupy.ndarray")
        if out.dtype != tensor.dtype:
            raise self.type_error(argument, dtype_text(out), f"dtype {NAMES[view.code]}")
        if out.shape != view.shape:
            raise self.value_error(argument, f"shape {out.shape}", f"shape {view.shape}")
        return self.tensor(argument, out, (view.code,), tensor.array.data.device_id)

    def scalar(self, argument: str, value: Any, device: int, *, nan: bool) -> Scalar:
        """Return a limit: a number, or a 0-d array on the device, which is not looked at here."""
        if not is_array(value):
            return Scalar(self.limit(argument, value, nan))
        code = code_of(value.dtype)
        if value.ndim != 0 or code not in ORDERED:
            if value.ndim == 0:  # NumPy's error would tell the value
                allowed = "a real number >= 0 (a Python or NumPy int, float or 0-d array)"
                raise self.type_error(argument, f"a 0-d cupy.ndarray of {dtype_text(value)}", allowed)
            # The error that a NumPy array of this shape and dtype gets.
            same = np.broadcast_to(np.ones((), value.dtype), value.shape)
            self.limit(argument, same, nan)
        tensor = self.tensor(argument, value, ORDERED, device)
        return Scalar(0.0, tensor.view.address, tensor.view.code)

    def arrange(
        self, call: Call, outputs: list[View], inputs: list[View], places: list[int] | None = None
    ) -> list[View]:
        """Return the inputs, copied where an output would overwrite them; raise where outputs share memory.

        ``places`` are the outputs' places in a list; None: there is one output, and no list.
        """
        if len(inputs) == 1 and outputs == inputs and outputs[0].is_dense():
            return inputs
        copies = self.keep_apart([extent_of(view) for view in outputs], [extent_of(view) for view in inputs], places)
        inputs = list(inputs)
        for i in copies:
            inputs[i] = copied(call, inputs[i])
        return inputs


def extent_of(view: View) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    return view.address, view.itemsize, view.shape, view.strides


def new_like(tensor: Tensor) -> Tensor:
    """Make an array of the same dtype and shape, in the memory order that NumPy gives a result."""
    view = tensor.view
    array = empty_in_order(view.shape, memory_order(view.shape, view.strides), tensor.dtype, tensor.array)
    return Tensor(array, View(array.data.ptr, array.shape, array.strides, view.itemsize, view.code))


def empty_in_order(shape: tuple[int, ...], order: Sequence[int], dtype: Any, like: Any) -> Any:
    """Make an array whose axes lie in memory in this order, from outer to inner."""
    array = _device.empty(tuple(shape[axis] for axis in order), dtype, like)
    if list(order) == sorted(order):
        return array
    return array.transpose([order.index(axis) for axis in range(len(order))])


def call_on(array: Any) -> Call:
    """Return the context of a call on an array's device and its stream."""
    return Call(_device.device_of(array))


def number_output(call: Call, like: Any, shape: tuple[int, ...] = ()) -> Any:
    """Make a float64 array for one norm: 0-d, unless a shape is given."""
    return call.keep(_device.empty(shape, _FLOAT64, like))


def norm_output(call: Call, shape: tuple[int, ...], order: Sequence[int], code: int | None, like: Any) -> Any:
    """Make an array for norms: float64, or float32 for norms of narrow dtypes that keep an axis."""
    dtype = np.float32 if code in NARROW else np.float64
    return call.keep(empty_in_order(shape, order, np.dtype(dtype), like))
