//! Where there is no pool of memory for outputs: see `memory.rs`, which is for Linux.

use std::marker::PhantomData;
use std::path::Path;

use pyo3::prelude::*;

use crate::error::Result;

#[expect(clippy::unnecessary_wraps, reason = "as on Linux")]
pub(in crate::py) fn limit() -> Result<usize> {
    Ok(0)
}

#[expect(clippy::unnecessary_wraps, reason = "as on Linux")]
pub(in crate::py) fn check_settings() -> Result<()> {
    Ok(())
}

pub(in crate::py) fn memory_of_process(_: &Path) -> Option<usize> {
    None
}

pub(in crate::py) fn trim() -> usize {
    0
}

pub(in crate::py) fn held() -> usize {
    0
}

pub(in crate::py) fn settle() {}

pub(in crate::py) fn forked() {}

pub(super) fn lent<'py>(
    _: Python<'py>,
    _: usize,
    make: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    make()
}

/// See `memory.rs`.
pub(super) struct Lender<'py>(PhantomData<Python<'py>>);

impl<'py> Lender<'py> {
    #[expect(clippy::unnecessary_wraps, reason = "as on Linux")]
    pub(super) fn new(_: Python<'py>, _: impl Iterator<Item = usize>) -> PyResult<Self> {
        Ok(Self(PhantomData))
    }

    #[expect(clippy::unused_self, reason = "as on Linux")]
    pub(super) fn lend<R>(&mut self, _: usize, make: impl FnOnce() -> PyResult<R>) -> PyResult<R> {
        make()
    }

    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "as on Linux")]
    pub(super) fn end(self) -> PyResult<()> {
        Ok(())
    }
}
