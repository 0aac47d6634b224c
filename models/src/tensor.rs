//! Memory whose words are loom's.

use crate::sync::AtomicU64;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ptr::NonNull;

thread_local! {
    /// By address; a word belongs to the memory that made it. Threads of a model are coroutines of one thread.
    static WORDS: RefCell<BTreeMap<usize, *const AtomicU64>> = const { RefCell::new(BTreeMap::new()) };
}

/// The word at an address.
pub(crate) fn word(address: usize) -> *const AtomicU64 {
    WORDS.with_borrow(|words| words[&address])
}

#[derive(Debug)]
pub struct Memory {
    start: usize,
    words: Vec<NonNull<AtomicU64>>,
}

// SAFETY: the words are atomics, which may be shared; they are freed by the last owner.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn zeroed_shared(bytes: usize) -> Memory {
        // Nothing is ever read there: only addresses are computed.
        let start = 1 << 20;
        let make = |k: usize| {
            let word = Box::leak(Box::new(AtomicU64(loom::sync::atomic::AtomicU64::new(0))));
            WORDS.with_borrow_mut(|words| words.insert(start + 8 * k, word));
            NonNull::from(word)
        };
        Memory { start, words: (0..bytes / 8).map(make).collect() }
    }

    pub fn start(&self) -> NonNull<u8> {
        NonNull::without_provenance(self.start.try_into().expect("not null"))
    }

    pub fn bytes(&self) -> usize {
        self.words.len() * 8
    }

    pub fn is_shared(&self) -> bool {
        true
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for word in &self.words {
            // SAFETY: made by `zeroed_shared`, freed once.
            drop(unsafe { Box::from_raw(word.as_ptr()) });
        }
    }
}
