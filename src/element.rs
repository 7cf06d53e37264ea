//! The dtypes: one table, and what the kernels need to know about an element.
//!
//! A new dtype is one row at the end of this file (and, for a type that Rust lacks, the type itself).

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// One number of an array.
pub trait Element: Copy + std::fmt::Debug + PartialEq + PartialOrd + Send + Sync + 'static {
    /// Its row of the table.
    const DTYPE: Dtype;
    /// Zero, for scratch memory.
    const ZERO: Self;
    /// No bound below: nothing is smaller.
    const LOWEST: Self;
    /// No bound above: nothing is larger.
    const HIGHEST: Self;
    /// The same bits as an atomic. Strided outputs are written through it, so that several threads may hold
    /// views of interleaved memory without a data race; for one element it compiles to a plain move.
    type Cell: Send + Sync + std::fmt::Debug;

    /// Reads a cell.
    fn load(cell: &Self::Cell) -> Self;
    /// Writes a cell.
    fn store(self, cell: &Self::Cell);
    /// Reads the first bytes of `bytes`, in native order, or the other one if `swapped`.
    fn from_bytes(bytes: &[u8], swapped: bool) -> Self;
    /// Reads an element byte by byte.
    fn load_bytes(cells: &[AtomicU8], swapped: bool) -> Self;
    /// Writes an element byte by byte.
    fn store_bytes(self, cells: &[AtomicU8], swapped: bool);
    /// Whether it is NaN.
    fn is_nan(self) -> bool;
    /// `magnitude`, negative or not, rounded to nearest, or taken to the end of the range where it lies beyond.
    fn from_integer(negative: bool, magnitude: u128) -> Self;
    /// The same.
    fn from_float(x: f64) -> Self;
}

/// An element whose size has a norm and that can be scaled.
pub trait Real: Element {
    /// An integer that orders like `|self|`, NaN above infinity. Signed, because SSE and AVX compare only
    /// such.
    type Magnitude: Copy + Ord + Default + Send;
    /// Whether squares and sums of such elements can leave float64's range. Of narrower types they cannot.
    const WIDE: bool;

    /// Exact.
    fn widen(self) -> f64;
    /// Rounded once, to nearest, ties to even.
    fn narrow(x: f64) -> Self;
    /// See [`Real::Magnitude`].
    fn magnitude(self) -> Self::Magnitude;
    /// Its value; NaN has one payload.
    fn from_magnitude(magnitude: Self::Magnitude) -> f64;
}

