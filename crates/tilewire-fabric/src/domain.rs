//! Domains, and the memory that is registered with them.

use crate::error::FabricError;
use crate::provider::Provider;
use crate::signals::Handlers;
use crate::sys;
use std::any::Any;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// The most keys that are tried for one region.
const MOST_KEYS: u64 = 64;

/// An opened provider. Clones are handles of the same domain. It is closed when the last handle is dropped, and the
/// last region and endpoint of it.
#[derive(Clone)]
pub struct Domain(pub(crate) Arc<Open>);

pub(crate) struct Open {
    pub fabric: *mut sys::FidFabric,
    pub domain: *mut sys::FidDomain,
    pub provider: Arc<Provider>,
}

// SAFETY: the domain was asked for with `FI_THREAD_SAFE`: any thread may call its functions at any time.
unsafe impl Send for Open {}
// SAFETY: as above.
unsafe impl Sync for Open {}

/// Memory of a CUDA device, as a dma-buf.
#[derive(Clone, Copy, Debug)]
pub struct DmaBuf<'f> {
    /// The descriptor. What is passed as `keep` should hold it, because not every provider makes its own copy.
    pub descriptor: BorrowedFd<'f>,
    /// The address of the dma-buf's first byte on the device.
    pub base: u64,
    /// The offset of the first byte to register.
    pub offset: u64,
    /// The number of bytes to register, which are all part of the dma-buf.
    pub bytes: usize,
    /// The number of the device.
    pub device: i32,
}

/// The memory of a region.
pub(crate) enum Place<'f> {
    Host { start: NonNull<u8>, bytes: usize },
    Device(DmaBuf<'f>),
}

impl Domain {
    /// Opens a provider.
    ///
    /// # Errors
    /// If the provider reports an error.
    pub fn open(provider: Arc<Provider>) -> Result<Domain, FabricError> {
        let _handlers = Handlers::keep();
        let mut open = Open { fabric: null_mut(), domain: null_mut(), provider };
        let info = open.provider.info_ptr();
        // SAFETY: the description belongs to the provider, which lives as long as the objects that are opened from it.
        // Those are closed when `open` is dropped.
        unsafe {
            let functions = open.provider.library().functions();
            let result = (functions.fabric)((*info).fabric_attr, &mut open.fabric, null_mut());
            open.provider.check("fi_fabric", result)?;
            let result = ((*(*open.fabric).ops).domain)(open.fabric, info, &mut open.domain, null_mut());
            open.provider.check("fi_domain", result)?;
        }
        Ok(Domain(Arc::new(open)))
    }

    /// The provider that the domain was opened from.
    pub fn provider(&self) -> &Provider {
        &self.0.provider
    }

    /// See [`Endpoint::register`](crate::Endpoint::register) and
    /// [`register_dma_buf`](crate::Endpoint::register_dma_buf).
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn register(
        &self,
        place: Place<'_>,
        key: u64,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Result<Region, FabricError> {
        let provider = self.provider();
        let (start, bytes) = match &place {
            Place::Host { start, bytes } => (*start, *bytes),
            Place::Device(_) if !provider.registers_device_memory() => {
                return Err(FabricError::NoDeviceMemory { provider: provider.to_string() });
            }
            Place::Device(buf) => {
                let start =
                    buf.base.checked_add(buf.offset).filter(|start| start.checked_add(buf.bytes as u64).is_some());
                let start = start.and_then(|start| NonNull::new(start as *mut u8));
                let region = usize::try_from(buf.base).unwrap_or(usize::MAX);
                (start.ok_or(FabricError::Range { offset: buf.offset as usize, bytes: buf.bytes, region })?, buf.bytes)
            }
        };
        let iov = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: bytes };
        let (dma_buf, device) = match &place {
            Place::Host { .. } => (None, 0),
            Place::Device(DmaBuf { descriptor, base, offset, bytes, device }) => {
                let fd = descriptor.as_raw_fd();
                let dma_buf = sys::MrDmabuf { fd, offset: *offset, len: *bytes, base_addr: *base as *mut c_void };
                // A union whose member for CUDA is an int.
                let [a, b, c, d] = device.to_ne_bytes();
                (Some(dma_buf), u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]))
            }
        };
        // With the flag, the library takes the first pointer for one to a dma-buf.
        let (first, flags, iface) = match &dma_buf {
            None => (&raw const iov, 0, 0),
            Some(dma_buf) => ((&raw const *dma_buf).cast(), sys::MR_DMABUF, sys::HMEM_CUDA),
        };
        let mut attr = sys::Roomy::new(sys::MrAttr {
            mr_iov: first,
            iov_count: 1,
            access: sys::WRITE | sys::READ | sys::REMOTE_WRITE | sys::REMOTE_READ,
            offset: 0,
            requested_key: 0,
            context: null_mut(),
            auth_key_size: 0,
            auth_key: null_mut(),
            iface,
            device,
        });
        let mut region = null_mut();
        let mut result = 0;
        for attempt in 0..MOST_KEYS {
            attr.known.requested_key = key_at(provider, key, attempt);
            // SAFETY: all pointers are valid for the call, also for a library whose structure is longer. The memory is
            // valid as the caller promises, since `keep` lives in the region.
            result = unsafe {
                ((*(*self.0.domain).mr).regattr)(&raw mut (*self.0.domain).fid, attr.as_mut_ptr(), flags, &mut region)
            };
            if result != -sys::ENOKEY || !provider.has_chosen_keys() {
                break;
            }
            // Another region has this key. Keys of few bytes collide even if they are random.
        }
        provider.check("fi_mr_regattr", result)?;
        // SAFETY: the call has filled it.
        let key = unsafe { (*region).key };
        let base = if provider.has_virtual_addresses() { start.as_ptr() as u64 } else { 0 };
        Ok(Region(Arc::new(Registered { region, start, bytes, key, base, domain: self.clone(), keep })))
    }
}

