//! The table of dtypes, and the element traits that the kernels use.
//!
//! A new dtype is one row at the end of this file (and, for a type that Rust lacks, the type itself).

#![allow(unused_qualifications, reason = "the macros of the table name its types in other modules")]

mod complex;
mod half;

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

pub use complex::Complex;
pub use half::{Bf16, F16, Half, to_odd};

/// An array element that can be read and has a modulus, so that it has norms.
pub trait Element: Copy + std::fmt::Debug + PartialEq + Send + Sync + 'static {
    /// Its row of the table.
    const DTYPE: Dtype;
    /// Zero, for scratch memory.
    const ZERO: Self;
    /// Whether it is float64 or complex128, whose squares and sums of moduli can leave float64's range. Those of other types
    /// cannot.
    const DOUBLE: bool = Self::DTYPE.is_scalable() && matches!(Self::DTYPE.norms(), Dtype::F64);
    /// Whether sums read elements of this type directly. Blocks of other dtypes are converted to float64 first. That takes
    /// longer for data in cache, but saves a kernel for the dtype.
    const DIRECT: bool = Self::DTYPE.is_scalable();
    /// The number of float64 that represent a modulus exactly; see [`Element::limb`].
    const LIMBS: usize = 1;
    /// A number that sorts like the modulus. NaN sorts above infinity.
    type Magnitude: Copy + Ord + Default + Send;
    /// The elements of an array of norms: see [`Dtype::norms`].
    type Norm: Real;

    /// Reads an element from the first bytes of `bytes`, in native byte order, or the opposite one if `swapped`.
    fn from_bytes(bytes: &[u8], swapped: bool) -> Self;
    /// `|self * by|`, for a power of two.
    fn modulus(self, by: f64) -> f64;
    /// `|self * by|^2`, for a power of two.
    #[inline(always)]
    fn square(self, by: f64) -> f64 {
        let size = self.modulus(by);
        size * size
    }
    /// `sum` plus the square, for levels with a fused multiply-add. The result has the bits of the separate operations.
    #[inline(always)]
    fn add_square(self, sum: f64) -> f64 {
        sum + self.square(1.0)
    }
    /// The modulus as `(value, exponent)`: `value * 2^exponent`, neither rounded to a subnormal nor overflowed.
    #[inline(always)]
    fn lifted(self) -> (f64, f64) {
        (self.modulus(1.0), 0.0)
    }
    /// One of the [`Element::LIMBS`] numbers whose sum is the modulus, exactly.
    #[inline(always)]
    fn limb(self, _: usize) -> f64 {
        self.modulus(1.0)
    }
    /// See [`Element::Magnitude`].
    fn magnitude(self) -> Self::Magnitude;
    /// The modulus as float64; NaN has one payload.
    fn from_magnitude(magnitude: Self::Magnitude) -> f64;
}

/// An element that can be clipped to bounds, and written.
pub trait Ordered: Element + PartialOrd {
    /// The value for a lower bound that is absent: no element is smaller.
    const LOWEST: Self;
    /// The value for an upper bound that is absent: no element is larger.
    const HIGHEST: Self;
    /// An atomic with the bits of an element. Strided outputs are written through it, so that several threads may hold views of
    /// interleaved memory without a data race. For one element it compiles to a plain move.
    type Cell: Send + Sync;

    /// Reads a cell.
    fn load(cell: &Self::Cell) -> Self;
    /// Writes a cell.
    fn store(self, cell: &Self::Cell);
    /// Reads a cell, or writes it.
    #[inline(always)]
    fn transfer<const WRITES: bool>(&mut self, cell: &Self::Cell) {
        if WRITES {
            self.store(cell);
        } else {
            *self = Self::load(cell);
        }
    }
    /// The element with its bytes in reverse order.
    fn swapped(self) -> Self;
    /// Reads an element byte by byte.
    fn load_bytes(cells: &[AtomicU8]) -> Self;
    /// Writes the bytes of an element.
    fn write_bytes(self, to: &mut [u8], swapped: bool);
    /// Writes an element byte by byte.
    fn store_bytes(self, cells: &[AtomicU8]);
    /// Whether it is NaN.
    fn is_nan(self) -> bool;
    /// `magnitude` or its negative, rounded to nearest, and saturated at the ends of the range.
    fn from_integer(negative: bool, magnitude: u128) -> Self;
    /// `x`, rounded to nearest by floats and toward zero by integers, and saturated at the ends of the range.
    fn from_float(x: f64) -> Self;
}

