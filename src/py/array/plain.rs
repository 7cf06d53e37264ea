//! Plain arrays, alone and in lists, read and written with little more than the work itself.
//!
//! A call on small tensors costs what each of them costs beside the kernels: an [`Array`](super::Array) with its
//! shape, a [`Pair`](super::pair::Pair), a walk. Nearly all of them are exact ndarrays, dense and native, so these are read
//! into a [`PlainArray`] each, which is an address and a length. Whatever is not so simple, or is wrong, is no case for this
//! module: where it says `None`, `operands.rs` reads the arrays as any others, and raises the errors.
//!
//! Python code that runs between the reading of an array and the use of its memory may resize the array. The callers
//! know that all other arguments are plain, but any new object may set off the garbage collector, and with it a
//! finalizer: so it is looked at again before memory is lent, and no Python object is made from then on.

use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::c_int;
use std::iter;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

use numpy::npyffi;
use pyo3::ffi::PyTypeObject;
use pyo3::prelude::*;
use pyo3::types::PyAny;
use smallvec::SmallVec;

use super::super::kinds::Kinds;
use super::super::overlap;
use super::fields::{
    DENSE, Fields, element_type, exact_fields, len, lies_at, ndarray, new_dense, shape, strides,
};
use super::items::{Held, Items};
use super::objects::{self, OwnList};
use super::pair::Rows;
use super::{internal, resized, with_memory};
use crate::element::{Dtype, Element, Ordered, Real, match_element, match_real};
use crate::error::{Error, Result, vec_with_room};
use crate::isa::Isa;
use crate::kernel::scale::Scale;
use crate::parallel::elementwise::{AnyTask, Task, Tasks};
use crate::parallel::reduce::{AnyView, SHORT, ShortSums, Views};
use crate::scaled::Factor;
use crate::walk::{Axis, Cells, Layout, Memory, Slices, Store, Target, View};

/// A list without an allocation if it has one entry. It has room for no more, as it is moved about.
type Few<T> = SmallVec<[T; 1]>;

/// An exact ndarray, aligned and native, of a dtype that is not complex, which is dense or has one axis: where it lies.
#[derive(Clone, Copy)]
pub(in crate::py) struct PlainArray {
    /// The array itself, for as long as somebody holds it.
    fields: NonNull<Fields>,
    data: NonNull<u8>,
    len: usize,
    /// From one element to the next, in elements; 1 for a dense one.
    step: usize,
    flags: c_int,
    dtype: Dtype,
}

/// Neighbours in a list from which on it is a gain to do them in one call, or row by row.
const FEWEST: usize = 8;

/// How many there are, or 0 if they are fewer than that.
fn at_least_fewest<T>(neighbours: impl Iterator<Item = T>) -> usize {
    let count = neighbours.count();
    if count < FEWEST { 0 } else { count }
}

/// The step of an array that is not dense, if it has one axis and goes forwards.
fn step_of(fields: &Fields, dtype: Dtype) -> Option<usize> {
    let [stride] = strides(fields) else { return None };
    let stride = usize::try_from(*stride).ok()?;
    (stride > 0 && stride.is_multiple_of(dtype.size())).then(|| stride / dtype.size())
}

impl PlainArray {
    #[inline(always)] // a struct that is moved costs more than the reading
    fn of(fields: &Fields) -> Option<Self> {
        let element = element_type(fields);
        let dtype = element.dtype?;
        let plain =
            !element.swapped && dtype.parts().is_none() && fields.data.addr().is_multiple_of(dtype.size());
        let data = NonNull::new(fields.data.cast())?;
        let (len, flags) = (len(fields), fields.flags);
        let step = if flags & DENSE != 0 { 1 } else { step_of(fields, dtype)? };
        plain.then_some(Self { fields: fields.into(), data, len, step, flags, dtype })
    }

    fn is_dense(&self) -> bool {
        self.step == 1
    }

