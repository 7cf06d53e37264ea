"""The pool: its size, bad settings, several Python threads, and the GIL."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import gradclip as gc
import numpy as np
import pytest
from calls import HAS_GIL
from oracle import same_bits

pytestmark = pytest.mark.thread_unsafe(reason="starts threads and processes of its own")
NAMES = ("GRADCLIP_NUM_THREADS", "RAYON_NUM_THREADS")


def run(script, **variables):
    """A fresh interpreter with these variables, and none of the others that set the number of threads."""
    environment = {k: v for k, v in os.environ.items() if k not in NAMES} | variables
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def printed(script, **variables):
    child = run(script, **variables)
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


# ---- set and get


@pytest.mark.parametrize("n", [1, 2, 3, 64, 1024])
def test_the_number_set_is_the_number_got(n, threads):
    before = gc.get_num_threads()
    with threads(n):
        assert gc.get_num_threads() == n
        assert type(gc.get_num_threads()) is int
    assert gc.get_num_threads() == before


@pytest.mark.parametrize("n", [0, -1, 1025, 10**30, -(10**30)])
def test_a_number_out_of_range_is_a_value_error(n):
    before = gc.get_num_threads()
    with pytest.raises(ValueError, match=r"set_num_threads.*1024"):
        gc.set_num_threads(n)
    assert gc.get_num_threads() == before


@pytest.mark.parametrize("n", [1.0, "2", None, [1], np.float64(2)])
def test_no_integer_is_a_type_error(n):
    with pytest.raises(TypeError, match="set_num_threads"):
        gc.set_num_threads(n)


def test_a_new_number_is_used_by_later_calls(threads):
    x = np.random.default_rng(0).standard_normal(2_000_000)
    with threads(1):
        expected = gc.clip_by_norm(x, 1.0)
    for n in (2, 5, 1, 3):
        with threads(n):
            assert same_bits(gc.clip_by_norm(x, 1.0), expected)


# ---- the environment

GET = "import gradclip as gc; print(gc.get_num_threads())"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"GRADCLIP_NUM_THREADS": "3"}, 3),
        ({"RAYON_NUM_THREADS": "5"}, 5),
        ({"GRADCLIP_NUM_THREADS": "3", "RAYON_NUM_THREADS": "5"}, 3),
        ({"GRADCLIP_NUM_THREADS": "", "RAYON_NUM_THREADS": "5"}, 5),
        ({"GRADCLIP_NUM_THREADS": "3", "RAYON_NUM_THREADS": "abc"}, 3),
        ({"GRADCLIP_NUM_THREADS": "3", "RAYON_NUM_THREADS": "0"}, 3),
    ],
)
def test_the_variables_set_the_number_of_threads(variables, expected):
    assert printed(GET, **variables) == str(expected)


@pytest.mark.parametrize("before", ["7", "bad"])
def test_variables_that_are_set_after_the_import_count(before):
    script = f"""
    import os
    os.environ.update(GRADCLIP_NUM_THREADS="{before}", GRADCLIP_POOL_BYTES="0")
    import gradclip as gc
    os.environ.update(GRADCLIP_NUM_THREADS="3", GRADCLIP_POOL_BYTES="many")
    try:
        gc.norm([3.0, 4.0])
    except ValueError as error:
        print(gc.get_num_threads(), "GRADCLIP_POOL_BYTES" in str(error))
    """
    assert printed(script) == "3 True"


@pytest.mark.parametrize(
    "variables", [{"RAYON_NUM_THREADS": "0"}, {"RAYON_NUM_THREADS": ""}, {"GRADCLIP_NUM_THREADS": ""}]
)
def test_empty_or_rayon_0_counts_as_unset(variables):
    assert printed(GET, **variables) == printed(GET)


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system does not say which CPUs a process may use"
)
def test_the_cpus_this_process_may_use_count():
    script = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n" + GET
    assert printed(script) == "1"
    assert 1 <= int(printed(GET)) <= len(os.sched_getaffinity(0))


def test_the_cpus_of_a_control_group_count():
    group = Path(f"/sys/fs/cgroup/cpu/gradclip-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("control groups cannot be made here")
    try:
        try:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("100000")
        except OSError:
            pytest.skip("control groups cannot be limited here")
        script = f"import os; open('{group}/cgroup.procs', 'w').write(str(os.getpid()))\n" + GET
        assert printed(script) == "1"
    finally:
        group.rmdir()


CALLS = [
    "clip_by_value(1.0, 0, 1)",
    "clip_by_norm([1.0], 1)",
    "clip_by_average_norm([1.0], 1)",
    "clip_by_global_norm([], 1)",
    "global_norm([])",
    "norm(1.0)",
    "normalize([1.0])",
    "norms([])",
    "clip_by_norms([], 1)",
    "clip_by_rms([1.0], 1)",
    "clip_by_weight_norm([], [])",
    "clip_examples_by_global_norm([], 1)",
    "clip_difference_by_global_norm([], [], 1)",
    "NormState.of([])",
    "NormState.of([], reproducible=True)",
]


BAD = [*((NAMES[0], value) for value in ("abc", "0", "-1", "1.5", "9" * 30)), (NAMES[1], "abc"), (NAMES[1], "1.5")]


@pytest.mark.parametrize(("variable", "value"), BAD)
def test_a_bad_value_is_a_value_error_naming_the_variable_at_every_call(variable, value):
    script = f"""
        import gradclip as gc
        print("imported", flush=True)
        for call in {CALLS * 2}:
            try:
                print(eval("gc." + call))
            except ValueError as error:
                print(call, error)
    """
    first, *errors = printed(script, **{variable: value}).splitlines()
    assert first == "imported"
    assert len(errors) == 2 * len(CALLS)
    for call, message in zip(CALLS * 2, errors, strict=True):
        assert message.startswith(f"{call} ")
        assert variable in message
        assert value in message


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

#: The state of the workers of a process: (name, state) of each.
WORKERS = """
import os, time
import numpy as np

