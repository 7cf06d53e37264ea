"""The `out` argument: allowed outputs, overlaps, and calls that must write nothing."""

import os
import subprocess
import sys
import textwrap

import gradclip as gc
import layouts
import numpy as np
import pytest
from calls import ALONG, WITH_OUT, cast, looped, suits
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from oracle import INTEGERS, NORMED, SCALED, same_bits
from overlaps import VIEWS, WINDOWS, window

singles = pytest.mark.parametrize("name", WITH_OUT)
singles_and_dtypes = pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name in WITH_OUT for dtype in SCALED if suits(name, dtype)]
)


def sample(shape, dtype=np.float64):
    return cast(np.random.default_rng(1).standard_normal(shape), dtype)


# ---- results, and where they are written


@singles_and_dtypes
@looped("shape", [(7,), (5, 9), (3, 4, 5), (0, 3)])
def test_out_is_returned_and_holds_the_result(name, dtype, shape):
    x = sample(shape, dtype)
    out = np.full_like(x, 99)
    result = WITH_OUT[name](x, out)
    assert result is out
    assert same_bits(out, WITH_OUT[name](x))
    assert same_bits(x, sample(shape, dtype))


@singles_and_dtypes
@looped("layout", layouts.WRITEABLE)
def test_out_may_have_any_layout_and_byte_order(name, dtype, layout):
    x = sample((4, 6), dtype)
    out = layouts.WRITEABLE[layout](np.full_like(x, 99))
    result = WITH_OUT[name](x, out)
    assert result is out
    assert same_bits(np.asarray(out), WITH_OUT[name](x))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", SCALED)
@looped("axes", [None, 0, 1, 2, (0, 1), (1, 2), (0, 2), ()])
def test_the_layout_of_out_does_not_change_a_bit(dtype, axes):
    """For an input of any layout, along any axes: the order of a sum depends on the input alone."""
    for shape in ((3, 5, 4), (40, 2, 3), (1, 33, 2)):
        x = sample(shape, dtype)
        outs = {name: layout(np.full_like(x, 99)) for name, layout in layouts.WRITEABLE.items()}
        for name, layout in layouts.WRITEABLE.items():
            t = layout(x)
            clipped = gc.clip_by_norm(t, 0.3, axes)
            for other, out in outs.items():
                assert gc.clip_by_norm(t, 0.3, axes, out=out) is out
                assert same_bits(np.asarray(out), clipped), (shape, name, other)
            if axes == ():
                continue
            unit, norm = gc.normalize(t, 2 if axes is None or isinstance(axes, int) else "fro", axes)
            for other, out in outs.items():
                again = gc.normalize(t, 2 if axes is None or isinstance(axes, int) else "fro", axes, out=out)
                assert same_bits(np.asarray(out), unit), (shape, name, other)
                assert same_bits(again[1], norm)


@pytest.mark.parametrize("dtype", INTEGERS)
@looped("layout", layouts.WRITEABLE)
def test_out_of_integers_in_any_layout(dtype, layout):
    x = np.arange(24, dtype=dtype).reshape(4, 6)
    out = layouts.WRITEABLE[layout](np.full_like(x, 99))
    assert gc.clip_by_value(x, 3, 17, out=out) is out
    assert same_bits(np.asarray(out), gc.clip_by_value(x, 3, 17))
    aliased = layouts.WRITEABLE[layout](x)
    assert gc.clip_by_value(aliased, 3, 17, out=aliased) is aliased
    assert same_bits(np.asarray(aliased), gc.clip_by_value(x, 3, 17))


@singles_and_dtypes
@looped("layout", layouts.WRITEABLE)
def test_out_may_be_the_input_itself(name, dtype, layout):
    x = sample((4, 6), dtype)
    aliased = layouts.WRITEABLE[layout](x)
    expected = WITH_OUT[name](layouts.WRITEABLE[layout](x))
    assert WITH_OUT[name](aliased, aliased) is aliased
    assert same_bits(np.asarray(aliased), expected)


@singles
def test_out_may_be_another_view_of_the_same_memory(name):
    x = sample((4, 6))
    expected = WITH_OUT[name](x.copy())
    out = x[...]
    assert WITH_OUT[name](x, out) is out
    assert same_bits(x, expected)


