//! The threads: the only place that knows rayon.
//!
//! The pool is our own and is built at the first call that has work for it, so that nothing starts at import.
//! It has one thread fewer than asked for: the calling thread takes a share, and never waits for a sleeping
//! pool to do what it could do itself. Threads do not survive a fork, so the pool belongs to the process that
//! built it; a child builds another.
//!
//! Who does what never changes a result: work is cut at fixed places and sums are folded in order.

pub mod perform;
pub mod reduce;

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::error::{Error, Result};
use crate::fork::PerProcess;

/// The largest number of threads.
pub const MAX_THREADS: usize = 1024;

/// Bytes to move up to which one thread does the work: they are in a cache, mostly, from which one thread moves
/// them in the time that it takes to wake others.
const ALONE_UP_TO: usize = 6 << 20;

/// Threads to use; 0 before the first call, which asks the environment.
static THREADS: AtomicUsize = AtomicUsize::new(0);

struct Pool {
    process: u32,
    threads: usize,
    workers: rayon::ThreadPool,
}

/// The lock is held for moments and never waited for.
static POOL: PerProcess<RwLock<Option<Arc<Pool>>>> = PerProcess::new(RwLock::new(None));

/// To be called in a forked child before it starts threads: it builds a pool of its own when it needs one. The
/// parent's is left as it is, for not even its memory can be given back without asking threads that are not here.
pub fn forked() {
    POOL.renew();
}

/// The number of threads in use.
///
/// # Errors
/// `Error::Setting` when the environment asks for something that is not a number of threads.
#[inline]
pub fn threads() -> Result<usize> {
    match THREADS.load(Ordering::Relaxed) {
        0 => threads_from_environment(),
        threads => Ok(threads),
    }
}

/// Sets the number of threads for later calls.
pub fn set_threads(threads: usize) {
    THREADS.store(threads.clamp(1, MAX_THREADS), Ordering::Relaxed);
}

#[cold]
fn threads_from_environment() -> Result<usize> {
    let own = setting("GRADCLIP_NUM_THREADS", 1, "an integer from 1 to 1024")?;
    let threads = match own {
        Some(threads) => threads,
        // Rayon's own variable: 0 is its word for the default, and a large number is not an error there.
        None => match setting("RAYON_NUM_THREADS", 0, "an integer, 0 for the default")? {
            Some(threads) if threads > 0 => threads,
            _ => std::thread::available_parallelism().map_or(1, usize::from),
        },
    };
    // `set_num_threads` of another thread may have come first; it counts.
    let threads = threads.min(MAX_THREADS);
    Ok(THREADS
        .compare_exchange(0, threads, Ordering::Relaxed, Ordering::Relaxed)
        .map_or_else(|set| set, |_| threads))
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

/// The pool of this process, or none where the calling thread is to work alone: there is one thread, the lock
/// is held, or the operating system starts no threads.
fn pool(threads: usize) -> Option<Arc<Pool>> {
    if threads < 2 {
        return None;
    }
    let process = std::process::id();
    let held = POOL.get().try_read().ok()?;
    if let Some(pool) = &*held
        && pool.process == process
        && pool.threads == threads
    {
        return Some(Arc::clone(pool));
    }
    drop(held);
    let workers = rayon::ThreadPoolBuilder::new()
        .num_threads(threads - 1)
        .thread_name(|i| format!("gradclip-{i}"))
        .build()
        .ok()?;
    let pool = Arc::new(Pool { process, threads, workers });
    let old = POOL.get().try_write().ok()?.replace(Arc::clone(&pool));
    if let Some(old) = old
        && old.process != process
    {
        // A fork that `forked` was not told of: C code, not Python's `os.fork`. See there.
        mem::forget(old);
    }
    Some(pool)
}

/// Whether work that moves so many bytes is shared between threads.
fn is_shared(bytes: usize) -> Result<bool> {
    Ok(threads()? > 1 && bytes > ALONE_UP_TO)
}

/// Bytes that a thread takes at a time, of so many in all: long stretches, which the memory gives fastest, but some for
/// each thread.
fn share_of(bytes: usize) -> usize {
    let threads = threads().unwrap_or(1);
    (bytes / (4 * threads)).clamp(512 << 10, 2 << 20)
}

/// Calls `work` for each job, on all threads. The jobs are given out in order, one at a time.
fn for_each<J: Send>(jobs: impl Iterator<Item = J> + Send, work: impl Fn(J) + Sync) -> Result<()> {
    let threads = threads()?;
    let Some(pool) = pool(threads) else {
        jobs.for_each(work);
        return Ok(());
    };
    let jobs = Mutex::new(jobs);
    let share = || {
        loop {
            // A panic elsewhere ends the scope below; the iterator itself is whole.
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
            match job {
                Some(job) => work(job),
                None => return,
            }
        }
    };
    pool.workers.in_place_scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| share());
        }
        share();
    });
    Ok(())
}

/// The same if so many bytes to move are worth it; else the calling thread does all jobs.
fn share_out<J: Send>(
    bytes: usize,
    jobs: impl Iterator<Item = J> + Send,
    work: impl Fn(J) + Sync,
) -> Result<()> {
    if is_shared(bytes)? {
        for_each(jobs, work)
    } else {
        jobs.for_each(work);
        Ok(())
    }
}

/// Cuts `pieces` into groups of at least `target` bytes each, in order.
fn grouped<P>(
    pieces: &mut [P],
    target: usize,
    bytes: impl Fn(&P) -> usize,
) -> impl Iterator<Item = &mut [P]> {
    let mut rest = pieces;
    std::iter::from_fn(move || {
        let mut sum = 0;
        let count = rest.iter().position(|piece| {
            sum += bytes(piece);
            sum >= target
        });
        let count = count.map_or(rest.len(), |last| last + 1);
        let (group, after) = mem::take(&mut rest).split_at_mut(count);
        rest = after;
        (!group.is_empty()).then_some(group)
    })
}
