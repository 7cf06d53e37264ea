"""The tables and plots."""

from __future__ import annotations

import importlib
import os
import platform
import textwrap
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floor import cpus
from growth import OPERATIONS, TENSOR, Growth, Point, caches
from peers import OURS
from timing import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fresh import Fresh
    from run import Result

#: The most seconds that `import gradclip` may take.
IMPORT = 0.015
#: More than this of a CPU for other processes disturbs a row.
DISTURBED = 0.1

START = """\
# Benchmarks in loops

<!-- Written by `make compare`: change benches/compare instead. -->

This page compares the times of gradclip, NumPy, PyTorch, TensorFlow and optax in loops that repeat one call with the
same arguments. [Benchmarks](benchmarks.md) has the times inside programs. `make compare` installs all libraries into
a separate environment, repeats the measurement and writes this page.
"""

HOW = """\
## How it is measured

- Each time is the median of calls from Python, with each library's default settings and all its threads.
- The libraries take turns in one process, in an order that changes from round to round, on arrays in their own
  memory.
- Before calls of less than 5 ms, each library makes at least four calls that are not timed. So the caches are in the
  state that its own calls leave.
- Python's garbage collector is off. Results are dropped at once.
- The results of each library are compared once with results in float64. Peers with an error of up to 0.1 of the
  largest number count.
- If a library has several good forms, the fastest one counts.
- TensorFlow runs under `tf.function`, JAX under `jit`. Both make new arrays in every form.

The rows come in four forms:

- "new" makes new arrays.
- "out=" writes into other arrays.
- "in place" writes into the inputs. Every call scales them.
- "unclipped" has norms at or below the limit. The peers compute the norm and compare it.

In "layouts" and "every size" the only peer is NumPy, because the others support few layouts.

- **ratio**: the time of the fastest peer divided by gradclip's time. Above 1, gradclip is faster.
- **target**: the ratio that the row should reach.
- **floor**: the time that memory needs, divided by gradclip's time, for sets of 32 MiB or more. It is the time to
  read the same bytes, plus a streaming copy into mapped memory or an in-place scale if the row writes. All CPUs take
  part, and it is measured between the same rounds. The floor can be above 1 if part of the bytes is in a cache. A row
  also reaches its target with a floor of 0.9 and a ratio of 1, unless the floor is in brackets. A target with `!`
  requires both the floor and the ratio.
"""

GROWTH = """\
## How the cost grows

Nanoseconds per KiB of `clip_by_global_norm` and `global_norm`, float32. A star marks more than 1.5 times the cost of
the size before, or of fewer threads.

![Time per byte](benchmarks/growth.png)

![Threads](benchmarks/threads.png)
"""


