//! The sum of examples, each scaled by a factor of its own. No array holds the scaled examples.

use std::array;
use std::ops::Range;

use super::elementwise::Task;
use super::share_out;
use crate::element::Real;
use crate::error::Result;
use crate::isa::{Aligned, Isa};
use crate::kernel::examples::{AddShare, AddShares};
use crate::kernel::sum::BLOCK;
use crate::scaled::Factor;
use crate::walk::{self, Store, View, Work};

/// Examples that are added at a time: their sums stay in registers meanwhile.
const AT_ONCE: usize = 4;

/// Jobs of a sum, if it is long enough.
const JOBS: usize = 32;

/// Examples, of which each has as many elements as the sum.
#[derive(Debug)]
pub struct Examples<'a, T> {
    /// One example after the other.
    pub elements: View<'a, T>,
    /// The elements of each.
    pub len: usize,
    /// What each of them is multiplied by; None: it counts nothing.
    pub factors: &'a [Option<Factor>],
    /// What the sums are divided by.
    pub over: f64,
}

impl<T: Real> Work<T> for Examples<'_, T> {
    fn changes(&self, _: Isa, _: Range<usize>, _: &[T]) -> bool {
        true
    }
    fn apply(&self, isa: Isa, at: Range<usize>, data: &mut [T]) {
        let sums = &mut Aligned([0.0; BLOCK]).0[..data.len()];
        let counted = self.factors.iter().enumerate().filter_map(|(i, factor)| Some((i, (*factor)?)));
        let place = |i: usize| i * self.len + at.start..i * self.len + at.end;
        match &self.elements {
            View::Dense(elements) => {
                let mut counted = counted.map(|(i, factor)| (&elements[place(i)], factor)).peekable();
                while counted.peek().is_some() {
                    let next: [_; AT_ONCE] = array::from_fn(|_| counted.next());
                    if let [Some(a), Some(b), Some(c), Some(d)] = next
                        && [a, b, c, d].iter().all(|(_, factor)| factor.then == 1.0)
                    {
                        let (examples, factors) = ([a.0, b.0, c.0, d.0], [a.1.by, b.1.by, c.1.by, d.1.by]);
                        // A factor of 1 is rounded either way.
                        let toward_zero = [a, b, c, d].iter().any(|(_, factor)| factor.toward_zero);
                        isa.run(AddShares { sums, examples, factors, toward_zero });
                        continue;
                    }
                    for (example, factor) in next.into_iter().flatten() {
                        isa.run(AddShare { sums, example, factor });
                    }
                }
            }
            View::Strided { .. } => {
                for (i, factor) in counted {
                    self.elements.with_block(place(i), |example| {
                        isa.run(AddShare { sums, example, factor });
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

/// Writes the sum of examples, which has the positions of each.
///
/// # Errors
/// A bad setting of the threads.
pub fn sum_examples<T: Real>(isa: Isa, examples: &Examples<'_, T>, to: &mut Task<'_, T>) -> Result<()> {
    let bytes = examples.elements.len() * size_of::<T>();
    let len = (examples.len / JOBS).next_multiple_of(BLOCK).max(BLOCK);
    share_out(bytes, to.target.parts(len), |(at, mut part)| {
        walk::apply_elementwise(isa, examples, None, &mut part, at, Store::Cached);
    })
}
