//! A short way to write kernels by hand. Every method records the line of its caller.

use tilewire::ir::{
    Access, Base, Builder, Inst, Kernel, Op, Param, ParamId, Place, Region, RoleId, Slot, SourceLine, Type, Value,
};

/// A kernel under construction.
pub struct Code {
    pub builder: Builder,
}

impl Code {
    pub fn new(name: &str) -> Self {
        Code { builder: Builder::new(name, 1) }
    }

    pub fn finish(self) -> Kernel {
        self.builder.finish()
    }

    pub fn buffer(&mut self, name: &str, access: Access, ty: Type, len: u64) -> ParamId {
        self.banked(name, access, ty, len, 1)
    }

    pub fn banked(&mut self, name: &str, access: Access, ty: Type, len: u64, banks: u32) -> ParamId {
        self.builder.param(Param::Buffer { name: name.into(), ty, len, banks, access, align: 64 })
    }

    pub fn scalar(&mut self, name: &str, ty: Type) -> ParamId {
        self.builder.param(Param::Scalar { name: name.into(), ty })
    }

    pub fn slots(&mut self, name: &str, len: u64, banks: u32) -> ParamId {
        self.builder.param(Param::Slots { name: name.into(), len, stride: 128, banks })
    }

    pub fn queue(&mut self, name: &str) -> ParamId {
        self.builder.param(Param::Queue { name: name.into() })
    }

    #[track_caller]
    pub fn role(&mut self, name: &str, warps: u32, copies: u32, body: impl FnOnce(&mut Self, RoleId)) {
        let role = self.builder.open_role(name, warps, copies, &SourceLine::caller());
        body(self, role);
        self.builder.close();
    }

    #[track_caller]
    pub fn value(&mut self, op: Op) -> Value {
        self.builder.value(op, &SourceLine::caller())
    }

    #[track_caller]
    pub fn run(&mut self, op: Op) {
        self.builder.push(op, &SourceLine::caller());
    }

    #[track_caller]
    pub fn constant(&mut self, ty: Type, bits: u64) -> Value {
        self.builder.constant(ty, bits, &SourceLine::caller())
    }

    #[track_caller]
    pub fn int(&mut self, x: i64) -> Value {
        self.constant(Type::I64, x as u64)
    }

    #[track_caller]
    pub fn f32(&mut self, x: f32) -> Value {
        self.constant(Type::F32, x.to_bits().into())
    }

    #[track_caller]
    pub fn each<R>(&mut self, extent: &[Value], body: impl FnOnce(&mut Self, &[Value]) -> R) -> Inst {
        let region = self.builder.open(true);
        self.looped(Op::Each { extent: extent.to_vec(), body: region }, SourceLine::caller(), body)
    }

    #[track_caller]
    pub fn for_<R>(&mut self, [start, end, step]: [Value; 3], body: impl FnOnce(&mut Self, &[Value]) -> R) -> Inst {
        let region = self.builder.open(false);
        self.looped(Op::For { start, end, step, body: region }, SourceLine::caller(), body)
    }

    fn looped<R>(&mut self, op: Op, at: SourceLine, body: impl FnOnce(&mut Self, &[Value]) -> R) -> Inst {
        let (inst, indices) = self.builder.loop_head(op, &at);
        body(self, &indices);
        self.builder.close();
        self.builder.place(inst);
        inst
    }

    #[track_caller]
    pub fn if_<R, S>(
        &mut self,
        cond: Value,
        then: impl FnOnce(&mut Self) -> R,
        otherwise: impl FnOnce(&mut Self) -> S,
    ) {
        let at = SourceLine::caller();
        let (then, _) = self.region(then);
        let (otherwise, _) = self.region(otherwise);
        self.builder.push(Op::If { cond, then, otherwise }, &at);
    }

    #[track_caller]
    pub fn while_(&mut self, head: impl FnOnce(&mut Self) -> Value, body: impl FnOnce(&mut Self)) {
        let at = SourceLine::caller();
        let (head, cond) = self.region(head);
        let (body, ()) = self.region(body);
        self.builder.push(Op::While { head, cond, body }, &at);
    }

    fn region<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> (Region, R) {
        let region = self.builder.open(false);
        let result = body(self);
        self.builder.close();
        (region, result)
    }

    #[track_caller]
    pub fn load(&mut self, at: Place) -> Value {
        self.value(Op::Load { at, mask: None })
    }

    #[track_caller]
    pub fn store(&mut self, at: Place, x: Value) {
        self.run(Op::Store { at, x, mask: None })
    }
}

pub fn at(param: ParamId, index: Value) -> Place {
    Place { base: Base::Param(param), bank: None, index }
}

pub fn slot(slots: ParamId, index: Value) -> Slot {
    Slot { slots, bank: None, index }
}
