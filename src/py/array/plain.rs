//! Plain arrays, alone and in lists: the fast path that reads and writes them with little overhead.
//!
//! For a call on small tensors, the cost of each tensor outside the kernels counts. Nearly all tensors are exact ndarrays, dense
//! and in native byte order. Each is read into a [`PlainArray`], which is an address and a length. For all other arrays, and for
//! errors, this module returns `None`; then `operands.rs` reads them as [`Array`](super::Array), and raises the errors.
//!
//! Python code that runs between the reading of an array and the use of its memory may resize the array: a method of another
//! argument, or a finalizer, because any new object may start the garbage collector. So arrays are checked again before memory is
//! lent, and no Python object is made from then on.

use std::ffi::c_int;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;

use numpy::npyffi;
use pyo3::prelude::*;
use pyo3::types::PyList;
use smallvec::SmallVec;

use super::super::kinds::Kinds;
use super::super::overlap;
use super::fields::{
    DENSE, ElementType, Fields, descr_of, element_type, exact_fields, len, lies_at, ndarray, new_array, shape,
};
use super::items::Items;
use super::memory::{NewOutputs, with_memory};
use super::order::IterOrder;
use super::{internal, resized};
use crate::element::{Dtype, Element, Ordered, Real, match_dtype};
use crate::error::{Error, Result, vec_with_room};
use crate::isa::Isa;
use crate::kernel::scale::Scale;
use crate::parallel::elementwise::{AnyTask, Task, Tasks};
use crate::parallel::reduce::{EachSum, SHORT, Terms, Views};
use crate::scaled::Factor;
use crate::walk::{Store, Target, View};

/// A list that needs no allocation for one entry. It has inline room for no more, because it is moved.
type Few<T> = SmallVec<[T; 1]>;

fn with_room<T>(len: usize) -> Result<Few<T>> {
    let mut few = Few::new();
    few.try_reserve_exact(len).map_err(|_| Error::Memory)?;
    Ok(few)
}

/// The address of an exact ndarray that is dense, aligned and in native byte order, of a dtype that is not complex.
#[derive(Clone, Copy)]
pub(in crate::py) struct PlainArray {
    /// The array itself, valid as long as a reference is held elsewhere.
    fields: NonNull<Fields>,
    data: NonNull<u8>,
    len: usize,
    flags: c_int,
    dtype: Dtype,
}

impl PlainArray {
    #[inline(always)] // moving the struct costs more than reading the array
    fn of(fields: &Fields) -> Option<Self> {
        let element = element_type(fields);
        let dtype = element.dtype?;
        let plain = fields.flags & DENSE != 0
            && !element.swapped
            && dtype.parts().is_none()
            && fields.data.addr().is_multiple_of(dtype.size());
        let data = NonNull::new(fields.data.cast())?;
        plain.then_some(Self { fields: fields.into(), data, len: len(fields), flags: fields.flags, dtype })
    }

    fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    /// The addresses of the first byte and of the byte after the last.
    fn extent(&self) -> (usize, usize) {
        let low = self.data.addr().get();
        (low, low + self.bytes())
    }

    /// Whether the array takes the elements of an input. With one shape and one memory order, their positions agree.
    ///
    /// # Safety
    /// References to both arrays have been held since they were read.
    unsafe fn takes(&self, input: &Self) -> bool {
        // SAFETY: a live array keeps its fields where they are.
        let has_shape = || unsafe { shape(self.fields.as_ref()) == shape(input.fields.as_ref()) };
        self.flags & npyffi::NPY_ARRAY_WRITEABLE != 0
            && self.len == input.len
            && self.dtype == input.dtype
            && (self.fields == input.fields || self.flags & input.flags & DENSE != 0 && has_shape())
    }

