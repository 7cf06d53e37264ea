//! The clipping of examples, each by its own norm, and their sum.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyString};

use super::array::items::Held;
use super::array::order::IterOrder;
use super::array::pair::{Pair, arrange};
use super::array::{Array, internal, objects};
use super::call::{Call, Entry, Tensor};
use super::kinds::Kinds;
use super::norm::norms_to_array;
use super::operands::{Inputs, Operands, Parameter};
use super::run::{Norms, Policy, detached, margin, scale_slices};
use super::text::{describe, shape_text};
use crate::element::match_real;
use crate::error::vec_with_room;
use crate::isa::Isa;
use crate::parallel::examples::{Examples, sum_examples};
use crate::parallel::reduce::{Order, norm_of_norms};
use crate::scaled::{Factor, NonFinite, Scaled};

/// What becomes of the examples, once each of them is clipped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduce {
    No,
    Sum,
    Mean,
}

/// See `gradclip.clip_examples_by_global_norm`.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the arguments of the public function")]
pub(super) fn clip_examples_by_global_norm<'py>(
    py: Python<'py>,
    t_list: &Bound<'py, PyAny>,
    clip_norm: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
    reduce: Option<&Bound<'py, PyAny>>,
    nonfinite: &Bound<'py, PyAny>,
    strict: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let call = Call::new(py, "clip_examples_by_global_norm", name)?;
    let t_list_of = Parameter::new("t_list", Kinds::Scalable, false);
    let mut tensors = Inputs::new(&call, t_list_of, call.sequence(t_list)?);
    if tensors.read(false)?.is_some() {
        return Err(call.not_on_device("t_list"));
    }
    let held = tensors.held()?;
    let (limits, has_limits) = call.limits("clip_norm", clip_norm, held.len())?;
    call.check_name()?;
    let reduce = call.reduce(reduce)?;
    let policy = call.policy(nonfinite)?;
    if policy == Policy::Act(NonFinite::Keep) && reduce != Reduce::No {
        return Err(call.value_error("nonfinite", "'keep' with a sum", "'keep' with reduce=None"));
    }
    let strict = call.flag("strict", strict)?;
    call.check_strict(strict, policy, None)?;
    let count = count_of_examples(&call, &tensors)?;
    let margin = margin(strict, tensors.elements() / count.max(1));
    if count == 0 && reduce == Reduce::Mean && tensors.arrays().next().is_some() {
        return Err(call.value_error("t_list", "no examples", "at least one for their mean"));
    }
    // The outputs first: if one does not fit, the norms need not be waited for.
    let mut arrays = vec_with_room(held.len())?;
    arrays.extend(tensors.arrays().map(|(i, array)| (i, array.clone())));
    let mut sums = if reduce == Reduce::No { None } else { Some(Sums::new(&call, &held, &mut arrays, out)?) };
    let mut operands = match sums {
        Some(_) => None,
        None => Some(tensors.with_outputs(out, &mut [])?),
    };
    let mut own = vec_with_room(arrays.len())?;
    for (_, array) in &arrays {
        let axes: Vec<_> = (1..array.ndim()).collect();
        own.push(Norms::of(array, &axes, Order::Two)?.values);
    }
    let norms = if has_limits { per_tensor(&held, &own, count)? } else { of_examples(&own, count)? };
    if let Some(norm) = norms.iter().find(|norm| policy.refuses(**norm)) {
        return Err(call.nonfinite_examples(&held, has_limits, norm.to_f64()));
    }
    let factors = |tensor: usize| -> Vec<Option<Factor>> {
        let limit = policy.limit(limits.get(tensor).copied().unwrap_or(f64::INFINITY), 1.0, margin);
        let from = if has_limits { tensor * count } else { 0 };
        let of_tensor = norms.iter().skip(from).take(count);
        let factor =
            |norm: &Scaled| if has_limits { limit.factor(*norm) } else { limit.factor_of_all(*norm) };
        of_tensor.map(factor).collect()
    };
    let over = if reduce == Reduce::Mean { count as f64 } else { 1.0 };
    match (&mut sums, &mut operands) {
        (Some(sums), _) => sums.fill(&arrays, over, factors)?,
        (None, Some(Operands::General { pairs, .. })) => {
            for ((i, _), pair) in arrays.iter().zip(pairs) {
                let factors = factors(*i);
                let from = if has_limits { *i * count } else { 0 };
                let values = norms.iter().skip(from).take(count).copied().collect();
                let norms = Norms { values, kept: vec![0] };
                scale_slices(pair, &norms, |at, _| factors.get(at).copied().flatten())?;
            }
        }
        _ => return Err(internal("examples in plain arrays")),
    }
    let shape = if has_limits { vec![held.len(), count] } else { vec![count] };
    let norms = norms_to_array(py, &shape, &norms)?;
    let result = match (sums, operands) {
        (Some(sums), _) => sums.result,
        (None, Some(operands)) => operands.into_result(),
        (None, None) => return Err(internal("no result")),
    };
    Ok((result, norms).into_pyobject(py)?.into_any())
}

