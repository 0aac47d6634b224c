//! Sleeping on a 32-bit word of shared memory.
//!
//! This is not the private kind of futex: the word may lie in memory shared by several processes. On systems other than
//! Linux a wait is a short sleep and a wake does nothing; callers re-check anyway.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while the word is `seen`, for at most `timeout`; may also return for no reason.
///
/// The kernel compares and goes to sleep under a lock that `wake_all` also takes. So if the word changes and a wake
/// follows, the sleeper cannot miss it between the comparison and the sleep.
#[cfg(target_os = "linux")]
pub(super) fn wait(word: &AtomicU32, seen: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: the word and the time are valid for the call, which writes neither. The result does not matter: whether
    // the word changed (EAGAIN) or the call was interrupted, timed out or woken, the caller looks again.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const timeout);
    }
}

/// Wakes every thread that sleeps on the word, in every process.
#[cfg(target_os = "linux")]
pub(super) fn wake_all(word: &AtomicU32) {
    // SAFETY: the word is valid for the call, which does not write it and cannot fail for a valid address.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}

/// Sleeps a little.
#[cfg(not(target_os = "linux"))]
pub(super) fn wait(_: &AtomicU32, _: u32, timeout: Duration) {
    std::thread::sleep(timeout.min(Duration::from_micros(50)));
}

/// Does nothing: sleepers look again soon.
#[cfg(not(target_os = "linux"))]
pub(super) fn wake_all(_: &AtomicU32) {}
