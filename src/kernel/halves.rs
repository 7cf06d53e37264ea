//! Scales 16-bit numbers by one factor. The result has the bits of the product in float64, rounded once: to nearest, or toward
//! zero.
//!
//! Nearly always float32 products determine the result, at a third of the cost. The factor lies between two float32, so the
//! product lies between two float32 products. Where both round to the same 16-bit number, the product between them does so too.
//! A block with any other element (one element in some hundreds) is computed in float64. If non-temporal stores write the
//! output, only its cache line is computed so.
//!
//! *bfloat16.* Rounding changes its result only at ties, the midpoints between two neighbours, and every tie is a float32.
//! Suppose the product with the lower bound is above a tie after it was rounded to float32. Then it was above before, since
//! rounding does not cross a float32. It has 8 + 24 digits, so it is a float64, and the product in float64, which is no
//! smaller, is above that tie too. The same argument holds for the upper bound, below a tie. So if no tie lies between the two
//! products, ends included, the result is determined. Subnormal numbers, zeros and infinities need no special case: the NaN of
//! `0 * inf` agrees with nothing.
//!
//! *float16.* The CPU's conversion rounds a tie to even and does not report it. So the exact product must lie strictly between
//! the two float32 products: the bounds are the next float32 further out. That moves an end by at least 2^-24 of itself, and
//! rounding moves it back by less, unless it is subnormal, which the range of the factors excludes. A factor of few digits has
//! exact products in float32, and is its own bounds.
//!
//! *Toward zero.* The result changes at the 16-bit numbers, which are float32 as ties are. For float16, the same bounds hold.
//! For bfloat16, the product with the lower bound may have been rounded up to such a number. So the next float32 toward zero
//! decides.

use std::ops::Range;

use super::truncate::product;
use crate::element::{Bf16, Dtype, F16, Real};
use crate::isa::{
    Aligned, CONVERTED, Isa, LINE, Level, Lines, Op, StreamGuard, prefetch_ahead, prefetch_distance,
    slice_of, slice_of_mut,
};
use crate::scaled::power_of_two;

/// Elements that are computed in float64 at a time.
const WIDENED: usize = 256;
/// Elements of a cache line.
const IN_LINE: usize = LINE / 2;
/// Elements of a block, of which float32 determines all or none. Two cache lines need half as many tests as single lines.
const BLOCK: usize = 2 * IN_LINE;

/// Multiplies all elements by a normal factor, in place or from a slice of the same length. With a guard, products from another
/// slice are written by non-temporal stores ([`Isa::stream`]), if float32 determines most products.
pub(super) fn scale<T: Real, const TOWARD_ZERO: bool>(
    isa: Isa,
    guard: Option<&StreamGuard>,
    from: Option<&[T]>,
    to: &mut [T],
    by: f64,
) {
    match (bounds_for::<T>(isa, by), guard, from) {
        (Some(bounds), Some(guard), Some(from)) => {
            isa.stream(guard, from, to, HalfTimes::<TOWARD_ZERO> { by, bounds });
        }
        (bounds, ..) => isa.run(ScaleHalves::<_, TOWARD_ZERO> { from, to, by, bounds }),
    }
}

/// The bounds of the factor; None where float32 determines few products, or finds them more slowly.
fn bounds_for<T: Real>(isa: Isa, by: f64) -> Option<[f32; 2]> {
    // The significand digits of the factor, without trailing zeros.
    let digits = f64::MANTISSA_DIGITS - (by.to_bits() | 1 << (f64::MANTISSA_DIGITS - 1)).trailing_zeros();
    let is_useful = if T::DTYPE == Dtype::Bf16 {
        // Ties are common for a factor of few digits: the product has at least as many, and a tie has 9.
        !(2..=9).contains(&digits)
    } else {
        isa.converts_halves()
    };
    if !is_useful || !(power_of_two(-100)..=power_of_two(100)).contains(&by.abs()) {
        return None;
    }
    let near = by as f32;
    if digits <= 13 {
        return Some([near; 2]);
    }
    // Counted from the largest float32 at or below the factor.
    let below = i32::from(f64::from(near).abs() > by.abs());
    let beside = |steps: i32| f32::from_bits(near.to_bits().wrapping_add_signed(steps - below));
    let further = i32::from(T::DTYPE != Dtype::Bf16);
    Some([beside(-further), beside(1 + further)])
}