/// A floating-point element.
pub trait Real: Ordered {
    /// Converts to float64, exactly.
    fn widen(self) -> f64;
    /// Converts from float64, rounded once, to nearest, ties to even.
    fn narrow(x: f64) -> Self;
    /// Converts from float32, rounded once, to nearest, ties to even.
    fn narrow_single(x: f32) -> Self;
    /// The magnitude of `self` with the sign of `other`.
    fn with_sign_of(self, other: Self) -> Self;
}

/// An element that can be scaled: a floating-point number, or a complex number made of two.
pub trait Scalable: Element {
    /// The element itself, or the type of the real and of the imaginary part.
    type Part: Real + Element<Norm = Self::Norm>;
    /// The number of parts of an element.
    const PARTS: usize;
    /// The elements that neighbouring parts make.
    fn of_parts(parts: &[Self::Part]) -> &[Self];
}

impl<T: Real> Scalable for T {
    type Part = Self;
    const PARTS: usize = 1;
    #[inline(always)]
    fn of_parts(parts: &[Self]) -> &[Self] {
        parts
    }
}

impl<T: Real> Scalable for Complex<T>
where
    Self: Element<Norm = T::Norm>,
{
    type Part = T;
    const PARTS: usize = 2;
    #[inline(always)]
    fn of_parts(parts: &[T]) -> &[Self] {
        parts.as_chunks().0
    }
}

/// NumPy's `bool`: a byte, true unless it is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
pub struct Bool(u8);

/// `sum + x * x`, in one instruction where the level has a fused multiply-add. (Elsewhere, `mul_add` would call the C library.)
///
/// float64 has more than twice the 24 digits of `x`, and more than twice its range of exponents. So the square is exact, and
/// only the sum is rounded, fused or not. Squares of float64 are not exact, so there is no such function for them.
#[inline(always)]
fn fused_square(x: f32, sum: f64) -> f64 {
    let x = f64::from(x);
    x.mul_add(x, sum)
}

/// Truncates to the 53 digits of float64 with a sticky last digit (round to odd), so that rounding the result again gives the
/// same number as rounding `n` directly.
fn sticky(n: u128) -> f64 {
    let excess = (u128::BITS - n.leading_zeros()).saturating_sub(f64::MANTISSA_DIGITS);
    let more = n & ((1 << excess) - 1) != 0;
    (((n >> excess) | u128::from(more)) << excess) as f64
}

/// The first N bytes, in native byte order.
#[inline(always)]
fn native<const N: usize>(bytes: &[u8], swapped: bool) -> [u8; N] {
    let mut own = [0; N];
    own.copy_from_slice(&bytes[..N]);
    if swapped {
        own.reverse();
    }
    own
}

