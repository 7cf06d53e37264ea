"""gradclip.tree: the functions of lists applied to the leaves, and the structure around them."""

import dataclasses
import enum
import inspect
import itertools
import math
import subprocess
import sys
import time
import types
from collections import ChainMap, OrderedDict, UserList, defaultdict, deque
from typing import NamedTuple

import gradclip as gc
import numpy as np
import optree
import oracle
import pytest
import ranks
from gradclip import tree as gt
from hypothesis import given
from hypothesis import strategies as st

NAMESPACE = "gradclip.test_tree"


class Layer(NamedTuple):
    kernel: object
    bias: object


@dataclasses.dataclass
class Unregistered:
    kernel: object


@optree.register_pytree_node_class(namespace=NAMESPACE)
class Registered:
    """A class whose flatten function gives no names, and which holds an object that is not a leaf."""

    def __init__(self, *children, mark=None):
        self.children, self.mark = children, mark

    def tree_flatten(self):
        return self.children, self.mark

    @classmethod
    def tree_unflatten(cls, mark, children):
        return cls(*children, mark=mark)


@optree.dataclasses.dataclass(namespace=NAMESPACE)
class Dense:
    kernel: object
    bias: object


class Words(str, enum.Enum):
    A = "a"


def array(*values, dtype=np.float32):
    return np.array(values, dtype)


#: For each structure, a function that puts four leaves into it, in the order in which they are taken.
STRUCTURES = {
    "dict": lambda a, b, c, d: {"x": c, "b": b, "z": d, "a": a},
    "list": lambda a, b, c, d: [a, b, c, d],
    "tuple": lambda a, b, c, d: (a, b, c, d),
    "namedtuple": lambda a, b, c, d: Layer(Layer(a, b), Layer(c, d)),
    "OrderedDict": lambda a, b, c, d: OrderedDict(z=a, y=b, b=c, a=d),
    "defaultdict": lambda a, b, c, d: defaultdict(list, d=d, c=c, b=b, a=a),
    "deque": lambda a, b, c, d: deque([a, b, c, d], maxlen=5),
    "keys of several types": lambda a, b, c, d: {"b": d, 2: b, "a": c, 1: a},
    "keys that have no order": lambda a, b, c, d: {1j: a, 0j: b, 3j: c, 2j: d},
    "nested": lambda a, b, c, d: {"head": (d,), "encoder": [{"kernel": b, "bias": a}, [], {}, Layer(c, ())]},
    "registered": lambda a, b, c, d: [Registered(a, [b], mark="m"), Dense(kernel=c, bias=d)],
}


def tensors():
    return [array(3.0, -0.0, 4.0), array([12.0, 1.0], [0.5, 2.0], dtype=np.float64), None, array(84.0)]


def is_same(a, b):
    return (a is None and b is None) or (a is not None and b is not None and oracle.same_bits(a, b))


def are_same(a, b):
    return len(a) == len(b) and all(map(is_same, a, b))


def leaves_of(tree):
    """The leaves of a tree of this file's classes, without optree; and the same tree with their numbers."""
    leaves = []

    def walk(node):
        kind = type(node)
        if kind in (dict, defaultdict):
            keys = sorted(node, key=lambda key: (type(key).__name__, key) if not isinstance(key, complex) else ("", 0))
            walked = {key: walk(node[key]) for key in keys}
            return kind, [(key, walked[key]) for key in node]
        if kind is OrderedDict:
            return kind, [(key, walk(value)) for key, value in node.items()]
        if kind in (list, tuple, deque, Layer):
            return kind, [walk(child) for child in node], getattr(node, "maxlen", None)
        if kind is Registered:
            return kind, [walk(child) for child in node.children], node.mark
        if kind is Dense:
            return kind, walk(node.kernel), walk(node.bias)
        leaves.append(node)
        return len(leaves) - 1

    return walk(tree), leaves


def copy_of(tree):
    return optree.tree_map(
        lambda leaf: None if leaf is None else leaf.copy(), tree, none_is_leaf=True, namespace=NAMESPACE
    )


#: The function of trees and that of lists, each with a tree or a list first and `out` last.
PAIRS = {
    "clip_by_global_norm": (
        lambda tree, **o: gt.clip_by_global_norm(tree, 8.5, namespace=NAMESPACE, **o),
        lambda t_list: gc.clip_by_global_norm(t_list, 8.5),
    ),
    "clip_by_global_norm, ord 1": (
        lambda tree, **o: gt.clip_by_global_norm(tree, 8.5, ord=1, namespace=NAMESPACE, **o),
        lambda t_list: gc.clip_by_global_norm(t_list, 8.5, ord=1),
    ),
    "clip_by_global_norm, use_norm": (
        lambda tree, **o: gt.clip_by_global_norm(tree, 8.5, 17.0, namespace=NAMESPACE, **o),
        lambda t_list: gc.clip_by_global_norm(t_list, 8.5, 17.0),
    ),
    "clip_by_global_norm, strict": (
        lambda tree, **o: gt.clip_by_global_norm(tree, 8.5, strict=True, namespace=NAMESPACE, **o),
        lambda t_list: gc.clip_by_global_norm(t_list, 8.5, strict=True),
    ),
    "clip_by_norm": (
        lambda tree, **o: (gt.clip_by_norm(tree, 4.5, namespace=NAMESPACE, **o), None),
        lambda t_list: ([None if t is None else gc.clip_by_norm(t, 4.5) for t in t_list], None),
    ),
    "clip_by_norm, ord inf": (
        lambda tree, **o: (gt.clip_by_norm(tree, 3.5, ord=math.inf, namespace=NAMESPACE, **o), None),
        lambda t_list: (gc.clip_by_norms(t_list, 3.5, ord=math.inf)[0], None),
    ),
    "clip_by_value": (
        lambda tree, **o: (gt.clip_by_value(tree, 0.75, 3, namespace=NAMESPACE, **o), None),
        lambda t_list: ([None if t is None else gc.clip_by_value(t, 0.75, 3) for t in t_list], None),
    ),
    "clip_by_value, arrays": (
        lambda tree, **o: (gt.clip_by_value(tree, [0.75], array(3.0), namespace=NAMESPACE, **o), None),
        lambda t_list: ([None if t is None else gc.clip_by_value(t, 0.75, 3) for t in t_list], None),
    ),
    "clip_difference_by_global_norm": (
        lambda tree, **o: gt.clip_difference_by_global_norm(tree, halves(tree), 8.5, namespace=NAMESPACE, **o),
        lambda t_list: gc.clip_difference_by_global_norm(t_list, halves(t_list), 8.5),
    ),
}


def error_of(call):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    return type(caught.value), str(caught.value)


