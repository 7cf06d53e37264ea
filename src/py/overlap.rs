//! Whether arrays share bytes, exactly: extents that overlap are not enough, as the columns of a matrix show.
//!
//! Addresses are only numbers here, so that memory may as well be a GPU's. [`keep_apart`] is the rule for the arrays of
//! a call. What is asked for below it is one cluster, arrays whose extents overlap. Residues prove that columns and the like lie
//! apart in the time of a sort. Else each run, the bytes of an array that lie in a row, is looked at: there is a mark for
//! each unit of memory, or a sorted list of the runs where that takes less memory. So no cluster takes more of it than
//! its runs, however far they lie apart.
//!
//! Lists of plain arrays ask [`extents_are_apart`] alone; where they are not, they are read as any others.

use pyo3::PyResult;
use smallvec::SmallVec;

use crate::error::{Error, Result, vec_with_room};

/// Where an array lies.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// The address of the element with all indices 0.
    pub(super) first: usize,
    /// Bytes of an element.
    pub(super) itemsize: usize,
    /// Lengths of the axes.
    pub(super) shape: &'a [usize],
    /// Their steps in bytes.
    pub(super) strides: &'a [isize],
    /// Whether the elements are known to follow each other, in some order of the axes.
    pub(super) is_dense: bool,
}

impl Place<'_> {
    /// The addresses of the first byte and of the one after the last.
    pub(super) fn extent(&self) -> (usize, usize) {
        let (mut low, mut high) = (self.first, self.first + self.itemsize);
        for (len, stride) in self.shape.iter().zip(self.strides) {
            match len.checked_sub(1) {
                None => return (low, low),
                Some(steps) if *stride < 0 => {
                    low = low.wrapping_sub(steps.wrapping_mul(stride.unsigned_abs()));
                }
                Some(steps) => high = high.wrapping_add(steps.wrapping_mul(stride.unsigned_abs())),
            }
        }
        (low, high)
    }

    /// Whether two arrays of one shape have each element at the same address.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.first == other.first
            && self.itemsize == other.itemsize
            && self.shape == other.shape
            && self
                .shape
                .iter()
                .zip(self.strides.iter().zip(other.strides))
                .all(|(len, (a, b))| *len <= 1 || a == b)
    }

    fn lattice(&self) -> Lattice {
        let axes = self.shape.iter().zip(self.strides).filter(|(len, _)| **len != 1);
        Lattice {
            low: self.extent().0,
            itemsize: self.itemsize,
            axes: axes.map(|(len, stride)| (*len, stride.unsigned_abs())).collect(),
        }
    }
}

/// How the arrays of a call are kept apart.
pub(super) enum Apart {
    /// In no way: the numbers of two outputs that share a byte, or twice that of one that overlaps itself.
    Never(usize, usize),
    /// By copies.
    By {
        /// The inputs that share memory with an output, and must be copied before anything is written.
        copies: Vec<usize>,
        /// The outputs among whose elements lie those of others.
        interleaved: Vec<usize>,
    },
}

/// A stretch of memory, and whose it is.
struct Stretch<'a> {
    low: usize,
    high: usize,
    whose: Whose,
    place: &'a Place<'a>,
}

#[derive(Clone, Copy, PartialEq)]
enum Whose {
    Output(usize),
    Input(usize),
}

