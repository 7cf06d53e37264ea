"""What the package exports, and what importing it brings along."""

import importlib.metadata
import importlib.resources
import inspect
import os
import subprocess
import sys

import gradclip as gc
import numpy as np
import pytest

SIGNATURES = {
    "clip_by_value": "(t, clip_value_min, clip_value_max, name=None, *, out=None)",
    "clip_by_norm": "(t, clip_norm, axes=None, name=None, *, out=None)",
    "clip_by_average_norm": "(t, clip_norm, name=None, *, out=None)",
    "clip_by_global_norm": "(t_list, clip_norm, use_norm=None, name=None, *, ord=2, out=None)",
    "global_norm": "(t_list, name=None, *, ord=2)",
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


def test_names_lead_back_to_the_package():
    for name in SIGNATURES:
        assert getattr(gc, name).__module__.split(".")[0] == "gradclip"


def test_the_methods_of_indexed_slices_have_docstrings():
    for method in (gc.IndexedSlices.coalesce, gc.IndexedSlices.to_dense):
        assert inspect.getdoc(method)


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


def test_the_package_carries_its_types():
    assert (importlib.resources.files("gradclip") / "py.typed").is_file()


def test_show_config_prints_and_returns_none(capsys):
    assert gc.show_config() is None
    text = capsys.readouterr().out.lower()
    assert gc.__version__ in text
    assert np.__version__ in text
    assert f"{gc.get_num_threads()}" in text
    for word in ("threads", "memory", "instruction set", "float32", "float64", "int8", "uint64"):
        assert word in text, word


def test_show_config_names_the_instruction_set_in_use(isa, capsys):
    gc.show_config()
    assert isa.lower() in capsys.readouterr().out.lower()


def test_trim_returns_the_number_of_bytes():
    held = gc.trim()
    assert type(held) is int
    assert held >= 0
    assert gc.trim() == 0
    x = np.ones(1_000_000)
    result = gc.clip_by_norm(x, 1.0)
    gc.trim()
    assert gc.norm(result) == pytest.approx(1.0)  # what is in use is not given back
    del result
    assert 0 <= gc.trim() <= 8_000_000 + 65536


def test_reused_memory_is_never_shared_by_two_results():
    x = np.ones(600_000)
    kept = []
    for k in range(1, 8):
        kept.append(gc.clip_by_value(x * k, 0, 100))
        gc.clip_by_value(x, 0, 100)
    assert all((a == k + 1).all() for k, a in enumerate(kept))
    assert not any(np.shares_memory(a, b) for i, a in enumerate(kept) for b in kept[:i])


def test_a_view_keeps_reused_memory_alive():
    view = gc.clip_by_norm(np.full(600_000, 3.0), 1e9)[::2]
    for _ in range(4):
        gc.clip_by_norm(np.zeros(600_000), 1.0)
    assert (view == 3.0).all()


@pytest.mark.parametrize("pool", ["0", "1000000"])
def test_a_pool_of_bytes_bounds_what_is_held(pool):
    script = """
import gradclip as gc, numpy as np
for n in (1000, 50_000, 2_000_000):
    gc.clip_by_norm(np.ones(n), 1.0)
print(gc.trim())
"""
    command, environment = [sys.executable, "-c", script], {**os.environ, "GRADCLIP_POOL_BYTES": pool}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert 0 <= int(child.stdout) <= int(pool)
