//! Columns: slices that lie side by side in memory. Rows are added to one accumulator per column.

use std::array;
use std::ops::{Range, RangeInclusive};

use super::order::{Order, Reduction};
use super::pass::{CHUNK, norm_of_slice_with, with_direct_term, with_term};
use crate::element::Element;
use crate::error::{Result, vec_with_room};
use crate::isa::{Aligned, Isa};
use crate::kernel::max::MaxRow;
use crate::kernel::sum::{AddRow, AddRows, FoldRows, PREFETCH_MIN_ELEMENTS, ROWS, ROWS_AT_ONCE, Term, Total};
use crate::parallel::share_out;
use crate::scaled::Scaled;
use crate::walk::Slices;

/// Columns that one thread reduces at a time where rows are gathered or runs are merged: their accumulators and the
/// gathered rows stay in the innermost cache.
const STRIP: usize = 512;

/// Columns of dense matrices that one thread sums at a time: pieces of rows so long keep the memory busy, and their
/// accumulators, 16 KiB, stay in the innermost cache.
const WIDE: usize = 2048;

/// The same where a column has one accumulator and no more: that each row is read for longer than a page counts more.
const WIDEST: usize = 2 * WIDE;

/// Bytes of rows that are added one by one if they follow each other in memory and no cache holds them. Memory is then read in
/// order, which takes half to a third of the time of four rows at once. Shorter rows lie in so few cache lines that the order does
/// not matter; the accumulators of longer ones do not stay in the innermost cache.
const ROW_BYTES: RangeInclusive<usize> = 256..=16 << 10;

/// Rows of a matrix of `columns` columns whose sums are made in one run. Longer columns are cut into runs whose results are merged in
/// order, so that a narrow matrix has work for all threads. Where they are cut depends on the shape alone.
pub(in crate::parallel) fn run_of_columns(columns: usize) -> usize {
    (CHUNK / columns.clamp(1, STRIP)).next_multiple_of(ROWS)
}

/// The width of the dense matrices whose columns the slices are, if they are wide: no longer than a run, or one matrix alone.
fn dense_width<T: Element>(slices: &Slices<'_, T>) -> Option<usize> {
    let (block, columns) = (slices.block()?, slices.kept.len());
    let is_cut_by_matrix = block.len <= run_of_columns(columns) || block.inner == columns;
    (block.inner >= STRIP && is_cut_by_matrix).then_some(block.inner)
}

/// The largest magnitudes of columns.
pub(super) fn column_maxima<T: Element, R: Send>(
    isa: Isa,
    slices: &Slices<'_, T>,
    norms: &mut [R],
    make: impl Fn(Scaled) -> R + Sync,
) -> Result<()> {
    let raise = |columns, range, gathered: &mut [_], max: &mut [T::Magnitude]| {
        let mut rows = Rows::new(slices, columns, gathered);
        for at in range {
            let [row] = rows.read(at);
            isa.run(MaxRow { max: &mut *max, row });
        }
    };
    let finish = |_, max| make(Scaled::new(T::from_magnitude(max), 0));
    if let Some(width) = dense_width(slices) {
        let reduce = |columns, range: Range<usize>, max: &mut [_]| raise(columns, range, &mut [], max);
        return reduce_columns::<WIDEST, _, _, _>(slices, width, norms, reduce, Ord::max, finish);
    }
    let reduce = |columns, range: Range<usize>, max: &mut [_]| {
        raise(columns, range, &mut [[T::ZERO; STRIP]], max);
    };
    reduce_columns::<STRIP, _, _, _>(slices, slices.kept.len(), norms, reduce, Ord::max, finish)
}

