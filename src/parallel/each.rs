//! Work of their own for the arrays of a list: norms, and clips by them.

use std::borrow::BorrowMut;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::elementwise::{AnyTask, Tasks, is_streamed, with_store};
use super::reduce::Order;
use super::{Crew, job_bytes, threads, work_of};
use crate::error::{Result, vec_with_room};
use crate::isa::Isa;
use crate::scaled::{Limit, Scaled};
use crate::walk::Store;

/// The work for one array of a list.
pub struct ArrayJob<'a> {
    /// The bytes that its longest pass moves.
    bytes: usize,
    run: Box<dyn FnOnce() -> Result<()> + Send + 'a>,
}

impl fmt::Debug for ArrayJob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayJob").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<'a> ArrayJob<'a> {
    /// Work whose longest pass moves `bytes`.
    pub fn new(bytes: usize, run: impl FnOnce() -> Result<()> + Send + 'a) -> Self {
        Self { bytes, run: Box::new(run) }
    }

    /// Does it.
    ///
    /// # Errors
    /// Those of the work.
    pub fn run(self) -> Result<()> {
        (self.run)()
    }
}

/// Does the work for all arrays of a list: that for long ones on all threads, one after the other, that for short ones on one
/// thread each.
///
/// # Errors
/// No memory for lists of the jobs, a bad setting of the threads, or one of the errors of the jobs; others are done even so.
pub fn run_each(jobs: Vec<ArrayJob<'_>>) -> Result<()> {
    let mut short = vec_with_room(jobs.len())?;
    let mut failed = Ok(());
    for job in jobs {
        if Crew::is_shared(job.bytes)? {
            failed = failed.and(job.run());
        } else {
            short.push(job);
        }
    }
    let work = work_of(short.iter().map(|job| job.bytes).sum(), short.len());
    let failed = Mutex::new(failed);
    Crew::new().each(work, short.into_iter(), |job| {
        if let Err(error) = job.run() {
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Err(error);
        }
    })?;
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The fewest jobs of a thread, by which arrays are cut that are longer.
const LEAST_JOBS: usize = 4;

/// Neighbours in a list, for one thread.
struct Job<'a, T> {
    tasks: T,
    limits: &'a [Limit],
    norms: &'a mut [Scaled],
}

/// Clips dense arrays, each by its own norm. There are as many limits and norms, which are written.
///
/// # Errors
/// No memory for the list of jobs, or a bad setting of the threads.
pub fn clip_each<'a, T: Tasks<'a>>(
    isa: Isa,
    mut tasks: T,
    order: Order,
    mut limits: &[Limit],
    mut norms: &mut [Scaled],
) -> Result<()> {
    let crew = Crew::new();
    let work = work_of(tasks.bytes(true), tasks.len());
    let streams = is_streamed(tasks.bytes(false) / 2);
    let share = job_bytes(work);
    // What one thread does, it does in its own cache. Longer arrays would leave the others without work at the end.
    let longest = share.max(work / (LEAST_JOBS * threads()?));
    let mut jobs = Vec::new();
    while let Some(last) = tasks.len().checked_sub(1) {
        let mut sum = 0;
        let short = (0..=last).rev().take_while(|at| {
            sum += work_of(tasks.bytes_of(*at), 2);
            sum <= share
        });
        let first = tasks.len() - short.count().max(1);
        if tasks.bytes_of(last) > longest {
            // A long one, for all threads at once. Nothing is left of it in a cache when its norm is known.
            let (Some(mut task), Some((norm, rest))) = (tasks.pop(), norms.split_last_mut()) else { break };
            norms = rest;
            *norm = task.borrow_mut().norm(isa, &crew, order)?;
            if let Some((limit, rest)) = limits.split_last() {
                limits = rest;
                task.borrow_mut().scale(isa, limit.factor(*norm), streams)?;
            }
            continue;
        }
        let (limits_before, limits_after) = limits.split_at(first);
        let (norms_before, norms_after) = norms.split_at_mut(first);
        (limits, norms) = (limits_before, norms_before);
        jobs.try_reserve(1)?;
        jobs.push(Job { tasks: tasks.split_off(first), limits: limits_after, norms: norms_after });
    }
    crew.each(work, jobs.into_iter(), |Job { mut tasks, limits, norms }| {
        with_store(streams, |store| {
            for (limit, norm) in limits.iter().zip(norms).rev() {
                if let Some(mut task) = tasks.pop() {
                    *norm = clip(isa, task.borrow_mut(), order, *limit, store);
                }
            }
        });
    })
}

/// Clips one array on the calling thread. Returns its norm.
fn clip(isa: Isa, task: &mut AnyTask<'_>, order: Order, limit: Limit, store: Store<'_>) -> Scaled {
    let norm = task.norm_alone(isa, order);
    task.run(isa, limit.factor(norm), store);
    norm
}
