//! The instruction sets: one table, and the only `#[target_feature]` of the crate.
//!
//! An operation is a value that implements [`Op`]. Its body is plain Rust, written once for all dtypes and all levels.
//! [`Isa::run`] compiles it once per level, in a trampoline that enables the level's features. `eval` and all functions that it
//! calls are `#[inline(always)]`, because a function that is not inlined is compiled without the features. Loops in it are
//! `for` loops, because `for_each` may be such a function.

use std::any::TypeId;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m128i, __m256i, __m512i, _mm_loadu_si128, _mm256_loadu_si256, _mm512_loadu_si512};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::arch::x86_64::{
    __m256, __m512, _mm_stream_si128, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_stream_si256, _mm512_cvtph_ps,
    _mm512_cvtps_ph, _mm512_stream_si512,
};
// Miri has no non-temporal stores. These replacements require the same alignment and write the same bytes.
#[cfg(all(target_arch = "x86_64", miri))]
use std::arch::x86_64::{
    _mm_store_si128 as _mm_stream_si128, _mm256_store_si256 as _mm256_stream_si256,
    _mm512_store_si512 as _mm512_stream_si512,
};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::element::{Element, F16, Ordered};

/// An operation, which is compiled once per instruction set.
pub trait Op {
    /// The result of `eval`.
    type Output;
    /// Whether conversions between float32 and float64 take most of the operation's time: see `has_slow_conversions`.
    const CONVERTS: bool = false;
    /// Does the work. Implementors are `#[inline(always)]`. `level` has the instructions that the compiler does not emit for
    /// plain Rust.
    fn eval<L: Level>(self, level: L) -> Self::Output;
}

/// Proof that this CPU runs two levels: the fields are private, and only an `Isa` of levels that were detected leaves this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isa {
    level: Number,
    /// The level of operations with [`Op::CONVERTS`].
    converting: Number,
}

/// The index in [`ALL`] of the instruction set that `Isa::choose` has chosen; [`NOT_CHOSEN`] before the first choice.
static CURRENT: AtomicUsize = AtomicUsize::new(NOT_CHOSEN);

const NOT_CHOSEN: usize = usize::MAX;

macro_rules! levels {
    ($($level:ident $name:literal: $($feature:tt),+;)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        enum Number { Baseline, $($level),* }

        $(
            #[doc = concat!("The instructions of ", $name, ": only the trampoline that enables its features makes one.")]
            #[derive(Clone, Copy, Debug)]
            pub struct $level(());
        )*

        /// All instruction sets and their names, narrowest first, whether this CPU runs them or not.
        static ALL: &[(&str, Isa)] = &[
            ("baseline", Isa::BASELINE),
            $(($name, Isa { level: Number::$level, converting: Number::$level }),)*
            #[cfg(target_arch = "x86_64")]
            ("x86-64-v4-zen4", Isa { level: Number::V4, converting: Number::V3 }),
        ];

        impl Number {
            /// Whether this CPU has all features of the level.
            fn is_detected(self) -> bool {
                match self {
                    Self::Baseline => true,
                    $(Self::$level => $(std::arch::is_x86_feature_detected!($feature))&&+,)*
                }
            }
        }

        impl Isa {
            /// Runs `op` compiled for its level.
            #[allow(unsafe_code, reason = "a #[target_feature] function wants a CPU on which the feature was detected; there may be none")]
            #[inline(always)]
            pub fn run<O: Op>(self, op: O) -> O::Output {
                let level = if O::CONVERTS { self.converting } else { self.level };
                match level {
                    Number::Baseline => {
                        // Out of line, like the trampolines: inlined code that no recent x86 CPU runs would fill every caller.
                        #[inline(never)]
                        fn baseline<O: Op>(op: O) -> O::Output { op.eval(Baseline) }
                        baseline(op)
                    }
                    $(Number::$level => {
                        #[target_feature($(enable = $feature),+)]
                        fn trampoline<O: Op>(op: O) -> O::Output { op.eval($level(())) }
                        // SAFETY: `available`, `choose` and `current` alone hand out an `Isa`. The first two have called
                        // `is_available`, so `is_detected` was true for both levels: it tests the features that `trampoline`
                        // enables. `current` returns what `choose` has stored, or the baseline.
                        unsafe { trampoline(op) }
                    })*
                }
            }
        }
    };
}

