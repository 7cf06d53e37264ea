//! The kernels at every instruction set against plain loops and against memory bandwidth.
//!
//! `cargo bench --features bench [-- FILTER]`
//!
//! A group is an operation, a dtype and a size: 16 KiB (in the L1 cache), 512 KiB (in the L2 cache) or 64 MiB (in memory). It
//! has a line for each implementation: the kernel at each level of this CPU, on one thread; a plain iterator, as the compiler
//! compiles it for any CPU; and that iterator on all threads by rayon, where there is enough to share. Dtypes that no kernel
//! sums directly have a line `norm` instead of `kernel`: the whole norm, on one thread. The groups `floor` measure how fast
//! memory is read, scaled in place and copied, by plain and by non-temporal stores (`streaming`). `norm` is the complete path
//! of a norm on all threads. GB/s counts the bytes that are read and written; a plain store to memory also reads it first,
//! which is not counted.
//!
//! The last lines compare two implementations in turns, so that both see the same conditions: the norm with a plain read, and
//! 16-bit dtypes with float32. Trust these ratios, within one run, and not times from different runs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use _core::element::{Bf16, Bool, Complex, Element, F16, Ordered, Real};
use _core::isa::{Isa, Level, Op};
use _core::kernel::clip::Clip;
use _core::kernel::map::{AnyChange, Apply, Map};
use _core::kernel::max::MaxAbs;
use _core::kernel::power::{Power, PowerTerms};
use _core::kernel::scale::Scale;
use _core::kernel::sum::{Abs, Square, Sum};
use _core::parallel;
use _core::parallel::Crew;
use _core::parallel::reduce::{AnyView, Order, norm_of_view, norm_of_views};
use _core::scaled::{Factor, Scaled};
use _core::walk::View;
use criterion::{Criterion, SamplingMode, Throughput};
use rayon::prelude::*;

/// Bytes of an array that stays in the L1 cache, of one that stays in the L2 cache, and of one that no cache holds.
const SIZES: [(usize, &str); 3] = [INNERMOST, (512 << 10, "512KiB"), MEMORY];
const INNERMOST: (usize, &str) = (16 << 10, "16KiB");
const MEMORY: (usize, &str) = (64 << 20, "64MiB");
const PAST_CACHE: usize = MEMORY.0;
/// Bytes per job of a thread, where the benchmark itself shares work.
const SHARE: usize = 512 << 10;
/// Numbers lie between this and its negative.
const PEAK: f64 = 100.0;
/// An exponent without a simpler formula.
const P: f64 = 3.7;
/// Exponents with a simpler formula.
const SIMPLE: [f64; 4] = [0.5, 1.5, 3.0, 4.0];

/// Reads all elements, and computes just enough that the compiler keeps the reads.
struct Read<'a>(&'a [f32]);

impl Op for Read<'_> {
    type Output = u32;
    #[inline(always)]
    fn eval<L: Level>(self, _: L) -> u32 {
        let mut all = 0;
        for x in self.0 {
            all ^= x.to_bits();
        }
        all
    }
}

/// Scales all elements in place, in float32.
struct Multiply<'a>(&'a mut [f32], f32);

impl Op for Multiply<'_> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, _: L) {
        for x in self.0 {
            *x *= self.1;
        }
    }
}

