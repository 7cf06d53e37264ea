"""Federated rounds: clip the update of each client before the server takes the mean.

Ten clients train a small network, each on its own data with few classes. As in flwr, parameters are lists of arrays,
with a counter of steps among them. One client is broken: its learning rate is fifty times too high, and it sends NaN in
every tenth round. `clip_difference_by_global_norm` limits the distance between a client's parameters and those of the
server. An update that is not finite is replaced by the server's parameters.

Run it (some seconds)::

    pip install ".[examples]"
    python examples/federated_round.py

It prints a table and saves a plot. It needs no server: the rounds run in one process.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, TypeAlias

import gradclip as gc
import numpy as np
from numpy.typing import NDArray

try:
    import matplotlib.pyplot as plt
    from tqdm import tqdm
except ModuleNotFoundError as error:
    sys.exit(f"This example needs {error.name}. Install it with: pip install {error.name}")

Array: TypeAlias = NDArray[np.float32]
Parameters: TypeAlias = list[NDArray[Any]]  # two layers with their biases, and a counter of steps

CLIENTS = 10
BROKEN, TOO_HIGH, NAN_EVERY = 3, 50, 10  # the client that is broken, its learning rate, its rounds with NaN
CLASSES, FEATURES, WIDTH = 10, 20, 32
EXAMPLES = 200  # of each client
LOCAL_STEPS = 20
LEARNING_RATE = 0.1
LIMIT = 0.5  # of the norm of an update


def make_data(rng: np.random.Generator, counts: NDArray[np.float64], centres: Array) -> tuple[Array, NDArray[np.intp]]:
    """Return examples around the centres of their classes, and the classes, which are drawn by their shares."""
    labels = rng.choice(CLASSES, size=EXAMPLES, p=counts)
    return centres[labels] + rng.standard_normal((EXAMPLES, FEATURES), dtype=np.float32), labels


def train(parameters: Parameters, data: tuple[Array, NDArray[np.intp]], rate: float) -> Parameters:
    """Return the parameters after the steps of one client."""
    inputs, labels = data
    w1, b1, w2, b2, steps = (array.copy() for array in parameters)
    for _ in range(LOCAL_STEPS):
        hidden = np.maximum(inputs @ w1 + b1, 0)
        back = softmax(hidden @ w2 + b2)
        back[np.arange(len(labels)), labels] -= 1
        back /= np.float32(len(labels))
        inner = (back @ w2.T) * (hidden > 0)
        gradients = [inputs.T @ inner, inner.sum(axis=0), hidden.T @ back, back.sum(axis=0)]
        for array, gradient in zip((w1, b1, w2, b2), gradients, strict=True):
            array[...] -= np.float32(rate) * gradient
        steps += 1
    return [w1, b1, w2, b2, steps]


def softmax(logits: Array) -> Array:
    """Return the probabilities of the classes."""
    powers: Array = np.exp(logits - logits.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def accuracy(parameters: Parameters, data: tuple[Array, NDArray[np.intp]]) -> float:
    """Return the share of examples whose class is found."""
    w1, b1, w2, b2, _ = parameters
    found = (np.maximum(data[0] @ w1 + b1, 0) @ w2 + b2).argmax(axis=1)
    return float((found == data[1]).mean())


def mean_of(all_parameters: list[Parameters]) -> Parameters:
    """Return the mean of the clients' arrays, and the largest of the counters."""
    columns = zip(*all_parameters, strict=True)
    return [np.asarray((np.max if own[0].dtype.kind == "i" else np.mean)(own, axis=0)) for own in columns]


def run(rounds: int, seed: int, *, clips: bool) -> tuple[list[float], NDArray[np.float64]]:
    """Return the accuracy after each round, and the norms of the updates: a row for each round."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((CLASSES, FEATURES), dtype=np.float32)
    clients = [make_data(rng, rng.dirichlet(np.full(CLASSES, 0.3)), centres) for _ in range(CLIENTS)]
    test = make_data(rng, np.full(CLASSES, 1 / CLASSES), centres)
    server: Parameters = [
        rng.standard_normal((FEATURES, WIDTH), dtype=np.float32) * np.float32(0.3),
        np.zeros(WIDTH, np.float32),
        rng.standard_normal((WIDTH, CLASSES), dtype=np.float32) * np.float32(0.3),
        np.zeros(CLASSES, np.float32),
        np.array(0),
    ]
    accuracies, norms = [], []
    for number in tqdm(range(rounds), desc="clipped" if clips else "without a limit", unit="round", disable=None):
        sent, of_round = [], []
        for client, data in enumerate(clients):
            is_broken = client == BROKEN
            with np.errstate(all="ignore"):
                parameters = train(server, data, LEARNING_RATE * (TOO_HIGH if is_broken else 1))
            if is_broken and (number + 1) % NAN_EVERY == 0:
                parameters[0][0, 0] = np.nan
            # An infinite limit only computes the norm. The counter does not count in it.
            limit = LIMIT if clips else np.inf
            _, norm = gc.clip_difference_by_global_norm(
                parameters, server, limit, nonfinite="zero", integers="keep", out=parameters
            )
            sent.append(parameters)
            of_round.append(norm)
        with np.errstate(all="ignore"):
            server = mean_of(sent)
        accuracies.append(accuracy(server, test))
        norms.append(of_round)
    return accuracies, np.array(norms)


def save_plot(results: dict[str, list[float]], norms: NDArray[np.float64], path: Path) -> None:
    """Save the accuracies, and the norms of the updates of all clients."""
    plt.switch_backend("Agg")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for (label, accuracies), colour in zip(results.items(), ("#D55E00", "#0072B2"), strict=True):
        left.plot(range(1, len(accuracies) + 1), accuracies, color=colour, label=label)
    left.set(title="Accuracy of the server's network", xlabel="round", ylabel="share of examples", ylim=(0, 1))
    rounds = range(1, len(norms) + 1)
    for client, column in enumerate(np.delete(norms, BROKEN, axis=1).T):
        right.plot(rounds, column, color="#0072B2", alpha=0.5, label="the other clients" if client == 0 else None)
    right.plot(rounds, norms[:, BROKEN], "x", color="#D55E00", label="the broken client, where finite")
    right.axhline(LIMIT, color="black", linestyle="--", label=f"clip limit ({LIMIT:g})")
    right.set(title="Updates before clipping", xlabel="round", ylabel="norm of an update", yscale="log")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the rounds twice, print the table, save the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40, help="of training [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="for data and parameters [%(default)s]")
    parser.add_argument("--output", type=Path, default="federated_round.png", help="plot file [%(default)s]")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"argument --rounds: expected at least 1, found {args.rounds}")
    if args.seed < 0:
        parser.error(f"argument --seed: expected at least 0, found {args.seed}")

    without, _ = run(args.rounds, args.seed, clips=False)
    clipped, norms = run(args.rounds, args.seed, clips=True)
    results = {"without a limit": without, f"updates clipped to {LIMIT:g}": clipped}
    print(f"\n{'run':<24}{'first round':>12}{'last round':>12}")
    for label, accuracies in results.items():
        print(f"{label:<24}{accuracies[0]:>12.0%}{accuracies[-1]:>12.0%}")
    good = np.delete(norms, BROKEN, axis=1)
    print(f"Median norm of the good updates: {np.median(good):.2f}. Ignored updates with NaN: {np.isnan(norms).sum()}.")
    try:
        save_plot(results, norms, args.output)
    except (OSError, ValueError) as error:
        parser.error(f"argument --output: cannot write {str(args.output)!r}: {error}")
    print(f"Plot saved to {args.output}")


if __name__ == "__main__":
    main()
