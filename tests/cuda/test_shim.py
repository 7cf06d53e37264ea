"""The runner of CUDA kernels on the CPU: barriers, blocks, and the mistakes it finds."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import cuda_shim
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not cuda_shim.has_compiler(), reason="no C++ compiler")

SOURCE = """
struct Params { long long w[480]; };

// A sum by halves for each block, and the sum of these by the last one to end.
template <class T> __global__ void sums(const __grid_constant__ Params p) {
    __shared__ double part[256];
    __shared__ bool is_last;
    const T* x = (const T*)p.w[0];
    double* sums = (double*)p.w[1];
    double sum = 0;
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < p.w[2]; i += gridDim.x * blockDim.x) sum += x[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned width = blockDim.x / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        sums[1 + blockIdx.x] = part[0];
        __threadfence();
        is_last = atomicAdd((unsigned*)p.w[3], 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && threadIdx.x == 0) {
        sums[0] = 0;
        for (unsigned i = 0; i < gridDim.x; i++) sums[0] += sums[1 + i];
    }
}

// Each warp turns its numbers around.
__global__ void turned(const __grid_constant__ Params p) {
    __shared__ long long part[256];
    part[threadIdx.x] = ((long long*)p.w[0])[threadIdx.x];
    __syncwarp();
    ((long long*)p.w[0])[threadIdx.x] = part[threadIdx.x / 32 * 32 + 31 - threadIdx.x % 32];
}

// The halves of a warp vote, the second one more often. The last thread of each warp has left by then.
__global__ void voting(const __grid_constant__ Params p) {
    if (threadIdx.x % 32 == 31) return;
    const bool second = threadIdx.x % 32 >= 16;
    const unsigned mask = second ? 0x7fff0000u : 0x0000ffffu;
    long long votes = 0;
    for (unsigned k = 0; k < (second ? 3 : 2); k++) {
        votes = votes << 32 | __ballot_sync(mask, (threadIdx.x >> k & 1) != 0);
    }
    ((long long*)p.w[0])[threadIdx.x] = votes;
}

// Each half of a warp turns its numbers around, twice. The last thread of each warp has left by then.
__global__ void shuffled(const __grid_constant__ Params p) {
    if (threadIdx.x % 32 == 31) return;
    const unsigned mask = threadIdx.x % 32 >= 16 ? 0x7fff0000u : 0x0000ffffu;
    double own = threadIdx.x;
    for (int k = 0; k < 2; k++) own = 100 * own + __shfl_xor_sync(mask, own, 15);
    ((double*)p.w[0])[threadIdx.x] = own;
}

__global__ void absent(const __grid_constant__ Params p) {
    if (threadIdx.x != 5) __ballot_sync(0xffffffffu, true);
    __syncthreads();
}

__global__ void racing(const __grid_constant__ Params p) {
    __shared__ long long part[256];
    part[threadIdx.x] = threadIdx.x;
    ((long long*)p.w[0])[threadIdx.x] = part[threadIdx.x ^ 1];
}

__global__ void forked(const __grid_constant__ Params p) {
    if (threadIdx.x < 5) __syncthreads();
}

__global__ void parted(const __grid_constant__ Params p) {
    if (threadIdx.x % 2) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}

__global__ void torn(const __grid_constant__ Params p) {
    if (threadIdx.x % 2) {
        __syncwarp();
    } else {
        __syncthreads();
    }
}

