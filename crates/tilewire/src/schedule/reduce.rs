//! Reductions in one pass: all peers' data for a tile arrives before the tile is touched, is read once, and the result
//! is stored once.
//!
//! ```text
//!   for every tile:    wait TAIL of peer 1, of peer 2, …             (and for free slots at those that get the result)
//!                      one each: combine what all sent, keep it      (and put it into their slots)
//!                      HEAD of peer 1, of peer 2, …                  (and their TAILs)
//! ```
//!
//! If the inputs lie in windows, nothing is sent. The combining rank reads them in place, in one hop. If all ranks get
//! the result, it stores the result in their outputs. For every peer, each rank plays both sides:
//!
//! ```text
//!   owner of an input, launch n              rank that combines a part of it, launch n
//!   DONE[block] := n + 1        ──────────▶  wait DONE[block] ≥ n + 1 of all peers
//!                                            one each: read what all have, combine, keep it (put it in their windows)
//!   wait READY[block] ≥ n + 1   ◀──────────  READY[block] := n + 1
//! ```
//! In one shot, every rank reads the whole inputs, and writes only its own output.
//!
//! DONE says that the window has been written and that its owner has reached launch n. READY says that the window may
//! be written again (and that the result is there). They are the words of [`send_direct`](super::send_direct), counted
//! in the same way, so launches of both kinds may follow each other.

use super::counters::{Counters, Keeps, Shape, block_of};
use super::direct::byte_of;
use super::packet::{Expected, PacketPlan, hold_packets, swap_packets};
use super::packing::Packing;
use super::peer::{Peer, Word};
use super::staged::{SlotAt, StagedPlan, StagedRecv, StagedSend};
use super::tiling::{Position, Spot, Tile, Tiling};
use crate::hook::{AnyValue, Payload, Region, RoleCtx, Value};
use crate::ir::Type;
use crate::transport::layout::{Side, StartWord};
use std::ops::Range;

/// Combines the tiles that all peers of `from` send to this block. `combine` gets each peer's value for a position, in
/// the order of `from`, stores the result and returns it. If `to` has peers, the result goes on to all of them in the
/// same pass, through the slots of `onward`.
#[track_caller]
pub fn reduce_tiles<'t>(
    r: &RoleCtx<'t>,
    (from, plan): (&[Peer<'t>], StagedPlan),
    (to, onward): (&[Peer<'t>], StagedPlan),
    tiling: Tiling,
    types: &'static [Type],
    combine: &dyn Fn(&Position<'t>, &[AnyValue<'t>]) -> AnyValue<'t>,
) {
    let packing = Packing::new(types, tiling.tile_len());
    packing.note_whole(r, onward.slot_bytes);
    let receives: Vec<_> = from.iter().map(|ops| StagedRecv::begin(r, ops, plan)).collect();
    let sends: Vec<_> = to.iter().map(|ops| StagedSend::begin(r, ops, onward)).collect();
    let steps = tiling.for_tiles(r, |step, tile| {
        let full: Vec<SlotAt<'t>> = receives.iter().map(|receive| receive.arrived(step)).collect();
        let free: Vec<SlotAt<'t>> = sends.iter().map(|send| send.free(step)).collect();
        let region = full.first().zip(from.first()).and_then(|(at, ops)| at.region(r, ops));
        let each = |spot: Spot<'t>| {
            let got = from.iter().zip(&full);
            let got = got.map(|(peer, at)| packing.get(peer, at.offset, spot.index).only());
            let x = combine(&Position { spot, step, slot: full.first().copied(), region }, &got.collect::<Vec<_>>());
            for (peer, at) in to.iter().zip(&free) {
                packing.put(peer, at.offset, spot.index, x.into());
            }
        };
        match from.first().or(to.first()) {
            Some(peer) => tile.each_at(r, (peer, &packing), each),
            None => tile.each(r, each),
        }
        receives.iter().zip(&full).for_each(|(receive, at)| receive.emptied(at));
        let spans = |base| packing.spans(base, tile.positions());
        sends.iter().zip(&free).for_each(|(send, at)| send.filled_in_parts(at, &spans));
    });
    receives.into_iter().for_each(|receive| receive.end(steps));
    sends.into_iter().for_each(|send| send.end(steps));
}

/// Combines this block's part of the messages that all peers of `from` send in packets,
/// [expected](super::expect_packets) beforehand. `combine` gets each peer's value for a position. Positions are taken
/// range by range, and `combine` is told the current range, because the order of a combination may depend on it.
#[track_caller]
pub fn reduce_packets<'t>(
    r: &RoleCtx<'t>,
    (peers, expected): (&[Peer<'t>], Expected<'t>),
    plan: PacketPlan,
    tiling: Tiling,
    ranges: &[Range<usize>],
    combine: &dyn Fn(usize, &Position<'t>, &[AnyValue<'t>]),
) {
    let (held, taken) = hold_packets(r, (peers, expected), plan, tiling);
    tiling.for_tiles(r, |step, tile| {
        for_ranges(r, tiling, &tile, ranges, &|number, spot| {
            let got = held.iter().map(|held| held.get(spot.index).only());
            combine(number, &Position { spot, step, slot: None, region: None }, &got.collect::<Vec<_>>());
        });
    });
    taken.end(r, peers, plan);
}

