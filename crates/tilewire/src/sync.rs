//! The standard library's atomics, locks and pauses under one name, for files whose orderings are subtle.
//!
//! `models/` compiles those files (`tensor/ring.rs`, `vm/pool.rs`, `vm/stall.rs`, `transport/doorbell.rs`,
//! `transport/proxy/duty.rs`, `transport/proxy/turns.rs`, `cuda/gang.rs`) against a module of the same name with loom's
//! atomics, and runs them in all orders that the memory model allows. Therefore they must take all synchronisation from
//! here.
#![forbid(unsafe_code)]

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
pub(crate) use std::thread::{sleep, yield_now};
pub(crate) use std::time::Instant;
