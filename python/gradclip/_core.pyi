# The compiled module, by hand; `make lint` holds it against the real one with mypy.stubtest.
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from gradclip._types import AnyResult, Array

__all__ = [
    "MAX_THREADS",
    "__version__",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_norms",
    "clip_by_value",
    "clip_by_weight_norm",
    "clip_difference_by_global_norm",
    "clip_examples_by_global_norm",
    "config",
    "exact_sum",
    "exiting",
    "forget_settings",
    "forked",
    "get_num_threads",
    "global_norm",
    "isa_levels",
    "keep_apart",
    "memory_of_process",
    "merge_power_sums",
    "norm",
    "normalize",
    "norms",
    "power_sums",
    "power_sums_along",
    "roots_of_power_sums",
    "set_isa",
    "set_num_threads",
    "sum_rows",
    "trim",
    "use_team",
]

MAX_THREADS: int
__version__: str

class _Config(TypedDict):
    isa: str
    clip_by_value_dtypes: list[str]
    clip_by_norm_dtypes: list[str]
    norm_dtypes: list[str]
    memory_held: int
    memory_limit: int

def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: Any, out: Any) -> AnyResult: ...

# `function`: clip_by_norm, clip_by_rms or clip_by_average_norm.
def clip_by_norm(
    function: str,
    t: Any,
    limit: Any,
    axes: Any,
    name: Any,
    nonfinite: Any,
    strict: Any,
    out: Any,
    share: Any,
) -> AnyResult: ...
def clip_by_global_norm(
    t_list: Any,
    clip_norm: Any,
    use_norm: Any,
    name: Any,
    ord: Any,
    nonfinite: Any,
    strict: Any,
    integers: Any,
    out: Any,
    share: Any,
) -> tuple[list[Any], float]: ...
def clip_difference_by_global_norm(
    t_list: Any,
    base_list: Any,
    clip_norm: Any,
    use_norm: Any,
    name: Any,
    ord: Any,
    nonfinite: Any,
    integers: Any,
    out: Any,
) -> tuple[list[Any], float]: ...
def clip_examples_by_global_norm(
    t_list: Any, clip_norm: Any, name: Any, reduce: Any, nonfinite: Any, strict: Any, out: Any
) -> tuple[list[Any], npt.NDArray[np.float64]]: ...
def clip_by_norms(
    t_list: Any, clip_norms: Any, name: Any, ord: Any, nonfinite: Any, out: Any
) -> tuple[list[Any], npt.NDArray[np.float64]]: ...
def clip_by_weight_norm(
    t_list: Any, weights: Any, clipping: Any, name: Any, eps: Any, unit_axis: Any, out: Any
) -> list[Any]: ...
def global_norm(t_list: Any, name: Any, ord: Any, nonfinite: Any, integers: Any) -> float: ...
def norms(t_list: Any, name: Any, ord: Any) -> npt.NDArray[np.float64]: ...
def norm(tensor: Any, ord: Any, axis: Any, keepdims: Any, name: Any) -> Any: ...
def normalize(tensor: Any, ord: Any, axis: Any, name: Any, out: Any) -> tuple[Array, Array]: ...
def forget_settings() -> None: ...
def forked() -> None: ...
def exiting() -> None: ...
def get_num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
def trim() -> int: ...

# Takes the address of GOMP_parallel, or 0 for none. Returns the previous address.
def use_team(address: int) -> int: ...

# Group i of the sums has the rows `order[bounds[i]:bounds[i + 1]]` of a matrix of floats.
def sum_rows(rows: Array, order: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]) -> Array: ...
def config() -> _Config: ...
def isa_levels() -> list[str]: ...
def memory_of_process(root: Any) -> int | None: ...
def set_isa(name: str | None) -> None: ...

# Norms that several processes share. `share` of the clippers above is None, or returns an array of
# `value, exponent`, one for each slice, and the number of elements of a slice.
def power_sums(
    function: str, t_list: Any, name: Any, ord: Any, keeps_integers: bool, on_device: bool, each: bool = False
) -> tuple[npt.NDArray[np.float64], int]: ...
def power_sums_along(function: str, t: Any, name: Any, axes: Any, ord: Any) -> tuple[npt.NDArray[np.float64], int]: ...
def merge_power_sums(rows: npt.NDArray[np.float64], ord: float) -> npt.NDArray[np.float64]: ...
def roots_of_power_sums(sums: npt.NDArray[np.float64], ord: float) -> npt.NDArray[np.float64]: ...
def exact_sum(function: str, t_list: Any, name: Any, ord: float, keeps_integers: bool) -> tuple[bytes, float, int]: ...

# Each array: address, bytes of an element, shape, strides in bytes. Returns two outputs that share a byte, or twice one
# whose elements do, if there are any; and the inputs to be copied before anything is written. Input i may be the very
# array that is output i.
def keep_apart(
    outputs: Sequence[tuple[int, int, Sequence[int], Sequence[int]]],
    inputs: Sequence[tuple[int, int, Sequence[int], Sequence[int]]],
) -> tuple[tuple[int, int] | None, list[int]]: ...
