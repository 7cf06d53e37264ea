//! Sums of the terms of norms, in an order that does not depend on the CPU or the number of threads.
//!
//! A sequence is cut into blocks of [`BLOCK`] elements. In a block, element `i` is added to lane `i % LANES`, and the lanes are
//! folded by halves. Block sums are added in order with compensated summation ([`Total`]), so that the error does not grow with
//! the number of blocks. A lane adds `BLOCK / LANES` = 64 terms and the fold 5 more, which bounds the relative error of a sum
//! of non-negative terms by 70 * 2^-53 = 7.8e-15.

use std::array;

use super::halves::ToSingles;
use crate::element::{Dtype, Element, F16};
use crate::isa::{Aligned, Level, Op, prefetch_ahead, prefetch_distance, slice_of};

/// Accumulators of one block.
pub const LANES: usize = 32;
/// Lanes of a piece of a row: as many as the widest register has.
const PIECE: usize = 8;
/// Elements of one block.
pub const BLOCK: usize = 64 * LANES;

/// Elements of float16 that are converted to float32 at a time.
const WIDENED: usize = 8 * LANES;

/// The term that an element adds to the sum.
pub trait Term<T: Copy>: Copy + Sync {
    /// See [`Op::CONVERTS`]: whether a term costs only its conversion from float32 and an addition.
    const CONVERTS: bool = false;
    /// The term of `x`.
    fn of(&self, x: T) -> f64;
    /// `sum` plus the term of `x`. Levels with a fused multiply-add may fuse both operations.
    #[inline(always)]
    fn add<L: Level>(&self, sum: f64, x: T) -> f64 {
        sum + self.of(x)
    }
}

/// `|x|`
#[derive(Clone, Copy, Debug)]
pub struct Abs;
/// `|x|^2`. Exact for floats of up to 32 bits.
#[derive(Clone, Copy, Debug)]
pub struct Square;
/// The inner term of `x` times a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Rescaled<F>(pub F, pub f64);

impl<T: Element> Term<T> for Abs {
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        x.modulus(1.0)
    }
}
impl<T: Element> Term<T> for Square {
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        x.square(1.0)
    }
    #[inline(always)]
    fn add<L: Level>(&self, sum: f64, x: T) -> f64 {
        if L::FUSED { x.add_square(sum) } else { sum + x.square(1.0) }
    }
}
/// In place of a sum, the largest `|x|`, or NaN. Only for a single accumulator: the sum of two would not be the largest.
#[derive(Clone, Copy, Debug)]
pub struct Largest;

impl<T: Element> Term<T> for Largest {
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        Abs.of(x)
    }
    #[inline(always)]
    fn add<L: Level>(&self, largest: f64, x: T) -> f64 {
        let x = self.of(x);
        if (x > largest) | x.is_nan() { x } else { largest }
    }
}
impl<T: Element> Term<T> for Rescaled<Abs> {
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        x.modulus(self.1)
    }
}
impl<T: Element> Term<T> for Rescaled<Square> {
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        x.square(self.1)
    }
}

/// In a smaller sum, squares that have lost digits because they are subnormal may matter.
pub const SMALLEST_SUM: f64 = f64::from_bits(63 << 52); // 2^-960

/// Whether a sum of squares or magnitudes has lost no digits, and is neither infinite nor NaN.
#[inline(always)]
pub fn is_plain_sum(sum: f64) -> bool {
    (SMALLEST_SUM..=f64::MAX).contains(&sum)
}

/// The number of totals in a span, see [`Spans`].
pub const SPAN_TOTALS: usize = 64;

/// A compensated sum: the rounding errors of its additions are kept beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Total {
    sum: f64,
    error: f64,
}

impl Total {
    /// Adds `x`, exactly up to the rounding of the error term (Knuth's two-sum).
    #[inline(always)]
    pub fn add(&mut self, x: f64) {
        let sum = self.sum + x;
        let part = sum - self.sum;
        self.error += (self.sum - (sum - part)) + (x - part);
        self.sum = sum;
    }

