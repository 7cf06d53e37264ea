//! The terms of weighted sums of examples, and the rounding of these sums.
//!
//! A strict factor rounds only products below 2^-1000 toward zero. This rounding changes no sum of a dtype narrower than float64:
//! larger terms absorb such products, and a sum without larger terms becomes zero when it is rounded to the dtype.

use super::sum::Term;
use super::truncate::{product_toward_zero, wide_product};
use crate::element::{Dtype, Real};
use crate::isa::{Level, Op};
use crate::scaled::Factor;

/// The product of an element and a factor of one step. If `STRICT`, a tiny product is rounded toward zero.
#[derive(Clone, Copy, Debug)]
pub struct Share<const STRICT: bool>(pub f64);

impl<T: Real, const STRICT: bool> Term<T> for Share<STRICT> {
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        if STRICT { product_toward_zero(x.widen(), self.0) } else { x.widen() * self.0 }
    }
}

/// The product of an element and a factor of two steps.
impl<T: Real> Term<T> for Factor {
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        wide_product(x, *self)
    }
}

/// Rounds sums, divided by a number, to a dtype.
pub struct RoundSums<'a, T> {
    /// The sums.
    pub sums: &'a [f64],
    /// The number.
    pub divisor: f64,
    /// The elements to write, as many as sums.
    pub to: &'a mut [T],
}

impl<T: Real> Op for RoundSums<'_, T> {
    type Output = ();
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        // CPUs generate different payloads for a sum of NaNs.
        let rounded = |sum: f64| T::narrow(if sum.is_nan() { f64::NAN } else { sum });
        let sums = self.to.iter_mut().zip(self.sums);
        // A division takes as long as the rest of this function.
        if self.divisor == 1.0 {
            for (to, sum) in sums {
                *to = rounded(*sum);
            }
        } else {
            for (to, sum) in sums {
                *to = rounded(*sum / self.divisor);
            }
        }
    }
}
