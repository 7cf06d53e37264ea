//! Scales each element by a factor of its own.

use super::halves::by_singles;
use super::map::{Map, make_each};
use super::scale::Scale;
use super::truncate::product;
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
            (true, Nearest) => self.by_plain::<false, L>(level),
            (true, TowardZero) => self.by_plain::<true, L>(level),
            // A factor of 1 keeps the bits of a signaling NaN.
            (false, _) => self.by(|x, by| match by {
                1.0 => x,
                _ => Scale(Factor { rounding, ..Factor::new(by, 1.0) }).map(x),
            }),
        }
    }
}

impl<T: Real> ScaleEach<'_, T> {
    #[inline(always)]
    fn by(self, scaled: impl Fn(T, f64) -> T) {
        make_each(self.from, self.to, self.factors.iter(), |x, by| scaled(x, *by));
    }

    #[inline(always)]
    fn by_plain<const TOWARD_ZERO: bool, L: Level>(self, level: L) {
        if size_of::<T>() > 2 {
            return self.by(product::<T, T, TOWARD_ZERO>);
        }
        let Self { from, to, factors, .. } = self;
        by_singles(level, from, to, |singles, place| {
            for (single, by) in singles.iter_mut().zip(factors.get(place).unwrap_or_default()) {
                *single = product::<T, _, TOWARD_ZERO>(*single, *by);
            }
        });
    }
}
