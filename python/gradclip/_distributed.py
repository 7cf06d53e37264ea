"""The functions with ``comm=``: norms of data that several processes hold parts of."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gradclip import _core, _exact
from gradclip._checks import Checks
from gradclip._exchange import NO_NORM, Share, copies, to_float, to_floats
from gradclip._nonfinite import NonFiniteError
from gradclip._nonfinite import error as nonfinite_error
from gradclip._norm_state import check_reproducible
from gradclip._sequences import is_sequence_of_tensors
from gradclip._slices import values_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from gradclip._types import AnyResult, Array


def norm_of_parts(function: str, t_list: Any, ord: Any, comm: Any) -> float:
    """Return the norm of the tensors of all ranks."""
    with Share(function, None, comm) as share:
        norm, _ = _norm_of_parts(share, t_list, 0.0, ord)
    return to_float(*norm[0].tolist())


def clip_parts(  # noqa: PLR0917
    function: str,
    arrays: list[Array],
    counted: list[Array | None],
    limit: Callable[[], float],
    ord: Any,
    comm: Any,
    check: Callable[[float], None],
) -> float:
    """Clip arrays in place by the norm of the counted ones of all ranks, which is returned.

    The limit must be the same on all ranks. ``check`` may refuse the norm. It gets a number that is finite where the
    norm is, even beyond float64.
    """

    def norm() -> tuple[Array, int]:
        found, elements = _norm_of_parts(share, counted, max_norm, ord)
        check(float(found[0, 0]))  # finite even where the norm lies beyond float64
        return found, elements

    with Share(function, None, comm) as share:
        max_norm = limit()
        options = ("propagate", False, "raise")
        try:
            _, found = _core.clip_by_global_norm(arrays, max_norm, None, None, ord, *options, arrays, norm)
        except ValueError as error:
            raise error_of_gradients(function, error) from error
    return found


def _norm_of_parts(share: Share, t_list: Any, limit: float, ord: Any) -> tuple[Array, int]:
    share.agree(Checks(share.function, None).order(ord), limit)
    return _norm(share, _sums_of_list(share, t_list, None, ("propagate", "raise"), None, False), False)


def error_of_gradients(function: str, error: ValueError) -> ValueError:
    """Return an error of `clip_by_global_norm` in place as one of a function of torch's."""
    text = str(error).replace("clip_by_global_norm: ", f"{function}: ").replace("out[", "gradients[")
    return ValueError(text.replace(": clip_norm: ", ": max_norm: ").replace(": ord: ", ": norm_type: "))


def global_norm(  # noqa: PLR0917 (called by the public function)
    t_list: Any, name: Any, ord: Any, nonfinite: Any, integers: Any, comm: Any, replicated: Any, reproducible: bool
) -> float:
    """See `gradclip.global_norm`."""
    with Share("global_norm", name, comm) as share:
        order = Checks("global_norm", name).order(ord)
        # An empty list, so that all other arguments are checked.
        _core.global_norm((), name, ord, nonfinite, integers)
        reproducible = check_reproducible("global_norm", name, order, reproducible)
        share.agree(order, 0.0, 0.0, replicated, nonfinite=nonfinite, integers=integers, reproducible=reproducible)
        part = _sums_of_list(share, t_list, name, (nonfinite, integers), replicated, reproducible)
        norm, _ = _norm(share, part, reproducible)
    if nonfinite == "raise" and not math.isfinite(norm[0, 0]):
        raise _refusal(share, "t_list", t_list, None, norm)
    return to_float(*norm[0].tolist())


def norms(t_list: Any, name: Any, ord: Any, comm: Any, replicated: Any) -> npt.NDArray[np.float64]:
    """See `gradclip.norms`."""
    with Share("norms", name, comm) as share:
        order = Checks("norms", name).order(ord)
        share.agree(order, 0.0, 0.0, replicated)
        sums, _ = _core.power_sums("norms", t_list, name, ord, False, False, each=True)
        if replicated is not None:
            for row, ranks in zip(sums, copies(share, replicated, len(sums)), strict=True):
                _count(row, ranks, order)
        sums, _ = share.merge(sums, 0.0)
    found = _core.roots_of_power_sums(sums, order)
    return to_floats(found)


def clip_by_global_norm(  # noqa: PLR0917 (called by the public function)
    t_list: Any,
    clip_norm: Any,
    use_norm: Any,
    name: Any,
    ord: Any,
    nonfinite: Any,
    strict: Any,
    integers: Any,
    out: Any,
    comm: Any,
    replicated: Any,
    reproducible: bool,
) -> tuple[list[Any], float]:
    """See `gradclip.clip_by_global_norm`."""
    function = "clip_by_global_norm"

    def norm() -> tuple[Array, int]:
        checks = Checks(function, name)
        order, limit = checks.order(ord), checks.limit("clip_norm", clip_norm, False)
        used = NO_NORM if use_norm is None else checks.limit("use_norm", use_norm, True)
        is_exact = check_reproducible(function, name, order, reproducible)
        options = {"nonfinite": nonfinite, "strict": strict, "integers": integers}
        share.agree(order, limit, used, replicated, **options, reproducible=is_exact)
        if use_norm is not None:
            # There is nothing to sum, but the arguments are checked and compared.
            if replicated is not None:
                copies(share, replicated, len(t_list))
            counted = [values_of(t).size for t in t_list if t is not None] if strict else []
            _, elements = share.merge(np.zeros(0), float(sum(counted)))
            return np.array([[used, 0.0]]), elements
        part = _sums_of_list(share, t_list, name, (nonfinite, integers), replicated, is_exact)
        norm, elements = _norm(share, part, is_exact)
        if nonfinite == "raise" and not math.isfinite(norm[0, 0]):
            raise _refusal(share, "t_list", t_list, None, norm)
        return norm, elements

    with Share(function, name, comm) as share:
        return _core.clip_by_global_norm(t_list, clip_norm, use_norm, name, ord, nonfinite, strict, integers, out, norm)


