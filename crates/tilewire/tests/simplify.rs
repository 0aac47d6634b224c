//! The simplifier as a specification: one rule per test, then division exhaustively and random programs.

use std::collections::HashMap;
use tilewire::ir::scalar::dynamic;
use tilewire::ir::{
    Access, Base, BinaryOp, Builder, CompareOp, Def, GroupOp, Kernel, Mask, Op, Param, ParamId, Place, Shape, Slot,
    SourceLine, Special, Type, UnaryOp, Value, VarId, access, simplify,
};

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
    /// An effect that needs the value: a store into a buffer of its type.
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

/// Ops in program order, nested ones by one indentation each.
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

/// The ops left of a program, constants and scalar parameters apart. Every result is a fixpoint and dense.
#[track_caller]
fn left(fill: impl FnOnce(&mut Program)) -> Vec<String> {
    let simple = simplify(&program(fill));
    assert_eq!(simple.insts.len(), simple.reachable_insts(), "the arena is dense");
    assert_eq!(listing(&simplify(&simple)), listing(&simple), "a fixpoint");
    listing(&simple)
}

/// What a program without memory or control flow stores, in order, by the language's own arithmetic.
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

// ---- folding ------------------------------------------------------------------------------------------------------

#[test]
fn ops_on_constants_are_computed() {
    let simple = simplify(&program(|p| {
        let (two, three) = (p.int(2), p.int(3));
        let five = p.bin(BinaryOp::Add, two, three);
        let float = p.cast(five, Type::F32);
        p.keep(float);
    }));
    assert_eq!(listing(&simple), ["Store"]);
    assert_eq!(run(&simple, &[]), [u64::from(5f32.to_bits())]);
}

#[test]
fn integer_identities() {
    use BinaryOp::*;
    let to_x = [(Add, 0), (Sub, 0), (Mul, 1), (Div, 1), (And, -1), (Or, 0), (Xor, 0), (Shl, 0), (Shr, 0)];
    let to_const = [(Mul, 0), (And, 0), (Or, -1), (Shl, 64), (Rem, 1), (Rem, -1), (Div, 0)];
    for (op, n) in to_x.into_iter().chain(to_const) {
        let ops = left(|p| {
            let x = p.scalar(Type::I64);
            let y = p.with(op, x, n);
            p.keep(y);
        });
        assert_eq!(ops, ["Store"], "{op:?} {n}");
    }
    for op in [Sub, Xor, And, Or, Min, Max] {
        let ops = left(|p| {
            let x = p.scalar(Type::U16);
            let y = p.bin(op, x, x);
            p.keep(y);
        });
        assert_eq!(ops, ["Store"], "x {op:?} x");
    }
}

#[test]
fn constants_in_a_row_become_one() {
    let ops = left(|p| {
        let x = p.scalar(Type::I32);
        let a = p.with(BinaryOp::Add, x, 5);
        let b = p.with(BinaryOp::Sub, a, 7);
        let c = p.with(BinaryOp::Mul, b, 3);
        let d = p.with(BinaryOp::Mul, c, 4);
        p.keep(d);
    });
    assert_eq!(ops, ["Add", "Mul", "Store"]);
}

#[test]
fn float_identities_are_only_the_exact_ones() {
    let float = |op: BinaryOp, ty: Type, c: f32| {
        left(|p| {
            let x = p.scalar(ty);
            let c = p.bits(ty, dynamic::cast(Type::F32, ty, u64::from(c.to_bits())));
            let y = p.bin(op, x, c);
            p.keep(y);
        })
        .len()
            == 1
    };
    for ty in [Type::F32, Type::F64, Type::F16, Type::BF16, Type::F8E4M3] {
        assert!(float(BinaryOp::Mul, ty, 1.0) && float(BinaryOp::Div, ty, 1.0), "{ty}");
        assert!(float(BinaryOp::Add, ty, -0.0) && float(BinaryOp::Sub, ty, 0.0), "{ty}");
        assert!(!float(BinaryOp::Add, ty, 0.0), "{ty}: -0 + 0 is +0");
        assert!(!float(BinaryOp::Sub, ty, -0.0), "{ty}: -0 - -0 is +0");
        assert!(!float(BinaryOp::Mul, ty, 0.0), "{ty}: NaN, infinity and signs");
    }
    assert!(!float(BinaryOp::Mul, Type::F8E5M2, 1.0), "infinity times one saturates");
}

