//! Sums of rows of a matrix, for sparse tensors.

use pyo3::prelude::*;
use pyo3::types::PyAny;

use super::array::order::IterOrder;
use super::array::{Array, internal};
use super::run::{detached, dtype_of};
use crate::element::match_dtype;
use crate::error::vec_with_room;
use crate::isa::{FloatDefaults, Isa};
use crate::parallel::examples::sum_groups;

/// The sums of groups of rows of a matrix of real floats. Group `i` has the rows `order[bounds[i]:bounds[i + 1]]`, which are added
/// in this order, in float64. Each sum is rounded once.
#[pyfunction]
pub(super) fn sum_rows<'py>(
    rows: &Bound<'py, PyAny>,
    order: &Bound<'py, PyAny>,
    bounds: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let _control = FloatDefaults::set();
    let (rows, _) = Array::read(rows).ok_or_else(|| internal("not an array of rows"))?;
    let (order, bounds) = (numbers_of_rows(order)?, numbers_of_rows(bounds)?);
    let ([count, len], [groups @ .., _]) = (rows.shape(), bounds.as_slice()) else {
        return Err(internal("rows that are no matrix, or no bounds"));
    };
    let are_valid = order.iter().all(|row| row < count)
        && bounds.is_sorted()
        && bounds.last().is_some_and(|last| *last <= order.len());
    if !are_valid {
        return Err(internal("numbers beyond the rows"));
    }
    match_dtype!(real dtype_of(&rows)?, T => {
        let slices = rows.slices::<T>(&rows.split(&[1]))?;
        rows.filled_like::<T>(&[groups.len(), *len], |to| {
            Ok(detached(rows.object().py(), rows.bytes(), || sum_groups(Isa::current(), &slices, &order, &bounds, to))?)
        })
    }, Err(internal("sums of rows that are no floats")))
}

/// The elements of an array of int64.
fn numbers_of_rows(object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let (array, _) = Array::read(object).ok_or_else(|| internal("no array of numbers of rows"))?;
    let mut numbers = vec_with_room(array.len())?;
    let view = array.view::<i64>(&IterOrder::along(0..array.ndim()))?;
    // A negative number becomes one that is beyond the rows.
    view.for_blocks(0..view.len(), |block| {
        numbers.extend(block.iter().map(|x| usize::try_from(*x).unwrap_or(usize::MAX)));
    });
    Ok(numbers)
}
