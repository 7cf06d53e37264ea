//! `global_norm`, `norm` and `normalize`, and the norms of slices that the clippers use too.

use std::slice;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyString};

use super::array::{Array, Pair, Split, Walk, internal, spread};
use super::call::{Call, Entry, Kinds, Number, Tensor, describe, number};
use super::clip::pair;
use super::detached;
use crate::element::{Dtype, Real, match_real};
use crate::error::{Error, Result, vec_with_room};
use crate::isa::Isa;
use crate::parallel::perform::{AnyTask, Task, perform, scale};
use crate::parallel::reduce::{self, AnyView, Order};
use crate::scaled::{Factor, Scaled};
use crate::walk::Factors;

/// What `ord` names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ord {
    /// A vector norm, and the Euclidean norm of a matrix.
    Vector(Order),
    /// 'fro', for matrices alone.
    Frobenius,
}

/// A norm of matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MatrixNorm {
    /// The Euclidean norm of the elements.
    Frobenius,
    /// The largest column sum: the sum runs over the first of the two axes, the maximum over the second.
    One,
    /// The largest row sum: the other way round.
    Infinity,
    /// The largest singular value.
    Two,
}

const VECTOR_ORDS: &str = "'euclidean' or a real number > 0";
const MATRIX_ORDS: &str = "'euclidean', 'fro', 1, 2 or inf for two axes";

/// Reads `ord`.
pub(super) fn order(call: &Call<'_, '_>, ord: &Bound<'_, PyAny>) -> PyResult<Ord> {
    if let Ok(text) = ord.cast::<PyString>() {
        return match text.to_string_lossy().as_ref() {
            "euclidean" => Ok(Ord::Vector(Order::Two)),
            "fro" => Ok(Ord::Frobenius),
            _ => Err(call.value_error("ord", describe(ord), &format!("{VECTOR_ORDS}; {MATRIX_ORDS}"))),
        };
    }
    match number(ord)? {
        Number::Real(p) if p > 0.0 => Ok(Ord::Vector(Order::of(p))),
        Number::Real(_) => Err(call.value_error("ord", describe(ord), VECTOR_ORDS)),
        _ => Err(call.type_error("ord", describe(ord), VECTOR_ORDS)),
    }
}

/// Reads the `ord` of a function that has vector norms alone.
pub(super) fn vector_order(call: &Call<'_, '_>, ord: &Bound<'_, PyAny>) -> PyResult<Order> {
    match order(call, ord)? {
        Ord::Vector(order) => Ok(order),
        Ord::Frobenius => Err(call.value_error("ord", describe(ord), VECTOR_ORDS)),
    }
}

/// The norm of one array.
pub(super) fn norm_of(py: Python<'_>, array: &Array<'_>, dtype: Dtype, order: Order) -> PyResult<Scaled> {
    let view = any_view(array, dtype)?;
    let bytes = array.len() * dtype.size();
    Ok(detached(py, bytes, || reduce::norm(Isa::current(), slice::from_ref(&view), order))?)
}

/// The norm of a list of arrays as one.
pub(super) fn norm_of_list<'py, 'a>(
    py: Python<'py>,
    arrays: impl Iterator<Item = (&'a Array<'py>, Dtype)> + Clone,
    order: Order,
) -> PyResult<Scaled>
where
    'py: 'a,
{
    let mut views: Vec<AnyView<'a>> = vec_with_room(arrays.clone().count())?;
    let mut bytes = 0;
    for (array, dtype) in arrays {
        bytes += array.len() * dtype.size();
        views.push(any_view(array, dtype)?);
    }
    Ok(detached(py, bytes, || reduce::norm(Isa::current(), &views, order))?)
}

fn any_view<'a>(array: &'a Array<'_>, dtype: Dtype) -> PyResult<AnyView<'a>> {
    match_real!(dtype, T => array.whole::<T>().map(AnyView::from), Err(internal("a norm of integers")))
}

/// The norms of slices, in the order of the kept axes, from outer to inner.
pub(super) struct Norms {
    pub(super) values: Vec<Scaled>,
    pub(super) kept: Vec<usize>,
}

impl Norms {
    /// The vector norms along some axes.
    pub(super) fn of(array: &Array<'_>, dtype: Dtype, reduced: &[usize], order: Order) -> PyResult<Self> {
        let py = array.object().py();
        let split = Split::new(array, reduced);
        let bytes = array.len() * dtype.size();
        let values = match_real!(dtype, T => {
            let slices = array.slices::<T>(&split)?;
            detached(py, bytes, || reduce::norms(Isa::current(), &slices, order))?
        }, return Err(internal("norms of integers")));
        Ok(Self { values, kept: split.kept().collect() })
    }

