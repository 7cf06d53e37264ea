//! From arguments to the layers below: arrays become views, tasks and norms, and the work is done detached from the
//! interpreter.

use std::borrow::Cow;
use std::{iter, slice};

use pyo3::prelude::*;

use super::array::order::broadcast_values;
use super::array::pair::Pair;
use super::array::{Array, internal};
use crate::element::{Dtype, Element, Real, Scalable, match_dtype};
use crate::error::{Error, vec_with_room};
use crate::isa::Isa;
use crate::kernel::scale_each::FactorKind;
use crate::parallel::Crew;
use crate::parallel::each::{ArrayJob, run_each};
use crate::parallel::elementwise::{AnyTask, Task, apply_elementwise, apply_to_one, is_streamed, scale};
use crate::parallel::reduce::{self, AnyView, Order, Views, norms_into};
use crate::parallel::rows::Rule;
use crate::parallel::{columns, rows, work_of};
use crate::scaled::{Factor, FromNorm, Rounding, Scaled};
use crate::walk::{Broadcast, Factors};

/// The fewest bytes of work for which detaching pays: less work ends before another Python thread would have started.
const DETACH_FROM: usize = 512 << 10;

/// Runs `work` detached from the interpreter: the only way from here into the layers below, for arrays of any size.
///
/// Other Python threads run meanwhile, and may write to the arrays: as with NumPy's own loops, that is the
/// caller's race.
pub(super) fn detached<T: Send>(py: Python<'_>, bytes: usize, work: impl FnOnce() -> T + Send) -> T {
    if bytes < DETACH_FROM { work() } else { py.detach(work) }
}

/// The norm of arrays as one.
pub(super) fn norm_of_arrays<'py: 'a, 'a>(
    py: Python<'py>,
    arrays: impl Iterator<Item = &'a Array<'py>> + Clone,
    order: Order,
) -> PyResult<Scaled> {
    with_views(arrays, order.is_of_squares(), |views| {
        detached(py, views.bytes(), || reduce::norm_of_views(Isa::current(), &Crew::new(), &views, order))
    })
}

