//! Sums of magnitudes and of squares in integers. They are exact, so they do not depend on the order of the terms or on how the
//! data are split.
//!
//! A float is an integer of few digits times a power of two. A table has an entry for each exponent, which adds up the integers
//! of that power. After `AT_ONCE` elements the table is added to one fixed-point number that spans all exponents. A block of
//! floats with similar exponents needs no table: integers and float64 hold its sum without rounding. The exact square of a
//! float64 is the rounded square plus its rounding error, which is a float64 too.

use std::mem;
use std::ops::Range;

use crate::element::{Dtype, Element, F16};
use crate::error::{Result, vec_with_room};
use crate::isa::{CONVERTED, Isa, Level, Op, slice_of};
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

    /// Adds `value * 2^exponent`. The sum may be negative in between, as a two's complement.
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
/// Elements that are added to the table before the table is added to the sum. The square of a float64 mantissa has 106 binary
/// digits, so an entry of 127 digits has room for 2^21 squares.
const AT_ONCE: usize = 1 << 17;

/// Adds up elements of any dtypes.
pub struct Accumulator {
    power: Power,
    sum: ExactSum,
    table: Vec<u128>,
    /// Whether the table contains only zeros.
    is_empty: bool,
}

impl Accumulator {
    /// An accumulator of no elements.
    ///
    /// # Errors
    /// `Error::Memory` if there is no memory for the table of 32 KiB.
    pub fn new(power: Power) -> Result<Self> {
        let mut table = vec_with_room(PLACES)?;
        table.resize(PLACES, 0);
        Ok(Self { power, sum: ExactSum::default(), table, is_empty: true })
    }

    /// The sum so far.
    #[must_use]
    pub fn sum(&self) -> &ExactSum {
        &self.sum
    }

