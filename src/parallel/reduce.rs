//! Norms: of many arrays as one, and of the slices of one array.

use std::convert::Infallible;
use std::mem;
use std::ops;

use super::{Crew, job_bytes, share_out, work_of};
use crate::element::{Element, F16, for_each_element};
use crate::error::{Result, vec_with_room};
use crate::isa::{Aligned, Isa};
use crate::kernel::halves::ToSingles;
use crate::kernel::max::{MaxAbs, MaxRow};
use crate::kernel::power::{Cube, Fourth, Half, OfRoot, Power, Simple, SumRoots, ThreeHalves};
use crate::kernel::rows;
use crate::kernel::sum::{
    Abs, AddRow, AddRows, BLOCK, FoldRows, PIECE, ROWS, ROWS_AT_ONCE, Rescaled, Square, Sum, SumEach,
    SumHalves, SumPart, SumRows, Term, Total, is_prefetched,
};
use crate::kernel::widen::{Limb, Modulus, Widen};
use crate::scaled::{RESCALE, Scaled, power_of_two};
use crate::walk::{Block, Slices, View, with_scratch};

/// Elements whose sum one thread makes. A multiple of [`BLOCK`], so that it cuts no block.
pub const CHUNK: usize = 64 * BLOCK;

/// The order of a vector norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// The sum of magnitudes.
    One,
    /// The Euclidean norm.
    Two,
    /// The largest magnitude.
    Max,
    /// `(sum |x|^p)^(1/p)`, p positive and finite.
    Power(f64),
}

impl Order {
    /// The order p, for a positive number.
    #[must_use]
    pub fn of(p: f64) -> Self {
        match p {
            1.0 => Self::One,
            2.0 => Self::Two,
            f64::INFINITY => Self::Max,
            p => Self::Power(p),
        }
    }

    /// How much longer a byte takes than to be read, about: it decides whether threads are worth it.
    fn cost(self) -> usize {
        match self {
            Self::Power(p) if Simple::of(p).is_some() => 2,
            Self::Power(_) => 16,
            _ => 1,
        }
    }
}

/// What one pass over the data adds up. The passes of an order are chosen here alone, by [`Order::norm`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Reduction {
    Abs,
    RescaledAbs(f64),
    Square,
    RescaledSquare(f64),
    Simple(Simple),
    Power(Power),
}

/// How far from float64's range the numbers of a norm may lie.
#[derive(Clone, Copy, Debug, Default)]
struct OverflowRisk {
    /// Sums can leave float64's range.
    wide: bool,
    /// So can a modulus, or it can lose digits below it.
    wide_modulus: bool,
}

impl OverflowRisk {
    const fn of<T: Element>() -> Self {
        Self { wide: T::WIDE, wide_modulus: T::WIDE && T::DTYPE.parts().is_some() }
    }

    const fn or(self, other: Self) -> Self {
        Self { wide: self.wide || other.wide, wide_modulus: self.wide_modulus || other.wide_modulus }
    }
}

impl Order {
    /// The first pass, where it is a sum for which nothing need be known.
    fn first(self) -> Option<Reduction> {
        match self {
            Self::One => Some(Reduction::Abs),
            Self::Two => Some(Reduction::Square),
            Self::Max => None,
            Self::Power(p) => Simple::of(p).map(Reduction::Simple),
        }
    }

    /// The norm, from passes over the data: largest moduli, times a power of two, and sums.
    fn norm<E>(
        self,
        OverflowRisk { wide, wide_modulus }: OverflowRisk,
        max: impl Fn(f64) -> std::result::Result<f64, E>,
        sum: impl Fn(Reduction) -> std::result::Result<f64, E>,
    ) -> std::result::Result<Scaled, E> {
        let (down, up) = (power_of_two(-RESCALE), power_of_two(RESCALE));
        let largest = || {
            Ok(match max(1.0)? {
                m if wide_modulus && m == f64::INFINITY => Scaled::new(max(down)?, RESCALE),
                m if wide_modulus && m < SMALLEST_SUM => Scaled::new(max(up)?, -RESCALE),
                m => Scaled::new(m, 0),
            })
        };
        Ok(match self {
            Self::One => match sum(Reduction::Abs)? {
                s if wide && s == f64::INFINITY => Scaled::new(sum(Reduction::RescaledAbs(down))?, RESCALE),
                s if wide_modulus && s < SMALLEST_SUM => {
                    Scaled::new(sum(Reduction::RescaledAbs(up))?, -RESCALE)
                }
                s => Scaled::new(s, 0),
            },
            Self::Two => match sum(Reduction::Square)? {
                s if wide && s == f64::INFINITY => {
                    Scaled::new(sum(Reduction::RescaledSquare(down))?.sqrt(), RESCALE)
                }
                s if wide && s < SMALLEST_SUM => {
                    Scaled::new(sum(Reduction::RescaledSquare(up))?.sqrt(), -RESCALE)
                }
                s => Scaled::new(s.sqrt(), 0),
            },
            Self::Max => largest()?,
            Self::Power(p) => {
                if let Some(simple) = Simple::of(p) {
                    let s = sum(Reduction::Simple(simple))?;
                    // The smallest square root is 2^-537: beside a sum like this it counts nothing, rounded or not.
                    let smallest = if p < 1.0 { power_of_two(-400) } else { SMALLEST_SUM };
                    if !wide || s.is_nan() || (smallest..f64::INFINITY).contains(&s) {
                        return Ok(simple.root(s));
                    }
                }
                let peak = largest()?;
                if peak.is_finite() && !peak.is_zero() {
                    let power = Power::new(p, peak);
                    power.root(peak, sum(Reduction::Power(power))?)
                } else {
                    peak
                }
            }
        })
    }
}

