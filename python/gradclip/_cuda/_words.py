"""The argument of the kernels: its words, by the names that ``kernels.cu`` has for them, and dtypes."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.int64]

PARAMS = 480
THREADS = 256
BLOCK = 2048
CHUNK = 64 * BLOCK
SPAN_BLOCKS = 64 * 64
ROWS_OF_BLOCK = 64
TILE = 64  # threads side by side on columns
STATE_WORDS = 16
PARTS = 6


class Word(IntEnum):
    """Words of a kernel's argument."""

    TABLE_AT = 0
    COUNT = 1
    BLOCKS = 2
    ORDER = 3
    EXPONENT = 4
    FLAGS = 5
    MODE = 6
    LIMIT = 7
    LIMIT_AT = 8
    LIMIT_DTYPE = 9
    USED = 10
    USED_AT = 11
    USED_DTYPE = 12
    USED_EXPONENT = 13
    ELEMENTS = 14
    PARTS_AT = 15
    SLOTS = 16
    SPANS_AT = 17
    SPANS = 18
    TENSORS = 19
    STATE_AT = 20
    TICKET_AT = 21
    NORM_AT = 22
    ROWS = 23
    SOURCE = 24
    TARGET = 25
    DTYPE = 26
    LENGTH = 27
    KEPT = 28
    REDUCED = 29
    TARGET_KEPT = 30
    TARGET_REDUCED = 31
    VALUES_AT = 32
    FACTORS_AT = 33
    RUN = 34
    LO = 35
    HI = 36
    LO_AT = 37
    HI_AT = 38
    SOURCE_LAYOUT = 39
    TARGET_LAYOUT = 40
    LO_LAYOUT = 41
    HI_LAYOUT = 42
    TARGET_DTYPE = 43
    OUTER = 44
    MIDDLE = 45
    INNER = 46
    TABLE = 47


class Row(IntEnum):
    """Words of a row of the table."""

    SOURCE = 0
    TARGET = 1
    LEN = 2
    BLOCK = 3
    SLOT = 4
    GROUP = 5
    LAYOUTS = 6
    WORDS = 7


class Order(IntEnum):
    """Kinds of norms."""

    ONE = 1
    TWO = 2
    MAX = 3
    SIMPLE = 4
    POWER = 5
    __hash__ = int.__hash__  # the hash of an enumeration takes far longer


class Mode(IntEnum):
    """The use of a norm."""

    NORM = 0
    CLIP = 1
    GLOBAL = 2
    AVERAGE = 3
    NORMALIZE = 4
    PART = 5
    __hash__ = int.__hash__


class Flag(IntFlag):
    """Bits of `Word.FLAGS`."""

    HAS_LIMBS = 1
    WIDE = 2
    WIDE_MODULUS = 4
    IN_PLACE = 8
    NARROW_NORM = 16
    EACH = 64
    NUMBER = 128


def columns_at_once(itemsize: int) -> int:
    """Return how many neighbouring columns a thread takes where it can load them at once: 4, or those in 16 bytes."""
    return min(16 // itemsize, 4)


# ---- dtypes

#: By code: the name, and the type in the kernels.
DTYPES = (
    ("float16", "f16"),
    ("bfloat16", "bf16"),
    ("float32", "float"),
    ("float64", "double"),
    ("complex64", None),
    ("complex128", None),
    ("int8", "i8"),
    ("int16", "i16"),
    ("int32", "i32"),
    ("int64", "i64"),
    ("uint8", "u8"),
    ("uint16", "u16"),
    ("uint32", "u32"),
    ("uint64", "u64"),
    ("bool", None),
)
ITEMSIZES = (2, 2, 4, 8, 8, 16, 1, 2, 4, 8, 1, 2, 4, 8, 1)
NAMES = tuple(name for name, _ in DTYPES)
TYPES = tuple(name for _, name in DTYPES)
FLOAT64, COMPLEX64, COMPLEX128, INT64, UINT64, BOOL = 3, 4, 5, 9, 13, 14
REAL = range(4)
COMPLEX = {COMPLEX64: 2, COMPLEX128: 3}  # and the dtype of the parts
SCALABLE = range(6)
ORDERED = (*REAL, *range(6, 14))
#: Squares of these, and sums of their moduli, can leave float64's range.
WIDE = frozenset({FLOAT64, COMPLEX128})
#: Norms of these fit into float32.
NARROW = frozenset({0, 1, 2, COMPLEX64})
MOVED_AS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


# ---- scalars and norms


class Scalar(NamedTuple):
    """A number that the host knows, or one in device memory."""

    value: float = 0.0
    address: int = 0
    code: int = 0
    exponent: int = 0  # of a norm beyond float64, ``value * 2**exponent``

    def words(self) -> tuple[int, int, int]:
        """Return it as the kernels read it."""
        return bits_of(self.value), self.address, self.code


def bits_of(x: float) -> int:
    """Return the bits of a float64."""
    bits: int = struct.unpack("q", struct.pack("d", x))[0]
    return bits


_ORDERS = {1.0: Order.ONE, 2.0: Order.TWO, float("inf"): Order.MAX}
_ORDERS |= dict.fromkeys((0.5, 1.5, 3.0, 4.0), Order.SIMPLE)


class Norm(NamedTuple):
    """An order, its power, and what becomes of the norm."""

    order: Order
    power: float
    mode: Mode = Mode.NORM
    elements: int = 0
    limit: Scalar = Scalar()

    @property
    def kind(self) -> tuple[Any, ...]:
        """All but the limit, which may differ from call to call."""
        return self[:-1]

    @classmethod
    def of(cls, p: float, mode: Mode = Mode.NORM, limit: Scalar | None = None, elements: int = 0) -> Norm:
        """Return the norm of order p."""
        return cls(_ORDERS.get(p, Order.POWER), p, mode, elements, limit or Scalar())

    def fill(self, params: Words, codes: Iterable[int]) -> None:
        """Write it to the argument of a kernel. ``codes`` are the dtypes of all that the norm is of."""
        flags = Flag(0)
        for code in codes:
            if code in WIDE:
                flags |= Flag.WIDE
            if code == COMPLEX128:
                flags |= Flag.WIDE_MODULUS
            if code in {INT64, UINT64} and self.order is Order.ONE:
                flags |= Flag.HAS_LIMBS
        params[Word.ORDER] = self.order
        params[Word.EXPONENT] = bits_of(self.power)
        params[Word.MODE] = self.mode
        params[Word.LIMIT : Word.LIMIT + 3] = self.limit.words()
        params[Word.ELEMENTS] = self.elements
        params[Word.FLAGS] |= flags


class NormsTo(NamedTuple):
    """Where the norms of slices go: addresses, or 0."""

    norm_at: int = 0
    narrow: bool = False  # as float32
    factors_at: int = 0
    values_at: int = 0  # as norms that may lie beyond float64

    def fill(self, params: Words) -> None:
        """Write it to the argument of a kernel."""
        params[Word.NORM_AT], params[Word.VALUES_AT], params[Word.FACTORS_AT] = (
            self.norm_at,
            self.values_at,
            self.factors_at,
        )
        if self.narrow:
            params[Word.FLAGS] |= Flag.NARROW_NORM
