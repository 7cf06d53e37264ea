"""PyTorch on the CPU, on tensors in the memory of NumPy's arrays."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from steps.libraries.base import Library
from steps.operations import BOUNDS, EACH, GLOBAL, IN_PLACE, NEW, UNCLIPPED, bounds

if TYPE_CHECKING:
    from steps.operations import Array, Clip, Operation

torch: Any = importlib.import_module("torch")


def norm_of_norms(ts: list[Any]) -> float:
    """Return the norm of a list."""
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(ts))))  # noqa: SLF001 (as in torch.nn.utils)


def clip_new(ts: list[Any], c: float) -> list[Any]:
    """Clip a list into new tensors."""
    clipped: list[Any] = torch._foreach_mul(ts, c / max(norm_of_norms(ts), c))  # noqa: SLF001 (the same)
    return clipped


def clip_gradients(parameters: list[Any], c: float) -> list[Any]:
    """Clip the gradients of parameters as a training loop does."""
    torch.nn.utils.clip_grad_norm_(parameters, c, foreach=True)
    return parameters


def clip_foreach(parameters: list[Any], c: float) -> list[Any]:
    """Clip the gradients of parameters without the checks of torch.nn.utils."""
    ts = [parameter.grad for parameter in parameters]
    torch._foreach_mul_(ts, c / max(norm_of_norms(ts), c))
    return parameters


def clip_if_needed(parameters: list[Any], c: float) -> list[Any]:
    """Clip the gradients of parameters if their norm is above the limit."""
    ts = [parameter.grad for parameter in parameters]
    n = norm_of_norms(ts)
    if n > c:
        torch._foreach_mul_(ts, c / n)
    return parameters


def clip_each(ts: list[Any], c: float) -> list[Any]:
    """Clip tensor by tensor into new ones."""
    return [t * (c / max(float(torch.linalg.vector_norm(t)), c)) for t in ts]


def clip_to_bounds(ts: list[Any], c: float) -> list[Any]:
    """Clip a matrix to bounds of its columns."""
    (t,) = ts
    lo, hi = map(torch.from_numpy, bounds(t.shape[1], c))
    return [torch.clamp(t, lo, hi)]


def clip_slices(axis: int) -> dict[str, Clip]:
    """Return the ways to clip a matrix along an axis."""

    def by_vector_norm(ts: list[Any], c: float) -> list[Any]:
        (t,) = ts
        return [t * (c / torch.linalg.vector_norm(t, dim=axis, keepdim=True).clamp(min=c))]

    return {
        "vector_norm": by_vector_norm,
        "renorm": lambda ts, c: [torch.renorm(ts[0], 2, 1 - axis, c)],
    }


class Torch(Library):
    """PyTorch."""

    def __init__(self) -> None:
        """Turn gradients off."""
        torch.set_grad_enabled(False)

    @property
    def version(self) -> str:
        """The version that runs."""
        return str(torch.__version__)

    def adopt(self, arrays: list[Array], operation: Operation) -> list[Any]:
        """Return tensors, or parameters that have them as gradients, in the same memory."""
        ts = [torch.from_numpy(array) for array in arrays]
        if operation.mode == NEW:
            return ts
        parameters = [torch.nn.Parameter(t) for t in ts]
        for parameter, t in zip(parameters, ts, strict=True):
            parameter.grad = t
        return parameters

    def to_numpy(self, array: Any) -> Array:
        """Return a result, or the gradient of a parameter, to NumPy."""
        found: Array = (array if array.grad is None else array.grad).numpy()
        return found

    def forms(self, operation: Operation) -> dict[str, Clip]:
        """Return the ways that may be the fastest."""
        if operation.function == GLOBAL:
            ways: dict[str, dict[str, Clip]] = {
                NEW: {"foreach": clip_new},
                IN_PLACE: {"clip_grad_norm_": clip_gradients, "foreach": clip_foreach},
                UNCLIPPED: {"foreach": clip_if_needed},
            }
            return ways[operation.mode]
        if operation.function == BOUNDS:
            return {"clamp": clip_to_bounds}
        return {"vector_norm": clip_each} if operation.function == EACH else clip_slices(operation.axis)
