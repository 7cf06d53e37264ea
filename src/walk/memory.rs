//! The memory of a view, and how its elements are gathered where they are not contiguous.

use std::ops::Range;

use super::layout::Layout;
use crate::element::Element;

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
    /// The elements at `range`, if they are contiguous.
    #[inline]
    pub(super) fn contiguous(self, start: isize, layout: &Layout, range: &Range<usize>) -> Option<&'a [T]> {
        let (Self::Elements(elements), Some(offset)) = (self, layout.contiguous(range)) else { return None };
        let from = (start + offset).cast_unsigned();
        Some(&elements[from..from + range.len()])
    }

    /// The elements at `range`, gathered into `scratch` unless they are contiguous.
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
    pub(super) fn gather(self, start: isize, layout: &Layout, range: Range<usize>, to: &mut [T]) {
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

    fn of_elements<T: Copy>(self, elements: &[T], to: &mut [T]) {
        // Each kind of step has a closure of its own, because runs may have two elements, too few for a branch in each.
        match self.layout.step() {
            0 => self.runs(to, |at, to| to.fill(elements[at])),
            1 => self.runs(to, |at, to| to.copy_from_slice(&elements[at..at + to.len()])),
            2 => self.runs(to, |at, to| every::<T, 2>(&elements[at..], to)),
            3 => self.runs(to, |at, to| every::<T, 3>(&elements[at..], to)),
            4 => self.runs(to, |at, to| every::<T, 4>(&elements[at..], to)),
            -1 => self.runs(to, |at, to| {
                to.iter_mut().zip(elements[..=at].iter().rev()).for_each(|(to, from)| *to = *from);
            }),
            step if self.layout.has_long_runs() => self.runs(to, |at, to| {
                let from = elements[at..].iter().step_by(step.cast_unsigned());
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }),
            step => self.runs(to, |at, to| in_steps(elements, at, step, to)),
        }
    }

    fn of_bytes<T: Element, const SWAPPED: bool>(self, bytes: &[u8], to: &mut [T]) {
        let (step, size) = (self.layout.step(), size_of::<T>());
        if step == size.cast_signed() {
            return self.runs(to, |at, to| read_bytes(&bytes[at..], SWAPPED, to));
        }
        self.runs(to, |at, to| {
            let mut at = at.cast_signed();
            for to in to {
                *to = T::from_bytes(&bytes[at.cast_unsigned()..], SWAPPED);
                at += step;
            }
        });
    }
}

/// Every `STEP`th element, from the first on. The compiler knows the step, so it reads vectors and picks elements from them.
/// These are vectors of the baseline, because vectors of AVX-512 were slower here.
#[inline(always)]
fn every<T: Copy, const STEP: usize>(from: &[T], to: &mut [T]) {
    let len = to.len();
    for (to, group) in to.iter_mut().zip(from.as_chunks::<STEP>().0) {
        *to = group[0];
    }
    // The memory may end with the last element, whose group is not whole then.
    if let Some(to) = to.last_mut() {
        *to = from[(len - 1) * STEP];
    }
}

/// The elements from number `at` on, in steps of either direction. The slices are parameters of a function, even if it is
/// inlined, so the compiler knows that they do not alias.
#[inline(always)]
fn in_steps<T: Copy>(from: &[T], at: usize, step: isize, to: &mut [T]) {
    let mut at = at.cast_signed();
    for to in to {
        *to = from[at.cast_unsigned()];
        at += step;
    }
}

/// Reads contiguous elements, byte by byte. In a function that is not inlined, the compiler knows that it may read several elements
/// before it writes one.
#[inline(never)]
pub(super) fn read_bytes<T: Element>(from: &[u8], swapped: bool, to: &mut [T]) {
    for (to, from) in to.iter_mut().zip(from.chunks_exact(size_of::<T>())) {
        *to = T::from_bytes(from, swapped);
    }
}
