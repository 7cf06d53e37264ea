"""CUDA kernels on the CPU: a builder of shared libraries from their source, and a device made of such a library."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import numpy as np

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "python" / "gradclip" / "_cuda"
PARAMS = 480
MOST_THREADS = 256

_COMPILER = os.environ.get("CXX", "g++")
# -O1, because it compiles in half the time that -O2 takes, and the tests run as fast.
_FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-w"]
_FLAGS += ["-shared", "-fPIC", "-fvisibility=hidden"]
_SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1"]


def has_compiler() -> bool:
    """Whether kernels can be built here."""
    return shutil.which(_COMPILER) is not None


@functools.cache
def _cache() -> Path:
    path = Path(tempfile.gettempdir()) / f"gradclip-shim-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def build(source: str, names: list[str], sanitize: bool = False, portable: bool = False) -> ctypes.CDLL:
    """Compile `source`; its kernels `names` become the functions launch_0, launch_1 and so on.

    Threads change places by the C library's slow functions if `portable`, as they do on other CPUs than x86-64.
    """
    launchers = "".join(f"SHIM_LAUNCHER(launch_{i}, {name})\n" for i, name in enumerate(names))
    text = f'#include "cuda_shim.h"\n#line 1 "kernels"\n{source}\n{launchers}'
    flags = _FLAGS + (_SANITIZERS if sanitize else []) + (["-DSHIM_PORTABLE"] if portable else [])
    key = hashlib.sha256(repr((text, flags, (HERE / "cuda_shim.h").read_text())).encode()).hexdigest()[:32]
    library = _cache() / f"{key}.so"
    with library.with_suffix(".lock").open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process compiles, the others wait for it
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=_cache()) as folder:
                code, made = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
                code.write_text(text)
                command = [_COMPILER, *flags, f"-I{HERE}", "-o", str(made), str(code)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise RuntimeError(done.stderr[-10000:])
                made.replace(
                    library
                )  # at once, for this process may be killed, and others may build the same on Windows
    return ctypes.CDLL(str(library))


def sanitizer_environment() -> dict[str, str]:
    """The environment of a process that loads a library built with `sanitize`."""
    runtime = subprocess.run([_COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    options = "detect_leaks=0:detect_stack_use_after_return=0"
    return {**os.environ, "LD_PRELOAD": runtime.stdout.strip(), "ASAN_OPTIONS": options}


class Memory:
    """Memory of the device, of `nbytes` bytes from `ptr` on."""

    def __init__(self, nbytes: int) -> None:
        # An array of its own each, so that the sanitizer sees what lies beyond. It starts with rubbish: NaN,
        # or the largest of keys, so that a sum or a maximum of what nobody wrote is seen.
        self.array = np.full(max(nbytes, 1), 0xFF, np.uint8)
        self.ptr: int = self.array.ctypes.data


class ShimDevice:
    """A device, as the launcher uses it."""

    _lock = threading.Lock()  # of all, for a library runs one launch at a time

    def __init__(
        self,
        source: str,
        names: list[str],
        *,
        multiprocessors: int = 3,
        backward: bool = False,
        sanitize: bool = False,
        portable: bool = False,
    ) -> None:
        self.multiprocessors = multiprocessors
        self.backward = backward
        self.capturing = False
        self.launches: list[tuple[str, int, int]] = []
        self._names = list(names)
        self._library = build(source, self._names, sanitize, portable)

    @property
    def key(self) -> object:
        """Of the device and its stream."""
        return ("shim", id(self))

    def is_capturing(self) -> bool:
        """As a test has set it."""
        return self.capturing

    def alloc(self, nbytes: int) -> Memory:
        """Memory with any content."""
        return Memory(nbytes)

    def upload(self, words: np.ndarray) -> Memory:
        """Memory with this content."""
        assert words.dtype == np.int64
        memory = Memory(words.nbytes)
        memory.array[: words.nbytes] = np.ascontiguousarray(words).reshape(-1).view(np.uint8)
        return memory

    @functools.cache  # noqa: B019 (devices of tests live as long as these)
    def function(self, name_expression: str) -> tuple[str, ctypes._CFuncPtr]:
        """The kernel of that name."""
        function = self._library[f"launch_{self._names.index(name_expression)}"]
        function.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_int]
        function.restype = ctypes.c_char_p
        return name_expression, function

    def argument(self, params: np.ndarray) -> np.ndarray:
        """Return words as an argument of kernels."""
        return params

    def launch(self, function: tuple[str, ctypes._CFuncPtr], grid: int, block: int, params: np.ndarray) -> None:
        """Run a kernel."""
        name, call = function
        assert params.dtype == np.int64
        assert params.shape == (PARAMS,)
        assert params.flags.c_contiguous
        assert 0 < grid < 2**31, grid
        assert 0 < block <= MOST_THREADS, block
        self.launches.append((name, grid, block))
        with self._lock:
            error = call(params.ctypes.data, grid, block, int(self.backward))
        if error:
            raise RuntimeError(f"{name}: {error.decode()}")

    def download(self, memory: Memory, nbytes: int) -> bytes:
        """Return the content of memory."""
        return memory.array[:nbytes].tobytes()
