"""A failed allocation is a MemoryError, whichever allocation it is, and no output is half written.

Scratch space, lists and outputs: every allocation whose size is that of the data fails once in a process of its own, by
way of a `malloc` that is told to. (Where not even a few dozen bytes can be had, Rust ends the process: see
docs/reliability.md.)
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import extent
import gradclip as gc
import numpy as np
import pytest
from calls import HAS_GIL

# ---- sizes that no machine has


HUGE = np.broadcast_to(np.float32(1), (2**20, 2**30))  # 4 PiB as an output


@pytest.mark.parametrize(
    "call",
    [
        lambda: gc.clip_by_value(HUGE, 0, 0.5),
        lambda: gc.clip_by_value(np.broadcast_to(np.int8(1), (2**62,)), 0, 0),
        lambda: gc.clip_by_norm(HUGE, 1.0, axes=()),
        lambda: gc.clip_by_norm(HUGE, 1.0, axes=0),
        lambda: gc.normalize(HUGE, axis=1),
        lambda: gc.clip_by_global_norm([np.ones(3), HUGE], 1.0, use_norm=2.0),
        lambda: gc.norm(np.broadcast_to(np.float32(1), (2**58, 1)), axis=1),
        lambda: gc.norm(np.broadcast_to(np.float32(1), (1, 2**58)), axis=0),
    ],
)
def test_an_output_that_no_machine_has_is_a_memory_error(call):
    with pytest.raises(MemoryError):
        call()


# ---- allocations that fail, in turn

SCRIPT = """
import collections, ctypes, os, signal, sys
import gradclip as gc
import ml_dtypes
import numpy as np

lib = ctypes.CDLL(None)
lib.fail_from.argtypes = [ctypes.c_long, ctypes.c_size_t]
lib.fail_no_more.restype = ctypes.c_long
gc.set_num_threads(3)
LEAST = 4096

rng = np.random.default_rng(0)
x = rng.standard_normal((1000, 1000)).astype(np.float32)
large = rng.standard_normal((1000, 1100))  # shared between threads
narrow, half = x.astype(ml_dtypes.bfloat16), x.astype(np.float16)
z = (x[:500] + 1j * x[:500]).astype(np.complex64)
tall = rng.standard_normal((30_000, 3))
wide = np.ascontiguousarray(tall.T)
integers = np.arange(10**5)
short, own = rng.standard_normal((2, 1000, 3))
many, rows = list(short), list(own)
columns = [x[:, i] for i in range(1000)]
swapped = x.astype(">f4")
m = x.copy()
outs = [m[:, i] for i in range(1000)]
m2 = large.copy()
both, both_outs, limits = [x, large], [m, m2], np.ones(1000)
slices = gc.IndexedSlices(x, np.arange(1000))

CALLS = {
    "clip_by_value": lambda: gc.clip_by_value(x, -1, 1),
    "clip_by_value, arrays": lambda: gc.clip_by_value(x, -np.ones(1000, np.float32), x),
    "clip_by_value, integers": lambda: gc.clip_by_value(integers, 3, 2**70),
    "norm": lambda: gc.norm(x),
    "norm, p": lambda: gc.norm(x, 3.7),
    "norm, rows": lambda: gc.norm(tall, axis=1),
    "norm, columns": lambda: gc.norm(tall, axis=0),
    "norm, wide columns": lambda: gc.norm(wide, axis=0),
    "norm, wide columns, p": lambda: gc.norm(wide, 3.7, axis=0),
    "norm, complex rows": lambda: gc.norm(z, axis=1),
    "norm, complex columns": lambda: gc.norm(z, 1, axis=0),
    "norm, matrices": lambda: [gc.norm(x, p, (0, 1)) for p in (1, np.inf, "fro")],
    "normalize": lambda: gc.normalize(x),
    "normalize, rows": lambda: gc.normalize(tall, axis=1),
    "normalize, swapped": lambda: gc.normalize(swapped, axis=0),
    "clip_by_norm": lambda: gc.clip_by_norm(x, 1.0),
    "clip_by_norm, threads": lambda: gc.clip_by_norm(large, 1.0),
    "clip_by_norm, rows": lambda: gc.clip_by_norm(tall, 1.0, 1),
    "clip_by_norm, many rows": lambda: gc.clip_by_norm(large, 1.0, 1),
    "clip_by_norm, columns": lambda: gc.clip_by_norm(tall, 1.0, 0),
    "clip_by_norm, many columns": lambda: gc.clip_by_norm(large, 1.0, 0),
    "clip_by_norm, wide columns": lambda: gc.clip_by_norm(wide, 1.0, 0),
    "clip_by_norm, float16": lambda: gc.clip_by_norm(half, 1.0, 0),
    "clip_by_norm, bfloat16": lambda: gc.clip_by_norm(narrow, 1.0, 1),
    "clip_by_norm, complex": lambda: gc.clip_by_norm(z, 1.0, 0),
    "clip_by_norm, each": lambda: gc.clip_by_norm(z[:20], 1.0, ()),
    "clip_by_norm, overlap": lambda: gc.clip_by_norm(m[1:], 1.0, out=m[:-1]),
    "clip_by_norm, IndexedSlices": lambda: gc.clip_by_norm(slices, 1.0),
    "clip_by_average_norm": lambda: gc.clip_by_average_norm(x.T[::2], 1e-9),
    "global_norm": lambda: gc.global_norm(many),
    "global_norm, columns": lambda: gc.global_norm(columns),
    "clip_by_global_norm": lambda: gc.clip_by_global_norm(many, 1.0),
    "clip_by_global_norm, tuple": lambda: gc.clip_by_global_norm(tuple(many), 1.0),
    "clip_by_global_norm, in place": lambda: gc.clip_by_global_norm(rows, 1.0, use_norm=2.0, out=rows),
    "clip_by_global_norm, columns": lambda: gc.clip_by_global_norm(columns, 1.0),
    "clip_by_global_norm, columns in place": lambda: gc.clip_by_global_norm(outs, 1.0, out=outs),
    "clip_by_global_norm, columns out": lambda: gc.clip_by_global_norm(columns, 1.0, out=outs),
    "clip_by_global_norm, mixed": lambda: gc.clip_by_global_norm([x, None, narrow, z, swapped], 1.0),
    "clip_by_global_norm, sequence": lambda: gc.clip_by_global_norm(collections.deque(many), 1.0),
    "clip_by_norms": lambda: gc.clip_by_norms(many, limits),
    "clip_by_norms, out": lambda: gc.clip_by_norms(both, limits[:2], out=both_outs),
    "clip_by_norms, columns out": lambda: gc.clip_by_norms(columns, limits, out=outs),
    "clip_by_weight_norm": lambda: gc.clip_by_weight_norm(both, both, 0.01, out=both_outs),
    "clip_difference": lambda: gc.clip_difference_by_global_norm(both, [x[::-1], large[::-1]], 1.0, out=both_outs),
    "clip_examples": lambda: gc.clip_examples_by_global_norm(both, 1.0, reduce=None, out=both_outs),
    "clip_examples, limits": lambda: gc.clip_examples_by_global_norm(both, limits[:2], reduce=None, out=both_outs),
    "clip_examples, sum": lambda: gc.clip_examples_by_global_norm(both, 1.0, reduce="sum", out=[m[0], m2[0]]),
    "clip_by_global_norm, IndexedSlices": lambda: gc.clip_by_global_norm([slices] * 10, 1.0),
}

