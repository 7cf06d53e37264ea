//! Huge pages for new outputs. The kernel zeroes a new page when it is first written, after a page fault. For one page of 2
//! MiB, that takes a quarter of the time of 512 pages of 4 KiB.

use rustix::mm::{self, Advice};
use rustix::param::page_size;

use crate::setting::{Setting, number_in};

/// Bytes of the smallest output for which gradclip asks for huge pages. NumPy asks for them from 4 MiB on. Smaller outputs of
/// one list often lie side by side and share a huge page. With 64 KiB instead of 1 MiB, programs took as long.
pub(super) const HUGE_PAGES_MIN_BYTES: usize = 1 << 20;

/// 0 if the user has told NumPy not to ask for huge pages.
static ASKS: Setting =
    Setting::new(0..=1, || number_in("NUMPY_MADVISE_HUGEPAGE", 0..=usize::MAX, "0 or 1"), || 1);

/// Asks the kernel to map these bytes in huge pages when they are first written.
pub(super) fn ask_for_huge_pages(data: *mut u8, bytes: usize) {
    if !ASKS.get().is_ok_and(|asks| asks > 0) {
        return;
    }
    // The range begins at the beginning of a page, so that no gap is left after an output that ends in this page.
    let before = data.addr() % page_size();
    // SAFETY: this advice changes no byte of any memory. The kernel may refuse it, and reports addresses that are not mapped.
    let _ = unsafe { mm::madvise(data.wrapping_sub(before).cast(), before + bytes, Advice::LinuxHugepage) };
}
