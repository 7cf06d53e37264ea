"""Time the functions that TensorFlow lacks beside NumPy's and optax' best forms.

Each call runs in a process of its own, and the calls of a line take turns: in one process, the memory that one library
frees decides whether the next one gets fresh pages. Each line has the medians in milliseconds, and how many times as
long as gradclip the peer takes. optax is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gradclip as gc
import numpy as np
import numpy.typing as npt

sys.path.append(str(Path(__file__).parent / "compare"))
from rows import resnet50

#: Processes of each call.
TURNS = 3

Array = npt.NDArray[Any]
Calls = dict[str, Callable[[], object]]

#: The shapes of ResNet-50, 161 tensors and 25.6 million parameters, in TensorFlow's layout.
RESNET = [shape[::-1] for shape in resnet50()]


def timed(call: Callable[[], object], seconds: float) -> list[float]:
    """Return the milliseconds of a call in a loop of some seconds, five times at least."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:  # noqa: PLR2004 (for a median)
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def medians(make: str, line: str, calls: Calls, seconds: float) -> dict[str, float]:
    """Return the median time of each call in ms."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, own in times.items():
            command = [sys.executable, __file__, "--alone", make, line, name, "--seconds", str(seconds / TURNS)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603 (this file)
            own.extend(json.loads(done.stdout))
    return {name: statistics.median(own) for name, own in times.items()}


def lists(rng: np.random.Generator) -> dict[str, Calls]:
    """Return calls on lists: norms, and limits of each tensor."""
    net = [rng.standard_normal(shape).astype(np.float32) * np.float32(0.01) for shape in RESNET]
    small = [rng.standard_normal(16).astype(np.float32) for _ in range(10_000)]
    # Each call in place asks for a little less than the one before, so that every call clips.
    own, theirs = [t.copy() for t in net], [t.copy() for t in net]
    limits = gc.norms(net)

    def shrink() -> None:
        limits[:] *= 0.9999
        gc.clip_by_norms(own, limits, out=own)

    def shrink_by_numpy() -> None:
        for t in theirs:
            norm = max(float(np.linalg.norm(t)), 1e-30)
            np.multiply(t, np.float32(0.9999 * norm / norm), out=t)

    def by_numpy() -> list[Array]:
        return [t * np.float32(min(1.0, 0.05 / max(float(np.linalg.norm(t)), 1e-30))) for t in net]

    return {
        "norms, ResNet-50": {
            "gradclip": lambda: gc.norms(net),
            "global_norm": lambda: gc.global_norm(net),
            "NumPy": lambda: [float(np.linalg.norm(t)) for t in net],
        },
        "norms, 10,000 of 16": {
            "gradclip": lambda: gc.norms(small),
            "global_norm": lambda: gc.global_norm(small),
            "NumPy": lambda: [float(np.linalg.norm(t)) for t in small],
        },
        "clip_by_norms, ResNet-50, new": {"gradclip": lambda: gc.clip_by_norms(net, 0.05), "NumPy": by_numpy},
        "clip_by_norms, ResNet-50, in place": {"gradclip": shrink, "NumPy": shrink_by_numpy},
    }


def examples(rng: np.random.Generator) -> dict[str, Calls]:
    """Return calls on examples."""
    groups: dict[str, Calls] = {}
    for name, count, shapes in (
        ("examples, 64 of 1.9M", 64, [(1024, 1024), (1024,), (1024, 768), (768,), (768, 100), (100,)]),
        ("examples, 256 of 20,000", 256, [(100, 150), (150,), (150, 32), (50,)]),
    ):
        t_list = [rng.standard_normal((count, *shape)).astype(np.float32) for shape in shapes]

        def by_numpy(t_list: list[Array] = t_list, count: int = count) -> list[Array]:
            flat = [t.reshape(count, -1) for t in t_list]
            squares = sum(np.einsum("bi,bi->b", t, t) for t in flat)
            factors = np.minimum(1.0, 1.0 / np.sqrt(squares)).astype(np.float32)
            return [(factors @ t).reshape(own.shape[1:]) for t, own in zip(flat, t_list, strict=True)]

        groups[name] = {
            "gradclip": partial(gc.clip_examples_by_global_norm, t_list, 1.0),
            "strict": partial(gc.clip_examples_by_global_norm, t_list, 1.0, strict=True),
            "one read": partial(gc.global_norm, t_list),
            "NumPy": by_numpy,
        }
    return groups


def pairs(rng: np.random.Generator) -> dict[str, Calls]:
    """Return calls on two lists: differences, and norms of weights."""
    net = [rng.standard_normal(shape).astype(np.float32) for shape in RESNET]
    base = [rng.standard_normal(shape).astype(np.float32) for shape in RESNET]
    own = [t.copy() for t in net]

    def difference_by_numpy() -> list[Array]:
        update = [t - b for t, b in zip(net, base, strict=True)]
        norm = np.sqrt(sum(float(np.linalg.norm(u)) ** 2 for u in update))
        return [b + u * np.float32(min(1.0, 1.0 / norm)) for b, u in zip(base, update, strict=True)]

    def in_place() -> None:
        gc.clip_difference_by_global_norm(own, base, 1.0, out=own)
        own[0] += np.float32(1.0)  # so that the next call clips too

    def weights_by_numpy() -> list[Array]:
        results = []
        for g, w in zip(net, base, strict=True):
            axes = tuple(range(g.ndim - 1)) or None
            norm = np.sqrt(np.sum(g * g, axis=axes, keepdims=True))
            limit = 0.01 * np.maximum(np.sqrt(np.sum(w * w, axis=axes, keepdims=True)), np.float32(1e-3))
            results.append(np.where(norm > limit, g * (limit / np.maximum(norm, np.float32(1e-6))), g))
        return results

    groups: dict[str, Calls] = {
        "difference, 25.6M, new": {
            "gradclip": lambda: gc.clip_difference_by_global_norm(net, base, 1.0),
            "NumPy": difference_by_numpy,
        },
        "difference, 25.6M, in place": {"gradclip": in_place, "NumPy": difference_by_numpy},
        "weight norms, ResNet-50": {
            "gradclip": lambda: gc.clip_by_weight_norm(net, base, 0.01),
            "NumPy": weights_by_numpy,
        },
    }
    if importlib.util.find_spec("optax"):
        groups["weight norms, ResNet-50"]["optax"] = weights_by_optax(net, base)
    return groups


def weights_by_optax(net: list[Array], base: list[Array]) -> Callable[[], object]:
    """Return optax' adaptive clip. Its first call imports and compiles it."""
    compiled: list[Callable[[], object]] = []

    def run() -> object:
        if not compiled:
            jax, optax = importlib.import_module("jax"), importlib.import_module("optax")
            rule = optax.adaptive_grad_clip(0.01)
            clip = jax.jit(lambda g, w: rule.update(g, rule.init(w), w)[0])
            on_jax = [jax.numpy.asarray(t) for t in net], [jax.numpy.asarray(t) for t in base]
            compiled.append(lambda: jax.block_until_ready(clip(*on_jax)))
        return compiled[0]()

    return run


