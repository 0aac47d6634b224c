//! The user's signal handlers, kept while the library runs code that replaces them.

use std::mem::MaybeUninit;

/// The signals that libraries below libfabric take over: PSM when it is loaded, the shm provider when an endpoint
/// opens.
const TAKEN: [i32; 6] = [libc::SIGINT, libc::SIGILL, libc::SIGABRT, libc::SIGBUS, libc::SIGSEGV, libc::SIGTERM];

/// The handlers at the time of [`Handlers::keep`], which are put back when it is dropped.
///
/// Handlers belong to the process. A handler that another thread installs in the meantime is replaced, too.
pub(crate) struct Handlers([Option<libc::sigaction>; 6]);

impl Handlers {
    pub fn keep() -> Handlers {
        Handlers(TAKEN.map(|signal| {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: it only writes the structure, which is large enough for it.
            let result = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
            // SAFETY: zeroed is a valid value of the structure, and the call has filled it if it returned 0.
            (result == 0).then(|| unsafe { action.assume_init() })
        }))
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        for (signal, action) in TAKEN.iter().zip(&self.0) {
            if let Some(action) = action {
                // SAFETY: it was in force before, so its handler is code of this process, which is never unloaded here.
                unsafe { libc::sigaction(*signal, action, std::ptr::null_mut()) };
            }
        }
    }
}
