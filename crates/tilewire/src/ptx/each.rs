//! Loops over the elements of an `each`.
//!
//! ```text
//!   lane l of L takes vectors l, l + L, l + 2L, … of V neighbours each, U of them at a time:
//!
//!     while j + (U-1)L < vectors   U vectors    ── as many loads in flight as U · V · size / 16
//!     while j < vectors            one vector
//!     while i < elements           one element  ── the rest of the row, shorter than a vector
//! ```
//!
//! In two dimensions vectors are numbered row by row. Row and column advance by additions; the divisions happen once
//! per loop.

use super::PtxError;
use super::batch::{Batch, Body, Wanted, vector_element};
use super::moving::Moving;
use super::role::RoleCode;
use super::target::Target;
use super::text::{Label, Reg};
use crate::ir::access::{Analysis, Class, Granularity, MemoryAccess, place};
use crate::ir::{Base, BinaryOp, Inst, InstData, Kernel, Op, Region, Shape, Type, UnaryOp, Value};
use std::collections::{HashMap, HashSet};

/// The first element of a vector.
#[derive(Clone, Copy)]
pub(super) struct Position {
    /// Its row, in two dimensions.
    pub row: Option<Reg>,
    /// Its place on the innermost axis.
    pub col: Reg,
    /// True if the vector exists. If not, the position is that of another vector.
    pub guard: Option<Reg>,
}

/// The work of a lane in one turn of a loop.
#[derive(Clone, Copy)]
struct Turn<'a> {
    /// Its vectors, `width` elements each.
    positions: &'a [Position],
    width: usize,
    /// Addresses of their accesses, as far as known.
    places: &'a Moving,
    /// Jump target of a lane that gives up.
    end: Label,
}

/// Computes the addresses that advance with a loop, from its first positions and the number of elements per turn.
type Start<'a, Code> = &'a mut dyn FnMut(&mut Code, &[Position], u64) -> Moving;

/// Takes some of the vectors before a loop does, given their number. Returns how many it took, and a number that it
/// took whole multiples of (0: unknown), so that fewer are left. `None`: it takes none.
type First<'a, Code> = &'a mut dyn FnMut(&mut Code, Reg) -> Option<(Reg, u64)>;

/// The domain of a loop: `rows` (one if `None`) of `units` vectors of `1 << shift` elements, from element `offset`.
#[derive(Clone, Copy)]
pub(super) struct VectorLoop {
    pub rows: Option<Reg>,
    pub units: Reg,
    pub shift: u32,
    pub offset: Option<Reg>,
    /// Vectors of a lane per turn.
    pub unroll: u32,
    /// Keeps the lanes of a warp together, with guards for those that have nothing left.
    pub together: bool,
    /// Bounds on the number of vectors in all rows.
    pub vectors: Vectors,
}

/// Bounds on the number of vectors.
#[derive(Clone, Copy)]
pub(super) struct Vectors {
    pub most: u64,
    pub exactly: Option<u64>,
}

impl Vectors {
    /// True if no lane has a vector with another `others` after it, once whole multiples of `taken` are gone.
    fn none_for(self, others: u64, taken: u64) -> bool {
        self.exactly.is_some_and(|vectors| vectors <= others || taken > 0 && vectors.is_multiple_of(taken))
    }
}

