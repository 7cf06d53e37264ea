"""Clippers and norms for trees: dicts, lists, tuples, namedtuples and registered classes.

Trees are those of `optree <https://optree.readthedocs.io>`_. Leaves are arrays, numbers,
`gradclip.IndexedSlices` and None. A list is never a leaf: ``[1.0, 2.0]`` has two leaves. Results
have the structure of the input.

Entries of a dict are read in sorted order, so the order of insertion never changes a bit
of a result. Keys of several types are sorted by the name of the type first. An ``OrderedDict``
is read in its own order, and so is a dict with keys that have no order, such as complex
numbers.

Register your own classes with ``optree.register_pytree_node``, subclasses of list, tuple and
dict too. Objects of other classes raise a TypeError. ``namespace`` is the namespace of the
registrations.

Error messages name the path of a leaf, as in ``tree['encoder'][0]: found dtype object``.

>>> import numpy as np
>>> import gradclip.tree
>>> gradients = {"encoder": [np.array([3.0]), None], "bias": np.array([4.0])}
>>> clipped, norm = gradclip.tree.clip_by_global_norm(gradients, 1.0)
>>> clipped
{'encoder': [array([0.6]), None], 'bias': array([0.8])}
>>> norm
5.0
"""

from __future__ import annotations

import copy
import dataclasses
import math
import operator
import re
from collections import OrderedDict, UserList, defaultdict, deque
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import chain, zip_longest
from numbers import Number as AnyNumber
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

try:
    import optree
except ModuleNotFoundError as error:
    raise ImportError("gradclip.tree needs the package optree: pip install optree") from error

import gradclip as gc
from gradclip._checks import Checks
from gradclip._exchange import PLACED, Share
from gradclip._text import is_cupy

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gradclip._types import NonFinite, Number, Order, OtherNumber, Tensor

__all__ = [
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "clip_difference_by_global_norm",
    "global_norm",
    "norms",
]


def global_norm(
    tree: Any,
    name: str | None = None,
    *,
    ord: Order = 2,
    nonfinite: Literal["propagate", "raise"] = "propagate",
    integers: Literal["count", "keep"] = "count",
    comm: object = None,
    replicated: object = None,
    reproducible: bool = False,
    namespace: str = "",
) -> Any:
    """Compute one norm of all elements of all leaves.

    Parameters
    ----------
    tree : tree of array_like, IndexedSlices or None
        The tensors, as in `gradclip.global_norm`.
    name : str, optional
        Prefix of error messages. Default: none.
    ord : number or 'euclidean', optional
        Order of the norm: a number > 0 (with ``comm``, at most 1000), ``inf`` for the
        largest magnitude. Default: 2, the Euclidean norm.
    nonfinite : {"propagate", "raise"}, optional
        Effect of an infinite or NaN element, as in `gradclip.global_norm`.
    integers : {"count", "keep"}, optional
        Treatment of integer and boolean leaves, as in `gradclip.global_norm`.
    comm : communicator, function or sequence of these, optional
        The processes that hold the other parts of the tensors, as in `gradclip.global_norm`.
    replicated : bool, int or tree of these, optional
        Copies of leaves on several processes, as in `gradclip.global_norm`: one value for all
        leaves, or a tree with the structure of ``tree``. Default: None, no copies.
    reproducible : bool, optional
        Whether to add every term exactly, as in `gradclip.global_norm`. Default: False.
    namespace : str, optional
        The namespace of the classes registered with optree. Default: the global one.

    Returns
    -------
    float
        The norm in float64 precision, whatever the dtypes are; 0.0 for a tree without
        tensors. For CuPy arrays it is a 0-d float64 array on their device. For dask arrays
        it is a lazy one, except with ``comm`` or ``reproducible=True``.

    Raises
    ------
    TypeError
        If a leaf is of an unregistered class or of another dtype, or another argument
        has a wrong type.
    ValueError
        If ``ord`` is not a number > 0.
    NonFiniteError
        Under ``nonfinite="raise"``, if an element is infinite or NaN.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip.tree
    >>> gradclip.tree.global_norm({"w": [np.array([3.0]), None], "b": np.array([4.0, 12.0])})
    13.0
    """
    with _with_errors_on_all_ranks("global_norm", name, comm):
        call = _Call("global_norm", name, tree, namespace)
        shared = call.shared(comm, replicated, reproducible)
    try:
        return gc.global_norm(call.leaves, name, ord=ord, nonfinite=nonfinite, integers=integers, **shared)
    except (TypeError, ValueError) as error:
        raise call.explained(error) from error.__cause__


