"""Hypothesis profiles, and the two knobs whose setting must never change a result."""

import importlib.util
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import extent
import gpu_arrays
import gradclip as gc
import numpy as np
import pytest
from gradclip import _core
from hypothesis import settings
from oracle import bits

# The same examples in each run, so that results are repeatable. The thorough profile draws others each time.
for name in ("fast", "whole"):
    settings.register_profile(name, max_examples=15, deadline=None, derandomize=True, database=None)
settings.register_profile("thorough", max_examples=500, deadline=None, database=None, print_blob=True)
settings.load_profile(extent.PROFILE)


# Fixtures that set a state of the process: their tests must not run in several threads at once, as the plugin
# pytest-run-parallel would run them (`make free-threaded`).
_OF_THE_PROCESS = {"gpu", "isa", "threads", "trimmed"}


#: The requirements of some tests, by their mark, and whether they are met. If not, the tests are not collected.
_NEEDS = {
    "gpu": gpu_arrays.has_device(),
    "cupy": gpu_arrays.HAS_CUPY,
    "optree": importlib.util.find_spec("optree") is not None,
    "torch": importlib.util.find_spec("torch") is not None,
    "dask": importlib.util.find_spec("dask") is not None,
    "mpi": importlib.util.find_spec("mpi4py") is not None,
    "ray": importlib.util.find_spec("ray") is not None,
    "flwr": importlib.util.find_spec("flwr") is not None,
}
_left_out: Counter[str] = Counter()
#: The name in `_left_out` of the cases that the sample leaves out.
_SAMPLE = "sample"


@pytest.hookimpl(trylast=True)  # after `-k`, which may choose a single case
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what this machine cannot run, and most cases of long families; marks what must not run beside others.

    (A setting of pytest-run-parallel's own would be an error where it is not installed.)
    """
    missing = [need for need, is_here in _NEEDS.items() if not is_here]
    left_out: dict[pytest.Item, str] = {}
    families: defaultdict[str, list[str]] = defaultdict(list)
    for item in items:
        needed = next((need for need in missing if item.get_closest_marker(need)), None)
        if needed is not None:
            left_out[item] = needed
        elif item.get_closest_marker("sampled") and not extent.IS_WHOLE:
            families[item.nodeid.partition("[")[0]].append(item.nodeid)
    sampled = {name for names in families.values() for name in extent.not_in_sample(names)}
    left_out |= {item: _SAMPLE for item in items if item.nodeid in sampled}
    _left_out.update(left_out.values())
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        used = _OF_THE_PROCESS & set(getattr(item, "fixturenames", ()))
        if used:
            item.add_marker(pytest.mark.thread_unsafe(reason=f"sets what belongs to the process: {sorted(used)}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begins to compile the kernels for tests of GPU arrays on the CPU."""
    uses_gpu = any("gpu" in getattr(item, "fixturenames", ()) for item in session.items)
    if uses_gpu and not session.config.option.collectonly:
        gpu_arrays.build_ahead()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how many tests were left out, and why."""
    if left_out := _left_out[_SAMPLE]:
        terminalreporter.write_line(f"not in the sample: {left_out} cases; GRADCLIP_TEST_PROFILE=whole runs them")
    counts = ", ".join(f"{count} tests need {need}" for need, count in sorted(_left_out.items()) if need != _SAMPLE)
    if counts:
        terminalreporter.write_line(f"not collected, because this machine lacks it: {counts}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tells the process that started this worker of pytest-xdist, if this is one."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Adds the counts of a worker: each has collected all tests."""
    _left_out.update(
        {need: n - _left_out[need] for need, n in getattr(node, "workeroutput", {}).get("left_out", {}).items()}
    )


@pytest.fixture(autouse=True)
def _own_numbers(request: pytest.FixtureRequest) -> None:
    """Seeds the module's RNG by the name of the test, so that its numbers depend on no test that ran before it."""
    if hasattr(request.module, "RNG"):
        request.module.RNG = np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.fixture(params=_core.isa_levels())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once on each instruction set of this CPU."""
    _core.set_isa(request.param)
    yield request.param
    _core.set_isa(None)


@contextmanager
def _threads(n: int) -> Iterator[None]:
    before = gc.get_num_threads()
    gc.set_num_threads(n)
    try:
        yield
    finally:
        gc.set_num_threads(before)


@pytest.fixture
def threads() -> Callable[[int], AbstractContextManager[None]]:
    """`with threads(n):` runs its body with n threads."""
    return _threads


@pytest.fixture
def everywhere(threads: Callable[[int], AbstractContextManager[None]]) -> Callable[..., list[Any]]:
    """`everywhere(call)`: what the call returns, a sequence of arrays and numbers, with the same bits wherever it runs.

    That is on each instruction set of this CPU, on one thread and on several.
    """

    def run(call: Callable[[], Iterable[Any]], counts: tuple[int, ...] = (1, 3)) -> list[Any]:
        first: list[Any] = []
        for level in _core.isa_levels():
            _core.set_isa(level)
            try:
                for count in counts:
                    with threads(count):
                        results = list(call())
                    first = first or results
                    for own, other in zip(results, first, strict=True):
                        assert np.array_equal(bits(own), bits(other)), f"{level}, {count} threads"
            finally:
                _core.set_isa(None)
        return first

    return run


@pytest.fixture(params=gpu_arrays.KINDS)
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> gpu_arrays.Gpu:
    """Runs the test on device arrays of each available kind."""
    return gpu_arrays.install(request.param, monkeypatch)