impl<'k> RoleCode<'k> {
    /// An `each` with its barrier. If it only fills register scratch, the barrier is omitted.
    pub fn each(&mut self, inst: Inst, extent: &[Reg], body: Region) -> Result<(), PtxError> {
        let kernel = self.kernel;
        let insts = &kernel.regions[body];
        let extent: Vec<Reg> = extent.iter().map(|n| self.t.d("max.s64", &[n, &0])).collect();
        let (rows, cols) = match extent[..] {
            [rows, cols] => (Some(rows), cols),
            _ => (None, extent[0]),
        };
        let mut analysis = Analysis::new(kernel, inst);
        let accesses = analysis.accesses();
        let weight = weight(kernel, insts, &analysis, self.options.target);
        let packets = insts.iter().any(|&inst| is_packet(kernel, inst));
        let mut body = Body { insts, analysis, accesses, weight, packets, width: 1, wide: HashMap::new() };
        let end = self.t.label();
        let groups = groups(kernel, insts);
        let required_shape = self.required_shape(inst);
        self.allocate_words(inst);
        if groups.is_empty() {
            let Op::Each { extent: extents, .. } = &kernel.insts[inst].op else { unreachable!("an each") };
            let transposed = rows.and_then(|_| self.transposed(inst, &body, [extents[0], extents[1]]));
            match (transposed, rows) {
                (Some(transposed), Some(rows)) => self.each_transposed(inst, &mut body, (rows, cols), &transposed, end),
                _ => {
                    body.set_width(
                        kernel,
                        required_shape.map_or_else(|| width(kernel, &body), |required_shape| required_shape.width),
                    );
                    let unroll = required_shape
                        .map_or_else(|| self.unroll(&body, rows.is_some()), |required_shape| required_shape.unroll);
                    self.plain(inst, &mut body, (rows, cols), unroll, end);
                }
            }
        } else {
            self.grouped(inst, &mut body, (rows, cols), &groups, end);
        }
        self.t.at(end);
        let gives_up = insts.iter().any(|&i| gets_packet(kernel, i));
        let holds = required_shape.is_some_and(|required_shape| required_shape.puts);
        match gives_up || self.options.bounds {
            true => self.leave_if_failed(),
            // Register scratch is private to its lane. Its source is read until the next barrier.
            false if holds => self.reading = true,
            false => self.barrier(),
        }
        self.clean = !holds;
        Ok(())
    }

    /// An `each` whose elements are independent: no group ops.
    fn plain(&mut self, inst: Inst, body: &mut Body<'_>, (rows, cols): (Option<Reg>, Reg), unroll: u32, end: Label) {
        let width = body.width;
        let shift = width.trailing_zeros();
        let units = if width > 1 { self.t.d("shr.s64", &[&cols, &shift]) } else { cols };
        let vectors = self.vectors(inst, shift);
        let walk = VectorLoop { rows, units, shift, offset: None, unroll, together: false, vectors };
        self.walk_body(inst, body, walk, end);
        let whole = self.whole_vectors(inst, width);
        if width > 1 && !whole {
            let covered = self.t.d("shl.b64", &[&units, &shift]);
            let rest = self.t.d("sub.s64", &[&cols, &covered]);
            let vectors = Vectors { exactly: None, ..self.vectors(inst, 0) };
            let walk =
                VectorLoop { rows, units: rest, shift: 0, offset: Some(covered), unroll: 1, together: false, vectors };
            let elements = &mut |code: &mut Self, positions: &[Position]| {
                code.elements(inst, body, Turn { positions, places: &Moving::default(), width: 1, end });
            };
            self.walk(walk, elements);
        }
    }

    /// The vectors of `1 << shift` elements that an `each` has.
    pub fn vectors(&mut self, each: Inst, shift: u32) -> Vectors {
        let Op::Each { extent, .. } = &self.kernel.insts[each].op else { unreachable!("an each") };
        let mut vectors = Vectors { most: 1, exactly: Some(1) };
        for (k, &v) in extent.iter().rev().enumerate() {
            let shift = if k == 0 { shift } else { 0 };
            vectors.most = vectors.most.saturating_mul(self.most(v) >> shift);
            let known = self.kernel.as_const(v).map(|c| (c.bits as i64).max(0) as u64 >> shift);
            vectors.exactly = vectors.exactly.zip(known).and_then(|(a, b)| a.checked_mul(b));
        }
        vectors
    }

    /// True if rows are known to be whole vectors.
    fn whole_vectors(&self, each: Inst, width: usize) -> bool {
        let Op::Each { extent, .. } = &self.kernel.insts[each].op else { return false };
        let cols = extent.last().and_then(|&v| self.kernel.as_const(v));
        cols.is_some_and(|cols| cols.bits.is_multiple_of(width as u64))
    }

