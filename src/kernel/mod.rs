//! The operations on slices: no Python, no threads, no strides.
//!
//! Each is a struct with one generic body (see [`crate::isa::Op`]). Three rules keep the bodies fast on every
//! level:
//!
//! 1. Elementwise work and associative reductions are a plain `for`, which the compiler vectorizes for the level's registers.
//! 2. Floating-point sums use [`sum::LANES`] accumulators, whatever the register width. The fold of the lanes begins with a loop
//!    over whole registers: a compiler that sees a tree of scalar additions uses narrow registers for the lanes, too.
//! 3. Nothing fuses a multiplication with an addition, unless the product or the result is exact
//!    ([`crate::isa::Level::FUSED`]), and nothing calls the C library's `pow`, `exp` or `log`: both would round differently from
//!    CPU to CPU.

pub mod clip;
pub mod difference;
pub mod exact;
pub mod examples;
pub mod halves;
pub mod map;
pub mod max;
pub mod power;
pub mod rows;
pub mod scale;
pub mod scale_each;
pub mod sum;
pub mod truncate;
pub mod widen;
