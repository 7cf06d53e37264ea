//! Python objects of any length, made so that there is a `MemoryError` where `PyO3` panics.

use std::cell::Cell;

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
        // SAFETY: the list is new and nobody else's, and the call takes the reference to the entry. StreamSink that stay
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

/// A list that only its owner can change, since no Python code can come by it: Python's collector, which is asked for
/// all objects there are, does not know of it until it is given away.
pub(in crate::py) struct OwnList<'py> {
    list: Bound<'py, PyList>,
    is_given: Cell<bool>,
}

impl<'py> OwnList<'py> {
    /// # Safety
    /// `made` is a new reference to a new list, or null with an exception set.
    unsafe fn own(py: Python<'py>, made: *mut ffi::PyObject) -> PyResult<Self> {
        // SAFETY: the caller says so. To be forgotten by the collector is allowed for any list.
        let list = unsafe {
            let list = Bound::from_owned_ptr_or_err(py, made)?;
            ffi::PyObject_GC_UnTrack(list.as_ptr().cast());
            list
        };
        // Without a GIL another thread may have come by it before.
        // SAFETY: the list is live.
        if unsafe { ffi::Py_REFCNT(list.as_ptr()) } != 1 {
            return Err(internal("a new list is shared"));
        }
        // SAFETY: the caller says that it is one.
        Ok(Self { list: unsafe { list.cast_into_unchecked() }, is_given: Cell::new(false) })
    }

    /// A list with room for `len` entries, each to be [`set`](Self::set) before another use.
    pub(super) fn new(py: Python<'py>, len: usize) -> PyResult<Self> {
        // SAFETY: the interpreter is attached.
        unsafe { Self::own(py, ffi::PyList_New(len.cast_signed())) }
    }

    /// The entries of a list as they are stored, whatever methods a subclass has.
    pub(super) fn of_list(list: &Bound<'py, PyList>) -> PyResult<Self> {
        // SAFETY: the interpreter is attached and `list` is a live list; a slice beyond its end ends there.
        unsafe { Self::own(list.py(), ffi::PyList_GetSlice(list.as_ptr(), 0, isize::MAX)) }
    }

    /// The entries of a tuple of no subclass.
    pub(super) fn of_tuple(tuple: &Bound<'py, PyTuple>) -> PyResult<Self> {
        // SAFETY: the interpreter is attached and `tuple` is a live tuple.
        unsafe { Self::own(tuple.py(), ffi::PySequence_List(tuple.as_ptr())) }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> PyResult<Borrowed<'_, 'py, PyAny>> {
        // SAFETY: the list holds its entries for as long as it lives, since nobody else changes it and `set` is for
        // places that are empty.
        unsafe {
            Borrowed::from_ptr_or_err(
                self.list.py(),
                ffi::PyList_GetItem(self.list.as_ptr(), at.cast_signed()),
            )
        }
    }

    /// Fills a place that is empty.
    pub(super) fn set(&self, at: usize, entry: Bound<'py, PyAny>) -> PyResult<()> {
        // SAFETY: the list is live, and the call takes the reference to the entry, also where it fails.
        match unsafe { ffi::PyList_SetItem(self.list.as_ptr(), at.cast_signed(), entry.into_ptr()) } {
            0 => Ok(()),
            _ => Err(PyErr::take(self.list.py()).unwrap_or_else(|| internal("a list has no place"))),
        }
    }

    /// Gives the list to Python.
    pub(super) fn give(&self) -> Bound<'py, PyList> {
        if !self.is_given.replace(true) {
            // SAFETY: `own` has made the collector forget this list, and nothing has told it since.
            unsafe { ffi::PyObject_GC_Track(self.list.as_ptr().cast()) };
        }
        self.list.clone()
    }
}
