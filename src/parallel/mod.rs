//! The threads: the only place that knows rayon.
//!
//! The pool is our own and is built at the first call that has work for it, so that nothing starts at import.
//! It has one thread fewer than asked for: the calling thread begins at once, and others get a share when they have come
//! and look for work (`awake.rs`). It waits for no thread that was woken, only for shares that it gave to who looked for work. The
//! threads of a small pool go on looking for a moment after work, and then share what is not worth waking them. Threads
//! do not survive a fork, so the pool belongs to the process that built it; a child builds another.
//!
//! Who does what never changes a result: work is cut at fixed places and sums are folded in order.

mod awake;
mod cpu;
pub mod perform;
pub mod reduce;

use std::hint::spin_loop;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use rayon::Scope;

use self::awake::{Awake, Piece};
use crate::error::{Error, Result};
use crate::fork::PerProcess;

/// The largest number of threads.
pub const MAX_THREADS: usize = 1024;

/// Bytes to move up to which nobody is woken: they are in a cache, mostly, from which one thread moves them in the time
/// that it takes to wake others.
const WAKE_FROM: usize = 6 << 20;

/// Bytes to move from which threads that are awake share the work, which costs a microsecond.
const SHARE_FROM: usize = 1 << 20;

/// The largest pool whose threads stay awake. With more threads than this, smaller work has such a pool of its own.
const FEW: usize = 4;

/// Threads to use, or one of the two below.
static THREADS: AtomicUsize = AtomicUsize::new(NOT_ASKED);

/// Before the first call, which asks the environment.
const NOT_ASKED: usize = 0;
/// The environment says nothing, and the CPUs were not counted: that takes longer than a small call.
const BY_CPUS: usize = usize::MAX;

struct Pool {
    process: u32,
    threads: usize,
    awake: Arc<Awake>,
    workers: rayon::ThreadPool,
}

/// One of few threads, which stay awake for a moment after work, and one of more, which do not. The locks are held for
/// moments and never waited for.
static POOLS: PerProcess<[RwLock<Option<Arc<Pool>>>; 2]> = PerProcess::new([const { RwLock::new(None) }; 2]);

/// To be called in a forked child before it starts threads: it builds a pool of its own when it needs one. The
/// parent's is left as it is, for not even its memory can be given back without asking threads that are not here.
pub fn forked() {
    POOLS.renew();
}

/// Asks the environment, once.
///
/// # Errors
/// `Error::Setting` when it asks for something that is not a number of threads.
#[inline]
pub fn check_settings() -> Result<()> {
    if THREADS.load(Ordering::Relaxed) == NOT_ASKED { ask_environment() } else { Ok(()) }
}

/// The number of threads in use.
///
/// # Errors
/// Those of [`check_settings`].
#[inline]
pub fn threads() -> Result<usize> {
    match THREADS.load(Ordering::Relaxed) {
        NOT_ASKED | BY_CPUS => count_threads(),
        threads => Ok(threads),
    }
}

/// Sets the number of threads for later calls.
pub fn set_threads(threads: usize) {
    THREADS.store(threads.clamp(1, MAX_THREADS), Ordering::Relaxed);
}

#[cold]
fn ask_environment() -> Result<()> {
    let own = setting("GRADCLIP_NUM_THREADS", 1, "an integer from 1 to 1024")?;
    let threads = match own {
        Some(threads) => threads,
        // Rayon's own variable: 0 is its word for the default, and a large number is not an error there.
        None => match setting("RAYON_NUM_THREADS", 0, "an integer, 0 for the default")? {
            Some(threads) if threads > 0 => threads.min(MAX_THREADS),
            _ => BY_CPUS,
        },
    };
    replace_threads(NOT_ASKED, threads);
    Ok(())
}

#[cold]
fn count_threads() -> Result<usize> {
    check_settings()?;
    replace_threads(BY_CPUS, cpus().min(MAX_THREADS));
    Ok(THREADS.load(Ordering::Relaxed))
}

/// Sets the number, unless `set_num_threads` of another thread came first, which counts.
fn replace_threads(before: usize, now: usize) {
    let _ = THREADS.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed);
}

