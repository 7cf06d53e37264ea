//! Clipping of the differences between tensors and their bases.

use std::mem;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyFloat;

use super::array::items::Items;
use super::array::pair::Pair;
use super::array::{Array, internal};
use super::call::{Call, Entry};
use super::kinds::Kinds;
use super::operands::{Inputs, Parameter};
use super::run::{detached, dtype_of};
use crate::element::match_dtype;
use crate::error::{Error, vec_with_room};
use crate::isa::Isa;
use crate::parallel::Crew;
use crate::parallel::difference::{Difference, Towards};
use crate::parallel::each::{ArrayJob, run_each};
use crate::parallel::elementwise::{apply_to_one, is_streamed};
use crate::parallel::reduce::{self, AnyView, Order, Views};
use crate::scaled::{Factor, Limit, Scaled};

/// See `gradclip.clip_difference_by_global_norm`.
#[pyfunction]
pub(super) fn clip_difference_by_global_norm<'py>(
    t_list: &Bound<'py, PyAny>,
    base_list: &Bound<'py, PyAny>,
    clip_norm: &Bound<'py, PyAny>,
    use_norm: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    ord: &Bound<'py, PyAny>,
    nonfinite: &Bound<'py, PyAny>,
    integers: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let call = Call::new(
        t_list.py(),
        "clip_difference_by_global_norm",
        name,
        [Some(clip_norm), use_norm, Some(ord)],
    )?;
    let nonfinite = call.nonfinite(nonfinite, true);
    let keeps_integers =
        call.choice("integers", integers, intern!(call.py, "raise"), [("raise", false), ("keep", true)]);
    let keeps = matches!(keeps_integers, Ok(true));
    let parameter =
        |name| Parameter { keeps_integers: keeps, ..Parameter::new(name, Kinds::Scalable, false) };
    let mut tensors = Inputs::new(&call, parameter("t_list"), call.sequence(t_list)?);
    tensors.read_general()?;
    let held = tensors.items.clone();
    let (mut bases, entries) = call.partners(parameter("base_list"), base_list, &tensors, true)?;
    for (i, entry) in entries.iter().enumerate() {
        if held.get(i)?.is_none() && !entry.is_none() {
            let allowed = "None, as t_list has there";
            return Err(call.error("wrong_type", (Entry("base_list", Some(i)).to_string(), entry, allowed)));
        }
    }
    let limit = call.limit("clip_norm", clip_norm, false)?;
    let used = use_norm.map(|norm| call.limit("use_norm", norm, true)).transpose()?;
    call.check_name()?;
    let order = call.vector_order(ord)?;
    let (nonfinite, _) = (nonfinite?, keeps_integers?);
    let limit = Limit { nonfinite, ..Limit::from(limit) };
    // The norm is computed first: later, an array that shares memory with an output is copied, maybe in another memory order.
    let norm = match used {
        Some(norm) => Scaled::new(norm, 0),
        None => norm_of_differences(call.py, tensors.arrays().map(|(_, tensor)| tensor).zip(&bases), order)?,
    };
    // If the outputs are the bases, the bases are changed, and the tensors are the operands that are only read.
    let outs = out.map(Items::of_list).transpose()?.flatten().filter(|outs| outs.len() == entries.len());
    let into_bases = outs.is_some_and(|outs| {
        let is_base = |i| matches!((outs.get(i), entries.get_item(i)), (Ok(out), Ok(base)) if out.is(&base));
        tensors.arrays().all(|(i, _)| is_base(i))
    });
    if into_bases {
        tensors.arrays_mut().zip(&mut bases).for_each(|(tensor, base)| mem::swap(tensor, base));
    }
    let mut readers: Vec<_> = bases.iter_mut().collect();
    let mut operands = tensors.with_outputs(out, &mut readers)?;
    let pairs = operands.pairs()?;
    if limit.refuses(norm) {
        if used.is_some() {
            return Err(call.nonfinite_error("use_norm", &held, None, norm.to_f64()));
        }
        let arguments = ("error_of_differences", held.into_any(), entries, norm.to_f64());
        return Err(call.error("nonfinite_error", arguments));
    }
    take_step(call.py, pairs, &bases, into_bases, limit.factor(norm))?;
    Ok((operands.into_result(), PyFloat::new(call.py, norm.to_f64())).into_pyobject(call.py)?.into_any())
}

