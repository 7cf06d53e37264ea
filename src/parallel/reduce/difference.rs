//! Norms of differences, which are never stored in an array.

use std::ops::Range;

use super::pass::Blocks;
use crate::element::Element;
use crate::isa::Isa;
use crate::kernel::difference::{Minus, Subtract};
use crate::kernel::sum::BLOCK;
use crate::walk::{View, blocks_of, with_scratch};

/// The differences of two arrays of one shape, position by position.
pub struct Difference<'a, T> {
    /// The minuend.
    pub t: View<'a, T>,
    /// The subtrahend, with as many positions.
    pub base: View<'a, T>,
    /// A power of two by which both are multiplied first. If it is below 1, no difference overflows.
    pub by: f64,
}

impl<T: Minus> Blocks for Difference<'_, T> {
    type Element = T::Difference;

    fn size(&self) -> (usize, usize) {
        (self.t.len(), 2 * size_of::<T>())
    }

    fn for_blocks(&self, isa: Isa, range: Range<usize>, mut visit: impl FnMut(&[T::Difference])) {
        let len = range.len();
        let gathered = |view: &View<'_, T>| if let View::Dense(_) = view { 0 } else { len };
        with_scratch(T::ZERO, gathered(&self.t), |own| {
            with_scratch(T::ZERO, gathered(&self.base), |others| {
                with_scratch(T::Difference::ZERO, len, |made| {
                    for part in blocks_of(BLOCK, range) {
                        let to = &mut made[..part.len()];
                        let (t, base) = (self.t.block(part.clone(), own), self.base.block(part, others));
                        isa.run(Subtract { t, base, by: self.by, to: &mut *to });
                        visit(to);
                    }
                });
            });
        });
    }
}
