//! Elements to read, by position.

use std::borrow::Cow;
use std::ops::Range;

use super::block::{blocks, with_scratch};
use super::layout::Layout;
use super::memory::Memory;
use crate::element::Element;
use crate::kernel::sum::BLOCK;

/// The shortest run for a call of its own, in elements: to gather shorter ones takes less time.
const MIN_RUN: usize = 32;

/// Elements to read, by position.
#[derive(Clone, Debug)]
pub enum View<'a, T> {
    /// One after the other.
    Dense(&'a [T]),
    /// By the strides of a layout.
    Strided {
        /// Where they lie.
        memory: Memory<'a, T>,
        /// Where position 0 lies in it.
        start: isize,
        /// Where the others lie from there.
        layout: Cow<'a, Layout>,
    },
}

impl<'a, T: Element> View<'a, T> {
    /// A view that is dense if it can be.
    #[must_use]
    pub fn new(memory: Memory<'a, T>, start: isize, layout: Cow<'a, Layout>) -> Self {
        if let (Memory::Elements(elements), true) = (memory, layout.is_dense()) {
            let from = start.cast_unsigned();
            return Self::Dense(&elements[from..from + layout.len()]);
        }
        Self::Strided { memory, start, layout }
    }

    /// Positions.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Dense(data) => data.len(),
            Self::Strided { layout, .. } => layout.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements at `range`, at most a block of them, gathered into `scratch` unless they lie side by side.
    #[inline]
    pub fn block<'b>(&'b self, range: Range<usize>, scratch: &'b mut [T]) -> &'b [T] {
        match self {
            Self::Dense(data) => &data[range],
            Self::Strided { memory, start, layout } => memory.block(*start, layout, range, scratch),
        }
    }

    /// Calls `visit` with the elements at `range`, at most a block of them.
    pub fn with_block<R>(&self, range: Range<usize>, visit: impl FnOnce(&[T]) -> R) -> R {
        let dense = match self {
            Self::Dense(data) => Some(&data[range.clone()]),
            Self::Strided { memory, start, layout } => memory.contiguous(*start, layout, &range),
        };
        match (dense, self.constant()) {
            (Some(elements), _) => visit(elements),
            (None, Some(element)) => {
                with_scratch(element, range.len(), |scratch| visit(&scratch[..range.len()]))
            }
            (None, None) => with_scratch(T::ZERO, range.len(), |scratch| visit(self.block(range, scratch))),
        }
    }

    /// Calls `visit` with the elements at `range`, at most a block of them, and with their places in the range: run by run
    /// where long runs lie side by side, as a row that is repeated does, else all at once.
    pub fn with_runs(&self, range: Range<usize>, mut visit: impl FnMut(Range<usize>, &[T])) {
        if let Self::Strided { memory: Memory::Elements(elements), start, layout } = self
            && layout.axes.last().is_some_and(|axis| axis.stride == 1 && axis.len >= MIN_RUN)
        {
            let mut at = 0;
            return layout.runs(range, |offset, _, count| {
                let from = (start + offset).cast_unsigned();
                visit(at..at + count, &elements[from..from + count]);
                at += count;
            });
        }
        let all = 0..range.len();
        self.with_block(range, |elements| visit(all, elements));
    }

    /// The one element that stands at all positions.
    fn constant(&self) -> Option<T> {
        match self {
            Self::Strided { memory: Memory::Elements(elements), start, layout }
                if layout.axes.iter().all(|axis| axis.stride == 0) =>
            {
                elements.get(start.cast_unsigned()).copied()
            }
            _ => None,
        }
    }

    /// Whether it goes through memory in long runs of one step: then it costs nothing to gather few elements at a time.
    pub(super) fn is_in_steps(&self) -> bool {
        let Self::Strided { memory, layout, .. } = self else { return false };
        let is_long = |layout: &Layout| layout.axes.last().is_some_and(|axis| axis.len >= BLOCK);
        match memory {
            Memory::Elements(_) => match layout.in_pairs() {
                Some(pairs) => is_long(&pairs),
                None => is_long(layout) && layout.step() != 1,
            },
            Memory::Bytes { .. } => is_long(layout),
        }
    }

    /// Calls `visit` for the elements at `range`, a block at a time, or all at once where they are dense.
    /// Blocks begin at multiples of [`BLOCK`] from the range's start.
    pub fn for_blocks(&self, range: Range<usize>, mut visit: impl FnMut(&[T])) {
        if let Self::Dense(data) = self {
            return visit(&data[range]);
        }
        with_scratch(T::ZERO, range.len(), |scratch| {
            for part in blocks(range) {
                visit(self.block(part, scratch));
            }
        });
    }
}
