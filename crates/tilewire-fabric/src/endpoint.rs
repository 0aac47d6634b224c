//! Endpoints, which write into registered memory of peers, and report arrivals and completions.
//!
//! An endpoint owns its completion queue, its address vector, and the memory that the provider uses from a post to its
//! completion. An operation under way keeps its region, so memory that the provider reads is never freed early.

use crate::domain::{DmaBuf, Domain, Place as Memory, Region, close};
use crate::error::{CompletionError, FabricError};
use crate::peers::{AddressVector, MOST_ADDRESS, Peer};
use crate::provider::Provider;
use crate::queue::Cq;
use crate::shared_files::SharedFile;
use crate::signals::Handlers;
use crate::sys;
use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// The options of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointOptions {
    /// The most writes that may be under way. Further ones return [`Posted::Again`].
    pub under_way: usize,
    /// The number of completions that the queue holds.
    pub queue: usize,
    /// If true, the endpoint has a descriptor to sleep on, if the provider supports one. Some providers then make a
    /// system call for every completion.
    pub descriptor: bool,
}

impl Default for EndpointOptions {
    fn default() -> EndpointOptions {
        EndpointOptions { under_way: 512, queue: 4096, descriptor: false }
    }
}

/// One end of connections to any number of peers. Progress is manual: writes of this end *and of its peers* make
/// progress only while [`poll`](Endpoint::poll) is called, and posts may return [`Posted::Again`] until then.
pub struct Endpoint {
    /// The objects are in the order of closing. The endpoint is null before it is made.
    endpoint: *mut sys::FidEp,
    peers: ManuallyDrop<AddressVector>,
    queue: ManuallyDrop<Cq>,
    operations: ManuallyDrop<Operations>,
    address: Vec<u8>,
    /// The file of the endpoint, which is removed after the endpoint was closed.
    _file: SharedFile,
    domain: Domain,
}

// SAFETY: the domain was asked for with `FI_THREAD_SAFE`, so its objects may be used from any thread.
unsafe impl Send for Endpoint {}

/// The target of a write.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// The peer whose memory is written.
    pub peer: Peer,
    /// The [base](Region::base) of the peer's region and the offset of the first byte, added.
    pub address: u64,
    /// The [key](Region::key) of the peer's region.
    pub key: u64,
}

/// The bytes of a write.
#[derive(Clone, Copy, Debug)]
pub enum Source<'s> {
    /// A part of a region. It must not change before the write is complete, or unspecified bytes are written.
    Region {
        /// The region, of the same domain.
        region: &'s Region,
        /// The offset of the first byte.
        offset: usize,
        /// The number of bytes.
        bytes: usize,
    },
    /// Bytes that are copied before the call returns, at most [`inject_bytes`](Provider::inject_bytes).
    Copied(&'s [u8]),
}

/// The provider's answer to a post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Posted {
    /// The provider has taken the write.
    Taken,
    /// The provider has no room now, or is still connecting. Poll, and post again.
    Again,
}

/// An event that [`Endpoint::poll`] reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Completion {
    /// A write of this end is complete, so its source may change. If it was posted with
    /// [`write_delivered`](Endpoint::write_delivered), the bytes are in the peer's memory.
    Done {
        /// The token that the write was posted with.
        token: u64,
    },
    /// A write of a peer has arrived with all its bytes.
    Arrived {
        /// The number that it carried.
        data: u64,
    },
    /// An operation of this end failed.
    Failed {
        /// The token that the operation was posted with. `None` if the failure belongs to no such operation.
        token: Option<u64>,
        /// Why.
        error: CompletionError,
    },
}

