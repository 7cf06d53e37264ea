"""The examples of docs/gpu.md on a real GPU, as they are written."""

import re
from pathlib import Path

import gradclip as gc
import numpy as np
import pytest

pytestmark = pytest.mark.gpu

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"


def run(names, *, torch):
    """Runs the examples that need PyTorch, or the others, one after the other."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    chosen = [block for block in blocks if ("torch" in block) == torch]
    assert len(chosen) >= 2
    for block in chosen:
        exec(block, names)


def on_host(arrays):
    return [x if x is None else x.get() for x in arrays]


def test_examples_of_cupy(capsys):
    import cupy

    try:
        cupy.random.standard_normal(1)
    except ImportError:
        pytest.skip("CuPy finds no cuRAND")
    names = {}
    run(names, torch=False)
    names["stream"].synchronize()
    # The graph has clipped to norm 1 what had been clipped before.
    assert gc.global_norm(on_host(names["gradients"])) == pytest.approx(1.0, rel=1e-6)
    assert float(names["norm"]) == pytest.approx(1.0, rel=1e-6)
    assert float(capsys.readouterr().out) == pytest.approx(1.0, rel=1e-6)
    gc.trim()


@pytest.mark.torch
def test_examples_of_pytorch():
    import cupy
    import torch

    if not torch.cuda.is_available() or not hasattr(torch.cuda.Stream, "__cuda_stream__"):
        pytest.skip("the page needs PyTorch 2.10 or later, with CUDA")
    model = torch.nn.Linear(30, 20, device="cuda")
    (100 * model(torch.ones(4, 30, device="cuda"))).sum().backward()
    before = [p.grad.cpu().numpy() for p in model.parameters()]
    names = {"cupy": cupy, "gc": gc, "model": model}
    run(names, torch=True)
    clipped, norm = gc.clip_by_global_norm(before, 1.0)
    assert names["norm"].device.type == "cuda"
    assert float(names["norm"]) == norm
    for p, x in zip(model.parameters(), gc.clip_by_global_norm(clipped, 1.0)[0], strict=True):
        assert np.array_equal(p.grad.cpu().numpy(), x)
