//! The sum of examples, each scaled by a factor of its own, and the sums of groups of rows. No array holds the scaled examples.

use std::ops::Range;

use super::{Crew, work_of};
use crate::element::Real;
use crate::error::{Result, vec_with_room};
use crate::isa::{Aligned, Isa};
use crate::kernel::examples::{RoundSums, Share};
use crate::kernel::sum::{AddRows, BLOCK};
use crate::scaled::Factor;
use crate::walk::{GATHERED_AT_ONCE, Slices, Target, blocks_of};

/// The number of jobs of a sum, if it is long enough.
const JOBS: usize = 32;

/// Examples that are added before their sums are stored. With 8 instead of 4, 256 examples of 20,000 elements take 0.87 of the
/// time. With 16, 64 examples of 1.9M take 1.1 times as long.
const EXAMPLES_AT_ONCE: usize = 8;

/// Accumulators of a tile, 64 KiB. The longer the contiguous piece that is read of each example, the better the CPU prefetches:
/// 64 examples of 1.9M take 0.83 of the time that they take with 2,048 accumulators. More accumulators gain 3 % at most.
const TILE: usize = 8192;

/// Examples, of which each has as many elements as the sum.
pub struct Examples<'a, T> {
    /// The examples.
    pub elements: &'a Slices<'a, T>,
    /// The number and the factor of each example that is added.
    pub factors: &'a [(usize, Factor)],
    /// The divisor of the sums.
    pub divisor: f64,
}

impl<T: Real> Examples<'_, T> {
    /// Writes the sums of the positions from `at` on.
    fn write_sums(&self, isa: Isa, at: usize, to: &mut Target<'_, T>) {
        with_sums(to.len(), |sums| {
            for (first, mut tile) in to.parts(sums.len()) {
                let sums = &mut sums[..tile.len()];
                sums.fill(0.0);
                self.add_tile(isa, at + first, sums);
                tile.for_blocks_of(BLOCK, false, |range, to| {
                    isa.run(RoundSums { sums: &sums[range], divisor: self.divisor, to });
                    true
                });
            }
        });
    }

    /// Adds all examples to the sums of the positions from `at` on.
    fn add_tile(&self, isa: Isa, at: usize, sums: &mut [f64]) {
        let piece = if !self.elements.reduced.is_dense() {
            // All examples of a piece are read before the next piece: they may share cache lines.
            GATHERED_AT_ONCE
        } else if self.factors.len() < EXAMPLES_AT_ONCE {
            // Each example is added by itself, so the sums should stay in the L1 cache.
            BLOCK
        } else {
            sums.len()
        };
        for (at, sums) in blocks_of(piece, at..at + sums.len()).zip(sums.chunks_mut(piece)) {
            self.add(isa, at, sums);
        }
    }

    /// Adds all examples at the positions `at` to `sums`.
    fn add(&self, isa: Isa, at: Range<usize>, sums: &mut [f64]) {
        for group in self.factors.chunks(EXAMPLES_AT_ONCE) {
            match <&[_; EXAMPLES_AT_ONCE]>::try_from(group) {
                Ok(group) if group.iter().all(|(_, factor)| factor.then == 1.0) => {
                    self.add_group(isa, group, at.clone(), sums);
                }
                _ => {
                    for (example, factor) in group {
                        self.elements.with_pieces([*example], at.clone(), |rows| {
                            isa.run(AddRows { sums, rows, terms: [*factor], next: None });
                        });
                    }
                }
            }
        }
    }

    /// Adds examples whose factors have one step.
    fn add_group(
        &self,
        isa: Isa,
        group: &[(usize, Factor); EXAMPLES_AT_ONCE],
        at: Range<usize>,
        sums: &mut [f64],
    ) {
        self.elements.with_pieces(group.map(|(example, _)| example), at, |rows| {
            // The product by a factor of 1 is exact, whichever way it is rounded.
            if T::DOUBLE && group.iter().any(|(_, factor)| factor.toward_zero()) {
                let terms = group.map(|(_, factor)| Share::<true>(factor.by));
                isa.run(AddRows { sums, rows, next: None, terms });
            } else {
                let terms = group.map(|(_, factor)| Share::<false>(factor.by));
                isa.run(AddRows { sums, rows, next: None, terms });
            }
        });
    }
}

/// Calls `work` with accumulators for a tile of at most `len` positions. Without memory for them, a tile is a block: other sums
/// are written already, so the call must not fail any more.
fn with_sums<R>(len: usize, work: impl FnOnce(&mut [f64]) -> R) -> R {
    let len = len.min(TILE);
    if len > BLOCK
        && let Ok(mut sums) = vec_with_room(len)
    {
        sums.resize(len, 0.0);
        return work(&mut sums);
    }
    work(&mut Aligned([0.0; BLOCK]).0)
}

/// Writes the sum of examples, which has the positions of an example.
pub fn sum_examples<T: Real>(isa: Isa, examples: &Examples<'_, T>, to: &mut Target<'_, T>) -> Result<()> {
    let bytes = examples.factors.len() * to.len() * size_of::<T>();
    let len = (to.len() / JOBS).next_multiple_of(BLOCK).max(BLOCK);
    Crew::new().each(work_of(bytes, examples.factors.len()), to.parts(len), |(at, mut part)| {
        examples.write_sums(isa, at, &mut part);
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
    let mut factors = vec_with_room(order.len())?;
    factors.extend(order.iter().map(|row| (*row, Factor::ONE)));
    let groups_in_job = (TILE / len).max(1);
    let work = work_of(order.len() * len * size_of::<T>(), bounds.len());
    let jobs = to.chunks_mut(groups_in_job * len).enumerate();
    Crew::new().each(work, jobs, |(job, to)| {
        let Aligned(sums) = &mut Aligned([0.0; BLOCK]);
        for (bounds, to) in bounds[job * groups_in_job..].windows(2).zip(to.chunks_mut(len)) {
            let group = Examples { elements: rows, factors: &factors[bounds[0]..bounds[1]], divisor: 1.0 };
            for (at, to) in (0..).step_by(BLOCK).zip(to.chunks_mut(BLOCK)) {
                if let [(row, _)] = *group.factors {
                    rows.slice(row).copy_to(at..at + to.len(), to);
                    continue;
                }
                let sums = &mut sums[..to.len()];
                sums.fill(-0.0); // a sum of -0.0 is -0.0
                group.add_tile(isa, at, sums);
                isa.run(RoundSums { sums, divisor: 1.0, to });
            }
        }
    })
}