def norms(
    tree: Any,
    name: str | None = None,
    *,
    ord: Order = 2,
    comm: object = None,
    replicated: object = None,
    namespace: str = "",
) -> dict[str, float]:
    """Compute the norm of each leaf, by its path.

    Parameters
    ----------
    tree : tree of array_like, IndexedSlices or None
        The tensors, as in `gradclip.norms`.
    name : str, optional
        Prefix of error messages. Default: none.
    ord : number or 'euclidean', optional
        Order of the norms: a number > 0 (with ``comm``, at most 1000), ``inf`` for the
        largest magnitude. Default: 2, the Euclidean norm.
    comm : communicator, function or sequence of these, optional
        The processes that hold the other parts of the tensors, as in `gradclip.global_norm`.
        Leaves are matched by their positions, so the paths must be the same on all processes.
    replicated : bool, int or tree of these, optional
        Copies of leaves on several processes, as in `gradclip.global_norm`: one value for all
        leaves, or a tree with the structure of ``tree``. Default: None, no copies.
    namespace : str, optional
        The namespace of the classes registered with optree. Default: the global one.

    Returns
    -------
    dict of str to float
        For each leaf, its path and its norm; 0.0 for None. A path joins keys, positions in
        lists and names of fields with slashes: ``"encoder/0/kernel"``. If the tree is one
        leaf, its path is empty.

    Raises
    ------
    TypeError
        If a leaf is of an unregistered class or of another dtype, or another argument
        has a wrong type.
    ValueError
        If ``ord`` is not a number > 0, or two leaves have the same path.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip.tree
    >>> gradclip.tree.norms({"w": [np.array([3.0, 4.0]), None], "b": np.array([12.0])})
    {'b': 12.0, 'w/0': 5.0, 'w/1': 0.0}
    """
    with _with_errors_on_all_ranks("norms", name, comm):
        call = _Call("norms", name, tree, namespace)
        shared, paths = call.shared(comm, replicated), call.paths()
    try:
        found = gc.norms(call.leaves, name, ord=ord, **shared)
    except (TypeError, ValueError) as error:
        raise call.explained(error) from error.__cause__
    return dict(zip(paths, found.tolist(), strict=True))