    /// The body, for vectors of `width` elements from these positions. A short body goes op by op. A long one goes
    /// vector by vector, after the loads of all vectors.
    fn elements(&mut self, each: Inst, body: &Body<'_>, turn: Turn<'_>) {
        // Packets of all vectors are put before the first wait, and register-held words of all vectors are handled
        // together.
        if turn.positions.len() > 1 && is_long(body.weight) && !body.packets && self.required_shape(each).is_none() {
            return self.vector_by_vector(each, body, turn);
        }
        let mut batch = self.batch(each, turn.positions, turn.width, turn.end);
        batch.places = turn.places.clone();
        for (k, &inst) in body.insts.iter().enumerate() {
            if gets_packet(self.kernel, inst) && !batch.polled.contains_key(&inst) {
                self.poll_together(body, &mut batch, &body.insts[k..]);
            }
            self.batch_op(body, &mut batch, inst);
        }
    }

    /// Polls the packets that several of these ops get and waits for all of them: polls that overlap take as long as
    /// one.
    fn poll_together(&mut self, body: &Body<'_>, batch: &mut Batch, insts: &[Inst]) {
        let kernel = self.kernel;
        let gets = |op: &Op| matches!(op, Op::PacketGet { .. });
        // Polls do not move across accesses to parameters, which others may touch too; scratch is private.
        let known = batch.lanes.keys().copied().collect();
        let early = self.before(insts, known, gets, |data| match &data.op {
            Op::Load { at, .. } | Op::Get { at, .. } | Op::Store { at, .. } | Op::Put { at, .. } => {
                matches!(at.base, Base::Param(_))
            }
            Op::PacketPut { .. } | Op::AtomicAdd { .. } => true,
            _ => false,
        });
        let most = if self.threads() > 512 { 4 } else { 16 } / batch.count();
        let polled = early.iter().filter(|&&inst| gets(&kernel.insts[inst].op)).count().min(most);
        if polled < 2 || self.options.bounds {
            return;
        }
        self.once(body);
        let mut wanted = Vec::new();
        for inst in early.into_iter().filter(|&inst| !is_uniform(kernel, inst)) {
            match &kernel.insts[inst].op {
                Op::PacketGet { at, flag, .. } if wanted.len() < polled => {
                    self.poll_packets(batch, inst, at);
                    wanted.push(Wanted { inst, at, flag: *flag });
                }
                Op::PacketGet { .. } => {}
                _ => self.batch_op(body, batch, inst),
            }
        }
        self.packets_wait(batch, &wanted);
    }

    /// Runs the body one vector at a time, after the loads of all vectors. A vector's values need registers while it is
    /// computed; the loaded elements of the later ones need few.
    fn vector_by_vector(&mut self, each: Inst, body: &Body<'_>, turn: Turn<'_>) {
        let early = self.early(body);
        self.once(body);
        let mut batches = Vec::new();
        for (k, position) in turn.positions.iter().enumerate() {
            let mut batch = self.batch(each, std::slice::from_ref(position), turn.width, turn.end);
            batch.places = turn.places.from(k);
            self.ops(body, &mut batch, early.iter().copied());
            batches.push(batch);
        }
        for mut batch in batches {
            self.ops(body, &mut batch, body.insts.iter().copied().filter(|inst| !early.contains(inst)));
        }
    }

    /// The ops of a body that are the same for all elements.
    pub fn once(&mut self, body: &Body<'_>) {
        for &inst in body.insts.iter().filter(|&&inst| is_uniform(self.kernel, inst)) {
            self.uniform_value(inst);
        }
    }

    /// Some ops of a body; its uniform values are known.
    pub fn ops(&mut self, body: &Body<'_>, batch: &mut Batch, insts: impl Iterator<Item = Inst>) {
        for inst in insts.filter(|&inst| !is_uniform(self.kernel, inst)) {
            self.batch_op(body, batch, inst);
        }
    }

