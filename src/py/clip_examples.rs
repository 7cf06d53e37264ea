//! Clipping of examples, each by its own norm, and their sums and means.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::array::pair::Pair;
use super::array::{Array, internal};
use super::call::{Call, Entry};
use super::kinds::Kinds;
use super::operands::{Inputs, Parameter};
use super::run::{Norms, detached, dtype_of, margin, scale_slices};
use crate::element::{Complex, match_dtype};
use crate::error::vec_with_room;
use crate::isa::Isa;
use crate::parallel::each::{ArrayJob, run_each};
use crate::parallel::examples::sum_examples;
use crate::parallel::reduce::{Order, norm_of_norms};
use crate::parallel::work_of;
use crate::scaled::{Limit, NonFinite};

/// See `gradclip.clip_examples_by_global_norm`.
#[pyfunction]
pub(super) fn clip_examples_by_global_norm<'py>(
    t_list: &Bound<'py, PyAny>,
    clip_norm: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
    reduce: Option<&Bound<'py, PyAny>>,
    nonfinite: &Bound<'py, PyAny>,
    strict: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let call = Call::new(t_list.py(), "clip_examples_by_global_norm", name, [Some(clip_norm)])?;
    let t_list_of = Parameter::new("t_list", Kinds::Scalable, false);
    let mut tensors = Inputs::new(&call, t_list_of, call.sequence(t_list)?);
    tensors.read_general()?;
    let held = tensors.items.clone();
    let count = count_of_examples(&call, &tensors)?;
    let (limits, has_limits) = call.limits("clip_norm", clip_norm, held.len())?;
    call.check_name()?;
    // The number by which sums are divided. None: there are no sums.
    let divisor = |word| {
        let words = [("sum", 1.0), ("mean", count as f64)];
        let found = call.choice("reduce", word, intern!(call.py, "sum"), words);
        found.map_err(|_| call.error("wrong_word", ("reduce", word, "'sum', 'mean' or None")))
    };
    let divisor = reduce.map(divisor).transpose()?;
    let nonfinite = call.nonfinite(nonfinite, !has_limits)?;
    if nonfinite == NonFinite::Keep && divisor.is_some() {
        return Err(call.error("value_error", ("nonfinite", "'keep' with a sum", "'keep' with reduce=None")));
    }
    let strict = call.flag("strict", strict, "True or False")?;
    call.check_strict(strict, nonfinite)?;
    let margin = margin(strict, tensors.elements() / count.max(1));
    if divisor == Some(0.0) && tensors.arrays().next().is_some() {
        return Err(call.error("value_error", ("t_list", "no examples", "at least one for their mean")));
    }
    // All norms are computed first: later, an input that shares memory with a sum is copied, maybe in another memory order.
    let mut arrays = vec_with_room(held.len())?;
    arrays.extend(tensors.arrays().map(|(i, array)| (i, array.clone())));
    let examples = arrays.iter().map(|(_, array)| (array, (1..array.ndim()).collect()));
    let mut own = Norms::of_each(call.py, examples, Order::Two)?;
    let mut operands = if divisor.is_none() {
        tensors.with_outputs(out, &mut [])?
    } else {
        for tensor in tensors.arrays_mut() {
            *tensor = zero_example(tensor)?;
        }
        let mut readers: Vec<_> = arrays.iter_mut().map(|(_, array)| array).collect();
        tensors.with_outputs(out, &mut readers)?
    };
    let pairs = operands.pairs()?;
    if !has_limits && own.len() > 1 {
        // The norm of each example over all tensors.
        let of_example = |example| own.iter().filter_map(move |norms| norms.values.get(example).copied());
        let mut values = vec_with_room(count)?;
        values.extend((0..count).map(|example| norm_of_norms(of_example(example))));
        own = vec![Norms { values, kept: vec![0] }];
    }
    if nonfinite == NonFinite::Raise
        && let Some(norm) = own.iter().flat_map(|norms| &norms.values).find(|norm| !norm.is_finite())
    {
        let arguments = ("error_of_examples", held.into_any(), has_limits, norm.to_f64());
        return Err(call.error("nonfinite_error", arguments));
    }
    let limit = |at: usize| {
        let limit = arrays.get(at).and_then(|(i, _)| limits.get(*i)).copied().unwrap_or(f64::INFINITY);
        Limit { limit, divisor: 1.0, nonfinite, margin }
    };
    // The memory for the norms is allocated first: nothing may fail once something is written.
    let (shape, axes) =
        if has_limits { (vec![held.len(), count], vec![0, 1]) } else { (vec![count], vec![0]) };
    let norms = Array::filled::<f64>(call.py, &shape, &axes, |to| {
        match divisor {
            None => scale_slices(call.py, pairs, &own, |i, _, norm| limit(i).factor(norm))?,
            Some(divisor) => write_sums(call.py, pairs, &arrays, &own, limit, divisor)?,
        }
        for ((i, _), norms) in arrays.iter().zip(&own) {
            let first = if has_limits { i * count } else { 0 };
            to.iter_mut().skip(first).zip(&norms.values).for_each(|(to, norm)| *to = norm.to_f64());
        }
        Ok(())
    })?;
    Ok((operands.into_result(), norms).into_pyobject(call.py)?.into_any())
}

