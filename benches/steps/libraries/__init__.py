"""The libraries, by the names that the tables have."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from steps.operations import NEW

if TYPE_CHECKING:
    from steps.libraries.base import Library
    from steps.scenarios import Scenario

OURS, ONE_THREAD, POOL_OFF = "gradclip", "gradclip, 1 thread", "gradclip, pool off"
NUMPY = "NumPy"


@dataclass(frozen=True)
class Entry:
    """The module of a library, and its environment."""

    module: str
    kind: str
    needs: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    #: Where its results can go; nowhere named: anywhere.
    modes: tuple[str, ...] = ()

    def can(self, scenario: Scenario) -> bool:
        """Return whether it can take part."""
        return not self.modes or scenario.operation.mode in self.modes


#: On the CPU only, even if there is a GPU: the arrays are in its memory.
QUIET = {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}

LIBRARIES = {
    NUMPY: Entry("by_numpy", "NumPy", ("numpy",)),
    "PyTorch": Entry("by_torch", "Torch", ("torch",), QUIET),
    "TensorFlow": Entry("by_tensorflow", "TensorFlow", ("tensorflow",), QUIET, modes=(NEW,)),
    "optax": Entry("by_optax", "Optax", ("jax", "optax"), QUIET, modes=(NEW,)),
    OURS: Entry("by_gradclip", "Gradclip", ("gradclip",)),
    ONE_THREAD: Entry("by_gradclip", "Gradclip", ("gradclip",), {"GRADCLIP_NUM_THREADS": "1"}),
    POOL_OFF: Entry("by_gradclip", "Gradclip", ("gradclip",), {"GRADCLIP_POOL_BYTES": "0"}),
}
VARIANTS = (ONE_THREAD, POOL_OFF)
#: The libraries that run by default: TensorFlow and JAX take long to import.
USUAL = (NUMPY, "PyTorch", OURS, *VARIANTS)
#: The libraries of a quick run: those that a plain environment has.
QUICK = (NUMPY, OURS)


def is_peer(name: str) -> bool:
    """Return whether a library is a rival, and not a variant of gradclip."""
    return name != OURS and name not in VARIANTS


def missing(name: str) -> list[str]:
    """Name the packages that a library needs and that are not installed."""
    return [need for need in LIBRARIES[name].needs if importlib.util.find_spec(need) is None]


def load(name: str) -> Library:
    """Import a library."""
    entry = LIBRARIES[name]
    found: Library = getattr(importlib.import_module(f"steps.libraries.{entry.module}"), entry.kind)()
    return found
