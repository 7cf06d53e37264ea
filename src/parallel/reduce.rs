//! Norms: of many arrays as one, and of the slices of one array.

use std::convert::Infallible;
use std::ops::Range;

use super::{for_each, grouped, is_shared};
use crate::element::{Real, for_each_real};
use crate::error::{Result, vec_with_room};
use crate::isa::Isa;
use crate::kernel::max::{MaxAbs, MaxRow};
use crate::kernel::power::Power;
use crate::kernel::sum::{
    Abs, AddRow, AddRows, BLOCK, FoldRows, ROWS, ROWS_AT_ONCE, Rescaled, Square, Sum, Term, Total,
};
use crate::scaled::{RESCALE, Scaled, power_of_two};
use crate::walk::{Slices, View};

/// Elements whose sum one thread makes. A multiple of [`BLOCK`], so that it cuts no block.
pub const CHUNK: usize = 64 * BLOCK;

/// Bytes a thread takes at a time.
const SHARE: usize = 512 << 10;

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
        if let Self::Power(_) = self { 16 } else { 1 }
    }
}

/// What one pass over the data adds up. The passes of an order are chosen here alone, by [`Order::norm`].
#[derive(Clone, Copy, Debug)]
enum Pass {
    Abs,
    RescaledAbs(f64),
    Square,
    RescaledSquare(f64),
    Power(Power),
}

impl Order {
    /// The norm, from passes over the data. `wide` says whether its sums can leave float64's range.
    fn norm<E>(
        self,
        wide: bool,
        max: impl Fn() -> std::result::Result<f64, E>,
        sum: impl Fn(Pass) -> std::result::Result<f64, E>,
    ) -> std::result::Result<Scaled, E> {
        let down = power_of_two(-RESCALE);
        Ok(match self {
            Self::One => match sum(Pass::Abs)? {
                s if wide && s == f64::INFINITY => Scaled::new(sum(Pass::RescaledAbs(down))?, RESCALE),
                s => Scaled::new(s, 0),
            },
            Self::Two => match sum(Pass::Square)? {
                s if wide && s == f64::INFINITY => {
                    Scaled::new(sum(Pass::RescaledSquare(down))?.sqrt(), RESCALE)
                }
                s if wide && s < SMALLEST_SUM => {
                    Scaled::new(sum(Pass::RescaledSquare(power_of_two(RESCALE)))?.sqrt(), -RESCALE)
                }
                s => Scaled::new(s.sqrt(), 0),
            },
            Self::Max => Scaled::new(max()?, 0),
            Self::Power(p) => match max()? {
                peak if peak > 0.0 && peak.is_finite() => {
                    let power = Power::new(p, peak);
                    power.root(peak, sum(Pass::Power(power))?)
                }
                peak => Scaled::new(peak, 0),
            },
        })
    }
}

/// Below this, squares that became subnormal may count in the sum.
const SMALLEST_SUM: f64 = f64::from_bits(63 << 52); // 2^-960

impl Pass {
    fn of_slice<T: Real>(self, isa: Isa, data: &[T]) -> Total {
        match self {
            Self::Abs => isa.run(Sum { data, term: Abs }),
            Self::RescaledAbs(by) => isa.run(Sum { data, term: Rescaled(Abs, by) }),
            Self::Square => isa.run(Sum { data, term: Square }),
            Self::RescaledSquare(by) => isa.run(Sum { data, term: Rescaled(Square, by) }),
            Self::Power(power) => isa.run(Sum { data, term: power }),
        }
    }

    /// The sum over a range of a view that begins at a chunk.
    fn of_view<T: Real>(self, isa: Isa, view: &View<'_, T>, range: Range<usize>) -> Total {
        let mut total = Total::default();
        for from in range.clone().step_by(CHUNK) {
            let mut chunk = Total::default();
            view.for_blocks(from..range.end.min(from + CHUNK), |data| chunk.merge(self.of_slice(isa, data)));
            total.merge(chunk);
        }
        total
    }
}

fn max_of_view<T: Real>(isa: Isa, view: &View<'_, T>, range: Range<usize>) -> T::Magnitude {
    let mut max = T::Magnitude::default();
    view.for_blocks(range, |data| max = max.max(isa.run(MaxAbs(data))));
    max
}

macro_rules! any_view {
    ($($name:ident: $t:ty,)*) => {
        /// A view of one of the real dtypes.
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
            fn bytes(&self) -> usize {
                match self { $(Self::$name(view) => view.len() * size_of::<$t>(),)* }
            }
            fn is_wide(&self) -> bool {
                match self { $(Self::$name(_) => <$t>::WIDE,)* }
            }
            fn sum(&self, isa: Isa, pass: Pass, range: Range<usize>) -> Total {
                match self { $(Self::$name(view) => pass.of_view(isa, view, range),)* }
            }
            fn max(&self, isa: Isa, range: Range<usize>) -> f64 {
                match self { $(Self::$name(view) => <$t>::from_magnitude(max_of_view(isa, view, range)),)* }
            }
        }
    };
}
for_each_real!(any_view);

