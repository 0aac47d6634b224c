//! Relays: a rank keeps the tiles that arrive from far ranks, and passes them on to its near ranks in the same pass.
//!
//! ```text
//!   far rank a ──▶ ┐             ┌──▶ near rank        step:   0    1    2    3    4   …
//!   far rank b ──▶ ┤    relay    ├──▶ near rank        tile:   a0   b0   a1   b1   a2  …
//!                  └  keeps each ┴──▶ near rank
//! ```
//! Each tile is read once, and written to the output and to every near rank. Its slot is credited when the whole tile
//! has been read. The tiles of several origins take turns on the way to the near ranks, so that one pipeline serves all
//! origins. All legs have the same tiles.

use super::packing::Packing;
use super::peer::Peer;
use super::staged::{StagedPlan, StagedRecv, StagedSend};
use super::tiling::{Position, Tile, Tiling};
use crate::hook::{Payload, Regs, RoleCtx, Value};

/// The ranks around a relay, and the slots between them.
pub struct Relay<'o, 't> {
    /// The far ranks whose chunks arrive. Each has its own slots.
    pub from: &'o [Peer<'t>],
    /// The slots of each far rank.
    pub incoming: StagedPlan,
    /// The near ranks that the chunks are passed on to.
    pub to: &'o [Peer<'t>],
    /// The slots of each near rank. They must hold the tiles of `incoming`.
    pub outgoing: StagedPlan,
    /// The tiles of a chunk.
    pub tiling: Tiling,
}

/// Passes on the chunks of far ranks. `keep` is called with the value for each position. Its first argument is the
/// index of the far rank in [`Relay::from`]. The near ranks call [`recv_relayed`].
#[track_caller]
pub fn relay_tiles<'t, R: Regs>(
    r: &RoleCtx<'t>,
    relay: &Relay<'_, 't>,
    packing: Packing,
    keep: impl Fn(usize, &Position<'t>, R::Of<'t>),
) {
    relay_tiles_any(r, relay, packing, &|from, at, payload| keep(from, at, R::restore(payload)));
}

/// [`relay_tiles`] with the types of the packing.
#[track_caller]
pub(crate) fn relay_tiles_any<'t>(
    r: &RoleCtx<'t>,
    relay: &Relay<'_, 't>,
    packing: Packing,
    keep: &dyn Fn(usize, &Position<'t>, Payload<'t>),
) {
    let Relay { from, incoming, to, outgoing, tiling } = *relay;
    let receives: Vec<_> = from.iter().map(|peer| StagedRecv::begin(r, peer, incoming)).collect();
    let sends: Vec<_> = to.iter().map(|peer| StagedSend::begin(r, peer, outgoing)).collect();
    // Copies take turns by the steps of the launch, because the pipelines began at different steps. A slot is still
    // used by one copy only, since depths are multiples of the copies.
    let turns = (r.declared_copies() > 1).then(|| (r.copy(), r.copies()));
    let step = |turn: &Turn<'t>| {
        let Turn { number, shard, step, tile } = turn;
        let arrived = receives[*shard].arrived(*number);
        let free: Vec<_> = sends.iter().map(|send| send.free(*step)).collect();
        tile.each_at(r, (&from[*shard], &packing), |spot| {
            let region = arrived.region(r, &from[*shard]);
            let payload = packing.get(&from[*shard], arrived.offset, spot.index);
            keep(*shard, &Position { spot, step: *number, slot: Some(arrived), region }, payload);
            for (peer, slot) in to.iter().zip(&free) {
                packing.put(peer, slot.offset, spot.index, payload);
            }
        });
        for (send, slot) in sends.iter().zip(&free) {
            send.filled_in_parts(slot, &|base| packing.spans(base, tile.positions()));
        }
        receives[*shard].emptied(&arrived);
    };
    let tiles = for_turns(r, tiling, from.len(), turns, &step);
    receives.into_iter().for_each(|receive| receive.end(tiles));
    let steps = if from.len() == 1 { tiles } else { tiles * from.len() as i64 };
    sends.into_iter().for_each(|send| send.end(steps));
}

/// Receives the chunks of `shards` far ranks from the near rank that passes them on. `keep` is called with the value
/// for each position. Its first argument is the number of the far rank.
#[track_caller]
pub fn recv_relayed<'t, R: Regs>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    plan: StagedPlan,
    (tiling, shards): (Tiling, usize),
    packing: Packing,
    keep: impl Fn(usize, &Position<'t>, R::Of<'t>),
) {
    recv_relayed_any(r, peer, plan, (tiling, shards), packing, &|from, at, payload| {
        keep(from, at, R::restore(payload))
    });
}

/// [`recv_relayed`] with the types of the packing.
#[track_caller]
pub(crate) fn recv_relayed_any<'t>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    plan: StagedPlan,
    (tiling, shards): (Tiling, usize),
    packing: Packing,
    keep: &dyn Fn(usize, &Position<'t>, Payload<'t>),
) {
    let receive = StagedRecv::begin(r, peer, plan);
    let turns = (r.declared_copies() > 1).then(|| receive.turns());
    let tiles = for_turns(r, tiling, shards, turns, &|turn: &Turn<'t>| {
        let Turn { number, shard, step, tile } = turn;
        receive.step(*step, |at| {
            tile.each_at(r, (peer, &packing), |spot| {
                let position = Position { spot, step: *number, slot: Some(*at), region: at.region(r, peer) };
                keep(*shard, &position, packing.get(peer, at.offset, spot.index));
            });
        });
    });
    receive.end(if shards == 1 { tiles } else { tiles * shards as i64 });
}

/// A tile of one of several chunks that share a pipeline.
struct Turn<'t> {
    /// The number of the tile in its chunk, among the tiles of this block.
    number: Value<'t, i64>,
    /// The number of the chunk.
    shard: usize,
    /// The step of the pipeline.
    step: Value<'t, i64>,
    tile: Tile<'t>,
}

/// Runs the body for every tile that this block has of `shards` chunks. `turns` is the first step of this copy of a
/// role, and the distance to its next step. Returns the number of tiles of one chunk.
#[track_caller]
fn for_turns<'t>(
    r: &RoleCtx<'t>,
    tiling: Tiling,
    shards: usize,
    turns: Option<(Value<'t, i64>, Value<'t, i64>)>,
    body: &dyn Fn(&Turn<'t>),
) -> Value<'t, i64> {
    match turns {
        _ if shards == 1 => {
            tiling.for_turns(r, turns, |number, tile| body(&Turn { number, shard: 0, step: number, tile }))
        }
        None => tiling.for_tiles(r, |number, tile| {
            let first = number * shards as i64;
            (0..shards).for_each(|shard| body(&Turn { number, shard, step: first + shard as i64, tile }));
        }),
        Some(_) if tiling.is_empty() => r.constant(0i64),
        Some((first, by)) => {
            let tiles = tiling.steps_here(r);
            r.for_step(first, tiles * shards as i64, by, |step| {
                let (number, which) = (step / shards as i64, step % shards as i64);
                let tile = tiling.tile_here(r, number);
                for shard in 0..shards {
                    r.if_(which.eq(shard as i64), || body(&Turn { number, shard, step, tile }));
                }
            });
            tiles
        }
    }
}
