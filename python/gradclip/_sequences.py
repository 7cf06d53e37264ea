"""What lists hold."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

_HOLD_SOMETHING_ELSE = (str, bytes, bytearray, memoryview, range, array)


def is_sequence_of_tensors(value: Any) -> bool:
    """Whether ``value`` is a sequence, as TensorFlow understands it, of what may be tensors."""
    return isinstance(value, Sequence) and not isinstance(value, _HOLD_SOMETHING_ELSE)


def holds_masked_array(value: Any) -> bool:
    """Whether ``value`` is a masked array or a nested list with one in it, whose mask NumPy would drop."""
    masked = sys.modules.get("numpy.ma")  # without it there is none
    if masked is None:
        return False
    # Level by level, without recursion: a list may be nested deeper than Python's stack.
    level = [value]
    seen: set[int] = set()
    while level:
        if any(isinstance(entry, masked.MaskedArray) for entry in level):
            return True
        lists = [entry for entry in level if isinstance(entry, (list, tuple)) and id(entry) not in seen]
        seen.update(map(id, lists))
        level = [entry for inner in lists for entry in inner if not isinstance(entry, (float, int))]
    return False
