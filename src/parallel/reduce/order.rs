//! The orders of norms, and the passes over the data that each of them takes.

use crate::kernel::power::{Power, half_power, half_power_root};
use crate::kernel::sum::{SMALLEST_SUM, Total, is_plain_sum};
use crate::scaled::{RESCALE, Scaled, power_of_two};

/// The order of a vector norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// The sum of magnitudes.
    One,
    /// The Euclidean norm.
    Two,
    /// The square of the Euclidean norm, which processes add up. The square of the rounded norm would be another number.
    Square,
    /// The largest magnitude.
    Max,
    /// `(sum |x|^p)^(1/p)`, p positive and finite.
    Power(f64),
}

/// The terms that one pass over the data adds up. [`Order::norm`] alone chooses the passes of an order.
#[derive(Clone, Copy, Debug)]
pub enum Reduction {
    Abs,
    RescaledAbs(f64),
    Square,
    RescaledSquare(f64),
    /// Powers `n / 2`, see [`half_power`].
    HalfPower(u32),
    Power(Power),
}

impl Order {
    /// The order p, for a positive number.
    pub fn of(p: f64) -> Self {
        match p {
            1.0 => Self::One,
            2.0 => Self::Two,
            f64::INFINITY => Self::Max,
            p => Self::Power(p),
        }
    }

    /// Whether the norm sums squares, so that a complex number can be read as two real numbers.
    pub fn is_of_squares(self) -> bool {
        matches!(self, Self::Two | Self::Square)
    }

    /// The approximate time of a pass, in units of a plain read of the data. It decides whether threads are worth it.
    pub(super) fn cost(self) -> usize {
        match self {
            Self::Power(p) if half_power(p).is_some() => 2,
            Self::Power(_) => 16,
            _ => 1,
        }
    }

    /// The first pass, if it is a sum that needs no other pass before it.
    pub(super) fn first(self) -> Option<Reduction> {
        match self {
            Self::One => Some(Reduction::Abs),
            Self::Two | Self::Square => Some(Reduction::Square),
            Self::Max => None,
            Self::Power(p) => half_power(p).map(Reduction::HalfPower),
        }
    }

    /// The norm, from passes over the data: `max` finds the largest modulus times a power of two, and `sum` adds up the terms
    /// of a pass. `leaves_range`: whether sums can leave float64's range.
    pub(super) fn norm<E>(
        self,
        leaves_range: impl Fn() -> bool,
        max: impl Fn(f64) -> Result<f64, E>,
        sum: impl Fn(Reduction) -> Result<f64, E>,
    ) -> Result<Scaled, E> {
        let largest = || {
            let (max, exponent) = within_range(max(1.0)?, &leaves_range, &max)?;
            Ok(Scaled::new(max, exponent))
        };
        Ok(match self {
            Self::One => {
                let again = |by| sum(Reduction::RescaledAbs(by));
                let (sum, exponent) = within_range(sum(Reduction::Abs)?, leaves_range, again)?;
                Scaled::new(sum, exponent)
            }
            Self::Two | Self::Square => {
                let again = |by| sum(Reduction::RescaledSquare(by));
                match (self, within_range(sum(Reduction::Square)?, leaves_range, again)?) {
                    (Self::Two, (sum, exponent)) => Scaled::new(sum.sqrt(), exponent),
                    (_, (sum, exponent)) => Scaled::new(sum, 2 * exponent),
                }
            }
            Self::Max => largest()?,
            Self::Power(p) => {
                if let Some(twice) = half_power(p) {
                    let s = sum(Reduction::HalfPower(twice))?;
                    // The smallest square root is 2^-537. Its rounding does not matter in a sum of this size.
                    let smallest = if p < 1.0 { power_of_two(-400) } else { SMALLEST_SUM };
                    if s.is_nan() || (smallest..f64::INFINITY).contains(&s) || !leaves_range() {
                        return Ok(half_power_root(twice, s));
                    }
                }
                let peak = largest()?;
                if peak.is_finite() && !peak.is_zero() {
                    let power = Power::new(p, peak);
                    power.root(peak, sum(Reduction::Power(power))?)
                } else {
                    peak
                }
            }
        })
    }
}

/// A result and the exponent of its power of two: `plain` and 0, or the result of `again` for the elements times a power of
/// two. `again` is called if `plain` may have overflowed, or is so small that it may have lost digits.
fn within_range<E>(
    plain: f64,
    leaves_range: impl Fn() -> bool,
    again: impl Fn(f64) -> Result<f64, E>,
) -> Result<(f64, i32), E> {
    Ok(if plain == f64::INFINITY && leaves_range() {
        (again(power_of_two(-RESCALE))?, RESCALE)
    } else if plain < SMALLEST_SUM && leaves_range() {
        (again(power_of_two(RESCALE))?, -RESCALE)
    } else {
        (plain, 0)
    })
}

/// The Euclidean norm of a vector whose parts have these norms.
pub fn norm_of_norms(norms: impl Iterator<Item = Scaled> + Clone) -> Scaled {
    // Fast path: no square that matters leaves float64's range.
    let mut total = Total::default();
    norms.clone().map(Scaled::to_f64).for_each(|norm| total.add(norm * norm));
    if is_plain_sum(total.value()) {
        return Scaled::new(total.value().sqrt(), 0);
    }
    let largest = norms.clone().fold(Scaled::ZERO, Scaled::max);
    if largest.is_zero() || !largest.is_finite() {
        return largest;
    }
    let (_, exponent) = largest.split();
    let mut total = Total::default();
    for norm in norms {
        let (digits, own) = norm.split();
        // A square below 2^-1000 does not matter beside the largest square, which is at least 1.
        let x = digits * power_of_two(own.saturating_sub(exponent).max(-500));
        total.add(x * x);
    }
    Scaled::new(total.value().sqrt(), exponent)
}
