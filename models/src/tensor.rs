//! `tensor/ring.rs` over memory whose words are loom's.

#[path = "../../crates/tilewire/src/tensor/ring.rs"]
mod ring;

pub(crate) use crate::ir::Purpose;
pub(crate) use memory::word;

mod memory {
    use super::Purpose;
    use crate::sync::AtomicU64;
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::ptr::NonNull;
    use std::sync::Arc;

    thread_local! {
        /// The words by address. A word belongs to the memory that made it. Threads of a model are coroutines of one
        /// thread.
        static WORDS: RefCell<BTreeMap<usize, *const AtomicU64>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// The word at an address.
    pub(crate) fn word(address: usize) -> *const AtomicU64 {
        WORDS.with_borrow(|words| words[&address])
    }

    #[derive(Clone, Debug)]
    pub(crate) struct Memory(Arc<Words>);

    #[derive(Debug)]
    struct Words {
        start: usize,
        words: Vec<NonNull<AtomicU64>>,
    }

    // SAFETY: the words are atomics, which may be shared, and the last owner frees them.
    unsafe impl Send for Words {}
    // SAFETY: as above.
    unsafe impl Sync for Words {}

    impl Memory {
        pub(crate) fn zeroed_shared(bytes: usize) -> Memory {
            // These addresses are only computed with, and never read. Memories follow each other with a gap.
            let last = WORDS.with_borrow(|words| words.last_key_value().map_or(1 << 20, |(&last, _)| last));
            let start = (last + 1).next_multiple_of(4096);
            let make = |k: usize| {
                let word = Box::leak(Box::new(AtomicU64::new(0)));
                WORDS.with_borrow_mut(|words| words.insert(start + 8 * k, word));
                NonNull::from(word)
            };
            Memory(Arc::new(Words { start, words: (0..bytes / 8).map(make).collect() }))
        }

        pub(crate) fn zeroed(bytes: usize) -> Memory {
            Memory::zeroed_shared(bytes)
        }

        pub(crate) fn start(&self) -> NonNull<u8> {
            NonNull::without_provenance(self.0.start.try_into().expect("not null"))
        }

        pub(crate) fn bytes(&self) -> usize {
            self.0.words.len() * 8
        }

        pub(crate) fn is(&self, other: &Memory) -> bool {
            self.0.start == other.0.start
        }

        pub(crate) fn for_purpose(self, _: Purpose) -> Memory {
            self
        }

        pub(crate) fn for_operation(self, _: u16) -> Memory {
            self
        }

        pub(crate) fn is_shared(&self) -> bool {
            true
        }

        /// The thread that the memory belongs to, if it belongs to one. Here all threads share it.
        pub(crate) fn home(&self) -> Option<()> {
            None
        }

        pub(crate) fn reachable_from(&self) -> ReachableFrom {
            ReachableFrom { host: true }
        }
    }

    impl Drop for Words {
        fn drop(&mut self) {
            for (k, word) in self.words.iter().enumerate() {
                WORDS.with_borrow_mut(|words| words.remove(&(self.start + 8 * k)));
                // SAFETY: `zeroed_shared` has made it, and it is freed once.
                drop(unsafe { Box::from_raw(word.as_ptr()) });
            }
        }
    }

    pub(crate) struct ReachableFrom {
        pub host: bool,
    }

    impl ReachableFrom {
        pub(crate) fn is_device(&self, _: u32) -> bool {
            false
        }
    }
}

pub(crate) mod models {
    use super::ring::{Ring, push};
    use crate::Bounds;
    use crate::ir::ring::{NoticeKind, Posted, PostedNotice, PostedSpan};
    use loom::cell::UnsafeCell;
    use loom::thread;
    use std::sync::Arc;

    /// A ring, and one cell for the bytes that each entry names. Loom finds a cell that is read before its store.
    struct Wire {
        ring: Ring,
        capacity: u64,
        bytes: Vec<UnsafeCell<u64>>,
    }

