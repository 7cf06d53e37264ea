//! Steps from arrays toward others: `base + (t - base) * factor`.

use std::ops::Range;

use crate::element::Real;
use crate::isa::Isa;
use crate::kernel::difference::Approach;
use crate::scaled::Factor;
use crate::walk::{View, Work};

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
