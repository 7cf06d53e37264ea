//! Norms and writes on any number of threads: correct, and with the same bits.

#![allow(clippy::cast_possible_wrap, clippy::expect_used, missing_docs, reason = "a test")]

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use crate::common::{Random, alone, clip_columns, clip_rows, dense, norm, slice_norms, term_of};
use _core::element::{Bf16, Bool, Complex, Element, F16, Ordered, Real, Scalable};
use _core::isa::Isa;
use _core::kernel::clip::Clip;
use _core::kernel::map::Map;
use _core::kernel::power::{Power, half_power_root};
use _core::kernel::scale::Scale;
use _core::kernel::scale_each::FactorKind;
use _core::kernel::sum::BLOCK;
use _core::parallel::Crew;
use _core::parallel::columns::{is_column, scale_columns};
use _core::parallel::elementwise::{AnyTask, Task, apply_elementwise, scale};
use _core::parallel::reduce::{AnyView, CHUNK, Order, norm_of_view, norms_into};
use _core::parallel::rows::{Rule, scale_rows};
use _core::parallel::{MAX_THREADS, THREADS};
use _core::scaled::{Factor, Limit, NonFinite, Rounding, Scaled, power_of_two};
use _core::setting::Setting;
use _core::walk::{Axis, Bounds, Broadcast, Cells, Factors, Layout, Memory, Slices, Target, Uniform, View};

/// More than the size from which threads share work, and not a multiple of any block.
const LARGE: usize = 3_000_017;
const ORDERS: [f64; 8] = [1.0, 2.0, f64::INFINITY, 1.5, 3.7, 0.5, 3.0, 4.0];

/// The result of `work`, which must be the same for several numbers of threads and on all instruction sets.
#[track_caller]
fn everywhere<R: PartialEq + Debug>(work: &dyn Fn(Isa) -> R) -> R {
    let first = {
        let _alone = alone();
        THREADS.set(1);
        let first = work(Isa::current());
        for count in [7, 3] {
            THREADS.set(count);
            assert_eq!(THREADS.get(), Ok(count));
            assert!(work(Isa::current()) == first, "{count} threads");
        }
        first
    };
    // Other tests may set the number of threads meanwhile, which must change nothing.
    for isa in Isa::available() {
        assert!(work(isa) == first, "{}", isa.name());
    }
    first
}

/// A key by which NaN equals NaN.
fn key(norm: Scaled) -> String {
    format!("{norm:?}")
}

/// From -1000 to 1000, in steps that leave digits to round.
fn everyday(seed: u64, len: usize) -> Vec<f64> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(1 << 30) as f64 / 536_870.9 - 1000.0).collect()
}

fn single(data: &[f64]) -> Vec<f32> {
    data.iter().map(|x| *x as f32).collect()
}

fn bits32(data: &[f32]) -> Vec<u32> {
    data.iter().map(|x| x.to_bits()).collect()
}

fn bits64(data: &[f64]) -> Vec<u64> {
    data.iter().map(|x| x.to_bits()).collect()
}

/// Two floats that together hold a sum to about 100 bits.
#[derive(Clone, Copy, Default)]
struct Double(f64, f64);

impl Double {
    fn add(self, x: f64) -> Self {
        let sum = self.0 + x;
        let part = sum - self.0;
        let error = (self.0 - (sum - part)) + (x - part) + self.1;
        Self(sum + error, error - ((sum + error) - sum))
    }

    fn add_square(self, x: f64) -> Self {
        let square = x * x;
        self.add(square).add(x.mul_add(x, -square))
    }
}

/// The norm divided by the largest magnitude, which is returned beside it.
fn reference(data: &[f64], p: f64) -> (f64, f64) {
    let peak = data.iter().fold(0.0, |peak: f64, x| peak.max(x.abs()));
    if peak == 0.0 || p == f64::INFINITY {
        return (peak, 1.0);
    }
    // By a power of two, so that nothing rounds: the peak comes to lie in [1, 2).
    let lift = if peak < f64::MIN_POSITIVE { 64 } else { 0 };
    let exponent = ((peak * power_of_two(lift)).to_bits() >> 52) as i32 - 1023 - lift;
    let half = exponent / 2;
    let down = |x: f64| x.abs() * power_of_two(-half) * power_of_two(half - exponent);
    let sum = data.iter().fold(Double::default(), |sum, x| match p {
        1.0 => sum.add(down(*x)),
        2.0 => sum.add_square(down(*x)),
        _ => sum.add((down(*x) / down(peak)).powf(p)),
    });
    let root = match p {
        1.0 => sum.0 / down(peak),
        2.0 => sum.0.sqrt() / down(peak),
        _ => sum.0.powf(1.0 / p),
    };
    (peak, root)
}

/// Checks a norm against the documented error: 1e-14, or 1e-14/p.
#[track_caller]
fn assert_norm(found: Scaled, data: &[f64], p: f64) {
    let (peak, root) = reference(data, p);
    if peak == 0.0 {
        assert_eq!(found, Scaled::ZERO);
        return;
    }
    // The peak, clipped by the norm: peak / norm = 1 / root. Nothing is lost to the ends of the range.
    let factor = found.factor_to(peak);
    let ratio = factor.by * factor.then;
    let tolerance = 1e-14 / p.min(1.0);
    assert!((ratio * root - 1.0).abs() <= tolerance, "{found:?}: off by {:e}, order {p}", ratio * root - 1.0);
}

/// Reference operations of an element.
trait Known: Element {
    /// An ordinary one, from arbitrary bits.
    fn everyday(random: &mut Random) -> Self;
    /// Its modulus, to an ulp of float64.
    fn size(self) -> f64;
}

macro_rules! known {
    (real $($real:ty),*; complex $($complex:ty),*; integer $($integer:ty),*) => {
        $(impl Known for $real {
            fn everyday(random: &mut Random) -> Self {
                Self::from_float(random.below(1 << 30) as f64 / 536_870.9 - 1000.0)
            }
            fn size(self) -> f64 { self.widen().abs() }
        })*
        $(impl Known for $complex {
            fn everyday(random: &mut Random) -> Self {
                [Known::everyday(random), Known::everyday(random)]
            }
            fn size(self) -> f64 { f64::from(self[0]).hypot(f64::from(self[1])) }
        })*
        // Integers of all magnitudes alike: of 64-bit integers, few are exact in float64.
        $(impl Known for $integer {
            fn everyday(random: &mut Random) -> Self { random.bits() as Self }
            fn size(self) -> f64 { i128::from(self).unsigned_abs() as f64 }
        })*
        macro_rules! for_all {
            ($test:ident) => {{
                $($test::<$real>();)*
                $($test::<$complex>();)*
                $($test::<$integer>();)*
                $test::<Bool>();
            }};
        }
    };
}
known! {
    real F16, Bf16, f32, f64;
    complex Complex<f32>, Complex<f64>;
    integer i8, i16, i32, i64, u8, u16, u32, u64
}

impl Known for Bool {
    fn everyday(random: &mut Random) -> Self {
        Self::from_bytes(&[[0, 1, 1, 0x80][random.below(4)]], false)
    }
    fn size(self) -> f64 {
        if self == Self::ZERO { 0.0 } else { 1.0 }
    }
}

fn some<T: Known>(seed: u64, len: usize) -> Vec<T> {
    let mut random = Random::new(seed);
    (0..len).map(|_| T::everyday(&mut random)).collect()
}

fn sizes<T: Known>(data: &[T]) -> Vec<f64> {
    data.iter().map(|x| x.size()).collect()
}

/// The norm, on any level and number of threads, and as part of a list or alone.
fn norm_everywhere<T: Known>(data: &[T], order: Order) -> Scaled {
    everywhere(&|isa| {
        let found = norm(isa, &Crew::new(), &[dense(data)], order).expect("threads");
        assert_eq!(key(found), key(norm_of_view(isa, &View::Dense(data), order)));
        found
    })
}

fn check_norms<T: Known>(data: &[T]) {
    for p in ORDERS {
        assert_norm(norm_everywhere(data, Order::of(p)), &sizes(data), p);
    }
}

#[test]
fn orders_are_told_apart() {
    assert_eq!(ORDERS.map(Order::of)[..3], [Order::One, Order::Two, Order::Max]);
    assert_eq!(Order::of(1.5), Order::Power(1.5));
}

#[test]
fn settings_stay_in_their_range() {
    let _alone = alone();
    for (asked, given) in [(0, 1), (1, 1), (5, 5), (MAX_THREADS + 1, MAX_THREADS)] {
        THREADS.set(asked);
        assert_eq!(THREADS.get(), Ok(given));
    }
}

