//! Descriptions of objects in messages: short, whatever the objects' classes return.
//!
//! Numbers and strings are written by the methods of Python's own classes, not by those of a subclass, and long ones only up to
//! the shown length.

use pyo3::PyTypeInfo;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyList, PySlice, PyString, PyTuple};

use super::array::Array;
use super::classes::{is_cupy, is_masked, is_numpy, plain};
use super::process::RunsPython;

/// The most characters of a text in a message.
const SHOWN: usize = 80;
/// The most characters of a name in a message: long names are common, as they are made of other names.
const SHOWN_OF_NAME: usize = 200;
/// The most entries of a tuple or list that is written with its entries.
const MOST_ENTRIES: usize = 8;
/// The most levels of nested tuples and lists that are written with their entries.
const MOST_LEVELS: usize = 3;
/// The most bits of an integer that is written in digits, which takes time; of larger ones, the number of bits is written.
const MOST_BITS: usize = 512;
/// The most bytes of a NumPy scalar that is written: larger ones are strings and records.
const MOST_BYTES: usize = 32;

/// `dtype int32`.
#[pyfunction]
pub(super) fn dtype_text(array: &Bound<'_, PyAny>) -> String {
    let _counted = RunsPython::begun(array.py());
    let dtype = plain(array).and_then(|array| array.getattr("dtype"));
    dtype
        .and_then(|dtype| dtype.str())
        .map_or_else(|_| "an unknown dtype".to_owned(), |dtype| format!("dtype {}", begin_of(&dtype, SHOWN)))
}

