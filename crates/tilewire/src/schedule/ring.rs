//! Rings: every rank talks to the one after it and the one before it, and tiles go round.
//!
//! ```text
//!   gather     step 0     my own tile goes to the next rank, and is kept
//!              step k     what arrives is kept and goes on to the next rank in the same pass: read once, written twice
//!
//!   reduce     step 0     my contribution to the shard of the rank before me goes to the next rank
//!              step k     what arrives is combined with my contribution, and goes on
//!              last step  … and is my shard, complete: it is kept, and may go round once more as above
//! ```
//! All steps of one tile follow each other, so one tile travels round while another block's tile starts. Shard `s`
//! begins at rank `s + 1` and ends at rank `s`, so it is combined in the same order as in all other reductions.

use super::packing::Packing;
use super::peer::Peer;
use super::staged::{StagedPlan, StagedRecv, StagedSend};
use super::tiling::{Position, Tile, Tiling};
use crate::hook::{AnyValue, Payload, Regs, RoleCtx};
use crate::ir::Type;

/// The two neighbours of a rank in a ring, and the slots between them. The slots are equal on all ranks.
pub struct Ring<'o, 't> {
    /// The next rank.
    pub next: &'o Peer<'t>,
    /// The previous rank.
    pub previous: &'o Peer<'t>,
    /// The slots.
    pub plan: StagedPlan,
    /// The tiles of a chunk, or of the longest chunk if lengths differ.
    pub tiling: Tiling,
    /// Ranks in the ring, at least 2.
    pub ranks: usize,
}

/// Gathers the chunks of all ranks. `packing` says where the parts of an element lie in a slot, which must hold a whole
/// tile. `produce` returns the value this rank sends for a position. `keep` gets the value each rank sent; its first
/// argument is the sender's distance before this rank, 0 for this rank itself.
#[track_caller]
pub fn ring_gather<'t, R: Regs>(
    r: &RoleCtx<'t>,
    ring: &Ring<'_, 't>,
    packing: Packing,
    produce: impl Fn(&Position<'t>) -> R::Of<'t>,
    keep: impl Fn(usize, &Position<'t>, R::Of<'t>),
) {
    let keep = |from: usize, at: &Position<'t>, payload: Payload<'t>| keep(from, at, R::restore(payload));
    ring_gather_any(r, ring, packing, &|at| R::erase(produce(at)), &keep);
}

/// [`ring_gather`] with the types of the packing.
#[track_caller]
pub(crate) fn ring_gather_any<'t>(
    r: &RoleCtx<'t>,
    ring: &Ring<'_, 't>,
    packing: Packing,
    produce: &dyn Fn(&Position<'t>) -> Payload<'t>,
    keep: &dyn Fn(usize, &Position<'t>, Payload<'t>),
) {
    let Ring { next, previous, plan, tiling, ranks } = *ring;
    packing.note_whole(r, plan.slot_bytes);
    let (send, receive) = (StagedSend::begin(r, next, plan), StagedRecv::begin(r, previous, plan));
    let rounds = ranks as i64 - 1;
    let tiles = tiling.for_tiles(r, |number, tile| {
        let first = number * rounds;
        let spans = |base| packing.spans(base, tile.positions());
        send.step_in_parts(first, &spans, |to| {
            tile.each_at(r, (next, &packing), |spot| {
                let position = Position { spot, step: first, slot: Some(*to), region: to.region(r, next) };
                let regs = produce(&position);
                keep(0, &position, regs);
                packing.put(next, to.offset, spot.index, regs);
            });
        });
        for round in 1..ranks {
            let step = first + (round as i64 - 1);
            receive.step(step, |from| {
                let pass = |to: Option<&super::SlotAt<'t>>| {
                    tile.each_at(r, (previous, &packing), |spot| {
                        let regs = packing.get(previous, from.offset, spot.index);
                        keep(
                            round,
                            &Position { spot, step, slot: Some(*from), region: from.region(r, previous) },
                            regs,
                        );
                        if let Some(to) = to {
                            packing.put(next, to.offset, spot.index, regs);
                        }
                    });
                };
                if round + 1 == ranks { pass(None) } else { send.step_in_parts(step + 1, &spans, |to| pass(Some(to))) }
            });
        }
    });
    send.end(tiles * rounds);
    receive.end(tiles * rounds);
}

