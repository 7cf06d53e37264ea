"""Errors on the device: those of the CPU, word for word, and those that only devices have."""

import math
import re

import gradclip as gc
import numpy as np
import pytest
from calls import looped
from gpu_arrays import assert_same
from oracle import BF16, COMPLEX, INTEGERS, ORDERED, SCALED

X = np.array([[3.0, 4.0, 0.0], [6.0, 8.0, 0.0]])
CUBE = np.ones((2, 3, 4))


def error_of(call):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    return caught.value


def plain(error):
    """The text, in which all arrays are called the same: those on a device are not described further."""
    text = str(error).removesuffix("; integers='keep' copies tensors of integers")  # no option for arrays of a device
    return re.sub(r"(numpy|cupy)?\.?ndarray( of dtype \w+ and shape \([\d, ]*\))?", "ndarray", text)


def same_error(gpu, call, *arrays, told=""):
    """call(arrays) fails on the device as it does on the CPU, before anything is launched or waited for."""
    expected = error_of(lambda: call(*arrays))
    on_device = [gpu.array(a) for a in arrays]
    gpu.reset()
    got = error_of(lambda: call(*on_device))
    assert type(got) is type(expected), told
    assert plain(got) == plain(expected), told
    assert not gpu.launches, told
    assert gpu.syncs == 0, told


# ---- errors of the CPU as well


