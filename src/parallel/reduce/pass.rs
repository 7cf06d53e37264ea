//! One pass over the elements of an array: the kernel that adds them up, and the norm that follows from the sum.

use std::convert::Infallible;
use std::ops::Range;

use super::order::{Order, Reduction};
use crate::element::{Dtype, Element, F16};
use crate::isa::{Isa, slice_of};
use crate::kernel::exact::Accumulator;
use crate::kernel::halves::ToSingles;
use crate::kernel::max::MaxAbs;
use crate::kernel::power::PowerTerms;
use crate::kernel::rows::{MAX_ROWS_AT_ONCE, PlainNorms};
use crate::kernel::sum::{Abs, BLOCK, Rescaled, SHORT_ROW, Square, Sum, SumEach, SumShortRows, Total};
use crate::kernel::widen::Widen;
use crate::scaled::{FromNorm, Scaled};
use crate::walk::{Slices, View, with_scratch};

/// Elements that one thread sums at a time: a multiple of [`BLOCK`], so that a chunk cuts no block.
pub const CHUNK: usize = 64 * BLOCK;

/// Evaluates `$body` with the term of a pass over magnitudes or squares, which have kernels for rows and columns of all dtypes.
macro_rules! with_direct_term {
    ($pass:expr, $term:ident => $body:expr) => {{
        use $crate::kernel::sum::{Abs, Square};
        if let Reduction::Abs = $pass {
            let $term = Abs;
            $body
        } else {
            let $term = Square;
            $body
        }
    }};
}

/// Evaluates `$body` with the term of any pass, for elements that [`Reduction::widen`] has converted if the pass rescales or
/// raises to a power.
macro_rules! with_term {
    ($pass:expr, $term:ident => $body:expr) => {{
        use $crate::kernel::power::HalfPower;
        use $crate::kernel::sum::{Abs, Square};
        match $pass {
            Reduction::Abs | Reduction::RescaledAbs(_) | Reduction::Power(_) => {
                let $term = Abs;
                $body
            }
            Reduction::Square | Reduction::RescaledSquare(_) => {
                let $term = Square;
                $body
            }
            Reduction::HalfPower(1) => {
                let $term = HalfPower::<1>;
                $body
            }
            Reduction::HalfPower(3) => {
                let $term = HalfPower::<3>;
                $body
            }
            Reduction::HalfPower(6) => {
                let $term = HalfPower::<6>;
                $body
            }
            Reduction::HalfPower(_) => {
                let $term = HalfPower::<8>;
                $body
            }
        }
    }};
}
pub(super) use {with_direct_term, with_term};

impl Reduction {
    pub(super) fn of_slice<T: Element>(self, isa: Isa, data: &[T]) -> Total {
        match self {
            Self::Abs | Self::Square if T::DIRECT => {
                with_direct_term!(self, term => isa.run(Sum { data, term }))
            }
            // Integers, bools and complex64.
            _ if const { !T::DOUBLE && !(T::DIRECT && size_of::<T>() <= size_of::<f32>()) } => {
                self.of_moduli(isa, data)
            }
            Self::Power(_) => self.of_moduli(isa, data),
            Self::RescaledAbs(by) => isa.run(Sum { data, term: Rescaled(Abs, by) }),
            Self::RescaledSquare(by) => isa.run(Sum { data, term: Rescaled(Square, by) }),
            _ => with_term!(self, term => isa.run(Sum { data, term })),
        }
    }

    /// The sum of elements that are converted to float64 first.
    fn of_moduli<T: Element>(self, isa: Isa, data: &[T]) -> Total {
        with_scratch(0.0, data.len(), |scratch| {
            let mut total = Total::default();
            for from in data.chunks(BLOCK) {
                let to = &mut scratch[..from.len()];
                for limb in 0..self.limbs::<T>() {
                    self.widen(isa, from, to, limb);
                    total.merge(with_term!(self, term => isa.run(Sum { data: &*to, term })));
                }
            }
            total
        })
    }

