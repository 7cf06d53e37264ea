//! The bits of every operation and dtype, as recorded on x86-64: they must not depend on the CPU, the level or the number of
//! threads.
//!
//! `GRADCLIP_RECORD_BITS=1 cargo test --test rust bits` records them again, after an intended change of bits.

#![cfg(not(miri))] // Miri's NaNs have any payload
#![allow(
    clippy::cast_possible_wrap,
    clippy::expect_used,
    clippy::needless_for_each,
    missing_docs,
    reason = "a test"
)]

use std::borrow::Cow;
use std::fmt::Write;
use std::fs;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use crate::common::{Random, alone, clip_columns, clip_rows, dense, norm, slice_norms};
use _core::element::{Bf16, Bool, Complex, Element, F16, Ordered, Real};
use _core::isa::{Isa, StreamGuard};
use _core::kernel::clip::Clip;
use _core::kernel::power::half_power_root;
use _core::kernel::scale::{ClipMagnitude, Scale};
use _core::kernel::scale_each::FactorKind;
use _core::parallel::Crew;
use _core::parallel::THREADS;
use _core::parallel::columns::is_column;
use _core::parallel::elementwise::{AnyTask, Task, apply_elementwise, scale};
use _core::parallel::reduce::{AnyView, CHUNK, Order, norm_of_view};
use _core::scaled::{Factor, Rounding, Scaled, power_of_two};
use _core::walk::{
    Axis, Bounds, Broadcast, Cells, Factors, Layout, Memory, Slices, Target, Uniform, View, Work,
};

/// The kind of elements of an input. Each kind has a column in the file.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Of about one size.
    Plain,
    /// Of any size, 0 and subnormal ones among them.
    Wide,
    /// Close to the largest number.
    Huge,
    /// Close to the smallest one, or 0.
    Tiny,
    /// Plain ones, and a few that are infinite.
    Infinite,
    /// Of any size, with infinity and NaN of all payloads.
    Odd,
}

const KINDS: [Kind; 6] = [Kind::Plain, Kind::Wide, Kind::Huge, Kind::Tiny, Kind::Infinite, Kind::Odd];

/// Orders that need only multiplications and square roots, and orders that need powers.
const ORDERS: [f64; 10] = [1.0, 2.0, f64::INFINITY, 0.5, 1.5, 3.0, 4.0, 3.7, 0.3, 17.25];

/// An element made of random bits, and the two forms of its bits: the number they make, and their order in memory.
trait Coded: Element {
    fn draw(random: &mut Random, kind: Kind) -> Self;
    fn add_to(self, found: &mut Fingerprint);
    fn bytes(self) -> Vec<u8>;
}

/// A number of `width` bits with `digits` bits of mantissa, by its bits.
fn float(random: &mut Random, kind: Kind, digits: u32, width: u32) -> u64 {
    let top = (1 << (width - 1 - digits)) - 1;
    let sign = (random.bits() >> 63) << (width - 1);
    let mantissa = random.bits() >> (64 - digits);
    let number = |exponent: usize| (exponent as u64) << digits | mantissa;
    let zero = random.below(8) == 0;
    let one_in = |random: &mut Random, n: usize| random.below(n) == 0;
    sign | match kind {
        Kind::Infinite if one_in(random, 64) => top << digits,
        Kind::Plain | Kind::Infinite => number(top as usize / 2 - 6 + random.below(12)),
        Kind::Odd if one_in(random, 16) => number(top as usize) | 1,
        Kind::Odd if one_in(random, 32) => top << digits,
        Kind::Tiny | Kind::Wide | Kind::Odd if zero => 0,
        Kind::Wide | Kind::Odd => number(random.below(top as usize)),
        Kind::Huge => number(top as usize - 1 - random.below(3)),
        Kind::Tiny => number(random.below(6).saturating_sub(3)) >> random.below(digits as usize),
    }
}