/// Copies whole cache lines by non-temporal stores, and the rest by plain ones.
#[cfg(target_arch = "x86_64")]
fn stream(to: &mut [f32], from: &[f32]) {
    use std::arch::x86_64::{__m128i, _mm_sfence, _mm_stream_si128};

    #[repr(C, align(64))]
    struct Line([__m128i; 4]);

    #[expect(unsafe_code, reason = "the compiler has no such store in plain Rust")]
    // SAFETY: any bits are a `Line`.
    let (head, lines, tail) = unsafe { to.align_to_mut::<Line>() };
    let (first, from) = from.split_at(head.len());
    let (body, last) = from.split_at(lines.len() * 16);
    head.copy_from_slice(first);
    tail.copy_from_slice(last);
    for (line, from) in lines.iter_mut().zip(body.as_chunks::<4>().0.as_chunks::<4>().0) {
        for (to, from) in line.0.iter_mut().zip(from) {
            #[expect(unsafe_code, reason = "see above")]
            // SAFETY: the reference is to 16 bytes at a multiple of 16, and four float32 are as many bytes.
            unsafe {
                _mm_stream_si128(to, std::mem::transmute::<[f32; 4], __m128i>(*from));
            }
        }
    }
    #[expect(unsafe_code, reason = "see above")]
    // SAFETY: every CPU of this architecture has the instruction.
    unsafe {
        _mm_sfence();
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(to: &mut [f32], from: &[f32]) {
    to.copy_from_slice(from);
}

/// A benchmark's view of an element: making one, and the loops to compare with.
trait Plain: Element {
    /// An element near `x`.
    fn near(x: f64) -> Self;
    fn size(self) -> f64;
    fn square(self) -> f64 {
        self.size() * self.size()
    }
}

/// The loops to compare with, for a floating-point element.
trait Scalable: Plain + Real {
    fn times(self, by: Self) -> Self;
}

macro_rules! plain {
    ($($t:ty: |$x:ident| $size:expr;)*) => {
        $(impl Plain for $t {
            fn near(x: f64) -> Self { Self::from_float(x) }
            fn size(self) -> f64 {
                let $x = self;
                $size
            }
        })*
    };
}
plain! {
    F16: |x| x.widen().abs();
    Bf16: |x| x.widen().abs();
    f32: |x| f64::from(x).abs();
    f64: |x| x.abs();
    i8: |x| x.unsigned_abs().into();
    i32: |x| x.unsigned_abs().into();
    i64: |x| x.unsigned_abs() as f64;
    u16: |x| x.into();
}

impl Plain for Bool {
    fn near(x: f64) -> Self {
        Self::from_bytes(&[u8::from(x > 0.0)], false)
    }
    fn size(self) -> f64 {
        if self == Self::ZERO { 0.0 } else { 1.0 }
    }
}

macro_rules! plain_complex {
    ($($part:ty),*) => {
        $(impl Plain for Complex<$part> {
            fn near(x: f64) -> Self { [x as $part, (PEAK - x.abs()) as $part] }
            fn size(self) -> f64 { Plain::square(self).sqrt() }
            fn square(self) -> f64 {
                let (re, im) = (f64::from(self[0]), f64::from(self[1]));
                re * re + im * im
            }
        })*
    };
}
plain_complex!(f32, f64);

macro_rules! scalable {
    ($($t:ty: |$x:ident, $by:ident| $times:expr;)*) => {
        $(impl Scalable for $t {
            fn times(self, by: Self) -> Self {
                let ($x, $by) = (self, by);
                $times
            }
        })*
    };
}
scalable! {
    F16: |x, by| Self::from_f64(x.widen() * by.widen());
    Bf16: |x, by| Self::from_f64(x.widen() * by.widen());
    f32: |x, by| x * by;
    f64: |x, by| x * by;
}

/// Random numbers without NaN and zeros (for dtypes that have fractions). They repeat after more elements than any branch
/// predictor learns.
fn numbers<T: Plain>(bytes: usize) -> Vec<T> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        T::near(((state >> 32) as f64 / f64::from(1_u32 << 31) - 1.0) * PEAK)
    };
    let some: Vec<T> = std::iter::repeat_with(next).take((1 << 20) / size_of::<T>()).collect();
    some.iter().copied().cycle().take(bytes / size_of::<T>()).collect()
}

/// Measures `ways` of moving `$bytes` bytes; each is a name and a closure.
macro_rules! group {
    ($criterion:expr, $name:expr, $bytes:expr, |$add:ident| $ways:expr) => {{
        let mut group = $criterion.benchmark_group($name);
        // Linear sampling would take 55 runs of a long benchmark.
        let mode = if $bytes < PAST_CACHE { SamplingMode::Linear } else { SamplingMode::Flat };
        group.sampling_mode(mode).throughput(Throughput::Bytes($bytes as u64));
        macro_rules! $add {
            ($way:expr, $run:expr) => {
                group.bench_function($way, |bencher| bencher.iter(|| $run));
            };
        }
        $ways;
        group.finish();
    }};
}

/// An operation in three implementations. The iterator is given as its first call, plain and by rayon, and the rest of the
/// chain.
macro_rules! compare {
    (
        $criterion:expr, $name:expr, $dtype:expr, $size:expr, passes: $passes:literal;
        $way:literal: |$isa:ident| $run:expr;
        $data:ident.[$iter:ident | $par_iter:ident]() $($chain:tt)+
    ) => {{
        let (bytes, size) = $size;
        group!($criterion, format!("{}/{}/{size}", $name, $dtype), bytes * $passes, |add| {
            for $isa in Isa::available() {
                add!(format!("{}, {}", $way, $isa.name()), $run);
            }
            add!("iterator", black_box(&mut $data).$iter() $($chain)+);
            if bytes >= PAST_CACHE {
                add!("rayon", black_box(&mut $data).$par_iter() $($chain)+);
            }
        });
    }};
}

