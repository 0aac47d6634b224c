//! The memory of a descriptor ring, which has many producers (blocks and roles of kernels) and one consumer (the
//! network proxy). [`ir::ring`](crate::ir::ring) defines its layout and rules.
//!
//! The producers of a ring are kernels of the CPU engine, or kernels of one GPU. They cannot be mixed, because a GPU's
//! atomics on the tickets are not atomic for others. [`push`] is the CPU's code, and `ptx/post.rs` the GPU's.
//!
//! **The consumer trusts nothing in the ring**, because kernels can write all of it. It counts the entries that it has
//! taken in memory of its own. The count in the ring (`TAKEN`) is a copy for producers, which the consumer only writes.
//! A kernel that overwrites this copy makes producers wait or write too early, and harms only its own posts. A copy
//! that producers read too large lets them overwrite entries that were not taken. The consumer finds out by the turn of
//! an entry, which has two legal values: that of the awaited entry, and that of the previous lap. The words of an entry
//! are read once, and checked afterwards.
use super::Purpose;
use super::memory::Memory;
use crate::ir::ring::{ENTRIES, ENTRY, Posted, TAKEN, TICKETS, TICKETS_BYTES, WORDS, entries_bytes};
use crate::sync::{AtomicU64, Ordering};

/// The consumer's end of a ring, which owns the ring. The consumer may be another thread than the one that launches
/// kernels.
#[derive(Debug)]
pub struct Ring {
    entries: Memory,
    tickets: Memory,
    /// The capacity. It is never read from the ring, where kernels could have changed it.
    capacity: u64,
    /// The number of entries taken. It is never read from the ring either. Relaxed: only the consumer uses it, and
    /// threads that consume in turn hand it on by a lock.
    taken: AtomicU64,
}

/// The argument for a `Queue` parameter of a kernel: a ring, and the region at the peers that the posts write.
#[derive(Clone, Debug)]
pub struct Queue {
    /// The entries and the tickets.
    pub(crate) memories: [Memory; 2],
    /// The number of the region in the proxy's table.
    pub(crate) target: u16,
    /// The number of entries that the ring holds; 0 if the queue only names a ring.
    capacity: u64,
}

/// An entry of a ring that no producer writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadEntry {
    /// The first word of the entry, or its turn if that is wrong.
    pub head: u64,
}

impl Ring {
    /// An empty ring in the host's memory, with room for at least `capacity` entries.
    pub fn new(capacity: usize) -> Ring {
        let capacity = capacity.max(1).next_power_of_two();
        let entries = Memory::zeroed_shared(entries_bytes(capacity as u64) as usize);
        Ring::over(entries, Memory::zeroed_shared(TICKETS_BYTES)).expect("memory of the right size")
    }

    /// An empty ring in zeroed memory: entries that the host reads, and tickets where the kernels run. Returns `None`
    /// if the sizes or alignments are not those of a ring, or if the memory is not shared. A thread's own memory does
    /// not work, because host code writes it without atomics while a proxy's thread would read it.
    pub fn over(entries: Memory, tickets: Memory) -> Option<Ring> {
        let aligned = |memory: &Memory| (memory.start().as_ptr() as usize).is_multiple_of(64);
        let shared = entries.is_shared() && entries.reachable_from().host && tickets.home().is_none();
        let capacity = (entries.bytes().checked_sub(ENTRIES)? / ENTRY) as u64;
        let fits = capacity.is_power_of_two() && tickets.bytes() >= TICKETS_BYTES;
        if !(shared && fits && aligned(&entries) && aligned(&tickets)) {
            return None;
        }
        Some(Ring { entries, tickets, capacity, taken: AtomicU64::new(0) })
    }

    /// The size in bytes of the entries of a ring. `capacity` must be a power of two.
    pub const fn bytes_of_entries(capacity: usize) -> usize {
        entries_bytes(capacity as u64) as usize
    }

    /// The size of the tickets in bytes.
    pub const BYTES_OF_TICKETS: usize = TICKETS_BYTES;

    /// The queue that kernels bind to post to region `target` of a peer.
    pub fn queue(&self, target: u16) -> Queue {
        Queue { memories: [self.entries.clone(), self.tickets.clone()], target, capacity: self.capacity }
    }

    /// The entries. Their address identifies the ring.
    pub fn entries(&self) -> &Memory {
        &self.entries
    }

