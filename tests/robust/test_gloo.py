"""Processes of torch.distributed, over gloo: `comm=` takes their groups, `gradclip.torch` their DTensors."""

import subprocess
import sys
from pathlib import Path

import gradclip
import numpy as np
import pytest
from recipes import code_of

pytestmark = pytest.mark.torch

#: Seconds until a run counts as hung.
TIMEOUT = 120

BEFORE = """
import os
import sys
import numpy as np
import torch
import torch.distributed as dist
sys.path.insert(0, sys.argv[4])
import gradclip as gc
torch.set_num_threads(1)
rank, size = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=size)
world = dist.group.WORLD
"""

AFTER = """
# A group that outlives torch's own reference may end the process with an error, and so may threads of gloo at its exit.
del world
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""

MESHES = """
import gradclip.torch as ct
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
line = init_device_mesh("cpu", (size,))
grid = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))

def sample(seed, *shape, dtype=torch.float32):
    # The same on all ranks.
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)

def parameter(gradient):
    found = torch.nn.Parameter(torch.zeros_like(gradient))
    found.grad = gradient
    return found

def spread(whole, mesh, *placements):
    return parameter(distribute_tensor(whole.clone(), mesh, placements))

def norm_of(wholes, p=2.0):
    return torch.linalg.vector_norm(torch.cat([whole.double().flatten() for whole in wholes]), p).item()

def check(wholes, parameters, limit=1.0):
    # Against the whole tensors, which each rank has too.
    expected = norm_of(wholes)
    for p in (1.0, 2.0, 3.0, torch.inf):
        found = ct.get_total_norm([parameter.grad for parameter in parameters], p)
        assert type(found) is torch.Tensor and abs(found.item() / norm_of(wholes, p) - 1) < 1e-6
    norm = ct.clip_grad_norm_(parameters, limit)
    assert abs(norm.item() / expected - 1) < 1e-6
    for whole, parameter in zip(wholes, parameters, strict=True):
        clipped = parameter.grad.full_tensor().double()
        torch.testing.assert_close(clipped, whole.double() * min(1.0, limit / expected), rtol=1e-6, atol=0)
    print(norm.item().hex())
"""


def on(ranks: int, folder: Path, code: str) -> list[str]:
    """Runs a program on some ranks, which must print the same lines, and returns the lines."""
    package = str(Path(gradclip.__file__).parents[1])
    store = str(folder / "store")
    commands = [
        [sys.executable, "-W", "ignore", "-c", BEFORE + code + AFTER, str(rank), str(ranks), store, package]
        for rank in range(ranks)
    ]
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    try:
        found = [run.communicate(timeout=TIMEOUT) for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0] * ranks, found
    (lines,) = {output for output, _ in found}
    return lines.splitlines()


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_has_the_norm_of_all(ranks, tmp_path):
    code = """
own = np.array_split(np.random.default_rng(0).standard_normal(1001), size)[rank]
print(gc.global_norm([own], comm=world, reproducible=True).hex())
print(gc.clip_by_global_norm([own, np.ones(3)], 1.0, comm=world, replicated=[False, True])[1].hex())
try:
    gc.global_norm([own] if rank else 3, comm=world)
except TypeError as error:
    print(error)
"""
    exact, norm, error = on(ranks, tmp_path, code)
    values = np.random.default_rng(0).standard_normal(1001)
    assert exact == gradclip.global_norm([values], reproducible=True).hex()
    assert float.fromhex(norm) == pytest.approx(gradclip.global_norm([values, np.ones(3)]), rel=1e-15)
    assert error.endswith("(on rank 0)")


def test_the_program_of_the_docs(tmp_path):
    model = """
from torch.distributed.fsdp import fully_shard
torch.manual_seed(0)
model = fully_shard(torch.nn.Linear(5, 6), mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (size,)))
loss = model(torch.ones(3, 5)).sum()
"""
    more = """
clipped = sum(p.grad.full_tensor().square().sum() for p in model.parameters()).sqrt().item()
assert type(norm) is torch.Tensor and abs(clipped - 1.0) < 1e-6
print(norm.item())
"""
    (norm,) = on(2, tmp_path, model + code_of("torch.distributed") + more)
    # The gradient of each weight is 3, the sum of its inputs; so is that of each bias.
    assert float(norm) == pytest.approx(3 * 36**0.5)


@pytest.mark.parametrize("ranks", [2, 4])
def test_distributed_tensors(ranks, tmp_path):
    """Parts, some of them empty; copies; meshes of one and two dimensions; and a mesh beside a part of it."""
    code = """
wholes = [sample(0, 7, 5), sample(1, 1, 3), sample(2, 4), sample(3, 6, 6, dtype=torch.float64)]
check(wholes, [spread(w, line, p) for w, p in zip(wholes, [Shard(0), Shard(0), Replicate(), Shard(1)])])
both = [(Shard(0), Shard(1)), (Replicate(), Shard(0)), (Replicate(), Replicate()), (Shard(1), Replicate())]
check(wholes, [spread(w, grid, *p) for w, p in zip(wholes, both)])
check(wholes, [spread(w, grid, *p) for w, p in zip(wholes, both)], 1e6)
on_both = [spread(w, grid, *p) for w, p in zip(wholes[:2], both)]
check(wholes, on_both + [spread(w, grid["dp"], Shard(0)) for w in wholes[2:]])
"""
    assert len(on(ranks, tmp_path, MESHES + code)) == 4


def test_models(tmp_path):
    """FSDP2 on one dimension and on two, and with tensor parallel layers, whose norms torch refuses to compute."""
    code = """
