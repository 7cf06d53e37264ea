//! Tests for classes, by C structs alone: no Python code runs.

use numpy::npyffi::{self, NpyTypes};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

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
