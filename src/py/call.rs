//! Reading the arguments of a call, and the errors about them.
//!
//! Every message has the form `function 'name': argument: found ...; allowed: ...`. Arguments are checked in
//! the order of the signature, the type before the value, and all of them before anything is written.

use std::borrow::Cow;
use std::fmt::{self, Display};

use numpy::PyUntypedArray;
use pyo3::exceptions::{PyMemoryError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyAny, PyBool, PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyListMethods,
    PySequence, PyString, PyTuple, PyTupleMethods, PyType,
};
use pyo3::{PyTypeInfo, intern};

use super::array::flat::Items;
use super::array::{Array, Out, memory};
use crate::element::Dtype;
use crate::error::Error;
use crate::parallel;

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Memory => PyMemoryError::new_err(text),
            Error::Setting { .. } => PyValueError::new_err(text),
        }
    }
}

/// The dtypes an argument may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kinds {
    /// All, for there is a norm of each.
    Normed,
    /// Those that can be scaled by their norm.
    Scalable,
    /// Those that can be clipped to bounds.
    Ordered,
}

impl Kinds {
    pub(super) fn has(self, dtype: Dtype) -> bool {
        match self {
            Self::Normed => true,
            Self::Scalable => dtype.is_scalable(),
            Self::Ordered => dtype.is_ordered(),
        }
    }

    fn list(self) -> String {
        let names: Vec<_> =
            Dtype::ALL.iter().filter(|dtype| self.has(**dtype)).map(|dtype| dtype.name()).collect();
        names.join(", ")
    }
}

/// A tensor argument: an array, and the `IndexedSlices` whose values it is.
pub(super) struct Tensor<'py> {
    pub(super) array: Array<'py>,
    pub(super) slices: Option<Bound<'py, PyAny>>,
    pub(super) dtype: Dtype,
}

/// An entry of a list argument, for a message; the text is made only there.
#[derive(Clone, Copy)]
pub(super) struct Entry(pub(super) &'static str, pub(super) usize);

impl Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.0, self.1)
    }
}

/// One call of a public function.
pub(super) struct Call<'a, 'py> {
    py: Python<'py>,
    function: &'static str,
    name: Option<&'a Bound<'py, PyAny>>,
}

impl<'a, 'py> Call<'a, 'py> {
    /// Begins a call. A bad setting is an error of every call, however small.
    pub(super) fn new(
        py: Python<'py>,
        function: &'static str,
        name: Option<&'a Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        parallel::threads()?;
        memory::limit()?;
        Ok(Self { py, function, name })
    }

    fn prefix(&self) -> String {
        let name = self.name.and_then(|name| name.cast::<PyString>().ok());
        let name = name.map(|name| name.to_string_lossy().split_whitespace().collect::<Vec<_>>().join(" "));
        name.map_or_else(|| self.function.to_owned(), |name| format!("{} '{name}'", self.function))
    }

    pub(super) fn type_error(
        &self,
        argument: impl Display + Copy,
        found: impl Display,
        allowed: &str,
    ) -> PyErr {
        PyTypeError::new_err(format!("{}: {argument}: found {found}; allowed: {allowed}", self.prefix()))
    }

    pub(super) fn value_error(
        &self,
        argument: impl Display + Copy,
        found: impl Display,
        allowed: &str,
    ) -> PyErr {
        PyValueError::new_err(format!("{}: {argument}: found {found}; allowed: {allowed}", self.prefix()))
    }

    /// TensorFlow's sentence, for what stands in the place of a list of tensors.
    fn no_sequence(&self, found: &Bound<'py, PyAny>) -> PyErr {
        let class = found.get_type().str().map_or_else(|_| "<class>".to_owned(), |class| class.to_string());
        let sentence = format!("`t_list` should be a sequence of tensors. Received {class}.");
        PyTypeError::new_err(match self.name {
            Some(_) => format!("{}: {sentence}", self.prefix()),
            None => sentence,
        })
    }