    /// Whether the array still has the address, the length, the memory order and the dtype that were read, and these flags.
    ///
    /// # Safety
    /// A reference to the array has been held since it was read.
    unsafe fn is_current(&self, flags: c_int) -> bool {
        // SAFETY: a live array keeps its fields where they are.
        let fields = unsafe { self.fields.as_ref() };
        lies_at(fields, self.data.as_ptr(), self.len)
            && fields.flags & self.flags & DENSE != 0
            && fields.flags & flags == flags
            && matches!(element_type(fields), ElementType { dtype: Some(dtype), swapped: false, .. } if dtype == self.dtype)
    }

    /// A new array with the shape, the memory order and the dtype of this one. It is one of `outputs`.
    ///
    /// # Safety
    /// A reference to the array has been held since it was read.
    unsafe fn new_like<'py>(&self, py: Python<'py>, outputs: &mut NewOutputs) -> PyResult<Bound<'py, PyAny>> {
        let fortran = self.flags & npyffi::NPY_ARRAY_C_CONTIGUOUS == 0;
        // SAFETY: a live array keeps its fields where they are. There are no strides.
        with_memory(py, outputs, self.bytes(), || unsafe {
            let from = self.fields.as_ref();
            new_array(
                py,
                descr_of(py, element_type(from).number),
                shape(from),
                None,
                ptr::null_mut(),
                fortran,
            )
        })
    }

    /// # Safety
    /// The array is alive, and nothing here writes to it meanwhile.
    unsafe fn elements<'a, T: Element>(&self) -> &'a [T] {
        // SAFETY: a dense array has `len` elements from its data pointer on, aligned for T. The caller promises the rest.
        unsafe { slice::from_raw_parts(self.data.as_ptr().cast::<T>().cast_const(), self.len) }
    }

    /// # Safety
    /// The array is alive and writeable, and nothing else here reads or writes it meanwhile.
    unsafe fn elements_mut<'a, T: Element>(&self) -> &'a mut [T] {
        // SAFETY: as in `elements`; a new array holds some bits, see `new_array`.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr().cast::<T>(), self.len) }
    }
}

/// Outputs that are not all their own inputs; None if they are.
type OwnOutputs<'py> = Option<PlainArrays<'py>>;

/// The plain arrays of a list, without its Nones.
pub(in crate::py) struct PlainArrays<'py> {
    held: Items<'py>,
    arrays: Few<PlainArray>,
}

impl<'py> PlainArrays<'py> {
    /// Reads arrays if all of them are plain and of a dtype of `kinds`. A list may have entries that are None.
    #[inline(always)] // moving the struct costs more than reading one array
    pub(in crate::py) fn read(py: Python<'py>, items: &Items<'py>, kinds: Kinds) -> PyResult<Option<Self>> {
        let class = ndarray(py);
        let held = items.clone();
        let mut arrays = with_room(held.len())?;
        for i in 0..held.len() {
            let item = held.get(i)?;
            let Some(array) = exact_fields(item, class).and_then(PlainArray::of) else {
                if item.is_none() && matches!(held, Items::Many(..)) {
                    continue;
                }
                return Ok(None);
            };
            if !kinds.has(array.dtype) {
                return Ok(None);
            }
            arrays.push(array);
        }
        Ok(Some(Self { held, arrays }))
    }

    /// The elements of all arrays.
    pub(in crate::py) fn elements(&self) -> usize {
        self.arrays.iter().map(|array| array.len).sum()
    }

    /// Whether all arrays are still those that were read, and have these flags.
    fn are_current(&self, flags: c_int) -> bool {
        // SAFETY: `held` are the arrays that were read.
        self.arrays.iter().all(|array| unsafe { array.is_current(flags) })
    }