/// Scales 16-bit elements, in place or from another slice: by [`HalfTimes`] if there are bounds, otherwise by products in float64.
pub struct ScaleHalves<'a, T, const TOWARD_ZERO: bool> {
    /// The elements to read, as many as in `to`. None: `to` is read.
    pub from: Option<&'a [T]>,
    /// The elements to write.
    pub to: &'a mut [T],
    /// The factor.
    pub by: f64,
    /// The bounds of the factor, by magnitude.
    pub bounds: Option<[f32; 2]>,
}

impl<T: Real, const TOWARD_ZERO: bool> Op for ScaleHalves<'_, T, TOWARD_ZERO> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, level: L) {
        let Self { mut from, mut to, by, bounds } = self;
        if let Some(bounds) = bounds {
            let times = HalfTimes::<TOWARD_ZERO> { by, bounds };
            let (whole_from, from_rest) = from.map(|from| from.as_chunks::<BLOCK>()).unzip();
            let (whole, to_rest) = to.as_chunks_mut::<BLOCK>();
            let distance = prefetch_distance();
            for (i, to) in whole.iter_mut().enumerate() {
                // The block is copied: otherwise the compiler tests for each block whether the input is the output.
                let from = whole_from.and_then(|from| from.get(i)).unwrap_or(to);
                prefetch_ahead(from, distance);
                let from = *from;
                *to = times.line(level, &from);
            }
            (from, to) = (from_rest, to_rest);
        }
        if !to.is_empty() {
            by_singles(level, from, to, |singles, _| {
                for x in singles {
                    *x = product::<T, _, TOWARD_ZERO>(*x, by);
                }
            });
        }
    }
}

/// The product of 16-bit elements and a factor.
pub struct HalfTimes<const TOWARD_ZERO: bool> {
    /// The factor.
    pub by: f64,
    /// The bounds of the factor, by magnitude.
    pub bounds: [f32; 2],
}

impl<T: Real, const TOWARD_ZERO: bool> Lines<T> for HalfTimes<TOWARD_ZERO> {
    #[inline(always)]
    fn line<const N: usize, L: Level>(&self, level: L, from: &[T; N]) -> [T; N] {
        let (mut singles, mut made) = ([0.0; N], [T::ZERO; N]);
        if N >= IN_LINE {
            let differ = if let Some((from, to)) = slice_of::<F16, _>(from).zip(slice_of_mut(&mut made)) {
                products_of_halves::<TOWARD_ZERO, _>(level, from, to, &self.bounds)
            } else if let Some((from, to)) = slice_of::<Bf16, _>(from).zip(slice_of_mut(&mut made)) {
                products_of_bfloats::<TOWARD_ZERO>(from, to, &self.bounds)
            } else {
                true
            };
            if !differ {
                return made;
            }
        }
        ToSingles { from, to: &mut singles }.eval(level);
        for single in &mut singles {
            *single = product::<T, _, TOWARD_ZERO>(*single, self.by);
        }
        FromSingles { from: &singles, to: &mut made }.eval(level);
        made
    }
}

/// Writes the products of at most a block with the upper bound. Returns whether a product with the lower bound differs. The
/// elements are computed in pairs, which share 32 bits, so that no vector has to be split.
///
/// The bounds are a reference: the compiler would load an array of two float32 at once, and wait until the stores of both are in
/// the cache.
#[inline(always)]
fn products_of_bfloats<const TOWARD_ZERO: bool>(
    from: &[Bf16],
    to: &mut [Bf16],
    &[low, high]: &[f32; 2],
) -> bool {
    const UPPER: u32 = u32::MAX << 16;
    const SIZE: u32 = u32::MAX >> 1;
    let mut pairs = [0; BLOCK / 2];
    let mut differ = 0;
    for (pair, x) in pairs.iter_mut().zip(from.as_chunks::<2>().0) {
        let x = u32::from(x[0].to_bits()) | u32::from(x[1].to_bits()) << 16;
        let scaled = |x: u32| {
            let [low, high] = [low, high].map(|by| (f32::from_bits(x) * by).to_bits());
            if TOWARD_ZERO {
                // The signs of the products are equal. Zero has no predecessor.
                return (high, high & SIZE ^ ((low & SIZE).max(1) - 1));
            }
            // Rounds to the upper 16 bits: ties up for the upper bound, and down for the lower bound. A carry increments the
            // exponent, up to infinity. A NaN of the data has zeros in the lower bits, so it stays unchanged.
            let up = high.wrapping_add(0x8000);
            (up, up ^ low.wrapping_add(0x7fff))
        };
        let ((even, even_differs), (odd, odd_differs)) = (scaled(x << 16), scaled(x & UPPER));
        *pair = even >> 16 | odd & UPPER;
        // Only the upper 16 bits count, so that a single test for zero, one CPU instruction, decides.
        differ |= even_differs >> 16 | odd_differs & UPPER;
    }
    // The elements of a pair are stored in the order of memory.
    for (to, pair) in to.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
        *to = [pair as u16, (pair >> 16) as u16].map(Bf16::from_bits);
    }
    differ != 0
}

