//! Writing: one piece of work on one array or on many.

use std::borrow::BorrowMut;
use std::mem;

use super::crew::WAKE_MIN_BYTES;
use super::reduce::{
    CHUNK, Order, Pass, SMALLEST_SUM, WIDE, add_columns, has_row_sums, norm_of_view, norm_of_view_with,
    row_sums, run_of_columns,
};
use super::{Crew, job_bytes, share_out, work_of};
use crate::element::{Ordered, Real, for_each_real};
use crate::error::{Result, vec_with_room};
use crate::isa::{Isa, LINE, StreamGuard};
use crate::kernel::map::Map;
use crate::kernel::rows::{self, ScaleColumns, ScaleColumnsInto, ScaleRows, ScaleRowsInto, ScaledRows};
use crate::kernel::scale::{Scale, ScaleEach, ScaleEachInto};
use crate::kernel::sum::{BLOCK, MANY, ROWS_AT_ONCE, Total};
use crate::scaled::Factor;
use crate::walk::{self, FAR, Slices, Store, Target, Uniform, Untouched, View, Work};

/// An output and what it is made from: an input with the same positions, or what the output holds already.
#[derive(Debug)]
pub struct Task<'a, T: Ordered> {
    /// None: in place.
    pub source: Option<View<'a, T>>,
    /// Written.
    pub target: Target<'a, T>,
}

/// A part of a task, from position `at` on.
struct Part<'a, T: Ordered> {
    source: Option<&'a View<'a, T>>,
    target: Target<'a, T>,
    at: usize,
}

impl<T: Ordered> Task<'_, T> {
    fn bytes(&self) -> usize {
        self.target.len() * size_of::<T>() * 2
    }

    fn parts(&mut self, len: usize) -> impl DoubleEndedIterator<Item = Part<'_, T>> {
        let source = self.source.as_ref();
        self.target.parts(len).map(move |(at, target)| Part { source, target, at })
    }

    fn run(&mut self, isa: Isa, work: &impl Work<T>, store: Store<'_>) {
        walk::perform(isa, work, self.source.as_ref(), &mut self.target, 0, store);
    }
}

impl<T: Real> Task<'_, T> {
    /// Scales one array by a factor, on the calling thread; without one, copies it unless it is in place.
    #[inline]
    pub fn scale(&mut self, isa: Isa, factor: Option<Factor>, store: Store<'_>) {
        match (&self.source, &mut self.target, factor) {
            // Of the work on a few elements, the way over blocks would take as much as the work itself.
            (None, Target::Dense(data), Some(factor)) => Scale(factor).apply(isa, data),
            (Some(View::Dense(from)), Target::Dense(to), Some(factor)) if matches!(store, Store::Cached) => {
                Scale(factor).apply_into(isa, from, to);
            }
            (None, _, None) => {}
            (_, _, Some(factor)) => self.run(isa, &Uniform(Scale(factor)), store),
            (Some(_), _, None) => self.run(isa, &Untouched, store),
        }
    }
}

impl<T: Ordered> Part<'_, T> {
    fn run(&mut self, isa: Isa, work: &impl Work<T>, store: Store<'_>) {
        walk::perform(isa, work, self.source, &mut self.target, self.at, store);
    }
}

/// Does `work` for one array.
///
/// # Errors
/// A bad setting of the threads.
pub fn perform<T: Ordered>(isa: Isa, work: &impl Work<T>, task: &mut Task<'_, T>) -> Result<()> {
    let streams = is_streamed(task.bytes() / 2);
    let bytes = task.bytes();
    if Crew::is_shared(bytes)? {
        let len = part_len::<T>(bytes);
        share_out(bytes, task.parts(len), |mut part| with_store(streams, |store| part.run(isa, work, store)))
    } else {
        with_store(streams, |store| task.run(isa, work, store));
        Ok(())
    }
}

/// Elements of a part of work that moves so many bytes in all: whole blocks.
fn part_len<T>(bytes: usize) -> usize {
    (job_bytes(bytes) / (2 * size_of::<T>())).next_multiple_of(BLOCK)
}

/// Whether outputs of so many bytes in all are written past the caches.
fn is_streamed(bytes: usize) -> bool {
    bytes >= FAR
}

