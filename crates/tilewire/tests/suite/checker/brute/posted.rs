//! Posts by the rules of the language: every part of a post, and every notice, is an event of its own that happens at
//! some time after the post.
//!
//! - The bytes of a part are copied at any time, by a party that knows what the poster knew. Of the poster's own posts
//!   it knows those that were over for the poster, and of its rank's posts to the same peer likewise: a post that is
//!   over was written before.
//! - A delivery (a notice with bytes) is told when all its parts have arrived.
//! - A signal (a notice without bytes) is told when all earlier posts of its party to the peer have arrived.
//! - A credit is told at any time.
//! - A flush is told when all earlier posts of its party to the peer have been read.
//! - Each of them comes after the party's earlier notices for the same slot of the same peer.
//!
//! The party that sets the slot knows what the poster knew, the events that had to arrive, and which of the poster's
//! posts to the peer were over for the poster. The notice publishes all of that. A credit and a flush publish only what
//! is over, as a plain credit does. For the party that sets the slot of a flush, the reads that it waited for are over,
//! and nothing else of those posts.

use super::events::{Events, bytes};
use super::interleave::Shown;
use super::program::{Place, Program, Small, Span, Told};
use super::steps::{Known, Posted, State, Trail, World, set_half};
use std::ops::Range;
use tilewire::ir::NoticeKind;

/// The events of a post.
#[derive(Clone)]
struct Parts {
    peer: usize,
    /// The events of its parts: each is a read, and the write with the next number.
    copies: Vec<(usize, (Place, Place))>,
    /// The event of its notice.
    notice: Option<(usize, Told)>,
}

/// The parties that set slots over the network: the poster, the peer and the slot of each.
pub(super) fn tellers(program: &Program) -> Vec<(usize, usize, usize)> {
    let mut tellers = Vec::new();
    for (of, op) in program.parties.iter().enumerate().flat_map(|(p, party)| party.ops.iter().map(move |op| (p, op))) {
        if let Small::Post { peer, notice: Some(Told { slot, .. }), .. } = *op
            && !tellers.contains(&(of, peer, slot))
        {
            tellers.push((of, peer, slot));
        }
    }
    tellers
}

