//! NumPy arrays: the one place that reads and makes them, and the only `unsafe` code beside `isa.rs`.
//!
//! An [`Array`] is what the C struct says: shape, strides, dtype, flags. A [`Pair`] is an input with its
//! output; it alone hands out memory to write, after [`arrange`] has made sure that no output shares a byte
//! with another output or with an input other than its own. While a pair's memory is borrowed from here the
//! GIL may be released. As with NumPy's own loops, another Python thread that writes to the array meanwhile
//! makes the values undefined, and that is the caller's race; memory stays valid because the array object is
//! held.
#![expect(unsafe_code, reason = "NumPy's arrays are C structs, and their memory is raw")]

#[cfg(target_os = "linux")]
mod handler;
#[cfg(target_os = "linux")]
pub(super) mod memory;
#[cfg(not(target_os = "linux"))]
#[path = "array/no_memory.rs"]
pub(super) mod memory;
pub(super) mod objects;
pub(super) mod plain;

use std::arch::asm;
use std::borrow::Cow;
use std::ffi::c_int;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use numpy::PY_ARRAY_API;
use numpy::npyffi::{self, NPY_TYPES, NpyTypes, PyArray_CheckExact, PyArrayObject, npy_intp};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyAny;
use smallvec::SmallVec;

#[cfg(target_os = "linux")]
use self::handler::with_memory;
#[cfg(not(target_os = "linux"))]
use self::memory::with_memory;
use super::overlap::{self, Apart, Place};
use crate::element::{Dtype, Element, Ordered};
use crate::error::vec_with_room;
use crate::isa::LINE;
use crate::parallel::elementwise::Task;
use crate::walk::{Axis, Cells, Layout, Memory, Slices, Target, View, copy_order, memory_order};

/// The dtypes by NumPy's numbers.
const DTYPES: [Option<Dtype>; NPY_TYPES::NPY_NTYPES_LEGACY as usize] = {
    let mut table = [None; NPY_TYPES::NPY_NTYPES_LEGACY as usize];
    let mut i = 0;
    while i < Dtype::ALL.len() {
        let number = Dtype::ALL[i].number();
        if number >= 0 {
            table[number.cast_unsigned() as usize] = Some(Dtype::ALL[i]);
        }
        i += 1;
    }
    // C's `long` has a number of its own, whatever its size.
    let is_64 = size_of::<std::ffi::c_long>() == 8;
    table[NPY_TYPES::NPY_LONG as usize] = Some(if is_64 { Dtype::I64 } else { Dtype::I32 });
    table[NPY_TYPES::NPY_ULONG as usize] = Some(if is_64 { Dtype::U64 } else { Dtype::U32 });
    table
};

/// The number that `ml_dtypes` was given for its bfloat16; 0 until an array of it has been seen.
static BFLOAT16: AtomicI32 = AtomicI32::new(0);

/// The dtype of a number that NumPy gave to another package, by the class of its scalars.
fn registered_dtype(number: c_int, class: &Bound<'_, PyAny>) -> Option<Dtype> {
    if number == BFLOAT16.load(Ordering::Relaxed) {
        return Some(Dtype::Bf16);
    }
    let is =
        |attribute, text: &str| class.getattr(attribute).is_ok_and(|value| value.eq(text).unwrap_or(false));
    if is("__name__", Dtype::Bf16.name()) && is("__module__", "ml_dtypes") {
        BFLOAT16.store(number, Ordering::Relaxed);
        return Some(Dtype::Bf16);
    }
    None
}

/// A NumPy array.
#[derive(Clone)]
pub(super) struct Array<'py> {
    object: Bound<'py, PyAny>,
    data: *mut u8,
    shape: SmallVec<[usize; 4]>,
    strides: SmallVec<[isize; 4]>,
    flags: c_int,
    number: c_int,
    dtype: Option<Dtype>,
    swapped: bool,
    /// Whether the last axis, of two steps, goes over the parts of complex numbers.
    in_parts: bool,
}

