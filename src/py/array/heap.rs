//! The memory of dropped outputs in glibc's heap.
//!
//! glibc returns the free memory at the end of its heap to the kernel as soon as it exceeds a limit (`M_TRIM_THRESHOLD`). New
//! arrays then cost a page fault for each page, which takes longer than the work that fills them. The limit begins at 128 KiB.
//! When a program frees a block that glibc has mapped (128 KiB or more, at most 32 MiB), glibc serves blocks of that size from
//! its heap from then on, and raises the limit to twice that size. So any program that has dropped an array of 32 MiB clips
//! into memory that is there. Programs with smaller arrays get the same here.

use std::hint::black_box;
use std::sync::Once;

use super::super::memory_limit::POOL_BYTES;
use super::memory::LARGE;

/// Bytes of the smallest output that costs a page fault of its own.
const PAGE: usize = 4096;

/// Bytes that glibc adds to a block for its header and to fill its last page, at most.
const OVERHEAD: usize = 2 * PAGE;

/// Raises glibc's limits, the first time that an output of [`PAGE`] bytes or more is about to be made. glibc then keeps at most
/// `GRADCLIP_POOL_BYTES`, and at most 64 MiB, at the end of its heap. Limits that the user has set remain.
pub(super) fn keep_dropped_outputs(bytes: usize) {
    static ONCE: Once = Once::new();
    if cfg!(target_env = "gnu") && bytes >= PAGE && !ONCE.is_completed() {
        ONCE.call_once(|| free_one_block(LARGE.min(POOL_BYTES.get().unwrap_or(0) / 2)));
    }
}

/// Allocates and frees a block, which takes `bytes` bytes of memory with the overhead. Nothing writes to it, so the kernel
/// provides only the page of its header.
#[cold]
fn free_one_block(bytes: usize) {
    let mut block = Vec::<u8>::new();
    if block.try_reserve_exact(bytes.saturating_sub(OVERHEAD)).is_ok() {
        black_box(&block); // so that the compiler does not leave out the allocation
    }
}
