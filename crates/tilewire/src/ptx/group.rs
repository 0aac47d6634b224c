//! Group ops: reductions and prefix sums over neighbours.
//!
//! There are two ways. **Shuffles**, if every group is whole and its size is a power of two that fits in a warp's
//! vectors: a lane combines its own neighbours, then lanes combine by butterflies. **Exchange**, for everything else:
//! the role copy takes tiles of whole groups. For every group op its lanes put their elements into shared memory,
//! combine them there level by level, and take the results.
//!
//! ```text
//!   tile of T = lcm(sizes) · k elements, K = ⌈T / lanes⌉ per lane
//!   part 0 of the body ─▶ op A: put, combine, take ─▶ part 1 ─▶ op B: … ─▶ part 2
//! ```
//!
//! With K = 1 values stay in registers from part to part; otherwise each part is a loop and they wait in the lane's
//! private memory. Both ways pair neighbours first: a group cut short has the same tree without the missing elements.

use super::DEPOT;
use super::batch::{Batch, Body, Packed};
use super::each::{Position, VectorLoop, width};
use super::narrow::words_to_f32;
use super::number;
use super::role::RoleCode;
use super::text::{Hex, Label, Reg, Text};
use crate::ir::{BinaryOp, GroupOp, Inst, Op, Shape, Type, Value};
use std::collections::HashMap;

impl<'k> RoleCode<'k> {
    /// An `each` with group ops of these sizes.
    pub fn grouped(
        &mut self,
        each: Inst,
        body: &mut Body<'k>,
        (rows, cols): (Option<Reg>, Reg),
        sizes: &[u32],
        end: Label,
    ) {
        let whole = sizes.iter().fold(1, |a, &b| lcm(a, u64::from(b)));
        let Op::Each { extent, .. } = &self.kernel.insts[each].op else { unreachable!("an each") };
        let known = extent.last().and_then(|&v| self.kernel.as_const(v)).map(|c| c.bits);
        match self.shuffle_width(body, sizes, known) {
            None => self.exchanged(each, body, (rows, cols), whole, end),
            Some(width) => {
                let slow = self.t.label();
                if known.is_none() {
                    // Both are powers of two.
                    let unit = whole.max(width as u64);
                    let rest = self.t.d("and.b64", &[&cols, &(unit - 1)]);
                    let cut = self.t.p("setp.ne.u64", &[&rest, &0]);
                    self.t.jump_if(cut, slow);
                }
                body.set_width(self.kernel, width);
                let shift = width.trailing_zeros();
                let units = self.t.d("shr.s64", &[&cols, &shift]);
                let unroll = self.unroll(body, false).min(4);
                let vectors = self.vectors(each, shift);
                let walk = VectorLoop { rows, units, shift, offset: None, unroll, together: true, vectors };
                self.walk_body(each, body, walk, end);
                if known.is_none() {
                    self.t.jump(end);
                    self.t.at(slow);
                    self.exchanged(each, body, (rows, cols), whole, end);
                }
            }
        }
    }

    /// The vector width with which all groups of a body can be combined by shuffles. Rows of known length must be whole
    /// vectors and whole groups.
    fn shuffle_width(&self, body: &Body<'_>, sizes: &[u32], cols: Option<u64>) -> Option<usize> {
        let fits = |&inst: &Inst| match self.kernel.insts[inst].op {
            Op::Group { op: GroupOp::Scan, size, .. } => size <= 1,
            Op::Group { size, .. } => size.is_power_of_two(),
            Op::PacketGet { .. } => false,
            _ => true,
        };
        if !body.insts.iter().all(fits) {
            return None;
        }
        let mut width = width(self.kernel, body);
        let most = sizes.iter().copied().max().unwrap_or(1) as usize;
        while most > 32 * width && width < 16 {
            width *= 2;
        }
        while width > 1 && cols.is_some_and(|cols| cols % width as u64 != 0) {
            width /= 2;
        }
        let whole = cols.is_none_or(|cols| cols % most as u64 == 0);
        (whole && most <= 32 * width).then_some(width)
    }

    /// A group op on whole groups, by registers of the lane and shuffles.
    pub fn group_shuffle(&mut self, batch: &mut Batch, inst: Inst, op: GroupOp, x: Value, size: u32) {
        let (op, ty) = (binary(op), self.kernel.ty(x));
        let own = batch.width.min(size as usize);
        let parts = (0..batch.width * batch.groups).step_by(own).map(|first| {
            let x: Vec<Reg> = (first..first + own).map(|k| self.of(batch, x, k)).collect();
            reduced(&mut self.t, x, |t, a, b| number::binary(t, op, ty, a, b))
        });
        let parts = parts.collect();
        self.group_across(batch, inst, parts);
    }