#[test]
fn a_number_that_is_set_while_the_environment_is_read_or_the_system_measured_wins() {
    static READ: Setting = Setting::new(
        1..=9,
        || {
            READ.set(5);
            Ok(Some(3))
        },
        || 1,
    );
    static MEASURED: Setting = Setting::new(
        1..=9,
        || Ok(None),
        || {
            MEASURED.set(12);
            1
        },
    );
    assert_eq!((READ.get(), MEASURED.get()), (Ok(5), Ok(9)));
    READ.forget();
    assert_eq!((READ.check(), READ.get()), (Ok(()), Ok(5)));
}

#[test]
fn norms_are_right_and_the_same_everywhere() {
    for len in [0, 1, 5, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 100, LARGE] {
        let data = everyday(1, len);
        check_norms(&single(&data));
        if len < LARGE {
            check_norms(&data);
        }
    }
    check_norms(&everyday(2, 1_100_003)); // 8.8 MB
    let data: Vec<i8> = some(3, 65 * CHUNK + 100); // more than a span
    for order in [Order::One, Order::Two] {
        norm_everywhere(&data, order);
    }
}

fn norms_of<T: Known>() {
    for len in [0, 1, 5, BLOCK - 1, BLOCK + 1, CHUNK + BLOCK + 77] {
        check_norms::<T>(&some(20, len));
    }
    // Enough elements to be shared between threads; the other tests cover the rest, since all chunks are alike.
    let data: Vec<T> = some(21, (9 << 20) / size_of::<T>() + 333);
    for p in ORDERS {
        norm_everywhere(&data, Order::of(p));
    }
    check_norms(&[T::ZERO; 100]);
}

#[test]
fn norms_of_every_dtype_are_right_and_the_same_everywhere() {
    for_all!(norms_of);
}

/// The sum of magnitudes of integers is rounded once, even if they and their sum are far above 2^53.
fn exact_sums<T: Known>(exact: fn(T) -> u128) {
    for len in [1, 2, 3, 1000, BLOCK + 1, CHUNK + 5, 700_001] {
        let data: Vec<T> = some(22, len);
        let sum = |data: &[T]| -> f64 { data.iter().map(|x| exact(*x)).sum::<u128>() as f64 };
        assert_eq!(norm_everywhere(&data, Order::One).to_f64(), sum(&data), "{len}");
        // Several arrays, and the columns and rows of one.
        let found = everywhere(&|isa| {
            let (low, high) = data.split_at(len / 3);
            norm(isa, &Crew::new(), &[dense(low), dense(high)], Order::One).expect("threads")
        });
        assert_eq!(found.to_f64(), sum(&data), "{len}");
        for width in [4, 5, 1000] {
            let data = &data[..len / width * width];
            let turned = transposed(data, width);
            let height = data.len() / width;
            if height == 0 {
                continue;
            }
            let columns = everywhere(&|isa| slice_norms(isa, &slices(data, width, true), Order::One));
            let rows = everywhere(&|isa| slice_norms(isa, &slices(&turned, height, false), Order::One));
            assert_eq!(columns, rows);
            let expected: Vec<Scaled> = turned.chunks(height).map(|data| Scaled::new(sum(data), 0)).collect();
            assert_eq!(columns, Ok(expected));
        }
    }
}

#[test]
fn sums_of_integers_are_exact() {
    exact_sums::<u64>(u128::from);
    exact_sums::<i64>(|x| x.unsigned_abs().into());
    exact_sums::<u32>(u128::from);
    exact_sums::<i32>(|x| x.unsigned_abs().into());
    exact_sums::<i8>(|x| x.unsigned_abs().into());
    exact_sums::<Bool>(|x| u128::from(x != Bool::ZERO));
    // The smallest cases: two numbers that float64 does not distinguish from their neighbours.
    for (data, sum) in [
        (vec![(1 << 53) + 1, 1], power_of_two(53) + 2.0),
        (vec![u64::MAX, 1], power_of_two(64)),
        (vec![u64::MAX; 2048], power_of_two(75) - 2048.0),
        (vec![(1 << 63) + 1025, 1 << 62], power_of_two(63) + power_of_two(62) + 2048.0),
    ] {
        assert_eq!(norm_everywhere(&data, Order::One).to_f64(), sum);
    }
    let data = [i64::MIN, i64::MIN + 1, -1, i64::MAX];
    assert_eq!(norm_everywhere(&data, Order::One).to_f64(), 3.0 * power_of_two(63));
    assert_eq!(norm_everywhere(&[i64::MIN; 2], Order::Max).to_f64(), power_of_two(63));
}

/// The documented order of all additions: block sums to chunks, chunks to arrays, arrays to spans of 64 and these to the sum, each
/// with compensation.
#[derive(Clone, Copy, Default)]
struct Naive {
    sum: f64,
    error: f64,
}

impl Naive {
    fn merge(&mut self, other: Self) {
        let sum = self.sum + other.sum;
        let part = sum - self.sum;
        self.error += (self.sum - (sum - part)) + (other.sum - part);
        self.error += other.error;
        self.sum = sum;
    }

    fn of_block(terms: &[f64]) -> Self {
        let mut lanes = vec![0.0; 32];
        terms.iter().enumerate().for_each(|(i, term)| lanes[i % 32] += term);
        while lanes.len() > 1 {
            let (low, high) = lanes.split_at(lanes.len() / 2);
            lanes = low.iter().zip(high).map(|(a, b)| a + b).collect();
        }
        Self { sum: lanes[0], error: 0.0 }
    }

    fn of_all(parts: impl IntoIterator<Item = Self>) -> Self {
        parts.into_iter().fold(Self::default(), |mut total, part| {
            total.merge(part);
            total
        })
    }

    fn of_array(terms: &[f64]) -> Self {
        Self::of_all(
            terms.chunks(64 * 2048).map(|chunk| Self::of_all(chunk.chunks(2048).map(Self::of_block))),
        )
    }

    fn of_list(list: &[Vec<f64>], term: impl Fn(f64) -> f64) -> f64 {
        let of_array = |array: &Vec<f64>| {
            let terms: Vec<f64> = array.iter().map(|x| term(*x)).collect();
            Self::of_array(&terms)
        };
        let list: Vec<Vec<f64>> = list.iter().filter(|array| !array.is_empty()).cloned().collect();
        let total = Self::of_all(list.chunks(64).map(|arrays| Self::of_all(arrays.iter().map(of_array))));
        total.sum + total.error
    }
}

#[test]
fn lists_are_summed_in_the_documented_order() {
    let mut random = Random::new(3);
    let mut cut = |total: usize, most: usize| {
        let mut lens = Vec::new();
        let mut left = total;
        while left > 0 {
            lens.push(random.below(most + 1).min(left));
            left -= lens[lens.len() - 1];
        }
        lens
    };
    // Few large arrays, many small ones, some empty; shared between threads or not.
    let lists = [
        vec![LARGE / 2],
        cut(LARGE / 2, 400_000),
        cut(LARGE / 2, 2000),
        cut(5000, 300),
        vec![],
        vec![0, 7, 0],
    ];
    for lens in lists {
        let arrays: Vec<Vec<f64>> =
            lens.iter().enumerate().map(|(i, len)| everyday(i as u64, *len)).collect();
        let peak = arrays.iter().flatten().fold(0.0, |peak: f64, x| peak.max(x.abs()));
        let peak_of = Scaled::new(if peak > 0.0 { peak } else { 1.0 }, 0);
        let power = Power::new(3.7, peak_of);
        let expected = [
            Scaled::new(Naive::of_list(&arrays, f64::abs), 0),
            Scaled::new(Naive::of_list(&arrays, |x| x * x).sqrt(), 0),
            Scaled::new(peak, 0),
            if peak > 0.0 {
                power.root(peak_of, Naive::of_list(&arrays, |x| term_of(power, x)))
            } else {
                Scaled::ZERO
            },
            half_power_root(1, Naive::of_list(&arrays, |x| x.abs().sqrt())),
            half_power_root(3, Naive::of_list(&arrays, |x| x.abs() * x.abs().sqrt())),
            half_power_root(6, Naive::of_list(&arrays, |x| x.abs() * x.abs() * x.abs())),
            half_power_root(8, Naive::of_list(&arrays, |x| (x * x) * (x * x))),
        ];
        let found = everywhere(&|isa| {
            let views: Vec<AnyView<'_>> = arrays.iter().map(|array| dense(&array[..])).collect();
            [1.0, 2.0, f64::INFINITY, 3.7, 0.5, 1.5, 3.0, 4.0]
                .map(|p| norm(isa, &Crew::new(), &views, Order::of(p)).expect("threads"))
        });
        assert_eq!(found, expected, "{} arrays", lens.len());
    }
}

