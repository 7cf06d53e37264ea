//! Writing: one piece of work on one array or on many.

use super::reduce::{CHUNK, Order, norm_of_view};
use super::{for_each, grouped, is_shared};
use crate::element::{Ordered, Real, for_each_real};
use crate::error::{Result, vec_with_room};
use crate::isa::Isa;
use crate::kernel::scale::Scale;
use crate::scaled::Factor;
use crate::walk::{self, Slices, Target, Uniform, Untouched, View, Work};

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

    fn run(&mut self, isa: Isa, work: &impl Work<T>) {
        walk::perform(isa, work, self.source.as_ref(), &mut self.target, 0);
    }
}

impl<T: Ordered> Part<'_, T> {
    fn run(&mut self, isa: Isa, work: &impl Work<T>) {
        walk::perform(isa, work, self.source, &mut self.target, self.at);
    }
}

/// Does `work` for one array.
///
/// # Errors
/// A bad setting of the threads.
pub fn perform<T: Ordered>(isa: Isa, work: &impl Work<T>, task: &mut Task<'_, T>) -> Result<()> {
    if is_shared(task.bytes())? {
        for_each(task.parts(), |mut part| part.run(isa, work))
    } else {
        task.run(isa, work);
        Ok(())
    }
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
            fn run(&mut self, isa: Isa, factor: Option<Factor>) {
                match (self, factor) {
                    $((Self::$name(task), Some(factor)) => task.run(isa, &Uniform(Scale(factor))),)*
                    $((Self::$name(task), None) => task.run(isa, &Untouched),)*
                }
            }
            fn cut<'a>(&'a mut self, parts: &mut Vec<AnyPart<'a>>) -> Result<()> {
                match self {
                    $(Self::$name(task) => {
                        parts.try_reserve(task.target.len().div_ceil(CHUNK))?;
                        parts.extend(task.parts().map(AnyPart::$name));
                    })*
                }
                Ok(())
            }
        }

        impl AnyPart<'_> {
            fn bytes(&self) -> usize {
                match self { $(Self::$name(part) => part.target.len() * size_of::<$t>() * 2,)* }
            }
            fn run(&mut self, isa: Isa, factor: Option<Factor>) {
                match (self, factor) {
                    $((Self::$name(part), Some(factor)) => part.run(isa, &Uniform(Scale(factor))),)*
                    $((Self::$name(part), None) => part.run(isa, &Untouched),)*
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
    if !is_shared(tasks.iter().filter(|task| to_do(task)).map(AnyTask::bytes).sum())? {
        for task in tasks.iter_mut().filter(|task| to_do(task)) {
            task.run(isa, factor);
        }
        return Ok(());
    }
    let mut parts = vec_with_room(tasks.len())?;
    for task in tasks.iter_mut().filter(|task| to_do(task)) {
        task.cut(&mut parts)?;
    }
    for_each(grouped(&mut parts, SHARE, AnyPart::bytes), |group| {
        for part in group {
            part.run(isa, factor);
        }
    })
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
    let work = |(job, rows): (usize, &mut [T])| {
        for (i, row) in rows.chunks_mut(len).enumerate() {
            let slice = source.map(|source| source.slice(job * share + i));
            let norm = match &slice {
                Some(slice) => norm_of_view(isa, slice, Order::Two),
                None => norm_of_view(isa, &View::Dense(row), Order::Two),
            };
            let mut task = Task { source: slice, target: Target::Dense(row) };
            match norm.clip_to(limit) {
                Some(factor) => task.run(isa, &Uniform(Scale(factor))),
                None if task.source.is_some() => task.run(isa, &Untouched),
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