    /// Handles min and max of groups whose elements are still 16-bit floats, two in a word. Returns false if they are
    /// not.
    pub fn group_shuffle_words(&mut self, batch: &mut Batch, inst: Inst) -> bool {
        let Op::Group { op, x, size } = self.kernel.insts[inst].op else { return false };
        let Some(&Packed { x, magnitude }) = batch.packed.get(&x) else { return false };
        let (op, ty) = (binary(op), self.kernel.ty(x));
        let kind = if ty == Type::BF16 { "bf16x2" } else { "f16x2" };
        let [least, largest] = ["min", "max"].map(|name| format!("{name}.{kind}"));
        // All parts of a group that a lane has.
        let own = if batch.spans(size) { batch.groups * batch.width } else { batch.width.min(size as usize) };
        let parts = batch.words[&x].clone();
        let parts = parts.chunks(own / 2).map(|words| {
            let pairs = |t: &mut Text, name: &str| reduced(t, words.to_vec(), |t, a, b| t.r(name, &[&a, &b]));
            let pair = match (op, magnitude) {
                // The largest magnitude is that of the largest or of the least element.
                (BinaryOp::Max, true) => {
                    let (largest_pair, least_pair) = (pairs(&mut self.t, &largest), pairs(&mut self.t, &least));
                    let negated = self.t.r("xor.b32", &[&least_pair, &Hex(0x8000_8000)]);
                    self.t.r(&largest, &[&largest_pair, &negated])
                }
                (BinaryOp::Max, false) => pairs(&mut self.t, &largest),
                (_, false) => pairs(&mut self.t, &least),
                (_, true) => {
                    let magnitudes = words.iter().map(|word| self.t.r("and.b32", &[word, &Hex(0x7fff_7fff)])).collect();
                    reduced(&mut self.t, magnitudes, |t, a, b| t.r(&least, &[&a, &b]))
                }
            };
            let both = words_to_f32(&mut self.t, ty, &[pair]).expect("floats of 16 bits");
            number::binary(&mut self.t, op, Type::F32, both[0], both[1])
        });
        let parts = parts.collect();
        self.group_across(batch, inst, parts);
        true
    }

    /// The results of groups, from the results of the parts that a lane has.
    fn group_across(&mut self, batch: &mut Batch, inst: Inst, mut parts: Vec<Reg>) {
        let Op::Group { op, x, size } = self.kernel.insts[inst].op else { unreachable!("a group op") };
        let (op, ty) = (binary(op), self.kernel.ty(x));
        let spans = batch.spans(size);
        let lanes = (size as usize / batch.width / if spans { batch.groups } else { 1 }) as u32;
        let combine = |t: &mut Text, a: Reg, b: Reg| number::binary(t, op, ty, a, b);
        // The parts of a group that a lane has are combined last, unless order does not matter.
        let in_order = !matches!(op, BinaryOp::Min | BinaryOp::Max);
        if spans && !in_order {
            parts = vec![reduced(&mut self.t, parts, combine)];
        }
        for part in &mut parts {
            for bit in (0..5).map(|bit| 1 << bit).take_while(|&bit| bit < lanes) {
                let other = self.shuffle(*part, bit);
                *part = combine(&mut self.t, *part, other);
            }
        }
        if spans && in_order {
            parts = vec![reduced(&mut self.t, parts, combine)];
        }
        let each = batch.width * batch.groups / parts.len();
        self.set(batch, inst, parts.iter().flat_map(|&part| std::iter::repeat_n(part, each)).collect());
    }

    /// The value of the lane whose number differs in one bit.
    fn shuffle(&mut self, x: Reg, bit: u32) -> Reg {
        let word = |code: &mut Self, x: Reg| code.t.r("shfl.sync.bfly.b32", &[&x, &bit, &31, &-1]);
        match x {
            Reg::D(_) => {
                let (low, high) = (self.t.new_r(), self.t.new_r());
                self.t.line(format_args!("mov.b64 {{{low}, {high}}}, {x};"));
                let (low, high) = (word(self, low), word(self, high));
                self.t.d("mov.b64", &[&format_args!("{{{low}, {high}}}")])
            }
            _ => word(self, x),
        }
    }

