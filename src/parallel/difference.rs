//! Arrays that go a part of the way to others: `base + (t - base) * factor`.

use std::ops::Range;

use super::each::ArrayJob;
use super::elementwise::{Task, apply_to_one};
use crate::element::Real;
use crate::isa::Isa;
use crate::kernel::difference::Approach;
use crate::scaled::Factor;
use crate::walk::{View, Work};

/// What becomes of the differences.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// They stay: the result is `t`.
    Whole,
    /// They vanish: the result is the base.
    Nothing,
    /// They are scaled.
    Scaled(Factor),
}

/// One array of a pair: `other` has the positions of what it is applied to.
#[derive(Debug)]
struct Towards<'a, T> {
    other: &'a View<'a, T>,
    /// Whether `other` is `t` and not the base.
    other_is_t: bool,
    step: Step,
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

/// A pair of arrays with its output, which is made from one of them or is it.
#[derive(Debug)]
pub struct Pair<'a, T: Real> {
    /// The output, and `t` or the base.
    pub task: Task<'a, T>,
    /// The other of the two.
    pub other: View<'a, T>,
    /// Whether that is `t`.
    pub other_is_t: bool,
}

impl<'a, T: Real> Pair<'a, T> {
    /// Takes a step, past the caches if the list that the pair is of is written so.
    #[must_use]
    pub fn into_job(mut self, isa: Isa, step: Step, streams: bool) -> ArrayJob<'a> {
        ArrayJob::new(self.other.len() * size_of::<T>() * 3, move || {
            let towards = Towards { other: &self.other, other_is_t: self.other_is_t, step };
            apply_to_one(isa, &towards, &mut self.task, streams)
        })
    }
}
