"""The device, and what calls on one of its streams use again: scratch memory, tables, plans of launches."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from gradclip._cuda import _known
from gradclip._cuda._words import PARAMS, THREADS, Scalar, Word

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from contextlib import AbstractContextManager

    from gradclip._cuda._list import Plan
    from gradclip._cuda._words import Words


class Memory(Protocol):
    """Memory of a device. It is given back when nobody refers to it any more, in the order of the stream."""

    @property
    def ptr(self) -> int:
        """Its address."""


class Device(Protocol):
    """The properties of a device and of its current stream that launches need."""

    multiprocessors: int

    @property
    def key(self) -> Hashable: ...
    def current(self) -> AbstractContextManager[Any]: ...
    def alloc(self, nbytes: int) -> Memory: ...
    def upload(self, words: Words) -> Memory: ...
    def function(self, name: str) -> Any: ...
    def argument(self, params: Words) -> Any: ...
    def launch(self, function: Any, grid: int, block: int, argument: Any) -> None: ...
    def is_capturing(self) -> bool: ...


class _Launch(NamedTuple):
    """A launch that later calls may repeat."""

    function: Any
    grid: int
    words: memoryview
    """The words of the argument."""
    argument: Any


#: Words that differ between calls with the same key.
_LIMIT, _LIMIT_AT, _LIMIT_DTYPE, _NORM_AT = map(int, (Word.LIMIT, Word.LIMIT_AT, Word.LIMIT_DTYPE, Word.NORM_AT))


class _Queue:
    """The memory that calls on one stream share: scratch memory, the ticket, the last plans.

    Launches on a stream run one after the other, so the next call may use what this one used; the lock keeps the
    launches of two host threads apart.
    """

    #: Plans of lists that are held. Each may have a table on the device.
    MOST = 16
    #: Plans of one array, and other calls whose launches are held: more than a model has parameters, as each may be
    #: clipped by a call of its own. An argument of kernels has 4 KiB.
    MOST_REPEATED = 256

    def __init__(self, device: Device) -> None:
        # The device object holds its stream. As long as a stream lives, CUDA gives its handle to no other stream, whose
        # launches would write to this memory while those of the first stream still use it.
        self.device = device
        self.lock = threading.Lock()
        self.owner: int | None = None
        self.scratch: Memory | None = None
        self.size = 0
        self.ticket: Memory | None = None
        self.plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self.plans_of_one: OrderedDict[Hashable, Plan] = OrderedDict()
        # The launches of earlier calls. Their arguments have addresses in the scratch memory.
        self.repeated: OrderedDict[Hashable, list[_Launch]] = OrderedDict()

    def room(self, nbytes: int) -> int:
        """Return the address of scratch memory."""
        if self.scratch is None or self.size < nbytes:
            self.scratch, self.size = None, 0  # if there is no memory, the next call asks again
            self.repeated.clear()
            size = max(1 << 16, 1 << (nbytes - 1).bit_length())
            self.scratch, self.size = self.device.alloc(size), size
        return self.scratch.ptr

    def ticket_at(self) -> int:
        """Return the address of the ticket, which is 0 between launches."""
        if self.ticket is None:
            self.ticket = self.device.upload(np.zeros(1, np.int64))
        return self.ticket.ptr

    def taken(self) -> _Queue:
        """Return a queue for a call that a CUDA graph captures.

        It takes this one's memory; the next call allocates new memory. A graph may run again at any time, so no other
        call may use what the graph writes. Tables do not change, so both queues have the plans.
        """
        other = _Queue(self.device)
        other.scratch, other.size, other.ticket = self.scratch, self.size, self.ticket
        other.plans, other.plans_of_one = self.plans.copy(), self.plans_of_one.copy()
        self.scratch, self.size, self.ticket = None, 0, None
        self.repeated.clear()
        return other


#: The most blocks of threads for each multiprocessor, unless a kernel has another number: more than it runs at a time,
#: so that none idles at the end.
_BLOCKS_EACH = 16

#: Streams that are held, with their scratch memory.
_STREAMS = 64

_queues: dict[Hashable, _Queue] = {}
_captured: list[Any] = []


def _queue_of(device: Device) -> _Queue:
    """Return a stream's queue. Of many streams the oldest ones are forgotten, unless they are in use."""
    key = device.key
    found = _queues.get(key)
    if found is None:
        for old, queue in list(_queues.items())[: max(len(_queues) - _STREAMS + 1, 0)]:
            if not queue.lock.locked():
                _queues.pop(old, None)
        found = _queues.setdefault(key, _Queue(device))
    return found


