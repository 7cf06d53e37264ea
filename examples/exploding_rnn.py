"""Exploding gradients in a recurrent network, and how clipping the global norm tames them.

A small character-level recurrent network (one tanh layer, plain NumPy, no framework) learns to
predict the next character of a text, by default the licence of this repository. It is trained
twice with the same initial weights, the same batches and the same learning rate:

* without clipping: back-propagation multiplies the gradient by the recurrent weights once per
  character. Those weights start out large here, so the gradient grows exponentially with the
  length of the sequence. At a high learning rate the first few updates throw the weights far
  away, and the loss goes up.
* with ``gradclip.clip_by_global_norm``: all gradients are scaled down together whenever their
  common norm is above a limit. The direction of the update stays, only its length is bounded,
  and the loss falls.

Run it (about half a minute on two free CPUs, longer if other programs use them)::

    pip install ".[examples]"
    python examples/exploding_rnn.py

It prints a table and saves a plot. ``--help`` lists the options. Training without clipping is
chaotic. It fails on every machine, but its numbers differ even for the same seed.

The idea is from R. Pascanu, T. Mikolov and Y. Bengio, "On the difficulty of training recurrent
neural networks", ICML 2013, https://arxiv.org/abs/1211.5063.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, field
from functools import partial
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
Indices: TypeAlias = NDArray[np.intp]

HIDDEN = 256  # units in the recurrent layer
SEQUENCE = 48  # characters the gradient flows back through
BATCH = 16  # sequences per step
# High on purpose: at 0.1 plain SGD works without clipping, and at 0.7 it fails even with a
# recurrent gain of 1.
LEARNING_RATE = 0.7
# Spectral radius (about) of the recurrent weights at the start. Gradients explode because it is
# far above 1. Below 1 they would vanish.
RECURRENT_GAIN = 1.8

DEFAULT_STEPS = 1000
DEFAULT_CLIP_NORM = 0.5
DEFAULT_TEXT = Path(__file__).resolve().parent.parent / "LICENSE"
MIN_CHARACTERS = 1000

# Two colours of the Okabe-Ito palette, which colour-blind readers can tell apart.
UNCLIPPED_COLOUR = "#D55E00"
CLIPPED_COLOUR = "#0072B2"


@dataclass
class Run:
    """The records of one training run."""

    label: str
    losses: list[float] = field(default_factory=list)  # nats per character, one per step
    norms: list[float] = field(default_factory=list)  # global gradient norm before any clipping
    clipped_steps: int = 0
    diverged_at: int | None = None  # the first step whose loss was not finite


def initial_weights(rng: np.random.Generator, vocabulary: int) -> list[Array]:
    """Return input, recurrent and output weights, then hidden and output biases."""

    def normal(rows: int, columns: int, scale: float) -> Array:
        return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(scale)

    return [
        normal(vocabulary, HIDDEN, 0.3),
        normal(HIDDEN, HIDDEN, RECURRENT_GAIN / math.sqrt(HIDDEN)),
        normal(HIDDEN, vocabulary, 1 / math.sqrt(HIDDEN)),
        np.zeros(HIDDEN, dtype=np.float32),
        np.zeros(vocabulary, dtype=np.float32),
    ]


def loss_and_gradients(weights: list[Array], inputs: Indices, targets: Indices) -> tuple[float, list[Array]]:
    """Return the mean cross-entropy and its gradient for each weight array.

    ``inputs`` and ``targets`` hold characters as integers, shape (time, batch).
    """
    w_in, w_rec, w_out, b_hidden, b_out = weights
    steps, batch = inputs.shape
    one_hot = np.eye(len(w_in), dtype=w_in.dtype)

    # Forward. hidden[t + 1] is the state after character t, hidden[0] is all zero.
    hidden = np.zeros((steps + 1, batch, len(w_rec)), dtype=w_rec.dtype)
    for t in range(steps):
        hidden[t + 1] = np.tanh(w_in[inputs[t]] + hidden[t] @ w_rec + b_hidden)
    logits = hidden[1:] @ w_out + b_out
    logits -= logits.max(axis=-1, keepdims=True)  # exp() cannot overflow then
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    loss = -np.take_along_axis(log_p, targets[..., np.newaxis], axis=-1).mean(dtype=np.float64)

    # Backward, from the last character to the first.
    d_logits = (np.exp(log_p) - one_hot[targets]) / targets.size
    d_hidden = d_logits @ w_out.T  # what each state gets from its own prediction
    d_inner = np.empty_like(d_hidden)  # the gradient before the tanh
    from_future = np.zeros_like(d_hidden[0])
    for t in reversed(range(steps)):
        d_inner[t] = (d_hidden[t] + from_future) * (1 - hidden[t + 1] ** 2)
        # One more factor w_rec for every character: this product is what explodes.
        from_future = d_inner[t] @ w_rec.T

    # Time and batch are summed over alike, so a matrix product over both will do.
    flat_inner = d_inner.reshape(steps * batch, -1)
    flat_logits = d_logits.reshape(steps * batch, -1)
    gradients = [
        one_hot[inputs.ravel()].T @ flat_inner,
        hidden[:-1].reshape(steps * batch, -1).T @ flat_inner,
        hidden[1:].reshape(steps * batch, -1).T @ flat_logits,
        flat_inner.sum(axis=0),
        flat_logits.sum(axis=0),
    ]
    return float(loss), gradients


def train(label: str, text: str, steps: int, seed: int, clip_norm: float | None) -> Run:
    """Train from scratch with plain SGD; ``clip_norm=None`` trains without clipping."""
    characters = sorted(set(text))
    code = {character: i for i, character in enumerate(characters)}
    data = np.array([code[character] for character in text], dtype=np.intp)
    # Weights and batches come from the same seed, so that two runs differ in the clipping only.
    rng = np.random.default_rng(seed)
    weights = initial_weights(rng, len(characters))
    run = Run(label)

    progress = tqdm(range(1, steps + 1), desc=f"{label:<16}", unit="step", disable=None)
    for step in progress:
        starts = rng.integers(0, len(data) - SEQUENCE, size=BATCH)
        window = data[starts + np.arange(SEQUENCE + 1)[:, np.newaxis]]
        # Overflow is expected in the run without clipping. The loss is checked right below.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            loss, gradients = loss_and_gradients(weights, window[:-1], window[1:])
        if not math.isfinite(loss):
            run.diverged_at = step
            progress.set_postfix_str("diverged")
            break

        if clip_norm is None:
            norm = gc.global_norm(gradients)
        else:
            # In place: the arrays in `gradients` now hold the clipped values.
            _, norm = gc.clip_by_global_norm(gradients, clip_norm, out=gradients)
            run.clipped_steps += norm > clip_norm
        run.losses.append(loss)
        run.norms.append(norm)
        progress.set_postfix_str(f"loss {loss:.3g}", refresh=False)

        with np.errstate(over="ignore", invalid="ignore"):
            for weight, gradient in zip(weights, gradients, strict=True):
                weight[...] -= LEARNING_RATE * gradient
    progress.close()
    return run


def final_loss(run: Run, window: int) -> float:
    """Return the mean of the last ``window`` losses; inf for a run that diverged."""
    return math.inf if run.diverged_at else float(np.mean(run.losses[-window:]))


def print_table(runs: list[Run], window: int) -> None:
    """Print one line per run."""
    row = "{:<18}{:>6}{:>9}{:>14}{:>12}  {:>10}"
    print("\n" + row.format("run", "steps", "clipped", "largest norm", "first loss", "final loss"))
    for run in runs:
        final = f"{final_loss(run, window):.3g}"
        if run.diverged_at:
            final = f"diverged at step {run.diverged_at}"
        norm, first = f"{np.max(run.norms):.3g}", f"{run.losses[0]:.3g}"
        print(row.format(run.label, len(run.losses), run.clipped_steps, norm, first, final))
    print(
        f"Losses in nats per character; the final loss is the mean of the last {window} step(s).\n"
        "Norms are L2, taken before clipping, over all weights together."
    )


def save_plot(runs: list[Run], clip_norm: float, guess: float, window: int, path: Path) -> None:
    """Save the losses and the gradient norms over the steps."""
    plt.switch_backend("Agg")  # draws to a file, needs no display
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 8), sharex=True, layout="constrained")
    figure.suptitle("A recurrent network with and without gradient clipping")
    for run, colour in zip(runs, (UNCLIPPED_COLOUR, CLIPPED_COLOUR), strict=True):
        label = run.label
        if run.diverged_at:
            label += f" (diverged at step {run.diverged_at})"
        # Every step in a pale line, the moving average in a strong one.
        width = min(window, len(run.losses))
        for axes, values in ((top, run.losses), (bottom, run.norms)):
            axes.plot(range(1, len(values) + 1), values, color=colour, alpha=0.4, linewidth=0.8)
            # Log axes: average the logarithm, or a single peak would hide everything else.
            with np.errstate(divide="ignore", invalid="ignore"):
                smooth = np.exp(np.convolve(np.log(values), np.full(width, 1 / width), "valid"))
            axes.plot(range(width, len(values) + 1), smooth, color=colour, linewidth=2, label=label)
    top.axhline(guess, color="0.35", linestyle=":", label=f"uniform guess ({guess:.2f} nats)")
    bottom.axhline(clip_norm, color="black", linestyle="--", label=f"clip limit ({clip_norm:g})")
    top.set(title="Loss", ylabel="cross-entropy (nats per character)")
    bottom.set(
        title="Gradient norm before clipping",
        xlabel="training step (number of SGD updates, log scale)",
        ylabel="global L2 norm (nats per unit of weight)",
    )
    for axes in (top, bottom):
        # Log x as well: the explosion happens within the first few steps.
        axes.set(xscale="log", yscale="log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)
        axes.legend()
    top.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    top.yaxis.set_major_formatter("{x:g}")
    top.yaxis.set_minor_formatter(NullFormatter())
    figure.savefig(path, dpi=150)


def whole_number(minimum: int, value: str) -> int:
    """Parse an integer of at least ``minimum``."""
    if not value.isdecimal() or int(value) < minimum:
        message = f"expected an integer of at least {minimum}, found {value!r}"
        raise argparse.ArgumentTypeError(message)
    return int(value)


def positive_float(value: str) -> float:
    """Parse a finite number above 0."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        message = f"expected a finite number above 0, found {value!r}"
        raise argparse.ArgumentTypeError(message)
    return number


