//! The allocations of a call. On one thread there are none, whatever the size and the number of arrays, except that norms of
//! slices allocate their results, and norms of columns the lists of their pieces and runs. On several threads there are a few
//! lists: their number does not grow with the arrays, and their length grows with the parts into which the work is cut.
//!
//! Allocations are counted, so the result is the same at every run.

use std::alloc::{GlobalAlloc, Layout as Block, System};
use std::borrow::Cow;
use std::cell::Cell;
use std::hint::black_box;

use _core::element::{Bf16, Element, F16, Ordered, Real};
use _core::isa::Isa;
use _core::kernel::clip::Clip;
use _core::kernel::scale::Scale;
use _core::parallel::Crew;
use _core::parallel::THREADS;
use _core::parallel::elementwise::{AnyTask, Task, apply_elementwise, scale};
use _core::parallel::reduce::{AnyView, CHUNK, Order, norm_of_view};
use _core::scaled::Factor;
use _core::walk::{Axis, Layout, Memory, Slices, Target, Uniform, View};

use crate::common::{alone, clip_rows, dense, norm, slice_norms};

/// The system's allocator, with a count for each thread, so that other tests do not disturb it.
struct Counting;

#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Cost {
    calls: usize,
    bytes: usize,
}

thread_local! {
    static COST: Cell<Cost> = const { Cell::new(Cost { calls: 0, bytes: 0 }) };
}

#[expect(unsafe_code, reason = "an allocator")]
// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        let Cost { calls, bytes } = COST.get();
        COST.set(Cost { calls: calls + 1, bytes: bytes + block.size() });
        // SAFETY: the caller's promise.
        unsafe { System.alloc(block) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, block: Block) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, block) }
    }
    // The defaults of `realloc` and `alloc_zeroed` call these.
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The allocations of `work` on the calling thread.
fn cost<R>(work: impl FnOnce() -> R) -> Cost {
    let before = COST.get();
    let result = black_box(work());
    let after = COST.get();
    drop(result);
    Cost { calls: after.calls - before.calls, bytes: after.bytes - before.bytes }
}

const FREE: Cost = Cost { calls: 0, bytes: 0 };

/// Sizes from a few elements to more than threads share (6 MiB).
const SIZES: [usize; 4] = [0, 10, 100_003, 3_000_017];
const ORDERS: [Order; 4] = [Order::One, Order::Two, Order::Max, Order::Power(3.7)];

fn with_threads(threads: usize, work: impl FnOnce()) {
    let _alone = alone();
    THREADS.set(threads);
    work();
}

#[test]
fn the_counter_counts() {
    assert_eq!(cost(|| ()), FREE);
    assert_eq!(cost(|| vec![0_u8; 1000]), Cost { calls: 1, bytes: 1000 });
    assert_eq!(cost(|| (Box::new(1_u64), Box::new(1_u64))), Cost { calls: 2, bytes: 16 });
}

