//! Folding: ops on constants, and identities that hold bit for bit.
//!
//! Integers wrap, so they form a ring and all ring laws are exact. Floats have few: `x + 0` is not an identity (`-0 + 0
//! = 0`), `x + -0` and `x - 0` are. A NaN made by arithmetic has no specified sign or payload, so an identity may keep
//! the NaN it was given. `f8e5m2` has infinities that arithmetic and conversion saturate, so ops that look like
//! identities change it: it is excluded from float identities.

use super::super::entity::Value;
use super::super::kernel::{Def, Kernel};
use super::super::op::{BinaryOp, CompareOp, Const, GroupOp, Op, UnaryOp};
use super::super::scalar::dynamic;
use super::super::types::{Shape, Type};
use super::super::typing;
use super::rewrite::Rewriter;

/// The value that an op reduces to, if any. May append simpler ops.
pub(super) fn fold(r: &mut Rewriter, op: &Op) -> Option<Value> {
    if matches!(op, Op::Const(_) | Op::Special(_) | Op::Scalar(_)) {
        return None;
    }
    if let Some(c) = evaluate(&r.kernel, op) {
        return Some(r.constant(c.ty, c.bits));
    }
    match *op {
        Op::Unary { op, x } => unary(r, op, x),
        Op::Binary { op, a, b } => match r.kernel.ty(a) {
            Type::Bool => bool_binary(r, op, a, b),
            ty if ty.is_int() => int_binary(r, op, a, b, ty),
            ty => float_binary(r, op, a, b, ty),
        },
        Op::Compare { op, a, b } => compare(r, op, a, b),
        Op::Select { cond, a, b } => select(r, cond, a, b),
        Op::Cast { x, to } => cast(r, x, to),
        Op::Bitcast { x, to } if r.kernel.ty(x) == to => Some(x),
        Op::Bitcast { x, to } => match r.kernel.def(x) {
            Some(&Op::Bitcast { x, .. }) => Some(r.value(Op::Bitcast { x, to })),
            _ => None,
        },
        // A group of one reduces nothing; the largest and smallest of equal values is that value.
        Op::Group { x, size: 1, .. } => Some(x),
        Op::Group { op: GroupOp::Max | GroupOp::Min, x, .. } if r.kernel.shape(x) == Shape::Uniform => {
            (r.kernel.ty(x) != Type::F8E5M2).then_some(x)
        }
        _ => None,
    }
}

/// Puts a constant operand on the right, the only side that the rules examine.
pub(super) fn constants_right(kernel: &Kernel, op: &mut Op) {
    let left = |a: Value, b: Value| kernel.as_const(a).is_some() && kernel.as_const(b).is_none();
    match op {
        Op::Binary { op, a, b } if op.commutes() && left(*a, *b) => std::mem::swap(a, b),
        Op::Compare { op, a, b } if left(*a, *b) => {
            std::mem::swap(a, b);
            *op = match *op {
                CompareOp::Lt => CompareOp::Gt,
                CompareOp::Le => CompareOp::Ge,
                CompareOp::Gt => CompareOp::Lt,
                CompareOp::Ge => CompareOp::Le,
                same => same,
            };
        }
        _ => {}
    }
}

/// An op of constants only, computed by the language's own arithmetic.
fn evaluate(kernel: &Kernel, op: &Op) -> Option<Const> {
    let c = |v: Value| kernel.as_const(v);
    let bits = |ty, bits| Some(Const { ty, bits });
    // Ill-typed ops are left for the verifier to report.
    let legal = || typing::complaints(kernel, op).is_empty();
    match *op {
        Op::Unary { op: which, x } => {
            let x = c(x).filter(|_| legal())?;
            bits(x.ty, dynamic::unary(which, x.ty, x.bits))
        }
        Op::Binary { op: which, a, b } => {
            let (a, b) = (c(a)?, c(b).filter(|_| legal())?);
            bits(a.ty, dynamic::binary(which, a.ty, a.bits, b.bits))
        }
        Op::Compare { op: which, a, b } => {
            let (a, b) = (c(a)?, c(b).filter(|_| legal())?);
            bits(Type::Bool, u64::from(dynamic::compare(which, a.ty, a.bits, b.bits)))
        }
        Op::Fma { a, b, c: addend } => {
            let (a, b, addend) = (c(a)?, c(b)?, c(addend).filter(|_| legal())?);
            bits(a.ty, dynamic::fma(a.ty, a.bits, b.bits, addend.bits))
        }
        Op::Cast { x, to } => c(x).and_then(|x| bits(to, dynamic::cast(x.ty, to, x.bits))),
        Op::Bitcast { x, to } => c(x).filter(|_| legal()).and_then(|x| bits(to, x.bits)),
        _ => None,
    }
}

