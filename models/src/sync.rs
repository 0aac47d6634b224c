//! The names of `crates/tilewire/src/sync.rs`, with loom's types.

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use loom::thread::yield_now;
pub(crate) use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

/// Loom knows no time, so a sleeping thread lets others run.
pub(crate) fn sleep(_: Duration) {
    yield_now();
}

/// A compiler fence is no instruction, and does not order anything for other threads.
pub(crate) fn compiler_fence(_: Ordering) {}

/// A clock that stands still. Naps and deadlines never end, so a lost wake-up is a deadlock, which loom finds.
#[derive(Clone, Copy)]
pub(crate) struct Instant;

impl Instant {
    pub(crate) fn now() -> Instant {
        Instant
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

/// A shared value with the memory orders of the standard library's `Arc`. In loom's own `Arc`, reading the count orders
/// accesses, which it does not in std's.
pub(crate) struct Arc<T> {
    value: std::sync::Arc<T>,
    count: std::sync::Arc<AtomicUsize>,
}

impl<T> Arc<T> {
    pub(crate) fn new(value: T) -> Arc<T> {
        Arc { value: std::sync::Arc::new(value), count: std::sync::Arc::new(AtomicUsize::new(1)) }
    }

    pub(crate) fn ptr_eq(this: &Arc<T>, other: &Arc<T>) -> bool {
        std::sync::Arc::ptr_eq(&this.value, &other.value)
    }

    pub(crate) fn strong_count(this: &Arc<T>) -> usize {
        this.count.load(Ordering::Relaxed)
    }
}

impl<T> Clone for Arc<T> {
    fn clone(&self) -> Arc<T> {
        self.count.fetch_add(1, Ordering::Relaxed);
        Arc { value: self.value.clone(), count: self.count.clone() }
    }
}

impl<T> Drop for Arc<T> {
    fn drop(&mut self) {
        if self.count.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
        }
    }
}

impl<T: Default> Default for Arc<T> {
    fn default() -> Arc<T> {
        Arc::new(T::default())
    }
}

impl<T> std::ops::Deref for Arc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// A word that threads can sleep on, as on a futex: the waiting and the waking thread take a lock.
pub(crate) struct AtomicU32 {
    pub(crate) value: loom::sync::atomic::AtomicU32,
    wakes: Mutex<u32>,
    changed: Condvar,
}

impl AtomicU32 {
    pub(crate) fn new(value: u32) -> AtomicU32 {
        let value = loom::sync::atomic::AtomicU32::new(value);
        AtomicU32 { value, wakes: Mutex::new(0), changed: Condvar::new() }
    }

    pub(crate) fn wait(&self, seen: u32) {
        let mut wakes = self.wakes.lock().unwrap();
        if self.value.load(Ordering::Relaxed) != seen {
            return;
        }
        let before = *wakes;
        while *wakes == before {
            wakes = self.changed.wait(wakes).unwrap();
        }
    }

    pub(crate) fn wake_all(&self) {
        *self.wakes.lock().unwrap() += 1;
        self.changed.notify_all();
    }
}

impl std::ops::Deref for AtomicU32 {
    type Target = loom::sync::atomic::AtomicU32;

    fn deref(&self) -> &Self::Target {
        &self.value
    }
}

/// A word of a [`Memory`](crate::tensor::Memory), found by its address: loom's atomics are larger than 8 bytes. Or one
/// of its own.
#[derive(Debug)]
pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> AtomicU64 {
        AtomicU64(loom::sync::atomic::AtomicU64::new(value))
    }

    /// # Safety
    /// The word lies in a memory that lives as long as the result.
    pub(crate) unsafe fn from_ptr<'w>(place: *mut u64) -> &'w AtomicU64 {
        let word = crate::tensor::word(place as usize);
        // SAFETY: the caller's promise; words do not move while their memory lives.
        unsafe { &*word }
    }
}

impl std::ops::Deref for AtomicU64 {
    type Target = loom::sync::atomic::AtomicU64;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
