//! Events of the process: forks and the end of the interpreter.
//!
//! **Forks.** A child starts with fresh pools. Python calls [`forked`] in it before anything else runs.
//!
//! **The end.** Before `CPython` 3.14, the C library unwinds a daemon thread that requests the interpreter after its
//! finalization has begun. If the request comes from a function of ours, at the end of detached work, `PyO3` makes the thread
//! hang instead. If it comes from Python code that a function of ours called (an `__array__`), unwinding would go through Rust,
//! which aborts the process. So calls that may run Python code are counted ([`RunsPython`]). At its exit the interpreter waits
//! until there are none, and for a moment no other thread begins one.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::array::memory;
use crate::parallel;

/// The time that the interpreter waits for calls of other threads, and that such calls wait for the interpreter. It is longer
/// than the time between the exit functions and the end, but limited, as an exit function may wait for such a thread.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

thread_local! {
    /// The number of nested calls of this thread that may run Python code: such code may call gradclip again.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// The number of calls that may run Python code now.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// The thread that ends the interpreter, and the time when it began.
static EXIT: OnceLock<(ThreadId, Instant)> = OnceLock::new();

/// Called in a forked child, whose only thread is the one that has forked.
#[pyfunction]
pub(super) fn forked() {
    parallel::forked();
    memory::forked();
    RUNNING.store(DEPTH.get(), Ordering::Relaxed);
}

/// Called when the interpreter is about to end: waits for the calls that may run Python code.
#[pyfunction]
pub(super) fn exiting(py: Python<'_>) {
    let begin = Instant::now();
    EXIT.get_or_init(|| (thread::current().id(), begin));
    while RUNNING.load(Ordering::Relaxed) > 0 && begin.elapsed() < EXIT_TIMEOUT {
        py.detach(|| thread::sleep(Duration::from_millis(1)));
    }
}

/// Counts a call, from the first time that it may run Python code until it is dropped.
#[derive(Default)]
pub(super) struct RunsPython(Cell<bool>);

impl RunsPython {
    /// Must be called before Python code may run.
    pub(super) fn begin(&self, py: Python<'_>) {
        if !self.0.replace(true) {
            // If another thread ends the interpreter, this one waits while detached. A thread that is still waiting when the
            // interpreter has ended never attaches again. The interpreter waits for an outer call, so a nested call goes on.
            if DEPTH.get() == 0
                && let Some((thread, begin)) = EXIT.get()
                && *thread != thread::current().id()
                && let Some(rest) = EXIT_TIMEOUT.checked_sub(begin.elapsed())
            {
                py.detach(|| thread::sleep(rest));
            }
            DEPTH.set(DEPTH.get() + 1);
            RUNNING.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for RunsPython {
    fn drop(&mut self) {
        if self.0.get() {
            DEPTH.set(DEPTH.get().saturating_sub(1));
            RUNNING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