    /// The loads that no effect of the body has to precede, and the index arithmetic they need.
    pub fn early(&self, body: &Body<'_>) -> Vec<Inst> {
        let loads = |op: &Op| matches!(op, Op::Load { mask: None, .. } | Op::Get { mask: None, .. });
        self.before(body.insts, HashSet::new(), loads, |data| {
            data.result.is_none() || matches!(data.op, Op::AtomicAdd { .. } | Op::PacketGet { .. })
        })
    }

    /// The ops matching `wanted` before the first op matching `ends`, plus the index arithmetic they need.
    fn before(
        &self,
        insts: &[Inst],
        mut known: HashSet<Value>,
        wanted: impl Fn(&Op) -> bool,
        ends: impl Fn(&InstData) -> bool,
    ) -> Vec<Inst> {
        let kernel = self.kernel;
        let (mut early, mut ended) = (Vec::new(), false);
        for &inst in insts {
            let data = &kernel.insts[inst];
            ended |= ends(data);
            let places = data.op.operands();
            let lanes = places.iter().filter(|&&v| kernel.shape(v) == Shape::Lane);
            let index = |v: &Value| known.contains(v) || kernel.insts.iter().any(|(_, data)| data.indices.contains(v));
            let computes = data.op.is_pure() && !matches!(data.op, Op::Group { .. });
            let is_index = computes && data.result.is_some_and(|v| kernel.ty(v) == Type::I64);
            if ((wanted(&data.op) && !ended) || is_index) && lanes.clone().all(index) {
                known.extend(data.result.filter(|_| is_index));
                early.push(inst);
            }
        }
        early
    }

    pub fn batch(&mut self, each: Inst, positions: &[Position], width: usize, end: Label) -> Batch {
        let indices = &self.kernel.insts[each].indices;
        let mut lanes = HashMap::new();
        let mut cols = Vec::new();
        for position in positions {
            cols.push(position.col);
            cols.extend((1..width).map(|k| self.t.d("add.s64", &[&position.col, &k])));
        }
        match indices[..] {
            [row, col] => {
                let rows = positions.iter().flat_map(|p| std::iter::repeat_n(p.row.expect("two dimensions"), width));
                lanes.insert(row, rows.collect());
                lanes.insert(col, cols);
            }
            _ => _ = lanes.insert(indices[0], cols),
        }
        let guards = positions.iter().filter_map(|p| p.guard).collect();
        let (words, packed, places) = (HashMap::new(), HashMap::new(), Moving::default());
        Batch {
            width,
            groups: positions.len(),
            guards,
            lanes,
            words,
            packed,
            places,
            polled: HashMap::new(),
            span: 0,
            end,
        }
    }

    /// Runs a body for the vectors of this lane.
    pub fn walk_body(&mut self, each: Inst, body: &Body<'_>, walk: VectorLoop, end: Label) {
        let width = 1 << walk.shift;
        let ahead = if self.required_shape(each).is_some() { None } else { self.ahead(body, walk) };
        let one_way = walk.rows.is_none() && !walk.together && !self.options.bounds && self.adds_up(body);
        let mut moving = |code: &mut Self, positions: &[Position], turn: u64| {
            code.moving_from(each, body, positions, (u64::from(code.lanes) * width as u64, turn), end)
        };
        self.walk_after(
            walk,
            &mut |code, total| {
                let ahead = ahead.as_ref()?;
                Some(code.run_ahead(each, body, (walk, ahead), total, end))
            },
            if one_way && ahead.is_none() { Some(&mut moving) } else { None },
            &mut |code, positions, places| code.elements(each, body, Turn { positions, places, width, end }),
        );
    }

    /// True if addresses are computed before the loop. Bodies with packets or scratch handle messages so small that the
    /// code before the loop would take longer than the loop (see docs/decisions/0015).
    fn adds_up(&self, body: &Body<'_>) -> bool {
        let global = |&inst: &Inst| match place(&self.kernel.insts[inst].op) {
            Some(at) => matches!(at.base, Base::Param(_)),
            None => true,
        };
        body.insts.iter().all(global) && !body.packets
    }