    /// Adds another total.
    #[inline(always)]
    pub fn merge(&mut self, other: Self) {
        self.add(other.sum);
        self.error += other.error;
    }

    /// Merges the totals of an array's chunks, as [`Spans`] does.
    pub fn of_chunks(chunks: impl Iterator<Item = Self>) -> Self {
        let mut spans = Spans::default();
        chunks.for_each(|chunk| spans.push(chunk));
        spans.total()
    }

    /// The sum, rounded. It is infinite or NaN where the plain sum is.
    #[inline]
    pub fn value(self) -> f64 {
        if self.sum.is_finite() { self.sum + self.error } else { self.sum }
    }
}

/// The totals of an array's chunks or of a list's arrays, merged in order: 64 of them make a span, and spans are merged. A GPU
/// merges the totals of several spans at the same time, so that no sum is one long chain of additions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spans {
    all: Total,
    span: Total,
    /// The number of totals in `span`.
    len: usize,
}

impl Spans {
    /// Takes the next total.
    #[inline]
    pub fn push(&mut self, total: Total) {
        self.span.merge(total);
        self.len += 1;
        if self.len == SPAN_TOTALS {
            self.all.merge(self.span);
            (self.span, self.len) = (Total::default(), 0);
        }
    }

    /// The sum of all totals.
    #[inline]
    pub fn total(mut self) -> Total {
        self.all.merge(self.span);
        self.all
    }
}

impl From<f64> for Total {
    fn from(sum: f64) -> Self {
        Self { sum, error: 0.0 }
    }
}

/// Sums the terms of a sequence that starts at a block boundary. float16 is converted to float32 first.
pub struct Sum<'a, T, F> {
    /// The elements.
    pub data: &'a [T],
    /// The term of each element.
    pub term: F,
}

impl<T: Element, F: Term<T> + Term<f32>> Op for Sum<'_, T, F> {
    type Output = Total;
    const CONVERTS: bool = <F as Term<T>>::CONVERTS;
    #[inline(always)]
    fn eval<L: Level>(self, level: L) -> Total {
        let Self { data, term } = self;
        let (mut total, distance) = (Total::default(), prefetch_distance());
        for block in data.chunks(BLOCK) {
            let mut lanes = Aligned([0.0; LANES]);
            if let Some(halves) = slice_of::<F16, _>(block) {
                let mut singles = [0.0; WIDENED];
                for part in halves.chunks(WIDENED) {
                    prefetch_ahead(part, distance);
                    let singles = &mut singles[..part.len()];
                    ToSingles { from: part, to: &mut *singles }.eval(level);
                    add::<L, _>(&mut lanes.0, singles, term, 0);
                }
            } else {
                add::<L, _>(&mut lanes.0, block, term, distance);
            }
            total.add(fold(&lanes));
        }
        total
    }
}

/// Adds the terms of elements from lane 0 on.
#[inline(always)]
fn add<L: Level, T: Element>(lanes: &mut [f64; LANES], data: &[T], term: impl Term<T>, distance: usize) {
    let (rows, rest) = data.as_chunks::<LANES>();
    add_whole::<L, _, _>(lanes, rows, term, distance);
    for j in 0..rest.len() {
        lanes[j] = term.add::<L>(lanes[j], rest[j]);
    }
}

/// Adds the terms of whole rows of `N` lanes. The lanes and the elements are parameters of a function, so the compiler knows
/// that they do not alias. Otherwise it would write the lanes after each element.
#[inline(always)]
fn add_whole<L: Level, const N: usize, T: Element>(
    lanes: &mut [f64; N],
    rows: &[[T; N]],
    term: impl Term<T>,
    distance: usize,
) {
    for row in rows {
        prefetch_ahead(row, distance);
        for j in 0..N {
            lanes[j] = term.add::<L>(lanes[j], row[j]);
        }
    }
}

