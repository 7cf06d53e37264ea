"""`comm=`, `replicated=` and `reproducible=`: norms of data that are distributed over several ranks."""

import math
import threading
from fractions import Fraction
from functools import cache, partial
from typing import ClassVar

import gradclip as gc
import layouts
import numpy as np
import oracle
import pytest
import ranks
from calls import looped
from gradclip import _core, _exchange
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16

RNG = np.random.default_rng(26)
ORDS = [1, 2, 3, 0.5, 2.5, 40, np.inf]
SCALES = [1.0, 1e200, 1e-200, 1e-310, 1e300]


def sample(shape, dtype="f4", scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(dtype)


def parts_of(count):
    """Lists of different lengths, dtypes and layouts; one of a rank that has nothing."""
    lists = [
        [sample(1000), None, sample((30, 4), "f8")],
        [],
        [sample((7, 5), "f2").T, np.arange(9), sample(3, "c8")],
        [None],
        [sample(3000, "f4")],
        [sample((3, 4, 5), bfloat16), np.asarray(2.0)],
        [sample(17, "c16")[::-1]],
        [sample(5000, "f8")[::3]],
    ]
    return lists[:count]


def whole(lists):
    return [t for own in lists for t in own if t is not None]


def on_each(lists, function):
    """The result of a function of a rank's list and communicator, on each rank."""
    return ranks.run([lambda comm, own=own: function(own, comm) for own in lists])


def on_grid(function):
    """The results of a function of a rank's row, column and communicators, on a grid of two by two ranks."""
    rows, columns = [ranks.World(2), ranks.World(2)], [ranks.World(2), ranks.World(2)]

    def work(i, j):
        return lambda _: function(i, j, [ranks.Comm(rows[i], j), ranks.Comm(columns[j], i)])

    return ranks.run([work(i, j) for i in range(2) for j in range(2)])


def times(count):
    """A function that sums over so many ranks, all with the same data."""
    return lambda message: message * count


def hexes(values):
    return {value.hex() for value in values}


class TestGlobalNorm:
    @pytest.mark.sampled
    @pytest.mark.parametrize("ord", ORDS)
    @pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
    def test_every_rank_has_the_norm_of_all(self, count, ord):
        lists = parts_of(count)
        norms = on_each(lists, lambda own, comm: gc.global_norm(own, ord=ord, comm=comm))
        assert len(hexes(norms)) == 1
        oracle.assert_norm(norms[0], oracle.exact_global_norm(whole(lists), ord), ord)

    @pytest.mark.parametrize("scale", SCALES)
    @pytest.mark.parametrize("ord", [1, 2, 3, np.inf])
    def test_no_shard_leaves_the_range(self, scale, ord):
        lists = [[sample(40, "f8", scale)], [sample(50, "f8", 1.0)], [sample(60, "f8", 1 / scale)]]
        norms = on_each(lists, lambda own, comm: gc.global_norm(own, ord=ord, comm=comm))
        oracle.assert_norm(norms[0], oracle.exact_global_norm(whole(lists), ord), ord)

    @pytest.mark.parametrize("scale", SCALES)
    def test_one_rank_has_the_bits_of_none(self, scale):
        own = [sample(1000, "f8", scale), sample(70, "f8", scale)]
        (norm,) = on_each([own], lambda own, comm: gc.global_norm(own, comm=comm))
        assert norm == gc.global_norm(own)

    def test_large_orders_have_larger_messages(self):
        lists = [[sample(40, "f8", 1e100)], [sample(50, "f8", 1e-100)]]
        norms = on_each(lists, lambda own, comm: gc.global_norm(own, ord=500, comm=comm))
        oracle.assert_norm(norms[0], oracle.exact_global_norm(whole(lists), 500), 500)
        found = on_each(lists, lambda own, comm: gc.global_norm(own, ord=1001, comm=comm))
        assert all(isinstance(error, ValueError) and "1000" in str(error) for error in found)

    @pytest.mark.parametrize("bad", [np.inf, np.nan])
    @pytest.mark.parametrize("ord", [1, 2, 3, np.inf])
    def test_infinity_and_nan_reach_all(self, bad, ord):
        lists = [[np.ones(3)], [np.array([1.0, bad])], [np.ones(2)]]
        norms = on_each(lists, lambda own, comm: gc.global_norm(own, ord=ord, comm=comm))
        np.testing.assert_array_equal(norms, bad)

    def test_kept_integers_count_nothing(self):
        lists = [[np.array([3.0]), np.array([7])], [np.array([4.0]), np.array([True])]]
        norms = on_each(lists, lambda own, comm: gc.global_norm(own, integers="keep", comm=comm))
        assert norms == [5.0, 5.0]

    @pytest.mark.sampled
    @pytest.mark.parametrize("ord", [1, 2, 3, np.inf])
    @pytest.mark.parametrize("kind", layouts.LISTS)
    def test_views_count_as_often_as_they_are_given(self, kind, ord):
        t_list = layouts.LISTS[kind](sample(4000, "f8"))
        exact = oracle.exact_global_norm(t_list, ord)
        lists = [t_list[:9], t_list[9:]]
        norms = on_each(lists, lambda own, comm: gc.global_norm(own, ord=ord, comm=comm))
        for norm in (*norms, gc.NormState.of(t_list, ord).norm()):
            oracle.assert_norm(norm, exact, ord)
        if ord != 3:
            norms = on_each(lists, lambda own, comm: gc.global_norm(own, ord=ord, comm=comm, reproducible=True))
            norms += [gc.NormState.of(t_list, ord, reproducible=True).norm()]
            norms += [gc.global_norm(t_list, ord=ord, reproducible=True)]
            assert hexes(norms) == {oracle.to_float64(exact).hex()}

    @pytest.mark.parametrize(
        ("call", "count", "messages"),
        [
            (gc.global_norm, 100, [1024]),
            (partial(gc.global_norm, reproducible=True), 100, [1024]),
            (partial(gc.clip_by_global_norm, clip_norm=1.0, ord=2), 100, [1024]),
            (gc.norms, 36, [1024]),
            (gc.norms, 37, [1024, 888]),
            (partial(gc.norms, ord=3), 22, [1024]),
            (partial(gc.norms, ord=3), 23, [1024, 920]),
        ],
    )
    def test_a_message_is_one_kibibyte(self, call, count, messages):
        lists = [[np.ones(3)] * count] * 3
        sent = on_each(lists, lambda own, comm: (call(own, comm=comm), comm.world.messages)[1])
        assert sent[0] == messages

    def test_of_a_function_that_sums(self):
        lists = parts_of(5)
        for p in (1, 2, 3):
            norms = on_each(lists, lambda own, comm, p=p: gc.global_norm(own, ord=p, comm=comm.sum))
            oracle.assert_norm(norms[0], oracle.exact_global_norm(whole(lists), p), p)
            assert len(hexes(norms)) == 1

    def test_communicators_in_turn(self):
        """A grid of two by three ranks: sums along its rows, then along its columns."""
        grid = [[sample(10 + 3 * i + j, "f8") for j in range(3)] for i in range(2)]
        rows = [ranks.World(3) for _ in range(2)]
        columns = [ranks.World(2) for _ in range(3)]

        def work(i, j):
            return lambda _: gc.global_norm([grid[i][j]], comm=[ranks.Comm(rows[i], j), ranks.Comm(columns[j], i)])

        norms = ranks.run([work(i, j) for i in range(2) for j in range(3)])
        assert len(hexes(norms)) == 1
        oracle.assert_norm(norms[0], oracle.exact_global_norm([t for row in grid for t in row]))


class TestReplicated:
    def test_copies_count_once(self):
        bias, shards = sample(20, "f8"), [sample(30, "f8"), sample(40, "f8"), sample(50, "f8")]
        exact = oracle.exact_global_norm([bias, *shards])
        lists = [[bias, shard] for shard in shards]
        for replicated in ([True, False], [3, 1], (3, False), np.array([3, 1])):
            norms = on_each(lists, lambda own, comm, r=replicated: gc.global_norm(own, comm=comm, replicated=r))
            assert len(hexes(norms)) == 1
            oracle.assert_norm(norms[0], exact)
        for replicated in (True, 3):
            norms = on_each([[bias]] * 3, lambda own, comm, r=replicated: gc.global_norm(own, comm=comm, replicated=r))
            oracle.assert_norm(norms[0], oracle.exact_norm(bias))

    def test_true_is_exact(self):
        copy = [sample(1001, "f8")]
        norms = on_each([copy] * 3, lambda own, comm: gc.global_norm(own, comm=comm, replicated=True))
        assert set(norms) == {gc.global_norm(copy)}

    def test_copies_on_a_grid_count_once(self):
        norms = on_grid(lambda _i, _j, comm: gc.global_norm([np.ones(4)], comm=comm, replicated=True))
        assert norms == [2.0] * 4

    def test_of_the_largest_magnitude(self):
        lists = [[np.array([3.0]), np.array([float(r)])] for r in range(3)]
        norms = on_each(lists, lambda own, comm: gc.global_norm(own, ord=np.inf, comm=comm, replicated=[3, 1]))
        assert norms == [3.0] * 3

    @pytest.mark.parametrize(
        ("replicated", "error", "words"),
        [
            ([True], ValueError, "length 1"),
            (0, ValueError, "found 0"),
            ([1, -1], ValueError, r"replicated\[1\]"),
            (1.5, TypeError, "replicated"),
            (["yes", 1], TypeError, r"replicated\[0\]"),
        ],
    )
    def test_errors(self, replicated, error, words):
        for raised in on_each(
            [[np.ones(2), np.ones(3)]] * 2, lambda own, comm: gc.global_norm(own, comm=comm, replicated=replicated)
        ):
            with pytest.raises(error, match=words):
                ranks.raise_again(raised)

    def test_of_more_ranks_than_there_are(self):
        for raised in on_each([[np.ones(2)]] * 2, lambda own, comm: gc.global_norm(own, comm=comm, replicated=3)):
            with pytest.raises(ValueError, match=r"replicated: found 3; allowed: at most 2, .* \(on rank 0\)"):
                ranks.raise_again(raised)

    def test_is_checked_beside_a_known_norm(self):
        call = partial(gc.clip_by_global_norm, clip_norm=1.0, use_norm=2.0, replicated="yes")
        for raised in on_each([[np.ones(2)]] * 2, lambda own, comm: call(own, comm=comm)):
            with pytest.raises(TypeError, match="replicated: found str 'yes'"):
                ranks.raise_again(raised)

    def test_true_on_one_rank_alone(self):
        def work(replicated):
            return lambda comm: gc.global_norm([np.ones(2), np.ones(3)], comm=comm, replicated=replicated)

        for own, other in ((True, False), (True, None), ([True, False], [False, True])):
            for raised in ranks.run([work(own), work(other)]):
                with pytest.raises(ValueError, match="replicated: found different ones on rank 0 and rank 1"):
                    ranks.raise_again(raised)
        # Stages of a pipeline hold lists of different lengths.
        lists = [[np.ones(2)] * 2, [np.ones(3)] * 3]
        found = on_each(lists, lambda own, comm: gc.global_norm(own, comm=comm, replicated=[False] * len(own)))
        assert found == [pytest.approx(math.sqrt(13), rel=1e-14)] * 2
        # A tensor may have copies on some of the ranks.
        found = ranks.run([work([2, 1]), work([2, 1]), work([1, False])])
        assert found[0] == pytest.approx(math.sqrt(2 + 3 * 3 + 2), rel=1e-14)

    @pytest.mark.parametrize("copies", [6, 7, 10, 49])
    def test_sums_of_rounded_shares(self, copies):
        """The elements that a function sums are fractions then."""
        found = on_each(
            [[np.ones(1)]] * copies, lambda own, comm: gc.global_norm(own, comm=comm.sum, replicated=copies)
        )
        np.testing.assert_allclose(found, 1.0, rtol=1e-14)

    def test_an_error_beside_fractions(self):
        lists = [["text"], [np.ones(1)], [np.ones(1)]]
        for raised in on_each(lists, lambda own, comm: gc.global_norm(own, comm=comm.sum, replicated=3)):
            assert isinstance(raised, TypeError), raised

    def test_wants_a_communicator(self):
        with pytest.raises(ValueError, match="replicated: found bool True; allowed without comm: None"):
            gc.global_norm([np.ones(2)], replicated=True)

    def test_true_wants_ranks(self):
        for raised in on_each(
            [[np.ones(2)]] * 2, lambda own, comm: gc.global_norm(own, comm=comm.sum, replicated=True)
        ):
            with pytest.raises(ValueError, match="the number of ranks that hold a copy"):
                ranks.raise_again(raised)
        copies = on_each([[np.ones(4)]] * 2, lambda own, comm: gc.global_norm(own, comm=comm.sum, replicated=2))
        assert copies == [2.0, 2.0]


class TestClip:
    @pytest.mark.parametrize("in_place", [False, True])
    @pytest.mark.parametrize("strict", [False, True])
    def test_by_global_norm(self, in_place, strict):
        lists = [[sample(1000), None], [], [sample((30, 4), "f8"), sample(9, "c8")]]
        expected, norm = gc.clip_by_global_norm(whole(lists), 1.5, strict=strict)

        def clip(own, comm):
            own = [None if t is None else t.copy() for t in own]
            return gc.clip_by_global_norm(own, 1.5, strict=strict, out=own if in_place else None, comm=comm)

        found = on_each(lists, clip)
        assert len(hexes(n for _, n in found)) == 1
        oracle.assert_norm(found[0][1], norm)
        clipped = whole([tensors for tensors, _ in found])
        for a, b in zip(clipped, expected, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=4 * oracle.eps(a.dtype))
        if strict:
            assert sum(oracle.squared_norms(t).sum() for t in clipped) <= Fraction(1.5) ** 2

    def test_unclipped_tensors_keep_their_bits(self):
        lists = [[sample(10)], [sample(20)]]
        found = on_each(lists, lambda own, comm: gc.clip_by_global_norm(own, 1e6, comm=comm))
        for (clipped, _), own in zip(found, lists, strict=True):
            assert oracle.same_bits(clipped[0], own[0])

    def test_a_given_norm_is_compared(self):
        lists = [[np.full(4, 2.0)], [np.ones(3)]]
        found = on_each(lists, lambda own, comm: gc.clip_by_global_norm(own, 1.0, 10.0, comm=comm))
        assert [norm for _, norm in found] == [10.0, 10.0]
        np.testing.assert_array_equal(found[0][0][0], 0.2)
        for error in ranks.run(
            [
                lambda c: gc.clip_by_global_norm([], 1.0, 3.0, comm=c),
                lambda c: gc.clip_by_global_norm([], 1.0, 4.0, comm=c),
            ]
        ):
            with pytest.raises(ValueError, match=r"use_norm: found 3\.0 and 4\.0 on rank 0 and rank 1"):
                ranks.raise_again(error)
        norms = (None, 3.0)
        for error in ranks.run([lambda c, norm=norm: gc.clip_by_global_norm([], 1.0, norm, comm=c) for norm in norms]):
            with pytest.raises(ValueError, match=r"use_norm: found None and 3\.0 on rank 0 and rank 1"):
                ranks.raise_again(error)

    @pytest.mark.sampled
    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
    @pytest.mark.parametrize("axes", [None, 0, (0, 1), (2, 0), (0, -1, 1)])
    @looped("options", [{}, {"strict": True}, {"nonfinite": "zero"}, {"nonfinite": "keep"}])
    def test_by_norm_along_axes(self, axes, dtype, options):
        """Each slice goes through all ranks, which hold some of its elements, or none."""
        tensor = sample((12, 5, 6), dtype)
        if "nonfinite" in options:
            tensor[3, 2, 1] = np.nan
        expected = gc.clip_by_norm(tensor, 1.0, axes, **options)
        shards = [np.asfortranarray(tensor[:5]), tensor[5:6].copy(), tensor[6:6], tensor[6:].copy()]
        for outs in ([None] * 4, shards):
            found = ranks.run(
                [
                    lambda comm, s=s, out=out: gc.clip_by_norm(s, 1.0, axes, out=out, comm=comm, **options)
                    for s, out in zip(shards, outs, strict=True)
                ]
            )
            assert all(out is None or own is out for own, out in zip(found, outs, strict=True))
            clipped = np.concatenate(found)
            np.testing.assert_allclose(clipped, expected, rtol=(4 if oracle.is_wide(dtype) else 1) * oracle.eps(dtype))
            if "strict" in options:
                assert (oracle.squared_norms(clipped, axes) <= 1).all()

    def test_slices_of_ranks_with_other_layouts_are_the_same(self):
        tensor = sample((4, 6, 8), "f8")
        shards = [tensor[:2], np.asfortranarray(tensor[2:])]
        found = ranks.run([lambda comm, s=s: gc.clip_by_norm(s, 0.7, 0, comm=comm) for s in shards])
        np.testing.assert_allclose(np.concatenate(found), gc.clip_by_norm(tensor, 0.7, 0), rtol=1e-15)

    def test_strict_counts_the_elements_of_all(self):
        """Beyond 1e8 elements, it leaves the more room the more there are."""
        tensors = [np.ones(1000)]
        clip = partial(gc.clip_by_global_norm, tensors, 1.0, strict=True)
        (found,), norm = clip(comm=times(2**32))
        assert found[0] * norm < 1 - 1e-10
        assert oracle.same_bits(clip(norm, comm=times(2**32))[0][0], found)
        assert oracle.same_bits(clip(comm=times(2**32), replicated=2**32)[0][0], clip()[0][0])

    def test_by_average_norm(self):
        tensor = sample((40, 3))
        shards = np.split(tensor, [3, 3, 20])
        found = ranks.run([lambda comm, s=s: gc.clip_by_average_norm(s, 1e-3, comm=comm) for s in shards])
        np.testing.assert_allclose(np.concatenate(found), gc.clip_by_average_norm(tensor, 1e-3), rtol=1e-6)

    def test_kept_integers(self):
        lists = [[np.array([3.0]), np.array([7])], [np.array([True]), np.array([4.0])]]
        found = on_each(lists, lambda own, comm: gc.clip_by_global_norm(own, 2.5, integers="keep", comm=comm))
        assert [norm for _, norm in found] == [5.0, 5.0]
        expected, _ = gc.clip_by_global_norm(whole(lists), 2.5, integers="keep")
        assert all(map(oracle.same_bits, whole([clipped for clipped, _ in found]), expected))

    def test_a_replicated_tensor(self):
        tensor = sample((5, 10), "f8")
        for replicated in (True, 2):
            for axes in (None, 0):
                clip = partial(gc.clip_by_norm, tensor, 1.0, axes, replicated=replicated)
                found = ranks.run([lambda comm, clip=clip: clip(comm=comm)] * 2)
                assert oracle.same_bits(found[0], gc.clip_by_norm(tensor, 1.0, axes))
            found = ranks.run(
                [lambda comm, r=replicated: gc.clip_by_average_norm(tensor, 0.01, comm=comm, replicated=r)] * 2
            )
            assert oracle.same_bits(found[1], gc.clip_by_average_norm(tensor, 0.01))

    def test_indexed_slices(self):
        own = gc.IndexedSlices(np.ones((2, 8)), np.array([0, 5]), (9, 8))
        found = ranks.run([lambda comm: gc.clip_by_norm(own, 1.0, comm=comm)] * 2)
        np.testing.assert_allclose(found[0].values, 1 / math.sqrt(32))
        found = ranks.run([lambda comm: gc.clip_by_global_norm([own], 1.0, comm=comm)] * 2)
        assert found[0][1] == pytest.approx(math.sqrt(32))


class TestNorms:
    @pytest.mark.parametrize("ord", [1, 2, 3, np.inf])
    @pytest.mark.parametrize("count", [1, 5, 161])
    def test_each_tensor_is_cut(self, count, ord):
        tensors = [sample(int(n), "f8") for n in RNG.integers(1, 50, count)]
        cut = [np.array_split(t, 3) for t in tensors]
        lists = [[pieces[rank] for pieces in cut] for rank in range(3)]
        found = on_each(lists, lambda own, comm: (gc.norms(own, ord=ord, comm=comm), comm.world.messages))
        for (norms, _), _own in zip(found, lists, strict=True):
            assert norms.tobytes() == found[0][0].tobytes()
        for norm, tensor in zip(found[0][0], tensors, strict=True):
            oracle.assert_norm(norm, oracle.exact_norm(tensor, ord), ord)
        if ord == 2:
            assert sum(found[0][1]) <= 1024 + 32 * count

    def test_of_lists_of_other_lengths(self):
        """No rank hangs, however long the messages would be."""
        for lengths in ([1, 2, 2], [100, 40, 100], [3, 200, 3]):
            for error in on_each([[np.ones(3)] * n for n in lengths], lambda own, comm: gc.norms(own, comm=comm)):
                counts = f"{lengths[0]} and {lengths[1]} tensors on rank 0 and rank 1"
                with pytest.raises(ValueError, match=f"t_list: found {counts}; allowed: as many on all"):
                    ranks.raise_again(error)

    def test_replicated(self):
        lists = [[np.full(4, 1.0), np.full(4, 3.0), None]] * 2
        found = on_each(lists, lambda own, comm: gc.norms(own, comm=comm, replicated=[True, 1, 2]))
        np.testing.assert_allclose(found[1], [2.0, math.sqrt(72), 0.0])


class Raises:
    def __init__(self, error):
        self.error = error

    def __array__(self, *_args, **_options):
        raise self.error


class TestFaults:
    """An error on one rank is an error on all."""

    CALLS: ClassVar = {
        "global_norm": lambda t, comm: gc.global_norm([t], comm=comm),
        "norms": lambda t, comm: gc.norms([t], comm=comm),
        "clip_by_global_norm": lambda t, comm: gc.clip_by_global_norm([t], 1.0, comm=comm),
        "clip_by_norm": lambda t, comm: gc.clip_by_norm(t, 1.0, comm=comm),
        "clip_by_average_norm": lambda t, comm: gc.clip_by_average_norm(t, 1.0, comm=comm),
    }

    @pytest.mark.parametrize("function", CALLS)
    @pytest.mark.parametrize("rank", [0, 2])
    def test_of_an_argument(self, function, rank):
        call = self.CALLS[function]
        tensors = [np.ones(3), np.ones(3), np.ones(3)]
        tensors[rank] = np.array(["text"])
        found = ranks.run([lambda comm, t=t: call(t, comm) for t in tensors])
        for error in found:
            with pytest.raises(TypeError, match=rf"^{function}: .*dtype <U4.* \(on rank {rank}\)$"):
                ranks.raise_again(error)

    @pytest.mark.parametrize(
        "bad", [3, None, {"a": np.ones(2)}, "text", [object()], iter([np.ones(2)])], ids=lambda bad: type(bad).__name__
    )
    @pytest.mark.parametrize("function", ["global_norm", "norms"])
    def test_of_a_list(self, function, bad):
        for error in on_each([[np.ones(2)], bad], lambda own, comm: getattr(gc, function)(own, comm=comm)):
            with pytest.raises(TypeError, match="on rank 1"):
                ranks.raise_again(error)

    def test_of_each_class(self):
        class BrokenError(Exception):
            pass

        cases = [
            (lambda c: gc.clip_by_norm(np.ones(3), 1.0, 5, comm=c), np.exceptions.AxisError, "axes"),
            (lambda c: gc.clip_by_norm(np.ones(3), -1.0, comm=c), ValueError, "clip_norm"),
            (lambda c: gc.clip_by_norm(np.ones(3), 1.0, out=np.ones(4), comm=c), ValueError, "out"),
            (lambda c: gc.clip_by_norm(np.ones(3), 1.0, nonfinite="none", comm=c), ValueError, "nonfinite"),
            (lambda c: gc.clip_by_norm(Raises(BrokenError("ouch")), 1.0, comm=c), RuntimeError, "BrokenError: ouch"),
            (lambda c: gc.clip_by_norm(Raises(MemoryError("none left")), 1.0, comm=c), MemoryError, "none left"),
        ]
        raised = (KeyError("lost"), OSError(5, "no disk"), NotImplementedError("not yet"))
        cases += [(lambda c, e=e: gc.clip_by_norm(Raises(e), 1.0, comm=c), type(e), str(e.args[-1])) for e in raised]
        no_text = UnicodeDecodeError("utf-8", b"", 0, 1, "bad byte")  # which a text alone does not make
        cases.append(
            (lambda c: gc.clip_by_norm(Raises(no_text), 1.0, comm=c), UnicodeError, "UnicodeDecodeError: .*bad byte")
        )

        class LostError(KeyError):
            pass

        class OwnError(Exception):
            pass

        cases.append((lambda c: gc.clip_by_norm(Raises(LostError("key")), 1.0, comm=c), KeyError, "LostError: 'key'"))
        own = "^clip_by_norm: OwnError: mine"
        cases.append((lambda c: gc.clip_by_norm(Raises(OwnError("mine")), 1.0, comm=c), RuntimeError, own))
        for bad, kind, words in cases:
            found = ranks.run([lambda c: gc.clip_by_norm(np.ones(3), 1.0, comm=c), bad])
            for error in found:
                with pytest.raises(kind, match=f"{words}.* \\(on rank 1\\)[\"']?$") as caught:
                    ranks.raise_again(error)
                assert caught.type is kind

    @pytest.mark.parametrize("options", [{"nonfinite": "none"}, {"integers": "none"}, {"name": 3}])
    def test_of_an_option(self, options):
        (argument,) = options
        for error in on_each([[np.ones(2)]] * 2, lambda own, comm: gc.global_norm(own, comm=comm, **options)):
            with pytest.raises((TypeError, ValueError), match=f"^global_norm: {argument}: found"):
                ranks.raise_again(error)

    @pytest.mark.parametrize("wrong", [None, "oops", 3])
    @pytest.mark.parametrize("place", [1, 2])
    def test_of_one_of_several_communicators(self, wrong, place):
        """The ranks of the other communicators wait for this one."""
        rows, columns = [ranks.World(2), ranks.World(2)], [ranks.World(2), ranks.World(2)]

        def work(i, j):
            comm = [ranks.Comm(rows[i], j), ranks.Comm(columns[j], i)]
            if (i, j) == (0, 1):
                comm.insert(place, wrong)
            return lambda _: gc.global_norm([np.ones(3)], comm=comm)

        for error in ranks.run([work(i, j) for i in range(2) for j in range(2)]):
            with pytest.raises(TypeError, match=rf"^global_norm: comm\[{place}\]: found"):
                ranks.raise_again(error)

    @pytest.mark.parametrize("broken", [lambda _: np.zeros(3), lambda _: None, lambda _: 1 / 0])
    def test_of_a_function_before_a_communicator(self, broken):
        """The ranks of the communicator wait for the rank whose function fails."""
        world = ranks.World(2)

        def work(rank):
            comm = [broken if rank == 1 else lambda a: a, ranks.Comm(world, rank)]
            return lambda _: gc.global_norm([np.ones(3)], comm=comm)

        for error in ranks.run([work(0), work(1)]):
            with pytest.raises((TypeError, ZeroDivisionError), match=r"on rank 1 of comm\[1\]|comm\[0\]|division"):
                ranks.raise_again(error)

    def test_of_memory_for_the_messages(self, monkeypatch):
        """A rank without memory for the norms of all ranks tells the others before they send theirs."""

        def work(comm):
            return gc.norms([np.ones(2)] * 100, comm=comm)

        def buffer(self, length):
            if length > 200 and self.rank() == 1:
                raise MemoryError("no room")
            return np.empty((2, length))

        monkeypatch.setattr(_exchange._Mpi, "buffer", buffer)  # noqa: SLF001
        for error in ranks.run([work, work]):
            with pytest.raises(MemoryError, match="no room"):
                ranks.raise_again(error)

    def test_of_a_text_that_cannot_be_sent(self):
        class MuteError(ValueError):
            def __str__(self):
                raise KeyError("no text")

        for error, words in ((ValueError("bad \udcff"), r"bad \\udcff"), (MuteError(), "<no text: KeyError>")):
            works = [lambda c, e=error: gc.global_norm([Raises(e)], comm=c), lambda c: gc.global_norm([], comm=c)]
            with pytest.raises(ValueError, match=words + r" \(on rank 0\)$"):
                ranks.raise_again(ranks.run(works)[1])

    def test_slices_along_other_axes(self):
        def work(t, axes):
            return lambda comm: gc.clip_by_norm(t, 1.0, axes, comm=comm)

        for own, other in (
            ((np.ones((2, 2)), 0), (np.ones((2, 2)), 1)),
            ((np.ones((2, 3, 1)), 2), (np.ones((3, 2, 1)), 2)),
        ):
            for error in ranks.run([work(*own), work(*other)]):
                with pytest.raises(ValueError, match="nonfinite, strict, axes or shape: found different ones"):
                    ranks.raise_again(error)
        found = ranks.run([work(np.ones((2, 2)), 0), work(np.ones((7, 2)), -2)])
        np.testing.assert_allclose(found[0], 1 / 3)

    def test_norms_that_are_nan_are_the_same(self):
        def work(nonfinite):
            return lambda c: gc.clip_by_global_norm([np.ones(2)], 1.0, np.nan, nonfinite=nonfinite, comm=c)

        for error in ranks.run([work("zero"), work("keep")]):
            with pytest.raises(ValueError, match="nonfinite, strict, integers or reproducible: found different ones"):
                ranks.raise_again(error)

    def test_the_first_rank_is_named(self):
        works = [lambda c: gc.global_norm(3, comm=c), lambda c: gc.global_norm([], ord=-1, comm=c)]
        for error in ranks.run(works):
            with pytest.raises(TypeError, match="on rank 0"):
                ranks.raise_again(error)

    def test_a_long_message_is_cut(self):
        for error in ranks.run(
            [lambda c: gc.global_norm([], "é" * 2000, ord=-1, comm=c), lambda c: gc.global_norm([], comm=c)]
        ):
            assert isinstance(error, ValueError)
            assert "on rank 0" in str(error)

    def test_communicators_in_turn(self):
        """The error of one row of a grid reaches the other one. The first communicator tells the place."""
        bad, good = np.array(["text"]), np.ones(3)
        for error in on_grid(lambda i, j, comm: gc.global_norm([bad if (i, j) == (1, 0) else good], comm=comm)):
            with pytest.raises(TypeError, match=r"\(on rank 0 of comm\[0\]\)$") as caught:
                ranks.raise_again(error)
            assert str(caught.value).count("on rank") == 1

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (({"ord": 2}, {"ord": 3}), "ord: found 2.0 and 3.0"),
            (({"clip_norm": 1.0}, {"clip_norm": 2.0}), "clip_norm: found 1.0 and 2.0"),
            (({"replicated": [True]}, {}), "replicated: found different ones"),
            (({"nonfinite": "raise"}, {}), "nonfinite, strict, integers or reproducible: found different ones"),
            (({"reproducible": True}, {}), "nonfinite, strict, integers or reproducible: found different ones"),
        ],
    )
    def test_arguments_that_differ(self, options, words):
        def work(own):
            own = {"clip_norm": 1.0, **own}
            return lambda comm: gc.clip_by_global_norm([np.ones(2)], comm=comm, **own)

        for error in ranks.run([work(own) for own in options]):
            with pytest.raises(ValueError, match=words):
                ranks.raise_again(error)
        if "replicated" not in words:
            for error in ranks.run([lambda comm, own=own: work(own)(comm.sum) for own in options]):
                with pytest.raises(ValueError, match="arguments that differ between ranks"):
                    ranks.raise_again(error)

    @pytest.mark.parametrize("limits", [(0.41, 8.5), (0.42, 8.6), (1.0, math.nextafter(1.0, 2.0))])
    def test_limits_whose_stamps_are_the_same(self, limits):
        """The first two pairs have one checksum, so that only the numbers themselves differ."""

        def work(limit):
            return lambda comm: gc.clip_by_global_norm([np.array([300.0, 400.0])], limit, comm=comm)

        for error in ranks.run([work(limit) for limit in limits]):
            with pytest.raises(ValueError, match=f"clip_norm: found {limits[0]} and {limits[1]} on rank 0 and rank 1"):
                ranks.raise_again(error)
        for error in ranks.run([lambda comm, own=own: work(own)(comm.sum) for own in limits[:2]]):
            if abs(limits[1] - limits[0]) > 1e-9:
                with pytest.raises(ValueError, match="arguments that differ between ranks"):
                    ranks.raise_again(error)

    def test_another_version(self, monkeypatch):
        """Each rank is a thread here, which makes the blank of its messages once."""
        versions, lock, original = iter((1, 2)), threading.Lock(), _exchange._blank.__wrapped__  # noqa: SLF001

        def blank(*arguments):
            with lock:
                monkeypatch.setattr(_exchange, "VERSION", next(versions))
                return original(*arguments)

        monkeypatch.setattr(_exchange, "_blank", blank)
        for error in on_each([[np.ones(2)]] * 2, lambda own, comm: gc.global_norm(own, comm=comm)):
            with pytest.raises(ValueError, match="comm: found ranks with another version of gradclip"):
                ranks.raise_again(error)

    def test_other_functions(self):
        works = [lambda c: gc.global_norm([np.ones(2)], comm=c), lambda c: gc.norms([np.ones(2)], comm=c)]
        for error in ranks.run(works):
            with pytest.raises(ValueError, match="comm: found calls of different functions on rank 0 and rank 1"):
                ranks.raise_again(error)

    def test_numbers_of_tensors_that_differ(self):
        def lists(count):
            return [np.ones(2)] * count

        texts = {"2 and 3 tensors on rank 0 and rank 1": lambda c: c, "[23] tensors here only": lambda c: c.sum}
        for text, of in texts.items():
            for error in on_each([lists(2), lists(3)], lambda own, comm, of=of: gc.norms(own, comm=of(comm))):
                with pytest.raises(ValueError, match=f"t_list: found {text}"):
                    ranks.raise_again(error)

    def test_one_communicator_twice(self):
        """Its ranks would count twice. A communicator of one rank counts once, however often."""
        for error in on_each([[np.ones(2)]] * 2, lambda own, comm: gc.global_norm(own, comm=[comm, comm])):
            with pytest.raises(ValueError, match=r"comm\[1\]: found the communicator of comm\[0\]; allowed: each comm"):
                ranks.raise_again(error)
        assert on_each([[np.ones(4)]], lambda own, comm: gc.global_norm(own, comm=[comm, comm])) == [2.0]

    def test_a_sum_tells_no_rank(self):
        for error in on_each([[np.ones(2)], [object()]], lambda own, comm: gc.global_norm(own, comm=comm.sum)):
            assert isinstance(error, TypeError), error

    def test_a_function_that_does_not_sum(self):
        mean = [lambda comm: gc.global_norm([np.ones(2)], comm=lambda a: comm.sum(a) / 2)] * 2
        for error in [*ranks.run(mean), *ranks.run([lambda _: gc.global_norm([], comm=lambda _: None)])]:
            assert isinstance(error, (ValueError, TypeError))
            assert str(error).startswith("global_norm: comm: found a function that")

    def test_a_sum_tells_no_place_of_nan(self):
        with pytest.raises(gc.NonFiniteError, match=r"the first at \(0,\)$"):
            gc.global_norm([np.array([np.nan])], nonfinite="raise", comm=lambda message: message)

    def test_messages_do_not_write_long_integers(self):
        for error in on_each([[np.ones(2)]], lambda own, comm: gc.global_norm(own, comm=comm, replicated=10**5000)):
            assert "replicated: found an int of 16610 bits; allowed: at most 1, the number of ranks" in str(error)
        with pytest.raises(ValueError, match="ord: found 1e300; allowed: orders up to 1000"):
            gc.global_norm([np.ones(1)], ord=1e300, comm=lambda message: message)

    @pytest.mark.parametrize("exponent", [1023, 1000, 0, -1000, -1073])
    def test_exact_sums_of_moduli_at_the_ends_of_the_range(self, exponent):
        """Moduli beyond float64, and below its normal numbers, keep 53 digits."""
        part = math.ldexp(1.5, exponent)
        t = np.full(1000, complex(part, part))
        (clipped,), norm = gc.clip_by_global_norm([t], 1.0, ord=1, reproducible=True, nonfinite="raise")
        if norm > 1.0:
            np.testing.assert_allclose(np.abs(clipped).sum(), 1.0, rtol=1e-12)
        scaled = gc.global_norm([np.full(1000, complex(1.5, 1.5))], ord=1)
        expected = math.ldexp(scaled, exponent) if exponent <= 1000 else math.inf
        np.testing.assert_allclose(norm, expected, rtol=1e-14, atol=5e-324)

    @pytest.mark.parametrize("place", [1, 2])
    def test_stamps_that_differ(self, place):
        def stamped(message):
            message[place] += 1
            return message

        with pytest.raises(ValueError, match="found arguments that differ between ranks"):
            gc.global_norm([np.ones(2)], comm=stamped)

    def test_a_function_may_overwrite_its_arrays(self):
        """What it was given, and what it returned before."""
        returned = []

        def double(message):
            for earlier in returned:
                earlier.fill(np.nan)
            returned.append(message * 2)
            message.fill(np.nan)
            return returned[-1]

        np.testing.assert_array_equal(gc.norms([np.ones(8)] * 50, comm=double), 4.0)

    @pytest.mark.parametrize("place", [0, 16])
    @pytest.mark.parametrize("value", [np.inf, np.nan, 1e300, 2.5])
    def test_numbers_of_ranks_and_elements_that_are_no_sum(self, place, value):
        def spoiled(message):
            message = message.copy()
            message[place] = value
            return message

        if place == 16 and value == 1e300:  # a number of elements that the norm does not use
            assert gc.global_norm([np.ones(4)], comm=spoiled) == 2
            return
        with pytest.raises(ValueError, match=r"^clip_by_norm 'n': comm: found a function that does not add up"):
            gc.clip_by_norm(np.ones(4), 1.0, name="n", comm=spoiled)

    @pytest.mark.parametrize("call", [gc.global_norm, gc.norms, partial(gc.clip_by_global_norm, clip_norm=1)])
    def test_more_copies_than_ranks_of_a_function(self, call):
        """A function tells the number of ranks late. Half of 4 elements is a whole number, half of 3 is none."""
        for size in (4, 3):
            with pytest.raises(ValueError, match=r"replicated: found 2; allowed: at most 1, the number of ranks$"):
                call([np.ones(size)], comm=lambda message: message, replicated=2)

    def test_copies_that_make_no_whole_tensor(self):
        """Three ranks hold half of 3 elements each."""
        for error in on_each([[np.ones(3)]] * 3, lambda own, comm: gc.global_norm(own, comm=comm, replicated=2)):
            with pytest.raises(ValueError, match="replicated: found copies that do not add up to whole tensors"):
                ranks.raise_again(error)

    def test_copies_of_many_digits_where_nothing_is_divided(self):
        call = partial(gc.clip_by_global_norm, [np.ones(2)], 1, use_norm=2.0, comm=lambda message: message)
        with pytest.raises(ValueError, match="replicated: found an int of 16610 bits; allowed: at most 1"):
            call(replicated=10**5000)

    def test_copies_over_two_functions(self):
        """Four copies of 3 elements: the sum of the first two is no whole number of elements."""
        double = lambda message: message * 2  # noqa: E731
        assert gc.global_norm([np.array([3.0, 0.0, 4.0])], comm=[double, double], replicated=4) == 5.0

    @pytest.mark.parametrize("comm", [3, "world", [], [3], int, object()])
    def test_what_is_no_communicator(self, comm):
        with pytest.raises((TypeError, ValueError), match="global_norm 'g': comm"):
            gc.global_norm([np.ones(2)], "g", comm=comm)

    def test_the_largest_magnitude_is_no_sum(self):
        for error in on_each([[np.ones(2)]] * 2, lambda own, comm: gc.global_norm(own, ord=np.inf, comm=comm.sum)):
            with pytest.raises(ValueError, match="ord: found inf"):
                ranks.raise_again(error)

    @pytest.mark.parametrize("axes", [None, 0])
    def test_nonfinite_raises_on_all(self, axes):
        good, bad = np.ones((3, 2)), np.ones((3, 2))
        bad[1, 1] = np.nan
        kept = [good.copy(), bad.copy()]
        found = ranks.run(
            [lambda c, t=t: gc.clip_by_norm(t, 1.0, axes, nonfinite="raise", out=t, comm=c) for t in (good, bad)]
        )
        assert all(isinstance(error, gc.NonFiniteError) and math.isnan(error.norm) for error in found)
        assert "on rank 1" in str(found[0])
        assert "1 NaN" in str(found[1])
        assert str(found[1]).endswith("(on rank 1)")
        np.testing.assert_array_equal(good, kept[0])
        np.testing.assert_array_equal(bad, kept[1])
        for raised in ranks.run(
            [lambda c, t=t: gc.clip_by_global_norm([t], 1.0, nonfinite="raise", comm=c) for t in (good, bad)]
        ):
            assert isinstance(raised, gc.NonFiniteError)
        found = ranks.run([lambda c, t=t: gc.global_norm([t], nonfinite="raise", comm=c) for t in (good, bad)])
        assert found[1].entries == (0,)
        assert found[0].entries == ()

    def test_nonfinite_on_several_ranks(self):
        tensors = [np.array([x]) for x in (1.0, np.nan, np.inf)]
        works = [lambda c, t=t: gc.global_norm([t], nonfinite="raise", comm=c) for t in tensors]
        found = [str(error) for error in ranks.run(works)]
        places = ["on rank 1", "(on rank 1)", "(on this rank, and on rank 1)"]
        assert all(text.endswith(place) for text, place in zip(found, places, strict=True)), found

    def test_a_subclass_is_read_as_a_plain_array(self):
        class Unlike(np.ndarray):
            def __array_function__(self, *_):
                return NotImplemented

        x = np.ones((2, 2)).view(Unlike)
        for found in ranks.run([lambda c: gc.clip_by_norm(x, 1.0, 0, comm=c)] * 2):
            np.testing.assert_allclose(found, 0.5)
        for (clipped,), _ in ranks.run([lambda c: gc.clip_by_global_norm([x], 1.0, 2.0, comm=c)] * 2):
            np.testing.assert_array_equal(clipped, 0.5)

    @pytest.mark.parametrize("policy", ["propagate", "zero", "keep"])
    def test_nonfinite_acts_on_all(self, policy):
        lists = [[np.ones(2)], [np.array([np.nan])]]
        found = on_each(lists, lambda own, comm: gc.clip_by_global_norm(own, 1.0, nonfinite=policy, comm=comm))
        expected, _ = gc.clip_by_global_norm(whole(lists), 1.0, nonfinite=policy)
        for (clipped,), one in zip([clipped for clipped, _ in found], expected, strict=True):
            assert oracle.same_bits(clipped, one)

    def test_an_all_zero_world(self):
        found = on_each([[np.zeros(3)], [], [None]], lambda own, comm: gc.clip_by_global_norm(own, 0.0, comm=comm))
        assert [norm for _, norm in found] == [0.0] * 3


