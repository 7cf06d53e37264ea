//! The tests of the layers below Python that need no process of their own: in one program, for which generic code is compiled
//! once.

mod bits;
mod common;
mod halves;
mod kernels;
mod layers;
mod parallel;
mod scaled;
mod supply;
mod walk;