/// Adds the terms of the elements whose mask is all ones. For a mask of 0 it adds 0, which changes no lane.
#[inline(always)]
fn add_masked<T: Element>(
    lanes: &mut [f64; PIECE],
    data: &[T; PIECE],
    mask: &[u64; PIECE],
    term: impl Term<T>,
) {
    // The addition is not fused; exact products have the same bits either way.
    for j in 0..PIECE {
        lanes[j] += masked(term.of(data[j]), mask[j]);
    }
}

/// The term, or 0 for a mask of 0. It is masked as an integer, because the compiler would turn a condition into branches.
#[inline(always)]
fn masked(term: f64, mask: u64) -> f64 {
    f64::from_bits(term.to_bits() & mask)
}

/// Computes the [`Sum`] of each of several short sequences in one call: a call for each costs more than a few elements.
///
/// The tail of a sequence, less than a row of lanes, is read eight elements at a time; a mask removes the elements after
/// the sequence.
pub struct SumEach<I, F> {
    /// The length of each sequence, memory that begins with its elements, and the place of its sum. If more elements follow in
    /// that memory, the tail need not be copied.
    pub sequences: I,
    /// The term of each element; no term is negative.
    pub term: F,
}

impl<'a, T: Element, I: Iterator<Item = (usize, &'a [T], &'a mut f64)>, F: Term<T>> Op for SumEach<I, F> {
    type Output = ();
    const CONVERTS: bool = F::CONVERTS;
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        let distance = prefetch_distance();
        for (len, data, sum) in self.sequences {
            let mut lanes = Aligned([0.0; LANES]);
            let (whole, tail) = data.split_at(len - len % LANES);
            add_whole::<L, _, _>(&mut lanes.0, whole.as_chunks().0, self.term, distance);
            let rest = len % LANES;
            if rest > 0 {
                let mut copied = [T::ZERO; LANES];
                let tail = tail.get(..rest.next_multiple_of(PIECE)).unwrap_or_else(|| {
                    copied[..rest].copy_from_slice(&tail[..rest]);
                    &copied[..rest.next_multiple_of(PIECE)]
                });
                let masks = MASKS[LANES - rest..].as_chunks().0;
                // The loop is left in its middle: the compiler would vectorize a plain loop over the pieces by gathers and
                // scatters, and rows of 100 elements would take eight times as long.
                for (i, lanes) in lanes.0.as_chunks_mut().0.iter_mut().enumerate() {
                    let Some(piece) = tail.as_chunks().0.get(i) else { break };
                    add_masked(lanes, piece, &masks[i], self.term);
                }
            }
            *sum = fold(&lanes);
        }
    }
}

/// [`SumEach`] for short rows at one distance, of at most [`SHORT_ROW`] elements.
pub struct SumShortRows<'a, T, F> {
    /// The rows, and maybe more elements.
    pub rows: &'a [T],
    /// The length of a row.
    pub len: usize,
    /// The distance from one row to the next.
    pub step: usize,
    /// The sum of each row.
    pub sums: &'a mut [f64],
    /// The term of each element; no term is negative.
    pub term: F,
}

/// The longest rows of [`SumShortRows`].
pub const SHORT_ROW: usize = 16;

/// The lanes that are left of a row before the last two halvings.
const QUAD: usize = 4;

/// Rows whose last halvings are one loop.
const FOLDED_AT_ONCE: usize = 32;

impl<T: Element, F: Term<T>> Op for SumShortRows<'_, T, F> {
    type Output = ();
    const CONVERTS: bool = F::CONVERTS;
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        debug_assert!(self.len <= SHORT_ROW, "a row of {} elements", self.len);
        match self.len {
            0..=4 => self.of_quads::<1>(),
            5..=8 => self.of_quads::<2>(),
            _ => self.of_quads::<4>(),
        }
    }
}