    pub(super) fn axis_error(&self, argument: impl Display + Copy, axis: &str, ndim: usize) -> PyErr {
        let text = format!(
            "{}: {argument}: found {axis}; allowed: axes of an array with {ndim} dimensions",
            self.prefix()
        );
        let error = self
            .py
            .import("numpy")
            .and_then(|numpy| numpy.getattr("exceptions"))
            .and_then(|exceptions| exceptions.getattr("AxisError"))
            .and_then(|class| class.call1((text,)));
        error.map_or_else(|error| error, |error| PyErr::from_value(error))
    }

    pub(super) fn check_name(&self) -> PyResult<()> {
        match self.name {
            Some(name) if !name.is_instance_of::<PyString>() => {
                Err(self.type_error("name", describe(name), "None or a str"))
            }
            _ => Ok(()),
        }
    }

    /// A tensor, `IndexedSlices` included.
    pub(super) fn tensor_or_slices(
        &self,
        argument: impl Display + Copy,
        object: &Bound<'py, PyAny>,
        kinds: Kinds,
    ) -> PyResult<Tensor<'py>> {
        if let Some((array, false)) = Array::read(object) {
            return self.tensor_of(argument, array, None, kinds);
        }
        if is_slices(object)? {
            let values = object.getattr(intern!(self.py, "values"))?;
            let array = self.array(argument, &values)?;
            return self.tensor_of(argument, array, Some(object.clone()), kinds);
        }
        let array = self.array(argument, object)?;
        self.tensor_of(argument, array, None, kinds)
    }

    /// A tensor of a function that does not take `IndexedSlices`.
    pub(super) fn tensor(
        &self,
        argument: impl Display + Copy,
        object: &Bound<'py, PyAny>,
        kinds: Kinds,
    ) -> PyResult<Tensor<'py>> {
        if !object.is_instance_of::<PyUntypedArray>() && is_slices(object)? {
            return Err(self.type_error(argument, "IndexedSlices", "an array; use .to_dense() to make one"));
        }
        self.tensor_or_slices(argument, object, kinds)
    }

    fn tensor_of(
        &self,
        argument: impl Display + Copy,
        array: Array<'py>,
        slices: Option<Bound<'py, PyAny>>,
        kinds: Kinds,
    ) -> PyResult<Tensor<'py>> {
        match array.dtype().filter(|dtype| kinds.has(*dtype)) {
            Some(dtype) => Ok(Tensor { array, slices, dtype }),
            None => Err(self.type_error(argument, dtype_text(array.object()), &kinds.list())),
        }
    }

    /// Anything that NumPy makes an array of, but a masked array.
    pub(super) fn array(
        &self,
        argument: impl Display + Copy,
        object: &Bound<'py, PyAny>,
    ) -> PyResult<Array<'py>> {
        let masked =
            || self.type_error(argument, "a masked array", "an array without a mask, for it would be lost");
        if let Some((array, subclass)) = Array::read(object) {
            return if subclass && is_masked(object)? { Err(masked()) } else { Ok(array) };
        }
        if object.is_none() {
            return Err(self.type_error(argument, "None", "an array, a number or a nested list of numbers"));
        }
        if object.cast::<PySequence>().is_ok() && holds_masked(object)? {
            return Err(masked());
        }
        let made = self.converted(argument, object)?;
        match Array::read(&made) {
            Some((_, true)) if is_masked(&made)? => Err(masked()),
            Some((array, _)) => Ok(array),
            None => Err(self.type_error(
                argument,
                describe(object),
                "an array, a number or a nested list of numbers",
            )),
        }
    }

    /// What NumPy makes of an object. What an object's `__array__` raises passes through.
    fn converted(
        &self,
        argument: impl Display + Copy,
        object: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        as_array(object).map_err(|error| {
            let says = |words| {
                error.is_instance_of::<PyValueError>(self.py)
                    && error.value(self.py).str().is_ok_and(|text| text.to_string_lossy().contains(words))
            };
            let named = if !is_list(object) {
                return error;
            } else if says("inhomogeneous") {
                self.value_error(argument, "a ragged list", "a nested list whose rows have equal lengths")
            } else if says("maximum number of dimension") {
                self.value_error(argument, "a list nested too deep", "at most 64 dimensions")
            } else {
                return error;
            };
            named.set_cause(self.py, Some(error));
            named
        })
    }

    /// The output for a tensor: None, or an array that fits.
    pub(super) fn out(
        &self,
        argument: impl Display + Copy,
        out: Option<&Bound<'py, PyAny>>,
        tensor: &Tensor<'py>,
    ) -> PyResult<Out<'py>> {
        let Some(out) = out else { return Ok(Out::New) };
        let fits = |values: &Bound<'py, PyAny>| {
            let Some((array, subclass)) = Array::read(values) else {
                return Err(self.type_error(argument, describe(out), "None or a numpy.ndarray"));
            };
            if subclass && is_masked(values)? {
                return Err(self.type_error(argument, "a masked array", "an array without a mask"));
            }
            if array.dtype() != Some(tensor.dtype) {
                return Err(self.type_error(
                    argument,
                    dtype_text(values),
                    &format!("dtype {}", tensor.dtype.name()),
                ));
            }
            if array.shape() != tensor.array.shape() {
                let (found, allowed) = (shape_text(array.shape()), shape_text(tensor.array.shape()));
                return Err(self.value_error(
                    argument,
                    format!("shape {found}"),
                    &format!("shape {allowed}"),
                ));
            }
            if !array.is_writeable() {
                return Err(self.value_error(argument, "a read-only array", "a writeable one"));
            }
            Ok(Out::Given(array))
        };
        let Some(slices) = &tensor.slices else { return fits(out) };
        if !is_slices(out)? {
            return Err(self.type_error(argument, describe(out), "None or IndexedSlices, as the input is"));
        }
        let values = fits(&out.getattr("values")?)?;
        let same = |field| -> PyResult<bool> {
            let (a, b) = (slices.getattr(field)?, out.getattr(field)?);
            Ok(a.is(&b) || self.py.import("numpy")?.call_method1("array_equal", (a, b))?.is_truthy()?)
        };
        let allowed = "IndexedSlices with the indices and the dense_shape of the input";
        if !same("indices")? {
            return Err(self.value_error(argument, "other indices", allowed));
        }
        let (a, b) = (slices.getattr("dense_shape")?, out.getattr("dense_shape")?);
        if !a.eq(&b)? {
            return Err(self.value_error(argument, format!("dense_shape {b}"), allowed));
        }
        Ok(values)
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

    /// Two outputs that share memory.
    pub(super) fn clash(&self, a: usize, b: usize, one: bool) -> PyErr {
        let found = if a == b {
            "an array whose own elements overlap".to_owned()
        } else {
            format!("an array that shares memory with out[{a}]")
        };
        let allowed = "arrays that share no byte";
        if one {
            self.value_error("out", found, allowed)
        } else {
            self.value_error(Entry("out", b), found, allowed)
        }
    }

    /// The entries of a list of tensors, as long as no Python code runs; then they are to be a tuple.
    pub(super) fn sequence<'b>(&self, object: &'b Bound<'py, PyAny>) -> PyResult<Items<'b, 'py>> {
        if let Some(items) = Items::of_list(object) {
            return Ok(items);
        }
        if is_sequence(object)? { Ok(Items::Tuple(tuple_of(object)?)) } else { Err(self.no_sequence(object)) }
    }

    /// The entries of `out` for a list of tensors.
    pub(super) fn out_sequence(
        &self,
        object: Option<&Bound<'py, PyAny>>,
        tensors: usize,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some(object) = object else { return Ok(None) };
        let entries = if let Ok(list) = object.cast::<PyList>() {
            list.to_tuple()
        } else if is_sequence(object)? {
            tuple_of(object)?
        } else {
            return Err(self.type_error("out", describe(object), "None or a sequence of arrays"));
        };
        if entries.len() != tensors {
            let found = format!("length {}", entries.len());
            return Err(self.value_error("out", found, &format!("length {tensors}, that of t_list")));
        }
        Ok(Some(entries))
    }

    /// A real number; `allowed` names what it may be.
    pub(super) fn number(
        &self,
        argument: impl Display + Copy,
        object: &Bound<'py, PyAny>,
        allowed: &str,
    ) -> PyResult<f64> {
        match number(object)? {
            Number::Real(value) => Ok(value),
            Number::Shaped(shape) => Err(self.value_error(argument, format!("shape {shape}"), allowed)),
            Number::No => Err(self.type_error(argument, describe(object), allowed)),
        }
    }

    /// A limit: a real number that is not negative; NaN only where `nan` says so.
    pub(super) fn limit(
        &self,
        argument: impl Display + Copy,
        object: &Bound<'py, PyAny>,
        nan: bool,
    ) -> PyResult<f64> {
        const ALLOWED: &str = "a real number >= 0 (a Python or NumPy int or float, or a 0-d array)";
        let value = self.number(argument, object, ALLOWED)?;
        if value < 0.0 || (value.is_nan() && !nan) {
            return Err(self.value_error(argument, describe(object), ALLOWED));
        }
        Ok(value.abs()) // -0.0 is 0
    }

    /// Axes, counted from the begin, in the order given. None: all of them.
    pub(super) fn axes(
        &self,
        argument: impl Display + Copy,
        object: Option<&Bound<'py, PyAny>>,
        ndim: usize,
    ) -> PyResult<Option<Vec<usize>>> {
        const ALLOWED: &str = "None, an int or a sequence of ints";
        let Some(object) = object else { return Ok(None) };
        let wrong = || self.type_error(argument, describe(object), ALLOWED);
        let given = if let Some(axis) = integer(object)? {
            vec![axis]
        } else if is_axes(object)? {
            tuple_of(object)?
                .iter()
                .map(|axis| integer(&axis)?.ok_or_else(wrong))
                .collect::<PyResult<Vec<_>>>()?
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

impl Drop for Call<'_, '_> {
    fn drop(&mut self) {
        memory::settle();
    }
}

/// Whether all that is given is a Python number or string of no subclass, so that to read it runs no code.
pub(super) fn are_plain<'a, 'py: 'a>(
    objects: impl IntoIterator<Item = Option<&'a Bound<'py, PyAny>>>,
) -> bool {
    objects.into_iter().flatten().all(|object| {
        object.is_exact_instance_of::<PyFloat>()
            || object.is_exact_instance_of::<PyInt>()
            || object.is_exact_instance_of::<PyString>()
    })
}

/// The same for axes: None, an int, or a tuple of ints.
pub(super) fn are_plain_axes(axes: Option<&Bound<'_, PyAny>>) -> bool {
    let is_int = |axis: &Bound<'_, PyAny>| axis.is_exact_instance_of::<PyInt>();
    axes.is_none_or(|axes| match axes.cast_exact::<PyTuple>() {
        Ok(axes) => axes.iter_borrowed().all(|axis| is_int(&axis)),
        Err(_) => is_int(axes),
    })
}

/// What an object is, as far as it is a number.
pub(super) enum Number {
    Real(f64),
    /// An array of numbers that is not 0-d, and its shape.
    Shaped(String),
    No,
}

/// Reads a real number: a Python int or float, a NumPy or `ml_dtypes` scalar, or a 0-d array of these.
pub(super) fn number(object: &Bound<'_, PyAny>) -> PyResult<Number> {
    if let Ok(float) = object.cast::<PyFloat>() {
        return Ok(Number::Real(float.value()));
    }
    // One that float64 holds as it is, and a quick way to it.
    if object.is_exact_instance_of::<PyInt>()
        && let Ok(small) = object.extract::<i32>()
    {
        return Ok(Number::Real(f64::from(small)));
    }
    if let Ok(int) = object.cast::<PyInt>() {
        if object.is_instance_of::<PyBool>() {
            return Ok(Number::No);
        }
        return Ok(Number::Real(float_of(int)?));
    }
    let py = object.py();
    let is_list = is_list(object);
    if !is_list && !is_numpy(object)? {
        return Ok(Number::No);
    }
    if is_masked(object)? {
        return Ok(Number::No);
    }
    // A list is no number; it is converted for the better error, that of an array which is not 0-d.
    let object = if is_list {
        match as_array(object) {
            Ok(array) => Cow::Owned(array),
            Err(_) => return Ok(Number::No),
        }
    } else {
        Cow::Owned(plain(object)?)
    };
    if !matches!(numeric_kind(&object)?, Some('i' | 'f')) {
        return Ok(Number::No);
    }
    let ndim: usize = object.getattr(intern!(py, "ndim"))?.extract()?;
    if ndim != 0 {
        return Ok(Number::Shaped(object.getattr(intern!(py, "shape"))?.str()?.to_string()));
    }
    let item = item(&object)?;
    match item.cast::<PyInt>() {
        Ok(int) => Ok(Number::Real(float_of(int)?)),
        Err(_) => Ok(Number::Real(PyFloat::type_object(py).call1((item,))?.extract()?)),
    }
}

/// `i` for integers, `f` for floats, those of `ml_dtypes` included, for a NumPy scalar or array.
pub(super) fn numeric_kind(object: &Bound<'_, PyAny>) -> PyResult<Option<char>> {
    let dtype = object.getattr(intern!(object.py(), "dtype"))?;
    Ok(match dtype.getattr("kind")?.extract::<char>()? {
        'i' | 'u' => Some('i'),
        'f' => Some('f'),
        _ => {
            let class = dtype.getattr("type")?;
            let name: String = class.getattr("__name__")?.extract()?;
            let is = |kind: &str| name.trim_start_matches(['u', 'b']).starts_with(kind);
            if class.getattr("__module__")?.extract::<String>()? != "ml_dtypes" {
                None
            } else if is("int") {
                Some('i')
            } else {
                is("float").then_some('f')
            }
        }
    })
}

/// A 0-d array or a scalar of a numeric kind as a Python number.
pub(super) fn item<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let kind: char = object.getattr(intern!(py, "dtype"))?.getattr("kind")?.extract()?;
    if matches!(kind, 'i' | 'u' | 'f') {
        return object.call_method0(intern!(py, "item"));
    }
    // Those of ml_dtypes give scalars of theirs, and wrong ones if the byte order is not the native one. They become
    // Python numbers one by one: NumPy's conversion of a whole array warns of a signalling NaN.
    let native = object.getattr(intern!(py, "dtype"))?.call_method1(intern!(py, "newbyteorder"), ("=",))?;
    let scalar = object.call_method1(intern!(py, "astype"), (native,))?.call_method0(intern!(py, "item"))?;
    let is_int = numeric_kind(object)? == Some('i');
    let class = if is_int { PyInt::type_object(py) } else { PyFloat::type_object(py) };
    class.call1((scalar,))
}