/// The norm of all differences as one. They are summed in the memory order of the tensors.
fn norm_of_differences<'a, 'py: 'a>(
    py: Python<'py>,
    pairs: impl Iterator<Item = (&'a Array<'py>, &'a Array<'py>)>,
    order: Order,
) -> PyResult<Scaled> {
    // Complex numbers are read as real ones, which does not change the Euclidean norm.
    let in_parts = |array: &Array<'py>| match order {
        Order::Two => array.in_parts().unwrap_or_else(|| array.clone()),
        _ => array.clone(),
    };
    let mut arrays = Vec::new();
    for (t, base) in pairs.filter(|(t, _)| t.is_scalable()) {
        arrays.try_reserve(1).map_err(Error::from)?;
        arrays.push((in_parts(t), in_parts(base)));
    }
    let norm = |by: f64| -> PyResult<Scaled> {
        let mut views: Vec<AnyView<'_>> = vec_with_room(arrays.len())?;
        for (t, base) in &arrays {
            match_dtype!(scalable dtype_of(t)?, T => {
                let walk = t.walk();
                views.push(Box::new(Difference { t: t.view::<T>(&walk)?, base: base.view(&walk)?, by }));
            }, return Err(internal("differences of integers")));
        }
        let views = views.as_slice();
        Ok(detached(py, views.bytes(), || {
            reduce::norm_of_views(Isa::current(), &Crew::new(), &views, order)
        })?)
    };
    let found = norm(1.0)?;
    if found.is_finite() {
        return Ok(found);
    }
    // At half scale no difference of finite numbers overflows.
    let (value, exponent) = norm(0.5)?.split();
    Ok(if value.is_finite() { Scaled::new(value, exponent + 1) } else { found })
}

/// Scales the differences of all tensors from their bases; `others` are the tensors if `into_bases`, else the bases.
fn take_step<'py>(
    py: Python<'py>,
    pairs: &mut [Pair<'py>],
    others: &[Array<'py>],
    into_bases: bool,
    factor: Option<Factor>,
) -> PyResult<()> {
    let mut parts = vec_with_room(pairs.len())?;
    for (pair, other) in pairs.iter_mut().zip(others) {
        if !other.is_scalable() {
            if into_bases { pair.copy_from(other)? } else { pair.copy()? }
        }
        pair.split_complex();
        parts.push(other.in_parts().unwrap_or_else(|| other.clone()));
    }
    let (isa, mut jobs) = (Isa::current(), vec_with_room(pairs.len())?);
    let scaled = parts.iter().filter(|other| other.is_scalable());
    let bytes = scaled.fold(0usize, |sum, other| sum.saturating_add(other.bytes()));
    for (pair, other) in pairs.iter_mut().zip(&parts).filter(|(_, other)| other.is_scalable()) {
        let walk = pair.walk();
        match_dtype!(real dtype_of(other)?, T => {
            let bytes_moved = other.bytes().saturating_mul(2); // as `apply_to_one` counts
            let (other, mut task) = (other.view::<T>(&walk)?, pair.task::<T>(&walk)?);
            let towards = Towards { other, other_is_t: into_bases, factor };
            jobs.push(ArrayJob::new(bytes_moved, move || apply_to_one(isa, &towards, &mut task, is_streamed(bytes))));
        }, {});
    }
    Ok(detached(py, bytes.saturating_mul(3), || run_each(jobs))?)
}
