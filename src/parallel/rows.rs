//! Rows: slices that are scaled one after the other, each by its own norm while the cache holds it.

use super::elementwise::{Task, is_streamed, with_store};
use super::reduce::{Order, Reduction, SHORT, has_row_sums, norm_of_view, row_sums, slices_in_job};
use super::{Crew, WAKE_MIN_BYTES, work_of};
use crate::element::{Ordered, Real};
use crate::error::{Result, vec_with_room};
use crate::isa::{Identity, Isa, LINE};
use crate::kernel::map::{ApplyEach, Map};
use crate::kernel::rows::{self, PlainFactors, RepeatEach};
use crate::kernel::scale::Times;
use crate::kernel::scale_each::{FactorKind, ScaleEach};
use crate::kernel::sum::BLOCK;
use crate::kernel::truncate::Truncate;
use crate::scaled::{Factor, FromNorm, Limit, Rounding, Scaled};
use crate::walk::{Slices, Store, Target, View, with_scratch};

/// The rule by which the factor of a slice follows from its norm.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// The norm becomes at most the limit.
    Clip(Limit),
    /// The norm becomes 1.
    Normalize,
}

impl Rule {
    /// The factor; None if the slice stays as it is.
    #[must_use]
    pub fn factor(self, norm: Scaled) -> Option<Factor> {
        match self {
            Self::Clip(limit) => limit.factor(norm),
            Self::Normalize => Some(norm.factor_to(1.0)).filter(|factor| *factor != Factor::ONE),
        }
    }

    /// The rounding of products.
    pub(super) fn rounding(self) -> Rounding {
        match self {
            Self::Clip(Limit { margin, .. }) if margin > 0.0 => Rounding::TowardZero,
            _ => Rounding::Nearest,
        }
    }

    /// Computes factors and norms from sums of squares by [`PlainFactors`].
    pub(super) fn plain_factors<N: FromNorm>(
        self,
        isa: Isa,
        sums: &[f64],
        factors: &mut [f64],
        norms: &mut [N],
    ) -> bool {
        let (limit, keeps) = match self {
            Self::Clip(limit) => (limit, true),
            Self::Normalize => (1.0.into(), false),
        };
        isa.run(PlainFactors { sums, limit, keeps, factors, norms })
    }
}

/// Whether slices of `len` elements, of `size` bytes each, are clipped as rows. Longer slices are shared by all threads, one
/// after the other.
#[must_use]
pub fn is_row(len: usize, size: usize) -> bool {
    len > 0 && len.saturating_mul(2 * size) < WAKE_MIN_BYTES
}

/// Whether [`scale_rows`] writes rows of `len` elements to this output. Rows of a strided output are made in scratch memory, which
/// has room for a block. If they are columns of the output, a batch must have enough rows to fill cache lines.
#[must_use]
pub fn takes_output<T: Ordered>(output: &Target<'_, T>, len: usize) -> bool {
    matches!(output, Target::Dense(_))
        || len <= BLOCK && (output.fills_lines() || BLOCK / len * size_of::<T>() >= LINE)
}

/// Scales each row of `len` elements by its own norm. The positions of the output are those of the first row, then those of the
/// next; see [`takes_output`]. Without a `source`, the output is the input, too. `norms` gets the norm of each row, or is empty.
///
/// # Errors
/// An invalid setting of the number of threads.
pub fn scale_rows<T: Real>(
    isa: Isa,
    source: Option<&Slices<'_, T>>,
    mut output: Target<'_, T>,
    len: usize,
    rule: Rule,
    norms: &mut [T::Norm],
) -> Result<()> {
    let rows = Rows::new(isa, source, &output, len, rule);
    let count = output.len() / len;
    if count <= rows.in_job {
        // Fast path: there is nothing to share.
        rows.scale(0, output, norms);
        return Ok(());
    }
    let work = work_of(2 * output.len() * size_of::<T>(), count);
    let jobs = output.parts(len * rows.in_job);
    let scale = |at, data, norms| rows.scale(at / len, data, norms);
    if norms.is_empty() {
        return Crew::new().each(work, jobs, |(at, data)| scale(at, data, &mut []));
    }
    // A list, because threads take jobs from both ends, and the number of `parts` is not known.
    let mut with_norms = vec_with_room(count.div_ceil(rows.in_job))?;
    with_norms.extend(jobs.zip(norms.chunks_mut(rows.in_job)));
    Crew::new().each(work, with_norms.into_iter(), |((at, data), norms)| scale(at, data, norms))
}

