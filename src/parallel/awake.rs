//! Who helps with a call: workers that look for work.
//!
//! To wake a thread takes as long as to move some MiB, and sometimes much longer: after a call of BLAS its threads look for
//! work on all CPUs for 0.1 s, and who is woken meanwhile may wait for 4 ms. So nobody waits for a thread that was woken.
//! It looks for work when it comes, and says so every microsecond or two; the call that woke it gives it a share as soon as
//! a job is done. One that the operating system has taken off its CPU says nothing, and is not counted on: calls work alone
//! where other threads need the CPUs.
//!
//! The last thing that a worker of few does is to look for more, for as long as to wake it would take: whatever comes then,
//! that is at most twice the best that could have been done.

use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering};
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
    /// Shares that nobody has begun: what they look at. Below 0 where one begins before it is counted.
    shares: AtomicIsize,
    /// Workers that were woken to look for work, and have not found it.
    coming: AtomicUsize,
    /// Until when who looks is to go on, in nanoseconds since `begin`.
    held: AtomicU64,
    /// Calls that would give a share to who comes.
    waiting: AtomicUsize,
    /// Whether workers look for more when they have done a share, and for work that begins later.
    stays: bool,
}

impl Awake {
    pub(super) fn new(workers: usize, stays: bool) -> Self {
        Self {
            begin: Instant::now(),
            seen: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            workers: (0..workers).map(|_| Worker::default()).collect(),
            shares: AtomicIsize::new(0),
            coming: AtomicUsize::new(0),
            held: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            stays,
        }
    }

    fn now(&self) -> u64 {
        nanoseconds(self.begin.elapsed())
    }

    /// Whether a worker that said it then looks for work now.
    fn is_fresh(&self) -> impl Fn(u64) -> bool + use<> {
        let now = self.now();
        move |time| time != 0 && now.saturating_sub(time) < FRESH
    }

    /// When each worker said that it looks.
    fn seen(&self) -> impl Iterator<Item = u64> {
        self.seen.iter().map(|seen| seen.load(Ordering::Relaxed))
    }

    /// Whether a worker looks for work now.
    pub(super) fn is_any(&self) -> bool {
        self.seen().any(self.is_fresh())
    }

    /// How many look for work, of so many at most. No other call counts on the same. Each is to be given a share, and
    /// then called.
    pub(super) fn claim(&self, most: usize) -> usize {
        let is_fresh = self.is_fresh();
        let looking = self.seen.iter().zip(self.seen()).filter(|(_, time)| is_fresh(*time));
        looking.filter(|(seen, _)| is_fresh(seen.swap(0, Ordering::Relaxed))).take(most).count()
    }

    /// Calls those who look for work. So many shares are there by now: who finds none gives its CPU away.
    pub(super) fn call(&self, shares: usize) {
        self.shares.fetch_add(shares.cast_signed(), Ordering::Relaxed);
    }

    /// For a worker, by its number, as it starts.
    pub(super) fn start(&self, worker: usize) {
        if let Some(worker) = self.workers.get(worker) {
            worker.start();
        }
    }

    /// For a worker that begins its share.
    pub(super) fn begin_share(&self) {
        self.shares.fetch_sub(1, Ordering::Relaxed);
        self.begin();
    }

    /// For a worker that begins something.
    fn begin(&self) {
        if let Some(worker) = rayon::current_thread_index().and_then(|i| self.workers.get(i)) {
            worker.begin();
        }
    }

    /// For a worker at the end of its share: if it did some work, it will look for more as soon as it has returned, and
    /// can be counted on from now on.
    pub(super) fn stay(self: &Arc<Self>, workers: &ThreadPool, in_time: bool) {
        if !in_time || !self.stays {
            return;
        }
        self.say(self.now());
        let awake = Arc::clone(self);
        workers.spawn(move || {
            // A call may have kept it from a CPU meanwhile, to wake it, and then others have come.
            awake.begin();
            awake.look(STAY);
        });
    }

