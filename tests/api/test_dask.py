"""dask arrays: lazy, chunk by chunk, with the results of NumPy arrays."""

import warnings
from fractions import Fraction
from pathlib import Path

import gradclip as gc
import numpy as np
import oracle
import pytest
from gradclip import _dask

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

pytestmark = pytest.mark.dask

RNG = np.random.default_rng(28)
DTYPES = ["f2", "f4", "f8", "c8", "c16"]
CHUNKS = [(30, 17), (100, 40), (1, 40), (100, 3)]
ORDS = [1, 2, 3, 0.5, np.inf]
SLICES = gc.IndexedSlices(np.ones((1, 3)), np.array([0]))


@pytest.fixture(autouse=True, params=["synchronous", "threads"])
def _scheduler(request):
    with dask.config.set(scheduler=request.param):
        yield


def sample(shape=(100, 40), dtype="f4"):
    values = RNG.standard_normal(shape).astype(dtype)
    return values * np.asarray(1 - 0.5j, dtype) if values.dtype.kind == "c" else values


def chunks_of(array):
    """The functions that are called for each chunk while a graph is computed."""
    seen = []

    def note(block):
        if block.size:  # dask tries functions on empty arrays
            seen.append(block.shape)
        return block

    return array.map_blocks(note, dtype=array.dtype, meta=np.empty((0,) * array.ndim, array.dtype)), seen


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [*DTYPES, "i4", "?"])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_global_norm(dtype, chunks):
    one = sample(dtype=dtype) if dtype not in ("i4", "?") else RNG.integers(0, 2, (100, 40)).astype(dtype)
    other = sample(77, "f8")
    norm = gc.global_norm([da.from_array(one, chunks=chunks), None, da.from_array(other, chunks=10), np.ones(3)])
    assert isinstance(norm, da.Array)
    assert (norm.shape, norm.dtype) == ((), np.float64)
    oracle.assert_norm(float(norm.compute()), oracle.exact_global_norm([one, other, np.ones(3)]))


@pytest.mark.parametrize("ord", ORDS)
@pytest.mark.parametrize("scale", [1.0, 1e200, 1e-310])
def test_orders_and_the_whole_range(ord, scale):
    array = RNG.standard_normal((20, 12)) * scale
    norm = gc.global_norm([da.from_array(array, chunks=(7, 5))], ord=ord)
    oracle.assert_norm(float(norm.compute()), oracle.exact_norm(array, ord), ord)


@pytest.mark.sampled
@pytest.mark.parametrize("keepdims", [None, True])
@pytest.mark.parametrize(
    ("ord", "axis"), [(2, None), ("euclidean", 0), (1, 1), (3, -1), (np.inf, 0), ("fro", (0, 1)), ("euclidean", (1, 0))]
)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
def test_norm(dtype, ord, axis, keepdims):
    array = sample(dtype=dtype)
    lazy = gc.norm(da.from_array(array, chunks=(30, 17)), ord, axis, keepdims)
    expected = np.asarray(gc.norm(array, ord, axis, keepdims))
    found = lazy.compute()
    assert (lazy.shape, lazy.dtype) == (expected.shape, expected.dtype) == (found.shape, found.dtype)
    np.testing.assert_allclose(found, expected, rtol=16 * oracle.eps(expected.dtype))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axes", [None, 0, 1, (0, 1), ()])