#[test]
fn a_strided_array_gives_the_bits_of_its_copy() {
    let len = LARGE / 3;
    let data = single(&everyday(4, 3 * len));
    let copy: Vec<f32> = data.iter().step_by(3).copied().collect();
    let reversed: Vec<f32> = copy.iter().rev().copied().collect();
    for p in ORDERS {
        for (start, stride, copy) in [(0, 3, &copy), (3 * len as isize - 3, -3, &reversed)] {
            let [strided, dense] = everywhere(&|isa| {
                let layout = Layout::new([Axis { len, stride }]);
                let view = View::new(Memory::Elements(&data), start, Cow::Owned(layout));
                [view, View::Dense(copy)]
                    .map(|view| norm(isa, &Crew::new(), &[Box::new(view)], Order::of(p)).expect("threads"))
            });
            assert_eq!(strided, dense);
        }
    }
}

#[test]
fn nothing_overflows_or_underflows_on_the_way() {
    let smallest = f64::from_bits(1);
    let all = |x: f64, len: usize| vec![x; len];
    for data in [
        vec![1e200, 1e-200],
        vec![1e200, -1e200, 3e199],
        vec![1e-200, 1e-200, -3e-201],
        vec![smallest],
        vec![smallest, -smallest, f64::from_bits(12_345)],
        vec![f64::MIN_POSITIVE, smallest],
        vec![1e-145, 1e-145, smallest],
        vec![power_of_two(-480), power_of_two(-538)],
        vec![0.0, -0.0],
        all(1e-160, 5000),
        all(1e308, 5000),
        all(smallest, 700_000),
    ] {
        check_norms(&data);
    }
    // Float32 cannot leave float64's range.
    for data in
        [vec![1e30f32, 1e30], vec![f32::from_bits(1); 3], vec![f32::MAX; 5000], vec![1e-40; 1_500_000]]
    {
        check_norms(&data);
    }
    // 2^1023 * sqrt(1024) is beyond float64, and what is left of the elements is not.
    let beyond = norm_of_view(Isa::current(), &View::Dense(&[power_of_two(1023); 1024][..]), Order::Two);
    assert_eq!(beyond, Scaled::new(1.0, 1028));
    assert_eq!(beyond.to_f64(), f64::INFINITY);
    assert!(beyond.is_finite());
}

#[test]
fn norms_of_the_largest_numbers_are_finite_inside() {
    for data in
        [vec![f64::MAX], vec![f64::MAX, -f64::MAX, f64::MAX], vec![1.7e308; 5], vec![f64::MAX; 700_000]]
    {
        check_norms(&data);
    }
}

#[test]
fn mixed_lists_are_rescaled_as_one() {
    for wide in [vec![1e200, -2e200], vec![1e-200, 3e-200], vec![1.0, 2.0], vec![1e308; 9], vec![0.0]] {
        for narrow in [vec![1e30f32, -3e30], vec![0.0], vec![f32::from_bits(1)], vec![1.5; 1_200_000]] {
            let all: Vec<f64> = wide.iter().copied().chain(narrow.iter().map(|x| f64::from(*x))).collect();
            for p in ORDERS {
                let found = everywhere(&|isa| {
                    let views = [dense(&wide[..]), dense(&narrow[..])];
                    norm(isa, &Crew::new(), &views, Order::of(p)).expect("threads")
                });
                assert_norm(found, &all, p);
            }
        }
    }
}

/// One array of each dtype, all in one list.
#[test]
fn lists_of_all_dtypes_are_one_vector() {
    for (seed, len) in [(30, 0), (31, 7), (32, 3 * BLOCK + 1), (33, 120_000)] {
        let (halves, brains, singles, doubles) = (
            some::<F16>(seed, len),
            some::<Bf16>(seed + 1, len),
            some::<f32>(seed + 2, len),
            some::<f64>(seed + 3, len),
        );
        let (complex, wide) = (some::<Complex<f32>>(seed + 4, len), some::<Complex<f64>>(seed + 5, len));
        let (bytes, longs, truths) =
            (some::<i8>(seed + 6, len), some::<u16>(seed + 7, len), some::<Bool>(seed + 8, len));
        let all = [
            sizes(&halves),
            sizes(&brains),
            sizes(&singles),
            sizes(&doubles),
            sizes(&complex),
            sizes(&wide),
            sizes(&bytes),
            sizes(&longs),
            sizes(&truths),
        ]
        .concat();
        for p in ORDERS {
            let found = everywhere(&|isa| {
                let views: [AnyView<'_>; 9] = [
                    dense(&halves[..]),
                    dense(&brains[..]),
                    dense(&singles[..]),
                    dense(&doubles[..]),
                    dense(&complex[..]),
                    dense(&wide[..]),
                    dense(&bytes[..]),
                    dense(&longs[..]),
                    dense(&truths[..]),
                ];
                norm(isa, &Crew::new(), &views, Order::of(p)).expect("threads")
            });
            assert_norm(found, &all, p);
        }
    }
}

/// Narrow dtypes beside numbers whose sums leave float64: their elements are not lost, and do not overflow when all sums are
/// computed again with rescaled elements.
#[test]
fn narrow_dtypes_are_rescaled_with_the_wide_ones() {
    let tiny = f64::from_bits(3);
    for wide in [vec![1e200, -2e200], vec![1e308; 9], vec![tiny, -tiny], vec![1e-200; 3]] {
        for (half, integer, complex) in [
            (60_000.0, u64::MAX, [f32::MAX, -f32::MAX]),
            (6e-8, 1, [f32::from_bits(1), 0.0]),
            (0.0, 0, [0.0, -0.0]),
        ] {
            let (half, brain) = ([F16::from_float(half); 3], [Bf16::from_float(half); 3]);
            let (integer, complex, truth) = ([integer; 3], [complex; 3], [Bool::ZERO; 3]);
            let all =
                [sizes(&wide), sizes(&half), sizes(&brain), sizes(&integer), sizes(&complex), sizes(&truth)]
                    .concat();
            for p in ORDERS {
                let found = everywhere(&|isa| {
                    let views: [AnyView<'_>; 6] = [
                        dense(&half[..]),
                        dense(&brain[..]),
                        dense(&integer[..]),
                        dense(&complex[..]),
                        dense(&truth[..]),
                        dense(&wide[..]),
                    ];
                    norm(isa, &Crew::new(), &views, Order::of(p)).expect("threads")
                });
                assert_norm(found, &all, p);
            }
        }
    }
}

/// Complex numbers with whole parts below 2^19, times `2^exponent`, and their moduli without that. At the
/// highest exponent one of them is the largest number there is, whose modulus is beyond float64.
fn complex_at(seed: u64, len: usize, exponent: i32) -> (Vec<Complex<f64>>, Vec<f64>) {
    let mut random = Random::new(seed);
    let mut part = || random.below(1 << 20) as f64 - 524_288.0;
    let whole: Vec<Complex<f64>> = (0..len).map(|_| [part(), part()]).collect();
    let mut sizes = sizes(&whole);
    let place = |x: f64| x * power_of_two(exponent / 2) * power_of_two(exponent - exponent / 2);
    let mut data: Vec<_> = whole.into_iter().map(|z| [place(z[0]), place(z[1])]).collect();
    if exponent == 1004 {
        data[len / 2] = [f64::MAX, -f64::MAX];
        sizes[len / 2] = f64::MAX * power_of_two(-1004) * 2f64.sqrt();
    }
    (data, sizes)
}

/// The norm without the power of two.
fn back(norm: Scaled, exponent: i32) -> Scaled {
    let (digits, own) = norm.split();
    Scaled::new(digits, own - exponent)
}

