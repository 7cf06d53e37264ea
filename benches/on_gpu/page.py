"""The page of results."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import groupby
from typing import TYPE_CHECKING, Any

import gradclip as gc
import numpy as np

from on_gpu.libraries import CUPY, OURS, TORCH
from on_gpu.rows import IN_PLACE, LARGE, MANY, NORM, TENFOLD, UNCLIPPED
from on_gpu.timing import COPY, NO_TIME, READ, bandwidth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from on_gpu.results import Result
    from on_gpu.rows import Row
    from on_gpu.timing import Bench

OWN = ["device µs", "host µs", "call µs", "bandwidth"]
HEAD = ["row", *OWN, "x torch", "x CuPy", "torch device µs", "launches", "notes"]


def share(result: Result, overall: dict[str, float]) -> float:
    """Return the share of the bandwidth that a row reaches."""
    copy, read = bandwidth(result.probes or overall)
    of = read if result.row.operation == UNCLIPPED else copy
    return result.row.moved / result.times[OURS].device / of


def cells(result: Result, overall: dict[str, float]) -> list[str]:
    """Write a row of the table."""
    own, torch = result.times.get(OURS), result.times.get(TORCH)
    numbers = ["", "", "", ""]
    if own is not None:
        of = READ if result.row.operation == UNCLIPPED else COPY
        numbers = [*(f"{1e6 * seconds:,.1f}" for seconds in own), f"{share(result, overall):.2f} of {of}"]
    factors = [result.times_of(name) for name in (TORCH, CUPY)]
    graph = "-" if result.nodes is None else str(result.nodes)
    counts = f"{graph}; " + ("-" if result.counts is None else " + ".join(map(str, result.counts)))
    return [
        f"{result.row.what}, {result.row.operation}",
        *numbers,
        *("" if factor is None else f"{factor:.2f}" for factor in factors),
        f"{1e6 * torch.device:,.1f}" if torch else "",
        counts if own is not None else "",
        "; ".join(result.notes),
    ]


def verdicts(results: Sequence[Result], overall: dict[str, float], end: tuple[float, float] | None) -> list[list[str]]:
    """Compare with the targets: the worst row decides."""
    done = [result for result in results if OURS in result.times]
    large = [(result.row.operation, share(result, overall), result.row.name) for result in done if is_large(result.row)]
    lines = []

    def add(target: str, found: Sequence[tuple[float, str]], limit: float, *, most: bool = False) -> None:
        if not found:
            lines.append([target, "not measured", ""])
            return
        value, name = (max if most else min)(found)
        is_reached = value <= limit if most else value >= limit
        lines.append([target, f"{value:.2f} ({name})", "yes" if is_reached else "no"])

    for operation, least, of in ((NORM, 0.8, COPY), (IN_PLACE, 0.8, COPY), (UNCLIPPED, 0.85, READ)):
        found = [(value, name) for one, value, name in large if one == operation]
        add(f"{operation}, 400 MB and more: at least {least} of the bandwidth of a {of}", found, least)
    at_work = [result for result in done if result.row.operation in {IN_PLACE, UNCLIPPED}]
    ratios = [(result.times_of(TORCH), result.row) for result in at_work]
    found = [(x, row.name) for x, row in ratios if x and row.elements == TENFOLD and row.dtype == "float32"]
    add("10^8 elements, float32: at least 2 times torch foreach", found, 2.0)
    found = [(1e6 * result.times[OURS].host, result.row.name) for result in at_work if len(result.row.shapes) == MANY]
    add("1,000 known arrays, in place and unclipped: at most 100 µs until the last launch", found, 100.0, most=True)
    waits = [(float(result.counts.waits), result.row.name) for result in done if result.counts]
    add("waits for the device: 0", waits, 0.0, most=True)
    ends = [(100 * (1 - end[1] / end[0]), "norm of 10^9, float32")] if end else []
    add("the end of the reduction, by one block: at most 2 % of a call", ends, 2.0, most=True)
    wrong = [(float(result.wrong), result.row.name) for result in results if result.times or result.wrong]
    add("rows whose bits are not those of the CPU: 0", wrong, 0.0, most=True)
    return lines


def is_large(row: Row) -> bool:
    """Whether a row has a target of bandwidth."""
    return row.axis is None and row.nbytes >= LARGE


@dataclass
class Page:
    """All that was measured."""

    start: float
    machine: list[str]
    bench: Bench
    #: What the columns mean.
    columns: str
    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ending: tuple[float, float] | None = None

    def text(self) -> str:
        """Write it."""
        overall, today = self.bench.overall, datetime.now(tz=timezone.utc).date()
        copy, read = (speed / 1e9 for speed in bandwidth(overall))
        lines = ["# Benchmarks on a GPU", "", "<!-- Written by `python benches/gpu.py --output docs`. -->", ""]
        lines += [f"Measured on {today}, in {time.perf_counter() - self.start:.0f} seconds.", ""]
        lines += [f"- {line}" for line in self.machine]
        lines += [f"- A copy has {copy:,.0f} GB/s (read and written), a read {read:,.0f} GB/s"]
        lines += [f"- A launch takes {1e6 * self.bench.launch:.1f} µs of the host"]
        lines += [f"- {note}" for note in self.notes]
        lines += ["", "## Targets", "", "The worst row decides.", ""]
        lines += table(["target", "measured", "reached"], verdicts(self.results, overall, self.ending))
        lines += ["", "## The end of the reduction", ""]
        if self.ending:
            both, without = (1e6 * seconds for seconds in self.ending)
            lines += [f"The norm of 10^9 float32 elements takes {both:,.1f} µs, and {without:,.1f} µs if its kernel"]
            lines += ["neither finds out which block is the last one nor lets that block add up the parts."]
        else:
            lines += ["It was not measured."]
        lines += ["", "## The columns", "", "```text", self.columns, "```"]
        for dtype, group in groupby(self.results, lambda result: result.row.dtype):
            results = list(group)
            done = [result for result in results if NO_TIME not in result.notes]
            lines += ["", f"## {dtype}", ""]
            lines += table(HEAD, [cells(result, overall) for result in done]) if done else []
            if len(done) < len(results):
                lines += [*([""] if done else []), f"No time was left for {len(results) - len(done)} rows."]
        return "\n".join(lines) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a table."""
    line = "|---|" + "--:|" * (len(head) - 2) + "---|"
    return ["| " + " | ".join(head) + " |", line, *("| " + " | ".join(row) + " |" for row in rows)]


def describe(cupy: Any, torch: Any) -> list[str]:
    """Describe the machine and the versions."""
    runtime = cupy.cuda.runtime
    device, driver = runtime.getDeviceProperties(runtime.getDevice()), runtime.driverGetVersion()
    gpu = [device["name"].decode(), f"{device['totalGlobalMem'] / 2**30:.0f} GiB"]
    gpu += [f"{device['multiProcessorCount']} multiprocessors", f"L2 cache {device['l2CacheSize'] / 2**20:.0f} MiB"]
    software = [f"CUDA driver {driver // 1000}.{driver % 1000 // 10}", f"CuPy {cupy.__version__}"]
    software += ["no torch" if torch is None else f"torch {torch.__version__}", f"NumPy {np.__version__}"]
    software += [f"gradclip {gc.__version__}", f"Python {platform.python_version()}", platform.system()]
    return [", ".join(gpu), ", ".join(software)]
