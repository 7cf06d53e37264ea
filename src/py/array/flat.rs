//! Plain arrays, alone and in lists, read and written with little more than the work itself.
//!
//! A call on small tensors costs what each of them costs beside the kernels: an [`Array`](super::Array) with its
//! shape, a [`Pair`](super::Pair), a walk. Nearly all of them are exact ndarrays, dense and native, so these are read
//! into a [`Flat`] each, which is an address and a length. Whatever is not so simple, or is wrong, is no case for this
//! module: `None` sends the call the long way, where the errors are.
//!
//! Python code that runs between the reading of an array and the use of its memory may resize the array. The callers
//! know that all other arguments are plain, but any new object may set off the garbage collector, and with it a
//! finalizer: so it is looked at again before memory is lent, and no Python object is made from then on.

use std::ffi::c_int;
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering;

use numpy::PY_ARRAY_API;
use numpy::npyffi::{self, NPY_TYPES, NpyTypes, PyArrayObject};
use pyo3::ffi::{self, PyTypeObject};
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyAny, PyList, PyTuple};
use smallvec::SmallVec;

use super::super::call::Kinds;
use super::{BFLOAT16, DTYPES, Rows, internal, memory, objects, resized, slice_of};
use crate::element::{Dtype, Element, Ordered, match_element, match_real};
use crate::error::{Error, Result, vec_with_room};
use crate::parallel::perform::{AnyTask, Task};
use crate::parallel::reduce::AnyView;
use crate::walk::{Axis, Layout, Memory, Slices, Target, View};

/// A list without an allocation if it has one entry. It has room for no more, as it is moved about.
type Few<T> = SmallVec<[T; 1]>;

fn reserve<A: smallvec::Array>(list: &mut SmallVec<A>, len: usize) -> Result<()> {
    list.try_reserve_exact(len).map_err(|_| Error::Memory)
}

/// What a call is about: the entries of a list or a tuple, or one object alone. To read them runs no Python code.
pub(in crate::py) enum Items<'a, 'py> {
    List(&'a Bound<'py, PyList>),
    Tuple(Bound<'py, PyTuple>),
    One(&'a Bound<'py, PyAny>),
}

impl<'a, 'py> Items<'a, 'py> {
    /// A list, or a tuple of no subclass; None for anything else.
    pub(in crate::py) fn of_list(object: &'a Bound<'py, PyAny>) -> Option<Self> {
        if let Ok(list) = object.cast::<PyList>() {
            return Some(Self::List(list));
        }
        object.cast_exact::<PyTuple>().ok().map(|tuple| Self::Tuple(tuple.clone()))
    }

    pub(in crate::py) fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Tuple(tuple) => tuple.len(),
            Self::One(_) => 1,
        }
    }

    fn get(&self, at: usize) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::List(list) => list.get_item(at),
            Self::Tuple(tuple) => tuple.get_item(at),
            Self::One(object) => Ok((*object).clone()),
        }
    }

    /// Calls `read` while no other thread changes the list, so that it sees what stood there at one moment. Where
    /// there is a GIL, that does so already.
    #[inline]
    fn at_once<R>(&self, read: impl FnOnce() -> R) -> R {
        match self {
            Self::List(list) => with_critical_section(list, read),
            Self::Tuple(_) | Self::One(_) => read(),
        }
    }

    /// As they are now, for good.
    pub(in crate::py) fn to_tuple(&self) -> PyResult<Bound<'py, PyTuple>> {
        match self {
            Self::List(list) => objects::tuple_of_list(list),
            Self::Tuple(tuple) => Ok(tuple.clone()),
            Self::One(object) => PyTuple::new(object.py(), [object]),
        }
    }
}

