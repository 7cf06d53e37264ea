//! Elementwise work, from a view to a target or in place.

use std::ops::Range;

use super::block::with_scratch;
use super::broadcast::Broadcast;
use super::target::Target;
use super::view::View;
use crate::element::{Ordered, Real};
use crate::error::Result;
use crate::isa::{Identity, Isa, StreamGuard, on_stack};
use crate::kernel::clip::{AnyOutside, Clip, ClipEach};
use crate::kernel::map::{AnyChange, Map};
use crate::kernel::scale::Scale;
use crate::kernel::scale_each::{FactorKind, ScaleEach};
use crate::kernel::sum::BLOCK;
use crate::scaled::Factor;

/// The kind of stores for an output. With a guard, a dense output that is made from a dense input is written by non-temporal
/// stores, for outputs that no cache holds. All others are written by ordinary stores.
pub type Store<'a> = Option<&'a StreamGuard>;

/// The number of elements that are computed in the L1 cache before non-temporal stores write them to memory.
const STREAMED_PART: usize = 512;

/// The number of elements of one call: a block for operands that are gathered, more for operands that repeat for long, because
/// finding a run takes as long as clipping 1 KiB. 16 KiB stay in the L1 cache.
fn at_once<T>(repeat: bool) -> usize {
    if repeat { BLOCK.max((16 << 10) / size_of::<T>()) } else { BLOCK }
}

/// Elementwise work on the elements at given positions, at most [`Work::at_once`] of them.
pub trait Work<T: Ordered>: Sync {
    /// The most elements of one call.
    fn at_once(&self) -> usize {
        BLOCK
    }
    /// Whether `apply` would change any element. If not, an output in place is not written.
    fn changes(&self, _: Isa, _: Range<usize>, _: &[T]) -> bool {
        true
    }
    /// Does the work, in place or from another slice.
    fn apply(&self, isa: Isa, at: Range<usize>, from: Option<&[T]>, to: &mut [T]);
    /// Does the work by non-temporal stores, for any number of elements.
    fn stream_into(&self, isa: Isa, guard: &StreamGuard, at: Range<usize>, from: &[T], to: &mut [T]) {
        stream_made(isa, guard, from, to, |part, from, made| {
            self.apply(isa, at.start + part.start..at.start + part.end, Some(from), made);
        });
    }
}

/// Writes the elements that `make(positions, from, made)` computes by non-temporal stores, one part after the other. Each part
/// is computed in the L1 cache, so that memory is read and written in turns.
pub fn stream_made<T: Ordered>(
    isa: Isa,
    guard: &StreamGuard,
    from: &[T],
    to: &mut [T],
    mut make: impl FnMut(Range<usize>, &[T], &mut [T]),
) {
    on_stack::<STREAMED_PART, _, _>(T::ZERO, from.len().min(STREAMED_PART), |made| {
        let parts = from.chunks(STREAMED_PART).zip(to.chunks_mut(STREAMED_PART));
        for (begin, (from, to)) in (0..).step_by(STREAMED_PART).zip(parts) {
            let made = &mut made[..from.len()];
            make(begin..begin + from.len(), from, made);
            isa.stream(guard, made, to, Identity);
        }
    });
}

/// Work that applies one function to all elements.
#[derive(Clone, Copy, Debug)]
pub struct Uniform<M>(pub M);

impl<T: Ordered, M: Map<T>> Work<T> for Uniform<M> {
    fn changes(&self, isa: Isa, _: Range<usize>, data: &[T]) -> bool {
        isa.run(AnyChange { data, map: self.0 })
    }
    fn apply(&self, isa: Isa, _: Range<usize>, from: Option<&[T]>, to: &mut [T]) {
        self.0.apply(isa, None, from, to);
    }
    fn stream_into(&self, isa: Isa, guard: &StreamGuard, _: Range<usize>, from: &[T], to: &mut [T]) {
        self.0.apply(isa, Some(guard), Some(from), to);
    }
}

/// Work, or None for a copy.
impl<T: Ordered, W: Work<T>> Work<T> for Option<W> {
    fn at_once(&self) -> usize {
        self.as_ref().map_or(BLOCK, W::at_once)
    }
    fn changes(&self, isa: Isa, at: Range<usize>, data: &[T]) -> bool {
        self.as_ref().is_some_and(|work| work.changes(isa, at, data))
    }
    fn apply(&self, isa: Isa, at: Range<usize>, from: Option<&[T]>, to: &mut [T]) {
        match (self, from) {
            (Some(work), _) => work.apply(isa, at, from, to),
            (None, Some(from)) => to.copy_from_slice(from),
            (None, None) => {}
        }
    }
    fn stream_into(&self, isa: Isa, guard: &StreamGuard, at: Range<usize>, from: &[T], to: &mut [T]) {
        match self {
            Some(work) => work.stream_into(isa, guard, at, from, to),
            None => isa.stream(guard, from, to, Identity),
        }
    }
}

/// A factor for each element.
pub struct Factors<'a> {
    /// The factors, by position.
    pub factors: Broadcast<'a, f64>,
    /// The properties of the factors, and the rounding of products.
    pub kind: FactorKind,
}

