"""Sums that are not rounded: whole numbers in units of ``2**-2148``, the square of the smallest float64.

Between processes they travel as float64 digits, which plain addition merges: each digit is a whole
number, so that the sum of the digits of many processes is exact.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gradclip import _core

if TYPE_CHECKING:
    from gradclip._types import Array

#: The orders whose sums are whole.
ORDERS = (1.0, 2.0)
#: Binary orders of magnitude below 1.
_LOWEST = 2148
#: Bits of a digit. float64 holds integers of 53 bits, so sums of 2**14 digits are exact.
_BITS = 39
#: The number of digits: enough for the bits of the compiled part's sums.
DIGITS = 110
#: Processes whose digits can be added.
MOST_RANKS = 2 ** (53 - _BITS)

_WEIGHTS = 2.0 ** np.arange(_BITS)


def digits(function: str, t_list: Any, name: Any, order: float, keeps_integers: bool) -> tuple[Array, int]:
    """Return the sum of the magnitudes of a list, or of their squares, and the number of elements."""
    found, special, elements = _core.exact_sum(function, t_list, name, order, keeps_integers)
    return digits_of(int.from_bytes(found, "little"), special), elements


def digits_of(total: int, special: float = 0.0) -> Array:
    """Return the digits of a sum. ``special`` is infinity or NaN if a term was not finite, and takes their place."""
    if special != 0.0:
        return np.concatenate([[special], np.zeros(DIGITS - 1)])
    bits = np.frombuffer(total.to_bytes(-(-DIGITS * _BITS // 8), "little"), np.uint8)
    return np.unpackbits(bits, count=DIGITS * _BITS, bitorder="little").reshape(DIGITS, _BITS) @ _WEIGHTS


def total_of(found: Array) -> tuple[int, float]:
    """Return the sum whose digits these are, or the sum of digits, and what `digits_of` calls ``special``."""
    if not math.isfinite(found[0]):
        return 0, float(found[0])
    places = np.flatnonzero(found).tolist()
    return sum(int(found[place]) << (_BITS * place) for place in places), 0.0


def has_room(found: Array) -> bool:
    """Return whether `digits_of` has room for the sum of these digits."""
    return total_of(found)[0].bit_length() <= DIGITS * _BITS


def root(total: int, special: float, order: float) -> Array:
    """Return the norm, rounded once, as an array of one row ``value, exponent``."""
    if special != 0.0 or total == 0:
        return np.array([[special, 0.0]])
    if order == 1.0:
        exponent = -_LOWEST
        is_whole = True
    else:
        # The square root of at least 128 bits has 64, which is more than float64 has.
        shift = max(0, 64 - total.bit_length() // 2)
        scaled = total << (2 * shift)
        total = math.isqrt(scaled)
        is_whole = total * total == scaled
        exponent = -_LOWEST // 2 - shift
    excess = max(0, total.bit_length() - 64)
    is_whole = is_whole and total & ((1 << excess) - 1) == 0
    # The last bit says whether there was more, so that rounding to float64 sees no tie that is none.
    value = (total >> excess) | (not is_whole)
    return np.array([[float(value), float(exponent + excess)]])
