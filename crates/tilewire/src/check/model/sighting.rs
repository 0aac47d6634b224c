//! Faults as the model detects them, each kept once with its count.

use super::clock::PartyId;
use super::credits::Ahead;
use super::detector::Detector;
use super::packets::Untaken;
use super::party::PartyName;
use super::promises::Promise;
use super::shadow::{Conflict, Touch};
use super::slots::{Signalled, SlotKey};
use crate::check::memory::MemoryId;
use crate::ir::Inst;
use std::ops::Range;

/// A fault as the model detects it, before it gets names.
#[derive(Clone, Debug)]
pub enum Seen {
    /// Two accesses that nothing orders.
    Race { conflict: Conflict, first: Touch, second: Touch, memory: MemoryId, bytes: Range<u64> },
    /// A write of another rank to bytes that a parameter promises to be unchanged during its launch.
    Promised { first: Touch, second: Touch, memory: MemoryId, bytes: Range<u64> },
    /// A write of another rank to bytes that a running launch has bound as an input.
    Bound { promise: Promise, by: Touch, memory: MemoryId, bytes: Range<u64> },
    /// A wait that a signal of another operation satisfies.
    OtherOperation { slot: SlotKey, party: PartyId, launch: u32, inst: Inst, expected: Option<u16>, signal: Signalled },
    /// A read of bytes nobody wrote.
    Unwritten { by: Touch, memory: MemoryId, bytes: Range<u64> },
    /// Two signals to one slot that nothing orders.
    TwoWriters { slot: SlotKey, first: Signalled, second: Signalled },
    /// A signal that does not make its counter grow.
    NotGrowing { slot: SlotKey, first: Signalled, second: Signalled },
    /// A first signal that is smaller than the counter's initial value.
    BelowStart { slot: SlotKey, before: u64, signal: Signalled },
    /// A wait that a signal of a larger value satisfies: the value waited for is never signalled.
    Skipped { slot: SlotKey, party: PartyId, launch: u32, inst: Inst, expected: u64, signal: Signalled },
    /// A packet with a flag that is not larger than the one before.
    StaleFlag { by: Touch, memory: MemoryId, byte: u64, before: u64, flag: u64 },
    /// A credit for a step that its giver does not know to be sent.
    Ahead(Ahead),
    /// Data signalled that nobody waited for.
    Leftover { slot: SlotKey, signal: Signalled, waited: u64 },
    /// A packet that nobody took.
    Untaken(Untaken),
    /// A handshake that does not end with its initial value.
    NotReset { slot: SlotKey, signal: Signalled },
}

/// A fault, its count, and the entries of the log that had to happen for it.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// The first one.
    pub seen: Seen,
    /// Number of faults like it.
    pub times: u64,
    /// The events leading to it, as indices in the log.
    pub prefix: Vec<usize>,
}

/// Faults kept of one run; beyond this only counts grow.
const MOST_SIGHTINGS: usize = 32;
/// Entries of the log kept for one fault.
const LONGEST_PREFIX: usize = 48;

impl Detector<'_> {
    /// The faults so far.
    pub fn sightings(&self) -> &[Sighting] {
        &self.sightings
    }

    pub(super) fn report(&mut self, seen: Seen, parties: &[PartyId]) {
        let key = match &seen {
            Seen::Race { first, second, conflict, .. } => (*conflict as u8, first.inst, second.inst),
            Seen::Unwritten { by, .. } => (10, by.inst, None),
            Seen::Promised { first, second, .. } => (19, first.inst, second.inst),
            Seen::Bound { by, .. } => (22, by.inst, None),
            Seen::OtherOperation { inst, signal, .. } => (20, Some(*inst), Some(signal.inst)),
            Seen::TwoWriters { first, second, .. } => (11, Some(first.inst), Some(second.inst)),
            Seen::NotGrowing { first, second, .. } => (12, Some(first.inst), Some(second.inst)),
            Seen::BelowStart { signal, .. } => (21, Some(signal.inst), None),
            Seen::Skipped { inst, signal, .. } => (13, Some(*inst), Some(signal.inst)),
            Seen::StaleFlag { by, .. } => (14, by.inst, None),
            Seen::Leftover { signal, .. } => (15, Some(signal.inst), None),
            Seen::Untaken(packet) => (18, packet.by.inst, None),
            Seen::Ahead(ahead) => (16, Some(ahead.credit.inst), None),
            Seen::NotReset { signal, .. } => (17, Some(signal.inst), None),
        };
        // Operations of streams have their own numbers.
        let is_stream = |party: &PartyId| matches!(self.parties[*party as usize].name, PartyName::Stream(_));
        let streams =
            parties.iter().zip([32, 64]).filter(|(party, _)| is_stream(party)).map(|(_, bit)| bit).sum::<u8>();
        let key = (key.0 + streams, key.1, key.2);
        if let Some(&place) = self.known.get(&key) {
            self.sightings[place].times += 1;
            return;
        }
        if self.sightings.len() == MOST_SIGHTINGS {
            return;
        }
        // Only the events that lead to the two had to happen; the rest of the schedule is omitted.
        let ends: Vec<(PartyId, u32)> = match &seen {
            Seen::Race { first, second, .. } | Seen::Promised { first, second, .. } => {
                vec![(first.party, first.epoch), (second.party, second.epoch)]
            }
            Seen::Bound { by, .. } => vec![(by.party, by.epoch)],
            Seen::Ahead(Ahead { credit, .. }) => vec![(credit.party, credit.epoch)],
            _ => parties.iter().map(|&party| (party, self.parties[party as usize].epoch)).collect(),
        };
        let prefix = self.log.leading_to(&ends, LONGEST_PREFIX);
        self.known.insert(key, self.sightings.len());
        self.sightings.push(Sighting { seen, times: 1, prefix });
    }
}
