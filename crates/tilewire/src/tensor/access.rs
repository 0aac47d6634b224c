//! Host access to the bytes of a memory: which threads may do it, how it works, and why it can fail.
//!
//! Handles travel between threads, but not all bytes do. One rule keeps the plain loads and stores of host code free of
//! data races:
//!
//! ```text
//!  bytes                                host code                          kernels of the CPU engine
//!  a thread's own (zeroed, foreign)     plain accesses on the home thread  run in calls made on the home thread
//!  shared (with ranks or a device)      atomic accesses on any thread      run in calls made on any thread
//!  on a device, out of the host's reach copies by the driver               none
//! ```
//! A thread's own bytes become shared when they are registered as a window, for all handles to them.
//!
//! There is one exception. In a launch in one hop, kernels of other ranks' threads use a thread's own memory as well
//! ([`Memory::for_other_threads`]). They do so only while the home thread is inside of a launch of its own, which
//! signals order. If such a launch fails, it waits until no peer can touch the memory any more. Among processes a peer
//! may be stopped, so there it may give up. The memory is then [exposed](Memory::expose), and counts as shared.
//!
//! The home thread is the one that made the memory. A `Tensor` never leaves its thread, so its accesses happen there.
//! [`bytes_of`] and the CPU engine take handles, which may come from other threads, so they compare threads.

use super::memory::{Access, DeviceBytes, Memory};
use super::reach::ReachableFrom;
use std::cell::Cell;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A thread's number, unique in the process forever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HomeThread(u64);

