//! Whether arrays share bytes, exactly: extents that overlap are not enough, as the columns of a matrix show.

use pyo3::PyResult;
use pyo3::exceptions::PyMemoryError;
use smallvec::SmallVec;

/// Lengths and distances of steps.
pub(super) type Axes = SmallVec<[(usize, usize); 2]>;

/// Where the elements of an array lie: at `low` plus any sum of steps along the axes.
pub(super) struct Lattice {
    /// The lowest address.
    pub(super) low: usize,
    /// Bytes of an element.
    pub(super) itemsize: usize,
    /// Lengths (not 1) and distances of steps in bytes.
    pub(super) axes: Axes,
}

impl Lattice {
    /// The bytes that lie in a row, and the axes beyond them.
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
        (run, axes)
    }

    fn high(&self) -> usize {
        self.low + self.itemsize + self.axes.iter().map(|(len, step)| (len - 1) * step).sum::<usize>()
    }

    /// Calls `visit` with the address of each element.
    fn for_each(&self, visit: &mut impl FnMut(usize) -> bool) -> bool {
        fn along(axes: &[(usize, usize)], at: usize, visit: &mut impl FnMut(usize) -> bool) -> bool {
            match axes {
                [] => visit(at),
                [(len, step), inner @ ..] => (0..*len).all(|i| along(inner, at + i * step, visit)),
            }
        }
        along(&self.axes, self.low, visit)
    }
}

/// Whether two elements of an array share a byte.
pub(super) fn of_itself(array: &Lattice) -> PyResult<bool> {
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
    Ok(Marks::new(std::slice::from_ref(array))?.first_clash(std::slice::from_ref(array)).is_some())
}

/// Two arrays, none of which overlaps itself, that share a byte.
pub(super) fn between(arrays: &[Lattice]) -> PyResult<Option<(usize, usize)>> {
    if residues_are_apart(arrays) {
        return Ok(None);
    }
    Ok(Marks::new(arrays)?.first_clash(arrays))
}

/// A quick proof for columns, rows and other interleaved views: all steps are multiples of one distance, and
/// modulo it the arrays lie apart.
fn residues_are_apart(arrays: &[Lattice]) -> bool {
    let runs: Vec<_> = arrays.iter().map(Lattice::runs).collect();
    let distance =
        runs.iter().flat_map(|(_, axes)| axes).fold(0, |gcd, (_, step)| greatest_common_divisor(gcd, *step));
    if distance == 0 {
        return false;
    }
    let mut stretches: Vec<_> =
        arrays.iter().zip(&runs).map(|(array, (run, _))| (array.low % distance, *run)).collect();
    stretches.sort_unstable();
    let next =
        stretches.iter().skip(1).map(|(low, _)| *low).chain(stretches.first().map(|(low, _)| low + distance));
    stretches.iter().zip(next).all(|((low, run), next)| low + run <= next)
}

fn greatest_common_divisor(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// One mark for each unit of memory between the lowest and the highest byte.
struct Marks {
    low: usize,
    unit: usize,
    words: Vec<u64>,
}

impl Marks {
    fn new(arrays: &[Lattice]) -> PyResult<Self> {
        let low = arrays.iter().map(|array| array.low).min().unwrap_or(0);
        let high = arrays.iter().map(Lattice::high).max().unwrap_or(0);
        // The largest unit that no element is cut by.
        let unit = arrays.iter().fold(0, |unit, array| {
            let unit =
                greatest_common_divisor(greatest_common_divisor(unit, array.low - low), array.itemsize);
            array.axes.iter().fold(unit, |unit, (_, step)| greatest_common_divisor(unit, *step))
        });
        let unit = unit.max(1);
        let words = (high - low).div_ceil(unit).div_ceil(64);
        let mut marks = Vec::new();
        marks.try_reserve_exact(words).map_err(|_| {
            PyMemoryError::new_err("out: no memory to find out whether the outputs share memory")
        })?;
        marks.resize(words, 0);
        Ok(Self { low, unit, words: marks })
    }

    /// Marks the arrays one by one until one meets a mark; which other array's it is, is found by marking
    /// again.
    fn first_clash(mut self, arrays: &[Lattice]) -> Option<(usize, usize)> {
        let second = arrays.iter().position(|array| !self.mark(array))?;
        for first in 0..second {
            self.words.fill(0);
            self.mark(&arrays[first]);
            if !self.mark(&arrays[second]) {
                return Some((first, second));
            }
        }
        Some((second, second))
    }

    /// False if a mark was there before.
    fn mark(&mut self, array: &Lattice) -> bool {
        let units = array.itemsize / self.unit;
        let (low, unit, marks) = (self.low, self.unit, &mut self.words);
        array.for_each(&mut |address| {
            let first = (address - low) / unit;
            (first..first + units).all(|at| {
                let (word, bit) = (at / 64, 1 << (at % 64));
                let fresh = marks[word] & bit == 0;
                marks[word] |= bit;
                fresh
            })
        })
    }
}