impl<'py> Array<'py> {
    /// Reads an ndarray; None for another object. The second value says whether it is of a subclass.
    pub(super) fn read(object: &Bound<'py, PyAny>) -> Option<(Self, bool)> {
        let py = object.py();
        // SAFETY: the interpreter is attached and `object` is a live Python object.
        let exact = unsafe { PyArray_CheckExact(py, object.as_ptr()) } != 0;
        // SAFETY: as above.
        if !exact && unsafe { npyffi::PyArray_Check(py, object.as_ptr()) } == 0 {
            return None;
        }
        // SAFETY: `object` was just seen to be an ndarray, whose struct begins with these fields in every
        // version of NumPy that the numpy crate supports; its descr is never null, and the fields read of it
        // are the first ones, common to all versions.
        let (fields, descr) = unsafe {
            let fields = &*npyffi::_PyArray_GET_ITEM_DATA(object.as_ptr().cast::<PyArrayObject>());
            (fields, &*npyffi::_PyDataType_GET_ITEM_DATA(fields.descr))
        };
        let ndim = usize::try_from(fields.nd).unwrap_or(0);
        // Copied, because Python code that runs later in the call may give the array another shape, and NumPy would
        // free these.
        // SAFETY: NumPy keeps `ndim` lengths, none negative, and as many strides there; nothing else ran since.
        let (shape, strides) = unsafe {
            (slice_of(fields.dimensions.cast::<usize>(), ndim), slice_of(fields.strides.cast_const(), ndim))
        };
        let (shape, strides) = (SmallVec::from_slice(shape), SmallVec::from_slice(strides));
        let foreign = if cfg!(target_endian = "little") { b'>' } else { b'<' };
        let dtype = if descr.type_num < NPY_TYPES::NPY_USERDEF as c_int {
            usize::try_from(descr.type_num).ok().and_then(|number| *DTYPES.get(number)?)
        } else {
            // SAFETY: a descr holds a reference to the class of its scalars, and is itself held by the array.
            let class = unsafe { Bound::from_borrowed_ptr_or_opt(py, descr.typeobj.cast()) };
            class.and_then(|class| registered_dtype(descr.type_num, &class))
        };
        let array = Self {
            object: object.clone(),
            data: fields.data.cast(),
            shape,
            strides,
            flags: fields.flags,
            number: descr.type_num,
            dtype,
            swapped: descr.byteorder.cast_unsigned() == foreign,
            in_parts: false,
        };
        Some((array, !exact))
    }

    /// A new array of uninitialized memory, its axes in memory in the given order, from outer to inner.
    fn uninit(
        py: Python<'py>,
        number: c_int,
        itemsize: usize,
        shape: &[usize],
        order: Axes<'_>,
    ) -> PyResult<Self> {
        let (fortran, mut strides) = match order {
            Axes::C => (0, None),
            Axes::Fortran => (1, None),
            Axes::Order(order) => {
                let mut strides = vec![0; shape.len()];
                let mut step = itemsize.cast_signed();
                for &axis in order.iter().rev() {
                    strides[axis] = step;
                    // The array's size was checked by whoever made one of this shape; NumPy checks it again.
                    step = step.saturating_mul(shape[axis].max(1).cast_signed());
                }
                (0, Some(strides))
            }
        };
        let bytes = shape.iter().fold(itemsize, |bytes, len| bytes.saturating_mul(*len));
        // SAFETY: the type is ndarray itself, the descr a new reference that the call takes, and lengths and
        // strides are as many as axes and only read. The strides, where given, are those of a dense array, so
        // they stay within the memory that NumPy allocates for the shape. The result is a new reference or
        // null with an exception set.
        let object = with_memory(py, bytes, || unsafe {
            let descr = PY_ARRAY_API.PyArray_DescrFromType(py, number);
            let made = PY_ARRAY_API.PyArray_NewFromDescr(
                py,
                npyffi::get_type_object(py, NpyTypes::PyArray_Type),
                descr,
                c_int::try_from(shape.len()).unwrap_or(c_int::MAX),
                shape.as_ptr().cast::<npy_intp>().cast_mut(),
                strides.as_mut().map_or(ptr::null_mut(), |strides: &mut Vec<npy_intp>| strides.as_mut_ptr()),
                ptr::null_mut(),
                fortran,
                ptr::null_mut(),
            );
            Bound::from_owned_ptr_or_err(py, made)
        })?;
        let (array, _) = Self::read(&object).ok_or_else(|| internal("NumPy made no array"))?;
        hold_any_bits(array.data);
        Ok(array)
    }

