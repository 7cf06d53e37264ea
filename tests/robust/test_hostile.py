"""Hostile or careless callers; each case was a bug once."""

import collections.abc
import math
import pickle
import re
import sys
import threading

import gradclip as gc
import ml_dtypes
import numpy as np
import pytest
from calls import HAS_GIL
from gradclip import _matrix
from hostile import Acts
from oracle import same_bits

# Newer versions of NumPy deprecate an assignment to `shape`; here it is the point.
pytestmark = pytest.mark.filterwarnings("ignore:.*shape.*:DeprecationWarning")


class Reshaper:
    """An array-like whose conversion gives another array another shape, and fills the memory that NumPy freed."""

    def __init__(self, victim, shape):
        self.victim, self.shape, self.kept = victim, shape, []

    def __array__(self, dtype=None, copy=None):
        self.victim.shape = self.shape
        self.kept = [np.zeros((5, 6, 7)) for _ in range(100)]
        return np.ones(())


def test_an_entry_that_reshapes_another_one_crashes_nothing():
    for _ in range(20):
        t = np.ones((2, 3, 4))
        # 24 ones and the 1 of the other entry.
        assert gc.global_norm([t, Reshaper(t, (24,))]) == 5.0


def test_a_bound_that_reshapes_the_tensor_crashes_nothing():
    t = np.full((2, 3, 4), 0.5)
    result = gc.clip_by_value(t, Reshaper(t, (24,)), None)
    assert result.shape == (2, 3, 4)
    assert (result == 1).all()


def test_an_array_resized_during_the_call_is_an_error():
    t = np.ones(1000)

    class Resizer:
        def __array__(self, dtype=None, copy=None):
            t.resize(10**6, refcheck=False)
            return np.ones(())

    with pytest.raises(RuntimeError, match="resized"):
        gc.global_norm([t, Resizer()])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("shape", [(8,), (8, 2)])
@pytest.mark.parametrize(
    "call",
    [
        lambda t, act: gc.global_norm([t, Acts(act, np.ones(()))]),
        lambda t, act: gc.clip_by_norms([t], Lists(act, [1.0])),
    ],
)
def test_an_array_of_another_byte_order_during_the_call_is_an_error(shape, call):
    t = np.ones(shape)[..., 0] if len(shape) > 1 else np.ones(shape)
    swapped = t.dtype.newbyteorder()
    with pytest.raises(RuntimeError, match="resized"):
        call(t, lambda: setattr(t, "dtype", swapped))


@pytest.mark.parametrize("sequence", [list, tuple])
def test_numpy_refuses_to_resize_an_array_of_a_list_during_the_call(sequence):
    """NumPy counts references: a call that held the tuple alone let another thread free the memory that it read."""
    t_list = sequence([np.ones(1000)])
    refused = []

    class Limits(collections.abc.Sequence):
        def __len__(self):
            return 1

        def __getitem__(self, i):
            if i > 0:
                raise IndexError
            with pytest.raises(ValueError, match="cannot resize"):
                t_list[0].resize(10)
            refused.append(i)
            return 1.0

    (clipped,), norms = gc.clip_by_norms(t_list, Limits())
    assert refused
    assert norms.tolist() == [math.sqrt(1000)]
    assert clipped.shape == (1000,)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_shorter_block_with_as_many_elements_of_a_narrower_dtype_is_an_error():
    # A resized array may stay at its address. Then only the dtype tells that its memory ends earlier.
    def shrink(t):
        t.dtype = np.int8
        t.resize(1000, refcheck=False)

    class Shrinks:
        def __init__(self, t):
            self.t = t

        def __array__(self, dtype=None, copy=None):
            shrink(self.t)
            return np.ones(())

    class Limits(collections.abc.Sequence):
        def __init__(self, t):
            self.t = t

        def __len__(self):
            return 1

        def __getitem__(self, i):
            if i > 0:
                raise IndexError
            shrink(self.t)
            return 1.0

    calls = [
        lambda t: gc.global_norm([t, Shrinks(t)]),
        lambda t: gc.clip_by_global_norm([t, Shrinks(t)], 1.0),
        lambda t: gc.clip_by_norms([t], Limits(t)),
    ]
    for dtype in (np.float32, np.float64):
        for call in calls:
            with pytest.raises(RuntimeError, match="resized"):
                call(np.ones(1000, dtype))
        t = np.ones(1000, dtype)
        with pytest.raises(TypeError, match="int8"):  # the outputs are read after the limits
            gc.clip_by_norms([t], Limits(t), out=[t])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_strides_at_the_same_address_are_an_error():
    # ndarray.__setstate__ can give a strided view a block of its own, which its old strides would leave.
    t = np.arange(100.0)[::2]
    with pytest.raises(RuntimeError, match="another shape"):
        gc.global_norm([t, Acts(lambda: setattr(t, "strides", (8,)), np.ones(()))])