def clip_by_global_norm(
    tree: Any,
    clip_norm: OtherNumber,
    use_norm: OtherNumber | None = None,
    name: str | None = None,
    *,
    ord: Order = 2,
    nonfinite: NonFinite = "propagate",
    strict: bool = False,
    integers: Literal["raise", "keep"] = "raise",
    out: Any = None,
    comm: object = None,
    replicated: object = None,
    reproducible: bool = False,
    namespace: str = "",
) -> tuple[Any, Any]:
    """Scale all leaves so that their global norm is at most ``clip_norm``.

    Parameters
    ----------
    tree : tree of array_like, IndexedSlices or None
        The tensors, as in `gradclip.clip_by_global_norm`.
    clip_norm : number
        The limit, a real number >= 0. An infinite limit changes nothing, not even NaN
        or infinity.
    use_norm : number, optional
        The global norm, a real number >= 0 or NaN, if you know it already. It is not
        checked against the tensors, and ``ord`` and ``reproducible`` have no effect then.
        Default: None, compute it.
    name : str, optional
        Prefix of error messages. Default: none.
    ord : number or 'euclidean', optional
        Order of the norm: a number > 0 (with ``comm``, at most 1000), ``inf`` for the
        largest magnitude. Default: 2, the Euclidean norm.
    nonfinite : {"propagate", "raise", "zero", "keep"}, optional
        Effect of an infinite or NaN norm, as in `gradclip.clip_by_global_norm`.
    strict : bool, optional
        Whether to guarantee that rounding never takes the norm above the limit, as in
        `gradclip.clip_by_global_norm`. Default: False.
    integers : {"raise", "keep"}, optional
        Treatment of integer and boolean leaves, as in `gradclip.clip_by_global_norm`.
    out : tree of ndarray, IndexedSlices or None, optional
        A tree of the same structure. For each tensor, the array that receives its
        result, with its shape and dtype, or None for a new array. It may be ``tree``
        itself. Default: new arrays.
    comm : communicator, function or sequence of these, optional
        The processes that hold the other parts of the tensors, as in `gradclip.global_norm`.
    replicated : bool, int or tree of these, optional
        Copies of leaves on several processes, as in `gradclip.global_norm`: one value for all
        leaves, or a tree with the structure of ``tree``. Default: None, no copies.
    reproducible : bool, optional
        Whether to add every term exactly, as in `gradclip.global_norm`. Default: False.
    namespace : str, optional
        The namespace of the classes registered with optree. Default: the global one.

    Returns
    -------
    clipped : tree of ndarray, IndexedSlices or None
        A new tree of the same structure, with the results for leaves, or the leaves of
        ``out`` if it was given. None for each None. If the norm is at or below
        ``clip_norm`` (with ``strict=True``: ``clip_norm * (1 - 1e-13)``), all tensors keep
        their bits. If a leaf is a dask array, all results and the norm are lazy.
    norm : float
        The global norm before clipping. For CuPy arrays it is a 0-d float64 array on
        their device.

    Raises
    ------
    TypeError
        If a leaf is of an unregistered class, a leaf or an output has another dtype,
        ``clip_norm`` or ``use_norm`` is not a real number, or another argument has a
        wrong type.
    ValueError
        If ``clip_norm`` or ``use_norm`` is negative or not 0-d, ``clip_norm`` is NaN,
        ``ord`` is not a number > 0, ``out`` has another structure, or an output has
        another shape, is read-only or shares memory with another output.
    NonFiniteError
        Under ``nonfinite="raise"``, if ``use_norm`` is infinite or NaN, or if it is not
        given and an element is.
        Its ``entries`` are positions in the list of leaves, in which None counts
        (``optree.tree_leaves(tree, none_is_leaf=True)``).

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip.tree
    >>> gradients = {"w": (np.array([3.0]), None), "b": np.array([4.0])}
    >>> clipped, norm = gradclip.tree.clip_by_global_norm(gradients, 1.0, out=gradients)
    >>> clipped
    {'w': (array([0.6]), None), 'b': array([0.8])}
    >>> norm, clipped["b"] is gradients["b"]
    (5.0, True)
    """
    with _with_errors_on_all_ranks("clip_by_global_norm", name, comm):
        call = _Call("clip_by_global_norm", name, tree, namespace)
        outs = call.beside("out", out)
        shared = call.shared(comm, replicated, reproducible)
    try:
        clipped, norm = gc.clip_by_global_norm(
            call.leaves,
            clip_norm,
            use_norm,
            name,
            ord=ord,
            nonfinite=nonfinite,
            strict=strict,
            integers=integers,
            out=outs,
            **shared,
        )
    except (TypeError, ValueError) as error:
        raise call.explained(error) from error.__cause__
    return call.structure.unflatten(clipped), norm


def clip_by_norm(
    tree: Any,
    clip_norm: Number,
    name: str | None = None,
    *,
    ord: Order = 2,
    nonfinite: NonFinite = "propagate",
    out: Any = None,
    namespace: str = "",
) -> Any:
    """Scale each leaf so that its own norm is at most ``clip_norm``.

    Parameters
    ----------
    tree : tree of array_like, IndexedSlices or None
        The tensors, as in `gradclip.clip_by_norms`.
    clip_norm : number
        The limit of each leaf, a real number >= 0. An infinite limit changes nothing,
        not even NaN or infinity.
    name : str, optional
        Prefix of error messages. Default: none.
    ord : number or 'euclidean', optional
        Order of the norms: a number > 0, ``inf`` for the largest magnitude. Default: 2, the Euclidean norm.
    nonfinite : {"propagate", "raise", "zero", "keep"}, optional
        Effect of an infinite or NaN norm on its leaf, as in `gradclip.clip_by_norms`.
    out : tree of ndarray, IndexedSlices or None, optional
        A tree of the same structure. For each tensor, the array that receives its
        result, with its shape and dtype, or None for a new array. It may be ``tree``
        itself. Default: new arrays.
    namespace : str, optional
        The namespace of the classes registered with optree. Default: the global one.

    Returns
    -------
    tree of ndarray, IndexedSlices or None
        A new tree of the same structure, with the results for leaves, or the leaves of
        ``out`` if it was given. None for each None. A leaf with a norm at or below
        ``clip_norm`` keeps its bits.

    Raises
    ------
    TypeError
        If a leaf is of an unregistered class, a leaf or an output has another dtype, or
        ``clip_norm`` is not a real number.
    ValueError
        If ``clip_norm`` is negative, NaN or not 0-d, ``ord`` is not a number > 0,
        ``out`` has another structure, or an output has another shape, is read-only or
        shares memory with another output.
    NonFiniteError
        Under ``nonfinite="raise"``, if an element is infinite or NaN. Its ``entries``
        are positions in the list of leaves, in which None counts
        (``optree.tree_leaves(tree, none_is_leaf=True)``).

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip.tree
    >>> gradclip.tree.clip_by_norm({"w": np.array([6.0, 8.0]), "b": np.array([0.5])}, 5.0)
    {'w': array([3., 4.]), 'b': array([0.5])}
    """
    call = _Call("clip_by_norm", name, tree, namespace, "clip_by_norms")
    try:
        limit = call.limit("clip_norms", "clip_norm", clip_norm)
        outs = call.beside("out", out)
        clipped, _ = gc.clip_by_norms(call.leaves, limit, name, ord=ord, nonfinite=nonfinite, out=outs)
    except (TypeError, ValueError) as error:
        raise call.explained(error) from error.__cause__
    return call.structure.unflatten(clipped)