/// Does for float16 what [`products_of_bfloats`] does for bfloat16.
#[inline(always)]
fn products_of_halves<const TOWARD_ZERO: bool, L: Level>(
    level: L,
    from: &[F16],
    to: &mut [F16],
    &[low, high]: &[f32; 2],
) -> bool {
    // One accumulator per vector lane: with a single one, the compiler reduces every vector.
    let mut differ = [0; CONVERTED];
    for (to, x) in to.as_chunks_mut::<CONVERTED>().0.iter_mut().zip(from.as_chunks().0) {
        let x = level.widen(x);
        let (mut lower, mut upper) = (x, x);
        for (lower, upper) in lower.iter_mut().zip(&mut upper) {
            *lower *= low;
            *upper *= high;
        }
        let (lower, upper) = (level.narrow::<TOWARD_ZERO>(&lower), level.narrow::<TOWARD_ZERO>(&upper));
        for (((to, differ), lower), upper) in to.iter_mut().zip(&mut differ).zip(&lower).zip(&upper) {
            *differ |= lower.to_bits() ^ upper.to_bits();
            // The OR of equal products is that product. If one of them is stored instead, the compiler makes a copy.
            *to = F16::from_bits(lower.to_bits() | upper.to_bits());
        }
    }
    differ.iter().fold(0, |all, differ| all | differ) != 0
}

/// Converts 16-bit elements to float32, exactly.
pub struct ToSingles<'a, T> {
    /// The elements.
    pub from: &'a [T],
    /// The numbers to write, as many as elements.
    pub to: &'a mut [f32],
}

impl<T: Real> Op for ToSingles<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, level: L) {
        if let Some(from) = slice_of::<F16, _>(self.from) {
            return convert(from, self.to, |x| level.widen(x), F16::to_f32);
        }
        for (to, from) in self.to.iter_mut().zip(self.from) {
            *to = from.widen() as f32;
        }
    }
}

/// Converts float32 to 16-bit elements, rounded once.
pub struct FromSingles<'a, T> {
    /// The numbers.
    pub from: &'a [f32],
    /// The elements to write, as many as numbers.
    pub to: &'a mut [T],
}

impl<T: Real> Op for FromSingles<'_, T> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, level: L) {
        if let Some(to) = slice_of_mut::<F16, _>(self.to) {
            return convert(self.from, to, |x| level.narrow::<false>(x), F16::from_f32);
        }
        for (to, from) in self.to.iter_mut().zip(self.from) {
            *to = T::narrow_single(*from);
        }
    }
}

/// Converts a slice [`CONVERTED`] elements at a time. The last chunk overlaps the one before it; a slice that is too short is
/// converted one by one.
#[inline(always)]
fn convert<A: Copy, B>(
    from: &[A],
    to: &mut [B],
    many: impl Fn(&[A; CONVERTED]) -> [B; CONVERTED],
    one: impl Fn(A) -> B,
) {
    for (to, from) in to.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
        *to = many(from);
    }
    match (from.last_chunk(), to.last_chunk_mut()) {
        (Some(_), Some(_)) if from.len().is_multiple_of(CONVERTED) => {}
        (Some(from), Some(to)) => *to = many(from),
        _ => {
            for (to, from) in to.iter_mut().zip(from) {
                *to = one(*from);
            }
        }
    }
}

/// Scales 16-bit elements by way of float32, with a loop for each step: one loop would need vectors of three widths, for which
/// the compiler generates poor code. `scale` gets some elements, and their places in `to`.
#[inline(always)]
pub(super) fn by_singles<L: Level, T: Real>(
    level: L,
    from: Option<&[T]>,
    to: &mut [T],
    scale: impl Fn(&mut [f32], Range<usize>),
) {
    let Aligned(singles) = &mut Aligned([0.0; WIDENED]);
    for (i, to) in to.chunks_mut(WIDENED).enumerate() {
        let (singles, place) = (&mut singles[..to.len()], i * WIDENED..i * WIDENED + to.len());
        let from = from.map_or(&*to, |from| &from[place.clone()]);
        ToSingles { from, to: &mut *singles }.eval(level);
        scale(singles, place);
        FromSingles { from: singles, to }.eval(level);
    }
}
