//! Python objects of any length, made so that there is a `MemoryError` where `PyO3` panics.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyList, PyTuple, PyType};

use super::internal;

/// Whether an object is of a class or of one derived from it, by the classes that Python keeps of each: no method of
/// theirs is asked.
pub(in crate::py) fn is_of(object: &Bound<'_, PyAny>, class: &Bound<'_, PyType>) -> bool {
    // SAFETY: the interpreter is attached, `object` is a live object and `class` a live class.
    unsafe { ffi::PyObject_TypeCheck(object.as_ptr(), class.as_type_ptr()) != 0 }
}

/// A list of as many entries as `entries` says it has.
pub(in crate::py) fn list_of<'py>(
    py: Python<'py>,
    entries: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let len = entries.len().cast_signed();
    // SAFETY: the interpreter is attached. The result is a new reference or null with an exception set.
    let list = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyList_New(len))? };
    for (i, entry) in (0..len).zip(entries) {
        // SAFETY: the list is live, and the call takes the reference to the entry, also where it fails. Places that stay
        // empty are nothing to Python's collector, which meets them in its own `list` as well.
        if unsafe { ffi::PyList_SetItem(list.as_ptr(), i, entry.into_ptr()) } != 0 {
            return Err(PyErr::take(py).unwrap_or_else(|| internal("a list has no place")));
        }
    }
    Ok(list.cast_into()?)
}

/// The entries of a list as they are stored, whatever methods a subclass has.
pub(in crate::py) fn tuple_of_list<'py>(list: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyTuple>> {
    // SAFETY: the interpreter is attached and `list` is a live list. The result is a new reference or null with an
    // exception set.
    let tuple = unsafe { Bound::from_owned_ptr_or_err(list.py(), ffi::PyList_AsTuple(list.as_ptr()))? };
    Ok(tuple.cast_into()?)
}

/// The same of a tuple.
pub(in crate::py) fn tuple_of_tuple<'py>(tuple: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyTuple>> {
    // SAFETY: as above; of the whole of an exact tuple the call gives the tuple itself.
    let whole = unsafe {
        let slice = ffi::PyTuple_GetSlice(tuple.as_ptr(), 0, tuple.len().cast_signed());
        Bound::from_owned_ptr_or_err(tuple.py(), slice)?
    };
    Ok(whole.cast_into()?)
}

/// A new list of the entries of a tuple of no subclass.
pub(super) fn list_of_tuple<'py>(tuple: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the interpreter is attached and `tuple` is a live tuple. The result is a new reference or null with an
    // exception set.
    unsafe { Bound::from_owned_ptr_or_err(tuple.py(), ffi::PySequence_List(tuple.as_ptr())) }
}
