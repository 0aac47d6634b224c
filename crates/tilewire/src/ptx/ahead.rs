//! Long bodies in one dimension: their loads run ahead of them, through shared memory.
//!
//! Asynchronous copies hold no registers. So the vectors of several turns are in flight while those of one turn are
//! processed, and blocks can have more warps. The lanes of a warp copy for each other: each copy of the warp is 512
//! contiguous bytes, whatever the length of a lane's vector:
//!
//! ```text
//!   memory of a warp's vectors, here of 32 bytes    shared memory                        the body
//!   piece   0  1  2  3 …     32 33 34 35 …          piece p is at p xor (p / 8 mod 2):   lane l reads pieces
//!   lane    0  1  2  3 …      0  1  2  3 …    ───▶  eight neighbouring lanes        ───▶ 2 l and 2 l + 1
//!           one copy          the other             touch all banks once, in and out
//!
//!   turn       i - 2   i - 1     i   i + 1       copies of turn i replace those of turn i - stages; the warp
//!   copies      ├───────────────────┤            synchronises before it reads them, after which those read a turn
//!   body                        ├───────┤        earlier are free
//! ```
//!
//! A lane has several vectors per turn, which share the cost of the turn. If elements of a group share a value or are
//! combined, the vectors of a lane lie in one group, one in each of its equal parts, and share the group's cost too:
//!
//! ```text
//!   a group of 16 vectors     0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15
//!   lane                      0 1 2 3 4 5 6 7 | 0 1  2  3  4  5  6  7
//! ```

use super::batch::{Batch, Body, vector_element};
use super::each::{Position, VectorLoop, is_load, is_long};
use super::place::{Address, unpack};
use super::role::RoleCode;
use super::text::{Label, Reg};
use crate::ir::{Base, Inst, Op, Place, Type};

/// Turns whose copies are in flight or being read. More would shrink the first-level cache, which shared memory is part
/// of.
const MOST_STAGES: u32 = 3;
/// Shared memory of a block: if it leaves no room for a second block anyway, and if it does.
const MOST_BYTES: [u32; 2] = [200 << 10, 96 << 10];
/// Threads of a block above which no second one fits.
const LARGE: u32 = 512;
/// Bytes of a piece: one copy of one lane.
const PIECE: u32 = 16;
/// Bytes that a load brings a lane per turn. With more, the pieces of a copy would be swizzled differently.
const MOST_OF_A_LANE: u32 = 64;
/// Loads of a body; the addresses of more would fill the registers.
const MOST_LOADS: usize = 2;
/// Contiguous bytes that the lanes of a warp store at least.
const LEAST_RUN: usize = 64;

/// The loads of a body that run ahead of it.
pub(super) struct Ahead {
    loads: Vec<AheadLoad>,
    /// The ops that compute their addresses.
    places: Vec<Inst>,
    /// Bytes of a vector, summed over all loads.
    bytes: u32,
    stages: u32,
    spread: Spread,
}

struct AheadLoad {
    inst: Inst,
    at: Place,
    ty: Type,
    unit: u32,
    /// Bytes of a vector, and those of the loads before it.
    bytes: u32,
    first: u32,
}

/// The vectors that a lane has in its warp's turn.
#[derive(Clone, Copy)]
struct Spread {
    /// Vectors of a lane: 1 or 2.
    vectors: u32,
    /// Vectors between one of the lane's and the next; a power of two.
    apart: u32,
}

