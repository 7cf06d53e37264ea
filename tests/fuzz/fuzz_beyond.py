"""The functions that TensorFlow lacks, called with the lists that `fuzz` draws: any layout, views of one array, None.

Where a function promises the bits of another one, it is held to that; otherwise to extended precision, and
`strict=True` to exact fractions.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import gradclip as gc
import numpy as np
import oracle
from fuzz import LD, Rule, bits_of, check, check_scaled, norms, ulps, values_in
from oracle import native

if TYPE_CHECKING:
    from fuzz import Case

FEW = 300  # elements whose squares are added up as fractions
SLACK = LD(4e-14)  # of norms, roots and quotients
SMALLEST = LD(5e-324)  # what a subnormal norm may be off


def check_list(case: Case, t_list: list[Any], *, clips: bool) -> None:
    """Compare the functions of lists with the contract for tensors that TensorFlow's functions take."""
    r, order = case.r, case.arguments["ord"]
    found = gc.norms(t_list, ord=order)
    alone = [gc.global_norm([t], ord=order) for t in t_list]
    check(found.dtype == np.float64 and found.shape == (len(t_list),), f"norms: {found!r}")
    check(found.tobytes() == np.array(alone, np.float64).tobytes(), f"norms: {found} but {alone} one by one")
    if not clips:
        return
    limits = [r.choice((None, math.inf, 0.0, 1.0, norm * r.choice((0.25, 1, 3)))) for norm in alone]
    limits = [1.0 if limit != limit else limit for limit in limits]
    results, again = gc.clip_by_norms(t_list, limits, ord=order)
    check(again.tobytes() == found.tobytes(), "clip_by_norms: other norms")
    for i, (t, limit) in enumerate(zip(t_list, limits, strict=True)):
        most = math.inf if limit is None else limit
        if t is None or (case.p != 2 and not math.isfinite(alone[i])):  # an infinite global norm makes all NaN
            continue
        own = gc.clip_by_norm(t, most) if case.p == 2 else gc.clip_by_global_norm([t], most, ord=order)[0][0]
        check(bits_of([results[i]]) == bits_of([own]), f"clip_by_norms: [{i}] is {results[i]}, alone {own}")
    arrays = [t for t in t_list if type(t) is np.ndarray]
    finite = all(np.isfinite(native(t)).all() for t in arrays)
    if len(arrays) == sum(t is not None for t in t_list):
        check_nonfinite(case, t_list, order, finite=finite)
    if finite and arrays:
        check_strict(case, arrays)
        check_units(case, r.choice(arrays))


def check_nonfinite(case: Case, t_list: list[Any], order: Any, *, finite: bool) -> None:
    limit, policy = case.r.choice((0.0, 1.0, 1e30, math.inf)), case.r.choice(("raise", "zero", "keep"))
    what = f"nonfinite={policy!r}, clip_norm={limit}"
    try:
        results, norm = gc.clip_by_global_norm(t_list, limit, ord=order, nonfinite=policy)
    except gc.NonFiniteError as error:
        check(policy == "raise" and not finite, f"{what}: raised for finite tensors")
        places = [i for i, t in enumerate(t_list) if t is not None and not np.isfinite(native(t)).all()]
        check(list(error.entries) == places, f"{what}: {error.entries} named, not {places}")
        return
    check(policy != "raise" or finite, f"{what}: no error")
    plain, same = gc.clip_by_global_norm(t_list, limit, ord=order)
    check(bits_of(norm) == bits_of(same), f"{what}: norm {norm}, not {same}")
    if finite or limit == math.inf:
        check(bits_of(results) == bits_of(plain), f"{what}: not as by default")
        return
    for t, result in zip(t_list, results, strict=True):
        if t is not None:
            expected = np.zeros_like(native(t)) if policy == "zero" else native(t)
            check(np.array_equal(oracle.bits(native(result)), oracle.bits(expected)), f"{what}: {t!r} gave {result!r}")


def check_strict(case: Case, arrays: list[np.ndarray]) -> None:
    if sum(t.size for t in arrays) > FEW:
        return
    limit = gc.global_norm(arrays) * case.r.choice((1, 0.37, 1 - 1e-13, 2)) or 1.0
    if not math.isfinite(limit):
        return
    results, _ = gc.clip_by_global_norm(arrays, limit, strict=True)
    square = sum(Fraction(float(x)) ** 2 for t in results for x in oracle.exact_parts(native(t)).ravel())
    check(square <= Fraction(limit) ** 2, f"strict: {arrays} above {limit!r}")
    again, _ = gc.clip_by_global_norm(results, limit, strict=True)
    check(bits_of(again) == bits_of(results), f"strict: {results} clipped twice to {limit!r}")


