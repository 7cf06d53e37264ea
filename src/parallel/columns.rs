//! Columns: slices that lie side by side in dense matrices. A strip of columns is clipped while the cache holds it.

use std::array;
use std::ops::Range;

use super::Crew;
use super::elementwise::is_streamed;
use super::reduce::{Order, ReadRows, WIDEST_STRIP, norm_of_view_with, run_of_columns, sum_columns};
use super::rows::Rule;
use crate::element::Real;
use crate::error::{Result, vec_with_room};
use crate::isa::{Aligned, Isa, StreamGuard, prefetch_distance};
use crate::kernel::scale_each::{FactorKind, ScaleEach};
use crate::kernel::sum::{ROWS_AT_ONCE, Square};
use crate::scaled::{Factor, FromNorm};
use crate::walk::{View, stream_made};

/// The length of the longest column for [`scale_columns`], in elements. A strip of longer columns would be too narrow.
const LONGEST_COLUMN: usize = 1024;

/// The bytes of a strip: half of the L2 cache, on CPUs with a large L2 cache.
const STRIP_BYTES: usize = 512 << 10;

/// The number of columns of `len` elements that are clipped at a time.
fn columns_in_strip<T>(len: usize) -> usize {
    (STRIP_BYTES / size_of::<T>() / len).min(WIDEST_STRIP)
}

/// Whether columns of matrices of this shape are for [`scale_columns`].
#[must_use]
pub fn is_column<T: Real>(columns: usize, [len, inner]: [usize; 2]) -> bool {
    // Columns. In narrower strips, the overhead of each row outweighs the second read that a strip saves.
    let narrowest = 128;
    // Elements of 16 bits have kernels of their own, and longer columns are summed in more than one run.
    size_of::<T>() > 2
        && inner >= narrowest
        && (1..=LONGEST_COLUMN.min(run_of_columns(columns))).contains(&len)
        && columns_in_strip::<T>(len) >= narrowest
}

/// Scales each column of dense matrices by its own norm. Without a `source`, the output is the input, too. `norms` gets the norm
/// of each column, or is empty.
///
/// # Errors
/// No memory for the list of strips, or an invalid setting of the number of threads.
pub fn scale_columns<T: Real>(
    isa: Isa,
    source: Option<&[T]>,
    output: &mut [T],
    shape @ [_, inner]: [usize; 2],
    rule: Rule,
    norms: &mut [T::Norm],
) -> Result<()> {
    let bytes = size_of_val(output);
    let streams = is_streamed(bytes);
    // Parts of rows are too short for the hardware prefetcher. If a cache holds all data, prefetching only takes time.
    let next = (streams && prefetch_distance() > 0).then_some(ROWS_AT_ONCE * inner * size_of::<T>());
    let strips = strips(source, output, shape, norms)?;
    Crew::new().each(bytes * 2, strips.into_iter(), |strip| strip.scale(isa, rule, next, streams))
}

/// The parts of the rows that belong to the columns of a strip.
struct Strip<'a, T: Real> {
    /// The input from the first element of the strip on, unless the output is the input too.
    source: Option<&'a [T]>,
    /// Elements from a row of the matrix to the next.
    inner: usize,
    /// Parts of the rows of the output.
    rows: Vec<&'a mut [T]>,
    /// The places of the norms; empty if the caller needs no norms.
    norms: &'a mut [T::Norm],
}

/// Cuts matrices into strips.
fn strips<'a, T: Real>(
    source: Option<&'a [T]>,
    output: &'a mut [T],
    [len, inner]: [usize; 2],
    mut norms: &'a mut [T::Norm],
) -> Result<Vec<Strip<'a, T>>> {
    let width = columns_in_strip::<T>(len).min(inner);
    let mut strips: Vec<Strip<'_, T>> = vec_with_room(output.len() / len / inner * inner.div_ceil(width))?;
    for (outer, matrix) in output.chunks_mut(len * inner).enumerate() {
        let before = strips.len();
        for first in (0..inner).step_by(width) {
            let source = source.map(|source| &source[outer * len * inner + first..]);
            let norms = norms.split_off_mut(..width.min(inner - first)).unwrap_or_default();
            strips.push(Strip { source, inner, rows: vec_with_room(len)?, norms });
        }
        for row in matrix.chunks_mut(inner) {
            for (part, strip) in row.chunks_mut(width).zip(&mut strips[before..]) {
                strip.rows.push(part);
            }
        }
    }
    Ok(strips)
}

