"""The small programs that are timed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from rows import resnet50

from steps.operations import BOUNDS, EACH, IN_PLACE, NEW, SLICES, UNCLIPPED, Operation
from steps.sources import Backward, Held, InTurn, slices_of_norm_1, tensors_of_norm_1

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from steps.sources import Shape, Source

    #: Makes a source; a quick run has it smaller.
    Build = Callable[[], Source]

#: The least ratio, and that where little is to be done right after a matrix product: threads that a BLAS keeps awake
#: cost more there than they can help.
LEAST, LEAST_AFTER_PRODUCT = 0.9, 0.7
#: The callers: one thread; several at once, where a call or its share of the whole is timed; several processes.
ALONE, THREADS, SHARE, PROCESSES = "alone", "threads", "share of threads", "processes"


@dataclass(frozen=True)
class Scenario:
    """A program."""

    name: str
    build: Build
    operation: Operation
    #: Calls that are timed, after some that are not.
    calls: int
    warm: int = 4
    #: How many of the last results are alive while the next one is made.
    keep: int = 0
    crowd: str = ALONE
    #: Matrix products, whose threads are still awake, come right before the call.
    after_product: bool = True
    #: The interpreter does nothing else.
    fresh: bool = False
    #: How many processes, as a multiple of those asked for; 0: one in all, and none in a quick run.
    processes: int = 1

    @property
    def target(self) -> float:
        """The least ratio."""
        little = self.operation.mode in (IN_PLACE, UNCLIPPED)
        return LEAST_AFTER_PRODUCT if little and self.after_product else LEAST


def mlp(*widths: int) -> list[Shape]:
    """Return the weights and biases of fully connected layers."""
    shapes: list[Shape] = []
    for rows, columns in pairwise(widths):
        shapes += [(rows, columns), (columns,)]
    return shapes


@dataclass(frozen=True)
class Model:
    """A set of parameters."""

    shapes: list[Shape]
    #: Samples of a training step.
    batch: int
    #: Calls that take about half a second with their steps.
    calls: int
    processes: int = 1


MODELS = {
    "10,000": Model(mlp(64, 100, 32), 128, 200),
    "100,000": Model(mlp(256, 256, 128, 10), 128, 120),
    "1.9M": Model(mlp(784, 1000, 1000, 100), 128, 30),
    "9M": Model(mlp(2000, 2000, 2000, 500), 32, 12),
    "25M (ResNet-50)": Model(resnet50(), 32, 8),
    "100M": Model(mlp(*[4096] * 7), 16, 5, processes=0),
}
GENERATOR, DISCRIMINATOR, ENCODER = mlp(100, 1000, 1000, 784), mlp(784, 1000, 256, 1), mlp(784, 2000, 512)
#: Lengths of the sequences of a batch, padded, in an order without a pattern.
LENGTHS = [64 * int(n) for n in np.random.default_rng(0).permutation(np.repeat(np.arange(1, 9), 3))]
PAUSES = (0, 1, 5, 20, 100)


class Catalogue:
    """All scenarios, or small ones for a quick run."""

    def __init__(self, *, quick: bool) -> None:
        """Take the size."""
        self.quick = quick

    def all(self) -> list[Scenario]:
        """Return all of them."""
        found = [
            *self.training(),
            *self.several_lists(),
            *self.results_kept(),
            *self.pauses(),
            *self.crowds(),
            *self.slices(),
            *self.columns(),
            *self.first_calls(),
            *self.small_tensors(),
        ]
        if not self.quick:
            return found
        return [
            replace(scenario, calls=min(scenario.calls, 3), warm=min(scenario.warm, 1))
            for scenario in found
            if scenario.processes
        ]

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return shapes, or small ones."""
        return [tuple(-(-n // 16) for n in shape) for shape in shapes] if self.quick else list(shapes)

    def step(self, shapes: Sequence[Shape], batch: int, *, updates: bool = True) -> Build:
        """Return a training step."""
        return partial(Backward, self.shapes(shapes), batch, updates=updates)

    def training(self) -> list[Scenario]:
        """Return training steps: a backward pass, a clip, an update."""
        return [
            Scenario(
                f"training step, {name}, {mode}",
                self.step(model.shapes, model.batch),
                Operation(mode=mode),
                model.calls,
                processes=model.processes,
            )
            for name, model in MODELS.items()
            for mode in (NEW, IN_PLACE, UNCLIPPED)
        ]

    def several_lists(self) -> list[Scenario]:
        """Return lists whose sizes change from call to call."""
        steps = [self.step(shapes, 128) for shapes in (GENERATOR, DISCRIMINATOR, ENCODER)]
        buckets = [
            self.step([(32 * length, 256), (32 * length, 64)], 4, updates=False) for length in sorted(set(LENGTHS))
        ]
        order = [length // 64 - 1 for length in LENGTHS]
        return [
            Scenario("two models in turn, new", lambda: InTurn([step() for step in steps[:2]]), Operation(), 40),
            Scenario("three models in turn, new", lambda: InTurn([step() for step in steps]), Operation(), 36, warm=6),
            Scenario(
                "sequences of 8 lengths, new",
                lambda: InTurn([bucket() for bucket in buckets], order),
                Operation(),
                len(order),
                warm=len(order),
            ),
        ]

    def results_kept(self) -> list[Scenario]:
        """Keep results alive for some calls."""
        return [
            Scenario(
                f"last {keep} kept, {name}, new",
                self.step(model.shapes, model.batch),
                Operation(),
                model.calls,
                warm=keep + 3,
                keep=keep,
            )
            for name, model in MODELS.items()
            if name in ("1.9M", "9M")
            for keep in (1, 2, 4, 8)
        ]

    def pauses(self) -> list[Scenario]:
        """Pause before each call."""
        shapes = self.shapes(MODELS["1.9M"].shapes)
        return [
            Scenario(
                f"{pause} ms between calls, 1.9M, {mode}",
                partial(Held.random, shapes, pause / 1000),
                Operation(mode=mode),
                40 if pause < 20 else 20 if pause < 100 else 8,  # noqa: PLR2004 (milliseconds)
                after_product=False,
            )
            for mode in (UNCLIPPED, NEW)
            for pause in PAUSES
        ]

    def crowds(self) -> list[Scenario]:
        """Have several callers at once."""
        shapes = self.shapes(MODELS["1.9M"].shapes)
        held = partial(Held.random, shapes)
        return [
            Scenario("4 threads at once, 1.9M, new", held, Operation(), 10, crowd=THREADS, after_product=False),
            Scenario(
                "4 threads at once, 1.9M, new, time / calls", held, Operation(), 10, crowd=SHARE, after_product=False
            ),
            Scenario(
                "2 processes at once, 1.9M, new",
                self.step(MODELS["1.9M"].shapes, MODELS["1.9M"].batch),
                Operation(),
                20,
                crowd=PROCESSES,
            ),
        ]

    def slices(self) -> list[Scenario]:
        """Clip rows and columns of a matrix."""
        (rows, columns, vectors, features, image) = self.shapes(
            [(50_000, 768), (64, 500_000), (20_000, 300), (100_000, 10), (3, 1080 * 1920)]
        )
        width = 256
        # Rows that do not fill the registers.
        short = [
            Scenario(f"rows, {name}, new", partial(slices_of_norm_1, shape, 1, width), Operation(SLICES, axis=1), 40)
            for name, shape in (("20,000 x 300 (word vectors)", vectors), ("100,000 x 10", features))
        ]
        return [
            Scenario(
                "rows, 50,000 x 768, last 1 kept, new",
                partial(slices_of_norm_1, rows, 1, width),
                Operation(SLICES, axis=1),
                8,
                keep=1,
            ),
            Scenario(
                "columns, 64 x 500,000, last 1 kept, new",
                partial(slices_of_norm_1, columns, 0, width),
                Operation(SLICES, axis=0),
                8,
                keep=1,
            ),
            Scenario(
                "columns, 3 x 2,073,600 (the channels of an image), new",
                partial(slices_of_norm_1, image, 0, width),
                Operation(SLICES, axis=0),
                20,
            ),
            *short,
        ]

    def columns(self) -> list[Scenario]:
        """Clip actions and features to bounds, and features by the norms of their columns."""
        width = 256
        (actions, features) = self.shapes([(8, 6), (100_000, 10)])
        to_bounds = [
            Scenario(f"{name}, to bounds, new", partial(Held.of_numbers, shape, width), Operation(BOUNDS), calls)
            for name, shape, calls in (("actions, 8 x 6", actions, 200), ("features, 100,000 x 10", features, 40))
        ]
        by_norms = partial(slices_of_norm_1, features, 0, width)
        return [*to_bounds, Scenario("columns, 100,000 x 10, new", by_norms, Operation(SLICES, axis=0), 40)]

    def first_calls(self) -> list[Scenario]:
        """Time the first call of a process that has imported the library."""
        lists: dict[str, list[Shape]] = {"1,000": [(1000,)], "1.9M": MODELS["1.9M"].shapes}
        return [
            Scenario(
                f"first call, {name}, new",
                partial(Held.random, self.shapes(shapes)),
                Operation(),
                calls=1,
                warm=0,
                after_product=False,
                fresh=True,
                processes=2,
            )
            for name, shapes in lists.items()
        ]

    def small_tensors(self) -> list[Scenario]:
        """Clip many tensors one by one, and few parameters."""
        width = 256
        return [
            Scenario(
                "161 calls, 25M (ResNet-50), new",
                partial(tensors_of_norm_1, self.shapes(resnet50()), width),
                Operation(EACH),
                12,
            ),
            Scenario(
                "training step, 27,648 in 8 layers, in place",
                self.step([(53, 64), (64,)] * 8, 128),
                Operation(mode=IN_PLACE),
                200,
            ),
        ]