/// float64 moduli are in float64's range. Moduli of complex128 may exceed it, and those below the range have more digits than a
/// subnormal.
#[test]
fn complex_numbers_of_any_size_have_their_norms() {
    for exponent in [-1074, -1070, -1000, -700, -500, 0, 300, 500, 900, 1003, 1004] {
        for len in [1, 3, 1000, BLOCK + 3] {
            let (data, sizes) = complex_at(40, len, exponent);
            for p in ORDERS {
                assert_norm(back(norm_everywhere(&data, Order::of(p)), exponent), &sizes, p);
                // As an array with others, which are next to nothing or nothing at all.
                let found = everywhere(&|isa| {
                    let (zero, narrow) = ([0f64; 3], [Bf16::ZERO; 3]);
                    let views = [dense(&zero[..]), dense(&data[..]), dense(&narrow[..])];
                    norm(isa, &Crew::new(), &views, Order::of(p)).expect("threads")
                });
                assert_norm(back(found, exponent), &sizes, p);
            }
        }
    }
    // Shared between threads.
    for exponent in [-1074, 1004] {
        let (data, sizes) = complex_at(41, 300_000, exponent);
        for p in [1.0, 2.0, f64::INFINITY, 3.0, 3.7] {
            assert_norm(back(norm_everywhere(&data, Order::of(p)), exponent), &sizes, p);
        }
    }
    // The smallest numbers there are: sqrt(2) and not 1 of their unit.
    let smallest = [f64::from_bits(1), f64::from_bits(1)];
    for p in ORDERS {
        let found = back(norm_everywhere(&[smallest], Order::of(p)), -1074).to_f64();
        assert!((found - 2f64.sqrt()).abs() <= 1e-14, "{p}: {found}");
        let largest = [f64::MAX, f64::MAX];
        let found = back(norm_everywhere(&[largest], Order::of(p)), 1024).to_f64();
        assert!((found - 2f64.sqrt()).abs() <= 1e-14, "{p}: {found}");
    }
}

/// Columns of complex numbers, each of another size.
#[test]
fn complex_columns_beyond_the_range_are_done_again() {
    let (height, width) = (150, 6);
    let exponents = [0, -1074, 1004, 500, -600, 3];
    let columns: Vec<_> = exponents.iter().map(|e| complex_at(42, height, *e)).collect();
    let data: Vec<Complex<f64>> =
        (0..height).flat_map(|row| columns.iter().map(move |(column, _)| column[row])).collect();
    for p in ORDERS {
        let found =
            everywhere(&|isa| slice_norms(isa, &slices(&data, width, true), Order::of(p)).expect("threads"));
        for ((found, exponent), (_, sizes)) in found.into_iter().zip(exponents).zip(&columns) {
            assert_norm(back(found, exponent), sizes, p);
        }
    }
}

/// Infinity and NaN in the dtypes that have them.
fn odd<T: Known>(infinite: T, nan: T) {
    for len in [3, 700, CHUNK + 100] {
        let mut data: Vec<T> = some(43, len);
        for p in ORDERS {
            let order = Order::of(p);
            let value = |data: &[T]| {
                everywhere(&|isa| {
                    norm(isa, &Crew::new(), &[dense(data)], order).expect("threads").to_f64().to_bits()
                })
            };
            let kept = std::mem::replace(&mut data[len / 2], infinite);
            assert_eq!(value(&data), f64::INFINITY.to_bits(), "{p}");
            for at in [0, len - 1] {
                let kept = std::mem::replace(&mut data[at], nan);
                assert_eq!(value(&data), f64::NAN.to_bits(), "{p}");
                data[at] = kept;
            }
            data[len / 2] = kept;
            assert!(f64::from_bits(value(&data)).is_finite());
        }
        // Each column has its own.
        let width = 5;
        data.truncate(len / width * width);
        if data.is_empty() {
            continue;
        }
        data[2] = infinite;
        data[3] = infinite;
        let last = data.len() - width;
        data[last + 3] = nan;
        for p in ORDERS {
            let found = everywhere(&|isa| {
                let norms = norms_in_two_types(isa, &slices(&data, width, true), Order::of(p));
                norms.into_iter().map(|norm| norm.to_f64().to_bits()).collect::<Vec<u64>>()
            });
            let is_finite = |bits: &u64| f64::from_bits(*bits).is_finite();
            assert!(found[2] == f64::INFINITY.to_bits() && found[3] == f64::NAN.to_bits(), "{p}");
            assert_eq!(found.iter().filter(|bits| is_finite(bits)).count(), 3, "{p}");
        }
    }
}

#[test]
fn infinity_and_nan_of_every_dtype_are_kept_apart() {
    let (infinity, nan) = (f64::INFINITY, f64::NAN);
    odd(F16::NEG_INFINITY, F16::from_bits(0xfc01));
    odd(Bf16::NEG_INFINITY, Bf16::from_bits(0x7f81));
    odd(f32::NEG_INFINITY, f32::from_bits(0xff80_0001));
    odd([1.0, f32::NEG_INFINITY], [f32::NAN, 0.0]);
    odd([-infinity, 1.0], [0.0, -nan]);
}

#[test]
fn nan_wins_over_infinity() {
    let nan = f64::from_bits(0xfff8_0000_0000_0077);
    for len in [3, 100_000, LARGE / 2] {
        let mut data = everyday(5, len);
        for p in ORDERS {
            // As one array and as two: the result of the first must survive the second.
            let found = |data: &[f64]| {
                everywhere(&|isa| {
                    let (low, high) = data.split_at(len / 3);
                    let lists = [vec![data], vec![low, high]];
                    lists.map(|list| {
                        let views: Vec<AnyView<'_>> = list.into_iter().map(dense).collect();
                        let found = norm(isa, &Crew::new(), &views, Order::of(p)).expect("threads");
                        (found.to_f64().to_bits(), found.is_finite())
                    })
                })
            };
            data[len / 2] = f64::NEG_INFINITY;
            assert_eq!(found(&data), [(f64::INFINITY.to_bits(), false); 2], "{len} {p}");
            for at in [0, len - 1] {
                let kept = std::mem::replace(&mut data[at], nan);
                assert_eq!(found(&data), [(f64::NAN.to_bits(), false); 2], "{len} {p} {at}");
                data[at] = kept;
            }
            data[len / 2] = 1.0;
            assert!(found(&data).iter().all(|(_, finite)| *finite));
        }
    }
}

/// The slices of a row-major matrix: its rows or its columns.
fn slices<T: Element>(data: &[T], width: usize, columns: bool) -> Slices<'_, T> {
    let rows = Layout::new([Axis { len: data.len() / width, stride: width as isize }]);
    let columns_of = Layout::new([Axis { len: width, stride: 1 }]);
    let (kept, reduced) = if columns { (columns_of, rows) } else { (rows, columns_of) };
    Slices::new(Memory::Elements(data), 0, kept, reduced)
}

/// The norms of slices, which are the same when they are written in their own dtype.
fn norms_in_two_types<T: Element>(isa: Isa, slices: &Slices<'_, T>, order: Order) -> Vec<Scaled> {
    let norms = slice_norms(isa, slices, order).expect("threads");
    let mut numbers = vec![T::Norm::ZERO; norms.len()];
    norms_into(isa, slices, order, &mut numbers).expect("threads");
    let rounded: Vec<_> = norms.iter().map(|norm| T::Norm::narrow(norm.to_f64())).collect();
    assert_eq!(number_bits(&numbers), number_bits(&rounded));
    norms
}

fn transposed<T: Copy>(data: &[T], width: usize) -> Vec<T> {
    (0..width).flat_map(|column| data.iter().skip(column).step_by(width).copied()).collect()
}

fn check_columns<T: Known>(data: &[T], width: usize, orders: &[f64]) {
    let turned = transposed(data, width);
    let height = data.len() / width;
    for &p in orders {
        let order = Order::of(p);
        let of = |isa, slices: &Slices<'_, T>| norms_in_two_types(isa, slices, order);
        let columns = everywhere(&|isa| of(isa, &slices(data, width, true)));
        let rows = everywhere(&|isa| of(isa, &slices(&turned, height, false)));
        assert_eq!((columns.len(), rows.len()), (width, width));
        for (at, (column, row)) in columns.iter().zip(&rows).enumerate() {
            let slice = &turned[at * height..][..height];
            // Norms of rows have the order of all norms.
            assert_eq!(*row, norm_of_view(Isa::current(), &View::Dense(slice), order));
            // Norms of columns have another order.
            assert_norm(*column, &sizes(slice), p);
            let (a, b) = (column.to_f64(), row.to_f64());
            let tolerance = 1e-14 / p.min(1.0);
            assert!(a == b || (a - b).abs() <= tolerance * b, "order {p}, {height} x {width}: {a} {b}");
        }
    }
}

