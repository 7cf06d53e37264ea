//! Norms of data that are distributed over several processes: sums of powers, which can be merged, and the norms made of them.
//!
//! `gradclip._exchange` has the communication between the processes.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::array::items::Items;
use super::array::{Array, internal};
use super::call::Call;
use super::kinds::Kinds;
use super::operands::{Inputs, OnDevice, Parameter, Parts};
use super::run::{Norms, detached, norms_in_pairs, numbers, placed, with_views};
use crate::error::vec_with_room;
use crate::isa::{FloatDefaults, Isa};
use crate::kernel::exact::Power;
use crate::parallel::Crew;
use crate::parallel::reduce::{self, MAX_SUMMED_ORDER, Order, Views};
use crate::scaled::Scaled;

/// The order of the norms for sums of powers, see [`Order::before_root`]. Raises an error for an order that has none.
fn summed_order<'py>(call: &Call<'_, 'py>, ord: &Bound<'py, PyAny>) -> PyResult<Order> {
    match call.vector_order(ord)? {
        Order::Power(p) if p > MAX_SUMMED_ORDER => {
            let allowed = format!("orders up to {MAX_SUMMED_ORDER}, and inf, for norms of data in parts");
            Err(call.error("value_error", ("ord", format!("{p:?}"), allowed)))
        }
        order => Ok(order.before_root()),
    }
}

/// The sum of powers of the tensors of a list, as an array of shape `(1, cells)`, or with `each` the sums of each tensor, as an
/// array of shape `(tensors, cells)`; and the number of elements. `on_device` allows arrays on a GPU.
#[pyfunction]
#[pyo3(signature = (function, t_list, name, ord, keeps_integers, on_device, each=false))]
pub(super) fn power_sums<'py>(
    function: &str,
    t_list: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
    ord: &Bound<'py, PyAny>,
    keeps_integers: bool,
    on_device: bool,
    each: bool,
) -> PyResult<(Bound<'py, PyAny>, usize)> {
    let call = Call::new(t_list.py(), function, name, [Some(ord)])?;
    let parts = if on_device { Parts::Gpu } else { Parts::Numpy };
    let parameter = Parameter { keeps_integers, parts, ..Parameter::new("t_list", Kinds::Normed, true) };
    let mut tensors = Inputs::new(&call, parameter, call.sequence(t_list)?);
    let elsewhere = tensors.read()?;
    call.check_name()?;
    let order = summed_order(&call, ord)?;
    let (norms, elements) = match elsewhere {
        Some(OnDevice { entries, .. }) => {
            let device = call.module("gradclip._cuda")?;
            let found = device.call_method1("norm_on_host", (function, entries, name, ord))?;
            let ((value, exponent), elements) = found.extract::<((f64, i32), usize)>()?;
            (vec![Scaled::new(value, exponent)], elements)
        }
        None if each => {
            let held = tensors.items.clone();
            let mut norms = vec_with_room(held.len())?;
            norms.extend(held.with_nones(tensors.norms(order)?, Scaled::ZERO));
            (norms, tensors.elements())
        }
        None => (vec![tensors.norm(order)?], tensors.elements()),
    };
    let shape = [norms.len(), order.cells()];
    Ok((power_array(call.py, order, norms, (&shape, &[0, 1]))?, elements))
}

/// The exact sum of the magnitudes of the tensors of a list, or for order 2 of their squares: its digits as little-endian bytes
/// in units of 2^-2148; infinity or NaN if an element is infinite or NaN, else 0; and the number of elements.
#[pyfunction]
pub(super) fn exact_sum<'py>(
    function: &str,
    t_list: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
    ord: f64,
    keeps_integers: bool,
) -> PyResult<(Bound<'py, PyBytes>, f64, usize)> {
    let call = Call::new(t_list.py(), function, name, [])?;
    let parameter = Parameter { keeps_integers, ..Parameter::new("t_list", Kinds::Normed, true) };
    let mut tensors = Inputs::new(&call, parameter, call.sequence(t_list)?);
    tensors.read_general()?;
    call.check_name()?;
    let power = if ord == 1.0 { Power::One } else { Power::Two };
    let sum = with_views(tensors.counted(), power == Power::Two, |views| {
        detached(call.py, views.bytes(), || reduce::exact_sum(Isa::current(), &Crew::new(), views, power))
    })?;
    let digits: Vec<u8> = sum.limbs.iter().flat_map(|limb| limb.to_le_bytes()).collect();
    Ok((PyBytes::new(call.py, &digits), sum.special, tensors.elements()))
}

