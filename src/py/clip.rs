//! The clippers.

use std::slice;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyFloat;

use super::array::items::Items;
use super::array::{internal, resized};
use super::bound::{BoundKind, bound, needs_no_conversion};
use super::call::Call;
use super::kinds::Kinds;
use super::operands::{Inputs, OnDevice, Operands, Parameter, Parts};
use super::run::{Norms, detached, dtype_of, margin, scale_by_norms, scale_pairs, scale_slices};
use super::shared::{shared_norm, shared_norms};
use crate::element::{Ordered, match_dtype};
use crate::isa::Isa;
use crate::kernel::clip::Clip;
use crate::kernel::scale::ClipMagnitude;
use crate::parallel::elementwise::apply_elementwise;
use crate::parallel::reduce::Order;
use crate::parallel::rows::{Rule, is_row, scale_rows};
use crate::scaled::{Limit, NonFinite, Scaled};
use crate::walk::{Bounds, Uniform};

/// See `gradclip.clip_by_value`.
#[pyfunction]
pub(super) fn clip_by_value<'py>(
    t: &Bound<'py, PyAny>,
    clip_value_min: Option<&Bound<'py, PyAny>>,
    clip_value_max: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    const T: Parameter = Parameter::new("t", Kinds::Ordered, true).with(Parts::GpuAndDask);
    // Python code that converts a bound may give the tensor another shape, so these arguments decide how the tensor is read.
    let converted =
        [clip_value_min, clip_value_max].map(|bound| bound.filter(|bound| !needs_no_conversion(bound, t)));
    let call = Call::new(t.py(), "clip_by_value", name, converted)?;
    let mut tensor = Inputs::new(&call, T, Items::One(t.clone()));
    if let Some(OnDevice { is_lazy, .. }) = tensor.read()? {
        return call.hand_on(is_lazy, (t, clip_value_min, clip_value_max, name, out));
    }
    let shape = tensor.shape()?;
    let mut lo = bound(&call, "clip_value_min", clip_value_min, &tensor, &shape)?;
    let mut hi = bound(&call, "clip_value_max", clip_value_max, &tensor, &shape)?;
    if clip_value_min.is_none() && clip_value_max.is_none() {
        return Err(
            call.error("value_error", ("clip_value_min", "None for both bounds", "None for one of them"))
        );
    }
    call.check_name()?;
    let dtype = tensor.dtype()?;
    let mut operands = match (&mut lo, &mut hi) {
        (BoundKind::Array(lo), BoundKind::Array(hi)) => tensor.with_outputs(out, &mut [lo, hi])?,
        (BoundKind::Array(one), _) | (_, BoundKind::Array(one)) => tensor.with_outputs(out, &mut [one])?,
        _ => tensor.with_outputs(out, &mut [])?,
    };
    match_dtype!(ordered dtype, T => {
        let values = (lo.value(T::LOWEST)?, hi.value(T::HIGHEST)?);
        if let (Some(lo), Some(hi)) = values {
            let (mut task, work) = (operands.task::<T>(None)?, Uniform(Clip { lo, hi }));
            detached(call.py, task.bytes() / 2, || apply_elementwise(Isa::current(), &work, &mut task))?;
        } else {
            let walk = operands.walk(&shape)?;
            let numbers = (values.0.map(|lo| [lo]), values.1.map(|hi| [hi]));
            let lo = lo.view(numbers.0.as_ref(), &shape, &walk)?;
            let work = Bounds::new(lo, hi.view(numbers.1.as_ref(), &shape, &walk)?)?;
            let mut task = operands.task::<T>(Some(&walk))?;
            detached(call.py, task.bytes() / 2, || apply_elementwise(Isa::current(), &work, &mut task))?;
        }
    }, return Err(internal("bounds of a dtype without an order")));
    Ok(operands.into_result())
}

