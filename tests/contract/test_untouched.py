"""An error leaves every output as it was, and so does a call with nothing to do."""

import re

import gradclip as gc
import hostile
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from oracle import BF16


class Raises:
    def __array__(self, dtype=None, copy=None):
        raise hostile.Stop


def frozen(x):
    x.flags.writeable = False
    return x


def slices(n=4):
    return gc.IndexedSlices(np.full((2, n), 3.0), np.array([1, 0]), (5, n))


FIFTH = {
    "dtype of the tensor": lambda t, o: ([np.arange(4)], [o]),
    "tensor of bools": lambda t, o: ([np.ones(4, dtype=bool)], [o]),
    "tensor of longdoubles": lambda t, o: ([np.ones(4, dtype=np.longdouble)], [o]),
    "hostile tensor": lambda t, o: ([Raises()], [o]),
    "number too deep": lambda t, o: ([[[[Raises()]]]], [o]),
    "ragged tensor": lambda t, o: ([[[1.0], [1.0, 2.0]]], [o]),
    "masked tensor": lambda t, o: ([np.ma.ones(4)], [o]),
    "tensor of strings": lambda t, o: ([["a"] * 4], [o]),
    "dtype of out": lambda t, o: ([t], [o.astype(np.float32)]),
    "dtype of out, of the same size": lambda t, o: ([t], [o.astype(np.complex64)]),
    "out of bfloat16": lambda t, o: ([t], [o.astype(BF16)]),
    "byte order and dtype of out": lambda t, o: ([t], [o.astype(">c16")]),
    "shape of out": lambda t, o: ([t], [o[:3]]),
    "dimensions of out": lambda t, o: ([t], [o[:, None]]),
    "read-only out": lambda t, o: ([t], [frozen(o)]),
    "masked out": lambda t, o: ([t], [np.ma.ones(4)]),
    "no array": lambda t, o: ([t], [[0.0] * 4]),
    "overlap with itself": lambda t, o: ([t], [as_strided(o, (4,), (0,))]),
    "overlap with another": lambda t, o: ([t, t], [o, o[::-1]]),
    "overlap of one byte": lambda t, o: ([t, t[:3]], [o, np.frombuffer(o.data, np.uint8)[1:25].view(np.float64)]),
    "an array for None": lambda t, o: ([None], [o]),
    "fewer outputs": lambda t, o: ([t, t], [o]),
    "more outputs": lambda t, o: ([t], [o, o]),
    "slices for an array": lambda t, o: ([t], [slices()]),
    "an array for slices": lambda t, o: ([slices()], [o]),
    "other indices": lambda t, o: ([slices()], [gc.IndexedSlices(np.ones((2, 4)), [0, 1], (5, 4))]),
    "other dense_shape": lambda t, o: ([slices()], [gc.IndexedSlices(np.ones((2, 4)), [1, 0], (6, 4))]),
    "slices of a read-only array": lambda t, o: (
        [slices()],
        [gc.IndexedSlices(frozen(np.ones((2, 4))), [1, 0], (5, 4))],
    ),
    "slices that overlap themselves": lambda t, o: (
        [slices()],
        [gc.IndexedSlices(as_strided(o, (2, 4), (0, 8)), [1, 0], (5, 4))],
    ),
}
NAMES_NO_PLACE = {"hostile tensor", "number too deep", "fewer outputs", "more outputs"}
ARGUMENTS = {
    "clip_norm": {"clip_norm": -1.0},
    "clip_norm of NaN": {"clip_norm": np.nan},
    "clip_norm of two": {"clip_norm": [1.0, 2.0]},
    "hostile clip_norm": {"clip_norm": Raises()},
    "use_norm": {"use_norm": -1.0},
    "use_norm of a string": {"use_norm": "1"},
    "ord": {"ord": -2},
    "ord of a string": {"ord": "fro"},
    "name": {"name": 5},
}