/// An integer, by its bits.
fn integer(random: &mut Random, kind: Kind, width: usize) -> u64 {
    let end = 1 << (width - 1); // the smallest number with a sign; -1 is all bits, and the largest number without
    let few = random.bits() % 100;
    match kind {
        Kind::Plain => [few, few.wrapping_neg()][random.below(2)],
        Kind::Wide | Kind::Odd => random.bits() >> random.below(width),
        Kind::Huge => [end, end - 1, 0, u64::MAX][random.below(4)].wrapping_add(few % 2),
        Kind::Tiny => few % 2,
        Kind::Infinite => random.bits(),
    }
}

macro_rules! coded {
    (real $($real:ty: $bits:ty, $digits:literal),*; integer $($integer:ty),*; complex $($complex:ty),*) => {
        $(impl Coded for $real {
            fn draw(random: &mut Random, kind: Kind) -> Self {
                Self::from_bits(float(random, kind, $digits, <$bits>::BITS) as $bits)
            }
            fn add_to(self, found: &mut Fingerprint) { found.add(self.to_bits().into()); }
            fn bytes(self) -> Vec<u8> { self.to_bits().to_ne_bytes().to_vec() }
        })*
        $(impl Coded for $integer {
            fn draw(random: &mut Random, kind: Kind) -> Self {
                integer(random, kind, <$integer>::BITS as usize) as $integer
            }
            fn add_to(self, found: &mut Fingerprint) { found.add(i128::from(self) as u64); }
            fn bytes(self) -> Vec<u8> { self.to_ne_bytes().to_vec() }
        })*
        $(impl Coded for $complex {
            fn draw(random: &mut Random, kind: Kind) -> Self {
                [Coded::draw(random, kind), Coded::draw(random, kind)]
            }
            fn add_to(self, found: &mut Fingerprint) {
                self[0].add_to(found);
                self[1].add_to(found);
            }
            fn bytes(self) -> Vec<u8> { [self[0].bytes(), self[1].bytes()].concat() }
        })*
        macro_rules! for_all {
            ($found:expr, $test:ident) => {
                for_ordered!($found, $test);
                $($test::<$complex>($found);)*
                $test::<Bool>($found);
            };
        }
        macro_rules! for_ordered {
            ($found:expr, $test:ident) => {
                for_reals!($found, $test);
                $($test::<$integer>($found);)*
            };
        }
        macro_rules! for_reals { ($found:expr, $test:ident) => { $($test::<$real>($found);)* }; }
    };
}
coded! {
    real F16: u16, 10, Bf16: u16, 7, f32: u32, 23, f64: u64, 52;
    integer i8, i16, i32, i64, u8, u16, u32, u64;
    complex Complex<f32>, Complex<f64>
}

impl Coded for Bool {
    fn draw(random: &mut Random, _: Kind) -> Self {
        Self::from_bytes(&[[0, 1, 2, 0xff][random.below(4)]], false)
    }
    fn add_to(self, found: &mut Fingerprint) {
        found.add(u64::from(self != Self::ZERO));
    }
    fn bytes(self) -> Vec<u8> {
        vec![u8::from(self != Self::ZERO)]
    }
}

fn draw<T: Coded>(kind: Kind, len: usize) -> Vec<T> {
    let random = &mut Random::new(len as u64);
    (0..len).map(|_| T::draw(random, kind)).collect()
}

/// A hash of everything that is added, in order.
#[derive(Clone, Copy)]
struct Fingerprint(u64);

impl Fingerprint {
    fn add(&mut self, bits: u64) {
        // Both steps are invertible, so a difference stays until another one is added.
        let product = (self.0 ^ bits).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ (product >> 32);
    }

    fn add_norm(&mut self, norm: Scaled) {
        let (digits, exponent) = norm.split();
        self.add(digits.to_bits());
        self.add(i64::from(exponent).cast_unsigned());
        self.add(norm.to_f64().to_bits());
    }

    fn add_factor(&mut self, factor: Option<Factor>) {
        let parts = factor.map_or([0.0; 2], |factor| [factor.by, factor.then]);
        for part in parts {
            self.add(part.to_bits());
        }
    }