fn setting(variable: &'static str, least: usize, allowed: &'static str) -> Result<Option<usize>> {
    let Some(value) = std::env::var_os(variable) else { return Ok(None) };
    let value = value.to_string_lossy();
    let most = if least == 0 { usize::MAX } else { MAX_THREADS };
    match value.trim() {
        "" => Ok(None),
        // A number that no usize holds is a number still.
        text if least == 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(Some(text.parse().unwrap_or(usize::MAX)))
        }
        text => match text.parse() {
            Ok(threads) if (least..=most).contains(&threads) => Ok(Some(threads)),
            _ => Err(Error::Setting { variable, found: value.into_owned(), allowed }),
        },
    }
}

/// The number of CPUs that this process may use when it is first asked for, which takes 0.1 ms.
fn cpus() -> usize {
    static CPUS: AtomicUsize = AtomicUsize::new(0);
    let mut cpus = CPUS.load(Ordering::Relaxed);
    if cpus == 0 {
        cpus = thread::available_parallelism().map_or(1, usize::from);
        CPUS.store(cpus, Ordering::Relaxed);
    }
    cpus
}

/// [`FEW`], or the number of CPUs if there are not so many: a thread that only looks for work is to keep none from its CPU.
fn few() -> usize {
    cpus().min(FEW)
}

/// Where the pool with so many threads is, if there is one.
fn place(threads: usize) -> &'static RwLock<Option<Arc<Pool>>> {
    let [of_few, of_more] = POOLS.get();
    if threads > few() { of_more } else { of_few }
}

/// The pool of this process with so many threads, if there is one that is of use.
fn pool(threads: usize) -> Option<Arc<Pool>> {
    let pool = place(threads).try_read().ok()?;
    let pool = pool.as_ref()?;
    (pool.threads == threads && pool.process == std::process::id()).then(|| Arc::clone(pool))
}

/// The same, built if there is none. None where the calling thread is to work alone: the lock is held, or the operating
/// system starts no threads.
fn some_pool(threads: usize) -> Option<Arc<Pool>> {
    if let Some(pool) = pool(threads) {
        return Some(pool);
    }
    let awake = Arc::new(Awake::new(threads - 1, threads <= few()));
    let started = Arc::clone(&awake);
    let workers = rayon::ThreadPoolBuilder::new()
        .num_threads(threads - 1)
        .thread_name(|i| format!("gradclip-{i}"))
        .start_handler(move |i| started.start(i))
        .build()
        .ok()?;
    let process = std::process::id();
    let pool = Arc::new(Pool { process, threads, awake, workers });
    let old = place(threads).try_write().ok()?.replace(Arc::clone(&pool));
    if let Some(old) = old
        && old.process != process
    {
        // A fork that `forked` was not told of: C code, not Python's `os.fork`. See there.
        mem::forget(old);
    }
    Some(pool)
}

/// To be called when something else is to be done first, for so long, and then work that moves so many bytes of a list of
/// arrays: threads that the work would wake are awake by then, and those that are awake stay so.
pub fn wake_ahead(bytes: usize, arrays: usize, after: Duration) {
    let Ok(threads) = threads() else { return };
    if threads < 2 {
        return;
    }
    if work_of(bytes, arrays) > WAKE_FROM {
        if let Some(pool) = some_pool(threads) {
            pool.awake.wake_for(&pool.workers, after);
        }
    } else if let Some(pool) = pool(threads.min(few())) {
        pool.awake.hold_for(after);
    }
}

/// Who does a piece of work.
enum Team {
    /// The calling thread.
    Alone,
    /// It, and those of few that are awake: none if there is no pool here.
    Few { piece: Piece, pool: Option<Arc<Pool>> },
    /// All so many threads.
    All(usize),
}

impl Team {
    /// For work that moves so many bytes.
    fn of(bytes: usize) -> Result<Self> {
        if bytes < SHARE_FROM {
            return Ok(Self::Alone);
        }
        if bytes <= WAKE_FROM && THREADS.load(Ordering::Relaxed) == BY_CPUS {
            // There is no pool yet, and to count the CPUs is for who wants one.
            return Ok(Self::Few { piece: Piece::begin(), pool: None });
        }
        let threads = threads()?;
        if threads < 2 {
            return Ok(Self::Alone);
        }
        if bytes > WAKE_FROM {
            return Ok(Self::All(threads));
        }
        let pool = pool(threads.min(few())).filter(|pool| pool.awake.is_any());
        Ok(Self::Few { piece: Piece::begin(), pool })
    }

