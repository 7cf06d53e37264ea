//! Norms of the slices of one array along some of its axes.

use super::columns::{column_maxima, column_norms};
use super::list::{AnyView, norm};
use super::order::{Order, OverflowRisk, Reduction};
use super::pass::{CHUNK, has_row_sums, norm_of_slice_with, norm_of_view, row_sums};
use crate::element::Element;
use crate::error::{Result, vec_with_room};
use crate::isa::Isa;
use crate::kernel::rows;
use crate::kernel::sum::is_prefetched;
use crate::parallel::{Crew, job_bytes, share_out};
use crate::scaled::Scaled;
use crate::walk::{Slices, View};

/// The norm of each slice, in the order of the kept axes.
///
/// # Errors
/// No memory for the norms, or a bad setting of the threads.
pub fn norms<T: Element>(isa: Isa, slices: &Slices<'_, T>, order: Order) -> Result<Vec<Scaled>>
where
    for<'a> AnyView<'a>: From<View<'a, T>>,
{
    let count = slices.kept.len();
    let mut norms = vec_with_room(count)?;
    norms.resize(count, Scaled::ZERO);
    norms_into(isa, slices, order, &mut norms, |norm| norm)?;
    Ok(norms)
}

/// Makes each norm into what is wanted of it where it is computed: for many short slices a list of norms in between costs as
/// much as the norms. Slices without elements keep what `norms` holds for them.
///
/// # Errors
/// No memory for partial results, or a bad setting of the threads.
pub fn norms_into<T: Element, R: Send>(
    isa: Isa,
    slices: &Slices<'_, T>,
    order: Order,
    norms: &mut [R],
    make: impl Fn(Scaled) -> R + Sync,
) -> Result<()>
where
    for<'a> AnyView<'a>: From<View<'a, T>>,
{
    let (count, len) = (slices.kept.len(), slices.reduced.len());
    if len == 0 || count == 0 {
        return Ok(());
    }
    let columns = slices.are_columns();
    if columns && order == Order::Max && !OverflowRisk::of::<T>().wide_modulus {
        column_maxima(isa, slices, norms, make)
    } else if let (true, Some(pass)) = (columns, order.first()) {
        column_norms(isa, slices, order, pass, norms, make)
    } else if len >= CHUNK {
        // Long slices, one after the other, each on all threads.
        let crew = Crew::new();
        for (at, result) in norms.iter_mut().enumerate() {
            *result = make(norm(isa, &crew, &[slices.slice(at).into()], order)?);
        }
        Ok(())
    } else if let (Some(data), Some(pass)) = (slices.dense(0..count), order.first())
        && has_row_sums::<T>(len, pass)
    {
        row_norms(isa, slices, data, order, pass, norms, make)
    } else {
        share_slices(slices, norms, order.cost(), 1, |first, norms| {
            for (at, norm) in (first..).zip(norms) {
                *norm = make(norm_of_view(isa, &slices.slice(at), order));
            }
        })
    }
}

/// The norms of short rows that follow each other.
fn row_norms<T: Element, R: Send>(
    isa: Isa,
    slices: &Slices<'_, T>,
    data: &[T],
    order: Order,
    pass: Reduction,
    norms: &mut [R],
    make: impl Fn(Scaled) -> R + Sync,
) -> Result<()> {
    let len = slices.reduced.len();
    let in_batch = rows::at_once::<T>(len);
    let is_prefetched = is_prefetched(data.len());
    share_slices(slices, norms, order.cost(), in_batch, |first, norms| {
        let mut sums = [0.0; rows::MAX_ROWS_AT_ONCE];
        for (first, norms) in (first..).step_by(in_batch).zip(norms.chunks_mut(in_batch)) {
            let sums = &mut sums[..norms.len()];
            row_sums(isa, &data[first * len..], len, pass, is_prefetched, sums);
            for (at, (norm, sum)) in (first..).zip(norms.iter_mut().zip(sums)) {
                *norm = make(norm_of_slice_with(isa, slices, at, order, *sum));
            }
        }
    })
}

/// Calls `work(first slice, norms)` for whole batches of slices, on all threads if there is enough to do.
fn share_slices<T: Element, R: Send>(
    slices: &Slices<'_, T>,
    norms: &mut [R],
    cost: usize,
    in_batch: usize,
    work: impl Fn(usize, &mut [R]) + Sync,
) -> Result<()> {
    let len = slices.reduced.len();
    let bytes = slices.kept.len() * len * size_of::<T>();
    let in_job = slices_in_job::<T>(bytes, len, in_batch);
    let jobs = norms.chunks_mut(in_job).enumerate();
    share_out(bytes.saturating_mul(cost), jobs, |(job, norms)| work(job * in_job, norms))
}

/// Slices of `len` elements in a job of a pass over `bytes`: whole batches, so that only the last batch is short.
pub(in crate::parallel) fn slices_in_job<T>(bytes: usize, len: usize, in_batch: usize) -> usize {
    (job_bytes(bytes) / size_of::<T>() / len).next_multiple_of(in_batch).max(in_batch)
}
