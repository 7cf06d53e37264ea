"""optax and JAX, under jit. Their results are always new."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from steps.libraries.base import Library
from steps.operations import BOUNDS, EACH, GLOBAL, bounds

if TYPE_CHECKING:
    from steps.operations import Array, Clip, Operation

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
optax: Any = importlib.import_module("optax")


def clip_list(ts: list[Any], c: float) -> list[Any]:
    """Clip a list."""
    clipped: list[Any] = optax.clip_by_global_norm(c).update(ts, optax.EmptyState())[0]
    return clipped


def clip_along(axis: int | None, t: Any, c: float) -> Any:
    """Clip a tensor, or slices of it."""
    norms = jnp.sqrt(jnp.sum(jnp.square(t), axis=axis, keepdims=True))
    return t * (c / jnp.maximum(norms, c))


class Optax(Library):
    """optax and JAX."""

    @property
    def version(self) -> str:
        """The versions that run."""
        return f"{optax.__version__} on JAX {jax.__version__}"

    def adopt(self, arrays: list[Array], operation: Operation) -> list[Any]:
        """Return arrays of the device."""
        del operation
        ready: list[Any] = jax.block_until_ready([jnp.array(array) for array in arrays])
        return ready

    def forms(self, operation: Operation) -> dict[str, Clip]:
        """Return the compiled form."""
        if operation.function == GLOBAL:
            compiled = jax.jit(clip_list)
        elif operation.function == BOUNDS:
            compiled = jax.jit(lambda ts, _: [jnp.clip(ts[0], *bounds(ts[0].shape[1], operation.limit))])
        else:
            axis = None if operation.function == EACH else operation.axis
            compiled = jax.jit(lambda ts, c: [clip_along(axis, t, c) for t in ts])
        return {"jit": lambda ts, c: jax.block_until_ready(compiled(ts, c))}
