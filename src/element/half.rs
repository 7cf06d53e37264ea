//! Floating-point numbers of 16 bits, which Rust lacks: `float16` and `bfloat16`.
//!
//! One generic body serves both. It uses integer operations and selections, without branches and tables, so that the compiler
//! vectorizes it at every level.

use std::cmp::Ordering;
use std::fmt;

/// A number with a sign, `15 - DIGITS` bits of exponent and `DIGITS` bits of mantissa.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Half<const DIGITS: u32>(u16);

/// IEEE 754 binary16.
pub type F16 = Half<10>;
/// The upper half of a float32.
pub type Bf16 = Half<7>;

/// All bits but the sign.
const MAGNITUDE_BITS: u16 = u16::MAX >> 1;
/// Digits of the mantissa of float32, without the implied one.
const MIDDLE_DIGITS: u32 = f32::MANTISSA_DIGITS - 1;

/// Truncates to 13 digits with a sticky last digit (round to odd): rounding the result to the 11 digits of float16, or fewer,
/// gives the same number as rounding `x` directly.
///
/// float32 holds 13 digits of every number from 2^-137 on. Smaller numbers round to 0 in 16 bits in any case (half of
/// `bfloat16`'s smallest number is 2^-134). Numbers beyond float32 become infinite.
#[inline(always)]
pub fn to_odd(x: f64) -> f32 {
    /// The bits below the 13 digits, of which the exponent implies one.
    const REST: u64 = u64::MAX >> (64 - (f64::MANTISSA_DIGITS - 13));
    let bits = x.to_bits();
    // The addition carries into the bit above the rest if a bit of the rest is set.
    f64::from_bits((bits | ((bits & REST) + REST)) & !REST) as f32
}

const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(127u32.saturating_add_signed(exponent) << MIDDLE_DIGITS)
}

impl<const DIGITS: u32> Half<DIGITS> {
    /// Positive infinity.
    pub const INFINITY: Self = Self(MAGNITUDE_BITS >> DIGITS << DIGITS);
    /// Negative infinity.
    pub const NEG_INFINITY: Self = Self(Self::INFINITY.0 | !MAGNITUDE_BITS);
    const BIAS: u32 = (MAGNITUDE_BITS >> DIGITS) as u32 / 2;
    /// The exponent of the smallest subnormal.
    const SUBNORMAL_EXPONENT: i32 = 1 - (Self::BIAS + DIGITS).cast_signed();

    /// From its bits.
    #[inline(always)]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Its bits.
    #[inline(always)]
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// Whether it is NaN.
    #[inline(always)]
    pub const fn is_nan(self) -> bool {
        self.0 & MAGNITUDE_BITS > Self::INFINITY.0
    }

