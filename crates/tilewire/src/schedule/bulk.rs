//! Bulk: staged transfers whose tiles move by asynchronous copies through scratch (on a GPU: TMA through shared
//! memory).
//!
//! ```text
//!   sender, step g                                     receiver, step g
//!   produce ──▶ scratch, stage g mod S                 wait  TAIL of g + S - 1
//!   wait  HEAD of g                                    fence, bulk copy of g + S - 1:  staging ══▶ scratch
//!   fence, bulk copy of g:  scratch ══▶ staging        wait  until copy g is complete
//!   wait  until copy g - (S - 1) is complete           HEAD := g + 1
//!   TAIL := its number + 1                             consume ◀── scratch, stage g mod S
//! ```
//! Slots, counters, credits and the drain are those of [`staged`](super::staged). The difference is *when* a step is
//! announced. A copy is asynchronous, so its TAIL follows a wait that covers it, S - 1 steps later, and S copies are in
//! flight simultaneously. A receiver requests S - 1 tiles ahead of the one it consumes.
//!
//! **The fences.** Only a proxy fence orders copies with plain accesses. One stands before each copy, after everything
//! the copy depends on. For a sender, that is the `each` that filled the stage and the credit for the slot. For a
//! receiver, it is the TAIL and the `each` that read the stage's previous content. A stage is refilled only after its
//! copy is complete, which the wait before the TAIL guarantees.
//!
//! **No deadlock.** A sender announces step g after it has started the copy of g + S - 1, so it needs the credit of g +
//! S - 1 - depth. A receiver waits for TAIL of g after it has credited g - S. So 2 S - 1 ≤ depth, counted in turns of
//! one copy of the role. If a sender waits for the slots of a whole group, the other steps of the group count as well:
//! 2 S - 1 ≤ depth - 3.
//!
//! **Dense tiles.** A copy moves contiguous bytes, so a tile at the edge of a chunk is packed with its actual width.

use super::packing::Packing;
use super::peer::Peer;
use super::staged::{StagedPlan, StagedRecv, StagedSend, StepAt};
use super::tiling::{Position, Tile, Tiling};
use crate::hook::{self, Payload, Region, Regs, RoleCtx, Value};
use crate::ir::BulkDone;
use crate::transport::{Protocol, TransferError};

/// The slots of a bulk transfer, and the stages of scratch that tiles pass through. The host computes these numbers.
/// The slots are equal on both sides; the stages need not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkPlan {
    staged: StagedPlan,
    stages: usize,
}

impl BulkPlan {
    /// The largest slot. Several must fit into the scratch of a role.
    pub const LARGEST_SLOT: usize = 32 << 10;
    /// Slots begin on multiples of this many bytes, as a GPU's bulk copies require.
    pub const ALIGN: usize = 16;
    /// Default scratch of a role, all copies together. Two roles of a block then still leave room in the 227 KiB of
    /// shared memory of an sm_90.
    pub const SCRATCH: usize = 96 << 10;
    /// More copies in flight hide no further latency.
    const MOST_STAGES: usize = 4;

    /// Uses as many stages as the depth and the scratch allow. Returns an error if slots are larger than
    /// [`BulkPlan::LARGEST_SLOT`], or not a multiple of [`BulkPlan::ALIGN`].
    ///
    /// ```
    /// use tilewire::link::Transport;
    /// use tilewire::rehearsal::Rehearsal;
    /// use tilewire::schedule::{BulkPlan, StagedPlan};
    /// let link = &Rehearsal::small(2, 1).ranks()[0];
    /// let stages = |slot_bytes, depth| {
    ///     let staged = StagedPlan::new(&link.link(link.rank()), slot_bytes, depth, 1)?;
    ///     Ok(BulkPlan::new(staged)?.stages())
    /// };
    /// assert_eq!((stages(128, 2)?, stages(128, 4)?, stages(128, 8)?), (1, 2, 3));
    /// # Ok::<(), tilewire::transport::TransferError>(())
    /// ```
    pub fn new(staged: StagedPlan) -> Result<BulkPlan, TransferError> {
        BulkPlan::within(staged, Self::SCRATCH)
    }