INPUTS = [x, large, narrow, half, z, tall, wide, integers, swapped, short]
OUTPUTS = [*both_outs, own]
before = [array.copy() for array in INPUTS]
# A bytewise comparison: NumPy's takes as long as all the rest.
lib.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
is_same = lambda a, b: lib.memcmp(a.ctypes.data, b.ctypes.data, a.nbytes) == 0

failed = 0
# A part of the calls under the profile `fast`.
for name, call in list(CALLS.items())[:: int(sys.argv[1])]:
    call()  # imports, caches
    written = [out.copy() for out in OUTPUTS]
    n = 0
    while n < 200:
        n += 1
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            lib.fail_from(n, LEAST)
            try:
                call()
                raised = False
            except MemoryError:
                raised = True
            except BaseException as error:
                lib.fail_no_more()
                print(f"{name}: allocation {n}: {type(error).__name__}: {error}", flush=True)
                os._exit(1)
            allocations = lib.fail_no_more()
            if raised and not all(map(is_same, [*INPUTS, *OUTPUTS], [*before, *written])):
                print(f"{name}: allocation {n}: something was written", flush=True)
                os._exit(1)
            os._exit(2 if allocations < n else 0)
        status = os.waitpid(child, 0)[1]
        if status == 2 << 8:
            break
        if os.WIFSIGNALED(status):
            print(f"{name}: allocation {n}: signal {os.WTERMSIG(status)}", flush=True)
        failed += 1
    else:
        print(f"{name}: more than 200 allocations of {LEAST} bytes or more", flush=True)
print("failures tried:", failed)
"""


@pytest.fixture(scope="module")
def failing_malloc(tmp_path_factory):
    compiler = os.environ.get("CC") or shutil.which("cc")
    assert compiler, "cargo needs a C compiler too"
    library = tmp_path_factory.mktemp("malloc") / "failing_malloc.so"
    source = Path(__file__).with_name("failing_malloc.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.mark.skipif(sys.platform != "linux", reason="`malloc` is replaced in the way of the GNU C library")
@pytest.mark.timeout(300)
def test_every_allocation_of_4_kib_may_fail(failing_malloc):
    """No failure panics, aborts, or leaves an output half written."""
    variables = os.environ | {"LD_PRELOAD": str(failing_malloc), "RUST_BACKTRACE": "0"}
    if HAS_GIL:  # without it Python has an allocator of its own, and no other
        variables["PYTHONMALLOC"] = "malloc"
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, str(extent.amount(3, 1))]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=280, check=False)
    *wrong, last = done.stdout.strip().splitlines() or [done.stderr]
    assert done.returncode == 0, done.stderr
    assert not wrong, "\n".join(wrong) + "\n" + done.stderr[-2000:]
    assert int(last.removeprefix("failures tried:")) > 80, last
