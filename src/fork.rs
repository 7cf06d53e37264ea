//! State that a forked child must not share with its parent.
//!
//! A child has a copy of all memory and one thread. Work of the parent's other threads is never finished there: a lock that one
//! of them held stays locked, and a thread pool has no threads. So a child starts with fresh state, and does not touch the
//! state that it inherited.

use std::iter::successors;
use std::sync::OnceLock;

/// A list of values (locks, for example): the values inherited from the ancestors, then the value of this process. A child
/// appends its value in its own copy of the memory, so the last value always belongs to this process.
pub struct PerProcess<L> {
    value: L,
    child: OnceLock<Box<Self>>,
}

impl<L: Default> PerProcess<L> {
    /// Makes the value of the first process.
    pub const fn new(value: L) -> Self {
        Self { value, child: OnceLock::new() }
    }

    /// The value of this process.
    pub fn get(&self) -> &L {
        &self.current().value
    }

    fn current(&self) -> &Self {
        successors(Some(self), |parent| parent.child.get().map(|child| &**child)).last().unwrap_or(self)
    }

    /// Gives a child a value of its own, before it starts threads.
    pub fn renew(&self) {
        self.current().child.get_or_init(|| Box::new(Self::new(L::default())));
    }
}
