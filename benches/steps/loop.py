"""The loop of a program: the work before a call, the call, which alone is timed, and the work after it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from steps import memory

if TYPE_CHECKING:
    from typing import Any

    from steps.libraries.base import Library
    from steps.operations import Clip
    from steps.scenarios import Scenario
    from steps.sources import Source

#: Calls of each form before one is chosen.
TRIALS = 3


@dataclass
class Measured:
    """The measurements of one process."""

    #: Seconds of each call.
    seconds: list[float]
    #: Memory at its peak, above that before the first clip, in bytes.
    peak: int


class Program:
    """A scenario as one library runs it."""

    def __init__(self, scenario: Scenario, library: Library, source: Source) -> None:
        """Take what a program is made of, and the only form if there is one."""
        self.scenario, self.library, self.source = scenario, library, source
        self.forms = library.forms(scenario.operation)
        self.form, self.clip = next(iter(self.forms.items()))

    def choose(self) -> None:
        """Take the form that is fastest in a short trial."""
        if len(self.forms) > 1 and self.scenario.warm:
            times = {name: self.trial(clip) for name, clip in self.forms.items()}
            self.form = min(times, key=times.__getitem__)
            self.clip = self.forms[self.form]

    def trial(self, clip: Clip) -> float:
        """Time a form on the first lists, after calls that may compile it."""
        self.calls(clip, self.scenario.warm)
        self.source.restart()
        seconds = median(self.calls(clip, TRIALS))
        self.source.restart()
        return seconds

    def prepare(self) -> list[Any]:
        """Do the work before a call, and return the library's arrays."""
        return self.library.adopt(self.source.gradients(), self.scenario.operation)

    def calls(self, clip: Clip, number: int, kept: deque[Any] | None = None) -> list[float]:
        """Time calls."""
        limit = self.scenario.operation.limit
        found = []
        for _ in range(number):
            ts = self.prepare()
            start = time.perf_counter()
            clipped = clip(ts, limit)
            found.append(time.perf_counter() - start)
            self.source.update([self.library.to_numpy(t) for t in clipped])
            if kept is not None:
                kept.append(clipped)
            del ts, clipped
        return found

    def start(self) -> int:
        """Make the first gradients, and give the memory that the process has then."""
        first = self.prepare()
        memory_before = memory.restart_peak()
        del first
        return memory_before

    def run(self) -> Measured:
        """Time the calls of the scenario."""
        kept: deque[Any] = deque(maxlen=self.scenario.keep)
        before = self.start()
        self.calls(self.clip, self.scenario.warm, kept)
        seconds = self.calls(self.clip, self.scenario.calls, kept)
        return Measured(seconds, memory.peak() - before)
