//! Two-dimensional bodies that read along the other axis: a transpose.
//!
//! Lanes are neighbours along the columns, where stores are contiguous. A load that is contiguous along the rows would
//! touch a separate line of memory for every lane. So a warp takes a piece of 32 rows and 32 V columns, reads it with
//! its lanes along the rows, stores it in shared memory, and runs the body from there. Elements move as words of V
//! neighbours: neighbouring rows on the way in, neighbouring columns on the way out.
//!
//! ```text
//!   memory, contiguous along the rows          shared memory of the warp             the body
//!   lane l reads V rows of column V k + g ───▶ part g: column k at k * pitch ──────▶ lane l has columns
//!   for all k; g = l / (32 / V)                pitch: odd in words, and the parts    V l .. V l + V of a row, from
//!                                              32 / V banks apart: no conflicts      V words of one column each
//! ```
//! 16-bit elements go through squares where possible: see `squares.rs`.

use super::batch::{Batch, Body, vector_element};
use super::each::Position;
use super::place::Address;
use super::role::RoleCode;
use super::squares::{self, Squares};
use super::text::{Label, Reg};
use crate::ir::access::{Class, MemoryAccess, align_along};
use crate::ir::{Access, Base, Inst, Op, Param, Place, Type, Value};

/// Rows of a piece, columns of a part of it, and lanes of a warp.
const SIDE: u32 = 32;
/// Columns of a part read per step: all of them if addresses are cheap, so that a piece waits for memory once; else
/// fewer.
const READS: u32 = SIDE;
const FEWER_READS: u32 = 8;
/// Rows that the body processes per step.
const ROWS: u32 = 8;
/// Limit of a row or column step in bytes: its multiples must fit the offset of an instruction.
const FAR: i64 = 1 << 18;
/// Bytes of shared memory left for other uses.
const SPARED: u32 = 8 << 10;

/// The loads of a body that go through shared memory.
pub(super) struct Transposed {
    pub loads: Vec<TransposedLoad>,
    /// The ops that compute their addresses, in order.
    pub slice: Vec<Inst>,
    /// Neighbours in a word: rows that a lane reads together, and columns that it writes together.
    vector: u32,
    /// Bytes of a warp's pieces.
    bytes: u32,
    /// True if all pieces have all their rows, and all their columns.
    whole_rows: bool,
    whole_cols: bool,
    /// How the pieces are squares, if they are.
    squares: Option<Squares>,
    /// Stores that advance by a constant number of bytes from row to row, and the ops that compute their addresses.
    stores: Vec<(Inst, Place, u32, i64)>,
    store_slice: Vec<Inst>,
}

pub(super) struct TransposedLoad {
    pub inst: Inst,
    pub at: Place,
    pub ty: Type,
    /// Bytes per unit of its index.
    pub unit: u32,
    /// Start of its piece in the warp's shared memory.
    first: u32,
    pitch: u32,
    /// Bytes from one part of the piece to the next.
    part: u32,
    /// Bytes from one column to the next, if constant.
    pub step: Option<i64>,
}