/// How one call scales its rows.
struct Rows<'a, T> {
    isa: Isa,
    source: Option<&'a Slices<'a, T>>,
    /// The elements of the source, row by row.
    elements: Option<View<'a, T>>,
    /// The number of elements of a row.
    len: usize,
    rule: Rule,
    /// The number of rows of a job: whole batches, so that only the last batch is short.
    in_job: usize,
    /// The number of rows of a batch, which stay in the L1 cache.
    in_batch: usize,
    /// Whether kernels take whole batches. Rows of more than [`SHORT`] elements, and of 16-bit elements, have kernels of their own.
    has_kernels: bool,
    /// Whether the output is written by non-temporal stores.
    is_streamed_out: bool,
}

/// Scratch memory for a batch. To clear it for each batch would take longer than a batch of very short rows.
#[derive(Default)]
struct Scratch {
    sums: [f64; rows::MAX_ROWS_AT_ONCE],
    factors: [f64; rows::MAX_ROWS_AT_ONCE],
    /// The factor of each element of very short rows.
    each: Option<[f64; (rows::MAX_ROWS_AT_ONCE + 1) * rows::VERY_SHORT]>,
}

impl<'a, T: Real> Rows<'a, T> {
    fn new(
        isa: Isa,
        source: Option<&'a Slices<'a, T>>,
        output: &Target<'_, T>,
        len: usize,
        rule: Rule,
    ) -> Self {
        let has_kernels = size_of::<T>() > 2 && len <= SHORT && has_row_sums::<T>(len, Reduction::Square);
        let bytes = output.len() * size_of::<T>();
        let is_dense = matches!(output, Target::Dense(_));
        let is_streamed_out = is_dense && is_streamed(bytes);
        let in_batch = if is_dense && !(is_streamed_out && has_kernels) {
            rows::at_once::<T>(len)
        } else {
            // As many rows as the scratch memory holds.
            (BLOCK / len).clamp(1, rows::MAX_ROWS_AT_ONCE)
        };
        let in_job = slices_in_job::<T>(bytes, len, in_batch);
        let elements = source.map(Slices::elements);
        Self { isa, source, elements, len, rule, in_job, in_batch, has_kernels, is_streamed_out }
    }

    /// Scales the rows from number `first` on. `norms` gets the norm of each row, or is empty.
    fn scale(&self, first: usize, mut target: Target<'_, T>, norms: &mut [T::Norm]) {
        let (is_in_place, scratch) = (self.source.is_none(), &mut Scratch::default());
        with_store(self.is_streamed_out && !is_in_place, |store| {
            // Kernels of batches write to scratch memory first. Two short rows share a cache line. If each row were written by
            // non-temporal stores, the CPU would fetch this line, and the stores would wait.
            let guard = match store {
                Store::Streamed(guard) if self.has_kernels => Some(guard),
                _ => None,
            };
            with_scratch(T::ZERO, guard.map_or(0, |_| BLOCK), |made| {
                let mut norms = norms.chunks_mut(self.in_batch);
                target.for_blocks_of(self.in_batch * self.len, is_in_place, |range, data| {
                    let (at, norms) = (first + range.start / self.len, norms.next().unwrap_or_default());
                    if let Some(guard) = guard {
                        let made = &mut made[..data.len()];
                        self.batch(at, made, norms, scratch);
                        self.isa.stream(guard, made, data, Identity);
                        return true;
                    }
                    let changes = if self.has_kernels {
                        self.batch(at, data, norms, scratch)
                    } else {
                        self.one_by_one(at, data, norms, store)
                    };
                    changes || !is_in_place
                });
            });
        });
    }

    /// Scales rows one by one. Returns whether an element changes.
    fn one_by_one(&self, first: usize, data: &mut [T], norms: &mut [T::Norm], store: Store<'_>) -> bool {
        let (rows, mut norms) = ((first..).zip(data.chunks_mut(self.len)), norms.iter_mut());
        rows.fold(false, |any, (at, row)| any | self.one(at, row, store, norms.next()))
    }