@pytest.mark.parametrize(
    ("chunks", "options"),
    [
        ((30, 17), {}),
        ((30, 17), {"strict": True}),
        ((100, 40), {"nonfinite": "keep"}),
        ((7, 40), {"nonfinite": "zero"}),
        ((100, 9), {"nonfinite": "keep"}),
    ],
)
def test_clip_by_norm(dtype, axes, chunks, options):
    array = sample(dtype=dtype)
    if "nonfinite" in options:
        array[5, 3], array[7, 1] = np.nan, np.inf
    lazy = da.from_array(array, chunks=chunks)
    clipped = gc.clip_by_norm(lazy, 0.9, axes, **options)
    assert (clipped.chunks, clipped.dtype) == (lazy.chunks, lazy.dtype)
    assert type(clipped._meta) is np.ndarray  # noqa: SLF001 (dask has no other name for it)
    found, expected = clipped.compute(), gc.clip_by_norm(array, 0.9, axes, **options)
    assert found.dtype == array.dtype
    np.testing.assert_allclose(found, expected, rtol=(4 if oracle.is_wide(dtype) else 1) * oracle.eps(dtype))
    if "strict" in options:
        assert (oracle.squared_norms(found, axes) <= Fraction(0.9) ** 2).all()


def test_clip_by_average_norm():
    array = sample()
    clipped = gc.clip_by_average_norm(da.from_array(array, chunks=(30, 17)), 1e-3)
    np.testing.assert_allclose(clipped.compute(), gc.clip_by_average_norm(array, 1e-3), rtol=1e-6)


@pytest.mark.parametrize(
    "bounds",
    [(-0.5, 0.5), (None, 0.5), (np.full(40, -0.5, "f4"), 1), ("lazy", 0.5), (np.float32(-1), np.ones((100, 1), "f4"))],
)
def test_clip_by_value(bounds):
    array = sample()
    lo, hi = bounds
    lazy = da.full((100, 1), -0.25, chunks=50, dtype="f4") if isinstance(lo, str) else lo
    lo = np.full((100, 1), -0.25, "f4") if isinstance(lo, str) else lo
    clipped = gc.clip_by_value(da.from_array(array, chunks=(30, 17)), lazy, hi)
    assert (clipped.shape, clipped.dtype) == (array.shape, array.dtype)
    assert oracle.same_bits(clipped.compute(), gc.clip_by_value(array, lo, hi))


@pytest.mark.parametrize("options", [{}, {"ord": 1}, {"strict": True}, {"nonfinite": "zero"}])
def test_clip_by_global_norm_of_mixed_lists(options):
    one, other = sample(), sample(77, "f8")
    lazy = [da.from_array(one, chunks=(30, 17)), None, other]
    clipped, norm = gc.clip_by_global_norm(lazy, 1.5, **options)
    expected, exact = gc.clip_by_global_norm([one, None, other], 1.5, **options)
    assert clipped[1] is None
    assert clipped[0].chunks == lazy[0].chunks
    assert clipped[2].chunks == ((77,),)
    found, value = dask.compute(clipped, norm)
    assert float(value) == pytest.approx(exact, rel=1e-14)
    for a, b in ((found[0], expected[0]), (found[2], expected[2])):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=16 * oracle.eps(b.dtype))


def test_unclipped_chunks_keep_their_bits():
    array = sample()
    array[3, 4] = -0.0
    ((clipped,), _) = gc.clip_by_global_norm([da.from_array(array, chunks=(30, 17))], 1e6)
    assert oracle.same_bits(clipped.compute(), array)


def test_a_norm_that_is_known():
    array = sample()
    lazy = da.from_array(array, chunks=(30, 17))
    expected, _ = gc.clip_by_global_norm([array], 1.0)
    for use_norm in (gc.global_norm([lazy]), float(gc.global_norm([array]))):
        (clipped,), norm = gc.clip_by_global_norm([lazy], 1.0, use_norm=use_norm)
        np.testing.assert_allclose(clipped.compute(), expected[0], rtol=1e-6)
        assert float(norm.compute()) == pytest.approx(gc.global_norm([array]))


def test_strict_counts_the_elements_beside_a_norm_that_is_known():
    """Beyond 1e8 elements, it leaves the more room the more there are."""
    lazy = da.ones(10**12, chunks=((4, 10**12 - 4),))
    ((clipped,), _) = gc.clip_by_global_norm([lazy], 1.0, 4.0, strict=True)
    assert (clipped[:4].compute() < 0.25 * (1 - 1e-10)).all()
    unknown = da.ones(8, chunks=4)
    ((clipped,), _) = gc.clip_by_global_norm([unknown[unknown > 0]], 1.0, 4.0, strict=True)
    assert (clipped.compute() < 0.25 * (1 - 1e-10)).all()


