//! Scaling: the product is computed in float64 and rounded once.

use super::map::Map;
use crate::element::Real;
use crate::isa::Op;
use crate::scaled::Factor;

/// `x * factor`. A NaN keeps its payload and the NaN that `inf * 0` or a NaN factor makes has one payload, because CPUs
/// differ in the one they choose.
#[inline(always)]
fn scaled<T: Real>(x: T, factor: Factor) -> T {
    let wide = x.widen();
    let product = wide * factor.by * factor.then;
    let fresh = factor.by.is_nan() | (product.is_nan() & !wide.is_nan());
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
            *x = scaled(*x, Factor { by: *by, then: 1.0 });
        }
    }
}
