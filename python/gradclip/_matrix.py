"""The one norm that comes from LAPACK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gradclip._types import Array


def largest_singular_values(matrices: Array, axes: tuple[int, int]) -> tuple[Array, Array]:
    """Return the largest singular value of each matrix along two axes, NaN where one is not finite.

    It is ``value * 2**exponent``, two arrays of float64, because it may lie beyond float64.
    """
    is_complex = matrices.dtype.kind == "c"
    stack = np.moveaxis(np.asarray(matrices), axes, (-2, -1))
    if 0 in stack.shape[-2:]:
        return np.zeros(stack.shape[:-2]), np.zeros(stack.shape[:-2])
    # Complex matrices in two parts, for the modulus of a part of them may overflow.
    with np.errstate(invalid="ignore"):  # signalling NaNs
        parts = [part.astype(np.float64) for part in ((stack.real, stack.imag) if is_complex else (stack,))]
    # By a power of two, so that LAPACK meets neither overflow nor underflow and nothing is rounded.
    largest = np.max([np.abs(part).max(axis=(-2, -1), keepdims=True) for part in parts], axis=0)
    finite = np.isfinite(largest)
    _, exponent = np.frexp(np.where(finite, largest, 0.0))
    with np.errstate(under="ignore"):
        parts = [np.ldexp(np.where(finite, part, 0.0), -exponent) for part in parts]
    scaled = np.empty(stack.shape, np.complex128) if is_complex else parts[0]
    if is_complex:
        scaled.real, scaled.imag = parts
    found = np.linalg.svd(scaled, compute_uv=False)[..., 0]
    return np.where(finite[..., 0, 0], found, np.nan), exponent[..., 0, 0].astype(np.float64)
