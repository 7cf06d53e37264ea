//! From arguments to the layers below: arrays become views, tasks and norms, and the work is done detached from
//! the interpreter.

use std::borrow::Cow;
use std::slice;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::array::plain::{OperandPairs, PlainArrays, PlainViews};
use super::array::{Array, IterOrder, Out, Pair, ReducedAxes, arrange, internal, resized, spread};
use super::call::{Call, Entry, Tensor};
use super::kinds::Kinds;
use crate::element::{Dtype, Real, match_element, match_real};
use crate::error::{Error, Result, vec_with_room};
use crate::isa::Isa;
use crate::parallel::Crew;
use crate::parallel::elementwise::{AnyTask, Task, apply_elementwise, scale};
use crate::parallel::reduce::{self, AnyView, Order, Views, norms_into};
use crate::parallel::rows;
use crate::scaled::{Factor, Scaled};
use crate::walk::Factors;

/// Bytes below which the work is done before another Python thread would have got going.
const DETACH_FROM: usize = 512 << 10;

/// Runs `work` detached from the interpreter: the one way from here into the layers below, for arrays of any
/// size.
///
/// Other Python threads run meanwhile, and may write to the arrays: as with NumPy's own loops, that is the
/// caller's race.
pub(super) fn detached<T: Send>(py: Python<'_>, bytes: usize, work: impl FnOnce() -> T + Send) -> T {
    if bytes < DETACH_FROM { work() } else { py.detach(work) }
}

/// The tensors of a list; None for None.
pub(super) fn tensors<'py>(
    call: &Call<'_, 'py>,
    entries: &Bound<'py, PyTuple>,
    kinds: Kinds,
) -> PyResult<Vec<Option<Tensor<'py>>>> {
    let mut tensors = vec_with_room(entries.len())?;
    for (i, entry) in entries.iter().enumerate() {
        if entry.is_none() {
            tensors.push(None);
            continue;
        }
        tensors.push(Some(call.tensor_or_slices(Entry("t_list", i), &entry, kinds)?));
    }
    Ok(tensors)
}

/// The pair of a function of one tensor.
pub(super) fn pair<'py>(
    call: &Call<'_, 'py>,
    tensor: Array<'py>,
    out: Out<'py>,
    readers: &mut [&mut Array<'py>],
) -> PyResult<Pair<'py>> {
    let mut pair = Pair::new(tensor, out)?;
    match arrange(slice::from_mut(&mut pair), readers)? {
        Some((a, b)) => Err(call.clash(a, b, true)),
        None => Ok(pair),
    }
}

/// A norm of matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum MatrixNorm {
    /// The Euclidean norm of the elements.
    Frobenius,
    /// The largest column sum: the sum runs over the first of the two axes, the maximum over the second.
    One,
    /// The largest row sum: the other way round.
    Infinity,
    /// The largest singular value.
    Two,
}

/// The norm of one array.
pub(super) fn norm_of(py: Python<'_>, array: &Array<'_>, dtype: Dtype, order: Order) -> PyResult<Scaled> {
    let parts = parts(array, order);
    let view = any_view(parts.as_ref().unwrap_or(array))?;
    let bytes = array.len() * dtype.size();
    Ok(detached(py, bytes, || reduce::norm(Isa::current(), &Crew::new(), slice::from_ref(&view), order))?)
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
    let len = arrays.clone().count();
    // Only where there are complex ones: an `Array` is a large thing to make for each of many small tensors.
    let mut in_parts = Vec::new();
    if order == Order::Two && arrays.clone().any(|(_, dtype)| dtype.parts().is_some()) {
        in_parts = vec_with_room(len)?;
        in_parts.extend(arrays.clone().map(|(array, _)| array.in_parts()));
    }
    let mut views: Vec<AnyView<'_>> = vec_with_room(len)?;
    let mut bytes = 0usize;
    for (i, (array, dtype)) in arrays.enumerate() {
        bytes = array.len().saturating_mul(dtype.size()).saturating_add(bytes);
        views.push(any_view(in_parts.get(i).and_then(Option::as_ref).unwrap_or(array))?);
    }
    Ok(detached(py, bytes, || reduce::norm(Isa::current(), &Crew::new(), &views, order))?)
}

/// The norm of a list of plain arrays as one.
pub(super) fn norm_of_plain(py: Python<'_>, arrays: &PlainArrays<'_>, order: Order) -> PyResult<Scaled> {
    let (views, bytes) = (arrays.views()?, arrays.bytes());
    Ok(detached(py, bytes, || norm_of_views(Isa::current(), &Crew::new(), &views, order))?)
}

/// The norm of a clip: one that the caller trusts, or one to compute.
#[derive(Clone, Copy)]
pub(super) enum NormOf {
    /// `use_norm`.
    Given(Scaled),
    /// The norm of all inputs as one.
    Inputs(Order),
}

