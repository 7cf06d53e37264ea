"""Programs of the docs, run as they are printed."""

import os
import subprocess
import sys
from pathlib import Path

import gradclip as gc
import numpy as np
import pytest
from recipes import code_of


def output_of(title: str, folder: Path, more: str = "") -> str:
    """Runs a recipe of `docs/guide/many-machines.md`, and then more. Returns what the program prints."""
    return printed_by(code_of(title) + more, folder)


def printed_by(code: str, folder: Path) -> str:
    program = folder / "program.py"
    program.write_text(code, "utf-8")
    package = str(Path(gc.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def samples(count: int) -> list[np.ndarray]:
    return [np.random.default_rng(seed).standard_normal((100, 100)) for seed in range(count)]


def test_processes_of_one_program(tmp_path):
    norm = float(output_of("Processes of one program", tmp_path))
    assert norm == pytest.approx(gc.global_norm(samples(4)), rel=1e-15)


@pytest.mark.ray
def test_ray(tmp_path):
    norm, clipped = map(float, output_of("Ray", tmp_path).split())
    assert norm == pytest.approx(gc.global_norm(samples(2)), rel=1e-15)
    assert clipped == pytest.approx(1.0, rel=1e-15)


@pytest.mark.flwr
def test_flower(tmp_path):
    more = """
from flwr.common import Code, FitRes, Status

results = []
for seed in range(2):
    update = [np.random.default_rng(seed).standard_normal((100, 100))]
    metrics = {"norm": gc.NormState.of(update).to_array().tobytes()}
    own = ndarrays_to_parameters([1.0 + update[0], np.array(7)])
    results.append((None, FitRes(Status(Code.OK, ""), own, 10, metrics)))
strategy = ClippedFedAvg(inplace=False)
strategy.server = [np.ones((100, 100)), np.array(5)]
mean, _ = strategy.aggregate_fit(1, results, [])
mean = parameters_to_ndarrays(mean)
assert mean[1] == 7
print((mean[0] - 1.0).tobytes().hex())
"""
    mean = np.frombuffer(bytes.fromhex(output_of("Flower", tmp_path, more).split()[-1]))
    a, b = samples(2)
    np.testing.assert_allclose(mean, ((a + b) / 2 / gc.global_norm([a, b])).ravel(), rtol=1e-9, atol=1e-15)


@pytest.mark.flwr
def test_records_of_flower(tmp_path):
    more = """
import numpy as np

before = ArrayRecord({"steps": Array(np.array(5)), "weights": Array(np.array([1.0, 2.0], np.float32))})
after = ArrayRecord({"weights": Array(np.array([4.0, 6.0], np.float32)), "steps": Array(np.array(7))})
clipped = clip_record(after, before, 1.0)
print(list(clipped), *(array.numpy().tolist() for array in clipped.values()), clipped["weights"].dtype)
"""
    found = printed_by(code_of("Records", "migrate/flwr.md") + more, tmp_path)
    weights = np.add([1.0, 2.0], [0.6, 0.8]).astype(np.float32).tolist()
    assert found.strip() == f"['weights', 'steps'] {weights} 7 float32"
