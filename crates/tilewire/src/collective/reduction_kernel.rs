//! The kernels of reductions.
//!
//! ```text
//!   OneShot, packets    reduce                 sends to all, holds what all send, combines; an all-reduce on a GPU packet by packet, in one pass
//!   OneShot, staged     send to 1, 2, … ; reduce: the own shard, of all peers' tiles in one pass
//!   TwoPhase            the same, and reduce passes the result on to all; receive from 1, 2, …
//!   Ring                ring
//!   direct              reduce: the own shard, of all peers' windows; of an all-reduce into all peers' windows
//! ```

use super::algorithm::Algorithm;
use super::hooks::chunk;
use super::leg::CHECKED;
use super::reduction::{AnyReduction, Course, Kind};
use super::reduction_windows::Reached;
use super::rounds::{FEWER, LegCode, OwnCode, RoundsCode, warps_of};
use super::scene::Scene;
use crate::hook::{AnyValue, Block, Holds, Payload, RoleCtx, Value};
use crate::schedule::{
    Leg, PacketPlan, Packing, Peer, Ring, RingReduce, Sent, StagedPlan, WindowPeer, expect_packets, recv_tiles_any,
    reduce_packets, reduce_tiles, reduce_windows, ring_reduce, send_tiles_any, share_packets, swap_and_reduce, swapped,
};
use crate::transport::{Protocol, Rank};
use std::rc::Rc;