/// Clips plain arrays by a factor made of their norm. Returns that norm.
pub(super) fn clip_plain(
    py: Python<'_>,
    pairs: &mut OperandPairs<'_, '_>,
    norm: NormOf,
    factor: impl FnOnce(Scaled) -> Option<Factor> + Send,
) -> PyResult<Scaled> {
    let bytes = pairs.inputs().bytes();
    let mut pairs = pairs.pairs_to_clip()?;
    // Both passes while detached, so that no other Python thread is waited for in between.
    Ok(detached(py, bytes, || {
        let (isa, crew) = (Isa::current(), Crew::new());
        let norm = match norm {
            NormOf::Given(norm) => norm,
            NormOf::Inputs(order) => norm_of_views(isa, &crew, &pairs.views(), order)?,
        };
        let factor = factor(norm);
        if factor.is_some() || !pairs.are_in_place() {
            scale(isa, &crew, pairs.tasks(), factor)?;
        }
        Ok::<_, Error>(norm)
    })?)
}

/// The norm of plain arrays as one.
fn norm_of_views(isa: Isa, crew: &Crew, views: &PlainViews<'_>, order: Order) -> Result<Scaled> {
    if views.len() == 1 {
        // The view is made once here; of a list it is made twice.
        return views.with(0, |view| reduce::norm(isa, crew, slice::from_ref(view), order));
    }
    reduce::norm_of_views(isa, crew, views, order)
}

/// A complex array as real ones, if the norm does not tell the difference.
fn parts<'py>(array: &Array<'py>, order: Order) -> Option<Array<'py>> {
    if order == Order::Two { array.in_parts() } else { None }
}

fn any_view<'a>(array: &'a Array<'_>) -> PyResult<AnyView<'a>> {
    let dtype = array.dtype().ok_or_else(|| internal("a view of no dtype"))?;
    match_element!(dtype, T => array.whole::<T>().map(AnyView::from))
}

/// The norms of slices, in the order of the kept axes, from outer to inner.
pub(super) struct Norms {
    pub(super) values: Vec<Scaled>,
    pub(super) kept: Vec<usize>,
}

impl Norms {
    /// The vector norms along some axes.
    pub(super) fn of(array: &Array<'_>, dtype: Dtype, reduced: &[usize], order: Order) -> PyResult<Self> {
        let kept: Vec<_> = ReducedAxes::new(array, reduced).kept().collect();
        let count = kept.iter().map(|axis| array.shape()[*axis]).product();
        let mut values = vec_with_room(count)?;
        values.resize(count, Scaled::ZERO);
        Self::fill(array, dtype, reduced, order, &mut values, |norm| norm)?;
        Ok(Self { values, kept })
    }

