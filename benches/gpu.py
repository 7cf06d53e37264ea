"""gradclip on CuPy arrays next to PyTorch, plain CuPy and the bandwidth of the same GPU. Needs a GPU and CuPy.

    python benches/gpu.py [--rows REGEX] [--seconds S] [--largest GB] [--dry] [--output docs]

A row is a set of arrays and an operation. All who take part work on the same memory (PyTorch by way of DLPack), in
turns, in an order that changes. A library that is not there is named, and so is a row that does not fit into memory.

device    between two CUDA events, with the queue kept busy before, so that the host is not in it (but of who launches
          more kernels than a queue holds, about a thousand)
host      from the call to its return, with the queue drained before; launches are in it
call      the same until the device is done: what somebody waits for
launches  nodes of the CUDA graph that the call makes when it is captured
bandwidth the bytes that the operation has to move over `device`, as a share of a plain copy's (of a plain read's, where
          nothing is written), measured in the same run

Each result is compared once with that of gradclip on the CPU: gradclip's bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import gc as collector
import importlib
import importlib.util
import math
import os
import platform
import re
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

import gradclip as gc
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Shape: TypeAlias = tuple[int, ...]
    #: A call, which gets the limit, and returns its result.
    Way: TypeAlias = Callable[[float], Any]

OURS, CUPY, TORCH = "gradclip", "CuPy", "torch"
#: The exit status where nothing can be measured.
NOTHING = 2

# ---- targets

SHARE = 0.8  # of the bandwidth,
LARGE = 400_000_000  # for sets of so many bytes
MANY, TIMES = 1_000, 2.0  # so many small tensors, so many times as fast as torch
CALL, EACH = 40e-6, 0.4e-6  # seconds of the host, and more for each tensor, without the launches

# ---- sets


def gpt2() -> list[Shape]:
    """Return the shapes of the 148 parameters of the smallest GPT-2."""
    h = 768
    block: list[Shape] = [(h,), (h,), (h, 3 * h), (3 * h,), (h, h), (h,), (h,), (h,), (h, 4 * h), (4 * h,), (4 * h, h)]
    return [(50257, h), (1024, h), *([*block, (h,)] * 12), (h,), (h,)]


def llama(nbytes: int, itemsize: int) -> list[Shape]:
    """Return shapes like those of a Llama, of about so many bytes in all."""
    elements = nbytes / itemsize
    layers = max(2, min(32, round(elements ** (1 / 3) / 24)))
    # A layer has four square matrices and three of 8/3 times the width, the embeddings twice eight squares.
    width = max(32, round(math.sqrt(elements / (12 * layers + 16)) / 32) * 32)
    inner = 8 * width // 3
    layer: list[Shape] = [*[(width, width)] * 4, *[(inner, width)] * 2, (width, inner), (width,), (width,)]
    return [(8 * width, width), *layer * layers, (width,), (8 * width, width)]


@dataclass(frozen=True)
class Row:
    """A set of arrays, and the operation on them."""

    what: str
    operation: str
    dtype: str
    shapes: list[Shape]
    #: Bytes moved: how often the set is read, and written.
    passes: tuple[int, int]

    @property
    def name(self) -> str:
        """Its name in the table."""
        return f"{self.operation}, {self.what}, {self.dtype}"

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 2 if self.dtype == "bfloat16" else 4

    @property
    def nbytes(self) -> int:
        """Bytes of the set."""
        return self.itemsize * sum(math.prod(shape) for shape in self.shapes)

    @property
    def need(self) -> int:
        """Bytes of device memory: the set, results, and room for what peers make on the way."""
        return 2 * self.nbytes if self.operation in {"in place", "unclipped", "global_norm"} else 4 * self.nbytes


IN_LISTS = {"in place": (2, 1), "unclipped": (1, 0), "new": (2, 1), "global_norm": (1, 0)}
ALONE = {"clip_by_norm rows": (1, 1), "clip_by_value": (1, 1), "norm": (1, 0)}
SIZES = {"1 MB": 10**6, "10 MB": 10**7, "100 MB": 10**8, "400 MB": 4 * 10**8, "4 GB": 4 * 10**9, "20 GB": 2 * 10**10}


def all_rows() -> Iterator[Row]:
    """Return the plan."""
    for dtype in ("float32", "bfloat16"):
        itemsize = 4 if dtype == "float32" else 2
        lists = {"GPT-2 small": gpt2()}
        lists |= {f"Llama-like {label}": llama(nbytes, itemsize) for label, nbytes in SIZES.items()}
        lists |= {f"{n:,} x 256": [(256,)] * n for n in (1, 10, 100, 1_000, 10_000)}
        lists |= {"10 x 65,536": [(65_536,)] * 10, "1 x 100,000,000": [(100_000_000,)]}
        for what, shapes in lists.items():
            for operation, passes in IN_LISTS.items():
                yield Row(what, operation, dtype, shapes, passes)
        for shape in ((1 << 20, 64), (1 << 16, 1 << 10), (1 << 12, 1 << 15), (64, 1 << 20)):
            what = " x ".join(f"{length:,}" for length in shape)
            yield Row(what, "clip_by_norm rows", dtype, [shape], ALONE["clip_by_norm rows"])
        for n in (1 << 10, 1 << 20, 1 << 27):
            for operation in ("clip_by_value", "norm"):
                yield Row(f"{n:,}", operation, dtype, [(n,)], ALONE[operation])


# ---- the libraries


class Ways:
    """The ways to do the operation of a row, on the same memory."""

    def __init__(self, cupy: Any, torch: Any, tensors: list[Any]) -> None:
        """Take the arrays."""
        self.cupy, self.torch, self.tensors = cupy, torch, tensors
        self.shared = [] if torch is None else [torch.from_dlpack(t) for t in tensors]

    def of(self, operation: str) -> dict[str, Way]:
        """Return a form for each library that has one."""
        found: dict[str, Way] = {OURS: self.ours(operation), CUPY: self.plain(operation)}
        if self.torch is not None:
            found[TORCH] = self.peer(operation)
        return found

    def ours(self, operation: str) -> Way:
        """Return gradclip's form."""
        ts, x = self.tensors, self.tensors[0]
        return {
            "in place": lambda c: gc.clip_by_global_norm(ts, c, out=ts),
            "unclipped": lambda c: gc.clip_by_global_norm(ts, c, out=ts),
            "new": lambda c: gc.clip_by_global_norm(ts, c),
            "global_norm": lambda _: gc.global_norm(ts),
            "clip_by_norm rows": lambda c: gc.clip_by_norm(x, c, axes=1, out=x),
            "clip_by_value": lambda c: gc.clip_by_value(x, -c, c, out=x),
            "norm": lambda _: gc.norm(x),
        }[operation]

    def plain(self, operation: str) -> Way:
        """Return the form with CuPy alone, without a wait for the device."""
        cp, ts, x = self.cupy, self.tensors, self.tensors[0]

        def norm() -> Any:
            return cp.linalg.norm(cp.stack([cp.linalg.norm(t.ravel()) for t in ts]))

        def factor(c: float) -> tuple[Any, Any]:
            n = norm()
            return (c / cp.maximum(n, c)).astype(x.dtype), n

        def in_place(c: float) -> tuple[list[Any], Any]:
            by, n = factor(c)
            for t in ts:
                cp.multiply(t, by, out=t)
            return ts, n

        def new(c: float) -> tuple[list[Any], Any]:
            by, n = factor(c)
            return [t * by for t in ts], n

        def rows(c: float) -> Any:
            n = cp.linalg.norm(x, axis=1, keepdims=True)
            cp.multiply(x, (c / cp.maximum(n, c)).astype(x.dtype), out=x)
            return x

        return {
            "in place": in_place,
            "unclipped": in_place,
            "new": new,
            "global_norm": lambda _: norm(),
            "clip_by_norm rows": rows,
            "clip_by_value": lambda c: cp.clip(x, -c, c, out=x),
            "norm": lambda _: cp.linalg.norm(x),
        }[operation]

    def peer(self, operation: str) -> Way:
        """Return PyTorch's form."""
        torch, ts, x = self.torch, self.shared, self.shared[0]
        utils = torch.nn.utils
        parameters = [torch.nn.Parameter(t, requires_grad=False) for t in ts]
        for parameter, t in zip(parameters, ts, strict=True):
            parameter.grad = t

        def clip(c: float) -> tuple[list[Any], Any]:
            return ts, utils.clip_grad_norm_(parameters, c, foreach=True)

        def new(c: float) -> tuple[list[Any], Any]:
            n = utils.get_total_norm(ts, foreach=True)
            by = (c / n).clamp(max=1.0)
            return torch._foreach_mul(ts, by), n  # noqa: SLF001 (what the library itself clips with)

        def rows(c: float) -> Any:
            n = torch.linalg.vector_norm(x, dim=1, keepdim=True)
            return x.mul_(c / n.clamp(min=c))

        return {
            "in place": clip,
            "unclipped": clip,
            "new": new,
            "global_norm": lambda _: utils.get_total_norm(ts, foreach=True),
            "clip_by_norm rows": rows,
            "clip_by_value": lambda c: x.clamp_(-c, c),
            "norm": lambda _: torch.linalg.vector_norm(x),
        }[operation]


