//! Complex numbers. The Euclidean norm and scaling read them as pairs of real numbers; this type is for operations that need
//! the modulus of each.

use crate::scaled::power_of_two;

/// A complex number, in NumPy's layout: the real part, then the imaginary part. A slice of complex numbers can be read as a slice
/// of their parts.
pub type Complex<T> = [T; 2];

/// The modulus of a complex number with parts of any size: `value * 2^exponent`, NaN if a part is NaN. The second of the three
/// numbers is this power of two.
///
/// The parts are scaled to the middle of float64's range first, so that their squares neither overflow nor lose a significant
/// digit.
#[inline(always)]
pub(super) fn modulus(re: f64, im: f64) -> (f64, f64, f64) {
    let (small, large) = (power_of_two(-600), power_of_two(600));
    let size = re.abs().max(im.abs());
    let (by, back, exponent) = if size > power_of_two(500) {
        (small, large, 600.0)
    } else if size < power_of_two(-400) {
        (large, small, -600.0)
    } else {
        (1.0, 1.0, 0.0)
    };
    let (re, im) = (re * by, im * by);
    ((re * re + im * im).sqrt(), back, exponent)
}