impl Endpoint {
    /// Opens an endpoint with its own address.
    ///
    /// # Errors
    /// If the provider reports an error.
    pub fn open(domain: &Domain, options: &EndpointOptions) -> Result<Endpoint, FabricError> {
        let provider = domain.provider();
        // The shm provider takes over signals here.
        let _handlers = Handlers::keep();
        let queue = Cq::open(domain, options.queue, options.descriptor)?;
        let peers = AddressVector::open(domain)?;
        // Closed in the right order from here on.
        let mut made = Endpoint {
            endpoint: null_mut(),
            peers: ManuallyDrop::new(peers),
            queue: ManuallyDrop::new(queue),
            operations: ManuallyDrop::new(Operations::new(options.under_way)),
            address: Vec::new(),
            _file: SharedFile::of(&[]),
            domain: domain.clone(),
        };
        // SAFETY: the domain and the description are open, and the domain is kept.
        let result = unsafe {
            let open = domain.0.domain;
            ((*(*open).ops).endpoint)(open, provider.info_ptr(), &mut made.endpoint, null_mut())
        };
        provider.check("fi_endpoint", result)?;
        // SAFETY: the endpoint was just opened, and is used by nobody else. What is bound to it is closed after it.
        unsafe {
            let fid = &raw mut (*made.endpoint).fid;
            let ops = &*(*fid).ops;
            provider.check("fi_ep_bind", (ops.bind)(fid, made.peers.fid(), 0))?;
            provider.check("fi_ep_bind", (ops.bind)(fid, made.queue.fid(), sys::TRANSMIT | sys::RECV))?;
            // efa would send to ranks of this host through shared memory of its own, which is another path than the one
            // that a trial tries, and would call CUDA in threads that do not expect it. Providers that do not know an
            // option refuse it, and need none.
            for option in [sys::OPT_SHARED_MEMORY_PERMITTED, sys::OPT_CUDA_API_PERMITTED] {
                let permitted = false;
                let value = (&raw const permitted).cast();
                _ = ((*(*made.endpoint).ops).setopt)(fid, sys::OPT_ENDPOINT, option, value, size_of::<bool>());
            }
            if provider.registers_device_memory() {
                // Without this, a provider may copy by calls of CUDA that wait for running kernels.
                let required = sys::HMEM_P2P_REQUIRED;
                let value = (&raw const required).cast();
                let setopt = (*(*made.endpoint).ops).setopt;
                _ = setopt(fid, sys::OPT_ENDPOINT, sys::OPT_HMEM_P2P, value, size_of::<libc::c_int>());
            }
            provider.check("fi_enable", (ops.control)(fid, sys::ENABLE, null_mut()))?;
            let mut address = vec![0u8; MOST_ADDRESS];
            let mut bytes = address.len();
            let getname = (*(*made.endpoint).cm).getname;
            provider.check("fi_getname", getname(fid, address.as_mut_ptr().cast(), &mut bytes))?;
            address.truncate(bytes);
            made.peers.set_own(bytes);
            made.address = address;
        }
        made._file = SharedFile::of(&made.address);
        Ok(made)
    }