    /// The advancing addresses of a body, from these positions.
    fn moving_from(
        &mut self,
        each: Inst,
        body: &Body<'_>,
        positions: &[Position],
        (vector, turn): (u64, u64),
        end: Label,
    ) -> Moving {
        self.once(body);
        let mut batch = self.batch(each, positions, body.width, end);
        let indices = self.early(body).into_iter().filter(|&inst| !is_load(self.kernel, inst));
        self.ops(body, &mut batch, indices.collect::<Vec<_>>().into_iter());
        self.moving(body, &mut batch, vector, turn)
    }

    /// Runs `body` for the vectors of this lane.
    pub fn walk(&mut self, walk: VectorLoop, body: &mut dyn FnMut(&mut Self, &[Position])) {
        self.walk_after(walk, &mut |_, _| None, None, &mut |code, positions, _| body(code, positions));
    }

    /// Runs `body` for the vectors of this lane that `first` left. The addresses that `moving` returns advance from
    /// turn to turn.
    fn walk_after(
        &mut self,
        walk: VectorLoop,
        first: First<'_, Self>,
        mut moving: Option<Start<'_, Self>>,
        body: &mut dyn FnMut(&mut Self, &[Position], &Moving),
    ) {
        let lanes = u64::from(self.lanes);
        let total = match walk.rows {
            Some(rows) => self.t.d("mul.lo.s64", &[&rows, &walk.units]),
            None => walk.units,
        };
        let after = self.t.label();
        // The first number past the end fits 32 bits as well.
        let (lane, ty) = match walk.vectors.most < 1 << 30 {
            true => (self.fixed.lane, "32"),
            false => (self.fixed.wide_lane, "64"),
        };
        let number = self.t.copy(lane);
        if walk.together {
            // The number of the warp's first lane, equal for all its lanes.
            self.t.op(&format!("and.b{ty}"), number, &[&number, &-32]);
        }
        let mut state = walk.rows.map(|_| self.rows(walk, total, after));
        let (stages, mut whole) = match first(self, total) {
            Some((taken, whole)) => {
                let taken = if ty == "32" { self.t.r("cvt.u32.u64", &[&taken]) } else { taken };
                self.t.op(&format!("add.u{ty}"), number, &[&number, &taken]);
                (vec![1], whole)
            }
            None if walk.unroll > 1 && !walk.together => (vec![walk.unroll, 1], 0),
            None => (vec![walk.unroll], 0),
        };
        for unroll in stages.into_iter().map(u64::from) {
            let (turn, others) = (unroll * lanes, if walk.together { 0 } else { (unroll - 1) * lanes });
            if walk.vectors.none_for(others, whole) {
                continue;
            }
            // Every lane has exactly one turn: no loop.
            let once = whole == 0 && walk.vectors.exactly == Some(turn) && !walk.together;
            whole = turn;
            if once {
                let positions = self.positions(walk, state.as_mut(), (number, total), unroll);
                body(self, &positions, &Moving::default());
                continue;
            }
            let limit = match walk.vectors.exactly {
                Some(exactly) => (exactly - others).to_string(),
                None if ty == "32" => {
                    let total = self.t.r("cvt.u32.u64", &[&total]);
                    self.t.r("sub.s32", &[&total, &others]).to_string()
                }
                None if others == 0 => total.to_string(),
                None => self.t.d("sub.s64", &[&total, &others]).to_string(),
            };
            let places = moving.as_mut().map(|moving| {
                let positions = self.positions(walk, None, (number, total), unroll);
                moving(self, &positions, turn << walk.shift)
            });
            let (again, next) = (self.t.label(), self.t.label());
            self.t.at(again);
            let inside = self.t.p(&format!("setp.lt.s{ty}"), &[&number, &limit]);
            self.t.branch_unless(inside, next);
            let positions = self.positions(walk, state.as_mut(), (number, total), unroll);
            let places = places.unwrap_or_default();
            body(self, &positions, &places);
            self.next_turn(&places);
            self.t.op(&format!("add.s{ty}"), number, &[&number, &turn]);
            self.t.line(format_args!("bra {again};"));
            self.t.at(next);
        }
        self.t.at(after);
    }

