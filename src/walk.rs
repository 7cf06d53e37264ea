//! From shapes and strides to slices.
//!
//! A [`Layout`] lists the axes of an array from outer to inner, neighbours merged where one stride covers
//! both; the position in that order is the one number by which all operands of an operation are addressed. A
//! [`View`] gives a range of positions as a slice, the memory itself where it lies in a row and a gathered
//! copy of at most a block where it does not, so that a strided, unaligned or byte-swapped array gives the
//! bits of its contiguous copy. A [`Target`] is the same for writing. Everything here is safe code: the
//! memory comes as slices, of elements or of bytes, and strided targets as slices of atomics, because several
//! may lie interleaved in the same memory.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::iter;
use std::ops::Range;
use std::sync::atomic::AtomicU8;

use smallvec::SmallVec;

use crate::element::{Element, Ordered};
use crate::isa::{Aligned, Isa, LINE, StreamGuard, prefetch, prefetch_ahead, prefetch_distance};
use crate::kernel::clip::{AnyOutside, ClipEach};
use crate::kernel::map::{AnyChange, Map};
use crate::kernel::scale::{ScaleEach, ScaleEachInto};
use crate::kernel::sum::BLOCK;

/// NumPy's limit, one more for the parts of complex numbers, and one for an axis that is cut into tiles.
pub const MAX_AXES: usize = 66;

/// One axis: how many steps, and how far each goes (in the units of the memory it walks over).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Steps.
    pub len: usize,
    /// Distance of a step.
    pub stride: isize,
}

/// Axes from outer to inner, merged where possible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    axes: SmallVec<[Axis; 2]>,
    len: usize,
}

impl Layout {
    /// Drops axes of one step and merges neighbours that one stride covers. At most [`MAX_AXES`] axes count.
    pub fn new(axes: impl IntoIterator<Item = Axis>) -> Self {
        let mut merged: SmallVec<[Axis; 2]> = SmallVec::new();
        let mut len = 1;
        for axis in axes.into_iter().take(MAX_AXES) {
            len *= axis.len;
            match merged.last_mut() {
                _ if axis.len == 1 => {}
                Some(outer) if Some(outer.stride) == axis.stride.checked_mul(axis.len.cast_signed()) => {
                    *outer = Axis { len: outer.len * axis.len, stride: axis.stride };
                }
                _ => merged.push(axis),
            }
        }
        Self { axes: merged, len }
    }

    /// Positions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the positions follow each other in memory.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        match self.axes[..] {
            [] => true,
            [Axis { stride, .. }] => stride == 1,
            _ => self.len == 0,
        }
    }

    /// Where position `at` lies.
    #[must_use]
    pub fn offset(&self, mut at: usize) -> isize {
        if let [axis] = self.axes[..] {
            return at.cast_signed() * axis.stride; // without a division
        }
        let mut offset = 0;
        for axis in self.axes.iter().rev() {
            offset += (at % axis.len).cast_signed() * axis.stride;
            at /= axis.len;
        }
        offset
    }

    /// Calls `run(offset, stride, count)` for each piece of `range` that one stride covers, in order.
    fn runs(&self, range: Range<usize>, mut run: impl FnMut(isize, isize, usize)) {
        if range.is_empty() {
            return;
        }
        let Some((inner, outer)) = self.axes.split_last() else {
            return (0..range.len()).for_each(|_| run(0, 0, 1));
        };
        let mut index = [0; MAX_AXES];
        let mut at = range.start / inner.len;
        let mut within = range.start % inner.len;
        let mut base = 0;
        for (axis, i) in outer.iter().zip(&mut index).rev() {
            *i = at % axis.len;
            at /= axis.len;
            base += i.cast_signed() * axis.stride;
        }
        let mut left = range.len();
        loop {
            let count = left.min(inner.len - within);
            run(base + within.cast_signed() * inner.stride, inner.stride, count);
            left -= count;
            if left == 0 {
                return;
            }
            within = 0;
            for (axis, i) in outer.iter().zip(&mut index).rev() {
                *i += 1;
                base += axis.stride;
                if *i < axis.len {
                    break;
                }
                base -= axis.len.cast_signed() * axis.stride;
                *i = 0;
            }
        }
    }

    /// The same in units of two elements, if the elements lie in pairs: the parts of complex numbers that are apart.
    fn in_pairs(&self) -> Option<Self> {
        let (inner, outer) = self.axes.split_last()?;
        let are_pairs = *inner == Axis { len: 2, stride: 1 } && outer.iter().all(|axis| axis.stride % 2 == 0);
        let axes = || outer.iter().map(|axis| Axis { stride: axis.stride / 2, ..*axis }).collect();
        are_pairs.then(|| Self { axes: axes(), len: self.len / 2 })
    }

    /// The stride of the inner axis.
    fn step(&self) -> isize {
        self.axes.last().map_or(0, |inner| inner.stride)
    }

    /// The offset of `range` if it lies in a row.
    fn contiguous(&self, range: &Range<usize>) -> Option<isize> {
        match self.axes.last() {
            _ if range.is_empty() => None,
            None => (range.len() <= 1).then_some(0),
            Some(inner) => {
                let within = if self.axes.len() == 1 { range.start } else { range.start % inner.len };
                (inner.stride == 1 && within + range.len() <= inner.len).then(|| self.offset(range.start))
            }
        }
    }
}

