//! The threads of one call: the calling thread, and the workers that arrive in time.
//!
//! The caller never waits for a worker of the pool to wake up, only for jobs that a worker has begun. It takes jobs from the front,
//! and workers take them from the back. So each of two CPUs has its own half in both passes of a call: writing cache lines that
//! the other CPU holds takes up to five times as long. A pass closes when no job is left; a worker that arrives later finds it
//! closed and touches nothing of the call.
//!
//! A worker that wakes up on the caller's CPU would preempt the caller. Linux places it there if the other CPU is busy or, on a
//! virtual machine, halted. The worker yields a few times, so that the scheduler may move it to an idle CPU, and then leaves.
//! No worker of the pool spins after the call, and no thread's affinity is changed.
//!
//! Calls of `gradclip.torch` have the threads of PyTorch as workers: see [`Team`].

mod team;

use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

pub use self::team::Team;
use super::pool::Pool;
use super::threads::THREADS;
use crate::error::Result;

/// The fewest bytes that a pass moves if it wakes workers. Waking one takes the caller 10 µs, or 25 to 30 µs if the worker
/// wakes up on the caller's CPU. The worker arrives 30 to 50 µs later, if at all. A smaller pass has ended by then.
pub(super) const WAKE_MIN_BYTES: usize = 6 << 20;

/// Bytes of a pass for each worker that is woken. For fewer bytes, waking one more worker takes longer than it saves.
const BYTES_PER_WORKER: usize = 2 << 20;

/// How long a worker that has helped spins for the next pass of the call. Meanwhile the caller finishes a job and folds sums.
const NEXT_PASS_SPIN: Duration = Duration::from_micros(50);

/// How long the caller spins for jobs that workers have begun before it sleeps. Once it sleeps, a worker on its CPU can run.
const SPIN_BEFORE_SLEEP: Duration = Duration::from_micros(200);

/// How long a worker runs before it yields between two jobs. Otherwise the scheduler's tick may preempt it within a job, in
/// favour of a BLAS thread that spins, and the caller waits for 3 to 4 ms.
const YIELD_INTERVAL: Duration = Duration::from_micros(300);

/// How many times a worker on the caller's CPU yields before it leaves.
const YIELDS: usize = 3;

/// The threads of a call, which may have several passes. Dropping it lets the workers leave.
#[derive(Default)]
pub struct Crew {
    helpers: OnceCell<Arc<Helpers>>,
    /// The share of the jobs of the last pass that the calling thread did.
    own_part: Cell<Option<f64>>,
}

impl Crew {
    /// A crew of the calling thread alone. Workers join it in the first pass that is worth several threads.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a pass that moves `bytes` is worth several threads, and so worth being cut into jobs.
    pub(super) fn is_shared(bytes: usize) -> Result<bool> {
        Ok(bytes >= WAKE_MIN_BYTES && THREADS.get()? > 1)
    }

    /// How many of `jobs` lie in the share of the data that the calling thread read in the previous pass, and so in its cache.
    pub(super) fn own_jobs(&self, jobs: usize) -> usize {
        self.own_part.get().map_or(jobs, |part| (part * jobs as f64).round() as usize)
    }

    /// Calls `work` for each job, on several threads if they move enough bytes.
    pub(super) fn each<J: Send>(
        &self,
        bytes: usize,
        jobs: impl DoubleEndedIterator<Item = J> + Send,
        work: impl Fn(J) + Sync,
    ) -> Result<()> {
        let jobs = Mutex::new(jobs);
        self.run_pass(bytes, &|is_caller| {
            // The iterator is intact after a panic of another thread.
            let mut jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
            let job = if is_caller { jobs.next() } else { jobs.next_back() };
            drop(jobs);
            job.map(&work).is_some()
        })
    }

