//! IR → bytecode, for one kernel with its arguments known.
//!
//! Lowering happens when a kernel is prepared, so it knows which arguments share memory. That decides which loads can
//! become pointers into a tensor, and which results can be written straight to their destination. `mod.rs` lowers
//! uniform code and control flow, `each.rs` plans an `each` (strips, fusion, binding), `strip.rs` emits its lane ops,
//! and `fuse.rs` finally joins neighbouring instructions.

mod each;
mod fuse;
mod lanes;
mod strip;

use super::code::{Access, Code, Input, Opcode, Poll, PostRef, RequireRef, RoleCode, SlotRef};
use super::error::PrepareError;
use crate::ir::{
    Base, BinaryOp, Def, Entity, Inst, Kernel, Notice, NoticeKind, Op, Param, ParamId, Place, PostSpan, QuickMap,
    Region, RequiredSpan, RoleId, Shape, Slot, Special, Type, Uniform, Value, ring,
};
use crate::tensor::{Arg, Memory};

/// Lowers every role of a verified kernel, for one rank. `stream_from` is the number of bytes from which an `each`
/// stores around the cache.
pub(crate) fn lower(
    kernel: &Kernel,
    args: &[Arg],
    rank: u32,
    stream_from: usize,
) -> Result<Vec<RoleCode>, PrepareError> {
    kernel.roles.keys().map(|role| RoleLowering::new(kernel, args, rank, role, stream_from).lower()).collect()
}

/// The first entry of each parameter in the machine's base addresses, and the number of entries.
pub(crate) fn entries(args: &[Arg]) -> (Vec<u16>, usize) {
    let mut next = 0usize;
    let first = args
        .iter()
        .map(|arg| {
            let first = next;
            next += memories(arg).len();
            first as u16
        })
        .collect();
    (first, next)
}

/// The memories of an argument, one per entry.
pub(crate) fn memories(arg: &Arg) -> &[Memory] {
    match arg {
        Arg::Buffer(banks) | Arg::Slots(banks) => banks,
        Arg::Scalar(memory) => std::slice::from_ref(memory),
        Arg::Queue(queue) => &queue.memories,
    }
}

/// The state of lowering one role.
struct RoleLowering<'k> {
    kernel: &'k Kernel,
    args: &'k [Arg],
    role: RoleId,
    stream_from: usize,
    /// First entry of each parameter.
    first: Vec<u16>,
    code: RoleCode,
    /// Register of each uniform value that has one.
    registers: QuickMap<Value, u16>,
    constants: QuickMap<u64, u16>,
    specials: QuickMap<Special, u16>,
    scalars: QuickMap<ParamId, u16>,
    variables: QuickMap<crate::ir::VarId, u16>,
    scratch_entries: QuickMap<crate::ir::ScratchId, u16>,
    /// Products folded into the one sum that uses them, with their factors.
    fused: QuickMap<Value, (Value, Value)>,
}

impl<'k> RoleLowering<'k> {
    fn new(kernel: &'k Kernel, args: &'k [Arg], rank: u32, role: RoleId, stream_from: usize) -> Self {
        let (first, entries) = entries(args);
        let banks = kernel.params.keys().zip(args).flat_map(|(p, arg)| (0..memories(arg).len()).map(move |k| (p, k)));
        let purposes = banks.map(|(param, bank)| kernel.purpose(param, bank)).collect();
        let name = kernel.roles[role].name.clone();
        let mut code = RoleCode { name, rank, purposes, ..RoleCode::default() };
        let mut scratch_entries = QuickMap::default();
        for (id, scratch) in kernel.scratches.iter().filter(|(_, s)| s.role == role) {
            let entry = (entries + scratch_entries.len()) as u16;
            code.scratch.push((entry, code.scratch_bytes));
            let bytes = scratch.len as usize * scratch.ty.size();
            code.scratch_bytes += bytes.next_multiple_of(crate::ir::access::SCRATCH_ALIGN as usize);
            scratch_entries.insert(id, entry);
        }
        RoleLowering {
            kernel,
            args,
            role,
            stream_from,
            first,
            code,
            registers: QuickMap::default(),
            constants: QuickMap::default(),
            specials: QuickMap::default(),
            scalars: QuickMap::default(),
            variables: QuickMap::default(),
            scratch_entries,
            fused: QuickMap::default(),
        }
    }

