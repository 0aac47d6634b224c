//! The ops on bits, with the type known at run time, for the constant folder and the reference evaluator.
//!
//! Bits are those of [`Const`](crate::ir::Const), zero-extended to 64. Bits above the type's width are ignored in
//! operands and zero in results. A combination that the verifier forbids (such as a remainder of floats) is a bug and
//! panics.

use super::super::op::{BinaryOp, CompareOp, UnaryOp};
use super::super::types::Type;
use super::{Bf16, CastTo, Element, F8E4M3, F8E5M2, F16, Float, Integer, Number};

/// `op x`, both of type `ty`.
///
/// ```
/// use tilewire::ir::{Type, UnaryOp, scalar::dynamic};
/// assert_eq!(dynamic::unary(UnaryOp::Neg, Type::I8, 1), 0xff);
/// ```
pub fn unary(op: UnaryOp, ty: Type, x: u64) -> u64 {
    match kind(ty) {
        Kind::Bool if op == UnaryOp::Not => Element::to_bits(!bool::from_bits(x)),
        Kind::Bool => forbidden(op, ty),
        Kind::Integer => integer_type!(ty, integer_unary(op, x)),
        Kind::Float => float_type!(ty, float_unary(op, x)),
    }
}

/// `a op b`, all of type `ty`.
pub fn binary(op: BinaryOp, ty: Type, a: u64, b: u64) -> u64 {
    match kind(ty) {
        Kind::Bool => bool_binary(op, a, b),
        Kind::Integer => integer_type!(ty, integer_binary(op, a, b)),
        Kind::Float => float_type!(ty, number_binary(op, a, b)),
    }
}

/// `a op b` for operands of type `ty`.
pub fn compare(op: CompareOp, ty: Type, a: u64, b: u64) -> bool {
    match kind(ty) {
        Kind::Bool => match op {
            CompareOp::Eq => bool::from_bits(a) == bool::from_bits(b),
            CompareOp::Ne => bool::from_bits(a) != bool::from_bits(b),
            CompareOp::Lt | CompareOp::Le | CompareOp::Gt | CompareOp::Ge => forbidden(op, ty),
        },
        Kind::Integer => integer_type!(ty, number_compare(op, a, b)),
        Kind::Float => float_type!(ty, number_compare(op, a, b)),
    }
}

/// `a * b + c`, all of the float type `ty`.
pub fn fma(ty: Type, a: u64, b: u64, c: u64) -> u64 {
    match kind(ty) {
        Kind::Float => float_type!(ty, float_fma(a, b, c)),
        Kind::Bool | Kind::Integer => forbidden("fma", ty),
    }
}

/// The bits of `x`, of type `from`, converted to type `to`.
pub fn cast(from: Type, to: Type, x: u64) -> u64 {
    match kind(from) {
        Kind::Bool => cast_from::<bool>(to, x),
        Kind::Integer => integer_type!(from, cast_from(to, x)),
        Kind::Float => float_type!(from, cast_from(to, x)),
    }
}

/// True if the bits are a NaN of type `ty`; false for types that are not floats.
pub fn is_nan(ty: Type, bits: u64) -> bool {
    match kind(ty) {
        Kind::Bool | Kind::Integer => false,
        Kind::Float => !float_type!(ty, number_compare(CompareOp::Eq, bits, bits)),
    }
}

/// The bits, with every NaN of a float type replaced by the same one. Two results agree if these are equal: the sign
/// and payload of a NaN made by arithmetic are unspecified.
pub fn canonical_nan(ty: Type, bits: u64) -> u64 {
    if !is_nan(ty, bits) {
        return bits;
    }
    match ty {
        Type::F16 => 0x7e00,
        Type::BF16 => 0x7fc0,
        Type::F32 => 0x7fc0_0000,
        Type::F64 => 0x7ff8_0000_0000_0000,
        Type::F8E4M3 | Type::F8E5M2 => 0x7f,
        _ => unreachable!("{ty} has no NaN"),
    }
}

enum Kind {
    Bool,
    Integer,
    Float,
}

fn kind(ty: Type) -> Kind {
    if ty.is_float() {
        Kind::Float
    } else if ty.is_int() {
        Kind::Integer
    } else {
        Kind::Bool
    }
}

#[track_caller]
fn forbidden(op: impl std::fmt::Debug, ty: Type) -> ! {
    unreachable!("{op:?} of {ty}: the verifier forbids it, so it must run before this")
}

/// Calls a function generic over the element with the Rust type of an integer `Type`.
macro_rules! integer_type {
    ($ty:expr, $function:ident($($arg:expr),*)) => {
        match $ty {
            Type::I8 => $function::<i8>($($arg),*),
            Type::I16 => $function::<i16>($($arg),*),
            Type::I32 => $function::<i32>($($arg),*),
            Type::I64 => $function::<i64>($($arg),*),
            Type::U8 => $function::<u8>($($arg),*),
            Type::U16 => $function::<u16>($($arg),*),
            Type::U32 => $function::<u32>($($arg),*),
            Type::U64 => $function::<u64>($($arg),*),
            other => unreachable!("{other} is not an integer type"),
        }
    };
}
use integer_type;