class Own(np.ndarray):
    """A subclass whose arrays own their memory."""


FREE = [lambda b: b.resize(1, refcheck=False), lambda b: b.__setstate__((1, (1,), b.dtype, False, bytes(8)))]


@pytest.mark.parametrize("free", FREE, ids=["resize", "setstate"])
@pytest.mark.parametrize("kind", [np.ndarray, Own])
@pytest.mark.parametrize("target", [(160_000,), (2, 160_000)])
def test_a_bound_whose_memory_is_freed_during_the_call_is_an_error(free, kind, target):
    # A block of this size is unmapped when it is freed.
    b = kind((160_000,))
    b.fill(0.5)
    with pytest.raises(RuntimeError, match="resized"):
        gc.clip_by_value(np.ones(target), b, Acts(lambda: free(b), np.ones(160_000)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_list_whose_array_gets_gaps_during_the_call_is_an_error():
    base = np.arange(8.0)
    t = base[:4]
    tensors = [t]
    with pytest.raises(RuntimeError, match="another shape"):
        gc.clip_by_norms(tensors, Lists(lambda: setattr(t, "strides", (16,)), [1.0]), out=tensors)
    np.testing.assert_array_equal(base, np.arange(8.0))


@pytest.mark.parametrize("count", [1, 20])
def test_an_output_that_is_read_only_by_the_time_of_writing_is_an_error(count):
    tensors = [np.ones(4) for _ in range(count)]
    with pytest.raises(RuntimeError, match="read-only"):
        gc.clip_by_norms(tensors, Lists(lambda: tensors[-1].setflags(write=False), [1.0] * count), out=tensors)
    assert all((t == 1).all() for t in tensors)


class Lists(collections.abc.Sequence):
    """A sequence that acts when it is read."""

    def __init__(self, act, entries):
        self.act, self.entries = act, entries

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, i):
        self.act()
        return self.entries[i]


def test_the_dtype_of_an_example_is_that_of_its_memory():
    class Lies(np.ndarray):
        dtype = property(lambda _: np.dtype("f4"))

    for dtype in ("c8", "f8"):
        t = np.ones((3, 4), dtype)
        (found,), _ = gc.clip_examples_by_global_norm([t.view(Lies)], 1.0, reduce="sum")
        assert same_bits(found, gc.clip_examples_by_global_norm([t], 1.0, reduce="sum")[0][0])


@pytest.mark.thread_unsafe(reason="a class gets another name")
def test_a_narrower_dtype_with_the_name_of_another_is_not_read_as_that():
    kind = ml_dtypes.float8_e5m2
    try:
        kind.__name__ = "bfloat16"
        with pytest.raises(TypeError, match="dtype"):
            gc.norm(np.zeros(4096, kind))
    finally:
        kind.__name__ = "float8_e5m2"


def test_arrays_of_a_subclass_are_copied_without_its_code():
    class Hooked(np.ndarray):
        def __array_function__(self, func, types, args, kwargs):
            raise AssertionError(func)

        def __array_finalize__(self, other):
            assert not isinstance(other, Hooked)

    numbers, t = np.arange(5).view(Hooked), np.array([3.0, 4.0])
    (clipped, same), _ = gc.clip_by_global_norm([t, numbers], 1.0, integers="keep")
    assert same.tolist() == [0, 1, 2, 3, 4]
    assert type(same) is np.ndarray
    np.testing.assert_allclose(clipped, [0.6, 0.8])
    memory = np.array([3.0, 4.0, 0.0])
    parts = [np.ndarray.view(memory[i : i + 2], Hooked) for i in range(2)]
    gc.clip_by_norm(parts[0], 1.0, out=parts[1])
    np.testing.assert_allclose(memory, [3.0, 0.6, 0.8])


@pytest.mark.parametrize("shape", [(6,), (3, 2), (200, 3)])
def test_outputs_that_are_replaced_during_the_call_are_checked_as_they_are(shape):
    t_list = [np.ones((2, 3)), np.ones(4)]
    base_list = [np.zeros((2, 3))]
    base_list.append(Acts(lambda: base_list.__setitem__(slice(None), [np.full(shape, 5.0), np.zeros(4)]), np.zeros(4)))
    with pytest.raises(ValueError, match=r"out\[0\]: found shape"):
        gc.clip_difference_by_global_norm(t_list, base_list, 1.0, out=base_list)
    assert (base_list[0] == 5.0).all()


@pytest.mark.parametrize("in_place", [False, True])
def test_a_list_that_changes_while_the_limits_are_read_is_clipped_as_it_was(in_place):
    class Limits(collections.abc.Sequence):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            if i < 3:
                t_list[:] = ["no", "tensors"]
                return [2.5, None, np.float32(1)][i]
            raise IndexError

    tensors = [np.array([3.0, 4.0]), None, np.array([2.0])]
    t_list = list(tensors)
    clipped, norms = gc.clip_by_norms(t_list, Limits(), out=list(tensors) if in_place else None)
    assert t_list == ["no", "tensors"]
    assert [None if c is None else c.tolist() for c in clipped] == [[1.5, 2.0], None, [1.0]]
    assert norms.tolist() == [5.0, 0.0, 2.0]
    assert tensors[0].tolist() == ([1.5, 2.0] if in_place else [3.0, 4.0])


def test_an_input_to_be_copied_that_has_another_shape_by_then_is_read_as_it_was():
    memory = np.arange(25.0)
    t, out = memory[:24].reshape(2, 3, 4), memory[1:].reshape(2, 3, 4)
    expected = gc.clip_by_value(t.copy(), Reshaper(t, t.shape), None)
    gc.clip_by_value(t, Reshaper(t, (24,)), None, out=out)
    assert same_bits(out, expected)


@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 2, 2), (3, 2, 4), (3, 4, 2)])
def test_matrices_that_get_another_shape_while_lapack_has_them_are_read_as_they_were(shape, monkeypatch):
    # As another thread may do, for Python code runs there.
    t = np.arange(24.0).reshape(2, 3, 4)
    expected = gc.norm(t, 2, axis=(0, 1))
    original = _matrix.largest_singular_values

    def reshaped(matrices, axes):
        t.shape = shape
        return original(matrices, axes)

    monkeypatch.setattr(_matrix, "largest_singular_values", reshaped)
    assert same_bits(gc.norm(t, 2, axis=(0, 1)), expected)


