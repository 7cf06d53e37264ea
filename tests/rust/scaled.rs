//! Norms and factors beyond float64, against integer arithmetic.

#![allow(clippy::cast_possible_wrap, clippy::expect_used, missing_docs, reason = "a test")]

use crate::common::{Random, term_of};
use _core::kernel::power::{Log2, Power, exp2, half_power, half_power_root};
use _core::scaled::{Factor, Scaled, power_of_two};

/// `m * 2^e` rounded to nearest, ties to even.
fn nearest(m: u128, e: i32) -> f64 {
    let Some(top) = m.checked_ilog2() else { return 0.0 };
    let top = top as i32;
    if e + top > 1023 {
        return f64::INFINITY;
    }
    // The last bit of the result is worth 2^last.
    let last = (e + top - 52).max(-1074);
    let drop = last - e;
    let digits = match drop {
        ..=0 => m << -drop,
        1..=127 => {
            let (digits, rest, half) = (m >> drop, m & ((1 << drop) - 1), 1 << (drop - 1));
            digits + u128::from(rest > half || (rest == half && digits % 2 == 1))
        }
        _ => 0,
    };
    // The bits of float64 count upwards through subnormals, normals and infinity.
    let below = if last == -1074 { 0 } else { ((last + 1074) as u64) << 52 };
    f64::from_bits(below + digits as u64)
}

/// `(m, e)` with `x = m * 2^e` and 53 bits in m; (0, 0) for 0.
fn digits(x: f64) -> (u128, i32) {
    let (bits, biased) = (x.to_bits() & (u64::MAX >> 12), (x.to_bits() >> 52) as i32);
    let (m, e) = if biased == 0 { (bits, -1074) } else { (bits | 1 << 52, biased - 1075) };
    if m == 0 {
        return (0, 0);
    }
    let lift = m.leading_zeros() as i32 - 11;
    (u128::from(m << lift), e - lift)
}

/// `x * limit / (norm * 2^exponent)`, rounded once.
fn product(x: f64, limit: f64, norm: f64, exponent: i32) -> f64 {
    let ((x, ex), (limit, el), (norm, en)) = (digits(x), digits(limit), digits(norm));
    let numerator = (x * limit) << 21;
    let quotient = 2 * (numerator / norm) + u128::from(numerator % norm != 0);
    nearest(quotient, ex + el - en - exponent - 22)
}

fn ulps(a: f64, b: f64) -> u64 {
    a.to_bits().abs_diff(b.to_bits())
}

fn apply(x: f64, factor: Factor) -> f64 {
    x * factor.by * factor.then
}

/// Positive and finite, of any exponent.
fn positive(random: &mut Random) -> f64 {
    let x = f64::from_bits(random.bits() % f64::INFINITY.to_bits());
    match random.below(8) {
        0 => f64::from_bits(random.bits() % (1 << 52)), // subnormal
        1 => power_of_two(random.below(2046) as i32 - 1022),
        2 => f64::from_bits(1 + random.below(9) as u64),
        3 => f64::from_bits(f64::MAX.to_bits() - random.below(9) as u64),
        _ => x,
    }
    .max(f64::from_bits(1))
}

/// Below `2^most`, of all lengths alike.
fn few_bits(random: &mut Random, most: usize) -> u64 {
    let bits = 1 + random.below(most);
    random.bits() >> (64 - bits)
}

#[test]
fn the_reference_rounds() {
    assert_eq!(nearest(1, -1074), f64::from_bits(1));
    assert_eq!(nearest(1, -1075), 0.0);
    assert_eq!(nearest(3, -1076), f64::from_bits(1));
    assert_eq!(nearest(3, -1075), f64::from_bits(2));
    assert_eq!(nearest((1 << 54) - 1, 970), f64::INFINITY);
    assert_eq!(nearest((1 << 53) - 1, 971), f64::MAX);
    assert_eq!(nearest((1 << 53) - 1, -1075), f64::MIN_POSITIVE);
    assert_eq!(nearest((1 << 60) + 1, 0), power_of_two(60));
    let mut random = Random::new(1);
    for _ in 0..10_000 {
        let (x, y) = (positive(&mut random), 1.0 + random.below(1 << 20) as f64);
        let (m, e) = digits(x);
        assert_eq!(nearest(m, e), x);
        assert_eq!(product(x, 1.0, 1.0, 0), x);
        assert_eq!(product(x, 1.0, y, 0), x / y);
        assert_eq!(product(x, y, 1.0, 0), x * y);
    }
}

