"""Some thousand calls drawn at random, each checked against the contract. `make fuzz` draws more, and others."""

import os
import subprocess
import sys
from pathlib import Path

import extent
import fuzz
import gradclip as gc
import numpy as np
import pytest
from gradclip import _core

CASES = extent.amount(2_000, 4_000)
SEED = 6
FEW = 400

extended = pytest.mark.skipif(not fuzz.EXTENDED, reason="the oracle is the extended longdouble that x86-64 has")


@pytest.fixture(autouse=True)
def _same_settings():
    before = gc.get_num_threads()
    yield
    gc.set_num_threads(before)
    _core.set_isa(None)


def run(*arguments, script=Path(fuzz.__file__).parent):
    path = os.pathsep.join(filter(None, [str(Path(fuzz.__file__).parent), *sys.path]))
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )


@extended
def test_calls_drawn_at_random_keep_the_contract():
    """In separate processes, so that one that dies is a named failure. They are the same in each run."""
    child = run("--cases", CASES, "--seed", SEED, "--jobs", 2)
    assert child.returncode == 0, f"{child.stdout[-8000:]}\n{child.stderr[-4000:]}"
    assert f"{CASES} of {CASES} cases" in child.stdout


# ---- a fault is found


def changed_bit(function):
    """The last bit of the first number is another one."""

    def call(**arguments):
        result = function(**arguments)
        if type(result) is np.ndarray and result.size and result.dtype.isnative:
            first = result[(0,) * result.ndim :][:1] if result.ndim == 0 else result[(slice(0, 1),) * result.ndim]
            words = fuzz.oracle.bits(first) ^ 1
            first[...] = words.view(fuzz.oracle.part(first.dtype)).view(first.dtype).reshape(first.shape)
        return result

    return call


def byte_beside(function):
    """A byte that is no output's is written."""

    def call(**arguments):
        result = function(**arguments)
        t = arguments["t"]
        if type(t) is np.ndarray and arguments.get("out") is None and t.flags.writeable and t.size:
            t[(slice(0, 1),) * t.ndim] = 77
        return result

    return call


def written_too_early(function):
    """The output is written before the arguments are checked."""

    def call(**arguments):
        out, t = arguments.get("out"), arguments["t"]
        if type(out) is np.ndarray and out.flags.writeable and out.dtype.kind in "fc":
            t = t.copy() if out is t else t
            out[...] = 0
        return function(**{**arguments, "t": t})

    return call


def other_error(function):
    def call(**arguments):
        try:
            return function(**arguments)
        except ValueError as error:
            raise TypeError(*error.args) from error

    return call


def no_error(function):
    def call(**arguments):
        try:
            return function(**arguments)
        except TypeError:
            return np.zeros(3)

    return call


def another_array(function):
    """A copy of the output, not the output itself."""

    def call(**arguments):
        result = function(**arguments)
        return result.copy() if isinstance(result, np.ndarray) else result

    return call


def internal_error(function):
    def call(**arguments):
        result = function(**arguments)
        if isinstance(result, np.ndarray) and result.ndim == 3:
            raise RuntimeError("internal error")
        return result

    return call


def run_few():
    for number in range(FEW):
        fuzz.run_case(1, number)


FAULTS = [changed_bit, byte_beside, written_too_early, other_error, no_error, another_array, internal_error]


@extended
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault, monkeypatch):
    monkeypatch.setattr(fuzz.gc, "clip_by_norm", fault(gc.clip_by_norm))
    with pytest.raises(fuzz.WrongError, match=r"python tests/fuzz --seed 1 --case \d+"):
        run_few()


@extended
def test_without_a_fault_the_same_cases_pass():
    run_few()


DEADLY = """
import os, signal, fuzz

case = fuzz.run_case

def run_case(seed, number):
    if number == 11:
        os.kill(os.getpid(), signal.SIGKILL)
    return case(seed, number)

fuzz.run_case = run_case
if __name__ == "__main__":
    fuzz.run(1, 40, 2)
"""


@extended
@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
def test_a_case_that_kills_its_process_is_named(tmp_path):
    script = tmp_path / "deadly.py"
    script.write_text(DEADLY)
    child = run(script=script)
    assert child.returncode == 0, child.stdout + child.stderr
    assert "# case 11 failed\nkilled its process: SIGKILL" in child.stdout
    assert "python tests/fuzz --seed 1 --case 11" in child.stdout
    assert "1 failed" in child.stdout.splitlines()[-1], child.stdout


def nudged(result):
    """The result with another last bit in its first number that has one."""
    if isinstance(result, (tuple, list)):
        return type(result)(nudged(part) for part in result)
    if isinstance(result, np.ndarray) and result.size:
        word = fuzz.oracle.bits(np.ascontiguousarray(fuzz.native(result))).copy()
        word.flat[0] ^= 1 << (8 * word.itemsize - 4)  # of the exponent
        return fuzz.oracle.from_bits(word.ravel(), result.dtype).reshape(result.shape)
    return result


BEYOND = [
    "norms",
    "clip_by_norms",
    "clip_by_rms",
    "clip_by_weight_norm",
    "clip_difference_by_global_norm",
    "clip_examples_by_global_norm",
]


@extended
@pytest.mark.parametrize("name", BEYOND)
def test_a_fault_of_the_other_functions_is_seen(name, monkeypatch):
    function = getattr(gc, name)
    monkeypatch.setattr(fuzz.gc, name, lambda *arguments, **more: nudged(function(*arguments, **more)))
    with pytest.raises(fuzz.WrongError, match=name.split("_")[1] if "_" in name else name):
        run_few()


@extended
def test_an_infinite_element_of_a_sum_excuses_no_other(monkeypatch):
    function = gc.clip_examples_by_global_norm

    def call(*arguments, **more):
        found, norms = function(*arguments, **more)
        for total in found if "reduce" not in more else ():
            total[...] = total * 3
            total[(slice(0, 1),) * total.ndim] = np.inf
        return found, norms

    monkeypatch.setattr(fuzz.gc, "clip_examples_by_global_norm", call)
    with pytest.raises(fuzz.WrongError, match=r"examples, .*sum"):
        run_few()


@extended
@pytest.mark.parametrize("argument", ["strict", "nonfinite"])
def test_an_argument_without_effect_is_seen(argument, monkeypatch):
    function = gc.clip_by_global_norm
    ignored = {argument: {"strict": False, "nonfinite": "propagate"}[argument]}

    def call(*arguments, **more):
        return function(*arguments, **more | (ignored if argument in more else {}))

    monkeypatch.setattr(fuzz.gc, "clip_by_global_norm", call)
    with pytest.raises(fuzz.WrongError, match=argument):
        run_few()
