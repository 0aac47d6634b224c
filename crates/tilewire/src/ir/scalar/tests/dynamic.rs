//! The dispatch: each name reaches its op, for every type.

use crate::ir::scalar::dynamic::{binary, canonical_nan, cast, compare, fma, is_nan, unary};
use crate::ir::{BinaryOp, CompareOp, Type, UnaryOp};

/// The bits of a small integer in any type.
fn of(ty: Type, x: i64) -> u64 {
    cast(Type::I64, ty, x as u64)
}

#[test]
fn every_number_type_computes_small_integers_alike() {
    use BinaryOp::*;
    for ty in Type::ALL.into_iter().filter(|&ty| ty != Type::Bool) {
        let (six, two) = (of(ty, 6), of(ty, 2));
        for (op, want) in [(Add, 8), (Sub, 4), (Mul, 12), (Div, 3), (Min, 2), (Max, 6)] {
            assert_eq!(binary(op, ty, six, two), of(ty, want), "{op:?} of {ty}");
        }
        assert_eq!(cast(ty, Type::I64, six), 6, "{ty}");
        use CompareOp::*;
        for (a, b, holds) in [(six, two, [Ne, Gt, Ge]), (two, six, [Ne, Lt, Le]), (six, six, [Eq, Le, Ge])] {
            for op in [Eq, Ne, Lt, Le, Gt, Ge] {
                assert_eq!(compare(op, ty, a, b), holds.contains(&op), "{op:?} of {ty}");
            }
        }
        if ty.is_float() {
            assert_eq!(fma(ty, six, two, of(ty, -8)), of(ty, 4), "{ty}");
            let nan = canonical_nan(ty, binary(Div, ty, of(ty, 0), of(ty, 0)));
            assert!(is_nan(ty, nan), "{ty}");
            for op in [Eq, Lt, Le, Gt, Ge] {
                assert!(!compare(op, ty, nan, nan) && !compare(op, ty, nan, six), "{op:?} of {ty}");
            }
            assert!(compare(Ne, ty, nan, nan), "{ty}");
        } else {
            for (op, want) in [(Rem, 0), (MulHi, 0), (And, 2), (Or, 6), (Xor, 4), (Shl, 24), (Shr, 1)] {
                assert_eq!(binary(op, ty, six, two), of(ty, want), "{op:?} of {ty}");
            }
            assert_eq!(unary(UnaryOp::Not, ty, six), of(ty, !6), "{ty}");
        }
        assert_eq!(unary(UnaryOp::Abs, ty, six), six);
        assert_eq!(unary(UnaryOp::Neg, ty, unary(UnaryOp::Neg, ty, six)), six);
    }
}

#[test]
fn every_float_function_is_reached() {
    use UnaryOp::*;
    for ty in Type::ALL.into_iter().filter(|ty| ty.is_float()) {
        let float = |x: f64| cast(Type::F64, ty, x.to_bits());
        let cases = [
            (Sqrt, 4.0, 2.0),
            (Rsqrt, 4.0, 0.5),
            (Rcp, 4.0, 0.25),
            (Exp, 0.0, 1.0),
            (Log, 1.0, 0.0),
            (Tanh, -30.0, -1.0),
            (Floor, -1.5, -2.0),
            (Ceil, 1.5, 2.0),
            (Trunc, -1.5, -1.0),
            (RoundEven, 1.5, 2.0),
        ];
        for (op, x, want) in cases {
            assert_eq!(unary(op, ty, float(x)), float(want), "{op:?} of {ty}");
        }
    }
}

#[test]
fn bools_are_logic() {
    let ty = Type::Bool;
    for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert_eq!(binary(BinaryOp::And, ty, a, b), a & b);
        assert_eq!(binary(BinaryOp::Or, ty, a, b), a | b);
        assert_eq!(binary(BinaryOp::Xor, ty, a, b), a ^ b);
        assert_eq!(compare(CompareOp::Eq, ty, a, b), a == b);
        assert_eq!(compare(CompareOp::Ne, ty, a, b), a != b);
    }
    // Any byte but 0 reads as true.
    assert_eq!(unary(UnaryOp::Not, ty, 0x80), 0);
    assert_eq!(binary(BinaryOp::And, ty, 0x80, 1), 1);
    assert!(compare(CompareOp::Eq, ty, 0x80, 1));
}

#[test]
fn nans_of_every_float_type_become_one() {
    for ty in Type::ALL {
        let all = u64::MAX >> (64 - ty.bits());
        let one = of(ty, 1);
        assert_eq!(canonical_nan(ty, one), one);
        assert!(!is_nan(ty, one));
        assert_eq!(is_nan(ty, all), ty.is_float());
        if ty.is_float() {
            let canonical = canonical_nan(ty, all);
            assert_eq!(canonical_nan(ty, all >> 1), canonical);
            assert_eq!(canonical_nan(ty, canonical), canonical);
            assert!(is_nan(ty, canonical));
            let infinity = cast(Type::F64, ty, f64::INFINITY.to_bits());
            assert_eq!(canonical_nan(ty, infinity), infinity);
        }
    }
}

#[test]
#[should_panic(expected = "Rem of f32: the verifier forbids it")]
fn forbidden_combinations_are_bugs() {
    binary(BinaryOp::Rem, Type::F32, 0, 0);
}

#[test]
#[should_panic(expected = "Lt of bool: the verifier forbids it")]
fn bools_have_no_order() {
    compare(CompareOp::Lt, Type::Bool, 0, 1);
}
