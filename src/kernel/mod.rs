//! The operations on slices: no Python, no threads, no strides.
//!
//! Each is a struct with one generic body (see [`crate::isa::Op`]). Three rules keep the bodies fast on every
//! level:
//!
//! 1. Element-wise and associative work is a plain `for`; the compiler widens it to the level's registers.
//! 2. Floating-point sums go to [`sum::LANES`] accumulators, whatever the register width, and the fold of the lanes
//!    is a function of its own that is not inlined: inlined, its tree costs the loop its wide registers.
//! 3. Nothing fuses a multiplication with an addition, unless the product is exact
//!    ([`crate::isa::Level::FUSED`]), and nothing calls the C library's `pow`, `exp` or `log`, because both would round
//!    differently from CPU to CPU.

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
pub mod sum;
pub mod truncate;
pub mod widen;
