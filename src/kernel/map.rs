//! Applying a function of one element to many.

use crate::element::Element;
use crate::isa::Op;

/// A function of one element.
pub trait Map<T>: Copy + Sync {
    /// Its value.
    fn map(&self, x: T) -> T;
    /// Whether it may change `x`. Where it never says so, an output in place is not written.
    fn changes(&self, x: T) -> bool;
}

/// Applies `map` in place.
#[derive(Debug)]
pub struct Apply<'a, T, M> {
    /// Read and written.
    pub data: &'a mut [T],
    /// What to apply.
    pub map: M,
}

impl<T: Element, M: Map<T>> Op for Apply<'_, T, M> {
    type Output = ();
    #[inline(always)]
    fn eval(self) {
        for x in self.data {
            *x = self.map.map(*x);
        }
    }
}

/// Applies `map` from one slice to another.
#[derive(Debug)]
pub struct ApplyInto<'a, T, M> {
    /// Read.
    pub from: &'a [T],
    /// Written, as many elements.
    pub to: &'a mut [T],
    /// What to apply.
    pub map: M,
}

impl<T: Element, M: Map<T>> Op for ApplyInto<'_, T, M> {
    type Output = ();
    #[inline(always)]
    fn eval(self) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            *to = self.map.map(*from);
        }
    }
}

/// Whether `map` changes any element.
#[derive(Debug)]
pub struct AnyChange<'a, T, M> {
    /// Read.
    pub data: &'a [T],
    /// What would be applied.
    pub map: M,
}

impl<T: Element, M: Map<T>> Op for AnyChange<'_, T, M> {
    type Output = bool;
    #[inline(always)]
    fn eval(self) -> bool {
        let mut any = false;
        for x in self.data {
            any |= self.map.changes(*x);
        }
        any
    }
}