// The only list of levels.
//
// All of them have "fma". A fused product is not rounded before it is added, so the levels have the same bits only where the
// product or the result is exact anyway. Only two functions fuse: `fused_square` in `element.rs` squares numbers of at most 32
// bits and takes nothing else, and `fused_error` in `kernel/exact.rs` computes the rounding error of a square, which is exact.
// The compiler does not fuse by itself.
#[cfg(target_arch = "x86_64")]
levels! {
    V3 "x86-64-v3": "avx2", "bmi2", "f16c", "fma";
    V4 "x86-64-v4": "avx512f", "avx512bw", "avx512vl", "avx512dq", "bmi2", "fma";
}
#[cfg(not(target_arch = "x86_64"))]
levels! {}

impl Isa {
    const BASELINE: Self = Self { level: Number::Baseline, converting: Number::Baseline };

    /// Whether this CPU runs both levels. If they differ, also whether conversions are faster on this CPU at the second level.
    fn is_available(self) -> bool {
        self.level.is_detected()
            && self.converting.is_detected()
            && (self.level == self.converting || has_slow_conversions())
    }

    /// The instruction sets that this CPU runs, narrowest first; the last is the one to use.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        ALL.iter().map(|(_, isa)| *isa).filter(|isa| isa.is_available())
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(_, isa)| *isa == self).map_or("", |(name, _)| name)
    }

    /// The instruction set in use: the widest that this CPU runs, unless [`Isa::choose`] named another.
    #[inline]
    pub fn current() -> Self {
        let chosen = ALL.get(CURRENT.load(Ordering::Relaxed)).map(|(_, isa)| *isa);
        chosen.or_else(|| Self::choose(None)).unwrap_or(Self::BASELINE)
    }

    /// Uses the named instruction set from now on (`None`: the widest). Returns `None` if this CPU does not run it. For tests
    /// and measurements: every instruction set gives the same bits.
    pub fn choose(name: Option<&str>) -> Option<Self> {
        let is_meant = |known: &str| name.is_none_or(|name| name == known);
        let (at, (_, isa)) =
            ALL.iter().enumerate().rfind(|(_, (known, isa))| is_meant(known) && isa.is_available())?;
        CURRENT.store(at, Ordering::Relaxed);
        Some(*isa)
    }
}

/// Elements of float16 that [`Level::widen`] and [`Level::narrow`] convert at a time.
pub const CONVERTED: usize = 16;

/// The instructions of a level that the compiler does not emit for plain Rust. The default methods are plain Rust and give the
/// same bits. Implementors are `#[inline(always)]`, because a function that is not inlined is compiled without the features.
pub trait Level: Copy {
    /// Whether the level has a fused multiply-add, for exact products and exact results.
    const FUSED: bool = false;

    /// Converts float16 to float32, exactly.
    #[inline(always)]
    fn widen(self, x: &[F16; CONVERTED]) -> [f32; CONVERTED] {
        let mut to = [0.0; CONVERTED];
        for (to, x) in to.iter_mut().zip(x) {
            *to = x.to_f32();
        }
        to
    }

    /// Converts float32 to float16, rounded toward zero or to nearest, ties to even.
    #[inline(always)]
    fn narrow<const TOWARD_ZERO: bool>(self, x: &[f32; CONVERTED]) -> [F16; CONVERTED] {
        let mut to = [F16::default(); CONVERTED];
        for (to, x) in to.iter_mut().zip(x) {
            *to = if TOWARD_ZERO { F16::truncated(*x) } else { F16::from_f32(*x) };
        }
        to
    }

    /// Writes a cache line, by non-temporal stores where the level has them.
    ///
    /// # Safety
    ///
    /// `[T; N]` has the size [`LINE`], and `to` begins at a multiple of it.
    // SAFETY: this default method needs neither condition.
    #[expect(unsafe_code, reason = "those of the levels need both")]
    #[inline(always)]
    unsafe fn store_line<T: Element, const N: usize>(self, from: &[T; N], to: &mut [T; N]) {
        *to = *from;
    }
}

/// The instructions that every CPU of the architecture has.
#[derive(Clone, Copy, Debug)]
pub struct Baseline;

#[cfg(not(target_arch = "x86_64"))]
impl Level for Baseline {}