    /// Takes the oldest entry, if there is one. Only one thread at a time may take entries, because two could get the
    /// same one.
    pub fn pop(&self) -> Option<Result<Posted, BadEntry>> {
        let ring = self.entries.start().as_ptr();
        let (taken, entry) = self.next();
        // SAFETY: `over` made the ring; entry addresses are inside it because they are taken modulo its capacity.
        unsafe {
            // Acquire: the producer's stores to the entry, and to the bytes that it names, come before this load.
            let turn = word(ring, entry).load(Ordering::Acquire);
            if turn != taken.wrapping_add(1) {
                // The turn of the previous lap, or of an entry that was never written.
                let before = taken.wrapping_add(1).saturating_sub(self.capacity);
                return (turn != before).then_some(Err(BadEntry { head: turn }));
            }
            let words = std::array::from_fn(|k| word(ring, entry + 8 * (k + 1)).load(Ordering::Relaxed));
            self.taken.store(taken.wrapping_add(1), Ordering::Relaxed);
            // Release: the loads above come before a producer's next stores to the entry.
            word(ring, TAKEN).store(taken.wrapping_add(1), Ordering::Release);
            Some(Posted::of_words(words).ok_or(BadEntry { head: words[0] }))
        }
    }

    /// True if [`pop`](Ring::pop) would find nothing.
    pub fn is_empty(&self) -> bool {
        let (taken, entry) = self.next();
        // SAFETY: as in `pop`.
        let turn = unsafe { word(self.entries.start().as_ptr(), entry).load(Ordering::Acquire) };
        turn == taken.wrapping_add(1).saturating_sub(self.capacity)
    }

    /// The number of entries taken, and the offset of the next one.
    fn next(&self) -> (u64, usize) {
        let taken = self.taken.load(Ordering::Relaxed);
        (taken, ENTRIES + (taken & (self.capacity - 1)) as usize * ENTRY)
    }
}

impl Queue {
    /// The entries, as kernels bind them.
    pub fn entries(&self) -> &Memory {
        &self.memories[0]
    }

    /// The tickets, as kernels bind them.
    pub fn tickets(&self) -> &Memory {
        &self.memories[1]
    }

    /// The number of the region at the peers.
    pub fn target(&self) -> u16 {
        self.target
    }

    /// The same queue, for posts to another region at the peers.
    pub(crate) fn for_region(self, target: u16) -> Queue {
        Queue { target, ..self }
    }

    /// The same queue for notices with this purpose.
    pub fn for_purpose(self, purpose: Purpose) -> Queue {
        Queue { memories: self.memories.map(|memory| memory.for_purpose(purpose)), ..self }
    }

    /// The same queue for notices of this operation, if they carry an operation.
    ///
    /// # Panics
    /// As [`Memory::for_operation`].
    pub fn for_operation(self, operation: u16) -> Queue {
        Queue { memories: self.memories.map(|memory| memory.for_operation(operation)), ..self }
    }

    /// True if both name the same ring and region.
    pub fn is(&self, other: &Queue) -> bool {
        self.target == other.target && self.entries().is(other.entries())
    }

    /// The capacity of the ring, for kernels on the CPU; `None` if they cannot fill the ring.
    pub(crate) fn capacity(&self) -> Option<u64> {
        (self.capacity > 0 && self.memories.iter().all(|memory| memory.reachable_from().host)).then_some(self.capacity)
    }

    /// The capacity of the ring, for kernels of a device; `None` if they cannot fill the ring.
    pub(crate) fn device_capacity(&self, device: u32) -> Option<u64> {
        let reached = |memory: &Memory| memory.reachable_from().is_device(device);
        (self.capacity > 0 && self.memories.iter().all(reached)).then_some(self.capacity)
    }
}

/// A memory that stands for a ring in a plan to check, with region 0.
impl From<&Memory> for Queue {
    fn from(ring: &Memory) -> Queue {
        Queue { memories: [ring.clone(), ring.clone()], target: 0, capacity: 0 }
    }
}

impl From<&Queue> for Queue {
    fn from(queue: &Queue) -> Queue {
        queue.clone()
    }
}

