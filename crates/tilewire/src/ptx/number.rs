//! Arithmetic on registers: what `ir/scalar` defines, as instructions. Float instructions use `.rn` and never `.ftz`.

use super::convert::{bits_of, normal};
use super::math::{Ops32, Ops64};
use super::narrow::{from_f32, order, to_f32};
use super::text::{Hex, Reg, Text};
use crate::ir::scalar::math;
use crate::ir::{BinaryOp, CompareOp, Type, UnaryOp};

/// `op x`.
pub(super) fn unary(t: &mut Text, op: UnaryOp, ty: Type, x: Reg) -> Reg {
    match (op, ty) {
        (UnaryOp::Not, Type::Bool) => t.p("not.pred", &[&x]),
        (UnaryOp::Not, _) if ty.size() == 8 => t.d("not.b64", &[&x]),
        (UnaryOp::Not, _) => {
            let not = t.r("not.b32", &[&x]);
            normal(t, bits_of(ty), ty, not)
        }
        (UnaryOp::Neg | UnaryOp::Abs, _) if ty.is_float() => sign(t, op, ty, x),
        (UnaryOp::Neg, _) if ty.size() == 8 => t.d("neg.s64", &[&x]),
        (UnaryOp::Neg, _) => {
            let minus = t.r("neg.s32", &[&x]);
            normal(t, bits_of(ty), ty, minus)
        }
        (UnaryOp::Abs, _) if !ty.is_signed_int() => x,
        // max(x, -x): the least number is its own magnitude.
        (UnaryOp::Abs, Type::I64) => {
            let minus = t.d("neg.s64", &[&x]);
            t.d("max.s64", &[&x, &minus])
        }
        (UnaryOp::Abs, _) => {
            let minus = t.r("neg.s32", &[&x]);
            let larger = t.r("max.s32", &[&x, &minus]);
            normal(t, bits_of(ty), ty, larger)
        }
        (_, Type::F64) => wide_unary(t, op, x),
        _ => {
            let wide = to_f32(t, ty, x);
            let result = single_unary(t, op, wide);
            from_f32(t, ty, result)
        }
    }
}

/// `a op b`, both of type `ty`.
pub(super) fn binary(t: &mut Text, op: BinaryOp, ty: Type, a: Reg, b: Reg) -> Reg {
    if ty == Type::Bool {
        let name = match op {
            BinaryOp::And => "and.pred",
            BinaryOp::Or => "or.pred",
            _ => "xor.pred",
        };
        return t.p(name, &[&a, &b]);
    }
    if !ty.is_float() {
        return integer(t, op, ty, a, b);
    }
    let name = match op {
        BinaryOp::Add => "add.rn",
        BinaryOp::Sub => "sub.rn",
        BinaryOp::Mul => "mul.rn",
        BinaryOp::Div => "div.rn",
        BinaryOp::Min => "min",
        _ => "max",
    };
    match (ty, op) {
        (Type::F64, _) => t.d(&format!("{name}.f64"), &[&a, &b]),
        (Type::F32, _) => t.r(&format!("{name}.f32"), &[&a, &b]),
        (_, BinaryOp::Min | BinaryOp::Max) => narrow_extreme(t, op, ty, a, b),
        _ => {
            let (a, b) = (to_f32(t, ty, a), to_f32(t, ty, b));
            let result = t.r(&format!("{name}.f32"), &[&a, &b]);
            from_f32(t, ty, result)
        }
    }
}

/// `a op b` as a predicate.
pub(super) fn compare(t: &mut Text, op: CompareOp, ty: Type, a: Reg, b: Reg) -> Reg {
    let name = match op {
        CompareOp::Eq => "eq",
        CompareOp::Ne if ty.is_float() => "neu",
        CompareOp::Ne => "ne",
        CompareOp::Lt => "lt",
        CompareOp::Le => "le",
        CompareOp::Gt => "gt",
        CompareOp::Ge => "ge",
    };
    match ty {
        Type::Bool => {
            let differ = t.p("xor.pred", &[&a, &b]);
            if op == CompareOp::Eq { t.p("not.pred", &[&differ]) } else { differ }
        }
        Type::F64 => t.p(&format!("setp.{name}.f64"), &[&a, &b]),
        _ if ty.is_float() => {
            let (a, b) = (to_f32(t, ty, a), to_f32(t, ty, b));
            t.p(&format!("setp.{name}.f32"), &[&a, &b])
        }
        _ => t.p(&format!("setp.{name}.{}", kind(ty)), &[&a, &b]),
    }
}

