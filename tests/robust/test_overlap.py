"""Outputs that share memory are found exactly, for any layout, and without much time or memory."""

import math
import mmap
import time

import gradclip as gc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

ITEM = 2  # float16, and offsets of single bytes


@st.composite
def views(draw, most=150):
    """A view of float16 elements into a few bytes: first byte, shape, strides in bytes."""
    shape, strides, low, high = [], [], 0, ITEM
    for _ in range(draw(st.integers(0, 3))):
        n = draw(st.sampled_from([1, 2, 2, 3, 4]))
        room = (most - (high - low)) // max(n - 1, 1)
        step = draw(st.one_of(st.sampled_from([0, 1, 2, 4, 6, 8]), st.integers(0, max(room, 0))))
        if step * (n - 1) > most - (high - low):
            continue
        if draw(st.booleans()):
            low, step = low - step * (n - 1), -step
        else:
            high += step * (n - 1)
        shape.append(n)
        strides.append(step)
    return draw(st.integers(-low, most - high)), shape, strides


def addresses(view):
    """The first byte of each element."""
    first, shape, strides = view
    return [first + sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape)]


def clashes(chosen):
    """By brute force: whether a byte belongs to two elements."""
    used = [at + byte for view in chosen for at in addresses(view) for byte in range(ITEM)]
    return len(set(used)) < len(used)


@settings(max_examples=400)
@given(st.lists(views(), min_size=1, max_size=4), st.sampled_from([0, 1, 1 << 22]))
def test_outputs_that_share_a_byte_are_found_exactly(chosen, gap):
    # With a gap the last one begins that much farther away, and a frame of two elements is around them all: they
    # are sparse then, and looked at in another way.
    memory = np.zeros(202 + gap, np.uint8)
    outs = [
        as_strided(
            memory[first + (gap if i and i == len(chosen) - 1 else 0) :][:ITEM].view(np.float16)[0:1].reshape(()),
            shape,
            strides,
        )
        for i, (first, shape, strides) in enumerate(chosen)
    ]
    moved = [(v[0] + (gap if i and i == len(chosen) - 1 else 0), *v[1:]) for i, v in enumerate(chosen)]
    if gap:
        outs.append(as_strided(memory[100:102].view(np.float16)[0:1].reshape(()), (2,), (gap + 98,)))
        moved.append((100, [2], [gap + 98]))
    t_list = [np.full(out.shape, i + 1.0, np.float16) for i, out in enumerate(outs)]
    if clashes(moved):
        with pytest.raises(ValueError, match=r"shares memory|own elements overlap"):
            gc.clip_by_global_norm(t_list, 1e9, 1.0, out=outs)
        assert not memory.any()
    else:
        gc.clip_by_global_norm(t_list, 1e9, 1.0, out=outs)
        for out, t in zip(outs, t_list, strict=True):
            assert np.array_equal(out, t)
        assert np.count_nonzero(memory) == sum(
            out.size for out in outs
        )  # small float16 integers have one byte that is not 0


def interleaved(n):
    m = np.zeros((20, n))
    return {
        "columns": [m[:, i] for i in range(n)],
        "columns backwards": [m[::-1, i] for i in range(n)],
        "tiles": tiles(n),
        "other strides": strided(n),
    }


def tiles(n):
    side = math.isqrt(n)
    m = np.zeros((4 * side, 4 * side))
    return [m[4 * i : 4 * i + 4, 4 * j : 4 * j + 4] for i in range(side) for j in range(side)]


def strided(n):
    """Views with strides of 2, 3 and 4 elements, and one with two elements around them all."""
    m = np.zeros(60 * n + 2)
    return [m[:: len(m) - 1], *(m[1 + 60 * i :][: 60 : 2 + i % 3] for i in range(n - 1))]


def seconds(call):
    best = math.inf
    for _ in range(5):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


@pytest.mark.parametrize("kind", interleaved(4))
def test_the_check_of_ten_thousand_interleaved_outputs_is_quick(kind):
    outs = interleaved(10_000)[kind]
    t_list = [np.ones(out.shape) for out in outs]
    apart = [np.zeros((*out.shape, 2))[..., 0] for out in outs]  # as strided, and apart
    check = seconds(lambda: gc.clip_by_global_norm(t_list, 1e9, 1.0, out=outs)) - seconds(
        lambda: gc.clip_by_global_norm(t_list, 1e9, 1.0, out=apart)
    )
    # 1 to 4 ms where nothing else runs.
    assert check < 0.05


def test_an_output_of_more_elements_than_its_memory_has_room_for_is_found_without_a_list_of_them():
    t = np.broadcast_to(np.float32(1), (20_000, 20_000))
    with pytest.raises(ValueError, match="out: found an array whose own elements overlap"):
        gc.clip_by_norm(t, 1.0, out=as_strided(np.zeros(80_000, np.float32), t.shape, (8, 8)))


def test_a_clash_at_the_very_last_element_is_found_and_named():
    outs = interleaved(10_000)["columns"]
    outs.append(outs[4321][-1:])
    with pytest.raises(ValueError, match=r"out\[10000\]: found an array that shares memory with out\[4321\]"):
        gc.clip_by_global_norm([np.ones(out.shape) for out in outs], 1.0, out=outs)