    /// Adds the moduli of elements, or their squares. A complex modulus is rounded to float64 first.
    pub fn add<T: Element>(&mut self, isa: Isa, data: &[T]) {
        for part in data.chunks(AT_ONCE) {
            if let Some(part) = slice_of::<f64, _>(part) {
                self.add_wide_blocks(isa, part);
            } else if T::DTYPE.is_float() && !T::WIDE {
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

    /// Adds floats of at most 24 digits. If all nonzero elements of a block are near enough to its largest, an integer
    /// and a float64 hold their sum without rounding.
    fn add_blocks<T: Element>(&mut self, isa: Isa, data: &[T]) {
        let mut blocks = data.chunks(BLOCK);
        let mut block = blocks.next().unwrap_or_default();
        // The extremes of a block are found while the block before it is added up, so that the CPU does not wait for memory.
        let mut found = extremes_of(isa, block);
        while !block.is_empty() {
            let next = blocks.next().unwrap_or_default();
            let (digits, exponent) = found.digits::<T>();
            let power = self.power as i32;
            // The terms lie below 2^top, and have no digit below 2^(top - digits).
            let (digits, top) = (digits * power, (exponent + 1) * power);
            found = if exponent > 127 || digits > UPPER_DIGITS + LOWER_DIGITS {
                self.add_to_table(block);
                extremes_of(isa, next)
            } else {
                let more = (f64::MANTISSA_DIGITS.cast_signed() - digits).clamp(0, GROUP_DIGITS);
                self.add_block(isa, block, next, 1 << more, top + more)
            };
            block = next;
        }
    }

    /// Adds a block of finite elements. Sums of `group` terms lie below `2^top`, and float64 holds them without rounding.
    /// Returns the extremes of the next block.
    fn add_block<T: Element>(
        &mut self,
        isa: Isa,
        block: &[T],
        next: &[T],
        group: usize,
        top: i32,
    ) -> Extremes {
        let shift = shift(top);
        let sums = match self.power {
            Power::One => isa.run(AddBlock { block, next, group, shift, term: Abs }),
            Power::Two => isa.run(AddBlock { block, next, group, shift, term: Square }),
        };
        self.add_parts(sums.upper, sums.lower, top);
        sums.extremes
    }

    /// Adds the two parts of a sum of terms below `2^top`.
    fn add_parts(&mut self, upper: i64, lower: f64, top: i32) {
        let unit = top - UPPER_DIGITS;
        let lower = (lower * power_of_two(LOWER_DIGITS - unit)) as i64;
        self.sum.add((i128::from(upper) << LOWER_DIGITS) + i128::from(lower), unit - LOWER_DIGITS);
    }

    /// Adds float64 elements, by block, as `add_blocks` does.
    fn add_wide_blocks(&mut self, isa: Isa, data: &[f64]) {
        for block in data.chunks(BLOCK) {
            let (least, largest) = isa.run(WideExtremes(block));
            let exponent = |bits: u64| (bits >> 52) as i32 - 1023;
            let (lowest, highest) = (exponent(least), exponent(largest));
            // Digits from the first one of the largest term to the last one of the smallest, see the tops below.
            let digits = match self.power {
                Power::One => highest - lowest + 53,
                Power::Two => 2 * (highest - lowest) + 54,
            };
            if largest == 0 {
                continue;
            }
            if lowest < WIDE_EXPONENTS.start
                || highest >= WIDE_EXPONENTS.end
                || digits > UPPER_DIGITS + LOWER_DIGITS
            {
                self.add_to_table(block);
                continue;
            }
            match self.power {
                Power::One => {
                    let top = highest + 1;
                    let [sums, _] = isa.run(AddWide::<false> { block, shifts: [shift(top), 0.0] });
                    self.add_parts(sums.0, sums.1, top);
                }
                Power::Two => {
                    // The last digit of a square below 2^(2n) is at least 2^(2n - 53), and its error is half of that at most.
                    let tops = [2 * (highest + 1), 2 * (highest + 1) - 53];
                    let sums = isa.run(AddWide::<true> { block, shifts: tops.map(shift) });
                    for ((upper, lower), top) in sums.into_iter().zip(tops) {
                        self.add_parts(upper, lower, top);
                    }
                }
            }
        }
    }

    fn add_to_table<T: Element>(&mut self, data: &[T]) {
        self.is_empty = false;
        match self.power {
            Power::One => add_to_table::<T, false>(&mut self.table, data),
            Power::Two => add_to_table::<T, true>(&mut self.table, data),
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
        for (digits, exponent) in self.table.iter_mut().zip(-1075i32..) {
            let total = mem::take(digits);
            is_bad |= exponent == 2047 - 1075 && total > 0;
            if total > 0 && !is_bad {
                // Subnormal numbers have the exponent of the smallest normal ones.
                let exponent = exponent.max(-1074);
                self.sum.add(total.cast_signed(), exponent * self.power as i32);
            }
        }
        is_bad
    }
}

fn add_to_table<T: Element, const SQUARES: bool>(table: &mut [u128], data: &[T]) {
    let Some(table) = table.first_chunk_mut::<PLACES>() else { return };
    for x in data {
        let bits = x.modulus(1.0).to_bits();
        let place = (bits >> 52) as usize & (PLACES - 1);
        // Normal numbers have an implied leading digit.
        let digits = (bits & (u64::MAX >> 12)) | (u64::from(place != 0) << 52);
        table[place] += if SQUARES { u128::from(digits) * u128::from(digits) } else { digits.into() };
    }
}

/// Binary digits of the upper part of a term, or of a sum of a group of terms.
const UPPER_DIGITS: i32 = 50;
/// Digits of the sum of a block's lower parts below the unit of the upper parts. Each lower part is at most half of that unit,
/// and a block has at most 2^11 of them, so their sum is at most 2^10 units.
const LOWER_DIGITS: i32 = 53 - 10;
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

/// Extreme magnitudes of a block, as bits of float32, which sort like the magnitudes, NaN above infinity.
#[derive(Clone, Copy)]
struct Extremes {
    /// The smallest nonzero magnitude; 0 if all are zero.
    least: u32,
    largest: u32,
}

impl Extremes {
    /// The number of binary digits from the first digit of the largest magnitude to the last digit of any element, or more; and
    /// the exponent of the largest magnitude, which is above 127 if an element is infinite or NaN.
    fn digits<T: Element>(self) -> (i32, i32) {
        let (mantissa, lowest) = format_of::<T>();
        // Zero and subnormal numbers have the exponent of the smallest normal ones: their last digits have the same weight.
        let exponent = |bits: u32| ((bits >> 23).cast_signed() - 127).max(lowest);
        (exponent(self.largest) - exponent(self.least) + mantissa, exponent(self.largest))
    }
}

/// The [`Extremes`] of each lane during the search: as bits of float16 for float16, as bits of float32 for other dtypes.
struct ExtremeLanes {
    /// The smallest bits minus 1, here and in `least_half`: the bits of zero wrap around and are above all others.
    least: [u32; LANES],
    largest: [u32; LANES],
    least_half: [u16; LANES],
    largest_half: [u16; LANES],
}

impl ExtremeLanes {
    const NONE: Self = Self {
        least: [u32::MAX; LANES],
        largest: [0; LANES],
        least_half: [u16::MAX; LANES],
        largest_half: [0; LANES],
    };

    #[inline(always)]
    fn add_row<T: Element>(&mut self, row: &[T; LANES]) {
        if let Some(halves) = slice_of::<F16, _>(row) {
            for (j, x) in halves.iter().enumerate() {
                let bits = x.abs().to_bits();
                self.least_half[j] = self.least_half[j].min(bits.wrapping_sub(1));
                self.largest_half[j] = self.largest_half[j].max(bits);
            }
            return;
        }
        for (j, x) in row.iter().enumerate() {
            let bits = bits_of(*x);
            self.least[j] = self.least[j].min(bits.wrapping_sub(1));
            self.largest[j] = self.largest[j].max(bits);
        }
    }

    #[inline(always)]
    fn found<T: Element>(self) -> Extremes {
        if T::DTYPE == Dtype::F16 {
            let least = self.least_half.into_iter().fold(u16::MAX, u16::min);
            let largest = self.largest_half.into_iter().fold(0, u16::max);
            let bits_of = |half| F16::from_bits(half).to_f32().to_bits();
            return Extremes {
                least: bits_of(least.wrapping_add(1).min(largest)),
                largest: bits_of(largest),
            };
        }
        let least = self.least.into_iter().fold(u32::MAX, u32::min);
        let largest = self.largest.into_iter().fold(0, u32::max);
        Extremes { least: least.wrapping_add(1).min(largest), largest }
    }
}

/// The bits of a magnitude as float32.
#[inline(always)]
fn bits_of<T: Element>(x: T) -> u32 {
    (x.modulus(1.0) as f32).to_bits()
}

/// Adds a block, and finds the extremes of the next one. In each lane, it adds the terms of `group` rows, which must not round,
/// and splits the sum in two parts: the upper part is the sum rounded by `shift`, as an integer; the lower part is the rest.
struct AddBlock<'a, T, F> {
    block: &'a [T],
    next: &'a [T],
    group: usize,
    shift: f64,
    term: F,
}

/// The result of [`AddBlock`].
struct BlockSums {
    /// The sum of the upper parts, in their unit.
    upper: i64,
    /// The sum of the lower parts.
    lower: f64,
    extremes: Extremes,
}

/// The extremes of a block.
fn extremes_of<T: Element>(isa: Isa, next: &[T]) -> Extremes {
    isa.run(AddBlock { block: &[], next, group: 1, shift: 0.0, term: Abs }).extremes
}

impl<T: Element, F: Term<T> + Term<f32>> Op for AddBlock<'_, T, F> {
    type Output = BlockSums;
    #[inline(always)]
    fn eval<L: Level>(self, level: L) -> BlockSums {
        let (mut upper, mut lower) = ([0u64; LANES], [0.0; LANES]);
        let mut lanes = ExtremeLanes::NONE;
        let (rows, rest) = self.block.as_chunks::<LANES>();
        let (next_rows, next_rest) = self.next.as_chunks::<LANES>();
        // The rows of whole groups, with as many rows of the next block. Grouping the rows of a last block gained nothing.
        let both = rows.len().min(next_rows.len()) / self.group * self.group;
        // A single loop for all group sizes would not be vectorized.
        if self.group == 1 {
            for (row, next) in rows.iter().zip(next_rows) {
                add_row(level, &mut upper, &mut lower, row, self.shift, self.term);
                lanes.add_row(next);
            }
        } else {
            for (group, next) in rows[..both].chunks(self.group).zip(next_rows.chunks(self.group)) {
                let mut sums = [0.0; LANES];
                for (row, next) in group.iter().zip(next) {
                    add_to_each(level, &mut sums, row, self.term);
                    lanes.add_row(next);
                }
                add_terms::<L, f64>(&mut upper, &mut lower, &sums, self.shift, Abs);
            }
        }
        // The zeros of the padding add nothing but `shift`.
        let (last, next_last) = (padded::<T, LANES>(rest), padded::<T, LANES>(next_rest));
        for row in rows[both..].iter().chain([&last]) {
            add_row(level, &mut upper, &mut lower, row, self.shift, self.term);
        }
        for row in next_rows[both..].iter().chain([&next_last]) {
            lanes.add_row(row);
        }
        // These integers contain the bits of `shift` once for each lane of a group, of a single row and of the padded row.
        let upper = upper.into_iter().fold(0, u64::wrapping_add);
        let shifts = ((both / self.group + rows.len() - both + 1) * LANES) as u64;
        let upper = upper.wrapping_sub(self.shift.to_bits().wrapping_mul(shifts)).cast_signed();
        BlockSums { upper, lower: lower.into_iter().sum(), extremes: lanes.found::<T>() }
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
        // Each product is exact, so a fused multiply-add gives the same bits.
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

/// Pads a row of fewer elements with zeros.
#[inline(always)]
fn padded<T: Element, const N: usize>(rest: &[T]) -> [T; N] {
    let mut row = [T::ZERO; N];
    row[..rest.len()].copy_from_slice(rest);
    row
}

/// Exponents of float64 elements that need no table: the errors of their squares are not subnormal, and neither are powers of
/// two that the sums are scaled by.
const WIDE_EXPONENTS: Range<i32> = -400..500;
/// Lanes of [`AddWide`]: two registers of AVX-512 for each of four sums.
const WIDE_LANES: usize = 16;

/// The bits of the smallest nonzero magnitude of a block and of the largest one; 0 if all are zero.
struct WideExtremes<'a>(&'a [f64]);

impl Op for WideExtremes<'_> {
    type Output = (u64, u64);
    #[inline(always)]
    fn eval<L: Level>(self, _: L) -> (u64, u64) {
        // The smallest bits minus 1: those of zero wrap around and are above all others.
        let (mut least, mut largest) = (u64::MAX, 0);
        for x in self.0 {
            let bits = x.abs().to_bits();
            least = least.min(bits.wrapping_sub(1));
            largest = largest.max(bits);
        }
        (least.wrapping_add(1).min(largest), largest)
    }
}

/// Adds the magnitudes of a block of float64, or their squares and the rounding errors of these. The sums of both have two parts,
/// as those of [`AddBlock`] do.
struct AddWide<'a, const SQUARES: bool> {
    block: &'a [f64],
    shifts: [f64; 2],
}

/// The sums of the upper and the lower parts in each lane.
type WideSums = ([u64; WIDE_LANES], [f64; WIDE_LANES]);

impl<const SQUARES: bool> Op for AddWide<'_, SQUARES> {
    type Output = [(i64, f64); 2];
    #[inline(always)]
    fn eval<L: Level>(self, _: L) -> [(i64, f64); 2] {
        let mut terms: WideSums = Default::default();
        let mut errors: WideSums = Default::default();
        let [shift, error_shift] = self.shifts;
        let (rows, rest) = self.block.as_chunks();
        let mut add_row = |row: &[f64; WIDE_LANES]| {
            for (j, x) in row.iter().enumerate() {
                let (term, error) = if SQUARES { exact_square::<L>(*x) } else { (x.abs(), 0.0) };
                add_split(&mut terms, j, term, shift);
                if SQUARES {
                    add_split(&mut errors, j, error, error_shift);
                }
            }
        };
        rows.iter().for_each(&mut add_row);
        add_row(&padded(rest));
        let shifts = ((rows.len() + 1) * WIDE_LANES) as u64;
        let whole = |(upper, lower): WideSums, shift: f64| {
            let upper = upper.into_iter().fold(0, u64::wrapping_add);
            let upper = upper.wrapping_sub(shift.to_bits().wrapping_mul(shifts)).cast_signed();
            (upper, lower.into_iter().sum())
        };
        [whole(terms, shift), if SQUARES { whole(errors, error_shift) } else { (0, 0.0) }]
    }
}

#[inline(always)]
fn add_split((upper, lower): &mut WideSums, j: usize, term: f64, shift: f64) {
    let shifted = term + shift;
    upper[j] = upper[j].wrapping_add(shifted.to_bits());
    lower[j] += term - (shifted - shift);
}

/// The square minus the rounded square, in one instruction: exact unless it is subnormal. (See `fused_square` in `element.rs`.)
#[inline(always)]
fn fused_error(x: f64, square: f64) -> f64 {
    x.mul_add(x, -square)
}

/// The rounded square, and its rounding error.
#[inline(always)]
fn exact_square<L: Level>(x: f64) -> (f64, f64) {
    let square = x * x;
    if L::FUSED {
        return (square, fused_error(x, square));
    }
    // Dekker's product: the halves of the digits, whose products are exact.
    let shifted = x * (power_of_two(27) + 1.0);
    let high = shifted - (shifted - x);
    let low = x - high;
    (square, (high * high - square + 2.0 * (high * low)) + low * low)
}
