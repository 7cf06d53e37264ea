//! TensorFlow's clipping and norm operations for NumPy arrays.
//!
//! Imports go one way: `py -> parallel -> walk -> kernel -> {isa, element}`. `scaled`, `error` and `setting` are
//! leaves that all modules may use. Kernels take slices and know no Python, threads or strides; `walk` makes slices of strided
//! memory; only `parallel` uses rayon; only `py` uses Python, and only a build with the feature `python` has it. See
//! `DESIGN.md`.

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
