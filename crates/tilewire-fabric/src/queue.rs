//! Completion queues.

use crate::domain::{Domain, close};
use crate::endpoint::{Completion, Operations};
use crate::error::{CompletionError, FabricError};
use crate::library::text;
use crate::sys;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::null_mut;

/// The most completions that one call of the library returns.
const BATCH: usize = 32;
/// The most calls of the library in one read, so that a peer that never stops sending cannot keep the caller here.
const CALLS: usize = 8;

/// The queue of an endpoint.
pub(crate) struct Cq {
    queue: *mut sys::FidCq,
    descriptor: Option<RawFd>,
    domain: Domain,
}

impl Cq {
    /// Opens a queue, with a descriptor if that is wanted and possible.
    pub fn open(domain: &Domain, size: usize, descriptor: bool) -> Result<Cq, FabricError> {
        if descriptor && let Ok(mut queue) = Cq::with(domain, size, sys::WAIT_FD) {
            let mut fd: RawFd = -1;
            // SAFETY: the queue is open; the call writes a descriptor, which stays the queue's.
            let result = unsafe {
                let fid = &raw mut (*queue.queue).fid;
                ((*(*fid).ops).control)(fid, sys::GETWAIT, (&raw mut fd).cast())
            };
            queue.descriptor = (result == 0 && fd >= 0).then_some(fd);
            if queue.descriptor.is_some() {
                return Ok(queue);
            }
        }
        Cq::with(domain, size, sys::WAIT_NONE)
    }

    fn with(domain: &Domain, size: usize, wait_obj: i32) -> Result<Cq, FabricError> {
        let mut attr = sys::Roomy::new(sys::CqAttr {
            size,
            flags: 0,
            format: sys::CQ_FORMAT_DATA,
            wait_obj,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: null_mut(),
        });
        let mut queue = null_mut();
        // SAFETY: the domain is open, and kept by the queue. The structure has room behind it.
        let result = unsafe {
            let open = domain.0.domain;
            ((*(*open).ops).cq_open)(open, attr.as_mut_ptr(), &mut queue, null_mut())
        };
        domain.provider().check("fi_cq_open", result)?;
        Ok(Cq { queue, descriptor: None, domain: domain.clone() })
    }

    pub fn fid(&self) -> *mut sys::Fid {
        // SAFETY: the queue is open.
        unsafe { &raw mut (*self.queue).fid }
    }

    /// Makes progress, and adds the new completions.
    pub fn read(&mut self, operations: &mut Operations, out: &mut Vec<Completion>) -> Result<(), FabricError> {
        let empty = sys::CqDataEntry { op_context: null_mut(), flags: 0, len: 0, buf: null_mut(), data: 0 };
        let mut entries = [empty; BATCH];
        for _ in 0..CALLS {
            // SAFETY: the queue is open, and of this format; there is room for as many entries.
            let result = unsafe { ((*(*self.queue).ops).read)(self.queue, entries.as_mut_ptr().cast(), entries.len()) };
            let number = match usize::try_from(result) {
                Ok(number) => number.min(BATCH),
                Err(_) if result == -(sys::EAGAIN as isize) => return Ok(()),
                Err(_) if result == -(sys::EAVAIL as isize) => {
                    out.extend(self.read_error(operations)?);
                    continue;
                }
                Err(_) => return Err(self.domain.provider().failed("fi_cq_read", -result as i32)),
            };
            for entry in &entries[..number] {
                // No other flag, and no length, is reliable in all versions.
                if entry.flags & sys::REMOTE_CQ_DATA != 0 {
                    out.push(Completion::Arrived { data: entry.data });
                } else if let Some(token) = operations.end(entry.op_context) {
                    out.push(Completion::Done { token });
                }
            }
            if number < BATCH {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads the error of a failed operation. `None` if there is none.
    fn read_error(&mut self, operations: &mut Operations) -> Result<Option<Completion>, FabricError> {
        let mut entry = sys::Roomy::new(sys::CqErrEntry {
            op_context: null_mut(),
            flags: 0,
            len: 0,
            buf: null_mut(),
            data: 0,
            tag: 0,
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: null_mut(),
            err_data_size: 0,
        });
        // SAFETY: the queue is open; the structure has room behind it, and asks for no further data.
        let result = unsafe { ((*(*self.queue).ops).readerr)(self.queue, entry.as_mut_ptr(), 0) };
        if result == -(sys::EAGAIN as isize) {
            return Ok(None);
        }
        let provider = self.domain.provider();
        if result < 0 {
            return Err(provider.failed("fi_cq_readerr", -result as i32));
        }
        let sys::CqErrEntry { op_context, err, prov_errno, err_data, .. } = entry.known;
        let mut words = [0; 256];
        // SAFETY: the queue is open. The text is in `words`, or static.
        let provider_words = unsafe {
            let strerror = (*(*self.queue).ops).strerror;
            text(strerror(self.queue, prov_errno, err_data, words.as_mut_ptr(), words.len() - 1))
        };
        let error = CompletionError {
            code: err,
            words: provider.library().words(err),
            provider_code: prov_errno,
            provider_words,
        };
        Ok(Some(Completion::Failed { token: operations.end(op_context), error }))
    }

    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the queue's own, open as long as the queue, which is borrowed.
        self.descriptor.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    pub fn may_sleep(&self) -> bool {
        let mut fids = [self.fid()];
        // SAFETY: the fabric and the queue are open.
        self.descriptor.is_some()
            && unsafe {
                let fabric = self.domain.0.fabric;
                ((*(*fabric).ops).trywait)(fabric, fids.as_mut_ptr(), 1) == 0
            }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: its endpoint is closed, or was never bound to it.
        if !unsafe { close(self.fid()) } {
            std::mem::forget(self.domain.clone());
        }
    }
}
