"""Every recorded answer of TensorFlow: gradclip gives the same one, or another one that is said here, for a reason.

`TYPES` lists the same numbers in another type, `DIFFERENCES` other answers. What is listed must be met, and
must differ.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradclip as gc
import numpy as np
import pytest
from tf_cases import BFLOAT16, Case, difference, eps, load

Check = Callable[[Any], None]
"""Fails unless it is called with what gradclip should return or raise."""

CASES = load()

# TensorFlow computes in the dtype of the tensor, gradclip in float64 and wider. So far may the results be apart,
# in units of the precision of the dtype of TensorFlow's answer. In clip_by_value nothing is rounded.
ROUNDINGS = {"float16": 1, "bfloat16": 2, "float32": 4, "float64": 4, "complex64": 4, "complex128": 4}

# ---- the same numbers in another type

TYPES = {
    "a single norm": "A norm that comes back as one number is a Python float in float64 precision.",
    "an array of norms": "A norm with an axis left (or keepdims) is an array: float32 for float16, bfloat16, float32, "
    "complex64; float64 for float64, complex128, integers, bool. Complex norms are real.",
    "Python numbers": "Nested lists are read through numpy.asarray, so a list of Python floats is float64 as in NumPy.",
}


def in_our_types(case: Case) -> tuple[Any, set[str]]:
    """TensorFlow's numbers in the types of gradclip, and the rules that changed a type."""
    rules = set()

    def tensor(t: Any) -> Any:
        if t is None or isinstance(t, gc.IndexedSlices) or not of_python_numbers:
            return t
        rules.add("Python numbers")
        return t.astype({"f": np.float64, "i": np.int64}[t.dtype.kind])

    def norm(n: Any, *, one: bool) -> Any:
        if one:
            rules.add("a single norm")
            return float(n.real)
        narrow = n.dtype in (np.float16, BFLOAT16, np.float32, np.complex64)
        dtype = np.float32 if narrow else np.float64
        if n.dtype != dtype:
            rules.add("an array of norms")
        return n.real.astype(dtype)

    t = case.args[0]
    if case.fn.endswith("global_norm"):
        t = t[0] if t else None
    of_python_numbers = isinstance(t, (int, float, list))
    answer = case.expect
    if case.fn in ("norm", "global_norm"):
        return norm(answer, one=answer.ndim == 0), rules
    if case.fn == "normalize":
        return (tensor(answer[0]), norm(answer[1], one=False)), rules
    if case.fn == "clip_by_global_norm":
        return ([tensor(t) for t in answer[0]], norm(answer[1], one=True)), rules
    return tensor(answer), rules


def precision(case: Case) -> float:
    """The precision to expect of TensorFlow's answer."""

    def parts(answer: Any) -> list[Any]:
        if isinstance(answer, gc.IndexedSlices):
            return [answer.values]
        if isinstance(answer, (list, tuple)):
            return [part for entry in answer for part in parts(entry)]
        return [] if answer is None else [answer]

    return max(ROUNDINGS.get(part.dtype.name, 0) * eps(part.dtype) for part in parts(case.expect))


def disagreement(case: Case, outcome: Any) -> str | None:
    """The difference between gradclip's answer and TensorFlow's; None if there is none."""
    if case.raises:
        return None if type(outcome).__name__ == case.raises else f"found {outcome!r}, expected {case.raises}"
    if isinstance(outcome, Exception):
        return f"raised {outcome!r}"
    answer, _ = in_our_types(case)
    rtol = 0.0 if case.fn == "clip_by_value" else precision(case)
    return difference(outcome, answer, lambda _: rtol)


# ---- other answers


def exactly(answer: Any) -> Check:
    """Expects these numbers, in these types."""
    return _returns(answer, lambda _: 0.0)


def rounded(answer: Any) -> Check:
    """Expects these numbers, in these types: floats to 1e-14, arrays to the last place."""
    return _returns(answer, lambda part: 1e-14 if isinstance(part, float) else eps(part.dtype))


def _returns(answer: Any, rtol: Callable[[Any], float]) -> Check:
    def check(outcome: Any) -> None:
        if isinstance(outcome, Exception):
            raise outcome
        assert difference(outcome, answer, rtol) is None

    return check