def halves(tree):
    return optree.tree_map(
        lambda leaf: None if leaf is None else leaf / 2, tree, none_is_leaf=True, namespace=NAMESPACE
    )


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("function", PAIRS)
def test_results_are_those_of_the_list_in_the_structure_of_the_tree(function, structure):
    of_tree, of_list = PAIRS[function]
    tree = STRUCTURES[structure](*tensors())
    shape, leaves = leaves_of(tree)
    assert are_same(leaves, tensors())  # the result of this file's own traversal
    expected, norm = of_list(leaves)
    assert not are_same(expected, leaves)  # something is clipped

    clipped, own = of_tree(tree)
    assert own == norm
    new_shape, new_leaves = leaves_of(clipped)
    assert new_shape == shape
    assert are_same(new_leaves, expected)
    assert are_same(leaves_of(tree)[1], tensors())  # the input is as it was
    assert clipped is not tree

    # Into another tree, into that tree without one of its outputs, and in place.
    outs = copy_of(tree)
    clipped, own = of_tree(tree, out=outs)
    assert own == norm
    assert leaves_of(clipped)[0] == shape
    assert all(a is b for a, b in zip(leaves_of(clipped)[1], leaves_of(outs)[1], strict=True))
    assert are_same(leaves_of(outs)[1], expected)

    first = array(0.0, 0.0, 0.0)
    clipped, own = of_tree(tree, out=STRUCTURES[structure](first, None, None, None))
    assert own == norm
    assert are_same(leaves_of(clipped)[1], expected)
    assert leaves_of(clipped)[1][0] is first
    assert are_same(leaves_of(tree)[1], tensors())

    clipped, own = of_tree(tree, out=tree)
    assert own == norm
    assert all(a is b for a, b in zip(leaves_of(clipped)[1], leaves, strict=True))
    assert are_same(leaves, expected)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_norms_are_those_of_the_list(structure):
    tree = STRUCTURES[structure](*tensors())
    assert gt.global_norm(tree, namespace=NAMESPACE) == gc.global_norm(tensors())
    assert gt.global_norm(tree, ord=3, namespace=NAMESPACE) == gc.global_norm(tensors(), ord=3)
    for order in (2, 1, math.inf):
        found = gt.norms(tree, ord=order, namespace=NAMESPACE)
        assert list(found.values()) == gc.norms(tensors(), ord=order).tolist()
        assert {type(norm) for norm in found.values()} == {float}


PATHS = {
    "dict": ["a", "b", "x", "z"],
    "list": ["0", "1", "2", "3"],
    "tuple": ["0", "1", "2", "3"],
    "namedtuple": ["kernel/kernel", "kernel/bias", "bias/kernel", "bias/bias"],
    "OrderedDict": ["z", "y", "b", "a"],
    "defaultdict": ["a", "b", "c", "d"],
    "deque": ["0", "1", "2", "3"],
    "keys of several types": ["1", "2", "a", "b"],
    "keys that have no order": ["1j", "0j", "3j", "2j"],
    "nested": ["encoder/0/bias", "encoder/0/kernel", "encoder/3/kernel", "head/0"],
    "registered": ["0/0", "0/1/0", "1/kernel", "1/bias"],
}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_paths_are_keys_places_and_names_of_fields(structure):
    assert list(gt.norms(STRUCTURES[structure](*tensors()), namespace=NAMESPACE)) == PATHS[structure]


def test_paths_of_special_keys():
    assert gt.norms({"": array(1.0)}) == {"": 1.0}
    assert gt.norms({"": {"": array(1.0)}}) == {"/": 1.0}
    assert gt.norms({Words.A: array(1.0)}) == {str(Words.A): 1.0}
    assert gt.norms({None: {True: array(1.0)}}) == {"None/True": 1.0}


@pytest.mark.parametrize(
    ("tree", "places", "path"),
    [
        ({"a/b": 1.0, "a": {"b": 2.0}}, "tree['a']['b'] and tree['a/b']", "a/b"),
        ({"x": 0.0, 1: 1.0, "1": 2.0}, "tree[1] and tree['1']", "1"),
        ([{"0": 1.0, 0: None}, {"0": 1.0, 0: None}], "tree[0][0] and tree[0]['0']", "0/0"),
    ],
)
def test_two_leaves_with_one_path_are_an_error_that_names_both(tree, places, path):
    allowed = "allowed: leaves with paths of their own"
    message = f"tree: found {places}, both of the path {path!r}; {allowed}"
    assert error_of(lambda: gt.norms(tree)) == (ValueError, f"norms: {message}")
    assert error_of(lambda: gt.norms(tree, "epoch 3")) == (ValueError, f"norms 'epoch 3': {message}")
    assert gt.global_norm(tree) == gc.global_norm(optree.tree_leaves(tree))  # which needs no paths


def test_a_single_leaf_is_a_tree():
    x = array(3.0, 4.0)
    assert gt.norms(x) == {"": 5.0}
    assert gt.global_norm(x) == 5.0
    clipped, norm = gt.clip_by_global_norm(x, 2.5)
    assert norm == 5.0
    assert oracle.same_bits(clipped, array(1.5, 2.0))
    assert gt.clip_by_norm(x, 2.5, out=x) is x
    assert oracle.same_bits(x, clipped)
    assert gt.clip_by_global_norm(None, 1.0) == (None, 0.0)
    assert gt.clip_by_value(None, 0, 1) is None
    assert gt.norms(None) == {"": 0.0}


@pytest.mark.parametrize("empty", [{}, [], (), OrderedDict(), [[], {"a": ()}], Layer((), {})], ids=repr)
def test_trees_without_leaves_come_back(empty):
    assert gt.global_norm(empty) == 0.0
    assert gt.norms(empty) == {}
    for found in (
        gt.clip_by_global_norm(empty, 1.0)[0],
        gt.clip_by_global_norm(empty, 1.0, out=empty)[0],
        gt.clip_by_norm(empty, 1.0),
        gt.clip_by_value(empty, 0, 1),
        gt.clip_by_value(empty, 0, 1, out=empty),
        gt.clip_difference_by_global_norm(empty, empty, 1.0)[0],
    ):
        assert found == empty
        assert type(found) is type(empty)


def test_leaves_are_what_entries_of_a_list_may_be():
    class HasArray:
        def __array__(self, dtype=None, copy=None):
            return array(4.0)

    rows = gc.IndexedSlices(array([12.0], [0.0]), [5, 1], (9, 1))
    tree = {"number": 3.0, "object": HasArray(), "rows": [rows], "none": None, "scalar": np.float32(0.0)}
    clipped, norm = gt.clip_by_global_norm(tree, 6.5)
    assert norm == 13.0
    assert oracle.same_bits(clipped["number"], np.array(1.5))
    assert oracle.same_bits(clipped["object"], array(2.0))
    assert clipped["rows"] == [gc.IndexedSlices(array([6.0], [0.0]), [5, 1], (9, 1))]
    assert gt.norms(tree) == {"none": 0.0, "number": 3.0, "object": 4.0, "rows/0": 12.0, "scalar": 0.0}
    outs = {"number": None, "object": array(0.0), "rows": [rows], "none": None, "scalar": None}
    for found in (gt.clip_by_value(tree, 1, 5), gt.clip_by_value(tree, 1, 5, out=outs)):
        assert found["rows"] == [gc.IndexedSlices(array([5.0], [1.0]), [5, 1], (9, 1))]
        assert oracle.same_bits(found["number"], np.array(3.0))
        assert oracle.same_bits(found["scalar"], array(1.0)[0])
    assert found["rows"][0] is rows
    assert found["object"] is outs["object"]


