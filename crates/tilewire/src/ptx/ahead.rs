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
//!   copies      ├───────────────────┤            before it reads them, and what it read a turn before is free then
//!   body                        ├───────┤
//! ```
//!
//! A lane has several vectors a turn, which share what the turn costs. Where elements of a group share a value, or are combined, the
//! vectors of a lane lie in one group, one in each of its equal parts, and share what the group costs too:
//!
//! ```text
//!   a group of 16 vectors     0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15
//!   lane                      0 1 2 3 4 5 6 7 | 0 1  2  3  4  5  6  7
//! ```

use super::batch::{Batch, Body, vector_element};
use super::each::{Position, Walk, is_load, is_long};
use super::place::{Address, unpack};
use super::role::RoleCode;
use super::text::{Label, Reg};
use crate::ir::{Base, Inst, Op, Place, Type};

/// Turns whose copies are under way or being read: more leave less of the cache that shared memory is a part of.
const MOST_STAGES: u32 = 3;
/// Shared memory of a block: of one that leaves no room for a second anyway, and of one that does.
const MOST_BYTES: [u32; 2] = [200 << 10, 96 << 10];
/// Lanes of a block that leaves no room for a second.
const LARGE: u32 = 512;
/// Bytes of a piece: what one copy of a lane moves.
const PIECE: u32 = 16;
/// Bytes that a load brings a lane in a turn: with more, the pieces of a copy would not be turned alike.
const MOST_OF_A_LANE: u32 = 64;
/// Loads of a body: the addresses of more fill the registers.
const MOST_LOADS: usize = 2;
/// Bytes side by side that the lanes of a warp store at least.
const LEAST_RUN: usize = 64;

/// The loads of a body that come ahead of it.
pub(super) struct Ahead {
    loads: Vec<AheadLoad>,
    /// What computes their places.
    places: Vec<Inst>,
    /// Bytes of a vector, of all loads.
    bytes: u32,
    stages: u32,
    spread: Spread,
}

struct AheadLoad {
    inst: Inst,
    at: Place,
    ty: Type,
    unit: u32,
    /// Bytes of a vector, and those of loads before it.
    bytes: u32,
    first: u32,
}

