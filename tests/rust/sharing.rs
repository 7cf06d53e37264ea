//! Work shared by threads, in the smallest amounts that are shared, so that Miri can look for data races in time.
//! `tests/rust/parallel.rs` checks the results.

#![allow(clippy::expect_used, reason = "a test")]

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use _core::isa::Isa;
use _core::parallel::Crew;
use _core::parallel::THREADS;
use _core::parallel::elementwise::{AnyTask, Task, scale};
use _core::parallel::reduce::{CHUNK, Order, norm_of_view};
use _core::walk::{Axis, Cells, Layout, Memory, Slices, Target, View};

use crate::common::{alone, clip_columns, clip_rows, sized, slice_norms};

/// A list of copies, which are cheap: large ones that are cut, small ones, and two that lie interleaved in one memory.
#[test]
fn threads_write_next_to_each_other() {
    let _alone = alone();
    THREADS.set(4);
    let len = 2 * CHUNK + 1000;
    let from = (0..1000).map(f64::from).collect::<Vec<f64>>().repeat(len / 1000);
    let len = from.len();
    let [mut first, mut second] = [0; 2].map(|_| vec![0.0; len]);
    let mut small = vec![0.0; 600];
    let cells: Vec<AtomicU64> = (0..200).map(|_| AtomicU64::new(0)).collect();
    let layout = Layout::new([Axis { len: 100, stride: 2 }]);
    let strided = |start| {
        let layout = Cow::Borrowed(&layout);
        let target =
            Target::Strided { cells: Cells::Elements(&cells), swapped: false, start, layout, range: 0..100 };
        AnyTask::from(Task { source: Some(View::Dense(&from[1..101])), target })
    };
    let dense = |to| AnyTask::from(Task { source: Some(View::Dense(&from)), target: Target::Dense(to) });
    let mut tasks = vec![strided(0), dense(&mut first), strided(1), dense(&mut second)];
    tasks.extend(small.chunks_mut(100).map(|to| {
        AnyTask::from(Task { source: Some(View::Dense(&from[..100])), target: Target::Dense(to) })
    }));
    assert!(2 * 8 * 2 * len > 6 << 20, "too little to be shared");
    scale(Isa::current(), &Crew::new(), &mut tasks[..], None).expect("threads");
    drop(tasks);
    for i in (0..len).step_by(sized(1, 997)).chain([len - 1]) {
        assert_eq!([first[i], second[i]], [from[i]; 2]);
    }
    assert!(small.chunks(100).all(|part| *part == from[..100]));
    let pairs = cells.chunks(2).map(|pair| [&pair[0], &pair[1]].map(|x| f64::from_bits(x.load(Relaxed))));
    assert!(pairs.eq((1..101).map(|i| [f64::from(i); 2])));
}

/// Each code path to norms of slices, and to clipping by them, and once on one thread.
#[test]
fn slices_of_each_shape_are_read_and_written() {
    let isa = Isa::current();
    for (height, width) in [(9, 35), (35, 9), (3, 130), (2, 520)] {
        let data: Vec<f32> = (0..height * width).map(|i| (i % 100) as f32 - 50.0).collect();
        let along = |len: usize, stride: usize| Layout::new([Axis { len, stride: stride.cast_signed() }]);
        let slices = |kept, reduced| Slices::new(Memory::Elements(&data), 0, kept, reduced);
        let by_row = slices(along(height, width), along(width, 1));
        let by_column = slices(along(width, 1), along(height, width));
        for order in [Order::Two, Order::Max, Order::Power(3.0)] {
            let [rows, columns] =
                [&by_row, &by_column].map(|slices| slice_norms(isa, slices, order).expect("threads"));
            assert_eq!(rows[height - 1], norm_of_view(isa, &by_row.slice(height - 1), order));
            let alone = norm_of_view(isa, &by_column.slice(width - 1), order).to_f64();
            assert!((columns[width - 1].to_f64() - alone).abs() <= 1e-13 * alone);
        }
        let (mut own, mut copy) = (data.clone(), vec![0.0; data.len()]);
        clip_rows(isa, None, &mut own, width, 100.0).expect("threads");
        clip_rows(isa, Some(&by_row), &mut copy, width, 100.0).expect("threads");
        assert_eq!(own, copy);
        if width >= 128 {
            let (mut own, mut copy) = (data.clone(), vec![0.0; data.len()]);
            clip_columns(isa, None, &mut own, [height, width], 60.0).expect("threads");
            clip_columns(isa, Some(&data), &mut copy, [height, width], 60.0).expect("threads");
            assert_eq!(own, copy);
        }
    }
}