#[test]
fn doubled_negations_vanish_and_negated_comparisons_turn() {
    let ops = left(|p| {
        let x = p.scalar(Type::F32);
        let once = p.un(UnaryOp::Neg, x);
        let twice = p.un(UnaryOp::Neg, once);
        p.keep(twice);
        let (a, b) = (p.scalar(Type::I64), p.scalar(Type::I64));
        let less = p.cmp(CompareOp::Lt, a, b);
        let not = p.un(UnaryOp::Not, less);
        p.keep(not);
    });
    assert_eq!(ops, ["Store", "Ge", "Store"]);
    let ops = left(|p| {
        let (a, b) = (p.scalar(Type::F32), p.scalar(Type::F32));
        let less = p.cmp(CompareOp::Lt, a, b);
        let not = p.un(UnaryOp::Not, less);
        p.keep(not);
    });
    assert_eq!(ops, ["Lt", "Not", "Store"], "with NaN both a < b and a >= b are false");
}

#[test]
fn selects_with_one_outcome_vanish() {
    let ops = left(|p| {
        let (x, y, cond) = (p.scalar(Type::F32), p.scalar(Type::F32), p.scalar(Type::Bool));
        let yes = p.bits(Type::Bool, 1);
        let a = p.op(Op::Select { cond: yes, a: x, b: y });
        let b = p.op(Op::Select { cond, a, b: x });
        p.keep(b);
    });
    assert_eq!(ops, ["Store"]);
}

#[test]
fn comparisons_known_from_bounds_are_computed() {
    let ops = left(|p| {
        let n = p.scalar(Type::I64);
        let dst = p.buffer(Type::Bool, Access::Out);
        p.each(n, |p, i| {
            let inside = p.cmp(CompareOp::Lt, i, n);
            let zero = p.int(0);
            let positive = p.cmp(CompareOp::Ge, i, zero);
            let both = p.bin(BinaryOp::And, inside, positive);
            p.store(dst, i, both);
        });
    });
    assert_eq!(ops, ["Each", "  Store"]);
}

#[test]
fn casts_through_a_type_that_holds_everything_are_direct() {
    let chain = |types: [Type; 3]| {
        left(|p| {
            let x = p.scalar(types[0]);
            let y = p.cast(x, types[1]);
            let z = p.cast(y, types[2]);
            p.keep(z);
        })
        .len()
            - 1
    };
    assert_eq!(chain([Type::I32, Type::I64, Type::I32]), 0);
    assert_eq!(chain([Type::I32, Type::U32, Type::I32]), 0, "low bits");
    assert_eq!(chain([Type::U8, Type::I32, Type::F32]), 1);
    assert_eq!(chain([Type::F16, Type::F32, Type::F16]), 0);
    assert_eq!(chain([Type::F32, Type::F16, Type::F32]), 2, "rounds");
    assert_eq!(chain([Type::I64, Type::I32, Type::I64]), 2, "wraps");
    assert_eq!(chain([Type::F8E5M2, Type::F32, Type::F8E5M2]), 2, "saturates infinity");
}

#[test]
fn constant_masks_vanish_with_what_they_hide() {
    let ops = left(|p| {
        let n = p.scalar(Type::I64);
        let (src, dst) = (p.buffer(Type::F32, Access::In), p.buffer(Type::F32, Access::Out));
        p.each(n, |p, i| {
            let (yes, no, other) = (p.bits(Type::Bool, 1), p.bits(Type::Bool, 0), p.bits(Type::F32, 0));
            let at = |p| Place { base: Base::Param(p), bank: None, index: i };
            let x = p.op(Op::Load { at: at(src), mask: Some(Mask { cond: no, other }) });
            p.effect(Op::Store { at: at(dst), x, mask: Some(yes) });
            p.effect(Op::Store { at: at(dst), x, mask: Some(no) });
        });
    });
    assert_eq!(ops, ["Each", "  Store"]);
}

// ---- control ------------------------------------------------------------------------------------------------------

#[test]
fn branches_and_loops_with_known_counts_dissolve() {
    let ops = left(|p| {
        let (yes, x) = (p.bits(Type::Bool, 1), p.scalar(Type::I64));
        p.when(yes, |p| p.keep(x), |p| p.effect(Op::Barrier));
        let (zero, one, four) = (p.int(0), p.int(1), p.int(4));
        p.repeat(zero, zero, one, |p, i| p.keep(i));
        p.repeat(zero, four, four, |p, i| p.keep(i));
        p.repeat(zero, four, one, |p, i| p.keep(i));
    });
    assert_eq!(ops, ["Store", "Store", "For", "  Store"]);
}