ROOM = array(*range(-20, 20))
#: Leaves that are in several places of a tree: views of one array, of no axes, of other dtypes and byte orders.
SHARED = [ROOM[:9], ROOM[3:20:2], ROOM.reshape(4, 10).T, np.array(3.0), ROOM[:7].astype("f2"), ROOM[:6].astype(">f8")]
LEAVES = st.one_of(
    st.none(),
    st.lists(st.floats(-1e3, 1e3, width=32), max_size=4).map(lambda values: array(*values)),
    st.sampled_from(SHARED),
)
TREES = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.lists(children, max_size=4).map(lambda c: Registered(*c, mark=len(c))),
        st.tuples(children, children).map(lambda pair: Layer(*pair)),
        st.dictionaries(st.text("ab/0", max_size=2) | st.integers(0, 3), children, max_size=4),
        st.dictionaries(st.text("ab", max_size=2), children, max_size=4).map(OrderedDict),
    ),
    max_leaves=12,
)


@given(TREES, st.floats(0, 10))
def test_random_trees(tree, limit):
    shape, leaves = leaves_of(tree)
    before = [None if leaf is None else leaf.copy() for leaf in leaves]
    of_list, norm = gc.clip_by_global_norm(leaves, limit)
    of_base, step = gc.clip_difference_by_global_norm(leaves, halves(leaves), limit)
    each = [None if leaf is None else gc.clip_by_norm(leaf, limit) for leaf in leaves]
    values = [None if leaf is None else gc.clip_by_value(leaf, -limit, limit) for leaf in leaves]
    assert gt.global_norm(tree, namespace=NAMESPACE) == norm
    for (found, own), (expected, its_norm) in (
        (gt.clip_by_global_norm(tree, limit, namespace=NAMESPACE), (of_list, norm)),
        (gt.clip_difference_by_global_norm(tree, halves(tree), limit, namespace=NAMESPACE), (of_base, step)),
        ((gt.clip_by_norm(tree, limit, namespace=NAMESPACE), 0), (each, 0)),
        ((gt.clip_by_value(tree, -limit, limit, namespace=NAMESPACE), 0), (values, 0)),
        ((gt.clip_by_value(tree, -limit, limit, out=copy_of(tree), namespace=NAMESPACE), 0), (values, 0)),
        (gt.clip_by_global_norm(tree, limit, out=copy_of(tree), namespace=NAMESPACE), (of_list, norm)),
    ):
        new_shape, new_leaves = leaves_of(found)
        assert new_shape == shape
        assert are_same(new_leaves, expected)
        assert own == its_norm
    assert are_same(leaves, before)


def paths_of(node, above=()):
    """The paths of the leaves, as parts."""
    if type(node) in (dict, OrderedDict):
        keys = node if type(node) is OrderedDict else sorted(node, key=lambda key: (type(key).__name__, key))
        entries = [(key, node[key]) for key in keys]
    elif type(node) is Layer:
        entries = zip(Layer._fields, node, strict=True)
    elif type(node) in (list, tuple, Registered):
        entries = enumerate(node.children if type(node) is Registered else node)
    else:
        return [above]
    return [path for key, child in entries for path in paths_of(child, (*above, str(key)))]


@given(TREES)
def test_paths_of_random_trees(tree):
    expected = ["/".join(path) for path in paths_of(tree)]
    if len(set(expected)) < len(expected):
        assert "both of the path" in error_of(lambda: gt.norms(tree, namespace=NAMESPACE))[1]
    else:
        norms = gc.norms(leaves_of(tree)[1]).tolist()
        assert list(gt.norms(tree, namespace=NAMESPACE).items()) == list(zip(expected, norms, strict=True))


def test_the_order_of_insertion_never_shows(monkeypatch):
    entries = {"c": {2: array(4.0), 1: array(3.0)}, "a": [array(1.0), array(2.0)], "b": None}
    expected = [1.0, 2.0, None, 3.0, 4.0]
    results, seen = set(), []
    for order, inner in itertools.product(itertools.permutations("abc"), ((1, 2), (2, 1))):
        tree = {key: entries[key] for key in order}
        tree["c"] = {key: entries["c"][key] for key in inner}
        clipped, norm = gt.clip_by_global_norm(tree, 1.0)
        assert list(clipped) == list(order)  # the result has the order of its tree
        assert list(clipped["c"]) == list(inner)
        results.add((norm, *(leaf.tobytes() for leaf in leaves_of(clipped)[1] if leaf is not None)))
        assert list(gt.norms(tree)) == ["a/0", "a/1", "b", "c/1", "c/2"]
        with monkeypatch.context() as patch:
            patch.setattr(gc, "global_norm", lambda leaves, *_, **__: seen.append(leaves))
            gt.global_norm(tree)
    assert len(results) == 1
    assert len(seen) == 12
    assert all([None if leaf is None else leaf[0] for leaf in leaves] == expected for leaves in seen)


def test_an_ordered_dict_keeps_its_order(monkeypatch):
    seen = []
    monkeypatch.setattr(gc, "global_norm", lambda leaves, *_, **__: seen.append(leaves))
    gt.global_norm(OrderedDict(b=1.0, a=2.0))
    gt.global_norm({1j: 1.0, 0j: 2.0})  # keys that have no order
    assert seen == [[1.0, 2.0], [1.0, 2.0]]


def test_what_is_within_the_limit_keeps_its_bits_in_place():
    tree = {"a": array(-0.0, math.nan), "b": [array(1.0)]}
    before = [leaf.tobytes() for leaf in leaves_of(tree)[1]]
    for clip in (
        lambda: gt.clip_by_global_norm(tree, math.inf, out=tree),
        lambda: gt.clip_by_norm(tree, math.inf, out=tree),
        lambda: gt.clip_by_value(tree, -2, 2, out=tree),
    ):
        clip()
        assert [leaf.tobytes() for leaf in leaves_of(tree)[1]] == before


