"""The memory of outputs, which is kept for the next call when it is freed."""

import os
import platform
import queue
import subprocess
import sys
import threading
from pathlib import Path

import gradclip as gc
import numpy as np
import pytest
from gradclip import _core

try:
    from numpy._core.multiarray import get_handler_name
except ImportError:  # NumPy 1
    from numpy.core.multiarray import get_handler_name

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is held on Linux alone")
MIB = 1 << 20
LARGE = 32 * MIB  # bytes of the smallest output that owns a block
LIMIT = 512 * MIB  # the default limit of most scripts


def held():
    return _core.config()["memory_held"]


def run(code, **variables):
    """Run code in a separate process."""
    lines = f"""
import os
os.environ.update({{"GRADCLIP_POOL_BYTES": "{LIMIT}"}} | {variables!r})
import gradclip as gc, numpy as np
held = lambda: gc._config._core.config()["memory_held"]
MIB = 1 << 20

def output(mib):
    return gc.clip_by_value(np.broadcast_to(np.int8(3), round(mib * MIB)), 0, 2)
{code}"""
    command = [sys.executable, "-W", "error", "-c", lines]
    # glibc reads its variables at the start. dask.distributed sets one of them in each process that has used it.
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=own)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(autouse=True)
def trimmed():
    gc.trim()
    yield
    gc.trim()


