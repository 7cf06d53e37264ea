"""The measurements of benches/accuracy.py: bounds hold, a broken one is found, and the page is complete.

Here they run on little data; `python benches/accuracy.py --check` runs them on much.
"""

import importlib.util
import itertools
import math
import sys
from pathlib import Path

import gradclip as gc
import numpy as np
import oracle
import pytest
from gradclip import _core

ROOT = Path(__file__).parents[2]
LISTED = {
    "norm_dtypes": ["norm", "global_norm"],
    "clip_by_norm_dtypes": ["clip_by_norm", "clip_by_average_norm", "clip_by_global_norm", "normalize"],
    "clip_by_value_dtypes": ["clip_by_value"],
}
"""The functions that take the dtypes of an entry of the configuration."""


def load():
    """The script as a module. Dataclasses look their module up by its name."""
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benches" / "accuracy.py")
    module = sys.modules["accuracy"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


accuracy = load()
LITTLE = accuracy.Effort(size=257, slices=3, powers=20, repeated=3, many=4000, most=6000, sample=12)


def measured(dtypes):
    return list(itertools.chain(*accuracy.measure(dtypes, LITTLE).values()))


def functions_and_dtypes():
    """The functions and dtypes that the build has."""
    lists = {key: names for key, names in _core.config().items() if key.endswith("dtypes")}
    assert lists.keys() == LISTED.keys()
    return {pair for key, dtypes in lists.items() for pair in itertools.product(LISTED[key], dtypes)}


def test_every_function_keeps_its_promise_for_every_dtype():
    rows = measured(accuracy.DTYPES)
    assert [row for row in rows if row.broken] == []
    assert functions_and_dtypes() <= {(row.function.strip("`"), row.dtype) for row in rows}


def test_the_page_has_a_row_for_every_function_and_dtype():
    page = (ROOT / "docs" / "accuracy.md").read_text()
    written = page[page.index(accuracy.BEGIN) : page.index(accuracy.END)]
    table = [line.split("|")[1:-1] for line in written.splitlines() if line.startswith("|")]
    rows = {(line[0].strip(" `"), line[1].strip()): line[2:4] for line in table}
    assert functions_and_dtypes() - rows.keys() == set()
    for error, promise in (rows[key] for key in functions_and_dtypes()):
        # "0.5 + 1e-6 ulp" and the like.
        assert float(error) <= sum(map(float, promise.strip().removesuffix(" ulp").split("+")))


@pytest.mark.parametrize("p", [0.5, 1, 2, 3.7, 100, math.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_ways_to_the_exact_norm_agree(dtype, p):
    for kind in accuracy.FLOAT_KINDS:
        x = accuracy.draw(dtype, kind, 50)
        assert abs(accuracy.exact_norm(x, p) / oracle.exact_norm(x, p) - 1) < 1e-60


# ---- a broken bound is found


def off(factor):
    """Makes a function whose norms are off by a factor."""
    return lambda right: lambda *args, **kwargs: right(*args, **kwargs) * factor


def next_number(right):
    """Makes a function whose values are all off by one unit in the last place."""

    def wrong(*args, **kwargs):
        found = right(*args, **kwargs)
        values = found[0] if isinstance(found, tuple) else found
        after = np.nextafter(values, np.float32(math.inf))
        return (after, found[1]) if isinstance(found, tuple) else after

    return wrong


def no_minus_zero(right):
    """Makes a function that loses the sign of -0.0."""

    def wrong(*args, **kwargs):
        found = right(*args, **kwargs)
        if isinstance(found, tuple):
            return [None if t is None else t + np.float32(0) for t in found[0]], found[1]
        return found + np.float32(0)

    return wrong


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("function", "spoil"),
    [
        ("norm", off(1 + 2e-14)),
        ("global_norm", off(1 - 2e-14)),
        ("clip_by_norm", next_number),
        ("clip_by_average_norm", next_number),
        ("clip_by_value", next_number),
        ("normalize", next_number),
        ("clip_by_norm", no_minus_zero),
        ("clip_by_average_norm", no_minus_zero),
        ("clip_by_global_norm", no_minus_zero),
        ("clip_by_value", no_minus_zero),
    ],
)
def test_an_error_above_the_promise_is_found(monkeypatch, function, spoil):
    monkeypatch.setattr(gc, function, spoil(getattr(gc, function)))
    assert any(row.broken for row in measured(["float32"]) if row.function == f"`{function}`")


def test_check_fails_if_a_promise_is_broken(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "--check", "--quick", "--dtypes", "bool"])
    accuracy.main()
    assert "`norm`" in capsys.readouterr().out
    monkeypatch.setattr(gc, "norm", off(1 + 2e-14)(gc.norm))
    with pytest.raises(SystemExit, match="above what is promised"):
        accuracy.main()
    assert "`norm`, bool" in capsys.readouterr().err


def test_the_tables_are_written_between_the_marks(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(accuracy.PAGE.read_text())
    monkeypatch.setattr(accuracy, "PAGE", page)
    accuracy.write("| table |")
    accuracy.write("| other |")
    before, _, rest = accuracy.PAGE.read_text().partition(accuracy.BEGIN)
    assert before.startswith("# Accuracy")
    assert rest.partition(accuracy.END)[0].strip() == "| other |"
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="has no lines"):
        accuracy.write("")
