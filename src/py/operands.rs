//! The tensors of a call and their outputs, as every public function has them: read once, paired once.
//!
//! Plain arrays take a fast path, but only where all other arguments are plain as well, so that no Python code runs between
//! the reading of an array and the use of its memory. All other arrays, and all errors, go by way of [`Array`] and [`Pair`].
//! A function sees neither: it reads [`Inputs`], checks its other arguments, and works on [`Operands`].

use pyo3::prelude::*;
use pyo3::types::PyAny;
use smallvec::SmallVec;

use super::array::items::Items;
use super::array::pair::{Out, Pair, arrange};
use super::array::plain::{OperandPairs, PlainArrays};
use super::array::{Array, internal, objects};
use super::call::{Call, Entry, Tensor};
use super::classes::{any_is_cupy, is_cupy};
use super::kinds::Kinds;
use super::run::{NormOf, clip_plain, norm_of_arrays, norm_of_plain, scale_pairs};
use super::text::describe;
use crate::element::{Dtype, Ordered};
use crate::error::vec_with_room;
use crate::parallel::elementwise::Task;
use crate::parallel::reduce::Order;
use crate::scaled::{Factor, Scaled};

/// What a function takes for a tensor.
#[derive(Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) kinds: Kinds,
    pub(super) takes_slices: bool,
}

impl Parameter {
    fn read<'py>(
        self,
        call: &Call<'_, 'py>,
        at: Option<usize>,
        object: &Bound<'py, PyAny>,
    ) -> PyResult<Tensor<'py>> {
        let argument = Entry(self.name, at);
        if self.takes_slices {
            call.tensor_or_slices(argument, object, self.kinds)
        } else {
            call.tensor(argument, object, self.kinds)
        }
    }

    fn read_all<'py>(
        self,
        call: &Call<'_, 'py>,
        items: &Items<'_, 'py>,
    ) -> PyResult<Result<Vec<Option<Tensor<'py>>>, OnDevice<'py>>> {
        if let Items::One(object) = items {
            if is_cupy(object) {
                return Ok(Err(OnDevice((*object).clone())));
            }
            let mut tensors = vec_with_room(1)?;
            tensors.push(Some(self.read(call, None, object)?));
            return Ok(Ok(tensors));
        }
        let entries = items.to_tuple()?;
        if any_is_cupy(&entries) {
            return Ok(Err(OnDevice(entries.into_any())));
        }
        let mut tensors = vec_with_room(entries.len())?;
        for (i, entry) in entries.iter().enumerate() {
            let tensor = if entry.is_none() { None } else { Some(self.read(call, Some(i), &entry)?) };
            tensors.push(tensor);
        }
        Ok(Ok(tensors))
    }
}

/// A tensor, or the entries of a list as a tuple, that the part of the package for GPUs is to have.
pub(super) struct OnDevice<'py>(pub(super) Bound<'py, PyAny>);

/// The tensors of a call.
pub(super) struct Inputs<'a, 'py> {
    call: &'a Call<'a, 'py>,
    parameter: Parameter,
    items: Items<'a, 'py>,
    tensors: Tensors<'py>,
}

