"""The command line."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

from report import machine, number

from steps import picture
from steps.libraries import LIBRARIES, OURS, QUICK, USUAL, missing
from steps.report import Report
from steps.results import Results
from steps.scenarios import Catalogue, Scenario
from steps.summary import line, lines
from steps.turns import Turns


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python benches/steps", description="Time clips inside small programs.")
    parser.add_argument("--quick", action="store_true", help="small data, one process, few calls: to see that it runs")
    parser.add_argument("--scenarios", nargs="+", metavar="SUBSTRING", help="the programs whose names have one of them")
    parser.add_argument("--list", action="store_true", help="list the names of the programs")
    parser.add_argument(
        "--libraries", nargs="+", choices=["all", *LIBRARIES], help=f"who takes part (default: {USUAL})"
    )
    parser.add_argument("--processes", type=int, default=3, help="of each library and program (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times there")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="times of an earlier run to compare with")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write benchmarks.md and benchmarks/steps.png there")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw what was measured")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="measure nothing: take these times")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Scenario]:
    """Return the programs that were asked for."""
    wanted = options.scenarios or [""]
    found = Catalogue(quick=options.quick).all()
    return [scenario for scenario in found if any(part in scenario.name for part in wanted)]


def measure(scenarios: list[Scenario], options: argparse.Namespace) -> Results:
    """Run the programs."""
    names = options.libraries or (QUICK if options.quick else USUAL)
    names = list(LIBRARIES) if "all" in names else list(names)
    absent = {name: f"no package {', '.join(packages)}" for name in names if (packages := missing(name))}
    results = Results(f"{datetime.now(timezone.utc):%Y-%m-%d}", machine(), missing=absent)
    results.processes = 1 if options.quick else options.processes
    start = time.perf_counter()
    present = [name for name in names if name not in absent]
    with closing(Turns(present, results.processes, options.quick)) as turns:
        for i, scenario in enumerate(scenarios):
            found = results.scenarios[scenario.name] = turns.run(scenario)
            ratio = number(line(scenario, found).ratio) or "no ratio"
            seconds = time.perf_counter() - start
            print(f"{i + 1}/{len(scenarios)}, {seconds:.0f} s: {scenario.name}: {ratio}", file=sys.stderr, flush=True)
        results.versions = {name: turns.versions[name] for name in present if name in turns.versions}
    results.seconds = time.perf_counter() - start
    return results


def main() -> None:
    """Measure or read, print, write."""
    options = arguments()
    scenarios = chosen(options)
    if options.list:
        print(*(scenario.name for scenario in scenarios), sep="\n")
        return
    if options.output:  # before a measurement of half an hour, which a wrong folder would lose
        (options.output / "benchmarks").mkdir(parents=True, exist_ok=True)
    results = Results.read(options.source) if options.source else measure(scenarios, options)
    old = lines(Results.read(options.baseline), scenarios) if options.baseline else []
    report = Report(results, lines(results, scenarios), {each.name: each for each in old})
    print(report.text())
    if options.json:
        results.write(options.json)
    if options.picture:
        picture.draw(results, report.lines, options.picture)
    if options.output:
        (options.output / "benchmarks.md").write_text(report.markdown(), encoding="utf-8")
        picture.draw(results, report.lines, options.output / "benchmarks" / "steps.png")
        print(f"{os.path.relpath(options.output / 'benchmarks.md')} is written")
    if any(OURS in results.scenarios[each.name] and each.ours is None for each in report.lines):
        sys.exit("gradclip gave a wrong result")


if __name__ == "__main__":
    main()