    fn of_matrices(array: &Array<'_>, dtype: Dtype, axes: [usize; 2], norm: MatrixNorm) -> PyResult<Self> {
        match norm {
            MatrixNorm::Frobenius => Self::of(array, dtype, &axes, Order::Two),
            MatrixNorm::One => {
                Ok(Self::of(array, dtype, &axes[..1], Order::One)?.max_over(axes[1], array.shape())?)
            }
            MatrixNorm::Infinity => {
                Ok(Self::of(array, dtype, &axes[1..], Order::One)?.max_over(axes[0], array.shape())?)
            }
            MatrixNorm::Two => {
                let py = array.object().py();
                let helper = py.import(intern!(py, "gradclip._matrix"))?;
                let found =
                    helper.call_method1(intern!(py, "largest_singular_values"), (array.object(), axes))?;
                let kept: Vec<_> = (0..array.ndim()).filter(|axis| !axes.contains(axis)).collect();
                let (found, _) =
                    Array::read(&found).ok_or_else(|| internal("no array of singular values"))?;
                let view = found.view::<f64>(&Walk::along(0..kept.len()))?;
                let mut values = vec_with_room(view.len())?;
                view.for_blocks(0..view.len(), |block| {
                    values.extend(block.iter().map(|norm| Scaled::new(*norm, 0)));
                });
                Ok(Self { values, kept })
            }
        }
    }

    /// The largest norm along one of the kept axes.
    fn max_over(self, axis: usize, shape: &[usize]) -> Result<Self> {
        let at = self.kept.iter().position(|kept| *kept == axis).unwrap_or(0);
        let (outer, inner) = (&self.kept[..at], &self.kept[at + 1..]);
        let inner_len: usize = inner.iter().map(|axis| shape[*axis]).product();
        let outer_len: usize = outer.iter().map(|axis| shape[*axis]).product();
        let mut values = vec_with_room(outer_len * inner_len)?;
        values.resize(outer_len * inner_len, Scaled::ZERO);
        if !values.is_empty() && shape[axis] > 0 {
            for (block, max) in self.values.chunks(shape[axis] * inner_len).zip(values.chunks_mut(inner_len))
            {
                for row in block.chunks(inner_len) {
                    for (max, norm) in max.iter_mut().zip(row) {
                        *max = max.max(*norm);
                    }
                }
            }
        }
        Ok(Self { values, kept: outer.iter().chain(inner).copied().collect() })
    }

    /// As an array of float32 for the narrow dtypes, of float64 for the others.
    fn to_array<'py>(
        &self,
        py: Python<'py>,
        dtype: Dtype,
        shape: &[usize],
        keepdims: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (shape, order): (Vec<_>, Vec<_>) = if keepdims {
            let reduced = (0..shape.len()).filter(|axis| !self.kept.contains(axis));
            let shape = (0..shape.len()).map(|axis| if self.kept.contains(&axis) { shape[axis] } else { 1 });
            (shape.collect(), reduced.chain(self.kept.iter().copied()).collect())
        } else {
            let mut axes = self.kept.clone();
            axes.sort_unstable();
            let place = |kept: &usize| axes.iter().position(|axis| axis == kept).unwrap_or(0);
            (axes.iter().map(|axis| shape[*axis]).collect(), self.kept.iter().map(place).collect())
        };
        let values = self.values.iter().map(|norm| norm.to_f64());
        if dtype == Dtype::F32 {
            Array::from_values(py, &shape, &order, values.map(f32::narrow))
        } else {
            Array::from_values(py, &shape, &order, values)
        }
    }
}