    /// Wakes workers to look for work for so long, unless so many do.
    fn wake(self: &Arc<Self>, workers: &ThreadPool, count: usize, patience: Duration) {
        let missing = count.saturating_sub(self.coming.load(Ordering::Relaxed));
        if missing == 0 {
            return;
        }
        self.coming.fetch_add(missing, Ordering::Relaxed);
        let cpu = cpu::current();
        if self.stays {
            let is_fresh = self.is_fresh();
            let others = self.seen().zip(&self.workers).filter(|(time, _)| !is_fresh(*time));
            others.for_each(|(_, worker)| worker.keep_from(cpu));
        }
        for _ in 0..missing {
            let awake = Arc::clone(self);
            workers.spawn(move || {
                awake.begin();
                cpu::leave(cpu);
                awake.look(patience);
                awake.coming.fetch_sub(1, Ordering::Relaxed);
            });
        }
        if !self.stays {
            cpu::give_way();
        }
    }

    /// Wakes so many workers for a call that gives a share to who comes, see [`Awake::wait`].
    pub(super) fn wake_for_share(self: &Arc<Self>, workers: &ThreadPool, count: usize) {
        self.wake(workers, count, STAY);
    }

    /// For a call that gives a share to who comes: who looks for work keeps its CPU until the result is dropped.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting { awake: self }
    }

    /// Wakes all workers, to look for more work for so long.
    pub(super) fn wake_all(self: &Arc<Self>, workers: &ThreadPool, patience: Duration) {
        if self.stays && !self.seen().all(self.is_fresh()) {
            self.wake(workers, self.workers.len(), patience);
        }
    }

    /// Wakes all workers for work that begins so long from now, and keeps those awake who are.
    pub(super) fn wake_for(self: &Arc<Self>, workers: &ThreadPool, after: Duration) {
        self.hold_for(after);
        self.wake_all(workers, patience_for(after));
    }

    /// Keeps those awake who are, for work that begins so long from now and for which nobody is woken.
    pub(super) fn hold_for(&self, after: Duration) {
        self.held.fetch_max(self.now() + nanoseconds(patience_for(after)), Ordering::Relaxed);
    }

    /// Looks for work until there is a share, or for so long, as long as it is held, and while a call waits: its jobs may be
    /// long ones. The pool gives what there is to who returns from here.
    fn look(&self, patience: Duration) {
        let mut now = self.now();
        let end = now + nanoseconds(patience);
        let is_waited_for = || self.waiting.load(Ordering::Relaxed) > 0;
        'looks: while now < end.max(self.held.load(Ordering::Relaxed)) || is_waited_for() {
            self.say(now);
            for _ in 0..LOOKS {
                if self.shares.load(Ordering::Relaxed) > 0 {
                    break 'looks;
                }
                spin_loop();
            }
            // Who else needs the CPU gets it here, and not in the midst of work that a call waits for. Who gives it away to
            // threads that look for work, as those of OpenBLAS do, has it back after milliseconds.
            if !is_waited_for() {
                if !self.stays {
                    break;
                }
                thread::yield_now();
            }
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

/// A call that gives a share to who comes.
pub(super) struct Waiting<'a> {
    awake: &'a Awake,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.awake.waiting.fetch_sub(1, Ordering::Relaxed);
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
    fn a_worker_that_looks_is_claimed_once() {
        let awake = Awake::new(3, true);
        assert!(!awake.is_any() && awake.claim(3) == 0);
        thread::sleep(Duration::from_nanos(1));
        for most in [0, 1, 2, 3] {
            let now = awake.now().max(1);
            awake.seen.iter().for_each(|seen| seen.store(now, Ordering::Relaxed));
            let claimed = awake.claim(most);
            // Unless this thread was taken off its CPU meanwhile.
            assert!(claimed <= most);
            if awake.is_any() {
                assert_eq!(claimed, most);
                assert!(most < 3 && awake.claim(3) <= 3 - most);
            }
            assert!(!awake.is_any() && awake.claim(3) == 0);
        }
    }

    #[test]
    fn a_worker_that_has_said_nothing_for_long_is_not_counted_on() {
        let awake = Awake::new(1, true);
        awake.seen[0].store(1, Ordering::Relaxed);
        thread::sleep(Duration::from_nanos(2 * FRESH));
        assert!(!awake.is_any() && awake.claim(1) == 0);
    }

    fn wait_until(it_is: impl Fn() -> bool) {
        while !it_is() {
            thread::yield_now();
        }
    }

    fn looks(awake: &Awake) -> bool {
        awake.seen.iter().any(|seen| seen.load(Ordering::Relaxed) != 0)
    }

    #[test]
    fn who_looks_returns_at_a_call_and_in_the_end() -> Result<(), rayon::ThreadPoolBuildError> {
        let workers = pool(1)?;
        let awake = Arc::new(Awake::new(1, true));
        // The workers are at work for ever, were it not for the call.
        awake.wake_all(&workers, Duration::from_secs(1_000_000));
        wait_until(|| looks(&awake));
        awake.call(1);
        workers.install(|| awake.begin_share());
        awake.wake_all(&workers, STAY);
        assert_eq!(workers.install(|| 8), 8);
        // However long it is until the work begins, they do not look for ever.
        awake.wake_for(&workers, Duration::MAX);
        assert_eq!(workers.install(|| 9), 9);
        assert!(!looks(&awake));
        Ok(())
    }

    #[test]
    fn who_looks_goes_on_while_it_is_held() -> Result<(), rayon::ThreadPoolBuildError> {
        let workers = pool(1)?;
        let awake = Arc::new(Awake::new(1, true));
        let begin = Instant::now();
        awake.hold_for(Duration::MAX);
        awake.wake_all(&workers, Duration::ZERO);
        workers.install(|| ());
        assert!(begin.elapsed() >= LONGEST);
        // A call ends it.
        awake.held.store(u64::MAX, Ordering::Relaxed);
        awake.wake_all(&workers, Duration::ZERO);
        wait_until(|| looks(&awake));
        awake.call(1);
        workers.install(|| awake.begin_share());
        Ok(())
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn who_looks_after_a_share_may_run_where_it_might_before() -> Result<(), rayon::ThreadPoolBuildError> {
        let cpus = || rustix::thread::sched_getaffinity(None).ok();
        let workers = pool(1)?;
        let awake = Arc::new(Awake::new(1, true));
        let before = workers.install(cpus);
        let is_one = before.is_none_or(|cpus| cpus.count() < 2);
        workers.install(|| awake.start(0));
        for in_time in [false, true] {
            workers.install(|| {
                awake.workers[0].keep_from(cpu::current());
                assert_eq!(cpus() == before, is_one);
                awake.stay(&workers, in_time);
            });
            assert_eq!(workers.install(cpus) == before, in_time || is_one);
        }
        Ok(())
    }

    #[test]
    fn workers_of_many_look_while_a_call_waits_for_them() -> Result<(), rayon::ThreadPoolBuildError> {
        let workers = pool(3)?;
        let awake = Arc::new(Awake::new(3, false));
        for (count, held) in [(1, 0), (3, u64::MAX)] {
            awake.held.store(held, Ordering::Relaxed);
            let waiting = awake.wait();
            awake.wake_for_share(&workers, count);
            wait_until(|| looks(&awake));
            // The job of a call may take long, and who has come is to be there at its end.
            thread::sleep(3 * LONGEST);
            assert!(looks(&awake));
            assert_eq!(awake.coming.load(Ordering::Relaxed), count);
            drop(waiting);
            workers.broadcast(|_| ());
            assert!(!looks(&awake));
        }
        awake.wake_all(&workers, STAY);
        awake.stay(&workers, true);
        assert_eq!((Arc::strong_count(&awake), awake.waiting.load(Ordering::Relaxed)), (1, 0));
        Ok(())
    }

    #[test]
    fn workers_are_woken_once_at_a_time() -> Result<(), rayon::ThreadPoolBuildError> {
        let workers = pool(1)?;
        let awake = Arc::new(Awake::new(3, true));
        let (go, wait) = std::sync::mpsc::channel::<()>();
        workers.spawn(move || assert!(wait.recv().is_err()));
        for count in [1, 1, 2, 2, 1] {
            awake.wake(&workers, count, STAY);
        }
        awake.wake_all(&workers, STAY);
        awake.wake_for_share(&workers, 3);
        assert_eq!(Arc::strong_count(&awake), 1 + 3);
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
