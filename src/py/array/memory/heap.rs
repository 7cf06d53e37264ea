//! Outputs in glibc's heap.
//!
//! **Dropped outputs.** glibc returns the free memory at the end of its heap to the kernel as soon as it exceeds a limit
//! (`M_TRIM_THRESHOLD`), at first 128 KiB. The next arrays then cost page faults, which take longer than the work that fills them.
//! When a program frees a block of up to 32 MiB that glibc has mapped outside the heap, glibc raises the limit to twice its size,
//! unless the user has set one. gradclip allocates and frees one such block.
//!
//! **Huge pages.** The kernel zeroes a page of 2 MiB in a quarter of the time of 512 pages of 4 KiB. But malloc writes a header
//! behind each array, so a small page is mapped there before the next array exists. So a block for all outputs of a call, and for
//! those of later calls, is allocated first, the kernel is asked for huge pages there, and the block is freed. The outputs take its
//! place.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use super::pool::{LARGE, ask_for_huge_pages};
use crate::py::memory_limit::POOL_BYTES;

/// Bytes of the outputs of a call from which on gradclip raises glibc's limit: smaller outputs cost no page fault of their own.
const PAGE: usize = 4096;

/// Bytes that glibc adds to a block for its header and to fill its last page, at most.
const OVERHEAD: usize = 2 * PAGE;

/// Bytes of the outputs of a call from which on gradclip asks for huge pages. Programs gain nothing from a lower limit. NumPy asks
/// for them in arrays of 4 MiB and more.
const HUGE_PAGES_MIN_BYTES: usize = 1 << 20;

/// Bytes for which gradclip asks at least. malloc writes a header behind a block, where the kernel has not been asked yet. So in a
/// program that makes one output of 1 to 4 MiB in each call, most huge pages would have a small page in them already.
const HUGE_PAGES_AHEAD: usize = 16 << 20;

/// The outputs below [`LARGE`] that a call is about to make.
pub(in crate::py) struct NewOutputs {
    /// Their bytes.
    left: usize,
    /// Bytes of these for which the kernel has been asked for huge pages.
    asked: usize,
}

impl NewOutputs {
    pub(in crate::py) fn new(sizes: impl Iterator<Item = usize>) -> Self {
        let left = sizes.filter(|bytes| *bytes < LARGE).fold(0, usize::saturating_add);
        Self { left, asked: 0 }
    }

    /// Must be called before NumPy makes an output of `bytes` bytes.
    #[inline]
    pub(super) fn before(&mut self, bytes: usize) {
        static RAISED: AtomicBool = AtomicBool::new(false);
        if !cfg!(target_env = "gnu") {
            return;
        }
        if self.left >= PAGE && !RAISED.load(Ordering::Relaxed) {
            RAISED.store(true, Ordering::Relaxed); // a second block of another thread would do no harm
            drop(block(LARGE));
        }
        if self.asked < bytes && self.left >= HUGE_PAGES_MIN_BYTES {
            self.ask();
        }
        self.left = self.left.saturating_sub(bytes);
        self.asked = self.asked.saturating_sub(bytes);
    }

    #[cold]
    fn ask(&mut self) {
        // Free memory that glibc has kept has its pages already, or the kernel was asked for them when it was new.
        let end = heap_end();
        if let Some(block) = block(self.left)
            && block.as_ptr().addr() < end
            && heap_end() == end
        {
            self.asked = block.capacity();
            return;
        }
        self.asked = match block(self.left.max(HUGE_PAGES_AHEAD)) {
            Some(mut block) if block.capacity() + OVERHEAD >= HUGE_PAGES_MIN_BYTES => {
                // The overhead is included, so that no gap is left before the outputs of the next call. A gap would split the
                // heap into more mappings, whose number the kernel limits.
                ask_for_huge_pages(block.as_mut_ptr(), block.capacity() + OVERHEAD);
                block.capacity()
            }
            // Nothing was asked for. The other outputs of the call do not try again.
            _ => self.left,
        };
    }
}

/// The end of the heap that malloc extends.
fn heap_end() -> usize {
    unsafe extern "C" {
        fn sbrk(increment: isize) -> *mut std::ffi::c_void;
    }
    // SAFETY: an increment of 0 moves nothing. Another thread may move the end meanwhile; the result is only a number.
    unsafe { sbrk(0) }.addr()
}

/// Allocates a block of `bytes` bytes, the overhead included. The block is at most [`LARGE`], and at most half of
/// `GRADCLIP_POOL_BYTES`, because glibc keeps up to twice its size. Nothing here writes to it. The result is None if the block
/// cannot be allocated. glibc may have made another arena then, which takes only address space.
fn block(bytes: usize) -> Option<Vec<u8>> {
    let bytes = bytes.min(LARGE).min(POOL_BYTES.get().ok()? / 2).checked_sub(OVERHEAD)?;
    let mut block = Vec::new();
    block.try_reserve_exact(bytes).ok()?;
    Some(black_box(block)) // so that the compiler does not leave out the allocation
}
