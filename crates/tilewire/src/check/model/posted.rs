//! Posts in the checker's model: the parties of their bytes and of their notices, and the writes that a notice makes
//! visible.
//!
//! The bytes of a post have a party that reads in one epoch and writes in the next. So a flush can say that the reads
//! are over without saying anything about the writes. `check/mod.rs` has the rules.

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

/// The knowledge that a posted notice carries.
#[derive(Default)]
pub(super) struct Told {
    /// The knowledge of the poster, and the posts that the notice covers.
    pub knowledge: Knowledge,
    /// True if the notice makes posted data visible.
    pub shows_data: bool,
}

impl Detector<'_> {
    /// Handles a descriptor that is given to the network. Its bytes get a party, and its notice gets the knowledge that
    /// it will carry.
    pub(super) fn posts(&mut self, descriptor: &Descriptor) {
        self.flush();
        self.incomplete.get_or_insert(Incomplete::Posts);
        let &Descriptor { who, inst, queue, peer, span, notice } = descriptor;
        let role = self.role(who);
        let seen = self.parties[role as usize].release(role);
        // An earlier post that is over for the poster has been written. The bytes of this post come after it, whichever
        // role copy of this rank posted it. Its lane may have carried other posts since.
        let route = self.route((role, queue, peer), who);
        let is_post = |lane: &PartyId| matches!(self.parties[*lane as usize].name, PartyName::Post(_));
        let own = self.parties[role as usize].lanes.iter().copied().filter(is_post);
        let of_others = self.lanes_to.get(&(route.1, peer)).into_iter().flatten().copied();
        let over: Vec<(PartyId, u32)> = own.chain(of_others).map(|lane| (lane, seen.over.get(lane))).collect();
        let lane = span.map(|_| {
            let mut base = Knowledge::clone(&seen);
            over.iter().for_each(|&(lane, epoch)| base.visible.set(lane, epoch));
            // Data that is visible to one peer need not be visible to another, so each peer has its own lanes.
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
            // The notice comes from a new party, which knows nothing of earlier notices.
            self.notices.remove(&(route, key));
            notifier = self.notifier(route, key, who);
        }
        let told = self.told.entry((notifier, notice.value)).or_default();
        told.knowledge.join(&seen);
        match notice.kind {
            NoticeKind::Data => {}
            NoticeKind::Credit => return,
            NoticeKind::Flush if !is_covering => return,
            // The sources of all earlier posts to the peer have been read, but nothing is known about their writes. If
            // a party is reused, its earlier post was over for the poster, including its writes.
            NoticeKind::Flush => {
                let (posted, _) = self.routes.entry(route).or_default();
                let own = self.parties[role as usize].lanes.iter().map(|&lane| (lane, posted.get(lane)));
                let mut read = Clock::default();
                own.filter(|(_, write)| *write > 0).for_each(|(lane, write)| read.set(lane, write - 1));
                told.knowledge.over.join(&read);
                return;
            }
        }
        // A notice makes the bytes of its own parts visible. A signal makes the bytes of all earlier posts of this role
        // copy to the peer visible. Both also make those earlier posts visible that are over for the poster. Posts of
        // other role copies that are over come first, but the language does not promise that they become visible.
        told.shows_data = true;
        let lanes = &self.parties[role as usize].lanes;
        let to_peer = |(lane, _): &(PartyId, u32)| {
            self.parties[*lane as usize].route == Some((route.1, peer)) && lanes.contains(lane)
        };
        let own = lane.map(|lane| (lane, self.parties[lane as usize].epoch + 1));
        // An earlier part of the delivery may already have covered more of a lane, so the clocks are joined below.
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
        // Queue numbers differ between the kernels of one role, so the ring identifies the route.
        let ring = self.rings[self.parties[role as usize].launch as usize][who.rank as usize][queue.index()];
        (role, ring, peer)
    }

    /// The party that sets a slot on behalf of a role copy, over the network.
    pub(super) fn notifier(&mut self, route: RouteKey, slot: SlotKey, who: Actor) -> PartyId {
        if let Some(&party) = self.notices.get(&(route, slot)) {
            return party;
        }
        let party = self.join(PartyName::Proxy(who));
        self.notices.insert((route, slot), party);
        party
    }
}
