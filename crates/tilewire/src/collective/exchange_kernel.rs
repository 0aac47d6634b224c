//! The kernel of an exchange: a schedule for each leg, including the hooks.

use super::algorithm::Algorithm;
use super::flow::Flow;
use super::hooks::{Hooks, Shape, chunk};
use super::itinerary::{CHECKED, Itinerary, Leg, LegWindow, Legs, Pass};
use super::rounds::{FEWER, LegCode, OwnCode, RoundsCode, Share, Trace, warps_of};
use super::scene::Scene;
use crate::hook::{Block, Holds, Payload, RoleCtx, Value, View};
use crate::ir::Access;
use crate::link::{Transport, WindowPart};
use crate::schedule::{
    self, BulkPlan, DirectTo, PacketPlan, Packing, Peer, Relay, Ring, StagedPlan, Tiling, post_direct, recv_bulk_any,
    recv_direct, recv_packets, recv_packets_any, recv_relayed_any, recv_tiles_any, relay_tiles_any, ring_gather_any,
    send_bulk_any, send_direct_any, send_packets, send_tiles_any, share_packets,
};
use crate::tensor::Memory;
use crate::transport::layout::Side;
use crate::transport::{LinkKind, Protocol};
use std::rc::Rc;

/// An exchange whose kernel is being traced.
#[derive(Clone, Copy)]
pub(super) struct ExchangeKernel<'e, 'h> {
    pub plan: &'e Itinerary,
    pub legs: &'e Legs,
    pub flow: Flow,
    pub hooks: &'e Hooks<'h>,
    pub link: &'e dyn Transport,
}

/// Declares the parameters and assigns a role to every leg.
pub(super) fn roles<'t>(exchange: ExchangeKernel<'_, '_>, k: &Block<'t>) {
    let ExchangeKernel { plan, legs, .. } = exchange;
    if plan.algorithm == Algorithm::Ring && !legs.rounds.is_empty() {
        return ring(exchange, k);
    }
    let [sends, receives] = [0, 1].map(|which| legs.rounds.iter().filter(|round| round[which].is_some()).count());
    let one_each = sends <= 1 && receives + legs.passes.len() <= 1;
    // Sending and receiving legs may use different numbers of blocks or different protocols. Some blocks then have
    // nothing to do in one of them.
    let blocks = legs.all().map(|leg| leg.tiling.blocks()).max().unwrap_or(1);
    let copies = if legs.all().any(in_turns) { plan.facts.copies } else { 1 };
    let code = |leg| {
        let body: Body<'_, '_, 't> = Body::new(exchange, k, leg);
        let Leg { side, peer, .. }: &Leg = leg;
        let name = match side {
            side if one_each => side.to_string(),
            Side::Send => format!("send to {peer}"),
            Side::Receive => format!("receive from {peer}"),
        };
        let (blocks, is_far) = (leg.tiling.blocks(), leg.link.kind == LinkKind::Fabric);
        let trace = Box::new(move |r: &RoleCtx<'t>| body.run(r));
        LegCode { name, blocks, is_far, once: copies > 1 && !in_turns(leg), trace }
    };
    let own = legs.own.as_ref().map(|leg| {
        let body: Body<'_, '_, 't> = Body::own(exchange, k, leg);
        let (blocks, is_shared) = (leg.tiling.blocks(), plan.facts.copies > 1 && in_turns(leg));
        OwnCode { name: "own", blocks, is_shared, trace: Rc::new(move |r, share| body.run_own(r, share)) }
    });
    let rounds = legs.rounds.iter().map(|round| round.each_ref().map(|leg| leg.as_ref().map(code)));
    let passes = legs.passes.iter().map(|pass| [None, Some(passing(exchange, k, pass))]);
    let all = RoundsCode {
        own,
        rounds: rounds.chain(passes).collect(),
        blocks,
        packets: legs.to_peers().all(|leg| leg.protocol == Protocol::Packet),
        windows: legs.to_peers().all(|leg| matches!(leg.protocol, Protocol::Direct { .. })),
        copies,
        warps: plan.warps,
        far_warps: plan.far_warps,
        for_gpu: plan.facts.for_gpu(),
        combines: false,
        on_gpu: plan.facts.on_gpu(),
    };
    all.trace(k, plan.layout);
}

/// True if copies of a role share the steps of a leg.
fn in_turns(leg: &Leg) -> bool {
    matches!(leg.protocol, Protocol::Staged { .. } | Protocol::Bulk { .. })
}

/// Chunks of far ranks on their way through this rank's domain: this rank keeps them and, as their relay, passes them
/// on.
fn passing<'b, 't: 'b>(exchange: ExchangeKernel<'b, 'b>, k: &'b Block<'t>, pass: &'b Pass) -> LegCode<'b, 't> {
    let ExchangeKernel { hooks, link, .. } = exchange;
    let Pass { chunks, from, to, near, first_block } = pass;
    let (first, shards) = (&chunks[0], chunks.len());
    let (tiling, protocol) = (first.tiling, first.protocol);
    let Protocol::Staged { slot_bytes, depth } = protocol else { unreachable!("only staged is passed on") };
    let plan = |link| StagedPlan::new(link, slot_bytes, depth, tiling.blocks()).expect(CHECKED);
    let (far, onward) = (plan(&first.link), plan(near).from_block(*first_block).expect(CHECKED));
    let packing = Packing::new(hooks.types, tiling.tile_len()).last_per(hooks.stored_per(link.is_dense()));
    let scenes: Vec<_> = chunks.iter().map(|leg| Body::own(exchange, k, leg).scene).collect();
    let origins = chunks.iter().map(|leg| leg.peer.to_string()).collect::<Vec<_>>().join(", ");
    let keep = move |r: &RoleCtx<'t>, which: usize, at: &schedule::Position<'t>, regs: Payload<'t>| {
        hooks.consume(&scenes[which].consuming(r, at), regs);
    };
    let (name, trace): (_, Trace<'b, 't>) = match from {
        Some(relay) => {
            let peer = link.receiver(k, *relay, protocol);
            let trace = move |r: &RoleCtx<'t>| {
                recv_relayed_any(r, &peer, onward, (tiling, shards), packing, &|i, at, regs| keep(r, i, at, regs));
            };
            (format!("receive {origins} through {relay}"), Box::new(trace))
        }
        None => {
            let sources: Vec<_> = chunks.iter().map(|leg| link.receiver(k, leg.peer, protocol)).collect();
            let near: Vec<_> = to.iter().map(|&peer| link.sender(k, peer, protocol, None)).collect();
            let trace = move |r: &RoleCtx<'t>| {
                let relay = Relay { from: &sources, incoming: far, to: &near, outgoing: onward, tiling };
                relay_tiles_any(r, &relay, packing, &|i, at, regs| keep(r, i, at, regs));
            };
            (format!("pass on {origins}"), Box::new(trace))
        }
    };
    LegCode { name, blocks: tiling.blocks(), is_far: true, once: false, trace }
}

