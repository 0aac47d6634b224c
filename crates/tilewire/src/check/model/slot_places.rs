//! The bytes of the world that are signal slots.

use crate::check::memory::{Bank, MemoryId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Every slot that a kernel or a route of a plan names, as the first of its eight bytes.
#[derive(Default)]
pub struct SlotPlaces {
    by_memory: BTreeMap<MemoryId, BTreeSet<u64>>,
}

impl SlotPlaces {
    /// Adds the slots of a bank, `stride` bytes apart.
    pub fn add(&mut self, bank: &Bank, stride: u32) {
        let starts = (0..=bank.len.saturating_sub(8)).step_by(stride.max(8) as usize).filter(|_| bank.len >= 8);
        self.by_memory.entry(bank.memory).or_default().extend(starts.map(|start| bank.offset + start));
    }

    /// The slots that have bytes in common with these.
    pub fn meeting(&self, memory: MemoryId, bytes: &Range<u64>) -> impl Iterator<Item = u64> {
        let starts = bytes.start.saturating_sub(7)..bytes.end;
        self.by_memory.get(&memory).into_iter().flat_map(move |slots| slots.range(starts.clone()).copied())
    }
}
