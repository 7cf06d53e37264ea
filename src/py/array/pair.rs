//! Inputs with their outputs. They lend memory to write, after [`arrange`] has kept the arrays of a call apart.

use std::borrow::Cow;
use std::slice;
use std::sync::atomic::AtomicU8;

use pyo3::prelude::*;

use super::super::overlap::{self, Apart};
use super::Array;
use super::order::{IterOrder, ReducedAxes};
use crate::element::{Ordered, Scalable};
use crate::error::vec_with_room;
use crate::parallel::elementwise::Task;
use crate::walk::{Cells, Target, View};

/// An input and its output.
pub(in crate::py) struct Pair<'py> {
    input: Array<'py>,
    /// A copy to read while the output is written, if the input shares memory with an output.
    copy: Option<Array<'py>>,
    /// None: in place.
    output: Option<Array<'py>>,
    /// Whether another output lies interleaved with this one.
    interleaved: bool,
}

impl<'py> Pair<'py> {
    /// Pairs an input with the caller's output, which has its shape and dtype and is writeable, or a new one. See [`arrange`].
    pub(in crate::py) fn new(input: Array<'py>, out: Option<Array<'py>>) -> PyResult<Self> {
        let (input, output) = match out {
            // The input may be a read-only view of the memory.
            Some(out) if out.same_memory(&input) => (out, None),
            Some(out) => (input, Some(out)),
            None => {
                let output = input.new_like()?;
                (input, Some(output))
            }
        };
        Ok(Self { input, copy: None, output, interleaved: false })
    }

    /// Treats complex arrays as real ones from now on, with one more axis. Norms of the complex numbers must be computed
    /// before.
    pub(in crate::py) fn split_complex(&mut self) {
        for array in [Some(&mut self.input), self.copy.as_mut(), self.output.as_mut()].into_iter().flatten() {
            if let Some(parts) = array.in_parts() {
                *array = parts;
            }
        }
    }

