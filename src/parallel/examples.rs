//! The sum of examples, each scaled by a factor of its own, and the sums of groups of rows. No array holds the scaled examples.

use std::ops::Range;

use super::rows::Rule;
use super::{Crew, work_of};
use crate::element::{Element, Real};
use crate::error::Result;
use crate::isa::{Aligned, Isa, on_stack};
use crate::kernel::examples::{RoundSums, Share};
use crate::kernel::rows::{MAX_ROWS_AT_ONCE, PlainFactors};
use crate::kernel::sum::{AddDenseRows, AddRows, BLOCK, Term, has_strips};
use crate::scaled::{Factor, Limit, Scaled};
use crate::walk::{GATHERED_AT_ONCE, Slices, Target, blocks_of};

/// The number of jobs of a sum, if it is long enough.
const JOBS: usize = 32;

/// Examples that are added before their sums are stored. With 8 instead of 4, 256 examples of 20,000 elements take 0.87 of the
/// time. With 16, 64 examples of 1.9M take 1.1 times as long.
const EXAMPLES_AT_ONCE: usize = 8;

/// Accumulators of a tile, 64 KiB. The longer the contiguous piece that is read of each example, the better the CPU prefetches:
/// 64 examples of 1.9M take 0.83 of the time that they take with 2,048 accumulators. More accumulators gain 3 % at most.
const TILE: usize = 8192;

/// Cuts the positions from `at` on, and their sums, into pieces that take the least time to add. Calls `visit` with each piece.
fn for_pieces<T: Element>(
    elements: &Slices<'_, T>,
    examples: usize,
    at: usize,
    sums: &mut [f64],
    mut visit: impl FnMut(Range<usize>, &mut [f64]),
) {
    let piece = if !elements.reduced.is_dense() {
        // All examples of a piece are read before the next piece: they may share cache lines.
        GATHERED_AT_ONCE
    } else if examples < EXAMPLES_AT_ONCE {
        // Each example is added by itself, so the sums should stay in the L1 cache.
        BLOCK
    } else {
        sums.len()
    };
    for (at, sums) in blocks_of(piece, at..at + sums.len()).zip(sums.chunks_mut(piece)) {
        visit(at, sums);
    }
}

/// The number of an example and its factor.
type Weighted = (usize, Factor);

/// Calls `visit` with examples and their factors, at most [`MAX_ROWS_AT_ONCE`] at a time. Each tile computes the factors from the
/// norms again, because a list of them would take 32 bytes for each example. Examples that the limit erases are left out.
fn for_batches(isa: Isa, limit: Limit, norms: &[Scaled], mut visit: impl FnMut(&[Weighted])) {
    let rounding = Rule::Clip(limit).rounding();
    let (mut batch, mut len) = ([(0, Factor::ONE); MAX_ROWS_AT_ONCE], 0);
    for (part, first) in norms.chunks(MAX_ROWS_AT_ONCE).zip((0..).step_by(MAX_ROWS_AT_ONCE)) {
        let (mut values, mut factors) = ([0.0; MAX_ROWS_AT_ONCE], [0.0; MAX_ROWS_AT_ONCE]);
        values.iter_mut().zip(part).for_each(|(value, norm)| *value = norm.to_f64());
        isa.run(PlainFactors::<f64> {
            sums: &values[..part.len()],
            // A norm that rounds to 0 exceeds no limit but 0, which leaves all norms of 0 to `Limit::factor`.
            exact_zeros: true,
            roots: false,
            limit,
            keeps: true,
            factors: &mut factors[..part.len()],
            norms: &mut [],
        });
        for (example, (by, norm)) in (first..).zip(factors.iter().zip(part)) {
            let plain = Factor { rounding, ..Factor::new(*by, 1.0) };
            let factor = if *by == 0.0 { limit.factor(*norm).unwrap_or(Factor::ONE) } else { plain };
            if Factor::erases(factor.by) {
                continue;
            }
            batch[len] = (example, factor);
            len += 1;
            if len == batch.len() {
                visit(&batch);
                len = 0;
            }
        }
    }
    visit(&batch[..len]);
}

/// Adds at most [`MAX_ROWS_AT_ONCE`] examples at the positions `at`, each times its factor, to `sums`.
fn add_batch<T: Real>(
    isa: Isa,
    elements: &Slices<'_, T>,
    batch: &[Weighted],
    at: Range<usize>,
    sums: &mut [f64],
) {
    let (mut two_steps, mut strict) = (false, false);
    for (_, factor) in batch {
        two_steps |= factor.then != 1.0;
        strict |= factor.toward_zero();
    }
    if two_steps {
        for one in batch {
            add_group(isa, elements, &[*one], |factor| factor, at.clone(), sums);
        }
    } else if T::DOUBLE && strict {
        // The product by a factor of 1 is exact, whichever way it is rounded.
        add_products(isa, elements, batch, |factor| Share::<true>(factor.by), at, sums);
    } else {
        add_products(isa, elements, batch, |factor| Share::<false>(factor.by), at, sums);
    }
}

