//! Products rounded toward zero, so that rounding increases no norm.

use super::map::Map;
use crate::element::{Dtype, Real};
use crate::scaled::power_of_two;

/// Scales by a normal number, and rounds toward zero.
#[derive(Clone, Copy, Debug)]
pub struct Truncate(pub f64);

impl<T: Real> Map<T> for Truncate {
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn map(&self, x: T) -> T {
        truncated(x, self.0)
    }
    #[inline(always)]
    fn changes(&self, _: T) -> bool {
        true
    }
}

/// The number, or the next one toward zero if its magnitude is above that of the product it was rounded from.
#[inline(always)]
pub(super) fn not_above<T: Real>(nearest: T, product: f64) -> T {
    if nearest.widen().abs() > product.abs() { nearest.toward_zero() } else { nearest }
}

/// The product by a normal number, rounded toward zero, except that a normal float64 is rounded to nearest.
#[inline(always)]
pub(super) fn truncated<T: Real>(x: T, by: f64) -> T {
    if T::WIDE {
        return T::narrow(product_toward_zero(x.widen(), by));
    }
    let product = x.widen() * by;
    not_above(T::narrow(product), product)
}

/// The product in float64. A tiny one is compared with the product times a power of two, and rounded toward zero.
#[inline(always)]
pub(super) fn product_toward_zero(x: f64, by: f64) -> f64 {
    let (tiny, up) = (power_of_two(-1000), power_of_two(512));
    let nearest = x * by;
    let is_above = (nearest.abs() < tiny) & (nearest.abs() * up > (x * (by * up)).abs());
    if is_above { nearest.toward_zero() } else { nearest }
}