/// Which vectors of a warp's turn a lane has.
#[derive(Clone, Copy)]
struct Spread {
    /// Vectors of a lane: 1 or 2.
    vectors: u32,
    /// They are so many apart, a power of two.
    apart: u32,
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
        let (mut loads, mut bytes) = (Vec::new(), 0);
        for inst in inner {
            let load = self.ahead_load(body, inst, bytes)?;
            bytes += load.bytes;
            loads.push(load);
        }
        if !(1..=MOST_LOADS).contains(&loads.len()) {
            return None;
        }
        let lanes = self.threads();
        let most = self.room().min(MOST_BYTES[usize::from(lanes <= LARGE)]);
        let stages = |vectors: u32| (most / (lanes * bytes * vectors)).min(MOST_STAGES);
        let vectors = if 2 * bytes <= MOST_OF_A_LANE && stages(2) > 1 { 2 } else { 1 };
        let (spread, stages) = (self.spread_of(body, vectors), stages(vectors));
        (stages > 1).then_some(Ahead { loads, places, bytes, stages, spread })
    }

    /// Which vectors a lane has: parts of the largest groups, where stores of a warp stay long enough.
    fn spread_of(&self, body: &Body<'_>, vectors: u32) -> Spread {
        let kernel = self.kernel;
        let combined = body.insts.iter().filter_map(|&inst| match kernel.insts[inst].op {
            Op::Group { size, .. } => Some(size),
            _ => None,
        });
        let part = combined.max().unwrap_or(1) as usize / vectors as usize;
        let stored = body.accesses.iter().filter(|access| kernel.insts[access.inst].result.is_none());
        let least = stored.filter_map(|access| vector_element(kernel, access)).min().unwrap_or(LEAST_RUN);
        let parts = vectors > 1 && part >= body.width && part * least >= LEAST_RUN;
        let apart = if parts { (part / body.width) as u32 } else { 32 };
        Spread { vectors, apart: apart.min(32) }
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
        let bytes = (body.width * ty.size()) as u32;
        let whole = body.wide.get(&inst) == Some(&PIECE) && matches!(at.base, Base::Param(_));
        (whole && bytes <= MOST_OF_A_LANE).then_some(AheadLoad { inst, at, ty, unit, bytes, first })
    }

    /// A body for the vectors as long as all lanes of a warp have theirs. Gives how many were taken, and of what whole numbers
    /// all are (0: not all).
    pub fn run_ahead(
        &mut self,
        each: Inst,
        body: &Body<'_>,
        (walk, ahead): (Walk, &Ahead),
        total: Reg,
        end: Label,
    ) -> (Reg, u64) {
        let (lanes, stages, spread) = (self.lanes, ahead.stages, ahead.spread);
        let stage = ahead.bytes * spread.vectors * lanes;
        self.exchange_bytes = self.exchange_bytes.max(stages * stage);
        self.once(body);
        let lane = self.t.r("and.b32", &[&self.fixed.lane, &31]);
        let warp = self.t.r("sub.u32", &[&self.fixed.lane, &lane]);
        // Vectors in whole turns of warps, their numbers 32 bits; what is left of them comes after. And the turns that this warp has.
        let whole = |code: &mut Self| {
            let some = code.t.d("min.s64", &[&total, &i32::MAX]);
            code.t.d("and.b64", &[&some, &-(i64::from(spread.vectors) * 32)])
        };
        let left = whole(self);
        let left = self.t.r("cvt.u32.u64", &[&left]);
        let left = self.t.r("shr.u32", &[&left, &spread.vectors.trailing_zeros()]);
        let left = self.t.r("sub.s32", &[&left, &warp]);
        let left = self.t.r("add.s32", &[&left, &(lanes - 32)]);
        let left = self.t.r("div.u32", &[&left, &lanes]);
        let start = self.t.r("add.u32", &[&self.fixed.frame, &self.exchange]);
        let start = self.t.r("mad.lo.u32", &[&warp, &(ahead.bytes * spread.vectors), &start]);
        let first = self.first_vector(spread, lane);
        // A lane's vectors of a turn.
        let batch_at = |code: &mut Self, turn: Reg| -> Batch {
            let number = code.t.r("mad.lo.u32", &[&turn, &lanes, &warp]);
            let number = code.t.r("mad.lo.u32", &[&number, &spread.vectors, &first]);
            let number = code.t.d("cvt.u64.u32", &[&number]);
            let walk = Walk { together: false, ..walk };
            let positions: Vec<Position> = (0..spread.vectors)
                .map(|k| code.position(walk, None, (number, total), u64::from(k * spread.apart)))
                .collect();
            let mut batch = code.batch(each, &positions, body.width, end);
            if spread.apart < 32 {
                batch.span = spread.span(body.width) as usize;
            }
            batch
        };
        let turn = self.t.r_const(0);
        let mut batch = batch_at(self, turn);
        self.ops(body, &mut batch, ahead.places.iter().copied());
        let ways: Vec<Way> =
            ahead.loads.iter().map(|load| self.way(&batch, load, spread, (start, lane, first))).collect();
        let width = body.width as u64;
        let each_turn = u64::from(lanes * spread.vectors) * width;
        let moving = self.moving(body, &mut batch, u64::from(spread.apart) * width, each_turn);

        // Of two places the turns that are left say which it is; of three a register does.
        let slot = self.t.r_const(0);
        let parity = |code: &mut Self| {
            let odd = code.t.r("and.b32", &[&left, &1]);
            code.t.r("mul.lo.u32", &[&odd, &stage])
        };
        // The copies of the first turns; a turn that there is not copies nothing, and counts.
        for k in 0..stages - 1 {
            let copied = self.t.label();
            let more = self.t.p("setp.gt.u32", &[&left, &k]);
            self.t.jump_unless(more, copied);
            let slot = if stages == 2 { parity(self) } else { self.t.r_const(k * stage) };
            for (load, way) in ahead.loads.iter().zip(&ways) {
                self.copy_ahead(load, spread, way, slot);
            }
            self.t.at(copied);
            self.next_copies(ahead, &ways);
        }
        let (again, copied, after) = (self.t.label(), self.t.label(), self.t.label());
        self.t.at(again);
        let done = self.t.p("setp.eq.u32", &[&left, &0]);
        self.t.jump_if(done, after);
        self.t.line(format_args!("cp.async.wait_group {};", stages - 2));
        // The copies of all lanes are there, and all have read those of the turn before: the next take their place.
        self.t.line("bar.warp.sync -1;");
        let more = self.t.p("setp.ge.u32", &[&left, &stages]);
        self.t.jump_unless(more, copied);
        let freed = match stages {
            2 => {
                let slot = parity(self);
                self.t.r("sub.u32", &[&stage, &slot])
            }
            _ => {
                let first = self.t.p("setp.eq.u32", &[&slot, &0]);
                let before = self.t.r("sub.u32", &[&slot, &stage]);
                self.t.r("selp.b32", &[&((stages - 1) * stage), &before, &first])
            }
        };
        for (load, way) in ahead.loads.iter().zip(&ways) {
            self.copy_ahead(load, spread, way, freed);
        }
        self.t.at(copied);
        self.next_copies(ahead, &ways);
        let mut batch = batch_at(self, turn);
        batch.lanes.extend(moving.leaders.clone());
        batch.places = moving.clone();
        let here = if stages == 2 { parity(self) } else { slot };
        for (load, way) in ahead.loads.iter().zip(&ways) {
            self.read_copied(&mut batch, load, spread, way, here);
        }
        let is_copied = |inst: &Inst| ahead.loads.iter().any(|load| load.inst == *inst);
        self.ops(body, &mut batch, body.insts.iter().copied().filter(|inst| !is_copied(inst)));
        self.next_turn(&moving);
        if stages > 2 {
            let next = self.t.r("add.u32", &[&slot, &stage]);
            let last = self.t.p("setp.eq.u32", &[&next, &(stages * stage)]);
            self.t.op("selp.b32", slot, &[&0, &next, &last]);
        }
        self.t.op("add.u32", turn, &[&turn, &1]);
        self.t.op("sub.u32", left, &[&left, &1]);
        self.t.jump(again);
        self.t.at(after);
        let all = walk.vectors.most <= i32::MAX as u64;
        (whole(self), if all { u64::from(spread.vectors) * 32 } else { 0 })
    }

    /// The first vector of a lane in its warp's turn.
    fn first_vector(&mut self, spread: Spread, lane: Reg) -> Reg {
        let low = self.t.r("and.b32", &[&lane, &(spread.apart - 1)]);
        let high = self.t.r("sub.u32", &[&lane, &low]);
        self.t.r("mad.lo.u32", &[&high, &spread.vectors, &low])
    }

    /// The way of a load through the shared memory of a warp.
    fn way(&mut self, batch: &Batch, load: &AheadLoad, spread: Spread, (start, lane, first): (Reg, Reg, Reg)) -> Way {
        let index = self.of(batch, load.at.index, 0);
        let memory = self.address(&load.at, index, load.unit);
        // From the first vector of this lane to the first piece that it copies.
        let vector = self.t.r("mul.lo.u32", &[&first, &load.bytes]);
        let piece = self.t.r("mul.lo.u32", &[&lane, &PIECE]);
        let back = self.t.r("sub.u32", &[&vector, &piece]);
        let back = self.t.d("cvt.s64.s32", &[&back]);
        let memory = memory.at(self.t.d("sub.s64", &[&memory.reg, &back]));
        let first_to_leave = "createpolicy.fractional.L2::evict_first.b64";
        let policy = memory.streams.then(|| self.t.d(first_to_leave, &[&"1.0"]));
        let start = self.t.r("add.u32", &[&start, &(load.first * spread.vectors * 32)]);
        let to = self.place_of(spread, load.bytes, lane);
        let to = self.t.r("add.u32", &[&to, &start]);
        let from = self.t.r("mul.lo.u32", &[&lane, &load.bytes]);
        let from = self.turned_place(load.bytes, from);
        let from = self.t.r("add.u32", &[&from, &start]);
        Way { memory, policy, to, from }
    }

    /// Where a piece of the warp's goes, as [`Spread::place`] says it.
    fn place_of(&mut self, spread: Spread, bytes: u32, piece: Reg) -> Reg {
        let Spread { vectors, apart } = spread;
        let byte = self.t.r("mul.lo.u32", &[&piece, &PIECE]);
        let part = self.t.r("and.b32", &[&byte, &(bytes - 1)]);
        let vector = self.t.r("shr.u32", &[&byte, &bytes.trailing_zeros()]);
        let low = self.t.r("and.b32", &[&vector, &(apart - 1)]);
        let which = self.t.r("and.b32", &[&vector, &((vectors - 1) * apart)]);
        let high = self.t.r("sub.u32", &[&vector, &low]);
        let high = self.t.r("sub.u32", &[&high, &which]);
        let high = self.t.r("shr.u32", &[&high, &vectors.trailing_zeros()]);
        let lane = self.t.r("add.u32", &[&low, &high]);
        let vector = self.t.r("mad.lo.u32", &[&which, &(32 / apart), &lane]);
        let place = self.t.r("mad.lo.u32", &[&vector, &bytes, &part]);
        self.turned_place(bytes, place)
    }

    /// Pieces of a vector, turned so that eight lanes touch all banks.
    fn turned_place(&mut self, bytes: u32, place: Reg) -> Reg {
        let line = self.t.r("shr.u32", &[&place, &3]);
        let turn = self.t.r("and.b32", &[&line, &(bytes - PIECE)]);
        self.t.r("xor.b32", &[&place, &turn])
    }

    /// Memory → shared memory, for the vectors of a turn.
    fn copy_ahead(&mut self, load: &AheadLoad, spread: Spread, way: &Way, slot: Reg) {
        let from = way.memory;
        let to = Address::shared(self.t.r("add.u32", &[&way.to, &slot]));
        for k in 0..load.bytes * spread.vectors / PIECE {
            let far = i64::from(spread.place(load.bytes, k * 32));
            let (to, from) = (to.plus(far).place(), from.plus(i64::from(k * 32 * PIECE)).place());
            self.t.line(match way.policy {
                Some(policy) => {
                    format!("cp.async.cg.shared.global.L2::cache_hint {to}, {from}, {PIECE}, {policy};")
                }
                None => format!("cp.async.cg.shared.global {to}, {from}, {PIECE};"),
            });
        }
    }

    /// The copies of a turn are one group, and the next are of the turn after it.
    fn next_copies(&mut self, ahead: &Ahead, ways: &[Way]) {
        self.t.line("cp.async.commit_group;");
        for (load, way) in ahead.loads.iter().zip(ways) {
            self.move_on(way.memory.reg, i64::from(load.bytes * ahead.spread.vectors * self.lanes));
        }
    }

    /// Shared memory → the registers that the load would have filled.
    fn read_copied(&mut self, batch: &mut Batch, load: &AheadLoad, spread: Spread, way: &Way, slot: Reg) {
        let mut words = Vec::new();
        let first = self.t.r("add.u32", &[&way.from, &slot]);
        // The pieces of a vector are turned alike.
        let pieces = (0..load.bytes / PIECE).map(|k| match k {
            0 => first,
            _ => self.t.r("xor.b32", &[&first, &(k * PIECE)]),
        });
        let pieces: Vec<Address> = pieces.map(Address::shared).collect();
        for vector in 0..spread.vectors {
            for piece in &pieces {
                let from = piece.plus(i64::from(vector * 32 * load.bytes));
                words.extend(self.load_words(from, load.ty, PIECE as usize / load.ty.size(), PIECE, None));
            }
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

impl Spread {
    /// Elements of lanes that have parts of them.
    fn span(self, width: usize) -> u32 {
        self.vectors * self.apart * width as u32
    }

    /// The byte where a piece of the warp's goes, with vectors of so many bytes: first vectors come before all second ones.
    fn place(self, bytes: u32, piece: u32) -> u32 {
        let (vector, part) = (piece * PIECE / bytes, piece * PIECE % bytes);
        let (low, which) = (vector % self.apart, vector / self.apart % self.vectors);
        let lane = vector / (self.apart * self.vectors) * self.apart + low;
        let place = (which * 32 + lane) * bytes + part;
        place ^ (place >> 3 & (bytes - PIECE))
    }
}

/// Where the pieces of a load are.
struct Way {
    /// The next that this lane copies.
    memory: Address,
    /// What the cache is told of it.
    policy: Option<Reg>,
    /// Where this lane's first copy goes; the others are a fixed way from it.
    to: Reg,
    /// Where the first piece of this lane's first vector is; the others are next to it.
    from: Reg,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One register says where all copies of a lane go, every piece has a place of its own, and eight lanes next to each other read from all
    /// banks.
    #[test]
    fn places_of_pieces() {
        let one = [16, 32, 64].map(|bytes| (Spread { vectors: 1, apart: 32 }, bytes));
        let two = (0..6).flat_map(|k| [16, 32].map(|bytes| (Spread { vectors: 2, apart: 1 << k }, bytes)));
        for (spread, bytes) in one.into_iter().chain(two) {
            let place = |piece| spread.place(bytes, piece);
            let count = spread.vectors * bytes * 32 / PIECE;
            let mut places: Vec<u32> = (0..count).map(place).collect();
            for piece in 0..count {
                let (copy, lane) = (piece / 32 * 32, piece % 32);
                assert_eq!(place(piece), place(copy) + place(lane), "{piece} of {bytes} bytes, {} apart", spread.apart);
            }
            places.sort_unstable();
            assert_eq!(places, (0..count).map(|piece| piece * PIECE).collect::<Vec<_>>());
            // The first pieces of lanes: those of a warp that has no second vectors.
            let alone = Spread { vectors: 1, apart: 32 };
            let mut banks: Vec<u32> = (0..8).map(|lane| alone.place(bytes, lane * bytes / PIECE) / PIECE % 8).collect();
            banks.sort_unstable();
            assert_eq!(banks, (0..8).collect::<Vec<_>>());
        }
    }
}
