//! The possible actions of a small program, as events: each is one access of one party to some bytes. This file also
//! says when two events conflict.

use super::program::{Party, Place, Program, Small, Span, Told, Touch, WORDS};
use std::ops::Range;
use tilewire::ir::{Access, Scope};

/// A set of events, by their numbers.
pub type Events = u128;

/// The way in which an event touches its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    Write,
    /// An atomic addition.
    Atomic(Scope),
    /// A signal or a credit.
    SlotWrite,
    /// A wait or a test.
    SlotRead,
    PacketWrite,
    PacketRead,
}

/// A party: a role copy, by its number, or the host of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    Party(usize),
    /// A part of a post of a role copy, by the number of its first event.
    Post(usize),
    /// The notices of a role copy to one peer. Those for one slot come one after the other.
    Proxy(usize, usize),
    Host(usize),
}

#[derive(Clone, Debug)]
pub struct Event {
    pub by: By,
    pub rank: usize,
    pub block: Option<usize>,
    pub kind: Kind,
    pub bytes: Range<usize>,
}

/// The events of a program.
#[derive(Debug)]
pub struct Catalogue {
    pub all: Vec<Event>,
    /// For each party and op, the number of the first event of the op. Others follow it: the conditional touch, the
    /// packets (puts, then gets), or the parts of a post (a read and a write of each part, then the notice).
    pub first: Vec<Vec<usize>>,
    /// Writes the input of a rank before it launches.
    pub host_write: Option<usize>,
    /// Reads the output of a rank when its launch has ended.
    pub host_read: Option<usize>,
}

/// All bytes in one row: words, slots, the tensor, packets.
pub fn slot_bytes(slot: usize) -> Range<usize> {
    1000 + slot * 8..1000 + slot * 8 + 8
}

pub fn packet_bytes(packet: usize) -> Range<usize> {
    3000 + packet * 16..3000 + packet * 16 + 16
}

pub fn bytes(at: Place) -> Range<usize> {
    match at {
        Place::Word(i) => i * 8..i * 8 + 8,
        Place::Half(i) => i * 4..i * 4 + 4,
        Place::Slot(i) => slot_bytes(i),
        Place::Tensor => 2000..2008,
    }
}

impl Catalogue {
    pub fn of(program: &Program) -> Catalogue {
        const { assert!(WORDS * 8 < 1000) };
        let mut all = Vec::new();
        let mut first = Vec::new();
        for (p, party) in program.parties.iter().enumerate() {
            first.push(Vec::new());
            for op in &party.ops {
                first[p].push(all.len());
                if let Small::Post { peer, span, notice } = *op {
                    for (from, to) in span.map_or(Vec::new(), Span::parts) {
                        let by = By::Post(all.len());
                        all.extend(
                            [(Kind::Read, from), (Kind::Write, to)]
                                .map(|(kind, at)| posted(by, party, kind, bytes(at))),
                        );
                    }
                    let told = |Told { slot, .. }| posted(By::Proxy(p, peer), party, Kind::SlotWrite, slot_bytes(slot));
                    all.extend(notice.map(told));
                }
                all.extend(of_op(op).into_iter().map(|(kind, bytes)| event(p, party, kind, bytes)));
            }
        }
        let (mut host_write, mut host_read) = (None, None);
        if let Some((rank, access)) = program.tensor {
            let (kind, number) = match access {
                Access::In => (Kind::Write, &mut host_write),
                _ => (Kind::Read, &mut host_read),
            };
            *number = Some(all.len());
            all.push(Event { by: By::Host(rank), rank, block: None, kind, bytes: bytes(Place::Tensor) });
        }
        assert!(all.len() <= Events::BITS as usize, "too many events");
        Catalogue { all, first, host_write, host_read }
    }
}

fn event(p: usize, party: &Party, kind: Kind, bytes: Range<usize>) -> Event {
    Event { by: By::Party(p), rank: party.rank, block: Some(party.block), kind, bytes }
}

/// An event of the network belongs to no block.
fn posted(by: By, party: &Party, kind: Kind, bytes: Range<usize>) -> Event {
    Event { by, rank: party.rank, block: None, kind, bytes }
}

fn of_op(op: &Small) -> Vec<(Kind, Range<usize>)> {
    let plain = |touch: Touch| (if touch.write.is_some() { Kind::Write } else { Kind::Read }, bytes(touch.at));
    match *op {
        Small::Plain(touch) => vec![plain(touch)],
        Small::Add { at, scope, then, .. } => {
            let then = then.map(|(_, touch)| plain(touch));
            std::iter::once((Kind::Atomic(scope), bytes(at))).chain(then).collect()
        }
        Small::Signal { slot, .. } => vec![(Kind::SlotWrite, slot_bytes(slot))],
        Small::Post { .. } => Vec::new(),
        Small::Wait { slot, .. } => vec![(Kind::SlotRead, slot_bytes(slot))],
        Small::Test { slot, then, .. } => vec![(Kind::SlotRead, slot_bytes(slot)), plain(then)],
        Small::Packets { count, put, get, .. } => {
            let puts = put.into_iter().flat_map(|(first, _)| (0..count).map(move |i| packet_bytes(first + i)));
            let gets = get.into_iter().flat_map(|(first, _)| (0..count).map(move |i| packet_bytes(first + i)));
            puts.map(|bytes| (Kind::PacketWrite, bytes)).chain(gets.map(|bytes| (Kind::PacketRead, bytes))).collect()
        }
    }
}

impl Event {
    pub fn writes(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::Atomic(_) | Kind::SlotWrite | Kind::PacketWrite)
    }

    pub fn meets(&self, other: &Event) -> bool {
        self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }

    /// True if the bytes decide which party continues: slots and packets.
    pub fn controls(&self) -> bool {
        let slots = slot_bytes(0).start..slot_bytes(super::program::SLOTS).start;
        slots.contains(&self.bytes.start) || self.bytes.start >= packet_bytes(0).start
    }

    /// The scope of an atomic event.
    fn scope(&self) -> Option<Scope> {
        match self.kind {
            Kind::Atomic(scope) => Some(scope),
            Kind::SlotWrite | Kind::SlotRead => Some(Scope::System),
            _ => None,
        }
    }

    fn reaches(&self, other: &Event) -> bool {
        match self.scope() {
            None => false,
            Some(Scope::System) => true,
            Some(Scope::Device) => self.rank == other.rank,
            Some(Scope::Block) => self.rank == other.rank && self.block == other.block,
        }
    }

    /// True if the two events are atomic with each other: they touch the same bytes, and the scope of each contains the
    /// other's party.
    pub fn agrees(&self, other: &Event) -> bool {
        self.bytes == other.bytes && self.reaches(other) && other.reaches(self)
    }

    /// True if it must be ordered after `earlier`, an event of another party.
    pub fn conflicts(&self, earlier: &Event) -> bool {
        self.by != earlier.by
            && self.meets(earlier)
            && (self.writes() || earlier.writes())
            && !self.agrees(earlier)
            // The flag that let the reader continue came together with these bytes.
            && !(earlier.kind == Kind::PacketWrite && self.kind == Kind::PacketRead)
    }

    /// A plain read of a slot, and a wait or a test, which also reads. The checker counts waits as writes here.
    pub fn may_be_said_to_race(&self, earlier: &Event) -> bool {
        let reads = |a: &Event, b: &Event| a.kind == Kind::SlotRead && b.kind == Kind::Read;
        self.by != earlier.by && self.meets(earlier) && (reads(self, earlier) || reads(earlier, self))
    }
}
