"""gradclip.torch runs on the threads of PyTorch: which threads a call uses, and that they change no bit."""

import ctypes
import subprocess
import sys
import textwrap
import threading

import gradclip as gc
import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.thread_unsafe(reason="sets the number of threads")]

try:
    import gradclip.torch as ours
    import torch
    from gradclip import _openmp
except ImportError:  # then these tests are not collected
    HAS_TEAM = False
else:
    HAS_TEAM = bool(_openmp.ADDRESS)

needs_team = pytest.mark.skipif(not HAS_TEAM, reason="this torch does not use OpenMP, or this is not Linux")

# 32 MB of gradients: several jobs for each thread. `has_own` tells whether gradclip has started threads of its own.
PRELUDE = """
import contextlib, os, signal, threading, time
import numpy as np, torch
import gradclip as gc, gradclip.torch
from gradclip.torch import clip_grad_norm_, get_total_norm
gc.set_num_threads(2)
torch.set_num_threads(2)
parameters = [torch.nn.Parameter(torch.zeros(2_000_000)) for _ in range(4)]
def clip(limit=1.0):
    for i, parameter in enumerate(parameters):
        parameter.grad = torch.linspace(-1, i, 2_000_000)
    clip_grad_norm_(parameters, limit)
    return b"".join(parameter.grad.numpy().tobytes() for parameter in parameters)
def has_own(seconds=0.0):
    end = time.monotonic() + seconds  # a new thread sets its name a little later
    while True:
        for i in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # the thread has ended
                if open(f"/proc/self/task/{i}/comm").read().startswith("gradclip-"):
                    return True
        if time.monotonic() > end:
            return False
"""


def run(script):
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert child.returncode == 0, child.stderr


def test_there_is_a_team_where_torch_uses_openmp_on_linux():
    uses_openmp = sys.platform == "linux" and torch.backends.openmp.is_available()
    assert uses_openmp == HAS_TEAM


def test_both_passes_run_on_the_team(monkeypatch):
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    calls = []

    @ctypes.CFUNCTYPE(None, function, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    def parallel(work, data, threads, flags):
        calls.append((threads, flags))
        others = [threading.Thread(target=work, args=(data,)) for _ in range(3)]
        for thread in others:
            thread.start()
        work(data)
        for thread in others:
            thread.join()

    monkeypatch.setattr(_openmp, "parallel_address", lambda: ctypes.cast(parallel, ctypes.c_void_p).value)
    before, gradient = gc.get_num_threads(), np.linspace(-1, 1, 4_000_000, dtype=np.float32)
    expected, norm = gc.clip_by_global_norm([gradient], 1.0)
    parameter = torch.nn.Parameter(torch.zeros(4_000_000))
    gc.set_num_threads(2)
    try:
        parameter.grad = torch.from_numpy(gradient.copy())
        assert float(ours.clip_grad_norm_(parameter, 1.0)) == np.float32(norm)
    finally:
        gc.set_num_threads(before)
    np.testing.assert_array_equal(parameter.grad.numpy(), expected[0])
    assert calls == [(0, 0)] * 2
    gc.global_norm([gradient])
    assert len(calls) == 2


@needs_team
def test_large_gradients_are_clipped_on_the_threads_of_torch():
    run(
        """
        on_team = clip()
        assert not has_own()
        torch.set_num_threads(1)
        assert clip() == on_team
        assert has_own(10)  # torch has a single thread, so gradclip's own are used
        torch.set_num_threads(3)
        assert clip() == on_team
        gc.set_num_threads(1)
        assert clip() == on_team
        """
    )


@needs_team
@pytest.mark.parametrize("call", ["clip()", "clip(-1.0)", "get_total_norm([torch.ones(2).to_sparse()])"])
def test_calls_of_other_functions_keep_their_own_threads(call):
    run(
        f"""
        try:
            {call}
        except ValueError:
            pass
        assert not has_own()
        gc.global_norm([np.ones(4_000_000)])
        assert has_own(10)
        """
    )


@needs_team
def test_each_thread_of_python_has_a_team_of_its_own():
    run(
        """
        clip()
        found, expected = [], np.float32(gc.global_norm([p.grad.numpy() for p in parameters]))
        def norms():
            found.extend(float(get_total_norm([p.grad for p in parameters])) for _ in range(20))
        threads = [threading.Thread(target=norms) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 80 and set(found) == {float(expected)}
        """
    )


@needs_team
def test_a_forked_child_uses_threads_of_its_own():
    # A team does not survive a fork: the child would wait for it forever.
    run(
        """
        expected = clip()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            torch.set_num_threads(1)  # torch's own operations would wait, too
            gradients = [np.linspace(-1, i, 2_000_000, dtype=np.float32) for i in range(4)]
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = torch.from_numpy(gradient)
            torch.set_num_threads(2)
            clip_grad_norm_(parameters, 1.0)
            os._exit(0 if has_own(10) else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert clip() == expected and not has_own()
        """
    )


@needs_team
def test_a_child_that_imports_gradclip_first_uses_threads_of_its_own():
    script = """
    import os, signal, numpy as np, torch
    torch.set_num_threads(2)
    torch.ones(4_000_000).mul_(2)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        import gradclip.torch
        norm = gradclip.torch.get_total_norm([torch.from_numpy(np.ones(4_000_000, np.float32))])
        os._exit(0 if float(norm) == 2000 else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100, check=False
    )
    assert child.returncode == 0, child.stderr


@needs_team
def test_subnormal_results_are_those_of_the_default_control():
    # The setting holds for the threads that torch starts later.
    run(
        """
        gradients = [np.full(2_000_000, 1e-38, np.float32) for _ in parameters]
        torch.set_flush_denormal(True)
        clip()
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = torch.from_numpy(gradient)
        clip_grad_norm_(parameters, 1e-38)
        torch.set_flush_denormal(False)
        found = np.concatenate([parameter.grad.numpy() for parameter in parameters])
        assert 0 < found[0] < 2**-126
        assert (found == found[0]).all()
        """
    )
