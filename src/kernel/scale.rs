//! Scaling: products are computed in float64 and rounded once.
//!
//! For 16-bit elements that takes vectors of three widths, for which the compiler makes poor code in one loop. So they are
//! converted by way of float32, with a loop for each step (many by one factor: [`halves`]). The bits are equal.

use super::halves;
use super::map::{ApplyEach, Map, apply_map};
use super::truncate::{Truncate, narrow_toward_zero, product_toward_zero};
use crate::element::{Dtype, Real};
use crate::isa::{Isa, StreamGuard};
use crate::scaled::{Factor, Limit, NonFinite};

/// `x * factor`.
#[inline(always)]
pub(super) fn scaled<T: Real>(x: T, factor: Factor) -> T {
    if is_plain(factor) {
        // A plain factor makes no new NaN. The compiler makes a separate loop of this branch.
        return T::narrow(x.widen() * factor.by);
    }
    T::narrow(canonical(x, factor.by, x.widen() * factor.by * factor.then))
}

/// `x * factor` rounded toward zero, for any factor.
#[inline(always)]
pub(super) fn truncated_by_any<T: Real>(x: T, factor: Factor) -> T {
    let product = canonical(x, factor.by, x.widen() * factor.by * factor.then);
    if T::WIDE {
        let first = product_toward_zero(x.widen(), factor.by);
        return T::narrow(canonical(x, factor.by, product_toward_zero(first, factor.then)));
    }
    narrow_toward_zero(product)
}

/// Scales by any factor, and rounds toward zero.
#[derive(Clone, Copy, Debug)]
struct TruncateAny(Factor);

impl<T: Real> Map<T> for TruncateAny {
    #[inline(always)]
    fn map(&self, x: T) -> T {
        truncated_by_any(x, self.0)
    }
}

/// Whether products with the factor are rounded toward zero and take one step, by a normal number.
#[inline(always)]
pub(super) fn is_truncated(factor: Factor) -> bool {
    factor.toward_zero && is_plain(Factor { toward_zero: false, ..factor })
}

/// Whether products with the factor are NaN only for NaN elements.
#[inline(always)]
pub(super) fn is_plain(factor: Factor) -> bool {
    factor.then == 1.0 && factor.by.is_normal() && !factor.toward_zero
}

/// `x * by` in float64, still to be rounded to T.
#[inline(always)]
pub(super) fn scaled_by<T: Real>(x: T, by: f64) -> f64 {
    canonical(x, by, x.widen() * by)
}

/// The product for `x`. A NaN element keeps its payload. The NaN that `inf * 0` or a NaN factor makes has one payload, because
/// CPUs differ in the one they make.
#[inline(always)]
fn canonical<T: Real>(x: T, by: f64, product: f64) -> f64 {
    let fresh = by.is_nan() | (product.is_nan() & !x.widen().is_nan());
    let product = if fresh { f64::NAN } else { product };
    if Factor::erases(by) { 0.0 } else { product }
}

/// Scales by one factor.
#[derive(Clone, Copy, Debug)]
pub struct Scale(pub Factor);

impl<T: Real> Map<T> for Scale {
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn map(&self, x: T) -> T {
        scaled(x, self.0)
    }
    fn apply(self, isa: Isa, from: Option<&[T]>, to: &mut [T]) {
        if self.0.toward_zero {
            return self.truncate(isa, from, to);
        }
        if !is_for_halves::<T>(self.0, to.len()) {
            return apply_map(isa, self, from, to);
        }
        halves::scale::<T, false>(isa, from, to, self.0.by);
    }
    fn stream_into(self, isa: Isa, guard: &StreamGuard, from: &[T], to: &mut [T]) {
        let by = self.0.by;
        match (is_truncated(self.0), size_of::<T>()) {
            (true, 2) => halves::stream::<T, true>(isa, guard, from, to, by),
            (true, _) => isa.stream(guard, from, to, Truncate(by)),
            (false, _) if !is_plain(self.0) => self.apply(isa, Some(from), to), // rare and slow in any case
            (false, 2) => halves::stream::<T, false>(isa, guard, from, to, by),
            (false, _) => isa.stream(guard, from, to, Times(by)),
        }
    }
}

impl Scale {
    /// Scales and rounds toward zero, in place or from a slice of as many elements.
    #[cold]
    #[inline(never)]
    fn truncate<T: Real>(self, isa: Isa, from: Option<&[T]>, to: &mut [T]) {
        match (is_truncated(self.0), size_of::<T>()) {
            (true, 2) => halves::scale::<T, true>(isa, from, to, self.0.by),
            (true, _) => apply_map(isa, Truncate(self.0.by), from, to),
            (false, _) => apply_map(isa, TruncateAny(self.0), from, to),
        }
    }

    /// Scales short slices, one after the other, in place or from others.
    pub fn apply_each<'a, T: Real + 'a>(
        self,
        isa: Isa,
        slices: impl Iterator<Item = (Option<&'a [T]>, &'a mut [T])>,
    ) {
        if is_plain(self.0) {
            isa.run(ApplyEach(slices.map(|(from, to)| (from, to, Times(self.0.by)))));
        } else if self.0.toward_zero {
            isa.run(ApplyEach(slices.map(|(from, to)| (from, to, TruncateAny(self.0)))));
        } else {
            isa.run(ApplyEach(slices.map(|(from, to)| (from, to, self))));
        }
    }
}

/// Scales by a normal number.
#[derive(Clone, Copy, Debug)]
pub struct Times(pub f64);

impl<T: Real> Map<T> for Times {
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn map(&self, x: T) -> T {
        T::narrow(x.widen() * self.0)
    }
}

/// Whether `len` elements take the fast path of 16-bit floats. For fewer than 128 elements it costs more than it saves.
fn is_for_halves<T: Real>(factor: Factor, len: usize) -> bool {
    size_of::<T>() == 2 && is_plain(factor) && len >= 128
}

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