impl<T: Real> Strip<'_, T> {
    fn columns(&self) -> usize {
        self.rows.first().map_or(0, |row| row.len())
    }

    /// A row of the input.
    fn row(&self, row: usize) -> &[T] {
        match self.source {
            Some(source) => &source[row * self.inner..][..self.columns()],
            None => &*self.rows[row],
        }
    }

    /// Scales the columns. `next`: the number of bytes to the rows that are read next, if they are to be prefetched.
    fn scale(mut self, isa: Isa, rule: Rule, next: Option<usize>, streams: bool) {
        let factors = &mut Aligned([1.0; WIDEST_STRIP]).0[..self.columns()];
        let mut then = None;
        let is_plain = self.find_factors(isa, rule, next, factors, &mut then);
        if self.source.is_none() && factors.iter().all(|factor| *factor == 1.0) {
            return; // nothing is written
        }
        let kind = FactorKind { is_plain, rounding: rule.rounding() };
        let guard = (streams && then.is_none()).then(StreamGuard::begin);
        for (row, to) in self.rows.iter_mut().enumerate() {
            let from = self.source.map(|source| &source[row * self.inner..][..to.len()]);
            match (from, &guard) {
                (Some(from), Some(guard)) => {
                    stream_made(isa, guard, from, to, |part, from, to| {
                        isa.run(ScaleEach { from: Some(from), to, factors: &factors[part], kind });
                    });
                }
                _ => isa.run(ScaleEach { from, to, factors, kind }),
            }
            if let Some(then) = &then {
                isa.run(ScaleEach { from: None, to, factors: &then[..factors.len()], kind });
            }
        }
    }

    /// Finds the factors and the norms of the columns. `then` gets the second steps of the factors if there are any: a norm that
    /// lies far outside of float64's range has a factor of two steps. Returns whether the factors are plain: see [`FactorKind`].
    fn find_factors(
        &mut self,
        isa: Isa,
        rule: Rule,
        next: Option<usize>,
        factors: &mut [f64],
        then: &mut Option<[f64; WIDEST_STRIP]>,
    ) -> bool {
        let sums = &mut Aligned([0.0; WIDEST_STRIP]).0[..factors.len()];
        sum_columns(isa, 0..self.rows.len(), self, next, Square, sums);
        if rule.plain_factors(isa, sums, factors, self.norms) {
            return true;
        }
        let mut are_plain = true;
        // Columns whose factor is still unknown are read one by one, before anything is written. The most frequent one is a
        // column of zeros.
        for (column, sum) in sums.iter().enumerate() {
            if factors[column] == 0.0 {
                let mut elements = [T::ZERO; LONGEST_COLUMN];
                let elements = &mut elements[..self.rows.len()];
                for (row, x) in elements.iter_mut().enumerate() {
                    *x = self.row(row)[column];
                }
                let norm = norm_of_view_with(isa, &View::Dense(elements), Order::Two, Some(*sum));
                let factor = rule.factor(norm).unwrap_or(Factor::ONE);
                factors[column] = factor.by;
                if factor.then != 1.0 {
                    then.get_or_insert([1.0; WIDEST_STRIP])[column] = factor.then;
                }
                are_plain &= factor.by.is_normal() && norm.is_finite();
                self.norms.get_mut(column).into_iter().for_each(|to| *to = T::Norm::of(norm));
            }
        }
        are_plain
    }
}

impl<T: Real> ReadRows<T> for Strip<'_, T> {
    fn read<const N: usize>(&mut self, at: usize) -> [&[T]; N] {
        array::from_fn(|i| self.row(at + i))
    }

    fn dense(&self, range: Range<usize>) -> Option<&[T]> {
        let source = self.source.filter(|_| self.columns() == self.inner)?;
        Some(&source[range.start * self.inner..range.end * self.inner])
    }
}