/// The axes of `strides` from outer to inner as they lie in memory: the order that a NumPy ufunc gives its
/// output ("K"). An axis of one step or of stride 0 could stand anywhere and keeps its place among the
/// others.
///
/// This is the insertion sort of NumPy's iterator, which decides where such an axis ends up.
#[must_use]
pub fn memory_order(shape: &[usize], strides: &[isize]) -> SmallVec<[usize; 4]> {
    let size = |axis: usize| if shape[axis] == 1 { 0 } else { strides[axis].unsigned_abs() };
    let mut inner_first: SmallVec<[usize; 4]> = (0..shape.len()).rev().collect();
    for i in 1..inner_first.len() {
        let axis = inner_first[i];
        let mut place = i;
        for j in (0..i).rev() {
            let (own, other) = (size(axis), size(inner_first[j]));
            if own != 0 && other != 0 {
                if other <= own {
                    break;
                }
                place = j;
            }
        }
        inner_first[place..=i].rotate_right(1);
    }
    inner_first.reverse();
    inner_first
}

/// The axes of an array from outer to inner as they lie in NumPy's `copy("K")` of it: by absolute stride, the largest
/// outermost, equal ones in the order of the axes. An axis of stride 0, which repeats each element, is innermost. Norms sum
/// in this order, so that an array and its copy have the same norm to the last bit, unless axes of negative stride, which are
/// walked backwards, make the difference.
///
/// `in_parts`: the last axis goes over the two parts of complex numbers, which stay together.
#[must_use]
pub fn copy_order(strides: &[isize], in_parts: bool) -> SmallVec<[usize; 4]> {
    let mut axes: SmallVec<[usize; 4]> = (0..strides.len()).collect();
    let numbers = axes.len() - usize::from(in_parts);
    axes[..numbers].sort_by_key(|axis| Reverse(strides[*axis].unsigned_abs()));
    axes
}

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

