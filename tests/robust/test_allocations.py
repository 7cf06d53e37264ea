"""Memory: a call keeps none, and allocates its outputs but no copy of an array."""

import gc
import subprocess
import sys
import textwrap
import tracemalloc

import gradclip
import numpy as np
import pytest
from calls import HAS_GIL

# The tests count the allocations of the whole process.
pytestmark = pytest.mark.thread_unsafe
KIB, MIB = 1 << 10, 1 << 20


def calls():
    """Name -> a call, on arrays of one kilobyte; and again on thirty-two of them."""
    rng = np.random.default_rng(1)
    many = [rng.standard_normal(128) for _ in range(32)]
    x, outs = many[0], [np.empty(128) for _ in many]
    strided = np.zeros((128, 2))[:, 0]
    return {
        "clip_by_value": lambda: gradclip.clip_by_value(x, -0.5, 0.5),
        "clip_by_value into": lambda: gradclip.clip_by_value(x, -0.5, 0.5, out=outs[0]),
        "clip_by_norm": lambda: gradclip.clip_by_norm(x, 0.5),
        "clip_by_norm into": lambda: gradclip.clip_by_norm(x, 0.5, out=outs[0]),
        "clip_by_norm of float16": lambda: gradclip.clip_by_norm(x.astype(np.float16), 0.5),
        "clip_by_norm by axis": lambda: gradclip.clip_by_norm(x.reshape(8, 16), 0.5, axes=1),
        "clip_by_norm strided": lambda: gradclip.clip_by_norm(strided, 0.5),
        "clip_by_average_norm": lambda: gradclip.clip_by_average_norm(x, 0.5),
        "clip_by_global_norm": lambda: gradclip.clip_by_global_norm(many, 0.5),
        "clip_by_global_norm with None": lambda: gradclip.clip_by_global_norm([None, *many], 0.5),
        "clip_by_global_norm into": lambda: gradclip.clip_by_global_norm(many, 0.5, out=outs),
        "clip_by_global_norm in place": lambda: gradclip.clip_by_global_norm(outs, 0.5, out=outs),
        "global_norm": lambda: gradclip.global_norm(many),
        "norm": lambda: gradclip.norm(x),
        "norm by axis": lambda: gradclip.norm(x.reshape(8, 16), axis=0),
        "normalize": lambda: gradclip.normalize(x),
        "clip_by_norm strict": lambda: gradclip.clip_by_norm(x, 0.5, strict=True),
        "clip_examples_by_global_norm": lambda: gradclip.clip_examples_by_global_norm(many, 0.5),
        "clip_examples_by_global_norm, each": lambda: gradclip.clip_examples_by_global_norm(many, 0.5, reduce=None),
        "clip_difference_by_global_norm": lambda: gradclip.clip_difference_by_global_norm(many, many[::-1], 0.5),
        "clip_difference_by_global_norm into": lambda: gradclip.clip_difference_by_global_norm(
            many, outs, 0.5, out=outs
        ),
        "an error": lambda: refused(x),
    }


def refused(x):
    # Not with `pytest.raises`, which keeps some of the objects it makes.
    try:
        gradclip.clip_by_norm(x, "1")
    except TypeError:
        return
    pytest.fail("no TypeError")


def repeat(call, times):
    for _ in range(times):
        call()