/// Runs the body for every position of a tile, range by range, with the number of its range. The tiling has no shape.
#[track_caller]
fn for_ranges<'t>(
    r: &RoleCtx<'t>,
    tiling: Tiling,
    tile: &Tile<'t>,
    ranges: &[Range<usize>],
    body: &dyn Fn(usize, Spot<'t>),
) {
    let first = tile.first(r);
    let end = first + tile.cols();
    // One range in one tile covers everything, with all numbers constant. If each tile lies in one range, its length is
    // known.
    let whole = tiling.tiles() == 1 && tiling.blocks() == 1;
    let between = |at: usize| at == tiling.len() || at.is_multiple_of(tiling.tile_len());
    let apart = ranges.iter().all(|range| between(range.start) && between(range.end));
    for (number, range) in ranges.iter().enumerate() {
        let (start, stop) = (range.start as i64, range.end as i64);
        let (from, count) = if whole {
            (r.constant(start), r.constant(range.len() as i64))
        } else if apart {
            (first, tile.cols())
        } else {
            let from = first.max(start);
            (from, (end.min(stop) - from).max(0))
        };
        let positions = || {
            r.each(count, |k| {
                let pos = from + k;
                let index = if whole { pos } else { pos - first };
                body(number, Spot { index, pos, place: None, tile: tile.index });
            });
        };
        // Most tiles lie in one range, and lanes meet after an `each` even if it has nothing to do.
        match (whole, apart) {
            (true, _) => positions(),
            (_, true) => r.if_(first.ge(start) & first.lt(stop), positions),
            _ => r.if_(count.gt(0), positions),
        }
    }
}

/// The number of elements of this type in a packet, if [`swap_and_reduce`] supports them: there must be several, and
/// they must fill the packets of every tile.
pub fn swapped(ty: Type, tiling: Tiling) -> Option<usize> {
    let count = 8 / ty.size();
    // `swap_and_reduce` traces its combining code once for each element of a packet: up to four times.
    ((2..=4).contains(&count) && tiling.is_cut_by(count)).then_some(count)
}

