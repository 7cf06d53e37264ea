//! The bounds of `clip_by_value`.

use pyo3::PyTypeInfo;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt};

use super::array::items::Items;
use super::array::order::{IterOrder, broadcast_values};
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
    /// An array of the tensor's dtype, with a shape that broadcasts to the tensor's shape.
    Array(Box<Array<'py>>),
}

/// Reads a bound, checks its type and then its shape against that of the tensor, and converts an array to the tensor's dtype.
pub(super) fn bound<'py>(
    call: &Call<'_, 'py>,
    argument: &str,
    object: Option<&Bound<'py, PyAny>>,
    tensor: &Inputs<'_, 'py>,
    shape: &[usize],
) -> PyResult<BoundKind<'py>> {
    let Some(object) = object else { return Ok(BoundKind::No) };
    let dtype = tensor.dtype()?;
    let is_float = dtype.is_float();
    if let Some(number) = plain_bound(object, is_float)? {
        return Ok(number);
    }
    if let Some(bound) = numbers_bound(object, dtype, shape)? {
        return Ok(bound);
    }
    let found = call.check("bound", (argument, object, tensor.object()?, shape))?;
    if let Some(number) = plain_bound(&found, is_float)? {
        return Ok(number);
    }
    let (array, _) = Array::read(&found).ok_or_else(|| internal("a bound is no array"))?;
    Ok(BoundKind::Array(Box::new(array)))
}

/// Whether a bound is an array of the tensor's dtype, which is read as it is, without Python code. A single element may be read as a
/// number, by a method of NumPy.
pub(super) fn needs_no_conversion(object: &Bound<'_, PyAny>, tensor: &Bound<'_, PyAny>) -> bool {
    let [own, other] = [object, tensor].map(Array::exact_dtype_and_len);
    matches!((own, other), (Some((own, len)), Some((dtype, _))) if own == dtype && len != 1)
}

/// The most numbers that are converted here, one by one. NumPy converts longer ones with vectors.
const MAX_CONVERTED: usize = BLOCK;

/// A bound that is an ndarray of the tensor's dtype, a short one of other floats or integers, or a list or a tuple of floats and
/// small integers, one for each element of the last axis. None for other bounds, and for those with NaN or integers from 2^53 on. A
/// single element is a number, because clipping to numbers is faster.
fn numbers_bound<'py>(
    object: &Bound<'py, PyAny>,
    dtype: Dtype,
    shape: &[usize],
) -> PyResult<Option<BoundKind<'py>>> {
    let (py, is_float) = (object.py(), dtype.is_float());
    let (numbers, own_shape) = if let Some((array, false)) = Array::read(object) {
        let Some(own) = array.dtype().filter(|own| own.is_ordered()) else { return Ok(None) };
        let is_number = array.len() == 1 && array.shape() != shape;
        if own == dtype && !is_number {
            return Ok(array.strides_over(shape).map(|_| BoundKind::Array(Box::new(array))));
        }
        if !own.is_float() && is_number && array.ndim() <= shape.len() {
            let number = object.call_method0(intern!(py, "item"))?;
            return Ok(Some(BoundKind::Integer(number.cast_into()?)));
        }
        if own.is_float() && !is_float || array.len() > MAX_CONVERTED {
            return Ok(None);
        }
        let numbers = match_dtype!(real own, T => array.collect(|x: T| x.widen())?,
            match_dtype!(ordered own, T => array.collect(exact::<T>)?, return Ok(None)));
        (numbers, array.shape().to_vec())
    } else {
        let Some(Items::Many(entries, _)) = Items::of_list(object)? else { return Ok(None) };
        if !(1..=MAX_CONVERTED).contains(&entries.len()) || shape.last() != Some(&entries.len()) {
            return Ok(None);
        }
        let mut numbers = vec_with_room(entries.len())?;
        for entry in entries.iter_borrowed() {
            let small = entry.cast_exact::<PyInt>().ok().and_then(|number| number.extract::<i32>().ok());
            let float = entry.cast_exact::<PyFloat>().ok().map(|number| number.value());
            let Some(number) = small.map(f64::from).or(float.filter(|_| is_float)) else { return Ok(None) };
            numbers.push(number);
        }
        (numbers, vec![entries.len()])
    };
    if numbers.iter().any(|number| number.is_nan()) {
        return Ok(None);
    }
    if let ([number], true) = (numbers.as_slice(), own_shape.len() <= shape.len()) {
        return Ok(Some(BoundKind::Float(*number)));
    }
    let axes: Vec<_> = (0..own_shape.len()).collect();
    let object = match_dtype!(ordered dtype, T => Array::filled::<T>(py, &own_shape, &axes, |to| {
        to.iter_mut().zip(&numbers).for_each(|(to, x)| *to = T::from_float(*x));
        Ok(())
    })?, return Ok(None));
    let array =
        Array::read(&object).map(|(array, _)| array).filter(|array| array.strides_over(shape).is_some());
    Ok(array.map(|array| BoundKind::Array(Box::new(array))))
}

/// An integer as a float64; NaN if its magnitude is 2^53 or more, where a float64 may be another number.
fn exact<T: Ordered>(x: T) -> f64 {
    let size = x.modulus(1.0);
    let exact = if size < (1u64 << 53) as f64 { size } else { f64::NAN };
    if x < T::ZERO { -exact } else { exact }
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
            (Self::Array(array), _) => array.broadcast(shape, walk),
            (_, Some(number)) => Ok(broadcast_values(number, &[], shape, walk)),
            (_, None) => Err(internal("a bound is neither a number nor an array")),
        }
    }
}
