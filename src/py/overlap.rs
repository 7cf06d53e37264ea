//! An exact test for shared bytes. Extents may overlap although no bytes are shared: the extents of a matrix's columns do.
//!
//! Addresses are only numbers here, so the memory may also be a GPU's. [`keep_apart`] is the rule for the arrays of a call. The
//! functions below it look at one cluster: arrays whose extents overlap. Residues prove, in the time of a sort, that columns and
//! similar views are apart. Otherwise the runs of all arrays (contiguous bytes) are sorted and compared.

use std::slice;

use pyo3::PyResult;
use smallvec::SmallVec;

use crate::error::{Error, Result, vec_with_room};

/// The location of an array in memory.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// The address of the element with all indices 0.
    pub(super) first: usize,
    /// Bytes of an element.
    pub(super) itemsize: usize,
    /// Lengths of the axes.
    pub(super) shape: &'a [usize],
    /// Their strides in bytes.
    pub(super) strides: &'a [isize],
}

impl Place<'_> {
    /// The addresses of the first byte and of the byte after the last.
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

    /// Whether each element of two arrays has the same address in both.
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
        let mut axes: Axes = axes.map(|(len, stride)| (*len, stride.unsigned_abs())).collect();
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
        Lattice { low: self.extent().0, run, axes }
    }
}

/// How the arrays of a call are kept apart.
pub(super) enum Apart {
    /// Impossible: the numbers of two outputs that share a byte, or twice the number of one that overlaps itself.
    Never(usize, usize),
    /// By copies.
    By {
        /// The inputs that share memory with an output, and must be copied before anything is written.
        copies: Vec<usize>,
        /// The outputs that lie interleaved with other outputs.
        interleaved: Vec<usize>,
    },
}

/// The extent of an array, and the array's number: outputs are counted first, then inputs.
struct Extent<'a> {
    low: usize,
    high: usize,
    array: usize,
    place: &'a Place<'a>,
}

/// Keeps outputs apart from each other and from the inputs. None as an input means that it is its own output, so it needs no
/// copy.
pub(super) fn keep_apart<'a>(outputs: &'a [Place<'a>], inputs: &'a [Option<Place<'a>>]) -> PyResult<Apart> {
    for (i, output) in outputs.iter().enumerate() {
        if !output.shape.contains(&0) && overlaps_itself(&output.lattice())? {
            return Ok(Apart::Never(i, i));
        }
    }
    let mut extents = vec_with_room(outputs.len() + inputs.len())?;
    for (array, place) in outputs.iter().map(Some).chain(inputs.iter().map(Option::as_ref)).enumerate() {
        let Some(place) = place else { continue };
        let (low, high) = place.extent();
        if low < high {
            extents.push(Extent { low, high, array, place });
        }
    }
    extents.sort_unstable_by_key(|extent| extent.low);
    let (mut copies, mut interleaved) = (Vec::new(), Vec::new());
    for cluster in clusters(&extents) {
        let written = cluster.iter().filter(|extent| extent.array < outputs.len());
        let count = written.clone().count();
        if cluster.len() == 1 || count == 0 {
            continue;
        }
        if count > 1 {
            let mut lattices = vec_with_room(count)?;
            lattices.extend(written.clone().map(|extent| extent.place.lattice()));
            if !residues_are_apart(&lattices)?
                && let Some((a, b)) = clash(&lattices)?
            {
                let number = |at| written.clone().nth(at).map_or(0, |extent| extent.array);
                let (a, b) = (number(a), number(b));
                return Ok(Apart::Never(a.min(b), a.max(b)));
            }
            interleaved.try_reserve(count).map_err(Error::from)?;
            interleaved.extend(written.map(|extent| extent.array));
        }
        copies.try_reserve(cluster.len() - count).map_err(Error::from)?;
        copies.extend(cluster.iter().filter_map(|extent| extent.array.checked_sub(outputs.len())));
    }
    Ok(Apart::By { copies, interleaved })
}

/// Whether extents of memory, none of them empty, do not overlap. Sorts them.
pub(super) fn extents_are_apart(extents: &mut [(usize, usize)]) -> bool {
    extents.sort_unstable();
    extents.is_sorted_by(|(_, high), (low, _)| high <= low)
}

/// Groups of extents that overlap; `extents` are sorted by their lowest addresses.
fn clusters<'a, 'b>(extents: &'b [Extent<'a>]) -> impl Iterator<Item = &'b [Extent<'a>]> {
    let mut high = 0;
    extents.chunk_by(move |a, b| {
        high = high.max(a.high);
        b.low < high
    })
}

