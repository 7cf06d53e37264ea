//! `global_norm`, `norm` and `normalize`, and the meaning of `ord` and `axis`.

use std::{iter, slice};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyString};

use super::array::items::Items;
use super::array::{Array, internal};
use super::call::Call;
use super::kinds::Kinds;
use super::operands::{Inputs, OnDevice, Parameter, Parts};
use super::run::{
    Norms, dtype_of, norm_array, norm_of_arrays, placed, scale_by_norms, scale_pairs, scale_slices,
};
use crate::element::match_dtype;
use crate::parallel::reduce::Order;
use crate::parallel::rows::Rule;
use crate::scaled::Scaled;

/// See `gradclip.global_norm`.
#[pyfunction]
pub(super) fn global_norm<'py>(
    t_list: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
    ord: &Bound<'py, PyAny>,
    nonfinite: &Bound<'py, PyAny>,
    integers: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    const T_LIST: Parameter = Parameter::new("t_list", Kinds::Normed, true).with(Parts::GpuAndDask);
    let call = Call::new(t_list.py(), "global_norm", name, [Some(ord)])?;
    let words = [("propagate", false), ("raise", true)];
    let refuses = call.choice("nonfinite", nonfinite, intern!(call.py, "propagate"), words);
    let keeps_integers =
        call.choice("integers", integers, intern!(call.py, "count"), [("count", false), ("keep", true)]);
    let parameter = Parameter { keeps_integers: matches!(keeps_integers, Ok(true)), ..T_LIST };
    let mut tensors = Inputs::new(&call, parameter, call.sequence(t_list)?);
    if let Some(OnDevice { entries, is_lazy }) = tensors.read()? {
        if is_lazy {
            return call.hand_on(true, (entries, name, ord, nonfinite, integers));
        }
        if refuses? || keeps_integers? {
            return Err(call.not_on_device("t_list"));
        }
        return call.hand_on(false, (entries, name, ord));
    }
    call.check_name()?;
    let order = call.vector_order(ord)?;
    let (refuses, _) = (refuses?, keeps_integers?);
    let norm = tensors.norm(order)?;
    if refuses && !norm.is_finite() {
        return Err(call.nonfinite_error("t_list", &tensors.items, None, norm.to_f64()));
    }
    Ok(PyFloat::new(call.py, norm.to_f64()).into_any())
}

/// See `gradclip.norms`.
#[pyfunction]
pub(super) fn norms<'py>(
    t_list: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
    ord: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    const T_LIST: Parameter = Parameter::new("t_list", Kinds::Normed, true);
    let call = Call::new(t_list.py(), "norms", name, [Some(ord)])?;
    let mut tensors = Inputs::new(&call, T_LIST, call.sequence(t_list)?);
    tensors.read()?;
    call.check_name()?;
    let order = call.vector_order(ord)?;
    let (norms, held) = (tensors.norms(order)?, tensors.items.clone());
    Array::filled::<f64>(call.py, &[held.len()], &[0], |to| {
        let norms = held.with_nones(norms, Scaled::ZERO);
        to.iter_mut().zip(norms).for_each(|(to, norm)| *to = norm.to_f64());
        Ok(())
    })
}

/// The axes of a norm, and the norm along them.
pub(super) enum Along {
    Whole(Order),
    Vectors(Vec<usize>, Order),
    Matrices([usize; 2], Order),
}

impl Along {
    pub(super) fn new<'py>(
        call: &Call<'_, 'py>,
        ord: &Bound<'py, PyAny>,
        axis: Option<&Bound<'py, PyAny>>,
        ndim: usize,
    ) -> PyResult<Self> {
        let is_text = ord.is_instance_of::<PyString>();
        let is_fro = ord.cast::<PyString>().is_ok_and(|text| text == "fro");
        let order = if is_fro { Order::Two } else { call.vector_order(ord)? };
        let axes = call.axes("axis", axis, ndim)?;
        // Along two axes, a number is the order of a matrix norm, and a string the order of a vector norm.
        let is_wrong = match (axes.as_deref(), order) {
            (Some(&[first, second]), Order::One | Order::Two | Order::Max) if !is_text => {
                return Ok(Self::Matrices([first, second], order));
            }
            (Some([_, _]), _) => !is_text,
            (Some(axes), _) => is_fro || axes.is_empty(),
            (None, _) => is_fro,
        };
        match axes {
            _ if is_wrong => Err(call.error("along", (ord, axis, ndim))),
            Some(axes) if axes.len() < ndim => Ok(Self::Vectors(axes, order)),
            _ => Ok(Self::Whole(order)),
        }
    }

    fn norms(&self, array: &Array<'_>) -> PyResult<Norms> {
        match self {
            Self::Whole(order) => {
                let norm = norm_of_arrays(array.object().py(), iter::once(array), *order)?;
                Ok(Norms { values: vec![norm], kept: vec![] })
            }
            Self::Vectors(axes, order) => Norms::of(array, axes, *order),
            Self::Matrices(axes, order) => Norms::of_matrices(array, *axes, *order),
        }
    }
}

