"""What lists hold."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

_MOST_DIMENSIONS = 64
_HOLD_SOMETHING_ELSE = (str, bytes, bytearray, memoryview, range, array)


def is_sequence_of_tensors(value: Any) -> bool:
    """Whether ``value`` is a sequence, as TensorFlow understands it, of what may be tensors."""
    return isinstance(value, Sequence) and not isinstance(value, _HOLD_SOMETHING_ELSE)


def holds_masked_array(value: Any) -> bool:
    """Whether ``value`` is a masked array or a nested list with one in it, whose mask NumPy would drop."""
    masked = sys.modules.get("numpy.ma")  # without it there is none
    if masked is None:
        return False
    # Level by level, without recursion, as deep as arrays go.
    level = [value]
    seen: set[int] = set()
    for _ in range(_MOST_DIMENSIONS + 1):
        if any(isinstance(entry, masked.MaskedArray) for entry in level):
            return True
        nested = [entry for entry in level if _is_nested(entry) and id(entry) not in seen]
        seen.update(map(id, nested))
        # Not more than a sequence says it has: it may say otherwise for ever.
        entries = chain.from_iterable(islice(inner, len(inner)) for inner in nested)
        level = [entry for entry in entries if not isinstance(entry, (float, int))]
    return False


def _is_nested(value: Any) -> bool:
    """Whether NumPy looks at the entries of ``value`` one by one, and one of them may be a masked array."""
    if isinstance(value, (list, tuple)):
        return True
    return is_sequence_of_tensors(value) and not hasattr(value, "__array__")
