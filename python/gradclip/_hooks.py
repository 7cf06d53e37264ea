"""What the import of the package does in the process."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys

import numpy as np

from gradclip import _core


def install() -> None:
    """Register functions for forks and for the end of the interpreter, and load the code of a first call."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_core.forked)
    if sys.version_info < (3, 14):
        atexit.register(_core.exiting)
    # This clip loads the code of a clip, so that the program's first call need not. To map and to read it takes 0.1 ms.
    # The program's first call reads the environment again. So variables that are set after the import count, and a bad
    # value is an error of that call.
    with contextlib.suppress(ValueError):
        ones = np.ones(2, np.float32)
        _core.clip_by_global_norm([ones], 1.0, None, None, 2, "propagate", False, "raise", None, None)
    _core.forget_settings()