def rule_of(x: np.ndarray, exact: np.ndarray, limit: Any) -> Rule:
    """The rule for norms that no function returns."""
    rule = Rule(x, exact, None, 1.0, decides=False)
    limit = np.asarray(limit, LD)
    rule.factor = limit / np.where(exact == 0, LD(1), exact)
    rule.same, rule.slack = exact <= limit, np.full(exact.shape, SLACK)
    rule.either = np.abs(exact - limit) <= SLACK * exact + SMALLEST
    return rule


def check_units(case: Case, t: np.ndarray) -> None:
    """The functions that clip parts of tensors, with one tensor and itself turned round."""
    r, x = case.r, native(t)
    other = np.flip(t)
    y = native(np.ascontiguousarray(other)).reshape(x.shape)
    axes = tuple(axis for axis in range(x.ndim) if r.random() < 0.5) or None
    count = math.prod(x.shape[axis] for axis in axes) if axes else x.size
    rms = norms(x, 2, axes) / LD(max(count, 1)).__pow__(LD(0.5))
    limit = float(rms.max(initial=0)) * r.choice((0.3, 0.9, 2)) or 1.0
    if math.isfinite(limit):
        got = gc.clip_by_rms(t, limit, None if axes is None else list(axes))
        check_scaled(x, native(values_in(got)), rule_of(x, rms, limit), case, f"clip_by_rms, {limit!r}, axes={axes}")

    unit = r.choice((0, -1))
    reduced = tuple(axis for axis in range(x.ndim) if x.ndim < 2 or axis != unit % x.ndim)
    clipping, eps = r.choice((0.01, 0.5, 3.0)), r.choice((1e-3, 1.0))
    goal = LD(clipping) * np.maximum(norms(y, 2, reduced), LD(eps))
    if (goal < LD(1e300)).all():
        (got,) = gc.clip_by_weight_norm([t], [other], clipping, eps=eps, unit_axis=unit)
        rule = rule_of(x, norms(x, 2, reduced), goal)
        check_scaled(x, native(values_in(got)), rule, case, f"clip_by_weight_norm, {clipping}, eps={eps}, {unit}")
    check_difference(case, t, other)
    if x.ndim and x.shape[0]:
        check_examples(case, [t, other.reshape(x.shape)])


def check_difference(case: Case, t: np.ndarray, base: np.ndarray) -> None:
    """The documented float64 order, by the norm that came back."""
    x, y = (oracle.exact_parts(native(a)) for a in (t, base))
    difference = x - y
    limit = case.r.choice((0.0, 1e-3, 1.0, 1e30))
    (got,), norm = gc.clip_difference_by_global_norm([t], [base], limit)
    if not np.isfinite(difference).all() or not 1e-300 < norm < 1e300:
        return
    check(abs(LD(norm) - np.sqrt((difference.astype(LD) ** 2).sum())) <= SLACK * LD(norm), f"difference: norm {norm}")
    if norm <= limit:
        check(np.array_equal(oracle.bits(native(got)), oracle.bits(native(t))), "difference: not untouched")
        return
    near = y + difference * (limit / norm)
    own = oracle.exact_parts(native(got))
    check((np.abs(own - near) <= ulps(near.astype(LD), t.dtype) / 2).all(), f"difference: {t!r} from {base!r}: {got!r}")


def check_examples(case: Case, t_list: list[np.ndarray]) -> None:
    arrays = [native(t) for t in t_list]
    count = arrays[0].shape[0]
    own = [norms(x.reshape(count, -1), 2, (1,)) for x in arrays]
    exact = np.sqrt(own[0] ** 2 + own[1] ** 2)
    limit = float(exact.max(initial=0)) * case.r.choice((0.2, 0.8, 2)) or 1.0
    if not 1e-290 < limit < 1e290:
        return
    results, found = gc.clip_examples_by_global_norm(t_list, limit, reduce=None)
    check((np.abs(found - exact[:, 0]) <= SLACK * exact[:, 0] + SMALLEST).all(), f"examples: norms {found}")
    for x, got in zip(arrays, results, strict=True):
        shape = (count, *[1] * (x.ndim - 1))
        check_scaled(x, native(got), rule_of(x, exact.reshape(shape), limit), case, f"examples, {limit!r}")
    sums, again = gc.clip_examples_by_global_norm(t_list, limit)
    check(again.tobytes() == found.tobytes(), "examples: other norms for sums")
    factors = np.minimum(LD(1), LD(limit) / np.where(exact == 0, LD(1), exact))
    for x, got in zip(arrays, sums, strict=True):
        parts = oracle.exact_parts(x).astype(LD).reshape(count, -1) * factors
        total, size = parts.sum(0), np.abs(parts).sum(0)
        error = np.abs(oracle.exact_parts(native(got)).astype(LD).ravel() - total)
        room = ulps(total, x.dtype) + size * (SLACK + LD(2.0**-52) * count) + count * SMALLEST  # of shares
        check(
            (error <= room).all() or np.isinf(oracle.exact_parts(native(got))).any(),
            f"examples: sum {got!r}, not {total!r}, limit {limit!r}, norms {found}, of {x!r}",
        )
