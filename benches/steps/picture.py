"""The picture: the time that some programs wait for a clip, by library."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from steps.libraries import LIBRARIES, OURS, is_peer
from steps.operations import NEW

if TYPE_CHECKING:
    from pathlib import Path

    from steps.results import Results
    from steps.summary import Line

#: The panels: the name of a program, and its title.
PANELS = {
    "training step, 1.9M, in place": "training step, 1.9M parameters, in place",
    "training step, 1.9M, new": "training step, 1.9M parameters, new arrays",
    "training step, 25M (ResNet-50), new": "training step, ResNet-50 (25M), new arrays",
    "two models in turn, new": "two models in turn (as in a GAN), new arrays",
    "rows, 50,000 x 768, last 1 kept, new": "rows of a 50,000 x 768 matrix, new array",
    "20 ms between calls, 1.9M, unclipped": "after 20 ms of sleep, 1.9M parameters, nothing to clip",
}
COLOURS = {
    OURS: "#d9480f",
    "NumPy": "#3b5b7a",
    "PyTorch": "#7891aa",
    "TensorFlow": "#a3a9b0",
    "optax": "#c9ced4",
}
INK, FAINT = "#1f2328", "#59636e"


def milliseconds(seconds: float) -> str:
    """Write a time in three digits at most."""
    value = 1000 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"  # noqa: PLR2004


def libraries_of(shown: list[Line]) -> list[str]:
    """Return the libraries that have a bar anywhere, ours first."""
    known = [OURS, *(name for name in LIBRARIES if is_peer(name))]
    return [name for name in known if any(name in line.times for line in shown)]


def absence(name: str, line: Line) -> str:
    """Return the reason why a library has no bar."""
    only_new = NEW in LIBRARIES[name].modes and not line.name.endswith(NEW)
    return "makes new arrays only" if only_new else "not measured"


def draw_panel(axes: Any, line: Line, names: list[str]) -> None:
    """Draw the bars of a program."""
    values = {name: line.times[name].median * 1000 for name in names if name in line.times}
    most = max(values.values())
    for place, name in enumerate(names):
        if name not in values:
            axes.text(0, place, f" {absence(name, line)}", va="center", fontsize=13, color=FAINT, style="italic")
            continue
        axes.barh(place, values[name], color=COLOURS[name], height=0.76)
        axes.text(
            values[name] + 0.015 * most,
            place,
            f"{milliseconds(values[name] / 1000)} ms",
            va="center",
            fontsize=14,
            color=INK,
            fontweight="bold" if name == OURS else "normal",
        )
    axes.set_title(PANELS[line.name], fontsize=15, loc="left", color=INK, pad=8)
    axes.set_xlim(0, 1.22 * most)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.set_xticks([])
    axes.set_yticks(range(len(names)), names, fontsize=14, color=INK)
    axes.tick_params(length=0)
    axes.get_yticklabels()[0].set_fontweight("bold")
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color("#d0d7de")


def draw(results: Results, lines: list[Line], path: Path) -> None:
    """Draw the panels that were measured, 1600 pixels wide."""
    shown = [line for name in PANELS for line in lines if line.name == name and line.times]
    try:
        importlib.import_module("matplotlib").use("Agg")
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    if not shown:
        print("no picture: none of its programs was measured")
        return
    plt: Any = importlib.import_module("matplotlib.pyplot")
    names = libraries_of(shown)
    rows = -(-len(shown) // 2)
    height = 1.5 + rows * (0.75 + 0.36 * len(names))
    figure, grid = plt.subplots(rows, 2, figsize=(16, height), squeeze=False, facecolor="white")
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, line in zip(grid.flat, shown, strict=False):
        draw_panel(axes, line, names)
    write_around(figure, results, names, height)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, facecolor="white")
    plt.close(figure)


def write_around(figure: Any, results: Results, names: list[str], height: float) -> None:
    """Write the title, and below the bars the machine and the versions."""
    figure.subplots_adjust(left=0.083, right=0.985, top=1 - 1.55 / height, bottom=0.5 / height, hspace=0.42, wspace=0.2)
    figure.text(
        0.012,
        1 - 0.42 / height,
        "Time that programs wait for gradient clipping",
        fontsize=23,
        fontweight="bold",
        color=INK,
        va="center",
    )
    figure.text(
        0.012,
        1 - 0.86 / height,
        "Time of one clip call, after matrix products or a pause; float32; shorter is better; each panel has its scale",
        fontsize=15,
        color=FAINT,
        va="center",
    )
    versions = ", ".join(f"{name} {results.versions[name].partition('+')[0]}" for name in names)
    text = f"{', '.join(results.machine[:2])}; {versions}; {results.date}"
    figure.text(0.012, 0.2 / height, text, fontsize=12.5, color=FAINT, va="center")
