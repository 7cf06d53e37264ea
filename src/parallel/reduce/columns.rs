//! Columns: slices that lie side by side in memory. Rows are added to one accumulator per column.

use std::ops::Range;
use std::{array, iter};

use super::order::{Order, Reduction};
use super::pass::{CHUNK, norms_of_slices, with_direct_term, with_term};
use crate::element::Element;
use crate::error::{Result, vec_with_room};
use crate::isa::{Aligned, Isa, LINE, on_stack};
use crate::kernel::max::MaxRow;
use crate::kernel::rows::PlainNorms;
use crate::kernel::sum::{
    Abs, AddDenseRows, AddRows, BLOCK, FoldRows, ROWS, ROWS_AT_ONCE, Term, Total, has_strips,
};
use crate::parallel::Crew;
use crate::scaled::{FromNorm, Scaled};
use crate::walk::{Slices, blocks_of, with_scratch};

/// Columns that one thread reduces at a time where rows are gathered or runs are merged. The accumulators and the gathered rows
/// stay in the L1 cache.
const STRIP: usize = 512;

/// Columns of dense matrices that one thread sums at a time. Pieces of rows of this length keep the memory busy, and the
/// accumulators, 16 KiB, stay in the L1 cache. The scratch memory has room for one block.
const WIDE: usize = BLOCK;

/// Columns of dense matrices that one thread reduces at a time where a column has a single accumulator: then it matters more that
/// each row is read for longer than a page.
const WIDEST: usize = 2 * WIDE;

/// The most columns that are scaled as soon as they are summed. Their factors, sums and totals, 32 KiB, stay in the L1 cache.
pub(in crate::parallel) const WIDEST_STRIP: usize = 1024;

/// The number of rows that are summed in one run, for a matrix of `columns` columns. Longer columns are cut into runs, whose
/// results are merged in order, so that a narrow matrix has work for all threads. The cuts depend on the shape alone.
pub(in crate::parallel) fn run_of_columns(columns: usize) -> usize {
    (CHUNK / columns.clamp(1, STRIP)).next_multiple_of(ROWS)
}

/// The columns of a matrix, and how many of them a thread reduces at a time: at most `wide` if the kernel `is_direct` and the matrices
/// are dense and not narrow.
fn widths<T: Element>(slices: &Slices<'_, T>, is_direct: bool, wide: usize) -> [usize; 2] {
    match slices.block() {
        Some([_, inner]) if is_direct && inner >= STRIP => [inner, wide],
        _ => [slices.kept.len(), STRIP],
    }
}

/// The largest magnitudes of columns.
pub(super) fn column_maxima<T: Element, N: FromNorm>(
    isa: Isa,
    slices: &Slices<'_, T>,
    norms: &mut [N],
) -> Result<()> {
    let raise = |rows: &mut Rows<'_, T>, range: Range<usize>, max: &mut [T::Magnitude]| {
        for at in range {
            let [row] = rows.read(at);
            isa.run(MaxRow { max: &mut *max, row });
        }
    };
    let finish = |_, maxima: &[T::Magnitude], norms: &mut [N]| {
        for (maxima, norms) in maxima.chunks(STRIP).zip(norms.chunks_mut(STRIP)) {
            let values = &mut [0.0; STRIP][..maxima.len()];
            values.iter_mut().zip(maxima).for_each(|(value, max)| *value = T::from_magnitude(*max));
            if !isa.run(PlainNorms { sums: values, exact_zeros: true, roots: false, norms: &mut *norms }) {
                norms.iter_mut().zip(values).for_each(|(norm, max)| *norm = N::of(Scaled::new(*max, 0)));
            }
        }
    };
    let merge = |max: &mut T::Magnitude, other| *max = (*max).max(other);
    reduce_columns::<WIDEST, _, _, _>(slices, widths(slices, true, WIDEST), norms, &raise, merge, &finish)
}

