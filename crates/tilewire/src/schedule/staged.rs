//! Staged transfers: tiles move step by step through the slots of the receiver's staging.
//!
//! ```text
//!   sender, step g                               receiver, step g               slot = g mod depth
//!   wait  HEAD[slot] ≥ g + 1 - depth             wait   TAIL[slot] ≥ g + 1
//!   put   the tile into the slot                 get    the tile
//!   TAIL[slot] := g + 1                          HEAD[slot] := g + 1
//! ```
//! Steps are counted from the first launch and never restart. Each counter has one writer and only grows, so a signal
//! can satisfy no wait but its own, and a launch needs no reset.
//!
//! **Groups.** Reading a HEAD that the receiver has just written costs a cache-line transfer before the first byte can
//! move. If one copy of a role takes all steps and there are enough slots, the sender therefore looks only once per
//! [`GROUP`] steps. Before the first step of a group it waits for the slot of the last one. Slots are returned in
//! order, so this covers the whole group. The sender then has up to three slots fewer than exist, as if the depth were
//! smaller. Groups are counted like steps, so a launch may begin or end inside one.
//!
//! **Change of geometry.** With another slot size or depth, the same slot number means different bytes. A sender whose
//! last launch had another geometry first waits until all of its slots have been read (the drain). It then records the
//! step from which the new geometry holds: HEADs for earlier steps refer to the old slots. The receiver needs no
//! notice, because it reads what TAIL announces, in order.

use super::counters::{Counters, Keeps, Shape, block_of};
use super::packing::Packing;
use super::peer::{Peer, Span, Word};
use super::tiling::{Position, Tiling};
use crate::hook::{self, Payload, Regs, RoleCtx, Value};
use crate::transport::layout::{Side, StartWord};
use crate::transport::{LinkShape, Protocol, TransferError, check_slots};

/// Steps whose slots a sender waits for together. A power of two.
const GROUP: usize = 4;

/// The slots of a staged transfer. The host computes these numbers; they are equal on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedPlan {
    /// Bytes from one slot to the next.
    pub slot_bytes: usize,
    /// Slots in use: a multiple of `copies`.
    pub depth: usize,
    /// Blocks of the kernel that take part, from block 0.
    pub blocks: usize,
    /// The transport block that block 0 uses; the others follow. It keeps two pipelines to one peer apart within a
    /// launch.
    pub first_block: usize,
    /// Copies of a role among which the transport divides the slots: the same in all launches over it.
    pub copies: u32,
    /// Slots per block in the transport.
    pub max_slots: usize,
    /// Blocks the transport has room for.
    pub max_blocks: usize,
    /// Staging bytes per block.
    pub block_bytes: usize,
}

impl StagedPlan {
    /// A plan with the constants of a link, [`Transport::link`](crate::link::Transport::link). `blocks` is the number
    /// of blocks of the kernel. Returns an error if the slots exceed the transport's room for a block, since they would
    /// overlap those of the next block.
    ///
    /// A schedule with this plan panics in a role that has several copies, unless their number is the transport's
    /// ([`LinkShape::copies`]). A single copy always works.
    pub fn new(shape: &LinkShape, slot_bytes: usize, depth: usize, blocks: usize) -> Result<StagedPlan, TransferError> {
        let (protocol, copies) = (Protocol::Staged { slot_bytes, depth }, shape.copies);
        check_slots(shape, protocol, slot_bytes, depth)?;
        if !depth.is_multiple_of(copies as usize) {
            let why = "its slots are divided among the copies of a role: use a depth that is a multiple of the copies";
            return Err(TransferError::Unable { protocol, why });
        }
        let max_blocks = shape.max_blocks;
        if !(1..=max_blocks).contains(&blocks) {
            return Err(TransferError::Blocks { blocks, max: max_blocks });
        }
        Ok(StagedPlan {
            slot_bytes,
            depth,
            blocks,
            first_block: 0,
            copies,
            max_slots: shape.max_slots,
            max_blocks,
            block_bytes: shape.block_bytes(),
        })
    }

    /// The same plan, in the transport's blocks from `first` on. Returns an error if the transport has too few blocks.
    pub fn from_block(self, first: usize) -> Result<StagedPlan, TransferError> {
        match first.checked_add(self.blocks) {
            Some(blocks) if blocks <= self.max_blocks => Ok(StagedPlan { first_block: first, ..self }),
            blocks => Err(TransferError::Blocks { blocks: blocks.unwrap_or(usize::MAX), max: self.max_blocks }),
        }
    }

    /// This plan's geometry word. Never 0, which means that there was no launch yet.
    fn word(&self) -> u64 {
        (self.slot_bytes as u64) << 16 | self.depth as u64
    }

