//! Columns: slices that lie side by side in dense matrices. A strip of columns is clipped while the cache holds it.

use std::array;

use super::elementwise::is_streamed;
use super::reduce::{Order, ReadRows, add_columns, norm_of_view_with, run_of_columns};
use super::rows::Rule;
use super::share_out;
use crate::element::Real;
use crate::error::{Result, vec_with_room};
use crate::isa::{Aligned, Isa, StreamGuard, prefetch_distance};
use crate::kernel::rows::{ScaleColumns, ScaleColumnsInto};
use crate::kernel::scale::{ScaleEach, ScaleEachInto};
use crate::kernel::sum::{ROWS_AT_ONCE, Square, Total};
use crate::scaled::{Factor, Limit};
use crate::walk::View;

/// The longest column for [`clip_columns`], in elements: of longer ones a strip would be too narrow.
const LONGEST_COLUMN: usize = 1024;

/// The most columns of a strip: their factors, sums and totals, 32 KiB, stay in the innermost cache.
const WIDEST_STRIP: usize = 1024;

/// Elements of a row that are made in the innermost cache before they are streamed to memory.
const STREAMED_COLUMNS: usize = 256;

/// Bytes of a strip: half of what the cache of one core holds, wherever that is much.
const STRIP_BYTES: usize = 512 << 10;

/// Columns of `len` elements to clip at a time.
fn columns_in_strip<T>(len: usize) -> usize {
    (STRIP_BYTES / size_of::<T>() / len).min(WIDEST_STRIP)
}

/// Whether columns of matrices of this shape are for [`clip_columns`].
#[must_use]
pub fn is_column<T: Real>(columns: usize, [len, inner]: [usize; 2]) -> bool {
    let narrowest = 128;
    // Elements of 16 bits have kernels of their own, and longer columns are summed in more than one run.
    size_of::<T>() > 2
        && inner >= narrowest
        && (1..=LONGEST_COLUMN.min(run_of_columns(columns))).contains(&len)
        && columns_in_strip::<T>(len) >= narrowest
}

/// Clips each column of dense matrices by its own norm. The output is the input too if there is no `source`.
///
/// # Errors
/// No memory for the list of strips, or a bad setting of the threads.
pub fn clip_columns<T: Real>(
    isa: Isa,
    source: Option<&[T]>,
    output: &mut [T],
    [len, inner]: [usize; 2],
    limit: impl Into<Limit>,
) -> Result<()> {
    let limit = limit.into();
    let bytes = size_of_val(output);
    let streams = is_streamed(bytes);
    // Parts of rows are too short for a CPU to predict the next one. Where a cache holds all, prefetching only takes time.
    let next = (streams && prefetch_distance() > 0).then_some(ROWS_AT_ONCE * inner * size_of::<T>());
    let strips = strips(source, output, [len, inner])?;
    share_out(bytes * 2, strips.into_iter(), |strip| strip.clip(isa, limit, next, streams))
}

/// Columns that are clipped at a time, and their parts of the rows.
struct Strip<'a, T> {
    /// The input from the first element of the strip on, unless the output is the input too.
    source: Option<&'a [T]>,
    /// Elements from a row of the matrix to the next.
    inner: usize,
    /// Parts of the rows of the output.
    rows: Vec<&'a mut [T]>,
}

