//! Blocks: the elements that are gathered or computed at a time.

use std::ops::Range;

use crate::isa::on_stack;
use crate::kernel::sum::BLOCK;

/// Calls `work` with zeroed scratch memory for `len` elements, at most a block.
#[inline]
pub fn with_scratch<T: Copy, R>(zero: T, len: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    on_stack::<BLOCK, _, _>(zero, len.min(BLOCK), work)
}

/// Cuts a range into blocks of `len`.
pub fn blocks_of(len: usize, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + Clone {
    range.clone().step_by(len).map(move |from| from..range.end.min(from + len))
}