impl Factors<'_> {
    /// Scales elements by one factor. With a factor of 1, they keep their bits. This is out of line because of its large stack
    /// frame, which takes time even where it is not used.
    #[inline(never)]
    fn scale_by_one<T: Real>(&self, isa: Isa, by: f64, from: Option<&[T]>, to: &mut [T]) {
        let factor = Factor { rounding: self.kind.rounding, ..Factor::new(by, 1.0) };
        let scaling = (by != 1.0).then_some(Uniform(Scale(factor)));
        scaling.apply(isa, 0..to.len(), from, to);
    }
}

impl<T: Real> Work<T> for Factors<'_> {
    fn at_once(&self) -> usize {
        at_once::<T>(self.factors.repeats())
    }
    fn changes(&self, _: Isa, at: Range<usize>, _: &[T]) -> bool {
        let mut changes = false;
        self.factors.with_runs(at, |_, factors| {
            // Without an early exit, several factors are compared at a time.
            changes |= factors.iter().fold(false, |any, by| any | (*by != 1.0));
        });
        changes
    }
    fn apply(&self, isa: Isa, at: Range<usize>, from: Option<&[T]>, to: &mut [T]) {
        self.factors.with_runs(at, |run, factors| {
            let (from, to) = (from.map(|from| &from[run.clone()]), &mut to[run]);
            match factors {
                [by] => self.scale_by_one(isa, *by, from, to),
                factors => isa.run(ScaleEach { from, to, factors, kind: self.kind }),
            }
        });
    }
}

/// Bounds for each element.
pub struct Bounds<'a, T> {
    lo: Broadcast<'a, T>,
    hi: Broadcast<'a, T>,
}

impl<'a, T: Ordered> Bounds<'a, T> {
    /// Bounds from views of the smallest and the largest values.
    pub fn new(lo: View<'a, T>, hi: View<'a, T>) -> Result<Self> {
        Ok(Self { lo: Broadcast::new(lo)?, hi: Broadcast::new(hi)? })
    }

    /// Whether both bounds repeat for long.
    fn repeat(&self) -> bool {
        self.lo.repeats() && self.hi.repeats()
    }

    fn with_block<R>(&self, at: Range<usize>, visit: impl FnOnce(&[T], &[T]) -> R) -> R {
        self.lo.with_block(at.clone(), |lo| self.hi.with_block(at, |hi| visit(lo, hi)))
    }

    /// Calls `visit` with the bounds at `at` and with their places there: for each run if both bounds repeat, as one bound of each
    /// kind; otherwise once for all of them, at most a block.
    fn with_runs(&self, at: Range<usize>, mut visit: impl FnMut(Range<usize>, &[T], &[T])) {
        if !self.repeat() {
            let all = 0..at.len();
            return self.with_block(at, |lo, hi| visit(all, lo, hi));
        }
        let shifted = |part: &Range<usize>, by: usize| part.start + by..part.end + by;
        self.lo.with_runs(at.clone(), |part, lo| {
            self.hi.with_runs(shifted(&part, at.start), |within, hi| {
                visit(shifted(&within, part.start), lo, hi);
            });
        });
    }
}

impl<T: Ordered> Work<T> for Bounds<'_, T> {
    fn at_once(&self) -> usize {
        at_once::<T>(self.repeat())
    }
    fn changes(&self, isa: Isa, at: Range<usize>, data: &[T]) -> bool {
        let mut changes = false;
        self.with_runs(at, |part, lo, hi| {
            let data = &data[part];
            changes = changes
                || match (lo, hi) {
                    (&[lo], &[hi]) => isa.run(AnyChange { data, map: Clip { lo, hi } }),
                    _ => isa.run(AnyOutside { data, lo, hi }),
                };
        });
        changes
    }
    fn apply(&self, isa: Isa, at: Range<usize>, from: Option<&[T]>, to: &mut [T]) {
        self.with_runs(at, |run, lo, hi| {
            let (from, to) = (from.map(|from| &from[run.clone()]), &mut to[run]);
            match (lo, hi) {
                (&[lo], &[hi]) => Clip { lo, hi }.apply(isa, None, from, to),
                _ => isa.run(ClipEach { from, to, lo, hi }),
            }
        });
    }
}

/// Does `work` for the positions of `target`, which begin at position `at` of the whole array: in place, or from `source`,
/// which has the positions of the whole array.
pub fn apply_elementwise<T: Ordered>(
    isa: Isa,
    work: &impl Work<T>,
    source: Option<&View<'_, T>>,
    target: &mut Target<'_, T>,
    at: usize,
    store: Store<'_>,
) {
    let shifted = |range: Range<usize>| at + range.start..at + range.end;
    match (source, &mut *target, store) {
        (None, target, _) => target.for_blocks_of(work.at_once(), true, |range, data| {
            let changes = work.changes(isa, shifted(range.clone()), data);
            if changes {
                work.apply(isa, shifted(range), None, data);
            }
            changes
        }),
        (Some(View::Dense(from)), Target::Dense(to), Some(guard)) => {
            let range = at..at + to.len();
            work.stream_into(isa, guard, range.clone(), &from[range], to);
        }
        (Some(view), target, _) => {
            let (gathered, at_once) =
                if let View::Dense(_) = view { (0, work.at_once()) } else { (target.len(), BLOCK) };
            with_scratch(T::ZERO, gathered, |scratch| {
                target.for_blocks_of(at_once, false, |range, data| {
                    let range = shifted(range);
                    work.apply(isa, range.clone(), Some(view.block(range, scratch)), data);
                    true
                });
            });
        }
    }
}
