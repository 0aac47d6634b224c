//! Where ranks that are threads pass each other objects that are not byte strings: their segments.
//!
//! ```text
//!  rank 0                                 every rank
//!  creates the sets of all ranks
//!  leave(sets) ──▶ ticket ──all-gather──▶ take(ticket, rank) ──▶ its set
//! ```
//! One meeting per world, alive as long as any rank's `World` or transport. Sets that nobody took, because a rank
//! failed in between, are dropped with it. It also knows the segments that are still alive. So a rank that fails ends
//! the waits of the others on all of them, and no rank waits for one whose program has ended.
#![forbid(unsafe_code)]

use super::abort::{Abort, Cause};
use super::departures::Departures;
use super::mapping::Mapping;
use super::segment::SegmentSet;
use crate::tensor::Memory;
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub(crate) struct Meeting {
    table: Mutex<Table>,
    departures: Departures,
}

type Shown = Arc<dyn Any + Send + Sync>;

#[derive(Default)]
struct Table {
    next: u64,
    /// By ticket and rank.
    left: HashMap<(u64, usize), SegmentSet>,
    /// By ticket: what a rank shows to all, and how many ranks have yet to see it.
    shown: HashMap<u64, (Shown, usize)>,
    /// By ticket: memory that a rank offers to the launches of others.
    offered: HashMap<u64, Memory>,
    /// All segments that were left here or are watched. Dropped ones are removed when the next set is added.
    segments: Vec<Weak<Mapping>>,
    /// Why the world ended, if it did.
    failure: Option<Cause>,
}

impl Table {
    fn watch(&mut self, set: &SegmentSet) {
        self.segments.retain(|segment| segment.strong_count() > 0);
        self.segments.extend(set.weak());
        if let Some(cause) = self.failure {
            set.abort_all(cause);
        }
    }
}

impl Default for Meeting {
    /// A meeting of ranks whose leaving nobody notices.
    fn default() -> Self {
        Meeting::of(0)
    }
}

impl Meeting {
    /// For this many ranks, each of which reports when it [leaves](Self::leaves).
    pub(crate) fn of(ranks: usize) -> Meeting {
        Meeting { table: Mutex::default(), departures: Departures::new(ranks) }
    }

    /// The ranks whose program has ended.
    pub(crate) fn departures(&self) -> &Departures {
        &self.departures
    }

    /// A rank's program has ended without an error: makes every wait check whether it needed that rank.
    pub(crate) fn leaves(&self, rank: usize) {
        // The lock keeps this out of a failure: a rank that hears of one and leaves must not be taken for the cause.
        let table = self.table();
        self.departures.note(rank);
        for segment in table.segments.iter().filter_map(Weak::upgrade) {
            Abort::new(segment).wake();
        }
    }

    /// Leaves every rank's set to be taken; returns the ticket for taking it.
    pub(crate) fn leave(&self, sets: Vec<SegmentSet>) -> u64 {
        let mut table = self.table();
        let ticket = table.next;
        table.next += 1;
        if let Some(set) = sets.first() {
            table.watch(set);
        }
        table.left.extend(sets.into_iter().map(|set| ((ticket, set.rank()), set)));
        ticket
    }

    /// Takes a rank's set, once.
    pub(crate) fn take(&self, ticket: u64, rank: usize) -> Option<SegmentSet> {
        self.table().left.remove(&(ticket, rank))
    }

    /// Shows something to this many ranks; returns the ticket for seeing it.
    pub(crate) fn show(&self, what: Shown, to: usize) -> u64 {
        let mut table = self.table();
        let ticket = table.next;
        table.next += 1;
        table.shown.insert(ticket, (what, to));
        ticket
    }

    /// What was shown. Each rank it was shown to calls this once.
    pub(crate) fn see(&self, ticket: u64) -> Option<Shown> {
        let mut table = self.table();
        let (what, left) = table.shown.get_mut(&ticket)?;
        *left -= 1;
        if *left > 0 { Some(what.clone()) } else { table.shown.remove(&ticket).map(|(what, _)| what) }
    }

    /// Offers memory to the launches of other ranks, until it is [withdrawn](Self::withdraw). Returns its ticket.
    pub(super) fn offer(&self, memory: Memory) -> u64 {
        let mut table = self.table();
        let ticket = table.next;
        table.next += 1;
        table.offered.insert(ticket, memory);
        ticket
    }

    /// What was offered.
    pub(super) fn offered(&self, ticket: u64) -> Option<Memory> {
        self.table().offered.get(&ticket).cloned()
    }

    pub(super) fn withdraw(&self, ticket: u64) {
        let withdrawn = self.table().offered.remove(&ticket);
        // Dropped without the lock: it may be the last handle, and the owner of foreign memory may do anything.
        drop(withdrawn);
    }

    /// A rank has failed: ends the waits on all segments, including future ones. The first cause stays.
    pub(crate) fn fail(&self, cause: Cause) {
        let mut table = self.table();
        table.failure.get_or_insert(cause);
        for segment in table.segments.iter().filter_map(Weak::upgrade) {
            Abort::new(segment).set(cause);
        }
    }

    /// Ends the waits on the segments of all ranks of a set when a rank fails, or immediately if one already has.
    pub(crate) fn watch(&self, set: &SegmentSet) {
        self.table().watch(set);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No call leaves the table half changed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_ends_the_waits_on_all_segments_and_keeps_none_alive() {
        use super::super::abort::AbortCode;
        let meeting = Meeting::default();
        let old = meeting.leave(SegmentSet::threads(2, 8).unwrap());
        drop((meeting.take(old, 0), meeting.take(old, 1)));
        let set = meeting.take(meeting.leave(SegmentSet::threads(2, 8).unwrap()), 0).unwrap();
        assert_eq!(meeting.table().segments.len(), 2, "those of the first are forgotten");
        let cause = Cause { code: AbortCode::Failed, rank: 1, reason: 0 };
        meeting.fail(cause);
        let late = meeting.take(meeting.leave(SegmentSet::threads(2, 8).unwrap()), 1).unwrap();
        assert_eq!((set.abort(0).get(), late.abort(1).get()), (Some(cause), Some(cause)));
    }

    #[test]
    fn who_leaves_is_known_and_rings() {
        let meeting = Meeting::of(2);
        let set = meeting.take(meeting.leave(SegmentSet::threads(2, 8).unwrap()), 0).unwrap();
        // Somebody sleeps, and must be woken.
        let (bell, one) = (set.doorbell(0), 1);
        bell.word().store(one, std::sync::atomic::Ordering::Relaxed);
        meeting.leaves(1);
        let word = bell.word().load(std::sync::atomic::Ordering::Relaxed);
        assert!(meeting.departures().has_left(1) && word != one);
        assert!(!meeting.departures().has_left(0) && !Meeting::default().departures().are_noticed());
    }

    #[test]
    fn every_rank_takes_its_own_set_once() {
        let meeting = Meeting::default();
        let tickets = [0, 1].map(|_| meeting.leave(SegmentSet::threads(2, 8).unwrap()));
        for (ticket, rank) in [(tickets[1], 1), (tickets[0], 0), (tickets[0], 1), (tickets[1], 0)] {
            assert_eq!(meeting.take(ticket, rank).unwrap().rank(), rank);
            assert!(meeting.take(ticket, rank).is_none());
        }
    }
}