def clip_by_value(
    tree: Any,
    clip_value_min: Tensor | None,
    clip_value_max: Tensor | None,
    name: str | None = None,
    *,
    out: Any = None,
    namespace: str = "",
) -> Any:
    """Limit each element of all leaves to the range from ``clip_value_min`` to ``clip_value_max``.

    Parameters
    ----------
    tree : tree of array_like, IndexedSlices or None
        The tensors, as in `gradclip.clip_by_value`.
    clip_value_min : number, array_like or None
        Lower bound of all leaves, as in `gradclip.clip_by_value`. An array must
        broadcast to the shape of each leaf. None: no lower bound.
    clip_value_max : number, array_like or None
        Upper bound, with the same rules. At least one of the two must be given.
    name : str, optional
        Prefix of error messages. Default: none.
    out : tree of ndarray, IndexedSlices or None, optional
        A tree of the same structure. For each tensor, the array that receives its
        result, with its shape and dtype, or None for a new array. It may be ``tree``
        itself: then only elements that change are written. Default: new arrays.
    namespace : str, optional
        The namespace of the classes registered with optree. Default: the global one.

    Returns
    -------
    tree of ndarray, IndexedSlices or None
        A new tree of the same structure, with the results for leaves, or the leaves of
        ``out`` if it was given. None for each None.

    Raises
    ------
    TypeError
        If a leaf is of an unregistered class, a leaf or an output has another dtype, a
        bound is not a real number, or a bound of an integer leaf is not an integer.
    ValueError
        If a bound does not broadcast to the shape of a leaf, both bounds are None,
        ``out`` has another structure, or an output has another shape, is read-only or
        shares memory with another output.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip.tree
    >>> gradclip.tree.clip_by_value({"w": np.array([-4.0, 0.5]), "b": (3.0, None)}, -1, 1)
    {'w': array([-1. ,  0.5]), 'b': (array(1.), None)}
    """
    call = _Call("clip_by_value", name, tree, namespace, "clip_by_global_norm")
    bounds = (clip_value_min, clip_value_max)
    clipped = _clipped_values(call, bounds, name) if out is None else _clipped_values_into(call, bounds, name, out)
    return call.structure.unflatten(clipped)


