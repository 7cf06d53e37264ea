"""`NormState`: the sums that make a norm, merged in any order."""

import math
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import gradclip as gc
import numpy as np
import oracle
import pytest
from gradclip import _core
from hypothesis import given
from hypothesis import strategies as st

RNG = np.random.default_rng(27)
ORDS = [1, 2, 3, 0.5, 40, np.inf]
KINDS = [(1, False), (2, False), (3, False), (np.inf, False), (1, True), (2, True), (np.inf, True)]


def found_whole(x, order):
    """What gradclip adds up without rounding, in the unit of `oracle.whole_sum`."""
    found, special, _ = _core.exact_sum("global_norm", [x], None, float(order), False)
    assert special == 0.0
    return int.from_bytes(found, "little")


def states_of(tensors, ord=2, reproducible=False):
    return [gc.NormState.of([t], ord, reproducible=reproducible) for t in tensors]


@pytest.mark.parametrize("ord", ORDS)
def test_a_sum_of_states_has_the_norm_of_all(ord):
    tensors = [RNG.standard_normal(n) * scale for n, scale in ((50, 1.0), (30, 1e200), (0, 1.0), (20, 1e-320))]
    state = sum(states_of(tensors, ord))
    oracle.assert_norm(state.norm(), oracle.exact_global_norm(tensors, ord), ord)
    assert (state.elements, state.ord) == (100, ord)


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e-320])
def test_of_one_list_it_has_the_bits_of_the_norm(scale):
    tensors = [RNG.standard_normal(500) * scale, None, RNG.standard_normal((3, 4)).astype("f4")]
    assert gc.NormState.of(tensors).norm() == gc.global_norm(tensors)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "c8"])
@given(lists=st.lists(st.lists(st.integers(-100, 100), max_size=40), max_size=20))
def test_whole_numbers_are_added_exactly(dtype, lists):
    """Squares are added, not the squares of roots: three states of one 1 have the norm of three 1s."""
    squares = sum(x * x for numbers in lists for x in numbers)
    states = states_of([np.array(numbers, dtype) for numbers in lists])
    assert sum(states, gc.NormState.of([])).norm() == math.sqrt(squares)


@pytest.mark.sampled
@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("highest", [-1000, -401, -400, -360, 0, 499, 500, 509, 510, 511, 1023])
def test_sums_of_float64_lose_no_digit(highest, order):
    """Blocks of similar magnitudes are summed in float64, others in a table. Exponents are at the limits of both."""
    rng = np.random.default_rng(highest + 2000)
    digits = {
        "random": lambda n: rng.integers(2**52, 2**53, n),
        "all": lambda n: np.full(n, 2**53 - 1),
        "one": lambda n: np.full(n, 2**52),
    }
    for spread in (0, 1, 19, 20, 40, 41, 70):
        for n in (1, 15, 17, 4097):
            for made in digits.values():
                x = np.ldexp(made(n).astype(float), highest - 52 - rng.integers(0, spread + 1, n))
                x[0] = np.ldexp(x[0], -max(math.frexp(x[0])[1] - 1 - highest + spread, 0))  # the smallest there may be
                x *= rng.choice([-1.0, 1.0, 0.0], n, p=[0.5, 0.4, 0.1])
                assert oracle.whole_sum(x, order) == found_whole(x, order), (spread, n)


@pytest.mark.usefixtures("isa")
def test_exact_sums_of_the_hardest_blocks():
    for s in (40, 41, 42, 43):  # the rests of all elements are equal, and as large as they can be
        x = np.full(2048, np.ldexp(float(1 << 52 | (1 << (s + 2)) - 1), -s - 52))
        x[0] = 1.0
        assert oracle.whole_sum(x, 1) == found_whole(x, 1)
    for number in (11, 14, 21):  # the square is rounded up to a whole number, so its error is a borrow of many digits
        for k in range(-60, 61):
            x = np.ldexp(np.sqrt([float(number)]), k)
            assert oracle.whole_sum(x, 2) == found_whole(x, 2)


@pytest.mark.parametrize(("ord", "reproducible"), KINDS)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_infinity_and_nan_pass_through(bad, ord, reproducible):
    states = states_of(
        [np.ones(3), np.array([1.0, bad]), np.array([np.inf]) if bad != bad else np.ones(2)], ord, reproducible
    )
    np.testing.assert_equal(sum(states).norm(), bad)
    np.testing.assert_equal(sum(reversed(states)).norm(), bad)
    np.testing.assert_equal(pickle.loads(pickle.dumps(sum(states))).norm(), bad)


