"""Floating-point control that other code of the process has changed: flushed subnormals, another rounding, traps.

`torch.set_flush_denormal(True)` and libraries that were linked with `-ffast-math` flush subnormal numbers to zero. The
bits of every result stay those of the default control, and the caller's control stays as it was. Each script runs in an
interpreter of its own, whose worker threads start under the changed control.
"""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, hashlib, platform, sys
import gradclip as gc
import numpy as np

libm = ctypes.CDLL("libm.so.6")
arm = platform.machine() == "aarch64"
# fenv_t of glibc: 28 bytes for x87, then MXCSR; on aarch64 FPCR, then FPSR.
size, offset = (8, 0) if arm else (32, 28)
changes = {
    "default": 0,
    "flush": 1 << 24 if arm else 0x8040,
    "upward": 1 << 22 if arm else 0x4000,
    "traps": 0 if arm else 0x680,  # unmasks invalid, divide-by-zero and overflow; most ARM CPUs have no traps
}


def environment():
    found = ctypes.create_string_buffer(size)
    assert libm.fegetenv(found) == 0
    return found.raw


flags = 0 if arm else 0x3F  # of past exceptions

before = environment()
control = int.from_bytes(before[offset : offset + 4], "little") ^ changes[sys.argv[1]]
changed = before[:offset] + control.to_bytes(4, "little") + before[offset + 4 :]

rng = np.random.default_rng(0)
tiny = (rng.standard_normal(3_000_000) * 1e-40).astype("f4")  # 12 MB: shared between threads
normal = rng.standard_normal(3_000_000).astype("f4")
wide = np.array([5e-324, 1e-310, -3e-320, 1e-300])
odd = np.array([np.inf, 1.0, np.nan, 0.0, 1e308])
rows = rng.standard_normal((1000, 7)) * 1e-312
examples = [rng.standard_normal((8, 1000)).astype("f4")]
sums = [gc.NormState.of([wide]), gc.NormState.of([normal])]
calls = [
    lambda: gc.global_norm([tiny]),
    lambda: gc.norm(tiny, 3),
    lambda: gc.clip_by_norm(tiny, 1e-38),
    lambda: gc.clip_by_norm(normal, 1.0),
    lambda: gc.clip_by_norm(normal.astype("f2"), 1.0),
    lambda: gc.clip_by_norm(normal, 0.3, strict=True),
    lambda: gc.clip_by_global_norm([wide, tiny], 1e-321),
    lambda: gc.clip_by_global_norm([odd, wide], 1.0),
    lambda: gc.clip_by_value(wide, -1e-310, 1e-311),
    lambda: gc.clip_by_norm(rows, 1e-311, axes=1),
    lambda: gc.clip_by_norm(rows, 1e-311, axes=0),
    lambda: gc.normalize(rows, axis=1),
    lambda: gc.clip_by_norms([normal, wide], 0.1),
    lambda: gc.clip_by_weight_norm([normal], [tiny], 0.1),
    lambda: gc.clip_examples_by_global_norm(examples, 0.1),
    lambda: gc.clip_difference_by_global_norm([wide], [wide[::-1]], 1e-322),
    lambda: gc.norms([odd, wide, tiny]),
    lambda: (sums[0] + sums[1]).norm(),
    lambda: sums[0].norm(),
    lambda: gc.NormState.of([wide, tiny], reproducible=True).norm(),
    lambda: gc.NormState.of([normal.astype(np.float64)], reproducible=True).norm(),
]


def run(call):
    assert libm.fesetenv(changed) == 0
    try:
        result = call()
        kept = environment()
    finally:
        libm.fesetenv(before)
    found = int.from_bytes(kept[offset : offset + 4], "little")
    assert (found ^ control) & ~flags == 0
    return result


def words(result):
    if isinstance(result, (list, tuple)):
        return b"".join(map(words, result))
    return np.asarray(result).tobytes()


gc.set_num_threads(3)
results = [run(call) for call in calls]
print([hashlib.sha256(words(result)).hexdigest()[:16] for result in results])
"""


def results(change: str) -> str:
    """Return digests of results of calls under a changed control."""
    command = [sys.executable, "-c", SCRIPT, change]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout


@pytest.mark.skipif(
    not (platform.libc_ver()[0] == "glibc" and platform.machine() in ("x86_64", "aarch64")),
    reason="needs the layout of glibc's fenv_t",
)
@pytest.mark.parametrize("change", ["flush", "upward", "traps"])
def test_results_and_control_stay_as_they_are(change: str) -> None:
    assert results(change) == results("default")
