"""NVIDIA's runtime compiler, which needs no GPU, through ctypes: the library that the package nvidia-cuda-nvrtc has."""

from __future__ import annotations

import ctypes
import functools
import sysconfig
from pathlib import Path

# The options given to CuPy, and those that it adds by itself.
OPTIONS = ["-std=c++17", "--fmad=false"]
OF_CUPY = ["-ftz=true", "--device-as-default-execution-space"]


class CompileError(RuntimeError):
    """The compiler's log."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The newest compiler there is; None where there is none."""
    for folder in sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}):
        found = sorted(p for p in Path(folder).glob("nvidia/*/lib/libnvrtc.so.*") if "alt" not in p.name)
        if found:
            return ctypes.CDLL(str(max(found, key=lambda path: int(path.name.split(".")[2]))))
    return None


def _loaded() -> ctypes.CDLL:
    lib = library()
    assert lib is not None, "no libnvrtc"
    return lib


def _check(status: int) -> None:
    assert status == 0, f"NVRTC's error {status}"


@functools.cache
def architectures() -> frozenset[int]:
    """The architectures that it compiles for, such as 90."""
    lib = _loaded()
    count = ctypes.c_int()
    _check(lib.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    found = (ctypes.c_int * count.value)()
    _check(lib.nvrtcGetSupportedArchs(found))
    return frozenset(found)


def _text(get_size: ctypes._CFuncPtr, get: ctypes._CFuncPtr, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(get_size(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(get(program, text))
    return text.raw


def _compiled(source: str, names: list[str], arch: str, kind: str) -> tuple[bytes, dict[str, str]]:
    lib = _loaded()
    program = ctypes.c_void_p()
    _check(lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None))
    try:
        for name in names:
            _check(lib.nvrtcAddNameExpression(program, name.encode()))
        options = [*OPTIONS, *OF_CUPY, f"-arch={arch}"]
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        if lib.nvrtcCompileProgram(program, len(options), array):
            log = _text(lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog, program)
            raise CompileError(log.rstrip(b"\0").decode())
        lowered = {}
        for name in names:
            found = ctypes.c_char_p()
            _check(lib.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(found)))
            assert found.value
            lowered[name] = found.value.decode()
        result = _text(getattr(lib, f"nvrtcGet{kind}Size"), getattr(lib, f"nvrtcGet{kind}"), program)
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))
    return result, lowered


def cubin(source: str, names: list[str], arch: int) -> tuple[bytes, dict[str, str]]:
    """Machine code for the kernels of these name expressions, and the names they have in it."""
    return _compiled(source, names, f"sm_{arch}", "CUBIN")


def ptx(source: str, names: list[str], arch: int) -> tuple[str, dict[str, str]]:
    """PTX for the kernels of these name expressions, and the names they have in it."""
    text, lowered = _compiled(source, names, f"compute_{arch}", "PTX")
    return text.rstrip(b"\0").decode(), lowered
