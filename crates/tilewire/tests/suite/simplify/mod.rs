//! The simplifier: one rule per test, then division exhaustively, random programs and speed. This file holds the
//! builder of programs and the ways to inspect them.

mod code;
mod division;
mod folding;
mod random;
mod speed;

use std::collections::HashMap;
use tilewire::ir::scalar::dynamic;
use tilewire::ir::{
    Access, Base, BinaryOp, Builder, CompareOp, Def, GroupOp, Kernel, Mask, Op, Param, ParamId, Place, Shape, Slot,
    SourceLine, Special, Type, UnaryOp, Value, VarId, access, simplify,
};
use tilewire_testkit::random::Random;

struct Program {
    b: Builder,
    at: SourceLine,
    sink: HashMap<Type, ParamId>,
}

impl Program {
    fn op(&mut self, op: Op) -> Value {
        self.b.value(op, &self.at)
    }
    fn scalar(&mut self, ty: Type) -> Value {
        let p = self.b.param(Param::Scalar { name: "x".into(), ty });
        self.op(Op::Scalar(p))
    }
    fn buffer(&mut self, ty: Type, access: Access) -> ParamId {
        self.b.param(Param::Buffer { name: "b".into(), ty, len: 1 << 20, banks: 1, access, align: 64 })
    }
    fn bits(&mut self, ty: Type, bits: u64) -> Value {
        self.b.constant(ty, bits, &self.at)
    }
    fn int(&mut self, n: i64) -> Value {
        self.bits(Type::I64, n as u64)
    }
    fn bin(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        self.op(Op::Binary { op, a, b })
    }
    fn with(&mut self, op: BinaryOp, a: Value, n: i64) -> Value {
        let ty = self.b.kernel().ty(a);
        let mask = if ty.bits() == 64 { u64::MAX } else { (1 << ty.bits()) - 1 };
        let n = self.bits(ty, n as u64 & mask);
        self.bin(op, a, n)
    }
    fn un(&mut self, op: UnaryOp, x: Value) -> Value {
        self.op(Op::Unary { op, x })
    }
    fn cmp(&mut self, op: CompareOp, a: Value, b: Value) -> Value {
        self.op(Op::Compare { op, a, b })
    }
    fn cast(&mut self, x: Value, to: Type) -> Value {
        self.op(Op::Cast { x, to })
    }
    fn load(&mut self, p: ParamId, index: Value) -> Value {
        self.op(Op::Load { at: Place { base: Base::Param(p), bank: None, index }, mask: None })
    }
    fn store(&mut self, p: ParamId, index: Value, x: Value) {
        self.effect(Op::Store { at: Place { base: Base::Param(p), bank: None, index }, x, mask: None });
    }
    fn effect(&mut self, op: Op) {
        self.b.push(op, &self.at);
    }
    /// An effect that uses the value: a store into a buffer of its type.
    fn keep(&mut self, x: Value) {
        let ty = self.b.kernel().ty(x);
        let p = match self.sink.get(&ty) {
            Some(&p) => p,
            None => {
                let p = self.buffer(ty, Access::Out);
                self.sink.insert(ty, p);
                p
            }
        };
        let index = self.int(0);
        self.store(p, index, x);
    }
    fn each(&mut self, extent: Value, fill: impl FnOnce(&mut Self, Value)) {
        let body = self.b.open(true);
        let (inst, index) = self.b.loop_head(Op::Each { extent: vec![extent], body }, &self.at);
        fill(self, index[0]);
        self.b.close();
        self.b.place(inst);
    }
    fn repeat(&mut self, start: Value, end: Value, step: Value, fill: impl FnOnce(&mut Self, Value)) {
        let body = self.b.open(false);
        let (inst, index) = self.b.loop_head(Op::For { start, end, step, body }, &self.at);
        fill(self, index[0]);
        self.b.close();
        self.b.place(inst);
    }
    fn when(&mut self, cond: Value, then: impl FnOnce(&mut Self), other: impl FnOnce(&mut Self)) {
        let yes = self.b.open(false);
        then(self);
        self.b.close();
        let no = self.b.open(false);
        other(self);
        self.b.close();
        self.effect(Op::If { cond, then: yes, otherwise: no });
    }
    fn var(&mut self, ty: Type) -> VarId {
        let role = self.b.kernel().roles.keys().next().expect("one role");
        self.b.var(role, ty)
    }
}