impl RoleCode<'_> {
    /// How the loads of a body run ahead of it; `None` if they should not.
    pub fn ahead(&self, body: &Body<'_>, walk: VectorLoop) -> Option<Ahead> {
        // A lane that gives up on a packet exits, and the others of its warp would wait for it.
        let gives_up = body.insts.iter().any(|&inst| matches!(self.kernel.insts[inst].op, Op::PacketGet { .. }));
        let fits = self.may_use_shared && walk.rows.is_none() && !self.options.bounds && !gives_up;
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

    /// The vectors of a lane: in parts of the largest groups, if the warp's stores stay long enough.
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

    /// A load that neighbours do contiguously, in whole pieces.
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

    /// The body, for the vectors of whole turns of warps. Returns how many vectors it took, and the number it took
    /// whole multiples of (0: if some multiples are left).
    pub fn run_ahead(
        &mut self,
        each: Inst,
        body: &Body<'_>,
        (walk, ahead): (VectorLoop, &Ahead),
        total: Reg,
        end: Label,
    ) -> (Reg, u64) {
        let (lanes, stages, spread) = (self.lanes, ahead.stages, ahead.spread);
        let stage = ahead.bytes * spread.vectors * lanes;
        self.exchange_bytes = self.exchange_bytes.max(stages * stage);
        self.once(body);
        let lane = self.t.r("and.b32", &[&self.fixed.lane, &31]);
        let warp = self.t.r("sub.u32", &[&self.fixed.lane, &lane]);
        // Vectors in whole turns of warps, with 32-bit numbers; the loop after this one takes the rest. `left` is the
        // number of turns of this warp.
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
            let walk = VectorLoop { together: false, ..walk };
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

        // With two stages the parity of the remaining turns selects the slot; with three a register does.
        let slot = self.t.r_const(0);
        let parity = |code: &mut Self| {
            let odd = code.t.r("and.b32", &[&left, &1]);
            code.t.r("mul.lo.u32", &[&odd, &stage])
        };
        // The copies of the first turns. A turn that does not exist copies nothing, but counts as a group.
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
        // The copies of all lanes have landed, and all lanes have read those of the turn before, whose place the next
        // copies take.
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

    /// The path of a load through the shared memory of a warp.
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
        let from = self.swizzled(load.bytes, from);
        let from = self.t.r("add.u32", &[&from, &start]);
        Way { memory, policy, to, from }
    }

    /// The place of one of the warp's pieces: [`Spread::place`] as instructions.
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
        self.swizzled(bytes, place)
    }

    /// Swizzles the pieces of a vector so that eight lanes touch all banks.
    fn swizzled(&mut self, bytes: u32, place: Reg) -> Reg {
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

    /// Makes the copies of a turn one group and advances the addresses to the next turn.
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
        // The pieces of a vector are swizzled alike.
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
    /// The run of elements that lanes share: each has a vector in every part of it.
    fn span(self, width: usize) -> u32 {
        self.vectors * self.apart * width as u32
    }

    /// The byte where one of the warp's pieces goes, for vectors of `bytes` bytes. All first vectors come before all
    /// second ones.
    fn place(self, bytes: u32, piece: u32) -> u32 {
        let (vector, part) = (piece * PIECE / bytes, piece * PIECE % bytes);
        let (low, which) = (vector % self.apart, vector / self.apart % self.vectors);
        let lane = vector / (self.apart * self.vectors) * self.apart + low;
        let place = (which * 32 + lane) * bytes + part;
        place ^ (place >> 3 & (bytes - PIECE))
    }
}

/// The addresses of a load's pieces.
struct Way {
    /// The next piece that this lane copies.
    memory: Address,
    /// The cache policy of the copies.
    policy: Option<Reg>,
    /// Destination of this lane's first copy; the others are at constant distances.
    to: Reg,
    /// Place of the first piece of this lane's first vector; the others are beside it.
    from: Reg,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One register gives the destination of all copies of a lane, every piece has its own place, and eight
    /// neighbouring lanes read from all banks.
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
            // The first pieces of lanes, for a warp without second vectors.
            let alone = Spread { vectors: 1, apart: 32 };
            let mut banks: Vec<u32> = (0..8).map(|lane| alone.place(bytes, lane * bytes / PIECE) / PIECE % 8).collect();
            banks.sort_unstable();
            assert_eq!(banks, (0..8).collect::<Vec<_>>());
        }
    }
}