    /// The arrays as views to read.
    pub(in crate::py) fn views(&self) -> PyResult<PlainViews<'_>> {
        if self.are_current(0) { Ok(PlainViews { arrays: &self.arrays }) } else { Err(resized()) }
    }

    /// The shape of the single array, copied: NumPy frees its own when Python code gives the array another shape.
    pub(in crate::py) fn shape(&self) -> SmallVec<[usize; 4]> {
        match &self.held {
            Items::One(object) => exact_fields(object.as_borrowed(), ndarray(object.py()))
                .map_or_else(SmallVec::new, |fields| SmallVec::from_slice(shape(fields))),
            Items::Many(..) => SmallVec::new(),
        }
    }

    /// The dtype of the first array.
    pub(in crate::py) fn dtype(&self) -> Option<Dtype> {
        Some(self.arrays.first()?.dtype)
    }

    /// The number of elements in each slice along some axes of the single array, if these are the inner axes in memory, so that
    /// the slices follow each other.
    pub(in crate::py) fn row_len(&self, axes: &[usize]) -> Option<usize> {
        let [array] = &self.arrays[..] else { return None };
        let shape = self.shape();
        let (kept, row) = shape.split_at_checked(shape.len().checked_sub(axes.len())?)?;
        let len = row.iter().product::<usize>();
        let are_inner = array.flags & npyffi::NPY_ARRAY_C_CONTIGUOUS != 0
            && axes.iter().all(|axis| *axis >= kept.len())
            && array.len > 0
            && kept.iter().product::<usize>() * len == array.len;
        are_inner.then_some(len)
    }

    /// Outputs for the arrays, and the return value of the call: new arrays if there is no `out`; or else the arrays of `out`, if
    /// they fit and share no memory. An array of `out` may be its own input.
    pub(in crate::py) fn outputs(
        &self,
        py: Python<'py>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<(OwnOutputs<'py>, Bound<'py, PyAny>)>> {
        let Some(out) = out else { return self.new_outputs(py).map(Some) };
        if self.held.is(out) {
            return Ok(if self.take(self)? { Some((None, self.held.to_result()?)) } else { None });
        }
        let held = if self.held.is_list() { Items::of_list(out)? } else { Some(Items::One(out.clone())) };
        let outputs = held.map(|held| Self::read(py, &held, Kinds::Normed)).transpose()?.flatten();
        match outputs {
            Some(outputs) if outputs.have_nones_of(self) && outputs.take(self)? => {
                let result = outputs.held.to_result()?;
                Ok(Some((Some(outputs), result)))
            }
            _ => Ok(None),
        }
    }

    /// New arrays like these, and the return value of a call that fills them.
    fn new_outputs(&self, py: Python<'py>) -> PyResult<(OwnOutputs<'py>, Bound<'py, PyAny>)> {
        let mut arrays = with_room(self.arrays.len())?;
        let mut outputs = NewOutputs::new(self.arrays.iter().map(PlainArray::bytes));
        let mut new_like = |input: &PlainArray| {
            // SAFETY: `held` has the array that was read.
            let new = unsafe { input.new_like(py, &mut outputs)? };
            let array = exact_fields(new.as_borrowed(), ndarray(py)).and_then(PlainArray::of);
            match array.filter(|array| array.len == input.len && array.dtype == input.dtype) {
                Some(array) => arrays.push(array),
                None => return Err(resized()),
            }
            Ok(new)
        };
        let mut inputs = self.arrays.iter();
        if !self.held.is_list() {
            let new = new_like(inputs.next().ok_or_else(not_plain)?)?;
            return Ok((Some(Self { held: Items::One(new.clone()), arrays }), new));
        }
        let made = PyList::empty(py);
        for i in 0..self.held.len() {
            let object = self.held.get(i)?;
            if object.is_none() {
                made.append(object)?;
            } else {
                made.append(new_like(inputs.next().ok_or_else(not_plain)?)?)?;
            }
        }
        let held = Items::Many(made.as_sequence().to_tuple()?, None);
        // Python code that ran meanwhile, such as a finalizer, may have changed the list.
        let mut own = arrays.iter().map(|array: &PlainArray| array.fields);
        for at in 0..held.len() {
            let entry = held.get(at)?;
            if !entry.is_none() && exact_fields(entry, ndarray(py)).map(NonNull::from) != own.next() {
                return Err(resized());
            }
        }
        if own.next().is_some() {
            return Err(resized());
        }
        Ok((Some(Self { held, arrays }), made.into_any()))
    }

    /// Whether none of the arrays shares memory with the bytes from `low` to before `high`.
    pub(in crate::py) fn lie_apart(&self, (low, high): (usize, usize)) -> bool {
        let mut extents = self.arrays.iter().map(PlainArray::extent);
        extents.all(|(begin, end)| high <= begin || end <= low)
    }

    /// Whether this list has as many entries as another one, and Nones in the same places.
    fn have_nones_of(&self, other: &Self) -> bool {
        let is_none = |list: &Self, at| list.held.get(at).is_ok_and(|entry| entry.is_none());
        let (len, count) = (self.held.len(), self.arrays.len());
        len == other.held.len()
            && count == other.arrays.len()
            && (count == len || (0..len).all(|at| is_none(self, at) == is_none(other, at)))
    }

    /// Whether these arrays can be written while the inputs are read.
    fn take(&self, inputs: &Self) -> Result<bool> {
        let (inputs, outputs) = (&inputs.arrays[..], &self.arrays[..]);
        // SAFETY: the arrays that were read are held beside them.
        if !inputs.iter().zip(outputs).all(|(input, output)| unsafe { output.takes(input) }) {
            return Ok(false);
        }
        // For one tensor, the general check would cost a tenth of the call.
        if let ([input], [output]) = (inputs, outputs) {
            let ((low, high), (begin, end)) = (input.extent(), output.extent());
            return Ok(output.len == 0 || output.data == input.data || high <= begin || end <= low);
        }
        let mut extents = vec_with_room(inputs.len() + outputs.len())?;
        extents.extend(outputs.iter().filter(|array| array.len > 0).map(PlainArray::extent));
        let read = inputs.iter().zip(outputs).filter(|(input, output)| input.data != output.data);
        extents.extend(read.map(|(input, _)| input).filter(|array| array.len > 0).map(PlainArray::extent));
        Ok(overlap::extents_are_apart(&mut extents))
    }
}

