"""What a call costs next to NumPy's usual formula.

    python benches/compare.py [--quick] [--seconds 1.0]

A row is one thing to do, and its times are medians: of the gradclip call, and of what people write with
NumPy, such as ``t * (c / max(np.sqrt(np.sum(t * t)), c))``, ``np.linalg.norm(t)`` and ``np.clip(t, a, b)``.
The two are timed in turns in one process, and who comes first changes from round to round. ``ratio`` is
NumPy's time divided by gradclip's, the median of the rounds: above 1, gradclip is faster. Times on a busy
machine wander, and ratios much less, so compare ratios, and only those of one run.

NumPy computes in the dtype of the data, on one thread (``np.linalg.norm`` of a whole array on those of its
BLAS), gradclip in float64, on ``get_num_threads()``. To compare one thread with one, set
``GRADCLIP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1``.

"new" makes a new array, "out=" writes to another one, "in place" to the same. The limit of "in place" is just
below the norm: each call does all the work, and the next one finds the same numbers. That of "not clipped" is
above it. Before anything is timed, the results of both are compared with NumPy's formula in float64.
"""

from __future__ import annotations

import argparse
import sys
import timeit
from dataclasses import dataclass
from functools import partial
from operator import mul, truediv
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

import gradclip as gc
import numpy as np

try:
    from tqdm import tqdm
except ModuleNotFoundError:
    tqdm = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Names: TypeAlias = "dict[str, Any]"

BATCH = 5e-4  # seconds: shorter calls are repeated until a timing takes so long
ROUNDS = (5, 200)
LONG = 16 << 20  # elements of the longest array: 64 MiB of float32


@dataclass(frozen=True)
class Row:
    """One thing to do, as an expression for either side, and what makes the names in it."""

    name: str
    gradclip: str
    numpy: str
    names: Callable[[], Names]


@dataclass(frozen=True)
class Timing:
    """The medians of a row, in seconds per call."""

    gradclip: float
    numpy: float
    ratio: float


def clip_list(tensors: list[Any], c: float) -> tuple[list[Any], Any]:
    """Clip by the global norm, as one writes it with NumPy."""
    norm = np.sqrt(sum(np.sum(t * t) for t in tensors))
    scale = c / max(norm, c)
    return [t * scale for t in tensors], norm


def tensor(*shape: int) -> Names:
    """Make a float32 tensor with limits: by size, and by the tensor's own norm."""
    t = np.random.default_rng(0).standard_normal(shape, np.float32)
    norm = float(np.linalg.norm(t.astype(np.float64)))
    return {"t": t, "out": np.zeros_like(t), "c": 1.0, "below": norm * (1 - 1e-9), "above": norm * 2}


def tensors(shapes: Iterable[tuple[int, ...]]) -> Names:
    """Make a list of float32 tensors."""
    rng = np.random.default_rng(0)
    return {"ts": [rng.standard_normal(shape, np.float32) for shape in shapes], "c": 1.0}


def scale(limit: str) -> str:
    """Write the factor of clipping by the norm with NumPy."""
    return f"{limit} / max(np.sqrt(np.sum(t * t)), {limit})"


#: What is timed of one tensor, whatever its size.
OF_ONE_TENSOR = {
    "norm": ("gc.norm(t)", "np.linalg.norm(t)"),
    "clip_by_norm, new": ("gc.clip_by_norm(t, c)", f"t * ({scale('c')})"),
    "clip_by_norm, out=": ("gc.clip_by_norm(t, c, out=out)", f"np.multiply(t, {scale('c')}, out=out)"),
    "clip_by_norm, in place": (
        "gc.clip_by_norm(t, below, out=t)",
        f"np.multiply(t, {scale('below')}, out=t)",
    ),
    "clip_by_norm, in place, not clipped": (
        "gc.clip_by_norm(t, above, out=t)",
        f"np.multiply(t, {scale('above')}, out=t)",
    ),
    "clip_by_value, new": ("gc.clip_by_value(t, -1, 1)", "np.clip(t, -1, 1)"),
    "clip_by_value, out=": ("gc.clip_by_value(t, -1, 1, out=out)", "np.clip(t, -1, 1, out=out)"),
}