/// Keeps outputs apart from each other and from the inputs. An input that is None is its own output, and so it needs no
/// copy.
pub(super) fn keep_apart<'a>(outputs: &'a [Place<'a>], inputs: &'a [Option<Place<'a>>]) -> PyResult<Apart> {
    let mut stretches = vec_with_room(outputs.len() + inputs.len())?;
    let mut add = |place: &'a Place<'a>, whose| {
        let (low, high) = place.extent();
        if low < high {
            stretches.push(Stretch { low, high, whose, place });
        }
    };
    for (i, output) in outputs.iter().enumerate() {
        if !output.is_dense && !output.shape.contains(&0) && of_itself(&output.lattice())? {
            return Ok(Apart::Never(i, i));
        }
        add(output, Whose::Output(i));
    }
    for (i, input) in inputs.iter().enumerate() {
        if let Some(input) = input {
            add(input, Whose::Input(i));
        }
    }
    stretches.sort_unstable_by_key(|stretch| stretch.low);
    let (mut copies, mut interleaved) = (Vec::new(), Vec::new());
    for cluster in clusters(&stretches) {
        if cluster.len() == 1 {
            continue;
        }
        let outputs = cluster.iter().filter_map(|stretch| match stretch.whose {
            Whose::Output(i) => Some((i, stretch.place)),
            Whose::Input(_) => None,
        });
        let count = outputs.clone().count();
        if count == 0 {
            continue;
        }
        if count > 1 {
            let mut lattices = vec_with_room(count)?;
            lattices.extend(outputs.clone().map(|(_, place)| place.lattice()));
            if let Some((a, b)) = between(&lattices)? {
                let number = |at| outputs.clone().nth(at).map_or(0, |(i, _)| i);
                let (a, b) = (number(a), number(b));
                return Ok(Apart::Never(a.min(b), a.max(b)));
            }
            interleaved.try_reserve(count).map_err(Error::from)?;
            interleaved.extend(outputs.map(|(i, _)| i));
        }
        copies.try_reserve(cluster.len() - count).map_err(Error::from)?;
        copies.extend(cluster.iter().filter_map(|stretch| match stretch.whose {
            Whose::Output(_) => None,
            Whose::Input(i) => Some(i),
        }));
    }
    Ok(Apart::By { copies, interleaved })
}

/// Whether extents of memory, none of which is empty, lie apart.
pub(super) fn extents_are_apart(extents: impl Iterator<Item = (usize, usize)> + Clone) -> Result<bool> {
    let count = extents.clone().count();
    if count >= MIN_EXTENTS_TO_PROVE
        && (are_runs_apart(extents.clone(), count)? || are_marked_apart(extents.clone(), count)?)
    {
        return Ok(true);
    }
    // No allocation for an input and an output.
    let mut sorted: SmallVec<[(usize, usize); 2]> = SmallVec::new();
    sorted.try_reserve_exact(count).map_err(|_| Error::Memory)?;
    sorted.extend(extents);
    sorted.sort_unstable();
    Ok(sorted.iter().zip(sorted.iter().skip(1)).all(|((_, high), (low, _))| high <= low))
}

/// Extents from which on there are quicker proofs than to sort them.
const MIN_EXTENTS_TO_PROVE: usize = 64;

/// The quickest proof: arrays that were made one after the other follow each other in memory but for a jump now and then.
/// So few runs are sorted in no time. False where they are many, or one has others in its gaps.
fn are_runs_apart(mut extents: impl Iterator<Item = (usize, usize)>, count: usize) -> Result<bool> {
    let Some(mut run) = extents.next() else { return Ok(true) };
    let mut runs = vec_with_room(count / RUN + 1)?;
    let are_few = extents.all(|(from, to)| {
        // Before its end is far behind it.
        if from.wrapping_sub(run.1) <= GAP {
            run.1 = to;
            return true;
        }
        runs.push(run);
        run = (from, to);
        runs.len() < runs.capacity()
    });
    if !are_few {
        return Ok(false);
    }
    runs.push(run);
    runs.sort_unstable();
    Ok(runs.windows(2).all(|pair| matches!(pair, [(_, high), (low, _)] if high <= low)))
}

/// The bytes from one extent to the next of a run, at most: what else a step makes that makes arrays, but no jump.
const GAP: usize = 512;

/// The extents of a run, on average, from which on there are few.
const RUN: usize = 8;

/// A quick proof where the memory of the process is in pieces: none touches a unit of memory that another one has marked.
/// The runs are too many for a sort to make use of, or lie in each other's gaps.
fn are_marked_apart(extents: impl Iterator<Item = (usize, usize)> + Clone, count: usize) -> Result<bool> {
    let (low, high) = extents
        .clone()
        .fold((usize::MAX, 0), |(low, high), (from, to)| (low.min(from / UNIT), high.max(to / UNIT)));
    let Some(mut marks) = SparseMarks::new(high.saturating_sub(low), count)? else { return Ok(false) };
    // As far as the first that meets a mark: long ones that overlap would set the same marks again and again.
    let mut extents = extents;
    Ok(extents.all(|(from, to)| {
        masks(from / UNIT - low, to.div_ceil(UNIT) - low).all(|(word, mask)| marks.set(word, mask))
    }))
}

/// What the C library aligns to, so that arrays of its share no unit.
const UNIT: usize = 16;

/// Marks for units of memory, in regions: arrays lie in clusters, with much between them where others were made before.
struct SparseMarks {
    /// The number of each region that has marks, from 1 on.
    regions: Vec<u32>,
    words: Vec<u64>,
    /// The region that was marked last, and where its words begin.
    last: (usize, usize),
}

/// Words of a region: 16 KiB of memory.
const REGION: usize = 16;

/// Words of marks for each extent, and regions for each: both are cleared in some nanoseconds.
const MOST: usize = 16;

impl SparseMarks {
    /// Marks for `units` units; None where they are too many for `count` extents.
    fn new(units: usize, count: usize) -> Result<Option<Self>> {
        let len = units / (64 * REGION) + 1;
        let most = count.saturating_mul(MOST);
        if len > most {
            return Ok(None);
        }
        let mut regions = vec_with_room(len)?;
        regions.resize(len, 0);
        Ok(Some(Self { regions, words: vec_with_room(most.min(len * REGION))?, last: (usize::MAX, 0) }))
    }

    /// Sets marks of a word. False if one was set, or there is no room for more regions.
    #[inline]
    fn set(&mut self, word: usize, mask: u64) -> bool {
        let region = word / REGION;
        if region != self.last.0 {
            let Some(begin) = self.begin(region) else { return false };
            self.last = (region, begin);
        }
        let Some(word) = self.words.get_mut(self.last.1 + word % REGION) else { return false };
        let is_free = *word & mask == 0;
        *word |= mask;
        is_free
    }

    /// Where the words of a region begin.
    fn begin(&mut self, region: usize) -> Option<usize> {
        let number = self.regions.get_mut(region)?;
        if *number == 0 {
            let len = self.words.len() + REGION;
            if len > self.words.capacity() {
                return None;
            }
            self.words.resize(len, 0);
            *number = u32::try_from(len / REGION).ok()?;
        }
        Some((*number as usize - 1) * REGION)
    }
}

/// Groups of stretches that overlap, of stretches in the order of their begins.
fn clusters<'a, 'b>(stretches: &'b [Stretch<'a>]) -> impl Iterator<Item = &'b [Stretch<'a>]> {
    let mut high = 0;
    stretches.chunk_by(move |a, b| {
        high = high.max(a.high);
        b.low < high
    })
}