    /// The elements from the first to the last, with those between that are not the array's.
    fn span(&self) -> usize {
        if self.is_dense() { self.len } else { self.len.saturating_sub(1) * self.step + 1 }
    }

    fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    /// The addresses of the first byte and of the one after the last.
    fn extent(&self) -> (usize, usize) {
        let low = self.data.addr().get();
        (low, low + self.span() * self.dtype.size())
    }

    /// Whether it is still what was read of the array.
    ///
    /// # Safety
    /// Somebody has held the array since it was read.
    unsafe fn is_current(&self) -> bool {
        // SAFETY: a live array keeps its fields where they are.
        let fields = unsafe { self.fields.as_ref() };
        lies_at(fields, self.data.as_ptr(), self.len)
            && (self.is_dense() || step_of(fields, self.dtype) == Some(self.step))
    }

    /// A new array with the shape, the memory order and the dtype of this one, whose fields are given.
    fn new_like<'py>(&self, py: Python<'py>, from: &Fields) -> PyResult<Bound<'py, PyAny>> {
        let fortran = self.flags & npyffi::NPY_ARRAY_C_CONTIGUOUS == 0;
        // SAFETY: there are no strides.
        with_memory(py, self.bytes(), || unsafe {
            new_dense(py, element_type(from).number, shape(from), None, fortran)
        })
    }

    /// # Safety
    /// The array is alive, and nothing here writes to it meanwhile.
    unsafe fn elements<'a, T: Element>(&self) -> &'a [T] {
        // SAFETY: `span` elements lie from the array's data pointer on, aligned for T. The caller promises the rest.
        unsafe { slice::from_raw_parts(self.data.as_ptr().cast::<T>().cast_const(), self.span()) }
    }

    /// The elements of a dense one.
    ///
    /// # Safety
    /// The array is alive, dense and writeable, and nothing else here reads or writes it meanwhile.
    unsafe fn elements_mut<'a, T: Element>(&self) -> &'a mut [T] {
        // SAFETY: as in `elements`; a new array holds some bits, see `new_dense`.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr().cast::<T>(), self.len) }
    }

    /// Whether it is dense, of elements of T.
    fn is_dense_of<T: Element>(&self) -> bool {
        self.dtype == T::DTYPE && self.is_dense()
    }

    /// Where the elements lie that [`PlainArray::elements`] gives.
    fn layout<'a>(&self) -> Cow<'a, Layout> {
        Cow::Owned(Layout::new([Axis { len: self.len, stride: self.step.cast_signed() }]))
    }

    /// # Safety
    /// As of [`PlainArray::elements`].
    unsafe fn view<'a, T: Element>(&self) -> View<'a, T> {
        // SAFETY: the caller says so.
        let elements = unsafe { self.elements() };
        if self.is_dense() { View::Dense(elements) } else { self.strided(elements) }
    }

    fn strided<'a, T>(&self, elements: &'a [T]) -> View<'a, T> {
        View::Strided { memory: Memory::Elements(elements), start: 0, layout: self.layout() }
    }

    /// # Safety
    /// The array is alive and writeable, and nothing else here reads or writes its elements meanwhile.
    unsafe fn target<'a, T: Ordered>(&self) -> Target<'a, T> {
        // SAFETY: as in `elements`. The extent of an output, with the elements between its own, overlaps no other output's
        // and no input's but its own: `Outputs::are_apart` has compared the extents. An atomic cell has the size of T, to
        // which an array here is aligned.
        unsafe {
            if self.is_dense() {
                return Target::Dense(self.elements_mut::<T>());
            }
            let cells = slice::from_raw_parts(self.data.as_ptr().cast::<T::Cell>().cast_const(), self.span());
            let range = 0..self.len;
            Target::Strided { cells: Cells::Elements(cells), start: 0, layout: self.layout(), range }
        }
    }
}

