//! The history of every signal slot: which signal a wait is for.

use super::clock::{Clock, Knowledge, PartyId, Published};
use super::finds::{Finds, Found};
use super::shadow::Atomicity;
use crate::check::memory::MemoryId;
use crate::ir::Inst;
use std::collections::{BTreeMap, HashMap};

/// A slot as bytes: two names of one counter agree here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SlotKey {
    /// Piece of memory.
    pub memory: MemoryId,
    /// First of its eight bytes.
    pub byte: u64,
}

/// One signal.
#[derive(Clone, Debug)]
pub struct Signalled {
    /// The value.
    pub value: u64,
    /// The knowledge it carries.
    pub published: Published,
    /// True if it shows no data.
    pub credit: bool,
    /// True if it shows less than earlier signals: a credit. (A posted signal without bytes counts as a credit
    /// elsewhere, and yet publishes what its poster has seen.)
    pub hides: bool,
    /// The scope of its atomicity, if it is an atomic that adds to the slot.
    pub atomic: Option<Atomicity>,
    /// The operation that its word carries, if any.
    pub operation: Option<u16>,
    /// The signaller.
    pub party: PartyId,
    /// The epoch of the signaller.
    pub epoch: u32,
    /// The launch.
    pub launch: u32,
    /// The instruction.
    pub inst: Inst,
    /// Its index in the log.
    pub entry: usize,
}

/// The fault of a signal.
#[derive(Clone, Debug)]
pub enum BadSignal {
    /// The counter held more before the first signal.
    BelowStart(u64),
    /// Nothing orders it after the signal before.
    TwoWriters(Signalled),
    /// The counter does not grow.
    NotGrowing(Signalled),
}

/// One slot.
#[derive(Clone, Default, Debug)]
pub struct SlotHistory {
    /// The value before the first signal.
    initial: Option<u64>,
    signals: Vec<Signalled>,
    /// By launch: the largest value anybody waited for in it.
    waited: BTreeMap<u32, u64>,
    /// What its signals show, and the waits that found them.
    finds: Finds,
    /// A plain write has replaced the count since.
    overwritten: bool,
    /// A copy engine writes it: values may go back, and a wait is for the value it finds there.
    handshake: bool,
}

/// The judgement of a signal.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Its fault, if any.
    pub bad: Option<BadSignal>,
    /// True if an earlier wait may find it in another run, and learn less.
    pub undecided: bool,
}

/// All slots of a run.
#[derive(Clone, Default, Debug)]
pub struct Slots {
    slots: HashMap<SlotKey, SlotHistory>,
}

impl Slots {
    /// The history of a slot.
    pub fn get(&self, key: SlotKey) -> Option<&SlotHistory> {
        self.slots.get(&key)
    }

    /// Records a signal over the value `before` by a party with this knowledge.
    pub fn signal(&mut self, key: SlotKey, before: u64, signal: Signalled, knowledge: &Knowledge) -> Judged {
        let slot = self.slots.entry(key).or_default();
        slot.initial.get_or_insert(before);
        // Atomics commute with each other but not with signals: a signal comes after all atomics since the signal
        // before it.
        let since = slot.signals.iter().rposition(|earlier| earlier.atomic.is_none());
        // A credit orders two writers only if its giver had found the first of them in this very counter: a read that
        // is over keeps what it found from later writes.
        let is_known = |last: &Signalled| {
            last.party == signal.party
                || knowledge.visible.covers(last.party, last.epoch)
                || slot.finds.is_found(last.value, knowledge)
        };
        let judged = match signal.atomic.is_some() {
            true => &slot.signals[since.unwrap_or(0)..since.map_or(0, |since| since + 1)],
            false => &slot.signals[since.unwrap_or(0)..],
        };
        let unordered = judged.iter().find(|earlier| !is_known(earlier));
        let bad = match (unordered, slot.signals.last()) {
            (Some(first), _) => Some(BadSignal::TwoWriters(first.clone())),
            (None, Some(last)) if signal.value <= last.value => Some(BadSignal::NotGrowing(last.clone())),
            (None, None) if signal.value < before && !slot.overwritten => Some(BadSignal::BelowStart(before)),
            _ => None,
        };
        let undecided = slot.finds.signal(&slot.signals, &signal, knowledge);
        if signal.atomic.is_none() {
            slot.finds.forget(signal.value, knowledge);
        }
        slot.signals.push(signal);
        Judged { bad, undecided }
    }

