//! Columns: slices that lie side by side in dense matrices. A strip of columns is clipped while the cache holds it.

use std::array;
use std::ops::Range;

use super::Crew;
use super::elementwise::is_streamed;
use super::reduce::{
    Order, ReadRows, WIDEST_STRIP, add_rows, has_exact_zero_columns, norm_of_view_with, run_of_columns,
    sum_columns,
};
use super::rows::Rule;
use crate::element::Scalable;
use crate::error::{Result, vec_with_room};
use crate::isa::{Aligned, Isa, StreamGuard, on_stack};
use crate::kernel::scale_each::{FactorKind, ScaleEach};
use crate::kernel::sum::{Abs, Largest, ROWS, Square};
use crate::scaled::{Factor, FromNorm, Scaled};
use crate::walk::{View, stream_made};

/// The length of the longest column for [`scale_columns`], in elements. A strip of longer columns would be too narrow.
const LONGEST_COLUMN: usize = 1024;

/// The bytes of a strip: half of the L2 cache, on CPUs with a large L2 cache.
const STRIP_BYTES: usize = 512 << 10;

/// The bytes of the shortest rows of a matrix that are written by non-temporal stores. A row shares the cache lines at its ends
/// with other rows. The CPU fetches these lines, and the stores wait. They are too large a part of shorter rows.
const SHORTEST_STREAMED_ROW: usize = 2 << 10;

/// The elements of short rows that are scaled in one operation. An operation for each of them would take most of the time.
const SHORT_ROWS: usize = 128;

/// Repeats a row. Unless `times` is 1, the result is in `room`.
fn repeated<'a>(row: &'a [f64], times: usize, room: &'a mut [f64]) -> &'a [f64] {
    if times == 1 {
        return row;
    }
    let room = &mut room[..times * row.len()];
    room[..row.len()].copy_from_slice(row);
    let mut done = row.len();
    while done < room.len() {
        let more = done.min(room.len() - done);
        room.copy_within(..more, done);
        done += more;
    }
    room
}

/// The number of columns of `len` elements that are clipped at a time.
fn columns_in_strip<T: Scalable>(len: usize) -> usize {
    (STRIP_BYTES / size_of::<T>() / len).min(WIDEST_STRIP / T::PARTS)
}

/// Whether columns of matrices of this shape are for [`scale_columns`] with this order of norms.
pub fn is_column<T: Scalable>(columns: usize, [len, inner]: [usize; 2], order: Order) -> bool {
    // The fewest columns of a strip: in narrower ones, the overhead of each row outweighs the second read that a strip saves.
    let narrowest = 128;
    // Totals, which longer columns have, hold no largest magnitude.
    let longest = if order == Order::Max { ROWS } else { LONGEST_COLUMN };
    // Elements of 16 bits have kernels of their own, and longer columns are summed in more than one run.
    size_of::<T>() > 2
        && (1..=longest.min(run_of_columns(columns))).contains(&len)
        && columns_in_strip::<T>(len) >= narrowest.min(inner)
}

/// Scales each column of dense matrices by its own norm. `shape` has the numbers of rows and of columns of a matrix. The `source`
/// has the positions of the output. Without it, the output is the input, too. `norms` gets the norm of each column, or is empty.
pub fn scale_columns<T: Scalable>(
    isa: Isa,
    source: Option<&View<'_, T::Part>>,
    output: &mut [T::Part],
    shape @ [_, inner]: [usize; 2],
    rule: Rule,
    norms: &mut [T::Norm],
) -> Result<()> {
    let bytes = size_of_val(output);
    let is_strided = matches!(source, Some(View::Strided { .. }));
    let streams = is_streamed(bytes) && inner * size_of::<T>() >= SHORTEST_STREAMED_ROW && !is_strided;
    let strips = strips::<T>(source, output, shape, norms)?;
    Crew::new().each(bytes * 2, strips.into_iter(), |strip| strip.scale(isa, rule, streams))
}

/// Neighbouring columns of a matrix, or all columns of some narrow matrices.
struct Strip<'a, T: Scalable> {
    /// A strided input, to be copied to the output before the columns are summed, and the position of the strip's first part.
    to_copy: Option<(&'a View<'a, T::Part>, usize)>,
    /// The input from the first part of the strip on, unless it is to be copied, or the output is the input too.
    source: Option<&'a [T::Part]>,
    /// The rows of a matrix, and the parts of elements from one to the next.
    shape: [usize; 2],
    /// The columns of each matrix.
    width: usize,
    output: Output<'a, T::Part>,
    /// The places of the norms; empty if the caller needs no norms.
    norms: &'a mut [T::Norm],
}