/// The plain arrays of a list, without its Nones.
pub(in crate::py) struct PlainArrays<'py> {
    held: Held<'py>,
    arrays: Few<PlainArray>,
    bytes: usize,
    kinds: Kinds,
    /// The flags that all have.
    flags: c_int,
    /// Whether they lie one behind the other in memory.
    in_order: bool,
    /// Whether they have one dtype.
    alike: bool,
    /// Whether nothing can have changed since they were read: no Python object was made, and no other thread ran. For one
    /// alone, which costs nothing to be looked at again, it is not known.
    is_fresh: Cell<bool>,
}

impl<'py> PlainArrays<'py> {
    /// Reads arrays, if they are plain ones of the kinds; in a list there may be None.
    pub(in crate::py) fn read(
        py: Python<'py>,
        items: &Items<'_, 'py>,
        kinds: Kinds,
    ) -> PyResult<Option<Self>> {
        let class = ndarray(py);
        let held = items.held()?;
        let list = match &held {
            Held::Many(list) => list,
            Held::One(object) => {
                let array = exact_fields(object.as_borrowed(), class).and_then(PlainArray::of);
                let Some(array) = array else {
                    return Ok((items.is_list() && object.is_none()).then(|| Self::of_one(held, None, kinds)));
                };
                let is_plain = kinds.has(array.dtype) && (items.is_list() || array.is_dense());
                return Ok(is_plain.then(|| Self::of_one(held, Some(array), kinds)));
            }
        };
        let mut arrays = vec_with_room(list.len())?;
        let (mut bytes, mut end) = (0, 0);
        let (mut flags, mut in_order, mut alike) = (c_int::MAX, true, true);
        let mut before = None;
        for i in 0..list.len() {
            let item = list.get(i)?;
            let Some(array) = exact_fields(item, class).and_then(PlainArray::of) else {
                if item.is_none() {
                    continue;
                }
                return Ok(None);
            };
            if !kinds.has(array.dtype) {
                return Ok(None);
            }
            bytes += array.bytes();
            let (low, high) = array.extent();
            in_order &= low >= end;
            end = high;
            flags &= array.flags;
            alike &= before.is_none_or(|dtype| dtype == array.dtype);
            before = Some(array.dtype);
            arrays.push(array);
        }
        let (arrays, is_fresh) = (Few::from_vec(arrays), Cell::new(true));
        Ok(Some(Self { held, arrays, bytes, kinds, flags, in_order, alike, is_fresh }))
    }

    /// One entry, which may be None in a list.
    #[inline(always)]
    fn of_one(held: Held<'py>, array: Option<PlainArray>, kinds: Kinds) -> Self {
        let (bytes, flags) = array.as_ref().map_or((0, c_int::MAX), |array| (array.bytes(), array.flags));
        let (arrays, is_fresh) = (array.into_iter().collect(), Cell::new(false));
        Self { held, arrays, bytes, kinds, flags, in_order: true, alike: true, is_fresh }
    }

    /// The bytes of all of them.
    pub(in crate::py) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the memory of all arrays is still what was read of them.
    fn are_current(&self) -> bool {
        // SAFETY: `held` are the arrays that were read.
        self.arrays.iter().all(|array| unsafe { array.is_current() })
    }

