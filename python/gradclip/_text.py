"""Descriptions of objects in messages: short, on one line, whatever the objects' classes return.

Numbers and strings are written by the methods of Python's own classes, not by those of a subclass, and long ones only
up to the shown length.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

#: The most characters of a text, and of a name: long names are common, as they are made of other names.
_SHOWN, _SHOWN_OF_NAME = 80, 200
#: The most entries of a list that is written with its entries, and the most levels of nested ones.
_MOST_ENTRIES, _MOST_LEVELS = 8, 3
#: The most bits of an integer that is written in digits, as longer ones take time; and the most bytes of a NumPy scalar
#: that is written, as a record may have more.
_MOST_BITS, _MOST_BYTES = 512, 32
#: NumPy's letters for the dtypes that gradclip has, without bfloat16.
_LETTERS = "?bBhHiIlLqQefdFD"

_name_of_class: Callable[[type], str] = vars(type)["__name__"].__get__  # regardless of a metaclass


def describe(value: Any) -> str:
    """Return the type of an object, and its value if it is small."""
    if value is None:
        return "None"
    name = _class_of(value)
    if issubclass(type(value), np.ndarray):
        if is_masked(value):
            return "a masked array"
        array = np.asarray(value)
        if array.ndim == 0 and (array.dtype.char in _LETTERS or array.dtype.name == "bfloat16"):
            return f"0-d array {_begin_of(str(array))} of {dtype_text(array)}"
        return f"{name} of {dtype_text(array)} and shape {array.shape}"
    try:
        text = _value_of(value, _MOST_LEVELS)
    except Exception:  # noqa: BLE001 (whatever a class raises from its repr)
        return f"{name} (without a repr)"
    return name if text is None else f"{name} {_clipped(text.removeprefix('an int '))}"


def text_of(value: Any) -> str:
    """Return the value of an object if it is small, else its type."""
    try:
        text = _value_of(value, _MOST_LEVELS)
    except Exception:  # noqa: BLE001
        text = None
    return _class_of(value) if text is None else _clipped(text)


def dtype_text(array: Any) -> str:
    """Return ``dtype int32``."""
    try:
        return f"dtype {_begin_of(str(_plain(array).dtype))}"
    except Exception:  # noqa: BLE001
        return "an unknown dtype"


def name_text(name: str) -> str:
    """Return the name of a call, for the beginning of a message."""
    return _begin_of(name, _SHOWN_OF_NAME)


def class_text(value: Any) -> str:
    """Return ``<class 'int'>``."""
    try:
        return _begin_of(str(type(value)), _SHOWN_OF_NAME)
    except Exception:  # noqa: BLE001
        return "<class>"


def is_masked(value: Any) -> bool:
    """Whether an object is a masked array. Without ``numpy.ma`` there are none."""
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(value, module.MaskedArray)


def is_cupy(value: Any) -> bool:
    """Whether an object is a ``cupy.ndarray``. Where ``cupy`` is not imported, there are none."""
    kind: Any = getattr(sys.modules.get("cupy"), "__dict__", {}).get("ndarray")
    return issubclass(type(kind), type) and type.__subclasscheck__(kind, type(value))  # no metaclass is asked


def _plain(array: Any) -> Any:
    """Return an array of NumPy's own class, as a subclass may have other attributes; any other array as it is."""
    return np.asarray(array) if issubclass(type(array), (np.ndarray, np.generic)) else array


def _class_of(value: Any) -> str:
    return "cupy.ndarray" if is_cupy(value) else _begin_of(_name_of_class(type(value)))  # its own name is NumPy's


def _value_of(value: Any, levels: int) -> str | None:
    """Return a small value as Python writes it; None except for numbers, strings and short lists of them."""
    kind, text = type(value), None
    if issubclass(kind, (tuple, list)):
        return _list_text(value, levels)
    if issubclass(kind, str):
        begin, is_whole = _first(value, _SHOWN + 1)
        begin = _clipped(repr(begin))
        return begin if is_whole or begin.endswith("...") else f"{begin}..."
    if value is None or kind is bool:
        text = repr(value)
    elif issubclass(kind, int):
        bits = int.bit_length(value)
        text = int.__repr__(value) if bits <= _MOST_BITS else f"an int of {bits} bits"
    elif issubclass(kind, float):
        text = float.__repr__(value)
    elif issubclass(kind, complex):
        text = complex.__repr__(value)
    elif issubclass(kind, np.generic) and value.itemsize <= _MOST_BYTES:
        text = repr(value)
    return None if text is None else _begin_of(text)


def _list_text(value: Any, levels: int) -> str:
    """Return a tuple or a list, with its entries if they are few."""
    # The stored entries, regardless of the methods of a subclass.
    own, begin, end = (tuple, "(", ")") if issubclass(type(value), tuple) else (list, "[", "]")
    entries = list(islice(own.__iter__(value), _MOST_ENTRIES + 1))
    if len(entries) > _MOST_ENTRIES or levels == 0:
        return f"{begin}...{end}"
    texts = [_value_of(entry, levels - 1) or _class_of(entry) for entry in entries]
    comma = "," if own is tuple and len(texts) == 1 else ""
    return f"{begin}{', '.join(texts)}{comma}{end}"


def _begin_of(text: str, most: int = _SHOWN) -> str:
    """Return the first characters of a text, on one line."""
    begin, is_whole = _first(text, 4 * most)  # white space is collapsed, so more of them may be needed
    begin = _clipped(begin, most)
    return begin if is_whole or begin.endswith("...") else f"{begin}..."


def _first(text: str, most: int) -> tuple[str, bool]:
    """Return the first characters of a text, and whether they are all."""
    return str.__getitem__(text, slice(most)), str.__len__(text) <= most


def _clipped(text: str, most: int = _SHOWN) -> str:
    text = " ".join(text.encode(errors="surrogatepass").decode(errors="replace").split())  # no lone surrogates
    return f"{text[:most]}..." if len(text) > most else text
