"""The numbers of benches/steps: medians, ratios, targets, and a result that is wrong."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHES = Path(__file__).parents[2] / "benches"
sys.path += [str(BENCHES), str(BENCHES / "compare")]

from steps import summary, verify  # noqa: E402
from steps.operations import BOUNDS, EACH, SLICES, UNCLIPPED, Operation  # noqa: E402
from steps.results import Results, Runs  # noqa: E402
from steps.scenarios import Catalogue  # noqa: E402
from steps.sources import Backward, Held, InTurn, slices_of_norm_1  # noqa: E402


def line(**medians):
    """A line with times whose 95th percentile is twice the median."""
    names = {"ours": "gradclip", "one": "gradclip, 1 thread", "off": "gradclip, pool off"}
    times = {names.get(name, name): summary.Times(value, 2 * value, 0) for name, value in medians.items()}
    return summary.Line("name", 0.9, times)


@pytest.mark.parametrize("values", [[3.0], [1.0, 2.0], [5.0, 1.0, 4.0, 2.0], list(range(41))])
@pytest.mark.parametrize("share", [0, 0.5, 0.95, 1])
def test_percentiles_are_those_of_numpy(values, share):
    assert summary.percentile(values, share) == pytest.approx(np.quantile(values, share))


def test_the_geometric_mean():
    assert summary.geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2)
    assert summary.geometric_mean([]) is None


def test_times_are_medians_over_processes():
    times = summary.Times.of(Runs([[1, 2, 3], [10, 20, 30], [4, 5, 6]], [7, 9, 8]))
    assert (times.median, times.peak) == (5, 8)
    assert times.tail == pytest.approx(5.9)


def test_the_best_peer_is_no_variant_of_ours():
    found = line(ours=2, NumPy=4, PyTorch=3, one=1, off=1)
    assert (found.best, found.ratio, found.tail) == ("PyTorch", 1.5, pytest.approx(2 / 3))


@pytest.mark.parametrize(
    ("medians", "missed"),
    [
        ({"ours": 1, "NumPy": 1}, []),
        ({"ours": 1.2, "NumPy": 1}, ["ratio"]),
        ({"ours": 1.6, "NumPy": 1}, ["ratio", "p95"]),
        ({"ours": 1, "NumPy": 1, "one": 0.9, "off": 1}, ["threads"]),
        ({"ours": 1, "NumPy": 1, "one": 1, "off": 0.9}, ["pool"]),
        ({"NumPy": 1}, ["wrong"]),
        ({"ours": 1}, []),
    ],
)
def test_targets(medians, missed):
    assert line(**medians).missed() == missed


@pytest.mark.thread_unsafe(reason="one file")
def test_results_come_back_from_a_file(tmp_path):
    results = Results("today", ["here"], {"NumPy": "2"}, {"name": {"NumPy": Runs([[1.0]], [2], ["form"], 0.0)}})
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results
    assert json.loads((tmp_path / "results.json").read_text())["date"] == "today"


@pytest.mark.parametrize("quick", [False, True])
def test_names_of_programs_are_different(quick):
    names = [scenario.name for scenario in Catalogue(quick=quick).all()]
    assert len(set(names)) == len(names)


def test_gradients_are_fresh_and_have_a_norm_of_1():
    source = Backward([(20, 30), (30,), (4, 5, 3, 3)], 8)
    first, second = source.gradients(), source.gradients()
    assert [t.shape for t in first] == [(20, 30), (30,), (4, 5, 3, 3)]
    assert sum(np.sum(np.square(t)) for t in first) == pytest.approx(1, rel=1e-5)
    assert not any(np.shares_memory(a, b) for a, b in zip(first, second, strict=True))


def test_lists_come_in_their_order():
    source = InTurn([Held([np.zeros(1)]), Held([np.ones(1)])], [0, 1, 1])
    found = [float(source.gradients()[0][0]) for _ in range(5)]
    source.restart()
    assert [*found, float(source.gradients()[0][0])] == [0, 1, 1, 0, 1, 0]


@pytest.mark.parametrize("operation", [Operation(), Operation(EACH), Operation(mode=UNCLIPPED)])
def test_a_wrong_element_is_found(operation):
    originals = [t * np.float32(10) for t in Held.random([(40, 50), (60,)]).arrays]
    factors = verify.factors(originals, operation)
    norms = [np.linalg.norm(t.astype(np.float64)) for t in originals]
    norm = np.linalg.norm(norms)
    for t, factor, own in zip(originals, factors, norms, strict=True):
        assert factor == pytest.approx(min(1, operation.limit / (own if operation.function == EACH else norm)))
        right = t * np.float32(factor)
        assert verify.difference(right, t, factor) < 1e-7
        for wrong in (np.nan, right.flat[7] + 1):
            found = right.copy()
            found.flat[7] = wrong
            assert not verify.difference(found, t, factor) <= 0.01


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rows", [30, 3000])
def test_slices_have_norms_of_about_1(axis, rows):
    (matrix,) = slices_of_norm_1((rows, 700), axis, 4).gradients()
    (factors,) = verify.factors([matrix], Operation(SLICES, axis=axis))
    exact = np.linalg.norm(matrix.astype(np.float64), axis=axis, keepdims=True)
    np.testing.assert_allclose(factors, 0.5 / exact)
    np.testing.assert_allclose(exact, 1, atol=0.6)


def test_values_beyond_bounds_have_factors_that_lead_to_them():
    matrix = np.float32([[0.0, -0.0, 0.25, -0.5], [2.0, -4.0, 1e30, 1e-40]])
    (factors,) = verify.factors([matrix], Operation(BOUNDS))
    np.testing.assert_array_equal(np.float32(matrix * factors), np.clip(matrix, -0.5, 0.5))
