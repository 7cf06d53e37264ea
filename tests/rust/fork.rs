//! State of a process and of its children.

use std::sync::Mutex;

use _core::fork::PerProcess;

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
