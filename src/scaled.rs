//! Norms that may lie outside float64's range, and the factors that scale them to limits.

use crate::element::Real;

/// The exponent of the power of two by which sums that leave float64's range are rescaled and computed again.
///
/// Scaled up by 2^600, the smallest subnormal is 2^-474, whose square is still normal; scaled down, the
/// largest square is 2^848, which leaves room for more terms than memory holds.
pub const RESCALE: i32 = 600;

/// `value * 2^exponent`, not negative, or NaN. The exponent is 0 whenever the number is a normal float64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaled {
    value: f64,
    exponent: i32,
}

/// The type in which norms are written: [`Scaled`], or a dtype, to which they are rounded.
pub trait FromNorm: Copy + Send {
    /// Converts a norm.
    fn of(norm: Scaled) -> Self;
    /// Converts a norm that is a normal number or 0. For other numbers, the result is arbitrary.
    fn of_plain(norm: f64) -> Self;
}

impl FromNorm for Scaled {
    #[inline(always)]
    fn of(norm: Scaled) -> Self {
        norm
    }
    #[inline(always)]
    fn of_plain(value: f64) -> Self {
        Self { value, exponent: 0 }
    }
}

impl<N: Real> FromNorm for N {
    #[inline(always)]
    fn of(norm: Scaled) -> Self {
        N::narrow(norm.to_f64())
    }
    #[inline(always)]
    fn of_plain(norm: f64) -> Self {
        N::narrow(norm)
    }
}

/// A factor in two steps, `x * by * then`: the factor may lie outside float64's range where the result does not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor {
    /// The first step, with all digits of the factor.
    pub by: f64,
    /// The second step, a power of two; 1 unless the factor itself is not a normal float64.
    pub then: f64,
    /// The rounding of products.
    pub rounding: Rounding,
}

/// The rounding of products. It has eight bytes: a [`Factor`] with padding is copied by a load of eight bytes, which waits until
/// the store of one byte is in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Rounding {
    /// To the nearest number.
    Nearest,
    /// Toward zero, so that no magnitude is larger than the factor makes it.
    TowardZero,
}

impl Factor {
    /// Changes nothing.
    pub const ONE: Self = Self::new(1.0, 1.0);
    /// Makes everything NaN.
    pub const NAN: Self = Self::new(f64::NAN, 1.0);
    /// Sets everything to +0.0, even NaN and infinity. No quotient of magnitudes has the sign of this zero.
    pub const ERASE: Self = Self::new(-0.0, 1.0);

    /// A factor of two steps, with products rounded to nearest.
    #[inline]
    pub const fn new(by: f64, then: f64) -> Self {
        Self { by, then, rounding: Rounding::Nearest }
    }

    /// Whether products are rounded toward zero.
    #[inline(always)]
    pub fn toward_zero(self) -> bool {
        self.rounding == Rounding::TowardZero
    }

    /// Whether `by` is the first step of [`Factor::ERASE`].
    #[inline(always)]
    pub fn erases(by: f64) -> bool {
        by.to_bits() == 1 << 63
    }
}

/// The treatment of elements whose norm is infinite or NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonFinite {
    /// They are scaled like other elements, so that the result has NaN.
    Propagate,
    /// All elements become NaN.
    Spread,
    /// They become +0.0.
    Erase,
    /// They stay as they are.
    Keep,
    /// The caller raises an error before anything is written, see [`Limit::refuses`].
    Raise,
}

/// The limit of norms.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The largest norm of elements that stay as they are.
    pub limit: f64,
    /// The divisor of norms: 1, the number of elements for an average, or its square root for a root mean square.
    pub divisor: f64,
    /// The treatment of elements whose norm is infinite or NaN.
    pub nonfinite: NonFinite,
    /// If not 0, no exact norm of the result exceeds the limit. It is the share of the limit for the rounding of norms and
    /// factors: norms up to `limit * (1 - margin)` change nothing, larger norms are scaled to `limit * (1 - 2 * margin)`.
    pub margin: f64,
}

impl From<f64> for Limit {
    fn from(limit: f64) -> Self {
        Self { limit, divisor: 1.0, nonfinite: NonFinite::Propagate, margin: 0.0 }
    }
}

