"""The norms.

The compiled part checks the arguments and computes the results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from gradclip import _core, _distributed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from gradclip._slices import Tensors
    from gradclip._types import Array, Axes, Order, OtherArray, OtherT, Replicated, ScalarT, Tensor


@overload
def global_norm(
    t_list: Sequence[OtherArray | None],
    name: str | None = None,
    *,
    ord: Order = 2,
    nonfinite: Literal["propagate"] = "propagate",
    integers: Literal["count"] = "count",
) -> Any: ...
@overload
def global_norm(
    t_list: Tensors,
    name: str | None = None,
    *,
    ord: Order = 2,
    nonfinite: Literal["propagate", "raise"] = "propagate",
    integers: Literal["count", "keep"] = "count",
    comm: object = None,
    replicated: Replicated = None,
    reproducible: bool = False,
) -> float: ...
def global_norm(
    t_list: Tensors | Sequence[OtherArray | None],
    name: str | None = None,
    *,
    ord: Order = 2,
    nonfinite: Literal["propagate", "raise"] = "propagate",
    integers: Literal["count", "keep"] = "count",
    comm: object = None,
    replicated: Replicated = None,
    reproducible: bool = False,
) -> float | OtherArray:
    """Compute one norm of all elements of all tensors of a list.

    Parameters
    ----------
    t_list : sequence of array_like, IndexedSlices or None
        The tensors, of any shapes and of any integer dtype, bool, float16, bfloat16,
        float32, float64, complex64 and complex128. Dtypes may be mixed. None adds
        nothing.
    name : str, optional
        Prefix of error messages. Default: none.
    ord : number or 'euclidean', optional
        Order of the norm: a number > 0 (with ``comm``, at most 1000), ``inf`` for the
        largest magnitude. Default: 2, the Euclidean norm.
    nonfinite : {"propagate", "raise"}, optional
        Effect of an infinite or NaN element. Default: ``"propagate"``, the norm is infinite
        or NaN. ``"raise"``: `NonFiniteError`.
    integers : {"count", "keep"}, optional
        Treatment of integer and boolean tensors. Default: ``"count"``, they count like
        others. ``"keep"``: they do not count in the norm, as in `clip_by_global_norm`.
    comm : communicator, function or sequence of these, optional
        The processes that hold the other parts of the tensors: a communicator of mpi4py, a
        ProcessGroup of torch.distributed, an NCCLBackend of cupyx.distributed, or a
        function that sums a float64 array over all processes. A sequence is reduced over in
        turn. Default: None, only this process.
    replicated : bool, int or sequence of these, optional
        For each tensor, or for all: True if every process holds a copy, or the number of
        processes that hold one. All copies together count once. Only with ``comm``, and not
        as a number with ``reproducible=True``. Default: None, each process holds a part.
    reproducible : bool, optional
        Whether to add every term exactly. Then the bits of the norm depend neither on the
        number of processes nor on the split of the data. For orders 1, 2 and ``inf``.
        Default: False.

    Returns
    -------
    float
        The norm in float64 precision, whatever the dtypes are; 0.0 for an empty list.
        For CuPy arrays it is a 0-d float64 array on their device. If a tensor is a dask
        array, it is a lazy 0-d float64 dask array, except with ``comm`` or
        ``reproducible=True``, which compute it.

    Raises
    ------
    TypeError
        If ``t_list`` is not a sequence, a tensor has another dtype, or another argument
        has a wrong type.
    ValueError
        If ``ord`` is not a number > 0.
    NonFiniteError
        Under ``nonfinite="raise"``, if an element is infinite or NaN.

    Notes
    -----
    The norm is ``(sum of |x|**ord) ** (1/ord)`` over all elements. For order 2 it is
    ``sqrt(sum of norm(t)**2)``, as in ``tf.linalg.global_norm`` and in Pascanu et al.
    (2013, https://arxiv.org/abs/1211.5063).

    The relative error is below 1e-14, and below 1e-14 / ord for orders below 1.

    With ``comm``, every process must make the call, even a process without tensors. All
    processes get the same bits. If one raises an error, all do.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> gc.global_norm([np.array([3.0]), None, np.array([[4.0], [12.0]], np.float32)])
    13.0
    """
    if comm is not None or replicated is not None or reproducible is not False:
        return _distributed.global_norm(t_list, name, ord, nonfinite, integers, comm, replicated, reproducible)
    return _core.global_norm(t_list, name, ord, nonfinite, integers)


def norms(
    t_list: Tensors,
    name: str | None = None,
    *,
    ord: Order = 2,
    comm: object = None,
    replicated: Replicated = None,
) -> npt.NDArray[np.float64]:
    """Compute the norm of each tensor of a list.

    Parameters
    ----------
    t_list : sequence of array_like, IndexedSlices or None
        The tensors, of any shapes and of any integer dtype, bool, float16, bfloat16,
        float32, float64, complex64 and complex128.
    name : str, optional
        Prefix of error messages. Default: none.
    ord : number or 'euclidean', optional
        Order of the norms: a number > 0 (with ``comm``, at most 1000), ``inf`` for the
        largest magnitude. Default: 2, the Euclidean norm.
    comm : communicator, function or sequence of these, optional
        The processes that hold the other parts of each tensor: a communicator of mpi4py, a
        ProcessGroup of torch.distributed, an NCCLBackend of cupyx.distributed, or a
        function that sums a float64 array over all processes. A sequence is reduced over in
        turn. Default: None, only this process.
    replicated : bool, int or sequence of these, optional
        For each tensor, or for all: True if every process holds a copy, or the number of
        processes that hold one. All copies together count once. Only with ``comm``.
        Default: None, each process holds a part.

    Returns
    -------
    numpy.ndarray
        The norms in float64, of shape ``(len(t_list),)``. The norm of None is 0.0.

    Raises
    ------
    TypeError
        If ``t_list`` is not a sequence, or an argument has a wrong type.
    ValueError
        If ``ord`` is not a number > 0.

    Notes
    -----
    Each norm has the bits of ``global_norm([t], ord=ord)``. The list is read once.

    With ``comm``, every process must make the call, even a process without tensors. All
    processes get the same bits. If one raises an error, all do.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> gc.norms([np.array([3.0, 4.0]), None, np.array([[12.0]], np.float32)])
    array([ 5.,  0., 12.])
    """
    if comm is not None or replicated is not None:
        return _distributed.norms(t_list, name, ord, comm, replicated)
    return _core.norms(t_list, name, ord)


@overload
def norm(
    tensor: OtherArray,
    ord: Order = "euclidean",
    axis: Axes = None,
    keepdims: bool | None = None,
    name: str | None = None,
) -> Any: ...
@overload
def norm(
    tensor: Tensor,
    ord: Order = "euclidean",
    axis: None = None,
    keepdims: Literal[False] | None = None,
    name: str | None = None,
) -> float: ...
@overload
def norm(
    tensor: Tensor,
    ord: Order = "euclidean",
    axis: Axes = None,
    keepdims: bool | None = None,
    name: str | None = None,
) -> Any: ...
def norm(
    tensor: Tensor | OtherArray,
    ord: Order = "euclidean",
    axis: Axes = None,
    keepdims: bool | None = None,
    name: str | None = None,
) -> float | Array | OtherArray:
    """Compute a norm of a tensor, or of vectors or matrices along some of its axes.

    Parameters
    ----------
    tensor : array_like
        The tensor, of any shape and of any integer dtype, bool, float16, bfloat16,
        float32, float64, complex64 or complex128.
    ord : {'euclidean', 'fro'} or number, optional
        Order of the norm. Default: 'euclidean'.

        - For vectors: 'euclidean', any number > 0, or ``inf``.
        - For matrices: 'euclidean', 'fro', 1, 2 or ``inf``.
    axis : int or sequence of int, optional
        Axes of each norm. Default: None.

        - None: the whole tensor is one vector.
        - One axis: vectors along it.
        - Two axes: matrices, with rows along the first and columns along the second.
        - More axes: vectors of all elements along them.
    keepdims : bool, optional
        Whether to keep the reduced axes with length 1. Default: None, which means
        False.
    name : str, optional
        Prefix of error messages. Default: none.

    Returns
    -------
    float or numpy.ndarray
        A float in float64 precision if the result is one number and ``keepdims`` is
        not True. (For a CuPy array: a 0-d float64 array on its device. For a dask array:
        a lazy 0-d float64 dask array.) Otherwise an array, for a dask array a lazy one,
        with the shape of ``tensor`` without the reduced axes, or with length 1 there. Its
        dtype is float32 for float16, bfloat16, float32 and complex64, and float64 for all
        others.

        If the elements include NaN and infinity, the norm is NaN; that of order 2 of a matrix
        is NaN if they include either. An empty norm is 0.

    Raises
    ------
    TypeError
        If ``tensor`` has another dtype, or another argument has a wrong type.
    ValueError
        If ``ord`` is not allowed for vectors or matrices along ``axis``, an axis is
        given twice, or ``axis`` is empty.
    numpy.exceptions.AxisError
        If ``tensor`` does not have one of the axes.

    Notes
    -----
    The function corresponds to ``tf.norm``. Axes have the same meaning as in
    ``numpy.linalg.norm``.

    ======================  ========================================
    order                   norm
    ======================  ========================================
    vectors, 'euclidean'    ``sqrt(sum of |x|**2)``
    vectors, number p       ``(sum of |x|**p) ** (1/p)``
    vectors, ``inf``        the largest magnitude
    matrices, 'euclidean'   ``sqrt(sum of |x|**2)``
    matrices, 'fro'         ``sqrt(sum of |x|**2)``
    matrices, 1             the largest sum of magnitudes of a column
    matrices, ``inf``       the largest sum of magnitudes of a row
    matrices, 2             the largest singular value
    ======================  ========================================

    The relative error, before rounding to the dtype, is below 1e-14, and below
    1e-14 / ord for orders below 1.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> x = np.array([[3.0, -4.0], [6.0, 8.0]])
    >>> gc.norm(x, axis=1)
    array([ 5., 10.])
    >>> gc.norm(x, ord=1)
    21.0
    >>> gc.norm(x, ord=np.inf, axis=(0, 1))
    14.0
    """
    found: float | Array | OtherArray = _core.norm(tensor, ord, axis, keepdims, name)
    return found


@overload
def normalize(
    tensor: npt.NDArray[ScalarT],
    ord: Order = "euclidean",
    axis: Axes = None,
    name: str | None = None,
    *,
    out: npt.NDArray[ScalarT] | None = None,
) -> tuple[npt.NDArray[ScalarT], Array]: ...
@overload
def normalize(
    tensor: OtherT,
    ord: Order = "euclidean",
    axis: Axes = None,
    name: str | None = None,
    *,
    out: OtherT | None = None,
) -> tuple[OtherT, Any]: ...
@overload
def normalize(
    tensor: Tensor,
    ord: Order = "euclidean",
    axis: Axes = None,
    name: str | None = None,
    *,
    out: Array | None = None,
) -> tuple[Array, Array]: ...
def normalize(
    tensor: Tensor | OtherArray,
    ord: Order = "euclidean",
    axis: Axes = None,
    name: str | None = None,
    *,
    out: Array | OtherArray | None = None,
) -> tuple[Array | OtherArray, Array | OtherArray]:
    """Divide a tensor, or vectors or matrices along some of its axes, by its norm.

    Parameters
    ----------
    tensor : array_like
        The tensor, of any shape and of dtype float16, bfloat16, float32, float64,
        complex64 or complex128.
    ord : {'euclidean', 'fro'} or number, optional
        Order of the norm, as in `norm`. Default: 'euclidean'.
    axis : int or sequence of int, optional
        Axes of each norm, as in `norm`. Default: None, the whole tensor is one vector.
    name : str, optional
        Prefix of error messages. Default: none.
    out : ndarray, optional
        Array that receives the first result, with the shape and dtype of ``tensor``. It
        may be ``tensor`` itself. Default: a new array.

    Returns
    -------
    normalized : numpy.ndarray
        ``tensor / norm``, with the shape and dtype of ``tensor``, or ``out`` if it was
        given. Slices with a norm of 0 stay 0.
    norm : numpy.ndarray
        The norm. It has the shape of ``tensor``, with length 1 along the reduced axes.
        Its dtype is float32 for float16, bfloat16, float32 and complex64, and float64
        for float64 and complex128.

    Raises
    ------
    TypeError
        If ``tensor`` or ``out`` has another dtype, or another argument has a wrong
        type.
    ValueError
        If ``ord`` is not allowed for vectors or matrices along ``axis``, an axis is
        given twice, ``axis`` is empty, or ``out`` has another shape, is read-only or
        overlaps itself.
    numpy.exceptions.AxisError
        If ``tensor`` does not have one of the axes.

    Notes
    -----
    The function corresponds to ``tf.linalg.normalize``. For a norm of 0, TensorFlow
    returns NaN.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> unit, length = gc.normalize(np.array([[3.0, 4.0], [0.0, 0.0]]), axis=1)
    >>> unit
    array([[0.6, 0.8],
           [0. , 0. ]])
    >>> length
    array([[5.],
           [0.]])
    """
    return _core.normalize(tensor, ord, axis, name, out)
