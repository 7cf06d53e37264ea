# The compiled module, by hand; `make lint` holds it against the real one with mypy.stubtest.
from typing import Any, TypedDict

from gradclip._types import Array

__all__ = [
    "__version__",
    "clip_by_average_norm",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "config",
    "exiting",
    "forked",
    "get_num_threads",
    "global_norm",
    "isa_levels",
    "memory_of_process",
    "norm",
    "normalize",
    "set_isa",
    "set_num_threads",
    "trim",
]

__version__: str

class _Config(TypedDict):
    version: str
    threads: int
    isa: str
    isa_levels: list[str]
    clip_by_value_dtypes: list[str]
    clip_by_norm_dtypes: list[str]
    norm_dtypes: list[str]
    memory_held: int
    memory_limit: int

def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: Any, out: Any) -> Any: ...
def clip_by_norm(t: Any, clip_norm: Any, axes: Any, name: Any, out: Any) -> Any: ...
def clip_by_average_norm(t: Any, clip_norm: Any, name: Any, out: Any) -> Array: ...
def clip_by_global_norm(
    t_list: Any, clip_norm: Any, use_norm: Any, name: Any, ord: Any, out: Any
) -> tuple[list[Any], float]: ...
def global_norm(t_list: Any, name: Any, ord: Any) -> float: ...
def norm(tensor: Any, ord: Any, axis: Any, keepdims: Any, name: Any) -> Any: ...
def normalize(tensor: Any, ord: Any, axis: Any, name: Any, out: Any) -> tuple[Array, Array]: ...
def forked() -> None: ...
def exiting() -> None: ...
def get_num_threads() -> int: ...
def set_num_threads(n: Any) -> None: ...
def trim() -> int: ...
def config() -> _Config: ...
def isa_levels() -> list[str]: ...
def memory_of_process(root: Any) -> int | None: ...
def set_isa(name: str | None) -> None: ...
