//! The sum of examples, each scaled by a factor of its own. No array holds the scaled examples.

use std::ops::Range;

use super::Crew;
use super::elementwise::Task;
use crate::element::Real;
use crate::error::Result;
use crate::isa::{Aligned, Isa};
use crate::kernel::examples::Share;
use crate::kernel::sum::{AddRows, BLOCK};
use crate::scaled::Factor;
use crate::walk::{self, Store, View, Work};

/// The number of jobs of a sum, if it is long enough.
const JOBS: usize = 32;

/// Examples that are added before their sums are stored. With 8 instead of 4, 256 examples of 20,000 elements take 0.87 of the
/// time. With 16, 64 examples of 1.9M take 1.1 times as long.
const EXAMPLES_AT_ONCE: usize = 8;

/// Examples, of which each has as many elements as the sum.
pub struct Examples<'a, T> {
    /// One example after the other.
    pub elements: View<'a, T>,
    /// The number of elements of an example.
    pub len: usize,
    /// The number and the factor of each example that is added.
    pub factors: &'a [(usize, Factor)],
    /// The divisor of the sums.
    pub divisor: f64,
}

impl<T: Real> Work<T> for Examples<'_, T> {
    fn apply(&self, isa: Isa, at: Range<usize>, _: Option<&[T]>, data: &mut [T]) {
        let sums = &mut Aligned([0.0; BLOCK]).0[..data.len()];
        let place = |example: usize| example * self.len + at.start..example * self.len + at.end;
        for group in self.factors.chunks(EXAMPLES_AT_ONCE) {
            let are_plain = group.iter().all(|(_, factor)| factor.then == 1.0);
            match (&self.elements, <&[_; EXAMPLES_AT_ONCE]>::try_from(group)) {
                (View::Dense(elements), Ok(group)) if are_plain => {
                    let rows = group.map(|(example, _)| &elements[place(example)]);
                    // The product by a factor of 1 is exact, whichever way it is rounded.
                    if T::DOUBLE && group.iter().any(|(_, factor)| factor.toward_zero) {
                        let terms = group.map(|(_, factor)| Share::<true>(factor.by));
                        isa.run(AddRows { sums, rows, next: None, terms });
                    } else {
                        let terms = group.map(|(_, factor)| Share::<false>(factor.by));
                        isa.run(AddRows { sums, rows, next: None, terms });
                    }
                }
                _ => {
                    for (example, factor) in group {
                        self.elements.with_block(place(*example), |row| {
                            isa.run(AddRows { sums, rows: [row], terms: [*factor], next: None });
                        });
                    }
                }
            }
        }
        for (to, sum) in data.iter_mut().zip(&*sums) {
            // CPUs generate different payloads for a sum of NaNs.
            *to = T::narrow(if sum.is_nan() { f64::NAN } else { sum / self.divisor });
        }
    }
}

/// Writes the sum of examples, which has the positions of an example.
///
/// # Errors
/// An invalid setting of the number of threads.
pub fn sum_examples<T: Real>(isa: Isa, examples: &Examples<'_, T>, to: &mut Task<'_, T>) -> Result<()> {
    let bytes = examples.elements.len() * size_of::<T>();
    let len = (examples.len / JOBS).next_multiple_of(BLOCK).max(BLOCK);
    Crew::new().each(bytes, to.target.parts(len), |(at, mut part)| {
        walk::apply_elementwise(isa, examples, None, &mut part, at, Store::Cached);
    })
}
