"""Errors for everything that the sections "Arrays" and "Limits" exclude: their type and message."""

import array
import collections
import datetime
import decimal
import fractions
import re
import tracemalloc

import gradclip as gc
import layouts
import ml_dtypes
import numpy as np
import pytest
from calls import looped
from oracle import BF16, FLOATS, INTEGERS, NORMED, ORDERED, SCALED, same_bits

X = np.array([3.0, 4.0])
TABLE = np.arange(6.0).reshape(2, 3)
S = gc.IndexedSlices(TABLE, np.array([0, 1]))


def expect(error, call, starts, *mentions):
    """`call` raises exactly this type of error, and its message has this beginning and these parts."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(starts), message
    for word in mentions:
        assert word.lower() in message.lower(), f"{word!r} not in {message!r}"


# function name -> (call with this tensor and name, what the tensor argument is called)
TENSOR = {
    "clip_by_value": (lambda t, name=None: gc.clip_by_value(t, -1, 1, name), "t"),
    "clip_by_norm": (lambda t, name=None: gc.clip_by_norm(t, 1.0, None, name), "t"),
    "clip_by_average_norm": (lambda t, name=None: gc.clip_by_average_norm(t, 1.0, name), "t"),
    "clip_by_global_norm": (
        lambda t, name=None: gc.clip_by_global_norm([None, t], 1.0, None, name),
        "t_list[1]",
    ),
    "global_norm": (lambda t, name=None: gc.global_norm([X, t], name), "t_list[1]"),
    "norm": (lambda t, name=None: gc.norm(t, "euclidean", None, None, name), "tensor"),
    "normalize": (lambda t, name=None: gc.normalize(t, "euclidean", None, name), "tensor"),
}
functions = pytest.mark.parametrize("function", TENSOR)
TAKES = {"clip_by_value": ORDERED, "global_norm": NORMED, "norm": NORMED}
"""The dtypes of a function; SCALED for the others."""

REFUSED = {
    "object": np.array([1.0, None], dtype=object),
    "string": np.array(["a", "b"]),
    "bytes": np.array([b"a", b"b"]),
    "datetime": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "timedelta": np.array([1, 2], dtype="timedelta64[s]"),
    "structured": np.zeros(2, dtype=[("a", "f4")]),
    "void": np.zeros(2, dtype="V2"),
    "longdouble": np.ones(2, dtype=np.longdouble),
    "clongdouble": np.ones(2, dtype=np.clongdouble),
    "float8_e4m3fn": np.ones(2, dtype=ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.ones(2, dtype=ml_dtypes.float8_e5m2),
    "int4": np.ones(2, dtype=ml_dtypes.int4),
    "uint4": np.ones(2, dtype=ml_dtypes.uint4),
}


@functions
@pytest.mark.parametrize("kind", REFUSED)
def test_an_array_of_another_dtype_is_a_type_error_naming_what_it_is_and_what_is_supported(function, kind):
    call, argument = TENSOR[function]
    dtype = REFUSED[kind].dtype
    with pytest.raises(TypeError) as caught:
        call(REFUSED[kind])
    message = str(caught.value)
    assert message.startswith(f"{function}: {argument}: ")
    assert any(spelling in message for spelling in (str(dtype), dtype.name, kind)), message
    for supported in TAKES.get(function, SCALED):
        assert re.search(rf"\b{np.dtype(supported).name}\b", message.partition("allowed")[2]), supported


@functions
def test_every_dtype_is_taken_or_named_as_what_is_not_supported(function):
    call, argument = TENSOR[function]
    takes = TAKES.get(function, SCALED)
    for dtype in NORMED:
        arrays = (np.ones(3, dtype), np.ones((0, 2), dtype), np.ones((4, 6), dtype)[::2, ::-3])
        for t in (*arrays, dtype(1), [dtype(1)], layouts.swapped_bytes(np.ones((2, 2), dtype))):
            if dtype in takes:
                call(t)
                continue
            spelling = str(t.dtype if isinstance(t, np.ndarray) else np.dtype(dtype))
            expect(TypeError, lambda t=t: call(t), f"{function}: {argument}: ", spelling, "bfloat16", "float16")
            message = message_of(lambda t=t: call(t)).partition("allowed")[2]
            named = [d for d in NORMED if re.search(rf"\b{np.dtype(d).name}\b", message)]
            assert named == [d for d in NORMED if d in takes]


def message_of(call):
    with pytest.raises(TypeError) as caught:
        call()
    return str(caught.value)


@functions
def test_a_masked_array_is_a_type_error(function):
    call, argument = TENSOR[function]
    for masked in (np.ma.masked_array([1.0, 2.0], mask=[0, 1]), np.ma.masked_array([1.0, 2.0])):
        expect(TypeError, lambda masked=masked: call(masked), f"{function}: {argument}: ", "masked")


@functions
def test_none_and_other_things_are_a_type_error(function):
    call, argument = TENSOR[function]
    for thing in ("text", b"bytes", object(), {"a": 1}, fractions.Fraction(1, 2), decimal.Decimal(1)):
        expect(TypeError, lambda thing=thing: call(thing), f"{function}: {argument}: ")
    if "[" not in argument:
        expect(TypeError, lambda: call(None), f"{function}: {argument}: ", "None")


@functions
@pytest.mark.parametrize("kind", [list, tuple, collections.UserList])
def test_a_ragged_list_is_a_value_error(function, kind):
    call, argument = TENSOR[function]
    expect(ValueError, lambda: call(kind([[1.0, 2.0], [3.0]])), f"{function}: {argument}: found a ragged list; ")


@functions
@pytest.mark.parametrize("kind", [list, tuple, collections.UserList])
def test_a_list_nested_too_deep_is_a_value_error(function, kind):
    call, argument = TENSOR[function]
    deep = 1.0
    for _ in range(70):
        deep = kind([deep])
    expect(ValueError, lambda: call(deep), f"{function}: {argument}: found a list nested too deep; ")


@functions
def test_the_name_stands_in_the_message(function):
    call, argument = TENSOR[function]
    bad = REFUSED["object"]
    expect(TypeError, lambda: call(bad, "layer3"), f"{function} 'layer3': {argument}: ")
    expect(TypeError, lambda: call(bad, None), f"{function}: {argument}: ")


@functions
def test_a_name_is_none_or_a_string(function):
    call, _ = TENSOR[function]
    call(X, "layer3")
    for name in (3, b"layer3", ["layer3"], True):
        expect(TypeError, lambda name=name: call(X, name), f"{function}: name: ", type(name).__name__)


def test_clip_by_value_refuses_the_python_numbers_bool_and_complex():
    for t in (True, 1j):
        mentions = [np.asarray(t).dtype.name, *(np.dtype(supported).name for supported in ORDERED)]
        expect(TypeError, lambda t=t: gc.clip_by_value(t, 0, 1), "clip_by_value: t: ", *mentions)


# ---- clip_norm and use_norm


LIMIT = {
    "clip_by_norm": lambda c, name=None: gc.clip_by_norm(X, c, None, name),
    "clip_by_average_norm": lambda c, name=None: gc.clip_by_average_norm(X, c, name),
    "clip_by_global_norm": lambda c, name=None: gc.clip_by_global_norm([X], c, None, name),
}
limits = pytest.mark.parametrize("function", LIMIT)

# Newer versions of ml_dtypes have complex numbers of their own.
ML_COMPLEX = [name for name in ("complex32", "bcomplex32") if hasattr(ml_dtypes, name)]

NOT_NUMBERS = {
    "bool": True,
    "numpy bool": np.True_,
    "0-d bool": np.array(True),
    "complex": 1j,
    "numpy complex": np.complex64(1),
    "0-d complex": np.array(1 + 0j),
    "str": "1.0",
    "numpy str": np.str_("1.0"),
    "0-d str": np.array("1.0"),
    "bytes": b"1",
    "Fraction": fractions.Fraction(1, 2),
    "Decimal": decimal.Decimal(1),
    "datetime": datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
    "timedelta": datetime.timedelta(1),
    "datetime64": np.datetime64("2020-01-01"),
    "timedelta64": np.timedelta64(1, "s"),
    "object": object(),
    "0-d object": np.array(object()),
    "dict": {},
    "masked": np.ma.masked_array(1.0),
    "complex128": np.complex128(1),
    "clongdouble": np.clongdouble(1),
    "0-d structured": np.zeros((), dtype=[("a", "f4")]),
    "void": np.zeros((), dtype="V2"),
    **{name: getattr(ml_dtypes, name)(1) for name in ML_COMPLEX},
}


@limits
@pytest.mark.parametrize("kind", NOT_NUMBERS)
def test_a_limit_that_is_no_number_is_a_type_error(function, kind):
    expect(TypeError, lambda: LIMIT[function](NOT_NUMBERS[kind]), f"{function}: clip_norm: ")


@limits
def test_a_limit_of_none_is_a_type_error(function):
    expect(TypeError, lambda: LIMIT[function](None), f"{function}: clip_norm: ", "None")


@limits
def test_a_limit_that_is_not_0_d_is_a_value_error(function):
    for limit in (np.array([1.0]), np.ones((1, 1)), np.ones(2), np.zeros(0)):
        expect(
            ValueError,
            lambda limit=limit: LIMIT[function](limit),
            f"{function}: clip_norm: ",
            str(limit.shape),
        )


@limits
def test_a_negative_or_nan_limit_is_a_value_error(function):
    for limit, shown in (
        *((-1, "-1"), (-1.5, "-1.5"), (np.float32(-2), "-2"), (np.array(-3), "-3"), (float("-inf"), "-inf")),
        *((-5e-324, ""), (-(10**400), ""), (-np.finfo(np.longdouble).smallest_subnormal, "")),
    ):
        expect(ValueError, lambda limit=limit: LIMIT[function](limit), f"{function}: clip_norm: ", shown)
    for limit in (float("nan"), np.float32("nan"), np.array(np.nan)):
        expect(ValueError, lambda limit=limit: LIMIT[function](limit), f"{function}: clip_norm: ", "nan")


@limits
def test_the_name_stands_before_the_limit(function):
    expect(ValueError, lambda: LIMIT[function](-1.0, "layer3"), f"{function} 'layer3': clip_norm: ", "-1")
    expect(TypeError, lambda: LIMIT[function]("1", "it's"), f"{function} ", "it's", "clip_norm: ")


@limits
@pytest.mark.parametrize(
    "limit",
    [
        1,
        1.0,
        np.float16(1),
        np.float32(1),
        np.float64(1),
        np.int8(1),
        np.uint64(1),
        np.array(1.0),
        np.array(1, dtype=np.int32),
        np.longdouble(1),
        np.array(1, dtype=np.longdouble),
        np.array(1, dtype=">f4"),
        np.array(1, dtype=">i8"),
        BF16(1),
        np.array(1, dtype=BF16),
        layouts.swapped_bytes(np.array(1, dtype=BF16)),
        ml_dtypes.float8_e4m3fn(1),
        ml_dtypes.float8_e5m2(1),
        ml_dtypes.int4(1),
        ml_dtypes.uint4(1),
        np.array(1, dtype=ml_dtypes.float8_e4m3b11fnuz),
        layouts.unaligned(np.array(1.0)),
        layouts.subclass(np.array(1.0)),
        layouts.read_only(np.array(1.0)),
    ],
    ids=lambda limit: f"{type(limit).__name__} {getattr(limit, 'dtype', '')}",
)
def test_every_kind_of_number_is_a_limit(function, limit):
    result, expected = LIMIT[function](limit), LIMIT[function](1.0)
    np.testing.assert_equal(result, expected)


@limits
def test_an_integer_too_large_for_float64_counts_as_inf(function):
    np.testing.assert_equal(LIMIT[function](10**400), LIMIT[function](float("inf")))


def use_norm(n):
    return gc.clip_by_global_norm([X], 1.0, n)


@pytest.mark.parametrize("kind", NOT_NUMBERS)
def test_a_use_norm_that_is_no_number_is_a_type_error(kind):
    expect(TypeError, lambda: use_norm(NOT_NUMBERS[kind]), "clip_by_global_norm: use_norm: ")


def test_a_use_norm_of_the_wrong_shape_or_sign_is_a_value_error():
    expect(ValueError, lambda: use_norm(np.ones(1)), "clip_by_global_norm: use_norm: ", "(1,)")
    for n in (-1, -0.5, float("-inf"), np.float32(-1), np.array(-1.0)):
        expect(ValueError, lambda n=n: use_norm(n), "clip_by_global_norm: use_norm: ", "-")


@pytest.mark.parametrize("dtype", SCALED)
def test_a_limit_of_every_kind_means_the_same_for_every_dtype(dtype):
    x = np.array([3, -4, 12, 0.5]).astype(dtype)
    expected = gc.clip_by_norm(x, 2.0), gc.clip_by_average_norm(x, 2.0), gc.clip_by_global_norm([x], 2.0)[0][0]
    for limit in (2, *(d(2) for d in (*FLOATS, *INTEGERS)), *(np.array(2, d) for d in (*FLOATS, *INTEGERS))):
        results = gc.clip_by_norm(x, limit), gc.clip_by_average_norm(x, limit), gc.clip_by_global_norm([x], limit)[0][0]
        assert all(same_bits(r, e) for r, e in zip(results, expected, strict=True)), repr(limit)
        trusted = gc.clip_by_global_norm([x], 1, limit)
        assert trusted[1] == 2.0
        assert same_bits(trusted[0][0], gc.clip_by_global_norm([x], 1.0, 2.0)[0][0])


def test_a_limit_keeps_its_own_precision():
    """0.1 in bfloat16 is 0.10009765625, for a tensor of any dtype."""
    x = np.array([3.0, 4.0])
    for kind in (np.float16, BF16, np.float32, ml_dtypes.float8_e4m3fn):
        limit = kind(0.1)
        assert gc.clip_by_norm(x, limit).tolist() == gc.clip_by_norm(x, float(limit)).tolist()
        assert gc.clip_by_norm(x, limit).tolist() != gc.clip_by_norm(x, 0.1).tolist()


@pytest.mark.parametrize("kind", [np.float16, BF16, np.float32, np.longdouble, ml_dtypes.float8_e5m2])
def test_nan_inf_and_negative_limits_of_every_kind(kind):
    for limit in (kind(-1), kind("nan"), kind("-inf"), np.array(-1).astype(kind)):
        expect(ValueError, lambda limit=limit: gc.clip_by_norm(X, limit), "clip_by_norm: clip_norm: ")
    assert same_bits(gc.clip_by_norm(X, kind("inf")), X)
    assert np.isnan(gc.clip_by_global_norm([X], 1.0, kind("nan"))[0][0]).all()
    expect(ValueError, lambda: gc.clip_by_global_norm([X], 1.0, kind(-1)), "clip_by_global_norm: use_norm: ")
    assert same_bits(gc.clip_by_norm(-X, kind(-0.0)), np.array([-0.0, -0.0]))


@pytest.mark.parametrize("n", [4, 4.0, np.float32(4), np.int64(4), np.array(4.0), BF16(4), ml_dtypes.int4(4)])
def test_use_norm_is_returned_as_a_python_float(n):
    (clipped,), norm = use_norm(n)
    assert type(norm) is float
    assert norm == 4.0
    assert clipped.tolist() == [0.75, 1.0]


def test_a_use_norm_too_large_for_float64_counts_as_inf():
    (clipped,), norm = use_norm(10**400)
    assert norm == float("inf")
    assert np.isnan(clipped).all()


# ---- the bounds of clip_by_value


BOUNDS = {
    "clip_value_min": lambda t, b: gc.clip_by_value(t, b, None),
    "clip_value_max": lambda t, b: gc.clip_by_value(t, None, b),
}
bounds = pytest.mark.parametrize("bound", BOUNDS)


@bounds
@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_float_bound_for_integers_is_a_type_error_naming_both(bound, dtype):
    t = np.arange(3, dtype=dtype)
    for value, spelling in (
        (2.0, "float"),
        (2.5, "float"),
        (np.float32(2), "float32"),
        (np.float64(2), "float64"),
        (np.ones(3), "float64"),
        (np.array(2.0), "float64"),
        (np.float16(2), "float16"),
        (BF16(2), "bfloat16"),
        (np.ones(3, BF16), "bfloat16"),
        (np.array(2, np.float16), "float16"),
        (np.longdouble(2), "longdouble"),
        ([1.0, 2.0, 3.0], "float64"),
    ):
        expect(
            TypeError,
            lambda value=value: BOUNDS[bound](t, value),
            f"clip_by_value: {bound}: ",
            np.dtype(dtype).name,
            spelling,
        )


NO_BOUNDS = {k: v for k, v in NOT_NUMBERS.items() if k != "masked"}


@bounds
@looped("kind", NO_BOUNDS)
@pytest.mark.parametrize("dtype", [np.int32, np.float16, BF16, np.float32])
def test_a_bound_that_is_no_number_is_a_type_error(bound, kind, dtype):
    expect(
        TypeError,
        lambda: BOUNDS[bound](np.ones(3, dtype=dtype), NO_BOUNDS[kind]),
        f"clip_by_value: {bound}: ",
    )


@bounds
@pytest.mark.parametrize("dtype", ORDERED)
def test_an_array_bound_of_another_kind_is_a_type_error(bound, dtype):
    for value in (
        np.ones(3, dtype=bool),
        np.ones(3, dtype=complex),
        np.array(["a"] * 3),
        np.array([1, 2, 3], dtype=object),
        np.ones(3, dtype="m8[s]"),
        np.ones(3, dtype="V2"),
        np.ones(3, dtype=np.clongdouble),
        *(np.ones(3, dtype=getattr(ml_dtypes, name)) for name in ML_COMPLEX),
    ):
        expect(
            TypeError,
            lambda value=value: BOUNDS[bound](np.ones(3, dtype=dtype), value),
            f"clip_by_value: {bound}: ",
        )


@bounds
def test_a_masked_bound_is_a_type_error(bound):
    expect(
        TypeError,
        lambda: BOUNDS[bound](X, np.ma.masked_array([1.0, 2.0], mask=[0, 1])),
        f"clip_by_value: {bound}: ",
        "masked",
    )


@bounds
@pytest.mark.parametrize(
    ("t", "shape"),
    [
        ((2, 3), (2,)),
        ((2, 3), (1, 2, 3)),
        ((2, 3), (1, 1, 1)),
        ((2, 1), (2, 3)),
        ((), (1,)),
        ((1,), (3,)),
        ((1,), (0,)),
        ((0,), (3,)),
        ((3,), (0,)),
    ],
)
def test_a_bound_that_enlarges_t_or_does_not_broadcast_is_a_value_error(bound, t, shape):
    expect(
        ValueError,
        lambda: BOUNDS[bound](np.zeros(t), np.ones(shape)),
        f"clip_by_value: {bound}: ",
        str(t),
        str(shape),
    )


def test_two_bounds_of_none_are_a_value_error():
    with pytest.raises(ValueError, match=r"^clip_by_value: .*None"):
        gc.clip_by_value(X, None, None)


def test_the_name_stands_before_a_bound():
    with pytest.raises(TypeError, match=r"^clip_by_value 'layer3': clip_value_max: "):
        gc.clip_by_value(X, 0, "1", "layer3")


# ---- axes and axis


AXES = {
    "clip_by_norm: axes: ": lambda a: gc.clip_by_norm(TABLE, 1.0, a),
    "norm: axis: ": lambda a: gc.norm(TABLE, axis=a),
    "normalize: axis: ": lambda a: gc.normalize(TABLE, axis=a),
}
axes_of = pytest.mark.parametrize("start", AXES)


@axes_of
def test_an_axis_out_of_range_is_an_axis_error(start):
    for axis in (2, -3, (0, 2), [-3], np.int64(5), 10**30):
        expect(np.exceptions.AxisError, lambda axis=axis: AXES[start](axis), start)
    with pytest.raises(np.exceptions.AxisError, match=r"\b7\b.*\b2\b"):
        AXES[start](7)


@axes_of
@pytest.mark.parametrize("make", [range, np.arange])
def test_no_more_axes_are_read_than_it_takes_to_see_that_they_are_too_many(start, make):
    axes = make(10_000_000)
    tracemalloc.start()
    expect(np.exceptions.AxisError, lambda: AXES[start](axes), f"{start}found 2; allowed: ")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@axes_of
def test_a_long_axis_is_shown_by_its_size(start):
    for axis in (10**400, [10**400]):
        expect(np.exceptions.AxisError, lambda axis=axis: AXES[start](axis), f"{start}found an int of 1329 bits; ")


def test_a_0_d_tensor_has_no_axis():
    for call in (
        lambda: gc.clip_by_norm(3.0, 1.0, 0),
        lambda: gc.norm(3.0, axis=0),
        lambda: gc.normalize(3.0, axis=-1),
    ):
        with pytest.raises(np.exceptions.AxisError):
            call()


@axes_of
def test_an_axis_given_twice_is_a_value_error(start):
    for axis in ((0, 0), [1, -1], (0, -2)):
        with pytest.raises(ValueError, match=start) as caught:
            AXES[start](axis)
        assert not isinstance(caught.value, IndexError)  # an AxisError would be both


@axes_of
def test_an_axis_that_is_no_integer_is_a_type_error(start):
    for axis in (1.0, np.float64(1), True, np.True_, (0, True), [1.0], "0", (None,), {0: 1}, b"0"):
        expect(TypeError, lambda axis=axis: AXES[start](axis), start)


@axes_of
def test_every_kind_of_integer_and_sequence_is_an_axis(start):
    call = AXES[start]
    for axis in (1, -1, np.int8(1), np.uint64(1), (1,), [-1], [np.int32(1)], np.array(1), np.array([1])):
        np.testing.assert_equal(call(axis), call(1))
    np.testing.assert_equal(call((0, 1)), call([-2, -1]))


def test_an_empty_axis_is_a_value_error_but_empty_axes_are_not():
    expect(ValueError, lambda: gc.norm(TABLE, axis=()), "norm: axis: ")
    expect(ValueError, lambda: gc.normalize(TABLE, axis=[]), "normalize: axis: ")
    assert gc.clip_by_norm(TABLE, 1.0, axes=()).tolist() == np.minimum(TABLE, 1).tolist()
    assert gc.clip_by_norm(TABLE, 1.0, axes=[]).tolist() == np.minimum(TABLE, 1).tolist()


# ---- ord and keepdims


CUBE = np.ones((2, 3, 4))
ORD = {
    "norm": lambda o: gc.norm(X, o),
    "norm, one axis": lambda o: gc.norm(TABLE, o, axis=1),
    "norm, three axes": lambda o: gc.norm(CUBE, o, axis=(0, 1, 2)),
    "normalize": lambda o: gc.normalize(X, o),
    "global_norm": lambda o: gc.global_norm([X], ord=o),
    "clip_by_global_norm": lambda o: gc.clip_by_global_norm([X], 1.0, ord=o),
}
ords = pytest.mark.parametrize("where", ORD)


@ords
@pytest.mark.parametrize(
    "value",
    [
        *(0, 0.0, -0.0, -1, -2.5, float("-inf"), float("nan"), np.float32("nan"), "fro", "nuc", "l2", "inf", ""),
        *(BF16(-1), BF16("nan"), np.float16(0)),
    ],
)
def test_another_vector_ord_is_a_value_error(where, value):
    expect(ValueError, lambda: ORD[where](value), f"{where.split(',')[0]}: ord: ", str(value))


@ords
def test_a_complex_ord_is_a_value_error(where):
    for value in (1j, np.complex64(2), *(getattr(ml_dtypes, name)(2) for name in ML_COMPLEX)):
        expect(ValueError, lambda value=value: ORD[where](value), f"{where.split(',')[0]}: ord: ")


@ords
def test_an_ord_of_none_or_bool_is_a_type_error(where):
    for value in (None, True, False, np.True_):
        expect(TypeError, lambda value=value: ORD[where](value), f"{where.split(',')[0]}: ord: ")


@pytest.mark.parametrize("value", [3, 0.5, 0, -1, -2, float("nan"), float("-inf"), "nuc", "f", 1e300])
def test_another_matrix_ord_is_a_value_error(value):
    expect(ValueError, lambda: gc.norm(TABLE, value, axis=(0, 1)), "norm: ord: ", str(value))
    expect(ValueError, lambda: gc.normalize(CUBE, value, axis=(0, 2)), "normalize: ord: ", str(value))


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.int64(2), "euclidean", np.array(2), BF16(2), np.float16(2)]
)
def test_every_kind_of_number_is_an_ord(value):
    for where, call in ORD.items():
        if not (isinstance(value, str) and "global" in where):
            np.testing.assert_equal(call(value), call(2))


def test_keepdims_is_none_or_bool():
    assert gc.norm(TABLE, axis=1, keepdims=None).shape == (2,)
    assert gc.norm(TABLE, axis=1, keepdims=False).shape == (2,)
    assert gc.norm(TABLE, axis=1, keepdims=True).shape == (2, 1)
    for value in (1, 0, "yes", 1.0, [True]):
        expect(TypeError, lambda value=value: gc.norm(TABLE, axis=1, keepdims=value), "norm: keepdims: ")


# ---- t_list


SEQUENCE = {
    "global_norm": lambda t, name=None: gc.global_norm(t, name),
    "clip_by_global_norm": lambda t, name=None: gc.clip_by_global_norm(t, 1.0, None, name),
}
NO_SEQUENCES = {
    "array": X,
    "0-d array": np.array(1.0),
    "dict": {0: X},
    "ordered dict": collections.OrderedDict(a=X),
    "values of a dict": {0: X}.values(),
    "mapping": collections.ChainMap({"a": X}),
    "values of a mapping": collections.ChainMap({"a": X}).values(),
    "array of arrays": np.array([X, None], object),
    "set": {1.0},
    "generator": (x for x in [X]),
    "iterator": iter([X]),
    "number": 3.0,
    "none": None,
    "str": "ab",
    "bytes": b"ab",
    "bytearray": bytearray(b"ab"),
    "memoryview": memoryview(b"ab"),
    "range": range(3),
    "array.array": array.array("d", [1.0]),
    "slices": S,
}
#: The texts after TensorFlow's sentence.
ADVICE = {
    "dict": " Use gradclip.tree for a dict, or pass list(t_list.values()).",
    "ordered dict": " Use gradclip.tree for a dict, or pass list(t_list.values()).",
    "values of a dict": " Pass list(t_list).",
    "mapping": " Pass list(t_list.values()).",
    "values of a mapping": " Pass list(t_list).",
    "array of arrays": " Pass list(t_list).",
    "generator": " Pass list(t_list).",
    "array": " Pass [t_list] for one tensor.",
    "0-d array": " Pass [t_list] for one tensor.",
    "iterator": " Pass list(t_list).",
}


@pytest.mark.parametrize("function", SEQUENCE)
@pytest.mark.parametrize("kind", NO_SEQUENCES)
def test_something_else_in_place_of_the_sequence_is_a_type_error(function, kind):
    thing = NO_SEQUENCES[kind]
    sentence = f"`t_list` should be a sequence of tensors. Received {type(thing)}.{ADVICE.get(kind, '')}"
    with pytest.raises(TypeError) as caught:
        SEQUENCE[function](thing)
    assert str(caught.value) == sentence
    with pytest.raises(TypeError) as caught:
        SEQUENCE[function](thing, "layer3")
    assert str(caught.value) == f"{function} 'layer3': {sentence}"


def test_advice_about_dicts_and_objects():
    for call, advice in (
        (lambda t: gc.clip_by_norms(t, 1.0), " Pass list(t_list.values())."),
        (
            lambda t: gc.clip_by_weight_norm(t, t),
            " Pass [t_list[k] for k in t_list] and [weights[k] for k in t_list].",
        ),
        (
            lambda t: gc.clip_difference_by_global_norm(t, t, 1.0),
            " Use gradclip.tree for a dict, or pass [t_list[k] for k in t_list] and [base_list[k] for k in t_list].",
        ),
        (lambda t: gc.clip_examples_by_global_norm(t, 1.0), " Pass list(t_list.values())."),
        (gc.norms, " Use gradclip.tree for a dict, or pass list(t_list.values())."),
    ):
        with pytest.raises(TypeError) as caught:
            call({"a": np.ones(2)})
        assert str(caught.value).endswith(f"Received <class 'dict'>.{advice}")

    with pytest.raises(
        TypeError, match=r"t_list\[1\]: found dict, of which .*; allowed: .*; gradclip\.tree takes dicts$"
    ):
        gc.global_norm([np.ones(2), {"a": np.ones(2)}])
    with pytest.raises(
        ValueError, match=r"ord: found str 'inf'; allowed: 'euclidean' or a real number > 0, numpy\.inf inc"
    ):
        gc.global_norm([np.ones(2)], ord="inf")
    with pytest.raises(
        ValueError, match=r"ord: found str 'inf'; .*numpy\.inf included; 'euclidean', 'fro', 1, 2 or inf f"
    ):
        gc.norm(np.ones(2), "inf")

    class Ragged:
        pass

    with pytest.raises(
        TypeError, match=r"clip_by_norm: t: found Ragged, of which NumPy makes dtype object; allowed: f"
    ):
        gc.clip_by_norm(Ragged(), 1.0)
    with pytest.raises(
        ValueError, match=r"t: found a ragged list; .*; a list of tensors is for functions such as clip_by_g"
    ):
        gc.clip_by_norm([np.ones(2), np.ones(3)], 1.0)
    with pytest.raises(
        ValueError, match=r"t_list\[1\]: found a ragged list; .*; gradclip\.tree takes nested lists of tensors$"
    ):
        gc.global_norm([np.ones(2), [np.ones(2), np.ones((2, 2))]])
    with pytest.raises(ValueError, match=r"ord: found str 'fro'; .*; 'fro' with two axes$"):
        gc.norm(np.ones((2, 2)), "fro")


@pytest.mark.parametrize("kind", [list, tuple, collections.deque, collections.UserList])
def test_every_sequence_is_a_list_of_tensors(kind):
    t_list = kind([X, None, TABLE])
    assert gc.global_norm(t_list) == pytest.approx(80**0.5)
    clipped, _ = gc.clip_by_global_norm(t_list, 1.0)
    assert type(clipped) is list
    assert clipped[1] is None
    assert clipped[2].shape == (2, 3)


def test_an_error_about_an_entry_says_which():
    for call, function in (
        (gc.global_norm, "global_norm"),
        (lambda t: gc.clip_by_global_norm(t, 1.0), "clip_by_global_norm"),
    ):
        expect(
            TypeError,
            lambda call=call: call([X, None, X, REFUSED["object"]]),
            f"{function}: t_list[3]: ",
            "object",
        )
        expect(
            TypeError,
            lambda call=call: call([np.ma.masked_array([1.0])]),
            f"{function}: t_list[0]: ",
            "masked",
        )
        expect(ValueError, lambda call=call: call([X, [[1.0], [1.0, 2.0]]]), f"{function}: t_list[1]: ")


# ---- the order of checks


IN_ORDER = [
    (lambda: gc.clip_by_norm("t", "c", 1.5, 3, out=4), "clip_by_norm: t: "),
    (lambda: gc.clip_by_norm(X, "c", 1.5), "clip_by_norm: clip_norm: "),
    (lambda: gc.clip_by_norm(X, 1.0, 1.5, out=4), "clip_by_norm: axes: "),
    (lambda: gc.clip_by_norm("t", -1.0), "clip_by_norm: t: "),
    (lambda: gc.clip_by_norm(X, "c", (0, 0)), "clip_by_norm: clip_norm: "),
    (lambda: gc.clip_by_value("t", "a", "b"), "clip_by_value: t: "),
    (lambda: gc.clip_by_value(X, "a", "b"), "clip_by_value: clip_value_min: "),
    (lambda: gc.clip_by_value(X, 0, "b", out=4), "clip_by_value: clip_value_max: "),
    (lambda: gc.clip_by_average_norm("t", "c"), "clip_by_average_norm: t: "),
    (lambda: gc.clip_by_average_norm(X, "c", out=4), "clip_by_average_norm: clip_norm: "),
    (lambda: gc.clip_by_global_norm(["t"], "c", "u", ord=None), "clip_by_global_norm: t_list[0]: "),
    (lambda: gc.clip_by_global_norm([X], "c", "u", ord=None), "clip_by_global_norm: clip_norm: "),
    (lambda: gc.clip_by_global_norm([X], 1.0, "u", ord=None), "clip_by_global_norm: use_norm: "),
    (lambda: gc.clip_by_global_norm([X], 1.0, ord=None, out=4), "clip_by_global_norm: ord: "),
    (lambda: gc.norm("t", None, 1.5, 3), "norm: tensor: "),
    (lambda: gc.norm(X, None, 1.5, 3), "norm: ord: "),
    (lambda: gc.norm(X, 2, 1.5, 3), "norm: axis: "),
    (lambda: gc.norm(X, 2, 0, 3), "norm: keepdims: "),
    (lambda: gc.normalize(X, None, 1.5, out=4), "normalize: ord: "),
    (lambda: gc.normalize(X, 2, 1.5, out=4), "normalize: axis: "),
    (lambda: gc.normalize(X, 2, 0, out=4), "normalize: out: "),
]


@pytest.mark.parametrize(("call", "start"), IN_ORDER, ids=[start + str(i) for i, (_, start) in enumerate(IN_ORDER)])
def test_arguments_are_checked_in_signature_order(call, start):
    expect(TypeError, call, start)


VALUES_IN_ORDER = [
    (lambda: gc.clip_by_norm(X, -1.0, (0, 0), out=np.zeros(3)), "clip_by_norm: clip_norm: "),
    (lambda: gc.clip_by_norm(X, 1.0, (0, 0), out=np.zeros(3)), "clip_by_norm: axes: "),
    (lambda: gc.clip_by_global_norm([X], -1.0, -1.0, ord=-1), "clip_by_global_norm: clip_norm: "),
    (lambda: gc.clip_by_global_norm([X], 1.0, -1.0, ord=-1), "clip_by_global_norm: use_norm: "),
    (lambda: gc.clip_by_global_norm([X], 1.0, ord=-1, out=[]), "clip_by_global_norm: ord: "),
    (lambda: gc.norm(X, -1, (0, 0)), "norm: ord: "),
    (lambda: gc.normalize(X, 2, (0, 0), out=np.zeros(3)), "normalize: axis: "),
]


@pytest.mark.parametrize(
    ("call", "start"), VALUES_IN_ORDER, ids=[start + str(i) for i, (_, start) in enumerate(VALUES_IN_ORDER)]
)
def test_values_are_checked_in_signature_order(call, start):
    expect(ValueError, call, start)


# ---- missing, unknown and too many arguments


def test_missing_unknown_and_repeated_arguments_are_type_errors():
    for call in (
        lambda: gc.clip_by_norm(),
        lambda: gc.clip_by_norm(X),
        lambda: gc.clip_by_norm(X, 1.0, t=X),
        lambda: gc.clip_by_norm(X, 1.0, **{"\ud800": 1}),
        lambda: gc.clip_by_norm(X, 1.0, **{"x" * 100: 1}),
        lambda: gc.IndexedSlices(X),
        lambda: gc.norm(X, 2, 0, None, None, None),
        lambda: gc.clip_by_value(X, 0),
        lambda: gc.global_norm(),
        lambda: gc.clip_by_norm(X, 1.0, axis=0),
        lambda: gc.norm(X, axes=0),
        lambda: gc.norm(X, keep_dims=True),
        lambda: gc.clip_by_norm(X, 1.0, None, None, X),
        lambda: gc.clip_by_global_norm([X], 1.0, None, None, 2),
        lambda: gc.normalize(X, 2, None, None, X),
    ):
        with pytest.raises(TypeError):
            call()


def test_a_masked_sequence_of_limits_is_a_type_error():
    masked = np.ma.masked_array([0.5], mask=[True])
    expect(TypeError, lambda: gc.clip_by_norms([X], masked), "clip_by_norms: clip_norms: ", "masked")
    expect(
        TypeError,
        lambda: gc.clip_examples_by_global_norm([X], masked),
        "clip_examples_by_global_norm: clip_norm: ",
        "masked",
    )


def test_a_limit_of_another_package_can_be_converted():
    class Scalar:
        def __float__(self):
            return 1.0

    for limit, hint in ((Scalar(), "; float(x) converts it"), ("1", ""), (True, ""), (np.complex128(1), "")):
        with pytest.raises(TypeError, match=rf"clip_norm: found .*float or 0-d array\){re.escape(hint)}$"):
            gc.clip_by_norm(np.ones(2), limit)
