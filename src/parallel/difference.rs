//! Differences of two arrays, computed a block at a time for their norm, and steps by them: `base + (t - base) * factor`.

use std::ops::Range;

use super::reduce::Blocks;
use crate::element::{Element, Real};
use crate::isa::Isa;
use crate::kernel::difference::{Approach, Minus, Subtract};
use crate::kernel::sum::BLOCK;
use crate::scaled::Factor;
use crate::walk::{View, Work, blocks_of, with_scratch};

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

/// A step from the base toward `t`, applied to `t` or to the base.
pub struct Towards<'a, T> {
    /// The operand that is only read, with as many positions as the target.
    pub other: View<'a, T>,
    /// Whether `other` is `t` and not the base.
    pub other_is_t: bool,
    /// The factor of the differences. None: the result is `t`. [`Factor::ERASE`]: the result is the base.
    pub factor: Option<Factor>,
}

impl<T: Real> Work<T> for Towards<'_, T> {
    fn changes(&self, _: Isa, _: Range<usize>, _: &[T]) -> bool {
        match self.factor {
            None => self.other_is_t,
            Some(factor) => !(self.other_is_t && Factor::erases(factor.by)),
        }
    }
    fn apply(&self, isa: Isa, at: Range<usize>, from: Option<&[T]>, data: &mut [T]) {
        if let Some(from) = from {
            data.copy_from_slice(from);
        }
        let is_base = self.other_is_t;
        self.other.with_block(at, |other| match self.factor {
            Some(factor) if !Factor::erases(factor.by) => isa.run(Approach { data, other, is_base, factor }),
            // The result is either the other array or the contents of `data`.
            factor if factor.is_none() == self.other_is_t => data.copy_from_slice(other),
            _ => {}
        });
    }
}