    fn lower(mut self) -> Result<RoleCode, PrepareError> {
        let body = self.kernel.roles[self.role].body;
        self.fuse_products(body);
        self.region(body)?;
        self.emit(Opcode::End, [0; 4], 0);
        fuse::fuse(&mut self.code);
        let limit = u16::MAX as usize;
        let (registers, lanes) = (self.code.registers.len(), self.code.lanes.len());
        if registers >= limit || lanes >= limit || self.code.code.len() >= i32::MAX as usize {
            return Err(PrepareError::TooLarge { role: self.code.name, registers, lanes, limit });
        }
        Ok(self.code)
    }

    /// Finds i64 products whose only use is one uniform sum: base + slot * stride becomes one instruction.
    fn fuse_products(&mut self, body: Region) {
        let kernel = self.kernel;
        let mut uses: QuickMap<Value, u32> = QuickMap::default();
        kernel.walk(body, &mut |inst| {
            kernel.insts[inst].op.for_each_operand(|v| *uses.entry(v).or_default() += 1);
        });
        let product = |v: Value| match kernel.def(v) {
            Some(Op::Binary { op: BinaryOp::Mul, a, b })
                if uses[&v] == 1 && kernel.ty(v) == Type::I64 && kernel.shape(v) == Shape::Uniform =>
            {
                Some((*a, *b))
            }
            _ => None,
        };
        let mut fused = QuickMap::default();
        kernel.walk(body, &mut |inst| {
            let data = &kernel.insts[inst];
            let Op::Binary { op: BinaryOp::Add, a, b } = data.op else { return };
            if data.result.is_none_or(|r| kernel.shape(r) == Shape::Lane) || kernel.ty(a) != Type::I64 {
                return;
            }
            if let Some(factors) = product(a) {
                fused.insert(a, factors);
            } else if let Some(factors) = product(b) {
                fused.insert(b, factors);
            }
        });
        self.fused = fused;
    }

    fn region(&mut self, region: Region) -> Result<(), PrepareError> {
        for &inst in &self.kernel.regions[region] {
            self.inst(inst)?;
        }
        Ok(())
    }

