//! State that a forked child must not share with its parent.
//!
//! A child has a copy of all memory and one thread. What its parent's other threads were doing stays undone for ever:
//! a lock that one of them held is never let go, and a pool of threads has none. So a child starts with fresh state,
//! and what it inherited is left alone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A value (a lock, that is) for this process, and others for its ancestors, which it inherited.
#[derive(Debug)]
pub struct PerProcess<L> {
    eldest: Generation<L>,
    /// How many forks lie between the eldest and this process.
    forks: AtomicUsize,
}

#[derive(Debug)]
struct Generation<L> {
    value: L,
    child: OnceLock<Box<Self>>,
}

impl<L: Default> PerProcess<L> {
    /// The value of the first process.
    pub const fn new(value: L) -> Self {
        Self { eldest: Generation { value, child: OnceLock::new() }, forks: AtomicUsize::new(0) }
    }

    /// The value of this process.
    pub fn get(&self) -> &L {
        &self.generation().value
    }

    fn generation(&self) -> &Generation<L> {
        let forks = self.forks.load(Ordering::Acquire);
        (0..forks).fold(&self.eldest, |parent, _| parent.child.get().map_or(parent, |child| child))
    }

    /// To be called in a child, before it starts threads: gives it a value of its own. Returns what it inherited.
    pub fn renew(&self) -> &L {
        let parent = self.generation();
        parent.child.get_or_init(|| Box::new(Generation { value: L::default(), child: OnceLock::new() }));
        self.forks.fetch_add(1, Ordering::Release);
        &parent.value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_child_gets_a_lock_that_is_free() -> Result<(), &'static str> {
        let state: PerProcess<Mutex<u32>> = PerProcess::new(Mutex::new(7));
        let mut held = state.get().try_lock().map_err(|_| "the first lock is free")?;
        *held = 8;
        assert!(state.get().try_lock().is_err());
        for _ in 0..3 {
            state.renew();
            assert_eq!(*state.get().try_lock().map_err(|_| "a child's lock is free")?, 0);
            *state.get().try_lock().map_err(|_| "and lets go")? = 9;
        }
        assert_eq!(*held, 8);
        Ok(())
    }

    #[test]
    fn a_child_is_shown_what_it_inherited() -> Result<(), &'static str> {
        let state: PerProcess<Mutex<u32>> = PerProcess::new(Mutex::new(7));
        for expected in [7, 0, 0] {
            assert_eq!(*state.renew().try_lock().map_err(|_| "nobody holds it")?, expected);
        }
        Ok(())
    }
}