    /// Entry k. Every word of it depends on k.
    fn entry(k: u64) -> Posted {
        Posted {
            peer: k as u32,
            target: 3,
            span: Some(PostedSpan { source: k, destination: 10 + k, bytes: 20 + k }),
            notice: Some(PostedNotice { slot: 30 + k, value: 40 + k, parts: 2, kind: NoticeKind::Data }),
        }
    }

    impl Wire {
        fn new(capacity: usize, entries: usize) -> Arc<Wire> {
            let bytes = (0..entries).map(|_| UnsafeCell::new(0)).collect();
            Arc::new(Wire { ring: Ring::new(capacity), capacity: capacity as u64, bytes })
        }

        /// A producer that tries each of these entries once, in order. Returns the entries that the ring had room for.
        /// Loom also runs unfair schedules, in which a producer that tried again could do so forever.
        fn produces(self: &Arc<Wire>, entries: &'static [u64]) -> thread::JoinHandle<Vec<u64>> {
            let wire = self.clone();
            thread::spawn(move || entries.iter().copied().filter(|&k| wire.push(k)).collect())
        }

        /// Writes the bytes of entry k, and appends it if there is room.
        fn push(&self, k: u64) -> bool {
            let queue = self.ring.queue(3);
            let [entries, tickets] = [0, 1].map(|k: usize| queue.memories[k].start().as_ptr());
            // SAFETY: loom checks that no other thread accesses the cell.
            self.bytes[k as usize].with_mut(|bytes| unsafe { *bytes = 50 + k });
            // SAFETY: the memory of a ring of this capacity.
            unsafe { push(entries, tickets, self.capacity, &entry(k).words()) }
        }

        /// Takes the next entry, which must be whole and come after its bytes. Returns its number.
        fn pop(&self) -> Option<u64> {
            let posted = self.ring.pop()?.expect("an entry that a producer writes");
            let k = posted.peer.into();
            assert_eq!(posted, entry(k));
            // SAFETY: loom checks that the producer is done with it.
            self.bytes[k as usize].with(|bytes| assert_eq!(unsafe { *bytes }, 50 + k));
            Some(k)
        }

        /// Looks `looks` times beside the producers, and then until the ring is empty. Every appended entry must arrive
        /// once, and the entries of one producer in their order.
        fn consume<const N: usize>(&self, looks: usize, producers: [thread::JoinHandle<Vec<u64>>; N]) {
            let mut taken: Vec<u64> = (0..looks).filter_map(|_| self.pop()).collect();
            let appended = producers.map(|producer| producer.join().unwrap());
            taken.extend(std::iter::from_fn(|| self.pop()));
            assert_eq!(taken.len(), appended.iter().map(Vec::len).sum::<usize>(), "{taken:?} of {appended:?}");
            for of_one in &appended {
                assert!(taken.iter().filter(|k| of_one.contains(k)).eq(of_one), "{taken:?} of {appended:?}");
            }
            assert!(self.ring.is_empty());
        }
    }

    pub(crate) fn ring(bounds: &Bounds) {
        bounds.check(3, || {
            let wire = Wire::new(1, 2);
            wire.consume(2, [wire.produces(&[0]), wire.produces(&[1])]);
        });
    }

    pub(crate) fn laps(bounds: &Bounds) {
        for capacity in [1, 2] {
            bounds.check(3, move || {
                let wire = Wire::new(capacity, 3);
                wire.consume(3, [wire.produces(&[0, 1]), wire.produces(&[2])]);
            });
        }
    }

    pub(crate) fn empty(bounds: &Bounds) {
        bounds.check(3, || {
            let wire = Wire::new(2, 2);
            let producers = [wire.produces(&[0]), wire.produces(&[1])];
            for _ in 0..2 {
                if !wire.ring.is_empty() {
                    assert!(wire.pop().is_some(), "a ring that is not empty gives an entry");
                }
            }
            let appended: Vec<u64> = producers.map(|producer| producer.join().unwrap()).concat();
            assert_eq!(appended, [0, 1], "there is room for both");
            while !wire.ring.is_empty() {
                assert!(wire.pop().is_some(), "a ring that is not empty gives an entry");
            }
            assert_eq!(wire.pop(), None, "a ring that is empty gives none");
        });
    }
}