# ---- measuring

#: Keeps the device busy for so many nanoseconds, while the host fills the queue behind.
WAIT = r"""
extern "C" __global__ void wait(long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns);
}
"""
#: The longest that the device waits for the host, in nanoseconds.
LONGEST = 200_000_000
FEWEST, MOST = 7, 150
#: Each clip has a limit so much below the last one, so that there is always something to clip.
STEP = 0.999


@dataclass
class Times:
    """Seconds of a call."""

    device: float = 0.0
    host: float = 0.0
    call: float = 0.0
    launches: int | None = None


@dataclass
class Result:
    """The measurements of a row."""

    row: Row
    times: dict[str, Times] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: Of the bandwidth.
    share: float | None = None
    wrong: bool = False

    @property
    def ratios(self) -> dict[str, float]:
        """The peers' times over gradclip's, until the device is done."""
        ours = self.times.get(OURS)
        return {name: t.call / ours.call for name, t in self.times.items() if name != OURS} if ours else {}

    def verdicts(self, launch: float) -> list[str]:
        """Return the targets that are missed; nothing: none."""
        found = ["wrong"] if self.wrong else []
        ours = self.times.get(OURS)
        if ours is None:
            return found
        row = self.row
        if row.operation in {"in place", "unclipped"} and row.nbytes >= LARGE and (self.share or 0) < SHARE:
            found.append(f"bandwidth below {SHARE}")
        least = TIMES if row.operation == "in place" and len(row.shapes) == MANY else 1.0
        if TORCH in self.ratios and self.ratios[TORCH] < least:
            found.append(f"below {least:g} times torch")
        if row.operation in {"in place", "unclipped", "global_norm"}:
            own = ours.host - launch * (ours.launches or 0)
            if own > CALL + EACH * len(row.shapes):
                found.append(f"host {1e6 * own:.0f} µs without launches")
        return found


