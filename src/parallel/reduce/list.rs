//! The norm of many arrays as one.

use std::iter;
use std::ops::{Deref, Range};
use std::slice;
use std::sync::{Mutex, PoisonError};

use super::order::{Order, Reduction};
use super::pass::{CHUNK, SHORT, Terms, sums_directly, with_direct_term};
use crate::element::{Dtype, Element};
use crate::error::{Result, vec_with_room};
use crate::isa::Isa;
use crate::kernel::exact::{Accumulator, ExactSum, Power};
use crate::kernel::sum::{Spans, SumEach, Total, is_plain_sum};
use crate::parallel::{Crew, job_bytes, work_of};
use crate::scaled::Scaled;

/// A view of any dtype, or a difference.
pub type AnyView<'a> = Box<dyn Terms + 'a>;

/// The arrays of a list. A view of an array is made when the array is read, because a list of views of small arrays would be
/// many times as long as the description of the arrays.
pub trait Views: Sync {
    /// The number of arrays.
    fn count(&self) -> usize;
    /// The elements of array `at`, below [`Views::count`], and the bytes of each element.
    fn size(&self, at: usize) -> (usize, usize);
    /// Calls `read` with a view of array `at`.
    fn with<R>(&self, at: usize, read: impl FnOnce(&dyn Terms) -> R) -> R;
    /// The bytes of all arrays.
    fn bytes(&self) -> usize {
        (0..self.count()).map(|at| self.size(at)).map(|(len, size)| len * size).sum()
    }
    /// Passes the first arrays of a range to `sums`, up to the first array that is not dense, has another dtype or is not taken
    /// by `sums`. Returns the number of these arrays.
    fn sum_short(&self, range: Range<usize>, sums: EachSum<'_>) -> usize {
        let _ = (range, sums);
        0
    }
}

/// The number of short arrays that one call of a kernel sums. Their sums take 1.5 KiB of the stack.
const ARRAYS_PER_CALL: usize = 64;

/// Adds up short arrays that are dense and have one dtype, and calls `each` with their sums, those of some arrays at a time.
pub struct EachSum<'a> {
    isa: Isa,
    pass: Reduction,
    each: &'a mut dyn FnMut(&[Total]),
}

impl EachSum<'_> {
    /// Whether arrays of this dtype and of `len` elements are added up here.
    pub fn takes<T: Element>(&self, len: usize) -> bool {
        // float16 is converted first, array by array.
        T::DTYPE != Dtype::F16 && len <= SHORT && sums_directly::<T>(len, self.pass)
    }

    /// Adds up arrays.
    pub fn add<'a, T: Element>(self, mut arrays: impl ExactSizeIterator<Item = &'a [T]>) {
        let (mut sums, mut totals) = ([0.0; ARRAYS_PER_CALL], [Total::default(); ARRAYS_PER_CALL]);
        while arrays.len() > 0 {
            let sums = &mut sums[..arrays.len().min(ARRAYS_PER_CALL)];
            let sequences =
                sums.iter_mut().zip(arrays.by_ref()).map(|(sum, array)| (array.len(), array, sum));
            with_direct_term!(self.pass, term => self.isa.run(SumEach { sequences, term }));
            sums.iter().zip(&mut totals).for_each(|(sum, total)| *total = Total::from(*sum));
            (self.each)(&totals[..sums.len()]);
        }
    }
}

impl<'a, V: Deref<Target = dyn Terms + 'a> + Sync> Views for &[V] {
    fn count(&self) -> usize {
        self.len()
    }
    fn size(&self, at: usize) -> (usize, usize) {
        self[at].size()
    }
    fn with<R>(&self, at: usize, read: impl FnOnce(&dyn Terms) -> R) -> R {
        read(&*self[at])
    }
}

/// The norm of all elements of all arrays.
pub fn norm_of_views(isa: Isa, crew: &Crew, arrays: &impl Views, order: Order) -> Result<Scaled> {
    let leaves_range = || (0..arrays.count()).any(|at| arrays.with(at, |array| array.leaves_range()));
    let list = List::new(isa, arrays, order.cost())?;
    order.norm(leaves_range, |by| list.max(crew, by), |pass| list.sum(crew, pass))
}

/// The norm of one array, on all threads.
pub fn norm_of_array(isa: Isa, crew: &Crew, array: &dyn Terms, order: Order) -> Result<Scaled> {
    norm_of_views(isa, crew, &slice::from_ref(&array), order)
}

