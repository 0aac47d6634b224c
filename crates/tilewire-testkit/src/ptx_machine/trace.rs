//! The accesses to memory and the meetings of a run's threads, in the order in which they happened.
//!
//! The order is the one in which the machine ran the threads. [`Trace::met_between`] answers a question that must not
//! depend on it: the program orders two accesses of two threads if both threads met after the first and before the
//! second.

use super::execute::Thread;
use super::parse::Instr;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    Global,
    Shared,
    Other,
}

impl Space {
    pub(super) fn of(parts: &[&str]) -> Space {
        match () {
            () if parts.contains(&"global") => Space::Global,
            () if parts.contains(&"shared") => Space::Shared,
            () => Space::Other,
        }
    }
}

/// One access of one thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    pub rank: usize,
    pub block: u32,
    pub thread: u32,
    /// The instruction's name, with all its parts.
    pub op: String,
    pub load: bool,
    pub space: Space,
    pub address: u64,
    pub bytes: u64,
}

impl Access {
    /// True if both accesses touch a common byte. Each block has its own shared memory.
    pub fn overlaps(&self, other: &Access) -> bool {
        let place = |access: &Access| (access.space == Space::Shared).then_some((access.rank, access.block));
        let apart = self.address + self.bytes <= other.address || other.address + other.bytes <= self.address;
        self.space == other.space && place(self) == place(other) && !apart
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Access(Access),
    /// These threads of a block met at a barrier, or in a collective of their warp.
    Met {
        rank: usize,
        block: u32,
        threads: Vec<u32>,
    },
}

#[derive(Default, Debug)]
pub struct Trace {
    pub events: Vec<Event>,
    /// The rank whose threads run.
    pub(super) rank: usize,
}

impl Trace {
    pub(super) fn access(&mut self, by: &Thread, instr: &Instr, at: (Space, u64, u64), load: bool) {
        let (space, address, bytes) = at;
        let (rank, block, thread, op) = (self.rank, by.block, by.number, instr.parts.join("."));
        self.events.push(Event::Access(Access { rank, block, thread, op, load, space, address, bytes }));
    }

    pub(super) fn met<'t>(&mut self, threads: impl Iterator<Item = &'t Thread> + Clone) {
        let block = threads.clone().next().map_or(0, |thread| thread.block);
        let threads = threads.map(|thread| thread.number).collect();
        self.events.push(Event::Met { rank: self.rank, block, threads });
    }

    /// The accesses that satisfy a condition, each with its place in the order.
    pub fn accesses(&self, are: impl Fn(&Access) -> bool) -> Vec<(usize, &Access)> {
        let places = self.events.iter().enumerate();
        let accesses = places.filter_map(|(at, event)| match event {
            Event::Access(access) => Some((at, access)),
            Event::Met { .. } => None,
        });
        accesses.filter(|(_, access)| are(access)).collect()
    }

    /// The meetings of a thread between two places.
    pub fn meetings(&self, by: &Access, from: usize, to: usize) -> usize {
        self.events[from.min(to)..to].iter().filter(|event| is_meeting_of(event, by)).count()
    }

    /// True if the threads of two accesses met after the first and before the second.
    pub fn met_between(&self, first: (usize, &Access), second: (usize, &Access)) -> bool {
        first.0 < second.0
            && self.events[first.0..second.0]
                .iter()
                .any(|event| is_meeting_of(event, first.1) && is_meeting_of(event, second.1))
    }
}

fn is_meeting_of(event: &Event, by: &Access) -> bool {
    matches!(event, Event::Met { rank, block, threads }
        if (*rank, *block) == (by.rank, by.block) && threads.contains(&by.thread))
}