impl RoleCode<'_> {
    /// The loads of a two-dimensional body that go through shared memory; `None` if there are none or they do not fit.
    pub fn transposed(&self, each: Inst, body: &Body<'_>, [rows, cols]: [Value; 2]) -> Option<Transposed> {
        let waits = |&inst: &Inst| matches!(self.kernel.insts[inst].op, Op::PacketGet { .. });
        if self.options.bounds || !self.may_use_shared || body.insts.iter().any(waits) {
            return None;
        }
        let loads: Vec<(&MemoryAccess, &Place, Type, u32)> =
            body.accesses.iter().filter_map(|access| self.along_rows(access)).collect();
        let slice = self.slice(body, &loads.iter().map(|(_, at, ..)| *at).collect::<Vec<_>>())?;
        if loads.is_empty() || loads.iter().any(|(access, ..)| slice.contains(&access.inst)) {
            return None;
        }
        let stores: Vec<_> = body.accesses.iter().filter_map(|access| self.steps_down(access)).collect();
        let store_slice = self.slice(body, &stores.iter().map(|(_, at, ..)| at).collect::<Vec<_>>());
        let reads_transposed = |inst: &Inst| loads.iter().any(|(access, ..)| access.inst == *inst);
        // If the address of a store depends on a loaded value, it is computed for every row.
        let (stores, store_slice) = match store_slice.filter(|slice| !slice.iter().any(reads_transposed)) {
            Some(slice) => (stores, slice),
            None => (Vec::new(), Vec::new()),
        };
        let multiple = |extent: Value, of: u32| {
            self.kernel.as_const(extent).is_some_and(|extent| extent.bits.is_multiple_of(u64::from(of)))
        };
        // Vectors of neighbours need all loads and all stores to allow them.
        let size = loads[0].2.size() as u32;
        let whole_vectors = |vector: u32| {
            let vector_in = |(access, _, ty, _): &(&MemoryAccess, &Place, Type, u32)| {
                ty.size() as u32 == size && align_along(self.kernel, each, access, 0) >= vector * size
            };
            let vector_out = |access: &MemoryAccess| {
                let bytes = vector_element(self.kernel, access).map(|size| size as u32 * vector);
                let stepped = stores.iter().any(|(inst, ..)| *inst == access.inst);
                stepped && bytes.is_some_and(|bytes| bytes <= 16 && access.align >= bytes)
            };
            let of = |inst: &Inst| body.accesses.iter().find(|access| access.inst == *inst);
            let mut writes = body.insts.iter().filter(|&&inst| writes(&self.kernel.insts[inst].op));
            multiple(rows, vector)
                && multiple(cols, vector)
                && loads.iter().all(vector_in)
                && writes.all(|inst| of(inst).is_some_and(vector_out))
        };
        // As many as fill a word; squares need 16 bytes.
        let word = 4 / size.min(4);
        let vector = if word > 1 && whole_vectors(word) { word } else { 1 };
        let square_vectors = size == 2 && whole_vectors(squares::VECTOR);
        let mut bytes = 0;
        let loads: Vec<TransposedLoad> = loads
            .into_iter()
            .map(|(access, at, ty, unit)| {
                let pitch = SIDE * ty.size() as u32 + if ty.size() == 8 { 8 } else { 4 };
                let apart = if vector > 1 { SIDE / vector * 4 } else { 0 };
                let (first, part) = (bytes, SIDE * pitch + apart);
                bytes += vector * part;
                let step = access.index.as_ref().and_then(|index| index.stride[1].as_const());
                let step = step.map(|step| step * i64::from(unit)).filter(|step| step.abs() < FAR);
                TransposedLoad { inst: access.inst, at: *at, ty, unit, first, pitch, part, step }
            })
            .collect();
        let early = |inst: Inst| {
            loads.iter().any(|load| load.inst == inst) || slice.contains(&inst) || store_slice.contains(&inst)
        };
        if !self.reads_before_writes(body, early) {
            return None;
        }
        let warps: u32 = self.kernel.roles.values().map(|role| role.warps * role.copies).sum();
        let room = self.room();
        // Asynchronous copies need columns in global memory at a constant distance.
        let copied = |load: &TransposedLoad| load.step.is_some() && matches!(load.at.base, Base::Param(_));
        let squares = match [rows, cols].map(|extent| self.kernel.as_const(extent).map(|extent| extent.bits)) {
            [Some(rows), Some(cols)] if square_vectors && loads.iter().all(copied) => {
                self.squares(body, [rows, cols], loads.len(), room)
            }
            _ => None,
        };
        let fits = squares.is_some() || warps.saturating_mul(bytes) <= room;
        let (whole_rows, whole_cols) = (multiple(rows, SIDE), multiple(cols, SIDE * vector));
        let transposed =
            Transposed { loads, slice, vector, bytes, whole_rows, whole_cols, squares, stores, store_slice };
        fits.then_some(transposed)
    }

    /// Shared memory available to the warps of a block for their pieces.
    pub fn room(&self) -> u32 {
        let scratch = self.kernel.scratches.values().map(|scratch| {
            let copies = u64::from(self.kernel.roles[scratch.role].copies);
            scratch.len.saturating_mul(scratch.ty.size() as u64).saturating_mul(copies)
        });
        let taken = scratch.fold(u64::from(SPARED), u64::saturating_add);
        u64::from(self.options.target.shared_bytes()).saturating_sub(taken) as u32
    }

    /// True if none of these loads comes after a write of the body: they run for a whole piece before its first write.
    /// Inputs, which nothing writes, may be read at any time.
    fn reads_before_writes(&self, body: &Body<'_>, early: impl Fn(Inst) -> bool) -> bool {
        let mut written = false;
        body.insts.iter().all(|&inst| {
            let op = &self.kernel.insts[inst].op;
            written |= writes(op);
            let (Op::Load { at, .. } | Op::Get { at, .. }) = op else { return true };
            let input = matches!(at.base, Base::Param(p)
                if matches!(self.kernel.params[p], Param::Buffer { access: Access::In, .. }));
            !written || input || !early(inst)
        })
    }

    /// A store without a mask that advances by a constant from row to row: its place, bytes per unit of its index, and
    /// the constant in bytes.
    fn steps_down(&self, access: &MemoryAccess) -> Option<(Inst, Place, u32, i64)> {
        let (at, unit) = match &self.kernel.insts[access.inst].op {
            Op::Store { at, x, mask: None } => (at, self.kernel.ty(*x).size() as u32),
            Op::Put { at, mask: None, .. } => (at, 1),
            _ => return None,
        };
        let step = access.index.as_ref()?.stride[0].as_const()? * i64::from(unit);
        (step.abs() < FAR).then_some((access.inst, *at, unit, step))
    }

    /// A load that is contiguous along the rows and not along the columns.
    fn along_rows<'a>(&'a self, access: &'a MemoryAccess) -> Option<(&'a MemoryAccess, &'a Place, Type, u32)> {
        let (at, ty, unit) = match &self.kernel.insts[access.inst].op {
            Op::Load { at, mask: None } => {
                let ty = self.kernel.base_type(at.base)?;
                (at, ty, ty.size() as u32)
            }
            Op::Get { at, to, mask: None } => (at, *to, 1),
            _ => return None,
        };
        let step = ty.size() as i64 / i64::from(unit);
        let along_rows = access.index.as_ref().is_some_and(|index| index.stride[0].is_const(step));
        (access.class == Class::Strided && along_rows).then_some((access, at, ty, unit))
    }

    /// The ops of the body that compute these places; `None` if one of them does more than compute.
    fn slice(&self, body: &Body<'_>, places: &[&Place]) -> Option<Vec<Inst>> {
        let mut needed: Vec<Value> = places.iter().flat_map(|at| [Some(at.index), at.bank]).flatten().collect();
        let mut slice = Vec::new();
        for &inst in body.insts.iter().rev() {
            let data = &self.kernel.insts[inst];
            if !data.result.is_some_and(|result| needed.contains(&result)) {
                continue;
            }
            if matches!(data.op, Op::AtomicAdd { .. } | Op::PacketGet { .. } | Op::Group { .. }) {
                return None;
            }
            needed.extend(data.op.operands());
            slice.push(inst);
        }
        slice.reverse();
        Some(slice)
    }

    /// The body, piece by piece.
    pub fn each_transposed(
        &mut self,
        each: Inst,
        body: &mut Body<'_>,
        (rows, cols): (Reg, Reg),
        transposed: &Transposed,
        end: Label,
    ) {
        if let Some(squares) = &transposed.squares {
            return self.each_squares(each, body, (transposed, squares), end);
        }
        body.set_width(self.kernel, transposed.vector as usize);
        self.exchange_bytes = self.exchange_bytes.max(transposed.bytes * self.lanes / 32);
        let lane = self.t.r("and.b32", &[&self.fixed.lane, &31]);
        let warp = self.t.r("shr.u32", &[&self.fixed.lane, &5]);
        let part = self.t.r("mad.lo.u32", &[&warp, &transposed.bytes, &self.fixed.frame]);
        let part = self.t.r("add.u32", &[&part, &self.exchange]);
        let pieces = |code: &mut Self, extent: Reg, size: u32| {
            let rounded = code.t.d("add.s64", &[&extent, &(size - 1)]);
            let count = code.t.d("shr.u64", &[&rounded, &size.trailing_zeros()]);
            code.t.r("cvt.u32.u64", &[&count])
        };
        let width = SIDE * transposed.vector;
        let (down, across) = (pieces(self, rows, SIDE), pieces(self, cols, width));
        // More would not fit 32 bits only for terabytes.
        let total = self.t.r("mul.lo.u32", &[&down, &across]);
        let number = self.t.copy(warp);
        let (again, done) = (self.t.label(), self.t.label());
        self.t.at(again);
        let inside = self.t.p("setp.lt.u32", &[&number, &total]);
        self.t.branch_unless(inside, done);
        let [first_row, first_col] = [("div.u32", SIDE), ("rem.u32", width)].map(|(op, size)| {
            let piece = self.t.r(op, &[&number, &across]);
            let piece = self.t.d("cvt.u64.u32", &[&piece]);
            self.t.d("mul.lo.s64", &[&piece, &size])
        });
        let wide_lane = self.t.d("cvt.u64.u32", &[&lane]);
        self.read_piece(each, body, transposed, (rows, cols), (first_row, first_col), (lane, wide_lane), part, end);
        self.t.line("bar.warp.sync 0xffffffff;");
        self.run_piece(each, body, transposed, (rows, cols), (first_row, first_col), (lane, wide_lane), part, end);
        self.t.line("bar.warp.sync 0xffffffff;");
        self.t.op("add.u32", number, &[&number, &(self.lanes / 32)]);
        self.t.line(format_args!("bra {again};"));
        self.t.at(done);
    }

    /// Memory → shared memory, with the lanes along the rows.
    #[expect(clippy::too_many_arguments, reason = "the two halves of a piece take the same")]
    fn read_piece(
        &mut self,
        each: Inst,
        body: &Body<'_>,
        transposed: &Transposed,
        (rows, cols): (Reg, Reg),
        (first_row, first_col): (Reg, Reg),
        (lane, wide_lane): (Reg, Reg),
        part: Reg,
        end: Label,
    ) {
        // The lanes of one column; other lanes read the neighbouring columns.
        let lanes = SIDE / transposed.vector;
        let (word, column) = match transposed.vector {
            1 => (lane, None),
            _ => (
                self.t.r("and.b32", &[&lane, &(lanes - 1)]),
                Some(self.t.r("shr.u32", &[&lane, &lanes.trailing_zeros()])),
            ),
        };
        let wide_word = if column.is_some() { self.t.d("cvt.u64.u32", &[&word]) } else { wide_lane };
        let row = self.t.d("mad.lo.s64", &[&wide_word, &transposed.vector, &first_row]);
        let row = self.inside(row, rows).0;
        let col = match column {
            Some(column) => {
                let column = self.t.d("cvt.u64.u32", &[&column]);
                self.t.d("add.s64", &[&first_col, &column])
            }
            None => self.t.copy(first_col),
        };
        let mut places = Vec::new();
        for load in &transposed.loads {
            let mut place = self.t.r("mad.lo.u32", &[&word, &(transposed.vector * load.ty.size() as u32), &part]);
            if let Some(column) = column {
                place = self.t.r("mad.lo.u32", &[&column, &load.part, &place]);
            }
            places.push(self.t.r("add.u32", &[&place, &load.first]));
        }
        let running = transposed.whole_cols && transposed.loads.iter().all(|load| load.step.is_some());
        let reads = if running { READS } else { FEWER_READS };
        let mut pointers = Vec::new();
        if running {
            let batch = self.places(each, body, &transposed.slice, (row, col), end);
            for load in &transposed.loads {
                let index = self.of(&batch, load.at.index, 0);
                let from = self.address(&load.at, index, load.unit);
                pointers.push((self.t.copy(from.reg), from.space()));
            }
        }
        let (left, again) = (self.t.r_const(SIDE), self.t.label());
        self.t.at(again);
        let mut froms: Vec<Vec<(String, &'static str)>> = Vec::new();
        if running {
            for ((pointer, space), load) in pointers.iter().zip(&transposed.loads) {
                let step = load.step.expect("all have one") * i64::from(transposed.vector);
                froms.push((0..reads).map(|k| (format!("{pointer}+{}", i64::from(k) * step), *space)).collect());
            }
        } else {
            let mut positions = Vec::new();
            for k in 0..reads {
                let col = self.t.d("add.s64", &[&col, &(k * transposed.vector)]);
                let col = self.inside(col, cols).0;
                positions.push(Position { row: Some(row), col, guard: None });
            }
            let mut batch = self.batch(each, &positions, 1, end);
            for &inst in &transposed.slice {
                self.batch_op(body, &mut batch, inst);
            }
            for load in &transposed.loads {
                let from = (0..reads as usize).map(|k| {
                    let index = self.of(&batch, load.at.index, k);
                    let from = self.address(&load.at, index, load.unit);
                    (from.reg.to_string(), from.space())
                });
                froms.push(from.collect());
            }
        }
        for ((load, place), from) in transposed.loads.iter().zip(&places).zip(froms) {
            let bits = transposed.vector * load.ty.bits();
            let words: Vec<Reg> = from
                .into_iter()
                .map(|(from, space)| {
                    let word = if bits == 64 { self.t.new_d() } else { self.t.new_r() };
                    self.t.op(&format!("ld.{space}.b{bits}"), word, &[&format_args!("[{from}]")])
                })
                .collect();
            for (k, word) in words.into_iter().enumerate() {
                self.t.line(format_args!("st.shared.b{bits} [{place}+{}], {word};", k as u32 * load.pitch));
            }
            self.t.op("add.u32", *place, &[place, &(reads * load.pitch)]);
        }
        for ((pointer, _), load) in pointers.iter().zip(&transposed.loads) {
            let step = load.step.expect("all have one") * i64::from(reads * transposed.vector);
            self.move_on(*pointer, step);
        }
        self.t.op("add.s64", col, &[&col, &(reads * transposed.vector)]);
        self.t.op("sub.u32", left, &[&left, &reads]);
        let more = self.t.p("setp.ne.u32", &[&left, &0]);
        self.t.branch_if(more, again);
    }

    /// Some ops of the body for one element.
    pub fn places(&mut self, each: Inst, body: &Body<'_>, slice: &[Inst], (row, col): (Reg, Reg), end: Label) -> Batch {
        let mut batch = self.batch(each, &[Position { row: Some(row), col, guard: None }], 1, end);
        for &inst in slice {
            self.batch_op(body, &mut batch, inst);
        }
        batch
    }

    pub fn move_on(&mut self, pointer: Reg, step: i64) {
        let op = if matches!(pointer, Reg::D(_)) { "add.s64" } else { "add.s32" };
        self.t.op(op, pointer, &[&pointer, &step]);
    }

    /// The body, with the lanes along the columns.
    #[expect(clippy::too_many_arguments, reason = "the two halves of a piece take the same")]
    fn run_piece(
        &mut self,
        each: Inst,
        body: &Body<'_>,
        transposed: &Transposed,
        (rows, cols): (Reg, Reg),
        (first_row, first_col): (Reg, Reg),
        (lane, wide_lane): (Reg, Reg),
        part: Reg,
        end: Label,
    ) {
        let col = self.t.d("mad.lo.s64", &[&wide_lane, &transposed.vector, &first_col]);
        let (col, in_cols) = self.inside(col, cols);
        let row = self.t.copy(first_row);
        let mut places = Vec::new();
        for load in &transposed.loads {
            let place = self.t.r("mad.lo.u32", &[&lane, &load.pitch, &part]);
            places.push(self.t.r("add.u32", &[&place, &load.first]));
        }
        let pointers = self.store_pointers(each, body, transposed, (first_row, col), end);
        let (left, again) = (self.t.r_const(SIDE), self.t.label());
        self.t.at(again);
        let mut positions = Vec::new();
        for k in 0..ROWS {
            let row = self.t.d("add.s64", &[&row, &k]);
            let (row, in_rows) = if transposed.whole_rows { (row, None) } else { self.inside_if(row, rows) };
            let guard = match (in_rows, Some(in_cols).filter(|_| !transposed.whole_cols)) {
                (Some(a), Some(b)) => Some(self.t.p("and.pred", &[&a, &b])),
                (a, b) => a.or(b),
            };
            positions.push(Position { row: Some(row), col, guard });
        }
        let guards: Vec<Option<Reg>> = positions.iter().map(|position| position.guard).collect();
        let vector = transposed.vector as usize;
        let mut batch = self.batch(each, &positions, vector, end);
        for (load, place) in transposed.loads.iter().zip(&places) {
            let size = load.ty.size() as u32;
            let mut lanes: Vec<Reg> = Vec::new();
            for k in (0..ROWS).step_by(vector) {
                let from = Address::shared(*place).plus(i64::from(k * size));
                if vector == 1 {
                    lanes.push(self.load(from, load.ty, None));
                    continue;
                }
                // A word of each column: some rows of it.
                let columns: Vec<Vec<Reg>> = (0..transposed.vector)
                    .map(|g| self.load_wide(from.plus(i64::from(g * load.part)), load.ty, vector, 4, None))
                    .collect();
                lanes.extend((0..vector).flat_map(|row| columns.iter().map(move |column| column[row])));
            }
            self.set(&mut batch, load.inst, lanes);
            self.t.op("add.u32", *place, &[place, &(ROWS * size)]);
        }
        self.run_batch(body, transposed, &mut batch, &pointers, (0, &guards));
        for (pointer, (.., step)) in pointers.into_iter().zip(&transposed.stores) {
            self.move_on(pointer.reg, step * i64::from(ROWS));
        }
        self.t.op("add.s64", row, &[&row, &ROWS]);
        self.t.op("sub.u32", left, &[&left, &ROWS]);
        let more = self.t.p("setp.ne.u32", &[&left, &0]);
        self.t.branch_if(more, again);
    }

    /// Addresses of the stores that advance by a constant, from a row and column.
    pub fn store_pointers(
        &mut self,
        each: Inst,
        body: &Body<'_>,
        transposed: &Transposed,
        place: (Reg, Reg),
        end: Label,
    ) -> Vec<Address> {
        let mut pointers = Vec::new();
        if !transposed.stores.is_empty() {
            let batch = self.places(each, body, &transposed.store_slice, place, end);
            for (_, at, unit, _) in &transposed.stores {
                let index = self.of(&batch, at.index, 0);
                let to = self.address(at, index, *unit);
                pointers.push(to.at(self.t.copy(to.reg)));
            }
        }
        pointers
    }

    /// The remaining ops of the body for a batch whose loads are done. Its rows begin `first` rows after the pointers.
    pub fn run_batch(
        &mut self,
        body: &Body<'_>,
        transposed: &Transposed,
        batch: &mut Batch,
        pointers: &[Address],
        (first, guards): (u32, &[Option<Reg>]),
    ) {
        for &inst in body.insts {
            if transposed.loads.iter().any(|load| load.inst == inst) {
                continue;
            }
            let Some(number) = transposed.stores.iter().position(|store| store.0 == inst) else {
                self.batch_op(body, batch, inst);
                continue;
            };
            let (Op::Store { x, .. } | Op::Put { x, .. }) = self.kernel.insts[inst].op else { unreachable!("a store") };
            let (pointer, step, ty) = (pointers[number], transposed.stores[number].3, self.kernel.ty(x));
            let bytes = (batch.width * ty.size()) as u32;
            if !batch.words.contains_key(&x) {
                self.spread(batch, x);
            }
            for (k, guard) in guards.iter().enumerate() {
                let to = pointer.plus((i64::from(first) + k as i64) * step);
                if let Some(words) = batch.words.get(&x) {
                    let each = words.len() / guards.len();
                    self.store_words(to, ty, &words[k * each..(k + 1) * each], bytes, *guard);
                    continue;
                }
                let elements: Vec<Reg> =
                    (k * batch.width..(k + 1) * batch.width).map(|k| self.of(batch, x, k)).collect();
                match elements[..] {
                    [x] => self.store(to, ty, x, *guard),
                    _ => self.store_wide(to, ty, &elements, bytes, *guard),
                }
            }
        }
    }

    fn inside_if(&mut self, x: Reg, extent: Reg) -> (Reg, Option<Reg>) {
        let (x, inside) = self.inside(x, extent);
        (x, Some(inside))
    }

    /// A coordinate, or 0 if it is out of range; and a predicate for being in range.
    fn inside(&mut self, x: Reg, extent: Reg) -> (Reg, Reg) {
        let inside = self.t.p("setp.lt.s64", &[&x, &extent]);
        (self.t.d("selp.b64", &[&x, &0, &inside]), inside)
    }
}

/// True if an op changes memory that others see.
fn writes(op: &Op) -> bool {
    matches!(op, Op::Store { .. } | Op::Put { .. } | Op::AtomicAdd { .. } | Op::PacketPut { .. })
}