def clip_difference_by_global_norm(
    tree: Any,
    base: Any,
    clip_norm: Number,
    use_norm: Number | None = None,
    name: str | None = None,
    *,
    ord: Order = 2,
    nonfinite: NonFinite = "propagate",
    integers: Literal["raise", "keep"] = "raise",
    out: Any = None,
    namespace: str = "",
) -> tuple[Any, float]:
    """Move all leaves towards those of a base so that the norm of the differences is at most ``clip_norm``.

    Parameters
    ----------
    tree : tree of array_like or None
        The tensors, as in `gradclip.clip_difference_by_global_norm`.
    base : tree of array_like or None
        A tree of the same structure. For each tensor, the base of its difference, with the
        same shape and dtype. Where the other tree has None, pass None.
    clip_norm : number
        The limit, a real number >= 0. An infinite limit changes nothing.
    use_norm : number, optional
        The global norm of the differences, a real number >= 0 or NaN, if you know it
        already. It is not checked against the tensors. Default: None, compute it.
    name : str, optional
        Prefix of error messages. Default: none.
    ord : number or 'euclidean', optional
        Order of the norm: a number > 0, ``inf`` for the largest magnitude. Default: 2, the Euclidean norm.
    nonfinite : {"propagate", "raise", "zero", "keep"}, optional
        Effect of an infinite or NaN norm, as in
        `gradclip.clip_difference_by_global_norm`.
    integers : {"raise", "keep"}, optional
        Treatment of integer and boolean leaves, as in
        `gradclip.clip_difference_by_global_norm`.
    out : tree of ndarray or None, optional
        A tree of the same structure. For each tensor, the array that receives its
        result, with its shape and dtype, or None for a new array. It may be ``tree`` or
        ``base`` itself. Default: new arrays.
    namespace : str, optional
        The namespace of the classes registered with optree. Default: the global one.

    Returns
    -------
    clipped : tree of ndarray or None
        A new tree of the structure of ``tree``, with the results for leaves, or the
        leaves of ``out`` if it was given. None for each None. If the norm is at or below
        ``clip_norm``, all tensors keep their bits.
    norm : float
        The global norm of the differences before clipping.

    Raises
    ------
    TypeError
        If a leaf is of an unregistered class, a leaf or an output has another dtype,
        ``clip_norm`` or ``use_norm`` is not a real number, or another argument has a
        wrong type.
    ValueError
        If ``base`` or ``out`` has another structure, a leaf of ``base`` has another
        shape, ``clip_norm`` or ``use_norm`` is negative or not 0-d, ``clip_norm`` is
        NaN, ``ord`` is not a number > 0, or an output has another shape, is read-only or
        shares memory with another output.
    NonFiniteError
        Under ``nonfinite="raise"``, if ``use_norm`` is infinite or NaN, or if it is not
        given and an element is.
        Its ``entries`` are positions in the list of leaves, in which None counts
        (``optree.tree_leaves(tree, none_is_leaf=True)``).

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip.tree
    >>> server = {"w": np.array([1.0, 1.0]), "b": np.array([0.0])}
    >>> client = {"w": np.array([4.0, 1.0]), "b": np.array([4.0])}
    >>> gradclip.tree.clip_difference_by_global_norm(client, server, 2.5)
    ({'w': array([2.5, 1. ]), 'b': array([2.])}, 5.0)
    """
    call = _Call("clip_difference_by_global_norm", name, tree, namespace)
    try:
        clipped, norm = gc.clip_difference_by_global_norm(
            call.leaves,
            call.beside("base_list", base),
            clip_norm,
            use_norm,
            name,
            ord=ord,
            nonfinite=nonfinite,
            integers=integers,
            out=call.beside("out", out),
        )
    except (TypeError, ValueError) as error:
        raise call.explained(error) from error.__cause__
    return call.structure.unflatten(clipped), norm


#: The parameters of the functions of lists that take trees here, and the names that they have here.
_NAMES = {"t_list": "tree", "base_list": "base", "out": "out", "replicated": "replicated"}
#: An entry of such a list, the name of one, or a quoted text, which stays as it is. A long one ends with dots.
_ENTRY = re.compile(
    r"""\b(t_list|base_list|out|replicated)\[(\d+)\]|\b(?:t_list|base_list)\b|(['"])(?:\\.|[^\\])*?(?:\3|\.{3}(?=;))"""
)
_ARGUMENT = re.compile(r"\w+(?=[:\[])")
#: Nodes that optree takes for each other.
_DICTS = (dict, OrderedDict, defaultdict)
_WITHOUT_FIELDS = {*_DICTS, list, tuple, deque}
_NUMBERS = (int, float, np.generic, type(None))
_PLAIN = {np.ndarray, type(None)}
_STRINGS = {str}
#: Nodes, if optree knew their classes. NumPy would make one array of a list's elements.
_COLLECTIONS = (list, tuple, deque, UserList, Mapping)
_KNOWN = "an array, or a class that optree.register_pytree_node has registered"


