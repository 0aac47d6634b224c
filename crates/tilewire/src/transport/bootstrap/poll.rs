//! `poll(2)`, behind a safe interface.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// A descriptor, what we want to do with it and, after [`poll`], what it is ready for.
#[repr(transparent)]
pub(super) struct Polled<'fd> {
    entry: libc::pollfd,
    /// The descriptor stays open as long as this lives.
    _descriptor: PhantomData<BorrowedFd<'fd>>,
}

impl<'fd> Polled<'fd> {
    pub(super) fn new(descriptor: BorrowedFd<'fd>, reads: bool, writes: bool) -> Polled<'fd> {
        let wanted = |wants: bool, event| if wants { event } else { 0 };
        let events = wanted(reads, libc::POLLIN) | wanted(writes, libc::POLLOUT);
        let entry = libc::pollfd { fd: descriptor.as_raw_fd(), events, revents: 0 };
        Polled { entry, _descriptor: PhantomData }
    }

    /// True if a read returns bytes, the end, or an error without waiting.
    pub(super) fn is_readable(&self) -> bool {
        self.entry.revents & libc::POLLIN != 0
    }

    /// True if a write makes progress without waiting.
    pub(super) fn is_writable(&self) -> bool {
        self.entry.revents & libc::POLLOUT != 0
    }

    /// True if the other end is gone for good.
    pub(super) fn is_broken(&self) -> bool {
        self.entry.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0
    }
}

/// Waits until a descriptor is ready or the timeout has passed. A signal may end the wait early.
pub(super) fn poll(polled: &mut [Polled<'_>], timeout: Option<Duration>) -> io::Result<()> {
    // Rounded up: a timeout of 0.3 ms must not become a loop that spins for 0.3 ms.
    let timeout = timeout.map_or(-1, |t| i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
    // SAFETY: `Polled` is transparent over `pollfd`, so pointer and length describe that many of them, borrowed mutably
    // for the call. The kernel writes `revents` only. Each `Polled` borrows its descriptor, so none is closed and
    // reused.
    let ready = unsafe { libc::poll(polled.as_mut_ptr().cast(), polled.len() as libc::nfds_t, timeout) };
    if ready >= 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => {
            polled.iter_mut().for_each(|p| p.entry.revents = 0);
            Ok(())
        }
        error => Err(error),
    }
}