/// Below this, squares that became subnormal may count in the sum.
pub(super) const SMALLEST_SUM: f64 = f64::from_bits(63 << 52); // 2^-960

impl Reduction {
    fn of_slice<T: Element>(self, isa: Isa, data: &[T]) -> Total {
        if let Some(data) = T::halves(data) {
            return self.of_halves(isa, data);
        }
        match self {
            Self::Abs if T::DIRECT => isa.run(Sum { data, term: Abs }),
            Self::Square if T::DIRECT => isa.run(Sum { data, term: Square }),
            Self::RescaledAbs(by) if T::WIDE => isa.run(Sum { data, term: Rescaled(Abs, by) }),
            Self::RescaledSquare(by) if T::WIDE => isa.run(Sum { data, term: Rescaled(Square, by) }),
            Self::Simple(simple) if T::WIDE || const { has_24_digits::<T>() } => {
                simple_sum(isa, data, simple)
            }
            Self::Power(term) if T::WIDE || const { has_24_digits::<T>() } => isa.run(Sum { data, term }),
            _ => self.of_moduli(isa, data),
        }
    }

    /// The same by way of float32.
    fn of_halves(self, isa: Isa, data: &[F16]) -> Total {
        match self {
            Self::Abs => return isa.run(SumHalves(Sum { data, term: Abs })),
            Self::Square => return isa.run(SumHalves(Sum { data, term: Square })),
            _ => {}
        }
        with_scratch(0.0, data.len(), |scratch| {
            let mut total = Total::default();
            for from in data.chunks(BLOCK) {
                let scratch = &mut scratch[..from.len()];
                isa.run(ToSingles { from, to: &mut *scratch });
                total.merge(self.of_slice::<f32>(isa, scratch));
            }
            total
        })
    }

    /// The same by way of float64.
    fn of_moduli<T: Element>(self, isa: Isa, data: &[T]) -> Total {
        with_scratch(0.0, data.len(), |scratch| {
            let mut total = Total::default();
            for from in data.chunks(BLOCK) {
                let scratch = &mut scratch[..from.len()];
                for limb in 0..self.limbs::<T>() {
                    self.widen(isa, from, scratch, limb);
                    total.merge(self.of_widened(isa, scratch));
                }
            }
            total
        })
    }

    /// How often [`Reduction::widen`] and a sum of what it made are to be done.
    fn limbs<T: Element>(self) -> usize {
        // Sums of integers are to be whole where they can; squares are not whole beyond 2^53 in any case.
        if let Self::Abs = self { T::LIMBS } else { 1 }
    }

    fn widen<T: Element>(self, isa: Isa, from: &[T], to: &mut [f64], limb: usize) {
        match self {
            Self::Abs if T::LIMBS > 1 => isa.run(Widen { from, to, reading: Limb(limb) }),
            Self::RescaledAbs(by) | Self::RescaledSquare(by) => {
                isa.run(Widen { from, to, reading: Modulus(by) });
            }
            _ => isa.run(Widen { from, to, reading: Modulus(1.0) }),
        }
    }

    /// The sum over what [`Reduction::widen`] made.
    fn of_widened(self, isa: Isa, data: &[f64]) -> Total {
        match self {
            Self::Abs | Self::RescaledAbs(_) => isa.run(Sum { data, term: Abs }),
            Self::Square | Self::RescaledSquare(_) => isa.run(Sum { data, term: Square }),
            Self::Simple(simple) => simple_sum(isa, data, simple),
            Self::Power(term) => isa.run(Sum { data, term }),
        }
    }

    /// The sum over all of a view. Short dense ones, of which there may be thousands, have the shortest way.
    #[inline(always)]
    fn of_whole<T: Element>(self, isa: Isa, view: &View<'_, T>) -> Total {
        match view {
            View::Dense(data) if has_row_sums::<T>(data.len(), self) => row_sum(isa, data, self),
            _ => self.of_view(isa, view, 0..view.len()),
        }
    }

