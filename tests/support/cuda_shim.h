// Runs CUDA kernels of a simple kind on the CPU: a fiber for each thread, one block after the other.
//
// They may use threadIdx.x, blockIdx.x, blockDim.x, gridDim.x, __shared__, __syncthreads(), __syncwarp(), __ballot_sync(),
// __shfl_xor_sync(), __popc(), __ffs(), atomicAdd and __threadfence(). A barrier that not all threads reach is an error here, as
// it is on a GPU where it may go unnoticed. Threads and blocks run in order, or in the opposite one: what differs then has a race.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#if defined(__x86_64__) && !defined(SHIM_PORTABLE)
#define SHIM_X86 1
#else
#define SHIM_X86 0
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
dim3 threadIdx, blockIdx, blockDim, gridDim;

template <class To, class From> inline To shim_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}
inline unsigned __float_as_uint(float x) { return shim_bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return shim_bits<float>(x); }
inline long long __double_as_longlong(double x) { return shim_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return shim_bits<double>(x); }

inline unsigned atomicAdd(unsigned* at, unsigned more) {
    unsigned before = *at;
    *at = before + more;
    return before;
}
inline void __threadfence() {}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
#define __isGlobal(address) true
#define __builtin_assume(condition)

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void* saved, const void** bottom, size_t* size);
#endif

namespace shim {

constexpr unsigned WARP = 32;
constexpr unsigned MOST_THREADS = 1024;
constexpr size_t STACK = 256 * 1024;
// Bytes by which the ends of two stacks are staggered: an odd number of cache lines. Ends at multiples of a page would compete for
// the same lines of the cache.
constexpr size_t STAGGER = 11 * 64;

// a place to go on from
struct Context {
#if SHIM_X86
    void* top;
#else
    ucontext_t context;
#endif
    void* fake;  // of the sanitizer
    const void* bottom;
    size_t size;
};

// Where a thread is.
enum State { RUNS, AT_WARP, AT_BLOCK, DONE };

struct Fiber {
    Context context;
    char* stack;
    State state;
    int line;
    unsigned mask;  // of the threads of the warp that wait together
    unsigned distance;  // of those that exchange numbers, or 0
    unsigned long long given;  // to other threads of the warp
};

Context scheduler;
Fiber fibers[MOST_THREADS];
Fiber* current;
void (*body)(const void*);
const void* argument;
bool backward;
char message[200];

#if SHIM_X86
// Saves what a function must keep and the stack, and takes the other one up. Floating-point modes are never changed.
extern "C" void shim_swap(void** from, void* to);
asm(R"(
.text
.local shim_swap
.type shim_swap, @function
shim_swap:
    .cfi_startproc
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .cfi_endproc
.size shim_swap, . - shim_swap
)");
#endif

// Leaves `from` for `to`; comes back when somebody switches to `from`.
__attribute__((noinline)) void change(Context& from, Context& to, bool is_last) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(is_last ? nullptr : &from.fake, to.bottom, to.size);
#endif
#if SHIM_X86
    shim_swap(&from.top, to.top);
#else
    swapcontext(&from.context, &to.context);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from.fake, nullptr, nullptr);
#endif
    (void)is_last;
}

void start() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler.bottom, &scheduler.size);
#endif
    body(argument);
    current->state = DONE;
    change(current->context, scheduler, true);
    abort();
}

void prepare(Fiber& fiber) {
    if (!fiber.stack) fiber.stack = (char*)aligned_alloc(64, STACK + 64 * STAGGER) + (&fiber - fibers) % 64 * STAGGER;
    fiber.state = RUNS;
    fiber.context.bottom = fiber.stack;
    fiber.context.size = STACK;
#if SHIM_X86
    // Six registers, the function to return to, and its own return address, which is never used: as after a call,
    // the stack is 8 less than a multiple of 16.
    void** top = (void**)(fiber.stack + STACK) - 8;
    memset(top, 0, 8 * sizeof(void*));
    top[6] = (void*)start;
    fiber.context.top = top;
#else
    getcontext(&fiber.context.context);
    fiber.context.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.context.uc_stack.ss_size = STACK;
    fiber.context.context.uc_link = nullptr;
    makecontext(&fiber.context.context, start, 0);
#endif
}

void wait(State state, int line, unsigned mask = 0xffffffff, unsigned distance = 0) {
    current->state = state;
    current->distance = distance;
    current->line = line;
    current->mask = mask;
    change(current->context, scheduler, false);
}

// Exchanges numbers among the threads of `mask` that have not left: each gives one, and `take(warp)` reads those of the others.
// Then all wait once more, so that none gives another number before the others have read this one.
template <class Take>
void exchange(unsigned mask, unsigned long long given, int line, const Take& take, unsigned distance = 0) {
    current->given = given;
    wait(AT_WARP, line, mask, distance);
    take(fibers + threadIdx.x / WARP * WARP);
    wait(AT_WARP, line, mask);
}

unsigned ballot(unsigned mask, bool vote, int line) {
    unsigned votes = 0;
    exchange(mask, vote, line, [&](const Fiber* warp) {
        for (unsigned i = 0; i < WARP; i++) {
            if (mask >> i & 1 && warp[i].state != DONE) votes |= unsigned(warp[i].given) << i;
        }
    });
    return votes;
}