/// `a * b + c`, rounded once.
pub(super) fn fma(t: &mut Text, ty: Type, a: Reg, b: Reg, c: Reg) -> Reg {
    if ty == Type::F64 {
        return t.d("fma.rn.f64", &[&a, &b, &c]);
    }
    let [a, b, c] = [a, b, c].map(|x| to_f32(t, ty, x));
    let result = t.r("fma.rn.f32", &[&a, &b, &c]);
    from_f32(t, ty, result)
}

impl Text {
    /// `cond ? a : b`.
    pub fn op_select(&mut self, ty: Type, cond: Reg, a: Reg, b: Reg) -> Reg {
        match (ty, ty.size()) {
            (Type::Bool, _) => {
                let (yes, not) = (self.p("and.pred", &[&cond, &a]), self.p("not.pred", &[&cond]));
                let no = self.p("and.pred", &[&not, &b]);
                self.p("or.pred", &[&yes, &no])
            }
            (_, 8) => self.d("selp.b64", &[&a, &b, &cond]),
            _ => self.r("selp.b32", &[&a, &b, &cond]),
        }
    }
}

/// The instruction suffix of an integer type.
fn kind(ty: Type) -> &'static str {
    match (ty.is_signed_int(), ty.size() == 8) {
        (true, true) => "s64",
        (false, true) => "u64",
        (true, false) => "s32",
        (false, false) => "u32",
    }
}

/// Changes only the sign bit, even of a NaN.
fn sign(t: &mut Text, op: UnaryOp, ty: Type, x: Reg) -> Reg {
    let bit = 1u64 << (ty.bits() - 1);
    match (op, ty.size()) {
        (UnaryOp::Neg, 8) => t.d("xor.b64", &[&x, &Hex(bit)]),
        (UnaryOp::Neg, _) => t.r("xor.b32", &[&x, &Hex(bit)]),
        (_, 8) => t.d("and.b64", &[&x, &Hex(bit - 1)]),
        _ => t.r("and.b32", &[&x, &Hex(bit - 1)]),
    }
}

fn single_unary(t: &mut Text, op: UnaryOp, x: Reg) -> Reg {
    match op {
        UnaryOp::Sqrt => t.r("sqrt.rn.f32", &[&x]),
        UnaryOp::Rsqrt => {
            let root = t.r("sqrt.rn.f32", &[&x]);
            t.r("rcp.rn.f32", &[&root])
        }
        UnaryOp::Rcp => t.r("rcp.rn.f32", &[&x]),
        UnaryOp::Exp => math::exp(&mut Ops32(t), x),
        UnaryOp::Log => math::log(&mut Ops32(t), x),
        UnaryOp::Tanh => math::tanh(&mut Ops32(t), x),
        UnaryOp::Floor => t.r("cvt.rmi.f32.f32", &[&x]),
        UnaryOp::Ceil => t.r("cvt.rpi.f32.f32", &[&x]),
        UnaryOp::Trunc => t.r("cvt.rzi.f32.f32", &[&x]),
        UnaryOp::RoundEven => t.r("cvt.rni.f32.f32", &[&x]),
        UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not => unreachable!("handled by unary"),
    }
}

fn wide_unary(t: &mut Text, op: UnaryOp, x: Reg) -> Reg {
    match op {
        UnaryOp::Sqrt => t.d("sqrt.rn.f64", &[&x]),
        UnaryOp::Rsqrt => {
            let root = t.d("sqrt.rn.f64", &[&x]);
            t.d("rcp.rn.f64", &[&root])
        }
        UnaryOp::Rcp => t.d("rcp.rn.f64", &[&x]),
        UnaryOp::Exp => math::exp(&mut Ops64(t), x),
        UnaryOp::Log => math::log(&mut Ops64(t), x),
        UnaryOp::Tanh => math::tanh(&mut Ops64(t), x),
        UnaryOp::Floor => t.d("cvt.rmi.f64.f64", &[&x]),
        UnaryOp::Ceil => t.d("cvt.rpi.f64.f64", &[&x]),
        UnaryOp::Trunc => t.d("cvt.rzi.f64.f64", &[&x]),
        UnaryOp::RoundEven => t.d("cvt.rni.f64.f64", &[&x]),
        UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not => unreachable!("handled by unary"),
    }
}

