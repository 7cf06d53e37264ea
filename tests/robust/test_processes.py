"""Forks, process pools, the end of the interpreter, and other interpreters in the process.

Each script runs in an interpreter of its own, with a watchdog: who hangs is killed, and the test fails.
"""

import os
import subprocess
import sys
import textwrap

import extent
import pytest

PRELUDE = """
import os, signal, sys, threading, time, warnings
import gradclip as gc
import numpy as np
warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads: that is the point

gc.set_num_threads(3)
x = np.random.default_rng(0).standard_normal(2_000_000)  # 16 MB: shared between threads


def results():
    clipped, norm = gc.clip_by_global_norm([x, None, x[::2]], 1.0)
    return [gc.clip_by_norm(x, 1.0), gc.clip_by_value(x, -1, 1), *clipped[::2], np.float64(norm)]


def expect(expected):
    for found, right in zip(results(), expected, strict=True):
        assert np.array_equal(found, right)


def count_workers():
    if sys.platform != "linux":
        return None
    tasks = [f"/proc/self/task/{task}/comm" for task in os.listdir("/proc/self/task")]
    names = []
    for task in tasks:
        try:
            names.append(open(task).read())
        except OSError:  # it has ended
            pass
    return sum(name.startswith("gradclip") for name in names)


def has_workers(count):
    # Threads that were replaced by others need some time to end.
    end = time.monotonic() + 10
    while count_workers() not in (count, None):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def expect_own_pool(expected):
    expect(expected)
    assert gc.get_num_threads() == 3
    assert has_workers(2), count_workers()


def fork(work, *args, fork=os.fork):
    child = fork()
    if child == 0:
        signal.alarm(60)  # the watchdog
        try:
            work(*args)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    assert child > 0
    return child


def join(child):
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"the child ended with {status}" + (" (it hung)" if status == signal.SIGALRM else "")
"""

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
]


def run(script, *arguments, prelude=PRELUDE, timeout=120):
    command = [sys.executable, "-c", prelude + textwrap.dedent(script), *arguments]
    child = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert child.returncode == 0, f"it ended with {child.returncode}: {child.stderr}"
    return child.stdout.strip()


# ---- forks


def test_a_child_forked_after_use_builds_a_pool_of_its_own():
    run("""
        expected = results()
        join(fork(expect_own_pool, expected))
        expect_own_pool(expected)
    """)


SHORT = """
gc.set_num_threads(2)
y = x[:1_000_000].copy()  # 8 MB in and as much out: each call wakes the worker


def short_calls():
    for _ in range(30):
        yield gc.clip_by_value(y, -1, 1)
"""


def test_children_forked_between_calls_that_wake_workers():
    run(
        SHORT
        + textwrap.dedent("""
        right = np.clip(y, -1, 1)

        def work():
            assert all(np.array_equal(found, right) for found in short_calls())

        work()
        for _ in range(ROUNDS):
            children = [fork(work) for _ in range(3)]
            work()
            for child in children:
                join(child)
        """).replace("ROUNDS", str(extent.amount(4, 10)))
    )


def test_the_interpreter_ends_while_workers_are_awake():
    for _ in range(extent.amount(4, 10)):
        run(SHORT + "for _ in short_calls(): pass\n", timeout=30)


def test_a_child_forked_before_use_builds_a_pool_of_its_own():
    run("""
        child = fork(lambda: expect_own_pool(results()))
        join(child)
        assert has_workers(0)  # the parent has none yet
        expect_own_pool(results())
    """)


def test_children_of_children_build_pools_of_their_own():
    run("""
        def descend(expected, depth):
            expect_own_pool(expected)
            if depth:
                join(fork(descend, expected, depth - 1))
            expect_own_pool(expected)

        descend(results(), 4)
    """)


def test_a_child_may_change_the_number_of_threads_and_its_parent_keeps_its_own():
    run("""
        expected = results()

        def change():
            gc.set_num_threads(2)
            expect(expected)
            assert has_workers(1)

        gc.set_num_threads(2)
        gc.set_num_threads(3)
        join(fork(change))
        expect_own_pool(expected)
    """)


