//! Elementwise functions applied to slices.

use crate::element::Ordered;
use crate::isa::{Isa, Level, Lines, Op, StreamGuard};

/// A function of one element.
pub trait Map<T: Ordered>: Copy + Sync {
    /// See [`Op::CONVERTS`].
    const CONVERTS: bool = false;
    /// The function's value for `x`.
    fn map(&self, x: T) -> T;
    /// Whether the function may change `x`. If it changes no element, an output in place is not written.
    #[inline(always)]
    fn changes(&self, _: T) -> bool {
        true
    }

    /// Applies the function to all elements, in place or from another slice. With a guard, the results from another slice may
    /// be written by non-temporal stores, see [`Isa::stream`].
    fn apply(self, isa: Isa, guard: Option<&StreamGuard>, from: Option<&[T]>, to: &mut [T]) {
        match (guard, from) {
            (Some(guard), Some(from)) => isa.stream(guard, from, to, self),
            _ => isa.run(Apply { from, to, map: self }),
        }
    }
}

/// Writes `make(x, other)` for each element `x`, in place or from another slice.
#[inline(always)]
pub(super) fn make_each<T: Copy, O>(
    from: Option<&[T]>,
    to: &mut [T],
    others: impl Iterator<Item = O>,
    make: impl Fn(T, O) -> T,
) {
    if let Some(from) = from {
        for ((to, x), other) in to.iter_mut().zip(from).zip(others) {
            *to = make(*x, other);
        }
    } else {
        for (x, other) in to.iter_mut().zip(others) {
            *x = make(*x, other);
        }
    }
}

/// Applies `map` to all elements, in place or from another slice.
pub struct Apply<'a, T, M> {
    /// The elements to read, as many as in `to`. None: `to` is read.
    pub from: Option<&'a [T]>,
    /// The elements to write.
    pub to: &'a mut [T],
    /// The function.
    pub map: M,
}

impl<T: Ordered, M: Map<T>> Op for Apply<'_, T, M> {
    type Output = ();
    const CONVERTS: bool = M::CONVERTS;
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        // Not by `make_each`, whose loop has one and a half times as many instructions for 16-bit elements.
        match self.from {
            None => {
                for x in self.to {
                    *x = self.map.map(*x);
                }
            }
            Some(from) => {
                for (to, x) in self.to.iter_mut().zip(from) {
                    *to = self.map.map(*x);
                }
            }
        }
    }
}

/// Applies a function to each of several slices in one call: a call for each slice costs more than a few elements. The iterator
/// has the slice to read (None: the slice to write is read), the slice to write, of the same length, and the function.
pub struct ApplyEach<I>(pub I);

impl<'a, T, I, M> Op for ApplyEach<I>
where
    T: Ordered + 'a,
    I: Iterator<Item = (Option<&'a [T]>, &'a mut [T], M)>,
    M: Map<T>,
{
    type Output = ();
    const CONVERTS: bool = M::CONVERTS;
    #[inline(always)]
    fn eval<L: Level>(self, level: L) {
        for (from, to, map) in self.0 {
            Apply { from, to, map }.eval(level);
        }
    }
}

impl<T: Ordered, M: Map<T>> Lines<T> for M {
    #[inline(always)]
    fn line<const N: usize, L: Level>(&self, _: L, from: &[T; N]) -> [T; N] {
        let mut made = *from;
        for x in &mut made {
            *x = self.map(*x);
        }
        made
    }
}

/// Elements that [`AnyChange`] tests between two branches: enough for wide registers, few enough to stop soon after a change.
pub(super) const TESTED_AT_ONCE: usize = 128;

/// Whether `map` changes any element.
pub struct AnyChange<'a, T, M> {
    /// The elements to test.
    pub data: &'a [T],
    /// The function.
    pub map: M,
}

impl<T: Ordered, M: Map<T>> Op for AnyChange<'_, T, M> {
    type Output = bool;
    #[inline(always)]
    fn eval<L: Level>(self, _: L) -> bool {
        for part in self.data.chunks(TESTED_AT_ONCE) {
            let mut any = false;
            for x in part {
                any |= self.map.changes(*x);
            }
            if any {
                return true;
            }
        }
        false
    }
}
