//! One thread at a time is inside a proxy. Threads that only want to make progress do not wait for their turn.
//!
//! A stepping thread that finds another one inside goes away, and may then sleep. The other one may have polled the
//! carrier before the arrival that woke the first one. So a thread that leaves rings the bell for the threads that it
//! kept out:
//!
//! ```text
//!   refused thread                              thread inside
//!   r1  try_lock: fails                         i1  unlock
//!   r2  refused := true                         i2  fence(seq_cst)
//!   r3  fence(seq_cst)                          i3  refused? refused := false (acquire), and ring
//!   r4  try_lock: fails, goes away
//! ```
//! - If r3 comes before i2, i3 sees r2, or another thread that left has seen it and rings.
//! - Otherwise r4 sees i1. As it fails, a third thread is inside, and the same holds for that one.
//! - The ring reaches the thread. It counts itself as a sleeper and makes a full fence before it looks whether it may
//!   continue, and thus before r2 (`doorbell.rs`). That fence and the acquire of i3 order the count before the ring. A
//!   relaxed i3 could see r2 although i2 comes before r3, take the flag from a third thread, and ring for nobody. If
//!   the thread does not sleep, it steps again anyway.
//!
//! So an arrival that came before a thread was refused is taken: by the thread inside if it polls again, or by the
//! refused one when it is rung. `models/` runs this file with two threads that step.
#![forbid(unsafe_code)]

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, PoisonError, TryLockError, fence};
use crate::transport::doorbell::Doorbell;
use std::ops::{Deref, DerefMut};

/// What one thread at a time may use.
pub(super) struct Turns<S> {
    state: Mutex<S>,
    /// True if a thread was refused since a thread last left.
    refused: AtomicBool,
    /// The bell on which refused threads may sleep.
    bell: Doorbell,
}

/// A thread's turn, until it is dropped.
pub(super) struct Inside<'t, S> {
    turns: &'t Turns<S>,
    /// `None` only while it is dropped.
    state: Option<MutexGuard<'t, S>>,
}

/// A thread panicked inside.
#[derive(Debug)]
pub(super) struct Panicked;

impl<S> Turns<S> {
    pub(super) fn new(state: S, bell: Doorbell) -> Turns<S> {
        Turns { state: Mutex::new(state), refused: AtomicBool::new(false), bell }
    }

    /// Waits for a turn.
    pub(super) fn enter(&self) -> Result<Inside<'_, S>, Panicked> {
        self.state.lock().map(|state| self.inside(state)).map_err(|_: PoisonError<_>| Panicked)
    }

    /// Takes a turn, unless another thread is inside: `None`.
    pub(super) fn try_enter(&self) -> Result<Option<Inside<'_, S>>, Panicked> {
        for again in [true, false] {
            match self.state.try_lock() {
                Ok(state) => return Ok(Some(self.inside(state))),
                Err(TryLockError::Poisoned(_)) => return Err(Panicked),
                Err(TryLockError::WouldBlock) if again => {
                    // r2 and r3
                    self.refused.store(true, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                }
                Err(TryLockError::WouldBlock) => {}
            }
        }
        Ok(None)
    }

    fn inside<'t>(&'t self, state: MutexGuard<'t, S>) -> Inside<'t, S> {
        Inside { turns: self, state: Some(state) }
    }
}

impl<S> Deref for Inside<'_, S> {
    type Target = S;

    fn deref(&self) -> &S {
        self.state.as_ref().expect("only dropping takes it")
    }
}

impl<S> DerefMut for Inside<'_, S> {
    fn deref_mut(&mut self) -> &mut S {
        self.state.as_mut().expect("only dropping takes it")
    }
}

impl<S> Drop for Inside<'_, S> {
    /// i1 to i3
    fn drop(&mut self) {
        self.state = None;
        fence(Ordering::SeqCst);
        let refused = &self.turns.refused;
        if refused.load(Ordering::Relaxed) && refused.swap(false, Ordering::Acquire) {
            self.turns.bell.ring();
        }
    }
}