    /// Any groups, through shared memory.
    fn exchanged(&mut self, each: Inst, body: &mut Body<'k>, (rows, cols): (Option<Reg>, Reg), whole: u64, end: Label) {
        body.set_width(self.kernel, 1);
        let lanes = u64::from(self.lanes);
        let whole = whole.min(u64::from(u32::MAX));
        let tile = if whole < lanes { lanes / whole * whole } else { whole };
        let turns = tile.div_ceil(lanes);
        // Two buffers of eight bytes per element: a prefix sum reads one and writes the other.
        let bytes = u32::try_from(tile * 16).unwrap_or(u32::MAX / 4).min(u32::MAX / 4);
        self.exchange_bytes = self.exchange_bytes.max(bytes);

        // Every lane takes part in every tile of every row.
        let (row, row_again, row_next) = (self.t.d_const(0), self.t.label(), self.t.label());
        if let Some(rows) = rows {
            self.t.at(row_again);
            let inside = self.t.p("setp.lt.s64", &[&row, &rows]);
            self.t.jump_unless(inside, row_next);
        }
        let (base, again, next) = (self.t.d_const(0), self.t.label(), self.t.label());
        self.t.at(again);
        let inside = self.t.p("setp.lt.s64", &[&base, &cols]);
        self.t.jump_unless(inside, next);
        let tile = Tile { each, row: rows.map(|_| row), base, cols, size: tile, turns, end };
        self.tile(body, tile);
        self.t.op("add.s64", base, &[&base, &tile.size]);
        self.t.jump(again);
        self.t.at(next);
        if rows.is_some() {
            self.t.op("add.s64", row, &[&row, &1]);
            self.t.jump(row_again);
        }
        self.t.at(row_next);
    }

    fn tile(&mut self, body: &Body<'k>, tile: Tile) {
        let kernel = self.kernel;
        let is_group = |inst: &Inst| matches!(kernel.insts[*inst].op, Op::Group { size, .. } if size > 1);
        let parts: Vec<&[Inst]> = body.insts.split_inclusive(is_group).collect();
        let mut kept = Kept::new(self, &parts, tile.turns);
        for part in parts {
            let (ops, group) = match part.split_last() {
                Some((last, ops)) if is_group(last) => (ops, Some(*last)),
                _ => (part, None),
            };
            self.turns(tile, &mut |code, place| {
                let mut batch = code.batch(tile.each, &[place.position], 1, tile.end);
                kept.restore(code, &mut batch, place.turn);
                for &inst in ops {
                    if let Op::PacketGet { .. } = kernel.insts[inst].op {
                        // All lanes are here, so all can exit here.
                        let (there, outer) = (code.t.label(), batch.end);
                        batch.end = there;
                        code.batch_op(body, &mut batch, inst);
                        batch.end = outer;
                        code.t.at(there);
                        code.leave_if_failed();
                    } else {
                        code.batch_op(body, &mut batch, inst);
                    }
                }
                if let Some(group) = group {
                    let Op::Group { x, .. } = kernel.insts[group].op else { unreachable!("a group op") };
                    let x = code.of(&batch, x, 0);
                    let guard = place.position.guard.expect("exchanged elements have one");
                    code.t.line(format_args!("@{guard} st.shared.{} [{}], {x};", bits(x), place.shared));
                }
                kept.save(code, batch, place.turn);
            });
            if let Some(group) = group {
                self.combine(tile, group, &mut kept);
            }
        }
    }

