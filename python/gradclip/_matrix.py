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
    stack = np.moveaxis(np.asarray(matrices), axes, (-2, -1)).astype(np.float64)
    if 0 in stack.shape[-2:]:
        return np.zeros(stack.shape[:-2]), np.zeros(stack.shape[:-2])
    # By a power of two, so that LAPACK meets neither overflow nor underflow and nothing is rounded.
    largest = np.abs(stack).max(axis=(-2, -1), keepdims=True)
    finite = np.isfinite(largest)
    _, exponent = np.frexp(np.where(finite, largest, 0.0))
    with np.errstate(under="ignore"):
        stack = np.ldexp(np.where(finite, stack, 0.0), -exponent)
    found = np.linalg.svd(stack, compute_uv=False)[..., 0]
    return np.where(finite[..., 0, 0], found, np.nan), exponent[..., 0, 0].astype(np.float64)
