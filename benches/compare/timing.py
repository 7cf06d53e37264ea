"""Timing several ways to do one thing in turns."""

from __future__ import annotations

import gc
import os
import threading
import time
import timeit
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


@dataclass(frozen=True)
class Form:
    """One way to do something: an expression, and what its names stand for.

    It is an expression and no function, so that the shortest calls are not measured with another call around them.
    """

    label: str
    expression: str
    names: dict[str, Any]

    def timer(self) -> timeit.Timer:
        """Return a timer; each result is dropped within the time of its call, as in a user's function."""
        return timeit.Timer(self.expression, globals=self.names)

    def evaluate(self, **names: Any) -> Any:
        """Return the result, with other values of some names."""
        return eval(self.expression, self.names | names)  # noqa: S307 (written in peers.py)


#: A library that takes so many times as long after so many rounds is left out of the other rounds.
FAR, SOME = 4, 3
#: The file in which Linux reports the states of its CPUs.
STATISTICS = Path("/proc/stat")
#: The folder in which Linux reports the states of the threads of this process.
THREADS = Path("/proc/self/task")


@dataclass(frozen=True)
class Clock:
    """How long to measure."""

    #: Seconds of a row.
    seconds: float = 2.0
    #: The fewest and the most rounds of a row.
    rounds: tuple[int, int] = (7, 150)
    #: Shorter calls are repeated until one timing takes so many seconds.
    batch: float = 1e-3
    #: A first call that takes fewer seconds is tried again.
    first: float = 50e-3
    #: Calls that are shorter than this find the caches as their own last calls left them, not another library's, and
    #: threads that are awake if the library has such: half a batch comes before the one that is timed.
    warm: float = 5e-3
    #: The fewest calls of that half: what lies in a second-level cache is in its place after three.
    warm_calls: int = 4
    #: Seconds between two checks whether the threads of the last library are idle.
    pause: float = 1e-3
    #: Seconds after which the next library begins in any case.
    patience: float = 0.5
    #: Times that each form of a library is tried.
    trials: int = 3

    def rest(self) -> None:
        """Wait until all other threads of this process sleep.

        Threads that spin while they wait for more work (OpenBLAS's do so for a tenth of a second) take CPUs from
        whoever comes next.
        """
        end = time.perf_counter() + self.patience
        while True:
            time.sleep(self.pause)
            if not others_run() or time.perf_counter() > end:
                return

    def calls(self, timer: timeit.Timer) -> tuple[int, float]:
        """Find how many calls make a batch, and the seconds of one.

        A first call may map memory and start threads, and tells nothing of the next ones; nor does one that shares its
        CPUs with the threads of another library.
        """
        self.rest()
        calls = 1
        total = timer.timeit(calls)
        if total < self.first:
            total = min(total, timer.timeit(calls))
        while total < self.batch / 4:
            calls *= 4
            total = min(timer.repeat(2, calls))
        return max(1, ceil(self.batch * calls / total)), total / calls

    def alone(self, form: Form, seconds: float, most: int) -> float:
        """Time a single form: the median seconds of a call, in about so many seconds."""
        timer = form.timer()
        calls, once = self.calls(timer)
        if once * calls * self.trials > seconds:
            return min(timer.repeat(2, calls)) / calls
        return median(timer.repeat(min(most, int(seconds / (once * calls))), calls)) / calls

    def fastest(self, forms: list[Form], share: float = 0.05) -> list[Form]:
        """Keep the form that is fastest in a short trial, and a second one so close to it that a race must decide."""
        if len(forms) == 1:
            return forms
        timers = [form.timer() for form in forms]
        batches = [self.calls(timer) for timer in timers]
        times = [once for _, once in batches]
        for _ in range(self.trials):
            for i, timer in enumerate(timers):
                # Too far behind, or so long that a second time would tell nothing new.
                if times[i] < min(2 * min(times), self.seconds / 10):
                    times[i] = min(times[i], timer.timeit(batches[i][0]) / batches[i][0])
        order = sorted(range(len(forms)), key=times.__getitem__)[:2]
        return [forms[i] for i in order if times[i] <= min(times) * (1 + share)]

    def race(self, forms: Mapping[str, Form], peers: Collection[str] = ()) -> dict[str, float]:
        """Time all forms in turns and give the median seconds of a call of each.

        The order changes from round to round, and so does who comes after whom. Peers that are far behind the first
        of them sit out after some rounds: they take most of the time, and decide nothing.
        """
        timers = {name: form.timer() for name, form in forms.items()}
        batches = {name: self.calls(timer) for name, timer in timers.items()}
        times: dict[str, list[float]] = {name: [] for name in forms}
        names = list(forms)
        end = time.perf_counter() + self.seconds
        done = 0
        while done < self.rounds[0] or (done < self.rounds[1] and time.perf_counter() < end):
            turn = done % max(1, len(names))
            order = names[turn:] + names[:turn]
            for name in order if done % 2 else reversed(order):
                self.rest()
                calls, once = batches[name]
                if once < self.warm:
                    timers[name].timeit(max(self.warm_calls, calls // 2))
                times[name].append(timers[name].timeit(calls) / calls)
            done += 1
            if done == SOME:
                first = min((median(times[name]) for name in peers), default=0)
                names = [name for name in names if name not in peers or median(times[name]) < FAR * first]
        return {name: median(each) for name, each in times.items()}


@contextmanager
def resting_collector() -> Iterator[None]:
    """Keep Python's garbage collector from running in between."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def others_run() -> bool:
    """Return whether another thread of this process runs, or would if there were a CPU for it. Linux only."""
    for task in THREADS.iterdir() if THREADS.exists() else ():
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has ended
            continue
        if state == "R" and int(task.name) != threading.get_native_id():
            return True
    return False


def used_by_others() -> float:
    """Return the CPU seconds that other processes, and other machines on this hardware, have used so far."""
    if not STATISTICS.exists():
        return 0.0
    user, nice, system, _, _, *interrupts = map(int, STATISTICS.read_text().splitlines()[0].split()[1:9])
    mine = time.process_time()
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK") - mine


def readable(seconds: float) -> str:
    """Format a time in a suitable unit."""
    for unit in ("s", "ms", "µs"):
        if seconds >= 1:
            return f"{seconds:.3g} {unit}"
        seconds *= 1000
    return f"{seconds:.3g} ns"