/// The kernels of norms of elements that are summed directly.
fn sums<T: Scalable>(criterion: &mut Criterion) {
    let dtype = T::DTYPE.name();
    for size in SIZES {
        let mut data = numbers::<T>(size.0);
        let power = Power::new(P, Scaled::new(black_box(PEAK), 0));
        let mut terms = vec![0.0; size.0];

        compare!(criterion, "sum_of_squares", dtype, size, passes: 1;
            "kernel": |isa| isa.run(Sum { data: black_box(&data), term: Square });
            data.[iter | par_iter]().map(|x| Plain::square(*x)).sum::<f64>());
        compare!(criterion, "sum_of_magnitudes", dtype, size, passes: 1;
            "kernel": |isa| isa.run(Sum { data: black_box(&data), term: Abs });
            data.[iter | par_iter]().map(|x| x.size()).sum::<f64>());
        compare!(criterion, "sum_of_powers", dtype, size, passes: 1;
            "kernel": |isa| {
                isa.run(PowerTerms { from: black_box(&data), to: &mut terms, power });
                isa.run(Sum { data: &terms, term: Abs })
            };
            data.[iter | par_iter]().map(|x| x.size().powf(P)).sum::<f64>());
    }
}

fn largest<T: Plain>(criterion: &mut Criterion)
where
    T::Magnitude: Sync,
{
    for size in SIZES {
        let mut data = numbers::<T>(size.0);
        compare!(criterion, "largest_magnitude", T::DTYPE.name(), size, passes: 1;
            "kernel": |isa| isa.run(MaxAbs(black_box(&data)));
            data.[iter | par_iter]().map(|x| x.magnitude()).max());
    }
}

/// Norms of dtypes that are converted first.
fn norms<T: Plain>(criterion: &mut Criterion) {
    let dtype = T::DTYPE.name();
    for size in SIZES {
        let mut data = numbers::<T>(size.0);
        compare!(criterion, "sum_of_squares", dtype, size, passes: 1;
            "norm": |isa| norm_of_view(isa, &View::Dense(black_box(&data)), Order::Two);
            data.[iter | par_iter]().map(|x| Plain::square(*x)).sum::<f64>());
        compare!(criterion, "sum_of_magnitudes", dtype, size, passes: 1;
            "norm": |isa| norm_of_view(isa, &View::Dense(black_box(&data)), Order::One);
            data.[iter | par_iter]().map(|x| x.size()).sum::<f64>());
    }
}

/// Norms of other orders. The slow iterator is compared only in the cache.
fn powers<T: Plain>(criterion: &mut Criterion, orders: &[f64]) {
    for (bytes, size) in SIZES {
        let data = numbers::<T>(bytes);
        for &p in orders {
            group!(criterion, format!("norm_of_order_{p}/{}/{size}", T::DTYPE.name()), bytes, |add| {
                for isa in Isa::available() {
                    let norm = || norm_of_view(isa, &View::Dense(black_box(&data)), Order::of(black_box(p)));
                    add!(format!("norm, {}", isa.name()), norm());
                }
                if bytes < PAST_CACHE {
                    let p = black_box(p);
                    add!("iterator", black_box(&data).iter().map(|x| x.size().powf(p)).sum::<f64>());
                }
            });
        }
    }
}

fn scaling<T: Scalable>(criterion: &mut Criterion) {
    let dtype = T::DTYPE.name();
    for size in SIZES {
        let mut data = numbers::<T>(size.0);
        let mut to = data.clone();
        // The factor -1 keeps the magnitudes, however often it is applied.
        let by = black_box(-1.0);
        let (map, factor) = (Scale(Factor::new(by, 1.0)), T::from_float(by));

        compare!(criterion, "scale_in_place", dtype, size, passes: 2;
            "kernel": |isa| map.apply(isa, None, None, black_box(&mut data));
            data.[iter_mut | par_iter_mut]().for_each(|x| *x = x.times(factor)));
        compare!(criterion, "scale_into", dtype, size, passes: 2;
            "kernel": |isa| map.apply(isa, None, Some(&data), black_box(&mut to));
            to.[iter_mut | par_iter_mut]().zip(&data).for_each(|(to, x)| *to = x.times(factor)));
    }
}

