//! Elementwise work on one array, and the scaling of many arrays by one factor.

use std::borrow::BorrowMut;
use std::mem;

use super::crew::WAKE_MIN_BYTES;
use super::reduce::{Order, norm_of_array, norm_of_view};
use super::{Crew, job_bytes, work_of};
use crate::element::{Ordered, Real, for_each_real};
use crate::error::Result;
use crate::isa::{Isa, StreamGuard};
use crate::kernel::map::Map;
use crate::kernel::scale::Scale;
use crate::kernel::sum::BLOCK;
use crate::scaled::{Factor, Scaled};
use crate::walk::{self, Store, Target, Uniform, View, Work};

/// An output and its input, which has the same positions.
pub struct Task<'a, T: Ordered> {
    /// The input. None: the output is the input, too.
    pub source: Option<View<'a, T>>,
    /// The output.
    pub target: Target<'a, T>,
}

impl<T: Ordered> Task<'_, T> {
    /// The input. If it is also the output, it has to be dense.
    pub(super) fn input(&self) -> View<'_, T> {
        match (&self.source, &self.target) {
            (Some(view), _) => view.clone(),
            (None, Target::Dense(data)) => View::Dense(data),
            (None, _) => View::Dense(&[]),
        }
    }

    /// The bytes that are read and written.
    pub fn bytes(&self) -> usize {
        self.target.len() * size_of::<T>() * 2
    }
}

/// The work of scaling by a factor. Without a factor it is a copy.
fn scaling(factor: Option<Factor>) -> Option<Uniform<Scale>> {
    factor.map(|factor| Uniform(Scale(factor)))
}

impl<T: Real> Task<'_, T> {
    /// Scales one array by a factor, on the calling thread. Without a factor, the array is copied unless it is in place.
    #[inline(always)] // a call would need the task, a large struct, in memory
    pub fn scale(&mut self, isa: Isa, factor: Option<Factor>, store: Store<'_>) {
        match (&self.source, &mut self.target, factor) {
            // Fast path: for few elements, cutting them into blocks would take as long as the work itself.
            (None, Target::Dense(data), Some(factor)) => Scale(factor).apply(isa, None, None, data),
            (Some(View::Dense(from)), Target::Dense(to), Some(factor)) if store.is_none() => {
                Scale(factor).apply(isa, None, Some(from), to);
            }
            (None, _, None) => {}
            (source, target, factor) => {
                walk::apply_elementwise(isa, &scaling(factor), source.as_ref(), target, 0, store);
            }
        }
    }
}

/// Does `work` for one array, on several threads if it is long.
pub fn apply_elementwise<T: Ordered>(isa: Isa, work: &impl Work<T>, task: &mut Task<'_, T>) -> Result<()> {
    let streams = is_streamed(task.bytes() / 2);
    apply_to_one(isa, work, task, streams)
}

/// Does `work` for one array of a list, on several threads if it is long. If the list `streams`, the stores are non-temporal.
pub fn apply_to_one<T: Ordered>(
    isa: Isa,
    work: &impl Work<T>,
    task: &mut Task<'_, T>,
    streams: bool,
) -> Result<()> {
    let bytes = task.bytes();
    let run = |at: usize, part: &mut Target<'_, T>| {
        walk::apply_elementwise(isa, work, task.source.as_ref(), part, at, streaming(streams).as_ref());
    };
    if Crew::is_shared(bytes)? {
        let parts = task.target.parts(part_len::<T>(bytes));
        Crew::new().each(bytes, parts, |(at, mut part)| run(at, &mut part))
    } else {
        run(0, &mut task.target);
        Ok(())
    }
}

/// The number of elements of a part of work that moves `bytes` in all: whole blocks.
fn part_len<T>(bytes: usize) -> usize {
    (job_bytes(bytes) / (2 * size_of::<T>())).next_multiple_of(BLOCK)
}

/// Bytes of the smallest outputs that non-temporal stores write: no cache would hold them until they are used again.
const NON_TEMPORAL_MIN_BYTES: usize = 32 << 20;

/// Whether outputs of `bytes` in all are written by non-temporal stores.
pub fn is_streamed(bytes: usize) -> bool {
    bytes >= NON_TEMPORAL_MIN_BYTES
}

/// The guard of non-temporal stores, if there are to be any.
pub(super) fn streaming(streams: bool) -> Option<StreamGuard> {
    streams.then(StreamGuard::begin)
}

