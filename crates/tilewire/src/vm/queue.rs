//! The descriptor ring between kernels and a network proxy: many producers (blocks and roles), one consumer.
//!
//! ```text
//!  byte 0    taken: u64    descriptors the consumer is done with
//!  byte 64   tickets: u64  descriptors producers have begun
//!  byte 128  capacity: u64, a power of two
//!  byte 192  entry 0, entry 1, …: 64 bytes each: {turn, peer, kind, x, y, z}
//! ```
//! A producer takes ticket t if t − taken < capacity, fills entry t mod capacity, and publishes it by storing t + 1 as
//! its turn (release). The consumer reads an entry when its turn is taken + 1 (acquire) and frees it by storing taken
//! (release). All counters only grow.

use crate::sync::{AtomicU64, Ordering};
use crate::tensor::Memory;

const TICKETS: usize = 64;
const CAPACITY: usize = 128;
const ENTRIES: usize = 192;
const ENTRY: usize = 64;

/// Work for the proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// Destination rank.
    pub peer: u64,
    /// What to do there.
    pub work: Work,
}

/// What a descriptor asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Copy `bytes` bytes from local address `src` to byte `dst` of the peer's region.
    Copy {
        /// Local address.
        src: u64,
        /// Byte offset in the peer's region.
        dst: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// Set slot `index` at the peer to `value`, after the data of earlier copies to it.
    Signal {
        /// Which slot.
        index: u64,
        /// New value.
        value: u64,
    },
}

/// The consumer's end of a ring, which owns the ring. It may be on another thread than the one that launches kernels.
#[derive(Debug)]
pub struct Queue {
    memory: Memory,
    /// Not read back from the ring, where any holder of its memory could have changed it.
    capacity: u64,
}

impl Queue {
    /// An empty ring that holds at least `capacity` descriptors.
    pub fn new(capacity: usize) -> Queue {
        let capacity = capacity.max(1).next_power_of_two();
        let memory = Memory::zeroed_shared(ENTRIES + capacity * ENTRY);
        // SAFETY: the memory is at least `ENTRIES` bytes and 64-byte aligned.
        unsafe { word(memory.start().as_ptr(), CAPACITY) }.store(capacity as u64, Ordering::Relaxed);
        Queue { memory, capacity: capacity as u64 }
    }

    /// The memory to bind to a `Queue` parameter.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The oldest descriptor, if there is one.
    pub fn pop(&self) -> Option<Descriptor> {
        let ring = self.memory.start().as_ptr();
        // SAFETY: `new` made the ring; entry addresses are inside it because they are taken modulo its capacity.
        unsafe {
            let taken = word(ring, 0).load(Ordering::Relaxed);
            let entry = ENTRIES + (taken & (self.capacity - 1)) as usize * ENTRY;
            if word(ring, entry).load(Ordering::Acquire) != taken.wrapping_add(1) {
                return None;
            }
            let field = |k: usize| word(ring, entry + 8 * k).load(Ordering::Relaxed);
            let work = match field(2) {
                0 => Work::Copy { src: field(3), dst: field(4), bytes: field(5) },
                _ => Work::Signal { index: field(3), value: field(4) },
            };
            let descriptor = Descriptor { peer: field(1), work };
            word(ring, 0).store(taken.wrapping_add(1), Ordering::Release);
            Some(descriptor)
        }
    }
}

/// The capacity of the ring in a memory; `None` if it is not a ring.
pub(crate) fn capacity(memory: &Memory) -> Option<u64> {
    // Host code writes a thread's own memory with plain accesses, so it cannot hold words that a proxy's thread reads.
    if !memory.is_shared() {
        return None;
    }
    let entries = memory.bytes().checked_sub(ENTRIES)? / ENTRY;
    let aligned = (memory.start().as_ptr() as usize).is_multiple_of(64);
    if !aligned || !entries.is_power_of_two() {
        return None;
    }
    // SAFETY: the memory has at least `ENTRIES` bytes and is aligned.
    let word = unsafe { word(memory.start().as_ptr(), CAPACITY) }.load(Ordering::Relaxed);
    (word == entries as u64).then_some(word)
}

/// Bytes of a ring.
pub(crate) fn ring_bytes(capacity: u64) -> u64 {
    (ENTRIES as u64).saturating_add(capacity.saturating_mul(ENTRY as u64))
}

/// Appends a descriptor; false if the ring is full.
///
/// # Safety
/// `ring` is aligned to 64 and valid for [`ring_bytes`] of `capacity`, a power of two.
pub(crate) unsafe fn push(ring: *mut u8, capacity: u64, descriptor: &Descriptor) -> bool {
    // SAFETY: the caller's promise; entry addresses are inside the ring because they are taken modulo its capacity.
    unsafe {
        let mut ticket = word(ring, TICKETS).load(Ordering::Relaxed);
        loop {
            // Acquire: the consumer's reads of the entry are done before it is written again.
            if ticket.wrapping_sub(word(ring, 0).load(Ordering::Acquire)) >= capacity {
                return false;
            }
            let next = word(ring, TICKETS).compare_exchange_weak(
                ticket,
                ticket.wrapping_add(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match next {
                Ok(_) => break,
                Err(seen) => ticket = seen,
            }
        }
        let entry = ENTRIES + (ticket & (capacity - 1)) as usize * ENTRY;
        let fields = match descriptor.work {
            Work::Copy { src, dst, bytes } => [0, src, dst, bytes],
            Work::Signal { index, value } => [1, index, value, 0],
        };
        word(ring, entry + 8).store(descriptor.peer, Ordering::Relaxed);
        for (k, field) in fields.into_iter().enumerate() {
            word(ring, entry + 16 + 8 * k).store(field, Ordering::Relaxed);
        }
        word(ring, entry).store(ticket.wrapping_add(1), Ordering::Release);
        true
    }
}

/// # Safety
/// `ring + offset` is valid and aligned for a u64 for as long as the result is used.
unsafe fn word<'r>(ring: *mut u8, offset: usize) -> &'r AtomicU64 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(ring.add(offset).cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_refuses_and_an_emptied_one_takes_again_in_order() {
        let queue = Queue::new(4);
        let ring = queue.memory().start().as_ptr();
        let signal = |value| Descriptor { peer: 1, work: Work::Signal { index: 7, value } };
        for lap in 0..3 {
            for k in 0..4 {
                // SAFETY: the memory of a queue.
                assert!(unsafe { push(ring, 4, &signal(lap * 4 + k)) });
            }
            // SAFETY: the memory of a queue.
            assert!(!unsafe { push(ring, 4, &signal(99)) });
            for k in 0..4 {
                assert_eq!(queue.pop(), Some(signal(lap * 4 + k)));
            }
            assert_eq!(queue.pop(), None);
        }
    }
}
