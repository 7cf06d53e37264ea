"""Time a fresh process: the import, and the first call."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from statistics import median

#: Elements of the arrays of first calls: small; larger than what the C library keeps; past the caches.
SIZES = (1_000, 1_000_000, 25_000_000)
#: The code that is run in each process, and timed.
IMPORT = "import gradclip"
CALLS = {
    "gradclip": ("import gradclip as gc", "clipped = gc.clip_by_norm(t, 1.0)"),
    "NumPy": ("", "n = np.sqrt(np.vdot(t, t)); clipped = t * np.float32(1.0 / max(n, 1.0))"),
}


@dataclass(frozen=True)
class Fresh:
    """Medians over processes, in seconds."""

    #: `import gradclip`, where NumPy is imported already.
    imported: float
    #: The first call of a process, into new memory, by elements and library.
    first: dict[int, dict[str, float]]


def seconds(before: str, timed: str) -> float:
    """Time a statement in a separate process, after other statements."""
    clock = "time.perf_counter()"
    script = f"import time, numpy as np\n{before}\nstart = {clock}\n{timed}\nprint({clock} - start)\n"
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 (no input in it)
    return float(run.stdout)


def measure_fresh(repeats: int, shrink: int = 1) -> Fresh:
    """Start processes, in turns."""
    imported = median(seconds("", IMPORT) for _ in range(repeats))
    first: dict[int, dict[str, float]] = {}
    for elements in (size // shrink for size in SIZES):
        times: dict[str, list[float]] = {name: [] for name in CALLS}
        for _ in range(repeats):
            for name, (before, timed) in CALLS.items():
                times[name].append(seconds(f"{before}\nt = np.ones({elements}, np.float32)", timed))
        first[elements] = {name: median(each) for name, each in times.items()}
    return Fresh(imported, first)
