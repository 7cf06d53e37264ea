//! Products rounded toward zero, so that rounding increases no norm.

use super::map::Map;
use crate::element::{Dtype, Element, Real};
use crate::scaled::power_of_two;

/// Scales by a normal positive number of at most 1, and rounds toward zero.
#[derive(Clone, Copy, Debug)]
pub struct Truncate(pub f64);

impl<T: Real> Map<T> for Truncate {
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn map(&self, x: T) -> T {
        truncated::<T, T>(x, self.0)
    }
}

/// The binary digits of a float, and the exponent of its smallest normal number.
#[inline(always)]
pub(super) fn format_of<T: Element>() -> (i32, i32) {
    match T::DTYPE {
        Dtype::F16 => (11, -14),
        Dtype::Bf16 => (8, -126),
        Dtype::F64 => (53, -1022),
        _ => (24, -126),
    }
}

/// A number whose conversion to T, rounded to nearest, is the magnitude of `x` rounded toward zero, or -0 for 0. `x` is
/// infinite or within the range of T, which is narrower than float64.
#[inline(always)]
pub(super) fn size_toward_zero<T: Real>(x: f64) -> f64 {
    let (digits, lowest) = format_of::<T>();
    let kept = u64::MAX >> 1 & u64::MAX << (f64::MANTISSA_DIGITS.cast_signed() - digits);
    // Normal numbers are exact now, but subnormal ones have fewer digits. So `down` is subtracted, slightly less than half of
    // the smallest number of T. Then the conversion rounds a subnormal number down, and every number of T to itself. `down` is
    // less than half by so little that no other number is rounded up, and by so much that float32 holds the difference.
    let half = lowest - digits;
    let down = power_of_two(half) - power_of_two(half - digits);
    f64::from_bits(x.to_bits() & kept) - down
}

/// The product of an element of type T and a normal positive number of at most 1, rounded toward zero, except that a normal
/// float64 is rounded to nearest. N is T or, for 16-bit elements, float32: then the conversion to T is the result.
#[inline(always)]
pub(super) fn truncated<T: Real, N: Real>(x: N, by: f64) -> N {
    if T::DOUBLE {
        return N::narrow(product_toward_zero(x.widen(), by));
    }
    N::narrow(size_toward_zero::<T>(x.widen() * by)).with_sign_of(x)
}

/// `x` rounded toward zero. `x` is infinite, NaN or within the range of T.
#[inline(always)]
pub(super) fn narrow_toward_zero<T: Real>(x: f64) -> T {
    let nearest = T::narrow(x);
    // `size_toward_zero` returns a magnitude, so the sign is copied. Zeros and NaN are not rounded.
    let is_exact = T::DOUBLE | (x == 0.0) | x.is_nan();
    if is_exact { nearest } else { T::narrow(size_toward_zero::<T>(x)).with_sign_of(nearest) }
}

/// The product in float64. A tiny product is compared with the product times a power of two, and rounded toward zero.
#[inline(always)]
pub(super) fn product_toward_zero(x: f64, by: f64) -> f64 {
    let (tiny, up) = (power_of_two(-1000), power_of_two(512));
    let nearest = x * by;
    let is_above = (nearest.abs() < tiny) & (nearest.abs() * up > (x * (by * up)).abs());
    if is_above { f64::from_bits(nearest.to_bits() - 1) } else { nearest }
}
