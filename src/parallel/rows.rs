//! Rows: slices that are scaled one after the other, each by its own norm while the cache holds it.

use super::elementwise::{Task, is_streamed, streaming};
use super::reduce::{Order, Reduction, SHORT, has_exact_zeros, norm_of_view, row_sums, slices_in_job};
use super::{Crew, WAKE_MIN_BYTES, work_of};
use crate::element::{Ordered, Real};
use crate::error::{Result, vec_with_room};
use crate::isa::{Identity, Isa, LINE, slice_of, slice_of_mut};
use crate::kernel::halves::{FromSingles, ToSingles};
use crate::kernel::rows::{self, PlainFactors, ScaleRows};
use crate::kernel::sum::BLOCK;
use crate::scaled::{Factor, FromNorm, Limit, Rounding, Scaled};
use crate::walk::{Store, Target, View, with_scratch};

/// The rule by which the factor of a slice follows from its norm.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// The norm becomes at most the limit.
    Clip(Limit),
    /// The norm of this order becomes 1.
    Normalize(Order),
}

impl Rule {
    /// The factor; None if the slice stays as it is.
    pub fn factor(self, norm: Scaled) -> Option<Factor> {
        match self {
            Self::Clip(limit) => limit.factor(norm),
            Self::Normalize(_) => Some(norm.factor_to(1.0)).filter(|factor| *factor != Factor::ONE),
        }
    }

    /// The order of the norms.
    pub fn order(self) -> Order {
        if let Self::Normalize(order) = self { order } else { Order::Two }
    }

    /// The rounding of products.
    pub(super) fn rounding(self) -> Rounding {
        match self {
            Self::Clip(Limit { margin, .. }) if margin > 0.0 => Rounding::TowardZero,
            _ => Rounding::Nearest,
        }
    }

    /// Computes factors and norms from sums by [`PlainFactors`].
    pub(super) fn plain_factors<N: FromNorm>(
        self,
        isa: Isa,
        sums: &[f64],
        exact_zeros: bool,
        factors: &mut [f64],
        norms: &mut [N],
    ) -> bool {
        let (limit, keeps) = match self {
            Self::Clip(limit) => (limit, true),
            Self::Normalize(_) => (1.0.into(), false),
        };
        let roots = self.order() == Order::Two;
        isa.run(PlainFactors { sums, exact_zeros, roots, limit, keeps, factors, norms })
    }
}

/// Whether slices of `len` elements, of `size` bytes each, are scaled as rows, by their norms of order 1 or 2. Longer slices are
/// shared by all threads, one after the other.
pub fn is_row(len: usize, size: usize) -> bool {
    len > 0 && len.saturating_mul(2 * size) < WAKE_MIN_BYTES
}

/// Whether [`scale_rows`] writes rows of `len` elements to this output. Rows of an output that is not dense are made in scratch
/// memory, which has room for a block. If they are columns of the output, a batch must have enough rows to fill cache lines.
pub fn takes_output<T: Ordered>(output: &Target<'_, T>, len: usize) -> bool {
    matches!(output, Target::Dense(_))
        || len <= BLOCK && (output.fills_lines() || BLOCK / len * size_of::<T>() >= LINE)
}

/// Scales each row of `len` elements by its own norm. The positions of the task are those of the first row, then those of the
/// next; see [`takes_output`]. `norms` gets the norm of each row, or is empty.
pub fn scale_rows<T: Real>(
    isa: Isa,
    Task { source, target: mut output }: Task<'_, T>,
    len: usize,
    rule: Rule,
    norms: &mut [T::Norm],
) -> Result<()> {
    let (count, bytes) = (output.len() / len, output.len() * size_of::<T>());
    let (is_half, is_dense) = (size_of::<T>() == 2, matches!(output, Target::Dense(_)));
    let has_kernels = len <= if is_half { LONGEST_HALVES } else { SHORT };
    let is_streamed_out = is_dense && is_streamed(bytes);
    let in_batch = if is_dense && !(has_kernels && (is_streamed_out || is_half)) {
        rows::at_once::<T>(len)
    } else {
        // As many rows as the scratch memory holds.
        (BLOCK / len).clamp(1, rows::MAX_ROWS_AT_ONCE)
    };
    let in_job = slices_in_job::<T>(bytes, len, in_batch);
    let rows = Rows { isa, source, len, rule, in_batch, has_kernels, is_streamed_out };
    if count <= in_job {
        // Fast path: there is nothing to share.
        rows.scale(0, output, norms);
        return Ok(());
    }
    let work = work_of(2 * bytes, count);
    // Whole batches, so that only the last batch is short.
    let jobs = output.parts(len * in_job);
    let scale = |at, data, norms| rows.scale(at / len, data, norms);
    if norms.is_empty() {
        return Crew::new().each(work, jobs, |(at, data)| scale(at, data, &mut [])); // without an allocation
    }
    // A list, because threads take jobs from both ends, and the number of `parts` is not known.
    let mut with_norms = vec_with_room(count.div_ceil(in_job))?;
    with_norms.extend(jobs.zip(norms.chunks_mut(in_job)));
    Crew::new().each(work, with_norms.into_iter(), |((at, data), norms)| scale(at, data, norms))
}

/// The longest rows of 16-bit elements for which [`ScaleRows`] pays. Longer rows have kernels of their own.
const LONGEST_HALVES: usize = 256;

/// How one call scales its rows.
struct Rows<'a, T> {
    isa: Isa,
    /// The elements to read, row by row. None: the output is the input, too.
    source: Option<View<'a, T>>,
    /// The number of elements of a row.
    len: usize,
    rule: Rule,
    /// The number of rows of a batch, which stay in the L1 cache.
    in_batch: usize,
    /// Whether kernels take whole batches.
    has_kernels: bool,
    /// Whether the output is written by non-temporal stores.
    is_streamed_out: bool,
}

