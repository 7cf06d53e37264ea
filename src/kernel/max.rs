//! Largest magnitudes. They are compared as integers, where NaN is above infinity: NaN wins, and nothing
//! rounds.

use crate::element::Element;
use crate::isa::Op;

/// The largest magnitude of a slice; that of zero when it is empty.
#[derive(Debug)]
pub struct MaxAbs<'a, T>(pub &'a [T]);

impl<T: Element> Op for MaxAbs<'_, T> {
    type Output = T::Magnitude;
    #[inline(always)]
    fn eval<const FUSED: bool>(self) -> T::Magnitude {
        let mut max = T::Magnitude::default();
        for x in self.0 {
            max = max.max(x.magnitude());
        }
        max
    }
}

/// Raises one maximum per column to the magnitudes of a row.
#[derive(Debug)]
pub struct MaxRow<'a, T: Element> {
    /// One maximum per column.
    pub max: &'a mut [T::Magnitude],
    /// As many elements.
    pub row: &'a [T],
}

impl<T: Element> Op for MaxRow<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval<const FUSED: bool>(self) {
        for (max, x) in self.max.iter_mut().zip(self.row) {
            *max = (*max).max(x.magnitude());
        }
    }
}