def test_outputs_far_apart_in_one_cluster_take_no_memory():
    # A terabyte of addresses, of which a few pages exist. Marks for all of it would be 16 GiB.
    size = 1 << 40
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    with mmap.mmap(-1, size, flags=flags) as pages:
        a = np.frombuffer(pages, np.float64, 1)
        around = as_strided(a, (2,), (size - 8,))
        inside = np.frombuffer(pages, np.float64, 3, size // 2)
        last = np.frombuffer(pages, np.float64, 2, size - 16)
        ones = [np.ones(2), np.ones(3), np.ones(2)]
        gc.clip_by_global_norm(ones[:2], 1e9, 1.0, out=[around, inside])
        assert around.tolist() == [1, 1]
        with pytest.raises(ValueError, match=r"out\[2\].*shares memory with out\[0\]"):
            gc.clip_by_global_norm(ones, 1e9, 1.0, out=[around, inside, last])
        with pytest.raises(ValueError, match="out: found an array whose own elements overlap"):
            gc.clip_by_norm(np.ones((2, 3)), 1.0, out=as_strided(a, (2, 3), (size // 4, size // 8)))
        odd = as_strided(a, (2, 2), (size // 2, size // 2 - 8))
        gc.clip_by_norm(np.ones((2, 2)), 1.0, out=odd)
        assert odd.tolist() == [[0.5, 0.5], [0.5, 0.5]]
        del a, around, inside, last, odd


def test_a_clash_is_seen_wherever_it_is():
    memory = np.zeros(1200)
    for at in range(2, 200):
        first, second = memory[0 : at + 1 : at], memory[at : at + 600 : 7]
        outs = [first, second]
        with pytest.raises(ValueError, match="shares memory"):
            gc.clip_by_global_norm([np.ones(len(out)) for out in outs], 1.0, out=outs)
        outs = [first, memory[at + 1 : at + 600 : 7], memory[at - 1 : at + 5 : 10]]
        gc.clip_by_global_norm([np.ones(len(out)) for out in outs], 1.0, out=outs)


def pieces(lengths, unit, step=1, together=1):
    """Arrays that follow each other in one piece of memory, each from a whole number of units on, in another order.

    `together` of them keep their order, as arrays do that were made one after the other.
    """
    starts = np.cumsum([0, *(-(-length // unit) * unit for length in lengths)])
    memory = np.arange(1, starts[-1] + 2, dtype=np.float32)
    runs = np.split(np.arange(len(lengths)), range(together, len(lengths), together))
    order = np.concatenate([runs[i] for i in np.random.default_rng(len(lengths)).permutation(len(runs))])
    return [memory[starts[i] :][: lengths[i] : step] for i in order], memory


@pytest.mark.sampled
@pytest.mark.parametrize("together", [1, 7, 25])
@pytest.mark.parametrize("unit", [1, 4, 64, 5000])
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 1000])
def test_arrays_of_one_memory_in_any_order_are_apart(count, step, unit, together):
    # Neighbours may share a unit, but no byte.
    lengths = [(7 * i) % 300 if i % 50 == 0 else i % 40 for i in range(count)]
    (tensors, _), (expected, _) = (pieces(lengths, unit, step, together) for _ in range(2))
    expected, norm = gc.clip_by_global_norm([t.copy() for t in expected], 1.0)
    found, own = gc.clip_by_global_norm(tensors, 1.0, out=tensors)
    assert own == norm
    assert all(a is b for a, b in zip(found, tensors, strict=True))
    assert [t.tobytes() for t in tensors] == [t.tobytes() for t in expected]


@pytest.mark.sampled
@pytest.mark.parametrize("together", [1, 25])
@pytest.mark.parametrize("unit", [1, 4, 64, 1500])
@pytest.mark.parametrize("kind", ["in place", "into others"])
def test_one_element_too_many_is_seen_wherever_it_is(kind, unit, together):
    # As long as whole units, so that each ends where the next one begins.
    lengths = [unit * (1 + i % 5 + 70 * (i % 30 == 0)) for i in range(100)]
    tensors, memory = pieces(lengths, unit, together=together)
    before = memory.copy()
    address = [tensor.ctypes.data for tensor in tensors]
    for i, tensor in enumerate(tensors):
        end = address[i] + tensor.nbytes
        if end not in address:
            continue
        start = (address[i] - memory.ctypes.data) // 4
        outs = [*tensors[:i], memory[start : start + len(tensor) + 1], *tensors[i + 1 :]]
        t_list = outs if kind == "in place" else [np.ones(out.shape, np.float32) for out in outs]
        a, b = sorted([i, address.index(end)])
        with pytest.raises(ValueError, match=rf"out\[{b}\]: found an array that shares memory with out\[{a}\]"):
            gc.clip_by_global_norm(t_list, 1.0, out=outs)
    assert np.array_equal(memory, before)


@pytest.mark.parametrize("count", [2, 100])
def test_outputs_that_are_inputs_of_others_get_what_these_were(count):
    tensors, _ = pieces([16] * count, 4)
    expected, _ = gc.clip_by_global_norm([t.copy() for t in tensors], 1.0)
    outs = [*tensors[1:], tensors[0]]
    gc.clip_by_global_norm(tensors, 1.0, out=outs)
    assert [out.tobytes() for out in outs] == [t.tobytes() for t in expected]


def test_many_arrays_far_apart_take_no_memory():
    # A terabyte of addresses: marks for all of it would be 8 GiB.
    size, count = 1 << 40, 100
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    with mmap.mmap(-1, size, flags=flags) as pages:
        tensors = [np.frombuffer(pages, np.float64, 3, i * (size // count) // 8 * 8) for i in range(count)]
        for tensor in tensors:
            tensor[:] = 1
        tensors.reverse()
        gc.clip_by_global_norm(tensors, 1.0, 2.0, out=tensors)
        assert all(tensor.tolist() == [0.5, 0.5, 0.5] for tensor in tensors)
        del tensor, tensors
