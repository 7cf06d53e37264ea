//! Reading the arguments of a call, and the errors about them.
//!
//! Plain arguments are read here: numbers, strings, tuples and lists of Python's own classes, numbers of NumPy, and plain arrays.
//! `gradclip._checks` reads all others and makes the errors. Arguments are checked in the order of the signature, the type before
//! the value, and all of them before anything is written.

use std::fmt::{self, Display};

use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString, PyTuple};

use super::array::items::Items;
use super::array::{Array, internal, objects, resized};
use super::classes::{is_cupy, is_masked};
use super::kinds::Kinds;
use super::memory_limit::POOL_BYTES;
use super::process::RunsPython;
use crate::element::Dtype;
use crate::error::{Error, vec_with_room};
use crate::isa::FloatDefaults;
use crate::parallel::THREADS;
use crate::parallel::reduce::Order;
use crate::scaled::NonFinite;

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        match error {
            Error::Memory => PyMemoryError::new_err("gradclip: out of memory for scratch space"),
            Error::Setting(text) => PyValueError::new_err(text),
        }
    }
}

/// A tensor argument: an array, and the `IndexedSlices` that hold it as their values, if there are any.
pub(super) struct Tensor<'py> {
    pub(super) array: Array<'py>,
    pub(super) slices: Option<Bound<'py, PyAny>>,
}

/// An argument, or an entry of a list argument, for a message. The text is made only when it is displayed.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a>(pub(super) &'a str, pub(super) Option<usize>);

impl Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(at) => write!(f, "{}[{at}]", self.0),
            None => f.write_str(self.0),
        }
    }
}

/// One call of a public function.
pub(super) struct Call<'a, 'py> {
    pub(super) py: Python<'py>,
    function: &'a str,
    name: Option<&'a Bound<'py, PyAny>>,
    /// Whether the arguments that are not tensors are read without Python code.
    pub(super) is_plain: bool,
    runs_python: RunsPython,
    /// Set for the whole call, because limits and factors are computed throughout.
    _control: FloatDefaults,
}

impl<'a, 'py> Call<'a, 'py> {
    /// Begins a call; `others` are its arguments that are neither tensors nor flags. An invalid setting is an error of every
    /// call, even a small one.
    #[inline]
    pub(super) fn new<const N: usize>(
        py: Python<'py>,
        function: &'a str,
        name: Option<&'a Bound<'py, PyAny>>,
        others: [Option<&Bound<'py, PyAny>>; N],
    ) -> PyResult<Self> {
        THREADS.check()?;
        POOL_BYTES.check()?;
        let (runs_python, control) = (RunsPython::default(), FloatDefaults::set());
        let is_plain = name.is_none_or(is_plain) && others.into_iter().flatten().all(is_plain);
        if !is_plain {
            runs_python.begin(py);
        }
        Ok(Self { py, function, name, is_plain, runs_python, _control: control })
    }

    /// A module of the package whose functions are to be called.
    #[cold]
    #[inline(never)] // the fast path does not reach it
    pub(super) fn module(&self, name: &str) -> PyResult<Bound<'py, PyModule>> {
        self.runs_python.begin(self.py);
        self.py.import(name)
    }

    /// Hands the call on to the Python function of the same name for dask arrays, or for arrays on a GPU.
    #[cold]
    #[inline(never)]
    pub(super) fn hand_on(
        &self,
        is_lazy: bool,
        arguments: impl PyCallArgs<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let module = if is_lazy { "gradclip._dask" } else { "gradclip._cuda" };
        self.module(module)?.call_method1(self.function, arguments)
    }