/// The key that is tried for a region at this attempt: first the caller's, and then numbers that look random and follow
/// from it.
fn key_at(provider: &Provider, key: u64, attempt: u64) -> u64 {
    let mixed = match attempt {
        0 => key,
        // The output function of SplitMix64: keys of neighbouring attempts share no bits.
        _ => {
            let state = key.wrapping_add(attempt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        }
    };
    match provider.key_bytes() {
        _ if !provider.has_chosen_keys() => 0,
        small @ 1..8 => mixed & ((1 << (8 * small)) - 1),
        _ => mixed,
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: regions and endpoints keep the domain, so nothing is left in it. Closed in the reverse order of
        // opening.
        unsafe {
            if !self.domain.is_null() {
                close(&raw mut (*self.domain).fid);
            }
            if !self.fabric.is_null() {
                close(&raw mut (*self.fabric).fid);
            }
        }
    }
}

/// Closes an object. Returns false if the provider refuses. Then the object and everything that it uses must stay.
///
/// # Safety
/// The object is open, and nothing uses it afterwards if this returns true.
pub(crate) unsafe fn close(object: *mut sys::Fid) -> bool {
    // SAFETY: as the caller promises.
    unsafe { ((*(*object).ops).close)(object) == 0 }
}

/// Registered memory. Clones are handles of the same region.
#[derive(Clone)]
pub struct Region(pub(crate) Arc<Registered>);

pub(crate) struct Registered {
    pub region: *mut sys::FidMr,
    pub start: NonNull<u8>,
    pub bytes: usize,
    key: u64,
    base: u64,
    pub domain: Domain,
    pub keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: as for the domain. The memory is not touched through it.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Region {
    /// The key that a peer needs.
    pub fn key(&self) -> u64 {
        self.0.key
    }

    /// The number that a peer adds to the offset of a byte: 0, or the address of the first byte.
    pub fn base(&self) -> u64 {
        self.0.base
    }

    /// The size of the region in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// The offset of `start`, if the region contains the `bytes` bytes from there on.
    pub fn offset_of(&self, start: *const u8, bytes: usize) -> Option<usize> {
        let offset = (start as usize).checked_sub(self.0.start.as_ptr() as usize)?;
        (offset.checked_add(bytes)? <= self.0.bytes).then_some(offset)
    }

    /// The address of a part of the region, and the provider's description of the region.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Result<(*const c_void, *mut c_void), FabricError> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.0.bytes) {
            return Err(FabricError::Range { offset, bytes, region: self.0.bytes });
        }
        // SAFETY: inside of the region, as just checked; the description was filled when it was registered.
        unsafe { Ok((self.0.start.as_ptr().add(offset).cast_const().cast(), (*self.0.region).mem_desc)) }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: the last handle: no write from it is under way, since those keep one. Writes of peers that come from
        // now on are refused by the provider.
        if !unsafe { close(&raw mut (*self.region).fid) } {
            // The region is still registered, so its memory must stay.
            std::mem::forget(self.keep.clone());
        }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is a secret, so it is not shown.
        write!(f, "Region of {} bytes", self.0.bytes)
    }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Domain of {}", self.provider())
    }
}