# what: a call with X, for a bad argument of each kind
BAD = {
    "clip_norm": [
        f
        for c in (-1, -1.5, -5e-324, float("nan"), float("-inf"), np.float32(-2), np.array(-3), BF16(-1), -(10**400))
        for f in (
            lambda t, c=c: gc.clip_by_norm(t, c),
            lambda t, c=c: gc.clip_by_average_norm(t, c),
            lambda t, c=c: gc.clip_by_global_norm([t], c),
        )
    ],
    "clip_norm of a wrong type": [
        f
        for c in (None, True, 1j, "1", b"1", {}, np.True_, np.array(True), np.array(1j), np.ones(2), np.zeros((1, 1)))
        for f in (
            lambda t, c=c: gc.clip_by_norm(t, c, 0),
            lambda t, c=c: gc.clip_by_average_norm(t, c, "layer3"),
            lambda t, c=c: gc.clip_by_global_norm([None, t], c),
        )
    ],
    "use_norm": [
        lambda t, n=n: gc.clip_by_global_norm([t], 1.0, n)
        for n in (-1, -0.5, float("-inf"), np.float32(-1), True, 1j, "1", np.ones(1), np.array(-1.0), {})
    ],
    "axes": [
        f
        for a in (2, -3, (0, 2), [-3], np.int64(5), 10**30, (0, 0), [1, -1], 1.0, True, (0, True), "0", (None,), {0: 1})
        for f in (
            lambda t, a=a: gc.clip_by_norm(t, 1.0, a),
            lambda t, a=a: gc.norm(t, axis=a),
            lambda t, a=a: gc.normalize(t, axis=a, name="it's"),
        )
    ],
    "axis of nothing": [lambda t: gc.norm(t, axis=()), lambda t: gc.normalize(t, axis=[])],
    "ord": [
        f
        for p in (0, -1, -2.5, float("-inf"), float("nan"), "fro", "nuc", "", None, True, 1j, BF16(-1), np.float16(0))
        for f in (
            lambda t, p=p: gc.norm(t, p),
            lambda t, p=p: gc.norm(t, p, 0),
            lambda t, p=p: gc.normalize(t, p),
            lambda t, p=p: gc.global_norm([t], ord=p),
            lambda t, p=p: gc.clip_by_global_norm([t], 1.0, ord=p),
        )
    ],
    "ord of matrices": [
        f
        for p in (3, 0.5, 0, -1, -2, float("nan"), "nuc", "f", 1e300, None)
        for f in (lambda t, p=p: gc.norm(t, p, (0, 1)), lambda t, p=p: gc.normalize(t, p, (0, 1)))
    ],
    "keepdims": [lambda t, k=k: gc.norm(t, axis=1, keepdims=k) for k in (1, 0, "yes", 1.0, [True])],
    "bounds": [
        f
        for b in (True, 1j, "1", b"1", {}, np.array(True), np.array(1j), np.array("a"), np.complex64(1))
        for f in (lambda t, b=b: gc.clip_by_value(t, b, 1), lambda t, b=b: gc.clip_by_value(t, None, b, "layer3"))
    ],
    "no bounds": [lambda t: gc.clip_by_value(t, None, None)],
    "name": [
        f
        for n in (3, b"layer3", ["layer3"], True)
        for f in (
            lambda t, n=n: gc.clip_by_value(t, 0, 1, n),
            lambda t, n=n: gc.clip_by_norm(t, 1.0, None, n),
            lambda t, n=n: gc.clip_by_average_norm(t, 1.0, n),
            lambda t, n=n: gc.clip_by_global_norm([t], 1.0, None, n),
            lambda t, n=n: gc.global_norm([t], n),
            lambda t, n=n: gc.norm(t, 2, None, None, n),
            lambda t, n=n: gc.normalize(t, 2, None, n),
        )
    ],
    "out": [
        lambda t: gc.clip_by_norm(t, 1.0, out=4),
        lambda t: gc.clip_by_value(t, 0, 1, out="out"),
        lambda t: gc.normalize(t, out=[[1.0]]),
        lambda t: gc.clip_by_global_norm([t], 1.0, out=t),
        lambda t: gc.clip_by_global_norm([t], 1.0, out=4),
        lambda t: gc.clip_by_global_norm([t], 1.0, out=[]),
        lambda t: gc.clip_by_global_norm([t, None], 1.0, out=[t, t]),
        lambda t: gc.clip_by_global_norm([t, t], 1.0, out=[t, t], name="grads"),
    ],
    "sequences": [
        gc.global_norm,
        lambda t: gc.clip_by_global_norm(t, 1.0),
        lambda t: gc.global_norm(t, "layer3"),
        lambda t: gc.clip_by_global_norm({0: t}, 1.0),
    ],
    "missing arguments": [gc.clip_by_norm, lambda t: gc.clip_by_value(t, 0), lambda t: gc.norm(t, axes=0)],
    "the order of checks": [
        lambda t: gc.clip_by_norm(t, "c", 1.5, out=4),
        lambda t: gc.clip_by_norm(t, 1.0, 1.5, out=4),
        lambda t: gc.clip_by_norm(t, -1.0, (0, 0), out=4),
        lambda t: gc.clip_by_norm(t, 1.0, (0, 0), 3, out=4),
        lambda t: gc.clip_by_value(t, "a", "b", 3),
        lambda t: gc.clip_by_value(t, 0, "b", out=4),
        lambda t: gc.clip_by_global_norm([t], "c", "u", ord=None),
        lambda t: gc.clip_by_global_norm([t], 1.0, "u", ord=None),
        lambda t: gc.clip_by_global_norm([t], -1.0, -1.0, ord=-1),
        lambda t: gc.clip_by_global_norm([t], 1.0, -1.0, ord=-1),
        lambda t: gc.clip_by_global_norm([t], 1.0, ord=-1, out=[]),
        lambda t: gc.clip_by_global_norm([t], 1.0, ord=None, out=4),
        lambda t: gc.norm(t, None, 1.5, 3),
        lambda t: gc.norm(t, 2, 1.5, 3),
        lambda t: gc.norm(t, -1, (0, 0)),
        lambda t: gc.normalize(t, None, 1.5, out=4),
        lambda t: gc.normalize(t, 2, 1.5, out=4),
        lambda t: gc.normalize(t, 2, (0, 0), out=4),
    ],
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_argument_gives_the_error_of_the_cpu(gpu, kind):
    for k, call in enumerate(BAD[kind]):
        same_error(gpu, call, X, told=k)


@pytest.mark.parametrize("dtype", [*INTEGERS, np.bool_, *COMPLEX])
def test_a_dtype_that_a_function_does_not_take(gpu, dtype):
    x = np.ones((2, 3), dtype)
    if dtype not in ORDERED:
        same_error(gpu, lambda t: gc.clip_by_value(t, 0, 1), x)
        same_error(gpu, lambda t: gc.clip_by_value(t, 0, 1, "layer3"), x)
    if dtype not in SCALED:
        for call in (
            lambda t: gc.clip_by_norm(t, 1.0),
            lambda t: gc.clip_by_average_norm(t, 1.0),
            lambda t: gc.clip_by_global_norm([None, t], 1.0, name="grads"),
            gc.normalize,
        ):
            same_error(gpu, call, x)


def test_a_0_d_tensor_has_no_axis(gpu):
    for call in (
        lambda t: gc.clip_by_norm(t, 1.0, 0),
        lambda t: gc.norm(t, axis=0),
        lambda t: gc.normalize(t, axis=-1),
    ):
        same_error(gpu, call, np.array(3.0))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_float_bound_for_integers(gpu, dtype):
    x = np.arange(3, dtype=dtype)
    for bound in (2.0, np.float32(2), np.array(2.0), BF16(2)):
        same_error(gpu, lambda t, b=bound: gc.clip_by_value(t, b, None), x)
        same_error(gpu, lambda t, b=bound: gc.clip_by_value(t, None, b), x)
    for bound in (np.ones(3), np.ones(3, BF16), np.ones((1,), np.float16)):
        same_error(gpu, lambda t, b: gc.clip_by_value(t, b, None), x, bound)
        same_error(gpu, lambda t, b: gc.clip_by_value(t, None, b), x, bound)


@pytest.mark.parametrize("dtype", [np.int32, np.float16, BF16, np.float32])
def test_a_bound_of_another_kind(gpu, dtype):
    for bound in (np.ones(3, bool), np.ones(3, complex), np.ones((), np.complex64), np.ones((), bool)):
        x = np.ones(3, dtype)
        for call in (lambda t, b: gc.clip_by_value(t, b, None), lambda t, b: gc.clip_by_value(t, None, b)):
            if bound.ndim:
                same_error(gpu, call, x, bound)
                continue
            # The CPU's text has the value; on the device, that would require a wait.
            error = error_of(lambda call=call, b=bound, x=x: call(gpu.array(x), gpu.array(b)))
            assert type(error) is TypeError
            assert str(error).startswith("clip_by_value: clip_value_m")
            assert str(bound.dtype) in str(error)


@looped(
    "shapes",
    [((2, 3), (2,)), ((2, 3), (1, 2, 3)), ((2, 1), (2, 3)), ((), (1,)), ((1,), (3,)), ((0,), (3,)), ((3,), (0,))],
)
def test_a_bound_that_does_not_broadcast(gpu, shapes):
    t, bound = (np.zeros(shape) for shape in shapes)
    same_error(gpu, lambda t, b: gc.clip_by_value(t, b, None), t, bound)
    same_error(gpu, lambda t, b: gc.clip_by_value(t, 0, b), t, bound)


def test_a_limit_on_the_device_that_is_not_0_d(gpu):
    for shape in ((1,), (2,), (1, 1), (0,)):
        for call in (
            lambda t, c: gc.clip_by_norm(t, c),
            lambda t, c: gc.clip_by_norm(t, c, 0),
            lambda t, c: gc.clip_by_average_norm(t, c),
            lambda t, c: gc.clip_by_global_norm([t], c),
            lambda t, c: gc.clip_by_global_norm([t], 1.0, c),
        ):
            same_error(gpu, call, X, np.ones(shape), told=shape)


@pytest.mark.parametrize("dtype", [np.bool_, *COMPLEX])
def test_a_limit_on_the_device_that_is_no_real_number(gpu, dtype):
    t, limit = gpu.array(X), gpu.array(np.ones((), dtype))
    for name, call in (
        ("clip_by_norm: clip_norm", lambda: gc.clip_by_norm(t, limit)),
        ("clip_by_average_norm: clip_norm", lambda: gc.clip_by_average_norm(t, limit)),
        ("clip_by_global_norm: clip_norm", lambda: gc.clip_by_global_norm([t], limit)),
        ("clip_by_global_norm: use_norm", lambda: gc.clip_by_global_norm([t], 1.0, limit)),
    ):
        gpu.reset()
        error = error_of(call)
        assert type(error) is TypeError
        assert str(error).startswith(f"{name}: ")
        assert np.dtype(dtype).name in str(error)
        assert not gpu.launches
        assert gpu.syncs == 0


def test_the_first_wrong_output_of_a_list_is_named(gpu):
    """One after the other, whatever is wrong with them."""
    small, large = np.ones(3), np.ones((2, 2))
    for first, second in ((1, 0), (None, 0), (0, 0), ({}, None), (1, {})):
        same_error(
            gpu,
            lambda *t, outs=(first, second): gc.clip_by_global_norm(
                t, 1.0, out=[t[k] if isinstance(k, int) else k for k in outs]
            ),
            small,
            large,
            told=(first, second),
        )
    same_error(gpu, lambda a, b: gc.clip_by_global_norm([a, None], 1.0, out=[b, a]), small, large)
    same_error(gpu, lambda a, b: gc.clip_by_global_norm([None, a], 1.0, out=[a, b]), small, large)


# ---- errors on devices only


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "i4", "u8"])
def test_a_dtype_of_the_other_byte_order_is_a_type_error(gpu, dtype):
    """CuPy makes such arrays, and treats their bytes as native."""
    swapped = np.dtype(dtype).newbyteorder("S")
    t, native = gpu.array(np.ones((2, 3), swapped)), gpu.array(np.ones((2, 3), dtype))
    gpu.reset()
    calls = [lambda: gc.norm(t), lambda: gc.global_norm([t]), lambda: gc.global_norm([native, t])]
    if np.dtype(dtype) in ORDERED:
        calls += [lambda: gc.clip_by_value(t, 0, 1), lambda: gc.clip_by_value(native, t, None)]
        calls += [lambda: gc.clip_by_norm(gpu.array(X), t[0, 0])]
    if np.dtype(dtype) in SCALED:
        calls += [lambda: gc.clip_by_norm(native, 1.0, out=t), lambda: gc.normalize(t)]
        calls += [lambda: gc.clip_by_global_norm([native], 1.0, out=[t])]
    for call in calls:
        error = error_of(call)
        assert type(error) is TypeError
        assert f"dtype {swapped}" in str(error)
    assert not gpu.launches


