//! Credits that are ahead of their data.
//!
//! Nothing in a kernel states which HEAD belongs to which TAIL, but a sender shows it: it waits for the HEAD, then
//! signals TAILs. The HEAD counts steps that were *taken* if the sender only ever waits for values it has already
//! signalled, and most credits are for the very step that their giver knows to be sent. Then a credit is a fault if its
//! giver does not know that step to be sent, by any TAIL of that sender.
//!
//! Otherwise nothing is reported. If a sender waits for more, as `direct` does with READY, the counter *permits* steps.
//! If credits are other numbers, it counts something else, such as bytes or launches. A credit that lets a sender
//! overwrite data that is still read is a race in any case.
//!
//! Accepting any TAIL lets a sender announce a step later than it asks for the next slot, as `bulk` does. It misses a
//! credit for one of several slots that count only their own steps. A counter of credits is not one of data, even if it
//! is signalled like one, as that of packets is when their flags wrap around: a role that sends and takes waits for one
//! such counter and signals the other. All of this is program order and happens-before, so it is the same in every run
//! of the monotone fragment.

use super::clock::PartyId;
use super::slots::{Signalled, SlotKey, Slots};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Which counters belong together, inferred from their users.
#[derive(Clone, Default, Debug)]
pub struct Credits {
    /// By role copy: the slot it waited for last in this launch, and the value.
    last: HashMap<PartyId, (SlotKey, u64)>,
    /// By role copy: the counters of data it signals.
    sent: HashMap<PartyId, Sent>,
    /// By slot waited for: the role copies that signalled data after it, before the next wait.
    heads: BTreeMap<SlotKey, Head>,
    /// The ranks that waited for a slot.
    waited: HashMap<SlotKey, BTreeSet<u32>>,
}

#[derive(Clone, Default, Debug)]
struct Sent {
    tails: BTreeSet<SlotKey>,
    /// The largest value of any of them.
    most: u64,
}

#[derive(Clone, Default, Debug)]
struct Head {
    senders: BTreeSet<PartyId>,
    /// True if a sender waited for more than it had sent: the slot permits.
    permits: bool,
}

/// A credit ahead of its data.
#[derive(Clone, Debug)]
pub struct Ahead {
    /// The counter of credits.
    pub head: SlotKey,
    /// The credit.
    pub credit: Signalled,
    /// The counter of data.
    pub tail: SlotKey,
    /// The last step that its giver knows to be sent.
    pub known: u64,
}

impl Credits {
    /// A launch begins for a role copy.
    pub fn begin(&mut self, party: PartyId) {
        self.last.remove(&party);
    }

    /// A role copy of a rank waited for a slot.
    pub fn wait(&mut self, party: PartyId, rank: u32, slot: SlotKey, value: u64) {
        self.last.insert(party, (slot, value));
        self.waited.entry(slot).or_default().insert(rank);
    }

    /// A role copy signals data: `value` over the value `before`.
    pub fn signal(&mut self, party: PartyId, slot: SlotKey, before: u64, value: u64) {
        let sent = self.sent.entry(party).or_default();
        if let Some(&(head, wanted)) = self.last.get(&party) {
            let head = self.heads.entry(head).or_default();
            head.senders.insert(party);
            head.permits |= wanted > sent.most.max(before);
        }
        sent.tails.insert(slot);
        sent.most = sent.most.max(value);
    }

    /// The credits that are ahead of their data.
    pub fn ahead(&self, slots: &Slots, rank_of: impl Fn(PartyId) -> u32) -> Vec<Ahead> {
        let mut found = Vec::new();
        for (&head, Head { senders, permits }) in &self.heads {
            let Some(history) = slots.get(head).filter(|_| !permits) else { continue };
            let of_data = |tail: &SlotKey| {
                slots.get(*tail).is_none_or(|history| history.signals().iter().all(|signal| !signal.credit))
            };
            let tails = senders.iter().flat_map(|party| self.sent[party].tails.iter().copied());
            let tails: BTreeSet<SlotKey> = tails.filter(of_data).collect();
            let credits = history.signals().iter().filter(|signal| signal.credit).filter_map(|credit| {
                let rank = rank_of(credit.party);
                // A counter by which another rank takes its data says nothing about this one's.
                let theirs = |tail: &SlotKey| self.waited.get(tail).is_none_or(|ranks| ranks.contains(&rank));
                let known = tails.iter().filter(|tail| theirs(tail)).map(|&tail| (known(slots, tail, credit), tail));
                known.max().map(|(known, tail)| (credit, known, tail))
            });
            let credits: Vec<(&Signalled, u64, SlotKey)> = credits.collect();
            // If most credits are for the very step that is known, the counter counts steps.
            let exact = credits.iter().filter(|(credit, known, _)| credit.value == *known).count();
            if exact * 2 > credits.len() {
                let ahead = credits.into_iter().filter(|(credit, known, _)| credit.value > *known);
                found.extend(ahead.map(|(credit, known, tail)| Ahead { head, credit: credit.clone(), tail, known }));
            }
        }
        found
    }
}

/// The largest value of a counter that the giver of this credit knew to be signalled.
fn known(slots: &Slots, tail: SlotKey, credit: &Signalled) -> u64 {
    let Some(history) = slots.get(tail) else { return 0 };
    // Signals to one slot are ordered, or that is a fault: a party that knows one knows those before it.
    let signals = history.signals();
    let count = signals.partition_point(|signal| credit.published.over.covers(signal.party, signal.epoch));
    count.checked_sub(1).map_or(history.initial(), |last| signals[last].value)
}
