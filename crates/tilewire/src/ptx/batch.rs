//! The ops of an `each` body for a batch of elements: one or more vectors of neighbours on the innermost axis.
//!
//! Ops are emitted one after the other, each for all elements of the batch, in the evaluator's order. So all loads of
//! one op are in flight before the first is used. Neighbours that share a value, by the access analysis, share its
//! register.

use super::moving::Moving;
use super::narrow::{words_from_f32, words_to_f32};
use super::number;
use super::place::{Address, byte_of, unpack};
use super::role::{RoleCode, pure};
use super::text::{Label, Reg};
use crate::ir::access::{Analysis, Class, Granularity, MemoryAccess};
use crate::ir::{GroupOp, Inst, Kernel, Mask, Op, Order, Place, Scope, Shape, Type, UnaryOp, Value};
use std::collections::HashMap;

/// An `each` body with its analysis and the widths of its accesses.
pub(super) struct Body<'k> {
    pub insts: &'k [Inst],
    pub analysis: Analysis<'k>,
    pub accesses: Vec<MemoryAccess>,
    /// Estimated instructions per element.
    pub weight: u32,
    /// True if it puts or gets packets: messages so small that every instruction before the first one counts.
    pub packets: bool,
    /// Neighbours in a vector.
    pub width: usize,
    /// Bytes per instruction, for contiguous accesses.
    pub wide: HashMap<Inst, u32>,
}

/// Elements processed together: `groups` vectors of `width` neighbours, numbered vector by vector.
pub(super) struct Batch {
    pub width: usize,
    pub groups: usize,
    /// If not empty, one per vector: effects happen only where it holds.
    pub guards: Vec<Reg>,
    pub lanes: HashMap<Value, Vec<Reg>>,
    /// Elements of 1 and 2 bytes as words of several neighbours, as they were loaded or converted. [`RoleCode::spread`]
    /// gives each element its own register.
    pub words: HashMap<Value, Vec<Reg>>,
    /// Numbers that are still such words; spread on first use.
    pub packed: HashMap<Value, Packed>,
    /// Addresses that are known without computing them.
    pub places: Moving,
    /// Packets that were polled already.
    pub polled: HashMap<Inst, Vec<PolledPacket>>,
    /// If each of a few lanes has one vector in every equal part of a run of elements: the length of that run.
    /// Otherwise 0.
    pub span: usize,
    /// Jump target of a lane that gives up.
    pub end: Label,
}

/// A packet that was polled once.
#[derive(Clone, Copy)]
pub(super) struct PolledPacket {
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

/// f32 values that are still 16-bit floats, or the magnitudes of those.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    /// The value whose elements lie in words.
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

    /// True if groups of `size` elements have a part in every vector of the lanes that share them.
    pub fn spans(&self, size: u32) -> bool {
        self.span > 0 && (size as usize).is_multiple_of(self.span)
    }

    /// The address of element `k`, if known.
    fn place(&self, inst: Inst, k: usize) -> Option<Address> {
        if k.is_multiple_of(self.width) { self.places.of(inst, k / self.width) } else { None }
    }
}

impl Body<'_> {
    /// True if the neighbours of a vector share a value.
    pub fn shares(&self, v: Value) -> bool {
        match self.analysis.granularity(v) {
            Granularity::Uniform | Granularity::Row => true,
            Granularity::Group(size) => (size as usize).is_multiple_of(self.width),
            Granularity::Lane => false,
        }
    }

    /// The element before `k` of a batch that has the same value, if known.
    fn twin(&self, batch: &Batch, v: Value, k: usize) -> Option<usize> {
        if !k.is_multiple_of(batch.width) {
            return self.shares(v).then(|| k - 1);
        }
        match self.analysis.granularity(v) {
            Granularity::Group(size) if k > 0 && batch.spans(size) => Some(k - batch.width),
            _ => None,
        }
    }

    /// Chooses the bytes per instruction of every contiguous access for vectors of `width`.
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

/// Size of the elements, if neighbours access them contiguously and without a mask.
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
    /// One op, for every element of the batch.
    pub fn batch_op(&mut self, body: &Body<'_>, batch: &mut Batch, inst: Inst) {
        let kernel = self.kernel;
        let data = &kernel.insts[inst];
        if data.result.is_some_and(|v| kernel.shape(v) == Shape::Uniform) {
            return self.uniform_value(inst);
        }
        if data.result.is_some_and(|v| batch.lanes.contains_key(&v)) {
            return;
        }
        if self.through_registers(batch, inst) || self.in_words(body, batch, inst) {
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

    /// Handles an op that moves or converts small elements as whole words. Returns false if it is not such an op.
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

    /// Emits an access of whole vectors: `access` gets the address and the guard of each.
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

    /// The register of a value for element `k`.
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
        // If only the first element of a group stores, only the first of a vector can: groups begin where vectors do.
        let leader = mask.and_then(|mask| body.analysis.group_leader(mask));
        let firsts = leader.is_some_and(|size| (size as usize).is_multiple_of(batch.width));
        // Nor can the first element of a group's later part.
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

    /// The guard of an effect on element `k`.
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

    /// Polls all these packets once, so that the loads overlap.
    pub fn poll_packets(&mut self, batch: &mut Batch, inst: Inst, at: &Place) {
        let mut polled = Vec::new();
        for k in 0..batch.count() {
            let index = self.of(batch, at.index, k);
            let address = self.address(at, index, 16).reg;
            if let Some(inside) = self.bounded(inst, at, index, (16, 16), None) {
                self.t.line(format_args!("@!{inside} bra {};", batch.end));
            }
            let halves = [self.t.new_d(), self.t.new_d()];
            self.poll_packet("", address, halves);
            polled.push(PolledPacket { index, address, halves });
        }
        batch.polled.insert(inst, polled);
    }

    /// The contents of packets; polls and waits for those that have not been waited for yet.
    fn packet_get(&mut self, batch: &mut Batch, inst: Inst, at: &Place, flag: Value) {
        if !batch.polled.contains_key(&inst) {
            self.poll_packets(batch, inst, at);
            self.packets_wait(batch, &[Wanted { inst, at, flag }]);
        }
        let polled = batch.polled.remove(&inst).unwrap_or_default();
        let word = |packet: PolledPacket| {
            let [low, high] = packet.halves.map(|half| self.t.r("cvt.u32.u64", &[&half]));
            self.t.d("mov.b64", &[&format_args!("{{{low}, {high}}}")])
        };
        let out = polled.into_iter().map(word).collect();
        self.set(batch, inst, out);
    }

    /// A register in the form it has in memory between two parts of a body: predicates become words.
    pub fn kept(&mut self, x: Reg) -> Reg {
        byte_of(&mut self.t, x)
    }
}
