"""gradclip next to NumPy, PyTorch, TensorFlow and optax.

    python benches/compare [--quick] [--rows REGEX] [--output docs]

Needs what requirements.txt lists; `make compare` installs it. A library that is not there is named, and the rest
runs. See report.py for what the columns mean.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradclip
from floor import Floor
from fresh import Fresh, measure_fresh
from growth import Growth, measure_growth
from peers import OURS, PEERS, available
from report import Report
from rows import all_rows
from run import Result, Runner
from timing import Clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The divisor of sizes in a quick run.
QUICK = 64
QUICK_CLOCK = Clock(seconds=0.0, rounds=(2, 2), batch=1e-5, pause=0.0, trials=1)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time gradclip and its peers in turns.")
    parser.add_argument("--quick", action="store_true", help="small data, few rounds, NumPy only: to see that it runs")
    parser.add_argument("--rows", metavar="REGEX", default="", help="the rows whose names match, and no growth table")
    parser.add_argument("--list", action="store_true", help="list the names of the rows")
    parser.add_argument("--seconds", type=float, default=Clock.seconds, help="time of each row (%(default)s)")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), help="who takes part")
    parser.add_argument("--no-growth", action="store_true", help="leave out the table of how the cost grows")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="write benchmarks-loops.md and benchmarks/*.png there"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the medians there, in seconds")
    return parser.parse_args()


def with_progress(items: Iterable[Result], total: int) -> Iterator[Result]:
    """Show progress, if tqdm is installed and the output is a terminal; otherwise print each row when it is done."""
    bar: Any = None
    if sys.stderr.isatty():
        try:
            from tqdm import tqdm  # noqa: PLC0415 (it may not be there)

            bar = tqdm(total=total, unit="row", leave=False)
        except ImportError:
            pass
    for item in items:
        if bar is not None:
            bar.set_postfix_str(item.row.name[:40], refresh=False)
            bar.update()
        else:
            ratio = f"{item.ratio:.2f}" if item.ratio else "-"
            share = f" floor {item.share:.2f}" if item.share else ""
            print(f"{item.row.name}: {ratio}{share} {item.verdict}", file=sys.stderr, flush=True)
        yield item
    if bar is not None:
        bar.close()


def main() -> None:
    """Measure, print, write."""
    options = arguments()
    start = time.perf_counter()
    rows = [row for row in all_rows(QUICK if options.quick else 1) if re.search(options.rows, row.name)]
    if options.list:
        print(*(row.name for row in rows), sep="\n")
        return
    names = options.peers if options.peers is not None else ["NumPy"] if options.quick else list(PEERS)
    peers, missing = available(names)
    if importlib.util.find_spec("ml_dtypes") is None:
        missing["ml_dtypes"] = "no rows of bfloat16"
        rows = [row for row in rows if "bfloat16" not in row.name]
    with tempfile.TemporaryDirectory() as directory:
        floor = "not measured in a quick run" if options.quick else Floor.compiled(Path(directory))
        clock = QUICK_CLOCK if options.quick else Clock(options.seconds)
        runner = Runner(peers, floor if isinstance(floor, Floor) else None, clock)
        results = list(with_progress(runner.run(rows), len(rows)))
    fresh: Fresh | None = None
    if not options.rows:
        fresh = measure_fresh(2, QUICK) if options.quick else measure_fresh(11)
    growth: Growth | None = None
    if not options.no_growth and not options.rows:
        growth = measure_growth(clock, quick=options.quick)

    report = Report(
        results,
        growth,
        fresh,
        [runner.ours.describe(), *(peer.describe() for peer in peers)],
        missing,
        floor if isinstance(floor, str) else None,
        time.perf_counter() - start,
    )
    print(report.text())
    if options.output:
        report.write(options.output)
    if options.json:
        medians = {
            result.row.name: {
                "times": result.times,
                "forms": result.forms,
                "ratio": result.ratio,
                "target": result.row.target,
                "floor": result.share,
                "verdict": result.verdict,
                "others": result.others,
            }
            for result in results
        }
        dump: dict[str, Any] = {"gradclip": gradclip.__version__, "rows": medians}
        if fresh is not None:
            dump |= {"import": fresh.imported, "first": fresh.first}
        if growth is not None:
            dump["growth"] = growth.as_json()
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(dump, indent=1) + "\n", encoding="utf-8")
    if any(OURS not in result.times for result in results):
        sys.exit("gradclip gave a wrong result")


if __name__ == "__main__":
    main()