impl World<'_> {
    fn parts(&self, of: usize, op: usize) -> Parts {
        let Small::Post { peer, span, notice } = self.program.parties[of].ops[op] else {
            unreachable!("only posts are posted")
        };
        let first = self.events.first[of][op];
        let copies: Vec<_> = (first..).step_by(2).zip(span.map_or(Vec::new(), Span::parts)).collect();
        let told = first + copies.len() * 2;
        Parts { peer, notice: notice.map(|notice| (told, notice)), copies }
    }

    /// The posts of a party to the same peer, up to and including this one.
    fn to_peer(&self, state: &State, of: usize, number: usize) -> Vec<Parts> {
        let all = state.posted[of][..=number].iter().map(|posted| self.parts(of, posted.op));
        let peer = self.parts(of, state.posted[of][number].op).peer;
        all.filter(|parts| parts.peer == peer).collect()
    }

    /// The events that a notice must wait for: writes of bytes, and other notices.
    fn needs(&self, state: &State, of: usize, number: usize) -> Events {
        let mut before = self.to_peer(state, of, number);
        let Some(Parts { copies, notice: Some((_, me)), .. }) = before.pop() else { return 0 };
        let for_slot = |parts: &Parts| parts.notice.filter(|(_, told)| told.slot == me.slot).map(|(event, _)| event);
        let notices = before.iter().filter_map(for_slot);
        if me.kind == NoticeKind::Flush {
            let reads = before.iter().flat_map(|parts| &parts.copies).map(|(read, _)| *read);
            return reads.chain(notices).fold(0, |all, event| all | 1 << event);
        }
        let is_signal = copies.is_empty() && me.kind == NoticeKind::Data;
        let covered = before.iter().filter(|_| is_signal).flat_map(|parts| &parts.copies).chain(&copies);
        covered.map(|(read, _)| read + 1).chain(notices).fold(0, |all, event| all | 1 << event)
    }

    /// The events that may happen next among the posts of a party.
    pub(super) fn posted_steps(&self, state: &State, of: usize) -> Vec<usize> {
        let is_done = |event: usize| state.done & 1 << event != 0;
        let mut next = Vec::new();
        for (number, posted) in state.posted[of].iter().enumerate() {
            let Parts { copies, notice, .. } = self.parts(of, posted.op);
            next.extend(copies.into_iter().map(|(read, _)| read).filter(|&read| !is_done(read)));
            let notice = notice.map(|(event, _)| event).filter(|&event| !is_done(event));
            next.extend(notice.filter(|_| self.needs(state, of, number) & !state.done == 0));
        }
        next
    }

    /// One of these events happens.
    pub(super) fn deliver(&self, state: &mut State, of: usize, event: usize, shown: &mut Shown) {
        let is_it = |posted: &Posted| {
            let Parts { copies, notice, .. } = self.parts(of, posted.op);
            copies.iter().any(|(read, _)| *read == event) || notice.is_some_and(|(told, _)| told == event)
        };
        let number = state.posted[of].iter().position(is_it).expect("it was posted");
        let Posted { op, mut known } = state.posted[of][number].clone();
        let Parts { peer, copies, notice } = self.parts(of, op);
        if let Some((_, (from, to))) = copies.iter().find(|(read, _)| *read == event) {
            let own = self.copied(&self.all_posts(state, of, number));
            let earlier = known.over & (own | self.copied(&self.of_its_rank(state, of, peer)));
            known.join(Known { visible: earlier, over: earlier, without_packets: earlier });
            self.happens_to(state, &mut known, event, shown);
            self.happens_to(state, &mut known, event + 1, shown);
            self.copy(state, event + 1, *from, *to);
        } else if let Some((_, Told { slot, value, kind })) = notice {
            let teller = self.tellers.iter().position(|&teller| teller == (of, peer, slot)).expect("it is one");
            let actor = self.program.parties.len() + teller;
            let before = self.to_peer(state, of, number);
            let copied = self.copied(&before);
            let needs = self.needs(state, of, number);
            let under = self.under(state, (of, peer), needs, known.over);
            let covered = copied & known.over | self.reads_too(&before, needs) | under;
            let mut learnt = known;
            match kind {
                NoticeKind::Data => learnt.join(Known { visible: covered, over: covered, without_packets: covered }),
                // A credit covers nothing. It needs only the notices before it.
                NoticeKind::Credit => {}
                NoticeKind::Flush => {
                    let reads = before.iter().flat_map(|parts| &parts.copies).fold(0, |all, (read, _)| all | 1 << read);
                    learnt.join(Known { over: reads, ..Known::default() });
                }
            }
            state.known[actor].join(learnt);
            self.signal(state, actor, event, (slot, value, kind != NoticeKind::Data), shown);
        }
        // Knowledge that nobody asks for any more must not make states differ.
        let over = |event: usize| state.done & 1 << event != 0;
        if copies.iter().all(|(read, _)| over(*read)) && notice.is_none_or(|(told, _)| over(told)) {
            state.posted[of][number].known = Known::default();
        }
    }

    fn all_posts(&self, state: &State, of: usize, number: usize) -> Vec<Parts> {
        state.posted[of][..number].iter().map(|posted| self.parts(of, posted.op)).collect()
    }

    /// The posts of all parties of a party's rank to a peer.
    fn of_its_rank(&self, state: &State, of: usize, peer: usize) -> Vec<Parts> {
        let is_there = |party: &usize| self.program.parties[*party].rank == self.program.parties[of].rank;
        let posted = (0..self.program.parties.len())
            .filter(is_there)
            .flat_map(|party| state.posted[party].iter().map(move |posted| self.parts(party, posted.op)));
        posted.filter(|parts| parts.peer == peer).collect()
    }

    /// Of a rank's posts to a peer that are over, those that wrote the places of these writes. Their bytes lie under
    /// the present ones.
    fn under(&self, state: &State, (of, peer): (usize, usize), writes: Events, over: Events) -> Events {
        let all = self.of_its_rank(state, of, peer);
        let places = || all.iter().flat_map(|parts| &parts.copies).map(|&(read, (_, to))| (read, bytes(to)));
        let covered: Vec<_> = places().filter(|(read, _)| writes & 2 << read != 0).map(|(_, to)| to).collect();
        let is_under = |to: &Range<usize>| covered.iter().any(|at| at.start < to.end && to.start < at.end);
        places().filter(|(_, to)| is_under(to)).fold(0, |all, (read, _)| all | 3 << read) & over
    }

    /// The reads and writes of posts.
    fn copied(&self, posts: &[Parts]) -> Events {
        let all = posts.iter().flat_map(|parts| &parts.copies);
        all.fold(0, |all, (read, _)| all | 3 << read)
    }

    /// The writes of bytes among these events, and the reads before them.
    fn reads_too(&self, posts: &[Parts], events: Events) -> Events {
        let all = posts.iter().flat_map(|parts| &parts.copies).map(|(read, _)| 2 << read);
        all.filter(|write: &Events| events & write != 0).fold(0, |all, write| all | write | write >> 1)
    }

    fn copy(&self, state: &mut State, event: usize, from: Place, to: Place) {
        let value = match from {
            Place::Word(i) => state.words[i],
            Place::Half(i) => state.words[i / 2] >> (32 * (i % 2)) & 0xffff_ffff,
            Place::Slot(_) | Place::Tensor => unreachable!("only words are posted"),
        };
        self.written(state, to, Trail { by: Some(event), value, ..Trail::default() });
        match to {
            Place::Word(i) => state.words[i] = value,
            Place::Half(i) => set_half(&mut state.words, i, value),
            Place::Slot(_) | Place::Tensor => unreachable!("words are posted to words"),
        }
    }
}
