//! The worker threads: a rayon pool whose threads wait on a condition variable. This is the only module that uses rayon.
//!
//! The first call that needs the pool builds it, so that the import starts no thread. The pool has one thread fewer than asked
//! for, because the calling thread works too. Threads do not survive a fork: the pool belongs to the process that built it, and
//! a child builds another.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};

use crate::isa::FloatDefaults;

/// The job of a woken worker, called once each time it wakes up: it helps a call as long as the call has jobs.
type Help = dyn Fn() + Send + Sync;

/// The workers of one process.
pub(super) struct Pool {
    process: u32,
    threads: usize,
    notifier: Arc<Notifier>,
    /// Ends its threads when it is dropped.
    _workers: rayon::ThreadPool,
}

/// The pool in use. The lock is held for a short time, and no thread waits for it.
///
/// A lock that another thread holds during a fork stays locked in the child. So a child appends a slot of its own in its copy of
/// the memory, and the last slot always belongs to this process.
struct Slot {
    pool: RwLock<Option<Arc<Pool>>>,
    child: OnceLock<Box<Self>>,
}

static FIRST: Slot = Slot::new();

impl Slot {
    const fn new() -> Self {
        Self { pool: RwLock::new(None), child: OnceLock::new() }
    }

    /// The slot of this process.
    fn current(&self) -> &Self {
        self.child.get().map_or(self, |child| child.current())
    }
}

/// Gives a forked child a slot of its own. The inherited pool is not freed: freeing it would need threads that do not exist in the
/// child.
pub(super) fn forked() {
    FIRST.current().child.get_or_init(|| Box::new(Slot::new()));
}

impl Pool {
    /// The pool of this process with `threads` threads, built if there is none. None if the calling thread is to work alone:
    /// another thread has the lock, or the operating system starts no threads.
    pub(super) fn get(threads: usize) -> Option<Arc<Self>> {
        if threads < 2 {
            return None; // another thread has just set this number
        }
        let process = std::process::id();
        let is_current = |pool: &Arc<Self>| pool.threads == threads && pool.process == process;
        let current =
            FIRST.current().pool.try_read().ok()?.as_ref().filter(|pool| is_current(pool)).map(Arc::clone);
        current.or_else(|| Self::build(threads, process))
    }

    #[cold]
    fn build(threads: usize, process: u32) -> Option<Arc<Self>> {
        let workers = rayon::ThreadPoolBuilder::new()
            .num_threads(threads - 1)
            .thread_name(|i| format!("gradclip-{i}"))
            .build()
            .ok()?;
        let notifier = Arc::new(Notifier::default());
        let shared = Arc::clone(&notifier);
        workers.spawn_broadcast(move |_| shared.serve());
        let pool = Arc::new(Self { process, threads, notifier, _workers: workers });
        let old = FIRST.current().pool.try_write().ok()?.replace(Arc::clone(&pool));
        if let Some(old) = old
            && old.process != process
        {
            // The fork happened in C code, which does not call `forked`.
            mem::forget(old);
        }
        Some(pool)
    }

    /// Announces a call and wakes up to `count` workers for it; workers that are awake go on with their own work. It replaces a call
    /// of another thread, which goes on with the workers that have joined it.
    pub(super) fn wake(&self, help: Arc<Help>, count: usize) {
        let Notifier { state, changed } = &*self.notifier;
        let Some(mut state) = (0..TRIES).find_map(|_| state.try_lock().ok()) else { return };
        state.number += 1;
        state.help = Some(help);
        drop(state);
        for _ in 0..count {
            changed.notify_one();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.notifier.state.lock().unwrap_or_else(PoisonError::into_inner).stops = true;
        self.notifier.changed.notify_all();
    }
}

/// Wakes the workers for a call. It holds the call that was announced last.
#[derive(Default)]
struct Notifier {
    state: Mutex<Announced>,
    changed: Condvar,
}

#[derive(Default)]
struct Announced {
    /// Counts the calls.
    number: u64,
    help: Option<Arc<Help>>,
    stops: bool,
}

/// How many times a caller tries to get the lock. A worker holds it for a few instructions; a worker that was preempted
/// meanwhile is not worth waiting for.
const TRIES: usize = 100;

impl Notifier {
    /// The loop of a worker.
    fn serve(&self) {
        // A new thread inherits the floating-point control of the thread that starts it.
        let _control = FloatDefaults::set();
        let mut seen = 0;
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            while state.number == seen && !state.stops {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.stops {
                return;
            }
            seen = state.number;
            let help = state.help.clone();
            drop(state);
            if let Some(help) = help {
                help();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::parallel::tests::alone;

    #[test]
    fn a_child_gets_a_lock_that_is_free() {
        let first = Slot::new();
        for _ in 0..3 {
            let held = first.current().pool.try_write();
            assert!(held.is_ok());
            assert!(first.current().pool.try_read().is_err());
            first.current().child.get_or_init(|| Box::new(Slot::new()));
            assert!(first.current().pool.try_read().is_ok());
            mem::forget(held);
        }
    }

    #[test]
    fn workers_come_and_go_with_the_number_of_threads() {
        let _alone = alone();
        for threads in [2, 5, 2, 3] {
            let pool = Pool::get(threads);
            assert!(pool.is_some_and(|pool| pool.threads == threads));
        }
        let (sender, helped) = channel();
        // Sending fails if the test has ended.
        let help: Arc<Help> = Arc::new(move || _ = sender.send(thread::current().id()));
        // A worker that does not wait yet misses the notification, so it is repeated.
        let helper = (0..10_000).find_map(|_| {
            Pool::get(2)?.wake(Arc::clone(&help), 1);
            helped.recv_timeout(Duration::from_millis(10)).ok()
        });
        assert!(helper.is_some_and(|helper| helper != thread::current().id()));
    }
}
