"""Arrays of CuPy: every function gives on the device, bit for bit, what it gives on the CPU.

What the right answers are, the other files say; here the CPU is the oracle. (See gpu_arrays.py for what a device is
where there is none.)
"""

import collections
import itertools
import math

import draws
import gpu_arrays
import gradclip as gc
import numpy as np
import oracle
import pytest
from calls import ALONG, EVERY, POWERS, WHOLE, calls_for, cast, looped
from gpu_arrays import LAYOUTS, assert_same, check, some, thinned
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from layouts import fits
from oracle import BF16, COMPLEX, FLOATS, INTEGERS, NORMED, ORDERED, SCALED, numbers

dtypes = pytest.mark.parametrize("dtype", some(SCALED))
normed = pytest.mark.parametrize("dtype", some(NORMED))
ordered = pytest.mark.parametrize("dtype", some(ORDERED))
ORDS = ["euclidean", 1, 2, math.inf, 0.5, 1.5, 3, 4, 3.7, 0.3, 100]


def sample(shape, dtype=np.float32, seed=1):
    """Ordinary numbers of both signs; of integers those of the whole range."""
    rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
    if dtype.kind in "biu":
        room = np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), np.uint8)
        return (room & 1).astype(bool).reshape(shape) if dtype.kind == "b" else room.view(dtype).reshape(shape).copy()
    return np.asarray(cast(np.asarray(rng.standard_normal(shape) * 3), dtype))


def spread(shape, dtype, seed=2):
    """Numbers over many powers of two."""
    rng = np.random.default_rng(seed)
    reach = {np.float16: 2, BF16: 30, np.float32: 30, np.complex64: 30}.get(dtype, 290)
    with np.errstate(over="ignore"):
        return cast(rng.standard_normal(shape) * 10.0 ** rng.uniform(-reach, reach, shape), dtype)


# ---- values


def patterns(dtype):
    """The parts of numbers that are not ordinary: {name: words of bits}."""
    digits, size = oracle.finfo(dtype).nmant, 8 * oracle.part(dtype).itemsize
    inf, sign = (2 ** (size - 1 - digits) - 1) << digits, 1 << (size - 1)
    return {
        "zero": 0,
        "minus zero": sign,
        "tiny": 1,
        "minus tiny": sign | 1,
        "largest subnormal": (1 << digits) - 1,
        "smallest normal": 1 << digits,
        "largest": inf - 1,
        "minus largest": sign | (inf - 1),
        "inf": inf,
        "minus inf": sign | inf,
        "quiet": inf | 1 << (digits - 1) | 5,
        "minus quiet": sign | inf | 1 << (digits - 1) | 3,
        "signalling": inf | 6,
        "minus signalling": sign | inf | 9,
    }


def made_of(dtype, n, *names, ordinary=0.0, seed=5):
    """n numbers of these patterns, of which a share is ordinary instead."""
    rng, words = np.random.default_rng(seed), patterns(dtype)
    many = n * (2 if np.dtype(dtype).kind == "c" else 1)
    part = oracle.part(dtype)
    picked = np.array([words[name] for name in names], dtype=f"u{part.itemsize}")[rng.integers(0, len(names), many)]
    plain = oracle.bits(rng.standard_normal(many).astype(part))
    return np.where(rng.random(many) < ordinary, plain, picked).view(part).view(dtype)


def with_one(dtype, n, name, at):
    x = oracle.parts(sample((n,), dtype)).copy()
    x.reshape(-1)[at] = oracle.from_bits([patterns(dtype)[name]], oracle.part(dtype))[0]
    return x.reshape(-1).view(dtype)


def put(x, end):
    """x with other numbers at its end, bit for bit."""
    x[x.size - end.size :] = end
    return x