    /// The vectors of a lane in a turn, the first of which has this number. If `rows` is given, it advances to the next
    /// turn.
    fn positions(
        &mut self,
        walk: VectorLoop,
        mut rows: Option<&mut Rows>,
        (number, total): (Reg, Reg),
        unroll: u64,
    ) -> Vec<Position> {
        let (here, lanes) = (self.wide(number), u64::from(self.lanes));
        (0..unroll).map(|k| self.position(walk, rows.as_deref_mut(), (here, total), k * lanes)).collect()
    }

    /// A number in 64 bits.
    fn wide(&mut self, number: Reg) -> Reg {
        if matches!(number, Reg::R(_)) { self.t.d("cvt.u64.u32", &[&number]) } else { number }
    }

    /// The vector `ahead` after `number`. If `rows` is given, it advances to the next vector.
    pub fn position(
        &mut self,
        walk: VectorLoop,
        rows: Option<&mut Rows>,
        (number, total): (Reg, Reg),
        ahead: u64,
    ) -> Position {
        let mut mine = match ahead {
            0 => number,
            _ => self.t.d("add.s64", &[&number, &ahead]),
        };
        let mut guard = None;
        if walk.together {
            let lane = self.t.d("and.b64", &[&self.fixed.wide_lane, &31]);
            mine = self.t.d("add.s64", &[&mine, &lane]);
            guard = Some(self.t.p("setp.lt.s64", &[&mine, &total]));
        }
        let keep = |code: &mut Self, x: Reg| match guard {
            Some(guard) => code.t.d("selp.b64", &[&x, &0, &guard]),
            None => x,
        };
        let (row, unit) = match rows {
            Some(rows) => {
                let (row, col) = (self.t.copy(rows.row), self.t.copy(rows.col));
                self.advance(rows);
                (Some(keep(self, row)), keep(self, col))
            }
            None => (None, keep(self, mine)),
        };
        let mut col = if walk.shift > 0 { self.t.d("shl.b64", &[&unit, &walk.shift]) } else { self.t.copy(unit) };
        if let Some(offset) = walk.offset {
            col = self.t.d("add.s64", &[&col, &offset]);
        }
        Position { row, col, guard }
    }

    /// The lane's start in two dimensions; jumps to `after` if there are no elements.
    fn rows(&mut self, walk: VectorLoop, total: Reg, after: Label) -> Rows {
        let nothing = self.t.p("setp.eq.s64", &[&total, &0]);
        self.t.jump_if(nothing, after);
        // There are few lanes: any row beyond 32 bits divides like the longest one that fits.
        let units = self.t.d("min.u64", &[&walk.units, &u32::MAX]);
        let units = self.t.r("cvt.u32.u64", &[&units]);
        let [row, col] = ["div.u32", "rem.u32"].map(|op| {
            let part = self.t.r(op, &[&self.fixed.lane, &units]);
            self.t.d("cvt.u64.u32", &[&part])
        });
        let lanes = self.t.r_const(self.lanes);
        let [row_step, col_step] = ["div.u32", "rem.u32"].map(|op| {
            let part = self.t.r(op, &[&lanes, &units]);
            self.t.d("cvt.u64.u32", &[&part])
        });
        Rows { row, col, row_step, col_step, units: walk.units }
    }

    fn advance(&mut self, rows: &mut Rows) {
        self.t.op("add.s64", rows.col, &[&rows.col, &rows.col_step]);
        self.t.op("add.s64", rows.row, &[&rows.row, &rows.row_step]);
        let beyond = self.t.p("setp.ge.s64", &[&rows.col, &rows.units]);
        self.t.line(format_args!("@{beyond} sub.s64 {0}, {0}, {1};", rows.col, rows.units));
        self.t.line(format_args!("@{beyond} add.s64 {0}, {0}, 1;", rows.row));
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.kernel.roles.values().map(|role| role.warps * role.copies * 32).sum()
    }