def test_children_forked_while_other_threads_are_inside_calls():
    """Some of these calls hold a lock when the fork happens: the number of threads changes, so pools are replaced."""
    done = run(
        """
        expected, stop = results(), threading.Event()

        def work(k):
            small, large = x[:1000].copy(), x.copy()
            while not stop.is_set():
                gc.clip_by_norm(small, 1.0)
                gc.clip_by_norm(large, 1.0)
                if k == 0:
                    gc.set_num_threads(2)
                    gc.norm(large)
                    gc.set_num_threads(3)

        workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for worker in workers:
            worker.start()

        def child():
            gc.set_num_threads(3)
            expect_own_pool(expected)

        begin, children = time.monotonic(), 0
        while children < 100 and (children < 5 or time.monotonic() < begin + SECONDS):
            join(fork(child))
            children += 1
        stop.set()
        for worker in workers:
            worker.join()
        expect(expected)
        print(children)
    """.replace("SECONDS", str(extent.amount(1, 3)))
    )
    assert int(done) >= 5


def test_several_children_at_once():
    run("""
        expected = results()
        for child in [fork(expect_own_pool, expected) for _ in range(6)]:
            join(child)
        expect_own_pool(expected)
    """)


def test_a_fork_inside_of_a_call_lets_both_go_on():
    run("""
        children = []

        class Forks:
            def __array__(self, dtype=None, copy=None):
                children.append(os.fork())
                return x

        expected = results()
        norm = gc.global_norm([x, x])
        signal.alarm(60)
        found = gc.global_norm([x, Forks()])
        if children[0] == 0:
            try:
                assert found == norm
                expect_own_pool(expected)
                os._exit(0)
            finally:
                os._exit(1)
        assert found == norm
        join(children[0])
        expect_own_pool(expected)
    """)


def test_a_fork_that_python_is_not_told_of():
    """C code forks without Python's hooks; the child finds another process id."""
    run("""
        import ctypes

        expected = results()
        join(fork(expect_own_pool, expected, fork=ctypes.PyDLL(None).fork))
        expect_own_pool(expected)
    """)


def test_a_child_may_have_the_process_id_of_its_parent():
    """As in the first process of a nested container, or after the process ids have wrapped around."""
    done = run("""
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)

        def leave_numbers():
            if libc.unshare(0x20000000):  # CLONE_NEWPID: the next child is process 1
                print("not allowed", flush=True)
                os._exit(0)

        def first():
            assert os.getpid() == 1
            expected = results()
            leave_numbers()
            join(fork(second, expected))
            expect(expected)

        def second(expected):
            assert os.getpid() == 1
            signal.signal(signal.SIGALRM, lambda *_: os._exit(9))  # the first process is not killed by default
            expect_own_pool(expected)

        leave_numbers()
        join(fork(first))
        print("same")
    """)
    if "not allowed" in done:
        pytest.skip("only root may give a process a number of its choice")
    assert done == "same"


@pytest.mark.sampled
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("used", [False, True])
def test_process_pools(method, used, tmp_path):
    script = tmp_path / "pool.py"
    script.write_text(
        textwrap.dedent("""
            import multiprocessing, sys
            import gradclip as gc
            import numpy as np

            def work(seed):
                x = np.random.default_rng(seed).standard_normal(1_200_000)
                clipped, norm = gc.clip_by_global_norm([x, x[:10]], 1.0)
                return norm, float(clipped[0].sum()), gc.norm(clipped[0], 1)

            if __name__ == "__main__":
                method, used = sys.argv[1:]
                expected = [work(seed) for seed in range(3)] if used == "True" else None
                context = multiprocessing.get_context(method)
                for _ in range(2):
                    with context.Pool(2) as pool:
                        found = pool.map_async(work, range(3)).get(timeout=60)
                    assert found == (expected or [work(seed) for seed in range(3)])
        """)
    )
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(script), method, str(used)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# ---- the end of the interpreter

