//! The instruction sets: one table, and the only `#[target_feature]` of the crate.
//!
//! An operation is a value that implements [`Op`]. Its body is plain Rust, written once for all dtypes and
//! all levels; [`Isa::run`] compiles it once per level, in a shell that enables the level's features. `eval`
//! and all it calls are `#[inline(always)]`, because features do not follow a call that is not inlined, and
//! loops in it are
//! `for` loops, because an iterator's `for_each` is such a call.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::element::F16;

/// Work to compile once per instruction set.
pub trait Op {
    /// What `eval` returns.
    type Output;
    /// Does the work. Implementors are `#[inline(always)]`.
    fn eval(self) -> Self::Output;
}

/// Proof that this CPU runs a level: the field is private and only detection fills it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isa(Level);

/// 0: not chosen yet. Else one more than the level's number.
static CURRENT: AtomicU8 = AtomicU8::new(0);

macro_rules! levels {
    ($($level:ident $name:literal: $($feature:tt),+;)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
        enum Level { Baseline, $($level),* }

        impl Isa {
            /// The levels this CPU runs, narrowest first; the last is the one to use.
            pub fn available() -> impl DoubleEndedIterator<Item = Self> {
                let found = [
                    Some(Level::Baseline),
                    $(($(std::arch::is_x86_feature_detected!($feature))&&+).then_some(Level::$level)),*
                ];
                found.into_iter().flatten().map(Self)
            }

            /// What `choose` stored; it has one from `available`, so it is a proof too.
            #[inline]
            fn chosen(number: u8) -> Option<Self> {
                match number {
                    n if n == Level::Baseline as u8 + 1 => Some(Self(Level::Baseline)),
                    $(n if n == Level::$level as u8 + 1 => Some(Self(Level::$level)),)*
                    _ => None,
                }
            }

            /// The level's name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self.0 { Level::Baseline => "baseline", $(Level::$level => $name),* }
            }

            /// Runs `op` compiled for this level.
            #[allow(unsafe_code, reason = "a #[target_feature] function wants a CPU on which the feature was detected; there may be none")]
            #[inline]
            pub fn run<O: Op>(self, op: O) -> O::Output {
                match self.0 {
                    Level::Baseline => op.eval(),
                    $(Level::$level => {
                        #[target_feature($(enable = $feature),+)]
                        fn shell<O: Op>(op: O) -> O::Output { op.eval() }
                        // SAFETY: an `Isa` of this level is made by `available` alone, after it detected the
                        // very list of features that `shell` enables.
                        unsafe { shell(op) }
                    })*
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
levels! { // the ISA column of the matrix, in one place. No "fma": nothing may round differently from level to level.
    V3 "x86-64-v3": "avx2", "bmi2", "f16c";
    V4 "x86-64-v4": "avx512f", "avx512bw", "avx512vl", "avx512dq", "bmi2";
}
#[cfg(not(target_arch = "x86_64"))]
levels! {}

impl Isa {
    /// The level in use: the widest this CPU runs, unless [`Isa::choose`] named another.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        Self::chosen(CURRENT.load(Ordering::Relaxed))
            .unwrap_or_else(|| Self::choose(None).unwrap_or(Self(Level::Baseline)))
    }

    /// Uses the named level from now on (`None`: the widest). `None` when this CPU does not run it. For tests
    /// and measurements: every level gives the same bits.
    pub fn choose(name: Option<&str>) -> Option<Self> {
        let isa = Self::available().rfind(|isa| name.is_none_or(|name| name == isa.name()))?;
        CURRENT.store(isa.0 as u8 + 1, Ordering::Relaxed);
        Some(isa)
    }
}

// Between float16 and float32 CPUs have instructions that the compiler does not find in plain Rust. They give the bits
// of the plain conversion.
#[cfg(target_arch = "x86_64")]
impl Isa {
    /// float16 as float32, exactly.
    #[expect(unsafe_code, reason = "see `run`")]
    pub fn widen_halves(self, from: &[F16], to: &mut [f32]) {
        use std::arch::x86_64::{__m128i, __m256, __m256i, __m512, _mm256_cvtph_ps, _mm512_cvtph_ps};
        use std::mem::transmute;

        macro_rules! shell {
            ($name:ident, $feature:literal, $convert:ident, $halves:ty, $floats:ty, $count:literal) => {
                #[target_feature(enable = $feature)]
                fn $name(from: &[F16], to: &mut [f32]) {
                    let (from, rest) = from.as_chunks::<$count>();
                    let (to, rest_to) = to.as_chunks_mut::<$count>();
                    for (from, to) in from.iter().zip(to) {
                        // SAFETY: the vectors hold as many 16-bit integers, which is what an `F16` is, and as many
                        // float32, and any bits are a value of these types.
                        *to = unsafe {
                            transmute::<$floats, [f32; $count]>($convert(
                                transmute::<[F16; $count], $halves>(*from),
                            ))
                        };
                    }
                    widen_plainly(rest, rest_to);
                }
            };
        }
        shell!(eight, "f16c", _mm256_cvtph_ps, __m128i, __m256, 8);
        shell!(sixteen, "avx512f", _mm512_cvtph_ps, __m256i, __m512, 16);

        match self.0 {
            Level::Baseline => widen_plainly(from, to),
            // SAFETY: an `Isa` of this level is made by `available` alone, after it detected all features in the
            // level's row, "f16c" among them.
            Level::V3 => unsafe { eight(from, to) },
            // SAFETY: the same, with "avx512f".
            Level::V4 => unsafe { sixteen(from, to) },
        }
    }

    /// float32 as float16, rounded to nearest, ties to even.
    #[expect(unsafe_code, reason = "see `run`")]
    pub fn narrow_halves(self, from: &[f32], to: &mut [F16]) {
        use std::arch::x86_64::{
            __m128i, __m256, __m256i, __m512, _MM_FROUND_TO_NEAREST_INT, _mm256_cvtps_ph, _mm512_cvtps_ph,
        };
        use std::mem::transmute;

        /// Whatever the thread has set.
        const TO_NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

        macro_rules! shell {
            ($name:ident, $feature:literal, $convert:ident, $floats:ty, $halves:ty, $count:literal) => {
                #[target_feature(enable = $feature)]
                fn $name(from: &[f32], to: &mut [F16]) {
                    let (from, rest) = from.as_chunks::<$count>();
                    let (to, rest_to) = to.as_chunks_mut::<$count>();
                    for (from, to) in from.iter().zip(to) {
                        // SAFETY: as in `widen_halves`.
                        *to = unsafe {
                            transmute::<$halves, [F16; $count]>($convert::<TO_NEAREST>(transmute::<
                                [f32; $count],
                                $floats,
                            >(*from)))
                        };
                    }
                    narrow_plainly(rest, rest_to);
                }
            };
        }
        shell!(eight, "f16c", _mm256_cvtps_ph, __m256, __m128i, 8);
        shell!(sixteen, "avx512f", _mm512_cvtps_ph, __m512, __m256i, 16);

        match self.0 {
            Level::Baseline => narrow_plainly(from, to),
            // SAFETY: as in `widen_halves`.
            Level::V3 => unsafe { eight(from, to) },
            // SAFETY: as in `widen_halves`.
            Level::V4 => unsafe { sixteen(from, to) },
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Isa {
    /// float16 as float32, exactly.
    pub fn widen_halves(self, from: &[F16], to: &mut [f32]) {
        widen_plainly(from, to);
    }

    /// float32 as float16, rounded to nearest, ties to even.
    pub fn narrow_halves(self, from: &[f32], to: &mut [F16]) {
        narrow_plainly(from, to);
    }
}

#[inline(always)]
fn widen_plainly(from: &[F16], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.to_f32();
    }
}

#[inline(always)]
fn narrow_plainly(from: &[f32], to: &mut [F16]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = F16::from_f32(*from);
    }
}