/// Calls `work` with the way to write, and fences what it streamed.
fn with_store(streams: bool, work: impl FnOnce(Store<'_>)) {
    if streams { work(Store::Streamed(&StreamGuard::begin())) } else { work(Store::Cached) }
}

macro_rules! any_task {
    ($($name:ident: $t:ty,)*) => {
        /// A task for one of the real dtypes.
        #[derive(Debug)]
        #[allow(missing_docs, reason = "the names say it")]
        pub enum AnyTask<'a> { $($name(Task<'a, $t>),)* }
        enum AnyPart<'a> { $($name(Part<'a, $t>),)* }

        $(impl<'a> From<Task<'a, $t>> for AnyTask<'a> {
            fn from(task: Task<'a, $t>) -> Self { Self::$name(task) }
        })*

        impl AnyTask<'_> {
            fn is_in_place(&self) -> bool {
                match self { $(Self::$name(task) => task.source.is_none(),)* }
            }
            fn bytes(&self) -> usize {
                match self { $(Self::$name(task) => task.bytes(),)* }
            }
            fn run(&mut self, isa: Isa, factor: Option<Factor>, store: Store<'_>) {
                match (self, factor) {
                    $((Self::$name(task), Some(factor)) => task.run(isa, &Uniform(Scale(factor)), store),)*
                    $((Self::$name(task), None) => task.run(isa, &Untouched, store),)*
                }
            }
            fn cut<'a, T>(&'a mut self, bytes: usize, jobs: &mut Vec<Job<'a, T>>) -> Result<()> {
                match self {
                    $(Self::$name(task) => {
                        let len = part_len::<$t>(bytes);
                        jobs.try_reserve(task.target.len().div_ceil(len))?;
                        jobs.extend(task.parts(len).map(|part| Job::Part(AnyPart::$name(part))));
                    })*
                }
                Ok(())
            }
        }

        impl AnyPart<'_> {
            fn run(&mut self, isa: Isa, factor: Option<Factor>, store: Store<'_>) {
                match (self, factor) {
                    $((Self::$name(part), Some(factor)) => part.run(isa, &Uniform(Scale(factor)), store),)*
                    $((Self::$name(part), None) => part.run(isa, &Untouched, store),)*
                }
            }
        }
    };
}
for_each_real!(any_task);

/// Arrays to be scaled with their outputs, each of which is made a task when it is its turn.
pub trait Tasks<'a>: Send + Sized {
    /// One of them.
    type One: BorrowMut<AnyTask<'a>> + Send;
    /// How many there are.
    fn len(&self) -> usize;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The bytes that number `at` of [`Tasks::len`] reads and writes.
    fn bytes_of(&self, at: usize) -> usize;
    /// The bytes of all, with those in place or without.
    fn bytes(&self, in_place: bool) -> usize;
    /// Takes those from number `at` on.
    #[must_use]
    fn split_off(&mut self, at: usize) -> Self;
    /// Takes the last one.
    fn pop(&mut self) -> Option<Self::One>;
    /// Scales all by one factor, one after the other; without one, copies those that are not in place.
    fn run(&mut self, isa: Isa, factor: Option<Factor>, store: Store<'_>);
}

impl<'a, 'b> Tasks<'a> for &'b mut [AnyTask<'a>] {
    type One = &'b mut AnyTask<'a>;

    fn len(&self) -> usize {
        <[_]>::len(self)
    }
    fn bytes_of(&self, at: usize) -> usize {
        self.get(at).map_or(0, AnyTask::bytes)
    }
    fn bytes(&self, in_place: bool) -> usize {
        self.iter().filter(|task| in_place || !task.is_in_place()).map(AnyTask::bytes).sum()
    }
    fn split_off(&mut self, at: usize) -> Self {
        let after;
        (*self, after) = mem::take(self).split_at_mut(at);
        after
    }
    fn pop(&mut self) -> Option<Self::One> {
        let (last, before) = mem::take(self).split_last_mut()?;
        *self = before;
        Some(last)
    }
    fn run(&mut self, isa: Isa, factor: Option<Factor>, store: Store<'_>) {
        for task in self.iter_mut().filter(|task| factor.is_some() || !task.is_in_place()) {
            task.run(isa, factor, store);
        }
    }
}