def test_a_known_norm_beyond_float64_is_infinite():
    given = gc.clip_by_global_norm([da.ones(4)], 1.0, use_norm=da.full((), 2, "f4"))[1]
    assert (given.dtype, given.compute().dtype, float(given.compute())) == (np.float64, np.float64, 2.0)
    (clipped,), norm = gc.clip_by_global_norm([da.ones(4)], 1.0, use_norm=10**400)
    assert float(norm.compute()) == np.inf
    assert np.isnan(clipped.compute()).all()


def test_results_have_the_native_byte_order():
    lazy = da.ones(4, dtype=">f4")
    results = gc.clip_by_norm(lazy, 1.0), gc.clip_by_value(lazy, 0, 0.5), gc.clip_by_global_norm([lazy], 1.0)[0][0]
    for result in results:
        assert result.dtype == result.compute().dtype == np.float32
        assert result.dtype.isnative


def test_each_chunk_is_made_once():
    lazy, seen = chunks_of(da.from_array(sample(), chunks=(25, 40)))
    gc.global_norm([lazy]).compute()
    assert len(seen) == 4
    seen.clear()
    clipped, norm = gc.clip_by_global_norm([lazy], 1.0)
    dask.compute(clipped, norm)
    assert len(seen) == 4
    seen.clear()
    clipped, _ = gc.clip_by_global_norm([lazy], 1.0, use_norm=gc.global_norm([lazy]).compute())
    dask.compute(clipped)
    assert len(seen) == 8


@pytest.mark.parametrize(("axis", "chunks"), [(None, ()), (0, ((40,),)), (1, ((25,) * 4,))])
def test_norms_are_of_the_chunks_as_they_are(monkeypatch, axis, chunks):
    seen, sums_of_block = [], _dask._sums_of_block  # noqa: SLF001 (what reads the chunks)

    def noted(block, *args, **options):
        if block.size:  # dask tries functions on empty arrays
            seen.append(block.shape)
        return sums_of_block(block, *args, **options)

    monkeypatch.setattr(_dask, "_sums_of_block", noted)
    norm = gc.norm(da.from_array(sample(), chunks=(25, 40)), 2, axis)
    assert norm.chunks == chunks
    norm.compute()
    assert seen == [(25, 40)] * 4


def test_nothing_is_computed_before_it_is_asked_for():
    lazy, seen = chunks_of(da.from_array(sample(), chunks=(25, 40)))
    gc.global_norm([lazy])
    gc.norm(lazy, axis=0)
    gc.clip_by_norm(lazy, 1.0, 1)
    gc.clip_by_average_norm(lazy, 1.0)
    gc.clip_by_value(lazy, -1, 1)
    gc.clip_by_global_norm([lazy], 1.0)
    gc.clip_by_global_norm([lazy], 1.0, use_norm=gc.global_norm([lazy]))
    assert not seen


def test_unknown_chunk_sizes():
    array = sample()
    lazy = da.from_array(array, chunks=(30, 40))
    lazy, array = lazy[lazy[:, 0] > 0], array[array[:, 0] > 0]
    assert np.isnan(lazy.shape[0])
    oracle.assert_norm(float(gc.global_norm([lazy]).compute()), oracle.exact_norm(array))
    for axes in (None, 0, 1):
        np.testing.assert_allclose(
            gc.clip_by_norm(lazy, 1.0, axes).compute(), gc.clip_by_norm(array, 1.0, axes), rtol=1e-6
        )
        np.testing.assert_allclose(gc.norm(lazy, 2, axes).compute(), gc.norm(array, 2, axes), rtol=1e-6)
    ((clipped,), _) = gc.clip_by_global_norm([lazy], 1.0)
    np.testing.assert_allclose(clipped.compute(), gc.clip_by_norm(array, 1.0), rtol=1e-6)
    np.testing.assert_allclose(
        gc.clip_by_average_norm(lazy, 1e-3).compute(), gc.clip_by_average_norm(array, 1e-3), rtol=1e-6
    )
    assert oracle.same_bits(gc.clip_by_value(lazy, -1, 1).compute(), gc.clip_by_value(array, -1, 1))


