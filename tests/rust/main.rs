//! The tests of the layers below Python that need no separate process. They are one program, so that generic code is compiled
//! once.

mod bits;
mod common;
mod exact;
mod halves;
mod kernels;
mod layers;
mod parallel;
mod scaled;
mod supply;
mod walk;
