"""The errors about arguments.

Every message has the form ``function 'name': argument: found ...; allowed: ...``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gradclip._text import describe, dtype_text, name_text, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradclip._types import Array


#: Functions of lists that `gradclip.tree` has too.
OF_TREES = {"clip_by_global_norm", "clip_difference_by_global_norm", "global_norm", "norms"}
#: Functions with the argument ``integers``.
_KEEP_INTEGERS = {"clip_by_global_norm", "clip_difference_by_global_norm"}


class Errors:
    """The errors of one call of a public function, which the methods return. ``name`` is the caller's."""

    def __init__(self, function: str, name: Any = None) -> None:
        self.function, self.name = function, name

    @property
    def prefix(self) -> str:
        """The beginning of each message."""
        return f"{self.function} '{name_text(self.name)}'" if issubclass(type(self.name), str) else self.function

    def type_error(self, argument: str, found: str, allowed: str) -> TypeError:
        """Return the error for an argument of a wrong type."""
        return TypeError(f"{self.prefix}: {argument}: found {found}; allowed: {allowed}")

    def value_error(self, argument: str, found: str, allowed: str) -> ValueError:
        """Return the error for an argument of the right type with a wrong value."""
        return ValueError(f"{self.prefix}: {argument}: found {found}; allowed: {allowed}")

    def wrong_type(self, argument: str, value: Any, allowed: str) -> TypeError:
        """Return the error for an object of a wrong type."""
        return self.type_error(argument, describe(value), allowed)

    def wrong_value(self, argument: str, value: Any, allowed: str) -> ValueError:
        """Return the error for an object of the right type with a wrong value."""
        return self.value_error(argument, describe(value), allowed)

    def wrong_tuple(self, argument: str, value: tuple[int, ...], allowed: str) -> ValueError:
        """Return the error for a tuple of wrong values."""
        return self.value_error(argument, text_of(value), allowed)

    def wrong_word(self, argument: str, value: Any, allowed: str) -> Exception:
        """Return the error for an argument that is none of some words."""
        make = self.wrong_value if issubclass(type(value), str) else self.wrong_type
        return make(argument, value, allowed)

    def wrong_dtype(self, argument: str, value: Any, array: Array, allowed: Sequence[str]) -> TypeError:
        """Return the error for a tensor of a dtype that is not allowed. ``array`` is what NumPy makes of ``value``."""
        found, hint = dtype_text(array), ""
        if found == "dtype object" and not issubclass(type(value), np.ndarray):
            found = f"{describe(value)}, of which NumPy makes {found}"
            if type(value).__name__ == "IndexedSlices":  # of TensorFlow
                hint = "; gradclip.IndexedSlices(s.values, s.indices) converts it"
            elif issubclass(type(value), dict) and self.function in OF_TREES:
                hint = "; gradclip.tree takes dicts"
        elif self.function in _KEEP_INTEGERS and isinstance(array, np.ndarray) and array.dtype.kind in "iub":
            # In a base, integers are kept only beside integers in the list.
            hint = "" if argument.startswith("base_list") else "; integers='keep' copies tensors of integers"
        return self.type_error(argument, found, ", ".join(allowed) + hint)

    def wrong_shape(self, argument: str, found: Sequence[int], allowed: Sequence[int], owner: str) -> ValueError:
        """Return the error for an array whose shape is not that of another."""
        return self.value_error(argument, f"shape {tuple(found)}", f"shape {tuple(allowed)}, that of {owner}")

    def wrong_count(self, argument: str, shape: Sequence[int], count: int, place: int) -> ValueError:
        """Return the error for a tensor of another number of examples than an earlier one."""
        found = f"{shape[0]} examples (shape {tuple(shape)})"
        return self.value_error(argument, found, f"{count}, as t_list[{place}] has")

    def clash_error(self, one: str, other: str) -> ValueError:
        """Return the error for two outputs that share memory, or one whose own elements do."""
        found = "an array whose own elements overlap" if one == other else f"an array that shares memory with {one}"
        return self.value_error(other, found, "arrays that share no byte")
