//! The kernels at every instruction set against what one would write without them, and against the memory
//! itself.
//!
//! `cargo bench [-- FILTER]`
//!
//! A group is an operation, a dtype and a size, 16 KiB (in cache) or 64 MiB (past it), and has a line per way: the
//! kernel at each level this CPU runs, on one thread; the plain iterator, as the compiler makes it for any CPU; the
//! same iterator on all threads by rayon, where there is enough to share. The groups `floor` tell how fast memory is
//! read, changed and copied at all, and `norm` is the whole path of a norm on all threads. GB/s counts the bytes that
//! are read and written. The last line compares the norm with a plain read, in turns, so that both see the same machine:
//! believe ratios like this one, within one run, and not times from different runs.

use std::hint::black_box;
use std::ops::{Mul, MulAssign};
use std::time::{Duration, Instant};

use _core::element::{Element, Real};
use _core::isa::{Isa, Op};
use _core::kernel::clip::Clip;
use _core::kernel::map::{AnyChange, Apply, ApplyInto};
use _core::kernel::max::MaxAbs;
use _core::kernel::power::Power;
use _core::kernel::scale::Scale;
use _core::kernel::sum::{Abs, Square, Sum};
use _core::parallel::{self, reduce};
use _core::scaled::Factor;
use _core::walk::View;
use criterion::{Criterion, SamplingMode, Throughput};
use rayon::prelude::*;

/// Bytes of an array that stays in the innermost cache, and of one that no cache holds.
const SIZES: [(usize, &str); 2] = [(16 << 10, "16KiB"), (64 << 20, "64MiB")];
const PAST_CACHE: usize = SIZES[1].0;
/// Bytes a thread takes at a time where the benchmark itself shares work.
const SHARE: usize = 512 << 10;
/// Numbers lie between this and its negative.
const PEAK: f64 = 100.0;
/// The exponent of a power that no shorter formula computes.
const P: f64 = 3.7;

/// Reads everything, and does as little with it as keeps the compiler from leaving it out.
struct Read<'a>(&'a [f32]);

impl Op for Read<'_> {
    type Output = u32;
    #[inline(always)]
    fn eval(self) -> u32 {
        let mut all = 0;
        for x in self.0 {
            all ^= x.to_bits();
        }
        all
    }
}

/// Changes everything in place.
struct Negate<'a>(&'a mut [f32]);

impl Op for Negate<'_> {
    type Output = ();
    #[inline(always)]
    fn eval(self) {
        for x in self.0 {
            *x = -*x;
        }
    }
}

/// Numbers in no order, without NaN and zeros.
fn numbers<T: Element>(bytes: usize) -> Vec<T> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        T::from_float(((state >> 32) as f64 / f64::from(1_u32 << 31) - 1.0) * PEAK)
    };
    std::iter::repeat_with(next).take(bytes / size_of::<T>()).collect()
}

