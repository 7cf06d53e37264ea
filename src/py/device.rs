//! Arrays on a GPU: recognizing them, and the checks that the package's GPU part calls.
//!
//! A tensor that is a `cupy.ndarray` is handed on, with all arguments, to the function of the same name in `gradclip._cuda`.
//! That is Python, and this crate never imports `CuPy`: if it is not imported, there are no such arrays. Only this crate
//! defines what arguments mean, which values they may have, and the texts of errors. So it offers the checks as functions, with
//! the name of the public function and the caller's `name` first. The GPU part decides the order in which arguments are
//! checked.

use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::call::{Call, Entry};
use super::norm::{Along, vector_order};
use super::overlap::{self, Apart, Place};
use super::run::MatrixNorm;
use super::text;
use crate::parallel::reduce::Order;

/// See [`Call::limit`].
#[pyfunction]
pub(super) fn check_limit<'py>(
    py: Python<'py>,
    function: &str,
    name: Option<&Bound<'py, PyAny>>,
    argument: &str,
    object: &Bound<'py, PyAny>,
    nan: bool,
) -> PyResult<f64> {
    Call::of_python(py, function, name)?.limit(argument, object, nan)
}

/// See [`Call::axes`].
#[pyfunction]
pub(super) fn check_axes<'py>(
    py: Python<'py>,
    function: &str,
    name: Option<&Bound<'py, PyAny>>,
    argument: &str,
    object: Option<&Bound<'py, PyAny>>,
    ndim: usize,
) -> PyResult<Option<Vec<usize>>> {
    Call::of_python(py, function, name)?.axes(argument, object, ndim)
}

fn number_of(order: Order) -> f64 {
    match order {
        Order::One => 1.0,
        Order::Two | Order::Square => 2.0,
        Order::Max => f64::INFINITY,
        Order::Power(p) => p,
    }
}

/// The `ord` of a function that has only vector norms, as a number.
#[pyfunction]
pub(super) fn check_order<'py>(
    py: Python<'py>,
    function: &str,
    name: Option<&Bound<'py, PyAny>>,
    ord: &Bound<'py, PyAny>,
) -> PyResult<f64> {
    vector_order(&Call::of_python(py, function, name)?, ord).map(number_of)
}

/// `ord` and `axis`: `("whole", None, ord)`, `("vectors", axes, ord)`, or `("matrices", axes, which)`, where `which` is 0
/// for the Frobenius norm, 1 for the largest column sum, 2 for the largest singular value, inf for the largest row sum.
#[pyfunction]
pub(super) fn check_along<'py>(
    py: Python<'py>,
    function: &str,
    name: Option<&Bound<'py, PyAny>>,
    ord: &Bound<'py, PyAny>,
    axis: Option<&Bound<'py, PyAny>>,
    ndim: usize,
) -> PyResult<(&'static str, Option<Vec<usize>>, f64)> {
    Ok(match Along::new(&Call::of_python(py, function, name)?, ord, axis, ndim)? {
        Along::Whole(order) => ("whole", None, number_of(order)),
        Along::Vectors(axes, order) => ("vectors", Some(axes), number_of(order)),
        Along::Matrices(axes, norm) => {
            let which = match norm {
                MatrixNorm::Frobenius => 0.0,
                MatrixNorm::One => 1.0,
                MatrixNorm::Two => 2.0,
                MatrixNorm::Infinity => f64::INFINITY,
            };
            ("matrices", Some(axes.to_vec()), which)
        }
    })
}

/// See [`Call::keepdims`].
#[pyfunction]
pub(super) fn check_keepdims<'py>(
    py: Python<'py>,
    function: &str,
    name: Option<&Bound<'py, PyAny>>,
    keepdims: Option<&Bound<'py, PyAny>>,
) -> PyResult<bool> {
    Call::of_python(py, function, name)?.keepdims(keepdims)
}

/// See [`Call::check_name`].
#[pyfunction]
pub(super) fn check_name<'py>(
    py: Python<'py>,
    function: &str,
    name: Option<&Bound<'py, PyAny>>,
) -> PyResult<()> {
    Call::of_python(py, function, name)?.check_name()
}

/// The entries of `out` for a list of `tensors` tensors.
#[pyfunction]
pub(super) fn check_out_sequence<'py>(
    py: Python<'py>,
    function: &str,
    name: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    tensors: usize,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    Call::of_python(py, function, name)?.out_sequence(out, tensors)
}

/// Makes the error for an argument of a wrong type.
#[pyfunction]
pub(super) fn type_error<'py>(
    py: Python<'py>,
    function: &str,
    name: Option<&Bound<'py, PyAny>>,
    argument: &str,
    found: &str,
    allowed: &str,
) -> PyResult<Py<PyBaseException>> {
    Ok(Call::of_python(py, function, name)?.type_error(argument, found, allowed).into_value(py))
}

/// Makes the error for an argument of the right type with a wrong value.
#[pyfunction]
pub(super) fn value_error<'py>(
    py: Python<'py>,
    function: &str,
    name: Option<&Bound<'py, PyAny>>,
    argument: &str,
    found: &str,
    allowed: &str,
) -> PyResult<Py<PyBaseException>> {
    Ok(Call::of_python(py, function, name)?.value_error(argument, found, allowed).into_value(py))
}

/// Makes the error for two outputs that share memory; `one` says that `out` is not a list.
#[pyfunction]
pub(super) fn clash_error<'py>(
    py: Python<'py>,
    function: &str,
    name: Option<&Bound<'py, PyAny>>,
    a: usize,
    b: usize,
    one: bool,
) -> PyResult<Py<PyBaseException>> {
    let place = |at: usize| Entry("out", (!one).then_some(at));
    Ok(Call::of_python(py, function, name)?.clash(place(a), place(b)).into_value(py))
}

/// A shape as Python writes it.
#[pyfunction]
pub(super) fn shape_text(shape: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(text::shape_text(&shape.extract::<Vec<usize>>()?))
}

/// An array: its address, bytes of an element, shape, and strides in bytes.
type Described = (usize, usize, Vec<usize>, Vec<isize>);

/// Two outputs that cannot be written, or the inputs to copy.
type Arranged = (Option<(usize, usize)>, Vec<usize>);

fn place((first, itemsize, shape, strides): &Described) -> Place<'_> {
    Place { first: *first, itemsize: *itemsize, shape, strides, is_dense: false }
}

/// Keeps the arrays of a call on a GPU apart. Returns two outputs that share a byte (or twice the number of one that overlaps
/// itself), or else the inputs that share memory with an output and must be copied before anything is written. The first inputs
/// are those of the outputs, and may be the very same arrays.
#[pyfunction]
pub(super) fn arrange_device(outputs: &Bound<'_, PyAny>, inputs: &Bound<'_, PyAny>) -> PyResult<Arranged> {
    let (outputs, inputs): (Vec<Described>, Vec<Described>) = (outputs.extract()?, inputs.extract()?);
    let outputs: Vec<_> = outputs.iter().map(place).collect();
    let own = outputs.iter().map(Some).chain(std::iter::repeat(None));
    let inputs = inputs.iter().map(place).zip(own);
    let inputs: Vec<_> =
        inputs.map(|(input, own)| (!own.is_some_and(|own| own.is_same(&input))).then_some(input)).collect();
    match overlap::keep_apart(&outputs, &inputs)? {
        Apart::Never(a, b) => Ok((Some((a, b)), Vec::new())),
        Apart::By { mut copies, .. } => {
            copies.sort_unstable();
            Ok((None, copies))
        }
    }
}