/// Scales all arrays by one factor; without one, copies those that are not in place.
///
/// # Errors
/// No memory for the list of parts, or a bad setting of the threads.
pub fn scale<'a, T: Tasks<'a>>(isa: Isa, crew: &Crew, mut tasks: T, factor: Option<Factor>) -> Result<()> {
    let bytes = tasks.bytes(factor.is_some());
    let work = work_of(bytes, tasks.len());
    let is_shared = Crew::is_shared(work)?;
    if !is_shared && bytes < WAKE_MIN_BYTES {
        tasks.run(isa, factor, Store::Cached);
        return Ok(());
    }
    let streams = is_streamed(tasks.bytes(false) / 2);
    let share = job_bytes(work);
    // From the end on, of which less is to be moved.
    let mut runs = Vec::new();
    while let Some(last) = tasks.len().checked_sub(1) {
        runs.try_reserve(1)?;
        if tasks.bytes_of(last) > share {
            runs.extend(tasks.pop().map(Run::Large));
        } else {
            // Neighbours that are small, as many as make a share.
            let mut sum = 0;
            let small = (0..=last).rev().take_while(|at| {
                sum += work_of(tasks.bytes_of(*at), 2);
                sum <= share
            });
            let count = small.count().max(1);
            runs.push(Run::Small(tasks.split_off(tasks.len() - count)));
        }
    }
    let mut jobs = Vec::new();
    for run in runs.iter_mut().rev() {
        match run {
            Run::Small(tasks) => {
                jobs.try_reserve(1)?;
                jobs.push(Job::Tasks(tasks));
            }
            Run::Large(task) => {
                let task: &mut AnyTask<'a> = task.borrow_mut();
                if factor.is_some() || !task.is_in_place() {
                    task.cut(work, &mut jobs)?;
                }
            }
        }
    }
    let run = |job: Job<'_, T>| {
        with_store(streams, |store| match job {
            Job::Tasks(tasks) => tasks.run(isa, factor, store),
            Job::Part(mut part) => part.run(isa, factor, store),
        });
    };
    // Backwards: the norm has read the last elements last, and caches still hold them. Where workers have helped, caller and
    // workers have read from both ends until they met: each goes back from there, through what its own cache holds.
    let met = crew.own_jobs(jobs.len());
    jobs.rotate_left(met);
    crew.each(work, jobs.into_iter().rev(), run)
}

/// Neighbours in a list.
enum Run<T, One> {
    /// Small ones, for one thread.
    Small(T),
    /// One to be cut.
    Large(One),
}

/// Work for one thread at a time.
enum Job<'a, T> {
    /// Small tasks, one after the other.
    Tasks(&'a mut T),
    /// A part of a large one.
    Part(AnyPart<'a>),
}

/// Clips each slice by its own norm where the output has the slices one after the other: a slice is scaled
/// while it is in the cache. `limit` makes a factor of a norm, or none for a slice that stays as it is.
///
/// # Errors
/// A bad setting of the threads.
pub fn clip_rows<T: Real>(
    isa: Isa,
    source: Option<&Slices<'_, T>>,
    output: &mut [T],
    len: usize,
    limit: f64,
) -> Result<()> {
    let bytes = size_of_val(output) * 2;
    let is_far = is_streamed(bytes / 2);
    // Elements of 16 bits have kernels of their own, which want more of them at once.
    let many = size_of::<T>() > 2 && has_row_sums::<T>(len, Pass::Square);
    let streams = many && is_far && len * size_of::<T>() >= LINE;
    // Short rows that are not streamed together are not streamed: a line of memory that two of them share is fetched,
    // and what is to be streamed waits for it.
    let streams_each = is_far && !many;
    let few = rows::at_once::<T>(len);
    let of_many = output.len() >= MANY;
    // Whole batches, so that none is short but the last.
    let share = (job_bytes(bytes / 2) / size_of::<T>() / len).next_multiple_of(few).max(few);
    let one = |at: usize, row: &mut [T], store: Store<'_>| {
        let slice = source.map(|source| source.slice(at));
        let norm = match &slice {
            Some(slice) => norm_of_view(isa, slice, Order::Two),
            None => norm_of_view(isa, &View::Dense(row), Order::Two),
        };
        let mut task = Task { source: slice, target: Target::Dense(row) };
        match norm.clip_to(limit) {
            Some(factor) => task.run(isa, &Uniform(Scale(factor)), store),
            None if task.source.is_some() => task.run(isa, &Untouched, store),
            None => {}
        }
    };
    // The same for at most a batch of rows.
    let some = |first: usize, rows: &mut [T], store: Store<'_>| {
        let count = rows.len() / len;
        let source = source.map(|source| source.dense(first..first + count));
        let (Some(from), true) = (source.unwrap_or(Some(&[])), many) else {
            return rows.chunks_mut(len).enumerate().for_each(|(i, row)| one(first + i, row, store));
        };
        let (mut sums, mut factors) = ([0.0; rows::AT_ONCE], [0.0; rows::AT_ONCE]);
        let data = if source.is_some() { from } else { &*rows };
        row_sums(isa, data, len, Pass::Square, of_many, &mut sums[..count]);
        plain_factors(isa, &sums[..count], limit, &mut factors[..count]);
        let mut done = 0;
        while done < count {
            // As far as all is plain; then one row that is not.
            let plain = factors[done..count].iter().take_while(|factor| **factor != 0.0).count();
            let (from, to) = (done * len, (done + plain) * len);
            let (data, factors) = (&mut rows[from..to], &factors[done..done + plain]);
            match source {
                Some(Some(source)) => {
                    isa.run(ScaleRowsInto { from: &source[from..to], to: data, len, factors });
                }
                _ => isa.run(ScaleRows { data, len, factors }),
            }
            done += plain;
            if done < count {
                one(first + done, &mut rows[done * len..(done + 1) * len], Store::Cached);
                done += 1;
            }
        }
    };
    let work = |(job, rows): (usize, &mut [T])| {
        let range = job * share..job * share + rows.len() / len;
        if let (true, Some(source)) = (streams, source.and_then(|source| source.dense(range))) {
            return stream_rows(isa, &StreamGuard::begin(), source, rows, len, limit);
        }
        with_store(streams_each, |store| {
            for (i, rows) in rows.chunks_mut(few * len).enumerate() {
                some(job * share + i * few, rows, store);
            }
        });
    };
    let jobs = output.chunks_mut(len * share).enumerate();
    share_out(bytes, jobs, work)
}

