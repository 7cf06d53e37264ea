"""The CUDA kernels, compiled by NVIDIA's compiler for all kinds of GPU, as CuPy would do it. No GPU is needed."""

from __future__ import annotations

import functools
import re

import nvrtc
import pytest
from cuda_numbers import KERNELS, kernel_source
from gradclip._cuda import _device
from kernel_names import instantiations

pytestmark = pytest.mark.skipif(
    nvrtc.library() is None, reason="neither nvidia-cuda-nvrtc nor nvidia-cuda-nvrtc-cu12 is installed"
)

ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]


@pytest.fixture(params=ARCHITECTURES)
def arch(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    if found not in nvrtc.architectures():
        pytest.skip(f"this NVRTC does not know sm_{found}")
    return found


@functools.cache
def instructions(source: str, *names: str) -> list[str]:
    """The instructions of PTX, without operands."""
    text, _ = nvrtc.ptx(source, list(names), 75)
    lines = (re.sub(r"^@!?%p\d+", "", line.strip()).split() for line in text.splitlines())
    return [words[0].rstrip(";") for words in lines if words]


#: The kernels of the package, and those that test its arithmetic.
SOURCES = {
    "package": (_device.source, instantiations),
    "arithmetic": (kernel_source, lambda: KERNELS),
}


@pytest.fixture(params=SOURCES)
def kernels(request: pytest.FixtureRequest) -> tuple[str, list[str]]:
    source, names = SOURCES[request.param]
    return source(), names()


def test_every_kernel_has_machine_code(kernels: tuple[str, list[str]], arch: int) -> None:
    source, names = kernels
    code, lowered = nvrtc.cubin(source, names, arch)
    assert code.startswith(b"\x7fELF")
    assert len(set(lowered.values())) == len(names)
    for name in lowered.values():
        assert b".text." + name.encode() in code, name


def test_nothing_is_fused(kernels: tuple[str, list[str]]) -> None:
    # Divisions and square roots are instructions here; what is fused in them later rounds as IEEE 754 says.
    used = instructions(kernels[0], *kernels[1])
    assert {"mul.rn.f64", "div.rn.f64", "sqrt.rn.f64"} <= set(used)
    assert not [name for name in used if name.startswith(("fma", "mad")) and name.endswith(("f32", "f64"))]


def test_nothing_flushes_subnormals(kernels: tuple[str, list[str]]) -> None:
    used = instructions(kernels[0], *kernels[1])
    assert {"cvt.f64.f32", "cvt.rn.f32.f64"} <= set(used)
    assert not [name for name in used if ".ftz" in name]


@pytest.mark.parametrize("name", ["float", "bf16"])
def test_arrays_move_16_bytes_at_a_time(name: str) -> None:
    found = re.findall(
        r"^\s*(ld|st)\.(?:global\.)?v4\.\w32 ", nvrtc.ptx(_device.source(), [f"scale<{name}>"], 75)[0], re.MULTILINE
    )
    text = " ".join(found)
    assert "ld ld ld ld" in text, text  # all under way before the first is stored
    assert found.count("ld") == found.count("st")


def test_what_these_tests_look_for_is_there_in_careless_code() -> None:
    source = """
    struct Params { double* x; float* y; };
    __global__ void careless(const __grid_constant__ Params p) { p.x[0] = p.y[0]; p.y[1] = (float)p.x[1]; }
    __global__ void fused(const __grid_constant__ Params p) { p.x[0] = fma(p.x[1], p.x[2], p.x[3]); }
    """
    used = instructions(source, "careless", "fused")
    assert {"cvt.ftz.f64.f32", "cvt.rn.ftz.f32.f64", "fma.rn.f64"} <= set(used)


def test_an_error_says_what_is_wrong() -> None:
    with pytest.raises(nvrtc.CompileError, match="no_such_thing"):
        nvrtc.cubin("__global__ void wrong() { no_such_thing(); }", ["wrong"], 75)
