//! The memory of a view, and how its elements are gathered where they do not lie side by side.

use std::ops::Range;

use super::block::NON_TEMPORAL_MIN_BYTES;
use super::layout::Layout;
use crate::element::Element;
use crate::isa::{LINE, prefetch, prefetch_ahead, prefetch_distance};

/// The memory that a view reads.
#[derive(Clone, Copy, Debug)]
pub enum Memory<'a, T> {
    /// Aligned elements in native byte order; strides count elements.
    Elements(&'a [T]),
    /// Anything else, byte by byte; strides count bytes.
    Bytes {
        /// The bytes.
        bytes: &'a [u8],
        /// Whether the byte order is not the native one.
        swapped: bool,
    },
}

impl<'a, T: Element> Memory<'a, T> {
    /// The elements at `range`, if they lie side by side.
    #[inline]
    pub(super) fn contiguous(self, start: isize, layout: &Layout, range: &Range<usize>) -> Option<&'a [T]> {
        let (Self::Elements(elements), Some(offset)) = (self, layout.contiguous(range)) else { return None };
        let from = (start + offset).cast_unsigned();
        Some(&elements[from..from + range.len()])
    }

    /// The elements at `range`, gathered into `scratch` unless they lie side by side.
    #[inline]
    pub(super) fn block<'b>(
        self,
        start: isize,
        layout: &Layout,
        range: Range<usize>,
        scratch: &'b mut [T],
    ) -> &'b [T]
    where
        'a: 'b,
    {
        if let Some(elements) = self.contiguous(start, layout, &range) {
            return elements;
        }
        let gathered = &mut scratch[..range.len()];
        self.gather(start, layout, range, gathered);
        gathered
    }

    /// Gathers the elements at `range`. This is out of line, so that [`Memory::block`] is short enough to be inlined.
    #[inline(never)]
    fn gather(self, start: isize, layout: &Layout, range: Range<usize>, to: &mut [T]) {
        match self {
            Self::Elements(elements) => match layout.in_pairs() {
                Some(layout) if range.start.is_multiple_of(2) && range.end.is_multiple_of(2) => {
                    let pairs = elements[start.cast_unsigned() % 2..].as_chunks::<2>().0;
                    let range = range.start / 2..range.end / 2;
                    let places = Gathered { start: start / 2, layout: &layout, range };
                    places.of_elements(pairs, to.as_chunks_mut().0);
                }
                _ => Gathered { start, layout, range }.of_elements(elements, to),
            },
            Self::Bytes { bytes, swapped: false } => {
                Gathered { start, layout, range }.of_bytes::<_, false>(bytes, to);
            }
            Self::Bytes { bytes, swapped: true } => {
                Gathered { start, layout, range }.of_bytes::<_, true>(bytes, to);
            }
        }
    }
}

/// The number of elements that are gathered between two prefetches. Elements of 2 to 8 bytes, in steps, take whole cache lines.
const GATHERED_PER_PREFETCH: usize = 32;

/// A range of positions that is gathered. Position 0 of the layout lies at `start`.
struct Gathered<'a> {
    start: isize,
    layout: &'a Layout,
    range: Range<usize>,
}

