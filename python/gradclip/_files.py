"""The tensors of files, in blocks: ``.npy``, ``.npz`` and ``.safetensors``, never a whole tensor in memory."""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack
    from pathlib import Path

#: A part of a tensor, of one axis.
Block: TypeAlias = npt.NDArray[Any]

#: Bytes of a block: it stays in a cache while it is looked at several times.
BLOCK_BYTES = 1 << 20

#: Bytes of the header of an array, the limit of ``numpy.load``: longer ones may crash Python's parser.
_HEADER_BYTES = 10_000

#: Of each version of the format of arrays: the bytes that hold the length of the header, and its encoding.
_VERSIONS = {(1, 0): (2, "latin1"), (2, 0): (4, "latin1"), (3, 0): (4, "utf-8")}

_SAFETENSORS = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "C64": "<c8",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "<u1",
    "BOOL": "?",
}


class FileError(Exception):
    """A file cannot be read, and why."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file. Its memory is read when its blocks are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    #: Gives the elements in the order of the file; None if gradclip lacks the dtype.
    blocks: Callable[[], Iterator[Block]] | None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def tensors_of(path: Path, opened: ExitStack, complain: Callable[[str], None]) -> list[StoredTensor]:
    """List the tensors of a file, which stays open until ``opened`` is closed; complain of single ones."""
    readers = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise FileError(f"found suffix {path.suffix!r}; allowed: {', '.join(readers)}")
    try:
        return reader(path, opened, complain)
    except Exception as error:  # a malformed file makes NumPy and the decompressors raise errors of many classes
        raise FileError(_reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).partition("\n")[0] or type(error).__name__


def _is_taken(dtype: np.dtype[Any]) -> bool:
    """Whether norms are defined for a dtype of NumPy's own."""
    return (dtype.kind in "biuf" and dtype.itemsize <= 8) or dtype.str[1:] in {"c8", "c16"}  # noqa: PLR2004


def _cut(flat: Block) -> Iterator[Block]:
    step = max(1, BLOCK_BYTES // max(1, flat.itemsize))
    for first in range(0, len(flat), step):
        yield flat[first : first + step]


def _mapped(path: Path, start: int, end: int, dtype: np.dtype[Any], size: int) -> Callable[[], Iterator[Block]]:
    """Map a part of the bytes from ``start`` to ``end`` of a file while its blocks are read."""
    if start + size * dtype.itemsize > min(end, path.stat().st_size):
        raise ValueError("the file is shorter than its header says")

    def blocks() -> Iterator[Block]:
        if size:
            yield from _cut(np.memmap(path, dtype, "r", start, (size,)))

    return blocks


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
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
    shape, _, dtype = np.lib.format.read_array_header_2_0(header, max_header_size=len(text))
    # For NumPy, True is a length.
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"found shape {shape} in the header; allowed: integers of at least 0")
    return shape, dtype


def _npy(path: Path, _opened: ExitStack, _complain: Callable[[str], None]) -> list[StoredTensor]:
    with path.open("rb") as file:
        shape, dtype = _npy_header(file)
        start = file.tell()
    blocks = _mapped(path, start, path.stat().st_size, dtype, math.prod(shape)) if _is_taken(dtype) else None
    return [StoredTensor(path.stem, str(dtype), shape, blocks)]


def _npz(path: Path, opened: ExitStack, complain: Callable[[str], None]) -> list[StoredTensor]:
    found = []
    archive = opened.enter_context(zipfile.ZipFile(path))
    for info in archive.infolist():
        if info.filename.endswith(".npy"):
            try:
                found.append(_member(path, archive, info))
            except Exception as error:  # noqa: BLE001 (malformed, as above)
                complain(f"{info.filename}: {_reason(error)}")
    return found


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> StoredTensor:
    with archive.open(info) as member:
        shape, dtype = _npy_header(member)
        header_bytes = member.tell()
    size = math.prod(shape)
    blocks: Callable[[], Iterator[Block]] | None = None
    if _is_taken(dtype) and info.compress_type == zipfile.ZIP_STORED:
        first = _data_offset(path, info)
        blocks = _mapped(path, first + header_bytes, first + info.file_size, dtype, size)
    elif _is_taken(dtype):
        blocks = _streamed(archive, info, header_bytes, dtype, size)
    return StoredTensor(info.filename.removesuffix(".npy"), str(dtype), shape, blocks)


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Find where a member's bytes begin: behind its local header, whose name and extra field have their own lengths."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(30)
    return info.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")


def _streamed(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, start: int, dtype: np.dtype[Any], size: int
) -> Callable[[], Iterator[Block]]:
    """Decompress the bytes of a member from ``start`` on, block by block."""
    name = info.filename

    def blocks() -> Iterator[Block]:
        with archive.open(info) as member:
            member.read(start)
            left = size * dtype.itemsize
            while left:
                try:
                    data = member.read(min(left, BLOCK_BYTES // dtype.itemsize * dtype.itemsize))
                except Exception as error:  # as above
                    raise FileError(f"{name}: {_reason(error)}") from error
                if not data or len(data) % dtype.itemsize:
                    raise FileError(f"{name}: the file is shorter than its header says")
                left -= len(data)
                yield np.frombuffer(data, dtype)

    return blocks


def _safetensors(path: Path, opened: ExitStack, _complain: Callable[[str], None]) -> list[StoredTensor]:
    try:
        import safetensors  # noqa: PLC0415 (needed for such files alone)
    except ModuleNotFoundError as error:
        raise FileError("needs the package safetensors; install it with: pip install safetensors") from error
    try:
        file = opened.enter_context(safetensors.safe_open(path, framework="numpy"))
        return [_safetensor(file, name) for name in file.offset_keys()]
    except safetensors.SafetensorError as error:
        raise ValueError(error) from error


def _safetensor(file: Any, name: str) -> StoredTensor:
    tensor = file.get_slice(name)
    code, shape = str(tensor.get_dtype()), tuple(tensor.get_shape())
    dtype = _bfloat16() if code == "BF16" else np.dtype(_SAFETENSORS[code]) if code in _SAFETENSORS else None
    if dtype is None:
        return StoredTensor(name, code, shape, None)

    def blocks() -> Iterator[Block]:
        """Copy one block after the other from the mapped file."""
        if not shape:
            yield file.get_tensor(name).reshape(-1)
            return
        for box in boxes(shape, max(1, BLOCK_BYTES // dtype.itemsize)):
            yield tensor[box].reshape(-1)

    return StoredTensor(name, str(dtype), shape, blocks)


def boxes(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """Cut an array of one axis or more into slices of its first axes, in order, of at most so many elements each."""
    axis = 0
    while axis < len(shape) - 1 and math.prod(shape[axis + 1 :]) > most:
        axis += 1
    step = max(1, most // max(1, math.prod(shape[axis + 1 :])))
    for outer in np.ndindex(shape[:axis]) if math.prod(shape) else ():
        for first in range(0, shape[axis], step):
            yield (*(slice(i, i + 1) for i in outer), slice(first, min(first + step, shape[axis])))


def _bfloat16() -> np.dtype[Any] | None:
    try:
        import ml_dtypes  # noqa: PLC0415 (needed for such files alone)
    except ModuleNotFoundError:
        return None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found
