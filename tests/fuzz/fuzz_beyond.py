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
from fuzz import LD, Rule, bits_of, check, check_scaled, dense, norms, norms_of_norms, ulps, values_in
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
    check(found.dtype == np.float64 and found.shape == (len(t_list),), "norms: {!r}", found)
    check(found.tobytes() == np.array(alone, np.float64).tobytes(), "norms: {} but {} one by one", found, alone)
    check_states(case, t_list, order)
    if not clips:
        return
    limits = [r.choice((None, math.inf, 0.0, 1.0, norm * r.choice((0.25, 1, 3)))) for norm in alone]
    limits = [1.0 if limit != limit else limit for limit in limits]
    results, again = gc.clip_by_norms(t_list, limits, ord=order)
    check(again.tobytes() == found.tobytes(), "clip_by_norms: other norms")
    for i, (t, limit) in enumerate(zip(t_list, limits, strict=True)):
        most = math.inf if limit is None else limit
        if t is None:
            continue
        if case.p == 2 or (type(t) is np.ndarray and not np.isfinite(native(t)).all()):
            own = gc.clip_by_norm(t, most)
        elif math.isfinite(alone[i]):  # an infinite global norm makes all NaN
            own = gc.clip_by_global_norm([t], most, ord=order)[0][0]
        else:
            continue
        check(bits_of([results[i]]) == bits_of([own]), "clip_by_norms: [{}] is {}, alone {}", i, results[i], own)
    arrays = [t for t in t_list if type(t) is np.ndarray]
    finite = all(np.isfinite(native(t)).all() for t in arrays)
    if len(arrays) == sum(t is not None for t in t_list):
        check_nonfinite(case, t_list, order, finite=finite)
        check_difference(case, t_list, order, finite=finite)
    if arrays:
        check_rms(case, r.choice(arrays))
        check_weights(case, arrays, finite=finite)
        count = r.choice(arrays).shape[:1]
        if count and count[0]:
            check_examples(case, [t for t in arrays if t.shape[:1] == count], finite=finite)
    if finite and arrays:
        check_strict(case, arrays)


def check_states(case: Case, t_list: list[Any], order: Any) -> None:
    """Sums that are merged later, of every entry of the list."""
    norm = gc.global_norm(t_list, ord=order)
    found = [gc.NormState.of(t_list, order).norm()]
    if case.p in (1, 2, math.inf):
        found += [gc.NormState.of(t_list, order, reproducible=True).norm()]
        check(found[1] == gc.global_norm(t_list, ord=order, reproducible=True) or norm != norm, "states: another norm")
    for own in found:
        slack = SLACK / LD(min(case.p, 1)) * LD(norm) + SMALLEST
        near = abs(LD(own) - LD(norm)) <= slack or (max(own, norm) == math.inf and min(own, norm) > 1.797e308)
        check(near or bits_of(own) == bits_of(norm), "states: {}, not {}", found, norm)


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
        check(bits_of(results) == bits_of(plain), what + ": not as by default")
        return
    for t, result in zip(t_list, results, strict=True):
        if t is not None:
            expected = np.zeros_like(native(t)) if policy == "zero" else native(t)
            check(
                np.array_equal(oracle.bits(native(result)), oracle.bits(expected)), what + ": {!r} gave {!r}", t, result
            )


def check_strict(case: Case, arrays: list[np.ndarray]) -> None:
    if sum(t.size for t in arrays) > FEW:
        return
    limit = gc.global_norm(arrays) * case.r.choice((1, 0.37, 1 - 1e-13, 2)) or 1.0
    if not math.isfinite(limit):
        return
    results, _ = gc.clip_by_global_norm(arrays, limit, strict=True)
    square = sum(Fraction(float(x)) ** 2 for t in results for x in oracle.exact_parts(native(t)).ravel())
    check(square <= Fraction(limit) ** 2, "strict: {} above {!r}", arrays, limit)
    again, _ = gc.clip_by_global_norm(results, limit, strict=True)
    check(bits_of(again) == bits_of(results), "strict: {} clipped twice to {!r}", results, limit)


def rule_of(x: np.ndarray, exact: np.ndarray, limit: Any) -> Rule:
    """The rule for norms that no function returns."""
    rule = Rule(x, exact, None, 1.0, decides=False)
    limit = np.asarray(limit, LD)
    rule.factor = limit / np.where(exact == 0, LD(1), exact)
    rule.same, rule.slack = exact <= limit, np.full(exact.shape, SLACK)
    rule.either = np.abs(exact - limit) <= SLACK * exact + SMALLEST
    return rule


def check_outs(case: Case, t_list: list[Any], call: Any, plain: list[Any], what: str) -> None:
    """In place, and into other arrays, results have the bits of new arrays."""
    own = [None if t is None else dense(t) for t in t_list]
    outs = own if case.chance(0.5) else [None if t is None else np.full_like(t, 3) for t in own]
    results = call(own, outs)
    check(all(map(lambda a, b: a is b, results, outs)), f"{what}: not `out`")
    check(bits_of(list(results)) == bits_of(plain), what + ": {} in `out`, {} in new arrays", results, plain)


