"""Ranks without an engine: threads that exchange arrays, with the interface of an mpi4py communicator."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

#: Seconds after which ranks that wait for each other count as hung.
TIMEOUT = 30


class World:
    """The ranks of a communicator."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks)
        self.sent: list[Any] = [None] * ranks
        #: Bytes of each message of rank 0, one for each collective.
        self.messages: list[int] = []


class Comm:
    """The communicator of one rank."""

    def __init__(self, world: World, rank: int) -> None:
        self.world = world
        self.rank = rank

    def Get_rank(self) -> int:  # noqa: N802 (mpi4py's name)
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return len(self.world.sent)

    def Allgather(self, send: Any, receive: Any) -> None:  # noqa: N802
        world = self.world
        world.sent[self.rank] = np.array(send)
        if self.rank == 0:
            world.messages.append(send.nbytes)
        world.barrier.wait(TIMEOUT)
        for row, message in zip(receive, world.sent, strict=True):
            assert row.shape == message.shape, "messages of different lengths"
            row[...] = message
        world.barrier.wait(TIMEOUT)

    def sum(self, array: Any) -> Any:
        """Return the sum over all ranks, as an engine's own collective does."""
        rows = np.empty((self.Get_size(), *array.shape), array.dtype)
        self.Allgather(array, rows)
        return rows.sum(axis=0)


def run(work: Sequence[Callable[[Comm], T]]) -> list[T | Exception]:
    """Run a function on each of some ranks. Returns what each returned or raised."""
    world = World(len(work))
    found: list[Any] = [None] * len(work)

    def on(rank: int) -> None:
        try:
            found[rank] = work[rank](Comm(world, rank))
        except Exception as error:  # noqa: BLE001 (handed on)
            found[rank] = error

    threads = [threading.Thread(target=on, args=(rank,)) for rank in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT)
        assert not thread.is_alive(), "a rank hangs"
    return found


def raise_again(found: Any) -> NoReturn:
    """Raise what a rank raised. If it returned something instead, that is no TypeError, as `raise` would make it."""
    assert isinstance(found, Exception), f"a rank returned {found!r}"
    raise found
