"""Calls of fuzz.py, made on device arrays too and held to the CPU: `python tests/fuzz cuda --cases 10000 --seed 0`.

A case is drawn as there. Then its arrays become what a device can have (native byte order, aligned), some limits
become 0-d arrays on the device, and the call is made twice: on NumPy arrays over a copy of the memory, and on device
arrays over another. What is checked:

- results have the same bits, dtypes, shapes and strides, or errors the same type and text;
- every byte of the memory of both is the same afterwards, so that nothing but the outputs was written;
- an error comes before anything is launched, and nothing waits for the device.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import re
import time
from collections import Counter
from typing import Any

import draws
import fuzz
import gpu_arrays
import gradclip as gc
import numpy as np
import pytest
from fuzz import Arr, Given, WrongError, check
from oracle import NORMED, ORDERED

MOST = 60_000  # elements: the kernels take their time here
SLACK = 64  # bytes, for what is moved to where it is aligned
ON_DEVICE = {np.dtype(dtype).newbyteorder("=") for dtype in NORMED}
MULTIPROCESSORS = (1, 1, 2, 3, 5, 16)


class Skipped(Exception):  # noqa: N818 (no error)
    """A case that does not apply to a device."""


def aligned(arr: Arr) -> Arr:
    """A native array nearby, with every element at a multiple of its size."""
    size = arr.dtype.itemsize
    strides = tuple(int(step / size) * size for step in arr.strides)
    return arr._replace(dtype=arr.dtype.newbyteorder("="), strides=strides, offset=arr.offset // size * size + SLACK)


def rooms_of(contents: list[np.ndarray]) -> list[np.ndarray]:
    """The same bytes, with some before them, one room after the other: an error tells which comes first."""
    starts = np.cumsum([0, *(SLACK + -(-len(content) // SLACK) * SLACK for content in contents)]).tolist()
    whole = np.full(starts[-1] + SLACK, 0x5A, np.uint8)
    whole = whole[-whole.ctypes.data % SLACK :]
    rooms = [whole[at : at + SLACK + len(content)] for at, content in zip(starts, contents, strict=False)]
    for room, content in zip(rooms, contents, strict=True):
        room[SLACK:] = content
    return rooms


class OnDevice:
    """Rooms on the device, as far apart as on the host."""

    def __init__(self, gpu: gpu_arrays.Gpu, rooms: list[np.ndarray]) -> None:
        self.gpu = gpu
        first = rooms[0].ctypes.data
        self.places = [slice(at, at + len(room)) for room in rooms for at in [room.ctypes.data - first]]
        content = np.full(self.places[-1].stop, 0x5A, np.uint8)
        for place, room in zip(self.places, rooms, strict=True):
            content[place] = room
        self.whole = gpu.array(content)

    def array(self, arr: Arr, guise: str) -> Any:
        kind = subclass_of(self.gpu.ndarray) if guise == "subclass" else self.gpu.ndarray
        start = self.whole.data
        offset = start.ptr - start.mem.ptr + self.places[arr.room].start + arr.offset
        return kind(arr.shape, arr.dtype, self.gpu.cupy.cuda.MemoryPointer(start.mem, offset), arr.strides)

    def content(self) -> list[np.ndarray]:
        """A copy of the rooms on the host."""
        content = np.array(self.gpu.get(self.whole))
        return [content[place] for place in self.places]


def suit(case: fuzz.Case) -> None:  # noqa: C901
    """Change a case to one that is possible on a device."""
    given = {id(g): g for g in (*case.tensors, *(case.outs or []), *case.arguments.values()) if isinstance(g, Given)}
    arrays = [g for g in given.values() if isinstance(g.value, Arr)]
    if sum(math.prod(g.value.shape) for g in arrays) > MOST:
        raise Skipped("large")
    if any(g.value.dtype.newbyteorder("=") not in ON_DEVICE for g in arrays):
        raise Skipped("dtype")
    if getattr(case, "p", 2) == ("matrix", 2):
        raise Skipped("matrix norm 2, which is CuPy's own")
    for g in arrays:
        g.value = aligned(g.value)
        g.guise = "subclass" if g.guise == "subclass" else "array"
    case.rooms = rooms_of(case.rooms)
    for key in ("clip_value_min", "clip_value_max"):
        bound = case.arguments.get(key)
        if type(bound) is np.ndarray and bound.ndim and bound.dtype.newbyteorder("=") in ON_DEVICE:
            case.arguments[key] = OnBoth(bound)
        elif isinstance(bound, (list, tuple)):
            raise Skipped("a sequence as a bound")
    for key in ("clip_norm", "use_norm"):
        value = case.arguments.get(key)
        if is_on_device(case) and case.chance(0.3):
            array = device_number(value)
            if array is not None:
                case.arguments[key] = somewhere(case, array)


def somewhere(case: fuzz.Case, number: np.ndarray) -> Any:
    """A limit in separate memory, or in that of the arrays."""
    r, size = case.r, number.itemsize
    room = r.randrange(len(case.rooms))
    places = (len(case.rooms[room]) - SLACK) // size
    if not places or r.random() < 0.7:
        return OnBoth(number)
    arr = Arr(room, number.dtype, (), (), SLACK + r.randrange(places) * size)
    arr.view(case.rooms)[...] = number
    return Given(arr)


class OnBoth:
    """An array that is an argument, on the device for the call there."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __repr__(self) -> str:
        return f"on_device({self.array!r})"


