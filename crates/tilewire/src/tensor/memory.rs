//! A handle to memory that stays alive as long as the handle.

use super::block::Block;
use super::memory_left::{MemoryLeft, NoMemory};
use crate::ir::{Part, Purpose, matching};
use std::any::Any;
use std::error::Error;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes in host memory or on a device, shared by every clone of the handle and freed (or the keep-alive dropped) with the last.
///
/// The handle is neither `Send` nor `Sync`: a rank's tensors, and the prepared kernels that hold them, live on the rank's
/// thread. That is what makes host access to a tensor sound without a lock: a launch from this thread has returned before
/// the next line runs.
#[derive(Clone)]
pub struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    /// Whether other threads or processes may write the bytes at any time.
    shared: bool,
    purpose: Purpose,
    /// The operation that its words or packets carry, where the purpose says that they carry one.
    operation: u16,
    keep: Keep,
}

/// Between which ranks words or packets travel that lie in memory of a transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Between {
    /// The rank that sends the data these words or packets belong to.
    pub from: u32,
    /// The rank that receives it.
    pub to: u32,
    /// The operation that they carry, fewer than [`Between::OPERATIONS`]: so that a launch which waits for another one's words finds out (see
    /// [`Purpose::is_matched`]). None of credits, which may be older than the launch.
    pub operation: Option<u16>,
}

impl Between {
    /// Numbers of operations are 15 bits: what a packet's flag has room for.
    pub const OPERATIONS: u16 = 1 << 15;
    /// Those of kernels of a user's own. The others are the collectives'.
    pub const OWN: u16 = Self::OPERATIONS / 2;
}

/// What keeps the bytes alive.
#[derive(Clone)]
enum Keep {
    Host(#[expect(dead_code, reason = "dropped with the last handle")] Rc<dyn Any>),
    Device(Rc<dyn DeviceBytes>),
}

/// Bytes that host code cannot touch, only copy: those of a GPU. Dropped with the last handle to them.
pub trait DeviceBytes {
    /// Number of the device.
    fn device(&self) -> u32;

    /// Whether kernels of a device may use the bytes.
    fn is_reached_from(&self, device: u32) -> bool {
        self.device() == device
    }

    /// Copies from the device, after what this thread has launched there.
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Box<dyn Error>>;

    /// Copies to the device, after what this thread has launched there; the bytes are there when it returns.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Box<dyn Error>>;
}

impl Memory {
    /// Alignment of a page or more that tilewire allocates itself, at least: one page, so that vector accesses never split and
    /// non-temporal stores and registration with a NIC need no special case.
    pub const ALIGN: usize = 4096;

    /// Fresh zeroed memory.
    ///
    /// # Panics
    /// When there is none; [`try_zeroed`](Memory::try_zeroed) says so without, before the system ends the process for it.
    pub fn zeroed(bytes: usize) -> Memory {
        Memory::fresh(bytes).unwrap_or_else(|| panic!("{}", NoMemory { bytes, shortage: None }))
    }

    /// Fresh zeroed memory, where the machine and the control group of this process have that much left.
    pub fn try_zeroed(bytes: usize) -> Result<Memory, NoMemory> {
        // For small requests the files are not worth reading: what is left changes by as much at any time.
        if bytes >= Memory::COMPARED {
            MemoryLeft::now().check(bytes as u64).map_err(|shortage| NoMemory { bytes, shortage: Some(shortage) })?;
        }
        Memory::fresh(bytes).ok_or(NoMemory { bytes, shortage: None })
    }

    /// Requests of this size or more are compared with what is left.
    const COMPARED: usize = 1 << 20;

    fn fresh(bytes: usize) -> Option<Memory> {
        let align = if bytes >= Memory::ALIGN { Memory::ALIGN } else { 64 };
        let block = Block::zeroed(bytes, align)?;
        Some(Memory {
            start: block.start(),
            bytes,
            shared: false,
            purpose: Purpose::Own,
            operation: 0,
            keep: Keep::Host(Rc::new(block)),
        })
    }

    /// Memory of somebody else, kept alive by `keep`.
    ///
    /// # Safety
    /// `start..start + bytes` must be valid for reads and writes, and initialised, until `keep` is dropped, and while a kernel that has it
    /// runs nobody else may touch it except by the protocols of tilewire.
    pub unsafe fn foreign(start: NonNull<u8>, bytes: usize, keep: Rc<dyn Any>) -> Memory {
        Memory { start, bytes, shared: false, purpose: Purpose::Own, operation: 0, keep: Keep::Host(keep) }
    }

