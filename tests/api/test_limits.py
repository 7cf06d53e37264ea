"""gradclip.limits: rules that choose the limit from the norms of earlier steps."""

import copy
import json
import math
import warnings
from array import array
from collections.abc import Sequence
from fractions import Fraction

import gradclip as gc
import ml_dtypes
import numpy as np
import pytest
from gradclip.limits import Percentile, Quantile, ZScore
from hypothesis import given
from hypothesis import strategies as st

NORMS = st.lists(st.floats(0, 1e300), min_size=1, max_size=40)
RULES = [Percentile(), Percentile(25, 3), ZScore(warmup=4), Quantile()]


def copy_of(rule):
    return type(rule)(**{name: value for name, value in vars(rule).items() if name in ARGUMENTS[type(rule)]})


ARGUMENTS = {
    Percentile: ("q", "history"),
    ZScore: ("threshold", "decay", "warmup"),
    Quantile: ("target", "rate", "initial"),
}


@given(NORMS, st.floats(0, 100), st.none() | st.integers(1, 10))
def test_a_percentile_is_that_of_numpy(norms, q, history):
    rule = Percentile(q, history)
    for i, norm in enumerate(norms):
        first = 0 if history is None else max(0, i + 1 - history)
        expected = np.percentile(norms[first : i + 1], q)
        assert rule.update(norm) == pytest.approx(expected, rel=4e-16, abs=5e-324)


def test_z_scores_are_those_of_the_paper():
    """A second implementation, in longdouble."""
    rng = np.random.default_rng(0)
    norms = np.exp(rng.standard_normal(400) / 3)
    norms[[60, 61, 200, 390]] *= 50
    rule = ZScore(2.0, 0.9, 20)
    limits = [rule.update(norm) for norm in norms]
    assert limits[:20] == [math.inf] * 20
    ld = np.longdouble
    mean, var = norms[:20].astype(ld).mean(), norms[:20].astype(ld).var()
    clipped = 0
    for norm, limit in zip(norms[20:].astype(ld), limits[20:], strict=True):
        z = (norm - mean) / (np.sqrt(var) + ld("1e-6"))
        expected = mean + 4 * np.sqrt(var) / z if z > 2 else ld(math.inf)
        assert limit == pytest.approx(float(expected), rel=1e-12)
        seen = min(norm, expected)
        mean = ld("0.9") * mean + ld("0.1") * seen
        var = ld("0.9") * var + ld("0.1") * (seen - mean) ** 2
        clipped += limit < norm
    assert clipped >= 4
    assert rule.mean == pytest.approx(float(mean), rel=1e-12)
    assert rule.var == pytest.approx(float(var), rel=1e-12)


def test_z_scores_of_equal_norms_limit_nothing():
    rule = ZScore(warmup=2)
    assert [rule.update(1.0) for _ in range(10)] == [math.inf] * 10
    assert rule.update(100.0) < 1.1  # the first norm that differs is far above


def test_a_quantile_settles_where_the_share_is_met():
    rng = np.random.default_rng(0)
    rule = Quantile(0.3, 0.2, 0.01)
    limits = [rule.update(rng.exponential(size=200)) for _ in range(300)]
    assert limits[0] == pytest.approx(0.01 * math.exp(-0.2 * (0.01 - 0.3)), rel=0.02)
    assert np.median(limits[100:]) == pytest.approx(-math.log(0.7), rel=0.05)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_changes_nothing(rule, bad):
    rule = copy_of(rule)
    first = rule.limit if isinstance(rule, Quantile) else math.inf
    assert rule.update(bad) == first
    for norm in (3.0, 1.0, 4.0, 1.5, 9.0, 2.6):
        last = rule.update(norm)
    before = rule.state_dict()
    assert rule.update(bad) == last
    assert rule.state_dict() == before