/// Computes the norms of columns, for an order whose first pass is a sum.
pub(super) fn column_norms<T: Element, N: FromNorm>(
    isa: Isa,
    slices: &Slices<'_, T>,
    order: Order,
    first: Reduction,
    norms: &mut [N],
) -> Result<()> {
    let is_direct = T::DIRECT && matches!(first, Reduction::Abs | Reduction::Square);
    let finish_sums = |from: usize, sums: &[f64], norms: &mut [N]| {
        let exact_zeros = match first {
            Reduction::Abs => true,
            Reduction::Square => (from..).step_by(STRIP).zip(sums.chunks(STRIP)).all(|(from, sums)| {
                let columns = from..from + sums.len();
                has_exact_zero_columns::<T>(sums, |sizes| {
                    let gathered = &mut [[T::ZERO; _]; ROWS_AT_ONCE];
                    Rows { slices, columns, gathered }.for_each_matrix(sizes, |rows, sizes| {
                        add_rows(isa, 0..slices.reduced.len(), rows, Abs, sizes);
                    });
                })
            }),
            _ => false,
        };
        norms_of_slices(isa, slices, from, order, (sums, exact_zeros), norms);
    };
    if is_direct && slices.reduced.len() <= ROWS {
        // The sum of so few rows needs no total: one accumulator holds it.
        let reduce = |rows: &mut Rows<'_, T>, range: Range<usize>, sums: &mut [f64]| {
            rows.for_each_matrix(sums, |rows, sums| {
                with_direct_term!(first, term => add_rows(isa, range.clone(), rows, term, sums));
            });
        };
        let (widths, merge) = (widths(slices, true, WIDEST), |sum: &mut f64, other| *sum += other);
        return reduce_columns::<WIDEST, _, _, _>(slices, widths, norms, &reduce, merge, &finish_sums);
    }
    let reduce = |rows: &mut Rows<'_, T>, range: Range<usize>, totals: &mut [Total]| {
        if is_direct {
            rows.for_each_matrix(totals, |rows, totals| {
                with_direct_term!(first, term => add_columns(isa, range.clone(), rows, term, totals));
            });
        } else {
            let Aligned(widened) = &mut Aligned([[0.0; STRIP]; ROWS_AT_ONCE]);
            for limb in 0..first.limbs::<T>() {
                let rows = &mut WidenedRows { isa, rows, pass: first, limb, widened };
                with_term!(first, term => add_columns(isa, range.clone(), rows, term, totals));
            }
        }
    };
    let finish = |first, totals: &[Total], norms: &mut [N]| {
        for (i, (totals, norms)) in totals.chunks(STRIP).zip(norms.chunks_mut(STRIP)).enumerate() {
            let sums = &mut [0.0; STRIP][..totals.len()];
            sums.iter_mut().zip(totals).for_each(|(sum, total)| *sum = total.value());
            finish_sums(first + i * STRIP, sums, norms);
        }
    };
    let widths = widths(slices, is_direct, WIDE);
    reduce_columns::<WIDE, _, _, _>(slices, widths, norms, &reduce, Total::merge, &finish)
}

type AddRowsTo<'a, T, A> = dyn Fn(&mut Rows<'_, T>, Range<usize>, &mut [A]) + Sync + 'a;
type Finish<'a, A, N> = dyn Fn(usize, &[A], &mut [N]) + Sync + 'a;

