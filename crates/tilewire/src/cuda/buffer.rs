//! Device memory.

use super::device::Device;
use super::error::{Called, CudaError};
use cudarc::driver::{result, sys};
use std::fmt;
use std::sync::Arc;

/// Bytes on a device, freed with the last handle. Aligned to 256 bytes.
pub struct Buffer {
    device: Arc<Device>,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl Buffer {
    /// Fresh zeroed memory.
    pub fn zeroed(device: &Arc<Device>, bytes: usize) -> Result<Buffer, CudaError> {
        device.bind()?;
        let size = bytes.max(1);
        // SAFETY: a context is current; `drop` frees what is allocated here.
        let address = unsafe { result::malloc_sync(size) }.called("cuMemAlloc")?;
        let buffer = Buffer { device: device.clone(), address, bytes };
        // SAFETY: the memory has just been allocated with this size.
        unsafe { result::memset_d8_sync(address, 0, size) }.called("cuMemsetD8")?;
        settle()?;
        Ok(buffer)
    }

    /// Memory with these bytes.
    pub fn from_bytes(device: &Arc<Device>, bytes: &[u8]) -> Result<Buffer, CudaError> {
        let buffer = Buffer::zeroed(device, bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Overwrites bytes from `offset`; waits for the copy.
    ///
    /// # Panics
    /// When they do not lie inside.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes), "write beyond the buffer");
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the range lies inside of this allocation.
        unsafe { result::memcpy_htod_sync(self.address + offset as u64, bytes) }.called("cuMemcpyHtoD")?;
        settle()
    }

    /// A copy of all bytes; waits for it.
    pub fn read(&self) -> Result<Vec<u8>, CudaError> {
        let mut out = vec![0; self.bytes];
        if !out.is_empty() {
            self.device.bind()?;
            // SAFETY: the allocation has as many bytes.
            unsafe { result::memcpy_dtoh_sync(&mut out, self.address) }.called("cuMemcpyDtoH")?;
        }
        Ok(out)
    }
}

/// Waits until what was written to device memory is there. A copy from the host returns when its bytes are on their way, and streams of
/// launches do not wait for it. It does not wait for launches that run.
fn settle() -> Result<(), CudaError> {
    // SAFETY: the null stream is the default one of the context, which the caller made current.
    unsafe { result::stream::synchronize(std::ptr::null_mut()) }.called("cuStreamSynchronize")
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `zeroed`, freed once. The driver waits for launches that may use it.
            _ = unsafe { result::free_sync(self.address) };
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:#x}, {} bytes)", self.address, self.bytes)
    }
}