impl<T: Element, F: Term<T>> SumShortRows<'_, T, F> {
    /// Sums rows of at most `N` quads. Rows are folded to quads in one loop, and quads to sums in another: the compiler would use
    /// narrow registers in one loop.
    #[inline(always)]
    fn of_quads<const N: usize>(self) {
        let Self { rows, len, step, sums, term } = self;
        let Some(masks) = MASKS.get(LANES - len..).and_then(|masks| masks.as_chunks().0.first_chunk::<N>())
        else {
            return;
        };
        let mut quads = [[0.0; QUAD]; FOLDED_AT_ONCE];
        let mut at = 0;
        for sums in sums.chunks_mut(FOLDED_AT_ONCE) {
            let quads = &mut quads[..sums.len()];
            for quad in &mut *quads {
                *quad = quad_of::<_, N>(&rows[at..], len, masks, term);
                at += step;
            }
            for (sum, lanes) in sums.iter_mut().zip(&*quads) {
                *sum = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
            }
        }
    }
}

/// Folds the terms of the row to a quad. The memory begins with the row.
#[inline(always)]
fn quad_of<T: Element, const N: usize>(
    memory: &[T],
    len: usize,
    masks: &[[u64; QUAD]; N],
    term: impl Term<T>,
) -> [f64; QUAD] {
    let mut copied = [[T::ZERO; QUAD]; N];
    let row = memory.as_chunks().0.first_chunk().unwrap_or_else(|| {
        copied.as_flattened_mut()[..len].copy_from_slice(&memory[..len]);
        &copied
    });
    // Missing lanes are -0.0, which changes no sum, so that the compiler leaves out the addition.
    let lane = |i: usize, j: usize| if i < N { masked(term.of(row[i][j]), masks[i][j]) } else { -0.0 };
    array::from_fn(|j| (lane(0, j) + lane(2, j)) + (lane(1, j) + lane(3, j)))
}

/// The masks of tails: from index `LANES - n` on, there are `n` masks of all ones, then masks of zeros.
static MASKS: [u64; 2 * LANES] = {
    let mut masks = [0; 2 * LANES];
    let mut at = 0;
    while at < LANES {
        masks[at] = u64::MAX;
        at += 1;
    }
    masks
};

/// Folds the lanes by halves. The first two halvings are one loop, so that the compiler uses whole registers.
#[inline(always)]
fn fold(Aligned(lanes): &Aligned<[f64; LANES]>) -> f64 {
    let mut folded = Aligned([0.0; LANES / 4]);
    for j in 0..LANES / 4 {
        folded.0[j] = (lanes[j] + lanes[j + 16]) + (lanes[j + 8] + lanes[j + 24]);
    }
    let sum_of = |j: usize| folded.0[j] + folded.0[j + 4];
    (sum_of(0) + sum_of(2)) + (sum_of(1) + sum_of(3))
}

/// Adds the terms of `N` rows, in order, to one accumulator per column, which is loaded and stored once.
///
/// The caller folds the accumulators into one [`Total`] per column every [`ROWS`] rows, so that a column's
/// sum obeys the same bound as a block's.
pub struct AddRows<'a, T, F, const N: usize> {
    /// One accumulator per column.
    pub sums: &'a mut [f64],
    /// The rows, each with one element per column.
    pub rows: [&'a [T]; N],
    /// The term of the elements of each row.
    pub terms: [F; N],
}

/// Rows between two folds of the accumulators.
pub const ROWS: usize = BLOCK / LANES;

/// Rows of one call where the order in which memory is read does not matter.
pub const ROWS_AT_ONCE: usize = 4;

impl<T: Element, F: Term<T>, const N: usize> Op for AddRows<'_, T, F, N> {
    type Output = ();
    const CONVERTS: bool = F::CONVERTS;
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        add_rows::<L, _, _>(self.sums, self.rows, self.terms);
    }
}

#[inline(always)]
fn add_rows<L: Level, T: Element, const N: usize>(
    sums: &mut [f64],
    mut rows: [&[T]; N],
    terms: [impl Term<T>; N],
) {
    // A loop, because `map` has many layers to compile in each copy.
    for row in &mut rows {
        *row = &row[..sums.len()];
    }
    for i in 0..sums.len() {
        for j in 0..N {
            sums[i] = terms[j].add::<L>(sums[i], rows[j][i]);
        }
    }
}

