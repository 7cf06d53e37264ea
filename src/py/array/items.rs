//! The entries of a call's list argument, as they are at one moment.

use pyo3::prelude::*;
use pyo3::types::{PyAny, PyList, PyTuple};

use super::objects;

/// What a call is about: the entries of a list or a tuple, or one object alone. To read them runs no Python code.
pub(in crate::py) enum Items<'a, 'py> {
    List(&'a Bound<'py, PyList>),
    Tuple(Bound<'py, PyTuple>),
    One(&'a Bound<'py, PyAny>),
}

impl<'a, 'py> Items<'a, 'py> {
    /// A list, or a tuple of no subclass; None for anything else.
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

    /// The entries as they are now, for good.
    pub(in crate::py) fn held(&self) -> PyResult<Held<'py>> {
        match self {
            Self::List(list) => Ok(Held::Many(objects::tuple_of_list(list)?)),
            Self::Tuple(tuple) => Ok(Held::Many(tuple.clone())),
            Self::One(object) => Ok(Held::One((*object).clone())),
        }
    }
}

/// What keeps arrays alive, one alone or those of a list: their references, as they stood in the argument at one moment. A list is copied by one
/// call to Python, at a quarter of what it costs to take its entries one by one.
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

    /// What keeps them alive, as one object.
    pub(in crate::py) fn into_any(self) -> Bound<'py, PyAny> {
        match self {
            Self::One(object) => object,
            Self::Many(tuple) => tuple.into_any(),
        }
    }

    /// The only one, or all in a new list.
    pub(super) fn to_result(&self) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::One(object) => Ok(object.clone()),
            Self::Many(tuple) => objects::list_of_tuple(tuple),
        }
    }
}
