"""CuPy is used if it is loaded already, and never loaded: without it, or without a driver, nothing changes."""

import os
import subprocess
import sys
import textwrap

import gpu_arrays
import pytest

with_cupy = pytest.mark.cupy


def run(code):
    """The output of a separate process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert child.returncode == 0, child.stderr
    return child.stdout.split()


CALLS = """
    def calls(x):
        i = gc.IndexedSlices(x, [0, 1])
        gc.clip_by_value(x, -1, x); gc.clip_by_norm(x, 1.0, 0); gc.clip_by_average_norm(x, 1.0, out=x)
        gc.clip_by_global_norm([x, None, i], 1.0); gc.global_norm([x]); gc.norm(x, 1, (0, 1)); gc.normalize(x)
        for bad in (lambda: gc.norm("x"), lambda: gc.clip_by_norm(x, object()), lambda: gc.clip_by_norm(x, 1, out=4)):
            try:
                bad()
            except TypeError:
                pass
            else:
                raise AssertionError
"""


def test_cupy_is_not_imported():
    code = (
        """
    import sys, numpy as np, gradclip as gc
    """
        + CALLS
        + """
    calls(np.ones((2, 3)))
    gc.show_config()
    loaded = [name for name in sys.modules if name.split(".")[0] in {"cupy", "cupy_backends", "cuda"}]
    print("loaded", *loaded, *(name for name in sys.modules if name.startswith("gradclip._cuda")))
    """
    )
    assert run(code)[-1] == "loaded"


def test_something_else_that_is_called_cupy_is_let_be():
    """A module without arrays, None (which stands for an import that failed), and one that is not loaded to its end."""
    code = (
        """
    import sys, types, numpy as np, gradclip as gc
    """
        + CALLS
        + """
    odd = types.ModuleType("cupy"); odd.ndarray = 5
    for module in (types.ModuleType("cupy"), None, odd, object()):
        sys.modules["cupy"] = module
        calls(np.ones((2, 3)))
    print("done")
    """
    )
    assert run(code) == ["done"]


@with_cupy
def test_cupy_beside_arrays_of_numpy_changes_nothing():
    code = (
        """
    import cupy, sys, numpy as np, gradclip as gc
    """
        + CALLS
        + """
    calls(np.ones((2, 3)))
    print(*(name for name in sys.modules if name.startswith("gradclip._cuda")), "done")
    """
    )
    assert run(code) == ["done"]


@with_cupy
@pytest.mark.skipif(gpu_arrays.has_device(), reason="there is a GPU")
def test_without_a_driver_the_error_of_cupy_comes_through():
    """Arrays over memory of the host, which is all that one can have there."""
    code = """
    import cupy, numpy as np, gradclip as gc

    host = np.ones((2, 3))
    memory = cupy.cuda.UnownedMemory(host.ctypes.data, host.nbytes, host, device_id=0)
    x = cupy.ndarray((2, 3), float, cupy.cuda.MemoryPointer(memory, 0))
    calls = {
        "clip_by_value": lambda: gc.clip_by_value(x, -1, 1),
        "clip_by_norm": lambda: gc.clip_by_norm(x, 1.0),
        "clip_by_norm, out": lambda: gc.clip_by_norm(x, 1.0, 0, out=x),
        "clip_by_average_norm": lambda: gc.clip_by_average_norm(x, 1.0),
        "clip_by_global_norm": lambda: gc.clip_by_global_norm([x, None], 1.0),
        "global_norm": lambda: gc.global_norm([x]),
        "norm": lambda: gc.norm(x),
        "norm 2": lambda: gc.norm(x, 2, (0, 1)),
        "normalize": lambda: gc.normalize(x),
    }
    for name, call in calls.items():
        try:
            call()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            assert "cudaErrorInsufficientDriver" in str(error) or "cudaErrorNoDevice" in str(error), error
        else:
            raise AssertionError(name)
    # Errors in the arguments are reported first, without a device.
    for bad in (lambda: gc.clip_by_norm(x, -1.0), lambda: gc.norm(x, 0), lambda: gc.clip_by_global_norm([x], -1)):
        try:
            bad()
        except ValueError:
            pass
        else:
            raise AssertionError
    assert (host == 1).all()
    print("done")
    """
    assert run(code) == ["done"]
