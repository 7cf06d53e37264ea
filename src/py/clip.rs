//! The clippers.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList};

use super::array::plain::{Items, OperandPairs, PlainArrays};
use super::array::{Array, IterOrder, Out, Pair, ReducedAxes, arrange, internal, objects, spread};
use super::call::{Call, Entry, Number, Tensor, are_plain, are_plain_axes, number};
use super::classes::{any_is_cupy, integer, is_cupy, is_list, is_numpy, item, numeric_kind, plain};
use super::kinds::Kinds;
use super::norm::vector_order;
use super::run::{
    NormOf, Norms, clip_plain, detached, norm_of, norm_of_list, pair, real_dtype, scale_list, scale_one,
    scale_slices, tensors,
};
use super::text::{describe, dtype_text, shape_text};
use crate::element::{Dtype, Ordered, match_ordered, match_real};
use crate::error::vec_with_room;
use crate::isa::Isa;
use crate::kernel::clip::Clip;
use crate::kernel::scale::ClipMagnitude;
use crate::parallel::columns::{clip_columns, is_column};
use crate::parallel::elementwise::{Task, apply_elementwise};
use crate::parallel::reduce::Order;
use crate::parallel::rows::{clip_rows, is_row};
use crate::scaled::{Factor, Scaled};
use crate::walk::{Bounds, Target, Uniform, View};

/// A bound of `clip_by_value`.
pub(super) enum BoundKind<'py> {
    /// None: no bound on that side.
    No,
    /// One number, as an array of the tensor's dtype or as Python has it.
    Number(Bound<'py, PyAny>),
    /// An array of the tensor's dtype and shape.
    Array(Array<'py>),
}

/// What a bound is, before its shape is looked at.
pub(super) enum Given<'py> {
    /// One number, as Python has it.
    Number(Bound<'py, PyAny>),
    /// An array of numbers that are bounds for the dtype.
    Array(Bound<'py, PyAny>),
}

/// Reads a bound for tensors of a dtype; `own` is that dtype as NumPy has it.
pub(super) fn given_bound<'py>(
    call: &Call<'_, 'py>,
    argument: &str,
    object: &Bound<'py, PyAny>,
    dtype: Dtype,
    own: impl Fn() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Given<'py>> {
    let py = object.py();
    let wrong = |found: String| {
        let numbers = if dtype.is_float() {
            "a real number or an array of real numbers"
        } else {
            "an int or an array of integers"
        };
        let allowed = format!("None, {numbers}, for a tensor of dtype {}", dtype.name());
        Err(call.type_error(argument, found, &allowed))
    };
    let is_int = object.is_instance_of::<PyInt>() && !object.is_instance_of::<PyBool>();
    if is_int || (dtype.is_float() && object.is_instance_of::<PyFloat>()) {
        return Ok(Given::Number(object.clone()));
    }
    if is_cupy(object) {
        let allowed = "None, a number or a NumPy array, for a tensor that is no cupy.ndarray";
        return Err(call.type_error(argument, describe(object), allowed));
    }
    let is_list = is_list(object);
    if !is_list && !is_numpy(object)? && !object.hasattr(intern!(py, "__array__"))? {
        return wrong(describe(object));
    }
    let mut array = plain(call.array(argument, object)?.object())?;
    if is_list && numeric_kind(&array)? != Some('i') {
        let integers = rounding(py)?.call_method1(intern!(py, "rounded_integers"), (object, own()?))?;
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
    let ndim: usize = array.getattr(intern!(py, "ndim"))?.extract()?;
    if ndim > 0 {
        return Ok(Given::Array(array));
    }
    // A number that is a float64 goes to the tensor's dtype below; so does an integer of any size.
    let is_longer = dtype.is_float() && array.getattr(intern!(py, "itemsize"))?.extract::<usize>()? > 8;
    let number = if is_longer { rounded(&array, &own()?)? } else { array };
    Ok(Given::Number(item(&number)?))
}

fn rounding(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "gradclip._rounding"))
}

fn rounded<'py>(array: &Bound<'py, PyAny>, dtype: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    rounding(array.py())?.call_method1(intern!(array.py(), "rounded"), (array, dtype))
}

