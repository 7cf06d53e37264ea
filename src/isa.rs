//! The instruction sets: one table, and the only `#[target_feature]` of the crate.
//!
//! An operation is a value that implements [`Op`]. Its body is plain Rust, written once for all dtypes and
//! all levels; [`Isa::run`] compiles it once per level, in a trampoline that enables the level's features. `eval`
//! and all it calls are `#[inline(always)]`, because features do not follow a call that is not inlined, and
//! loops in it are
//! `for` loops, because an iterator's `for_each` is such a call.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m128i, __m256, __m256i, __m512, __m512d, __m512i, _mm_loadu_si128, _mm256_cvtph_ps, _mm256_loadu_si256,
    _mm512_loadu_si512,
};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::arch::x86_64::{
    _mm_stream_si128, _mm256_cvtps_ph, _mm256_stream_si256, _mm512_cvtph_ps, _mm512_cvtps_ph,
    _mm512_rsqrt14_pd, _mm512_stream_si512,
};
// Miri has no streams. These want the same alignment and write the same bytes.
#[cfg(all(target_arch = "x86_64", miri))]
use std::arch::x86_64::{
    _mm_store_si128 as _mm_stream_si128, _mm256_store_si256 as _mm256_stream_si256,
    _mm512_store_si512 as _mm512_stream_si512,
};
use std::marker::PhantomData;
#[cfg(target_arch = "x86_64")]
use std::mem::transmute;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicU8, Ordering};

#[cfg(all(target_arch = "x86_64", miri))]
use emulated::{_mm256_cvtps_ph, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_rsqrt14_pd};

use crate::element::{Element, F16};

/// Work to compile once per instruction set.
pub trait Op {
    /// What `eval` returns.
    type Output;
    /// Whether conversions between float32 and float64 take most of its time: see `has_slow_conversions`.
    const CONVERTS: bool = false;
    /// Does the work. Implementors are `#[inline(always)]`. `FUSED`: the level has a fused multiplication and addition, for
    /// sums of products that are exact.
    fn eval<const FUSED: bool>(self) -> Self::Output;
}

/// Proof that this CPU runs a level: the fields are private and only detection fills them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isa {
    level: Level,
    /// Whether operations that convert run at AVX2's level, which the CPU runs too.
    converts_by_avx2: bool,
}

/// 0: not chosen yet. Else an [`Isa`], see [`Isa::number`].
static CURRENT: AtomicU8 = AtomicU8::new(0);

macro_rules! levels {
    ($($level:ident $name:literal: $($feature:tt),+;)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
        enum Level { Baseline, $($level),* }

        impl Isa {
            /// The levels that were detected, narrowest first.
            fn detected() -> impl DoubleEndedIterator<Item = Level> {
                let found = [
                    Some(Level::Baseline),
                    $(($(std::arch::is_x86_feature_detected!($feature))&&+).then_some(Level::$level)),*
                ];
                found.into_iter().flatten()
            }

            /// The instruction set that `choose` stored; it took one from `available`, so the number is a proof too.
            #[inline]
            fn chosen(number: u8) -> Option<Self> {
                let converts_by_avx2 = number & BY_AVX2 != 0;
                match number & !BY_AVX2 {
                    n if n == Level::Baseline as u8 + 1 => Some(Self { level: Level::Baseline, converts_by_avx2 }),
                    $(n if n == Level::$level as u8 + 1 => Some(Self { level: Level::$level, converts_by_avx2 }),)*
                    _ => None,
                }
            }

            /// The level's name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self.level {
                    _ if self.converts_by_avx2 => "x86-64-v4-zen4",
                    Level::Baseline => "baseline",
                    $(Level::$level => $name),*
                }
            }

            /// Runs `op` compiled for this level.
            #[allow(unsafe_code, reason = "a #[target_feature] function wants a CPU on which the feature was detected; there may be none")]
            #[inline]
            pub fn run<O: Op>(self, op: O) -> O::Output {
                match self.level_for::<O>() {
                    Level::Baseline => op.eval::<false>(),
                    $(Level::$level => {
                        #[target_feature($(enable = $feature),+)]
                        fn trampoline<O: Op>(op: O) -> O::Output { op.eval::<true>() }
                        // SAFETY: an `Isa` of this level is made by `available` alone, after it detected the
                        // very list of features that `trampoline` enables. One that `converts_by_avx2` is made after
                        // both lists were detected.
                        unsafe { trampoline(op) }
                    })*
                }
            }
        }
    };
}

