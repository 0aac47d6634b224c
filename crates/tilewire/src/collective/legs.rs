//! The kernel of an exchange: for each leg a schedule, with the hooks in it.

use super::exchange::{Exchange, Leg};
use super::hooks::chunk;
use super::link::Link;
use crate::hook::{Block, Chunk, Ctx, Regs, RoleCtx, Tile, View};
use crate::ir::Access;
use crate::ir::scalar::Element;
use crate::schedule::{
    self, Ops, PacketPlan, Packing, StagedPlan, Tiling, recv_direct, recv_packets, recv_tiles, send_direct,
    send_packets, send_tiles,
};
use crate::tensor::Memory;
use crate::transport::Protocol;
use crate::transport::layout::Side;

/// Warps of a role.
const WARPS: u32 = 4;

/// Declares the parameters and gives every leg its role.
///
/// Two legs of packets share a role: a sender of packets waits for nothing that this launch of its peer does, so it may come first, and
/// one role costs less to start than two.
pub(super) fn roles<L: Link, In: Element, Out: Element, R: Regs>(
    exchange: &Exchange<'_, '_, L, In, Out, R>,
    k: &Block<'_>,
    legs: &[Leg],
) {
    let bodies: Vec<Body<'_, '_, '_, '_, L, In, Out, R>> = legs.iter().map(|leg| Body::new(exchange, k, leg)).collect();
    match &bodies[..] {
        [send, receive] if legs.iter().all(|leg| leg.protocol == Protocol::Packet) => {
            k.role("exchange", WARPS).run(|r| {
                send.run(r);
                receive.run(r);
            });
        }
        bodies => {
            // The receiver first: what it permits (READY) must not wait until this rank has sent its own, where one thread runs both.
            for body in bodies.iter().rev() {
                k.role(body.leg.side.to_string(), WARPS).run(|r| body.run(r));
            }
        }
    }
}

/// One leg in a kernel being traced.
struct Body<'e, 'h, 'l, 't, L: Link, In: Element, Out: Element, R: Regs> {
    exchange: &'e Exchange<'h, 'l, L, In, Out, R>,
    leg: &'e Leg,
    ops: L::Ops<'t>,
    input: Chunk<'t, In>,
    output: Chunk<'t, Out>,
    /// Input or output as words, where the leg copies whole words in packets.
    words: Option<View<'t, u64>>,
}

impl<'e, 'h, 'l, 't, L: Link, In: Element, Out: Element, R: Regs> Body<'e, 'h, 'l, 't, L, In, Out, R> {
    fn new(exchange: &'e Exchange<'h, 'l, L, In, Out, R>, k: &Block<'t>, leg: &'e Leg) -> Self {
        let hooks = &exchange.hooks;
        let input = k.input(&exchange.inp).named("input");
        // A rank that does not receive has no output: its input stands there, and cannot be written.
        let output = match exchange.from {
            Some(_) => k.output(&exchange.out).named("output"),
            None => k.input(&exchange.out).named("input"),
        };
        let ops = match leg.side {
            Side::Send => {
                let window = exchange.window.as_ref().filter(|_| matches!(leg.protocol, Protocol::Direct { .. }));
                let window = window.map(|window| &window.peers[leg.peer.index()]);
                exchange.link.sender(k, leg.peer, leg.protocol, window)
            }
            Side::Receive => exchange.link.receiver(k, leg.peer, leg.protocol),
        };
        let words = match leg.side {
            Side::Send if hooks.copies => words(k, leg, exchange.inp.memory(), ("input", Access::In)),
            Side::Receive if hooks.stores() && R::TYPES == [Out::TYPE] => {
                words(k, leg, exchange.out.memory(), ("output", Access::Out))
            }
            _ => None,
        };
        // What this rank sends may be longer than what it receives: then its output stands for the peer's, by length.
        let output = if leg.side == Side::Send { output.resized(leg.tiling.len()) } else { output };
        let (input, output) = (chunk(input, &hooks.input_shape), chunk(output, &hooks.output_shape));
        Body { exchange, leg, ops, input, output, words }
    }

