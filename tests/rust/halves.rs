//! Scaling 16-bit numbers: all 65,536 of them, at every level, against integer arithmetic.

#![allow(missing_docs, reason = "a test")]

use crate::common::{Random, sized, thinned};
use _core::element::{Bf16, F16, Half, Real};
use _core::isa::{Isa, StreamGuard};
use _core::kernel::halves::ScaleHalves;
use _core::kernel::map::{Apply, Map};
use _core::kernel::scale::{Scale, Times};
use _core::scaled::{Factor, Rounding, power_of_two};

/// `n * 2^exponent` rounded to `digits` digits, or to a multiple of `2^least`, toward zero or to nearest, ties to even.
fn round(n: u128, exponent: i32, digits: u32, least: i32, toward_zero: bool) -> (u128, i32) {
    let own = exponent + (u128::BITS - n.leading_zeros()).cast_signed() - digits.cast_signed();
    let drop = (own.max(least) - exponent).max(0).cast_unsigned();
    if drop >= 100 {
        return (0, least); // far below a half of the last digit
    }
    let (kept, rest, half) = (n >> drop, n & ((1 << drop) - 1), (1 << drop) >> 1);
    let up = drop > 0 && !toward_zero && (rest > half || (rest == half && kept % 2 == 1));
    (kept + u128::from(up), exponent + drop.cast_signed())
}

/// The bits of `n * 2^exponent`, which has `DIGITS + 1` digits at most and is no finer than the smallest number.
fn bits_of<const DIGITS: u32>(n: u128, exponent: i32) -> u16 {
    let (bias, least) = if DIGITS == 10 { (15, -24) } else { (127, -133) };
    if n == 0 {
        return 0;
    }
    // As a count of the steps of its own exponent, the digit that the exponent implies among them.
    let own =
        (exponent + (u128::BITS - 1 - n.leading_zeros()).cast_signed() - DIGITS.cast_signed()).max(least);
    if own - least >= 2 * bias {
        return Half::<DIGITS>::INFINITY.to_bits();
    }
    let count = if own > exponent { n >> (own - exponent) } else { n << (exponent - own) };
    (count + u128::from((own - least).unsigned_abs() << DIGITS)) as u16
}

fn rounding(toward_zero: bool) -> Rounding {
    if toward_zero { Rounding::TowardZero } else { Rounding::Nearest }
}

/// `x * by`, rounded to float64 and then to 16 bits: the reference.
fn product<const DIGITS: u32>(x: u16, by: f64, toward_zero: bool) -> u16 {
    let (size, sign) = (x & 0x7fff, x & 0x8000);
    let infinity = Half::<DIGITS>::INFINITY.to_bits();
    if size > infinity {
        return x | 1 << (DIGITS - 1); // quiet, with its payload
    }
    let sign = if by.is_sign_negative() { sign ^ 0x8000 } else { sign };
    if size == infinity || size == 0 {
        return size | sign;
    }
    let least = if DIGITS == 10 { -24 } else { -133 };
    let (digits, step) = match size >> DIGITS {
        0 => (size, 0),
        step => (size & ((1 << DIGITS) - 1) | 1 << DIGITS, i32::from(step) - 1),
    };
    let factor = u128::from(by.to_bits() & (u64::MAX >> 12) | 1 << 52);
    let exponent = ((by.abs().to_bits() >> 52) as i32) - 1075;
    let (n, exponent) = round(u128::from(digits) * factor, exponent + least + step, 53, -1074, false);
    let (n, exponent) = round(n, exponent, DIGITS + 1, least, toward_zero);
    bits_of::<DIGITS>(n, exponent) | sign
}