impl Gathered<'_> {
    /// Calls `run` for each piece that one stride covers, with the place of its first element and its part of `to`.
    fn runs<T>(self, to: &mut [T], mut run: impl FnMut(usize, &mut [T])) {
        let mut filled = 0;
        self.layout.runs(self.range, |offset, _, count| {
            run((self.start + offset).cast_unsigned(), &mut to[filled..filled + count]);
            filled += count;
        });
    }

    /// How far ahead to prefetch, in bytes. Strides count `unit` bytes each. The distance is 0 if a cache holds the memory, or if
    /// the loop has just read the same cache lines for other elements.
    fn distance(&self, unit: usize) -> usize {
        let bytes = |stride: isize| stride.unsigned_abs().saturating_mul(unit);
        let Some((inner, outer)) = self.layout.axes.split_last() else { return 0 };
        let is_uncached = self.layout.len().saturating_mul(bytes(inner.stride)) >= NON_TEMPORAL_MIN_BYTES
            && !outer.iter().any(|axis| (1..LINE).contains(&bytes(axis.stride)));
        if is_uncached { prefetch_distance() } else { 0 }
    }

    fn of_elements<T: Copy>(self, elements: &[T], to: &mut [T]) {
        let distance = self.distance(size_of::<T>());
        // Each step has a closure of its own, because runs may have two elements, too few for a branch in each.
        match self.layout.step() {
            0 => self.runs(to, |at, to| to.fill(elements[at])),
            1 => self.runs(to, |at, to| to.copy_from_slice(&elements[at..at + to.len()])),
            2 => self.runs(to, |at, to| every::<T, 2>(&elements[at..], distance, to)),
            3 => self.runs(to, |at, to| every::<T, 3>(&elements[at..], distance, to)),
            4 => self.runs(to, |at, to| every::<T, 4>(&elements[at..], distance, to)),
            -1 => self.runs(to, |at, to| {
                to.iter_mut().zip(elements[..=at].iter().rev()).for_each(|(to, from)| *to = *from);
            }),
            step if distance > 0 && step > 0 => {
                self.runs(to, |at, to| far_steps(&elements[at..], step.unsigned_abs(), distance, to));
            }
            step => self.runs(to, |at, to| steps(elements, at, step, to)),
        }
    }

    fn of_bytes<T: Element, const SWAPPED: bool>(self, bytes: &[u8], to: &mut [T]) {
        let (step, size, distance) = (self.layout.step(), size_of::<T>(), self.distance(1));
        if step != size.cast_signed() {
            return self.runs(to, |at, to| {
                let mut at = at.cast_signed();
                for to in to {
                    *to = T::from_bytes(&bytes[at.cast_unsigned()..], SWAPPED);
                    at += step;
                }
            });
        }
        self.runs(to, |at, to| {
            for (to, from) in
                to.chunks_mut(GATHERED_PER_PREFETCH).zip(bytes[at..].chunks(GATHERED_PER_PREFETCH * size))
            {
                if distance > 0 {
                    prefetch_ahead(from, distance);
                }
                read_bytes::<T, SWAPPED>(from, to);
            }
        });
    }
}

/// Every `STEP`th element, from the first on.
fn every<T: Copy, const STEP: usize>(from: &[T], distance: usize, to: &mut [T]) {
    if distance == 0 {
        return pick::<T, STEP>(from, to);
    }
    for (to, from) in to.chunks_mut(GATHERED_PER_PREFETCH).zip(from.chunks(GATHERED_PER_PREFETCH * STEP)) {
        prefetch_ahead(from, distance);
        // The loop of `pick` handles the last eight elements one at a time. For pairs this short, a `map` uses vectors for these
        // too; for longer groups the compiler makes worse code of it.
        if STEP == 2
            && size_of::<T>() <= 4
            && let Some(groups) = from.as_chunks::<STEP>().0.first_chunk::<GATHERED_PER_PREFETCH>()
            && let Ok(to) = <&mut [T; GATHERED_PER_PREFETCH]>::try_from(&mut *to)
        {
            *to = groups.map(|group| group[0]);
        } else {
            pick::<T, STEP>(from, to);
        }
    }
}

/// [`every`] without prefetching. The compiler knows the step, so it reads vectors and picks elements from them. These are vectors
/// of the baseline, because those of AVX-512 were slower here.
#[inline(always)]
fn pick<T: Copy, const STEP: usize>(from: &[T], to: &mut [T]) {
    let len = to.len();
    for (to, group) in to.iter_mut().zip(from.as_chunks::<STEP>().0) {
        *to = group[0];
    }
    // The memory may end with the last element, whose group is not whole then.
    if let Some(to) = to.last_mut() {
        *to = from[(len - 1) * STEP];
    }
}

/// [`every`] for any step that is not known at compile time, through memory that no cache holds.
fn far_steps<T: Copy>(from: &[T], step: usize, distance: usize, to: &mut [T]) {
    // If a step is longer than a cache line, the loop does not read all lines.
    let line = (LINE / size_of::<T>()).max(step);
    for (to, from) in to.chunks_mut(GATHERED_PER_PREFETCH).zip(from.chunks(GATHERED_PER_PREFETCH * step)) {
        from.chunks(line).for_each(|line| prefetch(line, distance));
        steps(from, 0, step.cast_signed(), to);
    }
}

/// The elements from number `at` on, in steps of either direction.
#[inline(always)]
fn steps<T: Copy>(from: &[T], at: usize, step: isize, to: &mut [T]) {
    let mut at = at.cast_signed();
    for to in to {
        *to = from[at.cast_unsigned()];
        at += step;
    }
}

/// Reads elements that lie side by side as bytes. In a function that is not inlined, the compiler knows that it may read several
/// elements before it writes one.
#[inline(never)]
fn read_bytes<T: Element, const SWAPPED: bool>(from: &[u8], to: &mut [T]) {
    for (to, from) in to.iter_mut().zip(from.chunks_exact(size_of::<T>())) {
        *to = T::from_bytes(from, SWAPPED);
    }
}
