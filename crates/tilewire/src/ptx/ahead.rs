//! Long bodies in one dimension: what they load comes ahead of them, through shared memory.
//!
//! Asynchronous copies hold no registers, so the vectors of several turns are under way while those of one are worked on, and a block has
//! warps to spare. The lanes of a warp copy for each other, so that each copy of the warp is of 512 bytes side by side, however long the
//! vector of a lane is:
//!
//! ```text
//!   memory of a warp's vectors, here of 32 bytes      shared memory                        the body
//!   piece   0  1  2  3 …       32 33 34 35 …          piece p is at p xor (p / 8 mod 2):   lane l reads pieces 2 l and 2 l + 1
//!   lane    0  1  2  3 …        0  1  2  3 …    ───▶  eight lanes next to each other  ───▶
//!           one copy            the other             touch all banks once, in and out
//!
//!   turn       i - 2   i - 1     i   i + 1       copies of turn i go where those of turn i - stages were; the warp waits for itself
//!   copies      ├───────────────────┤            before it reads them and before it writes there again
//!   body                        ├───────┤
//! ```

use super::batch::{Batch, Body};
use super::each::{Walk, is_load, is_long};
use super::place::{Address, unpack};
use super::role::RoleCode;
use super::text::{Label, Reg};
use crate::ir::{Base, Inst, Op, Place, Type};

/// Turns whose copies are under way or being read: more leave less of the cache that shared memory is a part of.
const MOST_STAGES: u32 = 3;
/// Shared memory of a block: what leaves room for a second block of fewer warps.
const MOST_BYTES: u32 = 96 << 10;
/// Bytes of a piece: what one copy of a lane moves.
const PIECE: u32 = 16;
/// Pieces of a vector: with more, the 32 of a copy would not be turned alike.
const MOST_PIECES: u32 = 4;
/// Loads of a body: the addresses of more fill the registers.
const MOST_LOADS: usize = 2;

/// The loads of a body that come ahead of it.
pub(super) struct Ahead {
    loads: Vec<AheadLoad>,
    /// What computes their places.
    places: Vec<Inst>,
    /// Pieces of a vector, of all loads.
    pieces: u32,
    stages: u32,
}

struct AheadLoad {
    inst: Inst,
    at: Place,
    ty: Type,
    unit: u32,
    /// Pieces of a vector, and those of loads before it.
    pieces: u32,
    first: u32,
}

