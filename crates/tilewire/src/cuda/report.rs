//! The reports of launches that gave up: host memory that kernels can write, so that the host sees it without a call.

use super::Device;
use super::device::held;
use super::error::{Called, CudaError};
use crate::ptx::abi;
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes from one report to the next.
const STRIDE: usize = 128;
/// Reports in one allocation.
const COUNT: usize = 512;

/// Pinned memory for reports. It is allocated ahead, since allocating it may wait for running kernels.
#[derive(Default)]
pub(super) struct Reports(Mutex<Pinned>);

#[derive(Default)]
struct Pinned {
    all: Vec<*mut c_void>,
    free: Vec<*mut u64>,
}

// SAFETY: the pointers are to pinned memory, which any thread may use; each has one owner.
unsafe impl Send for Pinned {}

impl Reports {
    /// Allocates more of them. A context must be current.
    pub(super) fn grow(&self) -> Result<(), CudaError> {
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a context is current; `free` frees it.
        let start = unsafe { result::malloc_host(STRIDE * COUNT, flags) }.called("cuMemHostAlloc")?;
        // SAFETY: this many bytes have just been allocated.
        unsafe { start.cast::<u8>().write_bytes(0, STRIDE * COUNT) };
        let mut pinned = held(&self.0);
        pinned.all.push(start);
        pinned.free.extend((0..COUNT).map(|k| start.cast::<u8>().wrapping_add(k * STRIDE).cast::<u64>()));
        Ok(())
    }

    /// Frees the memory. A context must be current, and no report may be left.
    pub(super) fn free(&self) {
        for start in held(&self.0).all.drain(..) {
            // SAFETY: allocated by `grow`, freed once.
            _ = unsafe { result::free_host(start) };
        }
    }
}

/// The report of one launch; see [`abi`].
pub(super) struct Report {
    device: Arc<Device>,
    words: *mut u64,
}

// SAFETY: the words are atomics in pinned memory, which any thread may use as long as the device lives.
unsafe impl Send for Report {}
// SAFETY: as above.
unsafe impl Sync for Report {}

impl Report {
    pub(super) fn new(device: &Arc<Device>) -> Result<Report, CudaError> {
        loop {
            if let Some(words) = held(&device.reports().0).free.pop() {
                return Ok(Report { device: device.clone(), words });
            }
            device.bind()?;
            device.reports().grow()?;
        }
    }

    /// The address, which is the same for kernels and the host.
    pub(super) fn address(&self) -> u64 {
        self.words as u64
    }

    /// Its content; `None` while it is empty.
    #[inline]
    pub(super) fn get(&self) -> Option<[u64; abi::REPORT_WORDS]> {
        // Acquire: the kernel writes the state last.
        let state = self.word(0).load(Ordering::Acquire);
        // 1: being written. A thread that waits for the launch sees the complete report.
        (state > 1).then(|| std::array::from_fn(|k| self.word(k).load(Ordering::Relaxed)))
    }

    /// The mark of a stalled wait; see [`abi::stall`].
    pub(super) fn stall(&self) -> u64 {
        // Acquire: the state of the report is read after it.
        self.word(abi::STALL).load(Ordering::Acquire)
    }

    /// Number of stalled waits that have continued.
    pub(super) fn lifts(&self) -> u64 {
        self.word(abi::LIFTS).load(Ordering::Relaxed)
    }

    fn word(&self, k: usize) -> &AtomicU64 {
        assert!(k <= abi::LIFTS);
        // SAFETY: the report has this many words, aligned, alive as long as the device; all references to them are to
        // atomics.
        unsafe { AtomicU64::from_ptr(self.words.add(k)) }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        (0..=abi::LIFTS).for_each(|k| self.word(k).store(0, Ordering::Relaxed));
        held(&self.device.reports().0).free.push(self.words);
    }
}

const _: () = assert!((abi::LIFTS + 1) * 8 <= STRIDE);
