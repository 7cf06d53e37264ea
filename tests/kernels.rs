//! Every operation, dtype and instruction set against loops that are plainly right.

#![allow(clippy::cast_possible_wrap, missing_docs, reason = "a test")]

mod common;

use std::cmp::Ordering;
use std::sync::atomic::AtomicU8;

use _core::element::{Dtype, Element, Real};
use _core::isa::Isa;
use _core::kernel::clip::{AnyOutside, Clip, ClipEach};
use _core::kernel::map::{AnyChange, Apply, ApplyInto, Map};
use _core::kernel::max::{MaxAbs, MaxRow};
use _core::kernel::power::Power;
use _core::kernel::scale::{ClipMagnitude, Scale, ScaleEach, ScaleEachInto};
use _core::kernel::sum::{Abs, AddRow, AddRows, FoldRows, Rescaled, Square, Sum, Term, Total};
use _core::scaled::{Factor, power_of_two};
use common::Random;

const LENGTHS: [usize; 19] =
    [0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 2047, 2048, 2049, 4099];
/// Room for the longest slice at the largest offset, and something behind it.
const ROOM: usize = 4099 + 8;

macro_rules! dtypes {
    (real $($real:ty)*; integer $($integer:ty)*) => {
        const TESTED: &[Dtype] = &[$(<$real>::DTYPE,)* $(<$integer>::DTYPE,)*];
        macro_rules! for_all { ($test:ident) => { $($test::<$real>();)* $($test::<$integer>();)* }; }
        macro_rules! for_reals { ($test:ident) => { $($test::<$real>();)* }; }
    };
}
dtypes! { real f32 f64; integer i8 i16 i32 i64 u8 u16 u32 u64 }

#[test]
fn all_dtypes_are_tested() {
    assert_eq!(TESTED, Dtype::ALL);
}

/// Calls `check` for each level, and each slice of a room: all lengths, at several distances from its start.
fn at_all_levels(mut check: impl FnMut(Isa, std::ops::Range<usize>)) {
    for isa in Isa::available() {
        for len in LENGTHS {
            for offset in 0..4 {
                check(isa, offset..offset + len);
            }
        }
    }
}

fn bits<T: Element>(x: T) -> u64 {
    let cells: [AtomicU8; 8] = std::array::from_fn(|_| AtomicU8::new(0));
    x.store_bytes(&cells[..size_of::<T>()], false);
    u64::from_ne_bytes(cells.map(AtomicU8::into_inner))
}

#[track_caller]
fn assert_same<T: Element>(found: &[T], expected: &[T]) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert_eq!(bits(*a), bits(*b), "element {i}: {a:?}, not {b:?}");
    }
}

const SPECIAL: [f64; 13] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    f64::MAX,
    -f64::MAX,
    f64::MIN_POSITIVE / 4.0,
    -1e-40,
    f32::MAX as f64,
    -10.0,
];

/// Everyday numbers, special ones and arbitrary bits.
fn samples<T: Element>(random: &mut Random, len: usize) -> Vec<T> {
    let one = |_| match random.below(8) {
        0 => T::from_float(SPECIAL[random.below(SPECIAL.len())]),
        1 | 2 => T::from_bytes(&random.bits().to_ne_bytes(), false),
        _ => T::from_float(random.below(4001) as f64 / 16.0 - 125.0),
    };
    (0..len).map(one).collect()
}

/// Neither NaN nor infinite.
fn finite<T: Real>(random: &mut Random, len: usize) -> Vec<T> {
    let all: Vec<T> = samples(random, len);
    let keep = |x: T| if x.widen().is_finite() { x } else { T::from_float(2.5) };
    all.into_iter().map(keep).collect()
}

