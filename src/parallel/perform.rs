//! Writing: one piece of work on one array or on many.

use super::reduce::{CHUNK, Order, norm_of_view};
use super::{for_each, is_shared};
use crate::element::{Ordered, Real, for_each_real};
use crate::error::Result;
use crate::isa::Isa;
use crate::kernel::scale::Scale;
use crate::scaled::Factor;
use crate::walk::{self, Slices, Store, Target, Uniform, Untouched, View, Work};

/// Bytes a thread takes at a time.
const SHARE: usize = 512 << 10;

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

    fn parts(&mut self) -> impl Iterator<Item = Part<'_, T>> {
        let source = self.source.as_ref();
        self.target.parts(CHUNK).enumerate().map(move |(i, target)| Part { source, target, at: i * CHUNK })
    }

    fn run(&mut self, isa: Isa, work: &impl Work<T>, store: Store) {
        walk::perform(isa, work, self.source.as_ref(), &mut self.target, 0, store);
    }
}

impl<T: Ordered> Part<'_, T> {
    fn run(&mut self, isa: Isa, work: &impl Work<T>, store: Store) {
        walk::perform(isa, work, self.source, &mut self.target, self.at, store);
    }
}

/// Does `work` for one array.
///
/// # Errors
/// A bad setting of the threads.
pub fn perform<T: Ordered>(isa: Isa, work: &impl Work<T>, task: &mut Task<'_, T>) -> Result<()> {
    let store = store_for(task.bytes() / 2);
    if is_shared(task.bytes())? {
        for_each(task.parts(), |mut part| part.run(isa, work, store))
    } else {
        task.run(isa, work, store);
        Ok(())
    }
}

/// Bytes of output from which on no cache holds it until it is read: it is written past them.
const STREAMED_FROM: usize = 32 << 20;

/// How outputs of so many bytes in all are written.
fn store_for(bytes: usize) -> Store {
    if bytes >= STREAMED_FROM { Store::Streamed } else { Store::Cached }
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
            fn run(&mut self, isa: Isa, factor: Option<Factor>, store: Store) {
                match (self, factor) {
                    $((Self::$name(task), Some(factor)) => task.run(isa, &Uniform(Scale(factor)), store),)*
                    $((Self::$name(task), None) => task.run(isa, &Untouched, store),)*
                }
            }
            fn cut<'a>(&'a mut self, jobs: &mut Vec<Job<'a, '_>>) -> Result<()> {
                match self {
                    $(Self::$name(task) => {
                        jobs.try_reserve(task.target.len().div_ceil(CHUNK))?;
                        jobs.extend(task.parts().map(|part| Job::Part(AnyPart::$name(part))));
                    })*
                }
                Ok(())
            }
        }

        impl AnyPart<'_> {
            fn run(&mut self, isa: Isa, factor: Option<Factor>, store: Store) {
                match (self, factor) {
                    $((Self::$name(part), Some(factor)) => part.run(isa, &Uniform(Scale(factor)), store),)*
                    $((Self::$name(part), None) => part.run(isa, &Untouched, store),)*
                }
            }
        }
    };
}
for_each_real!(any_task);

/// Scales all arrays by one factor; without one, copies those that are not in place.
///
/// # Errors
/// No memory for the list of parts, or a bad setting of the threads.
pub fn scale(isa: Isa, tasks: &mut [AnyTask<'_>], factor: Option<Factor>) -> Result<()> {
    let to_do = |task: &AnyTask<'_>| factor.is_some() || !task.is_in_place();
    let bytes = tasks.iter().filter(|task| to_do(task)).map(AnyTask::bytes).sum();
    if bytes < BACKWARDS_FROM {
        for task in tasks.iter_mut().filter(|task| to_do(task)) {
            task.run(isa, factor, Store::Cached);
        }
        return Ok(());
    }
    let store = store_for(tasks.iter().filter(|task| !task.is_in_place()).map(|task| task.bytes() / 2).sum());
    let mut jobs = Vec::new();
    let mut rest = tasks;
    while let Some(first) = rest.first() {
        if first.bytes() > SHARE {
            let (large, after) = rest.split_at_mut(1);
            large[0].cut(&mut jobs)?;
            rest = after;
        } else {
            // Neighbours that are small, as many as make a share.
            let mut sum = 0;
            let count = rest
                .iter()
                .take_while(|task| {
                    sum += task.bytes();
                    sum <= SHARE
                })
                .count();
            let (small, after) = rest.split_at_mut(count);
            jobs.try_reserve(1)?;
            jobs.push(Job::Tasks(small));
            rest = after;
        }
    }
    let work = |job: Job<'_, '_>| match job {
        Job::Tasks(tasks) => {
            tasks.iter_mut().filter(|task| to_do(task)).for_each(|task| task.run(isa, factor, store))
        }
        Job::Part(mut part) => part.run(isa, factor, store),
    };
    // Backwards: the norm has read the last ones last, and caches still hold them.
    let jobs = jobs.into_iter().rev();
    if is_shared(bytes)? {
        for_each(jobs, work)
    } else {
        jobs.for_each(work);
        Ok(())
    }
}

/// Bytes below which caches hold all of it, and the order is of no importance.
const BACKWARDS_FROM: usize = 4 << 20;

/// Work for one thread at a time.
enum Job<'a, 'b> {
    /// Small tasks, one after the other.
    Tasks(&'a mut [AnyTask<'b>]),
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
    let share = (SHARE / size_of::<T>() / len).max(1);
    let bytes = size_of_val(output) * 2;
    let store = store_for(bytes / 2);
    let work = |(job, rows): (usize, &mut [T])| {
        for (i, row) in rows.chunks_mut(len).enumerate() {
            let slice = source.map(|source| source.slice(job * share + i));
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
        }
    };
    let jobs = output.chunks_mut(len * share).enumerate();
    if is_shared(bytes)? {
        for_each(jobs, work)
    } else {
        jobs.for_each(work);
        Ok(())
    }
}

/// Whether slices of so many elements are for [`clip_rows`]: longer ones are work for all threads, one by
/// one.
#[must_use]
pub fn is_row(len: usize) -> bool {
    (1..CHUNK).contains(&len)
}
