"""The functions for dask arrays. The compiled part hands such calls on to here.

Everything stays lazy. Each chunk is read by the compiled kernels, in the worker that holds it. Between
workers travel sums of powers of chunks: see `gradclip.NormState`.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from dask.array.core import elemwise
from dask.core import flatten

from gradclip import _core
from gradclip._checks import Checks
from gradclip._exchange import to_float, to_floats
from gradclip._nonfinite import NonFiniteError
from gradclip._slices import IndexedSlices
from gradclip._text import is_masked

if TYPE_CHECKING:
    from gradclip._types import Array

#: Sums of powers that are merged at once: a tree of these over the chunks.
_SPLIT_EVERY = 16
#: The number of elements that ``strict=True`` assumes where lengths of chunks are unknown: its margin grows with it.
_UNKNOWN_SIZE = 2.0**40


def norm(tensor: Any, ord: Any, axis: Any, keepdims: Any, name: Any) -> Any:
    """See `gradclip.norm`."""
    # An empty array finds what is wrong with the arguments.
    _core.norm(_empty(tensor), ord, axis, keepdims, name)
    kind, axes, order = Checks("norm", name).along(ord, axis, tensor.ndim)
    if kind == "matrices":
        allowed = "'euclidean' or 'fro' along two axes of a dask array"
        raise Checks("norm", name).wrong_value("ord", ord, allowed)
    order = _summed_order("norm", name, order if isinstance(ord, str) else ord)  # 'fro' is 2
    keeps = bool(keepdims)
    reduced = tuple(range(tensor.ndim)) if axes is None else tuple(axes)
    is_number = len(reduced) == tensor.ndim and not keeps
    sums = _sums(tensor, order, reduced)
    dtype = np.dtype(np.float64) if is_number else _norm_dtype(tensor.dtype)
    found = sums.map_blocks(_rooted, order, dtype, dtype=dtype, meta=np.empty((0,) * tensor.ndim, dtype))
    return found if keeps else found.reshape(()) if is_number else da.squeeze(found, axis=reduced)


def global_norm(t_list: Any, name: Any, ord: Any, nonfinite: Any, integers: Any) -> Any:
    """See `gradclip.global_norm`."""
    _core.global_norm(_empties("global_norm", name, t_list), name, ord, nonfinite, integers)
    for argument, found, default in (("nonfinite", nonfinite, "propagate"), ("integers", integers, "count")):
        if found != default:
            allowed = f"{default!r} for dask arrays"
            raise Checks("global_norm", name).wrong_value(argument, found, allowed)
    return _number(_pair_of_list(t_list, _summed_order("global_norm", name, ord)))


def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: Any, out: Any) -> Any:
    """See `gradclip.clip_by_value`."""
    checks = Checks("clip_by_value", name)
    _refuse_out("clip_by_value", name, out)
    _core.clip_by_value(_empty(t), 0, None, None, None)  # refuses other dtypes
    bounds = []
    for argument, given in (("clip_value_min", clip_value_min), ("clip_value_max", clip_value_max)):
        bound = given
        if not (given is None or _is_lazy(given)):
            found = checks.bound(argument, given, _empty(t), _shape_of(given))
            bound = _as_lazy(found) if np.ndim(found) else found
        if not _broadcasts(bound, t):
            allowed = f"a shape that broadcasts to that of t, {t.shape}"
            raise checks.value_error(argument, f"shape {np.shape(bound)}", allowed)
        bounds.append(_in_chunks_of(t, bound) if _is_lazy(bound) else bound)
    # Workers look at arrays of bounds. Here a zero of its dtype stands for each.
    stand_ins = [np.zeros((), bound.dtype) if _is_lazy(bound) else bound for bound in bounds]
    _core.clip_by_value(_empty(t), stand_ins[0], stand_ins[1], name, None)
    try:
        return elemwise(partial(_clip_block_by_value, name=name), t, *bounds, dtype=_empty(t).dtype)
    except ValueError as error:  # of chunks whose lengths are not known
        raise checks.value_error("t", str(error), "chunks like those of the bounds") from error


def _clip_by_norm(  # noqa: PLR0917
    function: str, t: Any, clip_norm: Any, axes: Any, name: Any, nonfinite: Any, strict: Any, out: Any
) -> Any:
    _refuse_out(function, name, out)
    _core.clip_by_norm(function, _empty(t), clip_norm, axes, name, nonfinite, strict, None, None)
    given = Checks(function, name).axes("axes", axes, t.ndim)
    reduced = tuple(range(t.ndim)) if given is None else tuple(given)
    sums = _sums(t, 2.0, reduced)
    empty = _empty(t)
    limit = Checks(function, name).limit("clip_norm", clip_norm, False)  # an array may change before it is used
    return t.map_blocks(
        _clip_block, sums, function, limit, reduced, name, nonfinite, strict, dtype=empty.dtype, meta=empty
    )


#: See the functions of `gradclip` with these names.
clip_by_norm = partial(_clip_by_norm, "clip_by_norm")
clip_by_average_norm = partial(_clip_by_norm, "clip_by_average_norm")


def clip_by_global_norm(  # noqa: PLR0917
    t_list: Any,
    clip_norm: Any,
    use_norm: Any,
    name: Any,
    ord: Any,
    nonfinite: Any,
    strict: Any,
    integers: Any,
    out: Any,
) -> tuple[list[Any], Any]:
    """See `gradclip.clip_by_global_norm`."""
    function = "clip_by_global_norm"
    _refuse_out(function, name, out)
    if integers != "raise":
        raise Checks(function, name).wrong_value("integers", integers, "'raise' for dask arrays")
    used = use_norm
    if _is_lazy(use_norm):
        # A stand-in with the same dtype and shape, of one zero.
        shape = tuple(1 if math.isnan(length) else length for length in use_norm.shape)
        used = np.broadcast_to(np.zeros((), use_norm.dtype), shape)
    _core.clip_by_global_norm(
        _empties(function, name, t_list), clip_norm, used, name, ord, nonfinite, strict, integers, None, None
    )
    order = _summed_order(function, name, ord)
    if use_norm is None:
        pair = _pair_of_list(t_list, order)
    else:
        lazy = use_norm if _is_lazy(use_norm) else da.asarray(Checks(function, name).limit("use_norm", use_norm, True))
        sizes = float(sum(_as_lazy(tensor).size for tensor in t_list if tensor is not None))
        elements = _UNKNOWN_SIZE if math.isnan(sizes) else sizes
        pair = lazy.map_blocks(_pair_of_norm, name, elements, dtype=np.float64, meta=np.empty(()))
    argument = "t_list" if use_norm is None else "use_norm"
    limit = Checks(function, name).limit("clip_norm", clip_norm, False)  # an array may change before it is used
    options = (argument, limit, name, nonfinite, strict)

    def clipped(tensor: Any) -> Any:
        if tensor is None:
            return None
        tensor = _as_lazy(tensor)
        # The pair is one block for all chunks.
        return da.blockwise(
            _clip_block_of_list,
            tuple(range(tensor.ndim)),
            tensor,
            tuple(range(tensor.ndim)),
            pair,
            (),
            options=options,
            dtype=_empty(tensor).dtype,
            meta=_empty(tensor),
            align_arrays=False,
        )

    return [clipped(tensor) for tensor in t_list], _number(pair)


# Functions that run in the workers.


def _sums_of_block(
    block: Array,
    axis: tuple[int, ...],
    *,
    order: float,
    keepdims: bool = True,  # noqa: ARG001 (dask passes it)
) -> tuple[Array, int]:
    """Return the sums of powers of a chunk along some axes, and the number of elements of each."""
    if len(axis) == block.ndim:
        sums, elements = _core.power_sums("norm", [block], None, order, False, False)
        return sums.reshape((1,) * block.ndim + (-1,)), elements
    sums, elements = _core.power_sums_along("norm", block, None, axis, order)
    return np.expand_dims(sums, axis), elements


def _merged(
    parts: Any,
    *,
    order: float,
    axis: Any = None,  # noqa: ARG001 (dask passes it)
    keepdims: bool = True,  # noqa: ARG001 (the same)
) -> tuple[Array, int]:
    """Merge the sums of neighbouring chunks."""
    found = list(flatten([parts]))
    first = found[0][0]
    rows = np.stack([sums.reshape(-1) for sums, _ in found])
    return _core.merge_power_sums(rows, order).reshape(first.shape), sum(elements for _, elements in found)


def _rooted(part: tuple[Array, int], order: float, dtype: Any) -> Array:
    """Return norms of a chunk's slices."""
    if not isinstance(part, tuple):
        return np.empty((0,) * np.ndim(part), dtype)
    sums, _ = part
    with np.errstate(over="ignore"):  # a norm may round to infinity
        return to_floats(_core.roots_of_power_sums(sums, order)).reshape(sums.shape[:-1]).astype(dtype)


