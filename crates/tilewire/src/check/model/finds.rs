//! What waits find in a slot: which of its signals they may find, and the least that those show.
//!
//! A wait is *for* the first signal that suffices, and may **find** any later one that is not ordered after the wait.
//! Later ones need not show as much. For example: A signals data, X waits for it and credits B, and B signals. B comes
//! after A in the slot, because X found A's signal there, but B has seen nothing of A's data. A wait for A's signal
//! that finds B's instead has not seen that data either. A signal **keeps** what the one before it shows if
//!
//! - both are of one party, and the one before it is no atomic: a later store of the same thread to the same place
//!   continues the release before it, even if it is a credit. (Only a release that the wait was for, or a later one.) A
//!   later launch of the party is the same party: the end of a launch flushes;
//! - it is an atomic, which continues the release that it reads;
//! - it is a signal of data and its signaller has seen everything that the one before it shows. (The signaller of a
//!   posted notice is the proxy, one for each poster, peer and slot: it has seen what its poster had.)
//!
//! An atomic shows more than its own party has seen or released, because it continues the releases of others. A credit
//! of its party after it continues only what the party itself released. And a party that has seen the atomic has not
//! thereby seen what it continues.
//!
//! So a wait learns the **least** that any signal shows that it may find:
//!
//! ```text
//!      signals of one slot, in order       1 ── 2 ── 3 ── 4 ── 5
//!      the wait is for                          ▲
//!      those before the wait in this run        2 ∧  3 ∧  4          learnt: what all of them show
//!      one after the wait in this run                          5     ordered after the wait: never found
//!                                                                    shows as much as was learnt: no loss
//!                                                                    neither: another run may learn less, and
//!                                                                    one run does not decide
//! ```
//!
//! Then the same is learnt in every run. If the party knows of a signal beyond the one that it waits for, it finds none
//! before that, and has already seen what that one shows.

use super::clock::{Clock, Knowledge, PartyId};
use super::slots::Signalled;
use std::collections::HashMap;

/// What the signals of a slot show, and the waits that found them.
#[derive(Clone, Default, Debug)]
pub struct Finds {
    /// By signal.
    shows: Vec<Shows>,
    /// By party, the waits that found more than earlier ones, or learnt more: a party's values never decrease.
    waits: HashMap<PartyId, Vec<Found>>,
}

/// What a signal shows to a wait that finds it instead of an earlier one.
#[derive(Clone, Debug)]
struct Shows {
    visible: Clock,
    /// What its own party released by it: everything that it shows, except that an atomic also shows what it continues.
    released: Clock,
    /// The signal of data that it continues. It shows that one's data too, to waits for that signal or an earlier one.
    continues: Option<usize>,
    /// True if it shows no less than the one before it.
    keeps: bool,
}

/// A wait.
#[derive(Clone, Debug)]
pub struct Found {
    /// The epoch of its party.
    pub epoch: u32,
    /// The least value that it can have found.
    pub value: u64,
    /// The number of the signal that it was for, and what it was shown.
    pub wanted: usize,
    pub shown: Clock,
}

impl Finds {
    /// A signal follows these. Returns true if one run may not decide what an earlier wait learnt. `knowledge` is the
    /// signaller's.
    pub fn signal(&mut self, before: &[Signalled], signal: &Signalled, knowledge: &Knowledge) -> bool {
        let last = before.last().zip(self.shows.last());
        let of_data = |own: usize| if before[own].hides { self.shows[own].continues } else { Some(own) };
        let is_own = |earlier: &Signalled| earlier.party == signal.party && (earlier.hides || releases(earlier));
        let visible = signal.published.visible.clone();
        let continues = match (signal.hides, &signal.atomic, last) {
            (true, ..) => before.iter().rposition(is_own).and_then(of_data),
            (false, Some(_), Some((_, shows))) => shows.continues,
            _ => None,
        };
        let released = match (&signal.atomic, releases(signal)) {
            (None, _) => visible.clone(),
            (Some(_), true) => knowledge.visible.clone(),
            (Some(_), false) => Clock::default(),
        };
        let keeps = last.is_none_or(|(last, shows)| {
            // A party that has seen a signal of data has seen what it shows, unless it is an atomic.
            let has_seen = || !last.hides && visible.covers(last.party, last.epoch);
            let is_plain = || last.atomic.is_none() && (last.party == signal.party || has_seen());
            let continued = || shows.continues.is_none_or(|data| visible.holds(&self.shows[data].released));
            signal.atomic.is_some() || is_plain() || visible.holds(&shows.visible) && continued()
        });
        self.shows.push(Shows { visible, released, continues, keeps });
        let number = before.len();
        let is_lost = |wait: &Found, party: &PartyId| {
            !knowledge.over.covers(*party, wait.epoch) && !self.shown(number, wait.wanted).holds(&wait.shown)
        };
        !keeps && self.waits.iter().any(|(party, all)| all.iter().any(|wait| is_lost(wait, party)))
    }

    /// What a signal shows to a wait for this one or an earlier one.
    fn shown(&self, number: usize, wanted: usize) -> Clock {
        let Shows { visible, continues, .. } = &self.shows[number];
        let mut shown = visible.clone();
        continues.iter().filter(|&&data| data >= wanted).for_each(|&data| shown.join(&self.shows[data].released));
        shown
    }

    /// True if a party found this value, or a larger one, in a wait that is over for every party with this knowledge.
    pub fn is_found(&self, value: u64, knowledge: &Knowledge) -> bool {
        self.waits.iter().any(|(party, all)| {
            let first = all.get(all.partition_point(|wait| wait.value < value));
            first.is_some_and(|wait| knowledge.over.covers(*party, wait.epoch))
        })
    }

    /// The next signals know everything that the signaller of this value knows. So waits that it knows to be over, and
    /// that found less, need not be kept.
    pub fn forget(&mut self, value: u64, knowledge: &Knowledge) {
        self.waits.retain(|party, all| {
            let known = knowledge.over.get(*party);
            let old = all.partition_point(|wait| wait.value < value && wait.epoch <= known);
            all.drain(..old);
            !all.is_empty()
        });
    }

    /// What a wait for one of these signals learns, if its party has already seen `seen`.
    pub fn least(&self, signals: &[Signalled], wanted: usize, seen: &Clock) -> Clock {
        let (first, later) = (&signals[wanted].published.visible, wanted + 1..signals.len());
        if self.shows[later.clone()].iter().all(|shows| shows.keeps) {
            return first.clone();
        }
        if signals[later.clone()].iter().any(|signal| seen.covers(signal.party, signal.epoch)) {
            return Clock::default();
        }
        later.fold(first.clone(), |least, number| least.meet(&self.shown(number, wanted)))
    }

    /// A party has waited.
    pub fn wait(&mut self, party: PartyId, found: Found) {
        let all = self.waits.entry(party).or_default();
        match all.last() {
            // A party's value never decreases.
            Some(last) if found.value <= last.value => {
                if !last.shown.holds(&found.shown) {
                    let value = last.value;
                    all.push(Found { value, ..found });
                }
            }
            _ => all.push(found),
        }
    }
}

/// True if a signal is a release of its own party: a signal of data, or an atomic that is not relaxed.
fn releases(signal: &Signalled) -> bool {
    !signal.hides && (signal.atomic.is_none() || signal.published.visible.covers(signal.party, signal.epoch))
}
