//! Atomics, which are read-modify-writes: what they publish and see, and how they change a counter.
//!
//! An atomic that acquires sees what every earlier releasing atomic on the same bytes published: each of them continues
//! the release sequences of those before it. Which ones came before depends on the schedule, so such an atomic is
//! outside the monotone fragment, as is one whose result is used. One that does neither commutes with its like and is
//! inside.
//!
//! On the bytes of a slot an atomic is a signal that adds: a wait may be for it. Two of them are not ordered and need
//! not be; one and a signal are two writers of a counter. Which count a wait finds first depends on the schedule, so
//! that is outside the fragment too.

use super::clock::{Knowledge, PartyId};
use super::detector::Detector;
use super::log::Deed;
use super::outside::{Incomplete, Outside};
use super::shadow::{Atomicity, Elements, Touch};
use super::sighting::Seen;
use super::slots::{BadSignal, Signalled, SlotKey};
use crate::check::memory::MemoryId;
use crate::check::observer::{Access, AccessKind, SlotRef};
use crate::ir::{Entity, Inst, Kernel, Order, ParamId, Scope};
use std::ops::Range;
use std::rc::Rc;

impl Detector<'_> {
    /// A role copy adds atomically.
    pub(super) fn add(
        &mut self,
        party: PartyId,
        access: &Access,
        (order, scope): (Order, Scope),
        (before, after): (u64, u64),
    ) {
        let Access { inst, element, memory, ref bytes, .. } = *access;
        let (acquires, releases) =
            (matches!(order, Order::Acquire | Order::AcqRel), matches!(order, Order::Release | Order::AcqRel));
        let slot = self.places.meeting(memory, bytes).next();
        let counter = slot.filter(|&slot| bytes.start == slot && bytes.end == slot + 8);
        self.leave(party, inst, acquires, slot.is_some());
        let is_used = self.used[&self.op(party, inst)];
        if is_used && !acquires {
            // Later ops of the program may move before it.
            self.incomplete.get_or_insert(Incomplete::WeakMemory);
        } else if is_used || acquires {
            self.sees_less(party);
        }
        self.parties[party as usize].has_met = true;
        if element.is_some() && (releases || self.outside.contains_key(&self.op(party, inst))) {
            self.incomplete.get_or_insert(Incomplete::Elements);
        }
        let at = (memory, bytes.start);
        let key = SlotKey { memory, byte: bytes.start };
        let me = Atomicity { scope, ..self.system_wide(party, bytes.clone()) };
        if acquires {
            let last = self.slots.get(key).and_then(|slot| slot.last()).filter(|_| counter.is_some());
            let told = last.filter(|last| self.slots.agree(key, last, &me)).map(|last| last.published.clone());
            let knowledge = &mut self.parties[party as usize].knowledge;
            let released = self.atomics.get(&at).into_iter().flatten().filter(|(other, _)| other.agrees(&me));
            released.map(|(_, told)| told).chain(told.as_deref()).for_each(|told| knowledge.join(told));
        }
        let (start, size) = (bytes.start, bytes.end - bytes.start);
        let elements = element.map_or(Elements::Outside, |first| Elements::Line { first, start, size });
        let touch = self.atomically(party, inst, AccessKind::Atomic, scope, bytes.clone(), elements);
        self.check(memory, bytes.clone(), Touch { is_used, ..touch });
        let (epoch, knowledge) = (self.parties[party as usize].epoch, self.parties[party as usize].knowledge.clone());
        let told = releases.then(|| self.parties[party as usize].release(party));
        if let Some(told) = &told {
            let released = self.atomics.entry(at).or_default();
            match released.iter_mut().find(|(other, _)| *other == me) {
                Some((_, known)) => known.join(told),
                None => released.push((me.clone(), Knowledge::clone(told))),
            }
        }
        if counter.is_none() || before == after {
            return;
        }
        self.set.push(at);
        // The word still publishes what it published before, and this as well.
        let mut published = self
            .slots
            .get(key)
            .and_then(|slot| slot.last())
            .map_or_else(Knowledge::default, |last| Knowledge::clone(&last.published));
        told.iter().for_each(|told| published.join(told));
        let launch = self.parties[party as usize].launch;
        let slot = SlotRef { param: ParamId::new(0), bank: 0, index: 0, memory, byte: bytes.start };
        let entry = self.log.push(party, launch, epoch, Some(inst), Deed::Signal { slot, value: after, credit: false });
        let (published, credit, hides, atomic, operation) = (Rc::new(published), false, false, Some(me), None);
        let signal =
            Signalled { value: after, published, credit, hides, atomic, operation, party, epoch, launch, inst, entry };
        let judged = self.slots.signal(key, before, signal.clone(), &knowledge);
        self.bad_signal(key, judged.bad, signal);
    }

    /// A party observes what has happened and what has not. Interleavings suffice for that only if it is the party's
    /// first interaction with others. After a signal, a wait or a packet of its own, weaker memory orders let it miss
    /// what every interleaving shows.
    pub(super) fn sees_less(&mut self, party: PartyId) {
        if self.parties[party as usize].has_met {
            self.incomplete.get_or_insert(Incomplete::WeakMemory);
        }
    }

    /// Reports a bad signal.
    pub(super) fn bad_signal(&mut self, slot: SlotKey, bad: Option<BadSignal>, second: Signalled) {
        let party = second.party;
        match bad {
            Some(BadSignal::TwoWriters(first)) => {
                let parties = [first.party, party];
                self.report(Seen::TwoWriters { slot, first, second }, &parties);
            }
            Some(BadSignal::BelowStart(before)) => {
                self.report(Seen::BelowStart { slot, before, signal: second }, &[party]);
            }
            Some(BadSignal::NotGrowing(first)) => self.report(Seen::NotGrowing { slot, first, second }, &[party]),
            None => {}
        }
    }

    /// A plain write meets counters: they restart with the written value.
    pub(super) fn overwrites(&mut self, memory: MemoryId, bytes: &Range<u64>, touch: &Touch) {
        if let (true, Some(inst)) = (self.overwritten(memory, bytes), touch.inst) {
            self.outside.entry((touch.launch, touch.rank, inst)).or_insert(Outside::WriteOnSlot);
        }
    }

    /// As above, for writes of any party. Returns true if there are counters.
    pub(super) fn overwritten(&mut self, memory: MemoryId, bytes: &Range<u64>) -> bool {
        let met: Vec<u64> = self.places.meeting(memory, bytes).collect();
        let any = !met.is_empty();
        for byte in met {
            self.set.push((memory, byte));
            self.slots.overwritten(SlotKey { memory, byte });
        }
        any
    }

    /// Records that an atomic is outside the fragment, if it is.
    fn leave(&mut self, party: PartyId, inst: Inst, acquires: bool, on_slot: bool) {
        let op = self.op(party, inst);
        let kernel = self.kernels[op.0 as usize][op.1 as usize];
        let used = *self.used.entry(op).or_insert_with(|| is_used(kernel, inst));
        let why = match (on_slot, used, acquires) {
            (true, ..) => Outside::AtomicOnSlot,
            (_, true, _) => Outside::UsedAtomic,
            (.., true) => Outside::AcquiringAtomic,
            _ => return,
        };
        self.outside.entry(op).or_insert(why);
    }

    /// An instruction of a party, as (launch, rank, instruction).
    fn op(&self, party: PartyId, inst: Inst) -> (u32, u32, Inst) {
        let party = &self.parties[party as usize];
        (party.launch, party.name.rank(), inst)
    }
}

fn is_used(kernel: &Kernel, inst: Inst) -> bool {
    let Some(result) = kernel.insts[inst].result else { return false };
    let mut used = false;
    for role in kernel.roles.values() {
        kernel.walk(role.body, &mut |other| used |= kernel.insts[other].op.operands().contains(&result));
    }
    used
}
