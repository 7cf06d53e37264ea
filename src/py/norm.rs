//! `global_norm`, `norm` and `normalize`, and what `ord` and `axis` mean.

use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyString};

use super::array::Array;
use super::array::plain::{Items, PlainArrays};
use super::call::{Call, Number, are_plain, number};
use super::classes::{any_is_cupy, is_bool, is_cupy};
use super::kinds::Kinds;
use super::run::{
    MatrixNorm, Norms, norm_of, norm_of_list, norm_of_plain, normalize_rows, pair, scale_one, scale_slices,
    tensors,
};
use super::text::describe;
use crate::element::Dtype;
use crate::parallel::reduce::Order;
use crate::parallel::rows::Rule;
use crate::scaled::Scaled;

/// What `ord` names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ord {
    /// A vector norm, and the Euclidean norm of a matrix.
    Vector(Order),
    /// 'fro', for matrices alone.
    Frobenius,
}

const VECTOR_ORDS: &str = "'euclidean' or a real number > 0";
const MATRIX_ORDS: &str = "'euclidean', 'fro', 1, 2 or inf for two axes";

/// Reads `ord`.
pub(super) fn order(call: &Call<'_, '_>, ord: &Bound<'_, PyAny>) -> PyResult<Ord> {
    if let Ok(text) = ord.cast::<PyString>() {
        return match text.to_string_lossy().as_ref() {
            "euclidean" => Ok(Ord::Vector(Order::Two)),
            "fro" => Ok(Ord::Frobenius),
            _ => Err(call.value_error("ord", describe(ord), &format!("{VECTOR_ORDS}; {MATRIX_ORDS}"))),
        };
    }
    match number(ord)? {
        Number::Real(p) if p > 0.0 => Ok(Ord::Vector(Order::of(p))),
        Number::No if ord.is_none() || is_bool(ord)? => {
            Err(call.type_error("ord", describe(ord), VECTOR_ORDS))
        }
        _ => Err(call.value_error("ord", describe(ord), VECTOR_ORDS)),
    }
}

/// Reads the `ord` of a function that has vector norms alone.
pub(super) fn vector_order(call: &Call<'_, '_>, ord: &Bound<'_, PyAny>) -> PyResult<Order> {
    match order(call, ord)? {
        Ord::Vector(order) => Ok(order),
        Ord::Frobenius => Err(call.value_error("ord", describe(ord), VECTOR_ORDS)),
    }
}

/// See `gradclip.global_norm`.
#[pyfunction]
#[pyo3(signature = (t_list, name, ord))]
pub(super) fn global_norm<'py>(
    py: Python<'py>,
    t_list: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
    ord: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let call = Call::new(py, "global_norm", name)?;
    let items = call.sequence(t_list)?;
    if are_plain([Some(ord), name])
        && let Some(arrays) = PlainArrays::read(py, &items, Kinds::Normed)?
    {
        call.check_name()?;
        let norm = norm_of_plain(py, &arrays, vector_order(&call, ord)?)?;
        return Ok(PyFloat::new(py, norm.to_f64()).into_any());
    }
    let entries = items.to_tuple()?;
    if any_is_cupy(&entries) {
        return call.hand_on((entries, name, ord));
    }
    let tensors = tensors(&call, &entries, Kinds::Normed)?;
    call.check_name()?;
    let order = vector_order(&call, ord)?;
    let arrays = tensors.iter().flatten().map(|tensor| (&tensor.array, tensor.dtype));
    Ok(PyFloat::new(py, norm_of_list(py, arrays, order)?.to_f64()).into_any())
}

/// The axes of a norm, and what is computed along them.
pub(super) enum Along {
    Whole(Order),
    Vectors(Vec<usize>, Order),
    Matrices([usize; 2], MatrixNorm),
}

impl Along {
    pub(super) fn new(
        call: &Call<'_, '_>,
        ord: &Bound<'_, PyAny>,
        axis: Option<&Bound<'_, PyAny>>,
        ndim: usize,
    ) -> PyResult<Self> {
        let named = order(call, ord)?;
        let axes = call.axes("axis", axis, ndim)?;
        if let Some([]) = axes.as_deref() {
            return Err(call.value_error(
                "axis",
                "an empty sequence",
                "None, an int or a sequence of at least one int",
            ));
        }
        if let Some(&[a, b]) = axes.as_deref() {
            let norm = match named {
                Ord::Frobenius => MatrixNorm::Frobenius,
                Ord::Vector(Order::Two) if ord.is_instance_of::<PyString>() => MatrixNorm::Frobenius,
                Ord::Vector(Order::One) => MatrixNorm::One,
                Ord::Vector(Order::Two) => MatrixNorm::Two,
                Ord::Vector(Order::Max) => MatrixNorm::Infinity,
                Ord::Vector(Order::Power(_)) => {
                    return Err(call.value_error("ord", describe(ord), MATRIX_ORDS));
                }
            };
            return Ok(Self::Matrices([a, b], norm));
        }
        match (named, axes) {
            (Ord::Frobenius, _) => Err(call.value_error("ord", describe(ord), VECTOR_ORDS)),
            (Ord::Vector(order), None) => Ok(Self::Whole(order)),
            (Ord::Vector(order), Some(axes)) if axes.len() == ndim => Ok(Self::Whole(order)),
            (Ord::Vector(order), Some(axes)) => Ok(Self::Vectors(axes, order)),
        }
    }

