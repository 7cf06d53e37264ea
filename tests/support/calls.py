"""Every function of the package as a function of one array, for tests that hold for all of them."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

import gradclip as gc
import numpy as np
import oracle

Call = Callable[[np.ndarray], list]

HAS_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


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


def _global_norm_of_one(t: Any, limit: float, out: Any) -> Any:
    return gc.clip_by_global_norm([t], limit, out=None if out is None else [out])[0][0]


WITH_OUT: dict[str, Callable[..., Any]] = {
    "clip_by_value": lambda t, out=None: gc.clip_by_value(t, -0.5, 0.75, out=out),
    "clip_by_value untouched": lambda t, out=None: gc.clip_by_value(t, -1e9, None, out=out),
    "clip_by_norm": lambda t, out=None: gc.clip_by_norm(t, 0.5, out=out),
    "clip_by_norm untouched": lambda t, out=None: gc.clip_by_norm(t, 1e9, out=out),
    "clip_by_norm of elements": lambda t, out=None: gc.clip_by_norm(t, 0.5, axes=(), out=out),
    "clip_by_norm of columns": lambda t, out=None: gc.clip_by_norm(t, 1.0, axes=0, out=out),
    "clip_by_norm of rows": lambda t, out=None: gc.clip_by_norm(t, 1.0, axes=-1, out=out),
    "clip_by_average_norm": lambda t, out=None: gc.clip_by_average_norm(t, 1e-6, out=out),
    "normalize": lambda t, out=None: gc.normalize(t, out=out)[0],
    "normalize of columns": lambda t, out=None: gc.normalize(t, axis=0, out=out)[0],
    "normalize of rows": lambda t, out=None: gc.normalize(t, axis=-1, out=out)[0],
    "normalize 1.5": lambda t, out=None: gc.normalize(t, 1.5, out=out)[0],
    "clip_by_global_norm": lambda t, out=None: _global_norm_of_one(t, 0.5, out),
    "clip_by_global_norm untouched": lambda t, out=None: _global_norm_of_one(t, 1e9, out),
}
"""The written result of every function with an `out`, of a tensor and an output."""


def suits(name: str, dtype: Any) -> bool:
    """Whether the call takes arrays of this dtype: complex numbers have no order, integers have only norms."""
    function = name.split(maxsplit=1)[0]
    if np.dtype(dtype).kind == "c":
        return function != "clip_by_value"
    return np.dtype(dtype).kind not in "biu" or function in {"norm", "global_norm"}


def calls_for(x: np.ndarray, *groups: dict[str, Call]) -> dict[str, Call]:
    """The calls that take x, of these (or of all, if none is named): by its dtype and its number of axes."""
    calls = {name: call for group in groups or (EVERY,) for name, call in group.items()}
    return {name: c for name, c in calls.items() if suits(name, x.dtype) and (x.ndim or name not in ALONG)}


def norms_in_use(t: np.ndarray, exact: np.ndarray, axes: Any, ord: Any = "euclidean") -> np.ndarray:
    """The norms that results are held to: for float64 gradclip's own where float64 holds them to full precision.

    Elsewhere the exact ones: for the narrow dtypes, whose results are rounded once from float64 (an error of 1e-14 of
    the norm does not show in them), and beyond float64's normal range, where values are scaled by the true norm.
    """
    if not oracle.is_wide(t.dtype) or exact.size == 0:
        return exact
    own = np.asarray(gc.norm(t[..., None], ord, -1) if axes == () else gc.norm(t, ord, axes, keepdims=True))
    own = own.reshape(exact.shape)
    usable = (own >= sys.float_info.min) & np.isfinite(own)
    return np.where(usable, oracle.as_exact(own), exact)


def cast(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Real numbers in this dtype. Complex ones get an imaginary part: equal for equal ones, finite for finite ones."""
    return (x + 1j * (0.25 - x * 0.75) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def looped(name: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like pytest's parametrize, but a loop in one test: thousands of small ones take longer to set up than to run."""
    values = list(values)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            for value in values:
                try:
                    test(*args, **kwargs, **{name: value})
                except Exception as error:  # noqa: PERF203
                    raise AssertionError(f"{name} = {value!r}") from error

        signature = inspect.signature(test)
        kept = [parameter for key, parameter in signature.parameters.items() if key != name]
        run.__signature__ = signature.replace(parameters=kept)
        return run

    return decorate
