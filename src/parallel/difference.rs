//! Arrays that go a part of the way to others: `base + (t - base) * factor`.

use std::ops::Range;

use crate::element::Real;
use crate::isa::Isa;
use crate::kernel::difference::Approach;
use crate::scaled::Factor;
use crate::walk::{View, Work};

/// The factor of the differences.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The differences stay: the result is `t`.
    Whole,
    /// The differences vanish: the result is the base.
    Nothing,
    /// The differences are scaled.
    Scaled(Factor),
}

/// A step from the base toward `t`, applied to `t` or to the base.
#[derive(Debug)]
pub struct Towards<'a, T> {
    /// The array that the step is not applied to; it has the same positions.
    pub other: View<'a, T>,
    /// Whether `other` is `t` and not the base.
    pub other_is_t: bool,
    /// The step.
    pub step: Step,
}

impl<T: Real> Work<T> for Towards<'_, T> {
    fn changes(&self, _: Isa, _: Range<usize>, _: &[T]) -> bool {
        match self.step {
            Step::Whole => self.other_is_t,
            Step::Nothing => !self.other_is_t,
            Step::Scaled(_) => true,
        }
    }
    fn apply(&self, isa: Isa, at: Range<usize>, data: &mut [T]) {
        let is_base = self.other_is_t;
        self.other.with_block(at, |other| match self.step {
            Step::Scaled(factor) => isa.run(Approach { data, other, is_base, factor }),
            Step::Whole if self.other_is_t => data.copy_from_slice(other),
            Step::Nothing if !self.other_is_t => data.copy_from_slice(other),
            Step::Whole | Step::Nothing => {}
        });
    }
}
