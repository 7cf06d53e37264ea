"""The usual NumPy code, in its fastest forms."""

from __future__ import annotations

from itertools import accumulate, pairwise, repeat
from math import inf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from peers import Forms, Peer, limit, work_limit
from rows import IN_PLACE, NEW, OUT, UNCLIPPED

if TYPE_CHECKING:
    from collections.abc import Callable

    from data import Array, Data
    from rows import Task

    Norm = Callable[[list[Array]], float]

#: Fewer tensors, or more bytes, are not worth one array of all.
MANY, SMALL = 100, 64 << 20


def by_vdot(ts: list[Array]) -> float:
    """Return the norm by the BLAS."""
    return sqrt(sum(map(np.vdot, ts, ts)))


def by_einsum(ts: list[Array]) -> float:
    """Return the norm without whole copies of what is strided, or not what the BLAS takes."""
    return sqrt(sum([np.einsum(t, range(t.ndim), t, range(t.ndim), []) for t in ts]))


def by_complex_vdot(ts: list[Array]) -> float:
    """Return the norm of complex numbers that cannot be viewed as pairs."""
    return sqrt(sum(np.vdot(t, t).real for t in ts))


def by_complex_vecdot(ts: list[Array]) -> float:
    """Return the norm of complex numbers by rows, without copies of what is strided."""
    return sqrt(sum(np.vecdot(t, t).sum().real for t in ts))


def by_vecdot(ts: list[Array]) -> float:
    """Return the norm by rows."""
    return sqrt(sum([np.vecdot(t, t).sum() for t in ts]))


def by_wide_vdot(ts: list[Array]) -> float:
    """Return the norm of narrow numbers: BLAS knows float32."""
    return sqrt(sum([np.vdot(wide, wide) for wide in (t.astype(np.float32) for t in ts)]))


def by_wide_einsum(ts: list[Array]) -> float:
    """Return the norm of narrow numbers, widened block by block."""
    return sqrt(sum([np.einsum("i,i->", t, t, dtype=np.float32) for t in (t.reshape(-1) for t in ts)]))


def by_concatenation(ts: list[Array]) -> float:
    """Return the norm of many small tensors."""
    flat = np.concatenate(ts, axis=None)
    return sqrt(np.vdot(flat, flat))


def clipped(norm: Norm, ts: list[Array], c: float) -> tuple[list[Array], float]:
    """Clip a list into new arrays."""
    n = norm(ts)
    factor = c / max(n, c)
    return [t * factor for t in ts], n


def clipped_narrow(norm: Norm, ts: list[Array], c: float) -> tuple[list[Array], float]:
    """Clip a list into new arrays, with float32 products."""
    n = norm(ts)
    factor = np.float32(c / max(n, c))
    return [(t.astype(np.float32) * factor).astype(t.dtype) for t in ts], n


def clipped_own_type(norm: Norm, ts: list[Array], c: float) -> tuple[list[Array], float]:
    """Clip a list into new arrays, with a factor of their dtype."""
    n = norm(ts)
    factor = ts[0].dtype.type(c / max(n, c))
    return [t * factor for t in ts], n


def clipped_pairs(norm: Norm, ts: list[Array], c: float) -> tuple[list[Array], float]:
    """Clip complex numbers, held as pairs: half the products."""
    n = norm(ts)
    factor = c / max(n, c)
    return [(t * factor).view(np.complex64) for t in ts], n


def clipped_together(ts: list[Array], c: float, ranges: list[tuple[int, int]]) -> tuple[list[Array], float]:
    """Clip many small tensors as one array."""
    flat = np.concatenate(ts, axis=None)
    n = sqrt(np.vdot(flat, flat))
    flat *= c / max(n, c)
    return [flat[a:b] for a, b in ranges], n


def clipped_as_matrix(ts: list[Array], c: float) -> tuple[list[Array], float]:
    """Clip many small tensors of one length as one array."""
    flat = np.concatenate(ts, axis=None)
    n = sqrt(np.vdot(flat, flat))
    flat *= c / max(n, c)
    return list(flat.reshape(len(ts), -1)), n


def clip_into(norm: Norm, ts: list[Array], c: float, outs: list[Array]) -> tuple[list[Array], float]:
    """Clip a list into other arrays, or itself."""
    n = norm(ts)
    factor = c / max(n, c)
    for t, out in zip(ts, outs, strict=True):
        np.multiply(t, factor, out=out)
    return outs, n


