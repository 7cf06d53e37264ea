"""What calls take where other threads want the CPUs: right after a matrix product of NumPy.

The threads of a BLAS library look for work for a while after each product, so that in a training loop of NumPy they
hold the CPUs when gradients are clipped. Each call is timed after such a product and after a rest, with all threads and
with one.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from statistics import mean, median
from typing import TYPE_CHECKING

import gradclip as gc
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (300_000, 1_000_000, 1_600_000, 4_000_000, 16_000_000)
#: Longer than threads of OpenBLAS look for work, in seconds.
REST = 0.15


def times(call: Callable[[], object], before: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each call."""
    found = []
    for _ in range(repeats):
        before()
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def main() -> None:
    """Print a line for each call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40, help="calls of each kind (default: %(default)s)")
    parser.add_argument("--shrink", type=int, default=1, help="divides all sizes (default: %(default)s)")
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    matrix = random.standard_normal((600, 600), np.float32)
    before = {"after a product": lambda: matrix @ matrix, "after a rest": lambda: time.sleep(REST)}
    threads = gc.get_num_threads()
    print(f"{'':36}{'':17}{'threads':>8}{'median, us':>12}{'mean, us':>12}{'longest, us':>12}")
    for size in (size // arguments.shrink for size in SIZES):
        t = random.standard_normal(size, np.float32)
        limit = float(gc.norm(t)) * (1 - 1e-8)
        calls: dict[str, Callable[[], object]] = {
            f"norm of {size:,}": partial(gc.norm, t),
            f"clip_by_norm of {size:,}, in place": partial(gc.clip_by_norm, t, limit, out=t),
        }
        for name, call in calls.items():
            for when, prepare in before.items():
                for count in sorted({1, threads}):
                    gc.set_num_threads(count)
                    found = [1e6 * seconds for seconds in times(call, prepare, arguments.repeats)]
                    figures = "".join(f"{value:12.0f}" for value in (median(found), mean(found), max(found)))
                    print(f"{name:36}{when:17}{count:8}{figures}", flush=True)
    gc.set_num_threads(threads)


if __name__ == "__main__":
    main()
