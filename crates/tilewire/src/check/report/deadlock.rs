//! The wait-for graph of a deadlock.

use super::fault::{Event, Fault, Waiter};
use super::naming::{Namer, holds};
use crate::check::eval::Awaited;
use crate::check::fixed::{Reach, reach};
use crate::check::memory::{Bound, MemoryId};
use crate::check::model::{Detector, PartyName, SlotKey};
use crate::check::world::{BoundOp, StreamId, Waiting, Who};
use crate::ir::{Base, Entity, Inst, Op};

impl Namer<'_> {
    /// The deadlock of these waiters, with the signals that would end it.
    pub fn deadlock(&self, detector: &Detector<'_>, stuck: &[Waiting]) -> Fault {
        let waiters: Vec<Waiter> = stuck.iter().map(|waiting| self.waiter(detector, stuck, waiting)).collect();
        let cycle = cycle(&waiters);
        Fault::Deadlock { waiters, cycle }
    }

    fn waiter(&self, detector: &Detector<'_>, stuck: &[Waiting], waiting: &Waiting) -> Waiter {
        let Waiting { who, launch, on } = waiting;
        let (memory, byte, text) = match &on.on {
            Awaited::Slot { name, slot } => {
                (slot.memory, slot.byte, format!("{name}[{}][{}] ≥ {}", slot.bank, slot.index, on.expected))
            }
            Awaited::Number { name, memory, byte } => (*memory, *byte, format!("another value of {name}")),
            Awaited::Word { name, memory, byte } => (*memory, *byte, format!("{name} = {}", on.expected)),
            Awaited::Packet { name, index, memory, byte } => {
                (*memory, *byte, format!("packet {index} of {name} with flag {}", on.expected))
            }
        };
        // A slot may be set to more than the awaited value; a word must be set to the value itself.
        let wanted = matches!(on.on, Awaited::Word { .. }).then_some(on.expected);
        let on_text = format!("{text}, seen {}", on.seen);
        let last = detector.slots.get(SlotKey { memory, byte }).and_then(|slot| slot.last());
        // A party that signalled before will signal again; if none did, a party that has an op for it.
        let mut after: Vec<usize> = Vec::new();
        let mut needs = String::new();
        let by = last.and_then(|last| match detector.parties[last.party as usize].name {
            PartyName::Role(by) | PartyName::Proxy(by) => Some(Who::Role(by)),
            // A word has two writers: the last writer is not the next one.
            _ => None,
        });
        if let (Some(last), Some(by)) = (last, by) {
            let event = self.party(by, last.launch, Some(last.inst));
            after.extend(stuck.iter().position(|other| other.who == by));
            needs = format!("which {event} set to {}", last.value);
            if after.is_empty() {
                needs += ", and that party has ended";
            }
        } else {
            for (place, other) in stuck.iter().enumerate() {
                if self.producer(other, (memory, byte), wanted).is_some() {
                    after.push(place);
                }
            }
            // A producer of the same block number is the likely one.
            let near = |place: &usize| block(stuck[*place].who) == block(*who);
            if after.iter().any(near) {
                after.retain(near);
            }
            if let Some(&place) = after.first() {
                let other = &stuck[place];
                let inst = self.producer(other, (memory, byte), wanted);
                needs = format!("which {} would do", self.party(other.who, other.launch, inst));
            } else {
                needs += "which no running party would do";
            }
        }
        Waiter { event: self.party(*who, *launch, Some(on.inst)), on: on_text, needs, after }
    }

    fn party(&self, who: Who, launch: u32, inst: Option<Inst>) -> Event {
        match who {
            Who::Role(who) => self.actor(who, launch, inst),
            Who::Stream(id) => self.stream(id, launch, inst),
        }
    }

    /// An op of a stuck party that could set the slot or the word (to `wanted`), or write the packet, at this byte.
    fn producer(&self, stuck: &Waiting, (memory, byte): (MemoryId, u64), wanted: Option<u64>) -> Option<Inst> {
        let launch = stuck.launch;
        let who = match stuck.who {
            Who::Role(who) => who,
            Who::Stream(StreamId { rank, number }) => {
                let ops = &self.stage.streams[launch as usize][rank as usize][number as usize];
                let sets = |op: &BoundOp| match op {
                    BoundOp::Write { word: (at, bytes), value } => {
                        *at == memory && bytes.start == byte && wanted.is_none_or(|wanted| wanted == *value)
                    }
                    _ => false,
                };
                // It will not repeat what it has already done.
                let left = stuck.on.inst.index();
                return ops.iter().skip(left).position(sets).map(|place| Inst::new(left + place));
            }
        };
        let kernel = self.plan.kernel(launch, who.rank);
        let bound = &self.stage.bindings[launch as usize][who.rank as usize];
        let mut found = None;
        kernel.walk(kernel.roles[who.role].body, &mut |inst| {
            let reaches = match &kernel.insts[inst].op {
                Op::Signal { slot, .. } | Op::SignalCredit { slot, .. } => {
                    reach(kernel, &bound.params, slot).iter().any(|reach| reach.holds(memory, byte))
                }
                Op::PacketPut { at, .. } | Op::AtomicAdd { at, .. } | Op::Store { at, .. } => match at.base {
                    Base::Param(param) => match bound.get(param) {
                        Bound::Buffer(banks) => banks.iter().any(|bank| holds(bank, memory, &(byte..byte + 1))),
                        _ => false,
                    },
                    Base::Scratch(_) => false,
                },
                Op::Post { queue, notice: Some(_), .. } => match bound.get(*queue) {
                    Bound::Queue(routes) => {
                        routes.iter().flatten().any(|route| Reach::all(&route.slots).holds(memory, byte))
                    }
                    _ => false,
                },
                _ => false,
            };
            if reaches && found.is_none() {
                found = Some(inst);
            }
        });
        found
    }
}

fn block(who: Who) -> Option<u32> {
    match who {
        Who::Role(who) => Some(who.block),
        Who::Stream(_) => None,
    }
}

/// The indices of a cycle, in the order of waiting; empty if there is none.
fn cycle(waiters: &[Waiter]) -> Vec<usize> {
    for start in 0..waiters.len() {
        let mut path = vec![start];
        let mut seen = vec![false; waiters.len()];
        seen[start] = true;
        // Depth first along the edges; a waiter that leads nowhere is not tried again.
        while let Some(&place) = path.last() {
            if place == start && path.len() > 1 {
                path.pop();
                return path;
            }
            let next = waiters[place].after.iter().copied().find(|&next| next == start || !seen[next]);
            match next {
                Some(next) => {
                    if next == start && path.len() == 1 {
                        return path;
                    }
                    seen[next] = true;
                    path.push(next);
                }
                None => {
                    path.pop();
                }
            }
        }
    }
    Vec::new()
}
