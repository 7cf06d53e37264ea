//! Lists of plain arrays, read and written with little more than the work itself.
//!
//! A list of many small tensors costs what each of them costs beside the kernels: an [`Array`](super::Array) with
//! its shape, a [`Pair`](super::Pair), a walk. Nearly all lists are of exact ndarrays, dense and native, so these
//! are read into a [`Flat`] each, which is an address and a length. Whatever is not so simple, or is wrong, is no
//! case for this module: `None` sends the list the long way, where the errors are.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering;

use numpy::PY_ARRAY_API;
use numpy::npyffi::{self, NPY_TYPES, NpyTypes, PyArrayObject};
use pyo3::Borrowed;
use pyo3::ffi::{self, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyTuple};

use super::{BFLOAT16, DTYPES, internal, memory, slice_of};
use crate::element::{Dtype, Element, match_real};
use crate::error::vec_with_room;
use crate::parallel::perform::{AnyTask, Task};
use crate::parallel::reduce::AnyView;
use crate::walk::{Target, View};

/// The memory of an exact ndarray of a real dtype, dense, aligned and native.
#[derive(Clone, Copy)]
struct Flat {
    data: ptr::NonNull<u8>,
    len: usize,
    dtype: Dtype,
}

/// Elements that follow each other in the C order or the Fortran order of the axes.
const DENSE: c_int = npyffi::NPY_ARRAY_C_CONTIGUOUS | npyffi::NPY_ARRAY_F_CONTIGUOUS;

/// The fields of an ndarray.
type Fields = npyffi::PyArrayObject_fields;

/// The class ndarray, looked up once for a list.
fn ndarray(py: Python<'_>) -> *mut PyTypeObject {
    // SAFETY: the interpreter is attached.
    unsafe { npyffi::get_type_object(py, NpyTypes::PyArray_Type) }
}

/// The C struct of an exact ndarray.
fn fields<'a>(object: Borrowed<'a, '_, PyAny>, class: *mut PyTypeObject) -> Option<&'a Fields> {
    // SAFETY: `object` is a live Python object; if its class is ndarray itself, its struct begins with these fields.
    unsafe {
        (ffi::Py_TYPE(object.as_ptr()) == class)
            .then(|| &*npyffi::_PyArray_GET_ITEM_DATA(object.as_ptr().cast::<PyArrayObject>()))
    }
}

fn shape(fields: &Fields) -> &[usize] {
    // SAFETY: NumPy keeps `nd` lengths there, none negative. Nothing runs while the slice is in use.
    unsafe { slice_of(fields.dimensions.cast::<usize>(), usize::try_from(fields.nd).unwrap_or(0)) }
}

impl Flat {
    fn of(fields: &Fields) -> Option<Self> {
        // SAFETY: an ndarray has a descr, and the fields read of it are common to all versions of NumPy.
        let descr = unsafe { &*npyffi::_PyDataType_GET_ITEM_DATA(fields.descr) };
        let dtype = if descr.type_num < NPY_TYPES::NPY_USERDEF as c_int {
            usize::try_from(descr.type_num).ok().and_then(|number| *DTYPES.get(number)?)?
        } else if descr.type_num == BFLOAT16.load(Ordering::Relaxed) {
            Dtype::Bf16
        } else {
            return None;
        };
        let foreign = if cfg!(target_endian = "little") { b'>' } else { b'<' };
        let plain = fields.flags & DENSE != 0
            && descr.byteorder.cast_unsigned() != foreign
            && dtype.is_float()
            && fields.data.addr().is_multiple_of(dtype.size());
        let data = ptr::NonNull::new(fields.data.cast())?;
        plain.then(|| Self { data, len: shape(fields).iter().product(), dtype })
    }

    fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    /// # Safety
    /// The array lives for `'a`, and nothing here writes to it meanwhile.
    unsafe fn elements<'a, T: Element>(self) -> &'a [T] {
        // SAFETY: a dense array has `len` elements from its data pointer on, aligned for T; the rest the caller says.
        unsafe { slice::from_raw_parts(self.data.as_ptr().cast::<T>().cast_const(), self.len) }
    }

    /// # Safety
    /// The array lives for `'a`, is writeable, and nothing else here reads or writes its memory meanwhile.
    unsafe fn elements_mut<'a, T: Element>(self) -> &'a mut [T] {
        // SAFETY: as in `elements`.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr().cast::<T>(), self.len) }
    }
}

/// The plain arrays of a list, without its Nones, as long as the tuple of its entries lives.
pub(in crate::py) struct Flats<'a> {
    arrays: Vec<Flat>,
    bytes: usize,
    entries: PhantomData<&'a ()>,
}

impl<'a> Flats<'a> {
    /// Reads a list, if it is one of plain arrays and None.
    pub(in crate::py) fn read(entries: &'a Bound<'_, PyTuple>) -> PyResult<Option<Self>> {
        let class = ndarray(entries.py());
        let mut arrays = vec_with_room(entries.len())?;
        let mut bytes = 0;
        for entry in entries.iter_borrowed() {
            if entry.is_none() {
                continue;
            }
            let Some(flat) = fields(entry, class).and_then(Flat::of) else { return Ok(None) };
            bytes += flat.bytes();
            arrays.push(flat);
        }
        Ok(Some(Self { arrays, bytes, entries: PhantomData }))
    }

