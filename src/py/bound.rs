//! The bounds of `clip_by_value`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

use super::array::order::{IterOrder, spread};
use super::array::{Array, internal};
use super::call::{Call, Entry, Number, number};
use super::classes::{integer, is_cupy, is_list, is_numpy, item, numeric_kind, plain};
use super::operands::Inputs;
use super::text::{describe, dtype_text, shape_text};
use crate::element::Ordered;
use crate::walk::View;

/// A bound of `clip_by_value`.
pub(super) enum BoundKind<'py> {
    /// None: no bound on that side.
    No,
    /// One number, as an array of the tensor's dtype or as Python has it.
    Number(Bound<'py, PyAny>),
    /// An array of the tensor's dtype and shape.
    Array(Array<'py>),
}

/// Reads a bound, checks its type and then its shape, and converts an array to the tensor's dtype and shape.
pub(super) fn bound<'py>(
    call: &Call<'_, 'py>,
    argument: &str,
    object: Option<&Bound<'py, PyAny>>,
    tensor: &Inputs<'_, 'py>,
) -> PyResult<BoundKind<'py>> {
    let Some(object) = object else { return Ok(BoundKind::No) };
    let is_int = object.is_instance_of::<PyInt>() && !object.is_instance_of::<PyBool>();
    if is_int || (object.is_instance_of::<PyFloat>() && tensor.dtype()?.is_float()) {
        return Ok(BoundKind::Number(object.clone()));
    }
    array_bound(call, argument, object, tensor)
}

/// [`bound`] for an object that is not a Python number.
#[inline(never)] // the fast path does not reach it
fn array_bound<'py>(
    call: &Call<'_, 'py>,
    argument: &str,
    object: &Bound<'py, PyAny>,
    tensor: &Inputs<'_, 'py>,
) -> PyResult<BoundKind<'py>> {
    let (py, dtype) = (object.py(), tensor.dtype()?);
    let wrong = |found: String| {
        let numbers = if dtype.is_float() {
            "a real number or an array of real numbers"
        } else {
            "an int or an array of integers"
        };
        let allowed = format!("None, {numbers}, for a tensor of dtype {}", dtype.name());
        Err(call.type_error(argument, found, &allowed))
    };
    if is_cupy(object) {
        let allowed = "None, a number or a NumPy array, for a tensor that is no cupy.ndarray";
        return Err(call.type_error(argument, describe(object), allowed));
    }
    let is_list = is_list(object);
    if !is_list && !is_numpy(object)? && !object.hasattr(intern!(py, "__array__"))? {
        return wrong(describe(object));
    }
    let rounding = || py.import(intern!(py, "gradclip._rounding"));
    let own = || plain(tensor.object()?)?.getattr(intern!(py, "dtype"));
    // The owner of the memory, maybe the caller's array, is kept beside the array of numbers.
    let owner = call.array(Entry(argument, None), object)?;
    let mut array = plain(owner.object())?;
    if is_list && numeric_kind(&array)? != Some('i') {
        let integers = rounding()?.call_method1(intern!(py, "rounded_integers"), (object, own()?))?;
        if !integers.is_none() {
            array = integers;
        }
    }
    let found = || if is_list { dtype_text(&array) } else { describe(object) };
    match numeric_kind(&array)? {
        Some('i') => {}
        Some('f') if dtype.is_float() => {}
        Some('f') => return wrong(format!("{} (float)", found())),
        _ => return wrong(found()),
    }
    let rounded = || rounding()?.call_method1(intern!(py, "rounded"), (&array, own()?));
    let shape: Vec<usize> = array.getattr(intern!(py, "shape"))?.extract()?;
    if shape.is_empty() {
        // A float64 is converted to the tensor's dtype later, and so is an integer of any size.
        let is_longer = dtype.is_float() && array.getattr(intern!(py, "itemsize"))?.extract::<usize>()? > 8;
        let number = if is_longer { item(&rounded()?)? } else { item(&array)? };
        return Ok(BoundKind::Number(number));
    }
    let target = tensor.shape()?;
    let fits = shape.len() <= target.len()
        && shape.iter().rev().zip(target.iter().rev()).all(|(own, other)| *own == 1 || own == other);
    if !fits {
        let allowed = format!("a shape that broadcasts to that of the tensor, {}", shape_text(&target));
        return Err(call.value_error(argument, format!("shape {}", shape_text(&shape)), &allowed));
    }
    let cast = rounded()?;
    if shape.iter().product::<usize>() == 1 {
        let number = item(&cast)?;
        // A NaN is kept as an array, because as a Python number it would lose its payload.
        if !number.extract::<f64>().is_ok_and(f64::is_nan) {
            return Ok(BoundKind::Number(number));
        }
    }
    let cast = py
        .import(intern!(py, "numpy"))?
        .call_method1(intern!(py, "broadcast_to"), (cast, target.to_vec()))?;
    match Array::read(&cast) {
        Some((array, _)) => Ok(BoundKind::Array(array.with_owner(Box::new(owner)))),
        None => Err(internal("a bound is no array")),
    }
}

impl BoundKind<'_> {
    /// The number, in the tensor's dtype; None for an array.
    pub(super) fn value<T: Ordered>(&self, unbounded: T) -> PyResult<Option<T>> {
        let Self::Number(value) = self else {
            return Ok(matches!(self, Self::No).then_some(unbounded));
        };
        if let Ok(value) = value.cast::<PyFloat>() {
            return Ok(Some(T::from_float(value.value())));
        }
        // The fast path of nearly all integers.
        if value.is_exact_instance_of::<PyInt>()
            && let Ok(small) = value.extract::<i32>()
        {
            return Ok(Some(T::from_integer(small < 0, small.unsigned_abs().into())));
        }
        // 128 bits hold every number of every dtype except float64, for which rounding to float64 is correct.
        if let Some(integer) = integer(value)?
            && let Ok(magnitude) = integer.abs()?.extract::<u128>()
        {
            return Ok(Some(T::from_integer(integer.lt(0)?, magnitude)));
        }
        match number(value)? {
            Number::Real(value) => Ok(Some(T::from_float(value))),
            _ => Err(internal("a bound is no number")),
        }
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
