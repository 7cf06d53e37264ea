//! From shapes and strides to slices.
//!
//! A [`Layout`] lists the axes of an array from outer to inner, and merges neighbours that one stride covers. The position in
//! that order is the one number that addresses all operands of an operation. A [`View`] gives a range of positions as a slice:
//! the memory itself where elements are contiguous, a gathered block elsewhere, so that a strided, unaligned or byte-swapped
//! array has the bits of its contiguous copy. A [`Target`] does this for writing. All of this is safe code: the memory comes as
//! slices of elements or of bytes, and strided targets are slices of atomics, because several targets may lie interleaved in
//! the same memory.

mod block;
mod broadcast;
mod layout;
mod memory;
mod slices;
mod target;
mod view;
mod work;

pub use self::block::{blocks_of, with_scratch};
pub use self::broadcast::Broadcast;
pub use self::layout::{Axis, Layout, MAX_AXES, copy_order, memory_order};
pub use self::memory::Memory;
pub use self::slices::{GATHERED_AT_ONCE, Slices};
pub use self::target::{Cells, Target};
pub use self::view::View;
pub use self::work::{Bounds, Factors, Store, Uniform, Work, apply_elementwise, stream_made};