def device_number(value: Any) -> np.ndarray | None:
    """A limit as a 0-d array; None if it is no good limit, which would be seen on the CPU alone."""
    try:
        if (np.asarray(value).dtype.kind in "bcOSU" and not isinstance(value, int)) or not draws.number(value) >= 0:
            return None
        array = np.array(value)
        array = array.astype(array.dtype.newbyteorder("="))
    except (TypeError, ValueError, OverflowError):
        return None
    good = {np.dtype(dtype) for dtype in ORDERED}
    return array if array.ndim == 0 and array.dtype in good else None


@functools.cache
def subclass_of(base: type) -> type:
    return type("Subclass", (base,), {})


def built(case: fuzz.Case, rooms: list[np.ndarray] | OnDevice) -> dict[str, Any]:
    """The arguments, on the device if the rooms are there; what is given twice is one object."""
    made: dict[int, Any] = {}

    def array_of(arr: Arr, guise: str) -> Any:
        return rooms.array(arr, guise) if isinstance(rooms, OnDevice) else fuzz.GUISES[guise](arr.view(rooms))

    def of(given: Any) -> Any:
        if isinstance(given, (list, tuple)):
            return type(given)(of(entry) for entry in given)
        if isinstance(given, OnBoth):
            return rooms.gpu.array(given.array) if isinstance(rooms, OnDevice) else given.array
        if not isinstance(given, Given):
            return given
        if not isinstance(given.value, Arr):
            return given.value
        if id(given) not in made:
            made[id(given)] = array_of(given.value, given.guise)
        return made[id(given)]

    return {name: of(given) for name, given in case.arguments.items()}


def outcome(function: Any, arguments: dict[str, Any]) -> tuple[Any, Exception | None]:
    try:
        return function(**arguments), None
    except Exception as error:  # noqa: BLE001
        return None, error


def plain(error: Exception) -> str:
    """The text, in which arrays are called the same: those of a device are not described further."""
    text = re.sub(r"a(n array of class)? [\w.]*Subclass", "a numpy.ndarray", str(error))
    text = text.replace(
        "found a masked array; allowed: an array without a mask", "found a masked array; allowed: None or a ndarray"
    )
    text = text.replace("; integers='keep' copies tensors of integers", "")  # no option for arrays of a device
    text = re.sub(r"(numpy|cupy)\.ndarray( of dtype \w+ and shape \([\d, ]*\))?", "ndarray", text)
    return re.sub(r"(ndarray)( or gradclip\.IndexedSlices)", r"\1", text)


def is_mixed(case: fuzz.Case) -> bool:
    """Whether there is something of the host beside arrays of the device: another error, and maybe an earlier one."""
    if any(isinstance(case.arguments.get(key), np.ndarray) for key in ("clip_value_min", "clip_value_max")):
        return is_on_device(case)
    on_device = [t is not None and isinstance(t.value, Arr) for t in case.tensors]
    return any(on_device) and any(t is not None and not there for t, there in zip(case.tensors, on_device, strict=True))