/// Implements `Level::store_line` with vectors of one type.
#[cfg(target_arch = "x86_64")]
macro_rules! store_line_by {
    ($vector:ty, $load:ident, $store:ident) => {
        // SAFETY: the caller has a whole line that is aligned, as the trait demands.
        #[expect(unsafe_code, reason = "the instructions take aligned pointers")]
        #[inline(always)]
        unsafe fn store_line<T: Element, const N: usize>(self, from: &[T; N], to: &mut [T; N]) {
            let (from, to) = (from.as_ptr().cast::<$vector>(), to.as_mut_ptr().cast::<$vector>());
            for i in 0..LINE / size_of::<$vector>() {
                // SAFETY: the caller's arrays have the size of a line, which the loop's vectors fill, and hold numbers without
                // padding; `to` begins at a multiple of `LINE`, so each vector written is aligned. The CPU has the
                // instruction: "sse2" is in the x86-64 baseline, and a token of another level is made only where its
                // features are enabled.
                unsafe { $store(to.add(i), $load(from.add(i))) };
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
impl Level for Baseline {
    store_line_by!(__m128i, _mm_loadu_si128, _mm_stream_si128);
}

/// Implements a level that converts float16 with vectors of 16-bit integers and of float32. `part` is a name for each vector of
/// [`CONVERTED`] elements. Miri lacks these instructions, so it checks the default methods.
#[cfg(target_arch = "x86_64")]
macro_rules! converting_level {
    (
        $level:ty, [$($part:ident),+]: $halves:ty => $floats:ty, $widen:ident, $narrow:ident;
        $vector:ty, $load:ident, $store:ident
    ) => {
        #[expect(unsafe_code, reason = "a token proves the features of its level; and numbers become vectors")]
        impl Level for $level {
            const FUSED: bool = true;

            #[cfg(not(miri))]
            #[inline(always)]
            fn widen(self, x: &[F16; CONVERTED]) -> [f32; CONVERTED] {
                // SAFETY: the vectors hold as many 16-bit integers, which is what an `F16` is, and as many float32, and any bits
                // are a value of these types. A token is made only where "f16c" or "avx512f" is enabled.
                unsafe {
                    let [$($part),+] = transmute::<[F16; CONVERTED], [$halves; _]>(*x);
                    transmute::<[$floats; _], [f32; CONVERTED]>([$($widen($part)),+])
                }
            }

            #[cfg(not(miri))]
            #[inline(always)]
            fn narrow<const TOWARD_ZERO: bool>(self, x: &[f32; CONVERTED]) -> [F16; CONVERTED] {
                // The instruction takes its own rounding mode, whatever mode the thread has set.
                use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT as TO_NEAREST, _MM_FROUND_TO_ZERO as TO_ZERO};
                // SAFETY: as in `widen`.
                unsafe {
                    let [$($part),+] = transmute::<[f32; CONVERTED], [$floats; _]>(*x);
                    transmute::<[$halves; _], [F16; CONVERTED]>(if TOWARD_ZERO {
                        [$($narrow::<TO_ZERO>($part)),+]
                    } else {
                        [$($narrow::<TO_NEAREST>($part)),+]
                    })
                }
            }

            store_line_by!($vector, $load, $store);
        }
    };
}

#[cfg(target_arch = "x86_64")]
converting_level! {
    V3, [low, high]: __m128i => __m256, _mm256_cvtph_ps, _mm256_cvtps_ph;
    __m256i, _mm256_loadu_si256, _mm256_stream_si256
}
#[cfg(target_arch = "x86_64")]
converting_level! {
    V4, [all]: __m256i => __m512, _mm512_cvtph_ps, _mm512_cvtps_ph;
    __m512i, _mm512_loadu_si512, _mm512_stream_si512
}

/// The slice, if its elements are of type `U`: some kernels take one dtype alone.
#[expect(unsafe_code, reason = "Rust has no cast of slices by type")]
#[inline(always)]
pub fn slice_of<U: Element, T: Element>(data: &[T]) -> Option<&[U]> {
    let is_same = TypeId::of::<T>() == TypeId::of::<U>();
    // SAFETY: `T` and `U` are one type, and the pointer comes from a reference of the same lifetime.
    if is_same { Some(unsafe { &*(ptr::from_ref(data) as *const [U]) }) } else { None }
}

/// The mutable slice, if its elements are of type `U`.
#[expect(unsafe_code, reason = "Rust has no cast of slices by type")]
#[inline(always)]
pub fn slice_of_mut<U: Element, T: Element>(data: &mut [T]) -> Option<&mut [U]> {
    let is_same = TypeId::of::<T>() == TypeId::of::<U>();
    // SAFETY: as in `slice_of`; the reference is the only one to the slice.
    if is_same { Some(unsafe { &mut *(ptr::from_mut(data) as *mut [U]) }) } else { None }
}

/// Reads contiguous cells into `data`, or writes them from it; both have one length. One atomic access moves all cells of a word.
#[expect(unsafe_code, reason = "words are made of several cells, and of several elements")]
#[inline(always)]
pub fn transfer_words<T: Ordered, const WRITES: bool>(data: &mut [T], cells: &[T::Cell]) {
    let one_by_one = |data: &mut [T], cells: &[T::Cell]| {
        for (x, cell) in data.iter_mut().zip(cells) {
            x.transfer::<WRITES>(cell);
        }
    };
    // SAFETY: a cell is an atomic integer of the element's size, at most that of a word, so any bits are a value of both types. A
    // word consists of cells of this slice. No other thread of the call accesses them, by words or alone: `overlap::keep_apart` has
    // refused outputs that share a byte, and the parts of one output have different positions.
    let (head, words, tail) = unsafe { cells.align_to::<AtomicU64>() };
    let (first, rest) = data.split_at_mut(head.len());
    let (whole, last) = rest.split_at_mut(size_of_val(words) / size_of::<T>());
    one_by_one(first, head);
    let place = whole.as_mut_ptr().cast::<u64>();
    for (i, word) in words.iter().enumerate() {
        // SAFETY: `whole` has the bytes of `words`, which are elements without padding, and any bits are an element.
        unsafe {
            let place = place.add(i);
            if WRITES {
                word.store(place.read_unaligned(), Ordering::Relaxed);
            } else {
                place.write_unaligned(word.load(Ordering::Relaxed));
            }
        }
    }
    one_by_one(last, tail);
}

impl Isa {
    /// Whether the level converts float16 by instructions of the CPU.
    pub fn converts_halves(self) -> bool {
        self.level != Number::Baseline
    }

    /// Applies a function to the elements of `from`, and writes the results to `to`, a slice of the same length, by
    /// non-temporal stores. Such a store does not fetch a cache line before it overwrites the line, and does not evict other
    /// data from the caches. Whole lines go from registers to memory.
    pub fn stream<T: Element>(self, guard: &StreamGuard, from: &[T], to: &mut [T], lines: impl Lines<T>) {
        self.run(Stream { from, to, lines, guard });
    }
}

/// A function of an element, which is applied to all elements of a cache line at a time.
pub trait Lines<T> {
    /// The function's values for `N` elements. Implementors are `#[inline(always)]`.
    fn line<const N: usize, L: Level>(&self, level: L, from: &[T; N]) -> [T; N];
}

/// Copies elements.
pub struct Identity;

impl<T: Element> Lines<T> for Identity {
    #[inline(always)]
    fn line<const N: usize, L: Level>(&self, _: L, from: &[T; N]) -> [T; N] {
        *from
    }
}

/// Fills a slice by non-temporal stores, see [`Isa::stream`].
pub struct Stream<'a, T, F> {
    /// The slice to read.
    pub from: &'a [T],
    /// The slice to write, of the same length.
    pub to: &'a mut [T],
    /// The function of the elements.
    pub lines: F,
    /// The guard that issues the fence after the stores.
    pub guard: &'a StreamGuard,
}

impl<T: Element, F: Lines<T>> Op for Stream<'_, T, F> {
    type Output = ();
    #[inline(always)]
    fn eval<L: Level>(self, level: L) {
        // The constants are the elements of a cache line.
        match size_of::<T>() {
            1 => self.by_lines::<64, L>(level),
            2 => self.by_lines::<32, L>(level),
            4 => self.by_lines::<16, L>(level),
            _ => self.by_lines::<8, L>(level),
        }
    }
}

impl<T: Element, F: Lines<T>> Stream<'_, T, F> {
    /// Fills the slice. [`Level::store_line`] writes the whole cache lines. There are none if the elements are not aligned to
    /// their size.
    #[expect(unsafe_code, reason = "see `Level::store_line`")]
    #[inline(always)]
    fn by_lines<const N: usize, L: Level>(self, level: L) {
        let Self { from, to, lines, .. } = self;
        let distance = prefetch_distance();
        let (to_ahead, to) = to.split_at_mut(to.as_ptr().align_offset(LINE).min(to.len()));
        let (from_ahead, from) = from.split_at(to_ahead.len());
        let ((whole, to_rest), (from, from_rest)) = (to.as_chunks_mut::<N>(), from.as_chunks::<N>());
        for (to, from) in to_ahead.iter_mut().zip(from_ahead) {
            [*to] = lines.line(level, &[*from]);
        }
        for (to, from) in whole.iter_mut().zip(from) {
            prefetch_ahead(from, distance);
            let made = lines.line(level, from);
            if size_of::<[T; N]>() == LINE {
                // SAFETY: the array has the size of a line, and `whole` begins where `align_offset` found a multiple of `LINE`.
                unsafe { level.store_line(&made, to) };
            } else {
                *to = made;
            }
        }
        for (to, from) in to_rest.iter_mut().zip(from_rest) {
            [*to] = lines.line(level, &[*from]);
        }
    }
}

