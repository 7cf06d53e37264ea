//! Workers that stay awake for a moment after their work, for the next call.
//!
//! To wake a thread takes as long as to move 2 MiB, and one that looks for work is there at once. So the last thing that
//! a worker does is to leave its pool a task that does nothing but look, for as long as to wake it would take: whatever
//! comes then, that is at most twice the best that could have been done.
//!
//! A worker that looks says so every microsecond or two. One that the operating system has taken off its CPU says
//! nothing, so nobody waits for it: calls work alone where other programs need the CPUs.

use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rayon::ThreadPool;

use super::cpu;

/// How long a worker stays awake; about what it takes to wake one.
const STAY: Duration = Duration::from_micros(50);

/// The longest work that workers are woken to wait for.
const LONGEST: Duration = STAY.saturating_mul(10);

/// A worker that has said nothing for so many nanoseconds is not counted on.
const FRESH: u64 = 10_000;

/// How often a worker looks for work between two looks at the clock: for a microsecond or two.
const LOOKS: usize = 64;

/// What is known of the workers of a pool. Nothing depends on it but who does what.
#[derive(Debug)]
pub(super) struct Awake {
    begin: Instant,
    /// When each worker last said that it looks for work, in nanoseconds since `begin`; 0 if it has some.
    seen: Vec<AtomicU64>,
    /// How often workers were called to work: what they look at.
    calls: AtomicUsize,
    /// Workers were woken, and have not begun to look yet.
    woken: AtomicBool,
}

