"""The checks of arguments.

The compiled part reads plain arguments itself, and calls a method of `Checks` for all others and for every error. It
decides the order of the checks: that of the signature, the type before the value, and all of them before anything is
written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, ValuesView
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gradclip import _core, _nonfinite
from gradclip._errors import OF_TREES, Errors
from gradclip._rounding import rounded, rounded_integers
from gradclip._sequences import entries_of, holds_masked_array, is_sequence_of_tensors
from gradclip._slices import IndexedSlices, array_of
from gradclip._text import class_text, describe, dtype_text, is_cupy, is_masked, text_of

if TYPE_CHECKING:
    from gradclip._types import Array

_LIMIT = "a real number >= 0 (a Python or NumPy int, float or 0-d array)"
_LIMITS = "a real number >= 0, or a sequence of such numbers and None, one for each tensor"
_VECTOR = "'euclidean' or a real number > 0, numpy.inf included"
_MATRIX = "'euclidean', 'fro', 1, 2 or inf for two axes"
_ARRAY = "an array, a number or a nested list of numbers"
#: The second lists of functions. Their entries belong to those of ``t_list``.
_SECOND_LISTS = {"clip_by_weight_norm": "weights", "clip_difference_by_global_norm": "base_list"}


class Checks(Errors):
    """The checks of one call of a public function: methods that raise, beside those of `Errors`, which return."""

    def nonfinite_error(self, make: str, *arguments: Any) -> ValueError:
        """Return the error that a function of `gradclip._nonfinite` makes."""
        error: ValueError = getattr(_nonfinite, make)(self.prefix, *arguments)
        return error

    # Tensors and outputs.

    def array(self, argument: str, value: Any) -> Array:
        """Return what NumPy makes of an object. What its ``__array__`` raises passes through."""
        return array_of(self, argument, value, _ARRAY)

    def array_or_values(self, argument: str, value: Any, takes_slices: bool) -> tuple[Array, IndexedSlices | None]:
        """Return the array of a tensor, and the slices that hold it as their values if the tensor is of that class."""
        if not isinstance(value, IndexedSlices):
            return self.array(argument, value), None
        if not takes_slices:
            raise self.type_error(argument, "IndexedSlices", "an array; use .to_dense() to make one")
        return self.array(argument, value.values), value

    def fitting_out(
        self, argument: str, out: Any, slices: IndexedSlices | None, dtype: str, shape: Sequence[int]
    ) -> Array:
        """Return the array of an output, if it fits a tensor of this dtype and shape, and of these slices."""
        if slices is None:
            return self._fitting_array(argument, out, out, dtype, tuple(shape))
        if not isinstance(out, IndexedSlices):
            raise self.wrong_type(argument, out, "None or IndexedSlices, as the input is")
        values = self._fitting_array(argument, out, out.values, dtype, tuple(shape))
        allowed = "IndexedSlices with the indices and the dense_shape of the input"
        if slices.indices is not out.indices and not np.array_equal(slices.indices, out.indices):
            raise self.value_error(argument, "other indices", allowed)
        if slices.dense_shape != out.dense_shape:
            raise self.value_error(argument, f"dense_shape {text_of(out.dense_shape)}", allowed)
        return values

    def _fitting_array(self, argument: str, out: Any, values: Array, dtype: str, shape: tuple[int, ...]) -> Array:
        if not issubclass(type(values), np.ndarray):
            raise self.wrong_type(argument, out, "None or a numpy.ndarray")
        if is_masked(values):
            raise self.type_error(argument, "a masked array", "an array without a mask")
        array = np.asarray(values)
        if array.dtype.name != dtype:
            raise self.type_error(argument, dtype_text(array), f"dtype {dtype}")
        if array.shape != shape:
            raise self.value_error(argument, f"shape {array.shape}", f"shape {shape}")
        if not array.flags.writeable:
            raise self.value_error(argument, "a read-only array", "a writeable one")
        return values

    def keep_apart(self, outputs: Sequence[Any], inputs: Sequence[Any], places: Sequence[int] | None) -> list[int]:
        """Return which inputs must be copied before anything is written; see `_core.keep_apart`.

        ``places`` are the outputs' places in a list; None if ``out`` is no list.
        """
        clash, copies = _core.keep_apart(outputs, inputs)
        if clash is not None:
            raise self.clash_error(*("out" if places is None else f"out[{places[at]}]" for at in clash))
        return copies

    # Sequences.

    def sequence(self, value: Any) -> tuple[Any, ...]:
        """Return the entries of a list of tensors."""
        if _is_list(value) or is_sequence_of_tensors(value):
            return tuple(entries_of(self, "t_list", value))
        found, advice = class_text(value), ""
        if issubclass(type(value), dict):
            trees = "Use gradclip.tree for a dict, or pass " if self.function in OF_TREES else ""
            second = _SECOND_LISTS.get(self.function)
            lists = (
                f"[t_list[k] for k in t_list] and [{second}[k] for k in t_list]" if second else "list(t_list.values())"
            )
            advice = f" {trees or 'Pass '}{lists}."
        elif issubclass(type(value), Mapping):
            advice = " Pass list(t_list.values())."
        elif issubclass(type(value), (Iterator, ValuesView)) or _is_array_of_objects(value):
            advice = " Pass list(t_list)."
        elif hasattr(type(value), "__array__"):
            advice = " Pass [t_list] for one tensor."
        # TensorFlow's message.
        sentence = f"`t_list` should be a sequence of tensors. Received {found}.{advice}"
        raise TypeError(sentence if self.name is None else f"{self.prefix}: {sentence}")

    def sequence_of(self, argument: str, value: Any, count: int, allowed: str) -> tuple[Any, ...]:
        """Return the entries of an argument that has one for each tensor."""
        if not (_is_list(value) or is_sequence_of_tensors(value)):
            raise self.wrong_type(argument, value, allowed)
        entries = value if type(value) is tuple else tuple(entries_of(self, argument, value))
        if len(entries) != count:
            raise self.value_error(argument, f"length {len(entries)}", f"length {count}, that of t_list")
        return entries

    def out_sequence(self, out: Any, count: int) -> tuple[Any, ...] | None:
        """Return the entries of ``out`` for a list of tensors."""
        return None if out is None else self.sequence_of("out", out, count, "None or a sequence of arrays")

    # Numbers, axes, flags and words.

    def check_name(self) -> None:
        """Raise an error for a name that is neither None nor a str."""
        if self.name is not None and not issubclass(type(self.name), str):
            raise self.wrong_type("name", self.name, "None or a str")

    def keepdims(self, value: Any) -> bool:
        """Return ``keepdims``."""
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.wrong_type("keepdims", value, "None or a bool")

    def limit(self, argument: str, value: Any, nan: bool, allowed: str = _LIMIT) -> float:
        """Return a real number that is not negative; NaN only if ``nan``."""
        number = self._number(argument, value)
        if isinstance(number, tuple):
            raise self.value_error(argument, f"shape {number}", allowed)
        if number is None:
            kind = type(value)  # maybe a 0-d array of another package
            is_number = hasattr(kind, "__float__") and not issubclass(kind, (bool, np.ndarray, np.generic))
            hint = "; float(x) converts it" if is_number and getattr(value, "shape", ()) == () else ""
            raise self.wrong_type(argument, value, f"{allowed}{hint}")
        if number >= 0 or (nan and math.isnan(number)):
            return abs(number)
        raise self.wrong_value(argument, value, _LIMIT)

    def limits(self, argument: str, value: Any, count: int) -> float | tuple[float, ...]:
        """Return one limit for all tensors, or one for each, which is infinite for None."""
        is_vector = issubclass(type(value), np.ndarray) and np.asarray(value).ndim == 1
        if is_vector:
            self.array(argument, value)  # refuses a masked array
        if not (is_vector or _is_list(value) or is_sequence_of_tensors(value)):
            return self.limit(argument, value, False, _LIMITS)
        entries = self.sequence_of(argument, list(np.asarray(value)) if is_vector else value, count, "")
        return tuple(
            math.inf if entry is None else self.limit(f"{argument}[{i}]", entry, False)
            for i, entry in enumerate(entries)
        )

    def order(self, ord: Any) -> float:
        """Return the ``ord`` of a function that has only vector norms."""
        if issubclass(type(ord), str):
            if str.__eq__(ord, "euclidean"):
                return 2.0
            has_matrices = self.function in {"norm", "normalize"} and not str.__eq__(ord, "fro")
            raise self.wrong_value("ord", ord, f"{_VECTOR}; {_MATRIX}" if has_matrices else _VECTOR)
        number = self._number("ord", ord)
        if isinstance(number, float) and number > 0:
            return number
        is_wrong = number is None and (ord is None or _is_bool(ord))
        raise (self.wrong_type if is_wrong else self.wrong_value)("ord", ord, _VECTOR)

    def along(
        self, ord: Any, axis: Any, ndim: int
    ) -> tuple[Literal["whole", "vectors", "matrices"], list[int] | None, float]:
        """Return the kind of a norm, its axes and its order.

        For matrices the order is 1 for the largest column sum, 2 for the largest singular value, and infinite for the
        largest row sum.
        """
        # 'fro' is the Euclidean norm, but of matrices only.
        is_text = issubclass(type(ord), str)
        is_fro = is_text and str.__eq__(ord, "fro")
        order = 2.0 if is_fro else self.order(ord)
        axes = self.axes("axis", axis, ndim)
        if axes == []:
            raise self.value_error("axis", "an empty sequence", "None, an int or a sequence of at least one int")
        is_matrix = axes is not None and len(axes) == 2  # noqa: PLR2004
        if is_fro and not is_matrix:
            raise self.wrong_value("ord", ord, f"{_VECTOR}; 'fro' with two axes")
        # A string names the norm of all elements, also along two axes.
        if is_matrix and not is_text:
            if order not in {1, 2, math.inf}:
                raise self.wrong_value("ord", ord, _MATRIX)
            return "matrices", axes, order
        return ("whole", None, order) if axes is None or len(axes) == ndim else ("vectors", axes, order)

    def axes(self, argument: str, value: Any, ndim: int) -> list[int] | None:
        """Return axes as numbers from 0 on, in the given order. None: all of them."""
        if value is None:
            return None
        given: list[int | None] = [integer_of(value)]
        if given == [None] and issubclass(type(value), np.ndarray):
            array = np.asarray(value)
            if array.ndim == 1 and array.dtype.kind in "iu":
                given = array[: ndim + 1].tolist()
        elif given == [None] and (_is_list(value) or _is_other_sequence(value)):
            # More axes than dimensions are an error whatever follows, and a range may be very long.
            is_long = not _is_list(value) and len(value) > ndim
            entries = tuple(islice(value, ndim + 1) if is_long else entries_of(self, argument, value))
            given = list(map(integer_of, entries[: ndim + 1]))
        axes: list[int] = []
        if None in given:
            raise self.wrong_type(argument, value, "None, an int or a sequence of ints")
        for axis in given:
            if axis is None or not -ndim <= axis < ndim:
                text = str(self.value_error(argument, text_of(axis), f"axes of an array with {ndim} dimensions"))
                raise np.exceptions.AxisError(text)
            if axis % ndim in axes:
                raise self.value_error(argument, f"axis {axis % ndim} twice", "each axis at most once")
            axes.append(axis % ndim)
        return axes

    def unit_axis(self, value: Any) -> None:
        """Raise an error if the axis of the units is no integer."""
        if integer_of(value) is None:
            raise self.wrong_type("unit_axis", value, "an int")

    def bound(self, argument: str, value: Any, tensor: Array, shape: Sequence[int]) -> Any:
        """Return a bound of a tensor of this shape: a Python number, or an array of its dtype that broadcasts to it."""
        dtype, is_list = np.asarray(tensor).dtype, _is_list(value)
        is_float = dtype.kind in "fV"
        if is_cupy(value):
            only = "None, a number or a NumPy array, for a tensor that is no cupy.ndarray"
            raise self.wrong_type(argument, value, only)
        if not is_list and not issubclass(type(value), (np.ndarray, np.generic)) and not hasattr(value, "__array__"):
            number = integer_of(value)
            if number is not None:
                return number
        owner = self.array(argument, value)
        array = own_view = np.asarray(owner)
        if is_list and _kind(array) != "i":
            integers = rounded_integers(value, dtype)
            array = array if integers is None else integers
        kind = _kind(array)
        if kind != "i" and not (kind == "f" and is_float):
            # The class of other objects does not tell that they hold floats.
            is_told = issubclass(type(value), (np.ndarray, np.generic, float))
            found = dtype_text(array) if is_list or (kind == "f" and not is_told) else describe(value)
            raise self._wrong_bound(argument, found, dtype)
        if array.ndim == 0:
            # A float64 is converted to the tensor's dtype later, and so is an integer of any size.
            return _item(rounded(array, dtype) if is_float and array.itemsize > 8 else array)  # noqa: PLR2004
        pairs = zip(reversed(array.shape), reversed(shape), strict=False)
        if array.ndim > len(shape) or any(own not in {1, other} for own, other in pairs):
            fitting = f"a shape that broadcasts to that of the tensor, {tuple(shape)}"
            raise self.value_error(argument, f"shape {array.shape}", fitting)
        cast = rounded(array, dtype)
        if cast.size == 1 and (number := _item(cast)) == number:  # a NaN would lose its payload as a number
            return number
        # The caller's array itself, not a view: its memory is used only if it has not been resized.
        return owner if cast is own_view else cast

    def _wrong_bound(self, argument: str, found: str, dtype: np.dtype[Any]) -> TypeError:
        is_float = dtype.kind in "fV"
        numbers = "a real number or an array of real numbers" if is_float else "an int or an array of integers"
        return self.type_error(argument, found, f"None, {numbers}, for a tensor of dtype {dtype.name}")

    def _number(self, argument: str, value: Any) -> float | tuple[int, ...] | None:
        """Return the value of a real number, the shape of an array that is not 0-d, None for what is no number."""
        kind = type(value)
        if issubclass(kind, float):
            return float.__float__(value)
        if issubclass(kind, int):
            return None if kind is bool else _to_float(int.__index__(value))
        if _is_list(value):
            # A list is no number. It is converted for a better error: that of an array which is not 0-d.
            holds_masked_array(self, argument, value)
            try:
                array = np.asarray(value)
            except Exception:  # noqa: BLE001 (whatever an entry raises)
                return None
        elif not issubclass(kind, (np.ndarray, np.generic)) or is_masked(value):
            return None
        else:
            array = np.asarray(value)
        if _kind(array) not in {"i", "f"}:
            return None
        return array.shape if array.ndim else _to_float(_item(array))


def _is_array_of_objects(value: Any) -> bool:
    return issubclass(type(value), np.ndarray) and value.dtype == object and value.ndim > 0


def integer_of(value: Any) -> int | None:
    """Return a Python or NumPy integer, but no bool, as a Python int."""
    kind = type(value)
    if issubclass(kind, int):
        return None if kind is bool else int.__index__(value)
    if issubclass(kind, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.kind in "iu" and array.ndim == 0:
            return int(array.item())
    return None


def number_of_threads(n: Any, most: int) -> int:
    """Return the argument of `set_num_threads` as an int."""
    number = integer_of(n)
    if number is None or not 1 <= number <= most:
        kind = TypeError if number is None else ValueError
        raise kind(f"set_num_threads: n: found {describe(n)}; allowed: an int from 1 to {most}")
    return number


def _to_float(number: Any) -> float:
    try:
        rounded = float(number)
    except OverflowError:
        return -math.inf if number < 0 else math.inf
    return -math.ulp(0.0) if rounded == 0.0 > number else rounded  # a longdouble below float64's range stays negative


def _item(array: Array) -> Any:
    """Return the one element as a Python number."""
    if array.dtype.kind in "iuf":
        return array.item()
    # The scalars of ml_dtypes are wrong where the byte order is not the native one. They are converted to Python
    # numbers one by one: NumPy's conversion of a whole array warns of a signaling NaN.
    scalar = array.astype(array.dtype.newbyteorder("=")).item()
    return int(scalar) if _kind(array) == "i" else float(scalar)


def _kind(array: Array) -> str | None:
    """Return ``i`` for integers and ``f`` for floats, those of ml_dtypes included."""
    dtype = array.dtype
    if dtype.kind in "iuf":
        return dtype.kind.replace("u", "i")
    name = dtype.type.__name__.lstrip("ub") if dtype.type.__module__ == "ml_dtypes" else ""
    return "i" if name.startswith("int") else "f" if name.startswith("float") else None


def _is_bool(value: Any) -> bool:
    kind = type(value)
    return kind is bool or (issubclass(kind, (np.ndarray, np.generic)) and np.asarray(value).dtype.kind == "b")


def _is_list(value: Any) -> bool:
    return issubclass(type(value), (list, tuple))


def _is_other_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not issubclass(type(value), (str, bytes, bytearray))