/// Normal numbers of all kinds.
fn factors<const DIGITS: u32>(random: &mut Random) -> Vec<f64> {
    let mut factors = vec![
        f64::MIN_POSITIVE,
        f64::MAX,
        -1.0,
        1.0 / 3.0,
        1.1,
        0.1,
        1e-30,
        1e30,
        f64::EPSILON,
        1.0 + f64::EPSILON,
        1.0 - f64::EPSILON / 2.0,
    ];
    let range = if DIGITS == 10 { 45 } else { 262 };
    let exponent = |random: &mut Random, range: i32| {
        let steps = random.below(2 * range as usize + 1) as u32;
        steps.cast_signed() - range
    };
    let digits = |random: &mut Random| f64::from_bits(random.bits() >> 12 | 1023 << 52);
    for _ in 0..16 {
        factors.push(power_of_two(exponent(random, range)));
        factors.push(digits(random)); // near 1
        factors.push(-digits(random) * power_of_two(exponent(random, 4)));
        factors.push(digits(random) * power_of_two(exponent(random, range)));
        factors.push((random.below(1000) + 1) as f64 / 10.0); // with ties but for the digits of float64
        // Ties as the factor's few digits make them, and a hair beside them.
        let few = (2 * random.below(1 << 5) + 1) as f64 * power_of_two(exponent(random, range) - 5);
        factors.extend([few, f64::from_bits(few.to_bits() + 1), f64::from_bits(few.to_bits() - 1)]);
        // What makes of some number a tie, or nearly, a subnormal one among them.
        let some = (random.below(1 << (DIGITS + 1)) + 1) as f64;
        let tie = (2 * random.below(1 << (DIGITS + 1)) + 1) as f64;
        factors.push(tie / some);
        factors.push(tie / some * power_of_two(-exponent(random, range).abs()));
        // As many digits as products that float32 or a tie holds, and one more or less.
        let own = 2 * DIGITS + 4 - random.below(DIGITS as usize + 6) as u32;
        factors.push((1 | random.bits() >> (64 - own)) as f64 * power_of_two(exponent(random, range / 2)));
        // A hair from a float32, and between two.
        let single = f64::from(digits(random) as f32) * power_of_two(exponent(random, range / 2));
        let beside = f64::from_bits(single.to_bits() ^ 1);
        factors.extend([single, beside, single * (1.0 + power_of_two(-25))]);
    }
    // The ends of the ranges in which float32 determines products of float16, and of float32 itself.
    for exponent in [-149, -126, -100, 100, 127, 128] {
        let end = power_of_two(exponent);
        factors.extend([
            end,
            f64::from_bits(end.to_bits() - 1),
            f64::from_bits(end.to_bits() + 1),
            -end / 3.0,
        ]);
    }
    factors
}

fn every_number_is_scaled<const DIGITS: u32>()
where
    Half<DIGITS>: Real,
{
    // Under Miri, enough numbers for the path of long slices.
    let numbers = || thinned(0..=u16::MAX, 661);
    let all: Vec<Half<DIGITS>> = numbers().map(Half::from_bits).collect();
    let to_nearest = factors::<DIGITS>(&mut Random::new(71)).into_iter().map(|by| (by, false));
    // Products are rounded toward zero only by positive factors of at most 1.
    let truncated = factors::<DIGITS>(&mut Random::new(73)).into_iter().filter(|by| (0.0..=1.0).contains(by));
    let all_factors = to_nearest.chain(truncated.map(|by| (by, true)));
    for (by, toward_zero) in thinned(all_factors.collect::<Vec<_>>(), 45) {
        let expected: Vec<u16> = numbers().map(|x| product::<DIGITS>(x, by, toward_zero)).collect();
        let map = Scale(Factor { by, then: 1.0, rounding: rounding(toward_zero) });
        for isa in Isa::available() {
            let same = |found: &[Half<DIGITS>], way: &str| {
                for ((found, expected), x) in found.iter().zip(&expected).zip(&all) {
                    if cfg!(miri) && found.is_nan() && x.is_nan() {
                        continue; // with a payload that Miri draws
                    }
                    let found = found.to_bits();
                    assert_eq!(
                        found,
                        *expected,
                        "{x:?} * {by:e} {toward_zero} {way}, {}: {found:#06x}",
                        isa.name()
                    );
                }
            };
            let mut found = all.clone();
            map.apply(isa, None, None, &mut found);
            same(&found, "in place");
            found.fill(Half::from_bits(9));
            map.apply(isa, None, Some(&all), &mut found);
            same(&found, "from slice to slice");
            // In slices short enough for the path of few elements.
            if toward_zero {
                isa.run(Apply { from: Some(&all), to: &mut found, map: Times::<true>(by) });
            } else {
                isa.run(Apply { from: Some(&all), to: &mut found, map });
            }
            same(&found, "one by one");
            found.fill(Half::from_bits(9));
            map.apply(isa, Some(&StreamGuard::begin()), Some(&all), &mut found);
            same(&found, "streamed");
        }
    }
}