    /// What to read.
    pub(in crate::py) fn views(&self) -> PyResult<PlainViews<'_>> {
        if self.is_fresh.replace(false) || self.are_current() {
            Ok(PlainViews { arrays: &self.arrays, bytes: self.bytes, alike: self.alike })
        } else {
            Err(resized())
        }
    }

    /// The shape of the only one, copied: NumPy frees its own when Python code gives the array another shape.
    pub(in crate::py) fn shape(&self) -> SmallVec<[usize; 4]> {
        match &self.held {
            Held::One(object) => exact_fields(object.as_borrowed(), ndarray(object.py()))
                .map_or_else(SmallVec::new, |fields| SmallVec::from_slice(shape(fields))),
            Held::Many(_) => SmallVec::new(),
        }
    }

    /// The number of axes of the only one.
    pub(in crate::py) fn ndim(&self) -> usize {
        match &self.held {
            Held::One(object) => exact_fields(object.as_borrowed(), ndarray(object.py()))
                .map_or(0, |fields| shape(fields).len()),
            Held::Many(_) => 0,
        }
    }

    /// The number of elements of the only one.
    pub(in crate::py) fn len(&self) -> usize {
        self.arrays.first().map_or(0, |array| array.len)
    }

    /// The dtype of the first one.
    pub(in crate::py) fn dtype(&self) -> Option<Dtype> {
        Some(self.arrays.first()?.dtype)
    }

    /// Of the only one: the number of elements in each slice along some axes, if these are the inner ones in memory,
    /// so that the slices follow each other.
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

    /// Outputs for the arrays: `outs`, which may be the arrays themselves, if they fit and share no memory otherwise; new
    /// arrays where there are no `outs`. `items` are what was read.
    pub(in crate::py) fn outputs(
        &mut self,
        py: Python<'py>,
        items: &Items<'_, 'py>,
        outs: Option<&Items<'_, 'py>>,
    ) -> PyResult<Option<Outputs<'py>>> {
        let class = ndarray(py);
        let was_fresh = self.is_fresh.replace(false);
        let outputs = match outs {
            None => return self.new_outputs(py, items.is_list(), class).map(Some),
            Some(outs) if outs.is(items) && self.holds_for_result(outs)? => {
                self.is_fresh.set(was_fresh);
                (self.flags & npyffi::NPY_ARRAY_WRITEABLE != 0).then_some(Outputs::Inputs)
            }
            Some(outs) => self.given_outputs(outs, class)?,
        };
        match outputs {
            Some(outputs) if outputs.are_apart(self)? => Ok(Some(outputs)),
            _ => Ok(None),
        }
    }

    /// Makes what is held the result: whether it could be done.
    fn holds_for_result(&mut self, outs: &Items<'_, 'py>) -> PyResult<bool> {
        let Held::One(entry) = &self.held else { return Ok(true) };
        let held = outs.held_for_result()?;
        let same = held.len() == 1 && held.get(0)?.is(entry);
        if same {
            self.held = held;
        }
        Ok(same)
    }

    fn new_outputs(
        &self,
        py: Python<'py>,
        is_list: bool,
        class: *mut PyTypeObject,
    ) -> PyResult<Outputs<'py>> {
        let wrong = not_plain;
        let make = |input: &PlainArray, object: Borrowed<'_, 'py, PyAny>| {
            let new = input.new_like(py, exact_fields(object, class).ok_or_else(wrong)?)?;
            let array = exact_fields(new.as_borrowed(), class).and_then(PlainArray::of).ok_or_else(wrong)?;
            if array.len != input.len || array.dtype != input.dtype {
                return Err(resized());
            }
            Ok((new, array))
        };
        let mut inputs = self.arrays.iter();
        let (held, arrays) = if is_list && self.held.len() != 1 {
            let list = OwnList::new(py, self.held.len())?;
            let mut arrays = vec_with_room(self.arrays.len())?;
            for i in 0..self.held.len() {
                let object = self.held.get(i)?;
                if object.is_none() {
                    list.set(i, object.to_owned())?;
                } else {
                    let (new, array) = make(inputs.next().ok_or_else(wrong)?, object)?;
                    arrays.push(array);
                    list.set(i, new)?;
                }
            }
            (Held::Many(list), Few::from_vec(arrays))
        } else {
            // The list of one is made at the end: until then nothing of the caller's is written.
            let object = self.held.get(0)?;
            if object.is_none() {
                (Held::One(object.to_owned()), Few::new())
            } else {
                let (new, array) = make(inputs.next().ok_or_else(wrong)?, object)?;
                (Held::One(new), Few::from_buf([array]))
            }
        };
        Ok(Outputs::Others { held, arrays })
    }

    /// The caller's arrays, if each is one for its input, as far as the two are concerned: of one shape and one order of
    /// memory their positions agree.
    fn given_outputs(
        &self,
        outs: &Items<'_, 'py>,
        class: *mut PyTypeObject,
    ) -> PyResult<Option<Outputs<'py>>> {
        let held = outs.held_for_result()?;
        if held.len() != self.held.len() {
            return Ok(None);
        }
        let mut arrays = Few::new();
        arrays.try_reserve_exact(self.arrays.len()).map_err(|_| Error::Memory)?;
        let mut inputs = self.arrays.iter();
        for i in 0..held.len() {
            let (object, out) = (self.held.get(i)?, held.get(i)?);
            let Some(from) = exact_fields(object, class) else {
                if !out.is_none() {
                    return Ok(None);
                }
                continue;
            };
            let Some(input) = inputs.next() else { return Ok(None) };
            let Some((to, output)) = exact_fields(out, class).and_then(|to| Some((to, PlainArray::of(to)?)))
            else {
                return Ok(None);
            };
            let takes = output.flags & npyffi::NPY_ARRAY_WRITEABLE != 0
                && output.len == input.len
                && output.dtype == input.dtype
                && (out.is(object) || (output.flags & input.flags & DENSE != 0 && shape(to) == shape(from)));
            if !takes {
                return Ok(None);
            }
            arrays.push(output);
        }
        Ok(Some(Outputs::Others { held, arrays }))
    }
}

