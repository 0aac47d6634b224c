//! The history of every signal slot: which signal a wait is for.

use super::clock::{Knowledge, PartyId, Published};
use crate::check::memory::MemoryId;
use crate::ir::Inst;
use std::collections::{BTreeMap, HashMap};

/// A slot as bytes: two names of one counter agree here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SlotKey {
    /// Piece of memory.
    pub memory: MemoryId,
    /// First of its eight bytes.
    pub byte: u64,
}

/// One signal.
#[derive(Clone, Debug)]
pub struct Signalled {
    /// The value.
    pub value: u64,
    /// What it carries.
    pub published: Published,
    /// Whether it shows no data.
    pub credit: bool,
    /// Who signalled.
    pub party: PartyId,
    /// In which of its epochs.
    pub epoch: u32,
    /// In which launch.
    pub launch: u32,
    /// The instruction.
    pub inst: Inst,
    /// Its place in the log.
    pub entry: usize,
}

/// What is wrong with a signal.
#[derive(Clone, Debug)]
pub enum BadSignal {
    /// Nothing orders it after the signal before.
    TwoWriters(Signalled),
    /// The counter does not grow.
    NotGrowing(Signalled),
}

/// One slot.
#[derive(Clone, Default, Debug)]
pub struct SlotHistory {
    /// What it held before the first signal.
    initial: Option<u64>,
    signals: Vec<Signalled>,
    /// By launch: the largest value anybody waited for in it.
    waited: BTreeMap<u32, u64>,
    /// A copy engine writes it: values may go back, and a wait is for the value that stands there.
    handshake: bool,
}

/// All slots of a run.
#[derive(Clone, Default, Debug)]
pub struct Slots {
    slots: HashMap<SlotKey, SlotHistory>,
}

impl Slots {
    /// The history of a slot.
    pub fn get(&self, key: SlotKey) -> Option<&SlotHistory> {
        self.slots.get(&key)
    }

    /// Records a signal over the value `before` and says what is wrong with it.
    pub fn signal(&mut self, key: SlotKey, before: u64, signal: Signalled, knowledge: &Knowledge) -> Option<BadSignal> {
        let slot = self.slots.entry(key).or_default();
        slot.initial.get_or_insert(before);
        let bad = slot.signals.last().and_then(|last| {
            if last.party != signal.party && !knowledge.over.covers(last.party, last.epoch) {
                Some(BadSignal::TwoWriters(last.clone()))
            } else if signal.value <= last.value {
                Some(BadSignal::NotGrowing(last.clone()))
            } else {
                None
            }
        });
        slot.signals.push(signal);
        bad
    }

    /// Records a write of a copy engine over the value `before`, and gives the write before it where nothing orders the two.
    pub fn write(&mut self, key: SlotKey, before: u64, signal: Signalled, knowledge: &Knowledge) -> Option<Signalled> {
        let slot = self.slots.entry(key).or_default();
        slot.initial.get_or_insert(before);
        slot.handshake = true;
        let is_known = |last: &&Signalled| last.party == signal.party || knowledge.over.covers(last.party, last.epoch);
        let unordered = slot.signals.last().filter(|last| !is_known(last)).cloned();
        slot.signals.push(signal);
        unordered
    }

    /// The signal that a wait for `value`, which saw `seen`, is for: the first that suffices. `None` where none is needed.
    pub fn wait(&mut self, key: SlotKey, launch: u32, value: u64, seen: u64) -> Option<&Signalled> {
        let slot = self.slots.entry(key).or_default();
        let most = slot.waited.entry(launch).or_default();
        *most = value.max(*most);
        if slot.handshake {
            return slot.signals.last();
        }
        // Before the first signal, what is seen is what was there from the start.
        if value <= *slot.initial.get_or_insert(seen) {
            return None;
        }
        // Counters that grow are sorted; one that does not is reported at its signal.
        let first = slot.signals.partition_point(|signal| signal.value < value);
        slot.signals.get(first)
    }

    /// All slots, in order.
    pub fn sorted(&self) -> Vec<(SlotKey, &SlotHistory)> {
        let mut all: Vec<_> = self.slots.iter().map(|(&key, slot)| (key, slot)).collect();
        all.sort_by_key(|&(key, _)| key);
        all
    }
}

impl SlotHistory {
    /// What it held before the first signal.
    pub fn initial(&self) -> u64 {
        self.initial.unwrap_or(0)
    }

    /// All signals, in the order of the run.
    pub fn signals(&self) -> &[Signalled] {
        &self.signals
    }

    /// Whether a copy engine writes it.
    pub fn is_handshake(&self) -> bool {
        self.handshake
    }

    /// Whether any of its signals is a credit.
    pub fn is_credited(&self) -> bool {
        self.signals.iter().any(|signal| signal.credit)
    }

    /// The last signal of the launches up to this one.
    pub fn last_by(&self, launch: u32) -> Option<&Signalled> {
        self.signals.iter().rev().find(|signal| signal.launch <= launch)
    }

    /// The largest value anybody waited for in the launches up to this one.
    pub fn waited_by(&self, launch: u32) -> u64 {
        self.waited.range(..=launch).map(|(_, &value)| value).max().unwrap_or(0)
    }

    /// The last signal.
    pub fn last(&self) -> Option<&Signalled> {
        self.signals.last()
    }
}
