//! On which CPU a worker begins.
//!
//! Linux may wake a thread on the CPU of who wakes it though another one is idle: where CPUs have been busy on average,
//! and on some virtual machines always. There it waits for milliseconds, until the CPU's time is up or the kernel looks
//! how the work is spread, and a call of as long is done by then. So a worker that finds itself on the CPU of the calling
//! thread moves to another, and where that has happened, the calling thread gives way for a moment when it wakes one: to
//! begin, move and go on takes 60 µs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Whether the last worker that was woken had to move.
static IS_CROWDED: AtomicBool = AtomicBool::new(false);

/// The CPU of the calling thread, if the system tells.
pub(super) fn current() -> Option<usize> {
    system::current()
}

/// For a worker that begins: moves it to another CPU if it is on this one.
pub(super) fn leave(cpu: Option<usize>) {
    IS_CROWDED.store(has_left(cpu), Ordering::Relaxed);
}

fn has_left(cpu: Option<usize>) -> bool {
    cpu == current() && cpu.is_some_and(system::leave)
}

/// For who has woken a worker: lets it run, if it is likely to wait for this CPU.
pub(super) fn give_way() {
    if IS_CROWDED.load(Ordering::Relaxed) {
        thread::yield_now();
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// None if no set holds it.
    pub(super) fn current() -> Option<usize> {
        Some(sched_getcpu()).filter(|&cpu| cpu < CpuSet::MAX_CPU)
    }

    /// Whether the calling thread has left a CPU. It may return later: where it may run is as it was.
    pub(super) fn leave(cpu: usize) -> bool {
        // An error where there are more CPUs than fit the set, and in a sandbox that forbids it.
        let Ok(all) = sched_getaffinity(None) else { return false };
        let mut others = all;
        others.unset(cpu);
        if others.count() == 0 || sched_setaffinity(None, &others).is_err() {
            return false;
        }
        // If this fails, it may not return; no harm is done.
        let _ = sched_setaffinity(None, &all);
        true
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    pub(super) fn current() -> Option<usize> {
        None
    }

    pub(super) fn leave(_: usize) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn who_leaves_a_cpu_may_run_where_it_might_before() -> Result<(), rustix::io::Errno> {
        let before = rustix::thread::sched_getaffinity(None)?;
        for _ in 0..100 {
            let has_left = current().is_some_and(system::leave);
            assert_eq!(has_left, before.count() > 1);
            assert!(rustix::thread::sched_getaffinity(None)? == before);
        }
        Ok(())
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn who_leaves_is_elsewhere() {
        // It may be moved again between the lines: now and then, not often.
        let stays = (0..100).filter(|_| {
            let here = current();
            here.is_some_and(system::leave) && current() == here
        });
        assert!(stays.count() < 20);
    }

    #[test]
    fn who_is_elsewhere_stays() {
        assert!(!has_left(Some(usize::MAX)) && !has_left(None));
    }
}
