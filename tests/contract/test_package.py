"""The exports of the package, and the modules that importing it loads."""

import doctest
import importlib.metadata
import importlib.resources
import inspect
import os
import pickle
import re
import subprocess
import sys

import gradclip as gc
import numpy as np
import pytest
from oracle import NORMED

SIGNATURES = {
    "clip_by_value": "(t, clip_value_min, clip_value_max, name=None, *, out=None)",
    "clip_by_norm": (
        "(t, clip_norm, axes=None, name=None, *, nonfinite='propagate', strict=False, out=None, comm=None, "
        "replicated=None)"
    ),
    "clip_by_average_norm": "(t, clip_norm, name=None, *, nonfinite='propagate', out=None, comm=None, replicated=None)",
    "clip_by_rms": "(t, clip_rms, axes=None, name=None, *, nonfinite='propagate', out=None)",
    "clip_by_global_norm": (
        "(t_list, clip_norm, use_norm=None, name=None, *, ord=2, nonfinite='propagate', strict=False, "
        "integers='raise', out=None, comm=None, replicated=None, reproducible=False)"
    ),
    "clip_by_norms": "(t_list, clip_norms, name=None, *, ord=2, nonfinite='propagate', out=None)",
    "clip_by_weight_norm": "(t_list, weights, clipping=0.01, name=None, *, eps=0.001, unit_axis=-1, out=None)",
    "clip_examples_by_global_norm": (
        "(t_list, clip_norm, name=None, *, reduce='sum', nonfinite='propagate', strict=False, out=None)"
    ),
    "clip_difference_by_global_norm": (
        "(t_list, base_list, clip_norm, use_norm=None, name=None, *, ord=2, nonfinite='propagate', "
        "integers='raise', out=None)"
    ),
    "NormState": "()",
    "NonFiniteError": "(message, norm=nan, entries=())",
    "global_norm": "(t_list, name=None, *, ord=2, nonfinite='propagate', integers='count', comm=None, "
    "replicated=None, reproducible=False)",
    "norms": "(t_list, name=None, *, ord=2, comm=None, replicated=None)",
    "norm": "(tensor, ord='euclidean', axis=None, keepdims=None, name=None)",
    "normalize": "(tensor, ord='euclidean', axis=None, name=None, *, out=None)",
    "IndexedSlices": "(values, indices, dense_shape=None)",
    "get_num_threads": "()",
    "set_num_threads": "(n)",
    "trim": "()",
    "show_config": "()",
}


def plain(signature):
    """A signature without its annotations."""
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def test_all_is_the_contracts_list():
    assert sorted(gc.__all__) == sorted([*SIGNATURES, "__version__"])
    assert all(hasattr(gc, name) for name in gc.__all__)
    public = {name for name in dir(gc) if not name.startswith("_") and not inspect.ismodule(getattr(gc, name))}
    assert public == set(SIGNATURES)


@pytest.mark.parametrize("name", [name for name in SIGNATURES if inspect.isfunction(getattr(gc, name))])
def test_help_shows_types(name):
    assert not re.search(r"\bAny\b", str(inspect.signature(getattr(gc, name))))


@pytest.mark.parametrize("name", ["tree", "torch", "limits"])
def test_a_module_that_is_not_imported_is_told(name):
    code = f"import gradclip\ntry:\n    gradclip.{name}\nexcept AttributeError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"module 'gradclip' has no attribute '{name}'; write import gradclip.{name}\n"
    with pytest.raises(AttributeError, match="has no attribute 'clip'"):
        getattr(gc, "clip")  # noqa: B009 (mypy)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_the_contracts(name):
    assert plain(inspect.signature(getattr(gc, name))) == SIGNATURES[name]


@pytest.mark.parametrize("name", SIGNATURES)
def test_everything_has_a_docstring(name):
    text = inspect.getdoc(getattr(gc, name))
    assert text
    assert len(text.split()) >= 5
    assert gc.__doc__
    assert getattr(gc, name).__name__ == name


