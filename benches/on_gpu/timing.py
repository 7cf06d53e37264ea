"""Times of calls, of a copy and of a read."""

from __future__ import annotations

import contextlib
import gc as collector
import re
import time
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any

import gradclip as gc
import numpy as np
from data import DEVIATION

from on_gpu.arrays import Arrays
from on_gpu.check import Check
from on_gpu.libraries import CUPY, OURS, TORCH, ours, peer, plain
from on_gpu.results import Result, Times
from on_gpu.rows import IN_PLACE, MANY, NEW, UNCLIPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from on_gpu.libraries import Way
    from on_gpu.rows import Row

COPY, READ, MAX = "copy", "read", "max"
NO_TIME = "no time was left"

KERNELS = r"""
extern "C" __global__ void wait(long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns);
}
extern "C" __global__ void __launch_bounds__(256) read(const float4* x, float* out) {
    const float4* own = x + blockIdx.x * 2048LL + threadIdx.x;
    float4 loaded[8]; // so that all are under way at once
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; k++) loaded[k] = own[256 * k];
#pragma unroll
    for (int k = 0; k < 8; k++) sum += loaded[k].x + loaded[k].y + loaded[k].z + loaded[k].w;
    if (sum == -1.0f) *out = sum; // never
}
"""
#: Bytes of a copy and of a read, and what a block of threads reads.
PROBE, READ_BLOCK = 1 << 30, 1 << 15
#: The longest that the device waits for the host, in nanoseconds.
LONGEST = 20_000_000
#: Turns of each library, and of the first calibration.
FEWEST, MOST, FIRST = 3, 100, 20
#: A peer is not called again if a call with very many arrays takes so many seconds, and a row of so many bytes has
#: probes among its turns.
SLOW, PROBED = 0.1, 100_000_000
#: Each clip has a limit so much below the last one, so that there is always something to clip.
STEP = 0.99


def bandwidth(probes: dict[str, float]) -> tuple[float, float]:
    """Return the bytes a second of a copy, read and written, and of a read."""
    return 2 * PROBE / probes[COPY], PROBE / min(probes[READ], probes[MAX])


def turns(names: Sequence[str], seconds: float) -> Iterator[str]:
    """Yield whose turn it is: it goes to who has had the least time."""
    spent, done, end = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0), time.perf_counter() + seconds
    while True:
        most = FEWEST if time.perf_counter() > end else MOST
        left = [name for name in names if done[name] < most]
        if not left:
            return
        name, start = min(left, key=spent.__getitem__), time.perf_counter()
        yield name
        spent[name] += time.perf_counter() - start
        done[name] += 1