def test_the_value_of_a_wrong_0_d_array_is_not_told(gpu):
    """Reading it would require a wait."""
    for dtype in (np.bool_, np.complex64, np.float32):
        number, t = gpu.array(np.full((), 7, dtype)), gpu.array(np.ones(3, np.int32))
        text = f"found a 0-d cupy.ndarray of dtype {np.dtype(dtype)}; allowed: "
        assert text + "None, an int or an array of integers" in str(
            error_of(lambda t=t, n=number: gc.clip_by_value(t, n, 1))
        )
        if dtype is not np.float32:
            t = gpu.array(X)
            assert text + "None, a real number or an array" in str(
                error_of(lambda t=t, n=number: gc.clip_by_value(t, 1, n))
            )
            assert text + "a real number >= 0" in str(error_of(lambda t=t, n=number: gc.clip_by_norm(t, n)))


def test_functions_that_take_numpy_arrays_alone_say_how_to_make_one(gpu):
    t = gpu.array(X)
    for name, call in (
        ("norms: t_list[0]", lambda: gc.norms([t])),
        ("norms: t_list[1]", lambda: gc.norms([X, t])),
        ("clip_by_norms: t_list[1]", lambda: gc.clip_by_norms([X, t], 1.0)),
        ("clip_by_rms: t", lambda: gc.clip_by_rms(t, 1.0)),
        ("clip_by_weight_norm: t_list[1]", lambda: gc.clip_by_weight_norm([X, t], [X, X])),
        ("clip_by_weight_norm: weights[1]", lambda: gc.clip_by_weight_norm([X, X], [X, t])),
        ("clip_examples_by_global_norm: t_list[1]", lambda: gc.clip_examples_by_global_norm([X, t], 1.0)),
        ("clip_difference_by_global_norm: t_list[0]", lambda: gc.clip_difference_by_global_norm([t], [X], 1.0)),
        ("clip_difference_by_global_norm: base_list[0]", lambda: gc.clip_difference_by_global_norm([X], [t], 1.0)),
    ):
        gpu.reset()
        error = error_of(call)
        assert type(error) is TypeError, name
        assert str(error).startswith(f"{name}: found a cupy.ndarray; allowed: NumPy arrays; .get() makes one"), error
        assert gpu.syncs == 0