    /// The same memory as real numbers, with one more axis for the two parts of each. Only of a complex array.
    pub(super) fn in_parts(&self) -> Option<Self> {
        let part = self.dtype.and_then(Dtype::parts)?;
        let mut parts = Self { dtype: Some(part), in_parts: true, ..self.clone() };
        parts.shape.push(2);
        parts.strides.push(part.size().cast_signed());
        Some(parts)
    }

    /// A new array with the shape, the dtype and the memory order of this one, in native byte order.
    fn new_like(&self, itemsize: usize) -> PyResult<Self> {
        let py = self.object.py();
        let has = |flag| self.flags & flag != 0;
        if has(npyffi::NPY_ARRAY_C_CONTIGUOUS) {
            return Self::uninit(py, self.number, itemsize, self.shape(), Axes::C);
        }
        if has(npyffi::NPY_ARRAY_F_CONTIGUOUS) {
            return Self::uninit(py, self.number, itemsize, self.shape(), Axes::Fortran);
        }
        let order = memory_order(self.shape(), self.strides());
        Self::uninit(py, self.number, itemsize, self.shape(), Axes::Order(&order))
    }

    /// A new array of T, its axes in memory in the given order, from outer to inner: zeros, which `fill` then sees.
    pub(super) fn filled<T: Element>(
        py: Python<'py>,
        shape: &[usize],
        order: &[usize],
        fill: impl FnOnce(&mut [T]) -> PyResult<()>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = Self::uninit(py, T::DTYPE.number(), size_of::<T>(), shape, Axes::Order(order))?;
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

    /// A copy with the same values, shape and byte order.
    fn copy(&self) -> PyResult<Self> {
        let py = self.object.py();
        // SAFETY: `object` is a live ndarray. The result is a new reference or null with an exception set.
        let copy = unsafe {
            let made = PY_ARRAY_API.PyArray_NewCopy(
                py,
                self.object.as_ptr().cast(),
                npyffi::NPY_ORDER::NPY_KEEPORDER,
            );
            Bound::from_owned_ptr_or_err(py, made)?
        };
        let (copy, _) = Self::read(&copy).ok_or_else(|| internal("NumPy copied no array"))?;
        // It has the array's shape of now, which may be another one than was read.
        if copy.shape() == self.shape() { Ok(copy) } else { Err(resized()) }
    }

    pub(super) fn object(&self) -> &Bound<'py, PyAny> {
        &self.object
    }

