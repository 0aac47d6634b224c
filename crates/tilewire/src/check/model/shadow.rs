//! Shadow memory: who touched which bytes last, as ranges.
//!
//! ```text
//!  bytes   0        64        128            a cell: bytes that the same accesses touched last
//!          ├─ cell ─┼─ cell ──┤              = the last write, and every read and atomic after it
//! ```
//! One `each` over neighbouring elements is one range, so a message of a million elements costs as many cells as it has
//! tiles. Which element touched a byte is kept as a line (first element, bytes per element), so that two elements of one
//! `each` that meet on a byte are seen without a cell per element.

use super::clock::{Knowledge, PartyId};
use crate::check::observer::AccessKind;
use crate::ir::Inst;
use std::collections::BTreeMap;
use std::ops::Range;

/// An access as it is remembered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Touch {
    /// Who.
    pub party: PartyId,
    /// In which of its epochs: an epoch ends where the party tells others what it did.
    pub epoch: u32,
    /// Between which barriers of the role copy.
    pub phase: u32,
    /// In which launch of its rank.
    pub launch: u32,
    /// The instruction; `None` for the host.
    pub inst: Option<Inst>,
    /// How.
    pub kind: AccessKind,
    /// By which elements.
    pub elements: Elements,
}

/// Which elements of an `each` touched the bytes of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Elements {
    /// None: the access stands outside of an `each`.
    Outside,
    /// The byte at `start` belongs to element `first`, and every `size` bytes to the next.
    Line {
        /// First element.
        first: u64,
        /// Its first byte.
        start: u64,
        /// Bytes of each.
        size: u64,
    },
    /// Several touched every byte.
    Many,
}

impl Touch {
    fn writes(&self) -> bool {
        writes(self.kind)
    }
}

/// Whether an access changes bytes.
pub fn writes(kind: AccessKind) -> bool {
    use AccessKind::{Atomic, BulkWrite, NetworkWrite, PacketWrite, Write};
    matches!(kind, Write | Atomic | PacketWrite | BulkWrite | NetworkWrite)
}

/// What is wrong between an access and an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Conflict {
    /// Nothing orders them.
    Unordered,
    /// Only a credit orders them, and a credit shows no data.
    OnlyCredited,
    /// Two elements of one `each`.
    Elements,
}

/// What an access met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Met {
    /// An earlier access that it conflicts with.
    Race(Conflict, Touch, Range<u64>),
    /// Bytes that nobody wrote.
    Unwritten(Range<u64>),
}

/// The shadow of one piece of memory.
#[derive(Clone, Default, Debug)]
pub struct Shadow {
    cells: BTreeMap<u64, Cell>,
}

#[derive(Clone, Debug)]
struct Cell {
    end: u64,
    write: Option<Touch>,
    /// Reads and atomics since the write: one of each party and kind, the latest.
    since: Vec<Touch>,
}

impl Shadow {
    /// Records an access by somebody who knows `knowledge` and gives what it meets, in the order of bytes.
    pub fn touch(&mut self, bytes: Range<u64>, touch: &Touch, knowledge: &Knowledge) -> Vec<Met> {
        let mut met = Vec::new();
        if bytes.is_empty() {
            return met;
        }
        self.split(bytes.start);
        self.split(bytes.end);
        let replaces = touch.writes() && touch.kind != AccessKind::Atomic;
        let mut covered = bytes.start;
        let mut gaps = Vec::new();
        for (&start, cell) in self.cells.range_mut(bytes.clone()) {
            if covered < start {
                gaps.push(covered..start);
            }
            covered = cell.end;
            // Whoever got the packet has seen it come: what it writes there comes after it.
            let got = |old: &Touch| old.kind == AccessKind::PacketRead && old.party == touch.party;
            let got = cell.since.iter().any(got);
            for old in cell.write.iter().chain(&cell.since) {
                if got && old.kind == AccessKind::PacketWrite {
                    continue;
                }
                if let Some(conflict) = conflict(old, touch, knowledge, &(start..cell.end)) {
                    met.push(Met::Race(conflict, old.clone(), start..cell.end));
                }
            }
            if cell.write.is_none() && !touch.writes() {
                met.push(Met::Unwritten(start..cell.end));
            }
            if !replaces {
                cell.remember(touch);
            }
        }
        if covered < bytes.end {
            gaps.push(covered..bytes.end);
        }
        if replaces {
            let inside: Vec<u64> = self.cells.range(bytes.clone()).map(|(&start, _)| start).collect();
            inside.iter().for_each(|start| _ = self.cells.remove(start));
            self.cells.insert(bytes.start, Cell { end: bytes.end, write: Some(touch.clone()), since: Vec::new() });
        } else {
            for gap in gaps {
                if touch.kind != AccessKind::Atomic {
                    met.push(Met::Unwritten(gap.clone()));
                }
                self.cells.insert(gap.start, Cell { end: gap.end, write: None, since: vec![touch.clone()] });
            }
        }
        met
    }

    /// Number of cells, to see that ranges stay ranges.
    #[cfg(test)]
    fn cells(&self) -> usize {
        self.cells.len()
    }

    /// Makes `at` a border of cells.
    fn split(&mut self, at: u64) {
        if let Some((_, cell)) = self.cells.range_mut(..at).next_back().filter(|(_, cell)| cell.end > at) {
            let upper = cell.clone();
            cell.end = at;
            self.cells.insert(at, upper);
        }
    }
}

