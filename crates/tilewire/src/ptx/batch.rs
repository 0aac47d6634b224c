//! The ops of an `each` body for a batch of elements: some vectors of neighbours on the innermost axis.
//!
//! Ops are written one after the other, each for all elements of the batch, as the evaluator runs them: so the loads of one op are all
//! under way before the first is used. Neighbours that share a value (the access analysis says which do) share its register.

use super::moving::Moving;
use super::narrow::{words_from_f32, words_to_f32};
use super::number;
use super::place::{Address, byte_of, unpack};
use super::role::{RoleCode, pure};
use super::text::{Label, Reg};
use crate::ir::access::{Analysis, Class, Granularity, MemoryAccess};
use crate::ir::{GroupOp, Inst, Kernel, Mask, Op, Order, Place, Scope, Shape, Type, UnaryOp, Value};
use std::collections::HashMap;

/// What is known of a body, and how wide its accesses are.
pub(super) struct Body<'k> {
    pub insts: &'k [Inst],
    pub analysis: Analysis<'k>,
    pub accesses: Vec<MemoryAccess>,
    /// About how many instructions one element takes.
    pub weight: u32,
    /// Whether it puts packets or gets them: messages so small that every instruction before the first counts.
    pub packets: bool,
    /// Neighbours in a vector.
    pub width: usize,
    /// Bytes that one instruction moves, for contiguous accesses.
    pub wide: HashMap<Inst, u32>,
}

/// Elements under way together: `groups` vectors of `width` neighbours, numbered vector by vector.
pub(super) struct Batch {
    pub width: usize,
    pub groups: usize,
    /// Where given, one per vector: what has effects happens only where it holds.
    pub guards: Vec<Reg>,
    pub lanes: HashMap<Value, Vec<Reg>>,
    /// Elements of 1 and 2 bytes as words in which neighbours lie side by side, as they were loaded or converted two at a time. Whoever
    /// wants the elements has them [spread](RoleCode::spread).
    pub words: HashMap<Value, Vec<Reg>>,
    /// Numbers that still are such words: spread when somebody wants them.
    pub packed: HashMap<Value, Packed>,
    /// Where accesses are, for those that need not compute it.
    pub places: Moving,
    /// Packets that were looked at already.
    pub looks: HashMap<Inst, Vec<Look>>,
    /// Elements that the vectors of some lanes have together, where each lane has one of every equal part of them; 0 where not.
    pub span: usize,
    /// Where a lane goes that gives up.
    pub end: Label,
}

/// A packet that was looked at once.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub index: Reg,
    pub address: Reg,
    pub halves: [Reg; 2],
}

/// The packets that an op gets.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'k> {
    pub inst: Inst,
    pub at: &'k Place,
    pub flag: Value,
}

/// f32s that are floats of 16 bits, or the magnitudes of those.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    /// What lies in words.
    pub x: Value,
    pub magnitude: bool,
}

impl Batch {
    fn guard(&self, k: usize) -> Option<Reg> {
        self.guards.get(k / self.width).copied()
    }

    pub fn count(&self) -> usize {
        self.width * self.groups
    }

    /// Whether groups of so many elements have a part in every vector of some lanes.
    pub fn spans(&self, size: u32) -> bool {
        self.span > 0 && (size as usize).is_multiple_of(self.span)
    }

    /// The address of element `k`, where it is known.
    fn place(&self, inst: Inst, k: usize) -> Option<Address> {
        if k.is_multiple_of(self.width) { self.places.of(inst, k / self.width) } else { None }
    }
}

