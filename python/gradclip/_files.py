"""The tensors of files, in blocks: ``.npy``, ``.npz`` and ``.safetensors``, never a whole tensor in memory."""

from __future__ import annotations

import io
import math
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from gradclip._text import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack
    from pathlib import Path

#: A part of a tensor, of one axis.
Block: TypeAlias = npt.NDArray[Any]

#: The order of elements: "C" if the index of the last axis changes fastest, "F" (Fortran) if that of the first does.
Order: TypeAlias = Literal["C", "F"]

#: Bytes of a block: it stays in a cache while it is read several times.
BLOCK_BYTES = 1 << 20

#: Bytes of the header of an array, the limit of ``numpy.load``: longer ones may crash Python's parser.
_HEADER_BYTES = 10_000

#: For each version of the .npy format: the bytes that the length of the header takes, and the encoding of the header.
_VERSIONS = {(1, 0): (2, "latin1"), (2, 0): (4, "latin1"), (3, 0): (4, "utf-8")}

#: The dtypes of safetensors, by their names there.
_SAFETENSORS = {f"{kind.upper()}{8 * size}": f"<{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)}
_SAFETENSORS |= {"F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "BOOL": "?"}


class FileError(Exception):
    """A file cannot be read, and why."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file. Its elements are read with its blocks."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    #: Yields the elements in either order; None if gradclip lacks the dtype.
    blocks: Callable[[Order], Iterator[Block]] | None
    #: The order of the elements in the file.
    order: Order = "C"
    #: Whether the other order takes a copy in a temporary file.
    is_in_archive: bool = False

    @property
    def is_integer(self) -> bool:
        """Whether the elements are integers or bools."""
        return self.dtype.startswith(("int", "uint", "bool", ">i", ">u"))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class _Layout:
    """What the header of an array tells."""

    shape: tuple[int, ...]
    order: Order
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def tensors_of(path: Path, opened: ExitStack, complain: Callable[[str], None]) -> list[StoredTensor]:
    """List the tensors of a file, which stays open until ``opened`` is closed; complain of single ones."""
    readers = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        if path.is_dir():
            raise FileError("found a directory; allowed: a file")
        if not path.exists():
            raise FileError("No such file or directory")
        raise FileError(f"found suffix {path.suffix!r}; allowed: {', '.join(readers)}")
    # A device such as /dev/zero has no end, and a pipe can be read only once.
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FileError("found a device, a pipe or a socket; allowed: a regular file")
    try:
        return reader(path, opened, complain)
    except Exception as error:  # a malformed file makes NumPy and the decompressors raise errors of many classes
        raise FileError(reason(error)) from error


def reason(error: Exception) -> str:
    """Return the text of an error on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).partition("\n")[0] or type(error).__name__


def _is_taken(dtype: np.dtype[Any]) -> bool:
    """Whether norms are defined for a dtype of NumPy's own."""
    return (dtype.kind in "biuf" and dtype.itemsize <= 8) or dtype.str[1:] in {"c8", "c16"}  # noqa: PLR2004


def _cut(tensor: Any, shape: tuple[int, ...], itemsize: int, order: Order) -> Iterator[Block]:
    """Yield the blocks of an array or of a tensor of a safetensors file."""
    for box in boxes(shape, max(1, BLOCK_BYTES // itemsize), order):
        yield tensor[box].reshape(-1, order=order)


def _map(file: Path | IO[bytes], start: int, layout: _Layout, order: Order) -> Iterator[Block]:
    """Map a part of a file while its blocks are read."""
    if layout.nbytes:
        array = np.memmap(file, layout.dtype, "r", start, layout.shape, layout.order)
        yield from _cut(array, layout.shape, layout.dtype.itemsize, order)


def _mapped(path: Path, start: int, layout: _Layout) -> Callable[[Order], Iterator[Block]]:
    """Read an array from the byte ``start`` of a file on."""
    if start + layout.nbytes > path.stat().st_size:
        raise ValueError("the file is shorter than its header says")
    return lambda order: _map(path, start, layout, order)


def _npy_header(file: IO[bytes]) -> _Layout:
    version = np.lib.format.read_magic(file)
    if version not in _VERSIONS:
        raise ValueError(f"version {version} of the format is not supported")
    width, encoding = _VERSIONS[version]
    length = int.from_bytes(file.read(width), "little")
    if length > _HEADER_BYTES:
        raise ValueError(f"found a header of {length} bytes; allowed: at most {_HEADER_BYTES} bytes")
    data = file.read(length)
    if len(data) < length:
        raise ValueError("the file ends in its header")
    # NumPy has no public function for version 3. As escapes, characters beyond ASCII mean the same in all versions,
    # since they stand in names of fields.
    text = data.decode(encoding).encode("ascii", "backslashreplace")
    header = io.BytesIO(len(text).to_bytes(4, "little") + text)
    shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(header, max_header_size=len(text))
    # For NumPy, True is a length, and so is an integer that no array has, of more digits than Python writes.
    if any(type(length) is not int or not 0 <= length <= sys.maxsize for length in shape):
        raise ValueError(f"found shape {text_of(shape)} in the header; allowed: integers from 0 to {sys.maxsize}")
    _check_axes(shape)
    return _Layout(shape, "F" if is_fortran else "C", dtype)


def _check_axes(shape: tuple[int, ...]) -> None:
    """Let NumPy refuse more axes than it supports."""
    np.empty((1,) * len(shape))


def _npy(path: Path, _opened: ExitStack, _complain: Callable[[str], None]) -> list[StoredTensor]:
    with path.open("rb") as file:
        layout = _npy_header(file)
        start = file.tell()
    blocks = _mapped(path, start, layout) if _is_taken(layout.dtype) else None
    return [StoredTensor(path.stem, str(layout.dtype), layout.shape, blocks, layout.order)]


def _npz(path: Path, opened: ExitStack, complain: Callable[[str], None]) -> list[StoredTensor]:
    found = []
    archive = opened.enter_context(zipfile.ZipFile(path))
    members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    if not members:
        raise ValueError("found no array in the archive; allowed: at least one member whose name ends in .npy")
    for info in members:
        try:
            found.append(_member(archive, info))
        except Exception as error:  # noqa: BLE001, PERF203 (malformed, as above)
            complain(f"{info.filename}: {reason(error)}")
    return found


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> StoredTensor:
    with archive.open(info) as member:
        layout = _npy_header(member)
        start = member.tell()
    blocks = _streamed(archive, info, start, layout) if _is_taken(layout.dtype) else None
    name = info.filename.removesuffix(".npy")
    return StoredTensor(name, str(layout.dtype), layout.shape, blocks, layout.order, is_in_archive=True)


def _streamed(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, start: int, layout: _Layout
) -> Callable[[Order], Iterator[Block]]:
    """Read the bytes of a member from ``start`` on, block by block. The archive checks its sum at the end."""
    name, dtype = info.filename, layout.dtype

    def read(member: IO[bytes], most: int) -> bytes:
        try:
            return member.read(most)
        except Exception as error:  # as above
            raise FileError(f"{name}: {reason(error)}") from error

    def blocks() -> Iterator[Block]:
        with archive.open(info) as member:
            member.read(start)
            left = layout.nbytes
            while left:
                data = read(member, min(left, BLOCK_BYTES // dtype.itemsize * dtype.itemsize))
                if not data or len(data) % dtype.itemsize:
                    raise FileError(f"{name}: the file is shorter than its header says")
                left -= len(data)
                yield np.frombuffer(data, dtype)
            while read(member, BLOCK_BYTES):
                pass

    return lambda order: blocks() if order == layout.order else _reordered(blocks(), layout, order)


def _reordered(blocks: Iterator[Block], layout: _Layout, order: Order) -> Iterator[Block]:
    """Yield elements in another order than they come in, by way of a file, because memory may not hold them."""
    with tempfile.TemporaryFile() as file:
        for block in blocks:
            file.write(block.data)
        file.flush()
        yield from _map(file, 0, layout, order)


def _safetensors(path: Path, opened: ExitStack, _complain: Callable[[str], None]) -> list[StoredTensor]:
    try:
        import safetensors  # noqa: PLC0415 (needed for such files alone)
    except ModuleNotFoundError as error:
        raise FileError("needs the package safetensors; install it with: pip install safetensors") from error
    try:
        file = opened.enter_context(safetensors.safe_open(path, framework="numpy"))
        found = [_safetensor(file, name) for name in file.offset_keys()]
    except safetensors.SafetensorError as error:
        raise ValueError(error) from error
    if not found:
        raise ValueError("found no tensor in the file; allowed: at least one")
    return found


def _safetensor(file: Any, name: str) -> StoredTensor:
    tensor = file.get_slice(name)
    code, shape = str(tensor.get_dtype()), tuple(tensor.get_shape())
    dtype = _bfloat16() if code == "BF16" else np.dtype(_SAFETENSORS[code]) if code in _SAFETENSORS else None
    if dtype is None:
        return StoredTensor(name, code, shape, None)
    _check_axes(shape)
    itemsize = dtype.itemsize
    return StoredTensor(name, str(dtype), shape, lambda order: _cut(tensor, shape, itemsize, order))


def boxes(shape: tuple[int, ...], most: int, order: Order = "C") -> Iterator[tuple[slice, ...]]:
    """Cut an array into boxes of at most so many elements, in the order of their elements."""
    if order == "F":
        yield from (box[::-1] for box in boxes(shape[::-1], most))
        return
    if not shape:
        yield ()
        return
    axis = 0
    while axis < len(shape) - 1 and math.prod(shape[axis + 1 :]) > most:
        axis += 1
    inner = shape[axis + 1 :]
    step = max(1, most // max(1, math.prod(inner)))
    for outer in np.ndindex(shape[:axis]) if math.prod(shape) else ():
        for first in range(0, shape[axis], step):
            last = min(first + step, shape[axis])
            yield (*(slice(i, i + 1) for i in outer), slice(first, last), *(slice(0, length) for length in inner))


def _bfloat16() -> np.dtype[Any] | None:
    try:
        import ml_dtypes  # noqa: PLC0415 (needed for such files alone)
    except ModuleNotFoundError:
        return None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found