def odd_vectors(dtype):
    """{what: 70 numbers}, two rows of 35 of which the first may be an ordinary one."""
    n = 70
    finite = ["zero", "minus zero", "tiny", "minus tiny", "largest subnormal", "smallest normal"]
    large = ["largest", "minus largest"]
    nans = ["quiet", "minus quiet", "signalling", "minus signalling"]
    return {
        "zeros": made_of(dtype, n, "zero", "minus zero"),
        "one zero row": put(sample((n,), dtype), made_of(dtype, n // 2, "zero", "minus zero")),
        "subnormals": made_of(dtype, n, *finite),
        "one subnormal": made_of(dtype, 1, "tiny"),
        "large": made_of(dtype, n, *large, ordinary=0.3),
        "all the largest": made_of(dtype, n, "largest"),
        "small and large": made_of(dtype, n, *finite, *large, ordinary=0.3),
        "spread": spread((n,), dtype),
        "quiet NaN": with_one(dtype, n, "quiet", 50),
        "signalling NaN": with_one(dtype, n, "signalling", 51),
        "minus NaN": with_one(dtype, n, "minus quiet", 69),
        "NaNs": put(sample((n,), dtype), made_of(dtype, n // 2, *nans, ordinary=0.5)),
        "only NaNs": made_of(dtype, n, *nans),
        "inf": with_one(dtype, n, "inf", 60),
        "infs": made_of(dtype, n, "inf", "minus inf", "minus zero", ordinary=0.5),
        "inf and NaN": made_of(dtype, n, "inf", "minus inf", *nans, ordinary=0.7),
        "everything": made_of(dtype, n, *patterns(dtype), ordinary=0.2),
    }


CLIPS = {
    "clip_by_norm": gc.clip_by_norm,
    "clip_by_norm of elements": lambda x, c: gc.clip_by_norm(x, c, ()),
    "clip_by_average_norm": gc.clip_by_average_norm,
    "clip_by_global_norm": lambda x, c: gc.clip_by_global_norm([x, None, x], c),
}
CLIPS_ALONG = {
    "clip_by_norm of rows": lambda x, c: gc.clip_by_norm(x, c, -1),
    "clip_by_norm of columns": lambda x, c: gc.clip_by_norm(x, c, 0),
}


@dtypes
def test_every_call_on_values_of_every_kind(gpu, dtype):
    for what, x in odd_vectors(dtype).items():
        matrix = x.reshape(2, -1) if x.size > 1 else x
        for t in (x, matrix) if what in {"everything", "spread", "infs"} else (matrix,):
            for name, call in calls_for(t).items():
                check(gpu, call, t, told=(what, t.shape, name))


@dtypes
def test_every_limit(gpu, dtype):
    """Below, at and above the norms; of no size and of any."""
    for what, x in odd_vectors(dtype).items():
        t = x.reshape(2, -1) if x.size > 1 else x
        norms = [gc.norm(t), gc.norm(t) / t.size, float(np.ravel(gc.norm(t, axis=-1))[0])]
        near = [f(n) for n in norms if n > 0 for f in (float, lambda n: math.nextafter(n, 0.0))]
        far = [-0.0, 5e-324, 1e-310, 1e-30, 65520.0, 1e300, 10**400] if what in {"everything", "spread"} else []
        for limit in (0.0, 0.3, math.inf, *near, *far):
            for name, call in {**CLIPS, **CLIPS_ALONG}.items():
                check(gpu, lambda t, call=call, limit=limit: call(t, limit), t, told=(what, name, limit))


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_norms_beyond_float64(gpu, dtype):
    """Returned as inf, but the values are scaled by the true norm."""
    for x in (
        np.full(70, 1.7e308, dtype),
        numbers([1e300, 1e-300, 5e-324, -1e308, 1.5e308] * 9, dtype),
        numbers([1e300, 1e-300, 5e-324] * 9, dtype) * dtype(1e-10),
        numbers([5e-324, -1e-323, 1e-310] * 9, dtype),
    ):
        for limit in (1e300, 1e308, 1.7e308, 1.0, 1e-300, 5e-324):
            for name, call in CLIPS.items():
                check(gpu, lambda t, call=call, limit=limit: call(t, limit), x, told=(name, limit))
            check(gpu, lambda t, limit=limit: gc.clip_by_norm(t, limit, 1), np.stack([x, x[::-1]]), told=limit)
        for p in ORDS:
            check(gpu, lambda t, p=p: [gc.norm(t, p), gc.normalize(t, p), gc.global_norm([t, t], ord=p)], x, told=p)


# ---- sizes and shapes


def _check_all(gpu, x, groups):
    for name, call in calls_for(x, *groups).items():
        check(gpu, call, x, told=(name, x.shape, x.dtype))


@dtypes
@looped("n", thinned([0, 1, 2, 31, 32, 33, 255, 257, 2047, 2048, 2049, 4100], 2))
def test_vectors_of_every_length(gpu, dtype, n):
    _check_all(gpu, sample((n,), dtype), [WHOLE, POWERS])
    _check_all(gpu, spread((n,), dtype), [WHOLE])


@pytest.mark.parametrize(
    ("n", "dtype"),
    [(131072, np.float32), (131073, np.float32), *((300_000, d) for d in (BF16, np.float64, np.complex64))],
)
def test_long_vectors(gpu, n, dtype):
    """Beyond a chunk of 64 blocks of 2048."""
    _check_all(gpu, spread((n,), dtype), [WHOLE])
    _check_all(gpu, sample((n,), dtype)[: n // 4], [POWERS])


@pytest.mark.sampled
@pytest.mark.parametrize("n", [8_388_608, 8_388_609])
@pytest.mark.parametrize(
    ("dtype", "p", "by"), [(BF16, 2, 1), (np.int8, np.inf, 1), (np.int64, 1, 2**55), (np.float64, 2, 1e200)]
)
def test_vectors_of_a_span_of_chunks(gpu, n, dtype, p, by):
    """64 chunks make a span. One more element makes a second span."""
    x = np.zeros(n, dtype)
    edges = np.r_[0, 2047, 2048, 131_071, 131_072, n // 2, n - 131_073 : n - 131_070, n - 2, n - 1]
    x[edges] = (np.arange(len(edges)) % 100 + 1) * by
    check(gpu, lambda ts: gc.global_norm(ts, ord=p), [x, x[:5]])


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [*INTEGERS, np.bool_])
@looped("n", [0, 1, 33, 2049, 7000])
def test_norms_of_integers(gpu, dtype, n):
    _check_all(gpu, sample((n,), dtype), [WHOLE, POWERS])
    if n % 7 == 0:
        _check_all(gpu, sample((n // 7, 7), dtype), [ALONG])
    info = np.iinfo(dtype) if dtype is not np.bool_ else None
    if info and n:
        _check_all(gpu, np.full(n, info.min, dtype), [WHOLE])
        _check_all(gpu, np.full(n, info.max, dtype), [WHOLE])


SHAPES = [(), (1,), (7,), (5, 9), (1, 40), (40, 1), (3, 4, 5), (33, 70), (0, 3), (3, 0, 2), (40, 1, 2), (2, 3, 1, 4, 5)]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex128])
@pytest.mark.parametrize("shape", thinned(SHAPES, 3))
def test_every_layout(gpu, shape, dtype):
    x = sample(shape, dtype)
    for name, layout in LAYOUTS.items():
        if name == "stride_0" and x.ndim:
            x = np.broadcast_to(x[:1], x.shape)
        if fits(name, x):
            for what, call in calls_for(x).items():
                check(gpu, call, layout(x), told=(name, what))


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.bool_])
def test_every_layout_of_integers(gpu, dtype):
    x = sample((6, 35), dtype)
    for name, layout in LAYOUTS.items():
        values = np.broadcast_to(x[:1], x.shape) if name == "stride_0" else x
        for what, call in calls_for(x).items():
            check(gpu, call, layout(values), told=(name, what))
        if dtype is not np.bool_:
            check(gpu, lambda t: gc.clip_by_value(t, 3, 90), layout(values), told=name)


@normed
def test_empty_parts_of_larger_arrays(gpu, dtype):
    """They have strides like any other, while NumPy gives those that are made empty none."""
    table, cube = sample((5, 7), dtype), sample((3, 4, 5), dtype)
    for x in (
        table[:0],
        table[:, :0],
        table.T[:0],
        table.T[:, :0],
        cube[:0],
        cube[:, :0],
        cube[..., :0],
        cube.T[:, :0],
    ):
        for name, call in calls_for(x).items():
            check(gpu, call, x, told=(name, x.shape, x.strides))
        for p in ("fro", 1, math.inf):
            check(gpu, lambda t, p=p: [gc.norm(t, p, (0, 1)), gc.norm(t, p, (-1, 0), True)], x, told=(p, x.shape))


AXES = [c for k in range(1, 5) for c in itertools.combinations(range(4), k)]


@pytest.mark.parametrize("dtype", some([BF16, np.float64, np.complex64]))
@looped("layout", ["contiguous", "fortran", "transposed", "permuted", "backwards", "every_second"])
def test_every_choice_of_axes(gpu, dtype, layout):
    x = LAYOUTS[layout](sample((3, 4, 5, 6), dtype))
    check(gpu, lambda t: gc.clip_by_norm(t, 1.5, ()), x)
    for axes in AXES:
        limit = float(np.median(gc.norm(x, axis=axes[0] if len(axes) == 1 else axes, ord="euclidean")))
        check(gpu, lambda t, axes=axes, limit=limit: gc.clip_by_norm(t, limit, axes), x, told=axes)
        for p in ("euclidean", 1, math.inf):
            for keepdims in (False, True):
                check(gpu, lambda t, a=axes, p=p, k=keepdims: gc.norm(t, p, a, k), x, told=(axes, p, keepdims))
            check(gpu, lambda t, axes=axes, p=p: gc.normalize(t, p, axes), x, told=(axes, p))


def test_axes_in_any_spelling(gpu):
    x = sample((3, 4, 5))
    for axes in (0, -1, (0, 2), (2, 0), [0, -1], np.int8(1), np.array([0, 2]), (-3, 2), None):
        check(gpu, lambda t, axes=axes: gc.clip_by_norm(t, 0.7, axes), x, told=axes)
        check(gpu, lambda t, axes=axes: gc.norm(t, axis=axes), x, told=axes)


ROWS_AND_COLUMNS = [
    *((2049, 3), (3, 2049), (65, 130), (130, 65), (300, 7), (7, 300), (64, 64), (63, 257), (2, 5000), (1000, 2)),
    *((1, 300), (300, 1), (33, 2, 40), (2, 70, 33), (40, 3, 2), (5, 700, 7)),
]


@dtypes
@looped("shape", thinned(ROWS_AND_COLUMNS, 2))
def test_rows_and_columns(gpu, dtype, shape):
    """Few and many, short and long: each kind may have a separate code path."""
    x = spread(shape, dtype) if dtype is not np.float16 else sample(shape, dtype)
    for data in (x, np.asfortranarray(x)):
        for axis in range(x.ndim):
            limit = float(np.median(gc.norm(data, axis=axis))) * 0.7
            check(gpu, lambda t, a=axis, c=limit: [gc.clip_by_norm(t, c, a), gc.normalize(t, axis=a)], data, told=shape)
            check(gpu, lambda t, a=axis: [gc.norm(t, 1, a), gc.norm(t, math.inf, a, True)], data, told=shape)


def check_in_place(gpu, whole, view, limit, axis):
    """Clips a view of an array. Nothing beside the view is written."""
    on_device = gpu.array(whole)
    gc.clip_by_norm(view(on_device), limit, axis, out=view(on_device))
    expected = whole.copy()
    view(expected)[...] = gc.clip_by_norm(view(whole), limit, axis)
    assert oracle.same_bits(gpu.get(on_device), expected)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, np.float64])
@looped("length", thinned([1, 3, 8, 12, 16, 31, 33, 40, 64, 65, 128, 129, 256, 257, 512, 513, 1024, 2048], 2))
def test_rows_of_which_a_warp_has_several(gpu, dtype, length):
    """Side by side: rows that are clipped, that are not, that are NaN, whose squares leave the range of float64."""
    x = sample((19, length), dtype)
    x[3] = 0
    x[5, -1] = np.nan
    x[6, 0] = np.inf
    if dtype is np.float64:
        x[8] *= 1e200
        x[9] *= 1e-200
        x[17, 0] = 5e-324
    limit = float(np.median(gc.norm(x[:5], axis=1)))
    twice = np.concatenate([x, x], 1)
    odd = np.concatenate([x, x, x[:, :1]], 1)  # so each row begins at another address, relative to a pack of elements
    views = [
        (twice, np.s_[:, ::2]),
        (twice, np.s_[::2, :length]),
        (twice, np.s_[:, length - 1 :: -1]),
        (twice, np.s_[:, 1 : length + 1]),
        (twice, np.s_[:, :length]),
        (odd, np.s_[:, :length]),
    ]
    for whole, view in views:
        data = whole[view]
        check(gpu, lambda t: [gc.clip_by_norm(t, limit, 1), gc.norm(t, axis=1), gc.normalize(t, axis=1)], data)
        check(gpu, lambda t: [gc.normalize(t, 1, axis=1), gc.normalize(t, math.inf, axis=1)], data)
        check_in_place(gpu, whole, lambda t, view=view: t[view], limit, 1)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, np.float64, np.complex64])
@looped("shape", [(1, 4), (3, 8), (70, 12), (65, 31), (200, 260), (700, 36), (130, 1040)])
def test_columns_of_which_a_thread_has_several(gpu, dtype, shape):
    """Rows that begin at multiples of 16 bytes and others, read and written; a NaN beside a column that is clipped."""
    x = sample((shape[0], shape[1] + 8), dtype)
    x[0, 2] = x[-1, 5] = np.nan
    x[:, 3] = 0
    limit = float(np.median(gc.norm(np.nan_to_num(x.astype(np.complex128)), axis=0))) if shape[0] > 1 else 0.5
    views = [np.s_[:, :-8], np.s_[:, :-9], np.s_[:, 1:-7], np.s_[:, ::2], np.s_[::-1, 4:-4]]
    for view in views:
        data = x[view]
        check(gpu, lambda t: [gc.clip_by_norm(t, limit, 0), gc.norm(t, axis=0), gc.normalize(t, axis=0)], data)
        check(gpu, lambda t: gc.clip_by_norm(t, limit, 0), data.copy())
        check_in_place(gpu, x, lambda t, view=view: t[view], limit, 0)


LONG = [
    ((2, 140_000), np.float32, 1),
    ((140_000, 2), BF16, 0),
    ((3, 100_000), np.float32, 0),
    ((100_000, 3), np.float64, 1),
    ((4100, 5), np.float16, 0),
    ((4500, 4), np.complex128, 0),
    ((5000, 64), np.float32, 0),
    ((4100, 600), np.float32, 0),
    ((2, 4200, 6), np.float64, 1),
    ((70, 3, 700), np.float32, (0, 2)),
    ((70, 300, 7), np.complex64, (0, 1)),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("shape", "dtype", "axis"), LONG)
def test_long_slices(gpu, shape, dtype, axis):
    """Longer than a chunk of blocks, and columns of more rows than one accumulator takes."""
    x = sample(shape, dtype)
    limit = float(np.median(gc.norm(x, 2 if isinstance(axis, int) else "fro", axis)))
    check(gpu, lambda t: gc.clip_by_norm(t, limit, axis), x)
    check(gpu, lambda t: gc.normalize(t, math.inf if isinstance(axis, int) else "fro", axis), x)


@dtypes
@looped("layout", ["fortran", "backwards", "every_second"])
def test_long_slices_in_other_layouts(gpu, dtype, layout):
    x = LAYOUTS[layout](sample((3, 5000), dtype))
    for axis in (0, 1, None):
        check(gpu, lambda t, a=axis: [gc.clip_by_norm(t, 20.0, a), gc.norm(t, axis=a), gc.norm(t, 1, a)], x, told=axis)


# ---- ord


@normed
@looped("p", thinned(ORDS, 2))
def test_every_ord(gpu, dtype, p):
    x = sample((6, 71), dtype)
    for axis in (None, 0, 1, (0,)):
        check(gpu, lambda t, a=axis: gc.norm(t, p, a), x, told=axis)
        check(gpu, lambda t, a=axis: gc.norm(t, p, a, True), x, told=axis)
        if dtype in SCALED:
            check(gpu, lambda t, a=axis: gc.normalize(t, p, a), x, told=axis)
    if not isinstance(p, str):
        check(gpu, lambda t: gc.global_norm([t, None, t[1]], ord=p), x)
        if dtype in SCALED:
            check(gpu, lambda t: gc.clip_by_global_norm([t, t[:, 3]], 0.5, ord=p), x)


@dtypes
@looped("p", thinned([0.5, 0.3, 1.5, 3, 3.7, 100, 1e-3, 1e300, np.float32(2.5), BF16(1.5), np.array(3)], 2))
def test_powers_of_values_of_every_kind(gpu, dtype, p):
    for what, x in odd_vectors(dtype).items():
        check(gpu, lambda t: [gc.norm(t, p), gc.normalize(t, p), gc.clip_by_global_norm([t], 1, ord=p)], x, told=what)
        if x.size > 1:
            check(gpu, lambda t: [gc.normalize(t, p, 0), gc.norm(t, p, 1)], x.reshape(2, -1), told=what)
            check(gpu, lambda t: [gc.normalize(t, p, 0), gc.norm(t, p, 1)], x.reshape(-1, 2), told=what)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", some([*SCALED, np.int8, np.int64, np.uint64, np.bool_]))
@pytest.mark.parametrize("p", ["euclidean", "fro", 1, math.inf])
def test_matrix_norms(gpu, dtype, p):
    x = sample((4, 5, 6), dtype)
    for axis in (*itertools.permutations(range(3), 2), (-1, 0)):
        for data in (x, LAYOUTS["permuted"](x), x[:, ::-1, 1::2]):
            check(gpu, lambda t, a=axis: [gc.norm(t, p, a), gc.norm(t, p, a, True)], data, told=axis)
            if dtype in SCALED:
                check(gpu, lambda t, a=axis: gc.normalize(t, p, a), data, told=axis)
    check(gpu, lambda t: [gc.norm(t, p, (0, 1)), gc.norm(t, p, (1, 0), True)], x[0])
    for shape in ((0, 3), (3, 0), (2, 0, 3), (0, 2, 3), (70, 300), (300, 70), (2, 33, 65)):
        check(gpu, lambda t: [gc.norm(t, p, (-2, -1)), gc.norm(t, p, (-1, -2))], sample(shape, dtype), told=shape)
    if dtype in SCALED:
        for what, odd in odd_vectors(dtype).items():
            if odd.size > 1:
                cube = odd.reshape(2, 5, 7)
                check(gpu, lambda t: [gc.norm(t, p, (0, 1)), gc.normalize(t, p, (0, 2))], cube, told=what)


@gpu_arrays.on_device
@pytest.mark.parametrize("dtype", [*SCALED, np.int8, np.bool_])
def test_the_largest_singular_value(gpu, dtype):
    """Computed by the device's LAPACK, whose last bits differ."""
    x = sample((4, 5, 6), dtype)
    for axis in itertools.permutations(range(3), 2):
        expected, got = gc.norm(x, 2, axis), gc.norm(gpu.array(x), 2, axis)
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        np.testing.assert_allclose(gpu.get(got), expected, rtol=1e-6 if got.dtype == np.float32 else 1e-13)
    one = gc.norm(gpu.array(x[0]), 2, (0, 1))
    assert one.dtype == np.float64
    np.testing.assert_allclose(gpu.get(one), gc.norm(x[0], 2, (0, 1)), rtol=1e-13)


# ---- results


@normed
def test_a_norm_that_is_one_number_is_a_0_d_array_of_float64(gpu, dtype):
    x = gpu.array(sample((2, 3), dtype))
    for norm in (gc.norm(x), gc.norm(x, axis=(0, 1)), gc.norm(x[0], axis=0), gc.norm(x[0, 0]), gc.global_norm([x])):
        assert type(norm) is gpu.ndarray
        assert norm.shape == ()
        assert norm.dtype == np.float64
    assert gc.norm(x, axis=0).dtype == oracle.norm_dtype(dtype)
    assert gc.norm(x, keepdims=True).dtype == oracle.norm_dtype(dtype)
    assert gc.norm(x, keepdims=True).shape == (1, 1)


def test_results_have_memory_of_their_own(gpu):
    x = gpu.array(sample((5, 6)))
    for results in (
        [gc.clip_by_norm(x, 1e9), gc.clip_by_norm(x, 1e9, 0), gc.clip_by_value(x, None, 1e9), x],
        [*gc.clip_by_global_norm([x, x, x], 1e9)[0], x],
        [gc.normalize(x)[0], gc.clip_by_average_norm(x, 1e9), x],
    ):
        starts = [r.data.ptr for r in results]
        assert all(abs(a - b) >= 5 * 6 * 4 for a, b in itertools.combinations(starts, 2))


def test_results_of_earlier_calls_stay_what_they_were(gpu):
    """Memory may be reused, but not while a reference to it is held."""
    first = [gc.clip_by_global_norm([gpu.array(sample((50,), seed=k))], 0.5) for k in range(20)]
    norms = [gc.norm(gpu.array(sample((50,), seed=k))) for k in range(20)]
    for k, (result, norm) in enumerate(zip(first, norms, strict=True)):
        x = sample((50,), seed=k)
        assert_same(gpu, result, gc.clip_by_global_norm([x], 0.5))
        assert_same(gpu, norm, gc.norm(x))


def test_the_result_lives_where_the_input_does(gpu):
    if gpu.kind == "device" and gpu_arrays.devices() == 1:
        pytest.skip("there is one GPU alone")
    x = sample((5, 6))
    a, b = gpu.array(x), gpu.array(x, device_id=1)
    for call in (
        lambda t: gc.clip_by_norm(t, 0.5, 0),
        lambda t: gc.clip_by_value(t, 0, 1),
        lambda t: gc.clip_by_average_norm(t, 1e-6),
        gc.normalize,
        gc.norm,
        lambda t: gc.norm(t, axis=0),
        lambda t: gc.clip_by_global_norm([t, t], 0.5),
        lambda t: gc.global_norm([t]),
    ):
        for t, device in ((a, 0), (b, 1), (a, 0)):
            got = call(t)
            assert_same(gpu, got, call(x))
            flat = [got] if type(got) is gpu.ndarray else [*(got[0] if isinstance(got[0], list) else got[:1]), got[1]]
            assert {r.data.device_id for r in flat} == {device}


# ---- lists


def mixed_list():
    return [
        sample((3, 4), np.float32),
        None,
        sample((17,), BF16),
        sample((), np.float64),
        sample((0, 3), np.float32),
        np.asfortranarray(sample((5, 6), np.complex64)),
        sample((40,), np.float16)[::-2],
        None,
        sample((2, 3, 4), np.float32).transpose(2, 0, 1),
        sample((2100,), np.complex128),
        sample((2300,), np.float32)[1:],
    ]


@looped("p", thinned([p for p in ORDS if not isinstance(p, str)], 2))
def test_lists_of_all_dtypes(gpu, p):
    t_list = mixed_list()
    for limit in (0.5, 1e9, gc.global_norm(t_list, ord=p)):
        check(gpu, lambda *ts, c=limit: gc.clip_by_global_norm(list(ts), c, ord=p)[0][0], *t_list[:1], told=limit)
        got = gc.clip_by_global_norm(gpu.arrays(t_list), limit, ord=p)
        assert_same(gpu, got, gc.clip_by_global_norm(t_list, limit, ord=p), limit)
    integers = [*t_list, sample((9,), np.int64), sample((70,), np.uint8), sample((3, 3), np.bool_)]
    assert_same(gpu, gc.global_norm(gpu.arrays(integers), ord=p), gc.global_norm(integers, ord=p))
    assert gpu.syncs == 0


@dtypes
def test_lists_of_one_dtype(gpu, dtype):
    t_list = [sample(shape, dtype, k) for k, shape in enumerate([(3, 4), (), (17,), (0,), (2, 3, 5), (129,), (2050,)])]
    for limit in (0.0, 0.5, 1e9, math.inf, gc.global_norm(t_list)):
        check(gpu, lambda ts, c=limit: gc.clip_by_global_norm(ts, c), t_list, told=limit)
    check(gpu, gc.global_norm, t_list)
    wild = list(odd_vectors(dtype).values())
    for k in range(len(wild)):
        check(gpu, lambda ts: gc.clip_by_global_norm(ts, 0.5), wild[k : k + 2], told=k)
        check(gpu, lambda ts: gc.global_norm(ts, ord=1), wild[k : k + 2], told=k)


@dtypes
def test_lists_of_views_that_begin_at_any_address(gpu, dtype):
    x = sample((12_300,), dtype, 0)
    ranges = [slice(k, k + n) for k in (0, 1, 2, 3, 8, 2047) for n in (2047, 2048, 2049, 4096, 10_000)]
    on_device = gpu.array(x)
    assert_same(gpu, gc.global_norm([on_device[own] for own in ranges]), gc.global_norm([x[own] for own in ranges]))
    for own in ranges:
        clipped = gc.clip_by_global_norm([on_device[own]], 0.5)
        assert_same(gpu, clipped, gc.clip_by_global_norm([x[own]], 0.5))


@pytest.mark.parametrize("ord", [1, 2])
def test_empty_tensors_change_no_bit(gpu, ord):
    """64 tensors are added up before they are added to others: only those that are not empty count."""
    first, small = np.array([1.0]), np.array([2.0 ** (-53 if ord == 1 else -26.5)])
    rest = [np.array([2.0 ** (-107 if ord == 1 else -53.5)])] * 64
    empty = [np.zeros(0)] * 62
    for t_list in ([first, small, *empty, *rest], [first, small, *rest], [*empty, first, small, *empty, *rest, *empty]):
        check(gpu, lambda ts: gc.global_norm(ts, ord=ord), t_list)
    assert gc.global_norm([first, small, *empty, *rest], ord=ord) == gc.global_norm([first, small, *rest], ord=ord)


@pytest.mark.sampled
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 150, 3000])
def test_many_small_tensors(gpu, n):
    t_list = [sample((k % 7 + k % 3,), np.float32, k) for k in range(n)]
    for limit in (0.5, 1e9):
        check(gpu, lambda ts, c=limit: gc.clip_by_global_norm(ts, c), t_list, told=limit)
    check(gpu, lambda ts: gc.global_norm(ts, ord=1), t_list)