class TestReproducible:
    def oracle(self, tensors, ord):
        return float(oracle.to_float64(oracle.exact_global_norm(tensors, ord)))

    @staticmethod
    @cache  # the oracle takes long
    def whole(dtype, ord):
        values = np.random.default_rng(29).standard_normal(7001) * (1 if np.dtype(dtype).kind not in "iu" else 1000)
        tensor = np.abs(values).astype(dtype) if np.dtype(dtype).kind == "u" else values.astype(dtype)
        return tensor, TestReproducible().oracle([tensor], ord)

    @pytest.mark.sampled
    @pytest.mark.parametrize("ord", [1, 2, np.inf])
    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8", bfloat16, "i2", "i8", "u8"])
    @pytest.mark.usefixtures("isa")
    def test_no_cut_changes_a_bit(self, dtype, ord):
        tensor, norm = self.whole(dtype, ord)
        norms = set()
        for count in (1, 3, 8):
            shards = np.array_split(tensor, sorted(RNG.integers(0, 7001, count - 1)))
            lists = [[shard] for shard in shards]
            for comm in (lambda c: c, lambda c: c.sum if ord < np.inf else c):
                norms |= hexes(
                    on_each(lists, lambda own, c, of=comm: gc.global_norm(own, ord=ord, comm=of(c), reproducible=True))
                )
        backwards = tensor[::-1]
        for own in ([tensor], [backwards[::3], backwards[1::3], None, backwards[2::3]]):
            norms |= hexes([gc.global_norm(own, ord=ord, reproducible=True)])
        assert norms == {norm.hex()}

    @given(st.data())
    def test_rounded_once(self, data):
        """Any float64 and float32, subnormal and huge ones side by side."""
        width = data.draw(st.sampled_from([32, 64]))
        floats = st.floats(width=width, allow_nan=False, allow_infinity=False)
        values = data.draw(st.lists(floats, min_size=1, max_size=40))
        tensor = np.array(values, f"f{width // 8}")
        p = data.draw(st.sampled_from([1, 2]))
        cut = data.draw(st.integers(0, len(values)))
        states = [gc.NormState.of([part], p, reproducible=True) for part in (tensor[:cut], tensor[cut:])]
        assert (states[1] + states[0]).norm() == self.oracle([tensor], p)

    @pytest.mark.sampled
    @pytest.mark.parametrize("ord", [1, 2])
    @pytest.mark.parametrize("dtype", ["f2", bfloat16, "f4"])
    @pytest.mark.usefixtures("isa")
    def test_blocks_with_small_numbers(self, dtype, ord):
        """The smallest element of a block is so far below the largest that float64 would round."""
        tensor = np.random.default_rng(5).uniform(1, 4, 2500).astype(dtype)
        for power in range(76):
            tensor[::70] = np.ldexp(1 + oracle.eps(tensor.dtype), -power)
            whole = oracle.whole_sum(tensor, ord)
            for x in (tensor, np.repeat(tensor, 2)[::2]):
                found, _, _ = _core.exact_sum("global_norm", [x], None, float(ord), False)
                assert int.from_bytes(found, "little") == whole, power
        subnormal = np.ldexp(tensor, oracle.finfo(tensor.dtype).minexp - 2)
        found, _, _ = _core.exact_sum("global_norm", [subnormal], None, float(ord), False)
        assert int.from_bytes(found, "little") == oracle.whole_sum(subnormal, ord)

    @pytest.mark.parametrize(("ord", "powers"), [(1, [64, 11, -100]), (2, [64, 38, 11, -600])])
    def test_the_smallest_number_breaks_a_tie(self, ord, powers):
        assert gc.global_norm([np.ldexp(1.0, powers)], ord=ord, reproducible=True) == 2.0**64 + 2.0**12

    @pytest.mark.parametrize(
        ("comm", "count"), [(times(2**14 + 1), 2**14 + 1), ([times(2**7), times(2**8)], 2**15)], ids=["one", "two"]
    )
    def test_more_ranks_than_can_be_added(self, comm, count):
        assert gc.global_norm([np.ones(1)], comm=times(2**14), reproducible=True) == 2.0**7
        with pytest.raises(
            ValueError, match=f"comm: found {count} ranks; allowed: at most 16384 under reproducible=Tr"
        ):
            gc.global_norm([np.ones(1)], comm=comm, reproducible=True)

    def test_many_threads(self, threads):
        # The oracle counts equal numbers.
        tensors = [np.resize(sample(1009), 1_500_000), np.resize(sample(1009, "f8"), 300_000), *([sample(20)] * 500)]
        norms = set()
        for count in (1, 2, 5):
            with threads(count):
                norms |= hexes([gc.global_norm(tensors, reproducible=True)])
        assert norms == {self.oracle(tensors, 2).hex()}

    def test_complex_parts(self):
        tensor = sample(1000, "c8") * np.complex64(1 - 2j)
        assert gc.global_norm([tensor], reproducible=True) == self.oracle([tensor], 2)

    @pytest.mark.parametrize("bad", [np.inf, np.nan])
    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c16"])
    def test_infinity_and_nan(self, bad, dtype):
        tensor = np.array([1, bad, np.inf, 2], dtype)
        for own in ([tensor], [tensor[:2]], [np.ones(3), tensor[1:2]]):
            np.testing.assert_equal(gc.global_norm(own, reproducible=True), bad)

    @pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
    @pytest.mark.parametrize("dtype", ["f2", bfloat16, "f4", "f8"])
    @pytest.mark.usefixtures("isa")
    def test_infinity_and_nan_in_any_block(self, bad, dtype):
        for place in (0, 17, 2047, 2048, 4090, 4999):
            tensor = sample(5000).astype(dtype)
            tensor[place] = bad
            for p in (1, 2):
                np.testing.assert_equal(gc.global_norm([tensor], ord=p, reproducible=True), abs(bad))

    def test_clips(self):
        lists = [[sample(100)], [sample(200)]]
        found = on_each(lists, lambda own, comm: gc.clip_by_global_norm(own, 1.0, comm=comm, reproducible=True))
        alone, norm = gc.clip_by_global_norm(whole(lists), 1.0, reproducible=True)
        assert hexes([found[0][1], found[1][1], norm]) == {norm.hex()}
        for (own, _), expected in zip(found, alone, strict=True):
            assert oracle.same_bits(own[0], expected)

    def test_errors(self):
        with pytest.raises(ValueError, match="ord: found 3; allowed: 1, 2 or inf under reproducible=True"):
            gc.global_norm([np.ones(2)], ord=3, reproducible=True)
        with pytest.raises(TypeError, match="reproducible: found str 'yes'"):
            gc.global_norm([np.ones(2)], reproducible="yes")
        for error in on_each(
            [[np.ones(2)]] * 2, lambda own, c: gc.global_norm(own, comm=c, replicated=2, reproducible=True)
        ):
            with pytest.raises(ValueError, match="replicated: found 2"):
                ranks.raise_again(error)
        copies = on_each(
            [[np.ones(4)]] * 2, lambda own, c: gc.global_norm(own, comm=c, replicated=True, reproducible=True)
        )
        assert copies == [2.0, 2.0]
