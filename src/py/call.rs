//! Reading the arguments of a call, and the errors about them.
//!
//! Every message has the form `function 'name': argument: found ...; allowed: ...`. Arguments are checked in
//! the order of the signature, the type before the value, and all of them before anything is written.

use std::fmt::{self, Display};

use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyException, PyMemoryError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyAny, PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyIterator, PyList, PyString, PyTuple,
    PyType,
};
use pyo3::{PyTypeInfo, intern};

use super::array::items::{Held, Items};
use super::array::{Array, objects};
use super::classes::{
    integer, is_any_sequence, is_list, is_masked, is_numpy, is_slices, item, numeric_kind, plain,
};
use super::kinds::Kinds;
use super::memory_limit::POOL_BYTES;
use super::process::RunsPython;
use super::text::{class_text, describe, dtype_text, name_text, shape_text, text_of};
use crate::element::Dtype;
use crate::error::{Error, vec_with_room};
use crate::isa::FloatDefaults;
use crate::parallel::THREADS;
use crate::parallel::reduce::Order;
use crate::scaled::NonFinite;

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Memory => PyMemoryError::new_err(text),
            Error::Setting { .. } => PyValueError::new_err(text),
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

/// The numbers that are limits, for errors.
const A_LIMIT: &str = "a real number >= 0 (a Python or NumPy int, float or 0-d array)";

/// One call of a public function.
pub(super) struct Call<'a, 'py> {
    py: Python<'py>,
    function: &'a str,
    name: Option<&'a Bound<'py, PyAny>>,
    runs_python: RunsPython,
    /// Limits and factors are computed during the whole call.
    _control: FloatDefaults,
}

impl<'a, 'py> Call<'a, 'py> {
    /// Begins a call. An invalid setting is an error of every call, even a small one.
    pub(super) fn new(
        py: Python<'py>,
        function: &'a str,
        name: Option<&'a Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        THREADS.check()?;
        POOL_BYTES.check()?;
        let (runs_python, control) = (RunsPython::default(), FloatDefaults::set());
        Ok(Self { py, function, name, runs_python, _control: control })
    }

    /// The call for which a Python part of the package makes checks.
    pub(super) fn of_python(
        py: Python<'py>,
        function: &'a str,
        name: Option<&'a Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let call = Self::new(py, function, name)?;
        call.runs_python.begin(py);
        Ok(call)
    }