/// The examples of each tensor, of which all have as many.
fn count_of_examples(call: &Call<'_, '_>, tensors: &Inputs<'_, '_>) -> PyResult<usize> {
    let mut first: Option<(usize, usize)> = None;
    for (i, array) in tensors.arrays() {
        let entry = Entry("t_list", Some(i));
        let Some(count) = array.shape().first() else {
            return Err(call.value_error(entry, "shape ()", "a first axis, that of the examples"));
        };
        match first {
            None => first = Some((i, *count)),
            Some((at, expected)) if expected != *count => {
                let found = format!("{count} examples (shape {})", shape_text(array.shape()));
                return Err(call.value_error(entry, found, &format!("{expected}, as t_list[{at}] has")));
            }
            Some(_) => {}
        }
    }
    Ok(first.map_or(0, |(_, count)| count))
}

/// The norm of each example over all tensors.
fn of_examples(own: &[Vec<Scaled>], count: usize) -> PyResult<Vec<Scaled>> {
    let mut norms = vec_with_room(count)?;
    let at = |example: usize| own.iter().filter_map(move |norms| norms.get(example).copied());
    norms.extend((0..count).map(|example| norm_of_norms(at(example))));
    Ok(norms)
}

/// The norms of the examples of each tensor, one tensor after the other; zeros for None.
fn per_tensor(held: &Held<'_>, own: &[Vec<Scaled>], count: usize) -> PyResult<Vec<Scaled>> {
    let (mut own, mut norms) = (own.iter(), vec_with_room(held.len().saturating_mul(count))?);
    for i in 0..held.len() {
        match if held.get(i)?.is_none() { None } else { own.next() } {
            Some(own) => norms.extend_from_slice(own),
            None => norms.extend((0..count).map(|_| Scaled::ZERO)),
        }
    }
    Ok(norms)
}

/// The outputs of sums, which have the shape of one example.
struct Sums<'py> {
    pairs: Vec<Pair<'py>>,
    result: Bound<'py, PyAny>,
}