/// Writes the norms of the columns of matrices that are `width` columns wide, on all threads. A thread reduces at most `widest`
/// columns at a time. `widest` is at most `ROOM`, and at most [`STRIP`] unless the elements of a row are contiguous in memory.
///
/// `add` adds some rows to the accumulators of some columns. `merge` merges an accumulator with that of later rows. `finish` computes
/// the norms of the columns from a number on.
fn reduce_columns<const ROOM: usize, T: Element, A: Copy + Default + Send, N: Send>(
    slices: &Slices<'_, T>,
    [width, widest]: [usize; 2],
    mut norms: &mut [N],
    add: &AddRowsTo<'_, T, A>,
    merge: impl Fn(&mut A, A) + Sync,
    finish: &Finish<'_, A, N>,
) -> Result<()> {
    let (columns, len) = (slices.kept.len(), slices.reduced.len());
    let bytes = columns * len * size_of::<T>();
    // A piece has whole matrices, if they are narrow.
    let in_piece = match slices.block() {
        Some([_, inner]) if inner < widest => widest - widest % inner,
        _ => widest,
    };
    let pieces = pieces(columns, width, in_piece);
    let reduce = |first: usize, range, accumulators: &mut [A]| {
        let gathered: &mut [_] =
            if widest > STRIP { &mut [] } else { &mut Aligned([[T::ZERO; STRIP]; ROWS_AT_ONCE]).0 };
        let columns = first..first + accumulators.len();
        add(&mut Rows { slices, columns, gathered }, range, accumulators);
    };
    let crew = Crew::new();
    let piece_count = columns / width * width.div_ceil(in_piece);
    let mut jobs = vec_with_room(piece_count)?;
    let run = run_of_columns(columns);
    let runs = len.div_ceil(run);
    // The accumulators of a piece follow each other, run by run. Those of a single run are on the stack.
    let mut all_runs = vec_with_room(if runs > 1 { columns * runs } else { 0 })?;
    if runs > 1 {
        all_runs.resize(columns * runs, A::default());
        let (mut rest, mut parts) = (&mut all_runs[..], vec_with_room(piece_count * runs)?);
        for piece in pieces.clone() {
            for row in (0..len).step_by(run) {
                parts.push((piece.start, row, rest.split_off_mut(..piece.len()).unwrap_or_default()));
            }
        }
        crew.each(bytes, parts.into_iter(), |(first, row, accumulators)| {
            reduce(first, row..len.min(row + run), accumulators);
        })?;
    }
    let mut rest = &mut all_runs[..];
    for piece in pieces {
        let accumulators = rest.split_off_mut(..piece.len() * runs).unwrap_or_default();
        jobs.push((piece.start, accumulators, norms.split_off_mut(..piece.len()).unwrap_or_default()));
    }
    crew.each(bytes, jobs.into_iter(), |(first, accumulators, norms)| {
        if accumulators.is_empty() {
            return on_stack::<ROOM, _, _>(A::default(), norms.len(), |accumulators| {
                reduce(first, 0..len, accumulators);
                finish(first, accumulators, norms);
            });
        }
        let (merged, later) = accumulators.split_at_mut(norms.len());
        for run in later.chunks(norms.len()) {
            merged.iter_mut().zip(run).for_each(|(to, other)| merge(to, *other));
        }
        finish(first, merged, norms);
    })
}

/// Cuts the columns of matrices that are `width` columns wide into pieces of at most `longest` columns of one matrix.
fn pieces(columns: usize, width: usize, longest: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let matrices = blocks_of(width, 0..columns);
    matrices.flat_map(move |matrix| blocks_of(longest, matrix))
}

/// Rows of some neighbouring columns, as a kernel reads them.
pub(in crate::parallel) trait ReadRows<T> {
    /// `N` rows from number `at` on, at most [`ROWS_AT_ONCE`].
    fn read<const N: usize>(&mut self, at: usize) -> [&[T]; N];
    /// The rows with these numbers, one after the other, if that takes less time than [`ReadRows::read`].
    fn dense(&mut self, range: Range<usize>) -> Option<&[T]>;
}

/// Rows of the array itself. `gathered` has room for the rows that are read or copied at a time. It is empty if the elements of
/// each row are contiguous in memory.
struct Rows<'a, T> {
    slices: &'a Slices<'a, T>,
    columns: Range<usize>,
    gathered: &'a mut [[T; STRIP]],
}

impl<T: Element> Rows<'_, T> {
    /// Calls `visit` for the columns of each dense matrix, whose rows follow each other in memory, with their part of
    /// `accumulators`. Other columns stay together.
    fn for_each_matrix<A>(&mut self, accumulators: &mut [A], mut visit: impl FnMut(&mut Self, &mut [A])) {
        let (all, inner) = (self.columns.clone(), self.slices.block().map(|[_, inner]| inner));
        let inner = inner.filter(|inner| all.start.is_multiple_of(*inner)).unwrap_or(all.len());
        for (first, part) in all.step_by(inner).zip(accumulators.chunks_mut(inner)) {
            self.columns = first..first + part.len();
            visit(self, part);
        }
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

    fn dense(&mut self, range: Range<usize>) -> Option<&[T]> {
        let (slices, columns) = (self.slices, &self.columns);
        if let Some(rows) = slices.dense_rows(range.clone(), columns) {
            return Some(rows);
        }
        // Short rows are copied, because a call of the kernel for each four of them takes longer.
        if !has_strips::<T>(columns.len()) {
            return None;
        }
        let copied = self.gathered.as_flattened_mut().get_mut(..range.len() * columns.len())?;
        for (at, to) in range.zip(copied.chunks_mut(columns.len().max(1))) {
            slices.copy_row(at, columns.clone(), to);
        }
        Some(copied)
    }
}