def check_policy(case: Case, t_list: list[np.ndarray], call: Any, bad: list[np.ndarray], what: str) -> None:
    """`nonfinite=` does what it says to the slices with an element that is not finite, and nothing to others."""
    policy, any_bad = case.r.choice(("raise", "zero", "keep")), any(own.any() for own in bad)
    plain = call(t_list)
    try:
        results = call(t_list, nonfinite=policy)
    except gc.NonFiniteError:
        check(policy == "raise" and any_bad, f"{what}: raised for finite tensors")
        return
    check(policy != "raise" or not any_bad, f"{what}: no error")
    for t, own, result, was in zip(t_list, bad, results, plain, strict=True):
        x = native(t)
        expected = np.where(own, np.zeros_like(x) if policy == "zero" else x, native(was))
        check(
            np.array_equal(oracle.bits(native(result)), oracle.bits(expected)),
            what + ", {!r}: {!r} gave {!r}",
            policy,
            t,
            result,
        )


def check_rms(case: Case, t: np.ndarray) -> None:
    r, x = case.r, native(t)
    axes = tuple(axis for axis in range(x.ndim) if r.random() < 0.5) or None
    count = math.prod(x.shape[axis] for axis in axes) if axes else x.size
    rms = norms(x, 2, axes) / LD(max(count, 1)).__pow__(LD(0.5))
    limit = float(np.where(np.isfinite(rms), rms, LD(0)).max(initial=0)) * r.choice((0.3, 0.9, 2)) or 1.0
    if not math.isfinite(limit):
        return
    given = None if axes is None else list(axes)

    def call(tensors: list[Any], outs: Any = (None,), **more: Any) -> list[Any]:
        return [gc.clip_by_rms(tensors[0], limit, given, out=outs[0], **more)]

    (got,) = call([t])
    what = f"clip_by_rms, {limit!r}, axes={axes}"
    check_scaled(x, native(values_in(got)), rule_of(x, rms, limit), case, what)
    check_outs(case, [t], call, [got], what)
    reduced = axes or tuple(range(x.ndim))
    check_policy(case, [t], call, [~np.isfinite(x).all(reduced, keepdims=True)], what)


def check_weights(case: Case, arrays: list[np.ndarray], *, finite: bool) -> None:
    """Each tensor has the bits that it has alone, and one is held to extended precision."""
    r = case.r
    unit = r.choice((0, -1))
    weights = [np.flip(t) if finite else np.ones_like(native(t)) for t in arrays]
    if case.chance(0.3):
        size = r.choice((1e-3, 1e6))
        weights = [native(w).astype("c16" if w.dtype.kind == "c" else "f8") * size for w in weights]
    clipping, eps = r.choice((0.01, 0.5, 3.0)), r.choice((1e-3, 1.0))

    def call(tensors: list[Any], outs: Any = None, beside: Any = weights) -> list[Any]:
        return gc.clip_by_weight_norm(tensors, beside, clipping, eps=eps, unit_axis=unit, out=outs)

    results, what = call(arrays), f"clip_by_weight_norm, {clipping}, eps={eps}, {unit}"
    alone = [call([t], None, [w])[0] for t, w in zip(arrays, weights, strict=True)]
    check(bits_of(results) == bits_of(alone), what + ": {} but {} one by one", results, alone)
    at = r.randrange(len(arrays))
    x, w = native(arrays[at]), native(weights[at])
    reduced = tuple(axis for axis in range(x.ndim) if x.ndim < 2 or axis != unit % x.ndim)
    goal = LD(clipping) * np.maximum(norms(w, 2, reduced), LD(eps))
    if (goal < LD(1e300)).all():
        check_scaled(x, native(results[at]), rule_of(x, norms(x, 2, reduced), goal), case, what)
    if finite:
        check_outs(case, arrays, call, results, what)


