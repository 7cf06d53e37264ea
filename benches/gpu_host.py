"""The time that a call on CuPy arrays takes on the host. It needs CuPy, and no GPU.

    python benches/gpu_host.py [--seconds S] [--check]

The arrays are CuPy's own, over host memory, and the device is one whose launches do nothing. So a time here is that of
checking arguments, reading CuPy's attributes and building tables. Not in it: the launches (a few microseconds each),
CuPy's allocator, which makes new outputs (here they are views of one piece of memory), and what CuPy takes to tell the
current device and stream. `benches/gpu.py` has them in, and needs a GPU.

Times are the shortest of many calls, as the interpreter is the same in all of them and other programs are not.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import sys
import time
from typing import TYPE_CHECKING, Any

import gradclip as gc
import numpy as np
from gradclip._cuda import _device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNTS = (1, 10, 100, 1_000, 10_000)
#: The most that a call may take: microseconds, and more for each tensor.
CALL, EACH = 40.0, 0.4
#: Elements of a tensor: few, as the time does not depend on them.
ELEMENTS = 16
#: Lists that are taken in turns, so that each is one that gradclip does not know: it remembers the last 16.
TURNS = 17
#: A call is timed at least so often.
FEWEST = 7


class _Memory:
    """Memory that is never accessed."""

    ptr = 1 << 20


class _Device:
    """A device that does nothing."""

    multiprocessors = 132
    key = ("nothing", 0)

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Do nothing."""
        return contextlib.nullcontext()

    def alloc(self, nbytes: int) -> _Memory:
        """Return an address."""
        del nbytes
        return _Memory()

    def upload(self, words: Any) -> _Memory:
        """Return an address."""
        del words
        return _Memory()

    def function(self, name: str) -> str:
        """Return a handle."""
        return name

    def argument(self, params: Any) -> Any:
        """Return it."""
        return params

    def launch(self, function: Any, grid: int, block: int, argument: Any) -> None:
        """Do nothing."""

    def is_capturing(self) -> bool:
        """Return False."""
        return False


class Arrays:
    """Arrays of CuPy over one piece of host memory."""

    def __init__(self, cupy: Any, nbytes: int) -> None:
        """Take the memory."""
        self.cupy = cupy
        host = np.zeros(nbytes, np.uint8)
        self.memory = cupy.cuda.UnownedMemory(host.ctypes.data, nbytes, host, 0)

    def new(self, shape: tuple[int, ...], dtype: Any = np.float32, offset: int = 0) -> Any:
        """Make an array."""
        return self.cupy.ndarray(shape, dtype, self.cupy.cuda.MemoryPointer(self.memory, offset))

    def several(self, count: int, first: int = 0) -> list[Any]:
        """Make small ones, side by side."""
        return [self.new((ELEMENTS,), offset=4 * ELEMENTS * (first + i)) for i in range(count)]


@contextlib.contextmanager
def idle_device(arrays: Arrays) -> Iterator[None]:
    """Make gradclip use the device that does nothing."""
    own = vars(_device)
    before = own["device_of"], own["empty"]
    device = _Device()
    own["device_of"] = lambda array: device  # noqa: ARG005
    own["empty"] = lambda shape, dtype, like: arrays.new(shape, dtype)  # noqa: ARG005
    try:
        yield
    finally:
        own["device_of"], own["empty"] = before


def shortest(call: Callable[[], Any], seconds: float) -> float:
    """Return the shortest time of a call, in microseconds."""
    call()
    best, end, done = float("inf"), time.perf_counter() + seconds, 0
    while done < FEWEST or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        done += 1
    return best * 1e6


def attributes(tensors: list[Any]) -> None:
    """Read all necessary attributes of each array, and do nothing with them."""
    [(t.data.ptr, t.data.device_id, t.dtype, t.size, t._c_contiguous) for t in tensors]  # noqa: SLF001