thread_local! {
    /// The number of this thread. 0 if it has none yet, so it is home to nothing.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

impl HomeThread {
    /// The calling thread.
    pub(crate) fn here() -> HomeThread {
        static LAST: AtomicU64 = AtomicU64::new(0);
        if NUMBER.get() == 0 {
            NUMBER.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        HomeThread(NUMBER.get())
    }

    /// True if it is the calling thread. Small launches check this too, so it is a single comparison.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        NUMBER.get() == self.0
    }
}

/// Why host code could not access elements or bytes.
#[derive(Clone)]
#[non_exhaustive]
pub enum AccessError {
    /// A copy from or to a device failed.
    #[non_exhaustive]
    Copy {
        /// True for a copy to the device.
        to_device: bool,
        /// The size of the copy.
        bytes: usize,
        /// Where the memory can be reached from.
        memory: ReachableFrom,
        /// The error from the device's driver.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The memory is another thread's own; that thread's tensors may be reading or writing it now.
    #[non_exhaustive]
    OtherThread {
        /// The size of the memory.
        bytes: usize,
    },
    /// The memory was lent for the time of a closure, which has ended.
    #[non_exhaustive]
    Returned {
        /// The size of the memory.
        bytes: usize,
    },
    /// The tensor has one row in memory for all its rows, so it can only be read.
    #[non_exhaustive]
    Expanded {
        /// Rows of the tensor.
        rows: usize,
    },
}

errors! {
    enum AccessError {
        Copy { to_device, bytes, memory, source } => { |f|
            let direction = if *to_device { "to" } else { "from" };
            write!(
                f,
                "a copy of {bytes} bytes {direction} {memory} failed: {source}; look for the first error of a launch there, and start \
                 the process again"
            )
        },
        OtherThread { bytes } =>
            "memory of {bytes} bytes is another thread's own: read it on the thread that made it, or use a window, \
             which threads share",
        Returned { bytes } =>
            "memory of {bytes} bytes was lent for the time of a closure, and its owner has it back: use it inside the \
             closure of Tensor::lend",
        Expanded { rows } =>
            "an expanded tensor, whose {rows} rows are one row of memory, cannot be written: write the row that it \
             repeats, or a copy made by contiguous()",
    }
    source { Copy { source, .. } => Some(&**source) }
}

/// Copies a memory's bytes, row by row if it has gaps. A byte of shared memory that is being written is either the old
/// or the new one. A copy from a device comes after everything this thread has launched there.
///
/// ```
/// use tilewire::{Tensor, tensor::bytes_of};
/// let x = Tensor::from_slice(&[1u16, 0x203]);
/// assert_eq!(bytes_of(x.memory())?, [1, 0, 3, 2]);
/// let memory = x.memory().clone();
/// let elsewhere = std::thread::spawn(move || bytes_of(&memory)).join().unwrap();
/// assert!(elsewhere.unwrap_err().to_string().contains("another thread's own"));
/// # Ok::<(), tilewire::tensor::AccessError>(())
/// ```
pub fn bytes_of(memory: &Memory) -> Result<Vec<u8>, AccessError> {
    here(memory)?;
    let mut out = vec![0; memory.covered()];
    copy_bytes(memory, &mut out)?;
    Ok(out)
}

/// As [`bytes_of`], into bytes that are there already.
///
/// # Panics
/// If these are not as many as the memory covers.
pub(crate) fn copy_bytes(memory: &Memory, out: &mut [u8]) -> Result<(), AccessError> {
    here(memory)?;
    assert_eq!(out.len(), memory.covered(), "a copy of {memory:?}");
    if let (Access::Device(device), false) = (memory.access(), memory.is_contiguous()) {
        let rows = memory.rows();
        let copied = device.read_rows(memory.start().addr().get() as u64, rows.width, rows.stride, out);
        return copied.map_err(|source| failed(memory, false, source));
    }
    if !memory.is_contiguous() {
        let rows = out.chunks_mut(memory.rows().width.max(1));
        return memory.runs().zip(rows).try_for_each(|((_, row), out)| copy_bytes(&row, out));
    }
    let (start, bytes) = (memory.start(), memory.bytes());
    match memory.access() {
        Access::Device(device) => {
            let copied = device.read(start.addr().get() as u64, out);
            copied.map_err(|source| failed(memory, false, source))
        }
        Access::Shared => {
            // SAFETY: the bytes are valid for reads and initialised while the handle lives (`shared`), and no reference
            // to them exists, so writes by others meet only atomic loads here.
            let byte = |at| unsafe { AtomicU8::from_ptr(start.as_ptr().add(at)) }.load(Ordering::Relaxed);
            (0..bytes).zip(out).for_each(|(at, out)| *out = byte(at));
            Ok(())
        }
        Access::Own(home) if !home.is_here() => Err(AccessError::OtherThread { bytes }),
        Access::Own(_) => {
            // SAFETY: the bytes are valid for reads and initialised (zeroed at first, or promised by `foreign`), and
            // the handle keeps them alive. Nobody writes during the copy: only the home thread has tensors of the
            // memory and makes calls that run kernels on it, and that thread is busy here; peers use it only while that
            // thread is in a launch. `out` is as long, and borrowed exclusively; foreign memory may overlap it all the
            // same.
            unsafe { std::ptr::copy(start.as_ptr(), out.as_mut_ptr(), bytes) };
            Ok(())
        }
    }
}

/// Overwrites the bytes of a memory, row by row if it has gaps. For bytes that [`bytes_of`] returned for memory of the
/// same element type, so that they are valid elements.
pub(crate) fn overwrite(memory: &Memory, bytes: &[u8]) -> Result<(), AccessError> {
    here(memory)?;
    assert_eq!(bytes.len(), memory.covered(), "a copy to {memory:?}");
    if let Access::Device(device) = memory.access() {
        return write_to_device(memory, &**device, bytes);
    }
    let width = memory.rows().width.max(1);
    for ((_, row), bytes) in memory.runs().zip(bytes.chunks(width)) {
        let start = row.start().as_ptr();
        match memory.access() {
            Access::Own(home) if !home.is_here() => return Err(AccessError::OtherThread { bytes: bytes.len() }),
            // SAFETY: `chunks` and `runs` give pieces of one length, valid for writes while the handle lives. Nobody
            // else touches the bytes: only the home thread has tensors of the memory and runs kernels on it, and that
            // thread is busy here. `bytes` are a vector's, and so do not overlap.
            Access::Own(_) => unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) },
            _ => bytes.iter().enumerate().for_each(|(at, &byte)| {
                // SAFETY: inside, as above, in memory that others may write: they meet only atomic stores here.
                unsafe { AtomicU8::from_ptr(start.add(at)) }.store(byte, Ordering::Relaxed);
            }),
        }
    }
    Ok(())
}

/// Refuses memory that its owner has taken back.
#[inline]
pub(super) fn here(memory: &Memory) -> Result<(), AccessError> {
    if memory.is_returned() { Err(AccessError::Returned { bytes: memory.covered() }) } else { Ok(()) }
}

/// Overwrites the bytes of a memory that a device copies. For tensors, which know which bytes are valid elements.
pub(super) fn write_to_device(memory: &Memory, device: &dyn DeviceBytes, bytes: &[u8]) -> Result<(), AccessError> {
    assert_eq!(bytes.len(), memory.covered(), "a copy to {memory:?}");
    if bytes.is_empty() {
        return Ok(());
    }
    let (address, rows) = (memory.start().addr().get() as u64, memory.rows());
    let copied = match rows.is_one() {
        true => device.write(address, bytes),
        false => device.write_rows(address, rows.width, rows.stride, bytes),
    };
    copied.map_err(|source| failed(memory, true, source))
}

#[cold]
fn failed(memory: &Memory, to_device: bool, source: Box<dyn Error + Send + Sync>) -> AccessError {
    let (bytes, memory) = (memory.covered(), memory.reachable_from().clone());
    AccessError::Copy { to_device, bytes, memory, source: source.into() }
}
