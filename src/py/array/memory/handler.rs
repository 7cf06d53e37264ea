//! NumPy's memory handler (NEP 49) for arrays that own memory from `pool.rs`. NumPy frees and resizes that memory like any
//! other.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyCapsule;

use super::heap::NewOutputs;
use super::pool::{Block, LARGE};
use crate::py::memory_limit::POOL_BYTES;

/// Calls `make`, which makes an array of `bytes` bytes, one of `outputs`. From [`LARGE`] bytes on, its memory is a block of the
/// pool. NumPy allocates smaller memory.
#[inline]
pub(in crate::py) fn with_memory<R>(
    py: Python<'_>,
    outputs: &mut NewOutputs,
    bytes: usize,
    make: impl FnOnce() -> PyResult<R>,
) -> PyResult<R> {
    if bytes >= LARGE && POOL_BYTES.get()? > 0 {
        return with_handler(py, make);
    }
    outputs.before(bytes);
    make()
}

#[cold]
fn with_handler<R>(py: Python<'_>, make: impl FnOnce() -> PyResult<R>) -> PyResult<R> {
    let numpy = Numpy::get(py)?;
    let before = numpy.set_handler(numpy.capsule.bind(py))?;
    // Python code that the garbage collector runs in `make` may make arrays too: the handler serves any size.
    let made = make();
    numpy.set_handler(&before)?;
    made
}

// NumPy calls these functions. Nothing in them panics, so they do not unwind.

unsafe extern "C" fn malloc(_: *mut c_void, size: usize) -> *mut c_void {
    Block::allocate(size).map_or(ptr::null_mut(), |block| block.data().as_ptr().cast())
}

unsafe extern "C" fn calloc(context: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return ptr::null_mut() };
    // SAFETY: as `malloc` has no preconditions; a block has room for as many bytes as were asked for.
    unsafe {
        let data = malloc(context, bytes);
        if !data.is_null() {
            data.write_bytes(0, bytes);
        }
        data
    }
}

unsafe extern "C" fn realloc(context: *mut c_void, data: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: NumPy hands back what `malloc` gave it, with its bytes in use, and owns it. The new block is another one,
    // and both have room for the smaller number of bytes.
    unsafe {
        let Some(old) = NonNull::new(data.cast::<u8>()) else { return malloc(context, size) };
        let capacity = Block::of_data(old).capacity();
        let new = malloc(context, size);
        if !new.is_null() {
            ptr::copy_nonoverlapping(old.as_ptr(), new.cast(), capacity.min(size));
            free(context, data, capacity);
        }
        new
    }
}

unsafe extern "C" fn free(_: *mut c_void, data: *mut c_void, _: usize) {
    if let Some(data) = NonNull::new(data.cast()) {
        // SAFETY: NumPy hands back what `malloc` gave it, and forgets it.
        unsafe { Block::of_data(data) }.free();
    }
}

/// `PyDataMem_Handler` of NumPy's C API, version 1.
#[repr(C)]
struct Handler {
    name: [u8; 127], // C's char is signed on some CPUs and unsigned on others
    version: u8,
    context: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

// SAFETY: the handler is only read, and its functions may be called on any thread.
unsafe impl Sync for Handler {}

static HANDLER: Handler = Handler {
    name: {
        let mut name = [0; 127];
        name.split_at_mut(8).0.copy_from_slice(b"gradclip");
        name
    },
    version: 1,
    context: ptr::null_mut(),
    malloc,
    calloc,
    realloc,
    free,
};

type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;

/// NumPy's `PyDataMem_SetHandler`, which the numpy crate leaves out, and the capsule to call it with.
struct Numpy {
    set_handler: SetHandler,
    capsule: Py<PyCapsule>,
}

impl Numpy {
    fn get(py: Python<'_>) -> PyResult<&Self> {
        static NUMPY: PyOnceLock<Numpy> = PyOnceLock::new();
        NUMPY.get_or_try_init(py, || {
            const SLOT: usize = 304; // in the C API's table, since NumPy 1.22
            let module =
                py.import("numpy._core.multiarray").or_else(|_| py.import("numpy.core.multiarray"))?;
            let table = module.getattr("_ARRAY_API")?.cast_into::<PyCapsule>()?.pointer_checked(None)?;
            // SAFETY: NumPy's capsule without a name holds its table of functions, which lives as long as the
            // process, and the slot holds a function of this type in every version since 1.22.
            let set_handler = unsafe { table.cast::<SetHandler>().add(SLOT).read() };
            // SAFETY: the handler lives as long as the process, and NumPy only reads it.
            let capsule = unsafe {
                PyCapsule::new_with_pointer(py, NonNull::from(&HANDLER).cast(), c"mem_handler")?.unbind()
            };
            Ok(Self { set_handler, capsule })
        })
    }

    /// Makes a handler's capsule the current one of this thread; returns the previous one.
    fn set_handler<'py>(&self, capsule: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the interpreter is attached. The function takes a handler's capsule and returns the one that was in use
        // as a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(capsule.py(), (self.set_handler)(capsule.as_ptr())) }
    }
}
