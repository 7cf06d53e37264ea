"""Rules that choose ``clip_norm`` from the norms of earlier steps.

``rule.update(norm)`` takes the norm of a step and returns the limit for that step. Pass it
as ``clip_norm``. An infinite or NaN norm changes nothing: ``update`` returns the last limit,
or infinity if there is none.

>>> import numpy as np
>>> import gradclip as gc
>>> from gradclip.limits import Percentile
>>> rule = Percentile(q=50)
>>> for scale in (1.0, 2.0, 30.0):
...     gradients = [np.array([0.6, 0.8]) * scale]
...     norm = gc.global_norm(gradients)
...     limit = rule.update(norm)
...     clipped, _ = gc.clip_by_global_norm(gradients, limit, use_norm=norm)
...     print(f"norm {norm:.1f}, limit {limit:.1f}")
norm 1.0, limit 1.0
norm 2.0, limit 1.5
norm 30.0, limit 2.0
"""

from __future__ import annotations

import bisect
import copy
import math
import operator
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import numpy as np

from gradclip._checks import Checks
from gradclip._sequences import entries_of
from gradclip._text import describe, text_of

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

    from gradclip._types import Number

__all__ = ["Percentile", "Quantile", "ZScore"]


class _Rule(ABC):
    """What all rules have: a state that can be stored."""

    def __copy__(self) -> Self:
        """Return a rule with a history of its own."""
        made = type(self).__new__(type(self))
        for name, value in vars(self).items():
            setattr(made, name, copy.copy(value) if isinstance(value, (list, deque)) else value)
        return made

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another rule. The arguments of this rule do not change.

        Parameters
        ----------
        state : mapping
            The result of `state_dict` of a rule of this class.

        Raises
        ------
        TypeError
            If ``state`` is not a mapping, or an entry has a wrong type.
        ValueError
            If an entry is missing or has a value that no state has. The rule has not changed then.
        """
        self._load(state, f"{type(self).__name__}.load_state_dict")

    @abstractmethod
    def _load(self, state: Mapping[str, Any], what: str) -> None:
        """Check all entries, then take them. ``what`` names the call in messages."""


class _RuleOfSteps(_Rule):
    """A rule that takes one norm a step and limits that step."""

    _limit: float

    def update(self, norm: Number) -> float:
        """Take the norm of a step, and return the limit for it.

        Parameters
        ----------
        norm : float
            The norm, a number >= 0. An infinite or NaN norm does not change the rule.

        Returns
        -------
        float
            The limit, infinity for none. After an infinite or NaN norm: the last limit.

        Raises
        ------
        TypeError
            If ``norm`` is not a real number.
        ValueError
            If ``norm`` is negative, or an array of one axis or more.
        """
        norm = _norm(norm, f"{type(self).__name__}.update")
        if math.isfinite(norm):
            self._take(norm)
        return self._limit

    @abstractmethod
    def _take(self, norm: float) -> None:
        """Make the limit for a step of a finite norm."""


class Percentile(_RuleOfSteps):
    """Limit each step to a percentile of the norms so far, this step's norm included.

    Parameters
    ----------
    q : float, optional
        The percentile, from 0 to 100. Default: 10.
    history : int, optional
        The number of last norms that count. Default: all norms.

    Raises
    ------
    TypeError
        If ``q`` is not a number, or ``history`` not an integer.
    ValueError
        If ``q`` is not from 0 to 100, or ``history`` is below 1.

    Notes
    -----
    The rule is AutoClip: P. Seetharaman, G. Wichern, B. Pardo and J. Le Roux, "AutoClip:
    adaptive gradient clipping for source separation networks", 2020,
    https://arxiv.org/abs/2007.14469. The percentile is that of ``numpy.percentile``,
    with linear interpolation. The time of an update is in proportion to the number of norms
    that count, about 0.3 milliseconds for a million.

    Examples
    --------
    >>> from gradclip.limits import Percentile
    >>> rule = Percentile(q=50, history=3)
    >>> [rule.update(norm) for norm in (4.0, 2.0, 1.0, 8.0)]
    [4.0, 3.0, 2.0, 2.0]
    """

    def __init__(self, q: float = 10, history: int | None = None) -> None:
        self.q = _number(q, "Percentile: q", 0, 100)
        self.history = None if history is None else _whole(history, "Percentile: history")
        self._restart([], math.inf)

    def __repr__(self) -> str:
        """Write the call that makes such a rule."""
        return f"Percentile(q={self.q!r}, history={self.history})"

    def _take(self, norm: float) -> None:
        self._norms.append(norm)
        bisect.insort(self._sorted, norm)
        if self.history is not None and len(self._norms) > self.history:
            del self._sorted[bisect.bisect_left(self._sorted, self._norms.popleft())]
        self._limit = self._percentile()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`.

        Returns
        -------
        dict
            The norms that count, oldest first, and the last limit: a list of numbers and a number.
        """
        return {"norms": list(self._norms), "limit": self._limit}

    def _load(self, state: Mapping[str, Any], what: str) -> None:
        norms, limit = _entries(state, what, ("norms", "limit"))
        kept = _finite_norms(norms, what, "norms")
        limit = _limit(limit, what)
        self._restart(kept if self.history is None else kept[-self.history :], limit)

    def _restart(self, norms: list[float], limit: float) -> None:
        self._norms = deque(norms)  # oldest first
        self._sorted = sorted(norms)
        self._limit = limit

    def _percentile(self) -> float:
        """Interpolate as ``numpy.percentile`` does, which would sort all of them again."""
        place = (len(self._sorted) - 1) * (self.q / 100)
        low = math.floor(place)
        share = place - low
        a, b = self._sorted[low], self._sorted[min(low + 1, len(self._sorted) - 1)]
        return b - (b - a) * (1 - share) if share >= 0.5 else a + (b - a) * share  # noqa: PLR2004