    /// The sum over a range of a view that begins at a chunk.
    fn of_view<T: Element>(self, isa: Isa, view: &View<'_, T>, range: ops::Range<usize>) -> Total {
        let mut total = Total::default();
        for from in range.clone().step_by(CHUNK) {
            let mut chunk = Total::default();
            view.for_blocks(from..range.end.min(from + CHUNK), |data| chunk.merge(self.of_slice(isa, data)));
            total.merge(chunk);
        }
        total
    }
}

/// Whether the elements are floats of at most 24 binary digits.
const fn has_24_digits<T: Element>() -> bool {
    T::DIRECT && size_of::<T>() <= size_of::<f32>()
}

fn simple_sum<T: Element>(isa: Isa, data: &[T], simple: Simple) -> Total {
    match simple {
        Simple::Half => root_sum(isa, data, Half),
        Simple::ThreeHalves => root_sum(isa, data, ThreeHalves),
        Simple::Three => isa.run(Sum { data, term: Cube }),
        Simple::Four => isa.run(Sum { data, term: Fourth }),
    }
}

fn root_sum<T: Element>(isa: Isa, data: &[T], term: impl Term<T> + OfRoot) -> Total {
    let sum = Sum { data, term };
    if const { has_24_digits::<T>() } { isa.run(SumRoots(sum)) } else { isa.run(sum) }
}

/// The largest modulus, times a power of two.
fn max_of_view<T: Element>(isa: Isa, view: &View<'_, T>, range: ops::Range<usize>, by: f64) -> f64 {
    if by == 1.0 {
        let mut max = T::Magnitude::default();
        view.for_blocks(range, |data| max = max.max(isa.run(MaxAbs(data))));
        return T::from_magnitude(max);
    }
    let mut max = <f64 as Element>::Magnitude::default();
    let mut scratch = [0.0; BLOCK];
    view.for_blocks(range, |data| {
        for from in data.chunks(BLOCK) {
            let to = &mut scratch[..from.len()];
            isa.run(Widen { from, to, reading: Modulus(by) });
            max = max.max(isa.run(MaxAbs(to)));
        }
    });
    f64::from_magnitude(max)
}

macro_rules! any_view {
    ($($name:ident: $t:ty,)*) => {
        /// A view of one of the dtypes.
        #[derive(Debug)]
        #[allow(missing_docs, reason = "the names say it")]
        pub enum AnyView<'a> { $($name(View<'a, $t>),)* }

        $(impl<'a> From<View<'a, $t>> for AnyView<'a> {
            fn from(view: View<'a, $t>) -> Self { Self::$name(view) }
        })*

        impl AnyView<'_> {
            fn len(&self) -> usize {
                match self { $(Self::$name(view) => view.len(),)* }
            }
            fn size(&self) -> usize {
                match self { $(Self::$name(_) => size_of::<$t>(),)* }
            }
            fn bytes(&self) -> usize {
                self.len() * self.size()
            }
            fn extremes(&self) -> OverflowRisk {
                match self { $(Self::$name(_) => OverflowRisk::of::<$t>(),)* }
            }
            fn sum(&self, isa: Isa, pass: Reduction, range: ops::Range<usize>) -> Total {
                match self { $(Self::$name(view) => pass.of_view(isa, view, range),)* }
            }
            #[inline(always)] // where the dtype is known, it is not to be asked for again
            fn sum_of_all(&self, isa: Isa, pass: Reduction) -> Total {
                match self { $(Self::$name(view) => pass.of_whole(isa, view),)* }
            }
            fn max(&self, isa: Isa, range: ops::Range<usize>, by: f64) -> f64 {
                match self { $(Self::$name(view) => max_of_view(isa, view, range, by),)* }
            }
        }
    };
}
for_each_element!(any_view);

