"""The cost of norms over ranks and chunks and of exact sums, beside code written by hand.

::

    mpiexec -n 2 python benches/scale_out.py ranks
    python benches/scale_out.py fsdp
    python benches/scale_out.py dask
    python benches/scale_out.py exact

Each prints a table. The figures of docs/guide/many-machines.md come from here. Needs mpi4py, torch, or dask and
distributed.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import gradclip as gc
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: The width of GPT-2 small, and the matrices of each of its 12 blocks in units of it. Vectors, 0.1 % of its 124 million
#: parameters, are left out.
_WIDTH = 768
_BLOCK = [(3, 1), (1, 1), (4, 1), (1, 4)]
_SHAPES = [(50257, _WIDTH), (1024, _WIDTH), *[(a * _WIDTH, b * _WIDTH) for a, b in 12 * _BLOCK]]
#: A limit below all norms, so that each clip scales.
_SHRINK = 0.999


def medians(calls: Mapping[str, Callable[[], object]], rounds: int, wait: Callable[[], object] = lambda: None) -> Any:
    """Seconds of each call, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            wait()
            begin = time.perf_counter()
            call()
            wait()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(own[1:]) for name, own in times.items()}


def repeated(call: Callable[[], object], count: int) -> Callable[[], object]:
    """Combine many calls in one."""

    def run() -> None:
        for _ in range(count):
            call()

    return run


def table(rows: dict[str, float], unit: float, name: str) -> None:
    """Print times as rows of a table."""
    for row, seconds in rows.items():
        print(f"| {row} | {seconds / unit:.1f} {name} |", flush=True)


def ranks() -> None:
    """Measure a call beside the bare collective, and GPT-2 small in shards beside NumPy with an allreduce."""
    from mpi4py import MPI  # noqa: PLC0415 (needed here alone)

    world = MPI.COMM_WORLD
    size, is_first = world.Get_size(), world.Get_rank() == 0
    os.environ.setdefault("GRADCLIP_NUM_THREADS", "1")
    small, message, gathered = [np.ones(10)], np.zeros(128), np.empty((size, 128))
    count = 1000 if size <= (os.cpu_count() or 1) else 100
    calls = {
        "bare allgather of 1 KiB": lambda: world.Allgather(message, gathered),
        "global_norm of 10 elements": lambda: gc.global_norm(small),
        "global_norm(comm=) of 10 elements": lambda: gc.global_norm(small, comm=world),
    }
    found = medians({name: repeated(call, count) for name, call in calls.items()}, 15, world.Barrier)
    if is_first:
        print(f"{size} ranks\n")
        table(found, 1e-6 * count, "µs")

    own = [np.random.default_rng(0).standard_normal((-(-rows // size), cols), np.float32) for rows, cols in _SHAPES]
    limit = [gc.global_norm(own, comm=world)]

    def smaller() -> float:
        limit[0] *= _SHRINK
        return limit[0]

    def by_hand() -> None:
        norm = np.sqrt(world.allreduce(sum(np.linalg.norm(x) ** 2 for x in own)))
        factor = np.float32(smaller() / norm)
        for x in own:
            np.multiply(x, factor, out=x)

    clips: dict[str, Callable[[], object]] = {
        "GPT-2 small, clip_by_global_norm(comm=, out=)": lambda: gc.clip_by_global_norm(
            own, smaller(), comm=world, out=own
        ),
        "GPT-2 small, np.linalg.norm, comm.allreduce, np.multiply": by_hand,
    }
    found = medians(clips, 9, world.Barrier)
    if is_first:
        table(found, 1e-3, "ms")


def fsdp() -> None:
    """Measure the clip of GPT-2 small in DTensors on two processes over gloo, as FSDP2 has them, beside torch's own."""
    import tempfile  # noqa: PLC0415 (needed here alone)

    from torch import multiprocessing  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_fsdp_rank, args=(f"file://{folder}/store",), nprocs=2)


def _fsdp_rank(rank: int, store: str) -> None:
    import gradclip.torch as ours  # noqa: PLC0415
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh  # noqa: PLC0415

    os.environ.setdefault("GRADCLIP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    parameters = []
    for shape in _SHAPES:
        parameters.append(torch.nn.Parameter(distribute_tensor(torch.zeros(shape), mesh, [Shard(0)])))
        parameters[-1].grad = distribute_tensor(torch.randn(shape), mesh, [Shard(0)])
    limit = [float(ours.get_total_norm([parameter.grad for parameter in parameters]))]

    def smaller() -> float:
        limit[0] *= _SHRINK
        return limit[0]

    clips = {
        "GPT-2 small as DTensors, gradclip.torch": lambda: ours.clip_grad_norm_(parameters, smaller()),
        "GPT-2 small as DTensors, torch": lambda: torch.nn.utils.clip_grad_norm_(parameters, smaller()),
    }
    found = medians(clips, 9, dist.barrier)
    if rank == 0:
        table(found, 1e-3, "ms")
    dist.destroy_process_group()


def dask() -> None:
    """4 GB of float32 in chunks of 64 MB on a local cluster, held by the workers."""
    import dask.array as da  # noqa: PLC0415 (needed here alone)
    from dask.distributed import Client, LocalCluster, wait  # noqa: PLC0415

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0)
    with cluster, Client(cluster) as client:
        x = client.persist(da.random.default_rng(0).standard_normal((248_000, 4000), chunks=(4000, 4000), dtype="f4"))
        wait(x)
        limit = [1.0]

        def made(clip: Callable[[float], Any]) -> Callable[[], object]:
            def run() -> None:
                limit[0] *= 1 / _SHRINK  # or dask knows the result
                wait(client.persist(clip(limit[0])))

            return run

        def formula(norm: Any, limit: float) -> Any:
            return x * (limit / da.maximum(norm, limit)).astype("f4")

        calls = {
            "norm(x)": lambda: gc.norm(x).compute(),
            "da.linalg.norm(x.ravel())": lambda: da.linalg.norm(x.ravel()).compute(),
            "da.sqrt((x**2).sum())": lambda: da.sqrt((x**2).sum()).compute(),
            "clip_by_global_norm([x], c)": made(lambda c: gc.clip_by_global_norm([x], c)[0][0]),
            "clip_by_norm(x, c)": made(lambda c: gc.clip_by_norm(x, c)),
            "x * (c / da.maximum(da.linalg.norm(x.ravel()), c))": made(lambda c: formula(da.linalg.norm(x.ravel()), c)),
            "x * (c / da.maximum(da.sqrt((x**2).sum()), c))": made(lambda c: formula(da.sqrt((x**2).sum()), c)),
        }
        table(medians(calls, 5), 1e-3, "ms")


def exact() -> None:
    """reproducible=True beside the norm, 64 million elements."""
    for dtype in ("f2", "f4", "f8"):
        x = [np.random.default_rng(0).standard_normal(1 << 26, "f4").astype(dtype)]
        calls = {
            f"{x[0].dtype}, global_norm": partial(gc.global_norm, x),
            f"{x[0].dtype}, reproducible=True": partial(gc.global_norm, x, reproducible=True),
        }
        table(medians(calls, 9), 1e-3, "ms")


if __name__ == "__main__":
    parts = {"ranks": ranks, "fsdp": fsdp, "dask": dask, "exact": exact}
    if sys.argv[1:] and sys.argv[1] in parts:
        parts[sys.argv[1]]()
    else:
        sys.exit(f"{sys.argv[0]}: found {sys.argv[1:]}; allowed: {', '.join(parts)}")