#[test]
fn an_each_of_nothing_is_still_a_barrier() {
    let ops = left(|p| {
        let (zero, n) = (p.int(0), p.scalar(Type::I64));
        p.each(zero, |p, i| p.keep(i));
        p.each(n, |p, i| {
            p.with(BinaryOp::Add, i, 1);
        });
    });
    assert_eq!(ops, ["Barrier", "Barrier"]);
}

// ---- sharing ------------------------------------------------------------------------------------------------------

#[test]
fn equal_ops_are_shared_where_one_dominates_the_other() {
    let ops = left(|p| {
        let (a, b, cond) = (p.scalar(Type::F32), p.scalar(Type::F32), p.scalar(Type::Bool));
        let product = |p: &mut Program, a, b| {
            let x = p.bin(BinaryOp::Mul, a, b);
            p.keep(x);
        };
        p.when(cond, |p| product(p, a, b), |p| product(p, a, b));
        product(p, a, b);
        product(p, b, a);
        p.when(cond, |p| product(p, a, b), |_| {});
    });
    assert_eq!(ops, ["If", "  Mul", "  Store", "  Mul", "  Store", "Mul", "Store", "Store", "If", "  Store"]);
}

#[test]
fn a_second_load_in_an_each_is_shared_until_a_store() {
    let ops = left(|p| {
        let (n, buffer) = (p.scalar(Type::I64), p.buffer(Type::F32, Access::InOut));
        p.each(n, |p, i| {
            let (x, y) = (p.load(buffer, i), p.load(buffer, i));
            let sum = p.bin(BinaryOp::Add, x, y);
            p.store(buffer, i, sum);
            let z = p.load(buffer, i);
            p.store(buffer, i, z);
        });
    });
    assert_eq!(ops, ["Each", "  Load", "  Add", "  Store", "  Load", "  Store"]);
}

#[test]
fn a_uniform_load_of_memory_that_may_change_is_never_shared() {
    let twice = |access| {
        left(|p| {
            let (buffer, zero) = (p.buffer(Type::I64, access), p.int(0));
            let (x, y) = (p.load(buffer, zero), p.load(buffer, zero));
            p.keep(x);
            p.keep(y);
        })
    };
    assert_eq!(twice(Access::InOut), ["Load", "Load", "Store", "Store"]);
    assert_eq!(twice(Access::In), ["Load", "Store", "Store"]);
}

// ---- motion -------------------------------------------------------------------------------------------------------

#[test]
fn uniform_ops_leave_the_loops_they_do_not_depend_on() {
    let ops = left(|p| {
        let (n, m, dst) = (p.scalar(Type::I64), p.scalar(Type::I64), p.buffer(Type::I64, Access::Out));
        let (zero, one) = (p.int(0), p.int(1));
        p.repeat(zero, n, one, |p, step| {
            p.each(m, |p, i| {
                let all = p.bin(BinaryOp::Mul, n, m);
                let start = p.bin(BinaryOp::Mul, step, m);
                let at = p.bin(BinaryOp::Add, start, i);
                p.store(dst, at, all);
            });
        });
    });
    assert_eq!(ops, ["Mul", "For", "  Mul", "  Each", "    Add", "    Store"]);
}

#[test]
fn a_variable_is_read_before_the_each_and_every_turn_of_a_loop() {
    let ops = left(|p| {
        let (n, zero, one) = (p.scalar(Type::I64), p.int(0), p.int(1));
        let (var, dst) = (p.var(Type::I64), p.buffer(Type::I64, Access::Out));
        p.effect(Op::WriteVar { var, x: zero });
        p.repeat(zero, n, one, |p, _| {
            p.each(n, |p, i| {
                let x = p.op(Op::ReadVar(var));
                p.store(dst, i, x);
            });
            let x = p.op(Op::ReadVar(var));
            let x = p.bin(BinaryOp::Add, x, n);
            p.effect(Op::WriteVar { var, x });
        });
    });
    let body = ["  ReadVar", "  Each", "    Store", "  ReadVar", "  Add", "  WriteVar"];
    assert_eq!(ops, [&["WriteVar", "For"][..], &body[..]].concat());
}