def machine() -> list[str]:
    """Describe the machine."""
    model = platform.processor() or platform.machine()
    memory = ""
    cpuinfo, meminfo = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    if meminfo.exists():
        memory = f"{int(meminfo.read_text().split()[1]) / 2**20:.0f} GiB of memory"
    sizes = ", ".join(f"{name} {size >> 10} KiB" for name, size in caches().items())
    return [
        part
        for part in (
            model,
            f"{cpus()} CPUs",
            f"caches: {sizes}" if sizes else "",
            memory,
            platform.system(),
            f"Python {platform.python_version()}",
        )
        if part
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Write a Markdown table, its first columns to the left."""
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|" + "|".join("---" if i < left else "--:" for i in range(len(head))) + "|")
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table for the terminal."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for first, *rest in [head, *rows]:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        lines.append("  ".join(cells))
    return "\n".join(lines)


def bullets(lines: Iterable[str]) -> str:
    """Write a list, with lines of at most 120 characters."""
    return "\n".join(textwrap.fill(f"- {line}", 120, subsequent_indent="  ", break_on_hyphens=False) for line in lines)


def number(value: float | None) -> str:
    """Write a ratio."""
    return "" if value is None else f"{value:.2f}"


def size(nbytes: int) -> str:
    """Write a number of bytes."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1 << 10:
            return f"{nbytes} {unit}"
        nbytes = round(nbytes / 1024)
    return f"{nbytes} GiB"


@dataclass(frozen=True)
class Report:
    """All measurements."""

    results: list[Result]
    growth: Growth | None
    fresh: Fresh | None
    versions: list[str]
    missing: dict[str, str]
    no_floor: str | None
    seconds: float

    #: The heads of the main table.
    HEAD = ("row", "gradclip", "best peer", "", "ratio", "target", "floor", "verdict")

    def lines(self, *, sweep: bool) -> list[list[str]]:
        """Return the main table, or that of the sweep."""
        lines = []
        for result in self.results:
            if bool(result.row.sweep) != sweep:
                continue
            row, best, share = result.row, result.best, number(result.share)
            if share and not row.floor_counts:
                share = f"({share})"
            ours = readable(result.times[OURS]) if OURS in result.times else "wrong"
            peer = (best, readable(result.times[best])) if best else ("none", "")
            target = f"{row.target:g}" + ("!" if row.floor_too else "")
            lines.append([row.name, ours, *peer, number(result.ratio), target, share, result.verdict])
        return lines

    def fresh_lines(self) -> list[str]:
        """Return lines about the time of the import and first calls."""
        if self.fresh is None:
            return []
        imported = self.fresh.imported
        verdict = "reached" if imported <= IMPORT else "short"
        lines = [f"`import gradclip` after NumPy: {readable(imported)}, target {readable(IMPORT)}: {verdict}"]
        for elements, times in self.fresh.first.items():
            ours, peer = times[OURS], times["NumPy"]
            verdict = "reached" if ours <= peer else "short"
            lines.append(
                f"first call of a process, `clip_by_norm` of {elements:,} elements into new memory: {readable(ours)}, "
                f"NumPy {readable(peer)}, ratio {peer / ours:.2f}, target 1: {verdict}"
            )
        return lines

    def counts(self) -> str:
        """Return the number of rows that reach their target."""
        reached = sum(result.verdict.startswith("reached") for result in self.results)
        return f"{reached} of {len(self.results)} rows reached, in {self.seconds:.0f} s"

    def notes(self) -> list[str]:
        """Return notes on missing libraries, missing floors, disturbed rows and single rows."""
        lines = [f"{name} is missing: {why}" for name, why in self.missing.items()]
        if self.no_floor:
            lines.append(f"no floors: {self.no_floor}")
        if disturbed := [result.row.name for result in self.results if result.others > DISTURBED]:
            lines.append(
                f"disturbed rows, where other processes used more than {DISTURBED:.0%} of a CPU (libraries whose "
                f"threads wait for each other slow down most): {'; '.join(disturbed)}"
            )
        # One line for all rows with the same reason.
        rows: dict[str, list[str]] = {}
        for result in self.results:
            for note in result.notes:
                rows.setdefault(note, []).append(result.row.name)
        return lines + [f"{note} [{'; '.join(names)}]" for note, names in rows.items()]

    def text(self) -> str:
        """Write it all for the terminal."""
        parts = [aligned(self.HEAD, self.lines(sweep=False) + self.lines(sweep=True)), "\n".join(self.fresh_lines())]
        parts.append(bullets(self.notes()))
        if self.growth is not None:
            parts += ["\n".join(self.tensor_lines()), "\n".join(self.step_lines())]
        return "\n\n".join(part for part in [", ".join(self.versions), *parts, self.counts()] if part)

    def tensor_lines(self) -> list[str]:
        """Return lines about the cost of a short tensor."""
        growth = self.growth
        if growth is None:
            return []
        return [
            f"10,000 tensors of {length}, {operation}: {ns:.0f} ns a tensor, target {TENSOR[operation]}: "
            + ("reached" if ns <= TENSOR[operation] else "short")
            for (operation, length), ns in growth.tensors.items()
        ]

    def step_lines(self) -> list[str]:
        """Return lines about the flagged steps, with explanations."""
        growth = self.growth
        if growth is None:
            return []
        return [self.step_line(growth, a, b) for a, b in growth.steps()]

    @staticmethod
    def step_line(growth: Growth, a: Point, b: Point) -> str:
        """Return a line about one step."""
        what = f"{b.operation}, {b.tensors:,} tensor{'s' if b.tensors > 1 else ''}, "
        if a.threads != b.threads:
            what += f"{size(b.nbytes)}, {a.threads} -> {b.threads} threads"
        else:
            what += f"{size(a.nbytes)} -> {size(b.nbytes)}, {b.threads} threads"
        # New outputs take the same number of bytes again.
        copies = 2 if b.operation == "new" else 1
        left = [name for name, bytes_ in caches().items() if a.nbytes * copies <= bytes_ < b.nbytes * copies]
        note = f" (leaves {', '.join(left)})" if left and a.threads == b.threads else ""
        before, after = growth.per_byte(a), growth.per_byte(b)
        return f"{what}: {before:.3g} -> {after:.3g} ns/KiB, {after / before:.2f}x{note}"

    def growth_table(self) -> str:
        """Write the growth table: nanoseconds per KiB by bytes, of all operations and numbers of tensors."""
        growth = self.growth
        if growth is None:
            return ""
        flagged = {b for _, b in growth.steps()}
        lines: dict[tuple[str, int, int], dict[int, str]] = {}
        for point in growth.times:
            cell = f"{growth.per_byte(point):.3g}" + (" \\*" if point in flagged else "")
            # A size that does not divide evenly is some bytes short of the power of two.
            power = 1 << (point.nbytes * 5 // 4).bit_length() - 1
            lines.setdefault((point.operation, point.tensors, point.threads), {})[power] = cell
        powers = sorted({power for cells in lines.values() for power in cells})
        order = list(OPERATIONS)
        return table(
            ["", "tensors", "threads", *map(size, powers)],
            [
                [operation, f"{tensors:,}", str(threads), *(cells.get(power, "") for power in powers)]
                for (operation, tensors, threads), cells in sorted(
                    lines.items(), key=lambda line: (order.index(line[0][0]), line[0][1:])
                )
            ],
        )

    def markdown(self) -> str:
        """Write the document."""
        names = sorted({name for result in self.results for name in result.times if name != OURS})
        peers = [[result.row.name, *(self.cell(result, name) for name in [OURS, *names])] for result in self.results]
        measured = f"Measured on {datetime.now(timezone.utc):%Y-%m-%d}: {'; '.join(machine())}."
        parts = [
            START,
            f"{measured}\nVersions: {'; '.join(self.versions)}.",
            HOW,
            f"## Rows\n\n{self.counts()}.",
            "![Ratios](benchmarks/ratios.png)",
            table(self.HEAD, self.lines(sweep=False)),
            bullets(self.fresh_lines()),
            "## Every size\n\nAgainst NumPy's best form, float32.",
            table(self.HEAD, self.lines(sweep=True)),
            "## All peers\n\nTimes, and the form that was fastest.",
            table(["row", OURS, *names], peers),
        ]
        if notes := self.notes():
            parts += ["## Notes", bullets(notes)]
        if self.growth is not None:
            parts += [GROWTH, self.growth_table(), bullets(self.tensor_lines())]
            parts += ["Steps of more than 1.5x:", bullets(self.step_lines() or ["none"])]
        return "\n\n".join(part.strip() for part in parts if part) + "\n"

    @staticmethod
    def cell(result: Result, name: str) -> str:
        """Write a time and its form."""
        if name not in result.times:
            return ""
        label = result.forms[name]
        return readable(result.times[name]) + (f" ({label})" if label else "")

    def write(self, directory: Path) -> None:
        """Write the document and the plots."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "benchmarks-loops.md"
        path.write_text(self.markdown(), encoding="utf-8")
        try:
            importlib.import_module("matplotlib").use("Agg")
        except ImportError:
            print("no plots: matplotlib is not installed")
            return
        plots = directory / "benchmarks"
        plots.mkdir(exist_ok=True)
        self.plot_ratios(plots / "ratios.png")
        if self.growth is not None:
            plot_growth(self.growth, plots / "growth.png")
            plot_threads(self.growth, plots / "threads.png")
        print(f"{os.path.relpath(path)} and its plots are written")

    def plot_ratios(self, path: Path) -> None:
        """Draw a bar per row, and its target."""
        plt: Any = importlib.import_module("matplotlib.pyplot")
        results = [result for result in self.results if result.ratio is not None and not result.row.sweep][::-1]
        figure, axes = plt.subplots(figsize=(9, 1.2 + 0.19 * len(results)), layout="constrained")
        colours = ["tab:green" if result.verdict.startswith("reached") else "tab:red" for result in results]
        places = range(len(results))
        axes.barh(places, [(result.ratio or 1) - 1 for result in results], left=1, color=colours, height=0.7)
        axes.plot([result.row.target for result in results], places, "k|", markersize=7, label="target")
        axes.set_yticks(places, [result.row.name for result in results], fontsize=7)
        axes.set_xscale("log")
        ticks = [0.5, 1, 2, 5, 10, 20, 50]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_ylim(-0.7, len(results) - 0.3)
        axes.set_xlabel("time of the fastest peer / time of gradclip")
        axes.grid(axis="x", alpha=0.3)
        axes.legend(loc="lower right")
        figure.savefig(path, dpi=110)
        plt.close(figure)


def plot_growth(growth: Growth, path: Path) -> None:
    """Draw the time per byte against the size, of all threads."""
    plt: Any = importlib.import_module("matplotlib.pyplot")
    most = max(point.threads for point in growth.times)
    figure, grid = plt.subplots(2, 2, figsize=(10, 7), sharex=True, sharey=True, layout="constrained")
    for axes, operation in zip(grid.flat, OPERATIONS, strict=True):
        for count in sorted({point.tensors for point in growth.times}):
            points = sorted(p for p in growth.times if (p.operation, p.tensors, p.threads) == (operation, count, most))
            axes.plot(
                [p.nbytes for p in points], [growth.times[p] / p.nbytes * 1e9 for p in points], ".-", label=f"{count:,}"
            )
        for name, bytes_ in caches().items():
            axes.axvline(bytes_, color="grey", linewidth=0.8, linestyle=":")
            axes.annotate(name, (bytes_, 0.98), xycoords=("data", "axes fraction"), fontsize=7, va="top")
        axes.set(title=f"{operation}, {most} threads", xscale="log", yscale="log")
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
    for axes in grid[-1]:
        axes.set_xlabel("bytes")
    for axes in grid[:, 0]:
        axes.set_ylabel("ns per byte")
    grid[0, 0].legend(title="tensors", fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_threads(growth: Growth, path: Path) -> None:
    """Draw the speed-up by threads against the size, of one tensor and of many."""
    plt: Any = importlib.import_module("matplotlib.pyplot")
    counts = sorted({point.tensors for point in growth.times})
    shown = [counts[0], counts[-1]]
    figure, grid = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axes, operation in zip(grid, ("in place", "new"), strict=True):
        for count, style in zip(shown, ("-", "--"), strict=True):
            for number_ in sorted({point.threads for point in growth.times} - {1}):
                points = sorted(
                    p for p in growth.times if (p.operation, p.tensors, p.threads) == (operation, count, number_)
                )
                alone = [growth.times[Point(operation, count, 1, p.nbytes)] for p in points]
                speed = [one / growth.times[p] for one, p in zip(alone, points, strict=True)]
                axes.plot([p.nbytes for p in points], speed, "." + style, label=f"{number_} threads, {count:,} tensors")
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set(title=operation, xlabel="bytes")
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("speed, one thread = 1")
    grid[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
