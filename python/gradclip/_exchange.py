"""Norms of data that several processes hold parts of: what the processes tell each other.

Each process (rank) takes part in each collective of a call, whatever its own tensors and errors are. It sends one
message of 1 KiB, float64 numbers:

========  ==================================================================================
numbers   meaning
========  ==================================================================================
0         1: the sum over ranks tells how many took part
1, 2      a checksum of the layout, the function and its arguments, and the square of the checksum
3 to 8    1 for an error of the class in `_CLASSES`
9 to 14   arguments that must agree, see `_AGREED`
15        the number of norms: of tensors, of slices, or 1
16        the number of elements
17        a random number: it shows whether a function adds up or averages
18, ...   the sums of powers, or the text of the error
========  ==================================================================================

Sums of powers that are too many for the message follow in a second one, once the ranks know that
they agree on how many.
Processes merge the messages of all ranks in the order of ranks, so each of them gets the same bits.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import os
import re
import sys
import zlib
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from gradclip import _core
from gradclip._errors import Errors
from gradclip._nonfinite import NonFiniteError
from gradclip._text import describe, text_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from gradclip._types import Array

#: Changes with the layout of messages and of sums of powers.
VERSION = 1
#: Numbers of the first message: 1 KiB.
_LENGTH = 128
_ERRORS = slice(3, 9)
_ELEMENTS = 16
_NONCE = 17
_DATA = 18
#: The most numbers that the first message has room for.
_MOST_DATA = _LENGTH - _DATA
_NO_ERRORS = (0.0,) * 6
_ARGUMENTS = slice(9, 15)
_NORMS = 15
_AGREED = ("comm", "ord", "clip_norm", "use_norm", "replicated", "the other options")
#: What stands for ``use_norm=None`` in a message.
NO_NORM = -1.0

#: The types of errors that reach other ranks. The last one stands for all others. The text of an error of another class
#: begins with the name of the class.
_CLASSES: tuple[type[Exception], ...] = (
    TypeError,
    np.exceptions.AxisError,
    NonFiniteError,
    ValueError,
    MemoryError,
    RuntimeError,
)
_OTHERS = len(_CLASSES) - 1


@lru_cache(maxsize=256)
def stamp(*arguments: Any) -> float:
    """Return a number below 2**19 for arguments: sums of its square over 2**14 ranks are exact in float64."""
    return float(zlib.crc32(repr(arguments).encode()) & 0x7FFFF)


@lru_cache(maxsize=256)
def _blank(function: str, numbers: tuple[float, float, float], kind: Any, options: tuple[Any, ...]) -> Array:
    """Return a message without sums, to be copied, with the arguments that must agree on all ranks."""
    agreed = (stamp(function), *numbers, stamp(kind), stamp(options))
    mark = stamp(VERSION, *agreed)
    return _message(mark, mark**2, *_NO_ERRORS, *agreed)


def _message(*numbers: float) -> Array:
    """Return a message of one rank that begins with these numbers."""
    message = np.zeros(_LENGTH)
    message[: 1 + len(numbers)] = (1.0, *numbers)
    message.flags.writeable = False
    return message


#: The message of a rank that cannot tell its arguments.
_UNKNOWN = _message()


class Share:
    """One call of a function on all ranks. Without a communicator, there is this process alone."""

    def __init__(self, function: str, name: Any, comm: Any) -> None:
        self.function = function
        self.prefix = Errors(function, name).prefix
        self.groups: list[Group] = []
        #: The error for an entry of ``comm`` that is no communicator. The ranks of the other entries wait for this one.
        self.wrong: Exception | None = None
        if comm is not None:
            self.groups, self.wrong = _groups_of(self.prefix, comm)
        self.order = 2.0
        self.blank = _UNKNOWN
        #: The names of the options that must agree.
        self.options: tuple[str, ...] = ()
        self.is_done = False
        #: The processes whose sums have been merged so far.
        self.ranks = 1
        #: The largest number of copies that ``replicated`` tells.
        self.most_copies = 1
        #: The groups so far, with the sums of their ranks.
        self.merged: list[tuple[Group, Array]] = []

    def agree(
        self, order: float, clip_norm: float = 0.0, use_norm: float = 0.0, replicated: Any = None, **options: Any
    ) -> None:
        """Say what must be the same on all ranks."""
        if self.wrong is not None:
            raise self.wrong
        if order == math.inf and not all(group.gathers for group in self.groups):
            raise ValueError(f"{self.prefix}: ord: found inf; allowed with a function as comm: a finite order")
        if not self.groups and replicated is not None:
            raise ValueError(f"{self.prefix}: replicated: found {describe(replicated)}; allowed without comm: None")
        self.order = order
        self.options = tuple(options)
        kind = () if replicated is None else _kind_of(replicated)
        # The sum with 0.0 makes 0.0 of -0.0, which is equal, but has another stamp. One NaN is found in the cache.
        numbers = (order, clip_norm + 0.0, math.nan if math.isnan(use_norm) else use_norm + 0.0)
        self.blank = _blank(self.function, numbers, kind, tuple(options.values()))

    @property
    def all_ranks(self) -> float:
        """The number of ranks; infinity if a function does not tell."""
        return math.prod(group.size() for group in self.groups)

    @cached_property
    def is_first(self) -> bool:
        """Whether this is rank 0 of each group, which counts what all ranks hold."""
        return all(group.rank() == 0 for group in self.groups)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Raise an error on all ranks, unless they have merged their sums. Until then, they wait for this rank."""
        if isinstance(error, Exception) and not self.is_done:
            self.merge(np.zeros(0), 0.0, error)

    def merge(self, data: Array, elements: float, error: Exception | None = None) -> tuple[Array, int]:
        """Merge sums of powers, and numbers of elements, of all ranks."""
        self.is_done = True
        shape, data = data.shape, data.reshape(-1)
        norms = math.prod(shape[:-1])
        failed: _Failure | None = None if error is None else _Failure(error)
        # A rank that has no memory for the second messages must tell the others before they send theirs.
        buffers: list[Any] = [None] * len(self.groups)
        if failed is None and data.size > _MOST_DATA:
            try:
                buffers = [group.buffer(data.size) for group in self.groups]
            except MemoryError as full:
                failed, error = _Failure(full), full
        for group, buffer in zip(self.groups, buffers, strict=True):
            try:
                if failed is None:
                    data, elements, failed = self._merge(group, data, norms, elements, buffer)
                else:
                    _, _, failed = self._merge(group, np.zeros(0), 0, 0.0, buffer, failed)
            except Exception as broken:  # noqa: BLE001, PERF203 (the ranks of the other groups wait)
                failed, error = failed or _Failure(broken), error or broken
        failed = failed or self._wrong_counts(elements)
        if failed is not None:
            if error is not None and not failed.is_placed:
                raise error
            raise failed.error(self.prefix) from error
        return data.reshape(shape), round(elements)

    def _merge(  # noqa: PLR0917
        self, group: Group, data: Array, norms: int, elements: float, buffer: Any, failed: _Failure | None = None
    ) -> tuple[Array, float, _Failure | None]:
        """Merge what the ranks of one group have. ``buffer`` is for the second messages of all ranks."""
        size = data.size
        message = self.blank.copy()
        message[_NORMS], message[_ELEMENTS] = norms, elements
        own = message[:_ELEMENTS].tobytes()
        is_short = size <= _MOST_DATA
        if failed is not None:
            failed.write(message)
        elif is_short:
            message[_DATA : _DATA + size] = data
        found = group.gather(message, group.buffer(_LENGTH))
        is_same = failed is None and group.gathers and found[:, :_ELEMENTS].tobytes() == own * len(found)
        if not is_same and (failure := group.disagreement(found, message, self.options)) is not None:
            return data, elements, failure
        sums = found[:, _DATA : _DATA + size] if is_short else group.gather(np.ascontiguousarray(data), buffer)
        self.merged.append((group, sums))
        self.ranks *= len(found) if group.gathers else int(found[0, 0])
        return _core.merge_power_sums(sums, self.order), math.fsum(found[:, _ELEMENTS].tolist()), None

    def _wrong_counts(self, elements: float) -> _Failure | None:
        """Return the error for counts that the ranks of all groups cannot have. A function tells their number late."""
        if self.most_copies > self.ranks:
            allowed = f"at most {self.ranks}, the number of ranks"
            return _Failure(ValueError(), f"replicated: found {text_of(self.most_copies)}; allowed: {allowed}")
        # The elements of copies are rounded fractions, and their sum is whole.
        if float(elements).is_integer() or _are_whole(elements, 1e-9):
            return None
        if self.most_copies > 1 or all(group.gathers for group in self.groups):
            allowed = "for each tensor, the number of ranks that hold a copy"
            return _Failure(
                ValueError(), f"replicated: found copies that do not add up to whole tensors; allowed: {allowed}"
            )
        return _Failure(ValueError(), f"comm: {_NO_SUM}")

    def place_of_nonfinite(self) -> tuple[str | None, bool]:
        """Return the words for the first rank with a sum that is infinite or NaN, and whether it is this one."""
        for group, sums in self.merged:
            is_bad = ~np.isfinite(sums).all(axis=1)
            if is_bad.any():
                rank = int(is_bad.argmax())
                return (group.place(rank), rank == group.rank()) if group.gathers else (None, False)
        return None, False