def test_arguments_reach_the_function_of_lists(monkeypatch):
    calls = []
    for name in ("global_norm", "norms", "clip_by_global_norm", "clip_by_norms", "clip_difference_by_global_norm"):
        result = np.zeros(1) if name == "norms" else 0.0 if name == "global_norm" else ([None], np.zeros(1))
        monkeypatch.setattr(gc, name, lambda *a, result=result, **k: (calls.append((a, k)), result)[1])
    words = {"ord": 3, "nonfinite": "raise", "integers": "keep"}
    gt.global_norm({"a": 1.0}, "n", **words)
    gt.norms({"a": 1.0}, "n", ord=3)
    gt.clip_by_global_norm({"a": 1.0}, 2.0, 4.0, "n", strict=True, **words)
    gt.clip_by_norm({"a": 1.0}, 2, "n", ord=3, nonfinite="zero")
    gt.clip_difference_by_global_norm({"a": 1.0}, {"a": 0.0}, 2.0, 4.0, "n", **words)
    assert calls == [
        (([1.0], "n"), words),
        (([1.0], "n"), {"ord": 3}),
        (([1.0], 2.0, 4.0, "n"), {"strict": True, "out": None, **words}),
        (([1.0], 2.0, "n"), {"ord": 3, "nonfinite": "zero", "out": None}),
        (([1.0], [0.0], 2.0, 4.0, "n"), {"out": None, **words}),
    ]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("global_norm", "global_norm"),
        ("norms", "norms"),
        ("clip_by_global_norm", "clip_by_global_norm"),
        ("clip_by_norm", "clip_by_norms"),
        ("clip_by_value", "clip_by_value"),
        ("clip_difference_by_global_norm", "clip_difference_by_global_norm"),
    ],
)
def test_signatures_are_those_of_the_functions_of_lists(name, other):
    renamed = {"t": "tree", "t_list": "tree", "base_list": "base", "clip_norms": "clip_norm"}
    expected = [
        (renamed.get(p.name, p.name), p.default, p.kind)
        for p in inspect.signature(getattr(gc, other)).parameters.values()
    ]
    own = [(p.name, p.default, p.kind) for p in inspect.signature(getattr(gt, name)).parameters.values()]
    assert own == [*expected, ("namespace", "", inspect.Parameter.KEYWORD_ONLY)]


def test_integers_and_what_is_not_finite_are_treated_as_in_lists():
    tree = {"count": np.array([7]), "w": [array(3.0, 4.0)]}
    clipped, norm = gt.clip_by_global_norm(tree, 2.5, integers="keep")
    assert norm == 5.0 == gt.global_norm(tree, integers="keep")
    assert oracle.same_bits(clipped["count"], tree["count"])
    assert gt.global_norm(tree) == gc.global_norm([tree["count"], *tree["w"]])
    bad = {"a": array(1.0), "b": array(math.nan)}
    assert gt.clip_by_global_norm(bad, 1.0, nonfinite="zero")[0]["a"] == 0.0
    assert oracle.same_bits(gt.clip_by_norm(bad, 0.5, nonfinite="keep")["b"], bad["b"])
    assert gt.clip_by_norm(bad, 0.5, nonfinite="keep")["a"] == 0.5


# ---- errors


X, INTEGERS = array(3.0, 4.0), np.array([1, 2])
TREE = {"encoder": [Layer(X, None), X], "head": {"kernel": X}}
FUNCTIONS = {
    "global_norm": gt.global_norm,
    "norms": gt.norms,
    "clip_by_global_norm": lambda tree, name=None, **o: gt.clip_by_global_norm(tree, 1.0, None, name, **o),
    "clip_by_norm": lambda tree, name=None, **o: gt.clip_by_norm(tree, 1.0, name, **o),
    "clip_by_value": lambda tree, name=None, **o: gt.clip_by_value(tree, 0, 1, name, **o),
    "clip_difference_by_global_norm": lambda tree, name=None, **o: gt.clip_difference_by_global_norm(
        tree, tree, 1.0, None, name, **o
    ),
}
CLIPPERS = [name for name in FUNCTIONS if name.startswith("clip")]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", [None, "step 3", "t_list[0]: out[1]"])
def test_an_error_about_a_leaf_names_its_place(function, name):
    prefix = function if name is None else f"{function} '{name}'"
    for tree, place in (
        ({"a": X, "encoder": [X, {"kernel": "text"}]}, "tree['encoder'][1]['kernel']"),
        ([None, Layer(X, "text")], "tree[1].bias"),
        ("text", "tree"),
    ):
        error, message = error_of(lambda tree=tree: FUNCTIONS[function](tree, name))
        assert error is TypeError
        assert message.startswith(f"{prefix}: {place}: found dtype <U4; allowed: "), message


@pytest.mark.parametrize("function", CLIPPERS)
def test_an_error_about_an_output_names_its_place(function):
    clip = FUNCTIONS[function]
    frozen = X.copy()
    frozen.flags.writeable = False
    for own, error, message in (
        (array(1.0), ValueError, "found shape (1,); allowed: shape (2,)"),
        (frozen, ValueError, "found a read-only array; allowed: a writeable one"),
        (X.astype(np.float64), TypeError, "found dtype float64; allowed: dtype float32"),
        ("text", TypeError, "found str 'text'; allowed: None or a numpy.ndarray"),
    ):
        out = {"encoder": [Layer(None, None), own], "head": {"kernel": None}}
        assert error_of(lambda out=out: clip(TREE, out=out)) == (error, f"{function}: out['encoder'][1]: {message}")
    shared = X.copy()
    out = {"encoder": [Layer(shared, None), None], "head": {"kernel": shared[::-1]}}
    found = "found an array that shares memory with out['encoder'][0].kernel; allowed: arrays that share no byte"
    assert error_of(lambda: clip(TREE, out=out)) == (ValueError, f"{function}: out['head']['kernel']: {found}")
    out = {"encoder": [Layer(None, X), None], "head": {"kernel": None}}
    message = f"{function}: out['encoder'][0].bias: found ndarray of dtype float32 and shape (2,); "
    assert error_of(lambda: clip(TREE, out=out)) == (TypeError, f"{message}allowed: None, as tree has there")


#: Trees of another structure than TREE: what is found where, and what is allowed.
OTHERS = [
    (5, "", "found a leaf; allowed: dict, as tree is"),
    ([], "", "found list; allowed: dict, as tree is"),
    ({"encoder": [Layer(X, None), X]}, "", "found no entry 'head'; allowed: the entries of tree"),
    ({**TREE, "tail": X}, "", "found an entry 'tail'; allowed: the entries of tree"),
    ({**TREE, "encoder": [TREE]}, "['encoder']", "found no entry 1; allowed: the entries of tree['encoder']"),
    ({**TREE, "encoder": [X] * 3}, "['encoder']", "found an entry 2; allowed: the entries of tree['encoder']"),
    ({**TREE, "encoder": (X, X)}, "['encoder']", "found tuple; allowed: list, as tree['encoder'] is"),
    ({**TREE, "encoder": [[X, None], X]}, "['encoder'][0]", "found list; allowed: Layer, as tree['encoder'][0] is"),
    (
        {**TREE, "encoder": [Layer(X, []), X]},
        "['encoder'][0].bias",
        "found list; allowed: a leaf, as tree['encoder'][0].bias is",
    ),
    (
        {**TREE, "head": OrderedDict(kernel=[X])},
        "['head']['kernel']",
        "found list; allowed: a leaf, as tree['head']['kernel'] is",
    ),
]