/// Lengths and distances of steps.
type Axes = SmallVec<[(usize, usize); 2]>;

/// Where the elements of an array lie: at `low` plus any sum of steps along the axes.
struct Lattice {
    /// The lowest address.
    low: usize,
    /// Bytes of an element.
    itemsize: usize,
    /// Lengths (neither 0 nor 1) and distances of steps in bytes.
    axes: Axes,
}

impl Lattice {
    /// The bytes that lie in a row, and the axes beyond them, the longest steps first.
    fn runs(&self) -> (usize, Axes) {
        let mut axes = self.axes.clone();
        axes.sort_unstable_by_key(|(_, step)| *step);
        let mut run = self.itemsize;
        let dense = axes.iter().take_while(|(len, step)| {
            let next = *step == run;
            if next {
                run *= len;
            }
            next
        });
        let dense = dense.count();
        axes.drain(..dense);
        axes.reverse();
        (run, axes)
    }

    /// How many runs there are.
    fn count(&self) -> usize {
        self.runs().1.iter().fold(1, |count, (len, _)| count.saturating_mul(*len))
    }

    fn high(&self) -> usize {
        self.low + self.itemsize + self.axes.iter().map(|(len, step)| (len - 1) * step).sum::<usize>()
    }

    /// Calls `visit` with the address of each run and its bytes, as long as it says true; whether it always did.
    fn all_runs(&self, mut visit: impl FnMut(usize, usize) -> bool) -> bool {
        fn along(axes: &[(usize, usize)], at: usize, visit: &mut impl FnMut(usize) -> bool) -> bool {
            match axes {
                [] => visit(at),
                [(len, step), inner @ ..] => (0..*len).all(|i| along(inner, at + i * step, visit)),
            }
        }
        let (run, axes) = self.runs();
        along(&axes, self.low, &mut |at| visit(at, run))
    }
}

/// Whether two elements of an array share a byte.
fn of_itself(array: &Lattice) -> PyResult<bool> {
    let mut axes = array.axes.clone();
    axes.sort_unstable_by_key(|(_, step)| *step);
    let mut extent = array.itemsize;
    let nested = axes.iter().all(|(len, step)| {
        let apart = *step >= extent;
        extent += (len - 1) * step;
        apart
    });
    if nested {
        return Ok(false);
    }
    if axes.iter().any(|(_, step)| *step == 0) {
        return Ok(true);
    }
    Ok(clash(std::slice::from_ref(array))?.is_some())
}

/// Two arrays, none of which overlaps itself, that share a byte.
fn between(arrays: &[Lattice]) -> PyResult<Option<(usize, usize)>> {
    if residues_are_apart(arrays)? { Ok(None) } else { Ok(clash(arrays)?) }
}

/// A quick proof for columns, rows and other interleaved views: all steps are multiples of one distance, and
/// modulo it the arrays lie apart.
fn residues_are_apart(arrays: &[Lattice]) -> Result<bool> {
    let mut stretches = vec_with_room(arrays.len())?;
    let mut distance = 0;
    for array in arrays {
        let (run, axes) = array.runs();
        distance = axes.iter().fold(distance, |gcd, (_, step)| greatest_common_divisor(gcd, *step));
        stretches.push((array.low, run));
    }
    if distance == 0 {
        return Ok(false);
    }
    for (low, _) in &mut stretches {
        *low %= distance;
    }
    stretches.sort_unstable();
    let first = stretches.first().map(|(low, _)| low + distance);
    let next = stretches.iter().skip(1).map(|(low, _)| *low).chain(first);
    Ok(stretches.iter().zip(next).all(|((low, run), next)| low + run <= next))
}

