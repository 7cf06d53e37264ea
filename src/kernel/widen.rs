//! Elements of any dtype as float64, for kernels that take only float64.

use crate::element::Element;
use crate::isa::{Level, Op};

/// A conversion of an element to float64.
pub trait Reading: Copy + Sync {
    /// The number for `x`.
    fn of<T: Element>(&self, x: T) -> f64;
}

/// The modulus, times a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Modulus(pub f64);
/// One of the numbers whose sum is the modulus, exactly; see [`Element::limb`].
#[derive(Clone, Copy, Debug)]
pub struct Limb(pub usize);

impl Reading for Modulus {
    #[inline(always)]
    fn of<T: Element>(&self, x: T) -> f64 {
        x.modulus(self.0)
    }
}
impl Reading for Limb {
    #[inline(always)]
    fn of<T: Element>(&self, x: T) -> f64 {
        x.limb(self.0)
    }
}

/// Reads a slice into another one.
pub struct Widen<'a, T, R> {
    /// Read.
    pub from: &'a [T],
    /// Written, as many elements.
    pub to: &'a mut [f64],
    /// The conversion.
    pub reading: R,
}

impl<T: Element, R: Reading> Op for Widen<'_, T, R> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            *to = self.reading.of(*from);
        }
    }
}
