"""Matrix norms of order 2, which come from LAPACK."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gradclip._types import Array


def largest_singular_values(matrices: Array, axes: tuple[int, int], xp: Any = np) -> tuple[Array, Array]:
    """Return the largest singular value of each matrix along two axes.

    Parameters
    ----------
    matrices : ndarray
        The matrices, of any numeric dtype.
    axes : tuple of int
        The axes of the rows and of the columns.
    xp : module
        The library of the arrays, NumPy or CuPy. Default: NumPy.

    Returns
    -------
    values, exponents : ndarray
        Two float64 arrays. A singular value is ``value * 2**exponent``, because it may
        lie beyond float64. It is NaN if the matrix has an element that is not finite.
    """
    is_complex = matrices.dtype.kind == "c"
    stack = xp.moveaxis(xp.asarray(matrices), axes, (-2, -1))
    if 0 in stack.shape[-2:]:
        return xp.zeros(stack.shape[:-2]), xp.zeros(stack.shape[:-2])
    # Complex matrices in two parts, for the modulus of a part of them may overflow.
    with np.errstate(invalid="ignore"):  # signalling NaNs
        parts = [part.astype(np.float64) for part in ((stack.real, stack.imag) if is_complex else (stack,))]
    # By a power of two, so that LAPACK meets neither overflow nor underflow and nothing is rounded.
    largest = reduce(xp.maximum, [xp.abs(part).max(axis=(-2, -1), keepdims=True) for part in parts])
    finite = xp.isfinite(largest)
    _, exponent = xp.frexp(xp.where(finite, largest, 0.0))
    with np.errstate(under="ignore"):
        parts = [xp.ldexp(xp.where(finite, part, 0.0), -exponent) for part in parts]
    scaled = xp.empty(stack.shape, np.complex128) if is_complex else parts[0]
    if is_complex:
        scaled.real, scaled.imag = parts
    found = xp.linalg.svd(scaled, compute_uv=False)[..., 0]
    return xp.where(finite[..., 0, 0], found, np.nan), exponent[..., 0, 0].astype(np.float64)


def pairs_of_singular_values(matrices: Array, axes: tuple[int, int]) -> Array:
    """Return `largest_singular_values` as one array of pairs ``value, exponent``, for the compiled part."""
    return np.stack(largest_singular_values(matrices, axes), -1)
