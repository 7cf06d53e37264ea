"""Lists that were read before. A list is known by the identities of its arrays, as reading their attributes takes long.

What was read stays true as long as the arrays live. Of a ``cupy.ndarray`` only the shape can be changed, and a
contiguous array has the same elements in the same order then. An entry holds no array. It is void once one of its
arrays has died, because another object can have the same identity from then on.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Lists that are known.
MOST = 16


class _Entry(NamedTuple):
    """What was read of a list, and what tells whether it is still true."""

    read: Any  # None: the list has been seen once
    dead: list[ref[Any]]  # an array that dies is added here before its memory can become another object
    refs: list[ref[Any]]


# Other threads may change it between any two steps, and so may finalizers. Each step is one call of C code.
_lists: OrderedDict[bytes, _Entry] = OrderedDict()


def identity_of(entries: tuple[Any, ...]) -> bytes:
    """Return the identities of all entries. NumPy copies them faster than `id` returns them."""
    return np.fromiter(entries, object, len(entries)).tobytes()


def recall(identity: bytes) -> Any:
    """Return what was read of a list; None if it is not known."""
    entry = _lists.pop(identity, None)
    if entry is None or entry.dead:
        return None
    _lists[identity] = entry  # as the newest one
    return entry.read


def remember(identity: bytes, arrays: Iterable[Any], read: Any) -> None:
    """Keep what was read of a list from its second call on. ``arrays`` are all entries but None.

    At the first call that would take longer than it may save: many lists are of new arrays, and never seen again.
    """
    dead: list[ref[Any]] = []
    if identity in _lists:
        _lists[identity] = _Entry(read, dead, list(map(ref, arrays, repeat(dead.append))))
    else:
        _lists[identity] = _Entry(None, dead, [])
    if len(_lists) > MOST:
        with suppress(KeyError):  # another thread has forgotten all
            _lists.popitem(last=False)


def forget() -> None:
    """Know no list any more."""
    _lists.clear()
