"""Settings: threads, memory, and a report of what is in use."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING

import numpy as np

from gradclip import _core
from gradclip._checks import number_of_threads

if TYPE_CHECKING:
    from gradclip._types import Integer

__version__: str = _core.__version__


def get_num_threads() -> int:
    """Return the number of threads that a call may use.

    Returns
    -------
    int
        The number of threads, from 1 to 1024. It is the first of these that is set:

        1. the number given to `set_num_threads`,
        2. the environment variable ``GRADCLIP_NUM_THREADS``,
        3. the environment variable ``RAYON_NUM_THREADS``, unless it is 0,
        4. the number of CPUs that this process may use. Affinity and cgroup limits
           count.

    Raises
    ------
    ValueError
        If one of the variables is not a number of threads.

    Examples
    --------
    >>> import gradclip as gc
    >>> gc.set_num_threads(2)
    >>> gc.get_num_threads()
    2
    """
    return _core.get_num_threads()


def set_num_threads(n: Integer) -> None:
    """Set the number of threads for later calls. It does not change any result.

    Parameters
    ----------
    n : int
        Number of threads, from 1 to 1024.

    Raises
    ------
    TypeError
        If ``n`` is not an integer.
    ValueError
        If ``n`` is not from 1 to 1024, or an environment variable of
        `get_num_threads` is not a number of threads.

    Examples
    --------
    >>> import gradclip as gc
    >>> gc.set_num_threads(0)
    Traceback (most recent call last):
        ...
    ValueError: set_num_threads: n: found int 0; allowed: an int from 1 to 1024
    """
    _core.get_num_threads()  # an error of the environment comes first
    _core.set_num_threads(number_of_threads(n, _core.MAX_THREADS))


def trim() -> int:
    """Return the memory that is held for the outputs of later calls.

    Returns
    -------
    int
        Number of bytes returned. Memory on a GPU is returned too, but not counted.

    Raises
    ------
    ValueError
        If the environment variable ``GRADCLIP_POOL_BYTES`` is not a number of bytes, or
        one of `get_num_threads` is not a number of threads.

    Notes
    -----
    On Linux, gradclip keeps the memory of an output of 32 MiB or more after you drop it,
    for a later output of about that size. Fresh memory costs as much time as the work that
    fills it. At most ``GRADCLIP_POOL_BYTES`` bytes are held, 0 for none. The default is
    1 GiB or 1/16 of the memory, whichever is smaller. The least recently used memory is
    released first. The system takes memory back when it runs short. NumPy allocates all
    other outputs. With glibc, ``trim`` also returns the free pages of the heap, uncounted.

    On a GPU, do not launch CUDA graphs after ``trim`` if they captured calls of gradclip
    before.

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
    """Print the configuration, for example for a bug report.

    It prints versions, the number of threads, the memory held, the instruction set, and the
    dtypes of each function.

    Examples
    --------
    >>> import gradclip as gc
    >>> gc.show_config()  # doctest: +ELLIPSIS
    gradclip ...
    """
    config = _core.config()
    levels = ", ".join(_core.isa_levels())
    lines = {
        "gradclip": __version__,
        "NumPy": np.__version__,
        "Python": f"{sys.version.split()[0]} on {platform.system()} {platform.machine()}",
        "threads": _core.get_num_threads(),
        "memory held": f"{config['memory_held']} bytes (at most {config['memory_limit']})",
        "instruction set": f"{config['isa']} (this CPU has: {levels})",
        "dtypes, clip_by_value": ", ".join(config["clip_by_value_dtypes"]),
        "dtypes, clip_by_norm": ", ".join(config["clip_by_norm_dtypes"]),
        "dtypes, norm": ", ".join(config["norm_dtypes"]),
    }
    width = max(map(len, lines)) + 2
    print("\n".join(f"{key:<{width}}{value}" for key, value in lines.items()))  # noqa: T201 (it is what it is for)