/// An array of NumPy's own class: a subclass may have methods of its own.
pub(super) fn plain<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match Array::read(object) {
        Some((_, true)) => object
            .py()
            .import(intern!(object.py(), "numpy"))?
            .call_method1(intern!(object.py(), "asarray"), (object,)),
        _ => Ok(object.clone()),
    }
}

/// Rounded to float64; infinite where it is too large.
fn float_of(int: &Bound<'_, PyInt>) -> PyResult<f64> {
    match int.extract::<f64>() {
        Err(error) if error.is_instance_of::<PyOverflowError>(int.py()) => {
            Ok(if int.lt(0)? { f64::NEG_INFINITY } else { f64::INFINITY })
        }
        value => value,
    }
}

/// A Python or NumPy integer (no bool), as a Python int.
pub(super) fn integer<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    if object.is_instance_of::<PyBool>() {
        return Ok(None);
    }
    if object.is_instance_of::<PyInt>() {
        return Ok(Some(object.clone()));
    }
    if is_numpy(object)? {
        let kind: char = object.getattr("dtype")?.getattr("kind")?.extract()?;
        let ndim: usize = object.getattr("ndim")?.extract()?;
        if matches!(kind, 'i' | 'u') && ndim == 0 {
            return Ok(Some(object.call_method0("item")?));
        }
    }
    Ok(None)
}