    /// A read-only view of NumPy's own class that has the shape this array had when it was read, for Python code.
    pub(super) fn as_read(&self) -> PyResult<Bound<'py, PyAny>> {
        self.is_current()?;
        let py = self.object.py();
        // SAFETY: as in `read`.
        let descr =
            unsafe { (*npyffi::_PyArray_GET_ITEM_DATA(self.object.as_ptr().cast::<PyArrayObject>())).descr };
        // SAFETY: as in `read`.
        if unsafe { (*npyffi::_PyDataType_GET_ITEM_DATA(descr)).type_num } != self.number {
            return Err(resized());
        }
        // SAFETY: as in `uninit`, but that lengths and strides are those of memory that `object` keeps alive, as
        // the base of the view. The descr is of the size it had then, and the call takes a new reference to it. The
        // base takes one as well; it fails with an exception set.
        unsafe {
            ffi::Py_INCREF(descr.cast());
            let view = PY_ARRAY_API.PyArray_NewFromDescr(
                py,
                npyffi::get_type_object(py, NpyTypes::PyArray_Type),
                descr,
                c_int::try_from(self.shape.len()).unwrap_or(c_int::MAX),
                self.shape.as_ptr().cast::<npy_intp>().cast_mut(),
                self.strides.as_ptr().cast_mut(),
                self.data.cast(),
                0,
                ptr::null_mut(),
            );
            let view = Bound::from_owned_ptr_or_err(py, view)?;
            let base = self.object.clone().into_ptr();
            if PY_ARRAY_API.PyArray_SetBaseObject(py, view.as_ptr().cast(), base) != 0 {
                return Err(PyErr::fetch(py));
            }
            Ok(view)
        }
    }

    pub(super) fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// An error if the array's memory is no longer what was read: Python code that ran since, in an argument's
    /// `__array__` for instance, may have resized it.
    fn is_current(&self) -> PyResult<()> {
        // SAFETY: as in `read`; `object` is still the ndarray that it was.
        let (fields, now) = unsafe {
            let fields = &*npyffi::_PyArray_GET_ITEM_DATA(self.object.as_ptr().cast::<PyArrayObject>());
            (fields, slice_of(fields.dimensions.cast::<usize>(), usize::try_from(fields.nd).unwrap_or(0)))
        };
        let len = now.iter().product::<usize>() * if self.in_parts { 2 } else { 1 };
        let same = self.data == fields.data.cast() && len == self.len();
        if same { Ok(()) } else { Err(resized()) }
    }

    pub(super) fn ndim(&self) -> usize {
        self.shape.len()
    }

    pub(super) fn len(&self) -> usize {
        self.shape().iter().product()
    }

    pub(super) fn dtype(&self) -> Option<Dtype> {
        self.dtype
    }

    pub(super) fn is_writeable(&self) -> bool {
        self.flags & npyffi::NPY_ARRAY_WRITEABLE != 0
    }

    fn itemsize(&self) -> usize {
        self.dtype.map_or(0, Dtype::size)
    }

    /// Whether the elements follow each other in the C order or the Fortran order of the axes, which two
    /// arrays may share. (Of an array in parts, in that order of the complex numbers.)
    fn contiguity(&self) -> c_int {
        self.flags & (npyffi::NPY_ARRAY_C_CONTIGUOUS | npyffi::NPY_ARRAY_F_CONTIGUOUS)
    }

    fn place(&self) -> Place<'_> {
        Place {
            first: self.data.addr(),
            itemsize: self.itemsize(),
            shape: self.shape(),
            strides: self.strides(),
            is_dense: self.contiguity() != 0,
        }
    }

    /// The addresses of the first byte and of the one after the last.
    fn extent(&self) -> (usize, usize) {
        self.place().extent()
    }

    /// Whether the memory can be read as elements of its dtype: aligned, native, and with strides that are
    /// multiples.
    fn is_plain<T>(&self) -> bool {
        let size = size_of::<T>();
        !self.swapped
            && self.data.addr().is_multiple_of(align_of::<T>())
            && self
                .shape()
                .iter()
                .zip(self.strides())
                .all(|(len, stride)| *len <= 1 || stride % size.cast_signed() == 0)
    }

    /// Whether T is this array's element type.
    fn check<T: Element>(&self) -> PyResult<()> {
        if self.dtype == Some(T::DTYPE) {
            self.is_current()
        } else {
            Err(internal("a view of another dtype"))
        }
    }

    /// The memory to read, where the element with all indices 0 lies in it, and what a stride counts.
    fn memory<T: Element>(&self) -> PyResult<(Memory<'_, T>, isize, isize)> {
        self.check::<T>()?;
        let (low, high) = self.extent();
        let first = (self.data.addr() - low).cast_signed();
        if low == high {
            return Ok((Memory::Elements(&[]), 0, 1));
        }
        let size = size_of::<T>();
        let base = self.data.wrapping_offset(-first);
        if self.is_plain::<T>() {
            // SAFETY: the extent reaches from the first byte of an element of the array to the last byte of
            // one, all within the memory of the object that `object` keeps alive. It is aligned for T and a
            // multiple of its size, and any bits are a T. Nobody here writes to it while the slice lives:
            // `Pair` hands out memory to write.
            let elements =
                unsafe { slice::from_raw_parts(base.cast::<T>().cast_const(), (high - low) / size) };
            Ok((Memory::Elements(elements), first / size.cast_signed(), size.cast_signed()))
        } else {
            // SAFETY: as above; bytes have no alignment.
            let bytes = unsafe { slice::from_raw_parts(base.cast_const(), high - low) };
            Ok((Memory::Bytes { bytes, swapped: self.swapped }, first, 1))
        }
    }

    /// The elements, by their position in `walk`.
    pub(super) fn view<T: Element>(&self, walk: &IterOrder) -> PyResult<View<'_, T>> {
        let (memory, start, unit) = self.memory::<T>()?;
        let (layout, shift) = walk.layout(self.shape(), self.strides(), unit);
        Ok(View::new(memory, start + shift, Cow::Owned(layout)))
    }

    /// All elements in the order of memory.
    pub(super) fn whole<T: Element>(&self) -> PyResult<View<'_, T>> {
        if self.contiguity() != 0 && self.is_plain::<T>() {
            self.check::<T>()?;
            // SAFETY: as in `memory`; a contiguous array has `len` elements from its data pointer on, and an
            // empty one's pointer is not null either.
            return Ok(View::Dense(unsafe {
                slice::from_raw_parts(self.data.cast::<T>().cast_const(), self.len())
            }));
        }
        self.view(&IterOrder::of(self))
    }

    /// The slices along the reduced axes, in the order of the kept ones.
    pub(super) fn slices<T: Element>(&self, split: &ReducedAxes) -> PyResult<Slices<'_, T>> {
        let (memory, start, unit) = self.memory::<T>()?;
        let (kept, first) = split.kept.layout(self.shape(), self.strides(), unit);
        let (reduced, second) = split.reduced.layout(self.shape(), self.strides(), unit);
        Ok(Slices::new(memory, start + first + second, kept, reduced).with_inner(split.inner))
    }

    fn same_memory(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.swapped == other.swapped && self.place().is_same(&other.place())
    }
}

