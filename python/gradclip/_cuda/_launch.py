"""From arrays on a device to launches of the kernels: tables, layouts, scratch memory.

Nothing here knows CuPy: arrays are views (an address, a shape, strides), and the device is what `Device` says. The
order in which elements are added up is that of the CPU (``src/walk.rs``), so that the bits of a norm are the same.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    Words = NDArray[np.int64]


class Memory(Protocol):
    """Memory of a device. It is given back when nobody refers to it any more, in the order of the stream."""

    @property
    def ptr(self) -> int:
        """Its address."""


class Device(Protocol):
    """What the launches need of a device and its current stream."""

    multiprocessors: int

    @property
    def key(self) -> Hashable: ...
    def current(self) -> AbstractContextManager[Any]: ...
    def alloc(self, nbytes: int) -> Memory: ...
    def upload(self, words: Words) -> Memory: ...
    def function(self, name: str) -> Any: ...
    def launch(self, function: Any, grid: int, block: int, params: Words) -> None: ...
    def download(self, memory: Memory, nbytes: int) -> bytes: ...
    def is_capturing(self) -> bool: ...


# ---- names that the kernels have too (kernels.cu), in the same order

PARAMS = 480
THREADS = 256
BLOCK = 2048
CHUNK = 64 * BLOCK
ROWS_OF_BLOCK = 64
STATE_WORDS = 16
PART_ARRAYS = 7


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
    ELEMENTS = 13
    PARTS_AT = 14
    SLOTS = 15
    TOTALS_AT = 16
    CHUNKS = 17
    TENSORS = 18
    STARTS = 19
    STARTS_STEP = 20
    STATE_AT = 21
    TICKET_AT = 22
    TICKETS = 23
    NORM_AT = 24
    ROWS = 25
    SOURCE = 26
    TARGET = 27
    DTYPE = 28
    LENGTH = 29
    KEPT = 30
    REDUCED = 31
    TARGET_KEPT = 32
    TARGET_REDUCED = 33
    VALUES_AT = 34
    FACTORS_AT = 35
    RUN = 36
    LO = 37
    HI = 38
    LO_AT = 39
    HI_AT = 40
    SOURCE_LAYOUT = 41
    TARGET_LAYOUT = 42
    LO_LAYOUT = 43
    HI_LAYOUT = 44
    TARGET_DTYPE = 45
    OUTER = 46
    MIDDLE = 47
    INNER = 48
    TABLE = 49


class Row(IntEnum):
    """Words of a row of the table."""

    SOURCE = 0
    TARGET = 1
    LEN = 2
    BLOCK = 3
    SLOT = 4
    CHUNK = 5
    GROUP = 6
    LAYOUTS = 7
    WORDS = 8


class Order(IntEnum):
    """Kinds of norms."""

    ONE = 1
    TWO = 2
    MAX = 3
    SIMPLE = 4
    POWER = 5


class Mode(IntEnum):
    """What becomes of a norm."""

    NORM = 0
    CLIP = 1
    GLOBAL = 2
    AVERAGE = 3
    NORMALIZE = 4


class Flag(IntFlag):
    """Bits of `Word.FLAGS`."""

    HAS_LIMBS = 1
    WIDE = 2
    WIDE_MODULUS = 4
    IN_PLACE = 8
    NARROW_NORM = 16
    COLUMNS = 32
    EACH = 64
    NUMBER = 128


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


def instantiations() -> list[str]:
    """List all kernels that there are, as C++ names them."""
    real = [name for name in TYPES[:4] if name]
    names = [f"sums<{name}, {deep}>" for name in real for deep in ("false", "true")]
    untyped = ("first", "powers", "given", "columns", "column_norms", "largest", "singular", "conversion")
    names += [f"{kernel}<void>" for kernel in untyped]
    names += [f"slices<{all_}>" for all_ in ("false", "true")]
    names += [f"rows<{name}, {all_}>" for name in real for all_ in ("false", "true")]
    names += [f"{kernel}<{name}>" for kernel in ("scale", "magnitudes", "columns_of", "scale_slices") for name in real]
    names += [f"clip<{TYPES[code]}>" for code in ORDERED]
    return names + [f"copy<{name}>" for name in MOVED_AS.values()]


# ---- views and layouts


@dataclass(frozen=True, slots=True)
class View:
    """An array on a device. Strides are in bytes, multiples of the item's size."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    code: int

    @property
    def size(self) -> int:
        """Elements."""
        size = 1
        for length in self.shape:
            size *= length
        return size

    def is_dense(self) -> bool:
        """Whether it is C-contiguous."""
        return self.strides == dense_strides(self.shape, self.itemsize)

    def in_parts(self) -> View:
        """Take a complex array as a real one with one more axis."""
        code = COMPLEX.get(self.code)
        if code is None:
            return self
        half = self.itemsize // 2
        return View(self.address, (*self.shape, 2), (*self.strides, half), half, code)

    def broadcast(self, shape: tuple[int, ...]) -> View:
        """Broadcast to a shape."""
        missing = len(shape) - len(self.shape)
        own = (*(1,) * missing, *self.shape)
        strides = (*(0,) * missing, *self.strides)
        strides = tuple(0 if a == 1 and b != 1 else s for a, b, s in zip(own, shape, strides, strict=True))
        return replace(self, shape=shape, strides=strides)


