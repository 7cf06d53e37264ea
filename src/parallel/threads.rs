//! The number of threads: from the environment, from `set_num_threads`, or the number of CPUs of this process.

use std::thread;

use crate::error::Result;
use crate::setting::{Setting, number_in};

/// The largest number of threads.
pub const MAX_THREADS: usize = 1024;

/// The number of threads for a call.
pub static THREADS: Setting = Setting::new(1..=MAX_THREADS, asked, cpus);

fn asked() -> Result<Option<usize>> {
    let own = number_in("GRADCLIP_NUM_THREADS", 1..=MAX_THREADS, "an integer from 1 to 1024")?;
    if own.is_some() {
        return Ok(own);
    }
    // rayon takes 0 for the default and any large number.
    let of_rayon = number_in("RAYON_NUM_THREADS", 0..=usize::MAX, "an integer, 0 for the default")?;
    Ok(of_rayon.filter(|threads| *threads > 0))
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