/// Calls `work` with scratch for a block, of `len` elements in all: clearing a whole block would cost more than the
/// work on a few elements.
#[inline]
pub fn with_scratch<T: Copy, R>(zero: T, len: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    const FEW: usize = 64;
    if len <= FEW { work(&mut Aligned([zero; FEW]).0) } else { work(&mut Aligned([zero; BLOCK]).0) }
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

    /// The elements at `range`, at most a block of them, gathered into `scratch` unless they lie in a row.
    #[inline]
    pub fn block<'b>(&'b self, range: Range<usize>, scratch: &'b mut [T]) -> &'b [T] {
        match self {
            Self::Dense(data) => &data[range],
            Self::Strided { memory, start, layout } => memory.block(*start, layout, range, scratch),
        }
    }

    /// Calls `visit` with the elements at `range`, at most a block of them.
    fn with_block<R>(&self, range: Range<usize>, visit: impl FnOnce(&[T]) -> R) -> R {
        if let Some(elements) = self.in_a_row(&range) {
            return visit(elements);
        }
        match self.constant() {
            Some(element) => with_scratch(element, range.len(), |scratch| visit(&scratch[..range.len()])),
            None => with_scratch(T::ZERO, range.len(), |scratch| visit(self.block(range, scratch))),
        }
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

    /// The elements at `range` if they lie in a row.
    fn in_a_row(&self, range: &Range<usize>) -> Option<&[T]> {
        match self {
            Self::Dense(data) => Some(&data[range.clone()]),
            Self::Strided { memory, start, layout } => memory.in_a_row(*start, layout, range),
        }
    }

    /// Whether it goes through memory in long runs of one step: few elements can be gathered at a time then, at no
    /// expense.
    fn is_in_steps(&self) -> bool {
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
    pub fn block(&self) -> Option<Block<'_, T>> {
        let (Memory::Elements(elements), [Axis { len, stride }]) = (self.memory, &self.reduced.axes[..])
        else {
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
        let from = self.start.cast_unsigned();
        let all = self.kept.len() * len;
        (is_block && *stride > 0).then(|| Block { data: &elements[from..from + all], len: *len, inner })
    }

    /// The elements number `element` of slices `range`: a row of the matrix whose columns are the slices. The
    /// scratch has room for as many.
    pub fn row<'b>(&'b self, element: usize, range: Range<usize>, scratch: &'b mut [T]) -> &'b [T] {
        self.memory.block(self.start + self.reduced.offset(element), &self.kept, range, scratch)
    }

    /// Whether the slices are columns: neighbours in memory belong to neighbouring slices. Then rows are
    /// added to one accumulator per slice; a few slices are not worth it.
    #[must_use]
    pub fn are_columns(&self) -> bool {
        self.inner >= MIN_COLUMNS
    }
}

/// Matrices one after the other in memory, of `len` rows of `inner` elements each; the slices are their columns.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a, T> {
    /// All elements.
    pub data: &'a [T],
    /// Rows of a matrix.
    pub len: usize,
    /// Columns of a matrix.
    pub inner: usize,
}

impl<'a, T> Block<'a, T> {
    /// `count` elements of a row of matrix `outer`, from column `first` on.
    #[must_use]
    pub fn row(&self, outer: usize, row: usize, first: usize, count: usize) -> &'a [T] {
        let from = (outer * self.len + row) * self.inner + first;
        &self.data[from..from + count]
    }
}

/// Fewer neighbouring columns are summed one by one.
const MIN_COLUMNS: usize = 4;

/// Cuts a range into blocks.
fn blocks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(BLOCK).map(move |from| from..range.end.min(from + BLOCK))
}

impl<'a, T: Element> Memory<'a, T> {
    /// The elements at `range` if they lie in a row.
    fn in_a_row(self, start: isize, layout: &Layout, range: &Range<usize>) -> Option<&'a [T]> {
        let (Self::Elements(elements), Some(offset)) = (self, layout.contiguous(range)) else { return None };
        let from = (start + offset).cast_unsigned();
        Some(&elements[from..from + range.len()])
    }

    /// The elements at `range`, gathered into `scratch` unless they lie in a row.
    fn block<'b>(self, start: isize, layout: &Layout, range: Range<usize>, scratch: &'b mut [T]) -> &'b [T]
    where
        'a: 'b,
    {
        if let Some(elements) = self.in_a_row(start, layout, &range) {
            return elements;
        }
        let gathered = &mut scratch[..range.len()];
        self.gather(start, layout, range, gathered);
        gathered
    }

    fn gather(&self, start: isize, layout: &Layout, range: Range<usize>, to: &mut [T]) {
        match *self {
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

/// Where what is gathered lies: some positions of a layout, the first of which begins at `start`.
struct Gathered<'a> {
    start: isize,
    layout: &'a Layout,
    range: Range<usize>,
}

impl Gathered<'_> {
    /// Calls `run` with where each piece begins that one stride covers, and with its part of what is gathered.
    fn runs<T>(self, to: &mut [T], mut run: impl FnMut(usize, &mut [T])) {
        let mut filled = 0;
        self.layout.runs(self.range, |offset, _, count| {
            run((self.start + offset).cast_unsigned(), &mut to[filled..filled + count]);
            filled += count;
        });
    }

    /// How far ahead to prefetch, in bytes; strides count `unit` bytes each. 0 where a cache holds the memory, or where the
    /// lines to read were just read for other elements.
    fn distance(&self, unit: usize) -> usize {
        let bytes = |stride: isize| stride.unsigned_abs().saturating_mul(unit);
        let Some((inner, outer)) = self.layout.axes.split_last() else { return 0 };
        let is_far = self.layout.len.saturating_mul(bytes(inner.stride)) >= NON_TEMPORAL_MIN_BYTES
            && !outer.iter().any(|axis| (1..LINE).contains(&bytes(axis.stride)));
        if is_far { prefetch_distance() } else { 0 }
    }

    fn of_elements<T: Copy>(self, elements: &[T], to: &mut [T]) {
        let distance = self.distance(size_of::<T>());
        // A closure for each, as runs may be of two elements and want it short.
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
            for (to, from) in to.chunks_mut(AT_ONCE).zip(bytes[at..].chunks(AT_ONCE * size)) {
                if distance > 0 {
                    prefetch_ahead(from, distance);
                }
                read_bytes::<T, SWAPPED>(from, to);
            }
        });
    }
}

