//! Axes, the order in which they are walked, and the offsets of positions.

use std::cmp::Reverse;
use std::ops::Range;

use smallvec::SmallVec;

/// The most axes: NumPy's limit of 64, one for the parts of complex numbers, and one for an axis that is cut into tiles.
pub const MAX_AXES: usize = 66;

/// One axis of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The number of steps.
    pub len: usize,
    /// The distance of a step, in the units of the memory.
    pub stride: isize,
}

/// The fewest elements of a run that are read or written through an iterator, in steps other than 1. An iterator takes longer to
/// begin than a loop that checks each index.
const MIN_LONG_RUN: usize = 9;

/// Axes from outer to inner, merged where possible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub(super) axes: SmallVec<[Axis; 2]>,
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

    /// The number of positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no position.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the positions follow each other in memory.
    pub fn is_dense(&self) -> bool {
        self.is_contiguous(1)
    }

    /// Whether elements of this size, in the units of the memory, follow each other.
    pub fn is_contiguous(&self, size: isize) -> bool {
        match self.axes[..] {
            [] => true,
            [Axis { stride, .. }] => stride == size,
            _ => self.len == 0,
        }
    }

    /// The distance of position `at` from position 0.
    #[inline]
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

    /// The number of positions of the inner axis.
    pub(super) fn inner_len(&self) -> usize {
        self.axes.last().map_or(1, |inner| inner.len)
    }

    /// Whether runs ascend, and are long enough for an iterator, which checks its bounds once for a run.
    pub(super) fn has_long_runs(&self) -> bool {
        self.axes.last().is_some_and(|inner| inner.len >= MIN_LONG_RUN && inner.stride > 0)
    }

    /// Calls `run(offset, stride, count)` for each piece of `range` that one stride covers, in order.
    #[inline]
    pub(super) fn runs(&self, range: Range<usize>, mut run: impl FnMut(isize, isize, usize)) {
        let stride = self.step();
        if self.axes.len() == 1 && !range.is_empty() {
            return run(range.start.cast_signed() * stride, stride, range.len());
        }
        self.equal_runs(range, &mut |mut offset, apart, runs, count| {
            for _ in 0..runs {
                run(offset, stride, count);
                offset += apart;
            }
        });
    }

    /// Calls `visit(offset, apart, runs, count)` for the runs of `range`, in order. Each call covers `runs` runs of `count`
    /// positions: the first one is at `offset`, and each of the others is `apart` from the one before. This function has one
    /// copy, and the loop in [`Layout::runs`] has one for each closure.
    fn equal_runs(&self, range: Range<usize>, visit: &mut dyn FnMut(isize, isize, usize, usize)) {
        const ONE: Axis = Axis { len: 1, stride: 0 };
        let (outer, rows, inner) = match self.axes[..] {
            _ if range.is_empty() => return,
            [] => (&[][..], ONE, ONE),
            [inner] => (&[][..], ONE, inner), // not used: `runs` visits the one run
            [ref outer @ .., rows, inner] => (outer, rows, inner),
        };
        let (mut at, mut within) = (range.start / inner.len, range.start % inner.len);
        let mut row = at % rows.len;
        at /= rows.len;
        let mut base = row.cast_signed() * rows.stride;
        let mut index = [0; MAX_AXES];
        for (axis, i) in outer.iter().zip(&mut index).rev() {
            *i = at % axis.len;
            at /= axis.len;
            base += i.cast_signed() * axis.stride;
        }
        let mut left = range.len();
        loop {
            // The first run may begin, and the last run may end, within its axis.
            let (runs, count) = match left / inner.len {
                whole @ 1.. if within == 0 => (whole.min(rows.len - row), inner.len),
                _ => (1, left.min(inner.len - within)),
            };
            visit(base + within.cast_signed() * inner.stride, rows.stride, runs, count);
            left -= runs * count;
            if left == 0 {
                return;
            }
            within = 0;
            row += runs;
            base += runs.cast_signed() * rows.stride;
            if row < rows.len {
                continue;
            }
            row = 0;
            base -= rows.len.cast_signed() * rows.stride;
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

    /// The layout in units of two elements, if the elements lie in pairs, as the parts of complex numbers do.
    pub(super) fn in_pairs(&self) -> Option<Self> {
        let (inner, outer) = self.axes.split_last()?;
        let are_pairs = *inner == Axis { len: 2, stride: 1 } && outer.iter().all(|axis| axis.stride % 2 == 0);
        let axes = || outer.iter().map(|axis| Axis { stride: axis.stride / 2, ..*axis }).collect();
        are_pairs.then(|| Self { axes: axes(), len: self.len / 2 })
    }

    /// The number of positions after which the elements repeat, if they do so along the outermost axis.
    pub(super) fn period(&self) -> Option<usize> {
        let (outer, inner) = self.axes.split_first()?;
        (outer.stride == 0).then(|| inner.iter().map(|axis| axis.len).product())
    }

    /// The stride of the inner axis.
    pub(super) fn step(&self) -> isize {
        self.axes.last().map_or(0, |inner| inner.stride)
    }

    /// The offset of `range`, if its positions are contiguous.
    #[inline]
    pub(super) fn contiguous(&self, range: &Range<usize>) -> Option<isize> {
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
/// other axes.
///
/// This is the insertion sort of NumPy's iterator, which decides where such an axis ends up.
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
/// in this order, so that an array and its copy have the same norm to the last bit, unless the array has axes of negative
/// stride, which are walked backwards.
///
/// `in_parts`: the last axis goes over the two parts of complex numbers, which stay together.
pub fn copy_order(strides: &[isize], in_parts: bool) -> SmallVec<[usize; 4]> {
    let mut axes: SmallVec<[usize; 4]> = (0..strides.len()).collect();
    let numbers = axes.len() - usize::from(in_parts);
    axes[..numbers].sort_by_key(|axis| Reverse(strides[*axis].unsigned_abs()));
    axes
}
