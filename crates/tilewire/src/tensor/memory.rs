//! A handle to memory that stays alive as long as the handle.

use super::access::HomeThread;
use super::block::Block;
use super::memory_left::{MemoryLeft, NoMemory};
use super::reach::ReachableFrom;
use super::rows::Rows;
use crate::ir::{Part, Purpose, matching};
use std::any::Any;
use std::error::Error;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that kernels use, in host memory or on devices. All clones of the handle share them, and the last one to go
/// frees them (or drops the keep-alive).
///
/// Handles may move to any thread: they name bytes and keep them alive, but touch none. Host code reads and writes
/// elements through a [`Tensor`](super::Tensor); [`bytes_of`](super::bytes_of) copies the bytes of any memory.
///
/// The memory of a tensor with a row stride is its rows: the bytes between them belong to others.
#[derive(Clone)]
pub struct Memory {
    start: NonNull<u8>,
    rows: Rows,
    purpose: Purpose,
    /// The operation that its words or packets carry, if the purpose says that they carry one.
    operation: u16,
    keep: Arc<Keep>,
}

// SAFETY: of the fields, only the address is not `Send` by itself. No method dereferences it. The functions of
// `access`, `Tensor` and the engines do, and they make sure that a thread's own bytes are touched on that thread alone
// (`access`). `Keep` is `Send` and `Sync`, so the bytes may be freed wherever the last handle is dropped, and `Arc`
// orders that after all uses through the other handles.
unsafe impl Send for Memory {}
// SAFETY: a shared handle never changes; for the bytes, the argument above holds.
unsafe impl Sync for Memory {}

/// State shared by all handles to the same bytes.
struct Keep {
    reach: ReachableFrom,
    held: Held,
    /// True once others may write bytes that were one thread's own at any time: from then on they are shared.
    shared: AtomicBool,
    /// True once host code has had the elements in place, which it may still have.
    celled: AtomicBool,
    /// True once a failed launch has left the bytes to peers.
    exposed: AtomicBool,
    /// True once memory that was lent has gone back to its owner; `None` if it is not lent.
    returned: Option<AtomicBool>,
}

/// What keeps the bytes alive, and how host code may touch them: see `access`.
enum Held {
    /// The bytes belong to one thread.
    Own(HomeThread, Alive),
    /// Other threads, processes or devices may write them at any time.
    Shared(Alive),
    /// The bytes are out of the host's reach.
    Device(Arc<dyn DeviceBytes>),
}

/// How host code may touch bytes now: see `access`.
pub(super) enum Access<'m> {
    /// As one thread's own.
    Own(HomeThread),
    /// By atomics, because others may write them.
    Shared,
    /// By copies.
    Device(&'m Arc<dyn DeviceBytes>),
}

/// Keeps bytes alive until it is dropped.
type Alive = Arc<dyn Any + Send + Sync>;

/// Something that lives as long as the handles of a memory.
pub(crate) type Guard = Alive;

/// What keeps host bytes alive, and a guard that goes with their last handle.
struct AliveWith {
    alive: Alive,
    #[expect(dead_code, reason = "dropped with the last handle")]
    guard: Guard,
}

/// Bytes of a device, and a guard that goes with their last handle.
struct Guarded {
    bytes: Arc<dyn DeviceBytes>,
    #[expect(dead_code, reason = "dropped with the last handle")]
    guard: Guard,
}

impl DeviceBytes for Guarded {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.bytes.read(address, out)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.bytes.write(address, bytes)
    }

    fn read_rows(
        &self,
        address: u64,
        width: usize,
        stride: usize,
        out: &mut [u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.bytes.read_rows(address, width, stride, out)
    }

    fn write_rows(
        &self,
        address: u64,
        width: usize,
        stride: usize,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.bytes.write_rows(address, width, stride, bytes)
    }
}

/// The ranks between which the words or packets in a transport's memory travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Between {
    /// The rank that sends the data these words or packets belong to.
    pub from: u32,
    /// The rank that receives it.
    pub to: u32,
    /// The operation that they carry, less than [`Between::OPERATIONS`]. It lets a launch detect that it waits for
    /// another operation's words (see [`Purpose::is_matched`]). `None` for credits, which may be older than the launch.
    pub operation: Option<u16>,
}

impl Between {
    /// Operation numbers have 15 bits: the room that a packet's flag has for them.
    pub const OPERATIONS: u16 = 1 << 15;
    /// Numbers below this one are for users' own kernels, all others for the collectives.
    pub const OWN: u16 = Self::OPERATIONS / 2;
}