/// Gathers around a ring. The legs determine what is produced and what is stored, but a rank communicates only with its
/// neighbours.
fn ring<'t>(exchange: ExchangeKernel<'_, '_>, k: &Block<'t>) {
    let ExchangeKernel { plan, legs, hooks, link, .. } = exchange;
    let body = |leg| -> Body<'_, '_, 't> { Body::own(exchange, k, leg) };
    let [Some(first), Some(last)] = &legs.rounds[0] else { unreachable!("all send to all") };
    let Protocol::Staged { slot_bytes, depth } = first.protocol else { unreachable!("a ring is staged") };
    let (next, previous) =
        (link.sender(k, first.peer, first.protocol, None), link.receiver(k, last.peer, last.protocol));
    let (tiling, ranks) = (first.tiling, link.world_size());
    let staged = StagedPlan::new(&first.link, slot_bytes, depth, tiling.blocks()).expect(CHECKED);
    let packing = Packing::new(hooks.types, tiling.tile_len()).last_per(hooks.stored_per(link.is_dense()));
    let source = body(first);
    // This rank's own chunk comes first; there is nothing to store if it is already in place. The chunks of the
    // previous rank, of the one before it, and so on follow.
    let received = legs.rounds.iter().map(|[_, receive]| receive.as_ref());
    let kept: Vec<_> = [legs.own.as_ref()].into_iter().chain(received).map(|leg| leg.map(body)).collect();
    k.blocks(tiling.blocks() as u32);
    let warps = warps_of(plan.facts.on_gpu(), plan.warps.both(), FEWER);
    k.role("ring", warps).run(|r| {
        let ring = Ring { next: &next, previous: &previous, plan: staged, tiling, ranks };
        let produce = |at: &schedule::Position<'t>| hooks.produce(&source.scene.producing(r, at));
        ring_gather_any(r, &ring, packing, &produce, &|which, at, regs| {
            if let Some(kept) = &kept[which] {
                hooks.consume(&kept.scene.consuming(r, at), regs);
            }
        });
    });
}