/// Scratch memory for a batch. To clear it for each batch would take longer than a batch of very short rows.
struct Scratch {
    sums: [f64; rows::MAX_ROWS_AT_ONCE],
    factors: [f64; rows::MAX_ROWS_AT_ONCE],
    /// The elements of 16-bit rows as float32.
    converted: Option<[f32; BLOCK]>,
    /// The scaled elements of 16-bit rows, to be rounded.
    made: Option<[f32; BLOCK]>,
}

/// Memory for `len` numbers, which is cleared when it is used first.
fn cleared(memory: &mut Option<[f32; BLOCK]>, len: usize) -> &mut [f32] {
    &mut memory.get_or_insert_with(|| [0.0; _])[..len]
}

impl<T: Real> Rows<'_, T> {
    /// Scales the rows from number `first` on. `norms` gets the norm of each row, or is empty.
    fn scale(&self, first: usize, mut target: Target<'_, T>, norms: &mut [T::Norm]) {
        let is_in_place = self.source.is_none();
        let mut scratch = Scratch { sums: [0.0; _], factors: [0.0; _], converted: None, made: None };
        let guard = streaming(self.is_streamed_out && !is_in_place);
        // Kernels of batches write to scratch memory first. Two short rows share a cache line. If each row were written by
        // non-temporal stores, the CPU would fetch this line, and the stores would wait.
        let by_batches = guard.as_ref().filter(|_| self.has_kernels);
        with_scratch(T::ZERO, by_batches.map_or(0, |_| BLOCK), |made| {
            let mut norms = norms.chunks_mut(self.in_batch);
            target.for_blocks_of(self.in_batch * self.len, is_in_place, |range, data| {
                let (at, norms) = (first + range.start / self.len, norms.next().unwrap_or_default());
                if let Some(guard) = by_batches {
                    let made = &mut made[..data.len()];
                    self.batch(at, made, norms, &mut scratch);
                    self.isa.stream(guard, made, data, Identity);
                    return true;
                }
                let changes = if self.has_kernels {
                    self.batch(at, data, norms, &mut scratch)
                } else {
                    let (rows, mut norms) = ((at..).zip(data.chunks_mut(self.len)), norms.iter_mut());
                    rows.fold(false, |any, (at, row)| any | self.one(at, row, guard.as_ref(), norms.next()))
                };
                changes || !is_in_place
            });
        });
    }

    /// Scales one row by way of its view. Returns whether its elements change.
    fn one(&self, at: usize, row: &mut [T], store: Store<'_>, to: Option<&mut T::Norm>) -> bool {
        // The elements are gathered once, not for each pass.
        let source = self.read(at * self.len, row).map(View::Dense);
        let mut task = Task { source, target: Target::Dense(row) };
        let norm = norm_of_view(self.isa, &task.input(), self.rule.order());
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
        let from = if size_of::<T>() == 2 {
            let to = cleared(&mut scratch.converted, data.len());
            isa.run(ToSingles { from: source.unwrap_or(data), to: &mut *to });
            slice_of(to)
        } else {
            source.and_then(slice_of)
        };
        let (sums, factors) = (&mut scratch.sums[..count], &mut scratch.factors[..count]);
        let rows = from.or_else(|| slice_of(data)).unwrap_or_default();
        let pass = if self.rule.order() == Order::One { Reduction::Abs } else { Reduction::Square };
        row_sums(isa, rows, [len; 2], pass, sums);
        let exact_zeros = has_exact_zeros(isa, rows, [len; 2], pass, sums);
        let are_plain = self.rule.plain_factors(isa, sums, exact_zeros, factors, norms);
        if self.source.is_none() && factors.iter().all(|factor| *factor == 1.0) {
            return false; // nothing is written
        }
        if are_plain {
            self.scale_plain(from, data, factors, &mut scratch.made);
            return true;
        }
        let mut changes = false;
        for (i, (row, factor)) in data.chunks_mut(len).zip(&*factors).enumerate() {
            if *factor == 0.0 {
                changes |= self.one(first + i, row, None, norms.get_mut(i));
            } else if self.source.is_some() || *factor != 1.0 {
                let from = from.map(|from| &from[i * len..(i + 1) * len]);
                self.scale_plain(from, row, &[*factor], &mut scratch.made);
                changes = true;
            }
        }
        changes
    }

    /// Scales each row by a normal factor. A factor of 1 keeps the bits of finite numbers.
    fn scale_plain(
        &self,
        from: Option<&[T::Norm]>,
        data: &mut [T],
        factors: &[f64],
        made: &mut Option<[f32; BLOCK]>,
    ) {
        let (isa, len) = (self.isa, self.len);
        let scale = |to: &mut [T::Norm]| match self.rule.rounding() {
            Rounding::TowardZero => isa.run(ScaleRows::<T, true> { from, to, len, factors }),
            Rounding::Nearest => isa.run(ScaleRows::<T, false> { from, to, len, factors }),
        };
        if let Some(to) = slice_of_mut(data) {
            return scale(to);
        }
        let made = cleared(made, data.len());
        slice_of_mut(made).into_iter().for_each(scale);
        isa.run(FromSingles { from: made, to: data });
    }

    /// The elements of the source from a position on, as many as in `data`. If they are not contiguous, `data` gets them, and the
    /// result is None, as for an output that is the input, too.
    fn read(&self, from: usize, data: &mut [T]) -> Option<&[T]> {
        let (source, range) = (self.source.as_ref()?, from..from + data.len());
        let elements = source.contiguous(&range);
        if elements.is_none() {
            source.copy_to(range, data);
        }
        elements
    }
}