/// Bytes that host code can only copy, not access: those of a GPU. Dropped with the last handle to them.
pub trait DeviceBytes: Send + Sync {
    /// Copies from the device, after everything this thread has launched there.
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Copies to the device, after everything this thread has launched there. The bytes have arrived when it returns.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// As [`read`](DeviceBytes::read), for rows of `width` bytes, not 0, that begin `stride` bytes apart there and
    /// follow each other in `out`. Unless it is overridden, one copy for each row.
    fn read_rows(
        &self,
        address: u64,
        width: usize,
        stride: usize,
        out: &mut [u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let rows = (0u64..).zip(out.chunks_mut(width));
        rows.into_iter().try_for_each(|(row, out)| self.read(address + row * stride as u64, out))
    }

    /// As [`write`](DeviceBytes::write), for such rows.
    fn write_rows(
        &self,
        address: u64,
        width: usize,
        stride: usize,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let rows = (0u64..).zip(bytes.chunks(width));
        rows.into_iter().try_for_each(|(row, bytes)| self.write(address + row * stride as u64, bytes))
    }
}

impl Keep {
    #[inline]
    fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }
}

/// The bytes of a [stand-in](Memory::stand_in): there are none.
struct Nowhere;

impl DeviceBytes for Nowhere {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("memory that stands for other memory has no bytes".into())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("memory that stands for other memory has no bytes".into())
    }
}

impl Memory {
    /// Minimum alignment of allocations of a page or more by tilewire: one page, so that vector accesses never split,
    /// and non-temporal stores and registration with a NIC need no special case.
    pub const ALIGN: usize = 4096;

    /// Fresh zeroed memory.
    ///
    /// # Panics
    /// If there is not enough memory. [`try_zeroed`](Memory::try_zeroed) returns an error instead, before the system
    /// kills the process.
    pub fn zeroed(bytes: usize) -> Memory {
        Memory::fresh(bytes).unwrap_or_else(|| panic!("{}", NoMemory { bytes, shortage: None }))
    }

    /// Fresh zeroed memory, if the machine and the control group of this process have that much left.
    pub fn try_zeroed(bytes: usize) -> Result<Memory, NoMemory> {
        // For small requests it is not worth reading the files: the amount left fluctuates by as much anyway.
        if bytes >= Memory::COMPARED {
            MemoryLeft::now().check(bytes as u64).map_err(|shortage| NoMemory { bytes, shortage: Some(shortage) })?;
        }
        Memory::fresh(bytes).ok_or(NoMemory { bytes, shortage: None })
    }

    /// Requests of this size or more are compared with what is left.
    const COMPARED: usize = 1 << 20;

    /// Fresh zeroed memory that every thread may access with atomics.
    ///
    /// # Panics
    /// If there is not enough memory.
    pub(crate) fn zeroed_shared(bytes: usize) -> Memory {
        let block = Memory::block(bytes).unwrap_or_else(|| panic!("{}", NoMemory { bytes, shortage: None }));
        Memory::of(block.start(), bytes, ReachableFrom::HOST, Held::Shared(Arc::new(block)))
    }

    fn fresh(bytes: usize) -> Option<Memory> {
        let block = Memory::block(bytes)?;
        Some(Memory::of(block.start(), bytes, ReachableFrom::HOST, Held::Own(HomeThread::here(), Arc::new(block))))
    }

    fn block(bytes: usize) -> Option<Block> {
        Block::zeroed(bytes, if bytes >= Memory::ALIGN { Memory::ALIGN } else { 64 })
    }

    fn of(start: NonNull<u8>, bytes: usize, reach: ReachableFrom, held: Held) -> Memory {
        Memory::of_rows(start, Rows::one(bytes), reach, held, None)
    }

    fn of_rows(
        start: NonNull<u8>,
        rows: Rows,
        reach: ReachableFrom,
        held: Held,
        returned: Option<AtomicBool>,
    ) -> Memory {
        let [shared, celled, exposed] = [(); 3].map(|()| AtomicBool::new(false));
        let keep = Keep { reach, held, shared, celled, exposed, returned };
        Memory { start, rows, purpose: Purpose::Own, operation: 0, keep: Arc::new(keep) }
    }

    /// As [`foreign`](Memory::foreign), for rows: nothing is required of the bytes between them.
    ///
    /// # Safety
    /// As for [`foreign`](Memory::foreign).
    pub(super) unsafe fn foreign_rows(start: NonNull<u8>, rows: Rows, keep: Alive) -> Memory {
        Memory::of_rows(start, rows, ReachableFrom::HOST, Held::Own(HomeThread::here(), keep), None)
    }

