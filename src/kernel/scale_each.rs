//! Scales each element by a factor of its own.

use super::halves::{from_singles, product, to_singles};
use super::scale::{scaled_by, truncated_by_any};
use super::truncate::truncated;
use crate::element::{Dtype, Real};
use crate::isa::{Level, Op};
use crate::scaled::Factor;
use crate::scaled::Rounding::{self, Nearest, TowardZero};

/// The properties of factors of single elements, and the rounding of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FactorKind {
    /// Whether factors are normal numbers, and no element whose factor is 1 is NaN, so that a product is right without tests.
    pub is_plain: bool,
    /// The rounding of products. If it is toward zero, plain factors are positive and at most 1.
    pub rounding: Rounding,
}

/// Scales each element by its own factor, in place or from another slice.
pub struct ScaleEach<'a, T> {
    /// The elements to read, as many as in `to`. None: `to` is read.
    pub from: Option<&'a [T]>,
    /// The elements to write.
    pub to: &'a mut [T],
    /// The factor of each element.
    pub factors: &'a [f64],
    /// The properties of the factors.
    pub kind: FactorKind,
}

impl<T: Real> Op for ScaleEach<'_, T> {
    type Output = ();
    const CONVERTS: bool = matches!(T::DTYPE, Dtype::F32);
    #[inline(always)]
    fn eval<L: Level>(self, level: L) {
        let FactorKind { is_plain, rounding } = self.kind;
        match (is_plain, rounding) {
            (true, Nearest) if size_of::<T>() == 2 => self.by_singles::<false, L>(level),
            (true, TowardZero) if size_of::<T>() == 2 => self.by_singles::<true, L>(level),
            (true, Nearest) => self.by(|x, by| T::narrow(x.widen() * by)),
            (true, TowardZero) => self.by(truncated::<T, T>),
            (false, Nearest) => self.by(|x, by| unless_one(x, by, T::narrow(scaled_by(x, by)))),
            (false, TowardZero) => {
                self.by(|x, by| unless_one(x, by, truncated_by_any(x, Factor::new(by, 1.0))));
            }
        }
    }
}

/// 16-bit elements to be converted to float32 at a time.
const CONVERTED_AT_ONCE: usize = 128;

impl<T: Real> ScaleEach<'_, T> {
    #[inline(always)]
    fn by(self, scaled: impl Fn(T, f64) -> T) {
        match self.from {
            None => {
                for (x, by) in self.to.iter_mut().zip(self.factors) {
                    *x = scaled(*x, *by);
                }
            }
            Some(from) => {
                for ((to, x), by) in self.to.iter_mut().zip(from).zip(self.factors) {
                    *to = scaled(*x, *by);
                }
            }
        }
    }

    /// Scales 16-bit elements by plain factors, with a loop for each step: see `scale.rs`.
    #[inline(always)]
    fn by_singles<const TOWARD_ZERO: bool, L: Level>(self, level: L) {
        let Self { mut from, to, factors, .. } = self;
        let mut singles = [0.0; CONVERTED_AT_ONCE];
        let parts = to.chunks_mut(CONVERTED_AT_ONCE).zip(factors.chunks(CONVERTED_AT_ONCE));
        for (to, factors) in parts {
            let (singles, _) = singles.split_at_mut(to.len());
            let next = from.as_mut().map(|from| from.split_off(..to.len()).unwrap_or_default());
            let from = next.unwrap_or(&*to);
            to_singles(level, from, singles);
            for (single, by) in singles.iter_mut().zip(factors) {
                *single = product::<T, TOWARD_ZERO>(*single, *by);
            }
            from_singles(level, singles, to);
        }
    }
}

/// The scaled element; the element itself if its factor is 1, so that a signaling NaN keeps its bits.
#[inline(always)]
fn unless_one<T: Real>(x: T, by: f64, scaled: T) -> T {
    if by == 1.0 { x } else { scaled }
}