    fn add_all<T: Coded>(&mut self, data: &[T]) {
        for x in data {
            x.add_to(self);
        }
    }
}

/// The lines of the file as this machine makes them.
#[derive(Default)]
struct Found(String);

impl Found {
    /// A line: a fingerprint for each kind. It covers the values that `work` adds for the input of `make`, at every level and
    /// for the given numbers of threads.
    fn line<I>(
        &mut self,
        name: &str,
        threads: &[usize],
        make: impl Fn(Kind) -> I,
        work: impl Fn(Isa, &I, &mut Fingerprint),
    ) {
        self.0.push_str(name);
        for kind in KINDS {
            let input = make(kind);
            self.fingerprint(&format!("{name}, {kind:?}"), threads, &|isa, found| work(isa, &input, found));
        }
        self.0.push('\n');
    }

    /// Adds the fingerprint that `work` has at every level and for the given numbers of threads.
    fn fingerprint(&mut self, name: &str, threads: &[usize], work: &dyn Fn(Isa, &mut Fingerprint)) {
        let settings = threads.iter().map(|count| (Isa::current(), *count));
        let mut all = None;
        let _alone = alone();
        for (isa, count) in settings.chain(Isa::available().map(|isa| (isa, 1))) {
            THREADS.set(count);
            let mut found = Fingerprint(0);
            work(isa, &mut found);
            let first = *all.get_or_insert(found.0);
            assert!(found.0 == first, "{name}: {}, {count} threads", isa.name());
        }
        let _ = write!(self.0, " {:016x}", all.unwrap_or_default());
    }

    /// [`Self::line`] for several lengths of one dtype, on one thread.
    fn line_of<T: Coded>(&mut self, name: &str, lens: &[usize], work: impl Fn(Isa, &[T], &mut Fingerprint)) {
        let name = format!("{} {name}", T::DTYPE.name());
        let make = |kind| -> Vec<Vec<T>> { lens.iter().map(|len| draw(kind, *len)).collect() };
        self.line(&name, &[], make, |isa, inputs, found| {
            inputs.iter().for_each(|input| work(isa, input, found));
        });
    }

    /// [`Self::line`] for one dtype and so many elements that threads share them.
    fn shared_line_of<T: Coded>(
        &mut self,
        name: &str,
        threads: &[usize],
        len: usize,
        work: impl Fn(Isa, &[T], &mut Fingerprint),
    ) {
        let name = format!("{} {name}, shared", T::DTYPE.name());
        self.line(
            &name,
            threads,
            |kind| draw(kind, len),
            |isa, input: &Vec<T>, found| {
                work(isa, input, found);
            },
        );
    }
}

/// The numbers of threads, in addition to one.
const THREAD_COUNTS: [usize; 4] = [2, 3, 5, 16];

/// Lengths: 0, a few, and around the lengths of lanes, parts and blocks.
const LENGTHS: [usize; 10] = [0, 1, 2, 7, 31, 33, 129, 2047, 2049, 5000];

fn layout<const N: usize>(axes: [(usize, isize); N]) -> Layout {
    Layout::new(axes.map(|(len, stride)| Axis { len, stride }))
}

/// Rows, or columns, of a matrix.
fn slices<T: Element>(data: &[T], width: usize, columns: bool) -> Slices<'_, T> {
    let rows = layout([(data.len() / width, width as isize)]);
    let within = layout([(width, 1)]);
    let (kept, reduced) = if columns { (within, rows) } else { (rows, within) };
    Slices::new(Memory::Elements(data), 0, kept, reduced)
}

