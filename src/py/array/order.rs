//! In which order the axes of arrays are walked.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::element::Element;
use crate::isa::LINE;
use crate::walk::{Axis, Layout, Memory, Slices, View, copy_order};

/// The axes of an array, in the order of its shape.
#[derive(Clone)]
pub(in crate::py) struct Geometry {
    /// Their lengths.
    pub(super) shape: SmallVec<[usize; 4]>,
    /// Their steps in bytes.
    pub(super) strides: SmallVec<[isize; 4]>,
    /// Whether the last axis, of two steps, goes over the parts of complex numbers.
    pub(super) in_parts: bool,
}

/// An order of axes to walk, from outer to inner, some of them backwards.
#[derive(Clone, Debug)]
pub(in crate::py) struct IterOrder(SmallVec<[AxisStep; 4]>);

/// One of them.
#[derive(Clone, Copy, Debug)]
struct AxisStep {
    axis: usize,
    backwards: bool,
    part: Tiling,
}

/// What a loop visits of an axis: all of it, the first element of each tile, or the elements of one tile. The fields count the
/// elements of a tile, which divides the axis.
#[derive(Clone, Copy, Debug)]
enum Tiling {
    Whole,
    Across(usize),
    Within(usize),
}

impl AxisStep {
    fn whole(axis: usize, backwards: bool) -> Self {
        Self { axis, backwards, part: Tiling::Whole }
    }
}

impl IterOrder {
    /// Some axes, forwards.
    pub(in crate::py) fn along(axes: impl IntoIterator<Item = usize>) -> Self {
        Self(axes.into_iter().map(|axis| AxisStep::whole(axis, false)).collect())
    }

    /// All axes of an array in the order of its copy, see [`copy_order`].
    pub(super) fn of(array: &Geometry) -> Self {
        Self::sorted(array, |_| true)
    }

    /// An order for both arrays of a pair, backwards only where both lie so: that of the output, unless the arrays are
    /// transposed, so that each line of memory that is read has elements for as many lines to write, and no cache holds the
    /// lines until all of them are read.
    pub(super) fn of_pair(input: &Geometry, output: &Geometry) -> Self {
        let (mut walk, by_input) = (Self::of(output), Self::of(input));
        if let (Some(to), Some(from)) = (walk.inner(output), by_input.inner(input)) {
            let (len, apart) = (output.shape[to], input.strides[to].unsigned_abs());
            let is_cached = apart < LINE || len >= TILE_FROM && stay_cached(len, apart);
            if to != from && !is_cached {
                match tile(len) {
                    Some(tile) => walk.cut(to, tile, from),
                    // In the order of the input, what is read at least lies in a row.
                    None => walk = by_input,
                }
            }
        }
        for AxisStep { axis, backwards, .. } in &mut walk.0 {
            *backwards = input.strides[*axis] < 0 && output.strides[*axis] < 0;
        }
        walk
    }

    /// The innermost axis that goes anywhere; not that of the parts of complex numbers, which stay together.
    fn inner(&self, array: &Geometry) -> Option<usize> {
        let of_numbers = array.shape.len() - usize::from(array.in_parts);
        let mut inner_first = self.0.iter().rev().map(|step| step.axis);
        inner_first.find(|axis| *axis < of_numbers && array.shape[*axis] > 1 && array.strides[*axis] != 0)
    }

    /// Cuts an axis into tiles. Each is walked with another axis around it, so that the lines of memory that the tile goes over
    /// stay in the cache until the other axis has been all along them.
    fn cut(&mut self, axis: usize, tile: usize, along: usize) {
        self.0.retain(|step| step.axis != along);
        if let Some(at) = self.0.iter().position(|step| step.axis == axis) {
            let step = self.0.remove(at);
            self.0.insert(at, AxisStep { part: Tiling::Within(tile), ..step });
            self.0.insert(at, AxisStep::whole(along, false));
            self.0.insert(0, AxisStep { part: Tiling::Across(tile), ..step });
        }
    }

    fn sorted(array: &Geometry, wanted: impl Fn(usize) -> bool) -> Self {
        let axes = copy_order(&array.strides, array.in_parts).into_iter().filter(|axis| wanted(*axis));
        Self(axes.map(|axis| AxisStep::whole(axis, array.strides[axis] < 0)).collect())
    }