/// Checks `map` against `expected` in place and from slice to slice, and that nothing else is written.
fn check_map<T: Element, M: Map<T>>(map: M, room: &[T], expected: impl Fn(T) -> T) {
    at_all_levels(|isa, range| {
        let mut result = room.to_vec();
        for x in &mut result[range.clone()] {
            *x = expected(*x);
        }

        let mut found = room.to_vec();
        isa.run(Apply { data: &mut found[range.clone()], map });
        assert_same(&found, &result);

        let mut found = vec![T::HIGHEST; room.len()];
        isa.run(ApplyInto { from: &room[range.clone()], to: &mut found[range.clone()], map });
        assert_same(&found[range.clone()], &result[range.clone()]);
        assert_same(&found[..range.start], &vec![T::HIGHEST; range.start]);
        assert_same(&found[range.end..], &vec![T::HIGHEST; room.len() - range.end]);

        let changed =
            (room[range.clone()].iter().zip(&result[range.clone()])).any(|(a, b)| bits(*a) != bits(*b));
        let may_change = room[range.clone()].iter().any(|x| map.changes(*x));
        assert_eq!(isa.run(AnyChange { data: &room[range], map }), may_change);
        assert!(may_change || !changed);
    });
}

/// `max(min(x, hi), lo)` where a NaN stays, a NaN bound makes NaN, and of equals the element stays.
fn clipped<T: Element>(x: T, lo: T, hi: T) -> T {
    let smaller = match x.partial_cmp(&hi) {
        Some(Ordering::Greater) => hi,
        None if !x.is_nan() => hi,
        _ => x,
    };
    match smaller.partial_cmp(&lo) {
        Some(Ordering::Less) => lo,
        None if !smaller.is_nan() => lo,
        _ => smaller,
    }
}

fn clip<T: Element>() {
    let random = &mut Random::new(1);
    let room: Vec<T> = samples(random, ROOM);
    let of = |lo, hi| Clip { lo: T::from_float(lo), hi: T::from_float(hi) };
    let nan = f64::NAN;
    let pairs = [(-10.0, 10.0), (10.0, -10.0), (0.0, 0.0), (-0.0, 0.0), (0.0, 1.0), (nan, 1.0), (1.0, nan)];
    let mut clips: Vec<Clip<T>> = pairs.into_iter().map(|(lo, hi)| of(lo, hi)).collect();
    clips.push(Clip { lo: T::LOWEST, hi: T::HIGHEST });
    clips.push(Clip { lo: T::from_bytes(&random.bits().to_ne_bytes(), false), hi: T::HIGHEST });
    for Clip { lo, hi } in clips {
        check_map(Clip { lo, hi }, &room, |x| clipped(x, lo, hi));
    }
}

#[test]
fn clipping_to_two_numbers_is_right() {
    for_all!(clip);
}

fn clip_each<T: Element>() {
    let random = &mut Random::new(2);
    let (room, lo, hi): (Vec<T>, Vec<T>, Vec<T>) =
        (samples(random, ROOM), samples(random, ROOM), samples(random, ROOM));
    at_all_levels(|isa, range| {
        // The bounds lie elsewhere than the elements.
        let (lo, hi) = (&lo[ROOM - range.len()..], &hi[4..4 + range.len()]);
        let mut result = room.clone();
        for (i, x) in result[range.clone()].iter_mut().enumerate() {
            *x = clipped(*x, lo[i], hi[i]);
        }
        let mut found = room.clone();
        isa.run(ClipEach { data: &mut found[range.clone()], lo, hi });
        assert_same(&found, &result);
    });
}

#[test]
fn clipping_each_element_is_right() {
    for_all!(clip_each);
}

/// One element out of its bounds is found wherever it is, and none where there is none.
fn any_change<T: Element>() {
    let random = &mut Random::new(3);
    let number = |x: f64| T::from_float(x);
    let inside: Vec<T> = (0..ROOM).map(|_| number(random.below(90) as f64 + 5.0)).collect();
    let (lo, hi) = (vec![number(5.0); ROOM], vec![number(94.0); ROOM]);
    at_all_levels(|isa, range| {
        let map = Clip { lo: lo[0], hi: hi[0] };
        let both = |data: &[T]| {
            let each = AnyOutside { data, lo: &lo[..data.len()], hi: &hi[..data.len()] };
            (isa.run(AnyChange { data, map }), isa.run(each))
        };
        assert_eq!(both(&inside[range.clone()]), (false, false));
        if range.is_empty() {
            return;
        }
        for outside in [0.0, 4.0, 95.0] {
            let mut data = inside[range.clone()].to_vec();
            let last = data.len() - 1;
            for at in [0, last, random.below(data.len())] {
                let kept = data[at];
                data[at] = number(outside);
                assert_eq!(both(&data), (true, true));
                data[at] = kept;
            }
            if T::DTYPE.is_real() {
                data[last] = number(f64::NAN); // stays what it is
                assert_eq!(both(&data), (false, false));
                let nan = vec![number(f64::NAN); data.len()];
                assert!(!isa.run(AnyOutside { data: &nan, lo: &nan, hi: &hi[..nan.len()] }));
                assert!(isa.run(AnyOutside { data: &inside[..nan.len()], lo: &lo[..nan.len()], hi: &nan }));
                assert!(isa.run(AnyOutside { data: &inside[..nan.len()], lo: &nan, hi: &hi[..nan.len()] }));
            }
        }
    });
}