    /// As [`shared`](Memory::shared), for rows: nothing is required of the bytes between them.
    ///
    /// # Safety
    /// As for [`shared`](Memory::shared).
    pub(super) unsafe fn shared_rows(start: NonNull<u8>, rows: Rows, reach: ReachableFrom, keep: Alive) -> Memory {
        Memory::of_rows(start, rows, reach, Held::Shared(keep), None)
    }

    /// As [`on_device`](Memory::on_device), for rows.
    ///
    /// # Safety
    /// As for [`on_device`](Memory::on_device).
    pub(super) unsafe fn on_device_rows(
        start: NonNull<u8>,
        rows: Rows,
        reach: ReachableFrom,
        keep: Arc<dyn DeviceBytes>,
    ) -> Memory {
        Memory::of_rows(start, rows, reach, Held::Device(keep), None)
    }

    /// Memory of the host that its owner takes back: [`end_lending`](Memory::end_lending) voids all handles.
    ///
    /// # Safety
    /// As for [`foreign`](Memory::foreign), until `end_lending` has been called on this thread.
    pub(super) unsafe fn lent_rows(start: NonNull<u8>, rows: Rows) -> Memory {
        let held = Held::Own(HomeThread::here(), Arc::new(()));
        Memory::of_rows(start, rows, ReachableFrom::HOST, held, Some(AtomicBool::new(false)))
    }

    /// Voids all handles to memory that was lent. Only the home thread touches the bytes, and that is this one.
    pub(super) fn end_lending(&self) {
        if let Some(returned) = &self.keep.returned {
            returned.store(true, Ordering::Relaxed);
        }
    }

    /// True if it is memory that its owner takes back after a while.
    pub(crate) fn is_lent(&self) -> bool {
        self.keep.returned.is_some()
    }

    /// True if it was lent and its owner has it back: nobody may touch the bytes.
    #[inline]
    pub(crate) fn is_returned(&self) -> bool {
        self.keep.returned.as_ref().is_some_and(|returned| returned.load(Ordering::Relaxed))
    }

    /// Foreign memory in the host's reach, kept alive by `keep`. It becomes this thread's own: only this thread may
    /// make tensors of it and call the CPU engine to run kernels that use it.
    ///
    /// # Safety
    /// `start..start + bytes` must be valid for reads and writes, and initialised, until `keep` is dropped. While a
    /// handle exists, no other thread may touch it. While a kernel that has it runs, only that kernel may touch it.
    pub unsafe fn foreign(start: NonNull<u8>, bytes: usize, keep: Arc<dyn Any + Send + Sync>) -> Memory {
        Memory::of(start, bytes, ReachableFrom::HOST, Held::Own(HomeThread::here(), keep))
    }

    /// Foreign memory that peers (other threads, processes or devices) may write at any time, kept alive by `keep`.
    /// `reach` lists everything that can access it and must include the host. Pinned memory is also reached from
    /// devices.
    ///
    /// # Safety
    /// `start..start + bytes` must be valid for reads and writes from all of `reach`, at the same addresses, and
    /// initialised, until `keep` is dropped. Nobody may hold a reference to it.
    ///
    /// # Panics
    /// If the host does not reach it.
    pub unsafe fn shared(
        start: NonNull<u8>,
        bytes: usize,
        reach: ReachableFrom,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Memory {
        assert!(reach.host, "memory that is reached from {reach} only: Memory::on_device makes a handle of it");
        Memory::of(start, bytes, reach, Held::Shared(keep))
    }

    /// Memory of devices. The host never dereferences its address; `keep` copies for it.
    ///
    /// # Safety
    /// `address..address + bytes` must be valid for kernels of `devices`, and for copies by `keep`, until `keep` is
    /// dropped.
    ///
    /// # Panics
    /// If the address is 0.
    pub unsafe fn on_device(address: u64, bytes: usize, devices: Vec<u32>, keep: Arc<dyn DeviceBytes>) -> Memory {
        let start = NonNull::new(std::ptr::without_provenance_mut(address as usize)).expect("memory is not at 0");
        Memory::of(start, bytes, ReachableFrom { host: false, devices }, Held::Device(keep))
    }

    /// Stands for memory of `bytes` bytes that is not known yet, while a kernel is traced: nobody reaches it. Those
    /// with different numbers, below 2¹⁴, share no bytes with each other or with memory of the host.
    pub(crate) fn stand_in(number: usize, bytes: usize) -> Memory {
        /// Above all addresses of a host and of its devices.
        const BEYOND: u64 = 1 << 62;
        const APART: u32 = 47;
        assert!(number < 1 << 14 && bytes < 1 << APART, "stand-in {number} of {bytes} bytes");
        let address = BEYOND | (number as u64) << APART;
        // SAFETY: there are no kernels of no devices, and the keep-alive copies nothing.
        unsafe { Memory::on_device(address, bytes, Vec::new(), Arc::new(Nowhere)) }
    }

    /// Where loads and stores can reach the bytes from.
    pub fn reachable_from(&self) -> &ReachableFrom {
        &self.keep.reach
    }

    /// How host code may touch the bytes. Private to `tensor`, the only module that does.
    #[inline]
    pub(super) fn access(&self) -> Access<'_> {
        match &self.keep.held {
            Held::Own(home, _) if !self.keep.is_shared() => Access::Own(*home),
            Held::Own(..) | Held::Shared(_) => Access::Shared,
            Held::Device(bytes) => Access::Device(bytes),
        }
    }

