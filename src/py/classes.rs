//! The classes of argument objects, and conversion of NumPy numbers to Python.

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyAny, PyBool, PyDict, PyFloat, PyInt, PyList, PyModule, PyString, PyTuple, PyType};
use pyo3::{PyTypeInfo, intern};

use super::array::objects;

/// `i` for a NumPy scalar or array of integers, `f` for one of floats, those of `ml_dtypes` included.
pub(super) fn numeric_kind(object: &Bound<'_, PyAny>) -> PyResult<Option<char>> {
    let dtype = object.getattr(intern!(object.py(), "dtype"))?;
    Ok(match dtype.getattr("kind")?.extract::<char>()? {
        'i' | 'u' => Some('i'),
        'f' => Some('f'),
        _ => {
            let class = dtype.getattr("type")?;
            let name: String = class.getattr("__name__")?.extract()?;
            let is = |kind: &str| name.trim_start_matches(['u', 'b']).starts_with(kind);
            if class.getattr("__module__")?.extract::<String>()? != "ml_dtypes" {
                None
            } else if is("int") {
                Some('i')
            } else {
                is("float").then_some('f')
            }
        }
    })
}

/// Converts a 0-d array or a scalar of a numeric kind to a Python number.
pub(super) fn item<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let kind: char = object.getattr(intern!(py, "dtype"))?.getattr("kind")?.extract()?;
    if matches!(kind, 'i' | 'u' | 'f') {
        return object.call_method0(intern!(py, "item"));
    }
    // `ml_dtypes` arrays return its own scalars, which are wrong if the byte order is not the native one. They are converted to
    // Python numbers one by one: NumPy's conversion of a whole array warns of a signaling NaN.
    let native = object.getattr(intern!(py, "dtype"))?.call_method1(intern!(py, "newbyteorder"), ("=",))?;
    let scalar = object.call_method1(intern!(py, "astype"), (native,))?.call_method0(intern!(py, "item"))?;
    let is_int = numeric_kind(object)? == Some('i');
    let class = if is_int { PyInt::type_object(py) } else { PyFloat::type_object(py) };
    class.call1((scalar,))
}

/// An array or a scalar of NumPy as an array of NumPy's own class: a subclass may have other methods. Other objects stay as they
/// are.
pub(super) fn plain<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if object.is_exact_instance_of::<PyUntypedArray>() || !is_numpy(object)? {
        return Ok(object.clone());
    }
    let numpy = object.py().import(intern!(object.py(), "numpy"))?;
    numpy.call_method1(intern!(object.py(), "asarray"), (object,))
}

/// A Python or NumPy integer, but not a bool, as a Python int.
pub(super) fn integer<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    if object.is_instance_of::<PyBool>() {
        return Ok(None);
    }
    if object.is_instance_of::<PyInt>() {
        return Ok(Some(object.clone()));
    }
    if is_numpy(object)? {
        let object = plain(object)?;
        let kind: char = object.getattr("dtype")?.getattr("kind")?.extract()?;
        let ndim: usize = object.getattr("ndim")?.extract()?;
        if matches!(kind, 'i' | 'u') && ndim == 0 {
            return Ok(Some(object.call_method0("item")?));
        }
    }
    Ok(None)
}

/// Whether an object is a NumPy scalar or array.
pub(super) fn is_numpy(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static GENERIC: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    Ok(object.is_instance_of::<PyUntypedArray>()
        || object.is_instance(GENERIC.import(object.py(), "numpy", "generic")?)?)
}

/// Whether an object is a masked array. Without `numpy.ma` there are none.
pub(super) fn is_masked(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match loaded(intern!(object.py(), "numpy.ma"))? {
        Some(ma) => object.is_instance(&ma.getattr("MaskedArray")?),
        None => Ok(false),
    }
}

/// The module that Python has imported under a name, if it has.
fn loaded<'py>(name: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
    static SYS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let py = name.py();
    let sys = SYS.get_or_try_init(py, || py.import("sys").map(Bound::unbind))?.bind(py);
    sys.getattr(intern!(py, "modules"))?.cast_into::<PyDict>()?.get_item(name)
}

/// Whether an object is an `IndexedSlices` of `gradclip`.
pub(super) fn is_slices(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static SLICES: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    object.is_instance(SLICES.import(object.py(), "gradclip._slices", "IndexedSlices")?)
}

/// Whether an object is a sequence of any kind. (A cast to `PySequence` prints the exceptions that the object's class raises.)
pub(super) fn is_any_sequence(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static SEQUENCE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if is_list(object) {
        return Ok(true);
    }
    object.is_instance(SEQUENCE.import(object.py(), "collections.abc", "Sequence")?)
}

/// Whether an object is a Python or NumPy bool.
pub(super) fn is_bool(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(object.is_instance_of::<PyBool>()
        || (is_numpy(object)? && plain(object)?.getattr("dtype")?.getattr("kind")?.eq("b")?))
}

/// Whether an object is a Python list or tuple.
pub(super) fn is_list(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()
}

/// A class of a module, if the module is loaded. It is looked up in the module's `__dict__`: `getattr` for a missing name may
/// import something.
fn class_of<'py>(module: &Bound<'py, PyString>, name: &Bound<'py, PyString>) -> Option<Bound<'py, PyType>> {
    let module = loaded(module).ok().flatten()?.cast_into::<PyModule>().ok()?;
    module.dict().get_item(name).ok().flatten()?.cast_into().ok()
}

/// Whether an object is a `dask.array.Array`. No Python code runs.
pub(super) fn is_dask(object: &Bound<'_, PyAny>) -> bool {
    !object.is_exact_instance_of::<PyUntypedArray>()
        && class_of(intern!(object.py(), "dask.array"), intern!(object.py(), "Array"))
            .is_some_and(|class| objects::is_of(object, &class))
}

/// Whether an object is a `cupy.ndarray`. No Python code runs.
pub(super) fn is_cupy(object: &Bound<'_, PyAny>) -> bool {
    !object.is_exact_instance_of::<PyUntypedArray>()
        && class_of(intern!(object.py(), "cupy"), intern!(object.py(), "ndarray"))
            .is_some_and(|class| objects::is_of(object, &class))
}