#[test]
fn an_element_out_of_its_bounds_is_found() {
    for_all!(any_change);
}

#[test]
fn clip_keeps_the_bits_it_should() {
    let payload = f32::from_bits(0x7fa1_2345); // signaling
    let bound = f32::from_bits(0xffc0_0777);
    for isa in Isa::available() {
        let clip = |x: f32, lo: f32, hi: f32| {
            let mut data = [x; 37];
            isa.run(Apply { data: &mut data, map: Clip { lo, hi } });
            assert_same(&data, &[data[0]; 37]);
            data[0].to_bits()
        };
        assert_eq!(clip(payload, -1.0, 1.0), 0x7fa1_2345);
        assert_eq!(clip(payload, bound, bound), 0x7fa1_2345);
        assert_eq!(clip(2.0, -1.0, bound), bound.to_bits());
        assert_eq!(clip(2.0, bound, 1.0), bound.to_bits());
        assert_eq!(clip(-0.0, 0.0, 1.0), (-0f32).to_bits());
        assert_eq!(clip(-0.0, -1.0, 0.0), (-0f32).to_bits());
        assert_eq!(clip(0.0, -0.0, 1.0), 0);
        assert_eq!(clip(0.0, -1.0, -0.0), 0);
        assert_eq!(clip(5.0, 2.0, -2.0), 2f32.to_bits()); // lo wins
        assert_eq!(clip(-5.0, 2.0, -2.0), 2f32.to_bits());
        assert_eq!(clip(0.0, 2.0, -2.0), 2f32.to_bits());
        assert_eq!(clip(f32::INFINITY, -1.0, 1.0), 1f32.to_bits());
        assert_eq!(clip(f32::NEG_INFINITY, -1.0, 1.0), (-1f32).to_bits());
        assert_eq!(clip(f32::INFINITY, -1.0, f32::INFINITY), f32::INFINITY.to_bits());
        let (small, smaller) = (f32::from_bits(9), f32::from_bits(3)); // subnormal
        assert_eq!(clip(small, 0.0, 1.0), 9);
        assert_eq!(clip(small, 0.0, smaller), 3);
        assert_eq!(clip(smaller, small, 1.0), 9);
    }
}

const NAN_FACTOR: Factor = Factor { by: f64::NAN, then: 1.0 };

fn factors() -> Vec<Factor> {
    let one = |by| Factor { by, then: 1.0 };
    let far = |by: f64, first, then| Factor { by: by * power_of_two(first), then: power_of_two(then) };
    vec![
        Factor::ONE,
        one(0.5),
        one(1.0 / 3.0),
        one(1e-30),
        one(1e30),
        one(0.0),
        NAN_FACTOR,
        far(1.25, -1000, -20),
        far(1.3, -1000, -993),
        far(1.7, 1000, 74),
    ]
}

/// What scaling makes of one element.
fn scaled<T: Real>(x: T, factor: Factor) -> T {
    let wide = x.widen();
    if factor.by.is_nan() || (wide.is_infinite() && factor.by == 0.0) {
        T::narrow(f64::NAN)
    } else if wide.is_nan() {
        // Quiet, with its payload; unless hidden, the two conversions are none.
        T::narrow(std::hint::black_box(wide))
    } else {
        T::narrow(wide * factor.by * factor.then)
    }
}