/// The sums of powers of the slices of a tensor along some axes, as an array with the shape of the other axes and an axis of
/// cells; and the number of elements of each slice.
#[pyfunction]
pub(super) fn power_sums_along<'py>(
    function: &str,
    t: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
    axes: Option<&Bound<'py, PyAny>>,
    ord: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyAny>, usize)> {
    let call = Call::new(t.py(), function, name, [axes, Some(ord)])?;
    let mut tensor = Inputs::new(&call, Parameter::new("t", Kinds::Normed, true), Items::One(t.clone()));
    tensor.read_general()?;
    let array = tensor.array()?;
    let axes = call.axes("axes", axes, array.ndim())?.unwrap_or_else(|| (0..array.ndim()).collect());
    let order = summed_order(&call, ord)?;
    let norms = Norms::of(array, &axes, order)?;
    let (mut shape, mut places) = placed(array.shape(), &norms.kept, false);
    places.push(shape.len());
    shape.push(order.cells());
    let len = axes.iter().filter_map(|axis| array.shape().get(*axis)).product();
    Ok((power_array(call.py, order, norms.values, (&shape, &places))?, len))
}

/// A new array of the sums of powers of norms, with the given shape and the order of its axes.
fn power_array<'py>(
    py: Python<'py>,
    order: Order,
    norms: impl IntoIterator<Item = Scaled>,
    (shape, places): (&[usize], &[usize]),
) -> PyResult<Bound<'py, PyAny>> {
    let cells = order.cells();
    Array::filled::<f64>(py, shape, places, |to| {
        to.chunks_mut(cells).zip(norms).for_each(|(cells, norm)| order.write_power(norm, cells));
        Ok(())
    })
}

/// Merges the rows of an array of sums of powers into one row: of sums, or for an infinite order of maxima.
#[pyfunction]
pub(super) fn merge_power_sums<'py>(rows: &Bound<'py, PyAny>, ord: f64) -> PyResult<Bound<'py, PyAny>> {
    let _control = FloatDefaults::set();
    let (py, (rows, shape)) = (rows.py(), numbers(rows)?);
    let [_, len] = *shape.as_slice() else { return Err(internal("sums of powers that are no rows")) };
    Array::filled::<f64>(py, &[len], &[0], |to| {
        if len > 0 {
            Order::of(ord).merge_powers(&rows.chunks_exact(len), to);
        }
        Ok(())
    })
}

/// The norms with these sums of powers, each as `value, exponent`: `value * 2**exponent`.
#[pyfunction]
pub(super) fn roots_of_power_sums<'py>(sums: &Bound<'py, PyAny>, ord: f64) -> PyResult<Bound<'py, PyAny>> {
    let _control = FloatDefaults::set();
    let (py, sums, order) = (sums.py(), numbers(sums)?.0, Order::of(ord));
    let cells = order.cells();
    Array::filled::<f64>(py, &[sums.len() / cells, 2], &[0, 1], |to| {
        for (to, sum) in to.as_chunks_mut().0.iter_mut().zip(sums.chunks_exact(cells)) {
            let (value, exponent) = order.root_of_cells(sum).split();
            *to = [value, exponent.into()];
        }
        Ok(())
    })
}

/// The norms that a Python function returns as an array of `value, exponent`, one for each slice, and the number of elements of
/// each slice.
pub(super) fn shared_norms(share: &Bound<'_, PyAny>) -> PyResult<(Vec<Scaled>, usize)> {
    let (norms, elements): (Bound<'_, PyAny>, usize) = share.call0()?.extract()?;
    Ok((norms_in_pairs(&norms)?, elements))
}

/// The single norm that a Python function returns, and its number of elements.
pub(super) fn shared_norm(share: &Bound<'_, PyAny>) -> PyResult<(Scaled, usize)> {
    let (norms, elements) = shared_norms(share)?;
    let [norm] = norms.as_slice() else { return Err(internal("not one norm")) };
    Ok((*norm, elements))
}