def test_many_tensors_of_many_dtypes(gpu):
    t_list = [None if k % 11 == 0 else sample((k % 5, 3), NORMED[k % 15], k) for k in range(700)]
    check(gpu, gc.global_norm, t_list)
    t_list = [None if k % 11 == 0 else sample((k % 5, 3), SCALED[k % 6], k) for k in range(700)]
    check(gpu, lambda ts: gc.clip_by_global_norm(ts, 0.5), t_list)


@pytest.mark.parametrize("kind", [list, tuple, collections.deque, collections.UserList])
def test_every_sequence_is_a_list_of_tensors(gpu, kind):
    t_list = [sample((5,)), None, sample((2, 3), np.float64)]
    got = gc.clip_by_global_norm(kind(gpu.arrays(t_list)), 0.5)
    assert_same(gpu, got, gc.clip_by_global_norm(t_list, 0.5))
    assert_same(gpu, gc.global_norm(kind(gpu.arrays(t_list))), gc.global_norm(t_list))


def test_one_tensor_twice_counts_twice(gpu):
    x = np.array([3.0, 4.0])
    check(gpu, lambda t: [gc.global_norm([t, t, t, t]), gc.clip_by_global_norm([t, t], 1.0)], x)


@pytest.mark.usefixtures("gpu")
def test_lists_of_nothing_stay_on_the_cpu():
    for empty in ([], (), [None], [None, None]):
        norm = gc.global_norm(empty)
        assert type(norm) is float
        assert norm == 0
        clipped, norm = gc.clip_by_global_norm(empty, 1.0)
        assert clipped == list(empty)
        assert type(norm) is float
        assert norm == 0


