"""The table: the rows that are measured, and the ratio that each must reach."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from data import filled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from data import Array, Shape

#: Peers that are left out of a row, with the reason.
Without = tuple[tuple[str, str], ...]

NEW, OUT, IN_PLACE, UNCLIPPED = "new", "out=", "in place", "unclipped"
ALL = (NEW, OUT, IN_PLACE, UNCLIPPED)
THREE = (NEW, IN_PLACE, UNCLIPPED)

#: The phases of a clip by a norm that must be known first: one pass to read, and one to write.
PHASES = {NEW: ("read", "copy"), OUT: ("read", "copy"), IN_PLACE: ("read", "scale"), UNCLIPPED: ("read",)}

TOO_MANY: Without = (
    ("TensorFlow", "10,000 tensors: 20 s to trace, then 100 ms a call"),
    ("optax/JAX", "10,000 tensors: not compiled after 100 s"),
)
VIEWS: Without = (
    ("TensorFlow", "has no views of a matrix"),
    ("optax/JAX", "has no views of a matrix"),
)


@dataclass(frozen=True)
class Task:
    """A computation."""

    function: str
    mode: str = NEW
    axes: int | tuple[int, ...] | None = None
    ord: float = 2


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    section: str
    what: str
    task: Task
    target: float
    #: Rows with the same key work on the same inputs.
    key: str
    build: Callable[[], list[Array]]
    #: The memory traffic that is necessary, as loops of floor.rs; empty: there is no such floor.
    phases: tuple[str, ...] = ()
    #: The floor may stand in for the ratio.
    floor_counts: bool = True
    #: The floor must be reached as well as the ratio.
    floor_too: bool = False
    without: Without = ()
    #: Other peers are left out: they have few of these layouts, or no better form.
    only_numpy: bool = False
    #: The size, if the row belongs to the sweep over them.
    sweep: int = 0

    @property
    def name(self) -> str:
        """The row's name, on one line."""
        return f"{self.section}: {self.what}"


def resnet50() -> list[Shape]:
    """Return the shapes of the 161 parameters of ResNet-50."""

    def convolution(out: int, into: int, size: int) -> list[Shape]:
        return [(out, into, size, size), (out,), (out,)]

    shapes = convolution(64, 3, 7)
    channels = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            shapes += convolution(width, channels, 1) + convolution(width, width, 3)
            shapes += convolution(4 * width, width, 1)
            if block == 0:
                shapes += convolution(4 * width, channels, 1)
            channels = 4 * width
    return [*shapes, (1000, channels), (1000,)]


def transformer(width: int, layers: int) -> list[Shape]:
    """Return the shapes of the layers of a transformer: 12 parameters each."""
    linear = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    layer = [*chain.from_iterable((shape, shape[1:]) for shape in linear), *4 * [(width,)]]
    return layers * layer


def gpt2_small() -> list[Shape]:
    """Return the shapes of the 148 parameters of the smallest GPT-2."""
    return [(50257, 768), (1024, 768), *transformer(768, 12), (768,), (768,)]


def vit_b16() -> list[Shape]:
    """Return the shapes of the 152 parameters of ViT-B/16."""
    embedding: list[Shape] = [(1, 1, 768), (1, 197, 768), (768, 3, 16, 16), (768,)]
    return [*embedding, *transformer(768, 12), (768,), (768,), (1000, 768), (1000,)]


def lstm() -> list[Shape]:
    """Return the shapes of a language model of two LSTM layers of 1,500."""
    layer: list[Shape] = [(6000, 1500), (6000, 1500), (6000,), (6000,)]
    return [(10000, 1500), *layer, *layer, (10000, 1500), (10000,)]


MODELS = {"ResNet-50": resnet50, "GPT-2 small": gpt2_small, "ViT-B/16": vit_b16, "LSTM": lstm}