@pytest.fixture(scope="module")
def frozen():
    """Objects from before these tests are frozen: scanning them takes most of the collector's time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def kept(call, times, used):
    """The growth of `used()` over `times` calls: the least of three rounds, since other threads add to it too.

    A call that keeps something keeps it in each round.
    """
    repeat(call, 100)  # caches and free lists are made once
    rounds = []
    for _ in range(3):
        gc.collect()
        before = used()
        repeat(call, times)
        gc.collect()
        rounds.append(used() - before)
    return min(rounds)


def blocks_kept(call):
    return kept(call, 200, sys.getallocatedblocks)


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("name", calls())
def test_a_call_keeps_nothing(name):
    # A block a call would be 200 of them.
    assert blocks_kept(calls()[name]) < 50


@pytest.mark.usefixtures("frozen")
def test_a_call_that_keeps_a_block_is_seen():
    leak = []
    assert blocks_kept(lambda: leak.append(object())) >= 200


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("name", calls())
def test_a_call_keeps_no_memory(name):
    # Without a GIL the interpreter takes 4 KiB for itself, once, also for a function that does nothing.
    times, most = (200, 4 * KIB) if HAS_GIL else (1000, 12 * KIB)
    tracemalloc.start()
    try:
        assert kept(calls()[name], times, lambda: tracemalloc.get_traced_memory()[0]) < most
    finally:
        tracemalloc.stop()


LARGE = 64 * MIB
# name -> setup, call, and the arrays of `LARGE` bytes that the call is to ask for
LARGE_CALLS = {
    "clip_by_norm": ("", "gradclip.clip_by_norm(x, 1.0)", 1),
    "clip_by_norm into": ("", "gradclip.clip_by_norm(x, 1.0, out=y)", 0),
    "clip_by_norm in place": ("", "gradclip.clip_by_norm(x, 1.0, out=x)", 0),
    "clip_by_norm of rows": ("x.shape = y.shape = (-1, 512)", "gradclip.clip_by_norm(x, 1.0, axes=1, out=y)", 0),
    "clip_by_norm of long columns": ("x.shape = y.shape = (-1, 64)", "gradclip.clip_by_norm(x, 1.0, axes=0, out=y)", 0),
    "clip_by_norm strided": ("x, y = x[::2], y[::2]", "gradclip.clip_by_norm(x, 1.0, out=y)", 0),
    "clip_by_norm swapped": ("x = x.view(x.dtype.newbyteorder())", "gradclip.clip_by_norm(x, 1.0, out=y)", 0),
    "clip_by_value": ("", "gradclip.clip_by_value(x, -1.0, 0.5)", 1),
    "clip_by_value into": ("", "gradclip.clip_by_value(x, -1.0, 0.5, out=y)", 0),
    "clip_by_value in place": ("", "gradclip.clip_by_value(x, -1.0, 0.5, out=x)", 0),
    "clip_by_global_norm": ("", "gradclip.clip_by_global_norm([x], 1.0)", 1),
    "clip_by_global_norm into": ("", "gradclip.clip_by_global_norm([x], 1.0, out=[y])", 0),
    "clip_by_norm strict": ("", "gradclip.clip_by_norm(x, 1.0, strict=True, out=y)", 0),
    "clip_examples_by_global_norm into": (
        "x.shape = (16, -1)",
        "gradclip.clip_examples_by_global_norm([x], 1.0, strict=True, out=[y[: x.shape[1]]])",
        0,
    ),
    "clip_examples_by_global_norm in place": (
        "x.shape = (16, -1)",
        "gradclip.clip_examples_by_global_norm([x], 1.0, reduce=None, out=[x])",
        0,
    ),
    "clip_difference_by_global_norm": ("y *= 3", "gradclip.clip_difference_by_global_norm([x], [y], 1.0)", 1),
    "clip_difference_by_global_norm into": (
        "y *= 3",
        "gradclip.clip_difference_by_global_norm([x], [y], 1.0, out=[y])",
        0,
    ),
    "clip_difference_by_global_norm strided": (
        "y *= 3; x, y = x[::2], y[::-2]",
        "gradclip.clip_difference_by_global_norm([x], [y], 1.0, out=[x])",
        0,
    ),
    "global_norm": ("", "gradclip.global_norm([x, y])", 0),
    "norm": ("", "gradclip.norm(x)", 0),
    "norm of order 3.7": ("x, y = x[:1 << 20], y", "gradclip.norm(x, ord=3.7)", 0),
    "norm of float16": ("x = x.view(np.float16)", "gradclip.norm(x)", 0),
    "norm strided": ("x = x[::2]", "gradclip.norm(x)", 0),
}


@pytest.mark.sampled
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", LARGE_CALLS)
def test_a_call_asks_for_its_outputs_alone(name):
    # The peak memory of the process, as the kernel counts it: it includes memory that Python's allocators do not see.
    setup, call, outputs = LARGE_CALLS[name]
    code = f"""
        import gradclip
        import numpy as np

        def most():
            with open("/proc/self/status") as lines:
                return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10

        x, y = np.ones({LARGE} // 4, np.float32), np.ones({LARGE} // 4, np.float32)
        gradclip.norm(x)  # starts the threads
        {setup}
        before = most()
        result = {call}
        print(most() - before)
    """
    output = subprocess.check_output([sys.executable, "-c", textwrap.dedent(code)], text=True)
    assert int(output) < outputs * LARGE + 4 * MIB


def test_small_arrays_ask_for_their_outputs_alone():
    # As Python and NumPy count it: what is allocated on the way to an output of a megabyte, or to none.
    x, y = np.ones(MIB // 4, np.float32), np.empty(MIB // 4, np.float32)

    def peak(call):
        call()
        tracemalloc.start()
        try:
            call()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(lambda: gradclip.clip_by_norm(x, 1.0, out=y)) < 4 * KIB
    assert peak(lambda: gradclip.clip_by_value(x, -0.5, 0.5, out=y)) < 4 * KIB
    assert peak(lambda: gradclip.clip_by_global_norm([x], 1.0, out=[y])) < 4 * KIB
    assert peak(lambda: gradclip.norm(x)) < 4 * KIB
    assert peak(lambda: gradclip.clip_by_norm(x, 1.0)) < MIB + 4 * KIB
    assert peak(lambda: gradclip.clip_by_value(x, -0.5, 0.5)) < MIB + 4 * KIB
    assert peak(lambda: gradclip.clip_by_global_norm([x], 1.0)) < MIB + 4 * KIB