def test_arrays_of_numpy_are_handled_on_the_cpu_as_ever(gpu):
    x = sample((5, 6))
    for name, call in calls_for(x).items():
        for result in call(x):
            assert type(result) in {np.ndarray, float}, name
    assert not gpu.launches


# ---- limits and norms that are on the device


LIMIT_DTYPES = [*FLOATS, *INTEGERS]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
@looped("limit_dtype", thinned(LIMIT_DTYPES, 2))
def test_a_limit_may_be_a_0_d_array_on_the_device(gpu, dtype, limit_dtype):
    x = sample((6, 35), dtype)
    values = [0, 2, 100]
    if oracle.is_float(limit_dtype):
        values += [0.1, -0.0, oracle.tiny(limit_dtype), oracle.largest(limit_dtype), math.inf]
    for value in values:
        limit = np.array(value).astype(limit_dtype)
        for name, call in {**CLIPS, **CLIPS_ALONG}.items():
            expected = call(x, limit)
            t, c = gpu.array(x), gpu.array(limit)
            gpu.reset()
            got = call(t, c)
            assert gpu.syncs == 0
            assert_same(gpu, got, expected, (name, value))
            assert oracle.same_bits(gpu.get(c), limit)


@pytest.mark.parametrize("shape", [(3, 4), (3, 5, 2), (300, 40)])
def test_complex_numbers_that_are_all_one(gpu, shape):
    """Their parts are summed as columns, though they themselves lie nowhere side by side."""
    for number in sample((20,), np.complex128):
        x = np.broadcast_to(number, shape)
        check(gpu, lambda t: gc.norm(t, axis=0), x)
        check(gpu, lambda t: gc.clip_by_norm(t, 0.1, 0), x)
        check(gpu, lambda t: [*gc.normalize(t, axis=0)], x)


