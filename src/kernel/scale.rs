//! Scaling: the product is computed in float64 and rounded once.

use super::map::Map;
use crate::element::Real;
use crate::isa::Op;
use crate::scaled::Factor;

/// `x * factor`.
#[inline(always)]
fn scaled<T: Real>(x: T, factor: Factor) -> T {
    if factor.then == 1.0 && factor.by.is_normal() {
        // No NaN comes of this that was none before; the compiler makes a loop of its own for it.
        return T::narrow(x.widen() * factor.by);
    }
    canonical(x, factor.by, x.widen() * factor.by * factor.then)
}

/// `x * by`.
#[inline(always)]
fn scaled_by<T: Real>(x: T, by: f64) -> T {
    canonical(x, by, x.widen() * by)
}

/// The product of x, rounded. A NaN of the data keeps its payload and the NaN that `inf * 0` or a NaN factor
/// makes has one payload, because CPUs differ in the one they choose.
#[inline(always)]
fn canonical<T: Real>(x: T, by: f64, product: f64) -> T {
    let fresh = by.is_nan() | (product.is_nan() & !x.widen().is_nan());
    T::narrow(if fresh { f64::NAN } else { product })
}

/// Scales by one factor.
#[derive(Clone, Copy, Debug)]
pub struct Scale(pub Factor);

impl<T: Real> Map<T> for Scale {
    #[inline(always)]
    fn map(&self, x: T) -> T {
        scaled(x, self.0)
    }
    #[inline(always)]
    fn changes(&self, _: T) -> bool {
        true
    }
}

/// Limits the magnitude of each element: a vector of one element, clipped by its norm.
#[derive(Clone, Copy, Debug)]
pub struct ClipMagnitude(pub f64);

impl<T: Real> Map<T> for ClipMagnitude {
    #[inline(always)]
    fn map(&self, x: T) -> T {
        let wide = x.widen();
        let size = wide.abs();
        let clipped = if size < f64::INFINITY { self.0.copysign(wide) } else { f64::NAN };
        if size <= self.0 { x } else { T::narrow(clipped) }
    }
    #[inline(always)]
    fn changes(&self, x: T) -> bool {
        // True for NaN, whose payload changes.
        !(x.widen().abs() <= self.0)
    }
}

/// Scales each element in place by a factor of its own.
#[derive(Debug)]
pub struct ScaleEach<'a, T> {
    /// Read and written.
    pub data: &'a mut [T],
    /// As many factors.
    pub factors: &'a [f64],
}

impl<T: Real> Op for ScaleEach<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval(self) {
        for (x, by) in self.data.iter_mut().zip(self.factors) {
            *x = scaled_by(*x, *by);
        }
    }
}

/// Scales each element by a factor of its own, from one slice to another.
#[derive(Debug)]
pub struct ScaleEachInto<'a, T> {
    /// Read.
    pub from: &'a [T],
    /// Written, as many elements.
    pub to: &'a mut [T],
    /// As many factors.
    pub factors: &'a [f64],
}

impl<T: Real> Op for ScaleEachInto<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval(self) {
        for ((to, from), by) in self.to.iter_mut().zip(self.from).zip(self.factors) {
            *to = scaled_by(*from, *by);
        }
    }
}
