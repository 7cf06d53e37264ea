//! Arrays on a GPU: recognizing them, and the checks that the package's GPU part calls.
//!
//! A tensor that is a `cupy.ndarray` is handed on, with all arguments, to the function of the same name in `gradclip._cuda`.
//! That is Python, and this crate never imports `CuPy`: if it is not imported, there are no such arrays. Only this crate
//! defines what arguments mean, which values they may have, and the texts of errors. So it offers the checks as functions, with
//! the name of the public function and the caller's `name` first. The GPU part decides the order in which arguments are
//! checked.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use pyo3::exceptions::PyBaseException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::array::{Array, internal};
use super::bound::{BoundKind, Given, given_bound};
use super::call::{Call, Entry};
use super::classes::{is_cupy, is_list, loaded};
use super::norm::{Along, vector_order};
use super::overlap::{self, Apart, Place};
use super::run::MatrixNorm;
use super::text;
use crate::element::{Dtype, Ordered, match_ordered};
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

/// The bits of a bound that is a single number, in the tensor's dtype (`dtype_code` counts in [`Dtype::ALL`]), those of a
/// narrow dtype as a small number. None for lists and for arrays that are not 0-d, which are not checked here, and for arrays
/// on a GPU.
#[pyfunction]
pub(super) fn check_number_bound<'py>(
    py: Python<'py>,
    function: &str,
    name: Option<&Bound<'py, PyAny>>,
    argument: &str,
    object: &Bound<'py, PyAny>,
    dtype_code: usize,
) -> PyResult<Option<u64>> {
    let call = Call::of_python(py, function, name)?;
    let dtype = *Dtype::ALL.get(dtype_code).ok_or_else(|| internal("a dtype without a number"))?;
    let has_axes = Array::read(object).is_some_and(|(array, _)| array.ndim() > 0);
    if has_axes || is_list(object) || is_cupy(object) {
        return Ok(None);
    }
    let own = || numpy_dtype(py, dtype);
    match given_bound(&call, argument, object, dtype, own)? {
        Given::Number(number) => {
            let number = BoundKind::Number(number);
            match_ordered!(dtype, T => Ok(number.value(T::LOWEST)?.map(bits)), Err(internal("a bound without an order")))
        }
        Given::Array(..) => Ok(None),
    }
}

/// A dtype as a NumPy object.
fn numpy_dtype(py: Python<'_>, dtype: Dtype) -> PyResult<Bound<'_, PyAny>> {
    let numpy = py.import(intern!(py, "numpy"))?;
    let class = match dtype {
        Dtype::Bf16 => loaded(intern!(py, "ml_dtypes"))?
            .ok_or_else(|| internal("bfloat16 without ml_dtypes"))?
            .getattr(dtype.name())?,
        _ => numpy.getattr(dtype.name())?,
    };
    numpy.call_method1(intern!(py, "dtype"), (class,))
}

/// The bits of an element.
fn bits<T: Ordered>(x: T) -> u64 {
    let cells = [const { AtomicU8::new(0) }; size_of::<u64>()];
    x.store_bytes(&cells, cfg!(target_endian = "big"));
    u64::from_le_bytes(cells.map(|cell| cell.load(Relaxed)))
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
