//! Clipping to bounds: `max(min(x, hi), lo)`, so `lo` wins where the bounds cross.
//!
//! A value equal to a bound keeps its own bits (-0.0 stays), a NaN keeps its payload, and a NaN bound makes the elements that
//! it applies to NaN. The comparisons are written out because `min` and `max` treat NaN and -0.0 differently from CPU to CPU.

use super::map::{Apply, Map, TESTED_AT_ONCE, make_each};
use crate::element::Ordered;
use crate::isa::{Isa, Level, Op, StreamGuard};

#[inline(always)]
fn clipped<T: Ordered>(x: T, lo: T, hi: T) -> T {
    let below = if x > hi || (hi.is_nan() && !x.is_nan()) { hi } else { x };
    if below < lo || (lo.is_nan() && !below.is_nan()) { lo } else { below }
}

/// Clips to two bounds.
#[derive(Clone, Copy, Debug)]
pub struct Clip<T> {
    /// The smallest value.
    pub lo: T,
    /// The largest value, unless it is below `lo`.
    pub hi: T,
}

impl<T: Ordered> Map<T> for Clip<T> {
    #[inline(always)]
    fn map(&self, x: T) -> T {
        clipped(x, self.lo, self.hi)
    }
    #[inline(always)]
    fn changes(&self, x: T) -> bool {
        (x > self.hi) | (x < self.lo) | ((self.lo.is_nan() | self.hi.is_nan()) & !x.is_nan())
    }
    fn apply(self, isa: Isa, guard: Option<&StreamGuard>, from: Option<&[T]>, to: &mut [T]) {
        match (guard, from) {
            (Some(guard), Some(from)) if !self.lo.is_nan() && !self.hi.is_nan() => {
                isa.stream(guard, from, to, Between(self));
            }
            _ => isa.run(Apply { from, to, map: self }),
        }
    }
}

/// Clips to two bounds that are not NaN.
#[derive(Clone, Copy, Debug)]
pub struct Between<T>(pub Clip<T>);

impl<T: Ordered> Map<T> for Between<T> {
    #[inline(always)]
    fn map(&self, x: T) -> T {
        let Clip { lo, hi } = self.0;
        let below = if x > hi { hi } else { x };
        if below < lo { lo } else { below }
    }
}

/// Clips each element to its own bounds, in place or from another slice.
pub struct ClipEach<'a, T> {
    /// The elements to read, as many as in `to`. None: `to` is read.
    pub from: Option<&'a [T]>,
    /// The elements to write.
    pub to: &'a mut [T],
    /// The smallest value of each element.
    pub lo: &'a [T],
    /// The largest value of each element.
    pub hi: &'a [T],
}

impl<T: Ordered> Op for ClipEach<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        let bounds = self.lo.iter().zip(self.hi);
        make_each(self.from, self.to, bounds, |x, (lo, hi)| clipped(x, *lo, *hi));
    }
}

/// Whether [`ClipEach`] would change an element.
pub struct AnyOutside<'a, T> {
    /// The elements to test.
    pub data: &'a [T],
    /// The smallest value of each element.
    pub lo: &'a [T],
    /// The largest value of each element.
    pub hi: &'a [T],
}

impl<T: Ordered> Op for AnyOutside<'_, T> {
    type Output = bool;
    #[inline(always)]
    fn eval<L: Level>(self, _: L) -> bool {
        let bounds = self.lo.chunks(TESTED_AT_ONCE).zip(self.hi.chunks(TESTED_AT_ONCE));
        for (part, (lo, hi)) in self.data.chunks(TESTED_AT_ONCE).zip(bounds) {
            let mut any = false;
            for ((x, lo), hi) in part.iter().zip(lo).zip(hi) {
                any |= Clip { lo: *lo, hi: *hi }.changes(*x);
            }
            if any {
                return true;
            }
        }
        false
    }
}
