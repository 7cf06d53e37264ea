//! Arrays that are not of NumPy's own class, and what the part of the package for arrays on a GPU needs of this crate.
//!
//! A tensor that is a `cupy.ndarray` is handed on, with all arguments, to the function of the same name in `gradclip._cuda`.
//! That is Python, and this crate never imports `CuPy`: if it is not imported, there are no such arrays.

use std::iter::repeat;

use numpy::PyUntypedArray;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyAny, PyDict, PyModule, PyString, PyType};

use super::array::objects;
use super::overlap::{self, Apart, Place};

/// The module that Python has imported under a name, if it has.
fn loaded<'py>(name: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
    static SYS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let py = name.py();
    let sys = SYS.get_or_try_init(py, || py.import("sys").map(Bound::unbind))?.bind(py);
    sys.getattr(intern!(py, "modules"))?.cast_into::<PyDict>()?.get_item(name)
}

/// A class of a module, if the module is loaded. It is looked up in the module's `__dict__`: `getattr` for a missing name may
/// import something.
fn class_of<'py>(module: &Bound<'py, PyString>, name: &Bound<'py, PyString>) -> Option<Bound<'py, PyType>> {
    let module = loaded(module).ok().flatten()?.cast_into::<PyModule>().ok()?;
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

/// An array: its address, bytes of an element, shape, and strides in bytes.
type Described = (usize, usize, Vec<usize>, Vec<isize>);

/// Two outputs of which elements share a byte, or twice one output, if there are any.
type Clash = Option<(usize, usize)>;

fn place((first, itemsize, shape, strides): &Described) -> Place<'_> {
    Place { first: *first, itemsize: *itemsize, shape, strides, is_dense: false }
}

/// Keeps the arrays of a call on a GPU apart. Besides a clash, returns the inputs that share memory with an output and must be copied
/// before anything is written. The first inputs are those of the outputs, and may be the very same arrays.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what Python's lists become")]
pub(super) fn keep_apart(outputs: Vec<Described>, inputs: Vec<Described>) -> PyResult<(Clash, Vec<usize>)> {
    let outputs: Vec<_> = outputs.iter().map(place).collect();
    let own = outputs.iter().map(Some).chain(repeat(None));
    let inputs = inputs.iter().map(place).zip(own);
    let inputs: Vec<_> =
        inputs.map(|(input, own)| (!own.is_some_and(|own| own.is_same(&input))).then_some(input)).collect();
    match overlap::keep_apart(&outputs, &inputs)? {
        Apart::Never(one, other) => Ok((Some((one, other)), Vec::new())),
        Apart::By { mut copies, .. } => {
            copies.sort_unstable();
            Ok((None, copies))
        }
    }
}