def strict(rng: np.random.Generator) -> dict[str, Calls]:
    """Return calls with and without ``strict=True``."""
    groups: dict[str, Calls] = {}
    for dtype in ("float32", "float64", "float16"):
        x = rng.standard_normal((50_000, 768)).astype(dtype)
        out = np.empty_like(x)
        for axes in (None, 1, 0):
            groups[f"strict, 50,000 x 768 {dtype}, axes={axes}"] = {
                "gradclip": partial(gc.clip_by_norm, x, 1.0, axes, out=out),
                "strict": partial(gc.clip_by_norm, x, 1.0, axes, strict=True, out=out),
            }
    return groups


def rows(rng: np.random.Generator) -> dict[str, Calls]:
    """Return calls on channels, and on the rows of sparse tensors."""
    groups: dict[str, Calls] = {}
    images = rng.standard_normal((64, 3, 64, 64)).astype(np.float32)

    def normalized(order: float) -> Array:
        return np.asarray(images / np.linalg.norm(images, order, axis=1, keepdims=True))

    for order in (1, 2, np.inf):
        groups[f"normalize, 64 x 3 x 64 x 64, channels, ord={order}"] = {
            "gradclip": partial(gc.normalize, images, order, 1),
            "NumPy": partial(normalized, order),
        }
    indices = rng.zipf(1.3, 8192) % 50_000
    values = rng.standard_normal((8192, 100)).astype(np.float32)

    def by_numpy() -> Array:
        order = np.argsort(indices, kind="stable")
        ascending = indices[order]
        first = np.flatnonzero(np.append(True, ascending[1:] != ascending[:-1]))
        return np.asarray(np.add.reduceat(values[order], first, axis=0))

    groups["coalesce, 8192 x 100"] = {"gradclip": gc.IndexedSlices(values, indices).coalesce, "NumPy": by_numpy}
    return groups


def main() -> None:
    """Print a line for each group of calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each call (default: 4)")
    parser.add_argument("--only", default="", help="a part of the names of the lines to be measured")
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for make in (lists, examples, pairs, strict, rows):
        if arguments.alone:
            alone, line, name = arguments.alone
            if make.__name__ == alone:
                print(json.dumps(timed(make(np.random.default_rng(0))[line][name], arguments.seconds)))
            continue
        for line, calls in make(np.random.default_rng(0)).items():
            if arguments.only in line:
                times = medians(make.__name__, line, calls, arguments.seconds)
                texts = [f"{who} {time:.2f} ms ({time / times['gradclip']:.2f})" for who, time in times.items()]
                print(f"{line:44s} {'  '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