fn reductions<T: Coded>(found: &mut Found) {
    for p in ORDERS {
        let order = Order::of(p);
        found.line_of(&format!("norm {p}"), &LENGTHS, |isa, data: &[T], found| {
            found.add_norm(norm_of_view(isa, &View::Dense(data), order));
            let (low, high) = data.split_at(data.len() / 3);
            let views = [dense(low), dense(high), dense(data)];
            found.add_norm(norm(isa, &Crew::new(), &views, order).expect("threads"));
        });
    }
    found.line_of("norms of chunks", &[CHUNK + 77], |isa, data: &[T], found| {
        for p in [1.0, 2.0, f64::INFINITY] {
            found.add_norm(norm_of_view(isa, &View::Dense(data), Order::of(p)));
        }
    });
    found.line_of("norms of strided memory", &[1, 7, 6500], |isa, data: &[T], found| {
        // Reversed, and as bytes at an odd address in swapped byte order. (The parts of a complex number stay in order.)
        let len = data.len().div_ceil(3);
        let last = 3 * (len as isize - 1);
        let mut bytes = vec![0xee];
        let part = size_of::<T>() / if T::DTYPE.parts().is_some() { 2 } else { 1 };
        for x in data {
            let own = x.bytes();
            own.chunks(part).for_each(|part| bytes.extend(part.iter().rev()));
        }
        let step = size_of::<T>() as isize;
        for p in ORDERS {
            let elements = View::new(Memory::Elements(data), last, Cow::Owned(layout([(len, -3)])));
            let memory = Memory::Bytes { bytes: &bytes, swapped: true };
            let other = View::new(memory, 1 + last * step, Cow::Owned(layout([(len, -3 * step)])));
            found.add_norm(norm_of_view::<T>(isa, &elements, Order::of(p)));
            found.add_norm(norm_of_view::<T>(isa, &other, Order::of(p)));
        }
    });
    for (name, columns) in [("norms of rows", false), ("norms of columns", true)] {
        // More columns than a strip, more rows than are folded at once, in a dense block or not.
        found.line_of(name, &[66 * 520, 131 * 7], |isa, data: &[T], found| {
            let widths: &[usize] = if data.len() > 1000 { &[520] } else { &[7, 130, 1] };
            for p in [1.0, 2.0, f64::INFINITY, 0.5, 3.7] {
                for &width in widths {
                    let slices = slices(&data[..data.len() / width * width], width, columns);
                    let norms = slice_norms(isa, &slices, Order::of(p)).expect("threads");
                    norms.into_iter().for_each(|norm| found.add_norm(norm));
                }
            }
        });
    }
}

/// Adds the result of `work` on `data` for every way of writing it: in place, from dense and from reversed memory, as atomics
/// with gaps, as bytes in swapped order, and by non-temporal stores.
fn add_written<T: Coded + Ordered>(isa: Isa, data: &[T], work: &impl Work<T>, found: &mut Fingerprint) {
    let len = data.len();
    let mut own = data.to_vec();
    apply_elementwise(isa, work, &mut Task { source: None, target: Target::Dense(&mut own) })
        .expect("threads");
    found.add_all(&own);
    let mut copy = vec![T::ZERO; len];
    for store in [None, Some(&StreamGuard::begin())] {
        copy.fill(T::ZERO);
        let target = &mut Target::Dense(&mut copy);
        _core::walk::apply_elementwise(isa, work, Some(&View::Dense(data)), target, 0, store);
        found.add_all(&copy);
    }
    let reversed = View::new(Memory::Elements(data), len as isize - 1, Cow::Owned(layout([(len, -1)])));
    let bytes: Vec<AtomicU8> = (0..=len * (size_of::<T>() + 1)).map(|_| AtomicU8::new(7)).collect();
    let target = Target::Strided {
        cells: Cells::Bytes(&bytes),
        swapped: cfg!(target_endian = "little"),
        start: 1,
        layout: Cow::Owned(layout([(len, size_of::<T>() as isize + 1)])),
        range: 0..len,
    };
    let source = (len > 0).then_some(reversed);
    apply_elementwise(isa, work, &mut Task { source, target }).expect("threads");
    bytes.iter().for_each(|byte| found.add(byte.load(Relaxed).into()));
}