def workers():
    found = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/stat") as line:
            name, _, rest = line.read().partition("(")[2].rpartition(")")
            found.append((name, rest.split()[0]))
    return [state for name, state in found if name.startswith("gradclip")]
"""


@on_linux
def test_nothing_starts_at_import_or_for_small_calls():
    """A pass that moves less than 6 MiB is over before a worker has woken up."""
    script = WORKERS + textwrap.dedent("""
        before = len(os.listdir("/proc/self/task"))
        import gradclip as gc
        gc.set_num_threads(4)
        assert len(os.listdir("/proc/self/task")) == before
        x = np.ones((100, 1000), np.float32)
        for x in (x, np.ones((700, 1000), np.float32)):
            gc.clip_by_norm(x, 1.0), gc.clip_by_norm(x, 1.0, 0), gc.clip_by_norm(x, 1.0, 1)
            gc.clip_by_value(x, 0, 0.5), gc.clip_by_global_norm(list(x), 1.0), gc.norm(x), gc.normalize(x)
        assert len(os.listdir("/proc/self/task")) == before
        gc.norm(np.ones(6 << 20, np.int8).view(np.float32)[:-1])
        assert len(os.listdir("/proc/self/task")) == before
        gc.norm(np.ones(6 << 20, np.int8).view(np.float32))
        assert len(os.listdir("/proc/self/task")) == before + 3
        end = time.monotonic() + 10
        while len(workers()) < 3 and time.monotonic() < end:  # a thread gives itself its name
            time.sleep(0.01)
        print(len(workers()))
    """)
    assert printed(script) == "3"


@on_linux
def test_workers_sleep_between_calls():
    """No CPU time is used while nobody calls, however busy the machine is."""
    script = WORKERS + textwrap.dedent("""
        import gradclip as gc
        gc.set_num_threads(4)
        x = np.ones(4 << 20, np.float32)
        for _ in range(20):
            gc.clip_by_norm(x, 1.0)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.1, time.process_time() - before
        assert workers() == ["S"] * 3, workers()
        print("asleep")
    """)
    assert printed(script, OPENBLAS_NUM_THREADS="1") == "asleep"


@on_linux
def test_no_thread_is_bound_to_a_cpu():
    script = WORKERS + textwrap.dedent("""
        import gradclip as gc
        gc.set_num_threads(3)
        allowed = os.sched_getaffinity(0)
        x = np.ones(4 << 20, np.float32)
        for _ in range(20):
            gc.clip_by_norm(x, 1.0)
        tasks = list(map(int, os.listdir("/proc/self/task")))
        assert len(tasks) >= 3
        print(all(os.sched_getaffinity(task) == allowed for task in tasks))
    """)
    assert printed(script) == "True"


# ---- several Python threads, and the GIL


@pytest.mark.timeout(120)
def test_several_python_threads_get_the_same_bits(threads):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n) for n in (10, 1000, 50_000, 1_000_000)]
    calls = (
        lambda x: gc.clip_by_norm(x, 1.0),
        gc.norm,
        lambda x: gc.clip_by_value(x, -1, 1),
        lambda x: gc.global_norm([x, x[::2]]),
    )
    expected = [[call(x) for call in calls] for x in arrays]
    wrong, start = [], threading.Barrier(8)

    def work():
        start.wait()
        for _ in range(6):
            for x, answers in zip(arrays, expected, strict=True):
                for call, answer in zip(calls, answers, strict=True):
                    if not same_bits(call(x), answer):
                        wrong.append(x.size)

    with threads(2):
        workers = [threading.Thread(target=work) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert wrong == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("n", [2, 3, 16])
def test_short_calls_that_follow_closely_get_the_same_bits(n, threads):
    # These calls wake threads, find them awake, or find them busy for another call; which is not observable.
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((800, 1000)), rng.standard_normal(1_600_000).astype(np.float32)  # just enough for that
    calls = (
        lambda: gc.clip_by_norm(x, 1.0),
        lambda: gc.clip_by_norm(x, 1.0, 1),
        lambda: gc.clip_by_norm(x, 1.0, 0),
        lambda: gc.norm(x),
        lambda: gc.norm(x, 3.7),
        lambda: gc.norm(x, axis=0),
        lambda: gc.clip_by_value(x, -1, 1),
        lambda: gc.clip_by_value(y, -1, 1),
        lambda: gc.clip_by_global_norm([x, y, *x], 1.0)[0][0],
    )
    with threads(1):
        expected = [call() for call in calls]
    wrong = []

    def work():
        for i, (call, answer) in enumerate(zip(calls, expected, strict=True)):
            if not all(same_bits(call(), answer) for _ in range(6)):
                wrong.append(i)

    with threads(n):
        work()
        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert wrong == []


@pytest.mark.timeout(60)
def test_the_number_of_threads_may_change_while_others_compute(threads):
    x = np.random.default_rng(0).standard_normal(1_000_000)
    expected, stop, wrong = gc.clip_by_norm(x, 1.0), threading.Event(), []

    def work():
        while not stop.is_set():
            if not same_bits(gc.clip_by_norm(x, 1.0), expected):
                wrong.append(1)

    with threads(2):
        worker = threading.Thread(target=work)
        worker.start()
        for n in (1, 3, 2, 7) * 5:
            gc.set_num_threads(n)
            gc.norm(x)
        stop.set()
        worker.join()
    assert wrong == []


LONG_CALLS = {
    "clip_by_value": lambda x: gc.clip_by_value(x, -1, 1),
    "clip_by_value in place": lambda x: gc.clip_by_value(x, -1, 1, out=x),
    "clip_by_value to an array": lambda x: gc.clip_by_value(x, x[0], x),
    "clip_by_norm": lambda x: gc.clip_by_norm(x, 1.0),
    "clip_by_norm of elements": lambda x: gc.clip_by_norm(x, 1.0, ()),
    "clip_by_norm of rows": lambda x: gc.clip_by_norm(x, 1.0, 1),
    "clip_by_norm of columns": lambda x: gc.clip_by_norm(x, 1.0, 0),
    "clip_by_norm strided": lambda x: gc.clip_by_norm(x[:, ::2], 1.0),
    "clip_by_average_norm": lambda x: gc.clip_by_average_norm(x, 1e-9),
    "clip_by_global_norm": lambda x: gc.clip_by_global_norm([x], 1.0),
    "clip_by_global_norm of many": lambda x: gc.clip_by_global_norm(list(x), 1.0, out=list(x)),
    "clip_by_global_norm strided": lambda x: gc.clip_by_global_norm([x[:, ::2], x[:, 1::2]], 1.0),
    "clip_by_global_norm of IndexedSlices": lambda x: gc.clip_by_global_norm([gc.IndexedSlices(x, range(len(x)))], 1.0),
    "global_norm": lambda x: gc.global_norm([x, x]),
    "norm": lambda x: gc.norm(x, 3.7),
    "norm of rows": lambda x: gc.norm(x, 1.5, axis=1),
    "norm of columns": lambda x: gc.norm(x, axis=0),
    "normalize": lambda x: gc.normalize(x),
    "normalize of rows": lambda x: gc.normalize(x, axis=1),
    "norms": lambda x: gc.norms([x]),
    "clip_by_norms": lambda x: gc.clip_by_norms([x], 1.0),
    "clip_by_norms of many": lambda x: gc.clip_by_norms(list(x), 1.0),
    "clip_by_rms": lambda x: gc.clip_by_rms(x, 0.1),
    "clip_by_weight_norm": lambda x: gc.clip_by_weight_norm([x], [x[::-1]]),
    "clip_examples_by_global_norm": lambda x: gc.clip_examples_by_global_norm([x], 1.0),
    "clip_difference_by_global_norm": lambda x: gc.clip_difference_by_global_norm([x], [x[::-1]], 1.0),
    "NormState.of": lambda x: gc.NormState.of([x]),
    "NormState.of reproducible": lambda x: gc.NormState.of([x], reproducible=True),
}


@contextmanager
def another_thread():
    """The times at which another thread ran, while the GIL moves only when a thread releases it."""
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0002)

    other = threading.Thread(target=tick)
    interval = sys.getswitchinterval()
    other.start()
    try:
        sys.setswitchinterval(60)
        yield ticks
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        other.join()


@pytest.mark.sampled
@pytest.mark.parametrize("name", LONG_CALLS)
@pytest.mark.timeout(120)
def test_another_thread_makes_progress_during_a_long_call(name, threads):
    x = np.resize(np.random.default_rng(0).standard_normal(6007), (6_000, 1000))
    windows = []
    with threads(1), another_thread() as ticks:
        deadline = time.perf_counter() + 20
        while time.perf_counter() < deadline and sum(during(w, ticks) for w in windows) < 3:
            time.sleep(0.002)  # the other thread gets going
            start = time.perf_counter()
            LONG_CALLS[name](x)
            windows.append((start, time.perf_counter()))
    assert sum(during(w, ticks) for w in windows) >= 3


def during(window, ticks):
    return sum(window[0] < t < window[1] for t in ticks)


SMALL_CALLS = LONG_CALLS | {
    "norm of matrices": lambda x: gc.norm(x, 1, axis=(0, 1)),
    "normalize of columns": lambda x: gc.normalize(x, 3, axis=0),
    "global_norm of a tuple": lambda x: gc.global_norm((x, None, x[:, ::2])),
}
del SMALL_CALLS["NormState.of reproducible"]  # NumPy makes its digits, and gives up the GIL


@pytest.mark.skipif(not HAS_GIL, reason="there is no GIL to be given up")
@pytest.mark.parametrize("name", SMALL_CALLS)
def test_no_other_thread_runs_during_small_calls(name, threads):
    # Releasing and acquiring the GIL costs more than a small call.
    x = np.random.default_rng(0).standard_normal((2, 5))
    call = SMALL_CALLS[name]
    with threads(2), another_thread() as ticks:
        for _ in range(3):
            time.sleep(0.002)
            before = len(ticks)
            for _ in range(1000):
                call(x)
            assert len(ticks) == before
    assert ticks