/// One leg in a kernel being traced.
struct Body<'e, 'h, 't> {
    exchange: ExchangeKernel<'e, 'h>,
    leg: &'e Leg,
    /// The link to the peer; `None` for the rank's own chunk.
    peer: Option<Peer<'t>>,
    scene: Scene<'t>,
    /// The rank's own chunk, if it has no separate leg but travels with this one.
    kept: Option<Scene<'t>>,
    /// Input or output as words, if the leg copies whole words in packets.
    words: Option<View<'t, u64>>,
}

impl<'e, 'h, 't> Body<'e, 'h, 't> {
    fn new(exchange: ExchangeKernel<'e, 'h>, k: &Block<'t>, leg: &'e Leg) -> Self {
        let ExchangeKernel { hooks, link, plan, .. } = exchange;
        let lines = plan.windows.lines();
        let peer = match (leg.side, &leg.window) {
            (Side::Send, Some(LegWindow::Mapped(window))) => {
                link.window_sender(k, leg.peer, &lines, WindowPart::Mapped(Some(window)))
            }
            (Side::Send, Some(window)) => {
                let window = window.posted().expect("it is posted");
                link.window_sender(k, leg.peer, &lines, WindowPart::Posted(&window))
            }
            (Side::Send, None) => link.sender(k, leg.peer, leg.protocol, None),
            (Side::Receive, _) if matches!(leg.protocol, Protocol::Direct { .. }) => {
                link.window_receiver(k, leg.peer, &lines)
            }
            (Side::Receive, _) => link.receiver(k, leg.peer, leg.protocol),
        };
        let words = match (leg.side, &leg.inp, &leg.out) {
            (Side::Send, Some(inp), _) if hooks.copies => words(k, leg, inp.memory(), ("input", Access::In)),
            (Side::Receive, _, Some(out)) if hooks.stores() && hooks.types == [out.ty()] => {
                words(k, leg, out.memory(), ("output", Access::Out))
            }
            _ => None,
        };
        let own = Body::own(exchange, k, leg);
        let kept = leg.keeps.as_ref().map(|kept| Scene { tiling: leg.tiling, ..Body::own(exchange, k, kept).scene });
        Body { peer: Some(peer), words, kept, ..own }
    }

    /// A leg without a link to its peer.
    fn own(exchange: ExchangeKernel<'e, 'h>, k: &Block<'t>, leg: &'e Leg) -> Self {
        let (ExchangeKernel { plan, hooks, flow, link, .. }, len) = (exchange, leg.tiling.len());
        let positions = |shape: &Option<Shape>| shape.as_ref().map_or(len, |shape| shape.rows * shape.cols);
        // If this rank has no such chunk, the tensor that the user passed stands in for it, with the length of the
        // chunk. It cannot be written.
        let input = match &leg.inp {
            Some(inp) => k.any_input(inp).named("input"),
            None => k.any_input(&plan.inp).resized(positions(&hooks.input_shape)),
        };
        let output = match &leg.out {
            Some(out) => k.any_output(out).named("output"),
            None => k.any_input(&plan.out).named("input"),
        };
        // This rank may send more than it receives. Its output then stands in for the peer's output, with that length.
        let sends = leg.side == Side::Send && leg.peer != link.rank();
        let output = if sends || leg.out.is_none() { output.resized(len) } else { output };
        let holds = if leg.inp.is_some() { Holds::Input } else { Holds::NoInput };
        let (input, output) =
            (chunk(input, holds, &hooks.input_shape), chunk(output, Holds::Output, &hooks.output_shape));
        let (other, tiling) = (leg.peer, leg.tiling);
        // Tiles of one row have no shape: see `Hooks::tiled_shape`.
        let shape = hooks.output_shape.as_ref().filter(|_| hooks.tiled_shape().is_none());
        let cols = shape.map(|shape| shape.cols.max(1));
        let scene = Scene { input, output, tiling, flow, other, start: 0, cols };
        Body { exchange, leg, peer: None, scene, kept: None, words: None }
    }

    /// Runs the leg of the rank's own chunk, or a share of it.
    fn run_own(&self, r: &RoleCtx<'t>, share: Share) {
        let (ExchangeKernel { plan, hooks, .. }, tiling) = (self.exchange, self.leg.tiling);
        let each = |step: Value<'t, i64>, tile: schedule::Tile<'t>| {
            tile.each(r, |spot| {
                let at = schedule::Position { spot, step, slot: None, region: None };
                let [produces, consumes] = self.scene.passing(r, &at);
                hooks.consume(&consumes, hooks.produce(&produces));
            });
        };
        _ = if plan.facts.copies > 1 && in_turns(self.leg) {
            tiling.for_tiles_in_turns(r, (share.number, share.of), each)
        } else {
            tiling.for_tiles(r, each)
        };
    }

