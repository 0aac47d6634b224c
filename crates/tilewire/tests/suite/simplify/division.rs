//! Division and remainder by constants.

use super::*;

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
        let mut random = Random::new(7);
        for &d in &edges {
            let kernel = quotient_and_remainder(ty, d);
            for &x in &edges {
                for near in [x.wrapping_mul(d), x.wrapping_mul(d).wrapping_sub(1), x] {
                    check_division(&kernel, ty, near & mask, d);
                }
            }
            // A wrong multiplier shows at the last multiple of the divisor and its neighbours.
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
