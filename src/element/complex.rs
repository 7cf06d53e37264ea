//! Complex numbers. The Euclidean norm and scaling read them as pairs of real numbers; this type is for operations that need
//! the modulus of each.

use crate::scaled::power_of_two;

/// A complex number, in NumPy's layout: the real part, then the imaginary part. A slice of complex numbers can be read as a slice
/// of their parts.
pub type Complex<T> = [T; 2];

/// The modulus of a complex number with parts of any size: `value * 2^exponent`, NaN if a part is NaN.
///
/// The parts are scaled to the middle of float64's range first, so that their squares neither overflow nor lose a significant
/// digit.
#[inline(always)]
pub(super) fn modulus(re: f64, im: f64) -> (f64, f64) {
    let (large, small) = (power_of_two(500), power_of_two(-400));
    let size = re.abs().max(im.abs());
    let (by, exponent) = if size > large {
        (power_of_two(-600), 600.0)
    } else if size < small {
        (power_of_two(600), -600.0)
    } else {
        (1.0, 0.0)
    };
    let (re, im) = (re * by, im * by);
    ((re * re + im * im).sqrt(), exponent)
}

/// The modulus as one float64: infinite above float64's range, subnormal or 0 below it.
#[inline(always)]
pub(super) fn rounded_modulus(re: f64, im: f64) -> f64 {
    let (value, exponent) = modulus(re, im);
    let by = if exponent > 0.0 {
        power_of_two(600)
    } else if exponent < 0.0 {
        power_of_two(-600)
    } else {
        1.0
    };
    value * by
}
