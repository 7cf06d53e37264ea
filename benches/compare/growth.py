"""Growth of the cost of a list with its bytes, its tensors and the threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradclip
import numpy as np
from data import filled
from timing import Clock, Form, resting_collector

if TYPE_CHECKING:
    from data import Array

#: The operations, as expressions.
OPERATIONS = {
    "in place": "gc.clip_by_global_norm(ts, below, out=ts)",
    "new": "gc.clip_by_global_norm(ts, c)",
    "unclipped": "gc.clip_by_global_norm(ts, above, out=ts)",
    "norm": "gc.global_norm(ts)",
}
COUNTS = (1, 10, 100, 1000, 10_000)
#: The fewest elements of a tensor.
FEWEST = 4
#: A larger step in time per byte is flagged.
STEP = 1.5
#: The most nanoseconds for one more tensor, in place and with a new output.
TENSOR = {"in place": 70, "new": 160}
#: Elements of such tensors.
LENGTHS = (4, 8, 16)


@dataclass(frozen=True, order=True)
class Point:
    """A measured case."""

    operation: str
    tensors: int
    threads: int
    nbytes: int


@dataclass
class Growth:
    """Seconds per call by what was timed, and nanoseconds per tensor of 10,000 short ones by operation and length."""

    times: dict[Point, float] = field(default_factory=dict)
    tensors: dict[tuple[str, int], float] = field(default_factory=dict)

    def per_byte(self, point: Point) -> float:
        """Return the nanoseconds per KiB."""
        return self.times[point] * 1e9 / point.nbytes * 1024

    def steps(self) -> list[tuple[Point, Point]]:
        """Return the steps where a byte costs much more as the bytes, or the threads, grow."""
        points = sorted(self.times)
        lines: dict[tuple[Any, ...], list[Point]] = {}
        for point in points:
            lines.setdefault(("bytes", point.operation, point.tensors, point.threads), []).append(point)
            lines.setdefault(("threads", point.operation, point.tensors, point.nbytes), []).append(point)
        return [
            (a, b) for line in lines.values() for a, b in pairwise(line) if self.per_byte(b) > STEP * self.per_byte(a)
        ]

    def as_json(self) -> dict[str, Any]:
        """Return all of it, by names."""
        times = {f"{p.operation}|{p.tensors}|{p.threads}|{p.nbytes}": time for p, time in sorted(self.times.items())}
        return {"times": times, "tensors": {f"{o}|{n}": ns for (o, n), ns in self.tensors.items()}}


def caches() -> dict[str, int]:
    """Return the bytes of the data caches of the first CPU, where the system tells."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K"):
            found[f"L{level}"] = int(size[:-1]) << 10
    return found


def tensors_of(flat: Array, count: int, nbytes: int) -> list[Array]:
    """Cut the first bytes into tensors."""
    size = nbytes // flat.itemsize // count
    return list(flat[: size * count].reshape(count, size))


def forms(ts: list[Array]) -> dict[str, Form]:
    """Return the operations on a list."""
    norm = gradclip.global_norm(ts)
    names = {"gc": gradclip, "ts": ts, "c": 0.7 * norm, "below": norm * (1 - 1e-9), "above": 2 * norm}
    return {operation: Form(operation, expression, names) for operation, expression in OPERATIONS.items()}


def measure_growth(clock: Clock, *, quick: bool) -> Growth:
    """Measure it all, in two minutes, or some points of it."""
    growth = Growth()
    largest = 1 << 20 if quick else 1 << 31
    sizes = [1 << power for power in range(10, largest.bit_length(), 2)]
    if sizes[-1] < largest:
        sizes.append(largest)
    available = gradclip.get_num_threads()
    threads = sorted({1, *(1 << i for i in range(available.bit_length()) if 1 << i <= available), available})
    flat = filled((largest // 4,))
    seconds = 0.002 if quick else 0.03
    try:
        with resting_collector():
            for nbytes in sizes:
                for count in COUNTS:
                    if nbytes // count >= FEWEST * flat.itemsize:
                        ts = tensors_of(flat, count, nbytes)
                        for number in threads:
                            gradclip.set_num_threads(number)
                            for operation, form in forms(ts).items():
                                point = Point(operation, count, number, sum(t.nbytes for t in ts))
                                growth.times[point] = clock.alone(form, seconds, 9)
            gradclip.set_num_threads(available)
            for size in LENGTHS:
                ts = [np.full(size, 0.01, np.float32) for _ in range(1000 if quick else 10_000)]
                for operation, form in forms(ts).items():
                    if operation in TENSOR:
                        growth.tensors[operation, size] = clock.alone(form, 10 * seconds, 51) / len(ts) * 1e9
    finally:
        gradclip.set_num_threads(available)
    return growth
