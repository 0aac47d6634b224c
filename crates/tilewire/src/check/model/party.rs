//! The parties of a run: role copies, hosts, and the asynchronous parties that work for a role copy.

use super::clock::{Knowledge, PartyId, Published};
use crate::check::observer::Actor;
use crate::check::world::StreamId;
use std::collections::VecDeque;
use std::rc::Rc;

/// The identity of a party.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PartyName {
    /// The host thread of a rank: writes inputs, launches, reads outputs.
    Host {
        /// The rank.
        rank: u32,
    },
    /// A role copy; the same in every launch.
    Role(Actor),
    /// A bulk copy of a role copy.
    Bulk(Actor),
    /// The bytes of a post of a role copy.
    Post(Actor),
    /// The notices of a role copy for one slot of a peer.
    Proxy(Actor),
    /// A copy engine; the same in every launch.
    Stream(StreamId),
}

impl PartyName {
    /// The rank it belongs to.
    pub fn rank(&self) -> u32 {
        match self {
            PartyName::Host { rank } | PartyName::Stream(StreamId { rank, .. }) => *rank,
            PartyName::Role(who) | PartyName::Bulk(who) | PartyName::Post(who) | PartyName::Proxy(who) => who.rank,
        }
    }

    /// The block it works for, if any.
    pub fn block(&self) -> Option<u32> {
        match self {
            PartyName::Role(who) | PartyName::Bulk(who) => Some(who.block),
            PartyName::Post(_) | PartyName::Proxy(_) | PartyName::Host { .. } | PartyName::Stream(_) => None,
        }
    }

    /// True if its instructions are those of a kernel.
    pub fn is_kernel(&self) -> bool {
        !matches!(self, PartyName::Host { .. } | PartyName::Stream(_))
    }
}

/// A party and its knowledge.
#[derive(Clone, Debug)]
pub struct Party {
    /// Its identity.
    pub name: PartyName,
    /// Its knowledge.
    pub knowledge: Knowledge,
    /// The knowledge of its bulk copies: its own as of the last proxy fence, and the copies that it waited for.
    pub fenced: Knowledge,
    /// Its own epoch; ends with every release.
    pub epoch: u32,
    /// Number of barriers passed.
    pub phase: u32,
    /// The launch it is in.
    pub launch: u32,
    /// Asynchronous parties that worked for it and may work again.
    pub lanes: Vec<PartyId>,
    /// Bulk copies that are not known to be complete, oldest first.
    pub copies: VecDeque<Copying>,
    /// For a post: the ring and the peer.
    pub route: Option<(usize, u32)>,
    /// True if it has signalled, waited, or changed memory that others see, in this launch.
    pub has_met: bool,
    /// The asynchronous party whose accesses are being reported.
    pub current: Option<PartyId>,
}

/// A bulk copy in flight.
#[derive(Clone, Debug)]
pub struct Copying {
    /// Its number among those of the role copy.
    pub number: u64,
    /// The knowledge when its source has been read.
    pub read: Published,
    /// The knowledge when it is complete.
    pub complete: Published,
}

impl Party {
    /// A party without knowledge.
    pub fn new(id: PartyId, name: PartyName) -> Party {
        let mut knowledge = Knowledge::default();
        knowledge.set_own(id, 1);
        Party {
            name,
            fenced: knowledge.clone(),
            knowledge,
            epoch: 1,
            phase: 0,
            launch: 0,
            lanes: Vec::new(),
            copies: VecDeque::new(),
            route: None,
            has_met: false,
            current: None,
        }
    }

    /// Publishes its knowledge, and begins an epoch: later accesses are not included.
    pub fn release(&mut self, id: PartyId) -> Published {
        let told = Rc::new(self.knowledge.clone());
        self.tick(id);
        told
    }

    /// Begins an epoch.
    pub fn tick(&mut self, id: PartyId) {
        self.epoch += 1;
        self.knowledge.set_own(id, self.epoch);
    }
}
