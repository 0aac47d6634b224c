//! The kernels of reductions.
//!
//! ```text
//!   OneShot, packets    reduce                 sends to all, holds what all send, combines; an all-reduce on a GPU packet by packet, in one pass
//!   OneShot, staged     send to 1, 2, … ; reduce: the own shard, of all peers' tiles in one pass
//!   TwoPhase            the same, and reduce passes the result on to all; receive from 1, 2, …
//!   Ring                ring
//!   direct              reduce: the own shard, of all peers' windows; of an all-reduce into all peers' windows
//! ```

use super::algorithm::{Algorithm, ReduceOp, Reducible};
use super::hooks::chunk;
use super::link::Link;
use super::reduction::{Course, Kind, Reduction};
use super::reduction_windows::Reached;
use super::rounds::{FEWER, LegCode, OwnCode, RoundsCode, warps_of};
use super::scene::Scene;
use crate::hook::{Block, Ctx, Holds, RoleCtx, Value};
use crate::ir::scalar::{Element, Number};
use crate::schedule::{
    Leg, PacketPlan, Packing, Ring, RingReduce, Sent, StagedPlan, WindowPeer, expect_packets, recv_tiles,
    reduce_packets, reduce_tiles, reduce_windows, ring_reduce, send_tiles, share_packets, swap_and_reduce, swapped,
};
use crate::transport::{Protocol, Rank};
use std::rc::Rc;

/// Declares the parameters and the roles.
pub(super) fn roles<'t, L: Link, In: Element, Out: Element, R: Reducible>(
    reduction: &Reduction<'_, '_, L, In, Out, R>,
    k: &Block<'t>,
    course: &Course<'_>,
) {
    let kernel = Kernel { reduction, k, course, me: reduction.terms.link.rank(), ranks: course.shards.len() };
    match (course.protocol, course.algorithm) {
        _ if kernel.ranks == 1 => kernel.alone(),
        (Protocol::Packet, _) => kernel.packets(),
        (Protocol::Staged { slot_bytes, depth }, algorithm) => {
            let plan = StagedPlan::new(reduction.terms.link, slot_bytes, depth, course.blocks);
            if algorithm == Algorithm::Ring { kernel.ring(plan) } else { kernel.all_at_once(plan) }
        }
        (Protocol::Direct { .. }, _) => {
            kernel.in_windows(course.reached.as_ref().expect("only windows are reached so"))
        }
        (protocol @ Protocol::Bulk { .. }, _) => unreachable!("{protocol} was refused"),
    }
}

/// Whether packets are sent, taken and combined in one pass, for several positions at once: on a GPU, whose lanes are few for them. A
/// `consume` hook may combine neighbours, and has positions one by one.
pub(super) fn swaps<L: Link, In: Element, Out: Element, R: Reducible>(
    reduction: &Reduction<'_, '_, L, In, Out, R>,
    course: &Course<'_>,
) -> bool {
    let Reduction { kind, hooks, terms, .. } = reduction;
    let on_gpu = terms.link.seat().is_some() || terms.link.copies() > 1;
    let in_packets = course.protocol == Protocol::Packet && course.shards.len() > 1;
    let all = *kind == Kind::AllReduce && hooks.stores();
    on_gpu && in_packets && all && swapped::<R>(course.tilings[0]).is_some()
}

struct Kernel<'k, 'h, 'l, 't, L: Link, In: Element, Out: Element, R: Reducible> {
    reduction: &'k Reduction<'h, 'l, L, In, Out, R>,
    k: &'k Block<'t>,
    course: &'k Course<'k>,
    me: Rank,
    ranks: usize,
}

impl<'k, 't, L: Link, In: Element, Out: Element, R: Reducible> Kernel<'k, '_, '_, 't, L, In, Out, R> {
    /// A world of one.
    fn alone(&self) {
        let (scene, tiling) = (self.scene(self.me), self.course.tilings[0]);
        self.k.blocks(self.course.blocks as u32);
        self.k.role("own", self.warps()).run(|r| {
            tiling.for_tiles(r, |step, tile| {
                tile.each(r, |spot| _ = self.result(r, &scene, 0, &Leg { spot, step, slot: None, region: None }, &[]));
            });
        });
    }

