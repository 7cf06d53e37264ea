"""The work between two clips: where gradients come from, and how clipped ones are used.

The norm of every list is about 1.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steps.operations import Array

    Shape = tuple[int, ...]

#: What parameters are updated with.
RATE = np.float32(1e-3)


def normal(shape: Shape, seed: int = 0) -> Array:
    """Make an array of random numbers."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def norm_of(array: Array) -> float:
    """Return a norm, exact enough to scale by."""
    return math.sqrt(np.vdot(array, array))


class Source(ABC):
    """A source of gradients."""

    @abstractmethod
    def gradients(self) -> list[Array]:
        """Do the work of a program before it clips, and return the gradients."""

    def update(self, clipped: list[Array]) -> None:
        """Do the work of a program with clipped gradients."""
        del clipped

    def restart(self) -> None:  # noqa: B027 (few have anything to do)
        """Begin anew, if what comes next depends on what came before."""


@dataclass
class Layer:
    """The gradient of one parameter as a product of two matrices, as backpropagation has it."""

    shape: Shape
    #: Inputs of the layer by samples.
    inputs: Array
    #: Gradients of the outputs by samples.
    outputs: Array

    @classmethod
    def random(cls, shape: Shape, batch: int, seed: int) -> Layer:
        """Make a layer of a shape. A vector is a bias: the sum of its gradients over the samples."""
        rows, columns = (1, shape[0]) if len(shape) == 1 else (shape[0], math.prod(shape[1:]))
        inputs = np.ones((batch, 1), np.float32) if len(shape) == 1 else normal((batch, rows), seed)
        return cls(shape, inputs, normal((batch, columns), seed + 1))

    def gradient(self) -> Array:
        """Compute the gradient, in fresh memory."""
        if len(self.shape) == 1:
            sums: Array = np.add.reduce(self.outputs, axis=0)
            return sums
        product: Array = np.matmul(self.inputs.T, self.outputs)
        return product if len(self.shape) == product.ndim else product.reshape(self.shape)


class Backward(Source):
    """A training step: products give fresh gradients, clipped ones change the parameters."""

    def __init__(self, shapes: Sequence[Shape], batch: int, *, updates: bool = True) -> None:
        """Make layers."""
        self.layers = [Layer.random(shape, batch, 2 * i) for i, shape in enumerate(shapes)]
        norm = math.sqrt(sum(norm_of(gradient) ** 2 for gradient in self.gradients()))
        for layer in self.layers:
            layer.outputs *= np.float32(1 / norm)
        # Ones, and not zeros: memory of zeros is not there before it is written.
        self.parameters = [np.ones(shape, np.float32) for shape in shapes] if updates else []
        self.scratch = np.ones(max(map(math.prod, shapes)) if updates else 0, np.float32)

    def gradients(self) -> list[Array]:
        """Compute all gradients."""
        return [layer.gradient() for layer in self.layers]

    def update(self, clipped: list[Array]) -> None:
        """Subtract clipped gradients from the parameters."""
        # Without parameters there is nothing to do.
        for parameter, gradient in zip(self.parameters, clipped, strict=False):
            change = self.scratch[: gradient.size].reshape(gradient.shape)
            np.multiply(gradient, RATE, out=change)
            np.subtract(parameter, change, out=parameter)


class InTurn(Source):
    """Several sources, one after the other, in an order that repeats."""

    def __init__(self, sources: Sequence[Source], order: Sequence[int] | None = None) -> None:
        """Take the sources, and the indices of their turns."""
        self.sources, self.order = sources, order or range(len(sources))
        self.turn = -1

    def gradients(self) -> list[Array]:
        """Ask the next source."""
        self.turn += 1
        return self._current().gradients()

    def update(self, clipped: list[Array]) -> None:
        """Update the source that was asked."""
        self._current().update(clipped)

    def restart(self) -> None:
        """Begin with the first one."""
        self.turn = -1

    def _current(self) -> Source:
        return self.sources[self.order[self.turn % len(self.order)]]


class Held(Source):
    """The same arrays again after a pause, or after a product of matrices."""

    def __init__(self, arrays: list[Array], pause: float = 0.0, product: int = 0) -> None:
        """Take the arrays, the seconds of the pause, and the width of the matrices."""
        self.arrays, self.pause = arrays, pause
        self.matrix = normal((product, product))

    @classmethod
    def random(cls, shapes: Sequence[Shape], pause: float = 0.0) -> Held:
        """Make a list of norm 1."""
        arrays = [normal(shape, seed) for seed, shape in enumerate(shapes)]
        norm = math.sqrt(sum(norm_of(array) ** 2 for array in arrays))
        for array in arrays:
            np.multiply(array, np.float32(1 / norm), out=array)
        return cls(arrays, pause)

    @classmethod
    def of_numbers(cls, shape: Shape, product: int) -> Held:
        """Make a matrix of random numbers."""
        return cls([normal(shape)], product=product)

    def gradients(self) -> list[Array]:
        """Return the arrays."""
        if self.pause:
            time.sleep(self.pause)
        if self.matrix.size:
            self.matrix @ self.matrix
        return self.arrays


def tensors_of_norm_1(shapes: Sequence[Shape], product: int) -> Source:
    """Make a list of tensors that have a norm of 1 each."""
    arrays = [normal(shape, seed) for seed, shape in enumerate(shapes)]
    for array in arrays:
        np.multiply(array, np.float32(1 / norm_of(array)), out=array)
    return Held(arrays, product=product)


def slices_of_norm_1(shape: Shape, axis: int, product: int) -> Source:
    """Make a matrix with slices of norms of about 1."""
    block = normal((min(shape[0], 1000), shape[1]))
    matrix = np.resize(block, shape)
    matrix *= np.float32(1 / math.sqrt(shape[axis]))
    return Held([matrix], product=product)