/// Plain arrays to read. Their memory is written only through `OperandPairs`, which borrow their inputs mutably and lend them
/// only while nothing is written.
#[derive(Clone, Copy)]
pub(in crate::py) struct PlainViews<'a> {
    arrays: &'a [PlainArray],
}

// SAFETY: the memory is only read, and kept alive by `PlainArrays`, which are borrowed for as long.
unsafe impl Send for PlainViews<'_> {}
// SAFETY: as above.
unsafe impl Sync for PlainViews<'_> {}

impl Views for PlainViews<'_> {
    fn count(&self) -> usize {
        self.arrays.len()
    }

    #[inline]
    fn size(&self, at: usize) -> (usize, usize) {
        self.arrays.get(at).map_or((0, 1), |array| (array.len, array.dtype.size()))
    }

    #[inline]
    fn with<R>(&self, at: usize, read: impl FnOnce(&dyn Terms) -> R) -> R {
        let array = &self.arrays[at];
        match_dtype!(any array.dtype, T => {
            // SAFETY: see the struct.
            read(&View::Dense(unsafe { array.elements::<T>() }))
        })
    }

    #[inline(always)]
    fn sum_short(&self, range: Range<usize>, sums: EachSum<'_>) -> usize {
        let arrays = self.arrays.get(range).unwrap_or_default();
        let Some(first) = arrays.first() else { return 0 };
        match_dtype!(any first.dtype, T => {
            let is_taken = |array: &&PlainArray| array.dtype == T::DTYPE && sums.takes::<T>(array.len);
            let count = arrays.iter().take_while(is_taken).count();
            // SAFETY: see the struct.
            sums.add(arrays.iter().take(count).map(|array| unsafe { array.elements::<T>() }));
            count
        })
    }
}