fn unary(r: &mut Rewriter, op: UnaryOp, x: Value) -> Option<Value> {
    let ty = r.kernel.ty(x);
    match (op, r.kernel.def(x).cloned()) {
        (UnaryOp::Neg, Some(Op::Unary { op: UnaryOp::Neg, x }))
        | (UnaryOp::Not, Some(Op::Unary { op: UnaryOp::Not, x })) => Some(x),
        (UnaryOp::Abs, _) if ty.is_int() && !ty.is_signed_int() => Some(x),
        (UnaryOp::Abs, Some(Op::Unary { op: UnaryOp::Abs, .. })) => Some(x),
        (UnaryOp::Abs, Some(Op::Unary { op: UnaryOp::Neg, x })) => Some(r.value(Op::Unary { op: UnaryOp::Abs, x })),
        (UnaryOp::Not, Some(Op::Compare { op, a, b })) => {
            // With NaN a comparison and its opposite are both false; equality and its opposite are not.
            let order = matches!(op, CompareOp::Lt | CompareOp::Le | CompareOp::Gt | CompareOp::Ge);
            if order && r.kernel.ty(a).is_float() {
                return None;
            }
            let op = match op {
                CompareOp::Eq => CompareOp::Ne,
                CompareOp::Ne => CompareOp::Eq,
                CompareOp::Lt => CompareOp::Ge,
                CompareOp::Ge => CompareOp::Lt,
                CompareOp::Gt => CompareOp::Le,
                CompareOp::Le => CompareOp::Gt,
            };
            Some(r.value(Op::Compare { op, a, b }))
        }
        _ => None,
    }
}

fn bool_binary(r: &mut Rewriter, op: BinaryOp, a: Value, b: Value) -> Option<Value> {
    let known = r.kernel.as_const(b).map(|c| c.bits != 0);
    match (op, known) {
        (BinaryOp::And, Some(true)) | (BinaryOp::Or | BinaryOp::Xor, Some(false)) => Some(a),
        (BinaryOp::And, Some(false)) | (BinaryOp::Or, Some(true)) => Some(b),
        (BinaryOp::Xor, Some(true)) => Some(r.value(Op::Unary { op: UnaryOp::Not, x: a })),
        (BinaryOp::And | BinaryOp::Or, None) if a == b => Some(a),
        (BinaryOp::Xor, None) if a == b => Some(r.constant(Type::Bool, 0)),
        _ => None,
    }
}

fn int_binary(r: &mut Rewriter, op: BinaryOp, a: Value, b: Value, ty: Type) -> Option<Value> {
    use BinaryOp::*;
    if a == b {
        match op {
            And | Or | Min | Max => return Some(a),
            Sub | Xor => return Some(r.constant(ty, 0)),
            _ => {}
        }
    }
    if r.kernel.as_const(a).is_some_and(|c| c.bits == 0) {
        match op {
            Sub => return Some(r.value(Op::Unary { op: UnaryOp::Neg, x: b })),
            // 0 / 0 = 0 and 0 % 0 = 0 too.
            Div | Rem | Shl | Shr => return Some(a),
            _ => {}
        }
    }
    let c = r.kernel.as_const(b)?.bits;
    let ones = if ty.bits() == 64 { u64::MAX } else { (1 << ty.bits()) - 1 };
    match (op, c) {
        (Add | Sub | Or | Xor | Shl | Shr, 0) | (Mul | Div, 1) => return Some(a),
        (Mul | And | MulHi, 0) => return Some(b),
        (Or, _) if c == ones => return Some(b),
        (And, _) if c == ones => return Some(a),
        (Xor, _) if c == ones => return Some(r.value(Op::Unary { op: UnaryOp::Not, x: a })),
        (Mul, _) if c == ones => return Some(r.value(Op::Unary { op: UnaryOp::Neg, x: a })),
        (Shl, _) if c >= u64::from(ty.bits()) => return Some(r.constant(ty, 0)),
        (Shr, _) if c >= u64::from(ty.bits()) && !ty.is_signed_int() => return Some(r.constant(ty, 0)),
        _ => {}
    }
    // Two constants in a row become one: addition, multiplication and the bitwise ops are associative.
    let Some(&Op::Binary { op: inner, a: x, b: d }) = r.kernel.def(a) else { return None };
    let d = r.kernel.as_const(d)?.bits;
    let (outer, sum) = match (inner, op) {
        (Add, Add) | (Sub, Sub) => (inner, d.wrapping_add(c)),
        (Add, Sub) | (Sub, Add) => (inner, d.wrapping_sub(c)),
        (Mul, Mul) => (Mul, d.wrapping_mul(c)),
        (And, And) => (And, d & c),
        (Or, Or) => (Or, d | c),
        (Xor, Xor) => (Xor, d ^ c),
        _ => return None,
    };
    let b = r.constant(ty, sum & ones);
    Some(r.value(Op::Binary { op: outer, a: x, b }))
}

