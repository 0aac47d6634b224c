//! The parties that can run, found without asking everybody: for runs in which each runs until it waits.
//!
//! A party that waits for a slot, a word or a packet is not tried again before that was set. This is only an
//! optimisation: a party that is not listed is found when the list is empty and everybody is asked.

use crate::check::eval::{Awaited, Blocked};
use crate::check::memory::MemoryId;
use std::collections::{HashMap, VecDeque};

/// Parties that may be able to run, in turn, and those that wait.
#[derive(Default)]
pub(super) struct Ready {
    parties: VecDeque<usize>,
    /// By the first byte of the awaited object.
    waiting: HashMap<(MemoryId, u64), Vec<usize>>,
}

impl Ready {
    /// The next one.
    pub fn next(&mut self) -> Option<usize> {
        self.parties.pop_front()
    }

    /// A party may be able to run.
    pub fn add(&mut self, party: usize) {
        self.parties.push_back(party);
    }

    /// A party waits.
    pub fn wait(&mut self, party: usize, on: &Blocked) {
        let at = match &on.on {
            Awaited::Slot { slot, .. } => (slot.memory, slot.byte),
            Awaited::Word { memory, byte, .. }
            | Awaited::Packet { memory, byte, .. }
            | Awaited::Number { memory, byte, .. } => (*memory, *byte),
        };
        self.waiting.entry(at).or_default().push(party);
    }

    /// These were set: parties that wait for one of them may be able to run.
    pub fn wake(&mut self, set: &mut Vec<(MemoryId, u64)>) {
        for at in set.drain(..) {
            if let Some(woken) = self.waiting.get_mut(&at) {
                self.parties.extend(woken.drain(..));
            }
        }
    }
}