def test_a_limit_may_be_an_element_of_a_larger_array(gpu):
    limits, x = np.arange(1, 9, dtype=np.float32) / 3, sample((50,))
    on_device = gpu.array(limits)
    for k in range(8):
        assert_same(gpu, gc.clip_by_norm(gpu.array(x), on_device[k]), gc.clip_by_norm(x, limits[k]), k)
    wide = gpu.array(limits.astype(np.float64))
    assert_same(gpu, gc.clip_by_norm(gpu.array(x), wide[::-1][2]), gc.clip_by_norm(x, float(limits[5])))


@dtypes
def test_a_limit_that_is_its_own_norm_on_the_device_changes_nothing(gpu, dtype):
    x = sample((2500,), dtype)
    t = gpu.array(x)
    assert_same(gpu, gc.clip_by_norm(t, gc.norm(t)), x)
    t_list = [t, None, gpu.array(sample((7,), dtype))]
    norm = gc.global_norm(t_list)
    (clipped, _, _), reported = gc.clip_by_global_norm(t_list, norm, norm)
    assert_same(gpu, clipped, x)
    assert_same(gpu, reported, gc.global_norm([x, None, sample((7,), dtype)]))
    assert gpu.syncs == 0


@pytest.mark.parametrize("dtype", SCALED)
@looped("bad", [-1.0, -5e-324, -math.inf, math.nan, -math.nan])
def test_a_negative_or_nan_limit_on_the_device_makes_everything_nan(gpu, dtype, bad):
    """Raising an error would require a wait."""
    x = sample((6, 35), dtype)
    for limit_dtype in FLOATS:
        with np.errstate(under="ignore"):
            limit = np.array(bad).astype(limit_dtype)
        if limit == 0:
            continue
        c, t = gpu.array(limit), gpu.array(x)
        for name, call in {**CLIPS, **CLIPS_ALONG}.items():
            gpu.reset()
            got = call(t, c)
            assert gpu.syncs == 0
            for result in [r for r in got[0] if r is not None] if isinstance(got, tuple) else [got]:
                assert result.dtype == x.dtype
                assert oracle.is_nan(gpu.get(result)).all(), name
            if isinstance(got, tuple):
                assert_same(gpu, got[1], gc.global_norm([x, x]))
        (clipped,), _ = gc.clip_by_global_norm([t], 1.0, c)
        assert oracle.is_nan(gpu.get(clipped)).all()


@pytest.mark.parametrize("limit_dtype", [d for d in INTEGERS if np.dtype(d).kind == "i"])
def test_a_negative_integer_limit_on_the_device_makes_everything_nan(gpu, limit_dtype):
    t, c = gpu.array(sample((40,))), gpu.array(np.array(-1, limit_dtype))
    assert oracle.is_nan(gpu.get(gc.clip_by_norm(t, c))).all()
    assert oracle.is_nan(gpu.get(gc.clip_by_global_norm([t], 1, c)[0][0])).all()


def test_slices_within_a_negative_limit_are_nan_too(gpu):
    """Also slices of zeros and of nothing but inf."""
    x = np.array([[0.0, -0.0], [math.inf, 1.0], [3.0, 4.0]])
    for axes in (None, 0, 1, ()):
        got = gc.clip_by_norm(gpu.array(x), gpu.array(np.array(-1.0)), axes)
        assert oracle.is_nan(gpu.get(got)).all()


