//! Exact sums, against whole numbers that are added limb by limb.

#![allow(clippy::expect_used, reason = "a test")]

use _core::isa::Isa;
use _core::kernel::exact::{Accumulator, LIMBS, Power};

use crate::common::{Random, sized, thinned};

/// The exponent of the unit of exact sums.
const LOWEST: i32 = -2148;

/// Adds `value * 2^exponent` to a whole number in units of `2^LOWEST`.
fn add(limbs: &mut [u64; LIMBS], value: u64, exponent: i32) {
    let place = (exponent - LOWEST) as usize;
    let mut carry = u128::from(value) << (place % 64);
    for limb in &mut limbs[place / 64..] {
        carry += u128::from(*limb);
        *limb = carry as u64;
        carry >>= 64;
    }
}

fn expected(data: &[f64], power: Power) -> [u64; LIMBS] {
    let mut limbs = [0; LIMBS];
    for x in data {
        let (bits, exponent) = ((x.abs().to_bits() << 12) >> 12, (x.abs().to_bits() >> 52) as i32);
        let (digits, exponent) =
            if exponent == 0 { (bits, -1074) } else { (bits | 1 << 52, exponent - 1075) };
        match power {
            Power::One => add(&mut limbs, digits, exponent),
            Power::Two => {
                let square = u128::from(digits) * u128::from(digits);
                // A limb with a place within it has no room for more than 64 digits.
                add(&mut limbs, square as u64, 2 * exponent);
                add(&mut limbs, (square >> 64) as u64, 2 * exponent + 64);
            }
        }
    }
    limbs
}

/// Blocks of similar magnitudes are added in float64, others by the table. Exponents and their spread are at the limits of both.
#[test]
fn sums_of_float64_are_exact() {
    let mut random = Random::new(61);
    for highest in [-1000, -401, -400, -360, 0, 498, 499, 500, 1023] {
        for spread in thinned([0, 1, 18, 19, 20, 39, 40, 41, 70], 3) {
            for len in [1, 15, 16, 17, sized(2049, 33)] {
                let data: Vec<f64> = (0..len)
                    .map(|i| {
                        let lower = if i == 0 { spread } else { random.below(spread + 1) };
                        let exponent = (highest + 1023 - lower.cast_signed() as i32).max(0) as u64;
                        let (sign, digits) = (random.bits() << 63, random.bits() >> 12);
                        match random.below(8) {
                            0 if i > 0 => 0.0,
                            1 => f64::from_bits(sign | exponent << 52 | u64::MAX >> 12),
                            2 => f64::from_bits(sign | exponent << 52),
                            _ => f64::from_bits(sign | exponent << 52 | digits),
                        }
                    })
                    .collect();
                for power in [Power::One, Power::Two] {
                    let expected = expected(&data, power);
                    for isa in Isa::available() {
                        let mut sum = Accumulator::new(power).expect("memory");
                        sum.add(isa, &data);
                        assert!(sum.sum().limbs == expected, "{highest} {spread} {len} {power:?} {isa:?}");
                    }
                }
            }
        }
    }
}
