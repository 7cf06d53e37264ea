"""Entries of lists."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradclip._errors import Errors

_MOST_DIMENSIONS = 64
_HOLD_SOMETHING_ELSE = (str, bytes, bytearray, memoryview, range, array)
#: The classes of most entries. A lookup here takes a third of the time of `isinstance`.
_NUMBERS = frozenset({float, int, bool, complex, np.float64, np.float32, np.int64})


def is_sequence_of_tensors(value: Any) -> bool:
    """Whether ``value`` is a sequence that may hold tensors, as TensorFlow sees it."""
    return isinstance(value, Sequence) and not isinstance(value, _HOLD_SOMETHING_ELSE)


def holds_masked_array(errors: Errors, argument: str, value: Any) -> bool:
    """Whether ``value`` is a masked array or a nested list that contains one. NumPy would drop the mask.

    Raise the error of `entries_of` for any sequence in it.
    """
    module = sys.modules.get("numpy.ma")
    masked = () if module is None else module.MaskedArray  # without the module there is none
    # Level by level, without recursion, as deep as arrays go.
    level = [value]
    seen: set[int] = set()
    for _ in range(_MOST_DIMENSIONS + 1):
        if any(isinstance(entry, masked) for entry in level):
            return True
        nested = [entry for entry in level if _is_nested(entry) and id(entry) not in seen]
        seen.update(map(id, nested))
        entries = chain.from_iterable(entries_of(errors, argument, entry) for entry in nested)
        level = [entry for entry in entries if type(entry) not in _NUMBERS]
        if not level:
            break
    return False


def entries_of(errors: Errors, argument: str, value: Any) -> Iterable[Any]:
    """Return the entries of a sequence, or raise an error if they are not as many as its length says.

    NumPy would read a sequence without end until no memory is left.
    """
    if type(value) in {list, tuple}:
        return islice(value, len(value))  # it may grow meanwhile
    n = len(value)
    bytes(8 * min(n, sys.maxsize // 16))  # a MemoryError now where it says that it is longer than memory
    entries = list(islice(value, n + 1))
    if len(entries) != n:
        found = f"a sequence of length {n} that has {'more' if len(entries) > n else 'fewer'} entries"
        raise errors.value_error(argument, found, "a sequence with len() entries")
    return entries


def _is_nested(value: Any) -> bool:
    """Whether NumPy reads the entries of ``value`` one by one.

    One of them may be a masked array then.
    """
    if isinstance(value, (list, tuple)):
        return True
    return is_sequence_of_tensors(value) and not hasattr(value, "__array__")