    /// How many times [`Reduction::widen`] is called. The results of all calls are added up.
    pub(super) fn limbs<T: Element>(self) -> usize {
        // Limbs keep the terms of sums of integers exact. Squares beyond 2^53 are not exact in any case.
        if let Self::Abs = self { T::LIMBS } else { 1 }
    }

    /// Converts the elements to float64, and rescales them or raises them to a power if this pass does.
    pub(super) fn widen<T: Element>(self, isa: Isa, from: &[T], to: &mut [f64], limb: usize) {
        if let Self::Power(power) = self {
            return isa.run(PowerTerms { from, to, power });
        }
        let by = if let Self::RescaledAbs(by) | Self::RescaledSquare(by) = self { by } else { 1.0 };
        let limb = (self.limbs::<T>() > 1).then_some(limb);
        isa.run(Widen { from, to, by, limb });
    }
}

/// Elements that passes read in blocks: the elements of a view, or differences, which are never stored in an array.
pub(in crate::parallel) trait Blocks: Send + Sync {
    type Element: Element;
    /// The number of elements, and the bytes that are read for each.
    fn size(&self) -> (usize, usize);
    /// The elements of a range, if they are one slice.
    fn dense(&self, _: Range<usize>) -> Option<&[Self::Element]> {
        None
    }
    /// Calls `visit` with slices of the elements of a range, in order. All slices but the last are whole blocks.
    fn for_blocks(&self, isa: Isa, range: Range<usize>, visit: impl FnMut(&[Self::Element]));
}

impl<T: Element> Blocks for View<'_, T> {
    type Element = T;
    fn size(&self) -> (usize, usize) {
        (self.len(), size_of::<T>())
    }
    #[inline]
    fn dense(&self, range: Range<usize>) -> Option<&[T]> {
        if let Self::Dense(data) = self { Some(&data[range]) } else { None }
    }
    fn for_blocks(&self, _: Isa, range: Range<usize>, visit: impl FnMut(&[T])) {
        self.for_blocks(range, visit);
    }
}

/// The methods that norms need of one array, of any dtype.
pub trait Terms: Send + Sync {
    /// The number of elements, and the bytes that are read for each.
    fn size(&self) -> (usize, usize);
    /// Whether sums can leave float64's range.
    fn leaves_range(&self) -> bool;
    /// The sum over a range that begins at a chunk.
    fn sum(&self, isa: Isa, pass: Reduction, range: Range<usize>) -> Total;
    /// The largest modulus in a range, times a power of two.
    fn max(&self, isa: Isa, range: Range<usize>, by: f64) -> f64;
    /// Adds the elements of a range to an exact sum.
    fn add_exactly(&self, isa: Isa, range: Range<usize>, to: &mut Accumulator);
}

impl<B: Blocks> Terms for B {
    fn size(&self) -> (usize, usize) {
        Blocks::size(self)
    }

    fn leaves_range(&self) -> bool {
        B::Element::DOUBLE
    }

    fn sum(&self, isa: Isa, pass: Reduction, range: Range<usize>) -> Total {
        // Fast path for short arrays, of which a list may have thousands.
        if sums_directly::<B::Element>(range.len(), pass)
            && let Some(data) = self.dense(range.clone())
        {
            return with_direct_term!(pass, term => isa.run(Sum { data, term }));
        }
        Total::of_chunks(range.clone().step_by(CHUNK).map(|from| {
            let (mut chunk, end) = (Total::default(), range.end.min(from + CHUNK));
            self.for_blocks(isa, from..end, |data| chunk.merge(pass.of_slice(isa, data)));
            chunk
        }))
    }

