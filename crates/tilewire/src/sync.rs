//! Atomics, locks and pauses of the files whose orderings are subtle: the standard library's, by one name.
//!
//! `models/` compiles those files (`vm/pool.rs`, `vm/queue.rs`, `vm/stall.rs`, `transport/doorbell.rs`, `cuda/gang.rs`) against loom's
//! atomics, which stand there under the same name, and runs them in all orders that the memory model allows. Therefore they take what
//! synchronises from here and from nowhere else.
#![forbid(unsafe_code)]

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
pub(crate) use std::thread::{sleep, yield_now};
pub(crate) use std::time::Instant;