enum Tensors<'py> {
    Plain(PlainArrays<'py>),
    General(Vec<Option<Tensor<'py>>>),
}

impl<'a, 'py> Inputs<'a, 'py> {
    /// Reads tensors. `is_plain` says that to read the other arguments runs no Python code.
    #[inline]
    pub(super) fn read(
        call: &'a Call<'a, 'py>,
        parameter: Parameter,
        items: Items<'a, 'py>,
        is_plain: bool,
    ) -> PyResult<Result<Self, OnDevice<'py>>> {
        let arrays = if is_plain { PlainArrays::read(call.py(), &items, parameter.kinds)? } else { None };
        let tensors = match arrays {
            Some(arrays) => Tensors::Plain(arrays),
            None => match parameter.read_all(call, &items)? {
                Ok(tensors) => Tensors::General(tensors),
                Err(device) => return Ok(Err(device)),
            },
        };
        Ok(Ok(Self { call, parameter, items, tensors }))
    }

    /// The first tensor, unless all are plain.
    fn first(&self) -> Option<&Array<'py>> {
        match &self.tensors {
            Tensors::Plain(_) => None,
            Tensors::General(tensors) => tensors.iter().flatten().map(|tensor| &tensor.array).next(),
        }
    }

    /// The only tensor as an array that any layout may have.
    pub(super) fn array(&self) -> PyResult<&Array<'py>> {
        self.first().ok_or_else(|| internal("a plain array where any is asked for"))
    }

    /// The dtype of the only tensor.
    pub(super) fn dtype(&self) -> PyResult<Dtype> {
        let dtype = match &self.tensors {
            Tensors::Plain(arrays) => arrays.dtype(),
            Tensors::General(_) => self.first().and_then(Array::dtype),
        };
        dtype.ok_or_else(|| internal("a tensor of no dtype"))
    }

    /// The shape of the only tensor.
    pub(super) fn shape(&self) -> SmallVec<[usize; 4]> {
        match &self.tensors {
            Tensors::Plain(arrays) => arrays.shape(),
            Tensors::General(_) => self.first().map_or_else(SmallVec::new, |array| array.shape().into()),
        }
    }

    /// The only tensor's array of the argument.
    pub(super) fn object(&self) -> Option<&Bound<'py, PyAny>> {
        match (&self.tensors, &self.items) {
            (Tensors::Plain(_), Items::One(object)) => Some(object),
            _ => self.first().map(Array::object),
        }
    }

    /// The elements of each slice along some axes, if the only tensor is plain and the slices are rows that follow each other.
    pub(super) fn row_len(&self, axes: &[usize]) -> Option<usize> {
        match &self.tensors {
            Tensors::Plain(arrays) => arrays.row_len(axes),
            Tensors::General(_) => None,
        }
    }

    /// The same tensors, none of them taken as plain.
    pub(super) fn into_general(self) -> PyResult<Self> {
        let Self { call, parameter, items, tensors } = self;
        let tensors = match tensors {
            Tensors::Plain(_) => read_again(call, parameter, &items)?,
            Tensors::General(tensors) => tensors,
        };
        Ok(Self { call, parameter, items, tensors: Tensors::General(tensors) })
    }

    /// The norm of all tensors as one.
    pub(super) fn norm(&self, order: Order) -> PyResult<Scaled> {
        let py = self.call.py();
        match &self.tensors {
            Tensors::Plain(arrays) => norm_of_plain(py, arrays, order),
            Tensors::General(tensors) => {
                norm_of_arrays(py, tensors.iter().flatten().map(|tensor| &tensor.array), order)
            }
        }
    }

    /// Pairs the tensors with their outputs, the caller's or new ones. `readers` are read while outputs are written.
    #[inline]
    pub(super) fn with_outputs(
        self,
        out: Option<&Bound<'py, PyAny>>,
        readers: &mut [&mut Array<'py>],
    ) -> PyResult<Operands<'py>> {
        let Self { call, parameter, items, tensors } = self;
        let tensors = match tensors {
            Tensors::General(tensors) => tensors,
            Tensors::Plain(arrays) => {
                let outs = match (out, &items) {
                    (None, _) => Some(None),
                    (Some(out), Items::One(_)) => Some(Some(Items::One(out))),
                    (Some(out), _) => Items::of_list(out).map(Some),
                };
                let pairs = match outs {
                    Some(outs) => arrays.operand_pairs(call.py(), &items, outs.as_ref())?,
                    None => None,
                };
                match pairs {
                    Some(pairs) => return Ok(Operands::Plain(pairs)),
                    None => read_again(call, parameter, &items)?,
                }
            }
        };
        let is_list = !matches!(items, Items::One(_));
        pair_up(call, tensors, is_list, out, readers)
    }
}

/// Reads plain arrays once more, for what the fast path has no case for.
#[cold]
fn read_again<'py>(
    call: &Call<'_, 'py>,
    parameter: Parameter,
    items: &Items<'_, 'py>,
) -> PyResult<Vec<Option<Tensor<'py>>>> {
    parameter.read_all(call, items)?.map_err(|_| internal("an array that moved to a GPU"))
}