macro_rules! elements {
    (
        // `$` itself, so that the macros below can be defined by this one.
        ($d:tt)
        float { $(
            $R:ident: $r:ty, $rbits:ty, $rmagnitude:ty, $rcell:ty, $rname:literal, $rnumber:literal, norms: $rnorm:ty,
            |$x:ident| $narrow:expr, |$single:ident| $narrow_single:expr;
        )* }
        integer { $($I:ident: $i:ty, $ibits:ty, $icell:ty, $iname:literal, $inumber:literal;)* }
        complex { $($C:ident: $c:ty, of $cpart:ident, $cname:literal, $cnumber:literal, norms: $cnorm:ty;)* }
        bool { $B:ident: $b:ty, $bname:literal, $bnumber:literal; }
    ) => {
        /// The dtypes that gradclip handles.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "the names say it")]
        pub enum Dtype { $($R,)* $($C,)* $($I,)* $B }

        impl Dtype {
            /// All dtypes, in the order in which messages list them.
            pub const ALL: &'static [Self] = &[$(Self::$R,)* $(Self::$C,)* $(Self::$I,)* Self::$B];

            /// NumPy's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$R => $rname,)* $(Self::$C => $cname,)* $(Self::$I => $iname,)* Self::$B => $bname }
            }

            /// NumPy's type number, part of its binary interface. It is negative for a dtype that NumPy lacks: NumPy gives it a
            /// number when it is registered. (C's `long` has another number for the same bits.)
            pub const fn number(self) -> i32 {
                match self { $(Self::$R => $rnumber,)* $(Self::$C => $cnumber,)* $(Self::$I => $inumber,)* Self::$B => $bnumber }
            }

            /// Bytes of one element.
            pub const fn size(self) -> usize {
                match self {
                    $(Self::$R => size_of::<$r>(),)*
                    $(Self::$C => size_of::<$c>(),)*
                    $(Self::$I => size_of::<$i>(),)*
                    Self::$B => size_of::<$b>(),
                }
            }

            /// The dtype of an array of norms: float32 for the narrow dtypes, float64 for the others.
            pub const fn norms(self) -> Self {
                match self {
                    $(Self::$R => <$rnorm as Element>::DTYPE,)*
                    $(Self::$C => <$cnorm as Element>::DTYPE,)*
                    _ => Self::F64,
                }
            }

            /// Whether it is a floating-point dtype.
            pub const fn is_float(self) -> bool {
                match self { $(Self::$R => true,)* _ => false }
            }

            /// Whether its elements are ordered, so that they can be clipped to bounds.
            pub const fn is_ordered(self) -> bool {
                match self { $(Self::$R => true,)* $(Self::$I => true,)* _ => false }
            }

            /// The dtype of the real and imaginary parts of a complex dtype; None for other dtypes.
            pub const fn parts(self) -> Option<Self> {
                match self { $(Self::$C => Some(Self::$cpart),)* _ => None }
            }

            /// Whether its elements can be multiplied by a factor, and so be clipped by their norm.
            pub const fn is_scalable(self) -> bool {
                self.is_float() || self.parts().is_some()
            }
        }

        $(
            impl Element for $r {
                const DTYPE: Dtype = Dtype::$R;
                const ZERO: Self = <$r>::from_bits(0);
                // The type is signed, because SSE and AVX compare only signed integers.
                type Magnitude = $rmagnitude;
                type Norm = $rnorm;

                #[inline(always)]
                fn from_bytes(bytes: &[u8], swapped: bool) -> Self {
                    Self::from_bits(<$rbits>::from_ne_bytes(native(bytes, swapped)))
                }
                #[inline(always)]
                fn modulus(self, by: f64) -> f64 {
                    (self.widen() * by).abs()
                }
                // The default squares the modulus. For float32, the compiler would not drop `abs`.
                #[inline(always)]
                fn square(self, by: f64) -> f64 {
                    let x = self.widen() * by;
                    x * x
                }
                #[inline(always)]
                fn add_square(self, sum: f64) -> f64 {
                    if Self::DOUBLE { sum + self.square(1.0) } else { fused_square(self.widen() as f32, sum) }
                }
                #[inline(always)]
                fn magnitude(self) -> $rmagnitude { (self.to_bits() & (<$rbits>::MAX >> 1)).cast_signed() }
                #[inline(always)]
                fn from_magnitude(magnitude: $rmagnitude) -> f64 {
                    let x = f64::from(<$r>::from_bits(magnitude.cast_unsigned()));
                    if x.is_nan() { f64::NAN } else { x }
                }
            }
            ordered!(
                $r, $rbits, $rcell, <$r>::NEG_INFINITY, <$r>::INFINITY,
                |bits| Self::from_bits(bits), |x| x.to_bits(), |x| <$r>::is_nan(x),
                |negative, n| {
                    let x = Self::narrow(if Self::DOUBLE { n as f64 } else { sticky(n) });
                    if negative { Self::from_bits(x.to_bits() | !(<$rbits>::MAX >> 1)) } else { x }
                },
                |x| Self::narrow(x)
            );
            impl Real for $r {
                #[inline(always)]
                fn widen(self) -> f64 { f64::from(self) }
                #[inline(always)]
                fn narrow($x: f64) -> Self { $narrow }
                #[inline(always)]
                fn narrow_single($single: f32) -> Self { $narrow_single }
                #[inline(always)]
                fn with_sign_of(self, other: Self) -> Self { self.copysign(other) }
            }
        )*
        $(
            impl Element for $i {
                const DTYPE: Dtype = Dtype::$I;
                const ZERO: Self = 0;
                const LIMBS: usize = if size_of::<$i>() > 4 { 2 } else { 1 };
                type Magnitude = $ibits;
                type Norm = f64;

                #[inline(always)]
                fn from_bytes(bytes: &[u8], swapped: bool) -> Self { Self::from_ne_bytes(native(bytes, swapped)) }
                #[inline(always)]
                fn modulus(self, by: f64) -> f64 { u64::from(self.magnitude()) as f64 * by }
                #[inline(always)]
                fn limb(self, limb: usize) -> f64 {
                    let size = u64::from(self.magnitude());
                    let upper = size >> 32 << 32;
                    let lower = if Self::LIMBS > 1 { size - upper } else { size };
                    if limb + 1 == Self::LIMBS { lower as f64 } else { upper as f64 }
                }
                #[inline(always)]
                fn magnitude(self) -> $ibits {
                    // Wrapping negation of the bits: the smallest signed number has a magnitude that only the unsigned type
                    // holds.
                    let bits = <$ibits>::from_ne_bytes(self.to_ne_bytes());
                    if self < Self::ZERO { bits.wrapping_neg() } else { bits }
                }
                #[inline(always)]
                fn from_magnitude(magnitude: $ibits) -> f64 { u64::from(magnitude) as f64 }
            }
            ordered!(
                $i, $ibits, $icell, <$i>::MIN, <$i>::MAX,
                |bits| Self::from_ne_bytes(bits.to_ne_bytes()), |x| <$ibits>::from_ne_bytes(x.to_ne_bytes()), |_x| false,
                |negative, n| {
                    // Both ends of every range fit into an i128.
                    let n = i128::try_from(n).unwrap_or(i128::MAX);
                    (if negative { -n } else { n }).clamp(<$i>::MIN.into(), <$i>::MAX.into()) as $i
                },
                |x| x as Self
            );
        )*
        $(
            impl Element for $c {
                const DTYPE: Dtype = Dtype::$C;
                const ZERO: Self = [0.0, 0.0];
                type Magnitude = i64;
                type Norm = $cnorm;

                #[inline(always)]
                fn from_bytes(bytes: &[u8], swapped: bool) -> Self {
                    let (re, im) = bytes.split_at(size_of::<$c>() / 2);
                    [Element::from_bytes(re, swapped), Element::from_bytes(im, swapped)]
                }
                #[inline(always)]
                fn modulus(self, by: f64) -> f64 {
                    let [re, im] = self.map(|part| part.widen() * by);
                    if !Self::DOUBLE {
                        return (re * re + im * im).sqrt();
                    }
                    // Infinite above float64's range, subnormal or 0 below it.
                    let (value, back, _) = complex::modulus(re, im);
                    value * back
                }
                #[inline(always)]
                fn square(self, by: f64) -> f64 {
                    let [re, im] = self.map(|part| part.widen() * by);
                    re * re + im * im
                }
                #[inline(always)]
                fn lifted(self) -> (f64, f64) {
                    let [re, im] = self.map(|part| part.widen());
                    if !Self::DOUBLE {
                        return (self.modulus(1.0), 0.0);
                    }
                    let (value, _, exponent) = complex::modulus(re, im);
                    (value, exponent)
                }
                #[inline(always)]
                fn magnitude(self) -> i64 { self.modulus(1.0).magnitude() }
                #[inline(always)]
                fn from_magnitude(magnitude: i64) -> f64 { <f64 as Element>::from_magnitude(magnitude) }
            }
        )*
        impl Element for $b {
            const DTYPE: Dtype = Dtype::$B;
            const ZERO: Self = Bool(0);
            type Magnitude = u8;
            type Norm = f64;

            #[inline(always)]
            fn from_bytes(bytes: &[u8], _: bool) -> Self { Bool(bytes[0]) }
            #[inline(always)]
            fn modulus(self, by: f64) -> f64 { f64::from(self.magnitude()) * by }
            #[inline(always)]
            fn magnitude(self) -> u8 { (self.0 != 0).into() }
            #[inline(always)]
            fn from_magnitude(magnitude: u8) -> f64 { magnitude.into() }
        }

        /// Evaluates `$body` with `$T` as the Rust type of a dtype of the kind `any`, `ordered`, `real` (floating-point) or
        /// `scalable` (floating-point or complex). Evaluates `$other` for dtypes of other kinds.
        #[cfg(feature = "python")]
        macro_rules! match_dtype {
            (any $d dtype:expr, $d T:ident => $d body:expr) => {
                match $d dtype {
                    $($crate::element::Dtype::$R => { type $d T = $r; $d body })*
                    $($crate::element::Dtype::$C => { type $d T = $c; $d body })*
                    $($crate::element::Dtype::$I => { type $d T = $i; $d body })*
                    $crate::element::Dtype::$B => { type $d T = $b; $d body }
                }
            };
            (ordered $d dtype:expr, $d T:ident => $d body:expr, $d other:expr) => {
                match $d dtype {
                    $($crate::element::Dtype::$R => { type $d T = $r; $d body })*
                    $($crate::element::Dtype::$I => { type $d T = $i; $d body })*
                    _ => $d other,
                }
            };
            (real $d dtype:expr, $d T:ident => $d body:expr, $d other:expr) => {
                match $d dtype {
                    $($crate::element::Dtype::$R => { type $d T = $r; $d body })*
                    _ => $d other,
                }
            };
            (scalable $d dtype:expr, $d T:ident => $d body:expr, $d other:expr) => {
                match $d dtype {
                    $($crate::element::Dtype::$R => { type $d T = $r; $d body })*
                    $($crate::element::Dtype::$C => { type $d T = $c; $d body })*
                    _ => $d other,
                }
            };
        }
        /// Passes the rows of the floating-point dtypes to the macro `$callback`, each as `Name: type,`.
        macro_rules! for_each_real {
            ($d callback:ident) => { $d callback! { $($R: $r,)* } };
        }
        #[cfg(feature = "python")]
        pub(crate) use match_dtype;
        pub(crate) use for_each_real;
    };
}

