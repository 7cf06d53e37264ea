//! Rows: slices that lie one after the other in the output. Each row is scaled by its own norm while the cache holds it.

use super::elementwise::{Task, is_streamed, with_store};
use super::reduce::{Order, Reduction, SHORT, has_row_sums, norm_of_view, row_sums, slices_in_job};
use super::{Crew, WAKE_MIN_BYTES, work_of};
use crate::element::Real;
use crate::error::Result;
use crate::isa::{Identity, Isa};
use crate::kernel::map::{ApplyEach, Map};
use crate::kernel::rows::{self, PlainFactors};
use crate::kernel::scale::Times;
use crate::kernel::sum::BLOCK;
use crate::kernel::truncate::Truncate;
use crate::scaled::{Factor, FromNorm, Limit, Rounding, Scaled};
use crate::walk::{Slices, Store, Target, with_scratch};

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

/// Scales each row of `len` elements by its own norm. Without a `source`, the output is the input, too. `norms` gets the
/// norm of each row, or is empty.
///
/// # Errors
/// An invalid setting of the number of threads.
pub fn scale_rows<T: Real>(
    isa: Isa,
    source: Option<&Slices<'_, T>>,
    output: &mut [T],
    len: usize,
    rule: Rule,
    norms: &mut [T::Norm],
) -> Result<()> {
    let rows = Rows::new(isa, source, output.len(), len, rule);
    let work = work_of(2 * size_of_val(output), output.len() / len);
    let jobs = output.chunks_mut(len * rows.in_job).enumerate();
    let scale = |job, data, norms| rows.scale(job * rows.in_job, data, norms);
    if norms.is_empty() {
        return Crew::new().each(work, jobs, |(job, data)| scale(job, data, &mut []));
    }
    let jobs = jobs.zip(norms.chunks_mut(rows.in_job));
    Crew::new().each(work, jobs, |((job, data), norms)| scale(job, data, norms))
}

/// How one call scales its rows.
struct Rows<'a, T> {
    isa: Isa,
    source: Option<&'a Slices<'a, T>>,
    /// The number of elements of a row.
    len: usize,
    rule: Rule,
    /// The number of rows of a job: whole batches, so that only the last batch is short.
    in_job: usize,
    /// The number of rows of a batch; 0 where no kernel takes batches: for long rows, and for elements of 16 bits, which have
    /// kernels of their own.
    in_batch: usize,
    /// Whether the output is written by non-temporal stores.
    is_streamed_out: bool,
}

impl<'a, T: Real> Rows<'a, T> {
    fn new(isa: Isa, source: Option<&'a Slices<'a, T>>, elements: usize, len: usize, rule: Rule) -> Self {
        let has_batches = size_of::<T>() > 2 && has_row_sums::<T>(len, Reduction::Square);
        let bytes = elements * size_of::<T>();
        let is_streamed_out = is_streamed(bytes);
        let in_batch = match (has_batches && len <= SHORT, is_streamed_out) {
            (false, _) => 0,
            (true, false) => rows::at_once::<T>(len),
            // As many rows as the scratch memory holds.
            (true, true) => (BLOCK / len).min(rows::MAX_ROWS_AT_ONCE),
        };
        let in_job = slices_in_job::<T>(bytes, len, in_batch.max(1));
        Self { isa, source, len, rule, in_job, in_batch, is_streamed_out }
    }

    /// Scales the rows from number `first` on. `norms` gets the norm of each row, or is empty.
    fn scale(&self, first: usize, data: &mut [T], norms: &mut [T::Norm]) {
        let dense = self.source.map(|source| source.dense(first..first + data.len() / self.len));
        if self.in_batch == 0 || matches!(dense, Some(None)) {
            // Non-temporal stores do not write short rows one by one: two short rows share a cache line, which the CPU then
            // fetches, and the stores wait for it.
            return with_store(self.is_streamed_out && self.in_batch == 0, |store| {
                let mut norms = norms.iter_mut();
                for (at, row) in (first..).zip(data.chunks_mut(self.len)) {
                    let norm = self.one(at, row, store);
                    norms.next().into_iter().for_each(|to| *to = norm);
                }
            });
        }
        let (in_batch, source) = (self.in_batch, dense.flatten());
        with_store(self.is_streamed_out && source.is_some(), |store| {
            let scratch = if let Store::Streamed(_) = store { in_batch * self.len } else { 0 };
            with_scratch(T::ZERO, scratch, |made| {
                let mut norms = norms.chunks_mut(in_batch);
                for (i, data) in data.chunks_mut(in_batch * self.len).enumerate() {
                    let source = source.map(|source| &source[i * in_batch * self.len..][..data.len()]);
                    let (at, norms) = (first + i * in_batch, norms.next().unwrap_or_default());
                    if let Store::Streamed(guard) = store {
                        let made = &mut made[..data.len()];
                        self.batch(at, source, made, norms);
                        self.isa.stream(guard, made, data, Identity);
                    } else {
                        self.batch(at, source, data, norms);
                    }
                }
            });
        });
    }

    /// Scales one row by way of its view. Returns its norm.
    fn one(&self, at: usize, row: &mut [T], store: Store<'_>) -> T::Norm {
        let mut task =
            Task { source: self.source.map(|source| source.slice(at)), target: Target::Dense(row) };
        let norm = norm_of_view(self.isa, &task.input(), Order::Two);
        task.scale(self.isa, self.rule.factor(norm), store);
        T::Norm::of(norm)
    }

    /// Scales at most a batch of rows by the kernels for batches. A row whose factor is not plain is scaled by itself. `source`
    /// holds these rows of the input, unless the output is the input, too.
    fn batch(&self, first: usize, source: Option<&[T]>, data: &mut [T], norms: &mut [T::Norm]) {
        let (isa, len, count) = (self.isa, self.len, data.len() / self.len);
        let (mut sums, mut factors) = ([0.0; rows::MAX_ROWS_AT_ONCE], [0.0; rows::MAX_ROWS_AT_ONCE]);
        let (sums, factors) = (&mut sums[..count], &mut factors[..count]);
        row_sums(isa, source.unwrap_or(data), len, Reduction::Square, sums);
        self.rule.plain_factors(isa, sums, factors, norms);
        let rounding = self.rule.rounding();
        let mut done = 0;
        while done < count {
            let plain = factors[done..].iter().take_while(|factor| **factor != 0.0).count();
            let (from, to) = (done * len, (done + plain) * len);
            let (source, factors) = (source.map(|source| &source[from..to]), &factors[done..done + plain]);
            match rounding {
                Rounding::TowardZero => self.scale_each(source, &mut data[from..to], factors, Truncate),
                Rounding::Nearest => self.scale_each(source, &mut data[from..to], factors, Times),
            }
            done += plain;
            if done < count {
                let norm = self.one(first + done, &mut data[done * len..(done + 1) * len], Store::Cached);
                norms.get_mut(done).into_iter().for_each(|to| *to = norm);
                done += 1;
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