/// Bytes of a cache line. Non-temporal stores write whole lines.
pub const LINE: usize = 64;

/// Numbers aligned to cache lines. A register of AVX-512 is as large as a line, and an access that crosses two lines takes
/// twice as long. By itself, the compiler aligns arrays on the stack to 16 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct Aligned<A>(pub A);

/// Calls `work` with `len` elements on the stack, at most `N`, that are all `value`. No other elements are written. The compiler
/// may build an initialized array elsewhere and then copy it to its aligned place. Copies of 8 KiB on the stack take microseconds
/// on AMD's Zen 3.
#[expect(unsafe_code, reason = "elements that are not used stay uninitialized")]
#[inline]
pub fn on_stack<const N: usize, T: Copy, R>(value: T, len: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    let Aligned(room) = &mut Aligned([const { MaybeUninit::uninit() }; N]);
    let room = &mut room[..len];
    room.fill(MaybeUninit::new(value));
    // SAFETY: `fill` has initialized all elements of the slice. A `MaybeUninit<T>` has the layout of a `T`.
    work(unsafe { &mut *(ptr::from_mut(room) as *mut [T]) })
}

/// Prefetches the cache lines `bytes` bytes after those of `elements`, even if no slice contains them. On other architectures
/// than x86-64, only the hardware prefetches.
#[allow(
    unsafe_code,
    unused_variables,
    reason = "the instruction takes a pointer; other architectures lack it"
)]
#[inline(always)]
pub fn prefetch_ahead<T>(elements: &[T], bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in elements.chunks((LINE / size_of::<T>()).max(1)) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction is in the x86-64 baseline, reads nothing that the program sees, and does nothing where no
        // memory is mapped.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_byte_add(bytes).cast()) };
    }
}