def check_difference(case: Case, t_list: list[Any], order: Any, *, finite: bool) -> None:
    """The documented float64 order, by the norm that came back."""
    r = case.r
    bases = [None if t is None else np.flip(t) for t in t_list]
    limit, used = r.choice((0.0, 1e-3, 1.0, 1e30)), r.choice((None, None, 0.5, 3.0))

    def call(tensors: list[Any], outs: Any = None, **more: Any) -> list[Any]:
        return gc.clip_difference_by_global_norm(tensors, bases, limit, used, ord=order, out=outs, **more)[0]

    results, norm = gc.clip_difference_by_global_norm(t_list, bases, limit, used, ord=order)
    if not finite and used is None:
        policy = r.choice(("zero", "keep"))
        expected = [None if t is None else native(t) for t in (bases if policy == "zero" else t_list)]
        found = call(t_list, nonfinite=policy)
        check(bits_of(found) == bits_of(expected), "difference, {!r}: {} from {}: {}", policy, t_list, bases, found)
        return
    pairs = [(native(t), native(base)) for t, base in zip(t_list, bases, strict=True) if t is not None]
    kinds = ["c16" if x.dtype.kind == "c" else "f8" for x, _ in pairs]
    differences = [x.astype(kind) - y.astype(kind) for (x, y), kind in zip(pairs, kinds, strict=True)]
    if not (finite and all(np.isfinite(own).all() for own in differences) and norm < 1e300):
        return
    exact = LD(used or norms_of_norms([norms(own, case.p, None).reshape(()) for own in differences], case.p))
    slack = SLACK / LD(min(case.p, 1)) * exact + SMALLEST
    check(norm == used or abs(LD(norm) - exact) <= slack, "difference: norm {}, not {}", norm, exact)
    check_outs(case, t_list, call, results, "difference")
    if norm < 1e-300:  # its quotient has few digits
        return
    for (x, y), t, got in zip(pairs, *([a for a in own if a is not None] for own in (t_list, results)), strict=True):
        if norm <= limit:
            check(np.array_equal(oracle.bits(native(got)), oracle.bits(x)), "difference: not untouched")
            continue
        parts, base = oracle.exact_parts(x), oracle.exact_parts(y)
        near = base + (parts - base) * (limit / norm)
        own = oracle.exact_parts(native(got))
        good = (np.abs(own - near) <= ulps(near.astype(LD), x.dtype) / 2) | (own == near)
        check(good.all(), "difference: {!r} from {!r}: {!r}, limit {}, norm {}", t, y, got, limit, norm)


def check_examples(case: Case, t_list: list[np.ndarray], *, finite: bool) -> None:
    arrays, count = [native(t) for t in t_list], len(t_list[0])
    shapes = [(count, *[1] * (x.ndim - 1)) for x in arrays]
    own = np.stack([norms(x.reshape(count, -1), 2, (1,))[:, 0] for x in arrays])
    each = case.chance(0.3)  # a limit for each tensor
    exact = own if each else np.sqrt((own**2).sum(0))[None]
    largest = np.where(np.isfinite(exact), exact, LD(0)).max(1, initial=0)
    limits = [float(norm) * case.r.choice((0.2, 0.8, 2)) or 1.0 for norm in largest]
    if not all(1e-290 < limit < 1e290 for limit in limits):
        return
    given, what = limits if each else limits[0], f"examples, {limits}"

    def call(tensors: list[Any], outs: Any = None, **more: Any) -> list[Any]:
        return gc.clip_examples_by_global_norm(tensors, given, out=outs, **{"reduce": None, **more})[0]

    results, found = gc.clip_examples_by_global_norm(t_list, given, reduce=None)
    good = np.isclose(found.reshape(exact.shape).astype(LD), exact, SLACK, SMALLEST, equal_nan=True)
    check(good.all(), what + ": norms {}, not {}", found, exact)
    rows = exact if each else np.repeat(exact, len(arrays), 0)
    limits = limits if each else limits * len(arrays)
    for x, got, norm, limit, shape in zip(arrays, results, rows, limits, shapes, strict=True):
        rule = rule_of(x, norm.reshape(shape), limit)
        rule.nan |= np.isinf(norm.reshape(shape)) & (not each)  # an infinite global norm makes all NaN
        check_scaled(x, native(got), rule, case, what)
    if not finite:
        ends = [np.isfinite(x.reshape(count, -1)).all(1) for x in arrays]
        bad = [~(end if each else np.logical_and.reduce(ends)) for end in ends]
        bad = [own.reshape(shape) for own, shape in zip(bad, shapes, strict=True)]
        check_policy(case, t_list, call, bad, what)
        return
    check_outs(case, t_list, call, results, what)
    sums, again = gc.clip_examples_by_global_norm(t_list, given)
    check(again.tobytes() == found.tobytes(), "examples: other norms for sums")
    for x, got, norm, limit in zip(arrays, sums, rows, limits, strict=True):
        factors = np.minimum(LD(1), LD(limit) / np.where(norm == 0, LD(1), norm))[:, None]
        parts = oracle.exact_parts(x).astype(LD).reshape(count, -1) * (factors if x.size else 1)
        total, size = parts.sum(0), np.abs(parts).sum(0)
        own = oracle.exact_parts(native(got)).astype(LD).ravel()
        room = ulps(total, x.dtype) + size * (SLACK + LD(2.0**-52) * count) + count * SMALLEST  # of shares
        infinite = np.isinf(own) & (np.sign(own) == np.sign(total))
        near = np.where(infinite, np.abs(total) + room >= oracle.largest(x.dtype), np.abs(own - total) <= room)
        check(near.all(), what + ": sum {!r}, not {!r}, norms {}, of {!r}", got, total, found, x)
