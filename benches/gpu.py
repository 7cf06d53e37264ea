"""gradclip on CuPy arrays beside PyTorch, plain CuPy and the bandwidth of the same GPU. Needs a GPU and CuPy.

    python benches/gpu.py [--rows REGEX] [--seconds S] [--most S] [--dry] [--output docs]

A row is a set of arrays, their dtype and an operation. All libraries work on the same memory, PyTorch by way of DLPack.
They take turns, each for about the same time, and with 100 MB or more, copies and reads of 1 GiB do so too. Times are
medians.

device    between two CUDA events. A kernel that waits keeps the device busy before, so that the host's time is not in
          it, unless a call takes the host more than 20 ms or launches more than a queue holds: about 1,000 kernels
host      from the call to its return, which is after its last launch. The queue is empty before
call      from the call until the device is done
bandwidth the bytes that the operation must move over `device`, as a share of a copy's bandwidth (read and written), or
          of a read's if it writes nothing. From 100 MB on the copies and reads are those of the row, else those of all
x         the time of the peer's call over that of gradclip's
launches  nodes of the call's CUDA graph; then what PyTorch's profiler counted: launches + copies + waits for the device

torch is `clip_grad_norm_` with `foreach=True`, and for new arrays `get_total_norm` and `_foreach_mul`. CuPy is
`linalg.norm` of each array and a product. apex is not measured: its fused loops did not install. LSTM is a language
model with two layers of 1,500: 66 million elements. The results of gradclip are compared bit for bit with those of the
CPU, and the peers' approximately.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).parent / "compare"))
from on_gpu.ending import ending
from on_gpu.page import Page, cells, describe, verdicts
from on_gpu.profiler import profiled
from on_gpu.rows import Row, all_rows
from on_gpu.timing import Bench, short

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that are kept for the profiler, of which a part is for reading what it wrote.
KEPT, READING = 14.0, 6.0


def import_torch() -> Any:
    """Return PyTorch, or None where it is not installed or has no GPU."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def measure(page: Page, rows: list[Row], end: float, write: Callable[[], None]) -> None:
    """Measure all, and write what there is after each row."""
    bench = page.bench
    try:
        page.ending = ending(bench)
    except Exception as error:  # noqa: BLE001 (the rows are more)
        page.notes.append(f"The end of the reduction: {short(error)}")
    try:
        for result in bench.run(rows, end - KEPT):
            page.results.append(result)
            seconds = f"{time.perf_counter() - page.start:5.1f}"
            print(seconds, result.row.dtype, *cells(result, bench.overall), sep="  ", flush=True)
            write()
        page.notes.append(profiled(bench, page.results, end - READING))
    except Exception as error:  # noqa: BLE001 (what was measured is to be written)
        page.notes.append(f"Not all was measured: {short(error)}")
    finally:
        write()


def main() -> None:
    """Measure, print, write."""
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description="Time gradclip on a GPU, its peers, and the memory.")
    parser.add_argument("--rows", metavar="REGEX", default="", help="the rows whose names match")
    parser.add_argument("--seconds", type=float, default=0.3, help="time of each row (%(default)s)")
    parser.add_argument("--most", type=float, default=100.0, metavar="S", help="time of all of it (%(default)s)")
    parser.add_argument("--dry", action="store_true", help="list the rows and measure nothing")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write gpu-benchmarks.md there")
    options = parser.parse_args()
    rows = [row for row in all_rows() if re.search(options.rows, row.name)]
    if options.dry:
        print("\n".join(f"{row.name}: {len(row.shapes):,} arrays, {row.nbytes / 1e6:,.2f} MB" for row in rows))
        return
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        sys.exit(f"gpu: CuPy is not here ({error}): pip install 'gradclip[cuda12]' or 'gradclip[cuda13]'")
    if not cupy.cuda.is_available():
        sys.exit("gpu: CuPy finds no GPU here")
    torch = import_torch()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        if torch is not None:
            torch.set_grad_enabled(False)
            torch.cuda.set_stream(torch.cuda.ExternalStream(stream.ptr))
        columns = (__doc__ or "").split("\n\n", 2)[2].strip()
        page = Page(start, describe(cupy, torch), Bench(cupy, torch, options.seconds), columns)

        def write() -> None:
            if options.output:
                options.output.joinpath("gpu-benchmarks.md").write_text(page.text(), encoding="utf-8")

        measure(page, rows, start + options.most, write)
        print(*page.machine, *page.notes, sep="\n")
        for line in verdicts(page.results, page.bench.overall, page.ending):
            print(*line, sep="  ")
    if any(result.wrong for result in page.results):
        sys.exit("gpu: gradclip gave a wrong result")


if __name__ == "__main__":
    main()
