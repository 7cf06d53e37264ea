//! Elements of any dtype as float64, for kernels that take only float64.

use crate::element::Element;
use crate::isa::{Level, Op};

/// Reads the moduli of a slice into another one.
pub struct Widen<'a, T> {
    /// Read.
    pub from: &'a [T],
    /// Written, as many elements.
    pub to: &'a mut [f64],
    /// The power of two that moduli are multiplied by.
    pub by: f64,
    /// If given, one of the numbers whose sum is the modulus is read, exactly; see [`Element::limb`].
    pub limb: Option<usize>,
}

impl<T: Element> Op for Widen<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        let pairs = self.to.iter_mut().zip(self.from);
        if let Some(limb) = self.limb {
            for (to, from) in pairs {
                *to = from.limb(limb);
            }
        } else {
            for (to, from) in pairs {
                *to = from.modulus(self.by);
            }
        }
    }
}
