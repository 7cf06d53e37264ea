//! The norm of many arrays as one.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::{mem, slice};

use super::difference::{AnyDifference, Difference};
use super::order::{Order, OverflowRisk, Reduction};
use super::pass::{CHUNK, SHORT, has_row_sums, max_of_view, with_direct_term};
use crate::element::{Element, for_each_element};
use crate::error::{Result, vec_with_room};
use crate::isa::Isa;
use crate::kernel::difference::Minus;
use crate::kernel::exact::{Accumulator, ExactSum, Power};
use crate::kernel::sum::{PIECE, SumEach, Total};
use crate::parallel::{Crew, job_bytes, work_of};
use crate::scaled::Scaled;
use crate::walk::View;

macro_rules! any_view {
    ($($name:ident: $t:ty,)*) => {
        /// A view of one of the dtypes.
        #[derive(Debug)]
        #[allow(missing_docs, reason = "the names say it")]
        pub enum AnyView<'a> { $($name(View<'a, $t>),)* Difference(AnyDifference<'a>) }

        $(impl<'a> From<View<'a, $t>> for AnyView<'a> {
            fn from(view: View<'a, $t>) -> Self { Self::$name(view) }
        })*

        impl<'a, T: Minus> From<Difference<'a, T>> for AnyView<'a> {
            fn from(difference: Difference<'a, T>) -> Self { Self::Difference(difference.into()) }
        }

        impl AnyView<'_> {
            /// The elements, and the bytes of each.
            fn size(&self) -> (usize, usize) {
                match self { $(Self::$name(view) => (view.len(), size_of::<$t>()),)* Self::Difference(d) => d.0.size() }
            }
            fn risk(&self) -> OverflowRisk {
                match self { $(Self::$name(_) => OverflowRisk::of::<$t>(),)* Self::Difference(d) => d.0.risk() }
            }
            fn sum(&self, isa: Isa, pass: Reduction, range: Range<usize>) -> Total {
                match self {
                    $(Self::$name(view) => pass.of_view(isa, view, range),)*
                    Self::Difference(difference) => difference.0.sum(isa, pass, range),
                }
            }
            #[inline(always)] // so that a caller that knows the dtype does not match on it again
            fn sum_of_all(&self, isa: Isa, pass: Reduction) -> Total {
                match self {
                    $(Self::$name(view) => pass.of_whole(isa, view),)*
                    Self::Difference(difference) => difference.0.sum(isa, pass, 0..difference.0.size().0),
                }
            }
            fn add_exactly(&self, isa: Isa, range: Range<usize>, to: &mut Accumulator) {
                match self {
                    $(Self::$name(view) => view.for_blocks(range, |data| to.add(isa, data)),)*
                    Self::Difference(difference) => difference.0.add_exactly(isa, range, to),
                }
            }
            fn max(&self, isa: Isa, range: Range<usize>, by: f64) -> f64 {
                match self {
                    $(Self::$name(view) => max_of_view(isa, view, range, by),)*
                    Self::Difference(difference) => difference.0.max(isa, range, by),
                }
            }
        }
    };
}
for_each_element!(any_view);

/// The arrays of a list. Each is made a view when its turn comes: a list of views of small arrays would be many times as
/// long as the description of the arrays.
pub trait Views: Sync {
    /// How many there are.
    fn len(&self) -> usize;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The elements of array `at`, below [`Views::len`], and the bytes of each element.
    fn size(&self, at: usize) -> (usize, usize);
    /// Calls `read` with a view of array `at`.
    fn with<R>(&self, at: usize, read: impl FnOnce(&AnyView<'_>) -> R) -> R;
    /// The bytes of all of them, if it is known that they have one dtype.
    fn bytes_alike(&self) -> Option<usize> {
        None
    }
    /// Hands the first arrays of a range to `sums`, as many as are dense, have one dtype and are taken by it. Returns how many
    /// that were: 0 if they are too few for a gain.
    fn sum_short(&self, range: Range<usize>, sums: impl ShortSums) -> usize {
        let _ = (range, sums);
        0
    }
}

/// Adds up short arrays that are dense and have one dtype.
pub trait ShortSums {
    /// Whether it takes arrays of this dtype and of `len` elements.
    fn takes<T: Element>(&self, len: usize) -> bool;
    /// Adds them up.
    fn add<'a, T: Element>(self, arrays: impl Iterator<Item = &'a [T]>);
}

/// Short arrays that one call of a kernel sums: their totals take 1 KiB of the stack.
const ARRAYS_PER_CALL: usize = 64;

/// Calls `each` with the sum of each array.
struct EachSum<'a, E> {
    isa: Isa,
    pass: Reduction,
    each: &'a mut E,
}

