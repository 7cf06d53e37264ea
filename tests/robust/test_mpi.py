"""`comm=` over MPI: ranks are processes, started by mpiexec. A run that takes too long is a rank that hangs."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import gradclip
import numpy as np
import pytest
from recipes import code_of

#: Seconds until a run counts as hung.
TIMEOUT = 60

#: In the environment of the tests, or on the path.
_OWN = Path(sysconfig.get_path("scripts")) / "mpiexec"
MPIEXEC = str(_OWN) if _OWN.exists() else "mpiexec"

pytestmark = pytest.mark.mpi

BEFORE = """
import sys
import numpy as np
import gradclip as gc
from mpi4py import MPI
world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
def say(*values):
    # In one piece, because the ranks share the pipe.
    sys.stdout.write(" ".join(map(str, values)) + "\\n")
    sys.stdout.flush()
def sample(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)
"""


def on(ranks: int, code: str) -> list[str]:
    """Runs a program on some ranks. Returns the lines that they print, sorted."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(gradclip.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        "GRADCLIP_NUM_THREADS": "1",
        # OpenMPI, as root and with more ranks than CPUs.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    command = [MPIEXEC, "-n", str(ranks), sys.executable, "-c", BEFORE + code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


def test_every_rank_prints_the_same_norm_for_any_number_of_ranks():
    """With `reproducible=True`; and without it, the same on all ranks of a run."""
    code = """
data = sample(0, 10007).astype("f4")
own = np.array_split(data, size)[rank]
say(gc.global_norm([own], comm=world, reproducible=True).hex(), gc.global_norm([own], comm=world).hex())
clipped, norm = gc.clip_by_global_norm([own], 1.0, comm=world, out=[own])
assert clipped[0] is own
assert abs(gc.global_norm([own], comm=world) - 1.0) < 1e-7
"""
    found = {ranks: on(ranks, code) for ranks in (1, 2, 3, 4, 8)}
    assert {ranks: len(lines) for ranks, lines in found.items()} == {ranks: ranks for ranks in found}
    assert all(len(set(lines)) == 1 for lines in found.values())
    exact = {line.split()[0] for lines in found.values() for line in lines}
    data = np.random.default_rng(0).standard_normal(10007).astype("f4")
    assert exact == {gradclip.global_norm([data], reproducible=True).hex()}


def test_the_program_of_the_docs():
    shards = """
def own_shards():
    return [sample(rank, 100, 100)]
"""
    more = """
assert clipped[0] is gradients[0]
say(rank, norm.hex(), gc.global_norm(clipped).hex())
"""
    found = [line.split() for line in on(2, shards + code_of("MPI") + more)]
    parts = [np.random.default_rng(rank).standard_normal((100, 100)) for rank in range(2)]
    (norm,) = {float.fromhex(norm) for _, norm, _ in found}
    assert norm == pytest.approx(gradclip.global_norm(parts), rel=1e-15)
    for own, (_, _, clipped) in zip(parts, found, strict=True):
        assert float.fromhex(clipped) == pytest.approx(gradclip.global_norm([own]) / norm, rel=1e-14)


def test_errors_reach_all_ranks():
    code = """
def tried(call):
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
good, bad = [np.ones(3)], [np.array(["text"])]
say(1, tried(lambda: gc.global_norm(bad if rank == 1 else good, comm=world)))
say(2, tried(lambda: gc.norms([np.ones(2)] * (1 + 60 * rank), comm=world)))
say(3, tried(lambda: gc.clip_by_global_norm(good, 1.0 + rank, comm=world)))
values = [np.array([np.nan if rank == 2 else 1.0])]
say(4, tried(lambda: gc.clip_by_global_norm(values, 1.0, nonfinite="raise", comm=world)))
say(5, tried(lambda: gc.global_norm([] if rank else [np.full(4, 3.0), None], comm=world)))
"""
    lines = on(3, code)
    assert len(lines) == 15
    assert all("TypeError" in line and "(on rank 1)" in line for line in lines[:3])
    assert all("t_list: found 1 and 61 tensors on rank 0 and rank 1" in line for line in lines[3:6])
    assert all("clip_norm: found 1.0 and 2.0 on rank 0 and rank 1" in line for line in lines[6:9])
    assert all("NonFiniteError" in line for line in lines[9:12])
    assert all(line == "5 6.0" for line in lines[12:])


def test_split_communicators():
    """A world of two groups; and both kinds of parallel work at once: shards within a group, copies between groups."""
    code = """
tensor = world.Split(rank // 2, rank)
data = world.Split(rank % 2, rank)
shard = np.array_split(sample(1, 100), 2)[rank % 2]
bias = sample(2, 10)
say("group", gc.global_norm([np.full(4, 1.0 + rank // 2)], comm=tensor))
say("grid", gc.global_norm([shard, bias], comm=[tensor, data], replicated=[2, 4]).hex())
say("shards", gc.global_norm([shard], comm=tensor).hex())
"""
    lines = on(4, code)
    whole = np.random.default_rng(1).standard_normal(100)
    bias = np.random.default_rng(2).standard_normal(10)
    assert sorted(line for line in lines if line.startswith("group")) == [
        *[f"group {np.sqrt(8.0)}"] * 2,
        *[f"group {2 * np.sqrt(8.0)}"] * 2,
    ]
    grid, shards = ({line for line in lines if line.startswith(word)} for word in ("grid", "shards"))
    assert len(grid) == len(shards) == 1
    assert float.fromhex(grid.pop().split()[1]) == pytest.approx(gradclip.global_norm([whole, bias]), rel=1e-15)
    assert float.fromhex(shards.pop().split()[1]) == pytest.approx(gradclip.global_norm([whole]), rel=1e-15)


def test_what_is_no_intracommunicator_is_refused():
    code = """
local = world.Split(rank % 2, rank)
inter = local.Create_intercomm(0, world, 1 - rank % 2)
for comm in (inter, MPI.COMM_NULL):
    try:
        gc.global_norm([np.ones(2)], comm=comm)
    except ValueError as error:
        say(error)
inter.Free()
"""
    lines = on(2, code)
    assert sum("found an intercommunicator" in line for line in lines) == 2
    assert sum("found a null communicator" in line for line in lines) == 2


@pytest.mark.parametrize("when", ["never", "before", "in"])
def test_a_rank_that_dies_ends_the_run(when):
    """mpiexec ends the other ranks; no call of gradclip continues to wait."""
    code = f"""
class Dies:
    def __array__(self, *_arguments, **_options):
        import os
        os._exit(3)
if rank == 1 and {when == "before"}:
    import os
    os._exit(3)
say(gc.global_norm([Dies() if rank == 1 and {when == "in"} else np.ones(3)], comm=world))
"""
    if when == "never":
        assert on(3, code) == ["3.0"] * 3
    else:
        with pytest.raises(AssertionError):
            on(3, code)


def test_a_sum_by_the_engine():
    """The state as an array, merged by MPI.SUM."""
    code = """
state = gc.NormState.of([sample(rank, 50 + rank)])
total = np.empty_like(state.to_array())
world.Allreduce(state.to_array(), total, op=MPI.SUM)
say(gc.NormState.from_array(total))
summed = gc.global_norm([sample(rank, 50 + rank)], comm=lambda array: world.allreduce(array))
assert abs(summed - gc.NormState.from_array(total).norm()) < 1e-14 * summed
"""
    (line,) = set(on(3, code))
    arrays = [np.random.default_rng(rank).standard_normal(50 + rank) for rank in range(3)]
    assert float(line.split("=")[1].split(",")[0]) == pytest.approx(gradclip.global_norm(arrays), rel=1e-15)