class Bench:
    """Measures rows on one GPU."""

    def __init__(self, cupy: Any, torch: Any, seconds: float) -> None:
        """Take the libraries, and the time of a row."""
        self.cupy, self.torch, self.seconds = cupy, torch, seconds
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.wait = cupy.RawKernel(WAIT, "wait")
        self.random = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
        self.launch = 0.0
        #: Bytes a second: of a copy, read and written counted, and of a read.
        self.copy = self.read = 0.0

    def calibrate(self) -> None:
        """Measure the cost of a launch, and what memory gives."""
        cp = self.cupy
        self.launch = min(self._host(lambda: self.wait((1,), (1,), (np.int64(0),))) for _ in range(1000))
        free, _ = cp.cuda.runtime.memGetInfo()
        elements = min(1 << 30, free // 32)
        source, target = cp.ones(elements, np.float32), cp.empty(elements, np.float32)

        def copy() -> None:
            target.data.copy_from_device_async(source.data, source.nbytes)

        self.copy = 2 * source.nbytes / min(self._device(copy, 10**6) for _ in range(20))
        self.read = source.nbytes / min(self._device(source.max, 10**6) for _ in range(20))

    def _host(self, call: Callable[[], Any]) -> float:
        self.stream.synchronize()
        start = time.perf_counter()
        made = call()
        end = time.perf_counter()
        del made
        return end - start

    def _call(self, call: Callable[[], Any]) -> float:
        self.stream.synchronize()
        start = time.perf_counter()
        made = call()
        self.stream.synchronize()
        end = time.perf_counter()
        del made
        return end - start

    def _device(self, call: Callable[[], Any], wait: int) -> float:
        start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        self.stream.synchronize()
        self.wait((1,), (1,), (np.int64(min(wait, LONGEST)),))
        start.record(self.stream)
        made = call()
        end.record(self.stream)
        end.synchronize()
        del made
        milliseconds: float = self.cupy.cuda.get_elapsed_time(start, end)
        return milliseconds / 1e3

    def _launches(self, call: Callable[[], Any]) -> int | None:
        """Count the nodes of a graph; None where there is none, as the call cannot be captured."""
        self.stream.begin_capture()
        try:
            made = call()
        except Exception:  # noqa: BLE001 (whatever it is, it is nothing to be counted)
            made = None
        try:
            graph = self.stream.end_capture()
        except self.cupy.cuda.runtime.CUDARuntimeError:
            return None
        if made is None:
            return None
        return len(set(re.findall(r'node_\d+"\s*\[', graph.debug_dot_str())))

    def filled(self, row: Row) -> list[Any]:
        """Make the arrays of a row, on the device."""
        cp = self.cupy
        pool = cp.asarray(self.random).astype(dtype_of(row.dtype))
        tensors = []
        for shape in row.shapes:
            flat = cp.empty(math.prod(shape), pool.dtype)
            for start in range(0, flat.size, pool.size):
                flat[start : start + pool.size] = pool[: flat.size - start]
            tensors.append(flat.reshape(shape))
        return tensors

    def run(self, rows: Iterable[Row]) -> Iterator[Result]:
        """Measure rows."""
        for row in rows:
            self.cupy.get_default_memory_pool().free_all_blocks()
            if self.torch is not None:
                self.torch.cuda.empty_cache()
            result = Result(row)
            free, _ = self.cupy.cuda.runtime.memGetInfo()
            if row.need > free:
                result.notes.append(f"skipped: needs {row.need / 1e9:.0f} GB on the device, {free / 1e9:.0f} are free")
            else:
                self._measure(result)
                gc.trim()
            yield result

    def _measure(self, result: Result) -> None:
        row = result.row
        tensors = self.filled(row)
        ways = Ways(self.cupy, self.torch, tensors).of(row.operation)
        limit = first_limit(row)
        check = Check(row, self, tensors, limit)
        for name, way in list(ways.items()):
            try:
                problem = check.of(name, way)
            except Exception as error:  # noqa: BLE001 (peers do not have every dtype)
                result.notes.append(f"{name}: {type(error).__name__}: {str(error)[:80]}")
                result.wrong |= name == OURS
                del ways[name]
                continue
            if problem:
                result.notes.append(f"{name}: {problem}")
                result.wrong |= name == OURS and "not compared" not in problem
        self._race(result, ways, limit)
        for name, way in ways.items():
            result.times[name].launches = self._launches(lambda way=way: way(limit))  # type: ignore[misc]
        if OURS in result.times:
            reads, writes = row.passes
            bandwidth = self.copy if writes else self.read
            result.share = row.nbytes * (reads + writes) / result.times[OURS].device / bandwidth

    def _race(self, result: Result, ways: dict[str, Way], limit: float) -> None:
        clips = result.row.operation in {"in place", "clip_by_norm rows", "clip_by_value"}
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
        end, done = time.perf_counter() + self.seconds, 0
        collector.collect()
        collector.disable()
        while done < FEWEST or (done < MOST and time.perf_counter() < end):
            names = [*list(ways)[done % len(ways) :], *list(ways)[: done % len(ways)]]
            for name in names:

                def call(way: Way = ways[name]) -> Any:
                    nonlocal limit
                    limit *= STEP if clips else 1.0
                    return way(limit)

                call()  # whose caches are in use
                host = self._host(call)
                found[name].append((host, self._call(call), self._device(call, int(3e9 * host) + 100_000)))
            done += 1
        collector.enable()
        for name, each in found.items():
            host, whole, device = (median(column) for column in zip(*each, strict=True))
            result.times[name] = Times(device, host, whole)


def dtype_of(name: str) -> np.dtype[Any]:
    """Return a dtype by its name."""
    return np.dtype(importlib.import_module("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def first_limit(row: Row) -> float:
    """Return a limit that clips, or none, for elements whose square is 1 on average."""
    if row.operation == "clip_by_value":
        return 1.0
    length = row.shapes[0][-1] if row.operation == "clip_by_norm rows" else row.nbytes / row.itemsize
    return math.sqrt(length) * (2.0 if row.operation == "unclipped" else 0.5)


#: Elements of each array of a peer that are compared.
SOME = 1 << 20


class Check:
    """Compares results with that of gradclip on the CPU."""

    def __init__(self, row: Row, bench: Bench, tensors: list[Any], limit: float) -> None:
        """Compute it, if there is memory for it."""
        self.row, self.bench, self.tensors, self.limit = row, bench, tensors, limit
        self.expected: Any = None
        memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if 4 * row.nbytes < memory:
            ways = Ways(None, None, [t.get() for t in tensors])
            self.expected = ways.ours(row.operation)(limit)

    def of(self, name: str, way: Way) -> str | None:
        """Run a form once, and return what is wrong with the result; then restore the inputs."""
        got = way(self.limit)
        if self.expected is None:
            problem = "not compared: no memory for it on the host" if name == OURS else None
        else:
            problem = self._compare(flat(got), flat(self.expected), exact=name == OURS)
        self.bench.stream.synchronize()
        for tensor, fresh in zip(self.tensors, self.bench.filled(self.row), strict=True):
            tensor[...] = fresh
        return problem

    def _compare(self, got: list[Any], expected: list[Any], *, exact: bool) -> str | None:
        tolerance = 2e-2 if self.row.dtype == "bfloat16" else 1e-3
        for place, (one, other) in enumerate(zip(got, expected, strict=True)):
            right = np.asarray(other).reshape(-1)
            here = self.bench.cupy.from_dlpack(one).reshape(-1)
            if exact:
                if here.dtype != right.dtype or not np.array_equal(here.get().view(np.uint8), right.view(np.uint8)):
                    return f"other bits than on the CPU, in result {place}"
                continue
            wide = here[:SOME].get().astype(np.float64), right[:SOME].astype(np.float64)
            if not np.allclose(*wide, rtol=tolerance, atol=tolerance * float(np.abs(wide[1]).max())):
                return f"far from the CPU's result, in result {place}"
        return None


def flat(result: Any) -> list[Any]:
    """Return all arrays of a result in a row."""
    return [each for part in result for each in flat(part)] if isinstance(result, (list, tuple)) else [result]


# ---- report


def readable(seconds: float) -> str:
    """Write a time."""
    return f"{1e6 * seconds:,.1f}" if seconds < 1e-2 else f"{1e6 * seconds:,.0f}"  # noqa: PLR2004


HEAD = ["row", "device µs", "host µs", "call µs", "launches", "bandwidth", "x torch", "x CuPy", "missed", "notes"]


def cells(result: Result, launch: float) -> list[str]:
    """Write a row of the table."""
    ours, ratios = result.times.get(OURS), result.ratios
    numbers = ["", "", "", ""]
    if ours is not None:
        launches = "-" if ours.launches is None else str(ours.launches)
        numbers = [readable(ours.device), readable(ours.host), readable(ours.call), launches]
    share = "" if result.share is None else f"{result.share:.2f}"
    peers = [f"{ratios[name]:.2f}" if name in ratios else "" for name in (TORCH, CUPY)]
    missed = ", ".join(result.verdicts(launch))
    return [result.row.name, *numbers, share, *peers, missed, "; ".join(result.notes)]


def describe(cupy: Any, torch: Any, bench: Bench) -> list[str]:
    """Describe the machine and the versions."""
    runtime = cupy.cuda.runtime
    device = runtime.getDeviceProperties(runtime.getDevice())
    driver = runtime.driverGetVersion()
    gpu = [device["name"].decode(), f"{device['totalGlobalMem'] / 2**30:.0f} GiB"]
    gpu += [f"{device['multiProcessorCount']} multiprocessors", f"L2 cache {device['l2CacheSize'] / 2**20:.0f} MiB"]
    software = [f"CUDA driver {driver // 1000}.{driver % 1000 // 10}", f"CuPy {cupy.__version__}"]
    software += ["no torch" if torch is None else f"torch {torch.__version__}", f"NumPy {np.__version__}"]
    software += [f"gradclip {gc.__version__}", f"Python {platform.python_version()}", platform.system()]
    memory = [f"copy {bench.copy / 1e9:,.0f} GB/s (read and written)", f"read {bench.read / 1e9:,.0f} GB/s"]
    memory += [f"a launch {1e6 * bench.launch:.1f} µs of the host"]
    return [", ".join(part) for part in (gpu, software, memory)]


def page(machine: Sequence[str], results: Sequence[Result], launch: float, start: float) -> str:
    """Write the page."""
    today = datetime.now(tz=timezone.utc).date()
    lines = ["# Benchmarks on a GPU", "", "<!-- Written by `python benches/gpu.py --output docs`. -->", ""]
    lines += [f"Measured on {today}, in {(time.perf_counter() - start) / 60:.0f} minutes:", ""]
    lines += [f"- {line}" for line in machine]
    lines += ["", "```text", (__doc__ or "").split("\n\n", 2)[2].strip(), "```", ""]
    lines += [f"Targets: {SHARE} of the bandwidth in place and unclipped from {LARGE / 1e6:.0f} MB on, {TIMES:g} times"]
    lines += [f"torch for {MANY:,} small tensors in place and never less than 1, and {1e6 * CALL:.0f} µs and"]
    lines += [f"{1e6 * EACH:.1f} a tensor of the host, without launches.", "", "| " + " | ".join(HEAD) + " |"]
    lines += ["|---|" + "--:|" * 7 + "---|---|"]
    lines += ["| " + " | ".join(cells(result, launch)) + " |" for result in results]
    return "\n".join(lines) + "\n"


def progress(results: Iterator[Result], total: int) -> Iterator[Result]:
    """Show progress, if tqdm is installed and the output is a terminal; otherwise print each row when it is done."""
    bar: Any = None
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            bar = importlib.import_module("tqdm").tqdm(total=total, unit="row", leave=False)
    for result in results:
        if bar is None:
            print(result.row.name, file=sys.stderr, flush=True)
        else:
            bar.set_postfix_str(result.row.name[:40], refresh=False)
            bar.update()
        yield result
    if bar is not None:
        bar.close()


def nothing(why: str) -> None:
    """End, as there is nothing to measure."""
    print(f"gpu: nothing was measured: {why}")
    sys.exit(NOTHING)


def import_torch() -> Any:
    """Return PyTorch, or None where it is not installed or has no GPU."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Time gradclip on a GPU, its peers, and the memory.")
    parser.add_argument("--rows", metavar="REGEX", default="", help="the rows whose names match")
    parser.add_argument("--seconds", type=float, default=2.0, help="time of each row (%(default)s)")
    parser.add_argument("--largest", type=float, default=20.5, metavar="GB", help="the largest set (%(default)s)")
    parser.add_argument("--dry", action="store_true", help="list the rows and measure nothing")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write gpu-benchmarks.md there")
    options = parser.parse_args()
    rows = [row for row in all_rows() if re.search(options.rows, row.name) and row.nbytes <= options.largest * 1e9]
    if options.dry:
        print("\n".join(f"{row.name}: {len(row.shapes):,} arrays, {row.nbytes / 1e6:,.2f} MB" for row in rows))
        return
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        nothing(f"CuPy is not here ({error}); pip install 'gradclip[cuda12]' or 'gradclip[cuda13]'")
    if not cupy.cuda.is_available():
        nothing("CuPy finds no GPU here")
    if importlib.util.find_spec("ml_dtypes") is None:
        print("without ml_dtypes there are no rows of bfloat16")
        rows = [row for row in rows if row.dtype != "bfloat16"]
    torch = import_torch()
    start = time.perf_counter()
    bench = Bench(cupy, torch, options.seconds)
    with bench.stream:
        if torch is not None:
            torch.set_grad_enabled(False)
            torch.cuda.set_stream(torch.cuda.ExternalStream(bench.stream.ptr))
        bench.calibrate()
        machine = describe(cupy, torch, bench)
        print("\n".join(machine))
        results = list(progress(bench.run(rows), len(rows)))
    table = [HEAD, *(cells(result, bench.launch) for result in results)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print("\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table))
    if options.output:
        options.output.joinpath("gpu-benchmarks.md").write_text(
            page(machine, results, bench.launch, start), encoding="utf-8"
        )
    if any(result.wrong for result in results):
        sys.exit("gradclip gave a wrong result")


if __name__ == "__main__":
    main()
