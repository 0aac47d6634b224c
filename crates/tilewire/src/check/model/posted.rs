//! Posts: the parties of their bytes and of their notices, and what a notice shows.
//!
//! The bytes of a post have a party that reads in one epoch and writes in the next, so that a flush can say that the
//! reads are over and nothing of the writes. `check/mod.rs` has the rules.

use super::clock::{Clock, Knowledge, PartyId};
use super::detector::Detector;
use super::outside::Incomplete;
use super::party::PartyName;
use super::slots::SlotKey;
use crate::check::network::Descriptor;
use crate::check::observer::Actor;
use crate::ir::{Entity, NoticeKind, ParamId};

/// A role copy, the number of a ring, and a peer.
pub(super) type RouteKey = (PartyId, usize, u32);

/// What a posted notice tells.
#[derive(Default)]
pub(super) struct Told {
    /// What its poster had seen, and the posts that it covers.
    pub knowledge: Knowledge,
    /// True if it shows posted data.
    pub shows_data: bool,
}

impl Detector<'_> {
    /// A descriptor is handed to the network: its bytes get a party, and its notice what it will tell.
    pub(super) fn posts(&mut self, descriptor: &Descriptor) {
        self.flush();
        self.incomplete.get_or_insert(Incomplete::Posts);
        let &Descriptor { who, inst, queue, peer, span, notice } = descriptor;
        let role = self.role(who);
        let seen = self.parties[role as usize].release(role);
        // An earlier post that is over for the poster has been written: the bytes of the next one come after it,
        // whichever role copy of this rank posted it. A lane may have carried others since.
        let route = self.route((role, queue, peer), who);
        let is_post = |lane: &PartyId| matches!(self.parties[*lane as usize].name, PartyName::Post(_));
        let own = self.parties[role as usize].lanes.iter().copied().filter(is_post);
        let of_others = self.lanes_to.get(&(route.1, peer)).into_iter().flatten().copied();
        let over: Vec<(PartyId, u32)> = own.chain(of_others).map(|lane| (lane, seen.over.get(lane))).collect();
        let lane = span.map(|_| {
            let mut base = Knowledge::clone(&seen);
            over.iter().for_each(|&(lane, epoch)| base.visible.set(lane, epoch));
            // What one peer has been shown says nothing about data sent to another.
            let lane = self.lane(role, PartyName::Post(who), Some((route.1, peer)), &base);
            let (posted, is_new) = self.routes.entry(route).or_default();
            posted.set(lane, self.parties[lane as usize].epoch + 1);
            *is_new |= notice.is_none();
            lane
        });
        let Some(notice) = notice else { return };
        let key = SlotKey { memory: notice.slot.memory, byte: notice.slot.byte };
        let op = (self.parties[role as usize].launch, who.rank, inst);
        let (is_covering, is_held) = (!self.watch.uncovered.contains(&op), !self.watch.unheld.contains(&op));
        let mut notifier = self.notifier(route, key, who);
        if !is_held && !self.told.contains_key(&(notifier, notice.value)) {
            // Somebody else, who knows nothing of the notices before.
            self.notices.remove(&(route, key));
            notifier = self.notifier(route, key, who);
        }
        let told = self.told.entry((notifier, notice.value)).or_default();
        told.knowledge.join(&seen);
        match notice.kind {
            NoticeKind::Data => {}
            NoticeKind::Credit => return,
            NoticeKind::Flush if !is_covering => return,
            // The sources of all earlier posts to the peer have been read; nothing is known of their writes. An earlier
            // post of a reused party was over for the poster, writes included, or the party would not have been reused.
            NoticeKind::Flush => {
                let (posted, _) = self.routes.entry(route).or_default();
                let own = self.parties[role as usize].lanes.iter().map(|&lane| (lane, posted.get(lane)));
                let mut read = Clock::default();
                own.filter(|(_, write)| *write > 0).for_each(|(lane, write)| read.set(lane, write - 1));
                told.knowledge.over.join(&read);
                return;
            }
        }
        // It shows the bytes of its own parts. A signal shows those of all earlier posts of this role copy to the peer,
        // and both show those of them that are over. The bytes of other role copies come first if they are over, but
        // the language does not promise that they are shown.
        told.shows_data = true;
        let lanes = &self.parties[role as usize].lanes;
        let to_peer = |(lane, _): &(PartyId, u32)| {
            self.parties[*lane as usize].route == Some((route.1, peer)) && lanes.contains(lane)
        };
        let own = lane.map(|lane| (lane, self.parties[lane as usize].epoch + 1));
        // An earlier part may have told more of its lane.
        let mut covered = Clock::default();
        over.into_iter().filter(to_peer).chain(own).for_each(|(lane, epoch)| covered.set(lane, epoch));
        if lane.is_none() && is_covering {
            let (posted, is_new) = self.routes.entry(route).or_default();
            covered.join(posted);
            told.shows_data = std::mem::take(is_new);
        }
        told.knowledge.visible.join(&covered);
        told.knowledge.over.join(&covered);
    }

    pub(super) fn route(&self, (role, queue, peer): (PartyId, ParamId, u32), who: Actor) -> RouteKey {
        // Kernels of one role may have other queues under the same number.
        let ring = self.rings[self.parties[role as usize].launch as usize][who.rank as usize][queue.index()];
        (role, ring, peer)
    }

    /// The party that sets a slot for a role copy over the network.
    pub(super) fn notifier(&mut self, route: RouteKey, slot: SlotKey, who: Actor) -> PartyId {
        if let Some(&party) = self.notices.get(&(route, slot)) {
            return party;
        }
        let party = self.join(PartyName::Proxy(who));
        self.notices.insert((route, slot), party);
        party
    }
}
