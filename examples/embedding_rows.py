"""Row norms of word embeddings, and how `clip_by_norm` along rows bounds them.

Word vectors are learned from a text, the licence of this repository. Words near each other get vectors with a large
product. Without a limit, frequent words get long vectors, and the loss on held-out pairs rises again. Clipping each
row after each step keeps every vector within a ball. This is known as a max-norm constraint.

Run it (some seconds)::

    pip install ".[examples]"
    python examples/embedding_rows.py

It prints a table and saves a plot.

The constraint is from N. Srebro and A. Shraibman, "Rank, trace-norm and max-norm", COLT 2005.
"""

from __future__ import annotations

import argparse
import re
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
Indices: TypeAlias = NDArray[np.intp]

TEXT = Path(__file__).resolve().parent.parent / "LICENSE"
SIZE = 32  # elements of a vector
WINDOW = 4  # words on each side that count as near
NEGATIVES = 5  # random words for each near one
BATCH = 256  # pairs a step
LEARNING_RATE = 0.05
LIMIT = 2.0  # of the norm of a row


def pairs_of(words: list[str]) -> tuple[Indices, Indices, int]:
    """Return the pairs of words near each other, as numbers, and the number of different words."""
    number = {word: i for i, word in enumerate(sorted(set(words)))}
    text = np.array([number[word] for word in words])
    left = [text[:-shift] for shift in range(1, WINDOW + 1)]
    right = [text[shift:] for shift in range(1, WINDOW + 1)]
    return np.concatenate(left + right), np.concatenate(right + left), len(number)


def loss_and_slopes(a: Array, b: Array, sign: Array) -> tuple[float, Array]:
    """Return the mean logistic loss of the products of rows, and its derivative by each product."""
    product = sign * np.einsum("...i,...i->...", a, b)
    return float(np.logaddexp(0, -product).mean()), -sign / (1 + np.exp(product))


def train(passes: int, seed: int, limit: float) -> tuple[Array, list[float]]:
    """Return the vectors of all words and the loss on held-out pairs after each pass."""
    words = re.findall(r"[a-z]+", TEXT.read_text(encoding="utf-8").lower())
    near, other, count = pairs_of(words)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(near))
    test, training = order[: len(order) // 10], order[len(order) // 10 :]
    vectors, contexts = (rng.standard_normal((count, SIZE), dtype=np.float32) * np.float32(0.1) for _ in range(2))
    sign = np.array([1.0] + [-1.0] * NEGATIVES, np.float32)
    unseen = np.concatenate([other[test, None], rng.integers(0, count, (len(test), NEGATIVES))], axis=1)
    losses = []
    for _ in tqdm(range(passes), desc=f"limit {limit:g}", unit="pass", disable=None):
        for chosen in np.array_split(rng.permutation(training), len(training) // BATCH):
            drawn = np.concatenate([other[chosen, None], rng.integers(0, count, (len(chosen), NEGATIVES))], axis=1)
            rows, columns = vectors[near[chosen], None], contexts[drawn]
            _, slopes = loss_and_slopes(rows, columns, sign)
            steps = np.float32(LEARNING_RATE) * slopes[..., None]
            np.subtract.at(vectors, near[chosen], (steps * columns).sum(axis=1))
            np.subtract.at(contexts, drawn, steps * rows)
            # The constraint: no row is longer than the limit. Rows within it keep their bits.
            gc.clip_by_norm(vectors, limit, axes=1, out=vectors)
            gc.clip_by_norm(contexts, limit, axes=1, out=contexts)
        losses.append(loss_and_slopes(vectors[near[test], None], contexts[unseen], sign)[0])
    return vectors, losses


def save_plot(results: dict[str, tuple[Array, list[float]]], path: Path) -> None:
    """Save the losses and a histogram of the row norms."""
    plt.switch_backend("Agg")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    bins = np.linspace(0, max(gc.norm(vectors, axis=1).max() for vectors, _ in results.values()), 60)
    for (label, (vectors, losses)), colour in zip(results.items(), ("#D55E00", "#0072B2"), strict=True):
        left.plot(range(1, len(losses) + 1), losses, color=colour, label=label)
        right.hist(gc.norm(vectors, axis=1), bins=bins, color=colour, alpha=0.6, label=label)
    left.set(title="Loss on held-out pairs", xlabel="passes over the text", ylabel="logistic loss (nats)")
    right.set(
        title="Norms of the word vectors", xlabel="Euclidean norm of a row", ylabel="number of words", yscale="log"
    )
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train twice, print the table, save the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--passes", type=int, default=30, help="over the text [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="for weights and batches [%(default)s]")
    parser.add_argument("--output", type=Path, default="embedding_rows.png", help="plot file [%(default)s]")
    args = parser.parse_args()
    if args.passes < 1:
        parser.error(f"argument --passes: expected at least 1, found {args.passes}")
    if args.seed < 0:
        parser.error(f"argument --seed: expected at least 0, found {args.seed}")

    results = {
        "without a limit": train(args.passes, args.seed, np.inf),
        f"rows clipped to {LIMIT:g}": train(args.passes, args.seed, LIMIT),
    }
    print(f"\n{'run':<20}{'longest row':>12}{'best loss':>11}{'last loss':>11}")
    for label, (vectors, losses) in results.items():
        print(f"{label:<20}{gc.norm(vectors, axis=1).max():>12.3g}{min(losses):>11.4f}{losses[-1]:>11.4f}")
    try:
        save_plot(results, args.output)
    except (OSError, ValueError) as error:
        parser.error(f"argument --output: cannot write {str(args.output)!r}: {error}")
    print(f"Plot saved to {args.output}")


if __name__ == "__main__":
    main()