#: The end of a message that names the rank of its error.
PLACED = re.compile(r" \(on rank \d+[^)]*\)$")


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception as unprintable:  # noqa: BLE001 (the other ranks wait)
        return f"<no text: {type(unprintable).__name__}>"


def _is_shared(kind: type) -> bool:
    """Whether all ranks raise errors of this class: it is gradclip's or Python's, and made of a text."""
    if kind in _CLASSES:
        return True
    if kind is Exception or not issubclass(kind, Exception) or vars(builtins).get(kind.__name__) is not kind:
        return False
    try:
        kind("")
    except TypeError:  # UnicodeDecodeError takes more than a text
        return False
    return True


class _Failure:
    """An error on one of the ranks."""

    def __init__(self, error: Exception, text: str | None = None) -> None:
        own = (i for i, kind in enumerate(_CLASSES) if isinstance(error, kind))
        self.kind = next(own, _OTHERS)
        names = [type(error).__name__]
        shared = next(filter(_is_shared, type(error).__mro__), type(error))
        if type(error) in _CLASSES:
            names = []
        elif shared is not type(error) and shared not in _CLASSES:
            names.insert(0, shared.__name__)
        self.text = ": ".join([*names, text or _text_of(error)])

    @property
    def is_placed(self) -> bool:
        """Whether the text names a rank."""
        return PLACED.search(self.text) is not None

    def write(self, message: Array) -> None:
        message[_ERRORS.start + self.kind] = 1.0
        text = self.text.encode(errors="backslashreplace")[: 8 * _MOST_DATA]
        message[_DATA:].view(np.uint8)[: len(text)] = np.frombuffer(text, np.uint8)

    @classmethod
    def read(cls, message: Array, place: str) -> _Failure:
        kind = int(np.argmax(message[_ERRORS]))
        text = message[_DATA:].tobytes().rstrip(b"\0").decode(errors="ignore")
        # Of several communicators, the first tells the place.
        return cls(_CLASSES[kind](""), text if PLACED.search(text) else f"{text} (on {place})")

    def error(self, prefix: str) -> Exception:
        def text_of(text: str) -> str:
            return text if text.startswith(prefix) else f"{prefix}: {text}"

        name, _, text = self.text.partition(": ")
        named = vars(builtins).get(name)
        if isinstance(named, type) and issubclass(named, _CLASSES[self.kind] if self.kind < _OTHERS else Exception):
            with contextlib.suppress(TypeError):  # one from another version of Python may take more than a text
                return named(text_of(text))
        return _CLASSES[self.kind](text_of(self.text))


