//! The tensors of a call and their outputs, for all public functions: read once, paired once.
//!
//! Plain arrays take a fast path. Other arrays, and all errors, take the general path by [`Array`] and [`Pair`]. A function sees
//! neither: it reads [`Inputs`], checks its other arguments, and works on [`Operands`].

use std::{iter, mem};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;
use smallvec::SmallVec;

use super::array::items::Items;
use super::array::order::IterOrder;
use super::array::pair::{Pair, arrange};
use super::array::plain::{OperandPairs, PlainArrays};
use super::array::{Array, internal, resized};
use super::call::{Call, Entry, Tensor};
use super::classes::{is_cupy, is_dask};
use super::kinds::Kinds;
use super::run::{detached, norm_of_arrays, scale_pairs};
use crate::element::{Dtype, Ordered};
use crate::error::{Error, vec_with_room};
use crate::isa::Isa;
use crate::parallel::Crew;
use crate::parallel::elementwise::{Task, Tasks, scale};
use crate::parallel::reduce::{self, Order, Views};
use crate::scaled::{Limit, Scaled};

/// The tensor parameter of a function: its name and the objects that it accepts.
#[derive(Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) kinds: Kinds,
    pub(super) takes_slices: bool,
    /// Whether integers in a list do not count and stay unchanged.
    pub(super) keeps_integers: bool,
    pub(super) parts: Parts,
}

/// The implementations that a function has besides the one for NumPy arrays.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    /// None: arrays on a GPU are an error, and NumPy converts dask arrays.
    Numpy,
    /// An implementation for arrays on a GPU.
    Gpu,
    /// Implementations for arrays on a GPU and for dask arrays.
    GpuAndDask,
}

impl Parameter {
    /// A parameter of a function that supports only NumPy arrays. Integers count, if it accepts them.
    pub(super) const fn new(name: &'static str, kinds: Kinds, takes_slices: bool) -> Self {
        Self { name, kinds, takes_slices, keeps_integers: false, parts: Parts::Numpy }
    }

    /// The parameter, for a function that has these implementations.
    pub(super) const fn with(self, parts: Parts) -> Self {
        Self { parts, ..self }
    }

    /// The dtypes that an array of any layout may have.
    pub(super) fn allowed(self) -> Kinds {
        if self.keeps_integers { Kinds::Normed } else { self.kinds }
    }

    /// Whether a tensor does not count and stays unchanged.
    fn keeps(self, array: &Array<'_>) -> bool {
        self.keeps_integers && !array.is_scalable()
    }
}

/// A tensor, or the entries of a list as a tuple, to be handed on to another part of the package.
pub(super) struct OnDevice<'py> {
    pub(super) entries: Bound<'py, PyAny>,
    /// Whether the first entry that is not a NumPy array is a dask array. Otherwise it is an array on a GPU.
    pub(super) is_lazy: bool,
}

/// The tensors of a call.
pub(super) struct Inputs<'a, 'py> {
    call: &'a Call<'a, 'py>,
    parameter: Parameter,
    /// The Python objects of the tensors.
    pub(super) items: Items<'py>,
    tensors: Tensors<'py>,
}

