//! The number of threads: what the environment asks for, what `set_num_threads` set, or the CPUs of this process.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::error::{Error, Result};

/// The largest number of threads.
pub const MAX_THREADS: usize = 1024;

/// The number of threads to use, [`NOT_ASKED`] or [`BY_CPUS`].
static THREADS: AtomicUsize = AtomicUsize::new(NOT_ASKED);

/// The value before the first call, which asks the environment.
const NOT_ASKED: usize = 0;
/// The environment sets no number. The CPUs are counted when a call first needs threads, since that takes 0.1 ms.
const BY_CPUS: usize = usize::MAX;

/// Reads the environment, once.
///
/// # Errors
/// `Error::Setting` if a variable does not hold a number of threads.
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

/// Makes the next call read the environment again.
pub fn forget_settings() {
    THREADS.store(NOT_ASKED, Ordering::Relaxed);
}

#[cold]
fn ask_environment() -> Result<()> {
    let threads = match setting("GRADCLIP_NUM_THREADS", 1..=MAX_THREADS, "an integer from 1 to 1024")? {
        Some(threads) => threads,
        // rayon takes 0 for the default and any large number.
        None => match setting("RAYON_NUM_THREADS", 0..=usize::MAX, "an integer, 0 for the default")? {
            Some(threads) if threads > 0 => threads.min(MAX_THREADS),
            _ => BY_CPUS,
        },
    };
    replace(NOT_ASKED, threads);
    Ok(())
}

#[cold]
fn count_threads() -> Result<usize> {
    check_settings()?;
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    replace(BY_CPUS, cpus.min(MAX_THREADS));
    Ok(THREADS.load(Ordering::Relaxed))
}

/// Sets the number, unless another thread has called `set_num_threads` meanwhile: that call wins.
fn replace(before: usize, now: usize) {
    let _ = THREADS.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed);
}

fn setting(
    variable: &'static str,
    range: RangeInclusive<usize>,
    allowed: &'static str,
) -> Result<Option<usize>> {
    let Some(value) = std::env::var_os(variable) else { return Ok(None) };
    let value = value.to_string_lossy();
    let text = value.trim();
    // An integer that exceeds usize is an integer still.
    let beyond = || text.bytes().all(|byte| byte.is_ascii_digit()).then_some(usize::MAX);
    match text.parse().ok().or_else(beyond) {
        _ if text.is_empty() => Ok(None),
        Some(threads) if range.contains(&threads) => Ok(Some(threads)),
        _ => Err(Error::Setting { variable, found: value.into_owned(), allowed }),
    }
}
