//! Weighted sums of examples, computed in float64.

use super::truncate::product_toward_zero;
use crate::element::{Dtype, Real};
use crate::isa::{Level, Op};
use crate::scaled::Factor;

/// Adds the elements of an example, times a factor, to one sum per element.
#[derive(Debug)]
pub struct AddShare<'a, T> {
    /// Read and written.
    pub sums: &'a mut [f64],
    /// As many elements.
    pub example: &'a [T],
    /// The factor.
    pub factor: Factor,
}

impl<T: Real> Op for AddShare<'_, T> {
    type Output = ();
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        let Factor { by, then, toward_zero } = self.factor;
        for (sum, x) in self.sums.iter_mut().zip(self.example) {
            let x = x.widen();
            *sum += if toward_zero {
                product_toward_zero(product_toward_zero(x, by), then)
            } else {
                x * by * then
            };
        }
    }
}

/// [`AddShare`] for four examples in order, by factors of one step, all rounded the same way.
#[derive(Debug)]
pub struct AddShares<'a, T> {
    /// Read and written.
    pub sums: &'a mut [f64],
    /// As many elements of each example.
    pub examples: [&'a [T]; 4],
    /// The factor of each example.
    pub factors: [f64; 4],
    /// Whether products are rounded toward zero.
    pub toward_zero: bool,
}

impl<T: Real> Op for AddShares<'_, T> {
    type Output = ();
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        if self.toward_zero {
            self.add(product_toward_zero);
        } else {
            self.add(|x, by| x * by);
        }
    }
}

impl<T: Real> AddShares<'_, T> {
    #[inline(always)]
    fn add(self, product: impl Fn(f64, f64) -> f64) {
        let ([a, b, c, d], by) = (self.examples, self.factors);
        for ((((sum, a), b), c), d) in self.sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            let shares = [product(a.widen(), by[0]), product(b.widen(), by[1])];
            let later = [product(c.widen(), by[2]), product(d.widen(), by[3])];
            *sum = *sum + shares[0] + shares[1] + later[0] + later[1];
        }
    }
}
