"""Threads, memory and what is in use."""

from __future__ import annotations

import platform
import sys
from typing import SupportsIndex

import numpy as np

from gradclip import _core

__version__: str = _core.__version__


def get_num_threads() -> int:
    """Return the number of threads that a call may use.

    It is that of `set_num_threads`; before, that of the environment variable
    ``GRADCLIP_NUM_THREADS``, else of ``RAYON_NUM_THREADS``, else the number of CPUs
    this process may use (affinity and cgroup limits count).

    Returns
    -------
    int

    Raises
    ------
    ValueError
        If one of the variables holds something that is not a number of threads.

    Examples
    --------
    >>> import gradclip as gc
    >>> gc.set_num_threads(2)
    >>> gc.get_num_threads()
    2
    """
    return _core.get_num_threads()


def set_num_threads(n: SupportsIndex) -> None:
    """Set the number of threads for later calls. It changes no bit of any result.

    Parameters
    ----------
    n : int
        From 1 to 1024.

    Raises
    ------
    TypeError
        If ``n`` is not an int.
    ValueError
        If ``n`` is not from 1 to 1024.

    Examples
    --------
    >>> import gradclip as gc
    >>> gc.set_num_threads(0)
    Traceback (most recent call last):
        ...
    ValueError: set_num_threads: n: found int 0; allowed: an int from 1 to 1024
    """
    _core.set_num_threads(n)


def trim() -> int:
    """Give back the memory that is held for the outputs of later calls.

    Fresh memory costs as much as the work that fills it, so on Linux the memory of single
    outputs of 32 MiB and more that you have dropped is kept for a later output of about
    that size: at most ``GRADCLIP_POOL_BYTES`` bytes in all (an environment variable; 0:
    none; by default 1 GiB or 1/16 of the memory, whichever is smaller). The least recently
    used memory goes first, and the system takes it back when it runs short. All other
    outputs own memory of NumPy's allocator.

    Scratch memory on a GPU is given back too. CUDA graphs with calls of this package that
    were captured before must not be launched afterwards.

    Returns
    -------
    int
        The number of bytes given back, those on a GPU not counted.

    Raises
    ------
    ValueError
        If ``GRADCLIP_POOL_BYTES`` holds something that is not a number of bytes.

    Examples
    --------
    >>> import gradclip as gc
    >>> held = gc.trim()
    >>> gc.trim()
    0
    """
    cuda = sys.modules.get("gradclip._cuda")
    if cuda is not None:
        cuda.release()
    return _core.trim()


def show_config() -> None:
    """Print versions, threads, memory held, instruction set and dtypes: what a bug report needs.

    Examples
    --------
    >>> import gradclip as gc
    >>> gc.show_config()  # doctest: +ELLIPSIS
    gradclip ...
    """
    config = _core.config()
    levels = ", ".join(config["isa_levels"])
    lines = {
        "gradclip": config["version"],
        "NumPy": np.__version__,
        "Python": f"{sys.version.split()[0]} on {platform.system()} {platform.machine()}",
        "threads": config["threads"],
        "memory held": f"{config['memory_held']} bytes (at most {config['memory_limit']})",
        "instruction set": f"{config['isa']} (this CPU has: {levels})",
        "dtypes, clip_by_value": ", ".join(config["clip_by_value_dtypes"]),
        "dtypes, clip_by_norm": ", ".join(config["clip_by_norm_dtypes"]),
        "dtypes, norm": ", ".join(config["norm_dtypes"]),
    }
    width = max(map(len, lines)) + 2
    print("\n".join(f"{key:<{width}}{value}" for key, value in lines.items()))  # noqa: T201 (it is what it is for)
