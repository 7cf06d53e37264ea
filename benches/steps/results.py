"""The measurements, as they are stored in files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Runs:
    """The measurements of one library and scenario, from all processes."""

    #: Seconds of each call, by process.
    seconds: list[list[float]] = field(default_factory=list)
    #: Bytes above the memory before the first clip, by process.
    peaks: list[int] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)
    #: The error of its result, as a share of the largest number.
    off: float | None = None
    #: The reason why results are missing.
    error: str = ""

    def add(self, answer: dict[str, Any]) -> None:
        """Add the measurements of a process."""
        if "error" in answer:
            self.error = answer["error"]
            return
        self.seconds.append(answer["seconds"])
        self.peaks.append(answer["peak"])
        self.forms.append(answer["form"])
        self.off = answer.get("off", self.off)


@dataclass
class Results:
    """All of it."""

    date: str
    machine: list[str]
    #: By library.
    versions: dict[str, str] = field(default_factory=dict)
    #: By scenario and library.
    scenarios: dict[str, dict[str, Runs]] = field(default_factory=dict)
    #: Libraries that could not be run, and why.
    missing: dict[str, str] = field(default_factory=dict)
    #: Processes of each library and program; of some programs fewer or more.
    processes: int = 1
    #: The duration of the run.
    seconds: float = 0.0

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a file."""
        found = cls(**json.loads(path.read_text(encoding="utf-8")))
        found.scenarios = {
            scenario: {library: Runs(**runs) for library, runs in libraries.items()}  # type: ignore[arg-type]
            for scenario, libraries in found.scenarios.items()
        }
        return found

    def write(self, path: Path) -> None:
        """Write a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
