//! Shadow memory: the last accesses to each byte, as ranges.
//!
//! ```text
//!  bytes   0        64        128            a cell: bytes that the same accesses touched last
//!          ├─ cell ─┼─ cell ──┤              = the last write, and every read and atomic after it
//! ```
//! One `each` over neighbouring elements is one range, so a message of a million elements costs as many cells as it has
//! tiles. Which element touched a byte is kept as a line (first element, bytes per element), so that two elements of
//! one `each` that meet on a byte are detected without a cell per element.

use super::clock::{Knowledge, PartyId};
use crate::check::observer::AccessKind;
use crate::ir::{Access, Inst, Scope};
use std::collections::BTreeMap;
use std::ops::Range;

/// An access, as recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Touch {
    /// The party.
    pub party: PartyId,
    /// The epoch of the party, which ends when the party publishes its effects.
    pub epoch: u32,
    /// The number of barriers of the role copy before it.
    pub phase: u32,
    /// The launch of its rank.
    pub launch: u32,
    /// The instruction; `None` for the host.
    pub inst: Option<Inst>,
    /// The kind of access.
    pub kind: AccessKind,
    /// The elements.
    pub elements: Elements,
    /// The rank of the party.
    pub rank: u32,
    /// The promise of its parameter: that nobody else writes the bytes of an `In` or an `Out` during the launch.
    pub promise: Option<Access>,
    /// The scope of its atomicity, if it is atomic.
    pub atomic: Option<Atomicity>,
    /// True if the result of an atomic is used.
    pub is_used: bool,
}

/// The scope of an atomic access. Two of them race as plain accesses do unless they touch the same bytes and the scope
/// of each contains the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Atomicity {
    /// The rank of its party, which is its own device.
    pub rank: u32,
    /// Its block; `None` for parties outside all blocks.
    pub block: Option<u32>,
    /// Its scope.
    pub scope: Scope,
    /// Its bytes.
    pub bytes: Range<u64>,
}

impl Atomicity {
    fn reaches(&self, other: &Atomicity) -> bool {
        match self.scope {
            Scope::System => true,
            Scope::Device => self.rank == other.rank,
            Scope::Block => self.rank == other.rank && self.block == other.block,
        }
    }

    /// True if the two are atomic together.
    pub fn agrees(&self, other: &Atomicity) -> bool {
        self.bytes == other.bytes && self.reaches(other) && other.reaches(self)
    }
}

/// The elements of an `each` that touched the bytes of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Elements {
    /// None: the access is outside of an `each`.
    Outside,
    /// The byte at `start` belongs to element `first`, and every `size` bytes to the next.
    Line {
        /// First element.
        first: u64,
        /// Its first byte.
        start: u64,
        /// Bytes per element.
        size: u64,
    },
    /// Several elements touched every byte.
    Many,
}

impl Touch {
    fn writes(&self) -> bool {
        writes(self.kind)
    }

    /// True if the value it finds there matters.
    fn is_read(&self) -> bool {
        !self.writes() || self.kind == AccessKind::Atomic && self.is_used
    }

    /// True if it writes, on one rank, bytes that the other reaches on another rank through a parameter that promises
    /// that nobody does.
    fn breaks(&self, other: &Touch) -> bool {
        other.promise.is_some() && self.rank != other.rank && self.writes()
    }
}

/// True if an access changes bytes.
pub fn writes(kind: AccessKind) -> bool {
    use AccessKind::{Atomic, BulkWrite, NetworkWrite, PacketWrite, Write};
    matches!(kind, Write | Atomic | PacketWrite | BulkWrite | NetworkWrite)
}

/// The conflict between an access and an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Conflict {
    /// Nothing orders them.
    Unordered,
    /// Only a credit orders them, and a credit shows no data.
    OnlyCredited,
    /// Two elements of one `each`.
    Elements,
    /// Two atomics whose scopes do not contain each other.
    Scopes,
    /// Two atomics that do not touch the same bytes.
    Sizes,
}