/// The elements of whole examples, if they are short and follow each other in memory.
fn rows_of<'a, T: Real>(elements: &'a Slices<'_, T>, batch: &[Weighted], len: usize) -> Option<&'a [T]> {
    let (first, _) = *batch.first()?;
    if len != elements.reduced.len() || !has_strips::<T>(len) {
        return None;
    }
    let (matrix, _) = elements.spaced().filter(|(_, step)| *step == len)?;
    let follow = batch.iter().zip(first..).fold(true, |all, ((example, _), next)| all & (*example == next));
    follow.then(|| &matrix[first * len..][..batch.len() * len])
}

/// Adds the products that one kind of term computes.
fn add_products<T: Real, F: Term<T>>(
    isa: Isa,
    elements: &Slices<'_, T>,
    batch: &[Weighted],
    term: impl Fn(Factor) -> F,
    at: Range<usize>,
    sums: &mut [f64],
) {
    if let Some(rows) = rows_of(elements, batch, at.len()) {
        let mut terms = [term(Factor::ONE); MAX_ROWS_AT_ONCE];
        terms.iter_mut().zip(batch).for_each(|(to, (_, factor))| *to = term(*factor));
        return isa.run(AddDenseRows { sums, rows, terms: terms[..batch.len()].iter().copied() });
    }
    let (groups, rest) = batch.as_chunks::<EXAMPLES_AT_ONCE>();
    for group in groups {
        add_group(isa, elements, group, &term, at.clone(), sums);
    }
    for one in rest {
        add_group(isa, elements, &[*one], &term, at.clone(), sums);
    }
}

/// Adds `N` examples to the sums, which are loaded and stored once for them.
fn add_group<T: Real, F: Term<T>, const N: usize>(
    isa: Isa,
    elements: &Slices<'_, T>,
    group: &[Weighted; N],
    term: impl Fn(Factor) -> F,
    at: Range<usize>,
    sums: &mut [f64],
) {
    elements.with_pieces(group.map(|(example, _)| example), at, |rows| {
        isa.run(AddRows { sums, rows, terms: group.map(|(_, factor)| term(factor)) });
    });
}

/// Writes the sum of examples, each clipped to the limit by its norm, divided by `divisor`. The sum has the positions of an example.
/// An example that the limit erases adds nothing.
pub fn sum_examples<T: Real>(
    isa: Isa,
    examples: &Slices<'_, T>,
    norms: &[Scaled],
    limit: Limit,
    divisor: f64,
    to: &mut Target<'_, T>,
) -> Result<()> {
    let count = norms.len();
    let bytes = count * to.len() * size_of::<T>();
    let len = (to.len() / JOBS).next_multiple_of(BLOCK).max(BLOCK);
    Crew::new().each(work_of(bytes, count), to.parts(len), |(at, mut part)| {
        // On the stack, because the call must not fail any more: other sums are written already.
        on_stack::<TILE, _, _>(0.0, part.len().min(TILE), |sums| {
            for (first, mut tile) in part.parts(sums.len()) {
                let sums = &mut sums[..tile.len()];
                sums.fill(0.0);
                for_pieces(examples, count, at + first, sums, |at, sums| {
                    for_batches(isa, limit, norms, |batch| add_batch(isa, examples, batch, at.clone(), sums));
                });
                tile.for_blocks_of(BLOCK, false, |range, to| {
                    isa.run(RoundSums { sums: &sums[range], divisor, to });
                    true
                });
            }
        });
    })
}

/// Writes the sums of groups of rows: group `i` has the rows `order[bounds[i]..bounds[i + 1]]`. The sum of a single row has its
/// bits.
pub fn sum_groups<T: Real>(
    isa: Isa,
    rows: &Slices<'_, T>,
    order: &[usize],
    bounds: &[usize],
    to: &mut [T],
) -> Result<()> {
    let len = rows.reduced.len().max(1);
    let groups_in_job = (TILE / len).max(1);
    let work = work_of(order.len() * len * size_of::<T>(), bounds.len());
    let jobs = to.chunks_mut(groups_in_job * len).enumerate();
    Crew::new().each(work, jobs, |(job, to)| {
        let Aligned(sums) = &mut Aligned([0.0; BLOCK]);
        let mut batch = [(0, Factor::ONE); MAX_ROWS_AT_ONCE];
        for (bounds, to) in bounds[job * groups_in_job..].windows(2).zip(to.chunks_mut(len)) {
            let group = &order[bounds[0]..bounds[1]];
            for (at, to) in (0..).step_by(BLOCK).zip(to.chunks_mut(BLOCK)) {
                if let [row] = *group {
                    rows.slice(row).copy_to(at..at + to.len(), to);
                    continue;
                }
                let sums = &mut sums[..to.len()];
                sums.fill(-0.0); // a sum of -0.0 is -0.0
                for_pieces(rows, group.len(), at, sums, |at, sums| {
                    for group in group.chunks(MAX_ROWS_AT_ONCE) {
                        batch.iter_mut().zip(group).for_each(|((row, _), from)| *row = *from);
                        add_batch(isa, rows, &batch[..group.len()], at.clone(), sums);
                    }
                });
                isa.run(RoundSums { sums, divisor: 1.0, to });
            }
        }
    })
}
