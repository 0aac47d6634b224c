//! Starting threads where memory is limited (`ulimit -v`).
//!
//! The standard library reports that the system gives no thread or no stack. But a new thread first takes some more memory, for its signal
//! stack, and where there is none the whole process is ended. So there has to be a little more than the stack takes.

use std::io;
use std::thread::{Builder, JoinHandle};

/// What must be free before a thread is started: its stack (2 MiB by default), signal stacks of a few threads that start at the same time,
/// a few pages each, and what they allocate first. Without the stack in it, a stack could take the room of its own signal stack.
const ROOM: usize = (2 << 20) + (1 << 20);

/// Starts a thread; an error, and not the end of the process, where the system has none or no memory for it.
///
/// ```
/// let thread = tilewire::transport::start_thread(std::thread::Builder::new(), || 42)?;
/// assert_eq!(thread.join().unwrap(), 42);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn start_thread<T: Send + 'static>(
    thread: Builder,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    room_for_a_thread()?;
    thread.spawn(body)
}

/// Whether there is memory for all that a thread takes.
pub(super) fn room_for_a_thread() -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address the kernel chooses; it replaces nothing, and nobody touches it.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), ROOM, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just mapped, and known here alone.
    unsafe { libc::munmap(start, ROOM) };
    Ok(())
}
