//! What network cards need of a device: its memory as dma-bufs, and the flush of what they have written there.
//!
//! Written, and never run with a card. The calls are as old as CUDA 11.3 and 11.7, and the oldest supported driver is
//! newer. Attributes that a driver does not know count as absent.

use super::device::{Device, attribute};
use super::error::{Called, CudaError};
use crate::tensor::Memory;
use cudarc::driver::{result, sys};
use std::os::fd::{FromRawFd, OwnedFd};

/// What the driver says about writes of network cards into a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CardWrites {
    /// Memory can be exported as dma-bufs.
    pub dma_bufs: bool,
    /// The device does not order such writes before what its kernels read later.
    pub needs_flush: bool,
    /// The host can flush them.
    pub host_flushes: bool,
}

/// Memory of a device as a dma-buf.
pub(crate) struct DmaBuf {
    pub descriptor: OwnedFd,
    /// The address of its first byte.
    pub base: u64,
    /// The offset of the memory's first byte.
    pub offset: u64,
}

impl Device {
    pub(crate) fn card_writes(&self) -> CardWrites {
        use sys::CUdevice_attribute as A;
        let said = |which| attribute(self.handle(), which).ok();
        card_writes(
            said(A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
            said(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
            said(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
        )
    }

    /// Exports memory on this device, which must be a whole mapping or a part of one.
    pub(crate) fn dma_buf(&self, memory: &Memory) -> Result<DmaBuf, CudaError> {
        self.bind()?;
        // SAFETY: takes a number and touches no memory.
        let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let first = memory.start().as_ptr() as u64;
        // The driver wants whole pages of the host. Mappings are multiples of much larger ones.
        let (base, end) = (first / page * page, (first + memory.bytes() as u64).next_multiple_of(page));
        let mut descriptor = -1i32;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: for this type of handle the driver writes an int. It checks the range.
        unsafe {
            sys::cuMemGetHandleForAddressRange((&raw mut descriptor).cast(), base, (end - base) as usize, kind, 0)
        }
        .result()
        .called("cuMemGetHandleForAddressRange")?;
        // SAFETY: the driver made the descriptor for this call.
        Ok(DmaBuf { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) }, base, offset: first - base })
    }

    /// Returns when kernels of this device see everything that cards have written into its memory before the call.
    pub(crate) fn flush_card_writes(&self) -> Result<(), CudaError> {
        self.bind()?;
        let target = sys::CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scope = sys::CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
        // SAFETY: takes no pointers; the context is current.
        unsafe { sys::cuFlushGPUDirectRDMAWrites(target, scope) }.result().called("cuFlushGPUDirectRDMAWrites")
    }

    /// A copy of the bytes that a trial has written. Unlike host access to tensors, it waits for no launches.
    pub(crate) fn copy_of(&self, memory: &Memory) -> Result<Vec<u8>, CudaError> {
        assert!(memory.reachable_from().is_device(self.ordinal()), "memory of another device");
        self.bind()?;
        let mut out = vec![0; memory.bytes()];
        // SAFETY: the bytes are the memory's, which the handle keeps alive; the copy is waited for.
        unsafe { result::memcpy_dtoh_async(&mut out, memory.start().as_ptr() as u64, self.chores()) }
            .called("cuMemcpyDtoHAsync")?;
        self.sync_chores()?;
        Ok(out)
    }
}

/// The meaning of the attributes; `None` for one that the driver does not know.
fn card_writes(dma_bufs: Option<u32>, ordering: Option<u32>, options: Option<u32>) -> CardWrites {
    use sys::CUGPUDirectRDMAWritesOrdering as Ordering;
    use sys::CUflushGPUDirectRDMAWritesOptions as Options;
    let owner = Ordering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as u32;
    let host = Options::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as u32;
    CardWrites {
        dma_bufs: dma_bufs.is_some_and(|can| can != 0),
        needs_flush: ordering.is_none_or(|ordering| ordering < owner),
        host_flushes: options.is_some_and(|options| options & host != 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_flushed_unless_the_device_orders_them_for_its_own_kernels() {
        let needs = |ordering| card_writes(Some(1), ordering, Some(1)).needs_flush;
        assert_eq!([None, Some(0), Some(100), Some(200)].map(needs), [true, true, false, false]);
        let flushes = |options| card_writes(Some(1), Some(0), options).host_flushes;
        assert_eq!([None, Some(0), Some(1), Some(2), Some(3)].map(flushes), [false, false, true, false, true]);
        let exports = |dma_bufs| card_writes(dma_bufs, Some(0), Some(1)).dma_bufs;
        assert_eq!([None, Some(0), Some(1)].map(exports), [false, false, true]);
    }
}
