//! The threads of PyTorch as workers of a call: the team of its OpenMP runtime.
//!
//! After an operation on the CPU, the threads of PyTorch spin for some milliseconds, because the next operation may follow. A worker
//! of the pool would share its CPU with one of them, and a call would take as long as on one thread. So calls of `gradclip.torch`
//! run on the team that spins.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

use crate::isa::FloatDefaults;

thread_local! {
    /// The team for the calls of this thread. OpenMP has a team for each thread that starts parallel work.
    static CURRENT: Cell<Option<Team>> = const { Cell::new(None) };
}

/// The function `GOMP_parallel(function, data, threads, flags)` of GNU's, LLVM's and Intel's OpenMP runtimes. It calls `function(data)`
/// on each thread of the team, one of which is the calling thread, and returns when all calls have returned. 0 threads are as many
/// as the program has set.
type Parallel = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);

/// The team of the calling thread.
#[derive(Clone, Copy)]
pub struct Team(Parallel);

impl Team {
    /// Lets the calls of this thread use the team of the OpenMP runtime whose `GOMP_parallel` has this address. Returns the previous
    /// address. 0: the pool is used. Any other address must be that of a `GOMP_parallel` that stays loaded.
    #[expect(unsafe_code, reason = "PyTorch loads the runtime, so it cannot be linked")]
    pub fn set_current(address: usize) -> usize {
        let function = ptr::with_exposed_provenance::<c_void>(address);
        // SAFETY: the address is not null. `gradclip._openmp`, the only source of addresses, gets it from the dynamic linker under the
        // name `GOMP_parallel`, whose signature is `Parallel` on every platform. PyTorch, which is never unloaded, keeps it loaded.
        let team = || Self(unsafe { std::mem::transmute::<*const c_void, Parallel>(function) });
        let before = CURRENT.replace((address != 0).then(team));
        before.map_or(0, |Self(function)| (function as *const c_void).expose_provenance())
    }

    /// The team that calls of this thread use, if any.
    pub(super) fn current() -> Option<Self> {
        CURRENT.get()
    }

    /// Calls `work` on the calling thread with true, and on up to `helpers` other threads of the team with false. Returns when all
    /// calls have returned.
    #[expect(unsafe_code, reason = "the runtime takes a function of C")]
    pub(super) fn run(self, helpers: usize, work: &(dyn Fn(bool) + Sync)) {
        let places = AtomicUsize::new(helpers);
        let shared = Shared { caller: thread::current().id(), places, work, panic: Mutex::new(None) };
        let data = ptr::from_ref(&shared).cast_mut().cast();
        // SAFETY: `Self` holds `GOMP_parallel`. It calls `member` with a pointer to `shared`, which lives until it returns.
        unsafe { (self.0)(member, data, 0, 0) };
        if let Some(panic) = shared.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }
}

/// What the threads of a team share.
struct Shared<'a> {
    caller: ThreadId,
    /// How many more threads may help. The team may have more threads than the call is to use.
    places: AtomicUsize,
    work: &'a (dyn Fn(bool) + Sync),
    /// The first panic, for the caller: a panic must not unwind through the frames of the runtime.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The part of one thread of the team.
///
/// # Safety
///
/// `data` must point to a [`Shared`] that is borrowed until this function returns.
#[expect(unsafe_code, reason = "the runtime passes a pointer from thread to thread")]
unsafe extern "C" fn member(data: *mut c_void) {
    // SAFETY: as the caller promises. `Shared` is `Sync`.
    let shared = unsafe { &*data.cast_const().cast::<Shared<'_>>() };
    let is_caller = thread::current().id() == shared.caller;
    let take = |places: usize| places.checked_sub(1);
    if is_caller || shared.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
        // The program may have changed the register of its threads, for example by `torch.set_flush_denormal`.
        let _control = FloatDefaults::set();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (shared.work)(is_caller))) {
            shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::error::Result;
    use crate::parallel::crew::{Crew, WAKE_MIN_BYTES};
    use crate::parallel::tests::alone;
    use crate::parallel::threads::THREADS;

    /// A runtime with a team of three threads.
    #[expect(unsafe_code, reason = "the signature is that of a function of C")]
    unsafe extern "C" fn three(
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
        threads: c_uint,
        flags: c_uint,
    ) {
        assert_eq!([threads, flags], [0, 0]);
        let data = data.expose_provenance();
        let call = || {
            // SAFETY: `data` is what `Team::run` passed for `function`.
            unsafe { function(ptr::with_exposed_provenance_mut(data)) };
        };
        thread::scope(|scope| {
            scope.spawn(call);
            scope.spawn(call);
            call();
        });
    }

    #[test]
    fn the_caller_and_the_helpers_asked_for_work() {
        let caller = thread::current().id();
        for helpers in 0..4 {
            let [own, others] = [const { AtomicUsize::new(0) }; 2];
            Team(three).run(helpers, &|is_caller| {
                assert_eq!(is_caller, thread::current().id() == caller);
                if is_caller { &own } else { &others }.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!([own.into_inner(), others.into_inner()], [1, helpers.min(2)]);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_after_all_have_returned() {
        for of_caller in [true, false] {
            let ended = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                Team(three).run(2, &|is_caller| {
                    if is_caller == of_caller {
                        resume_unwind(Box::new("a job"));
                    }
                    ended.fetch_add(1, Ordering::Relaxed);
                });
            }));
            assert_eq!(result.err().and_then(|panic| panic.downcast_ref::<&str>().copied()), Some("a job"));
            assert_eq!(ended.into_inner(), if of_caller { 2 } else { 1 });
        }
    }

    #[test]
    fn calls_of_the_thread_that_sets_a_team_run_on_it() -> Result<()> {
        let _alone = alone();
        THREADS.set(2);
        let is_none_elsewhere = || thread::scope(|scope| scope.spawn(|| Team::current().is_none()).join());
        let address = (three as Parallel as *const c_void).expose_provenance();
        assert_eq!(Team::set_current(address), 0);
        assert!(matches!(is_none_elsewhere(), Ok(true)));
        for jobs in [0, 1, 2, 7, 1000] {
            let (crew, all_begun) = (Crew::new(), Barrier::new(jobs.min(2)));
            let counts: Vec<_> = (0..jobs).map(|_| AtomicUsize::new(0)).collect();
            crew.each(WAKE_MIN_BYTES, counts.iter().enumerate(), |(i, count)| {
                if i == 0 || i + 1 == jobs {
                    all_begun.wait(); // so that a member of the team has one job at least
                }
                count.fetch_add(1, Ordering::Relaxed);
            })?;
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            assert!(jobs < 2 || crew.own_jobs(jobs) < jobs);
        }
        assert_eq!(Team::set_current(0), address);
        assert!(Team::current().is_none());
        Ok(())
    }
}
