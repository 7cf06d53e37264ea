"""The libraries that take part: each gives the forms in which it does a task, on arrays that it holds already.

Where there are several good forms, all are given, and the fastest one of a short trial counts.
"""

from __future__ import annotations

import importlib
import math
import os
from itertools import accumulate, repeat
from operator import mul
from typing import TYPE_CHECKING, Any

import gradclip
import numpy as np
from rows import IN_PLACE, UNCLIPPED
from timing import Form

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from data import Array, Data
    from rows import Task

#: The name of this package among the libraries.
OURS = "gradclip"
#: A limit in place is below the norm by this share: all is multiplied, and float32 numbers stay what they are.
_JUST_BELOW = 1 - 1e-9
#: Elsewhere what is clipped is clipped to about this share.
WORK = 0.7


def work_limit(task: Task, data: Data) -> float:
    """Return a limit that is well below the norm, or all norms: a number of two digits, as users write it.

    A share of the norm would make a factor of few digits, with which products of 16-bit numbers are ties.
    """
    slices = 1
    if task.axes is not None:
        (array,) = data.inputs
        axes = (task.axes,) if isinstance(task.axes, int) else task.axes
        slices = array.size // math.prod(array.shape[axis] for axis in axes)
    return float(f"{WORK * data.norm / math.sqrt(slices):.2g}")


def limit(task: Task, data: Data) -> tuple[str, float | Iterator[float]]:
    """Return the limit of a task: its text, and the value of `c`.

    In place, wide numbers do shrink from call to call, and the limit must, too.
    """
    if task.mode == UNCLIPPED:
        return "c", 2 * data.norm
    if task.mode != IN_PLACE:
        return "c", work_limit(task, data)
    if data.dtype == np.float64:
        return "next(c)", accumulate(repeat(_JUST_BELOW), mul, initial=data.norm * _JUST_BELOW)
    return "c", data.norm * _JUST_BELOW


class Peer:
    """A library."""

    name: str
    #: Its copies and buffers, where it writes.
    owner: str
    #: It can put results into given arrays.
    writes = True

    @property
    def version(self) -> str:
        """The version that runs."""
        raise NotImplementedError

    def forms(self, task: Task, data: Data) -> list[Form]:
        """Return the forms in which the library does a task; none if it cannot."""
        method = getattr(self, task.function, None)
        forms: Mapping[str, tuple[str, dict[str, Any]]] = method(task, data) if method else {}
        return [Form(label, expression, names) for label, (expression, names) in forms.items()]

    def to_numpy(self, array: Any) -> Array:
        """Return a result to NumPy."""
        return np.asarray(array)

    def describe(self) -> str:
        """Return the version, and the threads where that is known."""
        return f"{self.name} {self.version}"


#: The forms of a library: a label, an expression and its names.
Forms = dict[str, tuple[str, dict[str, Any]]]


class Gradclip(Peer):
    """The package itself."""

    name = owner = OURS

    @property
    def version(self) -> str:
        """The version that runs."""
        return gradclip.__version__

    def clip_by_global_norm(self, task: Task, data: Data) -> Forms:
        """Clip a list."""
        write, c = limit(task, data)
        names: dict[str, Any] = {"gc": gradclip, "c": c}
        if task.mode == "new":
            return {"": ("gc.clip_by_global_norm(ts, c)", names | {"ts": data.inputs})}
        if task.mode == "out=":
            names |= {"ts": data.inputs, "outs": data.kept(self.owner)}
            return {"": ("gc.clip_by_global_norm(ts, c, out=outs)", names)}
        names["ts"] = data.own(self.owner)
        return {"": (f"gc.clip_by_global_norm(ts, {write}, out=ts)", names)}

    def clip_by_norm(self, task: Task, data: Data) -> Forms:
        """Clip one tensor, or slices of it."""
        (t,) = data.inputs
        names = {"gc": gradclip, "t": t, "c": work_limit(task, data)}
        rest = "" if task.axes is None else f", axes={task.axes}"
        if task.mode == "out=":
            rest += ", out=out"
            names["out"] = data.kept(self.owner)[0]
        return {"": (f"gc.clip_by_norm(t, c{rest})", names)}

    def clip_by_value(self, task: Task, data: Data) -> Forms:
        """Clip each element."""
        names: dict[str, Any] = {"gc": gradclip, "t": data.inputs[0]}
        if task.mode == "out=":
            names["out"] = data.kept(self.owner)[0]
            return {"": ("gc.clip_by_value(t, -0.01, 0.01, out=out)", names)}
        return {"": ("gc.clip_by_value(t, -0.01, 0.01)", names)}

    def norm(self, task: Task, data: Data) -> Forms:
        """Return a norm."""
        names = {"gc": gradclip, "t": data.inputs[0], "inf": math.inf}
        rest = "" if task.ord == 2 else f", ord={task.ord}"  # noqa: PLR2004 (the default)
        rest += "" if task.axes is None else f", axis={task.axes}"
        return {"": (f"gc.norm(t{rest})", names)}

    def describe(self) -> str:
        """Return the version and the threads."""
        return f"gradclip {self.version} on {gradclip.get_num_threads()} threads"


#: The module and the class of each peer, and the packages that it needs.
PEERS = {
    "NumPy": ("peer_numpy", "NumPy", ("numpy",)),
    "torch": ("peer_torch", "Torch", ("torch",)),
    "TensorFlow": ("peer_tensorflow", "TensorFlow", ("tensorflow",)),
    "optax/JAX": ("peer_jax", "Jax", ("jax", "optax")),
}


def available(names: list[str]) -> tuple[list[Peer], dict[str, str]]:
    """Import the peers: those that are installed, and the reasons why others are not."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # On the CPU only, even if there is a GPU: the arrays are in its memory.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    found, missing = [], {}
    for name in names:
        module, kind, needs = PEERS[name]
        try:
            for need in needs:
                importlib.import_module(need)
            found.append(getattr(importlib.import_module(module), kind)())
        except ImportError as error:
            missing[name] = str(error)
    return found, missing
