//! Random straight-line programs keep every bit.

use super::*;

#[test]
fn random_programs_keep_every_bit() {
    use BinaryOp::*;
    const INT: [BinaryOp; 13] = [Add, Sub, Mul, Div, Rem, MulHi, Min, Max, And, Or, Xor, Shl, Shr];
    const COMPARE: [CompareOp; 6] =
        [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge];
    for seed in 0..1500 {
        let mut random = Random::new(seed);
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
                    _ => p.bits(ty, bits(random, ty)),
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
            let scalars: Vec<u64> = types.iter().map(|&ty| bits(&mut random, ty)).collect();
            assert_eq!(run(&simple, &scalars), run(&kernel, &scalars), "seed {seed}, {types:?} = {scalars:x?}");
        }
    }
}
