"""The functions for CuPy arrays, on the device that these lie on. The compiled part hands such calls on to here.

Arguments are checked by the compiled part's rules, in the order of the signature. Only `norm_on_host` waits for the
device. In all other calls the norm stays there, and a kernel decides what to scale.
"""

from gradclip._cuda._clip import clip_by_average_norm, clip_by_norm, clip_by_value
from gradclip._cuda._global_norm import clip_by_global_norm, global_norm, norm_on_host
from gradclip._cuda._norm import norm, normalize
from gradclip._cuda._queue import release

__all__ = [
    "clip_by_average_norm",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "global_norm",
    "norm",
    "norm_on_host",
    "normalize",
    "release",
]