/// Reads a bound: its type, then its shape, and brings an array to the tensor's dtype and shape.
fn bound<'py>(
    call: &Call<'_, 'py>,
    argument: &'static str,
    object: Option<&Bound<'py, PyAny>>,
    tensor: &Tensor<'py>,
) -> PyResult<BoundKind<'py>> {
    let Some(object) = object else { return Ok(BoundKind::No) };
    let py = object.py();
    let own = || plain(tensor.array.object())?.getattr(intern!(py, "dtype"));
    let array = match given_bound(call, argument, object, tensor.dtype, own)? {
        Given::Number(number) => return Ok(BoundKind::Number(number)),
        Given::Array(array) => array,
    };
    let shape: Vec<usize> = array.getattr(intern!(py, "shape"))?.extract()?;
    let target = tensor.array.shape();
    let fits = shape.len() <= target.len()
        && shape.iter().rev().zip(target.iter().rev()).all(|(own, other)| *own == 1 || own == other);
    if !fits {
        let allowed = format!("a shape that broadcasts to that of the tensor, {}", shape_text(target));
        return Err(call.value_error(argument, format!("shape {}", shape_text(&shape)), &allowed));
    }
    if shape.iter().product::<usize>() == 1 {
        let number = item(&rounded(&array, &own()?)?)?;
        // As a Python number a NaN would lose its payload.
        if !number.extract::<f64>().is_ok_and(f64::is_nan) {
            return Ok(BoundKind::Number(number));
        }
    }
    let cast = py
        .import(intern!(py, "numpy"))?
        .call_method1(intern!(py, "broadcast_to"), (rounded(&array, &own()?)?, target.to_vec()))?;
    match Array::read(&cast) {
        Some((array, _)) => Ok(BoundKind::Array(array)),
        None => Err(internal("a bound is no array")),
    }
}

/// The bound if it is None, or a Python number of no subclass that is one for the dtype.
fn plain_bound<'py>(object: Option<&Bound<'py, PyAny>>, dtype: Dtype) -> Option<BoundKind<'py>> {
    let Some(object) = object else { return Some(BoundKind::No) };
    let fits = object.is_exact_instance_of::<PyInt>()
        || (dtype.is_float() && object.is_exact_instance_of::<PyFloat>());
    fits.then(|| BoundKind::Number(object.clone()))
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
        // The quick way for nearly all integers.
        if value.is_exact_instance_of::<PyInt>()
            && let Ok(small) = value.extract::<i32>()
        {
            return Ok(Some(T::from_integer(small < 0, small.unsigned_abs().into())));
        }
        // 128 bits hold every number of every dtype but float64, for which rounding to float64 is right.
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

    /// A view over all elements of the tensor: of the array, or of the one number that [`BoundKind::value`]
    /// gave.
    fn view<'a, T: Ordered>(
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

/// See `gradclip.clip_by_value`.
#[pyfunction]
#[pyo3(signature = (t, clip_value_min, clip_value_max, name, out))]
pub(super) fn clip_by_value<'py>(
    py: Python<'py>,
    t: &Bound<'py, PyAny>,
    clip_value_min: Option<&Bound<'py, PyAny>>,
    clip_value_max: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let call = Call::new(py, "clip_by_value", name)?;
    if are_plain([clip_value_min, clip_value_max, name])
        && let Some(mut arrays) = PlainArrays::read(py, &Items::One(t), Kinds::Ordered)?
        && let Some(dtype) = arrays.dtype()
        && let Some((lo, hi)) = plain_bound(clip_value_min, dtype).zip(plain_bound(clip_value_max, dtype))
        && (clip_value_min.is_some() || clip_value_max.is_some())
    {
        call.check_name()?;
        let bytes = arrays.bytes();
        match_ordered!(dtype, T => {
            if let (Some(lo), Some(hi)) = (lo.value(T::LOWEST)?, hi.value(T::HIGHEST)?)
                && let Some(mut pairs) = arrays.operand_pairs(py, &Items::One(t), out.map(Items::One).as_ref())?
            {
                let mut task = pairs.task::<T>()?;
                detached(py, bytes, || apply_elementwise(Isa::current(), &Uniform(Clip { lo, hi }), &mut task))?;
                return pairs.into_one();
            }
        }, {});
    }
    if is_cupy(t) {
        return call.hand_on((t, clip_value_min, clip_value_max, name, out));
    }
    let tensor = call.tensor_or_slices("t", t, Kinds::Ordered)?;
    let mut lo = bound(&call, "clip_value_min", clip_value_min, &tensor)?;
    let mut hi = bound(&call, "clip_value_max", clip_value_max, &tensor)?;
    if clip_value_min.is_none() && clip_value_max.is_none() {
        return Err(call.value_error("clip_value_min", "None for both bounds", "None for one of them"));
    }
    call.check_name()?;
    let given = call.out("out", out, &tensor)?;
    let (dtype, bytes) = (tensor.dtype, tensor.array.len() * tensor.dtype.size());
    let mut readers: Vec<&mut Array<'py>> = Vec::new();
    for bound in [&mut lo, &mut hi] {
        if let BoundKind::Array(array) = bound {
            readers.push(array);
        }
    }
    let mut pair = pair(&call, tensor.array, given, &mut readers)?;
    match_ordered!(dtype, T => {
        let values = (lo.value(T::LOWEST)?, hi.value(T::HIGHEST)?);
        if let (Some(lo), Some(hi)) = values {
            let mut task = pair.whole_task::<T>()?;
            let work = Uniform(Clip { lo, hi });
            detached(py, bytes, || apply_elementwise(Isa::current(), &work, &mut task))?;
        } else {
            let shape = pair.input().shape().to_vec();
            let walk = IterOrder::of_pair(&pair);
            let numbers = (values.0.map(|lo| [lo]), values.1.map(|hi| [hi]));
            let work = Bounds {
                lo: lo.view(numbers.0.as_ref(), &shape, &walk)?,
                hi: hi.view(numbers.1.as_ref(), &shape, &walk)?,
            };
            let mut task = pair.task::<T>(&walk)?;
            detached(py, bytes, || apply_elementwise(Isa::current(), &work, &mut task))?;
        }
    }, return Err(internal("bounds of a dtype without an order")));
    call.result(pair.result(), tensor.slices.as_ref(), out)
}

