//! The memory of outputs.

mod handler;
mod heap;
mod pool;

pub(super) use self::handler::with_memory;
pub(super) use self::heap::NewOutputs;
pub(in crate::py) use self::pool::{forked, held, trim};
