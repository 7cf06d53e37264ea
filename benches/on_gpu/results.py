"""What is measured of a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from on_gpu.libraries import OURS

if TYPE_CHECKING:
    from on_gpu.rows import Row


class Times(NamedTuple):
    """Seconds of a call."""

    device: float
    host: float
    call: float


class Counts(NamedTuple):
    """What the profiler saw of a call."""

    launches: int
    copies: int
    waits: int


@dataclass
class Result:
    """The measurements of a row."""

    row: Row
    times: dict[str, Times] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: Seconds of the probes among the turns.
    probes: dict[str, float] = field(default_factory=dict)
    nodes: int | None = None
    counts: Counts | None = None
    wrong: bool = False

    def times_of(self, name: str) -> float | None:
        """How many times as long as gradclip's the call of a peer takes."""
        found = self.times.get(name)
        return found.call / self.times[OURS].call if found and OURS in self.times else None
