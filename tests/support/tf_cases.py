"""TensorFlow's answers: calls of its clipping and norm functions, recorded with their results.

Recorded with tensorflow-cpu 2.21.0 and NumPy 2.4.6 on an x86-64 CPU with AVX, eagerly, in one thread;
TensorFlow itself is not needed here. `data/tf_cases.json` holds one call per line, `data/tf_cases.npz` the
elements of all its arrays, one long array per dtype. A tag says where a case comes from:

tf_test  TensorFlow's own unit tests
core     ordinary use: layouts, dtypes, axes, kinds of limits
edge     NaN, infinities, empty arrays, limits of 0
error    what TensorFlow refuses
quirk    what is true of TensorFlow, but hardly meant

What was a ``tf.Tensor`` is an array here. Bfloat16 needs the package ``ml_dtypes``.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradclip as gc
import ml_dtypes
import numpy as np

DATA = Path(__file__).parent / "data"
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Case:
    """One recorded call."""

    name: str
    tag: str
    fn: str
    raises: str | None
    """The name of the exception, None if the call returned."""
    _args: list[Any]
    _kwargs: dict[str, Any]
    _expect: Any

    @property
    def args(self) -> list[Any]:
        """The positional arguments. Arrays cannot be written to."""
        return [_decode(value) for value in self._args]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments."""
        return {key: _decode(value) for key, value in self._kwargs.items()}

    @property
    def expect(self) -> Any:
        """The results of TensorFlow: arrays, 0-d ones for single numbers, lists and tuples of them, IndexedSlices."""
        return _decode(self._expect)

    def run(self) -> Any:
        """The results of gradclip for the same call."""
        return getattr(gc, self.fn)(*self.args, **self.kwargs)


@functools.cache
def load() -> list[Case]:
    """All cases, in the order of their recording."""
    return [
        Case(c["name"], c["tag"], c["fn"], c.get("raises"), c["args"], c.get("kwargs", {}), c.get("expect"))
        for c in json.loads((DATA / "tf_cases.json").read_text())
    ]


@functools.cache
def _elements() -> dict[str, np.ndarray]:
    with np.load(DATA / "tf_cases.npz") as file:
        return dict(file)


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    decode: dict[str, Callable[[], Any]] = {
        "array": lambda: _array(*content),
        "scalar": lambda: _array(*content)[()],
        "slices": lambda: gc.IndexedSlices(*map(_decode, content)),
        "tuple": lambda: tuple(map(_decode, content)),
        "set": lambda: set(map(_decode, content)),
        "dict": lambda: {key: _decode(entry) for key, entry in content.items()},
        "float": lambda: float(content),
        "complex": lambda: complex(content),
    }
    return decode[kind]()


def _array(dtype: str, shape: list[int], start: int) -> np.ndarray:
    array = _elements()[dtype][start : start + math.prod(shape)].reshape(shape)
    # Dtypes that the file format lacks are stored as ones that it has: bits, native byte order, float64.
    array = array.view(BFLOAT16) if dtype == "bfloat16" else array.astype(dtype)
    array.flags.writeable = False
    return array


# ---- comparing


def difference(got: Any, expected: Any, rtol: Callable[[Any], float]) -> str | None:
    """The first difference, None if there is none. Types, dtypes and shapes must be the same.

    `rtol` says for an expected float or array how far the numbers may be apart, relative to them.
    """
    if type(got) is not type(expected):
        return f"found {got!r}, expected {expected!r}"
    if isinstance(expected, (list, tuple)):
        if len(got) != len(expected):
            return f"found {len(got)} entries, expected {len(expected)}"
        found = (difference(g, e, rtol) for g, e in zip(got, expected, strict=True))
        return next((f"[{i}]: {why}" for i, why in enumerate(found) if why), None)
    if isinstance(expected, gc.IndexedSlices):
        if got.dense_shape != expected.dense_shape or not np.array_equal(got.indices, expected.indices):
            return f"found {got!r}, expected {expected!r}"
        return difference(got.values, expected.values, rtol)
    if expected is None:
        return None
    g, e = np.asarray(got), np.asarray(expected)
    if g.dtype != e.dtype or g.shape != e.shape:
        return f"found {g.dtype} of shape {g.shape}, expected {e.dtype} of shape {e.shape}"
    return None if _close(g, e, rtol(expected)) else f"found {g}, expected {e}"


def eps(dtype: Any) -> float:
    """The precision of a dtype: the distance between 1 and the next number; 0 for integers."""
    dtype = np.dtype(dtype)
    return 0.0 if dtype.kind in "biu" else float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def _close(got: np.ndarray, expected: np.ndarray, rtol: float) -> bool:
    """Whether all numbers are close; NaN, infinities and the signs of zeros, in both parts, must be the same."""
    if expected.dtype.kind in "biu":
        return np.array_equal(got, expected)
    g, e = np.atleast_1d(got).astype(np.complex128), np.atleast_1d(expected).astype(np.complex128)
    finite = np.isfinite(e)
    for a, b in ((g.real, e.real), (g.imag, e.imag)):
        exact = ~finite | (b == 0)
        same_signs = np.array_equal(np.signbit(a[b == 0]), np.signbit(b[b == 0]))
        if not same_signs or not np.array_equal(a[exact], b[exact], equal_nan=True):
            return False
    return bool((abs(g[finite] - e[finite]) <= rtol * abs(e[finite])).all())
