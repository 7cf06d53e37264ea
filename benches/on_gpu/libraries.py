"""The calls of gradclip and its peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import gradclip as gc

from on_gpu.rows import IN_PLACE, NEW, NORM

if TYPE_CHECKING:
    from collections.abc import Callable

    #: A call, which gets the limit. It returns the arrays and their norm, or None for one of them.
    Way: TypeAlias = Callable[[float], tuple[Any, Any]]

OURS, CUPY, TORCH = "gradclip", "CuPy", "torch"


def ours(tensors: list[Any], axis: int | None) -> dict[str, Way]:
    """Return gradclip's calls, by the operation."""
    x = tensors[0]
    if axis is not None:
        return {
            NEW: lambda c: ([gc.clip_by_norm(x, c, axes=axis)], None),
            IN_PLACE: lambda c: ([gc.clip_by_norm(x, c, axes=axis, out=x)], None),
        }
    return {
        NORM: lambda _: (None, gc.global_norm(tensors)),
        NEW: lambda c: gc.clip_by_global_norm(tensors, c),
        IN_PLACE: lambda c: gc.clip_by_global_norm(tensors, c, out=tensors),
    }


def plain(cp: Any, tensors: list[Any], axis: int | None) -> dict[str, Way]:
    """Return the formula with CuPy alone, without a wait for the device."""

    def norm() -> Any:
        if axis is not None:
            return cp.linalg.norm(tensors[0], axis=axis, keepdims=True)
        return cp.linalg.norm(cp.stack([cp.linalg.norm(t.ravel()) for t in tensors]))

    def factor(c: float) -> tuple[Any, Any]:
        n = norm()
        return (c / cp.maximum(n, c)).astype(tensors[0].dtype), n

    def in_place(c: float) -> tuple[list[Any], Any]:
        by, n = factor(c)
        for t in tensors:
            cp.multiply(t, by, out=t)
        return tensors, n

    def new(c: float) -> tuple[list[Any], Any]:
        by, n = factor(c)
        return [t * by for t in tensors], n

    return {NORM: lambda _: (None, norm()), NEW: new, IN_PLACE: in_place}


def peer(torch: Any, tensors: list[Any], axis: int | None) -> dict[str, Way]:
    """Return PyTorch's calls."""
    utils, x = torch.nn.utils, tensors[0]
    parameters = [torch.nn.Parameter(t, requires_grad=False) for t in tensors]
    for parameter, t in zip(parameters, tensors, strict=True):
        parameter.grad = t

    def new(c: float) -> tuple[list[Any], Any]:
        n = utils.get_total_norm(tensors, foreach=True)
        return torch._foreach_mul(tensors, (c / n).clamp(max=1.0)), n  # noqa: SLF001 (the library's own clip uses it)

    def clip(c: float) -> tuple[list[Any], Any]:
        return tensors, utils.clip_grad_norm_(parameters, c, foreach=True)

    def by(c: float) -> Any:
        return c / torch.linalg.vector_norm(x, dim=axis, keepdim=True).clamp(min=c)

    if axis is not None:
        return {NEW: lambda c: ([x * by(c)], None), IN_PLACE: lambda c: ([x.mul_(by(c))], None)}
    return {NORM: lambda _: (None, utils.get_total_norm(tensors, foreach=True)), NEW: new, IN_PLACE: clip}
