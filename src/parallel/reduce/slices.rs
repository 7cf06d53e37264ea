//! Norms of the slices of one array along some of its axes.

use super::columns::{column_maxima, column_norms};
use super::list::norm_of_array;
use super::order::Order;
use super::pass::{SHORT, has_exact_zeros, has_row_sums, norm_of_view, norms_of_slices, row_sums};
use crate::element::Element;
use crate::error::Result;
use crate::isa::Isa;
use crate::kernel::rows;
use crate::kernel::sum::BLOCK;
use crate::parallel::{Crew, job_bytes, work_of};
use crate::scaled::FromNorm;
use crate::walk::{Slices, with_scratch};

/// Writes the norm of each slice, in the order of the kept axes. The norms of slices without elements are not written.
pub fn norms_into<T: Element, N: FromNorm>(
    isa: Isa,
    slices: &Slices<'_, T>,
    order: Order,
    norms: &mut [N],
) -> Result<()> {
    let (count, len) = (slices.kept.len(), slices.reduced.len());
    if len == 0 || count == 0 {
        return Ok(());
    }
    let columns = slices.are_columns();
    // Moduli of complex128 may leave float64's range, so columns of them are read one by one.
    if columns && order == Order::Max && !(T::DOUBLE && T::DTYPE.parts().is_some()) {
        return column_maxima(isa, slices, norms);
    }
    if columns && let Some(pass) = order.first() {
        return column_norms(isa, slices, order, pass, norms);
    }
    if Crew::is_shared((len * size_of::<T>()).saturating_mul(order.cost()))? {
        // Long slices, one after the other, each on all threads.
        let crew = Crew::new();
        for (at, to) in norms.iter_mut().enumerate() {
            *to = N::of(norm_of_array(isa, &crew, &slices.slice(at), order)?);
        }
        return Ok(());
    }
    let bytes = count * len * size_of::<T>();
    // Rows that are not at one distance are gathered: a batch of them if they are short, otherwise one at a time.
    let (spaced, elements) = (slices.spaced(), slices.elements());
    let pass =
        order.first().filter(|pass| has_row_sums::<T>(len, *pass) && (spaced.is_some() || len <= SHORT));
    let in_batch = match (pass, spaced) {
        (None, _) => 1,
        (Some(_), Some(_)) => rows::at_once::<T>(len),
        (Some(_), None) => (BLOCK / len).min(rows::MAX_ROWS_AT_ONCE),
    };
    let in_job = slices_in_job::<T>(bytes, len, in_batch);
    let jobs = norms.chunks_mut(in_job).enumerate();
    let work = work_of(bytes.saturating_mul(order.cost()), count);
    Crew::new().each(work, jobs, |(job, norms)| {
        let gathered = if pass.is_some() && spaced.is_none() { BLOCK } else { 0 };
        with_scratch(T::ZERO, gathered, |scratch| {
            let mut sums = [0.0; rows::MAX_ROWS_AT_ONCE];
            for (first, norms) in (job * in_job..).step_by(in_batch).zip(norms.chunks_mut(in_batch)) {
                if let Some(pass) = pass {
                    let (data, step) = match spaced {
                        Some((rows, step)) => (&rows[first * step..], step),
                        None => (elements.block(first * len..(first + norms.len()) * len, scratch), len),
                    };
                    let sums = &mut sums[..norms.len()];
                    row_sums(isa, data, [len, step], pass, sums);
                    let exact_zeros = has_exact_zeros(isa, data, [len, step], pass, sums);
                    norms_of_slices(isa, slices, first, order, (sums, exact_zeros), norms);
                } else {
                    for (at, norm) in (first..).zip(norms) {
                        *norm = N::of(norm_of_view(isa, &slices.slice(at), order));
                    }
                }
            }
        });
    })
}

/// The number of slices of `len` elements in a job of a pass over `bytes`: whole batches, so that only the last batch is short.
pub(in crate::parallel) fn slices_in_job<T>(bytes: usize, len: usize, in_batch: usize) -> usize {
    (job_bytes(bytes) / size_of::<T>() / len).next_multiple_of(in_batch).max(in_batch)
}
