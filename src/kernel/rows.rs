//! Rows of a matrix, many in one call: a call for each costs much of the time of short rows.
//!
//! Their sums are [`SumRows`](super::sum::SumRows). Sums and scaling are separate operations: the compiler uses no wide
//! registers in a loop over rows that contains the loops of both.

use super::scale::{is_plain, is_truncated, scaled, truncated_by_any};
use super::truncate::truncated;
use crate::element::Real;
use crate::isa::{Level, Op, StreamSink, StreamSource, prefetch, prefetch_distance};
use crate::scaled::Factor;

/// The most rows per call.
pub const MAX_ROWS_AT_ONCE: usize = 32;

/// The number of rows of `len` elements per call, so that they stay in the L1 cache.
#[must_use]
pub fn at_once<T>(len: usize) -> usize {
    ((16 << 10) / size_of::<T>()).div_ceil(len).min(MAX_ROWS_AT_ONCE)
}

/// The number of rows of `len` elements per call where the output is streamed to memory: so few that it fits the write buffers
/// of the CPU, which drain while the next rows are read.
#[must_use]
pub fn streamed_at_once<T>(len: usize) -> usize {
    (STREAMED_BYTES / size_of::<T>() / len).clamp(1, MAX_ROWS_AT_ONCE)
}

/// Bytes of rows that are streamed at once: 64 cache lines. On a Xeon, 8 KiB take 1.25 times as long.
const STREAMED_BYTES: usize = 4 << 10;

/// Scales each row by its factor, in place or from another slice. A factor of 1 keeps the bits of finite numbers; in place, it
/// writes nothing.
pub struct ScaleRows<'a, T> {
    /// Read, as many elements; None: `to` is read.
    pub from: Option<&'a [T]>,
    /// Written.
    pub to: &'a mut [T],
    /// Elements of a row.
    pub len: usize,
    /// Normal numbers, one per row.
    pub factors: &'a [f64],
    /// Whether products are rounded toward zero.
    pub toward_zero: bool,
}

impl<T: Real> Op for ScaleRows<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        if self.toward_zero { self.by(truncated) } else { self.by(|x, by| T::narrow(x.widen() * by)) }
    }
}

impl<T: Real> ScaleRows<'_, T> {
    #[inline(always)]
    fn by(self, scaled: impl Fn(T, f64) -> T) {
        let rows = self.to.chunks_exact_mut(self.len).zip(self.factors);
        if let Some(from) = self.from {
            for ((to, by), from) in rows.zip(from.chunks_exact(self.len)) {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = scaled(*from, *by);
                }
            }
        } else {
            for (row, by) in rows {
                if *by != 1.0 {
                    for x in row {
                        *x = scaled(*x, *by);
                    }
                }
            }
        }
    }
}

/// Computes the factors of rows from their sums of squares: `limit` over the norm, or 1 for norms that stay as they are. A
/// factor of 0 means that the caller must compute it another way: the sum may have lost digits, or is infinite or NaN.
pub struct PlainFactors<'a> {
    /// The sum of squares of each row.
    pub sums: &'a [f64],
    /// The smallest sum that has lost no digits.
    pub smallest: f64,
    /// The largest norm.
    pub limit: f64,
    /// The divisor of norms.
    pub over: f64,
    /// The share of the limit up to which norms stay as they are, and the share to which larger norms are scaled.
    pub shares: (f64, f64),
    /// Whether norms that do not exceed the limit stay as they are.
    pub keeps: bool,
    /// Written, as many.
    pub factors: &'a mut [f64],
}

impl Op for PlainFactors<'_> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        let (limit, (most, share)) = (self.limit, self.shares);
        let normal = f64::MIN_POSITIVE..=f64::MAX;
        // With a limit of 0, no norm is kept here: a norm of 0 is left to the caller.
        let (keeps, clips) = (self.keeps & (limit > 0.0), normal.contains(&limit));
        for (factor, &sum) in self.factors.iter_mut().zip(self.sums) {
            *factor = sum.sqrt();
        }
        // A division takes as long as the rest of this function.
        if self.over != 1.0 {
            for norm in &mut *self.factors {
                *norm /= self.over;
            }
        }
        for (factor, &sum) in self.factors.iter_mut().zip(self.sums) {
            let norm = *factor;
            let by = limit / norm * share;
            let clipped = if clips & normal.contains(&by) { by } else { 0.0 };
            let plain = if keeps & (norm <= limit * most) { 1.0 } else { clipped };
            *factor = if (self.smallest..=f64::MAX).contains(&sum) { plain } else { 0.0 };
        }
    }
}

