//! Powers for norms of any order, by our own base-2 logarithm and exponential.
//!
//! The C library's `pow` differs from CPU to CPU in the last bit. These functions do not, and they are inlined into the loop
//! and run in vector registers. Both are accurate to about 2^-52, absolute for the logarithm of the mantissa and relative for
//! the exponential. That suffices for a p-norm: an error `d` of a logarithm changes the norm by the factor `2^d`, and an error
//! of an exponential by its `p`th part.

use super::sum::Term;
use crate::element::Element;
use crate::isa::{Aligned, Level, Op};
use crate::scaled::{Scaled, power_of_two};
use std::f64::consts::FRAC_1_SQRT_2;

/// `log2(x) = exponent + fraction`, with a fraction in [-1/2, 1/2].
#[derive(Clone, Copy, Debug)]
pub struct Log2 {
    /// A whole number.
    pub exponent: f64,
    /// The logarithm less the exponent.
    pub fraction: f64,
}

/// The bits of the float64 2^52. An integer below 2^52 in its mantissa is added to 2^52. `reduce` reads exponents in this way.
const TWO_52: u64 = 0x4330_0000_0000_0000;

/// Coefficients: `log2((1 + s) / (1 - s))` is s times this polynomial of s^2, with an error up to 4.4e-17 where |s| <= 0.1716.
/// It is the closest polynomial of its degree (Remez). The Taylor series needs twelve terms for this accuracy.
const LOG: [f64; 7] = [
    2.885_390_081_777_930_3,
    0.961_796_693_921_297_1,
    0.577_078_018_076_609_6,
    0.412_198_304_995_212_04,
    0.320_621_896_950_564_3,
    0.261_294_254_763_024_65,
    0.244_486_246_761_608_9,
];

/// Coefficients of 2^r for |r| <= 1/2, with a relative error up to 3.0e-16: the closest polynomial whose constant term is 1, so
/// that powers of two are exact.
const EXP: [f64; 11] = [
    1.0,
    0.693_147_180_559_951_6,
    0.240_226_506_959_104_72,
    0.055_504_108_664_345_755,
    0.009_618_129_107_380_144,
    0.001_333_355_824_661_157_8,
    0.000_154_035_308_015_648_24,
    1.525_264_767_271_433_3e-5,
    1.321_523_529_648_088e-6,
    1.021_052_056_297_788_7e-7,
    7.111_805_564_965_269e-9,
];

/// The sum of `c[k] * x^k`: four coefficients at a time by Estrin's scheme, and these groups by Horner's, because a single
/// chain of multiplications and additions leaves most of the CPU waiting.
#[inline(always)]
fn polynomial<const N: usize>(c: &[f64; N], x: f64) -> f64 {
    const { assert!(N % 4 == 3) };
    let square = x * x;
    let fourth = square * square;
    let mut k = N - 3;
    let mut sum = (c[k] + c[k + 1] * x) + c[k + 2] * square;
    while k > 0 {
        k -= 4;
        sum = ((c[k] + c[k + 1] * x) + (c[k + 2] + c[k + 3] * x) * square) + sum * fourth;
    }
    sum
}

impl Log2 {
    /// The logarithm of a positive, finite number.
    #[inline(always)]
    pub fn of(x: f64) -> Self {
        let (exponent, s) = reduce(x, 0.0);
        Self { exponent, fraction: log2_of_ratio(s) }
    }
}

/// The exponent that [`reduce`] gives for 0, from a start of 0.
const ZERO: f64 = -1023.0 - 64.0;

/// Splits `x = 2^(exponent + start) * (1 + s) / (1 - s)` into the exponent, less the whole number `start`, and s.
#[inline(always)]
fn reduce(x: f64, start: f64) -> (f64, f64) {
    let start = start + (f64::from_bits(TWO_52) + 1023.0);
    // A subnormal number is scaled up to a normal one, whose exponent can be read.
    let (x, start) = if x < f64::MIN_POSITIVE { (x * power_of_two(64), start + 64.0) } else { (x, start) };
    // A mantissa above sqrt(2) carries into the exponent, so that the rest is a number in [sqrt(1/2), sqrt(2)], counted from
    // the lower end.
    let bits = x.to_bits() + (1f64.to_bits() - FRAC_1_SQRT_2.to_bits());
    let exponent = f64::from_bits((bits >> 52) | TWO_52) - start;
    let digits = f64::from_bits((bits & (u64::MAX >> 12)) + FRAC_1_SQRT_2.to_bits());
    (exponent, (digits - 1.0) / (digits + 1.0))
}

/// `log2((1 + s) / (1 - s))`
#[inline(always)]
fn log2_of_ratio(s: f64) -> f64 {
    polynomial(&LOG, s * s) * s
}

/// Adding this number rounds to an integer, which is in the low bits of the sum.
const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

/// 2^z for z in [-1000, 0.5], and 0 for z = `NOTHING`.
#[inline(always)]
pub fn exp2(z: f64) -> f64 {
    let shifted = z + ROUND;
    let r = z - (shifted - ROUND);
    // The integer is added to the exponent bits, without overflow.
    f64::from_bits(polynomial(&EXP, r).to_bits().wrapping_add(shifted.to_bits() << 52))
}

/// Terms with a smaller logarithm are left out of the sum, because the sum has a term of 1.
const LEAST: f64 = -1000.0;

/// The logarithm for terms that are left out: `exp2` of it has exponent bits of 0, and all other bits are 0 too.
const NOTHING: f64 = -1023.0;