    /// Lowers an instruction outside any `each`, or a uniform one inside.
    fn inst(&mut self, inst: Inst) -> Result<(), PrepareError> {
        let kernel = self.kernel;
        let data = &kernel.insts[inst];
        let dst = |this: &mut Self| this.define(data.result.expect("the op defines a value"));
        match &data.op {
            // Constants, specials and scalars are in their registers before the role starts.
            Op::Const(_) | Op::Special(_) | Op::Scalar(_) => {}
            Op::Unary { op, x } => {
                let x_reg = self.reg(*x);
                let dst = dst(self);
                self.emit(Opcode::UUnary(*op, kernel.ty(*x)), [dst, x_reg, 0, 0], 0);
            }
            Op::Binary { op, a, b } => self.binary(*op, *a, *b, data.result.expect("a binary op defines a value")),
            Op::Compare { op, a, b } => {
                let (a_reg, b_reg) = (self.reg(*a), self.reg(*b));
                let dst = dst(self);
                self.emit(Opcode::UCompare(*op, kernel.ty(*a)), [dst, a_reg, b_reg, 0], 0);
            }
            Op::Select { cond, a, b } => {
                let (cond, a, b) = (self.reg(*cond), self.reg(*a), self.reg(*b));
                let dst = dst(self);
                self.emit(Opcode::USelect, [dst, cond, a, b], 0);
            }
            Op::Fma { a, b, c } => {
                let ty = kernel.ty(*a);
                let (a, b, c) = (self.reg(*a), self.reg(*b), self.reg(*c));
                let dst = dst(self);
                self.emit(Opcode::UFma(ty), [dst, a, b, c], 0);
            }
            // Registers hold raw bits, so the result is the same register under another type.
            Op::Cast { x, to } if kernel.ty(*x).is_int() && to.is_int() && kernel.ty(*x).size() == to.size() => {
                let x_reg = self.reg(*x);
                self.registers.insert(data.result.expect("a cast defines a value"), x_reg);
            }
            Op::Cast { x, to } => {
                let x_reg = self.reg(*x);
                let dst = dst(self);
                self.emit(Opcode::UCast(kernel.ty(*x), *to), [dst, x_reg, 0, 0], 0);
            }
            Op::Bitcast { x, .. } => {
                let x_reg = self.reg(*x);
                self.registers.insert(data.result.expect("a bit cast defines a value"), x_reg);
            }
            Op::ReadVar(var) => {
                let var = self.variable(*var);
                let dst = dst(self);
                self.emit(Opcode::UMove, [dst, var, 0, 0], 0);
            }
            Op::WriteVar { var, x } => {
                let (var, x) = (self.variable(*var), self.reg(*x));
                self.emit(Opcode::UMove, [var, x, 0, 0], 0);
            }
            Op::Load { at, mask } => self.uniform_load(inst, at, kernel.base_type(at.base), mask),
            Op::Get { at, to, mask } => self.uniform_load(inst, at, Some(*to), mask),
            Op::Store { at, x, mask: None } | Op::Put { at, x, mask: None }
                if self.known_word(at, kernel.ty(*x)).is_some() =>
            {
                let (entry, offset) = self.known_word(at, kernel.ty(*x)).expect("just asked");
                let x = self.reg(*x);
                self.emit(Opcode::UStoreWord, [x, entry, 0, 0], offset);
            }
            Op::Store { at, x, mask } | Op::Put { at, x, mask } => {
                let ty = kernel.ty(*x);
                let access = self.uniform_access(inst, at, ty.size() as u32);
                let (x, mask_reg) = (self.reg(*x), mask.map_or(0, |m| self.reg(m)));
                self.emit(Opcode::UStore(ty), [x, mask_reg, 0, mask.is_some() as u16], access);
            }
            Op::AtomicAdd { at, x, mask, .. } => {
                let ty = kernel.ty(*x);
                let access = self.uniform_access(inst, at, ty.size() as u32);
                let (x, mask_reg) = (self.reg(*x), mask.map_or(0, |m| self.reg(m)));
                let dst = dst(self);
                self.emit(Opcode::UAtomicAdd(ty), [dst, x, mask_reg, mask.is_some() as u16], access);
            }
            Op::Signal { slot, x } => {
                let (slot, x) = (self.slot(inst, slot, "signal"), self.reg(*x));
                self.emit(Opcode::Signal, [x, 0, 0, 0], slot);
            }
            Op::SignalCredit { slot, x } => {
                let (slot, x) = (self.slot(inst, slot, "signal_credit"), self.reg(*x));
                self.emit(Opcode::Signal, [x, 0, 0, 0], slot);
            }
            Op::Wait { slot, x } => {
                let (slot, x) = (self.slot(inst, slot, "wait"), self.reg(*x));
                self.emit(Opcode::Wait, [x, 0, 0, 0], slot);
            }
            Op::Test { slot, x } => {
                let (slot, x) = (self.slot(inst, slot, "test"), self.reg(*x));
                let dst = dst(self);
                self.emit(Opcode::Test, [dst, x, 0, 0], slot);
            }
            Op::BulkCopy { dst, src, count } => {
                let size = kernel.base_type(src.base).map_or(1, Type::size) as u32;
                let access = self.uniform_access(inst, src, size);
                let second = self.uniform_access(inst, dst, size);
                debug_assert_eq!(second, access + 1);
                let count = self.reg(*count);
                self.emit(Opcode::Bulk, [count, 0, 0, 0], access);
            }
            // One thread runs the whole role, so its accesses are in order and its bulk copies are already complete.
            Op::BulkWait { .. } | Op::ProxyFence | Op::Barrier => {}
            Op::Post { queue, peer, span, notice } => self.post(inst, *queue, *peer, span.as_ref(), notice.as_ref()),
            Op::Require { cond, span } => {
                let span = span
                    .map(|RequiredSpan { rank, offset, bytes, size }| [rank, offset, bytes, size].map(|v| self.reg(v)));
                let cond = self.reg(*cond);
                self.code.requires.push(RequireRef { span, at: kernel.line(inst).clone() });
                self.emit(Opcode::Require, [cond, 0, 0, 0], self.code.requires.len() as i32 - 1);
            }
            Op::If { cond, then, otherwise } => {
                let cond = self.reg(*cond);
                let to_else = self.emit(Opcode::JumpUnless, [cond, 0, 0, 0], 0);
                self.region(*then)?;
                if self.kernel.regions[*otherwise].is_empty() {
                    self.land(to_else);
                } else {
                    let to_end = self.emit(Opcode::Jump, [0; 4], 0);
                    self.land(to_else);
                    self.region(*otherwise)?;
                    self.land(to_end);
                }
            }
            Op::For { start, end, step, body } => {
                let (start, end, step) = (self.reg(*start), self.reg(*end), self.reg(*step));
                let index = self.define(data.indices[0]);
                let begin = self.emit(Opcode::ForBegin, [index, start, end, step], 0);
                self.region(*body)?;
                let next = self.emit(Opcode::ForNext, [index, step, end, 0], 0);
                self.code.code[next].e = begin as i32 + 1 - next as i32;
                self.land(begin);
            }
            Op::While { head, cond, body } => {
                let top = self.code.code.len();
                self.region(*head)?;
                let cond = self.reg(*cond);
                let out = self.emit(Opcode::JumpUnless, [cond, 0, 0, 0], 0);
                self.region(*body)?;
                let back = match self.poll(inst) {
                    Some(poll) => self.emit(Opcode::Again, [poll, 0, 0, 0], 0),
                    None => self.emit(Opcode::Jump, [0; 4], 0),
                };
                self.code.code[back].e = top as i32 - back as i32;
                self.land(out);
            }
            Op::Each { extent, body } => self.each(inst, extent, *body)?,
            Op::Group { .. } | Op::PacketPut { .. } | Op::PacketGet { .. } => {
                unreachable!("the IR verifier keeps {:?} inside an each", data.op)
            }
        }
        Ok(())
    }

