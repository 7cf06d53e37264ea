"""Sums of parts of the data, which merge into the norm of the whole."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gradclip import _core, _exact
from gradclip._checks import Checks
from gradclip._exchange import VERSION, stamp, to_float
from gradclip._text import describe

if TYPE_CHECKING:
    import numpy.typing as npt

    from gradclip._slices import Tensors
    from gradclip._types import Order

#: Numbers of an array before the sum: how many states are in it, the stamp and its square, and the elements.
_HEAD = 4
#: More elements than any data have. Sums of such counts stay in float64.
_MOST_ELEMENTS = 2.0**100
#: In place of accumulators, which an exact sum has none of.
_NONE = np.zeros(0)


class NormState:
    """The norm of a part of the data, in a form that can be merged with other parts.

    Make a state with `NormState.of` where the data are. Send the states, which are small and
    can be pickled. Add them with ``+`` or ``sum``, and call `norm`.

    See Also
    --------
    global_norm : the same norm over a communicator, with ``comm=``.

    Notes
    -----
    A state holds the sum of powers ``|x|**ord`` in a few float64 accumulators, so that no sum
    leaves the range (J. L. Blue, "A Portable Fortran Program to Find the Euclidean Norm of a
    Vector", ACM Trans. Math. Softw. 4, 1978). For ``ord=inf`` it holds the largest magnitude.
    It preserves infinity and NaN. The relative error of a norm of ``n`` states is below
    ``1e-14 + n * 2**-53``, divided by ``ord`` for orders below 1.

    With ``reproducible=True`` a state holds the sum as a whole number. Then the norm is rounded
    once, and its bits depend neither on the split of the data nor on the order of merging.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> parts = [[np.array([3.0])], [np.array([4.0]), None], []]
    >>> state = sum(gc.NormState.of(part) for part in parts)
    >>> state.norm()
    5.0
    >>> state
    NormState(norm=5.0, elements=2, ord=2.0)
    """

    __slots__ = ("_count", "_exact", "_order", "_special", "_sums")

    _order: float
    _count: int
    #: The accumulators, unless the sum is exact.
    _sums: npt.NDArray[np.float64]
    #: The sum as a whole number; then infinity or NaN if a term was not finite, else 0.
    _exact: int | None
    _special: float

    def __init__(self) -> None:
        raise TypeError("NormState: use NormState.of(t_list), or NormState.from_array(array)")

    @classmethod
    def _new(
        cls, order: float, count: int, sums: npt.NDArray[np.float64], exact: int | None = None, special: float = 0.0
    ) -> NormState:
        state = object.__new__(cls)
        state._order, state._count, state._sums, state._exact, state._special = order, count, sums, exact, special
        return state

    @classmethod
    def of(cls, t_list: Tensors, ord: Order = 2, *, name: str | None = None, reproducible: bool = False) -> NormState:
        """Return the state of all tensors of a list.

        Parameters
        ----------
        t_list : sequence of array_like, IndexedSlices or None
            The tensors, as for `global_norm`. None adds nothing.
        ord : number or 'euclidean', optional
            Order of the norm: any number > 0 up to 1000, or ``inf``. Default: 2.
        name : str, optional
            Prefix of error messages. Default: none.
        reproducible : bool, optional
            Whether to add every term exactly, for orders 1, 2 and ``inf``. Default: False.

        Returns
        -------
        NormState
            The state.

        Raises
        ------
        TypeError
            If ``t_list`` is not a sequence, or a tensor has another dtype.
        ValueError
            If ``ord`` is not such a number.

        Examples
        --------
        >>> import numpy as np
        >>> import gradclip as gc
        >>> gc.NormState.of([np.array([3.0, 4.0])]).norm()
        5.0
        """
        order = Checks("NormState.of", name).order(ord)
        if check_reproducible("NormState.of", name, order, reproducible):
            digits, count = _exact.digits("NormState.of", t_list, name, order, False)
            return cls._new(order, count, _NONE, *_exact.total_of(digits))
        sums, count = _core.power_sums("NormState.of", t_list, name, order, False, True)
        return cls._new(order, count, sums[0])

    @property
    def ord(self) -> float:
        """The order of the norm."""
        return self._order

    @property
    def elements(self) -> int:
        """The number of elements."""
        return self._count

    @property
    def reproducible(self) -> bool:
        """Whether the sum is exact."""
        return self._exact is not None or self._order == math.inf

    def norm(self) -> float:
        """Return the norm of all elements that were merged.

        Returns
        -------
        float
            The norm; 0.0 if there is no element. It is infinite or NaN if an element is, and
            infinite if it is beyond float64.
        """
        return to_float(*self._root())

    def average_norm(self) -> float:
        """Return the norm divided by the number of elements, as in `clip_by_average_norm`.

        Returns
        -------
        float
            The average norm; 0.0 if there is no element.
        """
        value, exponent = self._root()
        return to_float(value / self._count, exponent) if self._count else 0.0

    def _root(self) -> tuple[float, float]:
        """Return the norm as ``value, exponent``."""
        if self._exact is None:
            pair = _core.roots_of_power_sums(self._sums, self._order)
        else:
            pair = _exact.root(self._exact, self._special, self._order)
        value, exponent = pair[0].tolist()
        return value, exponent

    def __add__(self, other: object) -> NormState:
        """Return the state of the elements of both states. The sum with 0 is the state itself, so that ``sum`` works.

        Returns
        -------
        NormState
            The merged state.

        Raises
        ------
        TypeError
            If the other operand is neither a state nor 0.
        ValueError
            If the states have different orders, or only one was made with ``reproducible=True``.
        """
        if isinstance(other, int) and other == 0:
            return self
        if not isinstance(other, NormState):
            return NotImplemented
        if self._order != other._order:
            raise ValueError(
                f"NormState: found orders {self._order:g} and {other._order:g}; allowed: states of one order"
            )
        count = self._count + other._count
        if (self._exact is None) != (other._exact is None):
            raise ValueError("NormState: found states with and without reproducible=True; allowed: one kind")
        if self._exact is not None and other._exact is not None:
            special = self._special + other._special
            return self._new(self._order, count, _NONE, self._exact + other._exact, special)
        sums = _core.merge_power_sums(np.stack([self._sums, other._sums]), self._order)
        return self._new(self._order, count, sums)

    __radd__ = __add__

    def to_array(self) -> npt.NDArray[np.float64]:
        """Return the state as a float64 array.

        The elementwise sum of such arrays is the array of the merged state. So the plain sum of
        any engine merges them: ``MPI.SUM``, ``all_reduce``, a sum in dask or Spark. For
        ``ord=inf``, use the maximum of each element instead (``MPI.MAX``, ``numpy.maximum``).
        The number of elements is then the largest one. Up to 2**14 arrays can be added.

        Returns
        -------
        numpy.ndarray
            7 numbers for orders up to 2 and ``inf``, more for larger orders (9 for 3, 1,379 for
            1000). With ``reproducible=True``: 114 for orders 1 and 2. The length depends only on
            the order and on ``reproducible``.

        Examples
        --------
        >>> import numpy as np
        >>> import gradclip as gc
        >>> a, b = gc.NormState.of([np.array([3.0])]), gc.NormState.of([np.array([4.0])])
        >>> gc.NormState.from_array(a.to_array() + b.to_array()).norm()
        5.0
        """
        mark = _mark(self._order, self._exact is not None)
        sums = self._sums if self._exact is None else _exact.digits_of(self._exact, self._special)
        return np.concatenate([[1.0, mark, mark * mark, float(self._count)], sums])

    @classmethod
    def from_array(cls, array: npt.ArrayLike, ord: Order = 2) -> NormState:
        """Return the state that an array holds.

        Parameters
        ----------
        array : array_like
            The result of `to_array`, or the sum of such arrays.
        ord : number or 'euclidean', optional
            The order of the norm. Default: 2.

        Returns
        -------
        NormState
            The state.

        Raises
        ------
        TypeError
            If ``array`` does not hold real numbers, or ``ord`` has a wrong type.
        ValueError
            If ``ord`` is not a number > 0 up to 1000 or ``inf``, or ``array`` is another array,
            such as that of a state of another order or version of gradclip.

        Examples
        --------
        >>> import numpy as np
        >>> import gradclip as gc
        >>> sent = gc.NormState.of([np.array([3.0, 4.0])]).to_array().tobytes()
        >>> gc.NormState.from_array(np.frombuffer(sent)).norm()
        5.0
        """
        checks = Checks("NormState.from_array", None)
        order, found = checks.order(ord), checks.array("array", array)
        if found.dtype.kind not in "fiu":
            raise TypeError(f"NormState.from_array: array: found {describe(array)}; allowed: an array of real numbers")
        numbers = np.array(found, np.float64)  # a copy
        nothing, _ = _core.power_sums("NormState.from_array", (), None, order, False, False)
        cells = nothing.size
        exact = order in _exact.ORDERS and numbers.shape == (_HEAD + _exact.DIGITS,)
        if not exact and numbers.shape != (_HEAD + cells,):
            raise ValueError(
                f"NormState.from_array: array: found shape {numbers.shape}; allowed: shape ({_HEAD + cells},), "
                f"that of a state of order {order:g}"
            )
        states, mark, square, count = numbers[:_HEAD].tolist()
        wanted = _mark(order, exact)
        if order == math.inf and states > 1.0 and mark == states * wanted:
            raise ValueError(
                f"NormState.from_array: array: found the sum of {states:g} states of order inf; allowed: the maximum "
                "of each number over the states"
            )
        is_count = 1.0 <= states <= _exact.MOST_RANKS and states.is_integer()
        if not (is_count and mark == states * wanted and square == states * wanted**2):
            raise ValueError(
                "NormState.from_array: array: found a state of another order or version, or no sum of at most "
                f"{_exact.MOST_RANKS} states; allowed: states of order {order:g} made by this version of gradclip"
            )
        sums = numbers[_HEAD:]
        # Digits are whole, except that infinity or NaN stands in the place of the first.
        digits = sums[1:] if exact and not math.isfinite(sums[0]) else sums
        is_sum = not (sums < 0).any() and (not exact or (np.isfinite(digits).all() and not (digits % 1.0).any()))
        is_count = 0 <= count <= _MOST_ELEMENTS and count % 1.0 == 0.0
        if not is_sum or not is_count or (exact and not _exact.has_room(digits)):
            raise ValueError(
                "NormState.from_array: array: found numbers that no state has; allowed: the array of a state, or the "
                "sum of such arrays"
            )
        if exact:
            return cls._new(order, round(count), _NONE, *_exact.total_of(sums))
        return cls._new(order, round(count), sums)

    def __reduce__(self) -> tuple[Any, ...]:
        return NormState.from_array, (self.to_array(), self._order)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NormState):
            return NotImplemented
        return self._order == other._order and np.array_equal(self.to_array(), other.to_array(), equal_nan=True)

    def __hash__(self) -> int:
        data = self.to_array() + 0.0  # zeros are equal whatever their sign, and so are all NaNs
        data[np.isnan(data)] = np.nan
        return hash((self._order, data.tobytes()))

    def __repr__(self) -> str:
        more = ", reproducible=True" if self._exact is not None else ""
        return f"NormState(norm={self.norm()!r}, elements={self._count}, ord={self._order!r}{more})"


def _mark(order: float, exact: bool) -> float:
    return stamp(VERSION, "NormState", order, exact)


def check_reproducible(function: str, name: Any, order: float, reproducible: Any) -> bool:
    """Return whether sums are to be exact integers: not for the largest magnitude, which is exact in any case."""
    if not isinstance(reproducible, (bool, np.bool_)):
        raise Checks(function, name).wrong_type("reproducible", reproducible, "True or False")
    if reproducible and order not in (*_exact.ORDERS, math.inf):
        raise Checks(function, name).value_error("ord", f"{order:g}", "1, 2 or inf under reproducible=True")
    return bool(reproducible) and order in _exact.ORDERS
