"""TensorFlow's clipping and norm operations for NumPy arrays.

The functions have TensorFlow's names, signatures and treatment of ``None``, and NumPy's
``out=``. They do not overflow or underflow, leave what needs no clipping as it is, bit
for bit, and give the same bits for any number of threads on any CPU. Arrays of CuPy are
computed on the GPU that they lie on; what is said of NumPy arrays holds for them.

>>> import numpy as np
>>> import gradclip as gc
>>> gradients = [np.array([3.0, 4.0], np.float32), None, np.array([12.0], np.float32)]
>>> clipped, norm = gc.clip_by_global_norm(gradients, 6.5)
>>> norm
13.0
>>> clipped
[array([1.5, 2. ], dtype=float32), None, array([6.], dtype=float32)]
"""

from gradclip._clip import clip_by_average_norm, clip_by_global_norm, clip_by_norm, clip_by_value
from gradclip._config import __version__, get_num_threads, set_num_threads, show_config, trim
from gradclip._norm import global_norm, norm, normalize
from gradclip._slices import IndexedSlices

__all__ = [
    "IndexedSlices",
    "__version__",
    "clip_by_average_norm",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "get_num_threads",
    "global_norm",
    "norm",
    "normalize",
    "set_num_threads",
    "show_config",
    "trim",
]
