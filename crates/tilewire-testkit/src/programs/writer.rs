//! A builder with short names: kernels in tests read like the programs they are.

use tilewire::ir::{
    Access, Base, BinaryOp, Builder, CompareOp, GroupOp, Kernel, Mask, Op, Order, Param, ParamId, Place, RoleId, Scope,
    ScratchId, Slot, SourceLine, Special, Type, UnaryOp, Value, VarId,
};

/// A kernel under construction.
pub struct Writer {
    pub b: Builder,
}

#[track_caller]
pub fn here() -> SourceLine {
    SourceLine::caller()
}

impl Writer {
    pub fn new(name: &str, blocks: u32) -> Self {
        Writer { b: Builder::new(name, blocks) }
    }

    pub fn finish(self) -> Kernel {
        self.b.finish()
    }

    pub fn buffer(&mut self, name: &str, ty: Type, len: u64, access: Access) -> ParamId {
        let align = ty.size() as u32;
        self.b.param(Param::Buffer { name: name.into(), ty, len, banks: 1, access, align })
    }

    /// A region of bytes for put, get and packets.
    pub fn region(&mut self, name: &str, len: u64) -> ParamId {
        let (ty, access) = (Type::U8, Access::InOut);
        self.b.param(Param::Buffer { name: name.into(), ty, len, banks: 1, access, align: 16 })
    }

    pub fn slots(&mut self, name: &str, len: u64, stride: u32) -> ParamId {
        self.b.param(Param::Slots { name: name.into(), len, stride, banks: 1 })
    }

    pub fn scalar(&mut self, name: &str, ty: Type) -> ParamId {
        self.b.param(Param::Scalar { name: name.into(), ty })
    }

    #[track_caller]
    pub fn role(&mut self, name: &str, body: impl FnOnce(&mut Writer, RoleId)) {
        self.role_copies(name, 1, body);
    }

    #[track_caller]
    pub fn role_copies(&mut self, name: &str, copies: u32, body: impl FnOnce(&mut Writer, RoleId)) {
        let role = self.b.open_role(name, 1, copies, &here());
        body(self, role);
        self.b.close();
    }

    #[track_caller]
    pub fn op(&mut self, op: Op) -> Value {
        self.b.value(op, &here())
    }

    #[track_caller]
    pub fn run(&mut self, op: Op) {
        let result = self.b.push(op, &here());
        assert!(result.is_none(), "the op defines a value");
    }

    #[track_caller]
    pub fn bits(&mut self, ty: Type, bits: u64) -> Value {
        self.b.constant(ty, bits, &here())
    }

    #[track_caller]
    pub fn i64(&mut self, x: i64) -> Value {
        self.bits(Type::I64, x as u64)
    }

    #[track_caller]
    pub fn u64(&mut self, x: u64) -> Value {
        self.bits(Type::U64, x)
    }

    #[track_caller]
    pub fn f32(&mut self, x: f32) -> Value {
        self.bits(Type::F32, u64::from(x.to_bits()))
    }

    #[track_caller]
    pub fn special(&mut self, special: Special) -> Value {
        self.op(Op::Special(special))
    }

    #[track_caller]
    pub fn unary(&mut self, op: UnaryOp, x: Value) -> Value {
        self.op(Op::Unary { op, x })
    }