    fn norms(&self, array: &Array<'_>, dtype: Dtype) -> PyResult<Norms> {
        match self {
            Self::Whole(order) => {
                let py = array.object().py();
                let norm = norm_of(py, array, dtype, *order)?;
                Ok(Norms { values: vec![norm], kept: vec![] })
            }
            Self::Vectors(axes, order) => Norms::of(array, dtype, axes, *order),
            Self::Matrices(axes, norm) => Norms::of_matrices(array, dtype, *axes, *norm),
        }
    }
}

/// See `gradclip.norm`.
#[pyfunction]
#[pyo3(signature = (tensor, ord, axis, keepdims, name))]
pub(super) fn norm<'py>(
    py: Python<'py>,
    tensor: &Bound<'py, PyAny>,
    ord: &Bound<'py, PyAny>,
    axis: Option<&Bound<'py, PyAny>>,
    keepdims: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let call = Call::new(py, "norm", name)?;
    if axis.is_none()
        && keepdims.is_none()
        && are_plain([Some(ord), name])
        && let Some(arrays) = PlainArrays::read(py, &Items::One(tensor), Kinds::Normed)?
    {
        let order = vector_order(&call, ord)?;
        call.check_name()?;
        return Ok(PyFloat::new(py, norm_of_plain(py, &arrays, order)?.to_f64()).into_any());
    }
    if is_cupy(tensor) {
        return call.hand_on((tensor, ord, axis, keepdims, name));
    }
    let tensor = call.tensor("tensor", tensor, Kinds::Normed)?;
    let along = Along::new(&call, ord, axis, tensor.array.ndim())?;
    let keepdims = call.keepdims(keepdims)?;
    call.check_name()?;
    if let Along::Vectors(axes, order) = &along {
        return Norms::array_of(py, &tensor.array, tensor.dtype, axes, *order, keepdims);
    }
    let norms = along.norms(&tensor.array, tensor.dtype)?;
    match norms.values[..] {
        [norm] if norms.kept.is_empty() && !keepdims => Ok(PyFloat::new(py, norm.to_f64()).into_any()),
        _ => norms.to_array(py, tensor.dtype, tensor.array.shape(), keepdims),
    }
}

/// See `gradclip.normalize`.
#[pyfunction]
#[pyo3(signature = (tensor, ord, axis, name, out))]
pub(super) fn normalize<'py>(
    py: Python<'py>,
    tensor: &Bound<'py, PyAny>,
    ord: &Bound<'py, PyAny>,
    axis: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let call = Call::new(py, "normalize", name)?;
    if is_cupy(tensor) {
        return call.hand_on((tensor, ord, axis, name, out));
    }
    let tensor = call.tensor("tensor", tensor, Kinds::Scalable)?;
    let along = Along::new(&call, ord, axis, tensor.array.ndim())?;
    call.check_name()?;
    let dtype = tensor.dtype;
    let given = call.out("out", out, &tensor)?;
    // The output first: if there is no memory for it, the norms need not be waited for.
    let mut pair = pair(&call, tensor.array, given, &mut [])?;
    if let Along::Vectors(axes, Order::Two) = &along
        && let Some(norm) = normalize_rows(&mut pair, dtype, axes)?
    {
        return Ok((call.result(pair.result(), None, out)?, norm).into_pyobject(py)?.into_any());
    }
    let norms = along.norms(pair.input(), dtype)?;
    let norm = norms.to_array(py, dtype, pair.input().shape(), true)?;
    let divide = |norm: Scaled| Rule::Normalize.factor(norm);
    match norms.values[..] {
        [norm] => scale_one(py, &mut pair, divide(norm))?,
        _ => scale_slices(&mut pair, &norms, divide)?,
    }
    Ok((call.result(pair.result(), None, out)?, norm).into_pyobject(py)?.into_any())
}
