//! The clippers of lists in which each tensor, or each unit of a tensor, has its own norm and limit.

use std::borrow::Cow;

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyTuple};

use super::array::Array;
use super::array::pair::Pair;
use super::call::{Call, Entry};
use super::kinds::Kinds;
use super::operands::{Inputs, Operands, Parameter};
use super::run::{Norms, detached, scale_slices, zeros};
use crate::element::Dtype;
use crate::error::vec_with_room;
use crate::isa::Isa;
use crate::parallel::each::clip_each;
use crate::parallel::elementwise::Tasks;
use crate::parallel::reduce::Order;
use crate::scaled::{Limit, NonFinite, Scaled};

/// See `gradclip.clip_by_norms`.
#[pyfunction]
pub(super) fn clip_by_norms<'py>(
    t_list: &Bound<'py, PyAny>,
    clip_norms: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
    ord: &Bound<'py, PyAny>,
    nonfinite: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    const T_LIST: Parameter = Parameter::new("t_list", Kinds::Scalable, true);
    let call = Call::new(t_list.py(), "clip_by_norms", name, [Some(clip_norms), Some(ord)])?;
    let mut tensors = Inputs::new(&call, T_LIST, call.sequence(t_list)?);
    tensors.read()?;
    let held = tensors.items.clone();
    let (limits, _) = call.limits("clip_norms", clip_norms, held.len())?;
    call.check_name()?;
    let order = call.vector_order(ord)?;
    let nonfinite = call.nonfinite(nonfinite, false)?;
    // Entries that are None have no limit, and the norm 0.
    let is_tensor = |at: usize| held.get(at).is_ok_and(|entry| !entry.is_none());
    let mut own = vec_with_room(held.len())?;
    let limits = limits.iter().enumerate().filter(|(at, _)| is_tensor(*at));
    own.extend(limits.map(|(_, limit)| Limit { nonfinite, ..Limit::from(*limit) }));
    // All norms are computed first: nothing is written before all norms are known to be finite.
    let mut known = Vec::new();
    if nonfinite == NonFinite::Raise {
        known = tensors.norms(order)?;
    }
    let mut operands = tensors.with_outputs(out, &mut [])?;
    if let Some(norm) = known.iter().find(|norm| !norm.is_finite()) {
        return Err(call.nonfinite_error("t_list", &held, None, norm.to_f64()));
    }
    // The memory for the norms is allocated first: nothing may fail once something is written.
    let norms = Array::filled::<f64>(call.py, &[held.len()], &[0], |to| {
        let found = match &mut operands {
            Operands::Plain(pairs) => {
                let tasks = pairs.tasks()?;
                let (bytes, mut norms) = (tasks.bytes(true) / 2, zeros(own.len())?);
                detached(call.py, bytes, || clip_each(Isa::current(), tasks, order, &own, &mut norms))?;
                norms
            }
            Operands::General { pairs, .. } => {
                let whole = pairs.iter().map(Pair::input).map(|array| (array, (0..array.ndim()).collect()));
                let norms = Norms::of_each(call.py, whole, order)?;
                let mut values = vec_with_room(norms.len())?;
                values.extend(norms.iter().filter_map(|norms| norms.values.first()));
                scale_slices(call.py, pairs, &norms, |i, _, norm| own.get(i)?.factor(norm))?;
                values
            }
        };
        let norms = held.with_nones(found, Scaled::ZERO);
        to.iter_mut().zip(norms).for_each(|(to, norm)| *to = norm.to_f64());
        Ok(())
    })?;
    Ok((operands.into_result(), norms).into_pyobject(call.py)?.into_any())
}