/// See `gradclip.clip_by_norm`, `gradclip.clip_by_rms` and `gradclip.clip_by_average_norm`; `function` is the name of one.
#[pyfunction]
pub(super) fn clip_by_norm<'py>(
    function: &str,
    t: &Bound<'py, PyAny>,
    limit: &Bound<'py, PyAny>,
    axes: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    nonfinite: &Bound<'py, PyAny>,
    strict: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    share: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let takes_slices = function == "clip_by_norm";
    let parameter = Parameter::new("t", Kinds::Scalable, takes_slices).with(Parts::GpuAndDask);
    // The norm of a slice is divided by `divisor_of` of its number of elements, and then compared with the limit.
    let (argument, parameter, divisor_of): (_, _, fn(f64) -> f64) = match function {
        "clip_by_rms" => ("clip_rms", parameter.with(Parts::Numpy), f64::sqrt),
        "clip_by_average_norm" => ("clip_norm", parameter, |elements| elements),
        _ => ("clip_norm", parameter, |_| 1.0),
    };
    let call = Call::new(t.py(), function, name, [Some(limit), axes, share])?;
    let (treatment, is_strict) =
        (call.nonfinite(nonfinite, false), call.flag("strict", strict, "True or False"));
    let mut tensor = Inputs::new(&call, parameter, Items::One(t.clone()));
    if let Some(OnDevice { is_lazy, .. }) = tensor.read()? {
        return if is_lazy && share.is_some() {
            Err(call.shared_lazy("t"))
        } else if is_lazy {
            call.hand_on(true, (t, limit, axes, name, nonfinite, strict, out))
        } else if treatment? == NonFinite::Propagate && !is_strict? && share.is_none() {
            call.hand_on(false, (t, limit, axes, name, out))
        } else {
            Err(call.not_on_device("t"))
        };
    }
    let limit = call.limit(argument, limit, false)?;
    let shape = tensor.shape()?;
    let axes = call.axes("axes", axes, shape.len())?.filter(|axes| axes.len() < shape.len());
    call.check_name()?;
    let (nonfinite, is_strict) = (treatment?, is_strict?);
    call.check_strict(is_strict, nonfinite)?;
    let limit = |elements| {
        let (divisor, margin) = (divisor_of(elements as f64), margin(is_strict, elements));
        Limit { limit, divisor, nonfinite, margin }
    };
    clip_along(&call, &mut tensor, &shape, axes.as_deref(), limit, share, out)
}

/// Clips a tensor by its norm, or each slice along some but not all axes by its own norm. The limit depends on the number of
/// elements of a slice. If the tensor is a part of a larger one, `share` returns the norms: see [`shared_norms`].
#[inline(always)] // a call costs too much for small tensors
fn clip_along<'py>(
    call: &Call<'_, 'py>,
    tensor: &mut Inputs<'_, 'py>,
    shape: &[usize],
    axes: Option<&[usize]>,
    limit: impl Fn(usize) -> Limit,
    share: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = call.py;
    let held = tensor.items.clone();
    let refused = |axes, norm: Scaled| call.nonfinite_error("t", &held, axes, norm.to_f64());
    let Some(axes) = axes else {
        let mut operands = tensor.with_outputs(out, &mut [])?;
        let shared = share.map(shared_norm).transpose()?;
        let limit = limit(shared.map_or_else(|| shape.iter().product(), |(_, elements)| elements));
        let norm = operands.clip(py, shared.map(|(norm, _)| norm), Order::Two, limit)?;
        if limit.refuses(norm) {
            return Err(refused(None, norm));
        }
        return Ok(operands.into_result());
    };
    let dtype = tensor.dtype()?;
    let own_limit = limit(axes.iter().filter_map(|axis| shape.get(*axis)).product());
    let raises = own_limit.nonfinite == NonFinite::Raise;
    // Columns, and slices of one element, take the general path.
    let len = tensor.row_len(axes).filter(|len| *len > 1 && is_row(*len, dtype.size()) && !raises);
    if len.is_none() {
        tensor.make_general()?;
    }
    let mut operands = tensor.with_outputs(out, &mut [])?;
    if let (Operands::Plain(pairs), Some(len)) = (&mut operands, len) {
        match_dtype!(real dtype, T => {
            let (rows, rule) = (pairs.task::<T>()?, Rule::Clip(own_limit));
            detached(py, rows.bytes() / 2, || scale_rows(Isa::current(), rows, len, rule, &mut []))?;
        }, return Err(internal("rows of integers")));
        return Ok(operands.into_result());
    }
    let pair = operands.pair()?;
    // An array that was read again may have another shape by now.
    if axes.iter().any(|axis| *axis >= pair.input().ndim()) {
        return Err(resized());
    }
    if let Some(share) = share {
        // The outputs are allocated already: after the exchange of norms, nothing may fail on this process alone.
        let (values, elements) = shared_norms(share)?;
        let kept: Vec<_> = (0..shape.len()).filter(|axis| !axes.contains(axis)).collect();
        if values.len() != kept.iter().filter_map(|axis| shape.get(*axis)).product::<usize>() {
            return Err(internal("not a norm for each slice"));
        }
        let (limit, norms) = (limit(elements), Norms { values, kept });
        scale_slices(py, slice::from_mut(pair), &[norms], |_, _, norm| limit.factor(norm))?;
        return Ok(operands.into_result());
    }
    // All norms are computed first: nothing is written before all norms are known to be finite.
    if raises {
        let norms = Norms::of(pair.input(), axes, Order::Two)?;
        if let Some(norm) = norms.values.iter().find(|norm| own_limit.refuses(**norm)) {
            return Err(refused(Some(axes), *norm));
        }
    }
    let dtype = dtype_of(pair.input())?;
    if own_limit.limit == f64::INFINITY {
        scale_pairs(py, slice::from_mut(pair), None)?;
    } else if axes.is_empty() && dtype.parts().is_none() {
        match_dtype!(real dtype, T => {
            let (mut task, work) = (pair.whole_task::<T>()?, Uniform(ClipMagnitude(own_limit)));
            detached(py, task.bytes() / 2, || apply_elementwise(Isa::current(), &work, &mut task))?;
        }, return Err(internal("clipping of integers")));
    } else {
        match_dtype!(scalable dtype, T => scale_by_norms::<T>(pair, axes, Rule::Clip(own_limit), &mut []),
            Err(internal("clipping of integers")))?;
    }
    Ok(operands.into_result())
}