@pytest.mark.parametrize("name", sorted(set(gc.__all__) - {"__version__"}))
def test_names_are_those_of_the_package(name):
    found = getattr(gc, name)
    assert (found.__module__, found.__qualname__) == ("gradclip", name)
    assert pickle.loads(pickle.dumps(found)) is found


@pytest.mark.parametrize("value", [gc.IndexedSlices(np.ones((1, 2)), np.array([3])), gc.NormState.of([np.ones(3)])])
def test_pickles_of_earlier_commits_load(value):
    module = {"IndexedSlices": b"gradclip._slices", "NormState": b"gradclip._norm_state"}[type(value).__name__]
    data = pickle.dumps(value, protocol=0)
    earlier = data.replace(b"cgradclip\n", b"c" + module + b"\n")
    assert data != earlier
    assert pickle.loads(earlier) == value


@pytest.mark.parametrize(
    ("public", "count"), [(gc.IndexedSlices, 3), (gc.NormState, 4)], ids=["IndexedSlices", "NormState"]
)
def test_examples_of_classes_and_methods_run(public, count):
    # pytest finds no examples of methods whose module is not the one that its class names.
    found = [test for test in doctest.DocTestFinder().find(public, module=False, globs={}) if test.examples]
    assert len(found) == count
    for test in found:
        assert doctest.DocTestRunner().run(test).failed == 0, test.name


def test_the_version_is_that_of_the_distribution():
    assert type(gc.__version__) is str
    assert gc.__version__ == importlib.metadata.version("gradclip")


def test_import_brings_nothing_but_numpy():
    script = """
import sys
import numpy
before = set(sys.modules)
import gradclip
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names) - {"gradclip", "numpy"}))
"""
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert child.stdout.strip() == "[]"