/// See `gradclip.clip_by_weight_norm`.
#[pyfunction]
pub(super) fn clip_by_weight_norm<'py>(
    t_list: &Bound<'py, PyAny>,
    weights: &Bound<'py, PyAny>,
    clipping: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
    eps: &Bound<'py, PyAny>,
    unit_axis: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    const T_LIST: Parameter = Parameter::new("t_list", Kinds::Scalable, false);
    let call =
        Call::new(t_list.py(), "clip_by_weight_norm", name, [Some(clipping), Some(eps), Some(unit_axis)])?;
    let mut tensors = Inputs::new(&call, T_LIST, call.sequence(t_list)?);
    tensors.read_general()?;
    let parameter = Parameter::new("weights", Kinds::Scalable, false);
    let (weights, _) = call.partners(parameter, weights, &tensors, false)?;
    let clipping = call.limit("clipping", clipping, false)?;
    call.check_name()?;
    let eps = call.limit("eps", eps, false)?;
    if !unit_axis.is_exact_instance_of::<PyInt>() {
        call.check("unit_axis", (unit_axis,))?;
    }
    let mut units = vec_with_room(weights.len())?;
    for weight in &weights {
        // A tensor with fewer than two axes is a single unit, so all its axes are reduced.
        let ndim = weight.ndim();
        let unit =
            if ndim < 2 { None } else { call.axes("unit_axis", Some(unit_axis), ndim)? }.unwrap_or_default();
        units.push((0..ndim).filter(|axis| !unit.contains(axis)).collect::<Vec<_>>());
    }
    // All norms are computed first: an output may share memory with a weight.
    let both = tensors.arrays().map(|(_, array)| array).chain(&weights);
    let mut own = Norms::of_each(call.py, both.zip(units.iter().cycle().map(Cow::from)), Order::Two)?;
    let of_weights = own.split_off(weights.len());
    let mut operands = tensors.with_outputs(out, &mut [])?;
    let pairs = operands.pairs()?;
    // A NaN norm of a weight makes the limit NaN, so the result is NaN, too.
    let limit = |weight: Scaled| match weight.max(Scaled::new(eps, 0)) {
        _ if clipping == f64::INFINITY => Scaled::new(clipping, 0),
        norm if clipping == 0.0 && !norm.is_nan() => Scaled::ZERO,
        norm => norm.times(clipping),
    };
    scale_slices(call.py, pairs, &own, |i, at, norm| {
        let weight = of_weights.get(i).and_then(|norms| norms.values.get(at)).copied();
        norm.clip_to_any(limit(weight.unwrap_or(Scaled::new(f64::NAN, 0))))
    })?;
    Ok(operands.into_result())
}

impl<'py> Call<'_, 'py> {
    /// The arrays that belong to the tensors of a list and have their shapes, and their dtypes if `has_dtypes`; and all entries of
    /// the argument. An entry at a None of the list is not read.
    pub(super) fn partners(
        &self,
        parameter: Parameter,
        object: &Bound<'py, PyAny>,
        tensors: &Inputs<'_, 'py>,
        has_dtypes: bool,
    ) -> PyResult<(Vec<Array<'py>>, Bound<'py, PyTuple>)> {
        let (argument, count) = (parameter.name, tensors.items.len());
        let entries = self.sequence_of(argument, object, count, "a sequence of arrays")?;
        let mut partners = vec_with_room(count)?;
        for (i, tensor) in tensors.arrays() {
            let (entry, object) = (Entry(argument, Some(i)), entries.get_item(i)?);
            let partner = self.tensor(entry, &object, parameter.allowed(), parameter.takes_slices)?.array;
            if has_dtypes && partner.dtype() != tensor.dtype() {
                let name = |array: &Array<'_>| format!("dtype {}", array.dtype().map_or("", Dtype::name));
                let allowed = format!("{}, that of t_list[{i}]", name(tensor));
                return Err(self.error("type_error", (entry.to_string(), name(&partner), allowed)));
            }
            if partner.shape() != tensor.shape() {
                let arguments = (entry.to_string(), partner.shape(), tensor.shape(), format!("t_list[{i}]"));
                return Err(self.error("wrong_shape", arguments));
            }
            partners.push(partner);
        }
        Ok((partners, entries))
    }
}