    fn max(&self, isa: Isa, range: Range<usize>, by: f64) -> f64 {
        if by == 1.0 {
            let mut max = <B::Element as Element>::Magnitude::default();
            self.for_blocks(isa, range, |data| max = max.max(isa.run(MaxAbs(data))));
            return B::Element::from_magnitude(max);
        }
        let mut max = <f64 as Element>::Magnitude::default();
        let mut scratch = [0.0; BLOCK];
        self.for_blocks(isa, range, |data| {
            for from in data.chunks(BLOCK) {
                let to = &mut scratch[..from.len()];
                isa.run(Widen { from, to, by, limb: None });
                max = max.max(isa.run(MaxAbs(to)));
            }
        });
        f64::from_magnitude(max)
    }

    fn add_exactly(&self, isa: Isa, range: Range<usize>, to: &mut Accumulator) {
        self.for_blocks(isa, range, |data| to.add(isa, data));
    }
}

/// The norm of one view, computed on the calling thread. It has the bits of [`norm_of_views`](super::norm_of_views).
pub fn norm_of_view<T: Element>(isa: Isa, view: &View<'_, T>, order: Order) -> Scaled {
    norm_of_view_with(isa, view, order, None)
}

/// The norm of a view. `first` is the sum of its first pass, if it is known. If it has left float64's range, the view is read
/// again.
pub(in crate::parallel) fn norm_of_view_with<T: Element>(
    isa: Isa,
    view: &View<'_, T>,
    order: Order,
    first: Option<f64>,
) -> Scaled {
    // The largest magnitude of real numbers is exact.
    let leaves_range = T::DOUBLE && (order != Order::Max || T::DTYPE.parts().is_some());
    let Ok(norm) = order.norm::<Infallible>(
        || leaves_range,
        |by| Ok(view.max(isa, 0..view.len(), by)),
        |pass| match (pass, first) {
            (Reduction::Abs | Reduction::Square | Reduction::HalfPower(_), Some(sum)) => Ok(sum),
            // Magnitudes of real numbers lose no digits below float64's range.
            (Reduction::RescaledAbs(by), Some(sum)) if by > 1.0 && T::DTYPE.parts().is_none() => Ok(sum * by),
            _ => Ok(view.sum(isa, pass, 0..view.len()).value()),
        },
    );
    norm
}

/// Writes the norms of the slices from number `first` on, from the sums of their first passes. Nearly always no slice is read
/// again. `exact_zeros`: see [`has_exact_zeros`].
pub(super) fn norms_of_slices<T: Element, N: FromNorm>(
    isa: Isa,
    slices: &Slices<'_, T>,
    first: usize,
    order: Order,
    (sums, exact_zeros): (&[f64], bool),
    norms: &mut [N],
) {
    let (roots, are_sums) = (order == Order::Two, matches!(order, Order::One | Order::Square));
    let parts = sums.chunks(MAX_ROWS_AT_ONCE).zip(norms.chunks_mut(MAX_ROWS_AT_ONCE));
    for (first, (sums, norms)) in (first..).step_by(MAX_ROWS_AT_ONCE).zip(parts) {
        let are_plain =
            (roots || are_sums) && isa.run(PlainNorms { sums, exact_zeros, roots, norms: &mut *norms });
        if !are_plain {
            for (at, (norm, sum)) in (first..).zip(norms.iter_mut().zip(sums)) {
                *norm = N::of(norm_of_view_with(isa, &slices.slice(at), order, Some(*sum)));
            }
        }
    }
}

/// Whether the elements of all rows whose sum in this pass is 0 are zeros. Squares of float64 may underflow.
pub(in crate::parallel) fn has_exact_zeros<T: Element>(
    isa: Isa,
    rows: &[T],
    [len, step]: [usize; 2],
    pass: Reduction,
    sums: &[f64],
) -> bool {
    let largest = |from| T::from_magnitude(isa.run(MaxAbs(&rows[from..from + len])));
    !T::DOUBLE
        || matches!(pass, Reduction::Abs)
        || sums.iter().zip((0..).step_by(step)).all(|(sum, from)| *sum != 0.0 || largest(from) == 0.0)
}

