//! Device memory.

use super::adopted::{DeviceRows, read_rows, write_rows};
use super::device::Device;
use super::error::{Called, CudaError};
use super::mapped::Mapped;
use super::stream::sync_launches;
use crate::tensor::{DeviceBytes, Element, Memory, Tensor};
use cudarc::driver::{result, sys};
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Bytes on a device, freed with the last handle. Aligned to 256 bytes.
///
/// Launches keep the memory they use until they are done, so freeing waits for none of them.
pub struct Buffer {
    device: Arc<Device>,
    address: sys::CUdeviceptr,
    bytes: usize,
    /// The mapping, if it is not from the device's pool.
    mapped: Option<Mapped>,
}

impl Device {
    /// A tensor of zeros on this device.
    ///
    /// ```no_run
    /// use tilewire::cuda::Device;
    /// let x = Device::open(0)?.zeros::<f32>(1000)?;
    /// x.fill(1.0); // a copy to the device
    /// assert_eq!(x.get(999), 1.0); // and one back
    /// # Ok::<(), tilewire::cuda::CudaError>(())
    /// ```
    pub fn zeros<T: Element>(self: &Arc<Self>, len: usize) -> Result<Tensor<T>, CudaError> {
        let bytes = len.checked_mul(size_of::<T>()).expect("tensor fits the address space");
        Ok(Tensor::over(Arc::new(Buffer::zeroed(self, bytes)?).memory(), len))
    }

    /// A copy of a slice on this device.
    pub fn tensor<T: Element>(self: &Arc<Self>, data: &[T]) -> Result<Tensor<T>, CudaError> {
        let bytes: Vec<u8> =
            data.iter().flat_map(|x| x.to_bits().to_le_bytes().into_iter().take(size_of::<T>())).collect();
        Ok(Tensor::over(Arc::new(Buffer::from_bytes(self, &bytes)?).memory(), data.len()))
    }
}

impl Buffer {
    /// Fresh zeroed memory.
    pub fn zeroed(device: &Arc<Device>, bytes: usize) -> Result<Buffer, CudaError> {
        device.bind()?;
        // SAFETY: a context is current; `drop` frees what is allocated here.
        let address = unsafe { result::malloc_async(device.chores(), bytes.max(1)) }.called("cuMemAllocAsync")?;
        Buffer { device: device.clone(), address, bytes, mapped: None }.cleared()
    }

    /// Fresh zeroed memory that kernels of other devices, and other processes, can be given access to.
    pub fn shareable(device: &Arc<Device>, bytes: usize, peers: &[Arc<Device>]) -> Result<Buffer, CudaError> {
        let mapped = Mapped::create(device, bytes, peers)?;
        Buffer { device: device.clone(), address: mapped.address(), bytes, mapped: Some(mapped) }.cleared()
    }

    /// Memory that another process made by [`Buffer::shareable`] and exported.
    #[cfg(target_os = "linux")]
    pub fn import(
        device: &Arc<Device>,
        bytes: usize,
        handle: std::os::fd::BorrowedFd<'_>,
    ) -> Result<Buffer, CudaError> {
        let mapped = Mapped::import(device, bytes, handle)?;
        Ok(Buffer { device: device.clone(), address: mapped.address(), bytes, mapped: Some(mapped) })
    }

    /// A descriptor by which another process can map memory made by [`Buffer::shareable`]; `None` for other memory.
    #[cfg(target_os = "linux")]
    pub fn export(&self) -> Option<Result<std::os::fd::OwnedFd, CudaError>> {
        self.mapped.as_ref().map(Mapped::export)
    }

    fn cleared(self) -> Result<Buffer, CudaError> {
        // SAFETY: the memory has at least this size, and no other code knows of it yet.
        unsafe { result::memset_d8_async(self.address, 0, self.bytes.max(1), self.device.chores()) }
            .called("cuMemsetD8Async")?;
        self.device.sync_chores()?;
        Ok(self)
    }

