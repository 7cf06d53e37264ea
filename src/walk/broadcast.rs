//! Operands that are broadcast over an array: bounds, and the factors of slices.

use std::ops::Range;
use std::slice;

use super::layout::Axis;
use super::memory::Memory;
use super::view::View;
use crate::element::Element;
use crate::error::{Result, vec_with_room};
use crate::kernel::sum::BLOCK;

/// The fewest elements of a run of one element that is worth a call of its own. Gathering shorter runs takes less time.
const MIN_RUN: usize = 32;
/// The fewest bytes of such a run.
const MIN_RUN_BYTES: usize = 128;

/// The longest row that is copied where it repeats, in elements. Then the factors of 32,768 columns take 256 KiB.
const MAX_PERIOD: usize = 16 * BLOCK;

/// How often a row that is longer than a block must repeat to be copied, if its elements are not contiguous. The factors of complex
/// columns are such a row: each applies to two parts.
const REPETITIONS: usize = 16;

/// An operand with an element for each position of an array.
pub struct Broadcast<'a, T> {
    view: View<'a, T>,
    /// Copies of a row that repeats along the outermost axis, one after the other, a block longer than the row. So the
    /// elements of any block are contiguous here. Empty if no such row repeats.
    copies: Vec<T>,
    /// The length of that row.
    period: usize,
}

impl<'a, T: Element> Broadcast<'a, T> {
    /// An operand that has the positions of `view`.
    pub fn new(view: View<'a, T>) -> Result<Self> {
        let period = match &view {
            View::Strided { layout, .. } => layout.period().filter(|period| {
                let pays = *period <= BLOCK || layout.step() != 1 && period * REPETITIONS <= view.len();
                pays && (1..=MAX_PERIOD).contains(period)
            }),
            View::Dense(_) => None,
        };
        let Some(period) = period else { return Ok(Self { view, copies: Vec::new(), period: 1 }) };
        let len = view.len().min(period + BLOCK);
        let mut copies = vec_with_room(len)?;
        view.for_blocks(0..period.min(len), |block| copies.extend_from_slice(block));
        while copies.len() < len {
            copies.extend_from_within(..copies.len().min(len - copies.len()));
        }
        Ok(Self { view, copies, period })
    }

    /// Calls `visit` with the elements at `range`, at most a block of them.
    #[inline]
    pub fn with_block<R>(&self, range: Range<usize>, visit: impl FnOnce(&[T]) -> R) -> R {
        if self.copies.is_empty() {
            return self.view.with_block(range, visit);
        }
        let at = range.start % self.period;
        visit(&self.copies[at..at + range.len()])
    }

    /// Whether one element repeats everywhere, or for long, as in a column that repeats.
    pub(super) fn repeats(&self) -> bool {
        match &self.view {
            View::Strided { memory: Memory::Elements(_), layout, .. } if self.copies.is_empty() => {
                let inner = layout.axes.last();
                matches!(inner, Some(Axis { stride: 0, len: len @ MIN_RUN.. }) if len * size_of::<T>() >= MIN_RUN_BYTES)
            }
            _ => self.period == 1 && !self.copies.is_empty(),
        }
    }

    /// Calls `visit` with the elements at `range`, and with their places in the range. Where one element repeats for long, as in a
    /// column that repeats, a call gets each run of it as one element. Otherwise one call gets all elements, at most a block.
    #[inline]
    pub fn with_runs(&self, range: Range<usize>, mut visit: impl FnMut(Range<usize>, &[T])) {
        match (&self.view, self.copies.first()) {
            (_, Some(one)) if self.repeats() => visit(0..range.len(), slice::from_ref(one)),
            (View::Strided { memory: Memory::Elements(elements), start, layout }, _) if self.repeats() => {
                let mut at = 0;
                layout.runs(range, |offset, _, count| {
                    visit(at..at + count, slice::from_ref(&elements[(start + offset).cast_unsigned()]));
                    at += count;
                });
            }
            _ => {
                let all = 0..range.len();
                self.with_block(range, |elements| visit(all, elements));
            }
        }
    }
}
