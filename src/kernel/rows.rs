//! Batches of rows of a matrix. For short rows, a kernel call for each row would take much of the time.
//!
//! Their sums are [`SumEach`](super::sum::SumEach), their scaling is [`ApplyEach`](super::map::ApplyEach). Very short rows have
//! [`SumPieces`](super::sum::SumPieces) and [`ScaleEach`](super::scale_each::ScaleEach). Sums and scaling are separate operations:
//! the compiler uses no wide registers in a loop over rows that contains the loops of both.

use super::sum::is_plain_sum;
use crate::isa::{Level, Op};
use crate::scaled::{FromNorm, Limit};

/// The most rows per call.
pub const MAX_ROWS_AT_ONCE: usize = 32;

/// The longest rows that are scaled by a factor for each element. A loop for each row would take most of the time. This way, clips
/// of rows of 3 elements take two thirds of the time, and of 12 elements nine tenths.
pub const VERY_SHORT: usize = 16;

/// Repeats the factor of each row for its elements.
pub struct RepeatEach<'a> {
    /// The factors.
    pub factors: &'a [f64],
    /// The length of a row, at most [`VERY_SHORT`].
    pub len: usize,
    /// The factor of each element of each row, and room for [`VERY_SHORT`] more.
    pub to: &'a mut [f64],
}

impl Op for RepeatEach<'_> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        let Self { factors, len, to } = self;
        // Overlapping stores delay the loads that follow. With them, clips of rows of 3 elements take 1.15 times as long.
        match len {
            1 => times::<1>(factors, to),
            2 => times::<2>(factors, to),
            3 => times::<3>(factors, to),
            4 => times::<4>(factors, to),
            5 => times::<5>(factors, to),
            6 => times::<6>(factors, to),
            7 => times::<7>(factors, to),
            _ => {
                for (by, from) in factors.iter().zip((0..).step_by(len)) {
                    // The next row overwrites what is too long.
                    if let Some(to) = to.get_mut(from..).and_then(<[f64]>::first_chunk_mut) {
                        *to = [*by; VERY_SHORT];
                    }
                }
            }
        }
    }
}

/// Writes each factor `N` times. The compiler makes a few stores of this, because it knows `N`.
#[inline(always)]
fn times<const N: usize>(factors: &[f64], to: &mut [f64]) {
    for (to, by) in to.as_chunks_mut::<N>().0.iter_mut().zip(factors) {
        *to = [*by; N];
    }
}

/// The number of rows of `len` elements per call, so that they stay in the L1 cache.
#[must_use]
pub fn at_once<T>(len: usize) -> usize {
    ((16 << 10) / size_of::<T>()).div_ceil(len).min(MAX_ROWS_AT_ONCE)
}

/// Computes the Euclidean norms of slices from their sums of squares, or copies sums that are norms. Returns whether all are
/// plain: a sum outside of float64's range, or near its lower end, may have lost digits.
pub struct PlainNorms<'a, N> {
    /// The sum of each slice.
    pub sums: &'a [f64],
    /// Whether the norms are the square roots of the sums.
    pub roots: bool,
    /// The norms to write, as many as sums. If not all are plain, the values are arbitrary.
    pub norms: &'a mut [N],
}

impl<N: FromNorm> Op for PlainNorms<'_, N> {
    type Output = bool;
    #[inline(always)]
    fn eval<L: Level>(self, _: L) -> bool {
        let mut are_plain = true;
        for (norm, &sum) in self.norms.iter_mut().zip(self.sums) {
            are_plain &= is_plain_sum(sum);
            *norm = N::of_plain(if self.roots { sum.sqrt() } else { sum });
        }
        are_plain
    }
}

/// Computes the factors of rows from their sums of squares: `limit` over the norm, or 1 for norms that stay as they are. A
/// factor of 0 means that the caller must compute it another way, and the norm too: the sum may have lost digits, or is infinite
/// or NaN. Returns whether there is no such factor.
pub struct PlainFactors<'a, N> {
    /// The sum of squares of each row.
    pub sums: &'a [f64],
    /// The largest norm.
    pub limit: Limit,
    /// Whether norms that do not exceed the limit stay as they are.
    pub keeps: bool,
    /// The factors to write, one for each row.
    pub factors: &'a mut [f64],
    /// The norms to write; none, or one for each row.
    pub norms: &'a mut [N],
}

impl<N: FromNorm> Op for PlainFactors<'_, N> {
    type Output = bool;
    #[inline(always)]
    fn eval<L: Level>(self, _: L) -> bool {
        let (Limit { limit, divisor, .. }, (most, share)) = (self.limit, self.limit.shares());
        let normal = f64::MIN_POSITIVE..=f64::MAX;
        // With a limit of 0, no norm is kept here: a norm of 0 is left to the caller.
        let (keeps, clips) = (self.keeps & (limit > 0.0), normal.contains(&limit));
        for (factor, &sum) in self.factors.iter_mut().zip(self.sums) {
            *factor = sum.sqrt();
        }
        self.norms.iter_mut().zip(&*self.factors).for_each(|(norm, root)| *norm = N::of_plain(*root));
        // A division takes as long as the rest of this function.
        if divisor != 1.0 {
            for norm in &mut *self.factors {
                *norm /= divisor;
            }
        }
        for (factor, &sum) in self.factors.iter_mut().zip(self.sums) {
            let norm = *factor;
            let by = limit / norm * share;
            let clipped = if clips & normal.contains(&by) { by } else { 0.0 };
            let plain = if keeps & (norm <= limit * most) { 1.0 } else { clipped };
            *factor = if is_plain_sum(sum) { plain } else { 0.0 };
        }
        self.factors.iter().fold(true, |all, factor| all & (*factor != 0.0))
    }
}
