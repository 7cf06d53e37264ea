//! Clipping of the differences between tensors and others, their bases.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyFloat};

use super::array::items::Held;
use super::array::pair::Pair;
use super::array::{Array, internal, resized};
use super::call::{Call, Entry};
use super::kinds::Kinds;
use super::norm::vector_order;
use super::operands::{Inputs, Operands, Parameter};
use super::run::{Policy, detached};
use super::text::describe;
use crate::element::{Dtype, match_real, match_scalable};
use crate::error::vec_with_room;
use crate::isa::Isa;
use crate::parallel::Crew;
use crate::parallel::difference::{Step, Towards};
use crate::parallel::each::{ArrayJob, run_each};
use crate::parallel::elementwise::{apply_to_one, is_streamed};
use crate::parallel::reduce::{self, AnyView, Difference, Order};
use crate::scaled::{NonFinite, Scaled};

/// See `gradclip.clip_difference_by_global_norm`.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the arguments of the public function")]
pub(super) fn clip_difference_by_global_norm<'py>(
    py: Python<'py>,
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
    let call = Call::new(py, "clip_difference_by_global_norm", name)?;
    let policy = call.policy(nonfinite);
    let keeps_integers = call.is_second("integers", integers, (intern!(py, "raise"), "keep"));
    let keeps = matches!(keeps_integers, Ok(true));
    let parameter =
        |name| Parameter { keeps_integers: keeps, ..Parameter::new(name, Kinds::Scalable, false) };
    let mut tensors = Inputs::new(&call, parameter("t_list"), call.sequence(t_list)?);
    if tensors.read_general()?.is_some() {
        return Err(call.not_on_device("t_list"));
    }
    let held = tensors.held();
    let mut bases = call.partners(parameter("base_list"), base_list, &tensors)?;
    for ((i, tensor), base) in tensors.arrays().zip(&bases) {
        if tensor.dtype() != base.dtype() {
            return Err(call.different_dtypes(i, base, tensor));
        }
    }
    call.check_nones("base_list", base_list, &tensors)?;
    let limit = call.limit("clip_norm", clip_norm, false)?;
    let used = use_norm.map(|norm| call.limit("use_norm", norm, true)).transpose()?;
    call.check_name()?;
    let order = vector_order(&call, ord)?;
    let (policy, _) = (policy?, keeps_integers?);
    let mut own: Vec<_> = tensors.arrays().map(|(_, tensor)| tensor.clone()).collect();
    // The norm first: an array that shares memory with an output is copied then, maybe in another memory order.
    let norm = match used {
        Some(norm) => Scaled::new(norm, 0),
        None => norm_of_differences(py, &own, &bases, order)?,
    };
    // An output that is its own base is computed from the base; then `t` is the array that is read beside it.
    let into_bases = out.is_some_and(|out| are_entries(out, base_list, &tensors));
    let mut of_bases;
    let (main, others) = if into_bases {
        of_bases = Inputs::new(&call, parameter("base_list"), call.sequence(base_list)?);
        of_bases.read_general()?;
        // Python code of an entry may have changed the list since it was checked.
        let is_same = of_bases.arrays().map(place_and_kind).eq(tensors.arrays().map(place_and_kind));
        if !is_same || of_bases.count() != tensors.count() {
            return Err(resized());
        }
        (&mut of_bases, &mut own)
    } else {
        (&mut tensors, &mut bases)
    };
    let mut readers: Vec<_> = others.iter_mut().collect();
    let mut operands = main.with_outputs(out, &mut readers)?;
    let Operands::General { pairs, .. } = &mut operands else { return Err(internal("plain differences")) };
    if policy.refuses(norm) {
        if used.is_some() {
            return Err(call.nonfinite_error("use_norm", &held, None, norm.to_f64()));
        }
        let bases = call.sequence(base_list)?;
        let (tensors, bases) = (held.into_any(), bases.held().clone().into_any());
        return Err(
            call.error_of_python("error_of_differences", (call.prefix(), tensors, bases, norm.to_f64()))
        );
    }
    let is_bad = !norm.is_finite() && limit < f64::INFINITY;
    let step = match policy {
        Policy::Act(NonFinite::Erase) if is_bad => Step::Nothing,
        _ => policy.limit(limit, 1.0, 0.0).factor_of_all(norm).map_or(Step::Whole, Step::Scaled),
    };
    take_step(py, pairs, others, into_bases, step)?;
    Ok((operands.into_result(), PyFloat::new(py, norm.to_f64())).into_pyobject(py)?.into_any())
}

/// Whether the entries of `out` are those of `list`, wherever there is a tensor.
fn are_entries(out: &Bound<'_, PyAny>, list: &Bound<'_, PyAny>, tensors: &Inputs<'_, '_>) -> bool {
    let held = |object| Held::of_list(object).ok().flatten();
    let (Some(outs), Some(entries)) = (held(out), held(list)) else { return false };
    outs.len() == entries.len()
        && tensors.arrays().all(|(i, _)| match (outs.get(i), entries.get(i)) {
            (Ok(out), Ok(entry)) => out.is(entry),
            _ => false,
        })
}