/// What to read of plain arrays. The memory is written by way of `OperandPairs` alone, which borrow their inputs mutably
/// and lend them only while nothing is written.
#[derive(Clone, Copy)]
pub(in crate::py) struct PlainViews<'a> {
    arrays: &'a [PlainArray],
    bytes: usize,
    alike: bool,
}

// SAFETY: the memory is only read, and kept alive by `PlainArrays`, which are borrowed for as long.
unsafe impl Send for PlainViews<'_> {}
// SAFETY: as above.
unsafe impl Sync for PlainViews<'_> {}

impl Views for PlainViews<'_> {
    fn len(&self) -> usize {
        self.arrays.len()
    }

    #[inline]
    fn size(&self, at: usize) -> (usize, usize) {
        self.arrays.get(at).map_or((0, 1), |array| (array.len, array.dtype.size()))
    }

    #[inline]
    fn with<R>(&self, at: usize, read: impl FnOnce(&AnyView<'_>) -> R) -> R {
        let array = &self.arrays[at];
        match_element!(array.dtype, T => {
            // SAFETY: see the struct.
            let elements = unsafe { array.elements::<T>() };
            // Two calls, of which the compiler makes two ways: the first has nothing to be dropped.
            if array.is_dense() {
                read(&View::Dense(elements).into())
            } else {
                read(&array.strided(elements).into())
            }
        })
    }

    fn bytes_alike(&self) -> Option<usize> {
        self.alike.then_some(self.bytes)
    }

    #[inline(always)]
    fn sum_short(&self, range: Range<usize>, sums: impl ShortSums) -> usize {
        let Some(arrays) = self.arrays.get(range).filter(|arrays| arrays.len() >= FEWEST) else { return 0 };
        let Some(first) = arrays.first() else { return 0 };
        match_element!(first.dtype, T => {
            let is_taken = |array: &&PlainArray| array.is_dense_of::<T>() && sums.takes::<T>(array.len);
            let count = at_least_fewest(arrays.iter().take_while(is_taken));
            if count > 0 {
                // SAFETY: see the struct.
                sums.add(arrays.iter().take(count).map(|array| unsafe { array.elements::<T>() }));
            }
            count
        })
    }
}

/// Where the outputs of plain arrays are. They share no memory but where an output is its input, and have as many elements as
/// their inputs, and the same dtype.
pub(in crate::py) enum Outputs<'py> {
    /// Each is its input.
    Inputs,
    /// As many as inputs.
    Others { held: Held<'py>, arrays: Few<PlainArray> },
}