/// Scales each slice by its own factor; None leaves it as it is.
pub(super) fn scale_slices(
    pair: &mut Pair<'_>,
    dtype: Dtype,
    norms: &Norms,
    factor: impl Fn(Scaled) -> Option<Factor>,
) -> PyResult<()> {
    let py = pair.input().object().py();
    let mut steps: (Vec<f64>, Vec<f64>) = (vec_with_room(norms.values.len())?, Vec::new());
    let mut far = false;
    for norm in &norms.values {
        let factor = factor(*norm).unwrap_or(Factor::ONE);
        far |= factor.then != 1.0;
        steps.0.push(factor.by);
    }
    if far {
        steps.1 = vec_with_room(norms.values.len())?;
        steps.1.extend(norms.values.iter().map(|norm| factor(*norm).unwrap_or(Factor::ONE).then));
    }
    let shape = pair.input().shape().to_vec();
    let bytes = pair.input().len() * dtype.size();
    let walk = Walk::of_pair(pair);
    match_real!(dtype, T => {
        let spread = |factors| Factors(spread(factors, &norms.kept, &shape, &walk));
        let (first, second) = (spread(&steps.0), far.then(|| spread(&steps.1)));
        let mut task = pair.task::<T>(&walk)?;
        Ok(detached(py, bytes, || -> Result<()> {
            let isa = Isa::current();
            perform(isa, &first, &mut task)?;
            match second {
                // A power of two, for float64 alone and rare: a pass of its own, in place.
                Some(second) => perform(isa, &second, &mut Task { source: None, target: task.target }),
                None => Ok(()),
            }
        })?)
    }, Err(internal("scaling of integers")))
}

/// Scales one array; None copies it, unless it is in place.
pub(super) fn scale_one(
    py: Python<'_>,
    pair: &mut Pair<'_>,
    dtype: Dtype,
    factor: Option<Factor>,
) -> PyResult<()> {
    if factor.is_none() && pair.is_in_place() {
        return Ok(());
    }
    let bytes = pair.input().len() * dtype.size();
    let mut task = any_task(pair, dtype)?;
    Ok(detached(py, bytes, || scale(Isa::current(), slice::from_mut(&mut task), factor))?)
}

fn any_task<'a>(pair: &'a mut Pair<'_>, dtype: Dtype) -> PyResult<AnyTask<'a>> {
    match_real!(dtype, T => pair.whole_task::<T>().map(AnyTask::from), Err(internal("scaling of integers")))
}

/// Scales arrays by one factor, all of them; None copies those that are not in place.
pub(super) fn scale_list<'a, 'py: 'a>(
    py: Python<'py>,
    pairs: impl Iterator<Item = (&'a mut Pair<'py>, Dtype)>,
    factor: Option<Factor>,
) -> PyResult<()> {
    let mut tasks: Vec<AnyTask<'a>> = vec_with_room(pairs.size_hint().0)?;
    let mut bytes = 0;
    for (pair, dtype) in pairs {
        if factor.is_none() && pair.is_in_place() {
            continue;
        }
        bytes += pair.input().len() * dtype.size();
        tasks.try_reserve(1).map_err(Error::from)?;
        tasks.push(any_task(pair, dtype)?);
    }
    Ok(detached(py, bytes, || scale(Isa::current(), &mut tasks, factor))?)
}

/// The tensors of a list; None for None.
pub(super) fn tensors<'py>(
    call: &Call<'_, 'py>,
    list: &Bound<'py, PyAny>,
) -> PyResult<Vec<Option<Tensor<'py>>>> {
    let entries = call.sequence(list)?;
    let mut tensors = vec_with_room(entries.len())?;
    for (i, entry) in entries.iter().enumerate() {
        if entry.is_none() {
            tensors.push(None);
            continue;
        }
        tensors.push(Some(call.tensor_or_slices(Entry("t_list", i), &entry, Kinds::Real)?));
    }
    Ok(tensors)
}

/// See `gradclip.global_norm`.
#[pyfunction]
#[pyo3(signature = (t_list, name, ord))]
pub(super) fn global_norm<'py>(
    py: Python<'py>,
    t_list: &Bound<'py, PyAny>,
    name: Option<&Bound<'py, PyAny>>,
    ord: &Bound<'py, PyAny>,
) -> PyResult<f64> {
    let call = Call::new(py, "global_norm", name)?;
    let tensors = tensors(&call, t_list)?;
    call.check_name()?;
    let order = vector_order(&call, ord)?;
    let arrays = tensors.iter().flatten().map(|tensor| (&tensor.array, tensor.dtype));
    Ok(norm_of_list(py, arrays, order)?.to_f64())
}

/// The axes of a norm, and what is computed along them.
enum Along {
    Whole(Order),
    Vectors(Vec<usize>, Order),
    Matrices([usize; 2], MatrixNorm),
}

