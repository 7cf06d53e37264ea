//! NumPy arrays: the one place that reads and makes them, and the only `unsafe` code beside `isa.rs`, `crew.rs` and `team.rs`.
//!
//! An [`Array`] has the shape, strides, dtype and flags of NumPy's C struct (`fields.rs`). A [`Pair`](pair::Pair) is an input
//! with its output. Only pairs lend memory to write, after [`arrange`](pair::arrange) has made sure that no output shares a
//! byte with another output or with an input other than its own. While memory is borrowed, the GIL may be released. If another Python
//! thread writes to the array meanwhile, or to elements between those of a strided array, the values are undefined, as with NumPy's
//! own loops. A held array keeps its memory, unless a thread resizes it in spite of NumPy's check (`refcheck=False`).
#![expect(unsafe_code, reason = "NumPy's arrays are C structs, and their memory is raw")]

mod fields;
pub(super) mod items;
#[cfg_attr(not(target_os = "linux"), path = "array/no_memory.rs")]
pub(super) mod memory;
pub(super) mod objects;
pub(super) mod order;
pub(super) mod pair;
pub(super) mod plain;

use std::borrow::Cow;
use std::ffi::c_int;
use std::iter;
use std::ptr;
use std::slice;

use numpy::PY_ARRAY_API;
use numpy::npyffi;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::{ffi, intern};
use smallvec::SmallVec;

use self::fields::{DENSE, ElementType, Fields};
use self::memory::{NewOutputs, with_memory};
use self::order::{Geometry, IterOrder, ReducedAxes, strides_in};
use super::overlap::Place;
use crate::element::{Dtype, Element};
use crate::error::vec_with_room;
use crate::walk::{Memory, Slices, View, memory_order};

/// A NumPy array.
#[derive(Clone)]
pub(super) struct Array<'py> {
    object: Bound<'py, PyAny>,
    data: *mut u8,
    geometry: Geometry,
    flags: c_int,
    element: ElementType,
}

impl<'py> Array<'py> {
    /// Reads an ndarray; None for another object. The second value is whether it is of a subclass.
    pub(super) fn read(object: &Bound<'py, PyAny>) -> Option<(Self, bool)> {
        let (fields, subclass) = fields::fields(object)?;
        // The shape and the strides are copied, because Python code that runs later in the call may give the array another
        // shape, and NumPy would free the old shape and strides.
        let shape = SmallVec::from_slice(fields::shape(fields));
        let strides = SmallVec::from_slice(fields::strides(fields));
        let mut array = Self {
            object: object.clone(),
            data: fields.data.cast(),
            geometry: Geometry { shape, strides, in_parts: false },
            flags: fields.flags,
            element: fields::element_type(fields),
        };
        if array.element.dtype.is_none() {
            array.element.dtype = fields::registered_dtype(object.py(), fields);
        }
        Some((array, subclass))
    }

    /// The dtype and the number of elements of an ndarray, not of a subclass.
    pub(super) fn exact_dtype_and_len(object: &Bound<'py, PyAny>) -> Option<(Dtype, usize)> {
        let fields = fields::exact_fields(object.as_borrowed(), fields::ndarray(object.py()))?;
        Some((fields::element_type(fields).dtype?, fields::len(fields)))
    }

    /// The number of a float or an integer of NumPy, not of a subclass, as a 0-d array; None for other objects.
    pub(super) fn of_scalar(object: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        if !objects::is_float(object) && !objects::is_integer(object) {
            return Ok(None);
        }
        let made = object.call_method0(intern!(object.py(), "__array__"))?;
        Ok(Self::read(&made).map(|(array, _)| array))
    }