@given(st.data())
def test_the_order_of_merging_changes_little_or_nothing(data):
    p, reproducible = data.draw(st.sampled_from(KINDS))
    floats = st.floats(min_value=-1e300, max_value=1e300, allow_subnormal=True)
    tensors = [np.array(part) for part in data.draw(st.lists(st.lists(floats, max_size=5), min_size=1, max_size=8))]
    states = states_of(tensors, p, reproducible)
    one = sum(states).norm()
    shuffled = data.draw(st.permutations(states))
    middle = data.draw(st.integers(0, len(states)))
    other = (sum(shuffled[:middle]) + sum(shuffled[middle:])) if 0 < middle < len(states) else sum(shuffled)
    if reproducible or p == np.inf:
        assert other.norm() == one
    else:
        assert other.norm() == pytest.approx(one, rel=1e-14, abs=1e-320)


def test_a_thousand_merges_in_random_order():
    tensors = [RNG.standard_normal(9).astype("f4") for _ in range(1000)]
    exact = float(oracle.to_float64(oracle.exact_global_norm(tensors)))
    plain, whole = states_of(tensors), states_of(tensors, reproducible=True)
    for seed in range(5):
        for states in (plain, whole):
            random.Random(seed).shuffle(states)
        assert sum(plain).norm() == pytest.approx(exact, rel=1e-13)
        assert sum(whole).norm() == exact


@pytest.mark.parametrize(("ord", "reproducible"), [*KINDS, (40, False)])
def test_plain_sums_of_arrays_merge(ord, reproducible):
    tensors = [RNG.standard_normal(10 + n) * 10.0 ** (60 * n) for n in range(-2, 3)]
    states = states_of(tensors, ord, reproducible)
    merge = np.maximum if ord == np.inf else np.add
    array = merge.reduce([state.to_array() for state in states])
    found = gc.NormState.from_array(array, ord)
    if reproducible and ord != np.inf:
        assert found == sum(states)
    oracle.assert_norm(found.norm(), oracle.exact_global_norm(tensors, ord), ord)
    assert found.elements == (12 if ord == np.inf else sum(t.size for t in tensors))
    assert array.dtype == np.float64
    assert array.shape == states[0].to_array().shape


@pytest.mark.parametrize("reproducible", [True, False])
def test_a_sum_of_largest_magnitudes_is_an_error(reproducible):
    a, b = states_of([np.array([3.0, 4.0]), np.array([2.0])], np.inf, reproducible)
    with pytest.raises(ValueError, match="found the sum of 2 states of order inf; allowed: the maximum"):
        gc.NormState.from_array(a.to_array() + b.to_array(), ord=np.inf)


@pytest.mark.parametrize(("ord", "reproducible"), [(1, False), (2, False), (1, True), (2, True)])
def test_many_ranks_add_exactly(ord, reproducible):
    """As many ranks as fit: 2**14 numbers of full digits."""
    state = gc.NormState.of([np.array([1 - 2.0**-53, 1e300])], ord, reproducible=reproducible)
    merged = gc.NormState.from_array(state.to_array() * 2**14, ord)
    assert merged.norm() == state.norm() * (2**14) ** (1 / ord)
    assert merged.elements == 2**15


@pytest.mark.parametrize(("ord", "reproducible"), KINDS)
def test_pickle_and_equality(ord, reproducible):
    a, b = states_of([RNG.standard_normal(100), RNG.standard_normal(100)], ord, reproducible)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(a, protocol))
        assert again == a
        assert hash(again) == hash(a)
        assert again.reproducible == a.reproducible
    assert a != b
    assert a != 3
    assert a != gc.NormState.of([], ord, reproducible=reproducible)


def test_an_array_may_change_once_it_is_read():
    array = gc.NormState.of([np.array([3.0, 4.0])]).to_array()
    state = gc.NormState.from_array(array)
    array[...] = 0.0
    assert (state.norm(), state.elements) == (5.0, 2)


def test_equal_states_have_one_hash():
    for value, other in ((0.0, -0.0), (np.nan, np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0])):
        arrays = [gc.NormState.of([]).to_array() for _ in range(2)]
        arrays[0][-1], arrays[1][-1] = value, other
        a, b = map(gc.NormState.from_array, arrays)
        assert (a == b, hash(a) == hash(b)) == (True, True)


