//! Helpers that the Rust tests share.

#![allow(dead_code, reason = "codegen.rs, a program of its own, takes few of them")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use _core::element::{Element, Real};
use _core::error::Result;
use _core::isa::Isa;
use _core::kernel::power::{Power, PowerTerms};
use _core::parallel::Crew;
use _core::parallel::columns::scale_columns;
use _core::parallel::elementwise::Task;
use _core::parallel::reduce::{AnyView, Order, norm_of_views, norms_into};
use _core::parallel::rows::{Rule, scale_rows};
use _core::scaled::Scaled;
use _core::walk::{Slices, Target, View};

/// A lock to hold while a test sets the number of threads, which is a setting of the process.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A view of contiguous elements.
pub(crate) fn dense<T: Element>(data: &[T]) -> AnyView<'_> {
    Box::new(View::Dense(data))
}

/// The norm of arrays as one.
pub(crate) fn norm(isa: Isa, crew: &Crew, arrays: &[AnyView<'_>], order: Order) -> Result<Scaled> {
    norm_of_views(isa, crew, &arrays, order)
}

/// `(|x| / peak)^p`, for a power with this peak.
pub(crate) fn term_of<T: Element>(power: Power, x: T) -> f64 {
    let to = &mut [0.0];
    Isa::current().run(PowerTerms { from: &[x], to, power });
    to[0]
}

/// Numbers that look random and are the same at every run (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() >> 16) as usize % end
    }
}

/// Whether tests are slow: Miri is some hundred times slower, and counters of lines (`.ci/coverage`) some ten times.
pub(crate) const IS_SLOW: bool = cfg!(any(miri, coverage));

/// The amount of something to test: few where tests are slow.
pub(crate) const fn sized(most: usize, few: usize) -> usize {
    if IS_SLOW { few } else { most }
}

/// All items, or one of every `step` where tests are slow.
pub(crate) fn thinned<I: IntoIterator>(all: I, step: usize) -> std::iter::StepBy<I::IntoIter> {
    all.into_iter().step_by(sized(1, step))
}

/// The norm of each slice, in the order of the kept axes.
pub(crate) fn slice_norms<T: Element>(isa: Isa, slices: &Slices<'_, T>, order: Order) -> Result<Vec<Scaled>> {
    let mut norms = vec![Scaled::ZERO; slices.kept.len()];
    norms_into(isa, slices, order, &mut norms)?;
    Ok(norms)
}

/// Clips each row of `len` elements by its own norm.
pub(crate) fn clip_rows<T: Real>(
    isa: Isa,
    source: Option<&Slices<'_, T>>,
    output: &mut [T],
    len: usize,
    limit: f64,
) -> Result<()> {
    let task = Task { source: source.map(Slices::elements), target: Target::Dense(output) };
    scale_rows(isa, task, len, Rule::Clip(limit.into()), &mut [])
}

/// Clips each column of matrices by its own norm.
pub(crate) fn clip_columns<T: Real>(
    isa: Isa,
    source: Option<&[T]>,
    output: &mut [T],
    shape: [usize; 2],
    limit: f64,
) -> Result<()> {
    let source = source.map(View::Dense);
    scale_columns::<T>(isa, source.as_ref(), output, shape, Rule::Clip(limit.into()), &mut [])
}
