"""The time of a clip in training steps of PyTorch on the CPU: gradclip.torch beside torch.nn.utils.

::

    python benches/torch_steps.py [--rounds N] [--steps N] [--only PART]

Each row is a transformer. Forward and backward passes come before each clip, and an optimizer's step after it. Each
library trains in a process of its own, and the libraries take turns. The table has the median time of the clip in ms,
its 95th percentile, and how many times as long torch takes. The figures of docs/migrate/pytorch.md come from here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

#: Width, layers, positions in a batch, and dtype of each model. The last two are as large as GPT-2 small without its
#: embeddings. Some CPUs multiply bfloat16 slowly, so the last one has few positions.
MODELS: dict[str, tuple[int, int, int, str]] = {
    "0.25M in 60 gradients": (64, 5, 128, "float32"),
    "4M in 60": (256, 5, 128, "float32"),
    "16M in 60": (512, 5, 64, "float32"),
    "85M in 144": (768, 12, 32, "float32"),
    "85M in 144, bfloat16": (768, 12, 4, "bfloat16"),
}
LIBRARIES = {"gradclip": "gradclip.torch", "PyTorch": "torch.nn.utils"}
#: Steps before the first one that counts.
WARM_UP = 3


def train(library: str, model: str, steps: int) -> list[float]:
    """Return the milliseconds of the clip in each step."""
    import importlib  # noqa: PLC0415 (torch is for this process alone)

    torch: Any = importlib.import_module("torch")
    clip = importlib.import_module(LIBRARIES[library]).clip_grad_norm_
    width, layers, positions, dtype = MODELS[model]
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(getattr(torch, dtype))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    x = torch.randn(1, positions, width, dtype=getattr(torch, dtype))
    times = []
    for _ in range(WARM_UP + steps):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        parameters = list(net.parameters())
        begin = time.perf_counter()
        clip(parameters, 1e-4)  # below the norm of each step
        times.append((time.perf_counter() - begin) * 1e3)
        optimizer.step()
    return times[WARM_UP:]


def measured(library: str, model: str, steps: int) -> list[float]:
    """Train in a process of its own."""
    command = [sys.executable, __file__, "--train", library, model, "--steps", str(steps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603 (this file)
    return list(map(float, json.loads(done.stdout)))


def summary(times: list[float]) -> str:
    """Format the median and the 95th percentile."""
    return f"{statistics.median(times):.2f} ({statistics.quantiles(times, n=20)[-1]:.2f})"


def main() -> None:
    """Print a table with a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each library for each row (default: 3)")
    parser.add_argument("--steps", type=int, default=20, help="steps that count in each process (default: 20)")
    parser.add_argument("--only", default="", help="a part of the names of the rows to be measured")
    arguments = parser.parse_args()
    if arguments.train:
        library, model = arguments.train
        print(json.dumps(train(library, model, arguments.steps)))
        return
    print(f"| gradients | {' | '.join(LIBRARIES)} | ratio |\n|---|{'---|' * len(LIBRARIES)}---|")
    for model in MODELS:
        if arguments.only in model:
            times: dict[str, list[float]] = {library: [] for library in LIBRARIES}
            for _ in range(arguments.rounds):
                for library, own in times.items():
                    own.extend(measured(library, model, arguments.steps))
            ours, theirs = map(statistics.median, times.values())
            print(f"| {model} | {' | '.join(map(summary, times.values()))} | {theirs / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