/// Implements `Ordered` for a dtype. All dtypes that can be written move bits in one way.
macro_rules! ordered {
    (
        $t:ty, $bits:ty, $cell:ty, $lowest:expr, $highest:expr,
        |$b:ident| $from_bits:expr, |$o:ident| $to_bits:expr, |$x:ident| $is_nan:expr,
        |$negative:ident, $n:ident| $from_integer:expr, |$f:ident| $from_float:expr
    ) => {
        impl Ordered for $t {
            const LOWEST: Self = $lowest;
            const HIGHEST: Self = $highest;
            type Cell = $cell;

            #[inline(always)]
            fn load(cell: &$cell) -> Self {
                let $b = cell.load(Relaxed);
                $from_bits
            }
            #[inline(always)]
            fn store(self, cell: &$cell) {
                let $o = self;
                cell.store($to_bits, Relaxed);
            }
            #[inline(always)]
            fn swapped(self) -> Self {
                let $o = self;
                let bits: $bits = $to_bits;
                let $b = bits.swap_bytes();
                $from_bits
            }
            #[inline(always)]
            fn load_bytes(cells: &[AtomicU8]) -> Self {
                let mut own = [0; size_of::<$t>()];
                // The loop has a known length, so the bytes stay in registers. Through the stack, an element takes 9 ns.
                for (byte, cell) in own.iter_mut().zip(&cells[..size_of::<$t>()]) {
                    *byte = cell.load(Relaxed);
                }
                Self::from_bytes(&own, false)
            }
            #[inline(always)]
            fn write_bytes(self, to: &mut [u8], swapped: bool) {
                let $o = self;
                let bits: $bits = $to_bits;
                to.copy_from_slice(&native::<{ size_of::<$t>() }>(&bits.to_ne_bytes(), swapped));
            }
            #[inline(always)]
            fn store_bytes(self, cells: &[AtomicU8]) {
                let mut own = [0; size_of::<$t>()];
                self.write_bytes(&mut own, false);
                for (byte, cell) in own.into_iter().zip(&cells[..size_of::<$t>()]) {
                    cell.store(byte, Relaxed);
                }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                let $x = self;
                $is_nan
            }
            fn from_integer($negative: bool, $n: u128) -> Self {
                $from_integer
            }
            fn from_float($f: f64) -> Self {
                $from_float
            }
        }
    };
}