enum Tensors<'py> {
    Plain(PlainArrays<'py>),
    /// One for each item.
    General(Vec<Option<Tensor<'py>>>),
}

impl<'a, 'py> Inputs<'a, 'py> {
    /// The tensors of an argument, not read yet.
    #[inline]
    pub(super) fn new(call: &'a Call<'a, 'py>, parameter: Parameter, items: Items<'py>) -> Self {
        Self { call, parameter, items, tensors: Tensors::General(Vec::new()) }
    }

    /// Reads the tensors, unless they are arrays on a GPU or lazy, which are returned.
    #[inline]
    pub(super) fn read(&mut self) -> PyResult<Option<OnDevice<'py>>> {
        let kinds = if self.parameter.keeps_integers { Kinds::Scalable } else { self.parameter.kinds };
        // Axes are checked against the shape of a single tensor, which Python code may change afterwards. Only general arrays
        // keep a copy of the shape.
        if (self.call.is_plain || self.items.is_list())
            && let Some(arrays) = PlainArrays::read(self.call.py, &self.items, kinds)?
        {
            self.tensors = Tensors::Plain(arrays);
            return Ok(None);
        }
        self.read_general()
    }

    /// Reads the tensors as arrays of any layout, and raises the errors; see [`Inputs::read`].
    #[cold]
    #[inline(never)]
    pub(super) fn read_general(&mut self) -> PyResult<Option<OnDevice<'py>>> {
        let Parameter { name, takes_slices, parts, .. } = self.parameter;
        let argument = |at: usize| Entry(name, self.items.is_list().then_some(at));
        for i in 0..self.items.len() {
            let entry = self.items.get(i)?;
            let is_lazy = parts == Parts::GpuAndDask && is_dask(&entry);
            if is_lazy || parts != Parts::Numpy && is_cupy(&entry) {
                return Ok(Some(OnDevice { entries: self.items.clone().into_any(), is_lazy }));
            }
        }
        let mut tensors = vec_with_room(self.items.len())?;
        for i in 0..self.items.len() {
            let entry = self.items.get(i)?;
            tensors.push(if self.items.is_list() && entry.is_none() {
                None
            } else {
                Some(self.call.tensor(argument(i), &entry, self.parameter.allowed(), takes_slices)?)
            });
        }
        self.tensors = Tensors::General(tensors);
        Ok(None)
    }

    /// The single tensor as an array of any layout.
    pub(super) fn array(&self) -> PyResult<&Array<'py>> {
        match &self.tensors {
            Tensors::General(tensors) => Ok(&tensors.iter().flatten().next().ok_or_else(not_one)?.array),
            Tensors::Plain(_) => Err(not_one()),
        }
    }

    /// The dtype of the single tensor.
    pub(super) fn dtype(&self) -> PyResult<Dtype> {
        match &self.tensors {
            Tensors::Plain(arrays) => arrays.dtype().ok_or_else(not_one),
            Tensors::General(_) => self.array()?.dtype().ok_or_else(not_one),
        }
    }

    /// The shape of the single tensor.
    pub(super) fn shape(&self) -> PyResult<SmallVec<[usize; 4]>> {
        match &self.tensors {
            Tensors::Plain(arrays) => Ok(arrays.shape()),
            Tensors::General(_) => Ok(self.array()?.shape().into()),
        }
    }

    /// The single tensor as a Python object.
    pub(super) fn object(&self) -> PyResult<&Bound<'py, PyAny>> {
        match (&self.tensors, &self.items) {
            (Tensors::Plain(_), Items::One(object)) => Ok(object),
            _ => Ok(self.array()?.object()),
        }
    }

    /// The number of elements of each slice along some axes, if the single tensor is plain and the slices are contiguous rows.
    pub(super) fn row_len(&self, axes: &[usize]) -> Option<usize> {
        match &self.tensors {
            Tensors::Plain(arrays) => arrays.row_len(axes),
            Tensors::General(_) => None,
        }
    }

    /// Reads plain arrays again as general ones, for cases that the fast path does not handle.
    pub(super) fn make_general(&mut self) -> PyResult<()> {
        if matches!(self.tensors, Tensors::Plain(_)) && self.read_general()?.is_some() {
            return Err(internal("an array that moved to a GPU"));
        }
        Ok(())
    }

    /// The norm of all tensors as one.
    #[inline]
    pub(super) fn norm(&self, order: Order) -> PyResult<Scaled> {
        let py = self.call.py;
        match &self.tensors {
            Tensors::Plain(arrays) => {
                let views = arrays.views()?;
                let norm = || reduce::norm_of_views(Isa::current(), &Crew::new(), &views, order);
                Ok(detached(py, views.bytes(), norm)?)
            }
            Tensors::General(_) => norm_of_arrays(py, self.counted(), order),
        }
    }

    /// The norm of each tensor.
    pub(super) fn norms(&self, order: Order) -> PyResult<Vec<Scaled>> {
        let py = self.call.py;
        match &self.tensors {
            Tensors::Plain(arrays) => {
                let views = arrays.views()?;
                let norms = || reduce::norms_of_views(Isa::current(), &Crew::new(), &views, order);
                Ok(detached(py, views.bytes(), norms)?)
            }
            Tensors::General(_) => {
                let mut norms = vec_with_room(self.items.len())?;
                for (_, array) in self.arrays() {
                    norms.push(norm_of_arrays(py, iter::once(array), order)?);
                }
                Ok(norms)
            }
        }
    }

    /// The number of elements of all tensors, without the elements of integers that do not count.
    pub(super) fn elements(&self) -> usize {
        match &self.tensors {
            Tensors::Plain(arrays) => arrays.elements(),
            Tensors::General(_) => self.counted().map(Array::len).fold(0, usize::saturating_add),
        }
    }

    /// The tensors that are not plain, with their numbers in the list.
    pub(super) fn arrays(&self) -> impl Iterator<Item = (usize, &Array<'py>)> + Clone {
        let tensors: &[_] = if let Tensors::General(tensors) = &self.tensors { tensors } else { &[] };
        tensors.iter().enumerate().filter_map(|(i, tensor)| Some((i, &tensor.as_ref()?.array)))
    }

    /// [`Inputs::arrays`] without the integers that do not count.
    pub(super) fn counted(&self) -> impl Iterator<Item = &Array<'py>> + Clone {
        self.arrays().map(|(_, array)| array).filter(|array| !self.parameter.keeps(array))
    }

    /// [`Inputs::arrays`], to be replaced by others.
    pub(super) fn arrays_mut(&mut self) -> impl Iterator<Item = &mut Array<'py>> {
        let tensors: &mut [_] =
            if let Tensors::General(tensors) = &mut self.tensors { tensors } else { &mut [] };
        tensors.iter_mut().flatten().map(|tensor| &mut tensor.array)
    }

    /// Pairs the tensors with outputs, the caller's or new ones. `readers` are arrays that are read while outputs are written.
    pub(super) fn with_outputs(
        &mut self,
        out: Option<&Bound<'py, PyAny>>,
        readers: &mut [&mut Array<'py>],
    ) -> PyResult<Operands<'_, 'py>> {
        let outputs = match &self.tensors {
            Tensors::Plain(arrays) => {
                let mut extents = readers.iter().map(|reader| reader.place().extent());
                let outputs = arrays.outputs(self.call.py, out)?;
                outputs
                    .filter(|(own, _)| extents.all(|extent| own.as_ref().unwrap_or(arrays).lie_apart(extent)))
            }
            Tensors::General(_) => None,
        };
        if outputs.is_none() {
            self.make_general()?;
        }
        match (&mut self.tensors, outputs) {
            (Tensors::Plain(inputs), Some(outputs)) => {
                Ok(Operands::Plain(OperandPairs::new(inputs, outputs)))
            }
            (Tensors::General(tensors), _) => {
                pair_up(self.call, &self.items, mem::take(tensors), out, readers)
            }
            (Tensors::Plain(_), None) => Err(not_one()),
        }
    }
}