@pytest.mark.parametrize(("other", "place", "message"), OTHERS)
def test_another_structure_is_an_error_that_names_the_difference(other, place, message):
    for function in CLIPPERS:
        expected = (ValueError, f"{function} 'n': out{place}: {message}")
        assert error_of(lambda function=function: FUNCTIONS[function](TREE, "n", out=other)) == expected
    assert error_of(lambda: gt.clip_difference_by_global_norm(TREE, other, 1.0)) == (
        ValueError,
        f"clip_difference_by_global_norm: base{place}: {message}",
    )


def test_a_difference_is_found_whatever_the_order_of_keys():
    """Keys that cannot be sorted."""
    tree, out = {1j: X, 2j: [X]}, {2j: [X, X], 1j: X}
    message = "clip_by_norm: out[2j]: found an entry 1; allowed: the entries of tree[2j]"
    assert error_of(lambda: gt.clip_by_norm(tree, 1.0, out=out)) == (ValueError, message)


def test_the_difference_of_wide_trees_is_found_at_once():
    tree = {str(i): X for i in range(20_000)}
    start = time.perf_counter()
    for other, place, message in (
        ({**tree, "9999": [X]}, "['9999']", "found list; allowed: a leaf, as tree['9999'] is"),
        ({**tree, "more": X}, "", "found an entry 'more'; allowed: the entries of tree"),
    ):
        found = error_of(lambda other=other: gt.clip_by_norm(tree, 1.0, out=other))
        assert found == (ValueError, f"clip_by_norm: out{place}: {message}")
    assert time.perf_counter() - start < 20  # minutes, if each entry were looked for in a list


@pytest.mark.parametrize("text", ["out[99]", "out[1]", "it's out[1]", "both \"' t_list out[0]", "out[1] " * 20])
def test_a_text_of_the_user_stands_in_a_message_as_it_is(text):
    function = gt.clip_by_global_norm
    found, message = error_of(lambda: function({"a": X, "b": None}, 1.0, out={"a": text, "b": None}))
    assert found is TypeError
    shown = repr(text) if len(text) < 80 else f"{repr(text)[:80]}..."
    assert message == f"clip_by_global_norm: out['a']: found str {shown}; allowed: None or a numpy.ndarray"


def test_another_structure_of_a_registered_class_is_an_error():
    tree, function = [Registered(X, X, mark="m")], lambda out: gt.clip_by_norm(tree, 1.0, out=out, namespace=NAMESPACE)
    assert error_of(lambda: function([Registered(X, None, mark="n")])) == (
        ValueError,
        "clip_by_norm: out[0]: found Registered with other metadata; allowed: that of tree[0]",
    )
    found = error_of(lambda: function([Registered(X, mark="m")]))
    assert found == (ValueError, "clip_by_norm: out[0]: found no entry 1; allowed: the entries of tree[0]")


def test_dicts_of_all_kinds_stand_for_each_other():
    kinds = (dict, OrderedDict, lambda entries: defaultdict(list, entries))
    for tree_kind, out_kind in itertools.product(kinds, kinds):
        tree, out = tree_kind({"b": X, "a": None}), out_kind({"a": None, "b": X.copy()})
        clipped, _ = gt.clip_by_global_norm(tree, 2.5, out=out)
        assert type(clipped) is type(tree)
        assert clipped["b"] is out["b"]
        assert oracle.same_bits(out["b"], array(1.5, 2.0))
        base = out_kind({"a": None, "b": array(0.0, 0.0)})
        assert oracle.same_bits(gt.clip_difference_by_global_norm(tree, base, 2.5)[0]["b"], array(1.5, 2.0))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_unregistered_class_is_an_error_that_says_what_to_do(function):
    for leaf, name in ((Unregistered(X), "Unregistered"), (types.MappingProxyType({"a": X}), "mappingproxy")):
        for tree, place in (({"a": X, "b": [leaf]}, "tree['b'][0]"), (leaf, "tree")):
            found = f"found an object of the class {name}, which optree does not know"
            allowed = "allowed: an array, or a class that optree.register_pytree_node has registered"
            expected = (TypeError, f"{function} 'n': {place}: {found}; {allowed}")
            assert error_of(lambda tree=tree: FUNCTIONS[function](tree, "n")) == expected
    tree = [Dense(X, X)]  # registered elsewhere
    error, message = error_of(lambda: FUNCTIONS[function](tree))
    assert (error, "optree.register_pytree_node" in message) == (TypeError, True)
    assert FUNCTIONS[function](tree, namespace=NAMESPACE) is not None


def test_an_unregistered_class_in_the_base_is_an_error_that_says_what_to_do():
    found = error_of(lambda: gt.clip_difference_by_global_norm({"a": X}, {"a": Unregistered(X)}, 1.0))
    assert found[0] is TypeError
    assert found[1].startswith("clip_difference_by_global_norm: base['a']: found an object of the class Unregistered, ")


def test_an_unregistered_class_in_the_output_is_an_error_that_says_what_to_do():
    error, message = error_of(lambda: gt.clip_by_norm({"a": X}, 1.0, out={"a": Unregistered(X)}))
    assert error is TypeError
    assert message.startswith("clip_by_norm: out['a']: found an object of the class Unregistered, ")


@pytest.mark.parametrize("kind", [list, tuple, dict, OrderedDict, deque, UserList, ChainMap], ids=lambda k: k.__name__)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_unregistered_collection_is_an_error_that_says_what_to_do(function, kind):
    own = type("Own", (kind,), {})
    leaf = own({"a": 1.0} if issubclass(kind, (dict, ChainMap)) else [1.0, 2.0])
    allowed = "allowed: an array, or a class that optree.register_pytree_node has registered"
    assert error_of(lambda: FUNCTIONS[function]({"a": X, "b": [None, leaf]}, "n")) == (
        TypeError,
        f"{function} 'n': tree['b'][1]: found an object of the class Own, which optree does not know; {allowed}",
    )


def test_an_unregistered_list_beside_the_tree_is_an_error_that_says_what_to_do():
    class Own(list):
        pass

    base = {"a": array(0.0, 0.0)}
    for call, place in (
        (lambda: gt.clip_difference_by_global_norm({"a": X}, {"a": Own([0.0, 0.0])}, 1.0), "base"),
        (lambda: gt.clip_difference_by_global_norm({"a": X}, base, 1.0, out={"a": Own([0.0, 0.0])}), "out"),
        (lambda: gt.clip_by_value({"a": X}, 0, 1, out={"a": Own([0.0, 0.0])}), "out"),
    ):
        error, message = error_of(call)
        assert error is TypeError
        assert (
            f": {place}['a']: found an object of the class {Own.__qualname__}, which optree does not know; " in message
        )


