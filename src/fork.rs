//! State that a forked child must not share with its parent.
//!
//! A child has a copy of all memory and one thread. Work of the parent's other threads is never finished there: a lock that one
//! of them held stays locked, and a thread pool has no threads. So a child starts with fresh state, and does not touch the
//! state that it inherited.

use std::iter::successors;
use std::sync::OnceLock;

/// A value (a lock, for example) of this process, after the inherited values of its ancestors. A child adds its value in its own
/// copy of the memory, so the last one is always this process's.
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
        &self.youngest().value
    }

    fn youngest(&self) -> &Self {
        successors(Some(self), |parent| parent.child.get().map(|child| &**child)).last().unwrap_or(self)
    }

    /// Gives a child a value of its own, before it starts threads. Returns the inherited value.
    pub fn renew(&self) -> &L {
        let parent = self.youngest();
        parent.child.get_or_init(|| Box::new(Self::new(L::default())));
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