    /// Registers a loop that may poll (it reads memory that others write) and returns its number. A loop with a test or
    /// a wait needs none: these let other machines run by themselves, and their deadline applies.
    fn poll(&mut self, inst: Inst) -> Option<u16> {
        let kernel = self.kernel;
        let Op::While { head, body, .. } = kernel.insts[inst].op else { return None };
        let (mut polls, mut waits) = (false, false);
        let mut look = |inst: Inst| match &kernel.insts[inst].op {
            Op::AtomicAdd { .. } | Op::Get { .. } => polls = true,
            Op::Load { at, .. } => {
                polls |= matches!(at.base, Base::Param(param) if matches!(
                    kernel.params[param],
                    Param::Buffer { access: crate::ir::Access::InOut, .. }
                ));
            }
            Op::Test { .. } | Op::Wait { .. } => waits = true,
            _ => {}
        };
        kernel.walk(head, &mut look);
        kernel.walk(body, &mut look);
        if !polls || waits || self.code.polls.len() >= usize::from(u16::MAX) {
            return None;
        }
        self.code.polls.push(Poll { at: kernel.line(inst).clone() });
        Some(self.code.polls.len() as u16 - 1)
    }

    fn binary(&mut self, op: BinaryOp, a: Value, b: Value, result: Value) {
        if self.fused.contains_key(&result) {
            return; // the sum that uses it computes it
        }
        if op == BinaryOp::Add && self.kernel.ty(a) == Type::I64 {
            let factors = self.fused.get(&a).map(|f| (*f, b)).or_else(|| self.fused.get(&b).map(|f| (*f, a)));
            if let Some(((x, y), addend)) = factors {
                let (x, y, addend) = (self.reg(x), self.reg(y), self.reg(addend));
                let dst = self.define(result);
                self.emit(Opcode::UFma(Type::I64), [dst, x, y, addend], 0);
                return;
            }
        }
        let (a_reg, b_reg) = (self.reg(a), self.reg(b));
        let dst = self.define(result);
        self.emit(Opcode::UBinary(op, self.kernel.ty(a)), [dst, a_reg, b_reg, 0], 0);
    }