/// Appends an entry with these words, which follow its turn. Returns false if the ring is full.
///
/// # Safety
/// `entries` and `tickets` are aligned to 64 and valid for [`entries_bytes`] of `capacity`, a power of two, and for
/// [`TICKETS_BYTES`].
pub(crate) unsafe fn push(entries: *mut u8, tickets: *mut u8, capacity: u64, words: &[u64; WORDS]) -> bool {
    // SAFETY: the caller's promise; entry addresses are inside the ring because they are taken modulo its capacity.
    unsafe {
        let tickets = word(tickets, TICKETS);
        let mut ticket = tickets.load(Ordering::Relaxed);
        loop {
            // Acquire: the consumer's reads of the entry are done before it is written again.
            let used = ticket.wrapping_sub(word(entries, TAKEN).load(Ordering::Acquire));
            // A negative number means that another producer took this ticket and the consumer is done with it. Then the
            // exchange below fails, because the acquire orders it after that producer's exchange.
            if used as i64 >= capacity as i64 {
                return false;
            }
            let next = ticket.wrapping_add(1);
            match tickets.compare_exchange_weak(ticket, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(seen) => ticket = seen,
            }
        }
        let entry = ENTRIES + (ticket & (capacity - 1)) as usize * ENTRY;
        for (k, &x) in words.iter().enumerate() {
            word(entries, entry + 8 * (k + 1)).store(x, Ordering::Relaxed);
        }
        word(entries, entry).store(ticket.wrapping_add(1), Ordering::Release);
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
    use crate::ir::ring::{NoticeKind, PostedNotice};

    #[test]
    fn a_full_ring_refuses_and_an_emptied_one_takes_again_in_order() {
        for capacity in [1, 4] {
            let ring = Ring::new(capacity);
            let queue = ring.queue(3);
            assert_eq!(queue.capacity(), Some(capacity as u64));
            let [entries, tickets] = [0, 1].map(|k: usize| queue.memories[k].start().as_ptr());
            let signal = |value| Posted {
                peer: 1,
                target: 3,
                span: None,
                notice: Some(PostedNotice { slot: 7, value, parts: 1, kind: NoticeKind::Data }),
            };
            // SAFETY: this is the memory of a ring.
            let put = |x: &Posted| unsafe { push(entries, tickets, capacity as u64, &x.words()) };
            for lap in 0..3 {
                for k in 0..capacity as u64 {
                    assert!(put(&signal(lap * 4 + k)));
                }
                assert!(!put(&signal(99)));
                for k in 0..capacity as u64 {
                    assert_eq!(ring.pop(), Some(Ok(signal(lap * 4 + k))));
                }
                assert!(ring.is_empty());
                assert_eq!(ring.pop(), None);
            }
        }
    }

    #[test]
    fn an_entry_without_meaning_is_reported_and_does_not_block_the_ring() {
        let ring = Ring::new(2);
        let [entries, tickets] = [0, 1].map(|k: usize| ring.queue(0).memories[k].start().as_ptr());
        // SAFETY: this is the memory of a ring.
        assert!(unsafe { push(entries, tickets, 2, &[u64::MAX; WORDS]) });
        assert_eq!(ring.pop(), Some(Err(BadEntry { head: u64::MAX })));
        assert!(ring.is_empty());
    }

    /// Kernels can write every word of a ring, and corrupted memory may hold anything.
    #[test]
    fn a_consumer_counts_what_it_has_taken_in_memory_of_its_own() {
        let signal = |value| Posted {
            peer: 1,
            target: 3,
            span: None,
            notice: Some(PostedNotice { slot: 7, value, parts: 1, kind: NoticeKind::Data }),
        };
        for taken in [0, 1, 2, 5, 1 << 40, u64::MAX - 1, u64::MAX] {
            let ring = Ring::new(4);
            let [entries, tickets] = [0, 1].map(|k: usize| ring.queue(3).memories[k].start().as_ptr());
            // SAFETY: this is the memory of a ring.
            let put = |value| unsafe { push(entries, tickets, 4, &signal(value).words()) };
            // SAFETY: the word is in the memory of the ring, which tests touch only by atomics.
            let of_kernels = unsafe { word(entries, TAKEN) };
            assert!((0..4).all(put));
            assert_eq!(ring.pop(), Some(Ok(signal(0))));
            of_kernels.store(taken, Ordering::Relaxed);
            assert_eq!(
                [(); 4].map(|()| ring.pop()),
                [Some(Ok(signal(1))), Some(Ok(signal(2))), Some(Ok(signal(3))), None]
            );
            assert!(ring.is_empty());
            assert_eq!(of_kernels.load(Ordering::Relaxed), 4, "producers get the true count again");
        }
    }

    #[test]
    fn an_entry_with_the_turn_of_no_lap_is_reported() {
        for (laps, turn) in [(0, 2), (0, u64::MAX), (1, 2), (1, 0), (2, 1), (2, 9)] {
            let ring = Ring::new(2);
            let [entries, tickets] = [0, 1].map(|k: usize| ring.queue(0).memories[k].start().as_ptr());
            for _ in 0..2 * laps {
                // SAFETY: this is the memory of a ring.
                assert!(unsafe { push(entries, tickets, 2, &[1 << 57 | 1 << 48, 0, 0, 0, 0, 0]) });
                assert!(matches!(ring.pop(), Some(Ok(_))));
            }
            assert!(ring.is_empty());
            // SAFETY: the turn of the next entry.
            unsafe { word(entries, ENTRIES) }.store(turn, Ordering::Relaxed);
            assert!(!ring.is_empty());
            assert_eq!(ring.pop(), Some(Err(BadEntry { head: turn })), "after {laps} laps");
        }
    }

    #[test]
    fn other_memory_is_no_ring() {
        assert!(Ring::over(Memory::zeroed_shared(ENTRIES + 3 * ENTRY), Memory::zeroed_shared(TICKETS_BYTES)).is_none());
        assert!(Ring::over(Memory::zeroed(ENTRIES + ENTRY), Memory::zeroed_shared(TICKETS_BYTES)).is_none());
        assert!(Ring::over(Memory::zeroed_shared(ENTRIES + ENTRY), Memory::zeroed_shared(8)).is_none());
        assert_eq!(Queue::from(&Memory::zeroed_shared(1024)).capacity(), None);
    }
}