@pytest.mark.parametrize("bounds", [[0, 2**63, 3], [-(10**40), 1, 2], (5, 6, 7), [-1]])
@pytest.mark.parametrize("dtype", ["i4", "u8", "f4"])
def test_lists_of_integers_as_bounds(dtype, bounds):
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    expected = gc.clip_by_value(array, None, bounds), gc.clip_by_value(array, bounds, None)
    lazy = da.from_array(array, chunks=2)
    found = gc.clip_by_value(lazy, None, bounds), gc.clip_by_value(lazy, bounds, None)
    for one, other in zip(dask.compute(*found), expected, strict=True):
        assert oracle.same_bits(one, other)


def test_numbers_in_arrays_are_read_at_once():
    lazy, limit, bound = da.full(4, 1.0), np.array(1.0), np.array(0.5)
    results = [
        gc.clip_by_norm(lazy, limit),
        gc.clip_by_global_norm([lazy], limit)[0][0],
        gc.clip_by_value(lazy, None, bound),
    ]
    limit[...] = bound[...] = 0.0
    for found in dask.compute(*results):
        np.testing.assert_array_equal(found, 0.5)


def test_tensors_of_no_axes_are_read_by_no_check():
    """Fresh memory that held NaN does not count."""
    for _ in range(100):
        left = np.array(np.nan)
        del left
        lazy = da.from_array(np.array(3.0))
        clipped = gc.clip_by_norm(lazy, 1.0, nonfinite="raise")
        (also,), _ = gc.clip_by_global_norm([lazy], 1.0, nonfinite="raise")
    assert dask.compute(clipped, also) == (1.0, 1.0)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_infinity_and_nan(bad):
    array = sample()
    array[50, 3] = bad
    lazy = da.from_array(array, chunks=(30, 17))
    np.testing.assert_equal(float(gc.global_norm([lazy]).compute()), bad)
    for policy in ("propagate", "zero", "keep"):
        ((clipped,), _) = gc.clip_by_global_norm([lazy], 1.0, nonfinite=policy)
        expected, _ = gc.clip_by_global_norm([array], 1.0, nonfinite=policy)
        np.testing.assert_array_equal(clipped.compute(), expected[0])
    with pytest.raises(gc.NonFiniteError):
        dask.compute(gc.clip_by_global_norm([lazy], 1.0, nonfinite="raise"))
    with pytest.raises(gc.NonFiniteError):
        gc.clip_by_norm(lazy, 1.0, nonfinite="raise").compute()


