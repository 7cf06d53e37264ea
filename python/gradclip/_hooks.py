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
    # A clip loads the code of a clip before the program's first call: to map that code and to read it from memory takes
    # 0.1 ms. A bad value in the environment is an error of the program's call, which reads the environment again:
    # variables that are set after the import count.
    with contextlib.suppress(ValueError):
        ones = np.ones(2, np.float32)
        _core.clip_by_global_norm([ones], 1.0, None, None, 2, "propagate", False, "raise", None, None)
    _core.forget_settings()