    /// The input, for norms before anything is written.
    pub(in crate::py) fn input(&self) -> &Array<'py> {
        &self.input
    }

    /// The array that is read while the output is written.
    fn source(&self) -> &Array<'py> {
        self.copy.as_ref().unwrap_or(&self.input)
    }

    fn output(&self) -> &Array<'py> {
        self.output.as_ref().unwrap_or(&self.input)
    }

    /// The output as a Python object; it may not be written yet.
    pub(in crate::py) fn object(&self) -> &Bound<'py, PyAny> {
        &self.output().object
    }

    pub(in crate::py) fn is_in_place(&self) -> bool {
        self.output.is_none()
    }

    /// Copies the input to the output, for dtypes that are not scaled.
    pub(in crate::py) fn copy(&mut self) -> PyResult<()> {
        self.output.as_ref().map_or(Ok(()), |output| self.source().copy_into(output))
    }

    /// Copies another array to the output.
    pub(in crate::py) fn copy_from(&mut self, other: &Array<'py>) -> PyResult<()> {
        other.copy_into(self.output())
    }

    /// The order in which to iterate both arrays.
    pub(in crate::py) fn walk(&self) -> IterOrder {
        match &self.output {
            None => self.input.walk(),
            Some(output) => IterOrder::of_pair(&self.input.geometry, &output.geometry),
        }
    }

    /// The elements to read and to write, in the order of `walk`.
    pub(in crate::py) fn task<T: Ordered>(&mut self, walk: &IterOrder) -> PyResult<Task<'_, T>> {
        let source = if self.is_in_place() { None } else { Some(self.source().view(walk)?) };
        Ok(Task { source, target: self.target(walk)? })
    }

    /// The elements to read and to write, in the order of memory.
    pub(in crate::py) fn whole_task<T: Ordered>(&mut self) -> PyResult<Task<'_, T>> {
        let walk = self.walk();
        self.task(&walk)
    }

    /// The elements to read and to write, slice by slice. None if a slice cannot be written as soon as its own norm is known.
    pub(in crate::py) fn rows<T: Ordered>(&mut self, split: &ReducedAxes) -> PyResult<Option<Task<'_, T>>> {
        if self.copy.is_some() { Ok(None) } else { self.task(&split.rows()).map(Some) }
    }

    /// The slices as columns of dense matrices: see [`Columns`]. None unless the output has such matrices. Complex arrays are treated
    /// as real ones from then on, as by [`Pair::split_complex`].
    pub(in crate::py) fn columns<T: Scalable>(
        &mut self,
        split: &ReducedAxes,
    ) -> PyResult<Option<Columns<'_, T::Part>>> {
        let Some(shape) = self.output().slices::<T>(split)?.block() else { return Ok(None) };
        self.split_complex();
        match self.whole_task()? {
            Task { source, target: Target::Dense(output) } => Ok(Some((shape, source, output))),
            Task { .. } => Ok(None),
        }
    }

    /// The memory of the output, in the order of `walk`. The caller has borrowed the pair mutably.
    fn target<T: Ordered>(&self, walk: &IterOrder) -> PyResult<Target<'_, T>> {
        let output = self.output();
        output.check_to_write::<T>()?;
        let size = size_of::<T>();
        let (aligned, swapped) =
            (output.is_aligned::<T>() && output.is_aligned::<T::Cell>(), output.element.swapped);
        let unit = if aligned { size.cast_signed() } else { 1 };
        let (layout, shift) = walk.layout(output.shape(), output.strides(), unit);
        if layout.is_empty() {
            return Ok(Target::Dense(&mut []));
        }
        let (low, high) = output.place().extent();
        let first = (output.data.addr() - low).cast_signed();
        let base = output.data.wrapping_offset(-first);
        if layout.is_contiguous(size.cast_signed() / unit) && !self.interleaved {
            let from = output.data.wrapping_offset(shift * unit);
            if aligned && !swapped {
                // SAFETY: the layout covers the array's `len` elements one after the other from `from` on,
                // aligned, in memory that `object` keeps alive and that holds some bits, see `new_array`. The array is
                // writeable, `arrange` has seen that no other output and no input that is still to be read lies in it, and
                // the pair that lends it is borrowed mutably.
                return Ok(Target::Dense(unsafe { slice::from_raw_parts_mut(from.cast(), layout.len()) }));
            }
            // SAFETY: as above; bytes have no alignment.
            let bytes = unsafe { slice::from_raw_parts_mut(from, layout.len() * size) };
            return Ok(Target::Bytes { bytes, swapped });
        }
        let len = layout.len();
        let (cells, start) = if aligned {
            // SAFETY: the extent lies within memory that `object` keeps alive, aligned for the cell type,
            // which has T's size. Other outputs may lie interleaved in it; all of those are lent as atomics,
            // as this one is.
            let cells =
                unsafe { slice::from_raw_parts(base.cast::<T::Cell>().cast_const(), (high - low) / size) };
            (Cells::Elements(cells), first / size.cast_signed())
        } else {
            // SAFETY: as above, byte by byte.
            let bytes = unsafe { slice::from_raw_parts(base.cast::<AtomicU8>().cast_const(), high - low) };
            (Cells::Bytes(bytes), first)
        };
        Ok(Target::Strided {
            cells,
            swapped,
            start: start + shift,
            layout: Cow::Owned(layout),
            range: 0..len,
        })
    }
}

/// The numbers of rows and of columns of dense matrices, the parts of elements to read, unless they are those to write, and the
/// parts of the output, both matrix by matrix and row by row.
pub(in crate::py) type Columns<'a, T> = ([usize; 2], Option<View<'a, T>>, &'a mut [T]);

/// Keeps inputs and outputs apart; must be called before any memory is written, unless all outputs are new. An input may share
/// memory with an output only if it is its own output. Any other input that shares memory is copied for the time of writing, and
/// so is such a reader.
///
/// Returns the numbers of two outputs that share a byte, or twice the number of an output that overlaps itself: they cannot be
/// written.
pub(in crate::py) fn arrange<'py>(
    pairs: &mut [Pair<'py>],
    readers: &mut [&mut Array<'py>],
) -> PyResult<Option<(usize, usize)>> {
    let mut outputs = vec_with_room(pairs.len())?;
    outputs.extend(pairs.iter().map(|pair| pair.output().place()));
    let mut inputs = vec_with_room(pairs.len() + readers.len())?;
    inputs.extend(pairs.iter().map(|pair| (!pair.is_in_place()).then(|| pair.input.place())));
    inputs.extend(readers.iter().map(|reader| Some(reader.place())));
    let (copies, interleaved) = match overlap::keep_apart(&outputs, &inputs)? {
        Apart::Never(a, b) => return Ok(Some((a, b))),
        Apart::By { copies, interleaved } => (copies, interleaved),
    };
    for i in interleaved {
        pairs[i].interleaved = true;
    }
    for i in copies {
        match i.checked_sub(pairs.len()) {
            None => pairs[i].copy = Some(pairs[i].input.copy()?),
            Some(i) => *readers[i] = readers[i].copy()?,
        }
    }
    Ok(None)
}
