"""Calls on arrays of CuPy are handed on, with a stand-in for CuPy; and the checks that the part for them makes here."""

import re
import sys
import types
from functools import partial

import gradclip as gc
import ml_dtypes
import numpy as np
import pytest
from gradclip._checks import Checks
from hypothesis import given
from hypothesis import strategies as st
from oracle import same_bits

pytestmark = pytest.mark.thread_unsafe(reason="modules of the process are replaced")

X = np.array([3.0, 4.0])
TABLE = np.arange(6.0).reshape(2, 3)
FUNCTIONS = (
    "clip_by_value",
    "clip_by_norm",
    "clip_by_average_norm",
    "clip_by_global_norm",
    "global_norm",
    "norm",
    "normalize",
)
OF_LISTS = ("clip_by_global_norm", "global_norm")


class Refuses(type):
    """Its classes raise when they are asked what is theirs."""

    def __instancecheck__(cls, instance):
        raise AssertionError(instance)

    def __subclasscheck__(cls, subclass):
        raise AssertionError(subclass)


class Device(metaclass=Refuses):
    """A stand-in for cupy.ndarray."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")


class Part(Device):
    """A subclass."""


class Pretends:
    """Claims to be another class, and is not an array of any kind."""

    @property
    def __class__(self):
        return Device


@pytest.fixture
def cupy(monkeypatch):
    """A module that looks like CuPy."""
    module = types.ModuleType("cupy")
    module.ndarray = Device
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.fixture
def calls(monkeypatch):
    """The calls that were handed on, as name and arguments. Each returns its number."""
    found = []

    def recorder(name):
        def record(*arguments):
            found.append((name, arguments))
            return len(found)

        return record

    module = types.ModuleType("gradclip._cuda")
    for name in FUNCTIONS:
        setattr(module, name, recorder(name))
    monkeypatch.setitem(sys.modules, "gradclip._cuda", module)
    return found


def plainly(function, tensor):
    """The function on a tensor, or on a list with it, without an error about anything else."""
    more = {"clip_by_value": (-1, 1), "global_norm": (), "norm": (), "normalize": ()}.get(function, (1.0,))
    return getattr(gc, function)([tensor] if function in OF_LISTS else tensor, *more)


def error_of(call):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    return type(caught.value), str(caught.value)


def test_every_function_hands_on_all_its_arguments_in_order(cupy, calls):
    d, a, b, c, e = (cupy.ndarray(), *(object() for _ in range(4)))
    tensors = [None, d]
    expected = [
        (gc.clip_by_value(d, a, b, c, out=e), "clip_by_value", (d, a, b, c, e)),
        (gc.clip_by_norm(d, a, b, c, out=e), "clip_by_norm", (d, a, b, c, e)),
        (gc.clip_by_average_norm(d, a, b, out=c), "clip_by_average_norm", (d, a, None, b, c)),
        (
            gc.clip_by_global_norm(tensors, a, b, c, ord=e, out=X),
            "clip_by_global_norm",
            ((None, d), a, b, c, e, X),
        ),
        (gc.global_norm(tensors, a, ord=b), "global_norm", ((None, d), a, b)),
        (gc.norm(d, a, b, c, e), "norm", (d, a, b, c, e)),
        (gc.normalize(d, a, b, c, out=e), "normalize", (d, a, b, c, e)),
    ]
    assert [result for result, *_ in expected] == [1, 2, 3, 4, 5, 6, 7], "what the other function returns"
    assert [(name, len(arguments)) for name, arguments in calls] == [(n, len(args)) for _, n, args in expected]
    for (_, arguments), (_, name, wanted) in zip(calls, expected, strict=True):
        for i, (found, want) in enumerate(zip(arguments, wanted, strict=True)):
            assert found is want or (i == 0 and found == want and type(found) is tuple), (name, i)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_nothing_given_is_none_as_for_numpy_arrays(cupy, calls, function):
    plainly(function, cupy.ndarray())
    ((name, arguments),) = calls
    assert name == function
    more = {
        "clip_by_value": (-1, 1, None, None),
        "clip_by_norm": (1.0, None, None, None),
        "clip_by_average_norm": (1.0, None, None, None),
        "clip_by_global_norm": (1.0, None, None, 2, None),
        "global_norm": (None, 2),
        "norm": ("euclidean", None, None, None),
        "normalize": ("euclidean", None, None, None),
    }
    assert arguments[1:] == more[function]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.usefixtures("cupy")
def test_a_subclass_is_handed_on(calls, function):
    with pytest.raises(AssertionError):
        isinstance(Part(), Device)  # not this way
    plainly(function, Part())
    assert [name for name, _ in calls] == [function]


@pytest.mark.parametrize("function", OF_LISTS)
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_is_handed_on_as_a_tuple_if_any_entry_is_one(cupy, calls, function, kind):
    d, s = cupy.ndarray(), gc.IndexedSlices(TABLE, [0, 1])
    for entries in ([d], [X, d], [d, X], [None, d, None], [s, d], [1.0, [2.0], d], [d, d], [*[X] * 100, d]):
        plain = gc.global_norm if function == "global_norm" else lambda t: gc.clip_by_global_norm(t, 1.0)
        plain(kind(entries))
        (handed, *_) = calls.pop()[1]
        assert type(handed) is tuple
        assert all(a is b for a, b in zip(handed, entries, strict=True))
    for entries in ([], [None], [X], [None, X, TABLE.T], [s]):
        plain(kind(entries))
    assert not calls


def test_another_sequence_is_read_once_and_handed_on(cupy, calls):
    readings = []

    class Tensors(list):
        def __iter__(self):
            readings.append(self)
            return super().__iter__()

    d = cupy.ndarray()
    gc.global_norm(Tensors([d, None]))
    assert calls == [("global_norm", ((d, None), None, 2))]
    assert len(readings) == 1


def test_the_error_of_the_other_part_passes_through(cupy, calls, monkeypatch):
    def wrong(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["gradclip._cuda"], "norm", wrong)
    with pytest.raises(KeyboardInterrupt):
        gc.norm(cupy.ndarray())
    assert not calls


@pytest.mark.usefixtures("cupy")
def test_numpy_arrays_stay_here(calls):
    big = X.astype(">f8")
    for t in (X, TABLE.T, TABLE[:, ::2], big, np.float32(3), 2.0, [1.0, 2.0]):
        assert gc.norm(t) == np.linalg.norm(np.ravel(t))
        assert gc.global_norm([t, None]) == gc.norm(t)
        gc.normalize(t)
        expected = np.clip(np.asarray(t), -1, 1).astype(np.asarray(t).dtype.newbyteorder("="))
        assert same_bits(gc.clip_by_value(t, -1, 1), expected)
    assert not calls


def absent(monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)


def none(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)


def partly_imported(monkeypatch):
    module = types.ModuleType("cupy")
    # To ask it for a name would import more of it.
    module.__getattr__ = lambda name: pytest.fail(name)
    monkeypatch.setitem(sys.modules, "cupy", module)


def without_a_class(monkeypatch):
    module = types.ModuleType("cupy")
    module.ndarray = Device()
    monkeypatch.setitem(sys.modules, "cupy", module)


def no_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(ndarray=Device))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("state", [absent, none, partly_imported, without_a_class, no_module])
def test_without_cupy_nothing_is_handed_on(monkeypatch, calls, state, function):
    state(monkeypatch)
    with pytest.raises(TypeError, match="Implicit conversion"):
        plainly(function, Device())
    assert gc.norm([3, 4]) == 5.0
    assert not calls


def test_cupy_is_not_imported(monkeypatch, calls, tmp_path):
    (tmp_path / "cupy.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    absent(monkeypatch)
    with pytest.raises(TypeError, match="Implicit conversion"):
        gc.norm(Device())
    assert "cupy" not in sys.modules
    assert not calls


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_only_says_that_it_is_one_is_not_handed_on(calls, function):
    with pytest.raises(TypeError):
        plainly(function, Pretends())
    assert not calls


S = gc.IndexedSlices(TABLE, np.array([0, 1]))
WRONG = {
    "clip_by_value: clip_value_min": lambda d: gc.clip_by_value(X, d, 1),
    "clip_by_value: clip_value_max": lambda d: gc.clip_by_value(np.array([1, 2]), None, d),
    "clip_by_value: name": lambda d: gc.clip_by_value(X, -1, 1, d),
    "clip_by_value: out": lambda d: gc.clip_by_value(X, -1, 1, out=d),
    "clip_by_norm: clip_norm": lambda d: gc.clip_by_norm(X, d),
    "clip_by_norm: axes": lambda d: gc.clip_by_norm(X, 1.0, d),
    "clip_by_norm: out": lambda d: gc.clip_by_norm(X, 1.0, out=d),
    "clip_by_norm 'S': out": lambda d: gc.clip_by_norm(S, 1.0, None, "S", out=d),
    "clip_by_average_norm: clip_norm": lambda d: gc.clip_by_average_norm(X, d),
    "clip_by_average_norm: out": lambda d: gc.clip_by_average_norm(X, 1.0, out=d),
    "clip_by_global_norm: clip_norm": lambda d: gc.clip_by_global_norm([X], d),
    "clip_by_global_norm: use_norm": lambda d: gc.clip_by_global_norm([X], 1.0, d),
    "clip_by_global_norm: out": lambda d: gc.clip_by_global_norm([X], 1.0, out=d),
    "clip_by_global_norm: out[1]": lambda d: gc.clip_by_global_norm([None, X], 1.0, out=[None, d]),
    "clip_by_global_norm: out[0]": lambda d: gc.clip_by_global_norm([None, X], 1.0, out=[d, X]),
    "norm: axis": lambda d: gc.norm(X, 2, d),
    "norm: keepdims": lambda d: gc.norm(X, 2, 0, d),
    "normalize: out": lambda d: gc.normalize(X, out=d),
}


@pytest.mark.parametrize("which", WRONG)
@pytest.mark.parametrize("kind", [Device, Part])
@pytest.mark.usefixtures("cupy")
def test_another_argument_for_a_numpy_array_is_an_error_that_names_it(calls, which, kind):
    error, message = error_of(lambda: WRONG[which](kind()))
    assert error is TypeError
    assert message.startswith(f"{which}: found cupy.ndarray; allowed: "), message
    assert not calls


@pytest.mark.usefixtures("cupy")
def test_an_array_in_place_of_a_list_is_tensorflows_error(calls):
    assert error_of(lambda: gc.global_norm(Device())) == (
        TypeError,
        f"`t_list` should be a sequence of tensors. Received {Device}. Pass [t_list] for one tensor.",
    )
    assert not calls


CHECKS = {
    "limit": [
        (
            lambda x, name: gc.clip_by_norm(X, x, None, name),
            lambda x: ("clip_by_norm", "clip_norm", x, False),
        ),
        (
            lambda x, name: gc.clip_by_global_norm([X], 1.0, x, name),
            lambda x: ("clip_by_global_norm", "use_norm", x, True),
        ),
    ],
    "axes": [
        (lambda x, name: gc.clip_by_norm(TABLE, 1.0, x, name), lambda x: ("clip_by_norm", "axes", x, 2)),
    ],
    "order": [
        (lambda x, name: gc.global_norm([X], name, ord=x), lambda x: ("global_norm", x)),
    ],
    "along": [
        (lambda x, name: gc.norm(TABLE, x, None, None, name), lambda x: ("norm", x, None, 2)),
        (lambda x, name: gc.norm(TABLE, x, (0, 1), None, name), lambda x: ("norm", x, (0, 1), 2)),
        (lambda x, name: gc.normalize(TABLE, 2, x, name), lambda x: ("normalize", 2, x, 2)),
    ],
    "keepdims": [
        (lambda x, name: gc.norm(X, 2, None, x, name), lambda x: ("norm", x)),
    ],
    "out_sequence": [
        (
            lambda x, name: gc.clip_by_global_norm([X], 1.0, None, name, out=x),
            lambda x: ("clip_by_global_norm", x, 1),
        ),
    ],
}
VALUES = [
    *(
        None,
        True,
        -1,
        0,
        7,
        1.5,
        -0.5,
        float("nan"),
        float("inf"),
        10**400,
        1j,
        "fro",
        "euclidean",
        "x",
        b"x",
        object(),
    ),
    *([], (), [0, 0], (1, 5), [1.5], [X.copy()], {}, range(2), np.array(2.0), np.array(-2), np.array([1.0, 2.0])),
    *(
        np.float16(2),
        np.bool_(1),
        np.datetime64("2020"),
        ml_dtypes.bfloat16(2),
        ml_dtypes.bfloat16(-2),
        np.longdouble(2),
    ),
    np.ma.array(1.0),
]


def is_for_others(check, value):
    """Whether a check does not apply to this case, because another error comes first or is the cause."""
    if check == "out_sequence":
        return isinstance(value, list) and len(value) == 1 and not isinstance(value[0], np.ndarray)
    return check == "limit" and value is None


def outcome(call):
    """The error of a call, or that there is none."""
    try:
        call()
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", [None, "layer"])
def test_checks_raise_what_the_public_functions_raise(check, name):
    found = []
    for public, arguments in CHECKS[check]:
        for value in VALUES:
            if not is_for_others(check, value):
                found.append(outcome(partial(public, value, name)))
                function, *others = arguments(value)
                assert outcome(partial(getattr(Checks(function, name), check), *others)) == found[-1], value
    assert None in found
    assert len(set(found)) > 2


def test_check_name():
    assert Checks("norm", None).check_name() is None
    assert Checks("norm", "x").check_name() is None
    assert error_of(Checks("norm", 3).check_name) == error_of(lambda: gc.norm(X, name=3))


def test_checks_return_what_was_meant():
    checks = Checks("f", None)
    assert checks.name is None
    assert checks.limit("x", np.float32(0.5), False) == 0.5
    assert checks.limit("x", 10**400, False) == np.inf
    assert str(checks.limit("x", -0.0, False)) == "0.0"
    assert np.isnan(checks.limit("x", np.nan, True))
    assert checks.axes("axes", None, 3) is None
    assert checks.axes("axes", (-1, np.int8(0)), 3) == [2, 0]
    assert [checks.order(p) for p in ("euclidean", 1, 2, 2.5, np.inf)] == [2.0, 1.0, 2.0, 2.5, np.inf]
    assert checks.keepdims(None) is False
    assert checks.keepdims(True) is True
    assert checks.out_sequence(None, 3) is None
    assert checks.out_sequence([None, 1], 2) == (None, 1)


@pytest.mark.parametrize(
    ("ord", "axis", "found"),
    [
        ("euclidean", None, ("whole", None, 2.0)),
        (3, (1, 0, 2), ("whole", None, 3.0)),
        (1, -1, ("vectors", [2], 1.0)),
        ("fro", (0, -1), ("vectors", [0, 2], 2.0)),
        ("euclidean", (1, 0), ("vectors", [1, 0], 2.0)),
        (1, (1, 0), ("matrices", [1, 0], 1.0)),
        (2, (1, 0), ("matrices", [1, 0], 2.0)),
        (np.inf, (1, 0), ("matrices", [1, 0], np.inf)),
    ],
)
def test_check_along(ord, axis, found):
    assert Checks("norm", None).along(ord, axis, 3) == found


def test_errors_have_the_form_of_all_errors():
    named, other = Checks("norm", "a"), Checks("norm", None)
    for make, kind in (("type_error", TypeError), ("value_error", ValueError)):
        error = getattr(named, make)("tensor", "this", "that")
        assert type(error) is kind
        assert str(error) == "norm 'a': tensor: found this; allowed: that"
        assert str(getattr(other, make)("t_list[3]", "x", "y")) == "norm: t_list[3]: found x; allowed: y"


@pytest.mark.parametrize("name", [None, "n"])
def test_the_error_of_a_clash_is_that_of_numpy_arrays(name):
    def clash(function, outputs, places):
        described = [(x.ctypes.data, x.itemsize, x.shape, x.strides) for x in outputs]
        return error_of(lambda: Checks(function, name).keep_apart(described, [], places))

    memory = np.zeros(4)
    outs = [X.copy(), memory[:2], memory[1:3]]
    expected = error_of(lambda: gc.clip_by_global_norm([X] * 3, 1.0, None, name, out=outs))
    assert clash("clip_by_global_norm", outs, [0, 1, 2]) == expected
    assert clash("clip_by_global_norm", outs[1:], [1, 2]) == expected
    still = np.lib.stride_tricks.as_strided(memory, (2,), (0,))
    expected = error_of(lambda: gc.clip_by_norm(X, 1.0, None, name, out=still))
    assert clash("clip_by_norm", [still], None) == expected


@st.composite
def views(draw):
    """Address, bytes of an element, shape and strides of a small array."""
    itemsize = draw(st.sampled_from([1, 2, 4]))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    strides = [draw(st.integers(-6, 12)) if n > 1 else itemsize for n in shape]
    return 1000 + draw(st.integers(0, 60)), itemsize, tuple(shape), tuple(strides)


def elements(view):
    """The bytes of each element."""
    first, itemsize, shape, strides = view
    starts = [first + sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape)]
    return [byte for at in starts for byte in range(at, at + itemsize)]


def extent(view):
    return (min(elements(view)), max(elements(view)) + 1)


def kept_apart(outputs, inputs):
    """The inputs to copy; or two outputs that share a byte, or twice one, as an error names them."""
    try:
        return Checks("f", None).keep_apart(outputs, inputs, range(len(outputs))), None
    except ValueError as error:
        places = [int(place) for place in re.findall(r"out\[(\d+)\]", str(error))]
        return [], (places[-1], places[0])


@given(st.lists(views(), max_size=4), st.lists(views(), max_size=4), st.booleans())
def test_arrays_on_a_device_are_kept_apart_exactly(outputs, others, in_place):
    inputs = ([*outputs, *others] if in_place else others) if outputs else others
    copies, clash = kept_apart(outputs, inputs)
    written = [elements(view) for view in outputs]
    alone = [len(set(used)) == len(used) for used in written]
    apart = all(alone) and len(set().union(*written)) == sum(map(len, written))
    assert (clash is None) == apart
    if clash is not None:
        a, b = clash
        assert not alone[a] if a == b else a < b and set(written[a]) & set(written[b])
        return
    assert copies == sorted(set(copies))
    for i, view in enumerate(inputs):
        is_own = i < len(outputs) and view == outputs[i]
        shares = any(set(elements(view)) & set(used) for used in written)
        # An input that lies among the elements of an output and shares none may be copied too.
        if is_own or not elements(view):
            assert i not in copies
        elif shares:
            assert i in copies
        elif i in copies:
            low, high = extent(view)
            around = [extent(v) for v in [*outputs, *inputs] if elements(v)]
            assert sum(a < high and low < b for a, b in around) > 1


def test_the_very_same_array_may_be_read_and_written_only_in_its_own_place():
    a, b = (100, 4, (3, 1), (4, 4)), (200, 4, (3, 1), (4, 4))
    same = (100, 4, (3, 1), (4, 999))
    assert kept_apart([a, b], [a, b]) == ([], None)
    assert kept_apart([a, b], [same, b]) == ([], None), "the step of an axis of one is never made"
    assert kept_apart([a, b], [b, a]) == ([0, 1], None)
    assert kept_apart([a], [a, a]) == ([1], None), "a further reader"
    assert kept_apart([a, same], [a, b]) == ([], (0, 1))
    assert kept_apart([], [a, a]) == ([], None)
    assert kept_apart([(2**48, 8, (2**31,), (8,))], [(2**48 + 8, 8, (2**31,), (8,))]) == ([0], None)
