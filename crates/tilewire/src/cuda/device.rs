//! The driver and a GPU.

use super::error::{Called, CudaError};
use super::pinned::PinnedPool;
use super::program::Code;
use super::report::Reports;
use super::residency::Residency;
use crate::ptx::Target;
use cudarc::driver::{result, sys};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A GPU with its primary context. Everything that lives on it keeps it alive, and opening it again returns the same
/// one.
pub struct Device {
    ordinal: u32,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    name: String,
    target: Target,
    multiprocessors: u32,
    /// The stream for allocations, copies and frees. None of them waits for a launch on another stream, so that a rank
    /// can do them while a peer's kernel spins.
    chores: sys::CUstream,
    reports: Reports,
    pinned: PinnedPool,
    pub(super) residency: Mutex<Residency>,
    pub(super) calls: Calls,
    /// By their PTX, so that a kernel is assembled once. Weak, since a program keeps its device.
    programs: Mutex<HashMap<String, Weak<Code>>>,
}

// SAFETY: the driver's handles may be used from any thread; mutable state of a device is behind a lock.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Driver calls that may take long.
#[derive(Default)]
pub(super) struct Calls(Mutex<Busy>);

/// The time during which at least one thread was in such a call.
#[derive(Default)]
struct Busy {
    threads: usize,
    /// The start of the current period, if a thread is in one.
    since: Option<Instant>,
    /// The total of earlier periods.
    before: Duration,
}