def test_a_bad_client_does_not_count():
    one, other = Quantile(), Quantile()
    assert one.update([0.5, math.nan, 3.0, math.inf]) == other.update([0.5, 3.0])
    assert one.update([]) == other.limit


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_rule_goes_on_from_a_saved_state(rule):
    rng = np.random.default_rng(1)
    norms = rng.exponential(size=30)
    whole, half = copy_of(rule), copy_of(rule)
    expected = [whole.update(norm) for norm in norms]
    found = [half.update(norm) for norm in norms[:2]]
    for norm in norms[2:]:
        state = json.loads(json.dumps(half.state_dict()))
        half = copy_of(rule)
        half.load_state_dict(state)
        found.append(half.update(norm))
    assert found == expected


def test_a_shorter_history_takes_the_last_norms_of_a_state():
    long, short = Percentile(50), Percentile(50, 2)
    for norm in (1.0, 2.0, 30.0, 40.0):
        long.update(norm)
    short.load_state_dict(long.state_dict())
    assert short.update(50.0) == 45.0


def test_a_bad_state_changes_nothing():
    rule = ZScore(warmup=3)
    rule.update(1.0)
    before = rule.state_dict()
    with pytest.raises(TypeError):
        rule.load_state_dict({**STATE, "mean": "text"})
    assert repr(rule.state_dict()) == repr(before)  # NaN differs from itself


def test_huge_norms_and_rates_raise_nothing():
    rule = ZScore(warmup=2)
    for norm in (1e200, 3e200, 4e200, 1e308):
        assert rule.update(norm) > 0
    for rate in (500.0, 2000.0):
        quantile = Quantile(rate=rate)
        for norm in (5.0, 1e300, 1e-300, 5.0):
            assert 0 < quantile.update([norm]) < math.inf
        quantile.load_state_dict(quantile.state_dict())


def test_norms_whose_sum_and_squares_overflow():
    rule = ZScore(warmup=3)
    for norm in (1e308, 1.1e308, 1.2e308):
        rule.update(norm)
    assert rule.mean == pytest.approx(1.1e308)
    assert math.isfinite(rule.var)
    assert math.isfinite(rule.update(1.7e308))
    assert math.isfinite(rule.mean)
    assert math.isfinite(rule.var)


def test_a_threshold_whose_square_overflows():
    rule = ZScore(threshold=1e160, warmup=1)
    assert [rule.update(norm) for norm in (1.0, 1e300, 1.0)] == [math.inf, 1.0, math.inf]


def test_numbers_beyond_float64_raise_nothing():
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        rule = ZScore(warmup=3)
        assert [rule.update(norm) for norm in (1e-200, 2e-200, 3e-200)] == [math.inf] * 3
        assert rule.mean == pytest.approx(2e-200)
        huge, tiny = np.longdouble(np.finfo(np.longdouble).max), np.finfo(np.longdouble).smallest_normal
        assert Percentile().update(huge) == float(huge)
        assert Percentile().update(tiny) == float(tiny)
        for norms in ([huge, tiny], [huge, tiny, 10**400]):
            Quantile().update(norms)


def test_what_is_a_number():
    bfloat16 = ml_dtypes.bfloat16
    for two in (2, 2.0, np.float16(2), np.array(2), np.array(2, bfloat16), Fraction(2)):
        assert Percentile().update(two) == 2.0
    for norms in ([2], (2.0, 2.0), np.array([[2]]), np.array([2], bfloat16), [Fraction(2)]):
        assert Quantile(rate=1.0, initial=2.0).update(norms) == pytest.approx(2 * math.exp(-0.5))
    assert Percentile().update(10**400) == math.inf
    assert Quantile(initial=2.0).update([10**400]) == 2.0
    assert Quantile(initial=2.0).update([]) == 2.0


def test_a_limit_is_one_for_the_clippers():
    rule = Percentile(50)
    for scale in (1.0, 3.0):
        gradients = [np.array([0.6, 0.8]) * scale]
        norm = gc.global_norm(gradients)
        clipped, _ = gc.clip_by_global_norm(gradients, rule.update(norm), use_norm=norm)
    assert gc.global_norm(clipped) == pytest.approx(2.0)


STATE = {"mean": 1.0, "var": 0.5, "first": [], "limit": 2.0}


