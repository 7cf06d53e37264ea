//! Every operation, dtype and instruction set against simple loops.

#![allow(clippy::cast_lossless, clippy::cast_possible_wrap, missing_docs, reason = "a test")]

use std::array;
use std::cmp::Ordering;
use std::iter::{self, once};
use std::mem;
use std::slice;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU8;

use crate::common::{IS_SLOW, Random, sized, term_of, thinned};
use _core::element::{Bf16, Bool, Complex, Dtype, Element, F16, Half, Ordered, Real};
use _core::isa::{Isa, LINE, StreamGuard};
use _core::kernel::clip::{AnyOutside, Clip, ClipEach};
use _core::kernel::difference::{Approach, Subtract};
use _core::kernel::examples::Share;
use _core::kernel::halves::{FromSingles, HalfTimes, ToSingles};
use _core::kernel::map::{AnyChange, Apply, Map};
use _core::kernel::max::{MaxAbs, MaxRow};
use _core::kernel::power::{HalfPower, Power, PowerTerms};
use _core::kernel::rows::PlainFactors;
use _core::kernel::scale::{ClipMagnitude, Scale};
use _core::kernel::scale_each::{FactorKind, ScaleEach};
use _core::kernel::sum::{
    Abs, AddDenseRows, AddRows, FoldRows, Rescaled, SHORT_ROW, SPAN_TOTALS, Square, Sum, SumEach,
    SumShortRows, Term, Total,
};
use _core::kernel::widen::Widen;
use _core::scaled::{Factor, Rounding, Scaled, power_of_two};

const LENGTHS: &[usize] = if IS_SLOW {
    &[75]
} else {
    &[0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 2047, 2048, 2049, 4099]
};
/// Room for the longest slice at the largest offset, and something behind it.
const ROOM: usize = if cfg!(miri) { 75 } else { 4099 } + 8;

macro_rules! dtypes {
    (real $($real:ty),*; complex $($complex:ty),*; integer $($integer:ty),*; bool $bool:ty) => {
        const TESTED: &[Dtype] =
            &[$(<$real>::DTYPE,)* $(<$complex>::DTYPE,)* $(<$integer>::DTYPE,)* <$bool>::DTYPE];
        macro_rules! for_all {
            ($test:ident) => {
                for_ordered!($test);
                $($test::<$complex>();)*
                $test::<$bool>();
            };
        }
        macro_rules! for_ordered { ($test:ident) => { for_reals!($test); $($test::<$integer>();)* }; }
        // F16 and Bf16 need tables that take Miri long, and `tests/rust/halves.rs` covers them.
        macro_rules! for_reals {
            ($test:ident) => { $(if !cfg!(miri) || size_of::<$real>() == 4 { $test::<$real>(); })* };
        }

        $(impl Known for $real {
            fn everyday(random: &mut Random) -> Self {
                Self::from_float(random.below(1 << 20) as f64 / 70.0 - 7000.0)
            }
            fn sample(random: &mut Random) -> Self { sample(random) }
            fn size(self, by: f64) -> f64 { (self.exact() * by).abs() }
            fn two() -> [(Self, f64); 2] { [(Self::from_float(-0.25), 0.25), (Self::from_float(-3.5), 3.5)] }
            fn odd() -> Option<[Self; 2]> {
                Some([f64::NEG_INFINITY, -f64::NAN].map(Self::from_float))
            }
        }
        impl KnownOrder for $real {
            fn order(self, other: Self) -> Option<Ordering> { self.exact().partial_cmp(&other.exact()) }
        })*
        $(impl Known for $complex {
            fn everyday(random: &mut Random) -> Self {
                [Known::everyday(random), Known::everyday(random)]
            }
            fn sample(random: &mut Random) -> Self {
                [Known::sample(random), Known::sample(random)]
            }
            fn size(self, by: f64) -> f64 {
                let (re, im) = (f64::from(self[0]) * by, f64::from(self[1]) * by);
                let square = re * re + im * im;
                // Near the ends of the range, the modulus has separate tests, which know its error. These tests check that all
                // levels and loops agree.
                if (1e-200..1e200).contains(&square) { square.sqrt() } else { self.modulus(by) }
            }
            fn squared(self, by: f64) -> f64 {
                let (re, im) = (f64::from(self[0]) * by, f64::from(self[1]) * by);
                re * re + im * im
            }
            fn power(self, power: Power) -> f64 { term_of(power, self) }
            fn two() -> [(Self, f64); 2] {
                [([-0.5, 0.0], 0.5), ([3.0, -4.0], 5.0)]
            }
            fn odd() -> Option<[Self; 2]> {
                let [infinite, nan] = [f64::NEG_INFINITY, -f64::NAN].map(Ordered::from_float);
                Some([[1.0, infinite], [nan, infinite]])
            }
        })*
        $(impl Known for $integer {
            fn everyday(random: &mut Random) -> Self { Self::from_bytes(&random.bits().to_ne_bytes(), false) }
            fn sample(random: &mut Random) -> Self { sample(random) }
            fn size(self, by: f64) -> f64 { i128::from(self).unsigned_abs() as f64 * by }
            fn two() -> [(Self, f64); 2] {
                // The smallest number, which has no positive counterpart; or the largest one, if it is 0.
                let far = if Self::MIN == 0 { Self::MAX } else { Self::MIN };
                [(3, 3.0), (far, i128::from(far).unsigned_abs() as f64)]
            }
            fn odd() -> Option<[Self; 2]> { None }
            fn exact_magnitude(self) -> u128 { i128::from(self).unsigned_abs() }
        }
        impl KnownOrder for $integer {
            fn order(self, other: Self) -> Option<Ordering> { Some(self.cmp(&other)) }
        })*
        impl Known for $bool {
            fn everyday(random: &mut Random) -> Self { Self::from_bytes(&[random.below(2) as u8], false) }
            // Not only 1 is true.
            fn sample(random: &mut Random) -> Self {
                let byte = [0, 0, 1, 2, 0x80, 0xff][random.below(6)];
                Self::from_bytes(&[byte], random.below(2) == 0)
            }
            fn size(self, by: f64) -> f64 { if self == Self::ZERO { 0.0 } else { by } }
            fn two() -> [(Self, f64); 2] { [(Self::ZERO, 0.0), (Self::from_bytes(&[0x40], false), 1.0)] }
            fn odd() -> Option<[Self; 2]> { None }
        }
    };
}
#[cfg(not(miri))]
dtypes! {
    real F16, Bf16, f32, f64;
    complex Complex<f32>, Complex<f64>;
    integer i8, i16, i32, i64, u8, u16, u32, u64;
    bool Bool
}

// Fewer dtypes, since they share the code.
#[cfg(miri)]
dtypes! {
    real F16, Bf16, f32, f64;
    complex Complex<f32>;
    integer u8;
    bool Bool
}

#[test]
#[cfg_attr(miri, ignore = "only some are")]
fn all_dtypes_are_tested() {
    assert_eq!(TESTED, Dtype::ALL);
}

/// Reference operations of an element, without the kernels.
trait Known: Element {
    /// An ordinary number. Sums of these are rounded.
    fn everyday(random: &mut Random) -> Self;
    /// An ordinary number, a special one or arbitrary bits.
    fn sample(random: &mut Random) -> Self;
    /// `|self * by|`
    fn size(self, by: f64) -> f64;
    /// `|self * by|^2`
    fn squared(self, by: f64) -> f64 {
        self.size(by) * self.size(by)
    }
    /// The term that it adds to a sum of powers.
    fn power(self, power: Power) -> f64 {
        term_of(power, self.size(1.0))
    }
    /// Two elements with their moduli, the second one larger.
    fn two() -> [(Self, f64); 2];
    /// Infinity and NaN.
    fn odd() -> Option<[Self; 2]>;
    /// The modulus of an integer.
    fn exact_magnitude(self) -> u128 {
        0
    }
}

/// Reference operations of an ordered element.
trait KnownOrder: Known + Ordered {
    /// None where one is NaN.
    fn order(self, other: Self) -> Option<Ordering>;

    fn unordered(self) -> bool {
        self.order(self).is_none()
    }
}

/// Reference operations of a floating-point element.
trait KnownReal: KnownOrder + Real {
    /// Its value.
    fn exact(self) -> f64;
    /// The nearest one to `x`, the even one of two. A NaN keeps the upper bits of its payload, and is quiet.
    fn nearest(x: f64) -> Self;
    /// A NaN, quiet.
    fn quiet(self) -> Self;
}

impl KnownReal for f32 {
    fn exact(self) -> f64 {
        self.into()
    }
    fn nearest(x: f64) -> Self {
        x as Self
    }
    fn quiet(self) -> Self {
        Self::from_bits(self.to_bits() | 1 << 22)
    }
}

impl KnownReal for f64 {
    fn exact(self) -> f64 {
        self
    }
    fn nearest(x: f64) -> Self {
        x
    }
    fn quiet(self) -> Self {
        Self::from_bits(self.to_bits() | 1 << 51)
    }
}

/// The values of the bit patterns from 0 up to infinity, by definition. Instead of infinity, the next value of an unbounded
/// exponent.
fn half_values<const DIGITS: u32>() -> Vec<f64> {
    let (bias, top) = if DIGITS == 10 { (15, 31) } else { (127, 255) };
    let numbers = (0..=top).flat_map(|exponent| {
        (0..1 << DIGITS).map(move |digits| {
            let fraction = f64::from(digits) / f64::from(1 << DIGITS);
            if exponent == 0 {
                fraction * 2f64.powi(1 - bias)
            } else {
                (1.0 + fraction) * 2f64.powi(exponent - bias)
            }
        })
    });
    numbers.take((top << DIGITS) as usize + 1).collect()
}

static F16_VALUES: LazyLock<Vec<f64>> = LazyLock::new(half_values::<10>);
static BF16_VALUES: LazyLock<Vec<f64>> = LazyLock::new(half_values::<7>);