def all_rows(shrink: int) -> list[Row]:
    """Make the table, with the lengths of what is long divided by `shrink`."""
    short, medium, long = 10, 1_000_000 // shrink, LONG // shrink
    wide, narrow = (20_000 // shrink, 768), (64, 262_144 // shrink)
    hidden, gates = 512, 2048 // shrink
    lstm = [(10_000 // shrink, hidden), *2 * [(2 * hidden, gates), (gates,)], (hidden, 1000), (1000,)]
    along = "t * (c / np.maximum(np.sqrt(np.sum(t * t, axis={}, keepdims=True)), c))".format
    of_list = ("gc.clip_by_global_norm(ts, c)", "clip_list(ts, c)")
    row_clip, column_clip = ((f"gc.clip_by_norm(t, c, axes={axis})", along(axis)) for axis in (1, 0))
    row_norm = ("gc.norm(t, axis=1)", "np.linalg.norm(t, axis=1)")
    powers = {p: (f"gc.norm(t, ord={p})", f"np.linalg.norm(t, ord={p})") for p in (1.5, 3.7)}
    return [
        *(
            Row(f"{size:,}: {name}", *sides, partial(tensor, size))
            for size in (short, 1000, medium, long)
            for name, sides in OF_ONE_TENSOR.items()
        ),
        Row("gradients of an LSTM: clip_by_global_norm", *of_list, partial(tensors, lstm)),
        Row("1000 tensors of 1024: clip_by_global_norm", *of_list, partial(tensors, 1000 * [(1024,)])),
        Row(f"{wide}: clip_by_norm, axes=1", *row_clip, partial(tensor, *wide)),
        Row(f"{narrow}: clip_by_norm, axes=0", *column_clip, partial(tensor, *narrow)),
        Row(f"{wide}: norm, axis=1", *row_norm, partial(tensor, *wide)),
        *(Row(f"{medium:,}: norm, ord={p}", *sides, partial(tensor, medium)) for p, sides in powers.items()),
    ]


def map_arrays(change: Callable[[Any], Any], value: Any) -> Any:
    """Change the arrays among the names of a row."""
    if isinstance(value, dict):
        return {name: map_arrays(change, each) for name, each in value.items()}
    if isinstance(value, list):
        return [map_arrays(change, each) for each in value]
    return change(value) if isinstance(value, np.ndarray) else value


def check(row: Row, expression: str, names: Names, expected: Any, tolerance: float) -> None:
    """Compare what an expression gives with the same in float64."""
    found = evaluate(expression, names)
    # A list and its norm, or one result.
    pairs = [(found, expected)]
    if isinstance(found, tuple):
        pairs = [*zip(found[0], expected[0], strict=True), (found[1], expected[1])]
    for a, b in pairs:
        # A tiny element is measured against the size of the whole.
        if not np.allclose(a, b, rtol=tolerance, atol=tolerance * float(np.max(np.abs(b)))):
            sys.exit(f"{row.name}: {expression} is wrong")


def evaluate(expression: str, names: Names) -> Any:
    """Give the value of an expression of the table."""
    return eval(expression, globals(), names)  # noqa: S307 (written above)


def measure(row: Row, seconds: float) -> Timing:
    """Time the two sides of a row in turns."""
    made = row.names()
    expected = evaluate(row.numpy, map_arrays(lambda x: x.astype(np.float64), made))
    timers = []
    # NumPy's float32 sums are good to some digits only.
    for expression, tolerance in ((row.gradclip, 2e-7), (row.numpy, 1e-4)):
        names = map_arrays(np.copy, made)
        check(row, expression, names, expected, tolerance)
        timers.append(timeit.Timer(expression, globals=globals() | names))
    del expected
    once = [min(timer.repeat(3, 1)) for timer in timers]
    calls = [max(1, round(BATCH / time)) for time in once]
    rounds = round(seconds / sum(map(mul, once, calls)))
    times: list[list[float]] = [[], []]
    for i in range(min(max(rounds, ROUNDS[0]), ROUNDS[1])):
        for side in (0, 1) if i % 2 else (1, 0):
            times[side].append(timers[side].timeit(calls[side]) / calls[side])
    ours, numpys = times
    return Timing(median(ours), median(numpys), median(map(truediv, numpys, ours)))


def readable(seconds: float) -> str:
    """Write a time in the unit that suits it."""
    for unit in ("s", "ms", "µs"):
        if seconds >= 1:
            return f"{seconds:.3g} {unit}"
        seconds *= 1000
    return f"{seconds:.0f} ns"


def main() -> None:
    """Measure all rows and print them."""
    parser = argparse.ArgumentParser(description="Time gradclip and NumPy's usual formulas in turns.")
    parser.add_argument("--quick", action="store_true", help="small data and few rounds, to see that it runs")
    parser.add_argument("--seconds", type=float, help="time to spend on each row (1, with --quick 0.02)")
    options = parser.parse_args()
    seconds = options.seconds or (0.02 if options.quick else 1)
    shrink = 16 if options.quick else 1
    rows = all_rows(shrink)

    progress = rows if tqdm is None else tqdm(rows, unit="row", leave=False)
    timings = {row.name: measure(row, seconds) for row in progress}

    width = max(map(len, timings))
    print(f"gradclip {gc.__version__} on {gc.get_num_threads()} threads, NumPy {np.__version__}; float32\n")
    print(f"{'':{width}} {'gradclip':>9} {'NumPy':>9} {'ratio':>6}")
    for name, timing in timings.items():
        ours, numpys = readable(timing.gradclip), readable(timing.numpy)
        print(f"{name:{width}} {ours:>9} {numpys:>9} {timing.ratio:6.2f}")

    clip, norm = timings["10: clip_by_norm, new"], timings[f"{LONG // shrink:,}: norm"]
    size = LONG // shrink * np.dtype(np.float32).itemsize
    print(f"\nClip of ten elements: {clip.gradclip * 1e9:.0f} ns, {clip.ratio:.1f} times as fast as NumPy")
    print(f"L2 norm of {size >> 20} MiB float32: {size / norm.gradclip / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
