//! Sums of magnitudes and of squares in integers. They are exact, so they do not depend on the order of the terms or on how the
//! data are split.
//!
//! A float is an integer of few digits times a power of two. A table has an entry for each exponent, which adds up the integers
//! of that power. After `AT_ONCE` elements the table is added to one fixed-point number that spans all exponents. A block of
//! floats with similar exponents needs no table: integers and float64 hold its sum without rounding. The exact square of a
//! float64 is the rounded square plus its rounding error, which is a float64 too.

use std::mem;
use std::ops::Range;

use crate::element::{Element, F16};
use crate::isa::{CONVERTED, Isa, Level, Op, prefetch_ahead, slice_of};
use crate::kernel::sum::{Abs, BLOCK, Square, Term};
use crate::kernel::truncate::format_of;
use crate::scaled::power_of_two;

/// The exponent of the unit of the last place: the square of the smallest float64 is 2^-2148.
const LOWEST: i32 = -2148;
/// The number of limbs, of 64 binary digits each. They hold the sum of 2^64 squares of the largest float64, each below 2^2048.
pub const LIMBS: usize = (2048 + 64 - LOWEST as isize) as usize / 64 + 1;

/// An exact sum.
#[derive(Clone, Copy, Debug)]
pub struct ExactSum {
    /// The limbs, least significant first.
    pub limbs: [u64; LIMBS],
    /// Infinity or NaN if a term was infinite or NaN; else 0.
    pub special: f64,
}

impl Default for ExactSum {
    fn default() -> Self {
        Self { limbs: [0; LIMBS], special: 0.0 }
    }
}

impl ExactSum {
    /// Adds another sum.
    pub fn merge(&mut self, other: &Self) {
        let mut carry = false;
        for (limb, more) in self.limbs.iter_mut().zip(other.limbs) {
            (*limb, carry) = add_with_carry(*limb, more, carry);
        }
        self.special += other.special;
    }

    /// Adds `value * 2^exponent`, which may be negative. The sum is not.
    fn add(&mut self, value: i128, exponent: i32) {
        let place = (exponent - LOWEST).unsigned_abs() as usize;
        let (at, shift) = (place / 64, place % 64);
        let low = value << shift;
        let high = value >> (128 - shift).min(127);
        // The sign fills the limbs above.
        let sign = (value >> 127) as u64;
        let mut carry = false;
        let mut parts = [low as u64, (low >> 64) as u64, high as u64].into_iter();
        for limb in self.limbs.iter_mut().skip(at) {
            let part = parts.next();
            if part.is_none() && carry == (sign != 0) {
                break; // a carry and a sign of -1 are 0
            }
            (*limb, carry) = add_with_carry(*limb, part.unwrap_or(sign), carry);
        }
    }
}

fn add_with_carry(a: u64, b: u64, carry: bool) -> (u64, bool) {
    let (sum, first) = a.overflowing_add(b);
    let (sum, second) = sum.overflowing_add(carry.into());
    (sum, first || second)
}

/// The power of the magnitudes that are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// The magnitudes.
    One = 1,
    /// Their squares.
    Two = 2,
}

/// Entries of the table: one for each exponent of float64.
const PLACES: usize = 2048;
/// The exponent of the last digit in the first entry, if subnormal numbers had a smaller exponent than the smallest normal ones.
const LOWEST_PLACE: i32 = -1075;
/// Elements that are added to the table before the table is added to the sum. The square of a float64 mantissa has 106 binary
/// digits, so an entry of 127 digits has room for 2^21 squares.
const AT_ONCE: usize = 1 << 17;

/// Adds up elements of any dtypes.
pub struct Accumulator {
    power: Power,
    /// The sum so far.
    pub sum: ExactSum,
    table: [u128; PLACES],
    /// Whether the table contains only zeros.
    is_empty: bool,
}

impl Accumulator {
    /// An accumulator of no elements.
    #[expect(clippy::large_stack_arrays, reason = "32 KiB, and no memory that can run out")]
    pub fn new(power: Power) -> Self {
        Self { power, sum: ExactSum::default(), table: [0; PLACES], is_empty: true }
    }