macro_rules! any_task {
    ($($name:ident: $t:ty,)*) => {
        /// A task for one of the real dtypes.
        #[allow(missing_docs, reason = "the names say it")]
        pub enum AnyTask<'a> { $($name(Task<'a, $t>),)* }
        enum AnyPart<'a> { $($name(Option<&'a View<'a, $t>>, (usize, Target<'a, $t>)),)* }

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
            /// Scales the array by a factor, on the calling thread. Without a factor, it is copied unless it is in place.
            pub(super) fn run(&mut self, isa: Isa, factor: Option<Factor>, store: Store<'_>) {
                match self { $(Self::$name(task) => task.scale(isa, factor, store),)* }
            }
            /// Scales the array by a factor, on all threads if it is long, and by non-temporal stores if it `streams`. Without
            /// a factor, it is copied unless it is in place.
            pub fn scale(&mut self, isa: Isa, factor: Option<Factor>, streams: bool) -> Result<()> {
                match self {
                    _ if factor.is_none() && self.is_in_place() => Ok(()),
                    $(Self::$name(task) => apply_to_one(isa, &scaling(factor), task, streams),)*
                }
            }
            /// The norm of the input, which is dense if it is also the output.
            pub(super) fn norm(&self, isa: Isa, crew: &Crew, order: Order) -> Result<Scaled> {
                match self { $(Self::$name(task) => norm_of_array(isa, crew, &task.input(), order),)* }
            }
            /// `norm`, computed on the calling thread.
            pub(super) fn norm_alone(&self, isa: Isa, order: Order) -> Scaled {
                match self { $(Self::$name(task) => norm_of_view(isa, &task.input(), order),)* }
            }
            /// Cuts work that moves `bytes` in all: adds the parts of this array to the jobs.
            fn cut<'a, T>(&'a mut self, bytes: usize, jobs: &mut Vec<Job<'a, T>>) -> Result<()> {
                match self {
                    $(Self::$name(task) => {
                        let (source, len) = (task.source.as_ref(), part_len::<$t>(bytes));
                        jobs.try_reserve(task.target.len().div_ceil(len))?;
                        jobs.extend(task.target.parts(len).map(|part| Job::Part(AnyPart::$name(source, part))));
                    })*
                }
                Ok(())
            }
        }

        impl AnyPart<'_> {
            fn run(&mut self, isa: Isa, factor: Option<Factor>, store: Store<'_>) {
                match self {
                    $(Self::$name(source, (at, target)) => {
                        walk::apply_elementwise(isa, &scaling(factor), *source, target, *at, store);
                    })*
                }
            }
        }
    };
}
for_each_real!(any_task);

/// Arrays to be scaled, with their outputs. The task of an array is made when the array is scaled.
pub trait Tasks<'a>: Send + Sized {
    /// The task of one array.
    type One: BorrowMut<AnyTask<'a>> + Send;
    /// The number of arrays.
    fn count(&self) -> usize;
    /// The bytes that are read and written for the array with this number, below [`Tasks::count`].
    fn bytes_of(&self, at: usize) -> usize;
    /// The bytes that are read and written for all arrays. Arrays in place count only if `in_place`.
    fn bytes(&self, in_place: bool) -> usize;
    /// Takes the arrays from number `at` on.
    fn split_off(&mut self, at: usize) -> Self;
    /// Takes the last array.
    fn pop(&mut self) -> Option<Self::One>;
    /// Scales all arrays by one factor, one after the other. Without a factor, arrays that are not in place are copied.
    fn run(&mut self, isa: Isa, factor: Option<Factor>, store: Store<'_>);
}

impl<'a, 'b> Tasks<'a> for &'b mut [AnyTask<'a>] {
    type One = &'b mut AnyTask<'a>;

    fn count(&self) -> usize {
        self.len()
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
        self.iter_mut().for_each(|task| task.run(isa, factor, store));
    }
}

/// Neighbouring arrays of a list.
pub(super) enum Run<T, One> {
    /// Short arrays, for one thread.
    Short(T),
    /// One long array.
    Long(One),
}

/// Cuts a list, from its end on, into arrays that move more than `longest` bytes, and into runs of shorter neighbours. A run
/// moves at most about `share` bytes.
pub(super) fn runs<'a, T: Tasks<'a>>(
    mut tasks: T,
    share: usize,
    longest: usize,
) -> Result<Vec<Run<T, T::One>>> {
    let mut runs = Vec::new();
    while let Some(last) = tasks.count().checked_sub(1) {
        runs.try_reserve(1)?;
        if tasks.bytes_of(last) > longest {
            runs.extend(tasks.pop().map(Run::Long));
        } else {
            let mut sum = 0;
            let short = (0..=last).rev().take_while(|at| {
                sum += work_of(tasks.bytes_of(*at), 2);
                sum <= share
            });
            let first = tasks.count() - short.count().max(1);
            runs.push(Run::Short(tasks.split_off(first)));
        }
    }
    Ok(runs)
}

/// Scales all arrays by one factor. Without a factor, arrays that are not in place are copied.
pub fn scale<'a, T: Tasks<'a>>(isa: Isa, crew: &Crew, mut tasks: T, factor: Option<Factor>) -> Result<()> {
    let bytes = tasks.bytes(factor.is_some());
    let work = work_of(bytes, tasks.count());
    if bytes < WAKE_MIN_BYTES && !Crew::is_shared(work)? {
        tasks.run(isa, factor, None);
        return Ok(());
    }
    let streams = is_streamed(tasks.bytes(false) / 2);
    let share = job_bytes(work);
    let mut runs = runs(tasks, share, share)?;
    let mut jobs = Vec::new();
    for run in runs.iter_mut().rev() {
        match run {
            Run::Short(tasks) => {
                jobs.try_reserve(1)?;
                jobs.push(Job::Tasks(tasks));
            }
            Run::Long(task) => {
                let task: &mut AnyTask<'a> = task.borrow_mut();
                if factor.is_some() || !task.is_in_place() {
                    task.cut(work, &mut jobs)?;
                }
            }
        }
    }
    let run = |job: Job<'_, T>| {
        let guard = streaming(streams);
        match job {
            Job::Tasks(tasks) => tasks.run(isa, factor, guard.as_ref()),
            Job::Part(mut part) => part.run(isa, factor, guard.as_ref()),
        }
    };
    // The jobs run backwards: the norm has read the last elements last, and caches still hold them. If workers have helped,
    // caller and workers have read from both ends until they met. Each goes back from there, through the data in its own cache.
    let met = crew.own_jobs(jobs.len());
    jobs.rotate_left(met);
    crew.each(work, jobs.into_iter().rev(), run)
}

/// Work for one thread at a time.
enum Job<'a, T> {
    /// Short arrays, one after the other.
    Tasks(&'a mut T),
    /// A part of a long array.
    Part(AnyPart<'a>),
}
