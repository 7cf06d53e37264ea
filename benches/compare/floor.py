"""Lower bounds by memory bandwidth: floor.rs, compiled and called."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timing import Form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("floor.rs")
#: Smaller sets stay in the caches of some CPUs, where these floors say nothing.
PAST_THE_CACHE = 32 << 20


def cpus() -> int:
    """Return the number of CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Floor:
    """The plain loops, on all CPUs."""

    def __init__(self, library: Path) -> None:
        """Load what was compiled."""
        loops = ctypes.CDLL(str(library))
        self.read = loops.floor_read
        self.read.restype = ctypes.c_uint64
        self.copy = loops.floor_copy
        self.copy.restype = None
        self.scale = loops.floor_scale
        self.scale.restype = None

    @classmethod
    def compiled(cls, directory: Path) -> Floor | str:
        """Compile the loops, or tell why not."""
        rustc = shutil.which("rustc")
        if rustc is None:
            return "rustc is not installed"
        library = directory / "libfloor.so"
        command = [rustc, "--edition", "2021", "-O", "--crate-type", "cdylib", str(SOURCE), "-o", str(library)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (no input in it)
        if made.returncode:
            print(made.stderr, file=sys.stderr)
            return "rustc could not compile floor.rs"
        return cls(library)

    def form(self, phase: str, arrays: Sequence[NDArray[Any]], targets: Sequence[NDArray[Any]] = ()) -> Form:
        """Return one of the loops over these arrays: "read", "copy" (to `targets`) or "scale" (by 1: no change)."""
        starts, ends = (pointers(each) for each in (arrays, targets))
        rest = (sizes(arrays), ctypes.c_size_t(len(arrays)), ctypes.c_size_t(cpus()))
        loop, arguments = {
            "read": (self.read, (starts, *rest)),
            "copy": (self.copy, (starts, ends, *rest)),
            "scale": (self.scale, (starts, *rest, ctypes.c_float(1))),
        }[phase]
        names = {"loop": loop, "arguments": arguments, "keep": (arrays, targets)}
        return Form(f"floor: {phase}", "loop(*arguments)", names)


def pointers(arrays: Sequence[NDArray[Any]]) -> Any:
    """Make a C array of the addresses of the arrays."""
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def sizes(arrays: Sequence[NDArray[Any]]) -> Any:
    """Make a C array of the numbers of bytes of the arrays."""
    return (ctypes.c_size_t * len(arrays))(*(array.nbytes for array in arrays))
