"""The memory of large outputs, which is used again."""

import itertools
import os
import queue
import subprocess
import sys
import threading

import gradclip as gc
import numpy as np
import pytest
from gradclip import _core

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is held on Linux alone")
LARGE = 3_000_001  # float32: 12 MB, and not whole pages


def held():
    return _core.config()["memory_held"]


def run(code, **variables):
    """Run code in a process of its own."""
    lines = f"import os\nos.environ.update({variables!r})\nimport gradclip as gc, numpy as np\n{code}"
    command = [sys.executable, "-W", "error", "-c", lines]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def with_room(bytes_, count=1):
    """So many bytes, in pages of 64 KiB at most, or in whole huge ones where these are not over an eighth more."""
    return bytes_ + max(bytes_ // 8, count * 65536)


@pytest.fixture(autouse=True)
def trimmed():
    gc.trim()
    yield
    gc.trim()


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).standard_normal(LARGE, np.float32)


def test_the_memory_of_a_dropped_output_serves_the_next_one(x):
    first = gc.clip_by_norm(x, 1.0)
    expected, place = first.copy(), first.ctypes.data
    del first
    assert x.nbytes <= held() <= with_room(x.nbytes)
    second = gc.clip_by_norm(x, 1.0)
    assert second.ctypes.data == place
    assert second.flags.owndata
    assert second.base is None
    assert held() == 0
    np.testing.assert_array_equal(second, expected)


def test_every_function_that_makes_outputs_takes_it(x):
    calls = [
        lambda: gc.clip_by_value(x, -1.0, 1.0),
        lambda: gc.clip_by_average_norm(x, 1e-9),
        lambda: gc.clip_by_norm(x.reshape(-1, 1), 0.5, axes=1),
        lambda: gc.clip_by_global_norm([x], 1.0)[0][0],
        lambda: gc.clip_by_global_norm([x[::-1]], 1.0)[0][0],
        lambda: gc.normalize(x)[0],
    ]
    places = set()
    for call in calls:
        places.add(call().ctypes.data)
    assert len(places) == 1


