//! Constructors of Python objects of any length, which raise a `MemoryError` where `PyO3` would panic, and tests for classes.

use numpy::npyffi::{self, NpyTypes};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyList, PyTuple, PyType};

use super::internal;

/// Whether an object is of a class or of a subclass, by their C structs alone: no Python method is called.
pub(in crate::py) fn is_of(object: &Bound<'_, PyAny>, class: &Bound<'_, PyType>) -> bool {
    // SAFETY: the interpreter is attached, `object` is a live object and `class` a live class.
    unsafe { ffi::PyObject_TypeCheck(object.as_ptr(), class.as_type_ptr()) != 0 }
}

const FLOATS: [NpyTypes; 3] =
    [NpyTypes::PyFloatArrType_Type, NpyTypes::PyDoubleArrType_Type, NpyTypes::PyHalfArrType_Type];

const INTEGERS: [NpyTypes; 10] = [
    NpyTypes::PyLongArrType_Type,
    NpyTypes::PyIntArrType_Type,
    NpyTypes::PyLongLongArrType_Type,
    NpyTypes::PyShortArrType_Type,
    NpyTypes::PyByteArrType_Type,
    NpyTypes::PyULongArrType_Type,
    NpyTypes::PyUIntArrType_Type,
    NpyTypes::PyULongLongArrType_Type,
    NpyTypes::PyUShortArrType_Type,
    NpyTypes::PyUByteArrType_Type,
];

/// Whether an object is a float of NumPy of at most 64 bits, not of a subclass. Its conversion runs no Python code.
pub(in crate::py) fn is_float(object: &Bound<'_, PyAny>) -> bool {
    is_one_of(object, FLOATS)
}

/// Whether an object is an integer of NumPy, not of a subclass. Its conversion runs no Python code.
pub(in crate::py) fn is_integer(object: &Bound<'_, PyAny>) -> bool {
    is_one_of(object, INTEGERS)
}

#[inline(always)]
fn is_one_of<const N: usize>(object: &Bound<'_, PyAny>, classes: [NpyTypes; N]) -> bool {
    let has_class = |class| {
        // SAFETY: the interpreter is attached, and `object` is a live object.
        unsafe { ffi::Py_TYPE(object.as_ptr()) == npyffi::get_type_object(object.py(), class) }
    };
    // Most objects that are not numbers are arrays. Testing for an array first saves a lookup for each class.
    !has_class(NpyTypes::PyArray_Type) && classes.into_iter().any(has_class)
}

/// A tuple of the `entries`, as many as their length says.
pub(in crate::py) fn tuple_of<'py>(
    py: Python<'py>,
    entries: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let len = entries.len().cast_signed();
    // SAFETY: the interpreter is attached. The result is a new reference or null with an exception set.
    let tuple = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyTuple_New(len))? };
    for (i, entry) in (0..len).zip(entries) {
        // SAFETY: the tuple is live, and the call takes the reference to the entry, also where it fails. The garbage collector
        // ignores places that stay empty, which `tuple` itself has as well.
        if unsafe { ffi::PyTuple_SetItem(tuple.as_ptr(), i, entry.into_ptr()) } != 0 {
            return Err(PyErr::take(py).unwrap_or_else(|| internal("a tuple has no place")));
        }
    }
    Ok(tuple.cast_into()?)
}

/// The entries of a list.
pub(in crate::py) fn tuple_of_list<'py>(list: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyTuple>> {
    // SAFETY: the interpreter is attached and `list` is a live list. The result is a new reference or null with an
    // exception set.
    let tuple = unsafe { Bound::from_owned_ptr_or_err(list.py(), ffi::PyList_AsTuple(list.as_ptr()))? };
    Ok(tuple.cast_into()?)
}
