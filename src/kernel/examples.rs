//! Sums of the shares of examples, made in float64.

use crate::element::{Dtype, Real};
use crate::isa::{Level, Op};
use crate::scaled::Factor;

/// Adds the elements of an example, each times a factor, to one sum for each element.
#[derive(Debug)]
pub struct AddShare<'a, T> {
    /// Read and written.
    pub sums: &'a mut [f64],
    /// As many elements.
    pub example: &'a [T],
    /// What they are multiplied by.
    pub factor: Factor,
}

impl<T: Real> Op for AddShare<'_, T> {
    type Output = ();
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        for (sum, x) in self.sums.iter_mut().zip(self.example) {
            *sum += x.widen() * self.factor.by * self.factor.then;
        }
    }
}

/// [`AddShare`] of four examples, one after the other, by factors of one step.
#[derive(Debug)]
pub struct AddShares<'a, T> {
    /// Read and written.
    pub sums: &'a mut [f64],
    /// As many elements of each example.
    pub examples: [&'a [T]; 4],
    /// What each of them is multiplied by.
    pub factors: [f64; 4],
}

impl<T: Real> Op for AddShares<'_, T> {
    type Output = ();
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        let ([a, b, c, d], by) = (self.examples, self.factors);
        for ((((sum, a), b), c), d) in self.sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *sum = *sum + a.widen() * by[0] + b.widen() * by[1] + c.widen() * by[2] + d.widen() * by[3];
        }
    }
}