fn scale<T: Real>() {
    let room: Vec<T> = samples(&mut Random::new(4), ROOM);
    for factor in factors() {
        check_map(Scale(factor), &room, |x| scaled(x, factor));
    }
    for limit in [0.0, 1.0, 1e-50, 17.3, f64::INFINITY] {
        check_map(ClipMagnitude(limit), &room, |x: T| {
            let wide = x.widen();
            if wide.is_nan() || (wide.is_infinite() && limit.is_finite()) {
                T::narrow(f64::NAN)
            } else if wide > limit {
                T::narrow(limit)
            } else if wide < -limit {
                T::narrow(-limit)
            } else {
                x
            }
        });
    }
}

#[test]
fn scaling_is_right() {
    for_reals!(scale);
}

fn scale_each<T: Real>() {
    let random = &mut Random::new(5);
    let room: Vec<T> = samples(random, ROOM);
    let factors: Vec<f64> = samples::<f64>(random, ROOM).into_iter().map(f64::abs).collect();
    at_all_levels(|isa, range| {
        let factors = &factors[ROOM - range.len()..];
        let mut result = room.clone();
        for (x, by) in result[range.clone()].iter_mut().zip(factors) {
            *x = if x.widen() == 0.0 && by.is_infinite() {
                T::narrow(f64::NAN)
            } else {
                scaled(*x, Factor { by: *by, then: 1.0 })
            };
        }
        let mut found = room.clone();
        isa.run(ScaleEach { data: &mut found[range.clone()], factors });
        assert_same(&found, &result);
        let mut found = room.clone();
        isa.run(ScaleEachInto { from: &room[range.clone()], to: &mut found[range], factors });
        assert_same(&found, &result);
    });
}

#[test]
fn scaling_each_element_is_right() {
    for_reals!(scale_each);
}

#[test]
fn scale_makes_one_nan_and_keeps_others() {
    for isa in Isa::available() {
        let single = |x: f32, factor| {
            let mut data = [x; 37];
            isa.run(Apply { data: &mut data, map: Scale(factor) });
            assert_same(&data, &[data[0]; 37]);
            data[0].to_bits()
        };
        let double = |x: f64, factor| {
            let mut data = [x; 37];
            isa.run(Apply { data: &mut data, map: Scale(factor) });
            assert_same(&data, &[data[0]; 37]);
            data[0].to_bits()
        };
        let zero = Factor { by: 0.0, then: 1.0 };
        let half = Factor { by: 0.5, then: 1.0 };
        for infinite in [f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(single(infinite, zero), 0x7fc0_0000);
            assert_eq!(double(infinite.into(), zero), 0x7ff8_0000_0000_0000);
            assert_eq!(single(infinite, half), infinite.to_bits());
        }
        for x in [0.0, -1.5, f32::INFINITY, f32::from_bits(0xffc1_2345), 1e-40] {
            assert_eq!(single(x, NAN_FACTOR), 0x7fc0_0000);
            assert_eq!(double(x.into(), NAN_FACTOR), 0x7ff8_0000_0000_0000);
        }
        for factor in [zero, half, Factor { by: 1e-300, then: 1e-300 }] {
            assert_eq!(single(f32::from_bits(0xffc1_2345), factor), 0xffc1_2345);
            let payload = 0xfff8_0123_4567_89ab;
            assert_eq!(double(f64::from_bits(payload), factor), payload);
        }
        assert_eq!(single(-3.0, zero), (-0f32).to_bits());
        assert_eq!(single(f32::from_bits(5), half), 2); // 2.5 to even
        assert_eq!(single(f32::from_bits(7), half), 4); // 3.5 to even
        // The factor 2^-1993 is no float64, what it makes of 2^1000 is.
        let far = Factor { by: power_of_two(-1000), then: power_of_two(-993) };
        assert_eq!(double(power_of_two(1000), far), power_of_two(-993).to_bits());
        assert_eq!(double(power_of_two(-1000), far), 0);
    }
}