#[test]
fn columns_have_the_norms_of_rows() {
    // Narrow, wide, tall, flat; more columns than a strip; shared or not; long rows too.
    for (height, width) in [(10, 3), (100, 7), (1, 50), (3, 1000), (130, 513), (70_000, 5)] {
        let data = everyday(6, height * width);
        check_columns(&data, width, &ORDERS);
        check_columns(&single(&data), width, &ORDERS);
    }
    for (height, width) in [(1500, 2000), (300_000, 10), (2, 1_500_000), (1_000_000, 3)] {
        check_columns(&single(&everyday(7, height * width)), width, &[1.0, 2.0, f64::INFINITY]);
    }
}

fn columns_of<T: Known>() {
    for (height, width) in [(10, 3), (100, 7), (1, 50), (3, 1000), (130, 513), (70, 2100)] {
        check_columns::<T>(&some(50, height * width), width, &ORDERS);
    }
}

/// Enough to be shared between threads.
fn shared_columns_of<T: Known>() {
    let height = (9 << 19) / size_of::<T>() / 10;
    check_columns::<T>(&some(51, height * 10), 10, &ORDERS);
}

#[test]
fn columns_of_every_dtype_have_the_norms_of_rows() {
    for_all!(columns_of);
    shared_columns_of::<F16>();
    shared_columns_of::<i64>();
    shared_columns_of::<Complex<f32>>();
    shared_columns_of::<Complex<f64>>();
}

#[test]
fn columns_beyond_the_range_are_done_again() {
    let (height, width) = (700, 1000);
    let mut data = everyday(8, height * width);
    for (i, x) in data.iter_mut().enumerate() {
        *x *= match i % width {
            3 => 1e300,
            4 => 1e-250,
            5 => f64::from_bits(1),
            6 => 0.0,
            7 => 1e305,
            _ => 1.0,
        };
    }
    check_columns(&data, width, &[1.0, 2.0, f64::INFINITY]);
    // Infinite numbers and NaN do not affect neighbouring columns.
    data[20 * width + 9] = f64::INFINITY;
    data[20 * width + 11] = f64::INFINITY;
    data[30 * width + 11] = f64::NAN;
    for p in [1.0, 2.0, f64::INFINITY] {
        let found = everywhere(&|isa| {
            let found = slice_norms(isa, &slices(&data, width, true), Order::of(p)).expect("threads");
            found.into_iter().map(|norm| norm.to_f64().to_bits()).collect::<Vec<u64>>()
        });
        assert_eq!(found[9], f64::INFINITY.to_bits());
        assert_eq!(found[11], f64::NAN.to_bits());
        assert!(
            found
                .iter()
                .enumerate()
                .all(|(i, x)| i == 9 || i == 11 || i == 7 || f64::from_bits(*x).is_finite())
        );
    }
}

#[test]
fn empty_slices_have_norm_zero() {
    for (kept, reduced, count) in [(5, 0, 5), (0, 5, 0), (0, 0, 0)] {
        for p in ORDERS {
            let axis = |len| Layout::new([Axis { len, stride: 1 }]);
            let slices = Slices::new(Memory::Elements(&[1f32; 9]), 0, axis(kept), axis(reduced));
            assert_eq!(
                everywhere(&|isa| slice_norms(isa, &slices, Order::of(p))),
                Ok(vec![Scaled::ZERO; count])
            );
        }
    }
}

#[test]
fn scaling_a_list_writes_every_element_once() {
    let factor = Factor::new(1.0 / 3.0, 1.0);
    for size in [100, LARGE / 6] {
        // Float32 from a source, float32 in place, float64 from a source; float32 in between others; many
        // small ones.
        let (a, c) = (single(&everyday(9, 3 * size)), everyday(10, size));
        let small: Vec<Vec<f32>> = (0..500).map(|i| single(&everyday(i, size / 500 + 1))).collect();
        for factor in [Some(factor), None] {
            let narrow = |x: f32| factor.map_or(x, |f| (f64::from(x) * f.by) as f32).to_bits();
            let found = everywhere(&|isa| {
                let mut copy = vec![9f32; a.len()];
                let mut own = a.clone();
                let mut wide = vec![9f64; c.len()];
                let mut copies: Vec<Vec<f32>> = small.iter().map(|x| vec![9.0; x.len()]).collect();
                let cells: Vec<AtomicU32> = (0..2 * a.len() as u32).map(AtomicU32::new).collect();
                let layout = Layout::new([Axis { len: a.len(), stride: -2 }]);
                let strided = Target::Strided {
                    cells: Cells::Elements(&cells),
                    swapped: false,
                    start: 2 * a.len() as isize - 1,
                    layout: Cow::Owned(layout),
                    range: 0..a.len(),
                };
                let mut tasks: Vec<AnyTask<'_>> = vec![
                    Task { source: Some(View::Dense(&a)), target: Target::Dense(&mut copy) }.into(),
                    Task { source: None, target: Target::Dense(&mut own) }.into(),
                    Task { source: Some(View::Dense(&c)), target: Target::Dense(&mut wide) }.into(),
                    Task { source: Some(View::Dense(&a)), target: strided }.into(),
                ];
                for (source, target) in small.iter().zip(&mut copies) {
                    let target = Target::Dense(target);
                    tasks.push(Task { source: Some(View::Dense(source)), target }.into());
                }
                scale(isa, &Crew::new(), &mut tasks[..], factor).expect("threads");
                drop(tasks);
                let cells: Vec<u32> = cells.iter().map(|cell| cell.load(Relaxed)).collect();
                let copies: Vec<u32> = copies.iter().flat_map(|copy| bits32(copy)).collect();
                (bits32(&copy), bits32(&own), bits64(&wide), cells, copies)
            });
            let expected: Vec<u32> = a.iter().map(|x| narrow(*x)).collect();
            assert!(found.0 == expected);
            assert!(found.1 == expected);
            let wide = c.iter().map(|x| factor.map_or(*x, |f| x * f.by));
            assert!(found.2.iter().copied().eq(wide.map(f64::to_bits)));
            let (kept, written): (Vec<(usize, u32)>, Vec<_>) =
                found.3.iter().copied().enumerate().partition(|(i, _)| i % 2 == 0);
            assert!(kept.into_iter().all(|(i, x)| i == x as usize));
            assert!(written.into_iter().rev().map(|(_, x)| x).eq(expected));
            assert!(found.4.into_iter().eq(small.iter().flatten().map(|x| narrow(*x))));
        }
    }
}

/// Dtypes of 16 bits in a list with another one, from a source and in place.
#[test]
fn lists_of_halves_are_scaled() {
    for len in [100, 600_011] {
        let (halves, brains, singles) = (some::<F16>(60, len), some::<Bf16>(61, len), some::<f32>(62, len));
        for factor in [Some(Factor::new(1.0 / 3.0, 1.0)), None] {
            let found = everywhere(&|isa| {
                let mut outputs = (vec![F16::ZERO; len], brains.clone(), vec![0f32; len]);
                let mut tasks: Vec<AnyTask<'_>> = vec![
                    Task { source: Some(View::Dense(&halves)), target: Target::Dense(&mut outputs.0) }.into(),
                    Task { source: None, target: Target::Dense(&mut outputs.1) }.into(),
                    Task { source: Some(View::Dense(&singles)), target: Target::Dense(&mut outputs.2) }
                        .into(),
                ];
                scale(isa, &Crew::new(), &mut tasks[..], factor).expect("threads");
                drop(tasks);
                let halves: Vec<u16> = outputs.0.into_iter().map(F16::to_bits).collect();
                let brains: Vec<u16> = outputs.1.into_iter().map(Bf16::to_bits).collect();
                (halves, brains, bits32(&outputs.2))
            });
            let by = factor.map_or(1.0, |factor| factor.by);
            assert!(found.0.into_iter().eq(halves.iter().map(|x| F16::narrow(x.widen() * by).to_bits())));
            assert!(found.1.into_iter().eq(brains.iter().map(|x| Bf16::narrow(x.widen() * by).to_bits())));
            assert!(found.2.into_iter().eq(singles.iter().map(|x| ((f64::from(*x) * by) as f32).to_bits())));
        }
    }
}

fn strided<'a, T: Element>(elements: &'a [T], layout: &'a Layout) -> View<'a, T> {
    View::new(Memory::Elements(elements), 0, Cow::Borrowed(layout))
}

