//! The dtypes that a function accepts.

use crate::element::Dtype;

/// The dtypes that an argument may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kinds {
    /// All, since every dtype has a norm.
    Normed,
    /// Those that can be scaled by their norm.
    Scalable,
    /// Those that can be clipped to bounds.
    Ordered,
}

impl Kinds {
    /// Whether the dtype is one of them.
    pub(super) fn has(self, dtype: Dtype) -> bool {
        match self {
            Self::Normed => true,
            Self::Scalable => dtype.is_scalable(),
            Self::Ordered => dtype.is_ordered(),
        }
    }

    /// Their names.
    pub(super) fn names(self) -> Vec<&'static str> {
        Dtype::ALL.iter().filter(|dtype| self.has(**dtype)).map(|dtype| dtype.name()).collect()
    }
}