def test_a_matrix_that_is_freed_while_lapack_has_it_is_read_as_it_was(monkeypatch):
    t = np.random.default_rng(0).standard_normal((400, 400))
    expected = gc.norm(t, 2, axis=(0, 1))
    original = _matrix.largest_singular_values

    def freed(matrices, axes):
        t.resize(1, refcheck=False)
        return original(matrices, axes)

    monkeypatch.setattr(_matrix, "largest_singular_values", freed)
    assert gc.norm(t, 2, axis=(0, 1)) == expected


@pytest.mark.parametrize("ord", ["fro", 2])
def test_a_matrix_norm_beyond_float64_still_normalizes(ord):
    huge = np.full((2, 2), 1.7e308)
    result, norm = gc.normalize(huge, ord, axis=(0, 1))
    assert norm.tolist() == [[np.inf]]
    np.testing.assert_allclose(result, 0.5, rtol=1e-13)
    tiny = np.array([[5e-324] * 3])
    np.testing.assert_allclose(gc.normalize(tiny, ord, axis=(0, 1))[0], 3**-0.5, rtol=1e-13)


def test_axes_may_be_a_range_or_any_integer_array():
    x = np.arange(24.0).reshape(2, 3, 4)
    assert gc.norm(x, axis=range(3)) == gc.norm(x)
    expected = gc.clip_by_norm(x, 1.0, (0, 1))
    for axes in (range(2), np.array([0, 1], np.uint8), np.array([0, 1])):
        assert same_bits(gc.clip_by_norm(x, 1.0, axes), expected)


