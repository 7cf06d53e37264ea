//! Arrays that go a part of the way to others: `base + (t - base) * factor`.

use std::ops::Range;

use super::elementwise::{Task, apply_elementwise, is_streamed, with_store};
use super::{Crew, work_of};
use crate::element::Real;
use crate::error::{Result, vec_with_room};
use crate::isa::Isa;
use crate::kernel::difference::Approach;
use crate::scaled::Factor;
use crate::walk::{Store, View, Work};

/// What becomes of the differences.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// They stay: the result is `t`.
    Whole,
    /// They vanish: the result is the base.
    Nothing,
    /// They are scaled.
    Scaled(Factor),
}

/// One array of a pair: `other` has the positions of what it is applied to.
#[derive(Debug)]
struct Towards<'a, T> {
    other: &'a View<'a, T>,
    /// Whether `other` is `t` and not the base.
    other_is_t: bool,
    step: Step,
}

impl<T: Real> Work<T> for Towards<'_, T> {
    fn changes(&self, _: Isa, _: Range<usize>, _: &[T]) -> bool {
        match self.step {
            Step::Whole => self.other_is_t,
            Step::Nothing => !self.other_is_t,
            Step::Scaled(_) => true,
        }
    }
    fn apply(&self, isa: Isa, at: Range<usize>, data: &mut [T]) {
        let is_base = self.other_is_t;
        self.other.with_block(at, |other| match self.step {
            Step::Scaled(factor) => isa.run(Approach { data, other, is_base, factor }),
            Step::Whole if self.other_is_t => data.copy_from_slice(other),
            Step::Nothing if !self.other_is_t => data.copy_from_slice(other),
            Step::Whole | Step::Nothing => {}
        });
    }
}

/// A pair of arrays with its output, which is made from one of them or is it.
#[derive(Debug)]
pub struct Pair<'a, T: Real> {
    /// The output, and `t` or the base.
    pub task: Task<'a, T>,
    /// The other of the two.
    pub other: View<'a, T>,
    /// Whether that is `t`.
    pub other_is_t: bool,
}

/// A pair of any real dtype.
pub trait AnyPair: Send {
    /// The bytes that are read and written.
    fn bytes(&self) -> usize;
    /// Takes the step on all threads if the arrays are long.
    ///
    /// # Errors
    /// A bad setting of the threads.
    fn step(&mut self, isa: Isa, step: Step) -> Result<()>;
    /// Takes it on the calling thread.
    fn step_alone(&mut self, isa: Isa, step: Step, store: Store<'_>);
}

impl<T: Real> AnyPair for Pair<'_, T> {
    fn bytes(&self) -> usize {
        self.other.len() * size_of::<T>() * 3
    }
    fn step(&mut self, isa: Isa, step: Step) -> Result<()> {
        let towards = Towards { other: &self.other, other_is_t: self.other_is_t, step };
        apply_elementwise(isa, &towards, &mut self.task)
    }
    fn step_alone(&mut self, isa: Isa, step: Step, store: Store<'_>) {
        let towards = Towards { other: &self.other, other_is_t: self.other_is_t, step };
        self.task.run(isa, &towards, store);
    }
}

/// Bytes of the longest pair that one thread does.
const SHARED_FROM: usize = 6 << 20;

/// Takes one step for all pairs.
///
/// # Errors
/// No memory for the list of jobs, or a bad setting of the threads.
pub fn step_all(isa: Isa, pairs: &mut [Box<dyn AnyPair + '_>], step: Step) -> Result<()> {
    let bytes: usize = pairs.iter().map(|pair| pair.bytes()).sum();
    let streams = is_streamed(bytes / 3);
    let (mut long, mut short) = (vec_with_room(pairs.len())?, vec_with_room(pairs.len())?);
    for pair in pairs.iter_mut() {
        if pair.bytes() >= SHARED_FROM { long.push(pair) } else { short.push(pair) }
    }
    for pair in long {
        pair.step(isa, step)?;
    }
    let bytes = short.iter().map(|pair| pair.bytes()).sum();
    Crew::new().each(work_of(bytes, short.len()), short.into_iter(), |pair| {
        with_store(streams, |store| pair.step_alone(isa, step, store));
    })
}