impl Outputs<'_> {
    fn are_apart(&self, inputs: &PlainArrays<'_>) -> Result<bool> {
        let (outputs, in_place) = match self {
            // Most lists lie in the order in which they were made, and nothing need be sorted.
            Self::Inputs if inputs.in_order => return Ok(true),
            Self::Inputs => (&inputs.arrays, true),
            Self::Others { arrays, .. } => (arrays, false),
        };
        // For one tensor a list of extents would cost more than the rest of the call.
        if let ([input], [output]) = (inputs.arrays.as_slice(), outputs.as_slice()) {
            let ((low, high), (begin, end)) = (input.extent(), output.extent());
            return Ok(output.len == 0 || output.data == input.data || high <= begin || end <= low);
        }
        let extent = |array: &PlainArray| (array.len > 0).then(|| array.extent());
        let written = outputs.iter().filter_map(extent);
        let others = if in_place { 0 } else { outputs.len() };
        let pairs = inputs.arrays.iter().zip(outputs).take(others);
        let read = pairs.filter(|(input, output)| input.data != output.data);
        overlap::extents_are_apart(written.chain(read.filter_map(|(input, _)| extent(input))))
    }
}

/// Inputs with their outputs.
pub(in crate::py) struct OperandPairs<'a, 'py> {
    inputs: &'a mut PlainArrays<'py>,
    outputs: Outputs<'py>,
}

impl<'a, 'py> OperandPairs<'a, 'py> {
    /// Pairs inputs with the outputs that [`PlainArrays::outputs`] has given for them.
    pub(in crate::py) fn new(inputs: &'a mut PlainArrays<'py>, outputs: Outputs<'py>) -> Self {
        Self { inputs, outputs }
    }

    fn outputs(&self) -> &[PlainArray] {
        match &self.outputs {
            Outputs::Inputs => &self.inputs.arrays,
            Outputs::Others { arrays, .. } => arrays,
        }
    }

    fn pairs(&self) -> impl ExactSizeIterator<Item = (&PlainArray, &PlainArray)> + Clone {
        self.inputs.arrays.iter().zip(self.outputs())
    }

    fn are_current(&self) -> bool {
        let outputs = match &self.outputs {
            Outputs::Inputs => true,
            // SAFETY: what is held beside them are the arrays that were read.
            Outputs::Others { arrays, .. } => arrays.iter().all(|array| unsafe { array.is_current() }),
        };
        outputs && self.inputs.are_current()
    }

    /// What norms are made of, before anything is written.
    pub(in crate::py) fn inputs(&self) -> &PlainArrays<'py> {
        self.inputs
    }

    /// Whether all outputs are known to be their inputs.
    fn are_in_place(&self) -> bool {
        matches!(self.outputs, Outputs::Inputs)
    }

    /// What to read and to write, for work without Python.
    pub(in crate::py) fn pairs_to_clip(&mut self) -> PyResult<PlainPairs<'_>> {
        if !self.are_current() {
            return Err(resized());
        }
        if self.inputs.kinds != Kinds::Scalable {
            return Err(not_plain());
        }
        let PlainArrays { arrays, bytes, alike, .. } = &*self.inputs;
        let views = PlainViews { arrays, bytes: *bytes, alike: *alike };
        Ok(PlainPairs { views, outputs: self.outputs(), in_place: self.are_in_place() })
    }

    /// The task of the only pair, of elements of T.
    pub(in crate::py) fn task<T: Ordered>(&mut self) -> PyResult<Task<'_, T>> {
        if !self.are_current() {
            return Err(resized());
        }
        match self.pairs().next() {
            // SAFETY: the pairs are borrowed mutably.
            Some((input, output)) if input.dtype == T::DTYPE => Ok(unsafe { task(input, output) }),
            _ => Err(not_plain()),
        }
    }

    /// The same as slices of `len` elements, for which see [`PlainArrays::row_len`].
    pub(in crate::py) fn rows<T: Ordered>(&mut self, len: usize) -> PyResult<Rows<'_, T>> {
        let Task { source, target: Target::Dense(rows) } = self.task::<T>()? else { return Err(not_plain()) };
        let along = |axis| Layout::new([axis]);
        let source = match source {
            None => None,
            Some(View::Dense(elements)) => Some(Slices::new(
                Memory::Elements(elements),
                0,
                along(Axis { len: elements.len() / len.max(1), stride: len.cast_signed() }),
                along(Axis { len, stride: 1 }),
            )),
            Some(View::Strided { .. }) => return Err(not_plain()),
        };
        Ok((source, rows))
    }

    /// The only output, or those of a list in a list. If they are the caller's there is a list before they are written, so
    /// that this needs no memory.
    pub(in crate::py) fn into_result(self, is_list: bool) -> PyResult<Bound<'py, PyAny>> {
        let held = match &self.outputs {
            Outputs::Inputs => &self.inputs.held,
            Outputs::Others { held, .. } => held,
        };
        match held {
            Held::Many(list) => Ok(list.give().into_any()),
            Held::One(object) if is_list => {
                Ok(objects::list_of(object.py(), iter::once(object.clone()))?.into_any())
            }
            Held::One(object) => Ok(object.clone()),
        }
    }
}