class Group:
    """Ranks that exchange messages: what the kinds of communicators have in common."""

    #: Whether each rank sees the messages of all; otherwise it sees their sum alone.
    gathers = True

    def __init__(self, prefix: str, comm: Any, argument: str) -> None:
        #: The function and its `name`, for errors.
        self.prefix = prefix
        self.comm = comm
        self.argument = argument

    def buffer(self, length: int) -> Any:
        """Return memory for messages of this length from all ranks."""
        return np.empty((int(self.size()), length))

    def gather(self, message: Array, buffer: Any) -> Array:
        """Return the messages of all ranks, a row each. ``buffer`` has memory for them."""
        raise NotImplementedError

    def rank(self) -> int:
        """Return the number of this rank."""
        raise NotImplementedError

    def size(self) -> float:
        """Return the number of ranks, infinity if it is not known."""
        return math.inf

    def place(self, rank: int) -> str:
        """Return the words for a rank."""
        return f"rank {rank}" if self.argument == "comm" else f"rank {rank} of {self.argument}"

    def disagreement(self, found: Array, message: Array, options: tuple[str, ...]) -> _Failure | None:
        """Return the first error that messages tell of. ``options`` are the names of the options that must agree."""
        for rank in np.flatnonzero(found[:, _ERRORS].any(axis=1)).tolist():
            return _Failure.read(found[rank], self.place(rank))
        fields = found[:, _ARGUMENTS]
        is_same = (fields == fields[0]) | (np.isnan(fields) & np.isnan(fields[0]))
        if not is_same.all():
            i, row = np.argwhere(~is_same.T)[0].tolist()
            argument, values = (*_AGREED[:-1], _names_of(options))[i], "different ones"
            if argument in {"ord", "clip_norm", "use_norm"}:
                first, other = (_number_text(argument, float(fields[rank, i])) for rank in (0, row))
                values = f"{first} and {other}"
            elif i == 0:
                values = "calls of different functions"
            ranks = f"{self.place(0)} and {self.place(row)}"
            return _Failure(ValueError(), f"{argument}: found {values} on {ranks}; allowed: the same on all")
        if (found[:, 1] != message[1]).any() or (found[:, 0] != 1.0).any():
            return _Failure(ValueError(), "comm: found ranks with another version of gradclip; allowed: one version")
        sizes = found[:, _NORMS]
        if (sizes != message[_NORMS]).any():
            row = int((sizes != sizes[0]).argmax())
            counts = f"{int(sizes[0])} and {int(sizes[row])} tensors on {self.place(0)} and {self.place(row)}"
            return _Failure(ValueError(), f"t_list: found {counts}; allowed: as many on all")
        return None