ENDS = {
    "a small array": "gc.clip_by_norm(small, 1.0)",
    "a large array": "gc.clip_by_norm(x, 1.0)",
    "a long call": "gc.norm(x, 3.7)",
    "a list of arrays": "gc.clip_by_global_norm([x, small], 1.0)",
    "a nested list": "gc.norm([[1.0, 2.0]] * 50)",
    "an object with an __array__": "gc.global_norm([Like()])",
    "a bound with an __array__": "gc.clip_by_value(small, Like(), None)",
    "a matrix norm": "gc.norm(square, 2, (0, 1))",
    "a sequence": "gc.global_norm(deque([small]))",
}


@pytest.mark.sampled
@pytest.mark.parametrize("call", ENDS.values(), ids=ENDS)
def test_daemon_threads_inside_calls_when_the_interpreter_ends(call):
    script = f"""
        from collections import deque
        small, square = np.ones(10), np.ones((3, 3))

        class Like:
            def __array__(self, dtype=None, copy=None):
                return sum([small for _ in range(20)])

        def work():
            while True:
                {call}

        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.03)
    """
    for _ in range(extent.amount(1, 2)):
        assert run(script, timeout=60) == ""


def test_the_interpreter_does_not_wait_for_ever_for_a_call_that_waits_for_it():
    begin = """
        class Waits:
            def __array__(self, dtype=None, copy=None):
                inside.set()
                threading.Event().wait()

        inside = threading.Event()
        threading.Thread(target=lambda: gc.norm(Waits()), daemon=True).start()
        inside.wait()
    """
    run(begin, timeout=30)


def test_a_child_forked_in_a_call_waits_for_its_own_calls_at_the_end():
    done = run(
        """
        class Forks:
            def __array__(self, dtype=None, copy=None):
                children.append(os.fork())
                return np.ones(3)

        class Waits:
            def __array__(self, dtype=None, copy=None):
                time.sleep(0.3)
                return np.ones(3)

        class Slow:
            def __del__(self, sleep=time.sleep):
                sleep(0.6)

        children = []
        gc.norm(Forks())
        if children[0]:
            print(os.waitpid(children[0], 0)[1])
        else:
            sys.slow = Slow()  # goes after the exit functions
            threading.Thread(target=lambda: gc.norm(Waits()), daemon=True).start()
            time.sleep(0.1)
        """,
        prelude="import os\n" + PRELUDE,
        timeout=60,
    )
    assert done.split() == ["0"]


def test_an_exit_function_may_use_what_it_wants_and_wait_for_threads():
    """A function that is registered first runs last: after gradclip has seen the end coming."""
    done = run(
        """
        def last():
            assert gc.norm([3.0, 4.0]) == 5.0
            queue.put([np.float64(6.0), 8.0])
            worker.join(30)
            print("alive" if worker.is_alive() else "done")

        atexit.register(last)
        import gradclip as gc
        queue, worker = queue.Queue(), threading.Thread(target=lambda: print(gc.norm(queue.get())), daemon=True)
        worker.start()
        """,
        prelude="import atexit, queue, threading\nimport numpy as np\n",
        timeout=60,
    )
    assert done.split() == ["10.0", "done"]


# ---- other interpreters in the process


IN_OTHER = """
import warnings
warnings.simplefilter("ignore")  # NumPy's
try:
    import gradclip
    print("works", gradclip.norm([3.0, 4.0]))
except ImportError as error:
    print("ImportError", error)
"""


@pytest.mark.parametrize("order", ["first", "second"])
def test_another_interpreter_in_the_process_gets_an_import_error_or_works(order):
    """CPython 3.12 and later refuse; before, the first interpreter has it, unless NumPy refuses the second."""
    done = run(
        f"""
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        if {order!r} == "second":
            import gradclip
        other = interpreters.create()
        run = getattr(interpreters, "exec", None) or interpreters.run_string
        failure = run(other, {IN_OTHER!r})
        assert failure is None, failure
        interpreters.destroy(other)
        """,
        prelude="",
        timeout=60,
    )
    assert done == "works 5.0" or (done.startswith("ImportError") and ("interpreter" in done or "process" in done))