/// Sends this block's part of one message to all peers of `to` in packets, and combines it with the corresponding
/// messages from all of `from`. One pass sends a packet, waits for the peers' packets and combines their contents.
/// `combine` gets the value that was sent for a position and the value from each peer. On a GPU, where every pass costs
/// a barrier and a trip through shared memory, this takes less than half of the passes of
/// [`share_packets`](super::share_packets) and [`reduce_packets`].
///
/// # Panics
/// If [`swapped`] does not support the tiling. In a kernel being traced, this is a build error.
#[track_caller]
pub fn swap_and_reduce<'t>(
    r: &RoleCtx<'t>,
    peers: (&[Peer<'t>], &[Peer<'t>]),
    (plan, types): (PacketPlan, &'static [Type]),
    tiling: Tiling,
    produce: &dyn Fn(&Position<'t>) -> Payload<'t>,
    combine: &dyn Fn(&Position<'t>, AnyValue<'t>, &[AnyValue<'t>]),
) {
    let count = swapped(types[0], tiling).expect("elements that fill their packets");
    let zero = r.constant(0i64);
    swap_packets(r, peers, (plan, types), tiling, produce, &|tile, word, own, came| {
        for k in 0..count {
            let index = word * count as i64 + k as i64;
            let spot = Spot { index, pos: tile.first(r) + index, place: None, tile: tile.index };
            let of = |word: &Value<'t, u64>| AnyValue::in_word(*word, types[0], k);
            let position = Position { spot, step: zero, slot: None, region: None };
            combine(&position, of(&own), &came.iter().map(of).collect::<Vec<_>>());
        }
    });
}

/// A peer whose input is combined in place.
pub struct WindowPeer<'t> {
    /// Tells the peer that this rank's input is ready, and puts results into its window.
    pub give: Peer<'t>,
    /// Learns that the peer's input is ready.
    pub take: Peer<'t>,
    /// The part of the peer's input that this rank combines.
    pub input: Region<'t>,
}

/// Combines this block's part of the windows of all `peers`. `combine` gets each peer's value for a position, in the
/// order of `peers`, stores the result and returns it. With `onward`, the result also goes into the windows of all
/// peers, through [`WindowPeer::give`]. The tiling has one tile per block. Only for load/store links: puts are
/// signalled, not delivered.
pub fn reduce_windows<'t>(
    r: &RoleCtx<'t>,
    (peers, onward): (&[WindowPeer<'t>], bool),
    (max_blocks, ty): (usize, Type),
    tiling: Tiling,
    combine: &dyn Fn(&Position<'t>, &[AnyValue<'t>]) -> AnyValue<'t>,
) {
    while_readable(r, (peers, onward), max_blocks, tiling, &|| {
        tiling.for_tiles(r, |step, tile| {
            tile.each(r, |spot| {
                let got = peers.iter().map(|peer| peer.read(spot.pos, ty));
                let x = combine(&Position { spot, step, slot: None, region: None }, &got.collect::<Vec<_>>());
                for peer in peers.iter().filter(|_| onward) {
                    peer.give.put_any(byte_of(spot.pos, ty.size()), x);
                }
            });
        });
    });
}

/// Combines this block's part of the whole windows of all `peers`, for this rank alone: every rank does the same. As in
/// [`reduce_packets`], positions are taken range by range, and `combine` is told the current range. No other bytes than
/// the result are written, so a launch has one handshake, and nothing is published at its end. The tiling has one tile
/// per block. Only for load/store links.
pub fn reduce_whole_windows<'t>(
    r: &RoleCtx<'t>,
    peers: &[WindowPeer<'t>],
    (max_blocks, ty): (usize, Type),
    tiling: Tiling,
    ranges: &[Range<usize>],
    combine: &dyn Fn(usize, &Position<'t>, &[AnyValue<'t>]),
) {
    while_readable(r, (peers, false), max_blocks, tiling, &|| {
        tiling.for_tiles(r, |step, tile| {
            for_ranges(r, tiling, &tile, ranges, &|number, spot| {
                let got = peers.iter().map(|peer| peer.read(spot.pos, ty));
                combine(number, &Position { spot, step, slot: None, region: None }, &got.collect::<Vec<_>>());
            });
        });
    });
}

impl<'t> WindowPeer<'t> {
    /// The peer's value for a position.
    fn read(&self, pos: Value<'t, i64>, ty: Type) -> AnyValue<'t> {
        self.input.get_any(0, byte_of(pos, ty.size()), ty)
    }
}

/// Runs the body while the windows of all `peers` may be read, and this rank's own is read by them. With `onward` the
/// body also writes windows of the peers.
fn while_readable<'t>(
    r: &RoleCtx<'t>,
    (peers, onward): (&[WindowPeer<'t>], bool),
    max_blocks: usize,
    tiling: Tiling,
    body: &dyn Fn(),
) {
    let (block, shape) = (block_of(r, tiling.blocks()), Shape { max_blocks, keeps: Keeps::One });
    let counters = |peer: &Peer<'t>, side| {
        let counters = Counters::of(r, peer, block, side, shape);
        (counters, counters.get(StartWord::Direct) + 1)
    };
    let gives: Vec<_> = peers.iter().map(|peer| counters(&peer.give, Side::Send)).collect();
    let takes: Vec<_> = peers.iter().map(|peer| counters(&peer.take, Side::Receive)).collect();
    peers.iter().zip(&gives).for_each(|(peer, &(_, next))| peer.give.signal(r, Word::Done(block), next));
    peers.iter().zip(&takes).for_each(|(peer, &(_, next))| peer.take.wait(r, Word::Done(block), next));
    body();
    for (peer, &(_, next)) in peers.iter().zip(&takes) {
        // If nothing was put, it is enough that everything has been read.
        match onward {
            true => peer.take.signal(r, Word::Ready(block), next),
            false => peer.take.credit(r, Word::Ready(block), next),
        }
    }
    peers.iter().zip(&gives).for_each(|(peer, &(_, next))| peer.give.wait(r, Word::Ready(block), next));
    gives.iter().chain(&takes).for_each(|(counters, next)| counters.set(StartWord::Direct, *next));
}