    /// Does jobs until none is left, on several threads if they move enough bytes. [`Crew::each`] has hundreds of copies, one for
    /// each type of jobs and work. This function has one.
    fn run_pass(&self, bytes: usize, take: &Take<'_>) -> Result<()> {
        let threads = THREADS.get()?;
        if Self::is_shared(bytes)? {
            let workers = (bytes / BYTES_PER_WORKER).min(threads - 1);
            if let Some(team) = Team::current() {
                self.share_pass(take, |helpers, own| {
                    team.run(workers, &|is_caller| {
                        if is_caller { own() } else { while helpers.take_one() {} }
                    });
                });
                return Ok(());
            }
            if let Some(pool) = Pool::get(threads) {
                self.share_pass(take, |helpers, own| {
                    let missing = helpers.missing(workers);
                    if missing > 0 {
                        let helpers = Arc::clone(helpers);
                        pool.wake(Arc::new(move || helpers.help()), missing);
                    }
                    own();
                });
                return Ok(());
            }
        }
        while take(true) {}
        Ok(())
    }

    /// Does jobs until none is left. `begin` lets workers help. It gets the caller's part as a function, and must call it.
    fn share_pass(&self, take: &Take<'_>, begin: impl FnOnce(&Arc<Helpers>, &(dyn Fn() + Sync))) {
        let helpers = self.helpers.get_or_init(|| Arc::new(Helpers::new()));
        let pass = helpers.open(take);
        let own = AtomicUsize::new(0);
        begin(helpers, &|| {
            while take(true) {
                own.fetch_add(1, Ordering::Relaxed);
            }
        });
        drop(pass);
        let own = own.into_inner();
        let all = own + helpers.done.swap(0, Ordering::Relaxed);
        self.own_part.set(Some(own as f64 / all.max(1) as f64));
        let panic = helpers.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if let Some(helpers) = self.helpers.get() {
            helpers.is_over.store(true, Ordering::Relaxed);
        }
    }
}

/// A pass as the threads see it: takes a job and does it; false if none is left. The argument is whether the caller takes the job:
/// the caller takes jobs from the front, workers from the back.
type Take<'a> = dyn Fn(bool) -> bool + Sync + 'a;

/// The state that the workers of a call share. It outlives the call if a worker arrives late.
#[derive(Default)]
struct Helpers {
    /// The pass that is open. Workers hold the lock while they do a job.
    pass: RwLock<Option<&'static Take<'static>>>,
    /// The number of passes so far.
    passes: AtomicUsize,
    /// Whether the call has ended.
    is_over: AtomicBool,
    /// Workers that were woken and have not left.
    present: AtomicUsize,
    /// Workers that left because they found no CPU of their own.
    without_cpu: AtomicUsize,
    /// Jobs of this pass that workers did.
    done: AtomicUsize,
    /// The first panic of a worker, for the caller.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// The CPU of the caller at its first pass, if the operating system reports it.
    cpu: Option<usize>,
}

/// An open pass. Dropping it closes the pass and waits for the jobs that workers have begun.
#[must_use = "dropping it closes the pass"]
struct Open<'a>(&'a Helpers);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let (lock, begin) = (&self.0.pass, Instant::now());
        let mut pass = loop {
            match lock.try_write() {
                Ok(pass) => break pass,
                Err(TryLockError::WouldBlock) if begin.elapsed() < SPIN_BEFORE_SLEEP => spin_loop(),
                // No new worker gets the lock from now on.
                Err(_) => break lock.write().unwrap_or_else(PoisonError::into_inner),
            }
        };
        *pass = None;
    }
}

impl Helpers {
    fn new() -> Self {
        Self { cpu: current_cpu(), ..Self::default() }
    }

    /// How many workers must be woken so that `wanted` workers are present. None, if a worker has found no CPU of its own.
    fn missing(&self, wanted: usize) -> usize {
        if self.without_cpu.load(Ordering::Relaxed) > 0 {
            return 0;
        }
        wanted.saturating_sub(self.present.load(Ordering::Relaxed))
    }