    /// The same as an array, see [`Norms::to_array`].
    pub(super) fn array_of<'py>(
        py: Python<'py>,
        array: &Array<'_>,
        dtype: Dtype,
        reduced: &[usize],
        order: Order,
        keepdims: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let kept: Vec<_> = ReducedAxes::new(array, reduced).kept().collect();
        let (shape, places) = placed(array.shape(), &kept, keepdims);
        if dtype.is_wide() {
            Array::filled(py, &shape, &places, |to| {
                Self::fill(array, dtype, reduced, order, to, as_real::<f64>)
            })
        } else {
            Array::filled(py, &shape, &places, |to| {
                Self::fill(array, dtype, reduced, order, to, as_real::<f32>)
            })
        }
    }

    /// Writes the norms along some axes, each made into what is wanted of it.
    fn fill<R: Send>(
        array: &Array<'_>,
        dtype: Dtype,
        reduced: &[usize],
        order: Order,
        norms: &mut [R],
        make: impl Fn(Scaled) -> R + Send + Sync,
    ) -> PyResult<()> {
        let py = array.object().py();
        let split = ReducedAxes::new(array, reduced);
        let bytes = array.len() * dtype.size();
        match_element!(dtype, T => {
            let slices = array.slices::<T>(&split)?;
            // As real numbers complex ones are added up faster, but for columns, which need neighbours side by side.
            if let Some(parts) = parts(array, order).filter(|_| !slices.are_columns()) {
                return Self::fill_of_parts(&parts, reduced, order, norms, make);
            }
            Ok(detached(py, bytes, || norms_into(Isa::current(), &slices, order, norms, make))?)
        })
    }

    /// Whether the slices along some axes lie side by side, so that [`Norms::of`] adds up all of them at once.
    pub(super) fn are_of_columns(array: &Array<'_>, dtype: Dtype, reduced: &[usize]) -> PyResult<bool> {
        let split = ReducedAxes::new(array, reduced);
        match_element!(dtype, T => Ok(array.slices::<T>(&split)?.are_columns()))
    }

    fn fill_of_parts<R: Send>(
        parts: &Array<'_>,
        reduced: &[usize],
        order: Order,
        norms: &mut [R],
        make: impl Fn(Scaled) -> R + Send + Sync,
    ) -> PyResult<()> {
        let py = parts.object().py();
        let dtype = parts.dtype().ok_or_else(|| internal("parts of no dtype"))?;
        let bytes = parts.len() * dtype.size();
        let reduced: Vec<_> = reduced.iter().copied().chain([parts.ndim() - 1]).collect();
        match_real!(dtype, T => {
            let slices = parts.slices::<T>(&ReducedAxes::new(parts, &reduced))?;
            Ok(detached(py, bytes, || norms_into(Isa::current(), &slices, order, norms, make))?)
        }, Err(internal("parts that are not real")))
    }

    /// The norms of the matrices along two axes.
    pub(super) fn of_matrices(
        array: &Array<'_>,
        dtype: Dtype,
        axes @ [first, second]: [usize; 2],
        norm: MatrixNorm,
    ) -> PyResult<Self> {
        match norm {
            MatrixNorm::Frobenius => Self::of(array, dtype, &axes, Order::Two),
            MatrixNorm::One => {
                Ok(Self::of(array, dtype, &[first], Order::One)?.max_over(second, array.shape())?)
            }
            MatrixNorm::Infinity => {
                Ok(Self::of(array, dtype, &[second], Order::One)?.max_over(first, array.shape())?)
            }
            MatrixNorm::Two => {
                let py = array.object().py();
                let helper = py.import(intern!(py, "gradclip._matrix"))?;
                let matrices = array.as_read()?;
                let found = helper.call_method1(intern!(py, "largest_singular_values"), (matrices, axes))?;
                let (found, exponents): (Bound<'_, PyAny>, Bound<'_, PyAny>) = found.extract()?;
                let kept: Vec<_> = (0..array.ndim()).filter(|axis| !axes.contains(axis)).collect();
                let shape = array.shape();
                let numbers = |object| -> PyResult<Vec<f64>> {
                    let (array, _) =
                        Array::read(object).ok_or_else(|| internal("no array of singular values"))?;
                    // Other threads ran meanwhile, and may have given the matrices another shape.
                    if !array.shape().iter().map(Some).eq(kept.iter().map(|axis| shape.get(*axis))) {
                        return Err(resized());
                    }
                    let view = array.view::<f64>(&IterOrder::along(0..kept.len()))?;
                    let mut numbers = vec_with_room(view.len())?;
                    view.for_blocks(0..view.len(), |block| numbers.extend_from_slice(block));
                    Ok(numbers)
                };
                let (norms, exponents) = (numbers(&found)?, numbers(&exponents)?);
                let mut values = vec_with_room(norms.len())?;
                let found = norms.into_iter().zip(exponents);
                values.extend(found.map(|(norm, exponent)| Scaled::new(norm, exponent as i32)));
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
    pub(super) fn to_array<'py>(
        &self,
        py: Python<'py>,
        dtype: Dtype,
        shape: &[usize],
        keepdims: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::array_with(py, dtype, (shape, &self.kept, keepdims), || Ok(Cow::Borrowed(&self.values)))
    }

    /// The same of norms that `compute` makes once there is an array for them.
    fn array_with<'py, 'a>(
        py: Python<'py>,
        dtype: Dtype,
        (shape, kept, keepdims): (&[usize], &[usize], bool),
        compute: impl FnOnce() -> PyResult<Cow<'a, [Scaled]>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        fn write<R>(to: &mut [R], norms: &[Scaled], make: impl Fn(Scaled) -> R) {
            to.iter_mut().zip(norms).for_each(|(to, norm)| *to = make(*norm));
        }
        let (shape, places) = placed(shape, kept, keepdims);
        if dtype.is_wide() {
            Array::filled(py, &shape, &places, |to| {
                write(to, &compute()?, as_real::<f64>);
                Ok(())
            })
        } else {
            Array::filled(py, &shape, &places, |to| {
                write(to, &compute()?, as_real::<f32>);
                Ok(())
            })
        }
    }
}

fn as_real<T: Real>(norm: Scaled) -> T {
    T::narrow(norm.to_f64())
}