/// Measures `ways` of moving so many bytes, each a name and something to run.
macro_rules! group {
    ($criterion:expr, $name:expr, $bytes:expr, |$add:ident| $ways:expr) => {{
        let mut group = $criterion.benchmark_group($name);
        // Linear sampling would take 55 runs of what takes long.
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

/// An operation, three ways. The iterator comes as its two first calls and the rest of the chain, which they
/// share.
macro_rules! compare {
    (
        $criterion:expr, $name:literal, $dtype:expr, $size:expr, passes: $passes:literal;
        |$isa:ident| $op:expr;
        $data:ident.[$iter:ident | $par_iter:ident]() $($chain:tt)+
    ) => {{
        let (bytes, size) = $size;
        group!($criterion, format!("{}/{}/{size}", $name, $dtype), bytes * $passes, |add| {
            for $isa in Isa::available() {
                add!(format!("kernel, {}", $isa.name()), $isa.run($op));
            }
            add!("iterator", black_box(&mut $data).$iter() $($chain)+);
            if bytes >= PAST_CACHE {
                add!("rayon", black_box(&mut $data).$par_iter() $($chain)+);
            }
        });
    }};
}

/// What the norms and their clippers run.
fn norms_and_scaling<T>(criterion: &mut Criterion)
where
    T: Real + Mul<Output = T> + MulAssign,
    T::Magnitude: Sync,
{
    let dtype = T::DTYPE.name();
    for size in SIZES {
        let mut data = numbers::<T>(size.0);
        let mut to = data.clone();
        let term = Power::new(P, black_box(PEAK));
        // Such a factor leaves the magnitudes as they are, however often it is applied.
        let by = black_box(-1.0);
        let (map, factor) = (Scale(Factor { by, then: 1.0 }), T::from_float(by));

        compare!(criterion, "sum_of_squares", dtype, size, passes: 1;
            |isa| Sum { data: black_box(&data), term: Square };
            data.[iter | par_iter]().map(|x| x.widen() * x.widen()).sum::<f64>());
        compare!(criterion, "sum_of_magnitudes", dtype, size, passes: 1;
            |isa| Sum { data: black_box(&data), term: Abs };
            data.[iter | par_iter]().map(|x| x.widen().abs()).sum::<f64>());
        compare!(criterion, "largest_magnitude", dtype, size, passes: 1;
            |isa| MaxAbs(black_box(&data));
            data.[iter | par_iter]().map(|x| x.magnitude()).max());
        compare!(criterion, "sum_of_powers", dtype, size, passes: 1;
            |isa| Sum { data: black_box(&data), term };
            data.[iter | par_iter]().map(|x| x.widen().abs().powf(P)).sum::<f64>());
        compare!(criterion, "scale_in_place", dtype, size, passes: 2;
            |isa| Apply { data: black_box(&mut data), map };
            data.[iter_mut | par_iter_mut]().for_each(|x| *x *= factor));
        compare!(criterion, "scale_into", dtype, size, passes: 2;
            |isa| ApplyInto { from: &data, to: black_box(&mut to), map };
            to.[iter_mut | par_iter_mut]().zip(&data).for_each(|(to, x)| *to = *x * factor));
    }
}

/// What `clip_by_value` runs.
fn clipping<T: Element>(criterion: &mut Criterion) {
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
            |isa| ApplyInto { from: &data, to: black_box(&mut to), map };
            to.[iter_mut | par_iter_mut]().zip(&data).for_each(|(to, x)| *to = clamp(*x)));
        compare!(criterion, "clip_in_place", dtype, size, passes: 2;
            |isa| Apply { data: black_box(&mut data), map };
            data.[iter_mut | par_iter_mut]().for_each(|x| *x = clamp(*x)));
        // Nothing is outside, so that what stops at the first one has to see all.
        for x in &mut data {
            *x = clamp(*x);
        }
        compare!(criterion, "anything_to_clip", dtype, size, passes: 1;
            |isa| AnyChange { data: black_box(&data), map };
            data.[iter | par_iter]().any(|x| *x < lo || *x > hi));
    }
}

fn read_on_all_threads(isa: Isa, data: &[f32]) -> u32 {
    data.par_chunks(SHARE / size_of::<f32>()).map(|part| isa.run(Read(part))).reduce(|| 0, |a, b| a ^ b)
}

fn norm_on_all_threads(isa: Isa, data: &[f32]) -> f64 {
    let norm = reduce::norm(isa, &[View::Dense(data).into()], reduce::Order::Two);
    norm.map_or(f64::NAN, _core::scaled::Scaled::to_f64)
}

/// How fast memory is, and the whole path of a norm.
fn floors(criterion: &mut Criterion) {
    let Some(isa) = Isa::available().next_back() else { return };
    let part = SHARE / size_of::<f32>();
    for (bytes, size) in SIZES {
        let mut data = numbers::<f32>(bytes);
        let mut to = data.clone();
        let is_shared = bytes >= PAST_CACHE;
        group!(criterion, format!("floor/read/{size}"), bytes, |add| {
            add!("one thread", isa.run(Read(black_box(&data))));
            if is_shared {
                add!("all threads", read_on_all_threads(isa, black_box(&data)));
            }
        });
        group!(criterion, format!("floor/change/{size}"), bytes * 2, |add| {
            add!("one thread", isa.run(Negate(black_box(&mut data))));
            if is_shared {
                add!("all threads", data.par_chunks_mut(part).for_each(|part| isa.run(Negate(part))));
            }
        });
        group!(criterion, format!("floor/copy/{size}"), bytes * 2, |add| {
            add!("one thread", to.copy_from_slice(black_box(&data)));
            if is_shared {
                let copy = |(to, from): (&mut [f32], &[f32])| to.copy_from_slice(from);
                add!("all threads", to.par_chunks_mut(part).zip(data.par_chunks(part)).for_each(copy));
            }
        });
        if is_shared {
            group!(criterion, format!("norm/float32/{size}"), bytes, |add| {
                add!("all threads", norm_on_all_threads(isa, black_box(&data)));
            });
        }
    }
}

/// The norm's share of the bandwidth: both in turns, the medians compared.
fn share_of_bandwidth() {
    const ROUNDS: usize = 20;
    let Some(isa) = Isa::available().next_back() else { return };
    let data = numbers::<f32>(PAST_CACHE);
    let ways: [fn(Isa, &[f32]) -> f64; 2] =
        [norm_on_all_threads, |isa, data| f64::from(read_on_all_threads(isa, data))];
    let time = |way: fn(Isa, &[f32]) -> f64| {
        let start = Instant::now();
        black_box(way(isa, black_box(&data)));
        start.elapsed().as_secs_f64()
    };
    let mut times = ways.map(|way| {
        time(way); // starts the threads
        Vec::new()
    });
    for round in 0..2 * ROUNDS {
        // Norm, read, read, norm: each comes first as often as the other.
        let way = (round + round / 2) % 2;
        times[way].push(time(ways[way]));
    }
    let [norm, read] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    println!("L2 norm of {} MiB float32: {:.2} of the read bandwidth", PAST_CACHE >> 20, read / norm);
}

fn main() {
    // Rayon's own pool and gradclip's are to have the same number of threads.
    let threads = parallel::threads().unwrap_or(1);
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
    floors(&mut criterion);
    norms_and_scaling::<f32>(&mut criterion);
    norms_and_scaling::<f64>(&mut criterion);
    clipping::<f32>(&mut criterion);
    clipping::<f64>(&mut criterion);
    clipping::<i32>(&mut criterion);
    criterion.final_summary();
    // `cargo test` runs benchmarks too, without this argument; and a list is no measurement.
    let given = |argument: &str| std::env::args().any(|given| given == argument);
    if given("--bench") && !given("--list") {
        share_of_bandwidth();
    }
}
