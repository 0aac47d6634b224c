//! Stores that other ranks still need after the hosting rank has left.
//!
//! A rank that hosts the store and leaves first must not take the store with it. Nor may it wait in `drop`: its
//! messages, above all an error of `main`, are printed after everything is dropped. So the store continues to serve on
//! its own thread, and the *process* waits at its very end.
//!
//! ```text
//!   drop(bootstrap) ──▶ keep(server) ──▶ thread: until all ranks have left, or the deadline
//!   main returns ──▶ its error is printed ──▶ atexit: until no store lingers
//! ```

use super::StoreServer;
use crate::transport::{Deadline, start_thread};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::Duration;

/// Number of stores that linger in this process.
static COUNT: Mutex<usize> = Mutex::new(0);
static CHANGED: Condvar = Condvar::new();
/// The process that has them. A process forked from it inherits this memory but not the threads.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Keeps a store serving until all ranks have left, but at most until the deadline, and at most for `grace` once a rank
/// has failed. The process does not end before that.
pub(super) fn keep(server: StoreServer, deadline: Deadline, grace: Duration) {
    static REGISTERED: Once = Once::new();
    if server.wait_until_left(Deadline::after(Duration::ZERO)) {
        return;
    }
    REGISTERED.call_once(|| {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the function is `extern "C"`, does not unwind (it allocates nothing and its locks ignore poison), and
        // stays loaded as long as it is registered: the C library runs it before it unloads this program or library. If
        // it cannot be registered, the store ends with the process, and the others are told that it is gone.
        unsafe { libc::atexit(at_exit) };
    });
    add(1);
    let lingering = Lingering(Some(server));
    let thread = std::thread::Builder::new().name("tilewire store lingers".into()).stack_size(64 << 10);
    // If the thread cannot start, the store is dropped here, and the others are told that the store is gone.
    _ = start_thread(thread, move || lingering.wait(deadline, grace));
}

/// Waits until no store lingers; returns false if the deadline came first.
pub(super) fn wait(deadline: Deadline) -> bool {
    let mut count = COUNT.lock().unwrap_or_else(PoisonError::into_inner);
    while *count > 0 && !deadline.is_over() {
        let left = deadline.remaining().unwrap_or(Duration::MAX);
        (count, _) = CHANGED.wait_timeout(count, left).unwrap_or_else(PoisonError::into_inner);
    }
    *count == 0
}

/// Needs no deadline: each store has its own.
extern "C" fn at_exit() {
    if std::process::id() == PROCESS.load(Ordering::Relaxed) {
        wait(Deadline::never());
    }
}

fn add(difference: isize) {
    let mut count = COUNT.lock().unwrap_or_else(PoisonError::into_inner);
    *count = count.saturating_add_signed(difference);
    CHANGED.notify_all();
}

struct Lingering(Option<StoreServer>);

impl Lingering {
    fn wait(self, deadline: Deadline, grace: Duration) {
        if let Some(server) = &self.0 {
            server.wait_for_the_well(deadline, grace);
        }
    }
}

impl Drop for Lingering {
    /// Counts down only after the store has closed its port: a waiting thread may want to listen on that port.
    fn drop(&mut self) {
        drop(self.0.take());
        add(-1);
    }
}