    /// From now on, peers may write the bytes: all handles access them with atomics. Returns false, and changes
    /// nothing, if host code may have the elements in place, if another thread owns the bytes, or if they were lent.
    pub(crate) fn share(&self) -> bool {
        // Relaxed: host code takes elements in place on the home thread alone, and that is this one.
        let is_celled = self.keep.celled.load(Ordering::Relaxed);
        match &self.keep.held {
            Held::Own(home, _) if !home.is_here() || is_celled || self.is_lent() => false,
            Held::Own(..) => {
                // Release: whoever finds the bytes shared also finds what this thread has written.
                self.keep.shared.store(true, Ordering::Release);
                true
            }
            Held::Shared(_) | Held::Device(_) => true,
        }
    }

    /// Keeps the bytes alive for ever, and makes host code use atomics from now on: others may still write them.
    pub(crate) fn expose(&self) {
        self.keep.exposed.store(true, Ordering::Relaxed);
        self.keep.shared.store(true, Ordering::Release);
        std::mem::forget(self.clone());
    }

    /// True once it was [exposed](Memory::expose).
    pub(crate) fn is_exposed(&self) -> bool {
        self.keep.exposed.load(Ordering::Relaxed)
    }

    /// Host code has the elements in place.
    pub(super) fn note_cells(&self) {
        self.keep.celled.store(true, Ordering::Relaxed);
    }

    /// True if host code may have the elements in place. Known on the home thread.
    pub(crate) fn has_cells(&self) -> bool {
        self.keep.celled.load(Ordering::Relaxed)
    }

    /// True if tilewire has allocated it for one thread and nobody else knows of it: no owner of foreign memory, no
    /// device, no peer.
    pub(crate) fn is_private(&self) -> bool {
        let is_private = matches!(&self.keep.held, Held::Own(_, alive) if (**alive).is::<Block>());
        is_private && !self.keep.is_shared()
    }

    /// A handle that names the same bytes, and neither reaches them nor keeps them alive. For comparisons of addresses.
    pub(crate) fn place(&self) -> Memory {
        let place = Memory::of(self.start, 0, self.keep.reach.clone(), Held::Device(Arc::new(Nowhere)));
        Memory { keep: place.keep, ..self.clone() }
    }

    /// A handle to the same bytes for kernels that another thread runs. It keeps the bytes alive.
    ///
    /// # Safety
    /// The bytes must be in the host's reach and not lent. While a kernel of another thread may touch them, the home
    /// thread must not, unless they are shared or [exposed](Memory::expose); signals must order what both do.
    pub(crate) unsafe fn for_other_threads(&self) -> Memory {
        let (reach, kept) = (self.keep.reach.clone(), Held::Shared(self.keep.clone()));
        Memory::of_rows(self.start, self.rows, reach, kept, None)
    }

    /// What keeps the bytes of host memory alive, if it is of this type.
    pub(crate) fn kept_by<T: Any>(&self) -> Option<&T> {
        match &self.keep.held {
            Held::Own(_, alive) | Held::Shared(alive) => {
                let with = alive.downcast_ref::<AliveWith>();
                with.map_or(alive, |with| &with.alive).downcast_ref()
            }
            Held::Device(_) => None,
        }
    }

