//! Scaling: products are computed in float64 and rounded once.
//!
//! Many 16-bit elements are scaled by way of float32: see [`halves`]. The bits are equal.

use super::halves;
use super::map::{Apply, ApplyEach, Map};
use super::truncate::{narrow_toward_zero, product, product_toward_zero, wide_product};
use crate::element::{Dtype, Real};
use crate::isa::{Isa, StreamGuard};
use crate::scaled::{Factor, Limit, NonFinite};

/// Whether the factor is one step, by a normal number. Then products are NaN only for NaN elements.
#[inline(always)]
fn is_plain(factor: Factor) -> bool {
    factor.then == 1.0 && factor.by.is_normal()
}

/// Scales by one factor.
#[derive(Clone, Copy, Debug)]
pub struct Scale(pub Factor);

impl<T: Real> Map<T> for Scale {
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn map(&self, x: T) -> T {
        let Self(factor) = *self;
        let product = wide_product(x, factor);
        // A NaN element keeps its payload. The NaN that `inf * 0` or a NaN factor makes has one payload, because CPUs generate
        // different ones.
        let fresh = factor.by.is_nan() | (product.is_nan() & !x.widen().is_nan());
        let product = if fresh { f64::NAN } else { product };
        let product = if Factor::erases(factor.by) { 0.0 } else { product };
        if factor.toward_zero() { narrow_toward_zero(product) } else { T::narrow(product) }
    }
    fn apply(self, isa: Isa, guard: Option<&StreamGuard>, from: Option<&[T]>, to: &mut [T]) {
        let Self(factor) = self;
        if factor.toward_zero() || !is_plain(factor) {
            self.apply_any(isa, guard, from, to);
        } else if size_of::<T>() == 2 && to.len() >= MIN_HALVES {
            halves::scale::<T, false>(isa, guard, from, to, factor.by);
        } else {
            Times::<false>(factor.by).apply(isa, guard, from, to);
        }
    }
}

impl Scale {
    /// [`Map::apply`] for factors that are not plain, and for products that are rounded toward zero. It is out of line, because
    /// a few elements take less time than the tests of all cases.
    #[cold]
    #[inline(never)]
    fn apply_any<T: Real>(self, isa: Isa, guard: Option<&StreamGuard>, from: Option<&[T]>, to: &mut [T]) {
        let Self(factor) = self;
        match (factor.toward_zero() && is_plain(factor), size_of::<T>()) {
            (true, 2) => halves::scale::<T, true>(isa, guard, from, to, factor.by),
            (true, _) => Times::<true>(factor.by).apply(isa, guard, from, to),
            (false, _) => isa.run(Apply { from, to, map: self }),
        }
    }

    /// Scales short slices, one after the other, in place or from others.
    pub fn apply_each<'a, T: Real + 'a>(
        self,
        isa: Isa,
        slices: impl Iterator<Item = (Option<&'a [T]>, &'a mut [T])>,
    ) {
        if is_plain(self.0) && !self.0.toward_zero() {
            isa.run(ApplyEach(slices.map(|(from, to)| (from, to, Times::<false>(self.0.by)))));
        } else {
            isa.run(ApplyEach(slices.map(|(from, to)| (from, to, self))));
        }
    }
}

/// Scales by a normal number. If products are rounded toward zero, it is positive and at most 1.
#[derive(Clone, Copy, Debug)]
pub struct Times<const TOWARD_ZERO: bool>(pub f64);

impl<T: Real, const TOWARD_ZERO: bool> Map<T> for Times<TOWARD_ZERO> {
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn map(&self, x: T) -> T {
        product::<T, T, TOWARD_ZERO>(x, self.0)
    }
}

/// The fewest 16-bit elements for which [`halves`] pays.
const MIN_HALVES: usize = 128;

/// Limits the magnitude of each element: a vector of one element, clipped by its norm.
#[derive(Clone, Copy, Debug)]
pub struct ClipMagnitude(pub Limit);

impl ClipMagnitude {
    /// Whether an element of this magnitude stays as it is.
    #[inline(always)]
    fn keeps(self, size: f64) -> bool {
        let (Self(Limit { limit, nonfinite, .. }), (most, _)) = (self, self.0.shares());
        (size <= limit * most) | ((nonfinite == NonFinite::Keep) & !(size < f64::INFINITY))
    }
}

impl<T: Real> Map<T> for ClipMagnitude {
    #[inline(always)]
    fn map(&self, x: T) -> T {
        let wide = x.widen();
        let size = wide.abs();
        let bad = if self.0.nonfinite == NonFinite::Erase { 0.0 } else { f64::NAN };
        let (_, share) = self.0.shares();
        let most = if self.0.margin > 0.0 { product_toward_zero(self.0.limit, share) } else { self.0.limit };
        let clipped = if size < f64::INFINITY { most.copysign(wide) } else { bad };
        let clipped = if self.0.margin > 0.0 { narrow_toward_zero(clipped) } else { T::narrow(clipped) };
        if self.keeps(size) { x } else { clipped }
    }
    #[inline(always)]
    fn changes(&self, x: T) -> bool {
        // True for NaN, whose payload changes.
        !self.keeps(x.widen().abs())
    }
}