USE_NORMS = [
    *(4, 4.0, 0, 0.0, -0.0, 1e-320, 1e300, math.inf, math.nan, 10**400, np.float32(4.1), np.float64(4.1), BF16(4)),
    *(np.int64(4), np.array(4.1), np.array(4.1, np.float32), np.array(4, np.uint8)),
]


@dtypes
@looped("norm", USE_NORMS)
def test_use_norm_from_the_host(gpu, dtype, norm):
    """It comes back as a 0-d array of float64, as a norm that was computed does."""
    t_list = [sample((40,), dtype), None, with_one(dtype, 9, "inf", 3), with_one(dtype, 9, "signalling", 3)]
    for limit in (0.0, 0.5, 4.0, 1e9, math.inf):
        check(gpu, lambda ts, c=limit: gc.clip_by_global_norm(ts, c, norm), t_list, told=limit)


@dtypes
@looped("norm_dtype", thinned(LIMIT_DTYPES, 2))
def test_use_norm_on_the_device(gpu, dtype, norm_dtype):
    t_list = [sample((40,), dtype), None, with_one(dtype, 9, "inf", 3), with_one(dtype, 9, "quiet", 3)]
    values = [0, 4, 100, *([math.inf, math.nan, 4.1] if oracle.is_float(norm_dtype) else [])]
    for value in values:
        norm = np.array(value).astype(norm_dtype)
        expected = gc.clip_by_global_norm(t_list, 0.5, norm)
        args = gpu.arrays(t_list), gpu.array(norm)
        gpu.reset()
        got = gc.clip_by_global_norm(args[0], 0.5, args[1])
        assert gpu.syncs == 0
        assert_same(gpu, got, expected, value)
        both = gc.clip_by_global_norm(args[0], gpu.array(np.array(0.5, np.float32)), args[1])
        assert_same(gpu, both, expected, value)


def test_use_norm_of_minus_zero_is_zero(gpu):
    x = sample((5,))
    expected = gc.clip_by_global_norm([x], 1.0, use_norm=-0.0)
    assert math.copysign(1.0, expected[1]) == 1.0
    for norm in (-0.0, gpu.array(np.array(-0.0)), gpu.array(np.array(-0.0, np.float16))):
        assert_same(gpu, gc.clip_by_global_norm([gpu.array(x)], 1.0, use_norm=norm), expected)


@looped("p", [1, 2, 3.7, math.inf])
def test_use_norm_that_global_norm_returned(gpu, p):
    t_list = mixed_list()
    on_device = gpu.arrays(t_list)
    norm = gc.global_norm(on_device, ord=p)
    for limit in (0.5, 1e9):
        got = gc.clip_by_global_norm(on_device, limit, norm, ord=p)
        assert_same(gpu, got, gc.clip_by_global_norm(t_list, limit, gc.global_norm(t_list, ord=p), ord=p))
    assert_same(gpu, norm, gc.global_norm(t_list, ord=p))
    assert gpu.syncs == 0


# ---- clip_by_value


BOUNDS = [(-0.5, 0.75), (None, 0.1), (0.1, None), (1, -1), (math.nan, 1), (None, math.nan), (-math.inf, math.inf)]


@ordered
def test_bounds_that_are_numbers(gpu, dtype):
    floats = oracle.is_float(dtype)
    x = made_of(dtype, 200, *patterns(dtype), ordinary=0.4) if floats else sample((200,), dtype)
    bounds = [*BOUNDS, (0.0, -0.0), (-0.0, 0.0), (1e300, None), (None, -(10**400))] if floats else []
    bounds += [(-1, 300), (3, 90), (None, 7), (7, None), (9, 3), (-(2**64), 2**64), (2**63, None), (None, -(10**400))]
    for low, high in bounds:
        check(gpu, lambda t, a=low, b=high: gc.clip_by_value(t, a, b), x, told=(low, high))
        for kind in (np.float64, np.float32, np.array, BF16) if floats else ():
            a, b = (None if v is None or abs(v) > 1e30 else kind(float(v)) for v in (low, high))
            if a is not None or b is not None:
                check(gpu, lambda t, a=a, b=b: gc.clip_by_value(t, a, b), x, told=(a, b))


@ordered
def test_a_number_is_rounded_to_the_dtype_once(gpu, dtype):
    integers = [0, 300, -300, 2**31 + 1, -(2**40) - 1, 2**53 + 1, 2**64, -(2**70), 10**400]
    lowest = np.full(1, -math.inf if oracle.is_float(dtype) else np.iinfo(dtype).min, dtype)
    bounds = [*integers, *(np.array(x) for x in integers if abs(x) < 2**63)]
    if oracle.is_float(dtype):
        floats = [-0.0, 0.1, 1e-42, 65520.0, 1e39, math.nan, -math.nan]
        bounds += [*floats, *map(np.array, floats), *map(np.longdouble, floats), np.longdouble(2**53 + 1)]
    for bound in bounds:
        check(gpu, lambda t, b=bound: gc.clip_by_value(t, b, None), lowest, told=bound)


def clipped(gpu, x, low, high, told=None):
    """clip_by_value with array bounds, on the CPU and on the device."""
    expected = gc.clip_by_value(x, low, high)
    args = [gpu.array(a) if isinstance(a, np.ndarray) else a for a in (x, low, high)]
    gpu.reset()
    got = gc.clip_by_value(*args)
    assert gpu.syncs == 0
    assert_same(gpu, got, expected, told)
    for a, d in zip((x, low, high), args, strict=True):
        assert not isinstance(a, np.ndarray) or oracle.same_bits(gpu.get(d), a), f"{told}: an input was changed"


@ordered
@looped("shape", [(), (1,), (5,), (1, 1), (1, 5), (4, 1), (4, 5), (3, 1, 5), (3, 4, 5), (1, 4, 1)])
def test_bounds_broadcast_to_t(gpu, dtype, shape):
    x = sample((3, 4, 5), dtype)
    low, high = sample(shape, dtype, 7), sample(shape, dtype, 8)
    for t in (x, np.asfortranarray(x), LAYOUTS["permuted"](x), x[:, ::-1]):
        for a, b in ((low, None), (None, high), (low, high), (low, 5), (2, high), (low.T.copy().T, high)):
            clipped(gpu, t, a, b, (shape, t.strides))


@pytest.mark.parametrize("dtype", FLOATS)
@looped("bound_dtype", thinned(ORDERED, 2))
def test_bounds_of_every_dtype_for_floats(gpu, dtype, bound_dtype):
    """Rounded once, to inf beyond the range."""
    x = made_of(dtype, 210, *patterns(dtype), ordinary=0.4)
    if oracle.is_float(bound_dtype):
        low = made_of(bound_dtype, 210, *patterns(bound_dtype), ordinary=0.4, seed=8)
        near = (1 + oracle.eps(dtype) / 2 * np.linspace(-3, 3, 210)).astype(bound_dtype)
    else:
        low = sample((210,), bound_dtype, 8)
        near = np.arange(210).astype(bound_dtype)
    with np.errstate(invalid="ignore"):
        for a, b in ((low, None), (None, low), (near, low), (low, near), (low[5, ...], None), (None, near[3:4])):
            clipped(gpu, x, a, b)
            clipped(gpu, np.full(210, 50, dtype), a, b)
    halves = 2 ** (oracle.finfo(dtype).nmant + 2) + np.arange(-12, 12)
    if not oracle.is_float(bound_dtype) and np.iinfo(bound_dtype).max > halves.max():
        clipped(gpu, np.full(24, oracle.largest(dtype) / 2, dtype), None, halves.astype(bound_dtype))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", INTEGERS)