impl Calls {
    /// Runs such a call.
    pub(super) fn during<R>(&self, call: impl FnOnce() -> R) -> R {
        /// Ends the period even if the call panics.
        struct Ended<'c>(&'c Calls);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                let mut busy = held(&self.0.0);
                busy.threads -= 1;
                if busy.threads == 0 {
                    let since = busy.since.take();
                    busy.before += since.map_or(Duration::ZERO, |since| since.elapsed());
                }
            }
        }
        let mut busy = held(&self.0);
        busy.threads += 1;
        busy.since.get_or_insert_with(Instant::now);
        drop(busy);
        let _ended = Ended(self);
        call()
    }

    /// The total time that threads have spent in them.
    pub(super) fn busy(&self) -> Duration {
        let busy = held(&self.0);
        busy.before + busy.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// The oldest supported driver: CUDA 12.4.
const NEEDED: i32 = 12_040;

/// The devices that are open, by number.
static OPEN: Mutex<Vec<(u32, Weak<Device>)>> = Mutex::new(Vec::new());

impl Device {
    /// Opens the driver and a GPU.
    pub fn open(ordinal: u32) -> Result<Arc<Device>, CudaError> {
        let mut open = held(&OPEN);
        open.retain(|(_, device)| device.strong_count() > 0);
        if let Some(device) = open.iter().find(|(n, _)| *n == ordinal).and_then(|(_, device)| device.upgrade()) {
            device.bind()?;
            return Ok(device);
        }
        let device = Device::open_new(ordinal)?;
        open.push((ordinal, Arc::downgrade(&device)));
        Ok(device)
    }

    /// Number of GPUs.
    pub fn count() -> Result<u32, CudaError> {
        // SAFETY: opens libraries by the names of the CUDA driver, and closes them again.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        result::init().called("cuInit")?;
        Ok(result::device::get_count().called("cuDeviceGetCount")? as u32)
    }

    /// CUDA version of the driver, as 1000 · major + 10 · minor.
    pub fn driver_version() -> Result<i32, CudaError> {
        Device::count()?;
        let mut version = 0;
        // SAFETY: writes one integer.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().called("cuDriverGetVersion")?;
        Ok(version)
    }

    fn open_new(ordinal: u32) -> Result<Arc<Device>, CudaError> {
        let (count, version) = (Device::count()?, Device::driver_version()?);
        if version < NEEDED {
            return Err(CudaError::OldDriver { version, needed: NEEDED });
        }
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let handle = result::device::get(ordinal as i32).called("cuDeviceGet")?;
        let name = result::device::get_name(handle).called("cuDeviceGetName")?;
        use sys::CUdevice_attribute as A;
        let capability = (
            attribute(handle, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(handle, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let multiprocessors = attribute(handle, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let Some(target) = Target::for_capability(capability.0, capability.1) else {
            return Err(CudaError::OldDevice { name, capability });
        };
        // SAFETY: the handle belongs to the device; `drop` releases what is retained here.
        let context = unsafe { result::primary_ctx::retain(handle) }.called("cuDevicePrimaryCtxRetain")?;
        let mut device = Device {
            ordinal,
            handle,
            context,
            name,
            target,
            multiprocessors,
            chores: std::ptr::null_mut(),
            reports: Reports::default(),
            pinned: PinnedPool::default(),
            residency: Mutex::new(Residency::new(multiprocessors)),
            calls: Calls::default(),
            programs: Mutex::new(HashMap::new()),
        };
        device.bind()?;
        device.chores = result::stream::create(result::stream::StreamKind::NonBlocking).called("cuStreamCreate")?;
        // Now, since allocating pinned memory may wait for spinning kernels.
        device.reports.grow()?;
        device.keep_freed_memory()?;
        Ok(Arc::new(device))
    }

    pub(super) fn handle(&self) -> sys::CUdevice {
        self.handle
    }

    /// Number of the device.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The driver's name of it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its identifier across processes.
    pub fn uuid(&self) -> String {
        let uuid = result::device::get_uuid(self.handle);
        uuid.map_or_else(
            |_| format!("device {}", self.ordinal),
            |uuid| uuid.bytes.iter().map(|b| format!("{:02x}", *b as u8)).collect(),
        )
    }

    /// The target of its PTX.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Number of multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Free and total memory, in bytes.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.bind()?;
        result::mem_get_info().called("cuMemGetInfo")
    }

    /// True if kernels here can load and store in memory of another device.
    pub fn reaches(&self, other: &Device) -> Result<bool, CudaError> {
        if self.ordinal == other.ordinal {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: writes one integer; both handles belong to devices.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.handle, other.handle) }
            .result()
            .called("cuDeviceCanAccessPeer")?;
        Ok(can != 0)
    }

    /// Makes its context current for this thread.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained while the device lives.
        unsafe { result::ctx::set_current(self.context) }.called("cuCtxSetCurrent")
    }

    /// True if this is its context.
    pub(super) fn is_context(&self, context: sys::CUcontext) -> bool {
        self.context == context
    }

    /// The stream of allocations and copies.
    pub(super) fn chores(&self) -> sys::CUstream {
        self.chores
    }

    /// Waits for allocations and copies.
    pub(super) fn sync_chores(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives as long as the device.
        self.calls.during(|| unsafe { result::stream::synchronize(self.chores) }).called("cuStreamSynchronize")
    }

    pub(super) fn reports(&self) -> &Reports {
        &self.reports
    }

    pub(super) fn pinned(&self) -> &PinnedPool {
        &self.pinned
    }

    pub(super) fn programs(&self) -> MutexGuard<'_, HashMap<String, Weak<Code>>> {
        held(&self.programs)
    }

    /// Keeps freed memory in the process, so that the next allocation needs nothing from the system.
    fn keep_freed_memory(&self) -> Result<(), CudaError> {
        // SAFETY: the handle belongs to the device; the attribute is a u64.
        unsafe {
            let pool = result::device::get_default_mem_pool(self.handle).called("cuDeviceGetDefaultMemPool")?;
            let mut most = u64::MAX;
            let which = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            result::mem_pool::set_attribute(pool, which, (&raw mut most).cast()).called("cuMemPoolSetAttribute")
        }
    }
}

pub(super) fn attribute(handle: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<u32, CudaError> {
    // SAFETY: the handle belongs to the device.
    unsafe { result::device::get_attribute(handle, which) }.called("cuDeviceGetAttribute").map(|n| n as u32)
}

/// Locks a mutex and ignores poisoning: its holders never leave the data inconsistent.
pub(super) fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.bind().is_ok() {
            self.reports.free();
            self.pinned.free();
            if !self.chores.is_null() {
                // SAFETY: created in `open_new`, destroyed once.
                _ = unsafe { result::stream::destroy(self.chores) };
            }
        }
        // SAFETY: retained once in `open_new`; everything that uses the context held an `Arc` of this device.
        _ = unsafe { result::primary_ctx::release(self.handle) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({} {}, {})", self.ordinal, self.name, self.target)
    }
}