class Endless(Sequence):
    def __len__(self):
        return 2

    def __getitem__(self, place):
        return 1.0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Percentile(101), ValueError, "Percentile: q: found 101.0; allowed: a number from 0 to 100"),
        (lambda: Percentile(math.nan), ValueError, "Percentile: q: found nan"),
        (lambda: Percentile("10"), TypeError, "Percentile: q: found str '10'; allowed: a number from 0 to 100"),
        (lambda: Percentile(10, 0), ValueError, "Percentile: history: found 0; allowed: an integer of at least 1"),
        (lambda: Percentile(10, 2.5), TypeError, "Percentile: history: found float"),
        (lambda: ZScore(0), ValueError, "ZScore: threshold: found 0.0; allowed: a finite number above 0"),
        (lambda: ZScore(decay=1.5), ValueError, "ZScore: decay: found 1.5; allowed: a number from 0 to 1"),
        (lambda: ZScore(warmup=0), ValueError, "ZScore: warmup: found 0"),
        (lambda: Quantile(target=-0.1), ValueError, "Quantile: target: found -0.1"),
        (lambda: Quantile(rate=math.inf), ValueError, "Quantile: rate: found inf; allowed: a finite number above 0"),
        (lambda: Quantile(initial=0), ValueError, "Quantile: initial: found 0.0"),
        (lambda: Percentile().update(-1.0), ValueError, "Percentile.update: norm: found -1.0"),
        (lambda: ZScore().update(None), TypeError, "ZScore.update: norm: found None; allowed: a number"),
        (lambda: Quantile().update([1.0, -2.0]), ValueError, "Quantile.update: norms: found -2.0"),
        (lambda: Quantile().update(["a"]), TypeError, "Quantile.update: norms: found list"),
        (lambda: Quantile().update(["0.1"]), TypeError, "Quantile.update: norms: found list"),
        (lambda: Quantile().update([1j]), TypeError, "Quantile.update: norms: found list"),
        (lambda: Quantile().update(np.ma.ones(3)), TypeError, "Quantile.update: norms: found a masked array"),
        (
            lambda: Quantile().update([np.ma.masked_array([1.0, 2.0], [1, 0])]),
            TypeError,
            "Quantile.update: norms: found a masked array",
        ),
        (lambda: Quantile().update([[1.0], [1.0, 2.0]]), ValueError, "Quantile.update: norms: found a ragged list"),
        (lambda: Quantile().update(Endless()), ValueError, "norms: found a sequence of length 2 that has more entries"),
        (lambda: Quantile().update(np.array([b"abc"], "V3")), TypeError, "norms: found ndarray of dtype |V3"),
        (lambda: Quantile().update([math.nan, -2.0]), ValueError, "norms: found -2.0; allowed: numbers of at least 0"),
        (lambda: Quantile().update(np.ones(3, "f8,f8")), TypeError, "Quantile.update: norms: found ndarray"),
        (lambda: Quantile().update(np.ones(3, [("a", "f8")])), TypeError, "Quantile.update: norms: found ndarray"),
        (lambda: Quantile().update([2, "a"]), TypeError, "Quantile.update: norms: found list"),
        (lambda: Quantile().update([10**400, None]), TypeError, "Quantile.update: norms: found None"),
        (lambda: Quantile().update([-(10**400)]), ValueError, "Quantile.update: norms: found -inf"),
        (lambda: Percentile().update(np.ma.masked), TypeError, "Percentile.update: norm: found a masked array"),
        (lambda: Percentile().update(np.array([1.0])), ValueError, "Percentile.update: norm: found shape (1,)"),
        (lambda: Percentile().update(memoryview(b"12")), TypeError, "Percentile.update: norm: found memoryview"),
        (lambda: Percentile().update(np.void(b"12")), TypeError, "Percentile.update: norm: found void"),
        (lambda: Percentile(bytearray(b"12")), TypeError, "Percentile: q: found bytearray"),
        (lambda: Percentile(array("B", b"12")), TypeError, "Percentile: q: found array"),
        (lambda: Percentile().update(True), TypeError, "Percentile.update: norm: found bool"),
        (lambda: Percentile().update(np.True_), TypeError, "Percentile.update: norm: found bool"),
        (lambda: Percentile().update(-(10**400)), ValueError, "Percentile.update: norm: found -inf"),
        (lambda: Percentile(True), TypeError, "Percentile: q: found bool"),
        (lambda: Percentile(10, True), TypeError, "Percentile: history: found bool"),
        (lambda: ZScore().load_state_dict({"mean": 1.0}), ValueError, "found no entry var, first, limit"),
        (lambda: ZScore().load_state_dict({**STATE, "var": -1.0}), ValueError, "load_state_dict: var: found -1.0"),
        (lambda: ZScore().load_state_dict({**STATE, "limit": math.nan}), ValueError, "limit: found nan"),
        (lambda: ZScore().load_state_dict({**STATE, "mean": math.nan}), ValueError, "load_state_dict: mean: found nan"),
        (
            lambda: ZScore().load_state_dict({**STATE, "var": math.nan}),
            ValueError,
            "var: found nan; allowed: a finite number of at least 0, or NaN for both mean and var",
        ),
        (lambda: ZScore().load_state_dict({**STATE, "mean": math.inf}), ValueError, "load_state_dict: mean: found inf"),
        (lambda: ZScore().load_state_dict({**STATE, "var": math.inf}), ValueError, "load_state_dict: var: found inf"),
        (
            lambda: ZScore().load_state_dict({**STATE, "first": 5}),
            TypeError,
            "ZScore.load_state_dict: first: found int 5; allowed: a list of numbers",
        ),
        (
            lambda: Percentile().load_state_dict({"norms": 5, "limit": 1.0}),
            TypeError,
            "Percentile.load_state_dict: norms: found int 5; allowed: a list of numbers",
        ),
        (
            lambda: Quantile().load_state_dict(None),
            TypeError,
            "Quantile.load_state_dict: state: found None; allowed: what state_dict() returns",
        ),
        (lambda: Percentile().load_state_dict([("norms", [])]), TypeError, "state: found list"),
        (lambda: Percentile().load_state_dict({"norms": [1, math.nan], "limit": 1}), ValueError, "norms[1]: found nan"),
        (lambda: ZScore().load_state_dict({**STATE, "first": [-1]}), ValueError, "first[0]: found -1.0; allowed: a"),
        (
            lambda: Percentile().load_state_dict({"norms": Endless(), "limit": 1}),
            ValueError,
            "Percentile.load_state_dict: norms: found a sequence of length 2 that has more entries; allowed: a ",
        ),
        (lambda: Percentile().load_state_dict({"norms": [], "limit": -3.0}), ValueError, "limit: found -3.0"),
    ],
)
def test_what_is_wrong_is_named(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value)