def test_a_registered_list_is_a_node():
    class Own(list):
        pass

    optree.register_pytree_node(Own, lambda own: (own, None), lambda _, children: Own(children), namespace=NAMESPACE)
    clipped, norm = gt.clip_by_global_norm({"a": Own([3.0, [4.0]])}, 10.0, namespace=NAMESPACE)
    assert norm == 5.0
    assert type(clipped["a"]) is Own


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_ordinary_object_is_an_error_that_says_how_to_register_its_class(function):
    class Own:
        pass

    allowed = "allowed: an array, or a class that optree.register_pytree_node has registered"
    found = f"found an object of the class {Own.__qualname__}, which optree does not know"
    assert error_of(lambda: FUNCTIONS[function]({"a": Own()})) == (
        TypeError,
        f"{function}: tree['a']: {found}; {allowed}",
    )
    for leaf in (10**400, np.array([None])):  # whose classes are known
        assert "optree" not in error_of(lambda leaf=leaf: FUNCTIONS[function]({"a": leaf}))[1]


def test_a_list_that_is_an_array_is_a_leaf():
    class Own(list):
        def __array__(self, dtype=None, copy=None):
            return X

    assert gt.global_norm({"a": Own()}) == 5.0


def test_a_dataclass_that_is_an_array_is_a_leaf():
    @dataclasses.dataclass
    class Own:
        values: object

        def __array__(self, dtype=None, copy=None):
            return self.values

    assert gt.global_norm({"a": Own(X)}) == 5.0


def test_what_the_own_code_of_a_leaf_raises_passes_through():
    raised = ValueError("t_list[0]: out[1]: what the leaf says")

    class Hostile:
        def __array__(self, dtype=None, copy=None):
            raise raised

    for function in FUNCTIONS.values():
        with pytest.raises(ValueError, match="what the leaf says") as caught:
            function({"a": Hostile()})
        assert caught.value is raised
        assert str(raised) == "t_list[0]: out[1]: what the leaf says"


def test_errors_keep_their_cause():
    class Nested(list):
        """No node, as it is an array, and a ragged one."""

        def __array__(self, dtype=None, copy=None):
            return np.array(list(self))

    for function, clip in FUNCTIONS.items():
        with pytest.raises(ValueError, match=rf"^{function}: tree\['a'\]: found a ragged list") as caught:
            clip({"a": Nested([[1.0], [2.0, 3.0]])})
        assert isinstance(caught.value.__cause__, ValueError)


def test_errors_keep_their_type_and_attributes():
    tree = {"b": [array(1.0, math.nan), X], "a": array(math.inf, math.nan, math.nan)}
    for function in ("global_norm", "clip_by_global_norm", "clip_by_norm"):
        with pytest.raises(gc.NonFiniteError) as caught:
            FUNCTIONS[function](tree, "n", nonfinite="raise")
        assert str(caught.value) == (
            f"{function} 'n': tree['a']: 2 NaN and 1 infinite of 3 elements, the first at (0,); "
            "tree['b'][0]: 1 NaN of 2 elements, the first at (1,)"
        )
        assert math.isnan(caught.value.norm)
        assert caught.value.entries == (0, 1)
    with pytest.raises(gc.NonFiniteError) as caught:
        gt.clip_difference_by_global_norm({"a": X}, {"a": array(math.inf, 1.0)}, 1.0, nonfinite="raise")
    assert str(caught.value).startswith("clip_difference_by_global_norm: base['a']: 1 infinite of 2 elements")
    with pytest.raises(gc.NonFiniteError) as caught:
        gt.clip_by_global_norm({"a": X}, 1.0, math.inf, nonfinite="raise")
    assert str(caught.value).startswith("clip_by_global_norm: use_norm: found inf")
    assert caught.value.entries == ()


@pytest.mark.parametrize("function", ["clip_by_global_norm", "clip_difference_by_global_norm"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x",), {}),
        ((-1.0,), {}),
        ((1.0, "x"), {}),
        ((1.0, None, 5), {}),
        ((1.0, None, "n"), {"ord": 0}),
        ((1.0,), {"nonfinite": "out[0]"}),
        ((1.0,), {"integers": "t_list[0]"}),
    ],
)
def test_errors_about_other_arguments_are_those_of_lists(function, arguments, words):
    count = 2 if "difference" in function else 1
    found = error_of(lambda: getattr(gt, function)(*[{"a": X}] * count, *arguments, **words))
    assert found == error_of(lambda: getattr(gc, function)(*[[X]] * count, *arguments, **words))


@pytest.mark.parametrize("limit", ["x", -1.0, math.nan, True, None, [1.0], (1.0, 2.0), np.ones(1), np.ones((2, 2))])
def test_errors_about_the_limit_of_each_leaf_are_those_of_a_tensor(limit):
    found = error_of(lambda: gt.clip_by_norm({"a": X}, limit, "n"))
    assert found == error_of(lambda: gc.clip_by_norm(X, limit, name="n"))


def test_errors_show_no_other_error_before_them():
    for words in ({"out": 5}, {"clip_norm": "x"}):
        with pytest.raises((TypeError, ValueError)) as caught:
            gt.clip_by_norm({"a": X}, **{"clip_norm": 1.0, **words})
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


def test_errors_about_the_order_name_the_function_of_trees():
    assert error_of(lambda: gt.clip_by_norm({"a": X}, 1.0, ord=-1))[1].startswith("clip_by_norm: ord: found int -1; ")


def test_errors_come_in_the_order_of_the_arguments():
    for call, beginning in (
        (lambda: gt.clip_by_global_norm({"a": "x"}, "x", name=5, out=5), "clip_by_global_norm: tree['a']: "),
        (lambda: gt.clip_by_global_norm({"a": X}, "x", name=5, out=5), "clip_by_global_norm: clip_norm: "),
        (lambda: gt.clip_by_global_norm({"a": X}, 1.0, name=5, out=5), "clip_by_global_norm: name: "),
        (lambda: gt.clip_by_global_norm({"a": X}, 1.0, ord=-1, out=5), "clip_by_global_norm: ord: "),
        (lambda: gt.clip_by_norm({"a": "x"}, "x", name=5, out=5), "clip_by_norm: tree['a']: "),
        (lambda: gt.clip_by_norm({"a": X}, "x", name=5, out=5), "clip_by_norm: clip_norm: "),
        (lambda: gt.clip_by_norm({"a": X}, 1.0, name=5, out=5), "clip_by_norm: name: "),
        (
            lambda: gt.clip_difference_by_global_norm({"a": "x"}, 5, "x", out=5),
            "clip_difference_by_global_norm: tree['a']: ",
        ),
        (lambda: gt.clip_difference_by_global_norm({"a": X}, 5, "x", out=5), "clip_difference_by_global_norm: base: "),
        (
            lambda: gt.clip_difference_by_global_norm({"a": X}, {"a": X}, "x", out=5),
            "clip_difference_by_global_norm: clip_norm: ",
        ),
        (lambda: gt.clip_by_value({"a": X}, "x", "y", name=5, out=5), "clip_by_value: clip_value_min at tree['a']: "),
        (lambda: gt.clip_by_value({"a": X}, 0, "y", name=5, out=5), "clip_by_value: clip_value_max at tree['a']: "),
        (lambda: gt.clip_by_value({"a": X}, 0, 1, name=5, out=5), "clip_by_value: name: "),
        (lambda: gt.clip_by_value({"a": X}, 0, 1, out=5), "clip_by_value: out: "),
    ):
        assert error_of(call)[1].startswith(beginning)