    /// A new array of uninitialized memory: in the C order or the Fortran order of the axes, or with the strides of another
    /// dense order.
    fn uninit(
        py: Python<'py>,
        number: c_int,
        itemsize: usize,
        shape: &[usize],
        strides: Option<&[isize]>,
        fortran: bool,
    ) -> PyResult<Self> {
        let bytes = shape.iter().fold(itemsize, |bytes, len| bytes.saturating_mul(*len));
        // SAFETY: if there are strides, they come from `strides_in`, which makes those of a dense array.
        let object = with_memory(py, &mut NewOutputs::new(iter::once(bytes)), bytes, || unsafe {
            fields::new_array(py, fields::descr_of(py, number), shape, strides, ptr::null_mut(), fortran)
        })?;
        let (array, _) = Self::read(&object).ok_or_else(|| internal("NumPy made no array"))?;
        Ok(array)
    }

    /// A complex array's memory as real numbers, with one more axis for the two parts of each; None for other arrays.
    pub(super) fn in_parts(&self) -> Option<Self> {
        let part = self.dtype().and_then(Dtype::parts)?;
        let mut parts = self.clone();
        parts.element.dtype = Some(part);
        parts.geometry.in_parts = true;
        parts.geometry.shape.push(2);
        parts.geometry.strides.push(part.size().cast_signed());
        Some(parts)
    }

    /// A new array with the shape, the dtype and the memory order of this one, in native byte order.
    fn new_like(&self) -> PyResult<Self> {
        let (shape, itemsize) = (self.shape(), self.itemsize());
        let strides = (self.flags & DENSE == 0)
            .then(|| strides_in(&memory_order(shape, self.strides()), shape, itemsize));
        let fortran = self.flags & DENSE == npyffi::NPY_ARRAY_F_CONTIGUOUS;
        Self::uninit(self.object.py(), self.element.number, itemsize, shape, strides.as_deref(), fortran)
    }

    /// A new array of T, its axes in memory in the given order, from outer to inner. `fill` gets its zeroed memory.
    pub(super) fn filled<T: Element>(
        py: Python<'py>,
        shape: &[usize],
        order: &[usize],
        fill: impl FnOnce(&mut [T]) -> PyResult<()>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let number = fields::number_of(T::DTYPE).ok_or_else(|| internal("a bfloat16 without a number"))?;
        let strides = strides_in(order, shape, size_of::<T>());
        let array = Self::uninit(py, number, size_of::<T>(), shape, Some(&strides), false)?;
        // SAFETY: the array is new and dense, so its memory holds `len` elements of T that nothing else
        // refers to as long as it is not given away; an empty array's pointer is not null either. They are
        // written before they are lent, and zeros are a value of every T.
        let memory = unsafe {
            let data = array.data.cast::<T>();
            data.write_bytes(0, array.len());
            slice::from_raw_parts_mut(data, array.len())
        };
        fill(memory)?;
        Ok(array.object)
    }

    /// A new array of NumPy's own class with the same values, shape and memory order.
    pub(super) fn copy(&self) -> PyResult<Self> {
        let copy = self.new_like()?;
        self.copy_into(&copy)?;
        Ok(copy)
    }

    /// The elements of an array of T, in the order of its axes, as other numbers.
    pub(super) fn collect<T: Element, R>(&self, number: impl Fn(T) -> R) -> PyResult<Vec<R>> {
        let mut numbers = vec_with_room(self.len())?;
        let view = self.view::<T>(&IterOrder::along(0..self.ndim()))?;
        view.for_blocks(0..view.len(), |block| numbers.extend(block.iter().map(|x| number(*x))));
        Ok(numbers)
    }

    /// The strides of this array broadcast to a shape, as NumPy broadcasts it; None if the shapes do not fit.
    pub(super) fn strides_over(&self, shape: &[usize]) -> Option<SmallVec<[isize; 4]>> {
        let added = shape.len().checked_sub(self.ndim())?;
        let mut strides = SmallVec::from_elem(0, added);
        for ((own, stride), len) in self.shape().iter().zip(self.strides()).zip(shape.get(added..)?) {
            match *own {
                1 => strides.push(0),
                own if own == *len => strides.push(*stride),
                _ => return None,
            }
        }
        Some(strides)
    }