    /// Vectors of a lane per turn: as many as the registers hold. `has_rows`: positions are rows and columns.
    pub(super) fn unroll(&self, body: &Body<'_>, has_rows: bool) -> u32 {
        let weight = body.weight;
        if self.options.unroll > 0 {
            return self.options.unroll.next_power_of_two().min(16);
        }
        // The schedule around a body holds about fifty registers; a thread of a 1024-thread block has 64.
        let threads = self.threads();
        let gets = body.insts.iter().filter(|&&inst| gets_packet(self.kernel, inst)).count();
        let puts = body.insts.iter().filter(|&&inst| is_packet(self.kernel, inst)).count() - gets;
        // A packet holds no registers once it is put.
        let packets = gets.max(puts);
        // Bytes that one element moves, and those of them that it loads. Values shared by neighbours cost little.
        let moved = |access: &MemoryAccess, usual: usize| match access.class {
            Class::Broadcast | Class::Grouped { .. } => 0,
            _ => vector_element(self.kernel, access).unwrap_or(usual),
        };
        let load =
            |access: &&MemoryAccess| matches!(self.kernel.insts[access.inst].op, Op::Load { .. } | Op::Get { .. });
        let bytes: usize = body.accesses.iter().map(|access| moved(access, 8)).sum();
        let loaded: Vec<usize> = body.accesses.iter().filter(load).map(|access| moved(access, 4)).collect();
        let loads = loaded.iter().filter(|&&bytes| bytes > 0).count();
        let most = match (threads > 512, packets) {
            // A polled packet holds two words, its address and its index.
            (true, 1..) => 4 / packets.min(4),
            (false, 1..) => 8 / packets.min(8),
            (true, 0) if is_long(weight) && loads == 1 => (32 / loaded.iter().sum::<usize>().max(1)).max(8),
            (true, 0) if is_long(weight) => 8,
            // Loaded elements wait in registers for their turn.
            (false, 0) if is_long(weight) && loads <= 1 => (128 / loaded.iter().sum::<usize>().max(1)).min(64),
            (false, 0) if is_long(weight) => 32 / loads,
            _ => 32,
        };
        let fits = |unroll: &u32| {
            let elements = *unroll as usize * body.width;
            // One word each if something is computed from them. Elements that are only moved stay packed, four vectors
            // at a time.
            let registers = elements <= most || packets == 0 && weight <= 2 && *unroll <= 4;
            let length = if is_long(weight) { 2048 } else { 256 };
            // Two addresses of each vector wait beside its words: eight spill a kilobyte for columns of a matrix.
            let registers = registers && (*unroll <= 4 || !has_rows || threads <= 512);
            registers && elements as u32 * weight <= length && elements * bytes <= 512
        };
        [8, 4, 2].into_iter().find(fits).unwrap_or(1)
    }
}

/// The current row and column (in vectors) of a lane, and its step.
pub(super) struct Rows {
    row: Reg,
    col: Reg,
    row_step: Reg,
    col_step: Reg,
    units: Reg,
}

/// Sizes of the groups of a body, above 1.
fn groups(kernel: &Kernel, insts: &[Inst]) -> Vec<u32> {
    let size = |&inst: &Inst| match kernel.insts[inst].op {
        Op::Group { size, .. } if size > 1 => Some(size),
        _ => None,
    };
    insts.iter().filter_map(size).collect()
}

/// Neighbours in a vector: 16 bytes of the smallest element that is accessed contiguously; fewer if the body is long or
/// stores larger elements.
pub(super) fn width(kernel: &Kernel, body: &Body<'_>) -> usize {
    // A packet is 16 bytes by itself. With two per lane, every access of a warp would touch half of each sector
    // (docs/decisions/0015, point 6).
    if body.packets {
        return 1;
    }
    let useful = body.accesses.iter().filter_map(|a| Some((vector_element(kernel, a)?, a.align)));
    let smallest = useful.filter(|&(size, align)| align as usize >= 2 * size).map(|(size, _)| size).min();
    let mut width = smallest.map_or(1, |size| 16 / size);
    // A warp's stores must be contiguous: two halves of a sector written one after the other cost the second-level
    // cache twice.
    let stored = body.accesses.iter().filter(|a| kernel.insts[a.inst].result.is_none());
    let largest = stored.filter_map(|a| vector_element(kernel, a)).max().unwrap_or(1);
    width = width.min(16 / largest);
    while width > 1 && width as u32 * body.weight > 384 {
        width /= 2;
    }
    width
}