/// Calls `work` with the views of arrays. If `splits`, complex arrays are viewed as real ones.
pub(super) fn with_views<'py: 'a, 'a, R>(
    arrays: impl Iterator<Item = &'a Array<'py>> + Clone,
    splits: bool,
    work: impl FnOnce(&[AnyView<'_>]) -> Result<R, Error>,
) -> PyResult<R> {
    let len = arrays.clone().count();
    // These are made only if there are complex arrays: an `Array` is too large to make one for each of many small tensors.
    let mut in_parts = Vec::new();
    if splits && arrays.clone().any(|array| array.dtype().and_then(Dtype::parts).is_some()) {
        in_parts = vec_with_room(len)?;
        in_parts.extend(arrays.clone().map(Array::in_parts));
    }
    let mut views: Vec<AnyView<'_>> = vec_with_room(len)?;
    for (i, array) in arrays.enumerate() {
        let array = in_parts.get(i).and_then(Option::as_ref).unwrap_or(array);
        views.push(match_dtype!(any dtype_of(array)?, T => Box::new(array.view::<T>(&array.walk())?)));
    }
    Ok(work(&views)?)
}

/// The margin of a limit under `strict`, for norms of `len` elements: far more than the rounding of norms, factors and
/// products. Beyond 1e8 elements it grows with `len`.
pub(super) fn margin(strict: bool, len: usize) -> f64 {
    if strict { 1e-13 * (len as f64 / 1e8).max(1.0) } else { 0.0 }
}

/// The norms of slices, in the order of the kept axes, from outer to inner.
pub(super) struct Norms {
    pub(super) values: Vec<Scaled>,
    pub(super) kept: Vec<usize>,
}

impl Norms {
    /// The vector norms of the slices along some axes.
    pub(super) fn of(array: &Array<'_>, reduced: &[usize], order: Order) -> PyResult<Self> {
        let norms = Self::of_each(array.object().py(), iter::once((array, reduced.into())), order)?.pop();
        norms.ok_or_else(|| internal("an array without norms"))
    }

    /// The vector norms of several arrays, each along its own axes.
    pub(super) fn of_each<'py: 'a, 'a>(
        py: Python<'py>,
        arrays: impl Iterator<Item = (&'a Array<'py>, Cow<'a, [usize]>)> + Clone,
        order: Order,
    ) -> PyResult<Vec<Self>> {
        let count = arrays.clone().count();
        let (mut split, mut norms) = (vec_with_room(count)?, vec_with_room(count)?);
        for (array, reduced) in arrays {
            let (parts, reduced) = split_parts(array, reduced, order)?;
            let axes = parts.split(&reduced);
            let kept: Vec<_> = axes.kept().collect();
            let values = zeros(kept.iter().map(|axis| array.shape()[*axis]).product())?;
            norms.push(Self { values, kept });
            split.push((parts, axes));
        }
        let (isa, mut bytes, mut jobs) = (Isa::current(), 0usize, vec_with_room(count)?);
        for ((array, axes), norms) in split.iter().zip(&mut norms) {
            bytes = bytes.saturating_add(array.bytes());
            match_dtype!(any dtype_of(array)?, T => {
                let (slices, values) = (array.slices::<T>(axes)?, norms.values.as_mut_slice());
                let count = values.len();
                let run = move || norms_into(isa, &slices, order, values);
                jobs.push(ArrayJob::new(work_of(array.bytes(), count), run));
            });
        }
        detached(py, bytes, || run_each(jobs))?;
        Ok(norms)
    }

    /// Whether the slices along some axes lie side by side, so that [`Norms::of`] sums all of them at once.
    pub(super) fn are_of_columns(array: &Array<'_>, reduced: &[usize]) -> PyResult<bool> {
        match_dtype!(any dtype_of(array)?, T => Ok(array.slices::<T>(&array.split(reduced))?.are_columns()))
    }

    /// The norms of the matrices along two axes. For order 1, they are the largest sums along the first axis, for order
    /// infinity, the largest sums along the second axis, and for order 2, the largest singular values.
    pub(super) fn of_matrices(
        array: &Array<'_>,
        axes @ [first, second]: [usize; 2],
        order: Order,
    ) -> PyResult<Self> {
        let sums = |axis| Self::of(array, &[axis], Order::One);
        match order {
            Order::One => Ok(sums(first)?.max_over(second, array.shape())?),
            Order::Max => Ok(sums(second)?.max_over(first, array.shape())?),
            _ => {
                let helper = array.object().py().import("gradclip._matrix")?;
                // Other threads run meanwhile, and may give the array another shape: NumPy gets a copy.
                let found =
                    helper.call_method1("pairs_of_singular_values", (array.copy()?.object(), axes))?;
                let kept = (0..array.ndim()).filter(|axis| !axes.contains(axis)).collect();
                Ok(Self { values: norms_in_pairs(&found)?, kept })
            }
        }
    }

    /// The largest norm along one of the kept axes.
    fn max_over(self, axis: usize, shape: &[usize]) -> Result<Self, Error> {
        let at = self.kept.iter().position(|kept| *kept == axis).unwrap_or(0);
        let (outer, inner) = (&self.kept[..at], &self.kept[at + 1..]);
        let count = |axes: &[usize]| axes.iter().filter_map(|axis| shape.get(*axis)).product::<usize>();
        let (inner_len, block_len) = (count(inner), count(inner) * count(&[axis]));
        let mut values = zeros(count(outer) * inner_len)?;
        for (i, norm) in self.values.iter().enumerate() {
            if let Some(largest) = values.get_mut(i / block_len * inner_len + i % inner_len) {
                *largest = largest.max(*norm);
            }
        }
        Ok(Self { values, kept: outer.iter().chain(inner).copied().collect() })
    }

    /// The norms as an array: of float32 for the narrow dtypes of `array`, of float64 for the others.
    pub(super) fn to_array<'py>(&self, array: &Array<'py>, keepdims: bool) -> PyResult<Bound<'py, PyAny>> {
        let (shape, places) = placed(array.shape(), &self.kept, keepdims);
        match_dtype!(real dtype_of(array)?.norms(), N => {
            Array::filled::<N>(array.object().py(), &shape, &places, |to| {
                self.write(to);
                Ok(())
            })
        }, Err(internal("norms that are no floats")))
    }

    /// Writes the norms to an array of them.
    fn write<N: Real>(&self, to: &mut [N]) {
        to.iter_mut().zip(&self.values).for_each(|(to, norm)| *to = N::of(*norm));
    }
}

