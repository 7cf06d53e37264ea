//! Powers for norms of any order: a base-2 logarithm and exponential of our own.
//!
//! The C library's `pow` differs from CPU to CPU in the last bit, and this one is inlined into the loop and
//! runs in vector registers. Both functions are good to about 2^-52, absolute for the logarithm of the
//! mantissa and relative for the exponential: what a p-norm needs, since an error `d` of a logarithm changes
//! the norm by the factor `2^d`.

use super::sum::Term;
use crate::element::Element;
use crate::scaled::{Scaled, power_of_two};
use std::f64::consts::{LN_2, SQRT_2};

/// `log2(x) = exponent + fraction`, with a fraction in [-1/2, 1/2].
#[derive(Clone, Copy, Debug)]
pub struct Log2 {
    exponent: f64,
    fraction: f64,
}

/// The exponents are read with this number's help: an integer below 2^52, put in its mantissa, is a float64.
const TWO_52: u64 = 0x4330_0000_0000_0000;

/// `2 / (ln 2 * (2k + 1))`, the series of log2((1 + s) / (1 - s)) in odd powers of s. With |s| <= 0.1716 what comes
/// after these terms is below 2^-60 of the first.
const LOG: [f64; 12] = {
    let mut c = [0.0; 12];
    let mut k = 0;
    while k < c.len() {
        c[k] = 2.0 / (LN_2 * (2 * k + 1) as f64);
        k += 1;
    }
    c
};

/// `ln(2)^k / k!`, the series of 2^r. With |r| <= 1/2 what comes after these terms is below 2^-57.
const EXP: [f64; 14] = {
    let mut c = [1.0; 14];
    let mut k = 1;
    while k < c.len() {
        c[k] = c[k - 1] * LN_2 / k as f64;
        k += 1;
    }
    c
};

/// The sum of `c[k] * x^k`: Horner's rule for the even and the odd powers, side by side, because one chain of
/// multiplications and additions leaves most of the CPU waiting.
#[inline(always)]
fn polynomial<const N: usize>(c: &[f64; N], x: f64) -> f64 {
    const { assert!(N.is_multiple_of(2)) };
    let square = x * x;
    let (mut even, mut odd) = (c[N - 2], c[N - 1]);
    let mut k = N - 2;
    while k > 0 {
        k -= 2;
        even = even * square + c[k];
        odd = odd * square + c[k + 1];
    }
    even + odd * x
}

impl Log2 {
    /// Of a positive, finite number.
    #[inline(always)]
    #[must_use]
    pub fn of(x: f64) -> Self {
        // A subnormal is lifted to where its exponent can be read.
        let (x, bias) =
            if x < f64::MIN_POSITIVE { (x * power_of_two(64), 1023.0 + 64.0) } else { (x, 1023.0) };
        let bits = x.to_bits();
        let exponent = (f64::from_bits((bits >> 52) | TWO_52) - f64::from_bits(TWO_52)) - bias;
        let digits = f64::from_bits((bits & (u64::MAX >> 12)) | 1f64.to_bits());
        let (digits, exponent) =
            if digits > SQRT_2 { (digits * 0.5, exponent + 1.0) } else { (digits, exponent) };
        let s = (digits - 1.0) / (digits + 1.0);
        let s2 = s * s;
        Self { exponent, fraction: polynomial(&LOG, s2) * s }
    }

    #[inline(always)]
    fn minus(self, other: Self) -> f64 {
        (self.exponent - other.exponent) + (self.fraction - other.fraction)
    }
}

/// Adding this number rounds to an integer, which stands in the low bits of the sum.
const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

/// 2^z for z in [-1000, 0.5].
#[inline(always)]
fn exp2(z: f64) -> f64 {
    let shifted = z + ROUND;
    let r = z - (shifted - ROUND);
    polynomial(&EXP, r) * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)
}

/// `(|x| / peak)^p`, between 0 and 1.
#[derive(Clone, Copy, Debug)]
pub struct Power {
    p: f64,
    peak: Log2,
}

impl Power {
    /// For elements whose largest modulus is `peak`, positive and finite.
    #[must_use]
    pub fn new(p: f64, peak: Scaled) -> Self {
        let (digits, exponent) = peak.split();
        let Log2 { exponent: own, fraction } = Log2::of(digits);
        Self { p, peak: Log2 { exponent: own + f64::from(exponent), fraction } }
    }

    /// `peak * sum^(1/p)`, for a sum of terms that is at least about 1.
    #[must_use]
    pub fn root(self, peak: Scaled, sum: f64) -> Scaled {
        let log = Log2::of(sum);
        let power = (log.exponent + log.fraction) / self.p;
        let power = power.clamp(-1e9, 1e9);
        let whole = power.round();
        let (digits, exponent) = peak.split();
        Scaled::new(digits * exp2(power - whole), exponent.saturating_add(whole as i32))
    }
}

impl<T: Element> Term<T> for Power {
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        let (x, exponent) = x.lifted();
        let log = Log2::of(x);
        let log = Log2 { exponent: log.exponent + exponent, fraction: log.fraction };
        let power = self.p * log.minus(self.peak);
        // Above 0 by rounding alone; below -1000 the term does not reach the sum, which holds a 1.
        let power = if power < -1000.0 { -1000.0 } else { power };
        let power = if power > 0.0 { 0.0 } else { power };
        if x == 0.0 { 0.0 } else { exp2(power) }
    }
}

