//! Largest magnitudes. They are compared as integers, so nothing is rounded, and NaN is above infinity.

use crate::element::Element;
use crate::isa::{Level, Op, prefetch_ahead, prefetch_distance};

/// Bytes to prefetch at a time: many whole registers.
const PREFETCH_AT_ONCE: usize = 2 << 10;

/// The largest magnitude of a slice; the magnitude of zero if the slice is empty.
pub struct MaxAbs<'a, T>(pub &'a [T]);

impl<T: Element> Op for MaxAbs<'_, T> {
    type Output = T::Magnitude;
    #[inline(always)]
    fn eval<L: Level>(self, _: L) -> T::Magnitude {
        let (mut max, distance) = (T::Magnitude::default(), prefetch_distance());
        for part in self.0.chunks(PREFETCH_AT_ONCE / size_of::<T>()) {
            prefetch_ahead(part, distance);
            for x in part {
                max = max.max(x.magnitude());
            }
        }
        max
    }
}

/// Raises one maximum per column to the magnitudes of a row.
pub struct MaxRow<'a, T: Element> {
    /// One maximum per column.
    pub max: &'a mut [T::Magnitude],
    /// The row, with one element per column.
    pub row: &'a [T],
}

impl<T: Element> Op for MaxRow<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        for (max, x) in self.max.iter_mut().zip(self.row) {
            *max = (*max).max(x.magnitude());
        }
    }
}