/// Inputs with their outputs. The outputs share no memory, except that an output may be its own input, and have the lengths and
/// dtypes of their inputs. Arrays that are read meanwhile lie apart from them, see `Inputs::with_outputs`.
pub(in crate::py) struct OperandPairs<'a, 'py> {
    inputs: &'a mut PlainArrays<'py>,
    outputs: OwnOutputs<'py>,
    /// The return value of the call. It is made before anything is written, because making it may fail for lack of memory.
    pub(in crate::py) result: Bound<'py, PyAny>,
}

impl<'a, 'py> OperandPairs<'a, 'py> {
    /// Pairs inputs with the outputs that [`PlainArrays::outputs`] has given for them.
    pub(in crate::py) fn new(
        inputs: &'a mut PlainArrays<'py>,
        (outputs, result): (OwnOutputs<'py>, Bound<'py, PyAny>),
    ) -> Self {
        Self { inputs, outputs, result }
    }

    /// The memory to read and to write, for work without Python.
    pub(in crate::py) fn tasks(&mut self) -> PyResult<PlainTasks<'_>> {
        let are_current = match &self.outputs {
            None => self.inputs.are_current(npyffi::NPY_ARRAY_WRITEABLE),
            Some(outputs) => self.inputs.are_current(0) && outputs.are_current(npyffi::NPY_ARRAY_WRITEABLE),
        };
        if !are_current {
            return Err(resized());
        }
        let outputs = &self.outputs.as_ref().unwrap_or(self.inputs).arrays;
        Ok(PlainTasks { inputs: &self.inputs.arrays, outputs })
    }

    /// The order of the axes of the single pair in memory, for the number of axes that the input had when it was read.
    pub(in crate::py) fn walk(&self, ndim: usize) -> IterOrder {
        let in_c_order = |array: &PlainArray| array.flags & npyffi::NPY_ARRAY_C_CONTIGUOUS != 0;
        if self.inputs.arrays.first().is_none_or(in_c_order) {
            IterOrder::along(0..ndim)
        } else {
            IterOrder::along((0..ndim).rev())
        }
    }

    /// The task of the single pair, with elements of T.
    pub(in crate::py) fn task<T: Ordered>(&mut self) -> PyResult<Task<'_, T>> {
        let PlainTasks { inputs, outputs } = self.tasks()?;
        match (inputs, outputs) {
            // SAFETY: the pairs are borrowed mutably.
            ([input], [output]) if input.dtype == T::DTYPE => Ok(unsafe { task(input, output) }),
            _ => Err(not_plain()),
        }
    }
}

/// The memory of plain arrays to write, and to read for it.
pub(in crate::py) struct PlainTasks<'a> {
    inputs: &'a [PlainArray],
    outputs: &'a [PlainArray],
}

// SAFETY: the memory is kept alive by the `OperandPairs`, which are borrowed mutably for as long, and nothing else has it
// meanwhile.
unsafe impl Send for PlainTasks<'_> {}