#[test]
fn work_by_position_finds_its_position_on_every_thread() {
    for len in [1000, LARGE] {
        let data = single(&everyday(11, len));
        let width = 1000;
        let data = &data[..len / width * width];
        let len = data.len();

        // Clips to two numbers and to a lower bound for each row, and scales by a factor for each column.
        let clip = Clip { lo: -20.5, hi: 300.25 };
        let lows = single(&everyday(12, len / width));
        let factors = everyday(13, width);
        let (by_row, by_column, by_none) = (
            Layout::new([Axis { len: len / width, stride: 1 }, Axis { len: width, stride: 0 }]),
            Layout::new([Axis { len: len / width, stride: 0 }, Axis { len: width, stride: 1 }]),
            Layout::new([Axis { len, stride: 0 }]),
        );
        let bounds = Bounds::new(strided(&lows, &by_row), strided(&[700.0], &by_none)).expect("memory");
        let factors_of = Broadcast::new(strided(&factors, &by_column)).expect("memory");
        let each = Factors {
            factors: factors_of,
            kind: FactorKind { is_plain: false, rounding: Rounding::Nearest },
        };
        for in_place in [false, true] {
            let found = everywhere(&|isa| {
                let start =
                    |to: &mut Vec<f32>| if in_place { to.copy_from_slice(data) } else { to.fill(9.0) };
                let source = || (!in_place).then_some(View::Dense(data));
                let [mut a, mut b, mut c] = [0; 3].map(|_| vec![0.0; len]);
                [&mut a, &mut b, &mut c].into_iter().for_each(start);
                let mut task = Task { source: source(), target: Target::Dense(&mut a) };
                apply_elementwise(isa, &Uniform(clip), &mut task).expect("threads");
                let mut task = Task { source: source(), target: Target::Dense(&mut b) };
                apply_elementwise(isa, &bounds, &mut task).expect("threads");
                let mut task = Task { source: source(), target: Target::Dense(&mut c) };
                apply_elementwise(isa, &each, &mut task).expect("threads");
                [a, b, c].map(|found| bits32(&found))
            });
            for (i, x) in data.iter().enumerate() {
                assert_eq!(f32::from_bits(found[0][i]), x.clamp(-20.5, 300.25));
                assert_eq!(f32::from_bits(found[1][i]), x.min(700.0).max(lows[i / width]));
                assert_eq!(f32::from_bits(found[2][i]), (f64::from(*x) * factors[i % width]) as f32);
            }
        }
    }
}

/// The rows of a matrix, clipped in a strided output byte by byte, whose columns they are; in place without a source. With the bits
/// of their norms.
fn clip_strided_rows<T: Real>(
    isa: Isa,
    source: Option<&Slices<'_, T>>,
    data: &[T],
    width: usize,
    limit: f64,
) -> (Vec<T>, Vec<u64>) {
    let (size, height) = (size_of::<T>(), data.len() / width);
    let bytes: Vec<AtomicU8> = (0..size * data.len()).map(|_| AtomicU8::new(1)).collect();
    let place = |at: usize| &bytes[(at % width * height + at / width) * size..];
    if source.is_none() {
        data.iter().enumerate().for_each(|(at, x)| x.store_bytes(place(at)));
    }
    let along = |len: usize, step: usize| Axis { len, stride: (step * size).cast_signed() };
    let output = Target::Strided {
        cells: Cells::Bytes(&bytes),
        swapped: false,
        start: 0,
        layout: Cow::Owned(Layout::new([along(height, 1), along(width, height)])),
        range: 0..data.len(),
    };
    let mut norms = vec![T::Norm::ZERO; height];
    let task = Task { source: source.map(Slices::elements), target: output };
    scale_rows(isa, task, width, Rule::Clip(limit.into()), &mut norms).expect("threads");
    ((0..data.len()).map(|at| T::load_bytes(place(at))).collect(), number_bits(&norms))
}

/// Rows clipped by their own norms. `bits` distinguishes elements, and `nan` is the result for elements of a row with NaN.
fn check_clipped_rows<T: Real + Known>(bits: fn(T) -> u64, nan: u64) {
    // 32-bit and 64-bit outputs are so large that non-temporal stores write them. 16-bit ones are large enough for several threads;
    // tests/contract/test_reproducible.py has larger ones.
    let bytes: usize = if size_of::<T>() == 2 { 8 << 20 } else { 33 << 20 };
    let large = |width: usize| bytes / width / size_of::<T>();
    for (height, width, limit) in [
        (50, 7, 1000.0),
        (1, 3000, 10.0),
        (3000, 1000, 18_000.0),
        (large(2304), 2304, 27_400.0),
        (400_003, 3, 1e3),
        (large(67) | 1, 67, 4700.0),
        (20, CHUNK + 100, 209_100.0),
    ] {
        let mut data: Vec<T> = some(14, height * width);
        data[width - 1] = T::from_float(f64::NAN);
        if height > 99 {
            // Rows whose sums of squares are zero, lose digits or leave the range.
            for (row, x) in [(20, 0.0), (33, f64::INFINITY), (34, 1e300), (35, 1e-300), (36, 1e-320)] {
                data[row * width..(row + 1) * width].fill(T::from_float(x));
            }
        }
        let all = |data: &[T]| -> Vec<u64> { data.iter().map(|x| bits(*x)).collect() };
        let clipped = |row: &[T]| -> Vec<u64> {
            match norm_of_view(Isa::current(), &View::Dense(row), Order::Two).clip_to(limit) {
                None => all(row),
                Some(factor) if factor.by.is_nan() => vec![nan; row.len()],
                Some(factor) => {
                    let product = |x: &T| x.widen() * factor.by * factor.then;
                    row.iter()
                        .map(product)
                        .map(|x| if x.is_nan() { nan } else { bits(T::narrow(x)) })
                        .collect()
                }
            }
        };
        let expected: Vec<u64> = data.chunks(width).flat_map(clipped).collect();
        let untouched = data.chunks(width).zip(expected.chunks(width)).filter(|(a, b)| all(a) == *b).count();
        assert!(height == 1 || (1..height).contains(&untouched), "{height} x {width}: {untouched} untouched");

        let rows = data.chunks(width);
        let norms = rows.clone().map(|row| norm_of_view(Isa::current(), &View::Dense(row), Order::Two));
        let norms = number_bits(&norms.map(|norm| T::Norm::narrow(norm.to_f64())).collect::<Vec<_>>());

        // From rows, from the columns of the transposed matrix, from rows with a NaN between two of them, and in place.
        let turned = transposed(&data, width);
        let pad = |row: &[T]| row.iter().copied().chain([T::from_float(f64::NAN)]).collect::<Vec<_>>();
        let padded: Vec<T> = rows.flat_map(pad).collect();
        let along = |len: usize, step: usize| Layout::new([Axis { len, stride: step.cast_signed() }]);
        let spaced = || Slices::new(Memory::Elements(&padded), 0, along(height, width + 1), along(width, 1));
        let own = everywhere(&|isa| {
            let mut own = vec![T::Norm::ZERO; height];
            norms_into(isa, &spaced(), Order::Two, &mut own).expect("threads");
            number_bits(&own)
        });
        assert!(own == norms, "norms of {height} x {width}");
        let found = everywhere(&|isa| {
            let other = vec![T::ZERO; data.len()];
            let mut outputs = [other.clone(), other.clone(), other, data.clone()];
            let sources = [
                Some(slices(&data, width, false)),
                Some(slices(&turned, height, true)),
                Some(spaced()),
                None,
            ];
            for (source, output) in sources.iter().zip(&mut outputs) {
                clip_rows(isa, source.as_ref(), output, width, limit).expect("threads");
            }
            let mut found = outputs.map(|found| all(&found)).to_vec();
            if width <= BLOCK && data.len() < 2_000_000 {
                for source in &sources {
                    let (clipped, own) = clip_strided_rows(isa, source.as_ref(), &data, width, limit);
                    assert!(own == norms, "norms of strided {height} x {width}");
                    found.push(all(&clipped));
                }
            }
            found
        });
        for found in found {
            assert!(found == expected, "{height} x {width}");
        }
    }
}