    /// Adds the moduli of elements, or the squares of real ones. A complex modulus is rounded to 53 digits first.
    pub fn add<T: Element>(&mut self, isa: Isa, data: &[T]) {
        for part in data.chunks(AT_ONCE) {
            if T::DTYPE.is_float() {
                self.add_blocks(isa, part);
            } else if T::DTYPE.parts().is_some() {
                self.add_to_table(part);
            } else {
                self.add_integers(part);
            }
            if self.empty() {
                let has_nan = part.iter().any(|x| x.modulus(1.0).is_nan());
                self.sum.special += if has_nan { f64::NAN } else { f64::INFINITY };
            }
        }
    }

    /// Adds floats. If all nonzero elements of a block are near enough to its largest, integers and float64 hold their sum
    /// without rounding.
    fn add_blocks<T: Element>(&mut self, isa: Isa, data: &[T]) {
        let (mantissa, lowest) = format_of::<T>();
        // The square of a float64 is rounded to its digits. Squares of numbers of one exponent have two exponents, which takes one
        // digit more. The last digits of the rounding errors are no farther from their first.
        let (power, mantissa) = match self.power {
            Power::One => (1, mantissa),
            Power::Two => (2, if T::DOUBLE { mantissa + 1 } else { 2 * mantissa }),
        };
        for block in data.chunks(BLOCK) {
            let [least, largest] = isa.run(Extremes(block));
            if largest == 0.0 {
                continue;
            }
            // Subnormal numbers have the exponent of the smallest normal ones: their last digits have the same weight.
            let exponent = |x: f64| ((x.to_bits() >> 52) as i32 - 1023).max(lowest);
            let (least, largest) = (exponent(least), exponent(largest));
            // The terms lie below 2^top, and have no digit below 2^(top - digits).
            let (digits, top) = ((largest - least) * power + mantissa, (largest + 1) * power);
            if !EXPONENTS.contains(&largest) || digits > UPPER_DIGITS + LOWER_DIGITS {
                self.add_to_table(block);
                continue;
            }
            match self.power {
                Power::One => self.add_block(isa, block, Abs, digits, top),
                Power::Two => self.add_block(isa, block, Square, digits, top),
            }
            if T::DOUBLE && self.power == Power::Two {
                // The last digit of a square below 2^top is at most 2^(top - 53), and its error at most half of that.
                self.add_block(isa, block, SquareError, digits, top - 53);
            }
        }
    }

    /// Adds the terms of a block, which lie below `2^top` and have no digit below `2^(top - digits)`.
    fn add_block<T: Element>(
        &mut self,
        isa: Isa,
        block: &[T],
        term: impl Term<T> + Term<f32>,
        digits: i32,
        top: i32,
    ) {
        // Sums of so many terms lie below 2^(top + more), and float64 holds them without rounding.
        let more = (f64::MANTISSA_DIGITS.cast_signed() - digits).clamp(0, GROUP_DIGITS);
        let top = top + more;
        let (upper, lower) = isa.run(AddBlock { block, group: 1 << more, shift: shift(top), term });
        let unit = top - UPPER_DIGITS;
        let lower = (lower * power_of_two(LOWER_DIGITS - unit)) as i64;
        self.sum.add((i128::from(upper) << LOWER_DIGITS) + i128::from(lower), unit - LOWER_DIGITS);
    }

    /// Adds terms to the table. Complex moduli near the ends of float64's range, or beyond, are added to the sum.
    fn add_to_table<T: Element>(&mut self, data: &[T]) {
        self.is_empty = false;
        for x in data {
            let (value, lifted) = x.lifted();
            let bits = value.to_bits();
            let place = (bits >> 52) as usize & (PLACES - 1);
            // Normal numbers have an implied leading digit.
            let digits = u128::from((bits & (u64::MAX >> 12)) | (u64::from(place != 0) << 52));
            if lifted != 0.0 && value.is_normal() {
                self.sum.add(digits.cast_signed(), (bits >> 52) as i32 + LOWEST_PLACE + lifted as i32);
            } else {
                self.table[place] += if self.power == Power::Two { digits * digits } else { digits };
            }
        }
    }

    fn add_integers<T: Element>(&mut self, data: &[T]) {
        // The upper and the lower halves of the 128-bit terms are summed separately. Neither sum of at most `AT_ONCE` terms
        // overflows.
        let (mut high, mut low) = (0u128, 0u128);
        for x in data {
            let size: u128 = (0..T::LIMBS).map(|limb| x.limb(limb) as u128).sum();
            let term = if self.power == Power::Two { size * size } else { size };
            high += term >> 64;
            low += term & u128::from(u64::MAX);
        }
        self.sum.add(low.cast_signed(), 0);
        self.sum.add(high.cast_signed(), 64);
    }