impl PlainTasks<'_> {
    /// The inputs, for norms. They are read while the tasks are borrowed, so before anything is written.
    pub(in crate::py) fn views(&self) -> PlainViews<'_> {
        PlainViews { arrays: self.inputs }
    }

    /// Whether all outputs are known to be their inputs.
    pub(in crate::py) fn are_in_place(&self) -> bool {
        ptr::eq(self.inputs, self.outputs)
    }

    /// Scales the run of pairs from number `at` on that are short, of T, and in place if and only if the first is; returns
    /// their number.
    fn scale_short<T: Real>(&mut self, isa: Isa, at: usize, scale: Scale) -> usize {
        let (Some(inputs), Some(outputs)) = (self.inputs.get(at..), self.outputs.get(at..)) else { return 0 };
        let pairs = || inputs.iter().zip(outputs);
        let is_in_place = |(input, output): (&PlainArray, &PlainArray)| input.data == output.data;
        let in_place = pairs().next().is_some_and(is_in_place);
        // 16-bit elements have their own path.
        let is_short =
            |array: &PlainArray| size_of::<T>() > 2 && array.dtype == T::DTYPE && array.len <= SHORT;
        let is_like_first = |pair: &(&PlainArray, &PlainArray)| {
            is_short(pair.0) && is_short(pair.1) && is_in_place(*pair) == in_place
        };
        let count = pairs().take_while(is_like_first).count();
        // SAFETY: memory that is borrowed mutably is lent once, and no two outputs share memory, see `task`; nor does an output
        // share memory with an input that is not its own.
        let slices = |(input, output): (&PlainArray, &PlainArray)| unsafe {
            ((!in_place).then(|| input.elements::<T>()), output.elements_mut::<T>())
        };
        scale.apply_each(isa, pairs().take(count).map(slices));
        count
    }
}

impl<'a> Tasks<'a> for PlainTasks<'a> {
    type One = AnyTask<'a>;

    fn count(&self) -> usize {
        self.outputs.len()
    }

    #[inline]
    fn bytes_of(&self, at: usize) -> usize {
        self.outputs.get(at).map_or(0, |output| 2 * output.bytes())
    }

    fn bytes(&self, in_place: bool) -> usize {
        let pairs = self.inputs.iter().zip(self.outputs);
        let moved = pairs.filter(|(input, output)| in_place || input.data != output.data);
        moved.map(|(_, output)| 2 * output.bytes()).sum()
    }

    fn split_off(&mut self, at: usize) -> Self {
        let (inputs, inputs_after) = self.inputs.split_at(at);
        let (outputs, outputs_after) = self.outputs.split_at(at);
        *self = Self { inputs, outputs };
        Self { inputs: inputs_after, outputs: outputs_after }
    }

    fn pop(&mut self) -> Option<AnyTask<'a>> {
        let ((input, inputs), (output, outputs)) = self.inputs.split_last().zip(self.outputs.split_last())?;
        *self = Self { inputs, outputs };
        // SAFETY: the pair has been removed from these tasks.
        match_dtype!(real input.dtype, T => Some(unsafe { task::<T>(input, output) }.into()), None)
    }

    fn run(&mut self, isa: Isa, factor: Option<Factor>, store: Store<'_>) {
        let mut at = 0;
        while let Some((input, output)) = self.inputs.get(at).zip(self.outputs.get(at)) {
            if let (Some(factor), None) = (factor, store) {
                let count =
                    match_dtype!(real input.dtype, T => self.scale_short::<T>(isa, at, Scale(factor)), 0);
                if count > 0 {
                    at += count;
                    continue;
                }
            }
            at += 1;
            // SAFETY: memory that is borrowed mutably is lent to one task at a time.
            match_dtype!(real input.dtype, T => unsafe { task::<T>(input, output) }.scale(isa, factor, store), {});
        }
    }
}

/// The task of a pair.
///
/// # Safety
/// The `OperandPairs` of the pair are borrowed mutably for the task's lifetime, and nothing else takes the pair's memory.
#[inline(always)] // moving the struct costs as much as scaling a few elements
unsafe fn task<'a, T: Ordered>(input: &PlainArray, output: &PlainArray) -> Task<'a, T> {
    // SAFETY: `OperandPairs` have outputs that are writeable and lie apart from one another and from all inputs except, maybe,
    // their own, for which there is no source then. They have the dtypes of their inputs. The caller guarantees that nothing
    // else borrows from them.
    unsafe {
        let source = (input.data != output.data).then(|| View::Dense(input.elements::<T>()));
        Task { source, target: Target::Dense(output.elements_mut::<T>()) }
    }
}

fn not_plain() -> PyErr {
    internal("a plain array that is none")
}