/// The rows of all lengths that have kernels of their own, and some others, scaled by each rule as if each were an array.
fn check_rules<T: Real + Known>(bits: fn(T) -> u64) {
    // Most batches are whole. Some have rows that are zeros, or are so small or large that kernels do not scale them.
    const HEIGHT: usize = 101;
    for width in (1..=34).chain([48, 63, 100, 255, 256, 257, 1024, 1025]) {
        let mut data: Vec<T> = some(15, HEIGHT * width);
        for (row, x) in [(3, 0.0), (4, -0.0), (40, 1e-300), (41, 0.0), (99, 1e-310), (100, 1e-40)] {
            data[row * width..(row + 1) * width].fill(T::from_float(x));
        }
        data[7 * width..][..width.div_ceil(2)].fill(T::ZERO);
        (data[50 * width], data[70 * width]) = (T::from_float(f64::NAN), T::from_float(f64::INFINITY));
        let limit = Limit::from(577.0 * (width as f64).sqrt());
        let limits = [
            limit,
            Limit { margin: 1e-6, ..limit },
            Limit { nonfinite: NonFinite::Keep, divisor: 1.5, ..limit },
            Limit { nonfinite: NonFinite::Erase, margin: 1e-6, ..limit },
            0.0.into(),
            1e-320.into(),
            f64::INFINITY.into(),
        ];
        let normalize = [Order::One, Order::Two].map(Rule::Normalize);
        for rule in limits.map(Rule::Clip).into_iter().chain(normalize) {
            let isa = Isa::current();
            let (mut expected, mut norms) = (data.clone(), Vec::new());
            for row in expected.chunks_mut(width) {
                let norm = norm_of_view(isa, &View::Dense(row), rule.order());
                norms.push(T::Norm::narrow(norm.to_f64()));
                if let Some(factor) = rule.factor(norm) {
                    Scale(factor).apply(isa, None, None, row);
                }
            }
            let expected: Vec<u64> = expected.iter().map(|x| bits(*x)).collect();
            let norms = number_bits(&norms);
            for is_in_place in [true, false] {
                everywhere(&|isa| {
                    let mut found =
                        if is_in_place { data.clone() } else { vec![T::from_float(9.0); data.len()] };
                    let source = (!is_in_place).then(|| slices(&data, width, false));
                    let mut own = vec![T::Norm::ZERO; HEIGHT];
                    let output = Target::Dense(&mut found);
                    let task = Task { source: source.as_ref().map(Slices::elements), target: output };
                    scale_rows(isa, task, width, rule, &mut own).expect("threads");
                    assert!(number_bits(&own) == norms, "norms of rows of {width}, {rule:?}");
                    let found: Vec<u64> = found.iter().map(|x| bits(*x)).collect();
                    assert!(found == expected, "rows of {width}, {rule:?}, in place {is_in_place}");
                });
            }
        }
    }
}

/// Norms of rows that overlap in memory.
fn check_windows<T: Real + Known>() {
    for (len, step) in [(3, 1), (700, 1), (1024, 600), (1024, 1), (1025, 1000), (20, 30), (20, 41)] {
        let data: Vec<T> = some(16, 70 * step + len);
        let along = |len, stride: usize| Layout::new([Axis { len, stride: stride.cast_signed() }]);
        let slices = Slices::new(Memory::Elements(&data), 0, along(70, step), along(len, 1));
        for order in [Order::One, Order::Two] {
            let found = everywhere(&|isa| slice_norms(isa, &slices, order).expect("memory"));
            for (at, found) in found.into_iter().enumerate() {
                let row = View::Dense(&data[at * step..at * step + len]);
                assert_eq!(found, norm_of_view(Isa::current(), &row, order), "{len} elements, step {step}");
            }
        }
    }
}

#[test]
fn rows_that_overlap_have_their_norms() {
    check_windows::<f32>();
    check_windows::<f64>();
    check_windows::<F16>();
    check_windows::<Bf16>();
}

#[test]
fn rows_of_all_lengths_are_scaled_like_arrays() {
    check_rules::<f32>(|x| x.to_bits().into());
    check_rules::<f64>(f64::to_bits);
    check_rules::<F16>(|x| x.to_bits().into());
    check_rules::<Bf16>(|x| x.to_bits().into());
}

#[test]
fn rows_are_clipped_by_their_own_norms() {
    check_clipped_rows::<f32>(|x| x.to_bits().into(), 0x7fc0_0000);
    check_clipped_rows::<f64>(f64::to_bits, 0x7ff8_0000_0000_0000);
    check_clipped_rows::<F16>(|x| x.to_bits().into(), 0x7e00);
    check_clipped_rows::<Bf16>(|x| x.to_bits().into(), 0x7fc0);
}

/// The bits of numbers as float64; the same for all NaNs.
fn number_bits<N: Real>(numbers: &[N]) -> Vec<u64> {
    let numbers = numbers.iter().map(|number| number.widen());
    numbers.map(|number| if number.is_nan() { 0 } else { number.to_bits() }).collect()
}

/// All lists of bits must be the expected one.
fn assert_all(found: &[Vec<u64>], expected: &[u64], what: &str) {
    for found in found {
        let wrong = found.iter().zip(expected).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{what}");
    }
}

/// Columns clipped or normalized by their own norms, in matrices that follow each other. `extremes` are numbers whose squares, or whose
/// factors, leave float64's range, or infinities and NaN.
fn check_clipped_columns<T: Real + Known>(bits: fn(T) -> u64, nan: u64, extremes: &[T]) {
    let all = |data: &[T]| -> Vec<u64> { data.iter().map(|x| bits(*x)).collect() };
    // 33 MiB, which non-temporal stores write if rows have 2 KiB or more.
    let large = |rest: usize| (33usize << 20) / rest / size_of::<T>();
    // Fewer columns than one strip, some strips, many; one row, more than are folded at once.
    for (outer, len, inner, limit) in [
        (1, 64, 129, 4000.0),
        (3, 5, 1024, 1250.0),
        (2, 131, 1500, 6600.0),
        (700, 1, 200, 500.0),
        (1, 70, 2001, 0.0),
        (1, 3, 5000, 1e-320),
        (2, 33, large(2 * 33) | 1, 3300.0),
        // Several narrow matrices in a strip.
        (701, 5, 4, 1250.0),
        (40, 70, 31, 4800.0),
        (3, 131, 100, 6600.0),
        (large(3 * 350) | 1, 3, 350, 1000.0),
    ] {
        let mut orders = vec![Order::One, Order::Two, Order::Max];
        orders.retain(|order| is_column::<T>(outer * inner, [len, inner], *order));
        assert_eq!(orders.len(), if len <= 64 { 3 } else { 2 }, "{len} x {inner}");
        // The other orders differ only within a strip, so large matrices would only take time.
        orders.retain(|order| *order == Order::Two || outer * len * inner < 1 << 19);
        let mut data: Vec<T> = some(15, outer * len * inner);
        data.iter_mut().enumerate().filter(|(i, _)| i % inner % 7 == 5).for_each(|(_, x)| *x = T::ZERO);
        for (i, extreme) in extremes.iter().enumerate() {
            // In columns of their own, and beside others in the same strip; the first and the last column too.
            let column = if i == 0 { 0 } else { inner - i * 11 % inner };
            data[(outer - 1) * len * inner + (i % len) * inner + column % inner] = *extreme;
        }
        let block = Slices::new(
            Memory::Elements(&data),
            0,
            Layout::new([
                Axis { len: outer, stride: (len * inner).cast_signed() },
                Axis { len: inner, stride: 1 },
            ]),
            Layout::new([Axis { len, stride: inner.cast_signed() }]),
        );
        let norms_of = |order| slice_norms(Isa::current(), &block, order).expect("memory");
        let norms = norms_of(Order::Two);
        let zeros =
            norms.iter().enumerate().filter(|(at, norm)| at % inner % 7 == 5 && norm.is_zero()).count();
        assert!(inner < 6 || zeros + extremes.len() >= outer * ((inner + 1) / 7), "{zeros} columns of zeros");
        let scaled = |rule: Rule| {
            let mut expected = all(&data);
            for (at, norm) in norms_of(rule.order()).iter().enumerate() {
                let Some(factor) = rule.factor(*norm) else { continue };
                for row in 0..len {
                    let place = (at / inner * len + row) * inner + at % inner;
                    let x = data[place].widen();
                    let product = x * factor.by * factor.then;
                    let fresh = factor.by.is_nan() || (product.is_nan() && !x.is_nan());
                    expected[place] = if fresh { nan } else { bits(T::narrow(product)) };
                }
            }
            expected
        };
        let clipped = scaled(Rule::Clip(limit.into()));
        let pad = |row: &[T]| row.iter().copied().chain([T::ZERO]).collect::<Vec<_>>();
        let padded: Vec<T> =
            data.chunks(len * inner).rev().flat_map(|m| m.chunks(inner).flat_map(pad)).collect();
        let (found, normalized) = everywhere(&|isa| {
            let [mut a, mut b] = [vec![T::ZERO; data.len()], data.clone()];
            clip_columns(isa, Some(&data), &mut a, [len, inner], limit).expect("threads");
            clip_columns(isa, None, &mut b, [len, inner], limit).expect("threads");
            // Rows that end before the next ones begin, in reverse order of the matrices.
            let (mut from_strided, matrix) = (vec![T::ZERO; data.len()], len * (inner + 1));
            let along = |len, step: usize| Axis { len, stride: step.cast_signed() };
            let first = Axis { len: outer, stride: -matrix.cast_signed() };
            let layout = Layout::new([first, along(len, inner + 1), along(inner, 1)]);
            let start = (matrix * (outer - 1)).cast_signed();
            let strided = View::new(Memory::Elements(&padded), start, Cow::Owned(layout));
            assert!(matches!(strided, View::Strided { .. }));
            scale_columns::<T>(
                isa,
                Some(&strided),
                &mut from_strided,
                [len, inner],
                Rule::Clip(limit.into()),
                &mut [],
            )
            .expect("threads");
            let normalized = |order: &Order| {
                let (mut c, mut d, rule) = (vec![T::ZERO; data.len()], data.clone(), Rule::Normalize(*order));
                let [mut own, mut again] = [(); 2].map(|()| vec![T::Norm::ZERO; norms.len()]);
                let source = View::Dense(data.as_slice());
                scale_columns::<T>(isa, Some(&source), &mut c, [len, inner], rule, &mut own)
                    .expect("threads");
                scale_columns::<T>(isa, None, &mut d, [len, inner], rule, &mut again).expect("threads");
                ([c, d].map(|found| all(&found)), [own, again].map(|norms| number_bits(&norms)))
            };
            ([a, b, from_strided].map(|found| all(&found)), orders.iter().map(normalized).collect::<Vec<_>>())
        });
        let check = |found: &[Vec<u64>], expected: &[u64], rule: &str| {
            assert_all(found, expected, &format!("{outer} x {len} x {inner}, {rule}"));
        };
        check(&found, &clipped, &format!("limit {limit:e}"));
        for (order, (found, found_norms)) in orders.iter().zip(normalized) {
            check(&found, &scaled(Rule::Normalize(*order)), &format!("{order:?}"));
            let expected: Vec<_> =
                norms_of(*order).iter().map(|norm| T::Norm::narrow(norm.to_f64())).collect();
            check(&found_norms, &number_bits(&expected), &format!("norms, {order:?}"));
        }
    }
}

