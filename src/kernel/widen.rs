//! Elements of any dtype as float64, for kernels that take only float64.

use crate::element::Element;
use crate::isa::{Level, Op};

/// Converts the moduli of elements to float64.
pub struct Widen<'a, T> {
    /// The elements to read.
    pub from: &'a [T],
    /// The moduli to write, one for each element.
    pub to: &'a mut [f64],
    /// The power of two that moduli are multiplied by.
    pub by: f64,
    /// If given, the limb with this number is written instead of the modulus, exactly; see [`Element::limb`].
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