#[test]
fn the_condition_of_a_while_is_computed_every_turn() {
    let ops = left(|p| {
        let (n, m, one) = (p.scalar(Type::I64), p.scalar(Type::I64), p.int(1));
        let var = p.var(Type::I64);
        p.effect(Op::WriteVar { var, x: one });
        let head = p.b.open(false);
        let x = p.op(Op::ReadVar(var));
        let bound = p.bin(BinaryOp::Mul, n, m);
        let cond = p.cmp(CompareOp::Lt, x, bound);
        p.b.close();
        let body = p.b.open(false);
        let x = p.op(Op::ReadVar(var));
        let x = p.bin(BinaryOp::Add, x, one);
        p.effect(Op::WriteVar { var, x });
        p.b.close();
        p.effect(Op::While { head, cond, body });
    });
    let rest = ["  ReadVar", "  Lt", "  ReadVar", "  Add", "  WriteVar"];
    assert_eq!(ops, [&["WriteVar", "Mul", "While"][..], &rest[..]].concat());
}

#[test]
fn lane_ops_and_group_reductions_stay_in_their_each() {
    let ops = left(|p| {
        let (n, x, dst) = (p.scalar(Type::I64), p.scalar(Type::F32), p.buffer(Type::F32, Access::Out));
        p.each(n, |p, i| {
            let sum = p.op(Op::Group { op: GroupOp::Sum, x, size: 4 });
            p.store(dst, i, sum);
        });
    });
    assert_eq!(ops, ["Each", "  Group", "  Store"]);
}

// ---- dead code ----------------------------------------------------------------------------------------------------

#[test]
fn what_no_effect_needs_is_dropped() {
    let ops = left(|p| {
        let (n, src, cond) = (p.scalar(Type::I64), p.buffer(Type::F32, Access::InOut), p.scalar(Type::Bool));
        let (zero, one) = (p.int(0), p.int(1));
        let unread = p.var(Type::I64);
        p.load(src, n);
        p.effect(Op::WriteVar { var: unread, x: n });
        p.when(cond, |p| _ = p.bin(BinaryOp::Add, n, n), |_| {});
        p.repeat(zero, n, one, |p, i| {
            let x = p.bin(BinaryOp::Add, i, n);
            p.effect(Op::WriteVar { var: unread, x });
        });
        p.keep(n);
    });
    assert_eq!(ops, ["Store"]);
}

#[test]
fn effects_keep_their_number_and_order() {
    let kernel = program(|p| {
        let slots = p.b.param(Param::Slots { name: "s".into(), len: 8, stride: 128, banks: 1 });
        let (zero, one) = (p.int(0), p.bits(Type::U64, 1));
        let slot = Slot { slots, bank: None, index: zero };
        let rank = p.op(Op::Special(Special::Rank));
        p.effect(Op::Wait { slot, x: one });
        p.effect(Op::Wait { slot, x: one });
        p.keep(rank);
        p.keep(rank);
        p.effect(Op::Barrier);
        p.effect(Op::Signal { slot, x: one });
        p.effect(Op::SignalCredit { slot, x: one });
        p.op(Op::Test { slot, x: one });
        p.effect(Op::ProxyFence);
    });
    let effects = |k: &Kernel| listing(k).into_iter().filter(|op| op != "Special").collect::<Vec<_>>();
    assert_eq!(effects(&simplify(&kernel)), effects(&kernel));
}

#[test]
fn source_lines_stay_with_their_instructions() {
    let mut line = 0;
    let kernel = simplify(&program(|p| {
        let x = p.scalar(Type::I64);
        p.with(BinaryOp::Add, x, 1); // dead
        p.at = SourceLine::caller();
        line = p.at.line;
        p.keep(x);
    }));
    let store = kernel.insts.iter().find(|(_, d)| matches!(d.op, Op::Store { .. })).unwrap().0;
    assert_eq!(kernel.line(store).line, line);
}

// ---- division -----------------------------------------------------------------------------------------------------

fn quotient_and_remainder(ty: Type, divisor: u64) -> Kernel {
    let simple = simplify(&program(|p| {
        let x = p.scalar(ty);
        let d = p.bits(ty, divisor);
        let q = p.bin(BinaryOp::Div, x, d);
        let r = p.bin(BinaryOp::Rem, x, d);
        p.keep(q);
        p.keep(r);
    }));
    assert!(!listing(&simple).iter().any(|op| op == "Div" || op == "Rem"), "{ty} by {divisor}");
    simple
}

#[track_caller]
fn check_division(kernel: &Kernel, ty: Type, x: u64, d: u64) {
    let expected = [dynamic::binary(BinaryOp::Div, ty, x, d), dynamic::binary(BinaryOp::Rem, ty, x, d)];
    assert_eq!(run(kernel, &[x]), expected, "{ty}: {x:#x} by {d:#x}");
}

