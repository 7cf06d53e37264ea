//! Elements to write, by position.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::AtomicU8;

use super::block::{blocks_of, with_scratch};
use super::layout::Layout;
use super::memory::read_bytes;
use crate::element::Ordered;
use crate::isa::{LINE, transfer_words};
use crate::kernel::sum::BLOCK;

/// The memory that a strided target writes.
pub enum Cells<'a, T: Ordered> {
    /// Aligned elements; strides count elements.
    Elements(&'a [T::Cell]),
    /// Unaligned elements, byte by byte; strides count bytes.
    Bytes(&'a [AtomicU8]),
}

#[expect(clippy::expl_impl_clone_on_copy, reason = "derived, it would want the cells themselves to be Clone")]
impl<T: Ordered> Clone for Cells<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Ordered> Copy for Cells<'_, T> {}

/// Bytes of the shortest contiguous runs that are read and written word by word. It takes longer to begin than element by element.
const MIN_WORDS_BYTES: usize = 256;

/// Elements to write, by position.
pub enum Target<'a, T: Ordered> {
    /// Elements one after the other in memory.
    Dense(&'a mut [T]),
    /// Elements one after the other in memory that are unaligned or in the other byte order.
    Bytes {
        /// The memory.
        bytes: &'a mut [u8],
        /// Whether the byte order is not the native one.
        swapped: bool,
    },
    /// Elements by the strides of a layout.
    Strided {
        /// The memory.
        cells: Cells<'a, T>,
        /// Whether the byte order is not the native one.
        swapped: bool,
        /// The place of position 0 of the layout in that memory.
        start: isize,
        /// The distances of the other positions from that place.
        layout: Cow<'a, Layout>,
        /// The positions of the layout that belong to this target.
        range: Range<usize>,
    },
}

impl<T: Ordered> Target<'_, T> {
    /// The number of positions.
    pub fn len(&self) -> usize {
        match self {
            Self::Dense(data) => data.len(),
            Self::Bytes { bytes, .. } => bytes.len() / size_of::<T>(),
            Self::Strided { range, .. } => range.len(),
        }
    }

    /// Whether neighbouring positions share cache lines, and fill at least one: those of long rows do, those of columns do not.
    pub fn fills_lines(&self) -> bool {
        let Self::Strided { cells, layout, .. } = self else { return true };
        let unit = if let Cells::Elements(_) = cells { size_of::<T>() } else { 1 };
        let (apart, len) =
            layout.axes.last().map_or((0, 1), |axis| (axis.stride.unsigned_abs() * unit, axis.len));
        (1..LINE).contains(&apart) && len * apart >= LINE
    }

    /// Cuts the target into parts of at most `len` positions. Each part comes with its first position, counted from 0.
    pub fn parts(&mut self, len: usize) -> impl DoubleEndedIterator<Item = (usize, Target<'_, T>)> {
        let (dense, bytes, strided) = match self {
            Self::Dense(data) => {
                let parts = data.chunks_mut(len).map(Target::Dense);
                (Some(parts.enumerate()), None, None)
            }
            Self::Bytes { bytes, swapped } => {
                let swapped = *swapped;
                let parts = bytes.chunks_mut(len.saturating_mul(size_of::<T>()));
                (None, Some(parts.map(move |bytes| Target::Bytes { bytes, swapped }).enumerate()), None)
            }
            Self::Strided { cells, swapped, start, layout, range } => {
                let (cells, swapped, start, layout, end) = (*cells, *swapped, *start, &**layout, range.end);
                let parts = range.clone().step_by(len).map(move |from| Target::Strided {
                    cells,
                    swapped,
                    start,
                    layout: Cow::Borrowed(layout),
                    range: from..end.min(from + len),
                });
                (None, None, Some(parts.enumerate()))
            }
        };
        let parts = dense.into_iter().flatten().chain(bytes.into_iter().flatten());
        let parts = parts.chain(strided.into_iter().flatten());
        parts.map(move |(i, part)| (i * len, part))
    }

    /// Calls `visit(positions, elements)` for each `len` elements of the target; for at most a block unless the target is dense.
    /// If `visit` returns false, the elements of such a target stay as they are. Unless `reads`, they are not read, and `visit` gets
    /// arbitrary elements.
    pub fn for_blocks_of(
        &mut self,
        len: usize,
        reads: bool,
        mut visit: impl FnMut(Range<usize>, &mut [T]) -> bool,
    ) {
        match self {
            Self::Dense(data) => {
                for (range, block) in blocks_of(len, 0..data.len()).zip(data.chunks_mut(len)) {
                    visit(range, block);
                }
            }
            Self::Bytes { bytes, swapped } => {
                let (count, len) = (bytes.len() / size_of::<T>(), len.min(BLOCK));
                with_scratch(T::ZERO, count, |scratch| {
                    let parts = bytes.chunks_mut(len * size_of::<T>());
                    for (range, bytes) in blocks_of(len, 0..count).zip(parts) {
                        let block = &mut scratch[..range.len()];
                        if reads {
                            read_bytes(bytes, *swapped, block);
                        }
                        if visit(range, block) {
                            write_bytes(block, *swapped, bytes);
                        }
                    }
                });
            }
            Self::Strided { cells, swapped, start, layout, range } => {
                let reverse_bytes = |block: &mut [T]| {
                    // A loop over a block takes whole registers; one over cells, which are atomic, does not.
                    for x in if *swapped { block } else { &mut [] } {
                        *x = x.swapped();
                    }
                };
                with_scratch(T::ZERO, range.len(), |scratch| {
                    for part in blocks_of(len.min(BLOCK), range.clone()) {
                        let block = &mut scratch[..part.len()];
                        if reads {
                            cells.transfer::<false>(*start, layout, part.clone(), block);
                            reverse_bytes(block);
                        }
                        if visit(part.start - range.start..part.end - range.start, block) {
                            reverse_bytes(block);
                            cells.transfer::<true>(*start, layout, part, block);
                        }
                    }
                });
            }
        }
    }
}

