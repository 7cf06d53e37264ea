//! Rows of a matrix, many in one go: what a call for each would cost shows in short ones.
//!
//! Their sums are [`Sum`](super::sum::Sum)s, one by one: a loop over rows around its loops gets no wide registers.

use crate::element::Real;
use crate::isa::Op;

/// Rows to do at once, at most.
pub const AT_ONCE: usize = 32;

/// Rows of `len` elements to do at once: they stay in the innermost cache.
#[must_use]
pub fn at_once<T>(len: usize) -> usize {
    ((16 << 10) / size_of::<T>() / len).clamp(1, AT_ONCE)
}

/// Scales each row by its factor, from one slice to another. 1 keeps what is finite bit for bit.
#[derive(Debug)]
pub struct ScaleRowsInto<'a, T> {
    /// Read.
    pub from: &'a [T],
    /// Written, as many elements.
    pub to: &'a mut [T],
    /// Elements of a row.
    pub len: usize,
    /// Normal numbers, one per row.
    pub factors: &'a [f64],
}

impl<T: Real> Op for ScaleRowsInto<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval(self) {
        let rows = self.from.chunks_exact(self.len).zip(self.to.chunks_exact_mut(self.len));
        for ((from, to), by) in rows.zip(self.factors) {
            for (to, from) in to.iter_mut().zip(from) {
                *to = T::narrow(from.widen() * by);
            }
        }
    }
}

/// The same in place; a row with the factor 1 is not written.
#[derive(Debug)]
pub struct ScaleRows<'a, T> {
    /// Read and written.
    pub data: &'a mut [T],
    /// Elements of a row.
    pub len: usize,
    /// Normal numbers, one per row.
    pub factors: &'a [f64],
}

impl<T: Real> Op for ScaleRows<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval(self) {
        for (row, by) in self.data.chunks_exact_mut(self.len).zip(self.factors) {
            if *by != 1.0 {
                for x in row {
                    *x = T::narrow(x.widen() * by);
                }
            }
        }
    }
}

/// Scales each element of a row by the factor of its column, from one slice to another.
#[derive(Debug)]
pub struct ScaleColumnsInto<'a, T> {
    /// Read.
    pub from: &'a [T],
    /// Written, as many elements.
    pub to: &'a mut [T],
    /// Normal numbers, one per column.
    pub factors: &'a [f64],
}

impl<T: Real> Op for ScaleColumnsInto<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval(self) {
        for ((to, from), by) in self.to.iter_mut().zip(self.from).zip(self.factors) {
            *to = T::narrow(from.widen() * by);
        }
    }
}

/// The same in place.
#[derive(Debug)]
pub struct ScaleColumns<'a, T> {
    /// Read and written.
    pub data: &'a mut [T],
    /// Normal numbers, one per column.
    pub factors: &'a [f64],
}

impl<T: Real> Op for ScaleColumns<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval(self) {
        for (x, by) in self.data.iter_mut().zip(self.factors) {
            *x = T::narrow(x.widen() * by);
        }
    }
}
