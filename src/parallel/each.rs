//! Arrays of a list, each clipped by its own norm while the cache holds it.

use std::borrow::BorrowMut;

use super::elementwise::{AnyTask, Tasks, is_streamed, with_store};
use super::reduce::Order;
use super::{Crew, job_bytes, threads, work_of};
use crate::error::Result;
use crate::isa::Isa;
use crate::scaled::{Limit, Scaled};
use crate::walk::Store;

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
                task.borrow_mut().scale(isa, limit.factor(*norm))?;
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