/// Inputs and outputs of one call: first its norm reads the inputs, then the outputs are written.
pub(in crate::py) struct PlainPairs<'a> {
    views: PlainViews<'a>,
    outputs: &'a [PlainArray],
    in_place: bool,
}

// SAFETY: as of `PlainViews` and `PlainTasks`.
unsafe impl Send for PlainPairs<'_> {}

impl PlainPairs<'_> {
    /// What norms are made of. They are read while the pairs are borrowed, so before anything is written.
    pub(in crate::py) fn views(&self) -> PlainViews<'_> {
        self.views
    }

    /// What to write, and what to read for it.
    pub(in crate::py) fn tasks(&mut self) -> PlainTasks<'_> {
        let PlainViews { arrays: inputs, bytes, .. } = self.views;
        PlainTasks { inputs, outputs: self.outputs, in_place: self.in_place.then_some(bytes) }
    }

    /// Whether all outputs are known to be their inputs.
    pub(in crate::py) fn are_in_place(&self) -> bool {
        self.in_place
    }
}

/// What to write of plain arrays, and what to read for it.
pub(in crate::py) struct PlainTasks<'a> {
    inputs: &'a [PlainArray],
    outputs: &'a [PlainArray],
    /// The bytes of all, if all are known to be in place.
    in_place: Option<usize>,
}

// SAFETY: the memory is kept alive by the `OperandPairs` that are borrowed mutably for as long, and it is nobody else's
// meanwhile.
unsafe impl Send for PlainTasks<'_> {}

impl<'a> PlainTasks<'a> {
    fn pairs(&self) -> impl ExactSizeIterator<Item = (&'a PlainArray, &'a PlainArray)> {
        self.inputs.iter().zip(self.outputs)
    }

    /// Scales the pairs from number `at` on that are short ones of elements of T like the first, in place or not; how many.
    fn scale_short<T: Real>(&mut self, isa: Isa, at: usize, scale: Scale) -> usize {
        let (Some(inputs), Some(outputs)) = (self.inputs.get(at..), self.outputs.get(at..)) else { return 0 };
        if outputs.len() < FEWEST {
            return 0;
        }
        let pairs = || inputs.iter().zip(outputs);
        let is_in_place = |(input, output): &(&PlainArray, &PlainArray)| input.data == output.data;
        let in_place = pairs().next().is_some_and(|pair| is_in_place(&pair));
        // Elements of 16 bits have a way of their own.
        let is_short =
            |array: &PlainArray| size_of::<T>() > 2 && array.is_dense_of::<T>() && array.len <= SHORT;
        let is_like_first = |pair: &(&PlainArray, &PlainArray)| {
            is_short(pair.0) && is_short(pair.1) && is_in_place(pair) == in_place
        };
        let count = at_least_fewest(pairs().take_while(is_like_first));
        let pairs = pairs().take(count);
        if in_place {
            // SAFETY: what is borrowed mutably is lent once, and no two outputs share memory, see `task`.
            scale.apply_to_each(isa, pairs.map(|(_, output)| unsafe { output.elements_mut::<T>() }));
        } else {
            // SAFETY: as above, nor does an output share memory with an input that is not its own.
            let slices = |(input, output): (&PlainArray, &PlainArray)| unsafe {
                (input.elements::<T>(), output.elements_mut::<T>())
            };
            scale.apply_into_each(isa, pairs.map(slices));
        }
        count
    }
}

