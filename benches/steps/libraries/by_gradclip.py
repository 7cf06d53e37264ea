"""gradclip. Its variants are the same library with other variables in the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradclip

from steps.libraries.base import Library
from steps.operations import BOUNDS, EACH, GLOBAL, NEW, bounds

if TYPE_CHECKING:
    from steps.operations import Clip, Operation


def clip_new(ts: list[Any], c: float) -> list[Any]:
    """Clip a list into new arrays."""
    clipped: list[Any] = gradclip.clip_by_global_norm(ts, c)[0]
    return clipped


def clip_in_place(ts: list[Any], c: float) -> list[Any]:
    """Clip a list in place."""
    clipped: list[Any] = gradclip.clip_by_global_norm(ts, c, out=ts)[0]
    return clipped


def clip_each(ts: list[Any], c: float) -> list[Any]:
    """Clip tensor by tensor."""
    return [gradclip.clip_by_norm(t, c) for t in ts]


def clip_to_bounds(ts: list[Any], c: float) -> list[Any]:
    """Clip a matrix to bounds of its columns."""
    (t,) = ts
    return [gradclip.clip_by_value(t, *bounds(t.shape[1], c))]


class Gradclip(Library):
    """gradclip."""

    @property
    def version(self) -> str:
        """The version that runs."""
        return gradclip.__version__

    def forms(self, operation: Operation) -> dict[str, Clip]:
        """Return the only form."""
        if operation.function == GLOBAL:
            return {"": clip_new if operation.mode == NEW else clip_in_place}
        if operation.function == EACH:
            return {"": clip_each}
        if operation.function == BOUNDS:
            return {"": clip_to_bounds}
        return {"": lambda ts, c: [gradclip.clip_by_norm(ts[0], c, axes=operation.axis)]}