/// Makes the compiler take the memory of a new array as written, so that a slice of it may be lent.
///
/// To Rust, memory that an allocator has just handed out holds no value at all, not even an arbitrary one, and a slice of
/// it must not exist. The block of assembly is empty, but the compiler cannot look into it and must assume that it
/// stored something everywhere behind the pointer: from then on the memory holds some bits, and any bits are a value of
/// every dtype. Kernels overwrite them all and read none.
fn hold_any_bits(data: *mut u8) {
    // SAFETY: no instruction is executed.
    unsafe { asm!("/* {} */", in(reg) data, options(nostack, preserves_flags)) };
}

/// # Safety
/// `len` values lie at `data`, unless `len` is 0.
unsafe fn slice_of<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller says so.
    unsafe { slice::from_raw_parts(data, len) }
}

/// The order of a new array's axes in memory.
#[derive(Clone, Copy)]
enum Axes<'a> {
    C,
    Fortran,
    Order(&'a [usize]),
}

/// An order of axes to walk, from outer to inner, some of them backwards.
#[derive(Clone, Debug)]
pub(super) struct IterOrder(SmallVec<[AxisStep; 4]>);

/// One of them.
#[derive(Clone, Copy, Debug)]
struct AxisStep {
    axis: usize,
    backwards: bool,
    part: Tiling,
}

/// What of an axis is walked: all of it, or from tile to tile in one place and through a tile in another. The tiles, of so many
/// elements, divide it.
#[derive(Clone, Copy, Debug)]
enum Tiling {
    Whole,
    Across(usize),
    Within(usize),
}

impl AxisStep {
    fn whole(axis: usize, backwards: bool) -> Self {
        Self { axis, backwards, part: Tiling::Whole }
    }
}

impl IterOrder {
    /// Some axes, forwards.
    pub(super) fn along(axes: impl IntoIterator<Item = usize>) -> Self {
        Self(axes.into_iter().map(|axis| AxisStep::whole(axis, false)).collect())
    }

    /// All axes of an array in the order of its copy, see [`copy_order`].
    fn of(array: &Array<'_>) -> Self {
        Self::sorted(array, |_| true)
    }

    /// An order for both arrays of a pair, backwards only where both lie so: that of the output, unless the arrays are
    /// transposed, so that each line of memory that is read has elements for as many lines to write, and no cache holds the
    /// lines until all of them are read.
    pub(super) fn of_pair(pair: &Pair<'_>) -> Self {
        let (input, output) = (&pair.input, pair.output());
        let (mut walk, by_input) = (Self::of(output), Self::of(input));
        if let (Some(to), Some(from)) = (walk.inner(output), by_input.inner(input)) {
            let (len, apart) = (output.shape()[to], input.strides()[to].unsigned_abs());
            let is_cached = apart < LINE || len >= TILE_FROM && stay_cached(len, apart);
            if to != from && !is_cached {
                match tile(len) {
                    Some(tile) => walk.cut(to, tile, from),
                    // In the order of the input, what is read at least lies in a row.
                    None => walk = by_input,
                }
            }
        }
        for AxisStep { axis, backwards, .. } in &mut walk.0 {
            *backwards = input.strides()[*axis] < 0 && output.strides()[*axis] < 0;
        }
        walk
    }