class _Mpi(Group):
    def gather(self, message: Array, buffer: Array) -> Array:
        self.comm.Allgather(message, buffer)
        return buffer

    def rank(self) -> int:
        return int(self.comm.Get_rank())

    def size(self) -> float:
        return int(self.comm.Get_size())


class _Torch(Group):
    def gather(self, message: Array, buffer: Array) -> Array:
        # A communicator of torch's is one only where torch is loaded.
        torch, distributed = sys.modules["torch"], sys.modules["torch.distributed"]
        own, rows = torch.from_numpy(message), torch.from_numpy(buffer)
        if distributed.get_backend(self.comm) == "nccl":
            gathered = torch.empty_like(rows, device="cuda")
            distributed.all_gather_into_tensor(gathered, own.cuda(), group=self.comm)
            rows.copy_(gathered)
        else:
            distributed.all_gather(list(rows.unbind()), own, group=self.comm)
        return buffer

    def rank(self) -> int:
        return int(sys.modules["torch.distributed"].get_rank(self.comm))

    def size(self) -> float:
        return int(sys.modules["torch.distributed"].get_world_size(self.comm))


#: The memory for the first messages of each NCCLBackend.
_first_buffers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class _CuPy(Group):
    """Ranks of cupyx.distributed, whose messages go from GPU to GPU."""

    def buffer(self, length: int) -> Any:
        # Memory for first messages is kept, because a rank whose GPU is full could not tell the others.
        buffer = _first_buffers.get(self.comm) if length == _LENGTH else None
        if buffer is None:
            buffer = sys.modules["cupy"].empty((int(self.size()), length))
            if length == _LENGTH:
                _first_buffers[self.comm] = buffer
        return buffer

    def gather(self, message: Array, buffer: Any) -> Array:
        # The row of this rank, so that NCCL gathers in place and no memory can run out here.
        own = buffer[self.rank()]
        own.set(message)
        self.comm.all_gather(own, buffer, len(message))
        return np.asarray(buffer.get())

    def rank(self) -> int:
        return int(self.comm.rank)

    def size(self) -> float:
        return int(self.comm._n_devices)  # noqa: SLF001 (CuPy has no public name for it)


_NO_SUM = "found a function that does not add up; allowed: a sum over all ranks"
#: More ranks than any program has. Their counts are exact in float64.
_MOST_RANKS = 2.0**32


