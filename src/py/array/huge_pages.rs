//! Requests for huge pages.

use rustix::mm::{self, Advice};
use rustix::param::page_size;

use crate::setting::{Setting, number_in};

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