    /// Uses as many stages as the depth and `scratch` bytes allow, for all copies of a role together, but at least one.
    /// Returns the same errors as [`BulkPlan::new`].
    pub fn within(staged: StagedPlan, scratch: usize) -> Result<BulkPlan, TransferError> {
        let StagedPlan { slot_bytes, depth, copies, .. } = staged;
        let unable = |why| Err(TransferError::Unable { protocol: Protocol::Bulk { slot_bytes, depth }, why });
        if slot_bytes > Self::LARGEST_SLOT {
            return unable("its tiles go through scratch: use slots of at most 32 KiB, or staged");
        }
        if !slot_bytes.is_multiple_of(Self::ALIGN) {
            return unable("its copies begin on 16 bytes: use slots of a multiple of 16, or staged");
        }
        let by_depth = ((depth - (staged.group() - 1)) / copies as usize).div_ceil(2);
        let by_scratch = scratch / (slot_bytes * copies as usize).max(1);
        Ok(BulkPlan { staged, stages: by_depth.min(by_scratch).clamp(1, Self::MOST_STAGES) })
    }

    /// Stages of scratch for each copy of a role.
    pub const fn stages(&self) -> usize {
        self.stages
    }

    /// Turns between the start of a copy and the wait that covers it.
    const fn behind(&self) -> usize {
        self.stages - 1
    }
}

/// A role's stages of scratch, and the layout of a tile's parts in them.
struct Stages<'t> {
    bytes: Region<'t>,
    plan: BulkPlan,
    packing: Packing,
    /// Steps from one turn of this copy of the role to the next.
    by: Value<'t, i64>,
}

impl<'t> Stages<'t> {
    fn new(r: &RoleCtx<'t>, plan: BulkPlan, packing: Packing, by: Value<'t, i64>) -> Stages<'t> {
        Stages { bytes: r.passing_region(plan.stages * plan.staged.slot_bytes), plan, packing, by }
    }

    /// First byte of the stage of a step.
    fn offset(&self, at: &StepAt<'t>) -> Value<'t, i64> {
        // Every copy of the role has its own stages, for its own turns. The engine decides how many copies run.
        let turn = at.number.cast::<i64>() / self.by;
        turn % self.plan.stages as i64 * self.plan.staged.slot_bytes as i64
    }

    /// Waits until the oldest turn that may be in flight is complete.
    #[track_caller]
    fn wait_oldest(&self, r: &RoleCtx<'t>) {
        r.bulk_wait((self.plan.behind() * self.packing.types().len()) as u32, BulkDone::Complete);
    }

    /// For every part of a tile: its offset in a slot, its capacity in bytes, and its actual size in bytes.
    fn parts(&self, tile: &Tile<'t>) -> impl Iterator<Item = (usize, usize, Value<'t, i64>)> {
        let (packing, elements) = (self.packing, tile.rows() * tile.cols());
        packing.types().iter().enumerate().map(move |(part, ty)| {
            let size = ty.size();
            (packing.offset(part), packing.elements() * size, elements * size as i64)
        })
    }

    /// Starts the copies of a tile to its slot.
    #[track_caller]
    fn put(&self, r: &RoleCtx<'t>, peer: &Peer<'t>, tile: &Tile<'t>, at: &StepAt<'t>) {
        let stage = self.offset(at);
        for (offset, most, bytes) in self.parts(tile) {
            let from = self.bytes.bank(0).part(stage + offset as i64, most);
            peer.bulk_put(r, at.slot.offset + offset as i64, from, bytes);
        }
    }

    /// Starts the copies of a tile from its slot.
    #[track_caller]
    fn get(&self, r: &RoleCtx<'t>, peer: &Peer<'t>, tile: &Tile<'t>, at: &StepAt<'t>) {
        let stage = self.offset(at);
        for (offset, most, bytes) in self.parts(tile) {
            let to = self.bytes.bank(0).part(stage + offset as i64, most);
            peer.bulk_get(r, to, at.slot.offset + offset as i64, bytes);
        }
    }

    /// The tile as a hook of this step sees it: in the stage, not in the slot.
    fn region(&self, r: &RoleCtx<'t>, at: &StepAt<'t>) -> hook::Tile<'t> {
        hook::Tile { region: self.bytes, bank: r.constant(0i64), offset: self.offset(at) }
    }
}

/// Sends this block's tiles as [`send_tiles`](super::send_tiles) does, by bulk copies out of scratch.
#[track_caller]
pub fn send_bulk<'t, R: Regs>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    plan: BulkPlan,
    tiling: Tiling,
    packing: Packing,
    produce: impl Fn(&Position<'t>) -> R::Of<'t>,
) {
    send_bulk_any(r, peer, plan, tiling, packing, &|at| R::erase(produce(at)));
}

