"""TensorFlow, under tf.function. It has no results in given arrays: its new ones are the best it can do there."""

from __future__ import annotations

import importlib
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from data import all_columns, is_strided
from peers import Forms, Peer, limit, work_limit
from rows import UNCLIPPED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from data import Array, Data
    from rows import Task

tf: Any = importlib.import_module("tensorflow")


def constants(arrays: Sequence[Array]) -> list[Any]:
    """Give tensors; of every other column all of them, which a graph can take apart."""
    return [tf.constant(all_columns(array)) for array in arrays]


class TensorFlow(Peer):
    """TensorFlow."""

    name = owner = "TensorFlow"
    writes = False

    def __init__(self) -> None:
        """Keep what it says while it traces off the terminal."""
        tf.get_logger().setLevel("ERROR")

    @property
    def version(self) -> str:
        """The version that runs."""
        return str(tf.__version__)

    def to_numpy(self, array: Any) -> Array:
        """Return a result to NumPy."""
        return array.numpy() if hasattr(array, "numpy") else np.asarray(array)

    def clip_by_global_norm(self, task: Task, data: Data) -> Forms:
        """Clip a list."""
        ts = data.held(self.owner, constants)
        parts = (lambda ts: [t[:, ::2] for t in ts]) if is_strided(data) else (lambda ts: ts)
        if task.mode == UNCLIPPED:
            norm = tf.function(lambda ts: tf.linalg.global_norm(parts(ts)))

            def clip_if_needed(ts: list[Any], c: float) -> float:
                n = float(norm(ts))
                if n > c:
                    tf.clip_by_global_norm(ts, c, use_norm=n)
                return n

            return {"global_norm": ("clip(ts, c)", {"clip": clip_if_needed, "ts": ts, "c": limit(task, data)[1]})}
        clip = data.held("traced clip", lambda _: tf.function(lambda ts, c: tf.clip_by_global_norm(parts(ts), c)))
        kind = tf.float32 if data.dtype.kind == "c" else ts[0].dtype
        names = {"clip": clip, "ts": ts, "c": tf.constant(work_limit(task, data), kind)}
        return {"clip_by_global_norm": ("clip(ts, c)", names)}

    def clip_by_norm(self, task: Task, data: Data) -> Forms:
        """Clip one tensor, or slices of it."""
        (t,) = data.held(self.owner, constants)
        axes = [task.axes] if isinstance(task.axes, int) else task.axes
        clip = tf.function(lambda t, c: tf.clip_by_norm(t, c, axes=axes))
        return {
            "clip_by_norm": ("clip(t, c)", {"clip": clip, "t": t, "c": tf.constant(work_limit(task, data), t.dtype)})
        }

    def clip_by_value(self, task: Task, data: Data) -> Forms:
        """Clip each element."""
        del task
        (t,) = data.held(self.owner, constants)
        clip = tf.function(lambda t: tf.clip_by_value(t, -0.01, 0.01))
        return {"clip_by_value": ("clip(t)", {"clip": clip, "t": t})}

    def norm(self, task: Task, data: Data) -> Forms:
        """Return a norm."""
        (t,) = data.held(self.owner, constants)
        order = np.inf if task.ord == inf else task.ord
        norm = tf.function(lambda t: tf.norm(t, ord=order, axis=task.axes))
        return {"norm": ("norm(t)", {"norm": norm, "t": t})}
