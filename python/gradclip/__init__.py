"""TensorFlow's clipping and norm operations for NumPy arrays.

The functions have TensorFlow's names, signatures and treatment of ``None``, and
NumPy's ``out=``. They neither overflow nor underflow. Values that need no clipping
keep their bits. Results have the same bits on every CPU and for any number of
threads. Functions that take CuPy arrays compute on their GPU. `norm`, `global_norm`
and four clippers keep dask arrays lazy.

Clip: `clip_by_value`, `clip_by_norm`, `clip_by_average_norm`, `clip_by_rms`,
`clip_by_global_norm`, `clip_by_norms`, `clip_by_weight_norm`,
`clip_examples_by_global_norm`, `clip_difference_by_global_norm`.

Norms: `norm`, `norms`, `global_norm`, `normalize`, and `NormState` for data in several
processes.

Errors for NaN and infinity: `NonFiniteError`.

Sparse tensors: `IndexedSlices`.

Settings: `get_num_threads`, `set_num_threads`, `trim`, `show_config`.

Modules with an import of their own: `gradclip.tree` (dicts and nested lists),
`gradclip.torch` (functions of ``torch.nn.utils``), `gradclip.limits` (rules that choose
``clip_norm``). The command ``gradclip norms FILE`` prints the norms of a file.

Examples
--------
>>> import numpy as np
>>> import gradclip as gc
>>> gradients = [np.array([3.0, 4.0], np.float32), None, np.array([12.0])]
>>> clipped, norm = gc.clip_by_global_norm(gradients, 6.5)
>>> norm
13.0
>>> clipped
[array([1.5, 2. ], dtype=float32), None, array([6.])]
"""

import sys as _sys
import typing as _typing

from gradclip import _hooks
from gradclip._clip import clip_by_average_norm, clip_by_global_norm, clip_by_norm, clip_by_rms, clip_by_value
from gradclip._clip_lists import (
    clip_by_norms,
    clip_by_weight_norm,
    clip_difference_by_global_norm,
    clip_examples_by_global_norm,
)
from gradclip._config import __version__, get_num_threads, set_num_threads, show_config, trim
from gradclip._nonfinite import NonFiniteError
from gradclip._norm import global_norm, norm, normalize, norms
from gradclip._norm_state import NormState
from gradclip._slices import IndexedSlices

_hooks.install()

__all__ = [
    "IndexedSlices",
    "NonFiniteError",
    "NormState",
    "__version__",
    "clip_by_average_norm",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_norms",
    "clip_by_rms",
    "clip_by_value",
    "clip_by_weight_norm",
    "clip_difference_by_global_norm",
    "clip_examples_by_global_norm",
    "get_num_threads",
    "global_norm",
    "norm",
    "normalize",
    "norms",
    "set_num_threads",
    "show_config",
    "trim",
]

# Users see this name in tracebacks, help(), error messages and pickles.
for _name in __all__:
    if _name != "__version__":
        globals()[_name].__module__ = __name__
del _name


# Type checkers take a module with such a function as one that has every name.
if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        advice = f"; write import gradclip.{name}" if name in {"limits", "torch", "tree"} else ""
        text = f"module {__name__!r} has no attribute {name!r}{advice}"
        raise AttributeError(text, name=name, obj=_sys.modules[__name__])
