//! The number of bytes of freed outputs that may be kept for later calls: `GRADCLIP_POOL_BYTES`, or else a share of memory.

use std::fs;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;

use crate::setting::{Setting, number_in};

/// The largest default limit, in bytes.
const DEFAULT_MOST: usize = 1 << 30;
/// The divisor of the machine's memory for the default limit: a sixteenth of the memory.
const DEFAULT_PART: usize = 16;

/// The largest number of bytes to keep. 0: nothing is kept. No block is larger than half of the address space.
pub(super) static POOL_BYTES: Setting = Setting::new(
    0..=usize::MAX / 2,
    || number_in("GRADCLIP_POOL_BYTES", 0..=usize::MAX, "a number of bytes, 0 for none"),
    || (memory_of_process("/".into()).unwrap_or(0) / DEFAULT_PART).min(DEFAULT_MOST),
);

/// The memory of the machine, or the part that the control groups of this process allow, in bytes; None if the system has no
/// such files. Tests pass another root for the control groups.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what Python's paths become")]
pub(super) fn memory_of_process(root: PathBuf) -> Option<usize> {
    let root = root.as_path();
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
