//! Packets: in which launch each was put, and in which it was taken.
//!
//! A packet that nobody takes in its launch is left over, like a signal: a reader that is one message behind mistakes
//! the last message's packets for this one's, and nothing races.

use super::shadow::Touch;
use crate::check::memory::MemoryId;
use std::collections::BTreeMap;

/// All packets of a run.
#[derive(Default)]
pub struct Packets {
    /// By first byte: the packet at that place.
    last: BTreeMap<(MemoryId, u64), Packet>,
    /// Packets that were overwritten before they were taken.
    lost: Vec<Untaken>,
}

struct Packet {
    by: Touch,
    flag: u64,
    /// The first launch in which it was taken.
    taken: Option<u32>,
}

/// A packet that nobody took in its launch.
#[derive(Clone, Debug)]
pub struct Untaken {
    /// The access that put it.
    pub by: Touch,
    /// Its memory.
    pub memory: MemoryId,
    /// Its first byte.
    pub byte: u64,
    /// Its flag.
    pub flag: u64,
}

impl Packets {
    /// A packet is put.
    pub fn put(&mut self, at: (MemoryId, u64), by: Touch, flag: u64) {
        let before = self.last.insert(at, Packet { by, flag, taken: None });
        self.lost.extend(before.and_then(|before| before.untaken(at)));
    }

    /// A packet is taken, in this launch of the party that takes it.
    pub fn get(&mut self, at: (MemoryId, u64), launch: u32) {
        if let Some(packet) = self.last.get_mut(&at) {
            packet.taken = Some(packet.taken.map_or(launch, |first| first.min(launch)));
        }
    }

    /// The packets of the first `launches` launches that nobody took in their launch.
    pub fn left(&self, launches: u32) -> Vec<Untaken> {
        let there = self.last.iter().filter_map(|(&at, packet)| packet.untaken(at));
        self.lost.iter().cloned().chain(there).filter(|packet| packet.by.launch < launches).collect()
    }
}

impl Packet {
    fn untaken(&self, (memory, byte): (MemoryId, u64)) -> Option<Untaken> {
        let in_time = self.taken.is_some_and(|launch| launch <= self.by.launch);
        (!in_time).then(|| Untaken { by: self.by.clone(), memory, byte, flag: self.flag })
    }
}
