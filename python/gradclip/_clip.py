"""The clippers. What they compute and how arguments are checked is in the compiled part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from gradclip import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradclip._slices import IndexedSlices, Tensors
    from gradclip._types import Array, Axes, DeviceNumber, DeviceT, Number, Order, Tensor


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
    t: Tensor,
    clip_value_min: Tensor | None,
    clip_value_max: Tensor | None,
    name: str | None = None,
    *,
    out: Array | None = None,
) -> Array: ...
@overload
def clip_by_value(
    t: DeviceT,
    clip_value_min: DeviceNumber | None,
    clip_value_max: DeviceNumber | None,
    name: str | None = None,
    *,
    out: DeviceT | None = None,
) -> DeviceT: ...
def clip_by_value(
    t: Any,
    clip_value_min: Any,
    clip_value_max: Any,
    name: str | None = None,
    *,
    out: Any = None,
) -> Any:
    """Limit each element: ``max(min(t, clip_value_max), clip_value_min)``.

    Parameters
    ----------
    t : array or IndexedSlices
        Of any integer or floating-point dtype (bfloat16 included), of any shape.
    clip_value_min, clip_value_max : number or array, or None
        The bounds. An array must broadcast to the shape of ``t``. None: no bound on
        that side, for one of the two. They are rounded to the dtype of ``t``; those of
        integers must be integers, of any size. Where the smaller bound is the larger
        one, ``clip_value_min`` wins.
    name : str, optional
        Stands in error messages.
    out : array or IndexedSlices, optional
        Where to put the result: of the shape and dtype of ``t``. It may be ``t``
        itself; then only what changes is written.

    Returns
    -------
    numpy.ndarray or IndexedSlices
        Of the shape and dtype of ``t``; ``out`` if that was given. A value equal to a
        bound keeps its bits, and so does NaN; a NaN as a bound makes the elements it
        meets NaN.

    Raises
    ------
    TypeError
        If ``t`` is of another dtype, or a bound is no number, or a float for integers.
    ValueError
        If a bound does not broadcast to the shape of ``t``, both are None, or ``out``
        does not fit.

    Notes
    -----
    The function is ``tf.clip_by_value``; ``numpy.clip`` lets the upper bound win where
    they cross.

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
    out: IndexedSlices | None = None,
) -> IndexedSlices: ...
@overload
def clip_by_norm(
    t: Tensor,
    clip_norm: Number,
    axes: Axes = None,
    name: str | None = None,
    *,
    out: Array | None = None,
) -> Array: ...
@overload
def clip_by_norm(
    t: DeviceT,
    clip_norm: DeviceNumber,
    axes: Axes = None,
    name: str | None = None,
    *,
    out: DeviceT | None = None,
) -> DeviceT: ...
def clip_by_norm(
    t: Any,
    clip_norm: Any,
    axes: Axes = None,
    name: str | None = None,
    *,
    out: Any = None,
) -> Any:
    """Scale a tensor down to a Euclidean norm of at most ``clip_norm``: ``t * clip_norm / max(norm(t), clip_norm)``.

    Parameters
    ----------
    t : array or IndexedSlices
        Of float16, bfloat16, float32, float64, complex64 or complex128, of any shape.
    clip_norm : number
        The limit, 0 or larger. An infinite one changes nothing, NaN and infinity included.
    axes : int or sequence of int, optional
        Each slice along these axes is clipped by its own norm: ``axes=1`` clips the
        rows of a matrix. None: the whole tensor is one slice. ``()``: each element is.
    name : str, optional
        Stands in error messages.
    out : array or IndexedSlices, optional
        Where to put the result: of the shape and dtype of ``t``. It may be ``t``
        itself; then only slices that are clipped are written.

    Returns
    -------
    numpy.ndarray or IndexedSlices
        Of the shape and dtype of ``t``; ``out`` if that was given. A slice whose norm
        is at or below ``clip_norm`` comes back bit for bit, every other one as ``t *
        (clip_norm / norm)``, computed in float64 and rounded once. Under a finite
        limit, a slice with NaN becomes NaN; one with an infinite element becomes NaN
        there and 0 elsewhere (of a complex number the part that is infinite).

    Raises
    ------
    TypeError
        If ``t`` is of another dtype, or ``clip_norm`` or ``axes`` no number.
    ValueError
        If ``clip_norm`` is negative, NaN or not 0-d, an axis is given twice, or ``out``
        does not fit.
    numpy.exceptions.AxisError
        If ``t`` has no such axis.

    Notes
    -----
    The function is ``tf.clip_by_norm``, without its overflow and rounding; the norm
    does not leave the range of the dtype on the way, whatever the elements are.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> gc.clip_by_norm(np.array([[6.0, 8.0], [0.6, 0.8]]), 5.0, axes=1)
    array([[3. , 4. ],
           [0.6, 0.8]])
    """
    return _core.clip_by_norm(t, clip_norm, axes, name, out)