    pub(super) fn py(&self) -> Python<'py> {
        self.py
    }

    /// Must be called before Python code may run.
    pub(super) fn may_run_python(&self) {
        self.runs_python.begin(self.py);
    }

    /// Hands the call on to the Python function of the same name for dask arrays, or for arrays on a GPU.
    #[cold]
    #[inline(never)] // the fast path does not reach it
    pub(super) fn hand_on(
        &self,
        is_lazy: bool,
        arguments: impl PyCallArgs<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.runs_python.begin(self.py);
        let module = if is_lazy { "gradclip._dask" } else { "gradclip._cuda" };
        self.py.import(module)?.call_method1(self.function, arguments)
    }

    /// The error for a dask array in a call whose norm is shared: dask has its own workers.
    pub(super) fn shared_lazy(&self, argument: &str) -> PyErr {
        self.type_error(argument, "a dask array", "NumPy arrays, with comm= or reproducible=True")
    }

    pub(super) fn prefix(&self) -> String {
        let name = self.name.and_then(|name| name.cast::<PyString>().ok());
        name.map_or_else(
            || self.function.to_owned(),
            |name| format!("{} '{}'", self.function, name_text(name)),
        )
    }

    fn message(&self, argument: impl Display, found: impl Display, allowed: impl Display) -> String {
        format!("{}: {argument}: found {found}; allowed: {allowed}", self.prefix())
    }

    pub(super) fn type_error(&self, argument: impl Display, found: impl Display, allowed: &str) -> PyErr {
        PyTypeError::new_err(self.message(argument, found, allowed))
    }

    pub(super) fn value_error(&self, argument: impl Display, found: impl Display, allowed: &str) -> PyErr {
        PyValueError::new_err(self.message(argument, found, allowed))
    }

    /// TensorFlow's message for an argument that is not a list of tensors, with advice for a dict and an iterator.
    fn no_sequence(&self, found: &Bound<'py, PyAny>) -> PyErr {
        let class = class_text(found);
        let has_trees = !["clip_by_norms", "clip_by_weight_norm", "clip_examples_by_global_norm"]
            .contains(&self.function);
        let advice = if found.is_instance_of::<PyDict>() && has_trees {
            " Use gradclip.tree for a dict, or pass list(t_list.values())."
        } else if found.is_instance_of::<PyDict>() {
            " Pass list(t_list.values())."
        } else if found.is_instance_of::<PyIterator>() || class == "<class 'dict_values'>" {
            " Pass list(t_list)."
        } else {
            ""
        };
        let sentence = format!("`t_list` should be a sequence of tensors. Received {class}.{advice}");
        PyTypeError::new_err(match self.name {
            Some(_) => format!("{}: {sentence}", self.prefix()),
            None => sentence,
        })
    }

    fn axis_error(&self, argument: &str, axis: &str, ndim: usize) -> PyErr {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let text = self.message(argument, axis, format_args!("axes of an array with {ndim} dimensions"));
        match CLASS.import(self.py, "numpy.exceptions", "AxisError") {
            Ok(class) => PyErr::from_type(class.clone(), (text,)),
            Err(error) => error,
        }
    }

    pub(super) fn check_name(&self) -> PyResult<()> {
        match self.name {
            Some(name) if !name.is_instance_of::<PyString>() => {
                Err(self.type_error("name", describe(name), "None or a str"))
            }
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
        let (array, slices) = match Array::read(object) {
            Some((array, false)) => (array, None),
            _ if !is_slices(object)? => (self.array(argument, object)?, None),
            _ if takes_slices => {
                let values = object.getattr(intern!(self.py, "values"))?;
                (self.array(argument, &values)?, Some(object.clone()))
            }
            _ => {
                let allowed = "an array; use .to_dense() to make one";
                return Err(self.type_error(argument, "IndexedSlices", allowed));
            }
        };
        if array.dtype().is_some_and(|dtype| kinds.has(dtype)) {
            Ok(Tensor { array, slices })
        } else {
            Err(self.wrong_dtype(argument, object, &array, kinds))
        }
    }

    /// The error for a tensor of a dtype that is none of `kinds`.
    #[cold]
    fn wrong_dtype(
        &self,
        argument: Entry<'_>,
        object: &Bound<'py, PyAny>,
        array: &Array<'py>,
        kinds: Kinds,
    ) -> PyErr {
        let mut found = dtype_text(array.object());
        if Array::read(object).is_none() && found == "dtype object" {
            found = format!("{}, of which NumPy makes {found}", describe(object));
        }
        self.type_error(argument, found, &kinds.list())
    }

    /// The error for a masked array.
    fn masked(&self, argument: impl Display) -> PyErr {
        self.type_error(argument, "a masked array", "an array without a mask; .filled() makes one")
    }

    /// Reads any object that NumPy converts to an array, except a masked array.
    pub(super) fn array(&self, argument: Entry<'_>, object: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
        const ALLOWED: &str = "an array, a number or a nested list of numbers";
        let masked = || self.masked(argument);
        if let Some((array, subclass)) = Array::read(object) {
            return if subclass && is_masked(object)? { Err(masked()) } else { Ok(array) };
        }
        if object.is_none() {
            return Err(self.type_error(argument, "None", ALLOWED));
        }
        if is_any_sequence(object)? {
            let holds = sequences(self.py)?.call_method1(intern!(self.py, "holds_masked_array"), (object,));
            if self.checked_length(argument, holds)?.extract()? {
                return Err(masked());
            }
        }
        let made = self.converted(argument, object)?;
        match Array::read(&made) {
            Some((_, true)) if is_masked(&made)? => Err(masked()),
            Some((array, _)) => Ok(array),
            None => Err(self.type_error(argument, describe(object), ALLOWED)),
        }
    }

    /// The array that NumPy makes of an object. Exceptions of the object's `__array__` pass through.
    fn converted(&self, argument: Entry<'_>, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        as_array(object).map_err(|error| {
            let says = |words| {
                error.is_instance_of::<PyValueError>(self.py)
                    && error.value(self.py).str().is_ok_and(|text| text.contains(words).unwrap_or(false))
            };
            let named = if !is_list(object) {
                return error;
            } else if says("inhomogeneous") {
                let rows = "a nested list whose rows have equal lengths";
                let of_tensors = "; a list of tensors is for functions such as clip_by_global_norm";
                let allowed =
                    if argument.1.is_none() { format!("{rows}{of_tensors}") } else { rows.to_owned() };
                self.value_error(argument, "a ragged list", &allowed)
            } else if says("maximum number of dimension") {
                self.value_error(argument, "a list nested too deep", "at most 64 dimensions")
            } else {
                return error;
            };
            named.set_cause(self.py, Some(error));
            named
        })
    }

    /// The output for a tensor: an array that fits, or `IndexedSlices` of one if the tensor is `IndexedSlices`.
    pub(super) fn out(
        &self,
        argument: Entry<'_>,
        out: &Bound<'py, PyAny>,
        tensor: &Tensor<'py>,
    ) -> PyResult<Array<'py>> {
        let Some(slices) = &tensor.slices else { return self.fitting_out(argument, out, out, tensor) };
        if !is_slices(out)? {
            return Err(self.type_error(argument, describe(out), "None or IndexedSlices, as the input is"));
        }
        let values = self.fitting_out(argument, out, &out.getattr("values")?, tensor)?;
        let allowed = "IndexedSlices with the indices and the dense_shape of the input";
        let (a, b) = (slices.getattr("indices")?, out.getattr("indices")?);
        if !a.is(&b) && !self.py.import("numpy")?.call_method1("array_equal", (a, b))?.is_truthy()? {
            return Err(self.value_error(argument, "other indices", allowed));
        }
        let (a, b) = (slices.getattr("dense_shape")?, out.getattr("dense_shape")?);
        if !a.eq(&b)? {
            return Err(self.value_error(argument, format!("dense_shape {}", text_of(&b)), allowed));
        }
        Ok(values)
    }

    /// The array `values` of an output, if it fits the tensor.
    fn fitting_out(
        &self,
        argument: Entry<'_>,
        out: &Bound<'py, PyAny>,
        values: &Bound<'py, PyAny>,
        tensor: &Tensor<'py>,
    ) -> PyResult<Array<'py>> {
        let Some((array, subclass)) = Array::read(values) else {
            return Err(self.type_error(argument, describe(out), "None or a numpy.ndarray"));
        };
        if subclass && is_masked(values)? {
            return Err(self.type_error(argument, "a masked array", "an array without a mask"));
        }
        if array.dtype() != tensor.array.dtype() {
            let allowed = format!("dtype {}", tensor.array.dtype().map_or("", Dtype::name));
            return Err(self.type_error(argument, dtype_text(values), &allowed));
        }
        if array.shape() != tensor.array.shape() {
            let text = |array: &Array<'_>| format!("shape {}", shape_text(array.shape()));
            return Err(self.value_error(argument, text(&array), &text(&tensor.array)));
        }
        if !array.is_writeable() {
            return Err(self.value_error(argument, "a read-only array", "a writeable one"));
        }
        Ok(array)
    }

    /// The result for a tensor: the array, or `IndexedSlices` around it.
    pub(super) fn result(
        &self,
        values: Bound<'py, PyAny>,
        slices: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match (slices, out) {
            (_, Some(out)) => Ok(out.clone()),
            (None, None) => Ok(values),
            (Some(slices), None) => slices.call_method1(intern!(self.py, "_with_values"), (values,)),
        }
    }

    /// The error for two outputs that share memory.
    pub(super) fn clash(&self, a: Entry, b: Entry) -> PyErr {
        let found = if a.1 == b.1 {
            "an array whose own elements overlap".to_owned()
        } else {
            format!("an array that shares memory with {a}")
        };
        self.value_error(b, found, "arrays that share no byte")
    }

    /// The entries of a list of tensors.
    pub(super) fn sequence<'b>(&self, object: &'b Bound<'py, PyAny>) -> PyResult<Items<'b, 'py>> {
        if let Some(items) = Items::of_list(object)? {
            return Ok(items);
        }
        self.runs_python.begin(self.py);
        if is_sequence(object)? {
            Ok(Items::of_entries(self.entries(Entry("t_list", None), object)?))
        } else {
            Err(self.no_sequence(object))
        }
    }

    /// The entries of a sequence as a tuple, as many as its length says. Any other number of them is an error, and so is an
    /// endless sequence.
    fn entries(&self, argument: Entry<'_>, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
        if let Ok(list) = object.cast::<PyList>() {
            return objects::tuple_of_list(list);
        }
        if let Ok(tuple) = object.cast::<PyTuple>() {
            return objects::tuple_of_tuple(tuple);
        }
        let entries = sequences(self.py)?.call_method1(intern!(self.py, "entries_of"), (plain(object)?,));
        objects::tuple_of_list(self.checked_length(argument, entries)?.cast()?)
    }

    /// The entries that were read. If their number is not the length of the sequence, the error gets the argument's name.
    pub(super) fn checked_length<T>(&self, argument: impl Display, read: PyResult<T>) -> PyResult<T> {
        read.map_err(|error| {
            let found = error.value(self.py);
            match sequences(self.py).and_then(|module| module.getattr("WrongLengthError")) {
                Ok(class) if found.is_exact_instance(&class) => {
                    self.value_error(argument, found, "a sequence with len() entries")
                }
                _ => error,
            }
        })
    }

    /// The entries of `out` for a list of tensors.
    pub(super) fn out_sequence(
        &self,
        object: Option<&Bound<'py, PyAny>>,
        tensors: usize,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some(object) = object else { return Ok(None) };
        match self.entries_of("out", object, tensors, false)? {
            None => Err(self.type_error("out", describe(object), "None or a sequence of arrays")),
            entries => Ok(entries),
        }
    }

    /// The entries of an argument that has one for each tensor of a list. None if it is neither a sequence nor, where the function
    /// `takes_vector`, an array with one dimension. A masked array is refused.
    pub(super) fn entries_of(
        &self,
        argument: &str,
        object: &Bound<'py, PyAny>,
        count: usize,
        takes_vector: bool,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let array = if takes_vector { Array::read(object) } else { None };
        let is_vector = array.as_ref().is_some_and(|(array, _)| array.ndim() == 1);
        if !is_vector && !is_sequence(object)? {
            return Ok(None);
        }
        if array.is_some_and(|(_, subclass)| subclass) && is_masked(object)? {
            return Err(self.masked(argument));
        }
        let entries = self.entries(Entry(argument, None), object)?;
        if entries.len() != count {
            let found = format!("length {}", entries.len());
            return Err(self.value_error(argument, found, &format!("length {count}, that of t_list")));
        }
        Ok(Some(entries))
    }

    /// Reads `keepdims`: None or a bool.
    pub(super) fn keepdims(&self, object: Option<&Bound<'py, PyAny>>) -> PyResult<bool> {
        let Some(object) = object else { return Ok(false) };
        match object.cast::<PyBool>() {
            Ok(keepdims) => Ok(keepdims.is_true()),
            Err(_) => Err(self.type_error("keepdims", describe(object), "None or a bool")),
        }
    }

    /// The value of one of some words.
    #[inline(never)]
    pub(super) fn choice<T: Copy, const N: usize>(
        &self,
        argument: &str,
        object: &Bound<'py, PyAny>,
        words: [(&str, T); N],
    ) -> PyResult<T> {
        let allowed = || words.map(|(word, _)| format!("'{word}'")).join(", ");
        let Ok(text) = object.cast::<PyString>() else {
            return Err(self.type_error(argument, describe(object), &allowed()));
        };
        let text = text.to_string_lossy();
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| self.value_error(argument, describe(object), &allowed()))
    }

    /// The value of the argument `nonfinite` of a clipper.
    #[inline]
    pub(super) fn nonfinite(&self, object: &Bound<'py, PyAny>) -> PyResult<NonFinite> {
        // The default, see `is_second`.
        if object.is(intern!(self.py, "propagate")) {
            return Ok(NonFinite::Propagate);
        }
        let words = [
            ("propagate", NonFinite::Propagate),
            ("raise", NonFinite::Raise),
            ("zero", NonFinite::Erase),
            ("keep", NonFinite::Keep),
        ];
        self.choice("nonfinite", object, words)
    }

    /// The error for NaN and infinity in `tensors`: a tensor, or a tuple of the tensors of a list. With `axes`, each slice
    /// along them has its own norm; otherwise `norm` is that of all tensors.
    #[cold]
    #[inline(never)]
    pub(super) fn nonfinite_error(
        &self,
        argument: &str,
        tensors: &Held<'py>,
        axes: Option<&[usize]>,
        norm: f64,
    ) -> PyErr {
        let (one, many) = match tensors {
            Held::One(tensor) => (Some(tensor), None),
            Held::Many(tensors) => (None, Some(tensors)),
        };
        self.error_of_python("error", (self.prefix(), argument, one, many, axes, norm))
    }

    /// The error that a function of `gradclip._nonfinite` returns.
    #[cold]
    pub(super) fn error_of_python(&self, function: &str, arguments: impl PyCallArgs<'py>) -> PyErr {
        let module = self.py.import("gradclip._nonfinite");
        let error = module.and_then(|module| module.call_method1(function, arguments));
        error.map_or_else(|error| error, PyErr::from_value)
    }

    /// Whether an argument is the second of two words. The first is its default, which is an interned object: comparing strings
    /// would take measurable time in small calls.
    #[inline]
    pub(super) fn is_second(
        &self,
        argument: &str,
        object: &Bound<'py, PyAny>,
        (default, second): (&Bound<'py, PyString>, &str),
    ) -> PyResult<bool> {
        if object.is(default) {
            return Ok(false);
        }
        self.choice(argument, object, [(&*default.to_string_lossy(), false), (second, true)])
    }

    /// Reads a bool.
    pub(super) fn flag(&self, argument: &str, object: &Bound<'py, PyAny>) -> PyResult<bool> {
        match object.cast::<PyBool>() {
            Ok(flag) => Ok(flag.is_true()),
            Err(_) => Err(self.type_error(argument, describe(object), "True or False")),
        }
    }

    /// Checks `strict`: it allows only Euclidean norms, and not `nonfinite='keep'`.
    pub(super) fn check_strict(
        &self,
        strict: bool,
        nonfinite: NonFinite,
        order: Option<(Order, &Bound<'py, PyAny>)>,
    ) -> PyResult<()> {
        match order {
            _ if !strict => Ok(()),
            Some((order, ord)) if order != Order::Two => {
                Err(self.value_error("ord", describe(ord), "2 under strict=True"))
            }
            _ if nonfinite == NonFinite::Keep => {
                let allowed = "'propagate', 'raise', 'zero' under strict=True";
                Err(self.value_error("nonfinite", "'keep'", allowed))
            }
            _ => Ok(()),
        }
    }

    /// The error for arrays on a GPU where a function, or the value of an argument, supports only NumPy arrays.
    pub(super) fn not_on_device(&self, argument: impl Display) -> PyErr {
        self.type_error(argument, "a cupy.ndarray", "NumPy arrays; .get() makes one of an array on a GPU")
    }

    /// Reads a limit: a real number that is not negative; NaN only if `nan`.
    pub(super) fn limit(
        &self,
        argument: impl Display,
        object: &Bound<'py, PyAny>,
        nan: bool,
    ) -> PyResult<f64> {
        self.limit_or(argument, object, nan, A_LIMIT)
    }

    /// [`Call::limit`] with other words for the allowed objects, where an argument may be more than a number.
    pub(super) fn limit_or(
        &self,
        argument: impl Display,
        object: &Bound<'py, PyAny>,
        nan: bool,
        allowed: &str,
    ) -> PyResult<f64> {
        match self.checked_length(&argument, number(object))? {
            Number::Real(value) if value >= 0.0 || (value.is_nan() && nan) => Ok(value.abs()), // -0.0 becomes 0
            Number::Real(_) => Err(self.value_error(argument, describe(object), A_LIMIT)),
            Number::Shaped(shape) => Err(self.value_error(argument, format!("shape {shape}"), allowed)),
            Number::No => Err(self.type_error(argument, describe(object), allowed)),
        }
    }

    /// Axes as numbers from 0 on, in the given order. None: all of them.
    pub(super) fn axes(
        &self,
        argument: &str,
        object: Option<&Bound<'py, PyAny>>,
        ndim: usize,
    ) -> PyResult<Option<Vec<usize>>> {
        const ALLOWED: &str = "None, an int or a sequence of ints";
        let Some(object) = object else { return Ok(None) };
        let wrong = || self.type_error(argument, describe(object), ALLOWED);
        let given = if let Some(axis) = integer(object)? {
            vec![axis]
        } else if is_axes(object)? {
            let entries = self.entries(Entry(argument, None), object)?;
            let mut given = vec_with_room(entries.len())?;
            for axis in &entries {
                given.push(integer(&axis)?.ok_or_else(wrong)?);
            }
            given
        } else {
            return Err(wrong());
        };
        let mut axes = Vec::new();
        for axis in given {
            let in_range = axis.extract::<isize>().ok().and_then(|axis| {
                let ndim = ndim.cast_signed();
                (-ndim..ndim).contains(&axis).then(|| axis.rem_euclid(ndim.max(1)).cast_unsigned())
            });
            let Some(at) = in_range else { return Err(self.axis_error(argument, &text_of(&axis), ndim)) };
            if axes.contains(&at) {
                return Err(self.value_error(argument, format!("axis {at} twice"), "each axis at most once"));
            }
            axes.push(at);
        }
        Ok(Some(axes))
    }
}

/// Whether all objects are Python numbers or strings that are not of a subclass, or `numpy.float64`, so that reading them runs no
/// Python code.
pub(super) fn are_plain<'a, 'py: 'a>(
    objects: impl IntoIterator<Item = Option<&'a Bound<'py, PyAny>>>,
) -> bool {
    objects.into_iter().flatten().all(|object| {
        object.is_exact_instance_of::<PyFloat>()
            || object.is_exact_instance_of::<PyInt>()
            || object.is_exact_instance_of::<PyString>()
            || objects::is_float64(object)
    })
}

