"""Every function of the package as a function of one float array, for tests that hold for all of them."""

from collections.abc import Callable

import gradclip as gc
import numpy as np

Call = Callable[[np.ndarray], list]


def _global(x: np.ndarray) -> list:
    clipped, norm = gc.clip_by_global_norm([x, None, x[..., :1] if x.ndim else x], 0.5)
    assert clipped[1] is None
    return [clipped[0], clipped[2], norm]


WHOLE: dict[str, Call] = {
    "clip_by_value": lambda x: [gc.clip_by_value(x, -0.5, 0.75)],
    "clip_by_norm": lambda x: [gc.clip_by_norm(x, 0.5)],
    "clip_by_norm of elements": lambda x: [gc.clip_by_norm(x, 0.5, axes=())],
    "clip_by_average_norm": lambda x: [gc.clip_by_average_norm(x, 1e-6)],
    "clip_by_global_norm": _global,
    "global_norm": lambda x: [gc.global_norm([x, x])],
    "norm": lambda x: [gc.norm(x)],
    "norm 1": lambda x: [gc.norm(x, 1)],
    "norm inf": lambda x: [gc.norm(x, np.inf)],
    "normalize": lambda x: [*gc.normalize(x)],
}
"""Calls that take any shape."""

POWERS: dict[str, Call] = {
    "norm 1.5": lambda x: [gc.norm(x, 1.5)],
    "norm 3": lambda x: [gc.norm(x, 3)],
    "norm 0.5": lambda x: [gc.norm(x, 0.5)],
    "global_norm 3.7": lambda x: [gc.global_norm([x, x], ord=3.7)],
    "normalize 2.5": lambda x: [*gc.normalize(x, 2.5)],
}
"""The slower ones, with a power of every element."""

ALONG: dict[str, Call] = {
    "clip_by_norm of rows": lambda x: [gc.clip_by_norm(x, 0.5, axes=-1)],
    "clip_by_norm of columns": lambda x: [gc.clip_by_norm(x, 0.5, axes=0)],
    "norm of rows": lambda x: [gc.norm(x, axis=-1)],
    "norm of columns": lambda x: [gc.norm(x, axis=0)],
    "norm 1 of rows": lambda x: [gc.norm(x, 1, axis=-1)],
    "norm inf of columns": lambda x: [gc.norm(x, np.inf, axis=0, keepdims=True)],
    "norm 3.7 of columns": lambda x: [gc.norm(x, 3.7, axis=0)],
    "normalize of rows": lambda x: [*gc.normalize(x, axis=-1)],
    "normalize of columns": lambda x: [*gc.normalize(x, axis=0)],
}
"""Calls along one axis, for at least one dimension."""

EVERY = {**WHOLE, **POWERS, **ALONG}
