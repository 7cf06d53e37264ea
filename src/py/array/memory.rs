//! Memory for outputs, used again.
//!
//! The kernel hands out fresh pages one fault at a time, zeroed: for a large output that costs as much as the work
//! that fills it. So large outputs own memory of ours, by way of NumPy's memory handlers (NEP 49: the arrays own
//! their data and free or resize it as any other), and what they free is held for the next call.
//!
//! Other outputs of a list are cut from slabs: the C library gives the end of its heap back to the kernel as soon as a
//! list of them is dropped, and each of its blocks costs as much as to scale a few hundred numbers. One output keeps its
//! slab alive, 256 KiB of those up to 32 KiB and 2 MiB of others; the last of them gives it back.
//!
//! Held are at most as many blocks as the outputs of the last call had, size by size, and at most [`limit`] bytes.
//! Beyond [`KEPT`] the huge pages of what is held are marked `MADV_FREE`: the kernel takes them back when it runs short;
//! and where small pages come to as much, they are too. To mark pages interrupts all CPUs on which threads of the process
//! run, and costs small pages a tenth of the work that would fill them. The lock is tried, never waited for: who does not
//! get it maps or unmaps memory instead.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::mem;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, TryLockError};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::error::{Error, Result};
use crate::fork::PerProcess;

/// Single outputs of fewer bytes come from NumPy, and so from the C library, which holds what is small itself.
const LARGE: usize = 512 << 10;

/// The size of a huge page: blocks begin at one, so that a page fault maps all of it.
const HUGE_PAGE: usize = 2 << 20;

/// A mapping: a page for itself, then `capacity` bytes to lend.
struct Block {
    data: NonNull<u8>,
}

// SAFETY: a block is memory that nothing else refers to; whoever has it may use it, on any thread.
unsafe impl Send for Block {}

/// What stands in the page before the data, where NumPy does not see it and `MADV_FREE` does not reach.
struct Header {
    capacity: usize,
    /// Of a slab: the pieces that are in use, and [`OPEN`] more while it is cut.
    pieces: AtomicUsize,
}