/// Rows, each clipped by its own norm and streamed to memory.
fn stream_rows<T: Real>(
    isa: Isa,
    guard: &StreamGuard,
    source: &[T],
    output: &mut [T],
    len: usize,
    limit: f64,
) {
    let mut unread = source;
    let mut read = |factors: &mut [Factor]| {
        let count = factors.len().min(unread.len() / len);
        let mut sums = [0.0; rows::AT_ONCE];
        row_sums(isa, unread, len, Pass::Square, true, &mut sums[..count]);
        let mut plain = [0.0; rows::AT_ONCE];
        plain_factors(isa, &sums[..count], limit, &mut plain[..count]);
        let (rows, rest) = unread.split_at(count * len);
        unread = rest;
        for (((row, sum), by), factor) in rows.chunks_exact(len).zip(sums).zip(plain).zip(factors) {
            let again = || norm_of_view_with(isa, &View::Dense(row), Order::Two, sum).clip_to(limit);
            let plain = Factor { by, then: 1.0 };
            *factor = if by == 0.0 { again().unwrap_or(Factor::ONE) } else { plain };
        }
    };
    let mut factors = [Factor::ONE; rows::AT_ONCE];
    let factors = &mut factors[..rows::streamed_at_once::<T>(len)];
    isa.stream(guard, output, ScaledRows::new(source, len, factors, &mut read));
}

/// Columns that are clipped at a time, and their parts of the rows of the output.
struct Strip<'a, T> {
    /// The first column, counted over all matrices.
    first: usize,
    rows: Vec<&'a mut [T]>,
}