/// The norms of columns whose first pass is a sum.
pub(super) fn column_norms<T: Element, R: Send>(
    isa: Isa,
    slices: &Slices<'_, T>,
    order: Order,
    first: Reduction,
    norms: &mut [R],
    make: impl Fn(Scaled) -> R + Sync,
) -> Result<()> {
    let finish_sum = |at, sum| make(norm_of_slice_with(isa, slices, at, order, sum));
    let finish = |at, total: Total| finish_sum(at, total.value());
    let merge = |mut total: Total, run| {
        total.merge(run);
        total
    };
    let is_direct = T::DIRECT && matches!(first, Reduction::Abs | Reduction::Square);
    match dense_width(slices) {
        Some(width) if is_direct && slices.reduced.len() <= ROWS => {
            // One accumulator is the total.
            let reduce = |columns, range: Range<usize>, sums: &mut [f64]| {
                let rows = &mut Rows::new(slices, columns, &mut []);
                with_direct_term!(first, term => add_rows(isa, range, rows, None, term, sums));
            };
            let merge = |sum, run| sum + run;
            reduce_columns::<WIDEST, _, _, _>(slices, width, norms, reduce, merge, finish_sum)
        }
        Some(width) if is_direct => {
            let reduce = |columns, range: Range<usize>, totals: &mut [Total]| {
                let rows = &mut Rows::new(slices, columns, &mut []);
                with_direct_term!(first, term => add_columns(isa, range, rows, None, term, totals));
            };
            reduce_columns::<WIDE, _, _, _>(slices, width, norms, reduce, merge, finish)
        }
        _ => {
            let reduce = |columns, range: Range<usize>, totals: &mut [Total]| {
                let Aligned(gathered) = &mut Aligned([[T::ZERO; STRIP]; ROWS_AT_ONCE]);
                let rows = &mut Rows::new(slices, columns, gathered);
                if is_direct {
                    with_direct_term!(first, term => add_columns(isa, range, rows, None, term, totals));
                } else {
                    add_widened(isa, range, rows, first, totals);
                }
            };
            reduce_columns::<STRIP, _, _, _>(slices, slices.kept.len(), norms, reduce, merge, finish)
        }
    }
}

/// Fills `norms` from columns of matrices that are `width` columns wide, on all threads: `reduce(columns, rows, accumulators)`
/// for at most `PIECE` columns and a run of rows at a time, `merge` for the runs of a column, `finish` with its number.
fn reduce_columns<const PIECE: usize, T: Element, A: Copy + Default + Send, R: Send>(
    slices: &Slices<'_, T>,
    width: usize,
    norms: &mut [R],
    reduce: impl Fn(Range<usize>, Range<usize>, &mut [A]) + Sync,
    merge: impl Fn(A, A) -> A + Sync,
    finish: impl Fn(usize, A) -> R + Sync,
) -> Result<()> {
    let (columns, len) = (slices.kept.len(), slices.reduced.len());
    let bytes = columns * len * size_of::<T>();
    let run = run_of_columns(columns);
    if len <= run {
        let pieces = norms.chunks_mut(width).enumerate().flat_map(|(matrix, norms)| {
            let pieces = norms.chunks_mut(PIECE).enumerate();
            pieces.map(move |(i, norms)| (matrix * width + i * PIECE, norms))
        });
        return share_out(bytes, pieces, |(first, norms)| {
            let accumulators = &mut Aligned([A::default(); PIECE]).0[..norms.len()];
            reduce(first..first + norms.len(), 0..len, accumulators);
            for (at, (norm, accumulator)) in (first..).zip(norms.iter_mut().zip(accumulators)) {
                *norm = finish(at, *accumulator);
            }
        });
    }
    // The results of a piece of columns follow each other, run by run.
    let runs = len.div_ceil(run);
    let mut results = vec_with_room(columns * runs)?;
    results.resize(columns * runs, A::default());
    let jobs = results.chunks_mut(PIECE * runs).enumerate().flat_map(|(piece, results)| {
        let wide = results.len() / runs;
        results.chunks_mut(wide).enumerate().map(move |(i, results)| (piece * PIECE, i * run, results))
    });
    share_out(bytes, jobs, |(first, row, results)| {
        reduce(first..first + results.len(), row..len.min(row + run), results);
    })?;
    let pieces = results.chunks_mut(PIECE * runs).zip(norms.chunks_mut(PIECE)).enumerate();
    share_out(bytes, pieces, |(piece, (results, norms))| {
        let (merged, later) = results.split_at_mut(norms.len());
        for run in later.chunks(norms.len()) {
            for (total, part) in merged.iter_mut().zip(run) {
                *total = merge(*total, *part);
            }
        }
        for (at, (norm, total)) in (piece * PIECE..).zip(norms.iter_mut().zip(merged)) {
            *norm = finish(at, *total);
        }
    })
}

