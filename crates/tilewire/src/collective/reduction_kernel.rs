//! The kernels of reductions.
//!
//! ```text
//!                       roles
//!   OneShot, packets    reduce              sends to all ranks, collects what they send, and combines it; on a GPU,
//!                                           an all-reduce does all this packet by packet, in one pass
//!   OneShot, staged     send to 1, 2, …
//!                       reduce              combines this rank's shard of all peers' tiles, in one pass
//!   TwoPhase            as OneShot, staged; reduce also sends the result to all ranks
//!                       receive from 1, 2, …
//!   Ring                ring
//!   OneShot, direct     reduce              combines this rank's shard of all peers' windows; in an all-reduce, all
//!                                           shards
//!   TwoPhase, direct    reduce              combines this rank's shard, and writes the result into all peers' windows
//! ```

use super::algorithm::Algorithm;
use super::hooks::{Hooks, chunk};
use super::itinerary::{CHECKED, Itinerary, ReachedWindows, Shards};
use super::operation::Kind;
use super::pattern::Part;
use super::rounds::{LegCode, OwnCode, RoundsCode};
use super::scene::Scene;
use crate::hook::{AnyValue, Block, Holds, Payload, RoleCtx, Value};
use crate::ir::Type;
use crate::link::{Transport, WindowPart};
use crate::schedule::{
    PacketPlan, Packing, Peer, Position, Ring, RingReduce, Sent, StagedPlan, Tiling, WindowPeer, expect_packets,
    recv_tiles_any, reduce_packets, reduce_tiles, reduce_whole_windows, reduce_windows, ring_reduce, send_tiles_any,
    share_packets, swap_and_reduce,
};
use crate::transport::{Protocol, Rank};
use std::rc::Rc;

/// Declares the parameters and the roles.
pub(super) fn roles<'t>(plan: &Itinerary, of: &Shards, hooks: &Hooks<'_>, link: &dyn Transport, k: &Block<'t>) {
    let kernel = Kernel { plan, of, hooks, link, k, me: link.rank(), ranks: of.shards.len() };
    match (of.protocol, plan.algorithm) {
        _ if kernel.ranks == 1 => kernel.alone(),
        (Protocol::Packet, _) => kernel.packets(),
        (Protocol::Staged { slot_bytes, depth }, algorithm) => {
            let plan = StagedPlan::new(&of.link, slot_bytes, depth, of.blocks()).expect(CHECKED);
            if algorithm == Algorithm::Ring { kernel.ring(plan) } else { kernel.all_at_once(plan) }
        }
        (Protocol::Direct { .. }, _) => kernel.in_windows(of.windows.as_ref().expect("only windows are reached so")),
        (protocol @ Protocol::Bulk { .. }, _) => unreachable!("{protocol} was refused"),
    }
}

struct Kernel<'k, 'h, 't> {
    plan: &'k Itinerary,
    of: &'k Shards,
    hooks: &'k Hooks<'h>,
    link: &'k dyn Transport,
    k: &'k Block<'t>,
    me: Rank,
    ranks: usize,
}