macro_rules! elements {
    (
        // `$` itself, so that the macros below can be defined by this one.
        ($d:tt)
        real { $($R:ident: $r:ty, $rbits:ty, $rmagnitude:ty, $rcell:ty, $rname:literal, $rnumber:literal, wide: $wide:literal;)* }
        integer { $($I:ident: $i:ty, $ibits:ty, $icell:ty, $iname:literal, $inumber:literal;)* }
    ) => {
        /// The dtypes gradclip handles.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "the names say it")]
        pub enum Dtype { $($R,)* $($I,)* }

        impl Dtype {
            /// All dtypes, in the order in which messages list them.
            pub const ALL: &'static [Self] = &[$(Self::$R,)* $(Self::$I,)*];

            /// NumPy's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$R => $rname,)* $(Self::$I => $iname,)* }
            }

            /// NumPy's number, part of its binary interface. (C's `long` has another one for the same bits.)
            #[must_use]
            pub const fn number(self) -> i32 {
                match self { $(Self::$R => $rnumber,)* $(Self::$I => $inumber,)* }
            }

            /// Whether its norms want float64; those of the narrow dtypes fit into float32 arrays.
            #[must_use]
            pub const fn is_wide(self) -> bool {
                match self { $(Self::$R => $wide,)* $(Self::$I => true,)* }
            }

            /// Bytes of one element.
            #[must_use]
            pub const fn size(self) -> usize {
                match self { $(Self::$R => size_of::<$r>(),)* $(Self::$I => size_of::<$i>(),)* }
            }

            /// Whether the norm functions take it.
            #[must_use]
            pub const fn is_real(self) -> bool {
                match self { $(Self::$R => true,)* $(Self::$I => false,)* }
            }
        }

        $(
            element!($R, $r, $rbits, $rcell, <$r>::NEG_INFINITY, <$r>::INFINITY, |x| x.is_nan(), |negative, n| if negative { -(n as $r) } else { n as $r });

            impl Real for $r {
                type Magnitude = $rmagnitude;
                const WIDE: bool = $wide;
                #[inline(always)]
                fn widen(self) -> f64 { f64::from(self) }
                #[inline(always)]
                fn narrow(x: f64) -> Self { x as Self }
                #[inline(always)]
                fn magnitude(self) -> $rmagnitude { (self.to_bits() & (<$rbits>::MAX >> 1)).cast_signed() }
                #[inline(always)]
                fn from_magnitude(magnitude: $rmagnitude) -> f64 {
                    let x = f64::from(<$r>::from_bits(magnitude.cast_unsigned()));
                    if x.is_nan() { f64::NAN } else { x }
                }
            }
        )*
        $( element!($I, $i, $ibits, $icell, <$i>::MIN, <$i>::MAX, |_x| false, |negative, n| {
            // Any end of the range fits into an i128.
            let n = i128::try_from(n).unwrap_or(i128::MAX);
            (if negative { -n } else { n }).clamp(<$i>::MIN.into(), <$i>::MAX.into()) as $i
        }); )*

        /// Runs `$body` with `$T` naming the Rust type of a dtype.
        #[cfg(feature = "python")]
        macro_rules! match_element {
            ($d dtype:expr, $d T:ident => $d body:expr) => {
                match $d dtype {
                    $($crate::element::Dtype::$R => { type $d T = $r; $d body })*
                    $($crate::element::Dtype::$I => { type $d T = $i; $d body })*
                }
            };
        }
        /// The same for the dtypes of the norm functions; `$other` for the rest.
        #[cfg(feature = "python")]
        macro_rules! match_real {
            ($d dtype:expr, $d T:ident => $d body:expr, $d other:expr) => {
                match $d dtype {
                    $($crate::element::Dtype::$R => { type $d T = $r; $d body })*
                    $($crate::element::Dtype::$I => $d other,)*
                }
            };
        }
        /// Hands the rows of the real dtypes to the macro `$callback`: `Name: type,` each.
        macro_rules! for_each_real {
            ($d callback:ident) => { $d callback! { $($R: $r,)* } };
        }
        #[cfg(feature = "python")]
        pub(crate) use match_element;
        #[cfg(feature = "python")]
        pub(crate) use match_real;
        pub(crate) use for_each_real;
    };
}

/// What every row has in common: moving bits.
macro_rules! element {
    ($name:ident, $t:ty, $bits:ty, $cell:ty, $lowest:expr, $highest:expr, |$x:ident| $is_nan:expr, |$negative:ident, $n:ident| $from:expr) => {
        impl Element for $t {
            const DTYPE: Dtype = Dtype::$name;
            const ZERO: Self = 0 as Self;
            const LOWEST: Self = $lowest;
            const HIGHEST: Self = $highest;
            type Cell = $cell;

            #[inline(always)]
            fn load(cell: &$cell) -> Self {
                Self::from_ne_bytes(cell.load(Ordering::Relaxed).to_ne_bytes())
            }
            #[inline(always)]
            fn store(self, cell: &$cell) {
                cell.store(<$bits>::from_ne_bytes(self.to_ne_bytes()), Ordering::Relaxed);
            }
            #[inline(always)]
            fn from_bytes(bytes: &[u8], swapped: bool) -> Self {
                let mut own = [0; size_of::<$t>()];
                own.copy_from_slice(&bytes[..size_of::<$t>()]);
                if swapped {
                    own.reverse();
                }
                Self::from_ne_bytes(own)
            }
            #[inline(always)]
            fn load_bytes(cells: &[AtomicU8], swapped: bool) -> Self {
                let mut own = [0; size_of::<$t>()];
                for (byte, cell) in own.iter_mut().zip(cells) {
                    *byte = cell.load(Ordering::Relaxed);
                }
                Self::from_bytes(&own, swapped)
            }
            #[inline(always)]
            fn store_bytes(self, cells: &[AtomicU8], swapped: bool) {
                let mut own = self.to_ne_bytes();
                if swapped {
                    own.reverse();
                }
                for (byte, cell) in own.into_iter().zip(cells) {
                    cell.store(byte, Ordering::Relaxed);
                }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                let $x = self;
                $is_nan
            }
            fn from_integer($negative: bool, $n: u128) -> Self {
                $from
            }
            fn from_float(x: f64) -> Self {
                x as Self
            }
        }
    };
}

elements! { ($) // the dtype column of the matrix, in one place
    real {
        F32: f32, u32, i32, AtomicU32, "float32", 11, wide: false;
        F64: f64, u64, i64, AtomicU64, "float64", 12, wide: true;
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
}
