//! The events between parties, in the order of the run: the raw material of prefixes and pictures.

use super::clock::PartyId;
use crate::check::observer::SlotRef;
use crate::ir::Inst;
use std::collections::HashMap;

/// Signals and waits of a run.
#[derive(Clone, Default, Debug)]
pub struct Log {
    entries: Vec<Entry>,
}

/// A signal or a wait.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The party.
    pub party: PartyId,
    /// The launch.
    pub launch: u32,
    /// The epoch of the party.
    pub epoch: u32,
    /// The instruction.
    pub inst: Option<Inst>,
    /// The event.
    pub deed: Deed,
}

/// An event.
#[derive(Clone, Debug)]
pub enum Deed {
    /// A slot was set.
    Signal {
        /// The slot.
        slot: SlotRef,
        /// The value.
        value: u64,
        /// True if it shows no data.
        credit: bool,
    },
    /// A wait ended.
    Wait {
        /// The slot.
        slot: SlotRef,
        /// The value.
        value: u64,
        /// The entry of the signal that it was for.
        from: Option<usize>,
    },
}

impl Log {
    /// Appends an entry and returns its index.
    pub fn push(&mut self, party: PartyId, launch: u32, epoch: u32, inst: Option<Inst>, deed: Deed) -> usize {
        self.entries.push(Entry { party, launch, epoch, inst, deed });
        self.entries.len() - 1
    }

    /// The entry at an index.
    pub fn get(&self, place: usize) -> &Entry {
        &self.entries[place]
    }

    /// The wait that this signal was the first to satisfy, if any.
    pub fn wait_for(&self, signal: usize) -> Option<&Entry> {
        let is_it = |entry: &&Entry| matches!(entry.deed, Deed::Wait { from, .. } if from == Some(signal));
        self.entries.iter().skip(signal).find(is_it)
    }

    /// The last `most` entries that had to happen before these epochs of these parties: their own, and those that their
    /// waits were for.
    pub fn leading_to(&self, ends: &[(PartyId, u32)], most: usize) -> Vec<usize> {
        // By party: signals of epochs below the first number, waits of epochs up to the second.
        let mut limits: HashMap<PartyId, (u32, u32)> = HashMap::new();
        let raise = |limits: &mut HashMap<PartyId, (u32, u32)>, party: PartyId, signals: u32, waits: u32| {
            let limit = limits.entry(party).or_default();
            *limit = (limit.0.max(signals), limit.1.max(waits));
        };
        ends.iter().for_each(|&(party, epoch)| raise(&mut limits, party, epoch, epoch));
        let mut needed = Vec::new();
        // Backwards: the signal of a wait stands before it.
        for (place, entry) in self.entries.iter().enumerate().rev() {
            let Some(&(signals, waits)) = limits.get(&entry.party) else { continue };
            match entry.deed {
                Deed::Signal { .. } if entry.epoch < signals => needed.push(place),
                Deed::Wait { from, .. } if entry.epoch <= waits => {
                    needed.push(place);
                    if let Some(signal) = from.map(|from| &self.entries[from]) {
                        raise(&mut limits, signal.party, signal.epoch + 1, signal.epoch);
                    }
                }
                _ => {}
            }
            if needed.len() == most {
                break;
            }
        }
        needed.reverse();
        needed
    }
}