fn page() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    // SAFETY: the call has no preconditions.
    *PAGE.get_or_init(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

impl Block {
    /// Room for `size` bytes in whole pages, or in whole huge ones where these are at most an eighth more: the rest of
    /// a huge page would be mapped page by page, with a fault for each. None where that is more than there can be.
    fn capacity_for(size: usize) -> Option<usize> {
        let pages = size.max(1).checked_next_multiple_of(page())?;
        let huge = pages.checked_next_multiple_of(HUGE_PAGE).filter(|huge| huge - pages <= pages / 8);
        Some(huge.unwrap_or(pages))
    }

    fn map(capacity: usize) -> Option<Self> {
        let page = page();
        let reserved = capacity.checked_add(page + HUGE_PAGE)?;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no other memory.
        let begin = unsafe {
            libc::mmap(
                ptr::null_mut(),
                reserved,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if begin == libc::MAP_FAILED {
            return None;
        }
        let begin = begin.cast::<u8>();
        let ahead = (begin.addr() + page).next_multiple_of(HUGE_PAGE) - begin.addr();
        let data = begin.wrapping_add(ahead);
        let behind = reserved - ahead - capacity;
        // What is in no whole huge page is mapped at once, in half the time that it takes page by page as it is written.
        let huge = capacity / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: the ranges are whole pages of the mapping just made: what lies before the header, what lies
        // behind the data, and the data itself and its end, for which the advice changes no byte. Advice that is not
        // taken is no error.
        unsafe {
            if ahead > page {
                libc::munmap(begin.cast(), ahead - page);
            }
            if behind > 0 {
                libc::munmap(data.wrapping_add(capacity).cast(), behind);
            }
            libc::madvise(data.cast(), capacity, libc::MADV_HUGEPAGE);
            libc::madvise(data.wrapping_add(huge).cast(), capacity - huge, libc::MADV_POPULATE_WRITE);
        }
        let block = NonNull::new(data).map(|data| Self { data })?;
        // SAFETY: the page before the data is part of the mapping, and aligned for all there is.
        unsafe { block.header().write(Header { capacity, pieces: AtomicUsize::new(0) }) };
        Some(block)
    }

    /// The begin of the page before the data.
    fn header(&self) -> *mut Header {
        self.data.as_ptr().wrapping_sub(page()).cast()
    }

    fn capacity(&self) -> usize {
        // SAFETY: `map` wrote a header there, and nothing else reaches that page.
        unsafe { (*self.header()).capacity }
    }

    fn unmap(self) {
        let capacity = self.capacity();
        // SAFETY: the mapping is what `map` left of it, header and data, and nothing refers to it any more.
        unsafe {
            libc::munmap(self.header().cast(), page() + capacity);
        }
    }

    /// Lets the kernel take the first pages when it runs short; what they hold is lost then.
    fn offer(&self, bytes: usize) {
        // SAFETY: nothing in the data is needed any more, and it has so many bytes.
        unsafe {
            libc::madvise(self.data.as_ptr().cast(), bytes.min(self.capacity()), libc::MADV_FREE);
        }
    }
}

/// Bytes that may be held without the kernel's leave to take them.
const KEPT: usize = 64 << 20;

/// A block that waits for an output, and how many bytes of it the kernel may take.
struct Held {
    block: Block,
    offered: usize,
}

/// What is held, and what may be.
#[derive(Default)]
struct Pool {
    /// By capacity.
    blocks: HashMap<usize, Vec<Held>>,
    /// Bytes of all of them.
    bytes: usize,
    /// Bytes of these that the kernel may not take.
    kept: usize,
    /// How many large outputs of a capacity the call that is going on has made.
    made: HashMap<usize, usize>,
    /// The same of the last call: as many are held at most.
    wanted: HashMap<usize, usize>,
    /// The process that holds them: a child gives back what it inherited, for to write to it would copy it.
    process: u32,
}

static POOL: PerProcess<Mutex<Option<Pool>>> = PerProcess::new(Mutex::new(None));

/// Whether a call has made large outputs since [`settle`].
static IS_MAKING: AtomicBool = AtomicBool::new(false);

/// To be called in a forked child before it starts threads: gives back what the child inherited, unless a thread of
/// the parent had the lock.
pub(in crate::py) fn forked() {
    let parent = POOL.renew();
    if let Ok(mut inherited) = parent.try_lock()
        && let Some(mut pool) = inherited.take()
    {
        pool.give_back_but(|_| 0);
    }
}

/// Calls `work` with the pool, unless another thread has it.
fn with_pool<R>(work: impl FnOnce(&mut Pool) -> R) -> Option<R> {
    let mut pool = match POOL.get().try_lock() {
        Ok(pool) => pool,
        Err(TryLockError::Poisoned(pool)) => pool.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    let pool = pool.get_or_insert_default();
    let process = std::process::id();
    if pool.process != process {
        // Also after a fork that `forked` was not told of.
        pool.give_back_but(|_| 0);
        pool.process = process;
    }
    Some(work(pool))
}

impl Pool {
    fn take(&mut self, capacity: usize) -> Option<Block> {
        let held = self.blocks.get_mut(&capacity)?.pop()?;
        self.forget(capacity, &held);
        Some(held.block)
    }

    fn forget(&mut self, capacity: usize, held: &Held) {
        self.bytes -= capacity;
        self.kept -= capacity - held.offered;
    }

    fn count_as_made(&mut self, capacity: usize) {
        if self.made.try_reserve(1).is_ok() {
            *self.made.entry(capacity).or_default() += 1;
        }
    }

    /// Holds a block if the last call would have taken it; or gives it back.
    fn hold(&mut self, block: Block) {
        let capacity = block.capacity();
        let wanted = self.wanted.get(&capacity).copied().unwrap_or(0);
        let fits = limit().is_ok_and(|limit| self.bytes.saturating_add(capacity) <= limit);
        if !fits || self.blocks.try_reserve(1).is_err() {
            return block.unmap();
        }
        let same = self.blocks.entry(capacity).or_default();
        if same.len() >= wanted || same.try_reserve(1).is_err() {
            return block.unmap();
        }
        let huge = capacity / HUGE_PAGE * HUGE_PAGE;
        let offered = match KEPT.saturating_sub(self.kept) {
            room if room >= capacity => 0,
            room if room >= capacity - huge => huge,
            _ => capacity,
        };
        if offered > 0 {
            block.offer(offered);
        }
        same.push(Held { block, offered });
        self.kept += capacity - offered;
        self.bytes += capacity;
    }

    /// Gives back all but so many blocks of each capacity.
    fn give_back_but(&mut self, wanted: impl Fn(usize) -> usize) {
        let mut blocks = mem::take(&mut self.blocks);
        blocks.retain(|&capacity, same| {
            for held in same.drain(wanted(capacity).min(same.len())..) {
                self.forget(capacity, &held);
                held.block.unmap();
            }
            !same.is_empty()
        });
        self.blocks = blocks;
    }
}

/// The bytes that may be held, or one of the two below.
static LIMIT: AtomicUsize = AtomicUsize::new(NOT_ASKED);

/// Before the first call, which asks the environment.
const NOT_ASKED: usize = usize::MAX;
/// The environment says nothing, and how much memory there is was not asked: that takes longer than a small call.
const BY_MEMORY: usize = usize::MAX - 1;

/// Asks the environment, once.
///
/// # Errors
/// `Error::Setting` when it asks for something that is not a number of bytes.
#[inline]
pub(in crate::py) fn check_settings() -> Result<()> {
    if LIMIT.load(Ordering::Relaxed) == NOT_ASKED { ask_environment() } else { Ok(()) }
}

#[cold]
fn ask_environment() -> Result<()> {
    const VARIABLE: &str = "GRADCLIP_POOL_BYTES";
    let found = std::env::var_os(VARIABLE).unwrap_or_default();
    let found = found.to_string_lossy();
    let limit = match found.trim() {
        "" => BY_MEMORY,
        // A number that no usize holds is a number still.
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

/// Whether memory may be held. How much is asked when there is some to hold: that takes 0.1 ms, of a first call.
///
/// # Errors
/// Those of [`check_settings`].
fn may_hold() -> Result<bool> {
    check_settings()?;
    Ok(LIMIT.load(Ordering::Relaxed) > 0)
}

/// The largest number of bytes to hold.
///
/// # Errors
/// Those of [`check_settings`].
pub(in crate::py) fn limit() -> Result<usize> {
    check_settings()?;
    let mut limit = LIMIT.load(Ordering::Relaxed);
    if limit == BY_MEMORY {
        limit = memory_of_process(Path::new("/")).map_or(0, |bytes| (bytes / 16).min(1 << 30));
        LIMIT.store(limit, Ordering::Relaxed);
    }
    Ok(limit)
}

/// The memory of the machine, or what the control groups of this process leave of it. The file system's root is another
/// one in tests.
pub(in crate::py) fn memory_of_process(root: &Path) -> Option<usize> {
    // SAFETY: the call has no preconditions.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    let machine = usize::try_from(pages).ok()?.checked_mul(page())?;
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
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
        // A group is bound by the limits of those around it; inside a container the path may begin at its root.
        let groups = Path::new(path.trim_start_matches('/')).ancestors().map(ToOwned::to_owned);
        groups.filter_map(move |group| {
            let text = std::fs::read_to_string(root.join(mount).join(group).join(file)).ok()?;
            text.trim().parse::<usize>().ok()
        })
    });
    limits.chain([machine]).min()
}

/// Gives back all that is held; the number of bytes.
pub(in crate::py) fn trim() -> usize {
    let trimmed = with_pool(|pool| {
        let held = pool.bytes;
        pool.give_back_but(|_| 0);
        held
    });
    trimmed.unwrap_or(0)
}

/// The number of bytes held.
pub(in crate::py) fn held() -> usize {
    with_pool(|pool| pool.bytes).unwrap_or(0)
}

/// To be called at the end of a call: what it has made is what may be held from now on.
#[inline]
pub(in crate::py) fn settle() {
    if IS_MAKING.load(Ordering::Relaxed) {
        settle_pool();
    }
}

#[cold]
fn settle_pool() {
    with_pool(|pool| {
        IS_MAKING.store(false, Ordering::Relaxed);
        pool.wanted.clear();
        mem::swap(&mut pool.made, &mut pool.wanted);
        let wanted = mem::take(&mut pool.wanted);
        pool.give_back_but(|capacity| wanted.get(&capacity).copied().unwrap_or(0));
        pool.wanted = wanted;
    });
}

fn allocate(size: usize) -> Option<Block> {
    let capacity = Block::capacity_for(size)?;
    let held = with_pool(|pool| {
        pool.count_as_made(capacity);
        IS_MAKING.store(true, Ordering::Relaxed);
        pool.take(capacity)
    });
    held.flatten().or_else(|| Block::map(capacity))
}

fn release(block: Block) {
    let mut block = Some(block);
    with_pool(|pool| block.take().map(|block| pool.hold(block)));
    if let Some(block) = block {
        block.unmap();
    }
}

/// A slab is a block that the outputs of a list are cut from.
struct Kind {
    /// Its bytes: what one output keeps alive at most.
    slab: usize,
    /// The most bytes of a piece.
    piece: usize,
    /// Outputs of fewer bytes in all are left to the C library: there would be little in the slab.
    worth: usize,
}

/// For small outputs and for larger ones. The kernel maps the pages of the first kind one by one, when they are written,
/// and the huge page of the second as a whole.
const KINDS: [Kind; 2] = [
    Kind { slab: 256 << 10, piece: 32 << 10, worth: 32 << 10 },
    Kind { slab: HUGE_PAGE, piece: LARGE - 1, worth: HUGE_PAGE },
];

/// The kind of slab for a piece of so many bytes.
fn kind_of(bytes: usize) -> Option<usize> {
    KINDS.iter().position(|kind| bytes <= kind.piece)
}

/// Lines of a slab. A piece begins and ends at one.
const LINES: usize = 4096;

/// Counted for a slab that is being cut, so that it is given back by nobody.
const OPEN: usize = usize::MAX / 2;

/// A slab. At its begin stands for each of its lines how many the piece has that begins there.
#[derive(Clone, Copy)]
struct Slab {
    data: NonNull<u8>,
    /// Bytes of a line.
    line: usize,
    /// Lines that are cut off.
    used: usize,
    /// As so many pieces.
    made: usize,
}

impl Slab {
    fn new(kind: &Kind) -> Option<Self> {
        let line = kind.slab / LINES;
        let used = (LINES * size_of::<u16>()).div_ceil(line);
        let slab = Self { data: allocate(kind.slab)?.data, line, used, made: 0 };
        slab.pieces().store(OPEN, Ordering::Relaxed);
        Some(slab)
    }

    /// The slab that a piece was cut from, and the piece as the next one: blocks begin at huge pages, and slabs are no
    /// longer than one.
    fn of(piece: NonNull<u8>) -> Option<Self> {
        let within = piece.addr().get() % HUGE_PAGE;
        let data = NonNull::new(piece.as_ptr().wrapping_sub(within))?;
        let line = Block { data }.capacity() / LINES;
        Some(Self { data, line, used: within.checked_div(line)?, made: 0 })
    }

    fn pieces(&self) -> &AtomicUsize {
        // SAFETY: the header is there as long as the slab is, which whoever has a piece of it keeps.
        unsafe { &(*Block { data: self.data }.header()).pieces }
    }

    /// Where it stands how many lines the next piece has.
    #[expect(clippy::cast_ptr_alignment, reason = "a slab begins at a page")]
    fn lines(&self) -> *mut u16 {
        self.data.as_ptr().cast::<u16>().wrapping_add(self.used)
    }

    /// Cuts off a piece, unless too little is left.
    fn cut(&mut self, size: usize) -> Option<NonNull<u8>> {
        let lines = size.max(1).div_ceil(self.line);
        if lines > LINES - self.used {
            return None;
        }
        // SAFETY: it lies among the numbers at the begin of the slab, and is written by who cuts it alone.
        unsafe { self.lines().write(u16::try_from(lines).unwrap_or(u16::MAX)) };
        let piece = NonNull::new(self.data.as_ptr().wrapping_add(self.used * self.line));
        self.used += lines;
        self.made += 1;
        piece
    }

    /// To be called when nothing more is cut off.
    fn close(self) {
        self.forget(OPEN - self.made);
    }

    /// Counts pieces as given back; with the last one the slab is.
    fn forget(self, pieces: usize) {
        // What other threads did with their pieces comes before.
        if self.pieces().fetch_sub(pieces, Ordering::AcqRel) == pieces {
            release(Block { data: self.data });
        }
    }
}

/// What outputs of this thread are made of.
#[derive(Clone, Copy)]
enum Cutting {
    /// There is no list that wants them.
    Not,
    /// From a slab, which is still to be had.
    Nothing,
    From(Slab),
}

impl Cutting {
    fn end(self) {
        if let Self::From(slab) = self {
            slab.close();
        }
    }
}

thread_local! {
    /// By kind.
    static CUTTING: [Cell<Cutting>; KINDS.len()] = const { [const { Cell::new(Cutting::Not) }; KINDS.len()] };
}

/// A piece of a slab, if the thread is making a list.
fn cut(size: usize) -> Option<NonNull<u8>> {
    let number = kind_of(size)?;
    let kind = KINDS.get(number)?;
    CUTTING.with(|cutting| {
        let cutting = cutting.get(number)?;
        let mut slab = match cutting.get() {
            Cutting::Not => return None,
            Cutting::Nothing => Slab::new(kind)?,
            Cutting::From(slab) => slab,
        };
        let mut piece = slab.cut(size);
        if piece.is_none() {
            slab.close();
            cutting.set(Cutting::Nothing);
            slab = Slab::new(kind)?;
            piece = slab.cut(size);
        }
        cutting.set(Cutting::From(slab));
        piece
    })
}

/// A piece of a slab where that is possible, or else a block.
fn any_memory(size: usize) -> Option<NonNull<u8>> {
    cut(size).or_else(|| allocate(size).map(|block| block.data))
}

/// Where [`any_memory`] came from.
enum Origin {
    Block(Block),
    Piece(Slab),
}

impl Origin {
    fn of(data: NonNull<u8>) -> Option<Self> {
        // No piece lies at the begin of a slab, where the numbers are.
        if data.addr().get().is_multiple_of(HUGE_PAGE) {
            Some(Self::Block(Block { data }))
        } else {
            Slab::of(data).map(Self::Piece)
        }
    }

    fn capacity(&self) -> usize {
        match self {
            Self::Block(block) => block.capacity(),
            // SAFETY: `cut` wrote the number for this piece, and nobody else does before it is given back.
            Self::Piece(slab) => usize::from(unsafe { slab.lines().read() }) * slab.line,
        }
    }

    fn give_back(self) {
        match self {
            Self::Block(block) => release(block),
            Self::Piece(slab) => slab.forget(1),
        }
    }
}

// What NumPy calls. They do not unwind: nothing in them panics.

unsafe extern "C" fn malloc(_: *mut c_void, size: usize) -> *mut c_void {
    any_memory(size).map_or(ptr::null_mut(), |data| data.as_ptr().cast())
}

unsafe extern "C" fn calloc(_: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return ptr::null_mut() };
    let Some(data) = any_memory(bytes) else { return ptr::null_mut() };
    // SAFETY: there is room for so many bytes, and they are ours.
    unsafe { data.write_bytes(0, bytes) };
    data.as_ptr().cast()
}

unsafe extern "C" fn realloc(_: *mut c_void, data: *mut c_void, size: usize) -> *mut c_void {
    let old = NonNull::new(data.cast::<u8>());
    let Some(new) = any_memory(size) else { return ptr::null_mut() };
    if let Some(data) = old
        && let Some(old) = Origin::of(data)
    {
        // SAFETY: NumPy gives back what `malloc` gave it, and both have so many bytes; they are two.
        unsafe { data.copy_to_nonoverlapping(new, old.capacity().min(size)) };
        old.give_back();
    }
    new.as_ptr().cast()
}

unsafe extern "C" fn free(_: *mut c_void, data: *mut c_void, _: usize) {
    // NumPy gives back what `malloc` gave it.
    if let Some(origin) = NonNull::new(data.cast()).and_then(Origin::of) {
        origin.give_back();
    }
}

/// `PyDataMem_Handler` of NumPy's C API, version 1.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    context: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

// SAFETY: it is read only, and its functions may be called on any thread.
unsafe impl Sync for Handler {}

static HANDLER: Handler = Handler {
    name: {
        let (mut name, text) = ([0; 127], b"gradclip");
        let mut i = 0;
        while i < text.len() {
            name[i] = text[i].cast_signed();
            i += 1;
        }
        name
    },
    version: 1,
    context: ptr::null_mut(),
    malloc,
    calloc,
    realloc,
    free,
};

type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;

/// NumPy's `PyDataMem_SetHandler`, which the numpy crate leaves out, and the capsule to call it with.
struct Numpy {
    set_handler: SetHandler,
    capsule: Py<PyAny>,
}

impl Numpy {
    fn get(py: Python<'_>) -> PyResult<&Self> {
        static NUMPY: PyOnceLock<Numpy> = PyOnceLock::new();
        NUMPY.get_or_try_init(py, || {
            const SLOT: usize = 304; // of the C API's table, since NumPy 1.22
            const CAPSULE: &CStr = c"mem_handler";
            let module =
                py.import("numpy._core.multiarray").or_else(|_| py.import("numpy.core.multiarray"))?;
            let api = module.getattr("_ARRAY_API")?;
            // SAFETY: NumPy's capsule without a name holds its table of functions, which lives as long as the
            // process, and the slot holds a function of this type in every version since 1.22. The handler
            // lives as long, too. Null results are errors with an exception set.
            unsafe {
                let table = ffi::PyCapsule_GetPointer(api.as_ptr(), ptr::null()).cast::<*const c_void>();
                if table.is_null() {
                    return Err(PyErr::fetch(py));
                }
                let set_handler = mem::transmute::<*const c_void, SetHandler>(*table.add(SLOT));
                let handler = ptr::from_ref(&HANDLER).cast_mut().cast();
                let capsule = ffi::PyCapsule_New(handler, CAPSULE.as_ptr(), None);
                Ok(Self { set_handler, capsule: Bound::from_owned_ptr_or_err(py, capsule)?.unbind() })
            }
        })
    }
}

/// Calls `make`, which makes an array of so many bytes; if they are many, the array will own memory from here.
pub(super) fn lent<'py>(
    py: Python<'py>,
    bytes: usize,
    make: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut lender = Lender::of(py, KINDS.map(|_| 0), kind_of(bytes).is_none())?;
    let made = lender.lend(bytes, make);
    lender.end()?;
    made
}

/// Makes the arrays of a list. NumPy's handler is changed where the next array wants another one, as that takes half as
/// long as to make a small array.
pub(super) struct Lender<'py> {
    py: Python<'py>,
    /// Whether large arrays own memory from here.
    large: bool,
    /// Whether the other arrays are cut from slabs, by kind.
    small: [bool; KINDS.len()],
    /// These slabs, or while the handler is ours what the thread had before.
    cutting: [Cutting; KINDS.len()],
    /// The handler that was in use before ours.
    before: Option<Bound<'py, PyAny>>,
}

impl<'py> Lender<'py> {
    /// For a list of arrays of so many bytes each.
    pub(super) fn new(py: Python<'py>, sizes: impl Iterator<Item = usize>) -> PyResult<Self> {
        let mut sums = KINDS.map(|_| 0usize);
        let mut large = false;
        for bytes in sizes {
            match kind_of(bytes).and_then(|kind| sums.get_mut(kind)) {
                Some(sum) => *sum = sum.saturating_add(bytes),
                None => large = true,
            }
        }
        Self::of(py, sums, large)
    }

    /// For arrays of so many bytes in all of each kind, and whether there are large ones.
    fn of(py: Python<'py>, sums: [usize; KINDS.len()], large: bool) -> PyResult<Self> {
        let mut small = KINDS.map(|_| false);
        for ((small, sum), kind) in small.iter_mut().zip(sums).zip(&KINDS) {
            *small = sum >= kind.worth;
        }
        let may_hold = (large || small.contains(&true)) && may_hold()?;
        let (large, small) = (large && may_hold, small.map(|small| small && may_hold));
        let cutting = small.map(|small| if small { Cutting::Nothing } else { Cutting::Not });
        Ok(Self { py, large, small, cutting, before: None })
    }

    /// Calls `make`, which makes an array of so many bytes.
    #[inline]
    pub(super) fn lend<R>(&mut self, bytes: usize, make: impl FnOnce() -> PyResult<R>) -> PyResult<R> {
        let ours = kind_of(bytes).and_then(|kind| self.small.get(kind).copied()).unwrap_or(self.large);
        if ours != self.before.is_some() {
            self.change()?;
        }
        make()
    }

    /// From NumPy's handler to ours, or back.
    #[cold]
    fn change(&mut self) -> PyResult<()> {
        let numpy = Numpy::get(self.py)?;
        let before = self.before.take();
        if before.is_some() {
            // First of all: to change the handler may set off Python's collector, and with it another call.
            self.swap_cutting();
        }
        let handler = before.as_ref().unwrap_or_else(|| numpy.capsule.bind(self.py));
        // SAFETY: the interpreter is attached; the function takes a handler's capsule and returns the one that was in
        // use as a new reference, or null with an exception set.
        let last = unsafe { Bound::from_owned_ptr_or_err(self.py, (numpy.set_handler)(handler.as_ptr()))? };
        if before.is_none() {
            self.before = Some(last);
            self.swap_cutting();
        }
        Ok(())
    }

    /// Gives the thread what this has, and takes what the thread has.
    fn swap_cutting(&mut self) {
        CUTTING.with(|thread| {
            for (own, thread) in self.cutting.iter_mut().zip(thread) {
                *own = thread.replace(*own);
            }
        });
    }

    /// To be called when all arrays are made.
    pub(super) fn end(mut self) -> PyResult<()> {
        if self.before.is_some() { self.change() } else { Ok(()) }
    }
}

impl Drop for Lender<'_> {
    fn drop(&mut self) {
        if self.before.is_some() {
            // There is another error already.
            let _ = self.change();
        }
        self.cutting.into_iter().for_each(Cutting::end);
    }
}
