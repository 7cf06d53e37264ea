"""The clippers of lists in which tensors, or parts of them, have norms of their own.

The compiled part checks the arguments and computes the results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gradclip import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from gradclip._slices import IndexedSlices, Tensors
    from gradclip._types import Array, Integer, NonFinite, Number, Order, Result, Tensor


def clip_by_norms(
    t_list: Tensors,
    clip_norms: Number | Sequence[Number | None],
    name: str | None = None,
    *,
    ord: Order = 2,
    nonfinite: NonFinite = "propagate",
    out: Sequence[Array | IndexedSlices | None] | None = None,
) -> tuple[list[Result], npt.NDArray[np.float64]]:
    """Scale each tensor of a list so that its own norm is at most its limit.

    Parameters
    ----------
    t_list : sequence of array_like, IndexedSlices or None
        The tensors, of any shapes and of dtypes float16, bfloat16, float32, float64,
        complex64 and complex128. Dtypes may be mixed. None stands for a missing gradient.
    clip_norms : number or sequence of number or None
        The limit of all tensors, or one for each: real numbers >= 0. None and ``inf`` mean
        no limit, so that tensor does not change.
    name : str, optional
        Prefix of error messages. Default: none.
    ord : number or 'euclidean', optional
        Order of the norms: a number > 0, ``inf`` for the largest magnitude. Default: 2, the Euclidean norm.
    nonfinite : {"propagate", "raise", "zero", "keep"}, optional
        Effect of an infinite or NaN norm on its tensor. Default: ``"propagate"``, scale as
        for other norms, so that NaN appears in the results. ``"raise"``: `NonFiniteError`,
        before anything is written. ``"zero"``: the elements become +0.0. ``"keep"``: the
        elements keep their bits.
    out : sequence of ndarray, IndexedSlices or None, optional
        For each tensor, the array that receives its result, with its shape and dtype, or
        None for a new array. It may be ``t_list`` itself. Default: new arrays.

    Returns
    -------
    clipped : list of ndarray, IndexedSlices or None
        The results, each with the shape and dtype of its tensor, or the entries of
        ``out``. None for each None. A tensor with a norm at or below its limit keeps its
        bits.
    norms : numpy.ndarray
        The norms before clipping in float64, of shape ``(len(t_list),)``; 0.0 for None.

    Raises
    ------
    TypeError
        If ``t_list`` is not a sequence, a tensor or an output has another dtype, or a
        limit is not a real number.
    ValueError
        If a limit is negative or NaN, ``clip_norms`` has another length than ``t_list``,
        ``ord`` is not a number > 0, or an output has another shape, is read-only or
        shares memory with another output.
    NonFiniteError
        Under ``nonfinite="raise"``, if an element is infinite or NaN.

    Notes
    -----
    Each tensor ``t`` becomes ``t * limit / max(norm(t), limit)``. ``clipnorm`` of Keras does
    the same.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> clipped, norms = gc.clip_by_norms([np.array([6.0, 8.0]), np.array([0.5])], 5.0)
    >>> clipped
    [array([3., 4.]), array([0.5])]
    >>> norms
    array([10. ,  0.5])
    """
    return _core.clip_by_norms(t_list, clip_norms, name, ord, nonfinite, out)


def clip_by_weight_norm(
    t_list: Sequence[Tensor | None],
    weights: Sequence[Tensor | None],
    clipping: Number = 0.01,
    name: str | None = None,
    *,
    eps: Number = 1e-3,
    unit_axis: Integer = -1,
    out: Sequence[Array | None] | None = None,
) -> list[Result]:
    """Scale each unit of gradients so that its norm is at most a given ratio of its weights' norm.

    Parameters
    ----------
    t_list : sequence of array_like or None
        The gradients, of any shapes and of dtypes float16, bfloat16, float32, float64,
        complex64 and complex128. None stands for a missing gradient.
    weights : sequence of array_like
        For each gradient, the weights, of the same shape, and of any of these dtypes. For
        each None in ``t_list``, the entry is not read.
    clipping : number, optional
        The largest allowed ratio of the two norms (λ in the paper below), a real number >= 0.
        Default: 0.01.
    name : str, optional
        Prefix of error messages. Default: none.
    eps : number, optional
        Lower bound for the norm of the weights, a real number >= 0. With it, weights that
        start at zero can grow. Default: 1e-3.
    unit_axis : int, optional
        Axis that counts the units. A unit is the slice at one index of this axis.
        Default: -1, the layout of TensorFlow and JAX. For PyTorch's layout, use 0. A
        tensor of fewer than two axes is one unit.
    out : sequence of ndarray or None, optional
        For each gradient, the array that receives its result, with its shape and dtype, or
        None for a new array. It may be ``t_list`` itself. Default: new arrays.

    Returns
    -------
    list of ndarray or None
        The results, each with the shape and dtype of its gradient, or the entries of
        ``out``. None for each None. Units within their limit keep their bits.

    Raises
    ------
    TypeError
        If ``t_list`` or ``weights`` is not a sequence, a tensor has another dtype, or a
        number is not real.
    ValueError
        If ``weights`` has another length or other shapes than ``t_list``, ``clipping`` or
        ``eps`` is negative or NaN, or an output does not fit its gradient.
    numpy.exceptions.AxisError
        If a gradient of two axes and more does not have ``unit_axis``.

    Notes
    -----
    This is adaptive gradient clipping: A. Brock, S. De, S. L. Smith and K. Simonyan,
    "High-Performance Large-Scale Image Recognition Without Normalization", ICML 2021,
    https://arxiv.org/abs/2102.06171. Each unit ``g`` with the weights ``w`` is clipped to the
    norm ``clipping * max(norm(w), eps)``.

    A NaN in a unit of the gradients or of the weights makes the results of that unit NaN, unless
    its limit is infinite. An infinite gradient becomes NaN, and the others of its unit 0. Units
    with infinite weights are not clipped, unless ``clipping`` is 0.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> weights = [np.array([[3.0, 0.0], [4.0, 1.0]])]
    >>> gradients = [np.array([[0.6, 0.0], [0.8, 0.005]])]
    >>> gc.clip_by_weight_norm(gradients, weights, 0.01)
    [array([[0.03 , 0.   ],
           [0.04 , 0.005]])]
    """
    return _core.clip_by_weight_norm(t_list, weights, clipping, name, eps, unit_axis, out)


def clip_examples_by_global_norm(
    t_list: Sequence[Tensor | None],
    clip_norm: Number | Sequence[Number | None],
    name: str | None = None,
    *,
    reduce: Literal["sum", "mean"] | None = "sum",
    nonfinite: NonFinite = "propagate",
    strict: bool = False,
    out: Sequence[Array | None] | None = None,
) -> tuple[list[Result], npt.NDArray[np.float64]]:
    """Scale each example so that its norm is at most ``clip_norm``, and sum the examples.

    Parameters
    ----------
    t_list : sequence of array_like or None
        The gradients of B examples, as arrays of shape ``(B, ...)`` and of dtype float16,
        bfloat16, float32, float64, complex64 or complex128. None stands for a missing
        gradient.
    clip_norm : number or sequence of number or None
        The limit, a real number >= 0, for the norm of an example over all tensors. A
        sequence has a limit for each tensor, or None for no limit. Then the examples of
        each tensor are clipped by their own norms.
    name : str, optional
        Prefix of error messages. Default: none.
    reduce : {"sum", "mean"} or None, optional
        Whether to return the sum or the mean of the clipped examples. Default: ``"sum"``.
        ``"mean"`` divides the sum by B. None: return the clipped examples.
    nonfinite : {"propagate", "raise", "zero", "keep"}, optional
        Effect of an example with an infinite or NaN norm. Default: ``"propagate"``, NaN
        appears in the results. ``"raise"``: `NonFiniteError`, before anything is written.
        ``"zero"``: the example is left out of the sum, unless the limit is infinite or None.
        With a limit for each tensor, it is left out only where its norm is infinite or NaN.
        ``"keep"``: the example keeps its bits, only for ``reduce=None``.
    strict : bool, optional
        Whether to guarantee that rounding never takes the norm of a clipped example above
        the limit, before the sum. Default: False. See `clip_by_norm`.
    out : sequence of ndarray or None, optional
        For each tensor, the array that receives its result, with the shape and dtype of
        that result, or None for a new array. With ``reduce=None`` it may be the tensor
        itself. Default: new arrays.

    Returns
    -------
    results : list of ndarray or None
        For each tensor, the sum or the mean with shape ``t.shape[1:]``, or the clipped
        examples with shape ``t.shape``. The dtype is that of ``t``. None for each None.
    norms : numpy.ndarray
        The norms of the examples before clipping in float64, of shape ``(B,)``. With a limit
        for each tensor, the shape is ``(len(t_list), B)``, with zeros for None.

    Raises
    ------
    TypeError
        If ``t_list`` is not a sequence, a tensor or an output has another dtype, or another
        argument has a wrong type.
    ValueError
        If tensors have different numbers of examples, or no axis, a limit is negative or
        NaN, there is no example for a mean, or an output does not fit.
    NonFiniteError
        Under ``nonfinite="raise"``, if an example has an element that is infinite or NaN.

    Notes
    -----
    Differentially private learning sums clipped gradients: M. Abadi et al., "Deep Learning
    with Differential Privacy", CCS 2016, https://arxiv.org/abs/1607.00133. This function
    adds no noise.

    Factors, products and sums are float64. The sum is rounded once to the dtype of ``t``.
    Before the sum, each clipped example has a norm of at most ``clip_norm * (1 + 2e-14)``,
    and with ``strict=True`` of at most ``clip_norm``. The sum has rounding errors too: for
    each element up to ``B * 2**-53 * sum(abs(clipped))``, plus half a unit in the last place
    of the dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> weights = np.array([[[3.0, 4.0]], [[0.3, 0.4]]])
    >>> (total,), norms = gc.clip_examples_by_global_norm([weights], 1.0)
    >>> total
    array([[0.9, 1.2]])
    >>> norms
    array([5. , 0.5])
    """
    return _core.clip_examples_by_global_norm(t_list, clip_norm, name, reduce, nonfinite, strict, out)


def clip_difference_by_global_norm(
    t_list: Sequence[Tensor | None],
    base_list: Sequence[Tensor | None],
    clip_norm: Number,
    use_norm: Number | None = None,
    name: str | None = None,
    *,
    ord: Order = 2,
    nonfinite: NonFinite = "propagate",
    integers: Literal["raise", "keep"] = "raise",
    out: Sequence[Array | None] | None = None,
) -> tuple[list[Result], float]:
    """Move tensors towards others so that the global norm of the differences is at most ``clip_norm``.

    Parameters
    ----------
    t_list : sequence of array_like or None
        The tensors, for example the weights that a client has trained, of any shapes and of
        dtypes float16, bfloat16, float32, float64, complex64 and complex128.
    base_list : sequence of array_like or None
        For each tensor, the base of its difference, with the same shape and dtype: for
        example the weights before training. Where ``t_list`` has None, pass None.
    clip_norm : number
        The limit, a real number >= 0. An infinite limit changes nothing, not even NaN or
        infinity, whatever ``nonfinite`` is.
    use_norm : number, optional
        The global norm of the differences, if you know it already. Default: None, compute
        it.
    name : str, optional
        Prefix of error messages. Default: none.
    ord : number or 'euclidean', optional
        Order of the norm: a number > 0, ``inf`` for the largest magnitude. Default: 2, the Euclidean norm.
    nonfinite : {"propagate", "raise", "zero", "keep"}, optional
        Effect of an infinite or NaN norm. Default: ``"propagate"``, all results are NaN.
        ``"raise"``: `NonFiniteError`, before anything is written. ``"zero"``: the results
        are the bases. ``"keep"``: the results are the tensors.
    integers : {"raise", "keep"}, optional
        Treatment of integer and boolean tensors. Default: ``"raise"``, a TypeError.
        ``"keep"``: they do not count in the norm, and their results are copies, under
        ``nonfinite="zero"`` too.
    out : sequence of ndarray or None, optional
        For each tensor, the array that receives its result, or None for a new array. It may
        be ``t_list`` or ``base_list``. Default: new arrays.

    Returns
    -------
    clipped : list of ndarray or None
        The results, each with the shape and dtype of its tensor, or the entries of ``out``.
        None for each None. If the norm is at or below ``clip_norm``, the results have the
        bits of the tensors.
    norm : float
        The global norm of the differences before clipping.

    Raises
    ------
    TypeError
        If ``t_list`` or ``base_list`` is not a sequence, dtypes do not agree, or another
        argument has a wrong type.
    ValueError
        If shapes do not agree, ``clip_norm`` or ``use_norm`` is negative, ``clip_norm`` is
        NaN, ``ord`` is not a number > 0, or an output does not fit.
    NonFiniteError
        Under ``nonfinite="raise"``, if ``use_norm`` is infinite or NaN, or if it is not
        given and an element is.

    Notes
    -----
    Each tensor becomes ``base + (t - base) * clip_norm / max(norm, clip_norm)``. Federated
    learning clips the updates of clients in this way: H. B. McMahan et al., "Learning
    Differentially Private Recurrent Language Models", ICLR 2018,
    https://arxiv.org/abs/1710.06963. Differences, products and sums are float64, rounded once.
    No array holds the differences.

    Examples
    --------
    >>> import numpy as np
    >>> import gradclip as gc
    >>> before, after = [np.array([1.0, 1.0])], [np.array([4.0, 5.0])]
    >>> gc.clip_difference_by_global_norm(after, before, 1.0)
    ([array([1.6, 1.8])], 5.0)
    """
    return _core.clip_difference_by_global_norm(
        t_list, base_list, clip_norm, use_norm, name, ord, nonfinite, integers, out
    )