    /// The innermost axis that goes anywhere; not that of the parts of complex numbers, which stay together.
    fn inner(&self, array: &Array<'_>) -> Option<usize> {
        let of_numbers = array.ndim() - usize::from(array.in_parts);
        let mut inner_first = self.0.iter().rev().map(|step| step.axis);
        inner_first.find(|axis| *axis < of_numbers && array.shape()[*axis] > 1 && array.strides()[*axis] != 0)
    }

    /// Cuts an axis into tiles. Each is walked with another axis around it, so that the lines of memory that the tile goes over
    /// stay in the cache until the other axis has been all along them.
    fn cut(&mut self, axis: usize, tile: usize, along: usize) {
        self.0.retain(|step| step.axis != along);
        if let Some(at) = self.0.iter().position(|step| step.axis == axis) {
            let step = self.0.remove(at);
            self.0.insert(at, AxisStep { part: Tiling::Within(tile), ..step });
            self.0.insert(at, AxisStep::whole(along, false));
            self.0.insert(0, AxisStep { part: Tiling::Across(tile), ..step });
        }
    }

    fn sorted(array: &Array<'_>, wanted: impl Fn(usize) -> bool) -> Self {
        let axes = copy_order(array.strides(), array.in_parts).into_iter().filter(|axis| wanted(*axis));
        Self(axes.map(|axis| AxisStep::whole(axis, array.strides()[axis] < 0)).collect())
    }

    /// The layout of an array's elements in this order, and how far position 0 lies from the element with all
    /// indices 0.
    fn layout(&self, shape: &[usize], strides: &[isize], unit: isize) -> (Layout, isize) {
        let mut shift = 0;
        let layout = Layout::new(self.0.iter().map(|&AxisStep { axis, backwards, part }| {
            let (len, stride) = (shape[axis], strides[axis] / unit);
            let (len, stride) = match part {
                Tiling::Whole => (len, stride),
                Tiling::Across(tile) => (len / tile, stride * tile.cast_signed()),
                Tiling::Within(tile) => (tile, stride),
            };
            if backwards && len > 0 {
                shift += (len - 1).cast_signed() * stride;
            }
            Axis { len, stride: if backwards { -stride } else { stride } }
        }));
        if layout.is_empty() { (layout, 0) } else { (layout, shift) }
    }
}

/// Elements of the shortest tile. To begin a run costs as much as some elements, so that shorter runs are slower than to write
/// a line for each element.
const TILE_FROM: usize = 8;

/// How many elements of so many make a tile: at most as many as have lines that stay in the cache wherever they lie.
fn tile(len: usize) -> Option<usize> {
    (TILE_FROM..=64).rev().find(|tile| len.is_multiple_of(*tile))
}

/// Whether so many lines of memory, so many bytes apart, stay in the second-level cache, and their pages in what finds these.
/// Lines that a multiple of a large power of two lies between share a few places of the cache.
fn stay_cached(lines: usize, apart: usize) -> bool {
    const PAGES: usize = 1536;
    let between = (apart & apart.wrapping_neg()).max(LINE);
    lines <= PAGES && lines < (512 << 10) / between
}

/// The axes of an array, cut in two: one slice for each position of the kept ones.
#[derive(Clone, Debug)]
pub(super) struct ReducedAxes {
    kept: IterOrder,
    reduced: IterOrder,
    /// Positions of the kept axes that lie inside all reduced ones.
    inner: usize,
}

impl ReducedAxes {
    /// Reduces the given axes of an array.
    pub(super) fn new(array: &Array<'_>, reduced: &[usize]) -> Self {
        let order = copy_order(array.strides(), array.in_parts);
        let (shape, is_reduced) = (array.shape(), |axis: usize| reduced.contains(&axis));
        let inner = order.iter().rev().take_while(|axis| !is_reduced(**axis) || shape[**axis] == 1);
        let inner = inner.filter(|axis| !is_reduced(**axis)).map(|axis| shape[*axis]).product();
        let kept = IterOrder::along(order.into_iter().filter(|axis| !is_reduced(*axis)));
        Self { kept, reduced: IterOrder::sorted(array, is_reduced), inner }
    }

    /// The kept axes from outer to inner: the order of the slices.
    pub(super) fn kept(&self) -> impl Iterator<Item = usize> {
        self.kept.0.iter().map(|step| step.axis)
    }