    fn run(&self, r: &RoleCtx<'t>) {
        let (ExchangeKernel { hooks, link, .. }, tiling) = (self.exchange, self.leg.tiling);
        let produce = |at: &schedule::Position<'t>| {
            if let Some(kept) = &self.kept {
                let [produces, consumes] = kept.passing(r, at);
                hooks.consume(&consumes, hooks.produce(&produces));
            }
            hooks.produce(&self.scene.producing(r, at))
        };
        let consume =
            |at: &schedule::Position<'t>, regs: Payload<'t>| hooks.consume(&self.scene.consuming(r, at), regs);
        let peer = self.peer.as_ref().expect("a leg to a peer");
        match (self.leg.protocol, self.leg.side) {
            (Protocol::Packet, side) => {
                let plan = PacketPlan::new(&self.leg.link, tiling.blocks());
                match (side, self.words) {
                    (Side::Send, None) => {
                        share_packets(r, std::slice::from_ref(peer), (plan, hooks.types), tiling, &produce).end();
                    }
                    (Side::Receive, None) => recv_packets_any(r, peer, (plan, hooks.types), tiling, &consume),
                    (side, Some(words)) => {
                        let per_word = 8 / hooks.types[0].size();
                        let (len, tile) = (tiling.len() / per_word, tiling.tile_len().div_ceil(per_word));
                        let tiling = Tiling::flat(len, tile, tiling.blocks());
                        match side {
                            Side::Send => send_packets::<u64>(r, peer, plan, tiling, |at| words.load(at.pos)),
                            Side::Receive => {
                                recv_packets::<u64>(r, peer, plan, tiling, |at, x| words.store(at.pos, x));
                            }
                        }
                    }
                }
            }
            (Protocol::Staged { slot_bytes, depth }, side) => {
                let plan = StagedPlan::new(&self.leg.link, slot_bytes, depth, tiling.blocks()).expect(CHECKED);
                let packing = Packing::new(hooks.types, tiling.tile_len()).last_per(hooks.stored_per(link.is_dense()));
                match side {
                    Side::Send => send_tiles_any(r, peer, plan, tiling, packing, &produce),
                    Side::Receive => recv_tiles_any(r, peer, plan, tiling, packing, &consume),
                }
            }
            (Protocol::Bulk { slot_bytes, depth }, side) => {
                let plan = StagedPlan::new(&self.leg.link, slot_bytes, depth, tiling.blocks()).expect(CHECKED);
                let plan = BulkPlan::within(plan, self.exchange.plan.facts.bulk_scratch()).expect(CHECKED);
                let packing = Packing::new(hooks.types, tiling.tile_len());
                match side {
                    Side::Send => send_bulk_any(r, peer, plan, tiling, packing, &produce),
                    Side::Receive => recv_bulk_any(r, peer, plan, tiling, packing, &consume),
                }
            }
            (Protocol::Direct { .. }, side) => {
                let max_blocks = self.leg.link.max_blocks;
                match side {
                    Side::Send if matches!(self.leg.window, Some(LegWindow::Posted { in_place: true, .. })) => {
                        post_direct(r, peer, max_blocks, tiling, hooks.types[0].size());
                    }
                    Side::Send => {
                        let to = DirectTo { max_blocks, ty: hooks.types[0], pitch: self.leg.pitch };
                        send_direct_any(r, peer, to, tiling, &produce)
                    }
                    Side::Receive => recv_direct(r, peer, max_blocks, tiling.blocks()),
                }
            }
        }
    }
}

/// The memory as words, if the leg copies it unchanged in packets. Elements then need not be packed one by one. The
/// peer may still pack its elements, so each block's part must consist of whole words.
fn words<'t>(k: &Block<'t>, leg: &Leg, memory: &Memory, (name, access): (&str, Access)) -> Option<View<'t, u64>> {
    if !memory.is_contiguous() {
        return None;
    }
    let aligned = (memory.start().as_ptr() as usize).is_multiple_of(8) && memory.bytes().is_multiple_of(8);
    let part = memory.bytes() / leg.tiling.len().max(1) * leg.tiling.tile_len();
    let whole = leg.tiling.tiles() == 1 || part.is_multiple_of(8);
    let fits = leg.protocol == Protocol::Packet && aligned && whole && memory.bytes() > 0;
    fits.then(|| k.buffer(name, std::slice::from_ref(memory), access).bank(0))
}
