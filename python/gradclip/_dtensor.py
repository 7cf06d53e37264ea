"""DTensors of torch: each process of a mesh holds a part of each tensor, or a copy."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class Parts(NamedTuple):
    """The parts that this process holds of tensors that are spread over a mesh."""

    #: One for each tensor, empty where this process has no part of it.
    own: list[torch.Tensor]
    #: Whether this process counts it. Of copies, the first process along the dimension of the mesh counts.
    is_counted: list[bool]
    #: A process group for each dimension of the mesh.
    groups: list[Any]


def parts_of(tensors: list[Any], dtypes: set[Any], sources: list[Any] | None = None) -> Parts | None:
    """Return the parts of DTensors.

    The result is None if a tensor is no DTensor on the CPU, has another dtype or a partial placement, or if the meshes
    are unrelated. The check includes ``sources``, such as the parameters of gradients: a process without gradients
    must decide as the others do, because all of them take part in what follows.
    """
    # A program that has not loaded it has no DTensors.
    distributed = sys.modules.get("torch.distributed.tensor")
    everything = [*(sources or ()), *tensors]
    if distributed is None or not everything or not all(isinstance(t, distributed.DTensor) for t in everything):
        return None
    if any(t.device.type != "cpu" or t.dtype not in dtypes for t in everything):
        return None
    meshes = {t.device_mesh for t in everything}
    groups_of = {mesh: [mesh.get_group(dim) for dim in range(mesh.ndim)] for mesh in meshes}
    mesh = max(meshes, key=lambda mesh: mesh.ndim)
    place, groups = mesh.get_coordinate(), groups_of[mesh]
    if place is None or not all(group in groups for own in groups_of.values() for group in own):
        return None
    if any(placement.is_partial() for t in tensors for placement in t.placements):
        return None

    @cache
    def is_counted(mesh: Any, placements: tuple[Any, ...]) -> bool:
        # Along the dimensions that only the whole mesh has, there are copies.
        along = dict(zip(groups_of[mesh], placements, strict=True))
        is_split = [group in along and not along[group].is_replicate() for group in groups]
        return all(split or at == 0 for split, at in zip(is_split, place, strict=True))

    with sys.modules["torch"].no_grad():
        own = [t.to_local() for t in tensors]
    return Parts(own, [is_counted(t.device_mesh, t.placements) for t in tensors], groups)