#[test]
fn division_of_bytes_is_exact_for_every_pair() {
    for ty in [Type::I8, Type::U8] {
        for d in 0..256 {
            let kernel = quotient_and_remainder(ty, d);
            (0..256).for_each(|x| check_division(&kernel, ty, x, d));
        }
    }
}

#[test]
fn division_of_words_is_exact_at_the_edges() {
    for ty in [Type::I16, Type::U16, Type::I32, Type::U32, Type::I64, Type::U64] {
        let mask = if ty.bits() == 64 { u64::MAX } else { (1 << ty.bits()) - 1 };
        let high = 1u64 << (ty.bits() - 1);
        let mut edges: Vec<u64> = vec![high, high - 1, high + 1];
        for small in [0u64, 1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 25, 100, 125, 127, 128, 625, 641, 1000, 1 << 12, 48 * 1024]
        {
            edges.extend([small, small.wrapping_neg(), high.wrapping_sub(small), high / 2 + small]);
        }
        let edges: Vec<u64> = edges.into_iter().map(|e| e & mask).collect();
        let mut random = Random(7);
        for &d in &edges {
            let kernel = quotient_and_remainder(ty, d);
            for &x in &edges {
                for near in [x.wrapping_mul(d), x.wrapping_mul(d).wrapping_sub(1), x] {
                    check_division(&kernel, ty, near & mask, d);
                }
            }
            // The last multiple of the divisor and its neighbours are where a wrong multiplier shows.
            for top in [mask, high, high - 1] {
                let last = top - if d == 0 { 0 } else { top % d };
                for x in [last, last.wrapping_sub(1), last.wrapping_add(1), random.next()] {
                    check_division(&kernel, ty, x & mask, d);
                }
            }
        }
    }
}

#[test]
fn a_dividend_known_to_be_positive_needs_no_correction() {
    let ops = left(|p| {
        let (n, dst) = (p.scalar(Type::I64), p.buffer(Type::I64, Access::Out));
        p.each(n, |p, i| {
            let (q, r) = (p.with(BinaryOp::Div, i, 128), p.with(BinaryOp::Rem, i, 128));
            p.store(dst, q, r);
        });
    });
    assert_eq!(ops, ["Each", "  Shr", "  And", "  Store"]);
}

#[test]
fn quotients_of_lane_indices_stay_for_access_analysis() {
    for (divisor, op) in [(96, "  Div"), (64, "  Shr")] {
        let kernel = simplify(&program(|p| {
            let (n, src) = (p.scalar(Type::I64), p.buffer(Type::F32, Access::In));
            let dst = p.buffer(Type::F32, Access::Out);
            p.each(n, |p, i| {
                let group = p.with(BinaryOp::Div, i, divisor);
                let scale = p.load(src, group);
                p.store(dst, i, scale);
            });
        }));
        assert_eq!(listing(&kernel), ["Each", op, "  Load", "  Store"]);
        let each = kernel.insts.iter().find(|(_, d)| matches!(d.op, Op::Each { .. })).unwrap().0;
        let classes: Vec<_> = access::accesses(&kernel, each).iter().map(|a| a.class).collect();
        assert_eq!(classes, [access::Class::Grouped { size: divisor as u32 }, access::Class::Contiguous]);
    }
}

// ---- random programs ----------------------------------------------------------------------------------------------

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    /// Bits of a type, edge values often.
    fn bits(&mut self, ty: Type) -> u64 {
        let mask = if ty.bits() == 64 { u64::MAX } else { (1 << ty.bits()) - 1 };
        let n = match self.below(6) {
            0 => 0,
            1 => 1 << self.below(64),
            2 => u64::MAX,
            3 => dynamic::cast(Type::I8, ty, self.next() & 0xff),
            4 => self.next() % 16,
            _ => self.next(),
        };
        if ty == Type::Bool { n & 1 } else { n & mask }
    }
}