    /// The only thread whose calls may run CPU-engine kernels on the bytes. `None` if any thread's calls may.
    pub(crate) fn home(&self) -> Option<HomeThread> {
        match self.access() {
            Access::Own(home) => Some(home),
            Access::Shared | Access::Device(_) => None,
        }
    }

    /// A part of this memory, sharing its bytes.
    ///
    /// # Panics
    /// If the part does not lie inside, or in one row of memory with gaps.
    pub fn part(&self, offset: usize, bytes: usize) -> Memory {
        let end = offset.checked_add(bytes).expect("part fits the address space");
        assert!(end <= self.bytes(), "part {offset}..{end} of memory of {} bytes", self.bytes());
        self.rows_at(offset, Rows::one(bytes))
    }

    /// Rows of this memory that begin at an offset, sharing their bytes.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub(super) fn rows_at(&self, offset: usize, rows: Rows) -> Memory {
        assert!(self.rows.contain(offset, &rows), "{rows:?} at byte {offset} of {self:?}: not inside its rows");
        // Inside or one past the end, so it is as valid as the start, on the host and on a device.
        let start = NonNull::new(self.start.as_ptr().wrapping_add(offset)).expect("memory does not wrap");
        let purpose = if rows == self.rows { self.purpose } else { self.purpose.of_part() };
        Memory { start, rows, purpose, ..self.clone() }
    }

    /// This memory, marked with a purpose. Parameters bound to it take on that purpose.
    pub fn for_purpose(self, purpose: Purpose) -> Memory {
        Memory { purpose, ..self }
    }

    /// The same bytes under new handles, which keep `guard` alive, too.
    ///
    /// # Panics
    /// For memory of one thread: the new handles would not know when it becomes shared.
    pub(crate) fn holding(self, guard: Guard) -> Memory {
        let held = match &self.keep.held {
            Held::Own(..) => panic!("{self:?} is one thread's own"),
            Held::Shared(alive) => Held::Shared(Arc::new(AliveWith { alive: alive.clone(), guard })),
            Held::Device(bytes) => Held::Device(Arc::new(Guarded { bytes: bytes.clone(), guard })),
        };
        Memory { keep: Memory::of(self.start, 0, self.keep.reach.clone(), held).keep, ..self }
    }

    /// The same memory with another operation number, if it carries one.
    ///
    /// # Panics
    /// If the number is not less than [`Between::OPERATIONS`].
    pub fn for_operation(self, operation: u16) -> Memory {
        assert!(operation < Between::OPERATIONS, "operation {operation}: there are {}", Between::OPERATIONS);
        Memory { operation, ..self }
    }

    /// This memory as a replacement for `other`: it carries the same purpose and operation.
    pub fn stands_for(self, other: &Memory) -> Memory {
        Memory { purpose: other.purpose, operation: other.operation, ..self }
    }

    /// The purpose of the memory.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The ranks between which the words or packets in this memory travel, if there are any.
    pub fn between(&self) -> Option<Between> {
        let Purpose::Transfer { from, to, .. } = self.purpose else { return None };
        let operation = self.purpose.is_matched().then_some(self.operation);
        let travels = operation.is_some() || self.purpose.is_credit() || self.purpose.is_signal();
        travels.then_some(Between { from, to, operation })
    }

    /// The operation that its words or packets carry, if any. Marked if the words are in step.
    pub fn operation(&self) -> Option<u16> {
        let is_in_step = matches!(self.purpose, Purpose::Transfer { part: Part::Tail, .. });
        let mark = if is_in_step && self.operation >= Between::OWN { matching::IN_STEP } else { 0 };
        self.purpose.is_matched().then_some(self.operation | mark)
    }

    /// Describes what travels in it.
    fn what(&self) -> String {
        match self.between() {
            Some(Between { from, to, operation: Some(_) }) => format!("data from rank {from} to rank {to}"),
            Some(Between { from, to, .. }) if self.purpose.is_signal() => {
                format!("signals from rank {from} to rank {to}")
            }
            Some(Between { from, to, .. }) => format!("credits for data from rank {from} to rank {to}"),
            None if self.purpose.is_matched() => "data of all ranks".to_string(),
            None => "no signals of a transport's endpoint".to_string(),
        }
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Size in bytes, from the first byte to the last. Memory with gaps between its rows [covers](Memory::covered)
    /// less.
    pub fn bytes(&self) -> usize {
        self.rows.span()
    }

    /// Number of bytes in its rows, without gaps.
    pub fn covered(&self) -> usize {
        self.rows.covered()
    }

    /// True if its bytes have no gaps.
    pub fn is_contiguous(&self) -> bool {
        self.rows.is_one()
    }

    /// Its rows.
    pub(crate) fn rows(&self) -> Rows {
        self.rows
    }

    /// Its rows as contiguous memories, with the offset of each.
    ///
    /// ```
    /// use tilewire::Tensor;
    /// let columns = Tensor::<u16>::zeros(12).reshape(3, 4)?.columns(1..3);
    /// let runs: Vec<(usize, usize)> = columns.memory().runs().map(|(at, row)| (at, row.bytes())).collect();
    /// assert_eq!(runs, [(0, 4), (8, 4), (16, 4)]);
    /// # Ok::<(), tilewire::tensor::ShapeError>(())
    /// ```
    pub fn runs(&self) -> impl Iterator<Item = (usize, Memory)> + '_ {
        let Rows { count, width, stride } = self.rows;
        (0..count).map(move |row| (row * stride, self.part(row * stride, width)))
    }

    /// True if other threads, processes or devices may write the bytes at any time. Host code then uses atomics only.
    pub fn is_shared(&self) -> bool {
        matches!(self.access(), Access::Shared)
    }

    /// True if two handles share a byte. Interleaved columns of one matrix share none.
    pub fn overlaps(&self, other: &Memory) -> bool {
        self.rows.overlap(self.start.addr().get(), &other.rows, other.start.addr().get())
    }

    /// The part of this memory that begins at an offset and has the rows, the purpose and the operation of another
    /// memory.
    ///
    /// # Panics
    /// If there is no such part.
    pub(crate) fn part_like(&self, other: &Memory, offset: usize) -> Memory {
        self.rows_at(offset, other.rows).stands_for(other)
    }

    /// The offset of another handle's bytes in this one's, if they all are among them.
    pub(crate) fn offset_of(&self, other: &Memory) -> Option<usize> {
        let offset = other.start.addr().get().checked_sub(self.start.addr().get())?;
        self.rows.contain(offset, &other.rows).then_some(offset)
    }

    /// True if two handles refer to the same bytes.
    pub fn is(&self, other: &Memory) -> bool {
        self.start == other.start && self.rows == other.rows
    }
}