/// Rows, each scaled by its own factor, as a stream source.
pub struct ScaledRows<'a, T> {
    from: &'a [T],
    len: usize,
    /// The factors of the rows of one call of `read`.
    factors: &'a mut [Factor],
    read: &'a mut dyn FnMut(&mut [Factor]),
    /// The number of factors that were used.
    used: usize,
    /// The factor of the current row.
    factor: Factor,
    /// The elements of the current row that are still to be read.
    left: usize,
}

impl<'a, T> ScaledRows<'a, T> {
    /// `from` has rows of `len` elements, at least a cache line. `read` fills in the factors of the next rows, as many as
    /// `factors` has. It is not inlined into the loops here, whose registers it would take.
    pub fn new(
        from: &'a [T],
        len: usize,
        factors: &'a mut [Factor],
        read: &'a mut dyn FnMut(&mut [Factor]),
    ) -> Self {
        let used = factors.len();
        Self { from, len, factors, read, used, factor: Factor::ONE, left: 0 }
    }

    #[inline(always)]
    fn next_row(&mut self) {
        if self.used == self.factors.len() {
            (self.read)(self.factors);
            self.used = 0;
        }
        self.factor = self.factors[self.used];
        self.used += 1;
        self.left += self.len;
    }
}

impl<T: Real> StreamSource<T> for ScaledRows<'_, T> {
    #[inline(always)]
    fn fill<const N: usize, L: Level>(
        &mut self,
        _: L,
        mut places: StreamSink<'_, T, N, impl Fn(&[T; N], &mut [T; N])>,
    ) {
        let distance = prefetch_distance();
        while places.left() > 0 {
            if self.left < N {
                // A cache line with the end of a row and the beginning of the next.
                let (ahead, first) = (self.left, self.factor);
                self.next_row();
                if ahead > 0 {
                    let line = self.from.split_off(..N).unwrap_or_default();
                    self.left -= N;
                    fill_lines(line, &mut places, ahead, [first, self.factor], distance);
                }
            }
            let count = (self.left / N).min(places.left());
            let lines = self.from.split_off(..count * N).unwrap_or_default();
            self.left -= count * N;
            fill_lines(lines, &mut places, 0, [self.factor; 2], distance);
        }
    }
}

/// Scales lines to the next places: the first `ahead` elements of each by the first factor, the others by the second.
#[inline(always)]
fn fill_lines<T: Real, const N: usize>(
    from: &[T],
    places: &mut StreamSink<'_, T, N, impl Fn(&[T; N], &mut [T; N])>,
    ahead: usize,
    factors: [Factor; 2],
    distance: usize,
) {
    let factor = |j| if j < ahead { factors[0] } else { factors[1] };
    if factors.into_iter().all(is_plain) {
        fill_lines_by(from, places, distance, |j, x| T::narrow(x.widen() * factor(j).by));
    } else if factors.into_iter().all(is_truncated) {
        fill_lines_by(from, places, distance, |j, x| truncated(x, factor(j).by));
    } else {
        fill_lines_by(from, places, distance, |j, x| by_any(x, factor(j)));
    }
}

/// Passes each element, with its place in the line, to `scaled`, and writes the lines to the next places.
#[inline(always)]
fn fill_lines_by<T: Real, const N: usize>(
    from: &[T],
    places: &mut StreamSink<'_, T, N, impl Fn(&[T; N], &mut [T; N])>,
    distance: usize,
    scaled: impl Fn(usize, T) -> T,
) {
    for from in from.as_chunks::<N>().0 {
        prefetch(from, distance);
        let mut elements = [T::ZERO; N];
        for j in 0..N {
            elements[j] = scaled(j, from[j]);
        }
        places.fill_next(&elements);
    }
}

/// The product with any factor, rounded as the factor says.
#[inline(always)]
fn by_any<T: Real>(x: T, factor: Factor) -> T {
    if factor.toward_zero { truncated_by_any(x, factor) } else { scaled(x, factor) }
}