/// Elements to gather before more are prefetched.
const AT_ONCE: usize = 32;

/// Every `STEP`th element, from the first on.
fn every<T: Copy, const STEP: usize>(from: &[T], distance: usize, to: &mut [T]) {
    if distance == 0 {
        return pick::<T, STEP>(from, to);
    }
    for (to, from) in to.chunks_mut(AT_ONCE).zip(from.chunks(AT_ONCE * STEP)) {
        prefetch_ahead(from, distance);
        // The loop of `pick` does the last eight one at a time. Of pairs this short, a `map` does them by vectors, too; of longer
        // groups it makes worse code.
        if STEP == 2
            && size_of::<T>() <= 4
            && let Some(groups) = from.as_chunks::<STEP>().0.first_chunk::<AT_ONCE>()
            && let Ok(to) = <&mut [T; AT_ONCE]>::try_from(&mut *to)
        {
            *to = groups.map(|group| group[0]);
        } else {
            pick::<T, STEP>(from, to);
        }
    }
}

/// [`every`] without asking for memory. As the step is known, the compiler reads vectors and picks from them: vectors of the
/// baseline, for with those of AVX-512 the whole was slower.
#[inline(always)]
fn pick<T: Copy, const STEP: usize>(from: &[T], to: &mut [T]) {
    let len = to.len();
    for (to, group) in to.iter_mut().zip(from.as_chunks::<STEP>().0) {
        *to = group[0];
    }
    // The memory may end with the last one, which is no whole group then.
    if let Some(to) = to.last_mut() {
        *to = from[(len - 1) * STEP];
    }
}