    /// True if everything added up to this signal since a plain one is atomic together with `me`.
    pub fn agree(&self, key: SlotKey, signal: &Signalled, me: &Atomicity) -> bool {
        let Some(slot) = self.slots.get(&key) else { return true };
        let up_to = slot.signals.iter().rev().skip_while(|other| other.entry != signal.entry);
        // A release shows its own party's earlier additions, whatever their scope.
        let releases = signal.published.visible.covers(signal.party, signal.epoch);
        let is_shown = |added: &Signalled| releases && added.party == signal.party && added.entry != signal.entry;
        let added = up_to.map_while(|added| Some((added, added.atomic.as_ref()?)));
        added.into_iter().all(|(added, atomic)| atomic.agrees(me) || is_shown(added))
    }

    /// The number of the signal that a wait is for, and what it is shown if its party has already seen `seen`: the
    /// least of what it may find.
    pub fn shown(&self, key: SlotKey, signal: &Signalled, seen: &Clock) -> (usize, Clock) {
        let slot = self.slots.get(&key).expect("a slot with a signal");
        let number = slot.signals.iter().rposition(|other| other.entry == signal.entry).expect("a signal of this slot");
        let least = || slot.finds.least(&slot.signals, number, seen);
        (number, if slot.handshake { signal.published.visible.clone() } else { least() })
    }

    /// A party waited for a signal, of data or not.
    pub fn waited(&mut self, key: SlotKey, party: PartyId, found: Found) {
        self.slots.entry(key).or_default().finds.wait(party, found);
    }

    /// A plain write replaces the count: earlier signals can no longer be waited for.
    pub fn overwritten(&mut self, key: SlotKey) {
        let slot = self.slots.entry(key).or_default();
        *slot = SlotHistory {
            overwritten: true,
            waited: std::mem::take(&mut slot.waited),
            handshake: slot.handshake,
            ..SlotHistory::default()
        };
    }

    /// Records a write of a copy engine over the value `before`, and returns the write before it if nothing orders the
    /// two.
    pub fn write(&mut self, key: SlotKey, before: u64, signal: Signalled, knowledge: &Knowledge) -> Option<Signalled> {
        let slot = self.slots.entry(key).or_default();
        slot.initial.get_or_insert(before);
        slot.handshake = true;
        let is_known = |last: &&Signalled| last.party == signal.party || knowledge.over.covers(last.party, last.epoch);
        let unordered = slot.signals.last().filter(|last| !is_known(last)).cloned();
        slot.finds.signal(&slot.signals, &signal, knowledge);
        slot.signals.push(signal);
        unordered
    }

    /// The signal that a wait for `value`, which saw `seen`, is for: the first that suffices. `None` if none is needed.
    pub fn wait(&mut self, key: SlotKey, launch: u32, value: u64, seen: u64) -> Option<&Signalled> {
        let slot = self.slots.entry(key).or_default();
        let most = slot.waited.entry(launch).or_default();
        *most = value.max(*most);
        if slot.handshake {
            return slot.signals.last();
        }
        // Before the first signal, the value seen is the initial one.
        if value <= *slot.initial.get_or_insert(seen) {
            return None;
        }
        // Growing counters are sorted; one that does not grow is reported at its signal.
        let first = slot.signals.partition_point(|signal| signal.value < value);
        slot.signals.get(first)
    }

    /// All slots, in order.
    pub fn sorted(&self) -> Vec<(SlotKey, &SlotHistory)> {
        let mut all: Vec<_> = self.slots.iter().map(|(&key, slot)| (key, slot)).collect();
        all.sort_by_key(|&(key, _)| key);
        all
    }
}

impl SlotHistory {
    /// The value before the first signal.
    pub fn initial(&self) -> u64 {
        self.initial.unwrap_or(0)
    }

    /// All signals, in the order of the run.
    pub fn signals(&self) -> &[Signalled] {
        &self.signals
    }

    /// True if a copy engine writes it.
    pub fn is_handshake(&self) -> bool {
        self.handshake
    }

    /// True if any of its signals is a credit.
    pub fn is_credited(&self) -> bool {
        self.signals.iter().any(|signal| signal.credit)
    }

    /// The last signal of the launches up to this one.
    pub fn last_by(&self, launch: u32) -> Option<&Signalled> {
        self.signals.iter().rev().find(|signal| signal.launch <= launch)
    }

    /// The largest value anybody waited for in the launches up to this one.
    pub fn waited_by(&self, launch: u32) -> u64 {
        self.waited.range(..=launch).map(|(_, &value)| value).max().unwrap_or(0)
    }

    /// True if anybody ever waited for it.
    pub fn is_waited_for(&self) -> bool {
        self.waited.values().any(|&value| value > 0)
    }

    /// The last signal.
    pub fn last(&self) -> Option<&Signalled> {
        self.signals.last()
    }
}