def text_file(value: str) -> str:
    """Read a text file that is long enough to learn from."""
    allowed = f"expected a UTF-8 text of at least {MIN_CHARACTERS} characters, 2 of them different"
    try:
        text = Path(value).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{allowed}, cannot read {value!r}: {error}"
        raise argparse.ArgumentTypeError(message) from error
    different = len(set(text))
    if len(text) < MIN_CHARACTERS or different == 1:
        message = f"{allowed}, found {len(text)} characters, {different} different, in {value!r}"
        raise argparse.ArgumentTypeError(message)
    return text


def png_path(value: str) -> Path:
    """Accept the path of a PNG file in a directory that exists."""
    path = Path(value)
    if path.suffix.lower() != ".png" or not path.parent.is_dir() or path.is_dir():
        message = f"expected a .png file in a directory that exists, found {value!r}"
        raise argparse.ArgumentTypeError(message)
    return path


def main() -> None:
    """Train twice, print the table, save the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    count, natural = partial(whole_number, 1), partial(whole_number, 0)
    limit = DEFAULT_CLIP_NORM
    add("--steps", type=count, default=DEFAULT_STEPS, help="SGD steps per run [%(default)s]")
    add("--seed", type=natural, default=0, help="for weights and batches [%(default)s]")
    add("--clip-norm", type=positive_float, default=limit, help="clip limit [%(default)s]")
    add("--output", type=png_path, default="exploding_rnn.png", help="plot file [%(default)s]")
    add("--text", type=text_file, default=str(DEFAULT_TEXT), help="UTF-8 file [the LICENSE]")
    args = parser.parse_args()

    runs = [
        train("without clipping", args.text, args.steps, args.seed, None),
        train("with clipping", args.text, args.steps, args.seed, args.clip_norm),
    ]
    window = max(1, min(50, args.steps // 10))
    print_table(runs, window)
    first = runs[0].losses[0]
    without, with_clipping = (final_loss(run, window) for run in runs)
    if with_clipping < first < without:
        print("The loss fell with clipping and rose without.")
    uniform_guess = math.log(len(set(args.text)))
    try:
        save_plot(runs, args.clip_norm, uniform_guess, window, args.output)
    except OSError as error:
        parser.error(f"argument --output: cannot write {str(args.output)!r}: {error}")
    print(f"Plot saved to {args.output}")


if __name__ == "__main__":
    main()