@pytest.fixture(scope="module")
def x():
    """33 MiB and some bytes, no whole number of pages."""
    if _core.config()["memory_limit"] < 128 * MIB:
        pytest.skip("too little memory to hold some")
    return np.resize(np.linspace(-2, 2, 999, dtype=np.float32), (33 * MIB // 4 + 8) // 9 * 9)


# ---- which outputs own a block

CALLS = {
    "clip_by_value": lambda x: gc.clip_by_value(x, -1.0, 1.0),
    "clip_by_norm": lambda x: gc.clip_by_norm(x, 1.0),
    "clip_by_norm of rows": lambda x: gc.clip_by_norm(x.reshape(-1, 9), 0.5, axes=1),
    "clip_by_norm of columns": lambda x: gc.clip_by_norm(x.reshape(-1, 9), 0.5, axes=0),
    "clip_by_norm of Fortran order": lambda x: gc.clip_by_norm(x.reshape(-1, 9).T, 0.5),
    "clip_by_average_norm": lambda x: gc.clip_by_average_norm(x, 1e-9),
    "clip_by_global_norm": lambda x: gc.clip_by_global_norm([x[:9], x], 1.0)[0][1],
    "clip_by_global_norm reversed": lambda x: gc.clip_by_global_norm([x[::-1]], 1.0)[0][0],
    "normalize": lambda x: gc.normalize(x)[0],
}


@pytest.mark.parametrize("name", CALLS)
def test_an_output_of_32_mib_owns_a_block_that_serves_the_next_one(name, x):
    first = CALLS[name](x)
    expected, place = first.copy(), first.ctypes.data
    assert get_handler_name(first) == "gradclip"
    assert first.flags.owndata
    assert first.base is None
    assert held() == 0
    del first
    assert held() == -(-x.nbytes // 4096) * 4096
    second = CALLS[name](x)
    assert second.ctypes.data == place
    assert held() == 0
    np.testing.assert_array_equal(second, expected)


@pytest.mark.parametrize("bytes_", [1, 100_000, 4 * MIB, LARGE - 4])
def test_a_smaller_output_is_numpys_own(bytes_, x):
    tensor = x[: -(-bytes_ // 4)]
    for call in (CALLS["clip_by_value"], CALLS["clip_by_norm"], CALLS["normalize"]):
        result = call(tensor)
        assert get_handler_name(result) == get_handler_name(np.empty(1))
        del result
    outputs, _ = gc.clip_by_global_norm([tensor] * 12, 1.0, use_norm=2.0)  # together more than 32 MiB
    assert all(get_handler_name(output) == get_handler_name(np.empty(1)) for output in outputs)
    del outputs
    assert held() == 0
    assert get_handler_name(CALLS["clip_by_value"](x[: LARGE // 4])) == "gradclip"


def test_numpy_itself_makes_its_arrays_as_before(x):
    before = get_handler_name()
    gc.clip_by_norm(x, 1.0)
    waiting = held()
    made = np.empty_like(x)
    assert get_handler_name(made) == get_handler_name() == before != "gradclip"
    del made
    assert held() == waiting > 0
    with pytest.raises(MemoryError):
        gc.clip_by_value(np.broadcast_to(np.float32(1), (1 << 60,)), 0, 1)
    assert get_handler_name() == before


def test_an_output_can_be_resized(x):
    for size in (x.size // 2, x.size + 1, x.size * 2, 0, 7):
        result = gc.clip_by_value(x, -1.0, 1.0)
        result.resize(size, refcheck=False)
        count = min(size, x.size)
        np.testing.assert_array_equal(result[:count], np.clip(x[:count], -1.0, 1.0))
        assert not result[count:].any()


# ---- which waiting block serves which output


@pytest.mark.parametrize(
    ("waiting", "wanted", "serves"),
    [(36, 36, True), (36, 32, True), (37, 32, False), (64, 57.5, True), (64, 32, False), (33, 33.01, False)],
)
def test_a_waiting_block_serves_what_leaves_an_eighth_of_it_unused(waiting, wanted, serves):
    code = f"output({waiting}); first = held(); kept = output({wanted}); print(first, held()); assert (kept == 2).all()"
    first, second = map(int, run(code))
    assert first == waiting * MIB
    assert second == (0 if serves else first)


def test_the_smallest_block_that_fits_serves():
    code = """
kept = [output(mib) for mib in (36, 33, 34, 35)]
kept.clear()
kept = output(32)
print(held() // MIB)
"""
    assert run(code) == ["105"]


def test_the_least_recently_used_block_goes_first():
    code = """
kept = [output(mib) for mib in (32, 34, 36, 38)]
while kept:
    kept.pop(0)
    print(held() // MIB)  # the fourth takes the place of the first
output(34)  # now it is the one used last
output(43)
print(held() // MIB)
output(120)  # more than may wait at all: it takes nobody's place
print(held() // MIB)
"""
    assert run(code, GRADCLIP_POOL_BYTES=str(110 << 20)) == ["32", "66", "102", "108", "77", "77"]


def test_no_more_is_held_than_the_setting_allows():
    code = """
output(32)
config = gc._config._core.config()
print(config["memory_held"], config["memory_limit"])
"""
    assert run(code, GRADCLIP_POOL_BYTES="0") == ["0", "0"]
    assert run(code, GRADCLIP_POOL_BYTES=str(LARGE - 1)) == ["0", str(LARGE - 1)]
    assert run(code, GRADCLIP_POOL_BYTES=f" {LARGE} ") == [str(LARGE), str(LARGE)]
    default = min(1 << 30, _core.memory_of_process("/") // 16)
    assert int(run(code, GRADCLIP_POOL_BYTES="")[1]) == default


def test_without_room_in_the_setting_numpy_has_the_memory():
    code = """
try:
    from numpy._core.multiarray import get_handler_name
except ImportError:
    from numpy.core.multiarray import get_handler_name
print(get_handler_name(output(40)))
"""
    assert run(code, GRADCLIP_POOL_BYTES="0") == [get_handler_name()]
    assert run(code) == ["gradclip"]


glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or "LD_PRELOAD" in os.environ,
    reason="another malloc, of another C library or preloaded (as AddressSanitizer is), keeps memory by other rules",
)


@glibc
@pytest.mark.parametrize(("count", "kib"), [(280, 3.5), (1000, 4), (40, 1024)])
def test_glibc_keeps_the_memory_of_dropped_lists(count, kib):
    code = f"""
import resource
ts = [np.ones({round(kib * 256)}, np.float32) for _ in range({count})]
faults = []
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    clipped = gc.clip_by_global_norm(ts, 1.0)[0]
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    del clipped
print(min(faults))
"""
    assert int(*run(code)) < 50


@glibc
@pytest.mark.parametrize(("mib", "heap", "mapped"), [(512, 31, 33), (16, 7, 9), (0, None, 4)])
def test_glibc_keeps_no_more_than_the_setting(mib, heap, mapped):
    """It keeps up to twice the size of the largest block from its heap. A bit in the header marks other blocks."""
    code = """
import ctypes
gc.clip_by_global_norm([np.ones(2048, np.float32)], 1.0)
malloc = ctypes.CDLL(None).malloc
malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_size_t
for mib in (4, 7, 9, 31, 33):
    print(mib, ctypes.c_size_t.from_address(malloc(mib * MIB) - 8).value >> 1 & 1)
"""
    lines = run(code, GRADCLIP_POOL_BYTES=str(mib * MIB))
    is_mapped = dict(zip(map(int, lines[::2]), map(int, lines[1::2]), strict=True))
    assert is_mapped[mapped]
    assert heap is None or not is_mapped[heap]


@glibc
def test_kept_outputs_take_few_mappings_of_the_kernel():
    code = """
def mappings():
    with open("/proc/self/maps") as lines:
        return sum(1 for _ in lines)

kept = [output(1)]
before = mappings()
kept += [output({mib}) for _ in range({count})]
print(mappings() - before)
"""
    assert int(run(code.format(mib=1, count=200))[0]) < 50
    # A setting with less room than an output.
    assert int(run(code.format(mib=0.1, count=2000), GRADCLIP_POOL_BYTES="20000")[0]) < 50
    lists = "ts = [np.ones(1 << 14, np.float32)] * 64; kept += [gc.clip_by_global_norm(ts, 1.0) for _ in range(20)]\n"
    code = code.replace("print", lists + "print")
    assert int(run(code.format(mib=1, count=0), GRADCLIP_POOL_BYTES="20000")[0]) < 50


@glibc
def test_trim_returns_the_pages_of_dropped_arrays():
    code = """
def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) << 10

gc.clip_by_value(np.ones(9999), 0.0, 1.0)
dropped = [np.ones(MIB, np.int8) for _ in range(60)]
above = np.ones(MIB, np.int8)
dropped.clear()
before = resident()
assert gc.trim() == 0
print(before - resident())
"""
    assert int(run(code)[0]) > 40 * MIB


def test_the_kernel_may_take_the_pages_of_waiting_blocks():
    code = """
def lazy():
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("LazyFree"))

kept = output(40)
before = lazy()
del kept
print(lazy() - before)
"""
    told = Path("/proc/self/smaps_rollup")
    if not told.exists() or "LazyFree" not in told.read_text():
        pytest.skip("this kernel does not say what it may take")
    assert int(run(code)[0]) > 30 * MIB


# ---- huge pages


ASKED_FOR = """
def asked_for(place):
    with open("/proc/self/smaps") as lines:
        inside = False
        for line in lines:
            first = line.split()[0]
            if "-" in first:
                begin, end = (int(part, 16) for part in first.split("-"))
                inside = begin <= place < end
            elif inside and first == "VmFlags:":
                return "hg" in line.split()[1:]
"""

huge_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no transparent huge pages"
)


@huge_pages
@pytest.mark.parametrize(
    ("mib", "setting", "asks"),
    [
        pytest.param(1, "1", True, marks=glibc),
        (1, "0", False),
        (0.5, "1", False),
        (40, "1", True),
        (40, "0", False),
    ],
)
def test_huge_pages_are_asked_for_unless_numpy_is_told_not_to(mib, setting, asks):
    code = f"""{ASKED_FOR}
kept = [output({mib}) for _ in range(3)]
print(*{{asked_for(place.ctypes.data + place.nbytes // 2) for place in kept}})
"""
    assert run(code, NUMPY_MADVISE_HUGEPAGE=setting) == [str(asks)]


@huge_pages
@glibc
@pytest.mark.parametrize(("setting", "least", "most"), [("1", 40, 64), ("0", 0, 0)])
def test_huge_pages_are_asked_for_the_outputs_of_a_list_together(setting, least, most):
    # Some of the outputs may lie in free memory between other arrays.
    code = f"""{ASKED_FOR}
kept = gc.clip_by_global_norm([np.ones(1 << 14, np.float32)] * 64, 1.0)[0]
print(sum(asked_for(place.ctypes.data + 100) for place in kept))
"""
    assert least <= int(run(code, NUMPY_MADVISE_HUGEPAGE=setting)[0]) <= most


# ---- giving it back


def test_trim_gives_back_what_waits_and_nothing_else(x):
    kept = gc.clip_by_value(x, -1.0, 1.0)
    gc.clip_by_value(x, -1.0, 1.0)
    waiting = held()
    assert gc.trim() == waiting >= x.nbytes
    assert held() == gc.trim() == 0
    np.testing.assert_array_equal(kept, np.clip(x, -1.0, 1.0))


def test_what_is_given_back_is_gone():
    code = """
def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) << 10

output(33)
gc.trim()
before = resident()
for mib in (40, 50, 60):
    output(mib)
gc.trim()
print(resident() - before)
"""
    assert int(run(code)[0]) < 16 * MIB


def test_show_config_says_what_is_held(x, capsys):
    gc.clip_by_norm(x, 1.0)
    gc.show_config()
    assert f"{held()} bytes (at most " in capsys.readouterr().out
    assert held() >= x.nbytes


# ---- threads and forks


def test_threads_that_make_outputs_and_drop_those_of_others(x):
    expected = [np.clip(x[k:], -1.0, 0.5) for k in range(2)]
    shared, wrong = queue.SimpleQueue(), []

    def work(k):
        for i in range(5):
            shared.put(((k + i) % 2, gc.clip_by_value(x[(k + i) % 2 :], -1.0, 0.5)))
            at, result = shared.get()
            if not np.array_equal(result, expected[at]):
                wrong.append((k, i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    waiting = held()
    assert waiting <= _core.config()["memory_limit"]
    assert gc.trim() == waiting


@pytest.mark.parametrize("fork", ["os.fork", "__import__('ctypes').PyDLL(None).fork"])
def test_a_forked_child_gives_back_what_it_inherits(fork):
    code = f"""
import signal, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # threads and a fork: that is the point

def mappings():
    with open("/proc/self/maps") as lines:
        return [line.split()[0] for line in lines]

kept = output(33)
waits = output(40)
place = f"{{waits.ctypes.data - 4096:x}}-"
del waits
assert held() == 40 * MIB
child = {fork}()
if child == 0:
    signal.alarm(60)
    ok = held() == 0 and (kept == 2).all()
    ok = ok and not any(mapping.startswith(place) for mapping in mappings())
    del kept  # memory of the parent's, freed here
    ok = ok and (output(33) == 2).all() and held() == 33 * MIB and (output(33) == 2).all()
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
assert held() == 40 * MIB and (kept == 2).all() and (output(40) == 2).all()
"""
    run(code)


# ---- the setting


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
