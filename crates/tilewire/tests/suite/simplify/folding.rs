//! Folding: constants and identities.

use super::*;

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
