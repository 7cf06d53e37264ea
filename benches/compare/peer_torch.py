"""PyTorch, on the CPU."""

from __future__ import annotations

import importlib
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from peers import Forms, Peer, limit, work_limit
from rows import IN_PLACE, NEW, OUT, UNCLIPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from data import Array, Data
    from rows import Task

    Norm = Callable[[list[Any]], float]

torch: Any = importlib.import_module("torch")
#: Fewer tensors, or more bytes, are not worth one tensor of all.
MANY, SMALL = 100, 64 << 20


def shared(arrays: Sequence[Array]) -> list[Any]:
    """Return tensors in the same memory; PyTorch does not know the bfloat16 of NumPy."""
    if arrays[0].dtype.name == "bfloat16":
        return [torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) for array in arrays]
    return [torch.from_numpy(array) for array in arrays]


def total_norm(ts: list[Any]) -> float:
    """Return the norm, as torch.nn.utils does it."""
    return float(torch.nn.utils.get_total_norm(ts, foreach=True))


def norm_of_norms(ts: list[Any]) -> float:
    """Return the norm without the checks of torch.nn.utils."""
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(ts))))  # noqa: SLF001 (the issue's form)


def norm_of_all(ts: list[Any]) -> float:
    """Return the norm of many small tensors."""
    return float(torch.linalg.vector_norm(torch.cat([t.reshape(-1) for t in ts])))


def norm_of_one(ts: list[Any]) -> float:
    """Return the norm of a list of one tensor."""
    return float(torch.linalg.vector_norm(ts[0]))


def clipped(norm: Norm, ts: list[Any], c: float) -> tuple[list[Any], float]:
    """Clip a list into new tensors, by foreach."""
    n = norm(ts)
    return torch._foreach_mul(ts, c / max(n, c)), n  # noqa: SLF001 (what the library itself clips with)


def clipped_one_by_one(norm: Norm, ts: list[Any], c: float) -> tuple[list[Any], float]:
    """Clip a list into new tensors."""
    n = norm(ts)
    factor = c / max(n, c)
    return [t * factor for t in ts], n


def clipped_together(ts: list[Any], c: float, sizes: list[int]) -> tuple[list[Any], float]:
    """Clip many small tensors as one."""
    flat = torch.cat(ts)
    n = float(torch.linalg.vector_norm(flat))
    return list(flat.mul_(c / max(n, c)).split(sizes)), n


def clipped_as_matrix(ts: list[Any], c: float) -> tuple[list[Any], float]:
    """Clip many small tensors of one length as one."""
    matrix = torch.stack(ts)
    n = float(torch.linalg.vector_norm(matrix))
    return list(matrix.mul_(c / max(n, c)).unbind()), n


def clip_into(norm: Norm, ts: list[Any], c: float, outs: list[Any]) -> tuple[list[Any], float]:
    """Clip a list into other tensors."""
    n = norm(ts)
    factor = c / max(n, c)
    for t, out in zip(ts, outs, strict=True):
        torch.mul(t, factor, out=out)
    return outs, n


def clip_in_place(norm: Norm, ts: list[Any], c: float) -> tuple[list[Any], float]:
    """Clip a list in place, by foreach."""
    n = norm(ts)
    torch._foreach_mul_(ts, c / max(n, c))
    return ts, n


def clip_gradients(parameters: list[Any], c: float, ts: list[Any]) -> tuple[list[Any], Any]:
    """Clip as a training loop does."""
    return ts, torch.nn.utils.clip_grad_norm_(parameters, c, foreach=True)


def clip_if_needed(norm: Norm, ts: list[Any], c: float) -> float:
    """Clip a list if it is too long."""
    n = norm(ts)
    if n > c:
        torch._foreach_mul_(ts, c / n)
    return n


