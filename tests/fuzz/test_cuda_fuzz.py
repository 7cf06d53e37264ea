"""Calls drawn at random, made on device arrays and held to the CPU. `python tests/fuzz cuda` makes more of them."""

from typing import Any

import fuzz
import fuzz_cuda
import gpu_arrays
import gradclip as gc
import numpy as np
import pytest
import tf_cases
from fuzz_cuda import outcome
from gradclip._cuda import _words

CASES = 2_000
CLIPPERS = ("clip_by_value", "clip_by_norm", "clip_by_average_norm", "clip_by_global_norm", "normalize")


@pytest.fixture(autouse=True)
def _same_settings(gpu):
    yield
    if gpu.kind != "device":
        gpu_arrays.shim().backward = False


def run(gpu):
    return {fuzz_cuda.run_case(gpu, 3, number) for number in range(CASES)}


def test_calls_drawn_at_random_are_those_of_the_cpu(gpu):
    found = run(gpu)
    for function in CLIPPERS:
        assert {(function, kind) for kind in ("new", "out", "TypeError", "ValueError")} <= found
    assert {(function, kind) for function in ("norm", "global_norm") for kind in ("new", "ValueError")} <= found


# ---- a fault is found


def overlap_is_not_seen(patch):
    patch.setattr("gradclip._cuda._arguments.copied", lambda _, view: view)


def another_last_bit_of_limits(patch):
    bits_of = _words.bits_of
    patch.setattr(_words, "bits_of", lambda x: bits_of(x) ^ 1)


def wrong_order_in_memory(patch):
    patch.setattr("gradclip._cuda._arguments.memory_order", lambda shape, _: list(range(len(shape))))


def no_check_of_the_name(patch):
    patch.setattr("gradclip._cuda._arguments.Arguments.check_name", lambda _: None)


def assert_seen(gpu):
    """A fault is seen; an error of the device is another one."""
    again = r"python tests/fuzz cuda --kind [\w-]+ --seed 3 --case \d+"
    with pytest.raises(fuzz.WrongError, match=rf"^WrongError: .*\n# {again}|^AssertionError: .*\n# {again}"):
        run(gpu)


@pytest.mark.parametrize("fault", [another_last_bit_of_limits, wrong_order_in_memory, no_check_of_the_name])
def test_a_fault_is_seen(gpu, monkeypatch, fault):
    fault(monkeypatch)
    assert_seen(gpu)


@gpu_arrays.on_host  # on a GPU the right values may come out, if all threads read before one writes
def test_an_overlap_that_is_not_seen_is_seen(gpu, monkeypatch):
    overlap_is_not_seen(monkeypatch)
    assert_seen(gpu)


# ---- calls with recorded answers of TensorFlow


SIGNATURES = {
    "clip_by_value": ("t", "clip_value_min", "clip_value_max", "name"),
    "clip_by_norm": ("t", "clip_norm", "axes", "name"),
    "clip_by_average_norm": ("t", "clip_norm", "name"),
    "clip_by_global_norm": ("t_list", "clip_norm", "use_norm", "name"),
    "global_norm": ("t_list", "name"),
    "norm": ("tensor", "ord", "axis", "keepdims", "name"),
    "normalize": ("tensor", "ord", "axis", "name"),
}
TENSORS = ("t", "tensor", "t_list", "clip_value_min", "clip_value_max")


def arrays_of(value: Any) -> Any:
    """A tensor, or those of a list, as native arrays, which a device can have too; what is none stays."""
    if value is None or isinstance(value, (str, dict, set, gc.IndexedSlices)):
        return value
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        return value
    own = array.dtype.newbyteorder("=")
    return array.astype(own) if own in fuzz_cuda.ON_DEVICE else value


def is_left_out(function: str, arguments: dict[str, Any]) -> bool:
    """IndexedSlices, which are not for the device, and matrix norms of order 2, which are CuPy's own."""
    order, axis = arguments.get("ord"), arguments.get("axis")
    entries = [entry for a in arguments.values() for entry in (a if isinstance(a, (list, tuple)) else [a])]
    is_matrix = isinstance(axis, (list, tuple)) and len(axis) == 2
    is_two = is_matrix and isinstance(order, (int, float, np.number)) and order == 2
    return is_two or any(isinstance(entry, gc.IndexedSlices) for entry in entries) or function not in SIGNATURES


def test_recorded_calls_are_those_of_the_cpu(gpu):
    compared = errors = 0
    for case in tf_cases.load():
        arguments = {**dict(zip(SIGNATURES.get(case.fn, ()), case.args, strict=False)), **case.kwargs}
        if is_left_out(case.fn, arguments):
            continue
        for name in arguments.keys() & set(TENSORS):
            value = arguments[name]
            is_list = name == "t_list" and isinstance(value, (list, tuple))
            if is_list:
                arguments[name] = [*map(arrays_of, value)]
            elif name != "t_list":
                arguments[name] = arrays_of(value)
        there = dict(arguments)
        for name in arguments.keys() & set(TENSORS):
            value = arguments[name]
            there[name] = gpu.arrays(value) if isinstance(value, list) else gpu.arrays([value])[0]
        (expected, error), (got, own) = (outcome(getattr(gc, case.fn), given) for given in (arguments, there))
        assert type(own) is type(error), f"{case.name}: {own!r}, not {error!r}"
        if error is not None:
            errors += 1
        elif any(isinstance(v, gpu.ndarray) for a in there.values() for v in (a if isinstance(a, list) else [a])):
            gpu_arrays.assert_same(gpu, got, expected, case.name)
            compared += 1
    assert compared > 700
    assert errors > 100