/// Whether `axes` is None, an int, or a tuple of ints, so that reading it runs no Python code.
pub(super) fn are_plain_axes(axes: Option<&Bound<'_, PyAny>>) -> bool {
    let is_int = |axis: &Bound<'_, PyAny>| axis.is_exact_instance_of::<PyInt>();
    axes.is_none_or(|axes| match axes.cast_exact::<PyTuple>() {
        Ok(axes) => axes.iter_borrowed().all(|axis| is_int(&axis)),
        Err(_) => is_int(axes),
    })
}

/// The numeric value of an object, if it has one.
pub(super) enum Number {
    Real(f64),
    /// The shape of an array of numbers that is not 0-d.
    Shaped(String),
    No,
}

/// Reads a real number: a Python int or float, a NumPy or `ml_dtypes` scalar, or a 0-d array of these.
pub(super) fn number(object: &Bound<'_, PyAny>) -> PyResult<Number> {
    if let Ok(float) = object.cast::<PyFloat>() {
        return Ok(Number::Real(float.value()));
    }
    if object.is_instance_of::<PyBool>() {
        return Ok(Number::No);
    }
    if let Ok(int) = object.cast::<PyInt>() {
        return Ok(Number::Real(float_of(int)?));
    }
    let py = object.py();
    let object = if is_list(object) {
        // A list is not a number. It is converted for a better error: that of an array which is not 0-d. NumPy would read a sequence
        // without end in it until no memory is left.
        sequences(py)?.call_method1(intern!(py, "holds_masked_array"), (object,))?;
        match as_array(object) {
            Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
            Err(_) => return Ok(Number::No),
            Ok(array) => array,
        }
    } else if !is_numpy(object)? || is_masked(object)? {
        return Ok(Number::No);
    } else {
        plain(object)?
    };
    if !matches!(numeric_kind(&object)?, Some('i' | 'f')) {
        return Ok(Number::No);
    }
    if let Some((array, _)) = Array::read(&object)
        && array.ndim() != 0
    {
        return Ok(Number::Shaped(shape_text(array.shape())));
    }
    let item = item(&object)?;
    match item.cast::<PyInt>() {
        Ok(int) => Ok(Number::Real(float_of(int)?)),
        Err(_) => Ok(Number::Real(PyFloat::type_object(py).call1((item,))?.extract()?)),
    }
}