    /// Combines the elements of a group op, which lie in the first buffer, and keeps every element's result.
    fn combine(&mut self, tile: Tile, inst: Inst, kept: &mut Kept) {
        let Op::Group { op, x, size } = self.kernel.insts[inst].op else { unreachable!("a group op") };
        let (ty, scan) = (self.kernel.ty(x), op == GroupOp::Scan);
        let add = binary(op);
        let second = tile.size * 8;
        self.barrier();
        let (mut distance, mut from) = (1u64, 0);
        while distance < u64::from(size) {
            let to = if scan { second - from } else { from };
            self.turns(tile, &mut |code, place| {
                let guard = place.position.guard.expect("exchanged elements have one");
                let in_group = code.t.r("rem.u32", &[&place.number, &size]);
                let mine = code.t.new_of(ty);
                let kind = bits(mine);
                code.t.op(&format!("ld.shared.{kind}"), mine, &[&format_args!("[{}+{from}]", place.shared)]);
                let (takes, other) = if scan {
                    (code.t.p("setp.ge.u32", &[&in_group, &distance]), from as i64 - 8 * distance as i64)
                } else {
                    // A pair's first element takes the second, if there is one.
                    let rest = code.t.r("and.b32", &[&in_group, &(2 * distance - 1)]);
                    let first = code.t.p("setp.eq.u32", &[&rest, &0]);
                    let partner = code.t.r("add.u32", &[&in_group, &distance]);
                    let in_size = code.t.p("setp.lt.u32", &[&partner, &size]);
                    let partner = code.t.d("add.s64", &[&place.position_unclamped, &distance]);
                    let in_row = code.t.p("setp.lt.s64", &[&partner, &tile.cols]);
                    let first = code.t.p("and.pred", &[&first, &in_size]);
                    (code.t.p("and.pred", &[&first, &in_row]), from as i64 + 8 * distance as i64)
                };
                let takes = code.t.p("and.pred", &[&takes, &guard]);
                let theirs = code.t.copy(mine);
                let place_text = format!("[{}+{other}]", place.shared);
                code.t.line(format_args!("@{takes} ld.shared.{kind} {theirs}, {place_text};"));
                let (a, b) = if scan { (theirs, mine) } else { (mine, theirs) };
                let sum = number::binary(&mut code.t, add, ty, a, b);
                let sum = code.t.op_select(ty, takes, sum, mine);
                // In place, an element that takes nothing may be read by another lane, so it is not written. A prefix
                // sum fills the other buffer.
                let writes = if scan { guard } else { takes };
                code.t.line(format_args!("@{writes} st.shared.{kind} [{}+{to}], {sum};", place.shared));
            });
            self.barrier();
            from = to;
            distance *= 2;
        }
        self.turns(tile, &mut |code, place| {
            let mut at = place.shared;
            if !scan {
                let in_group = code.t.r("rem.u32", &[&place.number, &size]);
                let back = code.t.r("shl.b32", &[&in_group, &3]);
                at = code.t.r("sub.u32", &[&at, &back]);
            }
            let x = code.t.new_of(ty);
            code.t.op(&format!("ld.shared.{}", bits(x)), x, &[&format_args!("[{at}+{from}]")]);
            kept.put(code, inst, x, place.turn);
        });
        // The next op may refill the buffer.
        self.barrier();
    }

    /// Runs `body` for every element of a tile that this lane has.
    fn turns(&mut self, tile: Tile, body: &mut dyn FnMut(&mut Self, Turn)) {
        let mut one = |code: &mut Self, turn: Option<Reg>| {
            let number = match turn {
                Some(turn) => code.t.r("mad.lo.u32", &[&turn, &code.lanes, &code.fixed.lane]),
                None => code.t.copy(code.fixed.lane),
            };
            let wide = code.t.d("cvt.u64.u32", &[&number]);
            let col = code.t.d("add.s64", &[&tile.base, &wide]);
            let in_tile = code.t.p("setp.lt.u32", &[&number, &tile.size]);
            let in_row = code.t.p("setp.lt.s64", &[&col, &tile.cols]);
            let guard = code.t.p("and.pred", &[&in_tile, &in_row]);
            // An element that does not exist computes what the tile's first element does, without effect.
            let clamped = code.t.d("selp.b64", &[&col, &tile.base, &guard]);
            let position = Position { row: tile.row, col: clamped, guard: Some(guard) };
            let number_in = code.t.r("selp.b32", &[&number, &0, &guard]);
            let shared = code.t.r("mad.lo.u32", &[&number_in, &8, &code.fixed.frame]);
            let shared = code.t.r("add.u32", &[&shared, &code.exchange]);
            body(code, Turn { turn, number: number_in, position, position_unclamped: col, shared });
        };
        if tile.turns == 1 {
            return one(self, None);
        }
        let (turn, again) = (self.t.r_const(0), self.t.label());
        self.t.at(again);
        one(self, Some(turn));
        self.t.op("add.u32", turn, &[&turn, &1]);
        let more = self.t.p("setp.lt.u32", &[&turn, &tile.turns]);
        self.t.jump_if(more, again);
    }
}

/// Combines neighbours, then the results with their neighbours, until one is left.
fn reduced(t: &mut Text, mut level: Vec<Reg>, combine: impl Fn(&mut Text, Reg, Reg) -> Reg) -> Reg {
    while level.len() > 1 {
        level = level.chunks(2).map(|pair| combine(t, pair[0], pair[1])).collect();
    }
    level[0]
}

/// A tile: elements `base..base + size` of a row of `cols`.
#[derive(Clone, Copy)]
struct Tile {
    each: Inst,
    row: Option<Reg>,
    base: Reg,
    cols: Reg,
    size: u64,
    /// Elements of a lane.
    turns: u64,
    end: Label,
}

