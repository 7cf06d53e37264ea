"""Libraries take turns: a scenario runs in a process of the first, of the second, ..., and of the first again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.libraries import LIBRARIES
from steps.results import Runs

if TYPE_CHECKING:
    from steps.scenarios import Scenario

BENCHES = Path(__file__).resolve().parents[1]


class Server:
    """A process that has imported a library; see serve.py."""

    def __init__(self, name: str) -> None:
        """Start it, and wait for the import."""
        entry = LIBRARIES[name]
        path = [str(BENCHES), str(BENCHES / "compare"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(  # noqa: S603 (no input in it)
            [sys.executable, "-m", "steps.serve", name],
            env=os.environ | entry.environment | {"PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version: str = self._read().get("version", "")

    def ask(self, scenario: Scenario, *, quick: bool, verify: bool) -> dict[str, Any]:
        """Have it run a scenario."""
        assert self.process.stdin is not None  # noqa: S101 (for the type)
        self.process.stdin.write(json.dumps({"scenario": scenario.name, "quick": quick, "verify": verify}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End it."""
        self.process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None  # noqa: S101 (for the type)
        line = self.process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        return found


@dataclass
class Turns:
    """Runs scenarios, in processes that are started when they are needed."""

    libraries: list[str]
    processes: int
    quick: bool
    versions: dict[str, str] = field(default_factory=dict)
    _servers: dict[str, Server] = field(default_factory=dict)

    def close(self) -> None:
        """End the servers."""
        for server in self._servers.values():
            server.close()

    def run(self, scenario: Scenario) -> dict[str, Runs]:
        """Return the measurements of each library that supports the scenario."""
        names = [name for name in self.libraries if LIBRARIES[name].can(scenario)]
        found = {name: Runs() for name in names}
        for turn in range(max(1, self.processes * scenario.processes)):
            # The order of the libraries changes.
            first = turn % max(1, len(names))
            for name in names[first:] + names[:first]:
                if not found[name].error:
                    found[name].add(self._ask(name, scenario, verify=turn == 0))
        return found

    def _ask(self, name: str, scenario: Scenario, *, verify: bool) -> dict[str, Any]:
        """Have a process of a library run a scenario."""
        if scenario.fresh:
            server = self._start(name)
            found = server.ask(scenario, quick=self.quick, verify=verify)
            server.close()
            return found
        if name not in self._servers:
            self._servers[name] = self._start(name)
        return self._servers[name].ask(scenario, quick=self.quick, verify=verify)

    def _start(self, name: str) -> Server:
        """Start the process of a library."""
        server = Server(name)
        self.versions[name] = server.version
        return server