/// Rows of some neighbouring columns, as a kernel reads them.
pub(in crate::parallel) trait ReadRows<T> {
    /// `N` rows from number `at` on, at most [`ROWS_AT_ONCE`].
    fn read<const N: usize>(&mut self, at: usize) -> [&[T]; N];
    /// Whether rows are best added one by one.
    fn is_sequential(&self) -> bool {
        false
    }
}

/// Rows as they are. `gathered` is for as many rows as are read at a time, or empty if all lie side by side in memory.
struct Rows<'a, T> {
    slices: &'a Slices<'a, T>,
    columns: Range<usize>,
    gathered: &'a mut [[T; STRIP]],
    is_sequential: bool,
}

impl<'a, T: Element> Rows<'a, T> {
    fn new(slices: &'a Slices<'a, T>, columns: Range<usize>, gathered: &'a mut [[T; STRIP]]) -> Self {
        let is_whole = slices.block().is_some_and(|block| block.inner == columns.len());
        let is_large = slices.kept.len() * slices.reduced.len() >= PREFETCH_MIN_ELEMENTS;
        let is_sequential = is_whole && is_large && ROW_BYTES.contains(&(columns.len() * size_of::<T>()));
        Self { slices, columns, gathered, is_sequential }
    }
}

impl<T: Element> ReadRows<T> for Rows<'_, T> {
    #[inline]
    fn read<const N: usize>(&mut self, at: usize) -> [&[T]; N] {
        let mut gathered = self.gathered.iter_mut();
        array::from_fn(|i| {
            let scratch: &mut [T] = gathered.next().map_or(&mut [], |row| row);
            self.slices.row(at + i, self.columns.clone(), scratch)
        })
    }

    fn is_sequential(&self) -> bool {
        self.is_sequential
    }
}

/// Rows that are made float64.
struct WidenedRows<'a, 'b, T> {
    isa: Isa,
    rows: &'a mut Rows<'b, T>,
    pass: Reduction,
    limb: usize,
    widened: &'a mut [[f64; STRIP]; ROWS_AT_ONCE],
}

impl<T: Element> ReadRows<f64> for WidenedRows<'_, '_, T> {
    fn read<const N: usize>(&mut self, at: usize) -> [&[f64]; N] {
        let mut widened = self.widened.iter_mut();
        self.rows.read(at).map(|row| match widened.next() {
            Some(widened) => {
                let widened = &mut widened[..row.len()];
                self.pass.widen(self.isa, row, widened, self.limb);
                &*widened
            }
            None => &[],
        })
    }
}

/// Adds rows by way of float64 to one total per column.
fn add_widened<T: Element>(
    isa: Isa,
    range: Range<usize>,
    rows: &mut Rows<'_, T>,
    pass: Reduction,
    totals: &mut [Total],
) {
    let Aligned(widened) = &mut Aligned([[0.0; STRIP]; ROWS_AT_ONCE]);
    let mut rows = WidenedRows { isa, rows, pass, limb: 0, widened };
    for limb in 0..pass.limbs::<T>() {
        rows.limb = limb;
        with_term!(pass, term => add_columns(isa, range.clone(), &mut rows, None, term, totals));
    }
}

/// Adds rows to one total per column, at most [`WIDE`] columns. `next`: see [`AddRows`].
pub(in crate::parallel) fn add_columns<T: Element>(
    isa: Isa,
    range: Range<usize>,
    rows: &mut impl ReadRows<T>,
    next: Option<usize>,
    term: impl Term<T>,
    totals: &mut [Total],
) {
    let sums = &mut Aligned([0.0; WIDE]).0[..totals.len()];
    for from in range.clone().step_by(ROWS) {
        add_rows(isa, from..range.end.min(from + ROWS), rows, next, term, sums);
        isa.run(FoldRows { totals, sums });
    }
}

/// Adds at most [`ROWS`] rows to one accumulator per column.
fn add_rows<T: Element>(
    isa: Isa,
    range: Range<usize>,
    rows: &mut impl ReadRows<T>,
    next: Option<usize>,
    term: impl Term<T>,
    sums: &mut [f64],
) {
    let tail = if rows.is_sequential() { range.start } else { range.end - range.len() % ROWS_AT_ONCE };
    for at in (range.start..tail).step_by(ROWS_AT_ONCE) {
        isa.run(AddRows { sums, rows: rows.read(at), term, next });
    }
    for at in tail..range.end {
        let [row] = rows.read(at);
        isa.run(AddRow { sums, row, term });
    }
}