/// Rounds an int to float64; infinite if it is too large.
fn float_of(int: &Bound<'_, PyInt>) -> PyResult<f64> {
    match int.extract::<f64>() {
        Err(error) if error.is_instance_of::<PyOverflowError>(int.py()) => {
            Ok(if int.lt(0)? { f64::NEG_INFINITY } else { f64::INFINITY })
        }
        value => value,
    }
}

/// Whether TensorFlow accepts an object as a list of tensors: a sequence, but not one of other things, such as a str.
fn is_sequence(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if is_list(object) {
        return Ok(true);
    }
    let test = intern!(object.py(), "is_sequence_of_tensors");
    sequences(object.py())?.call_method1(test, (object,))?.extract()
}

/// Whether an object is a sequence that may hold axes: a list, a tuple, a range, or a 1-d array of integers.
fn is_axes(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match Array::read(object) {
        Some((array, _)) => Ok(array.ndim() == 1 && numeric_kind(&plain(object)?)? == Some('i')),
        None => Ok(is_any_sequence(object)?
            && !object.is_instance_of::<PyString>()
            && !object.is_instance_of::<PyBytes>()
            && !object.is_instance_of::<PyByteArray>()),
    }
}

/// The Python module that reads sequences.
fn sequences(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "gradclip._sequences"))
}

/// The array that NumPy makes of an object; it is of a subclass if the object's `__array__` returns one.
fn as_array<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    object
        .py()
        .import(intern!(object.py(), "numpy"))?
        .call_method1(intern!(object.py(), "asanyarray"), (object,))
}
