//! NumPy's C struct of an array: reading its fields, and the only way to make new arrays.

use std::arch::asm;
use std::ffi::c_int;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicI32, Ordering};

use numpy::PY_ARRAY_API;
use numpy::npyffi::{self, NPY_TYPES, NpyTypes, PyArray_Descr, PyArrayObject, npy_intp};
use pyo3::ffi::{self, PyTypeObject};
use pyo3::prelude::*;

use crate::element::Dtype;

/// The fields of an ndarray.
pub(super) type Fields = npyffi::PyArrayObject_fields;

/// Flags of elements that are contiguous in the C order or the Fortran order of the axes.
pub(super) const DENSE: c_int = npyffi::NPY_ARRAY_C_CONTIGUOUS | npyffi::NPY_ARRAY_F_CONTIGUOUS;

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
    // C's `long` has its own number, whatever its size.
    let is_64 = size_of::<std::ffi::c_long>() == 8;
    table[NPY_TYPES::NPY_LONG as usize] = Some(if is_64 { Dtype::I64 } else { Dtype::I32 });
    table[NPY_TYPES::NPY_ULONG as usize] = Some(if is_64 { Dtype::U64 } else { Dtype::U32 });
    table
};

/// The type number that NumPy gave to the bfloat16 of `ml_dtypes`; 0 until an array of this dtype has been seen.
static BFLOAT16: AtomicI32 = AtomicI32::new(0);

/// The class ndarray, to be looked up once per list.
#[inline]
pub(super) fn ndarray(py: Python<'_>) -> *mut PyTypeObject {
    // SAFETY: the interpreter is attached.
    unsafe { npyffi::get_type_object(py, NpyTypes::PyArray_Type) }
}

/// The C struct of an exact ndarray. NumPy does not lock it: without a GIL, a thread that gives an array another shape
/// or size while a function of NumPy or of gradclip reads it causes a data race, against which NumPy's documentation warns.
#[inline]
pub(super) fn exact_fields<'a>(
    object: Borrowed<'a, '_, PyAny>,
    class: *mut PyTypeObject,
) -> Option<&'a Fields> {
    // SAFETY: `object` is a live Python object; if its class is ndarray itself, its struct begins with these fields.
    unsafe {
        (ffi::Py_TYPE(object.as_ptr()) == class)
            .then(|| &*npyffi::_PyArray_GET_ITEM_DATA(object.as_ptr().cast::<PyArrayObject>()))
    }
}

/// The C struct of any ndarray. The second value is whether it is of a subclass.
pub(super) fn fields<'a>(object: &'a Bound<'_, PyAny>) -> Option<(&'a Fields, bool)> {
    let py = object.py();
    if let Some(fields) = exact_fields(object.as_borrowed(), ndarray(py)) {
        return Some((fields, false));
    }
    // SAFETY: the interpreter is attached and `object` is a live Python object. The struct of a subclass of ndarray
    // begins with that of an ndarray.
    unsafe {
        (npyffi::PyArray_Check(py, object.as_ptr()) != 0)
            .then(|| (&*npyffi::_PyArray_GET_ITEM_DATA(object.as_ptr().cast::<PyArrayObject>()), true))
    }
}

/// The lengths of the axes. They must be copied where Python code may run while they are in use: if it gives the array another
/// shape, NumPy frees them.
#[inline]
pub(super) fn shape(fields: &Fields) -> &[usize] {
    // SAFETY: NumPy keeps `nd` lengths there, none negative. Nothing runs while the slice is in use.
    unsafe { slice_of(fields.dimensions.cast::<usize>(), usize::try_from(fields.nd).unwrap_or(0)) }
}

/// The strides of the axes in bytes. They must be copied as the lengths are.
#[inline]
pub(super) fn strides(fields: &Fields) -> &[isize] {
    // SAFETY: NumPy keeps as many strides as lengths there. Nothing runs while the slice is in use.
    unsafe { slice_of(fields.strides.cast_const(), usize::try_from(fields.nd).unwrap_or(0)) }
}

/// # Safety
/// `len` values lie at `data`, unless `len` is 0.
#[inline]
unsafe fn slice_of<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees it.
    unsafe { slice::from_raw_parts(data, len) }
}

/// The number of elements. Nearly all arrays have one or two axes, for which a loop costs more than the product.
#[inline(always)]
pub(super) fn len(fields: &Fields) -> usize {
    match shape(fields) {
        [len] => *len,
        [rows, columns] => rows * columns,
        shape => shape.iter().product(),
    }
}

/// Whether the array still has the address and the number of elements that were read.
#[inline(always)]
pub(super) fn lies_at(fields: &Fields, data: *mut u8, elements: usize) -> bool {
    fields.data.cast() == data && len(fields) == elements
}

/// The type of an array's elements, from its descr.
#[derive(Clone, Copy)]
pub(super) struct ElementType {
    /// NumPy's number of the dtype.
    pub(super) number: c_int,
    /// The dtype, if it is a native one or a bfloat16 that has been seen before.
    pub(super) dtype: Option<Dtype>,
    /// Whether the byte order of an element is not the native one.
    pub(super) swapped: bool,
}