/// See `gradclip.clip_by_global_norm`.
#[pyfunction]
pub(super) fn clip_by_global_norm<'py>(
    t_list: &Bound<'py, PyAny>,
    clip_norm: &Bound<'py, PyAny>,
    use_norm: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    ord: &Bound<'py, PyAny>,
    nonfinite: &Bound<'py, PyAny>,
    strict: &Bound<'py, PyAny>,
    integers: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    share: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    const T_LIST: Parameter = Parameter::new("t_list", Kinds::Scalable, true).with(Parts::GpuAndDask);
    let call =
        Call::new(t_list.py(), "clip_by_global_norm", name, [Some(clip_norm), use_norm, Some(ord), share])?;
    let (treatment, is_strict) =
        (call.nonfinite(nonfinite, true), call.flag("strict", strict, "True or False"));
    let keeps_integers =
        call.choice("integers", integers, intern!(call.py, "raise"), [("raise", false), ("keep", true)]);
    let parameter = Parameter { keeps_integers: matches!(keeps_integers, Ok(true)), ..T_LIST };
    let mut tensors = Inputs::new(&call, parameter, call.sequence(t_list)?);
    if let Some(OnDevice { entries, is_lazy }) = tensors.read()? {
        return if is_lazy && share.is_some() {
            Err(call.shared_lazy("t_list"))
        } else if is_lazy {
            call.hand_on(true, (entries, clip_norm, use_norm, name, ord, nonfinite, strict, integers, out))
        } else if treatment? == NonFinite::Spread && !is_strict? && !keeps_integers? {
            // In place, both are one tuple, which `gradclip._cuda` sees at once.
            let out = out.map(|out| if out.is(t_list) { entries.as_any() } else { out });
            // `gradclip._cuda` calls `share` only after all arguments are checked, too.
            call.hand_on(false, (&entries, clip_norm, share.or(use_norm), name, ord, out))
        } else {
            Err(call.not_on_device("t_list"))
        };
    }
    let limit = call.limit("clip_norm", clip_norm, false)?;
    let used = use_norm.map(|norm| call.limit("use_norm", norm, true)).transpose()?;
    call.check_name()?;
    let order = call.vector_order(ord)?;
    let (nonfinite, is_strict, _) = (treatment?, is_strict?, keeps_integers?);
    if is_strict && order != Order::Two {
        return Err(call.error("wrong_value", ("ord", ord, "2 under strict=True")));
    }
    call.check_strict(is_strict, nonfinite)?;
    let own_elements = if is_strict { tensors.elements() } else { 0 };
    let held = tensors.items.clone();
    let mut operands = tensors.with_outputs(out, &mut [])?;
    // The processes exchange their parts of the norm only here: all errors of this process's arguments were found before.
    let shared = share.map(shared_norm).transpose()?;
    let margin = margin(is_strict, shared.map_or(own_elements, |(_, elements)| elements));
    let limit = Limit { limit, divisor: 1.0, nonfinite, margin };
    let given = shared.map(|(norm, _)| norm).or(used.map(|norm| Scaled::new(norm, 0)));
    let norm = operands.clip(call.py, given, order, limit)?;
    if limit.refuses(norm) {
        let argument = if used.is_some() { "use_norm" } else { "t_list" };
        return Err(call.nonfinite_error(argument, &held, None, norm.to_f64()));
    }
    Ok((operands.into_result(), PyFloat::new(call.py, norm.to_f64())).into_pyobject(call.py)?.into_any())
}
