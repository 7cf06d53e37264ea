"""Measure the rows, one after the other."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from check import Checker
from data import Data, filled
from floor import PAST_THE_CACHE, Floor
from peers import OURS, Gradclip, Peer
from rows import UNCLIPPED
from timing import resting_collector, used_by_others

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rows import Row
    from timing import Clock, Form

#: The share of the floor that stands in for a ratio.
SHARE = 0.9


@dataclass
class Result:
    """The measurements of a row."""

    row: Row
    #: Seconds per call by library.
    times: dict[str, float] = field(default_factory=dict)
    #: The form that was fastest, by library.
    forms: dict[str, str] = field(default_factory=dict)
    #: The reason why a library, or one of its forms, is not among the times.
    notes: list[str] = field(default_factory=list)
    #: The time of the floor, in seconds.
    floor: float | None = None
    #: The number of CPUs that other processes used meanwhile.
    others: float = 0.0

    @property
    def best(self) -> str | None:
        """The fastest peer."""
        peers = {name: time for name, time in self.times.items() if name != OURS}
        return min(peers, key=lambda name: peers[name]) if peers else None

    @property
    def ratio(self) -> float | None:
        """The best peer's time over gradclip's."""
        return self.times[self.best] / self.times[OURS] if self.best and OURS in self.times else None

    @property
    def share(self) -> float | None:
        """The floor's time over gradclip's."""
        return self.floor / self.times[OURS] if self.floor is not None and OURS in self.times else None

    @property
    def verdict(self) -> str:
        """Whether the row reaches its target."""
        if self.ratio is None:
            return "no peer" if OURS in self.times else "wrong"
        enough = self.share is not None and self.share >= SHARE
        if self.row.floor_too and self.share is not None and not enough:
            return "short of the floor" if self.ratio >= self.row.target else "short"
        if self.ratio >= self.row.target:
            return "reached"
        return "reached (floor)" if self.row.floor_counts and enough and self.ratio >= 1 else "short"


class Runner:
    """Measures rows, and keeps the inputs that consecutive ones share."""

    def __init__(self, peers: list[Peer], floor: Floor | None, clock: Clock) -> None:
        """Take who takes part, and how long."""
        self.ours = Gradclip()
        self.peers, self.floor, self.clock = peers, floor, clock

    def run(self, rows: Iterable[Row]) -> Iterator[Result]:
        """Measure rows."""
        key, data = "", None
        for row in rows:
            if data is None or row.key != key:
                # The old inputs are freed before the new ones are made.
                data = None
                key, data = row.key, Data(row.build)
            with resting_collector():
                result = self._measure(row, data)
            yield result
            data.release()

    def _measure(self, row: Row, data: Data) -> Result:
        result = Result(row)
        contestants: dict[str, Form] = {}
        for peer in [self.ours, *self.peers]:
            for i, form in enumerate(self._forms(peer, row, data, result.notes)):
                contestants[f"{peer.name}|{i}"] = form
        if not contestants:
            return result
        phases = row.phases if self.floor is not None and data.nbytes >= PAST_THE_CACHE else ()
        for phase in phases:
            contestants[f"floor|{phase}"] = self._floor(phase, data)

        # Two take part, and there are many of these rows.
        clock = replace(self.clock, seconds=self.clock.seconds / 4) if row.only_numpy else self.clock
        names = {peer.name for peer in self.peers}
        start, others = time.perf_counter(), used_by_others()
        times = clock.race(contestants, [key for key in contestants if key.partition("|")[0] in names])
        result.others = (used_by_others() - others) / (time.perf_counter() - start)
        for key, seconds in times.items():
            name = key.partition("|")[0]
            if name != "floor" and seconds < result.times.get(name, inf):
                result.times[name], result.forms[name] = seconds, contestants[key].label
        if phases:
            result.floor = sum(times[f"floor|{phase}"] for phase in phases)
        return result

    def _forms(self, peer: Peer, row: Row, data: Data, notes: list[str]) -> list[Form]:
        """Return the forms of a library that are right and fast."""
        if row.only_numpy and peer.name not in (OURS, "NumPy"):
            return []
        if peer.name in (without := dict(row.without)):
            notes.append(f"{peer.name}: {without[peer.name]}")
            return []
        right, inexact = [], {}
        for form in peer.forms(row.task, data):
            # A library that returns new arrays does so in all modes.
            mode = row.task.mode if peer.writes or row.task.mode == UNCLIPPED else ""
            key = (peer.name, form.label, replace(row.task, mode=mode))
            if key not in data.checked:
                data.checked[key] = Checker(row.task, data).check(peer, form)
            counts, said = data.checked[key]
            if counts:
                right.append(form)
                inexact[form.label] = said
            else:
                notes.append(f"{peer.name}{form.label and f' ({form.label})'}: {said}")
        kept = self.clock.fastest(right)
        notes.extend(sorted({f"{peer.name}: {said}" for form in kept if (said := inexact[form.label])}))
        return kept

    def _floor(self, phase: str, data: Data) -> Form:
        """Return a loop of the floor, on the arrays of the row."""
        assert self.floor is not None  # noqa: S101 (for the type)
        if phase == "copy":
            return self.floor.form(phase, data.inputs, data.kept(OURS))
        if phase == "scale":
            # Halves of float64 numbers are any float32 numbers, even NaN, so they are not scaled.
            wide = data.dtype == np.float64
            arrays = [filled((2 * a.size,)) for a in data.inputs] if wide else data.own(OURS)
            return self.floor.form(phase, arrays)
        return self.floor.form(phase, data.inputs)