/// [`every`] for a step that the compiler does not know, through memory that no cache holds.
fn far_steps<T: Copy>(from: &[T], step: usize, distance: usize, to: &mut [T]) {
    // Of a step that is longer than a line, not all lines are read.
    let line = (LINE / size_of::<T>()).max(step);
    for (to, from) in to.chunks_mut(AT_ONCE).zip(from.chunks(AT_ONCE * step)) {
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

/// Elements that lie in a row in bytes. Out of line, where the compiler knows that it may read several before it writes one.
#[inline(never)]
fn read_bytes<T: Element, const SWAPPED: bool>(from: &[u8], to: &mut [T]) {
    for (to, from) in to.iter_mut().zip(from.chunks_exact(size_of::<T>())) {
        *to = T::from_bytes(from, SWAPPED);
    }
}

/// The memory that a strided target writes.
#[derive(Debug)]
pub enum Cells<'a, T: Ordered> {
    /// Aligned elements in native byte order; strides count elements.
    Elements(&'a [T::Cell]),
    /// Anything else, byte by byte; strides count bytes.
    Bytes {
        /// The bytes.
        bytes: &'a [AtomicU8],
        /// Whether the byte order is not the native one.
        swapped: bool,
    },
}

#[expect(clippy::expl_impl_clone_on_copy, reason = "derived, it would want the cells themselves to be Clone")]
impl<T: Ordered> Clone for Cells<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Ordered> Copy for Cells<'_, T> {}

/// Elements to write, by position.
#[derive(Debug)]
pub enum Target<'a, T: Ordered> {
    /// One after the other.
    Dense(&'a mut [T]),
    /// By the strides of a layout.
    Strided {
        /// Where they lie.
        cells: Cells<'a, T>,
        /// Where position 0 of the layout lies.
        start: isize,
        /// Where the others lie from there.
        layout: Cow<'a, Layout>,
        /// The positions of the layout that this target has.
        range: Range<usize>,
    },
}

impl<T: Ordered> Target<'_, T> {
    /// Positions.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Dense(data) => data.len(),
            Self::Strided { range, .. } => range.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts it into parts of at most `len` positions, each with the number of the first, counted from 0.
    pub fn parts(&mut self, len: usize) -> impl DoubleEndedIterator<Item = (usize, Target<'_, T>)> {
        let (dense, strided) = match self {
            Self::Dense(data) => {
                let parts = data.chunks_mut(len).map(Target::Dense);
                (Some(parts.enumerate()), None)
            }
            Self::Strided { cells, start, layout, range } => {
                let (cells, start, layout, end) = (*cells, *start, &**layout, range.end);
                let parts = range.clone().step_by(len).map(move |from| Target::Strided {
                    cells,
                    start,
                    layout: Cow::Borrowed(layout),
                    range: from..end.min(from + len),
                });
                (None, Some(parts.enumerate()))
            }
        };
        let parts = dense.into_iter().flatten().chain(strided.into_iter().flatten());
        parts.map(move |(i, part)| (i * len, part))
    }

    /// Calls `visit(positions, elements)` for the target, a block at a time. Where `visit` returns false, a
    /// strided target keeps what it holds. Unless `reads`, the elements of a strided target are not those it
    /// holds.
    fn for_blocks(&mut self, reads: bool, mut visit: impl FnMut(Range<usize>, &mut [T]) -> bool) {
        match self {
            Self::Dense(data) => {
                let mut at = 0;
                for block in data.chunks_mut(BLOCK) {
                    let range = at..at + block.len();
                    at = range.end;
                    visit(range, block);
                }
            }
            Self::Strided { cells, start, layout, range } => {
                with_scratch(T::ZERO, range.len(), |scratch| {
                    for part in blocks(range.clone()) {
                        let block = &mut scratch[..part.len()];
                        if reads {
                            cells.gather(*start, layout, part.clone(), block);
                        }
                        if visit(part.start - range.start..part.end - range.start, block) {
                            cells.scatter(*start, layout, part, block);
                        }
                    }
                });
            }
        }
    }
}

impl<T: Ordered> Cells<'_, T> {
    fn gather(self, start: isize, layout: &Layout, range: Range<usize>, to: &mut [T]) {
        let mut to = to.iter_mut();
        layout.runs(range, |offset, stride, count| {
            let mut at = start + offset;
            for x in to.by_ref().take(count) {
                *x = match self {
                    Self::Elements(cells) => T::load(&cells[at.cast_unsigned()]),
                    Self::Bytes { bytes, swapped } => T::load_bytes(&bytes[at.cast_unsigned()..], swapped),
                };
                at += stride;
            }
        });
    }

    fn scatter(self, start: isize, layout: &Layout, range: Range<usize>, from: &[T]) {
        let mut from = from.iter();
        layout.runs(range, |offset, stride, count| {
            let mut at = start + offset;
            // One check for all of them: tiles of transposed arrays are written here.
            if let (Self::Elements(cells), 1) = (self, stride) {
                let cells = &cells[at.cast_unsigned()..][..count];
                return from.by_ref().zip(cells).for_each(|(x, cell)| x.store(cell));
            }
            for x in from.by_ref().take(count) {
                match self {
                    Self::Elements(cells) => x.store(&cells[at.cast_unsigned()]),
                    Self::Bytes { bytes, swapped } => x.store_bytes(&bytes[at.cast_unsigned()..], swapped),
                }
                at += stride;
            }
        });
    }
}