    /// Calls a method of `gradclip._checks.Checks`.
    #[cold]
    #[inline(never)]
    pub(super) fn check(&self, method: &str, arguments: impl PyCallArgs<'py>) -> PyResult<Bound<'py, PyAny>> {
        let class = self.module("gradclip._checks")?.getattr(intern!(self.py, "Checks"))?;
        class.call1((self.function, self.name))?.call_method1(method, arguments)
    }

    /// The error that a method of `gradclip._checks.Checks` returns or raises.
    #[cold]
    #[inline(never)]
    pub(super) fn error(&self, method: &str, arguments: impl PyCallArgs<'py>) -> PyErr {
        self.check(method, arguments).map_or_else(|error| error, PyErr::from_value)
    }

    /// The error for a dask array in a call whose norm is shared: dask has its own workers.
    pub(super) fn shared_lazy(&self, argument: &str) -> PyErr {
        self.error(
            "type_error",
            (argument, "a dask array", "NumPy arrays, with comm=, replicated= or reproducible=True"),
        )
    }

    /// The error for arrays on a GPU where a function, or the value of an argument, supports only NumPy arrays.
    pub(super) fn not_on_device(&self, argument: impl Display) -> PyErr {
        let allowed = "NumPy arrays; .get() makes one of an array on a GPU";
        self.error("type_error", (argument.to_string(), "a cupy.ndarray", allowed))
    }

    /// The error for NaN and infinity in `tensors`: a tensor, or a tuple of the tensors of a list. With `axes`, each slice
    /// along them has its own norm; otherwise `norm` is the norm of all tensors.
    #[cold]
    #[inline(never)]
    pub(super) fn nonfinite_error(
        &self,
        argument: &str,
        tensors: &Items<'py>,
        axes: Option<&[usize]>,
        norm: f64,
    ) -> PyErr {
        self.error("nonfinite_error", ("error", argument, tensors.clone().into_any(), axes, norm))
    }

    pub(super) fn check_name(&self) -> PyResult<()> {
        match self.name {
            Some(name) if !name.is_instance_of::<PyString>() => Err(self.error("check_name", ())),
            _ => Ok(()),
        }
    }

    /// A tensor, or `IndexedSlices` of one for a function that takes them.
    pub(super) fn tensor(
        &self,
        argument: Entry<'_>,
        object: &Bound<'py, PyAny>,
        kinds: Kinds,
        takes_slices: bool,
    ) -> PyResult<Tensor<'py>> {
        self.runs_python.begin(self.py);
        let (array, slices) = if let Some(array) = plain_array(object) {
            (array, None)
        } else if let Some(array) = Array::of_scalar(object)? {
            (array, None) // a sum that is the gradient of a bias, for example
        } else if is_cupy(object) {
            return Err(self.not_on_device(argument));
        } else {
            let found = self.check("array_or_values", (argument.to_string(), object, takes_slices))?;
            let (made, slices): (Bound<'py, PyAny>, _) = found.extract()?;
            (Array::read(&made).ok_or_else(|| internal("NumPy made no array"))?.0, slices)
        };
        if array.dtype().is_some_and(|dtype| kinds.has(dtype)) {
            return Ok(Tensor { array, slices });
        }
        Err(self.error("wrong_dtype", (argument.to_string(), object, array.object(), kinds.names())))
    }

    /// The output for a tensor: an array that fits, or `IndexedSlices` of one if the tensor is `IndexedSlices`.
    pub(super) fn out(
        &self,
        argument: Entry<'_>,
        out: &Bound<'py, PyAny>,
        tensor: &Tensor<'py>,
    ) -> PyResult<Array<'py>> {
        let (dtype, shape) = (tensor.array.dtype(), tensor.array.shape());
        let fits =
            |array: &Array<'_>| array.dtype() == dtype && array.shape() == shape && array.is_writeable();
        match plain_array(out) {
            Some(array) if tensor.slices.is_none() && fits(&array) => Ok(array),
            _ => {
                let name = dtype.map_or("", Dtype::name);
                let arguments = (argument.to_string(), out, tensor.slices.as_ref(), name, shape);
                let values = self.check("fitting_out", arguments)?;
                Array::read(&values).map(|(array, _)| array).filter(fits).ok_or_else(resized)
            }
        }
    }

    /// The entries of a list of tensors.
    pub(super) fn sequence(&self, object: &Bound<'py, PyAny>) -> PyResult<Items<'py>> {
        match Items::of_list(object)? {
            Some(items) => Ok(items),
            None => Ok(Items::Many(self.check("sequence", (object,))?.cast_into()?, None)),
        }
    }

    /// The entries of an argument that has one for each tensor of a list.
    pub(super) fn sequence_of(
        &self,
        argument: &str,
        object: &Bound<'py, PyAny>,
        count: usize,
        allowed: &str,
    ) -> PyResult<Bound<'py, PyTuple>> {
        match Items::of_list(object)? {
            Some(Items::Many(entries, _)) if entries.len() == count => Ok(entries),
            _ => Ok(self.check("sequence_of", (argument, object, count, allowed))?.cast_into()?),
        }
    }