#[test]
fn powers_of_two() {
    for e in -1022..=1023 {
        assert_eq!(power_of_two(e), nearest(1, e));
    }
    for e in [-1023, -5000, i32::MIN] {
        assert_eq!(power_of_two(e), f64::MIN_POSITIVE);
    }
    for e in [1024, 5000, i32::MAX] {
        assert_eq!(power_of_two(e), nearest(1, 1023));
    }
}

#[test]
fn to_f64_rounds_once_over_the_whole_range() {
    let mut random = Random::new(2);
    for exponent in -2300..=2300 {
        for value in [1.0, 1.5, 2.0 - f64::EPSILON, positive(&mut random), positive(&mut random)] {
            let (m, e) = digits(value);
            let (found, expected) = (Scaled::new(value, exponent).to_f64(), nearest(m, e + exponent));
            assert_eq!(found, expected, "{value:e} * 2^{exponent}");
        }
    }
    for (exponent, end) in [(i32::MAX, f64::INFINITY), (i32::MIN, 0.0)] {
        assert_eq!(Scaled::new(1.5, exponent).to_f64(), end);
        assert!(Scaled::new(1.5, exponent).is_finite());
        assert!(!Scaled::new(1.5, exponent).is_zero());
    }
}

#[test]
fn one_number_has_one_form() {
    let mut random = Random::new(3);
    for _ in 0..20_000 {
        let (value, shift) = (positive(&mut random), random.below(1200) as i32 - 600);
        let (m, e) = digits(value);
        if nearest(m, e - shift).is_normal() && nearest(m, e).is_normal() {
            assert_eq!(Scaled::new(nearest(m, e - shift), shift), Scaled::new(value, 0), "{value:e} {shift}");
        }
    }
    // One bit of a subnormal is 2^-1074, and more are kept than float64 can.
    assert_eq!(Scaled::new(f64::from_bits(1), 0), Scaled::new(1.0, -1074));
    assert_ne!(Scaled::new(1.25, -1074), Scaled::new(1.0, -1074));
    assert_eq!(Scaled::new(1.25, -1074).to_f64(), f64::from_bits(1));
}

#[test]
fn zero_infinity_and_nan_have_no_exponent() {
    for exponent in [0, 600, -600, i32::MAX, i32::MIN] {
        assert_eq!(Scaled::new(0.0, exponent), Scaled::ZERO);
        assert!(Scaled::new(0.0, exponent).is_zero() && Scaled::new(0.0, exponent).is_finite());
        let infinite = Scaled::new(f64::INFINITY, exponent);
        assert_eq!(infinite.to_f64(), f64::INFINITY);
        assert!(!infinite.is_finite() && !infinite.is_zero());
        let nan = Scaled::new(f64::from_bits(0xfff1_2345_6789_abcd), exponent);
        assert_eq!(nan.to_f64().to_bits(), f64::NAN.to_bits());
        assert!(!nan.is_finite() && !nan.is_zero());
    }
}

#[test]
fn splitting_changes_nothing() {
    let mut random = Random::new(10);
    for _ in 0..50_000 {
        let (value, exponent) = (positive(&mut random), random.below(6000) as i32 - 3000);
        let scaled = Scaled::new(value, exponent);
        let (found, place) = scaled.split();
        assert!((1.0..2.0).contains(&found), "{value:e} * 2^{exponent}: {found}");
        // As integers, both with 53 digits.
        let ((m, e), (n, f)) = (digits(value), digits(found));
        assert_eq!((m, e + exponent), (n, f + place));
        assert_eq!(Scaled::new(found, place), scaled);
    }
    for exponent in [i32::MAX, i32::MIN] {
        assert_eq!(Scaled::new(1.5, exponent).split(), (1.5, exponent));
    }
    for odd in [0.0, f64::INFINITY] {
        assert_eq!(Scaled::new(odd, 77).split(), (odd, 0));
    }
    let (nan, exponent) = Scaled::new(f64::NAN, 5).split();
    assert!(nan.is_nan() && exponent == 0);
}

