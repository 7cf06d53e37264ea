//! Errors of the layers below Python, one sentence each.

use std::collections::TryReserveError;

/// An error of the layers below `py`, which turns it into a Python exception.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// Scratch memory could not be allocated.
    Memory,
    /// An environment variable holds a value that is not allowed, which this sentence tells.
    Setting(String),
}

impl From<TryReserveError> for Error {
    fn from(_: TryReserveError) -> Self {
        Self::Memory
    }
}

/// The result of the layers below `py`.
pub type Result<T> = std::result::Result<T, Error>;

/// A vector with room for `len` values, or an error where `Vec::with_capacity` would abort the process.
pub fn vec_with_room<T>(len: usize) -> Result<Vec<T>> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(len)?;
    Ok(vec)
}