def is_on_device(case: fuzz.Case) -> bool:
    return any(t is not None and isinstance(t.value, Arr) for t in case.tensors)


def run_case(gpu: gpu_arrays.Gpu, seed: int, number: int) -> tuple[str, str]:
    """Draw a case, run it on both, compare. Returns the counts."""
    case = fuzz.draw(seed, number)
    try:
        suit(case)
    except Skipped as why:
        return "skipped", str(why)
    try:
        return do_case(gpu, case)
    except Exception as error:
        again = f"python tests/fuzz cuda --kind {gpu.kind} --seed {seed} --case {number}"
        raise WrongError(f"{type(error).__name__}: {error}\n# {again}\n{case.text()}") from error


def do_case(gpu: gpu_arrays.Gpu, case: fuzz.Case) -> tuple[str, str]:
    r = random.Random(case.number)
    gpu.multiprocessors = r.choice(MULTIPROCESSORS)
    if gpu.kind != "device":
        gpu_arrays.shim().backward = r.random() < 0.5
    function = getattr(gc, case.function)
    host, there = rooms_of([room[SLACK:] for room in case.rooms]), OnDevice(gpu, case.rooms)
    expected, error = outcome(function, built(case, host))
    arguments = built(case, there)
    gpu.reset()
    got, own = outcome(function, arguments)
    check(gpu.syncs == 0, "waited for the device")
    device = there.content()
    if error is not None or own is not None:
        check(not gpu.launches, f"launched something before {own!r}")
        check(all(map(np.array_equal, device, case.rooms)), f"something was written before {own!r}")
        if is_mixed(case) and isinstance(own, TypeError):
            return case.function, "mixed"
        check(type(own) is type(error), f"{own!r}, not {error!r}")
        check(plain(own) == plain(error), f"{plain(own)!r}, not {plain(error)!r}")
        return case.function, type(own).__name__
    check(all(map(np.array_equal, device, host)), "memory is not the same afterwards" + told(device, host))
    if not is_on_device(case):
        return case.function, "nothing on the device"
    clipped = got[0] if isinstance(got, tuple) else got
    outs = arguments.get("out")
    if outs is not None:
        same = all(map(lambda a, b: a is b, clipped, outs)) if isinstance(clipped, list) else clipped is outs
        check(same, "the result is not `out`")
        got, expected = (got[1], expected[1]) if isinstance(got, tuple) else (None, None)
    gpu_arrays.assert_same(gpu, got, expected, case.function)
    return case.function, "new" if outs is None else "out"


def told(device: list[np.ndarray], host: list[np.ndarray]) -> str:
    for i, (a, b) in enumerate(zip(device, host, strict=True)):
        at = np.flatnonzero(a != b)
        if len(at):
            found, wanted = (room[at[:8]].tobytes().hex() for room in (a, b))
            return f": {len(at)} bytes of room {i}, from {at[0]} on: {found}, not {wanted}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/fuzz cuda", description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("stand-in", "cupy", "device"), default="stand-in")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="the number of the first case")
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--seconds", type=float, default=math.inf, help="to stop after")
    parser.add_argument("--most", type=int, default=20, help="failures to stop after")
    given = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    failed, began = 0, time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        gpu = gpu_arrays.install(given.kind, patch)
        numbers = [given.case] if given.case is not None else range(given.start, given.start + given.cases)
        for number in numbers:
            if time.monotonic() > began + given.seconds or failed >= given.most:
                break
            try:
                counts[run_case(gpu, given.seed, number)] += 1
            except WrongError as error:
                failed += 1
                print(f"\n# case {number} failed\n{str(error)[:3000]}", flush=True)
    for what, count in sorted(counts.items()):
        print(f"{count:9d}  {'  '.join(what)}")
    print(f"{sum(counts.values()) + failed} cases, {failed} failed, {time.monotonic() - began:.0f} s")
    return int(failed > 0)