    fn uniform_load(&mut self, inst: Inst, at: &Place, ty: Option<Type>, mask: &Option<crate::ir::Mask>) {
        let ty = ty.expect("the IR verifier checked the base");
        if let (None, Some((entry, offset))) = (mask, self.known_word(at, ty)) {
            let dst = self.define(self.kernel.insts[inst].result.expect("a load defines a value"));
            self.emit(Opcode::ULoadWord, [dst, entry, 0, 0], offset);
            return;
        }
        let access = self.uniform_access(inst, at, ty.size() as u32);
        let (cond, other) = mask.map_or((0, 0), |m| (self.reg(m.cond), self.reg(m.other)));
        let dst = self.define(self.kernel.insts[inst].result.expect("a load defines a value"));
        self.emit(Opcode::ULoad(ty), [dst, cond, other, mask.is_some() as u16], access);
    }

    /// Entry and byte offset of an 8-byte element whose place is already known and in bounds, so that accessing it
    /// needs no check.
    fn known_word(&self, at: &Place, ty: Type) -> Option<(u16, i32)> {
        let (Base::Param(param), None) = (at.base, at.bank) else { return None };
        let index = self.kernel.as_const(at.index)?.bits as i64;
        let offset = index.checked_mul(self.kernel.base_type(at.base)?.size() as i64)?;
        let bytes = memories(&self.args[param.index()]).first()?.bytes() as i64;
        let Param::Buffer { len, ty: element, .. } = &self.kernel.params[param] else { return None };
        // The size that the kernel states, which may be less than the memory has.
        let bytes = bytes.min(i64::try_from(*len).ok()?.checked_mul(element.size() as i64)?);
        let fits = ty.size() == 8 && offset >= 0 && offset % 8 == 0 && offset.checked_add(8)? <= bytes;
        fits.then_some((self.first[param.index()], i32::try_from(offset).ok()?))
    }

    fn post(&mut self, inst: Inst, param: ParamId, peer: Value, span: Option<&PostSpan>, notice: Option<&Notice>) {
        let Arg::Queue(bound) = &self.args[param.index()] else { unreachable!("the launch checked the ring") };
        let capacity = bound.capacity().expect("the launch checked the ring");
        let parts = notice.map(|notice| (notice.parts, notice.kind));
        let head = ring::head(bound.target(), span.is_some(), parts);
        let operation = self.operations(param).map(|of| of[0]);
        let peer = self.reg(peer);
        let span = span.map(|PostSpan { src, dst, bytes }| {
            (self.uniform_access(inst, src, 1) as u32, self.reg(*dst), self.reg(*bytes))
        });
        let notice = notice.map(|&Notice { slot, x, kind, .. }| {
            (self.reg(slot), self.reg(x), operation.filter(|_| kind == NoticeKind::Data))
        });
        let (queue, at) = (self.first[param.index()], self.kernel.line(inst).clone());
        self.code.posts.push(PostRef { queue, capacity, head, peer, span, notice, at });
        self.emit(Opcode::Post, [0; 4], self.code.posts.len() as i32 - 1);
    }

