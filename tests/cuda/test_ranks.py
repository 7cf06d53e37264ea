"""`comm=` with arrays on a GPU: the norm goes to the host once, and the arrays are clipped on the device."""

import math

import gradclip as gc
import numpy as np
import oracle
import pytest
import ranks
from gpu_arrays import assert_same

RNG = np.random.default_rng(28)
LISTS = [[RNG.standard_normal(3000).astype("f4"), None, RNG.standard_normal((20, 30))], [RNG.standard_normal(500)]]


def on_each(gpu, work):
    """Calls a function on two ranks: the first has arrays on the device, the second arrays of NumPy."""
    on_device, on_host = gpu.arrays(LISTS[0]), LISTS[1]
    gpu.reset()
    return ranks.run([lambda comm: work(on_device, comm), lambda comm: work(on_host, comm)]), on_device


@pytest.mark.parametrize("ord", [1, 2, 3.5, np.inf])
def test_a_norm(gpu, ord):
    found, _ = on_each(gpu, lambda own, comm: gc.global_norm(own, ord=ord, comm=comm))
    assert gpu.syncs == 1
    assert found[0] == found[1]
    oracle.assert_norm(found[0], oracle.exact_global_norm([*LISTS[0], *LISTS[1]], ord), ord)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_clip(gpu, in_place):
    def clip(own, comm):
        out = own if in_place and comm.rank == 0 else None
        return gc.clip_by_global_norm(own, 1.5, out=out, comm=comm)

    found, own = on_each(gpu, clip)
    assert gpu.syncs == 1
    norm = gc.global_norm([*LISTS[0], *LISTS[1]])

    def host(array):
        return gpu.get(array) if isinstance(array, gpu.ndarray) else array

    for (clipped, own_norm), whole in zip(found, LISTS, strict=True):
        assert float(host(own_norm)) == pytest.approx(norm, rel=1e-15)
        for a, b in zip(clipped, whole, strict=True):
            if b is not None:
                np.testing.assert_allclose(host(a), b * (1.5 / norm), rtol=4 * oracle.eps(b.dtype))
    if in_place:
        assert all(a is b for a, b in zip(found[0][0], own, strict=True))


def test_two_ranks_on_one_stream(gpu, monkeypatch):
    """Neither may keep the stream while it waits for the other one."""
    monkeypatch.setattr(ranks, "TIMEOUT", 5)
    arrays = [np.arange(1, 6.0), np.arange(3.0)]

    def work(x):
        return lambda comm: gc.clip_by_global_norm([x], 1.0, comm=comm)

    expected = ranks.run([work(x) for x in arrays])
    on_device = gpu.arrays(arrays)
    gc.global_norm(on_device)  # so that both ranks find one device
    assert_same(gpu, ranks.run([work(d) for d in on_device]), expected)


def test_a_second_call_uploads_nothing(gpu):
    own = gpu.arrays([np.ones(3)] * 200)  # a table that is too long for the argument
    for call in (
        lambda: gc.clip_by_global_norm(own, 1.0, out=own, comm=lambda sums: sums),
        lambda: gc.global_norm(own, comm=lambda sums: sums),
    ):
        call()
        gpu.reset()
        call()
        assert gpu.uploads == 0


FAR = {
    "beyond float64": [1.5e308, 1.5e308, 1.5e308],
    "whose squares are beyond float64": [3e200, 4e200],
    "whose squares are 0": [3e-200, 4e-200],
    "subnormal": [5e-324, 5e-324, 5e-324],
    "infinite": [np.inf, 1.0],
    "NaN": [np.nan, np.inf],
    "none": [],
    "zero": [0.0, -0.0],
    "complex": [1.5e308 + 1.5e308j, 1e-310j],
}


@pytest.mark.parametrize("ord", [0.5, 1, 2, 3, 3.7, np.inf])
@pytest.mark.parametrize("what", FAR)
def test_a_norm_anywhere_has_the_bits_of_the_cpu(gpu, what, ord):
    """As a state, which holds norms beyond float64 too, and as the norm of two ranks, on a GPU or not."""
    x = np.array(FAR[what])
    state, own = (gc.NormState.of([t], ord) for t in (x, gpu.array(x)))
    assert own.to_array().tobytes() == state.to_array().tobytes()

    def clip(comm, array):
        return gc.clip_by_global_norm([array], 1.0, ord=ord, comm=comm)

    hosts = [lambda comm: clip(comm, x)] * 2
    devices = [lambda comm: clip(comm, gpu.array(x)), hosts[1]]
    expected = ranks.run(hosts)
    found = ranks.run(devices)
    assert_same(gpu, list(found[0]), list(expected[0]))
    assert oracle.same_bits(found[1][0][0], expected[1][0][0])
    assert oracle.same_bits(np.array(found[1][1]), np.array(expected[1][1]))


@pytest.mark.parametrize("ord", [1, 2, 3, 3.7])
def test_states_of_parts_have_the_bits_of_the_cpu(gpu, ord):
    rng = np.random.default_rng(5)
    for _ in range(20):
        parts = [[rng.standard_normal(n), rng.standard_normal(9).astype("f4")] for n in (1000, 700)]
        expected = sum(gc.NormState.of(part, ord) for part in parts).norm()
        assert sum(gc.NormState.of(gpu.arrays(part), ord) for part in parts).norm() == expected


def test_copies_count_once(gpu):
    found, _ = on_each(gpu, lambda own, comm: gc.global_norm(own, comm=comm, replicated=[2] * len(own)))
    norm = gc.global_norm([*LISTS[0], *LISTS[1]])
    assert list(map(float, found)) == [pytest.approx(norm / math.sqrt(2), rel=1e-14)] * 2
    one = gpu.arrays([LISTS[1][0]])
    found = ranks.run([lambda comm: gc.global_norm(one, comm=comm, replicated=[True])] * 2)
    assert found == [gc.global_norm(LISTS[1])] * 2


@pytest.mark.parametrize(
    "call",
    [
        lambda own, comm: gc.clip_by_norm(own[0], 1.0, comm=comm),
        lambda own, comm: gc.clip_by_norm(own[0], 1.0, 0, comm=comm),
        lambda own, comm: gc.clip_by_average_norm(own[0], 1.0, comm=comm),
        lambda own, comm: gc.norms(own, comm=comm),
        lambda own, comm: gc.global_norm(own, comm=comm, reproducible=True),
        lambda own, comm: gc.global_norm(own, comm=comm, nonfinite="raise"),
        lambda own, comm: gc.global_norm(own, comm=comm, integers="keep"),
        lambda own, comm: gc.clip_by_global_norm(own, 1.0, comm=comm, nonfinite="raise"),
        lambda own, comm: gc.clip_by_global_norm(own, 1.0, comm=comm, out=[np.empty(3)] * len(own)),
    ],
)
def test_what_is_not_for_a_gpu_is_an_error_on_all_ranks(gpu, call):
    found, _ = on_each(gpu, call)
    assert [type(error) for error in found] == [TypeError] * 2, found
    assert "on rank 0" in str(found[1])


def test_a_state(gpu):
    own = gpu.arrays(LISTS[0])
    state = gc.NormState.of(own) + gc.NormState.of(LISTS[1])
    assert state.norm() == pytest.approx(gc.global_norm([*LISTS[0], *LISTS[1]]), rel=1e-15)
    assert state.elements == 4100
