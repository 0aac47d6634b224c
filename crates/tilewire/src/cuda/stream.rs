//! An order of launches.

use super::device::Device;
use super::error::{Called, CudaError};
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// Launches on one stream run one after the other; on different streams they run side by side.
pub struct Stream {
    device: Arc<Device>,
    handle: sys::CUstream,
}

impl Stream {
    /// A new stream.
    pub fn new(device: &Arc<Device>) -> Result<Stream, CudaError> {
        device.bind()?;
        let handle = result::stream::create(result::stream::StreamKind::NonBlocking).called("cuStreamCreate")?;
        Ok(Stream { device: device.clone(), handle })
    }

    /// Waits until all that was put on the stream is done.
    pub fn sync(&self) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: the stream lives.
        unsafe { result::stream::synchronize(self.handle) }.called("cuStreamSynchronize")
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.handle
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created by `new`, destroyed once; the driver lets what is under way finish.
            _ = unsafe { result::stream::destroy(self.handle) };
        }
    }
}