    /// All in one role: nobody's sending waits for anybody's receiving.
    fn packets(&self) {
        let Course { blocks, tilings, shards, .. } = self.course;
        let (link, protocol) = (self.reduction.terms.link, self.course.protocol);
        let peers: Vec<Rank> = self.others().collect();
        let to: Vec<_> = peers.iter().map(|&peer| link.sender(self.k, peer, protocol, None)).collect();
        let from: Vec<_> = peers.iter().map(|&peer| link.receiver(self.k, peer, protocol)).collect();
        let plan = PacketPlan::new(link, *blocks);
        // One message is a shard for its owner, or all of them for everybody.
        let (numbers, ranges) = match self.reduction.kind {
            Kind::ReduceScatter => (vec![self.me.index()], vec![shards[0].clone()]),
            Kind::AllReduce => ((0..self.ranks).collect(), shards.clone()),
        };
        let message = |to: Rank| if self.reduction.kind == Kind::AllReduce { None } else { Some(to) };
        let out: Vec<_> = match self.reduction.kind {
            Kind::ReduceScatter => peers.iter().map(|&peer| self.part(message(peer))).collect(),
            Kind::AllReduce => vec![self.part(None)],
        };
        let kept = self.part(message(self.me));
        self.k.blocks(*blocks as u32);
        // Few words for each peer: barriers of many warps cost more than their lanes gain (H200, 64 KiB by 4 ranks of 32 blocks: 2 warps
        // 9.0 µs, 4 warps 7.8, 8 warps 8.1 to 8.5).
        let terms = &self.reduction.terms;
        self.k.role("reduce", warps_of(terms.link.seat().is_some(), terms.config.warps, 8)).run(|r| {
            let produce =
                |scene: &Scene<'t, In, Out>, at: &Leg<'t>| self.reduction.hooks.produce(&scene.producing(r, at));
            let mine = tilings[self.me.index()];
            if swaps(self.reduction, self.course) {
                return swap_and_reduce::<R, _>(
                    r,
                    (&to, &from),
                    plan,
                    mine,
                    |at| produce(&out[0], at),
                    |at, own, got| {
                        self.turned(r, &out[0], at, own, got);
                    },
                );
            }
            let expected = expect_packets::<R, _>(r, &from, plan, mine);
            let sent: Vec<_> = match self.reduction.kind {
                // The same for all of them.
                Kind::AllReduce => vec![share_packets::<R, _>(r, &to, plan, tilings[0], |at| produce(&out[0], at))],
                Kind::ReduceScatter => {
                    let each = to.chunks(1).zip(&out).zip(&peers);
                    let send = |((ops, scene), peer): ((_, _), &Rank)| {
                        share_packets::<R, _>(r, ops, plan, tilings[peer.index()], |at| produce(scene, at))
                    };
                    each.map(send).collect()
                }
            };
            reduce_packets::<R, _>(r, (&from, expected), plan, mine, &ranges, |which, at, got| {
                self.result(r, &kept, numbers[which], at, got);
            });
            sent.into_iter().for_each(Sent::end);
        });
    }