/// `(|x| / peak)^p`, between 0 and 1.
#[derive(Clone, Copy, Debug)]
pub struct Power {
    p: f64,
    peak: Log2,
    /// Terms with a logarithm of `|x| / peak` below this are left out of the sum. 0 always is.
    least: f64,
}

impl Power {
    /// For elements whose largest modulus is `peak`, positive and finite.
    pub fn new(p: f64, peak: Scaled) -> Self {
        let (digits, exponent) = peak.split();
        let Log2 { exponent: own, fraction } = Log2::of(digits);
        let exponent = own + f64::from(exponent);
        // `ZERO + 6` lies between the exponent read for 0 and that of the smallest float64, 2^-1074, beyond rounding errors.
        let least = (ZERO + 6.0 - exponent).max(LEAST / p);
        Self { p, peak: Log2 { exponent, fraction }, least }
    }

    /// `peak * sum^(1/p)`, for a sum of terms that is at least about 1.
    pub fn root(self, peak: Scaled, sum: f64) -> Scaled {
        let log = Log2::of(sum);
        let power = (log.exponent + log.fraction) / self.p;
        let power = power.clamp(-1e9, 1e9);
        let whole = power.round();
        let (digits, exponent) = peak.split();
        Scaled::new(digits * exp2(power - whole), exponent.saturating_add(whole as i32))
    }
}

// A term is computed in three steps, each in a separate loop over a part of the elements. A CPU's instruction window holds only
// three or four dependency chains of whole terms, so the CPU stalls. The window holds a dozen chains that are a third as long.
impl Power {
    /// The first step: see [`reduce`].
    #[inline(always)]
    fn reduce<T: Element>(self, x: T) -> (f64, f64) {
        if const { T::DOUBLE && T::DTYPE.parts().is_some() } {
            let (x, exponent) = x.lifted();
            // Zero stays zero, whatever power of two it was scaled by.
            let exponent = if x == 0.0 { 0.0 } else { exponent };
            let (own, s) = reduce(x, self.peak.exponent);
            (own + exponent, s)
        } else {
            reduce(x.modulus(1.0), self.peak.exponent)
        }
    }

    /// The second step: `log2((|x| / peak)^p)`.
    #[inline(always)]
    fn scaled_log(self, exponent: f64, s: f64) -> f64 {
        let log = (exponent - self.peak.fraction) + log2_of_ratio(s);
        // The logarithm is above 0 only by rounding.
        let log = if log < 0.0 { log } else { 0.0 };
        if log < self.least { NOTHING } else { self.p * log }
    }
}

/// Elements that one step takes before the next step begins. Their exponents and terms, 2 KiB, stay in the L1 cache.
const PART: usize = 128;

/// Computes the terms `(|x| / peak)^p` of elements, to be added up by another operation.
pub struct PowerTerms<'a, T> {
    /// The elements.
    pub from: &'a [T],
    /// The terms to write, as many as elements.
    pub to: &'a mut [f64],
    /// The power.
    pub power: Power,
}

impl<T: Element> Op for PowerTerms<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        let Aligned(exponents) = &mut Aligned([0.0; PART]);
        for (terms, part) in self.to.chunks_mut(PART).zip(self.from.chunks(PART)) {
            for ((term, exponent), x) in terms.iter_mut().zip(&mut *exponents).zip(part) {
                (*exponent, *term) = self.power.reduce(*x);
            }
            for (term, exponent) in terms.iter_mut().zip(&*exponents) {
                *term = self.power.scaled_log(*exponent, *term);
            }
            for term in terms {
                *term = exp2(*term);
            }
        }
    }
}

/// `|x|^(N/2)`, for an N of 1, 3, 6 or 8.
#[derive(Clone, Copy, Debug)]
pub struct HalfPower<const N: u32>;

impl<T: Element, const N: u32> Term<T> for HalfPower<N> {
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        const { assert!(matches!(N, 1 | 3 | 6 | 8)) };
        let size = x.modulus(1.0);
        match N {
            1 => size.sqrt(),
            3 => size * size.sqrt(),
            6 => size * size * size,
            _ => x.square(1.0) * x.square(1.0),
        }
    }
}

/// `2 p`, if [`HalfPower`] computes the power p: by a few multiplications or a square root. These powers need no peak as long as
/// the sum stays in range.
pub fn half_power(p: f64) -> Option<u32> {
    [1, 3, 6, 8].into_iter().find(|twice| f64::from(*twice) == 2.0 * p)
}

/// `sum^(1/p)`, for a finite sum of powers p and `twice`, which is `2 p`, from [`half_power`].
pub fn half_power_root(twice: u32, sum: f64) -> Scaled {
    match twice {
        1 => {
            let (digits, exponent) = Scaled::new(sum, 0).split();
            Scaled::new(digits * digits, 2 * exponent)
        }
        3 => {
            let root = cube_root(sum);
            Scaled::new(root * root, 0)
        }
        6 => Scaled::new(cube_root(sum), 0),
        _ => Scaled::new(sum.sqrt().sqrt(), 0),
    }
}

/// The cube root of a number that is not negative.
fn cube_root(x: f64) -> f64 {
    if !(x > 0.0 && x < f64::INFINITY) {
        return x;
    }
    let log = Log2::of(x);
    let third = (log.exponent / 3.0).round();
    // x = left * 8^third, so the logarithm of `left` is small and loses no digits.
    let left = log.exponent - 3.0 * third;
    let scale = power_of_two(third as i32);
    let digits = x / scale / scale / scale;
    let root = exp2((left + log.fraction) / 3.0 - 1.0) * 2.0;
    // A step of Newton's method corrects the last bits, so that cubes of integers have exact roots.
    let square = root * root;
    (root - (square * root - digits) / (3.0 * square)) * scale
}