/// Pairs tensors of any layout with their outputs, and raises the errors of the caller's outputs.
#[cold]
#[inline(never)]
fn pair_up<'o, 'py>(
    call: &Call<'_, 'py>,
    items: &Items<'py>,
    tensors: Vec<Option<Tensor<'py>>>,
    out: Option<&Bound<'py, PyAny>>,
    readers: &mut [&mut Array<'py>],
) -> PyResult<Operands<'o, 'py>> {
    let py = call.py;
    let is_list = items.is_list();
    let outs = match out {
        Some(out) if !is_list => Some(Items::One(out.clone())),
        Some(out) => {
            let allowed = "None or a sequence of arrays";
            Some(Items::Many(call.sequence_of("out", out, tensors.len(), allowed)?, None))
        }
        None => None,
    };
    let argument = |at: usize| Entry("out", is_list.then_some(at));
    let mut pairs = vec_with_room(tensors.len())?;
    // Allocated before anything is written, because it may fail for lack of memory.
    let results = PyList::empty(py);
    for (i, tensor) in tensors.into_iter().enumerate() {
        let own = outs.as_ref().map(|outs| outs.get(i)).transpose()?.filter(|own| !own.is_none());
        let Some(tensor) = tensor else {
            if let Some(own) = &own {
                return Err(
                    call.error("wrong_type", (argument(i).to_string(), &**own, "None, as t_list has there"))
                );
            }
            results.append(py.None())?;
            continue;
        };
        let given = own.as_ref().map(|own| call.out(argument(i), own, &tensor)).transpose()?;
        let pair = Pair::new(tensor.array, given)?;
        let new = pair.object();
        results.append(match (&own, &tensor.slices) {
            (Some(own), _) => (**own).clone(),
            (None, None) => new.clone(),
            (None, Some(slices)) => slices.call_method1(intern!(py, "_with_values"), (new,))?,
        })?;
        pairs.push(pair);
    }
    if outs.is_some()
        && let Some((a, b)) = arrange(&mut pairs, readers)?
    {
        let place = |pair| {
            let mut entries = (0..items.len()).filter(|i| items.get(*i).is_ok_and(|entry| !entry.is_none()));
            argument(entries.nth(pair).unwrap_or(0)).to_string()
        };
        return Err(call.error("clash_error", (place(a), place(b))));
    }
    let result = if is_list { results.into_any() } else { results.get_item(0)? };
    Ok(Operands::General { pairs, result })
}

fn not_one() -> PyErr {
    internal("not one tensor of any layout")
}

/// The tensors of a call with their outputs.
pub(super) enum Operands<'a, 'py> {
    /// All are plain.
    Plain(OperandPairs<'a, 'py>),
    /// Any arrays, and what is to be returned once they are written.
    General { pairs: Vec<Pair<'py>>, result: Bound<'py, PyAny> },
}

impl<'py> Operands<'_, 'py> {
    /// Scales all tensors by the factor of their norm, unless the limit refuses the norm. The norm is `given`, or it has the order
    /// `order`. Integers stay unchanged. Returns the norm.
    #[inline(always)]
    pub(super) fn clip(
        &mut self,
        py: Python<'py>,
        given: Option<Scaled>,
        order: Order,
        limit: Limit,
    ) -> PyResult<Scaled> {
        match self {
            Self::Plain(pairs) => {
                let tasks = pairs.tasks()?;
                // Both passes run detached, so that there is no wait for other Python threads between them.
                Ok(detached(py, tasks.bytes(true) / 2, || {
                    let (isa, crew) = (Isa::current(), Crew::new());
                    let norm = match given {
                        Some(norm) => norm,
                        None => reduce::norm_of_views(isa, &crew, &tasks.views(), order)?,
                    };
                    if !limit.refuses(norm) {
                        let factor = limit.factor(norm);
                        if factor.is_some() || !tasks.are_in_place() {
                            scale(isa, &crew, tasks, factor)?;
                        }
                    }
                    Ok::<_, Error>(norm)
                })?)
            }
            Self::General { pairs, .. } => {
                let norm = if let Some(norm) = given {
                    norm
                } else {
                    let inputs = pairs.iter().map(Pair::input);
                    norm_of_arrays(py, inputs.filter(|array| array.is_scalable()), order)?
                };
                if !limit.refuses(norm) {
                    scale_pairs(py, pairs, limit.factor(norm))?;
                }
                Ok(norm)
            }
        }
    }

    /// The order in which to iterate the single pair, whose input had this shape when it was read.
    pub(super) fn walk(&mut self, shape: &[usize]) -> PyResult<IterOrder> {
        if let Self::Plain(pairs) = self {
            return Ok(pairs.walk(shape.len()));
        }
        let pair = self.pair()?;
        if pair.input().shape() == shape { Ok(pair.walk()) } else { Err(resized()) }
    }

    /// The single pair as a task with elements of T, in the order that [`Operands::walk`] returned, or without one in that of memory.
    pub(super) fn task<T: Ordered>(&mut self, walk: Option<&IterOrder>) -> PyResult<Task<'_, T>> {
        match (self, walk) {
            (Self::Plain(pairs), _) => pairs.task(),
            (general, Some(walk)) => general.pair()?.task(walk),
            (general, None) => general.pair()?.whole_task(),
        }
    }

    /// The pairs, of arrays of any layout.
    pub(super) fn pairs(&mut self) -> PyResult<&mut [Pair<'py>]> {
        match self {
            Self::General { pairs, .. } => Ok(pairs),
            Self::Plain(_) => Err(not_one()),
        }
    }

    /// The single pair, of arrays of any layout.
    pub(super) fn pair(&mut self) -> PyResult<&mut Pair<'py>> {
        self.pairs()?.first_mut().ok_or_else(not_one)
    }

    /// The return value of the function.
    #[inline(always)]
    pub(super) fn into_result(self) -> Bound<'py, PyAny> {
        match self {
            Self::Plain(pairs) => pairs.result,
            Self::General { result, .. } => result,
        }
    }
}