fn greatest_common_divisor(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Two arrays that share a byte, or twice the number of one that overlaps itself.
fn clash(arrays: &[Lattice]) -> Result<Option<(usize, usize)>> {
    let runs = arrays.iter().fold(0, |runs: usize, array| runs.saturating_add(array.count()));
    let frame = Frame::around(arrays);
    if runs < frame.words() / WORDS_OF_RUN {
        clash_of_sorted(arrays, runs)
    } else {
        Ok(Marks::new(frame)?.first_clash(arrays))
    }
}

/// What a run takes in a list.
const WORDS_OF_RUN: usize = size_of::<(usize, usize, usize)>() / size_of::<u64>();

/// Sorted by their begins, runs that overlap are neighbours.
fn clash_of_sorted(arrays: &[Lattice], count: usize) -> Result<Option<(usize, usize)>> {
    let mut runs = vec_with_room(count)?;
    for (i, array) in arrays.iter().enumerate() {
        array.all_runs(|at, run| {
            runs.push((at, at + run, i));
            true
        });
    }
    runs.sort_unstable();
    let clash = runs.iter().zip(runs.iter().skip(1)).find(|((_, high, _), (low, ..))| low < high);
    Ok(clash.map(|((.., a), (.., b))| (*a, *b)))
}

/// The memory between the lowest and the highest byte, in the largest units that no element is cut by.
struct Frame {
    low: usize,
    high: usize,
    unit: usize,
}

impl Frame {
    fn around(arrays: &[Lattice]) -> Self {
        let low = arrays.iter().map(|array| array.low).min().unwrap_or(0);
        let high = arrays.iter().map(Lattice::high).max().unwrap_or(0);
        let unit = arrays.iter().fold(0, |unit, array| {
            let unit =
                greatest_common_divisor(greatest_common_divisor(unit, array.low - low), array.itemsize);
            array.axes.iter().fold(unit, |unit, (_, step)| greatest_common_divisor(unit, *step))
        });
        Self { low, high, unit: unit.max(1) }
    }

    /// Words with a bit for each unit.
    fn words(&self) -> usize {
        (self.high - self.low).div_ceil(self.unit).div_ceil(64)
    }

    /// The words of a run, and its bits in them.
    fn masks(&self, address: usize, bytes: usize) -> impl Iterator<Item = (usize, u64)> {
        let first = (address - self.low) / self.unit;
        masks(first, first + bytes / self.unit)
    }
}

/// The words of some bits, and these bits in them.
fn masks(first: usize, end: usize) -> impl Iterator<Item = (usize, u64)> {
    (first / 64..end.div_ceil(64)).map(move |word| {
        let (from, to) = (first.max(word * 64) % 64, end.min(word * 64 + 64) - word * 64);
        (word, (u64::MAX << from) & (u64::MAX >> (64 - to)))
    })
}

/// One mark for each unit of memory.
struct Marks {
    frame: Frame,
    words: Vec<u64>,
}

impl Marks {
    fn new(frame: Frame) -> Result<Self> {
        let mut words = vec_with_room(frame.words())?;
        words.resize(frame.words(), 0);
        Ok(Self { frame, words })
    }

    /// Marks the arrays one by one until one meets a mark. Whose it is, is found the other way round: the last one
    /// alone is marked, and the others are looked at.
    fn first_clash(mut self, arrays: &[Lattice]) -> Option<(usize, usize)> {
        let second = arrays.iter().position(|array| !self.mark(array))?;
        self.words.fill(0);
        let (others, last) = arrays.split_at_checked(second)?;
        if !self.mark(last.first()?) {
            return Some((second, second));
        }
        Some((others.iter().position(|array| self.meets(array)).unwrap_or(second), second))
    }

    /// False if a mark was there before.
    fn mark(&mut self, array: &Lattice) -> bool {
        array.all_runs(|at, run| {
            let mut fresh = true;
            for (word, mask) in self.frame.masks(at, run) {
                if let Some(word) = self.words.get_mut(word) {
                    fresh &= *word & mask == 0;
                    *word |= mask;
                }
            }
            fresh
        })
    }

    /// Whether a mark is there.
    fn meets(&self, array: &Lattice) -> bool {
        let met = |(word, mask)| self.words.get(word).is_some_and(|word| word & mask != 0);
        !array.all_runs(|at, run| !self.frame.masks(at, run).any(met))
    }
}