class _Sum(Group):
    """A function that adds up an array over all ranks."""

    gathers = False

    def buffer(self, length: int) -> Array:  # noqa: ARG002 (the function allocates)
        return np.empty(0)

    def gather(self, message: Array, buffer: Array) -> Array:  # noqa: ARG002 (as above)
        if len(message) == _LENGTH:
            message[_NONCE] = int.from_bytes(os.urandom(4), "little")
        found = self.comm(message.copy())
        if not isinstance(found, np.ndarray) or found.shape != message.shape or found.dtype != message.dtype:
            allowed = f"a float64 array of shape {message.shape}, the sum over all ranks"
            raise TypeError(
                f"{self.prefix}: {self.argument}: found a function that returns {describe(found)}; allowed: {allowed}"
            )
        # A copy: the function may keep its array, and another thread may resize it.
        return np.array(found).reshape(1, -1)

    def disagreement(self, found: Array, message: Array, options: tuple[str, ...]) -> _Failure | None:
        total = found[0]
        ranks = total[0]
        is_alone = ranks == 1.0 and total[_NONCE] == message[_NONCE]
        # A sum has a whole number of ranks and of errors.
        is_sum = (is_alone or 1.0 < ranks <= _MOST_RANKS) and _are_whole(ranks) and _are_whole(total[_ERRORS])
        if is_sum:
            for kind in np.flatnonzero(total[_ERRORS]).tolist():
                return _Failure(_CLASSES[kind](""), "an error on one of the ranks")
        if not is_sum:
            return _Failure(ValueError(), f"{self.argument}: {_NO_SUM}")
        # The stamps are whole numbers, so their sums are exact; those of limits are rounded.
        agreed = np.isclose(total[_ARGUMENTS], ranks * message[_ARGUMENTS], rtol=1e-9, atol=0.0, equal_nan=True)
        if total[1] != ranks * message[1] or total[2] != ranks * message[2] or not agreed.all():
            names = ", ".join((*_AGREED[1:-1], _names_of(options)))
            return _Failure(ValueError(), f"found arguments that differ between ranks; allowed: the same {names}")
        if total[_NORMS] != ranks * message[_NORMS]:
            count = int(message[_NORMS])
            return _Failure(ValueError(), f"t_list: found {count} tensors here only; allowed: as many on all ranks")
        return None


def _names_of(options: tuple[str, ...]) -> str:
    return f"{', '.join(options[:-1])} or {options[-1]}" if options else _AGREED[-1]


def _number_text(argument: str, number: float) -> str:
    return "None" if argument == "use_norm" and number == NO_NORM else str(number)


def _are_whole(numbers: Any, tolerance: float = 0.0) -> bool:
    if not np.isfinite(numbers).all():
        return False
    return bool((np.abs(numbers - np.rint(numbers)) <= tolerance * np.abs(numbers)).all())


def _kind_of(replicated: Any) -> Any:
    """Return the part of ``replicated`` that must be the same on all ranks: True says that all hold the tensor."""
    entries = _entries(replicated)
    if entries is None:
        return True if _is_true(replicated) else ()
    return tuple(i for i, entry in enumerate(entries) if _is_true(entry))


def _is_true(entry: Any) -> bool:
    return isinstance(entry, (bool, np.bool_)) and bool(entry)


def _groups_of(prefix: str, comm: Any) -> tuple[list[Group], Exception | None]:
    """Return a group for each communicator, and the error for the first entry that is none."""
    if not isinstance(comm, (list, tuple)):
        return [_group(prefix, comm, "comm")], None
    if not comm:
        raise ValueError(f"{prefix}: comm: found an empty sequence; allowed: {_ALLOWED}")
    groups: list[Group] = []
    wrong: Exception | None = None
    for i, one in enumerate(comm):
        try:
            group = _group(prefix, one, f"comm[{i}]")
            for earlier in groups:
                # Two objects of mpi4py may be one communicator.
                if group.gathers and earlier.comm == one and group.size() > 1:
                    text = f"comm[{i}]: found the communicator of {earlier.argument}; allowed: each communicator once"
                    raise ValueError(f"{prefix}: {text}")  # noqa: TRY301 (as the other errors of an entry)
            groups.append(group)
        except (TypeError, ValueError) as error:  # noqa: PERF203 (few communicators)
            wrong = wrong or error
    if wrong is not None and not groups:
        raise wrong
    return groups, wrong