__global__ void beyond(const __grid_constant__ Params p) { ((char*)p.w[0])[p.w[1]] = 1; }
"""
KERNELS = [
    "sums<float>",
    "sums<double>",
    "turned",
    "voting",
    "shuffled",
    "absent",
    "racing",
    "forked",
    "parted",
    "torn",
    "beyond",
]


@functools.cache
def device(*, backward: bool = False, portable: bool = False) -> cuda_shim.ShimDevice:
    return cuda_shim.ShimDevice(SOURCE, KERNELS, backward=backward, portable=portable)


def params(*words: int) -> np.ndarray:
    made = np.zeros(cuda_shim.PARAMS, np.int64)
    made[: len(words)] = words
    return made


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("grid", [1, 3, 7])
@pytest.mark.parametrize("block", [1, 32, 256])
def test_barriers_hold(grid: int, block: int, backward: bool, portable: bool) -> None:
    used = device(backward=backward, portable=portable)
    for name, dtype in (("sums<float>", np.float32), ("sums<double>", np.float64)):
        x = np.arange(5000, dtype=dtype)
        data = used.upload(np.zeros(grid + 1, np.int64))
        count = used.upload(np.zeros(1, np.int64))
        words = params(x.ctypes.data, data.ptr, len(x), count.ptr)
        used.launch(used.function(name), grid, block, words)
        assert np.frombuffer(used.download(data, 8))[0] == x.sum()
        assert np.frombuffer(used.download(count, 4), np.uint32)[0] == grid
    assert used.launches[-1] == ("sums<double>", grid, block)


@pytest.mark.parametrize("backward", [False, True])
def test_barriers_of_warps_hold(backward: bool) -> None:
    used = device(backward=backward)
    data = used.upload(np.arange(256))
    used.launch(used.function("turned"), 1, 256, params(data.ptr))
    found = np.frombuffer(used.download(data, 2048), np.int64)
    assert (found == np.arange(256).reshape(-1, 32)[:, ::-1].ravel()).all()


@pytest.mark.parametrize("backward", [False, True])
def test_threads_vote_with_those_of_their_mask(backward: bool) -> None:
    used = device(backward=backward)
    data = used.upload(np.zeros(64, np.int64))
    used.launch(used.function("voting"), 1, 64, params(data.ptr))
    found = np.frombuffer(used.download(data, 512), np.int64).reshape(2, 32)
    bits = [0xAAAAAAAA, 0xCCCCCCCC, 0xF0F0F0F0]  # of the threads whose number has bit k
    first, second = ([vote & mask for vote in bits] for mask in (0x0000FFFF, 0x7FFF0000))
    assert (found[:, :16] == first[0] << 32 | first[1]).all()
    assert (found[:, 16:31] == second[1] << 32 | second[2]).all()
    assert (found[:, 31] == 0).all()


@pytest.mark.parametrize("backward", [False, True])
def test_threads_exchange_numbers_with_those_of_their_mask(backward: bool) -> None:
    used = device(backward=backward)
    data = used.upload(np.zeros(64, np.int64))
    used.launch(used.function("shuffled"), 1, 64, params(data.ptr))
    found = np.frombuffer(used.download(data, 512)).reshape(-1, 16)
    own = np.arange(64.0).reshape(-1, 16)
    for _ in range(2):
        own = 100 * own + own[:, ::-1]
    assert (found[::2] == own[::2]).all()
    assert (found[1::2, 1:15] == own[1::2, 1:15]).all()
    assert np.isnan(found[1::2, 0]).all()  # its partner has left
    assert (found[1::2, 15] == 0).all()


def test_the_order_of_threads_shows_races() -> None:
    found = []
    for backward in (False, True):
        used = device(backward=backward)
        data = used.alloc(2048)
        used.launch(used.function("racing"), 1, 256, params(data.ptr))
        found.append(used.download(data, 2048))
    assert found[0] != found[1]


@pytest.mark.parametrize(("name", "message"), [
    ("forked", "not all threads wait"), ("parted", "not all threads wait"), ("torn", "different barriers"),
    ("absent", "different barriers"),
])  # fmt: skip
def test_a_barrier_that_some_threads_miss_is_an_error(name: str, message: str) -> None:
    used = device()
    with pytest.raises(RuntimeError, match=f"{name}: block 0: .*{message}"):
        used.launch(used.function(name), 2, 64, params())
    test_barriers_hold(3, 256, backward=False, portable=False)  # and nothing is left of it


@pytest.mark.parametrize("block", [0, 257])
def test_blocks_of_no_size_are_refused(block: int) -> None:
    with pytest.raises(AssertionError):
        device().launch(device().function("turned"), 1, block, params())


def test_an_error_of_the_compiler_is_shown() -> None:
    with pytest.raises(RuntimeError, match="no_such_thing"):
        cuda_shim.build("struct Params {}; void wrong(Params) { no_such_thing(); }", ["wrong"])


PROGRAM = """
import sys
from pathlib import Path
import numpy as np
import test_shim as t
from cuda_shim import ShimDevice
made = {p: ShimDevice(t.SOURCE, t.KERNELS, sanitize=True, portable=p) for p in (False, True)}
t.device = lambda backward=False, portable=False: made[portable]
for portable in made:
    t.test_barriers_hold(3, 256, False, portable)
data = t.device().alloc(100)
t.device().launch(t.device().function("beyond"), 1, 1, t.params(data.ptr, int(sys.argv[1])))
print("fine")
"""


@pytest.mark.parametrize(("place", "is_inside"), [(99, True), (100, False)])
def test_the_sanitizers_see_kernels(place: int, is_inside: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(place)],
        cwd=Path(__file__).parent, env={**cuda_shim.sanitizer_environment(), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) == is_inside, done.stderr
    assert ("heap-buffer-overflow" in done.stderr) != is_inside, done.stderr
    assert ("fine" in done.stdout) == is_inside