def dense_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array."""
    strides = []
    for length in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(length, 1)
    return tuple(reversed(strides))


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the axes from outer to inner as they lie in memory, as ``memory_order`` of ``src/walk.rs`` does."""

    def size(axis: int) -> int:
        return 0 if shape[axis] == 1 else abs(strides[axis])

    inner_first = list(range(len(shape)))[::-1]
    for i in range(1, len(inner_first)):
        axis, at = inner_first[i], i
        for j in range(i - 1, -1, -1):
            own, other = size(axis), size(inner_first[j])
            if own != 0 and other != 0:
                if other <= own:
                    break
                at = j
        inner_first.insert(at, inner_first.pop(i))
    return inner_first[::-1]


#: Axes from outer to inner, and whether each is walked backwards.
Walk = list[tuple[int, bool]]


def walk_of(view: View, wanted: Iterable[int] | None = None) -> Walk:
    """Return the order in which the elements along some axes, or all, are added up.

    It is that of memory, but for axes that go nowhere, which come first.
    """
    order = memory_order(view.shape, view.strides)
    if wanted is not None:
        chosen = set(wanted)
        order = [axis for axis in order if axis in chosen]
    still = [axis for axis in order if view.strides[axis] == 0]
    moving = [axis for axis in order if view.strides[axis] != 0]
    return [(axis, view.strides[axis] < 0) for axis in (*still, *moving)]


class Layout(NamedTuple):
    """Axes merged where one stride covers both, in elements, and where position 0 lies, in bytes."""

    axes: tuple[tuple[int, int], ...]
    shift: int

    @property
    def is_dense(self) -> bool:
        """Whether the positions follow each other in memory."""
        return not self.axes or (len(self.axes) == 1 and self.axes[0][1] == 1)

    def words(self) -> list[int]:
        """Return it as the kernels read it."""
        return [len(self.axes), *(number for axis in self.axes for number in axis)]


def layout_of(view: View, walk: Walk) -> Layout:
    """Lay out the elements of an array in the order of a walk."""
    axes: list[tuple[int, int]] = []
    shift = 0
    for axis, backwards in walk:
        length, stride = view.shape[axis], view.strides[axis]
        if backwards:
            shift += max(length - 1, 0) * stride
            stride = -stride
        stride //= view.itemsize
        if length == 1:
            continue
        if axes and axes[-1][1] == stride * length:
            axes[-1] = (axes[-1][0] * length, stride)
        else:
            axes.append((length, stride))
    return Layout(tuple(axes), shift)


class Split(NamedTuple):
    """An array cut into slices: the walk over the kept axes, and over the elements of a slice."""

    kept: Walk
    reduced: Walk

    @classmethod
    def of(cls, view: View, axes: Sequence[int]) -> Split:
        """Reduce the given axes."""
        kept = [(axis, False) for axis in memory_order(view.shape, view.strides) if axis not in axes]
        return cls(kept, walk_of(view, axes))

    def count(self, view: View) -> int:
        """Slices."""
        return _product(view.shape[axis] for axis, _ in self.kept)

    def length(self, view: View) -> int:
        """Elements of a slice."""
        return _product(view.shape[axis] for axis, _ in self.reduced)

    def is_of_columns(self, view: View) -> bool:
        """Whether neighbours in memory belong to neighbouring slices: ``are_columns`` of ``src/walk.rs``."""
        reduced, kept = layout_of(view, self.reduced).axes, layout_of(view, self.kept).axes
        step = abs(reduced[-1][1]) if reduced else None
        count = 0
        for length, stride in reversed(kept):
            if step is not None and abs(stride) >= step:
                break
            count = max(count, 1) * length
        return count >= 4  # noqa: PLR2004


def _product(numbers: Iterable[int]) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product


#: Columns that one thread of the CPU sums at a time: where runs of rows end depends on it.
_STRIP = 512


