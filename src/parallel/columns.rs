//! Columns: slices that lie side by side in dense matrices, clipped strip by strip while the cache has a strip.

use super::elementwise::is_streamed;
use super::reduce::{Order, Reduction, WIDE, add_columns, norm_of_view_with, run_of_columns};
use super::rows::Rule;
use super::share_out;
use crate::element::Real;
use crate::error::{Result, vec_with_room};
use crate::isa::{Aligned, Isa, StreamGuard};
use crate::kernel::rows::{ScaleColumns, ScaleColumnsInto};
use crate::kernel::scale::{ScaleEach, ScaleEachInto};
use crate::kernel::sum::{ROWS_AT_ONCE, Total};
use crate::scaled::Factor;
use crate::walk::View;

/// Columns that are clipped at a time, and their parts of the rows of the output.
struct Strip<'a, T> {
    /// The first column, counted over all matrices.
    first: usize,
    rows: Vec<&'a mut [T]>,
}

/// Clips each column of dense matrices by its own norm: a strip of columns is scaled while the cache has it. The
/// output is the input too if there is no `source`.
///
/// # Errors
/// No memory for the list of strips, or a bad setting of the threads.
pub fn clip_columns<T: Real>(
    isa: Isa,
    source: Option<&[T]>,
    output: &mut [T],
    [len, inner]: [usize; 2],
    limit: f64,
) -> Result<()> {
    let width = columns_at_once::<T>(len).min(inner);
    let bytes = size_of_val(output) * 2;
    let streams = is_streamed(bytes / 2);
    // Parts of rows are too short for a CPU to see how it goes on. Where a cache holds all, to ask only takes time.
    let next = streams.then_some(ROWS_AT_ONCE * inner * size_of::<T>());
    let mut strips: Vec<Strip<'_, T>> = vec_with_room(output.len() / len / inner * inner.div_ceil(width))?;
    for (outer, matrix) in output.chunks_mut(len * inner).enumerate() {
        let before = strips.len();
        for first in (0..inner).step_by(width) {
            strips.push(Strip { first: outer * inner + first, rows: vec_with_room(len)? });
        }
        for row in matrix.chunks_mut(inner) {
            for (part, strip) in row.chunks_mut(width).zip(&mut strips[before..]) {
                strip.rows.push(part);
            }
        }
    }
    let work = |mut strip: Strip<'_, T>| {
        let columns = strip.rows.first().map_or(0, |row| row.len());
        let from = |row: usize| {
            let begin = (strip.first / inner * len + row) * inner + strip.first % inner;
            source.map(|source| &source[begin..begin + columns])
        };
        let totals = &mut Aligned([Total::default(); WIDE]).0[..columns];
        let row = |row: usize| from(row).unwrap_or(&*strip.rows[row]);
        add_columns(isa, len, row, next, Reduction::Square, totals);
        let factors = &mut Aligned([1.0; WIDE]).0[..columns];
        let sums = &mut Aligned([0.0; WIDE]).0[..columns];
        sums.iter_mut().zip(&*totals).for_each(|(sum, total)| *sum = total.value());
        Rule::Clip(limit).plain_factors(isa, sums, factors);
        let mut then = None;
        if factors.contains(&0.0) {
            // Read one by one, before anything is written.
            let then = &mut *then.insert([1.0; WIDE]);
            for (i, sum) in sums.iter().enumerate() {
                if factors[i] == 0.0 {
                    let mut column = [T::ZERO; LONGEST_COLUMN];
                    let column = &mut column[..len];
                    for (row, x) in column.iter_mut().enumerate() {
                        *x = from(row).unwrap_or(&*strip.rows[row])[i];
                    }
                    let norm = norm_of_view_with(isa, &View::Dense(column), Order::Two, *sum);
                    let factor = norm.clip_to(limit).unwrap_or(Factor::ONE);
                    (factors[i], then[i]) = (factor.by, factor.then);
                }
            }
        }
        if source.is_none() && factors.iter().all(|factor| *factor == 1.0) {
            return; // nothing is written
        }
        let guard = streams.then(StreamGuard::begin);
        for row in 0..len {
            let source = from(row);
            let to = &mut *strip.rows[row];
            match (source, then, &guard) {
                (None, None, _) => isa.run(ScaleColumns { data: to, factors }),
                (Some(from), None, None) => {
                    isa.run(ScaleColumnsInto { from, to, factors });
                }
                (Some(from), None, Some(guard)) => {
                    let mut made = [T::ZERO; STREAMED_COLUMNS];
                    let parts = from.chunks(STREAMED_COLUMNS).zip(factors.chunks(STREAMED_COLUMNS));
                    for (to, (from, factors)) in to.chunks_mut(STREAMED_COLUMNS).zip(parts) {
                        let made = &mut made[..from.len()];
                        isa.run(ScaleColumnsInto { from, to: made, factors });
                        isa.stream(guard, to, &*made);
                    }
                }
                (source, Some(then), _) => {
                    match source {
                        Some(from) => isa.run(ScaleEachInto { from, to, factors }),
                        None => isa.run(ScaleEach { data: to, factors }),
                    }
                    isa.run(ScaleEach { data: to, factors: &then[..columns] });
                }
            }
        }
    };
    let jobs = strips.into_iter();
    share_out(bytes, jobs, work)
}

/// Columns of `len` elements to clip at a time: half of what the cache of one core holds, wherever that is much.
fn columns_at_once<T>(len: usize) -> usize {
    ((512 << 10) / size_of::<T>() / len).min(WIDE)
}

/// Elements of a row to stream to memory at a time.
const STREAMED_COLUMNS: usize = 256;

/// The longest column for [`clip_columns`]: of longer ones a strip would be too narrow.
const LONGEST_COLUMN: usize = 1024;

/// Whether columns of matrices with so many rows and columns are for [`clip_columns`].
#[must_use]
pub fn is_column<T: Real>(columns: usize, [len, inner]: [usize; 2]) -> bool {
    let narrowest = 128;
    // Elements of 16 bits have kernels of their own, and longer columns are summed in more than one go.
    size_of::<T>() > 2
        && inner >= narrowest
        && (1..=LONGEST_COLUMN.min(run_of_columns(columns))).contains(&len)
        && columns_at_once::<T>(len) >= narrowest
}
