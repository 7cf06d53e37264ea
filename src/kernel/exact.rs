//! Sums of magnitudes and of squares in integers: nothing is rounded, so that no order of the terms and no cut changes a bit.
//!
//! A float is an integer of few digits times a power of two. The integers of one power are added up in a table that has a
//! place for each exponent; now and then the table is added to a number as long as all exponents together. A block of float32
//! and narrower floats whose exponents are near each other needs no table: float64 holds such sums without rounding.

use std::mem;

use crate::element::Element;
use crate::error::{Result, vec_with_room};
use crate::isa::{Isa, Level, Op};
use crate::kernel::halves::ToSingles;
use crate::kernel::sum::BLOCK;
use crate::scaled::power_of_two;

/// The unit of the last place is 2 to this: the square of the smallest float64.
const LOWEST: i32 = -2148;
/// 64 binary digits each: up to the square of the largest float64, 2^2048, and 2^64 terms of it.
pub const LIMBS: usize = (2048 + 64 - LOWEST as isize) as usize / 64 + 1;

/// A sum, whole.
#[derive(Clone, Copy, Debug)]
pub struct ExactSum {
    /// Its digits from the lowest on.
    pub limbs: [u64; LIMBS],
    /// Infinity or NaN if a term was that; else 0.
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

    /// Adds `value * 2^exponent`.
    fn add(&mut self, value: u128, exponent: i32) {
        let place = (exponent - LOWEST).unsigned_abs() as usize;
        let (at, shift) = (place / 64, place % 64);
        let low = value << shift;
        let high = if shift == 0 { 0 } else { value >> (128 - shift) };
        let mut carry = false;
        let mut parts = [low as u64, (low >> 64) as u64, high as u64].into_iter();
        for limb in self.limbs.iter_mut().skip(at) {
            let part = parts.next();
            if part.is_none() && !carry {
                break;
            }
            (*limb, carry) = add_with_carry(*limb, part.unwrap_or(0), carry);
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
    One,
    /// Their squares.
    Two,
}

/// Places of the table: the exponents of float64.
const PLACES: usize = 2048;
/// Elements between two emptyings of the table: the square of a float64 has 106 digits, so a place has room for 2^22.
const AT_ONCE: usize = 1 << 17;

/// Adds up elements of any dtypes.
#[derive(Debug)]
pub struct Accumulator {
    power: Power,
    sum: ExactSum,
    table: Vec<u128>,
    /// Whether the table has nothing but zeros.
    is_empty: bool,
}

impl Accumulator {
    /// Of nothing so far.
    ///
    /// # Errors
    /// No memory for the table, 32 KiB.
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
            if let Some(halves) = T::halves(part) {
                let mut scratch = [0.0f32; BLOCK];
                for from in halves.chunks(BLOCK) {
                    let to = &mut scratch[..from.len()];
                    isa.run(ToSingles { from, to: &mut *to });
                    // All of them are near enough to the largest float16, which is below 2^16.
                    if !self.add_block(isa, to, &[], 15).0 {
                        self.add_to_table(to);
                    }
                }
            } else if T::DTYPE.is_float() && !T::WIDE {
                self.add_blocks(isa, part);
            } else if T::DTYPE.is_float() || T::DTYPE.parts().is_some() {
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

    /// Adds floats of at most 24 digits. Where all of a block but its zeros are near enough to the largest, float64 adds them
    /// without rounding.
    fn add_blocks<T: Element>(&mut self, isa: Isa, data: &[T]) {
        let (block, mut rest) = data.split_at(data.len().min(BLOCK));
        // Each block is looked at while the one before it is added up, so that the CPU need not wait for memory.
        let mut found = isa.run(AddBlock::<T, false> { block: &[], next: block, split: 0.0 }).extremes;
        let mut block = block;
        while !block.is_empty() {
            let next;
            (next, rest) = rest.split_at(rest.len().min(BLOCK));
            let (low, high) = found.exponents();
            // Infinite, NaN, or too far apart.
            found = if high > 127 || high - low > NEAR {
                self.add_to_table(block);
                isa.run(AddBlock::<T, false> { block: &[], next, split: 0.0 }).extremes
            } else {
                self.add_block(isa, block, next, high).1
            };
            block = next;
        }
    }

    /// Adds a block of elements below `2^(high + 1)`, or nothing if one is infinite or NaN. Whether it did so, and the extremes
    /// of the next block.
    fn add_block<T: Element>(&mut self, isa: Isa, block: &[T], next: &[T], high: i32) -> (bool, Extremes) {
        match self.power {
            Power::One => self.add_terms::<T, false>(isa, block, next, high),
            Power::Two => self.add_terms::<T, true>(isa, block, next, high),
        }
    }

    fn add_terms<T: Element, const SQUARES: bool>(
        &mut self,
        isa: Isa,
        block: &[T],
        next: &[T],
        high: i32,
    ) -> (bool, Extremes) {
        // Terms lie below 2^top, and a lane has 2^7 of them. So a lane of the upper parts stays between 2^(top + 8) and twice
        // that, where numbers are multiples of 2^(top + 8 - 52). The lower parts are at most half of that.
        let top = if SQUARES { 2 * high + 2 } else { high + 1 };
        let upper_last = top + 8 - 52;
        let lower_last = upper_last - 1 + 7 - 53;
        let split = 1.5 * power_of_two(top + 8);
        let sums = isa.run(AddBlock::<T, SQUARES> { block, next, split });
        if !sums.upper.into_iter().sum::<f64>().is_finite() {
            return (false, sums.extremes);
        }
        let units = |lanes: [f64; FEW], last: i32| -> i128 {
            let by = power_of_two(-last);
            lanes.iter().map(|lane| i128::from((lane * by) as i64)).sum()
        };
        let total = (units(sums.upper.map(|lane| lane - split), upper_last) << (upper_last - lower_last))
            + units(sums.lower, lower_last);
        self.sum.add(total.unsigned_abs(), lower_last);
        (true, sums.extremes)
    }

    fn add_to_table<T: Element>(&mut self, data: &[T]) {
        self.is_empty = false;
        match self.power {
            Power::One => add_to_table::<T, false>(&mut self.table, data),
            Power::Two => add_to_table::<T, true>(&mut self.table, data),
        }
    }

    fn add_integers<T: Element>(&mut self, data: &[T]) {
        // The upper and the lower halves of terms of 128 digits: of as many as there are, neither sum overflows.
        let (mut high, mut low) = (0u128, 0u128);
        for x in data {
            let size: u128 = (0..T::LIMBS).map(|limb| x.limb(limb) as u128).sum();
            let term = if self.power == Power::Two { size * size } else { size };
            high += term >> 64;
            low += term & u128::from(u64::MAX);
        }
        self.sum.add(low, 0);
        self.sum.add(high, 64);
    }

    /// Adds the table to the sum. Whether a term was infinite or NaN.
    fn empty(&mut self) -> bool {
        let mut is_bad = false;
        if mem::replace(&mut self.is_empty, true) {
            return false;
        }
        for (digits, exponent) in self.table.iter_mut().zip(-1075i32..) {
            let total = mem::take(digits);
            is_bad |= exponent == 2047 - 1075 && total > 0;
            if total > 0 && !is_bad {
                // Numbers below the normal ones have the exponent of these.
                let exponent = exponent.max(-1074);
                self.sum.add(total, if self.power == Power::Two { 2 * exponent } else { exponent });
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
        // Numbers below the normal ones have no digit that goes without saying.
        let digits = (bits & (u64::MAX >> 12)) | (u64::from(place != 0) << 52);
        table[place] += if SQUARES { u128::from(digits) * u128::from(digits) } else { digits.into() };
    }
}

/// How many binary orders of magnitude the smallest element of a block may lie below the largest: the last of its 24 digits,
/// squared, is still a multiple of the lower parts' unit.
const NEAR: i32 = 21;
/// Lanes of the sums: a block adds 2^7 terms to each.
const FEW: usize = BLOCK >> 7;

/// The magnitudes of a block as bits of float32, which sort like these: the least that is not 0, less one, and the largest.
#[derive(Clone, Copy)]
struct Extremes {
    least: u32,
    largest: u32,
}

/// The bits of a magnitude as float32.
#[inline(always)]
fn bits_of<T: Element>(x: T) -> u32 {
    (x.modulus(1.0) as f32).to_bits()
}

impl Extremes {
    /// The binary exponents of the least and of the largest. Numbers below the normal ones have the exponent of these, as their
    /// last digit has the same weight.
    fn exponents(self) -> (i32, i32) {
        let exponent = |bits: u32| (bits >> 23).cast_signed().max(1) - 127;
        (exponent(self.least.wrapping_add(1).min(self.largest)), exponent(self.largest))
    }
}

/// Adds the terms of a block in lanes, each in two parts: the upper lanes begin with `split` and take what is not rounded away
/// when a term is added, the lower lanes take the rest. Finds the extremes of the next block meanwhile.
struct AddBlock<'a, T, const SQUARES: bool> {
    block: &'a [T],
    next: &'a [T],
    split: f64,
}

/// What [`AddBlock`] makes.
struct BlockSums {
    upper: [f64; FEW],
    lower: [f64; FEW],
    extremes: Extremes,
}

impl<T: Element, const SQUARES: bool> Op for AddBlock<'_, T, SQUARES> {
    type Output = BlockSums;
    #[inline(always)]
    fn eval<L: Level>(self, _: L) -> BlockSums {
        let (mut upper, mut lower) = ([self.split; FEW], [0.0; FEW]);
        let (mut least, mut largest) = ([u32::MAX; FEW], [0; FEW]);
        let (rows, rest) = self.block.as_chunks::<FEW>();
        let (next_rows, _) = self.next.as_chunks::<FEW>();
        let both = rows.len().min(next_rows.len());
        for (row, next) in rows.iter().zip(next_rows) {
            add_row::<T, SQUARES>(&mut upper, &mut lower, row);
            for j in 0..FEW {
                let bits = bits_of(next[j]);
                least[j] = least[j].min(bits.wrapping_sub(1));
                largest[j] = largest[j].max(bits);
            }
        }
        for row in &rows[both..] {
            add_row::<T, SQUARES>(&mut upper, &mut lower, row);
        }
        // Zeros change nothing.
        let mut last = [T::ZERO; FEW];
        last[..rest.len()].copy_from_slice(rest);
        add_row::<T, SQUARES>(&mut upper, &mut lower, &last);
        let mut extremes = Extremes { least: u32::MAX, largest: 0 };
        for x in &self.next[both * FEW..] {
            let bits = bits_of(*x);
            extremes.least = extremes.least.min(bits.wrapping_sub(1));
            extremes.largest = extremes.largest.max(bits);
        }
        extremes.least = least.into_iter().fold(extremes.least, u32::min);
        extremes.largest = largest.into_iter().fold(extremes.largest, u32::max);
        BlockSums { upper, lower, extremes }
    }
}

#[inline(always)]
fn add_row<T: Element, const SQUARES: bool>(upper: &mut [f64; FEW], lower: &mut [f64; FEW], row: &[T; FEW]) {
    for j in 0..FEW {
        let term = if SQUARES { row[j].square(1.0) } else { row[j].modulus(1.0) };
        let sum = upper[j] + term;
        lower[j] += term - (sum - upper[j]);
        upper[j] = sum;
    }
}
