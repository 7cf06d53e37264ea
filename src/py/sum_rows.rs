//! Sums of rows of a matrix, for sparse tensors.

use pyo3::prelude::*;

use super::array::{Array, internal};
use super::run::{detached, dtype_of};
use crate::element::match_dtype;
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
    let py = rows.py();
    let (rows, _) = Array::read(rows).ok_or_else(|| internal("not an array of rows"))?;
    // A negative number becomes one that is beyond the rows.
    let numbers = |object| {
        let (array, _) = Array::read(object).ok_or_else(|| internal("no array of numbers of rows"))?;
        array.collect(|x: i64| usize::try_from(x).unwrap_or(usize::MAX))
    };
    let (order, bounds) = (numbers(order)?, numbers(bounds)?);
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
        Array::filled::<T>(py, &[groups.len(), *len], &[0, 1], |to| {
            Ok(detached(py, rows.bytes(), || sum_groups(Isa::current(), &slices, &order, &bounds, to))?)
        })
    }, Err(internal("sums of rows that are no floats")))
}
