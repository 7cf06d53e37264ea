"""The section "Arrays": input of any layout, a plain native result in K order, an unchanged input."""

import subprocess
import sys

import gradclip as gc
import layouts
import numpy as np
import oracle
import pytest
from calls import POWERS, calls_for, cast, looped
from oracle import BF16, INTEGERS, ORDERED, SCALED, same_bits

ROW = np.array([-1.5, 0.3, -0.0, 2.0, 0.7])
ARRAYS = {
    "0-d": np.array(-1.5),
    "one": np.array([0.9]),
    "vector": np.sin(np.arange(37.0)) * 2,
    "table": np.cos(np.arange(55.0)).reshape(5, 11),
    "cube": np.sin(np.arange(210.0)).reshape(5, 6, 7),
    "equal rows": np.tile(ROW, (4, 3, 1)),
    "no rows": np.zeros((0, 3)),
    "no columns": np.zeros((2, 0, 3)),
}
arrays = looped("shape", ARRAYS)
dtypes = pytest.mark.parametrize("dtype", SCALED)
whole_numbers = pytest.mark.parametrize("dtype", [*INTEGERS, np.bool_])


def plain(view):
    return np.asarray(view).view(np.ndarray)


def agree(actual, expected, name=None):
    """Equal except for the last bits, which another order of the sum may change."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    rtol = 4 * oracle.eps(actual.dtype)
    if name in POWERS:
        rtol = max(rtol, 4e-14)  # twice the bound of 1e-14 / p, for p = 0.5
    parts = oracle.exact_parts(actual), oracle.exact_parts(expected)
    return actual.dtype == expected.dtype and np.allclose(*parts, rtol=rtol, atol=0)


@pytest.mark.sampled
@arrays
@dtypes
@pytest.mark.parametrize("layout", layouts.ALL)
def test_equal_values_give_equal_results_in_every_layout(layout, dtype, shape):
    x = cast(ARRAYS[shape], dtype)
    if not layouts.fits(layout, x):
        x = np.broadcast_to(dtype(1.5), (3, 5))  # what the layout can hold instead
    view = layouts.ALL[layout](x)
    assert same_bits(plain(view), x)
    for name, call in calls_for(x).items():
        for result, expected in zip(call(view), call(np.array(x, order="C")), strict=True):
            assert agree(result, expected, name), name
            assert np.shape(result) == np.shape(expected), name


@pytest.mark.parametrize("layout", layouts.SAME_BITS)
@arrays
@dtypes
def test_alignment_and_byte_order_do_not_change_a_bit(layout, shape, dtype):
    check_same_bits(layout, cast(ARRAYS[shape], dtype))


@pytest.mark.parametrize("layout", layouts.SAME_ORDER)
@arrays
@dtypes
def test_gaps_between_the_elements_do_not_change_a_bit(layout, shape, dtype):
    check_same_bits(layout, cast(ARRAYS[shape], dtype))


@pytest.mark.sampled
@pytest.mark.parametrize("layout", layouts.SAME_BITS + layouts.SAME_ORDER)
@dtypes
def test_a_long_array_keeps_its_bits_too(layout, dtype):
    check_same_bits(layout, cast(np.random.default_rng(0).standard_normal((300, 1001)), dtype))


def check_same_bits(layout, x):
    if not layouts.fits(layout, x):
        x = np.broadcast_to(x.dtype.type(1.5), (3, 5))
    view, copy = layouts.ALL[layout](x), np.array(x, order="C")
    for name, call in calls_for(x).items():
        for result, expected in zip(call(view), call(copy), strict=True):
            assert same_bits(result, expected), name


@pytest.mark.parametrize("dtype", INTEGERS)
@looped("layout", layouts.ALL)
def test_integers_are_clipped_in_every_layout(layout, dtype):
    for x in (
        np.arange(60, dtype=dtype).reshape(3, 4, 5),
        np.array(77, dtype=dtype),
        np.full((3, 2), 9, dtype=dtype),
    ):
        if layouts.fits(layout, x):
            view = layouts.ALL[layout](x)
            assert same_bits(gc.clip_by_value(view, 7, 31), oracle.expected_clip_by_value(x, 7, 31))


def integers(dtype, n):
    """The ends of the range, small numbers, and anything between."""
    if dtype is np.bool_:
        return np.arange(n) % 3 == 0
    info = np.iinfo(dtype)
    x = np.random.default_rng(n).integers(info.min, info.max, n, dtype=dtype, endpoint=True)
    x[::5], x[1::5], x[2::5] = info.min, info.max, 3
    return x


@whole_numbers
@looped("layout", layouts.ALL)
def test_norms_of_integers_in_every_layout(layout, dtype):
    for x in (integers(dtype, 60).reshape(3, 4, 5), integers(dtype, 1).reshape(()), np.ones((3, 2), dtype)):
        if not layouts.fits(layout, x):
            continue
        view = layouts.ALL[layout](x)
        for name, call in calls_for(x).items():
            for result, expected in zip(call(view), call(np.array(x, order="C")), strict=True):
                assert agree(result, expected, name), name
        assert same_bits(plain(view), x)
        oracle.assert_norm(gc.norm(view), oracle.exact_norm(x))


@pytest.mark.parametrize("dtype", ORDERED)
@looped("layout", layouts.ALL)
def test_bounds_come_in_every_layout(layout, dtype):
    x = (np.sin(np.arange(24.0)).reshape(4, 6) * 90 + 95).astype(dtype)
    low = np.tile(np.linspace(20, 90, 6), (4, 1)).astype(dtype)
    high = low + np.asarray(50, dtype)
    expected = oracle.expected_clip_by_value(x, low, high)
    bound = layouts.ALL[layout]
    assert same_bits(gc.clip_by_value(x, bound(low), bound(high)), expected)
    if layout != "stride_0":
        assert not same_bits(x, expected)


@arrays
@dtypes
@pytest.mark.parametrize("layout", layouts.ALL)
def test_the_input_is_never_modified(layout, dtype, shape):
    x = cast(ARRAYS[shape], dtype)
    if not layouts.fits(layout, x):
        x = np.broadcast_to(dtype(1.5), (3, 5))
    view = layouts.ALL[layout](x)
    for name, call in calls_for(x).items():
        call(view)
        assert same_bits(plain(view), x), name


BY_VALUE = [
    lambda x: gc.clip_by_value(x, -0.5, 0.5),
    lambda x: gc.clip_by_value(x, None, 1e9),
]
SHAPED = [
    lambda x: gc.clip_by_norm(x, 0.5),
    lambda x: gc.clip_by_norm(x, 1e9),
    lambda x: gc.clip_by_norm(x, 0.5, axes=()),
    lambda x: gc.clip_by_average_norm(x, 1e-6),
    lambda x: gc.clip_by_average_norm(x, 1e9),
    lambda x: gc.clip_by_global_norm([x], 0.5)[0][0],
    lambda x: gc.clip_by_global_norm([x], 1e9)[0][0],
    lambda x: gc.normalize(x)[0],
]


@arrays
@dtypes
@pytest.mark.parametrize("layout", layouts.ALL)
def test_the_result_is_a_plain_native_array_in_the_memory_order_of_a_ufunc(layout, dtype, shape):
    x = cast(ARRAYS[shape], dtype)
    if not layouts.fits(layout, x):
        x = np.broadcast_to(dtype(1.5), (3, 5))
    view = layouts.ALL[layout](x)
    like = np.asarray(np.negative(plain(view)))
    along = [
        lambda x: gc.clip_by_norm(x, 0.5, axes=-1),
        lambda x: gc.clip_by_norm(x, 0.5, axes=0),
        lambda x: gc.normalize(x, axis=0)[0],
    ]
    for call in SHAPED + (along if x.ndim else []) + (BY_VALUE if dtype in ORDERED else []):
        result = call(view)
        assert type(result) is np.ndarray
        assert result.dtype == dtype
        assert result.dtype.isnative
        assert result.shape == x.shape
        assert result.flags.writeable
        assert result.flags.aligned
        assert not np.shares_memory(result, view)
        if x.size:
            assert layouts.steps(result) == layouts.steps(like)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize("signs", [(1, 1, 1), (-1, 1, 1), (1, -1, 1), (1, 1, -1), (-1, -1, -1)])
def test_every_axis_order_and_direction(order, signs):
    x = np.sin(np.arange(60.0)).reshape(3, 4, 5)
    stored = np.array(x.transpose(order)[tuple(slice(None, None, s) for s in signs)], order="C")
    view = stored[tuple(slice(None, None, s) for s in signs)].transpose(np.argsort(order))
    assert same_bits(view, x)
    for axes in (None, 0, 1, 2, (0, 2), (1, 2), (0, 1), (0, 1, 2), ()):
        result = gc.clip_by_norm(view, 0.3, axes=axes)
        assert agree(result, gc.clip_by_norm(x, 0.3, axes=axes))
        assert result.strides == np.negative(view).strides
        if axes != ():
            p = 1 if isinstance(axes, tuple) else 3
            assert agree(gc.norm(view, p, axis=axes), gc.norm(x, p, axis=axes))


@dtypes
def test_a_dimension_broadcast_in_the_middle(dtype):
    view = np.broadcast_to(cast(np.linspace(-1, 2, 12), dtype).reshape(3, 1, 4), (3, 5, 4))
    copy = view.copy()
    for name, call in calls_for(view).items():
        for result, expected in zip(call(view), call(copy), strict=True):
            assert agree(result, expected, name), name
    assert gc.clip_by_norm(view, 1.0).strides == np.negative(view).strides


def test_a_scalar_broadcast_to_many_elements_counts_each_of_them():
    view = np.broadcast_to(np.float32(0.5), (1000, 16))
    assert gc.norm(view) == pytest.approx(0.5 * 16000**0.5, rel=1e-14)
    assert gc.clip_by_norm(view, 1.0).shape == (1000, 16)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
@dtypes
def test_empty_arrays_come_back_unchanged_with_norm_zero(shape, dtype):
    x = np.zeros(shape, dtype=dtype)
    for limit in (0, 1.0, np.inf):
        results = [
            gc.clip_by_norm(x, limit),
            gc.clip_by_norm(x, limit, axes=0),
            gc.clip_by_average_norm(x, limit),
        ]
        clipped, norm = gc.clip_by_global_norm([x, x], limit)
        if dtype in ORDERED:
            results.append(gc.clip_by_value(x, -limit, limit))
        for result in (*results, *clipped, gc.normalize(x)[0], gc.normalize(x, axis=-1)[0]):
            assert same_bits(result, x)
        assert norm == 0.0
    for p in (0.5, 1, 2, 3.7, np.inf):
        assert gc.norm(x, p) == 0.0
        assert type(gc.norm(x, p)) is float
        assert gc.global_norm([x], ord=p) == 0.0
        for axis in range(x.ndim):
            remaining = shape[:axis] + shape[axis + 1 :]
            norms = gc.norm(x, p, axis=axis)
            assert np.shape(norms) == remaining
            assert np.all(np.asarray(norms) == 0)


@dtypes
def test_zero_dimensions_in_zero_dimensions_out(dtype):
    x = np.array(-3.0, dtype=dtype)
    results = [
        gc.clip_by_norm(x, 1.0),
        gc.clip_by_norm(x, 1.0, axes=()),
        gc.clip_by_average_norm(x, 1.0),
        gc.clip_by_global_norm([x], 1.0)[0][0],
        gc.normalize(x)[0],
    ]
    if dtype in ORDERED:
        results.append(gc.clip_by_value(x, -1, 1))
    for result in results:
        assert type(result) is np.ndarray
        assert result.shape == ()
        assert result.dtype == dtype
        assert result == -1.0
    assert gc.norm(x) == 3.0
    assert type(gc.norm(x)) is float


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (-3.0, np.float64),
        (np.float32(-3), np.float32),
        (np.float64(-3), np.float64),
        ([-3.0, 0.0], np.float64),
        ([[-3.0], [0.0]], np.float64),
        ([np.float32(-3), np.float32(0)], np.float32),
        ((-3.0, 0.0), np.float64),
        (np.float16(-3), np.float16),
        (BF16(-3), BF16),
        ([BF16(-3), BF16(0)], BF16),
    ],
)
def test_scalars_and_nested_lists_are_tensors(given, dtype):
    x = np.asarray(given)
    assert x.dtype == dtype
    assert same_bits(gc.clip_by_norm(given, 1.0), gc.clip_by_norm(x, 1.0))
    assert same_bits(gc.clip_by_value(given, -1.0, 1.0), gc.clip_by_value(x, -1.0, 1.0))
    assert gc.norm(given) == 3.0
    assert gc.global_norm([given, x]) == pytest.approx(18**0.5)


def test_a_list_of_integers_is_an_integer_tensor_as_in_numpy():
    result = gc.clip_by_value([1, 5, 9], 2, 7)
    assert same_bits(result, np.array([2, 5, 7]))
    assert same_bits(gc.clip_by_value(9, 2, 7), np.array(7))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (-3, 3),
        ([3, -4], 5),
        (True, 1),
        ([[True], [False]], 1),
        (3 + 4j, 5),
        ([3j, 4], 5),
        (np.uint8(3), 3),
        (np.True_, 1),
    ],
)
def test_numbers_of_every_kind_have_a_norm(given, expected):
    assert gc.norm(given) == gc.global_norm([given]) == expected
    assert type(gc.norm(given)) is float


@pytest.mark.parametrize("dtype", [*"efdbhilqBHILQ", "?", np.longdouble])
def test_a_scalar_in_a_list_is_a_0d_array(dtype):
    """The gradient of a bias is often a sum, which NumPy returns as a scalar."""
    scalar, array = np.dtype(dtype).type(3), np.ones((2, 3))
    if dtype is np.longdouble:
        with pytest.raises(TypeError, match=r"t_list\[1\]: found dtype longdouble|t_list\[1\]: found dtype float128"):
            gc.global_norm([array, scalar])
        return
    zero_d = np.asarray(scalar)
    assert gc.global_norm([array, scalar]) == gc.global_norm([array, zero_d])
    if zero_d.dtype.kind == "f":
        (_, found), norm = gc.clip_by_global_norm([array, scalar], 1.0)
        (_, expected), expected_norm = gc.clip_by_global_norm([array, zero_d], 1.0)
        assert same_bits(found, expected)
        assert norm == expected_norm


@pytest.mark.parametrize("given", [3 + 4j, [3j, 4.0], np.complex64(5j)])
def test_complex_numbers_and_lists_of_them_are_tensors(given):
    x = np.asarray(given)
    result = gc.clip_by_norm(given, 1.0)
    assert same_bits(result, gc.clip_by_norm(x, 1.0))
    np.testing.assert_allclose(result, x / 5, rtol=1e-6)


@pytest.mark.parametrize("byte", [1, 2, 0x80, 0xFF])
def test_any_byte_but_0_is_true(byte):
    """As in NumPy, where other bytes come from a view or a file."""
    x = np.array([byte, 0, byte, byte, byte] * 13, np.uint8).view(np.bool_)
    assert gc.norm(x, 1) == 52
    assert gc.norm(x) == pytest.approx(52**0.5)
    assert gc.norm(x, np.inf) == 1
    assert gc.global_norm([x, x], ord=1) == 104
    assert gc.norm(x.reshape(13, 5), 1, axis=1).tolist() == [4] * 13


class Wrapped:
    """An array-like of another library."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array if dtype is None else self.array.astype(dtype)


