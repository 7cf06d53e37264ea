//! Products of elements and factors, rounded to nearest or toward zero. The latter rounding increases no norm.

use crate::element::{Dtype, Element, Real, to_odd};
use crate::scaled::{Factor, power_of_two};

/// The product of an element of type T and a plain factor. N is T or, for 16-bit elements, float32: then the conversion to T,
/// rounded to nearest, is the result. Factors of products rounded toward zero are positive and at most 1, and such a product that
/// is a normal float64 is rounded to nearest.
#[inline(always)]
pub(super) fn product<T: Real, N: Real, const TOWARD_ZERO: bool>(x: N, by: f64) -> N {
    match (TOWARD_ZERO, size_of::<T>()) {
        (true, _) if T::DOUBLE => N::narrow(product_toward_zero(x.widen(), by)),
        (true, _) => N::narrow(size_toward_zero::<T>(x.widen() * by)).with_sign_of(x),
        (false, 2) => N::narrow_single(to_odd(x.widen() * by)),
        (false, _) => N::narrow(x.widen() * by),
    }
}

/// The product with any factor in float64, still to be rounded to T.
#[inline(always)]
pub(super) fn wide_product<T: Real>(x: T, factor: Factor) -> f64 {
    let (x, Factor { by, then, .. }) = (x.widen(), factor);
    if T::DOUBLE && factor.toward_zero() {
        product_toward_zero(product_toward_zero(x, by), then)
    } else {
        x * by * then
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
