//! Plans of kernels that use the posts of the language directly, over the endpoints of a transport: bytes announced by
//! a separate signal, several deliveries for one slot, and a flush.

use super::Cases;
use super::posted::world;
use tilewire::link::Transport;
use tilewire::rehearsal::RehearsalRank;
use tilewire::tensor::Part;
use tilewire::transport::{PeerEndpoint, PostedPeer, Rank, There};
use tilewire::{RunError, Tensor, Traced, kernel};

/// The cases in a world with these domains, which `links` names.
pub(super) fn cases_in(cases: &mut Cases, (ranks, blocks): (usize, usize), links: &str, domains: &[Vec<usize>]) {
    for (what, trace) in [("posts and a signal", signalled as Launch), ("two deliveries and a flush", flushed)] {
        let domains = domains.to_vec();
        cases.add("sendrecv", format!("by hand: {what}, {links}"), move || {
            world(ranks, blocks, &domains).plan(3, |link, launch| trace(link, launch as i64))
        });
    }
}

type Launch = fn(&RehearsalRank, i64) -> Result<Traced, RunError>;

/// The tiles of a launch have [`WORDS`] words each. They use the slots of the staging alternately.
const TILES: i64 = 4;
const WORDS: i64 = 4;
const SLOTS: i64 = 2;

/// Sends two posts for every tile, and one signal that covers both. Credits come back by posts, too.
fn signalled(link: &RehearsalRank, launch: i64) -> Result<Traced, RunError> {
    let (to, from) = neighbours(link);
    let (x, y) = (Tensor::<u64>::zeros((TILES * WORDS) as usize), Tensor::<u64>::zeros((TILES * WORDS) as usize));
    Ok(kernel("posts and a signal", |k| {
        let (x, y) = (k.input(&x).named("x"), k.output(&y).named("y"));
        if let Some((endpoint, posted)) = &to {
            let queue = k.queue("posts", posted.queue_for(Part::Tail));
            let outbox = k.region("outbox", std::slice::from_ref(&posted.outbox));
            let heads = k.slots("heads", std::slice::from_ref(&endpoint.here.signals.head), PeerEndpoint::SLOT_STRIDE);
            let (peer, tails) = (i64::from(posted.peer), posted.lines.tail as i64);
            k.role("send", 1).run(|r| {
                r.for_(0..TILES, |tile| {
                    let (slot, round) = (tile % SLOTS, tile / SLOTS + launch * TILES / SLOTS);
                    r.wait(heads.slot(0, slot), round);
                    r.each(WORDS, |i| outbox.put(0, (slot * WORDS + i) * 8, x.load(tile * WORDS + i)));
                    for part in 0..2 {
                        let first = slot * (8 * WORDS) + part * (4 * WORDS);
                        r.post(queue, peer, outbox.bank(0).part(first, 4 * WORDS as usize), first, 4 * WORDS);
                    }
                    r.post_signal(queue, peer, slot + tails, round + 1);
                });
            });
        }
        if let Some((endpoint, posted)) = &from {
            let queue = k.queue("credits", posted.queue_for(Part::Head));
            let staging = k.region("staging", std::slice::from_ref(&endpoint.here.staging));
            let tails = k.slots("tails", std::slice::from_ref(&endpoint.here.signals.tail), PeerEndpoint::SLOT_STRIDE);
            let (peer, heads) = (i64::from(posted.peer), posted.lines.head as i64);
            k.role("receive", 1).run(|r| {
                r.for_(0..TILES, |tile| {
                    let (slot, round) = (tile % SLOTS, tile / SLOTS + launch * TILES / SLOTS);
                    r.wait(tails.slot(0, slot), round + 1);
                    r.each(WORDS, |i| y.store(tile * WORDS + i, staging.get::<u64>(0, (slot * WORDS + i) * 8)));
                    r.post_credit(queue, peer, slot + heads, round + 1);
                });
            });
        }
        if to.is_none() && from.is_none() {
            k.main(|_| {});
        }
    })?)
}

/// Sends two deliveries for one slot; the receiver waits for the second one only. The outbox is written again after a
/// flush.
fn flushed(link: &RehearsalRank, launch: i64) -> Result<Traced, RunError> {
    let (to, from) = neighbours(link);
    let y = Tensor::<u64>::zeros(2);
    Ok(kernel("two deliveries and a flush", |k| {
        if let Some((endpoint, posted)) = &to {
            let queue = k.queue("posts", posted.queue_for(Part::Tail));
            let outbox = k.region("outbox", std::slice::from_ref(&posted.outbox));
            let sent = k.slots("sent", std::slice::from_ref(&posted.sent), PeerEndpoint::SLOT_STRIDE);
            let heads = k.slots("heads", std::slice::from_ref(&endpoint.here.signals.head), PeerEndpoint::SLOT_STRIDE);
            let (peer, lines) = (i64::from(posted.peer), posted.lines);
            k.role("send", 1).run(|r| {
                r.for_(0..2, |turn| {
                    let round = turn + 2 * launch;
                    r.each(2, |i| outbox.put(0, i * 8, 7u64));
                    // Everything delivered earlier has been taken.
                    r.wait(heads.slot(0, 0), round);
                    for part in 0..2 {
                        let span = (outbox.bank(0).part(part * 8, 8), r.constant(part * 8), r.constant(8i64));
                        r.deliver(queue, peer, &[span], lines.tail as i64, round * 2 + part + 1);
                    }
                    r.post_flush(queue, peer, lines.sent as i64, round + 1);
                    r.wait(sent.slot(0, 0), round + 1);
                });
            });
        }
        if let Some((endpoint, posted)) = &from {
            let queue = k.queue("credits", posted.queue_for(Part::Head));
            let staging = k.region("staging", std::slice::from_ref(&endpoint.here.staging));
            let tails = k.slots("tails", std::slice::from_ref(&endpoint.here.signals.tail), PeerEndpoint::SLOT_STRIDE);
            let (y, peer, heads) = (k.output(&y), i64::from(posted.peer), posted.lines.head as i64);
            k.role("receive", 1).run(|r| {
                r.for_(0..2, |turn| {
                    let round = turn + 2 * launch;
                    r.wait(tails.slot(0, 0), round * 2 + 2);
                    r.each(2, |i| y.store(i, staging.get::<u64>(0, i * 8)));
                    r.post_credit(queue, peer, heads, round + 1);
                });
            });
        }
        if to.is_none() && from.is_none() {
            k.main(|_| {});
        }
    })?)
}

/// A rank that this rank posts to.
type Far = (PeerEndpoint, PostedPeer);

/// The next and the previous rank in the ring, as far as this rank posts to them.
fn neighbours(link: &RehearsalRank) -> (Option<Far>, Option<Far>) {
    let far = |peer: Rank| {
        let endpoint = link.endpoint(peer)?;
        let There::Posted(posted) = &endpoint.there else { return None };
        let posted = posted.clone();
        Some((endpoint, posted))
    };
    let (to, from) = link.neighbours();
    (far(to), far(from))
}
