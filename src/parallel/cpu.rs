//! On which CPU a worker begins.
//!
//! Linux may wake a thread on the CPU of who wakes it though another one is idle: where CPUs have been busy on average,
//! and on some virtual machines always. There it waits for milliseconds, until the CPU's time is up or the kernel looks
//! how the work is spread, and a call of as long is done by then. Two remedies:
//!
//! A worker of few is kept from the CPU of the calling thread before it is woken, which takes 1 µs each, and may return
//! there once it has begun ([`Worker`]).
//!
//! One that finds itself on the CPU of the calling thread nevertheless moves to another. Of many workers that is all:
//! none is kept from a CPU, and where one had to move, the calling thread gives way for a moment when it wakes more. To
//! begin, move and go on takes 60 to 150 µs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;

/// A worker that may have to be woken.
#[derive(Debug, Default)]
pub(super) struct Worker {
    thread: OnceLock<system::Thread>,
    /// A CPU that it may run on, but is kept from.
    kept_from: Mutex<Option<usize>>,
}

impl Worker {
    /// For the worker itself, as it starts.
    pub(super) fn start(&self) {
        self.thread.get_or_init(system::this_thread);
    }

    /// For who is to wake it: keeps it from a CPU until it begins, if there is another one for it.
    pub(super) fn keep_from(&self, cpu: Option<usize>) {
        // Another thread that keeps it from a CPU wakes it, too.
        let (Some(cpu), Some(thread), Ok(mut kept_from)) =
            (cpu, self.thread.get(), self.kept_from.try_lock())
        else {
            return;
        };
        if *kept_from != Some(cpu) && system::change(Some(*thread), *kept_from, Some(cpu)) {
            *kept_from = Some(cpu);
        }
    }

    /// For the worker itself, when it begins: it may run where it might before.
    pub(super) fn begin(&self) {
        // Who holds the lock wakes it once more, and then it returns. If the system fails, it does not; no harm is done.
        if let Ok(mut kept_from) = self.kept_from.try_lock()
            && kept_from.is_some()
        {
            system::change(None, kept_from.take(), None);
        }
    }
}

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
    cpu == current() && cpu.is_some_and(go_from)
}

/// Moves the calling thread from a CPU, which it may return to later.
fn go_from(cpu: usize) -> bool {
    system::change(None, None, Some(cpu)) && {
        system::change(None, Some(cpu), None);
        true
    }
}

/// For who has woken a worker: lets it run, if it is likely to wait for this CPU.
pub(super) fn give_way() {
    if IS_CROWDED.load(Ordering::Relaxed) {
        thread::yield_now();
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

    pub(super) type Thread = Pid;

    pub(super) fn this_thread() -> Thread {
        gettid()
    }

    /// None if no set holds it.
    pub(super) fn current() -> Option<usize> {
        Some(sched_getcpu()).filter(|&cpu| cpu < CpuSet::MAX_CPU)
    }

    /// Lets a thread, or the calling one, run on one CPU more, and on one less: whether it might run there, and has others.
    pub(super) fn change(thread: Option<Thread>, more: Option<usize>, less: Option<usize>) -> bool {
        // An error where there are more CPUs than fit the set, and in a sandbox that forbids it.
        let Ok(mut cpus) = sched_getaffinity(thread) else { return false };
        if let Some(cpu) = more {
            cpus.set(cpu);
        }
        if let Some(cpu) = less {
            if !cpus.is_set(cpu) || cpus.count() < 2 {
                return false;
            }
            cpus.unset(cpu);
        }
        sched_setaffinity(thread, &cpus).is_ok()
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    pub(super) type Thread = ();

    pub(super) fn this_thread() -> Thread {}

    pub(super) fn current() -> Option<usize> {
        None
    }

    pub(super) fn change(_: Option<Thread>, _: Option<usize>, _: Option<usize>) -> bool {
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
            assert_eq!(current().is_some_and(go_from), before.count() > 1);
            assert!(rustix::thread::sched_getaffinity(None)? == before);
        }
        Ok(())
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn who_leaves_is_elsewhere() -> Result<(), rustix::io::Errno> {
        let cpus = rustix::thread::sched_getaffinity(None)?.count();
        // It may be moved again between the lines: now and then, not often.
        let stays = (0..100).filter(|_| {
            let here = current();
            here.is_some_and(go_from) && current() == here
        });
        assert!(cpus < 2 || stays.count() < 20);
        Ok(())
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_worker_is_kept_from_a_cpu_until_it_begins() -> Result<(), rustix::io::Errno> {
        use rustix::thread::sched_getaffinity;
        let before = sched_getaffinity(None)?;
        let (cpus, others): (Vec<usize>, Vec<usize>) =
            (0..rustix::thread::CpuSet::MAX_CPU).partition(|&cpu| before.is_set(cpu));
        let worker = Worker::default();
        worker.keep_from(current());
        assert!(sched_getaffinity(None)? == before, "it has not started");
        worker.start();
        worker.begin();
        assert!(sched_getaffinity(None)? == before);
        for _ in 0..3 {
            for cpu in &cpus {
                worker.keep_from(Some(*cpu));
                let mut others = before;
                others.unset(*cpu);
                assert!(sched_getaffinity(None)? == if cpus.len() > 1 { others } else { before });
            }
            worker.keep_from(None);
            worker.begin();
            assert!(sched_getaffinity(None)? == before);
        }
        // Where it may not run in any case, it is not let in.
        worker.keep_from(others.first().copied());
        worker.begin();
        assert!(sched_getaffinity(None)? == before);
        Ok(())
    }

    #[test]
    fn who_is_elsewhere_stays() {
        assert!(!has_left(Some(usize::MAX)) && !has_left(None));
    }
}
