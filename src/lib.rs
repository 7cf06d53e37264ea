//! TensorFlow's clipping and norm operations for NumPy arrays.
//!
//! Imports go one way: `py -> parallel -> walk -> kernel -> {isa, element}`. See `DESIGN.md`.

pub mod element;
pub mod error;
pub mod isa;
pub mod kernel;
pub mod parallel;
#[cfg(feature = "python")]
mod py;
pub mod scaled;
pub mod setting;
pub mod walk;