/// Cuts matrices into strips.
fn strips<'a, T: Real>(
    source: Option<&'a [T]>,
    output: &'a mut [T],
    [len, inner]: [usize; 2],
) -> Result<Vec<Strip<'a, T>>> {
    let width = columns_in_strip::<T>(len).min(inner);
    let mut strips: Vec<Strip<'_, T>> = vec_with_room(output.len() / len / inner * inner.div_ceil(width))?;
    for (outer, matrix) in output.chunks_mut(len * inner).enumerate() {
        let before = strips.len();
        for first in (0..inner).step_by(width) {
            let source = source.map(|source| &source[outer * len * inner + first..]);
            strips.push(Strip { source, inner, rows: vec_with_room(len)? });
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

    /// Clips the columns. `next`: the bytes to the rows that are read next, if they are to be prefetched.
    fn clip(mut self, isa: Isa, limit: Limit, next: Option<usize>, streams: bool) {
        let factors = &mut Aligned([1.0; WIDEST_STRIP]).0[..self.columns()];
        let mut then = None;
        self.find_factors(isa, limit, next, factors, &mut then);
        let then = then.as_ref().map(|then| &then[..factors.len()]);
        if self.source.is_none() && factors.iter().all(|factor| *factor == 1.0) {
            return; // nothing is written
        }
        let guard = streams.then(StreamGuard::begin);
        for (row, to) in self.rows.iter_mut().enumerate() {
            let from = self.source.map(|source| &source[row * self.inner..][..to.len()]);
            scale_row(isa, from, to, (factors, then, limit.margin > 0.0), guard.as_ref());
        }
    }

    /// What the columns are multiplied by: `factors`, and `then` afterwards if a norm lies so far outside of float64's range
    /// that a factor has two steps.
    fn find_factors(
        &mut self,
        isa: Isa,
        limit: Limit,
        next: Option<usize>,
        factors: &mut [f64],
        then: &mut Option<[f64; WIDEST_STRIP]>,
    ) {
        let totals = &mut Aligned([Total::default(); WIDEST_STRIP]).0[..factors.len()];
        add_columns(isa, 0..self.rows.len(), self, next, Square, totals);
        let sums = &mut Aligned([0.0; WIDEST_STRIP]).0[..factors.len()];
        sums.iter_mut().zip(&*totals).for_each(|(sum, total)| *sum = total.value());
        let rule = Rule::Clip(limit);
        rule.plain_factors(isa, sums, factors);
        if rule.toward_zero() {
            *then = Some([1.0; WIDEST_STRIP]);
        }
        if !factors.contains(&0.0) {
            return;
        }
        // Columns whose factor is not plain are read one by one, before anything is written.
        let then = then.insert([1.0; WIDEST_STRIP]);
        for (column, sum) in sums.iter().enumerate() {
            if factors[column] == 0.0 {
                let mut elements = [T::ZERO; LONGEST_COLUMN];
                let elements = &mut elements[..self.rows.len()];
                for (row, x) in elements.iter_mut().enumerate() {
                    *x = self.row(row)[column];
                }
                let norm = norm_of_view_with(isa, &View::Dense(elements), Order::Two, Some(*sum));
                let factor = limit.factor(norm).unwrap_or(Factor::ONE);
                (factors[column], then[column]) = (factor.by, factor.then);
            }
        }
    }
}

impl<T: Real> ReadRows<T> for Strip<'_, T> {
    fn read<const N: usize>(&mut self, at: usize) -> [&[T]; N] {
        array::from_fn(|i| self.row(at + i))
    }
}

/// Scales a row by the factors of its columns; by those after them, too, if a factor has two steps or products are rounded
/// toward zero, as the last says. Without `from` it is scaled in place.
fn scale_row<T: Real>(
    isa: Isa,
    from: Option<&[T]>,
    to: &mut [T],
    (factors, then, toward_zero): (&[f64], Option<&[f64]>, bool),
    guard: Option<&StreamGuard>,
) {
    match (from, then, guard) {
        (from, Some(then), _) => {
            match from {
                Some(from) => isa.run(ScaleEachInto { from, to, factors, toward_zero }),
                None => isa.run(ScaleEach { data: to, factors, toward_zero }),
            }
            isa.run(ScaleEach { data: to, factors: then, toward_zero });
        }
        (None, None, _) => isa.run(ScaleColumns { data: to, factors }),
        (Some(from), None, None) => isa.run(ScaleColumnsInto { from, to, factors }),
        (Some(from), None, Some(guard)) => {
            let mut made = [T::ZERO; STREAMED_COLUMNS];
            let parts = from.chunks(STREAMED_COLUMNS).zip(factors.chunks(STREAMED_COLUMNS));
            for (to, (from, factors)) in to.chunks_mut(STREAMED_COLUMNS).zip(parts) {
                let made = &mut made[..from.len()];
                isa.run(ScaleColumnsInto { from, to: made, factors });
                isa.stream(guard, to, &*made);
            }
        }
    }
}