def test_bounds_are_rounded_once():
    x = np.array([3e38], np.float32)
    assert gc.clip_by_value(x, None, 2**127 + 2**103 + 1).view(np.uint32) == 0x7F000001
    assert gc.clip_by_value(-x, -(2**127) - 2**103 - 1, None).view(np.uint32) == 0xFF000001
    assert gc.clip_by_value(x, None, 10**50) == x
    # By way of float64, this would lie half way between two numbers of float32.
    large, y = 2**62 + 2**38 + 1, np.array([3e38], np.float32)
    for kind in (int, np.int64, np.uint64, np.array):
        assert gc.clip_by_value(y, None, kind(large)) == np.float32(2**62 + 2**39)


def test_coalesce_does_not_warn():
    values = np.array([1e308, 1e308, np.inf, -np.inf])
    summed = gc.IndexedSlices(values, np.array([0, 0, 1, 1])).coalesce().values
    np.testing.assert_array_equal(summed, [np.inf, np.nan])


@pytest.mark.parametrize("shape", [(n for n in (10, 2)), {10, 2}, "ab", 10, (10.0, 2), (True, 2), np.array([10.0, 2])])
def test_a_dense_shape_is_a_sequence_of_integers(shape):
    with pytest.raises(TypeError, match="dense_shape"):
        gc.IndexedSlices(np.ones((1, 2)), np.array([0]), shape)
    assert gc.IndexedSlices(np.ones((1, 2)), [0], np.array([10, 2])).dense_shape == (10, 2)


class Masked:
    def __array__(self, dtype=None, copy=None):
        return np.ma.array([1.0, 2.0], mask=[1, 0])


@pytest.mark.parametrize("t", [[np.ma.array([1.0, 2.0], mask=[1, 0])], [[0.0, 1.0], (np.ma.ones(2),)], Masked()])
def test_a_mask_is_not_lost_in_a_list_or_a_conversion(t):
    with pytest.raises(TypeError, match="masked"):
        gc.norm(t)
    with pytest.raises(TypeError, match="masked"):
        gc.clip_by_value(np.zeros(2), t, None)


class Raiser:
    def __array__(self, dtype=None, copy=None):
        raise ValueError("mine")


def test_what_an_entry_of_a_nested_list_raises_passes_through():
    for call in (lambda x: gc.norm([x]), lambda x: gc.clip_by_value(0.0, [x], 1), lambda x: gc.IndexedSlices([x], [0])):
        with pytest.raises(ValueError, match=r"^mine$"):
            call(Raiser())


def test_a_ragged_list_keeps_the_cause():
    with pytest.raises(ValueError, match="ragged") as caught:
        gc.norm([[1.0], [1.0, 2.0]])
    assert "inhomogeneous" in str(caught.value.__cause__)


def test_a_list_that_holds_itself_is_an_error():
    endless = [1.0]
    endless.append(endless)
    with pytest.raises((ValueError, TypeError)):
        gc.norm(endless)


def test_gaps_between_short_axes_do_not_change_a_bit():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 400, 2, 3))
    padded = np.zeros((3, 400, 2, 5))[..., :3]
    padded[...] = x
    assert same_bits(gc.norm(padded, axis=1), gc.norm(x, axis=1))
    assert same_bits(gc.clip_by_norm(padded, 1.0, 1), gc.clip_by_norm(x, 1.0, 1))


def test_the_same_memory_under_another_name_of_its_dtype_is_in_place():
    t = np.arange(5, dtype=np.dtype("l"))
    other = t.view(np.dtype("q"))
    if t.dtype != other.dtype or sys.platform == "win32":
        pytest.fail("long and long long have one size here; the test wants another pair")
    assert gc.clip_by_value(t, 1, 3, out=other) is other
    assert t.tolist() == [1, 1, 2, 3, 3]


def test_an_order_is_none_of_the_things_that_are_no_number():
    for order in (1j, [2], "nuc", np.ones(2), float("nan"), object()):
        with pytest.raises(ValueError, match="ord"):
            gc.norm(np.ones(3), order)
    for order in (None, True, np.True_):
        with pytest.raises(TypeError, match="ord"):
            gc.norm(np.ones(3), order)


