"""One array in every layout the contract names. Each function returns equal values in the same shape and dtype."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator

import numpy as np

Layout = Callable[[np.ndarray], np.ndarray]


class Subclass(np.ndarray):
    """A subclass that adds nothing."""


def _fill(view: np.ndarray, x: np.ndarray) -> np.ndarray:
    view[...] = x
    return view


def _backwards(x: np.ndarray) -> np.ndarray:
    return x[(..., *(slice(None, None, -1) for _ in x.shape))]


def contiguous(x: np.ndarray) -> np.ndarray:
    return np.array(x, order="C")


def fortran(x: np.ndarray) -> np.ndarray:
    return np.array(x, order="F")


def backwards(x: np.ndarray) -> np.ndarray:
    return _backwards(np.array(_backwards(x), order="C"))


def every_second(x: np.ndarray) -> np.ndarray:
    larger = np.zeros([2 * n + 1 for n in x.shape], dtype=x.dtype)
    return _fill(larger[(..., *(slice(1, None, 2) for _ in x.shape))], x)


def every_second_column(x: np.ndarray) -> np.ndarray:
    larger = np.zeros((*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else (), dtype=x.dtype)
    return _fill(larger[..., ::2] if x.ndim else larger, x)


def transposed(x: np.ndarray) -> np.ndarray:
    """Axes rotated by one: for three dimensions neither C nor Fortran order."""
    order = np.roll(np.arange(x.ndim), 1)
    return np.array(x.transpose(order), order="C").transpose(np.argsort(order))


def unaligned(x: np.ndarray) -> np.ndarray:
    raw = np.zeros(x.nbytes + 1, dtype=np.uint8)
    return _fill(raw[1:].view(x.dtype).reshape(x.shape), x)


def packed_field(x: np.ndarray) -> np.ndarray:
    """A field of a packed structured array: the stride is no multiple of the item size."""
    return _fill(np.zeros(x.shape, dtype=[("tag", "u1"), ("x", x.dtype), ("more", "u2")])["x"], x)


def swapped_bytes(x: np.ndarray) -> np.ndarray:
    """Big-endian on a little-endian machine."""
    return x.astype(x.dtype.newbyteorder("S"))


def read_only(x: np.ndarray) -> np.ndarray:
    copy = np.array(x, order="C")
    copy.flags.writeable = False
    return copy


def memmap(x: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryFile() as file:
        return _fill(np.memmap(file, dtype=x.dtype, mode="w+", shape=x.shape), x)


def subclass(x: np.ndarray) -> np.ndarray:
    return np.array(x, order="C").view(Subclass)


def stride_0(x: np.ndarray) -> np.ndarray:
    """The first row, broadcast. Only for an array whose rows are all equal."""
    return np.broadcast_to(np.array(x[:1], order="C"), x.shape)


WRITEABLE: dict[str, Layout] = {
    f.__name__: f
    for f in (
        contiguous,
        fortran,
        backwards,
        every_second,
        every_second_column,
        transposed,
        unaligned,
        packed_field,
        swapped_bytes,
        memmap,
        subclass,
    )
}
ALL: dict[str, Layout] = {**WRITEABLE, "read_only": read_only, "stride_0": stride_0}

LISTS: dict[str, Callable[[np.ndarray], list[np.ndarray]]] = {
    "one array": lambda x: [x[:20]] * 30,
    "steps": lambda x: [x[i::5][:19] for i in range(40)],
    "columns": lambda x: list(x.reshape(100, 40).T),
    "rows": lambda x: list(x.reshape(100, 40)),
    "windows": lambda x: [x[3 * i :][:9] for i in range(50)],
    "equally long": lambda x: [x[9 * i :][:9].copy() for i in range(50)],
}
"""Lists as users make them, of an array of 4,000 elements."""

SAME_BITS = ["unaligned", "swapped_bytes", "read_only", "memmap", "subclass"]
"""Layouts that differ from a contiguous array in alignment, byte order and type alone."""
SAME_ORDER = ["every_second", "every_second_column", "packed_field"]
"""Layouts with gaps between the elements, which lie in memory in the same order."""


def steps(a: np.ndarray) -> list[int]:
    """The strides of the axes along which one moves: what is left of the memory order of equal shapes."""
    return [step for step, n in zip(a.strides, a.shape, strict=True) if n > 1]


def fits(name: str, x: np.ndarray) -> bool:
    """Whether the layout can hold these values: rows for stride 0 are equal, an empty file cannot be mapped."""
    if name == "stride_0":
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return x.ndim > 0 and x.shape[0] > 0 and bool((x == x[:1]).all())
    return name != "memmap" or x.size > 0


def layouts(x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """(name, array with the values of x) for every layout that can hold them."""
    for name, layout in ALL.items():
        if fits(name, x):
            yield name, layout(x)
