//! The tensors of an argument, as they are when the call reads it.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// References that keep the tensors of an argument alive: a single object, or the entries of a list. One call to Python copies a
/// list, at a quarter of the cost of taking its entries one by one.
#[derive(Clone)]
pub(in crate::py) enum Items<'py> {
    One(Bound<'py, PyAny>),
    /// The entries, and the list that has them. None for a sequence of another class, which may have other entries at each
    /// reading.
    Many(Bound<'py, PyTuple>, Option<Bound<'py, PyAny>>),
}

impl<'py> Items<'py> {
    /// The entries of a list or a tuple; None for anything else, and for subclasses, which may keep their entries elsewhere (as
    /// TensorFlow's lists of variables do). No Python code runs.
    pub(in crate::py) fn of_list(object: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let entries = if let Ok(list) = object.cast_exact::<PyList>() {
            list.as_sequence().to_tuple()? // a list's own `to_tuple` panics without memory
        } else if let Ok(tuple) = object.cast_exact::<PyTuple>() {
            // Copied too, to get references of its own: NumPy does not resize an array that has more references than it expects.
            tuple.as_sequence().to_list()?.as_sequence().to_tuple()?
        } else {
            return Ok(None);
        };
        Ok(Some(Self::Many(entries, Some(object.clone()))))
    }

    pub(in crate::py) fn is_list(&self) -> bool {
        matches!(self, Self::Many(..))
    }

    /// Whether an object is the argument.
    pub(super) fn is(&self, object: &Bound<'py, PyAny>) -> bool {
        match self {
            Self::One(argument) => argument.is(object),
            Self::Many(_, argument) => argument.as_ref().is_some_and(|argument| argument.is(object)),
        }
    }

    pub(in crate::py) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(entries, _) => entries.len(),
        }
    }

    #[inline]
    pub(in crate::py) fn get(&self, at: usize) -> PyResult<Borrowed<'_, 'py, PyAny>> {
        match self {
            Self::One(object) => Ok(object.as_borrowed()),
            Self::Many(entries, _) => entries.get_borrowed_item(at),
        }
    }

    /// The values of the tensors at the places of their entries, and `none` at entries that are None.
    pub(in crate::py) fn with_nones<T: Copy>(&self, values: Vec<T>, none: T) -> impl Iterator<Item = T> {
        let has_nones = values.len() < self.len();
        let mut values = values.into_iter();
        let is_none = move |at| has_nones && self.get(at).is_ok_and(|entry| entry.is_none());
        (0..self.len()).map(move |at| if is_none(at) { none } else { values.next().unwrap_or(none) })
    }

    /// The references as one object.
    pub(in crate::py) fn into_any(self) -> Bound<'py, PyAny> {
        match self {
            Self::One(object) => object,
            Self::Many(entries, _) => entries.into_any(),
        }
    }

    /// The single object, or all in a new list.
    pub(in crate::py) fn to_result(&self) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::One(object) => Ok(object.clone()),
            Self::Many(entries, _) => entries.as_sequence().to_list().map(Bound::into_any),
        }
    }
}