impl<'py> Sums<'py> {
    /// New outputs, or those of the caller. An input that shares memory with one of these is copied.
    fn new(
        call: &Call<'_, 'py>,
        held: &Held<'py>,
        arrays: &mut [(usize, Array<'py>)],
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let py = call.py();
        let outs = call.out_sequence(out, held.len())?;
        let zeros = py.import(intern!(py, "numpy"))?.getattr(intern!(py, "zeros"))?;
        let (mut pairs, mut results) = (vec_with_room(arrays.len())?, vec_with_room(held.len())?);
        let mut inputs = arrays.iter();
        for i in 0..held.len() {
            let own = outs.as_ref().map(|outs| outs.get_item(i)).transpose()?.filter(|own| !own.is_none());
            let argument = Entry("out", Some(i));
            if held.get(i)?.is_none() {
                if let Some(own) = own {
                    return Err(call.type_error(argument, describe(&own), "None, as t_list has there"));
                }
                results.push(py.None().into_bound(py));
                continue;
            }
            let Some((_, input)) = inputs.next() else { return Err(internal("a tensor that was not read")) };
            let dtype = input.object().getattr(intern!(py, "dtype"))?;
            let native = dtype.call_method1(intern!(py, "newbyteorder"), ("=",))?;
            let new = zeros.call1((input.shape().get(1..).unwrap_or_default().to_vec(), native))?;
            let (array, _) = Array::read(&new).ok_or_else(|| internal("NumPy made no array"))?;
            let output = match &own {
                Some(own) => call.out(argument, own, &Tensor { array, slices: None })?,
                None => array,
            };
            results.push(own.unwrap_or(new));
            pairs.push(Pair::new(output.clone(), Some(output))?);
        }
        let mut readers: Vec<_> = arrays.iter_mut().map(|(_, array)| array).collect();
        if let Some((a, b)) = arrange(&mut pairs, &mut readers)? {
            let place = |pair: usize| Entry("out", Some(arrays.get(pair).map_or(0, |(i, _)| *i)));
            return Err(call.clash(place(a), place(b)));
        }
        let result = objects::list_of(py, results.into_iter())?.into_any();
        Ok(Self { pairs, result })
    }

    /// Writes the sums of the examples of each tensor, divided by a number.
    fn fill(
        &mut self,
        arrays: &[(usize, Array<'py>)],
        over: f64,
        factors: impl Fn(usize) -> Vec<Option<Factor>>,
    ) -> PyResult<()> {
        for ((i, array), pair) in arrays.iter().zip(&mut self.pairs) {
            pair.split_complex();
            let parts = array.in_parts();
            let array = parts.as_ref().unwrap_or(array);
            let counted = |factor: Option<Factor>| match factor {
                Some(factor) if Factor::erases(factor.by) => None,
                factor => Some(factor.unwrap_or(Factor::ONE)),
            };
            let factors: Vec<_> = factors(*i).into_iter().map(counted).collect();
            let len = array.shape().iter().skip(1).product();
            let (py, bytes) = (array.object().py(), array.bytes());
            let to = IterOrder::along(0..array.ndim() - 1);
            match_real!(array.dtype().ok_or_else(|| internal("an array of no dtype"))?, T => {
                let elements = array.view::<T>(&IterOrder::along(0..array.ndim()))?;
                let examples = Examples { elements, len, factors: &factors, over };
                let mut task = pair.task::<T>(&to)?;
                detached(py, bytes, || sum_examples(Isa::current(), &examples, &mut task))?;
            }, return Err(internal("sums of integers")));
        }
        Ok(())
    }
}

impl<'py> Call<'_, 'py> {
    fn reduce(&self, object: Option<&Bound<'py, PyAny>>) -> PyResult<Reduce> {
        let Some(object) = object else { return Ok(Reduce::No) };
        if !object.is_instance_of::<PyString>() {
            return Err(self.type_error("reduce", describe(object), "'sum', 'mean' or None"));
        }
        self.choice("reduce", object, [("sum", Reduce::Sum), ("mean", Reduce::Mean)])
    }

    /// The error for NaN and infinity in examples.
    #[cold]
    fn nonfinite_examples(&self, tensors: &Held<'py>, per_tensor: bool, norm: f64) -> PyErr {
        let error = self.py().import(intern!(self.py(), "gradclip._nonfinite")).and_then(|module| {
            let Held::Many(tensors) = tensors else { return Err(internal("examples of no list")) };
            let arguments = (self.prefix(), tensors, per_tensor, norm);
            module.call_method1(intern!(self.py(), "error_of_examples"), arguments)
        });
        error.map_or_else(|error| error, PyErr::from_value)
    }
}