    /// A walk over all elements that meets the slices in order, each from begin to end.
    fn rows(&self) -> IterOrder {
        IterOrder(self.kept.0.iter().chain(&self.reduced.0).copied().collect())
    }
}

/// The view of one value per slice by the positions of `walk`, which goes over all elements of an array of
/// `shape`. The values are in the order of the axes `kept`, from outer to inner.
pub(super) fn spread<'a, T: Element>(
    values: &'a [T],
    kept: &[usize],
    shape: &[usize],
    walk: &IterOrder,
) -> View<'a, T> {
    let mut strides = vec![0; shape.len()];
    let mut step = 1;
    for &axis in kept.iter().rev() {
        strides[axis] = step;
        step *= shape[axis].cast_signed();
    }
    let (layout, shift) = walk.layout(shape, &strides, 1);
    View::new(Memory::Elements(values), shift, Cow::Owned(layout))
}

/// An input and its output.
pub(super) struct Pair<'py> {
    input: Array<'py>,
    /// What to read instead while the output is written, where the input shares memory with an output.
    copy: Option<Array<'py>>,
    /// None: in place.
    output: Option<Array<'py>>,
    /// Whether the output is the caller's.
    given: bool,
    /// Whether another output lies interleaved with this one.
    interleaved: bool,
}

/// What an output is to be.
pub(super) enum Out<'py> {
    /// A new array.
    New,
    /// One that the caller gave, of the input's shape and dtype, writeable.
    Given(Array<'py>),
}

impl<'py> Pair<'py> {
    /// An input, and an output that is the caller's or new. See [`arrange`].
    pub(super) fn new(input: Array<'py>, out: Out<'py>) -> PyResult<Self> {
        let (output, given) = match out {
            Out::New => (Some(input.new_like(input.itemsize())?), false),
            Out::Given(output) => (if output.same_memory(&input) { None } else { Some(output) }, true),
        };
        Ok(Self { input, copy: None, output, given, interleaved: false })
    }

    /// Takes complex arrays as real ones from now on, with one more axis; for norms of complex numbers it is too
    /// late then.
    pub(super) fn split_complex(&mut self) {
        if self.input.dtype.and_then(Dtype::parts).is_none() {
            return;
        }
        for array in [Some(&mut self.input), self.copy.as_mut(), self.output.as_mut()].into_iter().flatten() {
            if let Some(parts) = array.in_parts() {
                *array = parts;
            }
        }
    }

