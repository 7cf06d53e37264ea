"""Sequences that lie about their length, never end, or change while they are read."""

import collections.abc
import itertools

import gradclip as gc
import numpy as np
import pytest
from hostile import PLACES, SIZE, Acts, Arrays, Stop, outcome
from oracle import same_bits


class Sequence(collections.abc.Sequence):
    """A sequence whose length and entries come from two functions."""

    def __init__(self, length, entry):
        self.length, self.entry = length, entry

    def __len__(self):
        return self.length()

    def __getitem__(self, index):
        return self.entry(index)


class Iterates(Sequence):
    """One that has an iterator of its own."""

    def __init__(self, length, entries):
        super().__init__(length, None)
        self.entries = entries

    def __iter__(self):
        return self.entries()


def stop():
    raise Stop


def until(n, entry):
    def at(index):
        if index >= n:
            raise IndexError
        return entry

    return at


LIARS = {
    "too long": lambda x: Sequence(lambda: 5, until(3, x)),
    "too short": lambda x: Sequence(lambda: 2, until(3, x)),
    "empty, it says": lambda x: Sequence(lambda: 0, until(3, x)),
    "negative": lambda x: Sequence(lambda: -1, until(3, x)),
    "huge": lambda x: Sequence(lambda: 2**62, until(3, x)),
    "huge, without end": lambda x: Sequence(lambda: 2**62, lambda _: x),
    "larger than any memory, without end": lambda x: Sequence(lambda: 2**52, lambda _: x),
    "beyond any": lambda x: Sequence(lambda: 2**70, until(3, x)),
    "no number": lambda x: Sequence(lambda: "3", until(3, x)),
    "no length": lambda x: Sequence(stop, until(3, x)),
    "no entries": lambda _: Sequence(lambda: 3, lambda _: stop()),
    "without end": lambda x: Sequence(lambda: 3, lambda _: x),
    "an iterator without end": lambda x: Iterates(lambda: 3, lambda: itertools.repeat(x)),
    "an iterator with more": lambda x: Iterates(lambda: 3, lambda: iter([x] * 4)),
    "an iterator with fewer": lambda x: Iterates(lambda: 3, lambda: iter([x] * 2)),
    "an iterator that raises": lambda x: Iterates(lambda: 3, lambda: iter(until(2, x), None)),
    "no iterator": lambda x: Iterates(lambda: 3, lambda: x),
}


@pytest.mark.parametrize("liar", LIARS)
def test_a_sequence_that_lies_about_its_length_is_an_error(liar):
    tensors = ["clip_by_global_norm t_list", "clip_by_global_norm out", "global_norm t_list"]
    axes = ["clip_by_norm axes", "norm axis", "normalize axis"]
    nested = ["norm tensor", "norm tensor, in a list", "clip_by_value t", "clip_by_norm t, with out"]
    entries = {**dict.fromkeys(tensors, np.ones(SIZE)), **dict.fromkeys(axes, 0), **dict.fromkeys(nested, 1.0)}
    for place, entry in entries.items():
        arrays = Arrays()
        error = outcome(PLACES[place], arrays, LIARS[liar](entry))
        assert isinstance(error, (TypeError, ValueError, MemoryError, OverflowError, Stop, IndexError)), (place, error)
    for place, call in PLACES.items():
        for entry in (0, 1.0, np.ones(SIZE)):
            try:
                outcome(call, Arrays(), LIARS[liar](entry))
            except AssertionError as error:
                raise AssertionError(place) from error