/// An exact ndarray, dense, aligned and native, of a dtype that is not complex.
#[derive(Clone)]
struct Flat<'py> {
    object: Bound<'py, PyAny>,
    data: ptr::NonNull<u8>,
    len: usize,
    flags: c_int,
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
fn fields<'a>(object: &'a Bound<'_, PyAny>, class: *mut PyTypeObject) -> Option<&'a Fields> {
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

impl<'py> Flat<'py> {
    #[inline(always)] // a struct that is moved costs more than the reading
    fn of(object: Bound<'py, PyAny>, class: *mut PyTypeObject) -> Option<Self> {
        let fields = fields(&object, class)?;
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
            && dtype.parts().is_none()
            && fields.data.addr().is_multiple_of(dtype.size());
        let data = ptr::NonNull::new(fields.data.cast())?;
        let (len, flags) = (shape(fields).iter().product(), fields.flags);
        plain.then_some(Self { object, data, len, flags, dtype })
    }

    fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    fn fields(&self) -> &Fields {
        // SAFETY: `of` has seen that the object is an ndarray.
        unsafe { &*npyffi::_PyArray_GET_ITEM_DATA(self.object.as_ptr().cast::<PyArrayObject>()) }
    }

    fn is_current(&self) -> bool {
        let fields = self.fields();
        self.data.as_ptr() == fields.data.cast() && self.len == shape(fields).iter().product::<usize>()
    }

    fn is(&self, other: &Self) -> bool {
        self.object.is(&other.object)
    }

    /// Whether an array can be the output for this one, as far as the two are concerned: of one shape and one order of
    /// memory their positions agree.
    fn takes(&self, output: &Self) -> bool {
        output.flags & npyffi::NPY_ARRAY_WRITEABLE != 0
            && (output.is(self)
                || (output.dtype == self.dtype
                    && output.flags & self.flags & DENSE != 0
                    && shape(output.fields()) == shape(self.fields())))
    }

    /// A new array with the shape, the memory order and the dtype of this one.
    fn new_like(&self, class: *mut PyTypeObject) -> PyResult<Self> {
        let py = self.object.py();
        let from = self.fields();
        let fortran = c_int::from(self.flags & npyffi::NPY_ARRAY_C_CONTIGUOUS == 0);
        // SAFETY: as in `Array::uninit`: the descr is a new reference that the call takes, the lengths are those
        // of a live array, and the order is that of C or of Fortran.
        let new = memory::lent(py, self.bytes(), || unsafe {
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
        Self::of(new, class).ok_or_else(not_flat)
    }

    /// What to read.
    fn view(&self) -> AnyView<'_> {
        match_element!(self.dtype, T => {
            // SAFETY: memory is written by way of `Lanes` alone, which have borrowed their inputs mutably and lend them
            // only while nothing is written.
            View::Dense(unsafe { self.elements::<T>() }).into()
        })
    }

    /// # Safety
    /// Nothing here writes to the array meanwhile.
    unsafe fn elements<T: Element>(&self) -> &[T] {
        // SAFETY: a dense array has `len` elements from its data pointer on, aligned for T; it lives as long as
        // `object`. The rest the caller says.
        unsafe { slice::from_raw_parts(self.data.as_ptr().cast::<T>().cast_const(), self.len) }
    }

    /// # Safety
    /// The array is writeable, and nothing else here reads or writes its memory meanwhile.
    #[expect(clippy::mut_from_ref, reason = "the memory is not the struct's own")]
    unsafe fn elements_mut<T: Element>(&self) -> &mut [T] {
        // SAFETY: as in `elements`.
        unsafe { slice::from_raw_parts_mut(self.data.as_ptr().cast::<T>(), self.len) }
    }
}

/// The plain arrays of a list; None for None.
pub(in crate::py) struct Flats<'py> {
    flats: Few<Option<Flat<'py>>>,
    bytes: usize,
}

impl<'py> Flats<'py> {
    /// Reads arrays, if they are plain ones of the kinds; in a list there may be None.
    pub(in crate::py) fn read(
        py: Python<'py>,
        items: &Items<'_, 'py>,
        kinds: Kinds,
    ) -> PyResult<Option<Self>> {
        let class = ndarray(py);
        items.at_once(|| Self::read_now(class, items, kinds))
    }

    fn read_now(class: *mut PyTypeObject, items: &Items<'_, 'py>, kinds: Kinds) -> PyResult<Option<Self>> {
        let is_list = !matches!(items, Items::One(_));
        let mut flats = Few::new();
        reserve(&mut flats, items.len())?;
        let mut bytes = 0;
        for i in 0..items.len() {
            let item = items.get(i)?;
            if is_list && item.is_none() {
                flats.push(None);
                continue;
            }
            let Some(flat) = Flat::of(item, class) else { return Ok(None) };
            if !kinds.has(flat.dtype) {
                return Ok(None);
            }
            bytes += flat.bytes();
            flats.push(Some(flat));
        }
        Ok(Some(Self { flats, bytes }))
    }

    /// The bytes of all of them.
    pub(in crate::py) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Calls `work` with what to read.
    pub(in crate::py) fn with_views<R>(&self, work: impl FnOnce(&[AnyView<'_>]) -> Result<R>) -> PyResult<R> {
        if !self.is_current() {
            return Err(resized());
        }
        if let [Some(flat)] = &self.flats[..] {
            return Ok(work(slice::from_ref(&flat.view()))?);
        }
        let mut views = vec_with_room(self.flats.len())?;
        views.extend(self.flats.iter().flatten().map(Flat::view));
        Ok(work(&views)?)
    }

    /// Whether the memory is still what was read.
    fn is_current(&self) -> bool {
        self.flats.iter().flatten().all(Flat::is_current)
    }

    /// The shape of the only one.
    pub(in crate::py) fn shape(&self) -> &[usize] {
        match &self.flats[..] {
            [Some(flat)] => shape(flat.fields()),
            _ => &[],
        }
    }

    /// The dtype of the first one.
    pub(in crate::py) fn dtype(&self) -> Option<Dtype> {
        Some(self.flats.first()?.as_ref()?.dtype)
    }

    /// Of the only one: the number of elements in each slice along some axes, if these are the inner ones in memory,
    /// so that the slices follow each other.
    pub(in crate::py) fn row_len(&self, axes: &[usize]) -> Option<usize> {
        let [Some(flat)] = &self.flats[..] else { return None };
        let (kept, row) = self.shape().split_at_checked(self.shape().len().checked_sub(axes.len())?)?;
        let len = row.iter().product::<usize>();
        let are_inner = flat.flags & npyffi::NPY_ARRAY_C_CONTIGUOUS != 0
            && axes.iter().all(|axis| *axis >= kept.len())
            && flat.len > 0
            && kept.iter().product::<usize>() * len == flat.len;
        are_inner.then_some(len)
    }

    /// Inputs with their outputs: `outs`, which may be the arrays themselves, if they fit and share no memory
    /// otherwise; new arrays where there are no `outs`.
    pub(in crate::py) fn lanes(
        &mut self,
        py: Python<'py>,
        outs: Option<&Items<'_, 'py>>,
    ) -> PyResult<Option<Lanes<'_, 'py>>> {
        let class = ndarray(py);
        let mut outputs = Few::new();
        reserve(&mut outputs, self.flats.len())?;
        let Some(outs) = outs else {
            for input in &self.flats {
                outputs.push(match input {
                    Some(input) => Some(input.new_like(class)?),
                    None => None,
                });
            }
            let lanes = Lanes { inputs: self, outputs };
            return Ok(if lanes.inputs.is_current() && lanes.are_alike() { Some(lanes) } else { None });
        };
        let fit = outs.at_once(|| -> PyResult<bool> {
            if outs.len() != self.flats.len() {
                return Ok(false);
            }
            for (i, input) in self.flats.iter().enumerate() {
                let out = outs.get(i)?;
                let Some(input) = input else {
                    if !out.is_none() {
                        return Ok(false);
                    }
                    outputs.push(None);
                    continue;
                };
                let Some(output) = Flat::of(out, class) else { return Ok(false) };
                if !input.takes(&output) {
                    return Ok(false);
                }
                outputs.push(Some(output));
            }
            Ok(true)
        })?;
        if !fit {
            return Ok(None);
        }
        let lanes = Lanes { inputs: self, outputs };
        let sound = lanes.inputs.is_current() && lanes.are_alike() && lanes.are_apart()?;
        Ok(if sound { Some(lanes) } else { None })
    }
}

/// Inputs, and outputs that share no memory but where an output is its input.
pub(in crate::py) struct Lanes<'a, 'py> {
    inputs: &'a mut Flats<'py>,
    outputs: Few<Option<Flat<'py>>>,
}

impl<'py> Lanes<'_, 'py> {
    fn pairs(&self) -> impl Iterator<Item = (&Flat<'py>, &Flat<'py>)> {
        self.inputs.flats.iter().flatten().zip(self.outputs.iter().flatten())
    }

    /// Whether outputs have as many elements as their inputs, and of the same dtype: both were read one after the
    /// other, and without a GIL another thread may have changed one of them between.
    fn are_alike(&self) -> bool {
        self.pairs().all(|(input, output)| input.len == output.len && input.dtype == output.dtype)
    }

    fn are_apart(&self) -> Result<bool> {
        let mut extents: SmallVec<[(usize, usize); 2]> = SmallVec::new();
        reserve(&mut extents, 2 * self.outputs.len())?;
        let mut add = |flat: &Flat<'_>| {
            let low = flat.data.addr().get();
            if flat.len > 0 {
                extents.push((low, low + flat.bytes()));
            }
        };
        for (input, output) in self.pairs() {
            add(output);
            if output.data != input.data {
                add(input);
            }
        }
        extents.sort_unstable();
        Ok(extents.iter().zip(extents.iter().skip(1)).all(|((_, high), (low, _))| high <= low))
    }

    fn is_current(&self) -> bool {
        self.pairs().all(|(input, output)| input.is_current() && output.is_current())
    }

    /// What norms are made of, before anything is written.
    pub(in crate::py) fn inputs(&self) -> &Flats<'py> {
        self.inputs
    }

    /// Calls `work` with what to write, and what to read for it; unless there is something to do in place, with what is
    /// not in place. At once with all that is `many`, or with each alone.
    pub(in crate::py) fn with_tasks(
        &mut self,
        in_place: bool,
        many: bool,
        mut work: impl FnMut(&mut [AnyTask<'_>]) -> Result<()>,
    ) -> PyResult<()> {
        if !self.is_current() {
            return Err(resized());
        }
        let mut tasks = vec_with_room(if many { self.outputs.len() } else { 0 })?;
        for (input, output) in self.pairs().filter(|(input, output)| in_place || input.data != output.data) {
            match_real!(input.dtype, T => {
                // SAFETY: the lanes are borrowed mutably.
                let mut task = unsafe { task::<T>(input, output) }.into();
                if many { tasks.push(task) } else { work(slice::from_mut(&mut task))? }
            }, return Err(not_flat()));
        }
        if many { Ok(work(&mut tasks)?) } else { Ok(()) }
    }

    /// The task of the only pair, of elements of T.
    pub(in crate::py) fn task<T: Ordered>(&mut self) -> PyResult<Task<'_, T>> {
        match self.pairs().next() {
            // SAFETY: the lanes are borrowed mutably.
            Some((input, output)) if input.dtype == T::DTYPE => Ok(unsafe { task(input, output) }),
            _ => Err(not_flat()),
        }
    }

    /// The same as slices of `len` elements, for which see [`Flats::row_len`].
    pub(in crate::py) fn rows<T: Ordered>(&mut self, len: usize) -> PyResult<Rows<'_, T>> {
        let Task { source, target: Target::Dense(rows) } = self.task::<T>()? else { return Err(not_flat()) };
        let along = |axis| Layout::new([axis]);
        let source = match source {
            None => None,
            Some(View::Dense(elements)) => Some(Slices {
                memory: Memory::Elements(elements),
                start: 0,
                kept: along(Axis { len: elements.len() / len.max(1), stride: len.cast_signed() }),
                reduced: along(Axis { len, stride: 1 }),
            }),
            Some(View::Strided { .. }) => return Err(not_flat()),
        };
        Ok((source, rows))
    }

    /// The outputs in a list, to be made before they are written: there may be no memory for it.
    pub(in crate::py) fn list(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let output = |output: &Option<Flat<'py>>| match output {
            Some(flat) => flat.object.clone(),
            None => py.None().into_bound(py),
        };
        objects::list_of(py, self.outputs.iter().map(output))
    }

    /// The only output.
    pub(in crate::py) fn into_one(self) -> PyResult<Bound<'py, PyAny>> {
        let only = self.outputs.into_iter().flatten().next();
        only.map(|flat| flat.object).ok_or_else(not_flat)
    }
}

/// What to do for a pair.
///
/// # Safety
/// The lanes of the pair are borrowed mutably for the task's lifetime.
unsafe fn task<'a, T: Ordered>(input: &'a Flat<'_>, output: &'a Flat<'_>) -> Task<'a, T> {
    // SAFETY: `Lanes` are made of outputs that are writeable and lie apart from one another and from all inputs but,
    // maybe, their own, for which there is no source then. They have the dtypes of their inputs. Nobody else
    // borrows from them, says the caller.
    unsafe {
        let source = (input.data != output.data).then(|| View::Dense(input.elements::<T>()));
        Task { source, target: Target::Dense(output.elements_mut::<T>()) }
    }
}

fn not_flat() -> PyErr {
    internal("a flat array that is none")
}