/// See `gradclip.norm`.
#[pyfunction]
pub(super) fn norm<'py>(
    tensor: &Bound<'py, PyAny>,
    ord: &Bound<'py, PyAny>,
    axis: Option<&Bound<'py, PyAny>>,
    keepdims: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    const TENSOR: Parameter = Parameter::new("tensor", Kinds::Normed, false).with(Parts::GpuAndDask);
    let call = Call::new(tensor.py(), "norm", name, [Some(ord), axis, keepdims])?;
    let mut inputs = Inputs::new(&call, TENSOR, Items::One(tensor.clone()));
    // Norms of slices need a general array.
    let is_whole = axis.is_none() && keepdims.is_none();
    if let Some(OnDevice { is_lazy, .. }) = if is_whole { inputs.read()? } else { inputs.read_general()? } {
        return call.hand_on(is_lazy, (tensor, ord, axis, keepdims, name));
    }
    let along = Along::new(&call, ord, axis, inputs.shape()?.len())?;
    let keepdims = keepdims.map_or(Ok(false), |given| call.flag("keepdims", given, "None or a bool"))?;
    call.check_name()?;
    if let (Along::Whole(order), false) = (&along, keepdims) {
        return Ok(PyFloat::new(call.py, inputs.norm(*order)?.to_f64()).into_any());
    }
    let array = inputs.array()?;
    if let Along::Vectors(axes, order) = &along {
        return norm_array(array, axes, *order, keepdims);
    }
    let norms = along.norms(array)?;
    match norms.values[..] {
        [norm] if norms.kept.is_empty() && !keepdims => Ok(PyFloat::new(call.py, norm.to_f64()).into_any()),
        _ => norms.to_array(array, keepdims),
    }
}

/// See `gradclip.normalize`.
#[pyfunction]
pub(super) fn normalize<'py>(
    tensor: &Bound<'py, PyAny>,
    ord: &Bound<'py, PyAny>,
    axis: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    const TENSOR: Parameter = Parameter::new("tensor", Kinds::Scalable, false).with(Parts::Gpu);
    let call = Call::new(tensor.py(), "normalize", name, [Some(ord), axis])?;
    let mut inputs = Inputs::new(&call, TENSOR, Items::One(tensor.clone()));
    if inputs.read_general()?.is_some() {
        return call.hand_on(false, (tensor, ord, axis, name, out));
    }
    let along = Along::new(&call, ord, axis, inputs.shape()?.len())?;
    call.check_name()?;
    // The output is allocated first: if there is no memory for it, no norms are computed.
    let mut operands = inputs.with_outputs(out, &mut [])?;
    let pair = operands.pair()?;
    let input = pair.input().clone();
    let norm = if let Along::Vectors(axes, order @ (Order::One | Order::Two | Order::Max)) = &along {
        let rule = Rule::Normalize(*order);
        let kept: Vec<_> = input.split(axes).kept().collect();
        let (shape, places) = placed(input.shape(), &kept, true);
        match_dtype!(scalable dtype_of(&input)?, T => {
            // The memory for the norms is allocated first: nothing may fail once something is written.
            Array::filled(call.py, &shape, &places, |norms| scale_by_norms::<T>(pair, axes, rule, norms))
        }, Err(internal("normalizing of integers")))?
    } else {
        let norms = along.norms(&input)?;
        let norm = norms.to_array(&input, true)?;
        let (Along::Whole(order) | Along::Vectors(_, order) | Along::Matrices(_, order)) = along;
        let divide = |norm: Scaled| Rule::Normalize(order).factor(norm);
        match norms.values[..] {
            [norm] => scale_pairs(call.py, slice::from_mut(pair), divide(norm))?,
            _ => scale_slices(call.py, slice::from_mut(pair), slice::from_ref(&norms), |_, _, norm| {
                divide(norm)
            })?,
        }
        norm
    };
    Ok((operands.into_result(), norm).into_pyobject(call.py)?.into_any())
}