/// The result of an access.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Met {
    /// An earlier access that it conflicts with.
    Race(Conflict, Touch, Range<u64>),
    /// An ordered access of another rank. One of the two is a write, and one goes through a parameter that promises
    /// that nobody else writes its bytes during the launch.
    Promised(Touch, Range<u64>),
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
    /// Under a packet: the last write that was not a packet. It may have left bytes that look like the packet that a
    /// get waits for.
    under: Option<Touch>,
    /// Reads and atomics since the write: one of each party and kind, the latest.
    since: Vec<Touch>,
}

impl Shadow {
    /// Records an access by a party with `knowledge` and returns the conflicts, in the order of bytes.
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
            // A party that got the packet has seen it arrive: its later accesses there come after it.
            let got = |old: &Touch| {
                let same = || between_barriers(old, touch, &(start..cell.end)).is_none();
                let is_got = old.kind == AccessKind::PacketRead;
                match old.party == touch.party {
                    true => is_got && (old.phase != touch.phase || same()),
                    // What a packet has shown to one party, that party's signals show to others.
                    false => is_got && knowledge.visible.covers(old.party, old.epoch),
                }
            };
            let got = cell.since.iter().any(got);
            let under = cell.under.iter().filter(|_| touch.kind == AccessKind::PacketRead);
            for old in cell.write.iter().chain(under).chain(&cell.since) {
                if got && old.kind == AccessKind::PacketWrite {
                    continue;
                }
                if let Some(conflict) = conflict(old, touch, knowledge, &(start..cell.end)) {
                    met.push(Met::Race(conflict, old.clone(), start..cell.end));
                } else if old.breaks(touch) || touch.breaks(old) {
                    met.push(Met::Promised(old.clone(), start..cell.end));
                }
            }
            if cell.write.is_none() && touch.is_read() {
                met.push(Met::Unwritten(start..cell.end));
            }
            if !replaces {
                cell.remember(touch);
            }
        }
        if covered < bytes.end {
            gaps.push(covered..bytes.end);
        }
        if touch.kind == AccessKind::PacketWrite {
            for (_, cell) in self.cells.range_mut(bytes.clone()) {
                let under = cell.write.take().filter(|old| old.kind != AccessKind::PacketWrite).or(cell.under.take());
                *cell = Cell { end: cell.end, write: Some(touch.clone()), under, since: Vec::new() };
            }
            for gap in gaps {
                let cell = Cell { end: gap.end, write: Some(touch.clone()), under: None, since: Vec::new() };
                self.cells.insert(gap.start, cell);
            }
        } else if replaces {
            let inside: Vec<u64> = self.cells.range(bytes.clone()).map(|(&start, _)| start).collect();
            inside.iter().for_each(|start| _ = self.cells.remove(start));
            self.cells.insert(
                bytes.start,
                Cell { end: bytes.end, write: Some(touch.clone()), under: None, since: Vec::new() },
            );
        } else {
            for gap in gaps {
                if touch.is_read() {
                    met.push(Met::Unwritten(gap.clone()));
                }
                self.cells
                    .insert(gap.start, Cell { end: gap.end, write: None, under: None, since: vec![touch.clone()] });
            }
        }
        met
    }

    /// The first of these bytes that nobody wrote.
    pub fn unwritten(&mut self, bytes: Range<u64>) -> Option<Range<u64>> {
        self.split(bytes.start);
        self.split(bytes.end);
        let mut covered = bytes.start;
        for (&start, cell) in self.cells.range(bytes.clone()) {
            if covered < start {
                return Some(covered..start);
            }
            // An atomic adds to the previous value.
            if cell.write.is_none() && !cell.since.iter().any(Touch::writes) {
                return Some(start..cell.end);
            }
            covered = cell.end;
        }
        (covered < bytes.end).then_some(covered..bytes.end)
    }

    /// Number of cells, to test that ranges stay ranges.
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
        let like = |old: &&mut Touch| {
            (old.party, old.kind, old.promise, &old.atomic) == (touch.party, touch.kind, touch.promise, &touch.atomic)
        };
        match self.since.iter_mut().find(like) {
            Some(old) => {
                let together = old.phase == touch.phase;
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
    use AccessKind::{PacketRead, PacketWrite};
    let atomics = old.atomic.as_ref().zip(new.atomic.as_ref());
    if !old.writes() && !new.writes() || atomics.is_some_and(|(old, new)| old.agrees(new)) {
        return None;
    }
    if old.party == new.party {
        return if old.phase == new.phase { between_barriers(old, new, bytes) } else { None };
    }
    // The flag that let the reader continue came with these very bytes.
    if old.kind == PacketWrite && new.kind == PacketRead {
        return None;
    }
    let known = if old.writes() { &knowledge.visible } else { &knowledge.over };
    if known.covers(old.party, old.epoch) {
        return None;
    }
    Some(match (atomics, knowledge.over.covers(old.party, old.epoch)) {
        (Some((old, new)), _) if old.bytes != new.bytes => Conflict::Sizes,
        (Some(_), _) => Conflict::Scopes,
        (None, true) => Conflict::OnlyCredited,
        (None, false) => Conflict::Unordered,
    })
}

/// Two accesses of one role copy with no barrier between them.
fn between_barriers(old: &Touch, new: &Touch, bytes: &Range<u64>) -> Option<Conflict> {
    match (old.elements, new.elements) {
        // One lane does the work outside an `each`, in program order, and an `each` begins after it.
        (_, Elements::Outside) | (Elements::Outside, _) => None,
        (Elements::Line { first: a, start: s, size: m }, Elements::Line { first: b, start: t, size: n }) => {
            let element = |first: u64, start: u64, size: u64, byte: u64| first + byte.saturating_sub(start) / size;
            let last = bytes.end - 1;
            let same = |byte| element(a, s, m, byte) == element(b, t, n, byte);
            // Two lines of one slope that agree at both ends agree between them. Other slopes are compared byte by
            // byte.
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
        let (elements, rank) = (Elements::Outside, party);
        Touch {
            party,
            epoch,
            phase: epoch,
            launch: 0,
            inst: None,
            kind,
            elements,
            rank,
            promise: None,
            atomic: None,
            is_used: false,
        }
    }

    #[test]
    fn atomics_agree_where_each_scope_holds_the_other() {
        let atomic = |party, block, scope, bytes| {
            let atomic = Some(Atomicity { rank: party / 2, block: Some(block), scope, bytes });
            Touch { atomic, ..touch(party, 1, AccessKind::Atomic) }
        };
        let met = |first: Touch, second: Touch| {
            let (mut shadow, bytes) = (Shadow::default(), |touch: &Touch| touch.atomic.clone().unwrap().bytes);
            shadow.touch(bytes(&first), &first, &knows(first.party, 1));
            let met = shadow.touch(bytes(&second), &second, &knows(second.party, 1));
            met.iter().find_map(|met| if let Met::Race(conflict, ..) = met { Some(*conflict) } else { None })
        };
        use Scope::{Block, Device, System};
        assert_eq!(met(atomic(0, 0, System, 0..8), atomic(2, 0, System, 0..8)), None);
        assert_eq!(met(atomic(0, 0, System, 0..8), atomic(2, 0, Device, 0..8)), Some(Conflict::Scopes));
        assert_eq!(met(atomic(0, 0, Device, 0..8), atomic(1, 1, Device, 0..8)), None);
        assert_eq!(met(atomic(0, 0, Block, 0..8), atomic(1, 1, Device, 0..8)), Some(Conflict::Scopes));
        assert_eq!(met(atomic(0, 1, Block, 0..8), atomic(1, 1, Device, 0..8)), None);
        assert_eq!(met(atomic(0, 0, System, 0..8), atomic(2, 0, System, 0..4)), Some(Conflict::Sizes));
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