    /// The bytes of all of them.
    pub(in crate::py) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What to read.
    pub(in crate::py) fn views(&self) -> PyResult<Vec<AnyView<'_>>> {
        let mut views = vec_with_room(self.arrays.len())?;
        for flat in &self.arrays {
            views.push(match_real!(flat.dtype, T => {
                // SAFETY: the entries hold the arrays. They are written by way of `Lanes` alone, which take these
                // flats by value.
                View::Dense(unsafe { flat.elements::<T>() }).into()
            }, return Err(not_real())));
        }
        Ok(views)
    }

    /// The outputs `outs`, which may be the arrays themselves, if they fit and share no memory otherwise.
    pub(in crate::py) fn into_given(
        self,
        entries: &'a Bound<'_, PyTuple>,
        outs: &'a Bound<'_, PyTuple>,
    ) -> PyResult<Option<Lanes<'a>>> {
        let class = ndarray(entries.py());
        let mut outputs = vec_with_room(self.arrays.len())?;
        let mut extents: Vec<(usize, usize)> = vec_with_room(2 * self.arrays.len())?;
        let mut add = |flat: &Flat| {
            let low = flat.data.addr().get();
            if flat.len > 0 {
                extents.push((low, low + flat.bytes()));
            }
        };
        let mut inputs = self.arrays.iter();
        for (entry, out) in entries.iter_borrowed().zip(outs.iter_borrowed()) {
            if entry.is_none() && out.is_none() {
                continue;
            }
            let (Some(from), Some(to)) = (fields(entry, class), fields(out, class)) else { return Ok(None) };
            let (Some(input), Some(output)) = (inputs.next(), Flat::of(to)) else { return Ok(None) };
            let fits = to.flags & npyffi::NPY_ARRAY_WRITEABLE != 0
                && (out.is(entry) || (output.dtype == input.dtype && are_alike(from, to)));
            if !fits {
                return Ok(None);
            }
            add(&output);
            if output.data != input.data {
                add(input);
            }
            outputs.push(output);
        }
        extents.sort_unstable();
        let apart = extents.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        Ok(apart.then_some(Lanes { inputs: self, outputs }))
    }

    /// New arrays as outputs, with the shapes and the memory orders of the entries; and these arrays.
    pub(in crate::py) fn into_new<'py>(
        self,
        entries: &'a Bound<'py, PyTuple>,
    ) -> PyResult<(Lanes<'a>, Vec<Bound<'py, PyAny>>)> {
        let py = entries.py();
        let class = ndarray(py);
        let mut outputs = vec_with_room(self.arrays.len())?;
        let mut made = vec_with_room(entries.len())?;
        let mut inputs = self.arrays.iter();
        for entry in entries.iter_borrowed() {
            if entry.is_none() {
                made.push(entry.to_owned());
                continue;
            }
            let (Some(from), Some(input)) = (fields(entry, class), inputs.next()) else {
                return Err(not_real());
            };
            let fortran = c_int::from(from.flags & npyffi::NPY_ARRAY_C_CONTIGUOUS == 0);
            // SAFETY: as in `Array::uninit`: the descr is a new reference that the call takes, the lengths are those
            // of a live array, and the order is that of C or of Fortran.
            let new = memory::lent(py, input.bytes(), || unsafe {
                let descr = PY_ARRAY_API.PyArray_DescrFromType(py, (*from.descr).fields.type_num);
                Bound::from_owned_ptr_or_err(
                    py,
                    PY_ARRAY_API.PyArray_NewFromDescr(
                        py,
                        class,
                        descr,
                        from.nd,
                        from.dimensions,
                        ptr::null_mut(),
                        ptr::null_mut(),
                        fortran,
                        ptr::null_mut(),
                    ),
                )
            })?;
            outputs.push(fields(new.as_borrowed(), class).and_then(Flat::of).ok_or_else(not_real)?);
            made.push(new);
        }
        Ok((Lanes { inputs: self, outputs }, made))
    }
}

/// Whether two arrays have one shape and one order of memory, so that their positions agree.
fn are_alike(a: &Fields, b: &Fields) -> bool {
    a.flags & b.flags & DENSE != 0 && shape(a) == shape(b)
}

/// Inputs, and outputs that share no memory but where an output is its input.
pub(in crate::py) struct Lanes<'a> {
    inputs: Flats<'a>,
    outputs: Vec<Flat>,
}

impl<'a> Lanes<'a> {
    /// What norms are made of, before anything is written.
    pub(in crate::py) fn inputs(&self) -> &Flats<'a> {
        &self.inputs
    }

    /// What to write, and what to read for it; unless there is something to do in place, what is not in place.
    pub(in crate::py) fn tasks(&mut self, in_place: bool) -> PyResult<Vec<AnyTask<'_>>> {
        let mut tasks = vec_with_room(self.outputs.len())?;
        for (input, output) in self.inputs.arrays.iter().zip(&self.outputs) {
            if input.data == output.data && !in_place {
                continue;
            }
            tasks.push(match_real!(input.dtype, T => {
                // SAFETY: the entries hold the arrays, and so do those who hold the outputs. `Flats` has seen that the
                // outputs are writeable and lie apart from one another and from all inputs but, maybe, their own, for
                // which there is no source then. The lanes are borrowed mutably.
                let (source, target) = unsafe {
                    let source = (input.data != output.data).then(|| View::Dense(input.elements::<T>()));
                    (source, Target::Dense(output.elements_mut::<T>()))
                };
                Task { source, target }.into()
            }, return Err(not_real())));
        }
        Ok(tasks)
    }
}

fn not_real() -> PyErr {
    internal("a flat array that is none")
}