def _clip_block(  # noqa: PLR0917 (called by dask)
    block: Array,
    part: tuple[Array, int],
    function: str,
    clip_norm: Any,
    axes: Any,
    name: Any,
    nonfinite: Any,
    strict: Any,
) -> Array:
    sums, elements = part

    def share() -> tuple[Array, int]:
        found = _core.roots_of_power_sums(sums, 2.0)
        _check_finite(function, name, "t", found, nonfinite)
        return found, elements

    return np.asarray(_core.clip_by_norm(function, block, clip_norm, axes, name, nonfinite, strict, None, share))


def _clip_block_of_list(block: Array, pair: Array, options: tuple[Any, ...]) -> Array:
    argument, clip_norm, name, nonfinite, strict = options
    value, exponent, elements = np.asarray(pair).reshape(-1).tolist()

    def share() -> tuple[Array, int]:
        found = np.array([[value, exponent]])
        _check_finite("clip_by_global_norm", name, argument, found, nonfinite)
        return found, int(elements)

    (clipped,), _ = _core.clip_by_global_norm(
        [block], clip_norm, None, name, 2.0, nonfinite, strict, "raise", None, share
    )
    return np.asarray(clipped)


def _check_finite(function: str, name: Any, argument: str, norms: Array, nonfinite: Any) -> None:
    """Raise the error for norms that are infinite or NaN. The tensor with the bad element may be in another worker."""
    is_bad = ~np.isfinite(norms[:, 0])
    if nonfinite == "raise" and is_bad.any():
        found = "an element that is infinite or NaN" if argument != "use_norm" else "an infinite or NaN norm"
        text = f"{Checks(function, name).prefix}: {argument}: found {found}"
        raise NonFiniteError(text, float(norms[is_bad, 0][0]))