/// Arrays of any length, with some numbers that float32 does not determine among many that it does.
fn arrays_of_any_length_are_scaled<const DIGITS: u32>()
where
    Half<DIGITS>: Real,
{
    let random = &mut Random::new(72);
    let one = Half::<DIGITS>::from_f64(1.0).to_bits();
    for len in thinned((120..420).chain([2047, 2048, 2049, 2112, sized(5000, 300)]), 101) {
        // The product of `one` lies so near to a number where the result changes that float32 has no number between them: to the
        // next tie, or the next 16-bit number.
        let toward_zero = random.below(2) == 1;
        let place = DIGITS.cast_signed() + i32::from(!toward_zero);
        let edge = f64::from(Half::<DIGITS>::from_bits(one)) + power_of_two(-place);
        let by = [edge, edge + power_of_two(-40), edge - power_of_two(-40)][len % 3];
        let mut data: Vec<Half<DIGITS>> =
            (0..len).map(|_| Half::from_bits(one + 1 + random.below(8) as u16)).collect();
        for _ in 0..random.below(4) {
            data[random.below(len)] = Half::from_bits(one);
        }
        let expected: Vec<u16> =
            data.iter().map(|x| product::<DIGITS>(x.to_bits(), by, toward_zero)).collect();
        let map = Scale(Factor { by, then: 1.0, rounding: rounding(toward_zero) });
        for isa in Isa::available() {
            let bits = |data: &[Half<DIGITS>]| data.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let mut found = data.clone();
            map.apply(isa, None, None, &mut found);
            assert_eq!(bits(&found), expected, "{len} in place, {}", isa.name());
            found.fill(Half::from_bits(9));
            map.apply(isa, None, Some(&data), &mut found);
            assert_eq!(bits(&found), expected, "{len} from slice to slice, {}", isa.name());
            // Anywhere in a cache line, and without elements beside it.
            let range = len % 37..len % 37 + len;
            let mut room = vec![Half::from_bits(9); len + 64];
            map.apply(isa, Some(&StreamGuard::begin()), Some(&data), &mut room[range.clone()]);
            assert_eq!(bits(&room[range.clone()]), expected, "{len} streamed, {}", isa.name());
            let beside = room[..range.start].iter().chain(&room[range.end..]);
            assert!(beside.into_iter().all(|x| x.to_bits() == 9), "{len} streamed, {}", isa.name());
        }
    }
}

#[test]
fn float16_arrays_of_any_length_are_scaled() {
    arrays_of_any_length_are_scaled::<10>();
}

#[test]
fn bfloat16_arrays_of_any_length_are_scaled() {
    arrays_of_any_length_are_scaled::<7>();
}

/// A block that float32 does not determine is computed in float64, wherever the tie lies in it.
#[test]
fn a_block_with_a_tie_is_right() {
    let (one, next) = (Bf16::from_f64(1.0), Bf16::from_f64(1.5));
    for isa in Isa::available() {
        for (i, near) in thinned((0..192).step_by(5), 5).enumerate() {
            let mut from = [next; 192];
            from[near] = one;
            // The tie after one is between the factors, or one of them.
            let tie = 1.0_f32 + 1.0 / 256.0;
            let beside = [f32::from_bits(tie.to_bits() - 1), f32::from_bits(tie.to_bits() + 1)];
            let bounds = [beside, [tie, beside[1]], [beside[0], tie], [tie, tie]][i % 4];
            for by in [f64::from(tie), f64::from(tie) - 1e-12, f64::from(tie) + 1e-12] {
                let mut to = [one; 192];
                isa.run(ScaleHalves::<_, false> { from: Some(&from), to: &mut to, by, bounds: Some(bounds) });
                for (j, (to, from)) in to.iter().zip(&from).enumerate() {
                    let expected = product::<7>(from.to_bits(), by, false);
                    assert_eq!(to.to_bits(), expected, "{j}, {}", isa.name());
                }
            }
        }
    }
}