    /// A role for every peer that is sent to; one that combines; and, where all get everything, one for every peer whose result comes.
    fn all_at_once(&self, plan: StagedPlan) {
        let Course { blocks, tilings, protocol, .. } = self.course;
        let (reduction, link, gathers) = (self.reduction, self.reduction.terms.link, self.gathers());
        let onward = if gathers { plan.from_block(*blocks) } else { plan };
        let packing = |of: Rank| Packing::new(<R as crate::hook::Regs>::TYPES, tilings[of.index()].tile_len());
        let round = |i: usize| {
            let (to, from) = (self.me.after(i, self.ranks), self.me.after(self.ranks - i, self.ranks));
            let (tx, scene) = (link.sender(self.k, to, *protocol, None), self.scene(to));
            let send = LegCode {
                name: format!("send to {to}"),
                trace: Box::new(move |r: &RoleCtx<'t>| {
                    let produce = |at: &Leg<'t>| reduction.hooks.produce(&scene.producing(r, at));
                    send_tiles::<R, _>(r, &tx, plan, tilings[to.index()], packing(to), produce);
                }),
            };
            let receive = gathers.then(|| {
                let (rx, scene) = (link.receiver(self.k, from, *protocol), self.scene(from));
                let trace = move |r: &RoleCtx<'t>| {
                    let consume = |at: &Leg<'t>, x| reduction.hooks.consume(&scene.consuming(r, at), x);
                    recv_tiles::<R, _>(r, &rx, onward, tilings[from.index()], packing(from), consume);
                };
                LegCode { name: format!("receive from {from}"), trace: Box::new(trace) as Box<dyn Fn(&RoleCtx<'t>)> }
            });
            [Some(send), receive]
        };
        let from: Vec<_> = self.others().map(|peer| link.receiver(self.k, peer, *protocol)).collect();
        let to = if gathers {
            self.others().map(|peer| link.sender(self.k, peer, *protocol, None)).collect()
        } else {
            vec![]
        };
        let scene = self.scene(self.me);
        let reduce = move |r: &RoleCtx<'t>| {
            let me = self.me.index();
            reduce_tiles::<R, R, _>(r, (&from, plan), (&to, onward), tilings[me], |at, got| {
                self.result(r, &scene, me, at, got)
            });
        };
        let all = RoundsCode {
            own: Some(OwnCode { name: "reduce", is_shared: false, trace: Rc::new(move |r, _| reduce(r)) }),
            rounds: (1..self.ranks).map(round).collect(),
            blocks: *blocks,
            packets: false,
            windows: false,
            copies: 1,
            warps: reduction.terms.config.warps,
            combines: true,
            on_gpu: link.seat().is_some(),
        };
        all.trace(self.k, reduction.layout());
    }

    /// Nobody sends: what all have is combined where it lies.
    fn in_windows(&self, reached: &Reached<'_>) {
        let Course { blocks, tilings, protocol, .. } = self.course;
        let (reduction, link) = (self.reduction, self.reduction.terms.link);
        let part = |window, peer| reduction.part_of(self.course, window, peer);
        let peer = |peer: Rank| {
            let output = reached.output.map(|output| part(output, peer));
            let (give, take) =
                (link.sender(self.k, peer, *protocol, output.as_ref()), link.receiver(self.k, peer, *protocol));
            WindowPeer { give, take, input: self.k.region("input of the peer", &[part(reached.input, peer)]) }
        };
        let peers: Vec<_> = self.others().map(peer).collect();
        let scene = self.scene(self.me);
        self.k.blocks(*blocks as u32);
        self.k.role("reduce", self.warps()).run(|r| {
            let (me, onward) = (self.me.index(), reached.output.is_some());
            reduce_windows::<R, R, _>(r, (&peers, onward), link.max_blocks_per_peer(), tilings[me], |at, got| {
                self.result(r, &scene, me, at, got)
            });
        });
    }

    fn ring(&self, plan: StagedPlan) {
        match self.reduction.op {
            ReduceOp::Average => self.ring_of::<R::Mean>(plan),
            _ => self.ring_of::<R::Partial>(plan),
        }
    }

    /// Round a ring, where partial results travel as `P`.
    fn ring_of<P: Number>(&self, plan: StagedPlan) {
        let Course { blocks, tilings, shards, protocol, .. } = self.course;
        let (reduction, link) = (self.reduction, self.reduction.terms.link);
        let (next, previous) = (self.me.after(1, self.ranks), self.me.after(self.ranks - 1, self.ranks));
        let (tx, rx) = (link.sender(self.k, next, *protocol, None), link.receiver(self.k, previous, *protocol));
        // By how many ranks before this one a shard belongs to.
        let shard = |before: usize| self.me.after(self.ranks - before, self.ranks);
        let scenes: Vec<_> = (0..self.ranks).map(|s| self.scene(shard(s))).collect();
        // Shard 0 is the longest, and the tiles of all are those of it: a shorter one has some that are empty.
        let tiling = tilings[0];
        self.k.blocks(*blocks as u32);
        self.k.role("ring", self.warps()).run(|r| {
            let ring = Ring { next: &tx, previous: &rx, plan, tiling, ranks: self.ranks };
            let reduce = RingReduce::<P, R> {
                contribute: &|s, at| reduction.hooks.produce(&scenes[s].producing(r, at)).cast::<P>(),
                combine: &|a, b| reduction.op.combine(a, b),
                finish: &|x| reduction.op.finish::<R, P>(r, x, self.ranks),
                keep: &|s, at, x| reduction.hooks.consume(&scenes[s].consuming(r, at), x),
                len: &|s| shards[shard(s).index()].len(),
                gathers: self.gathers(),
            };
            ring_reduce(r, &ring, &reduce);
        });
    }

    // ---- parts of them --------------------------------------------------------------------------------------------

    /// Of a role that has the block to itself.
    fn warps(&self) -> u32 {
        let terms = &self.reduction.terms;
        warps_of(terms.link.seat().is_some(), terms.config.warps, FEWER)
    }

    fn gathers(&self) -> bool {
        self.reduction.kind == Kind::AllReduce
    }

    /// The other ranks, in the order in which this rank's shard is accumulated.
    fn others(&self) -> impl Iterator<Item = Rank> {
        self.course.order(self.me.index()).take(self.ranks - 1)
    }

    /// Combines what the others sent for a position of shard `s`, in the order of `others`, with what this rank has; keeps and gives it.
    fn result(
        &self,
        r: &RoleCtx<'t>,
        scene: &Scene<'t, In, Out>,
        s: usize,
        at: &Leg<'t>,
        got: &[Value<'t, R>],
    ) -> Value<'t, R> {
        let Reduction { hooks, op, .. } = self.reduction;
        let [produces, consumes]: [Ctx<'t, In, Out>; 2] = scene.passing(r, at);
        let own = hooks.produce(&produces);
        let of = |rank: Rank| match (rank.index() + self.ranks - self.me.index()) % self.ranks {
            0 => own,
            after => got[after - 1],
        };
        let x = op.of_all(r, self.course.order(s).map(of));
        hooks.consume(&consumes, x);
        x
    }

    /// Combines what this rank has for a position and what the others sent, in the order of `others`, and keeps it. The ranks, from this one
    /// on, are turned until the first of the position's shard comes first: by 1, by 2, by 4, .. places, or not.
    fn turned(
        &self,
        r: &RoleCtx<'t>,
        scene: &Scene<'t, In, Out>,
        at: &Leg<'t>,
        own: Value<'t, R>,
        got: &[Value<'t, R>],
    ) {
        match self.reduction.op {
            ReduceOp::Average => self.turned_of::<R::Mean>(r, scene, at, own, got),
            _ => self.turned_of::<R::Partial>(r, scene, at, own, got),
        }
    }

    fn turned_of<P: Number>(
        &self,
        r: &RoleCtx<'t>,
        scene: &Scene<'t, In, Out>,
        at: &Leg<'t>,
        own: Value<'t, R>,
        got: &[Value<'t, R>],
    ) {
        let (Reduction { hooks, op, .. }, ranks) = (self.reduction, self.ranks);
        let places = self.by_shard(r, at, |s| ((s + 1 + ranks - self.me.index()) % ranks) as i64);
        let mut all: Vec<_> = std::iter::once(own).chain(got.iter().copied()).map(|x| x.cast::<P>()).collect();
        for by in std::iter::successors(Some(1), |by| Some(2 * by)).take_while(|&by| by < ranks) {
            let turns = (places & by as i64).ne(0);
            all = (0..ranks).map(|k| turns.select(all[(k + by) % ranks], all[k])).collect();
        }
        let x = all.into_iter().reduce(|a, b| op.combine(a, b)).expect("at least this rank");
        hooks.consume(&scene.consuming(r, at), op.finish(r, x, ranks));
    }

    /// What goes with the shard of a position of the whole message.
    fn by_shard(&self, r: &RoleCtx<'t>, at: &Leg<'t>, of: impl Fn(usize) -> i64) -> Value<'t, i64> {
        let Course { tilings, shards, .. } = self.course;
        let (tile, len) = (tilings[0].tile_len(), tilings[0].len());
        // Where a tile lies in one shard, so do all its positions.
        let apart = shards.iter().all(|shard| shard.end == len || shard.end.is_multiple_of(tile));
        let pos = if apart { at.tile * tile as i64 } else { at.pos };
        let before = |after: Value<'t, i64>, s: usize| pos.lt(shards[s].end as i64).select(of(s), after);
        (0..self.ranks - 1).rev().fold(r.constant(of(self.ranks - 1)), before)
    }

    /// The scene of the hooks for a shard.
    fn scene(&self, shard: Rank) -> Scene<'t, In, Out> {
        Scene { start: self.course.shards[shard.index()].start, ..self.part(Some(shard)) }
    }

    /// The scene for the chunk of the input that is for a rank; of all of it for none. Where the input is not cut, it is all in any case.
    fn part(&self, of: Option<Rank>) -> Scene<'t, In, Out> {
        let Reduction { inp, out, hooks, kind, .. } = self.reduction;
        let inp = match of.filter(|_| *kind == Kind::ReduceScatter) {
            Some(rank) => {
                let len = inp.len() / self.ranks;
                inp.slice(rank.index() * len..(rank.index() + 1) * len)
            }
            None => inp.clone(),
        };
        let (input, output) = (self.k.input(&inp).named("input"), self.k.output(out).named("output"));
        Scene {
            input: chunk(input, Holds::Input, &hooks.input_shape),
            output: chunk(output, Holds::Output, &hooks.output_shape),
            tiling: self.course.tilings[of.map_or(0, Rank::index)],
            // The first shard is the longest.
            flow: kind.flow(self.course.shards[0].len()),
            other: of.unwrap_or(self.me),
            start: 0,
            cols: hooks.output_shape.as_ref().map(|shape| shape.cols),
        }
    }
}
