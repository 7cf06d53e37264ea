"""What counts as a list of tensors."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

_HOLD_SOMETHING_ELSE = (str, bytes, bytearray, memoryview, range, array)


def is_sequence_of_tensors(value: Any) -> bool:
    """Whether ``value`` is a sequence, as TensorFlow understands it, of what may be tensors."""
    return isinstance(value, Sequence) and not isinstance(value, _HOLD_SOMETHING_ELSE)