def test_the_message_says_that_the_length_is_not_true():
    for number, words in ((2, "length 2 that has more"), (4, "length 4 that has fewer")):
        liar = Sequence(lambda number=number: number, until(3, np.ones(2)))
        with pytest.raises(ValueError, match=f"global_norm: t_list: found a sequence of {words}"):
            gc.global_norm(liar)
        with pytest.raises(ValueError, match=f"clip_by_global_norm: out: found a sequence of {words}"):
            gc.clip_by_global_norm([np.ones(2)] * 3, 1.0, out=liar)
    more = Sequence(lambda: 3, lambda _: 1.0)
    says = r"found a sequence of length 3 that has more entries; allowed: a sequence with len\(\) entries"
    for where, call in {
        "norm: tensor": lambda: gc.norm(more),
        "clip_by_norm 'layer': t": lambda: gc.clip_by_norm([[1.0], more], 1.0, name="layer"),
        r"global_norm: t_list\[1\]": lambda: gc.global_norm([np.ones(2), more]),
        "norm: axis": lambda: gc.norm(np.ones((1, 1, 1)), axis=more),
        "IndexedSlices: values": lambda: gc.IndexedSlices(more, [0]),
        "IndexedSlices: indices": lambda: gc.IndexedSlices(np.ones((3, 1)), more),
        "IndexedSlices: dense_shape": lambda: gc.IndexedSlices(np.ones((3, 1)), [0, 1, 2], more),
    }.items():
        with pytest.raises(ValueError, match=f"^{where}: {says}$"):
            call()


def test_an_honest_sequence_is_what_it_says():
    honest = Sequence(lambda: 3, until(3, np.array([3.0, 4.0])))
    assert gc.global_norm(honest) == gc.global_norm([[3.0, 4.0]] * 3)
    assert gc.norm(Sequence(lambda: 3, until(3, 1.0))) == gc.norm([1.0] * 3)
    axes = Sequence(lambda: 1, until(1, 1))
    assert gc.norm(np.array([[3.0, 4.0]]), axis=axes).tolist() == [5]


class Subclassed(list):
    """A list with other methods."""

    def __len__(self):
        return 2**62

    def __iter__(self):
        return itertools.repeat(None)

    def __getitem__(self, index):
        raise Stop


class Elsewhere(list):
    """A list that keeps its entries elsewhere, as TensorFlow's `ListWrapper` does: as a plain list it is empty."""

    def __init__(self, entries):
        super().__init__()
        self.entries = entries

    def __len__(self):
        return len(self.entries)

    def __iter__(self):
        return iter(self.entries)

    def __getitem__(self, index):
        return self.entries[index]


def test_a_subclass_of_list_is_read_by_its_methods():
    tensors = [np.array([3.0, 4.0]), np.ones(2), [1.0, 2.0]]
    for t_list in (tensors, tensors[:2]):
        expected = gc.clip_by_global_norm(t_list, 1.0)
        outs = [np.empty(2) for _ in t_list]
        results, norm = gc.clip_by_global_norm(Elsewhere(t_list), 1.0, out=Elsewhere(outs))
        assert norm == expected[1] == gc.global_norm(Elsewhere(t_list)) == gc.NormState.of(Elsewhere(t_list)).norm()
        assert all(a is b and same_bits(a, c) for a, b, c in zip(results, outs, expected[0], strict=True))
        assert gc.norms(Elsewhere(t_list)).tolist() == gc.norms(t_list).tolist()
        limits = [1.0] * len(t_list)
        clipped = gc.clip_by_norms(Elsewhere(t_list), Elsewhere(limits))[0]
        assert all(map(same_bits, clipped, gc.clip_by_norms(t_list, limits)[0]))
    own = Elsewhere([np.array([3.0, 4.0]), np.ones(2)])
    assert gc.clip_by_global_norm(own, 1.0, out=own)[0][1] is own[1]
    assert gc.global_norm(own) == pytest.approx(1.0)
    matrix = np.array([[3.0, 4.0]])
    assert gc.norm(matrix, axis=Elsewhere([1])).tolist() == [5]
    assert gc.clip_by_norm(matrix, 2.0, axes=Elsewhere([1])).tolist() == gc.clip_by_norm(matrix, 2.0, axes=[1]).tolist()


