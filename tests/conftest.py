"""Hypothesis profiles, and the two knobs whose setting must never change a result."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import gpu_arrays
import gradclip as gc
import pytest
from gradclip import _core
from hypothesis import settings

# The same examples in each run, or a verdict would be that of a day. The thorough profile draws others each time.
settings.register_profile("fast", max_examples=25, deadline=None, derandomize=True, database=None)
settings.register_profile("thorough", max_examples=500, deadline=None, database=None, print_blob=True)
settings.load_profile(os.environ.get("GRADCLIP_TEST_PROFILE", "fast"))


# Fixtures that set what belongs to the process: their tests are not for several threads at once, as the plugin
# pytest-run-parallel would run them (`make free-threaded`).
_OF_THE_PROCESS = {"gpu", "isa", "threads", "trimmed"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Says so to the plugin. Its own setting for this would be an error where it is not installed."""
    for item in items:
        used = _OF_THE_PROCESS & set(getattr(item, "fixturenames", ()))
        if used:
            item.add_marker(pytest.mark.thread_unsafe(reason=f"sets what belongs to the process: {sorted(used)}"))


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


@pytest.fixture(params=gpu_arrays.KINDS)
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> gpu_arrays.Gpu:
    """Runs the test on device arrays of each kind there is."""
    return gpu_arrays.install(request.param, monkeypatch)