macro_rules! known_halves {
    ($($half:ty, $digits:literal, $values:ident;)*) => {
        $(impl KnownReal for $half {
            fn exact(self) -> f64 {
                let infinity = $values.len() - 1;
                let size = match usize::from(self.to_bits() & 0x7fff) {
                    bits if bits > infinity => f64::NAN,
                    bits if bits == infinity => f64::INFINITY,
                    bits => $values[bits],
                };
                if self.to_bits() > 0x7fff { -size } else { size }
            }
            fn nearest(x: f64) -> Self {
                let infinity = $values.len() - 1;
                let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
                let size = x.abs();
                let above = $values.partition_point(|value| *value < size);
                let bits = if x.is_nan() {
                    infinity | 1 << ($digits - 1) | (x.to_bits() << 12 >> (64 - $digits)) as usize
                } else if above > infinity {
                    infinity
                } else if above == 0 || $values[above] == size {
                    above
                } else {
                    // Both differences are exact: no more digits than x has, and none below its last one.
                    match (size - $values[above - 1]).total_cmp(&($values[above] - size)) {
                        Ordering::Less => above - 1,
                        Ordering::Greater => above,
                        Ordering::Equal => above - above % 2,
                    }
                };
                Self::from_bits(bits as u16 | sign)
            }
            fn quiet(self) -> Self {
                Self::from_bits(self.to_bits() | 1 << ($digits - 1))
            }
        })*
    };
}
known_halves! {
    F16, 10, F16_VALUES;
    Bf16, 7, BF16_VALUES;
}

/// Calls `check` for each level, and each slice of a room: all lengths, at several distances from its start.
fn at_all_levels(check: &mut dyn FnMut(Isa, std::ops::Range<usize>)) {
    for isa in Isa::available() {
        for &len in LENGTHS {
            for offset in sized(0, 3)..4 {
                check(isa, offset..offset + len);
            }
        }
    }
}

fn all_bits<T: Ordered>(numbers: &[T]) -> Vec<u64> {
    numbers.iter().copied().map(bits).collect()
}

fn bits<T: Ordered>(x: T) -> u64 {
    let cells: [AtomicU8; 8] = array::from_fn(|_| AtomicU8::new(0));
    x.store_bytes(&cells[..size_of::<T>()]);
    u64::from_ne_bytes(cells.map(AtomicU8::into_inner))
}

#[track_caller]
fn assert_same<T: Ordered>(found: &[T], expected: &[T]) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        if cfg!(miri) && (a.is_nan() && b.is_nan() || a == b && *a != T::ZERO) {
            continue; // with a payload that Miri draws; or of one value, which takes it less time to see
        }
        assert_eq!(bits(*a), bits(*b), "element {i}: {a:?}, not {b:?}");
    }
}

const SPECIAL: [f64; 18] = [
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
    // Of float16: the largest number, the smallest one, the largest subnormal and the smallest normal one.
    65504.0,
    -6e-8,
    6.0975e-5,
    -6.1035e-5,
    3.3e38,
];

fn sample<T: Known + Ordered>(random: &mut Random) -> T {
    match random.below(8) {
        0 => T::from_float(SPECIAL[random.below(SPECIAL.len())]),
        1 | 2 => T::from_bytes(&random.bits().to_ne_bytes(), false),
        3 => T::everyday(random),
        _ => T::from_float(random.below(4001) as f64 / 16.0 - 125.0),
    }
}

/// Everyday numbers, special ones and arbitrary bits.
fn samples<T: Known>(random: &mut Random, len: usize) -> Vec<T> {
    (0..len).map(|_| T::sample(random)).collect()
}

/// Neither NaN nor infinite.
fn finite<T: Known>(random: &mut Random, len: usize) -> Vec<T> {
    let one = |_| {
        let x = T::sample(random);
        if x.size(1.0).is_finite() { x } else { T::everyday(random) }
    };
    (0..len).map(one).collect()
}

/// Checks `map` against `expected` in place and from slice to slice, and that nothing else is written.
fn check_map<T: Ordered, M: Map<T>>(map: M, room: &[T], expected: impl Fn(T) -> T) {
    let all: Vec<T> = room.iter().map(|x| expected(*x)).collect();
    at_all_levels(&mut |isa, range| {
        let mut result = room.to_vec();
        result[range.clone()].copy_from_slice(&all[range.clone()]);

        let mut found = room.to_vec();
        isa.run(Apply { from: None, to: &mut found[range.clone()], map });
        assert_same(&found, &result);
        // By the map's own implementation, if it has one.
        found.copy_from_slice(room);
        map.apply(isa, None, None, &mut found[range.clone()]);
        assert_same(&found, &result);

        let mut found = vec![T::HIGHEST; room.len()];
        isa.run(Apply { from: Some(&room[range.clone()]), to: &mut found[range.clone()], map });
        assert_same(&found[range.clone()], &result[range.clone()]);
        assert_same(&found[..range.start], &vec![T::HIGHEST; range.start]);
        assert_same(&found[range.end..], &vec![T::HIGHEST; room.len() - range.end]);
        let complete = found.clone();
        found.fill(T::HIGHEST);
        map.apply(isa, None, Some(&room[range.clone()]), &mut found[range.clone()]);
        assert_same(&found, &complete);
        found.fill(T::HIGHEST);
        map.apply(isa, Some(&StreamGuard::begin()), Some(&room[range.clone()]), &mut found[range.clone()]);
        assert_same(&found, &complete);

        let changed =
            (room[range.clone()].iter().zip(&result[range.clone()])).any(|(a, b)| bits(*a) != bits(*b));
        let may_change = room[range.clone()].iter().any(|x| map.changes(*x));
        assert_eq!(isa.run(AnyChange { data: &room[range], map }), may_change);
        assert!(may_change || !changed);
    });
}

/// `max(min(x, hi), lo)` where a NaN stays, a NaN bound makes NaN, and of equals the element stays.
fn clipped<T: KnownOrder>(x: T, lo: T, hi: T) -> T {
    let smaller = match x.order(hi) {
        Some(Ordering::Greater) => hi,
        None if !x.unordered() => hi,
        _ => x,
    };
    match smaller.order(lo) {
        Some(Ordering::Less) => lo,
        None if !smaller.unordered() => lo,
        _ => smaller,
    }
}

fn clip<T: KnownOrder>() {
    let random = &mut Random::new(1);
    let room: Vec<T> = samples(random, ROOM);
    let of = |lo, hi| Clip { lo: T::from_float(lo), hi: T::from_float(hi) };
    let nan = f64::NAN;
    let pairs = [(-10.0, 10.0), (10.0, -10.0), (0.0, 0.0), (-0.0, 0.0), (0.0, 1.0), (nan, 1.0), (1.0, nan)];
    let mut clips: Vec<Clip<T>> = pairs.into_iter().map(|(lo, hi)| of(lo, hi)).collect();
    clips.push(Clip { lo: T::LOWEST, hi: T::HIGHEST });
    clips.push(Clip { lo: T::from_bytes(&random.bits().to_ne_bytes(), false), hi: T::HIGHEST });
    for Clip { lo, hi } in thinned(clips, 9) {
        check_map(Clip { lo, hi }, &room, |x| clipped(x, lo, hi));
    }
}

#[test]
fn clipping_to_two_numbers_is_right() {
    for_ordered!(clip);
}

fn clip_each<T: KnownOrder>() {
    let random = &mut Random::new(2);
    let (room, lo, hi): (Vec<T>, Vec<T>, Vec<T>) =
        (samples(random, ROOM), samples(random, ROOM), samples(random, ROOM));
    at_all_levels(&mut |isa, range| {
        // The bounds have another alignment than the elements.
        let (lo, hi) = (&lo[ROOM - range.len()..], &hi[4..4 + range.len()]);
        let mut result = room.clone();
        for (i, x) in result[range.clone()].iter_mut().enumerate() {
            *x = clipped(*x, lo[i], hi[i]);
        }
        let mut found = room.clone();
        isa.run(ClipEach { from: None, to: &mut found[range.clone()], lo, hi });
        assert_same(&found, &result);
        found[range.clone()].fill(T::HIGHEST);
        isa.run(ClipEach { from: Some(&room[range.clone()]), to: &mut found[range], lo, hi });
        assert_same(&found, &result);
    });
}

#[test]
fn clipping_each_element_is_right() {
    for_ordered!(clip_each);
}

