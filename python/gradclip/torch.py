"""The clipping functions of ``torch.nn.utils``, for gradients on the CPU.

Signatures, return values and effects in place are those of torch 2.9 and later:
replace ``torch.nn.utils`` by ``gradclip.torch``. Memory is shared and never copied. If a
gradient is on another device, sparse, or of a subclass, the whole call is passed to torch.

On Linux, large gradients are clipped on the threads of torch if these are threads of OpenMP. After
``backward()`` they spin for some milliseconds, and other threads would share their CPUs.

Inside ``torch.compile`` the functions run as they are, between two graphs.

DTensors (FSDP2, tensor parallel) are supported. Each process clips its own part by the norm
of the whole tensors. All processes of the mesh must make the call, and they get the same bits.

Differences from torch:

- The norm after clipping is ``max_norm``. torch adds 1e-6 to the norm before it divides.
- The norm is a sum in float64. `clip_grad_norm_` scales by it even where the float32 tensor
  that it returns is infinite: float32 gradients ``[3e38] * 4`` become ``[0.5] * 4``.
- Gradients whose norm is within the limit are not written.
- The norm of float16 and bfloat16 gradients is float32.
- A gradient that several parameters share counts once and is scaled once. If they have views
  of it in different shapes or strides that begin at one element, the whole call is passed to
  torch, which counts and scales each view. Other gradients that overlap are a ValueError.
- A ``max_norm`` or ``clip_value`` that is negative or NaN is a ValueError. An infinite
  ``max_norm`` changes nothing.
- If an element is infinite, or ``total_norm`` of `clip_grads_with_norm_` is, all gradients
  become NaN. `get_total_norm` returns infinity for ``[3e38] * 4`` too.
- The norm of DTensors is a plain tensor. Some DTensors may lie on one dimension of the mesh
  of the others, which torch refuses.

>>> import torch
>>> import gradclip.torch
>>> weight = torch.nn.Parameter(torch.zeros(2))
>>> weight.grad = torch.tensor([3.0, 4.0])
>>> gradclip.torch.clip_grad_norm_([weight], 1.0)
tensor(5.)
>>> weight.grad
tensor([0.6000, 0.8000])
"""

from __future__ import annotations

import math
import types
import warnings
from functools import partial, wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError("gradclip.torch needs PyTorch: see https://pytorch.org/get-started") from error

import gradclip as gc
from gradclip import _core, _openmp
from gradclip._distributed import clip_parts, error_of_gradients, norm_of_parts
from gradclip._dtensor import parts_of
from gradclip._text import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np

    from gradclip._dtensor import Parts

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]