def test_a_truncated_pickle():
    data = pickle.dumps(gc.NormState.of([np.ones(3)]))
    for length in range(len(data)):
        with pytest.raises((pickle.UnpicklingError, EOFError, ValueError, IndexError)):
            pickle.loads(data[:length])


def test_counts_and_digits_beyond_those_of_any_data_are_refused():
    for place, number, reproducible in ((3, 1e308, False), (113, 2.0**53, True)):
        array = gc.NormState.of([np.ones(2)], reproducible=reproducible).to_array()
        array[place] = number
        with pytest.raises(ValueError, match="found numbers that no state has"):
            gc.NormState.from_array(array)


def test_average_norm():
    assert gc.NormState.of([np.array([3.0, 4.0])]).average_norm() == 2.5
    assert gc.NormState.of([]).average_norm() == 0.0
    assert gc.NormState.of([np.full(4, 1.5e308)]).average_norm() == 7.5e307
    assert gc.NormState.of([]).norm() == 0.0


def test_repr():
    assert repr(gc.NormState.of([np.array([3.0, 4.0])])) == "NormState(norm=5.0, elements=2, ord=2.0)"
    state = gc.NormState.of([np.array([3.0, 4.0])], reproducible=True)
    assert repr(state) == "NormState(norm=5.0, elements=2, ord=2.0, reproducible=True)"


def test_errors():
    state = gc.NormState.of([np.ones(3)])
    with pytest.raises(TypeError, match=r"NormState\.of"):
        gc.NormState()
    with pytest.raises(TypeError, match="`t_list` should be a sequence"):
        gc.NormState.of(3)
    with pytest.raises(ValueError, match=r"NormState\.of 'n': ord"):
        gc.NormState.of([], -1, name="n")
    with pytest.raises(ValueError, match="orders 2 and 1"):
        state + gc.NormState.of([], 1)
    with pytest.raises(ValueError, match="with and without reproducible=True"):
        state + gc.NormState.of([], reproducible=True)
    with pytest.raises(TypeError):
        state + 1
    with pytest.raises(ValueError, match="orders up to 1000"):
        gc.NormState.of([np.ones(3)], 2000)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a[:-1],
        lambda a: np.append(a, 0),
        lambda a: a.reshape(1, -1),
        lambda a: a / 2,
        lambda a: np.where(np.arange(a.size) == 1, a + 1, a),
        lambda a: a * 2**15,
        lambda a: np.zeros_like(a),
        lambda a: np.full_like(a, np.nan),
        lambda a: a * 3.5,
        lambda a: a + gc.NormState.of([], 1, reproducible=len(a) > 100).to_array(),
        *(lambda a, x=x: np.where(np.arange(a.size) == 3, x, a) for x in (np.inf, np.nan, -5.0, 0.5)),
        lambda a: np.where(np.arange(a.size) > 3, -a - 1, a),
        lambda a: np.where(np.arange(a.size) == a.size - 1, 0.5 if len(a) > 100 else -1, a),
        lambda a: np.where(np.arange(a.size) == a.size - 1, np.inf if len(a) > 100 else -np.inf, a),
    ],
)
@pytest.mark.parametrize("reproducible", [False, True])
def test_what_is_no_state(change, reproducible):
    array = gc.NormState.of([np.ones(3)], reproducible=reproducible).to_array()
    with pytest.raises(ValueError, match=r"NormState\.from_array: array: found"):
        gc.NormState.from_array(change(array))


@pytest.mark.parametrize("change", [np.ma.masked_array, lambda a: a.astype(complex), str, lambda a: a.astype(object)])
def test_what_is_no_array_of_real_numbers(change):
    array = gc.NormState.of([np.ones(3)]).to_array()
    with pytest.raises(TypeError, match=r"NormState\.from_array: array: found .*; allowed: an array"):
        gc.NormState.from_array(change(array))


def test_an_array_of_another_order():
    with pytest.raises(ValueError, match="another order or version"):
        gc.NormState.from_array(gc.NormState.of([], 1).to_array(), 2)


def test_threads():
    """A recipe: each worker makes a state of its shard."""
    shards = [[RNG.standard_normal(1000)] for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        state = sum(pool.map(gc.NormState.of, shards))
        clipped = list(pool.map(lambda shard: gc.clip_by_global_norm(shard, 1.0, state.norm())[0], shards))
    assert math.isclose(gc.global_norm([t for shard in clipped for t in shard]), 1.0, rel_tol=1e-15)