class _Call:
    """A call of a function of trees: the leaves of its tree, and the errors of its other arguments.

    The function of lists checks its arguments in their order. In place of a wrong tree
    it gets ``...``, which it refuses in its turn. Then the error of the tree is raised.
    """

    __slots__ = ("function", "leaves", "list_function", "name", "namespace", "others", "refused", "structure", "tree")

    def __init__(self, function: str, name: Any, tree: Any, namespace: str, list_function: str | None = None) -> None:
        self.function = function
        self.list_function = list_function or function
        self.name = name
        self.tree = tree
        self.namespace = namespace
        self.others: dict[str, Any] = {}
        self.refused: dict[str, Exception] = {}
        self.leaves, self.structure = self._flatten(tree)
        unknown = self._unknown_collection("tree", self.leaves)
        if unknown is not None:
            raise unknown

    def _flatten(self, tree: Any) -> tuple[list[Any], optree.PyTreeSpec]:
        try:
            return optree.tree_flatten(tree, none_is_leaf=True, namespace=self.namespace)
        except TypeError:
            if isinstance(self.namespace, str):
                raise  # of a registered class
            raise Checks(self.function, self.name).wrong_type("namespace", self.namespace, "a str") from None

    def beside(self, argument: str, other: Any) -> Any:
        """Return the leaves of another tree of the same structure; None for None as ``out``."""
        if other is self.tree:
            return self.leaves
        if other is None and argument == "out":
            return None
        try:
            found = self.structure.flatten_up_to(other)
        except (TypeError, ValueError):
            found = None
        if found is None or not self._are_leaves(found):
            self.refused[argument] = self._structure_error(_NAMES[argument], other)
            return ...
        unknown = self._unknown_collection(_NAMES[argument], found)
        if unknown is not None:
            self.refused[argument] = unknown
            return ...
        self.others[argument] = found
        return found

    def shared(self, comm: object, replicated: Any, reproducible: bool = False) -> dict[str, Any]:
        """Return the arguments of norms that several processes share; none of them if there is one process."""
        if comm is None and replicated is None and reproducible is False:
            return {}
        if replicated is not None and not isinstance(replicated, (bool, int, np.generic)):
            replicated = self.beside("replicated", replicated)
        if comm is not None and self.refused:
            raise next(iter(self.refused.values()))  # the other ranks get this error, not one about `...`
        options = {"comm": comm, "replicated": replicated}
        return options if reproducible is False else {**options, "reproducible": reproducible}

    def _are_leaves(self, found: list[Any]) -> bool:
        return _PLAIN.issuperset(map(type, found)) or optree.all_leaves(
            found, none_is_leaf=True, namespace=self.namespace
        )

    def _structure_error(self, argument: str, other: Any) -> Exception:
        root = optree.PyTreeAccessor()
        difference = _difference(self.structure, self._flatten(other)[1], root)
        place, found, allowed = difference or (root, "another structure", "that of tree")
        return Checks(self.function, self.name).value_error(place.codify(argument), found, allowed)

    def limit(self, argument: str, name: str, value: Any) -> Any:
        """Return a limit as a float. ``argument`` is what takes it in the function of lists."""
        try:
            return Checks(self.function, self.name).limit(name, value, False)
        except (TypeError, ValueError) as error:
            self.refused[argument] = error
            return ...

    def explained(self, error: Exception) -> Exception:
        """Return the error for what the function of lists has raised: it names places in the tree."""
        prefix, text = self._prefix(self.list_function), str(error)
        argument = _ARGUMENT.match(text, len(prefix)) if text.startswith(prefix) else None
        if argument is None:
            return error  # of an object's own `__array__`, say
        if argument[0] in self.refused:
            return self.refused[argument[0]]
        text = text[len(prefix) :]
        # The error of another rank has no cause here. The tree there may have other paths.
        is_of_other = PLACED.search(text) and error.__cause__ is None and not isinstance(error, gc.NonFiniteError)
        if argument[0] in _NAMES and is_of_other:
            text = _ENTRY.sub(_leaf, text)
        elif argument[0] in _NAMES:
            unknown, place = self._unknown_class(text), PLACED.search(text)
            text = unknown + (place[0] if place else "") if unknown else _ENTRY.sub(self._place, text)
        error.args = (self._prefix(self.function) + text, *error.args[1:])
        return error

    def explained_at(self, at: int, error: Exception) -> Exception:
        """Return the error for what `gradclip.clip_by_value` has raised for a leaf."""
        prefix, text = self._prefix(self.function), str(error)
        argument = _ARGUMENT.match(text, len(prefix)) if text.startswith(prefix) else None
        if argument is None:
            return error
        text = text[argument.end() :]
        if argument[0] == "t":
            text = self._unknown_class(f"t_list[{at}]{text}") or self._codified(at, "tree") + text
        elif argument[0].startswith("clip_value") and "both bounds" not in text:
            text = f"{argument[0]} at {self._codified(at, 'tree')}{text}"
        else:
            text = argument[0] + text
        error.args = (prefix + text, *error.args[1:])
        return error

    def paths(self) -> list[str]:
        """Return a path for each leaf: keys, indices and names of fields."""
        entries = self.structure.paths()
        if _STRINGS.issuperset(map(type, chain.from_iterable(entries))):
            paths = ["/".join(path) for path in entries]
        else:  # an integer may be an index, or stand for the name of a field
            paths = []
            _collect_paths(self.structure, "", paths)
        if len(set(paths)) < len(paths):
            raise self._twice(paths)
        return paths

    def _twice(self, paths: list[str]) -> Exception:
        """Return the error for the first path that two leaves have."""
        first: dict[str, int] = {}
        one, other = next((first[path], at) for at, path in enumerate(paths) if first.setdefault(path, at) != at)
        found = f"{self._codified(one, 'tree')} and {self._codified(other, 'tree')}, both of the path {paths[one]!r}"
        return Checks(self.function, self.name).value_error("tree", found, "leaves with paths of their own")

    def _prefix(self, function: str) -> str:
        return f"{Checks(function, self.name).prefix}: "

    def _codified(self, at: int, root: str) -> str:
        return self.structure.accessors()[at].codify(root)

    def _place(self, found: re.Match[str]) -> str:
        if found[3] or (found[2] and int(found[2]) >= len(self.leaves)):
            return found[0]
        return self._codified(int(found[2]), _NAMES[found[1]]) if found[1] else _NAMES[found[0]]

    def _unknown_collection(self, argument: str, leaves: list[Any]) -> Exception | None:
        """Return the error for the first leaf that is a collection, of a class that optree does not know."""
        if not _PLAIN.issuperset(map(type, leaves)):
            for at, leaf in enumerate(leaves):
                if isinstance(leaf, _COLLECTIONS) and not hasattr(type(leaf), "__array__"):
                    place = self._codified(at, argument)
                    return Checks(self.function, self.name).type_error(place, _unknown(leaf), _KNOWN)
        return None

    def _unknown_class(self, text: str) -> str | None:
        """Return what to say about a leaf that ought to be a node."""
        found = _ENTRY.match(text)
        if found is None or not found[1]:
            return None
        leaf = self.others.get(found[1], self.leaves)[int(found[2])]  # a tree is not among the others
        kind = type(leaf)
        if isinstance(leaf, AnyNumber) or hasattr(kind, "__array__"):
            return None
        if not (dataclasses.is_dataclass(kind) or "of which NumPy makes dtype object" in text):
            return None
        return f"{self._place(found)}: found {_unknown(leaf)}; allowed: {_KNOWN}"