/// Divides each row by its norm, if the slices along the axes are rows of the output. Returns the norms as an array.
pub(super) fn normalize_rows<'py>(
    pair: &mut Pair<'py>,
    dtype: Dtype,
    axes: &[usize],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = pair.input().object().py();
    let shape = pair.input().shape().to_vec();
    let len = axes.iter().filter_map(|axis| shape.get(*axis)).product();
    if dtype.parts().is_some() || !rows::is_row(len) {
        return Ok(None);
    }
    let split = ReducedAxes::new(pair.input(), axes);
    let bytes = pair.input().len() * dtype.size();
    match_real!(dtype, T => {
        let Some((source, data)) = pair.rows::<T>(&split)? else { return Ok(None) };
        let kept: Vec<_> = split.kept().collect();
        let mut values = vec_with_room(data.len() / len)?;
        values.resize(data.len() / len, Scaled::ZERO);
        // There is memory for the norms before anything is written.
        let norms = Norms::array_with(py, dtype, (&shape, &kept, true), || {
            let to = values.as_mut_slice();
            detached(py, bytes, || rows::normalize_rows(Isa::current(), source.as_ref(), data, len, to))?;
            Ok(Cow::Owned(values))
        })?;
        Ok(Some(norms))
    }, Ok(None))
}

/// The shape of an array of norms for an array of some shape, and its axes in the order of the norms, that of the axes kept.
fn placed(shape: &[usize], kept: &[usize], keepdims: bool) -> (Vec<usize>, Vec<usize>) {
    if keepdims {
        let reduced = (0..shape.len()).filter(|axis| !kept.contains(axis));
        let shape = (0..shape.len()).map(|axis| if kept.contains(&axis) { shape[axis] } else { 1 });
        (shape.collect(), reduced.chain(kept.iter().copied()).collect())
    } else {
        let mut axes = kept.to_vec();
        axes.sort_unstable();
        let place = |kept: &usize| axes.iter().position(|axis| axis == kept).unwrap_or(0);
        (axes.iter().map(|axis| shape[*axis]).collect(), kept.iter().map(place).collect())
    }
}

/// Scales each slice by its own factor; None leaves it as it is.
pub(super) fn scale_slices(
    pair: &mut Pair<'_>,
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
    let dtype = real_dtype(pair)?;
    let shape = pair.input().shape().to_vec();
    let bytes = pair.input().len() * dtype.size();
    let walk = IterOrder::of_pair(pair);
    match_real!(dtype, T => {
        let spread = |factors| Factors(spread(factors, &norms.kept, &shape, &walk));
        let (first, second) = (spread(&steps.0), far.then(|| spread(&steps.1)));
        let mut task = pair.task::<T>(&walk)?;
        Ok(detached(py, bytes, || -> Result<()> {
            let isa = Isa::current();
            apply_elementwise(isa, &first, &mut task)?;
            match second {
                // A power of two, for float64 alone and rare: a pass of its own, in place.
                Some(second) => apply_elementwise(isa, &second, &mut Task { source: None, target: task.target }),
                None => Ok(()),
            }
        })?)
    }, Err(internal("scaling of integers")))
}

/// Scales one array; None copies it, unless it is in place.
pub(super) fn scale_one(py: Python<'_>, pair: &mut Pair<'_>, factor: Option<Factor>) -> PyResult<()> {
    if factor.is_none() && pair.is_in_place() {
        return Ok(());
    }
    let (mut task, bytes) = any_task(pair)?;
    Ok(detached(py, bytes, || scale(Isa::current(), &Crew::new(), slice::from_mut(&mut task), factor))?)
}

/// The dtype of a pair whose complex numbers are taken as real ones from now on.
pub(super) fn real_dtype(pair: &mut Pair<'_>) -> PyResult<Dtype> {
    pair.split_complex();
    pair.input().dtype().ok_or_else(|| internal("a pair of no dtype"))
}

fn any_task<'a>(pair: &'a mut Pair<'_>) -> PyResult<(AnyTask<'a>, usize)> {
    let dtype = real_dtype(pair)?;
    let bytes = pair.input().len() * dtype.size();
    let task = match_real!(dtype, T => pair.whole_task::<T>().map(AnyTask::from), Err(internal("scaling of integers")));
    Ok((task?, bytes))
}

/// Scales arrays by one factor, all of them; None copies those that are not in place.
pub(super) fn scale_list<'a, 'py: 'a>(
    py: Python<'py>,
    pairs: impl Iterator<Item = &'a mut Pair<'py>>,
    factor: Option<Factor>,
) -> PyResult<()> {
    let mut tasks: Vec<AnyTask<'a>> = vec_with_room(pairs.size_hint().0)?;
    let mut bytes = 0;
    for pair in pairs {
        if factor.is_none() && pair.is_in_place() {
            continue;
        }
        let (task, own) = any_task(pair)?;
        bytes += own;
        tasks.try_reserve(1).map_err(Error::from)?;
        tasks.push(task);
    }
    Ok(detached(py, bytes, || scale(Isa::current(), &Crew::new(), tasks.as_mut_slice(), factor))?)
}