    /// Whether it is worth cutting the work into jobs.
    fn is_many(&self) -> bool {
        matches!(self, Self::All(_) | Self::Few { pool: Some(_), .. })
    }

    /// The largest number of threads that may take part.
    fn threads(&self) -> usize {
        match self {
            Self::Alone => 1,
            Self::Few { pool, .. } => pool.as_ref().map_or(1, |pool| pool.threads),
            Self::All(threads) => *threads,
        }
    }

    /// Calls `work` for each job. The jobs are given out one at a time, from both ends, so that each of two threads has a
    /// half to itself, about, and meets in its cache what it left there in the call before.
    fn each<J: Send>(&self, jobs: impl DoubleEndedIterator<Item = J> + Send, work: impl Fn(J) + Sync) {
        let pool = match self {
            Self::Alone => None,
            Self::Few { pool, .. } => pool.clone(),
            Self::All(threads) => some_pool(*threads),
        };
        match pool {
            Some(pool) => pool.each(matches!(self, Self::All(_)), jobs, work),
            None => jobs.for_each(work),
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if let Self::Few { piece, pool } = self
            && let Some(patience) = piece.end()
            && pool.is_none()
            && let Ok(threads) = threads()
            && let threads = threads.min(few())
            && threads > 1
            && let Some(pool) = some_pool(threads)
        {
            pool.awake.wake_all(&pool.workers, patience);
        }
    }
}

impl Pool {
    /// Calls `work` for each job, on the calling thread and on all others that look for work, now or when a job is done;
    /// they are woken for it if `wakes`.
    fn each<J: Send>(
        &self,
        wakes: bool,
        jobs: impl DoubleEndedIterator<Item = J> + Send,
        work: impl Fn(J) + Sync,
    ) {
        let shares = Shares {
            pool: self,
            wakes,
            jobs: Mutex::new(jobs),
            work,
            given: AtomicUsize::new(0),
            is_done: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
        };
        let shares = &shares;
        self.workers.in_place_scope(|scope| {
            let waiting = wakes.then(|| self.awake.wait());
            shares.give(scope);
            shares.take(scope, false);
            drop(waiting);
            // The scope would put this thread to sleep until its end, and to wake takes long.
            let begin = Instant::now();
            while shares.busy.load(Ordering::Acquire) > 0 && begin.elapsed() < PATIENCE {
                spin_loop();
            }
        });
    }
}

/// A call's jobs, and who has a share of them.
struct Shares<'a, I, W> {
    pool: &'a Pool,
    /// Whether workers that sleep are woken, or only those who look for work get a share.
    wakes: bool,
    /// Those that nobody has begun.
    jobs: Mutex<I>,
    /// What is done with each.
    work: W,
    /// The number of workers that were given a share.
    given: AtomicUsize,
    /// Whether all jobs were begun.
    is_done: AtomicBool,
    /// The number of workers that were given a share and have not ended it.
    busy: AtomicUsize,
}

impl<J: Send, I: DoubleEndedIterator<Item = J> + Send, W: Fn(J) + Sync> Shares<'_, I, W> {
    /// Does jobs while there are some; whether there was one.
    fn take<'s>(&'s self, scope: &Scope<'s>, backwards: bool) -> bool {
        let mut any = false;
        loop {
            // A panic elsewhere ends the scope; the iterator itself is whole.
            let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            let job = if backwards { jobs.next_back() } else { jobs.next() };
            drop(jobs);
            let Some(job) = job else {
                self.is_done.store(true, Ordering::Relaxed);
                return any;
            };
            (self.work)(job);
            any = true;
            self.give(scope);
        }
    }

    /// Gives a share to each worker that looks for work, and wakes others.
    fn give<'s>(&'s self, scope: &Scope<'s>) {
        let Pool { awake, workers, .. } = self.pool;
        let given = self.given.load(Ordering::Relaxed);
        let missing = workers.current_num_threads().saturating_sub(given);
        if missing == 0 || self.is_done.load(Ordering::Relaxed) {
            return;
        }
        let come = awake.claim(missing);
        if come > 0 {
            let first = self.given.fetch_add(come, Ordering::Relaxed);
            self.busy.fetch_add(come, Ordering::Relaxed);
            for number in first..first + come {
                scope.spawn(move |scope| {
                    awake.begin_share();
                    let in_time = self.take(scope, number % 2 == 0);
                    awake.stay(workers, in_time);
                    self.busy.fetch_sub(1, Ordering::Release);
                });
            }
            awake.call(come);
        }
        // After the shares, which are for those who are awake.
        if self.wakes {
            awake.wake_for_share(workers, missing - come);
        }
    }
}