/// The kernels of `clip_by_value`.
fn clipping<T: Plain + Ordered>(criterion: &mut Criterion) {
    let dtype = T::DTYPE.name();
    for size in SIZES {
        let mut data = numbers::<T>(size.0);
        let mut to = data.clone();
        let (lo, hi) = (T::from_float(black_box(-PEAK / 2.0)), T::from_float(black_box(PEAK / 2.0)));
        let map = Clip { lo, hi };
        let clamp = |x: T| {
            let below = if x > hi { hi } else { x };
            if below < lo { lo } else { below }
        };

        compare!(criterion, "clip_into", dtype, size, passes: 2;
            "kernel": |isa| isa.run(Apply { from: Some(&data), to: black_box(&mut to), map });
            to.[iter_mut | par_iter_mut]().zip(&data).for_each(|(to, x)| *to = clamp(*x)));
        compare!(criterion, "clip_in_place", dtype, size, passes: 2;
            "kernel": |isa| isa.run(Apply { from: None, to: black_box(&mut data), map });
            data.[iter_mut | par_iter_mut]().for_each(|x| *x = clamp(*x)));
        // No element is outside the bounds, so that a search for the first one reads all of them.
        for x in &mut data {
            *x = clamp(*x);
        }
        compare!(criterion, "anything_to_clip", dtype, size, passes: 1;
            "kernel": |isa| isa.run(AnyChange { data: black_box(&data), map });
            data.[iter | par_iter]().any(|x| *x < lo || *x > hi));
    }
}

fn read_on_all_threads(isa: Isa, data: &[f32]) -> u32 {
    data.par_chunks(SHARE / size_of::<f32>()).map(|part| isa.run(Read(part))).reduce(|| 0, |a, b| a ^ b)
}

fn norm_on_all_threads<T: Element>(isa: Isa, data: &[T], order: Order) -> f64 {
    let views: &[AnyView<'_>] = &[Box::new(View::Dense(data))];
    norm_of_views(isa, &Crew::new(), &views, order).map_or(f64::NAN, Scaled::to_f64)
}

/// Memory bandwidth, and the complete path of a norm.
fn floors(criterion: &mut Criterion) {
    let Some(widest) = Isa::available().next_back() else { return };
    let part = SHARE / size_of::<f32>();
    // The factor -1 keeps the magnitudes, however often it is applied.
    let by = black_box(-1.0);
    for (bytes, size) in SIZES {
        let mut data = numbers::<f32>(bytes);
        let mut to = data.clone();
        let is_shared = bytes >= PAST_CACHE;
        group!(criterion, format!("floor/read/{size}"), bytes, |add| {
            for isa in Isa::available() {
                add!(format!("one thread, {}", isa.name()), isa.run(Read(black_box(&data))));
            }
            if is_shared {
                add!("all threads", read_on_all_threads(widest, black_box(&data)));
            }
        });
        group!(criterion, format!("floor/scale_in_place/{size}"), bytes * 2, |add| {
            for isa in Isa::available() {
                add!(format!("one thread, {}", isa.name()), isa.run(Multiply(black_box(&mut data), by)));
            }
            if is_shared {
                let scale = |part: &mut [f32]| widest.run(Multiply(part, by));
                add!("all threads", data.par_chunks_mut(part).for_each(scale));
            }
        });
        // The C library chooses the instructions of its copy, including whether it uses non-temporal stores.
        let copy = |to: &mut [f32], from: &[f32]| to.copy_from_slice(from);
        for (name, copy) in [("copy", copy as fn(&mut [f32], &[f32])), ("streaming_copy", stream)] {
            group!(criterion, format!("floor/{name}/{size}"), bytes * 2, |add| {
                add!("one thread", copy(black_box(&mut to), black_box(&data)));
                if is_shared {
                    let share = |(to, from): (&mut [f32], &[f32])| copy(to, from);
                    add!("all threads", to.par_chunks_mut(part).zip(data.par_chunks(part)).for_each(share));
                }
            });
        }
        if is_shared {
            group!(criterion, format!("norm/float32/{size}"), bytes, |add| {
                add!("all threads", norm_on_all_threads(widest, black_box(&data), Order::Two));
            });
        }
    }
}

/// The median times of two closures, in turns: one, other, other, one, so that each comes first equally often.
fn in_turns(rounds: usize, one: impl Fn(), other: impl Fn()) -> [f64; 2] {
    let ways: [&dyn Fn(); 2] = [&one, &other];
    let time = |way: &dyn Fn()| {
        let start = Instant::now();
        way();
        start.elapsed().as_secs_f64()
    };
    let mut times = ways.map(|way| {
        time(way); // starts the threads
        Vec::new()
    });
    for round in 0..2 * rounds {
        let way = (round + round / 2) % 2;
        times[way].push(time(ways[way]));
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[rounds / 2]
    })
}