def arrays(shapes: Iterable[Shape], dtype: str, shrink: int) -> list[Array]:
    """Make an array of each shape, the large ones with fewer rows in a quick run."""
    least = 64
    return [
        filled((max(1, shape[0] // shrink), *shape[1:]) if shape and shape[0] > least else shape, dtype)
        for shape in shapes
    ]


def columns(height: int, width: int) -> list[Array]:
    """Make a matrix and give its columns."""
    return list(filled((height, width)).T)


def every_other(height: int, width: int, dtype: str) -> list[Array]:
    """Make a matrix and give a view of every other column."""
    return [filled((height, width), dtype)[:, ::2]]


def unaligned(t: Array) -> Array:
    """Return a copy that begins one byte after an aligned address."""
    return np.frombuffer(b"\0" + t.tobytes(), t.dtype, offset=1).reshape(t.shape)


#: Views of a matrix, or copies of it, that are not rows of native numbers.
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "[:, ::3]": lambda t: t[:, ::3],
    "[:, ::-1]": lambda t: t[:, ::-1],
    "transposed": lambda t: t.T,
    "a column repeated": lambda t: np.broadcast_to(t[:, :1], t.shape),
    "unaligned": unaligned,
    "of the other byte order": lambda t: t.astype(t.dtype.newbyteorder()),
}


def laid_out(side: int, layout: Callable[[Array], Array]) -> list[Array]:
    """Make a matrix and lay it out."""
    return [layout(filled((side, side)))]


def of_models(shrink: int) -> Iterable[Row]:
    """Make the rows of gradient sets."""

    def rows(model: str, dtype: str, targets: dict[str, float]) -> Iterable[Row]:
        build = partial(arrays, MODELS[model](), dtype, shrink)
        for mode, target in targets.items():
            yield Row(
                "global norm",
                f"{model}, {dtype}, {mode}",
                Task("clip_by_global_norm", mode),
                target,
                f"{model} {dtype}",
                build,
                PHASES[mode],
                floor_too=mode == UNCLIPPED and dtype == "float32",
            )

    for model in MODELS:
        yield from rows(model, "float32", dict(zip(ALL, (1.2, 1.05, 1.05, 1.0), strict=True)))
    for dtype, targets in {
        "bfloat16": (1.5, 1.1, 1.2),
        "float16": (1.5, 3, 3),
        "float64": (1.3, 1.0, 1.0),
        "complex64": (1.3, 1.0, 1.0),
    }.items():
        for model in ("ResNet-50", "LSTM"):
            yield from rows(model, dtype, dict(zip(THREE, targets, strict=True)))


def of_small_tensors(shrink: int) -> Iterable[Row]:
    """Make the rows where the number of tensors counts."""
    for count, size, targets in (
        (1000, 1024, (2, 2.5, 2)),
        (10_000, 16, (2.5, 6, 2)),
        (1, 10, (3, 3, 1.5)),
    ):
        number = max(1, count // shrink)
        build = partial(arrays, number * [(size,)], "float32", 1)
        what = f"{number:,} tensors of {size:,}" if count > 1 else f"one tensor of {size}"
        for mode, target in zip(THREE, targets, strict=True):
            task = Task("clip_by_global_norm", mode)
            without = TOO_MANY if number > 1000 else ()  # noqa: PLR2004 (that many take them a second or two)
            yield Row("global norm", f"{what}, {mode}", task, target, what, build, without=without)
    views = 10_000 // shrink
    task = Task("clip_by_global_norm", IN_PLACE)
    what = f"{views:,} columns of one matrix of 64 rows, in place"
    yield Row("global norm", what, task, 4, what, partial(columns, 64, views), without=VIEWS)
    task = Task("clip_by_global_norm", NEW)
    for dtype, side in (("float32", 8192 // shrink), ("complex64", 4096 // shrink)):
        what = f"[:, ::2] of {side}x{side}, {dtype}, new"
        yield Row("global norm", what, task, 1.5, what, partial(every_other, side, side, dtype))


def of_one_tensor(shrink: int) -> Iterable[Row]:
    """Make the rows of one tensor."""

    def row(task: Task, target: float, shape: Shape, phases: tuple[str, ...] = (), *, too: bool = False) -> Row:
        counts = task.axes != 0 and task.ord in (1, 2, inf) and shape != middle
        size = "x".join(map(str, shape)) if len(shape) > 1 else short(shape[0])
        what = ", ".join(
            [size]
            + ([f"axes={task.axes}"] if task.axes is not None else [])
            + ([f"p={task.ord:g}"] if task.function == "norm" else [task.mode])
        ).replace(" ", "")
        build = partial(arrays, [shape], "float32", 1)
        section = task.function
        return Row(section, what.replace(",", ", "), task, target, size, build, phases, counts, floor_too=too)

    def clip(axes: int | tuple[int, ...] | None = None, mode: str = NEW) -> Task:
        return Task("clip_by_norm", mode, axes)

    few, many = 64 // min(shrink, 8), (1 << 20) // shrink
    middle = (300 // min(shrink, 10), 200, 512 // min(shrink, 8))
    yield row(clip(1), 1.3, (100_000 // shrink, 768), ("copy",), too=True)
    yield row(clip(1), 1.3, (many, 64), ("copy",), too=True)
    # Rows that do not fill the registers: word vectors, features and points.
    for shape in ((20_000 // shrink, 300), (100_000 // shrink, 10), (100_000 // shrink, 3)):
        yield row(clip(1), 1.3, shape)
        yield row(Task("norm", axes=1), 1.0, shape)
    yield row(clip(0), 2, (few, many), ("read", "copy"))
    yield row(clip(1), 1.5, middle, ("copy",))
    # Short columns: the channels of an image, and of many small ones.
    image = (3, 1080 // min(shrink, 10), 1920)
    yield row(clip(0), 1.3, image)
    yield row(Task("norm", axes=0), 1.0, image)
    for mode in (NEW, OUT):
        yield row(clip(1, mode), 1.3, (50_000 // shrink, 3, 100))
    yield row(clip((1, 2, 3)), 1.5, (512 // shrink, 256, 3, 3))
    yield row(clip(), 1.3, (4096 // shrink, 4096), ("read", "copy"))
    yield row(clip(1), 3, (32, 100))
    million = (1 << 20) // shrink
    for mode, target in ((OUT, 1.15), (NEW, 1.3)):
        yield row(Task("clip_by_value", mode), target, (64 * million,), ("copy",))
    for size, target in ((million, 1), (1024, 1.5)):
        for mode in (OUT, NEW):
            yield row(Task("clip_by_value", mode), target, (size,))
    for order, target in ((2, 1.0), (inf, 1.4), (1, 1.0)):
        yield row(Task("norm", ord=order), target, (64 * million,), ("read",))
    for order, target in ((1.5, 5), (3.7, 1.6)):
        yield row(Task("norm", ord=order), target, (16 * million,), ("read",))
    yield row(Task("norm"), 1, (1 << 16,))
    yield row(Task("norm"), 1.2, (1 << 10,))
    yield row(Task("norm", axes=1), 1.0, (87381 // shrink, 768), ("read",))
    yield row(Task("norm", axes=0), 1.3, (few, many), ("read",))


def of_layouts(shrink: int) -> Iterable[Row]:
    """Make the rows of layouts that NumPy has besides contiguous arrays."""
    side = 4096 // shrink
    for layout, lay in LAYOUTS.items():
        for task in (
            Task("clip_by_global_norm", OUT),
            Task("clip_by_norm", OUT, 1),
            Task("clip_by_value", OUT),
        ):
            along = "" if task.axes is None else f", axes={task.axes},"
            what = f"{layout}, {side}x{side}, {task.function}{along} {task.mode}"
            yield Row("layouts", what, task, 1, layout, partial(laid_out, side, lay), only_numpy=True)


def of_every_size(shrink: int) -> Iterable[Row]:
    """Make the sweep over sizes, against NumPy."""
    size, most = 4, (1 << 26) // shrink
    while size <= most:
        for task in (
            Task("norm"),
            Task("clip_by_norm", OUT),
            Task("clip_by_value", OUT),
            Task("clip_by_value", NEW),
        ):
            what = f"{task.function}{'' if task.function == 'norm' else f' {task.mode}'}, {short(size)}"
            build = partial(arrays, [(size,)], "float32", 1)
            yield Row("every size", what, task, 1, f"size {size}", build, only_numpy=True, sweep=size)
        size *= 4


def short(number: int) -> str:
    """Write a number of elements in few characters."""
    for unit, power in (("M", 20), ("k", 10)):
        if number >= 1 << power and number % (1 << power) == 0:
            return f"{number >> power}{unit}"
    return str(number)


def all_rows(shrink: int) -> list[Row]:
    """Make the table, with what is long divided by `shrink`."""
    return [
        *of_models(shrink),
        *of_small_tensors(shrink),
        *of_one_tensor(shrink),
        *of_layouts(shrink),
        *of_every_size(shrink),
    ]