def model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 8), torch.nn.LayerNorm(8)]
    return torch.nn.Sequential(*layers)

def gradients(model):
    model(sample(5, 4, 8)).pow(2).sum().backward()
    return [parameter.grad for parameter in model.parameters()]

expected = gradients(model())
for mesh in (line, grid, grid["dp"]):
    whole = model()
    if mesh.ndim == 1 and mesh.size() < size:
        parallelize_module(whole, grid["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(whole, mesh=mesh)
    gradients(whole)
    norm = ct.clip_grad_norm_(whole.parameters(), 0.5)
    assert abs(norm.item() / norm_of(expected) - 1) < 1e-5
    for one, parameter in zip(expected, whole.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), one * 0.5 / norm_of(expected), rtol=1e-4, atol=1e-6)
    print(norm.item().hex())
"""
    assert len(on(4, tmp_path, MESHES + code)) == 3


def test_what_is_special_about_distributed_tensors(tmp_path):
    code = """
whole = sample(0, 4, 3)
# A rank without gradients takes part.
own = parameter(distribute_tensor(whole, line, [Shard(0)]))
if rank == 1:
    own.grad = None
print(ct.clip_grad_norm_([own], 1.0).item().hex())
# NaN on one rank is an error on all, and nothing is written.
bad = DTensor.from_local(torch.full((2,), torch.nan if rank else 1.0), line, [Shard(0)])
before = bad.to_local().clone()
try:
    ct.clip_grad_norm_([parameter(bad)], 1.0, error_if_nonfinite=True)
except RuntimeError as error:
    print(error)
torch.testing.assert_close(bad.to_local(), before, rtol=0, atol=0, equal_nan=True)
# A limit that is bad or different on one rank is an error on all.
for limits in ((1.0, torch.nan), (1.0, "one"), (1.0, 2.0)):
    own = spread(whole, line, Shard(0))
    try:
        ct.clip_grad_norm_([own], limits[rank])
        raise SystemExit("no error")
    except (TypeError, ValueError) as error:
        print(error)
    torch.testing.assert_close(own.grad.full_tensor(), whole, rtol=0, atol=0)
# A norm beyond float64, which is infinite as a number.
huge = DTensor.from_local(torch.full((2,), 1.5e308, dtype=torch.float64), line, [Shard(0)])
assert ct.clip_grad_norm_([parameter(huge)], 1.0).item() == torch.inf
torch.testing.assert_close(huge.to_local(), torch.full((2,), 0.5, dtype=torch.float64), rtol=1e-15, atol=0)
# The dtype is the same on all ranks, also where one has no gradient of float64.
single, double = spread(whole, line, Shard(0)), spread(whole.double(), line, Shard(0))
if rank == 1:
    double.grad = None
print(ct.clip_grad_norm_([single, double], 1.0))
# Memory that one rank cannot write is an error on all, and nothing is written.
local = torch.tensor([7.0]).expand(2) if rank else torch.tensor([3.0, 4.0])
before = local.clone()
try:
    ct.clip_grad_norm_([parameter(DTensor.from_local(local, line, [Shard(0)]))], 1.0)
    raise SystemExit("no error")
except ValueError as error:
    print(error)
torch.testing.assert_close(local, before, rtol=0, atol=0)
# A norm that is known, and bounds.
for utils in (ct, torch.nn.utils):
    own = spread(whole, line, Shard(0))
    version = own.grad._version
    ct.clip_grads_with_norm_([own], 1.0, utils.get_total_norm([own.grad]))
    assert own.grad._version > version
    torch.testing.assert_close(own.grad.full_tensor(), whole / norm_of([whole]), rtol=1e-6, atol=0)
own = spread(whole, line, Shard(0))
ct.clip_grad_value_(own, 0.5)
torch.testing.assert_close(own.grad.full_tensor(), whole.clamp(-0.5, 0.5), rtol=0, atol=0)
# torch gets what is no part yet.
total = DTensor.from_local(torch.ones(3), line, [Partial()])
assert abs(ct.get_total_norm([total]).full_tensor().item() - 12 ** 0.5) < 1e-6
"""
    norm, error, *limits, of_doubles, overlap = on(2, tmp_path, MESHES + code)
    assert float.fromhex(norm) > 0
    assert "non-finite" in error
    ranks = [f"rank {rank} of comm[0]" for rank in range(2)]
    assert limits == [
        "clip_grad_norm_: max_norm: found nan; allowed: a number of at least 0 (on rank 1 of comm[0])",
        "clip_grad_norm_: max_norm: found str 'one'; allowed: a number of at least 0 (on rank 1 of comm[0])",
        f"clip_grad_norm_: max_norm: found 1.0 and 2.0 on {' and '.join(ranks)}; allowed: the same on all",
    ]
    assert "dtype=torch.float64" in of_doubles
    assert overlap.startswith("clip_grad_norm_: gradients[0]: found an array whose own elements overlap")
    assert overlap.endswith("(on rank 1 of comm[0])")
