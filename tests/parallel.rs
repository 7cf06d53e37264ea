//! Norms and writes on any number of threads: the same bits, and the right ones.

#![allow(clippy::cast_possible_wrap, clippy::expect_used, missing_docs, reason = "a test")]

mod common;

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use _core::element::Real;
use _core::isa::Isa;
use _core::kernel::clip::Clip;
use _core::kernel::power::Power;
use _core::kernel::sum::{BLOCK, Term};
use _core::parallel::perform::{AnyTask, Task, clip_rows, perform, scale};
use _core::parallel::reduce::{AnyView, CHUNK, Order, norm, norm_of_view, norms};
use _core::parallel::{MAX_THREADS, set_threads, threads};
use _core::scaled::{Factor, Scaled, power_of_two};
use _core::walk::{Axis, Bounds, Cells, Factors, Layout, Memory, Slices, Target, Uniform, View};
use common::Random;

/// Past the size at which work is shared between threads, and no multiple of anything.
const LARGE: usize = 3_000_017;
const ORDERS: [f64; 6] = [1.0, 2.0, f64::INFINITY, 1.5, 3.7, 0.5];

/// The number of threads belongs to the process: one test at a time sets it.
static SETTING: Mutex<()> = Mutex::new(());

/// What `work` gives for several numbers of threads and on all instruction sets: one and the same.
#[track_caller]
fn everywhere<R: PartialEq + Debug>(work: impl Fn(Isa) -> R) -> R {
    let _setting = SETTING.lock().unwrap_or_else(PoisonError::into_inner);
    set_threads(1);
    let first = work(Isa::current());
    for count in [2, 7, 3] {
        set_threads(count);
        assert_eq!(threads(), Ok(count));
        assert!(work(Isa::current()) == first, "{count} threads");
    }
    for isa in Isa::available() {
        assert!(work(isa) == first, "{}", isa.name());
    }
    first
}

/// NaN equals NaN here.
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

/// A norm, and what it is by the contract: right to 1e-14, or to 1e-14/p.
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

fn check_norms<T: Real>(data: &[T])
where
    for<'a> AnyView<'a>: From<View<'a, T>>,
{
    let wide: Vec<f64> = data.iter().map(|x| x.widen()).collect();
    for p in ORDERS {
        let order = Order::of(p);
        let found = everywhere(|isa| {
            let found = norm(isa, &[View::Dense(data).into()], order).expect("threads");
            assert_eq!(key(found), key(norm_of_view(isa, &View::Dense(data), order)));
            found
        });
        assert_norm(found, &wide, p);
    }
}

#[test]
fn orders_are_told_apart() {
    assert_eq!(ORDERS.map(Order::of)[..3], [Order::One, Order::Two, Order::Max]);
    assert_eq!(Order::of(1.5), Order::Power(1.5));
}

#[test]
fn settings_stay_in_their_range() {
    let _setting = SETTING.lock().unwrap_or_else(PoisonError::into_inner);
    for (asked, given) in [(0, 1), (1, 1), (5, 5), (MAX_THREADS + 1, MAX_THREADS)] {
        set_threads(asked);
        assert_eq!(threads(), Ok(given));
    }
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
    check_norms(&everyday(2, 1_000_003)); // 8 MB
}

/// The documented order, down to the last addition: block sums to chunks, chunks to arrays, arrays to the
/// sum, each with the error carried along.
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
        let total = Self::of_all(list.iter().map(|array| {
            let terms: Vec<f64> = array.iter().map(|x| term(*x)).collect();
            Self::of_array(&terms)
        }));
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
        let power = Power::new(1.5, if peak > 0.0 { peak } else { 1.0 });
        let expected = [
            Scaled::new(Naive::of_list(&arrays, f64::abs), 0),
            Scaled::new(Naive::of_list(&arrays, |x| x * x).sqrt(), 0),
            Scaled::new(peak, 0),
            if peak > 0.0 {
                power.root(peak, Naive::of_list(&arrays, |x| power.of(x)))
            } else {
                Scaled::ZERO
            },
        ];
        let found = everywhere(|isa| {
            let views: Vec<AnyView<'_>> = arrays.iter().map(|array| View::Dense(&array[..]).into()).collect();
            [1.0, 2.0, f64::INFINITY, 1.5].map(|p| norm(isa, &views, Order::of(p)).expect("threads"))
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
            let [strided, dense] = everywhere(|isa| {
                let layout = Layout::new([Axis { len, stride }]);
                let view = View::new(Memory::Elements(&data), start, Cow::Owned(layout));
                [view, View::Dense(copy)]
                    .map(|view| norm(isa, &[view.into()], Order::of(p)).expect("threads"))
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
                let found = everywhere(|isa| {
                    let views = [View::Dense(&wide[..]).into(), View::Dense(&narrow[..]).into()];
                    norm(isa, &views, Order::of(p)).expect("threads")
                });
                assert_norm(found, &all, p);
            }
        }
    }
}

