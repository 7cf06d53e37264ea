//! Norms of differences, which no array holds.

use std::fmt::Debug;
use std::ops::Range;

use super::order::{OverflowRisk, Reduction};
use super::pass::{CHUNK, max_of_view};
use crate::element::Element;
use crate::isa::Isa;
use crate::kernel::difference::{Minus, Subtract};
use crate::kernel::exact::Accumulator;
use crate::kernel::sum::{BLOCK, Total};
use crate::walk::{View, with_scratch};

/// The differences of two arrays of one shape, by the same positions.
#[derive(Debug)]
pub struct Difference<'a, T> {
    /// Read.
    pub t: View<'a, T>,
    /// Subtracted, as many positions.
    pub base: View<'a, T>,
    /// A power of two that both are multiplied by before: below 1, no difference overflows.
    pub by: f64,
}

/// Differences of any dtype.
#[derive(Debug)]
pub struct AnyDifference<'a>(pub(super) Box<dyn Terms + 'a>);

impl<'a, T: Minus> From<Difference<'a, T>> for AnyDifference<'a> {
    fn from(difference: Difference<'a, T>) -> Self {
        Self(Box::new(difference))
    }
}

/// What a pass reads of them.
pub(super) trait Terms: Debug + Send + Sync {
    /// The elements, and the bytes that are read for each.
    fn size(&self) -> (usize, usize);
    /// What may leave float64's range.
    fn risk(&self) -> OverflowRisk;
    /// See [`Reduction::of_view`].
    fn sum(&self, isa: Isa, pass: Reduction, range: Range<usize>) -> Total;
    /// See [`max_of_view`].
    fn max(&self, isa: Isa, range: Range<usize>, by: f64) -> f64;
    /// Adds them up in integers.
    fn add_exactly(&self, isa: Isa, range: Range<usize>, to: &mut Accumulator);
}

impl<T: Minus> Terms for Difference<'_, T> {
    fn size(&self) -> (usize, usize) {
        (self.t.len(), 2 * size_of::<T>())
    }

    fn risk(&self) -> OverflowRisk {
        OverflowRisk::of::<T::Difference>()
    }

    fn sum(&self, isa: Isa, pass: Reduction, range: Range<usize>) -> Total {
        let mut total = Total::default();
        for from in range.clone().step_by(CHUNK) {
            let mut chunk = Total::default();
            let end = range.end.min(from + CHUNK);
            self.for_blocks(isa, from..end, |block| chunk.merge(pass.of_slice(isa, block)));
            total.merge(chunk);
        }
        total
    }

    fn max(&self, isa: Isa, range: Range<usize>, by: f64) -> f64 {
        let mut max = 0.0_f64;
        self.for_blocks(isa, range, |block| {
            let of_block = max_of_view(isa, &View::Dense(block), 0..block.len(), by);
            max = if max.is_nan() || max >= of_block { max } else { of_block };
        });
        max
    }

    fn add_exactly(&self, isa: Isa, range: Range<usize>, to: &mut Accumulator) {
        self.for_blocks(isa, range, |block| to.add(isa, block));
    }
}

impl<T: Minus> Difference<'_, T> {
    /// Calls `visit` with the differences at a range of positions, a block at a time.
    fn for_blocks(&self, isa: Isa, range: Range<usize>, mut visit: impl FnMut(&[T::Difference])) {
        let len = range.len();
        let gathered = |view: &View<'_, T>| if let View::Dense(_) = view { 0 } else { len };
        with_scratch(T::ZERO, gathered(&self.t), |own| {
            with_scratch(T::ZERO, gathered(&self.base), |others| {
                with_scratch(T::Difference::ZERO, len, |made| {
                    for from in range.clone().step_by(BLOCK) {
                        let part = from..range.end.min(from + BLOCK);
                        let to = &mut made[..part.len()];
                        let (t, base) = (self.t.block(part.clone(), own), self.base.block(part, others));
                        isa.run(Subtract { t, base, by: self.by, to: &mut *to });
                        visit(to);
                    }
                });
            });
        });
    }
}