/// Bounds of all kinds; NaN has a payload.
fn clips<T: Coded + Ordered>(found: &mut Found) {
    let nan = |bits: u64| T::from_float(f64::from_bits(0x7ff8 << 48 | bits << 32));
    let of = |lo: f64, hi: f64| Clip { lo: T::from_float(lo), hi: T::from_float(hi) };
    let mut bounds =
        vec![of(-10.0, 10.0), of(10.0, -10.0), of(-0.0, 0.0), of(0.0, 1e300), of(-1e-300, 1e-42)];
    bounds.push(Clip { lo: T::LOWEST, hi: T::from_integer(true, 3) });
    if T::DTYPE.is_float() {
        bounds.push(Clip { lo: nan(0x7_1234), hi: T::HIGHEST });
        bounds.push(Clip { lo: T::LOWEST, hi: nan(0x1234) });
    }
    found.line_of("clip", &LENGTHS, |isa, data: &[T], found| {
        for clip in &bounds {
            add_written(isa, data, &Uniform(*clip), found);
        }
    });
    found.line_of("clip each", &LENGTHS, |isa, data: &[T], found| {
        let (lo, hi) = (draw::<T>(Kind::Odd, data.len() + 1), draw::<T>(Kind::Wide, data.len() + 3));
        let work = Bounds::new(View::Dense(&lo[1..]), View::Dense(&hi[3..]));
        add_written(isa, data, &work.expect("memory"), found);
        let all = layout([(data.len(), 0)]);
        let one = View::new(Memory::Elements(&lo[..1]), 0, Cow::Borrowed(&all));
        let work = Bounds::new(one, View::Dense(&hi[2..data.len() + 2]));
        add_written(isa, data, &work.expect("memory"), found);
    });
    found.line_of("copy", &LENGTHS, |isa, data: &[T], found| {
        add_written(isa, data, &None::<Uniform<Clip<T>>>, found);
    });
}

fn factors() -> Vec<Factor> {
    let one = |by| Factor::new(by, 1.0);
    let far = |by: f64, first, then| Factor::new(by * power_of_two(first), power_of_two(then));
    let mut factors = vec![Factor::NAN, far(1.25, -1000, -20), far(1.3, -1000, -993), far(1.7, 1000, 74)];
    let plain =
        [0.0, 0.5, 1.0, 1.0 / 3.0, 1.1, 1e-30, 1e30, 1e-310, f64::MIN_POSITIVE, f64::MAX, 1.0 - f64::EPSILON];
    factors.extend(plain.map(one));
    factors
}

fn scalings<T: Coded + Real>(found: &mut Found) {
    found.line_of("scale", &LENGTHS, |isa, data: &[T], found| {
        for factor in factors() {
            add_written(isa, data, &Uniform(Scale(factor)), found);
        }
    });
    found.line_of("clip magnitudes", &LENGTHS, |isa, data: &[T], found| {
        for limit in [0.0, 1.0, 17.3, 1e-50, 1e30, f64::INFINITY] {
            add_written(isa, data, &Uniform(ClipMagnitude(limit.into())), found);
        }
    });
    for kind in [Kind::Wide, Kind::Odd] {
        found.line_of(&format!("scale each by {kind:?}"), &LENGTHS, |isa, data: &[T], found| {
            let factors: Vec<f64> = draw::<f64>(kind, data.len()).into_iter().map(f64::abs).collect();
            add_written(
                isa,
                data,
                &Factors {
                    factors: Broadcast::new(View::Dense(&factors)).expect("memory"),
                    kind: FactorKind { is_plain: false, rounding: Rounding::Nearest },
                },
                found,
            );
        });
    }
    found.line_of("convert", &[5000], |_, data: &[T], found| {
        // A NaN is recorded only as NaN here: the functions that write it again record its payload.
        let all = data.iter().map(|x| x.widen()).chain(draw::<f64>(Kind::Wide, 5000));
        for x in all.map(|x| if x.is_nan() { f64::NAN } else { x }) {
            found.add(x.to_bits());
            found.add_all(&[T::narrow(x), T::from_float(x), T::narrow_single(x as f32)]);
            let size = x.abs() as u128;
            found.add_all(&[T::from_integer(x < 0.0, size), T::from_integer(x < 0.0, size << 3 | 1)]);
        }
    });
}