    #[track_caller]
    pub fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        self.op(Op::Binary { op, a, b })
    }

    #[track_caller]
    pub fn add(&mut self, a: Value, b: Value) -> Value {
        self.binary(BinaryOp::Add, a, b)
    }

    #[track_caller]
    pub fn mul(&mut self, a: Value, b: Value) -> Value {
        self.binary(BinaryOp::Mul, a, b)
    }

    /// `a * by + plus`, for indices.
    #[track_caller]
    pub fn scale(&mut self, a: Value, by: i64, plus: Value) -> Value {
        let by = self.i64(by);
        let product = self.mul(a, by);
        self.add(product, plus)
    }

    #[track_caller]
    pub fn compare(&mut self, op: CompareOp, a: Value, b: Value) -> Value {
        self.op(Op::Compare { op, a, b })
    }

    #[track_caller]
    pub fn cast(&mut self, x: Value, to: Type) -> Value {
        self.op(Op::Cast { x, to })
    }

    #[track_caller]
    pub fn group(&mut self, op: GroupOp, x: Value, size: u32) -> Value {
        self.op(Op::Group { op, x, size })
    }

    #[track_caller]
    pub fn load(&mut self, param: ParamId, index: Value) -> Value {
        self.op(Op::Load { at: at(param, index), mask: None })
    }

    #[track_caller]
    pub fn load_if(&mut self, param: ParamId, index: Value, cond: Value, other: Value) -> Value {
        self.op(Op::Load { at: at(param, index), mask: Some(Mask { cond, other }) })
    }

    #[track_caller]
    pub fn store(&mut self, param: ParamId, index: Value, x: Value) {
        self.run(Op::Store { at: at(param, index), x, mask: None });
    }

    #[track_caller]
    pub fn store_if(&mut self, param: ParamId, index: Value, x: Value, cond: Value) {
        self.run(Op::Store { at: at(param, index), x, mask: Some(cond) });
    }

    #[track_caller]
    pub fn load_scratch(&mut self, scratch: ScratchId, index: Value) -> Value {
        self.op(Op::Load { at: in_scratch(scratch, index), mask: None })
    }

    #[track_caller]
    pub fn store_scratch(&mut self, scratch: ScratchId, index: Value, x: Value) {
        self.run(Op::Store { at: in_scratch(scratch, index), x, mask: None });
    }

    #[track_caller]
    pub fn atomic_add(&mut self, param: ParamId, index: Value, x: Value, mask: Option<Value>) -> Value {
        self.op(Op::AtomicAdd { at: at(param, index), x, mask, order: Order::Relaxed, scope: Scope::System })
    }

    #[track_caller]
    pub fn put(&mut self, param: ParamId, byte: Value, x: Value) {
        self.run(Op::Put { at: at(param, byte), x, mask: None });
    }

    #[track_caller]
    pub fn get(&mut self, param: ParamId, byte: Value, to: Type) -> Value {
        self.op(Op::Get { at: at(param, byte), to, mask: None })
    }

    #[track_caller]
    pub fn signal(&mut self, slots: ParamId, index: Value, x: Value) {
        self.run(Op::Signal { slot: Slot { slots, bank: None, index }, x });
    }

    #[track_caller]
    pub fn credit(&mut self, slots: ParamId, index: Value, x: Value) {
        self.run(Op::SignalCredit { slot: Slot { slots, bank: None, index }, x });
    }

    #[track_caller]
    pub fn wait(&mut self, slots: ParamId, index: Value, x: Value) {
        self.run(Op::Wait { slot: Slot { slots, bank: None, index }, x });
    }

    #[track_caller]
    pub fn test(&mut self, slots: ParamId, index: Value, x: Value) -> Value {
        self.op(Op::Test { slot: Slot { slots, bank: None, index }, x })
    }

    #[track_caller]
    pub fn read(&mut self, var: VarId) -> Value {
        self.op(Op::ReadVar(var))
    }

    #[track_caller]
    pub fn write(&mut self, var: VarId, x: Value) {
        self.run(Op::WriteVar { var, x });
    }

    #[track_caller]
    pub fn each(&mut self, extent: Value, body: impl FnOnce(&mut Writer, Value)) {
        self.each_n(vec![extent], |c, i| body(c, i[0]));
    }

    #[track_caller]
    pub fn each2(&mut self, rows: Value, cols: Value, body: impl FnOnce(&mut Writer, Value, Value)) {
        self.each_n(vec![rows, cols], |c, i| body(c, i[0], i[1]));
    }

    #[track_caller]
    pub fn each_n(&mut self, extent: Vec<Value>, body: impl FnOnce(&mut Writer, &[Value])) {
        let region = self.b.open(true);
        self.loop_op(Op::Each { extent, body: region }, body);
    }

    #[track_caller]
    pub fn for_step(&mut self, start: Value, end: Value, step: Value, body: impl FnOnce(&mut Writer, Value)) {
        let region = self.b.open(false);
        self.loop_op(Op::For { start, end, step, body: region }, |c, i| body(c, i[0]));
    }

    /// Fills and closes the body's region, which is open, and then places the loop after the ops before it.
    #[track_caller]
    fn loop_op(&mut self, op: Op, body: impl FnOnce(&mut Writer, &[Value])) {
        let (inst, indices) = self.b.loop_head(op, &here());
        body(self, &indices);
        self.b.close();
        self.b.place(inst);
    }

    #[track_caller]
    pub fn if_else(&mut self, cond: Value, then: impl FnOnce(&mut Writer), otherwise: impl FnOnce(&mut Writer)) {
        let first = self.b.open(false);
        then(self);
        self.b.close();
        let second = self.b.open(false);
        otherwise(self);
        self.b.close();
        self.run(Op::If { cond, then: first, otherwise: second });
    }

    #[track_caller]
    pub fn while_loop(&mut self, head: impl FnOnce(&mut Writer) -> Value, body: impl FnOnce(&mut Writer)) {
        let first = self.b.open(false);
        let cond = head(self);
        self.b.close();
        let second = self.b.open(false);
        body(self);
        self.b.close();
        self.run(Op::While { head: first, cond, body: second });
    }
}

pub fn at(param: ParamId, index: Value) -> Place {
    Place { base: Base::Param(param), bank: None, index }
}

pub fn in_scratch(scratch: ScratchId, index: Value) -> Place {
    Place { base: Base::Scratch(scratch), bank: None, index }
}