impl Limit {
    /// The factor of elements with this norm; None if they stay as they are.
    #[inline(always)] // a call costs too much for small tensors
    pub fn factor(self, norm: Scaled) -> Option<Factor> {
        if norm.is_finite() && self.divisor == 1.0 && self.margin == 0.0 {
            return norm.clip_to(self.limit);
        }
        self.factor_of_any(norm)
    }

    /// Whether a norm must make the call raise an error.
    #[inline]
    pub fn refuses(self, norm: Scaled) -> bool {
        self.nonfinite == NonFinite::Raise && !norm.is_finite()
    }

    #[cold]
    fn factor_of_any(self, norm: Scaled) -> Option<Factor> {
        if !norm.is_finite() && self.limit < f64::INFINITY {
            match self.nonfinite {
                NonFinite::Propagate | NonFinite::Raise => {}
                NonFinite::Spread => return Some(Factor::NAN),
                NonFinite::Erase => return Some(Factor::ERASE),
                NonFinite::Keep => return None,
            }
        }
        let norm = norm.divided_by(self.divisor);
        if self.margin == 0.0 || self.limit == f64::INFINITY {
            return norm.clip_to(self.limit);
        }
        let (unchanged, scaled) = self.shares();
        // The norm and the limit are compared before either is rounded to float64.
        if norm.order() <= Scaled::new(self.limit, 0).times(unchanged).order() {
            return None;
        }
        let Factor { by, then, .. } = norm.factor_to(self.limit);
        Some(Factor { by: by * scaled, then, rounding: Rounding::TowardZero })
    }

    /// The share of the limit up to which norms change nothing, and the share to which larger norms are scaled.
    pub fn shares(self) -> (f64, f64) {
        (1.0 - self.margin, 1.0 - 2.0 * self.margin)
    }
}

/// 2^exponent, with the exponent clamped to the normal range.
#[inline]
pub fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(u64::from((exponent.clamp(-1022, 1023) + 1023).unsigned_abs()) << 52)
}

/// `x = m * 2^e` with m in [1, 2), for x positive and finite.
fn split(x: f64) -> (f64, i32) {
    let (x, lift) = if x < f64::MIN_POSITIVE { (x * power_of_two(64), 64) } else { (x, 0) };
    let exponent = (x.to_bits() >> 52) as i32 - 1023;
    (f64::from_bits(x.to_bits() & (u64::MAX >> 12) | 1f64.to_bits()), exponent - lift)
}

impl Scaled {
    /// The number 0.
    pub const ZERO: Self = Self { value: 0.0, exponent: 0 };

    /// `value * 2^exponent`.
    #[inline]
    pub fn new(value: f64, exponent: i32) -> Self {
        if exponent == 0 && (value.is_normal() || value == 0.0) {
            Self { value, exponent }
        } else {
            Self::settle(value, exponent)
        }
    }

    #[cold]
    fn settle(value: f64, exponent: i32) -> Self {
        if value.is_nan() {
            return Self { value: f64::NAN, exponent: 0 };
        }
        if value == 0.0 || value.is_infinite() {
            return Self { value, exponent: 0 };
        }
        let (digits, own) = split(value);
        let exponent = exponent.saturating_add(own);
        if (-1022..=1023).contains(&exponent) {
            Self { value: digits * power_of_two(exponent), exponent: 0 }
        } else {
            Self { value: digits, exponent }
        }
    }

    /// `value * 2^exponent` with a value in [1, 2), unless it is 0, infinite or NaN.
    pub fn split(self) -> (f64, i32) {
        if self.value == 0.0 || !self.value.is_finite() {
            return (self.value, 0);
        }
        let (digits, exponent) = split(self.value);
        (digits, self.exponent.saturating_add(exponent))
    }

    /// The number rounded to float64: infinite above float64's range, subnormal or 0 below it.
    #[inline]
    pub fn to_f64(self) -> f64 {
        if self.exponent == 0 {
            self.value
        } else {
            // The first step is exact: the value's own exponent is 0, so only the last one can round.
            let half = (self.exponent / 2).clamp(-1000, 1000);
            self.value * power_of_two(half) * power_of_two(self.exponent - half)
        }
    }