/// Rows and columns that are clipped by their own norms.
fn own_norms<T: Coded + Real>(found: &mut Found) {
    const LIMITS: [f64; 6] = [0.0, 1e-320, 1e-3, 3.0, 1e30, f64::INFINITY];
    found.line_of("clip rows", &[7, 129 * 10, 7 * 2100], |isa, data: &[T], found| {
        for (limit, len) in LIMITS.into_iter().flat_map(|limit| [1, 3, 70, 2100].map(|len| (limit, len))) {
            let data = &data[..data.len() / len * len];
            let (mut own, mut copy) = (data.to_vec(), vec![T::ZERO; data.len()]);
            clip_rows(isa, None, &mut own, len, limit).expect("threads");
            clip_rows(isa, Some(&slices(data, len, false)), &mut copy, len, limit).expect("threads");
            found.add_all(&own);
            found.add_all(&copy);
        }
    });
    if size_of::<T>() == 2 {
        return; // whose columns are scaled as any elements are
    }
    found.line_of("clip columns", &[66 * 1100], |isa, data: &[T], found| {
        for (limit, [len, inner]) in
            LIMITS.into_iter().flat_map(|limit| [[66, 1100], [3, 150], [1, 130]].map(|shape| (limit, shape)))
        {
            let data = &data[..len * inner * if len > 3 { 1 } else { 2 }];
            assert!(is_column::<T>(data.len() / len, [len, inner], Order::Two));
            let (mut own, mut copy) = (data.to_vec(), vec![T::ZERO; data.len()]);
            clip_columns(isa, None, &mut own, [len, inner], limit).expect("threads");
            clip_columns(isa, Some(data), &mut copy, [len, inner], limit).expect("threads");
            found.add_all(&own);
            found.add_all(&copy);
        }
    });
}

/// Norms of slices and factors made of norms, including those outside float64's range.
fn norms_and_factors(found: &mut Found) {
    found.line_of("scaled", &[5000], |_, data: &[f64], found| {
        let mut random = Random::new(3);
        let sizes = draw::<f64>(Kind::Wide, data.len());
        for (x, limit) in data.iter().zip(sizes) {
            let (value, limit) = (x.abs(), limit.abs());
            let norm = Scaled::new(value, random.below(2400) as i32 - 1200);
            found.add_norm(norm);
            found.add_norm(norm.divided_by((1 + random.below(1 << 40)) as f64));
            found.add_norm(norm.max(Scaled::new(limit, 900)));
            for norm in [norm, Scaled::new(value, 0)] {
                found.add_factor(norm.clip_to(limit));
                found.add_factor(Some(norm.factor_to(limit)));
            }
            for twice in [1, 3, 6, 8] {
                found.add_norm(half_power_root(twice, value));
            }
        }
    });
}