def raises(kind: type[Exception], match: str) -> Check:
    """Expects an exception of this very class, with a message that says this."""

    def check(outcome: Any) -> None:
        assert type(outcome) is kind, repr(outcome)
        assert re.search(match, str(outcome)), str(outcome)

    return check


@dataclass(frozen=True)
class Difference:
    """An intended difference of gradclip."""

    why: str
    instead: dict[str, Check]
    """By the names of cases; a * stands for anything."""


f16, f32, f64, c64, c128 = np.float16, np.float32, np.float64, np.complex64, np.complex128
AxisError = np.exceptions.AxisError

HALF = math.sqrt(0.5)
MATRIX = f32([[-3, 0, 0], [4, 0, 3]])
LIST = [f32([3, 4]), f32([12])]

DIFFERENCES = {
    "dtypes that a function does not take": Difference(
        "clip_by_value: every NumPy integer, float16/32/64, bfloat16. The norm clippers and normalize: float16, "
        "bfloat16, float32, float64, complex64, complex128. Anything else is a TypeError that names the argument, the "
        "dtype found and the dtypes supported.",
        {
            "cbv/unsupported_complex64": raises(TypeError, r"t: found dtype complex64.*int8"),
            "cbv/unsupported_bool_bool_bounds": raises(TypeError, r"t: found dtype bool.*int8"),
            "cbv/longdouble_array": raises(TypeError, r"t: found dtype .*float64"),
            "cbn/unsupported_int16": raises(TypeError, r"t: found dtype int16.*float64"),
            "cbn/unsupported_uint16": raises(TypeError, r"t: found dtype uint16.*float64"),
            "cbn/unsupported_bool": raises(TypeError, r"t: found dtype bool.*float64"),
            "cbn/list_int": raises(TypeError, r"t: found dtype int64.*float64"),
            "cban/unsupported_int32": raises(TypeError, r"t: found dtype int32.*float64"),
            "cban/unsupported_int64": raises(TypeError, r"t: found dtype int64.*float64"),
            "cban/unsupported_uint8": raises(TypeError, r"t: found dtype uint8.*float64"),
            "gn/bad_str": raises(TypeError, r"t_list\[0\]: found dtype <U1.*float64"),
            "cbgn/bad_int": raises(TypeError, r"t_list\[0\]: found dtype int32.*float64"),
            "cbgn/bad_bool": raises(TypeError, r"t_list\[0\]: found dtype bool.*float64"),
            "cbgn/use_norm_int_tensor": raises(TypeError, r"t_list\[0\]: found dtype int32.*float64"),
            "slices/cbn_int": raises(TypeError, r"t: found dtype int32.*float64"),
            "nz/dtype_int32_ord1": raises(TypeError, r"tensor: found dtype int32.*float64"),
        },
    ),
    "dtypes that TensorFlow does not take": Difference(
        "The norm clippers and normalize: float16, bfloat16, float32, float64, complex64, complex128. norm and "
        "global_norm: these and every integer and bool.",
        {
            "cbn/unsupported_complex64": rounded(c64([0.6, 0.8])),
            "cbn/unsupported_complex128": rounded(c128([0.6, 0.8])),
            "cban/unsupported_float64": rounded(f64([0.12, 0.16])),
            "cbgn/bad_complex": rounded(([c64([0.6 + 0.8j])], 5.0)),
            "gn/bad_int_list": rounded(5.0),
            "gn/bad_int_array": rounded(5.0),
            "norm/list_int": rounded(5.0),
            "norm/dtype_*int*_euclidean": rounded(5.0),
            "norm/dtype_*int*_mat_fro": rounded(5.0),
            "norm/dtype_*int*_mat_2": rounded(5.0),
            "norm/dtype_*int*_0.5": rounded(7 + 4 * math.sqrt(3)),
            "norm/dtype_uint8_1": rounded(7.0),
            "norm/dtype_uint8_3": rounded(91 ** (1 / 3)),
            "norm/dtype_uint8_mat_1": rounded(4.0),
            "norm/dtype_uint8_mat_inf": rounded(7.0),
            "norm/dtype_bool_euclidean": rounded(math.sqrt(2)),
            "norm/dtype_bool_1": rounded(2.0),
            "norm/dtype_bool_3": rounded(2 ** (1 / 3)),
            "norm/dtype_bool_mat_1": rounded(1.0),
            "norm/dtype_bool_mat_2": rounded(math.sqrt(2)),
        },
    ),
    "dtypes that are mixed": Difference(
        "Mixed dtypes are fine.",
        {
            "gn/mixed_f32_f64": rounded(5.0),
            "cbgn/bad_mixed_f16_f32": rounded(([f16([0.6]), f32([0.8])], 5.0)),
        },
    ),
    "limits of another type than the tensor": Difference(
        "A number is a Python int or float, a NumPy or ml_dtypes scalar, or a 0-d array of these. A float64 bound "
        "for a float32 t is fine and is rounded to t's dtype first.",
        {
            "cbv/tensor_mismatch_float16_float*": exactly(f16([2, 4])),
            "cbv/tensor_mismatch_float32_float16": exactly(f32([2, 4])),
            "cbv/tensor_mismatch_float64_float16": exactly(f64([2, 4])),
            "cbv/tensor_mismatch_int32_int64": exactly(np.int32([2, 4])),
            "cbv/tensor_mismatch_int64_int32": exactly(np.int64([2, 4])),
            "cban/clip_tensor_i32": exactly(f32([[-3, 0, 0], [4, 0, 0]])),
            "cbgn/clip_bad_tensor_i32": rounded(([f32([3 / 13, 4 / 13]), f32([12 / 13])], 13.0)),
            "cbgn/f64_tensor_f32_clip": rounded(([f64([0.6, 0.8])], 5.0)),
            "cbgn/use_norm_bad_py_int": rounded(([f32([3 / 26, 4 / 26]), f32([12 / 26])], 26.0)),
            "cbgn/use_norm_bad_tensor_int": rounded(([f32([3 / 26, 4 / 26]), f32([12 / 26])], 26.0)),
            "cbgn/use_norm_bad_py_zero": exactly((LIST, 0.0)),
        },
    ),
    "float bounds for integers": Difference(
        "A float bound (Python, NumPy or array) for an integer t is a TypeError naming both types.",
        {
            "cbv/i32_np_*_bounds_float32": raises(TypeError, r"clip_value_min: found .*float32.*int32"),
            "cbv/i32_np_*_bounds_float64": raises(TypeError, r"clip_value_min: found .*float64.*int32"),
            "cbv/tensor_mismatch_int32_float16": raises(TypeError, r"clip_value_min: found .*float16.*int32"),
            "cbv/tensor_mismatch_int64_float16": raises(TypeError, r"clip_value_min: found .*float16.*int64"),
        },
    ),
    "integer bounds beyond the dtype": Difference(
        "Integer bounds compare exactly, whatever their size: a bound outside an integer t's range saturates to it.",
        {
            "cbv/u8_min_minus1": exactly(np.uint8([1, 2])),
            "cbv/i8_max_200": exactly(np.int8([1, 2])),
            "cbv/u32_min_minus1": exactly(np.uint32([1, 2])),
            "cbv/i64_max_2pow63": exactly(np.int64([1, 2])),
        },
    ),
    "one bound": Difference(
        "clip_value_min, clip_value_max: a number, None (no bound on that side), or an array.",
        {"cbv/none_max": exactly(f32([1.5, 2]))},
    ),
    "bool": Difference(
        "A number is a Python int or float, a NumPy scalar or a 0-d array; anything else (bool, ...) is a TypeError. "
        "axes and axis: float or bool: TypeError. ord: bool: TypeError.",
        {
            "cbv/bool_bounds": raises(TypeError, "clip_value_min: found bool"),
            "norm/ord_True_None": raises(TypeError, "ord: found bool"),
            "norm/axis_(0, True)_True": raises(TypeError, r"axis: found tuple \(0, True\)"),
        },
    ),
    "None": Difference(
        "Refused with TypeError: None. None as a limit or an ord is a TypeError, too.",
        {
            "cbv/none_t": raises(TypeError, "t: found None"),
            "cbn/clip_bad_none": raises(TypeError, "clip_norm: found None"),
            "norm/ord_None_(0, 1)": raises(TypeError, "ord: found None"),
            "cbn/axes_nonelist": raises(TypeError, r"axes: found list \[None\]"),
        },
    ),
    "shapes of bounds": Difference(
        "A bound that would enlarge t, or does not broadcast: ValueError.",
        {
            "cbv/bad_min_len2": raises(ValueError, r"clip_value_min: found shape \(2,\)"),
            "cbv/bad_min_empty": raises(ValueError, r"clip_value_min: found shape \(0,\)"),
        },
    ),
    "many dimensions": Difference(
        "An array that broadcasts to t's shape, of any number of dimensions.",
        {
            "cbv/rank8_bcast": exactly(np.clip(np.arange(256, dtype=f32), 30, 200).reshape([2] * 8)),
        },
    ),
    "limits that are not one number": Difference(
        "clip_norm: Not 0-d: ValueError.",
        {
            "cbn/clip_vec_len1": raises(ValueError, r"clip_norm: found shape \(1,\)"),
            "cbn/clip_vec_col": raises(ValueError, r"clip_norm: found shape \(2, 1\)"),
            "cbn/clip_vec_bad_len2": raises(ValueError, r"clip_norm: found shape \(2,\)"),
            "cbn/clip_vec_bad_empty": raises(ValueError, r"clip_norm: found shape \(0,\)"),
            "cbn/f64_list_clip_goes_through_f32": raises(ValueError, r"clip_norm: found shape \(1,\)"),
            "cban/clip_col": raises(ValueError, r"clip_norm: found shape \(2, 1\)"),
        },
    ),
    "negative limits and NaN": Difference(
        "clip_norm: Negative or NaN: ValueError. use_norm: negative: ValueError.",
        {
            "cb*n/clip_neg": raises(ValueError, "clip_norm: found float -1.0"),
            "cbn/clip_neg_int": raises(ValueError, "clip_norm: found int -1"),
            "cb*n/clip_minus_inf": raises(ValueError, "clip_norm: found float -inf"),
            "cbn/clip_minus_inf_tensor": raises(ValueError, "clip_norm: found 0-d array -inf"),
            "cb*n/clip_nan": raises(ValueError, "clip_norm: found float nan"),
            "cbn/clip_nan_tensor": raises(ValueError, "clip_norm: found 0-d array nan"),
            "cbn/zeros_clip_neg": raises(ValueError, "clip_norm: found float -1.0"),
            "cb*n/zeros_clip_nan": raises(ValueError, "clip_norm: found float nan"),
            "cbgn/use_norm_neg": raises(ValueError, "use_norm: found 0-d array -1.0"),
            "cbgn/use_norm_minus_inf": raises(ValueError, "use_norm: found 0-d array -inf"),
        },
    ),
    "infinite and huge limits": Difference(
        "clip_norm: inf: nothing finite is clipped. Above the dtype's largest value: used as it is, in float64. What "
        "has a norm at or below clip_norm is untouched.",
        {
            "cbn/clip_inf*": exactly(MATRIX),
            "cbn/clip_1e300_f64_tensor": exactly(MATRIX),
            "cbn/clip_3e38_product_overflow": exactly(MATRIX),
            "cbn/zeros_clip_inf": exactly(f32([0, 0, 0])),
            "cbgn/clip_inf": exactly((LIST, 13.0)),
            "cbgn/clip_3e38": exactly((LIST, 13.0)),
            "cbgn/zeros_clip_inf": exactly(([f32([0, 0])], 0.0)),
            "cbgn/range_f16_clip_*": exactly(([f16([3, 4])], 5.0)),
        },
    ),
    "zeros and a limit of 0": Difference(
        "clip_norm: 0 and -0.0: every finite value becomes 0 with its sign (a zero tensor stays as it is, no NaN).",
        {
            "cbn/zero_col_clip_0": exactly(f32([[0, 0], [0, 0]])),
            "cban/zeros_clip0": exactly(f32([[0, 0, 0], [0, 0, 0]])),
        },
    ),
    "overflow and underflow": Difference(
        "No overflow or underflow on the way: float32 [1e30, 1e30], float16 [300, 300], float64 [1e200, 1e-200] and "
        "subnormals all give the true norm and the true clipped values.",
        {
            "cbn/range_f32_1e30": rounded(f32([HALF, HALF])),
            "cbn/range_f32_1e30_big_clip": exactly(f32([1e30, 1e30])),
            "cbn/range_f32_1e18_clip_1e21": exactly(f32([1e18, 1e18])),
            "cbn/range_f32_1e-20": rounded(f32([HALF * 1e-21] * 2)),
            "cbn/range_f32_1e-30_clip_1e-10": exactly(f32([1e-30, 1e-30])),
            "cbn/range_f64_1e-200": rounded(f64([HALF * 1e-201] * 2)),
            "cbn/range_f16_300": rounded(f16([HALF, HALF])),
            "cbn/range_bf16_1e20": rounded(np.array([HALF, HALF], BFLOAT16)),
            "cbn/f16_ones_70000": rounded(np.full(70000, 1 / math.sqrt(70000), f16)),
            "cban/1e30": rounded(f32([2 * HALF, 2 * HALF])),
            "gn/range_f32_1e30": rounded(float(f32(1e30))),
            "gn/range_f32_2e19": rounded(float(f32(2e19))),
            "gn/range_f16_300": rounded(300.0),
            "gn/range_f16_200_200": rounded(400 * HALF),
            "cbgn/range_f32_1e30": rounded(([f32([1])], float(f32(1e30)))),
            "cbgn/range_f32_1e-20": rounded(([f32([1e-21])], float(f32(1e-20)))),
            "cbgn/clip_1e-39": exactly(([f32([3e-39 / 13, 4e-39 / 13]), f32([12e-39 / 13])], 13.0)),
            "norm/val_1e30_euclidean": rounded(2 * HALF * float(f32(1e30))),
            "norm/val_1e-30_euclidean": rounded(2 * HALF * float(f32(1e-30))),
            "norm/val_1e-30_3": rounded(2 ** (1 / 3) * float(f32(1e-30))),
            "norm/range_f64_1e200": rounded(1e200),
            "norm/ord_100_None": rounded(6 * (1 + (5 / 6) ** 100 + (4 / 6) ** 100 + 0.5**100) ** 0.01),
            "norm/ord_1e+300_None": rounded(6.0),
            "nz/val_1e-30": rounded((f32([HALF, HALF]), f32([2 * HALF * float(f32(1e-30))]))),
        },
    ),
    "long sums in float16": Difference(
        "Before it is rounded to the result's dtype, the relative error of a norm is below 1e-14 (n up to 1e8, any "
        "axis and layout).",
        {"norm/f16_ones_4096x3_axis0": exactly(f32([64, 64, 64]))},
    ),
    "norms of nothing": Difference(
        "Empty arrays and lists have norm 0.0 for every ord.",
        {
            "norm/empty_(0,)_inf_*": exactly(0.0),
            "norm/empty_(3, 0)_inf_-1": exactly(f32([0, 0, 0])),
            "norm/empty_mat_(0, 3)_2": exactly(0.0),
            "norm/empty_mat_(0, 0)_*": exactly(0.0),
        },
    ),
    "no norm for ord NaN": Difference(
        "ord: Anything else, NaN included: ValueError.",
        {"norm/ord_nan_None": raises(ValueError, "ord: found float nan")},
    ),
    "kinds of axes": Difference(
        "axes and axis: int or NumPy integer, or a sequence of them.",
        {
            "norm/axis_[0]_False": rounded(np.sqrt(f32([17, 29, 45]))),
            "norm/axis_(0,)_False": rounded(np.sqrt(f32([17, 29, 45]))),
            "norm/axis_[0]_True": rounded(np.sqrt(f32([[17, 29, 45]]))),
            "norm/axis_np_int64": rounded(np.sqrt(f32([14, 77]))),
            "norm/axis_np_array": rounded(math.sqrt(91)),
        },
    ),
    "what is no axis": Difference(
        "axes and axis: int or NumPy integer, or a sequence of them; float or bool: TypeError.",
        {
            "cbn/axes_floatlist": raises(TypeError, r"axes: found list \[1.0\]"),
            "cbn/axes_nested": raises(TypeError, r"axes: found list \[\[0\], \[1\]\]"),
            "norm/*xis_[[1], [2]]*": raises(TypeError, r"axis: found list \[\[1\], \[2\]\]"),
            "norm/axis_[3.1415]_*": raises(TypeError, r"axis: found list \[3.1415\]"),
            "norm/axis_1.0_*": raises(TypeError, "axis: found float 1.0"),
            "norm/axis_(0.0, 1.0)_*": raises(TypeError, r"axis: found tuple \(0.0, 1.0\)"),
            "norm/axis_'a'_False": raises(TypeError, "axis: found str"),
        },
    ),
    "axes that are given twice": Difference(
        "axes and axis: Duplicates: ValueError.",
        {
            "cbn/axes_dup_neg": raises(ValueError, "axes: found axis 1 twice"),
            "norm/axis_(1, -1)_True": raises(ValueError, "axis: found axis 1 twice"),
            "norm/dup_pos_neg_ord1": raises(ValueError, "axis: found axis 1 twice"),
        },
    ),
    "axes that are not there": Difference(
        "axes and axis: out of range: numpy.exceptions.AxisError.",
        {
            "cbn/axes_oob2": raises(AxisError, "axes: found 2"),
            "cbn/axes_oob_m3": raises(AxisError, "axes: found -3"),
            "cbn/axes_oob_list": raises(AxisError, "axes: found 2"),
            "norm/axis_2_False": raises(AxisError, "axis: found 2"),
            "norm/axis_-3_True": raises(AxisError, "axis: found -3"),
            "norm/axis_(0, 2)_False": raises(AxisError, "axis: found 2"),
            "norm/*xis_[1, 2, 3]*": raises(AxisError, "axis: found 2"),
            "norm/0d_axis0": raises(AxisError, "axis: found 0"),
            "nz/axis_oob": raises(AxisError, "axis: found 5"),
        },
    ),
    "IndexedSlices that TensorFlow makes dense": Difference(
        "clip_by_value, clip_by_norm, global_norm and clip_by_global_norm take it. The other functions raise a "
        "TypeError that suggests .to_dense().",
        {"slices/norm_*": raises(TypeError, r"IndexedSlices.*\.to_dense\(\)")},
    ),
}