impl<E: FnMut(Total)> ShortSums for EachSum<'_, E> {
    fn takes<T: Element>(&self, len: usize) -> bool {
        len <= SHORT && len.is_multiple_of(PIECE) && has_row_sums::<T>(len, self.pass)
    }

    fn add<'a, T: Element>(self, mut arrays: impl Iterator<Item = &'a [T]>) {
        let totals = &mut [Total::default(); ARRAYS_PER_CALL];
        loop {
            let sequences = arrays.by_ref().take(ARRAYS_PER_CALL);
            let count = with_direct_term!(self.pass, term => {
                self.isa.run(SumEach { sequences, term, totals: &mut totals[..] })
            });
            totals.iter().take(count).for_each(|total| (self.each)(*total));
            if count < ARRAYS_PER_CALL {
                break;
            }
        }
    }
}

impl Views for &[AnyView<'_>] {
    fn len(&self) -> usize {
        <[_]>::len(self)
    }
    fn size(&self, at: usize) -> (usize, usize) {
        self[at].size()
    }
    fn with<R>(&self, at: usize, read: impl FnOnce(&AnyView<'_>) -> R) -> R {
        read(&self[at])
    }
}

/// The norm of all elements of all arrays.
///
/// # Errors
/// No memory for the list of chunks, or a bad setting of the threads.
pub fn norm(isa: Isa, crew: &Crew, arrays: &[AnyView<'_>], order: Order) -> Result<Scaled> {
    norm_of_views(isa, crew, &arrays, order)
}

/// The same for views that are made when their turn comes.
///
/// # Errors
/// No memory for the list of chunks, or a bad setting of the threads.
pub fn norm_of_views(isa: Isa, crew: &Crew, arrays: &impl Views, order: Order) -> Result<Scaled> {
    let (mut risk, mut bytes) = (OverflowRisk::default(), 0);
    let alike = arrays.bytes_alike();
    for at in 0..if alike.is_some() { arrays.len().min(1) } else { arrays.len() } {
        let (own, (len, size)) = arrays.with(at, |array| (array.risk(), array.size()));
        (risk, bytes) = (risk.or(own), bytes + len * size);
    }
    let work = work_of(alike.unwrap_or(bytes), arrays.len());
    let cost = work.saturating_mul(order.cost());
    let is_shared = Crew::is_shared(cost)?;
    let list = List { isa, arrays, work, cost, is_shared };
    order.norm(risk, |by| list.max(crew, by), |pass| list.sum(crew, pass))
}

/// The sum of the magnitudes of all elements, or of their squares, without any rounding.
///
/// # Errors
/// No memory for tables and the list of chunks, or a bad setting of the threads.
pub fn exact_sum(isa: Isa, crew: &Crew, arrays: &[AnyView<'_>], power: Power) -> Result<ExactSum> {
    let bytes = arrays.iter().map(AnyView::size).map(|(len, size)| len * size).sum();
    let work = work_of(bytes, arrays.len());
    let list = List { isa, arrays: &arrays, work, cost: work, is_shared: Crew::is_shared(work)? };
    if !list.is_shared {
        let mut own = Accumulator::new(power)?;
        for array in arrays {
            array.add_exactly(isa, 0..array.size().0, &mut own);
        }
        return Ok(*own.sum());
    }
    // In any order: integers have none.
    let total = Mutex::new(Ok(ExactSum::default()));
    let add = |work: &mut dyn FnMut(&mut Accumulator)| {
        let own = Accumulator::new(power).map(|mut own| {
            work(&mut own);
            *own.sum()
        });
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        match (&mut *total, own) {
            (Ok(total), Ok(own)) => total.merge(&own),
            (Err(_), _) => {}
            (total, Err(error)) => *total = Err(error),
        }
    };
    list.share(
        crew,
        |range, _: &mut [()]| {
            add(&mut |own| {
                for array in &arrays[range.clone()] {
                    array.add_exactly(isa, 0..array.size().0, own);
                }
            });
        },
        |array, range| add(&mut |own| array.add_exactly(isa, range.clone(), own)),
    )?;
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Makes of the norm of each array, which has the bits of its norm alone, what is wanted of it, in the order of the arrays.
///
/// # Errors
/// No memory for the list of chunks, or a bad setting of the threads.
pub fn norms_of_views<R>(
    isa: Isa,
    crew: &Crew,
    arrays: &impl Views,
    order: Order,
    norms: &mut [R],
    make: impl Fn(Scaled) -> R,
) -> Result<()> {
    let alone = |at| arrays.with(at, |view| norm(isa, crew, slice::from_ref(view), order));
    let (Order::One | Order::Two | Order::Square, Some(first)) = (order, order.first()) else {
        for (at, to) in norms.iter_mut().enumerate() {
            *to = make(alone(at)?);
        }
        return Ok(());
    };
    let sizes = || (0..arrays.len()).map(|at| arrays.size(at));
    let bytes = arrays.bytes_alike().unwrap_or_else(|| sizes().map(|(len, size)| len * size).sum());
    let work = work_of(bytes, arrays.len());
    let list = List { isa, arrays, work, cost: work, is_shared: Crew::is_shared(work)? };
    // Those that a sum does not tell.
    let (mut unknown, mut noted, mut at) = (Vec::new(), Ok(()), 0);
    list.each_sum(crew, first, |sum| {
        match (norms.get_mut(at), order.norm_of_plain_sum(sum.value())) {
            (Some(to), Some(norm)) => *to = make(norm),
            _ => noted = noted.clone().and_then(|()| unknown.try_reserve(1)).map(|()| unknown.push(at)),
        }
        at += 1;
    })?;
    noted?;
    for at in unknown {
        if let Some(to) = norms.get_mut(at) {
            *to = make(alone(at)?);
        }
    }
    Ok(())
}

/// The arrays of one call, and what passes over them take.
struct List<'a, V> {
    isa: Isa,
    arrays: &'a V,
    /// The work of reading the arrays, in bytes.
    work: usize,
    /// The work of a pass, in bytes that take as long to read.
    cost: usize,
    /// Whether the passes are worth several threads.
    is_shared: bool,
}

/// Arrays or chunks that one thread does at a time, and where their results go.
enum Job<'a, R> {
    /// Arrays of one chunk at most, a result for each.
    Arrays(Range<usize>, &'a mut [R]),
    /// Chunks of the array `at`, from number `chunk` on.
    Chunks { at: usize, chunk: usize, results: &'a mut [R] },
}

impl<V: Views> List<'_, V> {
    /// The largest modulus, times a power of two.
    fn max(&self, crew: &Crew, by: f64) -> Result<f64> {
        let largest = |a: f64, b: f64| if a.is_nan() || a >= b { a } else { b };
        let whole = |at| self.arrays.with(at, |array| array.max(self.isa, 0..array.size().0, by));
        if !self.is_shared {
            return Ok((0..self.arrays.len()).map(whole).fold(0.0, largest));
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
        let mut total = Total::default();
        self.each_sum(crew, pass, |array| total.merge(array))?;
        Ok(total.value())
    }

    /// Calls `each` with the sum of each array, in order.
    fn each_sum(&self, crew: &Crew, pass: Reduction, mut each: impl FnMut(Total)) -> Result<()> {
        if !self.is_shared {
            self.sums(pass, 0..self.arrays.len(), each);
            return Ok(());
        }
        let found = self.share(
            crew,
            |range, totals: &mut [Total]| {
                let mut totals = totals.iter_mut();
                self.sums(pass, range, |array| totals.next().into_iter().for_each(|total| *total = array));
            },
            |array, range| array.sum(self.isa, pass, range),
        )?;
        // The chunks of an array are merged first, as above.
        let mut rest = found.iter();
        for at in 0..self.arrays.len() {
            let mut array = Total::default();
            rest.by_ref().take(self.chunks(at)).for_each(|chunk| array.merge(*chunk));
            each(array);
        }
        Ok(())
    }

    /// Calls `each` with the sums over the arrays of a range, one after the other.
    fn sums(&self, pass: Reduction, mut range: Range<usize>, mut each: impl FnMut(Total)) {
        let isa = self.isa;
        while !range.is_empty() {
            range.start += self.arrays.sum_short(range.clone(), EachSum { isa, pass, each: &mut each });
            let Some(first) = range.next() else { break };
            each(self.arrays.with(first, |array| array.sum_of_all(isa, pass)));
        }
    }

    /// The chunks of an array; an empty array has one as well.
    fn chunks(&self, at: usize) -> usize {
        self.arrays.size(at).0.div_ceil(CHUNK).max(1)
    }

    /// The results for all chunks of all arrays, in order, made by a crew: `whole` makes those of some arrays that have one
    /// chunk each, `part` that of one chunk of an array that has more.
    fn share<R: Copy + Default + Send>(
        &self,
        crew: &Crew,
        whole: impl Fn(Range<usize>, &mut [R]) + Sync,
        part: impl Fn(&AnyView<'_>, Range<usize>) -> R + Sync,
    ) -> Result<Vec<R>> {
        let count = (0..self.arrays.len()).map(|at| self.chunks(at)).sum();
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
        let mut take = |count: usize| {
            let own;
            (own, results) = mem::take(&mut results).split_at_mut(count);
            own
        };
        let mut jobs = Vec::new();
        let mut at = 0;
        while at < arrays.len() {
            // Short arrays, as many as make a job.
            let mut sum = 0;
            let short = (at..arrays.len()).take_while(|at| {
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