def _clip_block_by_value(block: Array, lo: Any, hi: Any, name: Any) -> Array:
    return np.asarray(_core.clip_by_value(block, lo, hi, name, None))


# Graphs.


def _sums(tensor: Any, order: float, axes: tuple[int, ...]) -> Any:
    """Return the sums of powers along some axes, which keep length 1, as an array whose blocks are ``sums, count``."""
    if not axes:
        return tensor.map_blocks(_sums_of_block, axes, order=order, dtype=np.float64, meta=_floating(tensor.ndim))
    return da.reduction(
        tensor,
        chunk=partial(_sums_of_block, order=order),
        combine=partial(_merged, order=order),
        aggregate=partial(_merged, order=order),
        axis=axes,
        keepdims=True,
        dtype=np.float64,
        split_every=_SPLIT_EVERY,
        concatenate=False,
        meta=_floating(tensor.ndim),
    )


def _pair_of_list(t_list: Any, order: float) -> Any:
    """Return ``value, exponent, count`` of the norm of a list, as the one block of an array."""
    arrays = [_as_lazy(tensor) for tensor in t_list if tensor is not None]
    sums = [_sums(array, order, tuple(range(array.ndim))) for array in arrays]
    operands: list[Any] = []
    indices = count()
    for one in sums:
        operands += [one, tuple(next(indices) for _ in range(one.ndim))]
    return da.blockwise(_pair, (), *operands, order=order, dtype=np.float64, meta=np.empty(()), align_arrays=False)