fn max<T: Real>() {
    let random = &mut Random::new(6);
    let clean: Vec<T> = finite(random, ROOM);
    let rough: Vec<T> = samples(random, ROOM);
    let largest = |data: &[T]| data.iter().map(|x| x.widen().abs()).fold(0.0, f64::max);
    at_all_levels(|isa, range| {
        let found = T::from_magnitude(isa.run(MaxAbs(&clean[range.clone()])));
        assert_eq!(found, largest(&clean[range.clone()]));
        // The largest one counts wherever it is; infinity is above all numbers and NaN above infinity.
        if !range.is_empty() {
            let small = T::from_float(-1e-3);
            for at in [0, range.len() - 1, random.below(range.len())] {
                let mut data = vec![small; range.len()];
                data[at] = T::from_float(-3.5);
                assert_eq!(T::from_magnitude(isa.run(MaxAbs(&data))), 3.5);
                data[random.below(range.len())] = T::from_float(f64::NEG_INFINITY);
                assert_eq!(T::from_magnitude(isa.run(MaxAbs(&data))), f64::INFINITY);
                data[at] = T::from_float(-f64::NAN);
                let nan = T::from_magnitude(isa.run(MaxAbs(&data)));
                assert_eq!(nan.to_bits(), f64::NAN.to_bits());
            }
        }

        let mut found: Vec<T::Magnitude> = clean[range.clone()].iter().map(|x| x.magnitude()).collect();
        let row = &rough[ROOM - range.len()..];
        isa.run(MaxRow { max: &mut found, row });
        for ((found, a), b) in found.into_iter().zip(&clean[range]).zip(row) {
            let (found, a, b) = (T::from_magnitude(found), a.widen().abs(), b.widen().abs());
            assert!(if b.is_nan() { found.is_nan() } else { found == a.max(b) }, "{found} {a} {b}");
        }
    });
}

#[test]
fn largest_magnitudes_are_right() {
    for_reals!(max);
}

/// The sum of a total as its documentation has it: Knuth's two-sum, the errors added up beside it.
#[derive(Clone, Copy, Default)]
struct NaiveTotal {
    sum: f64,
    error: f64,
}

impl NaiveTotal {
    fn add(&mut self, x: f64) {
        let before = self.sum;
        let sum = before + x;
        let x_part = sum - before;
        let before_part = sum - x_part;
        self.error += (before - before_part) + (x - x_part);
        self.sum = sum;
    }

    fn value(self) -> f64 {
        if self.sum.is_finite() { self.sum + self.error } else { self.sum }
    }
}

/// The documented order: blocks of 2048, element `i` to lane `i % 32`, the lanes folded by halves, the blocks
/// in order.
fn sum_in_order(terms: &[f64]) -> f64 {
    let mut total = NaiveTotal::default();
    for block in terms.chunks(2048) {
        let mut lanes = vec![0.0; 32];
        for (i, term) in block.iter().enumerate() {
            lanes[i % 32] += term;
        }
        while lanes.len() > 1 {
            let (low, high) = lanes.split_at(lanes.len() / 2);
            lanes = low.iter().zip(high).map(|(a, b)| a + b).collect();
        }
        total.add(lanes[0]);
    }
    total.value()
}

fn check_sum<T: Real, F: Term>(room: &[T], term: F, expected: impl Fn(f64) -> f64) {
    at_all_levels(|isa, range| {
        let data = &room[range];
        let terms: Vec<f64> = data.iter().map(|x| expected(x.widen())).collect();
        let (found, expected) = (isa.run(Sum { data, term }).value(), sum_in_order(&terms));
        assert_eq!(found.to_bits(), expected.to_bits(), "{} elements: {found}, not {expected}", data.len());
    });
}

fn sums<T: Real>() {
    let random = &mut Random::new(7);
    let mut room: Vec<T> = finite(random, ROOM);
    check_sum(&room, Abs, f64::abs);
    check_sum(&room, Square, |x| x * x);
    for by in [power_of_two(-600), power_of_two(600)] {
        check_sum(&room, Rescaled(Abs, by), |x| (x * by).abs());
        check_sum(&room, Rescaled(Square, by), |x| (x * by) * (x * by));
    }
    // Everyday numbers alone, so that no large one hides the others.
    room.fill_with(|| T::from_float(random.below(1 << 20) as f64 / 7.0 - 70_000.0));
    check_sum(&room, Abs, f64::abs);
    check_sum(&room, Square, |x| x * x);
    for p in [0.5, 1.5, 3.7, 100.0] {
        let peak = room.iter().map(|x| x.widen().abs()).fold(0.0, f64::max);
        let power = Power::new(p, peak);
        check_sum(&room, power, |x| power.of(x));
    }
}