    /// As [`Memory::foreign`], for memory that peers (other threads or processes) may write at any time.
    ///
    /// # Safety
    /// `start..start + bytes` must be valid for reads and writes, and initialised, until `keep` is dropped; nobody may hold a
    /// reference to it.
    pub unsafe fn shared(start: NonNull<u8>, bytes: usize, keep: Rc<dyn Any>) -> Memory {
        Memory { start, bytes, shared: true, purpose: Purpose::Own, operation: 0, keep: Keep::Host(keep) }
    }

    /// Memory of a device: the host never follows its address, `keep` copies for it.
    ///
    /// # Safety
    /// `address..address + bytes` must be memory of `keep`'s device, valid for kernels there until `keep` is dropped.
    ///
    /// # Panics
    /// At address 0.
    pub unsafe fn on_device(address: u64, bytes: usize, keep: Rc<dyn DeviceBytes>) -> Memory {
        let start = NonNull::new(std::ptr::without_provenance_mut(address as usize)).expect("memory is not at 0");
        Memory { start, bytes, shared: false, purpose: Purpose::Own, operation: 0, keep: Keep::Device(keep) }
    }

    /// The device that has the bytes; none: the host.
    pub fn device(&self) -> Option<u32> {
        match &self.keep {
            Keep::Host(_) => None,
            Keep::Device(bytes) => Some(bytes.device()),
        }
    }

    /// Whether kernels of a device may use the bytes.
    pub fn is_reached_from(&self, device: u32) -> bool {
        match &self.keep {
            Keep::Host(_) => false,
            Keep::Device(bytes) => bytes.is_reached_from(device),
        }
    }

    /// A part of this memory; shares it.
    ///
    /// # Panics
    /// When the part does not lie inside.
    pub fn part(&self, offset: usize, bytes: usize) -> Memory {
        let end = offset.checked_add(bytes).expect("part fits the address space");
        assert!(end <= self.bytes, "part {offset}..{end} of memory of {} bytes", self.bytes);
        let start = match self.keep {
            // SAFETY: `offset` is at most `self.bytes`, so the result is inside or one past the same allocation.
            Keep::Host(_) => unsafe { self.start.add(offset) },
            Keep::Device(_) => self.start.map_addr(|start| start.saturating_add(offset)),
        };
        let Memory { shared, purpose, operation, .. } = *self;
        Memory { start, bytes, shared, purpose, operation, keep: self.keep.clone() }
    }

    /// This memory, for a purpose: a parameter that is bound to it says so.
    pub fn for_purpose(self, purpose: Purpose) -> Memory {
        Memory { purpose, ..self }
    }

    /// The same memory with the number of another operation, where it carries one.
    ///
    /// # Panics
    /// When there is no such number: see [`Between::OPERATIONS`].
    pub fn for_operation(self, operation: u16) -> Memory {
        assert!(operation < Between::OPERATIONS, "operation {operation}: there are {}", Between::OPERATIONS);
        Memory { operation, ..self }
    }

    /// Other memory that is to be used in place of this: what travels in it is the same.
    pub(crate) fn stands_for(self, other: &Memory) -> Memory {
        Memory { purpose: other.purpose, operation: other.operation, ..self }
    }

    /// What it is for.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Between which ranks the words or packets that lie in it travel, where that is so.
    pub fn between(&self) -> Option<Between> {
        let Purpose::Transfer { from, to, .. } = self.purpose else { return None };
        let operation = self.purpose.is_matched().then_some(self.operation);
        (operation.is_some() || self.purpose.is_credit()).then_some(Between { from, to, operation })
    }

    /// What its words or packets carry, if they do: the operation, and whether words are in step.
    pub fn operation(&self) -> Option<u16> {
        let is_in_step = matches!(self.purpose, Purpose::Transfer { part: Part::Tail, .. });
        let mark = if is_in_step && self.operation >= Between::OWN { matching::IN_STEP } else { 0 };
        self.purpose.is_matched().then_some(self.operation | mark)
    }

    /// What travels in it, in words.
    fn what(&self) -> String {
        match self.between() {
            Some(Between { from, to, operation: Some(_) }) => format!("data from rank {from} to rank {to}"),
            Some(Between { from, to, .. }) => format!("credits for data from rank {from} to rank {to}"),
            None if self.purpose.is_matched() => "data of all ranks".to_string(),
            None => "no signals of a transport's endpoint".to_string(),
        }
    }

