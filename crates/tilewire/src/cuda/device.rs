//! The driver and a GPU.

use super::error::{Called, CudaError};
use crate::ptx::Target;
use cudarc::driver::{result, sys};
use std::fmt;
use std::sync::Arc;

/// A GPU, with its primary context. All that lives on it keeps it.
pub struct Device {
    ordinal: u32,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    name: String,
    target: Target,
    multiprocessors: u32,
}

// SAFETY: the driver's handles may be used from any thread; nothing in a device changes.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The oldest driver whose functions tilewire calls: CUDA 12.4.
const NEEDED: i32 = 12_040;

impl Device {
    /// Opens the driver and a GPU.
    pub fn open(ordinal: u32) -> Result<Arc<Device>, CudaError> {
        // SAFETY: opens libraries by the names of the CUDA driver, and closes them again.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        result::init().called("cuInit")?;
        let mut version = 0;
        // SAFETY: writes one integer.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().called("cuDriverGetVersion")?;
        if version < NEEDED {
            return Err(CudaError::OldDriver { version, needed: NEEDED });
        }
        let count = result::device::get_count().called("cuDeviceGetCount")? as u32;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let handle = result::device::get(ordinal as i32).called("cuDeviceGet")?;
        let name = result::device::get_name(handle).called("cuDeviceGetName")?;
        let attribute = |which| {
            // SAFETY: the handle is the device's.
            unsafe { result::device::get_attribute(handle, which) }.called("cuDeviceGetAttribute").map(|n| n as u32)
        };
        use sys::CUdevice_attribute as A;
        let capability = (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let multiprocessors = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let Some(target) = Target::for_capability(capability.0, capability.1) else {
            return Err(CudaError::OldDevice { name, capability });
        };
        // SAFETY: the handle is the device's; `drop` releases what is retained here.
        let context = unsafe { result::primary_ctx::retain(handle) }.called("cuDevicePrimaryCtxRetain")?;
        let device = Device { ordinal, handle, context, name, target, multiprocessors };
        device.bind()?;
        Ok(Arc::new(device))
    }

    /// What the driver calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What PTX is written for it.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Multiprocessors it has.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Makes its context the one that calls of this thread go to.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained while the device lives.
        unsafe { result::ctx::set_current(self.context) }.called("cuCtxSetCurrent")
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`; everything that uses the context held an `Arc` of this device.
        _ = unsafe { result::primary_ctx::release(self.handle) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({} {}, {})", self.ordinal, self.name, self.target)
    }
}
