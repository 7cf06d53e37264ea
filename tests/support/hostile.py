"""Every argument of every function as a place for a hostile object, and the allowed outcomes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gradclip as gc
import numpy as np

SIZE = 4


class Arrays:
    """The arrays of a call: those it reads and those it may write."""

    def __init__(self) -> None:
        self.t = np.array([3.0, -4.0, 0.5, -0.0])
        self.matrix = np.arange(12.0).reshape(3, SIZE)
        self.out = np.full(SIZE, 7.0)
        self.outs = [np.full(SIZE, 8.0), np.full(SIZE, 9.0), np.full(SIZE, 10.0)]
        self.t_list: list[Any] = [self.t, self.t * 2, self.t * 3]
        self.slices = gc.IndexedSlices(self.matrix, np.array([2, 0, 2]), (5, SIZE))
        self.slices_out = gc.IndexedSlices(np.full((3, SIZE), 11.0), self.slices.indices, (5, SIZE))

    def written(self) -> list[np.ndarray]:
        return [self.out, *self.outs, self.slices_out.values]


Call = Callable[[Arrays, Any], Any]

PLACES: dict[str, Call] = {
    "clip_by_value t": lambda a, x: gc.clip_by_value(x, -1, 1),
    "clip_by_value t, with out": lambda a, x: gc.clip_by_value(x, -1, 1, out=a.out),
    "clip_by_value clip_value_min": lambda a, x: gc.clip_by_value(a.t, x, 1, out=a.out),
    "clip_by_value clip_value_max": lambda a, x: gc.clip_by_value(a.t, -1, x, out=a.out),
    "clip_by_value name": lambda a, x: gc.clip_by_value(a.t, -1, 1, x, out=a.out),
    "clip_by_value out": lambda a, x: gc.clip_by_value(a.t, -1, 1, out=x),
    "clip_by_value out of slices": lambda a, x: gc.clip_by_value(a.slices, -1, 1, out=x),
    "clip_by_norm t": lambda a, x: gc.clip_by_norm(x, 1.0),
    "clip_by_norm t, with out": lambda a, x: gc.clip_by_norm(x, 1.0, out=a.out),
    "clip_by_norm clip_norm": lambda a, x: gc.clip_by_norm(a.t, x, out=a.out),
    "clip_by_norm clip_norm of slices": lambda a, x: gc.clip_by_norm(a.slices, x, out=a.slices_out),
    "clip_by_norm axes": lambda a, x: gc.clip_by_norm(a.t, 1.0, x, out=a.out),
    "clip_by_norm axes, an entry": lambda a, x: gc.clip_by_norm(a.t, 1.0, [x], out=a.out),
    "clip_by_norm name": lambda a, x: gc.clip_by_norm(a.t, 1.0, None, x, out=a.out),
    "clip_by_norm out": lambda a, x: gc.clip_by_norm(a.t, 1.0, out=x),
    "clip_by_average_norm t": lambda a, x: gc.clip_by_average_norm(x, 0.1, out=a.out),
    "clip_by_average_norm clip_norm": lambda a, x: gc.clip_by_average_norm(a.t, x, out=a.out),
    "clip_by_average_norm name": lambda a, x: gc.clip_by_average_norm(a.t, 0.1, x, out=a.out),
    "clip_by_average_norm out": lambda a, x: gc.clip_by_average_norm(a.t, 0.1, out=x),
    "clip_by_global_norm t_list": lambda a, x: gc.clip_by_global_norm(x, 1.0, out=a.outs),
    "clip_by_global_norm t_list, an entry": lambda a, x: gc.clip_by_global_norm([*a.t_list[:2], x], 1.0, out=a.outs),
    "clip_by_global_norm clip_norm": lambda a, x: gc.clip_by_global_norm(a.t_list, x, out=a.outs),
    "clip_by_global_norm use_norm": lambda a, x: gc.clip_by_global_norm(a.t_list, 1.0, x, out=a.outs),
    "clip_by_global_norm name": lambda a, x: gc.clip_by_global_norm(a.t_list, 1.0, None, x, out=a.outs),
    "clip_by_global_norm ord": lambda a, x: gc.clip_by_global_norm(a.t_list, 1.0, ord=x, out=a.outs),
    "clip_by_global_norm out": lambda a, x: gc.clip_by_global_norm(a.t_list, 1.0, out=x),
    "clip_by_global_norm out, an entry": lambda a, x: gc.clip_by_global_norm(a.t_list, 1.0, out=[*a.outs[:2], x]),
    "global_norm t_list": lambda a, x: gc.global_norm(x),
    "global_norm t_list, an entry": lambda a, x: gc.global_norm([a.t, x]),
    "global_norm name": lambda a, x: gc.global_norm([a.t], x),
    "global_norm ord": lambda a, x: gc.global_norm([a.t], ord=x),
    "norm tensor": lambda a, x: gc.norm(x),
    "norm tensor, in a list": lambda a, x: gc.norm([x, 1.0]),
    "norm ord": lambda a, x: gc.norm(a.matrix, x),
    "norm axis": lambda a, x: gc.norm(a.matrix, 2, x),
    "norm keepdims": lambda a, x: gc.norm(a.matrix, 2, 0, x),
    "norm name": lambda a, x: gc.norm(a.matrix, name=x),
    "normalize tensor": lambda a, x: gc.normalize(x, out=a.out),
    "normalize ord": lambda a, x: gc.normalize(a.t, x, out=a.out),
    "normalize axis": lambda a, x: gc.normalize(a.t, 2, x, out=a.out),
    "normalize name": lambda a, x: gc.normalize(a.t, name=x, out=a.out),
    "normalize out": lambda a, x: gc.normalize(a.t, out=x),
    "IndexedSlices values": lambda a, x: gc.IndexedSlices(x, [0]),
    "IndexedSlices indices": lambda a, x: gc.IndexedSlices(a.matrix, x),
    "IndexedSlices dense_shape": lambda a, x: gc.IndexedSlices(a.matrix, [0, 1, 2], x),
}


class Acts:
    """An array-like that acts when it is converted."""

    def __init__(self, act: Callable[[], object], value: Any) -> None:
        self.act, self.value = act, value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.act()
        return self.value


class Stop(Exception):  # noqa: N818 (it is none)
    """The error of a hostile object; it has no text."""

    def __str__(self) -> str:
        raise RecursionError


def outcome(call: Call, arrays: Arrays, thing: Any) -> BaseException | None:
    """The error of a call; None if it gave a result. It is never one of ours that should not be, and with it nothing
    has been written.
    """
    before = [a.copy() for a in arrays.written()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            call(arrays, thing)
    except BaseException as error:  # noqa: BLE001 (any there is)
        kind = type(error)
        assert kind.__name__ not in {"PanicException", "SystemError", "AssertionError"}, repr(error)
        if not isinstance(error, Stop) and kind.__module__ in {"builtins", "numpy.exceptions"}:
            text = str(error)
            assert "internal" not in text, text
            assert len(text) < 1000, text[:2000]
        for array, copy in zip(arrays.written(), before, strict=True):
            assert array.shape == copy.shape
            assert array.tobytes() == copy.tobytes(), f"written before {error!r}"
        return error
    return None