/// Two banks of one table, one of which carries an operation number while the other does not. An engine writes and
/// compares all words of a parameter in the same way, so one of the two would be miscounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MixedBanks {
    /// The first bank whose words or packets carry a number, and its description.
    pub carries: (usize, String),
    /// The first bank whose words or packets carry none, and its description.
    pub bare: (usize, String),
}

impl MixedBanks {
    /// Finds a mix in these banks.
    pub fn of(banks: &[Memory]) -> Option<MixedBanks> {
        let first = |carries: bool| {
            let (bank, memory) = banks.iter().enumerate().find(|(_, it)| it.operation().is_some() == carries)?;
            Some((bank, memory.what()))
        };
        Some(MixedBanks { carries: first(true)?, bare: first(false)? })
    }

    /// Explains why these banks cannot be bound to a parameter that an engine treats as matched, or as unmatched. A
    /// kernel traced with them has no such parameter, but its arguments may have been replaced since. In a matched
    /// parameter, a user's own memory belongs to operation 0.
    pub(crate) fn objection(banks: &[Memory], is_matched: bool) -> Option<String> {
        if let Some(mixed) = MixedBanks::of(banks) {
            return Some(mixed.to_string());
        }
        let is_credit = |bank: &Memory| bank.purpose.is_credit();
        let why = match is_matched {
            false if banks.iter().any(|bank| bank.operation().is_some()) => {
                "its signals carry an operation number, but the kernel was traced without one: trace it with this memory"
            }
            true if banks.iter().any(is_credit) => {
                "its words are credits, which carry no operation number, but the kernel was traced with one: trace it with this memory"
            }
            _ => return None,
        };
        Some(why.to_string())
    }
}

impl fmt::Display for MixedBanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MixedBanks { carries: (carries, data), bare: (bare, other) } = self;
        write!(
            f,
            "bank {carries} carries the number of its operation ({data}), and bank {bare} carries none ({other}): one of them would be \
             counted wrongly. Declare a table for each kind: tail, ready, done and packets carry it, head, packet_head, staging and memory \
             of your own do not"
        )
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rows {
            Rows { count: 1, width, .. } => write!(f, "Memory({:p}, {width} bytes)", self.start),
            Rows { count, width, stride } => {
                write!(f, "Memory({:p}, {count} rows of {width} bytes, {stride} apart)", self.start)
            }
        }
    }
}
