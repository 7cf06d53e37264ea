//! TensorFlow's clipping and norm operations for NumPy arrays.
//!
//! Imports go one way: `py -> parallel -> walk -> kernel -> {isa, element}`; `scaled`, `error` and `fork` are
//! leaves all may use. Kernels take slices and know no Python, threads or strides; `walk` makes slices of strided
//! memory; `parallel` alone uses rayon; `py` alone knows Python, and a build without the feature `python` has
//! all but that. `DESIGN.md` tells the rest.

pub mod element;
pub mod error;
pub mod fork;
pub mod isa;
pub mod kernel;
pub mod parallel;
#[cfg(feature = "python")]
mod py;
pub mod scaled;
pub mod walk;
