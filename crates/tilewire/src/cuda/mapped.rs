//! Explicitly mapped memory, which the driver can export to other processes and make accessible to other devices.

use super::device::{Device, attribute};
use super::error::{Called, CudaError};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::Arc;

/// An allocation with a mapping in this process.
pub(super) struct Mapped {
    device: Arc<Device>,
    handle: sys::CUmemGenericAllocationHandle,
    address: sys::CUdeviceptr,
    size: usize,
    is_mapped: bool,
    /// Devices whose kernels may use it.
    devices: Vec<u32>,
}

// SAFETY: the driver's handles may be used from any thread; it never changes after it is made.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

const EXPORT: sys::CUmemAllocationHandleType = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

impl Mapped {
    /// Memory on a device, of at least `bytes` bytes, that kernels of the device and of its peers may use.
    pub(super) fn create(device: &Arc<Device>, bytes: usize, peers: &[Arc<Device>]) -> Result<Mapped, CudaError> {
        device.bind()?;
        let properties = properties(device);
        let mut granularity = 0;
        let which = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        // SAFETY: writes one number; the properties live.
        unsafe { sys::cuMemGetAllocationGranularity(&mut granularity, &properties, which) }
            .result()
            .called("cuMemGetAllocationGranularity")?;
        let size = bytes.max(1).next_multiple_of(granularity);
        let mut handle = 0;
        // SAFETY: writes one handle; `drop` releases it.
        let mut create = |properties| unsafe { sys::cuMemCreate(&mut handle, size, properties, 0) }.result();
        if let Some(for_cards) = for_cards(device, properties) {
            // It is only a hint, so a driver that refuses it is asked without it.
            create(&for_cards).or_else(|_| create(&properties)).called("cuMemCreate")?;
        } else {
            create(&properties).called("cuMemCreate")?;
        }
        Mapped::map(device, handle, size, peers)
    }

    /// Memory of another process.
    #[cfg(target_os = "linux")]
    pub(super) fn import(
        device: &Arc<Device>,
        bytes: usize,
        descriptor: std::os::fd::BorrowedFd<'_>,
    ) -> Result<Mapped, CudaError> {
        use std::os::fd::AsRawFd;
        device.bind()?;
        let mut granularity = 0;
        let which = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        // SAFETY: writes one number; the properties live.
        unsafe { sys::cuMemGetAllocationGranularity(&mut granularity, &properties(device), which) }
            .result()
            .called("cuMemGetAllocationGranularity")?;
        let mut handle = 0;
        let descriptor = descriptor.as_raw_fd() as usize as *mut c_void;
        // SAFETY: writes one handle; a POSIX descriptor is passed as the pointer's value.
        unsafe { sys::cuMemImportFromShareableHandle(&mut handle, descriptor, EXPORT) }
            .result()
            .called("cuMemImportFromShareableHandle")?;
        Mapped::map(device, handle, bytes.max(1).next_multiple_of(granularity), &[])
    }

    fn map(
        device: &Arc<Device>,
        handle: sys::CUmemGenericAllocationHandle,
        size: usize,
        peers: &[Arc<Device>],
    ) -> Result<Mapped, CudaError> {
        let mut mapped =
            Mapped { device: device.clone(), handle, address: 0, size, is_mapped: false, devices: Vec::new() };
        // SAFETY: writes one address; `drop` frees the range.
        unsafe { sys::cuMemAddressReserve(&mut mapped.address, size, 0, 0, 0) }
            .result()
            .called("cuMemAddressReserve")?;
        // SAFETY: the range is reserved with this size and nothing is mapped there.
        unsafe { sys::cuMemMap(mapped.address, size, 0, handle, 0) }.result().called("cuMemMap")?;
        mapped.is_mapped = true;
        let mut devices: Vec<u32> = peers.iter().chain([device]).map(|device| device.ordinal()).collect();
        devices.sort_unstable();
        devices.dedup();
        let access: Vec<sys::CUmemAccessDesc> = devices.iter().copied().map(access).collect();
        // SAFETY: the range is mapped; the count is that of the descriptions.
        unsafe { sys::cuMemSetAccess(mapped.address, size, access.as_ptr(), access.len()) }
            .result()
            .called("cuMemSetAccess")?;
        mapped.devices = devices;
        Ok(mapped)
    }

    /// The devices whose kernels may use it.
    pub(super) fn devices(&self) -> &[u32] {
        &self.devices
    }

    pub(super) fn address(&self) -> sys::CUdeviceptr {
        self.address
    }

    #[cfg(target_os = "linux")]
    pub(super) fn export(&self) -> Result<std::os::fd::OwnedFd, CudaError> {
        use std::os::fd::{FromRawFd, OwnedFd};
        self.device.bind()?;
        let mut descriptor = -1i32;
        // SAFETY: for this type of handle the driver writes an int.
        unsafe { sys::cuMemExportToShareableHandle((&raw mut descriptor).cast(), self.handle, EXPORT, 0) }
            .result()
            .called("cuMemExportToShareableHandle")?;
        // SAFETY: the driver made the descriptor for this call.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.device.bind().is_err() {
            return;
        }
        // SAFETY: everything that was mapped, reserved and created is undone, once; launches keep what they use until
        // they are done.
        unsafe {
            if self.is_mapped {
                _ = sys::cuMemUnmap(self.address, self.size);
            }
            if self.address != 0 {
                _ = sys::cuMemAddressFree(self.address, self.size);
            }
            _ = sys::cuMemRelease(self.handle);
        }
    }
}

fn properties(device: &Device) -> sys::CUmemAllocationProp {
    // SAFETY: a C struct of numbers and pointers, for which zeros mean "no special properties".
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = EXPORT;
    properties.location = location(device.ordinal());
    properties
}

/// The properties of memory that network cards can be given access to; `None` if the device has none.
fn for_cards(device: &Device, mut properties: sys::CUmemAllocationProp) -> Option<sys::CUmemAllocationProp> {
    let which = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    let is_supported = attribute(device.handle(), which).is_ok_and(|can| can != 0);
    properties.allocFlags.gpuDirectRDMACapable = 1;
    is_supported.then_some(properties)
}

fn location(ordinal: u32) -> sys::CUmemLocation {
    // SAFETY: as in `properties`.
    let mut location: sys::CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = ordinal as i32;
    location
}

fn access(ordinal: u32) -> sys::CUmemAccessDesc {
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    sys::CUmemAccessDesc { location: location(ordinal), flags }
}
