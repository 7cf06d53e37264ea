//! Blocks: the elements that are gathered or computed at a time.

use std::ops::Range;

use crate::isa::Aligned;
use crate::kernel::sum::BLOCK;

/// Calls `work` with zeroed scratch memory for a block, or only for `len` elements if these are few: clearing a whole block
/// would cost more than the work.
#[inline]
pub fn with_scratch<T: Copy, R>(zero: T, len: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    const SHORT_SCRATCH_ELEMENTS: usize = 64;
    if len <= SHORT_SCRATCH_ELEMENTS {
        work(&mut Aligned([zero; SHORT_SCRATCH_ELEMENTS]).0)
    } else {
        work(&mut Aligned([zero; BLOCK]).0)
    }
}

/// Cuts a range into blocks of `len`.
pub fn blocks_of(len: usize, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(len).map(move |from| from..range.end.min(from + len))
}
