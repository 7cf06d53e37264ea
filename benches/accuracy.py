"""How far results are from the exact ones, for every function and every dtype.

    python benches/accuracy.py [--quick] [--check] [--write] [--dtypes float32 float64 ...]

A row is a function and a dtype, and its error the largest over kinds of data that are hard in different
ways: values over the whole range of exponents, at either end of the range, many values, rows, columns. Exact
results come from integers and from mpmath with 240 bits: they share nothing with gradclip, and no rounding of
theirs can show. ``--check`` fails where an error is above what gradclip promises, ``--write`` puts the tables
into docs/accuracy.md.

Errors of norms are relative, those of values in units in the last place (ulp) of their dtype. Beside them
stands the error of what people write with NumPy, in the dtype of the data: ``np.linalg.norm`` (for bfloat16,
which it turns into float64, the formula itself) and ``t * (c / max(np.sqrt(np.sum(t * t)), c))``.

The data is the same in every run. gradclip's errors are so too, on any CPU, but those of the matrix norm of
order 2, which is LAPACK's; NumPy's depend on the CPU in the last digit.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import gradclip as gc
import ml_dtypes
import mpmath  # type: ignore[import-untyped]
import numpy as np

try:
    from tqdm import tqdm
except ModuleNotFoundError:
    tqdm = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Array: TypeAlias = "np.ndarray[Any, Any]"
#: An error of gradclip, and one of NumPy's formula with the same data.
Errors: TypeAlias = "tuple[float, float]"

mp = mpmath.mp.clone()
mp.prec = 240

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
BEGIN = "<!-- begin: written by benches/accuracy.py --write -->"
END = "<!-- end -->"


EUCLID = 2  # the order

# ---- the promised bounds

NORM = 1e-14  # relative, before rounding to the dtype of the result; over p for p < 1
ROUNDED = 0.5 + 1e-6  # ulp: one rounding of what is computed in float64
TWICE = 2.0  # ulp: float64 values, against the product with gradclip's own norm
RELATIVE = "relative"  # the unit of errors that are not in ulp of a dtype


# ---- dtypes


@dataclass(frozen=True)
class Format:
    """A binary format: bits of a significand, exponents of the smallest subnormal and of too much."""

    digits: int
    lowest: int
    highest: int

    def unit(self, exact: Any) -> int:
        """Return the exponent of one unit in the last place at a number."""
        return self.lowest if exact == 0 else max(mp.mag(exact) - self.digits, self.lowest)

    def nearest(self, exact: Any) -> float:
        """Round to nearest, ties to even; beyond the range to infinity."""
        unit = self.unit(exact)
        rounded = mp.ldexp(mp.nint(mp.ldexp(exact, -unit)), unit)
        return math.copysign(math.inf, exact) if mp.mag(rounded) > self.highest else float(rounded)

    def ulps(self, found: float, exact: Any) -> float:
        """Return the distance from an exact number in units in the last place."""
        if math.isinf(found):
            # The last number that does not round to infinity lies half a unit above the largest finite one.
            limit = mp.ldexp(2 - mp.ldexp(1, -self.digits), self.highest - 1)
            return 0.0 if exact * mp.sign(found) >= limit * (1 - mp.mpf(NORM)) else math.inf
        return math.inf if math.isnan(found) else float(mp.ldexp(abs(found - exact), -self.unit(exact)))


FORMATS = {
    "float16": Format(11, -24, 16),
    "bfloat16": Format(8, -133, 128),
    "float32": Format(24, -149, 128),
    "float64": Format(53, -1074, 1024),
}
COMPLEX = {"complex64": "float32", "complex128": "float64"}
HALVES = ("float16", "bfloat16")
WIDE = ("float64", "complex128")
FLOATS = (*FORMATS, *COMPLEX)
INTEGERS = tuple(f"{sign}int{8 << k}" for sign in ("", "u") for k in range(4))
DTYPES = (*FLOATS, *INTEGERS, "bool")
LONGEST = ("float32", "float64")  # of which the longest arrays are made


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of a name."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def part_of(name: str) -> str:
    """Return the dtype of the parts of a complex number, and of a real number itself."""
    return COMPLEX.get(name, name)


def parts(x: Array) -> Array:
    """Lay all real numbers of an array in a row, the parts of complex ones side by side."""
    x = np.ascontiguousarray(x)
    return x.view(part_of(x.dtype.name)).ravel() if x.dtype.kind == "c" else x.ravel()


def numbers(x: Array) -> list[Any]:
    """Make Python numbers of real ones: exact, and mpmath takes them as they are."""
    found: list[Any] = (x if x.dtype.kind in "biu" else x.astype(np.float64)).tolist()
    return found


# ---- exact results

CHUNK = 1 << 18
NEGLIGIBLE = 250  # exp(-250) is below 2^-360
LIMB = 22  # bits: products of two limbs, twice, and CHUNK of them added stay below 2^63


def significands(x: Array) -> tuple[Array, Array]:
    """Write magnitudes as uint64 times a power of two."""
    if x.dtype.kind in "bu":
        return x.astype(np.uint64), np.zeros(x.size, np.int16)
    if x.dtype.kind == "i":
        # The magnitude of the smallest integer is no int64.
        twos = x.astype(np.int64).view(np.uint64)
        return np.where(x < 0, ~twos + np.uint64(1), twos), np.zeros(x.size, np.int16)
    fraction, exponent = np.frexp(np.abs(x.astype(np.float64)))
    return np.ldexp(fraction, 53).astype(np.uint64), (exponent - 53).astype(np.int16)


def exact_sum(x: Array, p: int) -> Any:
    """Sum magnitudes (p = 1) or squares (p = 2) of real numbers in integers, by exponents."""
    sums: defaultdict[int, int] = defaultdict(int)
    pairs = [(i, j) for i in range(3) for j in range(i, 3)]
    for start in range(0, x.size, CHUNK):
        digits, exponents = significands(x[start : start + CHUNK])
        order = np.argsort(exponents, kind="stable")
        digits, exponents = digits[order], exponents[order]
        first = np.flatnonzero(np.diff(exponents, prepend=exponents[0] - 1))
        limbs = [(digits >> np.uint64(LIMB * i)) & np.uint64((1 << LIMB) - 1) for i in range(3)]
        if p == 1:
            terms = [(limb, LIMB * i) for i, limb in enumerate(limbs)]
        else:
            terms = [(limbs[i] * limbs[j] << np.uint64(i != j), LIMB * (i + j)) for i, j in pairs]
        for term, shift in terms:
            found = np.add.reduceat(term, first).tolist()
            for exponent, total in zip(exponents[first].tolist(), found, strict=True):
                sums[p * exponent + shift] += total
    lowest = min(sums, default=0)
    return mp.ldexp(mp.mpf(sum(total << (k - lowest) for k, total in sums.items())), lowest)


def exact_power_sum(x: Array, p: float) -> tuple[Any, Any]:
    """Return the largest magnitude, and the sum of powers of magnitudes in units of it."""
    if x.dtype.kind == "c":
        values, counts = np.unique(x, return_counts=True)
        sizes = [mp.hypot(z.real, z.imag) for z in values.tolist()]
    else:
        values, counts = np.unique(x if x.dtype.kind in "biu" else x.astype(np.float64), return_counts=True)
        sizes = [abs(mp.mpf(value)) for value in values.tolist()]
    largest = max(sizes, default=mp.mpf(0))
    if math.isinf(p) or largest == 0:
        return largest, mp.mpf(1)
    ratios = ((size / largest, count) for size, count in zip(sizes, counts.tolist(), strict=True))
    # (1 - d)**p is at most exp(-p * d), and nothing of a sum that has a 1 if p * d is large.
    felt = ((ratio, count) for ratio, count in ratios if p * (1 - ratio) < NEGLIGIBLE)
    return largest, mp.fsum(ratio ** mp.mpf(p) * count for ratio, count in felt)


def exact_norm(x: Array, p: float = EUCLID) -> Any:
    """Return the norm of all elements."""
    if p == EUCLID:
        return mp.sqrt(exact_sum(parts(x), 2))
    if p == 1 and x.dtype.kind != "c":
        return exact_sum(x.ravel(), 1)
    largest, total = exact_power_sum(x.ravel(), p)
    return largest if math.isinf(p) else largest * total ** (1 / mp.mpf(p))


def exact_matrix_norm(matrix: Array, p: Any) -> Any:
    """Return the norm of a matrix."""
    if p == "fro":
        return exact_norm(matrix)
    if p == EUCLID:
        entries = mp.matrix(matrix.tolist() if matrix.dtype.kind == "c" else [numbers(row) for row in matrix])
        decompose = mp.svd_c if matrix.dtype.kind == "c" else mp.svd_r
        return decompose(entries, compute_uv=False)[0]
    return max(exact_norm(line, 1) for line in (matrix.T if p == 1 else matrix))


# ---- data


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    size: int  # elements of an ordinary array
    slices: int  # rows or columns
    powers: int  # elements of an array whose powers are computed with 240 bits
    repeated: int  # numbers of which arrays of equal values are made
    many: int  # elements of the long arrays
    most: int  # elements of the longest ones, of float32 and float64
    sample: int  # elements that are compared, of those computed
    every: bool = False  # whether all values of a 16-bit dtype are compared


FULL = Effort(20_011, 31, 2003, 500, 10**7, 10**8, 2000, every=True)
QUICK = Effort(1009, 5, 101, 20, 10**5, 10**6, 60)

FLOAT_KINDS = ("ordinary", "whole range", "near overflow", "subnormal")
BEYOND = "norm above the range"  # of float64
INTEGER_KINDS = ("whole range", "small", "both ends")
BOOL_KINDS = ("ordinary", "all True")


def kinds_of(name: str) -> tuple[str, ...]:
    """List the kinds of data of a dtype, the plain one first."""
    if name in INTEGERS:
        return INTEGER_KINDS
    if name == "bool":
        return BOOL_KINDS
    if name in WIDE:
        return (*FLOAT_KINDS, BEYOND)
    return (*FLOAT_KINDS, "every value") if name in HALVES else FLOAT_KINDS


def draw(name: str, kind: str, *shape: int) -> Array:
    """Make an array of a kind of data, the same in every run."""
    rng = np.random.default_rng(list(f"{name} {kind} {shape}".encode()))
    dtype, part = dtype_of(name), part_of(name)
    x: Array
    if kind == "every value":
        x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
        x = x[np.isfinite(x)]
    elif name in COMPLEX:
        x = np.empty((*shape, 2), part)
        x[...] = draw_real(part, kind, x.shape, rng)
        x = x.view(dtype)[..., 0]
    elif name in FORMATS:
        x = draw_real(name, kind, shape, rng)
    elif name == "bool":
        x = np.full(shape, fill_value=True) if kind == "all True" else rng.integers(0, 2, shape).astype(dtype)
    elif kind == "both ends":
        info = np.iinfo(dtype)
        x = rng.choice(np.array([info.min, info.max], dtype), shape)
    else:
        info = np.iinfo(dtype)
        low, high = (max(info.min, -100), 100) if kind == "small" else (info.min, info.max)
        x = rng.integers(low, high, shape, dtype, endpoint=True)
    return x


def draw_real(name: str, kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Make an array of floating point numbers of a kind."""
    dtype, form = dtype_of(name), FORMATS[name]
    # Of float64, the norm is to stay in the range, where BEYOND does not ask for more.
    highest = form.highest - (16 if name == "float64" and kind != BEYOND else 0)
    exponents: Any
    if kind == "ordinary":
        single = name == "float32"
        return rng.standard_normal(shape, np.float32 if single else np.float64).astype(dtype, copy=False)
    if kind == "subnormal":
        digits = rng.integers(1, 1 << (form.digits - 1), shape).astype(np.float64)
        exponents = form.lowest
    elif kind == "whole range":
        digits = rng.uniform(1, 1.99, shape)
        exponents = rng.integers(form.lowest, highest, shape)
    else:
        digits = rng.uniform(0.5, 1.99, shape)
        exponents = highest - 1
    x: Array = np.ldexp(digits * rng.choice([-1.0, 1.0], shape), exponents).astype(dtype)
    return x


