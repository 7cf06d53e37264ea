//! An array cut into slices along some of its axes.

use std::borrow::Cow;
use std::ops::Range;

use super::layout::{Axis, Layout};
use super::memory::Memory;
use super::view::View;
use crate::element::Element;

/// Neighbouring columns that are worth an accumulator each; fewer are reduced one by one.
const MIN_COLUMNS: usize = 4;

/// An array cut into slices along some of its axes: one slice for each position of the kept axes, its
/// elements along the reduced ones.
#[derive(Debug)]
pub struct Slices<'a, T> {
    /// Where the elements lie.
    pub memory: Memory<'a, T>,
    /// Where the first one lies.
    pub start: isize,
    /// Where the slices begin from there.
    pub kept: Layout,
    /// Where a slice's elements lie from its begin.
    pub reduced: Layout,
    /// Slices that lie inside the reduced axes, side by side.
    inner: usize,
}

impl<'a, T: Element> Slices<'a, T> {
    /// Slices by the layouts of kept and reduced axes, where no two of them have the same stride.
    #[must_use]
    pub fn new(memory: Memory<'a, T>, start: isize, kept: Layout, reduced: Layout) -> Self {
        let step = reduced.axes.last().map_or(usize::MAX, |axis| axis.stride.unsigned_abs());
        let inner = kept.axes.iter().rev().take_while(|axis| axis.stride.unsigned_abs() < step);
        let inner = inner.map(|axis| axis.len).product();
        Self { memory, start, kept, reduced, inner }
    }

    /// The same where axes of one stride may be kept and reduced: then their order says how many slices lie inside.
    #[must_use]
    pub fn with_inner(self, inner: usize) -> Self {
        Self { inner, ..self }
    }

    /// Slice number `at`.
    #[must_use]
    pub fn slice(&self, at: usize) -> View<'_, T> {
        View::new(self.memory, self.start + self.kept.offset(at), Cow::Borrowed(&self.reduced))
    }

    /// The elements of slices `range`, one slice after the other, if they lie so.
    #[must_use]
    pub fn dense(&self, range: Range<usize>) -> Option<&[T]> {
        let (Memory::Elements(elements), len) = (self.memory, self.reduced.len()) else { return None };
        let apart = match self.kept.axes[..] {
            [] => true,
            [axis] => axis.stride == len.cast_signed(),
            _ => false,
        };
        let from = self.start.cast_unsigned() + range.start * len;
        (apart && self.reduced.is_dense()).then(|| &elements[from..from + range.len() * len])
    }

    /// The slices as the columns of dense matrices that follow each other, if they are.
    #[must_use]
    pub fn block(&self) -> Option<Block> {
        let (Memory::Elements(_), &[Axis { len, stride }]) = (self.memory, &self.reduced.axes[..]) else {
            return None;
        };
        let inner = stride.cast_unsigned();
        let is_block = match self.kept.axes[..] {
            [columns] => columns == Axis { len: inner, stride: 1 },
            [outer, columns] => {
                columns == Axis { len: inner, stride: 1 } && outer.stride == (len * inner).cast_signed()
            }
            _ => false,
        };
        (is_block && stride > 0).then_some(Block { len, inner })
    }

    /// The elements number `element` of slices `range`: a row of the matrix whose columns are the slices. The
    /// scratch has room for as many.
    #[inline]
    pub fn row<'b>(&'b self, element: usize, range: Range<usize>, scratch: &'b mut [T]) -> &'b [T] {
        self.memory.block(self.start + self.reduced.offset(element), &self.kept, range, scratch)
    }

    /// Whether the slices are columns: neighbours in memory belong to neighbouring slices. Then rows are added to one
    /// accumulator per slice.
    #[must_use]
    pub fn are_columns(&self) -> bool {
        self.inner >= MIN_COLUMNS
    }
}

/// Dense matrices one after the other in memory, whose columns are slices.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Rows of a matrix.
    pub len: usize,
    /// Columns of a matrix.
    pub inner: usize,
}
