"""The inputs of the rows: lists of arrays, made when needed, and copies of them for libraries that write."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Shape = tuple[int, ...]

#: Small enough for float16: in the sets here, a sum of squares stays below 65504.
DEVIATION = 0.01
_POOL = (np.random.default_rng(0).standard_normal(1_000_003) * DEVIATION).astype(np.float32)
#: Elements that are processed at a time.
BLOCK = 1 << 19


def dtype_of(name: str) -> np.dtype[Any]:
    """Return a dtype by its name, bfloat16 included."""
    if name == "bfloat16":
        import ml_dtypes  # noqa: PLC0415 (not there in a quick run)

        name = ml_dtypes.bfloat16
    found: np.dtype[Any] = np.dtype(name)
    return found


def filled(shape: Shape, dtype: str = "float32") -> Array:
    """Make an array of numbers that look normally distributed, at the speed of a copy."""
    kind = dtype_of(dtype)
    pool = (_POOL + 1j * _POOL[::-1] if kind.kind == "c" else _POOL).astype(kind)
    array = np.empty(math.prod(shape), kind)
    for start in range(0, len(array), len(pool)):
        part = array[start : start + len(pool)]
        part[:] = pool[: len(part)]
    return array.reshape(shape)


def blocks(array: Array, most: int | None = None) -> Iterator[tuple[slice, Array]]:
    """Go through the elements in order, in blocks, or with `most` through about so many, all over the array."""
    flat = array.reshape(-1)
    starts = range(0, len(flat), BLOCK)
    if most is not None and len(flat) > most:
        starts = range(0, len(flat), len(flat) * BLOCK // most)
    for start in starts:
        where = slice(start, start + BLOCK)
        yield where, flat[where]


class Data:
    """The inputs of some rows, and the copies and buffers of each library."""

    def __init__(self, build: Callable[[], list[Array]]) -> None:
        """Make the inputs; `build` gives the same ones whenever it is called."""
        self.build = build
        self.inputs = build()
        self._norm: float | None = None
        self._held: dict[str, Any] = {}
        self._owned: dict[str, list[Array]] = {}
        #: Verdicts on results that were compared already.
        self.checked: dict[tuple[Any, ...], tuple[bool, str]] = {}

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of all arrays."""
        return self.inputs[0].dtype

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(array.nbytes for array in self.inputs)

    @property
    def norm(self) -> float:
        """The Euclidean norm of all elements, from float64 sums."""
        if self._norm is None:
            squares = []
            for array in self.inputs:
                for _, block in blocks(array):
                    is_complex = block.dtype.kind == "c"
                    parts = np.ascontiguousarray(block).view(block.real.dtype) if is_complex else block
                    # NumPy sums in pairs, more exactly than the BLAS.
                    squares.append(float(np.sum(np.square(parts.astype(np.float64)))))
            self._norm = math.sqrt(math.fsum(squares))
        return self._norm

    def own(self, owner: str) -> list[Array]:
        """Return copies that `owner` may write to, of the same layout."""
        return self._owned.setdefault(f"own {owner}", []) or self._fill(f"own {owner}", self.build)

    def kept(self, owner: str) -> list[Array]:
        """Return buffers that `owner` puts results into, already mapped."""
        return self._owned.setdefault(f"kept {owner}", []) or self._fill(
            f"kept {owner}", lambda: [np.full(array.shape, 7, array.dtype.newbyteorder("=")) for array in self.inputs]
        )

    def _fill(self, key: str, make: Callable[[], list[Array]]) -> list[Array]:
        self._owned[key] = make()
        return self._owned[key]

    def held(self, what: str, make: Callable[[Sequence[Array]], Any]) -> Any:
        """Return objects made of the inputs once, for all rows: the tensors of a library, or its compiled function."""
        if what not in self._held:
            self._held[what] = make(self.inputs)
        return self._held[what]

    def restore(self, owner: str) -> None:
        """Undo what was written to the copies of `owner`."""
        for own, original in zip(self.own(owner), self.inputs, strict=True):
            own[...] = original

    def release(self) -> None:
        """Forget the copies and buffers, which another row may not need."""
        self._owned.clear()


def is_strided(data: Data) -> bool:
    """Return whether the first input is not all of its memory."""
    return not data.inputs[0].flags.c_contiguous


def all_columns(array: Array) -> Array:
    """Return the matrix that an array is every other column of, or the array."""
    if array.flags.c_contiguous or array.base is None:
        return array
    return array.base.reshape(array.shape[0], -1)
