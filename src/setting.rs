//! Numbers that environment variables set. The first call reads them, not the import. A default is determined when it is first
//! needed.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};

/// The environment has not been read yet.
const NOT_READ: usize = usize::MAX;
/// The environment sets no number, and the default is not known yet: counting CPUs or measuring memory takes 0.1 ms.
const NOT_MEASURED: usize = usize::MAX - 1;

/// A number of this process, kept within a range.
pub struct Setting {
    number: AtomicUsize,
    range: RangeInclusive<usize>,
    read: fn() -> Result<Option<usize>>,
    measure: fn() -> usize,
}

impl Setting {
    /// A number that `read` finds in the environment, or else `measure` in the system. The range ends below `usize::MAX - 1`.
    pub const fn new(
        range: RangeInclusive<usize>,
        read: fn() -> Result<Option<usize>>,
        measure: fn() -> usize,
    ) -> Self {
        Self { number: AtomicUsize::new(NOT_READ), range, read, measure }
    }

    /// Reads the environment, unless it was read without an error before.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.number.load(Ordering::Relaxed) == NOT_READ {
            self.replace(NOT_READ, (self.read)()?);
        }
        Ok(())
    }

    /// The number.
    #[inline]
    pub fn get(&self) -> Result<usize> {
        self.check()?;
        if self.number.load(Ordering::Relaxed) == NOT_MEASURED {
            self.replace(NOT_MEASURED, Some((self.measure)()));
        }
        Ok(self.number.load(Ordering::Relaxed))
    }

    /// Sets the number, or the end of the range that is nearest to it.
    pub fn set(&self, number: usize) {
        self.number.store(self.within(number), Ordering::Relaxed);
    }

    /// Makes the next call read the environment again. No other thread may use the setting meanwhile.
    pub fn forget(&self) {
        self.number.store(NOT_READ, Ordering::Relaxed);
    }

    /// Replaces a mark by a number, unless another thread has called [`Setting::set`] meanwhile: the number of that call stays.
    #[cold]
    fn replace(&self, mark: usize, number: Option<usize>) {
        let now = number.map_or(NOT_MEASURED, |number| self.within(number));
        let _ = self.number.compare_exchange(mark, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn within(&self, number: usize) -> usize {
        number.clamp(*self.range.start(), *self.range.end())
    }
}

/// The number in an environment variable; None if there is no such variable, or if it is empty.
pub fn number_in(
    variable: &'static str,
    range: RangeInclusive<usize>,
    allowed: &'static str,
) -> Result<Option<usize>> {
    let Some(value) = std::env::var_os(variable) else { return Ok(None) };
    let value = value.to_string_lossy();
    let text = value.trim();
    // An integer that exceeds usize is still an integer.
    let beyond = || text.bytes().all(|byte| byte.is_ascii_digit()).then_some(usize::MAX);
    match text.parse().ok().or_else(beyond) {
        _ if text.is_empty() => Ok(None),
        Some(number) if range.contains(&number) => Ok(Some(number)),
        _ => {
            let text = format!("environment variable {variable}: found {value:?}; allowed: {allowed}");
            Err(Error::Setting(text))
        }
    }
}