_ALLOWED = (
    "None, a communicator of mpi4py, a ProcessGroup of torch.distributed, an NCCLBackend of cupyx.distributed, a "
    "function that adds up a float64 array over all ranks, or a sequence of these"
)


def _group(prefix: str, comm: Any, argument: str) -> Group:
    if callable(getattr(comm, "Allgather", None)) and callable(getattr(comm, "Get_rank", None)):
        is_inter = getattr(comm, "Is_inter", None)
        if not comm:
            raise ValueError(f"{prefix}: {argument}: found a null communicator; allowed: one that this process is in")
        if is_inter is not None and is_inter():
            raise ValueError(f"{prefix}: {argument}: found an intercommunicator; allowed: an intracommunicator")
        return _Mpi(prefix, comm, argument)
    if _is_from(comm, "torch", "ProcessGroup"):
        return _Torch(prefix, comm, argument)
    if _is_from(comm, "cupyx", "NCCLBackend"):
        return _CuPy(prefix, comm, argument)
    if callable(comm) and not isinstance(comm, type):
        return _Sum(prefix, comm, argument)
    raise TypeError(f"{prefix}: {argument}: found {describe(comm)}; allowed: {_ALLOWED}")


def _is_from(comm: Any, package: str, name: str) -> bool:
    """Return whether this is an object of a package's class, without an import of the package."""
    kinds = type(comm).__mro__
    return any(kind.__qualname__ == name and kind.__module__.partition(".")[0] == package for kind in kinds)


def to_float(value: float, exponent: float) -> float:
    """Return ``value * 2**exponent``, infinite where it is too large."""
    try:
        return math.ldexp(value, int(exponent))
    except OverflowError:
        return math.inf


def to_floats(pairs: Array) -> Array:
    """Do the same for rows of ``value, exponent``."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(pairs[:, 0], pairs[:, 1].astype(np.int32)))


# The counts of each rank.


def copies(share: Share, replicated: Any, count: int) -> list[int]:
    """Return for each tensor how many ranks hold a copy; 0 if another rank counts it."""
    prefix = share.prefix
    if isinstance(replicated, _ENTRY):
        return [_copies_of(share, "replicated", replicated)] * count
    entries = _entries(replicated)
    if entries is None:
        raise TypeError(f"{prefix}: replicated: found {describe(replicated)}; allowed: {_REPLICATED}")
    if len(entries) != count:
        allowed = f"length {count}" + ("" if share.function in _OF_ONE else ", that of t_list")
        raise ValueError(f"{prefix}: replicated: found length {len(entries)}; allowed: {allowed}")
    return [_copies_of(share, f"replicated[{i}]", entry) for i, entry in enumerate(entries)]


def _entries(replicated: Any) -> list[Any] | None:
    """Return the entries of a sequence, one for each tensor; None if it is no sequence."""
    is_sequence = isinstance(replicated, (list, tuple)) or (isinstance(replicated, np.ndarray) and replicated.ndim == 1)
    return list(replicated) if is_sequence else None


def _copies_of(share: Share, argument: str, entry: Any) -> int:
    if isinstance(entry, (bool, np.bool_)):
        if not entry:
            return 1
        if not all(group.gathers for group in share.groups):
            allowed = "the number of ranks that hold a copy, with a function as comm"
            raise ValueError(f"{share.prefix}: {argument}: found True; allowed: {allowed}")
        return 1 if share.is_first else 0
    if not isinstance(entry, _ENTRY):
        allowed = "a bool or a number of ranks"
        raise TypeError(f"{share.prefix}: {argument}: found {describe(entry)}; allowed: {allowed}")
    if not 1 <= entry <= share.all_ranks:
        allowed = "a number of ranks >= 1" if entry < 1 else f"at most {share.all_ranks}, the number of ranks"
        raise ValueError(f"{share.prefix}: {argument}: found {text_of(entry)}; allowed: {allowed}")
    share.most_copies = max(share.most_copies, int(entry))
    return int(entry)


#: The types of an entry of ``replicated``.
_ENTRY = (bool, int, np.bool_, np.integer)
_REPLICATED = "None, True, a number of ranks, or a sequence of these, one for each tensor"
#: Functions of a single tensor.
_OF_ONE = {"clip_by_norm", "clip_by_average_norm"}
