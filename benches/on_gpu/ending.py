"""The end of the reduction, which one block of threads does alone."""

from __future__ import annotations

import contextlib
from statistics import median
from typing import TYPE_CHECKING, Any

import gradclip as gc
from gradclip._cuda import _device

from on_gpu.arrays import Arrays
from on_gpu.rows import HUGE, NORM, Row
from on_gpu.timing import FEWEST, FIRST, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def without_end() -> Iterator[None]:
    """Make gradclip compile the kernel that adds up blocks so that no block of threads adds up the list."""
    own = vars(_device)
    before, end = own["source"], "end_of_first(p, order, near[0]);"
    if before().count(end) != 1:
        raise ValueError("the kernel `ends` does not end as it did")
    text = before().replace(end, f"if (p.w[COUNT] < 0) {end}")

    def use(source: Any) -> None:
        own["source"] = source
        own["_function"].cache_clear()
        gc.trim()

    use(lambda: text)
    try:
        yield
    finally:
        use(before)


def ending(bench: Bench) -> tuple[float, float]:
    """Return the seconds of the norm of 10^9 elements, with and without the end of the reduction."""
    row = Row("one of 10^9", NORM, "float32", [(HUGE,)], None)
    tensors = [Arrays(bench.cupy, row, bench.pool).buffer]

    def seconds() -> list[float]:
        host, _ = min(bench.once(lambda: gc.global_norm(tensors)) for _ in range(2))
        return [bench.device(lambda: gc.global_norm(tensors), host) for _ in range(FIRST)]

    both, without = [], []
    for _ in range(FEWEST):
        both += seconds()
        with without_end():
            without += seconds()
    return median(both), median(without)