/// How far ahead of its reads a loop prefetches, in bytes, on CPUs whose prefetchers stop at the end of each page. It is less
/// than a page (4 KiB): at a whole page, float64 takes a quarter longer.
const PREFETCH_BYTES: usize = 3 << 10;

/// How far ahead of its reads a loop prefetches, in bytes.
///
/// Intel CPUs gain by it: without it, on a Xeon, sums take 1.2 times as long and float16 into new memory 2.8 times. AMD CPUs lose
/// by it: on an EPYC (Zen 4), sums take 1.4 times as long. On all CPUs but Intel's the distance is 0: a loop prefetches the line
/// that it reads next, which costs sums in a cache at most 4 %. Other architectures do not prefetch here.
#[inline]
pub fn prefetch_distance() -> usize {
    /// 0: not yet determined; else the distance plus one.
    static DISTANCE: AtomicUsize = AtomicUsize::new(0);
    if !cfg!(target_arch = "x86_64") {
        return 0;
    }
    DISTANCE.load(Ordering::Relaxed).checked_sub(1).unwrap_or_else(|| {
        let distance = if vendor_and_family().0 == *b"GenuineIntel" { PREFETCH_BYTES } else { 0 };
        DISTANCE.store(distance + 1, Ordering::Relaxed);
        distance
    })
}

/// Whether one 512-bit conversion between float32 and float64 takes longer than two of 256 bits, as on AMD's Zen 4. For float32
/// in cache, AVX-512 takes 1.4 times as long as AVX2 there for sums of squares, and 1.3 times as long for scaling.
fn has_slow_conversions() -> bool {
    /// The family of Zen 3, which has no AVX-512, and Zen 4.
    const FAMILY: u32 = 0x19;
    vendor_and_family() == (*b"AuthenticAMD", FAMILY)
}