def test_empty_ones():
    lazy = da.zeros((0, 5), chunks=5)
    assert float(gc.global_norm([lazy]).compute()) == 0.0
    assert gc.clip_by_norm(lazy, 1.0).compute().shape == (0, 5)
    clipped, norm = gc.clip_by_global_norm([None, da.zeros(3)], 0.0)
    assert float(norm.compute()) == 0.0
    np.testing.assert_array_equal(clipped[1].compute(), 0.0)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: gc.clip_by_norm(x, -1), ValueError, "clip_by_norm: clip_norm: found int -1"),
        (lambda x: gc.clip_by_norm(x, 1, 5), np.exceptions.AxisError, "clip_by_norm: axes: found 5"),
        (lambda x: gc.clip_by_norm(x, 1, out=np.ones(3)), TypeError, "out: found ndarray"),
        (lambda x: gc.clip_by_norm(x, 1, comm=lambda a: a), TypeError, "t: found a dask array; allowed: NumPy"),
        (lambda x: gc.norm(x, 1, (0, 1)), ValueError, "norm: ord: found int 1"),
        (lambda x: gc.clip_by_value(x, None, None), ValueError, "None for both bounds"),
        (lambda x: gc.clip_by_value(x, "a", 1), TypeError, "clip_value_min: found str 'a'"),
        (
            lambda x: gc.clip_by_value(x, np.ones((2, 100, 40)), 1),
            ValueError,
            r"clip_value_min: found shape \(2, 100, 40",
        ),
        (lambda x: gc.clip_by_value(x, np.ones((100, 7)), 1), ValueError, r"clip_value_min: found shape \(100, 7\)"),
        (lambda x: gc.clip_by_value(x, None, np.ones(7)), ValueError, r"clip_value_max: found shape \(7,\)"),
        (lambda x: gc.clip_by_value(x, [[1], [1, 2]], 1), ValueError, "clip_value_min: found a ragged list"),
        (lambda x: gc.clip_by_value(x, None, np.ma.ones(40)), TypeError, "clip_value_max: found a masked array"),
        (lambda x: gc.clip_by_value(x, ["a"], 1), TypeError, "clip_value_min: found dtype <U1"),
        (
            lambda x: gc.clip_by_value(x.astype("i4"), np.ones(40), 1),
            TypeError,
            r"clip_value_min: found ndarray of dtype float64 and shape \(40,\)",
        ),
        (lambda x: gc.global_norm([x], ord=2000), ValueError, "global_norm: ord: found 2000"),
        (lambda x: gc.norm(x, 2000, name="n"), ValueError, "norm 'n': ord: found 2000"),
        (lambda x: gc.clip_by_global_norm([x], 1, ord=2000), ValueError, "clip_by_global_norm: ord: found 2000"),
        (lambda x: gc.clip_by_global_norm([x], 1, reproducible=True), TypeError, "t_list: found a dask array"),
        (lambda x: gc.global_norm([x, SLICES]), TypeError, r"t_list\[1\]: found IndexedSlices; allowed: arrays"),
        (lambda x: gc.clip_by_global_norm([x], 1, x), ValueError, r"use_norm: found shape \(100, 40\)"),
        (lambda x: gc.clip_by_global_norm([x], 1, da.ones((), dtype="c8")), TypeError, "use_norm: found"),
        (lambda x: gc.clip_by_global_norm([x], 1, da.ones((), dtype=bool)), TypeError, "use_norm: found"),
        (lambda x: gc.clip_by_norm(da.ma.masked_equal(x, 3), 1), TypeError, "clip_by_norm: t: found a masked array"),
        (
            lambda x: gc.global_norm([da.ma.masked_equal(x, 3)]),
            TypeError,
            r"global_norm: t_list\[0\]: found a masked array",
        ),
        (lambda x: gc.global_norm([x.astype(object)]), TypeError, r"t_list\[0\]: found dtype object"),
        (lambda x: gc.global_norm([x, "text"]), TypeError, r"t_list\[1\]"),
        (lambda x: gc.global_norm([x], nonfinite="raise"), ValueError, "nonfinite"),
        (lambda x: gc.clip_by_global_norm([x], 1.0, integers="keep"), ValueError, "integers"),
        (lambda x: gc.clip_by_global_norm([x.astype("i4")], 1.0), TypeError, r"t_list\[0\]: found dtype int32"),
    ],
)
def test_errors_come_before_anything_is_computed(call, error, words):
    with pytest.raises(error, match=words):
        call(da.ones((100, 40), chunks=(30, 17), dtype="f4"))


def test_a_bad_norm_that_is_known():
    clipped, _ = gc.clip_by_global_norm([da.ones(4)], 1.0, da.asarray(-3.0), name="n")
    with pytest.raises(ValueError, match=r"clip_by_global_norm 'n': use_norm: found"):
        clipped[0].compute()
    clipped, _ = gc.clip_by_global_norm([da.ones(4)], 1.0, da.asarray(np.inf), nonfinite="raise")
    with pytest.raises(gc.NonFiniteError, match="clip_by_global_norm: use_norm: found an infinite or NaN norm"):
        clipped[0].compute()


