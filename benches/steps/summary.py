"""The numbers of the table: medians over processes, ratios, and whether they are where they should be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from steps.libraries import NUMPY, ONE_THREAD, OURS, POOL_OFF, is_peer
from steps.verify import allowed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from steps.results import Results, Runs
    from steps.scenarios import Scenario

#: The geometric mean of all ratios must reach this.
MEAN = 1.35
#: No 95th percentile may be above that of the best peer times this.
TAIL = 1.5
#: No program may take longer than with one thread, or without the pool, times this.
VARIANT = 1.05


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value that a share of all values is not above, between neighbours in proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean, if there are values."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


@dataclass(frozen=True)
class Times:
    """One library in one scenario."""

    #: The median over processes of their medians, in seconds.
    median: float
    #: The median over processes of their 95th percentiles.
    tail: float
    #: The median over processes of the memory at its peak.
    peak: float

    @classmethod
    def of(cls, runs: Runs) -> Times:
        """Take medians."""
        return cls(
            median(median(seconds) for seconds in runs.seconds),
            median(percentile(seconds, 0.95) for seconds in runs.seconds),
            median(runs.peaks),
        )


def counts(library: str, runs: Runs) -> bool:
    """Return whether a library gave results, and right ones."""
    return not runs.error and bool(runs.seconds) and runs.off is not None and runs.off <= allowed(library)


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    name: str
    #: The ratio that must be reached.
    target: float
    #: Those whose results are right.
    times: dict[str, Times]

    @property
    def ours(self) -> Times | None:
        """The times of gradclip."""
        return self.times.get(OURS)

    @property
    def best(self) -> str | None:
        """The fastest peer."""
        peers = [name for name in self.times if is_peer(name)]
        return min(peers, key=lambda name: self.times[name].median) if peers else None

    @property
    def ratio(self) -> float | None:
        """The best peer's time over gradclip's."""
        return self.times[self.best].median / self.ours.median if self.best and self.ours else None

    @property
    def tail(self) -> float | None:
        """The 95th percentile of gradclip over that of the best peer."""
        return self.ours.tail / self.times[self.best].tail if self.best and self.ours else None

    def variant(self, name: str) -> float | None:
        """Return gradclip's time over that of a variant."""
        return self.ours.median / self.times[name].median if self.ours and name in self.times else None

    def missed(self) -> list[str]:
        """Return the names of the targets that are missed."""
        found = [] if self.ours else ["wrong"]
        if self.ratio is not None and self.ratio < self.target:
            found.append("ratio")
        if self.tail is not None and self.tail > TAIL:
            found.append("p95")
        for name, word in ((ONE_THREAD, "threads"), (POOL_OFF, "pool")):
            if (share := self.variant(name)) is not None and share > VARIANT:
                found.append(word)
        return found

    def peaks(self) -> tuple[float | None, float | None]:
        """Return the memory of ours and of NumPy."""
        theirs = self.times.get(NUMPY)
        return self.ours.peak if self.ours else None, theirs.peak if theirs else None


def line(scenario: Scenario, libraries: dict[str, Runs]) -> Line:
    """Return the line of a scenario."""
    times = {name: Times.of(runs) for name, runs in libraries.items() if counts(name, runs)}
    return Line(scenario.name, scenario.target, times)


def lines(results: Results, scenarios: Iterable[Scenario]) -> list[Line]:
    """Return the lines of what was measured, in the order of the scenarios."""
    return [
        line(scenario, results.scenarios[scenario.name]) for scenario in scenarios if scenario.name in results.scenarios
    ]