/// The length and the step of each axis.
type Axes = SmallVec<[(usize, usize); 2]>;

/// The addresses of an array: runs of contiguous bytes, which begin at `low` plus any sum of steps along the axes.
struct Lattice {
    /// The lowest address.
    low: usize,
    /// Bytes of a run.
    run: usize,
    /// Lengths (neither 0 nor 1) and steps in bytes, the longest steps last.
    axes: Axes,
}

impl Lattice {
    /// The number of runs.
    fn count(&self) -> usize {
        self.axes.iter().fold(1, |count, (len, _)| count.saturating_mul(*len))
    }
}

/// Whether two elements of an array share a byte.
fn overlaps_itself(array: &Lattice) -> Result<bool> {
    let (mut extent, mut nested) = (array.run, true);
    for (len, step) in &array.axes {
        nested &= *step >= extent;
        extent = extent.saturating_add((len - 1).saturating_mul(*step));
    }
    // An array with more bytes than its extent overlaps itself. So the memory of the array limits the number of runs below.
    let is_crowded = array.count().saturating_mul(array.run) > extent;
    Ok(!nested && (is_crowded || clash(slice::from_ref(array))?.is_some()))
}

/// A quick proof for columns, rows and other interleaved views: all steps are multiples of one distance, and the arrays do not
/// overlap modulo it.
fn residues_are_apart(arrays: &[Lattice]) -> Result<bool> {
    let steps = arrays.iter().flat_map(|array| &array.axes);
    let distance = steps.fold(0, |gcd, (_, step)| greatest_common_divisor(gcd, *step));
    if distance == 0 {
        return Ok(false);
    }
    let mut runs = vec_with_room(arrays.len())?;
    runs.extend(arrays.iter().map(|array| (array.low % distance, array.run)));
    runs.sort_unstable();
    let first = runs.first().map(|(low, _)| low + distance);
    let next = runs.iter().skip(1).map(|(low, _)| *low).chain(first);
    Ok(runs.iter().zip(next).all(|((low, run), next)| low + run <= next))
}

fn greatest_common_divisor(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Two arrays that share a byte, or twice the number of one that overlaps itself. If runs are sorted by their first addresses
/// and some of them overlap, two overlapping ones are neighbours.
fn clash(arrays: &[Lattice]) -> Result<Option<(usize, usize)>> {
    let mut runs =
        vec_with_room(arrays.iter().fold(0, |runs: usize, array| runs.saturating_add(array.count())))?;
    for (i, array) in arrays.iter().enumerate() {
        let first = runs.len();
        runs.push((array.low, array.low + array.run, i));
        // For each step along an axis, a copy of all runs so far is added.
        for (len, step) in &array.axes {
            let last = runs.len();
            for distance in (1..*len).map(|steps| steps * step) {
                let copies = runs.len();
                runs.extend_from_within(first..last);
                for (low, high, _) in runs.iter_mut().skip(copies) {
                    (*low, *high) = (*low + distance, *high + distance);
                }
            }
        }
    }
    runs.sort_unstable();
    let clash = runs.iter().zip(runs.iter().skip(1)).find(|((_, high, _), (low, ..))| low < high);
    Ok(clash.map(|((.., a), (.., b))| (*a, *b)))
}