#[test]
fn sums_are_added_in_the_documented_order() {
    for_reals!(sums);
}

#[test]
fn the_order_matters_to_these_tests() {
    let mut random = Random::new(8);
    let terms: Vec<f64> = (0..4099).map(|_| random.below(1 << 20) as f64 / 7.0).collect();
    assert_ne!(sum_in_order(&terms), terms.iter().sum::<f64>());
    assert_ne!(sum_in_order(&terms), sum_in_order(&terms[..2048]) + sum_in_order(&terms[2048..]));
}

/// Sums of integers, which this test adds up exactly: the error is within the documented bound of 70 * 2^-53.
fn sum_error<T: Real>() {
    let random = &mut Random::new(9);
    let most = if T::WIDE { 1 << 42 } else { 1 << 24 };
    let numbers: Vec<i64> = (0..ROOM).map(|_| random.below(most) as i64 - (most / 2) as i64).collect();
    let room: Vec<T> = numbers.iter().map(|n| T::from_integer(*n < 0, n.unsigned_abs().into())).collect();
    let mut rounded = false;
    at_all_levels(|isa, range| {
        let numbers = numbers[range.clone()].iter().map(|n| i128::from(n.unsigned_abs()));
        let exact = [numbers.clone().sum::<i128>(), numbers.map(|n| n * n).sum()];
        let data = &room[range];
        let found = [isa.run(Sum { data, term: Abs }).value(), isa.run(Sum { data, term: Square }).value()];
        for (found, exact) in found.into_iter().zip(exact) {
            assert_eq!(found.fract(), 0.0);
            let error = (found as i128 - exact).abs();
            rounded |= error != 0;
            assert!(error <= (exact * 70) >> 53, "{found} {exact}");
        }
    });
    assert!(rounded || !T::WIDE, "numbers too small to test anything");
}

#[test]
fn sums_keep_their_bound() {
    for_reals!(sum_error);
}

#[test]
fn a_total_carries_its_error() {
    // 2^53 + 1 ten times: a plain sum stays at 2^53.
    let mut total = Total::default();
    total.add(power_of_two(53));
    (0..10).for_each(|_| total.add(1.0));
    assert_eq!(total.value(), power_of_two(53) + 10.0);
    let mut merged = Total::default();
    (0..3).for_each(|_| merged.merge(total));
    assert_eq!(merged.value(), 3.0 * power_of_two(53) + 30.0 + 2.0); // a tie of the last bit's 4
    for far in [f64::INFINITY, f64::NAN] {
        let mut total = Total::default();
        for x in [1.0, far, 1.0] {
            total.add(x);
        }
        assert_eq!(total.value().to_bits(), (1.0 + far).to_bits());
        let mut merged = Total::default();
        merged.merge(total);
        merged.merge(total);
        assert_eq!(merged.value().to_bits(), (1.0 + far).to_bits());
    }
    let mut total = Total::default();
    for _ in 0..2 {
        total.add(f64::MAX);
    }
    assert_eq!(total.value(), f64::INFINITY);
}

#[test]
fn sums_of_infinity_and_nan_are_what_they_should_be() {
    for isa in Isa::available() {
        for len in LENGTHS.into_iter().filter(|len| *len > 2) {
            let mut data = vec![1.0; len];
            data[len / 2] = f64::NEG_INFINITY;
            assert_eq!(isa.run(Sum { data: &data, term: Square }).value(), f64::INFINITY);
            assert_eq!(isa.run(Sum { data: &data, term: Abs }).value(), f64::INFINITY);
            data[len / 3] = f64::NAN;
            assert!(isa.run(Sum { data: &data, term: Square }).value().is_nan());
            assert!(isa.run(Sum { data: &data, term: Abs }).value().is_nan());
            data.fill(1e200);
            assert_eq!(isa.run(Sum { data: &data, term: Square }).value(), f64::INFINITY);
        }
    }
}