@pytest.mark.parametrize("at", [(0, 1), (1, 0), (3, 2)])
def test_a_list_of_arrays_of_both_libraries_names_both(gpu, at):
    host, device = at
    t_list = [None] * 5
    t_list[host], t_list[device] = X, gpu.array(X)
    for call, start in (
        (gc.global_norm, "global_norm: "),
        (lambda ts: gc.global_norm(tuple(ts)), "global_norm: "),
        (lambda ts: gc.clip_by_global_norm(ts, 1.0), "clip_by_global_norm: "),
        (lambda ts: gc.clip_by_global_norm(ts, 1.0, name="grads"), "clip_by_global_norm 'grads': "),
        (lambda ts: gc.clip_by_global_norm(ts, 1.0, out=ts), "clip_by_global_norm: "),
    ):
        error = error_of(lambda call=call: call(t_list))
        assert type(error) is TypeError
        assert str(error).startswith(start)
        assert f"t_list[{host}]" in str(error)
        assert f"t_list[{device}]" in str(error)
    assert not gpu.launches


def test_other_things_in_a_list_beside_arrays_of_the_device(gpu):
    """Objects that are no arrays count as arrays of the other library."""
    for thing in ([1.0, 2.0], 3.0, np.float32(3), gc.IndexedSlices(X, [0, 1])):
        error = error_of(lambda thing=thing: gc.clip_by_global_norm([gpu.array(X), thing], 1.0))
        assert type(error) is TypeError
        assert str(error).startswith("clip_by_global_norm: t_list")
    for thing in ("text", object(), np.array(["a"])):
        for t_list in ([gpu.array(X), thing], [thing, gpu.array(X)]):
            error = error_of(lambda t_list=t_list: gc.global_norm(t_list))
            assert type(error) is TypeError
            assert str(error).startswith("global_norm: t_list")