/// See `gradclip.clip_by_norm`.
#[pyfunction]
#[pyo3(signature = (t, clip_norm, axes, name, out))]
pub(super) fn clip_by_norm<'py>(
    py: Python<'py>,
    t: &Bound<'py, PyAny>,
    clip_norm: &Bound<'py, PyAny>,
    axes: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let call = Call::new(py, "clip_by_norm", name)?;
    if are_plain([Some(clip_norm), name])
        && are_plain_axes(axes)
        && let Some(mut arrays) = PlainArrays::read(py, &Items::One(t), Kinds::Scalable)?
    {
        let limit = call.limit("clip_norm", clip_norm, false)?;
        let axes = call.axes("axes", axes, arrays.shape().len())?;
        call.check_name()?;
        let axes = axes.filter(|axes| axes.len() < arrays.shape().len());
        let rows = axes.as_ref().map(|axes| arrays.row_len(axes));
        // Columns, and slices of one element, are for below.
        if rows.is_none_or(|len| len.is_some_and(|len| len > 1 && is_row(len)))
            && let Some(mut pairs) = arrays.operand_pairs(py, &Items::One(t), out.map(Items::One).as_ref())?
        {
            if let Some(len) = rows.flatten() {
                clip_plain_rows(py, &mut pairs, len, limit)?;
            } else {
                clip_plain(py, &mut pairs, NormOf::Inputs(Order::Two), |norm| norm.clip_to(limit))?;
            }
            return pairs.into_one();
        }
    }
    if is_cupy(t) {
        return call.hand_on((t, clip_norm, axes, name, out));
    }
    let tensor = call.tensor_or_slices("t", t, Kinds::Scalable)?;
    let limit = call.limit("clip_norm", clip_norm, false)?;
    let axes = call.axes("axes", axes, tensor.array.ndim())?;
    call.check_name()?;
    let given = call.out("out", out, &tensor)?;
    let dtype = tensor.dtype;
    let mut pair = pair(&call, tensor.array, given, &mut [])?;
    match axes.as_deref() {
        Some(_) if limit == f64::INFINITY => scale_one(py, &mut pair, None)?,
        Some([]) if pair.input().ndim() > 0 && dtype.is_float() => {
            clip_elements(py, &mut pair, dtype, limit)?;
        }
        Some(axes) if axes.len() < pair.input().ndim() => clip_slices(py, &mut pair, dtype, axes, limit)?,
        _ => clip_whole(py, &mut pair, dtype, |norm| norm.clip_to(limit))?,
    }
    call.result(pair.result(), tensor.slices.as_ref(), out)
}

/// Clips a tensor by a factor made of its Euclidean norm.
fn clip_whole<'py>(
    py: Python<'py>,
    pair: &mut Pair<'py>,
    dtype: Dtype,
    factor: impl Fn(Scaled) -> Option<Factor>,
) -> PyResult<()> {
    let norm = norm_of(py, pair.input(), dtype, Order::Two)?;
    scale_one(py, pair, factor(norm))
}

fn clip_elements(py: Python<'_>, pair: &mut Pair<'_>, dtype: Dtype, limit: f64) -> PyResult<()> {
    let bytes = pair.input().len() * dtype.size();
    match_real!(dtype, T => {
        let mut task = pair.whole_task::<T>()?;
        Ok(detached(py, bytes, || apply_elementwise(Isa::current(), &Uniform(ClipMagnitude(limit)), &mut task))?)
    }, Err(internal("clipping of integers")))
}