def _leaf(found: re.Match[str]) -> str:
    """Return the words for a leaf of another rank's tree. Of the other arguments, the text may have paths already."""
    if found[3] or found[1] in {"out", "replicated"}:
        return found[0]
    return f"leaf {found[2]} of {_NAMES[found[1]]}" if found[1] else _NAMES[found[0]]


def _unknown(leaf: Any) -> str:
    return f"an object of the class {type(leaf).__qualname__}, which optree does not know"


def _with_errors_on_all_ranks(function: str, name: Any, comm: object) -> AbstractContextManager[object]:
    """Return a context whose errors all ranks raise: the others would wait for this one."""
    return nullcontext() if comm is None else Share(function, name, comm)


def _clipped_values(call: _Call, bounds: tuple[Any, Any], name: Any) -> list[Any]:
    """Clip each leaf into a new array."""
    low, high = bounds
    clip, leaves = gc.clip_by_value, iter(call.leaves)
    try:
        clipped = [None if leaf is None else clip(leaf, low, high, name) for leaf in leaves]
    except (TypeError, ValueError) as error:
        at = len(call.leaves) - operator.length_hint(leaves) - 1
        raise call.explained_at(at, error) from error.__cause__
    if all(leaf is None for leaf in clipped):
        _check_bounds(bounds, name)
    return clipped


def _clipped_values_into(call: _Call, bounds: tuple[Any, Any], name: Any, out: Any) -> list[Any]:
    """Clip the leaves into those of ``out``.

    All checks come first. Then the function of lists copies the leaves, which writes
    nothing where an output is its leaf, and sees to all overlaps. What is there is
    clipped in place.
    """
    has_integers = _check_leaves(call, bounds, name)
    # An output may share memory with a bound.
    low, high = (bound if isinstance(bound, _NUMBERS) else _copied(bound) for bound in bounds)
    outs: list[Any]
    try:
        outs, _ = gc.clip_by_global_norm(
            call.leaves,
            math.inf,
            0.0,
            name,
            integers="keep" if has_integers else "raise",  # on a GPU there is no other than "raise"
            out=call.beside("out", out),
        )
    except (TypeError, ValueError) as error:
        raise call.explained(error) from error.__cause__
    for array in outs:
        if array is not None:
            gc.clip_by_value(array, low, high, out=array)
    return outs