/// Rows that are converted to float64.
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
        self.rows.read(at).map(|row| {
            let widened: &mut [f64] = widened.next().map_or(&mut [], |to| &mut to[..row.len()]);
            self.pass.widen(self.isa, row, widened, self.limb);
            &*widened
        })
    }

    fn dense(&mut self, range: Range<usize>) -> Option<&[f64]> {
        let widened = self.widened.as_flattened_mut().get_mut(..range.len() * self.rows.columns.len())?;
        self.pass.widen(self.isa, self.rows.dense(range)?, widened, self.limb);
        Some(widened)
    }
}

/// Computes the sums of at most [`WIDEST_STRIP`] columns, of matrices of `len` rows and `width` columns. `sums` holds zeros.
pub(in crate::parallel) fn sum_columns<T: Element>(
    isa: Isa,
    [len, width]: [usize; 2],
    rows: &mut impl ReadRows<T>,
    term: impl Term<T>,
    sums: &mut [f64],
) {
    let matrices = (0..).step_by(len).map(|first| first..first + len);
    if len <= ROWS {
        for (range, sums) in matrices.zip(sums.chunks_mut(width)) {
            add_rows(isa, range, rows, term, sums); // no totals: see `column_norms`
        }
        return;
    }
    on_stack::<WIDEST_STRIP, _, _>(Total::default(), sums.len(), |totals| {
        for (range, totals) in matrices.zip(totals.chunks_mut(width)) {
            add_columns(isa, range, rows, term, totals);
        }
        sums.iter_mut().zip(&*totals).for_each(|(sum, total)| *sum = total.value());
    });
}

/// Whether all columns whose sum of squares is 0 consist of zeros, for at most [`WIDEST_STRIP`] columns. `add_sizes` adds up the
/// magnitudes of each column, which reads all columns again. If few sums are 0, the result is false: then it takes less time to
/// read their columns one by one.
pub(in crate::parallel) fn has_exact_zero_columns<T: Element>(
    sums: &[f64],
    add_sizes: impl FnOnce(&mut [f64]),
) -> bool {
    /// The columns of float64 that share a cache line. A column that is read alone fetches all of them.
    const IN_LINE: usize = LINE / size_of::<f64>();
    if !T::DOUBLE {
        return true;
    }
    if sums.iter().filter(|sum| **sum == 0.0).count() * IN_LINE < sums.len() {
        return false;
    }
    on_stack::<WIDEST_STRIP, _, _>(0.0, sums.len(), |sizes| {
        add_sizes(sizes);
        sums.iter().zip(sizes).all(|(sum, size)| *sum != 0.0 || *size == 0.0)
    })
}

/// Adds rows to one total per column, at most [`WIDE`] columns.
fn add_columns<T: Element>(
    isa: Isa,
    range: Range<usize>,
    rows: &mut impl ReadRows<T>,
    term: impl Term<T>,
    totals: &mut [Total],
) {
    with_scratch(0.0, totals.len(), |sums| {
        for from in range.clone().step_by(ROWS) {
            add_rows(isa, from..range.end.min(from + ROWS), rows, term, sums);
            isa.run(FoldRows { totals: &mut *totals, sums: &mut *sums });
        }
    });
}

/// Adds rows to one accumulator per column. More than [`ROWS`] rows would lose digits.
pub(in crate::parallel) fn add_rows<T: Element>(
    isa: Isa,
    range: Range<usize>,
    rows: &mut impl ReadRows<T>,
    term: impl Term<T>,
    sums: &mut [f64],
) {
    if let Some(rows) = rows.dense(range.clone()) {
        return isa.run(AddDenseRows { sums, rows, terms: iter::repeat(term) });
    }
    let tail = range.end - range.len() % ROWS_AT_ONCE;
    for at in (range.start..tail).step_by(ROWS_AT_ONCE) {
        isa.run(AddRows { sums, rows: rows.read(at), terms: [term; ROWS_AT_ONCE] });
    }
    for at in tail..range.end {
        isa.run(AddRows { sums, rows: rows.read::<1>(at), terms: [term] });
    }
}