class ZScore(_RuleOfSteps):
    """Limit only the steps whose norm is far above the running mean.

    Parameters
    ----------
    threshold : float, optional
        The number of standard deviations that a norm may be above the mean. Default: 2.5.
    decay : float, optional
        The weight of the old mean and variance in the new ones, from 0 to 1. Default: 0.97.
    warmup : int, optional
        The number of first steps, without a limit. Their norms give the first mean and
        variance. Default: 25.

    Attributes
    ----------
    mean, var : float
        The running mean and variance of the norms; NaN during the warmup.

    Raises
    ------
    TypeError
        If an argument is not a number, or ``warmup`` not an integer.
    ValueError
        If ``threshold`` is not above 0, ``decay`` is not from 0 to 1, or ``warmup`` is below 1.

    Notes
    -----
    The rule is ZClip in its reciprocal form: A. Kumar, L. Owen, N. Roy Chowdhury and F.
    Gura, "ZClip: adaptive spike mitigation for LLM pre-training", 2025,
    https://arxiv.org/abs/2504.02507. With ``z = (norm - mean) / (std + 1e-6)``, the limit
    is ``mean + threshold**2 * std / z`` if ``z > threshold``, else infinite. Then the
    mean and the variance move towards the norm or the limit, whichever is smaller. So the
    limit stays near the old norms if all later norms are far above them. Make a new rule then.

    Examples
    --------
    >>> from gradclip.limits import ZScore
    >>> rule = ZScore(warmup=4)
    >>> [rule.update(norm) for norm in (1.0, 1.5, 1.0, 1.5)]
    [inf, inf, inf, inf]
    >>> rule.mean, rule.var
    (1.25, 0.0625)
    >>> rule.update(1.5), round(rule.update(20.0), 3)
    (inf, 1.278)
    """

    def __init__(self, threshold: float = 2.5, decay: float = 0.97, warmup: int = 25) -> None:
        self.threshold = _number(threshold, "ZScore: threshold", 0, math.inf, is_open=True)
        self.decay = _number(decay, "ZScore: decay", 0, 1)
        self.warmup = _whole(warmup, "ZScore: warmup")
        self.mean = self.var = math.nan
        self._first: list[float] = []
        self._limit = math.inf

    def __repr__(self) -> str:
        """Write the call that makes such a rule."""
        return f"ZScore(threshold={self.threshold!r}, decay={self.decay!r}, warmup={self.warmup})"

    def _take(self, norm: float) -> None:
        if math.isnan(self.mean):
            if len(self._first) + 1 < self.warmup:
                self._first.append(norm)
            else:
                self.mean, self.var = _mean_and_variance([*self._first, norm])
                self._first = []
            return
        std = math.sqrt(self.var)
        z = (norm - self.mean) / (std + 1e-6)
        # The square of the threshold may overflow; the quotient is at most 1.
        self._limit = self.mean + self.threshold * std * (self.threshold / z) if z > self.threshold else math.inf
        seen = min(norm, self._limit)
        self.mean = self.decay * self.mean + (1 - self.decay) * seen
        distance = seen - self.mean
        square = min(distance * distance, sys.float_info.max)
        self.var = min(self.decay * self.var + (1 - self.decay) * square, sys.float_info.max)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`.

        Returns
        -------
        dict
            The mean, the variance, the norms of the warmup, and the last limit: numbers and a list of
            numbers.
        """
        return {"mean": self.mean, "var": self.var, "first": list(self._first), "limit": self._limit}

    def _load(self, state: Mapping[str, Any], what: str) -> None:
        mean, var, first, limit = _entries(state, what, ("mean", "var", "first", "limit"))
        norms = _finite_norms(first, what, "first")
        mean, var = (_norm(x, what, entry) for x, entry in ((mean, "mean"), (var, "var")))
        if not (math.isnan(mean) and math.isnan(var)):  # as they are during the warmup
            for entry, value in (("mean", mean), ("var", var)):
                if not math.isfinite(value):
                    allowed = "a finite number of at least 0, or NaN for both mean and var"
                    raise ValueError(f"{what}: {entry}: found {value}; allowed: {allowed}")
        self._limit, self._first, self.mean, self.var = _limit(limit, what), norms, mean, var


class Quantile(_Rule):
    """Move the limit until a given share of the norms is at or below it.

    Unlike the other rules, this rule is updated after a step. `update` takes the norms of
    the examples or clients of a step that was clipped at ``limit``, and returns the limit
    for the next step.

    Parameters
    ----------
    target : float, optional
        The wanted share of norms at or below the limit, from 0 to 1. Default: 0.5.
    rate : float, optional
        The speed of the limit. It changes by a factor of at most ``exp(rate)`` a step.
        Default: 0.2.
    initial : float, optional
        The first limit. Default: 1.

    Attributes
    ----------
    limit : float
        The limit for the next step.

    Raises
    ------
    TypeError
        If an argument is not a number.
    ValueError
        If ``target`` is not from 0 to 1, or ``rate`` or ``initial`` is not above 0.

    Notes
    -----
    The rule is ``limit *= exp(-rate * (mean(norms <= limit) - target))``: G. Andrew, O.
    Thakkar, H. B. McMahan and S. Ramaswamy, "Differentially private learning with
    adaptive clipping", 2021, https://arxiv.org/abs/1905.03871. The rule adds
    no noise, so it is not private by itself. Infinite and NaN norms do not count.

    Examples
    --------
    >>> import numpy as np
    >>> from gradclip.limits import Quantile
    >>> rule = Quantile(target=0.5, rate=0.2, initial=1.0)
    >>> round(rule.update(np.array([3.0, 4.0, 5.0, 0.5])), 4)  # one of four is below
    1.0513
    """

    def __init__(self, target: float = 0.5, rate: float = 0.2, initial: float = 1.0) -> None:
        self.target = _number(target, "Quantile: target", 0, 1)
        self.rate = _number(rate, "Quantile: rate", 0, math.inf, is_open=True)
        self.initial = self.limit = _number(initial, "Quantile: initial", 0, math.inf, is_open=True)

    def __repr__(self) -> str:
        """Write the call that makes such a rule."""
        return f"Quantile(target={self.target!r}, rate={self.rate!r}, initial={self.initial!r})"

    def update(self, norms: npt.ArrayLike) -> float:
        """Take the norms of a step's examples or clients, and return the limit for the next step.

        Parameters
        ----------
        norms : array_like
            The norms, numbers >= 0. Infinite and NaN norms do not count.

        Returns
        -------
        float
            The limit for the next step.

        Raises
        ------
        TypeError
            If ``norms`` are not real numbers.
        ValueError
            If a norm is negative.
        """
        values = _norms(norms, "Quantile.update")
        values = values[np.isfinite(values)]
        if len(values):
            exponent = -self.rate * (float(np.mean(values <= self.limit)) - self.target)
            # The limit stays a normal number, whatever the rate is.
            limit = self.limit * math.exp(max(-700.0, min(700.0, exponent)))
            self.limit = max(sys.float_info.min, min(sys.float_info.max, limit))
        return self.limit

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`.

        Returns
        -------
        dict
            The limit for the next step, a number.
        """
        return {"limit": self.limit}

    def _load(self, state: Mapping[str, Any], what: str) -> None:
        (limit,) = _entries(state, what, ("limit",))
        self.limit = _number(limit, f"{what}: limit", 0, math.inf, is_open=True)


def _float(x: Any, what: str, allowed: str) -> float:
    """Convert a number, or another object that is one, such as a 0-d tensor of another package."""
    is_other = isinstance(x, (np.ndarray, np.generic)) and not _is_real(x.dtype)
    # Python would parse the text of a string or of any buffer, which have neither method.
    is_number = (hasattr(type(x), "__float__") or hasattr(type(x), "__index__")) and not is_other
    shape = getattr(x, "shape", ()) if is_number else ()
    if isinstance(shape, tuple) and shape:
        raise ValueError(f"{what}: found shape {tuple(shape)}; allowed: {allowed}")
    if is_number and not isinstance(x, (bool, np.ma.MaskedArray)):
        try:
            return float(x)
        except OverflowError:  # an integer
            return math.inf if x > 0 else -math.inf
        except (TypeError, ValueError, RuntimeError) as error:  # torch raises a RuntimeError for complex numbers
            raise TypeError(f"{what}: found {describe(x)}; allowed: {allowed}") from error
    raise TypeError(f"{what}: found {describe(x)}; allowed: {allowed}")


def _is_real(dtype: np.dtype[Any]) -> bool:
    """Whether the elements are real numbers. The kind of bfloat16 is V, as that of bytes and of fields."""
    return dtype.kind in "fiuV" and not issubclass(dtype.type, np.void)


def _norms(x: Any, what: str) -> npt.NDArray[np.float64]:
    """Check an array of numbers of at least 0, and make a vector of it."""
    checks, allowed = Checks(what), "an array of numbers"
    array = checks.array("norms", x)
    if array.dtype == object and array.size:
        # Integers that are too large for NumPy.
        array = np.array([_float(norm, f"{what}: norms", allowed) for norm in array.ravel()])
    if array.size and not _is_real(array.dtype):
        raise checks.wrong_type("norms", x, allowed)
    with np.errstate(all="ignore"):  # of a longdouble that float64 lacks
        values: npt.NDArray[np.float64] = np.asarray(array).astype(np.float64).ravel()
    negative = values[values < 0]
    if len(negative):
        raise checks.value_error("norms", str(negative.min()), "numbers of at least 0")
    return values


def _mean_and_variance(norms: list[float]) -> tuple[float, float]:
    """Return the mean and the variance of norms, which may be so large that their sum overflows."""
    # Squares of smaller numbers stay in the range. A power of two rounds nothing.
    down = 2.0**-600 if max(norms) > 2.0**500 else 1.0
    with np.errstate(all="ignore"):
        parts = np.array(norms) * down
        return float(np.mean(parts)) / down, min(float(np.var(parts)) / down / down, sys.float_info.max)


def _number(x: Any, what: str, low: float, high: float, *, is_open: bool = False) -> float:
    """Check a finite number between two others, without these if ``is_open``."""
    allowed = f"a finite number above {low}" if high == math.inf else f"a number from {low} to {high}"
    value = _float(x, what, allowed)
    if not (low < value < high if is_open else low <= value <= high):
        raise ValueError(f"{what}: found {value}; allowed: {allowed}")
    return value


def _whole(x: Any, what: str) -> int:
    """Check an integer of at least 1."""
    try:
        value = None if isinstance(x, bool) else operator.index(x)
    except TypeError:
        value = None
    if value is None:
        raise TypeError(f"{what}: found {describe(x)}; allowed: an integer of at least 1")
    if value < 1:
        raise ValueError(f"{what}: found {text_of(value)}; allowed: an integer of at least 1")
    return value


def _norm(x: Any, what: str, entry: str = "norm") -> float:
    """Check a number of at least 0, or NaN."""
    value = _float(x, f"{what}: {entry}", "a number of at least 0")
    if value < 0:
        raise ValueError(f"{what}: {entry}: found {value}; allowed: a number of at least 0")
    return value


def _finite_norms(x: Any, what: str, entry: str) -> list[float]:
    """Check a list of norms that count."""
    if isinstance(x, (Mapping, AbstractSet)):
        raise Checks(what).wrong_type(entry, x, "a list of numbers")
    try:
        norms = entries_of(Checks(what), entry, x)
    except TypeError as error:
        raise Checks(what).wrong_type(entry, x, "a list of numbers") from error
    return [_finite_norm(norm, what, f"{entry}[{i}]") for i, norm in enumerate(norms)]


def _finite_norm(x: Any, what: str, entry: str) -> float:
    """Check a norm that counts."""
    value = _norm(x, what, entry)
    if not math.isfinite(value):
        raise ValueError(f"{what}: {entry}: found {value}; allowed: a finite number of at least 0")
    return value


def _limit(x: Any, what: str) -> float:
    """Check a limit, which may be infinite."""
    value = _norm(x, what, "limit")
    if math.isnan(value):
        raise ValueError(f"{what}: limit: found {value}; allowed: a number of at least 0")
    return value


def _entries(state: Mapping[str, Any], what: str, names: tuple[str, ...]) -> list[Any]:
    """Take the entries of a state, all of which must be there."""
    if not isinstance(state, Mapping):
        raise TypeError(f"{what}: state: found {describe(state)}; allowed: what state_dict() returns")
    missing = [name for name in names if name not in state]
    if missing:
        raise ValueError(f"{what}: state: found no entry {', '.join(missing)}; allowed: what state_dict() returns")
    return [state[name] for name in names]