fn rows<T: Real>() {
    let random = &mut Random::new(10);
    let data: Vec<Vec<T>> = (0..5).map(|_| finite(random, ROOM)).collect();
    let start: Vec<f64> = finite(random, ROOM);
    at_all_levels(|isa, range| {
        let mut sums: Vec<f64> = start[range.clone()].to_vec();
        let mut naive = sums.clone();
        let mut totals = vec![Total::default(); range.len()];
        let mut naive_totals = vec![NaiveTotal::default(); range.len()];
        for (i, row) in data.iter().enumerate() {
            let row = &row[range.clone()];
            if i % 2 == 0 {
                isa.run(AddRow { sums: &mut sums, row, term: Abs });
            } else {
                isa.run(AddRow { sums: &mut sums, row, term: Square });
            }
            for (sum, x) in naive.iter_mut().zip(row) {
                let x = x.widen();
                *sum += if i % 2 == 0 { x.abs() } else { x * x };
            }
            assert_same(&sums, &naive);
            if i != 3 {
                isa.run(FoldRows { totals: &mut totals, sums: &mut sums });
                assert!(sums.iter().all(|sum| sum.to_bits() == 0));
                for (total, sum) in naive_totals.iter_mut().zip(&mut naive) {
                    total.add(*sum);
                    *sum = 0.0;
                }
            }
        }
        let found: Vec<f64> = totals.into_iter().map(Total::value).collect();
        let expected: Vec<f64> = naive_totals.into_iter().map(NaiveTotal::value).collect();
        assert_same(&found, &expected);
    });
}

#[test]
fn rows_are_added_column_by_column() {
    for_reals!(rows);
}

fn rows_at_once<T: Real>() {
    let random = &mut Random::new(13);
    let data: [Vec<T>; 4] = std::array::from_fn(|_| finite(random, ROOM));
    let start: Vec<f64> = finite(random, ROOM);
    at_all_levels(|isa, range| {
        let mut one_by_one: Vec<f64> = start[range.clone()].to_vec();
        let mut at_once = one_by_one.clone();
        for row in &data {
            isa.run(AddRow { sums: &mut one_by_one, row: &row[range.clone()], term: Square });
        }
        let rows = data.each_ref().map(|row| &row[range.clone()]);
        isa.run(AddRows { sums: &mut at_once, rows, term: Square });
        assert_same(&at_once, &one_by_one);
    });
}

#[test]
fn four_rows_at_once_give_the_bits_of_one_by_one() {
    for_reals!(rows_at_once);
}

#[test]
fn powers_are_right() {
    let mut random = Random::new(11);
    for p in [0.1, 0.5, 1.5, 2.5, 3.7, 10.0, 300.0] {
        for peak in [1.0, 3.0, 1e300, 1e-300, f64::MAX, f64::from_bits(12_345)] {
            let power = Power::new(p, peak);
            assert_eq!(power.of(peak), 1.0);
            assert_eq!(power.of(-peak), 1.0);
            assert_eq!(power.of(0.0), 0.0);
            assert_eq!(power.of(-0.0), 0.0);
            for _ in 0..500 {
                let x = f64::from_bits(random.bits() % (peak.to_bits() + 1));
                let ratio = x / peak;
                // A ratio below float64's normal range is no number to compare with.
                if ratio < f64::MIN_POSITIVE {
                    continue;
                }
                let z = p * ratio.log2();
                let found = power.of(x);
                if z < -1000.0 {
                    assert!((0.0..=power_of_two(-999)).contains(&found));
                    continue;
                }
                let expected = ratio.powf(p);
                let tolerance = 4.0 * f64::EPSILON * (1.0 + p + z.abs());
                assert!(
                    (found - expected).abs() <= tolerance * expected,
                    "{p} {peak} {x}: {found} {expected}"
                );
                assert_eq!(power.of(-x), found);
            }
        }
    }
}
