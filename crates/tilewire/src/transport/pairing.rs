//! How the two sides of a transfer meet: each tells the other, through the bootstrap, what it is about to do.
//!
//! The n-th transfer that a rank builds towards a peer is the n-th that the peer builds from it, and the n-th
//! collective of one is the n-th of the other. So a number identifies both sides, and no third rank takes part. The low
//! bits of that number are part of the *operation* that signals and packets of its launches carry
//! ([`matching`](crate::ir::matching)).
#![forbid(unsafe_code)]

use super::endpoint::PeerEndpoint;
use super::rank::Rank;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What a rank does with a peer in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// It sends.
    Send,
    /// It receives.
    Receive,
    /// Both take part in a collective.
    Together,
}

impl Pairing {
    /// What the peer does in the same operation.
    pub const fn of_peer(self) -> Pairing {
        match self {
            Pairing::Send => Pairing::Receive,
            Pairing::Receive => Pairing::Send,
            Pairing::Together => Pairing::Together,
        }
    }
}

/// One side of an operation between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// This rank.
    pub rank: Rank,
    /// The other.
    pub peer: Rank,
    /// What this rank does in it.
    pub pairing: Pairing,
    /// The operation's number among those of its kind between the two ranks, from 0.
    pub number: u64,
}

/// Bits of a number that are part of an operation. Of its fifteen bits, one says that it is not one of the user's own,
/// and one whether it is a collective.
const NUMBER_BITS: u32 = 13;

impl Ticket {
    /// Set in the number of an answer.
    const ANSWER: u64 = 1 << 63;

    /// The ticket under which the two sides of this one tell each other a second time.
    pub(crate) fn answer(self) -> Ticket {
        Ticket { number: self.number | Self::ANSWER, ..self }
    }

    /// True if it is the second one of an operation.
    pub(crate) fn is_answer(&self) -> bool {
        self.number & Self::ANSWER != 0
    }

    /// The operation that signals and packets of its launches carry, the same on both sides. It repeats after 8,192
    /// operations of the kind between two ranks.
    pub fn operation(&self) -> u16 {
        let number = (self.number % (1 << NUMBER_BITS)) as u16;
        PeerEndpoint::OWN_OPERATIONS | number << 1 | u16::from(self.pairing == Pairing::Together)
    }

    /// The key under which this rank tells.
    pub(crate) fn mine(&self, transport: &str) -> String {
        self.key(transport, self.rank)
    }

    /// The key under which the peer tells.
    pub(crate) fn theirs(&self, transport: &str) -> String {
        self.key(transport, self.peer)
    }

    fn key(&self, transport: &str, by: Rank) -> String {
        let Ticket { rank, peer, number, .. } = self;
        let what = match self.pairing {
            Pairing::Send => format!("transfer/{rank}to{peer}"),
            Pairing::Receive => format!("transfer/{peer}to{rank}"),
            Pairing::Together => format!("together/{}and{}", rank.min(peer), rank.max(peer)),
        };
        format!("{transport}/{what}/{number}/{by}")
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ticket { rank, peer, .. } = self;
        let number = self.number & !Self::ANSWER;
        if self.is_answer() {
            // Both have built it.
            let what = match self.pairing {
                Pairing::Send => format!("send number {number} of rank {rank} to rank {peer}"),
                Pairing::Receive => format!("receive number {number} of rank {rank} from rank {peer}"),
                Pairing::Together => format!("collective number {number} of rank {rank} with rank {peer}"),
            };
            return write!(f, "{what}, which has built its side and has not launched it");
        }
        match self.pairing {
            Pairing::Send => {
                write!(f, "send number {number} of rank {rank} to rank {peer}, which has built no receive for it")
            }
            Pairing::Receive => {
                write!(f, "receive number {number} of rank {rank} from rank {peer}, which has built no send for it")
            }
            Pairing::Together => {
                write!(f, "collective number {number} of rank {rank} with rank {peer}, which has not built it")
            }
        }
    }
}

/// How many operations of each kind this rank has built with each peer, and their names.
#[derive(Default)]
pub(crate) struct Pairings {
    built: RefCell<HashMap<(Rank, Pairing), u64>>,
    names: Names,
}