def test_arrays_on_two_devices_are_a_value_error_that_names_both(gpu):
    t_list = [None, gpu.array(X), gpu.array(X), gpu.array(X, device_id=1)]
    for call in (gc.global_norm, lambda ts: gc.clip_by_global_norm(ts, 1.0)):
        error = error_of(lambda call=call: call(t_list))
        assert type(error) is ValueError
        assert "t_list[1]" in str(error)
        assert "t_list[3]" in str(error)
    assert not gpu.launches


def test_other_arguments_on_another_device_are_value_errors(gpu):
    t, limit, bound = gpu.array(X), gpu.array(np.array(1.0), device_id=1), gpu.array(X, device_id=1)
    for name, call in (
        ("clip_by_norm: clip_norm", lambda: gc.clip_by_norm(t, limit)),
        ("clip_by_average_norm: clip_norm", lambda: gc.clip_by_average_norm(t, limit)),
        ("clip_by_global_norm: clip_norm", lambda: gc.clip_by_global_norm([t], limit)),
        ("clip_by_global_norm: use_norm", lambda: gc.clip_by_global_norm([t], 1.0, limit)),
        ("clip_by_value: clip_value_min", lambda: gc.clip_by_value(t, bound, None)),
        ("clip_by_value: clip_value_max", lambda: gc.clip_by_value(t, 0, limit)),
    ):
        error = error_of(call)
        assert type(error) is ValueError, name
        assert str(error).startswith(f"{name}: "), str(error)
    assert not gpu.launches


def test_bounds_of_numpy_for_a_tensor_on_the_device_are_type_errors_but_for_single_numbers(gpu):
    class Converts:
        def __init__(self, array):
            self.array = array

        def __array__(self, dtype=None, copy=None):
            return self.array

    t = gpu.array(X)
    arrays = (np.ones((2, 3)), np.ones(3), np.ones(1), np.ones((1, 1), np.float32), np.ma.ones(2))
    for bound in (*arrays, *map(Converts, arrays), [1.0, 2.0, 3.0], [[1.0]], (), [[1], [2, 3]]):
        for name, call in (
            ("clip_value_min", lambda b=bound: gc.clip_by_value(t, b, None)),
            ("clip_value_max", lambda b=bound: gc.clip_by_value(t, 0, b)),
        ):
            error = error_of(call)
            assert type(error) is TypeError
            assert str(error).startswith(f"clip_by_value: {name}: ")
            assert "cupy.ndarray of real numbers" in str(error)
    assert not gpu.launches
    for bound in (np.array(1.0), np.float32(1), np.array(1, np.int8), BF16(1), Converts(np.array(1.0))):
        assert_same(gpu, gc.clip_by_value(t, bound, 5), gc.clip_by_value(X, bound, 5))


def test_arrays_of_the_device_beside_a_tensor_of_numpy_are_type_errors(gpu):
    one, bound = gpu.array(np.array(1.0)), gpu.array(X)
    for name, call in (
        ("clip_by_norm: clip_norm", lambda: gc.clip_by_norm(X, one)),
        ("clip_by_average_norm: clip_norm", lambda: gc.clip_by_average_norm(X, one)),
        ("clip_by_global_norm: clip_norm", lambda: gc.clip_by_global_norm([X], one)),
        ("clip_by_global_norm: use_norm", lambda: gc.clip_by_global_norm([X], 1.0, one)),
        ("clip_by_value: clip_value_min", lambda: gc.clip_by_value(X, bound, None)),
        ("clip_by_value: clip_value_max", lambda: gc.clip_by_value(X, 0, one)),
    ):
        gpu.reset()
        error = error_of(call)
        assert type(error) is TypeError, name
        assert str(error).startswith(f"{name}: "), str(error)
        assert gpu.syncs == 0