/// What a strip writes.
enum Output<'a, T> {
    /// Whole matrices.
    Whole(&'a mut [T]),
    /// A part of each row of a matrix.
    Parts(Vec<&'a mut [T]>),
}

/// Cuts matrices into strips.
fn strips<'a, T: Scalable>(
    source: Option<&'a View<'a, T::Part>>,
    output: &'a mut [T::Part],
    [len, columns]: [usize; 2],
    mut norms: &'a mut [T::Norm],
) -> Result<Vec<Strip<'a, T>>> {
    let (columns_at_once, inner) = (columns_in_strip::<T>(len), columns * T::PARTS);
    let (most, shape) = (columns_at_once * T::PARTS, [len, inner]);
    let mut take_norms = |count| norms.split_off_mut(..count).unwrap_or_default();
    let from = |first: usize| match source {
        Some(View::Dense(elements)) => (None, Some(&elements[first..])),
        view => (view.map(|view| (view, first)), None),
    };
    if most >= inner {
        let size = most / inner * len * inner;
        let mut strips = vec_with_room(output.len().div_ceil(size))?;
        strips.extend(output.chunks_mut(size).enumerate().map(|(i, matrices)| {
            let norms = take_norms(matrices.len() / len / T::PARTS);
            let (to_copy, source) = from(i * size);
            Strip { to_copy, source, shape, width: columns, output: Output::Whole(matrices), norms }
        }));
        return Ok(strips);
    }
    let mut strips: Vec<Strip<'_, T>> = vec_with_room(output.len() / len / inner * inner.div_ceil(most))?;
    for (outer, matrix) in output.chunks_mut(len * inner).enumerate() {
        let mut parts: Vec<Vec<&mut [T::Part]>> = vec_with_room(inner.div_ceil(most))?;
        for _ in (0..inner).step_by(most) {
            parts.push(vec_with_room(len)?);
        }
        for row in matrix.chunks_mut(inner) {
            row.chunks_mut(most).zip(&mut parts).for_each(|(part, parts)| parts.push(part));
        }
        for (first, parts) in (0..inner).step_by(most).zip(parts) {
            let (to_copy, source) = from(outer * len * inner + first);
            let width = most.min(inner - first) / T::PARTS;
            strips.push(Strip {
                to_copy,
                source,
                shape,
                width,
                output: Output::Parts(parts),
                norms: take_norms(width),
            });
        }
    }
    Ok(strips)
}