    /// Steps whose slots a sender waits for together: the same for all launches of a geometry, whatever moves the
    /// bytes.
    pub(super) const fn group(&self) -> usize {
        if self.copies == 1 && self.depth >= 2 * GROUP && self.depth.is_multiple_of(GROUP) { GROUP } else { 1 }
    }

    /// Selects the counters that a role keeps: those of its own copy, or those of all copies if the role is not copied
    /// and takes all steps itself. The latter is for roles that interleave steps of several peers in their own order,
    /// as rings and reductions do. Launches of both kinds may follow each other.
    fn shape(&self, r: &RoleCtx<'_>) -> Shape {
        let keeps = match (self.copies, r.declared_copies()) {
            (1, 1) => Keeps::One,
            (all, 1) => Keeps::OfAll(all),
            (all, own) => {
                assert_eq!(all, own, "a role of {own} copies over a transport that shares its slots out to {all}");
                Keeps::OfCopy
            }
        };
        Shape { max_blocks: self.max_blocks, keeps }
    }

    /// The slot of step `g` and its position.
    fn slot<'t>(&self, block: Value<'t, i64>, g: Value<'t, u64>) -> SlotAt<'t> {
        let slot = (g % self.depth as u64).cast::<i64>();
        let offset = slot * self.slot_bytes as i64;
        let offset = if self.is_first() { offset } else { block * self.block_bytes as i64 + offset };
        SlotAt { slot, number: self.number(block, slot), offset, next: g + 1 }
    }

    /// True if the whole transfer lies in block 0 of the transport.
    fn is_first(&self) -> bool {
        self.blocks == 1 && self.first_block == 0
    }

    /// The transport block that this block uses.
    fn block<'t>(&self, r: &RoleCtx<'t>) -> Value<'t, i64> {
        let block = block_of(r, self.blocks);
        if self.first_block == 0 { block } else { block + self.first_block as i64 }
    }

    /// The slot's number among the TAILs and HEADs of a peer.
    fn number<'t>(&self, block: Value<'t, i64>, slot: Value<'t, i64>) -> Value<'t, i64> {
        if self.is_first() { slot } else { block * self.max_slots as i64 + slot }
    }

    /// Step `step` of a launch that begins at step `start`.
    fn at<'t>(&self, block: Value<'t, i64>, start: Value<'t, u64>, step: Value<'t, i64>) -> StepAt<'t> {
        let number = start + step.cast::<u64>();
        StepAt { number, slot: self.slot(block, number) }
    }

    /// The steps of this copy of a role: the first, and the distance to the next. Copy c takes the steps equal to c
    /// modulo the number of copies, counted from the first launch, so a slot has the same owner in all launches with
    /// copies. `None` if one role takes all steps.
    fn turns<'t>(&self, r: &RoleCtx<'t>, start: Value<'t, u64>) -> Option<(Value<'t, i64>, Value<'t, i64>)> {
        (r.declared_copies() > 1).then(|| {
            let copies = r.copies();
            // Unsigned, so that the first step is known to be a small number.
            let [copy, all] = [r.copy(), copies].map(|x| x.cast::<u64>());
            (((copy + all - start % all) % all).cast::<i64>(), copies)
        })
    }
}

/// A step of a launch.
#[derive(Clone, Copy)]
pub(super) struct StepAt<'t> {
    /// Its number, counted from the first launch.
    pub number: Value<'t, u64>,
    /// Its slot.
    pub slot: SlotAt<'t>,
}

/// The slot of a step.
#[derive(Clone, Copy)]
pub struct SlotAt<'t> {
    /// Its number in the block.
    pub slot: Value<'t, i64>,
    /// Its number among the TAILs and HEADs of a peer.
    number: Value<'t, i64>,
    /// Its first byte in the sender's staging.
    pub offset: Value<'t, i64>,
    /// The step's number plus 1: the value its TAIL and its HEAD take.
    next: Value<'t, u64>,
}

impl<'t> SlotAt<'t> {
    /// The tile in the slot, as hooks see it.
    pub(super) fn region(&self, r: &RoleCtx<'t>, peer: &Peer<'t>) -> Option<hook::Tile<'t>> {
        peer.region().map(|region| hook::Tile { region, bank: r.constant(0i64), offset: self.offset })
    }
}

/// The bytes in a slot that begins at a given byte.
pub(super) type SlotSpans<'s, 't> = &'s dyn Fn(Value<'t, i64>) -> Vec<Span<'t>>;

/// The sending end of a pipeline, in one launch: `begin`, then `step` 0, 1, …, then `end`.
pub struct StagedSend<'r, 't> {
    r: &'r RoleCtx<'t>,
    peer: &'r Peer<'t>,
    plan: StagedPlan,
    counters: Counters<'t>,
    block: Value<'t, i64>,
    start: Value<'t, u64>,
    /// Slots are reused from this step on: the first step of this geometry, plus the depth. `None` for a sender that
    /// waits by groups, which reads it when needed.
    reused: Option<Value<'t, u64>>,
}