fn every_norm<T: Element>(one: T) {
    for len in SIZES {
        let data = vec![one; 2 * len];
        let layout = Layout::new([Axis { len, stride: 2 }]);
        let dense = || View::Dense(&data[..len]);
        let strided = || View::new(Memory::Elements(&data), 0, Cow::Borrowed(&layout));
        for order in ORDERS {
            for view in [dense(), strided()] {
                assert_eq!(
                    cost(|| norm_of_view(Isa::current(), &view, order)),
                    FREE,
                    "{} {len}",
                    T::DTYPE.name()
                );
            }
            let views: [AnyView<'_>; 2] = [Box::new(dense()), Box::new(strided())];
            assert_eq!(
                cost(|| norm(Isa::current(), &Crew::new(), &views, order)),
                FREE,
                "{} {len}",
                T::DTYPE.name()
            );
        }
    }
}

#[test]
fn a_norm_on_one_thread_is_free() {
    with_threads(1, || {
        every_norm(1.0_f32);
        every_norm(1.0_f64);
        every_norm(F16::from_float(1.0));
        every_norm(Bf16::from_float(1.0));
        every_norm([1.0_f32, 1.0]);
        every_norm(1_i64);
    });
}

fn every_write<T: Real>() {
    let isa = Isa::current();
    let work = Uniform(Scale(Factor::new(0.5, 1.0)));
    let bounds = Uniform(Clip { lo: T::from_float(-0.5), hi: T::from_float(0.5) });
    for len in SIZES {
        let from = vec![T::from_float(1.0); len];
        let mut to = vec![T::ZERO; 2 * len];
        let into = &mut to[..len];
        let mut task = Task { source: Some(View::Dense(&from)), target: Target::Dense(into) };
        assert_eq!(cost(|| apply_elementwise(isa, &work, &mut task)), FREE, "{len}");
        assert_eq!(cost(|| apply_elementwise(isa, &bounds, &mut task)), FREE, "{len}");
        task.source = None;
        assert_eq!(cost(|| apply_elementwise(isa, &work, &mut task)), FREE, "{len}");
        assert_eq!(cost(|| apply_elementwise(isa, &bounds, &mut task)), FREE, "{len}");
        if len > 0 {
            assert_eq!(cost(|| clip_rows(isa, None, &mut to, len.min(CHUNK - 1), 0.5)), FREE, "{len}");
        }
    }
}

#[test]
fn writing_on_one_thread_is_free() {
    with_threads(1, || {
        every_write::<f32>();
        every_write::<f64>();
        every_write::<F16>();
        every_write::<Bf16>();
    });
}

/// The allocations of the two halves of `clip_by_global_norm`, for `count` arrays of `len` elements.
fn cost_of_list(count: usize, len: usize) -> [Cost; 2] {
    let isa = Isa::current();
    let from = vec![1.0_f32; count * len];
    let mut to = vec![0.0_f32; count * len];
    let views: Vec<AnyView<'_>> = from.chunks(len).map(dense).collect();
    let parts = from.chunks(len).zip(to.chunks_mut(len));
    let mut tasks: Vec<AnyTask<'_>> = parts
        .map(|(from, to)| Task { source: Some(View::Dense(from)), target: Target::Dense(to) }.into())
        .collect();
    let factor = Some(Factor::new(0.5, 1.0));
    // The first call may build the pool.
    assert!(
        norm(isa, &Crew::new(), &views, Order::Two).is_ok()
            && scale(isa, &Crew::new(), &mut tasks[..], factor).is_ok()
    );
    [
        cost(|| norm(isa, &Crew::new(), &views, Order::Two)),
        cost(|| scale(isa, &Crew::new(), &mut tasks[..], factor)),
    ]
}

#[test]
fn a_list_on_one_thread_is_free() {
    with_threads(1, || {
        for (count, len) in [(1, 10), (10, 70_000), (10_000, 16), (10_000, 70)] {
            assert_eq!(cost_of_list(count, len), [FREE; 2], "{count} arrays of {len}");
        }
    });
}

/// Elements of the shortest part of an array of float32.
const PART: usize = 16 << 10;

/// Larger arrays are written backwards, for which they are cut into parts.
#[test]
fn a_large_list_on_one_thread_asks_for_its_parts() {
    with_threads(1, || {
        for (count, len) in [(10, 300_000_usize), (10_000, 300), (3, 1 << 20)] {
            let [norm, scaled] = cost_of_list(count, len);
            assert_eq!(norm, FREE, "{count} arrays of {len}");
            let parts = count * len.div_ceil(PART);
            assert!(scaled.calls <= 12 && scaled.bytes <= 320 * parts + 4096, "{count} of {len}: {scaled:?}");
        }
    });
}

#[test]
fn a_list_on_all_threads_asks_for_a_few_bytes_a_part() {
    with_threads(4, || {
        // 3,000 short arrays; 16 times as much, as more arrays and as longer ones.
        for (count, len) in [(3000, 1000_usize), (48_000, 1000), (3000, 16_000), (3, 1 << 20), (3, 16 << 20)]
        {
            let parts = count * len.div_ceil(PART);
            for Cost { calls, bytes } in cost_of_list(count, len) {
                // The lists of neighbours and of parts, which may grow a few times, and what the workers share.
                assert!(calls <= 32, "{count} arrays of {len}: {calls} calls");
                assert!(bytes <= 320 * parts + 4096, "{count} arrays of {len}: {bytes} bytes");
            }
        }
    });
}

#[test]
fn norms_of_slices_ask_for_the_norms_and_for_strips() {
    let isa = Isa::current();
    with_threads(1, || {
        for (rows, columns) in [(100, 3000), (3000, 100), (100, 30_000), (30_000, 100)] {
            let data = vec![1.0_f32; rows * columns];
            let along = |len: usize, stride: usize| Layout::new([Axis { len, stride: stride.cast_signed() }]);
            let slices = |kept, reduced| Slices::new(Memory::Elements(&data), 0, kept, reduced);
            let by_row = slices(along(rows, columns), along(columns, 1));
            let by_column = slices(along(columns, 1), along(rows, columns));
            assert_eq!(cost(|| slice_norms(isa, &by_row, Order::Two)), Cost { calls: 1, bytes: 16 * rows });
            let Cost { calls, bytes } = cost(|| slice_norms(isa, &by_column, Order::Two));
            // The norms, the lists of pieces and runs, and sums for each strip: of some hundred columns, and of rows that make a chunk.
            let strips = columns.div_ceil(256) + 2 * rows * columns / CHUNK;
            assert!(calls <= 2 + strips, "{rows} x {columns}: {calls} calls");
            assert!(
                bytes <= 40 * columns + size_of_val(&data[..]) / 256,
                "{rows} x {columns}: {bytes} bytes"
            );
        }
    });
}