    /// Reads a bool; `allowed` names the values that are allowed.
    pub(super) fn flag(&self, argument: &str, object: &Bound<'py, PyAny>, allowed: &str) -> PyResult<bool> {
        match object.cast::<PyBool>() {
            Ok(flag) => Ok(flag.is_true()),
            Err(_) => Err(self.error("wrong_type", (argument, object, allowed))),
        }
    }

    /// The value of one of several words. `default` is the first word, as an interned object: comparing strings would take
    /// measurable time in small calls.
    #[inline]
    pub(super) fn choice<T: Copy, const N: usize>(
        &self,
        argument: &str,
        object: &Bound<'py, PyAny>,
        default: &Bound<'py, PyString>,
        words: [(&str, T); N],
    ) -> PyResult<T> {
        let is_word = |word: &str| object.cast::<PyString>().is_ok_and(|text| text == word);
        let found = words.iter().find(|(word, _)| object.is(default) || is_word(word));
        found.map(|(_, value)| *value).ok_or_else(|| {
            let allowed = words.map(|(word, _)| format!("'{word}'")).join(", ");
            self.error("wrong_word", (argument, object, allowed))
        })
    }

    /// The value of the argument `nonfinite` of a clipper. If all tensors have a `common` norm, NaN and infinity spread to all
    /// elements.
    #[inline]
    pub(super) fn nonfinite(&self, object: &Bound<'py, PyAny>, common: bool) -> PyResult<NonFinite> {
        let words = [
            ("propagate", if common { NonFinite::Spread } else { NonFinite::Propagate }),
            ("raise", NonFinite::Raise),
            ("zero", NonFinite::Erase),
            ("keep", NonFinite::Keep),
        ];
        self.choice("nonfinite", object, intern!(self.py, "propagate"), words)
    }

    /// Checks `strict`: it does not allow `nonfinite='keep'`.
    pub(super) fn check_strict(&self, strict: bool, nonfinite: NonFinite) -> PyResult<()> {
        if strict && nonfinite == NonFinite::Keep {
            let allowed = "'propagate', 'raise', 'zero' under strict=True";
            return Err(self.error("value_error", ("nonfinite", "'keep'", allowed)));
        }
        Ok(())
    }

    /// Reads a limit: a real number that is not negative; NaN only if `nan`.
    pub(super) fn limit(&self, argument: &str, object: &Bound<'py, PyAny>, nan: bool) -> PyResult<f64> {
        match plain_limit(object) {
            Some(limit) => Ok(limit),
            None => self.check("limit", (argument, object, nan))?.extract(),
        }
    }

    /// A limit for each of `count` tensors: one number for all, or a sequence of numbers, where None means no limit. The second
    /// value is whether it is a sequence.
    pub(super) fn limits(
        &self,
        argument: &str,
        object: &Bound<'py, PyAny>,
        count: usize,
    ) -> PyResult<(Vec<f64>, bool)> {
        if let Some(limits) = plain_limits(object, count)? {
            return Ok(limits);
        }
        let found = self.check("limits", (argument, object, count))?;
        plain_limits(&found, count)?.ok_or_else(|| internal("limits that are no numbers"))
    }

    /// Reads the `ord` of a function that has only vector norms.
    pub(super) fn vector_order(&self, ord: &Bound<'py, PyAny>) -> PyResult<Order> {
        match plain_order(ord) {
            Some(order) => Ok(order),
            None => Ok(Order::of(self.check("order", (ord,))?.extract()?)),
        }
    }

    /// Axes as numbers from 0 on, in the given order. None: all of them.
    pub(super) fn axes(
        &self,
        argument: &str,
        object: Option<&Bound<'py, PyAny>>,
        ndim: usize,
    ) -> PyResult<Option<Vec<usize>>> {
        let Some(object) = object else { return Ok(None) };
        match plain_axes(object, ndim)? {
            Some(axes) => Ok(Some(axes)),
            None => self.check("axes", (argument, object, ndim))?.extract(),
        }
    }
}