/// Pairs tensors with their outputs one by one, and raises what is wrong with the caller's.
fn pair_up<'py>(
    call: &Call<'_, 'py>,
    tensors: Vec<Option<Tensor<'py>>>,
    is_list: bool,
    out: Option<&Bound<'py, PyAny>>,
    readers: &mut [&mut Array<'py>],
) -> PyResult<Operands<'py>> {
    let py = call.py();
    let outs = if is_list { call.out_sequence(out, tensors.len())? } else { None };
    let argument = |at: usize| Entry("out", is_list.then_some(at));
    let mut pairs = vec_with_room(tensors.len())?;
    let mut entries = vec_with_room(tensors.len())?;
    for (i, tensor) in tensors.into_iter().enumerate() {
        let own = match &outs {
            Some(outs) => Some(outs.get_item(i)?).filter(|own| !own.is_none()),
            None => out.cloned(),
        };
        let Some(tensor) = tensor else {
            if let Some(own) = &own {
                return Err(call.type_error(argument(i), describe(own), "None, as t_list has there"));
            }
            entries.push(None);
            continue;
        };
        let given = match &own {
            Some(own) => call.out(argument(i), own, &tensor)?,
            None if out.is_some() => {
                return Err(call.type_error(argument(i), "None", "an array, as t_list has there"));
            }
            None => Out::New,
        };
        entries.push(Some((tensor.slices, own)));
        pairs.push(Pair::new(tensor.array, given)?);
    }
    if let Some((a, b)) = arrange(&mut pairs, readers)? {
        let place = |pair: usize| {
            let mut present = entries.iter().enumerate().filter(|(_, entry)| entry.is_some());
            argument(present.nth(pair).map_or(0, |(i, _)| i))
        };
        return Err(call.clash(place(a), place(b)));
    }
    // Before anything is written: there may be no memory for it.
    let mut results = vec_with_room(entries.len())?;
    let mut outputs = pairs.iter().map(Pair::object);
    for entry in &entries {
        results.push(match entry {
            None => py.None().into_bound(py),
            Some((slices, out)) => {
                let output = outputs.next().ok_or_else(|| internal("fewer outputs than tensors"))?;
                call.result(output.clone(), slices.as_ref(), out.as_ref())?
            }
        });
    }
    let result = match results.pop() {
        Some(one) if !is_list => one,
        last => {
            results.extend(last);
            objects::list_of(py, results.into_iter())?.into_any()
        }
    };
    Ok(Operands::General { pairs, result })
}

/// The tensors of a call with their outputs.
pub(super) enum Operands<'py> {
    /// All are plain.
    Plain(OperandPairs<'py>),
    /// Any arrays, and what is to be returned once they are written.
    General { pairs: Vec<Pair<'py>>, result: Bound<'py, PyAny> },
}

impl<'py> Operands<'py> {
    /// Clips all by one factor, made of their norm. Returns that norm.
    #[inline]
    pub(super) fn clip(
        &mut self,
        py: Python<'py>,
        norm: NormOf,
        factor: impl FnOnce(Scaled) -> Option<Factor> + Send,
    ) -> PyResult<Scaled> {
        match self {
            Self::Plain(pairs) => clip_plain(py, pairs, norm, factor),
            Self::General { pairs, .. } => {
                let norm = match norm {
                    NormOf::Given(norm) => norm,
                    NormOf::Inputs(order) => norm_of_arrays(py, pairs.iter().map(Pair::input), order)?,
                };
                scale_pairs(py, pairs, factor(norm))?;
                Ok(norm)
            }
        }
    }

    /// The only pair as a task in the order of memory, for elements of T, and its bytes.
    pub(super) fn task<T: Ordered>(&mut self) -> PyResult<(Task<'_, T>, usize)> {
        match self {
            Self::Plain(pairs) => {
                let bytes = pairs.inputs().bytes();
                Ok((pairs.task()?, bytes))
            }
            Self::General { .. } => {
                let pair = self.pair()?;
                let bytes = pair.input().bytes();
                Ok((pair.whole_task()?, bytes))
            }
        }
    }

    /// The only pair, of arrays that any layout may have.
    pub(super) fn pair(&mut self) -> PyResult<&mut Pair<'py>> {
        match self {
            Self::General { pairs, .. } => pairs.first_mut(),
            Self::Plain(_) => None,
        }
        .ok_or_else(|| internal("a plain array where any is asked for"))
    }

    /// What the function returns.
    #[inline]
    pub(super) fn into_result(self) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Plain(pairs) => pairs.into_result(),
            Self::General { result, .. } => Ok(result),
        }
    }
}
