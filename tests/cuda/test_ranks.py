"""`comm=` with arrays on a GPU: the norm goes to the host once, and the arrays are clipped on the device."""

import math

import gradclip as gc
import numpy as np
import oracle
import pytest
import ranks
from gpu_arrays import assert_same, on_device


class NCCLBackend:
    """What CuPy's class of that name offers, over the threads of `ranks`: it gathers arrays on the device alone."""

    __module__ = "cupyx.distributed._nccl_comm"

    def __init__(self, comm, gpu):
        self.rank, self._n_devices = comm.rank, comm.Get_size()
        self._comm, self._gpu = comm, gpu

    def all_gather(self, in_array, out_array, count, stream=None):
        assert stream is None
        assert isinstance(in_array, self._gpu.ndarray)
        assert isinstance(out_array, self._gpu.ndarray)
        assert (out_array.dtype, out_array.shape) == (np.float64, (self._n_devices, count))
        assert in_array.size == count
        rows = np.empty(out_array.shape)
        self._comm.Allgather(self._gpu.get(in_array), rows)
        out_array.set(rows)


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


@pytest.fixture
def nccl(gpu, monkeypatch):
    """Makes an NCCLBackend of the communicator of a rank."""
    if gpu.kind == "cupy":  # whose own functions need a driver
        monkeypatch.setattr(gpu.cupy, "empty", lambda shape: gpu.empty(shape, np.float64))
        monkeypatch.setattr(gpu.ndarray, "set", lambda array, values: np.copyto(gpu.get(array), values))
    return lambda comm: NCCLBackend(comm, gpu)


class TestOverNccl:
    """Messages go from GPU to GPU; the results have the bits that they have over MPI."""

    @pytest.mark.parametrize("ord", [1, 2, 3.5, np.inf])
    def test_a_norm(self, gpu, nccl, ord):
        expected, _ = on_each(gpu, lambda own, comm: gc.global_norm(own, ord=ord, comm=comm))
        found, _ = on_each(gpu, lambda own, comm: gc.global_norm(own, ord=ord, comm=nccl(comm)))
        assert found == expected

    @pytest.mark.parametrize("in_place", [False, True])
    def test_a_clip(self, gpu, nccl, in_place):
        def clip(own, comm):
            return gc.clip_by_global_norm(own, 1.5, out=own if in_place else None, comm=comm)

        lists = [gpu.arrays(own) for own in LISTS]
        expected = ranks.run([lambda comm, own=own: clip(gpu.arrays(own), comm) for own in LISTS])
        found = ranks.run([lambda comm, own=own: clip(own, nccl(comm)) for own in lists])
        for (clipped, norm), (own, own_norm) in zip(found, expected, strict=True):
            assert oracle.same_bits(gpu.get(norm), gpu.get(own_norm))
            assert_same(gpu, clipped, [None if t is None else gpu.get(t) for t in own])

    def test_more_norms_than_fit_into_a_message(self, nccl):
        lists = [[np.full(3, r + k + 1.0) for k in range(60)] for r in range(3)]
        expected = ranks.run([lambda comm, own=own: gc.norms(own, comm=comm) for own in lists])
        found = ranks.run([lambda comm, own=own: gc.norms(own, comm=nccl(comm)) for own in lists])
        assert all(oracle.same_bits(a, b) for a, b in zip(found, expected, strict=True))

    def test_copies_and_groups_in_turn(self, nccl):
        own = [np.array([3.0, 4.0])]
        alone = ranks.Comm(ranks.World(1), 0)

        def norm(comm):
            return gc.global_norm(own, comm=[nccl(comm), alone], replicated=[True])

        assert ranks.run([norm] * 3) == [5.0] * 3

    def test_an_error_reaches_all_ranks(self, nccl):
        found = ranks.run([lambda comm, own=own: gc.global_norm(own, comm=nccl(comm)) for own in ([np.ones(2)], 7)])
        assert [type(error) for error in found] == [TypeError] * 2, found
        assert "on rank 1" in str(found[0])


@on_device
@pytest.mark.filterwarnings("ignore:notifyAll:DeprecationWarning")  # by CuPy's store of addresses
def test_a_backend_of_cupy(gpu):
    """With one GPU, there is one rank."""
    if not pytest.importorskip("cupy.cuda.nccl").available:
        pytest.skip("NCCL is not there")
    backend = pytest.importorskip("cupyx.distributed").NCCLBackend(1, 0, port=13335)
    try:
        own = gpu.arrays(LISTS[0])
        expected = ranks.run([lambda comm: gc.global_norm(own, comm=comm)])
        assert gc.global_norm(own, comm=backend) == expected[0]
    finally:
        backend.stop()


def test_a_norm_that_is_known(gpu):
    found, _ = on_each(gpu, lambda own, comm: gc.clip_by_global_norm(own, 1.0, use_norm=4.0, comm=comm)[0])
    assert gpu.syncs == 0
    expected = gc.clip_by_global_norm(LISTS[0], 1.0, use_norm=4.0)[0]
    assert_same(gpu, found[0], expected)
    assert oracle.same_bits(found[1][0], LISTS[1][0] / 4)


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


@pytest.mark.sampled
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