#[test]
fn every_float16_is_scaled() {
    every_number_is_scaled::<10>();
}

#[test]
fn every_bfloat16_is_scaled() {
    every_number_is_scaled::<7>();
}

/// The reference itself is checked: a product with one is the number, and a few products can be checked by hand.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone")]
fn the_oracle_is_right() {
    for x in 0..=u16::MAX {
        let (half, brain) = (F16::from_bits(x), Bf16::from_bits(x));
        assert_eq!(product::<10>(x, 1.0, false), if half.is_nan() { x | 1 << 9 } else { x });
        assert_eq!(product::<7>(x, 1.0, false), if brain.is_nan() { x | 1 << 6 } else { x });
    }
    for (x, by, expected) in [
        (0x3c00, 2.0, 0x4000),
        (0x3c01, 0.5, 0x3801),
        (0x0001, 0.5, 0x0000), // a tie, to even
        (0x0003, 0.5, 0x0002),
        (0x0001, 0.500_000_1, 0x0001),
        (0x7bff, 1.0003, 0x7c00), // 65523.7
        (0x7bff, 1.0002, 0x7bff),
        (0x03ff, -1.001, 0x8400),
        (0x0401, 0.5, 0x0200),
    ] {
        assert_eq!(product::<10>(x, by, false), expected, "{x:#06x} * {by}");
    }
    for (x, by, expected) in [
        (0x3c01, 0.75, 0x3a01), // 0.750732421875, between 0x3a01 and 0x3a02
        (0xbc01, 0.75, 0xba01),
        (0x0003, 0.5, 0x0001),
        (0x3c00, 0.75, 0x3a00),
    ] {
        assert_eq!(product::<10>(x, by, true), expected, "{x:#06x} * {by}");
    }
    for (x, by, expected) in [
        (0x3f81, 1.5, 0x3fc2), // 1.51171875, a tie
        (0x0001, 0.5, 0x0000),
        (0x0081, 0.5, 0x0040),
        (0x7f7f, 1.001, 0x7f7f),
        (0x7f7f, 1.01, 0x7f80),
    ] {
        assert_eq!(product::<7>(x, by, false), expected, "{x:#06x} * {by}");
    }
}

/// All numbers of one sign in order, and each beside some others: infinities, zeros and NaN among them.
fn order_is_that_of_float64<const DIGITS: u32>() {
    let some = (0..=u16::MAX).step_by(97).chain([0, 0x8000, 0x7c00, 0x7f80, 0xffff]);
    let some: Vec<_> = some.map(Half::<DIGITS>::from_bits).collect();
    for x in &some {
        for y in &some {
            let (u, v) = (f64::from(*x), f64::from(*y));
            assert_eq!(x.partial_cmp(y), u.partial_cmp(&v));
            assert_eq!([x < y, x > y, x == y], [u < v, u > v, u == v]);
        }
    }
}

/// A number and what lies half a step above it have that number below them.
fn truncated_is_the_number_below<const DIGITS: u32>() {
    for bits in 0..Half::<DIGITS>::INFINITY.to_bits() - 1 {
        let [low, high] = [bits, bits + 1].map(|bits| Half::<DIGITS>::from_bits(bits).to_f32());
        for x in [low, low + (high - low) / 2.0, f32::from_bits(high.to_bits() - 1)] {
            assert_eq!(Half::<DIGITS>::truncated(x).to_bits(), bits, "{x:e}");
            assert_eq!(Half::<DIGITS>::truncated(-x).to_bits(), bits | 0x8000, "-{x:e}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "arithmetic alone")]
fn halves_are_ordered_and_truncated() {
    order_is_that_of_float64::<10>();
    order_is_that_of_float64::<7>();
    truncated_is_the_number_below::<10>();
    truncated_is_the_number_below::<7>();
}