impl<'a> Tasks<'a> for PlainTasks<'a> {
    type One = AnyTask<'a>;

    fn len(&self) -> usize {
        self.outputs.len()
    }

    #[inline]
    fn bytes_of(&self, at: usize) -> usize {
        self.outputs.get(at).map_or(0, |output| 2 * output.bytes())
    }

    fn bytes(&self, in_place: bool) -> usize {
        if let (true, Some(bytes)) = (in_place, self.in_place) {
            return 2 * bytes;
        }
        let moved = self.pairs().filter(|(input, output)| in_place || input.data != output.data);
        moved.map(|(_, output)| 2 * output.bytes()).sum()
    }

    fn split_off(&mut self, at: usize) -> Self {
        let (inputs, inputs_after) = self.inputs.split_at(at);
        let (outputs, outputs_after) = self.outputs.split_at(at);
        *self = Self { inputs, outputs, in_place: None };
        Self { inputs: inputs_after, outputs: outputs_after, in_place: None }
    }

    fn pop(&mut self) -> Option<AnyTask<'a>> {
        let ((input, inputs), (output, outputs)) = self.inputs.split_last().zip(self.outputs.split_last())?;
        *self = Self { inputs, outputs, in_place: None };
        // SAFETY: the pair is no longer one of these.
        match_real!(input.dtype, T => Some(unsafe { task::<T>(input, output) }.into()), None)
    }

    fn run(&mut self, isa: Isa, factor: Option<Factor>, store: Store<'_>) {
        let mut at = 0;
        while let Some((input, output)) = self.inputs.get(at).zip(self.outputs.get(at)) {
            if let (Some(factor), Store::Cached) = (factor, store) {
                let count = match_real!(input.dtype, T => self.scale_short::<T>(isa, at, Scale(factor)), 0);
                if count > 0 {
                    at += count;
                    continue;
                }
            }
            at += 1;
            match_real!(input.dtype, T => {
                // SAFETY: what is borrowed mutably is lent to one task at a time.
                unsafe {
                    if input.is_dense() && output.is_dense() {
                        dense_task::<T>(input, output).scale(isa, factor, store);
                    } else {
                        task::<T>(input, output).scale(isa, factor, store);
                    }
                }
            }, {});
        }
    }
}

/// What to do for a pair.
///
/// # Safety
/// The pairs of the pair are borrowed mutably for the task's lifetime, and nobody else takes the pair's.
unsafe fn task<'a, T: Ordered>(input: &PlainArray, output: &PlainArray) -> Task<'a, T> {
    // SAFETY: `OperandPairs` are made of outputs that are writeable and lie apart from one another and from all inputs but,
    // maybe, their own, for which there is no source then. They have the dtypes of their inputs. Nobody else
    // borrows from them, says the caller.
    unsafe {
        let source = (input.data != output.data).then(|| input.view::<T>());
        Task { source, target: output.target::<T>() }
    }
}

/// The same of dense ones, of which the compiler makes a way without anything to be dropped.
///
/// # Safety
/// As of [`task`].
#[inline(always)]
unsafe fn dense_task<'a, T: Ordered>(input: &PlainArray, output: &PlainArray) -> Task<'a, T> {
    // SAFETY: as in `task`.
    unsafe {
        let source = (input.data != output.data).then(|| View::Dense(input.elements::<T>()));
        Task { source, target: Target::Dense(output.elements_mut::<T>()) }
    }
}

fn not_plain() -> PyErr {
    internal("a plain array that is none")
}