    fn slot(&mut self, inst: Inst, slot: &Slot, op: &'static str) -> i32 {
        let Param::Slots { len, stride, banks, .. } = &self.kernel.params[slot.slots] else {
            unreachable!("the IR verifier checked the slots")
        };
        let bank = slot.bank.map(|bank| self.reg(bank));
        let index = self.reg(slot.index);
        self.code.slots.push(SlotRef {
            first: self.first[slot.slots.index()],
            banks: *banks,
            bank,
            len: *len,
            stride: *stride,
            index,
            operations: self.operations(slot.slots),
            name: self.kernel.name_for(slot.slots, self.code.rank),
            op,
            at: self.kernel.line(inst).clone(),
        });
        self.code.slots.len() as i32 - 1
    }

    /// The operation number of every bank of a parameter, if its words or flags carry one.
    fn operations(&self, param: ParamId) -> Option<Box<[u16]>> {
        let of = |memory: &Memory| memory.operation().unwrap_or(0);
        self.kernel.is_matched(param).then(|| memories(&self.args[param.index()]).iter().map(of).collect())
    }

    /// An access at a uniform index.
    fn uniform_access(&mut self, inst: Inst, at: &Place, width: u32) -> i32 {
        let unit = self.kernel.base_type(at.base).map_or(1, Type::size) as u32;
        let base = self.reg(at.index);
        self.access(inst, at, unit, width, base, [0, 0], None)
    }

    /// Adds an access; strides and group stride are registers. A uniform access is outside any `each` and reads none of
    /// them.
    #[allow(clippy::too_many_arguments)]
    fn access(
        &mut self,
        inst: Inst,
        at: &Place,
        unit: u32,
        width: u32,
        base: u16,
        strides: [u16; 2],
        group: Option<(u32, u16)>,
    ) -> i32 {
        let (first, banks, bytes, name, operations) = match at.base {
            Base::Param(p) => {
                let Param::Buffer { ty, len, banks, .. } = &self.kernel.params[p] else {
                    unreachable!("the IR verifier checked the base")
                };
                let (name, operations) = (self.kernel.name_for(p, self.code.rank), self.operations(p));
                (self.first[p.index()], *banks, *len * ty.size() as u64, name, operations)
            }
            Base::Scratch(s) => {
                let scratch = &self.kernel.scratches[s];
                (self.scratch_entries[&s], 1, scratch.len * scratch.ty.size() as u64, format!("scratch {s}"), None)
            }
        };
        let bank = at.bank.map(|bank| self.reg(bank));
        let at = self.kernel.line(inst).clone();
        let [row_stride, col_stride] = strides;
        let (group, group_stride) = group.unwrap_or_default();
        self.code.accesses.push(Access {
            first,
            banks,
            bank,
            bytes,
            unit,
            width,
            base,
            row_stride,
            col_stride,
            group,
            group_stride,
            operations,
            name,
            at,
        });
        self.code.accesses.len() as i32 - 1
    }

    /// The register of a uniform value.
    fn reg(&mut self, v: Value) -> u16 {
        if let Some(&reg) = self.registers.get(&v) {
            return reg;
        }
        let Def::Result(inst) = self.kernel.values[v].def else {
            unreachable!("loop indices are defined by their loop")
        };
        let reg = match &self.kernel.insts[inst].op {
            Op::Const(c) => self.constant(c.bits),
            Op::Special(special) => self.input(|this| &mut this.specials, *special, Input::Special(*special)),
            Op::Scalar(p) => {
                let Param::Scalar { ty, .. } = self.kernel.params[*p] else {
                    unreachable!("the IR verifier checked the scalar")
                };
                let entry = self.first[p.index()];
                self.input(|this| &mut this.scalars, *p, Input::Scalar(entry, ty))
            }
            // Not reached for a fused product: its only use, the sum, reads the factors instead.
            op => unreachable!("{v} = {op:?} is used before it is defined"),
        };
        self.registers.insert(v, reg);
        reg
    }

