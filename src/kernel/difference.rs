//! Differences of elements, computed in float64, and steps from elements toward others.

use super::halves::{FromSingles, ToSingles};
use super::max::MaxAbs;
use crate::element::{Complex, Element, Real, to_odd};
use crate::isa::{Aligned, Level, Op};
use crate::scaled::Factor;

/// An element whose difference from another is computed in float64.
pub trait Minus: Element {
    /// The type of the difference.
    type Difference: Element;
    /// `self * by - base * by`, for a power of two.
    fn minus(self, base: Self, by: f64) -> Self::Difference;
}

impl<T: Real> Minus for T {
    type Difference = f64;
    #[inline(always)]
    fn minus(self, base: Self, by: f64) -> f64 {
        self.widen() * by - base.widen() * by
    }
}

impl<T: Real> Minus for Complex<T>
where
    Self: Element,
{
    type Difference = Complex<f64>;
    #[inline(always)]
    fn minus(self, base: Self, by: f64) -> Complex<f64> {
        let ([re, im], [base_re, base_im]) = (self, base);
        [re.minus(base_re, by), im.minus(base_im, by)]
    }
}

/// The differences of two slices.
pub struct Subtract<'a, T: Minus> {
    /// The minuends.
    pub t: &'a [T],
    /// The subtrahends, one for each minuend.
    pub base: &'a [T],
    /// The power of two that both are multiplied by first.
    pub by: f64,
    /// The differences to write, one for each minuend.
    pub to: &'a mut [T::Difference],
}

impl<T: Minus> Op for Subtract<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        for ((to, t), base) in self.to.iter_mut().zip(self.t).zip(self.base) {
            *to = t.minus(*base, self.by);
        }
    }
}

/// `base + (t - base) * factor`, for each element.
pub struct Approach<'a, T> {
    /// The elements to read and to write: the bases, or the elements `t`.
    pub data: &'a mut [T],
    /// The other operand of each element of `data`.
    pub other: &'a [T],
    /// Whether `data` holds the bases.
    pub is_base: bool,
    /// The factor of the differences.
    pub factor: Factor,
}

impl<T: Real> Op for Approach<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, level: L) {
        let Self { data, other, is_base, factor } = self;
        for (data, other) in data.chunks_mut(AT_ONCE).zip(other.chunks(AT_ONCE)) {
            let has_halves = size_of::<T>() == 2 && factor.then == 1.0;
            if has_halves && approach_halves(level, data, other, is_base, factor.by) {
                continue;
            }
            for (x, other) in data.iter_mut().zip(other) {
                let (t, base) = if is_base { (*other, *x) } else { (*x, *other) };
                *x = approached(t, base, factor);
            }
        }
    }
}

/// Elements of which all or none are computed by [`approach_halves`].
const AT_ONCE: usize = 256;

/// [`Approach`] for a factor of one step and at most [`AT_ONCE`] elements of 16 bits, by way of float32. Returns false, and writes
/// nothing, if a result is infinite or NaN in float32.
#[inline(always)]
fn approach_halves<T: Real, L: Level>(level: L, data: &mut [T], other: &[T], is_base: bool, by: f64) -> bool {
    let [Aligned(mut singles), Aligned(mut others)] = [Aligned([0.0f32; AT_ONCE]); 2];
    ToSingles { from: data, to: singles.split_at_mut(data.len()).0 }.eval(level);
    ToSingles { from: other, to: others.split_at_mut(other.len()).0 }.eval(level);
    for (x, other) in singles.iter_mut().zip(&others) {
        let (x_wide, other) = (f64::from(*x), f64::from(*other));
        let (t, base) = if is_base { (other, x_wide) } else { (x_wide, other) };
        *x = to_odd(base + (t - base) * by);
    }
    let is_finite = f32::from_magnitude(MaxAbs(&singles).eval(level)).is_finite();
    if is_finite {
        FromSingles { from: singles.split_at(data.len()).0, to: data }.eval(level);
    }
    is_finite
}

/// A difference that overflows is computed at half scale. If `t` or the base is NaN, the result has its payload, first that of
/// `t`. Any other NaN has one payload, because CPUs generate different ones.
#[inline(always)]
fn approached<T: Real>(t: T, base: T, factor: Factor) -> T {
    let (t, base) = (t.widen(), base.widen());
    let difference = t - base;
    let near = base + difference * factor.by * factor.then;
    let half = base * 0.5 + (t * 0.5 - base * 0.5) * factor.by * factor.then;
    let overflows = T::DOUBLE & difference.is_infinite() & t.is_finite() & base.is_finite();
    let result = if overflows { half * 2.0 } else { near };
    let nan = if t.is_nan() & !factor.by.is_nan() {
        t
    } else if base.is_nan() & !factor.by.is_nan() {
        base
    } else {
        f64::NAN
    };
    T::narrow(if result.is_nan() { nan } else { result })
}