/// `m * 2^e`, with 106 digits in m.
#[derive(Clone, Copy)]
struct Long {
    m: u128,
    e: i32,
}

impl Long {
    fn new(x: f64, exponent: i32) -> Self {
        let (m, e) = digits(x);
        Self { m: m << 53, e: e + exponent - 53 }
    }

    /// The upper 106 digits of the product; what is dropped is below 2^-50 of the last digit of a float64.
    fn times(self, other: Self) -> Self {
        let half = |m: u128| (m >> 53, m & ((1 << 53) - 1));
        let ((upper, lower), (other_upper, other_lower)) = (half(self.m), half(other.m));
        let between = ((upper * other_lower) >> 53) + ((lower * other_upper) >> 53);
        let m = upper * other_upper + between + ((lower * other_lower) >> 106);
        let up = m.leading_zeros() as i32 - 22;
        Self { m: if up >= 0 { m << up } else { m >> -up }, e: self.e + other.e + 106 - up }
    }

    fn power(self, n: u32) -> Self {
        (1..n).fold(self, |product, _| product.times(self))
    }
}

/// How far `root^n` is from `sum^m`, in units of the last digit of a float64 of that size; both are split.
fn distance(root: (f64, i32), n: u32, sum: (f64, i32), m: u32) -> f64 {
    let (one, other) = (Long::new(root.0, root.1).power(n), Long::new(sum.0, sum.1).power(m));
    // Beside a power of two, the exponents may differ by one.
    let (one, other) = match one.e - other.e {
        0 => (one.m, other.m),
        1 => (one.m, other.m >> 1),
        -1 => (one.m >> 1, other.m),
        _ => return f64::INFINITY,
    };
    one.abs_diff(other) as f64 / power_of_two(53)
}

#[test]
fn the_distance_of_powers() {
    let split = |x: f64| Scaled::new(x, 0).split();
    assert_eq!(distance(split(7.0), 2, split(49.0), 1), 0.0);
    assert_eq!(distance(split(27.0), 2, split(9.0), 3), 0.0);
    assert_eq!(distance((1.5, 1000), 4, (1.5 * 1.5 * 1.5 * 1.5 / 4.0, 4002), 1), 0.0);
    let next = distance(split(1.0 + f64::EPSILON), 3, split(1.0), 1);
    assert!((2.9..3.1).contains(&next), "{next}");
    assert_eq!(distance(split(2.0), 1, split(8.0), 1), f64::INFINITY);
    // 2 and the number below it, whose exponents differ.
    assert!(distance(split(2.0), 1, split(2.0 - f64::EPSILON), 1) <= 1.0);
}

/// Roots of sums, checked by raising them to the power: `root^p = sum`, as integers. An error of one unit of the root is p
/// units of its power, or a few more where the power's first digit is small.
#[test]
fn simple_roots_are_right() {
    assert_eq!([0.5, 1.5, 3.0, 4.0].map(half_power), [Some(1), Some(3), Some(6), Some(8)]);
    for p in [1.0, 2.0, 3.7, 0.0, f64::INFINITY, f64::NAN, 3.0 + 2.0 * f64::EPSILON] {
        assert_eq!(half_power(p), None);
    }
    let mut random = Random::new(11);
    for _ in 0..50_000 {
        let sum = positive(&mut random);
        let of = Scaled::new(sum, 0).split();
        // (the power of the root, the power of the sum, and how many units may lie between)
        for (twice, n, m, units) in [(1, 1, 2, 0.5), (3, 3, 2, 12.0), (6, 3, 1, 4.0), (8, 4, 1, 5.0)] {
            let root = half_power_root(twice, sum);
            let off = distance(root.split(), n, of, m);
            assert!(off <= units, "{twice} halves of {sum:e} is {root:?}, off by {off}");
        }
    }
    // Whole roots are whole, as long as the sum is exact.
    for n in 0..5000 {
        let n = f64::from(n);
        assert_eq!(half_power_root(1, n), Scaled::new(n * n, 0));
        assert_eq!(half_power_root(3, n * n * n), Scaled::new(n * n, 0));
        assert_eq!(half_power_root(6, n * n * n), Scaled::new(n, 0));
        assert_eq!(half_power_root(8, n * n * n * n), Scaled::new(n, 0));
    }
    // The square of the largest and of the smallest number, neither of which float64 holds.
    assert_eq!(half_power_root(1, power_of_two(1000)), Scaled::new(1.0, 2000));
    assert_eq!(half_power_root(1, f64::from_bits(1)), Scaled::new(1.0, -2148));
    for twice in [1, 3, 6, 8] {
        assert_eq!(half_power_root(twice, 0.0), Scaled::ZERO);
        let infinite = half_power_root(twice, f64::INFINITY);
        assert!(!infinite.is_finite() && infinite.to_f64() == f64::INFINITY);
        assert!(half_power_root(twice, f64::NAN).to_f64().is_nan());
    }
}