/// One element outside its bounds is found wherever it is; without one, none is found.
fn any_change<T: KnownOrder>() {
    let random = &mut Random::new(3);
    let number = |x: f64| T::from_float(x);
    let inside: Vec<T> = (0..ROOM).map(|_| number(random.below(90) as f64 + 5.0)).collect();
    let (lo, hi) = (vec![number(5.0); ROOM], vec![number(94.0); ROOM]);
    at_all_levels(&mut |isa, range| {
        let map = Clip { lo: lo[0], hi: hi[0] };
        let both = |data: &[T]| {
            let each = AnyOutside { data, lo: &lo[..data.len()], hi: &hi[..data.len()] };
            (isa.run(AnyChange { data, map }), isa.run(each))
        };
        assert_eq!(both(&inside[range.clone()]), (false, false));
        if range.is_empty() {
            return;
        }
        for outside in thinned([0.0, 4.0, 95.0], 3) {
            let mut data = inside[range.clone()].to_vec();
            let last = data.len() - 1;
            for at in thinned([0, last, random.below(data.len())], 2) {
                let kept = data[at];
                data[at] = number(outside);
                assert_eq!(both(&data), (true, true));
                data[at] = kept;
            }
            if T::DTYPE.is_float() {
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
    for_ordered!(any_change);
}

#[test]
fn clip_keeps_the_bits_it_should() {
    let payload = f32::from_bits(0x7fa1_2345); // signaling
    let bound = f32::from_bits(0xffc0_0777);
    for isa in Isa::available() {
        let clip = |x: f32, lo: f32, hi: f32| {
            let mut data = [x; 37];
            isa.run(Apply { from: None, to: &mut data, map: Clip { lo, hi } });
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

const NAN_FACTOR: Factor = Factor::new(f64::NAN, 1.0);

fn factors() -> Vec<Factor> {
    let one = |by| Factor::new(by, 1.0);
    let far = |by: f64, first, then| Factor::new(by * power_of_two(first), power_of_two(then));
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

/// The result of scaling one element.
fn scaled<T: KnownReal>(x: T, factor: Factor) -> T {
    let wide = x.exact();
    if factor.by.is_nan() || (wide.is_infinite() && factor.by == 0.0) {
        T::nearest(f64::NAN)
    } else if wide.is_nan() {
        x.quiet() // with its payload
    } else {
        T::nearest(wide * factor.by * factor.then)
    }
}

fn scale<T: KnownReal>() {
    let room: Vec<T> = samples(&mut Random::new(4), ROOM);
    for factor in thinned(factors(), 14) {
        check_map(Scale(factor), &room, |x| scaled(x, factor));
    }
    for limit in thinned([0.0, 1.0, 1e-50, 17.3, f64::INFINITY], 5) {
        check_map(ClipMagnitude(limit.into()), &room, |x: T| {
            let wide = x.exact();
            if wide.is_nan() || (wide.is_infinite() && limit.is_finite()) {
                T::nearest(f64::NAN)
            } else if wide > limit {
                T::nearest(limit)
            } else if wide < -limit {
                T::nearest(-limit)
            } else {
                x
            }
        });
    }
}

fn same_bits<T: Ordered>(a: &[T], b: &[T]) -> bool {
    a.iter().map(|x| bits(*x)).eq(b.iter().map(|x| bits(*x)))
}

/// Scaling several slices in one call gives the result of scaling each alone.
fn scale_slices<T: KnownReal>() {
    let room: Vec<T> = samples(&mut Random::new(31), ROOM);
    let lengths = || thinned((0..40).chain([64, 75, 100, 1024]), 7);
    for factor in thinned(factors(), 14) {
        for isa in Isa::available() {
            let (mut data, mut expected) = (room.clone(), room.clone());
            let (mut to, mut rest, mut left) = (vec![T::ZERO; room.len()], &mut data[..], &mut expected[..]);
            let (mut slices, mut begin) = (Vec::new(), 0);
            for len in lengths() {
                let (own, after) = mem::take(&mut rest).split_at_mut(len);
                slices.push(own);
                rest = after;
                let (own, after) = mem::take(&mut left).split_at_mut(len);
                isa.run(Apply { from: None, to: own, map: Scale(factor) });
                left = after;
                begin += len;
            }
            Scale(factor).apply_each(isa, slices.into_iter().map(|own| (None, own)));
            let mut unread = (&room[..], &mut to[..]);
            let pairs = lengths().map(|len| {
                let (from, after) = unread.0.split_at(len);
                let (own, left) = mem::take(&mut unread.1).split_at_mut(len);
                unread = (after, left);
                (Some(from), own)
            });
            Scale(factor).apply_each(isa, pairs);
            let zeros = vec![T::ZERO; room.len() - begin];
            assert!(same_bits(&data, &expected), "{} {factor:?}", isa.name());
            assert!(same_bits(&to[..begin], &expected[..begin]), "{} {factor:?}", isa.name());
            assert!(same_bits(&to[begin..], &zeros));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn slices_in_one_call_are_scaled_as_each_alone() {
    for_reals!(scale_slices);
}

#[test]
fn scaling_is_right() {
    for_reals!(scale);
}

/// Elements of a cache line.
fn line<T>() -> usize {
    LINE / size_of::<T>()
}

/// Calls `check` for each level, and for slices that begin at any element of a cache line, of any length up to some lines, with
/// the place of the slice in memory of `room` elements.
fn at_all_places<T: Ordered>(longest: usize, mut check: impl FnMut(Isa, &mut [T], std::ops::Range<usize>)) {
    let mut room = vec![T::ZERO; longest + 2 * line::<T>()];
    for isa in Isa::available() {
        for at in thinned(0..line::<T>(), 7) {
            for len in thinned(0..=longest, 17) {
                room.fill(T::from_float(7.0));
                check(isa, &mut room, at..at + len);
            }
        }
    }
}

fn streams<T: KnownReal>() {
    let mut random = Random::new(61);
    let longest = sized(200, 40);
    let data: Vec<T> = samples(&mut random, longest + 3);
    let clip = Clip { lo: T::from_float(-3.0), hi: T::from_float(5.0) };
    let scale = Scale(Factor::new(0.3, 1.0));
    let [clipped, scaled]: [Vec<T>; 2] =
        [data.iter().map(|x| clip.map(*x)).collect(), data.iter().map(|x| scale.map(*x)).collect()];
    at_all_places(longest, |isa, room, range| {
        // From memory with another alignment.
        let here = range.len() % 3..range.len() % 3 + range.len();
        let from = &data[here.clone()];
        let mut expected = room.to_vec();
        expected[range.clone()].copy_from_slice(&clipped[here.clone()]);
        clip.apply(isa, Some(&StreamGuard::begin()), Some(from), &mut room[range.clone()]);
        assert_same(room, &expected);
        expected[range.clone()].copy_from_slice(&scaled[here]);
        scale.apply(isa, Some(&StreamGuard::begin()), Some(from), &mut room[range.clone()]);
        assert_same(room, &expected);
    });
}

#[test]
fn streams_are_right_anywhere_in_a_line() {
    for_reals!(streams);
}

/// Cache lines that float32 determines, and others: with a factor that makes a tie of one, and with bounds so far apart that
/// the products seldom agree.
fn scaled_lines<const DIGITS: u32>(
    stream: impl Fn(Isa, HalfTimes<false>, &[Half<DIGITS>], &mut [Half<DIGITS>]),
) where
    Half<DIGITS>: KnownReal,
{
    let mut random = Random::new(63);
    let longest = sized(200, 40);
    let by = 1.0 + power_of_two(-1 - DIGITS.cast_signed());
    let kinds = [(power_of_two(-22), true), (power_of_two(-22), false), (power_of_two(-6), false)];
    for (apart, ties) in thinned(kinds, 3) {
        let mut data: Vec<Half<DIGITS>> = samples(&mut random, longest + 3);
        if ties {
            for (i, x) in data.iter_mut().enumerate() {
                *x = Half::from_f64(if i % 70 == 3 { 1.0 } else { 1.5 });
            }
        }
        let bounds = [(by - apart) as f32, (by + apart) as f32];
        let products: Vec<_> = data.iter().map(|x| scaled(*x, Factor::new(by, 1.0))).collect();
        at_all_places(longest, |isa, room, range| {
            let here = range.len() % 3..range.len() % 3 + range.len();
            let from = &data[here.clone()];
            let mut expected = room.to_vec();
            expected[range.clone()].copy_from_slice(&products[here]);
            stream(isa, HalfTimes { by, bounds }, from, &mut room[range.clone()]);
            assert_same(room, &expected);
        });
    }
}

#[test]
fn lines_of_float16_are_streamed() {
    scaled_lines::<10>(|isa, lines, from, to| isa.stream(&StreamGuard::begin(), from, to, lines));
}

#[test]
fn lines_of_bfloat16_are_streamed() {
    scaled_lines::<7>(|isa, lines, from, to| isa.stream(&StreamGuard::begin(), from, to, lines));
}

#[test]
fn factors_of_rows_are_plain_or_none() {
    let smallest = power_of_two(-960);
    let odd = [0.0, 1e-320, smallest.next_down(), f64::MAX, f64::INFINITY, f64::NAN];
    let mut sums: Vec<f64> = [smallest, 1e-200, 0.04, 1.0, 2.0, 9.0, 1e300].into_iter().chain(odd).collect();
    sums.extend((-300..300).step_by(sized(7, 70)).map(|power| 1.1 * power_of_two(power)));
    let limits =
        [0.0, 1e-320, f64::MIN_POSITIVE, 1e-300, 0.2, 1.0, 3.0, 1e200, f64::MAX, f64::INFINITY, f64::NAN];
    at_all_levels(&mut |isa, range| {
        let cases = limits.into_iter().flat_map(|limit| [(limit, false), (limit, true)]);
        for ((limit, exact_zeros), roots) in cases.flat_map(|case| [(case, false), (case, true)]) {
            let sums = &sums[..range.len().min(sums.len())];
            let norm_of = |sum: f64| if roots { sum.sqrt() } else { sum };
            let mut factors = vec![f64::NAN; sums.len()];
            let (mut norms, none) = (vec![f32::NAN; sums.len()], &mut [0.0f64; 0]);
            let limit_of_all = limit.into();
            let all = isa.run(PlainFactors {
                sums,
                exact_zeros,
                roots,
                limit: limit_of_all,
                keeps: true,
                factors: &mut factors,
                norms: &mut norms,
            });
            assert_eq!(all, factors.iter().all(|factor| *factor != 0.0));
            let mut again = vec![f64::NAN; sums.len()];
            isa.run(PlainFactors {
                sums,
                exact_zeros,
                roots,
                limit: limit_of_all,
                keeps: true,
                factors: &mut again,
                norms: none,
            });
            assert_eq!(all_bits(&factors), all_bits(&again));
            for ((&sum, factor), norm) in sums.iter().zip(factors).zip(norms) {
                assert!(
                    factor == 0.0 || bits(norm) == bits(norm_of(sum) as f32),
                    "{isa:?}: {sum:e} {limit:e}"
                );
                let expected = Scaled::new(norm_of(sum), 0).clip_to(limit).unwrap_or(Factor::ONE);
                // The factor is plain if the sum, the limit and the quotient are normal numbers; otherwise it may be 0.
                let is_exact =
                    sum >= smallest && sum < f64::INFINITY || exact_zeros && sum == 0.0 && limit > 0.0;
                let is_plain = is_exact && expected.by.is_normal();
                let is_sure = is_plain && expected.then == 1.0 && (limit.is_normal() || expected.by == 1.0);
                let expected = if is_sure { expected.by } else { 0.0 };
                assert_eq!(factor.to_bits(), expected.to_bits(), "{isa:?}: {sum:e} {limit:e}");
            }
        }
    });
}

const ANY: FactorKind = FactorKind { is_plain: false, rounding: Rounding::Nearest };

fn scale_each<T: KnownReal>() {
    let random = &mut Random::new(5);
    let room: Vec<T> = samples(random, ROOM);
    let factors: Vec<f64> = samples::<f64>(random, ROOM).into_iter().map(f64::abs).collect();
    at_all_levels(&mut |isa, range| {
        let factors = &factors[ROOM - range.len()..];
        let mut result = room.clone();
        for (x, by) in result[range.clone()].iter_mut().zip(factors) {
            *x = if x.exact() == 0.0 && by.is_infinite() {
                T::nearest(f64::NAN)
            } else {
                scaled(*x, Factor::new(*by, 1.0))
            };
        }
        for from in [None, Some(&room[range.clone()])] {
            let mut found = room.clone();
            isa.run(ScaleEach { from, to: &mut found[range.clone()], factors, kind: ANY });
            assert_same(&found, &result);
        }
    });
}

/// Plain factors, in slices of all lengths: each product is that with one factor for all elements.
fn plain_each<T: KnownReal>() {
    let random = &mut Random::new(6);
    let room: Vec<T> = samples(random, ROOM);
    let factors: Vec<f64> =
        (0..ROOM).map(|i| 0.999 * power_of_two(-(random.below(2 + i % 40) as i32))).collect();
    at_all_levels(&mut |isa, range| {
        let factors = &factors[ROOM - range.len()..];
        for rounding in [Rounding::Nearest, Rounding::TowardZero] {
            let mut result = room.clone();
            for (x, by) in result[range.clone()].iter_mut().zip(factors) {
                Scale(Factor { by: *by, then: 1.0, rounding }).apply(isa, None, None, slice::from_mut(x));
            }
            for from in [None, Some(&room[range.clone()])] {
                let (mut found, kind) = (room.clone(), FactorKind { is_plain: true, rounding });
                isa.run(ScaleEach { from, to: &mut found[range.clone()], factors, kind });
                assert_same(&found, &result);
            }
        }
    });
}

#[test]
fn scaling_each_element_is_right() {
    for_reals!(scale_each);
    for_reals!(plain_each);
}

#[test]
#[cfg_attr(miri, ignore = "payloads, which Miri draws")]
fn scale_makes_one_nan_and_keeps_others() {
    for isa in Isa::available() {
        let single = |x: f32, factor| {
            let mut data = [x; 37];
            isa.run(Apply { from: None, to: &mut data, map: Scale(factor) });
            assert_same(&data, &[data[0]; 37]);
            data[0].to_bits()
        };
        let double = |x: f64, factor| {
            let mut data = [x; 37];
            isa.run(Apply { from: None, to: &mut data, map: Scale(factor) });
            assert_same(&data, &[data[0]; 37]);
            data[0].to_bits()
        };
        let zero = Factor::new(0.0, 1.0);
        let half = Factor::new(0.5, 1.0);
        for infinite in [f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(single(infinite, zero), 0x7fc0_0000);
            assert_eq!(double(infinite.into(), zero), 0x7ff8_0000_0000_0000);
            assert_eq!(single(infinite, half), infinite.to_bits());
        }
        for x in [0.0, -1.5, f32::INFINITY, f32::from_bits(0xffc1_2345), 1e-40] {
            assert_eq!(single(x, NAN_FACTOR), 0x7fc0_0000);
            assert_eq!(double(x.into(), NAN_FACTOR), 0x7ff8_0000_0000_0000);
        }
        for factor in [zero, half, Factor::new(1e-300, 1e-300)] {
            assert_eq!(single(f32::from_bits(0xffc1_2345), factor), 0xffc1_2345);
            let payload = 0xfff8_0123_4567_89ab;
            assert_eq!(double(f64::from_bits(payload), factor), payload);
        }
        assert_eq!(single(-3.0, zero), (-0f32).to_bits());
        assert_eq!(single(f32::from_bits(5), half), 2); // 2.5 to even
        assert_eq!(single(f32::from_bits(7), half), 4); // 3.5 to even
        // The factor 2^-1993 is no float64, what it makes of 2^1000 is.
        let far = Factor::new(power_of_two(-1000), power_of_two(-993));
        assert_eq!(double(power_of_two(1000), far), power_of_two(-993).to_bits());
        assert_eq!(double(power_of_two(-1000), far), 0);
    }
}

/// All patterns of 16 bits, read and rounded, and all numbers on the edges between two of them.
fn every_half<const DIGITS: u32>()
where
    Half<DIGITS>: KnownReal,
{
    type T<const DIGITS: u32> = Half<DIGITS>;
    let all: Vec<T<DIGITS>> = (0..=u16::MAX).map(T::from_bits).collect();
    let sizes: Vec<f64> = all.iter().map(|x| x.exact().abs()).collect();
    let infinity = T::<DIGITS>::INFINITY.to_bits();
    // Halfway between neighbours, and beside that; above the largest number the step is as wide as the last.
    let mut edges = vec![0.0, f64::from_bits(1), f64::MIN_POSITIVE, f64::MAX, f64::INFINITY];
    for low in 0..infinity {
        let low = T::<DIGITS>::from_bits(low);
        let next = T::<DIGITS>::from_bits(low.to_bits() + 1).exact();
        let step = if next.is_finite() {
            next - low.exact()
        } else {
            low.exact() - sizes[usize::from(infinity) - 2]
        };
        let middle = (low.exact() + step / 2.0).to_bits();
        edges.extend([middle - 1, middle, middle + 1].map(f64::from_bits));
    }
    let rounded: Vec<T<DIGITS>> = edges.iter().map(|x| T::nearest(*x)).collect();
    let negative: Vec<T<DIGITS>> = edges.iter().map(|x| T::nearest(-*x)).collect();
    // The oracle itself: a number is the nearest one to itself, and the edges go to both sides.
    assert!(all.iter().all(|x| x.is_nan() || T::nearest(x.exact()).to_bits() == x.to_bits()));
    assert!(rounded[5..].chunks(3).all(|of| of[0].to_bits() + 1 == of[2].to_bits()));

    for isa in Isa::available() {
        let mut found = vec![9.0; all.len()];
        isa.run(Widen { from: &all, to: &mut found, by: 1.0, limb: None });
        for ((found, size), x) in found.iter().zip(&sizes).zip(&all) {
            assert!(found.to_bits() == size.to_bits() || (found.is_nan() && size.is_nan()), "{x:?}: {found}");
        }
        for factor in factors() {
            let expected: Vec<T<DIGITS>> = all.iter().map(|x| scaled(*x, factor)).collect();
            let mut found = all.clone();
            isa.run(Apply { from: None, to: &mut found, map: Scale(factor) });
            assert_same(&found, &expected);
        }
        let mut found = vec![T::from_bits(9); edges.len()];
        for (sign, expected) in [(1.0, &rounded), (-1.0, &negative)] {
            let from = vec![T::narrow(sign); edges.len()];
            isa.run(ScaleEach { from: Some(&from), to: &mut found, factors: &edges, kind: ANY });
            assert_same(&found, expected);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "tests/rust/halves.rs has it")]
fn float16_is_read_as_float32() {
    let all: Vec<F16> = (0..=u16::MAX).map(F16::from_bits).collect();
    let mut found = vec![9f32; all.len()];
    let check = |found: &[f32], from: &[F16]| {
        for (found, x) in found.iter().zip(from) {
            let exact = x.exact() as f32; // a float32 too
            assert!(
                found.to_bits() == exact.to_bits() || (found.is_nan() && exact.is_nan()),
                "{x:?}: {found}"
            );
        }
    };
    for isa in Isa::available() {
        found.fill(9.0);
        isa.run(ToSingles { from: &all, to: &mut found });
        check(&found, &all);
    }
    // Lengths that no register divides, subnormals among the elements; and nothing else is written.
    let room = &all[1000..][..ROOM];
    at_all_levels(&mut |isa, range| {
        let mut found = vec![9f32; ROOM];
        isa.run(ToSingles { from: &room[range.clone()], to: &mut found[range.clone()] });
        check(&found[range.clone()], &room[range.clone()]);
        assert!(found[..range.start].iter().chain(&found[range.end..]).all(|x| *x == 9.0));
    });
}

#[test]
#[cfg_attr(miri, ignore = "tests/rust/halves.rs has it")]
fn float32_is_rounded_to_float16() {
    let mut random = Random::new(72);
    let mut all: Vec<f32> = (0..1 << 16).map(|_| f32::from_bits(random.bits() as u32)).collect();
    // Every float16 and what is halfway to the next one, and beside that.
    for size in 0..0x7c80 {
        let bits = (F16::from_bits(size).exact() as f32).to_bits();
        let next = (F16::from_bits(size + 1).exact() as f32).to_bits();
        let middle = f32::midpoint(f32::from_bits(bits), f32::from_bits(next)).to_bits();
        all.extend([bits, bits + 1, middle - 1, middle, middle + 1].map(f32::from_bits));
        all.extend([bits, bits + 1, middle - 1, middle, middle + 1].map(|bits| -f32::from_bits(bits)));
    }
    all.extend([
        65519.996,
        65520.0,
        65536.0,
        1e30,
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        1e-40,
        -1e-40,
    ]);
    let expected: Vec<F16> = all.iter().map(|x| F16::nearest(f64::from(*x))).collect();
    for isa in Isa::available() {
        let mut found = vec![F16::from_bits(9); all.len()];
        isa.run(FromSingles { from: &all, to: &mut found });
        assert_same(&found, &expected);
    }
    let (room, rounded) = (&all[50_000..][..ROOM], &expected[50_000..][..ROOM]);
    at_all_levels(&mut |isa, range| {
        let mut found = vec![F16::from_bits(9); ROOM];
        let mut result = found.clone();
        isa.run(FromSingles { from: &room[range.clone()], to: &mut found[range.clone()] });
        result[range.clone()].copy_from_slice(&rounded[range]);
        assert_same(&found, &result);
    });
}

#[test]
#[cfg_attr(miri, ignore = "tests/rust/halves.rs has it")]
fn every_half_is_read_and_rounded() {
    every_half::<10>();
    every_half::<7>();
}

/// Integers far beyond float64's digits are rounded once: a tie is one only if nothing at all comes after.
fn integers<const DIGITS: u32>()
where
    Half<DIGITS>: KnownReal,
{
    type T<const DIGITS: u32> = Half<DIGITS>;
    let infinity = T::<DIGITS>::INFINITY.to_bits();
    let mut ties = 0;
    for bits in 0..infinity {
        let (x, next) = (T::<DIGITS>::from_bits(bits).exact(), T::<DIGITS>::from_bits(bits + 1).exact());
        if x < power_of_two(DIGITS as i32 + 1) || next.is_infinite() {
            continue; // no integers between x and the next one, or no next one
        }
        let (low, middle) = (x as u128, u128::midpoint(x as u128, next as u128));
        let even = bits + bits % 2;
        for (n, expected) in
            [(low, bits), (middle - 1, bits), (middle, even), (middle + 1, bits + 1), (middle + 3, bits + 1)]
        {
            // Where there is no room on either side, these are numbers themselves.
            if middle - low >= 4 || n == low || n == middle {
                assert_eq!(T::<DIGITS>::from_integer(false, n).to_bits(), expected, "{n}");
                assert_eq!(T::<DIGITS>::from_integer(true, n).to_bits(), expected | 0x8000, "-{n}");
                ties += 1;
            }
        }
    }
    assert!(ties > 1000);
    assert_eq!(T::<DIGITS>::from_integer(false, u128::MAX).to_bits(), infinity);
    assert_eq!(T::<DIGITS>::from_integer(true, u128::MAX).to_bits(), infinity | 0x8000);
    assert_eq!(T::<DIGITS>::from_integer(false, 0).to_bits(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "arithmetic alone")]
fn integers_become_halves_in_one_step() {
    integers::<10>();
    integers::<7>();
}

/// Two numbers whose sum is the square of `x`, by a product with no error.
fn square_of(x: f64) -> [f64; 2] {
    let square = x * x;
    [square, x.mul_add(x, -square)]
}

/// `x * 2^exponent`, by steps of which none leaves the range between the two.
fn times(x: f64, exponent: i32) -> f64 {
    let third = exponent / 3;
    x * power_of_two(third) * power_of_two(third) * power_of_two(exponent - 2 * third)
}

/// Moduli of complex numbers of all sizes. They are scaled to the middle of the range by powers of two, which is exact, and the
/// squares of both sides are compared. The squarings, their sum and the root may lose 2 * 2^-53 of the modulus, which is 4 *
/// 2^-53 of its square.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone")]
fn moduli_of_any_size_are_right() {
    let mut random = Random::new(14);
    let mut ends = [0; 3];
    for _ in 0..300_000 {
        // Any two sizes, and often two near each other; the digits below 2^-1074 are none.
        let exponent = [971, random.below(2046) as i32 - 1074][random.below(8).min(1)];
        let mut part = || {
            let digits = (random.bits() >> (11 + random.below(2) * random.below(53))) as f64
                * [1.0, -1.0][random.below(2)];
            times(digits, exponent)
        };
        let z = [part(), part()];
        let size = z[0].abs().max(z[1].abs());
        if size.is_infinite() || size == 0.0 {
            continue;
        }
        let (_, place) = Scaled::new(size, 0).split();
        let (re, im) = (times(z[0], -place), times(z[1], -place));
        let (value, lifted) = z.lifted();
        let found = times(value, lifted as i32 - place);
        let [a, a_rest] = square_of(found);
        let ([b, b_rest], [c, c_rest]) = (square_of(re), square_of(im));
        // The large ones first: their difference is exact, or next to it.
        let error = ((a - b.max(c)) - b.min(c)) + (a_rest - b_rest - c_rest);
        assert!(error.abs() <= 4.0 * power_of_two(-53) * a, "{z:?}: {value} * 2^{lifted}");

        // Rounded to float64 from there, once more where it is subnormal.
        let whole = Scaled::new(value, lifted as i32).to_f64();
        assert_eq!(z.modulus(1.0).to_bits(), whole.to_bits(), "{z:?}");
        ends[0] += u32::from(whole.is_infinite());
        ends[1] += u32::from(whole.is_subnormal());
        ends[2] += u32::from(whole.is_normal());
    }
    assert!(ends.iter().all(|count| *count > 100), "{ends:?}");
}

/// The squares of float32 parts are exact in float64 and within its range, so nothing needs scaling.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone")]
fn moduli_of_single_precision_are_right() {
    let mut random = Random::new(15);
    for _ in 0..100_000 {
        let mut part = || f32::from_bits(random.bits() as u32);
        let z = [part(), part()];
        let found = z.modulus(1.0);
        let (re, im) = (f64::from(z[0]), f64::from(z[1]));
        if re.is_nan() || im.is_nan() {
            assert!(found.is_nan());
        } else if re.is_infinite() || im.is_infinite() {
            assert_eq!(found, f64::INFINITY);
        } else {
            let exact = (re * re + im * im).sqrt();
            assert_eq!(found, exact, "{z:?}");
            assert_eq!(z.lifted(), (exact, 0.0));
            assert_eq!(z.square(0.5), (re * re + im * im) / 4.0);
            assert!(exact == 0.0 || exact.is_normal(), "no square leaves float64's range");
        }
    }
}

#[test]
fn moduli_of_odd_numbers() {
    let (infinity, nan) = (f64::INFINITY, f64::NAN);
    for other in [0.0, -1.0, f64::MAX, infinity, -infinity] {
        for z in [[infinity, other], [other, -infinity]] {
            for by in [1.0, power_of_two(-600), power_of_two(600)] {
                assert_eq!(z.modulus(by), infinity);
                assert_eq!(z.square(by), infinity);
            }
            assert_eq!(z.lifted().0, infinity);
        }
        for z in [[nan, other], [other, nan]] {
            assert!(z.modulus(1.0).is_nan() && z.square(1.0).is_nan() && z.lifted().0.is_nan());
            assert!(Complex::<f64>::from_magnitude(z.magnitude()).is_nan());
        }
    }
    // Rescaled, what is beyond or below the range has its modulus.
    let large = [f64::MAX, -f64::MAX];
    assert_eq!(large.modulus(1.0), infinity);
    assert_eq!(large.modulus(power_of_two(-600)), f64::MAX * power_of_two(-600) * 2f64.sqrt());
    let small = [f64::from_bits(3), f64::from_bits(4)];
    assert_eq!(small.modulus(1.0), f64::from_bits(5));
    let smallest = [f64::from_bits(1), f64::from_bits(1)];
    assert_eq!(smallest.modulus(1.0), f64::from_bits(1));
    assert_eq!(smallest.modulus(power_of_two(600)), power_of_two(-474) * 2f64.sqrt());
}

fn max<T: Known>() {
    let random = &mut Random::new(6);
    let clean: Vec<T> = finite(random, ROOM);
    let rough: Vec<T> = samples(random, ROOM);
    let largest = |data: &[T]| data.iter().map(|x| x.size(1.0)).fold(0.0, f64::max);
    let [(small, small_size), (large, large_size)] = T::two();
    at_all_levels(&mut |isa, range| {
        let max = |data: &[T]| T::from_magnitude(isa.run(MaxAbs(data)));
        assert_eq!(max(&clean[range.clone()]), largest(&clean[range.clone()]));
        // The largest one counts wherever it is; infinity is above all numbers and NaN above infinity.
        if !range.is_empty() {
            for at in [0, range.len() - 1, random.below(range.len())] {
                let mut data = vec![small; range.len()];
                assert_eq!(max(&data), small_size);
                data[at] = large;
                assert_eq!(max(&data), large_size);
                let Some([infinite, nan]) = T::odd() else { continue };
                data[random.below(range.len())] = infinite;
                assert_eq!(max(&data), f64::INFINITY);
                data[at] = nan;
                assert_eq!(max(&data).to_bits(), f64::NAN.to_bits());
            }
        }

        let mut found: Vec<T::Magnitude> = clean[range.clone()].iter().map(|x| x.magnitude()).collect();
        let row = &rough[ROOM - range.len()..];
        isa.run(MaxRow { max: &mut found, row });
        for ((found, a), b) in found.into_iter().zip(&clean[range]).zip(row) {
            let (found, a, b) = (T::from_magnitude(found), a.size(1.0), b.size(1.0));
            assert!(if b.is_nan() { found.is_nan() } else { found == a.max(b) }, "{found} {a} {b}");
        }
    });
}

#[test]
fn largest_magnitudes_are_right() {
    for_all!(max);
}

fn widen<T: Known>() {
    let random = &mut Random::new(16);
    let room: Vec<T> = samples(random, ROOM);
    let read = |isa: Isa, range: std::ops::Range<usize>, limb: Option<usize>, by| {
        let mut to = vec![9.0; ROOM];
        let from = &room[range.clone()];
        isa.run(Widen { from, to: &mut to[range.clone()], by, limb });
        assert!(to[..range.start].iter().chain(&to[range.end..]).all(|x| *x == 9.0));
        to[range].to_vec()
    };
    at_all_levels(&mut |isa, range| {
        for by in [1.0, power_of_two(-600), power_of_two(600)] {
            let found = read(isa, range.clone(), None, by);
            for (found, x) in found.iter().zip(&room[range.clone()]) {
                let size = x.size(by);
                assert!(
                    found.to_bits() == size.to_bits() || (found.is_nan() && size.is_nan()),
                    "{x:?}: {found}"
                );
            }
        }
        let parts: Vec<Vec<f64>> =
            (0..T::LIMBS).map(|limb| read(isa, range.clone(), Some(limb), 1.0)).collect();
        for (i, x) in room[range].iter().enumerate() {
            if let [part] = &parts[..] {
                assert!(part[i] == x.size(1.0) || (part[i].is_nan() && x.size(1.0).is_nan()), "{x:?}");
            } else {
                // Whole numbers, few of whose digits are used: what they add up to stays exact.
                let all: u128 = parts.iter().map(|part| part[i] as u128).sum();
                assert_eq!(all, T::exact_magnitude(*x), "{x:?}");
                for part in &parts {
                    let unit = if part[i] < power_of_two(32) { 0 } else { 32 };
                    assert_eq!((part[i] * power_of_two(-unit)).fract(), 0.0);
                    assert!(part[i] * power_of_two(-unit) < power_of_two(32));
                }
            }
        }
    });
}

#[test]
fn elements_are_read_as_float64() {
    for_all!(widen);
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

fn check_sum<T: Known, F: Term<T> + Term<f32>>(room: &[T], term: F, expected: impl Fn(T) -> f64) {
    let terms: Vec<f64> = room.iter().map(|x| expected(*x)).collect();
    at_all_levels(&mut |isa, range| {
        let data = &room[range.clone()];
        let (found, expected) = (isa.run(Sum { data, term }).value(), sum_in_order(&terms[range]));
        assert_eq!(found.to_bits(), expected.to_bits(), "{} elements: {found}, not {expected}", data.len());
    });
}

fn sums<T: Known>() {
    let random = &mut Random::new(7);
    let mut room: Vec<T> = finite(random, ROOM);
    for everyday in thinned([false, true], 2) {
        if everyday {
            // Alone, so that no large number hides the others.
            room.fill_with(|| T::everyday(random));
        }
        check_sum(&room, Abs, |x| x.size(1.0));
        check_sum(&room, Square, |x| x.squared(1.0));
        for by in thinned([power_of_two(-600), power_of_two(600)], 2) {
            check_sum(&room, Rescaled(Abs, by), |x| x.size(by));
            check_sum(&room, Rescaled(Square, by), |x| x.squared(by));
        }
        check_sum(&room, HalfPower::<1>, |x| x.size(1.0).sqrt());
        check_sum(&room, HalfPower::<3>, |x| x.size(1.0) * x.size(1.0).sqrt());
        check_sum(&room, HalfPower::<6>, |x| x.size(1.0) * x.size(1.0) * x.size(1.0));
        check_sum(&room, HalfPower::<8>, |x| x.squared(1.0) * x.squared(1.0));
    }
    for p in thinned([0.5, 1.5, 3.7, 100.0], 3) {
        let peak = room.iter().map(|x| x.size(1.0)).fold(0.0, f64::max);
        let power = Power::new(p, Scaled::new(peak, 0));
        let terms: Vec<f64> = room.iter().map(|x| x.power(power)).collect();
        at_all_levels(&mut |isa, range| {
            let mut found = vec![0.0; range.len()];
            isa.run(PowerTerms { from: &room[range.clone()], to: &mut found, power });
            assert!(found.iter().zip(&terms[range]).all(|(a, b)| a.to_bits() == b.to_bits()), "{p}");
        });
    }
}

#[test]
fn sums_are_added_in_the_documented_order() {
    for_all!(sums);
}

/// Many blocks, with a whole last block and with a partial one.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn long_sums_are_added_in_the_documented_order() {
    fn check<T: Known>() {
        let random = &mut Random::new(24);
        let room: Vec<T> = iter::repeat_with(|| T::everyday(random)).take(2 * 64 * 2048).collect();
        let terms: [Vec<f64>; 2] =
            [|x: &T| x.size(1.0), |x: &T| x.squared(1.0)].map(|of| room.iter().map(of).collect());
        for isa in Isa::available() {
            for len in [64 * 2048 - 1, 64 * 2048, 64 * 2048 + 1, 100_000 + 64 * 2048] {
                let data = &room[..len];
                let found = [isa.run(Sum { data, term: Abs }), isa.run(Sum { data, term: Square })];
                for (found, terms) in found.iter().zip(&terms) {
                    assert_eq!(found.value().to_bits(), sum_in_order(&terms[..len]).to_bits(), "{len}");
                }
            }
        }
    }
    for_all!(check);
}

/// Long slices with the largest magnitude anywhere: parts are searched.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn long_maxima_are_found_wherever_they_are() {
    fn check<T: Known>() {
        let [(small, size), (large, larger)] = T::two();
        let mut data = vec![small; 64 * 2048 + 77];
        let len = data.len();
        for isa in Isa::available() {
            let max = |data: &[T]| T::from_magnitude(isa.run(MaxAbs(data)));
            for at in [0, 1, 255, 256, 511, 512, 2047, 2048, 100_001, len - 78, len - 77, len - 1] {
                data[at] = large;
                assert_eq!(max(&data), larger, "{at}");
                assert_eq!(max(&data[..len - 77]), if at < len - 77 { larger } else { size }, "{at}");
                data[at] = small;
            }
        }
    }
    for_all!(check);
}

/// Long slices of float16, whose sums are computed from float32.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn long_sums_of_float16_are_added_in_the_documented_order() {
    let random = &mut Random::new(27);
    let singles = iter::repeat_with(|| f32::everyday(random)).take(100 * 2048 + 75);
    let halves: Vec<F16> = singles.map(F16::from_f32).collect();
    let squares: Vec<f64> = halves.iter().map(|x| x.squared(1.0)).collect();
    for isa in Isa::available() {
        let sum = Sum { data: &halves[..], term: Square };
        assert_eq!(isa.run(sum).value().to_bits(), sum_in_order(&squares).to_bits());
    }
}

/// Sums of several rows in one call, with `behind` elements after the last row.
fn check_sum_of_rows<T: Known, F: Term<T>>(
    data: &[T],
    [len, count, behind]: [usize; 3],
    term: F,
    expected: impl Fn(T) -> f64,
) {
    let data = &data[..len * count + behind];
    let terms: Vec<f64> = data.iter().map(|x| expected(*x)).collect();
    for isa in Isa::available() {
        let mut sums = vec![-1.0; count];
        let rows = (0..count).map(|row| &data[row * len..]);
        let sequences = sums.iter_mut().zip(rows).map(|(sum, row)| (len, row, sum));
        isa.run(SumEach { sequences, term });
        for (row, (sum, terms)) in sums.iter().zip(terms.chunks(len)).enumerate() {
            let expected = sum_in_order(terms);
            let is_same = sum.to_bits() == expected.to_bits() || (sum.is_nan() && expected.is_nan());
            assert!(is_same, "{} {len} x {count}, row {row}: {sum}, not {expected}", isa.name());
        }
    }
}

fn sums_of_rows<T: Known>() {
    const LENGTHS: [usize; 15] = [1, 7, 8, 9, 16, 31, 32, 33, 40, 64, 75, 96, 100, 2047, 2048];
    let random = &mut Random::new(23);
    let mut data: Vec<T> = finite(random, 5 * 2048 + 33);
    for odd in once(None).chain(T::odd().map(Some)) {
        // Here and there, so that most rows have none, but one behind them.
        for (i, x) in odd.into_iter().flatten().enumerate() {
            data.iter_mut().skip(45 + 30 * i).step_by(310).for_each(|to| *to = x);
        }
        for len in thinned(LENGTHS.into_iter().take(sized(15, 13)), 5) {
            for count in thinned([1, 2, 5], 2) {
                for behind in thinned([0, 1, 7, 31, 33], 4) {
                    check_sum_of_rows(&data, [len, count, behind], Abs, |x| x.size(1.0));
                    check_sum_of_rows(&data, [len, count, behind], Square, |x| x.squared(1.0));
                }
            }
        }
    }
}

/// Sums of short rows at any distance, with more elements after them or none.
fn sums_of_short_rows<T: Known>() {
    let random = &mut Random::new(29);
    let mut data: Vec<T> = finite(random, 40 * (SHORT_ROW + 5));
    for odd in once(None).chain(T::odd().map(Some)) {
        for (i, x) in odd.into_iter().flatten().enumerate() {
            data.iter_mut().skip(45 + 30 * i).step_by(310).for_each(|to| *to = x);
        }
        for len in thinned(1..=SHORT_ROW, 5) {
            for (count, step) in [(1, len), (33, len), (40, len + 1), (40, len + 5)] {
                for behind in [0, 1, SHORT_ROW] {
                    let rows = &data[..((count - 1) * step + len + behind).min(data.len())];
                    for isa in Isa::available() {
                        let mut found = [vec![-1.0; count], vec![-1.0; count]];
                        let [abs, square] = &mut found;
                        isa.run(SumShortRows { rows, len, step, sums: abs, term: Abs });
                        isa.run(SumShortRows { rows, len, step, sums: square, term: Square });
                        for at in 0..count {
                            let data = &rows[at * step..][..len];
                            let alone =
                                [isa.run(Sum { data, term: Abs }), isa.run(Sum { data, term: Square })];
                            for (found, alone) in found.iter().zip(alone.map(Total::value)) {
                                let is_same = found[at].to_bits() == alone.to_bits()
                                    || (found[at].is_nan() && alone.is_nan());
                                assert!(
                                    is_same,
                                    "{} {len}, step {step}: {}, not {alone}",
                                    isa.name(),
                                    found[at]
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Sums of sequences of any length, in one call.
fn sums_of_each<T: Known>() {
    let random = &mut Random::new(29);
    let mut data: Vec<T> = finite(random, 4000);
    for odd in once(None).chain(T::odd().map(Some)) {
        for (i, x) in odd.into_iter().flatten().enumerate() {
            data.iter_mut().skip(45 + 30 * i).step_by(310).for_each(|to| *to = x);
        }
        let mut sequences = Vec::new();
        let mut rest = &data[..];
        for len in thinned((0..70).chain([75, 96, 100, 1024]), 9) {
            let (own, after) = rest.split_at(len);
            sequences.push(own);
            rest = after;
        }
        for isa in Isa::available() {
            let mut sums = vec![[-1.0; 2]; sequences.len()];
            let own = sequences.iter().zip(&mut sums).map(|(own, [abs, _])| (own.len(), *own, abs));
            isa.run(SumEach { sequences: own, term: Abs });
            let own = sequences.iter().zip(&mut sums).map(|(own, [_, square])| (own.len(), *own, square));
            isa.run(SumEach { sequences: own, term: Square });
            for (own, found) in sequences.iter().zip(sums) {
                let alone = [isa.run(Sum { data: own, term: Abs }), isa.run(Sum { data: own, term: Square })];
                for (found, alone) in found.into_iter().zip(alone.map(Total::value)) {
                    let is_same = found.to_bits() == alone.to_bits() || (found.is_nan() && alone.is_nan());
                    assert!(is_same, "{} {}: {found}, not {alone}", isa.name(), own.len());
                }
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn sequences_in_one_call_are_summed_as_each_alone() {
    for_all!(sums_of_each);
    for_all!(sums_of_short_rows);
}

#[test]
fn rows_are_summed_in_the_documented_order() {
    for_all!(sums_of_rows);
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
    // Whole numbers of the dtype.
    let most = match T::DTYPE {
        Dtype::F16 => 1 << 11,
        Dtype::Bf16 => 1 << 8,
        Dtype::F32 => 1 << 24,
        _ => 1 << 42,
    };
    let numbers: Vec<i64> = (0..ROOM).map(|_| random.below(most) as i64 - (most / 2) as i64).collect();
    let room: Vec<T> = numbers.iter().map(|n| T::from_integer(*n < 0, n.unsigned_abs().into())).collect();
    let mut rounded = false;
    at_all_levels(&mut |isa, range| {
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
    assert!(rounded || !T::DOUBLE, "numbers too small to test anything");
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
fn totals_merge_in_spans_of_64() {
    let merged = |totals: &[Total]| {
        let mut all = Total::default();
        for total in totals {
            all.merge(*total);
        }
        all
    };
    let mut differ = 0;
    for count in [0, 1, 63, 64, 65, 128, 300] {
        let totals: Vec<Total> =
            (0..count).map(|i| Total::from(f64::from(i).sin() * power_of_two(i % 50))).collect();
        let spans: Vec<Total> = totals.chunks(64).map(merged).collect();
        assert_eq!(Total::of_chunks(totals.iter().copied()), merged(&spans), "{count}");
        differ += usize::from(merged(&spans) != merged(&totals));
    }
    assert_ne!(differ, 0);
}

#[test]
fn sums_of_infinity_and_nan_are_what_they_should_be() {
    for isa in Isa::available() {
        for len in LENGTHS.iter().copied().filter(|len| *len > 2) {
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

/// Checks the sums of both terms, by way of float32.
#[track_caller]
fn check_sum_of_halves(isa: Isa, data: &[F16]) {
    let check = |term: &str, found: Total, exact: fn(f64) -> f64| {
        let expected = sum_in_order(&data.iter().map(|x| exact(x.exact())).collect::<Vec<_>>());
        let found = found.value();
        assert!(
            found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
            "{term} of {} elements, {}: {found:e}, not {expected:e}",
            data.len(),
            isa.name()
        );
    };
    check("Abs", isa.run(Sum { data, term: Abs }), f64::abs);
    check("Square", isa.run(Sum { data, term: Square }), |x| x * x);
}

#[test]
fn every_float16_counts_in_a_sum_by_way_of_float32() {
    let finite = |x: &F16| x.exact().is_finite();
    let all: Vec<F16> = thinned(0..=u16::MAX, 997).map(F16::from_bits).collect();
    let numbers: Vec<F16> = all.iter().copied().filter(finite).collect();
    for isa in Isa::available() {
        check_sum_of_halves(isa, &numbers);
        // Each by itself, where no large one hides it: in a whole part, and in the rest of one.
        for (i, x) in all.iter().enumerate() {
            check_sum_of_halves(isa, &[*x]);
            if i % sized(1, 16) == 0 {
                let mut data = [F16::default(); 256];
                data[17 * (i % 16)] = *x;
                check_sum_of_halves(isa, &data);
            }
        }
    }
}

#[test]
fn sums_of_float16_by_way_of_float32_are_added_in_the_documented_order() {
    let random = &mut Random::new(73);
    let room: Vec<F16> = finite(random, ROOM);
    // No larger than one: their squares are rounded when they are added, and no large one hides the others.
    let small: Vec<F16> = (0..ROOM).map(|_| F16::from_bits(random.below(0x3c01) as u16)).collect();
    let ends = [16, 256, 2048, 4096];
    let near =
        ends.into_iter().flat_map(|end| end - 2..end + 3).chain([240, 271, 272, 273, 2303, 2304, 2305]);
    for isa in Isa::available() {
        for len in near.clone().filter(|len| *len <= ROOM).chain(LENGTHS.iter().copied()) {
            for offset in sized(0, 3)..4 {
                check_sum_of_halves(isa, &room[offset..][..len]);
                check_sum_of_halves(isa, &small[offset..][..len]);
            }
            // Odd ones wherever they lie: at the ends, in whole parts and in the rest.
            for at in thinned([0, len / 2, len.saturating_sub(1)], 2).filter(|at| *at < len) {
                for odd in thinned([F16::INFINITY, F16::NEG_INFINITY, F16::from_bits(0x7c01)], 2) {
                    let mut data = small[..len].to_vec();
                    data[at] = odd;
                    check_sum_of_halves(isa, &data);
                }
            }
        }
    }
}

fn rows<T: Known>() {
    let random = &mut Random::new(10);
    let data: Vec<Vec<T>> = (0..sized(5, 2)).map(|_| finite(random, ROOM)).collect();
    let start: Vec<f64> = finite(random, ROOM);
    at_all_levels(&mut |isa, range| {
        let mut sums: Vec<f64> = start[range.clone()].to_vec();
        let mut naive = sums.clone();
        let mut totals = vec![Total::default(); range.len()];
        let mut naive_totals = vec![NaiveTotal::default(); range.len()];
        for (i, row) in data.iter().enumerate() {
            let row = &row[range.clone()];
            if i % 2 == 0 {
                isa.run(AddRows { sums: &mut sums, rows: [row], terms: [Abs] });
            } else {
                isa.run(AddRows { sums: &mut sums, rows: [row], terms: [Square] });
            }
            for (sum, x) in naive.iter_mut().zip(row) {
                *sum += if i % 2 == 0 { x.size(1.0) } else { x.squared(1.0) };
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
    for_all!(rows);
}

fn rows_at_once<T: Known>() {
    let random = &mut Random::new(13);
    let data: [Vec<T>; 4] = array::from_fn(|_| finite(random, ROOM));
    let start: Vec<f64> = finite(random, ROOM);
    at_all_levels(&mut |isa, range| {
        let mut one_by_one: Vec<f64> = start[range.clone()].to_vec();
        for row in &data {
            let rows = [&row[range.clone()]];
            isa.run(AddRows { sums: &mut one_by_one, rows, terms: [Square] });
        }
        let rows = data.each_ref().map(|row| &row[range.clone()]);
        let mut at_once: Vec<f64> = start[range.clone()].to_vec();
        isa.run(AddRows { sums: &mut at_once, rows, terms: [Square; 4] });
        assert_same(&at_once, &one_by_one);
    });
}

#[test]
fn gpus_merge_as_many_totals_in_a_span() {
    let kernels = include_str!("../../python/gradclip/_cuda/kernels.cu");
    assert!(kernels.contains(&format!("SPAN_TOTALS = {SPAN_TOTALS},")));
}

/// Dense rows have the sums of rows that are added one by one: few columns and many, rows that a cache holds and more, with one
/// term for all rows and with one for each.
fn dense_rows<T: Known>() {
    let random = &mut Random::new(14);
    for columns in (1..40).chain([63, 64, 65, 100, 300, 1000]) {
        for height in [0, 1, 2, 3, 64] {
            if cfg!(miri) && columns * height > 100 {
                continue;
            }
            let data: Vec<T> = finite(random, columns * height);
            let start: Vec<f64> = finite(random, columns);
            assert_dense(&data, &start, &iter::repeat(Square));
            assert_dense(&data, &start, &(0..).map(|row| Rescaled(Abs, power_of_two(row % 7))));
        }
    }
}

fn assert_dense<T: Known, F: Term<T>>(data: &[T], start: &[f64], terms: &(impl Iterator<Item = F> + Clone)) {
    for isa in Isa::available() {
        let (mut one_by_one, mut dense) = (start.to_vec(), start.to_vec());
        for (row, term) in data.chunks_exact(start.len()).zip(terms.clone()) {
            isa.run(AddRows { sums: &mut one_by_one, rows: [row], terms: [term] });
        }
        isa.run(AddDenseRows { sums: &mut dense, rows: data, terms: terms.clone() });
        assert_same(&dense, &one_by_one);
    }
}

#[test]
fn dense_rows_are_added_column_by_column() {
    for_all!(dense_rows);
}

/// Each square is added to a number that is as large, or some digits larger or smaller, so that the sum is rounded.
fn squares<T: Known>() {
    let random = &mut Random::new(19);
    let (data, starts): (Vec<T>, Vec<f64>) = (0..sized(1 << 18, 300))
        .map(|_| {
            let x = T::sample(random);
            let by = power_of_two(random.below(121) as i32 - 60)
                * (1.0 + random.bits() as f64 * power_of_two(-64));
            (x, x.squared(1.0) * [by, -by][random.below(2)])
        })
        .unzip();
    let expected: Vec<f64> = data.iter().zip(&starts).map(|(x, start)| start + x.squared(1.0)).collect();
    for isa in Isa::available() {
        let mut sums = starts.clone();
        isa.run(AddRows { sums: &mut sums, rows: [&data], terms: [Square] });
        for (i, (sum, expected)) in sums.iter().zip(&expected).enumerate() {
            let is_same = sum.to_bits() == expected.to_bits() || (sum.is_nan() && expected.is_nan());
            assert!(is_same, "{}: {:?} to {}: {sum}, not {expected}", isa.name(), data[i], starts[i]);
        }
    }
}

#[test]
fn squares_are_added_in_two_steps_or_as_if() {
    for_all!(squares);
}

/// Where a square is rounded, fusing it with the sum would change bits.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone")]
fn squares_that_are_fused_differ_unless_they_are_exact() {
    let random = &mut Random::new(20);
    let differ = |x: f64| usize::from(x.mul_add(x, -x * x * 1.5) != x * x - x * x * 1.5);
    let numbers: Vec<f64> = (0..1000).map(|_| 1.0 + random.bits() as f64 * power_of_two(-64)).collect();
    assert!(numbers.iter().map(|x| differ(*x)).sum::<usize>() > 100);
    assert_eq!(numbers.iter().map(|x| differ(f64::from(*x as f32))).sum::<usize>(), 0);
}

#[test]
fn four_rows_at_once_give_the_bits_of_one_by_one() {
    for_all!(rows_at_once);
}

#[test]
#[cfg_attr(miri, ignore = "arithmetic alone")]
fn powers_are_right() {
    let mut random = Random::new(11);
    for p in [0.1, 0.5, 1.5, 2.5, 3.7, 10.0, 300.0] {
        for peak in [1.0, 3.0, 1e300, 1e-300, f64::MAX, f64::from_bits(12_345)] {
            let power = Power::new(p, Scaled::new(peak, 0));
            assert_eq!(term_of(power, peak), 1.0);
            assert_eq!(term_of(power, -peak), 1.0);
            assert_eq!(term_of(power, 0.0), 0.0);
            assert_eq!(term_of(power, -0.0), 0.0);
            for _ in 0..500 {
                let x = f64::from_bits(random.bits() % (peak.to_bits() + 1));
                let ratio = x / peak;
                // A ratio below float64's normal range is no number to compare with.
                if ratio < f64::MIN_POSITIVE {
                    continue;
                }
                let z = p * ratio.log2();
                let found = term_of(power, x);
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
                assert_eq!(term_of(power, -x), found);
            }
        }
    }
}

/// Complex numbers whose moduli are beyond float64 or subnormal, and ordinary ones with the same ratios.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone")]
fn powers_of_any_modulus_are_right() {
    let mut random = Random::new(17);
    let most = (1 << 22) - 1;
    for p in [0.1, 0.5, 1.5, 3.7, 10.0, 300.0] {
        for exponent in [-1074, -1060, -600, 0, 600, 1002] {
            let at = |n: usize| n as f64 * power_of_two(exponent / 2) * power_of_two(exponent - exponent / 2);
            let peak = (most as f64).hypot(most as f64);
            let power = Power::new(p, Scaled::new(peak, exponent));
            assert_eq!(term_of(power, [0.0, -0.0]), 0.0);
            for i in 0..500 {
                let digits = if i == 0 { 0 } else { random.below(22) };
                let (re, im) =
                    if i == 0 { (most, most) } else { (random.below(most) >> digits, random.below(most)) };
                let z = [-at(re), at(im)];
                let ratio = (re as f64).hypot(im as f64) / peak;
                if ratio == 0.0 {
                    continue;
                }
                let (found, log) = (term_of(power, z), p * ratio.log2());
                if log < -1000.0 {
                    assert!((0.0..=power_of_two(-999)).contains(&found));
                    continue;
                }
                let expected = ratio.powf(p);
                let tolerance = 6.0 * f64::EPSILON * (1.0 + p + log.abs());
                assert!((found - expected).abs() <= tolerance * expected, "{p} {z:?}: {found} {expected}");
            }
        }
    }
}

/// Beside a modulus that is as large as the peak, or close, the result is that of the peak's root.
#[test]
#[cfg_attr(miri, ignore = "arithmetic alone")]
fn roots_of_powers_are_right() {
    for (value, exponent) in [(1.0, 0), (1.75, 0), (1.0, 3000), (1.25, -3000), (1.5, -1074)] {
        let peak = Scaled::new(value, exponent);
        for p in [1e-3, 0.1, 0.5, 1.5, 2.5, 3.7, 300.0] {
            let power = Power::new(p, peak);
            assert_eq!(power.root(peak, 1.0), peak);
            // 2^n, whose root is a power of two.
            for whole in [1, 2, 5, 40, 2000] {
                let log = f64::from(whole) * p;
                if log.fract() == 0.0 && log <= 1000.0 {
                    let expected = Scaled::new(value, exponent + whole);
                    assert_eq!(power.root(peak, power_of_two(log as i32)), expected);
                }
            }
            for sum in [1.5, 2.0, 3.0, 1234.5, 1e15] {
                let (digits, places) = power.root(peak, sum).split();
                let (own, own_places) = peak.split();
                let log = (digits / own).log2() + f64::from(places - own_places);
                let expected = f64::log2(sum) / p;
                let tolerance = 4.0 * f64::EPSILON * (1.0 + expected);
                assert!((log - expected).abs() <= tolerance, "{sum}^(1/{p}): 2^{log}, not 2^{expected}");
            }
        }
    }
    // An order near 0: beyond any number, and the end is held.
    let peak = Scaled::new(1.0, 0);
    let far = Power::new(1e-300, peak).root(peak, 2.0);
    assert_eq!((far.to_f64(), far.is_finite()), (f64::INFINITY, true));
}

/// `mantissa * 2^exponent` of a magnitude, as integers.
fn digits_of(x: f64) -> (u128, i32) {
    let (exponent, fraction) = (x.abs().to_bits() >> 52, x.to_bits() & ((1 << 52) - 1));
    if exponent == 0 {
        (u128::from(fraction), -1074)
    } else {
        (u128::from(fraction | 1 << 52), exponent as i32 - 1075)
    }
}

/// Whether a magnitude is at most the exact product of two others, times a power of two that is at most 1.
fn is_at_most_product(x: f64, a: f64, b: f64, then: f64) -> bool {
    let ((x, of_x), (a, of_a), (b, of_b)) = (digits_of(x), digits_of(a), digits_of(b));
    if x == 0 {
        return true;
    }
    let apart = of_x - (of_a + of_b + then.log2() as i32);
    // The products have at most 106 digits.
    match apart {
        0.. => x.leading_zeros() > apart.unsigned_abs() && x << apart <= a * b,
        _ => x <= (a * b).checked_shr(apart.unsigned_abs()).unwrap_or(0),
    }
}

fn toward_zero<T: KnownReal>() {
    let random = &mut Random::new(7);
    let data: Vec<T> = samples(random, ROOM);
    let mut factors =
        vec![Factor::new(0.3, 1.0), Factor::new(1.0 - 2e-13, 1.0), Factor::new(0.0, 1.0), NAN_FACTOR];
    factors.extend((1..40).map(|i| Factor::new(1.1 * power_of_two(-26 * i), 1.0)));
    factors.push(Factor::new(1.1 * power_of_two(-1000), power_of_two(-60)));
    at_all_levels(&mut |isa, range| {
        for factor in &factors {
            let scale = Scale(Factor { rounding: Rounding::TowardZero, ..*factor });
            let (data, mut found) = (&data[range.clone()], data[range.clone()].to_vec());
            scale.apply(isa, None, None, &mut found);
            let mut copy = vec![T::ZERO; data.len()];
            scale.apply(isa, None, Some(data), &mut copy);
            assert_same(&found, &copy);
            for (x, r) in data.iter().zip(found) {
                let (x, r) = (x.exact(), r.exact());
                if !(x.is_finite() && factor.by.is_finite()) {
                    assert!(r.is_nan() || r == 0.0 || x.is_infinite(), "{x:e} {factor:?}");
                    continue;
                }
                // The product in float64 is rounded to nearest before.
                let by = factor.by * (1.0 + f64::EPSILON);
                assert!(is_at_most_product(r, x, by, factor.then), "{isa:?}: {x:e} * {factor:?} = {r:e}");
                let product = x * factor.by * factor.then;
                assert_eq!(
                    r.is_sign_negative(),
                    product.is_sign_negative(),
                    "{isa:?}: {x:e} * {factor:?} = {r:e}"
                );
                let (product, r) = (product.abs(), r.abs());
                let nearest = T::nearest(product).exact();
                let is_right = if T::DOUBLE {
                    // A normal product is not truncated; a tiny one may be.
                    nearest.to_bits() - r.to_bits() <= u64::from(nearest < power_of_two(-1000))
                } else if nearest <= product {
                    r == nearest
                } else {
                    // The number before: none lies between the two.
                    r < nearest && [r, nearest].contains(&T::nearest(r.midpoint(nearest)).exact())
                };
                assert!(is_right, "{isa:?}: {x:e} * {factor:?} = {r:e}");
            }
        }
    });
}

#[test]
fn strict_products_are_rounded_toward_zero() {
    for_reals!(toward_zero);
}

fn erased_and_kept<T: KnownReal>() {
    let data: Vec<T> = samples(&mut Random::new(8), ROOM);
    at_all_levels(&mut |isa, range| {
        let data = &data[range.clone()];
        for (by, expected) in [(-0.0, vec![T::ZERO; data.len()]), (1.0, data.to_vec())] {
            let factors = vec![by; data.len()];
            for kind in [ANY, FactorKind { rounding: Rounding::TowardZero, ..ANY }] {
                let mut found = data.to_vec();
                isa.run(ScaleEach { from: None, to: &mut found, factors: &factors, kind });
                assert_same(&found, &expected);
                let mut found = vec![T::nearest(7.0); data.len()];
                isa.run(ScaleEach { from: Some(data), to: &mut found, factors: &factors, kind });
                assert_same(&found, &expected);
            }
        }
        let mut found = data.to_vec();
        Scale(Factor::ERASE).apply(isa, None, None, &mut found);
        assert_same(&found, &vec![T::ZERO; data.len()]);
    });
}

#[test]
fn a_factor_erases_or_keeps_every_bit() {
    for_reals!(erased_and_kept);
}

fn differences<T: KnownReal>() {
    let (random, both) =
        (&mut Random::new(9), |x: f64, y: f64| x.is_nan() == y.is_nan() && (x.is_nan() || x == y));
    let (ts, bases): (Vec<T>, Vec<T>) = (samples(random, ROOM), samples(random, ROOM));
    check_differences(&ts, &bases, both);
    // Blocks of elements whose results are all finite take a path of their own.
    let finite = |x: &T| if x.exact().abs() < 1e300 { *x } else { T::nearest(0.7) };
    let [ts, bases] = [ts, bases].map(|all| all.iter().map(finite).collect::<Vec<_>>());
    check_differences(&ts, &bases, both);
}

fn check_differences<T: KnownReal>(ts: &[T], bases: &[T], both: fn(f64, f64) -> bool) {
    at_all_levels(&mut |isa, range| {
        let (t, base) = (&ts[range.clone()], &bases[range.clone()]);
        for by in [1.0, 0.5] {
            let mut found = vec![7.0; t.len()];
            isa.run(Subtract { t, base, by, to: &mut found });
            for (found, (t, base)) in found.iter().zip(t.iter().zip(base)) {
                assert!(both(*found, t.exact() * by - base.exact() * by), "{t:?} {base:?}");
            }
        }
        for factor in [
            Factor::new(0.3, 1.0),
            Factor::new(1.0, 1.0),
            NAN_FACTOR,
            Factor::new(1e-300, power_of_two(-300)),
        ] {
            let (mut nearer, mut further) = (t.to_vec(), base.to_vec());
            isa.run(Approach { data: &mut nearer, other: base, is_base: false, factor });
            isa.run(Approach { data: &mut further, other: t, is_base: true, factor });
            assert_same(&nearer, &further);
            for (found, (t, base)) in nearer.iter().zip(t.iter().zip(base)) {
                let (t, base) = (t.exact(), base.exact());
                let mut expected = base + (t - base) * factor.by * factor.then;
                if (t - base).is_infinite() && t.is_finite() && base.is_finite() {
                    expected = 2.0 * (base / 2.0 + (t / 2.0 - base / 2.0) * factor.by * factor.then);
                    assert!(expected.is_finite() || factor.by.is_nan());
                }
                assert!(both(found.exact(), T::nearest(expected).exact()), "{t:e} {base:e} {factor:?}");
            }
        }
    });
}

#[test]
fn elements_go_a_part_of_the_way_to_others() {
    for_reals!(differences);
}

fn shares<T: KnownReal>() {
    let random = &mut Random::new(10);
    let examples: [Vec<T>; 4] = array::from_fn(|_| samples(random, ROOM));
    let factors = [0.3, 1.0, 1.7e-300, 1e-5].map(|by| Factor::new(by, 1.0));
    at_all_levels(&mut |isa, range| {
        let (mut together, mut alone) = (vec![0.25; range.len()], vec![0.25; range.len()]);
        let parts = array::from_fn(|i| &examples[i][range.clone()]);
        let terms = factors.map(|factor| Share::<false>(factor.by));
        isa.run(AddRows { sums: &mut together, rows: parts, terms });
        for (row, term) in parts.into_iter().zip(factors) {
            isa.run(AddRows { sums: &mut alone, rows: [row], terms: [term] });
        }
        for (i, (together, alone)) in together.iter().zip(&alone).enumerate() {
            let share = |(example, factor): (&[T], Factor)| example[i].exact() * factor.by * factor.then;
            let expected =
                parts.into_iter().zip(factors).map(share).fold(0.25, |sum: f64, share| sum + share);
            assert!(
                expected.is_nan() && together.is_nan() && alone.is_nan()
                    || *together == expected && *alone == expected
            );
        }
    });
}

#[test]
fn shares_are_added_in_the_order_of_the_examples() {
    for_reals!(shares);
}
