//! The entries of a call's list argument, as they are at one moment.

use pyo3::prelude::*;
use pyo3::types::{PyAny, PyList, PyTuple};

use super::objects;

/// The argument of a call: the entries of a list or a tuple, or a single object. Reading them runs no Python code.
pub(in crate::py) enum Items<'a, 'py> {
    List(&'a Bound<'py, PyList>),
    Tuple(Bound<'py, PyTuple>),
    One(&'a Bound<'py, PyAny>),
}

impl<'a, 'py> Items<'a, 'py> {
    /// A list, or a tuple that is not of a subclass; None for anything else.
    pub(in crate::py) fn of_list(object: &'a Bound<'py, PyAny>) -> Option<Self> {
        if let Ok(list) = object.cast::<PyList>() {
            return Some(Self::List(list));
        }
        object.cast_exact::<PyTuple>().ok().map(|tuple| Self::Tuple(tuple.clone()))
    }

    pub(in crate::py) fn is_list(&self) -> bool {
        !matches!(self, Self::One(_))
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(list), Self::List(other)) => list.is(*other),
            (Self::Tuple(tuple), Self::Tuple(other)) => tuple.is(other),
            _ => false,
        }
    }

    /// The entries at this moment: later changes of the list do not affect them.
    pub(in crate::py) fn held(&self) -> PyResult<Held<'py>> {
        match self {
            Self::List(list) => Ok(Held::Many(objects::tuple_of_list(list)?)),
            Self::Tuple(tuple) => Ok(Held::Many(tuple.clone())),
            Self::One(object) => Ok(Held::One((*object).clone())),
        }
    }
}

/// References that keep arrays alive: a single one or those of a list, as they were in the argument at one moment. One call to
/// Python copies a list, at a quarter of the cost of taking its entries one by one.
pub(in crate::py) enum Held<'py> {
    One(Bound<'py, PyAny>),
    Many(Bound<'py, PyTuple>),
}

impl<'py> Held<'py> {
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
            Self::Many(tuple) => objects::list_of_tuple(tuple),
        }
    }
}