impl Body<'_> {
    /// Whether the neighbours of a vector share a value.
    pub fn shares(&self, v: Value) -> bool {
        match self.analysis.granularity(v) {
            Granularity::Uniform | Granularity::Row => true,
            Granularity::Group(size) => (size as usize).is_multiple_of(self.width),
            Granularity::Lane => false,
        }
    }

    /// The element before `k` of a batch that has the same value, if one is known.
    fn twin(&self, batch: &Batch, v: Value, k: usize) -> Option<usize> {
        if !k.is_multiple_of(batch.width) {
            return self.shares(v).then(|| k - 1);
        }
        match self.analysis.granularity(v) {
            Granularity::Group(size) if k > 0 && batch.spans(size) => Some(k - batch.width),
            _ => None,
        }
    }

    /// Chooses the bytes of every contiguous access for vectors of `width`.
    pub fn set_width(&mut self, kernel: &Kernel, width: usize) {
        self.width = width;
        self.wide.clear();
        for access in &self.accesses {
            if let Some(size) = vector_element(kernel, access) {
                let bytes = access.align.min(16).min((width * size) as u32);
                if bytes as usize > size {
                    self.wide.insert(access.inst, bytes);
                }
            }
        }
    }
}

/// Size of the elements that neighbours access side by side, without a mask.
pub(super) fn vector_element(kernel: &Kernel, access: &MemoryAccess) -> Option<usize> {
    if access.class != Class::Contiguous {
        return None;
    }
    match &kernel.insts[access.inst].op {
        Op::Load { at, mask: None } => kernel.base_type(at.base).map(Type::size),
        Op::Get { to, mask: None, .. } => Some(to.size()),
        Op::Store { x, mask: None, .. } | Op::Put { x, mask: None, .. } => Some(kernel.ty(*x).size()),
        _ => None,
    }
}