def _check_leaves(call: _Call, bounds: tuple[Any, Any], name: Any) -> bool:
    """Raise what is wrong with leaves and bounds. Return whether a leaf is of integers."""
    are_numbers = all(isinstance(bound, _NUMBERS) for bound in bounds)
    dtypes: set[Any] = set()
    for at, leaf in enumerate(call.leaves):
        # With numbers for bounds, an array is right or wrong by its dtype alone.
        is_like_others = are_numbers and type(leaf) is np.ndarray
        if leaf is None or (is_like_others and leaf.dtype in dtypes):
            continue
        try:
            clipped = gc.clip_by_value(np.empty(0, leaf.dtype) if is_like_others else leaf, *bounds, name)
        except (TypeError, ValueError) as error:
            raise call.explained_at(at, error) from error.__cause__
        dtypes.add(leaf.dtype if is_like_others else getattr(clipped, "values", clipped).dtype)
    if not dtypes:
        _check_bounds(bounds, name)
    return any(dtype.kind in "iu" for dtype in dtypes)


def _check_bounds(bounds: tuple[Any, Any], name: Any) -> None:
    """Raise what is wrong with bounds that no leaf has met."""
    checks = Checks("clip_by_value", name)
    shape: tuple[int, ...] = ()
    for argument, bound in zip(("clip_value_min", "clip_value_max"), bounds, strict=True):
        if bound is None or isinstance(bound, float):
            continue
        own = () if is_cupy(bound) else checks.array(argument, bound).shape
        # Where both have other lengths than 1, the check says whether they fit.
        pairs = zip_longest(reversed(shape), reversed(own), fillvalue=1)
        shape = tuple(length if before == 1 else before for before, length in pairs)[::-1]
        checks.bound(argument, bound, np.empty(0), shape)
    low, high = (None if bound is None else 0 for bound in bounds)
    gc.clip_by_value(0.0, low, high, name)


def _copied(bound: Any) -> Any:
    if isinstance(bound, (list, tuple)):
        return copy.deepcopy(bound)  # an array of its numbers may be of another dtype
    return bound.copy() if hasattr(bound, "dtype") and hasattr(bound, "copy") else np.array(bound)


def _collect_paths(structure: optree.PyTreeSpec, above: str, paths: list[str]) -> None:
    """Append the path of each leaf. ``above`` is that of the node, with a slash before it."""
    if structure.type is None:
        paths.append(above[1:])
        return
    entries = structure.entries() if structure.type in _WITHOUT_FIELDS else _fields(structure)
    for entry, child in zip(entries, structure.children(), strict=True):
        _collect_paths(child, f"{above}/{entry!s}", paths)


def _fields(structure: optree.PyTreeSpec) -> list[Any]:
    """Return the names of fields where a node has them, or its entries."""
    level = structure.one_level()
    steps = [accessor[0] for accessor in level.accessors()] if level is not None else []
    return [getattr(step, "field", step.entry) for step in steps]


def _difference(
    mine: optree.PyTreeSpec, other: optree.PyTreeSpec, place: optree.PyTreeAccessor
) -> tuple[optree.PyTreeAccessor, str, str] | None:
    """Return the first place where the structure of another tree differs, what is there, and what is allowed."""
    there = place.codify("tree")
    if mine.type is not other.type and not (mine.type in _DICTS and other.type in _DICTS):
        return place, _kind(other), f"{_kind(mine)}, as {there} is"
    entries, others = mine.entries(), {entry: at for at, entry in enumerate(other.entries())}
    known = set(entries)
    missing = [f"no entry {entry!r}" for entry in entries if entry not in others]
    besides = [f"an entry {entry!r}" for entry in others if entry not in known]
    if missing or besides:
        return place, (missing + besides)[0], f"the entries of {there}"
    level, other_level = mine.one_level(), other.one_level()
    if level is None:
        return None
    children = other.children()
    for entry, child, step in zip(entries, mine.children(), level.accessors(), strict=True):
        difference = _difference(child, children[others[entry]], place + step)
        if difference is not None:
            return difference
    if mine.type in _DICTS or level == other_level:
        return None
    return place, f"{_kind(other)} with other metadata", f"that of {there}"


def _kind(structure: optree.PyTreeSpec) -> str:
    return "a leaf" if structure.type is None else structure.type.__qualname__
