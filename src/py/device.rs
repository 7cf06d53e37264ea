//! The checks that Python parts of the package call, mostly the GPU part.
//!
//! A tensor that is a `cupy.ndarray` is handed on, with all arguments, to the function of the same name in `gradclip._cuda`.
//! That is Python, and this crate never imports `CuPy`: if it is not imported, there are no such arrays. Only this crate
//! defines what arguments mean, which values they may have, and the texts of errors. So it offers the checks as methods of
//! [`Checks`]. The GPU part decides the order in which arguments are checked.

use std::iter::repeat;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::call::{Call, Entry};
use super::norm::{Along, vector_order};
use super::overlap::{self, Apart, Place};
use crate::parallel::reduce::Order;

fn number_of(order: Order) -> f64 {
    match order {
        Order::One => 1.0,
        Order::Two | Order::Square => 2.0,
        Order::Max => f64::INFINITY,
        Order::Power(p) => p,
    }
}

/// An array: its address, bytes of an element, shape, and strides in bytes.
type Described = (usize, usize, Vec<usize>, Vec<isize>);

fn place((first, itemsize, shape, strides): &Described) -> Place<'_> {
    Place { first: *first, itemsize: *itemsize, shape, strides, is_dense: false }
}

/// The checks of one call of a public function. `name` is the caller's.
#[pyclass(frozen, subclass, module = "gradclip._core")]
pub(super) struct Checks {
    function: String,
    #[pyo3(get)]
    name: Option<Py<PyAny>>,
}

impl Checks {
    fn call<'a, 'py>(&'a self, py: Python<'py>) -> PyResult<Call<'a, 'py>> {
        Call::of_python(py, &self.function, self.name.as_ref().map(|name| name.bind(py)))
    }
}

#[pymethods]
impl Checks {
    #[new]
    fn new(function: String, name: Option<Py<PyAny>>) -> Self {
        Self { function, name }
    }

    /// See [`Call::limit`].
    fn limit(&self, argument: &str, object: &Bound<'_, PyAny>, nan: bool) -> PyResult<f64> {
        self.call(object.py())?.limit(argument, object, nan)
    }

    /// See [`Call::axes`].
    fn axes(
        &self,
        py: Python<'_>,
        argument: &str,
        object: Option<&Bound<'_, PyAny>>,
        ndim: usize,
    ) -> PyResult<Option<Vec<usize>>> {
        self.call(py)?.axes(argument, object, ndim)
    }

    /// The `ord` of a function that has only vector norms, as a number.
    fn order(&self, ord: &Bound<'_, PyAny>) -> PyResult<f64> {
        vector_order(&self.call(ord.py())?, ord).map(number_of)
    }

    /// `ord` and `axis`: `("whole", None, ord)`, `("vectors", axes, ord)`, or `("matrices", axes, which)`, where `which` is 1 for
    /// the largest column sum, 2 for the largest singular value, inf for the largest row sum.
    fn along(
        &self,
        ord: &Bound<'_, PyAny>,
        axis: Option<&Bound<'_, PyAny>>,
        ndim: usize,
    ) -> PyResult<(&'static str, Option<Vec<usize>>, f64)> {
        Ok(match Along::new(&self.call(ord.py())?, ord, axis, ndim)? {
            Along::Whole(order) => ("whole", None, number_of(order)),
            Along::Vectors(axes, order) => ("vectors", Some(axes), number_of(order)),
            Along::Matrices(axes, order) => ("matrices", Some(axes.to_vec()), number_of(order)),
        })
    }

    /// See [`Call::keepdims`].
    fn keepdims(&self, py: Python<'_>, keepdims: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        self.call(py)?.keepdims(keepdims)
    }

    /// See [`Call::check_name`].
    fn check_name(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py)?.check_name()
    }

    /// The entries of `out` for a list of `tensors` tensors.
    fn out_sequence<'py>(
        &self,
        py: Python<'py>,
        out: Option<&Bound<'py, PyAny>>,
        tensors: usize,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.call(py)?.out_sequence(out, tensors)
    }

    /// Makes the error for an argument of a wrong type.
    fn type_error(&self, py: Python<'_>, argument: &str, found: &str, allowed: &str) -> PyResult<PyErr> {
        Ok(self.call(py)?.type_error(argument, found, allowed))
    }

    /// Makes the error for an argument of the right type with a wrong value.
    fn value_error(&self, py: Python<'_>, argument: &str, found: &str, allowed: &str) -> PyResult<PyErr> {
        Ok(self.call(py)?.value_error(argument, found, allowed))
    }

    /// Keeps the arrays of a call on a GPU apart. Returns the inputs that share memory with an output and must be copied before
    /// anything is written. The first inputs are those of the outputs, and may be the very same arrays. It is an error that two
    /// elements of the outputs share a byte. `places` are the outputs' places in a list; None if `out` is not a list.
    fn keep_apart(
        &self,
        outputs: &Bound<'_, PyAny>,
        inputs: &Bound<'_, PyAny>,
        places: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<usize>> {
        let py = outputs.py();
        let (outputs, inputs): (Vec<Described>, Vec<Described>) = (outputs.extract()?, inputs.extract()?);
        let outputs: Vec<_> = outputs.iter().map(place).collect();
        let own = outputs.iter().map(Some).chain(repeat(None));
        let inputs = inputs.iter().map(place).zip(own);
        let inputs: Vec<_> = inputs
            .map(|(input, own)| (!own.is_some_and(|own| own.is_same(&input))).then_some(input))
            .collect();
        match overlap::keep_apart(&outputs, &inputs)? {
            Apart::Never(a, b) => {
                let place = |at: usize| places.map(|places| places.get_item(at)?.extract()).transpose();
                Err(self.call(py)?.clash(Entry("out", place(a)?), Entry("out", place(b)?)))
            }
            Apart::By { mut copies, .. } => {
                copies.sort_unstable();
                Ok(copies)
            }
        }
    }
}
