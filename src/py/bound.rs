//! The bounds of `clip_by_value`.

use pyo3::PyTypeInfo;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt};

use super::array::order::{IterOrder, spread};
use super::array::{Array, internal, objects};
use super::call::Call;
use super::operands::Inputs;
use crate::element::{Dtype, Ordered, Real, match_dtype};
use crate::error::vec_with_room;
use crate::kernel::sum::BLOCK;
use crate::walk::View;

/// A bound of `clip_by_value`.
pub(super) enum BoundKind<'py> {
    /// None: no bound on that side.
    No,
    Float(f64),
    /// An integer of any size.
    Integer(Bound<'py, PyInt>),
    /// An array of the tensor's dtype and shape.
    Array(Box<Array<'py>>),
}

/// Reads a bound, checks its type and then its shape, and converts an array to the tensor's dtype and shape.
pub(super) fn bound<'py>(
    call: &Call<'_, 'py>,
    argument: &str,
    object: Option<&Bound<'py, PyAny>>,
    tensor: &Inputs<'_, 'py>,
) -> PyResult<BoundKind<'py>> {
    let Some(object) = object else { return Ok(BoundKind::No) };
    let dtype = tensor.dtype()?;
    let is_float = dtype.is_float();
    if let Some(number) = plain_bound(object, is_float)? {
        return Ok(number);
    }
    let shape = tensor.shape()?;
    if let Some((array, false)) = Array::read(object)
        && let Some(bound) = array_bound(array, dtype, &shape)?
    {
        return Ok(bound);
    }
    let found = call.check("bound", (argument, object, tensor.object()?, &*shape))?;
    if let Some(number) = plain_bound(&found, is_float)? {
        return Ok(number);
    }
    // The owner of the memory, maybe the caller's array, is kept beside the array of numbers.
    let (owner, array): (Bound<'py, PyAny>, Bound<'py, PyAny>) = found.extract()?;
    match (Array::read(&owner), Array::read(&array)) {
        (Some((owner, _)), Some((array, _))) => {
            Ok(BoundKind::Array(Box::new(array.with_owner(Box::new(owner)))))
        }
        _ => Err(internal("a bound is no array")),
    }
}

/// The most elements of an array that is converted here.
const MAX_CONVERTED: usize = BLOCK;

/// A bound that is an ndarray: of the tensor's dtype, or a short one of other floats without NaN; None for other arrays.
fn array_bound<'py>(array: Array<'py>, dtype: Dtype, shape: &[usize]) -> PyResult<Option<BoundKind<'py>>> {
    let in_array = |array: Option<Array<'py>>| array.map(|array| BoundKind::Array(Box::new(array)));
    let is_number = array.len() == 1 && array.shape() != shape;
    let own = match array.dtype() {
        Some(own) if own == dtype && !is_number => return Ok(in_array(array.broadcast_to(shape)?)),
        Some(own) if own.is_float() && dtype.is_float() && array.len() <= MAX_CONVERTED => own,
        _ => return Ok(None),
    };
    let py = array.object().py();
    let axes: Vec<_> = (0..array.ndim()).collect();
    let mut numbers: Vec<f64> = vec_with_room(array.len())?;
    match_dtype!(real own, T => {
        let view = array.view::<T>(&IterOrder::along(axes.iter().copied()))?;
        view.for_blocks(0..view.len(), |block| numbers.extend(block.iter().map(|x| x.widen())));
    }, {});
    match numbers.as_slice() {
        _ if numbers.iter().any(|number| number.is_nan()) => Ok(None),
        [number] if array.ndim() <= shape.len() => Ok(Some(BoundKind::Float(*number))),
        // NumPy itself has no number for bfloat16.
        _ if dtype == Dtype::Bf16 => Ok(None),
        _ => match_dtype!(real dtype, T => {
            let converted = Array::filled::<T>(py, array.shape(), &axes, |to| {
                to.iter_mut().zip(&numbers).for_each(|(to, number)| *to = T::narrow(*number));
                Ok(())
            })?;
            let (converted, _) = Array::read(&converted).ok_or_else(|| internal("NumPy made no array"))?;
            Ok(in_array(converted.broadcast_to(shape)?))
        }, Ok(None)),
    }
}

/// A bound that is a number of Python or NumPy.
#[inline]
fn plain_bound<'py>(object: &Bound<'py, PyAny>, is_float: bool) -> PyResult<Option<BoundKind<'py>>> {
    if let Ok(value) = object.cast_exact::<PyInt>() {
        return Ok(Some(BoundKind::Integer(value.clone())));
    }
    if let (Ok(value), true) = (object.cast::<PyFloat>(), is_float) {
        return Ok(Some(BoundKind::Float(value.value())));
    }
    if is_float && objects::is_float(object) {
        return Ok(Some(BoundKind::Float(object.extract()?)));
    }
    if objects::is_integer(object) {
        let value = PyInt::type_object(object.py()).call1((object,))?;
        return Ok(Some(BoundKind::Integer(value.cast_into()?)));
    }
    Ok(None)
}

impl BoundKind<'_> {
    /// The number, in the tensor's dtype; None for an array.
    pub(super) fn value<T: Ordered>(&self, unbounded: T) -> PyResult<Option<T>> {
        let value = match self {
            Self::No => return Ok(Some(unbounded)),
            Self::Array(_) => return Ok(None),
            Self::Float(value) => return Ok(Some(T::from_float(*value))),
            Self::Integer(value) => value,
        };
        // The fast path of nearly all integers.
        if let Ok(small) = value.extract::<i32>() {
            return Ok(Some(T::from_integer(small < 0, small.unsigned_abs().into())));
        }
        // 128 bits hold every number of every dtype except float64, for which rounding to float64 is correct.
        let is_negative = value.lt(0)?;
        if let Ok(magnitude) = value.abs()?.extract::<u128>() {
            return Ok(Some(T::from_integer(is_negative, magnitude)));
        }
        let largest = if is_negative { f64::NEG_INFINITY } else { f64::INFINITY };
        Ok(Some(T::from_float(value.extract().unwrap_or(largest))))
    }

    /// A view of all elements: of the array, or of the number that [`BoundKind::value`] returned.
    pub(super) fn view<'a, T: Ordered>(
        &'a self,
        number: Option<&'a [T; 1]>,
        shape: &[usize],
        walk: &IterOrder,
    ) -> PyResult<View<'a, T>> {
        match (self, number) {
            (Self::Array(array), _) => array.view(walk),
            (_, Some(number)) => Ok(spread(number, &[], shape, walk)),
            (_, None) => Err(internal("a bound is neither a number nor an array")),
        }
    }
}