#[test]
fn nan_wins_over_infinity() {
    let nan = f64::from_bits(0xfff8_0000_0000_0077);
    for len in [3, 100_000, LARGE / 2] {
        let mut data = everyday(5, len);
        for p in ORDERS {
            // As one array and as two: what is found in the first must survive the second.
            let found = |data: &[f64]| {
                everywhere(|isa| {
                    let (low, high) = data.split_at(len / 3);
                    let lists = [vec![data], vec![low, high]];
                    lists.map(|list| {
                        let views: Vec<AnyView<'_>> =
                            list.into_iter().map(|x| View::Dense(x).into()).collect();
                        let found = norm(isa, &views, Order::of(p)).expect("threads");
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

/// A matrix in memory by rows, and its slices: its rows or its columns.
fn slices<T>(data: &[T], width: usize, columns: bool) -> Slices<'_, T> {
    let rows = Layout::new([Axis { len: data.len() / width, stride: width as isize }]);
    let columns_of = Layout::new([Axis { len: width, stride: 1 }]);
    let (kept, reduced) = if columns { (columns_of, rows) } else { (rows, columns_of) };
    Slices { memory: Memory::Elements(data), start: 0, kept, reduced }
}

fn transposed<T: Copy>(data: &[T], width: usize) -> Vec<T> {
    (0..width).flat_map(|column| data.iter().skip(column).step_by(width).copied()).collect()
}

fn check_columns<T: Real>(data: &[T], width: usize, orders: &[f64])
where
    for<'a> AnyView<'a>: From<View<'a, T>>,
{
    let turned = transposed(data, width);
    let height = data.len() / width;
    for &p in orders {
        let order = Order::of(p);
        let of = |isa, slices: &Slices<'_, T>| norms(isa, slices, order).expect("threads");
        let columns = everywhere(|isa| of(isa, &slices(data, width, true)));
        let rows = everywhere(|isa| of(isa, &slices(&turned, height, false)));
        assert_eq!((columns.len(), rows.len()), (width, width));
        for (at, (column, row)) in columns.iter().zip(&rows).enumerate() {
            let slice = &turned[at * height..][..height];
            // Rows are norms like any other.
            assert_eq!(*row, norm_of_view(Isa::current(), &View::Dense(slice), order));
            // Columns have an order of their own.
            let wide: Vec<f64> = slice.iter().map(|x| x.widen()).collect();
            assert_norm(*column, &wide, p);
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
    // And infinite ones, or those with NaN, do not reach their neighbours.
    data[20 * width + 9] = f64::INFINITY;
    data[20 * width + 11] = f64::INFINITY;
    data[30 * width + 11] = f64::NAN;
    for p in [1.0, 2.0, f64::INFINITY] {
        let found = everywhere(|isa| {
            let found = norms(isa, &slices(&data, width, true), Order::of(p)).expect("threads");
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
            let slices = Slices {
                memory: Memory::Elements(&[1f32; 9]),
                start: 0,
                kept: axis(kept),
                reduced: axis(reduced),
            };
            assert_eq!(everywhere(|isa| norms(isa, &slices, Order::of(p))), Ok(vec![Scaled::ZERO; count]));
        }
    }
}

#[test]
fn scaling_a_list_writes_every_element_once() {
    let factor = Factor { by: 1.0 / 3.0, then: 1.0 };
    for size in [100, LARGE / 6] {
        // Float32 from a source, float32 in place, float64 from a source; float32 in between others; many
        // small ones.
        let (a, c) = (single(&everyday(9, 3 * size)), everyday(10, size));
        let small: Vec<Vec<f32>> = (0..500).map(|i| single(&everyday(i, size / 500 + 1))).collect();
        for factor in [Some(factor), None] {
            let narrow = |x: f32| factor.map_or(x, |f| (f64::from(x) * f.by) as f32).to_bits();
            let found = everywhere(|isa| {
                let mut copy = vec![9f32; a.len()];
                let mut own = a.clone();
                let mut wide = vec![9f64; c.len()];
                let mut copies: Vec<Vec<f32>> = small.iter().map(|x| vec![9.0; x.len()]).collect();
                let cells: Vec<AtomicU32> = (0..2 * a.len() as u32).map(AtomicU32::new).collect();
                let layout = Layout::new([Axis { len: a.len(), stride: -2 }]);
                let strided = Target::Strided {
                    cells: Cells::Elements(&cells),
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
                scale(isa, &mut tasks, factor).expect("threads");
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

#[test]
fn work_by_position_finds_its_position_on_every_thread() {
    for len in [1000, LARGE] {
        let data = single(&everyday(11, len));
        let width = 1000;
        let data = &data[..len / width * width];
        let len = data.len();

        // Clipping to two numbers, to a smallest value for each row, and by a factor for each column.
        let clip = Clip { lo: -20.5, hi: 300.25 };
        let lows = single(&everyday(12, len / width));
        let factors = everyday(13, width);
        let (by_row, by_column, by_none) = (
            Layout::new([Axis { len: len / width, stride: 1 }, Axis { len: width, stride: 0 }]),
            Layout::new([Axis { len: len / width, stride: 0 }, Axis { len: width, stride: 1 }]),
            Layout::new([Axis { len, stride: 0 }]),
        );
        let bounds = Bounds {
            lo: View::new(Memory::Elements(&lows), 0, Cow::Borrowed(&by_row)),
            hi: View::new(Memory::Elements(&[700.0]), 0, Cow::Borrowed(&by_none)),
        };
        let each = Factors(View::new(Memory::Elements(&factors), 0, Cow::Borrowed(&by_column)));
        for in_place in [false, true] {
            let found = everywhere(|isa| {
                let start =
                    |to: &mut Vec<f32>| if in_place { to.copy_from_slice(data) } else { to.fill(9.0) };
                let source = || (!in_place).then_some(View::Dense(data));
                let [mut a, mut b, mut c] = [0; 3].map(|_| vec![0.0; len]);
                [&mut a, &mut b, &mut c].into_iter().for_each(start);
                let mut task = Task { source: source(), target: Target::Dense(&mut a) };
                perform(isa, &Uniform(clip), &mut task).expect("threads");
                let mut task = Task { source: source(), target: Target::Dense(&mut b) };
                perform(isa, &bounds, &mut task).expect("threads");
                let mut task = Task { source: source(), target: Target::Dense(&mut c) };
                perform(isa, &each, &mut task).expect("threads");
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

#[test]
fn rows_are_clipped_by_their_own_norms() {
    for (height, width, limit) in
        [(50, 7, 1000.0), (1, 3000, 10.0), (3000, 1000, 18_000.0), (1_000_003, 3, 1e3)]
    {
        let mut data = single(&everyday(14, height * width));
        data[width - 1] = f32::NAN;
        let clipped = |row: &[f32]| -> Vec<f32> {
            match norm_of_view(Isa::current(), &View::Dense(row), Order::Two).clip_to(limit) {
                None => row.to_vec(),
                Some(factor) if factor.by.is_nan() => vec![f32::from_bits(0x7fc0_0000); row.len()],
                Some(factor) => {
                    row.iter().map(|x| (f64::from(*x) * factor.by * factor.then) as f32).collect()
                }
            }
        };
        let expected: Vec<f32> = data.chunks(width).flat_map(clipped).collect();
        let same = |a: &[f32], b: &[f32]| bits32(a) == bits32(b);
        let untouched = data.chunks(width).zip(expected.chunks(width)).filter(|(a, b)| same(a, b)).count();
        assert!(height == 1 || (1..height).contains(&untouched), "{height} x {width}: {untouched} untouched");

        // From rows, from the columns of the transposed matrix, and in place.
        let turned = transposed(&data, width);
        let found = everywhere(|isa| {
            let mut all = [vec![9f32; data.len()], vec![9f32; data.len()], data.clone()];
            let sources = [Some(slices(&data, width, false)), Some(slices(&turned, height, true)), None];
            for (source, output) in sources.iter().zip(&mut all) {
                clip_rows(isa, source.as_ref(), output, width, limit).expect("threads");
            }
            all.map(|found| bits32(&found))
        });
        for found in found {
            assert!(found == bits32(&expected), "{height} x {width}");
        }
    }
}