/// What to do with the elements at given positions, at most a block of them.
pub trait Work<T: Ordered>: Sync {
    /// Whether `apply` would change any. Where not, an output in place is not written.
    fn changes(&self, isa: Isa, at: Range<usize>, data: &[T]) -> bool;
    /// Does it in place.
    fn apply(&self, isa: Isa, at: Range<usize>, data: &mut [T]);
    /// Does it from one slice to another.
    fn apply_into(&self, isa: Isa, at: Range<usize>, from: &[T], to: &mut [T]) {
        to.copy_from_slice(from);
        self.apply(isa, at, to);
    }
    /// The same past the caches, for any number of elements.
    fn stream_into(&self, isa: Isa, guard: &StreamGuard, at: Range<usize>, from: &[T], to: &mut [T]) {
        stream_made(isa, guard, from, to, |part, from, made| {
            self.apply_into(isa, at.start + part.start..at.start + part.end, from, made);
        });
    }
    /// How many elements of a strided input are gathered for each call of `stream_into`, whole lines of them. A call that
    /// clears memory of its own, as the one above, wants many.
    fn gathered_at_once(&self) -> usize {
        BLOCK
    }
}

/// Streams what `make(positions, from, made)` makes, a part after the other. A part is made in the innermost cache: memory is
/// read and written in turns then.
fn stream_made<T: Ordered>(
    isa: Isa,
    guard: &StreamGuard,
    from: &[T],
    to: &mut [T],
    mut make: impl FnMut(Range<usize>, &[T], &mut [T]),
) {
    let made = &mut Aligned([T::ZERO; STREAMED_AT_ONCE]).0[..STREAMED_AT_ONCE / size_of::<T>()];
    let parts = from.chunks(made.len()).zip(to.chunks_mut(made.len()));
    for (begin, (from, to)) in (0..).step_by(made.len()).zip(parts) {
        let made = &mut made[..from.len()];
        make(begin..begin + from.len(), from, made);
        isa.stream(guard, to, &*made);
    }
}

/// The same function for all elements.
#[derive(Clone, Copy, Debug)]
pub struct Uniform<M>(pub M);

impl<T: Ordered, M: Map<T>> Work<T> for Uniform<M> {
    fn changes(&self, isa: Isa, _: Range<usize>, data: &[T]) -> bool {
        isa.run(AnyChange { data, map: self.0 })
    }
    fn apply(&self, isa: Isa, _: Range<usize>, data: &mut [T]) {
        self.0.apply(isa, data);
    }
    fn apply_into(&self, isa: Isa, _: Range<usize>, from: &[T], to: &mut [T]) {
        self.0.apply_into(isa, from, to);
    }
    fn stream_into(&self, isa: Isa, guard: &StreamGuard, _: Range<usize>, from: &[T], to: &mut [T]) {
        self.0.stream_into(isa, guard, from, to);
    }
    fn gathered_at_once(&self) -> usize {
        gathered_at_once::<T>()
    }
}

/// Nothing: a copy.
#[derive(Clone, Copy, Debug)]
pub struct Untouched;

impl<T: Ordered> Work<T> for Untouched {
    fn changes(&self, _: Isa, _: Range<usize>, _: &[T]) -> bool {
        false
    }
    fn apply(&self, _: Isa, _: Range<usize>, _: &mut [T]) {}
    fn stream_into(&self, isa: Isa, guard: &StreamGuard, _: Range<usize>, from: &[T], to: &mut [T]) {
        isa.stream(guard, to, from);
    }
    fn gathered_at_once(&self) -> usize {
        gathered_at_once::<T>()
    }
}

/// A factor for each element.
#[derive(Debug)]
pub struct Factors<'a>(pub View<'a, f64>);

impl<T: crate::element::Real> Work<T> for Factors<'_> {
    fn changes(&self, _: Isa, at: Range<usize>, _: &[T]) -> bool {
        self.0.with_block(at, |factors| factors.iter().any(|factor| *factor != 1.0))
    }
    fn apply(&self, isa: Isa, at: Range<usize>, data: &mut [T]) {
        self.0.with_block(at, |factors| isa.run(ScaleEach { data, factors }));
    }
    fn apply_into(&self, isa: Isa, at: Range<usize>, from: &[T], to: &mut [T]) {
        self.0.with_block(at, |factors| isa.run(ScaleEachInto { from, to, factors }));
    }
}

/// Bounds for each element.
#[derive(Debug)]
pub struct Bounds<'a, T> {
    /// Smallest values.
    pub lo: View<'a, T>,
    /// Largest values.
    pub hi: View<'a, T>,
}