class Bench:
    """Measures on one GPU."""

    def __init__(self, cupy: Any, torch: Any, seconds: float) -> None:
        """Take the libraries and the time of a row, and measure what memory gives."""
        self.cupy, self.torch, self.seconds = cupy, torch, seconds
        self.stream = cupy.cuda.get_current_stream()
        module = cupy.RawModule(code=KERNELS)
        self.wait, read = module.get_function("wait"), module.get_function("read")
        self.pool = np.random.default_rng(0).standard_normal(1 << 20) * DEVIATION
        source, target = cupy.ones(PROBE // 4, np.float32), cupy.empty(PROBE // 4, np.float32)
        self.probes: dict[str, Callable[[], Any]] = {
            COPY: lambda: target.data.copy_from_device_async(source.data, PROBE),
            READ: lambda: read((PROBE // READ_BLOCK,), (256,), (source, target)),
            MAX: source.max,
        }
        for probe in self.probes.values():
            probe()
        self.probed = {name: [self.device(call, 0.0) for _ in range(FIRST)] for name, call in self.probes.items()}
        waits = [self.once(lambda: self.wait((1,), (1,), (np.int64(0),)))[0] for _ in range(MOST)]
        self.launch = median(waits)

    @property
    def overall(self) -> dict[str, float]:
        """The medians of all probes."""
        return {name: median(seconds) for name, seconds in self.probed.items()}

    def once(self, call: Callable[[], Any]) -> tuple[float, float]:
        """Return the seconds until a call returns, and until the device is done."""
        self.stream.synchronize()
        start = time.perf_counter()
        made = call()
        returned = time.perf_counter()
        self.stream.synchronize()
        done = time.perf_counter()
        del made
        return returned - start, done - start

    def device(self, call: Callable[[], Any], host: float) -> float:
        """Return the seconds of a call on the device, where the call takes so many on the host."""
        start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        self.stream.synchronize()
        self.wait((1,), (1,), (np.int64(min(int(2e9 * host) + 50_000, LONGEST)),))
        start.record(self.stream)
        made = call()
        end.record(self.stream)
        end.synchronize()
        del made
        return float(self.cupy.cuda.get_elapsed_time(start, end)) / 1e3

    def run(self, rows: Iterable[Row], until: float) -> Iterator[Result]:
        """Measure rows."""
        for _, group in groupby(rows, lambda row: (row.what, row.dtype)):
            results = [Result(row) for row in group]
            try:
                if time.perf_counter() < until:
                    self._measure(results)
                else:
                    add_note(results, NO_TIME)
            except Exception as error:  # noqa: BLE001 (the others may work)
                add_note(results, short(error))
            gc.trim()
            self._free()
            yield from results

    def _free(self) -> None:
        self.cupy.get_default_memory_pool().free_all_blocks()
        if self.torch is not None:
            self.torch.cuda.empty_cache()

    def _measure(self, results: list[Result]) -> None:
        """Measure the rows of a set."""
        row = results[0].row
        arrays = Arrays(self.cupy, row, self.pool)
        check = Check(arrays, row)
        tensors = arrays.views(arrays.buffer)
        libraries = {OURS: ours(tensors, row.axis), CUPY: plain(self.cupy, tensors, row.axis)}
        if self.torch is not None:
            libraries[TORCH] = peer(self.torch, arrays.views(self.shared(arrays.buffer, row.dtype)), row.axis)
        for result in results:
            operation = IN_PLACE if result.row.operation == UNCLIPPED else result.row.operation
            ways = {name: library[operation] for name, library in libraries.items()}
            ways = {name: way for name, way in ways.items() if self._first(result, check, name, way)}
            try:
                self._race(result, ways)
            except Exception as error:  # noqa: BLE001 (the other rows may work)
                result.notes.append(short(error))
            if OURS in ways:
                with contextlib.suppress(Exception):
                    result.nodes = self._nodes(lambda: ways[OURS](result.row.limit))  # noqa: B023 (called here)

    def shared(self, buffer: Any, dtype: str) -> Any:
        """Return the same memory as PyTorch's."""
        return self.torch.from_dlpack(buffer.view(np.uint8)).view(getattr(self.torch, dtype))

    def _first(self, result: Result, check: Check, name: str, way: Way) -> bool:
        """Call once and check what comes of it; tell whether to go on."""
        row, arrays = result.row, check.arrays
        arrays.restore()
        made: list[Any] = []
        try:
            host, call = self.once(lambda: made.append(way(row.limit)))
            (tensors, norm), got = made.pop(), arrays.buffer
            if row.operation == NEW:
                got = arrays.filled(arrays.pool)
                views = arrays.views(self.shared(got, row.dtype) if name == TORCH else got)
                for view, tensor in zip(views, tensors, strict=True):
                    view[...] = tensor
            problem = check.problem(row, got, norm, exact=name == OURS)
        except Exception as error:  # noqa: BLE001 (peers do not have every dtype)
            result.notes.append(f"{name}: {short(error)}")
            result.wrong |= name == OURS
            return False
        if problem:
            result.notes.append(f"{name}: {problem}")
            result.wrong |= name == OURS
        if name != OURS and call > SLOW and len(row.shapes) > MANY:
            result.times[name] = Times(call, host, call)
            result.notes.append(f"{name}: {call:.1f} s, called once")
            return False
        return True

    def _race(self, result: Result, ways: dict[str, Way]) -> None:
        limit, step = result.row.limit, STEP if result.row.operation == IN_PLACE else 1.0
        probes = self.probes if result.row.nbytes >= PROBED else {}
        found: dict[str, list[Times]] = {name: [] for name in ways}
        probed: dict[str, list[float]] = {name: [] for name in probes}
        collector.collect()
        collector.disable()
        try:
            for name in turns([*ways, *probes], self.seconds):
                if name in probes:
                    probed[name].append(self.device(probes[name], 0.0))
                    continue

                def call(way: Way = ways[name]) -> Any:
                    nonlocal limit
                    limit *= step
                    return way(limit)

                call()  # whose caches are in use
                host, whole = self.once(call)
                found[name].append(Times(self.device(call, host), host, whole))
        finally:
            collector.enable()
        for name, seconds in probed.items():
            self.probed[name] += seconds
            result.probes[name] = median(seconds)
        for name, each in found.items():
            result.times[name] = Times(*(median(column) for column in zip(*each, strict=True)))

    def _nodes(self, call: Callable[[], Any]) -> int:
        """Count the nodes of the graph of a call."""
        call()
        self.stream.begin_capture()
        try:
            made = call()
        finally:
            graph = self.stream.end_capture()
        del made
        return len(set(re.findall(r'node_\d+"\s*\[', graph.debug_dot_str())))


def add_note(results: Sequence[Result], note: str) -> None:
    """Add a note to each of some rows."""
    for result in results:
        result.notes.append(note)


def short(error: Exception) -> str:
    """Write an error in a line."""
    return " ".join(f"{type(error).__name__}: {error}".replace("|", "/").split())[:100]
