//! Kernels not written by tilewire, for benchmarks to compare with.

use super::device::Device;
use super::error::{Called, CudaError};
use super::program::{assemble, loaded};
use super::stream::Stream;
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// A module of hand-written PTX.
pub struct Foreign {
    device: Arc<Device>,
    module: sys::CUmodule,
}

/// The size of a launch: blocks, threads per block and bytes of dynamic shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of a block's dynamic shared memory.
    pub shared_bytes: u32,
}

// SAFETY: the driver's handles may be used from any thread; nothing in a module changes after it is loaded.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// Assembles and loads PTX.
    pub fn load(device: &Arc<Device>, text: &str) -> Result<Arc<Foreign>, CudaError> {
        device.bind()?;
        let module = assemble("hand-written", text)?;
        Ok(Arc::new(Foreign { device: device.clone(), module }))
    }

    /// One of its entries, loaded.
    pub fn entry(self: &Arc<Self>, name: &str) -> Result<ForeignEntry, CudaError> {
        self.device.bind()?;
        Ok(ForeignEntry { function: loaded(self.module, name)?, module: self.clone() })
    }
}

/// An entry of a [`Foreign`] module.
pub struct ForeignEntry {
    module: Arc<Foreign>,
    function: sys::CUfunction,
}

impl ForeignEntry {
    /// Puts a launch on a stream; returns immediately.
    ///
    /// # Safety
    /// The entry takes exactly these arguments, all of 8 bytes, and uses the addresses among them correctly: they stay
    /// valid until the launch, and every replay of a graph that records it, is done.
    pub unsafe fn launch(&self, stream: &Arc<Stream>, grid: Grid, arguments: &[u64]) -> Result<(), CudaError> {
        self.module.device.bind()?;
        stream.busy();
        let mut words = arguments.to_vec();
        let mut params: Vec<*mut c_void> = words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        let Grid { blocks, threads, shared_bytes } = grid;
        // SAFETY: the caller promises that the arguments fit; the driver copies them during the call.
        unsafe {
            result::launch_kernel(
                self.function,
                (blocks, 1, 1),
                (threads, 1, 1),
                shared_bytes,
                stream.ordered(),
                &mut params,
            )
        }
        .called("cuLaunchKernel")
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: loaded by `load`, unloaded once.
            _ = unsafe { result::module::unload(self.module) };
        }
    }
}
