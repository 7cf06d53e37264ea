"""Norms of one array."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gradclip._cuda import _device
from gradclip._cuda._arguments import Arguments, Tensor, call_on, norm_output, number_output
from gradclip._cuda._layout import Pair
from gradclip._cuda._list import run_list, scale_whole, whole_of
from gradclip._cuda._slices import (
    Slices,
    norms_given,
    norms_of_matrices,
    norms_of_slices,
    scale_by_factors,
    scale_slices,
)
from gradclip._cuda._words import NAMES, SCALABLE, Mode, Norm, NormsTo
from gradclip._matrix import largest_singular_values

if TYPE_CHECKING:
    from gradclip._cuda._layout import View
    from gradclip._cuda._queue import Call


def norm(tensor: Any, ord: Any, axis: Any, keepdims: Any, name: Any) -> Any:
    """See `gradclip.norm`."""
    arguments = Arguments("norm", name)
    own = arguments.tensor("tensor", tensor, range(len(NAMES)))
    along = _Along(arguments, ord, axis, own.view)
    keeps = arguments.keepdims(keepdims)
    arguments.check_name()
    with call_on(tensor) as call:
        result = along.output(call, own, keepdims=keeps)
        along.norms(call, own, Mode.NORM, result)
    return result


def normalize(tensor: Any, ord: Any, axis: Any, name: Any, out: Any) -> tuple[Any, Any]:
    """See `gradclip.normalize`."""
    arguments = Arguments("normalize", name)
    own = arguments.tensor("tensor", tensor, SCALABLE)
    along = _Along(arguments, ord, axis, own.view)
    arguments.check_name()
    with call_on(tensor) as call:
        target = arguments.out("out", out, own)
        source = own.view if out is None else arguments.arrange(call, [target.view], [own.view])[0]
        pair = Pair(source, target.view)
        result = along.output(call, own, keepdims=True)
        norm = Norm.of(along.order, Mode.NORMALIZE)
        to = NormsTo(result.data.ptr, result.dtype.itemsize == _BYTES_OF_FLOAT32)
        if along.kind == "whole":
            scale_whole(call, own.view, pair, norm, to)
        elif along.kind == "vectors":
            scale_slices(call, own.view, along.axes, pair, norm, to)
        else:
            count = along.count(own.view)
            factors = call.keep(call.device.alloc(16 * max(count, 1)))
            along.norms(call, own, Mode.NORMALIZE, result, factors.ptr)
            scale_by_factors(call, Slices.of(own.view, along.axes), pair, factors.ptr)
    return target.array, result


_ONE, _TWO = 1, 2  # norms of matrices, and infinity
_BYTES_OF_FLOAT32 = 4


class _Along:
    """The axes of a norm, and what is computed along them."""

    def __init__(self, arguments: Arguments, ord: Any, axis: Any, view: View) -> None:
        self.kind, axes, self.order = arguments.along(ord, axis, len(view.shape))
        self.axes: list[int] = list(range(len(view.shape))) if axes is None else axes

    def kept(self, view: View) -> list[int]:
        """Return the kept axes in the order of the norms in memory."""
        if self.kind == "whole":
            return []
        if self.kind == "vectors":
            return [axis for axis, _ in Slices.of(view, self.axes).split.kept]
        if self.order == _TWO:
            return [axis for axis in range(len(view.shape)) if axis not in self.axes]
        along = self.axes[0 if self.order == _ONE else 1]
        return [axis for axis, _ in Slices.of(view, [along]).split.kept if axis not in self.axes]

    def count(self, view: View) -> int:
        """Return the number of norms."""
        return math.prod(view.shape[axis] for axis in self.kept(view))

    def output(self, call: Call, tensor: Tensor, *, keepdims: bool) -> Any:
        """Make the array of norms: 0-d float64 if there is one number."""
        view = tensor.view
        kept = self.kept(view)
        if not kept and not keepdims:
            return number_output(call, tensor.array)
        if keepdims:
            shape = tuple(length if axis in kept else 1 for axis, length in enumerate(view.shape))
            order = [axis for axis in range(len(view.shape)) if axis not in kept] + kept
        else:
            axes = sorted(kept)
            shape = tuple(view.shape[axis] for axis in axes)
            order = [axes.index(axis) for axis in kept]
        return norm_output(call, shape, order, view.code, tensor.array)

    def norms(self, call: Call, tensor: Tensor, mode: Mode, result: Any, factors_at: int = 0) -> None:
        """Make the norms."""
        view = tensor.view
        to = NormsTo(result.data.ptr, result.dtype.itemsize == _BYTES_OF_FLOAT32, factors_at)
        if self.kind == "whole":
            norm = Norm.of(self.order, mode)
            run_list(call, whole_of(view, norm), norm, norm_at=to.norm_at, narrow=to.narrow)
        elif self.kind == "vectors":
            norms_of_slices(call, view, self.axes, Norm.of(self.order, mode), to)
        elif self.order == _TWO:
            found = largest_singular_values(tensor.array, (self.axes[0], self.axes[1]), _device.cupy())
            values = call.keep(_device.cupy().stack(found))
            norm = Norm.of(2.0, mode)
            norms_given(call, values.data.ptr, self.count(view), norm, to)
        else:
            sums = "columns" if self.order == _ONE else "rows"
            norms_of_matrices(call, Slices.of(view, self.axes), Norm.of(1.0, mode), sums, to)
