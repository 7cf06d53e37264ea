"""The clippers.

The compiled part checks the arguments and computes the results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from gradclip import _core, _distributed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gradclip._slices import IndexedSlices, Tensors
    from gradclip._types import (
        AnyResult,
        AnyTensor,
        Array,
        Axes,
        NonFinite,
        Number,
        Order,
        OtherArray,
        OtherNumber,
        OtherT,
        Replicated,
        Result,
        ScalarT,
        Tensor,
    )


@overload
def clip_by_value(
    t: IndexedSlices,
    clip_value_min: Tensor | None,
    clip_value_max: Tensor | None,
    name: str | None = None,
    *,
    out: IndexedSlices | None = None,
) -> IndexedSlices: ...
@overload
def clip_by_value(
    t: npt.NDArray[ScalarT],
    clip_value_min: Tensor | None,
    clip_value_max: Tensor | None,
    name: str | None = None,
    *,
    out: npt.NDArray[ScalarT] | None = None,
) -> npt.NDArray[ScalarT]: ...
@overload
def clip_by_value(
    t: OtherT,
    clip_value_min: OtherNumber | None,
    clip_value_max: OtherNumber | None,
    name: str | None = None,
    *,
    out: OtherT | None = None,
) -> OtherT: ...
@overload
def clip_by_value(
    t: Tensor,
    clip_value_min: Tensor | None,
    clip_value_max: Tensor | None,
    name: str | None = None,
    *,
    out: Array | None = None,
) -> Array: ...
def clip_by_value(
    t: AnyTensor,
    clip_value_min: Tensor | OtherNumber | None,
    clip_value_max: Tensor | OtherNumber | None,
    name: str | None = None,
    *,
    out: AnyResult | None = None,
) -> AnyResult:
    """Limit each element to the range from ``clip_value_min`` to ``clip_value_max``.

    Parameters
    ----------
    t : array_like or IndexedSlices
        The tensor, of any shape and of any integer dtype, float16, bfloat16, float32 or
        float64.
    clip_value_min : number, array_like or None
        Lower bound, rounded to the dtype of ``t``. An array must broadcast to the shape
        of ``t``. For an integer ``t`` the bound must be an integer, of any size. None:
        no lower bound.
    clip_value_max : number, array_like or None
        Upper bound, with the same rules. At least one of the two must be given.
    name : str, optional
        Prefix of error messages. Default: none.
    out : ndarray or IndexedSlices, optional
        Array that receives the result, with the shape and dtype of ``t``. It may be
        ``t`` itself: then only elements that change are written. Default: a new array.

    Returns
    -------
    numpy.ndarray or IndexedSlices
        The result, with the shape and dtype of ``t``, or ``out`` if it was given.
        A value equal to a bound keeps its bits. A NaN in ``t`` also keeps its bits.
        Elements with a NaN bound become NaN. A dask array gives a lazy dask array.

    Raises
    ------
    TypeError
        If ``t`` or ``out`` has another dtype, a bound is not a real number, or a bound
        of an integer tensor is not an integer.
    ValueError
        If a bound does not broadcast to the shape of ``t``, both bounds are None, or
        ``out`` has another shape, is read-only or overlaps itself.

    Notes
    -----
    The result is ``max(min(t, clip_value_max), clip_value_min)``, as in
    ``tf.clip_by_value``. If the lower bound is above the upper bound, the lower bound
    wins. (In ``numpy.clip`` the upper bound wins.)

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> gc.clip_by_value(np.array([-4, 0, 6]), -2, 2)
    array([-2,  0,  2])
    >>> gc.clip_by_value(np.array([-4.0, 0.0, 6.0]), None, [5.0, -1.0, 5.0])
    array([-4., -1.,  5.])
    """
    return _core.clip_by_value(t, clip_value_min, clip_value_max, name, out)


@overload
def clip_by_norm(
    t: IndexedSlices,
    clip_norm: Number,
    axes: Axes = None,
    name: str | None = None,
    *,
    nonfinite: NonFinite = "propagate",
    strict: bool = False,
    out: IndexedSlices | None = None,
    comm: object = None,
    replicated: Replicated = None,
) -> IndexedSlices: ...
@overload
def clip_by_norm(
    t: npt.NDArray[ScalarT],
    clip_norm: Number,
    axes: Axes = None,
    name: str | None = None,
    *,
    nonfinite: NonFinite = "propagate",
    strict: bool = False,
    out: npt.NDArray[ScalarT] | None = None,
    comm: object = None,
    replicated: Replicated = None,
) -> npt.NDArray[ScalarT]: ...
@overload
def clip_by_norm(
    t: OtherT,
    clip_norm: OtherNumber,
    axes: Axes = None,
    name: str | None = None,
    *,
    nonfinite: NonFinite = "propagate",
    strict: bool = False,
    out: OtherT | None = None,
) -> OtherT: ...
@overload
def clip_by_norm(
    t: Tensor,
    clip_norm: Number,
    axes: Axes = None,
    name: str | None = None,
    *,
    nonfinite: NonFinite = "propagate",
    strict: bool = False,
    out: Array | None = None,
    comm: object = None,
    replicated: Replicated = None,
) -> Array: ...
def clip_by_norm(
    t: AnyTensor,
    clip_norm: OtherNumber,
    axes: Axes = None,
    name: str | None = None,
    *,
    nonfinite: NonFinite = "propagate",
    strict: bool = False,
    out: AnyResult | None = None,
    comm: object = None,
    replicated: Replicated = None,
) -> AnyResult:
    """Scale a tensor so that its Euclidean norm is at most ``clip_norm``.

    Parameters
    ----------
    t : array_like or IndexedSlices
        The tensor, of any shape and of dtype float16, bfloat16, float32, float64,
        complex64 or complex128.
    clip_norm : number
        The limit, a real number >= 0. An infinite limit changes nothing, not even NaN
        or infinity.
    axes : int or sequence of int, optional
        Axes of each norm. Each slice along these axes is clipped by its own norm:
        ``axes=1`` clips the rows of a matrix, ``()`` clips each element. Default: None,
        one norm of the whole tensor.
    name : str, optional
        Prefix of error messages. Default: none.
    nonfinite : {"propagate", "raise", "zero", "keep"}, optional
        Effect of an infinite or NaN norm. Default: ``"propagate"``, scale as for other
        norms, so that NaN appears in the results. ``"raise"``: `NonFiniteError`, before
        anything is written. ``"zero"``: the elements become +0.0. ``"keep"``: the elements
        keep their bits.
    strict : bool, optional
        Whether to guarantee that rounding never takes a norm above the limit, as private
        learning needs. Default: False. With True, the exact Euclidean norm of finite
        results is at most ``clip_norm``. Norms up to ``clip_norm * (1 - 1e-13)`` change
        nothing. Others become ``clip_norm * (1 - 2e-13)``, with elements rounded toward
        zero (float64: to nearest). The margins grow beyond 1e8 elements. Not with
        ``nonfinite="keep"``.
    out : ndarray or IndexedSlices, optional
        Array that receives the result, with the shape and dtype of ``t``. It may be
        ``t`` itself: then only slices that are clipped are written. Default: a new
        array.
    comm : communicator, function or sequence of these, optional
        The processes that hold the other parts of the tensor: a communicator of mpi4py, a
        ProcessGroup of torch.distributed, an NCCLBackend of cupyx.distributed, or a
        function that sums a float64 array over all processes. A sequence is reduced over in
        turn. Default: None, only this process.
    replicated : bool, int or sequence of these, optional
        True if every process holds a copy of the tensor, or the number of processes that
        hold one. All copies together count once. Only with ``comm``. Default: None, each
        process holds a part.

    Returns
    -------
    numpy.ndarray or IndexedSlices
        The result, with the shape and dtype of ``t``, or ``out`` if it was given.
        Slices with a norm at or below ``clip_norm`` keep their bits (with ``strict=True``:
        at or below ``clip_norm * (1 - 1e-13)``). A dask array gives a lazy dask array.

    Raises
    ------
    TypeError
        If ``t`` or ``out`` has another dtype, ``clip_norm`` is not a real number, or
        an axis is not an integer.
    ValueError
        If ``clip_norm`` is negative, NaN or not 0-d, an axis is given twice, or ``out``
        has another shape, is read-only or overlaps itself.
    NonFiniteError
        Under ``nonfinite="raise"``, if an element is infinite or NaN.
    numpy.exceptions.AxisError
        If ``t`` does not have one of the axes.

    Notes
    -----
    The result is ``t * clip_norm / max(norm(t), clip_norm)``, as in
    ``tf.clip_by_norm``. gradclip multiplies by ``clip_norm / norm(t)`` in float64 and
    rounds once to the dtype of ``t``. The norm neither overflows nor underflows.

    With a finite limit, a slice that contains NaN becomes NaN. In a slice with infinite
    elements and no NaN, these elements become NaN and all others 0. Of a complex
    element, only the infinite part becomes NaN.

    With ``comm``, every process must make the call. A process without a part passes an
    empty array. All processes get the same bits. If one raises an error, all do.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> gc.clip_by_norm(np.array([[6.0, 8.0], [0.6, 0.8]]), 5.0, axes=1)
    array([[3. , 4. ],
           [0.6, 0.8]])
    """
    if comm is not None or replicated is not None:
        return _distributed.clip_by_norm(
            "clip_by_norm", t, clip_norm, axes, name, nonfinite, strict, out, comm, replicated
        )
    return _core.clip_by_norm("clip_by_norm", t, clip_norm, axes, name, nonfinite, strict, out, None)


@overload
def clip_by_rms(
    t: npt.NDArray[ScalarT],
    clip_rms: Number,
    axes: Axes = None,
    name: str | None = None,
    *,
    nonfinite: NonFinite = "propagate",
    out: npt.NDArray[ScalarT] | None = None,
) -> npt.NDArray[ScalarT]: ...
@overload
def clip_by_rms(
    t: Tensor,
    clip_rms: Number,
    axes: Axes = None,
    name: str | None = None,
    *,
    nonfinite: NonFinite = "propagate",
    out: Array | None = None,
) -> Array: ...
def clip_by_rms(
    t: Tensor,
    clip_rms: Number,
    axes: Axes = None,
    name: str | None = None,
    *,
    nonfinite: NonFinite = "propagate",
    out: Array | None = None,
) -> AnyResult:
    """Scale a tensor so that its root mean square is at most ``clip_rms``.

    Parameters
    ----------
    t : array_like
        The tensor, of any shape and of dtype float16, bfloat16, float32, float64,
        complex64 or complex128.
    clip_rms : number
        The limit, a real number >= 0. An infinite limit changes nothing, not even NaN
        or infinity.
    axes : int or sequence of int, optional
        Axes of each mean. Each slice along these axes is clipped by its own root mean
        square. Default: None, the root mean square of the whole tensor.
    name : str, optional
        Prefix of error messages. Default: none.
    nonfinite : {"propagate", "raise", "zero", "keep"}, optional
        As in `clip_by_norm`.
    out : ndarray, optional
        Array that receives the result, with the shape and dtype of ``t``. It may be
        ``t`` itself. Default: a new array.

    Returns
    -------
    numpy.ndarray
        The result, with the shape and dtype of ``t``, or ``out`` if it was given.
        Slices with a root mean square at or below ``clip_rms`` keep their bits.

    Raises
    ------
    TypeError
        If ``t`` or ``out`` has another dtype, ``clip_rms`` is not a real number, or an
        axis is not an integer.
    ValueError
        If ``clip_rms`` is negative, NaN or not 0-d, an axis is given twice, or ``out``
        has another shape, is read-only or overlaps itself.
    NonFiniteError
        Under ``nonfinite="raise"``, if an element is infinite or NaN.
    numpy.exceptions.AxisError
        If ``t`` does not have one of the axes.

    Notes
    -----
    The result is ``t * clip_rms / max(rms(t), clip_rms)`` with
    ``rms(t) = sqrt(mean(|t|**2))``, as in ``optax.clip_by_block_rms``. Empty slices have
    the root mean square 0. Values are rounded as in `clip_by_norm`.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> gc.clip_by_rms(np.array([[1.0, 7.0], [0.5, 0.5]]), 1.0, axes=1)
    array([[0.2, 1.4],
           [0.5, 0.5]])
    """
    return _core.clip_by_norm("clip_by_rms", t, clip_rms, axes, name, nonfinite, False, out, None)


@overload
def clip_by_average_norm(
    t: npt.NDArray[ScalarT],
    clip_norm: Number,
    name: str | None = None,
    *,
    nonfinite: NonFinite = "propagate",
    out: npt.NDArray[ScalarT] | None = None,
    comm: object = None,
    replicated: Replicated = None,
) -> npt.NDArray[ScalarT]: ...
@overload
def clip_by_average_norm(
    t: OtherT,
    clip_norm: OtherNumber,
    name: str | None = None,
    *,
    nonfinite: NonFinite = "propagate",
    out: OtherT | None = None,
) -> OtherT: ...
@overload
def clip_by_average_norm(
    t: Tensor,
    clip_norm: Number,
    name: str | None = None,
    *,
    nonfinite: NonFinite = "propagate",
    out: Array | None = None,
    comm: object = None,
    replicated: Replicated = None,
) -> Array: ...
def clip_by_average_norm(
    t: AnyTensor,
    clip_norm: OtherNumber,
    name: str | None = None,
    *,
    nonfinite: NonFinite = "propagate",
    out: AnyResult | None = None,
    comm: object = None,
    replicated: Replicated = None,
) -> AnyResult:
    """Scale a tensor so that its average norm is at most ``clip_norm``.

    The average norm is the Euclidean norm divided by the number of elements. It is not
    the root mean square.

    Parameters
    ----------
    t : array_like
        The tensor, of any shape and of dtype float16, bfloat16, float32, float64,
        complex64 or complex128.
    clip_norm : number
        The limit, a real number >= 0. An infinite limit changes nothing, not even NaN
        or infinity.
    name : str, optional
        Prefix of error messages. Default: none.
    nonfinite : {"propagate", "raise", "zero", "keep"}, optional
        Effect of an infinite or NaN norm. Default: ``"propagate"``, scale as for other
        norms, so that NaN appears in the results. ``"raise"``: `NonFiniteError`, before
        anything is written. ``"zero"``: the elements become +0.0. ``"keep"``: the elements
        keep their bits.
    out : ndarray, optional
        Array that receives the result, with the shape and dtype of ``t``. It may be
        ``t`` itself. Default: a new array.
    comm : communicator, function or sequence of these, optional
        The processes that hold the other parts of the tensor: a communicator of mpi4py, a
        ProcessGroup of torch.distributed, an NCCLBackend of cupyx.distributed, or a
        function that sums a float64 array over all processes. A sequence is reduced over in
        turn. Default: None, only this process.
    replicated : bool, int or sequence of these, optional
        True if every process holds a copy of the tensor, or the number of processes that
        hold one. All copies together count once. Only with ``comm``. Default: None, each
        process holds a part.

    Returns
    -------
    numpy.ndarray
        The result, with the shape and dtype of ``t``, or ``out`` if it was given.
        A tensor with an average norm at or below ``clip_norm`` keeps its bits. A dask array
        gives a lazy dask array.

    Raises
    ------
    TypeError
        If ``t`` or ``out`` has another dtype, or ``clip_norm`` is not a real number.
    ValueError
        If ``clip_norm`` is negative, NaN or not 0-d, or ``out`` has another shape, is
        read-only or overlaps itself.
    NonFiniteError
        Under ``nonfinite="raise"``, if an element is infinite or NaN.

    Notes
    -----
    The result is ``t * clip_norm / max(norm(t) / t.size, clip_norm)``, as in
    ``tf.compat.v1.clip_by_average_norm``. Rounding, NaN and infinity are treated as in
    `clip_by_norm`.

    With ``comm``, every process must make the call. A process without a part passes an
    empty array. All processes get the same bits. If one raises an error, all do.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> gc.clip_by_average_norm(np.array([3.0, 4.0]), 1.0)
    array([1.2, 1.6])
    """
    if comm is not None or replicated is not None:
        return _distributed.clip_by_norm(
            "clip_by_average_norm", t, clip_norm, None, name, nonfinite, False, out, comm, replicated
        )
    return _core.clip_by_norm("clip_by_average_norm", t, clip_norm, None, name, nonfinite, False, out, None)


@overload
def clip_by_global_norm(
    t_list: Sequence[OtherArray | None],
    clip_norm: OtherNumber,
    use_norm: OtherNumber | None = None,
    name: str | None = None,
    *,
    ord: Order = 2,
    nonfinite: NonFinite = "propagate",
    strict: bool = False,
    integers: Literal["raise", "keep"] = "raise",
    out: Sequence[OtherArray | None] | None = None,
) -> tuple[list[Result], Any]: ...
@overload
def clip_by_global_norm(
    t_list: Tensors,
    clip_norm: Number,
    use_norm: Number | None = None,
    name: str | None = None,
    *,
    ord: Order = 2,
    nonfinite: NonFinite = "propagate",
    strict: bool = False,
    integers: Literal["raise", "keep"] = "raise",
    out: Sequence[Array | IndexedSlices | None] | None = None,
    comm: object = None,
    replicated: Replicated = None,
    reproducible: bool = False,
) -> tuple[list[Result], float]: ...
def clip_by_global_norm(
    t_list: Tensors | Sequence[OtherArray | None],
    clip_norm: OtherNumber,
    use_norm: OtherNumber | None = None,
    name: str | None = None,
    *,
    ord: Order = 2,
    nonfinite: NonFinite = "propagate",
    strict: bool = False,
    integers: Literal["raise", "keep"] = "raise",
    out: Sequence[AnyResult | None] | None = None,
    comm: object = None,
    replicated: Replicated = None,
    reproducible: bool = False,
) -> tuple[list[Result], float | OtherArray]:
    """Scale all tensors of a list so that their global norm is at most ``clip_norm``.

    The global norm is one norm of all elements of all tensors.

    Parameters
    ----------
    t_list : sequence of array_like, IndexedSlices or None
        The tensors, of any shapes and of dtypes float16, bfloat16, float32, float64,
        complex64 and complex128. Dtypes may be mixed. None stands for a missing gradient.
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
        Effect of an infinite or NaN norm. Default: ``"propagate"``, scale as for other
        norms, so that NaN appears in the results. ``"raise"``: `NonFiniteError`, before
        anything is written. ``"zero"``: all elements become +0.0. ``"keep"``: all elements
        keep their bits.
    strict : bool, optional
        Whether to guarantee that rounding never takes the norm above the limit, as in
        `clip_by_norm`. Default: False. Only for ``ord=2``. ``use_norm`` must have a relative
        error of at most 1e-14.
    integers : {"raise", "keep"}, optional
        Treatment of integer and boolean tensors. Default: ``"raise"``, a TypeError.
        ``"keep"``: they do not count in the norm, and their results are copies, under
        ``nonfinite="zero"`` too.
    out : sequence of ndarray, IndexedSlices or None, optional
        For each tensor, the array that receives its result, with its shape and dtype, or
        None for a new array. Where ``t_list`` has None, pass None. ``out`` may be
        ``t_list`` itself: then the tensors are clipped in place, and nothing is written
        if nothing needs clipping. Default: new arrays.
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
    clipped : list of ndarray, IndexedSlices or None
        The results, each with the shape and dtype of its tensor, or the entries of
        ``out`` if it was given. None for each None. If the norm is at or below
        ``clip_norm`` (with ``strict=True``: ``clip_norm * (1 - 1e-13)``), all tensors keep
        their bits. If a tensor is a dask array, all results are lazy dask arrays.
    norm : float
        The global norm before clipping. For CuPy arrays it is a 0-d float64 array on
        their device, which you may pass as ``use_norm``. With dask arrays it is a lazy 0-d
        float64 dask array.

    Raises
    ------
    TypeError
        If ``t_list`` is not a sequence, a tensor or an output has another dtype,
        ``clip_norm`` or ``use_norm`` is not a real number, or another argument has a
        wrong type.
    ValueError
        If ``clip_norm`` or ``use_norm`` is negative or not 0-d, ``clip_norm`` is NaN,
        ``ord`` is not a number > 0, or an output has another shape, is read-only or
        shares memory with another output.
    NonFiniteError
        Under ``nonfinite="raise"``, if ``use_norm`` is infinite or NaN, or if it is not
        given and an element is.

    Notes
    -----
    Each tensor ``t`` becomes ``t * clip_norm / max(norm, clip_norm)``, as in
    ``tf.clip_by_global_norm``. If an element is infinite or NaN and ``clip_norm`` is
    finite, all results are NaN by default, unless ``use_norm`` is finite. A norm beyond
    float64 scales the tensors correctly. It is returned as infinity, so do not pass it
    as ``use_norm``.

    Clipping by the global norm was proposed by R. Pascanu, T. Mikolov and Y. Bengio,
    "On the difficulty of training recurrent neural networks", ICML 2013,
    https://arxiv.org/abs/1211.5063.

    With ``comm``, every process must make the call, even a process without tensors. All
    processes get the same bits. If one raises an error, all do.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> weights, bias = np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([12.0])
    >>> clipped, norm = gc.clip_by_global_norm([weights, None, bias], 6.5)
    >>> norm
    13.0
    >>> clipped
    [array([[1.5, 0. ],
           [0. , 2. ]]), None, array([6.])]
    >>> kept, norm = gc.clip_by_global_norm([weights, bias], 1.0, out=[weights, bias])
    >>> kept[0] is weights
    True
    """
    if comm is not None or replicated is not None or reproducible is not False:
        return _distributed.clip_by_global_norm(
            t_list, clip_norm, use_norm, name, ord, nonfinite, strict, integers, out, comm, replicated, reproducible
        )
    return _core.clip_by_global_norm(t_list, clip_norm, use_norm, name, ord, nonfinite, strict, integers, out, None)