@looped("bound_dtype", INTEGERS)
def test_bounds_of_every_dtype_for_integers(gpu, dtype, bound_dtype):
    """Compared exactly, whatever their range is."""
    info, other = np.iinfo(dtype), np.iinfo(bound_dtype)
    x = np.array([info.min, info.min + 1, info.max - 1, info.max, 0, 1, 5], dtype)
    low = np.array([other.min, other.min + 1, other.max - 1, other.max, 0, 1, 5], bound_dtype)
    for shift in range(7):
        turned = np.roll(low, shift)
        clipped(gpu, x, turned, None, shift)
        clipped(gpu, x, None, turned, shift)
        clipped(gpu, x, turned, low, shift)
        clipped(gpu, x, turned[0, ...], turned[1:2], shift)


@pytest.mark.parametrize("dtype", FLOATS)
@looped("bound_dtype", FLOATS)
def test_a_bound_of_0_dimensions_that_is_nan(gpu, dtype, bound_dtype):
    """Read as a Python number is, which quiets it, but keeps its payload."""
    x = sample((7,), dtype)
    for name in ("quiet", "minus quiet", "signalling", "minus signalling"):
        bound = oracle.from_bits([patterns(bound_dtype)[name]], bound_dtype).reshape(())
        check(gpu, lambda t, b: gc.clip_by_value(t, b, None), x, bound, told=name)
        check(gpu, lambda t, b: gc.clip_by_value(t, None, b), x, bound, told=name)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_value_equal_to_a_bound_keeps_its_own_bits(gpu, dtype):
    zeros = np.array([0.0, -0.0] * 17, dtype=dtype)
    for low, high in ((0.0, 1), (-1, -0.0), (zeros[::-1], -zeros), (0.0, -0.0), (0, None), (None, zeros[::-1])):
        clipped(gpu, zeros, low, high)


@ordered
def test_long_tensors_and_long_bounds(gpu, dtype):
    x, low, high = (sample((3, 21_000), dtype, k) for k in (1, 2, 3))
    clipped(gpu, x, low, high)
    clipped(gpu, x.T, low.T, high[:1].T)
    clipped(gpu, x[:, ::-2], low[1, ::2], None)


def test_empty_tensors_take_bounds_that_broadcast(gpu):
    for t, bound in (((0,), (1,)), ((0, 3), (3,)), ((7, 0), (1, 1)), ((7, 0), (7, 0)), ((2, 0, 3), (2, 1, 1))):
        clipped(gpu, np.zeros(t), np.ones(bound), np.ones(bound))


# ---- how it is done


def launched(gpu, call):
    gpu.reset()
    call()
    assert gpu.syncs == 0
    return len(gpu.launches)


OUTS = ["no out", "other arrays", "in place"]


def outs_of(gpu, kind, t_list):
    if kind == "other arrays":
        return [None if t is None else gpu.empty(t.shape, t.dtype) for t in t_list]
    return t_list if kind == "in place" else None


@looped("p", thinned([p for p in ORDS if not isinstance(p, str)], 2))
@pytest.mark.parametrize("out", OUTS)
def test_a_list_of_one_dtype_takes_few_launches(gpu, p, out):
    """The sums of blocks, what comes of them, and the scaling; other powers take two passes."""
    most = 3 if p in {0.5, 1, 1.5, 2, 3, 4, math.inf} else 5
    for n in (1, 70, 600) if p == 2 else (1, 70):
        t_list = [gpu.array(sample((k % 7 + 1,))) for k in range(n)]
        outs = outs_of(gpu, out, t_list)
        for limit in (0.5, 1e9):
            count = launched(gpu, lambda c=limit, o=outs, ts=t_list: gc.clip_by_global_norm(ts, c, ord=p, out=o))
            assert 1 <= count <= most
        assert 1 <= launched(gpu, lambda ts=t_list: gc.global_norm(ts, ord=p)) < most
        use = gc.global_norm(t_list, ord=p)
        assert 1 <= launched(gpu, lambda o=outs, ts=t_list, n=use: gc.clip_by_global_norm(ts, 0.5, n, out=o)) <= 3


@pytest.mark.parametrize("out", OUTS)
def test_each_dtype_of_a_list_takes_few_launches(gpu, out):
    t_list = gpu.arrays(mixed_list())
    outs = outs_of(gpu, out, t_list)
    for p in (2, 1, 3.7, math.inf):
        assert 1 <= launched(gpu, lambda p=p: gc.clip_by_global_norm(t_list, 0.5, ord=p, out=outs)) <= 20
        assert 1 <= launched(gpu, lambda p=p: gc.global_norm(t_list, ord=p)) <= 20


@dtypes
def test_a_whole_tensor_takes_three_launches_at_most(gpu, dtype):
    for shape in ((1,), (40, 50), (9000,)):
        t = gpu.array(sample(shape, dtype))
        for call in (
            lambda t=t: gc.clip_by_norm(t, 0.5),
            lambda t=t: gc.clip_by_norm(t, 0.5, out=t),
            lambda t=t: gc.clip_by_average_norm(t, 0.5),
            lambda t=t: gc.normalize(t),
            lambda t=t: gc.norm(t),
        ):
            assert 1 <= launched(gpu, call) <= 3


@dtypes
def test_rows_take_one_launch(gpu, dtype):
    for shape in ((40, 50), (3, 5, 30)):
        t = gpu.array(sample(shape, dtype))
        assert launched(gpu, lambda t=t: gc.clip_by_norm(t, 0.5, -1)) == 1
        assert launched(gpu, lambda t=t: gc.clip_by_norm(t, 0.5, -1, out=t)) == 1
        if dtype not in COMPLEX:
            assert launched(gpu, lambda t=t: gc.clip_by_norm(t, 0.5, ())) == 1


@ordered
def test_clip_by_value_takes_one_launch(gpu, dtype):
    t, low, high = (gpu.array(sample((40, 50), dtype, k)) for k in range(3))
    for call in (
        lambda: gc.clip_by_value(t, 1, 2),
        lambda: gc.clip_by_value(t, low, high),
        lambda: gc.clip_by_value(t, low[0], None),
        lambda: gc.clip_by_value(t, 1, high[:, :1]),
        lambda: gc.clip_by_value(t, 1, high, out=t),
        lambda: gc.clip_by_value(t.T, low.T, 5),
    ):
        assert launched(gpu, call) == 1


@pytest.mark.parametrize(
    ("dtype", "multiprocessors"), thinned(itertools.product([np.float32, np.complex128], [1, 200]), 3)
)
def test_the_size_of_the_device_does_not_change_a_bit(gpu, dtype, multiprocessors):
    gpu.multiprocessors = multiprocessors
    for shape in ((7, 41), (40_000,), (2, 9000), (9000, 2), (300, 70)):
        x = spread(shape, dtype)
        for name, call in calls_for(x, {k: EVERY[k] for k in EVERY if "3" not in k}).items():
            check(gpu, call, x, told=(shape, name))
    t_list = [sample((k % 700,), dtype, k) for k in range(120)]
    check(gpu, lambda ts: gc.clip_by_global_norm(ts, 0.5), t_list)