def test_import_warns_of_nothing_and_prints_nothing():
    command = [sys.executable, "-W", "error", "-c", "import gradclip"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (child.returncode, child.stdout, child.stderr) == (0, "", "")


# Everything that a call may do with a dtype it does not know.
USE = """
import gradclip as gc, numpy as np
def use():
    x = np.array([3.0, 4.0], np.float32)
    for dtype in (np.float16, np.float32, np.float64, np.complex64, np.complex128):
        t = x.astype(dtype)
        assert gc.clip_by_norm(t, 1.0).dtype == dtype
        assert gc.clip_by_global_norm([t, None], 10**400)[1] == 5.0
        assert gc.norm(t) == gc.normalize(t)[1][0] == 5.0
    for t in (np.ones(3, object), np.ones(3, np.longdouble), np.ones(3, "V2"), "x", None, [1, "x"]):
        for call in (gc.norm, lambda t: gc.clip_by_value(t, 0, 1), lambda t: gc.clip_by_value(x, t, None)):
            try:
                call(t)
            except (TypeError, ValueError):
                pass
    s = gc.IndexedSlices(x.astype(np.float16), np.array([1, 1]), (2,))
    assert s.to_dense().tolist() == [0, 7] and gc.global_norm([s]) == 5.0
    assert gc.clip_by_value(x, np.float16(1), np.array([3.5, 3.5])).tolist() == [3, 3.5]
    gc.norm(np.ones((3, 3), np.int8), 2, axis=(0, 1))
    gc.show_config()
use()
"""


def run_alone(script):
    command = [sys.executable, "-W", "error", "-c", script]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_ml_dtypes_is_never_imported_by_the_package():
    assert run_alone(f"import sys\n{USE}\nprint('ml_dtypes' in sys.modules)").splitlines()[-1] == "False"


def test_it_works_where_ml_dtypes_is_missing():
    # With None for it in sys.modules an import of it fails.
    run_alone(f"import sys\nsys.modules['ml_dtypes'] = None\n{USE}")


def test_without_numpy_the_import_says_so():
    run_alone(
        """
import sys
sys.modules["numpy"] = None
try:
    import gradclip
except ModuleNotFoundError as error:
    assert error.name == "numpy", error
else:
    raise AssertionError("imported")
"""
    )


def test_bfloat16_is_known_however_late_ml_dtypes_is_imported():
    text = run_alone(
        USE
        + """
import ml_dtypes
t = np.array([3.0, 4.0], ml_dtypes.bfloat16)
assert gc.clip_by_norm(t, 2.5).tolist() == [1.5, 2.0] and gc.clip_by_norm(t, 2.5).dtype == t.dtype
assert gc.norm(t) == 5.0 and gc.clip_by_value(t, None, ml_dtypes.bfloat16(3.5)).tolist() == [3, 3.5]
use()
print("done")
"""
    )
    assert text.splitlines()[-1] == "done"


def test_the_order_of_the_imports_does_not_matter():
    for first, second in (("gradclip", "ml_dtypes"), ("ml_dtypes", "gradclip")):
        script = f"import {first}, {second}, numpy as np; print(gradclip.norm(np.ones(4, ml_dtypes.bfloat16)))"
        assert run_alone(script).strip() == "2.0"


def test_another_dtype_of_the_size_of_bfloat16_is_not_taken_for_it():
    """Even if ml_dtypes registers it before bfloat16, which then has another number in NumPy."""
    script = """
import gradclip as gc, numpy as np, ml_dtypes
for name in ("float8_e4m3fn", "float8_e5m2", "int4", "uint4"):
    try:
        gc.norm(np.ones(4, getattr(ml_dtypes, name)))
    except TypeError as error:
        assert name in str(error), error
    else:
        raise SystemExit(name)
print(gc.norm(np.ones(4, ml_dtypes.bfloat16)))
"""
    assert run_alone(script).strip() == "2.0"


def test_the_package_carries_its_types():
    assert (importlib.resources.files("gradclip") / "py.typed").is_file()


def test_show_config_prints_and_returns_none(capsys):
    assert gc.show_config() is None
    text = capsys.readouterr().out.lower()
    assert gc.__version__ in text
    assert np.__version__ in text
    assert f"{gc.get_num_threads()}" in text
    for word in ("threads", "memory", "instruction set", *(np.dtype(dtype).name for dtype in NORMED)):
        assert word in text, word


def test_show_config_names_the_instruction_set_in_use(isa, capsys):
    gc.show_config()
    assert isa.lower() in capsys.readouterr().out.lower()


def test_trim_returns_the_number_of_bytes():
    held = gc.trim()
    assert type(held) is int
    assert held >= 0
    assert gc.trim() == 0
    x = np.ones(4 << 20)  # 32 MiB
    result = gc.clip_by_norm(x, 1.0)
    gc.trim()
    assert gc.norm(result) == pytest.approx(1.0)  # what is in use is not given back
    del result
    assert gc.trim() in ({x.nbytes} if sys.platform == "linux" else {0})


def test_reused_memory_is_never_shared_by_two_results():
    x = np.ones(4 << 20)
    kept = []
    for k in range(1, 5):
        kept.append(gc.clip_by_value(x, 0, 1 / k))
        gc.clip_by_value(x, 0, 100)
    assert all((a == 1 / (k + 1)).all() for k, a in enumerate(kept))
    assert not any(np.shares_memory(a, b) for i, a in enumerate(kept) for b in kept[:i])


def test_a_view_keeps_reused_memory_alive():
    view = gc.clip_by_norm(np.full(4 << 20, 3.0), 1e9)[::2]
    for _ in range(2):
        gc.clip_by_norm(np.zeros(4 << 20), 1.0)
    assert (view == 3.0).all()


@pytest.mark.parametrize("pool", ["0", "34000000", "50000000"])
def test_a_pool_of_bytes_bounds_what_is_held(pool):
    script = """
import gradclip as gc, numpy as np
for n in (1000, 50_000, 4 << 20, 6 << 20):
    gc.clip_by_norm(np.ones(n), 1.0)
print(gc.trim())
"""
    command, environment = [sys.executable, "-c", script], {**os.environ, "GRADCLIP_POOL_BYTES": pool}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert 0 <= int(child.stdout) <= int(pool)
