//! The terms of weighted sums of examples.
//!
//! A strict factor rounds only products below 2^-1000 toward zero. This rounding changes no sum of a dtype narrower than float64:
//! larger terms absorb such products, and a sum without larger terms becomes zero when it is rounded to the dtype.

use super::sum::Term;
use super::truncate::product_toward_zero;
use crate::element::{Dtype, Real};
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
        let Self { by, then, .. } = *self;
        let x = x.widen();
        if T::DOUBLE && self.toward_zero() {
            product_toward_zero(product_toward_zero(x, by), then)
        } else {
            x * by * then
        }
    }
}
