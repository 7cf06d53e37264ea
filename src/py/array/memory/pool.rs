//! A pool of the memory of large outputs, for later calls.
//!
//! The C library maps each allocation of 32 MiB or more anew, so the kernel zeroes every page. For an output, that costs as much as
//! the work that fills it. So this pool keeps a freed block for the next output of about that size. The kernel may take its pages
//! when it runs short of memory (`MADV_FREE`). A thread that does not get the lock maps or unmaps memory instead.

use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, TryLockError};

use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use rustix::param::page_size;

use crate::py::memory_limit::POOL_BYTES;
use crate::setting::{Setting, number_in};

/// Bytes of the smallest output that gets memory from here. It is the largest size below which glibc's heap may serve an
/// allocation (`DEFAULT_MMAP_THRESHOLD_MAX`); from here on it always maps.
pub(super) const LARGE: usize = 32 << 20;

/// A free block is used for an output if it is at most an eighth larger.
const SLACK: usize = 8;

/// Bytes of a huge page. Blocks are aligned to it, so that one page fault maps all of it.
const HUGE_PAGE: usize = 2 << 20;

/// A mapping: one page that begins with the number of bytes of the data, then the data. NumPy does not see the page before the
/// data, and `MADV_FREE` does not affect it.
pub(super) struct Block {
    data: NonNull<u8>,
}

// SAFETY: nothing else refers to the memory of a block; its owner may use it on any thread.
unsafe impl Send for Block {}

impl Block {
    /// A block for `size` bytes: a free one, or a new one. If the limit on the address space allows no new one, it may once
    /// glibc's heap is trimmed.
    pub(super) fn allocate(size: usize) -> Option<Self> {
        let capacity = size.max(1).checked_next_multiple_of(page_size())?;
        let free = with_pool(|pool| pool.take(capacity)).flatten();
        free.or_else(|| Self::map(capacity)).or_else(|| {
            trim_heap();
            Self::map(capacity)
        })
    }

    /// Returns the block to the pool, or to the kernel.
    pub(super) fn free(self) {
        let mut block = Some(self);
        with_pool(|pool| block.take().map(|block| pool.put(block)));
        if let Some(block) = block {
            block.unmap();
        }
    }

    pub(super) fn data(&self) -> NonNull<u8> {
        self.data
    }

    /// # Safety
    /// `data` is that of a block that was allocated here and is not freed yet, and the caller owns it.
    pub(super) unsafe fn of_data(data: NonNull<u8>) -> Self {
        Self { data }
    }

    pub(super) fn capacity(&self) -> usize {
        // SAFETY: `map` wrote the header, and nothing else reaches its page.
        unsafe { *self.header() }
    }

    fn header(&self) -> *mut usize {
        self.data.as_ptr().wrapping_sub(page_size()).cast()
    }