impl Awake {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            begin: Instant::now(),
            seen: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            calls: AtomicUsize::new(0),
            woken: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        nanoseconds(self.begin.elapsed())
    }

    fn count_fresh(&self, seen: impl Fn(&AtomicU64) -> u64) -> usize {
        let now = self.now();
        let is_fresh = |&time: &u64| time != 0 && now.saturating_sub(time) < FRESH;
        self.seen.iter().map(seen).filter(is_fresh).count()
    }

    /// Whether a worker looks for work now.
    pub(super) fn is_any(&self) -> bool {
        self.count_fresh(|seen| seen.load(Ordering::Relaxed)) > 0
    }

    /// Calls those who look for work, to one share each; returns how many. No other call counts on the same.
    pub(super) fn call(&self) -> usize {
        let count = self.count_fresh(|seen| seen.swap(0, Ordering::Relaxed));
        self.calls.fetch_add(1, Ordering::Relaxed);
        count
    }

    /// For a worker at the end of its share: if it did some work, it will look for more as soon as it has returned, and
    /// can be counted on from now on.
    pub(super) fn stay(self: &Arc<Self>, workers: &ThreadPool, in_time: bool) {
        if !in_time {
            return;
        }
        let calls = self.calls.load(Ordering::Relaxed);
        self.say(self.now());
        let awake = Arc::clone(self);
        workers.spawn(move || awake.look(calls, STAY));
    }

    /// Wakes all workers, to look for work for so long.
    pub(super) fn wake(self: &Arc<Self>, workers: &ThreadPool, patience: Duration) {
        if self.woken.swap(true, Ordering::Relaxed) {
            return;
        }
        let calls = self.calls.load(Ordering::Relaxed);
        let cpu = cpu::current();
        for _ in &self.seen {
            let awake = Arc::clone(self);
            workers.spawn(move || {
                awake.woken.store(false, Ordering::Relaxed);
                cpu::leave(cpu);
                awake.look(calls, patience);
            });
        }
        cpu::give_way();
    }

    /// Wakes all workers for work that begins so long from now.
    pub(super) fn wake_for(self: &Arc<Self>, workers: &ThreadPool, after: Duration) {
        self.wake(workers, after.min(LONGEST) + 2 * STAY);
    }

    /// Looks for work until there is a call, or for so long. The pool gives what there is to who returns from here.
    fn look(&self, calls: usize, patience: Duration) {
        let mut now = self.now();
        let end = now + nanoseconds(patience);
        while now < end {
            self.say(now);
            for _ in 0..LOOKS {
                if self.calls.load(Ordering::Relaxed) != calls {
                    return;
                }
                spin_loop();
            }
            // Who else needs the CPU gets it here, and not in the midst of work that a call waits for.
            thread::yield_now();
            now = self.now();
        }
        self.say(0);
    }

    fn say(&self, time: u64) {
        if let Some(seen) = rayon::current_thread_index().and_then(|i| self.seen.get(i)) {
            seen.store(time, Ordering::Relaxed);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// So many pieces of work, one soon after the other, make one more likely. A single call has up to three.
const MANY: u32 = 4;

thread_local! {
    /// When this thread's last piece of work ended, and how many before it came soon after another.
    static LAST: Cell<Option<(Instant, u32)>> = const { Cell::new(None) };
}

/// A piece of work for which threads that are awake are welcome, and none is woken.
#[derive(Debug)]
pub(super) struct Piece {
    begin: Instant,
}

impl Piece {
    pub(super) fn begin() -> Self {
        Self { begin: Instant::now() }
    }

    /// At its end: if more is likely, how long workers would have to look for it, were they woken now. That is as long
    /// as another piece takes that is begun before they are awake, and the time after it.
    pub(super) fn end(&self) -> Option<Duration> {
        let now = Instant::now();
        let pieces = match LAST.get() {
            Some((last, pieces)) if self.begin.saturating_duration_since(last) < STAY => pieces + 1,
            _ => 0,
        };
        let is_likely = pieces >= MANY;
        LAST.set(Some((now, if is_likely { 0 } else { pieces })));
        is_likely.then(|| (now - self.begin).min(LONGEST) + 2 * STAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(workers: usize) -> Result<ThreadPool, rayon::ThreadPoolBuildError> {
        rayon::ThreadPoolBuilder::new().num_threads(workers).build()
    }

    #[test]
    fn a_worker_that_looks_is_called_once() {
        let awake = Awake::new(2);
        assert!(!awake.is_any() && awake.call() == 0);
        thread::sleep(Duration::from_nanos(1));
        awake.seen[1].store(awake.now().max(1), Ordering::Relaxed);
        // Unless this thread was taken off its CPU meanwhile.
        if awake.is_any() {
            assert!(awake.call() <= 1);
        }
        assert!(!awake.is_any() && awake.call() == 0);
    }

    #[test]
    fn a_worker_that_has_said_nothing_for_long_is_not_counted_on() {
        let awake = Awake::new(1);
        awake.seen[0].store(1, Ordering::Relaxed);
        thread::sleep(Duration::from_nanos(2 * FRESH));
        assert!(!awake.is_any() && awake.call() == 0);
    }

    #[test]
    fn who_looks_returns_at_a_call_and_in_the_end() -> Result<(), rayon::ThreadPoolBuildError> {
        let workers = pool(1)?;
        let awake = Arc::new(Awake::new(1));
        // The workers are at work for ever, were it not for the call.
        awake.wake(&workers, Duration::from_secs(1_000_000));
        while awake.woken.load(Ordering::Relaxed) || awake.seen[0].load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        awake.call();
        assert_eq!(workers.install(|| 7), 7);
        awake.wake(&workers, STAY);
        assert_eq!(workers.install(|| 8), 8);
        // However long it is until the work begins, they do not look for ever.
        awake.wake_for(&workers, Duration::MAX);
        assert_eq!(workers.install(|| 9), 9);
        assert_eq!(awake.seen[0].load(Ordering::Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_worker_is_woken_once_at_a_time() -> Result<(), rayon::ThreadPoolBuildError> {
        let workers = pool(1)?;
        let awake = Arc::new(Awake::new(1));
        let (go, wait) = std::sync::mpsc::channel::<()>();
        workers.spawn(move || assert!(wait.recv().is_err()));
        for _ in 0..3 {
            awake.wake(&workers, STAY);
        }
        assert_eq!(Arc::strong_count(&awake), 2);
        drop(go);
        assert_eq!(workers.install(|| 7), 7);
        Ok(())
    }

    #[test]
    fn only_work_that_follows_closely_makes_more_likely() {
        let soon = || Piece { begin: LAST.get().map_or_else(Instant::now, |(last, _)| last) };
        LAST.set(None);
        for _ in 0..3 {
            for _ in 0..MANY {
                assert_eq!(soon().end(), None);
            }
            assert!(soon().end().is_some_and(|time| (2 * STAY..=12 * STAY).contains(&time)));
            LAST.set(None);
        }
        for _ in 0..3 * MANY {
            let begin = LAST.get().map_or_else(Instant::now, |(last, _)| last + STAY);
            assert_eq!(Piece { begin }.end(), None);
        }
    }
}