/// The norm's share of the bandwidth.
fn share_of_bandwidth() {
    let Some(isa) = Isa::available().next_back() else { return };
    let data = numbers::<f32>(PAST_CACHE);
    let [norm, read] = in_turns(
        20,
        || _ = black_box(norm_on_all_threads(isa, black_box(&data), Order::Two)),
        || _ = black_box(read_on_all_threads(isa, black_box(&data))),
    );
    println!("L2 norm of {} MiB float32: {:.2} of the read bandwidth", PAST_CACHE >> 20, read / norm);
}

/// The elements per second of a norm of `bytes` bytes, as a multiple of those of float32. In memory, reading limits both, so
/// 16-bit dtypes have twice as many elements per second.
fn beside_float32<T: Plain>(isa: Isa, bytes: usize, order: Order, all_threads: bool) -> f64 {
    let (data, singles) = (numbers::<T>(bytes), numbers::<f32>(bytes));
    // Long enough for the clock.
    let (times, rounds) = if bytes < PAST_CACHE { (100, 100) } else { (1, 10) };
    let [own, single] = if all_threads {
        in_turns(
            rounds,
            || _ = black_box(norm_on_all_threads(isa, black_box(&data), order)),
            || _ = black_box(norm_on_all_threads::<f32>(isa, black_box(&singles), order)),
        )
    } else {
        in_turns(
            rounds,
            || (0..times).for_each(|_| _ = norm_of_view(isa, &View::Dense(black_box(&data)), order)),
            || (0..times).for_each(|_| _ = norm_of_view(isa, &View::Dense(black_box(&singles)), order)),
        )
    };
    single / own * data.len() as f64 / singles.len() as f64
}

fn halves_beside_singles() {
    println!("elements per second of norms, as a multiple of float32's:");
    for isa in Isa::available() {
        for (order, name) in [(Order::One, "L1"), (Order::Two, "L2")] {
            for ((bytes, size), all_threads) in [(INNERMOST, false), (MEMORY, false), (MEMORY, true)] {
                let threads = if all_threads { "all threads" } else { "one thread" };
                let half = beside_float32::<F16>(isa, bytes, order, all_threads);
                let brain = beside_float32::<Bf16>(isa, bytes, order, all_threads);
                println!(
                    "  {name}, {size}, {threads}, {}: float16 {half:.2}, bfloat16 {brain:.2}",
                    isa.name()
                );
            }
        }
    }
}

fn main() {
    // Rayon's pool and gradclip's must have the same number of threads.
    let threads = parallel::THREADS.get().unwrap_or(1);
    if let Err(why) = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global() {
        eprintln!("{why}");
    }
    let mut criterion = Criterion::default()
        .without_plots()
        .sample_size(10)
        .nresamples(2000)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(500))
        .configure_from_args();
    let criterion = &mut criterion;
    floors(criterion);
    sums::<f32>(criterion);
    sums::<f64>(criterion);
    largest::<f32>(criterion);
    largest::<f64>(criterion);
    largest::<F16>(criterion);
    largest::<Bf16>(criterion);
    norms::<F16>(criterion);
    norms::<Bf16>(criterion);
    norms::<Complex<f32>>(criterion);
    norms::<Complex<f64>>(criterion);
    norms::<i8>(criterion);
    norms::<i32>(criterion);
    norms::<i64>(criterion);
    norms::<Bool>(criterion);
    powers::<f32>(criterion, &SIMPLE);
    powers::<f64>(criterion, &SIMPLE);
    powers::<F16>(criterion, &[3.0, P]);
    powers::<Complex<f64>>(criterion, &[3.0, P]);
    scaling::<f32>(criterion);
    scaling::<f64>(criterion);
    scaling::<F16>(criterion);
    scaling::<Bf16>(criterion);
    clipping::<f32>(criterion);
    clipping::<f64>(criterion);
    clipping::<F16>(criterion);
    clipping::<Bf16>(criterion);
    clipping::<i8>(criterion);
    clipping::<i32>(criterion);
    clipping::<u16>(criterion);
    criterion.final_summary();
    // `cargo test` runs benchmarks too, without this argument; listing and testing are not measurements.
    let given = |argument: &str| std::env::args().any(|given| given == argument);
    if given("--bench") && !given("--list") && !given("--test") {
        share_of_bandwidth();
        halves_beside_singles();
    }
}