/// [`AddRows`] for rows that follow each other in memory, in one call.
pub struct AddDenseRows<'a, T, I> {
    /// One accumulator per column.
    pub sums: &'a mut [f64],
    /// All elements of the rows.
    pub rows: &'a [T],
    /// For each row, the term of its elements.
    pub terms: I,
}

/// The bytes of rows that are added a strip of columns at a time: a page, so that memory is still read page by page.
const STRIPED_BYTES: usize = 4 << 10;

/// The fewest rows for which strips pay: for fewer, the accumulators are loaded and stored too often. Longer rows are added one
/// by one.
const MIN_STRIPED_ROWS: usize = 8;

/// Whether rows of this many columns are short enough to be added a strip of columns at a time.
pub fn has_strips<T>(columns: usize) -> bool {
    striped_rows::<T>(columns) >= MIN_STRIPED_ROWS
}

/// The rows of this many columns that are read before the next ones: once for each strip.
fn striped_rows<T>(columns: usize) -> usize {
    STRIPED_BYTES / (columns * size_of::<T>()).max(1)
}

impl<T: Element, F: Term<T>, I: Iterator<Item = F> + Clone> Op for AddDenseRows<'_, T, I> {
    type Output = ();
    const CONVERTS: bool = F::CONVERTS;
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        let Self { sums, rows, mut terms } = self;
        let columns = sums.len().max(1);
        if !has_strips::<T>(columns) {
            for (row, term) in rows.chunks_exact(columns).zip(terms) {
                add_rows::<L, _, _>(sums, [row], [term]);
            }
            return;
        }
        let striped = striped_rows::<T>(columns);
        let (strips, rest) = sums.as_chunks_mut::<LANES>();
        let first = columns - rest.len();
        // The last columns are padded to the narrowest strip that holds them. They are copied once, not for each page of rows.
        let mut padded = [0.0; LANES];
        padded[..rest.len()].copy_from_slice(rest);
        for rows in rows.chunks(striped * columns) {
            // The rows are read once for each strip, so that its accumulators stay in registers.
            for (strip, first) in strips.iter_mut().zip((0..).step_by(LANES)) {
                add_strip::<L, LANES, _, _>(strip, rows, first, columns, terms.clone());
            }
            match rest.len() {
                0 => {}
                1..=8 => add_strip::<L, 8, _, _>(&mut padded, rows, first, columns, terms.clone()),
                9..=16 => add_strip::<L, 16, _, _>(&mut padded, rows, first, columns, terms.clone()),
                _ => add_strip::<L, LANES, _, _>(&mut padded, rows, first, columns, terms.clone()),
            }
            terms.nth(striped - 1);
        }
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

/// Adds a strip of `N` columns, from column `first` on. Sums of lanes beyond the last column are not used.
#[inline(always)]
fn add_strip<L: Level, const N: usize, T: Element, F: Term<T>>(
    sums: &mut [f64; LANES],
    rows: &[T],
    first: usize,
    columns: usize,
    mut terms: impl Iterator<Item = F>,
) {
    let Some(sums) = sums.first_chunk_mut::<N>() else { return };
    let (mut lanes, mut at) = (*sums, first);
    while let Some(row) = rows.get(at..).and_then(|rows| rows.first_chunk::<N>())
        && let Some(term) = terms.next()
    {
        for j in 0..N {
            lanes[j] = term.add::<L>(lanes[j], row[j]);
        }
        at += columns;
    }
    *sums = lanes;
    // Fewer than `N` elements are left of the last rows.
    for (row, term) in rows.get(at..).unwrap_or_default().chunks(columns).zip(terms) {
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum = term.add::<L>(*sum, *x);
        }
    }
}

/// Folds the accumulators of [`AddRows`] into totals and resets them to zero.
pub struct FoldRows<'a> {
    /// One total per column.
    pub totals: &'a mut [Total],
    /// The accumulators.
    pub sums: &'a mut [f64],
}

impl Op for FoldRows<'_> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        for (total, sum) in self.totals.iter_mut().zip(self.sums) {
            total.add(*sum);
            *sum = 0.0;
        }
    }
}