# ---- several processes


@pytest.mark.parametrize("more", [{}, {"reproducible": True}])
def test_trees_on_several_ranks_share_the_norm_of_lists(more):
    trees = [{"a": np.full(3, 2.0), "b": [np.ones(2)]}, {"a": np.full(5, 3.0), "b": [np.ones(2)]}]
    copies, of_list = {"a": False, "b": [True]}, [False, True]

    def on_each(of_tree, of_its_leaves):
        found = ranks.run([lambda c, t=t: of_tree(t, c) for t in trees])
        return found, ranks.run([lambda c, t=t: of_its_leaves([t["a"], t["b"][0]], c) for t in trees])

    for found, expected in zip(
        *on_each(
            lambda t, c: gt.clip_by_global_norm(t, 1.0, comm=c, replicated=copies, **more),
            lambda own, c: gc.clip_by_global_norm(own, 1.0, comm=c, replicated=of_list, **more),
        ),
        strict=True,
    ):
        assert found[1] == expected[1] == pytest.approx(math.sqrt(3 * 4 + 5 * 9 + 2))
        assert np.array_equal(found[0]["a"], expected[0][0])
        assert np.array_equal(found[0]["b"][0], expected[0][1])
    found, expected = on_each(
        lambda t, c: gt.global_norm(t, comm=c, replicated=copies, **more),
        lambda own, c: gc.global_norm(own, comm=c, replicated=of_list, **more),
    )
    assert found == expected
    if not more:
        found, expected = on_each(
            lambda t, c: gt.norms(t, comm=c, replicated=copies),
            lambda own, c: gc.norms(own, comm=c, replicated=of_list).tolist(),
        )
        assert [list(norms.values()) for norms in found] == expected


def test_another_structure_of_replicated_is_an_error_on_every_rank():
    trees = [{"a": np.ones(3)}, {"a": np.ones(3)}]
    for error in ranks.run([lambda c, t=t: gt.global_norm(t, comm=c, replicated={"b": True}) for t in trees]):
        with pytest.raises(ValueError, match="replicated"):
            ranks.raise_again(error)


class OwnDict(dict):
    """A class that optree does not know."""


SHARED = ["global_norm", "norms", "clip_by_global_norm"]


def raise_from_node(_):
    raise OSError("no children today")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *itertools.product(
            ["global_norm", "norms", "clip_by_global_norm"], ["class", "namespace", "node", "replicated"]
        ),
        ("norms", "paths"),
        ("clip_by_global_norm", "out"),
        ("clip_by_global_norm", "nested out"),
    ],
)
def test_an_error_of_one_tree_reaches_the_other_ranks(name, fault):
    """Before the function of lists is called, too: the other ranks would wait for ever."""
    function = FUNCTIONS[name]

    class Broken:
        pass

    good = {"a": np.ones(2)}
    tree, options = {
        "class": ({"a": OwnDict(x=np.ones(2))}, {}),
        "namespace": (good, {"namespace": 3}),
        "paths": ({"a": {"b": X}, "a/b": X}, {}),
        "node": ({"a": Broken()}, {"namespace": NAMESPACE}),
        "replicated": (good, {"replicated": {"b": True}}),
        "out": (good, {"out": {"b": np.ones(2)}}),
        "nested out": ([X, [X]], {"out": [X, [[X]]]}),
    }[fault]
    optree.register_pytree_node(Broken, raise_from_node, lambda *_: Broken(), namespace=NAMESPACE)
    try:
        works = [
            lambda c: function(tree, comm=c, **options),
            lambda c: function(good, comm=c),
        ]
        own, other = ranks.run(works)
    finally:
        optree.unregister_pytree_node(Broken, namespace=NAMESPACE)
    assert isinstance(own, Exception)
    assert type(own) is type(other)
    assert str(own) == str(other)
    assert str(own).endswith(" (on rank 0)")
    assert "ellipsis" not in str(own)


def test_a_leaf_of_another_rank_has_no_path_here():
    trees = [{"w": object()}, {"k": [np.ones(2)]}]
    own, other = ranks.run([lambda c, t=t: gt.global_norm(t, comm=c) for t in trees])
    assert str(own).startswith("global_norm: tree['w']: found ")
    assert str(other).startswith("global_norm: leaf 0 of tree: found ")
    assert str(own).endswith(" (on rank 0)")
    assert str(other).endswith(" (on rank 0)")
    trees = [{"w": np.array([np.nan])}, {"k": [np.ones(2)]}]
    own, other = ranks.run([lambda c, t=t: gt.global_norm(t, nonfinite="raise", comm=c) for t in trees])
    assert "tree['w']: 1 NaN" in str(own)
    assert str(other) == "global_norm: tree: found an element that is infinite or NaN on rank 0"


def test_a_namespace_is_a_string():
    for name, function in FUNCTIONS.items():
        found = error_of(lambda function=function: function({"a": X}, namespace=3))
        assert found == (TypeError, f"{name}: namespace: found int 3; allowed: a str")


def test_what_the_own_code_of_a_node_raises_passes_through():
    class Broken:
        pass

    def flatten(_):
        raise TypeError("no children today")

    optree.register_pytree_node(Broken, flatten, lambda *_: Broken(), namespace=NAMESPACE)
    try:
        assert error_of(lambda: gt.norms([Broken()], namespace=NAMESPACE)) == (TypeError, "no children today")
        found = error_of(lambda: gt.clip_by_norm([X], 1.0, out=[Broken()], namespace=NAMESPACE))
        assert found == (TypeError, "no children today")
    finally:
        optree.unregister_pytree_node(Broken, namespace=NAMESPACE)


def test_a_tree_that_contains_itself_is_an_error():
    tree = [X]
    tree.append(tree)
    with pytest.raises(RecursionError):
        gt.global_norm(tree)


# ---- clip_by_value, which has no function of lists


@pytest.mark.parametrize(
    ("low", "high", "error", "message"),
    [
        (0.5, None, TypeError, "clip_value_min at tree['b'][0]: found float 0.5; "),
        (None, "1", TypeError, "clip_value_max at tree['a']: found str '1'; "),
        (array(0, 1, 2), None, ValueError, "clip_value_min at tree['a']: found shape (3,); "),
        (0, array(2.0, 3.0), TypeError, "clip_value_max at tree['b'][0]: found ndarray of dtype float32 "),
        (None, None, ValueError, "clip_value_min: found None for both bounds; "),
    ],
)
def test_an_error_about_a_bound_names_the_leaf_and_nothing_is_written(low, high, error, message):
    for wants_out in (False, True):
        tree = {"a": array(-5.0, 5.0), "b": [np.array([-5, 5])]}
        words = {"out": tree} if wants_out else {}
        found, text = error_of(lambda tree=tree, words=words: gt.clip_by_value(tree, low, high, "n", **words))
        assert (found, text[: len("clip_by_value 'n': " + message)]) == (error, "clip_by_value 'n': " + message)
        assert oracle.same_bits(tree["a"], array(-5.0, 5.0))
        assert oracle.same_bits(tree["b"][0], np.array([-5, 5]))