def pieces(x: Array) -> list[Any]:
    """Cut an array into tensors of unequal sizes, with a None among them."""
    flat, n = x.ravel(), x.size
    return [flat[: n // 7], None, flat[n // 7 : n // 2], flat[n // 2 : n // 2 + 1], flat[n // 2 + 1 :]]


def joined(tensors: Iterable[Any]) -> Array:
    """Undo `pieces`."""
    return np.concatenate([t for t in tensors if t is not None])


# ---- NumPy's usual formulas


def numpy_norm(x: Array, p: Any = EUCLID, axis: Any = None) -> Any:
    """Compute a norm by the usual NumPy formula, in the dtype."""
    if x.dtype.name == "bfloat16" and not isinstance(axis, tuple):
        sizes = np.abs(x)
        if p == math.inf:
            return np.max(sizes, axis=axis)
        if p == EUCLID:
            return np.sqrt(np.sum(x * x, axis=axis))
        return np.power(np.sum(np.power(sizes, x.dtype.type(p)), axis=axis), x.dtype.type(1 / p))
    return np.linalg.norm(x if axis is not None else x.ravel(), p, axis)


def numpy_factor(x: Array, c: float | None, axis: Any = None, count: int = 1) -> Any:
    """Compute the factor of clipping to c, or of normalizing, by the usual NumPy formula, in the dtype."""
    real = dtype_of(part_of(x.dtype.name)).type
    squares = (x * x.conj()).real if x.dtype.kind == "c" else x * x
    norm = np.sqrt(np.sum(squares, axis=axis, keepdims=True)) / real(count)
    return real(1) / norm if c is None else real(c) / np.maximum(norm, real(c))


# ---- errors


def norm_error(found: float, exact: Any) -> float:
    """Return the relative error of a float64 norm, without that of rounding it to the end of the range."""
    form = FORMATS["float64"]
    if exact == 0 or not math.isfinite(found):
        return form.ulps(found, exact)
    rounding = mp.ldexp(1, form.lowest - 1) if form.unit(exact) == form.lowest else 0
    return float(max(abs(found - exact) - rounding, 0) / exact)


def norm_errors(found: Any, exact: Sequence[Any], unit: str) -> float:
    """Return the largest error of several norms: relative, or in units of the dtype they are rounded to."""
    measure = norm_error if unit == RELATIVE else FORMATS[unit].ulps
    flat = np.asarray(found).astype(np.float64).ravel().tolist()
    return max(measure(a, b) for a, b in zip(flat, exact, strict=True))


def value_error(found: Array, x: Array, factor: Any, sample: int) -> float:
    """Return the largest error of elements that were multiplied by a factor, in ulp."""
    form = FORMATS[part_of(x.dtype.name)]
    a, b = parts(found), parts(x)
    if a.size > sample:
        where = np.random.default_rng(a.size).choice(a.size, sample, replace=False)
        a, b = a[where], b[where]
    return max((form.ulps(v, u * factor) for v, u in zip(numbers(a), numbers(b), strict=True)), default=0.0)


def bits(x: Array) -> Array:
    """Read an array as integers."""
    return parts(x).view(f"u{dtype_of(part_of(x.dtype.name)).itemsize}")


def same_bits(found: Iterable[Array], expected: Iterable[Array]) -> float:
    """Count the numbers whose bits differ."""
    return float(sum(np.count_nonzero(bits(a) != bits(b)) for a, b in zip(found, expected, strict=True)))


def worst(errors: Iterable[Sequence[float]]) -> Errors:
    """Return the largest errors of both."""
    ours, numpys = zip(*errors, strict=True)
    return max(ours), max(numpys)


# ---- norms


def norm_of_all(x: Array, p: float = EUCLID) -> Errors:
    """Measure the norm of a whole array."""
    exact = exact_norm(x, p)
    return norm_error(gc.norm(x, p), exact), norm_error(float(numpy_norm(x, p)), exact)


def norm_of_equal(values: Array) -> Errors:
    """Measure norms of arrays of one value: roundings that all go the same way."""
    n = 2048
    errors = []
    for value in values:
        x = np.full(n, value)
        exact = exact_norm(x[:1]) * mp.sqrt(n)
        errors.append([norm_error(norm, exact) for norm in (gc.norm(x), float(numpy_norm(x)))])
    return worst(errors)


def norm_along(x: Array, axis: int, p: float, unit: str) -> Errors:
    """Measure norms along an axis."""
    slices = np.moveaxis(x, axis, -1)
    exact = [exact_norm(slices[where], p) for where in np.ndindex(slices.shape[:-1])]
    found, numpys = gc.norm(x, p, axis), numpy_norm(x, p, axis)
    return norm_errors(found, exact, unit), norm_errors(numpys, exact, unit)


def norm_of_matrices(x: Array, p: Any, unit: str) -> tuple[float, float | None]:
    """Measure norms of a stack of matrices, or of one."""
    stack = x.reshape(-1, *x.shape[-2:])
    exact = [exact_matrix_norm(matrix, p) for matrix in stack]
    error = norm_errors(gc.norm(x, p, (-2, -1)), exact, unit)
    # LAPACK does not know bfloat16.
    if x.dtype.name == "bfloat16" or (x.dtype.name == "float16" and p == EUCLID):
        return error, None
    return error, norm_errors(np.linalg.norm(x, p, (-2, -1)), exact, unit)


def global_norm_of(tensors: list[Any], p: float = EUCLID) -> Errors:
    """Measure the norm of a list."""
    arrays = [t for t in tensors if t is not None]
    norms = np.array([numpy_norm(t, p) for t in arrays])
    if p == EUCLID:
        exact = mp.sqrt(mp.fsum(exact_sum(parts(t), 2) for t in arrays))
        total = np.sqrt(np.sum(norms * norms))
    else:
        exact = exact_norm(joined(arrays), p)
        total = np.linalg.norm(norms.astype(np.float64), p)
    return norm_error(gc.global_norm(tensors, ord=p), exact), norm_error(float(total), exact)


# ---- scaled values

SHARES = (0.999, 1 / 3, 1e-3)  # limits, in units of the norm


def own_norm(norm: Callable[[Any], float], x: Array) -> Any:
    """Return the norm that values are compared with: for float64 the one that gradclip computed, else the exact one."""
    if x.dtype.name not in WIDE:
        return exact_norm(x)
    found = norm(x)
    if sys.float_info.min <= found < math.inf:
        return mp.mpf(found)
    # Outside the range, where numbers lose digits: that norm in the middle of the range.
    shift = -600 if found == math.inf else 600
    moved = np.ldexp(parts(x), shift).view(x.dtype)
    return mp.ldexp(mp.mpf(norm(moved)), -shift)


def own_norms(x: Array, axis: Any, p: float = EUCLID) -> list[Any]:
    """Return the norms that rows or columns are compared with, for data in the middle of the range."""
    if x.dtype.name in WIDE:
        return list(map(mp.mpf, np.asarray(gc.norm(x, p, axis)).ravel().tolist()))
    return [exact_norm(s, p) for s in np.moveaxis(x, axis, -1)]


def limits_of(norm: Any, name: str) -> list[float]:
    """List limits below a norm: close to it, far away, and one that leaves only subnormal values."""
    shares = [mp.mpf(share) * norm for share in SHARES]
    shares.append(mp.ldexp(1.37, FORMATS[part_of(name)].lowest + 9))
    limits = map(FORMATS["float64"].nearest, shares)
    return [limit for limit in limits if limit < norm and math.isfinite(limit)]


def scaled(x: Array, norm: Any, sample: int, *sides: Callable[[float], Array]) -> Errors:
    """Measure both sides of clipping a whole array, for several limits."""
    limits = limits_of(norm, x.dtype.name)
    return worst([value_error(side(c), x, c / norm, sample) for side in sides] for c in limits)


def clipped_whole(x: Array, sample: int) -> Errors:
    """Measure clip_by_norm of a whole array."""
    norm = own_norm(gc.norm, x)
    return scaled(x, norm, sample, lambda c: gc.clip_by_norm(x, c), lambda c: x * numpy_factor(x, c))


def clipped_along(x: Array, axis: int, sample: int) -> Errors:
    """Measure clip_by_norm of rows or columns, some of which are below the limit."""
    norms = own_norms(x, axis)
    errors = []
    for c in limits_of(max(norms), x.dtype.name):
        both = [gc.clip_by_norm(x, c, axis), x * numpy_factor(x, c, axis)]
        slices = zip(*(np.moveaxis(a, axis, -1) for a in (x, *both)), strict=True)
        for norm, (s, *scaled) in zip(norms, slices, strict=True):
            factor = c / norm if norm > c else mp.mpf(1)
            errors.append([value_error(a, s, factor, sample) for a in scaled])
    return worst(errors)


def clipped_each(x: Array) -> Errors:
    """Measure clip_by_norm of each element by its own magnitude."""
    c = float(np.median(np.abs(x.astype(np.complex128))))
    both = [gc.clip_by_norm(x, c, ()), x * numpy_factor(x, c, ())]
    errors = []
    for i in range(x.size):
        one = x[i : i + 1]
        norm = own_norm(gc.norm, one)
        factor = c / norm if FORMATS["float64"].nearest(norm) > c else mp.mpf(1)
        errors.append([value_error(a[i : i + 1], one, factor, 1) for a in both])
    return worst(errors)


def clipped_by_average(x: Array, sample: int) -> Errors:
    """Measure clip_by_average_norm."""
    norm = own_norm(gc.norm, x) / x.size
    if x.dtype.name in WIDE:
        # The quotient is a float64 too, and one out of its range has as many digits.
        digits = FORMATS["float64"].digits - mp.mag(norm)
        norm = mp.ldexp(mp.nint(mp.ldexp(norm, digits)), -digits)
    return scaled(
        x,
        norm,
        sample,
        lambda c: gc.clip_by_average_norm(x, c),
        lambda c: x * numpy_factor(x, c, count=x.size),
    )


def clipped_by_global(x: Array, sample: int) -> Errors:
    """Measure clip_by_global_norm."""
    norm = own_norm(lambda a: gc.global_norm(pieces(a)), x)
    return scaled(
        x,
        norm,
        sample,
        lambda c: joined(gc.clip_by_global_norm(pieces(x), c)[0]),
        lambda c: x * numpy_factor(x, c),
    )


def clipped_by_given(x: Array, sample: int) -> Errors:
    """Measure clip_by_global_norm with a norm that is given."""
    real = dtype_of(part_of(x.dtype.name)).type
    return scaled(
        x,
        mp.mpf(math.pi),
        sample,
        lambda c: joined(gc.clip_by_global_norm(pieces(x), c, math.pi)[0]),
        lambda c: x * (real(c) / real(math.pi)),
    )


def normalized(x: Array, sample: int, axis: int | None = None, p: float = EUCLID) -> Errors:
    """Measure the first result of normalize."""
    if axis is None:
        norms = [own_norm(lambda a: gc.norm(a, p), x) if x.dtype.name in WIDE else exact_norm(x, p)]
    else:
        norms = own_norms(x, axis, p)
    numpys = np.asarray(numpy_norm(x, p, axis)).astype(part_of(x.dtype.name))
    both = [gc.normalize(x, p, axis)[0], x / (numpys if axis is None else np.expand_dims(numpys, axis))]
    views = [a.reshape(1, -1) if axis is None else np.moveaxis(a, axis, -1) for a in (x, *both)]
    return worst(
        [value_error(a, s, 1 / norm, sample) for a in scaled]
        for norm, (s, *scaled) in zip(norms, zip(*views, strict=True), strict=True)
    )


# ---- clip_by_value


def any_bits(name: str, n: int) -> Array:
    """Make numbers of random bits, NaN of all kinds and infinities among them."""
    dtype, rng = dtype_of(name), np.random.default_rng(list(f"{name} {n}".encode()))
    words = rng.integers(0, 1 << 8 * dtype.itemsize, n, f"u{dtype.itemsize}", endpoint=False)
    if name in FORMATS:
        infinity = np.array(math.inf, dtype).view(words.dtype)
        words[::5] |= infinity
        words[::31] = infinity
        words[1::31] = np.array(-0.0, dtype).view(words.dtype)
    return words.view(dtype)


def bound_in(name: str, bound: Any) -> Any:
    """Write a bound in a dtype: rounded, or for integers taken to the end of the range."""
    if name in INTEGERS:
        return min(max(bound, int(np.iinfo(name).min)), int(np.iinfo(name).max))
    return FORMATS[name].nearest(mp.mpf(bound)) if math.isfinite(bound) else bound


def bounded(value: Any, low: Any, high: Any) -> Any:
    """Clip one number."""
    if any(x != x for x in (value, low, high)):  # noqa: PLR0124 (NaN)
        return math.nan
    value = min(value, high)
    return max(value, low)


def clipped_by_value(t: Array, low: Any, high: Any) -> float:
    """Measure clip_by_value: 0 where it gives the bits of the value or the bound, else ulp, or integers."""
    name = t.dtype.name
    found = gc.clip_by_value(t, low, high)
    bounds = (np.broadcast_to(np.asarray(bound, object), t.shape) for bound in (low, high))
    lows, highs = ([bound_in(name, one) for one in bound] for bound in bounds)
    largest = 0.0
    columns = (numbers(t), lows, highs, numbers(found), bits(t).tolist(), bits(found).tolist())
    for value, a, b, result, before, after in zip(*columns, strict=True):
        expected = bounded(value, a, b)
        if (expected == value or value != value) and before != after:  # noqa: PLR0124
            # It should have kept its bits, including those of -0.0 and NaN.
            off = 1.0
        elif expected == result or (expected != expected and result != result):  # noqa: PLR0124
            off = 0.0
        elif name in INTEGERS or not math.isfinite(expected):
            off = math.inf if result != result else float(abs(expected - result))  # noqa: PLR0124
        else:
            off = FORMATS[name].ulps(result, mp.mpf(expected))
        largest = max(largest, off)
    return largest


def near_ties(name: str, n: int) -> Array:
    """Make float64 bounds that lie beside the middle of two numbers, where rounding twice goes wrong."""
    form, rng = FORMATS[name], np.random.default_rng(n)
    if name == "float64":
        return rng.standard_normal(n)
    whole = rng.integers(1 << (form.digits - 1), 1 << form.digits, n)
    beside = rng.choice([-1.0, 0.0, 1.0], n) * 2.0 ** (form.digits - 51)
    return np.ldexp(whole + 0.5 + beside, 1 - form.digits)


# ---- values that need no clipping


def finite_of(name: str, n: int) -> Array:
    """Make finite numbers of all kinds."""
    zeros = parts(np.zeros(4, dtype_of(name)))
    zeros[::2] *= -1
    kinds = [draw(name, kind, n) for kind in ("whole range", "subnormal")]
    return np.concatenate([*kinds, zeros.view(dtype_of(name))])


def untouched_by_norm(x: Array) -> float:
    """Count what clip_by_norm changes of arrays, and of rows beside others, that are not above the limit."""
    rows = x.reshape(2, -1)
    norms = np.array([gc.norm(row) for row in rows])
    c = float(norms.min())
    below, beside = rows[norms <= c], gc.clip_by_norm(rows, c, 1)[norms <= c]
    kept = [call(x, limit) for limit in at_or_above(gc.norm(x)) for call in (gc.clip_by_norm, in_place)]
    return same_bits([*kept, beside], [x] * len(kept) + [below])


def in_place(x: Array, c: float) -> Array:
    """Clip a copy in place."""
    copy = x.copy()
    return np.asarray(gc.clip_by_norm(copy, c, out=copy))


def at_or_above(norm: float) -> tuple[float, ...]:
    """List limits that allow a norm."""
    return norm, math.nextafter(norm, math.inf), math.inf


def untouched_by_average(x: Array) -> float:
    """Count what clip_by_average_norm changes of what is not above the limit."""
    kept = [gc.clip_by_average_norm(x, c) for c in at_or_above(gc.norm(x) / x.size)]
    return same_bits(kept, [x] * len(kept))


def untouched_by_global(x: Array, wild: Array) -> float:
    """Count what clip_by_global_norm changes of lists not above the limit, also NaN under a given norm."""
    limits = at_or_above(gc.global_norm(pieces(x)))
    kept = [joined(gc.clip_by_global_norm(pieces(x), c)[0]) for c in limits]
    given = joined(gc.clip_by_global_norm(pieces(wild), 1.0, 1.0)[0])
    return same_bits([*kept, given], [*[x] * len(kept), wild])


def untouched_by_value(t: Array) -> float:
    """Count what clip_by_value changes of values between the bounds, or equal to both."""
    # Beyond any integer.
    wide = (-(1 << 70), 1 << 70) if t.dtype.kind in "iu" else (-math.inf, math.inf)
    # 0.0 for -0.0, which equals it, and numbers for NaN, which stays.
    same = np.where((t == 0) | (t != t), np.zeros_like(t), t)  # noqa: PLR0124
    return same_bits([gc.clip_by_value(t, *wide), gc.clip_by_value(t, same, same)], [t, t])


# ---- all measurements


@dataclass(frozen=True)
class Row:
    """The measurement of a function with one kind of data, and the promised bound."""

    function: str
    dtype: str
    data: str
    unit: str
    promise: float
    error: float
    numpys: float | None

    @property
    def broken(self) -> bool:
        """Say whether the promise is broken; NaN breaks it too."""
        return not self.error <= self.promise

    @property
    def share(self) -> float:
        """Return the error in units of the promise."""
        return self.error / self.promise if self.promise else self.error


Rows: TypeAlias = "Iterator[Row]"
ORDERS = (0.001, 0.5, 1, 1.5, 2, 3, 3.7, 4, 100, 1e300, math.inf)
SMALL_ORDER = 0.1  # of some hundred numbers, norms of such orders are beyond float64
MATRIX_ORDERS: tuple[Any, ...] = ("fro", 1, math.inf, 2)
SHAPES = {"rows": 1, "columns": 0}
LONG = "long"


def promised_values(name: str) -> float:
    """Return the promise for scaled values."""
    return TWICE if name in WIDE else ROUNDED


#: Functions that scale whole arrays.
WHOLE: dict[str, Callable[[Array, int], Errors]] = {
    "clip_by_norm": clipped_whole,
    "clip_by_average_norm": clipped_by_average,
    "clip_by_global_norm": clipped_by_global,
    "normalize": normalized,
}


def sliced(name: str, kind: str, lines: str, size: int, count: int) -> Array:
    """Make rows or columns of a length."""
    return draw(name, kind, count, size) if lines == "rows" else draw(name, kind, size, count)


def unit_of_norms(name: str) -> tuple[str, float]:
    """Return the unit and the promise of arrays of norms: float32 for what is narrower than float64."""
    return ("float32", ROUNDED) if name in FLOATS and name not in WIDE else (RELATIVE, NORM)


def norm_rows(name: str, effort: Effort) -> Rows:
    """Measure norms of whole arrays."""
    kinds = kinds_of(name)
    row = partial(Row, "`norm`", name)
    for kind in kinds:
        yield row(kind, RELATIVE, NORM, *norm_of_all(draw(name, kind, effort.size)))
    yield row("equal values", RELATIVE, NORM, *norm_of_equal(draw(name, kinds[0], effort.repeated)))
    yield row("backwards", RELATIVE, NORM, *norm_of_all(draw(name, kinds[0], 3 * effort.size)[::-3]))
    for many in (effort.many, effort.most) if name in LONGEST else (effort.many,):
        yield row(f"{many:,} values", RELATIVE, NORM, *norm_of_all(draw(name, kinds[0], many)))


def along_rows(name: str, effort: Effort) -> Rows:
    """Measure norms of rows and columns."""
    kinds = kinds_of(name)
    unit, promise = unit_of_norms(name)
    row = partial(Row, "`norm` along an axis", name)
    for lines, axis in SHAPES.items():
        for kind in kinds[: len(FLOAT_KINDS)]:
            x = sliced(name, kind, lines, effort.size, effort.slices)
            yield row(f"{lines}, {kind}", unit, promise, *norm_along(x, axis, EUCLID, unit))
        x = sliced(name, kinds[0], lines, effort.powers, effort.slices)
        for p in (1, 3.7, math.inf):
            yield row(f"{lines}, ord={p}", unit, promise, *norm_along(x, axis, p, unit))


def matrix_rows(name: str, _effort: Effort) -> Rows:
    """Measure norms of matrices: of one as a number, of several as an array."""
    matrices = draw(name, kinds_of(name)[0], 3, 9, 7)
    unit, promise = unit_of_norms(name)
    for p in MATRIX_ORDERS:
        row = partial(Row, "`norm` of matrices, LAPACK's" if p == EUCLID else "`norm` of matrices", name)
        yield row(f"one, ord={p}", RELATIVE, NORM, *norm_of_matrices(matrices[0], p, RELATIVE))
        yield row(f"several, ord={p}", unit, promise, *norm_of_matrices(matrices, p, unit))


def global_norm_rows(name: str, effort: Effort) -> Rows:
    """Measure norms of lists."""
    kinds = kinds_of(name)
    row = partial(Row, "`global_norm`", name)
    for kind in kinds:
        yield row(kind, RELATIVE, NORM, *global_norm_of(pieces(draw(name, kind, effort.size))))
    plain = pieces(draw(name, kinds[0], effort.powers))
    for p in (1, 3.7, math.inf):
        yield row(f"ord={p}", RELATIVE, NORM, *global_norm_of(plain, p))
    others = [draw("float32", "ordinary", 99), draw("int8", "small", 99), draw("float64", "ordinary", 99)]
    yield row("with other dtypes", RELATIVE, NORM, *global_norm_of([*plain, *others]))
    yield row("1,000 tensors", RELATIVE, NORM, *global_norm_of(list(draw(name, kinds[0], 1000, 17))))


def order_rows(name: str, effort: Effort) -> Rows:
    """Measure norms of all orders, and NumPy's of ordinary data."""
    kinds = kinds_of(name)
    few = draw(name, kinds[0], effort.repeated)
    many = np.random.default_rng(0).choice(few, effort.many // 10)
    for p in ORDERS:
        row = partial(Row, f"{p:g}", name, unit=RELATIVE, promise=NORM / min(p, 1))
        if p < SMALL_ORDER:
            errors = worst(norm_of_all(pair, p) for pair in draw(name, kinds[0], 50, 2))
            yield row("pairs", error=errors[0], numpys=errors[1])
            continue
        for kind in kinds[: len(FLOAT_KINDS)]:
            error, numpys = norm_of_all(draw(name, kind, effort.powers), p)
            yield row(kind, error=error, numpys=numpys if kind == kinds[0] else None)
        # Of few different values, so that few powers are to be computed exactly.
        yield row(f"{many.size:,} values", error=norm_of_all(many, p)[0], numpys=None)


def value_rows(function: str, name: str, effort: Effort) -> Rows:
    """Measure a function that scales whole arrays."""
    kinds = kinds_of(name)
    row = partial(Row, f"`{function}`", name, unit=part_of(name), promise=promised_values(name))
    for kind in (*kinds, LONG):
        x = draw(name, kinds[0], effort.many // 10) if kind == LONG else draw(name, kind, effort.size)
        sample = x.size if kind == "every value" and effort.every else effort.sample
        error, numpys = WHOLE[function](x, sample)
        yield row(f"{x.size:,} values" if kind == LONG else kind, error=error, numpys=numpys)


def more_value_rows(name: str, effort: Effort) -> Rows:
    """Measure the other cases of the functions that scale: slices, elements, a given norm, other orders."""
    kinds, sample = kinds_of(name), effort.sample
    x = draw(name, kinds[0], effort.powers)
    found = [("normalize", f"ord={p}", normalized(x, sample, p=p)) for p in (1, 3.7, math.inf)]
    found += [("clip_by_global_norm", "use_norm", clipped_by_given(x, sample))]
    for kind in kinds[: len(FLOAT_KINDS)]:
        found += [("clip_by_norm", f"elements, {kind}", clipped_each(draw(name, kind, sample)))]
        for lines, axis in SHAPES.items():
            slices = sliced(name, kind, lines, effort.size, effort.slices)
            found += [
                ("clip_by_norm", f"{lines}, {kind}", clipped_along(slices, axis, sample // 10)),
                ("normalize", f"{lines}, {kind}", normalized(slices, sample // 10, axis)),
            ]
    for function, data, (error, numpys) in found:
        yield Row(f"`{function}`", name, data, part_of(name), promised_values(name), error, numpys)


def by_value_rows(name: str, effort: Effort) -> Rows:
    """Measure clip_by_value."""
    n = effort.powers
    tensors = {kind: draw(name, kind, n) for kind in kinds_of(name)} | {"any bits": any_bits(name, n)}
    bounds: dict[str, tuple[Any, Any]] = {"arrays": (any_bits(name, 2 * n), any_bits(name, 3 * n))}
    if name in INTEGERS:
        bounds |= {"numbers": (-7, 9), "beyond the range": (-(10**30), 10**30), "crossed": (9, -7)}
    else:
        bounds |= {"numbers": (-0.1, 1e300), "ties": (near_ties(name, n), near_ties(name, n)[::-1])}
        bounds |= {"integers": (-(10**30), 2**70), "crossed": (0.3, 0.1)}
    for kind, values in tensors.items():
        t = values if effort.every else values[:: math.ceil(values.size / n)]
        for bound, both in bounds.items():
            low, high = (np.resize(b, t.shape) if isinstance(b, np.ndarray) else b for b in both)
            error = clipped_by_value(t, low, high)
            yield Row("`clip_by_value`", name, f"{kind}, bounds: {bound}", name, 0.0, error, None)


def untouched_rows(name: str, effort: Effort) -> Rows:
    """Count changes of what needs no clipping."""
    row = partial(Row, dtype=name, data="nothing to do", unit="numbers", promise=0.0, numpys=None)
    n = effort.size
    wild = any_bits(part_of(name), 2 * n)
    if name in INTEGERS:
        yield row("`clip_by_value`", error=untouched_by_value(wild))
        return
    if name not in COMPLEX:
        yield row("`clip_by_value`", error=untouched_by_value(wild))
    x = finite_of(name, n)
    yield row("`clip_by_norm`", error=untouched_by_norm(x))
    yield row("`clip_by_average_norm`", error=untouched_by_average(x))
    yield row("`clip_by_global_norm`", error=untouched_by_global(x, wild.view(dtype_of(name))))


#: The functions that measure each table.
TABLES = NORMS, VALUES, BOUNDS, ORDER, UNTOUCHED = "norms", "values", "bounds", "orders", "untouched"


def tasks(names: Sequence[str], effort: Effort) -> Iterator[tuple[str, Callable[[], Rows]]]:
    """List all measurements, with the table that each belongs to."""
    for name in names:
        for rows in (norm_rows, along_rows, matrix_rows, global_norm_rows):
            yield NORMS, partial(rows, name, effort)
        yield ORDER, partial(order_rows, name, effort)
        if name in FLOATS:
            for function in WHOLE:
                yield VALUES, partial(value_rows, function, name, effort)
            yield VALUES, partial(more_value_rows, name, effort)
        if name in FORMATS or name in INTEGERS:
            yield BOUNDS, partial(by_value_rows, name, effort)
        if name != "bool":
            yield UNTOUCHED, partial(untouched_rows, name, effort)


def measure(names: Sequence[str], effort: Effort, progress: Any = iter) -> dict[str, list[Row]]:
    """Measure everything, table by table."""
    found: dict[str, list[Row]] = {table: [] for table in TABLES}
    # NumPy's formulas overflow.
    with np.errstate(all="ignore"):
        for table, rows in progress(list(tasks(names, effort))):
            found[table] += rows()
    return found


# ---- tables

DECIMALS = {ROUNDED: 7, TWICE: 2}
LARGE = 10.0


def shown(error: float | None, row: Row | None = None) -> str:
    """Write an error; that of a row with the digits that its promise asks for."""
    if error is None:
        return ""
    if row and row.promise in DECIMALS and error < LARGE:
        return f"{error:.{DECIMALS[row.promise]}f}"
    return f"{error:.2g}" if error == 0 or error > 1 / LARGE else f"{error:.1e}"


def promised(row: Row) -> str:
    """Write a promise."""
    names = {ROUNDED: "0.5 + 1e-6 ulp", TWICE: "2 ulp", 0.0: "0"}
    return names.get(row.promise, f"{row.promise:g}")


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Write a table whose columns line up in the source too."""
    table = [list(header), *map(list, lines)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    table.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in table)


def groups(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Collect rows by a key, in the order in which keys come first."""
    found: defaultdict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def summary(rows: list[Row]) -> str:
    """Write a line for each function and dtype: the largest error, and NumPy's there and at worst."""
    header = ["function", "dtype", "largest error", "promise", "where", "NumPy, there", "NumPy, largest"]
    functions = list(groups(rows, lambda row: row.function))
    lines = []
    for (function, name), found in groups(rows, lambda row: (row.function, row.dtype)).items():
        top = max(found, key=lambda row: row.share)
        numpys = max((row.numpys for row in found if row.numpys is not None), default=None)
        theirs = [shown(top.numpys), shown(numpys)]
        where = top.data if top.error else "all data"
        lines.append([function, name, shown(top.error, top), promised(top), where, *theirs])
    lines.sort(key=lambda line: (functions.index(line[0]), DTYPES.index(line[1])))
    # Without measurements of NumPy, there are no columns for it.
    used = len(header) - (0 if any(line[-1] for line in lines) else 2)
    return markdown(header[:used], [line[:used] for line in lines])


def grid(rows: list[Row], corner: str, label: Callable[[Row], str], columns: dict[str, str]) -> str:
    """Write a line for each label: the largest errors for each dtype or several, gradclip's and NumPy's."""
    cells = groups(rows, lambda row: (label(row), columns[row.dtype]))
    kinds = [kind for kind in dict.fromkeys(columns.values()) if any(kind == column for _, column in cells)]
    lines = []
    for name in groups(rows, label):
        line = [name]
        for kind in kinds:
            found = cells[name, kind]
            errors = [max((row.error for row in found), default=None)]
            errors.append(max((row.numpys for row in found if row.numpys is not None), default=None))
            line.append(" / ".join(shown(error) for error in errors if error is not None))
        lines.append(line)
    return markdown([corner, *kinds], lines)


def report(found: dict[str, list[Row]]) -> str:
    """Write all tables."""
    floats = dict(zip(FLOATS, FLOATS, strict=True))
    numbers = floats | dict.fromkeys(INTEGERS, "integers") | {"bool": "bool"}
    # A norm beyond float64 is inf, as in NumPy's formula.
    whole = [row for row in found[NORMS] if row.function == "`norm`" and row.data != BEYOND]
    sections = {
        "Norms": summary(found[NORMS]),
        "Scaled values": summary(found[VALUES]),
        "clip_by_value": summary(found[BOUNDS]),
        "Norms by kind of data, gradclip / NumPy": grid(
            [row for row in whole if row.dtype in FLOATS], "data", lambda row: row.data, floats
        ),
        "Norms by order, gradclip / NumPy with ordinary data": grid(
            found[ORDER], "order (promise)", lambda row: f"{row.function} ({promised(row)})", numbers
        ),
        "Numbers changed where there is nothing to clip": grid(
            found[UNTOUCHED], "function", lambda row: row.function, numbers
        ),
    }
    versions = f"gradclip {gc.__version__}, NumPy {np.__version__}"
    return "\n\n".join([versions, *(f"### {title}\n\n{table}" for title, table in sections.items())])


def write(text: str) -> None:
    """Put the tables into the page."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        sys.exit(f"{PAGE} has no lines {BEGIN} and {END}")
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description="Measure how far results are from the exact ones.")
    parser.add_argument("--quick", action="store_true", help="less data, in some seconds")
    parser.add_argument("--check", action="store_true", help="fail if an error is above what is promised")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/accuracy.md")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, metavar="D", help="only these")
    options = parser.parse_args()
    if options.write and (options.quick or options.dtypes != DTYPES):
        parser.error("--write is for all of it, without --quick and --dtypes")

    progress = iter if tqdm is None else partial(tqdm, leave=False)
    found = measure(options.dtypes, QUICK if options.quick else FULL, progress)
    text = report(found)
    print(text)
    broken = [row for rows in found.values() for row in rows if row.broken]
    for row in broken:
        unit = row.unit if row.unit == RELATIVE else f"in {row.unit}"
        print(
            f"{row.function}, {row.dtype}, {row.data}: {row.error:.9g} {unit}; promised: {promised(row)}",
            file=sys.stderr,
        )
    if options.write:
        write(text)
    if options.check and broken:
        sys.exit(f"{len(broken)} errors are above what is promised")


if __name__ == "__main__":
    main()
