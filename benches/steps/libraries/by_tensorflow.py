"""TensorFlow, eager and under tf.function. Its results are always new."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from steps.libraries.base import Library
from steps.operations import BOUNDS, EACH, GLOBAL, bounds

if TYPE_CHECKING:
    from steps.operations import Array, Clip, Operation

tf: Any = importlib.import_module("tensorflow")


def clip_list(ts: list[Any], c: Any) -> list[Any]:
    """Clip a list."""
    clipped: list[Any] = tf.clip_by_global_norm(ts, c)[0]
    return clipped


def clip_each(ts: list[Any], c: Any) -> list[Any]:
    """Clip tensor by tensor."""
    return [tf.clip_by_norm(t, c) for t in ts]


class TensorFlow(Library):
    """TensorFlow."""

    def __init__(self) -> None:
        """Keep what it says while it traces off the terminal."""
        tf.get_logger().setLevel("ERROR")

    @property
    def version(self) -> str:
        """The version that runs."""
        return str(tf.__version__)

    def adopt(self, arrays: list[Array], operation: Operation) -> list[Any]:
        """Return tensors."""
        del operation
        return [tf.constant(array) for array in arrays]

    def to_numpy(self, array: Any) -> Array:
        """Return a result to NumPy."""
        found: Array = array.numpy()
        return found

    def forms(self, operation: Operation) -> dict[str, Clip]:
        """Return the ways that may be the fastest."""
        eager: Clip
        if operation.function == GLOBAL:
            eager = clip_list
        elif operation.function == EACH:
            eager = clip_each
        elif operation.function == BOUNDS:

            def eager(ts: list[Any], _: Any) -> list[Any]:
                return [tf.clip_by_value(ts[0], *bounds(int(ts[0].shape[1]), operation.limit))]

        else:

            def eager(ts: list[Any], c: Any) -> list[Any]:
                return [tf.clip_by_norm(ts[0], c, axes=[operation.axis])]

        traced = tf.function(eager)
        limit = tf.constant(np.float32(operation.limit))
        # A Python number as the limit would be traced anew for each value.
        return {"eager": eager, "function": lambda ts, _: traced(ts, limit)}
