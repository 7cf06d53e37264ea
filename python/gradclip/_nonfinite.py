"""The error for NaN and infinity among the elements of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gradclip._slices import values_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradclip._types import Array

#: Entries that a message names.
_NAMED = 3
#: Elements that are looked at together, so that a large tensor takes little more memory: 64 Ki.
_BLOCK = 1 << 16


class NonFiniteError(ValueError):
    """Tensors have an infinite or NaN element, under ``nonfinite="raise"``.

    Nothing has been written.

    Attributes
    ----------
    norm : float
        The norm of the tensors, infinite or NaN. Along ``axes``, the norm of the first slice
        with such an element.
    entries : tuple
        The positions of the tensors in their list. Of one tensor, the index of each slice
        among the axes that are not in ``axes``, ``()`` for the whole tensor. Of examples,
        their numbers; pairs of a tensor and an example if each tensor has a limit of its
        own. Empty if the argument ``use_norm`` was infinite or NaN.
    """

    norm: float
    entries: tuple[Any, ...]

    def __init__(self, message: str, norm: float = np.nan, entries: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.norm = norm
        self.entries = entries

    def __reduce__(self) -> tuple[type[NonFiniteError], tuple[Any, ...]]:
        return type(self), (str(self), self.norm, self.entries)


def error(  # noqa: PLR0917 (called from the compiled part)
    prefix: str,
    argument: str,
    one: Any,
    many: Sequence[Any] | None,
    axes: Sequence[int] | None,
    norm: float,
) -> NonFiniteError:
    """Return the error for one tensor, or for the tensors of a list."""
    if argument == "use_norm":
        return NonFiniteError(f"{prefix}: use_norm: found {norm}; allowed: a finite norm", norm)
    found: list[tuple[Any, str, str]]
    if many is not None:
        found = [(i, f"{argument}[{i}]", _count(_values(t))) for i, t in enumerate(many) if t is not None]
    elif axes is None:
        found = [((), argument, _count(_values(one)))]
    else:
        found = [(index, f"{argument}, slice {index}", _count(part)) for index, part in _slices(_values(one), axes)]
    return of_entries(prefix, [entry for entry in found if entry[2]], norm)


def error_of_differences(prefix: str, tensors: Sequence[Any], bases: Sequence[Any], norm: float) -> NonFiniteError:
    """Return the error for differences of tensors and their bases: an entry is bad if one of the two is."""
    found = []
    for i, (tensor, base) in enumerate(zip(tensors, bases, strict=False)):
        if tensor is not None:
            both = (("t_list", tensor), ("base_list", base))
            found += [(i, f"{argument}[{i}]", _count(_values(one))) for argument, one in both]
    return of_entries(prefix, [entry for entry in found if entry[2]], norm)


def error_of_examples(prefix: str, tensors: Sequence[Any], per_tensor: bool, norm: float) -> NonFiniteError:
    """Return the error for examples: the first axis of each tensor counts them."""
    found: dict[Any, tuple[Any, str, str]] = {}
    for i, tensor in enumerate(tensors):
        if tensor is None:
            continue
        for example, values in enumerate(_values(tensor)):
            text = _count(np.asarray(values))
            entry = (i, example) if per_tensor else example
            if text:
                found.setdefault(entry, (entry, f"t_list[{i}], example {example}", text))
    return of_entries(prefix, [found[entry] for entry in sorted(found)], norm)


def of_entries(prefix: str, found: Sequence[tuple[Any, str, str]], norm: float) -> NonFiniteError:
    """Return the error for entries: of each what ``entries`` holds, its name, and what was found."""
    texts = [f"{name}: {text}" for _, name, text in found[:_NAMED]]
    if len(found) > _NAMED:
        texts.append(f"and {len(found) - _NAMED} more")
    return NonFiniteError(f"{prefix}: {'; '.join(texts)}", norm, tuple(dict.fromkeys(entry for entry, _, _ in found)))


def _values(tensor: Any) -> Array:
    return np.asarray(values_of(tensor))


def _slices(array: Array, axes: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Return each slice along ``axes``, with its index among the other axes."""
    moved = np.moveaxis(array, axes, range(-len(axes), 0)) if axes else array
    for index in np.ndindex(moved.shape[: array.ndim - len(axes)]):
        yield index, moved[index]


def _count(array: Array) -> str:
    """Describe what is not finite in an array; an empty string if all is."""
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