impl RoleCode<'_> {
    /// How the loads of a body come ahead of it; `None`: they had better not.
    pub fn ahead(&self, body: &Body<'_>, walk: Walk) -> Option<Ahead> {
        // A lane that gives up a packet leaves, and the others of its warp would wait for it.
        let gives_up = body.insts.iter().any(|&inst| matches!(self.kernel.insts[inst].op, Op::PacketGet { .. }));
        let fits = self.turns && walk.rows.is_none() && !self.options.bounds && !gives_up;
        if !fits || !is_long(body.weight) {
            return None;
        }
        let (inner, places): (Vec<Inst>, Vec<Inst>) =
            self.early(body).into_iter().partition(|&inst| is_load(self.kernel, inst));
        let (mut loads, mut pieces) = (Vec::new(), 0);
        for inst in inner {
            let load = self.ahead_load(body, inst, pieces)?;
            pieces += load.pieces;
            loads.push(load);
        }
        if !(1..=MOST_LOADS).contains(&loads.len()) {
            return None;
        }
        let lanes: u32 = self.kernel.roles.values().map(|role| role.warps * role.copies * 32).sum();
        let stages = (self.room().min(MOST_BYTES) / (lanes * pieces * PIECE)).min(MOST_STAGES);
        (stages > 1).then_some(Ahead { loads, places, pieces, stages })
    }

    /// A load that neighbours do side by side, in whole pieces of memory.
    fn ahead_load(&self, body: &Body<'_>, inst: Inst, first: u32) -> Option<AheadLoad> {
        let data = &self.kernel.insts[inst];
        let ty = self.kernel.ty(data.result?);
        let (at, unit) = match &data.op {
            Op::Load { at, .. } => (*at, ty.size() as u32),
            Op::Get { at, .. } => (*at, 1),
            _ => return None,
        };
        let whole = body.wide.get(&inst) == Some(&PIECE) && matches!(at.base, Base::Param(_));
        let pieces = (body.width * ty.size()) as u32 / PIECE;
        (whole && pieces <= MOST_PIECES).then_some(AheadLoad { inst, at, ty, unit, pieces, first })
    }

    /// A body for the vectors from `number` on, as long as all lanes of a warp have one.
    pub fn run_ahead(
        &mut self,
        each: Inst,
        body: &Body<'_>,
        (walk, ahead): (Walk, &Ahead),
        (number, total): (Reg, Reg),
        end: Label,
    ) {
        let (lanes, stages) = (self.lanes, ahead.stages);
        let stage = ahead.pieces * PIECE * lanes;
        self.exchange_bytes = self.exchange_bytes.max(stages * stage);
        self.once(body);
        let lane = self.t.r("and.b32", &[&self.fixed.lane, &31]);
        let warp = self.t.r("sub.u32", &[&self.fixed.lane, &lane]);
        // Turns in which all lanes of the warp have a vector, and their numbers 32 bits; what is left comes after.
        let first = self.t.d("cvt.u64.u32", &[&warp]);
        let left = self.t.d("sub.s64", &[&total, &first]);
        let left = self.t.d("add.s64", &[&left, &(i64::from(lanes) - 32)]);
        let left = self.t.d("min.s64", &[&left, &i32::MAX]);
        let left = self.t.r("cvt.u32.u64", &[&left]);
        let turns = self.t.r("div.u32", &[&left, &lanes]);
        let start = self.t.r("add.u32", &[&self.fixed.frame, &self.exchange]);
        let start = self.t.r("mad.lo.u32", &[&warp, &(ahead.pieces * PIECE), &start]);
        // A lane's vector of a turn.
        let batch_at = |code: &mut Self, turn: Reg| -> Batch {
            let number = code.t.r("mad.lo.u32", &[&turn, &lanes, &code.fixed.lane]);
            let number = code.t.d("cvt.u64.u32", &[&number]);
            let position = code.position(Walk { together: false, ..walk }, None, (number, total), 0);
            code.batch(each, &[position], body.width, end)
        };
        let (turn, slot) = (self.t.r_const(0), self.t.r_const(0));
        let mut batch = batch_at(self, turn);
        self.ops(body, &mut batch, ahead.places.iter().copied());
        let ways: Vec<Way> = ahead.loads.iter().map(|load| self.way(&batch, load, (start, lane))).collect();

        let (again, copied, worked, after) = (self.t.label(), self.t.label(), self.t.label(), self.t.label());
        self.t.at(again);
        // The copies of this turn begin; what is worked on is some turns older.
        let older = self.t.r("sub.u32", &[&turn, &(stages - 1)]);
        let inside = self.t.p("setp.lt.s32", &[&older, &turns]);
        self.t.jump_unless(inside, after);
        self.t.line("bar.warp.sync -1;");
        let more = self.t.p("setp.lt.u32", &[&turn, &turns]);
        self.t.jump_unless(more, copied);
        for (load, way) in ahead.loads.iter().zip(&ways) {
            self.copy_ahead(load, way, slot);
        }
        self.t.at(copied);
        self.t.line("cp.async.commit_group;");
        // The place that comes next is the one whose copies are the oldest.
        self.t.op("add.u32", slot, &[&slot, &stage]);
        let last = self.t.p("setp.eq.u32", &[&slot, &(stages * stage)]);
        self.t.op("selp.b32", slot, &[&0, &slot, &last]);
        let none = self.t.p("setp.lt.s32", &[&older, &0]);
        self.t.jump_if(none, worked);
        self.t.line(format_args!("cp.async.wait_group {};", stages - 1));
        self.t.line("bar.warp.sync -1;");
        let mut batch = batch_at(self, older);
        for (load, way) in ahead.loads.iter().zip(&ways) {
            self.read_copied(&mut batch, load, way, slot);
        }
        let is_copied = |inst: &Inst| ahead.loads.iter().any(|load| load.inst == *inst);
        self.ops(body, &mut batch, body.insts.iter().copied().filter(|inst| !is_copied(inst)));
        self.t.at(worked);
        self.t.op("add.u32", turn, &[&turn, &1]);
        self.t.jump(again);
        self.t.at(after);
        let done = self.t.d("cvt.u64.u32", &[&turns]);
        let done = self.t.d("mul.lo.s64", &[&done, &lanes]);
        self.t.op("add.s64", number, &[&number, &done]);
    }

    /// The way of a load through the shared memory of a warp.
    fn way(&mut self, batch: &Batch, load: &AheadLoad, (start, lane): (Reg, Reg)) -> Way {
        let index = self.of(batch, load.at.index, 0);
        let memory = self.address(&load.at, index, load.unit);
        // From the vector of this lane back to the piece that it copies.
        let back = self.t.d("and.b64", &[&self.fixed.wide_lane, &31]);
        let back = self.t.d("mul.lo.s64", &[&back, &((load.pieces - 1) * PIECE)]);
        let memory = memory.at(self.t.d("sub.s64", &[&memory.reg, &back]));
        let start = self.t.r("add.u32", &[&start, &(load.first * PIECE * 32)]);
        let place = |code: &mut Self, piece: Reg| {
            let line = code.t.r("shr.u32", &[&piece, &3]);
            let turn = code.t.r("and.b32", &[&line, &(load.pieces - 1)]);
            let place = code.t.r("xor.b32", &[&piece, &turn]);
            code.t.r("mad.lo.u32", &[&place, &PIECE, &start])
        };
        // A copy takes 32 pieces, after which the turns begin again: one place says them all.
        let to = place(self, lane);
        let first = self.t.r("mul.lo.u32", &[&lane, &load.pieces]);
        let from = place(self, first);
        Way { memory, to, from }
    }

    /// Memory → shared memory, for a batch of one vector.
    fn copy_ahead(&mut self, load: &AheadLoad, way: &Way, slot: Reg) {
        let from = way.memory;
        let to = Address::shared(self.t.r("add.u32", &[&way.to, &slot]));
        for k in 0..load.pieces {
            let far = i64::from(k * PIECE * 32);
            let (to, from) = (to.plus(far).place(), from.plus(far).place());
            self.t.line(format_args!("cp.async.cg.shared.global {to}, {from}, {PIECE};"));
        }
        self.t.op("add.s64", from.reg, &[&from.reg, &(load.pieces * PIECE * self.lanes)]);
    }

    /// Shared memory → the registers that the load would have filled.
    fn read_copied(&mut self, batch: &mut Batch, load: &AheadLoad, way: &Way, slot: Reg) {
        let mut words = Vec::new();
        let first = self.t.r("add.u32", &[&way.from, &slot]);
        for k in 0..load.pieces {
            // The pieces of a vector are turned alike.
            let from = if k > 0 { self.t.r("xor.b32", &[&first, &(k * PIECE)]) } else { first };
            let from = Address::shared(from);
            words.extend(self.load_words(from, load.ty, PIECE as usize / load.ty.size(), PIECE, None));
        }
        match self.kernel.insts[load.inst].result {
            Some(result) if load.ty.size() < 4 && load.ty != Type::Bool => _ = batch.words.insert(result, words),
            _ => {
                let elements = unpack(&mut self.t, load.ty, &words, PIECE);
                self.set(batch, load.inst, elements);
            }
        }
    }
}

/// Where the pieces of a load are.
struct Way {
    /// The next that this lane copies.
    memory: Address,
    /// Where this lane's first copy goes; the others go 32 pieces further each.
    to: Reg,
    /// Where the first piece of this lane's vector is; the others are next to it.
    from: Reg,
}