    /// What norms are made of, before anything is written.
    pub(super) fn input(&self) -> &Array<'py> {
        &self.input
    }

    /// What is read while the output is written.
    fn source(&self) -> &Array<'py> {
        self.copy.as_ref().unwrap_or(&self.input)
    }

    fn output(&self) -> &Array<'py> {
        self.output.as_ref().unwrap_or(&self.input)
    }

    /// The output as a Python object, which is still to be written.
    pub(super) fn object(&self) -> &Bound<'py, PyAny> {
        &self.output().object
    }

    /// The output as a Python object.
    pub(super) fn result(self) -> Bound<'py, PyAny> {
        self.output.unwrap_or(self.input).object
    }

    pub(super) fn is_in_place(&self) -> bool {
        self.output.is_none()
    }

    /// What to write, and what to read for it, by the positions of `walk`.
    pub(super) fn task<T: Ordered>(&mut self, walk: &IterOrder) -> PyResult<Task<'_, T>> {
        self.task_along(walk)
    }

    /// For the functions here, which have borrowed the pair mutably.
    fn task_along<T: Ordered>(&self, walk: &IterOrder) -> PyResult<Task<'_, T>> {
        let source = if self.is_in_place() { None } else { Some(self.source().view(walk)?) };
        Ok(Task { source, target: self.target(walk)? })
    }

    /// The same in the order of memory.
    pub(super) fn whole_task<T: Ordered>(&mut self) -> PyResult<Task<'_, T>> {
        let (source, output) = (self.source(), self.output());
        let alike = output.contiguity() & source.contiguity() != 0;
        if !alike || self.interleaved || !output.is_plain::<T>() || !source.is_plain::<T>() {
            return self.task_along(&IterOrder::of_pair(self));
        }
        output.check::<T>()?;
        let source = if self.is_in_place() { None } else { Some(source.whole()?) };
        // SAFETY: as in `target`; the array is contiguous, and the input is so in the same order. A new array holds some
        // bits, see `hold_any_bits`.
        let target =
            Target::Dense(unsafe { slice::from_raw_parts_mut(output.data.cast::<T>(), output.len()) });
        Ok(Task { source, target })
    }

    /// The slices of the input, unless it is in place, and the output, if the output has the slices one after
    /// the other and a slice can be written as soon as its own norm is known.
    pub(super) fn rows<T: Ordered>(&mut self, split: &ReducedAxes) -> PyResult<Option<Rows<'_, T>>> {
        if self.copy.is_some() || self.input.slices::<T>(split)?.are_columns() {
            return Ok(None);
        }
        match self.target(&split.rows())? {
            Target::Dense(rows) => {
                let source = if self.is_in_place() { None } else { Some(self.input.slices(split)?) };
                Ok(Some((source, rows)))
            }
            Target::Strided { .. } => Ok(None),
        }
    }

    /// The memory of the output, by the positions of `walk`. Whoever calls this has borrowed the pair
    /// mutably.
    fn target<T: Ordered>(&self, walk: &IterOrder) -> PyResult<Target<'_, T>> {
        let output = self.output();
        output.check::<T>()?;
        let size = size_of::<T>();
        let plain = output.is_plain::<T>() && output.data.addr().is_multiple_of(align_of::<T::Cell>());
        let unit = if plain { size.cast_signed() } else { 1 };
        let (layout, shift) = walk.layout(output.shape(), output.strides(), unit);
        if layout.is_empty() {
            return Ok(Target::Dense(&mut []));
        }
        let (low, high) = output.extent();
        let first = (output.data.addr() - low).cast_signed();
        let base = output.data.wrapping_offset(-first);
        if plain && layout.is_dense() && !self.interleaved {
            let from = output.data.wrapping_offset(shift * unit).cast::<T>();
            // SAFETY: the layout covers the array's `len` elements one after the other from `from` on,
            // aligned, in memory that `object` keeps alive and that holds some bits, see `hold_any_bits`. `arrange` has seen that the array is writeable, that no other output and no input that is
            // still to be read lies in it, and the pair that lends it is borrowed mutably.
            return Ok(Target::Dense(unsafe { slice::from_raw_parts_mut(from, layout.len()) }));
        }
        let len = layout.len();
        let (cells, start) = if plain {
            // SAFETY: the extent lies within memory that `object` keeps alive, aligned for the cell type,
            // which has T's size. Other outputs may lie interleaved in it; all of those are lent as atomics,
            // as this one is.
            let cells =
                unsafe { slice::from_raw_parts(base.cast::<T::Cell>().cast_const(), (high - low) / size) };
            (Cells::Elements(cells), first / size.cast_signed())
        } else {
            // SAFETY: as above, byte by byte.
            let bytes = unsafe { slice::from_raw_parts(base.cast::<AtomicU8>().cast_const(), high - low) };
            (Cells::Bytes { bytes, swapped: output.swapped }, first)
        };
        Ok(Target::Strided { cells, start: start + shift, layout: Cow::Owned(layout), range: 0..len })
    }
}

/// See [`Pair::rows`].
pub(super) type Rows<'a, T> = (Option<Slices<'a, T>>, &'a mut [T]);

/// Keeps inputs and outputs apart. To be called before any memory is written: an input that shares memory
/// with an output other than in the one allowed way, being the very same array as its own output, is copied
/// for the time of writing; so is each of `readers`.
///
/// Returns the numbers of two outputs that share a byte, or of one that overlaps itself: they cannot be
/// written.
pub(super) fn arrange<'py>(
    pairs: &mut [Pair<'py>],
    readers: &mut [&mut Array<'py>],
) -> PyResult<Option<(usize, usize)>> {
    match pairs {
        // Alone and dense: nothing to keep apart.
        [pair] if pair.is_in_place() && pair.input.contiguity() != 0 && readers.is_empty() => Ok(None),
        _ if pairs.iter().any(|pair| pair.given) => separate(pairs, readers),
        _ => Ok(None),
    }
}

fn separate<'py>(
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

pub(super) fn resized() -> PyErr {
    PyRuntimeError::new_err("gradclip: an array was resized or given another shape during the call")
}

pub(super) fn internal(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("gradclip: internal error: {what}; please report it"))
}