    /// Opens a pass. No other pass may be open.
    #[expect(unsafe_code, reason = "threads that outlive a call cannot hold a borrow of it")]
    fn open<'a>(&'a self, take: &'a Take<'a>) -> Open<'a> {
        // SAFETY: only the lifetime changes. A worker finds `take` in the lock, and calls it only while it holds the lock.
        // `Open::drop` removes it, for which no worker may hold the lock, also if the caller panics; the private caller of this
        // function keeps the guard in a local variable, so it is dropped before the borrow ends.
        let take = unsafe { std::mem::transmute::<&'a Take<'a>, &'static Take<'static>>(take) };
        *self.pass.write().unwrap_or_else(PoisonError::into_inner) = Some(take);
        self.passes.fetch_add(1, Ordering::Release);
        Open(self)
    }

    /// Does one job, if one is left. Does not wait for a pass that is being opened or closed.
    fn take_one(&self) -> bool {
        let Ok(pass) = self.pass.try_read() else { return false };
        let taken = catch_unwind(AssertUnwindSafe(|| pass.is_some_and(|take| take(false))));
        let is_job = *taken.as_ref().unwrap_or(&false);
        self.done.fetch_add(usize::from(is_job), Ordering::Relaxed);
        if let Err(panic) = taken {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
        is_job
    }

    /// Helps the call as long as it has jobs.
    fn help(&self) {
        self.present.fetch_add(1, Ordering::Relaxed);
        if self.has_own_cpu() {
            self.help_in_passes();
        } else {
            self.without_cpu.fetch_add(1, Ordering::Relaxed);
        }
        self.present.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Does jobs of the pass that is open until none is left. A worker that found a job stays for the passes that follow soon.
    fn help_in_passes(&self) {
        let (mut has_helped, mut turn) = (false, Instant::now());
        loop {
            // The number is read before the jobs are done, so that a pass that opens meanwhile is not missed.
            let pass = self.passes.load(Ordering::Acquire);
            while self.take_one() {
                has_helped = true;
                if turn.elapsed() > YIELD_INTERVAL {
                    thread::yield_now();
                    turn = Instant::now();
                }
            }
            if !has_helped || !self.spin_for_next_pass(pass) {
                return;
            }
        }
    }

    /// Spins for another pass of the call, at most for [`NEXT_PASS_SPIN`]. Returns whether there is one.
    fn spin_for_next_pass(&self, pass: usize) -> bool {
        let begin = Instant::now();
        while !self.is_over() && begin.elapsed() < NEXT_PASS_SPIN {
            if self.passes.load(Ordering::Acquire) != pass {
                return true;
            }
            spin_loop();
        }
        false
    }

    fn has_own_cpu(&self) -> bool {
        let is_in_the_way = || self.cpu.is_some() && current_cpu() == self.cpu;
        for _ in 0..YIELDS {
            if !is_in_the_way() || self.is_over() {
                return true;
            }
            thread::yield_now();
        }
        !is_in_the_way()
    }
}

/// The CPU on which this thread runs. Only Linux reports it.
#[allow(clippy::unnecessary_wraps, reason = "other systems do not tell")]
fn current_cpu() -> Option<usize> {
    #[cfg(all(target_os = "linux", not(miri)))]
    return Some(rustix::thread::sched_getcpu());
    #[cfg(not(all(target_os = "linux", not(miri))))]
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::parallel::tests::alone;

    const BYTES: usize = WAKE_MIN_BYTES;

    /// The shared state of workers. The pool's workers are not woken, so that the test alone decides which threads help.
    fn unwoken(crew: &Crew) -> Arc<Helpers> {
        let helpers = || Helpers { cpu: None, without_cpu: AtomicUsize::new(1), ..Helpers::new() };
        Arc::clone(crew.helpers.get_or_init(|| Arc::new(helpers())))
    }

    /// Does `work` beside `helpers` threads that help from the beginning.
    fn with_helpers<R>(crew: &Crew, helpers: usize, work: impl FnOnce() -> R) -> R {
        let shared = unwoken(crew);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        shared.help();
                    }
                });
            }
            let result = catch_unwind(AssertUnwindSafe(work));
            stop.store(true, Ordering::Relaxed);
            result.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    fn is_worker(caller: thread::ThreadId) -> bool {
        thread::current().id() != caller
    }

    #[test]
    fn each_job_is_done_once_in_all_passes() -> Result<()> {
        let _alone = alone();
        THREADS.set(3);
        let crew = Crew::new();
        with_helpers(&crew, 2, || {
            for jobs in [0, 1, 2, 7, 1000] {
                for _ in 0..20 {
                    let counts: Vec<_> = (0..jobs).map(|_| AtomicUsize::new(0)).collect();
                    crew.each(BYTES, counts.iter(), |count| {
                        count.fetch_add(1, Ordering::Relaxed);
                    })?;
                    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                    assert!(crew.own_jobs(jobs) <= jobs);
                }
            }
            Ok(())
        })
    }

    #[test]
    fn workers_take_jobs_from_the_back_and_the_caller_waits_for_them() -> Result<()> {
        let _alone = alone();
        THREADS.set(2);
        let (crew, caller) = (Crew::new(), thread::current().id());
        with_helpers(&crew, 1, || {
            let (both_begun, finished) = (Barrier::new(2), AtomicBool::new(false));
            crew.each(BYTES, 0..2, |job| {
                assert_eq!(is_worker(caller), job == 1);
                both_begun.wait();
                if is_worker(caller) {
                    thread::sleep(2 * SPIN_BEFORE_SLEEP + Duration::from_millis(5));
                    finished.store(true, Ordering::Relaxed);
                }
            })?;
            assert!(finished.into_inner());
            assert_eq!(crew.own_jobs(10), 5);
            Ok(())
        })
    }

    #[test]
    fn a_panic_of_a_worker_reaches_the_caller() {
        let _alone = alone();
        THREADS.set(2);
        let (crew, caller) = (Crew::new(), thread::current().id());
        let seen = AtomicBool::new(false);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            with_helpers(&crew, 1, || {
                crew.each(BYTES, 0..1_000_000, |_| {
                    if is_worker(caller) {
                        seen.store(true, Ordering::Relaxed);
                        resume_unwind(Box::new("a job"));
                    }
                    while !seen.load(Ordering::Relaxed) {
                        spin_loop();
                    }
                })
            })
        }));
        assert_eq!(panic.err().and_then(|panic| panic.downcast_ref::<&str>().copied()), Some("a job"));
    }

    #[test]
    fn a_panic_of_the_caller_waits_for_the_workers() {
        let _alone = alone();
        THREADS.set(2);
        let (crew, caller) = (Crew::new(), thread::current().id());
        let (begun, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let panic = catch_unwind(AssertUnwindSafe(|| {
            with_helpers(&crew, 1, || {
                crew.each(BYTES, 0..2, |_| {
                    if is_worker(caller) {
                        begun.store(true, Ordering::Relaxed);
                        thread::sleep(Duration::from_millis(5));
                        ended.store(true, Ordering::Relaxed);
                    } else {
                        while !begun.load(Ordering::Relaxed) {
                            spin_loop();
                        }
                        resume_unwind(Box::new("the caller"));
                    }
                })
            })
        }));
        assert!(panic.is_err() && ended.into_inner());
    }

    #[test]
    fn a_worker_that_comes_too_late_does_nothing() -> Result<()> {
        let _alone = alone();
        THREADS.set(2);
        let crew = Crew::new();
        let shared = unwoken(&crew);
        shared.help();
        crew.each(BYTES, 0..10, |_| ())?;
        assert_eq!(crew.own_jobs(10), 10);
        shared.help();
        drop(crew);
        shared.help();
        assert!(shared.is_over() && shared.done.load(Ordering::Relaxed) == 0);
        Ok(())
    }

    #[test]
    fn a_pass_wakes_the_workers_that_are_missing() {
        let helpers = Helpers { present: AtomicUsize::new(1), ..Helpers::new() };
        assert_eq!([0, 1, 2, 7].map(|wanted| helpers.missing(wanted)), [0, 0, 1, 6]);
        helpers.without_cpu.store(1, Ordering::Relaxed);
        assert_eq!(helpers.missing(7), 0);
    }

    #[test]
    fn small_passes_wake_nobody() -> Result<()> {
        let _alone = alone();
        let crew = Crew::new();
        crew.each(BYTES - 1, 0..10, |_| ())?;
        assert!(crew.helpers.get().is_none() && crew.own_jobs(10) == 10);
        Ok(())
    }
}
