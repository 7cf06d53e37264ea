"""Launches, copies and waits, counted by PyTorch's profiler."""

from __future__ import annotations

import importlib
import json
import re
import tempfile
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from on_gpu.arrays import Arrays
from on_gpu.libraries import OURS, ours
from on_gpu.results import Counts, Result
from on_gpu.rows import IN_PLACE, UNCLIPPED
from on_gpu.timing import COPY, STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from on_gpu.timing import Bench

#: Pauses around a call whose events are counted, as two clocks tell the times.
PAUSE = 1e-3
CONTROL = "gradclip: a launch, a copy and a wait"
LAUNCHES = re.compile(r"cu(da)?Launch\w*Kernel")
COPIES = re.compile(r"cu(da)?Mem(cpy|set)")
WAITS = re.compile(r"cu(da)?\w*Synchronize|cu(da)?Memcpy(?!\w*Async)")


def profiled(bench: Bench, results: Sequence[Result], until: float) -> str:
    """Count launches, copies and waits of gradclip's calls; return a sentence on how."""
    if bench.torch is None:
        return "PyTorch is not installed, so the profiler counted nothing; the launches are those of the CUDA graph."
    profiler = importlib.import_module("torch.profiler")
    kinds = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    with profiler.profile(activities=kinds) as session:

        def count(name: str, call: Callable[[], Any]) -> None:
            bench.stream.synchronize()
            with profiler.record_function(name):
                time.sleep(PAUSE)
                made = call()
                time.sleep(PAUSE)
            del made

        def control() -> None:
            bench.wait((1,), (1,), (np.int64(0),))
            bench.probes[COPY]()
            bench.stream.synchronize()

        count(CONTROL, control)
        done = [result for result in results if OURS in result.times]
        for _, group in groupby(done, lambda result: (result.row.what, result.row.dtype)):
            if time.perf_counter() > until:
                break
            rows = [result.row for result in group]
            arrays = Arrays(bench.cupy, rows[0], bench.pool)
            ways = ours(arrays.views(arrays.buffer), rows[0].axis)
            for row in rows:
                way, limit = ways[IN_PLACE if row.operation == UNCLIPPED else row.operation], row.limit
                way(limit)
                way(limit * STEP)
                count(row.name, lambda: way(limit * STEP**2))  # noqa: B023 (called here)
            bench.stream.synchronize()
    counts = counted(session)
    control_counts = counts.pop(CONTROL, Counts(0, 0, 0))
    if not control_counts.waits:
        return (
            f"The profiler does not see CuPy's waits: it saw {tuple(control_counts)} of a launch, a copy and a wait. "
            "The launches are those of the CUDA graph, in which no wait can be captured."
        )
    for result in results:
        result.counts = counts.get(result.row.name)
    return f"As a control, CuPy made a launch, a copy and a wait: the profiler saw {tuple(control_counts)}."


def counted(session: Any) -> dict[str, Counts]:
    """Count the calls of CUDA in each range that was recorded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        session.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    calls = [event for event in events if event.get("cat") in {"cuda_runtime", "cuda_driver"}]
    found = {}
    for event in events:
        if event.get("cat") == "user_annotation":
            start, end = event["ts"], event["ts"] + event["dur"]
            names = [call["name"] for call in calls if start <= call["ts"] < end]
            patterns = (LAUNCHES, COPIES, WAITS)
            found[event["name"]] = Counts(*(sum(bool(p.match(name)) for name in names) for p in patterns))
    return found
