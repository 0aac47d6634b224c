//! A kernel on a device: its PTX written, assembled and loaded.

use super::device::Device;
use super::error::{Called, CudaError};
use crate::ir::Kernel;
use crate::ptx;
use cudarc::driver::{result, sys};
use std::ffi::{CString, c_uint, c_void};
use std::sync::{Arc, Weak};

/// A kernel that can be launched.
pub struct Program {
    /// The layout of its parameters and its number of blocks, in which kernels with the same text may differ.
    module: ptx::Module,
    code: Arc<Code>,
}

/// Code on a device, shared by all kernels with the same text.
pub(super) struct Code {
    device: Arc<Device>,
    loaded: sys::CUmodule,
    function: sys::CUfunction,
}

// SAFETY: the driver's handles may be used from any thread; nothing changes after the code is loaded.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Program {
    /// Writes, assembles and loads a verified kernel with the default options for the device.
    pub fn load(device: &Arc<Device>, kernel: &Kernel) -> Result<Arc<Program>, CudaError> {
        Program::load_with(device, kernel, ptx::Options::new(device.target()))
    }

    /// The same with options, whose target must be one that the device runs. A loaded program is not loaded again.
    pub fn load_with(device: &Arc<Device>, kernel: &Kernel, options: ptx::Options) -> Result<Arc<Program>, CudaError> {
        let module = ptx::emit(kernel, options)?;
        let known = device.programs().get(&module.text).and_then(Weak::upgrade);
        let code = match known {
            Some(code) => code,
            None => device.calls.during(|| Code::load(device, &kernel.name, &module))?,
        };
        Ok(Arc::new(Program { module, code }))
    }

    /// The device it is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.code.device
    }

    /// Its PTX.
    pub fn module(&self) -> &ptx::Module {
        &self.module
    }

    /// Blocks that one multiprocessor can run simultaneously.
    pub fn blocks_per_multiprocessor(&self) -> Result<u32, CudaError> {
        self.code.device.bind()?;
        let (threads, shared) = (self.module.threads as i32, self.module.shared_bytes as usize);
        // SAFETY: the function belongs to a loaded module.
        unsafe { result::occupancy::max_active_block_per_multiprocessor(self.code.function, threads, shared) }
            .called("cuOccupancyMaxActiveBlocksPerMultiprocessor")
            .map(|blocks| blocks as u32)
    }

    pub(super) fn function(&self) -> sys::CUfunction {
        self.code.function
    }
}

impl Code {
    fn load(device: &Arc<Device>, name: &str, module: &ptx::Module) -> Result<Arc<Code>, CudaError> {
        device.bind()?;
        let handle = assemble(name, &module.text)?;
        let mut code = Code { device: device.clone(), loaded: handle, function: std::ptr::null_mut() };
        code.function = loaded(code.loaded, &module.entry)?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to a loaded module.
        unsafe { result::function::set_function_attribute(code.function, attribute, module.shared_bytes as i32) }
            .called("cuFuncSetAttribute")?;
        let code = Arc::new(code);
        let mut known = device.programs();
        known.retain(|_, code| code.strong_count() > 0);
        known.insert(module.text.clone(), Arc::downgrade(&code));
        Ok(code)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: loaded by `load`, unloaded once; launches hold the program until they are done.
            _ = unsafe { result::module::unload(self.loaded) };
        }
    }
}

/// An entry of a module, with its code on the device, so that no launch has to load it while another one spins.
pub(super) fn loaded(module: sys::CUmodule, entry: &str) -> Result<sys::CUfunction, CudaError> {
    let entry = CString::new(entry).expect("an entry name has no zero byte");
    // SAFETY: the module is loaded.
    let function = unsafe { result::module::get_function(module, entry) }.called("cuModuleGetFunction")?;
    // SAFETY: the function belongs to a loaded module.
    unsafe { sys::cuFuncLoad(function) }.result().called("cuFuncLoad")?;
    Ok(function)
}

/// Lets the driver assemble PTX; its log comes with the error.
pub(super) fn assemble(kernel: &str, text: &str) -> Result<sys::CUmodule, CudaError> {
    use sys::CUjit_option as O;
    let mut log = vec![0u8; 8192];
    let image = CString::new(text).expect("PTX has no zero byte");
    let mut options = [O::CU_JIT_ERROR_LOG_BUFFER, O::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is PTX that ends in a zero byte; the options name a buffer with its size, which outlives the
    // call.
    let status = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            image.as_ptr().cast(),
            options.len() as c_uint,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    match status {
        sys::CUresult::CUDA_SUCCESS => Ok(module),
        sys::CUresult::CUDA_ERROR_INVALID_PTX | sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..end]).into_owned();
            Err(CudaError::Assembly { kernel: kernel.to_string(), log })
        }
        other => other.result().called("cuModuleLoadDataEx").map(|()| module),
    }
}
