//! Starting threads where memory is limited (`ulimit -v`).
//!
//! The standard library reports an error if the system provides no thread or no stack. But a new thread first takes
//! some more memory, for its signal stack, and if there is none, the whole process is ended. So a little more than the
//! stack must be free.

use std::io;
use std::thread::{Builder, JoinHandle};

/// What must be free before a thread is started: its stack (2 MiB by default), a few pages each for the signal stacks
/// of a few threads that start at the same time, and their first allocations. If it left out the stack, a stack could
/// take the room of its own signal stack.
const ROOM: usize = (2 << 20) + (1 << 20);

/// Starts a thread. If the system has none, or no memory for it, returns an error instead of ending the process.
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

/// Checks that there is memory for everything that a thread takes.
pub(super) fn room_for_a_thread() -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address the kernel chooses; it replaces nothing, and nobody touches it.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), ROOM, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just mapped, and known only here.
    unsafe { libc::munmap(start, ROOM) };
    Ok(())
}