/// The CPU's vendor and family.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[allow(unused_unsafe, unsafe_code, reason = "the intrinsic is safe from Rust 1.94 on")]
fn vendor_and_family() -> ([u8; 12], u32) {
    use std::arch::x86_64::__cpuid;
    // SAFETY: every x86-64 CPU has the instruction, with leaves 0 and 1.
    let (vendor, version) = unsafe { (__cpuid(0), __cpuid(1)) };
    let mut name = [0; 12];
    for (to, from) in name.as_chunks_mut::<4>().0.iter_mut().zip([vendor.ebx, vendor.edx, vendor.ecx]) {
        *to = from.to_le_bytes();
    }
    // The extended family is added if the family field is at its maximum.
    let (family, extended) = (version.eax >> 8 & 0xf, version.eax >> 20 & 0xff);
    (name, if family == 0xf { family + extended } else { family })
}

/// Miri and other architectures have no `cpuid`.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn vendor_and_family() -> ([u8; 12], u32) {
    ([0; 12], 0)
}

/// Permission to use non-temporal stores, and the fence that must follow them.
///
/// Non-temporal stores are weakly ordered: another thread that sees a later plain store may still miss them. Dropping the
/// guard issues the store fence that orders them. Stores of one thread are fenced by that thread alone, so the guard is
/// neither `Send` nor `Sync`.
#[must_use = "dropping it ends the non-temporal stores"]
#[derive(Debug)]
pub struct StreamGuard(PhantomData<*const ()>);

impl StreamGuard {
    /// Begins non-temporal stores on this thread.
    pub fn begin() -> Self {
        Self(PhantomData)
    }
}

impl Drop for StreamGuard {
    /// Miri and other architectures have no non-temporal stores, and need no fence.
    #[allow(unsafe_code, reason = "the intrinsic belongs to a target feature, though to one of the baseline")]
    #[inline]
    fn drop(&mut self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: "sse" is in the x86-64 baseline.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

/// Keeps the floating-point control register of this thread at its default, until it is dropped: rounding to nearest, with
/// subnormal numbers and without traps.
///
/// Other code of the process may have changed it, for example `torch.set_flush_denormal(True)` or a library that was linked with
/// `-ffast-math`. The kernels, and Rust itself, expect the default. The register belongs to the thread, so this type is neither
/// `Send` nor `Sync`.
#[must_use = "dropping it restores the register"]
pub struct FloatDefaults {
    /// The value to restore, if it was not the default.
    changed: Option<u64>,
    of_thread: PhantomData<*const ()>,
}

impl FloatDefaults {
    /// Sets the default.
    #[inline]
    pub fn set() -> Self {
        let found = control::read();
        let changed = (found & control::BITS != control::DEFAULT).then_some(found);
        if changed.is_some() {
            control::write(control::DEFAULT);
        }
        Self { changed, of_thread: PhantomData }
    }
}

impl Drop for FloatDefaults {
    #[inline]
    fn drop(&mut self) {
        if let Some(changed) = self.changed {
            control::write(changed);
        }
    }
}

/// The floating-point control register of a thread: MXCSR of SSE and AVX, or FPCR. On Miri and other architectures, it is taken to be
/// at its default.
mod control {
    /// Rounding to nearest, all exceptions masked.
    pub(super) const DEFAULT: u64 = if cfg!(target_arch = "x86_64") { 0x1f80 } else { 0 };
    /// All bits but the flags of past exceptions, the lowest six of MXCSR.
    pub(super) const BITS: u64 = if cfg!(target_arch = "x86_64") { !0x3f } else { !0 };

    #[allow(
        unsafe_code,
        unused_mut,
        unused_assignments,
        reason = "an instruction without an intrinsic; there may be none"
    )]
    #[inline]
    pub(super) fn read() -> u64 {
        let mut register = DEFAULT;
        // SAFETY: the instruction is in the x86-64 baseline and writes the lower 4 bytes at the address.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut register, options(nostack, preserves_flags));
        };
        // SAFETY: the instruction reads a register that user code may read.
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        unsafe {
            std::arch::asm!("mrs {}, fpcr", out(reg) register, options(nomem, nostack, preserves_flags));
        };
        register
    }

    /// Writes the default, which Rust expects, or what was read before, whose owner gets it back.
    #[allow(unsafe_code, unused_variables, reason = "an instruction without an intrinsic; there may be none")]
    pub(super) fn write(register: u64) {
        // SAFETY: the instruction is in the x86-64 baseline and reads the lower 4 bytes at the address.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const register, options(nostack));
        };
        // SAFETY: user code may write the register.
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        unsafe {
            std::arch::asm!("msr fpcr, {}", in(reg) register, options(nostack, preserves_flags));
        };
    }
}
