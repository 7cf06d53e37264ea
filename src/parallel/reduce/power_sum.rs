//! Sums of powers, whose roots are norms, in a few float64 cells. Plain addition merges the cells of any norms.
//!
//! A norm `n` of order p adds `n^p`, which may lie far outside float64's range. So the sum has cells, and cell `k` counts in
//! units of `2^(1600 k)`. These are the accumulators of J. L. Blue, "A Portable Fortran Program to Find the Euclidean Norm of a
//! Vector", ACM Trans. Math. Softw. 4 (1978), for any order. The cells of an infinite order hold the largest norm.

use super::order::Order;
use crate::kernel::exact::product;
use crate::kernel::power::{Log2, exp2};
use crate::kernel::sum::Total;
use crate::scaled::{Scaled, power_of_two};

/// The binary orders of magnitude that a cell covers: a term in it lies between 2^-800 and 2^800, so that 2^200 terms stay
/// below the end of float64's range, and no term is subnormal.
const CELL: i32 = 1600;
/// Norms of order 1 and above lie between 2^-1100 and 2^1100, even norms of 2^64 float64 elements. Lower orders need no more
/// than the fewest cells.
const MAX_EXPONENT: f64 = 1100.0;
/// The largest finite order that has cells: 1,375 of them, 11 KB.
pub const MAX_SUMMED_ORDER: f64 = 1000.0;

impl Order {
    /// The exponent of the powers that the cells hold.
    fn power(self) -> f64 {
        match self {
            Self::One | Self::Max => 1.0,
            Self::Two | Self::Square => 2.0,
            Self::Power(p) => p,
        }
    }

    /// The number of cells above the cell of terms near 1, which is also the number of cells below it.
    fn cells_above(self) -> i32 {
        let beyond = MAX_EXPONENT * self.power().min(MAX_SUMMED_ORDER) - f64::from(CELL / 2);
        ((beyond / f64::from(CELL)).ceil() as i32).max(1)
    }

    /// The number of cells of a sum of powers.
    pub fn cells(self) -> usize {
        2 * self.cells_above().unsigned_abs() as usize + 1
    }

    /// The order of the norms for [`Order::write_power`]: for the Euclidean norm its square, because a root would be rounded.
    pub fn before_root(self) -> Self {
        if self == Self::Two { Self::Square } else { self }
    }

    /// Writes `norm^p` to the cells, which must be 0 before.
    pub fn write_power(self, norm: Scaled, cells: &mut [f64]) {
        let above = self.cells_above();
        let (digits, exponent) = norm.split();
        if !norm.is_finite() {
            return cells.iter_mut().rev().take(1).for_each(|cell| *cell = digits);
        }
        if norm.is_zero() {
            return;
        }
        let (value, exponent) = match self {
            Self::One | Self::Max | Self::Square => (digits, exponent),
            Self::Two => (digits * digits, 2 * exponent),
            Self::Power(p) => {
                let (high, low) = product(p, exponent.into());
                let whole = high.round();
                let rest = (high - whole) + low + p * log2(digits);
                let more = rest.round();
                (exp2(rest - more), (whole + more) as i32)
            }
        };
        let k = (exponent + CELL / 2).div_euclid(CELL).clamp(-above, above);
        let value = value * power_of_two(exponent - k * CELL);
        cells.iter_mut().skip((k + above).unsigned_abs() as usize).take(1).for_each(|cell| *cell = value);
    }

    /// The norm whose power the cells hold.
    pub fn root_of_cells(self, cells: &[f64]) -> Scaled {
        let above = self.cells_above();
        let is_nan = |cell: &f64| cell.is_nan();
        if let Some(found) =
            cells.iter().find(|cell| is_nan(cell)).or(cells.iter().find(|cell| cell.is_infinite()))
        {
            return Scaled::new(*found, 0);
        }
        let Some(top) = cells.iter().rposition(|cell| *cell > 0.0) else { return Scaled::ZERO };
        let exponent = (i32::try_from(top).unwrap_or(0) - above) * CELL;
        let cell = |at: Option<usize>| at.and_then(|at| cells.get(at)).copied().unwrap_or(0.0);
        let half = power_of_two(-(CELL / 2));
        let below = if self == Self::Max { 0.0 } else { cell(top.checked_sub(1)) };
        // Cells two or more below the largest do not change the sum.
        let sum = cell(Some(top)) + below * half * half;
        match self {
            Self::One | Self::Max => Scaled::new(sum, exponent),
            Self::Two | Self::Square => Scaled::new(sum.sqrt(), exponent / 2),
            Self::Power(p) => {
                let (digits, own) = Scaled::new(sum, 0).split();
                let exponent = f64::from(exponent + own);
                let quotient = exponent / p;
                let (high, low) = product(quotient, p);
                let whole = quotient.round();
                let rest = (quotient - whole) + (((exponent - high) - low) + log2(digits)) / p;
                let more = rest.round();
                Scaled::new(exp2(rest - more), (whole + more) as i32)
            }
        }
    }

    /// Merges sums of powers, in their order. Each sum has as many cells as `merged`.
    pub fn merge_powers<'a>(self, sums: &(impl Iterator<Item = &'a [f64]> + Clone), merged: &mut [f64]) {
        for (at, to) in merged.iter_mut().enumerate() {
            let column = sums.clone().filter_map(|sum| sum.get(at).copied());
            *to = if self == Self::Max {
                column.fold(0.0, |a: f64, b| if a.is_nan() || a >= b { a } else { b })
            } else {
                let mut total = Total::default();
                column.for_each(|x| total.add(x));
                total.value()
            };
        }
    }
}

/// The logarithm of a number in [1, 2).
fn log2(digits: f64) -> f64 {
    let Log2 { exponent, fraction } = Log2::of(digits);
    exponent + fraction
}