/// A rank's contribution to a ring reduction, and the handling of results. Shards are numbered by their owner's
/// distance before this rank: 0 is this rank's own. Partial results travel in one type and complete ones in another,
/// which is no larger.
pub struct RingReduce<'a, 't> {
    /// The type of partial results.
    pub partial: &'static [Type],
    /// The type of complete results.
    pub whole: &'static [Type],
    /// This rank's part of a position of a shard, as a partial result.
    pub contribute: &'a dyn Fn(usize, &Position<'t>) -> AnyValue<'t>,
    /// Combines the partial result so far with a contribution.
    pub combine: &'a dyn Fn(AnyValue<'t>, AnyValue<'t>) -> AnyValue<'t>,
    /// Converts a complete result to the form in which it is kept.
    pub finish: &'a dyn Fn(AnyValue<'t>) -> AnyValue<'t>,
    /// Keeps a position of a shard.
    pub keep: &'a dyn Fn(usize, &Position<'t>, AnyValue<'t>),
    /// Positions of a shard.
    pub len: &'a dyn Fn(usize) -> usize,
    /// True if every rank gets every shard, false if only its own.
    pub gathers: bool,
}

/// Reduces round a ring.
#[track_caller]
pub fn ring_reduce<'t>(r: &RoleCtx<'t>, ring: &Ring<'_, 't>, reduction: &RingReduce<'_, 't>) {
    let Ring { next, previous, plan, tiling, ranks } = *ring;
    let RingReduce { partial, whole, contribute, combine, finish, keep, len, gathers } = *reduction;
    let [partial, whole] = [partial, whole].map(|types| Packing::new(types, tiling.tile_len()));
    let (send, receive) = (StagedSend::begin(r, next, plan), StagedRecv::begin(r, previous, plan));
    let rounds = ranks as i64 - 1;
    let steps = if gathers { 2 * rounds } else { rounds };
    let tiles = tiling.for_tiles(r, |number, tile: Tile<'t>| {
        let first = number * steps;
        let of = |shard: usize| tile.within(r, len(shard));
        let spans = |packing: Packing, shard: usize| {
            packing.note_whole(r, plan.slot_bytes);
            move |base| packing.spans(base, of(shard).positions())
        };
        send.step_in_parts(first, &spans(partial, 1), |to| {
            of(1).each_at(r, (next, &partial), |spot| {
                let position = Position { spot, step: first, slot: Some(*to), region: to.region(r, next) };
                partial.put(next, to.offset, spot.index, contribute(1, &position).into());
            });
        });
        for round in 1..ranks {
            let (step, shard) = (first + (round as i64 - 1), (round + 1) % ranks);
            receive.step(step, |from| {
                let sum = |spot: super::Spot<'t>, position: &Position<'t>| {
                    let so_far = partial.get(previous, from.offset, spot.index).only();
                    combine(so_far, contribute(shard, position))
                };
                let region = from.region(r, previous);
                let position = |spot| Position { spot, step, slot: Some(*from), region };
                let complete = |to: Option<&super::SlotAt<'t>>| {
                    of(0).each_at(r, (next, &partial), |spot| {
                        let x = finish(sum(spot, &position(spot)));
                        keep(0, &position(spot), x);
                        if let Some(to) = to {
                            whole.put(next, to.offset, spot.index, x.into());
                        }
                    });
                };
                if shard > 0 {
                    send.step_in_parts(step + 1, &spans(partial, shard), |to| {
                        of(shard).each_at(r, (next, &partial), |spot| {
                            partial.put(next, to.offset, spot.index, sum(spot, &position(spot)).into());
                        });
                    });
                } else if gathers {
                    send.step_in_parts(step + 1, &spans(whole, 0), |to| complete(Some(to)));
                } else {
                    complete(None);
                }
            });
        }
        for shard in (1..ranks).filter(|_| gathers) {
            let step = first + (rounds + shard as i64 - 1);
            receive.step(step, |from| {
                let pass = |to: Option<&super::SlotAt<'t>>| {
                    of(shard).each_at(r, (next, &whole), |spot| {
                        let x = whole.get(previous, from.offset, spot.index).only();
                        keep(shard, &Position { spot, step, slot: Some(*from), region: from.region(r, previous) }, x);
                        if let Some(to) = to {
                            whole.put(next, to.offset, spot.index, x.into());
                        }
                    });
                };
                if shard + 1 == ranks {
                    pass(None)
                } else {
                    send.step_in_parts(step + 1, &spans(whole, shard), |to| pass(Some(to)))
                }
            });
        }
    });
    send.end(tiles * steps);
    receive.end(tiles * steps);
}
