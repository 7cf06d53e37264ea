//! Exact sums, against whole numbers that are added limb by limb.

#![allow(clippy::expect_used, reason = "a test")]

use _core::element::{Bf16, F16, Real};
use _core::isa::Isa;
use _core::kernel::exact::{Accumulator, LIMBS, Power};
use _core::scaled::power_of_two;

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
fn check<T: Real>(highest: impl IntoIterator<Item = i32>, spreads: &[usize]) {
    let mut random = Random::new(61);
    for highest in highest {
        for spread in thinned(spreads.iter().copied(), 3) {
            for len in [1, 31, 32, 33, sized(2049, 65)] {
                let data: Vec<T> = (0..len)
                    .map(|i| {
                        let lower = if i == 0 { spread } else { random.below(spread + 1) };
                        let exponent = (highest + 1023 - lower.cast_signed() as i32).max(0) as u64;
                        let (sign, digits) = (random.bits() << 63, random.bits() >> 12);
                        let bits = match random.below(8) {
                            0 if i > 0 => 0,
                            1 => exponent << 52 | u64::MAX >> 12,
                            2 => exponent << 52,
                            _ => exponent << 52 | digits,
                        };
                        T::narrow(f64::from_bits(sign | bits))
                    })
                    .collect();
                check_sums(&data);
            }
        }
    }
}

fn check_sums<T: Real>(data: &[T]) {
    let wide: Vec<f64> = data.iter().map(|x| x.widen()).collect();
    assert!(wide.iter().all(|x| x.is_finite()), "a number of the test is too large");
    for power in [Power::One, Power::Two] {
        let expected = expected(&wide, power);
        for isa in Isa::available() {
            let mut sum = Accumulator::new(power);
            sum.add(isa, data);
            assert!(sum.sum.limbs == expected, "{power:?} {isa:?} {wide:?}");
        }
    }
}

#[test]
fn sums_of_float64_are_exact() {
    let highest = [-1000, -401, -400, -360, 0, 499, 500, 509, 510, 511, 1023];
    check::<f64>(highest, &[0, 1, 18, 19, 20, 39, 40, 41, 70]);
}

#[test]
fn sums_of_narrower_floats_are_exact() {
    check::<f32>([-126, -60, 0, 126], &[0, 21, 22, 23, 44, 45, 46, 68, 69, 70, 150]);
    check::<Bf16>([-126, -60, 0, 126], &[0, 5, 37, 38, 39, 40, 84, 85, 86, 150]);
    check::<F16>([-14, 0, 14], &[0, 1, 2, 3, 5, 9, 13, 24]);
}

/// The rests of all elements are equal, and as large as they can be.
#[test]
fn rests_have_no_digit_too_many() {
    for spread in 40..44u64 {
        let mut data =
            vec![f64::from_bits((1023 - spread) << 52 | ((1 << (spread + 2)) - 1)); sized(2048, 64)];
        data[0] = 1.0;
        check_sums(&data);
    }
}

/// These squares are rounded up to a number of few digits, so their errors borrow from many limbs.
#[test]
fn negative_errors_borrow() {
    for number in [11.0f64, 14.0, 21.0] {
        for exponent in thinned(-60..=60, 5) {
            check_sums(&[number.sqrt() * power_of_two(exponent)]);
        }
    }
}
