//! An array cut into slices along some of its axes.

use std::borrow::Cow;
use std::ops::Range;

use super::layout::{Axis, Layout};
use super::memory::Memory;
use super::view::View;
use crate::element::Element;

/// The fewest neighbouring columns that are worth an accumulator each. Fewer columns are reduced one by one.
const MIN_COLUMNS: usize = 4;

/// Elements of each slice that [`Slices::with_pieces`] gathers at a time. Those of 256 slices of float32 fit into the L2 cache.
pub const GATHERED_AT_ONCE: usize = 256;

/// An array cut into slices along some of its axes: one slice for each position of the kept axes, its
/// elements along the reduced ones.
pub struct Slices<'a, T> {
    /// The memory of the array.
    pub memory: Memory<'a, T>,
    /// The place of the first element of the first slice in that memory.
    pub start: isize,
    /// The distances of the first elements of the slices from `start`.
    pub kept: Layout,
    /// The distances of a slice's elements from its first one.
    pub reduced: Layout,
    /// The number of slices that lie inside the reduced axes, side by side.
    pub inner: usize,
}

impl<'a, T: Element> Slices<'a, T> {
    /// The slices of kept and reduced axes. Where a kept axis has the stride of a reduced one, the caller corrects
    /// [`Slices::inner`], which the order of the axes determines.
    pub fn new(memory: Memory<'a, T>, start: isize, kept: Layout, reduced: Layout) -> Self {
        let step = reduced.axes.last().map_or(usize::MAX, |axis| axis.stride.unsigned_abs());
        let inner = kept.axes.iter().rev().take_while(|axis| axis.stride.unsigned_abs() < step);
        let inner = inner.map(|axis| axis.len).product();
        Self { memory, start, kept, reduced, inner }
    }

    /// Slice number `at`.
    pub fn slice(&self, at: usize) -> View<'_, T> {
        View::new(self.memory, self.start + self.kept.offset(at), Cow::Borrowed(&self.reduced))
    }

    /// The elements from the first slice on, and the distance from one slice to the next, if the elements of each slice follow each
    /// other in memory, and the slices lie at one distance.
    pub fn spaced(&self) -> Option<(&[T], usize)> {
        let (Memory::Elements(elements), true) = (self.memory, self.reduced.is_dense()) else { return None };
        let step = match self.kept.axes[..] {
            [] => self.reduced.len(),
            [axis] if axis.stride > 0 => axis.stride.cast_unsigned(),
            _ => return None,
        };
        Some((&elements[self.start.cast_unsigned()..], step))
    }

    /// All elements, one slice after the other.
    pub fn elements(&self) -> View<'_, T> {
        let axes = self.kept.axes.iter().chain(&self.reduced.axes).copied();
        View::new(self.memory, self.start, Cow::Owned(Layout::new(axes)))
    }

    /// The numbers of rows and of columns of dense matrices that follow each other in memory, if the slices are their columns.
    pub fn block(&self) -> Option<[usize; 2]> {
        let (Memory::Elements(_), reduced) = (self.memory, &self.reduced.axes[..]) else { return None };
        let Axis { len, stride } = match (reduced, &self.kept.axes[..]) {
            (&[axis], _) => axis,
            // The slices are the elements of a single row.
            ([], &[Axis { len, .. }]) => Axis { len: 1, stride: len.cast_signed() },
            _ => return None,
        };
        let inner = stride.cast_unsigned();
        let (outer, columns) = match self.kept.axes[..] {
            [columns] => (None, columns),
            [outer, columns] => (Some(outer.stride), columns),
            _ => return None,
        };
        let is_block = stride > 0
            && columns == Axis { len: inner, stride: 1 }
            && outer.is_none_or(|outer| outer == (len * inner).cast_signed());
        is_block.then_some([len, inner])
    }

    /// Elements `range` of all `columns`, row by row, if these are the columns of one dense matrix.
    pub fn dense_rows(&self, range: Range<usize>, columns: &Range<usize>) -> Option<&[T]> {
        let ([_, inner], Memory::Elements(elements)) = (self.block()?, self.memory) else { return None };
        let is_matrix = columns.len() == inner && columns.start.is_multiple_of(inner);
        let first = (self.start + self.kept.offset(columns.start)).cast_unsigned();
        is_matrix.then(|| &elements[first..][range.start * inner..range.end * inner])
    }

    /// Element number `element` of each of the slices `range`: a row of the matrix whose columns are the slices. The scratch has
    /// room for all of them.
    #[inline]
    pub fn row<'b>(&'b self, element: usize, range: Range<usize>, scratch: &'b mut [T]) -> &'b [T] {
        self.memory.block(self.start + self.reduced.offset(element), &self.kept, range, scratch)
    }

    /// Copies a [`Slices::row`].
    pub fn copy_row(&self, element: usize, range: Range<usize>, to: &mut [T]) {
        let start = self.start + self.reduced.offset(element);
        match self.memory.contiguous(start, &self.kept, &range) {
            Some(row) => to.copy_from_slice(row),
            None => self.memory.gather(start, &self.kept, range, to),
        }
    }

    /// Calls `visit` with elements `range` of each of the slices `at`. Unless they are contiguous, they are gathered, at most
    /// [`GATHERED_AT_ONCE`] of each slice: one element of all slices after the other, because slices may lie side by side.
    #[inline]
    pub fn with_pieces<R, const N: usize>(
        &self,
        at: [usize; N],
        range: Range<usize>,
        visit: impl FnOnce([&[T]; N]) -> R,
    ) -> R {
        let starts = at.map(|at| self.start + self.kept.offset(at));
        if let (Memory::Elements(elements), Some(offset)) = (self.memory, self.reduced.contiguous(&range)) {
            let from = |start: isize| (start + offset).cast_unsigned();
            return visit(starts.map(|start| &elements[from(start)..from(start) + range.len()]));
        }
        self.with_gathered(starts, range, visit)
    }

    /// [`Slices::with_pieces`] for elements that are not contiguous. This is out of line, because the scratch is a large stack
    /// frame, which takes time even where it is not used.
    #[inline(never)]
    fn with_gathered<R, const N: usize>(
        &self,
        starts: [isize; N],
        range: Range<usize>,
        visit: impl FnOnce([&[T]; N]) -> R,
    ) -> R {
        let mut gathered = [[T::ZERO; GATHERED_AT_ONCE]; N];
        let len = range.len();
        if let Memory::Elements(elements) = self.memory {
            let mut to = 0..len;
            self.reduced.runs(range, |offset, step, count| {
                let mut from = starts.map(|start| start + offset);
                for i in to.by_ref().take(count) {
                    for (to, from) in gathered.iter_mut().zip(&mut from) {
                        to[i] = elements[from.cast_unsigned()];
                        *from += step;
                    }
                }
            });
        } else {
            for (to, start) in gathered.iter_mut().zip(starts) {
                self.memory.gather(start, &self.reduced, range.clone(), &mut to[..len]);
            }
        }
        visit(gathered.each_ref().map(|row| &row[..len]))
    }

    /// Whether the slices are columns: neighbours in memory belong to neighbouring slices. Then rows are added to one
    /// accumulator per slice.
    pub fn are_columns(&self) -> bool {
        self.inner >= MIN_COLUMNS
    }
}