/// Whether an object is None, a number, a string, a bool or a tuple of ints, of Python or NumPy and not of a subclass, so that
/// reading it runs no Python code.
fn is_plain(object: &Bound<'_, PyAny>) -> bool {
    let is_int = |entry: Borrowed<'_, '_, PyAny>| entry.is_exact_instance_of::<PyInt>();
    object.is_exact_instance_of::<PyFloat>()
        || object.is_exact_instance_of::<PyInt>()
        || object.is_exact_instance_of::<PyString>()
        || object.is_exact_instance_of::<PyBool>()
        || object.is_none()
        || object.cast_exact::<PyTuple>().is_ok_and(|tuple| tuple.iter_borrowed().all(is_int))
        || objects::is_float(object)
        || objects::is_integer(object)
}

/// An array that is not a masked array.
#[inline]
fn plain_array<'py>(object: &Bound<'py, PyAny>) -> Option<Array<'py>> {
    Array::read(object).filter(|(_, subclass)| !subclass || !is_masked(object)).map(|(array, _)| array)
}

/// The value of a plain number, or of a plain 0-d array, if it lies in float64's range.
#[inline]
fn plain_number(object: &Bound<'_, PyAny>) -> Option<f64> {
    if let Ok(float) = object.cast::<PyFloat>() {
        return Some(float.value());
    }
    // bfloat16 is not a dtype of NumPy, and converts wrongly where its byte order is not the native one.
    let is_real = |dtype: Dtype| dtype.is_ordered() && dtype != Dtype::Bf16;
    let is_number = object.is_exact_instance_of::<PyInt>()
        || objects::is_float(object)
        || objects::is_integer(object)
        || matches!(Array::read(object), Some((array, false))
            if array.ndim() == 0 && array.dtype().is_some_and(is_real));
    if is_number { object.extract().ok() } else { None }
}

fn plain_limit(object: &Bound<'_, PyAny>) -> Option<f64> {
    plain_number(object).filter(|limit| *limit >= 0.0).map(f64::abs) // -0.0 becomes 0
}

fn plain_limits(object: &Bound<'_, PyAny>, count: usize) -> PyResult<Option<(Vec<f64>, bool)>> {
    let mut limits = vec_with_room(count)?;
    if let Some(limit) = plain_limit(object) {
        limits.resize(count, limit);
        return Ok(Some((limits, false)));
    }
    let Some(entries) = Items::of_list(object)?.filter(|entries| entries.len() == count) else {
        return Ok(None);
    };
    for i in 0..count {
        let entry = entries.get(i)?;
        let limit = if entry.is_none() { Some(f64::INFINITY) } else { plain_limit(&entry) };
        let Some(limit) = limit else { return Ok(None) };
        limits.push(limit);
    }
    Ok(Some((limits, true)))
}

/// The order of vector norms that a plain `ord` names.
fn plain_order(ord: &Bound<'_, PyAny>) -> Option<Order> {
    match ord.cast::<PyString>() {
        Ok(text) => (text.to_string_lossy() == "euclidean").then_some(Order::Two),
        Err(_) => plain_number(ord).filter(|p| *p > 0.0).map(Order::of),
    }
}

/// An int of Python or NumPy, or a tuple or list of these, as axes, if they are different and in range.
fn plain_axes(object: &Bound<'_, PyAny>, ndim: usize) -> PyResult<Option<Vec<usize>>> {
    let ndim = ndim.cast_signed();
    let read = |entry: &Bound<'_, PyAny>| {
        let is_int = entry.is_exact_instance_of::<PyInt>() || objects::is_integer(entry);
        let axis = is_int.then(|| entry.extract::<isize>().ok()).flatten()?;
        (-ndim..ndim).contains(&axis).then(|| axis.rem_euclid(ndim).cast_unsigned())
    };
    if let Some(axis) = read(object) {
        return Ok(Some(vec![axis]));
    }
    let (Some(entries), mut axes) = (Items::of_list(object)?, Vec::new()) else { return Ok(None) };
    for i in 0..entries.len() {
        match read(&*entries.get(i)?) {
            Some(axis) if !axes.contains(&axis) => axes.push(axis),
            _ => return Ok(None),
        }
    }
    Ok(Some(axes))
}