/// Hands the table to a macro: the ISA column of the matrix, in one place.
///
/// All of these have "fma". Fused, a product is not rounded before it is added; so the levels have
/// the same bits only where it would not be rounded anyway, or where the result is known to round to the same. We fuse the
/// squares of numbers of at most 32 bits, in one function (`fused_square` in `element.rs`), which takes nothing else, and
/// the corrections of square roots of at most 24 digits (`root` in `kernel/power.rs`). The compiler fuses nothing by itself.
#[cfg(target_arch = "x86_64")]
macro_rules! with_levels {
    ($use:ident) => {
        $use! {
            V3 "x86-64-v3": "avx2", "bmi2", "f16c", "fma";
            V4 "x86-64-v4": "avx512f", "avx512bw", "avx512vl", "avx512dq", "bmi2", "fma";
        }
    };
}

#[cfg(target_arch = "x86_64")]
with_levels!(levels);
#[cfg(not(target_arch = "x86_64"))]
levels! {}

/// Set in the number of an [`Isa`] that converts by AVX2.
const BY_AVX2: u8 = 0x80;

impl Isa {
    /// What this CPU runs, narrowest first; the last is the one to use.
    #[must_use]
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        let plain = Self::detected().map(|level| Self { level, converts_by_avx2: false });
        plain.chain(Self::by_avx2())
    }

    /// AVX-512 with conversions by AVX2, for CPUs on which these are faster.
    #[cfg(target_arch = "x86_64")]
    fn by_avx2() -> Option<Self> {
        let runs = |level| Self::detected().any(|found| found == level);
        (has_slow_conversions() && runs(Level::V3) && runs(Level::V4))
            .then_some(Self { level: Level::V4, converts_by_avx2: true })
    }

    /// Other architectures have neither.
    #[cfg(not(target_arch = "x86_64"))]
    fn by_avx2() -> Option<Self> {
        None
    }

    /// The level to run an operation at.
    #[inline]
    fn level_for<O: Op>(self) -> Level {
        #[cfg(target_arch = "x86_64")]
        if O::CONVERTS && self.converts_by_avx2 {
            return Level::V3;
        }
        self.level
    }

    /// The number that [`Isa::chosen`] takes.
    fn number(self) -> u8 {
        (self.level as u8 + 1) | if self.converts_by_avx2 { BY_AVX2 } else { 0 }
    }

    /// The level in use: the widest this CPU runs, unless [`Isa::choose`] named another.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        Self::chosen(CURRENT.load(Ordering::Relaxed))
            .or_else(|| Self::choose(None))
            .unwrap_or(Self { level: Level::Baseline, converts_by_avx2: false })
    }

    /// Uses the named level from now on (`None`: the widest). `None` when this CPU does not run it. For tests
    /// and measurements: every level gives the same bits.
    pub fn choose(name: Option<&str>) -> Option<Self> {
        let isa = Self::available().rfind(|isa| name.is_none_or(|name| name == isa.name()))?;
        CURRENT.store(isa.number(), Ordering::Relaxed);
        Some(isa)
    }
}

/// Work on float16, compiled once per instruction set as an [`Op`] is.
pub trait HalvesOp {
    /// What `eval` returns.
    type Output;
    /// Does the work. Implementors are `#[inline(always)]`. Between float16 and float32 CPUs have instructions that the
    /// compiler does not find in plain Rust; here they are, with the bits of the plain conversions. To widen is exact,
    /// to narrow rounds to nearest, ties to even. `FUSED`: as in [`Op`].
    fn eval<const FUSED: bool>(
        self,
        widen: impl Fn(&[F16; CONVERTED]) -> [f32; CONVERTED],
        narrow: impl Fn(&[f32; CONVERTED]) -> [F16; CONVERTED],
    ) -> Self::Output;
}

/// Elements to be converted at a time.
pub const CONVERTED: usize = 16;

/// Whatever rounding the thread has set.
#[cfg(target_arch = "x86_64")]
const TO_NEAREST: i32 = std::arch::x86_64::_MM_FROUND_TO_NEAREST_INT;