impl<'r, 't> StagedSend<'r, 't> {
    /// Reads the counters, and drains the slots of the last launch if its geometry was different.
    pub fn begin(r: &'r RoleCtx<'t>, peer: &'r Peer<'t>, plan: StagedPlan) -> Self {
        let block = plan.block(r);
        let counters = Counters::of(r, peer, block, Side::Send, plan.shape(r));
        // Load these together: on a GPU one load takes a microsecond, and several take no longer. A sender that waits
        // by groups needs the last one so rarely that it reads it later.
        let start = counters.get(StartWord::Step);
        let geometry = counters.get(StartWord::Geometry);
        let known = (plan.group() == 1).then(|| counters.get(StartWord::Since));
        let is_new = geometry.ne(plan.word());
        r.if_(is_new, || {
            let since = known.unwrap_or_else(|| counters.get(StartWord::Since));
            let depth = geometry & 0xffff;
            // The slots not known to be credited: those of the last `depth` steps of the old geometry.
            let first = (start - depth.min(start)).max(since);
            r.for_((first, start), |step| {
                let step = step.cast::<u64>();
                let slot = (step % depth).cast::<i64>();
                peer.wait(r, Word::Head(plan.number(block, slot)), step + 1);
            });
            counters.set(StartWord::Geometry, r.constant(plan.word()));
            counters.set(StartWord::Since, start);
        });
        let reused = known.map(|since| is_new.select(start, since) + plan.depth as u64);
        StagedSend { r, peer, plan, counters, block, start, reused }
    }

    /// Step `step` of this launch: waits until its slot is free, lets `fill` put `bytes` bytes into it, and tells the
    /// peer.
    #[track_caller]
    pub fn step(&self, step: Value<'t, i64>, bytes: Value<'t, i64>, fill: impl FnOnce(&SlotAt<'t>)) {
        self.step_in_parts(step, &|offset| vec![Span { offset, bytes }], fill);
    }

    /// As [`step`](Self::step), for bytes that do not lie together: `spans` says where they are, for a slot that begins
    /// at a given byte.
    #[track_caller]
    pub(super) fn step_in_parts(&self, step: Value<'t, i64>, spans: SlotSpans<'_, 't>, fill: impl FnOnce(&SlotAt<'t>)) {
        let at = self.free(step);
        fill(&at);
        self.filled_in_parts(&at, spans);
    }

    /// Waits until the slot of a step is free. With groups, the first step of a group waits for the slot of the last
    /// step, and the others do not wait.
    #[track_caller]
    pub(super) fn wait_free(&self, at: &StepAt<'t>) {
        let (group, depth) = (self.plan.group() as u64, self.plan.depth as u64);
        let wait = |last: u64| {
            let reused = self.reused.unwrap_or_else(|| self.counters.get(StartWord::Since) + depth);
            self.r.if_((at.number + last).ge(reused), || {
                self.peer.wait(self.r, Word::Head(at.slot.number + last as i64), at.slot.next + last - depth);
            });
        };
        match group {
            1 => wait(0),
            _ => self.r.if_((at.number % group).eq(0u64), || wait(group - 1)),
        }
    }

    /// The first half of a step: waits until its slot is free. For roles that fill slots of several peers
    /// simultaneously. Per peer, at most `depth - 3` slots may be free and not yet filled.
    #[track_caller]
    pub fn free(&self, step: Value<'t, i64>) -> SlotAt<'t> {
        let at = self.at(step);
        self.wait_free(&at);
        at.slot
    }

    /// The second half: tells the peer that `bytes` bytes are in the slot.
    #[track_caller]
    pub fn filled(&self, at: &SlotAt<'t>, bytes: Value<'t, i64>) {
        self.filled_in_parts(at, &|offset| vec![Span { offset, bytes }]);
    }

    /// As [`filled`](Self::filled), for bytes that do not lie together.
    #[track_caller]
    pub(super) fn filled_in_parts(&self, at: &SlotAt<'t>, spans: SlotSpans<'_, 't>) {
        self.peer.deliver(self.r, &|| spans(at.offset), Word::Tail(at.number), at.next);
    }
}

/// The receiving end of a pipeline, in one launch: `begin`, then `step` 0, 1, …, then `end`.
pub struct StagedRecv<'r, 't> {
    r: &'r RoleCtx<'t>,
    peer: &'r Peer<'t>,
    plan: StagedPlan,
    counters: Counters<'t>,
    block: Value<'t, i64>,
    start: Value<'t, u64>,
}

impl<'r, 't> StagedRecv<'r, 't> {
    /// Reads the counter.
    pub fn begin(r: &'r RoleCtx<'t>, peer: &'r Peer<'t>, plan: StagedPlan) -> Self {
        let block = plan.block(r);
        let counters = Counters::of(r, peer, block, Side::Receive, plan.shape(r));
        let start = counters.get(StartWord::Step);
        StagedRecv { r, peer, plan, counters, block, start }
    }