/// Sizes from which threads share the work.
fn shared(found: &mut Found) {
    fn norms_of<T: Coded>(found: &mut Found, p: f64, len: usize) {
        found.shared_line_of(&format!("norm {p}"), &THREAD_COUNTS, len, |isa, data: &[T], found| {
            let (low, high) = data.split_at(data.len() / 3);
            for list in [&[data][..], &[low, high]] {
                let views: Vec<AnyView<'_>> = list.iter().map(|data| dense(data)).collect();
                found.add_norm(norm(isa, &Crew::new(), &views, Order::of(p)).expect("threads"));
            }
        });
    }
    norms_of::<f32>(found, 2.0, 1_700_003);
    norms_of::<f64>(found, f64::INFINITY, 900_001);
    norms_of::<f64>(found, 3.7, 300_007);
    norms_of::<F16>(found, 3.0, 2_000_003);
    norms_of::<Bf16>(found, 0.5, 2_000_003);
    norms_of::<i64>(found, 1.0, 900_001);
    norms_of::<Complex<f64>>(found, 1.0, 450_001);
    for columns in [false, true] {
        let name = if columns { "norms of columns" } else { "norms of rows" };
        found.shared_line_of(name, &THREAD_COUNTS, 1700 * 1001, |isa, data: &[f32], found| {
            for width in [1001, 5] {
                let slices = slices(&data[..data.len() / width * width], width, columns);
                let norms = slice_norms(isa, &slices, Order::Two).expect("threads");
                norms.into_iter().for_each(|norm| found.add_norm(norm));
            }
        });
    }
    found.shared_line_of("clip rows", &THREAD_COUNTS, 1700 * 1001, |isa, data: &[f32], found| {
        let mut own = data.to_vec();
        clip_rows(isa, None, &mut own, 1001, 3.0).expect("threads");
        found.add_all(&own);
    });
    found.shared_line_of("clip columns", &THREAD_COUNTS, 900 * 1001, |isa, data: &[f64], found| {
        let mut copy = vec![0.0; data.len()];
        clip_columns(isa, Some(data), &mut copy, [90, 1001], 3.0).expect("threads");
        found.add_all(&copy);
    });
    found.shared_line_of("scale of a list", &THREAD_COUNTS, 800_001, |isa, data: &[f32], found| {
        let halves: Vec<F16> = draw(Kind::Odd, data.len());
        let (mut own, mut copy, mut small) = (halves.clone(), data.to_vec(), vec![0.0; data.len()]);
        let cells: Vec<AtomicU32> = (0..2 * data.len()).map(|_| AtomicU32::new(7)).collect();
        let target = Target::Strided {
            cells: Cells::Elements(&cells),
            swapped: false,
            start: 0,
            layout: Cow::Owned(layout([(data.len(), 2)])),
            range: 0..data.len(),
        };
        let mut tasks: Vec<AnyTask<'_>> = vec![
            Task { source: None, target: Target::Dense(&mut own) }.into(),
            Task { source: None, target: Target::Dense(&mut copy) }.into(),
            Task { source: Some(View::Dense(data)), target }.into(),
        ];
        tasks.extend(data.chunks(700).zip(small.chunks_mut(700)).map(|(from, to)| {
            AnyTask::from(Task { source: Some(View::Dense(from)), target: Target::Dense(to) })
        }));
        scale(isa, &Crew::new(), &mut tasks[..], Some(Factor::new(1.0 / 3.0, 1.0))).expect("threads");
        drop(tasks);
        found.add_all(&own);
        found.add_all(&copy);
        found.add_all(&small);
        cells.iter().for_each(|cell| found.add(cell.load(Relaxed).into()));
    });
    // By non-temporal stores.
    found.shared_line_of("scale of 36 MB", &[3], 9_000_001, |isa, data: &[f32], found| {
        let mut copy = vec![0.0; data.len()];
        let mut task = Task { source: Some(View::Dense(data)), target: Target::Dense(&mut copy) };
        apply_elementwise(isa, &Uniform(Scale(Factor::new(1.0 / 3.0, 1.0))), &mut task).expect("threads");
        found.add_all(&copy);
    });
}

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rust/bits.txt");

#[test]
fn every_bit_is_as_recorded() {
    let mut found = Found(format!("# Fingerprints of results, for inputs of these kinds: {KINDS:?}\n"));
    for_all!(&mut found, reductions);
    for_ordered!(&mut found, clips);
    for_reals!(&mut found, scalings);
    for_reals!(&mut found, own_norms);
    norms_and_factors(&mut found);
    shared(&mut found);
    if std::env::var_os("GRADCLIP_RECORD_BITS").is_some() {
        assert_eq!(std::env::consts::ARCH, "x86_64", "the record is that of x86-64");
        fs::write(FILE, found.0).expect("a file to write");
        return;
    }
    let recorded = fs::read_to_string(FILE).expect("the record");
    let only_in = |one: &str, other: &str| {
        let lines: Vec<String> =
            one.lines().filter(|line| !other.lines().any(|own| own == *line)).map(String::from).collect();
        lines.join("\n")
    };
    let (new, lost) = (only_in(&found.0, &recorded), only_in(&recorded, &found.0));
    assert!(found.0 == recorded, "not as recorded. Found:\n{new}\nRecorded:\n{lost}");
}