_KINDS = {torch.Tensor, torch.nn.Parameter}
_DOUBLE = {torch.float64, torch.complex128}
_REAL = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_DTYPES = _REAL | {torch.complex64, torch.complex128}
_dtype, _requires_grad = attrgetter("dtype"), attrgetter("requires_grad")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _as_in_torch(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function run on the threads of torch, and keep torch.compile out of it.

    torch.compile cannot trace arrays of the memory of tensors.
    """

    def on_team(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        outer = 0  # the team of an outer call: `parameters` may be a generator that makes this call
        try:
            outer = _core.use_team(_openmp.parallel_address())
            return function(*args, **kwargs)
        finally:
            _core.use_team(outer)

    disable: Any = torch.compiler.disable  # which has no types
    left_out: Callable[_P, _R] = disable(on_team, reason="gradclip is compiled already")

    @wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        # torch.compile unwraps a disabled function that it is given. It does not unwrap one that this function calls.
        return left_out(*args, **kwargs)

    return wrapped


@_as_in_torch
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Scale all gradients together, in place, to a norm of at most ``max_norm``.

    Parameters
    ----------
    parameters : tensor or iterable of tensors
        The parameters whose ``grad`` is clipped. Parameters without a ``grad`` are skipped.
    max_norm : float
        The limit, 0 or larger. With infinity, the call only computes the norm.
    norm_type : float, optional
        The order of the norm. ``'inf'``: the largest magnitude. torch computes orders of 0
        and below. Default: 2.
    error_if_nonfinite : bool, optional
        Whether to raise an error if the norm is infinite or NaN, before anything is written.
        Default: False.
    foreach : bool, optional
        Has no effect on gradients that gradclip clips.

    Returns
    -------
    tensor
        The norm before clipping, 0-d, on the CPU: float64 if any gradient is float64 or
        complex128, else float32.

    Raises
    ------
    RuntimeError
        If ``error_if_nonfinite`` is True and the norm is infinite or NaN.
    TypeError
        If ``max_norm`` is not a number.
    ValueError
        If ``max_norm`` is negative, NaN or a text that is no number, or gradients overlap.

    Examples
    --------
    >>> import torch
    >>> from gradclip.torch import clip_grad_norm_
    >>> model = torch.nn.Linear(2, 1)
    >>> model(torch.tensor([30.0, 40.0])).sum().backward()
    >>> norm = clip_grad_norm_(model.parameters(), 1.0)
    >>> round(float(norm), 3)
    50.01
    """
    parameters = _listed(parameters, warns=True)
    norm_type = _order(norm_type, "clip_grad_norm_")
    gradients = _gradients(parameters)
    parts = parts_of(gradients, _DTYPES, parameters)
    arrays = _arrays_to_clip(gradients, parts) if norm_type > 0 else None
    if arrays is None:
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    function = "clip_grad_norm_"
    limit = partial(_at_least_0, max_norm, f"{function}: max_norm")

    def check(norm: float) -> None:
        if error_if_nonfinite:
            _check(norm, norm_type)

    if parts:
        counted = _counted(arrays, parts)
        norm = clip_parts(function, arrays, counted, limit, norm_type, parts.groups, check)
    else:
        norm = _clip(function, arrays, limit(), None, norm_type, "raise" if error_if_nonfinite else "propagate")
    _count_changes(gradients, norm, limit())
    # A process may have no gradient of a parameter, and all return the same dtype.
    return _norm_of([*parameters, *gradients] if parts else gradients, norm)


@_as_in_torch
def get_total_norm(
    tensors: torch.Tensor | Iterable[torch.Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Compute one norm over all tensors.

    Parameters
    ----------
    tensors : tensor or iterable of tensors
        The tensors. The norm treats them as one long vector.
    norm_type : float, optional
        The order of the norm. ``'inf'``: the largest magnitude. torch computes orders of 0
        and below. Default: 2.
    error_if_nonfinite : bool, optional
        Whether to raise an error if the norm is infinite or NaN. Default: False.
    foreach : bool, optional
        Has no effect on tensors that gradclip takes.

    Returns
    -------
    tensor
        The norm, 0-d, on the CPU: float64 if any tensor is float64 or complex128, else
        float32.

    Raises
    ------
    RuntimeError
        If ``error_if_nonfinite`` is True and the norm is infinite or NaN.

    Examples
    --------
    >>> import torch
    >>> from gradclip.torch import get_total_norm
    >>> get_total_norm([torch.tensor([3.0]), torch.tensor([4.0])])
    tensor(5.)
    """
    tensors = _listed(tensors)
    norm_type = _order(norm_type, "get_total_norm")
    parts = parts_of(tensors, _DTYPES)
    arrays = _arrays(parts.own if parts else tensors) if norm_type > 0 else None
    if arrays is None:
        return torch.nn.utils.get_total_norm(tensors, norm_type, error_if_nonfinite, foreach)
    if parts:
        norm = norm_of_parts("get_total_norm", _counted(arrays, parts), norm_type, parts.groups)
    else:
        try:
            norm = gc.global_norm(
                arrays, "get_total_norm", ord=norm_type, nonfinite="raise" if error_if_nonfinite else "propagate"
            )
        except gc.NonFiniteError as error:
            raise _nonfinite_error(norm_type) from error
    if error_if_nonfinite and parts:
        _check(norm, norm_type)
    return _norm_of(tensors, norm)


@_as_in_torch
def clip_grads_with_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    total_norm: torch.Tensor,
    foreach: bool | None = None,
) -> None:
    """Scale all gradients together, in place, by ``max_norm / total_norm`` if that is below 1.

    Parameters
    ----------
    parameters : tensor or iterable of tensors
        The parameters whose ``grad`` is clipped. Parameters without a ``grad`` are skipped.
    max_norm : float
        The limit, 0 or larger. Infinity changes nothing.
    total_norm : tensor
        The norm of the gradients, as `get_total_norm` returns it.
    foreach : bool, optional
        Has no effect on gradients that gradclip clips.

    Raises
    ------
    TypeError
        If ``max_norm`` or ``total_norm`` is not a number.
    ValueError
        If ``max_norm`` is negative, NaN or a text that is no number, ``total_norm`` is negative, or gradients
        overlap.

    Examples
    --------
    >>> import torch
    >>> from gradclip.torch import clip_grads_with_norm_
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> clip_grads_with_norm_([weight], 1.0, torch.tensor(5.0))
    >>> weight.grad
    tensor([0.6000, 0.8000])
    """
    parameters = _listed(parameters)
    gradients = _gradients(parameters)
    parts = parts_of(gradients, _DTYPES, parameters)
    arrays = _arrays_to_clip(gradients, parts)
    if arrays is None:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total_norm, foreach)
        return
    # torch makes DTensors of the norms of DTensors.
    full_tensor = getattr(total_norm, "full_tensor", None)
    total_norm = full_tensor() if full_tensor else total_norm
    norm = _at_least_0(total_norm, "clip_grads_with_norm_: total_norm", takes_nan=True)
    max_norm = _at_least_0(max_norm, "clip_grads_with_norm_: max_norm")
    _clip("clip_grads_with_norm_", arrays, max_norm, norm)
    _count_changes(gradients, norm, max_norm)


@_as_in_torch
def clip_grad_value_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    clip_value: float,
    foreach: bool | None = None,
) -> None:
    """Limit each element of all gradients, in place, to ``-clip_value`` to ``clip_value``.

    Parameters
    ----------
    parameters : tensor or iterable of tensors
        The parameters whose ``grad`` is clipped. Parameters without a ``grad`` are skipped.
    clip_value : float
        The largest magnitude, 0 or larger.
    foreach : bool, optional
        Has no effect on gradients that gradclip clips.

    Raises
    ------
    TypeError
        If ``clip_value`` is not a number.
    ValueError
        If ``clip_value`` is negative, NaN or a text that is no number, or gradients overlap.

    Examples
    --------
    >>> import torch
    >>> from gradclip.torch import clip_grad_value_
    >>> weight = torch.nn.Parameter(torch.zeros(3))
    >>> weight.grad = torch.tensor([-3.0, 0.5, 4.0])
    >>> clip_grad_value_(weight, 1.0)
    >>> weight.grad
    tensor([-1.0000,  0.5000,  1.0000])
    """
    parameters = _listed(parameters)
    gradients = _gradients(parameters)
    parts = parts_of(gradients, _DTYPES, parameters)
    is_real = _REAL.issuperset(map(_dtype, gradients))
    arrays = _arrays_to_clip(gradients, parts) if is_real else None
    if arrays is None:
        torch.nn.utils.clip_grad_value_(parameters, clip_value, foreach)
        return
    clip_value = _at_least_0(clip_value, "clip_grad_value_: clip_value")
    # This call writes nothing. It checks that all arrays can be written before the first one is.
    _clip("clip_grad_value_", arrays, math.inf, 0.0)
    for array in arrays:
        gc.clip_by_value(array, -clip_value, clip_value, out=array)
    _increment_versions(gradients)


def _listed(tensors: Any, *, warns: bool = False) -> list[torch.Tensor]:
    """Make a list of a tensor or of several, once: a generator is empty afterwards."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    found = list(tensors)
    if warns and not found and isinstance(tensors, types.GeneratorType):
        message = "`parameters` is an empty generator, no gradient clipping will occur."
        warnings.warn(message, stacklevel=6)  # the frames of _listed, the function, torch's wrapper and our two
    return found


def _gradients(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Collect the gradients, each once: tied parameters may share theirs."""
    return list({id(grad): grad for parameter in parameters if (grad := parameter.grad) is not None}.values())


def _arrays(tensors: list[torch.Tensor]) -> list[np.ndarray[Any, Any]] | None:
    """Make arrays of the memory of tensors; None if any has no memory that NumPy can take."""
    if not _KINDS.issuperset(map(type, tensors)):
        return None
    dtypes = set(map(_dtype, tensors))
    if not dtypes <= _DTYPES:
        return None
    if any(map(_requires_grad, tensors)):
        tensors = [tensor.detach() for tensor in tensors]
    try:
        if not all(map(torch.Tensor.data_ptr, tensors)) and any(t.numel() and not t.data_ptr() for t in tensors):
            return None  # numpy() would return arbitrary bytes for a tensor of torch.func.functionalize
        return list(map(_array if torch.bfloat16 in dtypes else torch.Tensor.numpy, tensors))
    except (RuntimeError, TypeError):  # of numpy(): another device, sparse, conjugated
        return None


def _arrays_to_clip(gradients: list[torch.Tensor], parts: Parts | None) -> list[np.ndarray[Any, Any]] | None:
    """Make arrays of gradients, one for each memory: gradients of tied parameters may be views of one tensor.

    None if NumPy cannot take one of them, if torch forbids to write one, or if there are different views of
    the same memory.
    """
    arrays = _arrays(parts.own if parts else gradients)
    if arrays is None or parts:
        return arrays
    if not torch.is_inference_mode_enabled() and any(map(torch.Tensor.is_inference, gradients)):
        return None
    if len(set(map(torch.Tensor.data_ptr, gradients))) == len(gradients):
        return arrays
    keys = [(gradient.data_ptr(), gradient.dtype, gradient.shape, gradient.stride()) for gradient in gradients]
    views = dict(zip(keys, arrays, strict=True))
    pointers = [pointer for pointer, *_ in views if pointer]  # empty gradients have no memory
    return list(views.values()) if len(set(pointers)) == len(pointers) else None


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    is_bfloat16 = tensor.dtype is torch.bfloat16  # NumPy has no such dtype
    array: np.ndarray[Any, Any] = (tensor.view(torch.int16) if is_bfloat16 else tensor).numpy()
    return array.view(_bfloat16()) if is_bfloat16 else array


def _bfloat16() -> Any:
    try:
        import ml_dtypes  # noqa: PLC0415 (most programs have no such gradients)
    except ModuleNotFoundError as error:
        raise ImportError("bfloat16 gradients need the package ml_dtypes: pip install ml_dtypes") from error
    return ml_dtypes.bfloat16


def _at_least_0(x: Any, what: str, *, takes_nan: bool = False) -> float:
    """Convert a limit or a norm, a number or a tensor of one element."""
    allowed = "a number of at least 0" + " or NaN" * takes_nan
    try:
        # float() warns of a tensor that requires gradients.
        value = float(x.detach() if isinstance(x, torch.Tensor) else x)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        found = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else describe(x)
        raise kind(f"{what}: found {found}; allowed: {allowed}") from error
    if value < 0 or (math.isnan(value) and not takes_nan):
        raise ValueError(f"{what}: found {value}; allowed: {allowed}")
    return value


def _order(norm_type: Any, function: str) -> float:
    """Convert the order of a norm. torch takes the text 'inf'."""
    try:
        return float(norm_type)
    except (TypeError, ValueError) as error:
        message = f"{function}: norm_type: found {describe(norm_type)}; allowed: a number or 'inf'"
        raise type(error)(message) from error


def _counted(arrays: list[np.ndarray[Any, Any]], parts: Parts) -> list[np.ndarray[Any, Any] | None]:
    """Return the arrays that this process counts, None for the others."""
    return [array if is_counted else None for array, is_counted in zip(arrays, parts.is_counted, strict=True)]


def _clip(  # noqa: PLR0917
    function: str,
    arrays: list[np.ndarray[Any, Any]],
    max_norm: float,
    known: float | None,
    norm_type: float = 2.0,
    nonfinite: Literal["propagate", "raise"] = "propagate",
) -> float:
    """Clip arrays in place. Return their norm."""
    try:
        _, norm = gc.clip_by_global_norm(arrays, max_norm, known, ord=norm_type, nonfinite=nonfinite, out=arrays)
    except gc.NonFiniteError as error:
        raise _nonfinite_error(norm_type) from error
    except ValueError as error:  # of arrays that share memory
        raise error_of_gradients(function, error) from error
    return norm


def _check(norm: float, norm_type: float) -> None:
    """Raise torch's error for a norm that is not finite."""
    if not math.isfinite(norm):
        raise _nonfinite_error(norm_type)


def _nonfinite_error(norm_type: float) -> RuntimeError:
    return RuntimeError(
        f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be "
        "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
        "`error_if_nonfinite=False`"
    )


def _count_changes(gradients: list[torch.Tensor], norm: float, max_norm: float) -> None:
    if not (norm <= max_norm or max_norm == math.inf):
        _increment_versions(gradients)


def _increment_versions(gradients: list[torch.Tensor]) -> None:
    """Tell autograd that tensors were changed in place, as torch's own functions do."""
    torch.autograd.graph.increment_version(gradients)


def _norm_of(tensors: list[torch.Tensor], norm: float) -> torch.Tensor:
    is_double = not _DOUBLE.isdisjoint(map(_dtype, tensors))
    return torch.tensor(norm, dtype=torch.float64 if is_double else torch.float32, device="cpu")
