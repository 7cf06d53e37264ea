//! The number of bytes of freed outputs that may be kept for later calls: `GRADCLIP_POOL_BYTES`, or else a share of memory.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};

/// The limit in bytes, [`NOT_ASKED`] or [`BY_MEMORY`].
static LIMIT: AtomicUsize = AtomicUsize::new(NOT_ASKED);

/// The environment has not been read yet; the first call reads it.
const NOT_ASKED: usize = usize::MAX;
/// The environment sets no limit. The memory is measured only when there is a block to keep: that takes 0.1 ms.
const BY_MEMORY: usize = usize::MAX - 1;

/// The largest default limit, in bytes.
const DEFAULT_MOST: usize = 1 << 30;
/// The default limit as a part of the machine's memory: a sixteenth.
const DEFAULT_PART: usize = 16;

/// Reads the environment, once.
///
/// # Errors
/// `Error::Setting` if the variable is not a number of bytes.
#[inline]
pub(super) fn check() -> Result<()> {
    if LIMIT.load(Ordering::Relaxed) == NOT_ASKED { ask_environment() } else { Ok(()) }
}

/// Makes the next call ask the environment again.
pub(super) fn forget() {
    LIMIT.store(NOT_ASKED, Ordering::Relaxed);
}

#[cold]
fn ask_environment() -> Result<()> {
    const VARIABLE: &str = "GRADCLIP_POOL_BYTES";
    let found = std::env::var_os(VARIABLE).unwrap_or_default();
    let found = found.to_string_lossy();
    let limit = match found.trim() {
        "" => BY_MEMORY,
        // A number that exceeds usize is valid.
        text if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().unwrap_or(usize::MAX).min(BY_MEMORY - 1)
        }
        _ => {
            let allowed = "a number of bytes, 0 for none";
            return Err(Error::Setting { variable: VARIABLE, found: found.into_owned(), allowed });
        }
    };
    LIMIT.store(limit, Ordering::Relaxed);
    Ok(())
}

/// Whether the limit is 0, so that nothing is kept.
///
/// # Errors
/// Those of [`check`].
#[cfg(target_os = "linux")] // only Linux has blocks of the pool: array/handler.rs
pub(super) fn is_zero() -> Result<bool> {
    check()?;
    Ok(LIMIT.load(Ordering::Relaxed) == 0)
}

/// The largest number of bytes to keep.
///
/// # Errors
/// Those of [`check`].
pub(super) fn limit() -> Result<usize> {
    check()?;
    let mut limit = LIMIT.load(Ordering::Relaxed);
    if limit == BY_MEMORY {
        let memory = memory_of_process(Path::new("/")).unwrap_or(0);
        limit = (memory / DEFAULT_PART).min(DEFAULT_MOST);
        LIMIT.store(limit, Ordering::Relaxed);
    }
    Ok(limit)
}

/// The memory of the machine, or the part that the control groups of this process leave, in bytes; None if the system has no
/// such files. Tests pass another root for the control groups.
pub(super) fn memory_of_process(root: &Path) -> Option<usize> {
    let machine = fs::read_to_string("/proc/meminfo").ok()?;
    let total = machine.lines().find_map(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB"));
    let machine = total?.trim().parse::<usize>().ok()?.checked_mul(1024)?;
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| {
        // "0::/path" (version 2) or "4:memory:/path" (version 1).
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        match controllers {
            "" => Some(("sys/fs/cgroup", path, "memory.max")),
            controllers if controllers.split(',').any(|name| name == "memory") => {
                Some(("sys/fs/cgroup/memory", path, "memory.limit_in_bytes"))
            }
            _ => None,
        }
    });
    let limits = limits.flat_map(|(mount, path, file)| {
        // The limits of all enclosing groups count. Inside a container the path may begin at its root.
        let groups = Path::new(path.trim_start_matches('/')).ancestors().map(ToOwned::to_owned);
        groups.filter_map(move |group| {
            let text = fs::read_to_string(root.join(mount).join(group).join(file)).ok()?;
            text.trim().parse::<usize>().ok()
        })
    });
    limits.chain([machine]).min()
}