    /// Step `step` of this launch: waits until its slot is filled, lets `empty` read it, and gives it back.
    #[track_caller]
    pub fn step(&self, step: Value<'t, i64>, empty: impl FnOnce(&SlotAt<'t>)) {
        let at = self.arrived(step);
        empty(&at);
        self.emptied(&at);
    }

    /// Waits until a slot is filled.
    #[track_caller]
    pub(super) fn wait_filled(&self, at: &SlotAt<'t>) {
        self.peer.wait(self.r, Word::Tail(at.number), at.next);
    }

    /// The first half of a step: waits until its slot is filled. For roles that empty several slots simultaneously.
    #[track_caller]
    pub fn arrived(&self, step: Value<'t, i64>) -> SlotAt<'t> {
        let at = self.at(step).slot;
        self.wait_filled(&at);
        at
    }

    /// The second half: gives the slot back.
    #[track_caller]
    pub fn emptied(&self, at: &SlotAt<'t>) {
        self.peer.credit(self.r, Word::Head(at.number), at.next);
    }
}

/// What both ends have.
macro_rules! both_ends {
    ($($name:ident)*) => {$(
        impl<'t> $name<'_, 't> {
            /// Step `step` of this launch.
            pub(super) fn at(&self, step: Value<'t, i64>) -> StepAt<'t> {
                self.plan.at(self.block, self.start, step)
            }

            /// The first step of this copy of the role in this launch, and the distance to its next step.
            pub(super) fn turns(&self) -> (Value<'t, i64>, Value<'t, i64>) {
                let r = self.r;
                self.plan.turns(r, self.start).unwrap_or_else(|| (r.constant(0i64), r.constant(1i64)))
            }

            /// Ends the launch, which had `steps` steps.
            #[track_caller]
            pub fn end(self, steps: Value<'t, i64>) {
                self.counters.set(StartWord::Step, self.start + steps.cast::<u64>());
            }
        }
    )*};
}

both_ends!(StagedSend StagedRecv);

/// Sends this block's tiles, one per step. `produce` returns the value to send for a position.
///
/// [`link::Staged`](crate::link::Staged) makes plan, tiling and packing of one set of numbers, and has an example.
#[track_caller]
pub fn send_tiles<'t, R: Regs>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    plan: StagedPlan,
    tiling: Tiling,
    packing: Packing,
    produce: impl Fn(&Position<'t>) -> R::Of<'t>,
) {
    send_tiles_any(r, peer, plan, tiling, packing, &|at| R::erase(produce(at)));
}

/// [`send_tiles`] with the types of the packing.
#[track_caller]
pub(crate) fn send_tiles_any<'t>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    plan: StagedPlan,
    tiling: Tiling,
    packing: Packing,
    produce: &dyn Fn(&Position<'t>) -> Payload<'t>,
) {
    let pipeline = StagedSend::begin(r, peer, plan);
    packing.note_whole(r, plan.slot_bytes);
    let steps = tiling.for_turns(r, plan.turns(r, pipeline.start), |step, tile| {
        pipeline.step_in_parts(step, &|base| packing.spans(base, tile.positions()), |at| {
            tile.each_at(r, (peer, &packing), |spot| {
                let payload = produce(&Position { spot, step, slot: Some(*at), region: at.region(r, peer) });
                packing.put(peer, at.offset, spot.index, payload);
            });
        });
    });
    pipeline.end(steps);
}

/// Receives this block's tiles, one per step. `consume` gets the value sent for a position. It must not write the
/// staging.
#[track_caller]
pub fn recv_tiles<'t, R: Regs>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    plan: StagedPlan,
    tiling: Tiling,
    packing: Packing,
    consume: impl Fn(&Position<'t>, R::Of<'t>),
) {
    recv_tiles_any(r, peer, plan, tiling, packing, &|at, payload| consume(at, R::restore(payload)));
}

/// [`recv_tiles`] with the types of the packing.
#[track_caller]
pub(crate) fn recv_tiles_any<'t>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    plan: StagedPlan,
    tiling: Tiling,
    packing: Packing,
    consume: &dyn Fn(&Position<'t>, Payload<'t>),
) {
    let pipeline = StagedRecv::begin(r, peer, plan);
    let steps = tiling.for_turns(r, plan.turns(r, pipeline.start), |step, tile| {
        pipeline.step(step, |at| {
            tile.each_at(r, (peer, &packing), |spot| {
                let position = Position { spot, step, slot: Some(*at), region: at.region(r, peer) };
                consume(&position, packing.get(peer, at.offset, spot.index));
            });
        });
    });
    pipeline.end(steps);
}