fn float_binary(r: &mut Rewriter, op: BinaryOp, a: Value, b: Value, ty: Type) -> Option<Value> {
    if ty == Type::F8E5M2 {
        return None;
    }
    match op {
        // NaN loses only to a number.
        BinaryOp::Min | BinaryOp::Max if a == b => return Some(a),
        _ => {}
    }
    let c = r.kernel.as_const(b)?;
    let sign = 1 << (ty.bits() - 1);
    match op {
        BinaryOp::Mul | BinaryOp::Div => (c.bits == dynamic::cast(Type::I32, ty, 1)).then_some(a),
        BinaryOp::Add => (c.bits == sign).then_some(a),
        BinaryOp::Sub => (c.bits == 0).then_some(a),
        _ => None,
    }
}

fn compare(r: &mut Rewriter, op: CompareOp, a: Value, b: Value) -> Option<Value> {
    use CompareOp::*;
    let ty = r.kernel.ty(a);
    if ty.is_float() {
        return None;
    }
    if a == b {
        return Some(r.constant(Type::Bool, u64::from(matches!(op, Eq | Le | Ge))));
    }
    if ty == Type::Bool {
        let same = (r.kernel.as_const(b)?.bits != 0) == (op == Eq);
        return Some(if same { a } else { r.value(Op::Unary { op: UnaryOp::Not, x: a }) });
    }
    // The index of an `each` or `for` is below its bound.
    let below = |x: Value, bound: Value| match r.kernel.values[x].def {
        Def::Index { inst, axis } => match &r.kernel.insts[inst].op {
            Op::Each { extent, .. } => extent[axis] == bound,
            Op::For { end, .. } => *end == bound,
            _ => false,
        },
        Def::Result(_) => false,
    };
    let known = match op {
        _ if below(a, b) => Some(matches!(op, Lt | Le | Ne)),
        _ if below(b, a) => Some(matches!(op, Gt | Ge | Ne)),
        _ => None,
    };
    let known = known.or_else(|| {
        let (a, b) = (r.fact(a), r.fact(b));
        match op {
            _ if a.hi < b.lo => Some(matches!(op, Lt | Le | Ne)),
            _ if a.lo > b.hi => Some(matches!(op, Gt | Ge | Ne)),
            Le | Gt if a.hi <= b.lo => Some(op == Le),
            Ge | Lt if a.lo >= b.hi => Some(op == Ge),
            _ => None,
        }
    })?;
    Some(r.constant(Type::Bool, u64::from(known)))
}

fn select(r: &mut Rewriter, cond: Value, a: Value, b: Value) -> Option<Value> {
    if let Some(c) = r.kernel.as_const(cond) {
        return Some(if c.bits != 0 { a } else { b });
    }
    if a == b {
        return Some(a);
    }
    if let Some(&Op::Unary { op: UnaryOp::Not, x }) = r.kernel.def(cond) {
        return Some(r.value(Op::Select { cond: x, a: b, b: a }));
    }
    match (r.kernel.as_const(a), r.kernel.as_const(b)) {
        (Some(x), Some(y)) if x.ty == Type::Bool => Some(match (x.bits != 0, y.bits != 0) {
            (true, false) => cond,
            (false, true) => r.value(Op::Unary { op: UnaryOp::Not, x: cond }),
            _ => a,
        }),
        (Some(x), Some(y)) if x.bits == y.bits => Some(a),
        _ => None,
    }
}

fn cast(r: &mut Rewriter, x: Value, to: Type) -> Option<Value> {
    let middle = r.kernel.ty(x);
    if middle == to && to != Type::F8E5M2 {
        return Some(x);
    }
    let Some(&Op::Cast { x: first, .. }) = r.kernel.def(x) else { return None };
    let from = r.kernel.ty(first);
    // A conversion is a function of the number, so a detour through a type that holds every number of the first changes
    // nothing. (Not back to f8e5m2, which would not saturate.) A wrapped integer still has the right low bits.
    let low_bits = from.is_int() && middle.is_int() && to.is_int() && to.bits() <= middle.bits();
    let detour = (holds(middle, from) && to != Type::F8E5M2) || low_bits;
    match detour {
        true if from == to => Some(first),
        true => Some(r.value(Op::Cast { x: first, to })),
        false => None,
    }
}

/// True if every number of type `small` is also one of type `large`.
fn holds(large: Type, small: Type) -> bool {
    use Type::*;
    match (small, large) {
        (Bool, _) => true,
        _ if small == large => true,
        (F8E5M2, F16 | BF16 | F32 | F64) | (F8E4M3, F16 | BF16 | F32 | F64) => true,
        (F16 | BF16, F32 | F64) | (F32, F64) => true,
        _ if small.is_int() && large.is_int() => match (small.is_signed_int(), large.is_signed_int()) {
            (true, false) => false,
            (false, true) => large.bits() > small.bits(),
            _ => large.bits() >= small.bits(),
        },
        _ => false,
    }
}