    /// Adds the table to the sum. Returns whether a term was infinite or NaN.
    fn empty(&mut self) -> bool {
        let mut is_bad = false;
        if mem::replace(&mut self.is_empty, true) {
            return false;
        }
        for (digits, exponent) in self.table.iter_mut().zip(LOWEST_PLACE..) {
            let total = mem::take(digits);
            is_bad |= exponent == 2047 + LOWEST_PLACE && total > 0;
            if total > 0 && !is_bad {
                // Subnormal numbers have the exponent of the smallest normal ones.
                let exponent = exponent.max(-1074);
                self.sum.add(total.cast_signed(), exponent * self.power as i32);
            }
        }
        is_bad
    }
}

/// Binary digits of the upper part of a term, or of a sum of a group of terms.
const UPPER_DIGITS: i32 = 50;
/// Digits of the sum of a block's lower parts below the unit of the upper parts. Each lower part is at most half of that unit,
/// and a block has at most 2^11 of them, so their sum is at most 2^10 units.
const LOWER_DIGITS: i32 = 53 - 10;
/// Exponents of the largest element of a block that needs no table: float64 has room for [`shift`], for the powers of two that
/// the sums are scaled by, and for all digits of the errors of squares.
const EXPONENTS: Range<i32> = -400..500;
/// Lanes of [`AddBlock`].
const LANES: usize = CONVERTED;
/// The binary logarithm of the most rows whose terms are added in each lane before the sum is split; float64 must add them
/// without rounding. Splitting takes four operations, so more rows would save less than half an operation for each term.
const GROUP_DIGITS: i32 = 3;

/// Adding this number to a term, or a sum of terms, below `2^top` rounds it to a multiple of `2^(top - UPPER_DIGITS)`. The last
/// bits of the result count these multiples.
fn shift(top: i32) -> f64 {
    1.5 * power_of_two(52 + top - UPPER_DIGITS)
}

/// The smallest magnitude of a block of floats except zeros, and the largest one. If all are zero, the first one is arbitrary.
struct Extremes<'a, T>(&'a [T]);

impl<T: Element> Op for Extremes<'_, T> {
    type Output = [f64; 2];
    #[inline(always)]
    fn eval<L: Level>(self, _: L) -> [f64; 2] {
        // Magnitudes sort as integers, NaN above infinity. All bits are set in the largest NaN.
        let highest = T::from_bytes(&[u8::MAX; size_of::<f64>()], false).magnitude();
        let (mut least, mut largest) = (highest, T::Magnitude::default());
        for x in self.0 {
            let size = x.magnitude();
            least = least.min(if size == T::Magnitude::default() { highest } else { size });
            largest = largest.max(size);
        }
        [least, largest].map(T::from_magnitude)
    }
}

/// Adds a block. In each lane, it adds the terms of `group` rows, which must not round, and splits the sum in two parts: the
/// upper part is the sum rounded by `shift`, as an integer; the lower part is the rest. The result is the sum of the upper parts,
/// in their unit, and that of the lower ones.
struct AddBlock<'a, T, F> {
    block: &'a [T],
    group: usize,
    shift: f64,
    term: F,
}

impl<T: Element, F: Term<T> + Term<f32>> Op for AddBlock<'_, T, F> {
    type Output = (i64, f64);
    #[inline(always)]
    fn eval<L: Level>(self, level: L) -> (i64, f64) {
        let (mut upper, mut lower) = ([0u64; LANES], [0.0; LANES]);
        let (rows, rest) = self.block.as_chunks::<LANES>();
        // The next block is fetched meanwhile, or the search for its extremes would wait for the memory.
        let next = size_of_val(self.block);
        // A single loop for all group sizes would not be vectorized.
        let whole = if self.group == 1 { 0 } else { rows.len() / self.group * self.group };
        for group in rows[..whole].chunks(self.group) {
            let mut sums = [0.0; LANES];
            for row in group {
                prefetch_ahead(row, next);
                add_to_each(level, &mut sums, row, self.term);
            }
            // Terms that are negative have too many digits for groups.
            add_terms::<L, f64>(&mut upper, &mut lower, &sums, self.shift, Abs);
        }
        for row in &rows[whole..] {
            prefetch_ahead(row, next);
            add_row(level, &mut upper, &mut lower, row, self.shift, self.term);
        }
        // The zeros of the padding add nothing but `shift`.
        let mut last = [T::ZERO; LANES];
        last[..rest.len()].copy_from_slice(rest);
        add_row(level, &mut upper, &mut lower, &last, self.shift, self.term);
        // These integers contain the bits of `shift` once for each lane of a group, of a single row and of the padded row.
        let upper = upper.into_iter().fold(0, u64::wrapping_add);
        let shifts = ((whole / self.group + rows.len() - whole + 1) * LANES) as u64;
        let upper = upper.wrapping_sub(self.shift.to_bits().wrapping_mul(shifts)).cast_signed();
        (upper, lower.into_iter().sum())
    }
}