#[test]
fn max_is_the_larger_number() {
    let mut random = Random::new(4);
    for _ in 0..50_000 {
        let mut one = || {
            let (value, exponent) = (positive(&mut random), random.below(2400) as i32 - 1200);
            let (m, e) = digits(value);
            ((e + exponent, m), Scaled::new(value, exponent))
        };
        let ((a_key, a), (b_key, b)) = (one(), one());
        let larger = if a_key >= b_key { a } else { b };
        assert_eq!(a.max(b), larger);
        assert_eq!(b.max(a), larger);
        let close = Scaled::new(1.0, a_key.0).max(Scaled::new(1.0 + f64::EPSILON, a_key.0));
        assert_eq!(close, Scaled::new(1.0 + f64::EPSILON, a_key.0));
    }
    let (zero, infinite, nan) = (Scaled::ZERO, Scaled::new(f64::INFINITY, 0), Scaled::new(f64::NAN, 0));
    for x in [zero, Scaled::new(1.0, 5000), Scaled::new(1.0, -5000), infinite] {
        assert_eq!(x.max(zero), x);
        assert_eq!(zero.max(x), x);
        assert_eq!(x.max(infinite), infinite);
        assert_eq!(infinite.max(x), infinite);
        assert!(x.max(nan).to_f64().is_nan() && nan.max(x).to_f64().is_nan());
    }
}

#[test]
fn over_divides() {
    let mut random = Random::new(5);
    for _ in 0..50_000 {
        let (value, exponent) = (positive(&mut random), random.below(2400) as i32 - 1200);
        let count = 1 + few_bits(&mut random, 40) as usize;
        let (m, e) = digits(value);
        let numerator = m << 64;
        let quotient = numerator / count as u128 * 2 + u128::from(!numerator.is_multiple_of(count as u128));
        let expected = nearest(quotient, e + exponent - 65);
        let found = Scaled::new(value, exponent).divided_by(count as f64).to_f64();
        // A subnormal is rounded a second time.
        assert!(
            ulps(found, expected) <= u64::from(!expected.is_normal()),
            "{value:e} 2^{exponent} / {count}"
        );
    }
    // What one division loses comes back at the other.
    let tiny = Scaled::new(f64::from_bits(3), 0).divided_by((1u64 << 40) as f64);
    assert_eq!(tiny.to_f64(), 0.0);
    assert!(!tiny.is_zero());
    assert_eq!(tiny, Scaled::new(f64::from_bits(3), -40));
    assert_eq!(Scaled::ZERO.divided_by(3.0), Scaled::ZERO);
    assert_eq!(Scaled::new(f64::INFINITY, 0).divided_by(3.0).to_f64(), f64::INFINITY);
    assert!(Scaled::new(f64::NAN, 0).divided_by(3.0).to_f64().is_nan());
}

/// Clips a norm that is possible for the elements, and compares with the product rounded once.
#[track_caller]
fn check_clip(x: f64, limit: f64, norm: f64, exponent: i32) {
    let scaled = Scaled::new(norm, exponent);
    let Some(factor) = scaled.clip_to(limit) else {
        assert!(scaled.to_f64() <= limit);
        return;
    };
    assert_eq!(factor, scaled.factor_to(limit));
    let (found, expected) = (apply(x, factor), product(x, limit, norm, exponent));
    assert!(
        ulps(found, expected) <= 2,
        "{x:e} * {limit:e} / ({norm:e} * 2^{exponent}) is {expected:e}, not {found:e}"
    );
    // Rounded to float32 once, apart from the errors of float64.
    let (narrow, step) = (found as f32, f32::EPSILON * power_of_two(digits(expected).1 + 52) as f32);
    if narrow.is_normal() && step.is_normal() {
        assert!(
            (f64::from(narrow) - expected).abs() <= 0.500_001 * f64::from(step),
            "{narrow:e} {expected:e}"
        );
    }
}