fn is_uniform(kernel: &Kernel, inst: Inst) -> bool {
    kernel.insts[inst].result.is_some_and(|result| kernel.shape(result) == Shape::Uniform)
}

fn is_packet(kernel: &Kernel, inst: Inst) -> bool {
    matches!(kernel.insts[inst].op, Op::PacketPut { .. } | Op::PacketGet { .. })
}

fn gets_packet(kernel: &Kernel, inst: Inst) -> bool {
    matches!(kernel.insts[inst].op, Op::PacketGet { .. })
}

pub(super) fn is_load(kernel: &Kernel, inst: Inst) -> bool {
    matches!(kernel.insts[inst].op, Op::Load { .. } | Op::Get { .. }) && !is_uniform(kernel, inst)
}

/// True if a body is so long that the values of several vectors would not fit the registers together.
pub(super) fn is_long(weight: u32) -> bool {
    weight > 6
}

/// Estimated instructions per element, including its share of those that neighbours have in common.
fn weight(kernel: &Kernel, insts: &[Inst], analysis: &Analysis<'_>, target: Target) -> u32 {
    /// The most elements of a vector.
    const WIDEST: u32 = 16;
    let of = |&inst: &Inst| {
        let data = &kernel.insts[inst];
        let cost = cost(kernel, inst, target);
        let shared = |v: Value| match analysis.granularity(v) {
            Granularity::Uniform | Granularity::Row => true,
            Granularity::Group(size) => size.is_multiple_of(WIDEST),
            Granularity::Lane => false,
        };
        // A group's result is shared, but computing it takes all its elements.
        let once = !matches!(data.op, Op::Group { .. }) && data.result.is_some_and(shared);
        if once { cost } else { cost * WIDEST }
    };
    insts.iter().map(of).sum::<u32>().div_ceil(WIDEST).max(1)
}

/// Estimated instructions of an op.
fn cost(kernel: &Kernel, inst: Inst, target: Target) -> u32 {
    let data = &kernel.insts[inst];
    let Some(ty) = data.result.filter(|&v| kernel.shape(v) == Shape::Lane).map(|v| kernel.ty(v)) else {
        return u32::from(data.result.is_none());
    };
    let narrow = if ty.is_float() && ty.size() < 4 { 4 } else { 1 };
    match &data.op {
        Op::Unary { op: UnaryOp::Exp | UnaryOp::Log | UnaryOp::Tanh, .. } => 30 * ty.size() as u32 / 2,
        Op::Unary { op: UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Rcp, .. } => 16,
        Op::Binary { op: BinaryOp::Div | BinaryOp::Rem, .. } if ty.is_int() && ty.size() == 8 => 60,
        Op::Binary { op: BinaryOp::Div | BinaryOp::Rem, .. } => 16,
        // Index arithmetic: mostly done once per vector, for its first element.
        Op::Binary { .. } if ty == Type::I64 => 0,
        // Moved, not computed with.
        Op::Load { .. } | Op::Get { .. } => 1,
        Op::Cast { x, .. } => {
            let types = [kernel.ty(*x), ty];
            match types.iter().any(|ty| ty.is_float()) {
                true if types.iter().any(|ty| ty.is_float() && ty.size() == 1) && !target.has_fp8() => 12,
                // Two at a time.
                true if types.iter().all(|ty| ty.is_float() && ty.size() <= 4) => 2,
                true => 3,
                false => 1,
            }
        }
        _ => narrow,
    }
}