def release() -> None:
    """Give back scratch memory and tables, those of captured graphs too, which must not run any more."""
    _known.forget()
    _queues.clear()
    _captured.clear()


def argument_of(table: list[int] | Words) -> Words:
    """Make the argument of kernels with a table that fits into it."""
    params = np.zeros(PARAMS, np.int64)
    params[Word.TABLE : Word.TABLE + len(table)] = table
    return params


class Call:
    """The launches of one call: a context.

    Inside it the device is current, and no other call uses the stream's scratch memory.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._current = device.current()
        self._shared = _queue_of(device)
        self.queue = self._shared
        self._holds = False  # the stream's lock
        self.kept: list[Any] = []
        #: The launches of `repeat` so far; None outside of it.
        self._made: list[_Launch] | None = None

    def __enter__(self) -> Call:  # noqa: PYI034 (Self is Python 3.11's)
        self._current.__enter__()
        try:
            # A finalizer or a signal handler may call in the middle of another call of this thread.
            is_inner = self._shared.owner == threading.get_ident()
            if is_inner:
                self.queue = _Queue(self.device)
            else:
                self._take()
            if self.device.is_capturing():
                if not is_inner:
                    self.queue = self._shared.taken()
                _captured.append(self)
        except BaseException:
            self._leave()
            self._current.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, error: object, *_: object) -> None:
        try:
            if error is not None:
                self.queue.ticket = None  # a pass may have been left half done
            self._leave()
        finally:
            self._current.__exit__(None, None, None)

    def _take(self) -> None:
        self._holds = self._shared.lock.acquire()  # in one statement: an interrupt may come before the next one
        self._shared.owner = threading.get_ident()

    def _leave(self) -> None:
        if self._holds:
            self._holds, self._shared.owner = False, None
            self._shared.lock.release()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave the stream to other calls, during a step that waits for another thread, which may need the stream."""
        takes = self._holds
        self._leave()
        try:
            yield
        finally:
            if takes:
                self._take()

    def keep(self, thing: Any) -> Any:
        """Keep something for as long as what was launched may run again: for good, in a captured graph."""
        self.kept.append(thing)
        return thing

    def launch(self, name: str, items: int, params: Words, at_once: int = THREADS) -> None:
        """Launch a kernel for so many items, of which a block of threads takes some at once."""
        argument = self.device.argument(params)
        made = _Launch(self.device.function(name), self.grid(items, at_once), params.data, argument)
        self.device.launch(made.function, made.grid, THREADS, argument)
        if self._made is not None:
            self._made.append(made)

    def repeat(self, key: Hashable, make: Callable[[], object], limit: Scalar | None = None, norm_at: int = 0) -> None:
        """Make launches, or repeat those of an earlier call with the same key, with this call's limit and output."""
        repeated = self.queue.repeated
        known = repeated.pop(key, None)
        if known is None:
            known = self._made = []
            try:
                make()
            finally:
                self._made = None
            if not known:  # a list has a plan of its own
                return
        else:
            value, address, code = (limit or Scalar()).words()
            for function, grid, words, argument in known:
                words[_LIMIT], words[_LIMIT_AT], words[_LIMIT_DTYPE], words[_NORM_AT] = value, address, code, norm_at
                self.device.launch(function, grid, THREADS, argument)
        repeated[key] = known  # as the newest one
        if len(repeated) > self.queue.MOST_REPEATED:
            repeated.popitem(last=False)

    def grid(self, items: int, at_once: int, each: int = _BLOCKS_EACH) -> int:
        """Return the blocks of threads for so many items, and no more for each multiprocessor than ``each``."""
        return max(1, min(-(-items // at_once), each * self.device.multiprocessors))