def _pair(*parts: Any, order: float) -> Array:
    rows = [sums.reshape(1, -1) for sums, _ in flatten(parts)]
    # A list may hold nothing but None.
    nothing, _ = _core.power_sums("global_norm", (), None, order, False, False)
    sums = np.concatenate([nothing, *rows])
    merged = _core.merge_power_sums(sums, order)
    value, exponent = _core.roots_of_power_sums(merged, order)[0].tolist()
    return np.array([value, exponent, sum(elements for _, elements in flatten(parts))])


def _pair_of_norm(norm: Array, name: Any, elements: float) -> Array:
    found = Checks("clip_by_global_norm", name).limit("use_norm", np.asarray(norm), True)
    return np.array([found, 0.0, elements])


def _number(pair: Any) -> Any:
    return pair.map_blocks(_float_of_pair, dtype=np.float64, meta=np.empty(()))


def _float_of_pair(pair: Array) -> Any:
    value, exponent, _ = np.asarray(pair).reshape(-1).tolist()
    return np.float64(to_float(value, exponent))


def _floating(ndim: int) -> Array:
    return np.empty((0,) * ndim)


def _is_lazy(tensor: Any) -> bool:
    return isinstance(tensor, da.Array)


def _as_lazy(tensor: Any) -> Any:
    return tensor if _is_lazy(tensor) else da.from_array(np.asarray(tensor), chunks=-1)


def _shape_of(bound: Any) -> tuple[int, ...]:
    try:
        return np.shape(bound)
    except ValueError:  # a ragged list, which is refused before its shape matters
        return ()


def _broadcasts(bound: Any, tensor: Any) -> bool:
    """Whether a bound broadcasts to the shape of a tensor. A length that is not known fits any."""
    shape = np.shape(bound)
    return len(shape) <= tensor.ndim and all(
        own in {1, length} or math.isnan(own) or math.isnan(length)
        for own, length in zip(reversed(shape), reversed(tensor.shape), strict=False)
    )


def _in_chunks_of(tensor: Any, bound: Any) -> Any:
    """Cut a bound where a tensor is cut, so that the result has the chunks of the tensor."""
    before = tensor.ndim - bound.ndim
    known = [axis for axis, length in enumerate(bound.shape) if length == tensor.shape[before + axis]]
    return bound.rechunk({axis: tensor.chunks[before + axis] for axis in known})


def _summed_order(function: str, name: Any, ord: Any) -> float:
    """Return the order of a norm, checked to have sums that can be merged."""
    _core.power_sums(function, (), name, ord, False, False)
    return Checks(function, name).order(ord)


def _empty(tensor: Any) -> Array:
    """Return an array with the dtype (in native byte order), the axes and the class of a tensor.

    It has no elements, or a zero for a tensor of no axes.
    """
    empty = np.zeros((0,) * tensor.ndim, tensor.dtype.newbyteorder("="))
    return np.ma.masked_array(empty) if is_masked(getattr(tensor, "_meta", tensor)) else empty


def _empties(function: str, name: Any, t_list: Any) -> list[Any]:
    """Return a list with the same dtypes and Nones as a list of tensors, to check arguments with."""
    for i, tensor in enumerate(t_list):
        if isinstance(tensor, IndexedSlices):
            raise Checks(function, name).type_error(f"t_list[{i}]", "IndexedSlices", "arrays beside dask arrays")
    is_array = [_is_lazy(t) or (isinstance(t, np.ndarray) and not isinstance(t, np.ma.MaskedArray)) for t in t_list]
    return [_empty(tensor) if is_one else tensor for tensor, is_one in zip(t_list, is_array, strict=True)]


def _norm_dtype(dtype: Any) -> Any:
    return _core.norm(np.empty((0, 1), dtype), "euclidean", 0, None, None).dtype


def _refuse_out(function: str, name: Any, out: Any) -> None:
    if out is not None:
        raise Checks(function, name).wrong_type("out", out, "None for dask arrays")