/// `(2, 3)`, as Python writes it.
pub(super) fn shape_text(shape: &[usize]) -> String {
    match shape {
        [one] => format!("({one},)"),
        _ => format!("({})", shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// The type of an object, and its value if it is small.
#[pyfunction]
pub(super) fn describe(object: &Bound<'_, PyAny>) -> String {
    let _counted = RunsPython::begun(object.py());
    if object.is_none() {
        return "None".to_owned();
    }
    let class = class_of(object);
    if let Some((array, subclass)) = Array::read(object) {
        if subclass && is_masked(object).unwrap_or(false) {
            return "a masked array".to_owned();
        }
        let dtype = dtype_text(object);
        if array.ndim() == 0 && array.dtype().is_some() {
            let value = plain(object).and_then(|number| number.str());
            let value = value.map_or_else(|_| String::new(), |text| begin_of(&text, SHOWN));
            return format!("0-d array {value} of {dtype}");
        }
        return format!("{class} of {dtype} and shape {}", shape_text(array.shape()));
    }
    match value_of(object, MOST_LEVELS) {
        Ok(Some(value)) => format!("{class} {}", clipped(&value, SHOWN)),
        Ok(None) => class,
        Err(_) => format!("{class} (without a repr)"),
    }
}

/// The value if it is small, else the type.
#[pyfunction]
pub(super) fn text_of(object: &Bound<'_, PyAny>) -> String {
    let _counted = RunsPython::begun(object.py());
    value_of(object, MOST_LEVELS)
        .ok()
        .flatten()
        .map_or_else(|| class_of(object), |value| clipped(&value, SHOWN))
}

/// The name of a call, for the beginning of a message.
pub(super) fn name_text(name: &Bound<'_, PyString>) -> String {
    begin_of(name, SHOWN_OF_NAME)
}

/// `<class 'int'>`.
pub(super) fn class_text(object: &Bound<'_, PyAny>) -> String {
    let text = object.get_type().str();
    text.map_or_else(|_| "<class>".to_owned(), |text| begin_of(&text, SHOWN_OF_NAME))
}

fn class_of(object: &Bound<'_, PyAny>) -> String {
    if is_cupy(object) {
        return "cupy.ndarray".to_owned(); // its own name is that of NumPy's class
    }
    object.get_type().name().map_or_else(|_| "object".to_owned(), |name| begin_of(&name, SHOWN))
}

/// A small value as Python writes it; None for other objects than numbers, strings and short lists of them.
fn value_of(object: &Bound<'_, PyAny>, levels: usize) -> PyResult<Option<String>> {
    let py = object.py();
    let by = |class: Bound<'_, PyAny>| -> PyResult<Option<String>> {
        let text = class.call_method1("__repr__", (object,))?;
        Ok(Some(begin_of(text.cast::<PyString>()?, SHOWN)))
    };
    if object.is_none() || object.is_instance_of::<PyBool>() {
        return Ok(Some(begin_of(&object.repr()?, SHOWN)));
    }
    if let Ok(text) = object.cast::<PyString>() {
        let (begin, is_whole) = first(text, SHOWN + 1)?;
        let begin = clipped(&begin.repr()?.to_string_lossy(), SHOWN);
        return Ok(Some(if is_whole || begin.ends_with("...") { begin } else { format!("{begin}...") }));
    }
    if object.is_instance_of::<PyInt>() {
        let class = PyInt::type_object(py);
        let bits: usize = class.call_method1("bit_length", (object,))?.extract()?;
        return if bits <= MOST_BITS { by(class.into_any()) } else { Ok(Some(format!("of {bits} bits"))) };
    }
    if object.is_instance_of::<PyFloat>() {
        return by(PyFloat::type_object(py).into_any());
    }
    if object.is_instance_of::<PyComplex>() {
        return by(PyComplex::type_object(py).into_any());
    }
    if object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>() {
        return list_text(object, levels).map(Some);
    }
    if Array::read(object).is_none()
        && is_numpy(object)?
        && object.getattr("itemsize")?.extract::<usize>()? <= MOST_BYTES
    {
        return Ok(Some(begin_of(&object.repr()?, SHOWN)));
    }
    Ok(None)
}

/// A tuple or a list, with its entries if they are few.
fn list_text(object: &Bound<'_, PyAny>, levels: usize) -> PyResult<String> {
    // The stored entries, regardless of the methods of a subclass.
    let (entries, [open, close]) = match object.cast::<PyTuple>() {
        Ok(tuple) => (tuple.iter().take(MOST_ENTRIES + 1).collect::<Vec<_>>(), ["(", ")"]),
        Err(_) => (object.cast::<PyList>()?.iter().take(MOST_ENTRIES + 1).collect(), ["[", "]"]),
    };
    if entries.len() > MOST_ENTRIES || levels == 0 {
        return Ok(format!("{open}...{close}"));
    }
    let mut texts = Vec::with_capacity(MOST_ENTRIES);
    for entry in &entries {
        texts.push(value_of(entry, levels - 1)?.unwrap_or_else(|| class_of(entry)));
    }
    let comma = if open == "(" && texts.len() == 1 { "," } else { "" };
    Ok(format!("{open}{}{comma}{close}", texts.join(", ")))
}

/// The first `most` characters of a text, on one line.
fn begin_of(text: &Bound<'_, PyString>, most: usize) -> String {
    // White space is collapsed, so more than `most` characters may be needed.
    match first(text, 4 * most) {
        Ok((begin, true)) => clipped(&begin.to_string_lossy(), most),
        Ok((begin, false)) => {
            let begin = clipped(&begin.to_string_lossy(), most);
            if begin.ends_with("...") { begin } else { format!("{begin}...") }
        }
        Err(_) => "...".to_owned(),
    }
}

/// The first `most` characters of a text, and whether they are all.
fn first<'py>(text: &Bound<'py, PyString>, most: usize) -> PyResult<(Bound<'py, PyString>, bool)> {
    let py = text.py();
    let class = PyString::type_object(py);
    let len: usize = class.call_method1("__len__", (text,))?.extract()?;
    let slice = PySlice::type_object(py).call1((most,))?; // PySlice::new loses a reference to its ends
    Ok((class.call_method1("__getitem__", (text, slice))?.cast_into()?, len <= most))
}

/// The first `most` characters, on one line.
fn clipped(text: &str, most: usize) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(most) {
        Some((end, _)) => text.get(..end).map_or_else(String::new, |begin| format!("{begin}...")),
        None => text,
    }
}