impl<T: Ordered> Work<T> for Bounds<'_, T> {
    fn changes(&self, isa: Isa, at: Range<usize>, data: &[T]) -> bool {
        self.lo.with_block(at.clone(), |lo| self.hi.with_block(at, |hi| isa.run(AnyOutside { data, lo, hi })))
    }
    fn apply(&self, isa: Isa, at: Range<usize>, data: &mut [T]) {
        self.lo.with_block(at.clone(), |lo| self.hi.with_block(at, |hi| isa.run(ClipEach { data, lo, hi })));
    }
    fn stream_into(&self, isa: Isa, guard: &StreamGuard, at: Range<usize>, from: &[T], to: &mut [T]) {
        // Bounds are gathered a block at a time: to clear the scratch memory takes longer than a part of a block.
        for (range, (from, to)) in blocks(at).zip(from.chunks(BLOCK).zip(to.chunks_mut(BLOCK))) {
            self.lo.with_block(range.clone(), |lo| {
                self.hi.with_block(range, |hi| {
                    stream_made(isa, guard, from, to, |part, from, data| {
                        data.copy_from_slice(from);
                        isa.run(ClipEach { data, lo: &lo[part.clone()], hi: &hi[part] });
                    });
                });
            });
        }
    }
}

/// Bytes that no cache holds until they are read again.
pub const NON_TEMPORAL_MIN_BYTES: usize = 32 << 20;

/// How an output is written.
#[derive(Clone, Copy, Debug)]
pub enum Store<'a> {
    /// As any memory.
    Cached,
    /// Past the caches, where the output is dense and the input is, too, or lies in long runs of one step: for outputs
    /// that no cache holds.
    Streamed(&'a StreamGuard),
}

/// Bytes to make in the innermost cache before they are streamed to memory.
const STREAMED_AT_ONCE: usize = 2048;

/// Elements to gather before they are streamed by a loop that makes lines in registers. What is gathered is stored behind
/// the lines streamed before it, which wait for memory: little of it at a time, and the reads of the next are not held up.
/// Elements of 16 bits go by way of the cache in any case, and want more of them at once.
const fn gathered_at_once<T>() -> usize {
    if size_of::<T>() > 2 { 8 * LINE / size_of::<T>() } else { BLOCK }
}

/// Does `work` for the positions of `target`, which begin at `at` of the whole; in place, or from `source`,
/// which has the positions of the whole.
pub fn apply_elementwise<T: Ordered>(
    isa: Isa,
    work: &impl Work<T>,
    source: Option<&View<'_, T>>,
    target: &mut Target<'_, T>,
    at: usize,
    store: Store<'_>,
) {
    let shifted = |range: &Range<usize>| at + range.start..at + range.end;
    match (source, &mut *target, store) {
        (None, target, _) => target.for_blocks(true, |range, data| {
            let changes = work.changes(isa, shifted(&range), data);
            if changes {
                work.apply(isa, shifted(&range), data);
            }
            changes
        }),
        (Some(View::Dense(from)), Target::Dense(to), Store::Streamed(guard)) => {
            let range = at..at + to.len();
            work.stream_into(isa, guard, range.clone(), &from[range], to);
        }
        (Some(View::Dense(from)), target, _) => target.for_blocks(false, |range, data| {
            let range = shifted(&range);
            work.apply_into(isa, range.clone(), &from[range], data);
            true
        }),
        (Some(view), Target::Dense(to), Store::Streamed(guard)) if view.is_in_steps() => {
            // The pieces after the first begin where a line does, so that none of the lines is written in two parts.
            let at_once = work.gathered_at_once();
            let ahead = to.as_ptr().align_offset(LINE).min(to.len()).min(at_once);
            let (first, rest) = to.split_at_mut(ahead);
            with_scratch(T::ZERO, at_once, |scratch| {
                let mut begin = at;
                for to in iter::once(first).chain(rest.chunks_mut(at_once)) {
                    let range = begin..begin + to.len();
                    begin = range.end;
                    work.stream_into(isa, guard, range.clone(), view.block(range, scratch), to);
                }
            });
        }
        (Some(view), target, _) => {
            with_scratch(T::ZERO, target.len(), |scratch| {
                target.for_blocks(false, |range, data| {
                    let range = shifted(&range);
                    work.apply_into(isa, range.clone(), view.block(range, scratch), data);
                    true
                });
            });
        }
    }
}
