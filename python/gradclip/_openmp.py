"""The OpenMP runtime of PyTorch, on whose threads the functions of gradclip.torch run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

import torch


def _find() -> int:
    """Return the address of GOMP_parallel in the runtime that PyTorch is linked with; 0 if there is none."""
    if not sys.platform.startswith("linux") or not torch.backends.openmp.is_available():
        return 0
    # PyTorch calls the function that the dynamic linker finds first in the whole process, for example one of
    # LD_PRELOAD. If no library offers it to the whole process, the linker looks in those that PyTorch depends on.
    for path in (None, torch._C.__file__):  # noqa: SLF001 (no public name tells the path)
        with contextlib.suppress(OSError, AttributeError):
            return ctypes.cast(ctypes.CDLL(path).GOMP_parallel, ctypes.c_void_p).value or 0
    return 0


def _is_forked() -> bool:
    """Return whether this process is a copy of its parent, made by a fork and without a new program."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    except OSError:
        return True  # not known
    flags = int(stat.rpartition(")")[2].split()[6])
    return bool(flags & _PF_FORKNOEXEC)


#: The flag of Linux for a process that has forked and runs no new program.
_PF_FORKNOEXEC = 0x40
#: The process that has imported this module.
_PROCESS = os.getpid()
#: The address of GOMP_parallel, or 0. In a forked child, parallel work of GNU's runtime hangs if the parent has done
#: some.
ADDRESS = 0 if _is_forked() else _find()


def parallel_address() -> int:
    """Return the address of GOMP_parallel for `_core.use_team`; 0 if torch has no team of threads for this call."""
    return ADDRESS if torch.get_num_threads() > 1 and os.getpid() == _PROCESS else 0
