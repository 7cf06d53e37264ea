//! Sums of the shares of examples, made in float64.

use crate::element::Real;
use crate::isa::{Level, Op};
use crate::scaled::Factor;

/// Adds the elements of `N` examples, each times its factor, to one sum for each element, in the order of the examples.
#[derive(Debug)]
pub struct AddShares<'a, T, const N: usize> {
    /// Read and written.
    pub sums: &'a mut [f64],
    /// As many elements of each example.
    pub examples: [&'a [T]; N],
    /// What each example is multiplied by.
    pub factors: [Factor; N],
}

impl<T: Real, const N: usize> Op for AddShares<'_, T, N> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        let Self { sums, examples, factors } = self;
        let examples = examples.map(|example| &example[..sums.len()]);
        for (i, sum) in sums.iter_mut().enumerate() {
            for (example, factor) in examples.iter().zip(factors) {
                *sum += example[i].widen() * factor.by * factor.then;
            }
        }
    }
}