/// The number of examples, which all tensors must share.
fn count_of_examples(call: &Call<'_, '_>, tensors: &Inputs<'_, '_>) -> PyResult<usize> {
    let mut first: Option<(usize, usize)> = None;
    for (i, array) in tensors.arrays() {
        let entry = Entry("t_list", Some(i));
        let Some(count) = array.shape().first() else {
            let allowed = "a first axis, that of the examples";
            return Err(call.error("value_error", (entry.to_string(), "shape ()", allowed)));
        };
        let (at, expected) = *first.get_or_insert((i, *count));
        if expected != *count {
            let arguments = (entry.to_string(), array.shape(), expected, at);
            return Err(call.error("wrong_count", arguments));
        }
    }
    Ok(first.map_or(0, |(_, count)| count))
}

/// An array of zeros with the shape and the dtype of one example. All elements have the same memory.
fn zero_example<'py>(array: &Array<'py>) -> PyResult<Array<'py>> {
    let py = array.object().py();
    let numpy = py.import(intern!(py, "numpy"))?;
    // An array of NumPy's own class has the dtype of its memory. A subclass may report another dtype.
    let plain = numpy.call_method1(intern!(py, "asarray"), (array.object(),))?;
    let dtype = plain.getattr(intern!(py, "dtype"))?;
    let shape = array.shape().get(1..).unwrap_or_default();
    let (zero, strides) = (PyBytes::new(py, &[0; size_of::<Complex<f64>>()]), vec![0; shape.len()]);
    // `numpy.broadcast_to` takes ten times as long.
    let zeros = numpy.call_method1(intern!(py, "ndarray"), (shape, dtype, zero, 0, strides))?;
    Ok(Array::read(&zeros).ok_or_else(|| internal("NumPy made no array"))?.0)
}

/// Writes the sum of the examples of each tensor, each example times its factor, divided by a number. There are norms of the
/// examples for each tensor, or for all of them. `limit` gets the number of the norms. An example that its limit erases adds
/// nothing.
fn write_sums<'py>(
    py: Python<'py>,
    pairs: &mut [Pair<'py>],
    arrays: &[(usize, Array<'py>)],
    norms: &[Norms],
    limit: impl Fn(usize) -> Limit,
    divisor: f64,
) -> PyResult<()> {
    let mut inputs = vec_with_room(arrays.len())?;
    for ((_, array), (at, norms)) in arrays.iter().zip(norms.iter().enumerate().cycle()) {
        inputs.push((array.in_parts().unwrap_or_else(|| array.clone()), norms.values.as_slice(), limit(at)));
    }
    let (mut jobs, mut bytes) = (vec_with_room(arrays.len())?, 0usize);
    for (pair, &(ref array, norms, limit)) in pairs.iter_mut().zip(&inputs) {
        bytes = bytes.saturating_add(array.bytes());
        pair.split_complex();
        match_dtype!(real dtype_of(array)?, T => {
            let split = array.split(&(1..array.ndim()).collect::<Vec<_>>());
            let elements = array.slices::<T>(&split)?;
            let mut sums = pair.task::<T>(&split.of_slice())?.target;
            let run = move || sum_examples(Isa::current(), &elements, norms, limit, divisor, &mut sums);
            jobs.push(ArrayJob::new(work_of(array.bytes(), norms.len()), run));
        }, return Err(internal("sums of integers")));
    }
    Ok(detached(py, bytes, || run_each(jobs))?)
}