def clip_into_at_once(norm: Norm, ts: list[Array], c: float, outs: list[Array]) -> tuple[list[Array], float]:
    """Clip a list into other arrays, or itself, with a loop in C."""
    n = norm(ts)
    factor = np.asarray(c / max(n, c), ts[0].dtype)
    return list(map(np.multiply, ts, repeat(factor), outs)), n


def clip_into_narrow(norm: Norm, ts: list[Array], c: float, outs: list[Array]) -> tuple[list[Array], float]:
    """Clip a list into other arrays, or itself, with float32 products."""
    n = norm(ts)
    factor = np.float32(c / max(n, c))
    for t, out in zip(ts, outs, strict=True):
        np.multiply(t, factor, out=out, dtype=np.float32, casting="unsafe")
    return outs, n


def clip_if_needed(norm: Norm, ts: list[Array], c: float) -> float:
    """Clip a list if it is too long."""
    n = norm(ts)
    if n > c:
        clip_into(norm, ts, c, ts)
    return n


def is_narrow(data: Data) -> bool:
    """Return whether the numbers are float16 or bfloat16."""
    return data.dtype.itemsize == 2  # noqa: PLR2004 (bytes)


def are_small(ts: list[Array], data: Data) -> bool:
    """Return whether one array of all of them may be worth its copy."""
    return len(ts) >= MANY and data.nbytes <= SMALL and not is_narrow(data)


def norms_of(ts: list[Array], data: Data) -> list[Norm]:
    """Return the norms that may be the fastest."""
    if is_narrow(data):
        return [by_wide_vdot, by_wide_einsum]
    if ts[0].dtype.kind == "c":
        return [by_complex_vdot, by_complex_vecdot]
    norms: list[Norm] = [by_vdot]
    if are_small(ts, data):
        norms.append(by_concatenation)
    if not all(t.flags.c_contiguous and t.flags.aligned and t.dtype.isnative for t in ts):
        norms += [by_einsum, by_vecdot]
    return norms