/// A NumPy scalar or array.
pub(super) fn is_numpy(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static GENERIC: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    Ok(object.is_instance_of::<PyUntypedArray>()
        || object.is_instance(GENERIC.import(object.py(), "numpy", "generic")?)?)
}

/// A masked array. Without `numpy.ma` there is none.
fn is_masked(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let modules =
        object.py().import(intern!(object.py(), "sys"))?.getattr(intern!(object.py(), "modules"))?;
    match modules.cast_into::<PyDict>()?.get_item(intern!(object.py(), "numpy.ma"))? {
        Some(ma) => object.is_instance(&ma.getattr("MaskedArray")?),
        None => Ok(false),
    }
}

/// An `IndexedSlices`, of the Python side of the package.
pub(super) fn is_slices(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static SLICES: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    object.is_instance(SLICES.import(object.py(), "gradclip._slices", "IndexedSlices")?)
}

/// What TensorFlow takes for a list of tensors: a sequence, but none of those that hold something else.
fn is_sequence(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static TEST: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return Ok(true);
    }
    let py = object.py();
    let test = TEST.get_or_try_init(py, || {
        py.import("gradclip._sequences")
            .and_then(|module| module.getattr("is_sequence_of_tensors"))
            .map(Bound::unbind)
    })?;
    test.bind(py).call1((object,))?.extract()
}