impl RoleCode<'_> {
    /// One op, for every element.
    pub fn batch_op(&mut self, body: &Body<'_>, batch: &mut Batch, inst: Inst) {
        let kernel = self.kernel;
        let data = &kernel.insts[inst];
        if data.result.is_some_and(|v| kernel.shape(v) == Shape::Uniform) {
            return self.uniform_value(inst);
        }
        if data.result.is_some_and(|v| batch.lanes.contains_key(&v)) {
            return;
        }
        if self.in_hand(batch, inst) || self.in_words(body, batch, inst) {
            return;
        }
        data.op.operands().into_iter().for_each(|v| self.spread(batch, v));
        match &data.op {
            Op::Load { at, mask } => {
                let ty = kernel.base_type(at.base).unwrap_or(Type::U8);
                self.batch_load(body, batch, inst, at, (ty, ty.size() as u32), mask.as_ref());
            }
            Op::Get { at, to, mask } => self.batch_load(body, batch, inst, at, (*to, 1), mask.as_ref()),
            Op::Store { at, x, mask } => {
                let unit = kernel.ty(*x).size() as u32;
                self.batch_store(body, batch, inst, at, *x, unit, *mask);
            }
            Op::Put { at, x, mask } => self.batch_store(body, batch, inst, at, *x, 1, *mask),
            Op::AtomicAdd { at, x, mask, order, scope } => {
                self.batch_atomic(batch, inst, at, *x, *mask, (*order, *scope));
            }
            Op::PacketPut { at, x, flag } => self.packet_put(batch, inst, at, *x, *flag),
            Op::PacketGet { at, flag } => self.packet_get(batch, inst, at, *flag),
            Op::Group { x, size: 0 | 1, .. } => {
                let x = (0..batch.count()).map(|k| self.of(batch, *x, k)).collect();
                self.set(batch, inst, x);
            }
            Op::Group { op, x, size } => self.group_shuffle(batch, inst, *op, *x, *size),
            op => {
                let result = data.result.expect("an op that only computes has a result");
                let operands = op.operands();
                let mut out: Vec<Reg> = Vec::with_capacity(batch.count());
                for k in 0..batch.count() {
                    if let Some(twin) = body.twin(batch, result, k) {
                        out.push(out[twin]);
                        continue;
                    }
                    let operands: Vec<Reg> = operands.iter().map(|&v| self.of(batch, v, k)).collect();
                    let x = pure(&mut self.t, kernel, op, &operands);
                    out.push(if body.packets { self.halved(inst, x) } else { x });
                }
                self.set(batch, inst, out);
            }
        }
    }

    /// What is moved or converted as whole words of small elements; whether this op is that.
    fn in_words(&mut self, body: &Body<'_>, batch: &mut Batch, inst: Inst) -> bool {
        let kernel = self.kernel;
        let data = &kernel.insts[inst];
        let width = batch.width;
        let fills = move |ty: Type| ty.size() < 4 && ty != Type::Bool && (width * ty.size()).is_multiple_of(4);
        let wide = body.wide.get(&inst).copied().filter(|&bytes| batch.width == body.width && bytes >= 4);
        match (&data.op, wide) {
            (Op::Load { mask: None, .. } | Op::Get { mask: None, .. }, Some(bytes)) => {
                let result = data.result.expect("a load has a result");
                let ty = kernel.ty(result);
                if !fills(ty) {
                    return false;
                }
                let words = self.at_vectors(batch, inst, ty, |code, from, guard, _| {
                    code.load_words(from, ty, batch.width, bytes, guard)
                });
                batch.words.insert(result, words);
            }
            (Op::Store { x, mask: None, .. } | Op::Put { x, mask: None, .. }, Some(bytes)) => {
                let (ty, x) = (kernel.ty(*x), batch.words.get(x));
                let Some(x) = x.filter(|_| fills(ty)) else { return false };
                let each = batch.width * ty.size() / 4;
                self.at_vectors(batch, inst, ty, |code, to, guard, k| {
                    code.store_words(to, ty, &x[k * each..(k + 1) * each], bytes, guard);
                    Vec::new()
                });
            }
            (&Op::Cast { x, to }, _) if kernel.ty(x).is_float() && to.is_float() && batch.width > 1 => {
                let (from, result) = (kernel.ty(x), data.result.expect("a cast has a result"));
                let narrow = |ty: Type| ty.size() < 4;
                if let (Type::F32, Type::BF16 | Type::F16) = (to, from)
                    && batch.words.contains_key(&x)
                {
                    batch.packed.insert(result, Packed { x, magnitude: false });
                    return true;
                }
                if batch.packed.contains_key(&x) {
                    self.spread(batch, x);
                }
                if from == to || body.shares(result) || ![from, to].iter().all(|&ty| ty == Type::F32 || narrow(ty)) {
                    return false;
                }
                let wide = match batch.words.get(&x) {
                    Some(words) => words_to_f32(&mut self.t, from, words),
                    None if from == Type::F32 => Some((0..batch.count()).map(|k| self.of(batch, x, k)).collect()),
                    None => None,
                };
                let Some(wide) = wide.filter(|_| to == Type::F32 || fills(to)) else { return false };
                match to {
                    Type::F32 => self.set(batch, inst, wide),
                    _ => match words_from_f32(&mut self.t, to, &wide) {
                        Some(words) => _ = batch.words.insert(result, words),
                        None => return false,
                    },
                }
            }
            (&Op::Unary { op: UnaryOp::Abs, x }, _) if batch.packed.contains_key(&x) => {
                let result = data.result.expect("a magnitude is a value");
                batch.packed.insert(result, Packed { magnitude: true, ..batch.packed[&x] });
            }
            (&Op::Group { op: GroupOp::Min | GroupOp::Max, size: 2.., .. }, _) => {
                return self.group_shuffle_words(batch, inst);
            }
            _ => return false,
        }
        true
    }

    /// An access of whole vectors: the address of each, and where it happens.
    fn at_vectors(
        &mut self,
        batch: &Batch,
        inst: Inst,
        ty: Type,
        mut access: impl FnMut(&mut Self, Address, Option<Reg>, usize) -> Vec<Reg>,
    ) -> Vec<Reg> {
        let (at, unit, writes) = match &self.kernel.insts[inst].op {
            Op::Load { at, .. } => (at, ty.size() as u32, false),
            Op::Store { at, .. } => (at, ty.size() as u32, true),
            Op::Get { at, .. } => (at, 1, false),
            Op::Put { at, .. } => (at, 1, true),
            op => unreachable!("no access: {op:?}"),
        };
        let mut out = Vec::new();
        for vector in 0..batch.groups {
            let index = self.of(batch, at.index, vector * batch.width);
            let address = batch.places.of(inst, vector).unwrap_or_else(|| self.address(at, index, unit));
            let guard = batch.guards.get(vector).copied().filter(|_| writes);
            let guard = self.bounded(inst, at, index, (unit, (batch.width * ty.size()) as u64), guard);
            out.extend(access(self, address, guard, vector));
        }
        out
    }

    /// Gives elements that lie in words a register each.
    pub fn spread(&mut self, batch: &mut Batch, v: Value) {
        if batch.lanes.contains_key(&v) {
            return;
        }
        if let Some(words) = batch.words.get(&v) {
            let elements = unpack(&mut self.t, self.kernel.ty(v), words, 4);
            batch.lanes.insert(v, elements);
        } else if let Some(&Packed { x, magnitude }) = batch.packed.get(&v) {
            let numbers = words_to_f32(&mut self.t, self.kernel.ty(x), &batch.words[&x]).expect("floats of 16 bits");
            let abs = |x: Reg| if magnitude { number::unary(&mut self.t, UnaryOp::Abs, Type::F32, x) } else { x };
            batch.lanes.insert(v, numbers.into_iter().map(abs).collect());
        }
    }

    /// A value as element `k` sees it.
    pub fn of(&self, batch: &Batch, v: Value, k: usize) -> Reg {
        match batch.lanes.get(&v) {
            Some(lanes) => lanes[k],
            None => self.value(v),
        }
    }

    pub fn set(&self, batch: &mut Batch, inst: Inst, lanes: Vec<Reg>) {
        if let Some(result) = self.kernel.insts[inst].result {
            batch.lanes.insert(result, lanes);
        }
    }

    fn batch_load(
        &mut self,
        body: &Body<'_>,
        batch: &mut Batch,
        inst: Inst,
        at: &Place,
        (ty, unit): (Type, u32),
        mask: Option<&Mask>,
    ) {
        if let Some(bytes) = body.wide.get(&inst).copied().filter(|_| batch.width == body.width) {
            let out = self.at_vectors(batch, inst, ty, |code, from, guard, _| {
                code.load_wide(from, ty, batch.width, bytes, guard)
            });
            return self.set(batch, inst, out);
        }
        let mut out: Vec<Reg> = Vec::with_capacity(batch.count());
        let result = self.kernel.insts[inst].result.expect("a load has a result");
        for k in 0..batch.count() {
            if let Some(twin) = body.twin(batch, result, k) {
                out.push(out[twin]);
                continue;
            }
            let index = self.of(batch, at.index, k);
            let from = batch.place(inst, k).unwrap_or_else(|| self.address(at, index, unit));
            let cond = mask.map(|mask| self.of(batch, mask.cond, k));
            let cond = self.bounded(inst, at, index, (unit, ty.size() as u64), cond);
            let mask = cond.map(|cond| match mask {
                Some(mask) => (cond, self.of(batch, mask.other, k)),
                None => (cond, self.t.constant(ty, 0)),
            });
            out.push(self.load(from, ty, mask));
        }
        self.set(batch, inst, out);
    }

    #[allow(clippy::too_many_arguments)] // one call site each for Store and Put; a struct would be the same list twice
    fn batch_store(
        &mut self,
        body: &Body<'_>,
        batch: &Batch,
        inst: Inst,
        at: &Place,
        x: Value,
        unit: u32,
        mask: Option<Value>,
    ) {
        let ty = self.kernel.ty(x);
        if let Some(bytes) = body.wide.get(&inst).copied().filter(|_| batch.width == body.width) {
            self.at_vectors(batch, inst, ty, |code, to, guard, vector| {
                let elements = vector * batch.width..(vector + 1) * batch.width;
                let elements: Vec<Reg> = elements.map(|k| code.of(batch, x, k)).collect();
                code.store_wide(to, ty, &elements, bytes, guard);
                Vec::new()
            });
            return;
        }
        // What only the first of a group does, only the first of a vector can do: vectors begin where groups may.
        let leader = mask.and_then(|mask| body.analysis.group_leader(mask));
        let firsts = leader.is_some_and(|size| (size as usize).is_multiple_of(batch.width));
        // Nor can the first of a later part of a group.
        let spans = leader.is_some_and(|size| batch.spans(size));
        for k in 0..batch.count() {
            if firsts && k % batch.width != 0 || spans && k >= batch.width {
                continue;
            }
            let index = self.of(batch, at.index, k);
            let to = batch.place(inst, k).unwrap_or_else(|| self.address(at, index, unit));
            let guard = self.effect(batch, mask, k);
            let guard = self.bounded(inst, at, index, (unit, ty.size() as u64), guard);
            let x = self.of(batch, x, k);
            self.store(to, ty, x, guard);
        }
    }

    /// Where an effect on element `k` happens.
    fn effect(&mut self, batch: &Batch, mask: Option<Value>, k: usize) -> Option<Reg> {
        let mask = mask.map(|mask| self.of(batch, mask, k));
        match (batch.guard(k), mask) {
            (Some(guard), Some(mask)) => Some(self.t.p("and.pred", &[&guard, &mask])),
            (guard, mask) => guard.or(mask),
        }
    }

    fn batch_atomic(
        &mut self,
        batch: &mut Batch,
        inst: Inst,
        at: &Place,
        x: Value,
        mask: Option<Value>,
        (order, scope): (Order, Scope),
    ) {
        let ty = self.kernel.ty(x);
        let mut out = Vec::with_capacity(batch.count());
        for k in 0..batch.count() {
            let guard = self.effect(batch, mask, k);
            let index = self.of(batch, at.index, k);
            let to = self.address(at, index, ty.size() as u32);
            let guard = self.bounded(inst, at, index, (ty.size() as u32, ty.size() as u64), guard);
            let x = self.of(batch, x, k);
            out.push(self.atomic_add(to, ty, x, guard, order, scope));
        }
        self.set(batch, inst, out);
    }

    fn packet_put(&mut self, batch: &Batch, inst: Inst, at: &Place, x: Value, flag: Value) {
        for k in 0..batch.count() {
            let index = self.of(batch, at.index, k);
            let to = self.address(at, index, 16);
            let (x, flag) = (self.of(batch, x, k), self.of(batch, flag, k));
            let flag = self.wire_flag(at, flag);
            let (low, high) = (self.t.new_r(), self.t.new_r());
            self.t.line(format_args!("mov.b64 {{{low}, {high}}}, {x};"));
            let [low, high] = [low, high].map(|half| self.t.d("mov.b64", &[&format_args!("{{{half}, {flag}}}")]));
            let guard = self.bounded(inst, at, index, (16, 16), batch.guard(k));
            let guard = guard.map_or(String::new(), |guard| format!("@{guard} "));
            let to = to.reg;
            self.t.line(format_args!("{guard}st.relaxed.sys.global.v2.b64 [{to}], {{{low}, {high}}};"));
        }
    }

    /// Looks at packets once, all of them, so that the looks overlap.
    pub fn packet_looks(&mut self, batch: &mut Batch, inst: Inst, at: &Place) {
        let mut looks = Vec::new();
        for k in 0..batch.count() {
            let index = self.of(batch, at.index, k);
            let address = self.address(at, index, 16).reg;
            if let Some(inside) = self.bounded(inst, at, index, (16, 16), None) {
                self.t.line(format_args!("@!{inside} bra {};", batch.end));
            }
            let halves = [self.t.new_d(), self.t.new_d()];
            self.packet_look("", address, halves);
            looks.push(Look { index, address, halves });
        }
        batch.looks.insert(inst, looks);
    }

    /// What came in packets: those that nobody has waited for yet are looked at, and waited for.
    fn packet_get(&mut self, batch: &mut Batch, inst: Inst, at: &Place, flag: Value) {
        if !batch.looks.contains_key(&inst) {
            self.packet_looks(batch, inst, at);
            self.packets_wait(batch, &[Wanted { inst, at, flag }]);
        }
        let looks = batch.looks.remove(&inst).unwrap_or_default();
        let word = |look: Look| {
            let [low, high] = look.halves.map(|half| self.t.r("cvt.u32.u64", &[&half]));
            self.t.d("mov.b64", &[&format_args!("{{{low}, {high}}}")])
        };
        let out = looks.into_iter().map(word).collect();
        self.set(batch, inst, out);
    }

    /// A register as it is kept in memory between two parts of a body: predicates become words.
    pub fn kept(&mut self, x: Reg) -> Reg {
        byte_of(&mut self.t, x)
    }
}