@pytest.mark.parametrize("wrong", ["text", array(1j, dtype=np.complex64), np.array([True]), Unregistered(1)], ids=repr)
def test_an_error_about_a_later_leaf_comes_before_anything_is_written(wrong):
    tree, out = {"a": array(-5.0), "b": wrong}, {"a": array(7.0), "b": None}
    assert error_of(lambda: gt.clip_by_value(tree, 0, 1, out=out))[1].startswith("clip_by_value: tree['b']: found ")
    assert error_of(lambda: gt.clip_by_value(tree, [0], 1, out=out))[1].startswith("clip_by_value: tree['b']: found ")
    assert oracle.same_bits(out["a"], array(7.0))
    tree["b"] = array(-5.0)
    out["b"] = array(7.0, 7.0)
    assert error_of(lambda: gt.clip_by_value(tree, 0, 1, out=out))[1].startswith("clip_by_value: out['b']: found shape")
    assert oracle.same_bits(out["a"], array(7.0))


@pytest.mark.parametrize("bounds", [(None, None), ("x", 1), (0, [[1], 2])])
def test_bounds_are_checked_without_leaves_too(bounds):
    for tree in ({}, [None]):
        assert error_of(lambda tree=tree: gt.clip_by_value(tree, *bounds))
        assert error_of(lambda tree=tree: gt.clip_by_value(tree, *bounds, out=tree))
        assert gt.clip_by_value(tree, array(0.0, 0.0), array([1.0], [1.0]), out=tree) == tree
    assert error_of(lambda: gt.clip_by_value({}, 0, 1, 5)) == (
        TypeError,
        "clip_by_value: name: found int 5; allowed: None or a str",
    )


@pytest.mark.parametrize("make", [list, UserList])
def test_an_error_about_a_bound_without_leaves_names_it(make):
    for bounds, argument in (((make([[1], [1, 2]]), None), "clip_value_min"), ((0, make([[1], 2])), "clip_value_max")):
        found, message = error_of(lambda bounds=bounds: gt.clip_by_value({}, *bounds, "n"))
        assert found is ValueError
        assert message.startswith(f"clip_by_value 'n': {argument}: found a ragged list; ")
    message = "found shape (3, 4); allowed: a shape that broadcasts to that of the tensor, (2, 4)"
    found = error_of(lambda: gt.clip_by_value({}, np.zeros((2, 1)), np.zeros((3, 4))))
    assert found == (ValueError, f"clip_by_value: clip_value_max: {message}")


def test_bounds_without_leaves_are_checked_without_memory():
    tree, n = {"a": None}, 10**6
    for low, high in ((np.zeros((n, 1)), np.ones((1, n))), (np.zeros((1,) * 64), 0.5), (np.zeros((0, 1)), np.ones(3))):
        assert gt.clip_by_value(tree, low, high) == tree
        assert gt.clip_by_value(tree, low, high, out=tree) == tree


@pytest.mark.parametrize("bound", [[-1, 2**63], [2**70, -(2**70)], (2**63 + 2**39 + 1, -1)])
@pytest.mark.parametrize("dtype", [np.uint64, np.int32, np.float32, np.float64])
def test_a_list_of_integers_means_the_same_with_outputs(dtype, bound):
    tree = {"w": np.array([1, 100]).astype(dtype)}
    tree["w"][0] = np.finfo(dtype).max if np.dtype(dtype).kind == "f" else np.iinfo(dtype).max
    for bounds in ((None, bound), (bound, None)):
        expected, outs = gt.clip_by_value(tree, *bounds), copy_of(tree)
        assert are_same(gt.clip_by_value(tree, *bounds, out=outs), expected)
        assert are_same(outs, expected)


def test_a_list_of_arrays_may_share_memory_with_an_output():
    low = array(0.0, 1.0)
    tree = [array([-1.0, 5.0]), array([0.5, 0.0])]
    expected = gt.clip_by_value(tree, [low.copy()], None)
    outs = [low[None], array([9.0, 9.0])]
    assert are_same(gt.clip_by_value(tree, [low], None, out=outs), expected)


def test_overlapping_outputs_of_clip_by_value_are_as_if_memory_were_disjoint():
    expected = [array(0.0, 1.0, 1.0), array(1.0, 1.0, 0.5)]
    memory = array(-1.0, 2.0, 3.0, 0.5)
    tree = [memory[:3], memory[1:]]
    other = array(9.0, 9.0, 9.0)
    clipped = gt.clip_by_value(tree, 0, 1, out=[other, memory[:3]])
    assert are_same(clipped, expected)
    assert clipped[0] is other
    assert oracle.same_bits(memory, array(1.0, 1.0, 0.5, 0.5))


def test_a_bound_may_share_memory_with_an_output():
    low, high = array(0.0, 1.0), array(1.0, 2.0)
    tree = [array(-1.0, 5.0), array(0.5, 0.0)]
    expected = gt.clip_by_value(tree, low.copy(), high.copy())
    assert are_same(expected, [array(0.0, 2.0), array(0.5, 1.0)])
    clipped = gt.clip_by_value(tree, low, high, out=[low, high])
    assert clipped[0] is low
    assert are_same(clipped, expected)


@pytest.mark.parametrize("dtype", oracle.ORDERED)
def test_clip_by_value_takes_all_its_dtypes_with_outputs(dtype):
    tree = {"a": np.arange(6).astype(dtype).reshape(2, 3).T, "b": np.arange(4).astype(dtype)[::2]}
    expected = [gc.clip_by_value(leaf, 1, 3) for leaf in leaves_of(tree)[1]]
    outs = copy_of(tree)
    assert are_same(leaves_of(gt.clip_by_value(tree, 1, 3, out=outs))[1], expected)
    assert are_same(leaves_of(gt.clip_by_value(tree, 1, 3, out=tree))[1], expected)
    assert are_same(leaves_of(tree)[1], expected)


# ---- the package


def test_without_optree_the_import_says_what_to_install():
    script = """
import sys
sys.modules["optree"] = None
import gradclip
try:
    import gradclip.tree
except ImportError as error:
    print(error)
"""
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert child.stdout.strip() == "gradclip.tree needs the package optree: pip install optree"


def test_all_is_what_is_documented():
    assert set(gt.__all__) == set(FUNCTIONS)
    for name in gt.__all__:
        assert inspect.getdoc(getattr(gt, name))