    /// Whether the number is neither infinite nor NaN, even outside float64's range.
    #[inline]
    pub fn is_finite(self) -> bool {
        self.value.is_finite()
    }

    /// Whether it is NaN.
    #[inline]
    pub fn is_nan(self) -> bool {
        self.value.is_nan()
    }

    /// Whether it is zero.
    #[inline]
    pub fn is_zero(self) -> bool {
        self.value == 0.0
    }

    /// The larger number, or NaN if one of them is NaN.
    #[inline]
    pub fn max(self, other: Self) -> Self {
        if self.is_nan() || self.order() >= other.order() { self } else { other }
    }

    /// A sort key. The key of NaN is above the keys of finite numbers, and neither above nor below the key of infinity.
    fn order(self) -> (i32, f64) {
        if !self.is_finite() {
            (i32::MAX, self.value)
        } else if self.value == 0.0 {
            (i32::MIN, 0.0)
        } else {
            let (digits, exponent) = self.split();
            (exponent, digits)
        }
    }

    /// The one rule of clipping: a norm at or below the limit, both as float64, changes nothing, and others are scaled by
    /// `limit / norm`. A limit of 0 makes zeros even for a norm so small that it is 0 as float64. An infinite limit changes
    /// nothing, not even for a NaN norm.
    #[inline]
    pub fn clip_to(self, limit: f64) -> Option<Factor> {
        if limit == f64::INFINITY || self.to_f64() <= limit && (limit > 0.0 || self.is_zero()) {
            None
        } else {
            Some(self.factor_to(limit))
        }
    }

    /// [`Scaled::clip_to`] for a limit that may lie outside of float64's range.
    #[inline]
    pub fn clip_to_any(self, limit: Self) -> Option<Factor> {
        Self::new(self.value, self.exponent.saturating_sub(limit.exponent)).clip_to(limit.value)
    }

    /// The product with a finite number that is not negative.
    #[inline]
    pub fn times(self, by: f64) -> Self {
        let ((digits, exponent), (by, own)) = (self.split(), Self::new(by, 0).split());
        Self::new(digits * by, exponent.saturating_add(own))
    }

    /// The quotient by a number of at least 1.
    pub fn divided_by(self, divisor: f64) -> Self {
        // The exponent is split off, so that the quotient does not become subnormal and keeps all digits.
        let (digits, exponent) = self.split();
        Self::new(digits / divisor, exponent)
    }

    /// `limit / self`, for a limit that is not negative.
    #[inline]
    pub fn factor_to(self, limit: f64) -> Factor {
        let by = limit / self.value;
        if self.exponent == 0 && by.is_normal() && self.value.is_normal() && limit.is_normal() {
            Factor::new(by, 1.0)
        } else {
            self.far_factor_to(limit)
        }
    }

    #[cold]
    fn far_factor_to(self, limit: f64) -> Factor {
        if self.value.is_nan() || limit.is_nan() {
            return Factor::NAN;
        }
        if self.value == 0.0 || limit.is_infinite() {
            // No finite norm exceeds an infinite limit, and zeros stay as they are.
            return if self.value.is_infinite() { Factor::NAN } else { Factor::ONE };
        }
        if limit == 0.0 || self.value.is_infinite() {
            return Factor::new(0.0, 1.0);
        }
        let (limit_digits, limit_exponent) = split(limit);
        let (digits, exponent) = split(self.value);
        let by = limit_digits / digits;
        let exponent = limit_exponent - exponent.saturating_add(self.exponent);
        if (-1000..=1000).contains(&exponent) {
            Factor::new(by * power_of_two(exponent), 1.0)
        } else {
            // `then` is at the end of its range before the first step becomes subnormal. So the result loses all digits that
            // the first step loses by underflow.
            let then = exponent.saturating_sub(exponent.clamp(-1021, 1000)).max(-1074);
            Factor::new(by * step(exponent.saturating_sub(then)), step(then))
        }
    }
}

/// 2^exponent, also where it is subnormal; 0 below float64's range and 2^1023 above it.
fn step(exponent: i32) -> f64 {
    if exponent < -1022 {
        power_of_two(exponent.max(-1075) + 53) * power_of_two(-53)
    } else {
        power_of_two(exponent)
    }
}
