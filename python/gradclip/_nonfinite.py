"""The error for NaN and infinity among the elements of tensors."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from gradclip._slices import values_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gradclip._types import Array

#: Entries that a message names.
_NAMED = 3
#: Elements that are checked at a time, so that a large contiguous tensor takes little more memory: 64 Ki.
_BLOCK = 1 << 16


class NonFiniteError(ValueError):
    """An element is infinite or NaN, and the call has ``nonfinite="raise"``.

    Nothing has been written.

    Attributes
    ----------
    norm : float
        The norm, infinite or NaN. If there are several norms (along ``axes``, of tensors, of
        examples), the first such one.
    entries : tuple
        In a list, the positions of the bad tensors. Of one tensor, the index of each bad
        slice in the axes that are not in ``axes``: ``()`` for the whole tensor. In a batch,
        the numbers of the bad examples, or pairs ``(tensor, example)`` if each tensor has its
        own limit. Empty for a bad ``use_norm``, for dask arrays, and if the bad element is on
        another rank.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> try:
    ...     gc.clip_by_norm(np.array([1.0, np.nan]), 1.0, nonfinite="raise")
    ... except gc.NonFiniteError as error:
    ...     print(error.norm)
    nan
    """

    norm: float
    entries: tuple[Any, ...]

    def __init__(self, message: str, norm: float = np.nan, entries: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.norm = norm
        self.entries = entries

    def __reduce__(self) -> tuple[type[NonFiniteError], tuple[Any, ...]]:
        return type(self), (str(self), self.norm, self.entries)


def error(
    prefix: str,
    argument: str,
    tensors: Any,
    axes: Sequence[int] | None,
    norm: float,
) -> NonFiniteError:
    """Return the error for one tensor, or for the tensors of ``t_list``."""
    if argument == "use_norm":
        return NonFiniteError(f"{prefix}: use_norm: found {norm}; allowed: a finite norm", norm)
    if axes is not None:
        return _error_of_slices(prefix, argument, values_of(tensors), axes, norm)
    if argument != "t_list":
        return _error_of_tensors(prefix, [((), argument, tensors)], norm)
    found = [(i, f"{argument}[{i}]", tensor) for i, tensor in enumerate(tensors) if tensor is not None]
    return _error_of_tensors(prefix, found, norm)


def error_of_differences(prefix: str, tensors: Sequence[Any], bases: Sequence[Any], norm: float) -> NonFiniteError:
    """Return the error for differences of tensors and their bases: an entry is bad if one of the two is."""
    found = []
    for i, (tensor, base) in enumerate(zip(tensors, bases, strict=False)):
        if tensor is not None:
            found += [(i, f"t_list[{i}]", tensor), (i, f"base_list[{i}]", base)]
    return _error_of_tensors(prefix, found, norm)


def error_of_examples(prefix: str, tensors: Sequence[Any], per_tensor: bool, norm: float) -> NonFiniteError:
    """Return the error for examples: the first axis of each tensor counts them."""
    # The first tensor in which an example is bad, and the example.
    found: dict[Any, tuple[int, int]] = {}
    for i, tensor in enumerate(tensors):
        if tensor is None:
            continue
        values = values_of(tensor)
        for example in np.flatnonzero(_are_bad(values, range(1, values.ndim))).tolist():
            found.setdefault((i, example) if per_tensor else example, (i, example))
    entries = sorted(found)
    named = [found[entry] for entry in entries[:_NAMED]]
    texts = [f"t_list[{i}], example {example}: {_count(values_of(tensors[i])[example])}" for i, example in named]
    return _error(prefix, texts, len(entries), norm, entries)


def _error_of_tensors(prefix: str, tensors: Sequence[tuple[Any, str, Any]], norm: float) -> NonFiniteError:
    """Return the error for whole tensors: of each what ``entries`` holds, and its name."""
    found = [(entry, f"{name}: {text}") for entry, name, tensor in tensors if (text := _count(values_of(tensor)))]
    texts = [text for _, text in found]
    return _error(prefix, texts[:_NAMED], len(texts), norm, dict.fromkeys(entry for entry, _ in found))


def _error_of_slices(prefix: str, argument: str, array: Array, axes: Sequence[int], norm: float) -> NonFiniteError:
    """Return the error for the slices of an array along ``axes``."""
    entries = [tuple(index) for index in np.argwhere(_are_bad(array, axes)).tolist()]
    slices = np.moveaxis(array, axes, range(-len(axes), 0))
    texts = [f"{argument}, slice {index}: {_count(slices[index])}" for index in entries[:_NAMED]]
    return _error(prefix, texts, len(entries), norm, entries)


def _error(prefix: str, texts: Sequence[str], count: int, norm: float, entries: Iterable[Any]) -> NonFiniteError:
    """Return the error that tells of so many arrays; ``texts`` describes the first of them."""
    more = [f"and {count - len(texts)} more"] if count > len(texts) else []
    # An object may hold other numbers when it is read again.
    text = "; ".join([*texts, *more]) or "an element was not finite when it was read"
    return NonFiniteError(f"{prefix}: {text}", norm, tuple(entries))


def _are_bad(array: Array, axes: Sequence[int]) -> Array:
    """Return for each slice along ``axes`` whether an element is not finite."""
    # NumPy orders complex numbers by their real parts.
    parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
    along = tuple(axes)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        # NaN is both the least and the greatest. Unlike a mask, these take no memory for each element.
        bounds = [bound for part in parts for bound in (part.min(along, initial=0), part.max(along, initial=0))]
        return np.asarray(~reduce(np.logical_and, map(np.isfinite, bounds)))


def _count(values: Any) -> str:
    """Describe what is not finite in an array or a number; an empty string if all is."""
    array = np.asarray(values)
    if array.dtype.kind in "biu":
        return ""
    nans = infinite = 0
    first = None
    flat = array.reshape(-1)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        for begin in range(0, flat.size, _BLOCK):
            block = flat[begin : begin + _BLOCK]
            is_nan = np.isnan(block)
            is_bad = is_nan | np.isinf(block)
            if first is None and is_bad.any():
                first = begin + int(is_bad.argmax())
            nans += int(is_nan.sum())
            infinite += int((is_bad & ~is_nan).sum())
    if first is None:
        return ""
    index = tuple(int(i) for i in np.unravel_index(first, array.shape))
    kinds = [f"{nans} NaN"] * (nans > 0) + [f"{infinite} infinite"] * (infinite > 0)
    return f"{' and '.join(kinds)} of {array.size} elements, the first at {index}"