#[test]
fn columns_are_clipped_by_their_own_norms() {
    let (inf, nan) = (f32::INFINITY, f32::from_bits(0xffc1_2345));
    check_clipped_columns::<f32>(
        |x| x.to_bits().into(),
        0x7fc0_0000,
        &[nan, inf, 0.0, -0.0, 1e-45, f32::MAX, -inf],
    );
    let (inf, nan) = (f64::INFINITY, f64::from_bits(0xfff8_1234_0000_0001));
    check_clipped_columns::<f64>(
        f64::to_bits,
        0x7ff8_0000_0000_0000,
        &[nan, inf, 1e200, f64::MAX, 5e-324, 1e-200, -inf],
    );
    check_clipped_columns::<f64>(f64::to_bits, 0x7ff8_0000_0000_0000, &[]);
}

/// Columns of complex numbers clipped and normalized by their own norms. Both parts of a number get the factor of its column.
fn check_complex_columns<T: Real + Known>(bits: fn(T) -> u64)
where
    Complex<T>: Scalable<Part = T> + Element<Norm = T::Norm>,
{
    for (outer, len, inner, limit) in
        [(1, 64, 129, 5e3), (2, 131, 1500, 9e3), (700, 3, 5, 1500.0), (1, 1, 70_001, 900.0)]
    {
        let mut parts: Vec<T> = some(16, 2 * outer * len * inner);
        for row in 0..len {
            // A column of zeros, one with a NaN in one part, and one with infinity.
            let place = 2 * (row * inner + 1);
            parts[place..place + 2].fill(T::ZERO);
        }
        parts[5] = T::from_float(f64::NAN);
        parts[6] = T::from_float(f64::INFINITY);
        let pad = |row: &[T]| row.iter().copied().chain([T::ZERO]).collect::<Vec<_>>();
        let padded: Vec<T> = parts.chunks(2 * inner).flat_map(pad).collect();
        let data = Complex::<T>::of_parts(&parts);
        let along = |len: usize, step: usize| Axis { len, stride: step.cast_signed() };
        let kept = Layout::new([along(outer, len * inner), along(inner, 1)]);
        let slices = Slices::new(Memory::Elements(data), 0, kept, Layout::new([along(len, inner)]));
        let norms = slice_norms(Isa::current(), &slices, Order::Two).expect("memory");
        for rule in [Rule::Clip(limit.into()), Rule::Normalize(Order::Two)] {
            let found = everywhere(&|isa| {
                let [mut new, mut own] = [vec![T::ZERO; parts.len()], parts.clone()];
                let mut found_norms = vec![T::Norm::ZERO; norms.len()];
                let (source, shape) = (View::Dense(&parts), [len, inner]);
                scale_columns::<Complex<T>>(isa, Some(&source), &mut new, shape, rule, &mut found_norms)
                    .expect("threads");
                scale_columns::<Complex<T>>(isa, None, &mut own, shape, rule, &mut []).expect("threads");
                let (mut from_strided, along) = (vec![T::ZERO; parts.len()], |len: usize, step: usize| {
                    Axis { len, stride: step.cast_signed() }
                });
                let layout = Layout::new([along(outer * len, 2 * inner + 1), along(2 * inner, 1)]);
                let strided = View::new(Memory::Elements(&padded), 0, Cow::Owned(layout));
                scale_columns::<Complex<T>>(isa, Some(&strided), &mut from_strided, shape, rule, &mut [])
                    .expect("threads");
                let all =
                    [new, own, from_strided].map(|found| found.into_iter().map(bits).collect::<Vec<_>>());
                (all, number_bits(&found_norms))
            });
            let expected_norms: Vec<_> = norms.iter().map(|norm| T::Norm::narrow(norm.to_f64())).collect();
            assert_eq!(found.1, number_bits(&expected_norms));
            for (at, x) in parts.iter().enumerate() {
                let (row, column) = (at / 2 / inner, at / 2 % inner);
                let factor = rule.factor(norms[row / len * inner + column]);
                let product = |factor: Factor| x.widen() * factor.by * factor.then;
                for found in &found.0 {
                    match factor {
                        Some(factor) if product(factor).is_nan() => {
                            assert!(T::from_bytes(&found[at].to_ne_bytes(), false).is_nan());
                        }
                        Some(factor) => assert_eq!(found[at], bits(T::narrow(product(factor)))),
                        None => assert_eq!(found[at], bits(*x)),
                    }
                }
            }
        }
    }
}

#[test]
fn columns_of_complex_numbers_are_clipped_by_their_own_norms() {
    check_complex_columns::<f32>(|x| x.to_bits().into());
    check_complex_columns::<f64>(f64::to_bits);
}

#[test]
fn norms_of_short_columns_are_sums_of_their_rows() {
    // Columns of several pieces, with one sum each and with one more.
    for (rows, columns) in [(1, 9001), (3, 4097), (63, 5003), (64, 8192), (65, 4099), (64, 70_001)] {
        let data: Vec<f32> = some(22, rows * columns);
        let along = |len: usize, stride: usize| Layout::new([Axis { len, stride: stride.cast_signed() }]);
        let slices = Slices::new(Memory::Elements(&data), 0, along(columns, 1), along(rows, columns));
        let column = |at: usize| data[at..].iter().step_by(columns).map(|x| f64::from(*x).abs());
        for p in [1.0, 2.0, f64::INFINITY] {
            let found: Vec<f64> =
                everywhere(&|isa| slice_norms(isa, &slices, Order::of(p)).expect("threads"))
                    .into_iter()
                    .map(Scaled::to_f64)
                    .collect();
            assert_eq!(found.len(), columns);
            for (at, found) in found.into_iter().enumerate() {
                // One row after the other, folded every 64.
                let folded = |terms: Vec<f64>| -> f64 {
                    terms.chunks(64).map(|run| run.iter().fold(0.0, |sum, x| sum + x)).sum()
                };
                let expected = if p == 1.0 {
                    folded(column(at).collect())
                } else if p == 2.0 {
                    folded(column(at).map(|x| x * x).collect()).sqrt()
                } else {
                    column(at).fold(0.0, f64::max)
                };
                assert_eq!(found.to_bits(), expected.to_bits(), "{rows} x {columns}, p {p}, column {at}");
            }
        }
    }
}