def lists(arrays: Arrays, seconds: float) -> bool:
    """Print the table of lists; tell whether all that has a target reaches it."""
    print("Lists: microseconds a call\n")
    print(f"{'tensors':>8}{'in place':>12}{'new':>12}{'norm':>12}{'first time':>12}{'attributes':>12}{'target':>12}")
    reached = True
    for count in COUNTS:
        tensors = arrays.several(count)
        turns = itertools.cycle([arrays.several(count, i) for i in range(TURNS)])
        times = [
            shortest(lambda t=tensors: gc.clip_by_global_norm(t, 1.0, out=t), seconds),  # type: ignore[misc]
            shortest(lambda t=tensors: gc.clip_by_global_norm(t, 1.0), seconds),  # type: ignore[misc]
            shortest(lambda t=tensors: gc.global_norm(t), seconds),  # type: ignore[misc]
            shortest(lambda ts=turns: gc.global_norm(next(ts)), seconds),  # type: ignore[misc]
            shortest(lambda t=tensors: attributes(t), seconds),  # type: ignore[misc]
        ]
        target = CALL + EACH * count
        reached &= max(times[0], times[2]) <= target
        print(f"{count:>8}" + "".join(f"{t:>12.1f}" for t in (*times, target)), flush=True)
    print("\nnew: without CuPy's allocator. attributes: reads of what has to be known of each array.")
    print("first time: the norm of a list that is not known yet, without the copy of its table to the device.")
    print("The target is for in place and the norm.")
    return reached


def singles(arrays: Arrays, seconds: float) -> bool:
    """Print the table of one array; tell whether all reach the target."""
    x = arrays.new((32, 100))
    other = arrays.new((32, 100), offset=x.nbytes)
    calls: dict[str, Callable[[], Any]] = {
        "clip_by_value, in place": lambda: gc.clip_by_value(x, -1, 1, out=x),
        "clip_by_value, new": lambda: gc.clip_by_value(x, -1, 1),
        "clip_by_value, out=": lambda: gc.clip_by_value(x, -1, 1, out=other),
        "clip_by_norm, in place": lambda: gc.clip_by_norm(x, 1.0, out=x),
        "clip_by_norm, new": lambda: gc.clip_by_norm(x, 1.0),
        "clip_by_norm, out=": lambda: gc.clip_by_norm(x, 1.0, out=other),
        "clip_by_norm, rows in place": lambda: gc.clip_by_norm(x, 1.0, axes=1, out=x),
        "clip_by_norm, columns in place": lambda: gc.clip_by_norm(x, 1.0, axes=0, out=x),
        "clip_by_average_norm, in place": lambda: gc.clip_by_average_norm(x, 1.0, out=x),
        "norm": lambda: gc.norm(x),
        "norm, of rows": lambda: gc.norm(x, axis=1),
        "norm, of columns": lambda: gc.norm(x, axis=0),
        "normalize, in place": lambda: gc.normalize(x, out=x),
        "normalize, rows in place": lambda: gc.normalize(x, axis=1, out=x),
    }
    print("\nOne array of 32 x 100: microseconds a call\n")
    reached = True
    for name, call in calls.items():
        best = shortest(call, seconds)
        reached &= best <= CALL + EACH
        print(f"{name:<32}{best:>8.1f}", flush=True)
    print(f"{'target':<32}{CALL + EACH:>8.1f}")
    return reached


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time the host side of calls on CuPy arrays, without a GPU.")
    parser.add_argument("--seconds", type=float, default=1.0, help="time of each figure (%(default)s)")
    parser.add_argument("--check", action="store_true", help="exit with status 1 where a target is not reached")
    options = parser.parse_args()
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        print(f"gpu_host: CuPy is not here ({error}): pip install 'gradclip[cuda12]' or 'gradclip[cuda13]'")
        sys.exit(2)
    print(f"gradclip {gc.__version__}, CuPy {cupy.__version__}, Python {sys.version.split()[0]}\n")
    arrays = Arrays(cupy, 4 * ELEMENTS * (max(COUNTS) + TURNS))
    with idle_device(arrays):
        reached = [lists(arrays, options.seconds), singles(arrays, options.seconds)]
    if options.check and not all(reached):
        sys.exit("gpu_host: short of the target")


if __name__ == "__main__":
    main()