    fn map(capacity: usize) -> Option<Self> {
        let page = page_size();
        let reserved = capacity.checked_add(page + HUGE_PAGE)?;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no other memory.
        let begin = unsafe {
            mm::mmap_anonymous(
                ptr::null_mut(),
                reserved,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let begin = begin.ok()?.cast::<u8>();
        let ahead = (begin.addr() + page).next_multiple_of(HUGE_PAGE) - begin.addr();
        let data = begin.wrapping_add(ahead);
        let behind = reserved - ahead - capacity;
        // SAFETY: the ranges are whole pages of the mapping just made, before the header and behind the data. Unmapping fails for
        // no such range.
        unsafe {
            if ahead > page {
                let _ = mm::munmap(begin.cast(), ahead - page);
            }
            if behind > 0 {
                let _ = mm::munmap(data.wrapping_add(capacity).cast(), behind);
            }
        }
        ask_for_huge_pages(data, capacity);
        let block = Self { data: NonNull::new(data)? };
        // SAFETY: the page before the data belongs to the mapping, and a page is aligned for a number.
        unsafe { block.header().write(capacity) };
        Some(block)
    }

    fn unmap(self) {
        // SAFETY: header and data are what `map` left of the mapping, and nothing refers to it any more.
        let _ = unsafe { mm::munmap(self.header().cast(), page_size() + self.capacity()) };
    }

    /// Lets the kernel take the pages of the data when it runs short of memory; their bytes are then lost.
    fn offer(&self) {
        // SAFETY: the data are whole pages of the mapping, and nobody needs their bytes any more.
        let _ = unsafe { mm::madvise(self.data.as_ptr().cast(), self.capacity(), Advice::LinuxFree) };
    }
}

/// Asks the kernel to map these bytes in huge pages when they are first written, unless the user has told NumPy not to ask.
pub(super) fn ask_for_huge_pages(data: *mut u8, bytes: usize) {
    // Not a `LazyLock`: a forked child may wait for one forever.
    static ASKS: Setting =
        Setting::new(0..=1, || number_in("NUMPY_MADVISE_HUGEPAGE", 0..=usize::MAX, "0 or 1"), || 1);
    if !ASKS.get().is_ok_and(|asks| asks > 0) {
        return;
    }
    // The range begins at the beginning of a page, so that no gap is left after an output that ends in this page.
    let before = data.addr() % page_size();
    // SAFETY: this advice changes no byte of any memory. The kernel may refuse it, and reports addresses that are not mapped.
    let _ = unsafe { mm::madvise(data.wrapping_sub(before).cast(), before + bytes, Advice::LinuxHugepage) };
}

/// The free blocks, the least recently used one first.
struct Pool {
    blocks: VecDeque<Block>,
    bytes: usize,
    /// The process that freed the blocks. A forked child unmaps its copies: writing to one would copy its pages.
    process: u32,
}

impl Pool {
    /// The smallest block with room for `capacity` bytes, unless it is larger by more than [`SLACK`] allows.
    fn take(&mut self, capacity: usize) -> Option<Block> {
        let fits = |block: &Block| (capacity..=capacity + capacity / SLACK).contains(&block.capacity());
        let fitting = self.blocks.iter().enumerate().filter(|(_, block)| fits(block));
        let (at, _) = fitting.min_by_key(|(_, block)| block.capacity())?;
        let block = self.blocks.remove(at)?;
        self.bytes -= block.capacity();
        Some(block)
    }

    /// Keeps a block, if it fits within the limit. The least recently used blocks are unmapped for it.
    fn put(&mut self, block: Block) {
        let limit = POOL_BYTES.get().unwrap_or(0);
        let capacity = block.capacity();
        if capacity > limit || self.blocks.try_reserve(1).is_err() {
            return block.unmap();
        }
        self.shrink_to(limit - capacity);
        block.offer();
        self.bytes += capacity;
        self.blocks.push_back(block);
    }

    /// Unmaps the least recently used blocks until at most `bytes` are left.
    fn shrink_to(&mut self, bytes: usize) {
        while self.bytes > bytes
            && let Some(block) = self.blocks.pop_front()
        {
            self.bytes -= block.capacity();
            block.unmap();
        }
    }
}

static POOL: Mutex<Pool> = Mutex::new(Pool { blocks: VecDeque::new(), bytes: 0, process: 0 });

/// Calls `work` with the pool, unless another thread holds its lock.
fn with_pool<R>(work: impl FnOnce(&mut Pool) -> R) -> Option<R> {
    let mut pool = match POOL.try_lock() {
        Ok(pool) => pool,
        Err(TryLockError::Poisoned(pool)) => pool.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    let process = std::process::id();
    if pool.process != process {
        pool.shrink_to(0);
        pool.process = process;
    }
    Some(work(&mut pool))
}

/// Called in a forked child: unmaps the blocks that it inherited, so that the parent need not copy their pages. In a child of C
/// code, the first call does this. If another thread held the lock during the fork, the child keeps no blocks.
pub(in crate::py) fn forked() {
    with_pool(|_| ());
}

/// Unmaps all free blocks, and trims glibc's heap; returns the number of bytes of the blocks.
pub(in crate::py) fn trim() -> usize {
    trim_heap();
    let trimmed = with_pool(|pool| {
        let bytes = pool.bytes;
        pool.shrink_to(0);
        bytes
    });
    trimmed.unwrap_or(0)
}

/// The number of bytes of the free blocks.
pub(in crate::py) fn held() -> usize {
    with_pool(|pool| pool.bytes).unwrap_or(0)
}

/// Returns the free pages of glibc's heap to the kernel.
fn trim_heap() {
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        malloc_trim(0);
    }
}