#[test]
fn random_programs_keep_every_bit() {
    use BinaryOp::*;
    const INT: [BinaryOp; 13] = [Add, Sub, Mul, Div, Rem, MulHi, Min, Max, And, Or, Xor, Shl, Shr];
    const COMPARE: [CompareOp; 6] =
        [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge];
    for seed in 0..1500 {
        let mut random = Random(seed);
        let mut types = Vec::new();
        let kernel = program(|p| {
            let mut values: Vec<Value> = Vec::new();
            for _ in 0..3 {
                let ty = Type::ALL[random.below(15)];
                types.push(ty);
                values.push(p.scalar(ty));
            }
            for _ in 0..40 {
                let x = values[random.below(values.len())];
                let ty = p.b.kernel().ty(x);
                // Another value of the type: a known one or a constant.
                let same: Vec<Value> = values.iter().copied().filter(|&v| p.b.kernel().ty(v) == ty).collect();
                let another = |p: &mut Program, random: &mut Random| match random.below(2) {
                    0 => same[random.below(same.len())],
                    _ => p.bits(ty, random.bits(ty)),
                };
                let y = another(p, &mut random);
                let v = match random.below(8) {
                    0 if ty != Type::Bool => {
                        let op = [UnaryOp::Neg, UnaryOp::Abs][random.below(2)];
                        p.un(op, x)
                    }
                    1 if !ty.is_float() => p.un(UnaryOp::Not, x),
                    0..=4 => {
                        let ops: &[BinaryOp] = match ty {
                            Type::Bool => &[And, Or, Xor],
                            ty if ty.is_int() => &INT,
                            _ => &[Add, Sub, Mul, Div, Min, Max],
                        };
                        let (a, b) = if random.below(3) == 0 { (y, x) } else { (x, y) };
                        p.bin(ops[random.below(ops.len())], a, b)
                    }
                    5 => p.cmp(COMPARE[random.below(if ty == Type::Bool { 2 } else { 6 })], x, y),
                    6 => p.cast(x, Type::ALL[random.below(15)]),
                    _ => {
                        let bools: Vec<Value> =
                            values.iter().copied().filter(|&v| p.b.kernel().ty(v) == Type::Bool).collect();
                        match bools.first() {
                            Some(&cond) => p.op(Op::Select { cond, a: x, b: y }),
                            None => p.cmp(CompareOp::Eq, x, y),
                        }
                    }
                };
                values.push(v);
            }
            for v in values {
                p.keep(v);
            }
        });
        let simple = simplify(&kernel);
        for _ in 0..8 {
            let scalars: Vec<u64> = types.iter().map(|&ty| random.bits(ty)).collect();
            assert_eq!(run(&simple, &scalars), run(&kernel, &scalars), "seed {seed}, {types:?} = {scalars:x?}");
        }
    }
}

// ---- speed --------------------------------------------------------------------------------------------------------

fn copy_kernel() -> Kernel {
    program(|p| {
        let (src, dst) = (p.buffer(Type::F32, Access::In), p.buffer(Type::F32, Access::Out));
        let n = p.int(1 << 20);
        p.each(n, |p, i| {
            let x = p.load(src, i);
            p.store(dst, i, x);
        });
    })
}

/// Run with `--nocapture` to see the numbers; the bounds leave room for a busy machine and an unoptimised build.
#[test]
fn small_kernels_take_microseconds_and_unrolled_ones_milliseconds() {
    let kernel = copy_kernel();
    let fastest = |runs: usize, kernel: &Kernel| {
        (0..runs)
            .map(|_| {
                let start = std::time::Instant::now();
                std::hint::black_box(simplify(std::hint::black_box(kernel)));
                start.elapsed()
            })
            .min()
            .unwrap()
    };
    let small = fastest(200, &kernel);
    let unrolled = program(|p| {
        let (n, dst) = (p.scalar(Type::I64), p.buffer(Type::I64, Access::InOut));
        p.each(n, |p, i| {
            let mut x = i;
            for k in 0..1200 {
                let at = p.with(BinaryOp::Add, i, k);
                let y = p.load(dst, at);
                x = p.bin(BinaryOp::Add, x, y);
            }
            p.store(dst, i, x);
        });
    });
    let large = fastest(5, &unrolled);
    println!("copy kernel {small:?}, {} instructions {large:?}", unrolled.insts.len());
    assert!(small.as_micros() < 200, "{small:?}");
    assert!(large.as_millis() < 200, "{large:?}");
}

#[test]
fn index_values_keep_shape_and_axis() {
    let kernel = simplify(&copy_kernel());
    let (each, data) = kernel.insts.iter().find(|(_, d)| matches!(d.op, Op::Each { .. })).unwrap();
    let index = &kernel.values[data.indices[0]];
    assert_eq!((index.shape, index.def), (Shape::Lane, Def::Index { inst: each, axis: 0 }));
}
