//! Elements to read, by position.

use std::borrow::Cow;
use std::ops::Range;

use super::block::{blocks_of, with_scratch};
use super::layout::Layout;
use super::memory::Memory;
use crate::element::Element;
use crate::kernel::sum::BLOCK;

/// Elements to read, by position.
#[derive(Clone, Debug)]
pub enum View<'a, T> {
    /// Elements one after the other in memory.
    Dense(&'a [T]),
    /// Elements by the strides of a layout.
    Strided {
        /// The memory.
        memory: Memory<'a, T>,
        /// The place of position 0 in that memory.
        start: isize,
        /// The distances of the other positions from that place.
        layout: Cow<'a, Layout>,
    },
}

impl<'a, T: Element> View<'a, T> {
    /// A view, which is dense if its positions follow each other in memory.
    pub fn new(memory: Memory<'a, T>, start: isize, layout: Cow<'a, Layout>) -> Self {
        if let (Memory::Elements(elements), true) = (memory, layout.is_dense()) {
            let from = start.cast_unsigned();
            return Self::Dense(&elements[from..from + layout.len()]);
        }
        Self::Strided { memory, start, layout }
    }

    /// The number of positions.
    pub fn len(&self) -> usize {
        match self {
            Self::Dense(data) => data.len(),
            Self::Strided { layout, .. } => layout.len(),
        }
    }

    /// The elements at `range`, at most a block of them, gathered into `scratch` unless they are contiguous.
    #[inline]
    pub fn block<'b>(&'b self, range: Range<usize>, scratch: &'b mut [T]) -> &'b [T] {
        match self {
            Self::Dense(data) => &data[range],
            Self::Strided { memory, start, layout } => memory.block(*start, layout, range, scratch),
        }
    }

    /// Copies the elements at `range` to a slice of that length.
    pub fn copy_to(&self, range: Range<usize>, to: &mut [T]) {
        match self {
            Self::Dense(data) => to.copy_from_slice(&data[range]),
            Self::Strided { memory, start, layout } => memory.gather(*start, layout, range, to),
        }
    }

    /// The elements at `range`, if they are contiguous.
    #[inline]
    pub fn contiguous(&self, range: &Range<usize>) -> Option<&[T]> {
        match self {
            Self::Dense(data) => Some(&data[range.clone()]),
            Self::Strided { memory, start, layout } => memory.contiguous(*start, layout, range),
        }
    }

    /// Calls `visit` with the elements at `range`, at most a block of them.
    #[inline]
    pub fn with_block<R>(&self, range: Range<usize>, visit: impl FnOnce(&[T]) -> R) -> R {
        match self.contiguous(&range) {
            Some(elements) => visit(elements),
            None => with_scratch(T::ZERO, range.len(), |scratch| visit(self.block(range, scratch))),
        }
    }

    /// Calls `visit` for each block of the elements at `range`, or once for all of them if the view is dense. Blocks begin at
    /// multiples of [`BLOCK`] from the range's start.
    pub fn for_blocks(&self, range: Range<usize>, mut visit: impl FnMut(&[T])) {
        if let Self::Dense(data) = self {
            return visit(&data[range]);
        }
        with_scratch(T::ZERO, range.len(), |scratch| {
            for part in blocks_of(BLOCK, range) {
                visit(self.block(part, scratch));
            }
        });
    }
}
