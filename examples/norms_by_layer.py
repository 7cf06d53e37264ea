"""Gradient norms of each layer over training: which layer makes the global norm large.

A network of five layers learns to predict the next character of a text, the licence of this repository. Each step
records the norm of each layer's gradient and the global norm, and clips by the global norm. The plot helps to choose
the limit: a little above the usual norm, so that it cuts only the peaks.

Run it (some seconds)::

    pip install ".[examples]"
    python examples/norms_by_layer.py

It prints a table and saves a plot.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import TypeAlias

import gradclip as gc
import numpy as np
from numpy.typing import NDArray

try:
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter
    from tqdm import tqdm
except ModuleNotFoundError as error:
    sys.exit(f"This example needs {error.name}. Install it with: pip install {error.name}")

Array: TypeAlias = NDArray[np.float32]

TEXT = Path(__file__).resolve().parent.parent / "LICENSE"
CONTEXT = 8  # characters that predict the next one
WIDTH = 128  # units of a hidden layer
LAYERS = 5
BATCH = 128
LEARNING_RATE = 0.3
LIMIT = 2.5  # of the global norm: about the 98th percentile, so that only peaks are cut


def loss_and_gradients(weights: list[Array], inputs: Array, targets: NDArray[np.intp]) -> tuple[float, list[Array]]:
    """Return the mean cross-entropy and its gradient for each layer's weights. Layers are linear, ReLU between them."""
    layers = [inputs]
    for i, weight in enumerate(weights):
        layers.append(layers[-1] @ weight if i == 0 else np.maximum(layers[-1], 0) @ weight)
    logits = layers[-1] - layers[-1].max(axis=1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    rows = np.arange(len(targets))
    back = np.exp(log_p)
    back[rows, targets] -= 1
    back /= np.float32(len(targets))
    gradients = []
    for i in reversed(range(len(weights))):
        entry = layers[i] if i == 0 else np.maximum(layers[i], 0)
        gradients.append(entry.T @ back)
        back = (back @ weights[i].T) * (layers[i] > 0)
    return -float(log_p[rows, targets].mean()), gradients[::-1]


def train(steps: int, seed: int) -> tuple[list[float], Array]:
    """Return the loss of each step, and the norms: a row for each step, a column for each layer and one for all."""
    text = np.frombuffer(TEXT.read_bytes(), np.uint8)
    characters, data = np.unique(text, return_inverse=True)
    rng = np.random.default_rng(seed)
    widths = [CONTEXT * len(characters), *[WIDTH] * (LAYERS - 1), len(characters)]
    weights = [
        rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(np.sqrt(2 / rows))
        for rows, columns in itertools.pairwise(widths)
    ]
    one_hot = np.eye(len(characters), dtype=np.float32)
    losses, norms = [], []
    for _ in tqdm(range(steps), unit="step", disable=None):
        starts = rng.integers(0, len(data) - CONTEXT, size=BATCH)
        windows = data[starts[:, None] + np.arange(CONTEXT + 1)]
        inputs = one_hot[windows[:, :-1]].reshape(BATCH, -1)
        loss, gradients = loss_and_gradients(weights, inputs, windows[:, -1])
        by_layer = [gc.norm(gradient) for gradient in gradients]
        # The global norm is the norm of the norms. So the gradients are not read again.
        total = gc.norm(np.array(by_layer))
        gc.clip_by_global_norm(gradients, LIMIT, use_norm=total, out=gradients)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight[...] -= np.float32(LEARNING_RATE) * gradient
        losses.append(loss)
        norms.append([*by_layer, total])
    return losses, np.array(norms, np.float32)


def save_plot(losses: list[float], norms: Array, path: Path) -> None:
    """Save the loss and the norms over the steps."""
    plt.switch_backend("Agg")
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 7), sharex=True, layout="constrained")
    width = max(1, len(losses) // 50)
    smooth = np.full(width, 1 / width)
    top.plot(np.convolve(losses, smooth, "valid"), color="black")
    top.set(title="Loss", ylabel="cross-entropy (nats per character)")
    names = [f"layer {i}" for i in range(1, LAYERS + 1)]
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, LAYERS))
    for name, colour, column in zip(names, colours, norms.T, strict=False):
        bottom.plot(np.convolve(column, smooth, "valid"), color=colour, label=name)
    bottom.plot(norms[:, -1], color="#D55E00", alpha=0.35, linewidth=0.8, label="all layers, each step")
    bottom.axhline(LIMIT, color="black", linestyle="--", label=f"clip limit ({LIMIT:g})")
    bottom.set(title="Gradient norms before clipping", xlabel="training step", ylabel="Euclidean norm", yscale="log")
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
    bottom.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    bottom.yaxis.set_major_formatter("{x:g}")
    bottom.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train, print the table, save the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1500, help="SGD steps [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="for weights and batches [%(default)s]")
    parser.add_argument("--output", type=Path, default="norms_by_layer.png", help="plot file [%(default)s]")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"argument --steps: expected at least 1, found {args.steps}")
    if args.seed < 0:
        parser.error(f"argument --seed: expected at least 0, found {args.seed}")

    losses, norms = train(args.steps, args.seed)
    print(f"\n{'gradient of':<14}{'median norm':>12}{'90 %':>9}{'largest':>9}")
    for name, column in zip([*(f"layer {i}" for i in range(1, LAYERS + 1)), "all layers"], norms.T, strict=True):
        print(f"{name:<14}{np.median(column):>12.3f}{np.quantile(column, 0.9):>9.3f}{column.max():>9.3f}")
    share = (norms[:, -1] > LIMIT).mean()
    print(
        f"{share:.0%} of the steps were clipped to {LIMIT:g}; the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}."
    )
    try:
        save_plot(losses, norms, args.output)
    except (OSError, ValueError) as error:
        parser.error(f"argument --output: cannot write {str(args.output)!r}: {error}")
    print(f"Plot saved to {args.output}")


if __name__ == "__main__":
    main()