/// The place in the list, the shape and the dtype of a tensor.
fn place_and_kind<'a>((i, array): (usize, &'a Array<'_>)) -> (usize, &'a [usize], Option<Dtype>) {
    (i, array.shape(), array.dtype())
}

fn is_kept(array: &Array<'_>) -> bool {
    !array.dtype().is_some_and(Dtype::is_scalable)
}

/// The norm of all differences as one, which are summed in the memory order of the tensors.
fn norm_of_differences<'py>(
    py: Python<'py>,
    tensors: &[Array<'py>],
    bases: &[Array<'py>],
    order: Order,
) -> PyResult<Scaled> {
    // Complex numbers are read as real ones, which does not change the Euclidean norm.
    let in_parts = |array: &Array<'py>| match order {
        Order::Two => array.in_parts().unwrap_or_else(|| array.clone()),
        _ => array.clone(),
    };
    let mut arrays = vec_with_room(tensors.len())?;
    for (t, base) in tensors.iter().zip(bases).filter(|(t, _)| !is_kept(t)) {
        arrays.push((in_parts(t), in_parts(base)));
    }
    let norm = |by: f64| -> PyResult<Scaled> {
        let mut views: Vec<AnyView<'_>> = vec_with_room(arrays.len())?;
        let mut bytes = 0usize;
        for (t, base) in &arrays {
            bytes = bytes.saturating_add(2 * t.bytes());
            views.push(difference(t, base, by)?);
        }
        Ok(detached(py, bytes, || reduce::norm(Isa::current(), &Crew::new(), &views, order))?)
    };
    let found = norm(1.0)?;
    if found.is_finite() {
        return Ok(found);
    }
    // At half scale no difference of finite numbers overflows.
    let (value, exponent) = norm(0.5)?.split();
    Ok(if value.is_finite() { Scaled::new(value, exponent + 1) } else { found })
}

fn difference<'a>(t: &'a Array<'_>, base: &'a Array<'_>, by: f64) -> PyResult<AnyView<'a>> {
    let wrong = || internal("differences of integers");
    match_scalable!(t.dtype().ok_or_else(wrong)?, T => {
        let (t, base) = t.views_beside::<T>(base)?;
        Ok(Difference { t, base, by }.into())
    }, Err(wrong()))
}

/// Moves all tensors towards their bases; `others` are the tensors if `into_bases`, else the bases.
fn take_step<'py>(
    py: Python<'py>,
    pairs: &mut [Pair<'py>],
    others: &[Array<'py>],
    into_bases: bool,
    step: Step,
) -> PyResult<()> {
    let numpy = py.import(intern!(py, "numpy"))?;
    let mut parts = vec_with_room(pairs.len())?;
    for (pair, other) in pairs.iter_mut().zip(others) {
        if is_kept(other) && into_bases {
            numpy.call_method1(intern!(py, "copyto"), (pair.object(), other.object()))?;
        } else if is_kept(other) {
            pair.copy_by_numpy()?;
        }
        pair.split_complex();
        parts.push(other.in_parts().unwrap_or_else(|| other.clone()));
    }
    let (isa, mut jobs) = (Isa::current(), vec_with_room(pairs.len())?);
    let stepped = |other: &&Array<'_>| !is_kept(other);
    let bytes = parts.iter().filter(stepped).fold(0usize, |sum, other| sum.saturating_add(other.bytes()));
    for (pair, other) in pairs.iter_mut().zip(&parts).filter(|(_, other)| stepped(other)) {
        let walk = pair.walk();
        match_real!(other.dtype().ok_or_else(|| internal("an array of no dtype"))?, T => {
            let bytes_moved = other.bytes().saturating_mul(3);
            let (other, mut task) = (other.view::<T>(&walk)?, pair.task::<T>(&walk)?);
            let towards = Towards { other, other_is_t: into_bases, step };
            jobs.push(ArrayJob::new(bytes_moved, move || apply_to_one(isa, &towards, &mut task, is_streamed(bytes))));
        }, {});
    }
    Ok(detached(py, bytes.saturating_mul(3), || run_each(jobs))?)
}

impl<'py> Call<'_, 'py> {
    /// Raises an error for an entry that is not None although the tensor's entry is.
    fn check_nones(
        &self,
        argument: &str,
        object: &Bound<'py, PyAny>,
        tensors: &Inputs<'_, 'py>,
    ) -> PyResult<()> {
        let held = tensors.held();
        let entries = self.entries_of(argument, object, held.len())?;
        for (i, entry) in entries.iter().flatten().enumerate() {
            if held.get(i)?.is_none() && !entry.is_none() {
                let allowed = "None, as t_list has there";
                return Err(self.type_error(Entry(argument, Some(i)), describe(&entry), allowed));
            }
        }
        Ok(())
    }

    /// The error for a base whose dtype is not that of its tensor.
    fn different_dtypes(&self, at: usize, base: &Array<'py>, tensor: &Array<'py>) -> PyErr {
        let name = |array: &Array<'_>| format!("dtype {}", array.dtype().map_or("", Dtype::name));
        let allowed = format!("{}, that of t_list[{at}]", name(tensor));
        self.type_error(Entry("base_list", Some(at)), name(base), &allowed)
    }
}
