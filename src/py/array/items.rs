//! The tensors of an argument, as they are when the call reads it.

use pyo3::prelude::*;
use pyo3::types::{PyAny, PyList, PyTuple};

use super::objects;

/// The tensors of an argument of a call: the entries of a list, or a single object.
pub(in crate::py) struct Items<'a, 'py> {
    /// The argument, unless it is a sequence of another class, which may have other entries at each reading.
    argument: Option<&'a Bound<'py, PyAny>>,
    held: Held<'py>,
}

impl<'a, 'py> Items<'a, 'py> {
    pub(in crate::py) fn one(object: &'a Bound<'py, PyAny>) -> Self {
        Self { argument: Some(object), held: Held::One(object.clone()) }
    }

    /// The entries of a list, or of a tuple that is not of a subclass; None for anything else.
    pub(in crate::py) fn of_list(object: &'a Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        Ok(Held::of_list(object)?.map(|held| Self { argument: Some(object), held }))
    }

    /// The entries of another sequence.
    pub(in crate::py) fn of_entries(entries: Bound<'py, PyTuple>) -> Self {
        Self { argument: None, held: Held::Many(entries) }
    }

    pub(in crate::py) fn is_list(&self) -> bool {
        matches!(self.held, Held::Many(_))
    }

    /// Whether an object is the argument.
    pub(super) fn is(&self, object: &Bound<'py, PyAny>) -> bool {
        self.argument.is_some_and(|argument| argument.is(object))
    }

    /// Another argument of the call, with an entry for each of these: an object if this is one, a list if this is a list. None
    /// for anything else.
    pub(super) fn read_beside(&self, object: &Bound<'py, PyAny>) -> PyResult<Option<Held<'py>>> {
        match self.held {
            Held::One(_) => Ok(Some(Held::One(object.clone()))),
            Held::Many(_) => Held::of_list(object),
        }
    }

    pub(in crate::py) fn held(&self) -> &Held<'py> {
        &self.held
    }
}

/// References that keep arrays alive: a single one, or those of a list as they were at one moment. One call to Python copies a
/// list, at a quarter of the cost of taking its entries one by one.
#[derive(Clone)]
pub(in crate::py) enum Held<'py> {
    One(Bound<'py, PyAny>),
    Many(Bound<'py, PyTuple>),
}

impl<'py> Held<'py> {
    /// The entries of a list, or of a tuple that is not of a subclass; None for anything else. No Python code runs.
    pub(in crate::py) fn of_list(object: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        if let Ok(list) = object.cast::<PyList>() {
            return Ok(Some(Self::Many(objects::tuple_of_list(list)?)));
        }
        Ok(object.cast_exact::<PyTuple>().ok().map(|tuple| Self::Many(tuple.clone())))
    }

    pub(in crate::py) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(tuple) => tuple.len(),
        }
    }

    #[inline]
    pub(in crate::py) fn get(&self, at: usize) -> PyResult<Borrowed<'_, 'py, PyAny>> {
        match self {
            Self::One(object) => Ok(object.as_borrowed()),
            Self::Many(tuple) => tuple.get_borrowed_item(at),
        }
    }

    /// The references as one object.
    pub(in crate::py) fn into_any(self) -> Bound<'py, PyAny> {
        match self {
            Self::One(object) => object,
            Self::Many(tuple) => tuple.into_any(),
        }
    }

    /// The single object, or all in a new list.
    pub(super) fn to_result(&self) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::One(object) => Ok(object.clone()),
            Self::Many(tuple) => tuple.as_sequence().to_list().map(Bound::into_any),
        }
    }
}