    /// First byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether other threads or processes may write the bytes at any time.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// A copy of the bytes. (To write bytes, use a `Tensor<u8>` and its memory: writing any byte through an untyped handle could
    /// make an invalid `bool` of a `Tensor<bool>`.) Of shared memory, bytes that a peer writes meanwhile are the old or the new ones.
    ///
    /// # Panics
    /// When a copy from a device fails.
    pub fn read(&self) -> Vec<u8> {
        if let Keep::Device(device) = &self.keep {
            let mut out = vec![0; self.bytes];
            copied(device.read(self.start.addr().get() as u64, &mut out), "from");
            return out;
        }
        if self.shared {
            // SAFETY: the bytes are valid for reads and initialised while the handle lives (`shared`), and no reference to them
            // exists, so peers' writes meet only atomic loads here.
            let byte = |at| unsafe { AtomicU8::from_ptr(self.start.as_ptr().add(at)) }.load(Ordering::Relaxed);
            return (0..self.bytes).map(byte).collect();
        }
        // SAFETY: the bytes are valid for reads and initialised (zeroed at first, or promised by `foreign`) and the handle keeps
        // them alive. Nobody writes during the copy: handles never leave this thread, and kernels run only inside calls made
        // on this thread. The borrow ends with the copy, so no reference outlives a later write through another handle.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }.to_vec()
    }

    /// Overwrites bytes on a device. Private to `tensor`, which knows what elements are.
    ///
    /// # Panics
    /// When they do not lie inside, the memory is the host's, or the copy fails.
    pub(super) fn write_device(&self, offset: usize, bytes: &[u8]) {
        let to = self.part(offset, bytes.len());
        let Keep::Device(device) = &self.keep else { panic!("{self:?} is the host's") };
        copied(device.write(to.start.addr().get() as u64, bytes), "to");
    }

    /// Whether two handles share a byte.
    pub fn overlaps(&self, other: &Memory) -> bool {
        let (a, b) = (self.start.as_ptr() as usize, other.start.as_ptr() as usize);
        self.bytes > 0 && other.bytes > 0 && a < b + other.bytes && b < a + self.bytes
    }

    /// Whether two handles are the same bytes.
    pub fn is(&self, other: &Memory) -> bool {
        self.start == other.start && self.bytes == other.bytes
    }
}

/// Two banks of one table of which one carries the number of an operation and the other does not. An engine writes and compares all words
/// of a parameter in one way, so one of the two would be counted wrongly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MixedBanks {
    /// The first bank whose words or packets carry a number, and what it is.
    pub carries: (usize, String),
    /// The first whose do not.
    pub bare: (usize, String),
}

impl MixedBanks {
    /// Where these banks mix.
    pub fn of(banks: &[Memory]) -> Option<MixedBanks> {
        let first = |carries: bool| {
            let (bank, memory) = banks.iter().enumerate().find(|(_, it)| it.operation().is_some() == carries)?;
            Some((bank, memory.what()))
        };
        Some(MixedBanks { carries: first(true)?, bare: first(false)? })
    }

    /// Why a parameter that an engine treats as matched, or not, cannot be bound to these banks. A kernel that was traced with them has no
    /// such parameter; its arguments may have been replaced since. Memory of one's own is of operation 0 in a matched one.
    pub(crate) fn objection(banks: &[Memory], is_matched: bool) -> Option<String> {
        if let Some(mixed) = MixedBanks::of(banks) {
            return Some(mixed.to_string());
        }
        let is_credit = |bank: &Memory| bank.purpose.is_credit();
        let why = match is_matched {
            false if banks.iter().any(|bank| bank.operation().is_some()) => {
                "its signals carry the number of an operation, and the kernel was traced without: trace it with this memory"
            }
            true if banks.iter().any(is_credit) => {
                "its words are credits, which carry no number of an operation, and the kernel was traced with: trace it with this memory"
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

/// A copy that fails leaves nothing to go on with: the device or its driver is gone, and every later launch says so too.
fn copied(result: Result<(), Box<dyn Error>>, direction: &str) {
    if let Err(error) = result {
        panic!("a copy {direction} a device failed: {error}");
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:p}, {} bytes)", self.start, self.bytes)
    }
}
