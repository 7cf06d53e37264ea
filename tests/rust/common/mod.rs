//! Helpers that the Rust tests share.

#![allow(dead_code, reason = "sharing.rs, a program of its own, takes one of them")]

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock to hold while a test sets the number of threads, which is a setting of the process.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The amount of something to test: less under Miri, which is some hundred times slower.
pub(crate) const fn sized(most: usize, under_miri: usize) -> usize {
    if cfg!(miri) { under_miri } else { most }
}

/// All items, or under Miri one of every `under_miri`.
pub(crate) fn thinned<I: IntoIterator>(all: I, under_miri: usize) -> std::iter::StepBy<I::IntoIter> {
    all.into_iter().step_by(sized(1, under_miri))
}