class NumPy(Peer):
    """NumPy."""

    name = owner = "NumPy"

    @property
    def version(self) -> str:
        """The version that runs."""
        return np.__version__

    def clip_by_global_norm(self, task: Task, data: Data) -> Forms:
        """Clip a list."""
        write, c = limit(task, data)
        narrow = is_narrow(data)
        pairs = data.dtype.kind == "c" and all(t.flags.c_contiguous for t in data.inputs)
        ts = data.own(self.owner) if task.mode in (IN_PLACE, UNCLIPPED) else data.inputs
        outs = data.kept(self.owner) if task.mode == OUT else ts
        names: dict[str, Any] = {"c": c, "results": outs}
        if pairs:
            # Views of float32 numbers need half the products, and the BLAS for real numbers.
            ts, outs = [t.view(np.float32) for t in ts], [t.view(np.float32) for t in outs]
        names |= {"ts": ts, "outs": outs}

        ways: list[Callable[..., Any]]
        expression = "way(norm, ts, c)"
        if task.mode == UNCLIPPED:
            ways = [clip_if_needed]
        elif task.mode == NEW:
            ways = [clipped_narrow, clipped_own_type] if narrow else [clipped_pairs] if pairs else [clipped]
        else:
            ways = [clip_into_narrow if narrow else clip_into, clip_into_at_once]
            expression = f"way(norm, ts, {write}, outs)"
            if pairs:
                expression = f"(results, {expression}[1])"
        forms: Forms = {
            f"{norm.__name__}, {way.__name__}": (expression, names | {"way": way, "norm": norm})
            for way in ways
            for norm in norms_of(ts, data)
        }
        if task.mode == NEW and are_small(ts, data) and all(t.ndim == 1 for t in ts):
            ranges = list(pairwise(accumulate((t.size for t in ts), initial=0)))
            forms["clipped_together"] = "way(ts, c, ranges)", names | {"way": clipped_together, "ranges": ranges}
            if len({t.shape for t in ts}) == 1:
                forms["clipped_as_matrix"] = "way(ts, c)", names | {"way": clipped_as_matrix}
        if len(ts) == 1 and ts[0].ndim == 1:
            forms |= one_short_tensor(task, names, write)
        return forms

    def clip_by_norm(self, task: Task, data: Data) -> Forms:
        """Clip one tensor, or slices of it."""
        (t,) = data.inputs
        names: dict[str, Any] = {"np": np, "sqrt": sqrt, "t": t, "c": work_limit(task, data)}
        if task.mode == OUT:
            names["out"] = data.kept(self.owner)[0]
        end = ", out=out" if task.mode == OUT else ""
        if task.axes is None:
            squares = ["np.vdot(t, t)", *(["t.dot(t)"] if t.ndim == 1 else [])]
            return {each: (f"np.multiply(t, c / max(sqrt({each}), c){end})", names) for each in squares}

        axes = (task.axes,) if isinstance(task.axes, int) else task.axes
        letters = "ijklmn"[: t.ndim]
        kept = "".join(letter for axis, letter in enumerate(letters) if axis not in axes)
        names |= {"sums": f"{letters},{letters}->{kept}", "axes": axes}
        names["where"] = tuple(None if axis in axes else slice(None) for axis in range(t.ndim))
        scale = "np.multiply(t, (c / np.maximum(np.sqrt({}), c))[where]{})".format
        forms = {"einsum": (scale("np.einsum(sums, t, t)", end), names)}
        forms["square, sum"] = (scale("np.square(t).sum(axes)", end), names)
        if axes == tuple(range(t.ndim - len(axes), t.ndim)):
            names["rows"] = t.reshape(*t.shape[: t.ndim - len(axes)], -1)
            forms["vecdot"] = (scale("np.vecdot(rows, rows)", end), names)
        elif len(axes) == 1:
            forms["vecdot"] = (scale(f"np.vecdot(t, t, axis={axes[0]})", end), names)
        return forms

    def clip_by_value(self, task: Task, data: Data) -> Forms:
        """Clip each element."""
        low, high = (np.float32(bound) for bound in (-0.01, 0.01))
        names: dict[str, Any] = {"np": np, "t": data.inputs[0], "low": low, "high": high}
        if task.mode == OUT:
            names["out"] = data.kept(self.owner)[0]
            return {
                "clip": ("np.clip(t, -0.01, 0.01, out=out)", names),
                "clip method": ("t.clip(low, high, out=out)", names),
                "minimum, maximum": ("np.minimum(np.maximum(t, low, out=out), high, out=out)", names),
            }
        return {
            "clip": ("np.clip(t, -0.01, 0.01)", names),
            "clip method": ("t.clip(low, high)", names),
            "minimum, maximum": ("np.minimum(np.maximum(t, low), high)", names),
        }

    def norm(self, task: Task, data: Data) -> Forms:
        """Return a norm."""
        (t,) = data.inputs
        names: dict[str, Any] = {"np": np, "sqrt": sqrt, "t": t, "inf": inf}
        if task.axes is not None:
            letters = "ij,ij->j" if task.axes == 0 else "ij,ij->i"
            return {
                "norm": (f"np.linalg.norm(t, axis={task.axes})", names),
                "vecdot": (f"np.sqrt(np.vecdot(t, t, axis={task.axes}))", names),
                "einsum": (f"np.sqrt(np.einsum({letters!r}, t, t))", names),
            }
        forms = {"norm": (f"np.linalg.norm(t, ord={task.ord})", names)}
        forms |= {
            2: {"vdot": ("sqrt(np.vdot(t, t))", names), "dot": ("sqrt(t.dot(t))", names)},
            1: {"abs, sum": ("np.abs(t).sum()", names)},
            1.5: {"sqrt, vdot": ("vdot_with_root(t)", names | {"vdot_with_root": vdot_with_root})},
            inf: {"abs, max": ("np.abs(t).max()", names), "max, min": ("max(t.max(), -t.min())", names)},
        }.get(task.ord, {"power": (f"(np.abs(t) ** {task.ord}).sum() ** {1 / task.ord}", names)})
        return forms


def vdot_with_root(t: Array) -> Any:
    """Return the norm of order 1.5 without powers."""
    a = np.abs(t)
    return np.vdot(a, np.sqrt(a)) ** (2 / 3)


def one_short_tensor(task: Task, names: dict[str, Any], write: str) -> Forms:
    """Return the shortest expressions that clip a list of one tensor."""
    names = names | {"t": names["ts"][0], "sqrt": sqrt, "np": np}
    forms = {}
    for squares in ("t.dot(t)", "np.vdot(t, t)"):
        norm = f"sqrt({squares})"
        if task.mode == UNCLIPPED:
            expression = f"n if (n := {norm}) <= c else [np.multiply(t, c / n, out=t)]"
        elif task.mode == NEW:
            expression = f"[t * (c / max({norm}, c))]"
        else:
            expression = f"[np.multiply(t, {write} / max({norm}, c), out=outs[0])]"
        forms[squares] = expression, names
    return forms
