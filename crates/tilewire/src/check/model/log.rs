//! What happened between parties, in the order of the run: the raw material of prefixes and pictures.

use super::clock::{Clock, PartyId};
use crate::check::observer::SlotRef;
use crate::ir::Inst;

/// Signals and waits of a run.
#[derive(Clone, Default, Debug)]
pub struct Log {
    entries: Vec<Entry>,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Who.
    pub party: PartyId,
    /// In which launch.
    pub launch: u32,
    /// In which of its epochs.
    pub epoch: u32,
    /// The instruction.
    pub inst: Option<Inst>,
    /// What.
    pub deed: Deed,
}

/// What was done.
#[derive(Clone, Debug)]
pub enum Deed {
    /// A slot was set.
    Signal {
        /// Which.
        slot: SlotRef,
        /// To what.
        value: u64,
        /// Whether it shows no data.
        credit: bool,
    },
    /// A wait was over.
    Wait {
        /// For which slot.
        slot: SlotRef,
        /// For what value.
        value: u64,
        /// The entry of the signal that it was for.
        from: Option<usize>,
    },
}

impl Log {
    /// Appends an entry and gives its place.
    pub fn push(&mut self, party: PartyId, launch: u32, epoch: u32, inst: Option<Inst>, deed: Deed) -> usize {
        self.entries.push(Entry { party, launch, epoch, inst, deed });
        self.entries.len() - 1
    }

    /// The entry at a place.
    pub fn get(&self, place: usize) -> &Entry {
        &self.entries[place]
    }

    /// The last `most` entries that whoever has this clock knows of.
    pub fn needed(&self, clock: &Clock, most: usize) -> Vec<usize> {
        let known = |&place: &usize| {
            let entry = &self.entries[place];
            clock.covers(entry.party, entry.epoch)
        };
        let mut needed: Vec<usize> = (0..self.entries.len()).rev().filter(known).take(most).collect();
        needed.reverse();
        needed
    }
}
