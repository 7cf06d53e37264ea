"""The norms. What they compute and how arguments are checked is in the compiled part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from gradclip import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradclip._slices import Tensors
    from gradclip._types import Array, Axes, DeviceArray, DeviceT, Order, Tensor


@overload
def global_norm(t_list: Tensors, name: str | None = None, *, ord: Order = 2) -> float: ...
@overload
def global_norm(t_list: Sequence[DeviceArray | None], name: str | None = None, *, ord: Order = 2) -> Any: ...
def global_norm(t_list: Any, name: str | None = None, *, ord: Order = 2) -> Any:
    """Compute the norm of all elements of all tensors of a list.

    It is ``(sum of |x|**ord) ** (1/ord)``, the Euclidean norm by default, the largest
    magnitude for ``inf``.

    Parameters
    ----------
    t_list : sequence of arrays, IndexedSlices and None
        Of any floating-point, complex, integer or boolean dtype, mixed as you like;
        None counts nothing.
    name : str, optional
        Stands in error messages.
    ord : number, optional
        The order of the norm: any number > 0, or ``inf``.

    Returns
    -------
    float
        In float64 precision, whatever the dtypes are; 0.0 for an empty list. For CuPy
        arrays a 0-d float64 array on their device.

    Raises
    ------
    TypeError
        If ``t_list`` is no sequence, or a tensor is of another dtype.
    ValueError
        If ``ord`` is not a number > 0.

    Notes
    -----
    The function is ``tf.linalg.global_norm``. The relative error is below 1e-14 (1e-14
    / ord for orders below 1).

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> gc.global_norm([np.array([3.0]), None, np.array([[4.0], [12.0]], np.float32)])
    13.0
    """
    return _core.global_norm(t_list, name, ord)


def norm(
    tensor: Tensor | DeviceArray,
    ord: Order = "euclidean",
    axis: Axes = None,
    keepdims: bool | None = None,
    name: str | None = None,
) -> Any:
    """Compute a norm of a tensor, or of vectors or matrices along some of its axes.

    Parameters
    ----------
    tensor : array
        Of any floating-point, complex, integer or boolean dtype, of any shape.
    ord : {'euclidean', 'fro', number}, optional
        For vectors 'euclidean' or any number > 0, ``inf`` included: ``(sum of |x|**ord)
        ** (1/ord)``. For matrices 'euclidean' or 'fro' (the root of the sum of
        squares), 1 (the largest column sum of magnitudes), ``inf`` (the largest row
        sum), 2 (the largest singular value).
    axis : int or sequence of int, optional
        None: the whole tensor is one vector. One axis: vectors. Two: matrices, rows
        along the first of them, columns along the second. More: vectors of all elements
        along these axes.
    keepdims : bool, optional
        Keep the reduced axes, with length 1.
    name : str, optional
        Stands in error messages.

    Returns
    -------
    float or numpy.ndarray
        A float in float64 precision if there is one number (for a CuPy array a 0-d
        float64 array on its device). Else an array: float32 for
        float16, bfloat16, float32 and complex64, float64 for the others. NaN wins over
        infinity; the norm of nothing is 0.

    Raises
    ------
    TypeError
        If ``tensor`` is of another dtype, or another argument of another type.
    ValueError
        If ``ord`` is no norm of what the axes say, an axis is given twice, or ``axis``
        is empty.
    numpy.exceptions.AxisError
        If ``tensor`` has no such axis.

    Notes
    -----
    The function is ``tf.norm``; axes mean what they mean in ``numpy.linalg.norm``. The
    relative error, before rounding to the dtype, is below 1e-14 (1e-14 / ord for orders
    below 1).

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
    return _core.norm(tensor, ord, axis, keepdims, name)


@overload
def normalize(
    tensor: Tensor,
    ord: Order = "euclidean",
    axis: Axes = None,
    name: str | None = None,
    *,
    out: Array | None = None,
) -> tuple[Array, Array]: ...
@overload
def normalize(
    tensor: DeviceT,
    ord: Order = "euclidean",
    axis: Axes = None,
    name: str | None = None,
    *,
    out: DeviceT | None = None,
) -> tuple[DeviceT, Any]: ...
def normalize(
    tensor: Any,
    ord: Order = "euclidean",
    axis: Axes = None,
    name: str | None = None,
    *,
    out: Any = None,
) -> Any:
    """Divide a tensor, or vectors or matrices along some of its axes, by its norm.

    Parameters
    ----------
    tensor : array
        Of float16, bfloat16, float32, float64, complex64 or complex128, of any shape.
    ord : {'euclidean', 'fro', number}, optional
        See `norm`.
    axis : int or sequence of int, optional
        See `norm`.
    name : str, optional
        Stands in error messages.
    out : array, optional
        Where to put the first result: of the shape and dtype of ``tensor``, or
        ``tensor`` itself.

    Returns
    -------
    normalized : numpy.ndarray
        ``tensor / norm``, of the shape and dtype of ``tensor``; ``out`` if that was
        given. Where the norm is 0, so are the elements, and they stay 0.
    norm : numpy.ndarray
        The norm, the reduced axes kept with length 1.

    Raises
    ------
    TypeError
        If ``tensor`` is of another dtype, or another argument of another type.
    ValueError
        If ``ord`` is no norm of what the axes say, an axis is given twice, ``axis`` is
        empty, or ``out`` does not fit.
    numpy.exceptions.AxisError
        If ``tensor`` has no such axis.

    Notes
    -----
    The function is ``tf.linalg.normalize``, but for the zeros, which become NaN there.

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
