"""Sparse tensors: rows of a larger array."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gradclip import _core
from gradclip._errors import Errors
from gradclip._sequences import entries_of, holds_masked_array
from gradclip._text import is_masked

if TYPE_CHECKING:
    from typing import ClassVar, TypeAlias

    from gradclip._types import Array, Tensor

    #: A list of tensors, some of them None.
    Tensors: TypeAlias = "Sequence[Tensor | IndexedSlices | None]"

_ERRORS = Errors("IndexedSlices")
_ARRAY = "an array or a list"
_FLOATS = {"bfloat16", "float16", "float32", "float64", "complex64", "complex128"}


class IndexedSlices:
    """Rows of a larger array: row ``indices[i]`` of the array is ``values[i]``.

    The gradient of an embedding has this form.

    Parameters
    ----------
    values : array_like
        The rows, of shape ``(n, ...)`` and of any integer dtype, bool, float16,
        bfloat16, float32, float64, complex64 or complex128.
    indices : array_like
        The index of each row, of shape ``(n,)`` and of any integer dtype. An index may
        occur more than once.
    dense_shape : sequence of int, optional
        Shape of the larger array. It has one length for each axis of ``values``, and all
        lengths but the first equal those of ``values``. Default: None, unknown.

    Raises
    ------
    TypeError
        If an argument has another type or dtype.
    ValueError
        If the shapes do not fit together.

    Notes
    -----
    The class corresponds to ``tf.IndexedSlices``. If an index occurs more than once,
    the row of the larger array is the sum of these rows. `clip_by_value`,
    `clip_by_norm`, `clip_by_norms`, `clip_by_global_norm`, `global_norm`, `norms` and
    `NormState.of` work on the stored values, as TensorFlow does. Other functions raise a
    TypeError. Each stored row counts by itself. To merge rows of the same index,
    call `coalesce` first.

    The fields cannot be set, but arrays are not copied, so their elements can change.
    Instances can be pickled and have no hash. Two instances are equal if their contents and
    dtypes are equal. NaN equals NaN here.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> g = gc.IndexedSlices([[3.0, 4.0], [0.0, 0.0]], [7, 2], (10, 2))
    >>> gc.clip_by_norm(g, 1.0)
    IndexedSlices(values=array([[0.6, 0.8],
           [0. , 0. ]]), indices=array([7, 2]), dense_shape=(10, 2))
    """

    __slots__ = ("dense_shape", "indices", "values")
    __match_args__ = ("values", "indices", "dense_shape")
    __hash__: ClassVar[None]  # type: ignore[assignment]  # because of __eq__

    values: Array
    indices: Array
    dense_shape: tuple[int, ...] | None

    def __init__(self, values: Tensor, indices: Tensor, dense_shape: Sequence[int] | None = None) -> None:
        rows = np.asarray(array_of(_ERRORS, "values", values, _ARRAY))
        if not _is_numeric(rows.dtype):
            raise _ERRORS.wrong_dtype("values", rows, rows, ["integers", "bool", *sorted(_FLOATS)])
        if rows.ndim == 0:
            raise _ERRORS.value_error("values", "shape ()", "at least one dimension")
        where = np.asarray(array_of(_ERRORS, "indices", indices, _ARRAY))
        if where.size == 0 and isinstance(indices, (list, tuple)):
            where = where.astype(np.int64)  # NumPy makes an empty list a float array
        if where.dtype.kind not in "iu":
            raise _ERRORS.wrong_dtype("indices", where, where, ["an integer dtype"])
        if where.shape != rows.shape[:1]:
            allowed = f"{rows.shape[:1]}, one index for each of the rows of values"
            raise _ERRORS.value_error("indices", f"shape {where.shape}", allowed)
        shape = None if dense_shape is None else _shape(dense_shape)
        if shape is not None and (len(shape) != rows.ndim or shape[1:] != rows.shape[1:] or min(shape) < 0):
            allowed = f"(rows, {', '.join(map(str, rows.shape[1:]))})" if rows.ndim > 1 else "(rows,)"
            raise _ERRORS.wrong_tuple("dense_shape", shape, f"{allowed}, to agree with values")
        if shape is not None and max(shape) > sys.maxsize:
            raise _ERRORS.wrong_tuple("dense_shape", shape, f"lengths up to {sys.maxsize}")
        self._set(rows, where, shape)

    def _set(self, values: Array, indices: Array, dense_shape: tuple[int, ...] | None) -> None:
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "indices", indices)
        object.__setattr__(self, "dense_shape", dense_shape)

    def _with_values(self, values: Array) -> IndexedSlices:
        """Return the same rows with other values of the same shape."""
        slices = object.__new__(IndexedSlices)
        slices._set(values, self.indices, self.dense_shape)
        return slices

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"IndexedSlices cannot be changed: cannot assign to {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"IndexedSlices cannot be changed: cannot delete {name!r}")

    def __reduce__(self) -> tuple[type[IndexedSlices], tuple[Array, Array, tuple[int, ...] | None]]:
        return IndexedSlices, (self.values, self.indices, self.dense_shape)

    def __repr__(self) -> str:
        return f"IndexedSlices(values={self.values!r}, indices={self.indices!r}, dense_shape={self.dense_shape!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IndexedSlices):
            return NotImplemented
        return (
            self.dense_shape == other.dense_shape
            and _equal(self.indices, other.indices)
            and _equal(self.values, other.values)
        )

    def coalesce(self) -> IndexedSlices:
        """Return the same tensor with each index once, in ascending order.

        Returns
        -------
        IndexedSlices
            The sums of the rows of each index, with the dtype of ``values``.

        Notes
        -----
        Rows of the same index are added in the order in which they are stored.
        Floating-point values are added in float64, complex ones in complex128; each
        sum is rounded once. Integers are added as NumPy adds them.

        Examples
        --------
        >>> import numpy as np
        >>> import gradclip as gc
        >>> gc.IndexedSlices(np.array([1.0, 2.0, 4.0]), np.array([5, 0, 5])).coalesce()
        IndexedSlices(values=array([2., 5.]), indices=array([0, 5]), dense_shape=None)
        """
        order = np.argsort(self.indices, kind="stable")
        ascending = self.indices[order]
        is_first = np.append(True, ascending[1:] != ascending[:-1])[: len(order)]
        firsts = np.flatnonzero(is_first)
        dtype, shape = self.values.dtype.newbyteorder("="), self.values.shape
        rows = np.ascontiguousarray(self.values, dtype).reshape(len(order), math.prod(shape[1:]))
        if dtype.kind in "biu":
            sums = np.add.reduceat(rows[order], firsts, axis=0, dtype=dtype)
        else:
            # A complex number is added as two real numbers.
            parts = rows.view(rows.real.dtype)
            bounds = np.append(firsts, len(order))
            sums = _core.sum_rows(parts, order.astype(np.int64), bounds.astype(np.int64)).view(dtype)
        return IndexedSlices(sums.reshape(len(firsts), *shape[1:]), ascending[firsts], self.dense_shape)

    def to_dense(self) -> Array:
        """Return the larger array.

        Returns
        -------
        numpy.ndarray
            The array, of shape ``dense_shape`` and the dtype of ``values``. Rows of the
            same index are added as in `coalesce`. All other rows are 0.

        Raises
        ------
        ValueError
            If ``dense_shape`` is None, or an index is out of range.

        Examples
        --------
        >>> import numpy as np
        >>> import gradclip as gc
        >>> g = gc.IndexedSlices(np.array([1.0, 2.0, 4.0]), np.array([3, 0, 3]), (5,))
        >>> g.to_dense()
        array([2., 0., 0., 5., 0.])
        """
        if self.dense_shape is None:
            raise ValueError("IndexedSlices.to_dense: dense_shape: found None; allowed: a shape, given at construction")
        if self.indices.size:
            low, high = int(self.indices.min()), int(self.indices.max())
            rows = self.dense_shape[0]
            if low < 0 or high >= rows:
                raise ValueError(
                    f"IndexedSlices.to_dense: indices: found {low if low < 0 else high}; "
                    f"allowed: {f'0 to {rows - 1}' if rows else 'none'}, for dense_shape {self.dense_shape}"
                )
        distinct = self.coalesce()
        dense = np.zeros(self.dense_shape, distinct.values.dtype)
        dense[distinct.indices] = distinct.values
        return dense


def array_of(errors: Errors, argument: str, value: Any, allowed: str) -> Array:
    """Return what NumPy makes of an object. What its ``__array__`` raises passes through."""
    if value is None:
        raise errors.type_error(argument, "None", allowed)
    made = value if issubclass(type(value), np.ndarray) else _converted(errors, argument, value)
    if made is None or is_masked(made):
        raise errors.type_error(argument, "a masked array", "an array without a mask; .filled() makes one")
    if not issubclass(type(made), np.ndarray):
        raise errors.wrong_type(argument, value, allowed)
    return made


def _converted(errors: Errors, argument: str, value: Any) -> Array | None:
    """Return what NumPy makes of an object that is no array; None if it holds a masked array."""
    is_sequence = issubclass(type(value), (list, tuple)) or isinstance(value, Sequence)
    if is_sequence and holds_masked_array(errors, argument, value):
        return None
    try:
        made: Array = np.asanyarray(value)
    except ValueError as error:
        text = str(error) if is_sequence else ""
        if "inhomogeneous" in text:
            allowed = "a nested list whose rows have equal lengths"
            if argument in {"t", "tensor"}:
                allowed += "; a list of tensors is for functions such as clip_by_global_norm"
            elif argument.startswith("t_list["):
                allowed += "; gradclip.tree takes nested lists of tensors"
            raise errors.value_error(argument, "a ragged list", allowed) from error
        if "maximum number of dimension" in text:
            raise errors.value_error(argument, "a list nested too deep", "at most 64 dimensions") from error
        raise
    return made


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    # By name: ml_dtypes has other floats, and longdouble has other names on other platforms.
    return dtype.kind in "biu" or dtype.name in _FLOATS


def _shape(dense_shape: Sequence[int]) -> tuple[int, ...]:
    try:
        # An array is no Sequence, but a shape often comes as one.
        if isinstance(dense_shape, (str, bytes)) or not isinstance(dense_shape, (Sequence, np.ndarray)):
            raise TypeError  # noqa: TRY301 (one message for all)
        entries = dense_shape.tolist() if isinstance(dense_shape, np.ndarray) else dense_shape
        lengths = tuple(entries_of(_ERRORS, "dense_shape", entries))
        if any(isinstance(length, (bool, np.bool_)) for length in lengths):
            raise TypeError  # noqa: TRY301
        return tuple(map(operator.index, lengths))
    except TypeError:
        raise _ERRORS.wrong_type("dense_shape", dense_shape, "None or a sequence of ints") from None


def values_of(tensor: Any) -> Array:
    """Return the array of a tensor: the values of `IndexedSlices`, or what NumPy makes of the tensor."""
    return np.asarray(tensor.values if isinstance(tensor, IndexedSlices) else tensor)


def _equal(a: Array, b: Array) -> bool:
    # Up to byte order, which pickling does not keep.
    if a.dtype.newbyteorder("=") != b.dtype.newbyteorder("=") or a.shape != b.shape:
        return False
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return bool(np.all((a == b) | ((a != a) & (b != b))))  # noqa: PLR0124 (NaN, also where np.isnan is not defined)