impl Cell {
    fn remember(&mut self, touch: &Touch) {
        match self.since.iter_mut().find(|old| old.party == touch.party && old.kind == touch.kind) {
            Some(old) => {
                let together = old.phase == touch.phase && old.epoch == touch.epoch;
                let elements = match (together, old.elements == touch.elements) {
                    (true, false) => Elements::Many,
                    _ => touch.elements,
                };
                *old = Touch { elements, ..touch.clone() };
            }
            None => self.since.push(touch.clone()),
        }
    }
}

fn conflict(old: &Touch, new: &Touch, knowledge: &Knowledge, bytes: &Range<u64>) -> Option<Conflict> {
    use AccessKind::{Atomic, PacketRead, PacketWrite};
    if !old.writes() && !new.writes() || old.kind == Atomic && new.kind == Atomic {
        return None;
    }
    if old.party == new.party {
        return if old.phase == new.phase { between_barriers(old, new, bytes) } else { None };
    }
    // The flag that let the reader go on came with these very bytes.
    if old.kind == PacketWrite && new.kind == PacketRead {
        return None;
    }
    let known = if old.writes() { &knowledge.visible } else { &knowledge.over };
    if known.covers(old.party, old.epoch) {
        return None;
    }
    Some(match knowledge.over.covers(old.party, old.epoch) {
        true => Conflict::OnlyCredited,
        false => Conflict::Unordered,
    })
}

/// Two accesses of one role copy with no barrier between them.
fn between_barriers(old: &Touch, new: &Touch, bytes: &Range<u64>) -> Option<Conflict> {
    match (old.elements, new.elements) {
        // One lane does what is outside of an `each`, in program order, and an `each` begins when it is through.
        (_, Elements::Outside) | (Elements::Outside, _) => None,
        (Elements::Line { first: a, start: s, size: m }, Elements::Line { first: b, start: t, size: n }) => {
            let element = |first: u64, start: u64, size: u64, byte: u64| first + byte.saturating_sub(start) / size;
            let last = bytes.end - 1;
            let same = |byte| element(a, s, m, byte) == element(b, t, n, byte);
            // Two lines of one slope that agree at both ends agree between them; other slopes are looked at byte by byte.
            let agree = if m == n && (s.abs_diff(t)).is_multiple_of(m) {
                same(bytes.start) && same(last)
            } else {
                bytes.clone().all(same)
            };
            (!agree).then_some(Conflict::Elements)
        }
        _ => Some(Conflict::Elements),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(party: PartyId, epoch: u32, kind: AccessKind) -> Touch {
        Touch { party, epoch, phase: epoch, launch: 0, inst: None, kind, elements: Elements::Outside }
    }

    fn knows(party: PartyId, epoch: u32) -> Knowledge {
        let mut all = Knowledge::default();
        all.set_own(party, epoch);
        all
    }

    #[test]
    fn what_is_not_known_races_and_only_there() {
        let mut shadow = Shadow::default();
        assert!(shadow.touch(0..64, &touch(0, 1, AccessKind::Write), &knows(0, 1)).is_empty());
        let read = touch(1, 1, AccessKind::Read);
        assert!(shadow.touch(0..32, &read, &knows(0, 1)).is_empty());
        let met = shadow.touch(32..64, &read, &knows(1, 1));
        let write = touch(0, 1, AccessKind::Write);
        assert_eq!(met, [Met::Race(Conflict::Unordered, write, 32..64)]);
    }

    #[test]
    fn bytes_nobody_wrote_are_named() {
        let mut shadow = Shadow::default();
        shadow.touch(8..16, &touch(0, 1, AccessKind::Write), &knows(0, 1));
        let met = shadow.touch(0..24, &touch(0, 1, AccessKind::Read), &knows(0, 1));
        assert_eq!(met, [Met::Unwritten(0..8), Met::Unwritten(16..24)]);
    }

    #[test]
    fn a_write_needs_the_reads_to_be_over_and_shows_ranges_as_ranges() {
        let mut shadow = Shadow::default();
        shadow.touch(0..4096, &touch(0, 1, AccessKind::Write), &knows(0, 1));
        for i in 0..64 {
            shadow.touch(i * 64..(i + 1) * 64, &touch(1, 1, AccessKind::Read), &knows(0, 1));
        }
        let mut credited = knows(0, 2);
        credited.over.set(1, 1);
        assert!(shadow.touch(0..4096, &touch(0, 2, AccessKind::Write), &credited).is_empty());
        assert_eq!(shadow.cells(), 1);
    }

    #[test]
    fn elements_meet_where_their_lines_differ() {
        let line = |first, kind| Touch { elements: Elements::Line { first, start: 0, size: 4 }, ..touch(0, 1, kind) };
        let mut shadow = Shadow::default();
        shadow.touch(0..64, &line(0, AccessKind::Write), &knows(0, 1));
        assert!(shadow.touch(0..64, &line(0, AccessKind::Read), &knows(0, 1)).is_empty());
        let met = shadow.touch(0..64, &line(1, AccessKind::Read), &knows(0, 1));
        assert!(matches!(met[..], [Met::Race(Conflict::Elements, ..)]), "{met:?}");
    }
}
