"""Calls drawn at random, each held to the contract: `python tests/fuzz --cases 1000000 --seed 0 --jobs 2`.

A case is a function, its tensors, bounds and outputs as views of raw memory (any strides, offset, byte order, overlap),
its limits, a number of threads and an instruction set. What is checked:

- an exception is of the type that the first wrong argument asks for, and then nothing was written;
- no byte of the memory changes but those of the outputs, and these hold the result;
- dense, native, disjoint copies of the inputs give the same bits, with other threads and another instruction set;
- norms and values are those of NumPy in extended precision, with the bounds of `oracle.py`.

The cases run in child processes. One that dies or hangs is named by the parent, which goes on with the next.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing as mp
import random
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import draws
import gradclip as gc
import layouts
import ml_dtypes
import numpy as np
import oracle
from gradclip import _core
from numpy.exceptions import AxisError
from oracle import BF16, INTEGERS, NORMED, ORDERED, SCALED, native

LD = np.longdouble
EXTENDED = np.finfo(LD).nmant >= 63 and np.finfo(LD).maxexp > 4096
"""Whether longdouble can be the oracle: elsewhere it is float64 by another name."""

ISA_LEVELS = [None, *_core.isa_levels()]
MANY = 20_000  # elements from which values are checked at some places alone
SHARED = 6 << 20  # bytes that threads share (for p-norms a sixteenth)
STREAMED = 32 << 20  # bytes of outputs that are written by non-temporal stores
LARGEST_BEYOND = 64 << 10  # bytes of lists that the functions TensorFlow lacks take, too
HANGS_AFTER = 240  # seconds
SMALLEST_NORMAL = LD(sys.float_info.min)


class WrongError(AssertionError):
    """A violation of the contract."""


def check(holds: Any, what: str, *shown: Any) -> None:
    """Arrays are `shown` in the braces of the text, because it takes long to print them."""
    if not holds:
        raise WrongError(what.format(*shown) if shown else what)


# ---- memory


class Arr(NamedTuple):
    """An array as a view of a room of bytes; `offset` may be negative until the rooms are made."""

    room: int
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def view(self, rooms: list[np.ndarray]) -> np.ndarray:
        return np.ndarray(self.shape, self.dtype, rooms[self.room], self.offset, self.strides)

    def extent(self) -> tuple[int, int]:
        low = high = self.offset
        if 0 in self.shape:
            return low, high
        for n, step in zip(self.shape, self.strides, strict=True):
            low += min(0, (n - 1) * step)
            high += max(0, (n - 1) * step)
        return low, high + self.dtype.itemsize

    def bytes(self) -> np.ndarray:
        """The place of each byte of each element."""
        at = np.array([self.offset])
        for n, step in zip(self.shape, self.strides, strict=True):
            at = np.add.outer(at, np.arange(n) * step)
        return np.add.outer(at, np.arange(self.dtype.itemsize)).ravel()

    def __repr__(self) -> str:
        dtype = f"np.dtype({self.dtype.name!r})" + ("" if self.dtype.isnative else ".newbyteorder('S')")
        return f"np.ndarray({self.shape}, {dtype}, rooms[{self.room}], {self.offset}, {self.strides})"


class Given:
    """An argument: a number or the like, or an array in one of its guises."""

    def __init__(self, value: Any, guise: str = "array") -> None:
        self.value, self.guise = value, guise

    def of(self, rooms: list[np.ndarray]) -> Any:
        if not isinstance(self.value, Arr):
            return self.value
        return GUISES[self.guise](self.value.view(rooms))

    def __repr__(self) -> str:
        value = self.value
        if isinstance(value, np.ndarray):
            return f"np.array({value.tolist()!r}, np.dtype({value.dtype.str!r}))"
        return f"{self.guise}({value!r})" if self.guise != "array" else repr(value)


class Protocol:
    """An object that NumPy makes an array of by a protocol."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array


def read_only(view: np.ndarray) -> np.ndarray:
    view.flags.writeable = False
    return view


ROWS = np.arange(200_000)
GUISES = {
    "array": lambda view: view,
    "subclass": lambda view: view.view(layouts.Subclass),
    "read_only": read_only,
    "scalar": lambda view: view[()],
    "listed": lambda view: view.tolist(),
    "protocol": Protocol,
    "slices": lambda view: gc.IndexedSlices(view, ROWS[: len(view)], (len(ROWS), *view.shape[1:])),
    "other_shape": lambda view: gc.IndexedSlices(view, ROWS[: len(view)]),
    "other_slices": lambda view: gc.IndexedSlices(view, ROWS[: len(view)] + 1, (len(ROWS), *view.shape[1:])),
}


