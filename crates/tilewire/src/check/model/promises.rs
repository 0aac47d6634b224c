//! The promises of parameters: bytes that a kernel reaches through an `In` or an `Out` are written by no other rank
//! during its launch.
//!
//! Engines rely on it: a GPU may read an input through a cache that sees no writes, and the CPU engine keeps what it
//! has read. So a write of another rank during the launch is a fault even if signals order it. A write is *before* a
//! launch if the host that launched it knew of it, and *after* it if the writer knows that the host has continued. Both
//! are happens-before, so every run finds the same.
//!
//! For an input all bytes that the launch binds are promised, touched or not: an engine may read ahead. If the kernel
//! touches them, its access is reported beside the write, otherwise the line of the declaration. For an output only the
//! bytes that the kernel touches are promised: no engine reads ahead of what it writes, and `direct` transfers let a
//! peer fill the rest. A copy engine breaks a promise only if the kernel touches the bytes, input or output.

use super::clock::PartyId;
use super::detector::Detector;
use super::shadow::{Touch, writes};
use super::sighting::Seen;
use crate::check::memory::MemoryId;
use crate::check::observer::AccessKind;
use crate::ir::{Access, Base, Inst, Op, Param, ParamId, Place};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Bytes that a launch binds as an input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Promise {
    /// The rank.
    pub rank: u32,
    /// Its launch.
    pub launch: u32,
    /// The parameter.
    pub param: ParamId,
    /// The bytes.
    pub bytes: Range<u64>,
}

/// The promises of all launches, and the writes to their bytes.
#[derive(Default)]
pub struct Promises {
    /// By memory.
    pub all: HashMap<MemoryId, Vec<Promise>>,
    /// By memory: writes of kernels to bytes that another rank has as its input, the last of each party; by party,
    /// start and end.
    written: HashMap<MemoryId, BTreeMap<(PartyId, u64, u64), Touch>>,
    /// By rank: the launches that have begun.
    begun: HashMap<u32, u32>,
    /// Promises that a write has broken.
    broken: Vec<(MemoryId, Promise, Touch, Range<u64>)>,
}

impl Detector<'_> {
    /// The promise of the parameter that a kernel's access goes through.
    pub(super) fn promise(&self, launch: u32, rank: u32, inst: Inst, kind: AccessKind) -> Option<Access> {
        let kernel = self.kernels.get(launch as usize)?[rank as usize];
        let at: &Place = match &kernel.insts[inst].op {
            Op::Load { at, .. } | Op::Store { at, .. } | Op::AtomicAdd { at, .. } => at,
            Op::BulkCopy { dst, src, .. } => {
                if writes(kind) {
                    dst
                } else {
                    src
                }
            }
            Op::Post { span: Some(span), .. } if !writes(kind) => &span.src,
            _ => return None,
        };
        let Base::Param(param) = at.base else { return None };
        match kernel.params[param] {
            Param::Buffer { access: access @ (Access::In | Access::Out), .. } => Some(access),
            _ => None,
        }
    }

    /// True if one of two accesses of two ranks writes, during a launch of the other, bytes promised to that launch.
    pub(super) fn is_broken(&self, first: &Touch, second: &Touch) -> bool {
        let before = || {
            let host = &self.begun[second.rank as usize];
            !host.visible.covers(first.party, first.epoch)
        };
        let after = || {
            let host = self.hosts[first.rank as usize];
            let over = self.over[first.rank as usize].get(first.launch as usize);
            let knowledge = &self.parties[second.party as usize].knowledge;
            over.is_none_or(|&over| !knowledge.over.covers(host, over))
        };
        second.promise.is_some() && writes(first.kind) && before()
            || first.promise.is_some() && writes(second.kind) && after()
    }

    /// A kernel writes to bytes that another rank has promised to its launch, if that has begun and is not known to be
    /// over.
    pub(super) fn writes_promised(&mut self, memory: MemoryId, bytes: &Range<u64>, touch: &Touch) {
        let Some(all) = self.promises.all.get(&memory) else { return };
        let knowledge = &self.parties[touch.party as usize].knowledge;
        let (mut foreign, mut broken) = (false, Vec::new());
        for promise in all.iter().filter(|promise| promise.rank != touch.rank && meets(&promise.bytes, bytes)) {
            foreign = true;
            let begun = self.promises.begun.get(&promise.rank).copied().unwrap_or(0);
            let over = self.over[promise.rank as usize].get(promise.launch as usize);
            let host = self.hosts[promise.rank as usize];
            if promise.launch < begun && over.is_none_or(|&over| !knowledge.over.covers(host, over)) {
                broken.push((memory, promise.clone(), touch.clone(), bytes.clone()));
            }
        }
        if foreign {
            let written = self.promises.written.entry(memory).or_default();
            written.insert((touch.party, bytes.start, bytes.end), touch.clone());
        }
        broken.into_iter().for_each(|broken| self.promises.breaks(broken));
    }

    /// A launch begins: its host must know of all earlier writes to its promised bytes.
    pub(super) fn begins_promised(&mut self, rank: u32, launch: u32, host: PartyId) {
        if self.promises.begun.insert(rank, launch + 1) == Some(launch + 1) {
            return;
        }
        let (knowledge, mut broken) = (&self.parties[host as usize].knowledge, Vec::new());
        for (&memory, written) in &self.promises.written {
            let of_launch = |promise: &&Promise| promise.rank == rank && promise.launch == launch;
            for promise in self.promises.all.get(&memory).into_iter().flatten().filter(of_launch) {
                let unknown = |(bytes, touch): &(Range<u64>, &Touch)| {
                    let known = knowledge.visible.covers(touch.party, touch.epoch);
                    touch.rank != rank && meets(bytes, &promise.bytes) && !known
                };
                let found = written.iter().map(|(&(_, start, end), touch)| (start..end, touch)).filter(unknown);
                broken.extend(found.map(|(bytes, touch)| (memory, promise.clone(), touch.clone(), bytes)));
            }
        }
        broken.into_iter().for_each(|broken| self.promises.breaks(broken));
    }

    /// Reports broken promises that no access of their owner has shown.
    pub(super) fn report_promised(&mut self) {
        for (memory, promise, by, bytes) in std::mem::take(&mut self.promises.broken) {
            let is_shown = self.sightings.iter().any(|sighting| match &sighting.seen {
                Seen::Promised { first, second, .. } | Seen::Race { first, second, .. } => {
                    let is_it = |touch: &Touch| (touch.inst, touch.rank) == (by.inst, by.rank);
                    is_it(first) || is_it(second)
                }
                _ => false,
            });
            if !is_shown {
                let party = by.party;
                self.report(Seen::Bound { promise, by, memory, bytes }, &[party]);
            }
        }
    }
}

impl Promises {
    fn breaks(&mut self, broken: (MemoryId, Promise, Touch, Range<u64>)) {
        let is_like = |known: &(MemoryId, Promise, Touch, Range<u64>)| known.2.inst == broken.2.inst;
        if !self.broken.iter().any(is_like) {
            self.broken.push(broken);
        }
    }
}

fn meets(a: &Range<u64>, b: &Range<u64>) -> bool {
    // An empty range meets nothing, wherever it lies.
    a.start.max(b.start) < a.end.min(b.end)
}