@singles_and_dtypes
def test_out_of_zero_dimensions(name, dtype):
    if name not in ALONG:
        x, out = np.array(-3.0).astype(dtype), np.array(7.0).astype(dtype)
        assert WITH_OUT[name](x, out) is out
        assert same_bits(out, WITH_OUT[name](x))
        expected = WITH_OUT[name](x.copy())
        WITH_OUT[name](x, x)
        assert same_bits(x, expected)


def test_the_elements_between_those_of_out_are_not_written():
    for layout in (slice(1, 40, 3), slice(38, 0, -3)):
        room = np.full(40, 99.0)
        out = room[layout]
        gc.clip_by_norm(sample(out.size), 0.5, out=out)
        inside = np.zeros(40, dtype=bool)
        inside[layout] = True
        assert (room[~inside] == 99).all()
        assert (room[inside] != 99).all()


@pytest.mark.parametrize("dtype", SCALED)
def test_the_other_fields_of_a_record_are_not_written(dtype):
    records = np.zeros(50, dtype=[("before", "u1"), ("x", dtype), ("after", "u2")])
    records["before"], records["after"] = 0xAB, 0xCDEF
    records["x"] = sample(50, dtype)
    expected = gc.clip_by_norm(records["x"].copy(), 0.5)
    gc.clip_by_norm(records["x"], 0.5, out=records["x"])
    assert same_bits(records["x"].copy(), expected)
    assert (records["before"] == 0xAB).all()
    assert (records["after"] == 0xCDEF).all()


def test_the_returned_list_is_new_and_its_entries_are_the_out_arrays():
    t_list = [sample(5), None, sample((2, 3))]
    outs = (np.empty(5), None, np.empty((2, 3)))
    expected, norm = gc.clip_by_global_norm(t_list, 0.5)
    clipped, reported = gc.clip_by_global_norm(t_list, 0.5, out=outs)
    assert type(clipped) is list
    assert clipped[0] is outs[0]
    assert clipped[1] is None
    assert clipped[2] is outs[2]
    assert reported == norm
    assert all(same_bits(a, b) for a, b in zip(clipped[::2], expected[::2], strict=True))


def test_a_list_may_be_its_own_out():
    t_list = [sample(5), None, sample((2, 3))]
    expected, _ = gc.clip_by_global_norm([None if t is None else t.copy() for t in t_list], 0.5)
    clipped, _ = gc.clip_by_global_norm(t_list, 0.5, out=t_list)
    assert clipped is not t_list
    for mine, given_array, right in zip(clipped, t_list, expected, strict=True):
        assert mine is given_array
        assert mine is None or same_bits(mine, right)


def test_out_of_normalize_is_its_first_result():
    x = sample((3, 4))
    out = np.empty_like(x)
    expected, norms = gc.normalize(x, axis=1)
    first, second = gc.normalize(x, axis=1, out=out)
    assert first is out
    assert same_bits(out, expected)
    assert same_bits(second, norms)


@pytest.mark.parametrize("dtype", SCALED)
def test_out_of_none_is_no_out(dtype):
    x = sample(6, dtype)
    assert same_bits(gc.clip_by_norm(x, 0.5, out=None), gc.clip_by_norm(x, 0.5))
    assert gc.clip_by_norm(x, 0.5, out=None) is not x


# ---- overlaps


@pytest.mark.sampled
@singles_and_dtypes
@looped("source", WINDOWS)
def test_an_overlap_gives_what_disjoint_memory_would_give(name, dtype, source):
    for target in WINDOWS:
        room = sample(60, dtype)
        t, out = room[source], room[target]
        untouched = np.ones(60, dtype=bool)
        untouched[target] = False
        before, expected = room.copy(), WITH_OUT[name](room.copy()[source])
        assert WITH_OUT[name](t, out) is out
        assert same_bits(out, expected), target
        assert same_bits(room[untouched], before[untouched]), target


@singles
@given(source=VIEWS, target=VIEWS, dtype=st.sampled_from(SCALED))
def test_two_dimensional_overlaps_of_any_offset_and_stride(name, source, target, dtype):
    room = sample((12, 12), dtype if suits(name, dtype) else np.float64)
    out = window(room, target)
    expected = WITH_OUT[name](window(room.copy(), source))
    WITH_OUT[name](window(room, source), out)
    assert same_bits(out, expected)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", SCALED)