def test_a_subclass_of_list_that_lies_is_an_error():
    other = type("Other", (tuple,), {"__len__": lambda _: stop()})
    x = np.array([3.0, 4.0])
    for kind, error in ((Subclassed, MemoryError), (other, Stop)):
        for call in (
            lambda kind=kind: gc.global_norm(kind([x, x])),
            lambda kind=kind: gc.clip_by_global_norm([x, x], 1.0, out=kind([x, x])),
            lambda kind=kind: gc.norm(x, axis=kind([0])),
            # NumPy reads a nested list.
            lambda kind=kind: gc.norm(kind([3.0, 4.0])),
            lambda kind=kind: gc.norm([kind([3.0, 4.0])]),
        ):
            with pytest.raises(error):
                call()
    assert x.tolist() == [3.0, 4.0]


ACTS = {
    "append": lambda entries: entries.append(np.ones(SIZE)),
    "append without end": lambda entries: entries.extend([entries[0]] * 1000),
    "clear": lambda entries: entries.clear(),
    "delete": lambda entries: entries.__delitem__(slice(1, None)),
    "replace": lambda entries: entries.__setitem__(slice(None), [None] * len(entries)),
    "reverse": lambda entries: entries.reverse(),
    "nest": lambda entries: entries.append(entries),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_list_that_changes_while_it_is_read_is_read_as_it_was(act):
    expected = gc.global_norm([np.ones(SIZE), np.full(SIZE, 2.0), np.full(SIZE, 3.0)])
    entries = []
    entries += [np.ones(SIZE), Acts(lambda: ACTS[act](entries), np.full(SIZE, 2.0)), np.full(SIZE, 3.0)]
    assert gc.global_norm(entries) == expected
    entries[:] = [np.ones(SIZE), Acts(lambda: ACTS[act](entries), np.full(SIZE, 2.0)), np.full(SIZE, 3.0)]
    results, norm = gc.clip_by_global_norm(entries, 1.0)
    assert norm == expected
    assert len(results) == 3


@pytest.mark.parametrize("act", ACTS)
def test_outputs_that_change_while_the_tensors_are_read_are_an_error_or_read_later(act):
    outs = [np.zeros(SIZE) for _ in range(3)]
    kept = list(outs)
    t_list = [np.ones(SIZE), Acts(lambda: ACTS[act](outs), np.full(SIZE, 2.0)), np.full(SIZE, 3.0)]
    try:
        gc.clip_by_global_norm(t_list, 1.0, out=outs)
    except (TypeError, ValueError):
        assert all((out == 0).all() for out in kept)
    else:
        assert act in {"replace", "reverse"}  # None in place of an output: a new array
        assert all((out == 0).all() if act == "replace" else out.all() for out in kept)


@pytest.mark.parametrize("act", ["append", "clear", "delete", "replace"])
def test_a_nested_list_and_axes_that_change_while_they_are_read_crash_nothing(act):
    class Axis(int):
        def __index__(self):
            ACTS[act](axes)
            return 0

    nested = []
    nested += [1.0, Acts(lambda: ACTS[act](nested), np.full(SIZE, 2.0)), 3.0]
    outer = [[1.0, 2.0], nested]
    for call in (lambda: gc.norm(nested), lambda: gc.norm(outer), lambda: gc.IndexedSlices(outer, nested)):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            call()
    axes = [Axis(0), 1]
    try:
        assert gc.norm(np.ones((2, 2)), axis=axes) == 2
    except (TypeError, ValueError):
        assert act == "replace"


def test_a_deep_nest_is_an_error_and_no_recursion():
    deep = [1.0]
    for _ in range(100_000):
        deep = [deep]
    for call in (
        lambda: gc.norm(deep),
        lambda: gc.global_norm([deep]),
        lambda: gc.clip_by_value(deep, 0, 1),
        lambda: gc.clip_by_value(1.0, deep, None),
        lambda: gc.clip_by_norm([1.0], deep),
        lambda: gc.clip_by_norm([1.0], 1.0, deep),
        lambda: gc.clip_by_norm([1.0], 1.0, out=deep),
        lambda: gc.IndexedSlices(deep, [0]),
        lambda: gc.IndexedSlices([1.0], [0], deep),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        assert len(str(caught.value)) < 400
    while deep:  # or its end recurses
        deep = deep[0] if isinstance(deep[0], list) else None