/// The vector norms of the slices along some axes, as an array of their own dtype.
pub(super) fn norm_array<'py>(
    array: &Array<'py>,
    reduced: &[usize],
    order: Order,
    keepdims: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = array.object().py();
    let (parts, reduced) = split_parts(array, reduced.into(), order)?;
    let axes = parts.split(&reduced);
    let (shape, places) = placed(array.shape(), &axes.kept().collect::<Vec<_>>(), keepdims);
    match_dtype!(any dtype_of(&parts)?, T => {
        let slices = parts.slices::<T>(&axes)?;
        Array::filled::<<T as Element>::Norm>(py, &shape, &places, |norms| {
            Ok(detached(py, parts.bytes(), || norms_into(Isa::current(), &slices, order, norms))?)
        })
    })
}

/// A complex array as a real one, because its norms along these axes are then summed faster, and the axes to reduce. Real arrays
/// stay as they are, and so do all arrays for other orders, and slices that are columns, whose neighbours must lie side by side.
fn split_parts<'a, 'py>(
    array: &'a Array<'py>,
    mut reduced: Cow<'a, [usize]>,
    order: Order,
) -> PyResult<(Cow<'a, Array<'py>>, Cow<'a, [usize]>)> {
    match array.in_parts() {
        Some(parts) if order.is_of_squares() && !Norms::are_of_columns(array, &reduced)? => {
            reduced.to_mut().push(array.ndim());
            Ok((Cow::Owned(parts), reduced))
        }
        _ => Ok((Cow::Borrowed(array), reduced)),
    }
}

/// Norms of 0, still to be computed.
pub(super) fn zeros(count: usize) -> Result<Vec<Scaled>, Error> {
    let mut norms = vec_with_room(count)?;
    norms.resize(count, Scaled::ZERO);
    Ok(norms)
}

/// Scales each slice along some axes by its own norm of order 1, 2 or infinity. Slices that are short rows, or columns of a dense
/// output, are scaled as soon as they are summed. T is the dtype of the input. `norms` gets the norms of the slices, in the order of
/// the kept axes of the input, or is empty.
pub(super) fn scale_by_norms<T: Scalable>(
    pair: &mut Pair<'_>,
    axes: &[usize],
    rule: Rule,
    norms: &mut [T::Norm],
) -> PyResult<()> {
    let whole = pair.input().clone();
    if whole.len() == 0 {
        return Ok(()); // there may be a great many slices
    }
    let (py, isa, bytes, order) = (whole.object().py(), Isa::current(), whole.bytes(), rule.order());
    // Columns are summed in another order than rows. The output must not influence which order is used.
    // Moduli of complex numbers are computed before anything is scaled. Their squares are sums of the squares of the parts.
    let sums_parts = order == Order::Two || whole.dtype().and_then(Dtype::parts).is_none();
    if sums_parts && Norms::are_of_columns(&whole, axes)? {
        // Strips of columns of a dense output are scaled as soon as they are summed.
        if let Some((shape @ [len, _], source, to)) = pair.columns::<T>(&whole.split(axes))?
            && columns::is_column::<T>(whole.len() / len.max(1), shape, order)
        {
            let source = source.as_ref();
            let scale = || columns::scale_columns::<T>(isa, source, to, shape, rule, norms);
            return Ok(detached(py, bytes, scale)?);
        }
    } else if sums_parts && order != Order::Max {
        pair.split_complex();
        let input = pair.input();
        // The parts of a complex number belong to one slice.
        let axes: Vec<_> = axes.iter().copied().chain(whole.ndim()..input.ndim()).collect();
        let (len, split) =
            (axes.iter().filter_map(|axis| input.shape().get(*axis)).product(), input.split(&axes));
        // Short rows are scaled as soon as they are summed.
        if rows::is_row(len, size_of::<T::Part>())
            && let Some(task) = pair.rows::<T::Part>(&split)?
            && rows::takes_output(&task.target, len)
        {
            return Ok(detached(py, bytes, || rows::scale_rows(isa, task, len, rule, norms))?);
        }
    }
    let found = Norms::of(&whole, axes, order)?;
    found.write(norms);
    scale_slices(py, slice::from_mut(pair), &[found], |_, _, norm| rule.factor(norm))
}

