//! Random programs are worth running: an engine with one wrong op is found by many of them.

use tilewire::check::{self, Options};
use tilewire::ir::{BinaryOp, CompareOp, GroupOp, Kernel, Op, UnaryOp};
use tilewire_testkit::programs::Program;

/// A possible mistake of an engine: the op that it runs instead, if it applies.
type Mistake = (&'static str, fn(&Op) -> Option<Op>);

const MISTAKES: [Mistake; 13] = [
    ("add subtracts", |op| match *op {
        Op::Binary { op: BinaryOp::Add, a, b } => Some(Op::Binary { op: BinaryOp::Sub, a, b }),
        _ => None,
    }),
    ("min is max", |op| match *op {
        Op::Binary { op: BinaryOp::Min, a, b } => Some(Op::Binary { op: BinaryOp::Max, a, b }),
        _ => None,
    }),
    ("shr is shl", |op| match *op {
        Op::Binary { op: BinaryOp::Shr, a, b } => Some(Op::Binary { op: BinaryOp::Shl, a, b }),
        _ => None,
    }),
    ("less is less or equal", |op| match *op {
        Op::Compare { op: CompareOp::Lt, a, b } => Some(Op::Compare { op: CompareOp::Le, a, b }),
        _ => None,
    }),
    ("floor is trunc", |op| match *op {
        Op::Unary { op: UnaryOp::Floor, x } => Some(Op::Unary { op: UnaryOp::Trunc, x }),
        _ => None,
    }),
    ("exp is tanh", |op| match *op {
        Op::Unary { op: UnaryOp::Exp, x } => Some(Op::Unary { op: UnaryOp::Tanh, x }),
        _ => None,
    }),
    ("select turns round", |op| match *op {
        Op::Select { cond, a, b } => Some(Op::Select { cond, a: b, b: a }),
        _ => None,
    }),
    ("fma forgets its addend", |op| match *op {
        Op::Fma { a, b, .. } => Some(Op::Binary { op: BinaryOp::Mul, a, b }),
        _ => None,
    }),
    ("group sum is a scan", |op| match *op {
        Op::Group { op: GroupOp::Sum, x, size } => Some(Op::Group { op: GroupOp::Scan, x, size }),
        _ => None,
    }),
    ("group max is one element short", |op| match *op {
        Op::Group { op: GroupOp::Max, x, size } if size > 1 => Some(Op::Group { op: GroupOp::Max, x, size: size - 1 }),
        _ => None,
    }),
    ("a store ignores its mask", |op| match *op {
        Op::Store { at, x, mask: Some(_) } => Some(Op::Store { at, x, mask: None }),
        _ => None,
    }),
    ("a masked-off atomic adds", |op| match *op {
        Op::AtomicAdd { at, x, mask: Some(_), order, scope } => Some(Op::AtomicAdd { at, x, mask: None, order, scope }),
        _ => None,
    }),
    ("a bulk copy is short", |op| match op {
        Op::BulkCopy { dst, src, .. } => Some(Op::BulkCopy { dst: *dst, src: *src, count: src.index }),
        _ => None,
    }),
];

#[test]
fn a_wrong_op_is_found_by_many_programs() {
    let mut counts = [(0, 0); MISTAKES.len()];
    for seed in 0..250 {
        let program = Program::new(seed, 3);
        let right = results(&program, &program.kernel).expect("the program runs");
        for ((_, mistake), (has, found)) in MISTAKES.iter().zip(&mut counts) {
            let Some(wrong) = with_mistake(&program.kernel, *mistake) else { continue };
            *has += 1;
            // A run that fails also finds the mistake.
            *found += u32::from(results(&program, &wrong).is_none_or(|wrong| wrong != right));
        }
    }
    for ((what, _), (has, found)) in MISTAKES.iter().zip(counts) {
        println!("{what}: {found} of {has}");
        assert!(found >= 3 && found * 10 >= has, "{what}: found by {found} of {has} programs that could");
    }
}

fn with_mistake(kernel: &Kernel, mistake: fn(&Op) -> Option<Op>) -> Option<Kernel> {
    let mut wrong = kernel.clone();
    let mut changed = false;
    for inst in kernel.insts.keys() {
        if let Some(op) = mistake(&kernel.insts[inst].op) {
            wrong.insts[inst].op = op;
            changed = true;
        }
    }
    changed.then_some(wrong)
}

fn results(program: &Program, kernel: &Kernel) -> Option<Vec<Vec<Vec<u8>>>> {
    let (binding, memories) = program.bind();
    let options = Options { step_limit: 1_000_000, ..Options::default() };
    let after = check::run(kernel, &binding, memories, options).ok()?;
    Some(program.results(&binding, &after))
}