impl<T: Scalable> Strip<'_, T> {
    /// The number of columns of all matrices.
    fn count(&self) -> usize {
        match &self.output {
            Output::Whole(matrices) => matrices.len() / self.shape[0] / T::PARTS,
            Output::Parts(_) => self.width,
        }
    }

    /// A row of the input. The rows of several matrices follow each other.
    fn row(&self, row: usize) -> &[T] {
        let (place, len) = (row * self.shape[1], self.width * T::PARTS);
        T::of_parts(match (self.source, &self.output) {
            (Some(source), _) => &source[place..place + len],
            (None, Output::Whole(matrices)) => &matrices[place..place + len],
            (None, Output::Parts(parts)) => &*parts[row],
        })
    }

    /// Copies a strided input to the output, which is the input from then on.
    fn copy(&mut self) {
        let (Some((view, first)), [_, inner]) = (self.to_copy, self.shape) else { return };
        match &mut self.output {
            Output::Whole(matrices) => view.copy_to(first..first + matrices.len(), matrices),
            Output::Parts(parts) => {
                for (first, part) in (first..).step_by(inner).zip(parts) {
                    view.copy_to(first..first + part.len(), part);
                }
            }
        }
    }

    /// Scales the columns.
    fn scale(mut self, isa: Isa, rule: Rule, streams: bool) {
        self.copy();
        on_stack::<WIDEST_STRIP, _, _>(1.0, self.count(), |factors| {
            let mut then = None;
            let is_plain = self.find_factors(isa, rule, factors, &mut then);
            if self.source.is_none() && factors.iter().all(|factor| *factor == 1.0) {
                return; // the output is right already
            }
            let kind = FactorKind { is_plain, rounding: rule.rounding() };
            self.write(isa, factors, kind, streams);
            if let Some(then) = then {
                self.source = None;
                let count = factors.len();
                self.write(isa, &then[..count], kind, false);
            }
        });
    }

    /// Writes the columns times their factors. This is out of line, so that its stack frame does not add to that of the sums.
    #[inline(never)]
    fn write(&mut self, isa: Isa, factors: &[f64], kind: FactorKind, streams: bool) {
        let (source, [len, inner], width) = (self.source, self.shape, self.width * T::PARTS);
        let mut of_parts = [0.0; WIDEST_STRIP];
        let factors = if T::PARTS == 1 {
            factors
        } else {
            of_parts.chunks_mut(T::PARTS).zip(factors).for_each(|(parts, by)| parts.fill(*by));
            &of_parts
        };
        let guard = streams.then(StreamGuard::begin);
        let scale = |place: usize, to: &mut [T::Part], factors: &[f64]| {
            let from = source.map(|source| &source[place..place + to.len()]);
            match (from, &guard) {
                (Some(from), Some(guard)) => {
                    stream_made(isa, guard, from, to, |part, from, to| {
                        isa.run(ScaleEach { from: Some(from), to, factors: &factors[part], kind });
                    });
                }
                _ => isa.run(ScaleEach { from, to, factors, kind }),
            }
        };
        match &mut self.output {
            Output::Whole(matrices) => {
                let at_once = (SHORT_ROWS / width).clamp(1, len);
                let mut room = [0.0; SHORT_ROWS];
                for (i, matrix) in matrices.chunks_exact_mut(len * inner).enumerate() {
                    let factors = repeated(&factors[i * width..(i + 1) * width], at_once, &mut room);
                    for (k, to) in matrix.chunks_mut(at_once * inner).enumerate() {
                        scale((i * len + k * at_once) * inner, to, &factors[..to.len()]);
                    }
                }
            }
            Output::Parts(parts) => {
                for (row, to) in parts.iter_mut().enumerate() {
                    scale(row * inner, to, &factors[..width]);
                }
            }
        }
    }

    /// Finds the factors and the norms of the columns. `then` gets the second steps of the factors if there are any: a norm that
    /// lies far outside of float64's range has a factor of two steps. Returns whether the factors are plain: see [`FactorKind`].
    fn find_factors(
        &mut self,
        isa: Isa,
        rule: Rule,
        factors: &mut [f64],
        then: &mut Option<[f64; WIDEST_STRIP]>,
    ) -> bool {
        let ([len, _], width) = (self.shape, self.width);
        let sums = &mut Aligned([0.0; WIDEST_STRIP]).0[..factors.len()];
        let order = rule.order();
        let exact_zeros = match order {
            Order::One => {
                sum_columns(isa, [len, width], self, Abs, sums);
                true
            }
            Order::Max => {
                sum_columns(isa, [len, width], self, Largest, sums);
                true
            }
            _ => {
                sum_columns(isa, [len, width], self, Square, sums);
                has_exact_zero_columns::<T>(sums, |sizes| {
                    for (first, sizes) in (0..).step_by(len).zip(sizes.chunks_mut(width)) {
                        add_rows(isa, first..first + len, self, Abs, sizes);
                    }
                })
            }
        };
        if rule.plain_factors(isa, sums, exact_zeros, factors, self.norms) {
            return true;
        }
        let mut are_plain = true;
        // Columns whose factor is still unknown are read one by one, before anything is written.
        for (column, sum) in sums.iter().enumerate() {
            if factors[column] == 0.0 {
                let norm = if sum.is_nan() {
                    Scaled::new(*sum, 0)
                } else {
                    let elements = &mut [T::ZERO; LONGEST_COLUMN][..len];
                    for (row, x) in (column / width * len..).zip(&mut *elements) {
                        *x = self.row(row)[column % width];
                    }
                    norm_of_view_with(isa, &View::Dense(elements), order, Some(*sum))
                };
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

impl<T: Scalable> ReadRows<T> for Strip<'_, T> {
    fn read<const N: usize>(&mut self, at: usize) -> [&[T]; N] {
        array::from_fn(|i| self.row(at + i))
    }

    fn dense(&mut self, range: Range<usize>) -> Option<&[T]> {
        let data = match (self.source, &self.output) {
            (None, Output::Whole(matrices)) => &**matrices,
            (source, _) => source.filter(|_| self.width * T::PARTS == self.shape[1])?,
        };
        Some(&T::of_parts(data)[range.start * self.width..range.end * self.width])
    }
}