fn clip_slices(
    py: Python<'_>,
    pair: &mut Pair<'_>,
    dtype: Dtype,
    axes: &[usize],
    limit: f64,
) -> PyResult<()> {
    let whole = pair.input().clone();
    let columns = Norms::are_of_columns(&whole, dtype, axes)?;
    let real = real_dtype(pair)?;
    // The parts of a complex number belong to one slice.
    let parts = whole.ndim()..pair.input().ndim();
    let reduced: Vec<_> = axes.iter().copied().chain(parts).collect();
    let split = ReducedAxes::new(pair.input(), &reduced);
    let len = reduced.iter().filter_map(|axis| pair.input().shape().get(*axis)).product();
    // Columns are summed in another order than rows; which one it is must not depend on the output.
    if is_row(len) && !columns {
        let bytes = pair.input().len() * real.size();
        let done = match_real!(real, T => {
            match pair.rows::<T>(&split)? {
                Some((source, rows)) => {
                    detached(py, bytes, || clip_rows(Isa::current(), source.as_ref(), rows, len, limit))?;
                    true
                }
                None => false,
            }
        }, false);
        if done {
            return Ok(());
        }
    }
    if columns && real == dtype {
        let bytes = pair.input().len() * real.size();
        let done = match_real!(real, T => {
            match whole.slices::<T>(&ReducedAxes::new(&whole, axes))?.block().map(|block| [block.len, block.inner]) {
                Some(shape @ [len, _]) if is_column::<T>(whole.len() / len.max(1), shape) => match pair.whole_task::<T>()? {
                    Task { source: Some(View::Dense(from)), target: Target::Dense(to) } => {
                        detached(py, bytes, || clip_columns(Isa::current(), Some(from), to, shape, limit))?;
                        true
                    }
                    Task { source: None, target: Target::Dense(to) } => {
                        detached(py, bytes, || clip_columns(Isa::current(), None, to, shape, limit))?;
                        true
                    }
                    _ => false,
                },
                _ => false,
            }
        }, false);
        if done {
            return Ok(());
        }
    }
    let norms = Norms::of(&whole, dtype, axes, Order::Two)?;
    scale_slices(pair, &norms, |norm| norm.clip_to(limit))
}

/// See `gradclip.clip_by_average_norm`.
#[pyfunction]
#[pyo3(signature = (t, clip_norm, name, out))]
pub(super) fn clip_by_average_norm<'py>(
    py: Python<'py>,
    t: &Bound<'py, PyAny>,
    clip_norm: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let call = Call::new(py, "clip_by_average_norm", name)?;
    if are_plain([Some(clip_norm), name])
        && let Some(mut arrays) = PlainArrays::read(py, &Items::One(t), Kinds::Scalable)?
    {
        let limit = call.limit("clip_norm", clip_norm, false)?;
        call.check_name()?;
        let len = arrays.shape().iter().product();
        if let Some(mut pairs) = arrays.operand_pairs(py, &Items::One(t), out.map(Items::One).as_ref())? {
            clip_plain(py, &mut pairs, NormOf::Inputs(Order::Two), |norm| norm.over(len).clip_to(limit))?;
            return pairs.into_one();
        }
    }
    if is_cupy(t) {
        return call.hand_on((t, clip_norm, name, out));
    }
    let tensor = call.tensor("t", t, Kinds::Scalable)?;
    let limit = call.limit("clip_norm", clip_norm, false)?;
    call.check_name()?;
    let given = call.out("out", out, &tensor)?;
    let dtype = tensor.dtype;
    let mut pair = pair(&call, tensor.array, given, &mut [])?;
    let len = pair.input().len();
    clip_whole(py, &mut pair, dtype, |norm| norm.over(len).clip_to(limit))?;
    call.result(pair.result(), None, out)
}