/// The sum of the magnitudes of all elements, or of their squares, without any rounding.
pub fn exact_sum(isa: Isa, crew: &Crew, arrays: &[AnyView<'_>], power: Power) -> Result<ExactSum> {
    let list = List::new(isa, &arrays, 1)?;
    let total = Mutex::new(ExactSum::default());
    // The order in which threads add to the total does not matter: the sums are integers.
    let add = |parts: &mut dyn Iterator<Item = (&dyn Terms, Range<usize>)>| {
        let mut own = Accumulator::new(power);
        parts.for_each(|(array, range)| array.add_exactly(isa, range, &mut own));
        total.lock().unwrap_or_else(PoisonError::into_inner).merge(&own.sum);
    };
    let add_whole = |arrays: &[AnyView<'_>]| {
        add(&mut arrays.iter().map(|array| (&**array, 0..array.size().0)));
    };
    if list.is_shared {
        let whole = |range: Range<usize>, _: &mut [()]| add_whole(&arrays[range]);
        list.share(crew, whole, |array, range| add(&mut iter::once((array, range))))?;
    } else {
        add_whole(arrays);
    }
    Ok(total.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The norm of each array, with the bits that [`norm_of_views`] of the array alone has.
pub fn norms_of_views(isa: Isa, crew: &Crew, arrays: &impl Views, order: Order) -> Result<Vec<Scaled>> {
    let mut norms = vec_with_room(arrays.count())?;
    let unknown = Scaled::new(f64::NAN, 0);
    if let (Order::One | Order::Two | Order::Square, Some(first)) = (order, order.first()) {
        List::new(isa, arrays, 1)?.each_sum(crew, first, |sums| {
            norms.extend(sums.iter().map(|sum| match (sum.value(), order) {
                (sum, _) if !is_plain_sum(sum) => unknown,
                (sum, Order::Two) => Scaled::new(sum.sqrt(), 0),
                (sum, _) => Scaled::new(sum, 0),
            }));
        })?;
    }
    norms.resize(arrays.count(), unknown);
    // An array whose sum may have left float64's range, or is not known, is read from the beginning.
    for (at, norm) in norms.iter_mut().enumerate().filter(|(_, norm)| norm.to_f64().is_nan()) {
        *norm = arrays.with(at, |array| norm_of_array(isa, crew, array, order))?;
    }
    Ok(norms)
}

/// The arrays of one call, and the cost of passes over them.
struct List<'a, V> {
    isa: Isa,
    arrays: &'a V,
    /// The work of reading the arrays, in bytes.
    work: usize,
    /// The work of a pass, in bytes that could be read in that time.
    cost: usize,
    /// Whether the passes are worth several threads.
    is_shared: bool,
}

/// Arrays or chunks that one thread reads, and the places of their results.
enum Job<'a, R> {
    /// Arrays of one chunk at most, with a result for each.
    Arrays(Range<usize>, &'a mut [R]),
    /// Chunks of the array `at`, from number `chunk` on, with a result for each.
    Chunks { at: usize, chunk: usize, results: &'a mut [R] },
}

impl<'a, V: Views> List<'a, V> {
    /// A list whose passes take `cost` times as long as a plain read.
    fn new(isa: Isa, arrays: &'a V, cost: usize) -> Result<Self> {
        let work = work_of(arrays.bytes(), arrays.count());
        let cost = work.saturating_mul(cost);
        Ok(Self { isa, arrays, work, cost, is_shared: Crew::is_shared(cost)? })
    }

    /// The largest modulus, times a power of two.
    fn max(&self, crew: &Crew, by: f64) -> Result<f64> {
        let largest = |a: f64, b: f64| if a.is_nan() || a >= b { a } else { b };
        let whole = |at| self.arrays.with(at, |array| array.max(self.isa, 0..array.size().0, by));
        if !self.is_shared {
            return Ok((0..self.arrays.count()).map(whole).fold(0.0, largest));
        }
        let found = self.share(
            crew,
            |range, maxima| range.zip(maxima).for_each(|(at, max)| *max = whole(at)),
            |array, range| array.max(self.isa, range, by),
        )?;
        Ok(found.into_iter().fold(0.0, largest))
    }

    /// The sum that a pass adds up.
    fn sum(&self, crew: &Crew, pass: Reduction) -> Result<f64> {
        let (mut spans, mut at) = (Spans::default(), 0);
        self.each_sum(crew, pass, |sums| {
            // A local copy stays in registers. `spans` is borrowed, so it would be stored after each addition.
            let mut own = spans;
            for sum in sums {
                // Empty arrays do not count, so they change no bit.
                if self.arrays.size(at).0 > 0 {
                    own.push(*sum);
                }
                at += 1;
            }
            spans = own;
        })?;
        Ok(spans.total().value())
    }

    /// Calls `each` with the sums of all arrays, in order, those of some arrays at a time.
    fn each_sum(&self, crew: &Crew, pass: Reduction, mut each: impl FnMut(&[Total])) -> Result<()> {
        if !self.is_shared {
            self.sums(pass, 0..self.arrays.count(), each);
            return Ok(());
        }
        let found = self.share(
            crew,
            |range, mut totals: &mut [Total]| {
                self.sums(pass, range, |sums| {
                    let own = totals.split_off_mut(..sums.len()).unwrap_or_default();
                    own.iter_mut().zip(sums).for_each(|(own, sum)| *own = *sum);
                });
            },
            |array, range| array.sum(self.isa, pass, range),
        )?;
        // The chunks of an array are merged first, as in a list that one thread reads.
        let mut rest = found.iter();
        for at in 0..self.arrays.count() {
            each(&[Total::of_chunks(rest.by_ref().take(self.chunks(at)).copied())]);
        }
        Ok(())
    }

    /// Calls `each` with the sums over the arrays of a range, in order, those of some arrays at a time.
    fn sums(&self, pass: Reduction, mut range: Range<usize>, mut each: impl FnMut(&[Total])) {
        let isa = self.isa;
        while !range.is_empty() {
            range.start += self.arrays.sum_short(range.clone(), EachSum { isa, pass, each: &mut each });
            let Some(first) = range.next() else { break };
            each(&[self.arrays.with(first, |array| array.sum(isa, pass, 0..array.size().0))]);
        }
    }

    /// The number of chunks of an array; an empty array has one, too.
    fn chunks(&self, at: usize) -> usize {
        self.arrays.size(at).0.div_ceil(CHUNK).max(1)
    }

    /// The results of all chunks of all arrays, in order, on several threads. `whole` computes the results of neighbouring
    /// arrays that have one chunk each, and `part` the result of one chunk of a longer array.
    fn share<R: Copy + Default + Send>(
        &self,
        crew: &Crew,
        whole: impl Fn(Range<usize>, &mut [R]) + Sync,
        part: impl Fn(&dyn Terms, Range<usize>) -> R + Sync,
    ) -> Result<Vec<R>> {
        let count = (0..self.arrays.count()).map(|at| self.chunks(at)).sum();
        let mut results = vec_with_room(count)?;
        results.resize(count, R::default());
        let jobs = self.jobs(&mut results)?;
        crew.each(self.cost, jobs.into_iter(), |job| match job {
            Job::Arrays(range, results) => whole(range, results),
            Job::Chunks { at, chunk, results } => self.arrays.with(at, |array| {
                for (from, result) in (chunk * CHUNK..).step_by(CHUNK).zip(results) {
                    *result = part(array, from..array.size().0.min(from + CHUNK));
                }
            }),
        })?;
        Ok(results)
    }

    /// Cuts a pass into jobs of about the same number of bytes. `results` has one place for each chunk.
    fn jobs<'r, R>(&self, mut results: &'r mut [R]) -> Result<Vec<Job<'r, R>>> {
        let (arrays, share) = (self.arrays, job_bytes(self.work));
        let mut take = |count| results.split_off_mut(..count).unwrap_or_default();
        let mut jobs = Vec::new();
        let mut at = 0;
        while at < arrays.count() {
            // Neighbouring short arrays make one job.
            let mut sum = 0;
            let short = (at..arrays.count()).take_while(|at| {
                let (len, size) = arrays.size(*at);
                let is_taken = sum < share && len <= CHUNK;
                sum += work_of(len * size, 2);
                is_taken
            });
            let count = short.count();
            if count > 0 {
                jobs.try_reserve(1)?;
                jobs.push(Job::Arrays(at..at + count, take(count)));
                at += count;
                continue;
            }
            let (chunks, (_, size)) = (self.chunks(at), arrays.size(at));
            let in_job = (share / (CHUNK * size)).max(1);
            jobs.try_reserve(chunks.div_ceil(in_job))?;
            for chunk in (0..chunks).step_by(in_job) {
                jobs.push(Job::Chunks { at, chunk, results: take(in_job.min(chunks - chunk)) });
            }
            at += 1;
        }
        Ok(jobs)
    }
}