def run_of(columns: int) -> int:
    """Return the rows of columns that are added up in one go."""
    run = CHUNK // min(max(columns, 1), _STRIP)
    return -(-run // ROWS_OF_BLOCK) * ROWS_OF_BLOCK


# ---- scalars


class Scalar(NamedTuple):
    """A number that the host knows, or one in device memory."""

    value: float = 0.0
    address: int = 0
    code: int = 0

    def words(self) -> tuple[int, int, int]:
        """Return it as the kernels read it."""
        return bits_of(self.value), self.address, self.code


def bits_of(x: float) -> int:
    """Return the bits of a float64."""
    bits: int = struct.unpack("q", struct.pack("d", x))[0]
    return bits


class Norm(NamedTuple):
    """An order, its power, and what becomes of the norm."""

    order: Order
    power: float
    mode: Mode = Mode.NORM
    limit: Scalar = Scalar()
    elements: int = 0

    @classmethod
    def of(cls, p: float, mode: Mode = Mode.NORM, limit: Scalar | None = None, elements: int = 0) -> Norm:
        """Return the norm of order p."""
        simple = {1.0: Order.ONE, 2.0: Order.TWO, float("inf"): Order.MAX}
        halves = dict.fromkeys((0.5, 1.5, 3.0, 4.0), Order.SIMPLE)
        return cls({**simple, **halves}.get(p, Order.POWER), p, mode, limit or Scalar(), elements)

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


# ---- scratch memory and tables


class _Queue:
    """What the calls on one stream use again: scratch memory, the ticket, the last tables.

    Launches on a stream run one after the other, so the next call may use what this one used; the lock keeps the
    launches of two host threads apart.
    """

    #: Plans and tables that are held.
    MOST = 16

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.scratch: Memory | None = None
        self.size = 0
        self.ticket: Memory | None = None
        self.plans: OrderedDict[Hashable, _Plan] = OrderedDict()
        self.tables: OrderedDict[bytes, Memory] = OrderedDict()

    def room(self, device: Device, nbytes: int) -> int:
        """Return the address of scratch memory."""
        if self.scratch is None or self.size < nbytes:
            self.size = max(1 << 16, 1 << (nbytes - 1).bit_length())
            self.scratch = device.alloc(self.size)
        return self.scratch.ptr

    def ticket_at(self, device: Device) -> int:
        """Return the address of the ticket, which is 0 between launches."""
        if self.ticket is None:
            self.ticket = device.upload(np.zeros(1, np.int64))
        return self.ticket.ptr

    def table(self, device: Device, words: Words) -> int:
        """Return the address of a table on the device, which may be there already."""
        key = words.tobytes()
        found = self.tables.get(key)
        if found is None:
            found = self.tables[key] = device.upload(words)
            if len(self.tables) > self.MOST:
                self.tables.popitem(last=False)
        self.tables.move_to_end(key)
        return found.ptr

    def taken(self) -> _Queue:
        """Return one for a call that a CUDA graph captures, with the memory of this one, which makes do without.

        A graph runs when it likes, and again and again: nothing that it writes may be used by another call. Tables
        do not change, so that both may have them.
        """
        other = _Queue()
        other.scratch, other.size, other.ticket = self.scratch, self.size, self.ticket
        other.plans, other.tables = self.plans.copy(), self.tables.copy()
        self.scratch, self.size, self.ticket = None, 0, None
        return other


_queues: dict[Hashable, _Queue] = {}
_captured: list[Any] = []


def release() -> None:
    """Give back scratch memory and tables, those of captured graphs too, which must not run any more."""
    _queues.clear()
    _captured.clear()


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


class Call:
    """The launches of one call: a context, in which the stream's scratch memory is this call's."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._queue = self.queue = _queues.setdefault(device.key, _Queue())
        self.kept: list[Any] = []

    def __enter__(self) -> Call:  # noqa: PYI034 (Self is Python 3.11's)
        self._queue.lock.acquire()
        try:
            if self.device.is_capturing():
                self.queue = self._queue.taken()
                _captured.append(self)
        except BaseException:
            self._queue.lock.release()
            raise
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:
            self.queue.ticket = None  # a pass may have been left half done
        self._queue.lock.release()

    def keep(self, thing: Any) -> Any:
        """Keep something for as long as what was launched may run again: for good, in a captured graph."""
        self.kept.append(thing)
        return thing

    def params(self, table: list[int] | Words) -> Words:
        """Make the argument of kernels, with their table in it if it is short."""
        params = np.zeros(PARAMS, np.int64)
        if len(table) <= PARAMS - Word.TABLE:
            params[Word.TABLE : Word.TABLE + len(table)] = table
        else:
            params[Word.TABLE_AT] = self.queue.table(self.device, np.asarray(table, np.int64))
        return params

    def launch(self, name: str, items: int, params: Words, at_once: int = THREADS) -> None:
        """Launch a kernel for so many items, of which a block of threads takes some at once."""
        self.device.launch(self.device.function(name), self.grid(items, at_once), THREADS, params)

    def grid(self, items: int, at_once: int) -> int:
        """Return the blocks of threads for so many items."""
        return max(1, min(-(-items // at_once), 8 * self.device.multiprocessors))


# ---- lists


class Tensors(NamedTuple):
    """A list of arrays, as arrays of numbers. ``layouts`` has a pair for each array, or is None if all are dense."""

    sources: Words
    targets: Words
    lengths: Words
    codes: Words
    layouts: Sequence[tuple[Layout, Layout]] | None = None

    @classmethod
    def of(cls, pairs: Sequence[tuple[View, View]]) -> Tensors:
        """Make it of pairs of an array and its output; the output's elements are those of the array's walk."""
        sources, targets, layouts = [], [], []
        for source, target in pairs:
            if source.is_dense() and target.strides == source.strides:
                own = other = Layout((), 0)
            else:
                walk = walk_of(source)
                own, other = layout_of(source, walk), layout_of(target, walk)
            sources.append(source.address + own.shift)
            targets.append(target.address + other.shift)
            layouts.append((own, other))
        return cls(
            np.array(sources, np.int64),
            np.array(targets, np.int64),
            np.array([source.size for source, _ in pairs], np.int64),
            np.array([source.code for source, _ in pairs], np.int64),
            None if all(own.is_dense and other.is_dense for own, other in layouts) else layouts,
        )

    def in_parts(self) -> Tensors:
        """Take dense complex arrays as real ones."""
        is_complex = (self.codes == COMPLEX64) | (self.codes == COMPLEX128)
        if not is_complex.any():
            return self
        parts = np.where(self.codes == COMPLEX64, COMPLEX[COMPLEX64], COMPLEX[COMPLEX128])
        return self._replace(
            codes=np.where(is_complex, parts, self.codes), lengths=np.where(is_complex, 2 * self.lengths, self.lengths)
        )

    def key(self) -> Hashable:
        """Return what tells it from other lists."""
        layouts = None if self.layouts is None else tuple(self.layouts)
        targets = None if self.targets is self.sources else self.targets.tobytes()
        return self.sources.tobytes(), targets, self.lengths.tobytes(), self.codes.tobytes(), layouts


@dataclass(slots=True)
class _Table:
    """The table of a list: its words, and where the rows of each dtype stand."""

    words: list[int] | Words
    rows: list[tuple[int, int, int, int]]  # code, place, rows, blocks
    starts: int
    starts_step: int
    slots: int
    chunks: int
    tensors: int

    def fill(self, params: Words) -> None:
        params[Word.STARTS] = self.starts
        params[Word.STARTS_STEP] = self.starts_step
        params[Word.SLOTS] = self.slots
        params[Word.CHUNKS] = self.chunks
        params[Word.TENSORS] = self.tensors


def _before(counts: Words) -> Words:
    """Return the sum of all that come before each."""
    sums: Words = np.cumsum(counts) - counts
    return sums


def _table_of(tensors: Tensors) -> _Table:
    blocks = (tensors.lengths + (BLOCK - 1)) // BLOCK
    chosen = np.flatnonzero(blocks)
    if len(chosen) != len(blocks):  # nothing is to be done for empty ones
        blocks = blocks[chosen]
        layouts = None if tensors.layouts is None else [tensors.layouts[i] for i in chosen]
        tensors = Tensors(*(array[chosen] for array in tensors[:4]), layouts)
    chunks = (blocks + 63) // 64
    rows = np.zeros((len(blocks), Row.WORDS), np.int64)
    rows[:, Row.SOURCE] = tensors.sources
    rows[:, Row.TARGET] = tensors.targets
    rows[:, Row.LEN] = tensors.lengths
    rows[:, Row.SLOT] = _before(blocks)
    rows[:, Row.CHUNK] = _before(chunks)
    rows[:, Row.GROUP] = np.arange(len(blocks))
    codes = tensors.codes.tolist()
    kinds = list(dict.fromkeys(codes))
    parts: list[Words] = []
    found, place = [], 0
    if len(kinds) > 1:  # in the order of the list
        parts.append(np.ascontiguousarray(rows[:, (Row.SLOT, Row.CHUNK)]).ravel())
        place = parts[0].size
    layouts_at = place + rows.size
    words: list[int] = []
    if tensors.layouts is not None:
        places: dict[tuple[int, ...], int] = {}
        for row, pair in zip(rows, tensors.layouts, strict=True):
            both = 0
            for k, layout in enumerate(pair):
                if not layout.is_dense:
                    own = tuple(layout.words())
                    if own not in places:
                        places[own] = layouts_at + len(words)
                        words += own
                    both |= places[own] << 32 * k
            row[Row.LAYOUTS] = both
    for kind in kinds:
        own_rows = rows if len(kinds) == 1 else rows[tensors.codes == kind]
        own_blocks = blocks if len(kinds) == 1 else blocks[tensors.codes == kind]
        own_rows[:, Row.BLOCK] = _before(own_blocks)
        parts.append(own_rows.ravel())
        found.append((kind, place, len(own_rows), int(own_blocks.sum())))
        place += own_rows.size
    parts.append(np.array(words, np.int64))
    starts, step = (0, 2) if len(kinds) > 1 else (Row.SLOT, Row.WORDS)
    return _Table(
        np.concatenate(parts), found, starts, step, int(blocks.sum()), int(chunks.sum()), len(blocks)
    )


class _Plan:
    """The launches for a list: what of them does not change from call to call with the same arrays."""

    def __init__(self, call: Call, tensors: Tensors, norm: Norm, scaled: Tensors | None, *, is_given: bool) -> None:
        table = _table_of(tensors.in_parts() if norm.order is Order.TWO else tensors)
        self.groups = max(table.tensors, 1)
        self.sizes = 2 * table.chunks, PART_ARRAYS * table.slots
        self.params, self.memory = _argument(call, table.words)
        table.fill(self.params)
        norm.fill(self.params, tensors.codes.tolist())
        self.passes = [] if is_given else self._passes(call, table, norm)
        # The argument of the kernel that scales, which may have a table of its own.
        self.last, self.last_memory = self.params, None
        self.scales: list[tuple[str, int, int, int, int]] = []
        if scaled is not None:
            if scaled is not tensors or norm.order is not Order.TWO:
                table = _table_of(scaled.in_parts())
                self.last, self.last_memory = _argument(call, table.words)
            warps = THREADS // 32
            for code, place, count, blocks in reversed(table.rows):
                self.scales.append((f"scale<{TYPES[code]}>", place, count, blocks, call.grid(blocks, warps)))
        self.in_place = scaled is not None and bool((scaled.sources == scaled.targets).all())

    def _passes(self, call: Call, table: _Table, norm: Norm) -> list[tuple[str, int, int, int, int, int]]:
        """Return the passes over the data: one for each dtype, and one more where powers need the largest modulus."""
        is_wide = bool(int(self.params[Word.FLAGS]) & Flag.WIDE)
        launches = table.rows or [(FLOAT64, 0, 0, 0)]
        grids = [call.grid(blocks, THREADS // 32) for *_, blocks in launches]
        self.params[Word.TICKETS] = sum(grids)
        is_power = norm.order is Order.POWER or (norm.order is Order.SIMPLE and is_wide)
        found = []
        for kernel in ("first<void>", "powers<void>")[: 2 if is_power else 1]:
            for (code, place, count, blocks), grid in zip(launches, grids, strict=True):
                is_plain = norm.order is Order.TWO and code in REAL
                name = f"sums<{TYPES[code]}, {'true' if is_wide else 'false'}>" if is_plain else kernel
                found.append((name, place, count, blocks, grid, code))
        return found


def _argument(call: Call, table: Words) -> tuple[Words, Memory | None]:
    """Make the argument of kernels, and its table if that is too long to stand in it."""
    params = np.zeros(PARAMS, np.int64)
    if len(table) <= PARAMS - Word.TABLE:
        params[Word.TABLE : Word.TABLE + len(table)] = table
        return params, None
    memory = call.device.upload(np.asarray(table, np.int64))
    params[Word.TABLE_AT] = memory.ptr
    return params, memory


def run_list(
    call: Call,
    tensors: Tensors,
    norm: Norm,
    *,
    used: Scalar | None = None,
    norm_at: int = 0,
    narrow: bool = False,
    each: bool = False,
    scaled: Tensors | None = None,
) -> None:
    """Make the norm of a list, or of each of its arrays, and scale them by what comes of it.

    Parameters
    ----------
    tensors : Tensors
        What the norm is of.
    used : Scalar, optional
        The norm, if it is given.
    norm_at : int
        Address for the norms.
    narrow : bool
        Norms are written as float32.
    each : bool
        Each array has a norm of its own.
    scaled : Tensors, optional
        What is read and written then: the same arrays. None: nothing.
    """
    device, queue = call.device, call.queue
    other = None if scaled is None or scaled is tensors else scaled.key()
    key = tensors.key(), other, scaled is None, norm.order, norm.power, norm.mode, norm.elements, used is None
    plan = queue.plans.get(key)
    if plan is None:
        plan = queue.plans[key] = _Plan(call, tensors, norm, scaled, is_given=used is not None)
        if len(queue.plans) > queue.MOST:
            queue.plans.popitem(last=False)
    queue.plans.move_to_end(key)

    params = plan.params
    flags = int(params[Word.FLAGS]) & ~(Flag.NARROW_NORM | Flag.EACH | Flag.IN_PLACE).value
    flags |= Flag.NARROW_NORM.value * narrow | Flag.EACH.value * each | Flag.IN_PLACE.value * plan.in_place
    states = STATE_WORDS * (plan.groups if each else 1)
    room = queue.room(device, 8 * (states + sum(plan.sizes)))
    params[Word.FLAGS] = flags
    params[Word.LIMIT : Word.LIMIT + 3] = norm.limit.words()
    if used is not None:
        params[Word.USED : Word.USED + 3] = used.words()
    params[Word.NORM_AT] = norm_at
    params[Word.STATE_AT] = room
    params[Word.TOTALS_AT] = room + 8 * states
    params[Word.PARTS_AT] = room + 8 * (states + plan.sizes[0])
    params[Word.TICKET_AT] = queue.ticket_at(device)
    if used is not None:
        device.launch(device.function("given<void>"), 1, THREADS, params)
    for name, place, count, blocks, grid, code in plan.passes:
        params[Word.ROWS], params[Word.COUNT], params[Word.BLOCKS], params[Word.DTYPE] = place, count, blocks, code
        device.launch(device.function(name), grid, THREADS, params)
    last = plan.last
    if last is not params:
        last[Word.FLAGS], last[Word.STATE_AT] = flags, room
    for name, place, count, blocks, grid in plan.scales:
        last[Word.ROWS], last[Word.COUNT], last[Word.BLOCKS] = place, count, blocks
        device.launch(device.function(name), grid, THREADS, last)


# ---- slices


class _Words:
    """A table in the making: layouts, and where each stands."""

    def __init__(self) -> None:
        self.words: list[int] = [0]  # 0 is no place

    def add(self, layout: Layout) -> int:
        if layout.is_dense:
            return 0
        self.words += layout.words()
        return len(self.words) - len(layout.words())


def norms_of_slices(call: Call, view: View, axes: Sequence[int], norm: Norm, to: NormsTo) -> None:
    """Make the norms of the slices along some axes: numbers in the order of the kept axes, as memory has them."""
    split = Split.of(view, axes)
    columns = split.is_of_columns(view)
    if norm.order is Order.TWO and not columns and view.code in COMPLEX:
        axes = (*axes, len(view.shape))
        view = view.in_parts()
        split = Split.of(view, axes)
    count, length = split.count(view), split.length(view)
    if count == 0:
        return
    if not columns and not to.values_at and not to.factors_at and _are_long(call, count, length):
        tensors = _slices_as_list(view, view, split)
        run_list(call, tensors, norm, norm_at=to.norm_at, narrow=to.narrow, each=True)
        return
    words = _Words()
    kept, reduced = layout_of(view, split.kept), layout_of(view, split.reduced)
    places = words.add(kept), words.add(reduced)
    params = call.params(words.words)
    norm.fill(params, [view.code])
    to.fill(params)
    params[Word.KEPT], params[Word.REDUCED] = places
    params[Word.SOURCE] = view.address + kept.shift + reduced.shift
    params[Word.DTYPE] = view.code
    params[Word.COUNT], params[Word.LENGTH] = count, length
    if columns and length and norm.order in {Order.ONE, Order.TWO, Order.SIMPLE}:
        run = min(run_of(count), length)
        runs = -(-length // run)
        params[Word.RUN] = run
        params[Word.TOTALS_AT] = call.queue.room(call.device, 16 * runs * count)
        width = 8
        while width < min(count, THREADS):
            width *= 2
        is_plain = norm.order is Order.TWO and view.code in REAL
        name = f"columns_of<{TYPES[view.code]}>" if is_plain else "columns<void>"
        call.launch(name, -(-count // width) * runs, params, at_once=1)
        call.launch("column_norms<void>", count, params)
    elif length <= BLOCK:
        call.launch("slices<false>", count, params, at_once=THREADS // 32)
    else:
        call.launch("slices<true>", count, params, at_once=1)


def scale_slices(
    call: Call, view: View, source: View, target: View, axes: Sequence[int], norm: Norm, to: NormsTo | None = None
) -> None:
    """Scale each slice along some axes by what comes of its norm. The norms are of ``view``; ``source`` is scaled."""
    to = to or NormsTo()
    split = Split.of(view, axes)
    parts, along = view.in_parts(), tuple(axes)
    if parts is not view:
        along = (*along, len(view.shape))
    of_parts = Split.of(parts, along)
    count, length = of_parts.count(parts), of_parts.length(parts)
    if count == 0:
        return
    is_two = norm.order is Order.TWO and source == view and not split.is_of_columns(view)
    if is_two and _are_long(call, count, length):
        tensors = _slices_as_list(parts, target.in_parts(), of_parts)
        run_list(call, tensors, norm, norm_at=to.norm_at, narrow=to.narrow, each=True, scaled=tensors)
    elif is_two and length:
        _clip_rows(call, parts, target.in_parts(), of_parts, norm, to)
    else:
        factors = call.keep(call.device.alloc(16 * count))
        norms_of_slices(call, view, axes, norm, to._replace(factors_at=factors.ptr))
        scale_by_factors(call, view, source, target, axes, factors.ptr)


def _clip_rows(call: Call, view: View, target: View, split: Split, norm: Norm, to: NormsTo) -> None:
    """Scale slices one by one: each is written by those who have read it."""
    count, length = split.count(view), split.length(view)
    words = _Words()
    own = layout_of(view, split.kept), layout_of(view, split.reduced)
    other = layout_of(target, split.kept), layout_of(target, split.reduced)
    places = [words.add(layout) for layout in (*own, *other)]
    params = call.params(words.words)
    norm.fill(params, [view.code])
    to.fill(params)
    params[Word.KEPT : Word.KEPT + 4] = places
    params[Word.SOURCE] = view.address + own[0].shift + own[1].shift
    params[Word.TARGET] = target.address + other[0].shift + other[1].shift
    params[Word.COUNT], params[Word.LENGTH] = count, length
    if target == view:
        params[Word.FLAGS] |= Flag.IN_PLACE
    is_long = length > BLOCK
    name = f"rows<{TYPES[view.code]}, {'true' if is_long else 'false'}>"
    call.launch(name, count, params, at_once=1 if is_long else THREADS // 32)


def _are_long(call: Call, count: int, length: int) -> bool:
    """Whether slices are so few and so long that each is cut, as an array of a list is: for all multiprocessors."""
    return length >= 16 * BLOCK and count < 2 * call.device.multiprocessors


def _slices_as_list(view: View, target: View, split: Split) -> Tensors:
    """Take slices for the arrays of a list."""
    count, length = split.count(view), split.length(view)
    kept, reduced = layout_of(view, split.kept), layout_of(view, split.reduced)
    other, other_reduced = layout_of(target, split.kept), layout_of(target, split.reduced)
    places = [_offset(kept, i) * view.itemsize for i in range(count)]
    others = [_offset(other, i) * view.itemsize for i in range(count)]
    is_dense = reduced.is_dense and other_reduced.is_dense
    return Tensors(
        np.array(places, np.int64) + (view.address + kept.shift + reduced.shift),
        np.array(others, np.int64) + (target.address + other.shift + other_reduced.shift),
        np.full(count, length, np.int64),
        np.full(count, view.code, np.int64),
        None if is_dense else [(reduced, other_reduced)] * count,
    )


def _offset(layout: Layout, i: int) -> int:
    offset = 0
    for length, stride in reversed(layout.axes):
        i, rest = divmod(i, length)
        offset += rest * stride
    return offset


def scale_by_factors(
    call: Call, view: View, source: View, target: View, axes: Sequence[int], factors_at: int
) -> None:
    """Scale each slice along some axes by its factor."""
    # The slices of the array, of which the factors are; their elements in parts.
    split = Split.of(view, axes)
    columns = split.is_of_columns(view)
    count = split.count(view)
    source, target = source.in_parts(), target.in_parts()
    if source.code != view.code:
        split = Split(split.kept, [*split.reduced, (len(view.shape), False)])
    length = split.length(source)
    if count == 0 or length == 0:
        return
    words = _Words()
    own = layout_of(source, split.kept), layout_of(source, split.reduced)
    other = layout_of(target, split.kept), layout_of(target, split.reduced)
    places = [words.add(layout) for layout in (*own, *other)]
    params = call.params(words.words)
    params[Word.KEPT : Word.KEPT + 4] = places
    params[Word.SOURCE] = source.address + own[0].shift + own[1].shift
    params[Word.TARGET] = target.address + other[0].shift + other[1].shift
    params[Word.COUNT], params[Word.LENGTH] = count, length
    params[Word.FACTORS_AT] = factors_at
    if source == target:
        params[Word.FLAGS] |= Flag.IN_PLACE
    if columns:
        params[Word.FLAGS] |= Flag.COLUMNS
    call.launch(f"scale_slices<{TYPES[source.code]}>", count * length, params)


def norms_of_matrices(call: Call, view: View, axes: Sequence[int], norm: Norm, sums: str, to: NormsTo) -> None:
    """Make the largest sum of magnitudes of the columns, or of the rows, of matrices: norms 1 and inf."""
    along, over = (axes[0], axes[1]) if sums == "columns" else (axes[1], axes[0])
    kept = [axis for axis, _ in Split.of(view, [along]).kept]
    lengths = [view.shape[axis] for axis in kept]
    at = kept.index(over)
    outer, middle, inner = _product(lengths[:at]), lengths[at], _product(lengths[at + 1 :])
    if outer * inner == 0:
        return
    values = call.keep(call.device.alloc(16 * max(outer * middle * inner, 1)))
    norms_of_slices(call, view, [along], Norm.of(1.0), NormsTo(values_at=values.ptr))
    params = call.params([])
    norm.fill(params, [view.code])
    to.fill(params)
    params[Word.SOURCE] = values.ptr
    params[Word.COUNT] = outer * inner
    params[Word.OUTER], params[Word.MIDDLE], params[Word.INNER] = outer, middle, inner
    call.launch("largest<void>", outer * inner, params)


def norms_given(call: Call, values_at: int, count: int, code: int, norm: Norm, to: NormsTo) -> None:
    """Take norms that were made elsewhere: so many values, and as many exponents, float64 both."""
    if count == 0:
        return
    params = call.params([])
    norm.fill(params, [code])
    to.fill(params)
    params[Word.SOURCE], params[Word.COUNT] = values_at, count
    call.launch("singular<void>", count, params)


# ---- elements


class Bound(NamedTuple):
    """A bound of `clip`: bits, or an array of the dtype and the shape."""

    bits: int = 0
    view: View | None = None


def clip(call: Call, source: View, target: View, lo: Bound, hi: Bound) -> None:
    """Limit elements to bounds."""
    if source.size == 0:
        return
    words = _Words()
    walk = walk_of(source)
    params_of = []
    for view in (source, target, lo.view, hi.view):
        layout = None if view is None else layout_of(view, walk)
        place = 0 if layout is None else words.add(layout)
        address = 0 if view is None or layout is None else view.address + layout.shift
        params_of.append((address, place))
    params = call.params(words.words)
    at = (Word.SOURCE, Word.TARGET, Word.LO_AT, Word.HI_AT)
    layouts = (Word.SOURCE_LAYOUT, Word.TARGET_LAYOUT, Word.LO_LAYOUT, Word.HI_LAYOUT)
    for (address, place), word, layout_word in zip(params_of, at, layouts, strict=True):
        params[word], params[layout_word] = address, place
    params[Word.LO], params[Word.HI] = _signed(lo.bits), _signed(hi.bits)
    params[Word.COUNT] = source.size
    if source == target:
        params[Word.FLAGS] |= Flag.IN_PLACE
    call.launch(f"clip<{TYPES[source.code]}>", source.size, params)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def clip_magnitudes(call: Call, source: View, target: View, limit: Scalar) -> None:
    """Limit the magnitude of each element."""
    if source.size == 0:
        return
    params = _of_pair(call, source, target, walk_of(source))
    params[Word.LIMIT : Word.LIMIT + 3] = limit.words()
    call.launch(f"magnitudes<{TYPES[source.code]}>", source.size, params)


def copied(call: Call, view: View) -> View:
    """Copy an array to scratch memory, C-contiguous."""
    memory = call.keep(call.device.alloc(max(view.size, 1) * view.itemsize))
    copy = replace(view, address=memory.ptr, strides=dense_strides(view.shape, view.itemsize))
    if view.size:
        source, target = (view, copy) if view.itemsize in MOVED_AS else (view.in_parts(), copy.in_parts())
        walk = [(axis, False) for axis in range(len(source.shape))]
        params = _of_pair(call, source, target, walk)
        call.launch(f"copy<{MOVED_AS[source.itemsize]}>", source.size, params)
    return copy


def converted(call: Call, view: View, code: int, itemsize: int, *, is_number: bool) -> View:
    """Bring an array to another dtype, rounded once: scratch memory, C-contiguous."""
    memory = call.keep(call.device.alloc(max(view.size, 1) * itemsize))
    made = View(memory.ptr, view.shape, dense_strides(view.shape, itemsize), itemsize, code)
    if view.size:
        params = _of_pair(call, view, made, [(axis, False) for axis in range(len(view.shape))])
        params[Word.DTYPE], params[Word.TARGET_DTYPE] = view.code, code
        if is_number:
            params[Word.FLAGS] |= Flag.NUMBER
        call.launch("conversion<void>", view.size, params)
    return made


def _of_pair(call: Call, source: View, target: View, walk: Walk) -> Words:
    words = _Words()
    own, other = layout_of(source, walk), layout_of(target, walk)
    places = words.add(own), words.add(other)
    params = call.params(words.words)
    params[Word.SOURCE], params[Word.TARGET] = source.address + own.shift, target.address + other.shift
    params[Word.SOURCE_LAYOUT], params[Word.TARGET_LAYOUT] = places
    params[Word.COUNT] = source.size
    if source == target:
        params[Word.FLAGS] |= Flag.IN_PLACE
    return params