/// The names of operations, for any thread: the latest of each peer. A handle; all clones share one list.
#[derive(Clone, Default)]
pub(crate) struct Names(Arc<Mutex<HashMap<Rank, Operations>>>);

/// Operations with their names, the latest last.
type Operations = VecDeque<(u16, String)>;

impl Names {
    /// Names kept for each peer.
    const KEPT: usize = 4096;

    fn set(&self, ticket: &Ticket, name: &str) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (names, operation) = (names.entry(ticket.peer).or_default(), ticket.operation());
        names.retain(|(known, _)| *known != operation);
        if names.len() == Self::KEPT {
            names.pop_front();
        }
        names.push_back((operation, name.to_string()));
    }

    /// The name of an operation with a peer, if known.
    pub(crate) fn of(&self, peer: Rank, operation: u16) -> Option<String> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(&peer)?.iter().rev().find(|(known, _)| *known == operation).map(|(_, name)| name.clone())
    }
}

impl Pairings {
    /// The next ticket, without taking it.
    pub(crate) fn next(&self, rank: Rank, pairing: Pairing, peer: Rank) -> Ticket {
        let number = self.built.borrow().get(&(peer, pairing)).copied().unwrap_or(0);
        Ticket { rank, peer, pairing, number }
    }

    /// Takes a ticket, so that the next one has the following number.
    pub(crate) fn take(&self, ticket: &Ticket) {
        *self.built.borrow_mut().entry((ticket.peer, ticket.pairing)).or_default() = ticket.number + 1;
    }

    /// Sets the name of an operation: this rank's own name for it until the peer has told its name.
    pub(crate) fn name(&self, ticket: &Ticket, name: &str) {
        self.names.set(ticket, name);
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_tells_the_other_hears() {
        let [a, b] = [0, 1].map(Rank::new);
        let (pa, pb) = (Pairings::default(), Pairings::default());
        for number in 0..2 {
            for pairing in [Pairing::Send, Pairing::Receive, Pairing::Together] {
                let (here, there) = (pa.next(a, pairing, b), pb.next(b, pairing.of_peer(), a));
                assert_eq!((here.number, there.number), (number, number), "each kind is counted by itself");
                assert_eq!((here.mine("7"), here.theirs("7")), (there.theirs("7"), there.mine("7")));
                assert_ne!(here.mine("7"), here.theirs("7"));
                assert_eq!(here.operation(), there.operation());
                pa.take(&here);
                pb.take(&there);
            }
        }
    }

    #[test]
    fn a_ticket_says_what_the_other_side_has_not_done() {
        let ticket = Ticket { rank: Rank::new(0), peer: Rank::new(1), pairing: Pairing::Together, number: 3 };
        let text = ticket.answer().to_string();
        assert!(ticket.to_string().ends_with("collective number 3 of rank 0 with rank 1, which has not built it"));
        assert!(text.ends_with("number 3 of rank 0 with rank 1, which has built its side and has not launched it"));
    }

    #[test]
    fn a_ticket_that_is_not_taken_is_given_again() {
        let pairings = Pairings::default();
        let next = || pairings.next(Rank::new(0), Pairing::Send, Rank::new(1));
        assert_eq!(next(), next());
    }

    #[test]
    fn operations_of_a_pair_differ_from_each_other_and_from_the_users_own() {
        let ticket = |pairing, number| Ticket { rank: Rank::new(0), peer: Rank::new(1), pairing, number };
        let numbers = [0, 1, 2, 8191];
        let all =
            numbers.iter().flat_map(|&n| [Pairing::Send, Pairing::Together].map(|kind| ticket(kind, n).operation()));
        let mut all: Vec<u16> = all.collect();
        assert!(all.iter().all(|&op| (PeerEndpoint::OWN_OPERATIONS..1 << 15).contains(&op)), "{all:?}");
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 2 * numbers.len());
        assert_eq!(ticket(Pairing::Send, 8192).operation(), ticket(Pairing::Send, 0).operation());
    }
}
