//! The classes of arrays that are not of NumPy's own class.

use numpy::PyUntypedArray;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule, PyString, PyType};

use super::array::objects;

/// A class of a module, if the module is loaded. It is looked up in the module's `__dict__`: `getattr` for a missing name may
/// import something.
fn class_of<'py>(module: &Bound<'py, PyString>, name: &Bound<'py, PyString>) -> Option<Bound<'py, PyType>> {
    static SYS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let py = name.py();
    let sys = SYS.get_or_try_init(py, || py.import("sys").map(Bound::unbind)).ok()?.bind(py);
    let modules = sys.getattr(intern!(py, "modules")).ok()?.cast_into::<PyDict>().ok()?;
    let module = modules.get_item(module).ok().flatten()?.cast_into::<PyModule>().ok()?;
    module.dict().get_item(name).ok().flatten()?.cast_into().ok()
}

fn is_of(object: &Bound<'_, PyAny>, module: &Bound<'_, PyString>, name: &Bound<'_, PyString>) -> bool {
    !object.is_exact_instance_of::<PyUntypedArray>()
        && class_of(module, name).is_some_and(|class| objects::is_of(object, &class))
}

/// Whether an object is a `dask.array.Array`. No Python code runs.
pub(super) fn is_dask(object: &Bound<'_, PyAny>) -> bool {
    is_of(object, intern!(object.py(), "dask.array"), intern!(object.py(), "Array"))
}

/// Whether an object is a `cupy.ndarray`. No Python code runs.
pub(super) fn is_cupy(object: &Bound<'_, PyAny>) -> bool {
    is_of(object, intern!(object.py(), "cupy"), intern!(object.py(), "ndarray"))
}

/// Whether an object is a masked array. No Python code runs.
pub(super) fn is_masked(object: &Bound<'_, PyAny>) -> bool {
    is_of(object, intern!(object.py(), "numpy.ma"), intern!(object.py(), "MaskedArray"))
}