def test_a_call_holds_no_more_than_it_made(x):
    gc.clip_by_norm(x, 1.0)
    before = held()
    small = gc.clip_by_norm(x[: LARGE // 3], 1.0)
    assert held() <= with_room(small.nbytes) < before
    del small
    assert held() <= with_room(x.nbytes // 3)


def test_outputs_of_a_list_are_held_together(x):
    tensors = [x, x[: LARGE // 2], x[: LARGE // 4].copy(), np.ones(10, np.float32)]
    bytes_ = sum(tensor.nbytes for tensor in tensors[:3])
    for _ in range(4):
        clipped, _ = gc.clip_by_global_norm(tensors, 1.0)
    del clipped
    assert bytes_ <= held() <= with_room(bytes_, 4)


@pytest.mark.parametrize("mib", [0.6, 1.7, 1.9, 3.5, 3.6, 3.9, 4.1, 17])
def test_blocks_are_whole_huge_pages_where_that_is_an_eighth_more(mib):
    page, huge = 4096, 2 << 20
    x = np.ones(int(mib * (1 << 20)) // 4, np.float32)
    gc.clip_by_value(x, 2.0, 3.0)
    small, large = (-(-x.nbytes // unit) * unit for unit in (page, huge))
    assert held() in ([large] if large - small <= small // 8 else range(small, small + 65536, page))


def test_trim_gives_back_what_is_held_and_nothing_else(x):
    kept = gc.clip_by_value(x, -1.0, 1.0)
    gc.clip_by_value(x, -1.0, 1.0)
    assert gc.trim() >= x.nbytes
    assert held() == 0
    np.testing.assert_array_equal(kept, np.clip(x, -1.0, 1.0))


def test_an_output_can_be_resized(x):
    for size in (LARGE // 2, LARGE * 2, 0, 7):
        result = gc.clip_by_value(x, -1.0, 1.0)
        result.resize(size, refcheck=False)
        count = min(size, LARGE)
        np.testing.assert_array_equal(result[:count], np.clip(x[:count], -1.0, 1.0))
        if size > LARGE:
            assert not result[LARGE:].any()


def test_numpy_itself_makes_its_arrays_as_before(x):
    del_me = gc.clip_by_norm(x, 1.0)
    del del_me
    before = held()
    made = np.empty_like(x)
    assert held() == before
    del made
    assert held() == before


KIB = 1 << 10
SLABS = (256 * KIB, 2048 * KIB)
#: Around the sizes from which on an output comes from another kind of slab, or from none; and no multiples of a line.
SIZES = (1, 15, 16, 17, 1024, 8191, 8192, 8193, 50_000, 131_071, 131_072, 150_000)


def ramp(size, first=1):
    return np.arange(first, first + size, dtype=np.float32) / size


def clipped(tensors, factor=0.5):
    return gc.clip_by_global_norm(tensors, factor, use_norm=1.0)[0]


def test_the_memory_of_a_dropped_list_of_small_outputs_serves_the_next_one():
    for size, count in ((16, 2000), (1024, 500), (20_000, 100)):
        tensors = [ramp(size, i) for i in range(count)]
        nbytes = size * count * 4
        outputs = clipped(tensors)
        places = {output.ctypes.data for output in outputs}
        assert all(output.flags.owndata and output.base is None for output in outputs)
        assert all(place % 64 == 0 for place in places)
        assert held() == 0
        del outputs
        assert nbytes <= held() <= 2 * nbytes + 2 * max(SLABS)
        again = clipped(tensors)
        assert {output.ctypes.data for output in again} == places
        for output, tensor in zip(again, tensors, strict=True):
            np.testing.assert_array_equal(output, tensor / 2)
        del again, output
        assert gc.trim() >= nbytes
        assert held() == 0


def test_outputs_of_all_sizes_lie_apart():
    tensors = [ramp(size, i) for i, size in enumerate(SIZES * 7)]
    tensors += [ramp(12).reshape(3, 4).T, np.ones((0, 5), np.float32), np.ones((), np.float32)]
    expected = [tensor / 2 for tensor in tensors]
    for _ in range(3):
        outputs = clipped([None, *tensors])[1:]
        ends = sorted((output.ctypes.data, output.nbytes) for output in outputs)
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(ends))
        for i, (output, value) in enumerate(zip(outputs, expected, strict=True)):
            np.testing.assert_array_equal(output, value)
            output[...] = -i
        assert all((output == -i).all() for i, output in enumerate(outputs))


@pytest.mark.parametrize(("size", "slab"), [(16, SLABS[0]), (8192, SLABS[0]), (8193, SLABS[1]), (100_000, SLABS[1])])
def test_a_small_output_keeps_no_more_than_its_slab(size, slab):
    tensors = [ramp(size, i) for i in range(8 * slab // (size * 4))]
    outputs = clipped(tensors)
    kept = outputs[len(outputs) // 2]
    del outputs
    before = held()
    for _ in range(3):
        clipped(tensors, 0.25)
    np.testing.assert_array_equal(kept, tensors[len(tensors) // 2] / 2)
    del kept
    # Of the last call as many slabs are held as it had, and with this one there is one more than those.
    assert before <= held() <= before + slab
    assert before >= 7 * slab


def test_small_outputs_can_be_resized():
    for size in SIZES:
        count = (4 << 20) // (size * 4) if size > 1024 else 3000
        tensors = [ramp(size, i) for i in range(max(count, 8))]
        outputs = clipped(tensors)
        first, second, third = outputs[:3]
        others = outputs[3:]
        del outputs
        first.resize(2 * size + 100, refcheck=False)
        second.resize(max(size // 2, 1), refcheck=False)
        third.resize(0, refcheck=False)
        third.resize(5, refcheck=False)
        np.testing.assert_array_equal(first[:size], tensors[0] / 2)
        assert not first[size:].any()
        np.testing.assert_array_equal(second, tensors[1][: len(second)] / 2)
        assert not third[1:].any()
        first[...] = second[...] = third[...] = 7
        for output, tensor in zip(others, tensors[3:], strict=True):
            np.testing.assert_array_equal(output, tensor / 2)


def test_few_small_outputs_are_left_to_the_c_library():
    outputs = clipped([ramp(16) for _ in range(10)])
    del outputs
    outputs = clipped([ramp(30_000)])
    del outputs
    assert held() == 0


def test_numpy_makes_its_arrays_as_before_after_a_list():
    clipped([ramp(size) for size in SIZES * 40])
    before = held()
    assert before > 0
    made = [np.empty(size, np.float32) for size in SIZES * 40]
    del made
    assert held() == before


def test_threads_that_make_small_outputs_and_drop_those_of_others():
    tensors = [ramp(size, i) for i, size in enumerate(SIZES * 20)]
    expected = [tensor / 2 for tensor in tensors]
    shared, wrong = queue.SimpleQueue(), []

    def work():
        for _ in range(8):
            shared.put(clipped(tensors))
            for output, value in zip(shared.get(), expected, strict=True):
                if not np.array_equal(output, value):
                    wrong.append(len(output))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert gc.trim() > 0
    assert held() == 0


def test_no_slabs_are_held_beyond_the_setting():
    code = """
tensors = [np.ones(1024, np.float32) for _ in range(500)]
gc.clip_by_global_norm(tensors, 1.0)
print(gc._config._core.config()["memory_held"])
"""
    assert run(code, GRADCLIP_POOL_BYTES="0") == ["0"]
    assert run(code, GRADCLIP_POOL_BYTES="600000") == [str(2 * SLABS[0])]


def test_a_forked_child_gives_back_slabs():
    code = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
tensors = [np.full(1000, i, np.float32) for i in range(500)]
clip = lambda: gc.clip_by_global_norm(tensors, 0.5, use_norm=1.0)[0]
right = lambda outputs: all((output == i / 2).all() for i, output in enumerate(outputs))
held = lambda: gc._config._core.config()["memory_held"]
kept = clip()
clip()
assert held() > 0
child = os.fork()
if child == 0:
    ok = held() == 0 and right(kept)
    del kept[::2]
    del kept
    for _ in range(3):
        ok = ok and right(clip())
    os._exit(0 if ok and held() > 0 else 1)
assert os.waitpid(child, 0)[1] == 0
assert held() > 0 and right(kept) and right(clip())
"""
    run(code)


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
x = np.ones(3_000_000, np.float32)
gc.clip_by_norm(x, 1.0)
print(gc._config._core.config()["memory_held"], gc._config._core.config()["memory_limit"])
"""
    assert run(code, GRADCLIP_POOL_BYTES="0") == ["0", "0"]
    assert run(code, GRADCLIP_POOL_BYTES="11000000") == ["0", "11000000"]
    held, limit = map(int, run(code, GRADCLIP_POOL_BYTES=" 13000000 "))
    assert 12_000_000 <= held <= limit == 13_000_000
    held, limit = map(int, run(code, GRADCLIP_POOL_BYTES=""))
    assert 12_000_000 <= held <= limit <= 1 << 30


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
x = np.ones(3_000_000, np.float32)
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
