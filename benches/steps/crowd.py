"""Several callers at once: threads of one process, or processes."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import TYPE_CHECKING

from steps import memory
from steps.loop import Measured, Program
from steps.scenarios import SHARE

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

    from steps.libraries.base import Library
    from steps.scenarios import Scenario

THREADS, PROCESSES = 4, 2
#: Calls that each thread makes before it waits for the others.
TOGETHER = 5
#: Seconds after which a thread stops waiting for the others: one of them has failed.
PATIENCE = 300


class Crowd:
    """Threads that clip at once, a list each."""

    def __init__(self, programs: list[Program]) -> None:
        """Take a program for each thread."""
        self.programs = programs
        self.barrier = threading.Barrier(len(programs), timeout=PATIENCE)

    def rounds(self, number: int) -> tuple[list[float], list[float]]:
        """Return the seconds of each call, and of each round per call."""
        calls: list[float] = []
        spans: list[list[tuple[float, float]]] = [[] for _ in range(number)]

        def clip(program: Program) -> None:
            for span in spans:
                self.barrier.wait()
                start = time.perf_counter()
                calls.extend(program.calls(program.clip, TOGETHER))
                span.append((start, time.perf_counter()))

        threads = [threading.Thread(target=clip, args=(program,)) for program in self.programs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        count = TOGETHER * len(self.programs)
        return calls, [(max(end for _, end in span) - min(start for start, _ in span)) / count for span in spans]


def run_threads(scenario: Scenario, library: Library) -> Measured:
    """Time calls of several threads."""
    crowd = Crowd([Program(scenario, library, scenario.build()) for _ in range(THREADS)])
    before = crowd.programs[0].start()
    crowd.rounds(1)
    calls, shares = crowd.rounds(scenario.calls)
    return Measured(shares if scenario.crowd == SHARE else calls, memory.peak() - before)


def run_alone(scenario: Scenario, library: Library, barrier: Barrier, answer: Connection) -> None:
    """Time the calls of one of several processes."""
    program = Program(scenario, library, scenario.build())
    barrier.wait()
    measured = program.run()
    # The others are not to have the CPUs to themselves before all are done.
    barrier.wait()
    answer.send(measured)


def run_processes(scenario: Scenario, library: Library) -> Measured:
    """Time calls of several processes, forked before the library has done anything."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(PROCESSES, timeout=PATIENCE)
    pipes = [context.Pipe(duplex=False) for _ in range(PROCESSES)]
    processes = [context.Process(target=run_alone, args=(scenario, library, barrier, answer)) for _, answer in pipes]
    for process in processes:
        process.start()
    # Or the end of a process that fails would not be seen.
    for _, answer in pipes:
        answer.close()
    found: list[Measured] = [question.recv() for question, _ in pipes]
    for process in processes:
        process.join()
    return Measured([seconds for one in found for seconds in one.seconds], sum(one.peak for one in found))