    /// Converts to float32, exactly.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let bits = u32::from(self.0) << 16;
        if Self::BIAS == 127 {
            return f32::from_bits(bits); // the exponents are float32's
        }
        let size = bits & (u32::MAX >> 1);
        let rebias = (127 - Self::BIAS) << MIDDLE_DIGITS;
        let normal = f32::from_bits((size >> (DIGITS + 16 - MIDDLE_DIGITS)) + rebias);
        // For a subnormal, `normal` is half its value plus half of the smallest normal number. It is corrected by additions,
        // because products with subnormal numbers are slow on many CPUs.
        let least = power_of_two(Self::SUBNORMAL_EXPONENT + DIGITS.cast_signed());
        let finite = normal + (normal.min(least) - least);
        let last = if size >= u32::from(Self::INFINITY.0) << 16 { rebias } else { 0 };
        f32::from_bits((finite.to_bits() + last) | (bits ^ size))
    }

    /// Converts from float64, rounded once, to nearest, ties to even.
    #[inline(always)]
    pub fn from_f64(x: f64) -> Self {
        Self::from_f32(to_odd(x))
    }

    /// Converts from float32, rounded once, to nearest, ties to even.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        let drop = MIDDLE_DIGITS - DIGITS;
        let bits = x.to_bits();
        // A NaN keeps the upper bits of its payload, and its quiet bit is set, so that it stays NaN.
        let quiet = 1 << (DIGITS - 1);
        if Self::BIAS == 127 {
            // The exponents are float32's: a carry out of the digits increments the exponent, up to infinity.
            let rounded = (bits.wrapping_add((1 << (drop - 1)) - 1 + ((bits >> drop) & 1))) >> drop;
            return Self(if x.is_nan() { bits >> drop | quiet } else { rounded } as u16);
        }
        // The result is infinite from `most` on. The numbers are compared as integers, because on some CPUs the minimum of a
        // number and a signaling NaN is NaN.
        let most = power_of_two(Self::BIAS.cast_signed() + 1).to_bits().cast_signed();
        let size = f32::from_bits(x.abs().to_bits().cast_signed().min(most).cast_unsigned());
        // The last bit of `place` has the weight of the last bit of the result. Adding `place` rounds `size` to multiples of
        // that weight, and leaves their count in the last bits of the sum.
        let own =
            f32::from_bits((size.to_bits() >> MIDDLE_DIGITS << MIDDLE_DIGITS) + (drop << MIDDLE_DIGITS));
        let least = power_of_two(Self::SUBNORMAL_EXPONENT + MIDDLE_DIGITS.cast_signed());
        let place = own.max(least);
        // The count includes the digit that the exponent implies, so the exponent is one less.
        let exponent = (place.to_bits() - least.to_bits()) >> drop;
        let rounded = (size + place).to_bits().wrapping_add(exponent);
        let nan = if x.is_nan() { quiet | ((bits >> drop) & (quiet - 1)) } else { 0 };
        Self((rounded | nan) as u16 | (bits >> 16) as u16 & !MAGNITUDE_BITS)
    }

    /// The magnitude of `self` with the sign of `other`.
    #[inline(always)]
    pub const fn copysign(self, other: Self) -> Self {
        Self(self.0 & MAGNITUDE_BITS | other.0 & !MAGNITUDE_BITS)
    }

    /// Converts from float32, rounded once, toward zero.
    #[inline(always)]
    pub fn truncated(x: f32) -> Self {
        let nearest = Self::from_f32(x);
        if nearest.to_f32().abs() > x.abs() { Self(nearest.0 - 1) } else { nearest }
    }

    /// An integer that sorts like the number, except for NaN. 0.0 and -0.0 have one key.
    #[inline(always)]
    fn key(self) -> i16 {
        let size = (self.0 & MAGNITUDE_BITS).cast_signed();
        if self.0 > MAGNITUDE_BITS { -size } else { size }
    }

    #[inline(always)]
    fn ordered(self, other: Self) -> bool {
        !self.is_nan() & !other.is_nan()
    }
}

impl<const DIGITS: u32> From<Half<DIGITS>> for f64 {
    #[inline(always)]
    fn from(x: Half<DIGITS>) -> Self {
        Self::from(x.to_f32())
    }
}

impl<const DIGITS: u32> PartialEq for Half<DIGITS> {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        self.ordered(*other) & (self.key() == other.key())
    }
}

impl<const DIGITS: u32> PartialOrd for Half<DIGITS> {
    #[inline(always)]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.ordered(*other).then(|| self.key().cmp(&other.key()))
    }
    // `lt` and `gt` are written out because kernels use them: the defaults, which call `partial_cmp`, would have branches.
    #[inline(always)]
    fn lt(&self, other: &Self) -> bool {
        self.ordered(*other) & (self.key() < other.key())
    }
    #[inline(always)]
    fn gt(&self, other: &Self) -> bool {
        self.ordered(*other) & (self.key() > other.key())
    }
}

impl<const DIGITS: u32> fmt::Debug for Half<DIGITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({:#06x})", f64::from(*self), self.0)
    }
}