    /// The elements broadcast to a shape, in the order of `walk`.
    pub(super) fn broadcast<T: Element>(&self, shape: &[usize], walk: &IterOrder) -> PyResult<View<'_, T>> {
        let (memory, start, unit) = self.memory::<T>()?;
        let strides = self.strides_over(shape).ok_or_else(resized)?;
        let (layout, shift) = walk.layout(shape, &strides, unit);
        Ok(View::new(memory, start + shift, Cow::Owned(layout)))
    }

    /// Copies the elements, in the shape that this array had when it was read, to an array with this shape and dtype. No Python
    /// code runs.
    fn copy_into(&self, to: &Self) -> PyResult<()> {
        let py = self.object.py();
        if fields::shape(to.current_fields()?) != self.shape() {
            return Err(resized());
        }
        let descr = self.current_fields()?.descr;
        // SAFETY: lengths and strides are those of memory that `object` keeps alive, longer than the view. The descr is of the
        // size it had then, and the view takes a new reference to it. NumPy checks that it may write.
        let status = unsafe {
            ffi::Py_INCREF(descr.cast());
            let view = fields::new_array(py, descr, self.shape(), Some(self.strides()), self.data, false)?;
            PY_ARRAY_API.PyArray_CopyInto(py, to.object.as_ptr().cast(), view.as_ptr().cast())
        };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(py)) }
    }

    pub(super) fn object(&self) -> &Bound<'py, PyAny> {
        &self.object
    }

    /// The fields, or an error if the array's memory may have changed since it was read: Python code that ran since then, for
    /// example an argument's `__array__`, may have resized it. A shorter block has as many elements if its dtype is narrower or its
    /// strides are smaller. An array that is still dense may have another shape.
    fn current_fields(&self) -> PyResult<&Fields> {
        let geometry = &self.geometry;
        let (parts, axes) = if geometry.in_parts { (2, self.ndim() - 1) } else { (1, self.ndim()) };
        let is_current = |fields: &Fields| {
            let element = fields::element_type(fields);
            let is_dense = self.flags & fields.flags & DENSE != 0;
            fields::lies_at(fields, self.data, self.len() / parts)
                && (element.number, element.swapped) == (self.element.number, self.element.swapped)
                && (is_dense
                    || geometry.shape.iter().take(axes).eq(fields::shape(fields))
                        && geometry.strides.iter().take(axes).eq(fields::strides(fields)))
        };
        match fields::fields(&self.object) {
            Some((fields, _)) if is_current(fields) => Ok(fields),
            _ => Err(resized()),
        }
    }

    pub(super) fn shape(&self) -> &[usize] {
        &self.geometry.shape
    }

    fn strides(&self) -> &[isize] {
        &self.geometry.strides
    }

    pub(super) fn ndim(&self) -> usize {
        self.shape().len()
    }

    pub(super) fn len(&self) -> usize {
        self.shape().iter().product()
    }

    pub(super) fn dtype(&self) -> Option<Dtype> {
        self.element.dtype
    }

    /// Whether elements of this dtype can be scaled.
    pub(super) fn is_scalable(&self) -> bool {
        self.dtype().is_some_and(Dtype::is_scalable)
    }

    /// The bytes of all elements, saturated at `usize::MAX` (for a huge array of repeated elements).
    pub(super) fn bytes(&self) -> usize {
        self.len().saturating_mul(self.itemsize())
    }

    /// Splits the axes into reduced and kept ones.
    pub(super) fn split(&self, reduced: &[usize]) -> ReducedAxes {
        ReducedAxes::new(&self.geometry, reduced)
    }

    pub(super) fn is_writeable(&self) -> bool {
        self.flags & npyffi::NPY_ARRAY_WRITEABLE != 0
    }

    fn itemsize(&self) -> usize {
        self.dtype().map_or(0, Dtype::size)
    }

    pub(super) fn place(&self) -> Place<'_> {
        Place {
            first: self.data.addr(),
            itemsize: self.itemsize(),
            shape: self.shape(),
            strides: self.strides(),
        }
    }

    /// Whether the elements are aligned for `T`, which has their size, and their strides are multiples of that size.
    fn is_aligned<T>(&self) -> bool {
        let size = size_of::<T>().cast_signed();
        let mut axes = self.shape().iter().zip(self.strides());
        self.data.addr().is_multiple_of(align_of::<T>())
            && axes.all(|(len, stride)| *len <= 1 || stride % size == 0)
    }

    /// The fields, if T is this array's element type.
    fn check<T: Element>(&self) -> PyResult<&Fields> {
        if self.dtype() != Some(T::DTYPE) {
            return Err(internal("a view of another dtype"));
        }
        self.current_fields()
    }

    /// [`Array::check`] for memory that is to be written.
    fn check_to_write<T: Element>(&self) -> PyResult<()> {
        let is_writeable = self.check::<T>()?.flags & npyffi::NPY_ARRAY_WRITEABLE != 0;
        if is_writeable { Ok(()) } else { Err(resized()) }
    }

    /// The memory to read, the position in it of the element with all indices 0, and the bytes of a unit of its strides.
    fn memory<T: Element>(&self) -> PyResult<(Memory<'_, T>, isize, isize)> {
        self.check::<T>()?;
        let (low, high) = self.place().extent();
        let first = (self.data.addr() - low).cast_signed();
        if low == high {
            return Ok((Memory::Elements(&[]), 0, 1));
        }
        let size = size_of::<T>();
        let base = self.data.wrapping_offset(-first);
        if !self.element.swapped && self.is_aligned::<T>() {
            // SAFETY: the extent reaches from the first byte of an element of the array to the last byte of
            // one, all within the memory of the object that `object` keeps alive. It is aligned for T and a
            // multiple of its size, and any bits are a T. Nobody here writes to it while the slice lives: `Pair` and
            // `OperandPairs` hand out memory to write, and `Inputs::with_outputs` keeps that apart from readers.
            let elements =
                unsafe { slice::from_raw_parts(base.cast::<T>().cast_const(), (high - low) / size) };
            Ok((Memory::Elements(elements), first / size.cast_signed(), size.cast_signed()))
        } else {
            // SAFETY: as above; bytes have no alignment.
            let bytes = unsafe { slice::from_raw_parts(base.cast_const(), high - low) };
            Ok((Memory::Bytes { bytes, swapped: self.element.swapped }, first, 1))
        }
    }

    /// The elements, in the order of `walk`.
    pub(super) fn view<T: Element>(&self, walk: &IterOrder) -> PyResult<View<'_, T>> {
        let (memory, start, unit) = self.memory::<T>()?;
        let (layout, shift) = walk.layout(self.shape(), self.strides(), unit);
        Ok(View::new(memory, start + shift, Cow::Owned(layout)))
    }

    /// The order of memory.
    pub(super) fn walk(&self) -> IterOrder {
        IterOrder::of(&self.geometry)
    }

    /// The slices along the reduced axes, in the order of the kept axes.
    pub(super) fn slices<T: Element>(&self, split: &ReducedAxes) -> PyResult<Slices<'_, T>> {
        let (memory, start, unit) = self.memory::<T>()?;
        Ok(split.slices(memory, start, &self.geometry, unit))
    }

    fn same_memory(&self, other: &Self) -> bool {
        self.dtype() == other.dtype()
            && self.element.swapped == other.element.swapped
            && self.place().is_same(&other.place())
    }
}

pub(super) fn resized() -> PyErr {
    PyRuntimeError::new_err(
        "gradclip: an array was resized, given another shape or made read-only during the call",
    )
}

pub(super) fn internal(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("gradclip: internal error: {what}; please report it"))
}
