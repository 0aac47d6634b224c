//! Host memory that kernels reach: pinned, mapped, at one address on both sides.
//!
//! Freeing pinned memory waits for every kernel of the context that runs, also for one that spins until the freeing
//! rank does something (docs/decisions/0013). So a device keeps what is let go, gives it out again, and frees it when
//! it is closed.

use super::device::{Device, held};
use super::error::{Called, CudaError};
use crate::tensor::{Memory, ReachableFrom};
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// The pinned memory of a device that nobody uses.
#[derive(Default)]
pub(super) struct PinnedPool(Mutex<Vec<Block>>);

struct Block {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the pointer is to pinned memory, which any thread may use; a block has one owner.
unsafe impl Send for Block {}
// SAFETY: a shared block never changes.
unsafe impl Sync for Block {}

/// Blocks begin on pages, and are multiples of one.
const PAGE: usize = 4096;

impl PinnedPool {
    /// The smallest block that is large enough and not wasteful.
    fn take(&self, bytes: usize) -> Option<Block> {
        let mut free = held(&self.0);
        let fits = |block: &Block| block.bytes >= bytes && block.bytes / 4 <= bytes;
        let (number, _) = free.iter().enumerate().filter(|(_, block)| fits(block)).min_by_key(|(_, it)| it.bytes)?;
        Some(free.swap_remove(number))
    }

    /// Frees everything. A context must be current.
    pub(super) fn free(&self) {
        for block in held(&self.0).drain(..) {
            // SAFETY: allocated by `host_memory`, freed once: its user has given it back.
            _ = unsafe { result::free_host(block.start.as_ptr()) };
        }
    }
}

/// Memory in use, given back to its device when the last handle goes.
struct Used {
    device: Arc<Device>,
    block: Option<Block>,
}

impl Drop for Used {
    fn drop(&mut self) {
        held(&self.device.pinned().0).extend(self.block.take());
    }
}

impl Device {
    /// Zeroed memory of the host that kernels of this device reach as well, by the same address. Host code may only use
    /// atomics on it, since kernels may write it at any time. The processor's accesses are as fast as to other memory;
    /// those of kernels cross the bus.
    ///
    /// ```no_run
    /// use tilewire::cuda::Device;
    /// let memory = Device::open(0)?.host_memory(1 << 20)?;
    /// assert!(memory.reachable_from().host && memory.reachable_from().is_device(0));
    /// # Ok::<(), tilewire::cuda::CudaError>(())
    /// ```
    pub fn host_memory(self: &Arc<Self>, bytes: usize) -> Result<Memory, CudaError> {
        let rounded = bytes.max(1).next_multiple_of(PAGE);
        let block = match self.pinned().take(rounded) {
            Some(block) => block,
            None => self.new_block(rounded)?,
        };
        let start = block.start.cast::<u8>();
        // SAFETY: the block has this many bytes, and nobody else knows of it.
        unsafe { start.write_bytes(0, bytes) };
        let keep = Arc::new(Used { device: self.clone(), block: Some(block) });
        let reach = ReachableFrom { host: true, devices: vec![self.ordinal()] };
        // SAFETY: the driver gives pinned memory one address on both sides (`new_block` has asked). The bytes are
        // zeroed, nobody holds a reference to them, and they stay allocated until `keep` gives them back.
        Ok(unsafe { Memory::shared(start, bytes, reach, keep) })
    }

    fn new_block(&self, bytes: usize) -> Result<Block, CudaError> {
        self.bind()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a context is current; `PinnedPool::free` frees it.
        let start = self.calls.during(|| unsafe { result::malloc_host(bytes, flags) }).called("cuMemHostAlloc")?;
        let mut address: sys::CUdeviceptr = 0;
        // SAFETY: writes one address; the memory was allocated with a mapping.
        let mapped = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, start, 0) }.result();
        mapped.called("cuMemHostGetDevicePointer")?;
        let start = NonNull::new(start).filter(|start| address == start.addr().get() as u64);
        let elsewhere = || CudaError::Driver {
            call: "cuMemHostAlloc",
            error: format!("GPU {} reaches the memory at another address than the host", self.ordinal()),
        };
        Ok(Block { start: start.ok_or_else(elsewhere)?, bytes })
    }
}