/// Whether one call of the kernel of this pass sums `len` elements as they are.
pub(super) fn sums_directly<T: Element>(len: usize, pass: Reduction) -> bool {
    T::DIRECT && len < CHUNK && matches!(pass, Reduction::Abs | Reduction::Square)
}

/// Whether [`row_sums`] sums rows of `len` elements in this pass.
pub(super) fn has_row_sums<T: Element>(len: usize, pass: Reduction) -> bool {
    let converts = !T::DIRECT || T::DTYPE == Dtype::F16;
    let longest = if converts { SHORT } else { CHUNK - 1 };
    len <= longest && matches!(pass, Reduction::Abs | Reduction::Square)
}

/// Elements of the longest rows and arrays that kernels take in batches. With float64 on AVX2, [`SumEach`] is slower for longer
/// ones.
pub const SHORT: usize = BLOCK / 2;

/// Writes the sums of rows, as many as there are `sums`, at most [`MAX_ROWS_AT_ONCE`]. A row has `len` elements, see
/// [`has_row_sums`], and the next one begins `step` elements after it. It takes less time if more elements follow the last row.
pub(in crate::parallel) fn row_sums<T: Element>(
    isa: Isa,
    data: &[T],
    [len, step]: [usize; 2],
    pass: Reduction,
    sums: &mut [f64],
) {
    if let Some(halves) = slice_of::<F16, _>(data) {
        let to_singles = |from: &[F16], to: &mut [f32]| isa.run(ToSingles { from, to });
        return row_sums_converted(isa, halves, [len, step], pass, sums, to_singles);
    }
    if const { !T::DIRECT } {
        let widen = |limb| move |from: &[T], to: &mut [f64]| pass.widen(isa, from, to, limb);
        row_sums_converted(isa, data, [len, step], pass, sums, widen(0));
        for limb in 1..pass.limbs::<T>() {
            // Sums of the limbs of so few integers are exact.
            let mut of_limb = [0.0; MAX_ROWS_AT_ONCE];
            row_sums_converted(isa, data, [len, step], pass, &mut of_limb[..sums.len()], widen(limb));
            sums.iter_mut().zip(of_limb).for_each(|(sum, limb)| *sum += limb);
        }
        return;
    }
    with_direct_term!(pass, term => {
        if len <= SHORT_ROW {
            return isa.run(SumShortRows { rows: data, len, step, sums, term });
        }
        let rows = (0..).step_by(step).map_while(|from| data.get(from..));
        if len <= SHORT {
            let sequences = sums.iter_mut().zip(rows).map(|(sum, row)| (len, row, sum));
            return isa.run(SumEach { sequences, term });
        }
        for (row, sum) in rows.zip(sums) {
            *sum = isa.run(Sum { data: &row[..len], term }).value();
        }
    });
}

/// The most elements between two short rows that are converted with the rows. A call of the kernel for each row, 50 ns, would take
/// longer.
const CONVERTED_BETWEEN: usize = 64;

/// [`row_sums`] of elements that are converted first: several rows at a time, unless many other elements lie between them.
fn row_sums_converted<T: Element, S: Element>(
    isa: Isa,
    data: &[T],
    [len, step]: [usize; 2],
    pass: Reduction,
    sums: &mut [f64],
    convert: impl Fn(&[T], &mut [S]),
) {
    let rows = if step <= 2 * len + CONVERTED_BETWEEN { 1 + (BLOCK - len) / step } else { 1 };
    let longest = rows.min(sums.len()).saturating_sub(1) * step + len;
    with_scratch(S::ZERO, longest, |scratch| {
        for (sums, from) in sums.chunks_mut(rows).zip((0..).step_by(rows * step)) {
            let converted = &mut scratch[..(sums.len() - 1) * step + len];
            convert(&data[from..from + converted.len()], converted);
            row_sums(isa, converted, [len, step], pass, sums);
        }
    });
}