/// NumPy's number of a dtype; None for a bfloat16 that has not been seen.
pub(super) fn number_of(dtype: Dtype) -> Option<c_int> {
    let seen = || Some(BFLOAT16.load(Ordering::Relaxed)).filter(|number| *number > 0);
    if dtype == Dtype::Bf16 { seen() } else { Some(dtype.number()) }
}

/// Reads the descr. No Python code runs.
#[inline(always)]
pub(super) fn element_type(fields: &Fields) -> ElementType {
    // SAFETY: an ndarray has a descr, and the fields read of it are common to all versions of NumPy.
    let descr = unsafe { &*npyffi::_PyDataType_GET_ITEM_DATA(fields.descr) };
    let number = descr.type_num;
    let dtype = if number < NPY_TYPES::NPY_USERDEF as c_int {
        usize::try_from(number).ok().and_then(|number| *DTYPES.get(number)?)
    } else {
        (number == BFLOAT16.load(Ordering::Relaxed)).then_some(Dtype::Bf16)
    };
    // Compared as numbers, because C's char is signed on some CPUs and unsigned on others.
    let foreign = c_int::from(if cfg!(target_endian = "little") { b'>' } else { b'<' });
    ElementType { number, dtype, swapped: c_int::from(descr.byteorder) == foreign }
}

/// Recognizes the dtype of a number that NumPy gave to another package, by the class of its scalars.
pub(super) fn registered_dtype(py: Python<'_>, fields: &Fields) -> Option<Dtype> {
    let number = element_type(fields).number;
    if number < NPY_TYPES::NPY_USERDEF as c_int {
        return None;
    }
    // SAFETY: the array holds its descr.
    let dtype = unsafe { Bound::from_borrowed_ptr_or_opt(py, fields.descr.cast())? };
    let class = dtype.getattr("type").ok()?;
    // The class can be given another name, but the elements have the size that NumPy has recorded.
    let has_size = dtype.getattr("itemsize").is_ok_and(|size| size.eq(Dtype::Bf16.size()).unwrap_or(false));
    let is =
        |attribute, text: &str| class.getattr(attribute).is_ok_and(|value| value.eq(text).unwrap_or(false));
    let found = has_size && is("__name__", Dtype::Bf16.name()) && is("__module__", "ml_dtypes");
    found.then(|| {
        BFLOAT16.store(number, Ordering::Relaxed);
        Dtype::Bf16
    })
}

/// Makes an array of NumPy's own class: in the C order or the Fortran order of the axes, or with strides. The memory that NumPy
/// allocates holds arbitrary bits.
///
/// # Safety
/// `descr` is a new reference, which the call takes, or null with an exception set. Where there are strides, they are as many as
/// lengths. The elements stay within the memory at `data`, or, where it is null, within what NumPy allocates for the shape.
#[inline]
pub(super) unsafe fn new_array<'py>(
    py: Python<'py>,
    descr: *mut PyArray_Descr,
    shape: &[usize],
    strides: Option<&[isize]>,
    data: *mut u8,
    fortran: bool,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the type is ndarray itself, and lengths and strides are only read. NumPy passes on the exception of a null descr. The
    // result is a new reference or null with an exception set. The caller guarantees the rest.
    unsafe {
        let made = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            ndarray(py),
            descr,
            c_int::try_from(shape.len()).unwrap_or(c_int::MAX),
            shape.as_ptr().cast::<npy_intp>().cast_mut(),
            strides.map_or(ptr::null_mut(), |strides| strides.as_ptr().cast_mut()),
            data.cast(),
            c_int::from(fortran),
            ptr::null_mut(),
        );
        let made = Bound::from_owned_ptr_or_err(py, made)?;
        // What was made is an ndarray, see `exact_fields`. For memory that exists already, this changes nothing.
        hold_any_bits((*npyffi::_PyArray_GET_ITEM_DATA(made.as_ptr().cast::<PyArrayObject>())).data.cast());
        Ok(made)
    }
}

/// A new reference to the descr of a dtype by its NumPy number, which is that of an array's dtype.
pub(super) fn descr_of(py: Python<'_>, number: c_int) -> *mut PyArray_Descr {
    // SAFETY: the function takes any number, and sets an exception for one that no dtype has.
    unsafe { PY_ARRAY_API.PyArray_DescrFromType(py, number) }
}

/// Makes the compiler treat the memory of a new array as written, so that a slice of it may be lent.
///
/// To Rust, memory that an allocator has just handed out holds no value at all, and a slice of it must not exist. The compiler must
/// assume that the empty block of assembly stored some bits there, and any bits are a value of every dtype.
#[inline]
fn hold_any_bits(data: *mut u8) {
    // SAFETY: no instruction is executed.
    unsafe { asm!("/* {} */", in(reg) data, options(nostack, preserves_flags)) };
}
