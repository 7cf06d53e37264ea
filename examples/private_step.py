"""Private learning: clip the gradient of each example, sum the gradients, add noise.

A network of two layers learns to predict the next character of a text, the licence of this repository. Each step
computes the gradient of every example of the batch. `clip_examples_by_global_norm` clips each gradient by its norm
over both layers and sums them. With ``strict=True`` rounding never takes a clipped gradient above the limit, so the
limit can set the scale of the noise. The program checks the sums against the plain NumPy formula.

Run it (some seconds)::

    pip install ".[examples]"
    python examples/private_step.py

It prints a table and saves a plot. It does not compute the privacy loss, which needs a privacy accountant.

The algorithm is from M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016,
https://arxiv.org/abs/1607.00133.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TypeAlias

import gradclip as gc
import numpy as np
from numpy.typing import NDArray

try:
    import matplotlib.pyplot as plt
    from tqdm import tqdm
except ModuleNotFoundError as error:
    sys.exit(f"This example needs {error.name}. Install it with: pip install {error.name}")

Array: TypeAlias = NDArray[np.float32]
Norms: TypeAlias = NDArray[np.float64]

TEXT = Path(__file__).resolve().parent.parent / "LICENSE"
CONTEXT = 4  # characters that predict the next one
WIDTH = 32  # units of the hidden layer
BATCH = 128
LEARNING_RATE = 2.0
LIMIT = 1.0  # of the norm of an example's gradient
CHECK_EVERY = 20  # steps: the plain formula takes longer than the rest


def loss_and_gradients(weights: list[Array], inputs: Array, targets: NDArray[np.intp]) -> tuple[float, list[Array]]:
    """Return the mean cross-entropy, and for each layer the gradients of all examples, along the first axis."""
    hidden = np.tanh(inputs @ weights[0])
    logits = hidden @ weights[1]
    logits -= logits.max(axis=1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    rows = np.arange(len(targets))
    back = np.exp(log_p)
    back[rows, targets] -= 1
    inner = (back @ weights[1].T) * (1 - hidden * hidden)
    return -float(log_p[rows, targets].mean()), [
        inputs[:, :, None] * inner[:, None],
        hidden[:, :, None] * back[:, None],
    ]


def sum_by_numpy(gradients: list[Array], limit: float) -> list[NDArray[np.float64]]:
    """Return the sums of the clipped gradients by the plain formula, with float64 copies of all gradients."""
    wide = [gradient.astype(np.float64) for gradient in gradients]
    norms = np.sqrt(sum((gradient * gradient).sum(axis=(1, 2)) for gradient in wide))
    factors = np.minimum(1.0, limit / norms)
    return [(gradient * factors[:, None, None]).sum(axis=0) for gradient in wide]


def train(steps: int, seed: int, limit: float, noise: float) -> tuple[list[float], Norms, float]:
    """Return the loss of each step, the norms of the last batch, and the largest distance from the plain formula."""
    text = np.frombuffer(TEXT.read_bytes(), np.uint8)
    characters, data = np.unique(text, return_inverse=True)
    rng = np.random.default_rng(seed)
    shapes = [(CONTEXT * len(characters), WIDTH), (WIDTH, len(characters))]
    weights = [rng.standard_normal(shape, dtype=np.float32) * np.float32(0.3) for shape in shapes]
    sums = [np.empty_like(weight) for weight in weights]
    one_hot = np.eye(len(characters), dtype=np.float32)
    losses, norms, distance = [], np.zeros(0), 0.0
    for step in tqdm(range(steps), desc=f"limit {limit:g}, noise {noise:g}", unit="step", disable=None):
        starts = rng.integers(0, len(data) - CONTEXT, size=BATCH)
        windows = data[starts[:, None] + np.arange(CONTEXT + 1)]
        inputs = one_hot[windows[:, :-1]].reshape(BATCH, -1)
        loss, gradients = loss_and_gradients(weights, inputs, windows[:, -1])
        _, norms = gc.clip_examples_by_global_norm(gradients, limit, strict=True, out=sums)
        if step % CHECK_EVERY == 0:
            for total, plain in zip(sums, sum_by_numpy(gradients, limit), strict=True):
                distance = np.maximum(distance, np.abs(total - plain).max() / np.abs(plain).max())
        for weight, total in zip(weights, sums, strict=True):
            if noise:
                total[...] += rng.standard_normal(total.shape, dtype=np.float32) * np.float32(noise * limit)
            weight[...] -= np.float32(LEARNING_RATE / BATCH) * total
        losses.append(loss)
    return losses, norms, float(distance)


def save_plot(results: dict[str, list[float]], norms: Norms, path: Path) -> None:
    """Save the losses, and a histogram of the norms of one batch without clipping."""
    plt.switch_backend("Agg")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for (label, losses), colour in zip(results.items(), ("black", "#0072B2", "#D55E00"), strict=False):
        width = max(1, len(losses) // 25)
        left.plot(np.convolve(losses, np.full(width, 1 / width), "valid"), color=colour, label=label)
    left.set(title="Loss", xlabel="training step", ylabel="cross-entropy (nats per character)")
    right.hist(norms, bins=20, color="#0072B2", alpha=0.6)
    right.axvline(LIMIT, color="black", linestyle="--", label=f"clip limit ({LIMIT:g})")
    right.set(title="Examples of the last batch", xlabel="norm of an example's gradient", ylabel="number of examples")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train three times, print the table, save the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400, help="SGD steps [%(default)s]")
    parser.add_argument("--noise", type=float, default=1.0, help="in units of the limit [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="for weights, batches and noise [%(default)s]")
    parser.add_argument("--output", type=Path, default="private_step.png", help="plot file [%(default)s]")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"argument --steps: expected at least 1, found {args.steps}")
    if args.seed < 0:
        parser.error(f"argument --seed: expected at least 0, found {args.seed}")
    if not args.noise >= 0:
        parser.error(f"argument --noise: expected a number >= 0, found {args.noise}")

    runs = {
        "without a limit": train(args.steps, args.seed, np.inf, 0.0),
        "clipped": train(args.steps, args.seed, LIMIT, 0.0),
        "clipped, with noise": train(args.steps, args.seed, LIMIT, args.noise),
    }
    print(f"\n{'run':<22}{'loss at end':>12}{'examples clipped':>18}{'distance from NumPy':>21}")
    for label, (losses, norms, distance) in runs.items():
        share = 0.0 if label == "without a limit" else (norms > LIMIT).mean()
        print(f"{label:<22}{np.mean(losses[-20:]):>12.3f}{share:>18.0%}{distance:>21.1e}")
    worst = max(distance for _, _, distance in runs.values())
    if not worst < np.finfo(np.float32).eps:
        sys.exit(f"The sums differ from those of NumPy by {worst:.1e}.")
    try:
        save_plot({label: losses for label, (losses, _, _) in runs.items()}, runs["without a limit"][1], args.output)
    except (OSError, ValueError) as error:
        parser.error(f"argument --output: cannot write {str(args.output)!r}: {error}")
    print(f"Plot saved to {args.output}")


if __name__ == "__main__":
    main()