def four(of_slices, in_place):
    make = slices if of_slices else lambda: np.full(4, 3.0)
    t_list = [make() for _ in range(4)]
    return t_list, t_list if in_place else [make() for _ in range(4)]


def values(entries):
    return [x.values if isinstance(x, gc.IndexedSlices) else x for x in entries]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("of_slices", [False, True])
def test_an_error_about_the_fifth_tensor_leaves_the_first_four_untouched(of_slices, in_place):
    for kind, make in FIFTH.items():
        t_list, outs = four(of_slices, in_place)
        t, o = make(np.full(4, 3.0), np.full(4, 3.0))
        arrays = values([*t_list, *outs, *(x for x in o if isinstance(x, (np.ndarray, gc.IndexedSlices)))])
        before = [x.tobytes() for x in arrays]
        with pytest.raises((TypeError, ValueError, hostile.Stop)) as error:
            gc.clip_by_global_norm([*t_list, *t], 1.0, out=[*outs, *o])
        assert kind in NAMES_NO_PLACE or re.search(r"\b(t_list|out)\[4\]", str(error.value)), kind
        assert [x.tobytes() for x in arrays] == before, kind


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("of_slices", [False, True])
def test_an_error_about_another_argument_leaves_all_untouched(of_slices, in_place):
    for kind, arguments in ARGUMENTS.items():
        t_list, outs = four(of_slices, in_place)
        with pytest.raises((TypeError, ValueError, hostile.Stop)):
            gc.clip_by_global_norm(t_list, **{"clip_norm": 1.0, **arguments}, out=outs)
        assert all((x == 3).all() for x in values([*t_list, *outs])), kind


def test_the_two_tests_above_would_see_a_write():
    for of_slices in (False, True):
        t_list, outs = four(of_slices, in_place=False)
        gc.clip_by_global_norm(t_list, 1.0, out=outs)
        assert not any((x == 3).any() for x in values(outs))


@pytest.mark.parametrize("kind", ["array", "memmap", "view of bytes"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_read_only_out_is_a_value_error_of_each_function(kind, in_place, tmp_path):
    t = np.array([[3.0, 4.0], [6.0, 8.0]])
    t.tofile(tmp_path / "file")
    made = {
        "array": lambda: frozen(t.copy()),
        "memmap": lambda: np.memmap(tmp_path / "file", np.float64, "r", shape=(2, 2)),
        "view of bytes": lambda: np.frombuffer(t.tobytes()).reshape(2, 2),
    }[kind]
    out = made()
    x = out if in_place else t
    rows = gc.IndexedSlices(x, [0, 1])
    rows_out = gc.IndexedSlices(out, rows.indices)
    for call in (
        lambda: gc.clip_by_value(x, -1, 1, out=out),
        lambda: gc.clip_by_value(x, -np.ones((2, 2)), None, out=out),
        lambda: gc.clip_by_value(rows, -1, 1, out=rows_out),
        lambda: gc.clip_by_norm(x, 1.0, out=out),
        lambda: gc.clip_by_norm(x, 1.0, axes=0, out=out),
        lambda: gc.clip_by_norm(x, 1.0, axes=1, out=out),
        lambda: gc.clip_by_norm(x, 1.0, axes=(), out=out),
        lambda: gc.clip_by_norm(x, 1e9, out=out),
        lambda: gc.clip_by_norm(rows, 1.0, out=rows_out),
        lambda: gc.clip_by_average_norm(x, 0.1, out=out),
        lambda: gc.clip_by_global_norm([x], 1.0, out=[out]),
        lambda: gc.clip_by_global_norm([rows], 1.0, out=[rows_out]),
        lambda: gc.normalize(x, out=out),
        lambda: gc.normalize(x, 2, (0, 1), out=out),
    ):
        with pytest.raises(ValueError, match="found a read-only array"):
            call()
    assert out.tolist() == t.tolist()
    assert np.fromfile(tmp_path / "file").tolist() == t.ravel().tolist()