def test_reprs_make_the_rules_again():
    assert [repr(rule) for rule in RULES] == [
        "Percentile(q=10.0, history=None)",
        "Percentile(q=25.0, history=3)",
        "ZScore(threshold=2.5, decay=0.97, warmup=4)",
        "Quantile(target=0.5, rate=0.2, initial=1.0)",
    ]
    third = 1 / 3  # more digits than six
    for rule in (*RULES, Percentile(third), ZScore(third, third), Quantile(third, third, 123456.7)):
        made = eval(repr(rule))
        assert repr(vars(made)) == repr(vars(rule))  # NaN differs from itself


@pytest.mark.parametrize("norms", [{3.0: "a"}, {1.0, 2.0}])
def test_norms_of_a_state_have_an_order(norms):
    with pytest.raises(TypeError, match="norms: found"):
        Percentile().load_state_dict({"norms": norms, "limit": 1.0})


@pytest.mark.parametrize("rule", [Percentile(50), ZScore(), Quantile()])
def test_a_copy_has_its_own_history(rule):
    rule.update([1.0] if isinstance(rule, Quantile) else 1.0)
    state = json.dumps(rule.state_dict())
    other = copy.copy(rule)
    other.update([100.0] if isinstance(rule, Quantile) else 100.0)
    assert json.dumps(rule.state_dict()) == state != json.dumps(other.state_dict())
