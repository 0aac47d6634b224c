//! Device memory of others as tensors: slices of `cudarc`, and copies for addresses that come from elsewhere.

use super::device::Device;
use super::error::{Called, CudaError};
use super::stream::sync_launches;
use crate::tensor::{DeviceBytes, Element, Foreign, Tensor};
use cudarc::driver::{CudaSlice, DevicePtr, result};
use std::error::Error;
use std::sync::Arc;

/// Copies from and to any address of a device.
struct Copies(Arc<Device>);

impl Device {
    /// Copies for foreign memory of this device, which [`Tensor::foreign`] takes. They wait for this thread's launches
    /// there first.
    pub fn copies(self: &Arc<Self>) -> Arc<dyn DeviceBytes> {
        Arc::new(Copies(self.clone()))
    }
}

impl DeviceBytes for Copies {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        if out.is_empty() {
            return Ok(());
        }
        sync_launches(&self.0)?;
        self.0.bind()?;
        // SAFETY: the caller who made a memory of these addresses promised that they are valid (`Tensor::foreign`), and
        // `out` outlives the copy, which is waited for.
        unsafe { result::memcpy_dtoh_async(out, address, self.0.chores()) }.called("cuMemcpyDtoHAsync")?;
        Ok(self.0.sync_chores()?)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        if bytes.is_empty() {
            return Ok(());
        }
        sync_launches(&self.0)?;
        self.0.bind()?;
        // SAFETY: as in `read`.
        unsafe { result::memcpy_htod_async(address, bytes, self.0.chores()) }.called("cuMemcpyHtoDAsync")?;
        Ok(self.0.sync_chores()?)
    }
}

/// The slice's memory, in place. It waits for the work on the slice's stream first, and the slice is freed after the
/// last launch that uses it.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// use tilewire::Tensor;
/// let slice = CudaContext::new(0)?.default_stream().clone_htod(&[1.0f32, 2.0])?;
/// let x = Tensor::<f32>::try_from(slice)?;
/// assert_eq!(x.to_vec(), [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<T: Element> TryFrom<CudaSlice<T>> for Tensor<T> {
    type Error = CudaError;

    fn try_from(slice: CudaSlice<T>) -> Result<Self, CudaError> {
        let device = Device::open(slice.ordinal() as u32)?;
        slice.stream().synchronize().called("cuStreamSynchronize")?;
        let (address, len) = (slice.device_ptr(slice.stream()).0, slice.len());
        let at = Foreign::Device { address, device: device.ordinal(), copies: device.copies() };
        // SAFETY: the slice keeps its elements, which are on this device, in its primary context. It was moved here, so
        // nobody else uses them, and the work that does has been waited for.
        let tensor = unsafe { Tensor::foreign(at, &[len], &[1], Arc::new(slice)) };
        tensor.map_err(|error| CudaError::Argument { param: "a slice".to_string(), what: error.to_string() })
    }
}