/// Clips each column of dense matrices by its own norm: a strip of columns is scaled while the cache has it. The
/// output is the input too if there is no `source`.
///
/// # Errors
/// No memory for the list of strips, or a bad setting of the threads.
pub fn clip_columns<T: Real>(
    isa: Isa,
    source: Option<&[T]>,
    output: &mut [T],
    [len, inner]: [usize; 2],
    limit: f64,
) -> Result<()> {
    let width = columns_at_once::<T>(len).min(inner);
    let bytes = size_of_val(output) * 2;
    let streams = is_streamed(bytes / 2);
    // Parts of rows are too short for a CPU to see how it goes on. Where a cache holds all, to ask only takes time.
    let next = streams.then_some(ROWS_AT_ONCE * inner * size_of::<T>());
    let mut strips: Vec<Strip<'_, T>> = vec_with_room(output.len() / len / inner * inner.div_ceil(width))?;
    for (outer, matrix) in output.chunks_mut(len * inner).enumerate() {
        let before = strips.len();
        for first in (0..inner).step_by(width) {
            strips.push(Strip { first: outer * inner + first, rows: vec_with_room(len)? });
        }
        for row in matrix.chunks_mut(inner) {
            for (part, strip) in row.chunks_mut(width).zip(&mut strips[before..]) {
                strip.rows.push(part);
            }
        }
    }
    let work = |mut strip: Strip<'_, T>| {
        let columns = strip.rows.first().map_or(0, |row| row.len());
        let from = |row: usize| {
            let begin = (strip.first / inner * len + row) * inner + strip.first % inner;
            source.map(|source| &source[begin..begin + columns])
        };
        let mut totals = [Total::default(); WIDE];
        let row = |row: usize| from(row).unwrap_or(&*strip.rows[row]);
        add_columns(isa, len, row, next, Pass::Square, &mut totals[..columns]);
        let mut factors = [1.0; WIDE];
        let factors = &mut factors[..columns];
        let mut sums = [0.0; WIDE];
        sums.iter_mut().zip(&totals[..columns]).for_each(|(sum, total)| *sum = total.value());
        plain_factors(isa, &sums[..columns], limit, factors);
        let mut then = None;
        if factors.contains(&0.0) {
            // Read one by one, before anything is written.
            let then = &mut *then.insert([1.0; WIDE]);
            for (i, sum) in sums[..columns].iter().enumerate() {
                if factors[i] == 0.0 {
                    let mut column = [T::ZERO; LONGEST_COLUMN];
                    let column = &mut column[..len];
                    for (row, x) in column.iter_mut().enumerate() {
                        *x = from(row).unwrap_or(&*strip.rows[row])[i];
                    }
                    let norm = norm_of_view_with(isa, &View::Dense(column), Order::Two, *sum);
                    let factor = norm.clip_to(limit).unwrap_or(Factor::ONE);
                    (factors[i], then[i]) = (factor.by, factor.then);
                }
            }
        }
        if source.is_none() && factors.iter().all(|factor| *factor == 1.0) {
            return; // nothing is written
        }
        let guard = streams.then(StreamGuard::begin);
        for row in 0..len {
            let source = from(row);
            let to = &mut *strip.rows[row];
            match (source, then, &guard) {
                (None, None, _) => isa.run(ScaleColumns { data: to, factors }),
                (Some(from), None, None) => {
                    isa.run(ScaleColumnsInto { from, to, factors });
                }
                (Some(from), None, Some(guard)) => {
                    let mut made = [T::ZERO; STREAMED_COLUMNS];
                    let parts = from.chunks(STREAMED_COLUMNS).zip(factors.chunks(STREAMED_COLUMNS));
                    for (to, (from, factors)) in to.chunks_mut(STREAMED_COLUMNS).zip(parts) {
                        let made = &mut made[..from.len()];
                        isa.run(ScaleColumnsInto { from, to: made, factors });
                        isa.stream(guard, to, &*made);
                    }
                }
                (source, Some(then), _) => {
                    match source {
                        Some(from) => isa.run(ScaleEachInto { from, to, factors }),
                        None => isa.run(ScaleEach { data: to, factors }),
                    }
                    isa.run(ScaleEach { data: to, factors: &then[..columns] });
                }
            }
        }
    };
    let jobs = strips.into_iter();
    share_out(bytes, jobs, work)
}

/// Columns of `len` elements to clip at a time: half of what the cache of one core holds, wherever that is much.
fn columns_at_once<T>(len: usize) -> usize {
    ((512 << 10) / size_of::<T>() / len).min(WIDE)
}

/// Elements of a row to stream to memory at a time.
const STREAMED_COLUMNS: usize = 256;

/// The longest column for [`clip_columns`]: of longer ones a strip would be too narrow.
const LONGEST_COLUMN: usize = 1024;

/// Whether columns of matrices with so many rows and columns are for [`clip_columns`].
#[must_use]
pub fn is_column<T: Real>(columns: usize, [len, inner]: [usize; 2]) -> bool {
    let narrowest = 128;
    // Elements of 16 bits have kernels of their own, and longer columns are summed in more than one go.
    size_of::<T>() > 2
        && inner >= narrowest
        && (1..=LONGEST_COLUMN.min(run_of_columns(columns))).contains(&len)
        && columns_at_once::<T>(len) >= narrowest
}

/// See [`PlainFactors`](rows::PlainFactors).
fn plain_factors(isa: Isa, sums: &[f64], limit: f64, factors: &mut [f64]) {
    isa.run(rows::PlainFactors { sums, smallest: SMALLEST_SUM, limit, factors });
}

/// Whether slices of so many elements are for [`clip_rows`]: longer ones are work for all threads, one by
/// one.
#[must_use]
pub fn is_row(len: usize) -> bool {
    (1..CHUNK).contains(&len)
}