/// Declares the parameters and the roles.
pub(super) fn roles<'t>(reduction: &AnyReduction<'_, '_>, k: &Block<'t>, course: &Course<'_>) {
    let kernel = Kernel { reduction, k, course, me: reduction.terms.link.rank(), ranks: course.shards.len() };
    match (course.protocol, course.algorithm) {
        _ if kernel.ranks == 1 => kernel.alone(),
        (Protocol::Packet, _) => kernel.packets(),
        (Protocol::Staged { slot_bytes, depth }, algorithm) => {
            let plan = StagedPlan::new(&reduction.terms.shape(), slot_bytes, depth, course.blocks).expect(CHECKED);
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
pub(super) fn swaps(reduction: &AnyReduction<'_, '_>, course: &Course<'_>) -> bool {
    let AnyReduction { kind, hooks, terms, .. } = reduction;
    let on_gpu = terms.link.seat().is_some() || terms.link.copies() > 1;
    let in_packets = course.protocol == Protocol::Packet && course.shards.len() > 1;
    let all = *kind == Kind::AllReduce && hooks.stores();
    on_gpu && in_packets && all && swapped(reduction.ty(), course.tilings[0]).is_some()
}

struct Kernel<'k, 'h, 'l, 't> {
    reduction: &'k AnyReduction<'h, 'l>,
    k: &'k Block<'t>,
    course: &'k Course<'k>,
    me: Rank,
    ranks: usize,
}

impl<'k, 't> Kernel<'k, '_, '_, 't> {
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
        let plan = PacketPlan::new(&self.reduction.terms.shape(), *blocks);
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
            let produce = |scene: &Scene<'t>, at: &Leg<'t>| self.reduction.hooks.produce(&scene.producing(r, at));
            let (mine, sent_as) = (tilings[self.me.index()], (plan, self.reduction.hooks.types));
            if swaps(self.reduction, self.course) {
                let combine =
                    |at: &Leg<'t>, own: AnyValue<'t>, got: &[AnyValue<'t>]| self.turned(r, &out[0], at, own, got);
                return swap_and_reduce(r, (&to, &from), sent_as, mine, &|at| produce(&out[0], at), &combine);
            }
            let expected = expect_packets(r, &from, sent_as, mine);
            let sent: Vec<_> = match self.reduction.kind {
                // The same for all of them.
                Kind::AllReduce => vec![share_packets(r, &to, sent_as, tilings[0], &|at| produce(&out[0], at))],
                Kind::ReduceScatter => {
                    let each = to.chunks(1).zip(&out).zip(&peers);
                    let send = |((peers, scene), peer): ((&[Peer<'t>], _), &Rank)| {
                        share_packets(r, peers, sent_as, tilings[peer.index()], &|at| produce(scene, at))
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

    /// A role for every peer that is sent to; one that combines; and, where all get everything, one for every peer whose result comes.
    fn all_at_once(&self, plan: StagedPlan) {
        let Course { blocks, tilings, protocol, .. } = self.course;
        let (reduction, link, gathers) = (self.reduction, self.reduction.terms.link, self.gathers());
        let onward = if gathers { plan.from_block(*blocks).expect(CHECKED) } else { plan };
        let packing = |of: Rank| Packing::new(reduction.hooks.types, tilings[of.index()].tile_len());
        let round = |i: usize| {
            let (to, from) = (self.me.after(i, self.ranks), self.me.after(self.ranks - i, self.ranks));
            let (tx, scene) = (link.sender(self.k, to, *protocol, None), self.scene(to));
            let send = LegCode {
                name: format!("send to {to}"),
                trace: Box::new(move |r: &RoleCtx<'t>| {
                    let produce = |at: &Leg<'t>| reduction.hooks.produce(&scene.producing(r, at));
                    send_tiles_any(r, &tx, plan, tilings[to.index()], packing(to), &produce);
                }),
            };
            let receive = gathers.then(|| {
                let (rx, scene) = (link.receiver(self.k, from, *protocol), self.scene(from));
                let trace = move |r: &RoleCtx<'t>| {
                    let consume = |at: &Leg<'t>, x: Payload<'t>| reduction.hooks.consume(&scene.consuming(r, at), x);
                    recv_tiles_any(r, &rx, onward, tilings[from.index()], packing(from), &consume);
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
            reduce_tiles(r, (&from, plan), (&to, onward), tilings[me], reduction.hooks.types, &|at, got| {
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
            let of = (reduction.terms.shape().max_blocks, reduction.ty());
            reduce_windows(r, (&peers, onward), of, tilings[me], &|at, got| self.result(r, &scene, me, at, got));
        });
    }

    /// Round a ring, where partial results have a type of their own.
    fn ring(&self, plan: StagedPlan) {
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
            let partial = reduction.partial();
            let reduce = RingReduce {
                partial,
                whole: reduction.hooks.types,
                contribute: &|s, at| reduction.hooks.produce(&scenes[s].producing(r, at)).only().cast(partial[0]),
                combine: &|a, b| reduction.op.combine(a, b),
                finish: &|x| reduction.op.finish(r, reduction.ty(), x, self.ranks),
                keep: &|s, at, x| reduction.hooks.consume(&scenes[s].consuming(r, at), x.into()),
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
    fn result(&self, r: &RoleCtx<'t>, scene: &Scene<'t>, s: usize, at: &Leg<'t>, got: &[AnyValue<'t>]) -> AnyValue<'t> {
        let AnyReduction { hooks, op, .. } = self.reduction;
        let [produces, consumes] = scene.passing(r, at);
        let own = hooks.produce(&produces).only();
        let of = |rank: Rank| match (rank.index() + self.ranks - self.me.index()) % self.ranks {
            0 => own,
            after => got[after - 1],
        };
        let x = op.of_all(r, self.reduction.ty(), self.course.order(s).map(of));
        hooks.consume(&consumes, x.into());
        x
    }

    /// Combines what this rank has for a position and what the others sent, in the order of `others`, and keeps it. The ranks, from this one
    /// on, are turned until the first of the position's shard comes first: by 1, by 2, by 4, .. places, or not.
    fn turned(&self, r: &RoleCtx<'t>, scene: &Scene<'t>, at: &Leg<'t>, own: AnyValue<'t>, got: &[AnyValue<'t>]) {
        let (AnyReduction { hooks, op, .. }, ranks) = (self.reduction, self.ranks);
        let (ty, partial) = (self.reduction.ty(), self.reduction.partial()[0]);
        let places = self.by_shard(r, at, |s| ((s + 1 + ranks - self.me.index()) % ranks) as i64);
        let mut all: Vec<_> = std::iter::once(own).chain(got.iter().copied()).map(|x| x.cast(partial)).collect();
        for by in std::iter::successors(Some(1), |by| Some(2 * by)).take_while(|&by| by < ranks) {
            let turns = (places & by as i64).ne(0);
            all = (0..ranks).map(|k| AnyValue::select(turns, all[(k + by) % ranks], all[k])).collect();
        }
        let x = all.into_iter().reduce(|a, b| op.combine(a, b)).expect("at least this rank");
        hooks.consume(&scene.consuming(r, at), op.finish(r, ty, x, ranks).into());
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
    fn scene(&self, shard: Rank) -> Scene<'t> {
        Scene { start: self.course.shards[shard.index()].start, ..self.part(Some(shard)) }
    }

    /// The scene for the chunk of the input that is for a rank; of all of it for none. Where the input is not cut, it is all in any case.
    fn part(&self, of: Option<Rank>) -> Scene<'t> {
        let AnyReduction { inp, out, hooks, kind, .. } = self.reduction;
        let inp = match of.filter(|_| *kind == Kind::ReduceScatter) {
            Some(rank) => {
                let len = inp.len() / self.ranks;
                inp.slice(rank.index() * len..(rank.index() + 1) * len)
            }
            None => inp.clone(),
        };
        let (input, output) = (self.k.any_input(&inp).named("input"), self.k.any_output(out).named("output"));
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
