//! The limit on the size of files (`ulimit -f`): beyond it the kernel sends SIGXFSZ, which ends a process unless it is
//! ignored. If it is ignored, writing fails with an error that can be reported.

use std::sync::atomic::{AtomicBool, Ordering};

/// True if the signal ended processes before this one changed that.
static ENDED: AtomicBool = AtomicBool::new(false);

/// From now on, writing beyond the limit is an error.
pub fn make_it_an_error() {
    // SAFETY: `signal` takes plain numbers; no handler is installed that could run.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    ENDED.store(before == libc::SIG_DFL, Ordering::Relaxed);
}

/// Restores the original behaviour for the program of a child, between fork and exec. Async-signal-safe.
pub fn restore() {
    if ENDED.load(Ordering::Relaxed) {
        // SAFETY: as above; the call is async-signal-safe.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
    }
}