/// A chunk of one array of a list, and what came of it.
struct Piece<R> {
    array: usize,
    range: Range<usize>,
    result: R,
}

/// The norm of all elements of all arrays.
///
/// # Errors
/// No memory for the list of chunks, or a bad setting of the threads.
pub fn norm(isa: Isa, arrays: &[AnyView<'_>], order: Order) -> Result<Scaled> {
    let wide = arrays.iter().any(AnyView::is_wide);
    let shared = is_shared(arrays.iter().map(AnyView::bytes).sum::<usize>().saturating_mul(order.cost()))?;
    let max = || {
        let largest = |a: f64, b: f64| if a.is_nan() || a >= b { a } else { b };
        if !shared {
            return Ok(arrays.iter().map(|array| array.max(isa, 0..array.len())).fold(0.0, largest));
        }
        let found = pieces(arrays, |array, range| array.max(isa, range))?;
        Ok(found.into_iter().map(|piece| piece.result).fold(0.0, largest))
    };
    let sum = |pass| {
        let mut total = Total::default();
        if !shared {
            for array in arrays {
                total.merge(array.sum(isa, pass, 0..array.len()));
            }
            return Ok(total.value());
        }
        let found = pieces(arrays, |array, range| array.sum(isa, pass, range))?;
        // The chunks of an array are merged first, as above.
        for chunks in found.chunk_by(|a, b| a.array == b.array) {
            let mut array = Total::default();
            for chunk in chunks {
                array.merge(chunk.result);
            }
            total.merge(array);
        }
        Ok(total.value())
    };
    order.norm(wide, max, sum)
}

/// `work` on every chunk of every array, on all threads.
fn pieces<R: Default + Send>(
    arrays: &[AnyView<'_>],
    work: impl Fn(&AnyView<'_>, Range<usize>) -> R + Sync,
) -> Result<Vec<Piece<R>>> {
    let mut pieces = vec_with_room(arrays.iter().map(|array| array.len().div_ceil(CHUNK)).sum())?;
    for (array, view) in arrays.iter().enumerate() {
        for from in (0..view.len()).step_by(CHUNK) {
            pieces.push(Piece { array, range: from..view.len().min(from + CHUNK), result: R::default() });
        }
    }
    for_each(grouped(&mut pieces, SHARE / 4, |piece| piece.range.len()), |group| {
        for piece in group {
            piece.result = work(&arrays[piece.array], piece.range.clone());
        }
    })?;
    Ok(pieces)
}

/// The norm of each slice, in the order of the kept axes.
///
/// # Errors
/// No memory for the norms, or a bad setting of the threads.
pub fn norms<T: Real>(isa: Isa, slices: &Slices<'_, T>, order: Order) -> Result<Vec<Scaled>>
where
    for<'a> AnyView<'a>: From<View<'a, T>>,
{
    let (count, len) = (slices.kept.len(), slices.reduced.len());
    let mut norms = vec_with_room(count)?;
    norms.resize(count, Scaled::ZERO);
    if len == 0 || count == 0 {
        return Ok(norms);
    }
    if slices.are_columns() && order == Order::Max {
        column_maxima(isa, slices, &mut norms)?;
    } else if slices.are_columns() && !matches!(order, Order::Power(_)) {
        column_sums(isa, slices, order, &mut norms)?;
    } else if len >= CHUNK {
        // Long slices, one after the other, each on all threads.
        for (at, result) in norms.iter_mut().enumerate() {
            *result = norm(isa, &[slices.slice(at).into()], order)?;
        }
    } else {
        each(slices, &mut norms, order.cost(), |at| norm_of_view(isa, &slices.slice(at), order))?;
    }
    Ok(norms)
}

/// The norm of one view, on the calling thread; the same bits as [`norm`] of it.
#[must_use]
pub fn norm_of_view<T: Real>(isa: Isa, view: &View<'_, T>, order: Order) -> Scaled {
    let Ok(norm) = order.norm::<Infallible>(
        T::WIDE,
        || Ok(T::from_magnitude(max_of_view(isa, view, 0..view.len()))),
        |pass| Ok(pass.of_view(isa, view, 0..view.len()).value()),
    );
    norm
}

/// Fills `norms` by `work(slice number)`, on all threads if there is enough to do.
fn each<T: Real>(
    slices: &Slices<'_, T>,
    norms: &mut [Scaled],
    cost: usize,
    work: impl Fn(usize) -> Scaled + Sync,
) -> Result<()> {
    let len = slices.reduced.len();
    let share = (SHARE / size_of::<T>() / len).max(1);
    let one = |(job, norms): (usize, &mut [Scaled])| {
        for (i, norm) in norms.iter_mut().enumerate() {
            *norm = work(job * share + i);
        }
    };
    let jobs = norms.chunks_mut(share).enumerate();
    if is_shared((slices.kept.len() * len * size_of::<T>()).saturating_mul(cost))? {
        for_each(jobs, one)
    } else {
        jobs.for_each(one);
        Ok(())
    }
}

/// Slices side by side that one thread sums at a time: their accumulators stay in the innermost cache.
const STRIP: usize = 512;

/// Some neighbouring columns, a run of their rows, and what came of each column there.
struct Strip<R> {
    columns: Range<usize>,
    rows: Range<usize>,
    results: Vec<R>,
}

/// `work` on every strip, on all threads. The runs of rows of a strip follow each other.
///
/// Long columns are cut into runs whose results are merged in order, so that a narrow matrix has work for all
/// threads. Where they are cut depends on the shape alone.
fn strips<T: Real, R: Copy + Send>(
    slices: &Slices<'_, T>,
    identity: R,
    work: impl Fn(&mut Strip<R>) + Sync,
) -> Result<Vec<Strip<R>>> {
    let (columns, len) = (slices.kept.len(), slices.reduced.len());
    let run = (CHUNK / columns.min(STRIP)).next_multiple_of(ROWS).min(len);
    let mut strips = vec_with_room(columns.div_ceil(STRIP) * len.div_ceil(run))?;
    for from in (0..columns).step_by(STRIP) {
        for row in (0..len).step_by(run) {
            let columns = from..columns.min(from + STRIP);
            let mut results = vec_with_room(columns.len())?;
            results.resize(columns.len(), identity);
            strips.push(Strip { columns, rows: row..len.min(row + run), results });
        }
    }
    if is_shared(columns * len * size_of::<T>())? {
        for_each(strips.iter_mut(), work)?;
    } else {
        strips.iter_mut().for_each(work);
    }
    Ok(strips)
}

fn column_maxima<T: Real>(isa: Isa, slices: &Slices<'_, T>, norms: &mut [Scaled]) -> Result<()> {
    let strips = strips(slices, T::Magnitude::default(), |strip| {
        let mut scratch = [T::ZERO; STRIP];
        for row in strip.rows.clone() {
            let row = slices.row(row, strip.columns.clone(), &mut scratch);
            isa.run(MaxRow { max: &mut strip.results, row });
        }
    })?;
    for strip in strips {
        for (norm, max) in norms[strip.columns].iter_mut().zip(strip.results) {
            *norm = norm.max(Scaled::new(T::from_magnitude(max), 0));
        }
    }
    Ok(())
}

/// The norms of orders 1 and 2: rows are added to one accumulator per column.
fn column_sums<T: Real>(isa: Isa, slices: &Slices<'_, T>, order: Order, norms: &mut [Scaled]) -> Result<()> {
    let mut strips = strips(slices, Total::default(), |strip| match order {
        Order::One => add_rows(isa, slices, Abs, strip),
        _ => add_rows(isa, slices, Square, strip),
    })?;
    let finish = |(runs, norms): (&mut [Strip<Total>], &mut [Scaled])| {
        let Some((first, later)) = runs.split_first_mut() else { return };
        for run in later {
            for (sum, total) in first.results.iter_mut().zip(&run.results) {
                sum.merge(*total);
            }
        }
        for ((norm, sum), at) in norms.iter_mut().zip(&first.results).zip(first.columns.clone()) {
            // The first pass has been made; a column whose sum left the range is done again on its own.
            let Ok(found) = order.norm::<Infallible>(
                T::WIDE,
                || Ok(0.0),
                |pass| match pass {
                    Pass::Abs | Pass::Square => Ok(sum.value()),
                    again => Ok(again.of_view(isa, &slices.slice(at), 0..slices.reduced.len()).value()),
                },
            );
            *norm = found;
        }
    };
    let jobs = strips.chunk_by_mut(|a, b| a.columns == b.columns).zip(norms.chunks_mut(STRIP));
    if is_shared(slices.kept.len() * slices.reduced.len() * size_of::<T>())? {
        for_each(jobs, finish)
    } else {
        jobs.for_each(finish);
        Ok(())
    }
}

fn add_rows<T: Real, F: Term>(isa: Isa, slices: &Slices<'_, T>, term: F, strip: &mut Strip<Total>) {
    let mut scratch = [[T::ZERO; STRIP]; ROWS_AT_ONCE];
    let sums = &mut [0.0; STRIP][..strip.results.len()];
    for from in strip.rows.clone().step_by(ROWS) {
        let to = strip.rows.end.min(from + ROWS);
        let mut row = from;
        while row + ROWS_AT_ONCE <= to {
            let [a, b, c, d] = &mut scratch;
            let rows = [(0, a), (1, b), (2, c), (3, d)]
                .map(|(i, scratch)| slices.row(row + i, strip.columns.clone(), scratch));
            isa.run(AddRows { sums, rows, term });
            row += ROWS_AT_ONCE;
        }
        for row in row..to {
            let row = slices.row(row, strip.columns.clone(), &mut scratch[0]);
            isa.run(AddRow { sums, row, term });
        }
        isa.run(FoldRows { totals: &mut strip.results, sums });
    }
}
