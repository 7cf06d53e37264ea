//! Overlap of arrays on a GPU, for `gradclip._cuda`.

use std::iter::repeat;

use pyo3::prelude::*;

use super::overlap::{self, Apart, Place};

/// An array: its address, bytes of an element, shape, and strides in bytes.
type Described = (usize, usize, Vec<usize>, Vec<isize>);

/// The numbers of two outputs that share a byte, or twice the number of an output that overlaps itself, if there are any.
type Clash = Option<(usize, usize)>;

fn place((first, itemsize, shape, strides): &Described) -> Place<'_> {
    Place { first: *first, itemsize: *itemsize, shape, strides }
}

/// Keeps the arrays of a call on a GPU apart. Besides a clash, returns the inputs that share memory with an output and must be
/// copied before anything is written. The first inputs belong to the outputs, and an input may be its own output.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what Python's lists become")]
pub(super) fn keep_apart(outputs: Vec<Described>, inputs: Vec<Described>) -> PyResult<(Clash, Vec<usize>)> {
    let outputs: Vec<_> = outputs.iter().map(place).collect();
    let own = outputs.iter().map(Some).chain(repeat(None));
    let inputs = inputs.iter().map(place).zip(own);
    let inputs: Vec<_> =
        inputs.map(|(input, own)| (!own.is_some_and(|own| own.is_same(&input))).then_some(input)).collect();
    match overlap::keep_apart(&outputs, &inputs)? {
        Apart::Never(one, other) => Ok((Some((one, other)), Vec::new())),
        Apart::By { mut copies, .. } => {
            copies.sort_unstable();
            Ok((None, copies))
        }
    }
}
