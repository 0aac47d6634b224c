//! Control flow, sharing, motion and dead code.

use super::*;

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
fn a_requirement_stays_unless_it_always_holds() {
    let ops = left(|p| {
        let (yes, no, unknown) = (p.bits(Type::Bool, 1), p.bits(Type::Bool, 0), p.scalar(Type::Bool));
        for cond in [yes, unknown, unknown, no] {
            p.effect(Op::Require { cond, span: None });
        }
    });
    assert_eq!(ops, ["Require", "Require", "Require"]);
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