class Torch(Peer):
    """PyTorch."""

    name = owner = "torch"

    def __init__(self) -> None:
        """Turn gradients off."""
        torch.set_grad_enabled(False)

    @property
    def version(self) -> str:
        """The version that runs."""
        return str(torch.__version__)

    def describe(self) -> str:
        """Return the version and the threads."""
        return f"torch {self.version} on {torch.get_num_threads()} threads"

    def to_numpy(self, array: Any) -> Array:
        """Return a result to NumPy."""
        if isinstance(array, torch.Tensor) and array.dtype == torch.bfloat16:
            array = array.view(torch.int16).numpy().view("bfloat16")
        return np.asarray(array)

    def clip_by_global_norm(self, task: Task, data: Data) -> Forms:
        """Clip a list."""
        write, c = limit(task, data)
        ts = shared(data.own(self.owner)) if task.mode in (IN_PLACE, UNCLIPPED) else data.held(self.owner, shared)
        norms: list[Norm] = [total_norm, norm_of_norms]
        together = len(ts) >= MANY and data.nbytes <= SMALL
        if together:
            norms.append(norm_of_all)
        if len(ts) == 1:
            norms = [norm_of_one]
        names: dict[str, Any] = {"ts": ts, "c": c}
        ways: list[Callable[..., Any]] = [clip_if_needed]
        arguments = f"ts, {write}"
        if task.mode == NEW:
            ways = [clipped, clipped_one_by_one]
        elif task.mode == OUT:
            ways, arguments = [clip_into], "ts, c, outs"
            names["outs"] = shared(data.kept(self.owner))
        elif task.mode == IN_PLACE:
            ways = [clip_in_place]
        forms: Forms = {
            f"{norm.__name__}, {way.__name__}": (f"way(norm, {arguments})", names | {"way": way, "norm": norm})
            for way in ways
            for norm in norms
        }
        if task.mode == IN_PLACE:
            parameters = [torch.nn.Parameter(t) for t in ts]
            for parameter, t in zip(parameters, ts, strict=True):
                parameter.grad = t
            forms["clip_grad_norm_"] = (
                f"way(parameters, {write}, ts)",
                names | {"way": clip_gradients, "parameters": parameters},
            )
        if task.mode == NEW and together and all(t.ndim == 1 for t in ts):
            sizes = [len(t) for t in ts]
            forms["clipped_together"] = ("way(ts, c, sizes)", names | {"way": clipped_together, "sizes": sizes})
            if len(set(sizes)) == 1:
                forms["clipped_as_matrix"] = ("way(ts, c)", names | {"way": clipped_as_matrix})
        return forms

    def clip_by_norm(self, task: Task, data: Data) -> Forms:
        """Clip one tensor, or slices of it."""
        (t,) = data.held(self.owner, shared)
        names = {"torch": torch, "t": t, "c": work_limit(task, data), "norm": torch.linalg.vector_norm}
        axes = "" if task.axes is None else f", dim={task.axes}, keepdim=True"
        forms = {"vector_norm": (f"t * (c / norm(t{axes}).clamp(min=c))", names)}
        others = tuple(axis for axis in range(t.ndim) if axis != 0)
        if t.ndim > 1 and task.axes in (others, *(others if len(others) == 1 else ())):
            forms["renorm"] = ("torch.renorm(t, 2, 0, c)", names)
        if t.ndim == 2 and task.axes == 0:  # noqa: PLR2004 (a matrix)
            forms["renorm"] = ("torch.renorm(t, 2, 1, c)", names)
        return forms

    def clip_by_value(self, task: Task, data: Data) -> Forms:
        """Clip each element."""
        (t,) = data.held(self.owner, shared)
        names = {"torch": torch, "t": t}
        if task.mode == OUT:
            (names["out"],) = shared(data.kept(self.owner))
            return {"clamp": ("torch.clamp(t, -0.01, 0.01, out=out)", names)}
        return {"clamp": ("torch.clamp(t, -0.01, 0.01)", names)}

    def norm(self, task: Task, data: Data) -> Forms:
        """Return a norm."""
        (t,) = data.held(self.owner, shared)
        names = {"t": t, "norm": torch.linalg.vector_norm, "inf": inf}
        axes = "" if task.axes is None else f", dim={task.axes}"
        return {"vector_norm": (f"norm(t, {task.ord}{axes})", names)}
