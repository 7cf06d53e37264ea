//! Lists with separate work for each array: norms of slices, clips by the norm of the array.

use std::borrow::BorrowMut;
use std::sync::{Mutex, PoisonError};

use super::elementwise::{Run, Tasks, is_streamed, runs, streaming};
use super::reduce::Order;
use super::{Crew, THREADS, WAKE_MIN_BYTES, job_bytes, work_of};
use crate::error::{Result, vec_with_room};
use crate::isa::Isa;
use crate::scaled::{Limit, Scaled};

/// The work for one array of a list.
pub struct ArrayJob<'a> {
    /// The bytes that its longest pass moves.
    bytes: usize,
    run: Box<dyn FnOnce() -> Result<()> + Send + 'a>,
}

impl<'a> ArrayJob<'a> {
    /// A job whose longest pass moves `bytes`.
    pub fn new(bytes: usize, run: impl FnOnce() -> Result<()> + Send + 'a) -> Self {
        Self { bytes, run: Box::new(run) }
    }
}

/// Does the jobs of a list. All threads share each job of a long array, one job after the other. Each job of a short array is
/// done by one thread. An error of a job does not stop the others.
pub fn run_each(jobs: Vec<ArrayJob<'_>>) -> Result<()> {
    let mut short = vec_with_room(jobs.len())?;
    let mut failed = Ok(());
    for job in jobs {
        if Crew::is_shared(job.bytes)? {
            failed = failed.and((job.run)());
        } else {
            short.push(job);
        }
    }
    let work = work_of(short.iter().map(|job| job.bytes).sum(), short.len());
    let failed = Mutex::new(failed);
    Crew::new().each(work, short.into_iter(), |job| {
        if let Err(error) = (job.run)() {
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Err(error);
        }
    })?;
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The fewest jobs for each thread. All threads share an array that is longer than such a job.
const LEAST_JOBS: usize = 4;

/// Clips dense arrays, each by its own norm, which is written. There are as many limits and norms as arrays.
pub fn clip_each<'a, T: Tasks<'a>>(
    isa: Isa,
    tasks: T,
    order: Order,
    mut limits: &[Limit],
    mut norms: &mut [Scaled],
) -> Result<()> {
    let crew = Crew::new();
    let work = work_of(tasks.bytes(true), tasks.count());
    let streams = is_streamed(tasks.bytes(false) / 2);
    let share = job_bytes(work);
    // A thread reads and writes an array in its own cache. An array that is longer than this would leave the other threads
    // without work at the end. A pass over less than `WAKE_MIN_BYTES` is never shared, so such an array is short too.
    let longest = WAKE_MIN_BYTES.max(work / (LEAST_JOBS * THREADS.get()?));
    let runs = runs(tasks, share, longest)?;
    let (mut jobs, mut long) = (vec_with_room(runs.len())?, vec_with_room(runs.len())?);
    for run in runs {
        let count = if let Run::Short(tasks) = &run { tasks.count() } else { 1 };
        let first = norms.len().saturating_sub(count);
        let (own_limits, own_norms);
        (limits, own_limits) = limits.split_at(first);
        (norms, own_norms) = norms.split_at_mut(first);
        match run {
            Run::Short(tasks) => jobs.push((tasks, own_limits, own_norms)),
            Run::Long(mut task) => {
                if let Some((limit, norm)) = own_limits.iter().zip(own_norms).next() {
                    *norm = task.borrow_mut().norm(isa, &crew, order)?;
                    long.push((task, limit.factor(*norm)));
                }
            }
        }
    }
    // All threads share a long array. No cache holds any of it when its norm is known. So the norms of all long arrays are
    // computed first: they need memory, and nothing may fail once something is written.
    for (mut task, factor) in long {
        task.borrow_mut().scale(isa, factor, streams)?;
    }
    crew.each(work, jobs.into_iter(), |(mut tasks, limits, norms)| {
        let guard = streaming(streams);
        for (limit, norm) in limits.iter().zip(norms).rev() {
            if let Some(mut task) = tasks.pop() {
                *norm = task.borrow_mut().norm_alone(isa, order);
                task.borrow_mut().run(isa, limit.factor(*norm), guard.as_ref());
            }
        }
    })
}