    /// Scales one row by way of its view. Returns whether its elements change.
    fn one(&self, at: usize, row: &mut [T], store: Store<'_>, to: Option<&mut T::Norm>) -> bool {
        let mut source = self.source.map(|source| source.slice(at));
        if let Some(view @ View::Strided { .. }) = &source {
            // The elements are gathered once, not for each pass.
            view.copy_to(0..row.len(), row);
            source = None;
        }
        let mut task = Task { source, target: Target::Dense(row) };
        let norm = norm_of_view(self.isa, &task.input(), Order::Two);
        let factor = self.rule.factor(norm);
        task.scale(self.isa, factor, store);
        if let Some(to) = to {
            *to = T::Norm::of(norm);
        }
        factor.is_some()
    }

    /// Scales at most a batch of rows by kernels for batches. Unless the output is the input, too, the elements of `data` are
    /// arbitrary. Returns whether an element changes.
    fn batch(&self, first: usize, data: &mut [T], norms: &mut [T::Norm], scratch: &mut Scratch) -> bool {
        let (isa, len, count) = (self.isa, self.len, data.len() / self.len);
        let source = self.read(first * len, data);
        let (sums, factors) = (&mut scratch.sums[..count], &mut scratch.factors[..count]);
        row_sums(isa, source.unwrap_or(data), [len; 2], Reduction::Square, sums);
        let are_plain = self.rule.plain_factors(isa, sums, factors, norms);
        if self.source.is_none() && factors.iter().all(|factor| *factor == 1.0) {
            return false; // nothing is written
        }
        if are_plain && len <= rows::VERY_SHORT {
            let each = scratch.each.get_or_insert([0.0; _]);
            isa.run(RepeatEach { factors, len, to: each });
            let (each, kind) =
                (&each[..data.len()], FactorKind { is_plain: true, rounding: self.rule.rounding() });
            isa.run(ScaleEach { from: source, to: data, factors: each, kind });
            return true;
        }
        let mut changes = false;
        let mut done = 0;
        while done < count {
            let plain = factors[done..].iter().take_while(|factor| **factor != 0.0).count();
            let (from, to) = (done * len, (done + plain) * len);
            let (source, factors) = (source.map(|source| &source[from..to]), &factors[done..done + plain]);
            match self.rule.rounding() {
                Rounding::TowardZero => self.scale_each(source, &mut data[from..to], factors, Truncate),
                Rounding::Nearest => self.scale_each(source, &mut data[from..to], factors, Times),
            }
            changes |= factors.iter().any(|factor| *factor != 1.0);
            done += plain;
            if done < count {
                // The factor of this row is not plain.
                let row = &mut data[done * len..(done + 1) * len];
                changes |= self.one(first + done, row, Store::Cached, norms.get_mut(done));
                done += 1;
            }
        }
        changes
    }

    /// The elements of the source from a position on, as many as in `data`. If they are not contiguous, `data` gets them, and the
    /// result is None, as for an output that is the input, too.
    fn read(&self, from: usize, data: &mut [T]) -> Option<&[T]> {
        let range = from..from + data.len();
        match self.elements.as_ref()? {
            View::Dense(elements) => Some(&elements[range]),
            strided @ View::Strided { .. } => {
                strided.copy_to(range, data);
                None
            }
        }
    }

    /// Scales each row by a normal factor. A factor of 1 keeps the bits of finite numbers; in place, it writes nothing.
    fn scale_each<M: Map<T>>(
        &self,
        source: Option<&[T]>,
        rows: &mut [T],
        factors: &[f64],
        map: impl Fn(f64) -> M,
    ) {
        let rows = rows.chunks_exact_mut(self.len).zip(factors);
        if let Some(source) = source {
            let rows = source.chunks_exact(self.len).zip(rows);
            self.isa.run(ApplyEach(rows.map(|(from, (to, by))| (Some(from), to, map(*by)))));
        } else {
            let changed = rows.filter(|(_, by)| **by != 1.0);
            self.isa.run(ApplyEach(changed.map(|(row, by)| (None, row, map(*by)))));
        }
    }
}