def test_errors_of_chunks_name_the_call():
    bad = da.from_array(np.array([1.0, 2.0, np.nan]), chunks=1)
    clipped, _ = gc.clip_by_global_norm([da.ones(4, chunks=2), bad], 1.0, name="n", nonfinite="raise")
    for one in clipped:
        with pytest.raises(gc.NonFiniteError, match="clip_by_global_norm 'n': t_list: found an element") as caught:
            one.compute()
        assert caught.value.entries == ()
    with pytest.raises(gc.NonFiniteError, match="clip_by_norm 'n': t: found an element"):
        gc.clip_by_norm(bad, 1.0, name="n", nonfinite="raise").compute()


def test_lists_with_numbers():
    tensors = [da.ones(4, chunks=2), 3.0, np.float32(2.0), [1.0, 1.0], None]
    assert gc.global_norm(tensors).compute() == gc.global_norm([np.ones(4), 3.0, 2.0, np.ones(2)])
    clipped, norm = dask.compute(*gc.clip_by_global_norm(tensors, 1.0))
    expected = gc.clip_by_global_norm([np.ones(4), 3.0, np.float32(2.0), np.ones(2), None], 1.0)
    assert norm == expected[1]
    for one, other in zip(clipped, expected[0], strict=True):
        np.testing.assert_array_equal(one, other)


def test_bounds_are_cut_as_the_tensor_is():
    x = da.ones((8, 4), chunks=((4, 4), (2, 2)))
    for bound in (da.ones((8, 4), chunks=((2, 2, 2, 2), (4,))), da.ones((8, 1), chunks=2), np.ones(4)):
        assert gc.clip_by_value(x, None, bound).chunks == x.chunks


@pytest.fixture
def cluster():
    """Two worker processes."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0", "memory_limit": 0}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


in_cluster = pytest.mark.parametrize("_scheduler", [None], indirect=True)


@in_cluster
@pytest.mark.usefixtures("cluster")
def test_processes():
    """Chunks stay in their worker, which imports the package itself."""
    array = sample((400, 50), "f8")
    lazy = da.from_array(array, chunks=(100, 50))
    clipped, norm = gc.clip_by_global_norm([lazy], 1.0)
    (found,), value = dask.compute(clipped, norm)
    expected, exact = gc.clip_by_global_norm([array], 1.0)
    assert float(value) == pytest.approx(exact, rel=1e-14)
    np.testing.assert_allclose(found, expected[0], rtol=1e-14)


@in_cluster
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak of a process's memory")
def test_memory_of_a_worker(cluster):
    """A worker drops each chunk after its part of the norm, or after its part of the clip."""
    chunk_bytes = 16 << 20

    def memory(field):
        return int(Path("/proc/self/status").read_text().partition(field)[2].split()[0]) << 10

    def reset_peak():
        Path("/proc/self/clear_refs").write_text("5")
        return memory("VmRSS:")

    x = da.ones(20 * chunk_bytes // 4, chunks=chunk_bytes // 4, dtype="f4") * np.float32(3)
    clipped, norm = gc.clip_by_global_norm([x], 1.0, use_norm=2.0)
    for work, chunks in ((gc.global_norm([x]), 2), (clipped[0].sum(), 3)):
        work.compute()  # the libraries take memory at first
        before = cluster.run(reset_peak)
        work.compute()
        peak = cluster.run(memory, "VmHWM:")
        grown = [(peak[worker] - before[worker]) / chunk_bytes for worker in peak]
        assert max(grown) < chunks, grown
    assert float(norm.compute()) == 2.0


def test_a_norm_that_rounds_to_infinity_is_no_warning():
    x = np.full((2, 4), 3e38, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(gc.norm(da.from_array(x, chunks=2), axis=1).compute(), np.inf)