    /// The layout of an array's elements in this order, and how far position 0 lies from the element with all
    /// indices 0.
    pub(super) fn layout(&self, array: &Geometry, unit: isize) -> (Layout, isize) {
        self.layout_of(&array.shape, &array.strides, unit)
    }

    fn layout_of(&self, shape: &[usize], strides: &[isize], unit: isize) -> (Layout, isize) {
        let mut shift = 0;
        let layout = Layout::new(self.0.iter().map(|&AxisStep { axis, backwards, part }| {
            let (len, stride) = (shape[axis], strides[axis] / unit);
            let (len, stride) = match part {
                Tiling::Whole => (len, stride),
                Tiling::Across(tile) => (len / tile, stride * tile.cast_signed()),
                Tiling::Within(tile) => (tile, stride),
            };
            if backwards && len > 0 {
                shift += (len - 1).cast_signed() * stride;
            }
            Axis { len, stride: if backwards { -stride } else { stride } }
        }));
        if layout.is_empty() { (layout, 0) } else { (layout, shift) }
    }
}

/// Elements of the shortest tile. To begin a run costs as much as some elements, so that shorter runs are slower than to write
/// a line for each element.
const TILE_FROM: usize = 8;

/// The length of the tiles of an axis of `len` elements. The cache lines of one tile stay cached, whatever their addresses are.
fn tile(len: usize) -> Option<usize> {
    (TILE_FROM..=64).rev().find(|tile| len.is_multiple_of(*tile))
}

/// Whether `lines` cache lines that lie `apart` bytes from each other stay in the second-level cache, and their pages in the
/// TLB. Lines a multiple of a large power of two apart share a few sets of the cache.
fn stay_cached(lines: usize, apart: usize) -> bool {
    const PAGES: usize = 1536;
    let between = (apart & apart.wrapping_neg()).max(LINE);
    lines <= PAGES && lines < (512 << 10) / between
}

/// The axes of an array, cut in two: one slice for each position of the kept ones.
#[derive(Clone, Debug)]
pub(in crate::py) struct ReducedAxes {
    kept: IterOrder,
    reduced: IterOrder,
    /// Positions of the kept axes that lie inside all reduced ones.
    inner: usize,
}

impl ReducedAxes {
    /// Reduces the given axes of an array.
    pub(super) fn new(array: &Geometry, reduced: &[usize]) -> Self {
        let order = copy_order(&array.strides, array.in_parts);
        let (shape, is_reduced) = (&array.shape, |axis: usize| reduced.contains(&axis));
        let inner = order.iter().rev().take_while(|axis| !is_reduced(**axis) || shape[**axis] == 1);
        let inner = inner.filter(|axis| !is_reduced(**axis)).map(|axis| shape[*axis]).product();
        let kept = IterOrder::along(order.into_iter().filter(|axis| !is_reduced(*axis)));
        Self { kept, reduced: IterOrder::sorted(array, is_reduced), inner }
    }

    /// The kept axes from outer to inner: the order of the slices.
    pub(in crate::py) fn kept(&self) -> impl Iterator<Item = usize> {
        self.kept.0.iter().map(|step| step.axis)
    }

    /// A walk over all elements that meets the slices in order, each from begin to end.
    pub(super) fn rows(&self) -> IterOrder {
        IterOrder(self.kept.0.iter().chain(&self.reduced.0).copied().collect())
    }

    /// The slices of an array whose element with all indices 0 lies at `start` in memory.
    pub(super) fn slices<'a, T: Element>(
        &self,
        memory: Memory<'a, T>,
        start: isize,
        array: &Geometry,
        unit: isize,
    ) -> Slices<'a, T> {
        let (kept, first) = self.kept.layout(array, unit);
        let (reduced, second) = self.reduced.layout(array, unit);
        Slices::new(memory, start + first + second, kept, reduced).with_inner(self.inner)
    }
}

/// The view of one value per slice by the positions of `walk`, which goes over all elements of an array of
/// `shape`. The values are in the order of the axes `kept`, from outer to inner.
pub(in crate::py) fn spread<'a, T: Element>(
    values: &'a [T],
    kept: &[usize],
    shape: &[usize],
    walk: &IterOrder,
) -> View<'a, T> {
    let mut strides = vec![0; shape.len()];
    let mut step = 1;
    for &axis in kept.iter().rev() {
        strides[axis] = step;
        step *= shape[axis].cast_signed();
    }
    let (layout, shift) = walk.layout_of(shape, &strides, 1);
    View::new(Memory::Elements(values), shift, Cow::Owned(layout))
}