class Case:
    """One call, and its expected effect."""

    def __init__(self, seed: int, number: int) -> None:
        self.r = random.Random(seed << 40 | number)
        self.seed, self.number = seed, number
        self.function = ""
        self.arguments: dict[str, Any] = {}
        self.errors: dict[float, type[Exception]] = {}
        """By the place of the argument in the signature."""
        self.tensors: list[Given | None] = []
        self.outs: list[Given | None] | None = None
        self.extents: list[list[int]] = []
        self.rooms: list[np.ndarray] = []

    def chance(self, p: float) -> bool:
        return self.r.random() < p

    def wrong(self, place: float, error: type[Exception]) -> None:
        self.errors.setdefault(place, error)

    def room(self) -> int:
        self.extents.append([0, 0])
        return len(self.extents) - 1

    def put(self, arr: Arr) -> Arr:
        low, high = arr.extent()
        extent = self.extents[arr.room]
        extent[:] = min(extent[0], low), max(extent[1], high)
        return arr

    def make_rooms(self) -> None:
        """Memory of the size that is needed, its bytes at random, and all offsets moved to where it begins."""
        shifts = []
        for low, high in self.extents:
            before = -low + self.r.randrange(48)
            shift = -(-before // 16) * 16  # what was aligned stays so
            size = high + shift + self.r.randrange(48)
            few = np.frombuffer(self.r.randbytes(min(size, 4099)), np.uint8)
            self.rooms.append(few.copy() if len(few) == size else np.resize(few, size))
            shifts.append(shift)

        def moved(given: Given | None) -> None:
            if given is not None and isinstance(given.value, Arr):
                arr = given.value
                given.value = arr._replace(offset=arr.offset + shifts[arr.room])

        unique = {id(given): given for given in [*self.tensors, *(self.outs or []), *self.arguments.values()]}
        for given in unique.values():
            if isinstance(given, Given):
                moved(given)

    def built(self, rooms: list[np.ndarray]) -> dict[str, Any]:
        """The arguments as objects; what is given twice is one object."""
        made: dict[int, Any] = {}

        def of(given: Any) -> Any:
            if isinstance(given, (list, tuple)):
                return type(given)(of(entry) for entry in given)
            if not isinstance(given, Given):
                return given
            if id(given) not in made:
                made[id(given)] = given.of(rooms)
            return made[id(given)]

        return {name: of(given) for name, given in self.arguments.items()}

    def text(self) -> str:
        """The case as a program, without its values if these are long."""
        if all(len(room) <= 400 for room in self.rooms):
            memory = f"[bytearray.fromhex(h) for h in {[room.tobytes().hex() for room in self.rooms]}]"
        else:
            memory = f"[...]  # of {[len(room) for room in self.rooms]} bytes"
        arguments = ", ".join(f"{name}={given!r}" for name, given in self.arguments.items())
        expected = min(self.errors.items())[1].__name__ if self.errors else "a result"
        again = f"python tests/fuzz --seed {self.seed} --case {self.number}"
        return f"# {again}\nrooms = {memory}\ngc.{self.function}({arguments})  # {expected} expected"


# ---- drawing arrays


def shape_of(case: Case, *, small: bool = False) -> tuple[int, ...]:
    r, kind = case.r, case.r.random()
    if small or kind < 0.55:
        shape = tuple(r.choice((1, 2, 3, 3, 4, 5, 0)) for _ in range(r.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6))))
        return shape if math.prod(shape) <= 600 else shape[:3]
    if kind < 0.75:
        return (r.randrange(140),)
    if kind < 0.93:
        return r.choice(
            [(r.randrange(70), r.randrange(1, 40)), (r.randrange(1, 9), r.randrange(1, 9), r.randrange(20))]
        )
    if kind < 0.945:
        shape = [r.choice((1, 1, 1, 1, 2, 1, 3)) for _ in range(r.randrange(7, 33))]
        while math.prod(shape) > 3000:
            shape[r.randrange(len(shape))] = 1
        return tuple(shape)
    near = r.randrange(-3, 4)
    if kind < 0.955:  # long rows, for columns
        return r.choice([(r.randrange(1, 12), r.randrange(120, 600)), (2, r.randrange(1, 9), r.randrange(120, 300))])
    if kind < 0.9965:
        n = 2048 * r.choice((1, 1, 1, 2, 3)) + near
        return r.choice(
            [(n,), (n, 1), (3, n // 3), (n // 3, 3), (n // 40, 40), (1, n), (64 + near, 33), (2, 3, n // 6)]
        )
    n = 131_072 * r.choice((1, 1, 2)) + near
    if kind > 0.9996:  # few, for they take a second
        n = SHARED // 4 + 1 + r.randrange(200_000) if kind < 0.99998 else STREAMED // 4 + 1 + r.randrange(100_000)
    return r.choice(
        [
            (n,),
            (n,),
            (n // 300, 300),
            (n // 4, 4),
            (n // 900, 900),
            (n // 2100, 2100),
            (2100, n // 2100),
            (n // 8, 8),
            (8, n // 8),
        ]
    )


def strides_of(case: Case, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    r, kind = case.r, case.r.random()
    axes = list(range(len(shape)))
    if kind < 0.40:
        kind, axes = 0, axes[::-1]
    elif kind < 0.50:
        kind = 0
    else:
        r.shuffle(axes)
    strides, step = [0] * len(shape), size
    for axis in axes:
        n = shape[axis]
        strides[axis] = step
        if kind >= 0.5 and r.random() < 0.35:
            strides[axis] = -step
        if kind >= 0.65 and n != 1:
            pad = r.choice((0, 0, 1, 2, 3))
            step += pad * (size if kind < 0.82 or math.prod(shape) > 5000 else r.choice((1, 1, 2, 3, size)))
            strides[axis] = math.copysign(step, strides[axis]).__int__()
        if (0.9 <= kind < 0.95 and r.random() < 0.4) or (n == 1 and r.random() < 0.1):
            strides[axis] = 0
        elif kind >= 0.97:
            strides[axis] = r.randrange(-3 * size, 3 * size + 1)
        step = max(step, abs(strides[axis])) * max(n, 1)
        if step > 1 << 27:
            step = size
    return tuple(strides)


def dtype_of(case: Case, dtypes: list[Any]) -> np.dtype:
    dtype = np.dtype(case.r.choice(dtypes))
    return dtype.newbyteorder("S") if case.chance(0.12) else dtype


def offset_of(case: Case, dtype: np.dtype, reach: int) -> int:
    if case.chance(0.1):
        return case.r.randrange(-reach, reach + 1)
    return case.r.randrange(-reach, reach + 1) // dtype.itemsize * dtype.itemsize


def array_of(
    case: Case,
    dtype: np.dtype,
    room: int,
    shape: tuple[int, ...] | None = None,
    reach: int = 16,
    repeats: float = 0,
) -> Arr:
    """A view of the room; with the probability `repeats` one or several of its axes have stride 0."""
    if shape is None:
        shape = shape_of(case)
    strides = strides_of(case, shape, dtype.itemsize)
    if shape and repeats and case.chance(repeats):
        still = case.r.sample(range(len(shape)), case.r.randrange(1, len(shape) + 1))
        strides = tuple(0 if axis in still else step for axis, step in enumerate(strides))
    return case.put(Arr(room, dtype, shape, strides, offset_of(case, dtype, reach)))


def guise_of(case: Case, arr: Arr, *, slices: bool = True) -> str:
    if case.chance(0.9):
        return "array"
    listable = arr.dtype.name in {"float64", "complex128"} and 0 < math.prod(arr.shape) < 500
    names = ["subclass", "read_only", "protocol"]
    names += ["scalar"] * (not arr.shape) + ["listed"] * listable
    names += ["slices"] * (slices and len(arr.shape) > 0 and arr.shape[0] <= 10_000)
    return case.r.choice(names)


MASKED = np.ma.masked_array([1.0, 2.0], [True, False])
RAGGED = [[1.0], [1.0, 2.0]]
NO_TENSORS = [
    None,
    "1",
    MASKED,
    [[1.0, 2.0], MASKED],
    Protocol(MASKED),
    RAGGED,
    np.array([None, 1.0]),
    np.array(["a"]),
    np.array([1.0], LD),
    np.zeros(2, "f4,f4"),
    np.array(["2020-01-01"], "M8[D]"),
]


def tensor_of(case: Case, place: float, dtypes: list[Any], room: int, **how: Any) -> Given:
    slices = how.pop("slices", True)
    if case.chance(0.01):
        value = case.r.choice(NO_TENSORS[1:] if case.function.endswith("global_norm") else NO_TENSORS)
        case.wrong(place, ValueError if value is RAGGED else TypeError)
        return Given(value)
    if case.chance(0.01):
        dtypes = [*NORMED, LD]
    arr = array_of(case, dtype_of(case, dtypes), room, repeats=0.2, **how)
    if arr.dtype.type not in how.get("allowed", dtypes):
        case.wrong(place, TypeError)
    return Given(arr, guise_of(case, arr, slices=slices))


def moved(case: Case, arr: Arr) -> Arr:
    """Another array of the same shape and dtype over the same memory, or nearly."""
    r, size = case.r, arr.dtype.itemsize
    kind = r.random()
    dtype = arr.dtype.newbyteorder("S") if case.chance(0.1) else arr.dtype
    if kind < 0.35:  # shifted
        by = r.choice((0, 1, -1, 2, -3, 7, r.randrange(-40, 41), r.randrange(-3000, 3001))) * size
        return arr._replace(dtype=dtype, offset=arr.offset + by + (r.randrange(size) if case.chance(0.2) else 0))
    if kind < 0.6:  # some axes the other way round
        flip = [case.chance(0.7) for _ in arr.shape]
        axes = zip(flip, arr.shape, arr.strides, strict=True)
        offset = arr.offset + sum((n - 1) * step for f, n, step in axes if f and n)
        strides = tuple(-step if f else step for f, step in zip(flip, arr.strides, strict=True))
        return arr._replace(dtype=dtype, offset=offset, strides=strides)
    if kind < 0.75:  # equal axes exchanged
        strides = list(arr.strides)
        for a, b in itertools.combinations(range(len(strides)), 2):
            if arr.shape[a] == arr.shape[b] and case.chance(0.6):
                strides[a], strides[b] = strides[b], strides[a]
        return arr._replace(dtype=dtype, strides=tuple(strides))
    strides = strides_of(case, arr.shape, size)
    return arr._replace(dtype=dtype, strides=strides, offset=arr.offset + offset_of(case, dtype, 64))


NO_OUTS = ["out", 3.0, [0.0], (1,), {}, np.ma.masked_array([1.0])]


def out_of(case: Case, place: float, tensor: Given) -> Given | None:  # noqa: C901
    """An output for a tensor; None for none."""
    r, arr = case.r, tensor.value
    if not isinstance(arr, Arr):
        return None
    guise = "slices" if tensor.guise == "slices" else "array"
    kind = r.random()
    if kind < 0.2 and tensor.guise in {"array", "slices", "read_only", "subclass"}:
        if tensor.guise == "read_only":
            case.wrong(place + 3e-5, ValueError)
        return tensor
    if kind < 0.3:
        return Given(arr, guise)
    if kind < 0.6:
        return Given(case.put(moved(case, arr)), guise)
    own = arr.dtype.newbyteorder("=")
    if kind < 0.9:
        own = own.newbyteorder("S") if case.chance(0.12) else own
        return Given(
            array_of(case, own, case.room(), arr.shape),
            r.choice([guise, guise, guise, "subclass"]) if guise == "array" else guise,
        )
    if kind < 0.92:
        case.wrong(place, TypeError)
        return Given(r.choice(NO_OUTS))
    fresh = array_of(case, own, case.room(), arr.shape)
    if kind < 0.94:
        other = np.dtype(r.choice([d for d in [*NORMED, LD] if np.dtype(d) != own]))
        case.wrong(place + 1e-5, TypeError)
        return Given(array_of(case, other, case.room(), arr.shape), guise if other != LD else "array")
    if kind < 0.96:
        shape = r.choice([(*arr.shape, 1), (1, *arr.shape), arr.shape[:-1], (*arr.shape[:-1], 7)])
        if shape == arr.shape or (guise == "slices" and not shape):
            shape = (*arr.shape, 2)
        case.wrong(place + 2e-5, ValueError)
        return Given(array_of(case, own, case.room(), shape), guise)
    if kind < 0.98 and guise == "array":
        case.wrong(place + 3e-5, ValueError)
        return Given(fresh, "read_only")
    if guise == "slices" and arr.shape[0]:
        case.wrong(place + 4e-5, ValueError)
        return Given(fresh, r.choice(("other_slices", "other_shape")))
    return Given(fresh._replace(strides=tuple(0 for _ in arr.shape)), guise)


def share_bytes(outs: list[Arr], rooms: list[np.ndarray]) -> bool:
    """Whether two of the outputs share a byte, or one does with itself."""
    outs = [arr for arr in outs if 0 not in arr.shape]
    if len(outs) == 1 and outs[0].view(rooms).flags.forc:
        return False
    for room in {arr.room for arr in outs}:
        at = np.concatenate([arr.bytes() for arr in outs if arr.room == room])
        if np.bincount(at).max() > 1:
            return True
    return False


# ---- drawing values


def _words(part: np.dtype) -> np.ndarray:
    """Bit patterns at the ends of ranges."""
    info, size = oracle.finfo(part), 8 * part.itemsize
    digits = info.nmant
    one, top = 2**digits, 2 ** (size - 1) - 2**digits  # the smallest normal number; inf
    middle = int(oracle.bits(np.ones(1, part))[0])
    positive = [0, 1, 2, one - 1, one, one + 1, middle, middle + 1, middle - 1, top - 1, top - 2, top]
    nans = [top + 1, top + 2 ** (digits - 1), top + 2 ** (digits - 1) + 5, 2 ** (size - 1) - 1]
    words = [*positive, *positive, *nans]
    return np.array([*words, *(w + 2 ** (size - 1) for w in words)], f"u{part.itemsize}")


WORDS = {np.dtype(dtype): _words(np.dtype(dtype)) for dtype in oracle.FLOATS}
FINITE_WORDS = {
    dtype: np.array(
        [w for w in words.tolist() if math.isfinite(float(np.array(w, words.dtype).view(dtype)))], words.dtype
    )
    for dtype, words in WORDS.items()
}


def values_of(case: Case, dtype: np.dtype, count: int) -> np.ndarray:
    """So many numbers; those of a long array repeat, with a period that no block has."""
    r, dtype = case.r, dtype.newbyteorder("=")
    n = min(count, 4099)
    if not n:
        return np.empty(0, dtype)
    kind = r.random()
    if dtype.kind == "b":
        x = np.frombuffer(r.randbytes(n), np.uint8) % r.choice((1, 2, 2)) == 1
    elif dtype.kind in "iu":
        if kind < 0.4:
            x = np.frombuffer(r.randbytes(n * dtype.itemsize), dtype)
        else:
            info = np.iinfo(dtype)
            ends = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3], dtype)
            x = ends[np.frombuffer(r.randbytes(n), np.uint8) % r.choice((4, 8, 8))]
            x = x if kind < 0.6 else np.frombuffer(r.randbytes(n), np.uint8).astype(dtype)
    else:
        part = oracle.part(dtype)
        m = n * (dtype.itemsize // part.itemsize)
        few = np.frombuffer(r.randbytes(m), np.uint8).astype(np.int64)
        if kind < 0.45:
            x = ((few - 127) / r.choice((1, 8, 7, 1000, 1003))).astype(part)
        elif kind < 0.6:
            x = np.frombuffer(r.randbytes(m * part.itemsize), part)
        elif kind < 0.7:
            x = WORDS[part][few % len(WORDS[part])].view(part)
        elif kind < 0.78:
            x = FINITE_WORDS[part][few % len(FINITE_WORDS[part])].view(part)
        else:  # exponents that lie together, somewhere
            words = np.frombuffer(r.randbytes(m * part.itemsize), f"u{part.itemsize}")
            digits, size = oracle.finfo(part).nmant, 8 * part.itemsize
            top = 2 ** (size - 1 - digits) - 1
            low = r.choice((0, 0, top - 3, top // 2, top // 4, r.randrange(top)))
            exponents = (low + few % r.choice((1, 2, 3, 9))).clip(0, top - 1).astype(words.dtype)
            kept = words.dtype.type(2 ** (size - 1) + 2**digits - 1)
            x = ((words & kept) | (exponents << words.dtype.type(digits))).view(part)
        if case.chance(0.08):
            x = x.copy()
            special = WORDS[part].view(part)
            x[r.randrange(m)] = special[r.randrange(len(special))]
        x = x.view(dtype)
    return x if n == count else np.resize(x, count)


def fill(case: Case) -> None:
    for given in itertools.chain(case.tensors, case.arguments.values()):
        if isinstance(given, Given) and isinstance(given.value, Arr):
            arr = given.value
            if arr.dtype.type is LD:
                continue
            view = arr.view(case.rooms)
            view[...] = values_of(case, arr.dtype, view.size).reshape(view.shape)


# ---- drawing numbers

NO_NUMBERS = [
    True,
    np.True_,
    1j,
    np.complex64(1),
    "1",
    b"1",
    None,
    Fraction(1),
    Decimal(1),
    np.array("a"),
    np.array(True),
]
BAD_LIMITS = [-1, -1.0, math.nan, -math.inf, np.float32(-1), np.array(-0.5), np.ones(1), np.ones((1, 1)), -(10**400)]
LIMITS = [0, 0.0, -0.0, math.inf, 5e-324, 1e-310, 2.0**-1022, 1e-30, 1, 1.0, 65520.0, 4e38, 1e300, sys.float_info.max]
LARGE = [2**60, 10**30, 10**308, 10**400]


def spelled(case: Case, value: float) -> Any:
    if case.chance(0.5):
        return value
    with np.errstate(all="ignore"):
        return case.r.choice([*draws.KINDS.values(), LD])(value)


def limit_of(case: Case, place: float, near: float) -> float:
    """A limit as a float; the argument itself in `case.drawn`."""
    r, kind = case.r, case.r.random()
    if kind < 0.015:
        case.wrong(place, TypeError)
        given: Any = r.choice(NO_NUMBERS)
    elif kind < 0.03:
        case.wrong(place, ValueError)
        given = r.choice(BAD_LIMITS)
    elif kind < 0.07:
        given = r.choice(LARGE)
    elif kind < 0.1:
        given = r.choice(
            [np.int64, np.uint8, np.int16, lambda v: ml_dtypes.int4(v % 8), lambda v: np.array(v, np.int16)]
        )(r.randrange(9))
    elif kind < 0.25:
        given = spelled(case, r.choice(LIMITS))
    elif kind < 0.45:
        given = spelled(case, 10.0 ** r.uniform(-6, 6))
    else:
        near = min(near, sys.float_info.max) if near == near else 1.0
        given = r.choice((near, near, math.nextafter(near, 0), math.nextafter(near, math.inf)))
        if case.chance(0.7):
            given = spelled(case, near * r.choice((0.25, 0.5, 0.999, 1.001, 2.0, 1e-3, 1e-30, 1e-300)))
    case.drawn = given
    return abs(draws.number(given)) if place not in case.errors else math.nan


def name_of(case: Case, place: float) -> Any:
    if case.chance(0.01):
        case.wrong(place, TypeError)
        return case.r.choice((3, b"layer", 1.5, []))
    return "layer 3" if case.chance(0.03) else None


def axes_of(case: Case, place: float, ndim: int, *, some: bool) -> Any:
    """(what is given, the axes from 0, None for all)."""
    r, kind = case.r, case.r.random()
    if kind < 0.4:
        return None, None
    if kind < 0.43:
        case.wrong(place, TypeError)
        return r.choice((1.0, True, "0", np.float64(0), [0.5], (True,), b"0", np.ones((1, 1), int), {0}, (None,))), None
    if kind < 0.45:
        case.wrong(place, AxisError)
        return r.choice((ndim, -ndim - 1, 10**30, (ndim,), [-(10**30)], np.array([ndim]))), None
    count = r.randrange(int(some and ndim > 0), ndim + 1)
    axes = r.sample(range(ndim), min(count, r.choice((1, 1, 2, 2, 3, count))))
    if kind < 0.47 and axes:
        case.wrong(place, ValueError)
        return [*axes, axes[0] - ndim], None
    given: Any = [r.choice((a, a, a - ndim, np.int16(a))) for a in axes]
    if len(axes) == 1 and case.chance(0.5):
        given = given[0]
    elif case.chance(0.7):
        given = tuple(given)
    elif axes and case.chance(0.2):
        given = np.array(given)
    if some and not axes:
        case.wrong(place, ValueError)
    return given, axes


ORDS = [
    "euclidean",
    2,
    2.0,
    2,
    1,
    math.inf,
    1.0,
    0.5,
    1.5,
    3,
    4,
    2.5,
    3.7,
    0.1,
    10,
    np.float32(3),
    np.int8(1),
    np.array(2),
]


def ord_of(case: Case, place: float, *, vectors: bool) -> Any:
    """(what is given, 'fro' or a float)."""
    r, kind = case.r, case.r.random()
    if kind < 0.02:
        case.wrong(place, TypeError)
        return r.choice((None, True, np.False_)), math.nan
    if kind < 0.05:
        case.wrong(place, ValueError)
        return r.choice((0, -1, math.nan, -math.inf, "2", "nuc", np.ones(1), 1j, [2])), math.nan
    if kind < 0.1:
        if vectors:
            case.wrong(place, ValueError)
        return "fro", "fro"
    given = r.choice(ORDS)
    return given, 2.0 if isinstance(given, str) else float(given)


# ---- drawing calls


def near_norm(case: Case, p: Any = 2, axes: Any = None) -> float:
    """A norm of the data, to draw a limit at it; 1.0 where there is none."""
    arrays = [
        given.value.view(case.rooms) for given in case.tensors if given is not None and isinstance(given.value, Arr)
    ]
    arrays = [a for a in arrays if a.dtype.type in NORMED]
    if not arrays:
        return 1.0
    if axes and len(arrays) == 1 and p == 2:
        norms = np.asarray(gc.norm(arrays[0], 2, axes[:1])).ravel()
        return float(norms[case.r.randrange(len(norms))]) if len(norms) else 1.0
    return gc.global_norm(arrays, ord=p)


def one_tensor(case: Case, allowed: list[Any], out_place: float | None, *, slices: bool) -> Given:
    dtypes = allowed if case.chance(0.98) else NORMED
    tensor = tensor_of(case, 0, dtypes, case.room())
    case.tensors = [tensor]
    if isinstance(tensor.value, Arr):
        if tensor.value.dtype.type not in allowed or (tensor.guise == "slices" and not slices):
            case.wrong(0, TypeError)
        if tensor.value.dtype.type is LD:
            tensor.guise = "array"
            case.wrong(0, TypeError)
    if out_place is not None and case.chance(0.55):
        out = out_of(case, out_place, tensor)
        if out is not None:
            case.outs = [out]
            case.arguments["out"] = out
    return tensor


def check_outs(case: Case, place: float) -> None:
    outs = [given.value for given in case.outs or [] if given is not None and isinstance(given.value, Arr)]
    if not any(int(at) <= place for at in case.errors) and share_bytes(outs, case.rooms):
        case.wrong(place + 0.9, ValueError)


def bound_of(case: Case, place: float, tensor: Given) -> None:
    """A bound of clip_by_value: `case.drawn`."""
    r, kind = case.r, case.r.random()
    arr = tensor.value
    case.drawn = None
    if not isinstance(arr, Arr) or kind < 0.12:
        return
    is_float = oracle.is_float(arr.dtype)
    if kind < 0.15:
        case.wrong(place, TypeError)
        case.drawn = r.choice((True, 1j, "1", Fraction(1), np.True_, np.ma.masked_array([1.0]), np.array(["1"]), {}))
    elif kind < 0.17 and not is_float:
        case.wrong(place, TypeError)
        case.drawn = r.choice((0.5, np.float32(1), np.ones(1), 0.0, np.array(1.0, BF16)))
    elif kind < 0.19:
        case.wrong(place, ValueError)
        case.drawn = r.choice((np.ones((*arr.shape, 7), int), np.ones((1, *arr.shape), int)))
    elif kind < 0.24:  # over the output, or over t
        outs = [given.value for given in case.outs or [] if given is not None and isinstance(given.value, Arr)]
        near = r.choice([a for a in outs if (a.dtype.type, a.shape) == (arr.dtype.type, arr.shape)] or [arr])
        case.drawn = Given(case.put(moved(case, near._replace(dtype=arr.dtype.newbyteorder("=")))))
        case.arguments[f"bound at {place}"] = case.drawn  # for its offset and its values
    elif kind < 0.35:  # an array
        shape = arr.shape[r.randrange(len(arr.shape) + 1) :]
        shape = tuple(1 if case.chance(0.2) else n for n in shape)
        dtype = dtype_of(case, [arr.dtype.type] * 4 + ([np.float32, np.float64, np.int16] if is_float else INTEGERS))
        room = r.choice((arr.room, case.room(), len(case.extents) - 1))
        given = Given(
            array_of(case, dtype, room, shape), r.choice(["array"] * 5 + ["subclass", "read_only", "protocol"])
        )
        case.arguments[f"bound at {place}"] = case.drawn = given
    elif kind < 0.37 and arr.shape and arr.shape[-1]:
        numbers = [r.choice((0, 1, -1, 7, 100, 2**63, -(2**64), 2**53 + 1)) for _ in range(arr.shape[-1])]
        case.drawn = r.choice((list, tuple))(numbers)
    elif is_float:
        special = (0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1e300, -1e300, 65519.99, 65520, 3.4e38, 3.5e38)
        value = r.choice(
            (r.uniform(-5, 5), r.uniform(-200, 200), r.choice(special), r.randrange(-9, 9), 2**60 + 1, 10**400)
        )
        case.drawn = spelled(case, value) if isinstance(value, float) else value
    else:
        value = r.choice((r.randrange(-9, 200), 0, 1, -1, 2**63 - 1, -(2**63), 2**64, 10**400, 2**53 + 1, 255, 127))
        case.drawn = np.int64(value) if case.chance(0.3) and -(2**63) <= value < 2**63 else value


def draw_clip_by_value(case: Case) -> None:
    tensor = one_tensor(case, ORDERED, 4, slices=True)
    bounds = []
    for place in (1, 2):
        bound_of(case, place, tensor)
        bounds.append(case.drawn)
    if all(bound is None for bound in bounds):
        case.wrong(2.5, ValueError)
    name = name_of(case, 3)
    case.make_rooms()
    fill(case)
    case.arguments = {k: v for k, v in case.arguments.items() if not k.startswith("bound")}
    case.arguments.update(t=tensor, clip_value_min=bounds[0], clip_value_max=bounds[1], name=name)


def draw_clip_by_norm(case: Case) -> None:
    average = case.function == "clip_by_average_norm"
    tensor = one_tensor(case, SCALED, 3 if average else 4, slices=not average)
    case.make_rooms()
    fill(case)
    ndim = len(tensor.value.shape) if isinstance(tensor.value, Arr) else 0
    axes = case.axes = None
    if not average:
        axes, case.axes = axes_of(case, 2, ndim, some=False)
    near = near_norm(case, 2, case.axes)
    if average and isinstance(tensor.value, Arr):
        near /= max(math.prod(tensor.value.shape), 1)
    case.limit = limit_of(case, 1, near)
    case.arguments.update(t=tensor, clip_norm=case.drawn, name=name_of(case, 2 if average else 3))
    if not average:
        case.arguments["axes"] = axes


def draw_norm(case: Case) -> None:
    scales = case.function == "normalize"
    tensor = one_tensor(case, SCALED if scales else NORMED, 5 if scales else None, slices=False)
    case.make_rooms()
    fill(case)
    ndim = len(tensor.value.shape) if isinstance(tensor.value, Arr) else 0
    axis, case.axes = axes_of(case, 2, ndim, some=True)
    matrix = case.axes is not None and len(case.axes) == 2
    order, case.p = ord_of(case, 1, vectors=False)
    if matrix:
        if case.p not in (1, 2, math.inf, "fro"):
            case.wrong(2.5, ValueError)
        case.p = ("matrix", "fro" if order == "euclidean" else case.p)
        if case.p[1] == 2 and isinstance(tensor.value, Arr) and math.prod(tensor.value.shape) > 3000:
            order, case.p = "fro", ("matrix", "fro")
    elif case.p == "fro":
        case.wrong(2.5, ValueError)
    if (
        1 not in case.errors
        and not isinstance(case.p, (str, tuple))
        and case.p not in (1, 2, math.inf)
        and isinstance(tensor.value, Arr)
        and (math.prod(tensor.value.shape) > 300_000)
    ):
        order = case.p = 2.0
    case.arguments.update(tensor=tensor, ord=order, axis=axis, name=name_of(case, 4))
    case.keepdims = None
    if not scales:
        case.keepdims = case.r.choice((None, None, False, True))
        if case.chance(0.01):
            case.wrong(3, TypeError)
            case.keepdims = case.r.choice((1, 0.0, np.True_, "no"))
        case.arguments["keepdims"] = case.keepdims


def views_of_one(case: Case, dtypes: list[Any]) -> list[Given | None]:
    """A list of many short tensors as users make it: views of one array, and most of them equally long."""
    r, dtype = case.r, dtype_of(case, [case.r.choice(dtypes)])
    count, length, room = r.randrange(2, 41), r.randrange(1, 201), case.room()
    kind = r.choice(("steps", "steps", "columns", "columns", "rows", "windows", "twice", "apart"))
    begins, step = {
        "steps": (range(count), r.choice((1, 2, 3, 5, 8, count))),  # x[i::step][:length]
        "columns": (range(count), count + r.randrange(3)),  # x[:, i]
        "rows": (range(0, count * length, length), 1),
        "windows": (range(0, count * length, r.randrange(1, length + 1))[:count], 1),
        "twice": (r.choices(range(3), k=count), r.randrange(1, 4)),
        "apart": ([0] * count, r.randrange(1, 4)),
    }[kind]
    if case.chance(0.2):
        begins, step = begins[::-1], -step
    varies = case.chance(0.25)
    tensors: list[Given | None] = []
    for begin in begins:
        n = r.randrange(length + 1) if varies and case.chance(0.5) else length
        own = case.room() if kind == "apart" else room
        arr = Arr(own, dtype, (n,), (step * dtype.itemsize,), begin * dtype.itemsize)
        tensors.append(Given(case.put(arr)))
    if case.chance(0.2):
        r.shuffle(tensors)
    return tensors


NO_LISTS = [np.ones(3), 1.0, None, "ab", b"ab", {}, {1}, range(3), iter(())]


def draw_global(case: Case) -> None:  # noqa: C901
    clips, r = case.function == "clip_by_global_norm", case.r
    dtypes = SCALED if clips else NORMED
    if case.chance(0.4):
        dtypes = [r.choice(dtypes)]
    count = r.choice((0, 1, 1, 2, 2, 3, 4, 5, r.randrange(40) if case.chance(0.3) else 2))
    shared = case.room()
    tensors: list[Given | None] = []
    reach = r.choice((16, 100, 1000))
    shape = shape_of(case, small=case.chance(0.7))
    while math.prod(shape) * 4 > STREAMED:
        shape = shape_of(case)
    many = case.chance(0.0002)
    if many:  # small ones that are much together
        count, dtypes = r.randrange(150, 500), [r.choice(dtypes)]
        shape = (SHARED * 4 // 3 // np.dtype(dtypes[0]).itemsize // count,)
    large = math.prod(shape) > 5000
    if not many and case.chance(0.35):
        tensors, count = views_of_one(case, dtypes), 0
    for i in range(count):
        if many:
            tensors.append(Given(array_of(case, np.dtype(dtypes[0]), case.room(), shape)))
            continue
        if case.chance(0.06):
            tensors.append(None)
            continue
        room = shared if case.chance(0.6) else case.room()
        if case.chance(0.5 if not large else 0.9):
            shape = shape_of(case, small=True)
        allowed = SCALED if clips else NORMED
        tensor = tensor_of(case, i / 1000, dtypes, room, shape=shape, reach=reach)
        if isinstance(tensor.value, Arr):
            if tensor.value.dtype.type is LD:
                tensor.guise = "array"
            if tensor.value.dtype.type not in allowed:
                case.wrong(i / 1000, TypeError)
        tensors.append(tensor)
    case.tensors = tensors
    if clips and case.chance(0.55):
        if many:
            case.outs = list(tensors)
        else:
            draw_outs(case)
    case.make_rooms()
    fill(case)
    order, case.p = ord_of(case, 4 if clips else 2, vectors=True)
    case.arguments.update(t_list=list(tensors), name=name_of(case, 3 if clips else 1), ord=order)
    if case.chance(0.2):
        case.arguments["t_list"] = tuple(tensors)
    if case.chance(0.01):
        case.wrong(-1, TypeError)
        case.arguments["t_list"] = r.choice(NO_LISTS)
    if clips:
        valid = not any(int(at) in (-1, 0, 4) for at in case.errors)
        case.limit = limit_of(case, 1, near_norm(case, case.p) if valid else 1.0)
        case.arguments["clip_norm"] = case.drawn
        case.used = None
        if case.chance(0.15):
            if case.chance(0.1):
                case.used = case.drawn = math.nan  # allowed here
            else:
                case.used = abs(limit_of(case, 2, case.limit))
            case.arguments["use_norm"] = case.drawn
        given = case.arguments.get("use_norm", 0)
        if given is None or given != given:  # None is no use_norm at all, NaN is allowed
            case.errors.pop(2, None)
            case.used = given
        if case.outs is not None:
            outs = case.outs if case.chance(0.8) else tuple(case.outs)
            case.arguments["out"] = outs
            if case.chance(0.02):
                case.wrong(5, ValueError)
                case.arguments["out"] = [*outs, None]
            elif case.chance(0.01):
                case.wrong(5, TypeError)
                case.arguments["out"] = r.choice((np.ones(3), 3.0, {}, "abc"))


def draw_outs(case: Case) -> None:  # noqa: C901
    r, tensors = case.r, case.tensors
    arrays = [t for t in tensors if t is not None and isinstance(t.value, Arr)]
    kind = r.random()
    if kind < 0.25:
        case.outs = list(tensors)
        for i, tensor in enumerate(tensors):
            if tensor is not None and tensor.guise not in {"array", "subclass", "slices"}:
                wrong_place = 5.1 + i / 1000
                is_array = tensor.guise in {"read_only", "scalar"} and tensor.guise == "read_only"
                case.wrong(wrong_place, ValueError if is_array else TypeError)
    elif kind < 0.4 and arrays and len({(a.value.shape, a.value.dtype, a.guise) for a in arrays}) == 1:
        # Each other's outputs.
        order = list(arrays)
        r.shuffle(order)
        if arrays[0].guise not in {"array", "subclass", "slices"}:
            case.outs = None
            return
        rest = iter(order)
        case.outs = [next(rest) if isinstance(t, Given) and isinstance(t.value, Arr) else t for t in tensors]
    elif kind < 0.5 and arrays:  # columns of one matrix
        room, size = case.room(), r.choice((16, 16, 8, 4, 15, 17, 1))  # of narrower ones some share bytes
        step = size * len(tensors) + r.choice((0, 1, 3))
        outs: list[Given | None] = []
        for i, t in enumerate(tensors):
            if t is None or not isinstance(t.value, Arr) or t.guise == "slices":
                outs.append(t)
                continue
            strides, stride = [], step
            for n in reversed(t.value.shape):
                strides.append(stride)
                stride *= max(n, 1)
            own = t.value.dtype.newbyteorder("=")
            outs.append(Given(case.put(Arr(room, own, t.value.shape, tuple(strides[::-1]), i * size))))
        case.outs = outs
    else:
        outs = []
        for i, t in enumerate(tensors):
            if t is None:
                outs.append(None)
                continue
            outs.append(out_of(case, 5.1 + i / 1000, t) if isinstance(t.value, Arr) else t)
        case.outs = outs
        if case.chance(0.02) and outs:
            i = r.randrange(len(outs))
            for extra in (0, 1e-5, 2e-5, 3e-5, 4e-5):
                case.errors.pop(5.1 + i / 1000 + extra, None)
            if tensors[i] is None:
                outs[i] = Given(np.zeros(2))
                case.wrong(5.1 + i / 1000, TypeError)
            else:
                outs[i] = None  # a new array


DRAW = {
    "clip_by_value": draw_clip_by_value,
    "clip_by_norm": draw_clip_by_norm,
    "clip_by_average_norm": draw_clip_by_norm,
    "clip_by_global_norm": draw_global,
    "global_norm": draw_global,
    "norm": draw_norm,
    "normalize": draw_norm,
}
FUNCTIONS = [*DRAW, "clip_by_norm", "clip_by_global_norm"]
OUT_PLACE = {"clip_by_value": 4, "clip_by_norm": 4, "clip_by_average_norm": 3, "clip_by_global_norm": 5, "normalize": 5}


def draw(seed: int, number: int) -> Case:
    case = Case(seed, number)
    case.function = case.r.choice(FUNCTIONS)
    DRAW[case.function](case)
    if case.outs is not None:
        check_outs(case, OUT_PLACE[case.function])
    return case


# ---- reference results


def dense(view: np.ndarray) -> np.ndarray:
    """A native copy without gaps, in the order in which norms sum: large strides outermost, stride 0 innermost.

    That is NumPy's order "K". What lies backwards in memory lies backwards in the copy.
    """
    axes = zip(view.shape, view.strides, strict=True)
    back = (..., *(slice(None, None, -1 if n > 1 and step < 0 else 1) for n, step in axes))
    return view[back].astype(view.dtype.newbyteorder("="), order="K", subok=False, copy=True)[back]


def references(case: Case, rooms: list[np.ndarray]) -> dict[int, Any]:
    """For each array argument the same values in memory of its own."""
    made = {}
    flat = [*case.tensors, *case.arguments.values()]
    for given in flat:
        if isinstance(given, Given) and isinstance(given.value, Arr):
            view = given.value.view(rooms)
            made[id(given)] = native(view) if given.guise in {"listed", "scalar"} else dense(view)
    return made


def magnitudes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """|x| in extended precision, and where x is NaN."""
    if x.dtype.kind in "biu":
        return np.abs(x.astype(LD)), np.zeros(x.shape, bool)
    parts = oracle.exact_parts(x)
    if x.dtype.kind != "c":
        return np.abs(parts.astype(LD)), np.isnan(parts)
    wide = parts.astype(LD)
    return np.hypot(wide[..., 0], wide[..., 1]), np.isnan(parts).any(-1)


def norms(x: np.ndarray, p: Any, axes: Any) -> np.ndarray:
    """The norms along some axes (None: all), which are kept as size 1."""
    if isinstance(p, tuple):
        return matrix_norms(x, p[1], axes)
    axes = tuple(range(x.ndim)) if axes is None else tuple(axes)
    size, nan = magnitudes(x)
    if not size.size:
        return np.zeros([1 if axis in axes else n for axis, n in enumerate(x.shape)], LD)
    finite = np.where(np.isfinite(size), size, LD(0))
    if p == math.inf:
        total = finite.max(axes, keepdims=True)
    elif p == 1:
        total = finite.sum(axes, keepdims=True)
    elif p == 2:
        total = np.sqrt((finite * finite).sum(axes, keepdims=True))
    else:
        top = finite.max(axes, keepdims=True)
        ratio = finite / np.where(top == 0, LD(1), top)
        total = top * (ratio ** LD(p)).sum(axes, keepdims=True) ** (1 / LD(p))
    infinite = (np.isinf(size) & ~nan).any(axes, keepdims=True)
    return np.where(nan.any(axes, keepdims=True), LD(np.nan), np.where(infinite, LD(np.inf), total))


def matrix_norms(x: np.ndarray, p: Any, axes: Any) -> np.ndarray:
    if p == "fro":
        return norms(x, 2, axes)
    if p != 2:
        first, second = axes if p == 1 else axes[::-1]
        return norms(x, 1, [first]).max(second, keepdims=True, initial=0)
    size, nan = magnitudes(x)
    kept = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
    if not x.size:
        return np.zeros(kept, LD)
    bad = (nan | np.isinf(size)).any(tuple(axes), keepdims=True)
    top = np.where(bad, LD(0), size.max(tuple(axes), keepdims=True))
    top = np.where(top == 0, LD(1), top)
    wide = oracle.exact_parts(x).astype(LD) / (top[..., None] if x.dtype.kind == "c" else top)
    scaled = wide.astype(np.float64)
    scaled = scaled[..., 0] + 1j * scaled[..., 1] if x.dtype.kind == "c" else scaled
    stack = np.moveaxis(np.where(bad, 0, scaled), tuple(axes), (-2, -1))
    found = np.linalg.svd(stack, compute_uv=False)[..., 0].astype(LD).reshape(kept) * top
    return np.where(bad, LD(np.nan), found)


def ulps(exact: np.ndarray, dtype: Any) -> np.ndarray:
    """The distance between neighbours of the dtype around each number."""
    info = oracle.finfo(dtype)
    lowest = info.minexp - info.nmant
    return np.ldexp(LD(1), np.maximum(np.frexp(exact)[1] - 1 - info.nmant, lowest))


def check_norms(got: Any, exact: np.ndarray, dtype: Any, p: Any, what: str) -> None:
    """Norms against those in extended precision."""
    got = np.asarray(got)
    check(got.dtype == dtype and got.shape == exact.shape, f"{what}: {got.dtype} {got.shape}, expected {exact.shape}")
    error = 1e-12 if p == ("matrix", 2) else oracle.NORM_ERROR / (min(p, 1) if isinstance(p, (int, float)) else 1)
    own, slack = got.astype(LD), LD(error) * exact
    slack = slack + np.where((exact < SMALLEST_NORMAL) | (dtype == np.float32), ulps(exact, dtype) / 2, LD(0))
    top = LD(oracle.largest(dtype))
    good = (np.abs(own - exact) <= slack) | (own == exact) | (np.isnan(own) & np.isnan(exact))
    good |= (own == np.inf) & (exact + slack >= top + ulps(top, dtype) / 2)
    if not good.all():
        at = tuple(map(int, np.argwhere(~good)[0]))
        raise WrongError(f"{what}: at {at}: {got[at]!r}, expected {exact[at]!r}")


class Rule:
    """The expected results for slices with these norms: all arrays broadcast to the tensor."""

    def __init__(
        self, x: np.ndarray, exact: np.ndarray, own: Any, limit: float, *, decides: bool, p: Any = None
    ) -> None:
        limit = LD(limit)
        self.slack = np.zeros(exact.shape, LD)
        base = exact
        if oracle.is_wide(x.dtype) and own is not None:
            own = np.asarray(own).astype(LD).reshape(exact.shape)
            usable = np.isfinite(own) & (own >= SMALLEST_NORMAL)
            base = np.where(usable, own, exact)
            # A norm beyond float64 is unknown here, up to its error.
            of_order = min(1.0, p) if isinstance(p, (int, float)) else 1.0
            self.slack = np.where(usable, LD(0), LD(oracle.NORM_ERROR / of_order))
        self.factor = np.where(np.isinf(exact), LD(0), limit / np.where(base == 0, LD(1), base))
        self.nan = np.isnan(exact) & (limit != np.inf)
        number = np.asarray(own).astype(LD).reshape(exact.shape) if decides else exact
        self.same = (number <= limit) | (limit == np.inf)
        # The quotient of an average norm is rounded to float64, which has fewer digits where it is subnormal.
        near = np.abs(exact - limit) <= LD(2e-14) * exact + LD(5e-324)
        self.either = np.zeros(exact.shape, bool) if decides else near


def check_scaled(x: np.ndarray, got: np.ndarray, rule: Rule, case: Case, what: str) -> None:
    """Values against the exact products."""
    factor, nan, same, either, slack = (
        np.broadcast_to(a, x.shape) for a in (rule.factor, rule.nan, rule.same, rule.either, rule.slack)
    )
    if x.size > MANY:
        at = tuple(np.array([n - 1, *(case.r.randrange(n) for _ in range(3000))]) for n in x.shape)
        x, got, factor, nan, same, either, slack = (a[at] for a in (x, got, factor, nan, same, either, slack))
    if x.dtype.kind == "c":
        factor, nan, same, either, slack = (a[..., None] for a in (factor, nan, same, either, slack))
    wide, own = oracle.exact_parts(x).astype(LD), oracle.exact_parts(got).astype(LD)
    exact = np.where(nan, LD(np.nan), wide * factor)
    allowed = LD(oracle.allowed_ulps(x.dtype)) * ulps(exact, x.dtype) + slack * np.abs(exact)
    good = (np.abs(own - exact) <= allowed) | (own == exact)
    good &= np.signbit(own) == np.signbit(exact)
    good |= np.isnan(own) & np.isnan(exact)
    kept = oracle.bits(x) == oracle.bits(got)
    good = np.where(either, kept | good, np.where(same, kept, good))
    if not good.all():
        at = tuple(map(int, np.argwhere(~good)[0]))
        told = f"expected {exact[at]!r}{' untouched' * bool(np.broadcast_to(same, good.shape)[at])}"
        raise WrongError(f"{what}: at {at}: {oracle.parts(x)[at]!r} gave {oracle.parts(got)[at]!r}, {told}")


def bound_as(bound: Any, dtype: np.dtype) -> np.ndarray:
    """A bound in the dtype of the tensor."""
    if not isinstance(bound, np.ndarray) or bound.ndim == 0:
        # NumPy makes floats of a list of large integers.
        return oracle.bound_as(np.array(bound, object) if isinstance(bound, list) else bound, dtype)
    x = native(bound)
    if x.dtype == dtype:
        return x
    if oracle.is_float(dtype) and oracle.is_float(x.dtype) and (dtype.type is not BF16 or x.itemsize <= 4):
        with np.errstate(all="ignore"):
            return x.astype(dtype)
    words = x.view(f"u{x.itemsize}").reshape(-1)  # apart by bits, which are faster to sort than bfloat16
    different, places = np.unique(words, return_inverse=True)
    return oracle.bound_as(different.view(x.dtype), dtype)[places.reshape(-1)].reshape(x.shape)


def check_clip_by_value(t: np.ndarray, bounds: list[Any], got: np.ndarray) -> None:
    as_number = (lambda a: a.astype(np.float64)) if oracle.is_float(t.dtype) else (lambda a: a)
    expected, any_nan = t.copy(), np.zeros(t.shape, bool)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        for bound, beyond in zip(bounds[::-1], (np.greater, np.less), strict=True):
            if bound is None:
                continue
            limit = np.broadcast_to(bound_as(bound, t.dtype), t.shape)
            numbers = as_number(limit)
            nan = numbers != numbers
            any_nan |= nan
            expected = np.where(beyond(as_number(expected), numbers) | nan, limit, expected)
        own_nan = as_number(t) != as_number(t)
    expected = np.where(own_nan, t, expected)
    good = oracle.bits(expected) == oracle.bits(got)
    if any_nan.any():
        good |= any_nan & ~own_nan & oracle.is_nan(got)
    if not good.all():
        at = tuple(map(int, np.argwhere(~good)[0]))
        raise WrongError(f"at {at}: {t[at]!r} gave {got[at]!r}, expected {expected[at]!r}")


def own_norms(tensor: np.ndarray, x: np.ndarray, axes: Any) -> tuple[Any, bool]:
    """gradclip's norms in float64 (there are none for slices of the narrow dtypes), and whether they decide."""
    if axes is None or (len(axes) == x.ndim and x.ndim):
        return gc.norm(tensor), True
    if not oracle.is_wide(x.dtype):
        return None, False
    if not axes:
        return (gc.norm(tensor[..., None], 2, -1), True)
    return gc.norm(tensor, "euclidean", axes, keepdims=True), True


def values_in(result: Any) -> Any:
    return result.values if isinstance(result, gc.IndexedSlices) else result


def check_values(case: Case, result: Any, inputs: dict[int, Any], memory: dict[int, Any]) -> None:
    """The result against the oracle."""
    function, tensor = case.function, case.tensors[0] if case.tensors else None
    if function == "clip_by_value":
        bounds = [case.arguments["clip_value_min"], case.arguments["clip_value_max"]]
        plain = [native(inputs[id(b)]) if isinstance(b, Given) else b for b in bounds]
        check_clip_by_value(native(inputs[id(tensor)]), plain, native(values_in(result)))
        return
    if function in {"clip_by_norm", "clip_by_average_norm"}:
        x, axes = native(inputs[id(tensor)]), case.axes
        exact = norms(x, 2, axes)
        own, decides = own_norms(memory[id(tensor)], x, axes)
        if function == "clip_by_average_norm":
            exact, own, decides = exact / max(x.size, 1), own / max(x.size, 1), False
        check_scaled(x, native(values_in(result)), Rule(x, exact, own, case.limit, decides=decides), case, "value")
        return
    if function in {"norm", "normalize"}:
        x = native(inputs[id(tensor)])
        exact, p = norms(x, case.p, case.axes), case.p
        if function == "norm":
            if case.axes is None or len(case.axes) == x.ndim:
                if not case.keepdims:
                    check(type(result) is float, f"a {type(result)} for a norm of everything")
                    check_norms(result, exact.reshape(()), np.float64, p, "norm")
                    return
            elif not case.keepdims:
                exact = exact.squeeze(tuple(case.axes))
            check(type(result) is np.ndarray, f"a {type(result)} for norms")
            check_norms(result, exact, oracle.norm_dtype(x.dtype), p, "norm")
            return
        values, found = result
        check(type(found) is np.ndarray, f"a {type(found)} for norms")
        check_norms(found, exact, oracle.norm_dtype(x.dtype), p, "norm")
        wide = oracle.is_wide(x.dtype)
        rule = Rule(x, exact, found if wide else None, 1.0, decides=False, p=case.p)
        rule.same = (exact == 0) | ((np.asarray(found) == 1) & wide)
        rule.either = np.abs(exact - 1) <= 2e-14
        if p == ("matrix", 2):
            rule.slack = rule.slack + LD(1e-12)
        check_scaled(x, native(values), rule, case, "value")
        return
    check_global(case, result, inputs)


def check_global(case: Case, result: Any, inputs: dict[int, Any]) -> None:
    arrays = [native(inputs[id(t)]) if t is not None else None for t in case.tensors]
    used = getattr(case, "used", None)
    if used is None:
        found = [norms(x, case.p, None).reshape(()) for x in arrays if x is not None]
        exact = norms_of_norms(found, case.p)
    else:
        exact = np.asarray(LD(used))
    norm = result if case.function == "global_norm" else result[1]
    check(type(norm) is float, f"a {type(norm)} for a norm")
    if used is None:
        check_norms(norm, exact, np.float64, case.p, "norm")
    else:
        check(norm == used or (math.isnan(norm) and math.isnan(used)), f"use_norm {used} came back as {norm}")
    if case.function == "global_norm":
        return
    for i, (x, got) in enumerate(zip(arrays, result[0], strict=True)):
        if x is None:
            check(got is None, f"[{i}] is not None")
            continue
        shape = (1,) * x.ndim
        rule = Rule(x, exact.reshape(shape), norm, case.limit, decides=True, p=case.p)
        rule.nan = ~np.isfinite(exact.reshape(shape)) & (case.limit != np.inf)
        rule.same &= ~rule.nan
        if used is not None:  # trusted as it is
            rule.factor, rule.slack = LD(case.limit) / np.maximum(exact, LD(5e-324)).reshape(shape), rule.slack * 0
        check_scaled(x, native(values_in(got)), rule, case, f"[{i}]")


def norms_of_norms(found: list[np.ndarray], p: float) -> np.ndarray:
    """Of arrays laid end to end."""
    if not found:
        return np.asarray(LD(0))
    every = np.stack(found)
    if np.isnan(every).any():
        return np.asarray(LD(np.nan))
    if p == math.inf:
        return every.max()
    top = every.max()
    if top == 0 or np.isinf(top):
        return np.asarray(top)
    return np.asarray(top * ((every / top) ** LD(p)).sum() ** (1 / LD(p)))


# ---- one case


def bits_of(result: Any) -> Any:
    """All properties of a result, to compare."""
    result = values_in(result)
    if isinstance(result, (list, tuple)):
        return [bits_of(entry) for entry in result]
    if isinstance(result, np.ndarray):
        return (result.shape, result.dtype.newbyteorder("=").name, oracle.native(result).tobytes())
    return "nan" if isinstance(result, float) and math.isnan(result) else result


def check_kind(result: Any, tensor: Any, view: np.ndarray) -> None:
    """A new output: its class, dtype, shape and memory order."""
    if tensor.guise == "slices":
        check(type(result) is gc.IndexedSlices, f"a {type(result)} for IndexedSlices")
        result = result.values
    check(type(result) is np.ndarray, f"a {type(result)}")
    check(result.dtype == view.dtype.newbyteorder("=") and result.dtype.isnative, f"dtype {result.dtype}")
    check(result.shape == view.shape, f"shape {result.shape}")
    check(result.flags.writeable and result.flags.aligned, "neither writeable nor aligned")
    if result.size and result.ndim > 1 and tensor.guise not in {"listed", "scalar"} and result.size < MANY:
        like = (
            np.positive(np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), view.shape, [0] * view.ndim))
            if (not any(view.strides))
            else np.positive(_bytes_like(view))
        )
        steps = [step * result.itemsize for step in layouts.steps(like)]
        check(layouts.steps(result) == steps, f"strides {result.strides}, for NumPy {steps}")


def _bytes_like(view: np.ndarray) -> np.ndarray:
    """An array of bytes with the strides of the view."""
    arr = Arr(0, np.dtype(np.int8), view.shape, view.strides, 0)
    low, high = arr.extent()
    return np.ndarray(view.shape, np.int8, bytearray(high - low), -low, view.strides)


def environment(case: Case) -> None:
    gc.set_num_threads(case.r.randrange(1, 6))
    _core.set_isa(case.r.choice(ISA_LEVELS))


def run_case(seed: int, number: int) -> tuple[str, str, str]:
    """Draws a case, does it, checks it. Returns what to count."""
    case = draw(seed, number)
    try:
        return do_case(case)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if isinstance(error, WrongError) else f" ({last.filename}:{last.lineno})"
        raise WrongError(f"{type(error).__name__}: {error}{where}\n{case.text()}") from error


def do_case(case: Case) -> tuple[str, str, str]:  # noqa: C901
    before = [room.copy() for room in case.rooms]
    pristine = before if case.outs is None else [room.copy() for room in before]
    kinds = {t.value.dtype.name for t in case.tensors if t is not None and isinstance(t.value, Arr)}
    dtype = kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "none"
    arguments = case.built(case.rooms)
    function = getattr(gc, case.function)
    expected = min(case.errors.items())[1] if case.errors else None
    environment(case)
    try:
        result = function(**arguments)
    except Exception as error:  # noqa: BLE001
        check(type(error) is expected, f"raised {type(error).__name__}: {error}")
        check("internal error" not in str(error), str(error))
        check(all(map(np.array_equal, case.rooms, before)), f"something was written before {error!r}")
        return case.function, dtype, type(error).__name__
    if expected is not None:
        raise WrongError(f"no {expected.__name__}, but {str(result)[:80]}")

    # Memory: nothing but the outputs has changed.
    clipped = result[0] if case.function in {"clip_by_global_norm", "normalize"} else result
    clipped = clipped if case.function == "clip_by_global_norm" else [clipped]
    if case.outs is not None:
        given = arguments["out"] if case.function == "clip_by_global_norm" else [arguments["out"]]
        check(all(map(lambda a, b: b is None or a is b, clipped, given)), "the result is not `out`")
        for out, entry in zip(case.outs, clipped, strict=True):
            if out is not None:
                out.value.view(before)[...] = np.array(values_in(entry), subok=False)
    changed = [i for i, (room, old) in enumerate(zip(case.rooms, before, strict=True)) if not np.array_equal(room, old)]
    if changed:
        at = np.flatnonzero(case.rooms[changed[0]] != before[changed[0]])
        raise WrongError(f"bytes {at[:5].tolist()} of room {changed[0]}, of no output, have changed")
    before, outs = pristine, case.outs

    # The same with disjoint copies, other threads, another instruction set.
    memory = references(case, before)

    def of(given: Any) -> Any:
        if isinstance(given, (list, tuple)):
            return type(given)(of(entry) for entry in given)
        if not isinstance(given, Given):
            return given
        if id(given) not in memory:
            return given.of(before)
        view = memory[id(given)]
        return GUISES[given.guise](view) if given.guise in {"slices", "listed", "scalar"} else view

    plain = {name: of(given) for name, given in case.arguments.items() if name != "out"}
    environment(case)
    again = function(**plain)
    repeats = getattr(case, "p", 2) != ("matrix", 2)
    if repeats and bits_of(again) != bits_of(result):
        raise WrongError(
            f"{str(result)[:300]} but {str(again)[:300]} of copies (threads, instruction set, layout, overlap)"
        )
    if outs is None and case.function not in {"norm", "global_norm"}:
        for tensor, entry in zip(case.tensors, clipped, strict=True):
            if tensor is None:
                check(entry is None, "something for None")
            else:
                check_kind(entry, tensor, tensor.value.view(before))
    if case.function == "clip_by_global_norm":
        check(type(result) is tuple and type(result[0]) is list, "not a list and a norm")
    with np.errstate(all="ignore"):
        inputs = {id(t): t.value.view(before) for t in case.tensors if t is not None}
        inputs |= {
            id(b): b.value.view(before)
            for b in case.arguments.values()
            if isinstance(b, Given) and isinstance(b.value, Arr)
        }
        check_values(case, result, inputs, memory)
        if case.function in {"global_norm", "clip_by_global_norm"} and sum(map(len, case.rooms)) < LARGEST_BEYOND:
            import fuzz_beyond  # noqa: PLC0415 (it imports this module)

            fuzz_beyond.check_list(case, case.built(before)["t_list"], clips=case.function != "global_norm")
    return case.function, dtype, "in place or out" if outs is not None else "new"


# ---- many cases


def work(seed: int, first: int, stop: int, step: int, shared: Any, slot: int, pipe: Any) -> None:
    """Runs every step-th case, its number in shared memory before it begins."""
    warnings.simplefilter("error")
    counts: Counter[tuple[str, str, str]] = Counter()
    failures: list[tuple[int, str]] = []
    told = time.monotonic()
    for number in range(first, stop, step):
        shared[slot] = number
        try:
            counts[run_case(seed, number)] += 1
        except BaseException as error:  # noqa: BLE001 (PanicException is no Exception)
            if isinstance(error, KeyboardInterrupt):
                return
            text = str(error) if isinstance(error, WrongError) else "".join(traceback.format_exception(error))
            counts["failed", "", ""] += 1
            failures.append((number, text))
        if time.monotonic() > told + 1:
            pipe.send((counts, failures))
            counts, failures, told = Counter(), [], time.monotonic()
    pipe.send((counts, failures))


class Job:
    """One child process and its share of the cases."""

    def __init__(self, seed: int, first: int, stop: int, step: int, shared: Any, slot: int) -> None:
        self.arguments = (seed, stop, step, shared, slot)
        self.shared, self.slot, self.step, self.stop = shared, slot, step, stop
        self.start(first)

    def start(self, first: int) -> None:
        seed, stop, step, shared, slot = self.arguments
        context = mp.get_context("spawn")
        self.pipe, other = context.Pipe(duplex=False)
        shared[slot] = first
        self.process = context.Process(target=work, args=(seed, first, stop, step, shared, slot, other), daemon=True)
        self.process.start()
        other.close()
        self.last, self.since = first, time.monotonic()


def run(seed: int, cases: int, jobs: int, *, start: int = 0, most: int = 20, quiet: bool = False) -> Counter:  # noqa: C901
    """Runs the cases; prints what failed. Returns the counts, less what a killed process had not yet told."""
    shared = mp.get_context("spawn").Array("q", jobs, lock=False)
    stop = start + cases
    running = [Job(seed, start + i, stop, jobs, shared, i) for i in range(jobs)]
    counts: Counter = Counter()
    began = shown = time.monotonic()
    failed = 0

    def tell(number: int, text: str) -> None:
        nonlocal failed
        failed += 1
        print(f"\n# case {number} failed\n{text}", flush=True)

    while running:
        wait([job.pipe for job in running], timeout=1)
        for job in list(running):
            try:
                while job.pipe.poll():
                    found, failures = job.pipe.recv()
                    counts.update(found)
                    for number, text in failures:
                        tell(number, text)
            except EOFError:
                job.process.join()
                number, code = int(shared[job.slot]), job.process.exitcode
                running.remove(job)
                if code:
                    why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                    tell(number, f"killed its process: {why}\n# python tests/fuzz --seed {seed} --case {number}")
                    counts["killed", "", why] += 1
                    if number + job.step < stop:
                        job.start(number + job.step)
                        running.append(job)
                continue
            now = time.monotonic()
            if shared[job.slot] != job.last:
                job.last, job.since = shared[job.slot], now
            elif now > job.since + HANGS_AFTER:
                job.process.kill()
        done, now = sum(counts.values()), time.monotonic()
        if not quiet and (now > shown + 10 or not running):
            shown, rate = now, done / (now - began)
            left = (cases - done) / rate if rate else math.inf
            print(f"{done} of {cases} cases, {rate:.0f}/s, {left:.0f} s left, {failed} failed", flush=True)
        if failed >= most:
            print(f"{failed} failures are enough", flush=True)
            for job in running:
                job.process.kill()
            break
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, help="of all cases; by default a new one, which is printed")
    parser.add_argument("--start", type=int, default=0, help="the number of the first case")
    parser.add_argument("--case", type=int, help="this one alone, in this process")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--most", type=int, default=20, help="failures to stop after")
    parser.add_argument("--counts", action="store_true", help="print counts by function, dtype and outcome")
    given = parser.parse_args()
    if given.seed is None:
        given.seed = random.SystemRandom().randrange(1 << 32)
        print(f"seed {given.seed}", flush=True)
    if not EXTENDED:
        print("longdouble has no more than 63 bits here: there is no oracle", file=sys.stderr)
        return 2
    if given.case is not None:
        warnings.simplefilter("error")
        print(draw(given.seed, given.case).text(), flush=True)
        print(run_case(given.seed, given.case))
        return 0
    counts = run(given.seed, given.cases, given.jobs, start=given.start, most=given.most)
    if given.counts:
        for keys in ((0,), (0, 2), (0, 1)):
            table: Counter = Counter()
            for what, count in counts.items():
                table[tuple(what[k] for k in keys)] += count
            for what, count in sorted(table.items()):
                print(f"{count:9d}  {'  '.join(what)}")
    return int(any(what[0] in {"failed", "killed"} for what in counts) or sum(counts.values()) < given.cases)
