"""The process of one library: it imports it, and runs each scenario that it is asked for in a fork of its own.

Nothing but the import has happened when it forks: no array, no thread of the library. So each scenario has a process to
itself, without the seconds that some imports take. Lines of JSON come in, and a line goes out for each.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from steps.crowd import run_processes, run_threads
from steps.libraries import load
from steps.loop import Program
from steps.scenarios import ALONE, PROCESSES, Catalogue
from steps.verify import off_by

if TYPE_CHECKING:
    from steps.libraries.base import Library
    from steps.scenarios import Scenario


def answer(scenario: Scenario, library: Library, *, verify: bool) -> dict[str, Any]:
    """Run a scenario, and return the answer to the request."""
    program: Program | None = None
    if scenario.crowd == ALONE:
        program = Program(scenario, library, scenario.build())
        program.choose()
        measured = program.run()
    else:
        measured = (run_processes if scenario.crowd == PROCESSES else run_threads)(scenario, library)
    found = {"seconds": measured.seconds, "peak": measured.peak}
    if verify:
        program = program or Program(scenario, library, scenario.build())
        found["off"] = off_by(program)
    return found | {"form": program.form if program else ""}


def safely(scenario: Scenario, library: Library, *, verify: bool) -> str:
    """Return the answer, or the error, as a line."""
    try:
        found = answer(scenario, library, verify=verify)
    except Exception as error:  # noqa: BLE001 (whatever a library says to what it cannot do)
        found = {"error": f"{type(error).__name__}: {error}"[:300]}
    return json.dumps(found) + "\n"


def main() -> None:
    """Serve."""
    # The output that libraries print must not be mixed with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    library = load(sys.argv[1])
    catalogues = {quick: {each.name: each for each in Catalogue(quick=quick).all()} for quick in (False, True)}
    answers.write(json.dumps({"version": library.version}) + "\n")
    answers.flush()
    for line in sys.stdin:
        request = json.loads(line)
        scenario = catalogues[request["quick"]][request["scenario"]]
        if scenario.fresh:
            answers.write(safely(scenario, library, verify=request["verify"]))
            answers.flush()
            return
        if (child := os.fork()) == 0:
            answers.write(safely(scenario, library, verify=request["verify"]))
            answers.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            answers.write(json.dumps({"error": f"the process ended with status {status}"}) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
