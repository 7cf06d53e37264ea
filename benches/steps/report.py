"""The table, for the terminal and for the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from report import aligned, bullets, number, table
from timing import readable

from steps.libraries import ONE_THREAD, OURS, POOL_OFF, is_peer
from steps.scenarios import LEAST, LEAST_AFTER_PRODUCT
from steps.summary import MEAN, TAIL, VARIANT, counts, geometric_mean

if TYPE_CHECKING:
    from steps.results import Results
    from steps.summary import Line

HEAD = (
    "program",
    "best peer",
    "",
    "gradclip",
    "ratio",
    "p95 / peer's",
    "/ 1 thread's",
    "/ pool off's",
    "memory",
    "NumPy's",
    "missed",
)

START = """\
# Benchmarks

<!-- Written by `make compare`: change benches/steps instead. -->

"""

MEASURED = """\
Measured on {date}: {machine}.
Versions: {versions}.

`make compare` repeats the measurement and writes this page. [Benchmarks in loops](benchmarks-loops.md) has every
function, dtype, layout and size.
"""

HOW = """\
## How it is measured

Real programs do other work between two clips: matrix products by NumPy, whose threads stay awake for a while, fresh
gradients, an update, a pause. Each library runs such programs in separate processes that take turns. Only the clip is
timed, from Python, with default settings. Except for "first call", some calls come first that are not timed. Each
time is the median of the medians of {processes} processes (twice as many for "first call", one for 100M). The
results of each library are compared once with results in float64.

All numbers are float32. The programs come in three forms:

- "new" makes new arrays.
- "in place" writes into the gradients.
- "unclipped" has a norm below the limit. gradclip gets `out=`.

The columns of the first table:

- **ratio**: the time of the fastest peer divided by gradclip's time. Above 1, gradclip is faster. Targets: {least}
  for each program, {little} right after a matrix product in place and unclipped, and {mean} for the geometric mean.
- **p95 / peer's**: gradclip's 95th percentile divided by that of the same peer. Target: at most {tail}.
- **/ 1 thread's**: gradclip's time divided by its time with `GRADCLIP_NUM_THREADS=1`. Target: at most {variant}.
- **/ pool off's**: gradclip's time divided by its time with `GRADCLIP_POOL_BYTES=0`. Target: at most {variant}.
- **memory**: the peak memory of gradclip's process in MiB, above its memory just before the first clip. **NumPy's**:
  the same for NumPy's process.
- **missed**: the targets that gradclip missed.

"training step, 25M, new" takes 7 ms where the C library keeps the memory of its dropped results, else 13 to 16 ms:
see [Programs that drop their results](guide/threads-and-memory.md#programs-that-drop-their-results).
"""


def mebibytes(value: float | None) -> str:
    """Write a number of bytes."""
    return "" if value is None else f"{value / 2**20:.1f}"


@dataclass(frozen=True)
class Report:
    """The text about a run."""

    results: Results
    lines: list[Line]
    baseline: dict[str, Line]

    def cells(self, line: Line) -> list[str]:
        """Write a line."""
        best = line.best
        row = [
            line.name,
            best or "none",
            readable(line.times[best].median) if best else "",
            readable(line.ours.median) if line.ours else "wrong",
            number(line.ratio),
            number(line.tail),
            number(line.variant(ONE_THREAD)),
            number(line.variant(POOL_OFF)),
            *map(mebibytes, line.peaks()),
            ", ".join(line.missed()),
        ]
        if self.baseline:
            old = self.baseline.get(line.name)
            row.append(number(line.ours.median / old.ours.median) if line.ours and old and old.ours else "")
        return row

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the head and the lines, the mean last."""
        head = [*HEAD, *(["new / old"] if self.baseline else [])]
        mean = geometric_mean(line.ratio for line in self.lines if line.ratio is not None)
        last = ["geometric mean", *[""] * (len(head) - 1)]
        last[HEAD.index("ratio")] = number(mean)
        if mean is not None and mean < MEAN:
            last[HEAD.index("missed")] = "ratio"
        return head, [*map(self.cells, self.lines), last]

    def counts(self) -> str:
        """Return the number of lines that reach their targets."""
        missed = sum(bool(line.missed()) for line in self.lines)
        return f"{len(self.lines) - missed} of {len(self.lines)} programs reach all targets"

    def targets(self) -> str:
        """Describe the targets."""
        return (
            f"Targets: ratio at least {LEAST}, right after a matrix product in place and unclipped "
            f"{LEAST_AFTER_PRODUCT}; geometric mean at least {MEAN}; p95 at most {TAIL} of the best peer's; at most "
            f"{VARIANT} of the time with 1 thread, or pool off."
        )

    def notes(self) -> list[str]:
        """Name the libraries that are missing, and why."""
        found = [f"{name} is missing: {why}" for name, why in self.results.missing.items()]
        for scenario, libraries in self.results.scenarios.items():
            for name, runs in libraries.items():
                if not counts(name, runs):
                    why = runs.error or f"wrong, off by {runs.off}"
                    found.append(f"{scenario}, {name}: {why}")
        return found

    def versions(self) -> str:
        """Name the libraries."""
        return "; ".join(
            f"{name} {version}" for name, version in self.results.versions.items() if name == OURS or is_peer(name)
        )

    def text(self) -> str:
        """Write it for the terminal."""
        parts = [self.versions(), aligned(*self.rows()), self.targets(), bullets(self.notes()), self.counts()]
        return "\n\n".join(part for part in parts if part) + f", in {self.results.seconds:.0f} s"

    def summary(self) -> str:
        """Summarize the result in three sentences."""
        ratios = {each.name: each.ratio for each in self.lines if each.ratio is not None}
        mean = geometric_mean(ratios.values())
        if mean is None:
            return "No peer took part."
        ahead = sum(ratio > 1 for ratio in ratios.values())
        worst = sorted(ratios, key=lambda name: ratios[name])[:3]
        losses = "; ".join(f"{name} ({number(ratios[name])})" for name in worst if ratios[name] < 1)
        return (
            f"In {ahead} of {len(ratios)} small programs, gradclip clips faster than the fastest peer. "
            f"The geometric mean of the ratios is {number(mean)}.\n"
            + (f"The lowest ratios are: {losses}.\n" if losses else "")
            + "The picture shows how many milliseconds six of the programs wait for each clip."
        )

    def markdown(self) -> str:
        """Write the page."""
        head, rows = self.rows()
        peers = [name for name in self.results.versions if is_peer(name)]
        every = [OURS, *peers]
        times = [
            [line.name, *(readable(line.times[name].median) if name in line.times else "" for name in every)]
            for line in self.lines
        ]
        parts = [
            START + self.summary(),
            "![Milliseconds that a program waits](benchmarks/steps.png)",
            MEASURED.format(date=self.results.date, machine="; ".join(self.results.machine), versions=self.versions()),
            HOW.format(
                processes=self.results.processes,
                least=LEAST,
                little=LEAST_AFTER_PRODUCT,
                mean=MEAN,
                tail=TAIL,
                variant=VARIANT,
            ),
            "## Programs",
            f"{self.counts()}.",
            table(head, rows, left=2),
            "## Times of all libraries",
            table(["program", *every], times),
            bullets(self.notes()),
        ]
        return "\n\n".join(part.strip() for part in parts if part) + "\n"