impl<'k, 't> Kernel<'k, '_, 't> {
    /// A world of one rank.
    fn alone(&self) {
        let (scene, tiling) = (self.scene(self.me), self.tiling(self.me));
        self.k.blocks(self.of.blocks() as u32);
        self.k.role("own", self.of.warps).run(|r| {
            tiling.for_tiles(r, |step, tile| {
                tile.each(r, |spot| {
                    _ = self.result(r, &scene, 0, &Position { spot, step, slot: None, region: None }, &[])
                });
            });
        });
    }

    /// One role does everything, because no rank's sending waits for another rank's receiving.
    fn packets(&self) {
        let Shards { protocol, kind, shards, .. } = self.of;
        let (link, protocol, blocks) = (self.link, *protocol, self.of.blocks());
        let peers: Vec<Rank> = self.others().collect();
        let to: Vec<_> = peers.iter().map(|&peer| link.sender(self.k, peer, protocol, None)).collect();
        let from: Vec<_> = peers.iter().map(|&peer| link.receiver(self.k, peer, protocol)).collect();
        let plan = PacketPlan::new(&self.of.link, blocks);
        // A message is either one shard for its owner, or all shards for every rank.
        let (numbers, ranges) = match kind {
            Kind::ReduceScatter => (vec![self.me.index()], vec![shards[0].range.clone()]),
            Kind::AllReduce => ((0..self.ranks).collect(), shards.iter().map(|shard| shard.range.clone()).collect()),
        };
        let message = |to: Rank| if self.gathers() { None } else { Some(to) };
        let out: Vec<_> = match kind {
            Kind::ReduceScatter => peers.iter().map(|&peer| self.part(message(peer))).collect(),
            Kind::AllReduce => vec![self.part(None)],
        };
        let kept = self.part(message(self.me));
        self.k.blocks(blocks as u32);
        self.k.role("reduce", self.of.warps).run(|r| {
            let produce = |scene: &Scene<'t>, at: &Position<'t>| self.hooks.produce(&scene.producing(r, at));
            let (mine, sent_as) = (self.tiling(self.me), (plan, self.hooks.types));
            if self.of.swaps {
                let combine =
                    |at: &Position<'t>, own: AnyValue<'t>, got: &[AnyValue<'t>]| self.turned(r, &out[0], at, own, got);
                return swap_and_reduce(r, (&to, &from), sent_as, mine, &|at| produce(&out[0], at), &combine);
            }
            let expected = expect_packets(r, &from, sent_as, mine);
            let sent: Vec<_> = match kind {
                // The same value for all peers.
                Kind::AllReduce => vec![share_packets(r, &to, sent_as, mine, &|at| produce(&out[0], at))],
                Kind::ReduceScatter => {
                    let each = to.chunks(1).zip(&out).zip(&peers);
                    let send = |((peers, scene), peer): ((&[Peer<'t>], _), &Rank)| {
                        share_packets(r, peers, sent_as, self.tiling(*peer), &|at| produce(scene, at))
                    };
                    each.map(send).collect()
                }
            };
            reduce_packets(r, (&from, expected), plan, mine, &ranges, &|which, at, got| {
                self.result(r, &kept, numbers[which], at, got);
            });
            sent.into_iter().for_each(Sent::end);
        });
    }

    /// One role for every peer that is sent to, and one that combines. If all ranks get the whole result, also one for
    /// every peer whose result arrives.
    fn all_at_once(&self, plan: StagedPlan) {
        let (hooks, link, protocol, gathers) = (self.hooks, self.link, self.of.protocol, self.gathers());
        let onward = if gathers { plan.from_block(self.of.blocks()).expect(CHECKED) } else { plan };
        let packing = |of: Rank| Packing::new(hooks.types, self.tiling(of).tile_len());
        let round = |i: usize| {
            let (to, from) = (self.me.after(i, self.ranks), self.me.after(self.ranks - i, self.ranks));
            let (tx, scene) = (link.sender(self.k, to, protocol, None), self.scene(to));
            // Far peers' legs have the blocks and the slots of all others: nothing is gained by roles of their own.
            let (blocks, is_far, once) = (self.of.blocks(), false, false);
            let send = LegCode {
                name: format!("send to {to}"),
                blocks,
                is_far,
                once,
                trace: Box::new(move |r: &RoleCtx<'t>| {
                    let produce = |at: &Position<'t>| hooks.produce(&scene.producing(r, at));
                    send_tiles_any(r, &tx, plan, self.tiling(to), packing(to), &produce);
                }),
            };
            let receive = gathers.then(|| {
                let (rx, scene) = (link.receiver(self.k, from, protocol), self.scene(from));
                let trace = move |r: &RoleCtx<'t>| {
                    let consume = |at: &Position<'t>, x: Payload<'t>| hooks.consume(&scene.consuming(r, at), x);
                    recv_tiles_any(r, &rx, onward, self.tiling(from), packing(from), &consume);
                };
                let trace: Box<dyn Fn(&RoleCtx<'t>)> = Box::new(trace);
                LegCode { name: format!("receive from {from}"), blocks, is_far, once, trace }
            });
            [Some(send), receive]
        };
        let from: Vec<_> = self.others().map(|peer| link.receiver(self.k, peer, protocol)).collect();
        let to = if gathers {
            self.others().map(|peer| link.sender(self.k, peer, protocol, None)).collect()
        } else {
            vec![]
        };
        let scene = self.scene(self.me);
        let reduce = move |r: &RoleCtx<'t>| {
            let me = self.me.index();
            reduce_tiles(r, (&from, plan), (&to, onward), self.tiling(self.me), hooks.types, &|at, got| {
                self.result(r, &scene, me, at, got)
            });
        };
        let all = RoundsCode {
            own: Some(OwnCode {
                name: "reduce",
                blocks: self.of.blocks(),
                is_shared: false,
                trace: Rc::new(move |r, _| reduce(r)),
            }),
            rounds: (1..self.ranks).map(round).collect(),
            blocks: self.of.blocks(),
            packets: false,
            windows: false,
            copies: 1,
            warps: self.plan.warps,
            far_warps: self.plan.far_warps,
            for_gpu: self.plan.facts.for_gpu(),
            combines: true,
            on_gpu: self.plan.facts.on_gpu(),
        };
        all.trace(self.k, self.plan.layout);
    }

    /// No rank sends: all inputs are combined where they are.
    fn in_windows(&self, reached: &ReachedWindows) {
        let (link, lines) = (self.link, reached.used.lines());
        let peer = |peer: Rank| {
            let output = reached.output.as_ref().map(|output| &output[peer.index()]);
            let give = link.window_sender(self.k, peer, &lines, WindowPart::Mapped(output));
            let take = link.window_receiver(self.k, peer, &lines);
            let input = std::slice::from_ref(&reached.input[peer.index()]);
            WindowPeer { give, take, input: self.k.region("input of the peer", input) }
        };
        let peers: Vec<_> = self.others().map(peer).collect();
        let whole = self.gathers() && self.plan.algorithm == Algorithm::OneShot;
        let scene = if whole { self.part(None) } else { self.scene(self.me) };
        let ranges: Vec<_> = self.of.shards.iter().map(|shard| shard.range.clone()).collect();
        self.k.blocks(self.of.blocks() as u32);
        self.k.role("reduce", self.of.warps).run(|r| {
            let (me, onward) = (self.me.index(), reached.output.is_some());
            let (of, tiling) = ((self.of.link.max_blocks, self.ty()), self.tiling(self.me));
            if whole {
                let combine =
                    |s: usize, at: &Position<'t>, got: &[AnyValue<'t>]| _ = self.result(r, &scene, s, at, got);
                return reduce_whole_windows(r, &peers, of, tiling, &ranges, &combine);
            }
            reduce_windows(r, (&peers, onward), of, tiling, &|at, got| self.result(r, &scene, me, at, got));
        });
    }

    /// Reduces around a ring. Partial results have their own type.
    fn ring(&self, plan: StagedPlan) {
        let (Shards { shards, protocol, op, .. }, hooks, link) = (self.of, self.hooks, self.link);
        let (next, previous) = (self.me.after(1, self.ranks), self.me.after(self.ranks - 1, self.ranks));
        let (tx, rx) = (link.sender(self.k, next, *protocol, None), link.receiver(self.k, previous, *protocol));
        // `before`: the shard belongs to the rank this many places before this one.
        let shard = |before: usize| self.me.after(self.ranks - before, self.ranks);
        let scenes: Vec<_> = (0..self.ranks).map(|s| self.scene(shard(s))).collect();
        // Shard 0 is the longest, and all shards use its tiles, so a shorter shard has some empty ones.
        let tiling = shards[0].tiling;
        self.k.blocks(self.of.blocks() as u32);
        self.k.role("ring", self.of.warps).run(|r| {
            let ring = Ring { next: &tx, previous: &rx, plan, tiling, ranks: self.ranks };
            let partial = self.of.partial(self.ty());
            let reduce = RingReduce {
                partial,
                whole: hooks.types,
                contribute: &|s, at| hooks.produce(&scenes[s].producing(r, at)).only().cast(partial[0]),
                combine: &|a, b| op.combine(a, b),
                finish: &|x| op.finish(r, self.ty(), x, self.ranks),
                keep: &|s, at, x| hooks.consume(&scenes[s].consuming(r, at), x.into()),
                len: &|s| shards[shard(s).index()].range.len(),
                gathers: self.gathers(),
            };
            ring_reduce(r, &ring, &reduce);
        });
    }

    // ---- shared parts ---------------------------------------------------------------------------------------------

    /// True if all ranks get the whole result.
    fn gathers(&self) -> bool {
        self.of.kind == Kind::AllReduce
    }

    /// The reduced type.
    fn ty(&self) -> Type {
        self.hooks.types[0]
    }

    /// The tiles of a rank's shard.
    fn tiling(&self, of: Rank) -> Tiling {
        self.of.shards[of.index()].tiling
    }

    /// The other ranks, in the order in which this rank's shard is accumulated.
    fn others(&self) -> impl Iterator<Item = Rank> {
        self.of.order(self.me.index()).take(self.ranks - 1)
    }

    /// Combines the values that the others sent for a position of shard `s`, in the order of `others`, with this rank's
    /// own value. Stores the result and returns it.
    fn result(
        &self,
        r: &RoleCtx<'t>,
        scene: &Scene<'t>,
        s: usize,
        at: &Position<'t>,
        got: &[AnyValue<'t>],
    ) -> AnyValue<'t> {
        let hooks = self.hooks;
        let [produces, consumes] = scene.passing(r, at);
        let own = hooks.produce(&produces).only();
        let of = |rank: Rank| match (rank.index() + self.ranks - self.me.index()) % self.ranks {
            0 => own,
            after => got[after - 1],
        };
        let x = self.of.op.of_all(r, self.ty(), self.of.order(s).map(of));
        hooks.consume(&consumes, x.into());
        x
    }

    /// Combines this rank's value for a position with those that the others sent, in the order of `others`, and stores
    /// the result. The list of values starts with this rank's own. It is rotated until it starts with the first rank in
    /// the order of the position's shard. The rotation consists of optional steps of 1, 2, 4, … places.
    fn turned(&self, r: &RoleCtx<'t>, scene: &Scene<'t>, at: &Position<'t>, own: AnyValue<'t>, got: &[AnyValue<'t>]) {
        let (hooks, op, ranks) = (self.hooks, self.of.op, self.ranks);
        let (ty, partial) = (self.ty(), self.of.partial(self.ty())[0]);
        let places = self.by_shard(r, at, |s| ((s + 1 + ranks - self.me.index()) % ranks) as i64);
        let mut all: Vec<_> = std::iter::once(own).chain(got.iter().copied()).map(|x| x.cast(partial)).collect();
        for by in std::iter::successors(Some(1), |by| Some(2 * by)).take_while(|&by| by < ranks) {
            let turns = (places & by as i64).ne(0);
            all = (0..ranks).map(|k| AnyValue::select(turns, all[(k + by) % ranks], all[k])).collect();
        }
        let x = all.into_iter().reduce(|a, b| op.combine(a, b)).expect("at least this rank");
        hooks.consume(&scene.consuming(r, at), op.finish(r, ty, x, ranks).into());
    }

    /// The value of `of` for the shard that contains a position of the whole message.
    fn by_shard(&self, r: &RoleCtx<'t>, at: &Position<'t>, of: impl Fn(usize) -> i64) -> Value<'t, i64> {
        let shards = &self.of.shards;
        let (tile, len) = (shards[0].tiling.tile_len(), shards[0].tiling.len());
        let end = |s: usize| shards[s].range.end;
        // If every tile lies within one shard, the tile alone determines the shard of its positions.
        let apart = (0..self.ranks).all(|s| end(s) == len || end(s).is_multiple_of(tile));
        let pos = if apart { at.tile * tile as i64 } else { at.pos };
        let before = |after: Value<'t, i64>, s: usize| pos.lt(end(s) as i64).select(of(s), after);
        (0..self.ranks - 1).rev().fold(r.constant(of(self.ranks - 1)), before)
    }

    /// The scene of the hooks for a shard.
    fn scene(&self, shard: Rank) -> Scene<'t> {
        Scene { start: self.of.shards[shard.index()].range.start, ..self.part(Some(shard)) }
    }

    /// The scene for the chunk of the input that belongs to a rank, or for the whole input if `None`. An all-reduce
    /// always uses the whole input.
    fn part(&self, of: Option<Rank>) -> Scene<'t> {
        let (Itinerary { inp, out, .. }, hooks) = (self.plan, self.hooks);
        let inp = match of.filter(|_| !self.gathers()) {
            Some(rank) => {
                let part = Part::Chunk(rank.index()).of("the input", inp, self.plan.axes[0], self.ranks);
                part.ok().flatten().expect("the plan has cut it")
            }
            None => inp.clone(),
        };
        let (input, output) = (self.k.any_input(&inp).named("input"), self.k.any_output(out).named("output"));
        Scene {
            input: chunk(input, Holds::Input, &hooks.input_shape),
            output: chunk(output, Holds::Output, &hooks.output_shape),
            tiling: self.of.shards[of.map_or(0, Rank::index)].tiling,
            // The first shard is the longest.
            flow: self.of.kind.flow(self.of.shards[0].range.len()),
            other: of.unwrap_or(self.me),
            start: 0,
            cols: hooks.output_shape.as_ref().map(|shape| shape.cols),
        }
    }
}
