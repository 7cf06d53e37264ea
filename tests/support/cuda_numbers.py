"""The dtypes of the CUDA kernels, and the kernels that test their arithmetic."""

import cuda_shim
import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# by the code that the kernels know them by
DTYPES = [np.dtype(x) if x != "bfloat16" else BFLOAT16 for x in (
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
)]  # fmt: skip
FLOATS = DTYPES[:4]
COMPLEX = DTYPES[4:6]
INTEGERS = DTYPES[6:14]
_NAMES = ["f16", "bf16", "float", "double", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
NAMES = dict(zip(FLOATS + INTEGERS, _NAMES, strict=True))
# digits after the first one, and the largest exponent
FORMATS = dict(zip(FLOATS, [(10, 15), (7, 127), (23, 127), (52, 1023)], strict=True))

KERNELS = [
    *(f"test_{kind}<{NAMES[t]}>" for kind in ("widen", "narrow", "scaled", "clipped_magnitude") for t in FLOATS),
    *(f"test_clipped<{NAMES[t]}>" for t in FLOATS + INTEGERS),
    *(f"test_{kind}" for kind in ("convert", "element", "dtypes", "norm", "total", "power")),
]


def kernel_source() -> str:
    return (cuda_shim.SOURCES / "numbers.cuh").read_text() + (cuda_shim.HERE / "cuda_numbers.cu").read_text()