def clip_by_norm(  # noqa: PLR0917 (called by the public functions)
    function: str,
    t: Any,
    clip_norm: Any,
    axes: Any,
    name: Any,
    nonfinite: Any,
    strict: Any,
    out: Any,
    comm: Any,
    replicated: Any,
) -> AnyResult:
    """See `gradclip.clip_by_norm` and `gradclip.clip_by_average_norm`: ``function`` is one of these."""

    def norms() -> tuple[Array, int]:
        return _norms_of_tensor(share, t, clip_norm, axes, name, nonfinite, strict, replicated)

    with Share(function, name, comm) as share:
        return _core.clip_by_norm(function, t, clip_norm, axes, name, nonfinite, strict, out, norms)


def _norms_of_tensor(  # noqa: PLR0917
    share: Share, t: Any, clip_norm: Any, axes: Any, name: Any, nonfinite: Any, strict: Any, replicated: Any
) -> tuple[Array, int]:
    """Return the norms of a tensor in parts, or of its slices, and the number of elements of each."""
    function = share.function
    limit = Checks(function, name).limit("clip_norm", clip_norm, False)
    sums, len_of_slice = _core.power_sums_along(function, t, name, axes, 2)
    ndim = values_of(t).ndim
    given = Checks(function, name).axes("axes", axes, ndim) if sums.ndim > 1 else None
    kept = () if given is None else tuple(axis for axis in range(ndim) if axis not in given)
    share.agree(2.0, limit, 0.0, replicated, nonfinite=nonfinite, strict=strict, axes=kept, shape=sums.shape[:-1])
    elements = float(len_of_slice)
    sums = np.ascontiguousarray(sums)
    if replicated is not None:
        (ranks,) = copies(share, replicated, 1)
        _count(sums, ranks, 2.0)
        elements = elements / ranks if ranks else 0.0
    sums, count = share.merge(sums, elements)
    found = _core.roots_of_power_sums(sums, 2.0)
    if nonfinite == "raise" and not np.isfinite(found).all():
        raise _refusal(share, "t", t, None if sums.ndim == 1 else axes, found)
    return found, count


def _count(sums: Array, ranks: int, order: float) -> None:
    """Make sums of powers the share of one of the ranks that hold a copy, or nothing."""
    if ranks == 0:
        sums[...] = 0.0
    elif order != math.inf:
        sums /= ranks


def _sums_of_list(  # noqa: PLR0917
    share: Share, t_list: Any, name: Any, options: tuple[str, str], replicated: Any, reproducible: bool
) -> tuple[Array, float]:
    """Return the sums of powers of a list as one, and the number of elements."""
    order = share.order
    nonfinite, integers = options
    keeps_integers = integers == "keep"
    # The functions for arrays on a GPU have no such options.
    on_device = nonfinite == "propagate" and not keeps_integers

    def sums_of(tensors: Any) -> tuple[Array, float]:
        if reproducible:
            return _exact.digits(share.function, tensors, name, order, keeps_integers)
        return _core.power_sums(share.function, tensors, name, order, keeps_integers, on_device)

    # The function that sums refuses objects that are no sequence of tensors.
    if replicated is None or not is_sequence_of_tensors(t_list):
        return sums_of(t_list)
    held = copies(share, replicated, len(t_list))
    entries = list(t_list)
    parts, elements = [], 0.0
    for ranks in sorted({1, *held} - {0}):
        if ranks > 1 and reproducible:
            raise ValueError(
                f"{share.prefix}: replicated: found {ranks}; allowed under reproducible=True: True and False"
            )
        own = [t if r == ranks else None for t, r in zip(entries, held, strict=True)]
        sums, count = sums_of(own)
        _count(sums, ranks, order)
        parts.append(sums.reshape(-1))
        elements += count / ranks
    return _core.merge_power_sums(np.stack(parts), order)[None], elements


def _norm(share: Share, part: tuple[Array, float], reproducible: bool) -> tuple[Array, int]:
    """Return the norm of all ranks' data as ``value, exponent``, and the number of elements."""
    sums, elements = share.merge(*part)
    if reproducible:
        if share.ranks > _exact.MOST_RANKS:
            allowed = f"at most {_exact.MOST_RANKS} under reproducible=True"
            raise ValueError(f"{share.prefix}: comm: found {share.ranks} ranks; allowed: {allowed}")
        return _exact.root(*_exact.total_of(sums.reshape(-1)), share.order), elements
    return _core.roots_of_power_sums(sums, share.order), elements


def _refusal(share: Share, argument: str, tensors: Any, axes: Any, found: Array) -> Exception:
    """Return the error for norms that are infinite or NaN."""
    pair = next(pair for pair in found.reshape(-1, 2).tolist() if not math.isfinite(pair[0]))
    norm = to_float(*pair)
    if axes is not None:
        axes = Checks(share.function, None).axes("axes", axes, values_of(tensors).ndim)
    error = nonfinite_error(share.prefix, argument, tensors, axes, norm)
    place, is_own = share.place_of_nonfinite()
    if error.entries:
        ranks = f"on {place}" if is_own else f"on this rank, and on {place}"
        return NonFiniteError(f"{error} ({ranks})" if place else str(error), norm, error.entries)
    found_on = f" on {place}" if place else ""
    return NonFiniteError(f"{share.prefix}: {argument}: found an element that is infinite or NaN{found_on}", norm)
