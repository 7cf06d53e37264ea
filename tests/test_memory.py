"""Who owns the memory of outputs: NumPy, but for single outputs of 32 MiB and more, whose memory is used again."""

import os
import subprocess
import sys
import threading

import gradclip as gc
import numpy as np
import pytest
from gradclip import _core

try:
    from numpy._core.multiarray import get_handler_name
except ImportError:  # NumPy 1
    from numpy.core.multiarray import get_handler_name

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is kept on Linux alone")
#: Bytes of the smallest output whose memory is kept.
KEPT_MIN_BYTES = 32 << 20
#: Elements of float32: over 32 MiB, and not whole pages.
LARGE = (KEPT_MIN_BYTES >> 2) + 1001
PAGE = os.sysconf("SC_PAGESIZE") if hasattr(os, "sysconf") else 4096


def held():
    return _core.config()["memory_held"]


def pages(nbytes):
    return -(-nbytes // PAGE) * PAGE


def clip(x, limit=1.0):
    return gc.clip_by_value(x, -limit, limit)


def run(code, **variables):
    """Run code in a process of its own."""
    lines = f"import os\nos.environ.update({variables!r})\nimport gradclip as gc, numpy as np\n{code}"
    command = [sys.executable, "-W", "error", "-c", lines]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(autouse=True)
def trimmed():
    gc.trim()
    yield
    gc.trim()


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).standard_normal(LARGE, np.float32)


def test_the_memory_of_a_dropped_output_serves_the_next_one(x):
    first = clip(x)
    expected, place = first.copy(), first.ctypes.data
    assert get_handler_name(first) == "gradclip"
    del first
    assert held() == pages(x.nbytes)
    second = clip(x)
    assert second.ctypes.data == place
    assert second.flags.owndata
    assert second.base is None
    assert held() == 0
    np.testing.assert_array_equal(second, expected)


def test_every_function_that_makes_outputs_takes_it(x):
    calls = [
        lambda: gc.clip_by_value(x, -1.0, 1.0),
        lambda: gc.clip_by_norm(x, 1.0),
        lambda: gc.clip_by_average_norm(x, 1e-9),
        lambda: gc.clip_by_norm(x.reshape(-1, 1), 0.5, axes=1),
        lambda: gc.clip_by_global_norm([x], 1.0)[0][0],
        lambda: gc.clip_by_global_norm([x[::-1]], 1.0)[0][0],
        lambda: gc.normalize(x)[0],
    ]
    assert len({call().ctypes.data for call in calls}) == 1


