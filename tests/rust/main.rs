//! The tests of the layers below Python. They are one program, so that generic code is compiled once.

mod allocations;
mod bits;
mod common;
mod exact;
mod halves;
mod kernels;
mod layers;
mod parallel;
mod scaled;
mod sharing;
mod supply;
mod walk;
