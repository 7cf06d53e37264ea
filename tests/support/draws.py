"""Hypothesis strategies: arrays of any dtype, shape and layout, axes and limits."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import layouts
import numpy as np
import oracle
from hypothesis import strategies as st
from oracle import BF16, mp

MAX = sys.float_info.max

# ---- tensors


def _words(draw: Any, dtype: np.dtype, kind: str) -> int:
    """The bits of one real number: its sign, exponent and mantissa are drawn apart, so that each kind is common."""
    size, digits = 8 * dtype.itemsize, oracle.finfo(dtype).nmant
    top = 2 ** (size - 1 - digits) - 1  # the exponent of inf and NaN
    exponent = {
        "wide": st.integers(0, top - 1),
        "ordinary": st.integers(top // 2 - 4, top // 2 + 3),
        "small": st.integers(0, 2),
        "subnormal": st.just(0),
        "large": st.integers(top - 3, top - 1),
        "inf": st.just(top),
        "nan": st.just(top),
        "zero": st.just(0),
    }[kind]
    mantissa = {"inf": st.just(0), "zero": st.just(0), "nan": st.integers(1, 2**digits - 1)}
    any_mantissa = st.one_of(st.integers(0, 2**digits - 1), st.sampled_from([0, 1, 2 ** (digits - 1), 2**digits - 1]))
    return (
        draw(st.sampled_from([0, 1])) << (size - 1) | draw(exponent) << digits | draw(mantissa.get(kind, any_mantissa))
    )


FINITE = [
    ["ordinary"],
    ["wide"],
    ["small", "zero"],
    ["subnormal", "zero"],
    ["large"],
    ["ordinary", "zero", "subnormal"],
]
WILD = [["ordinary", "inf"], ["wide", "nan"], ["large", "inf", "nan", "zero"], ["subnormal", "inf"]]


@st.composite
def values(draw: Any, dtype: np.dtype, *, finite: bool) -> np.ndarray:
    """A few numbers of the dtype, of which arrays are made."""
    count = draw(st.integers(1, 6))
    if dtype.kind == "b":
        return np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        number = st.one_of(st.integers(max(info.min, -9), 9), st.integers(info.min, info.max), st.just(info.min))
        return np.array(draw(st.lists(number, min_size=count, max_size=count)), dtype=dtype)
    part, n = oracle.part(dtype), count * (2 if dtype.kind == "c" else 1)
    kinds = draw(st.sampled_from(FINITE if finite else FINITE + WILD))
    words = [_words(draw, part, draw(st.sampled_from(kinds))) for _ in range(n)]
    return oracle.from_bits(words, dtype)


@st.composite
def shapes(draw: Any) -> tuple[int, ...]:
    """None to four axes; empty ones and long ones are rare."""
    side = st.sampled_from([1, 2, 3, 3, 4, 5, 0])
    shape = tuple(draw(st.lists(side, max_size=4)))
    return draw(st.sampled_from([shape, shape, shape, (17,), (3, 11), (33, 2), (70,)])) if len(shape) < 4 else shape


@st.composite
def tensors(draw: Any, dtype: Any, *, finite: bool = False, writeable: bool = False) -> np.ndarray:
    """An array of the dtype, in one of the layouts."""
    dtype, shape = np.dtype(dtype), draw(shapes())
    pool = draw(values(dtype, finite=finite))
    shuffle = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = shuffle.choice(pool, size=shape) if draw(st.booleans()) else np.resize(pool, shape)
    x = np.asarray(x, dtype=dtype).reshape(shape)
    repeated = draw(st.sets(st.integers(0, x.ndim - 1), min_size=1)) if x.ndim and draw(st.integers(0, 4)) == 0 else ()
    few = x[(..., *(slice(0, 1) if axis in repeated else slice(None) for axis in range(x.ndim)))]
    choice = layouts.WRITEABLE if writeable else layouts.ALL
    if repeated and not writeable and draw(st.booleans()):
        layout = draw(st.sampled_from([f for name, f in choice.items() if layouts.fits(name, few)]))
        return np.broadcast_to(layout(few), x.shape, subok=True)  # stride 0 along these axes
    x = np.broadcast_to(few, x.shape)  # equal along these axes, in any layout
    return draw(st.sampled_from([f for name, f in choice.items() if layouts.fits(name, x)]))(x)


@st.composite
def views_of_one(draw: Any, dtype: Any, *, finite: bool = False) -> list[np.ndarray]:
    """A list of many short tensors as users make it: views of one array, most of them equally long."""
    dtype = np.dtype(dtype)
    pool = draw(values(dtype, finite=finite))
    count = draw(st.integers(8, 40))
    length = draw(st.integers(1, min(200, 800 // count)))  # the oracle is slow
    room = np.random.default_rng(draw(st.integers(0, 2**32))).choice(pool, size=count * (length + 8))
    kind = draw(st.sampled_from(["steps", "columns", "rows", "windows", "twice"]))
    if kind == "steps":
        step = draw(st.integers(1, 8))
        views = [room[i::step][:length] for i in range(count)]
    elif kind == "columns":
        matrix = room[: count * length].reshape(length, count)
        views = [matrix[:, i] for i in range(count)]
    elif kind == "rows":
        views = list(room[: count * length].reshape(count, length))
    elif kind == "windows":
        hop = draw(st.integers(1, length))
        views = [room[i * hop :][:length] for i in range(count)]
    else:
        views = [room[:length]] * count
    if draw(st.booleans()):
        return views
    return [view[: draw(st.integers(0, length))] for view in views]


@st.composite
def axes_of(draw: Any, ndim: int, *, some: bool = False) -> Any:
    """None, one axis, or several in any order and from either end; () too, unless there have to be `some`."""
    if ndim == 0:
        return draw(st.sampled_from([None] if some else [None, ()]))
    axes = draw(st.lists(st.integers(0, ndim - 1), unique=True, min_size=int(some)))
    axes = [draw(st.sampled_from([a, a - ndim, np.int16(a)])) for a in axes]
    choices: list[Any] = [None, tuple(axes), axes]
    return draw(st.sampled_from([*choices, axes[0]] if len(axes) == 1 else choices))


def ints(axes: Any) -> Any:
    """Axes as Python ints, for the oracle."""
    if axes is None:
        return None
    return tuple(map(int, axes)) if isinstance(axes, (tuple, list)) else (int(axes),)


# ---- limits


KINDS: dict[str, Callable[[float], Any]] = {
    "float": float,
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": BF16,
    "0-d": np.array,
    "0-d float32": lambda v: np.array(v, dtype=np.float32),
    "0-d bfloat16": lambda v: np.array(v).astype(BF16),
    "0-d big-endian": lambda v: np.array(v, dtype=">f8"),
    "0-d swapped bfloat16": lambda v: layouts.swapped_bytes(np.array(v).astype(BF16)),
}
WHOLE: dict[str, Callable[[int], Any]] = {
    "int": int,
    "int64": np.int64,
    "uint8": np.uint8,
    "0-d int16": lambda v: np.array(v, dtype=np.int16),
}


@st.composite
def limits(draw: Any, norm: Any) -> Any:
    """A number in one of its spellings: near a norm, or anywhere."""
    near = oracle.to_float64(norm) if mp.isfinite(norm) else 1.0
    near = min(near, MAX)
    value = draw(
        st.one_of(
            st.sampled_from([0.25, 0.5, 1 - 1e-9, 0.999, 1.001, 2.0, 1e-3, 1e-30, 1e-300]).map(lambda k: near * k),
            st.sampled_from([near, math.nextafter(near, 0), math.nextafter(near, math.inf)]),
            st.sampled_from([0.0, -0.0, math.inf, 5e-324, 1e-310, 2.0**-1022, 1e-30, 1.0, 65520.0, 4e38, 1e300, MAX]),
            st.floats(0, 10),
            st.floats(0, allow_nan=False),
            st.sampled_from([0, 1, 7, 100, 2**60, 10**30, 10**308, 10**400]),
        )
    )
    if isinstance(value, int):
        fits = [WHOLE["int"]] if value > 100 else list(WHOLE.values())
        return draw(st.sampled_from(fits))(value)
    with np.errstate(over="ignore", under="ignore"):
        return draw(st.sampled_from(list(KINDS.values())))(value)


def number(limit: Any) -> float:
    """A limit in float64."""
    if isinstance(limit, int):
        return oracle.rounded(limit, np.float64)
    return float(oracle.native(limit) if isinstance(limit, np.ndarray) else limit)
