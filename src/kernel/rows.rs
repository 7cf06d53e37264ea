//! Batches of rows of a matrix. For short rows, a kernel call for each row would take much of the time.
//!
//! Their sums are [`SumShortRows`](super::sum::SumShortRows) and [`SumEach`](super::sum::SumEach), their scaling is [`ScaleRows`].
//! Sums and scaling are separate operations: the compiler uses no wide registers in a loop over rows that contains the loops of
//! both.

use std::iter::repeat;

use super::map::make_each;
use super::sum::is_plain_sum;
use super::truncate::product;
use crate::element::{Dtype, Real};
use crate::isa::{Level, Op};
use crate::scaled::{FromNorm, Limit};

/// The most rows per call.
pub const MAX_ROWS_AT_ONCE: usize = 32;

/// Rows of fewer elements are scaled together with the elements after them. The last elements of longer rows are scaled as a
/// chunk of this length.
const CHUNK: usize = 32;

/// Scales rows of elements of type T; those of 16 bits have been converted to float32. Each row has a factor of its own, as
/// [`Times`](super::scale::Times) requires it.
pub struct ScaleRows<'a, T: Real, const TOWARD_ZERO: bool> {
    /// The rows to read, as many as in `to`. None: `to` is read.
    pub from: Option<&'a [T::Norm]>,
    /// The rows to write. Results of 16 bits are still to be rounded.
    pub to: &'a mut [T::Norm],
    /// The length of a row.
    pub len: usize,
    /// The factor of each row.
    pub factors: &'a [f64],
}

impl<T: Real, const TOWARD_ZERO: bool> Op for ScaleRows<'_, T, TOWARD_ZERO> {
    type Output = ();
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        match self.len {
            0..=1 => self.padded::<1>(),
            2..=4 => self.padded::<4>(),
            5..=8 => self.padded::<8>(),
            9..=16 => self.padded::<16>(),
            17..=24 => self.padded::<24>(),
            25..CHUNK => self.padded::<CHUNK>(),
            _ => self.long(),
        }
    }
}

impl<T: Real, const TOWARD_ZERO: bool> ScaleRows<'_, T, TOWARD_ZERO> {
    /// Scales rows of at most `N` elements and at least half as many. The elements that are written after a row are overwritten
    /// by the next row. In place, the next row is read before this row is written, and nothing that was written is read again.
    #[inline(always)]
    fn padded<const N: usize>(self) {
        let Self { from, to, len, factors } = self;
        let (mut at, mut factors) = (0, factors.iter());
        let read =
            |to: &[T::Norm], at| from.map_or(to, |from| &from[..to.len()])[at..].first_chunk::<N>().copied();
        if let Some(mut row) = read(to, 0) {
            while let Some(next) = read(to, at + len)
                && let (Some(by), Some(to)) = (factors.next(), to[at..].first_chunk_mut())
            {
                *to = Self::scaled(&row, *by);
                (row, at) = (next, at + len);
            }
            if let Some(by) = factors.next() {
                to[at..at + len].copy_from_slice(&Self::scaled(&row, *by)[..len]);
                at += len;
            }
        }
        // Too few elements follow the last rows.
        for (by, at) in factors.zip((at..).step_by(len)) {
            for i in at..at + len {
                to[i] = product::<T, _, TOWARD_ZERO>(from.unwrap_or(to)[i], *by);
            }
        }
    }

    /// Scales rows of at least [`CHUNK`] elements.
    #[inline(always)]
    fn long(self) {
        let Self { mut from, to, len, factors } = self;
        for (to, by) in to.chunks_exact_mut(len).zip(factors) {
            let from = from.as_mut().and_then(|from| from.split_off(..len));
            if from.is_none() && *by == 1.0 {
                continue;
            }
            // The last chunk overlaps the one before it. In place, it is read before that one is written.
            let last = from.unwrap_or(to).last_chunk::<CHUNK>().filter(|_| !len.is_multiple_of(CHUNK));
            let last = last.map(|last| Self::scaled(last, *by));
            // A loop over elements: the compiler would vectorize a loop over chunks by gathers.
            let whole = to.as_chunks_mut::<CHUNK>().0.as_flattened_mut();
            make_each(from, whole, repeat(*by), product::<T, _, TOWARD_ZERO>);
            if let (Some(last), Some(to)) = (last, to.last_chunk_mut()) {
                *to = last;
            }
        }
    }

    /// Scales a copy: the compiler does not vectorize a loop whose output may overlap its input or the factors.
    #[inline(always)]
    fn scaled<const N: usize>(from: &[T::Norm; N], by: f64) -> [T::Norm; N] {
        let mut made = *from;
        for x in &mut made {
            *x = product::<T, _, TOWARD_ZERO>(*x, by);
        }
        made
    }
}

/// The number of rows of `len` elements per call, so that they stay in the L1 cache.
pub fn at_once<T>(len: usize) -> usize {
    ((16 << 10) / size_of::<T>()).div_ceil(len).min(MAX_ROWS_AT_ONCE)
}

/// Computes the Euclidean norms of slices from their sums of squares, or copies sums that are norms. Returns whether all are
/// plain: a sum outside of float64's range, or near its lower end, may have lost digits.
pub struct PlainNorms<'a, N> {
    /// The sum of each slice.
    pub sums: &'a [f64],
    /// Whether a sum of 0 is exact. Otherwise its terms may have underflowed.
    pub exact_zeros: bool,
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
            are_plain &= is_plain_sum(sum) | (self.exact_zeros & (sum == 0.0));
            *norm = N::of_plain(if self.roots { sum.sqrt() } else { sum });
        }
        are_plain
    }
}

/// Computes the factors of slices from their sums of squares, or from sums that are norms: `limit` over the norm, or 1 for norms
/// that stay as they are. A factor of 0 means that the caller must compute it another way, and the norm too: the sum may have lost
/// digits, or is infinite or NaN. Returns whether there is no such factor.
pub struct PlainFactors<'a, N> {
    /// The sum of each slice.
    pub sums: &'a [f64],
    /// See [`PlainNorms::exact_zeros`]. Then slices of zeros stay as they are, unless the limit is 0 or NaN.
    pub exact_zeros: bool,
    /// Whether the norms are the square roots of the sums.
    pub roots: bool,
    /// The largest norm.
    pub limit: Limit,
    /// Whether norms that do not exceed the limit stay as they are.
    pub keeps: bool,
    /// The factors to write, one for each slice.
    pub factors: &'a mut [f64],
    /// The norms to write; none, or one for each slice.
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
        let keeps_zeros = self.exact_zeros & (limit > 0.0);
        if self.roots {
            for (factor, &sum) in self.factors.iter_mut().zip(self.sums) {
                *factor = sum.sqrt();
            }
        } else {
            self.factors.copy_from_slice(self.sums);
        }
        for (norm, root) in self.norms.iter_mut().zip(&*self.factors) {
            *norm = N::of_plain(*root);
        }
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
            let other = if keeps_zeros & (sum == 0.0) { 1.0 } else { 0.0 };
            *factor = if is_plain_sum(sum) { plain } else { other };
        }
        self.factors.iter().fold(true, |all, factor| all & (*factor != 0.0))
    }
}