/// The numbers of an array of float64 in the order of its axes, and its shape.
pub(super) fn numbers(object: &Bound<'_, PyAny>) -> PyResult<(Vec<f64>, Vec<usize>)> {
    let (array, _) = Array::read(object).ok_or_else(|| internal("not an array of numbers"))?;
    Ok((array.collect(|x: f64| x)?, array.shape().to_vec()))
}

/// The norms in an array of pairs `value, exponent`: `value * 2**exponent`.
pub(super) fn norms_in_pairs(object: &Bound<'_, PyAny>) -> PyResult<Vec<Scaled>> {
    let (numbers, _) = numbers(object)?;
    Ok(numbers.as_chunks().0.iter().map(|[value, exponent]| Scaled::new(*value, *exponent as i32)).collect())
}

/// The shape of the array of norms for an array of some shape, and its axes in memory order, the order of the norms.
pub(super) fn placed(shape: &[usize], kept: &[usize], keepdims: bool) -> (Vec<usize>, Vec<usize>) {
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

/// Scales each slice of each pair by its own factor, which depends on the number of the pair, the number of the slice and the
/// norm of the slice. A slice without a factor stays unchanged. There are norms for each pair, or for all of them.
pub(super) fn scale_slices(
    py: Python<'_>,
    pairs: &mut [Pair<'_>],
    norms: &[Norms],
    factor: impl Fn(usize, usize, Scaled) -> Option<Factor>,
) -> PyResult<()> {
    let written = pairs.iter().filter(|pair| !pair.is_in_place());
    let streams = is_streamed(written.fold(0, |sum, pair| sum.saturating_add(pair.input().bytes())));
    let bytes = pairs.iter().fold(0usize, |sum, pair| sum.saturating_add(pair.input().bytes()));
    let mut factors = vec_with_room(norms.len())?;
    for (i, norms) in norms.iter().enumerate() {
        factors.push(SliceFactors::of(&norms.values, |at, norm| factor(i, at, norm))?);
    }
    let mut jobs = vec_with_room(pairs.len())?;
    for (pair, (norms, factors)) in pairs.iter_mut().zip(norms.iter().zip(&factors).cycle()) {
        jobs.push(scaling(pair, &norms.kept, factors, streams)?);
    }
    Ok(detached(py, bytes, || run_each(jobs))?)
}

/// The factors of the slices of an array.
enum SliceFactors {
    /// One factor for all slices.
    One(Option<Factor>),
    /// One factor for each slice, and the second steps if there are any.
    Each { by: Vec<f64>, then: Option<Vec<f64>>, kind: FactorKind },
}

impl SliceFactors {
    fn of(norms: &[Scaled], factor: impl Fn(usize, Scaled) -> Option<Factor>) -> Result<Self, Error> {
        if let [norm] = *norms {
            return Ok(Self::One(factor(0, norm)));
        }
        let (mut by, mut then) = (vec_with_room(norms.len())?, vec_with_room(norms.len())?);
        let mut kind = FactorKind { is_plain: true, rounding: Rounding::Nearest };
        for (at, norm) in norms.iter().enumerate() {
            let factor = factor(at, *norm).unwrap_or(Factor::ONE);
            if factor.toward_zero() {
                kind.rounding = Rounding::TowardZero;
            }
            kind.is_plain &= factor.by.is_normal() && norm.is_finite();
            by.push(factor.by);
            then.push(factor.then);
        }
        let then = Some(then).filter(|then| then.iter().any(|then| *then != 1.0));
        let is_one = then.is_none() && by.iter().all(|by| *by == 1.0);
        Ok(if is_one { Self::One(None) } else { Self::Each { by, then, kind } })
    }
}

/// The job of scaling each slice of a pair. `kept` are the axes of the factors. All memory is allocated here: a job that fails
/// would leave the arrays of other jobs written.
fn scaling<'a>(
    pair: &'a mut Pair<'_>,
    kept: &[usize],
    factors: &'a SliceFactors,
    streams: bool,
) -> PyResult<ArrayJob<'a>> {
    pair.split_complex();
    let (isa, dtype) = (Isa::current(), dtype_of(pair.input())?);
    let bytes = pair.input().bytes().saturating_mul(2);
    let (by, then, kind) = match factors {
        SliceFactors::Each { by, then, kind } => (by, then, *kind),
        SliceFactors::One(factor) => {
            let mut task = any_task(pair)?;
            return Ok(ArrayJob::new(bytes, move || task.scale(isa, *factor, streams)));
        }
    };
    let (shape, walk) = (pair.input().shape().to_vec(), pair.walk());
    let broadcast = |factors: &'a [f64]| {
        let factors = Broadcast::new(broadcast_values(factors, kept, &shape, &walk))?;
        Ok::<_, Error>(Factors { factors, kind })
    };
    let (by, then) = (broadcast(by)?, then.as_deref().map(broadcast).transpose()?);
    match_dtype!(real dtype, T => {
        let mut task = pair.task::<T>(&walk)?;
        Ok(ArrayJob::new(bytes, move || {
            apply_to_one(isa, &by, &mut task, streams)?;
            match &then {
                // The second step is a power of two. It is rare and only for float64, so a separate pass applies it in place.
                Some(then) => apply_elementwise(isa, then, &mut Task { source: None, target: task.target }),
                None => Ok(()),
            }
        }))
    }, Err(internal("scaling of integers")))
}

pub(super) fn dtype_of(array: &Array<'_>) -> PyResult<Dtype> {
    array.dtype().ok_or_else(|| internal("an array of no dtype"))
}

fn any_task<'a>(pair: &'a mut Pair<'_>) -> PyResult<AnyTask<'a>> {
    pair.split_complex();
    match_dtype!(real dtype_of(pair.input())?, T => pair.whole_task::<T>().map(AnyTask::from), Err(internal("scaling of integers")))
}

/// Scales all arrays by one factor. Without a factor, arrays that are not in place are copied. Integers are copied.
pub(super) fn scale_pairs(py: Python<'_>, pairs: &mut [Pair<'_>], factor: Option<Factor>) -> PyResult<()> {
    let mut tasks: Vec<AnyTask<'_>> = vec_with_room(pairs.len())?;
    let mut bytes = 0usize;
    for pair in pairs.iter_mut() {
        if !pair.input().is_scalable() {
            pair.copy()?;
        } else if factor.is_some() || !pair.is_in_place() {
            bytes = bytes.saturating_add(pair.input().bytes());
            tasks.push(any_task(pair)?);
        }
    }
    Ok(detached(py, bytes, || scale(Isa::current(), &Crew::new(), tasks.as_mut_slice(), factor))?)
}
