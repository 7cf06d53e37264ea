//! Threads, instruction sets, and the output of `show_config`.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::array::memory;
use super::kinds::Kinds;
use super::memory_limit::POOL_BYTES;
use crate::isa::Isa;
use crate::parallel::{THREADS, Team};

/// Makes the next call read the environment again, unless this was called before: a second import resets no setting.
#[pyfunction]
pub(super) fn forget_settings() {
    static WAS_CALLED: AtomicBool = AtomicBool::new(false);
    if !WAS_CALLED.swap(true, Ordering::Relaxed) {
        THREADS.forget();
        POOL_BYTES.forget();
    }
}

/// The number of threads.
#[pyfunction]
pub(super) fn get_num_threads() -> PyResult<usize> {
    Ok(THREADS.get()?)
}

/// Sets the number of threads for later calls.
#[pyfunction]
pub(super) fn set_num_threads(n: usize) {
    THREADS.set(n);
}

/// Lets the calls of this thread run on the threads of PyTorch: see [`Team::set_current`].
#[pyfunction]
pub(super) fn use_team(address: usize) -> usize {
    Team::set_current(address)
}

/// Unmaps the memory held for later outputs; returns the number of bytes.
#[pyfunction]
pub(super) fn trim() -> PyResult<usize> {
    THREADS.check()?;
    POOL_BYTES.check()?;
    Ok(memory::trim())
}

/// The instruction set levels this CPU runs, narrowest first.
#[pyfunction]
pub(super) fn isa_levels() -> Vec<&'static str> {
    Isa::available().map(Isa::name).collect()
}

/// Uses one of `isa_levels()` from now on; None: the widest. For tests and measurements.
#[pyfunction]
pub(super) fn set_isa(name: Option<&str>) -> PyResult<()> {
    Isa::choose(name).map(drop).ok_or_else(|| {
        let (found, allowed) = (name.unwrap_or_default(), isa_levels());
        PyValueError::new_err(format!("set_isa: name: found {found:?}; allowed: None or one of {allowed:?}"))
    })
}

/// What `show_config` prints and no other function returns.
#[pyfunction]
pub(super) fn config(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let config = PyDict::new(py);
    config.set_item("isa", Isa::current().name())?;
    config.set_item("clip_by_value_dtypes", Kinds::Ordered.names())?;
    config.set_item("clip_by_norm_dtypes", Kinds::Scalable.names())?;
    config.set_item("norm_dtypes", Kinds::Normed.names())?;
    config.set_item("memory_held", memory::held())?;
    config.set_item("memory_limit", POOL_BYTES.get()?)?;
    Ok(config)
}