/// See `gradclip.clip_by_global_norm`.
#[pyfunction]
#[pyo3(signature = (t_list, clip_norm, use_norm, name, ord, out))]
pub(super) fn clip_by_global_norm<'py>(
    py: Python<'py>,
    t_list: &Bound<'py, PyAny>,
    clip_norm: &Bound<'py, PyAny>,
    use_norm: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    ord: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let call = Call::new(py, "clip_by_global_norm", name)?;
    let items = call.sequence(t_list)?;
    if are_plain([Some(clip_norm), use_norm, name, Some(ord)])
        && let Some(outs) = out.map_or(Some(None), |out| Items::of_list(out).map(Some))
        && let Some(mut arrays) = PlainArrays::read(py, &items, Kinds::Scalable)?
    {
        let limit = call.limit("clip_norm", clip_norm, false)?;
        let used = use_norm.map(|norm| call.limit("use_norm", norm, true)).transpose()?;
        call.check_name()?;
        let order = vector_order(&call, ord)?;
        let norm = used.map_or(NormOf::Inputs(order), |norm| NormOf::Given(Scaled::new(norm, 0)));
        if let Some(mut pairs) = arrays.operand_pairs(py, &items, outs.as_ref())? {
            let norm = clip_plain(py, &mut pairs, norm, |norm| factor_of_all(norm, limit))?;
            return clipped_and_norm(pairs.into_list()?, norm);
        }
    }
    let entries = items.to_tuple()?;
    if any_is_cupy(&entries) {
        return call.hand_on((entries, clip_norm, use_norm, name, ord, out));
    }
    let tensors = tensors(&call, &entries, Kinds::Scalable)?;
    let limit = call.limit("clip_norm", clip_norm, false)?;
    let used = use_norm.map(|norm| call.limit("use_norm", norm, true)).transpose()?;
    call.check_name()?;
    let order = vector_order(&call, ord)?;
    let outs = call.out_sequence(out, tensors.len())?;

    let mut pairs = vec_with_room(tensors.len())?;
    let mut entries = vec_with_room(tensors.len())?;
    for (i, tensor) in tensors.into_iter().enumerate() {
        let out = match &outs {
            Some(outs) => Some(outs.get_item(i)?).filter(|out| !out.is_none()),
            None => None,
        };
        let Some(tensor) = tensor else {
            if let Some(out) = &out {
                return Err(call.type_error(Entry("out", i), describe(out), "None, as t_list has there"));
            }
            entries.push(None);
            continue;
        };
        let given = match &out {
            Some(out) => call.out(Entry("out", i), Some(out), &tensor)?,
            None if outs.is_some() => {
                return Err(call.type_error(Entry("out", i), "None", "an array, as t_list has there"));
            }
            None => Out::New,
        };
        entries.push(Some((tensor.dtype, tensor.slices, out)));
        pairs.push(Pair::new(tensor.array, given)?);
    }
    let index = |pair: usize| {
        entries.iter().enumerate().filter(|(_, entry)| entry.is_some()).nth(pair).map_or(0, |(i, _)| i)
    };
    if let Some((a, b)) = arrange(&mut pairs, &mut [])? {
        return Err(call.clash(index(a), index(b), false));
    }
    // Before anything is written: there may be no memory for it.
    let mut results = vec_with_room(entries.len())?;
    let mut outputs = pairs.iter().map(Pair::object);
    for entry in &entries {
        results.push(match entry {
            None => py.None().into_bound(py),
            Some((_, slices, out)) => {
                let output = outputs.next().ok_or_else(|| internal("fewer outputs than tensors"))?;
                call.result(output.clone(), slices.as_ref(), out.as_ref())?
            }
        });
    }
    let list = objects::list_of(py, results.into_iter())?;

    let dtypes = || entries.iter().flatten().map(|(dtype, ..)| *dtype);
    let norm = match used {
        Some(norm) => Scaled::new(norm, 0),
        None => norm_of_list(py, pairs.iter().map(Pair::input).zip(dtypes()), order)?,
    };
    scale_list(py, pairs.iter_mut(), factor_of_all(norm, limit))?;

    clipped_and_norm(list, norm)
}

/// The result of `clip_by_global_norm`.
fn clipped_and_norm(list: Bound<'_, PyList>, norm: Scaled) -> PyResult<Bound<'_, PyAny>> {
    let py = list.py();
    Ok((list, PyFloat::new(py, norm.to_f64())).into_pyobject(py)?.into_any())
}

/// The factor of all tensors of a list.
fn factor_of_all(norm: Scaled, limit: f64) -> Option<Factor> {
    if norm.is_finite() || limit == f64::INFINITY { norm.clip_to(limit) } else { Some(Factor::NAN) }
}

/// Clips each of the rows of `len` elements of a plain array by its own norm.
fn clip_plain_rows(py: Python<'_>, pairs: &mut OperandPairs<'_, '_>, len: usize, limit: f64) -> PyResult<()> {
    let bytes = pairs.inputs().bytes();
    let wrong = || internal("rows of no real dtype");
    match_real!(pairs.inputs().dtype().ok_or_else(wrong)?, T => {
        let (source, rows) = pairs.rows::<T>(len)?;
        Ok(detached(py, bytes, || clip_rows(Isa::current(), source.as_ref(), rows, len, limit))?)
    }, Err(wrong()))
}
