"""optax and JAX, under jit. Arrays do not change there: new ones are the best they can do in place."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
from data import all_columns, is_strided
from peers import Forms, Peer, limit, work_limit
from rows import UNCLIPPED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from data import Array, Data
    from rows import Task

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
optax: Any = importlib.import_module("optax")


def device_arrays(arrays: Sequence[Array]) -> list[Any]:
    """Give arrays; of every other column all of them, which a jitted function can take apart."""
    return [jax.block_until_ready(jnp.array(all_columns(array))) for array in arrays]


class Jax(Peer):
    """optax and JAX."""

    name = owner = "optax/JAX"
    writes = False

    def __init__(self) -> None:
        """Let float64 be float64."""
        jax.config.update("jax_enable_x64", True)

    @property
    def version(self) -> str:
        """The versions that run."""
        return f"{optax.__version__}/{jax.__version__}"

    def clip_by_global_norm(self, task: Task, data: Data) -> Forms:
        """Clip a list."""
        ts = data.held(self.owner, device_arrays)
        parts = (lambda ts: [t[:, ::2] for t in ts]) if is_strided(data) else (lambda ts: ts)
        names = {"ready": jax.block_until_ready, "ts": ts}
        if task.mode == UNCLIPPED:
            norm = jax.jit(lambda ts: optax.global_norm(parts(ts)))

            def clip_if_needed(ts: list[Any], c: float) -> float:
                n = float(norm(ts))
                if n > c:
                    jax.tree.map(lambda t: t * (c / n), ts)
                return n

            return {"global_norm": ("clip(ts, c)", names | {"clip": clip_if_needed, "c": limit(task, data)[1]})}

        def compiled(_: Any) -> Any:
            transformation = optax.clip_by_global_norm(work_limit(task, data))
            state = transformation.init(ts)
            return jax.jit(lambda ts: transformation.update(parts(ts), state)[0])

        clip = data.held("jitted clip", compiled)
        return {"clip_by_global_norm": ("ready(clip(ts))", names | {"clip": clip})}

    def clip_by_norm(self, task: Task, data: Data) -> Forms:
        """Clip one tensor, or slices of it."""
        (t,) = data.held(self.owner, device_arrays)
        c = work_limit(task, data)

        def scaled(t: Any) -> Any:
            norms = jnp.sqrt(jnp.sum(jnp.square(t), axis=task.axes, keepdims=True))
            return t * (c / jnp.maximum(norms, c))

        return {"jit": ("ready(clip(t))", {"ready": jax.block_until_ready, "t": t, "clip": jax.jit(scaled)})}

    def clip_by_value(self, task: Task, data: Data) -> Forms:
        """Clip each element."""
        del task
        (t,) = data.held(self.owner, device_arrays)
        clip = jax.jit(lambda t: jnp.clip(t, -0.01, 0.01))
        return {"clip": ("ready(clip(t))", {"ready": jax.block_until_ready, "t": t, "clip": clip})}

    def norm(self, task: Task, data: Data) -> Forms:
        """Return a norm."""
        (t,) = data.held(self.owner, device_arrays)
        norm = jax.jit(lambda t: jnp.linalg.norm(t if task.axes is not None else t.ravel(), task.ord, task.axes))
        return {"norm": ("ready(norm(t))", {"ready": jax.block_until_ready, "t": t, "norm": norm})}

    def to_numpy(self, array: Any) -> Array:
        """Return a result to NumPy."""
        return np.asarray(array)