impl Along {
    fn new(
        call: &Call<'_, '_>,
        ord: &Bound<'_, PyAny>,
        axis: Option<&Bound<'_, PyAny>>,
        ndim: usize,
    ) -> PyResult<Self> {
        let named = order(call, ord)?;
        let axes = call.axes("axis", axis, ndim)?;
        if let Some([]) = axes.as_deref() {
            return Err(call.value_error(
                "axis",
                "an empty sequence",
                "None, an int or a sequence of at least one int",
            ));
        }
        if let Some(&[a, b]) = axes.as_deref() {
            let norm = match named {
                Ord::Frobenius => MatrixNorm::Frobenius,
                Ord::Vector(Order::Two) if ord.is_instance_of::<PyString>() => MatrixNorm::Frobenius,
                Ord::Vector(Order::One) => MatrixNorm::One,
                Ord::Vector(Order::Two) => MatrixNorm::Two,
                Ord::Vector(Order::Max) => MatrixNorm::Infinity,
                Ord::Vector(Order::Power(_)) => {
                    return Err(call.value_error("ord", describe(ord), MATRIX_ORDS));
                }
            };
            return Ok(Self::Matrices([a, b], norm));
        }
        match (named, axes) {
            (Ord::Frobenius, _) => Err(call.value_error("ord", describe(ord), VECTOR_ORDS)),
            (Ord::Vector(order), None) => Ok(Self::Whole(order)),
            (Ord::Vector(order), Some(axes)) if axes.len() == ndim => Ok(Self::Whole(order)),
            (Ord::Vector(order), Some(axes)) => Ok(Self::Vectors(axes, order)),
        }
    }

    fn norms(&self, tensor: &Tensor<'_>) -> PyResult<Norms> {
        let (array, dtype) = (&tensor.array, tensor.dtype);
        match self {
            Self::Whole(order) => {
                let py = array.object().py();
                let norm = norm_of(py, array, dtype, *order)?;
                Ok(Norms { values: vec![norm], kept: vec![] })
            }
            Self::Vectors(axes, order) => Norms::of(array, dtype, axes, *order),
            Self::Matrices(axes, norm) => Norms::of_matrices(array, dtype, *axes, *norm),
        }
    }
}

/// See `gradclip.norm`.
#[pyfunction]
#[pyo3(signature = (tensor, ord, axis, keepdims, name))]
pub(super) fn norm<'py>(
    py: Python<'py>,
    tensor: &Bound<'py, PyAny>,
    ord: &Bound<'py, PyAny>,
    axis: Option<&Bound<'py, PyAny>>,
    keepdims: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let call = Call::new(py, "norm", name)?;
    let tensor = call.tensor("tensor", tensor, Kinds::Real)?;
    let along = Along::new(&call, ord, axis, tensor.array.ndim())?;
    let keepdims = match keepdims {
        None => false,
        Some(keepdims) => match keepdims.cast::<PyBool>() {
            Ok(keepdims) => keepdims.is_true(),
            Err(_) => return Err(call.type_error("keepdims", describe(keepdims), "None or a bool")),
        },
    };
    call.check_name()?;
    let norms = along.norms(&tensor)?;
    match norms.values[..] {
        [norm] if norms.kept.is_empty() && !keepdims => Ok(PyFloat::new(py, norm.to_f64()).into_any()),
        _ => norms.to_array(py, tensor.dtype, tensor.array.shape(), keepdims),
    }
}

/// See `gradclip.normalize`.
#[pyfunction]
#[pyo3(signature = (tensor, ord, axis, name, out))]
pub(super) fn normalize<'py>(
    py: Python<'py>,
    tensor: &Bound<'py, PyAny>,
    ord: &Bound<'py, PyAny>,
    axis: Option<&Bound<'py, PyAny>>,
    name: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let call = Call::new(py, "normalize", name)?;
    let tensor = call.tensor("tensor", tensor, Kinds::Real)?;
    let along = Along::new(&call, ord, axis, tensor.array.ndim())?;
    call.check_name()?;
    let dtype = tensor.dtype;
    let given = call.out("out", out, &tensor)?;
    let norms = along.norms(&tensor)?;
    let norm = norms.to_array(py, dtype, tensor.array.shape(), true)?;
    let mut pair = pair(&call, tensor.array, given, &mut [])?;
    let divide = |norm: Scaled| Some(norm.factor_to(1.0));
    match norms.values[..] {
        [norm] => scale_one(py, &mut pair, dtype, divide(norm))?,
        _ => scale_slices(&mut pair, dtype, &norms, divide)?,
    }
    Ok((call.result(pair.result(), None, out)?, norm))
}
