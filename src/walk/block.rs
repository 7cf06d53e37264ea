//! Blocks: the elements that are gathered or computed at a time.

use std::ops::Range;

use crate::isa::Aligned;
use crate::kernel::sum::BLOCK;

/// Calls `work` with zeroed scratch memory for at least `len` elements, at most a block. There are three sizes, because clearing a
/// whole block would cost more than the work on a few elements.
#[inline]
pub fn with_scratch<T: Copy, R>(zero: T, len: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    match len {
        0..=64 => work(&mut Aligned([zero; 64]).0),
        65..=512 => work(&mut Aligned([zero; 512]).0),
        _ => work(&mut Aligned([zero; BLOCK]).0),
    }
}

/// Cuts a range into blocks of `len`.
pub fn blocks_of(len: usize, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(len).map(move |from| from..range.end.min(from + len))
}