@gpu_arrays.on_host  # a GPU has the order that it has
@pytest.mark.parametrize("dtype", thinned([np.float16, np.float32, np.complex128], 2))
def test_the_order_in_which_threads_run_does_not_change_a_bit(gpu, dtype, monkeypatch):
    monkeypatch.setattr(gpu_arrays.shim(), "backward", True)
    for shape in thinned(((7, 41), (7000,), (2, 9000), (9000, 2), (300, 70), (70, 300), (2, 30, 40)), 2):
        x = spread(shape, dtype)
        for name, call in calls_for(x).items():
            check(gpu, call, x, told=(shape, name))


@gpu_arrays.on_host
def test_the_order_in_which_threads_run_does_not_change_a_bit_of_lists(gpu, monkeypatch):
    """Of more chunks than are put together at a time, so that memory of a block of threads is used again."""
    monkeypatch.setattr(gpu_arrays.shim(), "backward", True)
    many = [spread((k % 5 + 1,), np.float64, k) for k in range(600)]
    mixed = [sample((k % 5 + 1,), NORMED[k % len(NORMED)], k) for k in range(300)]
    long = [sample((140_000,), np.float16, k) for k in range(2)]
    for p in thinned((1, 2, math.inf, 3, 3.7), 2):
        for t_list in (many, many + long, mixed, mixed + long):
            check(gpu, lambda ts, p=p: gc.global_norm(ts, ord=p), t_list, told=p)
    huge = [np.full(5, 1.7e308 + 1.7e308j), *many]
    for p in thinned((1, math.inf, 3.7), 2):
        check(gpu, lambda ts, p=p: gc.clip_by_global_norm(ts, 1e300, ord=p), huge, told=p)


def test_more_long_slices_than_threads(gpu):
    """Each has its norm from one thread of the last block of threads."""
    gpu.multiprocessors = 200
    x = np.tile(sample((1, 16 * 2048), np.int64), (300, 1)) // (np.arange(300)[:, None] + 1)
    check(gpu, lambda t: gc.norm(t, 1, 1), x)
    x = np.tile(sample((1, 16 * 2048)), (300, 1)) * np.arange(300, dtype=np.float32)[:, None]
    check(gpu, lambda t: [gc.norm(t, 3.7, 1), gc.clip_by_norm(t, 1000.0, 1)], x)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_long_slices_beyond_float64(gpu, dtype):
    """Few, so that each is cut as an array of a list is."""
    for size in (1e-310, 1e-305, 1e-150, 1e307):
        x = sample((2, 33_000), dtype) * dtype(size)
        for p in (1, 2, math.inf, 3, 3.7):
            check(gpu, lambda t, p=p: gc.norm(t, p, 1), x, told=(size, p))
        check(gpu, lambda t, c=size: gc.clip_by_norm(t, c, 1), x, told=size)


def test_long_columns_beyond_float64(gpu):
    """Each is added up again, in chunks of blocks."""
    for size in (1e-200, 1e200):
        x = spread((140_000, 4), np.float32).astype(np.float64) * size
        check(gpu, lambda t, c=size: gc.clip_by_norm(t, c, 0), x, told=size)
        check(gpu, lambda t: gc.norm(t, 2, 0), x, told=size)


def test_the_same_call_again_gives_the_same(gpu):
    """State that is kept from the first call may be used, but for other arrays and limits."""
    for _ in range(3):
        for n in (5, 70):
            t_list = [sample((k + 1,), np.float32, n + k) for k in range(n)]
            for limit in (0.5, 2.0, 1e9):
                check(gpu, lambda ts, c=limit: gc.clip_by_global_norm(ts, c), t_list, told=(n, limit))
    same = gpu.arrays(t_list)
    first, _ = gc.clip_by_global_norm(same, 0.5)
    kept = [gpu.get(a).copy() for a in first]
    again, _ = gc.clip_by_global_norm(same, 0.5)
    assert all(oracle.same_bits(gpu.get(a), b) for a, b in zip(again, kept, strict=True))
    assert all(oracle.same_bits(gpu.get(a), b) for a, b in zip(first, kept, strict=True))


# ---- anything at all


@st.composite
def tensors(draw, dtype):
    """An array of the dtype in one of the layouts of device arrays."""
    dtype, shape = np.dtype(dtype), draw(draws.shapes())
    pool = draw(draws.values(dtype, finite=draw(st.booleans())))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = np.asarray(rng.choice(pool, size=shape), dtype=dtype).reshape(shape)
    if x.ndim and x.shape[0] > 1 and draw(st.integers(0, 5)) == 0:
        x = np.broadcast_to(x[:1], x.shape)
    return LAYOUTS[draw(st.sampled_from([name for name in LAYOUTS if fits(name, x)]))](x)


drawn = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
VECTOR_ORDS = [*(p for p in ORDS), 1e-3, np.float32(2.5)]


@dtypes
@drawn
@given(data=st.data())
def test_any_clip(gpu, dtype, data):
    t = data.draw(tensors(dtype), label="t")
    axes = data.draw(draws.axes_of(t.ndim), label="axes")
    limit = data.draw(draws.limits(oracle.mp.mpf(gc.norm(t))), label="clip_norm")
    p = data.draw(st.sampled_from([p for p in VECTOR_ORDS if not isinstance(p, str)]), label="ord")
    check(gpu, lambda t: gc.clip_by_norm(t, limit, axes), t)
    check(gpu, lambda t: gc.clip_by_average_norm(t, limit), t)
    others = [data.draw(tensors(data.draw(st.sampled_from(SCALED)))) for _ in range(data.draw(st.integers(0, 2)))]
    check(gpu, lambda ts: gc.clip_by_global_norm(ts, limit, ord=p), [t, None, *others])


@normed
@drawn
@given(data=st.data())
def test_any_norm(gpu, dtype, data):
    t = data.draw(tensors(dtype), label="tensor")
    axis = data.draw(draws.axes_of(t.ndim, some=True), label="axis")
    matrices = axis is not None and len(draws.ints(axis)) == 2
    p = data.draw(st.sampled_from(["fro", 1, math.inf] if matrices else VECTOR_ORDS), label="ord")
    keepdims = data.draw(st.sampled_from([None, False, True]), label="keepdims")
    check(gpu, lambda t: gc.norm(t, p, axis, keepdims), t)
    if dtype in SCALED:
        check(gpu, lambda t: gc.normalize(t, p, axis), t)


@pytest.mark.sampled
@ordered
@drawn
@given(data=st.data())
def test_any_clip_by_value(gpu, dtype, data):
    t = data.draw(tensors(dtype), label="t")

    def bound():
        kinds = ORDERED if oracle.is_float(dtype) else INTEGERS
        kind = data.draw(st.sampled_from([dtype, *kinds]), label="dtype of a bound")
        if data.draw(st.integers(0, 4)) == 0:
            return None
        shape = tuple(data.draw(st.sampled_from([1, n])) for n in t.shape)[data.draw(st.integers(0, t.ndim)) :]
        pool = data.draw(draws.values(np.dtype(kind), finite=False), label="values of a bound")
        if not shape and oracle.is_float(kind):  # a single number goes through float64, which has quiet NaNs alone
            pool = np.where(oracle.is_nan(pool), np.array(np.nan, kind), pool)
        return np.resize(pool, shape).reshape(shape).astype(kind)

    low, high = bound(), bound()
    assume(low is not None or high is not None)
    with np.errstate(invalid="ignore"):
        clipped(gpu, t, low, high)