@overload
def clip_by_average_norm(
    t: Tensor, clip_norm: Number, name: str | None = None, *, out: Array | None = None
) -> Array: ...
@overload
def clip_by_average_norm(
    t: DeviceT, clip_norm: DeviceNumber, name: str | None = None, *, out: DeviceT | None = None
) -> DeviceT: ...
def clip_by_average_norm(t: Any, clip_norm: Any, name: str | None = None, *, out: Any = None) -> Any:
    """Scale a tensor down to an average norm of at most ``clip_norm``.

    The average norm is the Euclidean norm divided by the number of elements (not the
    root mean square).

    Parameters
    ----------
    t : array
        Of float16, bfloat16, float32, float64, complex64 or complex128, of any shape.
    clip_norm : number
        The limit, 0 or larger. An infinite one changes nothing, NaN and infinity included.
    name : str, optional
        Stands in error messages.
    out : array, optional
        Where to put the result: of the shape and dtype of ``t``, or ``t`` itself.

    Returns
    -------
    numpy.ndarray
        Of the shape and dtype of ``t``; ``out`` if that was given. See `clip_by_norm`
        for what is kept.

    Raises
    ------
    TypeError
        If ``t`` is of another dtype, or ``clip_norm`` no number.
    ValueError
        If ``clip_norm`` is negative, NaN or not 0-d, or ``out`` does not fit.

    Notes
    -----
    The function is ``tf.compat.v1.clip_by_average_norm``.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> gc.clip_by_average_norm(np.array([3.0, 4.0]), 1.0)
    array([1.2, 1.6])
    """
    return _core.clip_by_average_norm(t, clip_norm, name, out)


@overload
def clip_by_global_norm(
    t_list: Tensors,
    clip_norm: Number,
    use_norm: Number | None = None,
    name: str | None = None,
    *,
    ord: Order = 2,
    out: Sequence[Array | IndexedSlices | None] | None = None,
) -> tuple[list[Any], float]: ...
@overload
def clip_by_global_norm(
    t_list: Sequence[DeviceT | None],
    clip_norm: DeviceNumber,
    use_norm: DeviceNumber | None = None,
    name: str | None = None,
    *,
    ord: Order = 2,
    out: Sequence[DeviceT | None] | None = None,
) -> tuple[list[DeviceT | None], Any]: ...
def clip_by_global_norm(
    t_list: Any,
    clip_norm: Any,
    use_norm: Any = None,
    name: str | None = None,
    *,
    ord: Order = 2,
    out: Any = None,
) -> Any:
    """Scale all tensors of a list down to a global norm of at most ``clip_norm``.

    Each is multiplied by ``clip_norm / max(global_norm, clip_norm)``.

    Parameters
    ----------
    t_list : sequence of arrays, IndexedSlices and None
        Of float16, bfloat16, float32, float64, complex64 and complex128, mixed as you
        like; None stands for a tensor without a gradient.
    clip_norm : number
        The limit, 0 or larger. An infinite one changes nothing, NaN and infinity included.
    use_norm : number, optional
        The global norm, where it is known already. It is trusted.
    name : str, optional
        Stands in error messages.
    ord : number, optional
        The order of the norm: any number > 0, ``inf`` for the largest magnitude.
    out : sequence, optional
        Where to put the results: for each tensor an array of its shape and dtype, None
        for None. It may be ``t_list`` itself: then everything is clipped in place, and
        nothing is written if there is nothing to clip.

    Returns
    -------
    list
        The clipped tensors, None in the places of None; the entries of ``out`` if that
        was given.
    float
        The global norm before clipping. For CuPy arrays it stays on the device: a 0-d
        float64 array, to be handed to ``use_norm``.

    Raises
    ------
    TypeError
        If ``t_list`` is no sequence, a tensor is of another dtype, or a limit is no
        number.
    ValueError
        If a limit is negative or not 0-d, or ``clip_norm`` is NaN, or ``out`` does not
        fit.

    Notes
    -----
    The function is ``tf.clip_by_global_norm``, proposed by Pascanu, Mikolov and Bengio,
    "On the difficulty of training recurrent neural networks", 2013
    (https://arxiv.org/abs/1211.5063). If the global norm is infinite or NaN, all
    results are NaN, so that a bad step is seen, unless ``clip_norm`` is infinite. With a
    norm at or below ``clip_norm`` all tensors come back bit for bit.

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
    return _core.clip_by_global_norm(t_list, clip_norm, use_norm, name, ord, out)