elements! { ($) // the only list of dtypes
    float {
        F16: crate::element::F16, u16, i16, AtomicU16, "float16", 23, norms: f32, |x| Self::from_f64(x), |x| Self::from_f32(x);
        Bf16: // of the package ml_dtypes
            crate::element::Bf16, u16, i16, AtomicU16, "bfloat16", -1, norms: f32, |x| Self::from_f64(x), |x| Self::from_f32(x);
        F32: f32, u32, i32, AtomicU32, "float32", 11, norms: f32, |x| x as Self, |x| x;
        F64: f64, u64, i64, AtomicU64, "float64", 12, norms: f64, |x| x, |x| x.into();
    }
    integer {
        I8: i8, u8, AtomicU8, "int8", 1;
        I16: i16, u16, AtomicU16, "int16", 3;
        I32: i32, u32, AtomicU32, "int32", 5;
        I64: i64, u64, AtomicU64, "int64", 9;
        U8: u8, u8, AtomicU8, "uint8", 2;
        U16: u16, u16, AtomicU16, "uint16", 4;
        U32: u32, u32, AtomicU32, "uint32", 6;
        U64: u64, u64, AtomicU64, "uint64", 10;
    }
    complex {
        C64: crate::element::Complex<f32>, of F32, "complex64", 14, norms: f32;
        C128: crate::element::Complex<f64>, of F64, "complex128", 15, norms: f64;
    }
    bool {
        Bool: crate::element::Bool, "bool", 0;
    }
}