#[track_caller]
fn program(fill: impl FnOnce(&mut Program)) -> Kernel {
    let at = SourceLine::caller();
    let mut b = Builder::new("test", 1);
    b.open_role("role", 1, 1, &at);
    let mut p = Program { b, at, sink: HashMap::new() };
    fill(&mut p);
    p.b.close();
    p.b.finish()
}

/// Ops in program order. Nested ones are indented once for each level.
fn listing(kernel: &Kernel) -> Vec<String> {
    fn region(kernel: &Kernel, r: tilewire::ir::Region, depth: usize, out: &mut Vec<String>) {
        for &inst in &kernel.regions[r] {
            let op = &kernel.insts[inst].op;
            let name = match op {
                Op::Binary { op, .. } => format!("{op:?}"),
                Op::Unary { op, .. } => format!("{op:?}"),
                Op::Compare { op, .. } => format!("{op:?}"),
                other => format!("{other:?}").split(|c: char| !c.is_alphanumeric()).next().unwrap().to_string(),
            };
            if name != "Const" && name != "Scalar" {
                out.push(format!("{}{name}", "  ".repeat(depth)));
            }
            for inner in op.regions() {
                region(kernel, inner, depth + 1, out);
            }
        }
    }
    let mut out = Vec::new();
    for role in kernel.roles.values() {
        region(kernel, role.body, 0, &mut out);
    }
    out
}

/// The ops that are left of a program, without constants and scalar parameters. Every result must be a fixpoint and
/// dense.
#[track_caller]
fn left(fill: impl FnOnce(&mut Program)) -> Vec<String> {
    let simple = simplify(&program(fill));
    assert_eq!(simple.insts.len(), simple.reachable_insts(), "the arena is dense");
    assert_eq!(listing(&simplify(&simple)), listing(&simple), "a fixpoint");
    listing(&simple)
}

/// The values that a program without memory or control flow stores, in order, by the language's arithmetic.
fn run(kernel: &Kernel, scalars: &[u64]) -> Vec<u64> {
    let mut known: HashMap<Value, u64> = HashMap::new();
    let mut stored = Vec::new();
    let params: Vec<ParamId> =
        kernel.params.iter().filter(|(_, p)| matches!(p, Param::Scalar { .. })).map(|(id, _)| id).collect();
    for role in kernel.roles.values() {
        for &inst in &kernel.regions[role.body] {
            let data = &kernel.insts[inst];
            let get = |v: &Value| known[v];
            let bits = match &data.op {
                Op::Const(c) => c.bits,
                Op::Scalar(p) => scalars[params.iter().position(|q| q == p).unwrap()],
                Op::Unary { op, x } => dynamic::unary(*op, kernel.ty(*x), get(x)),
                Op::Binary { op, a, b } => dynamic::binary(*op, kernel.ty(*a), get(a), get(b)),
                Op::Compare { op, a, b } => u64::from(dynamic::compare(*op, kernel.ty(*a), get(a), get(b))),
                Op::Select { cond, a, b } => get(if get(cond) != 0 { a } else { b }),
                Op::Fma { a, b, c } => dynamic::fma(kernel.ty(*a), get(a), get(b), get(c)),
                Op::Cast { x, to } => dynamic::cast(kernel.ty(*x), *to, get(x)),
                Op::Bitcast { x, .. } => get(x),
                Op::Store { x, .. } => {
                    stored.push(dynamic::canonical_nan(kernel.ty(*x), get(x)));
                    continue;
                }
                other => panic!("{other:?}"),
            };
            known.insert(data.result.unwrap(), bits);
        }
    }
    stored
}

/// Bits of a type, often extreme values.
fn bits(random: &mut Random, ty: Type) -> u64 {
    let mask = if ty.bits() == 64 { u64::MAX } else { (1 << ty.bits()) - 1 };
    let n = match random.below(6) {
        0 => 0,
        1 => 1 << random.below(64),
        2 => u64::MAX,
        3 => dynamic::cast(Type::I8, ty, random.next() & 0xff),
        4 => random.next() % 16,
        _ => random.next(),
    };
    if ty == Type::Bool { n & 1 } else { n & mask }
}