    /// Registers memory, for writes of peers that know its key, and as the source of writes of this end. `key` is the
    /// key that peers will need, if the provider lets the caller choose (see [`Provider::has_chosen_keys`]); choose it
    /// at random. If another region of the domain has the key, the region gets another one:
    /// [`Region::key`](crate::Region::key) says which.
    ///
    /// The memory stays registered until the last handle of the region is dropped and the writes from it are complete.
    /// Then `keep` is dropped. Drop regions before their endpoint, because some providers close only in that order.
    ///
    /// # Safety
    /// The `bytes` bytes from `start` on are memory of this process that is valid for reads and writes until `keep` is
    /// dropped. No reference to them exists: peers with the key may write there at any time, and the provider may read
    /// there while a write from the region is under way.
    ///
    /// # Errors
    /// If the provider reports an error.
    pub unsafe fn register(
        &self,
        start: NonNull<u8>,
        bytes: usize,
        key: u64,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Result<Region, FabricError> {
        // SAFETY: as the caller promises.
        unsafe { self.register_place(Memory::Host { start, bytes }, key, keep) }
    }

    /// As [`register`](Endpoint::register), for memory of a device. The provider must have been [asked
    /// for](crate::Query::device_memory) it. The endpoint then refuses transfers in which the processor would have to
    /// copy for the card, where the provider knows the option.
    ///
    /// Written, and never run with a card.
    ///
    /// # Safety
    /// The dma-buf is memory of the device at this address, which is valid until `keep` is dropped. Peers with the key
    /// may write there at any time, and the card may read there while a write from the region is under way.
    ///
    /// # Errors
    /// If the provider was not asked for memory of devices, or reports an error.
    pub unsafe fn register_dma_buf(
        &self,
        memory: DmaBuf<'_>,
        key: u64,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Result<Region, FabricError> {
        // SAFETY: as the caller promises.
        unsafe { self.register_place(Memory::Device(memory), key, keep) }
    }

    /// # Safety
    /// As for the functions above.
    unsafe fn register_place(
        &self,
        memory: Memory<'_>,
        key: u64,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Result<Region, FabricError> {
        // SAFETY: as the caller promises.
        let region = unsafe { self.domain.register(memory, key, keep)? };
        if self.provider().mr_mode() & sys::MR_ENDPOINT != 0 {
            // SAFETY: both are open, and this is the first use of the region.
            unsafe {
                let fid = &raw mut (*region.0.region).fid;
                let ops = &*(*fid).ops;
                self.provider().check("fi_mr_bind", (ops.bind)(fid, &raw mut (*self.endpoint).fid, 0))?;
                self.provider().check("fi_mr_enable", (ops.control)(fid, sys::ENABLE, null_mut()))?;
            }
        }
        Ok(region)
    }

    /// The address that peers [insert](AddressVector::insert) to reach this endpoint.
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// The peers of this endpoint.
    pub fn peers(&mut self) -> &mut AddressVector {
        &mut self.peers
    }

    /// The provider of this endpoint.
    pub fn provider(&self) -> &Provider {
        self.domain.provider()
    }

    /// The domain of this endpoint.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// The number of writes of this end that are not complete. Those of `inject_write` do not count.
    pub fn under_way(&self) -> usize {
        self.operations.len()
    }

    /// True if the most writes that the options allow are under way.
    pub fn is_full(&self) -> bool {
        self.operations.free().is_none()
    }

    /// Writes a part of a region. [`Completion::Done`] with `token` follows.
    ///
    /// # Errors
    /// If the range is outside of the region, or the provider reports an error.
    pub fn write(
        &mut self,
        to: Remote,
        (region, offset, bytes): (&Region, usize, usize),
        token: u64,
    ) -> Result<Posted, FabricError> {
        self.post(to, Source::Region { region, offset, bytes }, token, |ep, at, from, context| {
            // SAFETY: `post` says why its arguments are valid.
            unsafe { ((*(*ep).rma).write)(ep, from.start, from.bytes, from.desc, at.0, at.1, at.2, context) }
        })
    }

    /// As [`write`](Endpoint::write), and `data` arrives in the peer's queue after the bytes. Of `data` only as many
    /// bytes travel as the provider [has](Provider::data_bytes).
    ///
    /// # Errors
    /// As for `write`.
    pub fn writedata(
        &mut self,
        to: Remote,
        (region, offset, bytes): (&Region, usize, usize),
        data: u64,
        token: u64,
    ) -> Result<Posted, FabricError> {
        self.post(to, Source::Region { region, offset, bytes }, token, |ep, at, from, context| {
            // SAFETY: `post` says why its arguments are valid.
            unsafe { ((*(*ep).rma).writedata)(ep, from.start, from.bytes, from.desc, data, at.0, at.1, at.2, context) }
        })
    }

    /// As [`write`](Endpoint::write) or [`writedata`](Endpoint::writedata), and [`Completion::Done`] means that the
    /// bytes are in the peer's memory and that its next poll reports `data`. For providers that [confirm
    /// delivery](Provider::confirms_delivery).
    ///
    /// # Errors
    /// As for `write`.
    pub fn write_delivered(
        &mut self,
        to: Remote,
        source: Source<'_>,
        data: Option<u64>,
        token: u64,
    ) -> Result<Posted, FabricError> {
        self.write_message(to, source, data, token, sys::DELIVERY_COMPLETE)
    }

    /// As [`writedata`](Endpoint::writedata), also from bytes that are copied. Unlike
    /// [`inject_writedata`](Endpoint::inject_writedata), it has a completion, so a failure says which write has failed.
    /// The provider `ofi_rxm` of 1.17 crashes when a connection is lost with an injected write under way.
    ///
    /// # Errors
    /// As for `write`.
    pub fn write_copied(
        &mut self,
        to: Remote,
        source: Source<'_>,
        data: u64,
        token: u64,
    ) -> Result<Posted, FabricError> {
        self.write_message(to, source, Some(data), token, 0)
    }

    fn write_message(
        &mut self,
        to: Remote,
        source: Source<'_>,
        data: Option<u64>,
        token: u64,
        flags: u64,
    ) -> Result<Posted, FabricError> {
        let mut flags = flags | sys::COMPLETION;
        flags |= data.map_or(0, |_| sys::REMOTE_CQ_DATA);
        flags |= if matches!(source, Source::Copied(_)) { sys::INJECT } else { 0 };
        self.post(to, source, token, |ep, (addr, address, key), mut from, context| {
            let place = libc::iovec { iov_base: from.start.cast_mut(), iov_len: from.bytes };
            let rma = sys::RmaIov { addr: address, len: from.bytes, key };
            let message = sys::MsgRma {
                msg_iov: &place,
                desc: &mut from.desc,
                iov_count: 1,
                addr,
                rma_iov: &rma,
                rma_iov_count: 1,
                context,
                data: data.unwrap_or(0),
            };
            // SAFETY: `post` says why its arguments are valid; the structures are read before the call returns.
            unsafe { ((*(*ep).rma).writemsg)(ep, &message, flags) }
        })
    }

    /// Writes a few bytes, at most [`inject_bytes`](Provider::inject_bytes), which are copied before the call returns.
    /// No completion follows, unless it fails.
    ///
    /// # Errors
    /// If there are more bytes than the provider copies, or the provider reports an error.
    pub fn inject_write(&mut self, to: Remote, source: Source<'_>) -> Result<Posted, FabricError> {
        let (peer, from) = (self.peers.addr(to.peer)?, self.place(source, self.provider().inject_bytes())?);
        // SAFETY: the endpoint is open, the bytes are borrowed or part of a region, and the peer is one of its address
        // vector.
        let result = unsafe {
            ((*(*self.endpoint).rma).inject)(self.endpoint, from.start, from.bytes, peer, to.address, to.key)
        };
        self.posted("fi_inject_write", result)
    }

    /// As [`inject_write`](Endpoint::inject_write), and `data` arrives in the peer's queue after the bytes.
    ///
    /// # Errors
    /// As there.
    pub fn inject_writedata(&mut self, to: Remote, source: Source<'_>, data: u64) -> Result<Posted, FabricError> {
        let (peer, from) = (self.peers.addr(to.peer)?, self.place(source, self.provider().inject_bytes())?);
        // SAFETY: as above.
        let result = unsafe {
            ((*(*self.endpoint).rma).injectdata)(self.endpoint, from.start, from.bytes, data, peer, to.address, to.key)
        };
        self.posted("fi_inject_writedata", result)
    }

    /// Makes progress, and adds the new completions. Returns true if there were any.
    ///
    /// # Errors
    /// If the queue itself fails. A write that failed is a [`Completion::Failed`].
    pub fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<bool, FabricError> {
        let before = completions.len();
        self.queue.read(&mut self.operations, completions)?;
        Ok(completions.len() > before)
    }

    /// A descriptor that is readable when there is something to poll. Sleep on it only if
    /// [`may_sleep`](Endpoint::may_sleep) says so.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.queue.descriptor()
    }

    /// True if there is nothing to poll, and the descriptor will become readable when there is.
    pub fn may_sleep(&self) -> bool {
        self.queue.may_sleep()
    }

    /// Posts a write with a completion. The closure gets the endpoint, the target (peer, address, key), the source, and
    /// the context. All of these are valid for a post. The endpoint is open, and the peer is in its address vector. The
    /// bytes are borrowed, or are part of a region that the operation keeps until it is complete. The context belongs
    /// to this endpoint, and is free.
    fn post(
        &mut self,
        to: Remote,
        source: Source<'_>,
        token: u64,
        call: impl FnOnce(*mut sys::FidEp, (sys::Addr, u64, u64), Place, *mut c_void) -> isize,
    ) -> Result<Posted, FabricError> {
        let most = match source {
            Source::Region { .. } => self.provider().message_bytes(),
            Source::Copied(_) => self.provider().inject_bytes(),
        };
        let (peer, from) = (self.peers.addr(to.peer)?, self.place(source, most)?);
        let Some((number, context)) = self.operations.free() else { return Ok(Posted::Again) };
        let posted = self.posted("a write", call(self.endpoint, (peer, to.address, to.key), from, context))?;
        if posted == Posted::Taken {
            let region = match source {
                Source::Region { region, .. } => Some(region.clone()),
                Source::Copied(_) => None,
            };
            self.operations.begin(number, Operation { token, region });
        }
        Ok(posted)
    }

    /// The address of a write's bytes. Fails if there are more than `most`.
    fn place(&self, source: Source<'_>, most: usize) -> Result<Place, FabricError> {
        let place = match source {
            Source::Region { region, offset, bytes } => {
                if !Arc::ptr_eq(&region.0.domain.0, &self.domain.0) {
                    return Err(FabricError::Foreign);
                }
                let (start, desc) = region.part(offset, bytes)?;
                Place { start, bytes, desc }
            }
            Source::Copied(bytes) => Place { start: bytes.as_ptr().cast(), bytes: bytes.len(), desc: null_mut() },
        };
        match place.bytes > most {
            true => Err(FabricError::TooLong { bytes: place.bytes, most }),
            false => Ok(place),
        }
    }

    fn posted(&self, call: &'static str, result: isize) -> Result<Posted, FabricError> {
        match -result {
            0 => Ok(Posted::Taken),
            again if again == sys::EAGAIN as isize => Ok(Posted::Again),
            code => Err(self.provider().failed(call, code as i32)),
        }
    }
}

/// The address of a write's bytes, and the provider's description of their region.
struct Place {
    start: *const c_void,
    bytes: usize,
    desc: *mut c_void,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.endpoint.is_null() {
            // SAFETY: not touched afterwards. Nothing is bound to them.
            unsafe {
                ManuallyDrop::drop(&mut self.queue);
                ManuallyDrop::drop(&mut self.peers);
                ManuallyDrop::drop(&mut self.operations);
            }
            return;
        }
        // Providers that bind regions to endpoints close the regions first. Their memory stays.
        let binds = self.provider().mr_mode() & sys::MR_ENDPOINT != 0;
        let kept = if binds { self.operations.release_regions() } else { Vec::new() };
        // SAFETY: open until now, and not used afterwards.
        if !unsafe { close(&raw mut (*self.endpoint).fid) } {
            // The endpoint is still open, so everything that it uses must stay.
            std::mem::forget((kept, self.domain.clone()));
            return;
        }
        // SAFETY: not touched afterwards, and no longer bound to an open endpoint.
        unsafe {
            ManuallyDrop::drop(&mut self.queue);
            ManuallyDrop::drop(&mut self.peers);
            ManuallyDrop::drop(&mut self.operations);
        }
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint of {}", self.provider())
    }
}

/// The operations under way, each with memory that the provider uses until the operation is complete.
pub(crate) struct Operations {
    contexts: Box<[UnsafeCell<sys::Context>]>,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
}

struct Operation {
    token: u64,
    region: Option<Region>,
}

impl Operations {
    fn new(most: usize) -> Operations {
        let context = || UnsafeCell::new(sys::Context { internal: [null_mut(); 8] });
        Operations {
            contexts: (0..most).map(|_| context()).collect(),
            operations: (0..most).map(|_| None).collect(),
            free: (0..most).rev().collect(),
        }
    }

    fn len(&self) -> usize {
        self.operations.len() - self.free.len()
    }

    /// An unused place, which stays free until [`begin`](Operations::begin).
    fn free(&self) -> Option<(usize, *mut c_void)> {
        let number = *self.free.last()?;
        Some((number, self.contexts[number].get().cast()))
    }

    fn begin(&mut self, number: usize, operation: Operation) {
        assert_eq!(self.free.pop(), Some(number), "the last free one");
        self.operations[number] = Some(operation);
    }

    /// Ends a completed operation and returns its token. `None` if the context belongs to no operation under way.
    pub fn end(&mut self, context: *mut c_void) -> Option<u64> {
        let bytes = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let (number, rest) = (bytes / size_of::<sys::Context>(), bytes % size_of::<sys::Context>());
        let operation = if rest == 0 { self.operations.get_mut(number)?.take()? } else { return None };
        self.free.push(number);
        Some(operation.token)
    }

    fn release_regions(&mut self) -> Vec<Arc<dyn Any + Send + Sync>> {
        let regions = self.operations.iter_mut().flatten().filter_map(|operation| operation.region.take());
        regions.map(|region| region.0.keep.clone()).collect()
    }
}