def is_meant(pattern: str, name: str) -> bool:
    """Whether a pattern of a difference stands for the case of this name."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None


def checks(name: str) -> list[Check]:
    """The differences that are listed for the case of this name."""
    return [
        check for listed in DIFFERENCES.values() for pattern, check in listed.instead.items() if is_meant(pattern, name)
    ]


# ---- the tests


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_agrees_or_differs_on_purpose(case):
    listed = checks(case.name)
    assert len(listed) <= 1
    try:
        outcome = case.run()
    except Exception as error:  # noqa: BLE001 (whatever it is, it is compared)
        outcome = error
        # Not by accident, in the middle of something: it is gradclip's message, or Python's about the arguments.
        assert re.match(rf"{case.fn}(: |\(\) got an unexpected keyword)|`t_list` should be a sequence", str(outcome))
    why = disagreement(case, outcome)
    if listed:
        listed[0](outcome)
        assert why is not None, "is listed as different"
    else:
        assert why is None


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_met(name):
    for pattern in DIFFERENCES[name].instead:
        assert any(is_meant(pattern, case.name) for case in CASES), pattern


def test_ordinary_use_differs_in_little():
    ordinary = [case.name for case in CASES if case.tag in ("tf_test", "core") and checks(case.name)]
    assert sorted(ordinary) == [
        "cbn/axes_nested",
        "norm/axis_(0, True)_True",
        "norm/tf_test_InvalidAxis_[1, 2, 3]",  # this error and the next are of another class
        "norm/tf_test_InvalidAxis_[[1], [2]]",
        "nz/dtype_int32_ord1",
        "slices/norm_densified",
    ]


def test_types_differ():
    used = [rule for case in CASES if not case.raises for rule in in_our_types(case)[1]]
    assert set(used) == set(TYPES)


def test_all_kinds_of_cases_are_there():
    assert len({case.name for case in CASES}) == len(CASES) == 986
    assert {case.tag for case in CASES} == {"tf_test", "core", "edge", "error", "quirk"}
    of_tensorflow = {"clip_by_value", "clip_by_norm", "clip_by_average_norm", "clip_by_global_norm"}
    assert {case.fn for case in CASES} == of_tensorflow | {"global_norm", "norm", "normalize"}
