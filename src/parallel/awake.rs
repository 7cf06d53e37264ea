//! Workers that stay awake for a moment after their work, for the next call.
//!
//! To wake a thread takes as long as to move some MiB, and one that looks for work is there at once. So the last thing that
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

use super::cpu::{self, Worker};

/// How long a worker stays awake; about what it takes to wake one.
const STAY: Duration = Duration::from_micros(100);

/// The longest work that workers are woken to wait for.
const LONGEST: Duration = STAY.saturating_mul(5);

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
    /// They themselves.
    workers: Vec<Worker>,
    /// How often workers were called to work: what they look at.
    calls: AtomicUsize,
    /// Workers were woken, and have not begun to look yet.
    woken: AtomicBool,
    /// Until when who looks is to go on, in nanoseconds since `begin`.
    held: AtomicU64,
}

impl Awake {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            begin: Instant::now(),
            seen: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            workers: (0..workers).map(|_| Worker::default()).collect(),
            calls: AtomicUsize::new(0),
            woken: AtomicBool::new(false),
            held: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        nanoseconds(self.begin.elapsed())
    }

    /// Whether a worker has just said that it looks.
    fn is_fresh(time: u64, now: u64) -> bool {
        time != 0 && now.saturating_sub(time) < FRESH
    }

    /// Whether a worker looks for work now.
    pub(super) fn is_any(&self) -> bool {
        let now = self.now();
        self.seen.iter().any(|seen| Self::is_fresh(seen.load(Ordering::Relaxed), now))
    }

    /// Calls those who look for work, to one share each; returns how many. No other call counts on the same. The others are
    /// kept from a CPU, if they are to be woken.
    pub(super) fn call(&self, keep_from: Option<usize>) -> usize {
        let now = self.now();
        let mut count = 0;
        for (seen, worker) in self.seen.iter().zip(&self.workers) {
            if Self::is_fresh(seen.swap(0, Ordering::Relaxed), now) {
                count += 1;
            } else {
                worker.keep_from(keep_from);
            }
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        count
    }

    /// For a worker, by its number, as it starts.
    pub(super) fn start(&self, worker: usize) {
        if let Some(worker) = self.workers.get(worker) {
            worker.start();
        }
    }

    /// For a worker that begins its share.
    pub(super) fn begin(&self) {
        if let Some(worker) = rayon::current_thread_index().and_then(|i| self.workers.get(i)) {
            worker.begin();
        }
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
        for worker in &self.workers {
            worker.keep_from(cpu);
            let awake = Arc::clone(self);
            workers.spawn(move || {
                awake.woken.store(false, Ordering::Relaxed);
                awake.begin();
                awake.look(calls, patience);
            });
        }
    }

    /// Wakes all workers for work that begins so long from now.
    pub(super) fn wake_for(self: &Arc<Self>, workers: &ThreadPool, after: Duration) {
        self.wake(workers, patience_for(after));
    }

    /// Keeps those awake who are, for work that begins so long from now and for which nobody is woken.
    pub(super) fn hold_for(&self, after: Duration) {
        self.held.fetch_max(self.now() + nanoseconds(patience_for(after)), Ordering::Relaxed);
    }

    /// Looks for work until there is a call, or for so long and as long as it is held. The pool gives what there is to who
    /// returns from here.
    fn look(&self, calls: usize, patience: Duration) {
        let mut now = self.now();
        let end = now + nanoseconds(patience);
        while now < end.max(self.held.load(Ordering::Relaxed)) {
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

/// How long to look for work that begins so long from now.
fn patience_for(after: Duration) -> Duration {
    after.min(LONGEST) + 2 * STAY
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
        is_likely.then(|| patience_for(now - self.begin))
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
        assert!(!awake.is_any() && awake.call(None) == 0);
        thread::sleep(Duration::from_nanos(1));
        awake.seen[1].store(awake.now().max(1), Ordering::Relaxed);
        // Unless this thread was taken off its CPU meanwhile.
        if awake.is_any() {
            assert!(awake.call(None) <= 1);
        }
        assert!(!awake.is_any() && awake.call(None) == 0);
    }

    #[test]
    fn a_worker_that_has_said_nothing_for_long_is_not_counted_on() {
        let awake = Awake::new(1);
        awake.seen[0].store(1, Ordering::Relaxed);
        thread::sleep(Duration::from_nanos(2 * FRESH));
        assert!(!awake.is_any() && awake.call(None) == 0);
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
        awake.call(None);
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
    fn who_looks_goes_on_while_it_is_held() -> Result<(), rayon::ThreadPoolBuildError> {
        let workers = pool(1)?;
        let awake = Arc::new(Awake::new(1));
        let begin = Instant::now();
        awake.hold_for(Duration::MAX);
        awake.wake(&workers, Duration::ZERO);
        workers.install(|| ());
        assert!(begin.elapsed() >= LONGEST);
        // A call ends it.
        awake.held.store(u64::MAX, Ordering::Relaxed);
        awake.wake(&workers, Duration::ZERO);
        while awake.woken.load(Ordering::Relaxed) || awake.seen[0].load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        awake.call(None);
        assert_eq!(workers.install(|| 7), 7);
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