/// A sequence that may hold axes: a list, a tuple, a range, an array of integers with one dimension.
fn is_axes(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match Array::read(object) {
        Some((array, _)) => Ok(array.ndim() == 1 && numeric_kind(object)? == Some('i')),
        None => Ok(object.cast::<PySequence>().is_ok()
            && !object.is_instance_of::<PyString>()
            && !object.is_instance_of::<PyBytes>()
            && !object.is_instance_of::<PyByteArray>()),
    }
}

/// A Python or NumPy bool.
pub(super) fn is_bool(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(object.is_instance_of::<PyBool>()
        || (is_numpy(object)? && object.getattr("dtype")?.getattr("kind")?.eq("b")?))
}

/// Whether a nested list has a masked array in it.
fn holds_masked(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let helpers = object.py().import(intern!(object.py(), "gradclip._sequences"))?;
    helpers.call_method1(intern!(object.py(), "holds_masked_array"), (object,))?.extract()
}

/// A Python list or tuple.
pub(super) fn is_list(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()
}

fn tuple_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    if let Ok(tuple) = object.cast_exact::<PyTuple>() {
        return Ok(tuple.clone());
    }
    Ok(PyTuple::type_object(object.py()).call1((object,))?.cast_into()?)
}

/// The array NumPy makes of an object; of a subclass, if the object's `__array__` gives such.
fn as_array<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    object
        .py()
        .import(intern!(object.py(), "numpy"))?
        .call_method1(intern!(object.py(), "asanyarray"), (object,))
}