/// [`send_bulk`] with the types of the packing.
#[track_caller]
pub(crate) fn send_bulk_any<'t>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    plan: BulkPlan,
    tiling: Tiling,
    packing: Packing,
    produce: &dyn Fn(&Position<'t>) -> Payload<'t>,
) {
    let pipeline = StagedSend::begin(r, peer, plan.staged);
    if tiling.is_empty() {
        return pipeline.end(r.constant(0i64));
    }
    let (first, by) = pipeline.turns();
    let stages = Stages::new(r, plan, packing, by);
    packing.note_whole(r, plan.staged.slot_bytes);
    let behind = by * plan.behind() as i64;
    // The slot of an earlier step, whose copies are complete.
    let filled = |step: Value<'t, i64>| {
        let spans = |base| packing.spans(base, tiling.tile_here(r, step).positions());
        pipeline.filled_in_parts(&pipeline.at(step).slot, &spans);
    };
    let steps = tiling.for_turns(r, Some((first, by)), |step, tile| {
        let at = pipeline.at(step);
        let region = stages.region(r, &at);
        tile.each_dense(r, |spot| {
            let position = Position { spot, step, slot: Some(at.slot), region: Some(region) };
            packing.put_in(region, spot.index, produce(&position));
        });
        pipeline.wait_free(&at);
        r.proxy_fence();
        stages.put(r, peer, &tile, &at);
        stages.wait_oldest(r);
        if plan.stages == 1 {
            pipeline.filled_in_parts(&at.slot, &|base| packing.spans(base, tile.positions()));
        } else {
            r.if_(step.ge(behind), || filled(step - behind));
        }
    });
    if plan.stages > 1 {
        r.bulk_wait(0, BulkDone::Complete);
        // This copy's steps from `steps - behind` on: the loop has announced the earlier ones.
        let announced = (steps - behind - first).max(0);
        let left = first + (announced + by - 1) / by * by;
        r.for_step(left, steps, by, filled);
    }
    pipeline.end(steps);
}

/// Receives this block's tiles as [`recv_tiles`](super::recv_tiles) does, by bulk copies into scratch, where `consume`
/// finds its tile.
#[track_caller]
pub fn recv_bulk<'t, R: Regs>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    plan: BulkPlan,
    tiling: Tiling,
    packing: Packing,
    consume: impl Fn(&Position<'t>, R::Of<'t>),
) {
    recv_bulk_any(r, peer, plan, tiling, packing, &|at, payload| consume(at, R::restore(payload)));
}

/// [`recv_bulk`] with the types of the packing.
#[track_caller]
pub(crate) fn recv_bulk_any<'t>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    plan: BulkPlan,
    tiling: Tiling,
    packing: Packing,
    consume: &dyn Fn(&Position<'t>, Payload<'t>),
) {
    let pipeline = StagedRecv::begin(r, peer, plan.staged);
    if tiling.is_empty() {
        return pipeline.end(r.constant(0i64));
    }
    let (first, by) = pipeline.turns();
    let stages = Stages::new(r, plan, packing, by);
    let (ahead, steps) = (by * plan.behind() as i64, tiling.steps_here(r));
    let fetch = |step: Value<'t, i64>| {
        let at = pipeline.at(step);
        pipeline.wait_filled(&at.slot);
        r.proxy_fence();
        stages.get(r, peer, &tiling.tile_here(r, step), &at);
    };
    if plan.stages > 1 {
        r.for_step(first, steps.min(first + ahead), by, fetch);
    }
    tiling.for_turns(r, Some((first, by)), |step, tile| {
        if plan.stages == 1 {
            fetch(step);
            r.bulk_wait(0, BulkDone::Complete);
        } else {
            let next = step + ahead;
            let one_more = || {
                fetch(next);
                stages.wait_oldest(r);
            };
            r.if_else(next.lt(steps), one_more, || r.bulk_wait(0, BulkDone::Complete));
        }
        let at = pipeline.at(step);
        pipeline.emptied(&at.slot);
        let region = stages.region(r, &at);
        tile.each_dense(r, |spot| {
            let position = Position { spot, step, slot: Some(at.slot), region: Some(region) };
            consume(&position, packing.get_in(region, spot.index));
        });
    });
    pipeline.end(steps);
}