/// The bits of one of the operands, unchanged: an infinity of f8e5m2 would not survive the way through f32.
fn narrow_extreme(t: &mut Text, op: BinaryOp, ty: Type, a: Reg, b: Reg) -> Reg {
    let ((order_a, nan_a), (order_b, nan_b)) = (order(t, ty, a), order(t, ty, b));
    let better = t.p(if op == BinaryOp::Min { "setp.lt.s32" } else { "setp.gt.s32" }, &[&order_a, &order_b]);
    let number = t.p("not.pred", &[&nan_a]);
    let better = t.p("and.pred", &[&better, &number]);
    let take = t.p("or.pred", &[&better, &nan_b]);
    t.r("selp.b32", &[&a, &b, &take])
}

fn integer(t: &mut Text, op: BinaryOp, ty: Type, a: Reg, b: Reg) -> Reg {
    let (wide, kind) = (ty.size() == 8, kind(ty));
    let emit = |t: &mut Text, name: &str, args: [Reg; 2]| match wide {
        true => t.d(name, &[&args[0], &args[1]]),
        false => t.r(name, &[&args[0], &args[1]]),
    };
    let result = match op {
        BinaryOp::Add => emit(t, &format!("add.{kind}"), [a, b]),
        BinaryOp::Sub => emit(t, &format!("sub.{kind}"), [a, b]),
        BinaryOp::Mul => emit(t, &format!("mul.lo.{kind}"), [a, b]),
        BinaryOp::Min => return emit(t, &format!("min.{kind}"), [a, b]),
        BinaryOp::Max => return emit(t, &format!("max.{kind}"), [a, b]),
        BinaryOp::And => return emit(t, if wide { "and.b64" } else { "and.b32" }, [a, b]),
        BinaryOp::Or => return emit(t, if wide { "or.b64" } else { "or.b32" }, [a, b]),
        BinaryOp::Xor => return emit(t, if wide { "xor.b64" } else { "xor.b32" }, [a, b]),
        BinaryOp::MulHi if ty.size() >= 4 => return emit(t, &format!("mul.hi.{kind}"), [a, b]),
        // The double-width product fits in the register.
        BinaryOp::MulHi => {
            let product = t.r(&format!("mul.lo.{kind}"), &[&a, &b]);
            t.r(&format!("shr.{kind}"), &[&product, &ty.bits()])
        }
        BinaryOp::Div | BinaryOp::Rem => return divide(t, op, ty, a, b),
        // Amounts beyond the register's width clamp to it; a negative amount of a signed type is a large unsigned one.
        BinaryOp::Shl | BinaryOp::Shr => {
            let amount = if wide {
                let clamped = t.d("min.u64", &[&b, &64]);
                t.r("cvt.u32.u64", &[&clamped])
            } else {
                b
            };
            let name = match op {
                BinaryOp::Shl if wide => "shl.b64".to_string(),
                BinaryOp::Shl => "shl.b32".to_string(),
                _ => format!("shr.{kind}"),
            };
            emit(t, &name, [a, amount])
        }
    };
    if wide { result } else { normal(t, bits_of(ty), ty, result) }
}

/// `x / 0 = 0`, `x % 0 = x`, `MIN / -1 = MIN`, `MIN % -1 = 0`: the instruction divides by 1 instead.
fn divide(t: &mut Text, op: BinaryOp, ty: Type, a: Reg, b: Reg) -> Reg {
    let (kind, bits) = (kind(ty), if ty.size() == 8 { "b64" } else { "b32" });
    let emit = |t: &mut Text, name: &str, args: &[&dyn std::fmt::Display]| match ty.size() {
        8 => t.d(name, args),
        _ => t.r(name, args),
    };
    let zero = t.p(&format!("setp.eq.{kind}"), &[&b, &0]);
    let special = if ty.is_signed_int() {
        let minus_one = t.p(&format!("setp.eq.{kind}"), &[&b, &-1]);
        (t.p("or.pred", &[&zero, &minus_one]), Some(minus_one))
    } else {
        (zero, None)
    };
    let divisor = emit(t, &format!("selp.{bits}"), &[&1, &b, &special.0]);
    if op == BinaryOp::Rem {
        let rest = emit(t, &format!("rem.{kind}"), &[&a, &divisor]);
        return emit(t, &format!("selp.{bits}"), &[&a, &rest, &zero]);
    }
    let mut quotient = emit(t, &format!("div.{kind}"), &[&a, &divisor]);
    if let Some(minus_one) = special.1 {
        let minus = emit(t, &format!("neg.{kind}"), &[&a]);
        quotient = emit(t, &format!("selp.{bits}"), &[&minus, &quotient, &minus_one]);
    }
    let quotient = emit(t, &format!("selp.{bits}"), &[&0, &quotient, &zero]);
    if ty.size() == 8 { quotient } else { normal(t, bits_of(ty), ty, quotient) }
}