/// `dtype int32`, for a message.
pub(super) fn dtype_text(array: &Bound<'_, PyAny>) -> String {
    array.getattr("dtype").and_then(|dtype| dtype.str()).map_or_else(
        |_| "an unknown dtype".to_owned(),
        |dtype| format!("dtype {}", clipped(&dtype.to_string_lossy())),
    )
}

/// `(2, 3)`, as Python writes it.
pub(super) fn shape_text(shape: &[usize]) -> String {
    match shape {
        [one] => format!("({one},)"),
        _ => format!("({})", shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// What an object is, for a message: its type, and for a small value the value.
pub(super) fn describe(object: &Bound<'_, PyAny>) -> String {
    if object.is_none() {
        return "None".to_owned();
    }
    let class = object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    if let Some((array, subclass)) = Array::read(object) {
        if subclass && is_masked(object).unwrap_or(false) {
            return "a masked array".to_owned();
        }
        if array.ndim() == 0 && array.dtype().is_some() {
            let value = object.str().map_or_else(|_| String::new(), |text| clipped(&text.to_string_lossy()));
            return format!("0-d array {value} of {}", dtype_text(object));
        }
        return format!("{class} of {} and shape {}", dtype_text(object), shape_text(array.shape()));
    }
    let small = object.is_instance_of::<PyInt>()
        || object.is_instance_of::<PyFloat>()
        || object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyComplex>()
        || is_numpy(object).unwrap_or(false)
        || matches!(object.cast::<PyTuple>().map(PyTupleMethods::len), Ok(0..5))
        || matches!(object.cast::<PyList>().map(PyListMethods::len), Ok(0..5));
    if small { format!("{class} {}", text_of(object)) } else { class }
}

fn text_of(object: &Bound<'_, PyAny>) -> String {
    object.repr().map_or_else(|_| "(without a repr)".to_owned(), |text| clipped(&text.to_string_lossy()))
}

/// At most 80 characters, on one line.
fn clipped(text: &str) -> String {
    let text = &text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