/// How long the calling thread waits for others before it sleeps.
const PATIENCE: Duration = Duration::from_micros(100);

/// What an array of a list takes beside its elements, in bytes that would take as long.
const EACH: usize = 256;

/// The work of a list of so many arrays, in bytes: those of their elements, and what each takes beside them. For one array
/// that counts nothing.
fn work_of(bytes: usize, arrays: usize) -> usize {
    bytes.saturating_add(EACH.saturating_mul(arrays.saturating_sub(1)))
}

/// Bytes that a thread takes at a time, of so many in all: long stretches, which the memory gives fastest, but some for
/// each thread.
fn share_of(bytes: usize) -> usize {
    let threads = threads().unwrap_or(1);
    (bytes / (4 * threads)).clamp(512 << 10, 2 << 20)
}

/// Calls `work` for each job, on several threads if so many bytes to move are worth it.
fn share_out<J: Send>(
    bytes: usize,
    jobs: impl DoubleEndedIterator<Item = J> + Send,
    work: impl Fn(J) + Sync,
) -> Result<()> {
    Team::of(bytes)?.each(jobs, work);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_pool(threads: usize, stays: bool) -> Result<Pool> {
        let workers = rayon::ThreadPoolBuilder::new().num_threads(threads - 1).build();
        let workers = workers.map_err(|_| Error::Memory)?;
        let awake = Arc::new(Awake::new(threads - 1, stays));
        Ok(Pool { process: 0, threads, awake, workers })
    }

    /// Jobs until it is enough.
    struct Until<'a>(&'a AtomicBool);

    impl Iterator for Until<'_> {
        type Item = ();

        fn next(&mut self) -> Option<()> {
            (!self.0.load(Ordering::Relaxed)).then_some(())
        }
    }

    impl DoubleEndedIterator for Until<'_> {
        fn next_back(&mut self) -> Option<()> {
            self.next()
        }
    }

    #[test]
    fn workers_that_have_come_get_a_share_however_long_the_jobs_are() -> Result<()> {
        for (threads, stays) in [(2, true), (4, false)] {
            let pool = a_pool(threads, stays)?;
            let helped = AtomicBool::new(false);
            // On a CPU of its own a worker helps from the second job on.
            let jobs = AtomicUsize::new(0);
            pool.each(true, Until(&helped), |()| {
                let is_worker = pool.workers.current_thread_index().is_some();
                helped.fetch_or(is_worker || jobs.fetch_add(1, Ordering::Relaxed) == 1000, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(if is_worker { 0 } else { 2 }));
            });
            assert!(jobs.into_inner() < 1000);
        }
        Ok(())
    }

    #[test]
    fn nobody_waits_for_workers_that_do_not_come_and_who_comes_helps() -> Result<()> {
        for (threads, stays) in [(2, true), (4, true), (4, false)] {
            let pool = a_pool(threads, stays)?;
            let gate = Arc::new(RwLock::new(()));
            let closed = gate.write();
            for _ in 1..threads {
                let gate = Arc::clone(&gate);
                pool.workers.spawn(move || drop(gate.read()));
            }
            for wake in [false, true, true] {
                let sum = AtomicUsize::new(0);
                pool.each(wake, 0..1000, |i| {
                    sum.fetch_add(i, Ordering::Relaxed);
                });
                assert_eq!(sum.into_inner(), 1000 * 999 / 2);
            }
            drop(closed);
            for _ in 0..3 {
                let helped = AtomicBool::new(false);
                pool.each(true, Until(&helped), |()| {
                    if pool.workers.current_thread_index().is_some() {
                        helped.store(true, Ordering::Relaxed);
                    }
                });
            }
        }
        Ok(())
    }
}
