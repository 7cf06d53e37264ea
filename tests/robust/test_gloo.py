"""`comm=` over a ProcessGroup of torch.distributed, with gloo."""

import subprocess
import sys
from pathlib import Path

import gradclip
import numpy as np
import pytest

pytestmark = pytest.mark.torch

CODE = """
import sys
import numpy as np
import torch.distributed as dist
sys.path.insert(0, sys.argv[4])
import gradclip as gc
rank, size = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=size)
own = np.array_split(np.random.default_rng(0).standard_normal(1001), size)[rank]
world = dist.group.WORLD
print(gc.global_norm([own], comm=world, reproducible=True).hex())
print(gc.clip_by_global_norm([own, np.ones(3)], 1.0, comm=world, replicated=[False, True])[1].hex())
try:
    gc.global_norm([own] if rank else 3, comm=world)
except TypeError as error:
    print(error)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_has_the_norm_of_all(ranks, tmp_path):
    package = str(Path(gradclip.__file__).parents[1])
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", CODE, str(rank), str(ranks), str(tmp_path / "store"), package],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    found = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0] * ranks, found
    (lines,) = {output for output, _ in found}
    exact, norm, error = lines.splitlines()
    values = np.random.default_rng(0).standard_normal(1001)
    assert exact == gradclip.global_norm([values], reproducible=True).hex()
    assert float.fromhex(norm) == pytest.approx(gradclip.global_norm([values, np.ones(3)]), rel=1e-15)
    assert error.endswith("(on rank 0)")