    fn input<K: std::hash::Hash + Eq>(
        &mut self,
        table: impl Fn(&mut Self) -> &mut QuickMap<K, u16>,
        key: K,
        input: Input,
    ) -> u16 {
        if let Some(&reg) = table(self).get(&key) {
            return reg;
        }
        let reg = self.new_register(0);
        self.code.inputs.push((reg, input));
        table(self).insert(key, reg);
        reg
    }

    /// A register that holds a constant from the start.
    fn constant(&mut self, bits: u64) -> u16 {
        if let Some(&reg) = self.constants.get(&bits) {
            return reg;
        }
        let reg = self.new_register(bits);
        self.constants.insert(bits, reg);
        reg
    }

    fn variable(&mut self, var: crate::ir::VarId) -> u16 {
        if let Some(&reg) = self.variables.get(&var) {
            return reg;
        }
        let reg = self.new_register(0);
        self.variables.insert(var, reg);
        reg
    }

    fn define(&mut self, v: Value) -> u16 {
        let reg = self.new_register(0);
        self.registers.insert(v, reg);
        reg
    }

    fn new_register(&mut self, bits: u64) -> u16 {
        self.code.registers.push(bits);
        // Saturates; `lower` reports a role with too many.
        (self.code.registers.len() - 1).min(u16::MAX as usize) as u16
    }

    /// A register with the value of a uniform expression, computed here.
    fn uniform(&mut self, x: &Uniform) -> u16 {
        match x {
            Uniform::Const(n) => self.constant(*n as u64),
            Uniform::Value(v) => self.reg(*v),
            Uniform::Add(a, b) => match (&**a, &**b) {
                (Uniform::Mul(x, y), z) | (z, Uniform::Mul(x, y)) => {
                    let (x, y, z) = (self.uniform(x), self.uniform(y), self.uniform(z));
                    let dst = self.new_register(0);
                    self.emit(Opcode::UFma(Type::I64), [dst, x, y, z], 0);
                    dst
                }
                _ => self.uniform_binary(BinaryOp::Add, a, b),
            },
            Uniform::Mul(a, b) => self.uniform_binary(BinaryOp::Mul, a, b),
            Uniform::Div(a, by) => self.uniform_binary(BinaryOp::Div, a, &Uniform::Const(i64::from(*by))),
        }
    }

    fn uniform_binary(&mut self, op: BinaryOp, a: &Uniform, b: &Uniform) -> u16 {
        let (a, b) = (self.uniform(a), self.uniform(b));
        let dst = self.new_register(0);
        self.emit(Opcode::UBinary(op, Type::I64), [dst, a, b, 0], 0);
        dst
    }

    fn emit(&mut self, op: Opcode, [a, b, c, d]: [u16; 4], e: i32) -> usize {
        self.code.code.push(Code { op, a, b, c, d, e });
        self.code.code.len() - 1
    }

    /// Makes the jump at `from` go to the next instruction.
    fn land(&mut self, from: usize) {
        self.code.code[from].e = self.code.code.len() as i32 - from as i32;
    }

    /// Whether two bases may share a byte.
    fn may_overlap(&self, a: Base, b: Base) -> bool {
        match (a, b) {
            (Base::Param(p), Base::Param(q)) => {
                p == q || {
                    let (p, q) = (memories(&self.args[p.index()]), memories(&self.args[q.index()]));
                    p.iter().any(|x| q.iter().any(|y| x.overlaps(y)))
                }
            }
            _ => a == b,
        }
    }

    /// Whether two bases start at the same byte (and have one bank each).
    fn same_start(&self, a: Base, b: Base) -> bool {
        match (a, b) {
            (Base::Param(p), Base::Param(q)) => {
                let (p, q) = (memories(&self.args[p.index()]), memories(&self.args[q.index()]));
                p.len() == 1 && q.len() == 1 && p[0].start() == q[0].start()
            }
            _ => a == b,
        }
    }
}
