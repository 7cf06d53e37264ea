"""Draws ranks.png: what is summed where."""  # noqa: INP001 (a script)

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

WIDTH, HEIGHT, GAP = 2.5, 0.9, 0.55
COLUMNS = [
    ("own tensors", "#dbe7f5", ["[3, 0, 0]", "[0, 4]", "no gradients"]),
    ("sum of powers\n1 KiB", "#fbe3c8", ["9", "16", "0"]),
    ("all messages,\nin the order of ranks", "#dcefdc", ["9 + 16 + 0"] * 3),
    ("norm", "#f3d9e4", ["5.0"] * 3),
]


def main() -> None:
    """Draw three ranks, a row each, and what they do, a column each."""
    figure, axes = plt.subplots(figsize=(8.6, 3.3), dpi=150)
    for column, (title, color, texts) in enumerate(COLUMNS):
        left = column * (WIDTH + GAP)
        axes.text(left + WIDTH / 2, 0.35, title, ha="center", va="bottom", fontsize=9)
        for row, text in enumerate(texts):
            bottom = -(row + 1) * (HEIGHT + 0.35)
            box = mpl.patches.FancyBboxPatch(
                (left, bottom), WIDTH, HEIGHT, boxstyle="round,pad=0.08", facecolor=color, edgecolor="#666666"
            )
            axes.add_patch(box)
            axes.text(left + WIDTH / 2, bottom + HEIGHT / 2, text, ha="center", va="center", fontsize=11)
            if column < len(COLUMNS) - 1:
                targets = range(3) if column == 1 else [row]
                for target in targets:
                    end = (left + WIDTH + GAP - 0.1, -(target + 1) * (HEIGHT + 0.35) + HEIGHT / 2)
                    start = (left + WIDTH + 0.1, bottom + HEIGHT / 2)
                    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#555555"})
    for row in range(3):
        middle = -(row + 1) * (HEIGHT + 0.35) + HEIGHT / 2
        axes.text(-0.3, middle, f"rank {row}", ha="right", va="center", fontsize=10)
    axes.text(2 * WIDTH + 1.5 * GAP, -4.35, "one allgather", ha="center", fontsize=9, style="italic")
    axes.set_xlim(-1.5, 4 * WIDTH + 3 * GAP + 0.2)
    axes.set_ylim(-4.6, 1.3)
    axes.axis("off")
    figure.savefig(Path(__file__).with_suffix(".png"), bbox_inches="tight", facecolor="white")


if __name__ == "__main__":
    main()
