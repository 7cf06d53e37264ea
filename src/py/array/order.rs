//! The order in which the axes of arrays are iterated.

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
    /// Their strides in bytes.
    pub(super) strides: SmallVec<[isize; 4]>,
    /// Whether the last axis, of length 2, goes over the parts of complex numbers.
    pub(super) in_parts: bool,
}

/// An order of axes to iterate, from outer to inner, some of them backwards.
#[derive(Clone, Debug)]
pub(in crate::py) struct IterOrder(SmallVec<[AxisStep; 4]>);

/// One axis of an [`IterOrder`].
#[derive(Clone, Copy, Debug)]
struct AxisStep {
    axis: usize,
    backwards: bool,
    part: Tiling,
}

/// The elements that a loop visits along an axis: all elements, the first element of each tile, or the elements of one tile.
/// The fields are the length of a tile, which divides the length of the axis.
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
    /// The given axes, forwards.
    pub(in crate::py) fn along(axes: impl IntoIterator<Item = usize>) -> Self {
        Self(axes.into_iter().map(|axis| AxisStep::whole(axis, false)).collect())
    }

    /// All axes of an array in the order of its copy, see [`copy_order`].
    pub(super) fn of(array: &Geometry) -> Self {
        Self::sorted(array, |_| true)
    }

    /// An order for both arrays of a pair. An axis is walked backwards only if both arrays have a negative stride along it. The
    /// order is that of the output, unless the arrays are transposed: neighbours in the output lie in different cache lines of
    /// the input, and no cache holds these lines until all of their elements are read.
    pub(super) fn of_pair(input: &Geometry, output: &Geometry) -> Self {
        let (mut walk, by_input) = (Self::of(output), Self::of(input));
        if let (Some(to), Some(from)) = (walk.inner(output), by_input.inner(input)) {
            let (len, apart) = (output.shape[to], input.strides[to].unsigned_abs());
            let is_cached = apart < LINE || len >= TILE_FROM && stay_cached(len, apart);
            if to != from && !is_cached {
                match tile(len) {
                    Some(tile) => walk.cut(to, tile, from),
                    // In the order of the input, at least the reads are contiguous.
                    None => walk = by_input,
                }
            }
        }
        for AxisStep { axis, backwards, .. } in &mut walk.0 {
            *backwards = input.strides[*axis] < 0 && output.strides[*axis] < 0;
        }
        walk
    }

    /// The innermost axis with more than one element and a stride. The axis of the parts of complex numbers is skipped: parts
    /// stay together.
    fn inner(&self, array: &Geometry) -> Option<usize> {
        let of_numbers = array.shape.len() - usize::from(array.in_parts);
        let mut inner_first = self.0.iter().rev().map(|step| step.axis);
        inner_first.find(|axis| *axis < of_numbers && array.shape[*axis] > 1 && array.strides[*axis] != 0)
    }

    /// Cuts an axis into tiles. The loop over the tiles is the outermost one, and the loop over `along` goes around the loop
    /// over one tile. So the cache lines of a tile stay in the cache until all of `along` is done.
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

    /// The layout of an array's elements in this order, and the distance of position 0 from the element with all indices 0.
    pub(super) fn layout(&self, shape: &[usize], strides: &[isize], unit: isize) -> (Layout, isize) {
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

/// Elements of the shortest tile. Beginning a run costs as much as some elements, so that shorter runs are slower than writing
/// a cache line for each element.
const TILE_FROM: usize = 8;

/// The length of the tiles of an axis of `len` elements. The cache lines of one tile stay cached, whatever their addresses.
fn tile(len: usize) -> Option<usize> {
    (TILE_FROM..=64).rev().find(|tile| len.is_multiple_of(*tile))
}

/// Whether `lines` cache lines at a distance of `apart` bytes stay in the L2 cache, and their pages in the TLB. Lines a
/// multiple of a large power of two apart share a few sets of the cache.
fn stay_cached(lines: usize, apart: usize) -> bool {
    const PAGES: usize = 1536;
    let between = (apart & apart.wrapping_neg()).max(LINE);
    lines <= PAGES && lines < (512 << 10) / between
}

/// The axes of an array, split into reduced and kept ones: one slice for each position of the kept axes.
#[derive(Clone, Debug)]
pub(in crate::py) struct ReducedAxes {
    kept: IterOrder,
    reduced: IterOrder,
    /// The number of positions of the kept axes that are inner to all reduced axes.
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

    /// An order of all elements that visits the slices in order, each from beginning to end.
    pub(super) fn rows(&self) -> IterOrder {
        IterOrder(self.kept.0.iter().chain(&self.reduced.0).copied().collect())
    }

    /// The order of the elements of a slice, for an array of such elements. The first axis alone must be kept.
    pub(in crate::py) fn of_slice(&self) -> IterOrder {
        IterOrder(self.reduced.0.iter().map(|step| AxisStep { axis: step.axis - 1, ..*step }).collect())
    }

    /// The slices of an array whose element with all indices 0 lies at `start` in memory.
    pub(super) fn slices<'a, T: Element>(
        &self,
        memory: Memory<'a, T>,
        start: isize,
        array: &Geometry,
        unit: isize,
    ) -> Slices<'a, T> {
        let (kept, first) = self.kept.layout(&array.shape, &array.strides, unit);
        let (reduced, second) = self.reduced.layout(&array.shape, &array.strides, unit);
        Slices { inner: self.inner, ..Slices::new(memory, start + first + second, kept, reduced) }
    }
}

/// The strides of a dense array that has some of the axes of a shape, in the given order in memory, from outer to inner, and
/// repeats its elements along the other axes. `size` is the stride of the innermost axis.
pub(super) fn strides_in(order: &[usize], shape: &[usize], size: usize) -> Vec<isize> {
    let mut strides = vec![0; shape.len()];
    let mut step = size.cast_signed();
    for &axis in order.iter().rev() {
        strides[axis] = step;
        // An array of this shape exists already, so its size fits; NumPy checks it again.
        step = step.saturating_mul(shape[axis].max(1).cast_signed());
    }
    strides
}

/// Broadcasts one value per slice over an array of `shape`, in the order of `walk`. The values are in the order of the axes
/// `kept`, from outer to inner.
pub(in crate::py) fn broadcast_values<'a, T: Element>(
    values: &'a [T],
    kept: &[usize],
    shape: &[usize],
    walk: &IterOrder,
) -> View<'a, T> {
    let (layout, shift) = walk.layout(shape, &strides_in(kept, shape, 1), 1);
    View::new(Memory::Elements(values), shift, Cow::Owned(layout))
}