/// Adds a row in two parts. float16 is converted to float32 first.
#[inline(always)]
fn add_row<L: Level, T: Element, F: Term<T> + Term<f32>>(
    level: L,
    upper: &mut [u64; LANES],
    lower: &mut [f64; LANES],
    row: &[T; LANES],
    shift: f64,
    term: F,
) {
    match widened(level, row) {
        Some(row) => add_terms::<L, f32>(upper, lower, &row, shift, term),
        None => add_terms::<L, T>(upper, lower, row, shift, term),
    }
}

/// A row of float16 as float32.
#[inline(always)]
fn widened<L: Level, T: Element>(level: L, row: &[T; LANES]) -> Option<[f32; LANES]> {
    let halves = slice_of::<F16, _>(row)?.first_chunk()?;
    Some(level.widen(halves))
}

/// Adds the terms in two parts.
#[inline(always)]
fn add_terms<L: Level, T: Element>(
    upper: &mut [u64; LANES],
    lower: &mut [f64; LANES],
    row: &[T; LANES],
    shift: f64,
    term: impl Term<T>,
) {
    for j in 0..LANES {
        // Terms that are added in one fused operation have exact products, so it gives the same bits.
        let shifted = term.add::<L>(shift, row[j]);
        upper[j] = upper[j].wrapping_add(shifted.to_bits());
        lower[j] += term.add::<L>(shift - shifted, row[j]);
    }
}

/// Adds the terms of a row to the sums of its lanes, which must not round.
#[inline(always)]
fn add_to_each<L: Level, T: Element, F: Term<T> + Term<f32>>(
    level: L,
    sums: &mut [f64; LANES],
    row: &[T; LANES],
    term: F,
) {
    if let Some(row) = widened(level, row) {
        for j in 0..LANES {
            sums[j] = term.add::<L>(sums[j], row[j]);
        }
    } else {
        for j in 0..LANES {
            sums[j] = term.add::<L>(sums[j], row[j]);
        }
    }
}

/// The exact square of a float64 minus the rounded one, where neither the square nor its digits leave the range of float64.
#[derive(Clone, Copy)]
struct SquareError;

impl<T: Element> Term<T> for SquareError {
    #[inline(always)]
    fn of(&self, x: T) -> f64 {
        let x = x.modulus(1.0);
        product(x, x).1
    }
    #[inline(always)]
    fn add<L: Level>(&self, sum: f64, x: T) -> f64 {
        sum + if L::FUSED { fused_error(x.modulus(1.0)) } else { self.of(x) }
    }
}

/// A product and its rounding error, from the products of the halves of the digits, which are exact: T. J. Dekker, "A
/// Floating-Point Technique for Extending the Available Precision", Numer. Math. 18 (1971).
#[inline(always)]
pub fn product(a: f64, b: f64) -> (f64, f64) {
    let split = |x: f64| {
        let shifted = x * (power_of_two(27) + 1.0);
        let high = shifted - (shifted - x);
        (high, x - high)
    };
    let ((a1, a2), (b1, b2), ab) = (split(a), split(b), a * b);
    (ab, ((a1 * b1 - ab) + a1 * b2 + a2 * b1) + a2 * b2)
}

/// [`SquareError`] by a fused subtraction. (See `fused_square` in `element.rs`.)
#[inline(always)]
fn fused_error(x: f64) -> f64 {
    let square = x * x;
    x.mul_add(x, -square)
}