/// Calls a function generic over the element with the Rust type of a float `Type`.
macro_rules! float_type {
    ($ty:expr, $function:ident($($arg:expr),*)) => {
        match $ty {
            Type::F16 => $function::<F16>($($arg),*),
            Type::BF16 => $function::<Bf16>($($arg),*),
            Type::F32 => $function::<f32>($($arg),*),
            Type::F64 => $function::<f64>($($arg),*),
            Type::F8E4M3 => $function::<F8E4M3>($($arg),*),
            Type::F8E5M2 => $function::<F8E5M2>($($arg),*),
            other => unreachable!("{other} is not a float type"),
        }
    };
}
use float_type;

fn integer_unary<T: Integer>(op: UnaryOp, x: u64) -> u64 {
    let x = T::from_bits(x);
    match op {
        UnaryOp::Neg => x.neg(),
        UnaryOp::Abs => x.abs(),
        UnaryOp::Not => x.not(),
        _ => forbidden(op, T::TYPE),
    }
    .to_bits()
}

fn float_unary<T: Float>(op: UnaryOp, x: u64) -> u64 {
    let x = T::from_bits(x);
    match op {
        UnaryOp::Neg => x.neg(),
        UnaryOp::Abs => x.abs(),
        UnaryOp::Not => forbidden(op, T::TYPE),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => x.rsqrt(),
        UnaryOp::Rcp => x.rcp(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.log(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Trunc => x.trunc(),
        UnaryOp::RoundEven => x.round_even(),
    }
    .to_bits()
}

fn bool_binary(op: BinaryOp, a: u64, b: u64) -> u64 {
    let (a, b) = (bool::from_bits(a), bool::from_bits(b));
    Element::to_bits(match op {
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        _ => forbidden(op, Type::Bool),
    })
}

fn integer_binary<T: Integer>(op: BinaryOp, a_bits: u64, b_bits: u64) -> u64 {
    let (a, b) = (T::from_bits(a_bits), T::from_bits(b_bits));
    match op {
        BinaryOp::Rem => a.rem(b),
        BinaryOp::MulHi => a.mul_hi(b),
        BinaryOp::And => a.and(b),
        BinaryOp::Or => a.or(b),
        BinaryOp::Xor => a.xor(b),
        BinaryOp::Shl => a.shl(b),
        BinaryOp::Shr => a.shr(b),
        _ => return number_binary::<T>(op, a_bits, b_bits),
    }
    .to_bits()
}

fn number_binary<T: Number>(op: BinaryOp, a: u64, b: u64) -> u64 {
    let (a, b) = (T::from_bits(a), T::from_bits(b));
    match op {
        BinaryOp::Add => a.add(b),
        BinaryOp::Sub => a.sub(b),
        BinaryOp::Mul => a.mul(b),
        BinaryOp::Div => a.div(b),
        BinaryOp::Min => a.min(b),
        BinaryOp::Max => a.max(b),
        _ => forbidden(op, T::TYPE),
    }
    .to_bits()
}

fn float_fma<T: Float>(a: u64, b: u64, c: u64) -> u64 {
    T::from_bits(a).fma(T::from_bits(b), T::from_bits(c)).to_bits()
}

fn number_compare<T: Number>(op: CompareOp, a: u64, b: u64) -> bool {
    let (a, b) = (T::from_bits(a), T::from_bits(b));
    match op {
        CompareOp::Eq => a.equal(b),
        CompareOp::Ne => !a.equal(b),
        CompareOp::Lt => a.less(b),
        CompareOp::Le => a.less_equal(b),
        CompareOp::Gt => b.less(a),
        CompareOp::Ge => b.less_equal(a),
    }
}

fn cast_from<T: CastToAll>(to: Type, x: u64) -> u64 {
    T::from_bits(x).cast_to(to)
}

/// An element that can be cast to every `Type`.
trait CastToAll: Element {
    fn cast_to(self, to: Type) -> u64;
}

macro_rules! cast_to_all {
    ($($from:ident)*) => {$(
        impl CastToAll for $from {
            fn cast_to(self, to: Type) -> u64 {
                fn convert<U: Element>(x: $from) -> u64
                where
                    $from: CastTo<U>,
                {
                    let converted: U = x.cast();
                    converted.to_bits()
                }
                match kind(to) {
                    Kind::Bool => convert::<bool>(self),
                    Kind::Integer => integer_type!(to, convert(self)),
                    Kind::Float => float_type!(to, convert(self)),
                }
            }
        }
    )*};
}

cast_to_all!(bool i8 i16 i32 i64 u8 u16 u32 u64 F16 Bf16 f32 f64 F8E4M3 F8E5M2);