/// One element of a lane.
#[derive(Clone, Copy)]
struct Turn {
    /// Index among the lane's elements; `None` if it has one.
    turn: Option<Reg>,
    /// Its number in the tile, 0 if it does not exist.
    number: Reg,
    position: Position,
    /// Its place in the row, even if it does not exist.
    position_unclamped: Reg,
    /// Its place in the first buffer.
    shared: Reg,
}

/// Values that later parts need: in registers if a lane has one element, else in the lane's private memory.
struct Kept {
    turns: u64,
    registers: HashMap<Value, Vec<Reg>>,
    /// Byte offset and type of every value that a later part reads.
    places: HashMap<Value, (u32, Type)>,
    saved: Vec<Value>,
}

impl Kept {
    fn new(code: &mut RoleCode<'_>, parts: &[&[Inst]], turns: u64) -> Self {
        let mut kept = Kept { turns, registers: HashMap::new(), places: HashMap::new(), saved: Vec::new() };
        if turns == 1 {
            return kept;
        }
        let kernel = code.kernel;
        let mut born: HashMap<Value, usize> = HashMap::new();
        let mut offset = 0;
        for (number, part) in parts.iter().enumerate() {
            for &inst in *part {
                let data = &kernel.insts[inst];
                for v in data.op.operands() {
                    if born.get(&v).is_some_and(|&at| at < number) && !kept.places.contains_key(&v) {
                        kept.places.insert(v, (offset, kernel.ty(v)));
                        offset += 8 * turns as u32;
                    }
                }
                if let Some(v) = data.result.filter(|&v| kernel.shape(v) == Shape::Lane) {
                    // The result of a group op is available from the next part on.
                    born.insert(v, number);
                }
            }
        }
        code.depot_bytes = code.depot_bytes.max(offset);
        kept
    }

    fn restore(&self, code: &mut RoleCode<'_>, batch: &mut Batch, turn: Option<Reg>) {
        if self.turns == 1 {
            batch.lanes.extend(self.registers.clone());
            return;
        }
        for &v in &self.saved {
            let (offset, ty) = self.places[&v];
            let at = place(code, offset, turn);
            let x = if ty == Type::Bool { code.t.new_r() } else { code.t.new_of(ty) };
            code.t.op(&format!("ld.local.{}", bits(x)), x, &[&at]);
            let x = if ty == Type::Bool { code.t.p("setp.ne.u32", &[&x, &0]) } else { x };
            batch.lanes.insert(v, vec![x]);
        }
    }

    fn save(&mut self, code: &mut RoleCode<'_>, batch: Batch, turn: Option<Reg>) {
        if self.turns == 1 {
            self.registers = batch.lanes;
            return;
        }
        let mut found: Vec<(Value, Reg)> =
            batch.lanes.iter().filter(|(v, _)| !self.saved.contains(v)).map(|(v, x)| (*v, x[0])).collect();
        found.sort_by_key(|&(v, _)| v);
        for (v, x) in found {
            self.store(code, v, x, turn);
        }
    }

    fn put(&mut self, code: &mut RoleCode<'_>, inst: Inst, x: Reg, turn: Option<Reg>) {
        let v = code.kernel.insts[inst].result.expect("a group op has a result");
        match self.turns {
            1 => _ = self.registers.insert(v, vec![x]),
            _ => self.store(code, v, x, turn),
        }
    }

    fn store(&mut self, code: &mut RoleCode<'_>, v: Value, x: Reg, turn: Option<Reg>) {
        let Some(&(offset, _)) = self.places.get(&v) else { return };
        let at = place(code, offset, turn);
        let x = code.kept(x);
        code.t.line(format_args!("st.local.{} {at}, {x};", bits(x)));
        self.saved.push(v);
    }
}

fn place(code: &mut RoleCode<'_>, offset: u32, turn: Option<Reg>) -> String {
    let turn = turn.expect("a loop");
    let start = code.t.r("mov.u32", &[&DEPOT]);
    let at = code.t.r("mad.lo.u32", &[&turn, &8, &start]);
    format!("[{at}+{offset}]")
}

/// The op that combines two elements.
fn binary(op: GroupOp) -> BinaryOp {
    match op {
        GroupOp::Max => BinaryOp::Max,
        GroupOp::Min => BinaryOp::Min,
        GroupOp::Sum | GroupOp::Scan => BinaryOp::Add,
    }
}

fn bits(x: Reg) -> &'static str {
    if let Reg::D(_) = x { "b64" } else { "b32" }
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}
