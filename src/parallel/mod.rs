//! Threads: how work is cut into jobs, and which thread does them.
//!
//! Which thread does a job never changes a result: work is cut at fixed places and sums are folded in order.

pub mod columns;
mod crew;
pub mod difference;
pub mod each;
pub mod elementwise;
pub mod examples;
mod pool;
pub mod reduce;
pub mod rows;
mod threads;

use self::crew::WAKE_MIN_BYTES;
pub use self::crew::{Crew, Team};
pub use self::threads::{MAX_THREADS, THREADS};

/// Must be called in a forked child before it starts threads: a child has neither the workers nor the team of its parent.
pub fn forked() {
    pool::forked();
    Team::set_current(0);
}

/// The overhead of one array of a list, or of one slice of an array, in bytes that could be moved in that time.
const PER_ARRAY_OVERHEAD: usize = 256;

/// The work of a list of arrays, or of an array of slices, in bytes: the bytes that are moved, and the overhead of each array but
/// the first.
pub fn work_of(bytes: usize, arrays: usize) -> usize {
    bytes.saturating_add(PER_ARRAY_OVERHEAD.saturating_mul(arrays.saturating_sub(1)))
}

/// The bytes of one job of a pass that moves `bytes`. A job is so short that an idle thread waits for 10 to 40 µs at most. Jobs
/// of a long pass are longer, because long contiguous accesses have the highest bandwidth.
fn job_bytes(bytes: usize) -> usize {
    let threads = THREADS.get().unwrap_or(1);
    (bytes / (16 * threads)).clamp(128 << 10, 2 << 20)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Must be held by tests that set the number of threads, which is a setting of the process.
    pub(super) fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