    fn run(&self, r: &RoleCtx<'t>) {
        let (hooks, link, ops, tiling) = (&self.exchange.hooks, self.exchange.link, &self.ops, self.leg.tiling);
        let produce = |at: &schedule::Leg<'t>| hooks.produce(&self.context(r, at));
        let consume = |at: &schedule::Leg<'t>, regs: R::Of<'t>| hooks.consume(&self.context(r, at), regs);
        match (self.leg.protocol, self.leg.side) {
            (Protocol::Packet, side) => {
                let plan = PacketPlan::new(link, tiling.blocks());
                match (side, self.words) {
                    (Side::Send, None) => send_packets::<R, _>(r, ops, plan, tiling, produce),
                    (Side::Receive, None) => recv_packets::<R, _>(r, ops, plan, tiling, consume),
                    (side, Some(words)) => {
                        let per_word = 8 / R::TYPES[0].size();
                        let (len, tile) = (tiling.len() / per_word, tiling.tile_len().div_ceil(per_word));
                        let tiling = Tiling::flat(len, tile, tiling.blocks());
                        match side {
                            Side::Send => send_packets::<u64, _>(r, ops, plan, tiling, |at| words.load(at.pos)),
                            Side::Receive => {
                                recv_packets::<u64, _>(r, ops, plan, tiling, |at, x| words.store(at.pos, x));
                            }
                        }
                    }
                }
            }
            (Protocol::Staged { slot_bytes, depth }, side) => {
                let plan = StagedPlan::new(link, slot_bytes, depth, tiling.blocks());
                let packing = Packing::new(R::TYPES, tiling.tile_len()).last_per(hooks.last_per);
                match side {
                    Side::Send => send_tiles::<R, _>(r, ops, plan, tiling, packing, produce),
                    Side::Receive => recv_tiles::<R, _>(r, ops, plan, tiling, packing, consume),
                }
            }
            (Protocol::Direct { .. }, side) => {
                let max_blocks = link.max_blocks_per_peer();
                match side {
                    Side::Send => send_direct::<R, _>(r, ops, max_blocks, tiling, produce),
                    Side::Receive => recv_direct(r, ops, max_blocks, tiling.blocks()),
                }
            }
        }
    }

    /// The context of a hook.
    fn context(&self, r: &RoleCtx<'t>, at: &schedule::Leg<'t>) -> Ctx<'t, In, Out> {
        let Leg { side, tiling, .. } = self.leg;
        let mut c = Ctx::new(r, self.input, self.output)
            .pos(at.pos)
            .tile(at.tile)
            .tile_rows(tiling.tile_rows())
            .tile_cols(tiling.tile_cols())
            .step(at.step);
        if let Some((row, col)) = at.place {
            c = c.row(row).col(col);
        }
        if let Some(to) = self.exchange.to {
            c = c.peer(to.number());
        }
        if let Some(from) = self.exchange.from {
            c = c.recv_peer(from.number());
        }
        if let (Side::Receive, Some(from)) = (side, self.exchange.from) {
            c = c.shard(from.number());
        }
        if let Some(slot) = at.slot {
            c = c.slot(slot.slot);
            if let Some(region) = self.ops.region() {
                c = c.region(Tile { region, bank: r.constant(0i64), offset: slot.offset });
            }
        }
        c.build()
    }
}

/// The memory as words, where a leg of packets copies it as it is: then elements need not be packed one by one. The peer may pack its
/// elements all the same, so a block's part must be whole words.
fn words<'t>(k: &Block<'t>, leg: &Leg, memory: &Memory, (name, access): (&str, Access)) -> Option<View<'t, u64>> {
    let aligned = (memory.start().as_ptr() as usize).is_multiple_of(8) && memory.bytes().is_multiple_of(8);
    let part = memory.bytes() / leg.tiling.len().max(1) * leg.tiling.tile_len();
    let whole = leg.tiling.tiles() == 1 || part.is_multiple_of(8);
    let fits = leg.protocol == Protocol::Packet && aligned && whole && memory.bytes() > 0;
    fits.then(|| k.buffer(name, std::slice::from_ref(memory), access).bank(0))
}