    /// Memory with these bytes.
    pub fn from_bytes(device: &Arc<Device>, bytes: &[u8]) -> Result<Buffer, CudaError> {
        let buffer = Buffer::zeroed(device, bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// The device it is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of it, for arguments of kernels and tensors.
    pub fn memory(self: &Arc<Self>) -> Memory {
        let devices =
            self.mapped.as_ref().map_or_else(|| vec![self.device.ordinal()], |mapped| mapped.devices().to_vec());
        // SAFETY: the bytes are this buffer's, which the handle keeps; these are the devices that it is mapped for.
        unsafe { Memory::on_device(self.address, self.bytes, devices, Arc::new(Handle(self.clone()))) }
    }

    /// Overwrites bytes from `offset`; waits for the copy, not for launches.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes), "write beyond the buffer");
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the range lies inside this allocation, and `bytes` outlives the copy, which is waited for.
        unsafe { result::memcpy_htod_async(self.address + offset as u64, bytes, self.device.chores()) }
            .called("cuMemcpyHtoDAsync")?;
        self.device.sync_chores()
    }

    /// A copy of all bytes; waits for it, not for launches.
    pub fn read(&self) -> Result<Vec<u8>, CudaError> {
        let mut out = vec![0; self.bytes];
        self.read_into(0, &mut out)?;
        Ok(out)
    }

    fn read_into(&self, offset: usize, out: &mut [u8]) -> Result<(), CudaError> {
        assert!(offset.checked_add(out.len()).is_some_and(|end| end <= self.bytes), "read beyond the buffer");
        if out.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the range lies inside this allocation, and `out` outlives the copy, which is waited for.
        unsafe { result::memcpy_dtoh_async(out, self.address + offset as u64, self.device.chores()) }
            .called("cuMemcpyDtoHAsync")?;
        self.device.sync_chores()
    }
}

/// A buffer as memory of tensors: host access waits for this thread's launches.
struct Handle(Arc<Buffer>);

impl Handle {
    fn offset(&self, address: u64) -> usize {
        (address - self.0.address) as usize
    }

    /// # Panics
    /// If rows of `bytes` bytes together do not lie inside the buffer.
    fn assert_inside(&self, (address, width, stride): DeviceRows, bytes: usize) {
        assert!(width > 0 && bytes.is_multiple_of(width), "{bytes} bytes are no rows of {width}");
        let last = (bytes / width).saturating_sub(1).checked_mul(stride);
        let end = last.and_then(|last| self.offset(address).checked_add(last)?.checked_add(width));
        assert!(end.is_some_and(|end| end <= self.0.bytes), "rows beyond the buffer");
    }
}

impl DeviceBytes for Handle {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        sync_launches(&self.0.device)?;
        Ok(self.0.read_into(self.offset(address), out)?)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        sync_launches(&self.0.device)?;
        Ok(self.0.write(self.offset(address), bytes)?)
    }

    fn read_rows(
        &self,
        address: u64,
        width: usize,
        stride: usize,
        out: &mut [u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.assert_inside((address, width, stride), out.len());
        sync_launches(&self.0.device)?;
        // SAFETY: the rows lie inside this allocation.
        Ok(unsafe { read_rows(&self.0.device, (address, width, stride), out) }?)
    }

    fn write_rows(
        &self,
        address: u64,
        width: usize,
        stride: usize,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.assert_inside((address, width, stride), bytes.len());
        sync_launches(&self.0.device)?;
        // SAFETY: the rows lie inside this allocation.
        Ok(unsafe { write_rows(&self.0.device, (address, width, stride), bytes) }?)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.mapped.is_none() && self.device.bind().is_ok() {
            // SAFETY: allocated by `zeroed`, freed once; launches keep what they use until they are done.
            _ = unsafe { result::free_async(self.address, self.device.chores()) };
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:#x}, {} bytes)", self.address, self.bytes)
    }
}
