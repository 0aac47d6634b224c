//! Device memory of others as tensors: slices of `cudarc`, and copies for addresses that come from elsewhere.

use super::device::Device;
use super::error::{Called, CudaError};
use super::stream::sync_launches;
use crate::tensor::{DeviceBytes, Element, Foreign, Tensor};
use cudarc::driver::{CudaSlice, DevicePtr, result, sys};
use std::error::Error;
use std::ptr::{null, null_mut};
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

    fn read_rows(
        &self,
        address: u64,
        width: usize,
        stride: usize,
        out: &mut [u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        sync_launches(&self.0)?;
        // SAFETY: the caller who made a memory of these rows promised that they are valid (`Tensor::foreign`).
        Ok(unsafe { read_rows(&self.0, (address, width, stride), out) }?)
    }

    fn write_rows(
        &self,
        address: u64,
        width: usize,
        stride: usize,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        sync_launches(&self.0)?;
        // SAFETY: as in `read_rows`.
        Ok(unsafe { write_rows(&self.0, (address, width, stride), bytes) }?)
    }
}

/// Rows of a device: the address of the first one, their width, and the distance between two, in bytes.
pub(super) type DeviceRows = (u64, usize, usize);

/// Copies rows from a device, as many as `out` has room for, and waits for the copy.
///
/// # Safety
/// Their bytes must be valid for reads by the device.
pub(super) unsafe fn read_rows(
    device: &Arc<Device>,
    (address, width, stride): DeviceRows,
    out: &mut [u8],
) -> Result<(), CudaError> {
    let together = rows_of_one_copy(width, stride, out.len());
    for (first, out) in (0u64..).step_by(together).zip(out.chunks_mut(together * width)) {
        let copy = sys::CUDA_MEMCPY2D {
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcDevice: address + first * stride as u64,
            srcPitch: if together > 1 { stride } else { width },
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: out.as_mut_ptr().cast(),
            dstPitch: width,
            ..between(width, out.len())
        };
        // SAFETY: the caller's promise for the rows; `out` has room for `Height` rows of `width` bytes and outlives the
        // copy, which is waited for.
        unsafe { copy_rows(device, &copy) }?;
    }
    Ok(())
}

/// Copies rows to a device, as many as there are in `bytes`, and waits for the copy.
///
/// # Safety
/// Their bytes must be valid for writes by the device.
pub(super) unsafe fn write_rows(
    device: &Arc<Device>,
    (address, width, stride): DeviceRows,
    bytes: &[u8],
) -> Result<(), CudaError> {
    let together = rows_of_one_copy(width, stride, bytes.len());
    for (first, bytes) in (0u64..).step_by(together).zip(bytes.chunks(together * width)) {
        let copy = sys::CUDA_MEMCPY2D {
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: bytes.as_ptr().cast(),
            srcPitch: width,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstDevice: address + first * stride as u64,
            dstPitch: if together > 1 { stride } else { width },
            ..between(width, bytes.len())
        };
        // SAFETY: as in `read_rows`, the other way round.
        unsafe { copy_rows(device, &copy) }?;
    }
    Ok(())
}

/// As many rows of `width` bytes as `bytes` bytes are, or one where the driver takes no such stride.
fn rows_of_one_copy(width: usize, stride: usize, bytes: usize) -> usize {
    if i32::try_from(stride).is_ok() { (bytes / width).max(1) } else { 1 }
}

/// A copy of `bytes` bytes in rows of `width`, from nowhere to nowhere.
fn between(width: usize, bytes: usize) -> sys::CUDA_MEMCPY2D {
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: null(),
        srcDevice: 0,
        srcArray: null_mut(),
        srcPitch: width,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: null_mut(),
        dstDevice: 0,
        dstArray: null_mut(),
        dstPitch: width,
        WidthInBytes: width,
        Height: bytes / width,
    }
}

/// # Safety
/// The rows on both sides must be valid until it returns.
unsafe fn copy_rows(device: &Arc<Device>, copy: &sys::CUDA_MEMCPY2D) -> Result<(), CudaError> {
    device.bind()?;
    // SAFETY: the caller's promise; the copy is waited for.
    unsafe { sys::cuMemcpy2DAsync_v2(copy, device.chores()) }.result().called("cuMemcpy2DAsync")?;
    device.sync_chores()
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