/// Writes contiguous elements, byte by byte, see [`read_bytes`].
#[inline(never)]
fn write_bytes<T: Ordered>(from: &[T], swapped: bool, to: &mut [u8]) {
    for (x, to) in from.iter().zip(to.chunks_exact_mut(size_of::<T>())) {
        x.write_bytes(to, swapped);
    }
}

impl<T: Ordered> Cells<'_, T> {
    /// Reads the cells at `range` into `data`, or writes them. The memory of `data` and the cells do not overlap.
    fn transfer<const WRITES: bool>(
        self,
        start: isize,
        layout: &Layout,
        range: Range<usize>,
        mut data: &mut [T],
    ) {
        let step = layout.step();
        match self {
            Self::Elements(cells) if step == 1 && layout.inner_len() * size_of::<T>() >= MIN_WORDS_BYTES => {
                layout.runs(range, |offset, _, count| {
                    let cells = &cells[(start + offset).cast_unsigned()..][..count];
                    transfer_words::<T, WRITES>(data.split_off_mut(..count).unwrap_or_default(), cells);
                });
            }
            Self::Elements(cells) if step != 1 && layout.has_long_runs() => {
                layout.runs(range, |offset, stride, count| {
                    let run = data.split_off_mut(..count).unwrap_or_default();
                    let cells =
                        cells[(start + offset).cast_unsigned()..].iter().step_by(stride.cast_unsigned());
                    run.iter_mut().zip(cells).for_each(|(x, cell)| x.transfer::<WRITES>(cell));
                });
            }
            _ => self.transfer_one_by_one::<WRITES>(start, layout, range, data),
        }
    }

    /// Reads or writes short runs, descending ones and bytes. This is a function of its own, because the compiler makes slower code of
    /// both kinds of runs in one function.
    #[inline(never)]
    fn transfer_one_by_one<const WRITES: bool>(
        self,
        start: isize,
        layout: &Layout,
        range: Range<usize>,
        mut data: &mut [T],
    ) {
        match self {
            // One bounds check for the whole run: tiles of transposed arrays are written here.
            Self::Elements(cells) if layout.step() == 1 => layout.runs(range, |offset, _, count| {
                let cells = &cells[(start + offset).cast_unsigned()..][..count];
                let run = data.split_off_mut(..count).unwrap_or_default();
                run.iter_mut().zip(cells).for_each(|(x, cell)| x.transfer::<WRITES>(cell));
            }),
            Self::Elements(cells) => layout.runs(range, |offset, stride, count| {
                let mut at = start + offset;
                for x in data.split_off_mut(..count).unwrap_or_default() {
                    x.transfer::<WRITES>(&cells[at.cast_unsigned()]);
                    at += stride;
                }
            }),
            Self::Bytes(bytes) => layout.runs(range, |offset, stride, count| {
                let mut at = start + offset;
                for x in data.split_off_mut(..count).unwrap_or_default() {
                    let bytes = &bytes[at.cast_unsigned()..];
                    if WRITES {
                        x.store_bytes(bytes);
                    } else {
                        *x = T::load_bytes(bytes);
                    }
                    at += stride;
                }
            }),
        }
    }
}