#[test]
fn clipped_elements_are_right() {
    let mut random = Random::new(6);
    let mut clipped = 0;
    for i in 0..200_000 {
        // An element is at most the norm; the norm of the largest ones may lie beyond.
        let (x, limit) = (positive(&mut random), positive(&mut random));
        let (norm, exponent) = match i % 4 {
            0 => (x, 0),
            1 => (x, random.below(20) as i32),
            2 => (x * 0.75 + f64::MAX / 4.0, 0),
            _ => (x.max(positive(&mut random)), 0),
        };
        // Limits so far below are the next test's.
        if digits(limit).1 - digits(norm).1 - exponent < -2050 {
            continue;
        }
        clipped += u32::from(Scaled::new(norm, exponent).clip_to(limit).is_some());
        check_clip(x, limit, norm, exponent);
    }
    assert!(clipped > 50_000);
    check_clip(1e300, 1e-300, 1e300, 0);
    check_clip(1e300, 1e-300, 1.5e308, 0);
    check_clip(f64::from_bits(7), f64::from_bits(3), f64::from_bits(9), 0);
    check_clip(1e-310, 1e-320, 3e-310, 0);
    assert_eq!(apply(1e300, Scaled::new(1e300, 0).factor_to(1e-300)), 1e-300);
}

#[test]
fn the_smallest_limits_under_the_largest_norms_lose_nothing() {
    // 1024 elements of 2^1023: their norm is 2^1028, and what is left of each is 2^-1052.
    let large = power_of_two(1023);
    check_clip(large, nearest(1, -1047), large, 5);
    // One element becomes the limit itself.
    for norm in [large, f64::MAX, power_of_two(1001), power_of_two(1000)] {
        for limit in [1, 2, 3, 100, 12_345] {
            let limit = f64::from_bits(limit);
            let found = apply(norm, Scaled::new(norm, 0).clip_to(limit).expect("above the limit"));
            assert_eq!(found, limit, "{norm:e} clipped to {limit:e}");
        }
    }
    let mut random = Random::new(7);
    for _ in 0..20_000 {
        let x = power_of_two(960 + random.below(64) as i32) * (1.0 + random.below(1 << 20) as f64 / 1e7);
        let limit = f64::from_bits(1 + few_bits(&mut random, 52));
        check_clip(x, limit, x, random.below(16) as i32);
    }
}

#[test]
fn a_factor_above_one_is_right() {
    // As for dividing by a subnormal norm.
    let mut random = Random::new(8);
    for _ in 0..20_000 {
        let norm = f64::from_bits(1 + few_bits(&mut random, 54));
        let x = f64::from_bits(1 + random.bits() % norm.to_bits());
        let (found, expected) = (apply(x, Scaled::new(norm, 0).factor_to(1.0)), product(x, 1.0, norm, 0));
        assert!(ulps(found, expected) <= 2, "{x:e} / {norm:e} is {expected:e}, not {found:e}");
    }
}

#[test]
fn the_limit_itself_is_not_clipped() {
    let mut random = Random::new(9);
    for _ in 0..20_000 {
        let norm = positive(&mut random);
        let scaled = Scaled::new(norm, 0);
        let (above, below) =
            (f64::from_bits(norm.to_bits() + 1), f64::from_bits(norm.to_bits().saturating_sub(1)));
        assert_eq!(scaled.clip_to(norm), None);
        assert_eq!(scaled.clip_to(above), None);
        assert!(scaled.clip_to(below).is_some());
    }
    // As float64 this is the smallest subnormal, and so is the limit.
    assert_eq!(Scaled::new(1.25, -1074).clip_to(f64::from_bits(1)), None);
    // As float64 this is infinite, and no infinity is above infinity.
    let beyond = Scaled::new(1.0, 1030);
    assert_eq!(beyond.clip_to(f64::INFINITY), None);
    assert!(beyond.clip_to(f64::MAX).is_some());
    assert_eq!(Scaled::new(f64::INFINITY, 0).clip_to(f64::INFINITY), None);
}