@pytest.mark.parametrize("shift", [1, -1, 17, -4096])
def test_a_long_overlap_with_many_threads(dtype, shift, threads):
    n = 12_000_000 // np.dtype(dtype).itemsize
    room = sample(n + abs(shift), dtype)
    t, out = (room[:n], room[abs(shift) :]) if shift > 0 else (room[abs(shift) :], room[:n])
    expected = gc.clip_by_norm(t.copy(), 0.5)
    with threads(4):
        gc.clip_by_norm(t, 0.5, out=out)
    assert same_bits(out, expected)


@pytest.mark.parametrize("dtype", SCALED)
def test_an_overlap_of_bytes_that_are_not_whole_elements(dtype):
    size = np.dtype(dtype).itemsize
    raw = np.zeros(size * 21 + 3, dtype=np.uint8)
    t, out = raw[: size * 20].view(dtype), raw[size // 2 + 1 :][: size * 20].view(dtype)
    t[...] = sample(20, dtype)
    expected = gc.clip_by_norm(t.copy(), 0.5)
    gc.clip_by_norm(t, 0.5, out=out)
    assert same_bits(out, expected)


def test_outputs_that_are_each_others_inputs():
    a, b, c = sample(9), sample(9) * 3, sample((3, 3)) - 1
    expected, _ = gc.clip_by_global_norm([a.copy(), b.copy(), c.copy()], 0.5)
    gc.clip_by_global_norm([a, b, c], 0.5, out=[b, c.reshape(9), a.reshape(3, 3)])
    assert same_bits(b, expected[0])
    assert same_bits(c.reshape(9), expected[1])
    assert same_bits(a.reshape(3, 3), expected[2])


@pytest.mark.parametrize("limit", [0.5, 1e9])
def test_outputs_that_overlap_the_inputs_of_their_neighbours(limit):
    room = sample(50)
    t_list = [room[0:10], room[10:20], room[20:30], room[30:40]]
    expected, _ = gc.clip_by_global_norm([t.copy() for t in t_list], limit)
    outs = [room[5:15], room[15:25], room[25:35], room[35:45]]
    gc.clip_by_global_norm(t_list, limit, out=outs)
    assert all(same_bits(o, e) for o, e in zip(outs, expected, strict=True))


def test_outputs_over_the_inputs_of_other_dtypes():
    """One buffer, read as two dtypes: writing one output overwrites the input of the other."""
    for first in SCALED:
        for second in SCALED:
            size = 8 * max(np.dtype(first).itemsize, np.dtype(second).itemsize)
            rooms = [np.zeros(size, np.uint8) for _ in range(2)]
            a, b = rooms[0].view(first), rooms[1].view(second)
            a[...], b[...] = sample(a.size, first), sample(b.size, second) * second(3)
            expected, norm = gc.clip_by_global_norm([a.copy(), b.copy()], 0.5)
            outs = [rooms[1].view(first), rooms[0].view(second)]
            clipped, reported = gc.clip_by_global_norm([a, b], 0.5, out=outs)
            assert reported == norm
            assert all(c is o and same_bits(o, e) for c, o, e in zip(clipped, outs, expected, strict=True))


def test_one_input_twice_is_read_before_it_is_written():
    a, other = sample(9), np.empty(9)
    expected, norm = gc.clip_by_global_norm([a.copy(), a.copy()], 0.5)
    _, reported = gc.clip_by_global_norm([a, a], 0.5, out=[a, other])
    assert reported == norm
    assert same_bits(a, expected[0])
    assert same_bits(other, expected[1])


def test_a_bound_may_overlap_out():
    room = sample(30)
    t, low, high = room[:10].copy(), room[10:20] - 5, np.abs(room[:10])
    expected = gc.clip_by_value(t, low, high)
    high_and_out = high.copy()
    gc.clip_by_value(t, low, high_and_out, out=high_and_out)
    assert same_bits(high_and_out, expected)
    room[:10] = high
    expected = gc.clip_by_value(t, None, room[:10].copy())
    gc.clip_by_value(t, None, room[:10], out=room[3:13])
    assert same_bits(room[3:13], expected)


def test_interleaved_outputs_that_share_no_byte_are_fine():
    room = np.zeros((2, 40))
    records = np.zeros(20, dtype=[("a", "f8"), ("pad", "u1"), ("b", "f8")])
    pairs = [
        (room[0, ::2], room[0, 1::2]),
        (room[0, ::2], room[0, 39::-2]),
        (room[0, :20], room[0, 20:]),
        (records["a"], records["b"]),
    ]
    t_list = [sample(20), sample(20) + 1]
    expected, _ = gc.clip_by_global_norm(t_list, 0.5)
    for outs in pairs:
        gc.clip_by_global_norm(t_list, 0.5, out=outs)
        assert same_bits(outs[0].copy(), expected[0])
        assert same_bits(outs[1].copy(), expected[1])


def test_interleaved_columns_are_fine():
    room = np.zeros((8, 6))
    t_list = [sample((8, 3)), sample((8, 3)) + 1]
    expected, _ = gc.clip_by_global_norm(t_list, 0.5)
    gc.clip_by_global_norm(t_list, 0.5, out=[room[:, ::2], room[:, 1::2]])
    assert same_bits(room[:, ::2], expected[0])
    assert same_bits(room[:, 1::2], expected[1])


ROOM = np.zeros(64)
SHARING = {
    "the same array": lambda: (ROOM[:10], ROOM[:10]),
    "one element": lambda: (ROOM[:10], ROOM[9:19]),
    "one byte": lambda: (ROOM[:10], ROOM.view(np.uint8)[79:159].view(np.float64)),
    "opposite directions": lambda: (ROOM[:10], ROOM[18:8:-1]),
    "crossing strides": lambda: (ROOM[0:30:3], ROOM[0:20:2]),
    "one inside the other": lambda: (ROOM[4:14], ROOM[0:20:2]),
}


@pytest.mark.parametrize("pair", SHARING)
def test_two_outputs_that_share_a_byte_are_refused(pair):
    ROOM[...] = 7
    with pytest.raises(ValueError, match=r"clip_by_global_norm: out"):
        gc.clip_by_global_norm([sample(10), sample(10)], 0.5, out=list(SHARING[pair]()))
    assert (ROOM == 7).all()


OVERLAPPING = {
    "stride 0": lambda: as_strided(ROOM, (10,), (0,)),
    "rows that share": lambda: as_strided(ROOM, (2, 5), (8, 8)),
    "half an element": lambda: as_strided(ROOM, (10,), (4,)),
    "stride 0 inside": lambda: as_strided(ROOM, (5, 2), (16, 0)),
}


@pytest.mark.parametrize("kind", OVERLAPPING)
@singles
def test_an_output_that_overlaps_itself_is_refused(name, kind):
    ROOM[...] = 7
    out = OVERLAPPING[kind]()
    with pytest.raises(ValueError, match="out"):
        WITH_OUT[name](sample(out.shape), out)
    assert (ROOM == 7).all()


def test_a_stride_of_0_over_one_element_is_no_overlap():
    out = as_strided(np.zeros(4), (1, 4), (0, 8))
    assert gc.clip_by_norm(sample((1, 4)), 0.5, out=out) is out
    assert same_bits(out, gc.clip_by_norm(sample((1, 4)), 0.5))


# ---- refused, and nothing written


@singles
def test_a_wrong_shape_or_read_only_out_is_a_value_error(name):
    x = sample((3, 4))
    for out in (np.zeros((4, 3)), np.zeros(12), np.zeros((1, 3, 4)), np.zeros((3, 1)), np.zeros(())):
        with pytest.raises(ValueError, match="out") as error:
            WITH_OUT[name](x, out)
        assert "(3, 4)" in str(error.value)
        assert (out == 0).all()
    with pytest.raises(ValueError, match=r"out.*(read-only|readonly|writ)"):
        WITH_OUT[name](x, layouts.read_only(x))


@singles
def test_a_wrong_dtype_or_type_of_out_is_a_type_error(name):
    x = sample((3, 4))
    masked = np.ma.masked_array(np.zeros((3, 4)), mask=False)
    wrong = [
        np.zeros((3, 4), dtype=np.float32),
        np.zeros((3, 4), dtype=np.int64),
        np.zeros((3, 4), dtype=complex),
        np.zeros((3, 4), dtype=np.float16),
        np.zeros((3, 4), dtype=bool),
        np.zeros((3, 4), dtype=object),
        np.zeros((3, 4), dtype=np.longdouble),
        np.zeros((3, 4), dtype="V8"),
        [[0.0] * 4] * 3,
        "out",
        3.0,
        masked,
    ]
    for out in wrong:
        with pytest.raises(TypeError, match="out"):
            WITH_OUT[name](x, out)
    assert (masked.data == 0).all()


@pytest.mark.parametrize("dtype", SCALED)
def test_an_out_of_any_other_dtype_is_a_type_error(dtype):
    """Also for one of the same item size: bfloat16 for float16, complex64 for float64."""
    x = sample((3, 4), dtype)
    for other in [*NORMED, np.longdouble, "u2", "V2", f"V{x.itemsize}"]:
        if np.dtype(other) == np.dtype(dtype):
            continue
        out = np.zeros((3, 4), dtype=other)
        for name, call in WITH_OUT.items():
            if suits(name, dtype):
                with pytest.raises(TypeError, match=rf"out.*{np.dtype(dtype).name}"):
                    call(x, out)
        assert not out.view(np.uint8).any()


def test_out_of_a_list_has_its_length_and_its_nones():
    t_list = [sample(3), None, sample(4)]
    for out in ([np.zeros(3), None], [np.zeros(3), None, np.zeros(4), None], []):
        with pytest.raises(ValueError, match="out"):
            gc.clip_by_global_norm(t_list, 0.5, out=out)
    for out in ([np.zeros(3), np.zeros(2), np.zeros(4)], [None, np.zeros(3), None]):
        with pytest.raises((TypeError, ValueError), match="out"):
            gc.clip_by_global_norm(t_list, 0.5, out=out)
    for out in (np.zeros((3, 4)), 3.0, "abc", {0: 1}):
        with pytest.raises(TypeError, match="out"):
            gc.clip_by_global_norm(t_list, 0.5, out=out)


def test_none_in_out_makes_a_new_array():
    t_list = [sample(3), None, np.float32(4.0), sample(4)]
    own = np.zeros(4)
    expected, norm = gc.clip_by_global_norm(t_list, 0.5)
    for out in ([None, None, None, own], (None, None, None, own)):
        clipped, found = gc.clip_by_global_norm(t_list, 0.5, out=out)
        assert found == norm
        assert clipped[1] is None
        assert clipped[3] is own
        for x, y in zip(clipped, expected, strict=True):
            assert (x is None and y is None) or (x.dtype == y.dtype and x.tobytes() == y.tobytes())
        assert not np.shares_memory(clipped[0], t_list[0])


BAD_CALLS = {
    "clip_norm": lambda x: gc.clip_by_norm(x, -1.0, out=x),
    "axes": lambda x: gc.clip_by_norm(x, 1e-3, axes=7, out=x),
    "name": lambda x: gc.clip_by_norm(x, 1e-3, name=3, out=x),
    "use_norm": lambda x: gc.clip_by_global_norm([x], 1e-3, use_norm=-1, out=[x]),
    "ord": lambda x: gc.clip_by_global_norm([x], 1e-3, ord=-2, out=[x]),
    "clip_value_max": lambda x: gc.clip_by_value(x, 0.9, "1", out=x),
    "bound shape": lambda x: gc.clip_by_value(x, 0.9, np.zeros(3), out=x),
    "axis": lambda x: gc.normalize(x, axis=(0, 0), out=x),
}


@pytest.mark.parametrize("argument", BAD_CALLS)
def test_nothing_is_written_before_every_argument_is_checked(argument):
    x = sample(8)
    with pytest.raises((TypeError, ValueError)):
        BAD_CALLS[argument](x)
    assert same_bits(x, sample(8))


# ---- in place and nothing to do


PROTECTED = """
    import ctypes, mmap, sys
    import gradclip as gc
    import ml_dtypes
    import numpy as np

    PAGES = int(sys.argv[1]) * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

    def protected(dtype, value, skipped=0):
        "A writeable array whose pages the kernel will not let anyone write, some bytes after their begin."
        memory, size = mmap.mmap(-1, PAGES), np.dtype(dtype).itemsize
        a = np.frombuffer(memory, dtype, PAGES // size - 20, skipped)
        a[:] = value
        a[:3] = 0
        if libc.mprotect(a.ctypes.data - skipped, PAGES, mmap.PROT_READ):
            sys.exit("mprotect failed")
        assert a.flags.writeable
        return a

    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64, np.complex128):
        x, z, u = protected(dtype, 0.5), protected(dtype, 0), protected(dtype, 1)
        rows, n = x.reshape(20, -1), protected(dtype, np.nan).reshape(20, -1)
        b, odd = protected(x.dtype.newbyteorder("S"), 0.5), protected(dtype, 0.5, 1)
        i, back = protected(np.int64, 7), protected(np.int64, 7)[::-1]
        s, halves = gc.IndexedSlices(x.reshape(20, -1), np.arange(20)), [x[::2], x[1::2]]
        calls = {
            "clip_by_value": lambda: gc.clip_by_value(x, -1, 1, out=x),
            "clip_by_value with arrays": lambda: gc.clip_by_value(x, x.copy(), x + 1, out=x),
            "clip_by_value of slices": lambda: gc.clip_by_value(s, -1, 1, out=s),
            "clip_by_norm": lambda: gc.clip_by_norm(x, 1e9, out=x),
            "clip_by_norm to the norm": lambda: gc.clip_by_norm(x, gc.norm(x), out=x),
            "clip_by_norm of rows": lambda: gc.clip_by_norm(x.reshape(20, -1), 1e9, axes=1, out=x.reshape(20, -1)),
            "clip_by_norm of columns": lambda: gc.clip_by_norm(x.reshape(20, -1), 1e9, axes=0, out=x.reshape(20, -1)),
            "clip_by_norm of elements": lambda: gc.clip_by_norm(x, 0.5, axes=(), out=x),
            "clip_by_value swapped": lambda: gc.clip_by_value(b, -1, 1, out=b),
            "clip_by_value unaligned": lambda: gc.clip_by_value(odd, -1, odd + 1, out=odd),
            "clip_by_norm swapped": lambda: gc.clip_by_norm(b, 1e9, out=b),
            "clip_by_norm swapped, of rows": lambda: gc.clip_by_norm(
                b.reshape(20, -1), 1e9, axes=1, out=b.reshape(20, -1)
            ),
            "clip_by_norm unaligned, of rows": lambda: gc.clip_by_norm(
                odd.reshape(-1, 20), 1e9, axes=1, out=odd.reshape(-1, 20)
            ),
            "clip_by_norm unaligned, of columns": lambda: gc.clip_by_norm(
                odd.reshape(20, -1), 1e9, axes=0, out=odd.reshape(20, -1)
            ),
            "clip_by_norm of every second": lambda: gc.clip_by_norm(x[::2], 1e9, out=x[::2]),
            "clip_by_norm of slices": lambda: gc.clip_by_norm(s, 1e9, out=s),
            "clip_by_average_norm": lambda: gc.clip_by_average_norm(x, 1.0, out=x),
            "clip_by_global_norm": lambda: gc.clip_by_global_norm([x, z], 1e9, out=[x, z]),
            "clip_by_global_norm trusted": lambda: gc.clip_by_global_norm([x], 2, 1, out=[x]),
            "clip_by_global_norm of halves": lambda: gc.clip_by_global_norm(halves, 1e9, out=halves),
            "clip_by_norm of zeros to 0": lambda: gc.clip_by_norm(z, 0, out=z),
            "clip_by_norm strict": lambda: gc.clip_by_norm(x, 1e9, strict=True, out=x),
            "clip_by_norm strict of rows": lambda: gc.clip_by_norm(rows, 1e9, axes=1, strict=True, out=rows),
            "clip_by_norm strict of columns": lambda: gc.clip_by_norm(rows, 1e9, axes=0, strict=True, out=rows),
            "clip_by_norm strict of elements": lambda: gc.clip_by_norm(x[:9999], 1, axes=(), strict=True, out=x[:9999]),
            "clip_by_global_norm strict": lambda: gc.clip_by_global_norm([x, z], 1e9, strict=True, out=[x, z]),
            "clip_by_norm kept": lambda: gc.clip_by_norm(n, 1, nonfinite="keep", out=n),
            "clip_by_norm of rows kept": lambda: gc.clip_by_norm(n, 1, axes=1, nonfinite="keep", out=n),
            "clip_by_norm of columns kept": lambda: gc.clip_by_norm(n, 1, axes=0, nonfinite="keep", out=n),
            "clip_by_average_norm kept": lambda: gc.clip_by_average_norm(n, 1e-9, nonfinite="keep", out=n),
            "clip_by_global_norm kept": lambda: gc.clip_by_global_norm([n, x], 1, nonfinite="keep", out=[n, x]),
            "clip_by_global_norm of integers": lambda: gc.clip_by_global_norm(
                [i, u, back], 1, integers="keep", out=[i, None, back]
            ),
            "clip_by_norms": lambda: gc.clip_by_norms([x, n], [1e9, None], out=[x, n]),
            "clip_by_norms kept": lambda: gc.clip_by_norms([n], 1, nonfinite="keep", out=[n]),
            "clip_by_rms": lambda: gc.clip_by_rms(x, 1, out=x),
            "clip_by_rms of rows": lambda: gc.clip_by_rms(rows, 1, 1, out=rows),
            "clip_by_rms of columns": lambda: gc.clip_by_rms(rows, 1, 0, out=rows),
            "clip_by_rms kept": lambda: gc.clip_by_rms(n, 0.1, 1, nonfinite="keep", out=n),
            "clip_by_weight_norm": lambda: gc.clip_by_weight_norm([rows], [rows], 2, out=[rows]),
            "clip_by_weight_norm of rows": lambda: gc.clip_by_weight_norm([rows], [rows], 2, unit_axis=0, out=[rows]),
            "clip_examples": lambda: gc.clip_examples_by_global_norm([rows], 1e9, reduce=None, out=[rows]),
            "clip_examples kept": lambda: gc.clip_examples_by_global_norm(
                [n], 1e9, reduce=None, nonfinite="keep", out=[n]
            ),
            "clip_difference": lambda: gc.clip_difference_by_global_norm([x], [u], 1e9, out=[x]),
            "clip_difference kept": lambda: gc.clip_difference_by_global_norm(
                [n], [rows], 1, nonfinite="keep", out=[n]
            ),
            "clip_difference zero": lambda: gc.clip_difference_by_global_norm(
                [n], [rows], 1, nonfinite="zero", out=[rows]
            ),
            "clip_difference of integers": lambda: gc.clip_difference_by_global_norm(
                [i, x], [i, u], 1e9, integers="keep", out=[i, x]
            ),
            "normalize of zeros": lambda: gc.normalize(z, out=z),
            "normalize of rows of zeros": lambda: gc.normalize(z.reshape(20, -1), axis=1, out=z.reshape(20, -1)),
            "normalize of magnitude 1": lambda: gc.normalize(u, np.inf, out=u),
        }
        for name, call in calls.items():
            if np.dtype(dtype).kind != "c" or not name.startswith("clip_by_value"):
                print(name, np.dtype(dtype), flush=True)
                call()
    for dtype in "bBhHiIqQ":
        x = protected(dtype, 50)
        print("clip_by_value", dtype, flush=True)
        gc.clip_by_value(x, -1, 50, out=x)
    print("done", flush=True)
    if "write" in sys.argv:
        gc.clip_by_value(x, 0, 49, out=x)
"""


def run_protected(*arguments):
    if os.name != "posix":
        pytest.skip("memory is protected with mprotect, which only POSIX systems have")
    command = [sys.executable, "-c", textwrap.dedent(PROTECTED), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("pages", [40, 2000])  # 8 MB are shared between threads
def test_in_place_with_nothing_to_do_nothing_is_written(pages):
    child = run_protected(str(pages))
    assert child.returncode == 0, f"after {child.stdout.splitlines()[-1:]}: {child.returncode} {child.stderr}"
    assert child.stdout.endswith("done\n")


def test_the_test_above_would_see_a_write():
    child = run_protected("40", "write")
    assert child.stdout.endswith("done\n"), child.stderr
    assert child.returncode < 0