def test_an_ord_or_axis_on_the_device_is_refused_without_a_wait(gpu):
    t = gpu.array(CUBE)
    for name, call in (
        ("norm: ord", lambda: gc.norm(t, gpu.array(np.array(2.0)))),
        ("normalize: ord", lambda: gc.normalize(t, gpu.array(np.array(2.0)))),
        ("global_norm: ord", lambda: gc.global_norm([t], ord=gpu.array(np.array(2.0)))),
        ("norm: axis", lambda: gc.norm(t, axis=gpu.array(np.array(1)))),
        ("clip_by_norm: axes", lambda: gc.clip_by_norm(t, 1.0, gpu.array(np.array([0, 1])))),
    ):
        gpu.reset()
        error = error_of(call)
        assert str(error).startswith(f"{name}: "), str(error)
        assert gpu.syncs == 0
        assert not gpu.launches


def test_an_error_leaves_nothing_behind(gpu):
    """Afterwards, the call with valid arguments works as before."""
    t = gpu.array(X)
    for _ in range(3):
        with pytest.raises(ValueError, match="clip_norm"):
            gc.clip_by_norm(t, -1.0)
        assert_same(gpu, gc.clip_by_norm(t, 1.0), gc.clip_by_norm(X, 1.0))


class NoAddress:
    """Of CuPy's DistributedArray, whose parts lie on several devices."""

    @property
    def data(self):
        raise NotImplementedError("DistributedArray currently does not support data.")


@pytest.mark.parametrize("is_distributed", [True, False])
def test_an_array_without_an_address_is_a_type_error(gpu, is_distributed):
    cuda, t = gpu.cupy.cuda, gpu.array(X)
    kind = type("DistributedArray", (NoAddress, gpu.ndarray), {}) if is_distributed else gpu.ndarray

    def nowhere(shape):
        pointer = cuda.MemoryPointer(cuda.UnownedMemory(0, 8 * math.prod(shape), None, 0), 0)
        return kind(shape, np.dtype(np.float64), pointer)

    d, number = nowhere(X.shape), nowhere(())
    for start, call in (
        ("norm: tensor", lambda: gc.norm(d)),
        ("normalize: tensor", lambda: gc.normalize(d, axis=0)),
        ("normalize: out", lambda: gc.normalize(t, out=d)),
        ("clip_by_norm: t", lambda: gc.clip_by_norm(d, 1.0)),
        ("clip_by_norm: clip_norm", lambda: gc.clip_by_norm(t, number)),
        ("clip_by_average_norm: out", lambda: gc.clip_by_average_norm(t, 1.0, out=d)),
        ("clip_by_value: t", lambda: gc.clip_by_value(d, 0, 1)),
        ("clip_by_value: clip_value_min", lambda: gc.clip_by_value(t, d, 1)),
        ("clip_by_value: clip_value_max", lambda: gc.clip_by_value(t, 0, number)),
        ("global_norm: t_list[1]", lambda: gc.global_norm([None, d])),
        ("global_norm: t_list[2]", lambda: gc.global_norm([t, None, d])),
        ("clip_by_global_norm: t_list[0]", lambda: gc.clip_by_global_norm([d], 1.0, out=[d])),
        ("clip_by_global_norm: use_norm", lambda: gc.clip_by_global_norm([t], 1.0, number)),
        ("clip_by_global_norm: out[0]", lambda: gc.clip_by_global_norm([t], 1.0, out=[d])),
        ("NormState.of: t_list[0]", lambda: gc.NormState.of([d])),
    ):
        error = error_of(call)
        assert type(error) is TypeError, start
        assert str(error).startswith(f"{start}: found an array of <class "), str(error)
        assert "which has no address; allowed: a cupy.ndarray in the memory of one device" in str(error)
        assert ("DistributedArray" in str(error)) is is_distributed
    assert not gpu.launches
    if not is_distributed:
        assert_same(gpu, gc.global_norm([nowhere((0, 3)), t]), gc.global_norm([X]))
