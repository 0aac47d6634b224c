//! How the two sides of a transfer meet: each tells the other, through the bootstrap, what it is about to do.
//!
//! The n-th transfer a rank builds towards a peer is the n-th the peer builds from it, so a number names both sides and no third rank
//! takes part.
#![forbid(unsafe_code)]

use super::layout::Side;
use super::rank::Rank;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

/// One side of one transfer between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// This rank.
    pub rank: Rank,
    /// The other.
    pub peer: Rank,
    /// What this rank does in it.
    pub side: Side,
    /// The how many-th from the sender to the receiver, from 0.
    pub number: u64,
}

impl Ticket {
    /// Where this rank tells.
    pub(super) fn mine(&self, transport: &str) -> String {
        self.key(transport, self.side)
    }

    /// Where the peer tells.
    pub(super) fn theirs(&self, transport: &str) -> String {
        self.key(transport, self.side.other())
    }

    fn key(&self, transport: &str, by: Side) -> String {
        let (sender, receiver) = match self.side {
            Side::Send => (self.rank, self.peer),
            Side::Receive => (self.peer, self.rank),
        };
        format!("{transport}/transfer/{sender}to{receiver}/{}/{by}", self.number)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ticket { rank, peer, number, .. } = self;
        match self.side {
            Side::Send => {
                write!(f, "send number {number} of rank {rank} to rank {peer}, which has built no receive for it")
            }
            Side::Receive => {
                write!(f, "receive number {number} of rank {rank} from rank {peer}, which has built no send for it")
            }
        }
    }
}

/// How many transfers of each kind this rank has built.
#[derive(Default)]
pub(super) struct Pairings(RefCell<HashMap<(Rank, bool), u64>>);

impl Pairings {
    pub(super) fn next(&self, rank: Rank, side: Side, peer: Rank) -> Ticket {
        let mut built = self.0.borrow_mut();
        let count = built.entry((peer, side == Side::Send)).or_default();
        *count += 1;
        Ticket { rank, peer, side, number: *count - 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_tells_the_other_hears() {
        let [a, b] = [0, 1].map(Rank::new);
        let (pa, pb) = (Pairings::default(), Pairings::default());
        for _ in 0..2 {
            let (send, recv) = (pa.next(a, Side::Send, b), pb.next(b, Side::Receive, a));
            assert_eq!((send.mine("7"), send.theirs("7")), (recv.theirs("7"), recv.mine("7")));
            assert_ne!(send.mine("7"), send.theirs("7"));
        }
        assert_eq!(pa.next(a, Side::Receive, b).number, 0, "the two directions are counted apart");
    }
}