/// The powers that a few multiplications or a square root make, for which no peak is needed while the sum stays
/// within the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simple {
    /// 1/2
    Half,
    /// 3/2
    ThreeHalves,
    /// 3
    Three,
    /// 4
    Four,
}

/// `|x|^(1/2)`
#[derive(Clone, Copy, Debug)]
pub struct Half;
/// `|x|^(3/2)`
#[derive(Clone, Copy, Debug)]
pub struct ThreeHalves;
/// `|x|^3`
#[derive(Clone, Copy, Debug)]
pub struct Cube;
/// `|x|^4`
#[derive(Clone, Copy, Debug)]
pub struct Fourth;

impl<T: Element> Term<T> for Half {
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        x.modulus(1.0).sqrt()
    }
}
impl<T: Element> Term<T> for ThreeHalves {
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        let x = x.modulus(1.0);
        x * x.sqrt()
    }
}
impl<T: Element> Term<T> for Cube {
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        let x = x.modulus(1.0);
        x * x * x
    }
}
impl<T: Element> Term<T> for Fourth {
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        let square = x.square(1.0);
        square * square
    }
}

impl Simple {
    /// The power `p`, if it is one of them.
    #[must_use]
    pub fn of(p: f64) -> Option<Self> {
        match p {
            0.5 => Some(Self::Half),
            1.5 => Some(Self::ThreeHalves),
            3.0 => Some(Self::Three),
            4.0 => Some(Self::Four),
            _ => None,
        }
    }

    /// `sum^(1/p)`, for a finite sum.
    #[must_use]
    pub fn root(self, sum: f64) -> Scaled {
        match self {
            Self::Half => {
                let (digits, exponent) = Scaled::new(sum, 0).split();
                Scaled::new(digits * digits, 2 * exponent)
            }
            Self::ThreeHalves => {
                let root = cube_root(sum);
                Scaled::new(root * root, 0)
            }
            Self::Three => Scaled::new(cube_root(sum), 0),
            Self::Four => Scaled::new(sum.sqrt().sqrt(), 0),
        }
    }
}

/// Of a number that is not negative.
fn cube_root(x: f64) -> f64 {
    if !(x > 0.0 && x < f64::INFINITY) {
        return x;
    }
    let log = Log2::of(x);
    let third = (log.exponent / 3.0).round();
    // x = left * 8^third, so that the logarithm is small and loses nothing.
    let left = log.exponent - 3.0 * third;
    let scale = power_of_two(third as i32);
    let digits = x / scale / scale / scale;
    let root = exp2((left + log.fraction) / 3.0 - 1.0) * 2.0;
    // A step of Newton's method takes the last errors away, so that whole numbers have whole roots.
    let square = root * root;
    (root - (square * root - digits) / (3.0 * square)) * scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_and_exponential_undo_each_other() {
        for i in 1..20_000 {
            let x = f64::from(i) / 20_000.0;
            let log = Log2::of(x);
            let back = exp2(log.exponent + log.fraction);
            assert!((back - x).abs() <= 4.0 * f64::EPSILON * x, "{x} {back}");
        }
    }

    #[test]
    fn powers_of_two_are_exact() {
        for e in -1074..=1023 {
            let x = if e < -1022 { f64::from_bits(1 << (e + 1074)) } else { power_of_two(e) };
            let log = Log2::of(x);
            assert_eq!((log.exponent, log.fraction), (f64::from(e), 0.0));
            if (-1000..=0).contains(&e) {
                assert_eq!(exp2(f64::from(e)), x);
            }
        }
    }

    #[test]
    fn a_cube_is_right() {
        // 2^3 + 1^3 + 2^3 = 17, in units of the peak: 17/8.
        let peak = Scaled::new(2.0, 0);
        let term = Power::new(3.0, peak);
        let sum: f64 = [2.0, -1.0, 2.0, 0.0].iter().map(|&x: &f64| term.of(x)).sum();
        assert!((sum - 17.0 / 8.0).abs() < 1e-15);
        assert!((term.root(peak, sum).to_f64() - 17f64.cbrt()).abs() < 1e-15);
    }

    #[test]
    fn cube_roots_of_cubes_are_whole() {
        for i in 1..10_000 {
            let x = f64::from(i);
            assert_eq!(cube_root(x * x * x), x);
        }
        for (i, exponent) in (-1074..1024).enumerate() {
            let x = 1.0 + i as f64 / 5000.0;
            let x = if exponent < -1022 {
                f64::from_bits(1 << (exponent + 1074))
            } else {
                x * power_of_two(exponent)
            };
            let exact = x.cbrt();
            assert!((cube_root(x) - exact).abs() <= f64::EPSILON * exact, "{x:e}");
        }
        for x in [0.0, f64::INFINITY] {
            assert_eq!(cube_root(x), x);
        }
        assert!(cube_root(f64::NAN).is_nan());
    }
}
