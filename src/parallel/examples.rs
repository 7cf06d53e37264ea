//! The sum of examples, each scaled by a factor of its own. No array holds the scaled examples.

use std::array;
use std::ops::Range;

use super::Crew;
use super::elementwise::Task;
use crate::element::Real;
use crate::error::Result;
use crate::isa::{Aligned, Isa};
use crate::kernel::examples::{AddShare, AddShares};
use crate::kernel::sum::BLOCK;
use crate::scaled::Factor;
use crate::walk::{self, Store, View, Work};

/// The number of examples that are added at a time: their sums stay in registers meanwhile.
const AT_ONCE: usize = 4;

/// The number of jobs of a sum, if it is long enough.
const JOBS: usize = 32;

/// Examples, of which each has as many elements as the sum.
#[derive(Debug)]
pub struct Examples<'a, T> {
    /// One example after the other.
    pub elements: View<'a, T>,
    /// The number of elements of an example.
    pub len: usize,
    /// The factor of each example. An example without a factor is left out.
    pub factors: &'a [Option<Factor>],
    /// The divisor of the sums.
    pub over: f64,
}

impl<T: Real> Work<T> for Examples<'_, T> {
    fn changes(&self, _: Isa, _: Range<usize>, _: &[T]) -> bool {
        true
    }
    fn apply(&self, isa: Isa, at: Range<usize>, data: &mut [T]) {
        let sums = &mut Aligned([0.0; BLOCK]).0[..data.len()];
        let place = |i: usize| i * self.len + at.start..i * self.len + at.end;
        for (first, factors) in (0..).step_by(AT_ONCE).zip(self.factors.chunks(AT_ONCE)) {
            if let (View::Dense(elements), &[Some(a), Some(b), Some(c), Some(d)]) = (&self.elements, factors)
                && [a, b, c, d].iter().all(|factor| factor.then == 1.0)
            {
                let examples = array::from_fn(|i| &elements[place(first + i)]);
                let factors = [a.by, b.by, c.by, d.by];
                // The product by a factor of 1 is exact, whichever way it is rounded.
                let toward_zero = [a, b, c, d].iter().any(|factor| factor.toward_zero);
                isa.run(AddShares { sums: &mut *sums, examples, factors, toward_zero });
                continue;
            }
            for (i, factor) in (first..).zip(factors) {
                if let Some(factor) = *factor {
                    self.elements.with_block(place(i), |example| {
                        isa.run(AddShare { sums: &mut *sums, example, factor });
                    });
                }
            }
        }
        for (to, sum) in data.iter_mut().zip(&*sums) {
            // CPUs differ in the payload that a sum of NaNs has.
            *to = T::narrow(if sum.is_nan() { f64::NAN } else { sum / self.over });
        }
    }
}

/// Writes the sum of examples, which has the positions of an example.
///
/// # Errors
/// A bad setting of the threads.
pub fn sum_examples<T: Real>(isa: Isa, examples: &Examples<'_, T>, to: &mut Task<'_, T>) -> Result<()> {
    let bytes = examples.elements.len() * size_of::<T>();
    let len = (examples.len / JOBS).next_multiple_of(BLOCK).max(BLOCK);
    Crew::new().each(bytes, to.target.parts(len), |(at, mut part)| {
        walk::apply_elementwise(isa, examples, None, &mut part, at, Store::Cached);
    })
}