/// To widen, as a closure for a trampoline that enables the level's features.
#[cfg(target_arch = "x86_64")]
macro_rules! widen {
    (V3) => {
        |x: &[F16; CONVERTED]| {
            // SAFETY: the vectors hold as many 16-bit integers, which is what an `F16` is, and as many float32,
            // and any bits are a value of these types.
            unsafe {
                let [low, high] = transmute::<[F16; CONVERTED], [__m128i; 2]>(*x);
                transmute::<[__m256; 2], [f32; CONVERTED]>([_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)])
            }
        }
    };
    (V4) => {
        |x: &[F16; CONVERTED]| {
            // SAFETY: as above.
            unsafe {
                let x = transmute::<[F16; CONVERTED], __m256i>(*x);
                transmute::<__m512, [f32; CONVERTED]>(_mm512_cvtph_ps(x))
            }
        }
    };
}

/// To narrow, in the same way.
#[cfg(target_arch = "x86_64")]
macro_rules! narrow {
    (V3) => {
        |x: &[f32; CONVERTED]| {
            // SAFETY: as in `widen`.
            unsafe {
                let [low, high] = transmute::<[f32; CONVERTED], [__m256; 2]>(*x);
                transmute::<[__m128i; 2], [F16; CONVERTED]>([
                    _mm256_cvtps_ph::<TO_NEAREST>(low),
                    _mm256_cvtps_ph::<TO_NEAREST>(high),
                ])
            }
        }
    };
    (V4) => {
        |x: &[f32; CONVERTED]| {
            // SAFETY: as in `widen`.
            unsafe {
                let x = transmute::<[f32; CONVERTED], __m512>(*x);
                transmute::<__m256i, [F16; CONVERTED]>(_mm512_cvtps_ph::<TO_NEAREST>(x))
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
impl Isa {
    /// Whether [`Isa::run_on_halves`] has the CPU's conversions.
    #[must_use]
    pub fn converts_halves(self) -> bool {
        self.level != Level::Baseline
    }

    /// Runs `op` compiled for this level.
    #[expect(unsafe_code, reason = "see `run`; and numbers become vectors")]
    #[inline]
    pub fn run_on_halves<O: HalvesOp>(self, op: O) -> O::Output {
        macro_rules! trampolines {
            ($($level:ident $name:literal: $($feature:tt),+;)*) => {
                match self.level {
                    Level::Baseline => op.eval::<false>(widen_plainly, narrow_plainly),
                    $(Level::$level => {
                        #[target_feature($(enable = $feature),+)]
                        fn trampoline<O: HalvesOp>(op: O) -> O::Output {
                            op.eval::<true>(widen!($level), narrow!($level))
                        }
                        // SAFETY: as in `run`.
                        unsafe { trampoline(op) }
                    })*
                }
            };
        }
        with_levels!(trampolines)
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Isa {
    /// No: there is none here.
    #[must_use]
    pub fn converts_halves(self) -> bool {
        false
    }

    /// Runs `op`.
    #[inline]
    pub fn run_on_halves<O: HalvesOp>(self, op: O) -> O::Output {
        op.eval::<false>(widen_plainly, narrow_plainly)
    }
}

#[inline(always)]
fn widen_plainly(x: &[F16; CONVERTED]) -> [f32; CONVERTED] {
    let mut to = [0.0; CONVERTED];
    for (to, x) in to.iter_mut().zip(x) {
        *to = x.to_f32();
    }
    to
}

#[inline(always)]
fn narrow_plainly(x: &[f32; CONVERTED]) -> [F16; CONVERTED] {
    let mut to = [F16::default(); CONVERTED];
    for (to, x) in to.iter_mut().zip(x) {
        *to = F16::from_f32(*x);
    }
    to
}

/// Work on square roots, compiled once per instruction set as an [`Op`] is.
pub trait RootsOp {
    /// What `eval` returns.
    type Output;
    /// Does the work. Implementors are `#[inline(always)]`. `estimate`: about `1 / sqrt(x)`, where the level has an
    /// instruction for it. The error is below 2^-14 of it, and is not the same on every CPU. `FUSED`: as in [`Op`].
    fn eval<const FUSED: bool>(
        self,
        estimate: Option<impl Fn(&[f64; ESTIMATED]) -> [f64; ESTIMATED]>,
    ) -> Self::Output;
}

/// Elements whose roots are estimated at a time.
pub const ESTIMATED: usize = 8;

/// A level without an estimate.
type NoEstimate = fn(&[f64; ESTIMATED]) -> [f64; ESTIMATED];

/// The estimate, as a closure for a trampoline that enables the level's features.
#[cfg(target_arch = "x86_64")]
macro_rules! estimate {
    (V3) => {
        None::<NoEstimate>
    };
    (V4) => {
        Some(|x: &[f64; ESTIMATED]| {
            // SAFETY: the vector holds as many float64, and any bits are a value of these types. The trampoline that this is
            // for enables the instruction, "avx512f".
            unsafe {
                let x = transmute::<[f64; ESTIMATED], __m512d>(*x);
                transmute::<__m512d, [f64; ESTIMATED]>(_mm512_rsqrt14_pd(x))
            }
        })
    };
}

#[cfg(target_arch = "x86_64")]
impl Isa {
    /// Runs `op` compiled for this level.
    #[expect(unsafe_code, reason = "see `run`; and numbers become vectors")]
    #[inline]
    pub fn run_on_roots<O: RootsOp>(self, op: O) -> O::Output {
        macro_rules! trampolines {
            ($($level:ident $name:literal: $($feature:tt),+;)*) => {
                match self.level {
                    Level::Baseline => op.eval::<false>(None::<NoEstimate>),
                    $(Level::$level => {
                        #[target_feature($(enable = $feature),+)]
                        fn trampoline<O: RootsOp>(op: O) -> O::Output { op.eval::<true>(estimate!($level)) }
                        // SAFETY: as in `run`.
                        unsafe { trampoline(op) }
                    })*
                }
            };
        }
        with_levels!(trampolines)
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Isa {
    /// Runs `op`.
    #[inline]
    pub fn run_on_roots<O: RootsOp>(self, op: O) -> O::Output {
        op.eval::<false>(None::<NoEstimate>)
    }
}

/// What a slice is filled with, in order.
pub trait StreamSource<T> {
    /// Makes the next elements, `N` for each place that is left. Implementors are `#[inline(always)]`.
    fn fill<const N: usize>(&mut self, places: StreamSink<'_, T, N, impl Fn(&[T; N], &mut [T; N])>);
}

/// Where to store, in memory, for `N` elements each.
pub struct StreamSink<'a, T, const N: usize, S> {
    places: std::slice::IterMut<'a, [T; N]>,
    store: S,
}

impl<T, const N: usize, S: Fn(&[T; N], &mut [T; N])> StreamSink<'_, T, N, S> {
    /// How many are left.
    #[inline(always)]
    pub fn left(&self) -> usize {
        self.places.len()
    }

    /// Fills the next one, if there is one.
    #[inline(always)]
    pub fn fill_next(&mut self, elements: &[T; N]) {
        if let Some(place) = self.places.next() {
            (self.store)(elements, place);
        }
    }
}

/// The same elements as another slice.
impl<T: Element> StreamSource<T> for &[T] {
    #[inline(always)]
    fn fill<const N: usize>(&mut self, mut places: StreamSink<'_, T, N, impl Fn(&[T; N], &mut [T; N])>) {
        let (next, rest) = self.split_at(places.left() * N);
        *self = rest;
        for elements in next.as_chunks::<N>().0 {
            places.fill_next(elements);
        }
    }
}

/// What a slice of float16 is filled with, in order.
pub trait HalvesStreamSource {
    /// As [`StreamSource::fill`], with conversions as [`HalvesOp::eval`] has them.
    fn fill<const N: usize>(
        &mut self,
        places: StreamSink<'_, F16, N, impl Fn(&[F16; N], &mut [F16; N])>,
        widen: impl Fn(&[F16; CONVERTED]) -> [f32; CONVERTED],
        narrow: impl Fn(&[f32; CONVERTED]) -> [F16; CONVERTED],
    );
}

/// With the conversions of a level.
struct Converting<F, W, S> {
    fill: F,
    widen: W,
    narrow: S,
}

impl<F, W, S> StreamSource<F16> for Converting<F, W, S>
where
    F: HalvesStreamSource,
    W: Fn(&[F16; CONVERTED]) -> [f32; CONVERTED],
    S: Fn(&[f32; CONVERTED]) -> [F16; CONVERTED],
{
    #[inline(always)]
    fn fill<const N: usize>(&mut self, places: StreamSink<'_, F16, N, impl Fn(&[F16; N], &mut [F16; N])>) {
        self.fill.fill(places, &self.widen, &self.narrow);
    }
}

/// Bytes that go to memory at once.
pub const LINE: usize = 64;

/// Numbers aligned to cache lines. A register of AVX-512 is a line: an access that lies across two takes twice as long, and
/// the compiler aligns arrays on the stack to 16 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct Aligned<A>(pub A);

/// To write a line by vectors of a type, as a closure.
#[cfg(target_arch = "x86_64")]
macro_rules! line_by {
    ($vector:ty, $load:ident, $store:ident) => {
        |from, to| {
            let (from, to) = (from.cast::<$vector>(), to.cast::<$vector>());
            for i in 0..LINE / size_of::<$vector>() {
                // SAFETY: as `fill_lines` has it, a line can be read there and written here, and is so many
                // vectors; it holds numbers without padding, and begins where a line of memory does, so
                // that each vector written is aligned. The CPU has the instruction: "sse2" is in the x86-64
                // baseline, and the others are used in the trampolines of levels that enable them.
                unsafe { $store(to.add(i), $load(from.add(i))) };
            }
        }
    };
}

/// To write a line, as a closure for a trampoline that enables the level's features.
#[cfg(target_arch = "x86_64")]
macro_rules! store_line {
    (Baseline) => {
        line_by!(__m128i, _mm_loadu_si128, _mm_stream_si128)
    };
    (V3) => {
        line_by!(__m256i, _mm256_loadu_si256, _mm256_stream_si256)
    };
    (V4) => {
        line_by!(__m512i, _mm512_loadu_si512, _mm512_stream_si512)
    };
}

#[cfg(target_arch = "x86_64")]
impl Isa {
    /// Fills a slice past the caches: memory that nobody reads soon need not be fetched to be overwritten, nor push
    /// out what is. Whole lines go from registers to memory.
    #[expect(unsafe_code, reason = "see `run`; and the instructions take aligned pointers")]
    pub fn stream<T: Element, F: StreamSource<T>>(self, _: &StreamGuard, to: &mut [T], fill: F) {
        macro_rules! trampolines {
            ($($level:ident $name:literal: $($feature:tt),+;)*) => {
                match self.level {
                    Level::Baseline => fill_lines(to, fill, store_line!(Baseline)),
                    $(Level::$level => {
                        #[target_feature($(enable = $feature),+)]
                        fn trampoline<T: Element, F: StreamSource<T>>(to: &mut [T], fill: F) {
                            fill_lines(to, fill, store_line!($level));
                        }
                        // SAFETY: as in `run`.
                        unsafe { trampoline(to, fill) }
                    })*
                }
            };
        }
        with_levels!(trampolines);
    }

    /// The same for what wants to convert float16.
    #[expect(
        unsafe_code,
        clippy::cast_ptr_alignment,
        reason = "see `stream` and `run_on_halves`; `fill_lines` has lines that are aligned"
    )]
    pub fn stream_halves<F: HalvesStreamSource>(self, _: &StreamGuard, to: &mut [F16], fill: F) {
        macro_rules! trampolines {
            ($($level:ident $name:literal: $($feature:tt),+;)*) => {
                match self.level {
                    Level::Baseline => {
                        let fill = Converting { fill, widen: widen_plainly, narrow: narrow_plainly };
                        fill_lines(to, fill, store_line!(Baseline));
                    }
                    $(Level::$level => {
                        #[target_feature($(enable = $feature),+)]
                        fn trampoline<F: HalvesStreamSource>(to: &mut [F16], fill: F) {
                            let fill = Converting { fill, widen: widen!($level), narrow: narrow!($level) };
                            fill_lines(to, fill, store_line!($level));
                        }
                        // SAFETY: as in `run`.
                        unsafe { trampoline(to, fill) }
                    })*
                }
            };
        }
        with_levels!(trampolines);
    }
}

/// Fills a slice, its whole lines by `store`, which is called with a line of elements and the line of memory that is
/// theirs, and that begins at a multiple of its size. An array whose elements are not aligned to their size has none.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fill_lines<T: Element>(to: &mut [T], mut fill: impl StreamSource<T>, store: impl Fn(*const T, *mut T)) {
    #[inline(always)]
    fn fill_with<T: Element, const N: usize>(
        to: &mut [T],
        mut fill: impl StreamSource<T>,
        store: impl Fn(*const T, *mut T),
    ) {
        let ahead = to.as_ptr().align_offset(LINE).min(to.len());
        let (ahead, body) = to.split_at_mut(ahead);
        let (lines, rest) = body.as_chunks_mut::<N>();
        fill_plainly(ahead, &mut fill);
        let store = |from: &[T; N], to: &mut [T; N]| store(from.as_ptr(), to.as_mut_ptr());
        fill.fill(StreamSink { places: lines.iter_mut(), store });
        fill_plainly(rest, &mut fill);
    }
    // So many elements are a line.
    match size_of::<T>() {
        1 => fill_with::<T, 64>(to, fill, store),
        2 => fill_with::<T, 32>(to, fill, store),
        4 => fill_with::<T, 16>(to, fill, store),
        8 => fill_with::<T, 8>(to, fill, store),
        16 => fill_with::<T, 4>(to, fill, store),
        _ => fill_plainly(to, &mut fill),
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Isa {
    /// Fills a slice; there is no better way here.
    pub fn stream<T: Element, F: StreamSource<T>>(self, _: &StreamGuard, to: &mut [T], mut fill: F) {
        fill_plainly(to, &mut fill);
    }

    /// The same.
    pub fn stream_halves<F: HalvesStreamSource>(self, _: &StreamGuard, to: &mut [F16], fill: F) {
        fill_plainly(to, &mut Converting { fill, widen: widen_plainly, narrow: narrow_plainly });
    }
}

/// Fills a slice element by element.
#[inline(always)]
fn fill_plainly<T: Copy>(to: &mut [T], fill: &mut impl StreamSource<T>) {
    fill.fill(StreamSink {
        places: to.as_chunks_mut::<1>().0.iter_mut(),
        store: |from: &[T; 1], to: &mut [T; 1]| *to = *from,
    });
}

/// Prefetches the cache line `bytes` behind the start of a slice, whether the slice reaches that far or not.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[expect(unsafe_code, reason = "the instruction takes a pointer")]
#[inline(always)]
pub fn prefetch<T>(data: &[T], bytes: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: the instruction is in the x86-64 baseline, reads nothing that the program sees, and does nothing where no
    // memory is.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(data.as_ptr().wrapping_byte_add(bytes).cast()) };
}

/// Nothing: the hardware prefetchers do it.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
pub fn prefetch<T>(_: &[T], _: usize) {}

/// Prefetches the cache lines `bytes` behind those of some elements.
#[inline(always)]
pub fn prefetch_ahead<T>(elements: &[T], bytes: usize) {
    for line in elements.chunks((LINE / size_of::<T>()).max(1)) {
        prefetch(line, bytes);
    }
}

/// How far ahead of its reads a loop prefetches, in bytes, on CPUs whose prefetchers leave off at the end of each page. No
/// whole page: float64 takes a quarter more then.
const PREFETCH_BYTES: usize = 3 << 10;

/// How far ahead of its reads a loop over memory that no cache holds prefetches, in bytes; 0 where it must not.
///
/// Intel's prefetchers want help: on a Xeon, sums take 1.2 and float16 into new memory 2.8 times as long without it. AMD's are
/// disturbed: on an EPYC (Zen 4) sums take 1.4 times as long with it. A prefetch of distance 0 costs nothing, since the loop
/// loads that very line.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn prefetch_distance() -> usize {
    /// 0: not asked for yet; else one more than the distance.
    static DISTANCE: AtomicUsize = AtomicUsize::new(0);
    DISTANCE.load(Ordering::Relaxed).checked_sub(1).unwrap_or_else(|| {
        let distance = if is_intel() { PREFETCH_BYTES } else { 0 };
        DISTANCE.store(distance + 1, Ordering::Relaxed);
        distance
    })
}

/// Other architectures have no prefetch here.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn prefetch_distance() -> usize {
    0
}

/// Whether the CPU names Intel as its vendor.
#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    vendor_and_family().0 == *b"GenuineIntel"
}

/// Whether 512-bit conversions between float32 and float64 take longer than two of 256 bits: AMD's Zen 4, on which sums of
/// squares of float32 that a cache holds take 1.4 times as long by AVX-512 as by AVX2, and scaling 1.3 times.
#[cfg(target_arch = "x86_64")]
fn has_slow_conversions() -> bool {
    /// Zen 3, which has no AVX-512, and Zen 4.
    const FAMILY: u32 = 0x19;
    vendor_and_family() == (*b"AuthenticAMD", FAMILY)
}

/// The CPU's vendor and family.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[allow(unused_unsafe, unsafe_code, reason = "the intrinsic is safe from Rust 1.94 on")]
fn vendor_and_family() -> ([u8; 12], u32) {
    use std::arch::x86_64::__cpuid;
    // SAFETY: every x86-64 CPU has the instruction, with these two leaves.
    let (vendor, version) = unsafe { (__cpuid(0), __cpuid(1)) };
    let mut name = [0; 12];
    for (to, from) in name.as_chunks_mut::<4>().0.iter_mut().zip([vendor.ebx, vendor.edx, vendor.ecx]) {
        *to = from.to_le_bytes();
    }
    // The extended family counts where the other is full.
    let (family, extended) = (version.eax >> 8 & 0xf, version.eax >> 20 & 0xff);
    (name, if family == 0xf { family + extended } else { family })
}

/// Miri has no such instruction.
#[cfg(all(target_arch = "x86_64", miri))]
fn vendor_and_family() -> ([u8; 12], u32) {
    (*b"Miri Miri Mi", 0)
}

/// Permission to write past the caches, and the fence that must follow.
///
/// Non-temporal stores are weakly ordered: another thread that sees a later plain store may still miss them. Dropping the
/// guard issues the store fence that orders them. Stores of one thread are fenced by that thread alone, so the guard is
/// neither `Send` nor `Sync`.
#[derive(Debug)]
pub struct StreamGuard(PhantomData<*const ()>);

impl StreamGuard {
    /// Begins to stream on this thread.
    #[must_use]
    pub fn begin() -> Self {
        Self(PhantomData)
    }
}

impl Drop for StreamGuard {
    /// Miri and other architectures have no non-temporal stores, and need no fence.
    #[cfg_attr(
        all(target_arch = "x86_64", not(miri)),
        expect(
            unsafe_code,
            reason = "the intrinsic belongs to a target feature, though to one of the baseline"
        )
    )]
    #[inline]
    fn drop(&mut self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: "sse" is in the x86-64 baseline.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

/// The instructions that Miri lacks, so that it can check what stands around them.
#[cfg(all(target_arch = "x86_64", miri))]
mod emulated {
    use std::arch::x86_64::{__m128i, __m256, __m256i, __m512, __m512d};
    use std::marker::PhantomData;
    use std::mem::transmute;

    use crate::element::F16;

    macro_rules! emulated {
        ($($narrow:ident: $floats:ty, $halves:ty, $count:literal;)*) => {
            $(#[expect(unsafe_code, reason = "see `Isa::run_on_halves`")]
            pub(super) fn $narrow<const ROUNDING: i32>(from: $floats) -> $halves {
                // SAFETY: as in `run_on_halves`.
                let from = unsafe { transmute::<$floats, [f32; $count]>(from) };
                // SAFETY: as in `run_on_halves`.
                unsafe { transmute::<[F16; $count], $halves>(from.map(F16::from_f32)) }
            })*
        };
    }
    emulated! {
        _mm256_cvtps_ph: __m256, __m128i, 8;
        _mm512_cvtps_ph: __m512, __m256i, 16;
    }

    #[expect(unsafe_code, reason = "see `Isa::run_on_halves`")]
    pub(super) fn _mm512_cvtph_ps(from: __m256i) -> __m512 {
        // SAFETY: as in `run_on_halves`.
        let from = unsafe { transmute::<__m256i, [F16; 16]>(from) };
        // SAFETY: as in `run_on_halves`.
        unsafe { transmute::<[f32; 16], __m512>(from.map(F16::to_f32)) }
    }

    /// Off by most of what the instruction may be off.
    #[expect(unsafe_code, reason = "see `Isa::run_on_roots`")]
    pub(super) fn _mm512_rsqrt14_pd(from: __m512d) -> __m512d {
        // SAFETY: as in `run_on_roots`.
        let from = unsafe { transmute::<__m512d, [f64; 8]>(from) };
        // SAFETY: as in `run_on_roots`.
        unsafe { transmute::<[f64; 8], __m512d>(from.map(|x| 1.00006 / x.sqrt())) }
    }
}
