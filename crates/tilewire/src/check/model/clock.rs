//! Vector clocks, and the two kinds of knowledge that signals carry.

use std::rc::Rc;

/// A party of a run, by its place in every clock.
pub type PartyId = u32;

/// For every party, how many of its epochs are known to be over. What is not listed is 0.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Clock(Vec<u32>);

impl Clock {
    /// The epoch of a party that is known.
    pub fn get(&self, party: PartyId) -> u32 {
        self.0.get(party as usize).copied().unwrap_or(0)
    }

    /// Sets the epoch of a party.
    pub fn set(&mut self, party: PartyId, epoch: u32) {
        let place = party as usize;
        if self.0.len() <= place {
            self.0.resize(place + 1, 0);
        }
        self.0[place] = epoch;
    }

    /// Whether this epoch of this party is over for whoever has this clock.
    pub fn covers(&self, party: PartyId, epoch: u32) -> bool {
        self.get(party) >= epoch
    }

    /// Learns all that `other` knows.
    pub fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }
}

/// What a party knows of the others. A credit carries `over` only, so the two differ:
///
/// - `visible`: accesses whose effects it sees. A later access may touch what they wrote.
/// - `over`: accesses that have come to an end. A later write may overwrite what they read. Holds `visible`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Knowledge {
    /// Whose effects are seen.
    pub visible: Clock,
    /// What is over, seen or not.
    pub over: Clock,
}

/// Knowledge as a signal keeps it.
pub type Published = Rc<Knowledge>;

impl Knowledge {
    /// Learns all that `other` knows.
    pub fn join(&mut self, other: &Knowledge) {
        self.visible.join(&other.visible);
        self.over.join(&other.over);
    }

    /// What a credit carries of it.
    pub fn credit(&self) -> Knowledge {
        Knowledge { visible: Clock::default(), over: self.over.clone() }
    }

    /// Begins an epoch of the party itself.
    pub fn set_own(&mut self, party: PartyId, epoch: u32) {
        self.visible.set(party, epoch);
        self.over.set(party, epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_knows_what_either_knew() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.set(0, 3);
        b.set(4, 2);
        a.join(&b);
        assert!(a.covers(0, 3) && a.covers(4, 2) && a.covers(9, 0) && !a.covers(4, 3));
    }

    #[test]
    fn a_credit_shows_nothing() {
        let mut all = Knowledge::default();
        all.set_own(1, 5);
        let credit = all.credit();
        assert!(credit.over.covers(1, 5) && !credit.visible.covers(1, 1));
    }
}