/// Neighbours that one thread does at a time, and where their results go.
enum Job<'a, R> {
    /// Arrays of one chunk at most, a result for each.
    Arrays(ops::Range<usize>, &'a mut [R]),
    /// Chunks of one array, from this one on.
    Chunks(usize, usize, &'a mut [R]),
}

/// The arrays of a list, each of which is made a view when it is its turn: a list of views is many times as long as
/// what it describes, where that is small.
pub trait Views: Sync {
    /// How many there are.
    fn len(&self) -> usize;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The elements of one of them, number `at` of [`Views::len`], and the bytes of each element.
    fn size(&self, at: usize) -> (usize, usize);
    /// Calls `read` with a view of one of them.
    fn with<R>(&self, at: usize, read: impl FnOnce(&AnyView<'_>) -> R) -> R;
    /// The bytes of all of them, if it is known that they have one dtype.
    fn bytes_alike(&self) -> Option<usize> {
        None
    }
    /// Hands the first ones of a range to `sums`, as many as are dense, have one dtype, and are for it; how many, which is
    /// none where they are too few for a gain.
    fn sum_short(&self, range: ops::Range<usize>, sums: impl ShortSums) -> usize {
        let _ = (range, sums);
        0
    }
}

/// What is done with short arrays that are dense and have one dtype.
pub trait ShortSums {
    /// Whether this is for arrays of this dtype and of so many elements.
    fn takes<T: Element>(&self, len: usize) -> bool;
    /// Does it.
    fn add<'a, T: Element>(self, arrays: impl Iterator<Item = &'a [T]>);
}

/// Short arrays to be summed in one call.
const AT_ONCE: usize = 64;

/// Sums each.
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
        let mut totals = [Total::default(); AT_ONCE];
        loop {
            let (sequences, totals) = (arrays.by_ref().take(AT_ONCE), &mut totals[..]);
            let count = match self.pass {
                Reduction::Abs => self.isa.run(SumEach { sequences, term: Abs, totals: &mut *totals }),
                _ => self.isa.run(SumEach { sequences, term: Square, totals: &mut *totals }),
            };
            totals.iter().take(count).for_each(|total| (self.each)(*total));
            if count < AT_ONCE {
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
        self.with(at, |view| (view.len(), view.size()))
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

/// The same for views that are made when it is their turn.
///
/// # Errors
/// No memory for the list of chunks, or a bad setting of the threads.
pub fn norm_of_views(isa: Isa, crew: &Crew, arrays: &impl Views, order: Order) -> Result<Scaled> {
    let (mut extremes, mut bytes) = (OverflowRisk::default(), 0);
    let alike = arrays.bytes_alike();
    for at in 0..if alike.is_some() { arrays.len().min(1) } else { arrays.len() } {
        let (own, size) = arrays.with(at, |array| (array.extremes(), array.bytes()));
        (extremes, bytes) = (extremes.or(own), bytes + size);
    }
    let work = work_of(alike.unwrap_or(bytes), arrays.len());
    let cost = work.saturating_mul(order.cost());
    let is_shared = Crew::is_shared(cost)?;
    let max = |by| {
        let largest = |a: f64, b: f64| if a.is_nan() || a >= b { a } else { b };
        let each = |at| arrays.with(at, |array| array.max(isa, 0..array.len(), by));
        if !is_shared {
            return Ok((0..arrays.len()).map(each).fold(0.0, largest));
        }
        let whole = |range: ops::Range<usize>, maxima: &mut [f64]| {
            range.zip(maxima).for_each(|(at, max)| *max = each(at));
        };
        let found = shared(crew, [work, cost], arrays, whole, |array, range| array.max(isa, range, by))?;
        Ok(found.into_iter().fold(0.0, largest))
    };
    let sum = |pass| {
        let mut total = Total::default();
        if !is_shared {
            sums(isa, pass, arrays, 0..arrays.len(), |array| total.merge(array));
            return Ok(total.value());
        }
        let whole = |range, totals: &mut [Total]| {
            let mut totals = totals.iter_mut();
            sums(isa, pass, arrays, range, |array| {
                if let Some(total) = totals.next() {
                    *total = array;
                }
            });
        };
        let found = shared(crew, [work, cost], arrays, whole, |array, range| array.sum(isa, pass, range))?;
        // The chunks of an array are merged first, as above.
        let mut rest = found.iter();
        for at in 0..arrays.len() {
            let mut array = Total::default();
            rest.by_ref().take(chunks(arrays, at)).for_each(|chunk| array.merge(*chunk));
            total.merge(array);
        }
        Ok(total.value())
    };
    order.norm(extremes, max, sum)
}

/// Calls `each` with the sums over the arrays of a range, one after the other.
fn sums(
    isa: Isa,
    pass: Reduction,
    arrays: &impl Views,
    mut range: ops::Range<usize>,
    mut each: impl FnMut(Total),
) {
    while !range.is_empty() {
        range.start += arrays.sum_short(range.clone(), EachSum { isa, pass, each: &mut each });
        let Some(first) = range.next() else { break };
        each(arrays.with(first, |array| array.sum_of_all(isa, pass)));
    }
}

/// The chunks of an array, an empty one of which has one as well.
fn chunks(arrays: &impl Views, at: usize) -> usize {
    arrays.size(at).0.div_ceil(CHUNK).max(1)
}

/// The results for all chunks of all arrays, in order, made by a crew: `whole` makes those of some arrays that have one
/// chunk each, `part` that of one chunk of an array that has more.
fn shared<R: Copy + Default + Send>(
    crew: &Crew,
    [work, cost]: [usize; 2],
    arrays: &impl Views,
    whole: impl Fn(ops::Range<usize>, &mut [R]) + Sync,
    part: impl Fn(&AnyView<'_>, ops::Range<usize>) -> R + Sync,
) -> Result<Vec<R>> {
    let all = 0..arrays.len();
    let count = all.clone().map(|at| chunks(arrays, at)).sum();
    let mut results = vec_with_room(count)?;
    results.resize(count, R::default());
    let share = job_bytes(work);
    let mut jobs = Vec::new();
    let mut rest = &mut results[..];
    let mut next = |count: usize| {
        let own;
        (own, rest) = mem::take(&mut rest).split_at_mut(count);
        own
    };
    let mut first = 0;
    while first < all.end {
        jobs.try_reserve(1)?;
        // As many as make a share.
        let mut sum = 0;
        let of_one = (first..all.end).take_while(|at| {
            let (len, size) = arrays.size(*at);
            let is_more = sum < share && len <= CHUNK;
            sum += work_of(len * size, 2);
            is_more
        });
        match of_one.count() {
            0 => {
                let (own, (_, size)) = (chunks(arrays, first), arrays.size(first));
                let some = (share / (CHUNK * size)).max(1);
                for from in (0..own).step_by(some) {
                    jobs.try_reserve(1)?;
                    jobs.push(Job::Chunks(first, from, next(some.min(own - from))));
                }
                first += 1;
            }
            count => {
                jobs.push(Job::Arrays(first..first + count, next(count)));
                first += count;
            }
        }
    }
    crew.each(cost, jobs.into_iter(), |job| match job {
        Job::Arrays(range, results) => whole(range, results),
        Job::Chunks(at, from, results) => arrays.with(at, |array| {
            for (chunk, result) in results.iter_mut().enumerate() {
                let from = (from + chunk) * CHUNK;
                *result = part(array, from..array.len().min(from + CHUNK));
            }
        }),
    })?;
    Ok(results)
}

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

/// The same, each made into what is wanted of it where it is computed: for many short slices a list of norms in between
/// costs as much as the norms. What is there already stands for slices without elements.
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
        column_sums(isa, slices, order, pass, norms, make)
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
        each(slices, norms, order.cost(), |at| make(norm_of_view(isa, &slices.slice(at), order)))
    }
}

/// Whether [`row_sums`] are to be had of rows of so many elements.
pub(super) fn has_row_sums<T: Element>(len: usize, pass: Reduction) -> bool {
    let is_direct = T::DIRECT && T::halves(&[]).is_none();
    is_direct && len < CHUNK && matches!(pass, Reduction::Abs | Reduction::Square)
}

/// Elements of the longest rows and arrays of which several are done in one call; with float64 on AVX2, longer ones lose by
/// [`SumRows`].
pub const SHORT: usize = BLOCK / 2;

/// The sums of rows of `len` elements that follow each other, none as long as a chunk: of as many as there are `sums`.
/// It takes less where more elements follow.
/// `is_prefetched`: see [`SumRows`].
pub(super) fn row_sums<T: Element>(
    isa: Isa,
    data: &[T],
    len: usize,
    pass: Reduction,
    is_prefetched: bool,
    sums: &mut [f64],
) {
    if len <= SHORT {
        return match pass {
            Reduction::Abs => isa.run(SumRows { data, len, term: Abs, is_prefetched, sums }),
            _ => isa.run(SumRows { data, len, term: Square, is_prefetched, sums }),
        };
    }
    for (data, sum) in data.chunks_exact(len).zip(sums) {
        let total = match pass {
            _ if !is_prefetched => row_sum(isa, data, pass),
            Reduction::Abs => isa.run(SumPart(Sum { data, term: Abs })),
            _ => isa.run(SumPart(Sum { data, term: Square })),
        };
        *sum = total.value();
    }
}

fn row_sum<T: Element>(isa: Isa, data: &[T], pass: Reduction) -> Total {
    match pass {
        Reduction::Abs => isa.run(Sum { data, term: Abs }),
        _ => isa.run(Sum { data, term: Square }),
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
    let few = rows::at_once::<T>(len);
    // Whole batches, so that none is short but the last.
    let share = (job_bytes(size_of_val(data)) / size_of::<T>() / len).next_multiple_of(few).max(few);
    let is_prefetched = is_prefetched(data.len());
    let work = |(job, (data, norms)): (usize, (&[T], &mut [R]))| {
        let mut sums = [0.0; rows::AT_ONCE];
        for (batch, norms) in norms.chunks_mut(few).enumerate() {
            let sums = &mut sums[..norms.len()];
            row_sums(isa, &data[batch * few * len..], len, pass, is_prefetched, sums);
            for (i, (norm, sum)) in norms.iter_mut().zip(sums).enumerate() {
                *norm = make(norm_of_sum(isa, slices, job * share + batch * few + i, order, *sum));
            }
        }
    };
    let jobs = data.chunks(share * len).zip(norms.chunks_mut(share)).enumerate();
    share_out(size_of_val(data), jobs, work)
}

/// The norm of slice `at` from the sum of its first pass.
fn norm_of_sum<T: Element>(isa: Isa, slices: &Slices<'_, T>, at: usize, order: Order, sum: f64) -> Scaled {
    // Nearly always, without making a view of it.
    match order {
        Order::One if (SMALLEST_SUM..f64::INFINITY).contains(&sum) => Scaled::new(sum, 0),
        Order::Two if (SMALLEST_SUM..f64::INFINITY).contains(&sum) => Scaled::new(sum.sqrt(), 0),
        _ => norm_of_view_with(isa, &slices.slice(at), order, sum),
    }
}

/// The norm of a view from the sum of its first pass; if that left the range, the view is read again.
pub(super) fn norm_of_view_with<T: Element>(isa: Isa, view: &View<'_, T>, order: Order, sum: f64) -> Scaled {
    let Ok(norm) = order.norm::<Infallible>(
        OverflowRisk::of::<T>(),
        |by| Ok(max_of_view(isa, view, 0..view.len(), by)),
        |pass| match pass {
            Reduction::Abs | Reduction::Square | Reduction::Simple(_) => Ok(sum),
            again => Ok(again.of_view(isa, view, 0..view.len()).value()),
        },
    );
    norm
}

/// The norm of one view, on the calling thread; the same bits as [`norm`] of it.
#[must_use]
pub fn norm_of_view<T: Element>(isa: Isa, view: &View<'_, T>, order: Order) -> Scaled {
    let Ok(norm) = order.norm::<Infallible>(
        OverflowRisk::of::<T>(),
        |by| Ok(max_of_view(isa, view, 0..view.len(), by)),
        |pass| Ok(pass.of_view(isa, view, 0..view.len()).value()),
    );
    norm
}

/// Fills `norms` by `work(slice number)`, on all threads if there is enough to do.
fn each<T: Element, R: Send>(
    slices: &Slices<'_, T>,
    norms: &mut [R],
    cost: usize,
    work: impl Fn(usize) -> R + Sync,
) -> Result<()> {
    let len = slices.reduced.len();
    let bytes = slices.kept.len() * len * size_of::<T>();
    let share = (job_bytes(bytes) / size_of::<T>() / len).max(1);
    let one = |(job, norms): (usize, &mut [R])| {
        for (i, norm) in norms.iter_mut().enumerate() {
            *norm = work(job * share + i);
        }
    };
    let jobs = norms.chunks_mut(share).enumerate();
    share_out(bytes.saturating_mul(cost), jobs, one)
}

/// Slices side by side that one thread sums at a time: their accumulators stay in the innermost cache.
const STRIP: usize = 512;

/// Some neighbouring columns, a run of their rows, and what came of each column there.
struct Strip<R> {
    columns: ops::Range<usize>,
    rows: ops::Range<usize>,
    results: Vec<R>,
}

/// Rows of columns whose sums are made in one go.
fn run_of<T: Element>(slices: &Slices<'_, T>) -> usize {
    run_of_columns(slices.kept.len())
}

/// The same for so many columns.
pub(super) fn run_of_columns(columns: usize) -> usize {
    (CHUNK / columns.clamp(1, STRIP)).next_multiple_of(ROWS)
}

/// Columns of a dense block that one thread sums at a time: pieces of rows so long keep the memory busy, and their
/// accumulators stay in the innermost cache.
pub(super) const WIDE: usize = 1024;

/// The same where a column has one accumulator and no more: that each row is read for longer than a page counts more.
const WIDEST: usize = 4 * WIDE;

/// Calls `work(outer, first, norms)` for `width` norms at a time: those from column `first` on of the matrix `outer`.
fn for_pieces<T: Element, R: Send>(
    block: &Block<'_, T>,
    norms: &mut [R],
    width: usize,
    work: impl Fn(usize, usize, &mut [R]) + Sync,
) -> Result<()> {
    let jobs = norms.chunks_mut(block.inner).enumerate().flat_map(|(outer, norms)| {
        norms.chunks_mut(width).enumerate().map(move |(i, norms)| (outer, i * width, norms))
    });
    share_out(size_of_val(block.data), jobs, |(outer, first, norms)| work(outer, first, norms))
}

/// The norms of columns that lie in a dense block and are no longer than a run.
fn block_norms<T: Element, R: Send>(
    isa: Isa,
    slices: &Slices<'_, T>,
    block: &Block<'_, T>,
    order: Order,
    pass: Reduction,
    norms: &mut [R],
    make: impl Fn(Scaled) -> R + Sync,
) -> Result<()> {
    let finished = |at: usize, sum: f64| make(norm_of_sum(isa, slices, at, order, sum));
    if block.len <= ROWS {
        // One sum is the total.
        return for_pieces(block, norms, WIDEST, |outer, first, norms| {
            #[expect(clippy::large_stack_arrays, reason = "32 KiB, and nothing below takes much")]
            let sums = &mut Aligned([0.0; WIDEST]).0[..norms.len()];
            let row = |row| block.row(outer, row, first, norms.len());
            match pass {
                Reduction::Abs => add_some(isa, 0..block.len, &row, None, Abs, sums),
                _ => add_some(isa, 0..block.len, &row, None, Square, sums),
            }
            for (i, (norm, sum)) in norms.iter_mut().zip(sums).enumerate() {
                *norm = finished(outer * block.inner + first + i, *sum);
            }
        });
    }
    for_pieces(block, norms, WIDE, |outer, first, norms| {
        let totals = &mut Aligned([Total::default(); WIDE]).0[..norms.len()];
        let row = |row| block.row(outer, row, first, norms.len());
        add_columns(isa, block.len, row, None, pass, totals);
        for (i, (norm, total)) in norms.iter_mut().zip(totals).enumerate() {
            *norm = finished(outer * block.inner + first + i, total.value());
        }
    })
}

/// The largest magnitudes of such columns.
fn block_maxima<T: Element, R: Send>(
    isa: Isa,
    block: &Block<'_, T>,
    norms: &mut [R],
    make: impl Fn(Scaled) -> R + Sync,
) -> Result<()> {
    for_pieces(block, norms, WIDEST, |outer, first, norms| {
        let max = &mut Aligned([T::Magnitude::default(); WIDEST]).0[..norms.len()];
        for row in 0..block.len {
            isa.run(MaxRow { max, row: block.row(outer, row, first, norms.len()) });
        }
        for (norm, max) in norms.iter_mut().zip(max) {
            *norm = make(Scaled::new(T::from_magnitude(*max), 0));
        }
    })
}

/// The block of dense matrices whose columns the slices are, if these are many and no longer than a run.
fn short_columns<'a, T: Element>(slices: &'a Slices<'_, T>) -> Option<Block<'a, T>> {
    slices.block().filter(|block| block.inner >= STRIP && block.len <= run_of(slices))
}

/// Adds up columns, at most [`WIDE`], from their `len` rows, no more than a run. `next`: see [`AddRows`].
pub(super) fn add_columns<'a, T: Element>(
    isa: Isa,
    len: usize,
    row: impl Fn(usize) -> &'a [T],
    next: Option<usize>,
    pass: Reduction,
    totals: &mut [Total],
) {
    let sums = &mut Aligned([0.0; WIDE]).0[..totals.len()];
    for from in (0..len).step_by(ROWS) {
        let some = from..len.min(from + ROWS);
        match pass {
            Reduction::Abs => add_some(isa, some, &row, next, Abs, sums),
            _ => add_some(isa, some, &row, next, Square, sums),
        }
        isa.run(FoldRows { totals, sums });
    }
}

/// Adds some rows, at most [`ROWS`], to one accumulator per column.
fn add_some<'a, T: Element>(
    isa: Isa,
    range: ops::Range<usize>,
    row: &impl Fn(usize) -> &'a [T],
    next: Option<usize>,
    term: impl Term<T>,
    sums: &mut [f64],
) {
    let whole = range.end - range.len() % ROWS_AT_ONCE;
    for at in (range.start..whole).step_by(ROWS_AT_ONCE) {
        isa.run(AddRows { sums, rows: std::array::from_fn(|i| row(at + i)), term, next });
    }
    for at in whole..range.end {
        isa.run(AddRow { sums, row: row(at), term });
    }
}

/// `work` on every strip, on all threads. The runs of rows of a strip follow each other.
///
/// Long columns are cut into runs whose results are merged in order, so that a narrow matrix has work for all
/// threads. Where they are cut depends on the shape alone.
fn strips<T: Element, R: Copy + Send>(
    slices: &Slices<'_, T>,
    identity: R,
    work: impl Fn(&mut Strip<R>) + Sync,
) -> Result<Vec<Strip<R>>> {
    let (columns, len) = (slices.kept.len(), slices.reduced.len());
    let run = run_of(slices).min(len);
    let mut strips = vec_with_room(columns.div_ceil(STRIP) * len.div_ceil(run))?;
    for from in (0..columns).step_by(STRIP) {
        for row in (0..len).step_by(run) {
            let columns = from..columns.min(from + STRIP);
            let mut results = vec_with_room(columns.len())?;
            results.resize(columns.len(), identity);
            strips.push(Strip { columns, rows: row..len.min(row + run), results });
        }
    }
    share_out(columns * len * size_of::<T>(), strips.iter_mut(), work)?;
    Ok(strips)
}

fn column_maxima<T: Element, R: Send>(
    isa: Isa,
    slices: &Slices<'_, T>,
    norms: &mut [R],
    make: impl Fn(Scaled) -> R + Sync,
) -> Result<()> {
    if let Some(block) = short_columns(slices) {
        return block_maxima(isa, &block, norms, make);
    }
    let strips = strips(slices, T::Magnitude::default(), |strip| {
        let mut scratch = [T::ZERO; STRIP];
        for row in strip.rows.clone() {
            let row = slices.row(row, strip.columns.clone(), &mut scratch);
            isa.run(MaxRow { max: &mut strip.results, row });
        }
    })?;
    for (runs, norms) in strips.chunk_by(|a, b| a.columns == b.columns).zip(norms.chunks_mut(STRIP)) {
        for (i, norm) in norms.iter_mut().enumerate() {
            let largest = |run: &Strip<T::Magnitude>| Scaled::new(T::from_magnitude(run.results[i]), 0);
            *norm = make(runs.iter().map(largest).fold(Scaled::ZERO, Scaled::max));
        }
    }
    Ok(())
}

/// The norms whose first pass is a sum: rows are added to one accumulator per column.
fn column_sums<T: Element, R: Send>(
    isa: Isa,
    slices: &Slices<'_, T>,
    order: Order,
    first: Reduction,
    norms: &mut [R],
    make: impl Fn(Scaled) -> R + Sync,
) -> Result<()> {
    if let Some(block) = short_columns(slices)
        && T::DIRECT
        && matches!(first, Reduction::Abs | Reduction::Square)
    {
        return block_norms(isa, slices, &block, order, first, norms, make);
    }
    let mut strips = strips(slices, Total::default(), |strip| match first {
        Reduction::Abs if T::DIRECT => add_rows(isa, slices, &Straight, Abs, strip),
        Reduction::Square if T::DIRECT => add_rows(isa, slices, &Straight, Square, strip),
        pass => {
            for limb in 0..pass.limbs::<T>() {
                let by_way = &Widened { isa, pass, limb };
                match pass {
                    Reduction::Square | Reduction::RescaledSquare(_) => {
                        add_rows(isa, slices, by_way, Square, strip);
                    }
                    Reduction::Simple(Simple::Half) => add_rows(isa, slices, by_way, Half, strip),
                    Reduction::Simple(Simple::ThreeHalves) => {
                        add_rows(isa, slices, by_way, ThreeHalves, strip);
                    }
                    Reduction::Simple(Simple::Three) => add_rows(isa, slices, by_way, Cube, strip),
                    Reduction::Simple(Simple::Four) => add_rows(isa, slices, by_way, Fourth, strip),
                    Reduction::Power(power) => add_rows(isa, slices, by_way, power, strip),
                    Reduction::Abs | Reduction::RescaledAbs(_) => add_rows(isa, slices, by_way, Abs, strip),
                }
            }
        }
    })?;
    let finish = |(runs, norms): (&mut [Strip<Total>], &mut [R])| {
        let Some((head, later)) = runs.split_first_mut() else { return };
        for run in later {
            for (sum, total) in head.results.iter_mut().zip(&run.results) {
                sum.merge(*total);
            }
        }
        for ((norm, sum), at) in norms.iter_mut().zip(&head.results).zip(head.columns.clone()) {
            *norm = make(norm_of_sum(isa, slices, at, order, sum.value()));
        }
    };
    let runs = slices.reduced.len().div_ceil(run_of(slices));
    let jobs = strips.chunks_mut(runs).zip(norms.chunks_mut(STRIP));
    share_out(slices.kept.len() * slices.reduced.len() * size_of::<T>(), jobs, finish)
}

/// How the rows of columns are read: as they are, or as float64.
trait Rows<T: Element, U: Element>: Sync {
    fn read<'a>(&self, row: &'a [T], scratch: &'a mut [U]) -> &'a [U];
}

struct Straight;

struct Widened {
    isa: Isa,
    pass: Reduction,
    limb: usize,
}

impl<T: Element> Rows<T, T> for Straight {
    fn read<'a>(&self, row: &'a [T], _: &'a mut [T]) -> &'a [T] {
        row
    }
}

impl<T: Element> Rows<T, f64> for Widened {
    fn read<'a>(&self, row: &'a [T], scratch: &'a mut [f64]) -> &'a [f64] {
        let scratch = &mut scratch[..row.len()];
        self.pass.widen(self.isa, row, scratch, self.limb);
        scratch
    }
}

fn add_rows<T: Element, U: Element, F: Term<U>>(
    isa: Isa,
    slices: &Slices<'_, T>,
    rows: &impl Rows<T, U>,
    term: F,
    strip: &mut Strip<Total>,
) {
    let Aligned(gathered) = &mut Aligned([[T::ZERO; STRIP]; ROWS_AT_ONCE]);
    let Aligned(read) = &mut Aligned([[U::ZERO; STRIP]; ROWS_AT_ONCE]);
    let sums = &mut Aligned([0.0; STRIP]).0[..strip.results.len()];
    for from in strip.rows.clone().step_by(ROWS) {
        let to = strip.rows.end.min(from + ROWS);
        let mut row = from;
        while row + ROWS_AT_ONCE <= to {
            let mut scratch = gathered.iter_mut().zip(&mut *read);
            let four = std::array::from_fn(|i| match scratch.next() {
                Some((gathered, read)) => {
                    rows.read(slices.row(row + i, strip.columns.clone(), gathered), read)
                }
                None => &[],
            });
            isa.run(AddRows { sums, rows: four, term, next: None });
            row += ROWS_AT_ONCE;
        }
        for row in row..to {
            let row = rows.read(slices.row(row, strip.columns.clone(), &mut gathered[0]), &mut read[0]);
            isa.run(AddRow { sums, row, term });
        }
        isa.run(FoldRows { totals: &mut strip.results, sums });
    }
}
