//! Elementwise work on one array, and the scaling of many by one factor.

use std::borrow::BorrowMut;
use std::mem;

use super::crew::WAKE_MIN_BYTES;
use super::reduce::{self, Order, norm_of_view};
use super::{Crew, job_bytes, share_out, work_of};
use crate::element::{Ordered, Real, for_each_real};
use crate::error::Result;
use crate::isa::{Isa, StreamGuard};
use crate::kernel::map::Map;
use crate::kernel::scale::Scale;
use crate::kernel::sum::BLOCK;
use crate::scaled::{Factor, Scaled};
use crate::walk::{self, NON_TEMPORAL_MIN_BYTES, Store, Target, Uniform, Untouched, View, Work};

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
    /// What the output is made from. In place, of a dense array alone.
    fn input(&self) -> View<'_, T> {
        match (&self.source, &self.target) {
            (Some(view), _) => view.clone(),
            (None, Target::Dense(data)) => View::Dense(data),
            (None, Target::Strided { .. }) => View::Dense(&[]),
        }
    }

    fn bytes(&self) -> usize {
        self.target.len() * size_of::<T>() * 2
    }

    fn parts(&mut self, len: usize) -> impl DoubleEndedIterator<Item = Part<'_, T>> {
        let source = self.source.as_ref();
        self.target.parts(len).map(move |(at, target)| Part { source, target, at })
    }

    pub(super) fn run(&mut self, isa: Isa, work: &impl Work<T>, store: Store<'_>) {
        walk::apply_elementwise(isa, work, self.source.as_ref(), &mut self.target, 0, store);
    }
}

impl<T: Real> Task<'_, T> {
    /// Scales one array by a factor, on the calling thread; without one, copies it unless it is in place.
    #[inline(always)] // the task is a struct that is moved where this is a call
    pub fn scale(&mut self, isa: Isa, factor: Option<Factor>, store: Store<'_>) {
        match (&self.source, &mut self.target, factor) {
            // For few elements, cutting them into blocks would take as long as the work itself.
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
        walk::apply_elementwise(isa, work, self.source, &mut self.target, self.at, store);
    }
}

/// Does `work` for one array.
///
/// # Errors
/// A bad setting of the threads.
pub fn apply_elementwise<T: Ordered>(isa: Isa, work: &impl Work<T>, task: &mut Task<'_, T>) -> Result<()> {
    let streams = is_streamed(task.bytes() / 2);
    apply_to_one(isa, work, task, streams)
}

/// Does `work` for one array of a list, which is written past the caches if it `streams`.
///
/// # Errors
/// A bad setting of the threads.
pub fn apply_to_one<T: Ordered>(
    isa: Isa,
    work: &impl Work<T>,
    task: &mut Task<'_, T>,
    streams: bool,
) -> Result<()> {
    let bytes = task.bytes();
    if Crew::is_shared(bytes)? {
        let len = part_len::<T>(bytes);
        share_out(bytes, task.parts(len), |mut part| with_store(streams, |store| part.run(isa, work, store)))
    } else {
        with_store(streams, |store| task.run(isa, work, store));
        Ok(())
    }
}

/// Elements of a part of work that moves `bytes` in all: whole blocks.
fn part_len<T>(bytes: usize) -> usize {
    (job_bytes(bytes) / (2 * size_of::<T>())).next_multiple_of(BLOCK)
}

/// Whether outputs of `bytes` in all are written past the caches.
#[must_use]
pub fn is_streamed(bytes: usize) -> bool {
    bytes >= NON_TEMPORAL_MIN_BYTES
}

/// Calls `work` with the way to write, and fences what it streamed.
pub(super) fn with_store(streams: bool, work: impl FnOnce(Store<'_>)) {
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
            pub(super) fn run(&mut self, isa: Isa, factor: Option<Factor>, store: Store<'_>) {
                match (self, factor) {
                    $((Self::$name(task), Some(factor)) => task.run(isa, &Uniform(Scale(factor)), store),)*
                    $((Self::$name(task), None) => task.run(isa, &Untouched, store),)*
                }
            }
            /// Scales the array by a factor, on all threads if it is long; past the caches if it `streams`.
            ///
            /// # Errors
            /// A bad setting of the threads.
            pub fn scale(&mut self, isa: Isa, factor: Option<Factor>, streams: bool) -> Result<()> {
                match (self, factor) {
                    $((Self::$name(task), Some(factor)) => apply_to_one(isa, &Uniform(Scale(factor)), task, streams),)*
                    $((Self::$name(Task { source: None, .. }), None) => Ok(()),)*
                    $((Self::$name(task), None) => apply_to_one(isa, &Untouched, task, streams),)*
                }
            }
            /// The norm of the input, which is dense if it is also the output.
            pub(super) fn norm(&self, isa: Isa, crew: &Crew, order: Order) -> Result<Scaled> {
                match self { $(Self::$name(task) => reduce::norm(isa, crew, &[task.input().into()], order),)* }
            }
            /// The same on the calling thread.
            pub(super) fn norm_alone(&self, isa: Isa, order: Order) -> Scaled {
                match self { $(Self::$name(task) => norm_of_view(isa, &task.input(), order),)* }
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

/// Arrays to be scaled with their outputs. Each is made a task when its turn comes.
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
    /// The bytes of all, including those in place if `in_place`.
    fn bytes(&self, in_place: bool) -> usize;
    /// Takes those from number `at` on.
    #[must_use]
    fn split_off(&mut self, at: usize) -> Self;
    /// Takes the last one.
    fn pop(&mut self) -> Option<Self::One>;
    /// Scales all by one factor, one after the other; without a factor, copies those that are not in place.
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

/// Scales all arrays by one factor; without a factor, copies those that are not in place.
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
    // From the end on, since tasks are taken from there.
    let mut runs = Vec::new();
    while let Some(last) = tasks.len().checked_sub(1) {
        runs.try_reserve(1)?;
        if tasks.bytes_of(last) > share {
            runs.extend(tasks.pop().map(Run::Large));
        } else {
            // Small neighbours, as many as make a job.
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
    // Backwards: the norm has read the last elements last, and caches still hold them. If workers have helped, the caller and
    // the workers have read from both ends until they met: each goes back from there, through what its own cache holds.
    let met = crew.own_jobs(jobs.len());
    jobs.rotate_left(met);
    crew.each(work, jobs.into_iter().rev(), run)
}

/// Neighbours in a list.
enum Run<T, One> {
    /// Small ones, for one thread.
    Small(T),
    /// A large one, to be cut.
    Large(One),
}

/// Work for one thread at a time.
enum Job<'a, T> {
    /// Small tasks, one after the other.
    Tasks(&'a mut T),
    /// A part of a large one.
    Part(AnyPart<'a>),
}