def test_objects_with_an_array_method_are_tensors():
    x = np.array([3.0, 4.0], dtype=np.float32)
    assert same_bits(gc.clip_by_norm(Wrapped(x), 1.0), gc.clip_by_norm(x, 1.0))
    assert gc.global_norm([Wrapped(x), None]) == 5.0
    assert same_bits(gc.clip_by_value(Wrapped(x), 0, 3.5), gc.clip_by_value(x, 0, 3.5))
    gc.clip_by_norm(Wrapped(x), 1.0)
    assert x.tolist() == [3.0, 4.0]


@pytest.mark.sampled
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read in Linux's units")
@pytest.mark.parametrize("dtype", ["float16", "complex128"])
@pytest.mark.parametrize("view", ["[:, ::2]", "[::-1, 1::2]", "[:, ::2].view(swapped)", ".T[::2]"])
def test_a_strided_array_is_not_copied_as_a_whole(dtype, view):
    # In a separate process, because the peak never falls: 32 MiB to read, of which blocks are gathered.
    code = f"""
import resource, numpy as np, gradclip as gc
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
dtype = np.dtype("{dtype}")
swapped = dtype.newbyteorder("S")
x = np.ones((4096, (64 << 20) // 4096 // dtype.itemsize), dtype){view}
assert x.nbytes == 32 << 20
gc.norm(x[:64])
gc.clip_by_value(x[:64].real, None, 9, out=x[:64].real)
before = peak()
gc.norm(x), gc.norm(x, 1), gc.norm(x, np.inf), gc.norm(x, axis=0), gc.norm(x, axis=1), gc.global_norm([x, x])
gc.clip_by_norm(x, 1.0, out=x), gc.clip_by_norm(x, 0.5, axes=1, out=x), gc.clip_by_value(x.real, 0, 1e-9, out=x.real)
grown = peak() - before
assert grown < 8 << 20, grown
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


SMALL = np.cos(np.arange(12.0)).reshape(4, 3)
REPEATED = {
    "a row": np.broadcast_to(SMALL[0], (4, 3)),
    "a column": np.broadcast_to(SMALL[:, 1:2], (4, 5)),
    "a dense column": np.broadcast_to(SMALL[:, :1].copy(), (4, 5)),
    "a column backwards": np.broadcast_to(SMALL[::-1, :1], (4, 5)),
    "a middle axis": np.broadcast_to(SMALL[:, None, :], (4, 2, 3)),
    "a middle axis, transposed": np.broadcast_to(SMALL.T[:, None, :], (3, 2, 4)),
    "a last axis": np.broadcast_to(SMALL[:, :, None], (4, 3, 1100)),
    "all axes": np.broadcast_to(SMALL[1, 1], (4, 3)),
}


@looped("case", REPEATED)
@pytest.mark.parametrize("order", ["C", "F"])
def test_repeated_elements_fill_outputs_of_any_order(case, order):
    x = REPEATED[case]
    for name, call in calls_for(x).items():
        for result, expected in zip(call(x), call(np.array(x)), strict=True):
            assert agree(result, expected, name), name
    out = np.empty(x.shape, order=order)
    assert same_bits(gc.clip_by_value(x, -0.5, 0.5, out=out), np.clip(x, -0.5, 0.5))
    assert same_bits(gc.clip_by_norm(x, 1e9, out=out), np.array(x))
    clipped = gc.clip_by_norm(x, 1e-3, out=out)
    assert clipped is out
    assert np.allclose(out, x * (1e-3 / np.linalg.norm(x)), rtol=1e-14, atol=0)
    rows = gc.clip_by_norm(x, 1e-3, axes=-1, out=out)
    assert agree(rows, gc.clip_by_norm(np.array(x), 1e-3, axes=-1))


#: Lengths of inner axes of outputs: with tiles of 8, 64, 44, 55, 13, 50 and 64 elements, and without.
TILED = (8, 64, 88, 110, 65, 150, 128, 67, 7)
TURNED = {
    "a matrix": lambda a: a[:, 0].T,
    "rows backwards": lambda a: a[::-1, 0].T,
    "columns backwards": lambda a: a[:, 1, ::-1].T,
    "every other column": lambda a: a[:, 1, ::2].T,
    "inner axes": lambda a: a.transpose(1, 2, 0),
    "outer axes": lambda a: a.transpose(1, 0, 2),
    "all axes": lambda a: a.T,
    "the last axis first": lambda a: a.transpose(2, 0, 1),
    "all axes backwards": lambda a: a[::-1, ::-1, ::-1].T,
    "repeated": lambda a: np.broadcast_to(a[:, 0].T[:, None], (a.shape[2], 3, a.shape[0])),
}


#: Elements from row to row. For the last, a power of two, few rows fit in a cache, and the rows are read in tiles.
PITCHES = (64, 100, 4096)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.float32, np.float64, BF16, np.complex64])
@looped("pitch", PITCHES)
@looped("turn", TURNED)
@looped("length", TILED)
def test_transposed_inputs_fill_outputs_of_any_order(dtype, length, turn, pitch):
    numbers = cast(np.sin(np.arange(length * 2 * 64.0)), dtype).reshape(length, 2, 64)
    dense = np.array(TURNED[turn](numbers), order="C")
    half = (dense * dtype(0.5)).astype(dtype)
    rows = gc.clip_by_norm(dense, 1e-2, axes=0)
    packed = np.dtype([("tag", "u1"), ("x", dtype)])
    for kind in (np.dtype(dtype), np.dtype(dtype).newbyteorder("S"), packed):
        room = np.zeros((length, 2, pitch), kind)
        stored = (room["x"] if kind is packed else room)[..., :64]
        stored[...] = numbers
        x = TURNED[turn](stored)
        for out in (np.empty(x.shape, dtype), np.empty(x.shape, dtype, "F"), np.empty(x.shape, dtype)[::-1]):
            ((result,), _) = gc.clip_by_global_norm([x], 1.0, use_norm=2.0, out=[out])
            assert result is out
            assert same_bits(out, half)
            assert agree(gc.clip_by_norm(x, 1e-2, axes=0, out=out), rows)
            if dtype not in ORDERED:
                continue
            assert same_bits(gc.clip_by_value(x, dtype(-0.5), None, out=out), np.maximum(dense, dtype(-0.5)))
            bounds = np.asfortranarray(dense[::-1])
            assert same_bits(gc.clip_by_value(x, bounds, None, out=out), np.maximum(dense, bounds))


def test_complex_arrays_of_64_axes_are_transposed():
    # The parts are one more axis, and the tiles of an axis another one.
    numbers = cast(np.sin(np.arange(130.0 * 4096)), np.complex64).reshape(130, 4096)[:, :64].T
    x = np.expand_dims(numbers, tuple(range(62)))
    out = np.empty(x.shape, x.dtype)
    gc.clip_by_global_norm([x], 1.0, use_norm=2.0, out=[out])
    assert same_bits(out.reshape(64, 130), numbers * np.complex64(0.5))