// On a GPU, what a thread gets from one that has left, or is not in the mask, is undefined. Here it gets a NaN.
template <class X> X shuffle_xor(unsigned mask, X own, unsigned distance, int line) {
    static_assert(sizeof(X) == 8);
    unsigned long long found = ~0ull;
    const unsigned other = threadIdx.x % WARP ^ distance;
    exchange(mask, shim_bits<unsigned long long>(own), line, [&](const Fiber* warp) {
        if (mask >> other & 1 && warp[other].state != DONE) found = warp[other].given;
    }, distance);
    return shim_bits<X>(found);
}

__forceinline__ unsigned place(unsigned i, unsigned count) { return backward ? count - 1 - i : i; }

__forceinline__ bool is_same_barrier(const Fiber& a, const Fiber& b) {
    return a.line == b.line && a.mask == b.mask && a.distance == b.distance;
}

// Returns whether each barrier has all threads of its mask that have not left, and no others. If not, `message` tells the error.
bool check_barriers(unsigned first, unsigned count, unsigned alive, unsigned waiting) {
    for (unsigned unchecked = waiting; unchecked;) {
        const Fiber& own = fibers[first + __builtin_ctz(unchecked)];
        unsigned together = 0;
        for (unsigned i = 0; i < count; i++) together |= unsigned(is_same_barrier(fibers[first + i], own)) << i & waiting;
        if (own.mask & alive & ~together) {
            snprintf(message, sizeof(message), "block %u: threads of a warp wait at different barriers, line %d", blockIdx.x,
                     own.line);
            return false;
        }
        if (together & ~own.mask) {
            snprintf(message, sizeof(message), "block %u: a thread waits for others only, line %d", blockIdx.x, own.line);
            return false;
        }
        unchecked &= ~together;
    }
    return true;
}

// Runs the threads of a warp up to the end or to a barrier of the block.
bool run_warp(unsigned first, unsigned count) {
    unsigned running = 0;
    for (unsigned i = 0; i < count; i++) running |= unsigned(fibers[first + i].state == RUNS) << i;
    for (;;) {
        unsigned alive = 0, waiting = 0;
        const Fiber* first_to_wait = nullptr;
        bool is_one_barrier = true;
        for (unsigned i = 0; i < count; i++) {
            const unsigned thread = place(i, count);
            Fiber& fiber = fibers[first + thread];
            if (running >> thread & 1) {
                fiber.state = RUNS;
                current = &fiber;
                threadIdx.x = first + thread;
                change(scheduler, fiber.context, false);
            }
            alive |= unsigned(fiber.state != DONE) << thread;
            if (fiber.state != AT_WARP) continue;
            waiting |= 1u << thread;
            if (!first_to_wait) first_to_wait = &fiber;
            is_one_barrier &= is_same_barrier(fiber, *first_to_wait);
        }
        if (!waiting) return true;
        const unsigned mask = first_to_wait->mask;
        const bool is_right = is_one_barrier && (mask & alive) == waiting;
        if (!is_right && !check_barriers(first, count, alive, waiting)) return false;
        // Those that wait together go on, as far as they get, before any others: so they see what the others have not written.
        running = mask & waiting;
    }
}

bool run_block(unsigned threads) {
    for (unsigned i = 0; i < threads; i++) prepare(fibers[i]);
    unsigned warps = (threads + WARP - 1) / WARP;
    for (;;) {
        for (unsigned i = 0; i < warps; i++) {
            unsigned first = place(i, warps) * WARP;
            if (!run_warp(first, threads - first < WARP ? threads - first : WARP)) return false;
        }
        unsigned waiting = 0;
        for (unsigned i = 0; i < threads; i++) {
            if (fibers[i].state != AT_BLOCK) continue;
            waiting += 1;
            if (fibers[i].line != fibers[0].line) waiting = threads + 1;
            if (waiting > threads) break;
        }
        if (waiting == 0) return true;
        if (waiting != threads) {
            snprintf(message, sizeof(message), "block %u: not all threads wait at the barrier in line %d", blockIdx.x,
                     fibers[0].line);
            return false;
        }
        for (unsigned i = 0; i < threads; i++) fibers[i].state = RUNS;
    }
}

// What went wrong, or null.
inline const char* launch(void (*kernel)(const void*), const void* params, unsigned grid, unsigned block) {
    if (grid == 0 || block == 0 || block > MOST_THREADS) return "no such grid";
    body = kernel;
    argument = params;
    gridDim.x = grid;
    blockDim.x = block;
    for (unsigned i = 0; i < grid; i++) {
        blockIdx.x = place(i, grid);
        if (!run_block(block)) return message;
    }
    return nullptr;
}

}  // namespace shim

// A line is told from others by its number in the whole source.
#define __syncthreads() shim::wait(shim::AT_BLOCK, __LINE__)
#define __syncwarp(...) shim::wait(shim::AT_WARP, __LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __ballot_sync(mask, vote) shim::ballot(mask, vote, __LINE__)
#define __shfl_xor_sync(mask, own, distance) shim::shuffle_xor(mask, own, distance, __LINE__)

#define SHIM_EXPORTED extern "C" __attribute__((visibility("default")))

#define SHIM_LAUNCHER(function, ...)                                                                           \
    SHIM_EXPORTED const char* function(const Params* params, unsigned grid, unsigned block, int backward) {    \
        shim::backward = backward;                                                                             \
        return shim::launch([](const void* p) { __VA_ARGS__(*(const Params*)p); }, params, grid, block);       \
    }