def test_smaller_outputs_are_numpys_own(x):
    tensors = [x[: n // 4] for n in (40, 4096, 600_000, 4 << 20, KEPT_MIN_BYTES - 4)]
    for outputs in ([clip(t) for t in tensors], gc.clip_by_global_norm(tensors, 1.0)[0]):
        assert {get_handler_name(output) for output in outputs} == {get_handler_name(np.ones(1))}
    del outputs
    assert held() == 0
    assert get_handler_name(clip(x[: KEPT_MIN_BYTES // 4])) == "gradclip"


def test_a_block_serves_what_leaves_an_eighth_of_it_unused_at_most(x):
    longer = np.concatenate([x, x[: LARGE // 8 - PAGE]])
    much_longer = np.concatenate([x, x[: LARGE // 8 + PAGE]])
    place = clip(longer).ctypes.data
    assert clip(x).ctypes.data == place
    gc.trim()
    clip(much_longer)
    before = held()
    result = clip(x)
    assert held() == before
    del result
    # Of two that fit, the smaller one.
    assert held() == before + pages(x.nbytes)
    result = clip(x)
    assert held() == before
    np.testing.assert_array_equal(result, np.clip(x, -1, 1))


def test_the_least_recently_used_block_goes_first():
    code = """
sizes = [n << 18 for n in (32, 40, 50)]  # MiB of float32: none fits another one's block
arrays = [np.ones(size, np.float32) for size in sizes]
held = lambda: gc._config._core.config()["memory_held"] >> 20
for array in arrays[:2] * 3:
    gc.clip_by_value(array, 0, 1)
print(held())
gc.clip_by_value(arrays[0], 0, 1)
gc.clip_by_value(arrays[2], 0, 1)
print(held())
"""
    # 72 MiB are all in turn; then 50 MiB more push out the 40 that were used before the 32.
    assert run(code, GRADCLIP_POOL_BYTES=str(100 << 20)) == ["72", "82"]


def test_lists_in_turn_and_sizes_that_vary_find_their_memory(x):
    lists = [[x, x[:1000]], [np.concatenate([x, x])]]
    expected = [[np.clip(t, -0.5, 0.5) for t in tensors] for tensors in lists]
    for _ in range(4):
        for tensors, values in zip(lists, expected, strict=True):
            for t, value in zip(tensors, values, strict=True):
                np.testing.assert_array_equal(clip(t, 0.5), value)
    assert held() == pages(x.nbytes) + pages(2 * x.nbytes)


def test_trim_gives_back_what_is_held_and_nothing_else(x):
    kept = clip(x)
    clip(x)
    assert gc.trim() == pages(x.nbytes)
    assert held() == 0
    assert gc.trim() == 0
    np.testing.assert_array_equal(kept, np.clip(x, -1.0, 1.0))


def test_an_output_can_be_resized(x):
    for size in (LARGE // 2, LARGE * 2, 0, 7):
        result = clip(x)
        result.resize(size, refcheck=False)
        count = min(size, LARGE)
        np.testing.assert_array_equal(result[:count], np.clip(x[:count], -1.0, 1.0))
        if size > LARGE:
            assert not result[LARGE:].any()


def test_numpy_itself_makes_its_arrays_as_before(x):
    clip(x)
    before = held()
    assert before > 0
    made = np.empty_like(x)
    assert get_handler_name(made) != "gradclip"
    del made
    assert held() == before


def test_threads_that_make_and_drop_outputs(x):
    expected = [np.clip(x[: LARGE - k], -1.0, 0.5) for k in range(4)]
    wrong = []

    def work(k):
        for i in range(20):
            result = gc.clip_by_value(x[: LARGE - (k + i) % 4], -1.0, 0.5)
            if not np.array_equal(result, expected[(k + i) % 4]):
                wrong.append((k, i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_more_is_held_than_the_setting_allows():
    code = """
x = np.ones(12_000_000, np.float32)
gc.clip_by_norm(x, 1.0)
print(gc._config._core.config()["memory_held"], gc._config._core.config()["memory_limit"])
"""
    assert run(code, GRADCLIP_POOL_BYTES="0") == ["0", "0"]
    assert run(code, GRADCLIP_POOL_BYTES="47000000") == ["0", "47000000"]
    held, limit = map(int, run(code, GRADCLIP_POOL_BYTES=" 49000000 "))
    assert 48_000_000 <= held <= limit == 49_000_000
    held, limit = map(int, run(code, GRADCLIP_POOL_BYTES=""))
    assert 48_000_000 <= held <= limit <= 1 << 30


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "100000\n", "a/memory.max": "max\n"}, 100_000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "70000\n", "memory.max": "80000\n"}, 70_000),
        ("0::/\n", {"memory.max": "90000\n"}, 90_000),
        ("0::/elsewhere\n", {"memory.max": "60000\n"}, 60_000),
        ("3:cpu:/a\n4:memory,x:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "50000\n"}, 50_000),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("0::/a\n", {"a/memory.max": "what\n"}, None),
        ("garbage\n0::\n", {}, None),
    ],
)
def test_the_limits_of_control_groups_count(groups, limits, expected, tmp_path):
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    files = {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{file}": text for file, text in limits.items()}
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    assert _core.memory_of_process(tmp_path) == (expected or machine)
    assert 0 < _core.memory_of_process("/") <= machine


def test_a_number_that_no_machine_has_is_a_number():
    assert run("gc.norm([1.0]); print(gc.trim())", GRADCLIP_POOL_BYTES="9" * 40) == ["0"]


@pytest.mark.parametrize("value", ["-1", "1e9", "1 GiB", "many"])
def test_a_bad_setting_is_an_error_of_the_first_call(value):
    code = """
calls = [lambda: gc.norm([1.0]), lambda: gc.clip_by_value([1.0], 0, 1), gc.trim, lambda: gc.global_norm([])]
for call in calls:
    try:
        call()
    except ValueError as error:
        assert "GRADCLIP_POOL_BYTES" in str(error), error
        assert os.environ["GRADCLIP_POOL_BYTES"] in str(error), error
        print("ok")
"""
    assert run(code, GRADCLIP_POOL_BYTES=value) == ["ok"] * 4


def test_a_forked_child_gives_back_what_it_inherits():
    code = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # threads and a fork: that is the point
x = np.ones(10_000_000, np.float32)
kept = gc.clip_by_value(x, 0, 0.5)
gc.clip_by_value(x, 0, 0.25)
held = lambda: gc._config._core.config()["memory_held"]
assert held() > 0
child = os.fork()
if child == 0:
    ok = held() == 0 and (kept == 0.5).all()
    del kept  # memory of the parent's, freed here
    for _ in range(3):
        ok = ok and (gc.clip_by_value(x, 0, 0.125) == 0.125).all()
    os._exit(0 if ok and held() > 0 else 1)
assert os.waitpid(child, 0)[1] == 0
assert held() > 0 and (kept == 0.5).all() and (gc.clip_by_value(x, 0, 2) == 1).all()
"""
    run(code)


def test_show_config_says_what_is_held(x, capsys):
    gc.clip_by_norm(x, 1.0)
    gc.show_config()
    assert f"{held()} bytes (at most " in capsys.readouterr().out