#[test]
fn factors_at_the_ends() {
    let zero = Factor::new(0.0, 1.0);
    let (infinite, nan) = (Scaled::new(f64::INFINITY, 0), Scaled::new(f64::NAN, 0));
    let is_nan = |factor: Factor| factor.by.is_nan() && factor.then == 1.0;
    for limit in [0.0, f64::from_bits(1), 1.0, f64::MAX, f64::INFINITY] {
        assert_eq!(Scaled::ZERO.clip_to(limit), None);
        assert_eq!(Scaled::ZERO.factor_to(limit), Factor::ONE);
        assert!(is_nan(nan.factor_to(limit)));
        if limit.is_finite() {
            assert!(nan.clip_to(limit).is_some_and(is_nan));
            assert_eq!(infinite.clip_to(limit), Some(zero));
        } else {
            assert_eq!((nan.clip_to(limit), infinite.clip_to(limit)), (None, None));
        }
    }
    assert!(is_nan(infinite.factor_to(f64::INFINITY)));
    assert!(is_nan(Scaled::new(1.0, 0).factor_to(f64::NAN)));
    for norm in [Scaled::new(1.0, 0), Scaled::new(1.0, 3000), Scaled::new(1.0, -3000), Scaled::new(1e-320, 0)]
    {
        assert_eq!(norm.factor_to(f64::INFINITY), Factor::ONE);
        assert_eq!(norm.factor_to(0.0), zero);
        assert_eq!(norm.factor_to(-0.0), zero);
        // Also of a norm that as float64 is 0.
        assert_eq!(norm.clip_to(0.0), Some(zero));
    }
    // Signs survive the limit zero.
    assert_eq!(apply(-3.0, zero).to_bits(), (-0f64).to_bits());
    // Everything normal: one step.
    assert_eq!(Scaled::new(8.0, 0).clip_to(2.0), Some(Factor::new(0.25, 1.0)));
}

#[test]
fn logarithm_and_exponential_undo_each_other() {
    for i in 1..20_000 {
        let x = f64::from(i) / 20_000.0;
        let log = Log2::of(x);
        let back = exp2(log.exponent + log.fraction);
        assert!((back - x).abs() <= 4.0 * f64::EPSILON * x, "{x} {back}");
    }
}

#[test]
fn powers_of_two_are_exact() {
    for e in -1074..=1023 {
        let x = if e < -1022 { f64::from_bits(1 << (e + 1074)) } else { power_of_two(e) };
        let log = Log2::of(x);
        assert_eq!((log.exponent, log.fraction), (f64::from(e), 0.0));
        if (-1000..=0).contains(&e) {
            assert_eq!(exp2(f64::from(e)), x);
        }
    }
}

#[test]
fn a_cube_is_right() {
    // 2^3 + 1^3 + 2^3 = 17, in units of the peak: 17/8.
    let peak = Scaled::new(2.0, 0);
    let term = Power::new(3.0, peak);
    let sum: f64 = [2.0, -1.0, 2.0, 0.0].iter().map(|&x: &f64| term_of(term, x)).sum();
    assert!((sum - 17.0 / 8.0).abs() < 1e-15);
    assert!((term.root(peak, sum).to_f64() - 17f64.cbrt()).abs() < 1e-15);
}

#[test]
fn cube_roots_of_cubes_are_whole() {
    let cube_root = |x| half_power_root(6, x).to_f64();
    for i in 1..10_000 {
        let x = f64::from(i);
        assert_eq!(cube_root(x * x * x), x);
    }
    for (i, exponent) in (-1074..1024).enumerate() {
        let x = 1.0 + i as f64 / 5000.0;
        let x = if exponent < -1022 {
            f64::from_bits(1 << (exponent + 1074))
        } else {
            x * power_of_two(exponent)
        };
        let exact = x.cbrt();
        assert!((cube_root(x) - exact).abs() <= f64::EPSILON * exact, "{x:e}");
    }
    for x in [0.0, f64::INFINITY] {
        assert_eq!(cube_root(x), x);
    }
    assert!(cube_root(f64::NAN).is_nan());
}