@pytest.mark.skipif(not HAS_GIL, reason="without a GIL NumPy itself crashes when a shape changes while it is read")
def test_another_thread_may_give_an_array_another_shape():
    t = np.ones((200, 4096), np.float32)
    stop = threading.Event()

    def toggle():
        while not stop.is_set():
            t.shape = (4096, 200)
            t.shape = (200, 4096)

    thread = threading.Thread(target=toggle)
    thread.start()
    try:
        for _ in range(200):
            assert gc.norm(t, axis=1).shape in {(200,), (4096,)}
            assert gc.clip_by_norm(t, 1.0, axes=1).shape in {(200, 4096), (4096, 200)}
    finally:
        stop.set()
        thread.join()


def test_a_message_is_one_short_line():
    x = np.zeros((2, 3), np.float32)
    for call in (
        lambda: gc.clip_by_norm(x, 1.0, out=[x]),
        lambda: gc.clip_by_norm(x, "line\nline" * 100),
        lambda: gc.clip_by_value(x, 2j, 3),
        lambda: gc.clip_by_global_norm([x], 1.0, out=[x, x]),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        message = str(caught.value)
        assert "\n" not in message
        assert len(message) < 300
    with pytest.raises(TypeError, match="found complex 2j"):
        gc.clip_by_value(x, 2j, 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("shape", [(4, 4), (16, 16), (100, 5), (8, 3)])
def test_the_order_of_out_decides_no_bit_and_no_slice(dtype, shape):
    # Rows and columns are summed in different orders. The choice depends on the input alone.
    rng = np.random.default_rng(2)
    for order, axis in (("F", 1), ("C", 0), ("F", 0), ("C", 1)):
        for _ in range(20):
            parts = rng.standard_normal((2, *shape))
            t = np.asarray(parts[0] + (1j * parts[1] if np.dtype(dtype).kind == "c" else 0), dtype, order=order)
            for limit in (0.5, float(np.asarray(gc.norm(t, axis=axis))[1])):
                expected = gc.clip_by_norm(t, limit, axis)
                for out_order in "CF":
                    assert same_bits(gc.clip_by_norm(t, limit, axis, out=np.empty(shape, dtype, out_order)), expected)
                assert same_bits(gc.clip_by_norm(t.copy("K"), limit, axis, out=t.copy("K")), expected)
        norms = gc.norm(t.astype(np.complex128), axis=axis)
        clipped = gc.clip_by_norm(t.astype(np.complex128), norms[2], axis)
        assert same_bits(np.take(clipped, 2, 1 - axis), np.take(t.astype(np.complex128), 2, 1 - axis))


def test_small_numbers_of_ml_dtypes_are_bounds():
    t = np.arange(4)
    for bound in (np.array([0, 1, 1, 1], ml_dtypes.int4), np.array(1, ml_dtypes.uint4), ml_dtypes.int4(1)):
        assert gc.clip_by_value(t, None, bound).tolist() == [0, 1, 1, 1]
    assert gc.clip_by_value(t * 1.0, None, ml_dtypes.float8_e4m3fn(1.5)).tolist() == [0, 1, 1.5, 1.5]


def test_a_bfloat16_limit_of_the_other_byte_order():
    swapped = np.dtype(ml_dtypes.bfloat16).newbyteorder("S")
    for limit in (np.array(1.5, ml_dtypes.bfloat16), np.array(1.5, ml_dtypes.bfloat16).astype(swapped)):
        assert gc.clip_by_norm(np.array([3.0]), limit).tolist() == [1.5]
        assert gc.clip_by_value(np.array([3.0]), None, limit).tolist() == [1.5]
        assert gc.clip_by_value(np.array([3.0]), None, np.stack([limit])).tolist() == [1.5]


class Loud(np.ndarray):
    """A subclass that overrides every method of NumPy's class."""

    def __array_function__(self, *args, **kwargs):
        raise AssertionError

    def __array_ufunc__(self, *args, **kwargs):
        raise AssertionError

    def astype(self, *_, **__):
        raise AssertionError

    @property
    def ndim(self):
        raise AssertionError


def test_a_subclass_is_read_as_a_plain_array_everywhere():
    t = np.arange(6, dtype=np.int8).reshape(2, 3)
    for dtype in (np.int64, np.int8):
        assert gc.clip_by_value(t, None, np.array([1, 1, 2], dtype).view(Loud)).tolist() == [[0, 1, 2], [1, 1, 2]]
    assert gc.clip_by_value(t * 1.0, np.ones(3, np.float32).view(Loud), None).tolist() == [[1, 1, 2], [3, 4, 5]]
    assert gc.clip_by_norm(np.array([3.0]).view(Loud), np.array(1.5).view(Loud)).tolist() == [1.5]


def test_a_signalling_nan_warns_nowhere():
    for bits in (np.full((2, 2), 0x7F800001, np.uint32).view(np.float32), np.full((2, 2), 0x7F81, np.uint16)):
        x = bits if bits.dtype == np.float32 else bits.view(ml_dtypes.bfloat16)
        with np.errstate(all="raise"):
            assert np.isnan(gc.norm(x, 2, (0, 1)))
            slices = gc.IndexedSlices(x, [0, 1])
            assert slices == gc.IndexedSlices(x.copy(), [0, 1])


def test_a_list_without_end():
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match=r"global_norm: t_list\[0\]: found a list nested too deep"):
        gc.global_norm(endless)


def test_masks_in_any_sequence_are_seen():
    masked = np.ma.masked_array([1.0, 2.0], [0, 1])
    for nested in (collections.deque([masked]), collections.UserList([masked]), [collections.deque([masked])]):
        with pytest.raises(TypeError, match="masked array"):
            gc.norm(nested)
    for call in (
        lambda: gc.clip_by_norm([1.0], np.ma.masked_array(1.0)),
        lambda: gc.clip_by_norm([1.0], np.ma.masked),
        lambda: gc.clip_by_global_norm([[1.0]], 1, np.ma.masked_array(1.0)),
    ):
        with pytest.raises(TypeError, match="found a masked array"):
            call()


class Endless(collections.abc.Sequence):
    """A sequence of one of its kind, without end."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        if index > 0:
            raise IndexError
        return Endless()


def test_a_sequence_without_end_is_an_error():
    with pytest.raises(ValueError, match="dimension"):
        gc.norm(Endless())


class Longer(collections.abc.Sequence):
    """A sequence with more entries than its length says."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        assert index < 100, "read on"
        return 1.0


class Interrupted:
    def __array__(self, *_, **__):
        raise KeyboardInterrupt


LIMITS = {
    "clip_norm": lambda given: gc.clip_by_norm([1.0], given),
    "use_norm": lambda given: gc.clip_by_global_norm([[1.0]], 1.0, given),
    "clip_norms[0]": lambda given: gc.clip_by_norms([[1.0]], [given]),
    "ord": lambda given: gc.norm([1.0], given),
}


@pytest.mark.parametrize("argument", LIMITS)
def test_a_list_for_a_number_is_not_read_beyond_its_length(argument):
    with pytest.raises(
        ValueError, match=rf": {re.escape(argument)}: found a sequence of length 3 that has more entries"
    ):
        LIMITS[argument]([Longer()])
    with pytest.raises(KeyboardInterrupt):
        LIMITS[argument]([Interrupted()])


class WithoutDtype(np.int64):
    """A number of NumPy that says something else of itself."""

    dtype = 5
    ndim = "none"


def test_attributes_of_a_subclass_of_a_scalar_do_not_count():
    two, x = WithoutDtype(2), np.full((2, 3), 4.0)
    assert gc.clip_by_norm(x, two).tobytes() == gc.clip_by_norm(x, 2).tobytes()
    assert gc.norm(x, two) == gc.norm(x, 2)
    assert gc.norm(x, axis=WithoutDtype(1)).tobytes() == gc.norm(x, axis=1).tobytes()
    assert gc.clip_by_value(x, two, None).tobytes() == x.tobytes()

    class Float(np.float64):
        dtype = 5

    with pytest.raises(TypeError, match=r"axes: found Float"):
        gc.clip_by_norm(x, 1.0, axes=Float(1.0))


def test_a_limit_of_0_makes_zeros_of_the_smallest_tensor():
    # Its average norm is above 0, and 0 as a float64.
    assert (
        gc.clip_by_average_norm(np.array([5e-324, 0.0, -5e-324]), 0).tobytes() == np.array([0.0, 0.0, -0.0]).tobytes()
    )


def test_equal_slices_may_differ_in_byte_order():
    swapped = gc.IndexedSlices(np.array([1.0, 2.0], ">f8"), np.array([3, 4], ">i4"), (9,))
    assert pickle.loads(pickle.dumps(swapped)) == swapped


def test_a_shape_that_no_array_has():
    with pytest.raises(ValueError, match="dense_shape"):
        gc.IndexedSlices(np.ones((1, 3)), [0], (2**70, 3))
